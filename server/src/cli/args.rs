//! Flags and arguments of the command line: one definition for parsing, help, completions and manual pages.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use coppice_client::Token;
use coppice_client::tls::{Files, Tls};
use coppice_core::settings::units;

use super::failure::Failure;
use super::node_flags::NodeFlags;
use super::verbs::Verb;
use crate::config::Address;
use crate::text::Coding;

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
    /// File with the token of the user that asks, where the cluster has users
    #[arg(id = "token_file", long = "token-file", global = true, env = "COPPICE_TOKEN_FILE", value_parser = read_token)]
    #[arg(value_name = "FILE", hide_env_values = true)]
    pub token: Option<Token>,
    /// How to print: a table on a terminal, else raw for data and json for all else
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,
    /// How long to try before giving up
    #[arg(long, global = true, value_parser = parse_timeout, default_value = "5s", value_name = "TIME")]
    pub timeout: Duration,
    /// Authorities that sign the nodes' certificates, in PEM; switches TLS on
    #[arg(long, global = true, env = "COPPICE_TLS_CA", hide_env_values = true, value_name = "FILE")]
    pub tls_ca: Option<String>,
    /// Certificate of this client, in PEM
    #[arg(long, global = true, env = "COPPICE_TLS_CERT", hide_env_values = true, value_name = "FILE")]
    pub tls_cert: Option<String>,
    /// Private key of that certificate, in PEM
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

/// `demo`
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// Nodes, each a process of its own [default: 3]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=9), value_name = "N")]
    pub nodes: Option<u32>,
    /// Partitions, each replicated over up to three nodes [default: 4]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "N")]
    pub partitions: Option<u32>,
    /// Use TLS, with certificates that the demo makes
    #[arg(long)]
    pub tls: bool,
    /// Keep the data in this directory, and resume the cluster that is in it
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
    /// Read what any replica has decided, perhaps not the newest
    #[arg(long)]
    pub stale: bool,
}

/// `put`
#[derive(Debug, Clone, Args)]
pub struct PutArgs {
    /// Key and value.
    #[command(flatten)]
    pub pair: PairArgs,
    /// Remove the key by itself after this time, 1 ms or more
    #[arg(long, value_parser = parse_ttl, value_name = "TIME")]
    pub ttl: Option<Duration>,
}

/// `ttl`
#[derive(Debug, Clone, Args)]
pub struct TtlArgs {
    /// The key; `-` reads it from stdin, `@FILE` from a file
    pub key: OsString,
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
    /// Repeat a command whose outcome is unknown, with the token that it printed: it executes at most once
    #[arg(long = "resume", value_name = "TOKEN")]
    pub token: Option<String>,
}

/// A range of keys.
#[derive(Debug, Clone, Args)]
pub struct RangeArgs {
    /// `a..b` (b excluded), `a..=b`, `a..`, `..b` or `..`
    #[arg(conflicts_with_all = ["prefix", "from", "to"])]
    pub range: Option<OsString>,
    /// Keys that begin with this
    #[arg(long, conflicts_with_all = ["from", "to"], value_name = "KEY")]
    pub prefix: Option<OsString>,
    /// The first key
    #[arg(long, value_name = "KEY")]
    pub from: Option<OsString>,
    /// The first key beyond the range
    #[arg(long, value_name = "KEY")]
    pub to: Option<OsString>,
}

/// `scan`
#[derive(Debug, Clone, Args)]
pub struct ScanArgs {
    /// Which keys.
    #[command(flatten)]
    pub keys: RangeArgs,
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
    /// Continue where a limited scan stopped, with the token that it printed
    #[arg(long, value_name = "TOKEN")]
    pub after: Option<String>,
    /// Read what any replica has decided, perhaps not the newest, and each partition at a moment of its own
    #[arg(long)]
    pub stale: bool,
}

/// `status`
#[derive(Debug, Clone, Args)]
pub struct StatusArgs {
    /// Show it again every second
    #[arg(long)]
    pub watch: bool,
    /// Ask only the admin port of the node on this machine whether it is alive
    #[arg(long, conflicts_with = "watch")]
    pub local: bool,
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
    /// Explain every setting of cluster and nodes, or one: meaning, range, default, value and where it comes from
    Describe {
        /// Its name, such as window or log.flush
        key: Option<String>,
    },
    /// Change a setting of the running cluster, on all nodes at once
    Set {
        /// Its name, such as window
        key: String,
        /// Its new value; `config describe` says which there are
        value: String,
        /// How the change is agreed to.
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
    /// Return a setting of the running cluster to its default
    Unset {
        /// Its name, such as window
        key: String,
        /// How the change is agreed to.
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
}

/// How a change of a setting is agreed to.
#[derive(Debug, Clone, Copy, Args)]
pub struct ConfirmArgs {
    /// Change `replicas` or raise `feature_level` without asking; other settings ask nothing
    #[arg(short, long)]
    pub yes: bool,
    /// Only show the plan
    #[arg(long)]
    pub dry_run: bool,
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
    /// The verb, such as `node add`; without it the program
    #[arg(conflicts_with = "dir")]
    pub verb: Vec<String>,
    /// Write the pages of the program and of every verb into this directory, as packages install them
    #[arg(long)]
    pub dir: Option<PathBuf>,
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

/// `--ttl`: a part of a millisecond is none.
fn parse_ttl(text: &str) -> Result<Duration, String> {
    let ttl = units::parse_time(text)?;
    if ttl >= Duration::from_millis(1) { Ok(ttl) } else { Err(format!("at least 1ms, not {text}")) }
}

/// `--timeout`: from a millisecond to a day.
fn parse_timeout(text: &str) -> Result<Duration, String> {
    let timeout = units::parse_time(text)?;
    let bounds = Duration::from_millis(1)..=Duration::from_secs(24 * 3600);
    if bounds.contains(&timeout) { Ok(timeout) } else { Err(format!("from 1ms to 24h, not {text}")) }
}
