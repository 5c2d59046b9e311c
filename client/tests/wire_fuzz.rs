//! Decoders meet bytes from anybody: they never panic, and they allocate no more than the bytes deserve.
//!
//! The `fuzz_*` functions are the targets; here they run on random bytes, on damaged real messages and on lengths that
//! lie.

use bytes::{Bytes, BytesMut};
use coppice_btree::Op;
use coppice_client::wire::control::{decode_control, encode_control};
use coppice_client::wire::reply::result_bytes;
use coppice_client::wire::validate::RangeVersion;
use coppice_client::wire::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// A connection's bytes: frames, then the requests in them.
fn fuzz_connection(bytes: &[u8]) {
    let mut decoder = FrameDecoder::default();
    for chunk in bytes.chunks(97) {
        decoder.space();
        decoder.feed(chunk);
        while let Ok(Some(frame)) = decoder.next_frame() {
            fuzz_body(frame.kind, &frame.body);
        }
        let room = decoder.space().capacity();
        assert!(room <= 2 * bytes.len() + 8192, "{room} bytes of room for {} received", bytes.len());
    }
}

/// One message, as server and as client.
fn fuzz_body(kind: u8, body: &Bytes) {
    let frame = Frame { kind, flags: 0, stream: 1, body: body.clone() };
    if let Ok(Request::Commands(request)) = Request::decode(&frame) {
        // What was accepted must be walked over completely.
        let pack = request.pack().expect("accepted");
        assert_eq!(pack.commands().count(), pack.count() as usize);
        for (_, command) in pack.commands() {
            match command {
                Command::Op(_) => {}
                Command::Many(many) => assert_eq!(many.iter().count(), many.len()),
                Command::Load(load) => assert_eq!(load.iter().count(), load.len()),
            }
            command.is_within(b"a", Some(b"b"));
        }
    }
    if let Ok(Request::Read(read)) = Request::decode(&frame) {
        assert_eq!(read.keys().count(), read.len());
    }
    fuzz_replies(body);
}

/// What a client decodes.
fn fuzz_replies(body: &[u8]) {
    for section in Replies::new(body).flatten() {
        assert_eq!(section.results().count(), section.count as usize);
    }
    if let Ok(part) = Part::decode(body) {
        assert_eq!(part.pairs().count(), part.len());
    }
    let _ = Refusal::decode(body);
    let _ = QueryCompleted::decode(body);
    if let Ok(cut) = QueryPlan::decode(&Bytes::copy_from_slice(body)) {
        // What was accepted adjoins, ascends, and is written as it was read.
        assert!(cut.parts.windows(2).all(|pair| pair[0].high.as_ref() == Some(&pair[1].low)));
        let mut out = BytesMut::new();
        cut.encode(&mut out, 1).expect("it came in a frame");
        assert_eq!(QueryPlan::decode(&out.split_off(16).freeze()), Ok(cut));
    }
    let _ = decode_control::<HelloOk>(body, "hello");
    let _ = decode_control::<MapReply>(body, "map").map(|reply| reply.map.map(|map| map.check()));
    let _ = decode_control::<Status>(body, "status");
    let _ = decode_control::<AdminReply>(body, "admin");
    let _ = result_bytes(body);
    let mut out = BytesMut::new();
    let mut replies = RepliesWriter::new(&mut out);
    let _ = replies.answer(1, body);
    replies.finish();
}

/// What an executor decodes from a batch.
fn fuzz_batch(payload: &[u8]) {
    for entry in entry::entries(payload).flatten() {
        let _ = Pack::decode(entry.bytes);
        let _ = entry::Open::decode(entry.bytes);
        if let Ok(pack) = Pack::decode_header(entry.bytes) {
            // Unchecked: it may end early, but it ends.
            assert!(pack.commands().count() <= entry.bytes.len());
        }
    }
}

/// Real messages, to be damaged.
fn samples() -> Vec<Bytes> {
    let mut samples = Vec::new();
    for eight in [true, false] {
        let session = SessionId { partition: PartitionId(3), instance: 1 << 40, index: 7 };
        let mut writer = PackWriter::new(Vec::new(), session, 90, eight, 8_192);
        let (key, value) = (&b"key key "[..], &b"a value!"[..]);
        let ops = [Op::Put { key, value }, Op::Delete { key }, Op::Cas { key, expected: value, value }];
        for (number, op) in ops.into_iter().enumerate() {
            writer.push(100 + number as u64, op).unwrap();
        }
        writer.push_many(200, ops.into_iter()).unwrap();
        writer.push_load(300, [(key, value)].into_iter()).unwrap();
        samples.push(writer.finish(PartitionId(1), 4).unwrap());
    }
    let mut out = BytesMut::new();
    ReadRequest::encode(&mut out, 1, PartitionId(1), (false, true), [&b"a"[..], b"bc"].into_iter());
    samples.push(out.split().freeze());
    ReadRequest::encode_looks(&mut out, 1, PartitionId(1), (true, false), [&b"a"[..], b"bc"].into_iter());
    samples.push(out.split().freeze());
    let mut answer = BytesMut::new();
    let mut reply = PackReply::new(&mut answer, PartitionId(1), 9, 9);
    reply.value(Some(b"something"));
    reply.opened();
    reply.refused(CommandRefusal::Forgotten);
    reply.loaded(7);
    reply.validated(true);
    reply.validated(false);
    reply.repeated(Position { partition: PartitionId(1), instance: 4, index: 4 }, &[4]);
    reply.finish();
    let mut replies = RepliesWriter::new(&mut out);
    replies.answer(1, &answer).unwrap();
    replies.finish();
    samples.push(out.split().freeze());
    encode_control(&mut out, Kind::Admin, 1, &AdminRequest::ConfigSet { key: "a".into(), value: "b".into() });
    samples.push(out.split().freeze());
    let (low, high) = (Bytes::from_static(b"b"), Some(Bytes::from_static(b"melon")));
    let query = QueryRequest {
        query: 7,
        low: low.clone(),
        high: high.clone(),
        scan: ScanOptions { reverse: true, pairs_max: 1 << 40, ..ScanOptions::default() },
        from_leaders: false,
        spread: false,
        credit: 65_536,
    };
    query.encode(&mut out, 1);
    samples.push(out.split().freeze());
    let version = Version { replica: ReplicaId(1), incarnation: 3, began: 1 << 40, changes: 70_000 };
    let asked =
        [RangeVersion { version, low: &low, high: high.as_deref() }, RangeVersion { version, low: b"", high: None }];
    ValidateRequest::encode(&mut out, 1, (PartitionId(1), true), asked.into_iter());
    samples.push(out.split().freeze());
    let parts = vec![(PartitionId(1), low[..].into()), (PartitionId(2), b"c"[..].into())];
    let bound = high.as_ref().map(|high| high[..].into());
    let scan = ScanOptions { reverse: true, keys_only: true, count_only: false, pairs_max: 9, bytes_max: 1 << 40 };
    CollectRequest { parts, high: bound, scan, credit: 7 }.encode(&mut out, 1);
    samples.push(out.split().freeze());
    let sum = PairsSum { pairs: 3, bytes: 1 << 20, hash: [0xa7; 32] };
    let stretch = |low: &[u8], high: Option<&[u8]>| Stretch { low: low.into(), high: high.map(Into::into), sum };
    let stretches = [stretch(b"a", Some(b"b")), stretch(b"c", None)];
    for part in [None, Some(PartitionId(1))] {
        CompareRequest::encode(&mut out, 1, part, (70_000, &stretches, part.is_some()));
        samples.push(out.split().freeze());
    }
    let part = |partition, low: &Bytes, high| SubRange {
        partition: PartitionId(partition),
        low: low.clone(),
        high,
        node: NodeId(partition + 1),
    };
    let middle = Bytes::from_static(b"grape");
    let parts = vec![part(1, &low, Some(middle.clone())), part(2, &middle, high)];
    let ticket = Ticket { round: 3, replica: ReplicaId(1), n: 57 };
    QueryPlan { ticket, version: MapVersion(8), parts }.encode(&mut out, 1).unwrap();
    samples.push(out.split().freeze());
    samples
}

/// 2,000, or as many as `COPPICE_FUZZ_RUNS` asks for.
fn cases() -> u32 {
    let asked = std::env::var("COPPICE_FUZZ_RUNS").ok().filter(|text| !text.is_empty());
    asked.map_or(2_000, |text| text.parse().expect("a number below 2^32"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn random_bytes_panic_no_decoder(bytes in vec(any::<u8>(), 0..600), kind: u8) {
        fuzz_connection(&bytes);
        fuzz_batch(&bytes);
        fuzz_body(kind, &Bytes::from(bytes));
    }

    #[test]
    fn damaged_messages_panic_no_decoder(
        sample in any::<prop::sample::Index>(), damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let samples = samples();
        let sample = &samples[sample.index(samples.len())];
        let mut body = sample[16..].to_vec();
        for (at, byte) in damage {
            let at = at.index(body.len());
            body[at] = byte;
        }
        let whole = Bytes::from(body);
        fuzz_body(sample[8], &whole);
        fuzz_body(sample[8], &whole.slice(..cut.index(whole.len())));
        // With a checksum that fits, as an attacker would send it.
        let mut framed = BytesMut::new();
        encode_frame(&mut framed, Kind::from_u8(sample[8]).unwrap(), 1, &whole);
        fuzz_connection(&framed);
        if sample[8] == Kind::Commands as u8 {
            fuzz_batch(&whole[1..]);
        }
    }

    #[test]
    fn small_alphabets_reach_deep_into_the_decoders(
        bytes in vec(prop::sample::select(vec![0u8, 1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32, 0x40, 0x80, 0xff]), 0..80),
        kind in prop::sample::select(Kind::ALL.to_vec()),
    ) {
        fuzz_batch(&bytes);
        fuzz_body(kind as u8, &Bytes::from(bytes));
    }
}

#[test]
fn lengths_that_lie_get_no_memory() {
    for length in [u32::MAX, FRAME_BYTES_MAX as u32 - 15, 1 << 31] {
        let mut decoder = FrameDecoder::default();
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        decoder.feed(&bytes);
        assert!(matches!(decoder.next_frame(), Err(FrameError::TooLarge { .. })));
        // The error stays, and holds nothing.
        decoder.feed(&[0; 100]);
        assert!(matches!(decoder.next_frame(), Err(FrameError::TooLarge { .. })));
    }
    // The longest frame is announced, nothing follows: nothing is reserved for it.
    let mut decoder = FrameDecoder::default();
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&(FRAME_BYTES_MAX as u32 - 16).to_le_bytes());
    decoder.feed(&bytes);
    assert_eq!(decoder.next_frame(), Ok(None));
    assert!(decoder.space().capacity() <= 8_192);
}

/// A frame shares the buffer that it came in, and a log keeps frames for long.
#[test]
fn frames_that_are_kept_keep_little_else() {
    const BODY_BYTES: usize = 500;
    let mut decoder = FrameDecoder::default();
    let mut kept: Vec<Bytes> = Vec::new();
    for n in 0..1_000_u32 {
        let mut sent = BytesMut::new();
        encode_frame(&mut sent, Kind::Commands, n, &[n as u8; BODY_BYTES]);
        // As a socket does: as much as there is room for.
        while !sent.is_empty() {
            let room = decoder.space();
            let read = sent.len().min(room.capacity() - room.len());
            assert!(read > 0, "a read of nothing would be the end of the stream");
            room.extend_from_slice(&sent.split_to(read));
        }
        kept.push(decoder.next_frame().expect("sound").expect("whole").body);
    }
    let next_to = |pair: &[Bytes]| pair[0].as_ptr().wrapping_add(BODY_BYTES + frame::HEADER_BYTES) == pair[1].as_ptr();
    let buffers = 1 + kept.windows(2).filter(|pair| !next_to(pair)).count();
    assert!(buffers * 16 * 1024 <= 1_000 * BODY_BYTES * 5 / 4, "{buffers} buffers of up to 16 KiB for 500 kB");
}

#[test]
fn a_hello_above_its_limit_is_refused_undecoded() {
    let frame = Frame { kind: Kind::Hello as u8, flags: 0, stream: 0, body: vec![0; HELLO_BYTES_MAX + 1].into() };
    assert!(matches!(Request::decode(&frame), Err(WireError::Limit { what: "hello bytes", .. })));
}

#[test]
fn numbers_at_the_end_of_their_range_do_not_wrap() {
    let mut writer = PackWriter::new(Vec::new(), SessionId::default(), u64::MAX - 1, true, 8_192);
    writer.push(u64::MAX, Op::Get { key: b"12345678" }).unwrap();
    let bytes = writer.finish(PartitionId(u32::MAX), 1).unwrap();
    let mut body = bytes[16..].to_vec();
    fuzz_body(Kind::Commands as u8, &Bytes::from(body.clone()));
    // The first command's step becomes 2: its number would be 2^64.
    let step = body.len() - 9;
    body[step] = 2;
    let frame = Frame { kind: Kind::Commands as u8, flags: 0, stream: 0, body: body.into() };
    assert_eq!(Request::decode(&frame), Err(WireError::Overflow));
}
