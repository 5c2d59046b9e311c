//! `coppice-load run`: from flags to a report.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coppice_client::command::ReadMode;
use coppice_client::wire::COMPOUND_BYTES_MAX;

use super::args::{Global, Output, RunArgs};
use super::failure::{Exit, Failure};
use super::fill::{self, value_bytes_checked};
use super::find_max::Search;
use super::progress::Progress;
use super::store::{Description, Store, Wiring, config_of};
use crate::machine::{self, Machine};
use crate::metrics::{Ordering, Sample};
use crate::record::History;
use crate::report::files::{self, OrderingRow};
use crate::report::summary::FindMax;
use crate::report::{self, Point, RunFile, Setup, Summary};
use crate::runner::{Orders, Pace, Tally, Timeline, Watch};
use crate::say::say;
use crate::target::Nanos;
use crate::units::print_count;
use crate::workload::mix::{NAMES, Scan, Size};
use crate::workload::{Kind, Mix, Plan, ValueForm, ycsb};

/// The least number of keys that a run works on, unless told: fewer would be a test of contention.
const ENTRIES_MIN: u64 = 100_000;

/// After the end of a run, answers are awaited a little longer than requests may take.
const DRAIN_EXTRA: Duration = Duration::from_millis(500);

/// What a run says that ended without any answer.
pub const NOTHING_ANSWERED: &str = "no request was answered";

/// One load at one time, carried out.
struct Step {
    tally: Tally,
    timeline: Timeline,
    summary: Summary,
    ordering: Vec<OrderingRow>,
}

/// Everything that is settled before the first request.
struct PreparedRun<'a> {
    args: &'a RunArgs,
    global: &'a Global,
    store: Store,
    description: Description,
    plan: Arc<Plan>,
    admin: Vec<String>,
    epoch: Instant,
}

/// Carries the command out; `command` is the command line, for the report.
pub fn run(args: &RunArgs, global: &Global, command: &str) -> Result<Exit, Failure> {
    let unwritten = |e| Failure::file("the report cannot be written", e, "coppice-load run --out ANOTHER");
    if let Some(directory) = &args.out {
        files::prepare(directory).map_err(unwritten)?;
    }
    let prepared = prepare(args, global)?;
    let (step, points) = match args.find_max {
        None => (prepared.step(prepared.load(), prepared.duration())?, Vec::new()),
        Some(_) => prepared.search()?,
    };
    let exit = exit_of(&step.summary);
    match global.output {
        Output::Json => say!("{}", report::json(&step.summary)),
        Output::Table => crate::say::write(format_args!("{}", report::text::render(&step.summary))),
    }
    if let Some(directory) = &args.out {
        let run = prepared.file(&step, points, command);
        files::write(directory, &run, &step.tally, &step.timeline).map_err(unwritten)?;
    }
    if exit == Exit::Unavailable {
        return Err(unanswered(&prepared, &step.summary));
    }
    Ok(exit)
}

/// The numbers of one run, without a word on stdout.
///
/// # Errors
/// The command line is wrong, nobody is there, or nothing was answered.
pub fn measure(args: &RunArgs, global: &Global) -> Result<Summary, Failure> {
    let prepared = prepare(args, global)?;
    let summary = prepared.step(prepared.load(), prepared.duration())?.summary;
    match exit_of(&summary) {
        Exit::Unavailable => Err(unanswered(&prepared, &summary)),
        _ => Ok(summary),
    }
}

fn unanswered(prepared: &PreparedRun<'_>, summary: &Summary) -> Failure {
    let cause = summary.first_error.clone().unwrap_or_else(|| "no answer within the run".to_owned());
    Failure::unavailable(NOTHING_ANSWERED, prepared.store.place(), cause)
}

/// Some errors are part of a run (faults are injected while it goes on); a run without any answer is none.
fn exit_of(summary: &Summary) -> Exit {
    match &summary.find_max {
        _ if summary.requests == 0 => Exit::Unavailable,
        Some(found) if !found.held => Exit::Failed,
        _ => Exit::Done,
    }
}

fn prepare<'a>(args: &'a RunArgs, global: &'a Global) -> Result<PreparedRun<'a>, Failure> {
    let (mix, records) = mix_of(args)?;
    let store = Store::new(args.target, global)?;
    if args.wait_replicas > 0 && matches!(store, Store::Native(_)) {
        return Err(Failure::usage(
            "--wait-replicas on target native",
            "Coppice answers a write when a majority has it, and takes no other word for it",
            "coppice-load run --target resp --wait-replicas 1",
        ));
    }
    if let Some(&(kind, _)) = mix.weights.iter().find(|(kind, _)| !store.has(*kind)) {
        return Err(Failure::usage(
            format!("workload {} on target {}", mix.name, args.target.name()),
            format!("it has no command for `{}`: several updates under one number, all or none", kind.name()),
            "coppice-load run --workload b",
        ));
    }
    let mut description = store.describe()?;
    if let Some((from, to)) = args.within {
        let none = || Failure::usage(format!("--within {from}..{to}"), "no partition has keys there", "a wider part");
        description.keys = description.keys.within((from, to)).ok_or_else(none)?;
    }
    let reported = || description.stored.unwrap_or(0).max(ENTRIES_MIN);
    let entries = args.preload.or(args.entries).or(records).unwrap_or_else(reported);
    let plan = plan_of(args, mix, entries, &description)?;
    check_partitions(args, &store, &description)?;
    if args.preload.is_some() {
        preload(args, global, &store, &description, &plan)?;
    }
    let admin = if args.metrics.is_empty() { description.admin.clone() } else { args.metrics.clone() };
    Ok(PreparedRun { args, global, store, description, plan: Arc::new(plan), admin, epoch: Instant::now() })
}

/// `--cross-percent` and `--partitions` are taken only where they work.
fn check_partitions(args: &RunArgs, store: &Store, description: &Description) -> Result<(), Failure> {
    let parts = description.boundaries.len() as u32 + 1;
    if let Some(wanted) = args.partitions.filter(|&wanted| wanted != parts) {
        return Err(Failure::usage(
            format!("--partitions {wanted}"),
            format!("the cluster has {parts}: partitions are cut and joined by its own verbs"),
            if wanted > parts { "coppice partition split --help" } else { "coppice partition merge --help" },
        ));
    }
    if args.cross_percent == 0 {
        return Ok(());
    }
    let Some(boundary) = description.boundaries.first() else {
        return Err(Failure::usage(
            "--cross-percent needs two partitions",
            "the key space is one partition",
            "coppice demo --partitions 4",
        ));
    };
    store
        .spans(boundary)
        .map_err(|cause| Failure::unavailable("a range across partitions is not answered", store.place(), cause))
}

/// `--preload N`: the first N keys of the list, unless the store holds as many already.
fn preload(
    args: &RunArgs,
    global: &Global,
    store: &Store,
    description: &Description,
    plan: &Plan,
) -> Result<(), Failure> {
    let stored = description.stored.unwrap_or(0);
    if stored >= plan.entries {
        eprintln!("preload: {} keys are there already", print_count(stored));
        return Ok(());
    }
    let value_bytes = args.value_size.unwrap_or(u64::from(plan.mix.value_bytes));
    fill::load(store, description, plan.entries, value_bytes, global.quiet).map(drop)
}

fn mix_of(args: &RunArgs) -> Result<(Mix, Option<u64>), Failure> {
    if let Some(mix) = Mix::named(&args.workload) {
        return Ok((mix, None));
    }
    let attempt = "coppice-load run --workload mixed";
    let text = std::fs::read_to_string(&args.workload).map_err(|e| {
        Failure::usage(format!("no workload `{}`", args.workload), format!("it is none of {NAMES} ({e})"), attempt)
    })?;
    let properties = ycsb::parse(&args.workload, &text)
        .map_err(|e| Failure::usage(format!("the property file `{}`", args.workload), e, attempt))?;
    if !properties.ignored.is_empty() {
        eprintln!("{}: not known here, left out: {}", args.workload, properties.ignored.join(", "));
    }
    Ok((properties.mix, properties.records))
}

fn plan_of(args: &RunArgs, mut mix: Mix, entries: u64, description: &Description) -> Result<Plan, Failure> {
    let keys = description.keys.clone();
    if entries == 0 {
        return Err(Failure::usage("a run needs keys", "--entries is 0", "coppice-load run --entries 100k"));
    }
    if let (Some(keys), Scan::Span { .. }) = (args.range_keys, mix.scan) {
        mix.scan = Scan::Span { keys: keys.max(1) };
    }
    let value_bytes = value_bytes_checked(args.value_size.unwrap_or(u64::from(mix.value_bytes)))?;
    if let Some(updates) = args.updates {
        check_updates(&mix, updates, value_bytes)?;
        mix.many = updates;
    }
    Ok(Plan {
        universe: match mix.size {
            Size::TwiceEntries => entries.saturating_mul(2),
            Size::Entries => entries,
        },
        entries,
        keys,
        value: if args.record.is_some() { ValueForm::Text } else { ValueForm::Bytes(value_bytes) },
        range_keys: if let Scan::Span { keys } = mix.scan { keys } else { 0 },
        cross_percent: args.cross_percent,
        seed: args.seed,
        mix,
    })
}

/// An insert in a command of many takes its key, its value and at most so many bytes of lengths.
const UPDATE_BYTES: u64 = 8 + 8;

fn check_updates(mix: &Mix, updates: u32, value_bytes: u32) -> Result<(), Failure> {
    let attempt = "coppice-load run --workload c --updates 1000";
    if mix.weights.iter().all(|&(kind, _)| kind != Kind::Many) {
        return Err(Failure::usage("--updates", format!("workload {} has no command of several", mix.name), attempt));
    }
    if u64::from(updates) * (UPDATE_BYTES + u64::from(value_bytes)) > COMPOUND_BYTES_MAX as u64 {
        let why =
            format!("{updates} updates with values of {value_bytes} bytes are more than 1 MiB, the longest command");
        return Err(Failure::usage("--updates", why, attempt));
    }
    Ok(())
}

impl PreparedRun<'_> {
    /// Clients, or requests per second.
    fn load(&self) -> f64 {
        self.args.rate.unwrap_or_else(|| self.args.clients.unwrap_or(64)).max(1) as f64
    }

    fn duration(&self) -> Duration {
        let default = if self.args.find_max.is_some() { 6 } else { 20 };
        self.args.duration.unwrap_or(Duration::from_secs(default))
    }

    fn workers(&self, load: f64) -> u32 {
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let workers = self.args.threads.unwrap_or_else(|| (processors / 4).max(1)).max(1);
        // A worker without a client would have nothing to do.
        if self.args.rate.is_some() { workers } else { workers.min(load as u32).max(1) }
    }

    fn orders(&self, load: f64, timeline: &Timeline) -> Vec<Orders> {
        let workers = u64::from(self.workers(load));
        let slots = if self.args.rate.is_some() { self.args.clients.unwrap_or(10_000) } else { load as u64 };
        let slots = slots.clamp(workers, u64::from(u32::MAX));
        // Values name their client and number; a recorded run must not write what an earlier one did.
        let mut first_client = if self.args.record.is_some() { self.recorded_client() } else { 0 };
        let mut order = |worker: u64| {
            let mine = (slots / workers + u64::from(worker < slots % workers)) as u32;
            let pace = match self.args.rate {
                None => Pace::Closed { clients: mine, think: self.args.think },
                Some(_) => Pace::Open {
                    rate: load / workers as f64,
                    offset: (worker as f64 * 1e9 / load) as Nanos,
                    slots: mine,
                },
            };
            let orders = Orders {
                timeline: timeline.clone(),
                pace,
                workers,
                first_client,
                seed: self.args.seed,
                drain: (self.global.timeout + DRAIN_EXTRA).as_nanos() as Nanos,
                start: 0,
            };
            first_client += mine;
            orders
        };
        (0..workers).map(&mut order).collect()
    }

    /// A number for the first client that no recorded run had in the last hundred days.
    fn recorded_client(&self) -> u32 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        (since.as_secs() % 8_640_000) as u32 * 490
    }

    fn setup(&self, load: f64, timeline: &Timeline) -> Setup {
        let workers = self.workers(load);
        let slots = if self.args.rate.is_some() { self.args.clients.unwrap_or(10_000) } else { load as u64 };
        Setup {
            target: self.args.target.name().to_owned(),
            loop_kind: if self.args.rate.is_some() { "open" } else { "closed" }.to_owned(),
            clients: slots.min(u64::from(u32::MAX)) as u32,
            think: self.args.think.to_string(),
            rate: self.args.rate.map(|_| load),
            workers,
            connections: workers * self.args.connections.max(1),
            pack_bytes: self.args.pack,
            duration_s: Duration::from_nanos(timeline.end()).as_secs_f64(),
            trim_s: timeline.trim().as_secs_f64(),
            ..Setup::of_plan(&self.plan)
        }
    }

    fn wiring(&self, slots: u32) -> Wiring {
        Wiring {
            connections: self.args.connections.max(1),
            pack_bytes: self.args.pack,
            reads: match (self.args.stale, self.args.any_replica) {
                (true, _) => ReadMode::Stale,
                (_, true) => ReadMode::AnyReplica,
                _ => ReadMode::Leader,
            },
            optimistic_scans: !self.args.ordered,
            slots,
            wait_replicas: self.args.wait_replicas,
        }
    }

    /// One load at one time.
    fn step(&self, load: f64, duration: Duration) -> Result<Step, Failure> {
        let trim = self.args.trim.unwrap_or(duration / 10);
        let timeline = Timeline::new(duration, trim)
            .map_err(|e| Failure::usage("the run has no middle", e, "coppice-load run --duration 20s --trim 2s"))?;
        let orders = self.orders(load, &timeline);
        let mut watcher = Watcher::new(self, &timeline, orders.len() as u32);
        let slots = orders.iter().map(|order| order.pace.slots()).max().unwrap_or(0);
        let history = self.history()?;
        let shared = (self.epoch, history.as_ref());
        let tally = self.store.run(&self.plan, &orders, self.wiring(slots), shared, |watch| watcher.see(watch))?;
        if let Some(history) = history {
            history.finish().map_err(|e| self.record_failure(&e))?;
        }
        watcher.progress.finish();
        let (cpu, ordering, rows) = watcher.results();
        let summary = Summary::new(self.setup(load, &timeline), &tally, &timeline, cpu, ordering);
        Ok(Step { tally, timeline, summary, ordering: rows })
    }

    /// The file of `--record`, begun with what the store holds.
    fn history(&self) -> Result<Option<History>, Failure> {
        let Some(path) = &self.args.record else { return Ok(None) };
        let state = self.store.state().ok_or_else(|| {
            let cause = "only answers with positions can be checked";
            Failure::usage("--record needs the native target", cause, "coppice-load run --target native")
        })?;
        let state = state.map_err(|cause| self.store.unavailable(cause))?;
        let history = History::create(path, &Machine::read().commit, self.args.seed, &state);
        history.map(Some).map_err(|e| self.record_failure(&e))
    }

    fn record_failure(&self, error: &std::io::Error) -> Failure {
        let path = self.args.record.as_deref().unwrap_or(std::path::Path::new("")).display();
        Failure::file("the history cannot be written", format!("{path}: {error}"), "coppice-load run --record ANOTHER")
    }

    /// `--find-max`: the best step that held the bound, or the last one tried.
    fn search(&self) -> Result<(Step, Vec<Point>), Failure> {
        let bound = self.args.find_max.expect("the caller asked for a search");
        let mut search = Search::new(self.load());
        let (mut points, mut best, mut last) = (Vec::new(), None::<Step>, None);
        while let Some(load) = search.load() {
            let step = self.step(load, self.duration())?;
            let at_bound = step.tally.latency().value_at_quantile(bound.percentile / 100.0);
            let summary = &step.summary;
            let errors = summary.failed + summary.busy + summary.unknown + summary.unsent;
            let held = summary.requests > 0 && errors == 0 && Duration::from_nanos(at_bound) <= bound.latency;
            let point = Point {
                load,
                throughput: summary.throughput,
                commands_per_second: summary.commands_per_second,
                good: held,
                latency: summary.latency,
            };
            if !self.global.quiet {
                eprintln!("{}", point.line(self.args.rate.is_some(), errors));
            }
            points.push(point);
            search.tried(held);
            if held && best.as_ref().is_none_or(|best| best.summary.throughput < step.summary.throughput) {
                best = Some(step);
            } else {
                last = Some(step);
            }
        }
        let held = best.is_some();
        let mut step = best.or(last).expect("a search tries at least one load");
        step.summary.find_max = Some(FindMax { bound: bound.to_string(), held, steps: points.clone() });
        Ok((step, points))
    }

    fn file(&self, step: &Step, points: Vec<Point>, command: &str) -> RunFile {
        let told = config_of(&self.admin);
        let (server_config, flush) =
            told.unwrap_or_else(|| (self.description.config.clone(), self.description.flush.clone()));
        RunFile {
            v: 1,
            command: command.to_owned(),
            machine: Machine::read(),
            flush,
            server_config,
            summary: step.summary.clone(),
            slices: files::slices(&step.tally, &step.timeline),
            percentiles: files::percentiles(&step.tally.latency()),
            ordering: step.ordering.clone(),
            points,
        }
    }
}

/// Looks at a run from outside: draws the bar, samples the nodes and the generator's own processor time.
struct Watcher<'a> {
    progress: Progress,
    admin: &'a [String],
    workers: u32,
    window: std::ops::Range<Nanos>,
    cpu: [Option<Duration>; 2],
    first: Option<Sample>,
    last: Option<Sample>,
    rows: Vec<OrderingRow>,
}

impl<'a> Watcher<'a> {
    fn new(prepared: &'a PreparedRun<'a>, timeline: &Timeline, workers: u32) -> Watcher<'a> {
        Watcher {
            progress: Progress::new(timeline.end() / 1_000_000, prepared.global.quiet),
            admin: &prepared.admin,
            workers,
            window: timeline.window(),
            cpu: [None; 2],
            first: None,
            last: None,
            rows: Vec::new(),
        }
    }

    fn see(&mut self, watch: Watch) {
        match watch {
            Watch::Started(_) => {}
            Watch::Live(live) => self.progress.live(&live, self.workers),
            Watch::Tick(at) => {
                self.progress.tick(Duration::from_nanos(at.min(self.window.end)));
                self.sample(at);
            }
        }
    }

    /// At the window's two ends, and each second between.
    fn sample(&mut self, at: Nanos) {
        let (begun, over) = (at >= self.window.start, at >= self.window.end);
        if begun && self.cpu[0].is_none() {
            self.cpu[0] = Some(machine::cpu_time());
            self.first = Some(Sample::take(self.admin)).filter(|sample| !sample.is_empty());
            self.last = self.first.clone();
            return;
        }
        if self.cpu[1].is_some() || !begun {
            return;
        }
        if over {
            self.cpu[1] = Some(machine::cpu_time());
        }
        let Some(last) = self.last.as_ref().filter(|last| over || last.age() >= Duration::from_secs(1)) else { return };
        let sample = Sample::take(self.admin);
        if let Some(ordering) = Ordering::between(last, &sample) {
            self.rows.push(OrderingRow { at_s: at as f64 / 1e9, ordering });
        }
        if !sample.is_empty() {
            self.last = Some(sample);
        }
    }

    fn results(self) -> (Duration, Option<Ordering>, Vec<OrderingRow>) {
        let [before, after] = self.cpu.map(|time| time.unwrap_or_else(machine::cpu_time));
        let whole = self.first.as_ref().zip(self.last.as_ref());
        let ordering = whole.and_then(|(first, last)| Ordering::between(first, last));
        (after.saturating_sub(before), ordering, self.rows)
    }
}
