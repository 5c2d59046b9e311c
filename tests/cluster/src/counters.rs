//! Numbers that clients count up with INCR. An answer tells which number it made, so a count is a cas from the number
//! before; of one without an answer that is known only at the end, from the numbers that nobody was given.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};

use coppice_check::event::{Call, Output, Status, Text};
use coppice_check::record::{Answer, Recorder};

use super::space::Space;

/// The first number of a counter is this times its place, from 1: all numbers are unique (hazards.md 2, E1).
const APART: i64 = 1_000_000_000;

/// One INCR.
#[derive(Clone, Copy, Debug)]
pub struct Count {
    /// Who asked for it.
    pub client: u64,
    /// Of which counter.
    pub counter: usize,
    /// When, nanoseconds of the history.
    pub from: u64,
    /// When it was answered, and with which number; none: unknown.
    pub answer: Option<(u64, i64)>,
}

/// The counters of a run, one in each region.
#[derive(Debug)]
pub struct Counters {
    keys: Vec<String>,
    counts: Mutex<Vec<Count>>,
}

impl Counters {
    /// Nothing was counted yet.
    pub fn new(space: &Space) -> Counters {
        let keys = space.ranges().into_iter().map(|region| space.key(region.start) + "#").collect();
        Counters { keys, counts: Mutex::default() }
    }

    /// Their keys.
    pub fn keys(&self) -> &[String] {
        &self.keys
    }

    /// What each holds before anybody counts.
    pub fn start(&self) -> Vec<(String, String)> {
        let number = |at: usize| ((at as i64 + 1) * APART).to_string();
        self.keys.iter().enumerate().map(|(at, key)| (key.clone(), number(at))).collect()
    }

    /// Takes in one that is over, unless it certainly did nothing.
    pub fn add(&self, count: Count) {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).push(count);
    }

    /// Writes all down. `last`: what each counter holds after the last read of a client. The words: what is wrong.
    ///
    /// A number that nobody was given belongs to a count without an answer. Those are ended by nothing, so the earliest
    /// of them fit if any do, in their order.
    ///
    /// # Errors
    /// The history cannot be written.
    pub fn settle(&self, recorder: &Recorder, last: &[i64]) -> io::Result<Vec<String>> {
        let mut counts = std::mem::take(&mut *self.counts.lock().unwrap_or_else(PoisonError::into_inner));
        counts.sort_by_key(|count| count.from);
        let mut wrong = Vec::new();
        for (at, (key, &last)) in self.keys.iter().zip(last).enumerate() {
            let mut numbers = BTreeMap::new();
            let own = || counts.iter().filter(|count| count.counter == at);
            for (count, (_, number)) in own().filter_map(|count| Some((count, count.answer?))) {
                if numbers.insert(number, *count).is_some() {
                    wrong.push(format!("two INCR of {key} were answered with {number}"));
                }
            }
            let unknown = own().filter(|count| count.answer.is_none());
            let first = (at as i64 + 1) * APART;
            let missing: Vec<i64> = (first + 1..=last).filter(|number| !numbers.contains_key(number)).collect();
            numbers.extend(missing.into_iter().zip(unknown.copied()));
            for (number, count) in numbers {
                let text = |number: i64| Text::Owned(number.to_string().into_bytes());
                let old = text(number - 1);
                let call =
                    Call::Cas { key: Text::Owned(key.clone().into_bytes()), old: old.clone(), value: text(number) };
                let output = Output::Cas(true, Some(old));
                let answer = Answer { status: Status::Ok, output, positions: Vec::new(), ticket: None };
                recorder.late(count.client, call, count.from, count.answer.map(|(at, _)| (at, answer)))?;
            }
        }
        Ok(wrong)
    }
}

#[cfg(test)]
mod tests {
    use coppice_check::event::Head;
    use coppice_check::history::History;
    use coppice_check::search::{Limits, check};
    use coppice_check::verdict::Verdict;

    use super::*;

    /// Counts of the first counter: when each was asked for, and the number answered; the second is never counted.
    /// What is said of them, and what the search says.
    fn judged(name: &str, counts: &[(u64, Option<i64>)], last: i64) -> (Vec<String>, Verdict) {
        let file = std::env::temp_dir().join(format!("coppice-counters-{name}-{}", std::process::id()));
        let counters = Counters::new(&Space::new("", 8, 2));
        let text = |text: &String| Text::Owned(text.clone().into_bytes());
        let state = counters.start().iter().map(|(key, value)| (text(key), text(value))).collect();
        let recorder = Recorder::create(&file, Head { state, ..Head::default() }).expect("a file");
        for &(from, number) in counts {
            counters.add(Count {
                client: 1,
                counter: 0,
                from,
                answer: number.map(|number| (from + 10, APART + number)),
            });
        }
        let wrong = counters.settle(&recorder, &[APART + last, 2 * APART]).expect("it is written");
        recorder.finish().expect("it is written");
        let history = History::load(&[file.display().to_string()]).expect("a history");
        _ = std::fs::remove_file(&file);
        (wrong, check(&history, None, Limits::default()))
    }

    #[test]
    fn numbers_that_nobody_was_given_belong_to_counts_without_an_answer() {
        let (wrong, verdict) = judged("right", &[(0, Some(1)), (5, None), (20, Some(3)), (30, None)], 3);
        assert!(wrong.is_empty() && verdict.is_pass(), "{wrong:?} {verdict:?}");
        // It was asked for after the number behind its own was given.
        assert!(judged("late", &[(0, Some(1)), (20, Some(3)), (40, None)], 3).1.is_fail());
        // One was done twice.
        assert!(judged("twice", &[(0, Some(1)), (20, Some(3))], 3).1.is_fail());
        // A number goes back.
        assert!(judged("back", &[(0, Some(2)), (20, Some(1))], 2).1.is_fail());
        assert_eq!(judged("same", &[(0, Some(1)), (5, Some(1))], 1).0.len(), 1);
    }
}
