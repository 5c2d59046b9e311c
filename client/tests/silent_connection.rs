//! A connection that falls silent may be whole and useless: behind a cut the kernel repeats what was lost on it ever
//! more rarely. Another one is tried beside it, and whichever is heard first stays.

mod script;

use coppice_client::session::{ConnectionId, Input};
use coppice_client::wire::frame::encode_frame;
use coppice_client::wire::{Kind, NodeId};
use script::{Bench, hello, start};

/// A get waits for a leader that fell silent, and another connection to it is tried: the silent one, the other one.
fn silent() -> (Bench, ConnectionId, ConnectionId) {
    let mut bench = start(&[2], NodeId(2));
    let (silent, _) = bench.asks(Kind::Read);
    assert_eq!(bench.asks(Kind::Ping).0, silent);
    assert!(bench.dialled.is_empty(), "it may only be slow");
    let mut ticks = 0..20;
    while bench.dialled.is_empty() && ticks.next().is_some() {
        tick(&mut bench);
    }
    let (spare, address) = bench.dialled.remove(0);
    assert_eq!(address, "n2:1");
    assert!(spare != silent && bench.closed.is_empty(), "the silent one may still speak");
    bench.asked.clear();
    (bench, silent, spare)
}

fn tick(bench: &mut Bench) {
    bench.now = bench.session.deadline().expect("it goes on").max(bench.now);
    bench.step(Input::Tick);
}

#[test]
fn another_connection_that_is_greeted_takes_the_place_of_a_silent_one() {
    let (mut bench, silent, spare) = silent();
    bench.step(Input::Connected(spare));
    assert_eq!(bench.asks(Kind::Hello).0, spare);
    assert!(bench.closed.is_empty(), "nobody has greeted it yet");
    bench.asked.clear();
    bench.step(Input::Frame { connection: spare, frame: hello(2) });
    assert_eq!(bench.closed, [silent]);
    assert_eq!(bench.asks(Kind::Read).0, spare, "what waited is asked again");
    assert!(bench.dialled.is_empty());
}

#[test]
fn a_silent_connection_that_speaks_after_all_stays() {
    let (mut bench, silent, spare) = silent();
    bench.step(Input::Connected(spare));
    let mut out = bytes::BytesMut::new();
    encode_frame(&mut out, Kind::Pong, 0, &[]);
    bench.step(Input::Frame { connection: silent, frame: script::frame(&out) });
    assert_eq!(bench.closed, [spare]);
    bench.step(Input::Frame { connection: spare, frame: hello(2) });
    assert_eq!(bench.closed, [spare], "nobody uses it");
    assert_eq!(bench.asks(Kind::Read).0, silent);
}

#[test]
fn both_are_given_up_after_silence_max() {
    let (mut bench, silent, spare) = silent();
    let begun = bench.now;
    let mut ticks = 0..200;
    while bench.closed.is_empty() && ticks.next().is_some() {
        tick(&mut bench);
    }
    bench.closed.sort();
    assert_eq!(bench.closed, [silent, spare]);
    let waited = bench.now - begun;
    assert!(waited <= coppice_client::config::Config::default().silence_max, "{waited:?}");
    assert!(bench.dialled.is_empty(), "it rests before it is dialled again");
}

#[test]
fn a_spare_connection_that_is_refused_leaves_the_silent_one_alone() {
    let (mut bench, silent, spare) = silent();
    bench.step(Input::Disconnected { connection: spare, reason: "refused the connection".into() });
    assert!(bench.closed.is_empty());
    assert_eq!(bench.asks(Kind::Read).0, silent, "there is no other replica");
}

/// In a process of its own, as every planted bug (hazards.md 6).
#[cfg(feature = "mutants")]
#[test]
fn a_silence_that_is_borne_is_caught() {
    let test = "another_connection_that_is_greeted_takes_the_place_of_a_silent_one";
    let program = std::env::current_exe().expect("this program");
    let mut command = std::process::Command::new(program);
    let output = command.args([test, "--exact"]).env("COPPICE_MUTANT", "client_silence_is_borne").output();
    assert!(!output.expect("it runs").status.success(), "the planted bug survived");
}
