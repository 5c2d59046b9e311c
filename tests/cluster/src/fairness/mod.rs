//! `coppice-check fairness`: what one hostile client costs the others. Beside each kind of hostile client, well-behaved
//! clients ask a real cluster for so much a second; their p99 is held against the p99 that they have alone, and the
//! memory of the nodes against `memory.limit`.
//!
//! Hostile clients speak the wire protocol themselves: no library holds them back. What each sends is bounded in count
//! and time, so that a machine which holds both sides is not measured against itself.

mod guests;
mod hostile;
mod steps;
mod target;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::PossibleValuesParser;
use coppice_testkit::random::Random;
use coppice_testkit::say;

use self::guests::GuestFigures;
use self::hostile::{KINDS, Kind};
use self::steps::{STEP_MAX_MS, Steps};
use self::target::{Target, Victim};

/// The p99 beside a hostile client may be so many times that alone.
const RATIO_MAX: f64 = 2.0;

/// `memory.limit` of each node, MiB: little enough for a flood to reach, enough for what is stored.
const MEMORY_LIMIT_MIB: u64 = 512;

/// More steps that take too long than one in so many are no accident.
const STEPS_PER_ACCIDENT: u64 = 10_000;

/// What one round came to.
struct Round {
    kind: &'static Kind,
    /// Without and with the hostile client, in turn.
    turns: Vec<(GuestFigures, GuestFigures)>,
    /// Those of the workers of all nodes, without the hostile client and with it.
    steps: (Steps, Steps),
    /// The most that a node held, bytes.
    memory: u64,
    /// A node that ended.
    fallen: Option<String>,
    /// What the hostile client did, in its own words.
    did: String,
}

/// `fairness`
#[derive(Clone, Debug, Args)]
pub struct Arguments {
    /// Seconds that each hostile client goes on, over all turns, and as many without it.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// With and without it in so many turns: the median of their ratios counts.
    #[arg(long, default_value_t = 3)]
    turns: u32,
    /// Well-behaved requests per second.
    #[arg(long, default_value_t = 1_000)]
    rate: u64,
    /// Only these kinds [default: all]
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(hostile::names()))]
    kind: Vec<String>,
    /// Draws sizes and counts [default: one from the clock]
    #[arg(long)]
    seed: Option<u64>,
    /// A busy machine: the ratio is printed, not judged.
    #[arg(long)]
    short: bool,
    /// The program `coppice` [default: the server that was built with this one]
    #[arg(long)]
    program: Option<PathBuf>,
}

impl Arguments {
    /// The form that `coppice-check security` runs.
    #[must_use]
    pub fn short() -> Arguments {
        Arguments { seconds: 1, turns: 1, rate: 200, kind: Vec::new(), seed: None, short: true, program: None }
    }
}

/// Runs it and prints the table; how many kinds failed.
///
/// # Errors
/// In words: there is no cluster to be had.
pub fn run(arguments: &Arguments) -> Result<usize, String> {
    let clock =
        || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |at| at.as_nanos() as u64);
    let seed = arguments.seed.unwrap_or_else(clock);
    say!(
        "seed {seed}, {} requests/s, {} s per kind, memory.limit {MEMORY_LIMIT_MIB} MiB",
        arguments.rate,
        arguments.seconds
    );
    let wanted = |kind: &&Kind| arguments.kind.is_empty() || arguments.kind.iter().any(|name| name == kind.name);
    let mut failed = 0;
    say!(
        "{:<20} {:>9} {:>9} {:>6} {:>8} {:>16} {:>16}  {}",
        "hostile client",
        "p99 alone",
        "beside",
        "ratio",
        "memory",
        "step (processor)",
        "> 10 ms, alone",
        "verdict"
    );
    for kind in KINDS.iter().filter(wanted) {
        // A cluster of its own, on fresh ports: what one leaves behind is not counted for the next.
        let mut random = Random::of(seed, kind.name.bytes().map(u64::from).sum());
        let round = one(arguments, kind, &mut random).map_err(|error| format!("{}: {error}", kind.name))?;
        failed += usize::from(round.print(arguments.short));
    }
    Ok(failed)
}

fn one(arguments: &Arguments, kind: &'static Kind, random: &mut Random) -> Result<Round, String> {
    let own = || std::env::current_exe().map_err(|error| error.to_string());
    let program = arguments.program.clone().map_or_else(own, Ok)?;
    let mut target = Target::start(program, MEMORY_LIMIT_MIB)?;
    target.fill(random)?;
    let turns = arguments.turns.max(1);
    let length = Duration::from_secs(arguments.seconds) / turns;
    // The first requests open connections and sessions.
    guests::ask(&target.endpoints(), arguments.rate, Duration::from_millis(500))?;
    let pids = target.pids();
    let mut victim = target.victim(random)?;
    let mut round =
        Round { kind, turns: Vec::new(), steps: Default::default(), memory: 0, fallen: None, did: String::new() };
    for _ in 0..turns {
        let before = target.steps()?;
        let alone = guests::ask(&target.endpoints(), arguments.rate, length)?;
        let between = target.steps()?;
        victim = target.victim(random)?;
        let (beside, did) = beside(kind, &victim, || guests::ask(&target.endpoints(), arguments.rate, length));
        round.memory = round.memory.max(target::memory(&pids));
        round.fallen = target.fallen();
        round.did = did;
        round.turns.push((alone, beside?));
        if round.fallen.is_some() {
            return Ok(round);
        }
        round.steps.0.join(&between.since(&before));
        round.steps.1.join(&target.steps()?.since(&between));
    }
    if kind.restarts {
        // What it left behind is read again.
        target.restart(victim.leader)?;
        let (alone, _) = round.turns[0].clone();
        round
            .turns
            .push((alone.clone(), GuestFigures { p99: alone.p99, ..guests::ask(&target.endpoints(), 100, length)? }));
        round.memory = round.memory.max(target::memory(&pids));
        round.fallen = target.fallen();
    }
    Ok(round)
}

/// What `asks` comes to beside the hostile client, and what that did.
fn beside<T>(kind: &Kind, victim: &Victim, asks: impl FnOnce() -> T) -> (T, String) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let hostile = scope.spawn(|| (kind.act)(victim, &stop));
        // It has begun by then.
        std::thread::sleep(Duration::from_millis(300));
        let came = asks();
        stop.store(true, Ordering::Relaxed);
        (came, hostile.join().unwrap_or_else(|_| "it panicked".to_owned()))
    })
}

impl Round {
    /// Why it failed, whatever the machine is busy with; or because of the ratio or of long steps.
    fn verdict(&self, short: bool) -> Result<&'static str, String> {
        if let Some(fallen) = &self.fallen {
            return Err(fallen.clone());
        }
        if let Some((failed, asked, error)) = self.failed() {
            return Err(format!("{failed} of {asked} requests failed: {error}"));
        }
        if self.memory > MEMORY_LIMIT_MIB << 20 {
            return Err(format!("a node took {} MiB", self.memory >> 20));
        }
        let (alone, beside) = (&self.steps.0.worked, &self.steps.1.worked);
        let usual = (beside.count() / STEPS_PER_ACCIDENT).max(2 * alone.above());
        match (self.ratio() <= RATIO_MAX, beside.above() <= usual, short) {
            (true, true, _) => Ok("ok"),
            (_, _, true) => Ok("ok (slower)"),
            (false, ..) => Err(format!("their p99 is more than {RATIO_MAX} times that alone")),
            (_, false, _) => Err(format!("{} steps of a worker took more than {STEP_MAX_MS} ms", beside.above())),
        }
    }

    /// How many requests failed, of how many, and why the first one did.
    fn failed(&self) -> Option<(u64, u64, &str)> {
        let all = || self.turns.iter().map(|(_, beside)| beside);
        let error = all().find_map(|served| served.error.as_deref())?;
        Some((all().map(|served| served.failed).sum(), all().map(|served| served.asked).sum(), error))
    }

    /// The median: something else may have had the machine for one of the turns.
    fn ratio(&self) -> f64 {
        let each = |(alone, beside): &(GuestFigures, GuestFigures)| {
            beside.p99.as_secs_f64() / alone.p99.as_secs_f64().max(1e-6)
        };
        median(self.turns.iter().map(each).collect())
    }

    /// Prints its line; `true` if it failed.
    fn print(&self, short: bool) -> bool {
        let p99 = |of: fn(&(GuestFigures, GuestFigures)) -> &GuestFigures| {
            format!("{:.1} ms", median(self.turns.iter().map(|turn| of(turn).p99.as_secs_f64() * 1e3).collect()))
        };
        let verdict = self.verdict(short);
        let words = match &verdict {
            Ok(word) => (*word).to_owned(),
            Err(why) => format!("FAILED: {why}"),
        };
        let (alone, beside) = (&self.steps.0, &self.steps.1);
        say!(
            "{:<20} {:>9} {:>9} {:>6.2} {:>8} {:>16} {:>16}  {words}; {}",
            self.kind.name,
            p99(|turn| &turn.0),
            p99(|turn| &turn.1),
            self.ratio(),
            format!("{} MiB", self.memory >> 20),
            format!("{:.0} ({:.0}) ms", beside.took.longest_ms(), beside.worked.longest_ms()),
            format!("{}/{}, {}", beside.worked.above(), beside.worked.count(), alone.worked.above()),
            self.did
        );
        verdict.is_err()
    }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(0.0)
}

/// Whether the time of a hostile client is over.
fn is_over(stop: &AtomicBool, begun: Instant) -> bool {
    stop.load(Ordering::Relaxed) || begun.elapsed() > Duration::from_secs(120)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(beside_ms: u64, failed: u64, memory_mib: u64) -> Round {
        let error = (failed > 0).then(|| "busy".to_owned());
        let alone = GuestFigures { asked: 10, failed: 0, error: None, p99: Duration::from_millis(10) };
        let beside = GuestFigures { asked: 10, failed, error, p99: Duration::from_millis(beside_ms) };
        Round {
            kind: &KINDS[0],
            turns: vec![(alone, beside)],
            steps: Default::default(),
            memory: memory_mib << 20,
            fallen: None,
            did: String::new(),
        }
    }

    #[test]
    fn failures_memory_and_falls_count_always_and_the_ratio_on_an_idle_machine() {
        assert_eq!(round(20, 0, 100).verdict(false), Ok("ok"));
        assert!(round(21, 0, 100).verdict(false).is_err());
        assert_eq!(round(21, 0, 100).verdict(true), Ok("ok (slower)"));
        assert!(round(5, 1, 100).verdict(true).is_err());
        assert!(round(5, 0, MEMORY_LIMIT_MIB + 1).verdict(true).is_err());
        let fallen = Round { fallen: Some("n1 ended by itself".into()), ..round(5, 0, 1) };
        assert!(fallen.verdict(true).is_err());
    }

    #[test]
    fn one_turn_in_which_others_had_the_machine_decides_nothing() {
        let mut round = round(90, 0, 1);
        (0..2).for_each(|_| round.turns.push((round.turns[0].0.clone(), round.turns[0].0.clone())));
        assert_eq!((round.ratio(), round.verdict(false)), (1.0, Ok("ok")));
    }
}
