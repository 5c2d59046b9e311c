//! One client's ladder or token on real keys (`tests/check/src/marks.rs`), and when it moves it.

use std::ops::Range;

use coppice_client::Operation;

use coppice_check::marks::{Kind, Mark, Move, MoveResult};

/// Steps of a ladder.
const STEPS: usize = 4;

/// Places of a token.
const PLACES: usize = 2;

/// Moves in a row: a ladder up or down.
const MOVES: u32 = 4;

/// A mark that may no longer be moved leaves its keys behind: so many of one client at most, then it moves none.
const MARKS_MAX: u64 = 40;

/// What one client moves.
#[derive(Debug)]
pub struct MarkMover {
    client: u32,
    kind: Option<Kind>,
    begun: u64,
    now: Option<(Mark, Vec<String>)>,
    /// A move was drawn, and nothing told of it yet.
    waits: bool,
    /// Moves that follow at once.
    left: u32,
}

impl MarkMover {
    /// Marks of one kind; none: it moves nothing.
    pub fn new(client: u32, kind: Option<Kind>) -> MarkMover {
        MarkMover { client, kind, begun: 0, now: None, waits: false, left: 0 }
    }

    /// Whether there is something to move.
    pub fn may_begin(&self) -> bool {
        self.kind.is_some() && (self.now.is_some() || self.begun < MARKS_MAX)
    }

    /// Whether the next move follows the last answer at once.
    pub fn hurries(&self) -> bool {
        self.left > 0
    }

    /// The next move, which writes `value` if it writes. A new mark is laid at one `place` in each region from any one
    /// on.
    pub fn step(
        &mut self,
        regions: &[Range<usize>],
        mut place: impl FnMut(&Range<usize>) -> String,
        value: String,
    ) -> Operation {
        let kind = self.kind.unwrap_or(Kind::Ladder);
        let (mark, keys) = self.now.get_or_insert_with(|| {
            let id = u64::from(self.client) * MARKS_MAX + self.begun;
            self.begun += 1;
            let places = if kind == Kind::Ladder { STEPS } else { PLACES };
            let region = |at: usize| &regions[(id as usize + at) % regions.len()];
            let keys = (0..places).map(|at| place(region(at)) + &kind.suffix(id, at)).collect::<Vec<_>>();
            (Mark::new(kind, places), keys)
        });
        self.left = if self.left == 0 { MOVES - 1 } else { self.left - 1 };
        self.waits = true;
        match mark.next() {
            Move::Insert(at) => Operation::insert(&*keys[at], &*value),
            Move::Delete(at) => Operation::delete(&*keys[at]),
        }
    }

    /// What became of the write drawn last, if that was a move.
    pub fn told(&mut self, told: MoveResult) {
        let Some((mark, _)) = self.now.as_mut().filter(|_| self.waits) else { return };
        self.waits = false;
        if !mark.told(told) {
            (self.now, self.left) = (None, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_that_is_given_up_is_never_moved_again_and_marks_end() {
        let mut mover = MarkMover::new(3, Some(Kind::Single));
        let mut keys = std::collections::BTreeSet::new();
        let mut moves = 0;
        while mover.may_begin() {
            let step = mover.step(&[0..4, 4..8], |region| format!("{:05}", region.start), "3.1".to_owned());
            assert!(matches!(step, Operation::Insert { .. }) && keys.insert(step.key().to_vec()), "{step:?}");
            mover.told(MoveResult::Unknown);
            assert!(!mover.hurries());
            moves += 1;
        }
        assert_eq!(moves, MARKS_MAX);
        assert!(!MarkMover::new(3, None).may_begin());
    }
}
