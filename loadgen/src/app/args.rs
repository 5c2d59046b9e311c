//! The command line.
// Help texts show defaults in brackets; they are no links.
#![allow(rustdoc::broken_intra_doc_links)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use coppice_client::Token;
use coppice_client::wire::MANY_OPERATIONS_MAX;

use crate::units::{self, Bound, Think};

/// Load for Coppice and its peers: the papers' workloads, YCSB's, closed and open loops, honest percentiles.
#[derive(Clone, Debug, Parser)]
#[command(name = "coppice-load", version, infer_long_args = true, propagate_version = true)]
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
    /// Addresses of the store, separated by commas [native: 127.0.0.1:7400,127.0.0.1:7410,127.0.0.1:7420; resp:
    /// 127.0.0.1:6379]
    #[arg(long, global = true, env = "COPPICE_ENDPOINTS", value_delimiter = ',')]
    pub endpoints: Vec<String>,
    /// Native: file with the token of a user, where the cluster has users
    #[arg(id = "token_file", long = "token-file", global = true, env = "COPPICE_TOKEN_FILE", value_name = "FILE")]
    #[arg(value_parser = read_token, hide_env_values = true)]
    pub token: Option<Token>,
    /// Authorities of the nodes' certificates, in PEM: connect inside TLS
    #[arg(long, global = true, env = "COPPICE_TLS_CA", hide_env_values = true, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// The own certificate, in PEM
    #[arg(long, global = true, env = "COPPICE_TLS_CERT", hide_env_values = true, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of the own certificate, in PEM
    #[arg(long, global = true, env = "COPPICE_TLS_KEY", hide_env_values = true, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
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

/// Output formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    Table,
    /// One compact object
    Json,
}

/// Each client has a place of its own in the generator, and a request under way in the store.
const CLIENTS_MAX: u64 = 100_000;

/// One request per nanosecond, the unit of our clock.
const RATE_MAX: u64 = 1_000_000_000;

fn read_token(file: &str) -> Result<Token, String> {
    Token::from_file(Path::new(file)).map_err(|error| error.to_string())
}

fn clients(text: &str) -> Result<u64, String> {
    between(text, CLIENTS_MAX)
}

fn rate(text: &str) -> Result<u64, String> {
    between(text, RATE_MAX)
}

fn between(text: &str, max: u64) -> Result<u64, String> {
    let count = units::count(text)?;
    if (1..=max).contains(&count) { Ok(count) } else { Err(format!("it must be between 1 and {max}")) }
}

fn within(text: &str) -> Result<(f64, f64), String> {
    let ends = text.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    let inside = |&(from, to): &(f64, f64)| 0.0 <= from && from < to && to <= 1.0;
    ends.filter(inside).ok_or_else(|| "it is FROM..TO, two shares between 0 and 1, like 0.25..0.5".to_owned())
}

/// Commands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Runs a workload and reports throughput and latency
    Run(Box<RunArgs>),
    /// Loads N keys in bulk, spread evenly over the partitions
    Fill(FillArgs),
    /// Measures one durable put at a time, beside the round trips and the flush that it is made of
    Unloaded(UnloadedArgs),
    /// Draws the pictures of one or more `run --out` directories over each other
    Plot(PlotArgs),
}

/// Which store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TargetName {
    /// Coppice, through its client library
    Native,
    /// Any server that speaks RESP, such as Redis
    Resp,
}

impl TargetName {
    /// The word in reports.
    pub const fn name(self) -> &'static str {
        match self {
            TargetName::Native => "native",
            TargetName::Resp => "resp",
        }
    }
}

/// `coppice-load unloaded`.
#[derive(Clone, Debug, Args)]
pub struct UnloadedArgs {
    /// Puts, pings of each kind and flushes
    #[arg(long, default_value_t = 2_000)]
    pub rounds: u64,
    /// Where the flush is measured: on the disk of the nodes' data directories
    #[arg(long, default_value = ".")]
    pub dir: PathBuf,
}

/// `coppice-load run`.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// a, b, c (the papers': 1000-key ranges; single inserts and deletes; --updates in one command), mixed, put,
    /// get, range, ycsb-a to ycsb-f, or the path of a YCSB property file
    #[arg(long, default_value = "mixed")]
    pub workload: String,
    /// Closed loop: clients, each with one request at a time [64]; with --rate: the most requests under way [10000]
    #[arg(long, value_parser = clients)]
    pub clients: Option<u64>,
    /// Closed loop: pause of a client between an answer and its next request: 5ms, or 0..10ms (even)
    #[arg(long, value_parser = Think::parse, default_value = "0")]
    pub think: Think,
    /// Open loop: requests due per second; latency counts from the moment when a request was due
    #[arg(long, value_parser = rate)]
    pub rate: Option<u64>,
    /// Length of the run [20s; each step of --find-max: 6s]
    #[arg(long, value_parser = units::duration)]
    pub duration: Option<Duration>,
    /// Dropped at each end of the run [a tenth of it]
    #[arg(long, value_parser = units::duration)]
    pub trim: Option<Duration>,
    /// How many keys are in the store; the keys of a run follow from it [what the cluster reports, at least 100k]
    #[arg(long, value_parser = units::count)]
    pub entries: Option<u64>,
    /// Load so many keys first, in bulk, unless they are there
    #[arg(long, value_parser = units::count, conflicts_with = "entries")]
    pub preload: Option<u64>,
    /// Bytes of a written value [8; YCSB: 1000]
    #[arg(long, value_parser = units::bytes)]
    pub value_size: Option<u64>,
    /// Keys that a range spans [a: 1000, mixed: 100]
    #[arg(long, value_parser = units::count)]
    pub range_keys: Option<u64>,
    /// Updates in one command of workload c, all of one partition [7]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=MANY_OPERATIONS_MAX as i64))]
    pub updates: Option<u32>,
    /// Of ranges, this percentage spans two partitions
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=100), default_value_t = 0)]
    pub cross_percent: u8,
    /// Only keys of a part of the key space, as shares of all 8-byte keys, like 0.25..0.5: a hot spot
    #[arg(long, value_parser = within, value_name = "FROM..TO")]
    pub within: Option<(f64, f64)>,
    /// Run only on a cluster of so many partitions
    #[arg(long)]
    pub partitions: Option<u32>,
    /// Bytes that the client library packs into one frame; 0: one command per frame
    #[arg(long, value_parser = units::bytes, default_value = "8k")]
    pub pack: u64,
    /// Reads from any replica's decided state, which may be old
    #[arg(long)]
    pub stale: bool,
    /// Linearizable reads by replicas drawn at random, instead of by leaders alone
    #[arg(long, conflicts_with = "stale")]
    pub any_replica: bool,
    /// Ranges across partitions all take a ticket, instead of being read in each partition and validated first
    #[arg(long)]
    pub ordered: bool,
    /// Find the highest load below a bound on latency, like p99=4ms: clients, or with --rate requests per second, are
    /// doubled, then halved in between
    #[arg(long, value_parser = Bound::parse)]
    pub find_max: Option<Bound>,
    /// Threads that generate [1, or a quarter of the processors]
    #[arg(long)]
    pub threads: Option<u32>,
    /// Connections of each thread; clients are spread over them
    #[arg(long, default_value_t = 1)]
    pub connections: u32,
    /// All requests follow from it
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write run.json, latency.hlog and SVG plots into this directory
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Write a history for `coppice-check history` into this file
    #[arg(long)]
    pub record: Option<PathBuf>,
    /// Admin addresses of the nodes, for the six numbers of the ordering [what the cluster says]
    #[arg(long, value_delimiter = ',')]
    pub metrics: Vec<String>,
    /// Which store
    #[arg(long, value_enum, default_value_t = TargetName::Native)]
    pub target: TargetName,
    /// Target resp: every write is followed by WAIT for so many replicas, and ends with it
    #[arg(long, default_value_t = 0)]
    pub wait_replicas: u32,
}

/// `coppice-load fill`.
#[derive(Clone, Debug, Args)]
pub struct FillArgs {
    /// How many keys
    #[arg(long, value_parser = units::count)]
    pub entries: u64,
    /// Bytes of a value
    #[arg(long, value_parser = units::bytes, default_value = "8")]
    pub value_size: u64,
    /// Which store
    #[arg(long, value_enum, default_value_t = TargetName::Native)]
    pub target: TargetName,
}

/// `coppice-load plot`.
#[derive(Clone, Debug, Args)]
pub struct PlotArgs {
    /// Directories written by `run --out`
    #[arg(required = true)]
    pub directories: Vec<PathBuf>,
    /// Where the pictures go
    #[arg(long, default_value = ".")]
    pub out: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_setup_and_shortened_flags_parse() {
        let line =
            "coppice-load run --workload c --preload 12M --think 0..10ms --dur 60s --trim 10s --pack 8k --find p99=4ms";
        let cli = Cli::try_parse_from(line.split(' ')).unwrap();
        let Command::Run(run) = cli.command else { panic!("it is a run") };
        assert_eq!((run.preload, run.pack, run.duration), (Some(12_000_000), 8_192, Some(Duration::from_secs(60))));
        assert_eq!(run.find_max.unwrap().percentile, 99.0);
    }

    /// None ran one, one per second; 99999999999 clients took all memory.
    #[test]
    fn clients_and_rates_that_no_run_can_have_are_refused() {
        for flag in ["--clients", "--rate"] {
            for (value, good) in [("0", false), ("1", true), ("100k", true), ("99999999999", false)] {
                let parsed = Cli::try_parse_from(["coppice-load", "run", flag, value]);
                assert_eq!(parsed.is_ok(), good, "{flag} {value}");
            }
        }
    }

    #[test]
    fn the_definitions_are_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
