//! Looks at the runs from outside. What a run can count it bounds itself (`world`): steps, events, what is ordered. A
//! step that never ends, or takes all memory, counts nothing: another thread looks at the clock and at the process, and
//! ends that with the seed's number, before it takes the machine.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);

/// A look that is later than this finds that the program stood still: it was stopped, or its machine slept.
const LATE: Duration = Duration::from_secs(2);

/// What runs, in order of the beginnings: seeds.
static RUNNING: Mutex<Vec<Run>> = Mutex::new(Vec::new());

#[derive(Clone, Copy, Debug)]
struct Run {
    /// Tells it from another run of the same seed.
    number: u64,
    seed: u64,
    since: Instant,
}

/// A seed that runs, as long as this lives.
#[derive(Debug)]
pub struct Running(u64);

impl Running {
    /// A seed begins.
    pub fn begin(seed: u64) -> Running {
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let number = RUNS.fetch_add(1, Ordering::Relaxed);
        running(|runs| runs.push(Run { number, seed, since: Instant::now() }));
        Running(number)
    }
}

/// Takes the time off that the program stood still since the look before.
fn stood_still(runs: &mut [Run], last: Instant, now: Instant) {
    let between = now.saturating_duration_since(last);
    if between > LATE {
        runs.iter_mut().for_each(|run| run.since = now.min(run.since + between));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        running(|runs| {
            if let Some(at) = runs.iter().position(|run| run.number == self.0) {
                runs.remove(at);
            }
        });
    }
}

fn running<T>(what: impl FnOnce(&mut Vec<Run>) -> T) -> T {
    what(&mut RUNNING.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}

/// What the program may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Real time of one run at most.
    pub seed: Duration,
    /// Memory of the process at most, in MiB.
    pub memory_mib: u64,
}

impl Limits {
    /// Watches until the process ends; whoever breaks a limit ends it, with status 1.
    pub fn watch(self) {
        std::thread::spawn(move || {
            let mut last = Instant::now();
            loop {
                std::thread::sleep(LOOK);
                let (now, memory_mib) = (Instant::now(), memory_mib());
                // Held until the end: no run that ends meanwhile says that all is well.
                running(|runs| {
                    stood_still(runs, last, now);
                    if let Some(what) = self.broken(runs, now, memory_mib) {
                        println!("{what}");
                        std::process::exit(1);
                    }
                });
                last = now;
            }
        });
    }

    /// What to say if a limit is broken.
    fn broken(&self, runs: &[Run], now: Instant, memory_mib: Option<u64>) -> Option<String> {
        let took = |run: &Run| now.saturating_duration_since(run.since);
        let longest = runs.iter().max_by_key(|run| took(run))?;
        let seed = longest.seed;
        let what = match memory_mib {
            _ if took(longest) > self.seed => {
                format!("time: it has not ended after {} s (--seed-seconds)", took(longest).as_secs())
            }
            Some(mib) if mib > self.memory_mib => {
                let limit = self.memory_mib;
                format!("memory: the program has {mib} MiB, more than {limit} (--memory-mib), while this ran longest")
            }
            _ => return None,
        };
        let mut words = format!("seed {seed} FAILED: {what}\n  alone: coppice-sim sweep --from {seed} --count 1");
        let others = runs.iter().filter(|run| run.seed != seed);
        others.for_each(|run| _ = write!(words, "\n  beside it: seed {} for {} s", run.seed, took(run).as_secs()));
        words += "\n  no seed after these was run";
        Some(words)
    }
}

/// Memory of this process, in MiB; `None` where nothing tells.
fn memory_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? >> 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(runs: &[(u64, u64)], memory_mib: Option<u64>) -> Option<String> {
        let now = Instant::now() + Duration::from_secs(1_000);
        let run = |&(seed, seconds): &(u64, u64)| Run { number: seed, seed, since: now - Duration::from_secs(seconds) };
        let runs: Vec<Run> = runs.iter().map(run).collect();
        Limits { seed: Duration::from_secs(300), memory_mib: 4_096 }.broken(&runs, now, memory_mib)
    }

    #[test]
    fn a_seed_that_does_not_end_fails_by_its_name() {
        assert_eq!(said(&[(7, 299), (8, 1)], Some(100)), None);
        let words = said(&[(7, 301), (8, 1)], None).expect("too long");
        assert!(words.starts_with("seed 7 FAILED: time: it has not ended after 301 s"), "{words}");
        assert!(words.contains("beside it: seed 8 for 1 s"), "{words}");
    }

    #[test]
    fn a_program_that_was_stopped_is_not_slow() {
        let begun = Instant::now();
        let mut runs = [Run { number: 1, seed: 7, since: begun }];
        let seconds = Duration::from_secs;
        stood_still(&mut runs, begun + seconds(10), begun + seconds(11));
        assert_eq!(runs[0].since, begun);
        stood_still(&mut runs, begun + seconds(11), begun + seconds(500));
        assert_eq!(runs[0].since, begun + seconds(489), "11 s of work");
    }

    #[test]
    fn a_seed_that_takes_the_memory_fails_by_its_name() {
        assert_eq!(said(&[], Some(5_000)), None);
        assert_eq!(said(&[(7, 2), (8, 9)], Some(4_096)), None);
        let words = said(&[(7, 2), (8, 9)], Some(4_097)).expect("too much");
        assert!(words.starts_with("seed 8 FAILED: memory: the program has 4097 MiB"), "{words}");
        assert!(words.contains("coppice-sim sweep --from 8 --count 1"), "{words}");
    }
}
