//! What the hot messages cost, per command or pair of 8 bytes and 8 bytes: `cargo bench -p coppice-client --bench
//! wire`.

use std::hint::black_box;

use bytes::{Bytes, BytesMut};
use coppice_btree::{Op, OpResult, Value};
use coppice_client::wire::part::PartHead;
use coppice_client::wire::*;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// A pack of 8 KiB, as the client library packs by default.
const COMMANDS: u64 = 455;
/// A range of the papers.
const PAIRS: u64 = 1000;

fn session() -> SessionId {
    SessionId { partition: PartitionId(3), instance: 1 << 30, index: 17 }
}

fn pack(buffer: Vec<u8>) -> Bytes {
    let mut writer = PackWriter::new(buffer, session(), 1 << 40, true, usize::MAX);
    for n in 0..COMMANDS {
        let key = n.to_be_bytes();
        writer.push((1 << 40) + n, Op::Put { key: &key, value: &key }).unwrap();
    }
    writer.finish(PartitionId(3), 7).unwrap()
}

fn frame_of(bytes: &[u8]) -> Frame {
    let mut decoder = FrameDecoder::default();
    decoder.feed(bytes);
    decoder.next_frame().unwrap().unwrap()
}

fn packs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pack");
    group.throughput(Throughput::Elements(COMMANDS));
    group.bench_function("encode with crc", |bench| {
        bench.iter(|| black_box(pack(Vec::with_capacity(9_000))));
    });
    let bytes = pack(Vec::new());
    group.bench_function("frame with crc", |bench| bench.iter(|| black_box(frame_of(&bytes))));
    let frame = frame_of(&bytes);
    group.bench_function("check", |bench| bench.iter(|| black_box(Request::decode(&frame).unwrap())));
    let Request::Commands(request) = Request::decode(&frame).unwrap() else { unreachable!() };
    group.bench_function("walk", |bench| {
        bench.iter(|| request.pack().unwrap().commands().map(|(number, _)| number).sum::<u64>());
    });
    group.finish();
}

fn answers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("answer");
    group.throughput(Throughput::Elements(COMMANDS));
    let results: Vec<OpResult> =
        (0..COMMANDS).map(|n| OpResult::Put { previous: Some(Value::from(n.to_be_bytes())) }).collect();
    let mut out = BytesMut::new();
    let mut answer = |results: &[OpResult]| {
        let mut reply = PackReply::new(&mut out, PartitionId(3), 1 << 30, 0);
        results.iter().for_each(|result| reply.result(result));
        reply.finish_split()
    };
    group.bench_function("encode", |bench| bench.iter(|| black_box(answer(&results))));
    let encoded = answer(&results);
    let frame = || {
        let mut frames = BytesMut::with_capacity(8_192);
        let mut replies = RepliesWriter::new(&mut frames);
        replies.answer(7, &encoded).unwrap();
        replies.finish();
        frames
    };
    group.bench_function("frame with crc", |bench| bench.iter(|| black_box(frame())));
    let frame = frame_of(&frame());
    group.bench_function("check and walk", |bench| {
        bench.iter(|| Replies::new(&frame.body).flatten().map(|section| section.results().count()).sum::<usize>());
    });
    group.finish();
}

fn parts(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("part");
    group.throughput(Throughput::Elements(PAIRS));
    let position = Position { partition: PartitionId(3), instance: 1 << 30, index: 0 };
    let head = PartHead { stream: 7, position, ticket: None, version: None, keys_only: false };
    let pairs: Vec<[u8; 8]> = (0..PAIRS).map(u64::to_be_bytes).collect();
    let encode = |out: &mut BytesMut, eight| {
        let mut writer = PartWriter::new(out, &head, 0, eight);
        assert!(pairs.iter().all(|key| writer.push(key, key)));
        writer.finish(0, Some(PartEnd::Complete));
    };
    let words: Vec<[u8; 16]> = pairs.iter().map(|key| std::array::from_fn(|at| key[at % 8])).collect();
    let mut out = BytesMut::with_capacity(32_768);
    group.bench_function("encode with crc, 8 bytes, a leaf at once", |bench| {
        bench.iter(|| {
            out.clear();
            let mut writer = PartWriter::new(&mut out, &head, 0, true);
            assert!(words.chunks(33).all(|leaf| writer.push_words(leaf) == leaf.len()));
            writer.finish(0, Some(PartEnd::Complete))
        });
    });
    for (name, eight) in [("8 bytes", true), ("any length", false)] {
        let mut out = BytesMut::with_capacity(32_768);
        group.bench_function(format!("encode with crc, {name}"), |bench| {
            bench.iter(|| {
                out.clear();
                encode(&mut out, eight);
            });
        });
        let frame = frame_of(&out);
        group.bench_function(format!("check and walk, {name}"), |bench| {
            bench.iter(|| {
                let mut cursor = PartCursor::new(frame.body.clone()).unwrap();
                let mut bytes = 0;
                while let Some((key, value)) = cursor.next_pair() {
                    bytes += key.len() + value.len();
                }
                bytes
            });
        });
    }
    group.finish();
}

criterion_group!(benches, packs, answers, parts);
criterion_main!(benches);
