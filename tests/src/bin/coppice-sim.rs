//! `coppice-sim`: whole clusters in one thread from one seed.

fn main() -> std::process::ExitCode {
    coppice_tests::sim::cli::main()
}
