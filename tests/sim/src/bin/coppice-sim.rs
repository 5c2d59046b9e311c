//! `coppice-sim`: whole clusters in one thread from one seed.

fn main() -> std::process::ExitCode {
    coppice_sim::cli::main()
}
