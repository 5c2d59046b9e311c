//! `coppice-load unloaded`: one durable put at a time, beside what it is made of. A put waits for a round trip of the
//! client, one between replicas and a flush; the three are measured in turn with the puts, so that whatever the machine
//! does meanwhile falls on all of them alike.
//!
//! A round trip between replicas cannot be seen from outside: a ping of the client to a node that does not lead goes
//! the same way, from one thread of this machine through a socket to the worker thread of a node, and back.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use bytes::BytesMut;
use coppice_client::blocking::Client;
use coppice_client::wire::control::encode_control;
use coppice_client::wire::{ClientId, FrameDecoder, Hello, Kind, NodeId, PROTOCOL, encode_frame};
use hdrhistogram::Histogram;

use super::args::{Global, Output, TargetName, UnloadedArgs};
use super::failure::{Exit, Failure};
use super::store::Store;
use crate::say::say;
use crate::units::print_count;

/// What is flushed is written into a file of zeros of this size, as the server's log is.
const FLUSHED_FILE_BYTES: u64 = 4 << 20;

/// Every flush writes one block, as a log record of one command does.
const BLOCK_BYTES: u64 = 4_096;

/// Rounds that are not counted: connections open, caches fill.
const WARM_UP_ROUNDS: u64 = 50;

/// Carries the command out.
pub fn unloaded(args: &UnloadedArgs, global: &Global) -> Result<Exit, Failure> {
    let Store::Native(options) = Store::new(TargetName::Native, global)? else { return Ok(Exit::Done) };
    if options.tls.is_some() {
        let cause = "its pings are compared with round trips of the network";
        return Err(Failure::usage("unloaded measures connections in the clear", cause, "coppice-load run --help"));
    }
    let store = Store::Native(options.clone());
    let failed = |error: &dyn std::fmt::Display| store.unavailable(error.to_string());
    let client =
        Client::connect_with(options.endpoints.iter().cloned(), options.config()).map_err(|error| failed(&error))?;
    let map = client.map().map_err(|error| failed(&error))?;
    let key = b"unloaded".as_slice();
    let entry = map.route(key).ok_or_else(|| failed(&"the map has no partition"))?;
    // The two first nodes that are no one's leader as far as a put can tell: any two nodes have the same way to them.
    let nodes: Vec<NodeId> = entry.replicas.iter().map(|info| info.node).collect();
    let address = |at: usize| nodes.get(at).and_then(|&node| map.node(node)).map(|node| node.addresses.native.clone());
    let mut pings = Vec::new();
    for at in 0..2 {
        let address = address(at).ok_or_else(|| failed(&"the partition has fewer than two replicas"))?;
        pings.push(Pinger::connect(&address, global).map_err(|error| failed(&error))?);
    }
    let mut flusher = Flusher::new(&args.dir).map_err(|error| failed(&format!("{}: {error}", args.dir.display())))?;
    let mut put = times();
    let (mut of_client, mut of_replica, mut flush) = (times(), times(), times());
    for round in 0..args.rounds + WARM_UP_ROUNDS {
        let counted = round >= WARM_UP_ROUNDS;
        let note = |into: &mut Histogram<u64>, since: Instant| {
            if counted {
                into.saturating_record(since.elapsed().as_nanos() as u64);
            }
        };
        let since = Instant::now();
        client.put(key, round.to_be_bytes()).map_err(|error| failed(&error))?;
        note(&mut put, since);
        for (pinger, into) in pings.iter_mut().zip([&mut of_client, &mut of_replica]) {
            let since = Instant::now();
            pinger.ping().map_err(|error| failed(&error))?;
            note(into, since);
        }
        let since = Instant::now();
        flusher.flush().map_err(|error| failed(&error))?;
        note(&mut flush, since);
    }
    report(global.output, args.rounds, [&put, &of_client, &of_replica, &flush]);
    Ok(Exit::Done)
}

fn times() -> Histogram<u64> {
    // Three digits of anything up to a minute; the bounds are constants, so this cannot fail.
    Histogram::new_with_bounds(1_000, 60_000_000_000, 3).expect("bounds of a histogram")
}

fn report(output: Output, rounds: u64, [put, of_client, of_replica, flush]: [&Histogram<u64>; 4]) {
    let at = |times: &Histogram<u64>, quantile: f64| times.value_at_quantile(quantile) as f64 / 1e6;
    let sum = at(of_client, 0.5) + at(of_replica, 0.5) + at(flush, 0.5);
    let ratio = at(put, 0.5) / sum;
    if let Output::Json = output {
        let p50 = |times| (at(times, 0.5) * 1e6).round() / 1e6;
        say!(
            "{}",
            serde_json::json!({
                "v": 1, "rounds": rounds, "put_p50_ms": p50(put), "put_p99_ms": at(put, 0.99),
                "client_round_trip_p50_ms": p50(of_client), "replica_round_trip_p50_ms": p50(of_replica),
                "fdatasync_p50_ms": p50(flush), "ratio": (ratio * 1e3).round() / 1e3,
            })
        );
        return;
    }
    say!("{} rounds, one request at a time; ms", print_count(rounds));
    say!("{:<42} {:>7} {:>7} {:>7}", "", "p50", "p90", "p99");
    let line = |name: &str, times| {
        say!("{name:<42} {:>7.3} {:>7.3} {:>7.3}", at(times, 0.5), at(times, 0.9), at(times, 0.99));
    };
    line("durable put", put);
    line("round trip to a node (client)", of_client);
    line("round trip to a node (as between replicas)", of_replica);
    line("fdatasync of one block", flush);
    say!("put / (round trip + round trip + fdatasync) = {ratio:.2} at p50");
}

/// A connection on which nothing but pings goes.
struct Pinger {
    stream: TcpStream,
    decoder: FrameDecoder,
    stream_number: u32,
}

impl Pinger {
    fn connect(address: &str, global: &Global) -> std::io::Result<Pinger> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(global.timeout))?;
        let mut pinger = Pinger { stream, decoder: FrameDecoder::default(), stream_number: 1 };
        let (protocol_min, protocol_max) = (*PROTOCOL.start(), *PROTOCOL.end());
        let client = ClientId(crate::target::native::unique_seed());
        let hello = Hello { protocol_min, protocol_max, client, token: global.token.clone(), ..Hello::default() };
        let mut out = BytesMut::new();
        encode_control(&mut out, Kind::Hello, 1, &hello);
        pinger.stream.write_all(&out)?;
        pinger.expect(Kind::HelloOk)?;
        Ok(pinger)
    }

    fn ping(&mut self) -> std::io::Result<()> {
        self.stream_number += 1;
        let mut out = BytesMut::with_capacity(16);
        encode_frame(&mut out, Kind::Ping, self.stream_number, &[]);
        self.stream.write_all(&out)?;
        self.expect(Kind::Pong)
    }

    fn expect(&mut self, kind: Kind) -> std::io::Result<()> {
        let mut buffer = [0; 4_096];
        loop {
            match self.decoder.next_frame() {
                Ok(Some(frame)) if frame.kind == kind as u8 => return Ok(()),
                Ok(Some(frame)) => return Err(std::io::Error::other(format!("a frame of kind {}", frame.kind))),
                Ok(None) => {}
                Err(error) => return Err(std::io::Error::other(error.to_string())),
            }
            match self.stream.read(&mut buffer)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                count => self.decoder.feed(&buffer[..count]),
            }
        }
    }
}

/// Writes and flushes blocks of a file that is there already, as the log does.
struct Flusher {
    file: File,
    at: u64,
    path: std::path::PathBuf,
}

impl Flusher {
    fn new(directory: &std::path::Path) -> std::io::Result<Flusher> {
        let path = directory.join(format!(".coppice-load-flush-{}", std::process::id()));
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        file.write_all_at(&vec![0; FLUSHED_FILE_BYTES as usize], 0)?;
        file.sync_all()?;
        Ok(Flusher { file, at: 0, path })
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.write_all_at(&[1; 64], self.at)?;
        self.at = (self.at + BLOCK_BYTES) % FLUSHED_FILE_BYTES;
        self.file.sync_data()
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        _ = std::fs::remove_file(&self.path);
    }
}
