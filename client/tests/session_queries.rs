//! Queries across partitions one at a time, in worlds that misbehave in one way (protocol.md 4). What wild worlds do
//! all at once is in `session_model`.

mod model;

use std::time::Duration;

use bytes::Bytes;
use coppice_client::command::Output;
use coppice_client::config::Config;
use coppice_client::error::Reason;
use coppice_client::session::{Input, Request};
use coppice_client::time::Time;
use coppice_client::wire::{Kind, Part, PartitionId};
use model::queries::QueryChaos;
use model::run::{Run, range_call};
use model::{CALM, Chaos, World};

/// Three partitions with 600 keys, a reader that takes everything at once.
fn start(seed: u64, chaos: Chaos, queries: QueryChaos, range_credit: u32) -> Run {
    start_with(seed, chaos, queries, range_credit, &["g", "n"])
}

fn start_with(seed: u64, chaos: Chaos, queries: QueryChaos, range_credit: u32, boundaries: &[&'static str]) -> Run {
    let mut world = World::new(seed, chaos, boundaries);
    world.queries.chaos = queries;
    world.queries.read_pause = Some(Duration::ZERO);
    for n in 0..600 {
        let key = format!("{}{n:04}", (b'a' + (n % 26) as u8) as char).into_bytes();
        let partition = world.partitions.iter_mut().find(|partition| model::contains(partition, &key)).unwrap();
        partition.data.insert(key, b"value".to_vec());
    }
    Run::new(seed, world, Config { range_credit, optimistic_scans: false, ..Config::default() })
}

fn ask(run: &mut Run, token: u64, low: &'static str, high: Option<&'static str>) {
    let range = range_call(Bytes::from(low), high.map(Bytes::from), false);
    run.submit(token, Duration::from_secs(5), Request::Range(range)).unwrap();
}

/// The query ended well, and gave out what one ticket saw.
#[track_caller]
fn assert_whole(run: &Run, token: u64) {
    let result = run.outcome(token);
    let Output::Loaded(pairs) = result.as_ref().unwrap().output else { panic!("{result:?}") };
    let parts: Vec<_> = run.world.parts[&token].iter().map(|part| Part::decode(part).unwrap()).collect();
    assert!(run.world.is_query(token));
    run.world.check_query(token, &parts, Some(pairs));
}

#[test]
fn in_a_calm_world_a_query_is_asked_once_its_coordinator_is_found() {
    for seed in 0..20 {
        let mut run = start(seed, CALM, QueryChaos::default(), 1 << 20);
        ask(&mut run, 1, "", None);
        run.run_for(Duration::from_secs(1));
        assert_whole(&run, 1);
        assert_eq!(run.world.queries.tickets.len(), 1, "seed {seed}");
        // Everything came unasked, and nothing had to be called off.
        assert_eq!((run.world.count(Kind::PartCredit), run.world.count(Kind::PartCancel)), (0, 0), "seed {seed}");
        // From now on it is known who coordinates.
        let asked = run.world.count(Kind::RangeQuery);
        ask(&mut run, 2, "b", Some("z"));
        run.run_for(Duration::from_secs(1));
        assert_whole(&run, 2);
        assert_eq!(run.world.count(Kind::RangeQuery), asked + 1, "seed {seed}");
    }
}

#[test]
fn parts_that_come_before_the_cut_are_kept() {
    for seed in 0..20 {
        let queries = QueryChaos { late_cut: 1000, ..QueryChaos::default() };
        let mut run = start(seed, CALM, queries, 1 << 20);
        // Connections are there, else parts could not be early.
        ask(&mut run, 1, "", None);
        run.run_for(Duration::from_secs(1));
        ask(&mut run, 2, "", None);
        run.run_for(Duration::from_secs(1));
        assert_whole(&run, 2);
        assert_eq!(run.world.queries.tickets.len(), 2, "seed {seed}");
    }
}

#[test]
fn a_query_over_many_partitions_is_whole_whenever_its_cut_comes() {
    let boundaries: Vec<&str> = "b c d e f g h i j k l m n o p q r s t u v w x y z".split(' ').collect();
    for (seed, late_cut) in (0..20).zip([0, 300, 1000].into_iter().cycle()) {
        let queries = QueryChaos { late_cut, ..QueryChaos::default() };
        let mut run = start_with(seed, CALM, queries, 1 << 20, &boundaries);
        ask(&mut run, 1, "", None);
        run.run_for(Duration::from_secs(1));
        for (token, reverse) in [(2, false), (3, true)] {
            let range = range_call(Bytes::from("ab"), Some(Bytes::from("y")), reverse);
            run.submit(token, Duration::from_secs(5), Request::Range(range)).unwrap();
            run.run_for(Duration::from_secs(1));
            assert_whole(&run, token);
        }
        assert_eq!(run.world.queries.tickets.len(), 3, "seed {seed}");
    }
}

#[test]
fn nothing_is_given_out_while_the_ticket_is_held() {
    let queries = QueryChaos { void: 1000, ..QueryChaos::default() };
    let mut run = start(5, CALM, queries, 1 << 20);
    ask(&mut run, 1, "", None);
    run.run_for(Duration::from_secs(4));
    assert!(run.world.parts.is_empty() && run.ended(1).is_none());
    assert!(run.world.queries.tickets.len() > 4, "it is asked again: {:?}", run.world.queries.tickets.len());
    run.world.queries.chaos = QueryChaos::default();
    run.run_for(Duration::from_secs(1));
    assert_whole(&run, 1);
}

#[test]
fn a_query_that_never_completes_fails_by_its_deadline_and_leaves_nothing_behind() {
    for unplaced in [None, Some(PartitionId(2)), Some(PartitionId(99))] {
        let queries = QueryChaos { void: 1000, unplaced, ..QueryChaos::default() };
        let mut run = start(6, CALM, queries, 1 << 20);
        ask(&mut run, 1, "", None);
        run.run_for(Duration::from_secs(60));
        let (at, result) = run.ended(1).unwrap();
        let error = result.as_ref().unwrap_err();
        assert_eq!(error.reason(), Some(&Reason::TimedOut));
        // Blamed is who did not order it, if there is such a partition, and else the coordinator.
        let blamed = unplaced.filter(|partition| partition.0 == 2).unwrap_or(PartitionId::DIRECTORY);
        assert_eq!(error.place().partition, Some(blamed));
        assert!(at <= Time::from_millis(5_010), "{at:?}");
        assert_eq!(run.session.calls_waiting(), 0);
        assert_eq!(run.session.deadline(), None);
    }
}

/// While a coordinator is cut off it aborts a query again and again, at once. The next attempt, at another coordinator,
/// lost a part, and was waited for eight times as long as the first one would have been.
#[test]
fn a_query_that_was_refused_often_is_not_waited_for_longer() {
    for seed in 0..10 {
        let refusing = QueryChaos { void: 1000, ..QueryChaos::default() };
        let mut run = start(seed, CALM, refusing, 1 << 20);
        ask(&mut run, 1, "", None);
        run.run_for(Duration::from_millis(600));
        assert!(run.world.queries.tickets.len() > 4, "seed {seed}: it asked on");
        run.world.queries.chaos = QueryChaos { lost: 1000, ..QueryChaos::default() };
        let began = run.world.now;
        run.run_for(Duration::from_millis(150));
        run.world.queries.chaos = QueryChaos::default();
        run.run_for(Duration::from_secs(4));
        assert_whole(&run, 1);
        let took = run.ended(1).expect("an end").0 - began;
        assert!(took < 2 * Config::default().attempt_timeout, "seed {seed}: {took:?}");
    }
}

#[cfg(feature = "mutants")]
#[test]
fn refusals_that_make_patient_are_caught() {
    let program = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new(&program);
    command.args(["--exact", "a_query_that_was_refused_often_is_not_waited_for_longer"]);
    assert!(!command.env("COPPICE_MUTANT", "refusals_make_patient").output().unwrap().status.success());
}

#[test]
fn a_query_in_flight_finds_the_new_coordinator() {
    for seed in 0..30 {
        let queries = QueryChaos { late_place: 1000, ..QueryChaos::default() };
        let mut run = start(seed, CALM, queries, 1 << 20);
        ask(&mut run, 1, "", None);
        run.run_for(Duration::from_millis(15));
        run.world.queries.chaos = QueryChaos::default();
        run.world.change_coordinator();
        run.run_for(Duration::from_secs(4));
        assert_whole(&run, 1);
    }
}

/// A node is silent, and its connections stand: the first attempt of a query may draw it, and is lost. Parts drawn
/// anywhere might be drawn there again and again; the second attempt asks leaders, and a silent node leads nothing.
#[test]
fn a_query_that_was_lost_with_a_silent_node_asks_leaders_at_the_second_attempt() {
    let mut repeated = 0;
    for seed in 0..20 {
        let mut run = start(seed, CALM, QueryChaos::default(), 1 << 20);
        // Everybody is known, and connected.
        ask(&mut run, 1, "", None);
        run.run_for(Duration::from_secs(1));
        assert_whole(&run, 1);
        let known = run.world.queries.tickets.len();
        // Not the coordinator: the attempt would not even begin.
        let silent = run.world.queries.coordinator % 3 + 1;
        run.world.silence(silent);
        ask(&mut run, 2, "", None);
        run.run_for(Duration::from_secs(4));
        assert_whole(&run, 2);
        let attempts: Vec<bool> =
            run.world.queries.tickets.values().skip(known).map(|tried| tried.request.from_leaders).collect();
        assert!([&[false][..], &[false, true]].contains(&&attempts[..]), "seed {seed}: {attempts:?}");
        repeated += attempts.len() - 1;
    }
    assert!(repeated > 5, "only {repeated} queries of 20 met the silent node");
}

#[test]
fn chunks_sent_twice_or_of_another_ticket_never_reach_the_reader() {
    for seed in 0..40 {
        let queries = QueryChaos { twice: 300, foreign: 5, ..QueryChaos::default() };
        let mut run = start(seed, CALM, queries, 1 << 20);
        ask(&mut run, 1, "", None);
        run.run_for(Duration::from_secs(6));
        match run.ended(1).unwrap().1 {
            Ok(_) => assert_whole(&run, 1),
            // A chunk of another ticket after something was given out.
            Err(error) => assert!(matches!(error.reason(), Some(Reason::Interrupted { .. } | Reason::TimedOut))),
        }
    }
}

#[test]
fn a_query_that_is_called_off_calls_its_parts_off() {
    let mut run = start(3, CALM, QueryChaos::default(), 400);
    run.world.queries.read_pause = None;
    ask(&mut run, 1, "", None);
    run.run_for(Duration::from_millis(100));
    assert!(run.ended(1).is_none() && run.world.parts_open() > 0);
    let call = run.world.queries.calls[&1];
    run.session.step(run.world.now, Input::Cancel(call), &mut run.effects);
    run.run_for(Duration::from_secs(60));
    assert_eq!(run.world.parts_open(), 0);
    assert_eq!((run.session.calls_waiting(), run.session.deadline()), (0, None));
}

#[test]
fn a_reader_that_stops_holds_no_more_than_the_credit_and_a_chunk_of_each_part() {
    for seed in 0..10 {
        let credit = 900;
        let mut run = start(seed, CALM, QueryChaos::default(), credit);
        // Known to the client, so that all parts come.
        ask(&mut run, 1, "", None);
        run.run_for(Duration::from_secs(1));
        assert_whole(&run, 1);
        let most = run.world.queries.given[&1].unread_max;
        assert!(most <= 3 * (credit as usize + 100), "seed {seed}: {most}");
        run.world.queries.read_pause = None;
        ask(&mut run, 2, "", None);
        run.run_for(Duration::from_secs(60));
        let given = &run.world.queries.given[&2];
        assert!(given.unread <= 3 * (credit as usize + 100), "seed {seed}: {}", given.unread);
        // Its reader may take as long as it likes.
        assert!(run.ended(2).is_none());
    }
}

#[test]
fn a_split_in_between_makes_a_range_a_query() {
    for seed in 0..20 {
        let mut run = start(seed, CALM, QueryChaos::default(), 1 << 20);
        ask(&mut run, 1, "a", Some("b"));
        run.run_for(Duration::from_secs(1));
        // The client's map still has one partition there.
        while run.world.partitions.iter().all(|found| found.low <= "a" || found.low > "f") {
            run.world.split();
        }
        ask(&mut run, 2, "a", Some("g"));
        run.run_for(Duration::from_secs(1));
        assert_whole(&run, 2);
    }
}
