//! Ladders and tokens: keys whose presence in any range says whether operations of one client, one after the other in
//! several partitions, were seen in that order (hazards.md 3.6, B5 and B6). One client works on one mark; this
//! tells it what to do next. Checks are in `beyond.rs`; how its keys are named, too: `..~L<id>.<step>`, `..~T<id>`,
//! `..~U<id>`.

/// Which rule a mark is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Inserted step by step, then deleted from its top: whoever sees a step sees all before it.
    Ladder,
    /// Deleted at one place, then inserted at another: never at two.
    Single,
    /// Inserted at another place, then deleted at the first: never at none.
    Lasting,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Ladder, Kind::Single, Kind::Lasting];

    /// What stands behind the last `~` of its keys, before the id.
    pub fn letter(self) -> char {
        match self {
            Kind::Ladder => 'L',
            Kind::Single => 'T',
            Kind::Lasting => 'U',
        }
    }

    /// The end of the name of its key at a place, from 0.
    pub fn suffix(self, id: u64, place: usize) -> String {
        match self {
            Kind::Ladder => format!("~L{id}.{}", place + 1),
            Kind::Single | Kind::Lasting => format!("~{}{id}", self.letter()),
        }
    }
}

/// What to do next, at a place from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// Insert the key.
    Insert(usize),
    /// Delete it.
    Delete(usize),
}

/// What was told of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveResult {
    /// Done, as it must be: the insert found nothing, the delete something.
    Done,
    /// Surely without effect, now and later.
    Refused,
    /// Anything else: perhaps it is done later.
    Unknown,
}

/// A mark, as the one client that moves it knows it.
#[derive(Clone, Debug)]
pub struct Mark {
    kind: Kind,
    places: usize,
    /// Steps of a ladder that are there.
    steps: usize,
    rising: bool,
    /// Where a token is.
    at: Option<usize>,
    /// Where it also is, or goes to.
    to: Option<usize>,
}

impl Mark {
    /// Nowhere yet; `places`: at least two.
    pub fn new(kind: Kind, places: usize) -> Mark {
        Mark { kind, places: places.max(2), steps: 0, rising: true, at: None, to: None }
    }

    /// The rule that it is made for.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What to do next, once the last move was answered.
    pub fn next(&self) -> Move {
        match (self.kind, self.at, self.to) {
            (Kind::Ladder, ..) if self.rising => Move::Insert(self.steps),
            (Kind::Ladder, ..) => Move::Delete(self.steps - 1),
            (_, None, to) => Move::Insert(to.unwrap_or(0)),
            (Kind::Lasting, Some(at), None) => Move::Insert((at + 1) % self.places),
            (_, Some(at), _) => Move::Delete(at),
        }
    }

    /// Takes in what was told of [`Mark::next`]. False: nothing more may be done with this mark, ever: its last move
    /// may take effect at any time.
    pub fn told(&mut self, told: MoveResult) -> bool {
        match told {
            MoveResult::Refused => return true,
            MoveResult::Unknown => return false,
            MoveResult::Done => {}
        }
        match (self.kind, self.next()) {
            (Kind::Ladder, Move::Insert(_)) => self.steps += 1,
            (Kind::Ladder, Move::Delete(_)) => self.steps -= 1,
            (Kind::Lasting, Move::Insert(to)) if self.at.is_some() => self.to = Some(to),
            (_, Move::Insert(to)) => (self.at, self.to) = (Some(to), None),
            (Kind::Single, Move::Delete(at)) => (self.at, self.to) = (None, Some((at + 1) % self.places)),
            (Kind::Lasting, Move::Delete(_)) => self.at = self.to.take(),
        }
        self.rising = if self.rising { self.steps < self.places } else { self.steps == 0 };
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use coppice_testkit::random::Random;

    /// Whether what is present obeys the kind's rule; `born`: it was somewhere once.
    fn holds(kind: Kind, present: &BTreeSet<usize>, born: bool) -> bool {
        match kind {
            Kind::Ladder => present.iter().copied().eq(0..present.len()),
            Kind::Single => present.len() < 2,
            Kind::Lasting => !born || !present.is_empty(),
        }
    }

    #[test]
    fn every_moment_between_two_moves_obeys_the_rule_and_a_late_move_too() {
        for (seed, kind) in (0..300).flat_map(|seed| Kind::ALL.map(|kind| (seed, kind))) {
            let mut random = Random::of(seed, 0x3a4c);
            let mut mark = Mark::new(kind, 2 + seed as usize % 4);
            let (mut present, mut born) = (BTreeSet::new(), false);
            for _ in 0..60 {
                let next = mark.next();
                let mut after = present.clone();
                let done = match next {
                    Move::Insert(at) => after.insert(at),
                    Move::Delete(at) => after.remove(&at),
                };
                assert!(done, "{kind:?}: {next:?} of {present:?}");
                assert!(holds(kind, &after, born), "{kind:?}: {next:?} of {present:?}");
                let told = [MoveResult::Done, MoveResult::Done, MoveResult::Done, MoveResult::Refused][random.below(4)];
                if random.chance(15) {
                    // Given up before or after its effect: either is right for ever.
                    assert!(!mark.told(MoveResult::Unknown));
                    break;
                }
                assert!(mark.told(told));
                if told == MoveResult::Done {
                    (present, born) = (after, true);
                }
                assert!(holds(kind, &present, born), "{kind:?} {present:?}");
            }
        }
    }

    #[test]
    fn a_ladder_goes_up_and_down_and_tokens_go_round() {
        let run = |kind: Kind, count: usize| {
            let mut mark = Mark::new(kind, 3);
            let step = |_| {
                let next = mark.next();
                assert!(mark.told(MoveResult::Done));
                match next {
                    Move::Insert(at) => at as i32 + 1,
                    Move::Delete(at) => -(at as i32 + 1),
                }
            };
            (0..count).map(step).collect::<Vec<_>>()
        };
        assert_eq!(run(Kind::Ladder, 8), [1, 2, 3, -3, -2, -1, 1, 2]);
        assert_eq!(run(Kind::Single, 7), [1, -1, 2, -2, 3, -3, 1]);
        assert_eq!(run(Kind::Lasting, 7), [1, 2, -1, 3, -2, 1, -3]);
        assert_eq!((Kind::Ladder.suffix(7, 0), Kind::Lasting.suffix(7, 1)), ("~L7.1".into(), "~U7".into()));
    }
}
