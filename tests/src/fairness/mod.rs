//! `coppice-check fairness`: what one hostile client costs the others. Beside each kind of hostile client, well-behaved
//! clients ask a real cluster for so much a second; their p99 is held against the p99 that they have alone, and the
//! memory of the nodes against `memory.limit`.
//!
//! Hostile clients speak the wire protocol themselves: no library holds them back. What each sends is bounded in count
//! and time, so that a machine which holds both sides is not measured against itself.

mod guests;
mod hostile;
mod target;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::PossibleValuesParser;

use self::guests::Served;
use self::hostile::{KINDS, Kind};
use self::target::Target;
use crate::check::random::Random;

/// The p99 beside a hostile client may be so many times that alone.
const RATIO_MAX: f64 = 2.0;

/// `memory.limit` of each node, MiB: little enough for a flood to reach, enough for what is stored.
const MEMORY_LIMIT_MIB: u64 = 512;

/// What one round came to.
struct Round {
    kind: &'static Kind,
    alone: Served,
    beside: Served,
    /// The most that a node held while the hostile client was there, bytes.
    memory: u64,
    /// A node that ended.
    fallen: Option<String>,
    /// What the hostile client did, in its own words.
    did: String,
}

/// `fairness`
#[derive(Clone, Debug, Args)]
pub struct Arguments {
    /// How long each hostile client goes on, and as long without it.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
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
        Arguments { seconds: 3, rate: 200, kind: Vec::new(), seed: None, short: true, program: None }
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
        "{:<22} {:>12} {:>12} {:>6} {:>11}  {}",
        "hostile client",
        "p99 alone",
        "p99 beside",
        "ratio",
        "memory",
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
    let length = Duration::from_secs(arguments.seconds);
    // The first requests open connections and sessions.
    guests::ask(&target.endpoints(), arguments.rate, Duration::from_millis(500))?;
    let alone = guests::ask(&target.endpoints(), arguments.rate, length)?;
    let (stop, most) = (Arc::new(AtomicBool::new(false)), AtomicU64::new(0));
    let (victim, pids) = (target.victim(random)?, target.pids());
    let (beside, did) = std::thread::scope(|scope| {
        let hostile = scope.spawn(|| (kind.act)(&victim, &stop));
        let watcher = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                most.fetch_max(target::memory(&pids), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        // It has begun by then.
        std::thread::sleep(Duration::from_millis(300));
        let beside = guests::ask(&target.endpoints(), arguments.rate, length);
        stop.store(true, Ordering::Relaxed);
        let did = hostile.join().unwrap_or_else(|_| "it panicked".to_owned());
        // A watcher does not panic.
        let _ = watcher.join();
        (beside, did)
    });
    Ok(Round { kind, alone, beside: beside?, memory: most.into_inner(), fallen: target.fallen(), did })
}

impl Round {
    /// Why it failed, whatever the machine is busy with; or because of the ratio.
    fn verdict(&self, short: bool) -> Result<&'static str, String> {
        if let Some(fallen) = &self.fallen {
            return Err(fallen.clone());
        }
        if let Some(error) = &self.beside.error {
            return Err(format!("{} of {} requests failed: {error}", self.beside.failed, self.beside.asked));
        }
        if self.memory > MEMORY_LIMIT_MIB << 20 {
            return Err(format!("a node took {} MiB", self.memory >> 20));
        }
        match (self.ratio() <= RATIO_MAX, short) {
            (true, _) => Ok("ok"),
            (false, true) => Ok("ok (slower)"),
            (false, false) => Err(format!("their p99 is more than {RATIO_MAX} times that alone")),
        }
    }

    fn ratio(&self) -> f64 {
        self.beside.p99.as_secs_f64() / self.alone.p99.as_secs_f64().max(1e-6)
    }

    /// Prints its line; `true` if it failed.
    fn print(&self, short: bool) -> bool {
        let ms = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
        let verdict = self.verdict(short);
        let words = match &verdict {
            Ok(word) => (*word).to_owned(),
            Err(why) => format!("FAILED: {why}"),
        };
        let memory = format!("{} MiB", self.memory >> 20);
        let (name, alone, beside) = (self.kind.name, ms(self.alone.p99), ms(self.beside.p99));
        say!("{name:<22} {alone:>12} {beside:>12} {:>6.2} {memory:>11}  {words}; {}", self.ratio(), self.did);
        verdict.is_err()
    }
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
        let alone = Served { asked: 10, failed: 0, error: None, p99: Duration::from_millis(10) };
        Round {
            kind: &KINDS[0],
            beside: Served { asked: 10, failed, error, p99: Duration::from_millis(beside_ms) },
            alone,
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
}
