//! The experiments: a full grid of batches and windows, and tuning against the best of it, from a cold start and
//! after changes of load and link (papers.md A13, A14).
//!
//! A machine changes its own speed from one minute to the next. So tuning and the best of the grid are measured
//! beside each other, in turns, in one cluster, each after as long a time of the same load: logs and checkpoints of
//! some hundred megabytes a second reach a disk's limits after seconds, not at once.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use coppice_client::wire::{BatchAndWindow, GroupTuning, TuningAccount};
use coppice_core::sizes;
use coppice_ordering::tuning::{Disk, InstanceCost, Link, Model, Network};

use super::cluster::{Cluster, NODES};
use super::figures::{ModelFigures, Row};
use super::link::{LinkCounters, Shape};
use super::load::{Got, Load};

/// What the log's device writes at most; what counts is the flush.
const DISK_BYTES_PER_MS: f64 = 1e6;

/// What a group of fixed settings is given where nothing else is said: the defaults, which tuning takes as leave
/// to choose.
const STANDARD: BatchAndWindow = BatchAndWindow { batch_bytes_max: 64 << 10, window: 16, window_bytes_max: 1 << 20 };

/// The points of a grid are bounded by their windows, and by the largest that a cluster takes.
const GRID_WINDOW_BYTES: u64 = 16 << 20;

/// A load begins within this time: it connects and looks at the cluster first.
const BEGINNING: Duration = Duration::from_secs(1);

/// Every command is a batch.
const UNBATCHED: BatchAndWindow = BatchAndWindow { batch_bytes_max: 1, window: 512, window_bytes_max: 1 << 20 };

/// A link and a size of commands.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The link's word.
    pub name: String,
    /// The link.
    pub shape: Shape,
    /// Key and value of a command, in bytes.
    pub size: u64,
}

/// What is measured beside the points of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Also {
    /// The settings of a cluster that nobody tuned
    Standard,
    /// Tuning, after its time to settle
    Tuning,
    /// Nothing
    None,
}

/// How experiments are carried out.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The program `coppice`.
    pub program: PathBuf,
    /// Data of nodes goes below here.
    pub data: PathBuf,
    /// In this order; each is a change from the one before.
    pub scenes: Vec<Scene>,
    /// Bytes of a batch.
    pub batches: Vec<u64>,
    /// Undecided instances.
    pub windows: Vec<u32>,
    /// Length of one measurement.
    pub hold: Duration,
    /// How long tuning has after a cold start, or after a change.
    pub settle: Duration,
    /// What a grid ends with.
    pub also: Vec<Also>,
    /// Turns of tuning and the best of the grid.
    pub turns: u32,
    /// Set by Ctrl-C: it ends after the measurement under way.
    pub interrupted: Arc<AtomicBool>,
}

/// What becomes of the links after a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Links {
    /// As they are: the next load finds what this one left.
    Stay,
    /// Quick ones: what is still under way need not take as long as it would.
    Quick,
}

/// Where settings come from.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Settings {
    Fixed(BatchAndWindow),
    Tuning,
}

/// A cluster, and the rows that are measured in it.
pub struct Experiment<'a> {
    setup: &'a Setup,
    cluster: Cluster,
    in_force: Option<Settings>,
}

impl<'a> Experiment<'a> {
    fn start(setup: &'a Setup, tuning: bool) -> Result<Experiment<'a>, String> {
        let on = if tuning { "on" } else { "off" };
        // Formed over quick links: forming is not what is measured.
        let cluster = Cluster::start(&setup.program, &setup.data, Shape::LAN, &[("auto_tuning", on)])?;
        let in_force = tuning.then_some(Settings::Tuning);
        Ok(Experiment { setup, cluster, in_force })
    }

    /// Puts settings in force, with nothing under way.
    fn set(&mut self, settings: Settings) -> Result<(), String> {
        if self.in_force == Some(settings) {
            return Ok(());
        }
        // Over quick links: what a setting takes to be decided is not what is measured.
        self.cluster.set_links(Shape::LAN);
        self.cluster.rest();
        let (on, values) = match settings {
            Settings::Tuning => ("on", STANDARD),
            Settings::Fixed(values) => ("off", values),
        };
        self.cluster.set(&[
            ("auto_tuning", on.into()),
            ("batch_bytes_max", format!("{} B", values.batch_bytes_max)),
            ("window", values.window.to_string()),
            ("window_bytes_max", format!("{} B", values.window_bytes_max)),
        ])?;
        self.in_force = Some(settings);
        Ok(())
    }

    /// Runs a load over the scene's links; what it came to, and what the leader said under way.
    fn run(&mut self, scene: &Scene, load: Load, length: Duration, links: Links) -> Result<Row, String> {
        if self.setup.interrupted.load(Ordering::Relaxed) {
            return Err("interrupted".into());
        }
        self.cluster.set_links(scene.shape);
        let (before, begun) = (self.cluster.carried(), Instant::now());
        let endpoints = self.cluster.endpoints();
        let (got, told, after, took) = std::thread::scope(|scope| {
            let running = scope.spawn(|| load.run(&endpoints, length));
            std::thread::sleep(length.mul_f64(0.8));
            let told = self.cluster.tuning();
            std::thread::sleep(length.saturating_sub(begun.elapsed()));
            let (after, took) = (self.cluster.carried(), begun.elapsed());
            // What is measured is over, once the load has begun as late as it may have.
            std::thread::sleep(BEGINNING);
            if links == Links::Quick {
                self.cluster.set_links(Shape::LAN);
            }
            (running.join().unwrap_or_else(|_| Err("the load generator panicked".into())), told, after, took)
        });
        self.cluster.all_run()?;
        Ok(row(scene, load, got?, (&before, &after, took), told.as_ref()))
    }

    /// One point of a grid, or the standard settings.
    fn fixed(&mut self, scene: &Scene, word: &'static str, values: BatchAndWindow) -> Result<Row, String> {
        self.set(Settings::Fixed(values))?;
        let row = self.run(scene, Load::saturating(scene.size), self.setup.hold, Links::Quick)?;
        Ok(Row { settings: word, in_force: Some(values), predicted: None, ..row })
    }

    /// Tuning, after its time to settle.
    fn tuned(&mut self, scene: &Scene, word: &'static str) -> Result<Row, String> {
        self.set(Settings::Tuning)?;
        Ok(Row { settings: word, ..self.settled(scene)? })
    }

    /// What is in force, once it has had the load for a while.
    fn settled(&mut self, scene: &Scene) -> Result<Row, String> {
        let load = Load::saturating(scene.size);
        // Links that changed once more in between would be one more change to get used to.
        self.run(scene, load, self.setup.settle, Links::Stay)?;
        self.run(scene, load, self.setup.hold, Links::Quick)
    }

    /// Tuning and the best of the grid, in turns, each after the same time of the same load.
    fn against(&mut self, scene: &Scene, word: &'static str, best: BatchAndWindow) -> Result<[Row; 2], String> {
        let mut turns: [Vec<Row>; 2] = Default::default();
        for _ in 0..self.setup.turns {
            turns[0].push(self.tuned(scene, word)?);
            self.set(Settings::Fixed(best))?;
            turns[1].push(Row { settings: "best", in_force: Some(best), predicted: None, ..self.settled(scene)? });
        }
        let [mut tuned, best] = turns.map(|rows| mean(&rows));
        tuned.of_best = Some(tuned.got.throughput / best.got.throughput.max(1e-9));
        Ok([tuned, best])
    }

    /// One client: tuning against a batch for every command, in turns.
    fn light(&mut self, scene: &Scene) -> Result<[Row; 2], String> {
        let load = Load { clients: 1, ..Load::saturating(scene.size) };
        let mut turns: [Vec<Row>; 2] = Default::default();
        for _ in 0..self.setup.turns {
            self.set(Settings::Tuning)?;
            turns[0].push(Row { settings: "light", ..self.run(scene, load, self.setup.hold, Links::Quick)? });
            self.set(Settings::Fixed(UNBATCHED))?;
            turns[1].push(Row { settings: "unbatched", ..self.run(scene, load, self.setup.hold, Links::Quick)? });
        }
        Ok(turns.map(|rows| mean(&rows)))
    }
}

fn row(
    scene: &Scene,
    load: Load,
    got: Got,
    (before, after, took): (&LinkCounters, &LinkCounters, Duration),
    told: Option<&GroupTuning>,
) -> Row {
    let bytes = after.bytes.saturating_sub(before.bytes) as f64;
    let could = scene.shape.rate as f64 * took.as_secs_f64() * (NODES - 1) as f64;
    let row = Row {
        link: scene.name.clone(),
        size: load.size,
        settings: "",
        in_force: None,
        got,
        link_used: bytes / could.max(1.0),
        congestions: after.congestions.saturating_sub(before.congestions),
        of_best: None,
        predicted: None,
        modelled: told.and_then(|told| modelled(told.account.as_ref()?, scene, told.in_force)),
    };
    row.told(told)
}

/// The model over this link, with the costs that the leader measured: each link is one replica's alone. None: no pack
/// holds such commands.
fn modelled(account: &TuningAccount, scene: &Scene, in_force: BatchAndWindow) -> Option<ModelFigures> {
    let link = Link {
        network: Network::Wan,
        bytes_per_ms: scene.shape.rate as f64 / 1e3,
        latency_ms: 1e3 * scene.shape.delay.as_secs_f64(),
    };
    let cpu = InstanceCost { per_batch_ms: account.batch_cpu_ms, per_request_ms: account.command_cpu_ms };
    let disk = Disk {
        flush_ms: account.flush_ms,
        batches_per_flush: account.batches_per_flush.max(1.0),
        bytes_per_ms: DISK_BYTES_PER_MS,
    };
    let disk = (account.flush_ms > 0.0).then_some(disk);
    let sizes = sizes::of_commands(scene.size as usize, 1)?;
    let model = Model { replicas: NODES as u32, sizes, link, cpu, execute_ms: 0.0, disk, alone: None };
    let k = (in_force.batch_bytes_max as f64 / (sizes.request + sizes.request_header)).floor().max(1.0);
    Some(ModelFigures {
        batch_cpu_ms: account.batch_cpu_ms,
        command_cpu_ms: account.command_cpu_ms,
        flush_ms: account.flush_ms,
        throughput: model.throughput(k),
        window: model.window(k),
    })
}

/// The last of some rows, with the average of what they came to.
fn mean(rows: &[Row]) -> Row {
    let over = rows.len().max(1) as f64;
    let of = |value: fn(&Row) -> f64| rows.iter().map(value).sum::<f64>() / over;
    let got = Got {
        throughput: of(|row| row.got.throughput),
        p50_ms: of(|row| row.got.p50_ms),
        p99_ms: of(|row| row.got.p99_ms),
        errors: rows.iter().map(|row| row.got.errors).sum(),
    };
    let congestions = rows.iter().map(|row| row.congestions).sum();
    let mut predicted = rows.iter().filter_map(|row| row.predicted);
    let (count, sum) = predicted.clone().fold((0.0, 0.0), |(count, sum), (rate, _)| (count + 1.0, sum + rate));
    let predicted = predicted.next_back().map(|(_, bottleneck)| (sum / count, bottleneck));
    let last = rows.last().expect("at least one turn");
    Row { got, congestions, predicted, link_used: of(|row| row.link_used), ..last.clone() }
}

/// The full grid of each scene, and the standard settings.
///
/// # Errors
/// In words: what did not work.
pub fn grid(setup: &Setup, tell: &mut impl FnMut(Row)) -> Result<(), String> {
    let mut experiment = Experiment::start(setup, false)?;
    for scene in &setup.scenes {
        points(&mut experiment, scene, tell)?;
        if setup.also.contains(&Also::Tuning) {
            tell(experiment.tuned(scene, "tuning")?);
        }
    }
    Ok(())
}

/// The best of a scene's grid.
fn points(
    experiment: &mut Experiment<'_>,
    scene: &Scene,
    tell: &mut impl FnMut(Row),
) -> Result<BatchAndWindow, String> {
    let setup = experiment.setup;
    let mut best: Option<(f64, BatchAndWindow)> = None;
    for (&window, &batch_bytes_max) in setup.windows.iter().flat_map(|w| setup.batches.iter().map(move |b| (w, b))) {
        let values = BatchAndWindow { batch_bytes_max, window, window_bytes_max: GRID_WINDOW_BYTES };
        let row = experiment.fixed(scene, "grid", values)?;
        if best.is_none_or(|(most, _)| row.got.throughput > most) {
            best = Some((row.got.throughput, values));
        }
        tell(row);
    }
    if setup.also.contains(&Also::Standard) {
        tell(experiment.fixed(scene, "standard", STANDARD)?);
    }
    best.map(|(_, values)| values).ok_or_else(|| "a grid without a point".into())
}

/// The grid; then tuning from a cold start in each scene, after the change from each scene to the next, and with
/// one client.
///
/// # Errors
/// In words: what did not work.
pub fn tuning(setup: &Setup, tell: &mut impl FnMut(Row)) -> Result<(), String> {
    let mut best = Vec::new();
    let mut experiment = Experiment::start(setup, false)?;
    for scene in &setup.scenes {
        best.push(points(&mut experiment, scene, tell)?);
    }
    drop(experiment);
    for (scene, best) in setup.scenes.iter().zip(&best) {
        Experiment::start(setup, true)?.against(scene, "cold", *best)?.into_iter().for_each(&mut *tell);
    }
    let mut experiment = Experiment::start(setup, true)?;
    if setup.scenes.len() > 1 {
        // The way back to the first scene is a change too.
        let first = setup.scenes.iter().zip(&best).take(1);
        for (number, (scene, best)) in setup.scenes.iter().zip(&best).chain(first).enumerate() {
            if number == 0 {
                experiment.run(scene, Load::saturating(scene.size), setup.settle, Links::Quick)?;
                continue;
            }
            experiment.against(scene, "changed", *best)?.into_iter().for_each(&mut *tell);
        }
    }
    for (number, scene) in setup.scenes.iter().enumerate() {
        let known = setup.scenes[..number].iter().any(|before| before.name == scene.name);
        if !known {
            experiment.light(scene)?.into_iter().for_each(&mut *tell);
        }
    }
    Ok(())
}

/// A cluster over links of this shape, until `time` has passed or Ctrl-C.
///
/// # Errors
/// In words: what did not work.
pub fn serve(setup: &Setup, scene: &Scene, time: Option<Duration>) -> Result<LinkCounters, String> {
    let mut cluster = Cluster::start(&setup.program, &setup.data, scene.shape, &[])?;
    println!("ready: export COPPICE_ENDPOINTS={}", cluster.endpoints().join(","));
    let begun = Instant::now();
    while !setup.interrupted.load(Ordering::Relaxed) && time.is_none_or(|time| begun.elapsed() < time) {
        std::thread::sleep(Duration::from_millis(50));
        cluster.all_run()?;
    }
    Ok(cluster.carried())
}
