//! Hostile clients, one function each: what it does until it is told to stop, and what that came to in words.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use coppice_btree::Op;
use coppice_client::wire::control::encode_control;
use coppice_client::wire::{
    AdminRequest, ClientId, Frame, FrameDecoder, Hello, Kind as Wire, NodeId, OpenRequest, PACK_BYTES_MAX, PROTOCOL,
    PackWriter, PartitionId, RangeRequest, ReadRequest, Refusal, Replies, ScanOptions, SessionId, StatusGet,
    encode_frame, put_varint,
};
use coppice_testkit::random::Random;

use super::is_over;
use super::target::{BIG, Victim};

/// A kind of hostile client.
pub struct Kind {
    /// Its name in the table.
    pub name: &'static str,
    /// What it does.
    pub act: fn(&Victim, &AtomicBool) -> String,
    /// A node is restarted behind it: what it left behind may cost as much again.
    pub restarts: bool,
}

const fn kind(name: &'static str, act: fn(&Victim, &AtomicBool) -> String) -> Kind {
    Kind { name, act, restarts: false }
}

/// All of them.
pub const KINDS: &[Kind] = &[
    Kind { restarts: true, ..kind("unacknowledged", unacknowledged) },
    kind("double-gets", double_gets),
    kind("oversized-packs", oversized_packs),
    kind("repeated-packs", repeated_packs),
    kind("unread-reads", unread_reads),
    kind("status-and-admin", control),
    kind("transfers", transfers),
    kind("stopped-readers", stopped_readers),
    kind("pinned-snapshots", pinned_snapshots),
    kind("stale-reads", stale_reads),
    kind("second-hellos", second_hellos),
    kind("endless-sessions", endless_sessions),
    kind("count-only", count_only),
    kind("idle-connections", idle),
    kind("silent-peers", silent_peers),
    kind("garbage", garbage),
];

/// Their names.
pub fn names() -> Vec<&'static str> {
    KINDS.iter().map(|kind| kind.name).collect()
}

const P1: PartitionId = PartitionId(1);

/// Between two blows: a hostile client sends much, and is no endless loop on the machine that it shares.
const PAUSE: Duration = Duration::from_millis(5);

/// How long a socket may make it wait.
const SOCKET_TIMEOUT: Duration = Duration::from_millis(200);

/// A connection without a library.
struct Raw {
    stream: TcpStream,
    decoder: FrameDecoder,
}

impl Raw {
    fn open(address: SocketAddr) -> io::Result<Raw> {
        let stream = TcpStream::connect_timeout(&address, SOCKET_TIMEOUT)?;
        stream.set_read_timeout(Some(SOCKET_TIMEOUT))?;
        stream.set_write_timeout(Some(SOCKET_TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Raw { stream, decoder: FrameDecoder::default() })
    }

    /// One that has said hello; the answer is not read.
    fn greeted(victim: &Victim, client: u64) -> io::Result<Raw> {
        let mut raw = Raw::open(victim.leader)?;
        raw.send(&hello(client))?;
        Ok(raw)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// The next frame of this kind, if it comes at once.
    fn frame(&mut self, kind: Wire) -> io::Result<Frame> {
        let mut buffer = [0; 1 << 16];
        loop {
            while let Some(frame) = self.decoder.next_frame().map_err(io::Error::other)? {
                match Wire::from_u8(frame.kind) {
                    Some(of) if of == kind => return Ok(frame),
                    Some(Wire::Refused) => return Err(ErrorKind::PermissionDenied.into()),
                    _ => {}
                }
            }
            match self.stream.read(&mut buffer)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => self.decoder.feed(&buffer[..count]),
            }
        }
    }

    /// A session of its own.
    fn session(&mut self, client: u64, nonce: u64) -> io::Result<SessionId> {
        let mut out = BytesMut::new();
        OpenRequest::encode(&mut out, 1_000, P1, ClientId(client), nonce);
        self.send(&out)?;
        let frame = self.frame(Wire::Replies)?;
        let section = Replies::new(&frame.body).next().ok_or(ErrorKind::InvalidData)?.map_err(io::Error::other)?;
        Ok(SessionId::at(section.position))
    }
}

fn hello(client: u64) -> BytesMut {
    let (protocol_min, protocol_max) = (*PROTOCOL.start(), *PROTOCOL.end());
    let hello = Hello { protocol_min, protocol_max, client: ClientId(client), ..Hello::default() };
    let mut out = BytesMut::new();
    encode_control(&mut out, Wire::Hello, 1, &hello);
    out
}

/// Begins anew after each end, until the time is over: what came of it in all.
fn again(stop: &AtomicBool, mut act: impl FnMut(u64) -> io::Result<()>) -> (u64, u64) {
    let (begun, mut done, mut turned_away) = (Instant::now(), 0, 0);
    while !is_over(stop, begun) {
        match act(done + turned_away) {
            Ok(()) => done += 1,
            Err(_) => turned_away += 1,
        }
        std::thread::sleep(PAUSE);
    }
    (done, turned_away)
}

/// The connection that is open, or a new one.
fn greeted_once<'a>(line: &'a mut Option<Raw>, victim: &Victim, client: u64) -> io::Result<&'a mut Raw> {
    match line {
        Some(raw) => Ok(raw),
        none => Ok(none.insert(Raw::greeted(victim, client)?)),
    }
}

fn drawn_client(victim: &Victim) -> u64 {
    victim.random.clone().next()
}

/// Sessions whose answers are as large as they may be, and are never acknowledged.
fn unacknowledged(victim: &Victim, stop: &AtomicBool) -> String {
    let client = drawn_client(victim);
    let mut line = None;
    let (done, away) = again(stop, |round| {
        let raw = greeted_once(&mut line, victim, client)?;
        let sent = raw.session(client, round).and_then(|session| {
            let mut pack = PackWriter::new(Vec::new(), session, 1, false, PACK_BYTES_MAX);
            for number in 1..=2 {
                pack.push_many(number, [Op::Get { key: BIG }].into_iter()).map_err(|_| ErrorKind::InvalidInput)?;
            }
            raw.send(&pack.finish(P1, 2_000 + round as u32).unwrap_or_default())
        });
        if sent.is_err() {
            line = None;
        }
        sent
    });
    format!("{done} sessions, turned away {away} times")
}

/// Packs of commands that each read the largest value twice, as many as a pack takes, and the same packs again.
fn double_gets(victim: &Victim, stop: &AtomicBool) -> String {
    let client = drawn_client(victim);
    let most = 1_000 + victim.random.clone().below(10_000) as u64;
    let mut commands = 0;
    let (done, away) = again(stop, |round| {
        let mut raw = Raw::greeted(victim, client)?;
        let session = raw.session(client, round)?;
        let mut pack = PackWriter::new(Vec::new(), session, 1, false, PACK_BYTES_MAX);
        for number in 1..=most {
            let both = [Op::Get { key: BIG }, Op::Get { key: BIG }];
            if pack.push_many(number, both.into_iter()).is_err() {
                break;
            }
        }
        commands = pack.count();
        let pack = pack.finish(P1, 2_000).unwrap_or_default();
        // One after the other, under the name that the first one has: repeated.
        (0..2).try_for_each(|_| {
            raw.send(&pack)?;
            raw.frame(Wire::Replies).map(drop)
        })
    });
    format!("{done} packs of {commands} commands, turned away {away} times")
}

/// Packs of more work than one may have, as no library writes them.
fn oversized_packs(victim: &Victim, stop: &AtomicBool) -> String {
    let client = drawn_client(victim);
    let commands = 20_000 + victim.random.clone().below(120_000);
    let (mut line, mut too_large) = (None, 0_u64);
    let (done, away) = again(stop, |round| {
        let mut raw = match line.take() {
            Some(raw) => raw,
            None => Raw::greeted(victim, client)?,
        };
        let session = raw.session(client, round)?;
        raw.send(&raw_pack(session, commands, 3_000 + round as u32))?;
        let refusal = Refusal::decode(&raw.frame(Wire::Refused)?.body).map_err(io::Error::other)?;
        too_large += u64::from(matches!(refusal, Refusal::TooLarge { .. }));
        line = Some(raw);
        Ok(())
    });
    format!("{done} packs of {commands} double gets, {too_large} refused as too large, turned away {away} times")
}

/// A frame with a pack of so many double gets of the largest value.
fn raw_pack(session: SessionId, commands: usize, stream: u32) -> BytesMut {
    let mut pack = BytesMut::from(&[0][..]);
    put_varint(&mut pack, u64::from(session.partition.0));
    put_varint(&mut pack, session.instance);
    put_varint(&mut pack, u64::from(session.index));
    put_varint(&mut pack, commands as u64);
    put_varint(&mut pack, 0);
    let get = [&[5, BIG.len() as u8], BIG].concat();
    let content = [&[2], &get[..], &get[..]].concat();
    let command = [&[6, 1, content.len() as u8], &content[..]].concat();
    pack.extend_from_slice(&command.repeat(commands));
    let mut body = BytesMut::new();
    put_varint(&mut body, u64::from(P1.0));
    body.extend_from_slice(&[1]);
    put_varint(&mut body, pack.len() as u64);
    body.extend_from_slice(&pack);
    let mut frame = BytesMut::new();
    encode_frame(&mut frame, Wire::Commands, stream, &body);
    frame
}

/// A pack of small commands, as many as it takes, and the same pack again and again, several at a time.
fn repeated_packs(victim: &Victim, stop: &AtomicBool) -> String {
    let client = drawn_client(victim);
    let most = 4_000 + victim.random.clone().below(16_000) as u64;
    let mut commands = 0;
    let (done, away) = again(stop, |round| {
        let mut raw = Raw::greeted(victim, client)?;
        let session = raw.session(client, round)?;
        let pack = |stream: u32| {
            let mut pack = PackWriter::new(Vec::new(), session, 1, false, PACK_BYTES_MAX);
            for number in 1..=most {
                let key = format!("small{:08}", number * 7);
                let op = if number % 3 == 0 { Op::Delete { key: b"none" } } else { Op::Get { key: key.as_bytes() } };
                if pack.push(number, op).is_err() {
                    break;
                }
            }
            (pack.count(), pack.finish(P1, stream).unwrap_or_default())
        };
        for stream in 10..14 {
            let (count, frame) = pack(stream);
            raw.send(&frame)?;
            commands = count;
        }
        (0..4).try_for_each(|_| raw.frame(Wire::Replies).map(drop))
    });
    format!("{done} packs of {commands} commands four times, turned away {away} times")
}

/// Small requests whose large answers nobody reads.
fn unread_reads(victim: &Victim, stop: &AtomicBool) -> String {
    let (client, frames) = (drawn_client(victim), 100 + victim.random.clone().below(200) as u32);
    let mut lines = Vec::new();
    let (done, away) = again(stop, |round| {
        if lines.len() >= 16 {
            return Ok(());
        }
        let mut raw = Raw::greeted(victim, client.wrapping_add(round))?;
        let mut out = BytesMut::new();
        for stream in 2..frames + 2 {
            ReadRequest::encode(&mut out, stream, P1, (false, false), [BIG].into_iter());
        }
        raw.send(&out)?;
        lines.push(raw);
        Ok(())
    });
    format!("{} connections with {frames} reads each of {}", lines.len(), done + away)
}

/// Statuses and verbs, as many as the socket takes.
fn control(victim: &Victim, stop: &AtomicBool) -> String {
    let client = drawn_client(victim);
    let mut line = None;
    let mut drain = vec![0; 1 << 20];
    let (done, away) = again(stop, |round| {
        let raw: &mut Raw = match &mut line {
            Some(raw) => raw,
            none => none.insert(Raw::greeted(victim, client)?),
        };
        let mut out = BytesMut::new();
        for stream in 0..500 {
            let stream = 2 + (round as u32).wrapping_mul(500).wrapping_add(stream);
            match stream % 3 {
                0 => encode_control(&mut out, Wire::Admin, stream, &AdminRequest::CheckReplicas),
                1 => encode_control(&mut out, Wire::Admin, stream, &AdminRequest::Tuning { local: false }),
                _ => encode_control(&mut out, Wire::Status, stream, &StatusGet { local: false }),
            }
        }
        let sent = raw.send(&out).and_then(|()| raw.stream.read(&mut drain).map(drop));
        if sent.is_err() {
            line = None;
        }
        sent
    });
    format!("{} requests, turned away {away} times", done * 500)
}

/// Leaderships asked for with deadlines of weeks, and for nodes that there are not.
fn transfers(victim: &Victim, stop: &AtomicBool) -> String {
    let client = drawn_client(victim);
    let mut line = None;
    let (done, away) = again(stop, |round| {
        let raw: &mut Raw = match &mut line {
            Some(raw) => raw,
            none => none.insert(Raw::greeted(victim, client)?),
        };
        let mut out = BytesMut::new();
        for (at, (to, deadline_ms)) in
            [(1, u32::MAX), (2, u32::MAX / 2), (3, 1 << 30), (9, 60_000)].into_iter().enumerate()
        {
            let stream = 2 + (round as u32).wrapping_mul(4).wrapping_add(at as u32);
            let verb = AdminRequest::TransferLeader { partition: P1, to: NodeId(to), deadline_ms };
            encode_control(&mut out, Wire::Admin, stream, &verb);
        }
        let sent = raw.send(&out).and_then(|()| (0..4).try_for_each(|_| raw.frame(Wire::AdminReply).map(drop)));
        if sent.is_err() {
            line = None;
        }
        sent
    });
    format!("{} verbs, turned away {away} times", done * 4)
}

/// Connections that ask for everything, and read nothing.
fn stopped_readers(victim: &Victim, stop: &AtomicBool) -> String {
    let (client, most) = (drawn_client(victim), 40 + victim.random.clone().below(40));
    let mut lines = Vec::new();
    again(stop, |round| {
        if lines.len() >= most {
            return Ok(());
        }
        let mut raw = Raw::greeted(victim, client.wrapping_add(round))?;
        let mut out = BytesMut::new();
        for stream in 2..10 {
            RangeRequest { credit: u32::MAX, ..RangeRequest::whole(P1) }.encode(&mut out, stream);
        }
        raw.send(&out)?;
        lines.push(raw);
        Ok(())
    });
    format!("{} connections", lines.len())
}

/// Puts of some of the small keys, in a pack; the answer is not waited for.
fn put_some(raw: &mut Raw, session: SessionId, round: u64, random: &mut Random) -> io::Result<()> {
    let mut pack = PackWriter::new(Vec::new(), session, round * 64 + 1, false, PACK_BYTES_MAX);
    for number in 1..=64 {
        let key = format!("small{:08}", random.below(20_000));
        let value = [b'h'; 200];
        pack.push(round * 64 + number, Op::Put { key: key.as_bytes(), value: &value })
            .map_err(|_| ErrorKind::InvalidInput)?;
    }
    raw.send(&pack.finish(P1, 5_000 + round as u32).unwrap_or_default())
}

/// Ranges that were begun and rest, while what they read is overwritten.
fn pinned_snapshots(victim: &Victim, stop: &AtomicBool) -> String {
    let (client, mut random) = (drawn_client(victim), victim.random.clone());
    let (mut lines, mut writer, mut puts) = (Vec::new(), None, 0);
    let (_, away) = again(stop, |round| {
        let (raw, session, at) = match &mut writer {
            Some(writer) => writer,
            none => {
                let mut raw = Raw::greeted(victim, client)?;
                let session = raw.session(client, round)?;
                none.insert((raw, session, 0))
            }
        };
        let sent = put_some(raw, *session, *at, &mut random).and_then(|()| raw.frame(Wire::Replies).map(drop));
        *at += 1;
        if let Err(error) = sent {
            writer = None;
            return Err(error);
        }
        puts += 64;
        if lines.len() < 100 {
            let mut raw = Raw::greeted(victim, client.wrapping_add(round))?;
            let mut out = BytesMut::new();
            for stream in 2..10 {
                RangeRequest { credit: 1, ..RangeRequest::whole(P1) }.encode(&mut out, stream);
            }
            raw.send(&out)?;
            lines.push(raw);
        }
        Ok(())
    });
    format!("{} connections, {puts} puts, turned away {away} times", lines.len())
}

/// Stale reads and ranges, many at a time, while writes are undecided: others' and the client's own.
fn stale_reads(victim: &Victim, stop: &AtomicBool) -> String {
    let (client, mut random) = (drawn_client(victim), victim.random.clone());
    let mut line = None;
    let (done, away) = again(stop, |round| {
        let (raw, session, at) = match &mut line {
            Some(line) => line,
            none => {
                let mut raw = Raw::greeted(victim, client)?;
                let session = raw.session(client, round)?;
                none.insert((raw, session, 0))
            }
        };
        let mut out = BytesMut::new();
        let base = 10_000 + (*at as u32).wrapping_mul(64);
        for stream in base..base + 64 {
            let key = format!("guest{:04}", stream % 1_000);
            match stream % 4 {
                0 => RangeRequest {
                    stale: true,
                    scan: ScanOptions { pairs_max: 1, ..ScanOptions::default() },
                    credit: 1,
                    ..RangeRequest::whole(P1)
                }
                .encode(&mut out, stream),
                _ => ReadRequest::encode(&mut out, stream, P1, (true, true), [key.as_bytes()].into_iter()),
            }
        }
        let sent = put_some(raw, *session, *at, &mut random).and_then(|()| raw.send(&out));
        let sent = sent.and_then(|()| raw.frame(Wire::Replies).map(drop));
        *at += 1;
        if sent.is_err() {
            line = None;
        }
        sent
    });
    format!("{} reads, turned away {away} times", done * 64)
}

/// Connections that say hello again and again, each time as somebody else.
fn second_hellos(victim: &Victim, stop: &AtomicBool) -> String {
    let client = drawn_client(victim);
    let (done, away) = again(stop, |round| {
        let mut raw = Raw::greeted(victim, client.wrapping_add(round << 8))?;
        let mut out = BytesMut::new();
        (1..200).for_each(|more| out.extend_from_slice(&hello(client.wrapping_add((round << 8) + more))));
        raw.send(&out)
    });
    format!("{} hellos on {done} connections, turned away {away} times", done * 200)
}

/// Sessions that nobody uses, hundreds at a time over one connection.
fn endless_sessions(victim: &Victim, stop: &AtomicBool) -> String {
    let client = drawn_client(victim);
    let mut line = None;
    let (done, away) = again(stop, |round| {
        let raw = greeted_once(&mut line, victim, client)?;
        let mut out = BytesMut::new();
        for stream in 0..500 {
            OpenRequest::encode(&mut out, 1_000 + stream, P1, ClientId(client), round * 500 + u64::from(stream));
        }
        let sent = raw.send(&out).and_then(|()| raw.frame(Wire::Replies).map(drop));
        if sent.is_err() {
            line = None;
        }
        sent
    });
    format!("{} sessions, turned away {away} times", done * 500)
}

/// Ranges that are only counted, as many as a connection may have.
fn count_only(victim: &Victim, stop: &AtomicBool) -> String {
    let client = drawn_client(victim);
    let mut drain = vec![0; 1 << 20];
    let (done, away) = again(stop, |round| {
        let mut raw = Raw::greeted(victim, client.wrapping_add(round))?;
        let mut out = BytesMut::new();
        for stream in 2..770 {
            let range = RangeRequest {
                scan: ScanOptions { count_only: true, ..ScanOptions::default() },
                credit: u32::MAX,
                ..RangeRequest::whole(P1)
            };
            range.encode(&mut out, stream);
        }
        raw.send(&out)?;
        raw.stream.read(&mut drain).map(drop)
    });
    format!("{} ranges, turned away {away} times", done * 768)
}

/// Ten thousand connections, where descriptors allow it: greeted, and then silent.
fn idle(victim: &Victim, stop: &AtomicBool) -> String {
    let (client, most) = (drawn_client(victim), descriptors().min(10_000));
    let mut lines = Vec::new();
    again(stop, |round| {
        for at in 0..64.min(most.saturating_sub(lines.len())) {
            lines.push(Raw::greeted(victim, client.wrapping_add((round << 8) + at as u64))?);
        }
        Ok(())
    });
    format!("{} connections", lines.len())
}

/// Connections to the port of other nodes that never say a word.
fn silent_peers(victim: &Victim, stop: &AtomicBool) -> String {
    let most = (descriptors() / 2).min(1_500);
    let mut lines = Vec::new();
    let (_, away) = again(stop, |_| {
        for _ in 0..64.min(most - lines.len()) {
            lines.push(Raw::open(victim.peer)?);
        }
        Ok(())
    });
    format!("{} connections, turned away {away} times", lines.len())
}

/// Noise at both ports.
fn garbage(victim: &Victim, stop: &AtomicBool) -> String {
    let mut random = victim.random.clone();
    let client = random.next();
    let (done, away) = again(stop, |round| {
        let mut raw = match round % 3 {
            0 => Raw::open(victim.leader)?,
            1 => Raw::greeted(victim, client)?,
            _ => Raw::open(victim.peer)?,
        };
        let words = (0..1 + random.below(8_192)).map(|_| random.next());
        let noise: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        raw.send(&noise)
    });
    format!("{done} connections, turned away {away} times")
}

/// Files that this process may have open, a thousand at least for itself.
fn descriptors() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Where that is not allowed, there are as many as there are.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let most = getrlimit(Resource::Nofile).current.unwrap_or(1 << 14);
    usize::try_from(most).unwrap_or(usize::MAX).saturating_sub(1_000).max(100)
}
