//! What a connection of the RESP port costs for each request of a pipeline, without its socket and without the cluster:
//! parse, plan, share a command, take the answer in, write it.
//!
//! `cargo bench -p coppice-server --bench resp`

use std::hint::black_box;

use bytes::BytesMut;
use coppice_client::command::{Command, Operation, Output};
use coppice_client::map::{Entry, PartitionMap};
use coppice_client::{OpResult, Value};
use coppice_core::access::Access;
use coppice_core::resp::connection::Limits;
use coppice_core::resp::identity::ClientRow;
use coppice_core::resp::server::Facts;
use coppice_core::resp::{Context, Effect, Input, NodeView, RespConnection};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// Requests of a pipeline.
const REQUESTS: usize = 16;

fn result(operation: &Operation) -> OpResult {
    match operation {
        Operation::Get { .. } => OpResult::Get { value: Some(Value::from("xxx")) },
        _ => OpResult::Put { previous: None },
    }
}

fn output(command: &Command) -> Output {
    match command {
        Command::One(operation) => Output::One(result(operation)),
        Command::Many(operations) => Output::Many(operations.iter().map(result).collect()),
        other => unreachable!("no request here asks {other:?}"),
    }
}

fn resp(criterion: &mut Criterion) {
    let (access, node) = (Access::default(), NodeView::new(6));
    let map = PartitionMap { partitions: vec![Entry::default()], ..PartitionMap::default() };
    let context = || Context {
        now: 1_000_000,
        draw: &|| 7,
        map: &map,
        access: &access,
        node: &node,
        room: 1 << 24,
        loading: None,
        facts: &Facts::default,
    };
    let limits = Limits { requests: 1 << 10, bytes: 1 << 24 };
    let mut group = criterion.benchmark_group("16 requests");
    group.throughput(Throughput::Elements(REQUESTS as u64));
    for (name, value, keys) in [
        ("GET of one key", None, 1),
        ("GET of 16 keys", None, 16),
        ("SET of one key", Some("xxx"), 1),
        ("SET of 16 keys", Some("xxx"), 16),
    ] {
        let request = |at: usize| match value {
            Some(value) => {
                format!("*3\r\n$3\r\nSET\r\n$16\r\nkey:{:012}\r\n${}\r\n{value}\r\n", at % keys, value.len())
            }
            None => format!("*2\r\n$3\r\nGET\r\n$16\r\nkey:{:012}\r\n", at % keys),
        };
        let requests: String = (0..REQUESTS).map(request).collect();
        let mut connection = RespConnection::new(1, ClientRow::default(), limits, &mut context());
        let (mut bytes, mut effects) = (BytesMut::new(), Vec::new());
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                bytes.extend_from_slice(requests.as_bytes());
                connection.step(&mut context(), Input::TurnEnd(&mut bytes), &mut effects);
                while !effects.is_empty() {
                    for effect in std::mem::take(&mut effects) {
                        let Effect::Ask(ask) = effect else { continue };
                        let input = Input::Answered { call: ask.call, outcome: Ok(output(&ask.command)) };
                        connection.step(&mut context(), input, &mut effects);
                    }
                    connection.step(&mut context(), Input::TurnEnd(&mut bytes), &mut effects);
                }
                assert!(connection.is_idle() || !connection.output().is_empty());
                black_box(connection.output()).clear();
            });
        });
    }
    group.finish();
}

criterion_group!(benches, resp);
criterion_main!(benches);
