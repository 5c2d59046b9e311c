//! The batcher: packs submissions into batches (papers.md A4).
//!
//! A batch closes when one more submission would not fit, in bytes or in work, when nothing is in flight, or when it is
//! due; the delay starts with its first submission. Order is the order of submission (papers.md A5). Payload is not
//! touched. A batch that is due while the window is full stays open: it goes as soon as there is room, with what came
//! meanwhile.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use crate::batch::Commands;
use crate::ids::Time;
use crate::settings::Settings;

/// Why a batch was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CloseReason {
    Full,
    Idle,
    Due,
}

/// A batch ready to be proposed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClosedBatch {
    pub commands: Commands,
    pub submissions: u32,
    pub closed: CloseReason,
}

/// Submissions that are not proposed yet. At most `queue_submissions_max` and `queue_bytes_max`, or a single one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Batcher {
    /// Closed because they are full; they wait for the window.
    full: VecDeque<ClosedBatch>,
    /// The open batch.
    parts: Vec<Bytes>,
    open_bytes: usize,
    open_count: u32,
    open_work: u64,
    /// When the first submission of the open batch came.
    opened_at: Time,
    /// Of all submissions, closed and open.
    bytes: usize,
    submissions: u32,
}

impl Batcher {
    /// Takes a submission of `count` commands, which costs `work`; false if the queue is full.
    pub fn submit(&mut self, now: Time, bytes: Bytes, count: u32, work: u32, settings: &Settings) -> bool {
        let full = self.submissions as usize >= settings.queue_submissions_max
            || self.bytes + bytes.len() > settings.queue_bytes_max;
        if full && self.submissions > 0 {
            return false;
        }
        let much_work = self.open_work + u64::from(work) > settings.batch_work_max;
        if self.open_bytes + bytes.len() > settings.batch_bytes_max || much_work {
            self.close_full();
        }
        if self.parts.is_empty() {
            self.opened_at = now;
        }
        self.submissions += 1;
        self.bytes += bytes.len();
        self.open_bytes += bytes.len();
        self.open_count += count;
        self.open_work += u64::from(work);
        self.parts.push(bytes);
        if self.open_bytes >= settings.batch_bytes_max {
            self.close_full();
        }
        true
    }

    fn close_full(&mut self) {
        if let Some(ready) = self.close(CloseReason::Full) {
            self.full.push_back(ready);
        }
    }

    fn close(&mut self, closed: CloseReason) -> Option<ClosedBatch> {
        if self.parts.is_empty() {
            return None;
        }
        let submissions = self.parts.len() as u32;
        let commands = Commands::from_parts(self.open_count, &mut self.parts);
        self.open_bytes = 0;
        self.open_count = 0;
        self.open_work = 0;
        Some(ClosedBatch { commands, submissions, closed })
    }

    /// Size of the next batch that would be proposed, in bytes; `None` if nothing is ready. `idle`: nothing is in
    /// flight.
    pub fn next_bytes(&self, now: Time, idle: bool, settings: &Settings) -> Option<usize> {
        if let Some(ready) = self.full.front() {
            return Some(ready.commands.len_bytes());
        }
        let due = idle || self.due_at(settings).is_some_and(|due| due <= now);
        (due && !self.parts.is_empty()).then_some(self.open_bytes)
    }

    /// Takes the batch that `next_bytes` announced.
    pub fn take(&mut self, idle: bool) -> Option<ClosedBatch> {
        let ready = match self.full.pop_front() {
            Some(ready) => ready,
            None => self.close(if idle { CloseReason::Idle } else { CloseReason::Due })?,
        };
        self.submissions -= ready.submissions;
        self.bytes -= ready.commands.len_bytes();
        Some(ready)
    }

    /// When the open batch is due.
    pub fn due_at(&self, settings: &Settings) -> Option<Time> {
        let delay: Duration = settings.batch_delay_max;
        (!self.parts.is_empty()).then_some(self.opened_at + delay)
    }

    /// Submissions waiting.
    pub fn submissions(&self) -> u32 {
        self.submissions
    }

    /// Bytes waiting.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn assert_invariants(&self) {
        let full: usize = self.full.iter().map(|ready| ready.commands.len_bytes()).sum();
        assert_eq!(self.bytes, full + self.open_bytes);
        let full: u32 = self.full.iter().map(|ready| ready.submissions).sum();
        assert_eq!(self.submissions, full + self.parts.len() as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings { batch_bytes_max: 10, queue_bytes_max: 30, queue_submissions_max: 4, ..Settings::default() }
    }

    fn take_all(batcher: &mut Batcher, now: Time, idle: bool) -> Vec<(usize, CloseReason)> {
        let mut taken = Vec::new();
        while batcher.next_bytes(now, idle, &settings()).is_some() {
            let ready = batcher.take(idle).unwrap();
            taken.push((ready.commands.len_bytes(), ready.closed));
        }
        taken
    }

    fn submit(batcher: &mut Batcher, at_ms: u64, len: usize) -> bool {
        batcher.submit(Time::from_millis(at_ms), Bytes::from(vec![0; len]), 1, 4, &settings())
    }

    #[test]
    fn a_lone_command_goes_at_exactly_the_delay_and_only_opening_sets_the_timer() {
        // papers.md A4.
        let mut batcher = Batcher::default();
        assert!(submit(&mut batcher, 100, 3) && submit(&mut batcher, 104, 3));
        assert_eq!(batcher.due_at(&settings()), Some(Time::from_millis(105)));
        assert_eq!(take_all(&mut batcher, Time(Time::from_millis(105).0 - 1), false), []);
        assert_eq!(take_all(&mut batcher, Time::from_millis(105), false), [(6, CloseReason::Due)]);
        assert_eq!(batcher.due_at(&settings()), None);
    }

    #[test]
    fn full_batches_go_at_once_and_a_larger_command_goes_alone() {
        // papers.md A4.
        let mut batcher = Batcher::default();
        for len in [4, 4, 4, 12] {
            assert!(submit(&mut batcher, 0, len));
        }
        let closed = [(8, CloseReason::Full), (4, CloseReason::Full), (12, CloseReason::Full)];
        assert_eq!(take_all(&mut batcher, Time::ZERO, false), closed);
        assert_eq!((batcher.bytes(), batcher.submissions()), (0, 0));
    }

    /// Every replica executes a batch in one step: small submissions that cost much do not share one without bound.
    #[test]
    fn a_batch_holds_no_more_work_than_one_step_takes() {
        let settings = Settings { batch_bytes_max: 1_000, batch_work_max: 100, queue_submissions_max: 8, ..settings() };
        let mut batcher = Batcher::default();
        for work in [60, 40, 1, 99, 500, 7] {
            assert!(batcher.submit(Time::ZERO, Bytes::from_static(b"x"), 1, work, &settings));
        }
        let taken = std::iter::from_fn(|| batcher.take(true).map(|ready| ready.submissions));
        assert_eq!(taken.collect::<Vec<_>>(), [2, 2, 1, 1], "one that costs more than a step goes alone");
    }

    #[test]
    fn an_idle_window_takes_what_there_is() {
        let mut batcher = Batcher::default();
        assert!(submit(&mut batcher, 0, 1));
        assert_eq!(take_all(&mut batcher, Time::ZERO, true), [(1, CloseReason::Idle)]);
    }

    #[test]
    fn a_full_queue_refuses_by_bytes_and_by_count() {
        let mut batcher = Batcher::default();
        assert!(submit(&mut batcher, 0, 25) && !submit(&mut batcher, 0, 6));
        let mut batcher = Batcher::default();
        assert!((0..4).all(|_| submit(&mut batcher, 0, 1)) && !submit(&mut batcher, 0, 1));
        // A single submission is taken however large: it could never be sent otherwise.
        assert!(submit(&mut Batcher::default(), 0, 1_000));
    }
}
