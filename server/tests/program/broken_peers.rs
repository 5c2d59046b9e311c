//! Bytes and nodes that do not belong: garbage, other clusters, copies of a data directory.

use std::io::{Read, Write};
use std::net::TcpStream;

use bytes::{BufMut, BytesMut};
use coppice_client::wire::control::encode_control;
use coppice_client::wire::{
    ClusterId, Frame, FrameDecoder, Hello, Kind, MANY_OPERATIONS_MAX, PROTOCOL, Refusal, encode_frame, put_varint,
};
use coppice_core::wire::peer_frame;

use crate::support::{Cluster, eventually, patience};

/// What a port answers to these bytes until it closes the connection: its frames.
#[track_caller]
fn answers(port: u16, bytes: &[u8]) -> Vec<Frame> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(patience())).expect("a socket");
    // A port that has answered and closed may be gone before all is written.
    let _ = stream.write_all(bytes);
    let mut decoder = FrameDecoder::default();
    let mut buffer = [0; 4096];
    let mut frames = Vec::new();
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return frames,
            Ok(count) => decoder.feed(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return frames,
            Err(error) => panic!("left open: {error}"),
        }
        while let Some(frame) = decoder.next_frame().expect("its frames are good") {
            frames.push(frame);
        }
    }
}

/// The sentence of the last frame, which must refuse.
#[track_caller]
fn refusal(frames: &[Frame]) -> String {
    let frame = frames.last().expect("an answer");
    assert_eq!(Kind::from_u8(frame.kind), Some(Kind::Refused));
    match Refusal::decode(&frame.body).expect("readable") {
        Refusal::BadRequest { text } | Refusal::Denied { text } => text,
        other => panic!("{other:?}"),
    }
}

fn hello(cluster: Option<ClusterId>) -> BytesMut {
    let hello = Hello { protocol_min: *PROTOCOL.start(), protocol_max: *PROTOCOL.end(), cluster, ..Hello::default() };
    let mut out = BytesMut::new();
    encode_control(&mut out, Kind::Hello, 0, &hello);
    out
}

/// A frame header that promises `length` bytes.
fn promising(length: u32) -> BytesMut {
    let mut out = BytesMut::new();
    out.put_u32_le(length);
    out.put_u32_le(0);
    out.put_slice(&[Kind::Ping as u8, 0, 0, 0]);
    out.put_u32_le(1);
    out
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches("kB").trim().parse().expect("a number")
}

#[test]
fn garbage_and_oversized_frames_get_a_readable_error_and_take_no_memory() {
    let cluster = Cluster::formed(1, "");
    let (native, peer) = (cluster.native_port(0), cluster.peer_port(0));
    let after_hello = |bytes: &[u8]| [&hello(None)[..], bytes].concat();
    let mut broken = BytesMut::new();
    encode_frame(&mut broken, Kind::Ping, 1, b"");
    broken[4] ^= 1;
    let mut commands = BytesMut::new();
    encode_frame(&mut commands, Kind::Commands, 1, &[0xff; 64]);
    let cases: [(u16, Vec<u8>, &str); 9] = [
        (native, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), "frame of"),
        (native, promising(u32::MAX).to_vec(), "frame of"),
        (native, after_hello(&promising((4 << 20) + 1)), "frame of"),
        (native, after_hello(&broken), "checksum"),
        (native, after_hello(&commands), ""),
        (native, broken.to_vec(), "checksum"),
        (peer, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), "port of other nodes"),
        (peer, promising(u32::MAX).to_vec(), "frame of"),
        (peer, promising(4 << 10).to_vec(), "frame of"),
    ];
    let before = resident_kib(cluster.pid(0));
    for round in 0..40 {
        for (number, (port, bytes, word)) in cases.iter().enumerate() {
            let text = refusal(&answers(*port, bytes));
            assert!(text.contains(word), "case {number} in round {round}: {text}");
        }
    }
    let after = resident_kib(cluster.pid(0));
    assert!(after < before + 16 * 1024, "memory grew from {before} KiB to {after} KiB");
    assert_eq!(cluster.run(&["put", "a", "1"]).code, 0);
}

/// 209,000 double gets of one large value took 21 s on every replica.
#[test]
fn a_pack_of_too_much_work_is_refused_with_the_limit_and_its_size_and_the_connection_goes_on() {
    const COMMANDS: usize = 209_000;
    let cluster = Cluster::formed(1, "");
    // flags, session, count, lowest number; then two gets of the empty key under each number.
    let mut pack = BytesMut::from(&[0, 1, 1, 0][..]);
    put_varint(&mut pack, COMMANDS as u64);
    put_varint(&mut pack, 0);
    pack.extend_from_slice(&[6, 1, 5, 2, 5, 0, 5, 0].repeat(COMMANDS));
    let mut body = BytesMut::from(&[1, 1][..]);
    put_varint(&mut body, pack.len() as u64);
    body.extend_from_slice(&pack);
    let mut frames = hello(None);
    encode_frame(&mut frames, Kind::Commands, 7, &body);
    encode_frame(&mut frames, Kind::Ping, 8, b"");
    // Ends the connection, which stays open otherwise.
    frames.extend_from_slice(&promising(u32::MAX));
    let frames = answers(cluster.native_port(0), &frames);
    let kinds: Vec<_> = frames.iter().map(|frame| (Kind::from_u8(frame.kind), frame.stream)).collect();
    let expected = [(Kind::HelloOk, 0), (Kind::Refused, 7), (Kind::Pong, 8), (Kind::Refused, 0)];
    assert_eq!(kinds, expected.map(|(kind, stream)| (Some(kind), stream)));
    let text = format!("operations in a pack is {}, at most {MANY_OPERATIONS_MAX} is allowed", 2 * COMMANDS);
    assert_eq!(Refusal::decode(&frames[1].body), Ok(Refusal::TooLarge { text }));
}

/// Frames of nodes at the clients' port, before and after a greeting, and of clients at the nodes' port.
#[test]
fn a_message_at_the_wrong_port_is_refused() {
    let cluster = Cluster::formed(1, "");
    let bodies: [&[u8]; 2] = [b"", &[1; 40]];
    for body in bodies {
        for kind in peer_frame::HELLO..=peer_frame::ALIVE {
            let frame = peer_frame::frame(kind, body);
            for bytes in [frame.to_vec(), [&hello(None)[..], &frame].concat()] {
                let text = refusal(&answers(cluster.native_port(0), &bytes));
                assert!(!text.is_empty() && !text.contains("checksum"), "kind {kind}: {text}");
            }
        }
        for &kind in Kind::ALL {
            let text = refusal(&answers(cluster.peer_port(0), &peer_frame::frame(kind as u8, body)));
            assert!(text.contains("does not open a connection between nodes"), "{kind:?}: {text}");
        }
    }
    assert_eq!(cluster.run(&["put", "a", "1"]).code, 0);
}

#[test]
fn a_client_of_another_cluster_is_told_both_ids() {
    let cluster = Cluster::formed(1, "");
    let status = cluster.run(&["status", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&status.out).expect("json");
    let own = json["cluster"].as_str().expect("an id").to_owned();
    let other = ClusterId(0x1234_5678);
    let text = refusal(&answers(cluster.native_port(0), &hello(Some(other))));
    assert!(text.contains(&own) && text.contains(&other.to_string()), "{text}");
}

#[test]
fn a_node_of_another_cluster_is_refused_with_both_ids() {
    let mut cluster = Cluster::formed(3, "");
    let stranger = Cluster::formed(3, "");
    let id = |cluster: &Cluster| -> String {
        let said = cluster.run(&["status", "-o", "json"]);
        let json: serde_json::Value = serde_json::from_str(&said.out).expect("json");
        json["cluster"].as_str().expect("an id").to_owned()
    };
    let ids = [id(&cluster), id(&stranger)];
    drop(stranger.run(&["put", "a", "foreign"]));
    cluster.kill(2);
    // The directory of another cluster's n3 comes up in the place of this one's.
    let (home, foreign) = (cluster.data_dir(2), stranger.data_dir(2));
    std::fs::rename(&home, home.with_extension("away")).expect("it is ours");
    let copied = std::process::Command::new("cp").arg("-a").args([&foreign, &home]).status().expect("cp runs");
    assert!(copied.success());
    cluster.start(2, "ready");
    for node in 0..3 {
        eventually("every side's log tells both ids", || {
            cluster.log(node).lines().any(|line| line.contains("refuse") && ids.iter().all(|id| line.contains(id)))
        });
    }
    assert_eq!(cluster.run(&["put", "a", "1"]).code, 0, "the others go on");
    assert_eq!(cluster.run(&["get", "a"]).out, "1");
}

#[test]
fn an_old_copy_of_a_data_directory_is_found_out_by_the_others() {
    let mut cluster = Cluster::formed(3, "");
    let client = cluster.client();
    client.put(&b"a"[..], &b"1"[..]).expect("done");
    // Copied within the life of the node: only what it told the others since gives the copy away.
    let (home, copy) = (cluster.data_dir(2), cluster.scratch.path("copy"));
    let copied = std::process::Command::new("cp").arg("-a").args([&home, &copy]).status().expect("cp runs");
    assert!(copied.success());
    for number in 0..50 {
        client.put(&b"a"[..], format!("{number}").as_bytes()).expect("done");
    }
    cluster.kill(2);
    std::fs::remove_dir_all(&home).expect("it is ours");
    std::fs::rename(&copy, &home).expect("it is ours");
    cluster.start(2, "ready");
    eventually("the others refuse it", || {
        cluster.log(2).lines().any(|line| line.contains("refuses this one") && line.contains("old copy"))
    });
    assert_eq!(cluster.run(&["get", "a"]).out, "49");
}
