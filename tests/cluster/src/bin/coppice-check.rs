//! `coppice-check`: checks histories, clusters, and the checkers.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let called = words.next().unwrap_or_default();
    // A test starts nodes from this program, which holds the server that was built with it; and a whole demonstration,
    // under the names of its programs.
    let serves = words.next().is_some_and(|verb| verb == "serve");
    match Path::new(&called).file_name().and_then(|name| name.to_str()) {
        Some("coppice-load") => coppice_loadgen::app::main(),
        Some("coppice") => coppice_server::program::main(),
        _ if serves => coppice_server::program::main(),
        _ => coppice_cluster::cli::main(),
    }
}
