//! The session against a world that loses, repeats, delays and reorders: at most once, and every outcome is the truth.

mod model;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use coppice_client::Value;
use coppice_client::command::{Command, Operation, Output, RangeCall, ReadMode};
use coppice_client::config::Config;
use coppice_client::error::{Error, Reason};
use coppice_client::session::{Request, SubmitError};
use coppice_client::time::Time;
use coppice_client::wire::{Kind, Part, Position, ScanOptions};
use model::queries::QueryChaos;
use model::run::{Run, range_call};
use model::{Chaos, World};

const WILD: Chaos = Chaos {
    cut: 8,
    busy: 20,
    repeat: 100,
    lost_apply: 15,
    deposed: 15,
    leader_change: 3,
    expire: 1,
    split: 1,
    pause: 1,
    lost_part: 20,
    connect_fails: 150,
    delay_ms: 10,
};

const WILD_QUERIES: QueryChaos = QueryChaos {
    void: 100,
    untold: 300,
    lost: 20,
    coordinator_change: 3,
    late_cut: 200,
    twice: 30,
    foreign: 5,
    late_place: 50,
    unplaced: None,
};

fn start(seed: u64, chaos: Chaos, splits: &[&'static str]) -> Run {
    let config = Config { pack_bytes: 200, window: 3, calls_max: 64, range_credit: 300, ..Config::default() };
    let mut world = World::new(seed, chaos, splits);
    // Nodes of every other world collect.
    world.server_collects = seed.is_multiple_of(2);
    world.looks = true;
    Run::new(seed, world, config)
}

fn key(n: u64) -> String {
    // Spread over a..z, so that every partition gets some.
    format!("{}{:03}", (b'a' + (n % 26) as u8) as char, n / 26 % 20)
}

fn mark(token: u64) -> String {
    format!("v{token}")
}

fn request(run: &mut Run, token: u64) -> Request {
    let rng = &mut run.world.rng;
    let (key, value) = (key(rng.below(400)), mark(token));
    let operation = match rng.below(10) {
        0..=3 => Operation::put(&*key, &*value),
        4 => Operation::insert(&*key, &*value),
        5 => Operation::cas(&*key, &*mark(rng.below(token + 1)), &*value),
        6 => {
            let pair = [Operation::put(&*key, &*value), Operation::delete(format!("{key}x").as_str())];
            return Request::Command(Command::Many(Box::new(pair)));
        }
        7 => {
            let pairs = [(format!("{key}{token}").as_str().into(), value.as_str().into())];
            return Request::Command(Command::Load(Box::new(pairs)));
        }
        8 if rng.chance(150) => {
            let mut keys = vec![key];
            keys.extend((0..rng.below(6)).map(|_| self::key(rng.below(400))));
            keys.sort_unstable();
            keys.dedup();
            let keys = keys.into_iter().map(Value::from).collect();
            return Request::Keys { keys, range: range_call(Bytes::new(), None, false) };
        }
        8 => {
            let mode = [ReadMode::Leader, ReadMode::AnyReplica, ReadMode::Stale][rng.below(3) as usize];
            let key = key.as_str().into();
            return if rng.chance(300) { Request::Look { key, mode } } else { Request::Get { key, mode } };
        }
        _ => {
            let low = Bytes::from(key.into_bytes());
            // All keys of one letter, the few that begin with this key, or those of many letters.
            let mut high = low.to_vec();
            let letters = [0, 1, 1 + rng.below(8), 26][rng.below(4) as usize];
            if letters == 0 {
                high.push(0xff);
            } else {
                high.truncate(1);
                high[0] += letters as u8;
            }
            let high = (high[0] <= b'z').then_some(Bytes::from(high));
            let reverse = rng.chance(500);
            let pairs_max = if rng.chance(200) { 1 + rng.below(30) } else { 0 };
            let range = range_call(low, high, reverse);
            return Request::Range(RangeCall { scan: ScanOptions { pairs_max, ..range.scan }, ..range });
        }
    };
    Request::Command(Command::One(operation))
}

/// Position and encoded result of an output must be those of the one execution.
fn assert_told_the_truth(run: &Run, token: u64, position: Position) {
    let executions = run.world.executions.get(mark(token).as_bytes()).map_or(&[][..], |found| found);
    assert_eq!(executions.len(), 1, "token {token} was answered and executed {} times", executions.len());
    assert_eq!(executions[0].position, position, "token {token}");
}

/// One wild run: submits, lets time pass, resumes what is unknown, then compares what was told with what was done.
fn wild_run(seed: u64, chaos: Chaos) -> BTreeMap<&'static str, u64> {
    let mut run = start(seed, chaos, &["g", "n", "t"]);
    run.world.queries.chaos = WILD_QUERIES;
    run.world.queries.read_pause = Some(Duration::from_millis(3));
    let mut counts = BTreeMap::new();
    let mut writes: BTreeMap<u64, Command> = BTreeMap::new();
    let mut reads = Reads::default();
    let mut deadlines: BTreeMap<u64, Time> = BTreeMap::new();
    let mut token = 0;
    for _ in 0..60 {
        for _ in 0..run.world.rng.below(12) {
            token += 1;
            let timeout = Duration::from_millis(300 + run.world.rng.below(4000));
            let request = request(&mut run, token);
            if let Request::Command(command) = &request {
                writes.insert(token, command.clone());
            }
            let is_range = matches!(request, Request::Range(_));
            if let Request::Range(range) = &request {
                reads.ranges.insert(token, range.clone());
            }
            if let Request::Keys { keys, .. } = &request {
                reads.keys.insert(token, keys.clone());
            }
            match run.submit(token, timeout, request) {
                // A range's deadline moves as it goes on.
                Ok(()) if is_range => drop(deadlines.insert(token, Time::NEVER)),
                Ok(()) => drop(deadlines.insert(token, run.world.now + timeout)),
                Err(SubmitError::Full(_)) => {
                    writes.remove(&token);
                    *counts.entry("full").or_default() += 1;
                }
                Err(SubmitError::Refused(error)) => {
                    // Keys that a split has parted.
                    assert_eq!(error.reason(), Some(&Reason::SpansPartitions));
                    writes.remove(&token);
                }
            }
        }
        let pause = Duration::from_millis(run.world.rng.below(200));
        run.run_for(pause);
    }
    // The world calms down; everything ends by its deadline.
    run.world.chaos = Chaos { delay_ms: 2, ..Chaos::default() };
    run.world.queries.chaos = QueryChaos::default();
    run.run_for(Duration::from_secs(12));
    assert_eq!(run.session.calls_waiting(), 0, "seed {seed}: calls hang");
    let resumed = resume_unknown(&mut run, &writes, token);
    run.run_for(Duration::from_secs(60));
    check(&run, seed, &deadlines, (&writes, &reads), &resumed, &mut counts);
    counts
}

fn resume_unknown(run: &mut Run, writes: &BTreeMap<u64, Command>, last: u64) -> BTreeMap<u64, u64> {
    let mut resumed = BTreeMap::new();
    let unknown: Vec<_> = run
        .world
        .completed
        .iter()
        .filter_map(|(_, token, result)| Some((*token, *result.as_ref().err()?.resume_token()?)))
        .collect();
    for (at, (token, resume)) in unknown.into_iter().enumerate() {
        let again = last + 1 + at as u64;
        let request = Request::Resume(writes[&token].clone(), resume);
        match run.submit(again, Duration::from_secs(5), request) {
            Ok(()) => drop(resumed.insert(again, token)),
            Err(SubmitError::Refused(error)) => assert_eq!(error.reason(), Some(&Reason::SpansPartitions)),
            Err(SubmitError::Full(_)) => {}
        }
    }
    resumed
}

fn check(
    run: &Run,
    seed: u64,
    deadlines: &BTreeMap<u64, Time>,
    (writes, reads): (&BTreeMap<u64, Command>, &Reads),
    resumed: &BTreeMap<u64, u64>,
    counts: &mut BTreeMap<&'static str, u64>,
) {
    let mut ended = BTreeMap::new();
    for (at, token, result) in &run.world.completed {
        assert!(ended.insert(*token, ()).is_none(), "seed {seed}: token {token} completed twice");
        if let Some(&deadline) = deadlines.get(token) {
            assert!(*at <= deadline + Duration::from_millis(1), "seed {seed}: token {token} ended late");
        }
        let original = resumed.get(token).copied().unwrap_or(*token);
        let executions = run.world.executions.get(mark(original).as_bytes()).map_or(0, Vec::len);
        assert!(
            executions <= 1,
            "seed {seed}: token {original} executed {executions} times: {result:?}, {:?}",
            run.world.executions[mark(original).as_bytes()]
        );
        let counted = match result {
            Ok(answer) if writes.contains_key(&original) => {
                assert_told_the_truth(run, original, answer.position);
                if resumed.contains_key(token) { "resumed" } else { "ok" }
            }
            Ok(_) if reads.keys.contains_key(token) => "keys",
            Ok(_) if run.world.is_query(*token) => "query",
            Ok(_) if run.world.is_gathered(*token) => "gathered",
            Ok(_) if run.world.is_collected(*token) => "collected",
            Ok(_) => "read",
            // A resumed command was sent before: its failure says nothing about that.
            Err(Error::Failed(_)) if !resumed.contains_key(token) => {
                assert_eq!(executions, 0, "seed {seed}: token {token} failed for sure and was executed");
                if result.as_ref().is_err_and(|error| error.reason() == Some(&Reason::SpansPartitions)) {
                    "parted by a split"
                } else if writes.contains_key(token) {
                    "failed"
                } else {
                    "failed read"
                }
            }
            Err(_) => "unknown",
        };
        if matches!(result, Err(Error::Failed(failed)) if matches!(failed.reason, Reason::Interrupted { .. })) {
            *counts.entry("interrupted").or_default() += 1;
        }
        *counts.entry(counted).or_default() += 1;
    }
    for token in deadlines.keys() {
        assert!(ended.contains_key(token), "seed {seed}: token {token} never ended");
    }
    check_reads(run, reads);
}

/// What was asked for that may come in parts, by its token.
#[derive(Default)]
struct Reads {
    ranges: BTreeMap<u64, RangeCall>,
    keys: BTreeMap<u64, Box<[Value]>>,
}

/// Chunks of a range come in order and complete, or the range fails. Values of keys come all at once.
fn check_reads(run: &Run, reads: &Reads) {
    for (token, parts) in &run.world.parts {
        let done = run.world.completed.iter().find(|done| done.1 == *token).map(|done| &done.2);
        let parts: Vec<_> = parts.iter().map(|part| Part::decode(part).unwrap()).collect();
        if let Some(keys) = reads.keys.get(token) {
            assert!(done.is_some_and(Result::is_ok), "token {token}: {done:?}");
            run.world.check_keys(*token, keys);
            continue;
        }
        if let (true, Some(range)) = (run.world.is_collected(*token), reads.ranges.get(token)) {
            // What a node collects comes as a stream, which may break off.
            if done.is_some_and(Result::is_ok) {
                run.world.check_moment(*token, range);
            } else {
                assert!(run.world.is_gathered(*token), "token {token}");
            }
            continue;
        }
        if parts[0].ticket.is_some() {
            let pairs = done.and_then(|done| done.as_ref().ok()).map(|answer| match answer.output {
                Output::Loaded(pairs) => pairs,
                _ => panic!("{answer:?}"),
            });
            run.world.check_query(*token, &parts, pairs);
            continue;
        }
        assert!(parts.iter().enumerate().all(|(at, part)| part.number == at as u32));
        assert!(parts.windows(2).all(|pair| pair[0].position == pair[1].position));
        if let Some(Ok(answer)) = done {
            let pairs = parts.iter().map(Part::len).sum::<usize>() as u64;
            assert_eq!(answer.output, Output::Loaded(pairs));
            assert!(parts.last().unwrap().end.is_some());
        }
    }
}

#[test]
fn whatever_the_world_does_a_command_runs_at_most_once_and_its_outcome_is_true() {
    let seeds = std::env::var("COPPICE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(50);
    let mut total: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in 0..seeds {
        for (name, count) in wild_run(seed, WILD) {
            *total.entry(name).or_default() += count;
        }
    }
    println!("{total:?}");
    for rare in ["ok", "read", "query", "collected", "gathered", "keys", "failed", "unknown", "resumed", "interrupted"]
    {
        assert!(total.get(rare).is_some_and(|&count| count > 5), "{rare} hardly ever happened: {total:?}");
    }
}

#[test]
fn in_a_calm_world_everything_succeeds_with_one_sending_each() {
    let mut run = start(7, Chaos { delay_ms: 1, ..Chaos::default() }, &["m"]);
    for token in 1..=50 {
        run.submit(token, Duration::from_secs(5), Request::Command(Operation::put(&*key(token), &*mark(token)).into()))
            .unwrap();
    }
    run.run_for(Duration::from_secs(1));
    for token in 1..=50 {
        let position = run.outcome(token).as_ref().unwrap().position;
        assert_told_the_truth(&run, token, position);
    }
    // 50 commands of about 12 bytes: they went in packs, and nothing was sent twice.
    let packs = run.world.count(Kind::Commands);
    assert!(packs <= 12, "{packs} frames for 50 commands");
}

#[test]
fn commands_across_a_split_keep_their_session_and_number() {
    for seed in 0..50 {
        let chaos = Chaos { split: 30, leader_change: 5, cut: 5, repeat: 100, delay_ms: 5, ..Chaos::default() };
        let counts = wild_run(seed, chaos);
        assert!(counts["ok"] > 50, "seed {seed}: {counts:?}");
        assert_eq!(counts.get("failed"), None, "seed {seed}: {counts:?}");
    }
}

/// Every replica that the client knew still answered, and pointed to a leader that its map did not name; it asked them
/// in turn until the deadline, and never for a newer map.
#[test]
fn a_leader_on_a_node_that_joined_since_is_found() {
    for seed in 0..20 {
        let mut run = start(seed, Chaos { delay_ms: 1, ..Chaos::default() }, &[]);
        let put = |token| Request::Command(Operation::put("a", &*mark(token)).into());
        run.submit(1, Duration::from_secs(1), put(1)).unwrap();
        run.run_for(Duration::from_secs(1));
        run.world.grow();
        run.submit(2, Duration::from_secs(1), put(2)).unwrap();
        run.run_for(Duration::from_secs(2));
        assert!(run.outcome(2).is_ok(), "seed {seed}: {:?}", run.outcome(2));
    }
}

#[test]
fn nobody_there_means_a_sure_failure_by_the_deadline() {
    let mut run = start(3, Chaos { connect_fails: 1000, delay_ms: 1, ..Chaos::default() }, &[]);
    run.submit(1, Duration::from_secs(5), Request::Command(Operation::put("a", "v1").into())).unwrap();
    run.run_for(Duration::from_secs(6));
    let error = run.outcome(1).as_ref().unwrap_err();
    assert_eq!(error.reason(), Some(&Reason::Unreachable));
    assert_eq!(error.place().nodes.len(), 3);
    assert!(error.place().nodes.iter().all(|node| !node.error.is_empty()), "{:?}", error.place());
}

/// How often something happened in each of so many seconds.
fn by_second(run: &mut Run, seconds: usize, kind: Kind) -> Vec<u64> {
    let mut counts = Vec::new();
    for _ in 0..seconds {
        let before = run.world.count(kind);
        run.run_for(Duration::from_secs(1));
        counts.push(run.world.count(kind) - before);
    }
    counts
}

#[test]
fn nodes_that_refuse_a_command_are_asked_ever_less_often_and_found_when_they_take_it() {
    for seed in 0..20 {
        let mut run = start(seed, Chaos { delay_ms: 1, ..Chaos::default() }, &[]);
        run.submit(1, Duration::from_secs(1), Request::Command(Operation::put("a", "v1").into())).unwrap();
        run.run_for(Duration::from_secs(1));
        assert!(run.outcome(1).is_ok());
        run.world.chaos.busy = 1000;
        run.submit(2, Duration::from_secs(60), Request::Command(Operation::put("a", "v2").into())).unwrap();
        let asked = by_second(&mut run, 9, Kind::Commands);
        // Pauses double from 5 ms to 500 ms: soon a handful a second. Whoever does not pause asks hundreds of times.
        // A node that shuts down sends the client on to the others.
        assert!((5..=80).contains(&asked[0]), "seed {seed}: {asked:?}");
        let later: u64 = asked[2..].iter().sum();
        assert!((7..=80).contains(&later), "seed {seed}: {asked:?}");
        run.world.chaos.busy = 0;
        run.run_for(Duration::from_millis(600));
        assert!(run.outcome(2).is_ok(), "seed {seed}: found within the longest pause");
    }
}

#[test]
fn nodes_that_refuse_to_greet_are_greeted_ever_less_often_and_found_when_they_do() {
    for seed in 0..20 {
        let mut run = start(seed, Chaos { delay_ms: 1, ..Chaos::default() }, &[]);
        run.world.unfriendly = true;
        run.submit(1, Duration::from_secs(60), Request::Command(Operation::put("a", "v1").into())).unwrap();
        let greeted = by_second(&mut run, 9, Kind::Hello);
        // Three nodes, each after pauses that double from 5 ms to 500 ms.
        assert!((10..=60).contains(&greeted[0]), "seed {seed}: {greeted:?}");
        assert!(greeted[2..].iter().all(|count| (3..=16).contains(count)), "seed {seed}: {greeted:?}");
        run.world.unfriendly = false;
        // Where the node greeted first does not lead, the one that does is greeted after its own pause.
        run.run_for(Duration::from_millis(1_100));
        assert!(run.outcome(1).is_ok(), "seed {seed}: found within two of the longest pauses");
    }
}

#[test]
fn a_cluster_that_waits_for_init_is_named_as_such() {
    let mut run = start(3, Chaos { delay_ms: 1, ..Chaos::default() }, &[]);
    run.world.initialized = false;
    run.submit(1, Duration::from_secs(1), Request::Command(Operation::put("a", "v1").into())).unwrap();
    run.run_for(Duration::from_secs(2));
    assert_eq!(run.outcome(1).as_ref().unwrap_err().reason(), Some(&Reason::NotInitialized));
    run.world.initialized = true;
    run.submit(2, Duration::from_secs(1), Request::Command(Operation::put("a", "v2").into())).unwrap();
    run.run_for(Duration::from_secs(2));
    assert!(run.outcome(2).is_ok());
}

/// Real clients asked a node that had lost its disk again and again, for as long as it stood there empty: it was in
/// their map, it greeted, and what it refused they sent to it once more. Two of three replicas served all the while.
#[test]
fn a_node_that_lost_its_disk_keeps_nobody_waiting() {
    for seed in 0..40 {
        let mut run = start(seed, Chaos { delay_ms: 1, ..Chaos::default() }, &["m"]);
        // Before the client knows a map, and while it has followed the leader.
        let at_first = seed % 2 == 0;
        let mut calls = 1..;
        if !at_first {
            let call = calls.next().unwrap();
            run.submit(call, Duration::from_secs(1), Request::Command(Operation::put("a", "v0").into())).unwrap();
            run.run_for(Duration::from_secs(1));
            assert!(run.outcome(call).is_ok(), "seed {seed}");
        }
        let lost = if at_first { seed as u32 % 3 + 1 } else { run.world.partitions[0].leader };
        run.world.lose_disk(lost);
        for call in calls.take(20) {
            let key = if call % 2 == 0 { "a" } else { "z" };
            let value = format!("v{call}");
            let request = match call % 3 {
                0 => Request::Get { key: key.into(), mode: ReadMode::AnyReplica },
                _ => Request::Command(Operation::put(key, &*value).into()),
            };
            run.submit(call, Duration::from_secs(1), request).unwrap();
            run.run_for(Duration::from_millis(300));
            assert!(run.outcome(call).is_ok(), "seed {seed}, call {call}: {:?}", run.outcome(call));
        }
    }
}

#[test]
fn what_can_never_succeed_is_refused_at_once() {
    let mut run = start(3, Chaos { delay_ms: 1, ..Chaos::default() }, &["m"]);
    run.submit(1, Duration::from_secs(1), Request::Get { key: "a".into(), mode: ReadMode::Leader }).unwrap();
    run.run_for(Duration::from_secs(1));
    let refused = |run: &mut Run, request| match run.submit(9, Duration::from_secs(1), request) {
        Err(SubmitError::Refused(error)) => error.reason().cloned().unwrap(),
        other => panic!("{other:?}"),
    };
    let long = vec![0; coppice_client::wire::KEY_BYTES_MAX + 1];
    let many = |keys: &[&str]| Command::Many(keys.iter().map(|key| Operation::delete(*key)).collect());
    let range = |low: &'static str, high: Option<&'static str>| {
        Request::Range(range_call(Bytes::from(low), high.map(Bytes::from), false))
    };
    let text = "a key of 4097 bytes is above the limit of 4096 (4 KiB)".to_owned();
    assert_eq!(refused(&mut run, Request::Command(Operation::delete(long).into())), Reason::TooLarge(text));
    assert_eq!(refused(&mut run, Request::Command(many(&[]))), Reason::Invalid);
    assert_eq!(refused(&mut run, Request::Command(many(&["a", "z"]))), Reason::SpansPartitions);
    // What is not to be one moment must be cut up by the caller.
    let stale = Request::Range(RangeCall { mode: ReadMode::Stale, ..range_call(Bytes::from("a"), None, false) });
    assert_eq!(refused(&mut run, stale), Reason::SpansPartitions);
    assert!(run.submit(12, Duration::from_secs(1), range("a", Some("n"))).is_ok());
    assert!(run.submit(10, Duration::from_secs(1), range("a", Some("m"))).is_ok());
    assert!(run.submit(11, Duration::from_secs(1), range("m", None)).is_ok());
    run.run_for(Duration::from_secs(2));
    assert!(run.outcome(10).is_ok() && run.outcome(11).is_ok() && run.outcome(12).is_ok());
}

#[test]
fn one_seed_of_choice() {
    // COPPICE_SEED=17 cargo test -p coppice-client --test session_model one_seed_of_choice -- --nocapture
    let Some(seed) = std::env::var("COPPICE_SEED").ok().and_then(|seed| seed.parse().ok()) else { return };
    println!("{seed}: {:?}", wild_run(seed, WILD));
}

/// Each planted bug makes the wild runs fail (hazards.md 6).
#[cfg(feature = "mutants")]
#[test]
fn planted_bugs_are_caught() {
    if std::env::var("COPPICE_MUTANT").is_ok() {
        return;
    }
    let program = std::env::current_exe().unwrap();
    let run = |mutant: &str| {
        let mut command = std::process::Command::new(&program);
        command.env("COPPICE_MUTANT", mutant).env("COPPICE_SEEDS", "150");
        command.args(["--exact", "whatever_the_world_does_a_command_runs_at_most_once_and_its_outcome_is_true"]);
        command.output().unwrap().status.success()
    };
    assert!(run("none"), "the runs fail without a planted bug");
    for mutant in [
        "client_unsure_is_sure",
        "client_retry_renumbered",
        "client_session_reopened",
        "chunk_unnumbered",
        "client_no_complete",
        "collects_once",
        "parts_by_query",
    ] {
        assert!(!run(mutant), "{mutant} was not caught");
    }
}
