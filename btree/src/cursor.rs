//! A walk over a range that rests between chunks and owns what it walks over: for parts that are streamed while the
//! tree moves on (hazards.md RD8).

use crate::key::KeyRange;
use crate::run::Run;
use crate::snapshot::Snapshot;
use crate::tree::Tree;
use crate::value::Key;

/// The way a cursor goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the lower end up.
    #[default]
    Forward,
    /// From the upper end down.
    Reverse,
}

/// A resting walk over a range of one snapshot. It can be sent to another thread.
#[derive(Clone)]
pub struct Cursor {
    snapshot: Snapshot,
    /// What is left of the range.
    rest: KeyRange,
    direction: Direction,
    done: bool,
    #[cfg(feature = "mutants")]
    live: Option<crate::mutants::Live>,
}

impl Tree {
    /// A cursor over the present state; later changes do not show. O(1).
    pub fn cursor(&self, range: KeyRange, direction: Direction) -> Cursor {
        #[cfg_attr(not(feature = "mutants"), expect(unused_mut))]
        let mut cursor = self.snapshot().into_cursor(range, direction);
        #[cfg(feature = "mutants")]
        if mutant!(range_no_snapshot) {
            cursor.live = Some(self.live.clone());
        }
        cursor
    }
}

impl Snapshot {
    /// A cursor over this state. O(1).
    pub fn into_cursor(self, range: KeyRange, direction: Direction) -> Cursor {
        Cursor {
            snapshot: self,
            rest: range,
            direction,
            done: false,
            #[cfg(feature = "mutants")]
            live: None,
        }
    }
}

impl std::fmt::Debug for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cursor").field("rest", self.rest()).finish_non_exhaustive()
    }
}

impl Cursor {
    /// Hands runs to `take`, which answers how many pairs it took from the run's beginning, in the direction of the
    /// walk. Fewer than there are: the walk rests before the next one. O(log n + leaves).
    pub fn walk(&mut self, mut take: impl FnMut(Run<'_>) -> usize) {
        if self.done {
            return;
        }
        #[cfg(feature = "mutants")]
        if let Some(live) = self.live.as_ref().and_then(|live| live.get()) {
            self.snapshot = live;
        }
        match self.direction {
            Direction::Forward => {
                for run in self.snapshot.runs(&self.rest) {
                    let taken = take(run);
                    if taken < run.len() {
                        self.rest.low = run.pair(taken).0.to_key();
                        return;
                    }
                }
            }
            Direction::Reverse => {
                for run in self.snapshot.runs_reverse(&self.rest) {
                    let taken = take(run);
                    if taken < run.len() {
                        let (next, _) = run.pair(run.len() - 1 - taken);
                        // The first key above it is this one with a zero byte behind it.
                        self.rest.high = Some(Key::from([&next, &[0][..]].concat()));
                        return;
                    }
                }
            }
        }
        self.done = true;
    }

    /// Cuts the rest of a walk from the lower end up at a key inside of it: this one ends before the key, and the one
    /// that is returned goes on there. O(1).
    ///
    /// # Panics
    /// If the walk goes down, or the key is not inside.
    #[must_use]
    pub fn split_off(&mut self, at: Key) -> Cursor {
        let inside = at > self.rest.low && self.rest.high.as_ref().is_none_or(|high| at < *high);
        assert!(inside && self.direction == Direction::Forward, "a walk is cut inside of what is left of it");
        let mut upper = self.clone();
        (self.rest.high, upper.rest.low) = (Some(at.clone()), at);
        upper
    }

    /// The way it goes.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Whether the range was walked to its end.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// What is left of the range.
    pub fn rest(&self) -> &KeyRange {
        &self.rest
    }

    /// What is being walked over.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }
}
