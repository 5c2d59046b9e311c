//! The verbs: how each is typed, what its name is, and what carries it out. A group of verbs (`node ..`) is defined
//! beside the code that carries it out.

use std::io;

use clap::Subcommand;

use super::args::{
    CasArgs, Cli, CompletionsArgs, ConfigVerb, DeleteArgs, DemoArgs, GetArgs, GuardArgs, InitArgs, ManArgs, PairArgs,
    PutArgs, ScanArgs, ServeArgs, StatusArgs, TtlArgs,
};
use super::cert::CertVerb;
use super::errors::Context;
use super::failure::{Exit, Failure};
use super::input::Inputs;
use super::inspect::InspectVerb;
use super::operate::{CheckVerb, LeaderVerb};
use super::output::Output;
use super::rows::{ExportArgs, ImportArgs};
use super::shape_args::{NodeVerb, PartitionVerb, RebalanceArgs};
use super::transfer::{BackupArgs, BackupVerb, RestoreArgs};
use super::tuning::{TuningArgs, TuningVerb};
use super::user::UserVerb;
use super::{
    cert, cluster, config_verb, data, inspect, local, operate, predict, rows, settings, shape, shell, transfer, tuning,
    user,
};

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
    #[command(alias = "set")]
    Put(PutArgs),
    /// Set a key that does not exist; never overwrites
    Insert(PairArgs),
    /// Remove a key
    #[command(aliases = ["del", "rm"])]
    Delete(DeleteArgs),
    /// Set a key if its value is OLD
    Cas(CasArgs),
    /// Print how long a key stays that was put with --ttl
    Ttl(TtlArgs),
    /// Print the pairs of a range in key order
    #[command(aliases = ["range", "list"])]
    Scan(ScanArgs),
    /// Show whether the cluster is healthy and may lose a node
    Status(StatusArgs),
    /// Transfer leaderships
    #[command(subcommand)]
    Leader(LeaderVerb),
    /// Check the data of the cluster
    #[command(subcommand)]
    Check(CheckVerb),
    /// List, add, drain, remove and replace nodes
    #[command(subcommand)]
    Node(NodeVerb),
    /// List, split, merge and move partitions
    #[command(subcommand)]
    Partition(PartitionVerb),
    /// Spread leaders and replicas over the nodes by load and bytes
    Rebalance(RebalanceArgs),
    /// Copy all keys, as they are at one moment, into a directory
    ///
    /// It holds keys and values, not when keys expire.
    Backup(BackupArgs),
    /// Load a backup into a cluster, and prove that it is there
    ///
    /// Its keys do not expire, whether or not they would have where they come from.
    Restore(RestoreArgs),
    /// Load the rows of a file: CSV, JSON lines, a dump of Redis, a snapshot of etcd
    Import(ImportArgs),
    /// Write keys and values, as they are at one moment, to a file
    ///
    /// It does not say when keys expire.
    Export(ExportArgs),
    /// Manage users and what they may do
    #[command(subcommand)]
    User(UserVerb),
    /// Show, check and change settings
    #[command(subcommand)]
    Config(ConfigVerb),
    /// Make certificates: an authority, and what it signs for nodes and clients
    #[command(subcommand)]
    Cert(CertVerb),
    /// Show how batching and pipelining are tuned, or predict it
    Tuning(TuningArgs),
    /// Print the files of a stopped node
    #[command(subcommand)]
    Inspect(InspectVerb),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Print the manual page, of the program or of one verb
    Man(ManArgs),
    /// Guard of a demo: removes its files when the demo is gone
    #[command(hide = true)]
    DemoGuard(GuardArgs),
}

impl Verb {
    /// Whether it asks nodes, as a client. The certificates of a node are its settings, which it reads itself.
    #[must_use]
    pub fn asks_nodes(&self) -> bool {
        let config =
            |verb: &ConfigVerb| !matches!(verb, ConfigVerb::Show(_) | ConfigVerb::Check { .. } | ConfigVerb::Default);
        match self {
            Self::Demo(_) | Self::Serve(_) | Self::Cert(_) | Self::Inspect(_) => false,
            Self::Completions(_) | Self::Man(_) | Self::DemoGuard(_) => false,
            Self::Config(verb) => config(verb),
            Self::Backup(args) => args.verb.is_none(),
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
            Self::Ttl(_) => "ttl",
            Self::Scan(_) => "scan",
            Self::Status(_) => "status",
            Self::Leader(LeaderVerb::Transfer(_)) => "leader transfer",
            Self::Check(CheckVerb::Replicas) => "check replicas",
            Self::Node(verb) => verb.name(),
            Self::Partition(verb) => verb.name(),
            Self::Rebalance(_) => "rebalance",
            Self::Backup(BackupArgs { verb: Some(BackupVerb::Verify { .. }), .. }) => "backup verify",
            Self::Backup(_) => "backup",
            Self::Restore(_) => "restore",
            Self::Import(_) => "import",
            Self::Export(_) => "export",
            Self::User(verb) => verb.name(),
            Self::Config(ConfigVerb::Get { .. }) => "config get",
            Self::Config(ConfigVerb::Describe { .. }) => "config describe",
            Self::Config(ConfigVerb::Set { .. }) => "config set",
            Self::Config(ConfigVerb::Unset { .. }) => "config unset",
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

/// Carries out a verb that asks a cluster, or nobody.
///
/// # Errors
/// That of stdout or stderr; a failure is returned with its four lines.
pub(crate) async fn run(cli: &Cli, context: Context, output: &mut Output<'_>) -> io::Result<Result<Exit, Failure>> {
    match &cli.verb {
        Verb::Config(ConfigVerb::Get { key }) => settings::get(cli, &context, key.as_deref(), output).await,
        Verb::Config(ConfigVerb::Describe { key }) => settings::describe(cli, &context, key.as_deref(), output).await,
        Verb::Config(ConfigVerb::Set { key, value, confirm }) => {
            settings::change(cli, &context, (key, Some(value)), *confirm, output).await
        }
        Verb::Config(ConfigVerb::Unset { key, confirm }) => {
            settings::change(cli, &context, (key, None), *confirm, output).await
        }
        Verb::Config(verb) => config_verb::run(verb, output),
        Verb::Cert(verb) => cert::run(verb, output),
        Verb::Tuning(args) => match &args.verb {
            Some(TuningVerb::Predict(args)) => predict::run(args, output),
            None => tuning::run(cli, &context, args.partition, output).await,
        },
        Verb::Leader(LeaderVerb::Transfer(args)) => operate::transfer(cli, &context, args, output).await,
        Verb::User(verb) => user::run(cli, &context, verb, output).await,
        Verb::Check(CheckVerb::Replicas) => operate::check_replicas(cli, &context, output).await,
        Verb::Inspect(verb) => inspect::run(verb, output),
        Verb::Completions(args) => shell::completions(args, output.data).map(|()| Ok(Exit::Done)),
        Verb::Man(args) => shell::man(args, output.data),
        Verb::Status(args) if args.local => local::run(&cli.global, output),
        Verb::Status(args) => cluster::status(cli, &context, args, output).await,
        Verb::Init(args) => cluster::init(cli, &context, args, output).await,
        Verb::Node(verb) => shape::node(cli, &context, verb, output).await,
        Verb::Partition(verb) => shape::partition(cli, &context, verb, output).await,
        Verb::Rebalance(args) => shape::rebalance(cli, &context, &args.plan(), output).await,
        Verb::Backup(args) => match &args.verb {
            Some(BackupVerb::Verify { directory }) => transfer::verify(&context, directory, output),
            None => transfer::back_up(cli, &context, args, output).await,
        },
        Verb::Restore(_) | Verb::Import(_) | Verb::Export(_) => {
            let mut stdin = io::stdin();
            let mut inputs = Inputs::new(context.verb, cli.global.coding(), &mut stdin);
            match &cli.verb {
                Verb::Restore(args) => transfer::restore(cli, &context, args, &mut inputs, output).await,
                Verb::Import(args) => rows::import(cli, &context, args, &mut inputs, output).await,
                Verb::Export(args) => rows::export(cli, &context, args, &mut inputs, output).await,
                other => unreachable!("no transfer: {other:?}"),
            }
        }
        Verb::Get(_)
        | Verb::Put(_)
        | Verb::Insert(_)
        | Verb::Delete(_)
        | Verb::Cas(_)
        | Verb::Ttl(_)
        | Verb::Scan(_) => data::run(cli, context, output).await,
        Verb::Demo(_) | Verb::Serve(_) | Verb::DemoGuard(_) => {
            let cause = "it runs as a program of its own until it is stopped";
            Ok(Err(Failure::usage("this verb does not run at the prompt", cause, "coppice --help")))
        }
    }
}
