//! Simulator, seed 330: a node told its map, and beside it who had led a partition before that was moved. Clients asked
//! that node from then on, which sent them away, for ever: it knew nothing newer than they.

mod script;

use coppice_client::config::Config;
use coppice_client::session::{ConnectionId, Input};
use coppice_client::wire::control::encode_control;
use coppice_client::wire::{ClusterId, Frame, Kind, MapReply, MapVersion, NodeId, Refusal};
use script::{PARTITION, hello, hello_of, map, start};

#[test]
fn who_is_no_replica_by_the_map_is_not_followed() {
    let bench = start(&[1], NodeId(2));
    let addresses: Vec<&str> = bench.dialled.iter().map(|(_, address)| address.as_str()).collect();
    assert_eq!(addresses, ["n1:1"]);
}

/// A node once took the newer map of another cluster, and its clients got it from there.
#[test]
fn a_map_of_another_cluster_is_not_taken() {
    let mut bench = start(&[1, 2], NodeId(1));
    let (connection, _) = bench.dialled.remove(0);
    bench.step(Input::Connected(connection));
    // It knows a newer map, so it is asked for that.
    let mut newer = map(&[1, 2]);
    newer.version = MapVersion(8);
    bench.step(Input::Frame { connection, frame: hello_of(1, newer.version) });
    let asked = bench.asks(Kind::MapGet);
    newer.cluster = ClusterId(10);
    let reply = MapReply { map: Some(newer), leaders: vec![] };
    bench.answer(asked, |out, stream| {
        encode_control(out, Kind::Map, stream, &reply);
    });
    assert_eq!(bench.session.map().map(|map| map.version), Some(MapVersion(7)));
    assert!(!bench.closed.is_empty(), "its connection is closed");
}

/// In a process of its own, as every planted bug (hazards.md 6).
#[cfg(feature = "mutants")]
fn assert_caught(mutant: &str, test: &str) {
    let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
    let output = command.args([test, "--exact"]).env("COPPICE_MUTANT", mutant).output().expect("it runs");
    assert!(!output.status.success(), "{mutant} is not caught");
}

#[cfg(feature = "mutants")]
#[test]
fn a_map_of_another_cluster_that_is_taken_is_caught() {
    assert_caught("client_takes_foreign_map", "a_map_of_another_cluster_is_not_taken");
}

/// The other half: whoever has not got the partition does not lead it, whatever the map and others say.
#[test]
fn who_has_not_got_the_partition_is_not_followed() {
    let mut bench = start(&[1, 2], NodeId(1));
    let (connection, _) = bench.dialled.remove(0);
    bench.step(Input::Connected(connection));
    bench.step(Input::Frame { connection, frame: hello(1) });
    let asked = bench.asks(Kind::Read);
    assert_eq!(asked.0, connection, "it leads, it is said");
    let entries = map(&[1, 2]).partitions;
    let refusal = Refusal::WrongPartition { partition: PARTITION, version: MapVersion(7), entries };
    bench.answer(asked, |out, stream| refusal.encode(out, stream));
    assert_ne!(bench.asks(Kind::Read).0, connection, "the other one may lead");
}

/// A node that could not be reached may be gone although those who followed it do not know that yet.
#[test]
fn who_is_lost_is_not_followed() {
    let mut bench = start(&[1, 2], NodeId(1));
    let (connection, _) = bench.dialled.remove(0);
    bench.step(Input::Disconnected { connection, reason: "connection refused".into() });
    let refuse = |bench: &mut script::Bench| {
        let asked = bench.asks(Kind::Read);
        let refusal = Refusal::NotLeader { partition: PARTITION, hint: Some(NodeId(1)) };
        bench.answer(asked, |out, stream| refusal.encode(out, stream));
    };
    while bench.dialled.is_empty() {
        refuse(&mut bench);
    }
    // It is dialled again, without an answer. The other one is asked on: it may lead soon.
    let soon = bench.now + Config::default().connect_timeout / 4;
    (0..3).for_each(|_| refuse(&mut bench));
    assert!(bench.now < soon, "as others name it where they refuse");
    let asked = bench.asks(Kind::MapGet);
    let reply = MapReply { map: None, leaders: vec![(PARTITION, NodeId(1))] };
    bench.answer(asked, |out, stream| {
        encode_control(out, Kind::Map, stream, &reply);
    });
    (0..3).for_each(|_| refuse(&mut bench));
    assert!(bench.now < soon, "as others name it beside their map");
}

/// Simulator, seed 7000584: a node without a replica named a former leader for ever, which named the new one; that one
/// had been out of reach, and nobody connected to it again.
#[test]
fn who_is_lost_is_connected_again_while_others_name_a_former_leader() {
    let mut bench = start(&[1, 2], NodeId(1));
    let (connection, _) = bench.dialled.remove(0);
    bench.step(Input::Disconnected { connection, reason: "connection refused".into() });
    let (mut silent, end) = (None, bench.now + 8 * Config::default().connect_timeout);
    while bench.now < end && (silent.is_none() || bench.dialled.is_empty()) {
        if let (None, Some((connection, _))) = (silent, bench.dialled.pop()) {
            // It takes the connection, and says nothing.
            bench.step(Input::Connected(connection));
            silent = Some(connection);
        }
        let is = |kind: Kind| move |(_, frame): &(ConnectionId, Frame)| frame.kind == kind as u8;
        if let Some(at) = bench.asked.iter().position(is(Kind::MapGet)) {
            let (asked, reply) =
                (bench.asked.remove(at), MapReply { map: None, leaders: vec![(PARTITION, NodeId(2))] });
            bench.answer(asked, |out, stream| {
                encode_control(out, Kind::Map, stream, &reply);
            });
        } else if let Some(at) = bench.asked.iter().position(is(Kind::Read)) {
            let refusal = Refusal::NotLeader { partition: PARTITION, hint: Some(NodeId(1)) };
            let asked = bench.asked.remove(at);
            bench.answer(asked, |out, stream| refusal.encode(out, stream));
        } else {
            bench.now = bench.session.deadline().expect("it goes on").max(bench.now);
            bench.step(Input::Tick);
        }
    }
    assert!(bench.dialled.iter().any(|(_, address)| address == "n1:1"), "{:?}", bench.closed);
}

#[cfg(feature = "mutants")]
#[test]
fn hearsay_that_is_believed_is_caught() {
    assert_caught("client_believes_hearsay", "who_is_lost_is_connected_again_while_others_name_a_former_leader");
}

#[cfg(feature = "mutants")]
#[test]
fn a_lost_node_that_is_followed_is_caught() {
    assert_caught("client_follows_the_gone", "who_is_lost_is_not_followed");
}
