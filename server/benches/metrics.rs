//! What metrics cost: a recording on a worker thread, and `/metrics` of a node with 64 partitions (goal: 20 ms at
//! most).
//!
//! `cargo bench -p coppice-server --bench metrics`

use std::hint::black_box;
use std::time::Duration;

use coppice_server::metrics::{Format, Node, Op, Outcome, PartitionSample, Queue, Stage};
use criterion::{Criterion, criterion_group, criterion_main};

fn node_with_64_partitions() -> Node {
    let node = Node::new(8);
    for index in 0..8 {
        let worker = node.worker(index);
        for op in Op::ALL {
            Outcome::ALL.iter().for_each(|outcome| worker.request(*op, *outcome, Duration::from_micros(700)));
        }
    }
    for id in 0..=64 {
        let partition = node.partition(format_args!("p{id}"));
        partition.publish(&PartitionSample { leads: true, keys: 1 << 20, ..PartitionSample::default() });
        ["n2", "n3"].iter().for_each(|peer| partition.peer(peer).set_lag(3, Duration::from_millis(2)));
    }
    node
}

fn metrics(criterion: &mut Criterion) {
    let node = node_with_64_partitions();
    let worker = node.worker(0);
    criterion.bench_function("record one request", |bencher| {
        bencher.iter(|| worker.request(black_box(Op::Put), Outcome::Ok, black_box(Duration::from_micros(700))));
    });
    criterion.bench_function("record one turn", |bencher| {
        bencher.iter(|| {
            worker.turn();
            worker.stage_busy(Stage::Order, black_box(Duration::from_micros(7)));
            worker.stage_busy(Stage::Execute, black_box(Duration::from_micros(7)));
            worker.set_queue_depth(Queue::Mailbox, black_box(3));
        });
    });
    let partition = node.partition("p1");
    let sample = PartitionSample { leads: true, ..PartitionSample::default() };
    criterion.bench_function("publish one partition", |bencher| bencher.iter(|| partition.publish(black_box(&sample))));
    criterion.bench_function("render 64 partitions", |bencher| {
        bencher.iter(|| black_box(node.render(Format::OpenMetrics)).len())
    });
    criterion.bench_function("render 64 partitions as text", |bencher| {
        bencher.iter(|| black_box(node.render(Format::Text)).len())
    });
}

criterion_group!(benches, metrics);
criterion_main!(benches);
