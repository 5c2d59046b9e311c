//! `backup`, `backup verify`, `restore`: a cluster into a directory or an object store, and back.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use coppice_client::error::Reason;
use coppice_core::settings::units::about_size;
use coppice_transfer::backup::{self, Done};
use coppice_transfer::directory::Backup;
use coppice_transfer::error::{Error, Refusal, StoreReason};
use coppice_transfer::manifest::Header;
use coppice_transfer::{restore, storage};
use serde_json::json;

use super::args::{Cli, Format};
use super::connect::connect;
use super::errors::{self, Context};
use super::failure::{Exit, Failure};
use super::input::Inputs;
use super::output::Output;
use super::progress::Progress;
use super::words;

type Outcome = io::Result<Result<Exit, Failure>>;

/// `backup`
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct BackupArgs {
    /// What becomes the backup: a directory or s3://BUCKET/PREFIX; it must be empty, or not be there
    #[arg(required = true, value_parser = directory, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Go on with a backup that was interrupted: what has not changed is not read and written again
    #[arg(long)]
    pub resume: bool,
    /// An earlier backup: what has not changed since is not read and written again, and found there
    #[arg(long, value_parser = directory, value_name = "EARLIER")]
    pub since: Option<PathBuf>,
    /// Percent of the time in which it reads; less leaves more to others, and takes longer
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100), default_value_t = 25, value_name = "PERCENT")]
    pub pace: u32,
    /// What else is done with backups
    #[command(subcommand)]
    pub verb: Option<BackupVerb>,
}

/// `backup ..`
#[derive(Debug, Clone, Subcommand)]
pub enum BackupVerb {
    /// Read a backup whole, and check every checksum and its digest; needs no cluster
    Verify {
        /// Its directory, or s3://BUCKET/PREFIX
        #[arg(value_parser = directory, value_name = "DIR")]
        directory: PathBuf,
    },
}

/// `restore`
#[derive(Debug, Clone, Args)]
pub struct RestoreArgs {
    /// The directory of the backup, or s3://BUCKET/PREFIX
    #[arg(value_parser = directory, value_name = "DIR")]
    pub directory: PathBuf,
    /// Put this before every key; only keys with this prefix must be new then
    #[arg(long, value_name = "KEY")]
    pub prefix: Option<std::ffi::OsString>,
    /// Go on with a restore that was interrupted: keys that are there must have the backup's values
    #[arg(long)]
    pub resume: bool,
}

/// A directory as a path or as a URL of a file, or a prefix of an object store.
pub(super) fn directory(text: &str) -> Result<PathBuf, String> {
    match text.split_once("://") {
        None | Some(("file", "")) if text.is_empty() => Err("a directory has a name".to_owned()),
        Some(("file", path)) if path.starts_with('/') => Ok(PathBuf::from(path)),
        Some(("file", _)) => Err(format!("a URL of a directory is file:///DIR, not {text}")),
        Some(("s3", _)) => storage::object_store_address(text),
        Some((scheme, _)) => {
            Err(format!("{scheme}:// is not supported: a backup is a directory or s3://BUCKET/PREFIX"))
        }
        None => Ok(PathBuf::from(text)),
    }
}

/// `backup`.
///
/// # Errors
/// That of stdout; a failure is returned with its four lines.
pub async fn back_up(cli: &Cli, context: &Context, args: &BackupArgs, output: &mut Output<'_>) -> Outcome {
    let Some(directory) = args.directory.clone() else { return Ok(Err(which(context))) };
    let plan = backup::Plan {
        directory: directory.clone(),
        resume: args.resume,
        since: args.since.clone(),
        pace: args.pace,
        program: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let client = connect(cli);
    let mut progress = Progress::new("backup", output.style.quiet);
    let done = backup::backup(&client, &plan, |told| match told {
        backup::Progress::Held(chunks, bytes) => {
            progress.say(&format!("{} is there already, chunks: {chunks}", about_size(bytes)));
        }
        backup::Progress::Read(pairs, _) => progress.tell((pairs, None), pairs, "keys"),
        backup::Progress::Again(why) => {
            progress.say(&format!("interrupted: {why}; all is read again, as of another moment"));
            progress.restart();
        }
    });
    let done = done.await;
    let took = progress.end();
    let resumed = || {
        let mut line = vec!["coppice".to_owned(), "backup".to_owned(), directory.display().to_string()];
        line.push("--resume".to_owned());
        line.extend(args.since.iter().flat_map(|since| ["--since".to_owned(), since.display().to_string()]));
        words::join(line)
    };
    let Done { manifest, written, unchanged, read } = match done {
        Ok(done) => done,
        Err(error) => {
            // Without the directory there is nothing to go on with.
            let resume = (storage::in_object_store(&directory) || directory.is_dir()).then(resumed);
            return Ok(Err(failure(&error, context, resume)));
        }
    };
    let header = &manifest.header;
    match output.style.admin() {
        Format::Json | Format::Jsonl => {
            let mut fields = object(header, &directory, manifest.chunks.len());
            fields["written_bytes"] = written.into();
            fields["unchanged_bytes"] = unchanged.into();
            fields["read_bytes"] = read.into();
            writeln!(output.data, "{fields}")?;
        }
        Format::Table | Format::Raw => {
            writeln!(
                output.data,
                "backed up: {}, {} written, {} unchanged, digest {}",
                content(header),
                about_size(written),
                about_size(unchanged),
                header.digest,
            )?;
        }
    }
    output.note(&format!("{}; {} read in {:.1} s", moment(header), about_size(read), took.as_secs_f64()))?;
    Ok(Ok(Exit::Done))
}

/// `backup verify`.
///
/// # Errors
/// That of stdout; a failure is returned with its four lines.
pub fn verify(context: &Context, directory: &Path, output: &mut Output<'_>) -> Outcome {
    let mut progress = Progress::new("backup verify", output.style.quiet);
    let verified = Backup::open(directory).and_then(|mut backup| {
        let all = backup.manifest.header.pairs;
        backup.verify(|pairs, _| progress.tell((pairs, Some(all)), pairs, "keys"))?;
        Ok(backup)
    });
    progress.end();
    let backup = match verified {
        Ok(backup) => backup,
        Err(error) => return Ok(Err(failure(&error, context, None))),
    };
    let header = &backup.manifest.header;
    match output.style.admin() {
        Format::Json | Format::Jsonl => {
            writeln!(output.data, "{}", object(header, directory, backup.manifest.chunks.len()))?
        }
        Format::Table | Format::Raw => {
            writeln!(output.data, "whole: {}, digest {}", content(header), header.digest)?;
            for base in &header.bases {
                output.note(&format!(
                    "it builds on {}, which must stay",
                    storage::beside(directory, &base.path).display()
                ))?;
            }
        }
    }
    output.note(&moment(header))?;
    Ok(Ok(Exit::Done))
}

/// `restore`.
///
/// # Errors
/// That of stdout; a failure is returned with its four lines.
pub async fn restore(
    cli: &Cli,
    context: &Context,
    args: &RestoreArgs,
    inputs: &mut Inputs<'_>,
    output: &mut Output<'_>,
) -> Outcome {
    let prefix = match &args.prefix {
        Some(prefix) => match inputs.bytes("--prefix", prefix) {
            Ok(prefix) => prefix,
            Err(failure) => return Ok(Err(failure)),
        },
        None => Vec::new(),
    };
    let directory = args.directory.clone();
    let plan = restore::Plan { directory: directory.clone(), prefix, resume: args.resume };
    let client = connect(cli);
    let mut progress = Progress::new("restore", output.style.quiet);
    let (mut begun, mut checking) = (false, false);
    let restored = restore::restore(&client, &plan, |told| match told {
        restore::Progress::Loaded(pairs, all) => {
            begun = true;
            progress.tell((pairs, Some(all)), pairs, "keys loaded");
        }
        restore::Progress::Checked(pairs, all) => {
            if !std::mem::replace(&mut checking, true) {
                progress.restart();
            }
            progress.tell((pairs, Some(all)), pairs, "keys read back");
        }
    });
    let restored = restored.await;
    progress.end();
    let again = |words: &[&str]| {
        let path = directory.display().to_string();
        let mut line = vec!["coppice", "restore", &path];
        let prefix = args.prefix.as_ref().map(|prefix| prefix.to_string_lossy().into_owned());
        line.extend(prefix.iter().flat_map(|prefix| ["--prefix", prefix]));
        line.extend(words);
        words::join(line)
    };
    let header = match restored {
        Ok(header) => header,
        Err(error) => return Ok(Err(failure(&error, context, (begun || args.resume).then(|| again(&["--resume"]))))),
    };
    match output.style.admin() {
        Format::Json | Format::Jsonl => writeln!(output.data, "{}", object(&header, &directory, 0))?,
        Format::Table | Format::Raw => {
            let digest = &header.digest;
            writeln!(output.data, "restored: {}; read back, the digest agrees: {digest}", content(&header))?;
        }
    }
    output.note(&format!("the backup is {}; what it holds does not expire", moment(&header)))?;
    Ok(Ok(Exit::Done))
}

fn which(context: &Context) -> Failure {
    let next = format!("coppice {} --help", context.verb);
    Failure::usage(format!("{}: which directory?", context.verb), "it takes one", next)
}

/// `12 keys, 4 KiB`.
fn content(header: &Header) -> String {
    let keys = if header.pairs == 1 { "1 key".to_owned() } else { format!("{} keys", header.pairs) };
    format!("{keys}, {}", about_size(header.bytes))
}

/// `one moment: ..`, as a scan says it.
fn moment(header: &Header) -> String {
    match &header.ticket {
        Some(ticket) => format!("one moment: ticket {ticket}, {}", header.positions.join(" ")),
        None if header.positions.is_empty() => "one moment of an empty cluster".to_owned(),
        None => format!("one moment: {}", header.positions.join(" ")),
    }
}

fn object(header: &Header, directory: &Path, chunks: usize) -> serde_json::Value {
    let mut fields = json!({
        "v": 1,
        "directory": directory.display().to_string(),
        "id": header.id,
        "cluster": header.cluster,
        "finished": header.finished,
        "keys": header.pairs,
        "bytes": header.bytes,
        "digest": header.digest,
        "ticket": header.ticket,
        "positions": header.positions,
        "builds_on": header.bases.iter().map(|base| &base.path).collect::<Vec<_>>(),
    });
    if chunks > 0 {
        fields["chunks"] = chunks.into();
    }
    fields
}

/// What a transfer ended with, in four lines. `resume`: the command that goes on with it.
pub(super) fn failure(error: &Error, context: &Context, resume: Option<String>) -> Failure {
    let help = || format!("coppice {} --help", context.verb);
    let (exit, code, place, cause, next) = match error {
        Error::Client(error) => return of_client(error, context, resume),
        Error::Io { path, error } => {
            let cause = match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    "its disk or quota is full: make room there"
                }
                io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => "a file is where a directory must be",
                _ => "the path is wrong, may not be used by this user, or its disk fails",
            };
            (Exit::Failed, "file", path.display().to_string(), cause, resume.unwrap_or_else(help))
        }
        Error::Damaged { path, .. } => {
            let cause = "the file was changed since it was written, or its disk has lost some of it";
            (Exit::Failed, "damaged", path.display().to_string(), cause, help())
        }
        Error::Store { path, reason, .. } => of_store(*reason, path, resume.unwrap_or_else(help)),
        Error::Refused(refusal) => of_refusal(refusal, context, resume),
    };
    Failure { exit, code, what: format!("{}: {error}", context.verb), place, cause: cause.to_owned(), next }
}

/// The cluster did not answer: what was done stays.
fn of_client(error: &coppice_client::Error, context: &Context, resume: Option<String>) -> Failure {
    let failure = errors::failure(error, context);
    match (error.reason(), resume) {
        (Some(Reason::Interrupted { .. }), resume) => Failure {
            what: format!("{}: interrupted again and again before all was read: {error}", context.verb),
            cause:
                "nodes stop, partitions move, or a reading takes longer than limits.scan_snapshot_max_age, or keeps \
                    more than limits.scan_snapshot_bytes alive"
                    .to_owned(),
            next: resume.unwrap_or_else(|| failure.next.clone()),
            ..failure
        },
        (Some(reason), Some(resume)) if coppice_transfer::is_passing(reason) || matches!(reason, Reason::Full(_)) => {
            Failure { cause: format!("{}; once it is over, --resume goes on", failure.cause), next: resume, ..failure }
        }
        (_, Some(resume)) if failure.exit == Exit::Unknown => Failure {
            what: format!("{}: outcome unknown of some of it; --resume finds out", context.verb),
            next: resume,
            ..failure
        },
        _ => failure,
    }
}

type Parts = (Exit, &'static str, String, &'static str, String);

fn of_store(reason: StoreReason, path: &Path, again: String) -> Parts {
    let (exit, code, cause) = match reason {
        StoreReason::NotBuilt => (Exit::Usage, "usage", "cargo's feature s3 of coppice-server brings object stores"),
        StoreReason::Address => (Exit::Usage, "usage", "this is no address: see coppice backup --help"),
        StoreReason::NoCredentials => {
            let cause = "export them, with AWS_SESSION_TOKEN if they are temporary; `aws configure export-credentials \
                         --format env` prints them";
            (Exit::Usage, "usage", cause)
        }
        StoreReason::BadCredentials => {
            let cause = "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_SESSION_TOKEN is wrong or has expired, or they \
                         are of another store than AWS_ENDPOINT_URL";
            (Exit::Failed, "denied", cause)
        }
        StoreReason::Denied => {
            let cause =
                "the credentials must be allowed to list the bucket, and to get and put objects below the prefix";
            (Exit::Failed, "denied", cause)
        }
        StoreReason::Clock => (Exit::Failed, "failed", "this machine's clock is wrong: set it, or start NTP"),
        StoreReason::NoBucket => {
            (Exit::NotFound, "not_found", "make the bucket first, or mend its name or AWS_ENDPOINT_URL")
        }
        StoreReason::Region => (Exit::Failed, "failed", "AWS_REGION must be the region of the bucket"),
        StoreReason::Unreachable => {
            let cause = "AWS_ENDPOINT_URL is wrong, the store is down, or a firewall lets nothing through";
            (Exit::Unavailable, "unavailable", cause)
        }
        StoreReason::Untrusted => {
            let cause = "no authority of this system signed the store's certificate: install ca-certificates, or name a \
                         file of authorities in SSL_CERT_FILE";
            (Exit::Unavailable, "unavailable", cause)
        }
        StoreReason::Busy => (Exit::Unavailable, "unavailable", "the store is overloaded or down: try again later"),
        StoreReason::Other => (Exit::Failed, "failed", "the store refuses this request: what it says is above"),
    };
    (exit, code, path.display().to_string(), cause, again)
}

fn of_refusal(refusal: &Refusal, context: &Context, resume: Option<String>) -> Parts {
    let help = || format!("coppice {} --help", context.verb);
    let cluster = || context.endpoints.join(", ");
    let on_disk = |path: &Path, cause, next| (Exit::Condition, "exists", path.display().to_string(), cause, next);
    match refusal {
        Refusal::Finished(path) => {
            let verify = words::join(["coppice", "backup", "verify", &path.display().to_string()]);
            on_disk(path, "a backup is never written over: name another directory, or --since this one", verify)
        }
        Refusal::Unfinished(path) => {
            let cause = "--resume goes on with it and keeps what has not changed; or name another directory";
            on_disk(path, cause, resume.unwrap_or_else(help))
        }
        Refusal::Foreign { directory, .. } => on_disk(directory, "a backup has a directory of its own", help()),
        Refusal::InUse(path) => on_disk(path, "a backup into it is under way", help()),
        Refusal::NoBackup(path) => {
            let cause = "the path is wrong, or the backup was interrupted: `coppice backup DIR --resume` ends it";
            (Exit::NotFound, "not_found", path.display().to_string(), cause, help())
        }
        Refusal::NotEmpty(_) => {
            let cause = "a restore never writes over keys: --prefix puts it beside them, --resume goes on with one that was interrupted";
            (Exit::Condition, "not_empty", cluster(), cause, help())
        }
        Refusal::Differs(_) => {
            let cause = "somebody wrote it since, or it was there before the restore: restore into a cluster of its own, or with --prefix";
            (Exit::Condition, "differs", cluster(), cause, help())
        }
        Refusal::OtherContent { .. } => {
            let cause = "somebody writes to these keys meanwhile, or they were there before the restore";
            (Exit::Failed, "differs", cluster(), cause, resume.unwrap_or_else(help))
        }
        Refusal::Format { path, .. } => {
            let cause = "it was written by another version of this program";
            (Exit::Failed, "format", path.display().to_string(), cause, "coppice --version".to_owned())
        }
        Refusal::OtherBase { base, .. } => {
            let cause =
                "an incremental backup needs the earlier ones where they were: side by side, or at the same path";
            (Exit::NotFound, "not_found", base.display().to_string(), cause, help())
        }
        Refusal::LongKey(_) => {
            (Exit::Usage, "too_large", "--prefix".to_owned(), "a key has at most 4 KiB, its prefix included", help())
        }
        Refusal::OtherImport(path) => {
            let cause =
                "only the import that was interrupted goes on behind its rows; without --resume all rows are imported";
            (Exit::Condition, "differs", path.display().to_string(), cause, help())
        }
        Refusal::NoPosition(path) => {
            let cause = "no import of this file was interrupted, or its position was removed";
            (Exit::NotFound, "not_found", path.display().to_string(), cause, help())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;
    use coppice_client::Error::Failed;
    use coppice_client::error::{Failure as ClientFailure, Place};

    use super::*;
    use crate::cli::verbs::Verb;

    #[test]
    fn a_directory_is_a_path_or_a_url_of_a_file() {
        assert_eq!(directory("a/b"), Ok(PathBuf::from("a/b")));
        assert_eq!(directory("file:///a/b"), Ok(PathBuf::from("/a/b")));
        assert_eq!(directory("s3://b/x/"), Ok(PathBuf::from("s3://b/x")));
        for wrong in ["", "file://a/b", "s3://bucket", "https://host/x"] {
            assert!(directory(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn verify_is_a_verb_of_backup_and_a_directory_has_any_other_name() {
        let verb = |words: &[&str]| Cli::try_parse_from([&["coppice"], words].concat()).map(|cli| cli.verb);
        assert!(matches!(verb(&["backup", "verify", "d"]), Ok(Verb::Backup(args)) if args.verb.is_some()));
        assert!(matches!(verb(&["backup", "./verify", "--resume"]), Ok(Verb::Backup(args)) if args.resume));
        assert!(verb(&["backup"]).is_err() && verb(&["backup", "d", "verify", "e"]).is_err());
    }

    /// Every error has four lines, exits as the manual says, and names a command that the program understands.
    #[test]
    fn every_failure_names_the_next_command() {
        let context = Context { verb: "restore", ..Context::of_demo("127.0.0.1:7400", Duration::from_secs(5)) };
        let path = || PathBuf::from("a b");
        let (found, wanted) = ("1".to_owned(), "2".to_owned());
        let refusals = [
            (Refusal::Finished(path()), 5),
            (Refusal::Unfinished(path()), 5),
            (Refusal::Foreign { directory: path(), file: "x".into() }, 5),
            (Refusal::NoBackup(path()), 4),
            (Refusal::InUse(path()), 5),
            (Refusal::NotEmpty("a".into()), 5),
            (Refusal::Differs("a".into()), 5),
            (Refusal::OtherContent { found, wanted }, 1),
            (Refusal::Format { path: path(), format: 2, known: 1 }, 1),
            (Refusal::OtherBase { base: path(), backup: path() }, 4),
            (Refusal::LongKey("a".into()), 2),
            (Refusal::OtherImport(path()), 5),
            (Refusal::NoPosition(path()), 4),
        ];
        let refused = refusals.into_iter().map(|(refusal, exit)| (Error::Refused(refusal), exit));
        let damaged = Error::Damaged { path: path(), at: Some(7), what: "a checksum differs".into() };
        let io = Error::Io { path: path(), error: io::Error::other("no room") };
        let stores = [(StoreReason::NoCredentials, 2), (StoreReason::NoBucket, 4), (StoreReason::Unreachable, 3)]
            .map(|(reason, exit)| (Error::Store { path: path(), reason, what: "no".into() }, exit));
        for (error, exit) in refused.chain([(damaged, 1), (io, 1)]).chain(stores) {
            for resume in [None, Some("coppice restore 'a b' --resume".to_owned())] {
                let failure = failure(&error, &context, resume);
                assert_eq!(failure.exit as u8, exit, "{failure}");
                assert!(failure.what.starts_with("restore: ") && !failure.cause.is_empty(), "{failure}");
                let words = words::split(&failure.next).expect("words").concat();
                let parsed = Cli::try_parse_from(words);
                assert!(parsed.as_ref().map_or_else(|error| error.exit_code() == 0, |_| true), "{failure}");
            }
        }
    }

    /// Whoever made room goes on where the import stopped.
    #[test]
    fn what_a_full_cluster_stopped_goes_on_with_resume() {
        let context = Context { verb: "import", ..Context::of_demo("127.0.0.1:7400", Duration::from_secs(5)) };
        let reason = Reason::Full("the disk has no room".into());
        let full = Failed(Box::new(ClientFailure { reason, place: Place::default() }));
        let line = "coppice import rows.csv --resume";
        let failure = failure(&Error::Client(full), &context, Some(line.to_owned()));
        assert!(failure.next == line && failure.cause.ends_with("; once it is over, --resume goes on"), "{failure}");
    }
}
