//! `coppice-check`: checks histories, clusters, and the checkers.

fn main() -> std::process::ExitCode {
    // A test starts its nodes from this program, which holds the server that was built with it.
    if std::env::args_os().nth(1).is_some_and(|verb| verb == "serve") {
        return coppice_server::cli::main();
    }
    coppice_tests::check::cli::main()
}
