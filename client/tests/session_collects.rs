//! Ranges across partitions that are read in each of them and validated, one at a time, in worlds that misbehave in one
//! way. What wild worlds do all at once is in `session_model`.

mod model;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use coppice_client::command::{Operation, Output, RangeCall};
use coppice_client::config::Config;
use coppice_client::session::{Input, Request};
use coppice_client::wire::{Kind, Part, ScanOptions};
use model::run::{Run, range_call};
use model::{CALM, World};

/// Four partitions with 600 keys, and a client that has been told of their leaders and is connected to them.
fn start(seed: u64, range_credit: u32) -> Run {
    start_with(seed, Config { range_credit, ..Config::default() })
}

fn start_with(seed: u64, config: Config) -> Run {
    let mut world = World::new(seed, CALM, &["g", "n", "t"]);
    world.queries.read_pause = Some(Duration::ZERO);
    for n in 0..600 {
        let key = format!("{}{n:04}", (b'a' + (n % 26) as u8) as char).into_bytes();
        let partition = world.partitions.iter_mut().find(|partition| model::contains(partition, &key)).unwrap();
        partition.data.insert(key, b"value".to_vec());
    }
    let mut run = Run::new(seed, world, config);
    for (token, key) in [(101, "a"), (102, "g"), (103, "n"), (104, "t")] {
        write(&mut run, token, key);
    }
    run.run_for(Duration::from_secs(1));
    run
}

fn write(run: &mut Run, token: u64, key: &str) {
    let put = Operation::put(key, &*format!("v{token}"));
    run.submit(token, Duration::from_secs(5), Request::Command(put.into())).unwrap();
}

fn ask(run: &mut Run, token: u64, range: &RangeCall) {
    run.submit(token, Duration::from_secs(5), Request::Range(range.clone())).unwrap();
}

fn all() -> RangeCall {
    range_call(Bytes::new(), None, false)
}

/// The range ended well: its pairs, and whether a ticket was needed.
#[track_caller]
fn whole(run: &Run, token: u64, range: &RangeCall) -> (u64, bool) {
    let result = run.outcome(token);
    let Output::Loaded(pairs) = result.as_ref().unwrap().output else { panic!("{result:?}") };
    if run.world.is_query(token) {
        return (pairs, true);
    }
    run.world.check_moment(token, range);
    (pairs, false)
}

#[test]
fn in_a_calm_world_no_ticket_is_needed() {
    for seed in 0..20 {
        let mut run = start(seed, 1 << 20);
        let some = range_call(Bytes::from("b"), Some(Bytes::from("p")), true);
        for (token, range, parts) in [(1, all(), 4), (2, some, 3)] {
            let frames = (run.world.count(Kind::Range), run.world.count(Kind::Validate));
            ask(&mut run, token, &range);
            run.run_for(Duration::from_secs(1));
            let (pairs, ticket) = whole(&run, token, &range);
            assert!(pairs > 300 && !ticket && run.world.is_collected(token), "seed {seed}");
            let now = (run.world.count(Kind::Range), run.world.count(Kind::Validate));
            assert_eq!((now.0 - frames.0, now.1 - frames.1), (parts, parts), "seed {seed}");
        }
        assert_eq!(run.world.count(Kind::RangeQuery), 0, "seed {seed}: nobody coordinates this");
        assert_eq!((run.session.calls_waiting(), run.world.count(Kind::Cancel)), (0, 0));
    }
}

/// A writer changes something that was read before the second look: the coordinator is asked, once.
#[test]
fn what_changes_meanwhile_takes_a_ticket() {
    let (mut with, mut without) = (0, 0);
    for seed in 0..60 {
        let mut run = start(seed, 1 << 20);
        ask(&mut run, 1, &all());
        run.run_for(Duration::from_micros(50 * (seed + 1)));
        write(&mut run, 2, "m");
        run.run_for(Duration::from_secs(1));
        match whole(&run, 1, &all()) {
            (_, true) => with += 1,
            (_, false) => without += 1,
        }
        assert!(run.world.count(Kind::RangeQuery) <= 3, "seed {seed}: the first may not find who coordinates");
    }
    assert!(with > 5 && without > 5, "{with} took a ticket, {without} did not");
}

#[test]
fn a_client_without_luck_tries_seldom_and_one_that_has_some_again_tries_often() {
    let mut run = start(5, 1 << 20);
    let tries = |run: &mut Run, from: u64| {
        let before = run.world.count(Kind::Validate);
        for token in from..from + 60 {
            ask(run, token, &all());
            run.run_for(Duration::from_millis(100));
            whole(run, token, &all());
        }
        (run.world.count(Kind::Validate) - before) / 4
    };
    assert_eq!(tries(&mut run, 1_000), 60);
    run.world.validates = false;
    let seldom = tries(&mut run, 2_000);
    assert!((3..12).contains(&seldom), "{seldom} of 60 although none holds");
    run.world.validates = true;
    tries(&mut run, 3_000);
    assert_eq!(tries(&mut run, 4_000), 60);
}

#[test]
fn what_lies_behind_a_limit_needs_no_second_look() {
    let mut run = start(7, 1 << 20);
    for (token, reverse, pairs_max) in [(1, false, 5), (2, true, 5), (3, false, 200)] {
        let range = range_call(Bytes::new(), None, reverse);
        let range = RangeCall { scan: ScanOptions { pairs_max, ..range.scan }, ..range };
        let before = run.world.count(Kind::Validate);
        ask(&mut run, token, &range);
        run.run_for(Duration::from_secs(1));
        let (pairs, ticket) = whole(&run, token, &range);
        // Parts keep the limit each for itself; the reader takes the first of it.
        assert!(pairs >= pairs_max && !ticket, "{pairs} of {pairs_max}");
        assert_eq!(run.world.count(Kind::Validate) - before, if pairs_max == 5 { 1 } else { 2 });
    }
}

#[test]
fn more_than_a_chunk_of_each_part_is_ordered_and_streamed() {
    let mut run = start(3, 600);
    ask(&mut run, 1, &all());
    run.run_for(Duration::from_secs(5));
    assert!(matches!(whole(&run, 1, &all()), (604, true)));
    assert_eq!((run.world.parts_open(), run.session.calls_waiting()), (0, 0));
}

#[test]
fn what_is_in_the_way_of_a_collect_leads_to_the_coordinator() {
    for seed in 0..60 {
        let mut run = start(seed, 1 << 20);
        ask(&mut run, 1, &all());
        run.run_for(Duration::from_micros(60 * (seed % 30)));
        match seed % 3 {
            0 => run.world.silence(run.world.queries.coordinator % 3 + 1),
            1 => run.world.split(),
            _ => run.world.partitions.iter_mut().for_each(|partition| partition.leader = partition.leader % 3 + 1),
        }
        run.run_for(Duration::from_secs(4));
        whole(&run, 1, &all());
        assert_eq!(run.session.calls_waiting(), 0, "seed {seed}");
    }
}

/// Readers who stop hold all the room that a connection has for ranges: a query waits a moment, then takes a ticket.
#[test]
fn a_query_does_not_wait_behind_ranges_that_nobody_reads() {
    let mut run = start_with(4, Config { range_credit: 100, range_window: 1, ..Config::default() });
    run.world.queries.read_pause = None;
    let stuck = [("a", "b"), ("h", "i"), ("o", "p"), ("u", "v")];
    for (token, (low, high)) in (1..).zip(stuck) {
        ask(&mut run, token, &range_call(Bytes::from(low), Some(Bytes::from(high)), false));
    }
    run.run_for(Duration::from_secs(1));
    assert!((1..=4).all(|token| run.ended(token).is_none()), "all wait for their readers");
    run.world.queries.read_pause = Some(Duration::ZERO);
    let few = range_call(Bytes::from("f0500"), Some(Bytes::from("g0030")), false);
    ask(&mut run, 9, &few);
    run.run_for(Duration::from_secs(1));
    assert!(whole(&run, 9, &few).1);
}

/// Connections are lost and come back, nothing else: the leaders are found again, and queries collected again.
#[test]
fn a_client_that_only_collects_learns_anew_who_leads() {
    for seed in 0..10 {
        let mut run = start(seed, 1 << 20);
        run.world.chaos.cut = 1_000;
        ask(&mut run, 1, &all());
        run.run_for(Duration::from_millis(200));
        run.world.chaos.cut = 0;
        run.run_for(Duration::from_secs(5));
        let asked = run.world.count(Kind::Validate);
        for token in 2..40 {
            ask(&mut run, token, &all());
            run.run_for(Duration::from_millis(200));
            whole(&run, token, &all());
        }
        assert!(run.world.count(Kind::Validate) > asked, "seed {seed}");
    }
}

#[test]
fn a_collect_that_is_called_off_leaves_nothing_behind() {
    for wait in 0..60 {
        let mut run = start(wait, 1 << 20);
        ask(&mut run, 1, &all());
        run.run_for(Duration::from_micros(50 * wait));
        let call = run.world.queries.calls[&1];
        run.session.step(run.world.now, Input::Cancel(call), &mut run.effects);
        run.run_for(Duration::from_secs(60));
        assert_eq!((run.session.calls_waiting(), run.session.deadline()), (0, None), "{wait}");
        // And the connections still serve.
        ask(&mut run, 2, &all());
        run.run_for(Duration::from_secs(1));
        assert!(!whole(&run, 2, &all()).1);
    }
}

/// Each planted bug makes the test of its rule fail, in a process of its own (hazards.md 6).
#[cfg(feature = "mutants")]
#[test]
fn planted_bugs_are_caught() {
    let program = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new(&program);
    command.env("COPPICE_MUTANT", "collects_once").args(["--exact", "what_changes_meanwhile_takes_a_ticket"]);
    assert!(!command.output().unwrap().status.success(), "collects_once was not caught");
}

fn keys(of: &[&str]) -> Request {
    let keys = of.iter().map(|key| (*key).into()).collect();
    Request::Keys { keys, range: all() }
}

/// The values of these keys that a call gave out.
fn values(run: &Run, token: u64, of: &[&str]) -> Vec<Option<String>> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let parts: Vec<_> = run.world.parts[&token].iter().map(|part| Part::decode(part).unwrap()).collect();
    let given: BTreeMap<String, String> =
        parts.iter().flat_map(Part::pairs).map(|(key, value)| (text(key), text(value))).collect();
    assert!(given.keys().all(|key| of.contains(&key.as_str())), "{given:?}");
    of.iter().map(|key| given.get(*key).cloned()).collect()
}

/// A writer counts in one partition, and then in another. At any moment the first is as far as the second, or one
/// ahead.
#[test]
fn keys_of_several_partitions_are_read_as_of_one_moment() {
    let (mut again, mut at_once) = (0, 0);
    for seed in 0..60 {
        let mut run = start(seed, 1 << 20);
        let asked = ["a", "t", "absent", "z absent"];
        let (validations, mut written) = (run.world.count(Kind::Validate), 0);
        run.submit(1, Duration::from_secs(5), keys(&asked)).unwrap();
        run.run_for(Duration::from_micros(40 * (seed + 1)));
        for token in 200..205 {
            for key in ["a", "t"] {
                written += 1;
                let put = Operation::put(key, &*format!("v{token}"));
                run.submit(1_000 + written, Duration::from_secs(5), Request::Command(put.into())).unwrap();
                while run.ended(1_000 + written).is_none() {
                    run.run_for(Duration::from_micros(100));
                }
                assert!(run.outcome(1_000 + written).is_ok());
            }
        }
        run.run_for(Duration::from_secs(1));
        assert!(run.outcome(1).is_ok(), "seed {seed}: {:?}", run.outcome(1));
        let found = values(&run, 1, &asked);
        assert!(found[..2].iter().all(Option::is_some), "seed {seed}: {found:?}");
        let count = |value: &Option<String>| value.as_deref().unwrap()[1..].parse::<i64>().unwrap();
        let (first, second) = (count(&found[0]).max(199), count(&found[1]).max(199));
        assert!((0..=1).contains(&(first - second)) && found[2..] == [None, None], "seed {seed}: {found:?}");
        match run.world.count(Kind::Validate) - validations {
            0..=3 => at_once += 1,
            _ => again += 1,
        }
        assert_eq!((run.session.calls_waiting(), run.world.count(Kind::RangeQuery)), (0, 0), "seed {seed}");
    }
    assert!(again > 5 && at_once > 5, "{again} were read again, {at_once} were not");
}

#[test]
fn keys_that_never_rest_are_refused_at_the_deadline() {
    let mut run = start(7, 1 << 20);
    run.world.validates = false;
    run.submit(1, Duration::from_millis(300), keys(&["a", "t"])).unwrap();
    run.run_for(Duration::from_secs(1));
    let error = run.outcome(1).as_ref().unwrap_err().to_string();
    assert!(error.starts_with("the servers are busy: the keys change too often"), "{error}");
    assert_eq!(run.session.calls_waiting(), 0);
    let many: Vec<String> = (0..=coppice_client::KEYS_MAX).map(|n| format!("{n:04}")).collect();
    let refused = run.submit(2, Duration::from_secs(1), keys(&many.iter().map(|key| &**key).collect::<Vec<_>>()));
    assert!(format!("{refused:?}").contains("TooLarge"), "{refused:?}");
}
