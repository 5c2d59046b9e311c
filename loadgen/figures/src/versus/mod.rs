//! `coppice-figures versus`: Coppice and its peers on one machine, one after the other in one run, as durable and as
//! large as each other. The output says what stays unequal. It installs nothing, and whatever it starts is gone at
//! its end.

mod coppice;
mod etcd;
mod generator;
mod job;
mod redis;
mod table;
mod tool;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use job::{Job, Measurement};
use serde::Serialize;

use crate::args::{Global, Peers, VersusArgs};
use crate::site::Site;
use coppice_loadgen::app::args::Output;
use coppice_loadgen::app::failure::{Exit, Failure};
use coppice_loadgen::machine::{self, Machine};
use coppice_loadgen::say::say;

/// Fewer keys than this have no room for ranges of 1000 at different places.
const ENTRIES_MIN: u64 = 10_000;

/// What is alike for all stores of a comparison.
#[derive(Clone, Copy, Debug)]
struct Round<'a> {
    entries: u64,
    duration: Duration,
    global: &'a Global,
}

impl Round<'_> {
    /// What happens now, on stderr.
    fn say(&self, text: &str) {
        if !self.global.quiet {
            eprintln!("$ {text}");
        }
    }
}

/// One store: what it is, and what was measured.
#[derive(Clone, Debug, Default, Serialize)]
struct Column {
    name: &'static str,
    version: String,
    /// Processes and what they hold.
    cluster: String,
    /// When a put is answered.
    durability: String,
    /// Keys that were loaded.
    entries: u64,
    /// Why nothing could be measured, and how to change that.
    missing: Option<String>,
    /// Why it ended early.
    failed: Option<String>,
    jobs: BTreeMap<Job, Measurement>,
    /// Every command line, in order.
    commands: Vec<String>,
    /// What is unequal about it.
    notes: Vec<String>,
}

impl Column {
    fn new(name: &'static str) -> Column {
        Column { name, ..Column::default() }
    }

    /// Its messages carry one put each, whatever the row says.
    fn repeat_single_as_packed(&mut self) {
        if let Some(single) = self.jobs.get(&Job::SinglePuts).cloned() {
            self.jobs.insert(Job::PackedPuts, single);
        }
    }
}

/// The whole comparison.
#[derive(Clone, Debug, Serialize)]
struct Comparison {
    /// Version of this object; fields are only added.
    v: u32,
    command: String,
    machine: Machine,
    /// File system and device that all data was on.
    data_disk: String,
    entries: u64,
    duration_s: f64,
    key_bytes: u32,
    value_bytes: u32,
    /// Coppice first.
    stores: Vec<Column>,
}

/// A store that takes part.
enum Store {
    Coppice(PathBuf),
    Etcd(etcd::Programs),
    Redis(Option<PathBuf>),
    /// The same with two replicas.
    RedisReplicated(Option<PathBuf>),
}

impl Store {
    fn column(&self, args: &VersusArgs) -> Column {
        match self {
            Store::Coppice(program) => coppice::column(program, args.partitions),
            Store::Etcd(programs) => programs.column(),
            Store::Redis(program) => redis::column(program.as_deref(), false),
            Store::RedisReplicated(program) => redis::column(program.as_deref(), true),
        }
    }

    fn run(&self, args: &VersusArgs, site: &Site, round: &Round, column: &mut Column) -> Result<(), String> {
        match self {
            Store::Coppice(program) => coppice::run(program, args.partitions, site, round, column),
            Store::Etcd(programs) => programs.run(site, round, column),
            Store::Redis(Some(program)) => redis::run(program, site, round, column),
            Store::RedisReplicated(Some(program)) => redis::run_replicated(program, site, round, column),
            Store::Redis(None) | Store::RedisReplicated(None) => Ok(()),
        }
    }
}

/// Carries the command out; `command` is the command line, for the report.
pub fn versus(args: &VersusArgs, global: &Global, command: &str) -> Result<Exit, Failure> {
    if args.entries < ENTRIES_MIN {
        let what = format!("--entries {}", args.entries);
        return Err(Failure::usage(what, "ranges of 1000 keys need ten times as many", "coppice-figures versus all"));
    }
    let stores = stores(args)?;
    let round = Round { entries: args.entries, duration: args.duration, global };
    let base = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let site = Site::new(&base, "coppice-versus").map_err(|e| {
        let error = format!("{}: {e}", base.display());
        Failure::file("no directory for the data", error, "coppice-figures versus all --dir ANOTHER")
    })?;
    let mut columns = Vec::new();
    for store in &stores {
        let mut column = store.column(args);
        if column.missing.is_none() {
            column.failed = store.run(args, &site, &round, &mut column).err();
        }
        site.clear();
        columns.push(column);
    }
    let comparison = Comparison {
        v: 1,
        command: command.to_owned(),
        machine: Machine::read(),
        data_disk: machine::disk_at(&site.path("")),
        entries: round.entries,
        duration_s: round.duration.as_secs_f64(),
        key_bytes: 8,
        value_bytes: 8,
        stores: columns,
    };
    drop(site);
    if let Some(directory) = &args.out {
        write(directory, &comparison)
            .map_err(|e| Failure::file("the table cannot be written", e, "coppice-figures versus all --out ANOTHER"))?;
    }
    match global.output {
        Output::Json => say!("{}", table::json(&comparison)),
        Output::Table => coppice_loadgen::say::write(format_args!("{}", table::text(&comparison))),
    }
    let failed = comparison.stores.iter().any(|column| column.failed.is_some());
    Ok(if failed { Exit::Failed } else { Exit::Done })
}

fn stores(args: &VersusArgs) -> Result<Vec<Store>, Failure> {
    let given = [&args.bin, &args.etcd, &args.etcd_benchmark, &args.redis];
    if let Some(path) = given.into_iter().flatten().find(|path| !path.is_file()) {
        let what = format!("there is no program {}", path.display());
        return Err(Failure::usage(what, "the path leads to no file", "coppice-figures versus --help"));
    }
    let coppice = args.bin.clone().or_else(coppice::program).ok_or_else(|| {
        let cause = "it is neither beside coppice-figures nor in PATH";
        Failure::usage("the program coppice is not found", cause, "cargo build --release")
    })?;
    let mut stores = vec![Store::Coppice(coppice)];
    if args.peers != Peers::Redis {
        stores.push(Store::Etcd(etcd::Programs::find(args.etcd.as_deref(), args.etcd_benchmark.as_deref())));
    }
    if args.peers != Peers::Etcd {
        let program = redis::program(args.redis.as_deref());
        stores.extend([Store::Redis(program.clone()), Store::RedisReplicated(program)]);
    }
    Ok(stores)
}

/// `versus.md` and `versus.json`; the error names the file.
fn write(directory: &Path, comparison: &Comparison) -> Result<(), String> {
    let error = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    std::fs::create_dir_all(directory).map_err(|e| error(directory, e))?;
    for (name, text) in [("versus.md", table::markdown(comparison)), ("versus.json", table::json(comparison) + "\n")] {
        let path = directory.join(name);
        std::fs::write(&path, text).map_err(|e| error(&path, e))?;
    }
    Ok(())
}
