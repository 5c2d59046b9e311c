//! The command line: one definition for parsing, help, completions and manual pages.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use coppice_client::Token;
use coppice_client::tls::{Files, Tls};
use coppice_core::settings::units;

use super::cert::CertVerb;
use super::failure::Failure;
use super::inspect::InspectVerb;
use super::node_flags::NodeFlags;
use super::operate::LeaderVerb;
use super::shape_args::{NodeVerb, PartitionVerb};
use super::text::Coding;
use super::tuning::TuningArgs;
use super::user::UserVerb;
use crate::config::Address;

/// Where a client looks without `--endpoints`: the native ports of the demo's first three nodes, so that one may be
/// dead.
pub const DEFAULT_ENDPOINTS: &str = "127.0.0.1:7400,127.0.0.1:7410,127.0.0.1:7420";

const AFTER_HELP: &str = "\
Exit status: 0 done, 1 failed (status: degraded), 2 usage or configuration, 3 unreachable or refused, not executed,
4 not found, 5 condition failed, 6 outcome unknown (repeat with --resume).";

/// A strongly consistent, ordered, replicated key-value store.
#[derive(Debug, Parser)]
#[command(name = "coppice", version, infer_long_args = true, after_help = AFTER_HELP, max_term_width = 120)]
pub struct Cli {
    /// Flags of every verb.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// Flags of every verb.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Nodes to ask, any of the cluster, separated by commas
    #[arg(long, global = true, env = "COPPICE_ENDPOINTS", value_delimiter = ',', value_name = "HOST:PORT")]
    #[arg(default_value = DEFAULT_ENDPOINTS, hide_env_values = true)]
    pub endpoints: Vec<Address>,
    /// File with the token that shows who asks, where the cluster has users
    #[arg(id = "token_file", long = "token-file", global = true, env = "COPPICE_TOKEN_FILE", value_parser = read_token)]
    #[arg(value_name = "FILE", hide_env_values = true)]
    pub token: Option<Token>,
    /// How to print: a table on a terminal, else raw for data and json for all else
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,
    /// How long to try before giving up
    #[arg(long, global = true, value_parser = parse_timeout, default_value = "5s", value_name = "TIME")]
    pub timeout: Duration,
    /// Authorities of the nodes' certificates, in PEM: connect inside TLS
    #[arg(long, global = true, env = "COPPICE_TLS_CA", hide_env_values = true, value_name = "FILE")]
    pub tls_ca: Option<String>,
    /// The own certificate, in PEM
    #[arg(long, global = true, env = "COPPICE_TLS_CERT", hide_env_values = true, value_name = "FILE")]
    pub tls_cert: Option<String>,
    /// The private key of the own certificate, in PEM
    #[arg(long, global = true, env = "COPPICE_TLS_KEY", hide_env_values = true, value_name = "FILE")]
    pub tls_key: Option<String>,
    /// What these files make of a connection; read once the command line is.
    #[arg(skip)]
    pub tls: Option<Tls>,
    /// Keys and values are numbers: u64 in 8 bytes, big-endian
    #[arg(long, global = true, conflicts_with_all = ["hex", "base64"])]
    pub int: bool,
    /// Keys and values are hex digits
    #[arg(long, global = true, conflicts_with_all = ["int", "base64"])]
    pub hex: bool,
    /// Keys and values are base64
    #[arg(long, global = true, conflicts_with_all = ["int", "hex"])]
    pub base64: bool,
    /// Print nothing but data and errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Say on stderr what is being done
    #[arg(short, long, global = true)]
    pub verbose: bool,
}

impl Global {
    /// Reads the certificates that were named.
    ///
    /// # Errors
    /// In four lines.
    pub fn load_tls(&mut self, verb: &str) -> Result<(), Failure> {
        let path = |file: &Option<String>| file.as_ref().filter(|file| !file.is_empty()).map(PathBuf::from);
        let failure = |what: String, cause: &str| Failure {
            code: "tls",
            place: "--tls-ca, --tls-cert and --tls-key, or COPPICE_TLS_CA, _CERT and _KEY".to_owned(),
            ..Failure::usage(format!("{verb}: {what}"), cause, "coppice cert --help")
        };
        let given = Files::given(path(&self.tls_ca), path(&self.tls_cert), path(&self.tls_key));
        let files = given.map_err(|what| failure(what, "the files of one certificate go together"))?;
        let loaded = files.map(Tls::load).transpose();
        self.tls =
            loaded.map_err(|error| failure(error.to_string(), "a file is missing, damaged, or belongs to another"))?;
        Ok(())
    }

    /// How keys and values are written.
    #[must_use]
    pub fn coding(&self) -> Coding {
        match (self.int, self.hex, self.base64) {
            (true, _, _) => Coding::Int,
            (_, true, _) => Coding::Hex,
            (_, _, true) => Coding::Base64,
            _ => Coding::Plain,
        }
    }
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// One object.
    Json,
    /// One object per line.
    Jsonl,
    /// The bytes, nothing else.
    Raw,
}

/// Everything that the program does.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Start a whole cluster on this machine, to try it and to break it
    Demo(DemoArgs),
    /// Run one node
    Serve(Box<ServeArgs>),
    /// Form a cluster of waiting nodes, once
    Init(InitArgs),
    /// Print the value of a key
    Get(GetArgs),
    /// Set a key, whether it exists or not
    Put(PairArgs),
    /// Set a key that does not exist; never overwrites
    Insert(PairArgs),
    /// Remove a key
    Delete(DeleteArgs),
    /// Set a key if its value is OLD
    Cas(CasArgs),
    /// Print the pairs of a range in key order
    Scan(ScanArgs),
    /// Say whether the cluster is healthy and may lose a node
    Status(StatusArgs),
    /// Hand leaderships over
    #[command(subcommand)]
    Leader(LeaderVerb),
    /// Check the data of the cluster
    #[command(subcommand)]
    Check(CheckVerb),
    /// Add, drain, remove and replace nodes
    #[command(subcommand)]
    Node(NodeVerb),
    /// Split and move partitions, and see where they are
    #[command(subcommand)]
    Partition(PartitionVerb),
    /// Say who may do what
    #[command(subcommand)]
    User(UserVerb),
    /// Show, check and change settings
    #[command(subcommand)]
    Config(ConfigVerb),
    /// Make certificates: an authority, and what it signs for nodes and clients
    #[command(subcommand)]
    Cert(CertVerb),
    /// Say how batching and pipelining are tuned, and what a cluster would do
    Tuning(TuningArgs),
    /// Read a data directory of a node that is stopped
    #[command(subcommand)]
    Inspect(InspectVerb),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Print the manual page, of the program or of one verb
    Man(ManArgs),
    /// Guard of a demo: removes what is left of it when it is gone
    #[command(hide = true)]
    DemoGuard(GuardArgs),
}

impl Verb {
    /// Whether it asks nodes, as a client. The certificates of a node are its settings, which it reads itself.
    #[must_use]
    pub fn asks_nodes(&self) -> bool {
        let config = |verb: &ConfigVerb| matches!(verb, ConfigVerb::Get { .. } | ConfigVerb::Set { .. });
        match self {
            Self::Demo(_) | Self::Serve(_) | Self::Cert(_) | Self::Inspect(_) => false,
            Self::Completions(_) | Self::Man(_) | Self::DemoGuard(_) => false,
            Self::Config(verb) => config(verb),
            _ => true,
        }
    }

    /// Its name on the command line.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Demo(_) => "demo",
            Self::Serve(_) => "serve",
            Self::Init(_) => "init",
            Self::Get(_) => "get",
            Self::Put(_) => "put",
            Self::Insert(_) => "insert",
            Self::Delete(_) => "delete",
            Self::Cas(_) => "cas",
            Self::Scan(_) => "scan",
            Self::Status(_) => "status",
            Self::Leader(LeaderVerb::Transfer(_)) => "leader transfer",
            Self::Check(CheckVerb::Replicas) => "check replicas",
            Self::Node(verb) => verb.name(),
            Self::Partition(verb) => verb.name(),
            Self::User(verb) => verb.name(),
            Self::Config(ConfigVerb::Get { .. }) => "config get",
            Self::Config(ConfigVerb::Set { .. }) => "config set",
            Self::Config(_) => "config",
            Self::Cert(verb) => verb.name(),
            Self::Tuning(_) => "tuning",
            Self::Inspect(_) => "inspect",
            Self::Completions(_) => "completions",
            Self::Man(_) => "man",
            Self::DemoGuard(_) => "demo-guard",
        }
    }
}

/// `demo`
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// Nodes, each a process of its own [default: 3]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=9), value_name = "N")]
    pub nodes: Option<u32>,
    /// Partitions, each replicated over up to three nodes [default: 4]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "N")]
    pub partitions: Option<u32>,
    /// Connect nodes and clients inside TLS, with certificates of the demo's own
    #[arg(long)]
    pub tls: bool,
    /// Keep the data here, and resume the cluster that is already here
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Run these prompt commands, separated by `;`, then stop
    #[arg(long, value_name = "COMMANDS", conflicts_with = "no_prompt")]
    pub exec: Option<String>,
    /// Read no commands: run until SIGTERM or SIGINT
    #[arg(long)]
    pub no_prompt: bool,
}

/// `serve`
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Settings file [default: ./coppice.toml, else /etc/coppice/coppice.toml, if there is one]
    #[arg(long, value_name = "FILE", env = "COPPICE_CONFIG", hide_env_values = true)]
    pub config: Option<PathBuf>,
    /// End with the process of this number, which must be the parent
    #[arg(long, hide = true, value_name = "PID")]
    pub end_with: Option<i32>,
    /// Any node setting.
    #[command(flatten)]
    pub settings: NodeFlags,
}

/// `init`
#[derive(Debug, Clone, Args)]
pub struct InitArgs {
    /// Partitions to begin with [default: one more than split keys]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096), value_name = "N")]
    pub partitions: Option<u32>,
    /// Keys between them, one fewer than partitions, separated by commas [default: 8-byte keys cut evenly]
    #[arg(long, value_delimiter = ',', value_name = "KEY")]
    pub split_keys: Vec<OsString>,
    /// A cluster setting, such as replicas=3; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// Succeed if the cluster exists already
    #[arg(long)]
    pub if_needed: bool,
}

/// `get`
#[derive(Debug, Clone, Args)]
pub struct GetArgs {
    /// The key; `-` reads it from stdin, `@FILE` from a file
    pub key: OsString,
    /// Take what any replica has decided, perhaps not the newest
    #[arg(long)]
    pub stale: bool,
}

/// `put`, `insert`
#[derive(Debug, Clone, Args)]
pub struct PairArgs {
    /// The key; `-` reads it from stdin, `@FILE` from a file
    pub key: OsString,
    /// The value; `-` reads it from stdin, `@FILE` from a file
    pub value: OsString,
    /// Resuming.
    #[command(flatten)]
    pub resume: ResumeArgs,
}

/// `delete`
#[derive(Debug, Clone, Args)]
pub struct DeleteArgs {
    /// The key; `-` reads it from stdin, `@FILE` from a file
    pub key: OsString,
    /// Resuming.
    #[command(flatten)]
    pub resume: ResumeArgs,
}

/// `cas`
#[derive(Debug, Clone, Args)]
pub struct CasArgs {
    /// The key; `-` reads it from stdin, `@FILE` from a file
    pub key: OsString,
    /// The value that it must have
    pub old: OsString,
    /// The value that it gets
    pub new: OsString,
    /// Resuming.
    #[command(flatten)]
    pub resume: ResumeArgs,
}

/// Repeating a write whose outcome is unknown.
#[derive(Debug, Clone, Args)]
pub struct ResumeArgs {
    /// Repeat the same numbered command, as printed when its outcome was unknown: it executes at most once
    #[arg(long = "resume", value_name = "TOKEN")]
    pub token: Option<String>,
}

/// `scan`
#[derive(Debug, Clone, Args)]
pub struct ScanArgs {
    /// `a..b` (b excluded), `a..=b`, `a..`, `..b` or `..`
    #[arg(conflicts_with_all = ["prefix", "from", "to"])]
    pub range: Option<OsString>,
    /// Keys that begin with this
    #[arg(long, conflicts_with_all = ["from", "to"], value_name = "KEY")]
    pub prefix: Option<OsString>,
    /// The first key
    #[arg(long, value_name = "KEY")]
    pub from: Option<OsString>,
    /// The first key that is too far
    #[arg(long, value_name = "KEY")]
    pub to: Option<OsString>,
    /// Stop after this many pairs
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Stop when keys and values have reached this size
    #[arg(long, value_parser = units::parse_size, value_name = "SIZE")]
    pub bytes: Option<u64>,
    /// From the last key to the first
    #[arg(long)]
    pub reverse: bool,
    /// Print only how many there are
    #[arg(long)]
    pub count: bool,
    /// Print no values
    #[arg(long)]
    pub keys_only: bool,
    /// Go on where a limited scan stopped, as printed by it
    #[arg(long, value_name = "TOKEN")]
    pub after: Option<String>,
    /// Take what any replica has decided, perhaps not the newest, and each partition at a moment of its own
    #[arg(long)]
    pub stale: bool,
}

/// `status`
#[derive(Debug, Clone, Args)]
pub struct StatusArgs {
    /// Show it again every second
    #[arg(long)]
    pub watch: bool,
    /// Only whether the node on this machine is alive; asks its admin port, not the cluster
    #[arg(long, conflicts_with = "watch")]
    pub local: bool,
}

/// `check`
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum CheckVerb {
    /// Compare the digests of all replicas of each partition
    Replicas,
}

/// `config`
#[derive(Debug, Clone, Subcommand)]
pub enum ConfigVerb {
    /// Print the settings that a node started here would have
    Show(ConfigShowArgs),
    /// Check a settings file
    Check {
        /// The file
        file: PathBuf,
    },
    /// Print a settings file with every setting at its default
    Default,
    /// Print the settings of the running cluster, or one of them
    Get {
        /// Its name, such as window
        key: Option<String>,
    },
    /// Change a setting of the running cluster, on all nodes at once
    Set {
        /// Its name, such as window
        key: String,
        /// Its new value; a setting's default is shown by `config get`
        value: String,
    },
}

/// `config show`
#[derive(Debug, Clone, Args)]
pub struct ConfigShowArgs {
    /// Settings file [default: ./coppice.toml, else /etc/coppice/coppice.toml, if there is one]
    #[arg(long, value_name = "FILE", env = "COPPICE_CONFIG", hide_env_values = true)]
    pub config: Option<PathBuf>,
    /// Say where each value comes from
    #[arg(long)]
    pub origin: bool,
    /// Any node setting.
    #[command(flatten)]
    pub settings: NodeFlags,
}

/// `completions`
#[derive(Debug, Clone, Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// Shells with completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// GNU bash.
    Bash,
    /// zsh.
    Zsh,
    /// fish.
    Fish,
}

/// `man`
#[derive(Debug, Clone, Args)]
pub struct ManArgs {
    /// The verb; without it the program
    pub verb: Option<String>,
}

/// `demo-guard`
#[derive(Debug, Clone, Args)]
pub struct GuardArgs {
    /// A directory to remove at the end
    #[arg(long)]
    pub remove: Option<PathBuf>,
}

/// `--token-file`. What is in the file is in no message.
fn read_token(file: &str) -> Result<Token, String> {
    Token::from_file(Path::new(file)).map_err(|error| error.to_string())
}

/// `--timeout`: from a millisecond to a day.
fn parse_timeout(text: &str) -> Result<Duration, String> {
    let timeout = units::parse_time(text)?;
    let bounds = Duration::from_millis(1)..=Duration::from_secs(24 * 3600);
    if bounds.contains(&timeout) { Ok(timeout) } else { Err(format!("from 1ms to 24h, not {text}")) }
}
