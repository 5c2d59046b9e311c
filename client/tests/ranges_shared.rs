//! Ranges that any replica may answer share messages: a session's go to one replica while that has a few of them.

mod script;

use std::collections::BTreeMap;

use coppice_client::command::{RangeCall, ReadMode};
use coppice_client::session::{ConnectionId, Input, Request};
use coppice_client::time::Time;
use coppice_client::wire::part::PartHead;
use coppice_client::wire::{Frame, Kind, NodeId, PartEnd, PartWriter, Position, Refusal};
use script::{Bench, PARTITION, SECOND, hello, start};

/// What a session with replicas on two nodes asks, and of whom.
struct Asker {
    bench: Bench,
    ranges: u64,
}

impl Asker {
    /// With connections to both nodes.
    fn new() -> Asker {
        let mut asker = Asker { bench: start(&[1, 2], NodeId(2)), ranges: 0 };
        asker.bench.parts = Some(0);
        for _ in 0..20 {
            let asked = asker.ask();
            asker.answer(asked);
            for (connection, _) in std::mem::take(&mut asker.bench.dialled) {
                asker.bench.step(Input::Connected(connection));
                asker.bench.step(Input::Frame { connection, frame: hello(1) });
            }
        }
        asker
    }

    fn ask(&mut self) -> (ConnectionId, Frame) {
        let range = RangeCall {
            low: b""[..].into(),
            high: None,
            scan: Default::default(),
            mode: ReadMode::AnyReplica,
            stretches: None,
        };
        self.ranges += 1;
        let token = 100 + self.ranges;
        self.bench.session.submit(token, Time(600 * SECOND), Request::Range(range)).expect("there is room");
        self.bench.step(Input::TurnEnd);
        self.bench.asks(Kind::Range)
    }

    fn answer(&mut self, asked: (ConnectionId, Frame)) {
        let position = Position { partition: PARTITION, instance: 1, index: 0 };
        self.bench.answer(asked, |out, stream| {
            let head = PartHead { stream, position, ticket: None, version: None, keys_only: false };
            PartWriter::new(out, &head, 0, true).finish(0, Some(PartEnd::Complete));
        });
    }
}

fn count(asked: &[(ConnectionId, Frame)]) -> Vec<usize> {
    let mut counts = BTreeMap::new();
    asked.iter().for_each(|(connection, _)| *counts.entry(*connection).or_default() += 1);
    counts.into_values().collect()
}

#[test]
fn a_few_ranges_at_a_time_go_to_one_replica_and_no_more_than_a_few() {
    let mut asker = Asker::new();
    let mut few: Vec<_> = (0..8).map(|_| asker.ask()).collect();
    assert_eq!(count(&few), [8]);
    // One that is answered makes room for one, there.
    let first = few.remove(0);
    asker.answer(first);
    few.push(asker.ask());
    assert_eq!(count(&few), [8]);
    few.extend((0..40).map(|_| asker.ask()));
    assert!(count(&few).len() == 2 && count(&few).iter().all(|&ranges| ranges >= 8), "{:?}", count(&few));
}

#[test]
fn ranges_one_by_one_go_to_all_replicas_alike() {
    let mut asker = Asker::new();
    let mut asked = Vec::new();
    for _ in 0..100 {
        let range = asker.ask();
        asked.push(range.clone());
        asker.answer(range);
    }
    assert_eq!(asker.bench.parts, Some(120));
    assert!(count(&asked).len() == 2 && count(&asked).iter().all(|&ranges| ranges >= 30), "{:?}", count(&asked));
}

#[test]
fn a_replica_that_is_lost_gets_none() {
    let mut asker = Asker::new();
    let lost = asker.ask().0;
    asker.bench.step(Input::Disconnected { connection: lost, reason: "gone".into() });
    assert!((0..8).all(|_| asker.ask().0 != lost));
}

/// Seen in review: a replica that cannot reach its leader refuses at once, and while other ranges were out it was asked
/// again and again.
#[test]
fn a_replica_that_refuses_is_not_asked_again_for_what_is_still_out() {
    let mut asker = Asker::new();
    let mut out = vec![asker.ask()];
    let bad = out[0].0;
    // Others that it has under way, and never answers.
    while out.len() < 4 {
        out.push(asker.ask());
    }
    let mut asked = out.pop().expect("four");
    for _ in 0..40 {
        if asked.0 != bad {
            return;
        }
        asker.bench.answer(asked, |out, stream| {
            Refusal::NotLeader { partition: PARTITION, hint: None }.encode(out, stream);
        });
        asked = asker.bench.asks(Kind::Range);
    }
    panic!("always the same");
}

#[test]
fn a_session_that_always_has_something_under_way_asks_everybody_in_the_long_run() {
    let mut asker = Asker::new();
    let (mut out, mut asked) = (Vec::from([asker.ask()]), Vec::new());
    for _ in 0..1_000 {
        out.push(asker.ask());
        asked.push(out[1].clone());
        let first = out.remove(0);
        asker.answer(first);
    }
    assert!(count(&asked).len() == 2 && count(&asked).iter().all(|&ranges| ranges >= 100), "{:?}", count(&asked));
}
