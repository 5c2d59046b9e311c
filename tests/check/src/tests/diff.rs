//! The checkers against brute force.

use super::super::diff::compare_all;
use super::super::faults::plant;
use super::super::generate::{Gate, Shape, events};
use super::super::history::History;
use super::super::search::Limits;
use super::super::verdict::Verdict;
use super::super::{certificate, graph, search};
use coppice_testkit::random::Random;

#[test]
fn the_checkers_agree_with_brute_force() {
    let tally = compare_all(0..2_000).unwrap_or_else(|found| panic!("seed {}: {}", found.seed, found.what));
    println!("{tally}");
    assert!(tally.illegal > 300 && tally.unanswered > 300 && tally.certified > 300, "{tally}");
}

#[test]
fn the_checkers_agree_on_histories_too_large_for_brute_force() {
    let (mut failed, mut certified) = (0, 0);
    for seed in 0..150 {
        let mut random = Random::of(seed, 4);
        let shape = Shape {
            seed: random.next(),
            operations: 150 + random.below(150),
            clients: 4 + random.below(20) as u32,
            keys: 4 + random.below(40) as u32,
            partitions: 1 + random.below(3) as u32,
            ranges: 150,
            whole: 300,
            many: 40,
            changes: 20,
            coordinators: 20,
            gate: [Gate::Right, Gate::Off][random.below(2)],
            ..Shape::default()
        };
        let mut events = events(&shape);
        if random.chance(600) {
            plant(&mut events, &mut random);
        }
        let history = History::from_events(&events).expect("a well-formed history");
        let zero = certificate::check(&history).verdict;
        let one = search::check(&history, None, Limits::default());
        let by_graph = graph::check(&history, None);
        assert!(
            one.is_pass() == by_graph.is_pass() && one.is_fail() == by_graph.is_fail(),
            "seed {seed}: {one:?} {by_graph:?}"
        );
        assert!(!zero.is_pass() || one.is_pass(), "seed {seed}: the certificate passes, the search: {one:?}");
        failed += u32::from(one.is_fail());
        certified += u32::from(zero.is_pass());
        if let Verdict::Fail(violation) = &by_graph {
            assert!(!violation.cycle.is_empty() || !violation.about.is_empty(), "seed {seed}: {violation:?}");
        }
    }
    assert!(failed > 30 && certified > 30, "{failed} failed, {certified} certified");
}
