//! The `coppice` program: server, client, operator tool and demo in one.

fn main() -> std::process::ExitCode {
    coppice_server::cli::main()
}
