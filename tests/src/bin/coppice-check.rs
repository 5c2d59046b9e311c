//! `coppice-check`: checks histories, and the checkers.

fn main() -> std::process::ExitCode {
    coppice_tests::check::cli::main()
}
