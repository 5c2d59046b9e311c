//! What a user may not do, and clients that no node knows, in a world without faults.

mod model;

use std::time::Duration;

use bytes::Bytes;
use coppice_client::command::{Operation, ReadMode};
use coppice_client::config::Config;
use coppice_client::error::{Error, Reason};
use coppice_client::session::Request;
use model::run::{Run, range_call};
use model::{CALM, Chaos, World};

const TIMEOUT: Duration = Duration::from_secs(5);

fn start() -> Run {
    Run::new(1, World::new(1, CALM, &["n"]), Config::default())
}

fn put(run: &mut Run, token: u64, key: &str) {
    let put = Operation::put(key, "v");
    run.submit(token, TIMEOUT, Request::Command(put.into())).unwrap();
}

fn get(run: &mut Run, token: u64, key: &str) {
    run.submit(token, TIMEOUT, Request::Get { key: key.as_bytes().into(), mode: ReadMode::Leader }).unwrap();
}

#[track_caller]
fn assert_denied(run: &Run, token: u64, why: &str) {
    match run.outcome(token) {
        Err(Error::Failed(failed)) => assert_eq!(failed.reason, Reason::Denied(why.into()), "call {token}"),
        other => panic!("call {token}: {other:?}"),
    }
}

/// They were read again until the deadline, and the client was told that they never rest.
#[test]
fn keys_of_one_moment_of_which_one_is_denied_are_denied_at_once() {
    let mut run = start();
    put(&mut run, 1, "a");
    run.run_for(TIMEOUT);
    run.world.denied = Some(b'x');
    let keys = ["a", "x1"].map(|key| key.as_bytes().into()).into();
    let began = run.world.now;
    run.submit(2, TIMEOUT, Request::Keys { keys, range: range_call(Bytes::new(), None, false) }).unwrap();
    run.run_for(TIMEOUT);
    assert_denied(&run, 2, "not yours");
    let (ended, _) = run.ended(2).expect("an end");
    assert!(ended < began + TIMEOUT / 5, "{:?}", ended - began);
    assert_eq!(run.session.calls_waiting(), 0);
}

/// Commands and gets share frames, which a node denies whole: nobody's call fails for that of another.
#[test]
fn a_denied_call_takes_no_other_one_with_it() {
    let mut run = start();
    run.world.denied = Some(b'x');
    let keys = ["a", "x1", "b", "o", "x2", "p", "x3", "q"];
    for (token, key) in (1..).zip(keys) {
        put(&mut run, token, key);
        get(&mut run, token + 100, key);
    }
    run.run_for(TIMEOUT);
    for (token, key) in (1..).zip(keys) {
        for token in [token, token + 100] {
            match key.starts_with('x') {
                true => assert_denied(&run, token, "not yours"),
                false => assert!(run.outcome(token).is_ok(), "{key}: {:?}", run.outcome(token)),
            }
        }
    }
    put(&mut run, 200, "c");
    run.run_for(TIMEOUT);
    assert!(run.outcome(200).is_ok(), "the session goes on");
}

/// Waiting for the deadline would say no more.
#[test]
fn a_client_that_no_node_knows_is_told_at_once() {
    let mut run = start();
    run.world.estranged = true;
    put(&mut run, 1, "a");
    get(&mut run, 2, "z");
    run.run_for(Duration::from_secs(1));
    assert_denied(&run, 1, "who are you?");
    assert_denied(&run, 2, "who are you?");
    run.world.estranged = false;
    put(&mut run, 3, "a");
    run.run_for(TIMEOUT);
    assert!(run.outcome(3).is_ok(), "{:?}", run.outcome(3));
}

/// Nodes let a stranger wait for their refusal: the first one was asked again before the last one had answered, and
/// only when all happened to rest at once was the call over.
#[test]
fn a_client_that_no_node_knows_is_told_when_each_has_said_so_once() {
    for seed in 0..20 {
        let chaos = Chaos { delay_ms: 300, ..CALM };
        let mut run = Run::new(seed, World::new(seed, chaos, &["n"]), Config::default());
        run.world.estranged = true;
        get(&mut run, 1, "a");
        // Connecting, greeting and the answer take up to 300 ms each way; a node that was asked twice has said so after
        // two such rounds.
        run.run_for(Duration::from_secs(3));
        assert_denied(&run, 1, "who are you?");
    }
}
