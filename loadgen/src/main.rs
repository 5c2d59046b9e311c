//! `coppice-load`: see `coppice_loadgen::app`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    coppice_loadgen::app::main()
}
