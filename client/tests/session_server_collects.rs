//! Ranges across partitions that one node reads, in worlds that misbehave in one way. What wild worlds do all at once
//! is in `session_model`.

mod model;

use std::time::Duration;

use bytes::Bytes;
use coppice_client::command::{Operation, Output, RangeCall};
use coppice_client::config::Config;
use coppice_client::session::{Input, Request};
use coppice_client::wire::{Kind, ScanOptions};
use model::run::{Run, range_call};
use model::{CALM, World};

/// Four partitions with 600 keys, nodes that collect, and a client that has just begun.
fn start_with(seed: u64, config: Config) -> Run {
    let mut world = World::new(seed, CALM, &["g", "n", "t"]);
    world.queries.read_pause = Some(Duration::ZERO);
    world.server_collects = true;
    for n in 0..600 {
        let key = format!("{}{n:04}", (b'a' + (n % 26) as u8) as char).into_bytes();
        let partition = world.partitions.iter_mut().find(|partition| model::contains(partition, &key)).unwrap();
        partition.data.insert(key, b"value".to_vec());
    }
    Run::new(seed, world, config)
}

/// The same, once it has been told of all leaders and is connected to them.
fn start(seed: u64) -> Run {
    let mut run = start_with(seed, Config::default());
    learn_leaders(&mut run);
    run
}

fn learn_leaders(run: &mut Run) {
    write_everywhere(run, 101);
}

/// A write to each partition, under tokens from here on.
fn write_everywhere(run: &mut Run, first: u64) {
    for (token, key) in (first..).zip(["a", "g", "n", "t"]) {
        let put = Operation::put(key, &*format!("v{token}"));
        run.submit(token, Duration::from_secs(5), Request::Command(put.into())).unwrap();
    }
    run.run_for(Duration::from_secs(1));
}

fn ask(run: &mut Run, token: u64, range: &RangeCall) {
    run.submit(token, Duration::from_secs(5), Request::Range(range.clone())).unwrap();
}

fn all() -> RangeCall {
    range_call(Bytes::new(), None, false)
}

/// Frames that asked a node to collect, a node to read, a node to validate, the coordinator.
fn asked(run: &Run) -> [u64; 4] {
    [Kind::Collect, Kind::Range, Kind::Validate, Kind::RangeQuery].map(|kind| run.world.count(kind))
}

/// The range ended well and was one moment; its pairs.
#[track_caller]
fn whole(run: &Run, token: u64, range: &RangeCall) -> u64 {
    let result = run.outcome(token);
    let Output::Loaded(pairs) = result.as_ref().unwrap().output else { panic!("{result:?}") };
    if !run.world.is_query(token) {
        run.world.check_moment(token, range);
    }
    pairs
}

#[test]
fn one_question_and_one_answer_are_enough() {
    for seed in 0..20 {
        let mut run = start(seed);
        let some = range_call(Bytes::from("b"), Some(Bytes::from("p")), true);
        for (token, range) in [(1, all()), (2, some)] {
            let before = asked(&run);
            ask(&mut run, token, &range);
            run.run_for(Duration::from_secs(1));
            assert!(whole(&run, token, &range) > 300 && run.world.is_gathered(token), "seed {seed}");
            assert_eq!(asked(&run).iter().zip(before).map(|(now, was)| now - was).collect::<Vec<_>>(), [1, 0, 0, 0]);
        }
        assert_eq!((run.session.calls_waiting(), run.world.count(Kind::Cancel)), (0, 0));
    }
}

/// Questions go together if the same node asks them always, and two sessions need not ask the same one.
#[test]
fn the_leader_at_one_end_of_a_range_is_asked_the_same_end_by_one_session() {
    let mut ends = [0, 0];
    for seed in 0..20 {
        let mut run = start_with(seed, Config::default());
        (0..).zip(&mut run.world.partitions).for_each(|(at, partition)| partition.leader = at % 3 + 1);
        learn_leaders(&mut run);
        for token in 1..=12 {
            let (low, high) = [("b", "h"), ("h", "p"), ("p", "z")][token % 3];
            ask(&mut run, token as u64, &range_call(Bytes::from(low), Some(Bytes::from(high)), token % 2 == 0));
            run.run_for(Duration::from_secs(1));
        }
        let first = [2, 3, 1].repeat(4);
        let last: Vec<u32> = first.iter().map(|node| node % 3 + 1).collect();
        assert!(run.world.collecting == first || run.world.collecting == last, "{:?}", run.world.collecting);
        ends[usize::from(run.world.collecting == last)] += 1;
    }
    assert!(ends.iter().all(|sessions| *sessions >= 5), "{ends:?}");
}

/// A program whose first call it is has no connection to the leaders yet. It needs none.
#[test]
fn the_first_node_that_is_met_is_asked() {
    for seed in 0..20 {
        let mut run = start_with(seed, Config::default());
        ask(&mut run, 1, &all());
        run.run_for(Duration::from_secs(1));
        assert_eq!((whole(&run, 1, &all()), asked(&run)), (600, [1, 0, 0, 0]), "seed {seed}");
    }
}

#[test]
fn a_range_streams_as_its_reader_reads() {
    let config = Config { range_credit: 600, ..Config::default() };
    for (seed, reverse) in [(1, false), (2, true)] {
        let mut run = start_with(seed, config.clone());
        let range = range_call(Bytes::new(), None, reverse);
        ask(&mut run, 1, &range);
        run.run_for(Duration::from_secs(5));
        assert_eq!((whole(&run, 1, &range), asked(&run)), (600, [1, 0, 0, 0]));
        assert!(run.world.count(Kind::Credit) > 10);
    }
}

#[test]
fn limits_are_those_of_the_whole() {
    let mut run = start(7);
    for (token, reverse, pairs_max) in [(1, false, 5), (2, true, 5), (3, false, 200), (4, true, 604)] {
        let range = range_call(Bytes::new(), None, reverse);
        let range = RangeCall { scan: ScanOptions { pairs_max, ..range.scan }, ..range };
        ask(&mut run, token, &range);
        run.run_for(Duration::from_secs(1));
        assert_eq!(whole(&run, token, &range), pairs_max);
    }
    assert_eq!(asked(&run)[0], 4);
}

/// What changed while it was read takes a ticket, and a client without luck tries seldom.
#[test]
fn what_changes_meanwhile_takes_a_ticket() {
    let mut run = start(5);
    let tries = |run: &mut Run, from: u64| {
        let before = asked(run)[0];
        for token in from..from + 60 {
            ask(run, token, &all());
            run.run_for(Duration::from_millis(100));
            assert_eq!(whole(run, token, &all()), 604);
        }
        asked(run)[0] - before
    };
    assert_eq!(tries(&mut run, 1_000), 60);
    run.world.validates = false;
    let seldom = tries(&mut run, 2_000);
    assert!((3..12).contains(&seldom), "{seldom} of 60 although none holds");
    run.world.validates = true;
    tries(&mut run, 3_000);
    assert_eq!(tries(&mut run, 4_000), 60);
    assert_eq!(asked(&run)[1..3], [0, 0], "who collects validates, too");
}

/// Readers who stop hold all the room that connections have for ranges: a query waits a moment, then takes a ticket.
#[test]
fn a_query_does_not_wait_behind_ranges_that_nobody_reads() {
    let mut run = start_with(4, Config { range_credit: 100, range_window: 1, ..Config::default() });
    run.world.queries.read_pause = None;
    for token in 1..=8 {
        ask(&mut run, token, &range_call(Bytes::from("a"), Some(Bytes::from("u")), false));
        run.run_for(Duration::from_millis(200));
    }
    assert_eq!(asked(&run)[0], 3, "one on each node");
    run.world.queries.read_pause = Some(Duration::ZERO);
    let few = range_call(Bytes::from("f0500"), Some(Bytes::from("g0030")), false);
    ask(&mut run, 9, &few);
    run.run_for(Duration::from_secs(1));
    whole(&run, 9, &few);
    assert!(run.world.is_query(9));
}

#[test]
fn whatever_becomes_of_the_node_the_range_ends() {
    for seed in 0..120 {
        let mut run = start(seed);
        ask(&mut run, 1, &all());
        run.run_for(Duration::from_micros(60 * (seed / 4)));
        match seed % 4 {
            0 => run.world.silence(run.world.queries.coordinator % 3 + 1),
            1 => run.world.split(),
            2 => run.world.chaos.busy = 700,
            _ => run.world.partitions.iter_mut().for_each(|partition| partition.leader = partition.leader % 3 + 1),
        }
        run.run_for(Duration::from_millis(300));
        run.world.chaos.busy = 0;
        run.run_for(Duration::from_secs(4));
        match run.outcome(1) {
            // It had given something out when its node fell silent.
            Err(error) if seed % 4 == 0 => assert!(error.reason().is_some(), "seed {seed}: {error:?}"),
            _ => drop(whole(&run, 1, &all())),
        }
        assert_eq!(run.session.calls_waiting(), 0, "seed {seed}");
    }
}

/// The node that reads a range falls silent, and coordinates besides. It was found out once for each of the two, and
/// the range waited twice.
#[test]
fn a_silent_node_is_found_out_once() {
    for seed in 0..20 {
        let mut run = start(seed);
        let node = run.world.queries.coordinator;
        run.world.partitions.iter_mut().for_each(|partition| partition.leader = node);
        write_everywhere(&mut run, 201);
        run.world.validates = false;
        ask(&mut run, 1, &all());
        run.run_for(Duration::from_secs(1));
        whole(&run, 1, &all());
        assert!(run.world.is_query(1), "seed {seed}: it knows the coordinator");
        run.world.validates = true;
        run.world.silence(node);
        let began = run.world.now;
        ask(&mut run, 2, &all());
        run.run_for(Duration::from_secs(4));
        whole(&run, 2, &all());
        let took = run.ended(2).expect("an end").0 - began;
        assert!(took < 2 * Config::default().attempt_timeout, "seed {seed}: {took:?}");
    }
}

/// In a process of its own, as every planted bug (hazards.md 6).
#[cfg(feature = "mutants")]
#[test]
fn a_silence_that_counts_for_one_partition_only_is_caught() {
    let program = std::env::current_exe().expect("this program");
    let mut command = std::process::Command::new(program);
    command.args(["a_silent_node_is_found_out_once", "--exact"]).env("COPPICE_MUTANT", "silence_of_one_queue");
    assert!(!command.output().expect("it runs").status.success(), "the planted bug survived");
}

#[test]
fn a_range_that_is_called_off_leaves_nothing_behind() {
    for wait in 0..60 {
        let mut run = start(wait);
        ask(&mut run, 1, &all());
        run.run_for(Duration::from_micros(50 * wait));
        let call = run.world.queries.calls[&1];
        run.session.step(run.world.now, Input::Cancel(call), &mut run.effects);
        run.run_for(Duration::from_secs(60));
        assert_eq!((run.session.calls_waiting(), run.session.deadline()), (0, None), "{wait}");
        ask(&mut run, 2, &all());
        run.run_for(Duration::from_secs(1));
        assert_eq!(whole(&run, 2, &all()), 604);
    }
}
