//! What a fault costs: the pulse's answers, and the silences between them. Pure: time is an argument.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Latencies older than this do not count for the live line. Five calm beats.
const RECENT: Duration = Duration::from_secs(10);

/// What the pulse does in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A compare-and-swap that cannot succeed: logged like any write, changes nothing.
    Write,
    /// A get.
    Read,
}

/// One partition, one kind.
#[derive(Debug, Clone, Default)]
struct Track {
    /// When the last answer came.
    answered: Option<Duration>,
    fault: Option<Fault>,
}

impl Track {
    /// Notes an answer. Silence begins with the answer before it, or with the fault if that was first.
    fn answer(&mut self, asked: Duration, given: Duration) {
        let since = self.answered.or(self.fault.map(|fault| fault.at)).unwrap_or(given);
        self.answered = Some(given);
        if let Some(fault) = &mut self.fault
            && !fault.over
        {
            fault.longest_silence = fault.longest_silence.max(given.saturating_sub(since));
            fault.longest_wait = fault.longest_wait.max(given.saturating_sub(asked));
            // An answer to an older question may have been under way when the fault struck; it proves nothing.
            fault.over = asked >= fault.at;
        }
    }
}

/// What one kind of operation in one partition saw of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fault {
    at: Duration,
    longest_silence: Duration,
    longest_wait: Duration,
    over: bool,
}

impl Fault {
    fn strikes(at: Duration) -> Fault {
        Fault { at, longest_silence: Duration::ZERO, longest_wait: Duration::ZERO, over: false }
    }
}

/// Everything that the pulse has seen.
#[derive(Debug, Default)]
pub struct Measure {
    tracks: BTreeMap<(u32, Kind), Track>,
    /// Ranges over several partitions, asked only while a fault is measured.
    queries: Track,
    /// When the last fault struck.
    fault: Option<Duration>,
    /// When each recent answer came, and how long it took.
    recent: VecDeque<(Duration, Duration)>,
}

/// The rate and latency of the last seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recent {
    /// Answers per second.
    pub per_second: u64,
    /// Half of them were faster.
    pub p50: Duration,
    /// All but a hundredth were faster.
    pub p99: Duration,
}

impl Measure {
    /// Notes an answer: asked and given at these times.
    pub fn answer(&mut self, partition: u32, kind: Kind, asked: Duration, given: Duration) {
        self.recent.push_back((given, given.saturating_sub(asked)));
        while self.recent.front().is_some_and(|(at, _)| *at + RECENT < given) {
            self.recent.pop_front();
        }
        // A fault may strike before the first answer.
        let fault = self.fault.map(Fault::strikes);
        let track = self.tracks.entry((partition, kind)).or_insert(Track { answered: None, fault });
        track.answer(asked, given);
    }

    /// A fault strikes now: silences are measured from here on, in every partition.
    pub fn fault(&mut self, now: Duration) {
        self.fault = Some(now);
        // Nobody asked before.
        self.queries = Track { answered: None, fault: Some(Fault::strikes(now)) };
        self.tracks.values_mut().for_each(|track| track.fault = Some(Fault::strikes(now)));
    }

    /// True when all of `partitions` have answered, writes and reads, questions asked after the fault.
    #[must_use]
    pub fn is_over(&self, partitions: &[u32]) -> bool {
        self.faults(partitions, None).all(|fault| fault.is_some_and(|fault| fault.over))
    }

    /// True when all of `partitions` have answered since then, writes and reads.
    #[must_use]
    pub fn answered_since(&self, partitions: &[u32], since: Duration) -> bool {
        let is_recent = |key| self.tracks.get(&key).and_then(|track| track.answered).is_some_and(|at| at >= since);
        partitions.iter().all(|partition| is_recent((*partition, Kind::Write)) && is_recent((*partition, Kind::Read)))
    }

    /// How long no query was answered behind the fault; none: none is.
    #[must_use]
    pub fn query_silence(&self) -> Option<Duration> {
        self.queries.fault.filter(|fault| fault.over).map(|fault| fault.longest_silence)
    }

    /// Notes the answer to a query.
    pub fn query(&mut self, asked: Duration, given: Duration) {
        self.queries.answer(asked, given);
    }

    /// The longest silence around the fault, over all of `partitions`; none: some still say nothing.
    #[must_use]
    pub fn silence(&self, partitions: &[u32], kind: Kind) -> Option<Duration> {
        let silences =
            self.faults(partitions, Some(kind)).map(|fault| fault.filter(|f| f.over).map(|f| f.longest_silence));
        silences.collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    /// The longest that a single question waited around the fault, over all of `partitions`.
    #[must_use]
    pub fn wait(&self, partitions: &[u32], kind: Kind) -> Option<Duration> {
        self.faults(partitions, Some(kind))
            .map(|fault| fault.filter(|f| f.over).map(|f| f.longest_wait))
            .max()
            .flatten()
    }

    /// Rate and latency of the last seconds; none: nothing was answered.
    #[must_use]
    pub fn recent(&self, now: Duration) -> Option<Recent> {
        let from = now.saturating_sub(RECENT);
        let mut waits: Vec<Duration> =
            self.recent.iter().filter(|(at, _)| *at >= from).map(|(_, wait)| *wait).collect();
        waits.sort_unstable();
        let at = |share: usize| waits.get((waits.len() * share / 100).min(waits.len().checked_sub(1)?)).copied();
        let first = self.recent.iter().find(|(at, _)| *at >= from)?.0;
        let span = now.saturating_sub(first).max(Duration::from_millis(200));
        let per_second = (waits.len() as f64 / span.as_secs_f64()).round() as u64;
        Some(Recent { per_second, p50: at(50)?, p99: at(99)? })
    }

    fn faults<'a>(&'a self, partitions: &'a [u32], kind: Option<Kind>) -> impl Iterator<Item = Option<Fault>> + 'a {
        let kinds = [Kind::Write, Kind::Read].into_iter().filter(move |each| kind.is_none_or(|kind| kind == *each));
        kinds.flat_map(move |kind| {
            partitions.iter().map(move |partition| self.tracks.get(&(*partition, kind)).and_then(|track| track.fault))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn beating() -> Measure {
        let mut measure = Measure::default();
        for at in (0..1000).step_by(40) {
            for partition in [1, 2] {
                for kind in [Kind::Write, Kind::Read] {
                    measure.answer(partition, kind, ms(at), ms(at + 2));
                }
            }
        }
        measure
    }

    #[test]
    fn a_fault_costs_the_silence_between_two_answers() {
        let mut measure = beating();
        measure.fault(ms(1000));
        assert!(!measure.is_over(&[1]));
        assert_eq!(measure.silence(&[1], Kind::Write), None);
        measure.answer(1, Kind::Write, ms(1005), ms(1300));
        measure.answer(1, Kind::Read, ms(1010), ms(1290));
        // The last answers before the fault came at 962.
        assert!(measure.is_over(&[1]) && !measure.is_over(&[1, 2]));
        assert_eq!(measure.silence(&[1], Kind::Write), Some(ms(338)));
        assert_eq!(measure.silence(&[1], Kind::Read), Some(ms(328)));
        assert_eq!(measure.wait(&[1], Kind::Write), Some(ms(295)));
        assert_eq!(measure.silence(&[1, 2], Kind::Write), None);
    }

    /// A node that was killed in the first moments of a demo: the partitions were called silent for ever.
    #[test]
    fn a_fault_before_the_first_answer_ends_with_that_answer() {
        let mut measure = Measure::default();
        measure.fault(ms(50));
        assert!(!measure.is_over(&[1]));
        for kind in [Kind::Write, Kind::Read] {
            measure.answer(1, kind, ms(10), ms(60));
            measure.answer(1, kind, ms(61), ms(350));
        }
        assert!(measure.is_over(&[1]));
        assert_eq!(measure.silence(&[1], Kind::Write), Some(ms(290)));
        assert_eq!(measure.silence(&[1], Kind::Read), Some(ms(290)));
    }

    #[test]
    fn queries_are_silent_from_the_fault_on() {
        let mut measure = beating();
        measure.fault(ms(1000));
        assert_eq!(measure.query_silence(), None);
        measure.query(ms(1002), ms(1380));
        assert_eq!(measure.query_silence(), Some(ms(380)));
        assert_eq!(measure.recent(ms(1380)).map(|recent| recent.p99), Some(ms(2)), "the live line is of the others");
        measure.fault(ms(9000));
        assert_eq!(measure.query_silence(), None);
        measure.query(ms(9001), ms(9011));
        assert_eq!(measure.query_silence(), Some(ms(11)), "nobody asked in between");
    }

    #[test]
    fn an_answer_that_was_under_way_does_not_end_a_fault() {
        let mut measure = beating();
        measure.fault(ms(1000));
        measure.answer(1, Kind::Write, ms(999), ms(1001));
        measure.answer(1, Kind::Read, ms(999), ms(1001));
        assert!(!measure.is_over(&[1]));
        measure.answer(1, Kind::Write, ms(1002), ms(1400));
        measure.answer(1, Kind::Read, ms(1002), ms(1003));
        assert_eq!(measure.silence(&[1], Kind::Write), Some(ms(399)));
        assert_eq!(measure.silence(&[1], Kind::Read), Some(ms(39)));
    }

    #[test]
    fn the_live_line_shows_the_last_seconds_only() {
        let measure = beating();
        let recent = measure.recent(ms(1000)).expect("answers");
        assert_eq!((recent.per_second, recent.p50, recent.p99), (100, ms(2), ms(2)));
        assert_eq!(measure.recent(ms(60_000)), None);
    }
}
