//! Collects over two partitions that one writer changes in turn.

use proptest::prelude::*;

use super::*;
use crate::ids::{PartitionId, ReplicaId};

fn position(place: usize, changes: u64) -> Position {
    Position { partition: PartitionId(place as u32 + 1), instance: changes, index: 0 }
}

/// What a partition's replica says when its counter has changed so often: the counter itself.
fn read(place: usize, changes: u64) -> PartRead<u64> {
    let version = Version { replica: ReplicaId(1), incarnation: 1, began: 1, changes };
    PartRead { version, position: position(place, changes), data: changes }
}

#[test]
fn all_parts_are_read_before_any_is_validated() {
    let mut collect = DoubleCollect::new(3, 0);
    assert_eq!(collect.on_read(2, read(2, 7)), Verdict::Incomplete);
    assert_eq!(collect.on_read(0, read(0, 5)), Verdict::Incomplete);
    assert_eq!(collect.on_read(0, read(0, 6)), Verdict::Incomplete, "read already");
    assert_eq!(collect.on_read(1, read(1, 6)), Verdict::Validate(0..3));
    assert_eq!(collect.on_unchanged(1, position(1, 16)), Verdict::Incomplete);
    assert_eq!(collect.on_unchanged(1, position(1, 16)), Verdict::Incomplete, "counts once");
    assert_eq!(collect.on_unchanged(0, position(0, 15)), Verdict::Incomplete);
    assert_eq!(collect.on_unchanged(2, position(2, 17)), Verdict::OneMoment);
    let parts: Vec<_> = collect.into_parts().map(|read| (read.data, read.position.instance)).collect();
    assert_eq!(parts, [(5, 15), (6, 16), (7, 17)], "where it was found unchanged");
}

#[test]
fn what_lies_behind_a_limit_is_read_and_not_validated() {
    let mut collect = DoubleCollect::new(3, 0);
    collect.limit_to(2);
    assert_eq!(collect.on_read(0, read(0, 1)), Verdict::Incomplete);
    assert_eq!(collect.on_read(1, read(1, 1)), Verdict::Incomplete);
    assert_eq!(collect.on_read(2, read(2, 1)), Verdict::Validate(0..2));
    collect.limit_to(1);
    assert_eq!(collect.on_unchanged(0, position(0, 1)), Verdict::OneMoment);
    assert_eq!(collect.into_parts().count(), 1);
}

#[test]
fn what_has_changed_is_read_again_as_often_as_agreed() {
    let mut collect = DoubleCollect::new(1, 1);
    assert_eq!(collect.on_read(0, read(0, 1)), Verdict::Validate(0..1));
    assert_eq!(collect.on_changed(), Verdict::ReadAgain);
    assert!(collect.read(0).is_none());
    assert_eq!(collect.on_read(0, read(0, 2)), Verdict::Validate(0..1));
    assert_eq!(collect.on_changed(), Verdict::Changed);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The writer counts on: the first partition, then the second one, and so on.
    Write,
    /// One of the questions that are out is answered.
    Answer(prop::sample::Index),
}

#[derive(Clone, Copy, Debug)]
enum Question {
    Read(usize),
    Validate(usize),
}

proptest! {
    /// At no moment is the second counter ahead of the first one, or more than one behind.
    #[test]
    fn what_is_collected_held_at_one_moment(steps in proptest::collection::vec(prop_oneof![
        1 => Just(Step::Write), 2 => any::<prop::sample::Index>().prop_map(Step::Answer),
    ], 1..200)) {
        let begin = || (DoubleCollect::new(2, 1), vec![Question::Read(0), Question::Read(1)]);
        let (mut writes, mut counters) = (0_usize, [0_u64; 2]);
        let (mut collect, mut questions) = begin();
        for step in steps {
            let Step::Answer(which) = step else {
                counters[writes % 2] += 1;
                writes += 1;
                continue;
            };
            let verdict = match questions.swap_remove(which.index(questions.len())) {
                Question::Read(place) => collect.on_read(place, read(place, counters[place])),
                Question::Validate(place) => {
                    let now = counters[place];
                    let unchanged = collect.read(place).is_some_and(|read| read.version.changes == now);
                    if unchanged { collect.on_unchanged(place, position(place, now)) } else { collect.on_changed() }
                }
            };
            match verdict {
                Verdict::Incomplete => {}
                Verdict::Validate(places) => questions.extend(places.map(Question::Validate)),
                Verdict::ReadAgain => questions = begin().1,
                Verdict::Changed => (collect, questions) = begin(),
                Verdict::OneMoment => {
                    let (whole, next) = (collect, begin());
                    (collect, questions) = next;
                    let values: Vec<u64> = whole.into_parts().map(|read| read.data).collect();
                    prop_assert!(values[0] == values[1] || values[0] == values[1] + 1, "{values:?}");
                }
            }
        }
    }
}

/// Each planted bug makes the test of its rule fail (hazards.md 6).
#[cfg(feature = "mutants")]
#[test]
fn planted_bugs_of_a_double_collect_are_caught() {
    for mutant in ["collects_once", "validates_early"] {
        planted::assert_caught(mutant, "double_collect::tests::what_is_collected_held_at_one_moment");
    }
}
