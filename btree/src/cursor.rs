//! A walk over a range that rests between chunks and owns what it walks over: for parts that are streamed while the
//! tree moves on (reliability.md RD8).

use crate::key::{KeyRange, KeyRef};
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
    /// Hands pairs to `take` until it answers `false` (that pair counts as taken) or the range ends. O(log n + pairs).
    pub fn walk(&mut self, mut take: impl FnMut(KeyRef<'_>, &[u8]) -> bool) {
        if self.done {
            return;
        }
        #[cfg(feature = "mutants")]
        if let Some(live) = self.live.as_ref().and_then(|live| live.get()) {
            self.snapshot = live;
        }
        match self.direction {
            Direction::Forward => {
                for (key, value) in self.snapshot.range(&self.rest) {
                    if !take(key, value) {
                        // The next key in order is this one with a zero byte behind it.
                        self.rest.low = Key::from([&key, &[0][..]].concat());
                        return;
                    }
                }
            }
            Direction::Reverse => {
                for (key, value) in self.snapshot.range_reverse(&self.rest) {
                    if !take(key, value) {
                        self.rest.high = Some(key.to_key());
                        return;
                    }
                }
            }
        }
        self.done = true;
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
