//! `coppice-lab`: nodes over emulated links.

use std::process::ExitCode;

fn main() -> ExitCode {
    // An experiment starts nodes from this program where there is no `coppice` beside it.
    match std::env::args_os().nth(1).is_some_and(|verb| verb == "serve") {
        true => coppice_server::program::main(),
        false => coppice_lab::cli::main(),
    }
}
