//! The command line.
// Help texts show defaults in brackets; they are no links.
#![allow(rustdoc::broken_intra_doc_links)]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use coppice_loadgen::app::args::Output;
use coppice_loadgen::units;

/// Experiments with Coppice: the papers' figures measured again, and comparisons with other stores on one machine.
#[derive(Clone, Debug, Parser)]
#[command(name = "coppice-figures", version, infer_long_args = true, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Flags that every command has.
    #[command(flatten)]
    pub global: Global,
}

/// Flags that every command has.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// Output on stdout
    #[arg(short, long, global = true, value_enum, default_value_t = Output::Table)]
    pub output: Output,
    /// How long a request may take before its outcome counts as unknown
    #[arg(long, global = true, value_parser = units::duration, default_value = "5s")]
    pub timeout: Duration,
    /// No progress bar
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

/// Commands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Measures and draws a paper's figures again, each beside what the paper says of it
    Paper(PaperArgs),
    /// Runs Coppice, then etcd and Redis where they are installed, one after the other, and compares them in one table
    Versus(Box<VersusArgs>),
}

/// Whom Coppice is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Peers {
    /// etcd, three processes, by its own benchmark tool
    Etcd,
    /// Redis: one process, and three with WAIT
    Redis,
    /// Both
    All,
}

/// `coppice-figures versus`.
#[derive(Clone, Debug, Args)]
pub struct VersusArgs {
    /// Whom Coppice is compared with
    #[arg(value_enum)]
    pub peers: Peers,
    /// Keys loaded first; etcd gets at most 1M, which favours it
    #[arg(long, value_parser = units::count, default_value = "1M")]
    pub entries: u64,
    /// Length of each job
    #[arg(long, value_parser = units::duration, default_value = "10s")]
    pub duration: Duration,
    /// Partitions of Coppice; a peer has one log
    #[arg(long, default_value_t = 1)]
    pub partitions: u32,
    /// Where the data goes while a store runs, in a directory that is removed [the system's temporary one]
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// The program `coppice` [beside this one, else in PATH]
    #[arg(long)]
    pub bin: Option<PathBuf>,
    /// The program `etcd` [in PATH]
    #[arg(long)]
    pub etcd: Option<PathBuf>,
    /// etcd's `tools/benchmark` [in PATH: etcd-benchmark, else benchmark]
    #[arg(long)]
    pub etcd_benchmark: Option<PathBuf>,
    /// The program `redis-server` [in PATH]
    #[arg(long)]
    pub redis: Option<PathBuf>,
    /// Write versus.md and versus.json into this directory
    #[arg(long)]
    pub out: Option<PathBuf>,
}

/// Whose figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Paper {
    /// Santos, Schiper: Tuning Paxos
    Tuning,
    /// Marandi, Primi, Pedone: High Performance State-Machine Replication
    Smr,
}

/// `coppice-figures paper`.
#[derive(Clone, Debug, Args)]
pub struct PaperArgs {
    /// Whose figures
    #[arg(value_enum)]
    pub paper: Paper,
    /// Only these, separated by commas: fig5,fig7
    #[arg(long, value_delimiter = ',', value_name = "FIGURE,..")]
    pub only: Vec<String>,
    /// Say what there is, and what of it is measured, and measure nothing
    #[arg(long)]
    pub list: bool,
    /// Minutes instead of hours: fewer points, shorter measurements, fewer keys
    #[arg(long)]
    pub short: bool,
    /// Pictures, tables, index.html and what was measured go here; what is there already is not measured again
    #[arg(long, default_value = "figures", value_name = "DIR")]
    pub out: PathBuf,
    /// Times that every point is measured; the median counts [3; tuning, short: 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100), value_name = "N")]
    pub rounds: Option<u32>,
    /// Length of one measurement [smr: 60s, short 2s; tuning: 30s, short 10s]
    #[arg(long, value_parser = units::duration, value_name = "TIME")]
    pub duration: Option<Duration>,
    /// smr: keys loaded first [12M, short 200k]
    #[arg(long, value_parser = units::count, value_name = "N")]
    pub entries: Option<u64>,
    /// smr: nodes do not wait for their disks, as the paper's did not
    #[arg(long)]
    pub no_flush: bool,
    /// Where the nodes' data goes, in a directory that is removed [the system's temporary one]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The program `coppice` [beside this one, else in PATH]
    #[arg(long, value_name = "FILE")]
    pub bin: Option<PathBuf>,
    /// tuning: the program `coppice-lab`, whose emulated links they need [beside this one, else in PATH]
    #[arg(long, value_name = "FILE")]
    pub lab: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_are_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
