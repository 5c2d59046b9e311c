//! `cert`: an authority and what it signs, as files in one directory.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::json;

use super::args::Format;
use super::failure::{Exit, Failure};
use super::output::Output;
use super::words;
use crate::certs::{Authority, CertError, Pair, Subject};

/// `cert`
#[derive(Debug, Clone, Subcommand)]
pub enum CertVerb {
    /// Make an authority, and at once the certificates of nodes and clients
    Ca(CaArgs),
    /// Make the certificate of a node
    Node(NodeArgs),
    /// Make the certificate of a client or an operator
    Client(ClientArgs),
}

impl CertVerb {
    /// Its name on the command line.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ca(_) => "cert ca",
            Self::Node(_) => "cert node",
            Self::Client(_) => "cert client",
        }
    }
}

/// Where files go, and how long they are good for.
#[derive(Debug, Clone, Args)]
pub struct Files {
    /// The authority's directory; certificates are written beside it
    #[arg(long, value_name = "DIR", default_value = "certs")]
    pub dir: PathBuf,
}

/// `cert ca`
#[derive(Debug, Clone, Args)]
pub struct CaArgs {
    /// Where the files are.
    #[command(flatten)]
    pub files: Files,
    /// Days for which the authority is valid
    #[arg(long, default_value = "3650", value_parser = clap::value_parser!(u32).range(1..=36_500), value_name = "N")]
    pub days: u32,
    /// Make the certificates of nodes 1 to N too, for clients on the same machine
    #[arg(long, default_value = "0", value_parser = clap::value_parser!(u32).range(0..=64), value_name = "N")]
    pub nodes: u32,
    /// Make this client's certificate too; may be repeated
    #[arg(long = "client", value_name = "NAME")]
    pub clients: Vec<String>,
}

/// `cert node`
#[derive(Debug, Clone, Args)]
pub struct NodeArgs {
    /// Its number: that of its place among the seeds, or the next one for a node that is added later
    #[arg(value_parser = clap::value_parser!(u32).range(1..), value_name = "NUMBER")]
    pub number: u32,
    /// A host name or address by which clients dial it; may be repeated
    #[arg(long = "host", value_name = "HOST")]
    pub hosts: Vec<String>,
    /// Options of every certificate.
    #[command(flatten)]
    pub leaf: LeafArgs,
}

/// `cert client`
#[derive(Debug, Clone, Args)]
pub struct ClientArgs {
    /// Its name, as `coppice user` knows it
    pub name: String,
    /// Options of every certificate.
    #[command(flatten)]
    pub leaf: LeafArgs,
}

/// What certificates of nodes and clients have in common.
#[derive(Debug, Clone, Args)]
pub struct LeafArgs {
    /// Where the files are.
    #[command(flatten)]
    pub files: Files,
    /// Days for which it is valid
    #[arg(long, default_value = "365", value_parser = clap::value_parser!(u32).range(1..=36_500), value_name = "N")]
    pub days: u32,
    /// Replace the one that is there; nodes take up the new one by themselves
    #[arg(long)]
    pub renew: bool,
}

/// Days for which `cert ca` makes certificates of nodes and clients.
const DAYS: u32 = 365;

/// Carries out one of the verbs.
///
/// # Errors
/// That of stdout; a failure is returned with its four lines.
pub fn run(verb: &CertVerb, output: &mut Output<'_>) -> io::Result<Result<Exit, Failure>> {
    let made = match verb {
        CertVerb::Ca(args) => ca(args),
        CertVerb::Node(args) => one(&Subject::node(args.number, &args.hosts), &args.leaf),
        CertVerb::Client(args) => one(&Subject::Client { name: args.name.clone() }, &args.leaf),
    };
    let made = match made {
        Ok(made) => made,
        Err(error) => return Ok(Err(failure(verb, &error))),
    };
    match output.style.admin() {
        Format::Json | Format::Jsonl => {
            let text = |path: &Path| path.display().to_string();
            let pairs = made.iter().map(
                |Made { pair, names }| json!({ "cert": text(&pair.cert), "key": text(&pair.key), "names": names }),
            );
            let pairs: Vec<_> = pairs.collect();
            writeln!(output.data, "{}", json!({ "v": 1, "made": pairs }))?;
        }
        Format::Table | Format::Raw => {
            for Made { pair, names } in &made {
                let of = if names.is_empty() { "the authority".to_owned() } else { names.join(", ") };
                writeln!(output.data, "{}  {}  {of}", pair.cert.display(), pair.key.display())?;
            }
        }
    }
    Ok(Ok(Exit::Done))
}

/// Files that were written, and the names in the certificate.
struct Made {
    pair: Pair,
    names: Vec<String>,
}

fn ca(args: &CaArgs) -> Result<Vec<Made>, CertError> {
    let nodes = (1..=args.nodes).map(|number| Subject::node(number, &[]));
    let subjects: Vec<Subject> =
        nodes.chain(args.clients.iter().map(|name| Subject::Client { name: name.clone() })).collect();
    // A name that cannot be is found before anything is written.
    subjects.iter().try_for_each(|subject| subject.names().map(drop))?;
    let directory = &args.files.dir;
    let authority = Authority::create(directory, args.days)?;
    let cert = authority.certificate();
    let mut made = vec![Made { pair: Pair { key: cert.with_extension("key"), cert }, names: Vec::new() }];
    for subject in subjects {
        made.push(Made { pair: authority.sign(&subject, DAYS.min(args.days), false)?, names: subject.names()? });
    }
    Ok(made)
}

fn one(subject: &Subject, args: &LeafArgs) -> Result<Vec<Made>, CertError> {
    let pair = Authority::open(&args.files.dir)?.sign(subject, args.days, args.renew)?;
    Ok(vec![Made { pair, names: subject.names()? }])
}

fn failure(verb: &CertVerb, error: &CertError) -> Failure {
    let directory = match verb {
        CertVerb::Ca(args) => &args.files.dir,
        CertVerb::Node(NodeArgs { leaf, .. }) | CertVerb::Client(ClientArgs { leaf, .. }) => &leaf.files.dir,
    };
    let say = |words: &[&str]| words::join(["coppice", "cert"].into_iter().chain(words.iter().copied()));
    let dir = directory.display().to_string();
    let (code, cause, next) = match error {
        CertError::Exists { .. } => {
            let cause = "whoever uses it would be refused with another one in its place; a node's or client's is \
                         replaced with `--renew`";
            ("exists", cause, say(&["--help"]))
        }
        CertError::NoAuthority { .. } => {
            ("no_authority", "certificates are signed with its key", say(&["ca", "--dir", &dir]))
        }
        CertError::Name(_) | CertError::Other(_) => ("usage", "a name is written wrongly", say(&["--help"])),
        CertError::Io { .. } => {
            ("system", "the disk is full, or this user may not read and write there", say(&["--help"]))
        }
    };
    let what = format!("{}: {error}", verb.name());
    Failure { exit: exit_of(error), code, what, place: place(directory), cause: cause.to_owned(), next }
}

fn exit_of(error: &CertError) -> Exit {
    match error {
        CertError::Io { .. } => Exit::Failed,
        _ => Exit::Usage,
    }
}

fn place(directory: &Path) -> String {
    format!("the directory {}", directory.display())
}
