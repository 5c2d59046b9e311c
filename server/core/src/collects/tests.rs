//! Collects over replicas that are played by hand: each a tree, and a count of its changes.

use coppice_btree::{Direction, KeyRange, Tree, Value};
use coppice_client::wire::{FrameDecoder, Part, PartEnd, ReplicaId, ScanOptions, Version};
use coppice_ordering::Instance;
use proptest::prelude::*;

use super::*;
use crate::scan::RangeJob;

/// A partition's replica: what it holds, and how often that changed.
#[derive(Default)]
struct Played {
    tree: Tree,
    changes: u64,
}

impl Played {
    fn put(&mut self, key: &str, value: u64) {
        self.changes += 1;
        _ = self.tree.put(key.as_bytes(), &value.to_be_bytes());
    }

    fn answer(&self, request: &Request) -> Reply {
        let instance = Instance(self.changes);
        let version = Version { replica: ReplicaId(1), incarnation: 1, began: 1, changes: self.changes };
        match request {
            Request::CollectParts(ranges) => {
                let cursor = |range: &Bounds| {
                    let wanted = KeyRange { low: range.low[..].into(), high: range.high.as_deref().map(Into::into) };
                    let direction = if range.reverse { Direction::Reverse } else { Direction::Forward };
                    Some(Box::new(self.tree.cursor(wanted, direction)))
                };
                Reply::CollectedParts { instance, version: Some(version), cursors: ranges.iter().map(cursor).collect() }
            }
            Request::Validate(asked, _) => {
                let unchanged = asked.ranges().map(|range| range.version == version).collect();
                Reply::Validated { instance, unchanged }
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Who waits for the n-th collect.
fn waits(n: u32) -> Origin {
    Origin::Client { worker: 3, stream: n, connection: 7 }
}

/// Everything in these partitions, each of which begins at its own letter.
fn all(partitions: &[u32], reverse: bool) -> CollectRequest {
    let low = |&p: &u32| (PartitionId(p), Value::from(&[b'a' + p as u8][..]));
    CollectRequest {
        parts: partitions.iter().map(low).collect(),
        high: None,
        scan: ScanOptions { reverse, ..ScanOptions::default() },
        credit: u32::MAX,
    }
}

type Asks = Vec<(PartitionId, u64, Request)>;
type Answers = Vec<(PartitionId, Origin, Reply)>;

/// What is asked, and what is answered.
fn sort(acts: Vec<Act>) -> (Asks, Answers) {
    let (mut asks, mut answers) = (Vec::new(), Vec::new());
    for act in acts {
        match act {
            Act::Ask { partition, origin, request } => {
                let Origin::Collect { worker: 3, number } = origin else { panic!("{origin:?}") };
                asks.push((partition, number, request));
            }
            Act::Answer { partition, origin, reply } => answers.push((partition, origin, reply)),
        }
    }
    (asks, answers)
}

fn on(collects: &mut Collects, act: impl FnOnce(&mut Collects, &mut Vec<Act>)) -> (Asks, Answers) {
    let mut acts = Vec::new();
    act(collects, &mut acts);
    sort(acts)
}

/// Where a part was read, and its pairs.
type Given = (Position, Vec<(Vec<u8>, u64)>);

/// What a client gets.
fn given(reply: Reply) -> Vec<Given> {
    let Reply::Collected { parts, range } = reply else { panic!("no range") };
    let mut job = RangeJob::collected(parts, &*range).expect("parts");
    let (mut out, mut decoder) = (bytes::BytesMut::new(), FrameDecoder::default());
    while !job.send(1, &mut out) {}
    decoder.feed(&out);
    let (mut parts, mut number, mut end) = (Vec::new(), 0, None);
    while let Some(frame) = decoder.next_frame().expect("our own frames") {
        let part = Part::decode(&frame.body).expect("our own chunk");
        assert!(part.number == number && end.is_none());
        (number, end) = (number + 1, part.end);
        let value = |value: &[u8]| u64::from_be_bytes(value.try_into().expect("8 bytes"));
        parts.push((part.position, part.pairs().map(|(k, v)| (k.to_vec(), value(v))).collect()));
    }
    assert_eq!(end, Some(PartEnd::Complete));
    parts
}

#[test]
fn all_parts_are_read_then_all_are_validated_many_at_a_time() {
    let (mut collects, mut replicas) = (Collects::new(3), [Played::default(), Played::default()]);
    replicas[0].put("a1", 1);
    replicas[1].put("b1", 2);
    let now = Time(1);
    for n in 0..3 {
        let (asks, answers) = on(&mut collects, |g, acts| g.begin(now, waits(n), all(&[0, 1], n == 1), acts));
        assert!(asks.is_empty() && answers.is_empty(), "read at the end of the turn");
    }
    let (asks, _) = on(&mut collects, |g, acts| g.read(now, acts));
    assert_eq!(asks.len(), 2, "one question for each replica");
    let mut validations = Vec::new();
    for (at, (partition, number, request)) in asks.into_iter().enumerate() {
        assert!(matches!(&request, Request::CollectParts(ranges) if ranges.len() == 3));
        let reply = replicas[partition.0 as usize].answer(&request);
        let (asks, answers) = on(&mut collects, |g, acts| {
            g.on_reply(number, partition, reply, acts);
            g.validate(now, acts);
        });
        assert!(answers.is_empty() && asks.is_empty() == (at == 0), "nothing is validated before all is read");
        validations.extend(asks);
    }
    // What lies outside a range may change.
    let mut answers = Vec::new();
    for (partition, number, request) in validations {
        assert!(matches!(&request, Request::Validate(asked, _) if asked.len() == 3 && asked.anywhere));
        let Reply::Validated { unchanged, .. } = replicas[partition.0 as usize].answer(&request) else { panic!() };
        let reply = Reply::Validated { instance: Instance(40), unchanged };
        answers.extend(on(&mut collects, |g, acts| g.on_reply(number, partition, reply, acts)).1);
    }
    assert_eq!(answers.iter().map(|(_, origin, _)| *origin).collect::<Vec<_>>(), [waits(0), waits(1), waits(2)]);
    for (n, (_, _, reply)) in answers.into_iter().enumerate() {
        let at = |partition| Position { partition: PartitionId(partition), instance: 40, index: 0 };
        let mut wanted = vec![(at(0), vec![(b"a1".to_vec(), 1)]), (at(1), vec![(b"b1".to_vec(), 2)])];
        if n == 1 {
            wanted.reverse();
        }
        assert_eq!(given(reply), wanted);
    }
    assert_eq!((collects.parts, collects.deadline()), (0, None));
}

#[test]
fn what_has_changed_is_read_once_more() {
    let (mut collects, mut replicas) = (Collects::new(3), [Played::default(), Played::default()]);
    let now = Time(1);
    for (changes, holds) in [(1, true), (2, false)] {
        let (mut asks, _) = on(&mut collects, |g, acts| {
            g.begin(now, waits(changes), all(&[0, 1], false), acts);
            g.read(now, acts);
        });
        let (mut left, mut ended) = (changes, Vec::new());
        while !asks.is_empty() {
            // What is read is changed before it is validated, so many times.
            let validates = matches!(asks[0].2, Request::Validate(..));
            if validates && asks.len() == 2 && left > 0 {
                replicas[0].put("a", left.into());
                left -= 1;
            }
            let (partition, number, request) = asks.remove(0);
            let reply = replicas[partition.0 as usize].answer(&request);
            let (more, answers) = on(&mut collects, |g, acts| {
                g.on_reply(number, partition, reply, acts);
                g.read(now, acts);
                g.validate(now, acts);
            });
            asks.extend(more);
            ended.extend(answers);
        }
        assert!(matches!(&ended[..], [(_, origin, _)] if *origin == waits(changes)));
        match ended.remove(0).2 {
            Reply::Aborted { text, .. } => assert!(!holds && text == CHANGED),
            reply => assert!(holds && given(reply)[0].1 == [(b"a".to_vec(), 1)]),
        }
    }
    assert_eq!((collects.parts, collects.deadline()), (0, None));
}

#[test]
fn whatever_is_in_the_way_ends_it_at_once() {
    let wrong = || Reply::Refused(Refusal::WrongPartition);
    let silent = |g: &mut Collects| {
        let (asks, _) = on(g, |g, acts| {
            g.begin(Time(1), waits(1), all(&[0, 1], false), acts);
            g.read(Time(1), acts);
        });
        asks
    };
    // A replica refuses; a part of it lies elsewhere; nobody counts changes.
    let elsewhere = |version| Reply::CollectedParts { instance: Instance(1), version, cursors: vec![None] };
    let version = Version { replica: ReplicaId(1), incarnation: 1, began: 1, changes: 0 };
    for reply in [wrong(), elsewhere(Some(version)), elsewhere(None)] {
        let aborts = matches!(reply, Reply::CollectedParts { version: None, .. });
        let mut collects = Collects::new(3);
        let asks = silent(&mut collects);
        let (_, answers) = on(&mut collects, |g, acts| g.on_reply(asks[1].1, PartitionId(1), reply, acts));
        assert!(matches!(&answers[..], [(PartitionId(1), origin, _)] if *origin == waits(1)));
        match &answers[0].2 {
            Reply::Refused(Refusal::WrongPartition) => assert!(!aborts),
            Reply::Aborted { .. } => assert!(aborts),
            _ => panic!("another answer"),
        }
        // What comes late is nobody's.
        let late = Played::default().answer(&asks[0].2);
        let (asks, answers) = on(&mut collects, |g, acts| {
            g.on_reply(asks[0].1, PartitionId(0), late, acts);
            g.validate(Time(2), acts);
        });
        assert!(asks.is_empty() && answers.is_empty() && collects.parts == 0);
    }
    // Nothing comes.
    let mut collects = Collects::new(3);
    silent(&mut collects);
    let due = collects.deadline().expect("it is watched");
    assert_eq!(due, Time(1) + LASTS_MAX);
    assert!(on(&mut collects, |g, acts| g.expire(Time(due.0 - 1), acts)).1.is_empty());
    let (_, answers) = on(&mut collects, |g, acts| g.expire(due, acts));
    assert!(matches!(&answers[..], [(_, origin, Reply::Aborted { .. })] if *origin == waits(1)));
    assert_eq!((collects.parts, collects.asked.len(), collects.deadline()), (0, 0, None));
    // More than may be read at a time.
    let many: Vec<u32> = (0..16).collect();
    for n in 0..PARTS_MAX as u32 / 16 {
        assert!(on(&mut collects, |g, acts| g.begin(Time(1), waits(n), all(&many, false), acts)).1.is_empty());
    }
    let (_, answers) = on(&mut collects, |g, acts| g.begin(Time(1), waits(9), all(&many, false), acts));
    assert!(matches!(&answers[..], [(_, _, Reply::Refused(Refusal::Busy(_)))]));
}

#[derive(Clone, Copy, Debug)]
enum Move {
    /// The writer makes its next write: to the first partition, then to the second one, and so on.
    Write,
    Begin,
    TurnEnd,
    /// One of the questions that are out is answered.
    Answer(prop::sample::Index),
}

proptest! {
    /// One writer counts up in the first partition, and when that is done in the second one. At no moment is the second
    /// ahead, or more than one behind.
    #[test]
    fn what_is_collected_is_one_moment(moves in proptest::collection::vec(prop_oneof![
        2 => Just(Move::Write), 1 => Just(Move::Begin), 3 => Just(Move::TurnEnd),
        4 => any::<prop::sample::Index>().prop_map(Move::Answer),
    ], 1..300)) {
        let (mut collects, mut replicas) = (Collects::new(3), [Played::default(), Played::default()]);
        replicas[0].put("a", 0);
        replicas[1].put("b", 0);
        let (mut writes, mut begun, mut asks) = (0_u64, 0, Vec::new());
        for each in moves {
            let now = Time(1);
            let (more, answers) = match each {
                Move::Write => {
                    let (at, key) = if writes.is_multiple_of(2) { (0, "a") } else { (1, "b") };
                    replicas[at].put(key, writes / 2 + 1);
                    writes += 1;
                    continue;
                }
                Move::Begin => {
                    begun += 1;
                    on(&mut collects, |g, acts| g.begin(now, waits(begun), all(&[0, 1], begun % 2 == 0), acts))
                }
                Move::TurnEnd => on(&mut collects, |g, acts| {
                    g.read(now, acts);
                    g.validate(now, acts);
                }),
                Move::Answer(which) if !asks.is_empty() => {
                    let asked: (PartitionId, u64, Request) = asks.remove(which.index(asks.len()));
                    let (partition, number, request) = asked;
                    let reply = replicas[partition.0 as usize].answer(&request);
                    on(&mut collects, |g, acts| g.on_reply(number, partition, reply, acts))
                }
                Move::Answer(_) => continue,
            };
            asks.extend(more);
            for (_, origin, reply) in answers {
                if let Reply::Aborted { .. } = reply {
                    continue;
                }
                let parts = given(reply);
                let value = |partition| {
                    let mut of = parts.iter().filter(|(position, _)| position.partition == PartitionId(partition));
                    of.next().expect("it was read").1[0].1
                };
                let (first, second) = (value(0), value(1));
                prop_assert!(first == second || first == second + 1, "{first} and {second}, {:?}", origin);
            }
        }
    }
}

/// Each planted bug makes the test of its rule fail (hazards.md 6).
#[cfg(feature = "mutants")]
#[test]
fn planted_bugs_of_a_gather_are_caught() {
    for mutant in ["collects_once", "validates_early"] {
        planted::assert_caught(mutant, "collects::tests::what_is_collected_is_one_moment");
    }
}
