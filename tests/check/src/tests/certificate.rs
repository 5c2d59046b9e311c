//! The certificate on synthetic histories: correct ones pass, whatever happens in them.

use super::super::certificate;
use super::super::generate::{Gate, Shape, events};
use super::super::history::History;
use super::super::verdict::Verdict;

fn verdict(shape: &Shape) -> Verdict {
    let history = History::from_events(&events(shape)).expect("a well-formed history");
    let found = certificate::check(&history);
    if let Verdict::Fail(violation) = &found.verdict {
        println!("{}", violation.words(&history).join("\n"));
    }
    found.verdict
}

fn eventful(seed: u64) -> Shape {
    Shape {
        seed,
        operations: 400,
        clients: 12,
        keys: 24,
        partitions: 3,
        replicas: 2,
        ranges: 200,
        whole: 500,
        many: 50,
        stale: 100,
        unanswered: 50,
        refused: 20,
        repeats: 100,
        changes: 30,
        coordinators: 20,
        ..Shape::default()
    }
}

#[test]
fn a_correct_history_passes() {
    for seed in 0..300 {
        assert!(verdict(&eventful(seed)).is_pass(), "seed {seed}");
    }
}

#[test]
fn without_a_gate_some_histories_fail() {
    let failed = (0..300).filter(|seed| verdict(&Shape { gate: Gate::Off, ..eventful(*seed) }).is_fail()).count();
    assert!(failed > 30, "{failed}");
}

#[test]
fn with_the_two_partition_rule_some_histories_fail() {
    let shape = |seed| Shape { gate: Gate::TwoPartitions, whole: 0, ..eventful(seed) };
    let failed = (0..300).filter(|seed| verdict(&shape(*seed)).is_fail()).count();
    assert!(failed > 0, "{failed}");
}
