//! What a client does with refusals of what was on its way together: they are one refusal.

mod model;

use std::time::Duration;

use bytes::Bytes;
use coppice_client::command::{Command, Operation, ReadMode};
use coppice_client::config::Config;
use coppice_client::error::{Error, Reason};
use coppice_client::session::{Request, Session};
use coppice_client::wire::ClientId;
use coppice_client::{Condition, Edit, Update};
use model::run::{Run, range_call};
use model::{Chaos, World};

const SOON: Duration = Duration::from_secs(5);

/// Between two calls.
const BEAT: Duration = Duration::from_micros(20);

/// A partition with 600 keys, a millisecond away, and a client that has written to it.
fn start(seed: u64) -> Run {
    let chaos = Chaos { delay_ms: 1, ..Chaos::default() };
    let mut world = World::new(seed, chaos, &[]);
    for n in 0..600 {
        world.partitions[0].data.insert(format!("k{n:04}").into_bytes(), b"value".to_vec());
    }
    let mut run = Run::new(seed, world, Config::default());
    run.submit(1_000_000, SOON, put(0)).unwrap();
    run.run_for(Duration::from_secs(1));
    run
}

fn put(n: u64) -> Request {
    Request::Command(Operation::put(&*format!("k{:04}", n * 37 % 600), &*format!("v{n}")).into())
}

/// One command, one read or one range a beat, all over the keys.
fn ask(run: &mut Run, tokens: std::ops::Range<u64>) {
    for token in tokens {
        let key = format!("k{:04}", token * 37 % 600);
        let request = match token % 3 {
            0 => put(token),
            1 => Request::Get { key: key.as_str().into(), mode: Default::default() },
            _ => Request::Range(range_call(Bytes::from(key.clone()), Some(Bytes::from(key + "~")), false)),
        };
        run.submit(token, SOON, request).unwrap();
        run.run_for(BEAT);
    }
}

/// How long the slowest of these calls took, asked one a beat from `began` on.
fn slowest(run: &Run, began: coppice_client::time::Time, tokens: std::ops::Range<u64>) -> Duration {
    let took = tokens.map(|token| {
        let (ended, outcome) = run.ended(token).expect("an end");
        assert!(outcome.is_ok(), "{outcome:?}");
        ended - (began + BEAT * token as u32)
    });
    took.max().expect("calls")
}

/// The slowest of a thousand calls, in the middle of which the partition is split.
fn slowest_beside_a_split(run: &mut Run) -> Duration {
    let began = run.world.now;
    ask(run, 0..500);
    run.world.split();
    ask(run, 500..1000);
    run.run_for(Duration::from_secs(2));
    slowest(run, began, 0..1000)
}

/// All of it is refused with the new entries. They are news once, and no reason to wait.
#[test]
fn what_is_on_its_way_to_a_partition_that_is_split_is_asked_again_at_once() {
    for seed in 0..20 {
        let slowest = slowest_beside_a_split(&mut start(seed));
        assert!(slowest < Duration::from_millis(30), "seed {seed}: {slowest:?}");
    }
}

/// A client that has just begun has asked for a map a moment ago, when it had none, and asks again if it must.
#[test]
fn a_client_that_has_just_begun_asks_for_the_map_of_a_split_soon() {
    for seed in 0..20 {
        let mut run = start(seed);
        run.session = Session::new(Config::default(), ClientId(7), seed, run.world.endpoints());
        run.world.terse = true;
        let slowest = slowest_beside_a_split(&mut run);
        assert!(slowest < Duration::from_millis(40), "seed {seed}: {slowest:?}");
    }
}

/// Nodes are busy for 20 ms, and some say that they end: the most that a client waits then is short, however much was
/// on its way to them.
#[test]
fn a_pause_grows_with_refusals_in_a_row_not_with_those_that_come_together() {
    let mut waits: Vec<Duration> = Vec::new();
    for seed in 0..20 {
        let mut run = start(seed);
        let began = run.world.now;
        ask(&mut run, 0..500);
        run.world.chaos.busy = 1000;
        ask(&mut run, 500..1500);
        run.world.chaos.busy = 0;
        ask(&mut run, 1500..2000);
        run.run_for(Duration::from_secs(2));
        waits.push(slowest(&run, began, 0..2000));
    }
    waits.sort();
    assert!(waits[10] < Duration::from_millis(150), "{waits:?}");
}

/// The nodes of the model run an older version: it would not read an update, nor anything in one pack with it.
#[test]
fn what_an_older_leader_does_not_know_is_refused_here_and_disturbs_nobody() {
    let mut run = start(9);
    let update = || Operation::update("k0001", Update::new(Edit::Add(1)));
    for (token, request) in [
        (1, put(1)),
        (2, Request::Command(update().into())),
        (3, Request::Command(Command::Many([Operation::get("k0001"), Operation::look("k0001")].into()))),
        (4, Request::Command(Command::guarded([Operation::check("k0001", Condition::Present)], [update()]))),
        (5, put(2)),
        (6, Request::Look { key: "k0001".into(), mode: ReadMode::Leader }),
    ] {
        run.submit(token, SOON, request).unwrap();
    }
    run.run_for(Duration::from_secs(1));
    for token in [1, 5] {
        assert!(run.ended(token).expect("an end").1.is_ok(), "{token}");
    }
    for token in [2, 3, 4, 6] {
        let (_, outcome) = run.ended(token).expect("an end");
        let Err(Error::Failed(failure)) = outcome else { panic!("{token}: {outcome:?}") };
        assert!(matches!(&failure.reason, Reason::Incompatible(why) if why.contains("feature_level")), "{failure:?}");
    }
}
