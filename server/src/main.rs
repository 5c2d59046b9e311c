//! The `coppice` program: server, client, operator tool and demo in one.

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    coppice_server::program::main()
}
