//! `import` and `export`: rows of files into a cluster, and keys of a cluster into a file.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use coppice_transfer::error::Error;
use coppice_transfer::export::{self, ExportError};
use coppice_transfer::import::{self, ImportError};
use coppice_transfer::rows::TextOptions;
use serde_json::json;

use super::args::{Cli, Format, RangeArgs};
use super::connect::connect;
use super::errors::{self, Context};
use super::failure::{Exit, Failure};
use super::input::Inputs;
use super::output::{Output, ScanEnd};
use super::progress::Progress;
use super::{scan, transfer, words};

type Outcome = io::Result<Result<Exit, Failure>>;

/// The formats of `import`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ImportFormat {
    /// Comma-separated values.
    Csv,
    /// JSON lines, as `export` and `scan -o jsonl` write them.
    Jsonl,
    /// A dump file of Redis: keys of the type string.
    Rdb,
    /// A snapshot of etcd 3: the latest revisions.
    Etcd,
    /// What `export --format bin` writes.
    Bin,
}

/// The formats of `export`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// Comma-separated values.
    Csv,
    /// JSON lines.
    Jsonl,
    /// Chunks with checksums: the smallest and fastest.
    Bin,
}

/// How text is written in a file.
#[derive(Debug, Clone, Args)]
pub struct TextArgs {
    /// CSV: what stands between the fields, one character [default: ,]
    #[arg(long, value_parser = delimiter, value_name = "CHARACTER")]
    pub delimiter: Option<u8>,
    /// CSV: the first line names no columns
    #[arg(long)]
    pub no_header: bool,
    /// CSV: the column of keys, by name, or by number where no header names it [default: key, or 1]
    #[arg(long, value_name = "COLUMN")]
    pub key_column: Option<String>,
    /// CSV: the column of values [default: value, or 2]
    #[arg(long, value_name = "COLUMN")]
    pub value_column: Option<String>,
}

/// `import`
#[derive(Debug, Clone, Args)]
pub struct ImportArgs {
    /// The file; `-` is stdin
    pub file: PathBuf,
    /// Its format [default: by the name of the file]
    #[arg(long, value_enum)]
    pub format: Option<ImportFormat>,
    /// How text is written.
    #[command(flatten)]
    pub text: TextArgs,
    /// Put this before every key
    #[arg(long, value_name = "KEY")]
    pub prefix: Option<OsString>,
    /// Redis: the database whose keys are imported [default: 0]
    #[arg(long, value_name = "N")]
    pub db: Option<u64>,
    /// Redis: succeed although keys of other types are left out
    #[arg(long)]
    pub strings_only: bool,
    /// Go on with an import of this file that was interrupted, behind the rows that are loaded
    #[arg(long)]
    pub resume: bool,
}

/// `export`
#[derive(Debug, Clone, Args)]
pub struct ExportArgs {
    /// The file, which must not exist; `-` is stdout
    pub file: PathBuf,
    /// Which keys [default: all].
    #[command(flatten)]
    pub keys: RangeArgs,
    /// Its format [default: by the name of the file]
    #[arg(long, value_enum)]
    pub format: Option<ExportFormat>,
    /// How text is written.
    #[command(flatten)]
    pub text: TextArgs,
}

fn delimiter(text: &str) -> Result<u8, String> {
    match text {
        "\\t" | "tab" => Ok(b'\t'),
        _ => match text.as_bytes() {
            [byte] if !b"\"\r\n".contains(byte) => Ok(*byte),
            _ => Err("one ASCII character, or `tab`; not a quote".to_owned()),
        },
    }
}

impl TextArgs {
    fn options(&self, cli: &Cli) -> TextOptions {
        let blank = TextOptions::default();
        TextOptions {
            coding: cli.global.coding(),
            delimiter: self.delimiter.unwrap_or(blank.delimiter),
            header: !self.no_header,
            key: self.key_column.clone().unwrap_or(blank.key),
            value: self.value_column.clone().unwrap_or(blank.value),
        }
    }

    /// Its flags, and those that say how keys and values are written; `keys`: they say that of the command line too.
    fn flags<F>(&self, cli: &Cli, csv: &'static [F], text: &'static [F], keys: bool) -> [FormatFlag<F>; 7] {
        [
            ("--delimiter", self.delimiter.is_some(), csv),
            ("--no-header", self.no_header, csv),
            ("--key-column", self.key_column.is_some(), csv),
            ("--value-column", self.value_column.is_some(), csv),
            ("--int", cli.global.int && !keys, text),
            ("--hex", cli.global.hex && !keys, text),
            ("--base64", cli.global.base64 && !keys, text),
        ]
    }
}

/// A flag, whether it was given, and the formats that have a use for it.
type FormatFlag<F> = (&'static str, bool, &'static [F]);

/// Refuses a flag that would be without effect.
fn check_flags<F: ValueEnum + PartialEq>(verb: &str, format: &F, flags: &[FormatFlag<F>]) -> Result<(), Failure> {
    let unused = flags.iter().find(|(_, given, formats)| *given && !formats.contains(format));
    unused.map_or(Ok(()), |(flag, _, formats)| {
        let what = format!("{verb}: {flag} is without effect for the format {}", names([format]));
        let cause = format!("it is for {}", names(*formats));
        Err(Failure::usage(what, cause, format!("coppice {verb} --help")))
    })
}

/// `csv, jsonl`
fn names<'a, F: ValueEnum + 'a>(formats: impl IntoIterator<Item = &'a F>) -> String {
    let names: Vec<_> = formats.into_iter().filter_map(F::to_possible_value).collect();
    names.iter().map(clap::builder::PossibleValue::get_name).collect::<Vec<_>>().join(", ")
}

/// The format that was asked for, or that of the file's name.
fn format_of<F: ValueEnum>(verb: &str, given: Option<F>, file: &Path) -> Result<F, Failure> {
    let ending = file.extension().and_then(OsStr::to_str).unwrap_or_default();
    let ending = match ending {
        "ndjson" => "jsonl",
        "db" => "etcd",
        ending => ending,
    };
    given.or_else(|| F::from_str(ending, true).ok()).ok_or_else(|| {
        let first = names(F::value_variants().first());
        let next = words::join(["coppice", verb, &file.display().to_string(), "--format", &first]);
        let cause = format!("the name of the file does not say it: {}", names(F::value_variants()));
        Failure::usage(format!("{verb}: which format has {}?", file.display()), cause, next)
    })
}

/// `import`.
///
/// # Errors
/// That of stdout; a failure is returned with its four lines.
pub async fn import(
    cli: &Cli,
    context: &Context,
    args: &ImportArgs,
    inputs: &mut Inputs<'_>,
    output: &mut Output<'_>,
) -> Outcome {
    let plan = match plan_of(cli, args, inputs) {
        Ok(plan) => plan,
        Err(failure) => return Ok(Err(failure)),
    };
    let client = connect(cli);
    let mut progress = Progress::new("import", output.style.quiet);
    let done = import::import(&client, &plan, |told| {
        progress.tell((told.read, told.size), told.rows - told.passed_over, "rows");
    });
    let done = done.await;
    let took = progress.end();
    let done = match done {
        Ok(done) => done,
        Err(ended) => return Ok(Err(ended_early(&ended, context, args))),
    };
    let loaded = done.rows - done.passed_over;
    let rate = loaded as f64 / took.as_secs_f64().max(1e-3);
    match output.style.admin() {
        Format::Json | Format::Jsonl => {
            let fields = json!({
                "v": 1, "rows": done.rows, "passed_over": done.passed_over, "seconds": took.as_secs_f64(),
                "notes": done.notes, "refused": done.refused,
            });
            writeln!(output.data, "{fields}")?;
        }
        Format::Table | Format::Raw => {
            let rows = if loaded == 1 { "1 row".to_owned() } else { format!("{loaded} rows") };
            let before = match done.passed_over {
                0 => String::new(),
                count => format!("; {count} were loaded before"),
            };
            writeln!(output.data, "imported: {rows} in {:.1} s, {rate:.0}/s{before}", took.as_secs_f64())?;
        }
    }
    for note in &done.notes {
        output.note(note)?;
    }
    match done.refused {
        Some(refused) if args.strings_only => output.note(&refused).map(|()| Ok(Exit::Done)),
        Some(refused) => Ok(Err(Failure {
            exit: Exit::Failed,
            code: "refused",
            what: format!("{}: all strings are imported; {refused}", context.verb),
            place: args.file.display().to_string(),
            cause: "values are byte strings here; --strings-only accepts that other types are left out".to_owned(),
            next: format!("coppice {} --help", context.verb),
        })),
        None => Ok(Ok(Exit::Done)),
    }
}

fn plan_of(cli: &Cli, args: &ImportArgs, inputs: &mut Inputs<'_>) -> Result<import::Plan, Failure> {
    use ImportFormat::{Csv, Jsonl, Rdb};
    let format = format_of("import", args.format, &args.file)?;
    let of_redis = [("--db", args.db.is_some(), &[Rdb][..]), ("--strings-only", args.strings_only, &[Rdb])];
    let of_text = args.text.flags(cli, &[Csv], &[Csv, Jsonl], args.prefix.is_some());
    check_flags("import", &format, &[&of_redis[..], &of_text].concat())?;
    let format = match format {
        ImportFormat::Csv => import::Format::Csv,
        ImportFormat::Jsonl => import::Format::Jsonl,
        ImportFormat::Rdb => import::Format::Rdb,
        ImportFormat::Etcd => import::Format::Etcd,
        ImportFormat::Bin => import::Format::Bin,
    };
    let file = (args.file != Path::new("-")).then(|| args.file.clone());
    if file.is_none() && args.resume {
        let cause = "stdin cannot be read again; a file has a position beside it";
        return Err(Failure::usage("import: stdin cannot be resumed", cause, "coppice import --help"));
    }
    let prefix = args.prefix.as_deref().map_or(Ok(Vec::new()), |prefix| inputs.bytes("--prefix", prefix))?;
    let options = args.text.options(cli);
    Ok(import::Plan { file, format, options, database: args.db.unwrap_or(0), prefix, resume: args.resume })
}

fn ended_early(ended: &ImportError, context: &Context, args: &ImportArgs) -> Failure {
    let line =
        || ["coppice"].into_iter().chain(context.line.iter().map(String::as_str)).filter(|word| *word != "--resume");
    let again = ended.position.is_some().then(|| words::join(line().chain(["--resume"])));
    let failure = transfer::failure(&ended.error, context, again.clone());
    let failure = match &ended.error {
        Error::Damaged { .. } => Failure {
            code: "input",
            cause: format!(
                "the file is damaged, or not of this format; the rows before it are loaded: {}. A file that is \
                 mended is imported whole, without --resume",
                ended.rows
            ),
            next: words::join(line()),
            ..failure
        },
        _ => failure,
    };
    match &ended.position {
        Some(position) => {
            Failure { place: format!("{}; {} keeps how far it is", failure.place, position.display()), ..failure }
        }
        None if args.file == Path::new("-") && ended.rows > 0 => {
            Failure { cause: format!("{}; {} rows of stdin are loaded", failure.cause, ended.rows), ..failure }
        }
        None => failure,
    }
}

/// `export`.
///
/// # Errors
/// That of stdout; a failure is returned with its four lines.
pub async fn export(
    cli: &Cli,
    context: &Context,
    args: &ExportArgs,
    inputs: &mut Inputs<'_>,
    output: &mut Output<'_>,
) -> Outcome {
    let format = match export_format(cli, args) {
        Ok(format) => format,
        Err(failure) => return Ok(Err(failure)),
    };
    let range = match scan::bounds_of("export", &args.keys, cli.global.coding(), inputs) {
        Ok(range) => range,
        Err(failure) => return Ok(Err(failure)),
    };
    let (options, client) = (args.text.options(cli), connect(cli));
    let mut progress = Progress::new("export", output.style.quiet);
    let mut told = |rows: u64| progress.tell((rows, None), rows, "keys");
    let exported = if args.file == Path::new("-") {
        match export::export(&client, range, &mut *output.data, (format, &options), &mut told).await {
            Err(ExportError::Output(error)) => return Err(error),
            exported => exported,
        }
    } else {
        let mut file = match ExportFile::new(&args.file, context) {
            Ok(file) => file,
            Err(failure) => return Ok(Err(failure)),
        };
        match export::export(&client, range, &mut file.out, (format, &options), &mut told).await {
            Ok(exported) => match file.finish() {
                Ok(()) => Ok(exported),
                Err(error) => Err(error.into()),
            },
            Err(error) => Err(error),
        }
    };
    progress.end();
    let (stream, count) = match exported {
        Ok(exported) => exported,
        Err(ExportError::Client(error)) => return Ok(Err(errors::failure(&error, context))),
        Err(ExportError::Output(error)) => {
            let error = Error::Io { path: args.file.clone(), error };
            return Ok(Err(transfer::failure(&error, context, None)));
        }
    };
    let end = ScanEnd {
        count,
        positions: stream.positions().iter().map(ToString::to_string).collect(),
        ticket: stream.ticket().map(|ticket| ticket.to_string()),
        stale: false,
        after: None,
    };
    output.note(&end.sentence())?;
    Ok(Ok(Exit::Done))
}

fn export_format(cli: &Cli, args: &ExportArgs) -> Result<export::Format, Failure> {
    use ExportFormat::{Bin, Csv, Jsonl};
    let format = format_of("export", args.format, &args.file)?;
    let RangeArgs { range, prefix, from, to } = &args.keys;
    let keys = [range, prefix, from, to].into_iter().any(Option::is_some);
    check_flags("export", &format, &args.text.flags(cli, &[Csv], &[Csv, Jsonl], keys))?;
    Ok(match format {
        Csv => export::Format::Csv,
        Jsonl => export::Format::Jsonl,
        Bin => export::Format::Bin,
    })
}

/// A file that has its name once it is whole.
struct ExportFile {
    out: BufWriter<File>,
    unfinished: PathBuf,
    path: PathBuf,
    whole: bool,
}

impl ExportFile {
    fn new(path: &Path, context: &Context) -> Result<ExportFile, Failure> {
        let exists = |path: &Path, cause: &str| Failure {
            exit: Exit::Condition,
            code: "exists",
            what: format!("{}: {} exists already", context.verb, path.display()),
            place: path.display().to_string(),
            cause: cause.to_owned(),
            next: format!("coppice {} --help", context.verb),
        };
        if path.exists() {
            return Err(exists(path, "an export never writes over a file: remove it, or name another one"));
        }
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".part");
        let unfinished = path.with_file_name(name);
        match OpenOptions::new().create_new(true).write(true).mode(0o600).open(&unfinished) {
            Ok(file) => {
                let out = BufWriter::with_capacity(1 << 20, file);
                Ok(ExportFile { out, unfinished, path: path.to_owned(), whole: false })
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(exists(&unfinished, "an export writes it, or was killed: then remove it; or name another file"))
            }
            Err(error) => {
                let error = Error::Io { path: unfinished, error };
                Err(transfer::failure(&error, context, None))
            }
        }
    }

    fn finish(mut self) -> io::Result<()> {
        self.out.flush()?;
        self.out.get_ref().sync_all()?;
        fs::rename(&self.unfinished, &self.path)?;
        self.whole = true;
        Ok(())
    }
}

impl Drop for ExportFile {
    fn drop(&mut self) {
        if !self.whole {
            // What it ended with is told already.
            let _ = fs::remove_file(&self.unfinished);
        }
    }
}
