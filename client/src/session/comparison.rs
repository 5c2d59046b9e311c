//! What the reader of a range holds of it (`RangeCall::stretches`): how much of that each server is told, and when. A
//! server is ahead of the reader by [`STRETCHES_MAX`] stretches at most: it hashes no faster than the reader goes on.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::wire::{Part, STRETCHES_MAX, Stretch};

/// Stretches are told to a server so many at a time, but the last ones.
const TOLD_MIN: usize = STRETCHES_MAX / 4;

/// How far the reader of a call has come with what it holds.
#[derive(Clone, Debug)]
pub(super) struct Comparison {
    pub stretches: Arc<[Stretch]>,
    /// Number of the first one of which the reader has not heard.
    heard: usize,
    /// Bytes of chunks that were given to the reader, and that it has consumed.
    given: u64,
    consumed: u64,
    /// Chunks that say something of stretches: bytes that were given with each, and the number of the next stretch.
    unheard: VecDeque<(u64, usize)>,
}

/// What one server was told of the stretches.
#[derive(Clone, Debug)]
pub(super) struct Told {
    /// Number of the next one, and behind the last one.
    next: usize,
    end: usize,
    /// Number of the first one without an answer.
    unanswered: usize,
    /// It knows that there are no more.
    whole: bool,
}

impl Comparison {
    pub fn new(stretches: Arc<[Stretch]>) -> Comparison {
        Comparison { stretches, heard: 0, given: 0, consumed: 0, unheard: VecDeque::new() }
    }

    /// A chunk is given to the reader. Behind it, the stretches below `next` are answered, if that says something.
    pub fn on_given(&mut self, bytes: usize, next: Option<usize>) {
        self.given += bytes as u64;
        self.unheard.extend(next.map(|next| (self.given, next)));
    }

    /// The reader has consumed so many bytes.
    pub fn on_consumed(&mut self, bytes: u32) {
        self.consumed += u64::from(bytes);
        while let Some((_, next)) = self.unheard.pop_front_if(|(given, _)| *given <= self.consumed) {
            self.heard = self.heard.max(next);
        }
    }

    /// Behind the stretches that servers may be told of.
    pub fn horizon(&self) -> usize {
        self.heard + STRETCHES_MAX
    }
}

impl Told {
    /// Nothing yet of the stretches that begin between `low` and `high`.
    pub fn new(stretches: &[Stretch], low: &[u8], high: Option<&[u8]>) -> Told {
        let before = |key: &[u8]| stretches.partition_point(|stretch| stretch.low[..] < *key);
        let next = before(low);
        Told { next, end: high.map_or(stretches.len(), before), unanswered: next, whole: false }
    }

    /// The stretches that it is told next, and whether none follow; none: nothing is due.
    pub fn more(&mut self, horizon: usize) -> Option<(Range<usize>, bool)> {
        let upto = self.end.min(horizon).max(self.next);
        if self.whole || upto < self.end && upto - self.next < TOLD_MIN {
            return None;
        }
        let more = self.next..upto;
        (self.next, self.whole) = (upto, upto == self.end);
        Some((more, self.whole))
    }

    /// A chunk has come: the number of the stretch behind those that it answers, if it says something of them.
    pub fn on_part(&mut self, part: &Part<'_>) -> Option<usize> {
        let next = match part.compared {
            _ if part.end.is_some() => self.end,
            Some(compared) => usize::try_from(compared.number).unwrap_or(usize::MAX).saturating_add(1).min(self.next),
            None => return None,
        };
        self.unanswered = self.unanswered.max(next);
        Some(next)
    }

    /// Whether the server has nothing to do before it is told more.
    pub fn is_done(&self) -> bool {
        !self.whole && self.unanswered == self.next
    }

    /// Number of the first stretch that it was not told of.
    pub fn next(&self) -> usize {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::PairsSum;

    #[test]
    fn a_server_is_ahead_of_the_reader_by_a_bounded_number_of_stretches() {
        let stretch = |n: u8| Stretch {
            low: [n][..].into(),
            high: Some([n + 1][..].into()),
            sum: PairsSum { pairs: 1, bytes: 1, hash: [n; 32] },
        };
        let stretches: Vec<Stretch> = (0..100).map(stretch).collect();
        let mut comparison = Comparison::new(stretches.into());
        let mut told = Told::new(&comparison.stretches, &[10], Some(&[60]));
        assert!(told.is_done());
        assert_eq!(told.more(comparison.horizon()), Some((10..32, false)));
        assert!(!told.is_done() && told.more(comparison.horizon()).is_none());
        // What was given and not consumed lets it wait.
        comparison.on_given(100, Some(14));
        comparison.on_given(100, None);
        comparison.on_given(100, Some(20));
        comparison.on_consumed(100);
        assert!(told.more(comparison.horizon()).is_some_and(|(more, _)| more == (32..46)));
        comparison.on_consumed(199);
        assert!(told.more(comparison.horizon()).is_none());
        // Few more are no frame of their own, but the last ones.
        comparison.on_consumed(1);
        assert_eq!((comparison.horizon(), told.more(comparison.horizon())), (52, None));
        comparison.on_given(1, Some(40));
        comparison.on_consumed(1);
        assert_eq!((told.more(comparison.horizon()), told.is_done()), (Some((46..60, true)), false));
        assert_eq!(told.more(comparison.horizon()), None);
    }
}
