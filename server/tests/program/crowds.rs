//! Many clients that mean no good: slow senders, slow readers, noise (hazards.md 8). Bounded forms of what an
//! attacker does with more machines; the node's memory stays under its limits, and others are served.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::{BufMut, BytesMut};
use coppice_client::wire::control::encode_control;
use coppice_client::wire::{
    ClientId, FrameDecoder, Hello, Kind, PROTOCOL, Part, PartEnd, PartitionId, RangeRequest, Refusal,
};
use coppice_core::handshake::{self, PEER_PROTOCOL, PeerHello, Purpose};
use coppice_core::wire::peer_frame;
use socket2::{Domain, Socket, Type};

use crate::support::{Cluster, eventually, patience};

/// What a busy allocator may keep beside the limits.
const SLACK_KIB: u64 = 48 << 10;

fn connected(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(patience())).expect("a socket");
    stream.set_write_timeout(Some(patience())).expect("a socket");
    stream
}

fn hello(client: u64) -> BytesMut {
    let (protocol_min, protocol_max) = (*PROTOCOL.start(), *PROTOCOL.end());
    let mut out = BytesMut::new();
    encode_control(
        &mut out,
        Kind::Hello,
        1,
        &Hello { protocol_min, protocol_max, client: ClientId(client), ..Hello::default() },
    );
    out
}

/// The head of a frame that promises as much as is allowed.
fn largest_frame() -> BytesMut {
    let mut out = BytesMut::new();
    out.put_u32_le((4 << 20) - 16);
    out.put_u32_le(0);
    out.put_slice(&[Kind::Commands as u8, 0, 0, 0]);
    out.put_u32_le(1);
    out
}

/// Resident memory of a process, in KiB.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches("kB").trim().parse().expect("a number")
}

/// Whether the other side has closed, as far as can be seen without waiting.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a socket");
    match stream.read(&mut [0; 4_096]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

#[test]
fn slow_senders_and_more_connections_than_allowed_take_no_memory_and_no_room_for_long() {
    let flags = ["--limits-connections=150", "--handshake-timeout=2s"];
    let cluster = Cluster::formed_with(1, "", &flags);
    let before = resident(cluster.pid(0));
    // Half of what is allowed says hello, promises the largest frame, and then sends a byte now and then.
    let mut slow: Vec<TcpStream> = (0..75).map(|_| connected(cluster.native_port(0))).collect();
    for (number, stream) in (100..).zip(&mut slow) {
        stream.write_all(&hello(number)).expect("it reads");
        // Who is answered is known, and gives no way to a crowd that says nothing.
        stream.read_exact(&mut [0]).expect("it answers");
        stream.write_all(&largest_frame()).expect("it reads");
    }
    // More than the rest says nothing. A busy machine may hang up on the first of them before the last one comes.
    let mut silent: Vec<TcpStream> = Vec::new();
    eventually("more than are allowed are turned away", || {
        silent.extend((0..150).map(|_| connected(cluster.native_port(0))));
        silent.retain_mut(|stream| !is_closed(stream));
        let page = cluster.page(0, "/metrics");
        let refused =
            page.lines().find(|line| line.starts_with("coppice_rejected_total") && line.contains("connections"));
        refused.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).is_some_and(|count| count >= 50.0)
    });
    eventually("who does not say hello is hung up on", || {
        slow.iter_mut().for_each(|stream| _ = stream.write_all(b"x"));
        silent.retain_mut(|stream| !is_closed(stream));
        silent.is_empty()
    });
    assert_eq!(cluster.run(&["put", "a", "1"]).code, 0, "there is room again beside the slow ones");
    assert!(slow.iter_mut().all(|stream| {
        stream.set_nonblocking(false).expect("a socket");
        stream.write_all(b"x").is_ok()
    }));
    let after = resident(cluster.pid(0));
    // What they promise is 300 MiB.
    assert!(after < before + SLACK_KIB, "memory grew from {before} KiB to {after} KiB");
}

/// What became of a range that was asked for and read late.
fn read_late(stream: &mut TcpStream) -> (u64, Option<PartEnd>, Option<Refusal>) {
    let mut decoder = FrameDecoder::default();
    let mut buffer = vec![0; 1 << 16];
    let mut pairs = 0;
    loop {
        while let Some(frame) = decoder.next_frame().expect("its frames are good") {
            match Kind::from_u8(frame.kind) {
                Some(Kind::Part) => {
                    let part = Part::decode(&frame.body).expect("readable");
                    pairs += part.len() as u64;
                    if part.end.is_some() {
                        return (pairs, part.end, None);
                    }
                }
                Some(Kind::Refused) => {
                    return (pairs, None, Some(Refusal::decode(&frame.body).expect("readable")));
                }
                _ => {}
            }
        }
        match stream.read(&mut buffer).expect("it goes on") {
            0 => panic!("closed after {pairs} pairs, without a word"),
            count => decoder.feed(&buffer[..count]),
        }
    }
}

#[test]
#[ignore = "long: waits for slow readers"]
fn slow_readers_of_everything_take_bounded_memory_and_get_all_or_an_error() {
    const PAIRS: u64 = 200;
    let pin = Duration::from_secs(2);
    let cluster = Cluster::formed_with(1, "", &["--limits-scan-snapshot-max-age=2s", "--limits-scan-bytes=4MiB"]);
    let client = cluster.client();
    for number in 0..PAIRS {
        client.put(format!("k{number:03}").as_bytes(), vec![b'v'; 100_000].as_slice()).expect("done");
    }
    let before = resident(cluster.pid(0));
    let mut readers: Vec<TcpStream> = (0..120).map(|_| connected(cluster.native_port(0))).collect();
    for (number, stream) in (200..).zip(&mut readers) {
        let mut out = hello(number);
        RangeRequest { credit: u32::MAX, ..RangeRequest::whole(PartitionId(1)) }.encode(&mut out, 2);
        stream.write_all(&out).expect("it reads");
    }
    // They read nothing until their snapshots are too old; others are served meanwhile.
    let begun = Instant::now();
    let mut most = before;
    while begun.elapsed() < pin + Duration::from_secs(2) {
        client.put(&b"other"[..], &b"1"[..]).expect("served");
        assert!(client.get(&b"other"[..]).expect("served").output.is_some());
        most = most.max(resident(cluster.pid(0)));
    }
    // All of it for all of them is 2.4 GB; without `limits.scan_bytes` each connection may hold 1 MiB.
    assert!(most < before + SLACK_KIB, "memory grew from {before} KiB to {most} KiB");
    let mut expired = 0;
    for stream in &mut readers {
        match read_late(stream) {
            (pairs, Some(PartEnd::Complete), None) => assert!(pairs >= PAIRS, "a short answer: {pairs} pairs"),
            (pairs, None, Some(Refusal::SnapshotExpired)) => {
                assert!(pairs < PAIRS);
                expired += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(expired > 0, "nobody's snapshot was let go");
}

/// Ends the noise, whether the test fails or not.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Ten minutes for a release: `COPPICE_NOISE_SECONDS=600`.
#[test]
fn noise_at_every_port_harms_nobody() {
    let seconds = std::env::var("COPPICE_NOISE_SECONDS").ok().filter(|text| !text.is_empty());
    let length = Duration::from_secs(seconds.map_or(3, |text| text.parse().expect("a number")));
    let cluster = Cluster::formed(1, "");
    let client = cluster.client();
    client.put(&b"key"[..], &b"0"[..]).expect("done");
    let ports = [cluster.native_port(0), cluster.peer_port(0), cluster.admin_port(0)];
    let before = resident(cluster.pid(0));
    let (stop, connections, sent) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let (mut most, mut served) = (before, 0_u64);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for (seed, port) in (1_u64..).zip(ports) {
            let (stop, connections, sent) = (&stop, &connections, &sent);
            scope.spawn(move || {
                let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let mut block = vec![0; 1 << 16];
                while !stop.load(Ordering::Relaxed) {
                    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                    _ = stream.set_write_timeout(Some(Duration::from_millis(200)));
                    let number = connections.fetch_add(1, Ordering::Relaxed);
                    // Every other one is greeted first, at the port where that helps.
                    if number.is_multiple_of(2) {
                        _ = stream.write_all(&hello(300 + number));
                    }
                    for word in block.chunks_exact_mut(8) {
                        state ^= state << 13;
                        state ^= state >> 7;
                        state ^= state << 17;
                        word.copy_from_slice(&state.to_le_bytes());
                    }
                    while !stop.load(Ordering::Relaxed) {
                        let Ok(count) = stream.write(&block) else { break };
                        sent.fetch_add(count as u64, Ordering::Relaxed);
                    }
                }
            });
        }
        let begun = Instant::now();
        let enough = |served| {
            let (connections, sent) = (connections.load(Ordering::Relaxed), sent.load(Ordering::Relaxed));
            begun.elapsed() >= length && served > 10 && connections > 30 && sent > 1 << 20
        };
        while !enough(served) {
            assert!(begun.elapsed() < length + patience(), "{served} puts beside too little noise");
            served += 1;
            client.put(&b"key"[..], served.to_string().as_bytes()).expect("served");
            most = most.max(resident(cluster.pid(0)));
        }
    });
    let (connections, sent) = (connections.into_inner(), sent.into_inner());
    println!("{served} puts beside {connections} connections of noise, {sent} bytes");
    assert!(most < before + SLACK_KIB, "memory grew from {before} KiB to {most} KiB");
    assert_eq!(cluster.run(&["get", "key"]).out, served.to_string());
}

/// A connection to this port from another address of the loopback network.
fn connected_from(host: u8, port: u16) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from(([127, 0, 0, host], 0)).into()).expect("an address of this machine");
    socket.connect(&SocketAddr::from(([127, 0, 0, 1], port)).into()).expect("it listens");
    socket.into()
}

/// More than 64 connections without a greeting, opened faster than a handshake takes, once ended every handshake that
/// was under way at the peer port.
#[test]
fn a_crowd_at_the_peer_port_does_not_keep_a_node_out() {
    let cluster = Cluster::formed(1, "");
    let port = cluster.peer_port(0);
    let mut node = connected(port);
    let crowd: Vec<TcpStream> = (0..400).map(|_| connected_from(2, port)).collect();
    let mut late = connected(port);
    let hello = PeerHello { protocol: PEER_PROTOCOL, purpose: Purpose::Forming, from: None, to: None };
    for stream in [&mut node, &mut late] {
        stream.write_all(&handshake::frame_of(peer_frame::HELLO, &hello)).expect("it is still open");
        let mut decoder = FrameDecoder::default();
        let mut buffer = [0; 1_024];
        let frame = loop {
            if let Some(frame) = decoder.next_frame().expect("its frames are good") {
                break frame;
            }
            match stream.read(&mut buffer).expect("it answers") {
                0 => panic!("the connection was closed"),
                count => decoder.feed(&buffer[..count]),
            }
        };
        assert_eq!(frame.kind, peer_frame::WELCOME);
    }
    drop(crowd);
}
