//! Parts of the tree at a size that fits the caches: `cargo bench -p coppice-btree --bench parts`. For changes of the
//! code; what the tree does at its working size is in `big.rs`.

use std::collections::BTreeMap;
use std::hint::black_box;

use coppice_btree::{KeyRange, Op, Tree, Undo};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PAIRS: u64 = 100_000;

fn key(n: u64) -> [u8; 8] {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn text_key(n: u64) -> Vec<u8> {
    format!("user/{:016x}/profile", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes()
}

/// As redis-benchmark has them: all that tells keys apart stands behind the first eight bytes.
fn counted_key(n: u64) -> Vec<u8> {
    format!("key:{:012}", n * 7_919 % PAIRS).into_bytes()
}

fn tree() -> Tree {
    let mut tree = Tree::new();
    (0..PAIRS).for_each(|n| _ = tree.insert(&key(n), &key(n)));
    tree
}

fn words(c: &mut Criterion) {
    let tree = tree();
    let std: BTreeMap<u64, u64> = (0..PAIRS).map(|n| (u64::from_be_bytes(key(n)), n)).collect();
    let mut n = 0;
    let mut next = move || {
        n = (n + 7_919) % PAIRS;
        n
    };
    c.bench_function("get", |b| b.iter(|| black_box(tree.get(&key(next())))));
    c.bench_function("get std", |b| b.iter(|| black_box(std.get(&u64::from_be_bytes(key(next()))))));
    c.bench_function("scan 1000", |b| {
        b.iter(|| tree.range(&KeyRange::from(&key(next()))).take(1000).map(|(_, value)| value[0] as u64).sum::<u64>())
    });
    c.bench_function("scan 1000 std", |b| {
        b.iter(|| std.range(u64::from_be_bytes(key(next()))..).take(1000).map(|(_, value)| *value).sum::<u64>())
    });
}

fn batches(c: &mut Criterion) {
    let keys: Vec<[u8; 8]> = (PAIRS..PAIRS + 1000).map(key).collect();
    let ops: Vec<Op> = keys.iter().map(|key| Op::Insert { key, value: key }).collect();
    let (mut tree, mut undo, mut results) = (tree(), Undo::new(), Vec::new());
    c.bench_function("batch of 1000 inserts and its undo", |b| {
        b.iter(|| {
            let mark = undo.mark();
            results.clear();
            tree.execute_batch(&ops, &mut results, &mut undo);
            tree.undo_to(&mut undo, mark);
        })
    });
}

fn shapes(c: &mut Criterion) {
    let snapshot = tree().snapshot();
    let middle = snapshot.median().expect("a tree of many pairs");
    c.bench_function("split at the median and join, all nodes shared", |b| {
        b.iter_batched(
            || Tree::from(snapshot.clone()),
            |mut tree| {
                let right = tree.split_off(&middle);
                tree.join(right);
                tree
            },
            BatchSize::SmallInput,
        )
    });
    let sorted: Vec<[u8; 8]> = (0..PAIRS).map(u64::to_be_bytes).collect();
    c.bench_function("build 100000 sorted pairs", |b| {
        b.iter(|| Tree::from_sorted(sorted.iter().map(|key| (key, key))).expect("sorted pairs"))
    });
}

fn texts(c: &mut Criterion) {
    for (name, text) in [("text", text_key as fn(u64) -> Vec<u8>), ("counted", counted_key)] {
        let mut tree = Tree::new();
        let mut std = BTreeMap::new();
        for n in 0..PAIRS {
            tree.insert(&text(n), b"some text as a value");
            std.insert(text(n), b"some text as a value".to_vec());
        }
        let keys: Vec<Vec<u8>> = (0..1000).map(|n| text(n * 97 % PAIRS)).collect();
        let count = |holds: &dyn Fn(&Vec<u8>) -> bool| keys.iter().filter(|key| holds(key)).count();
        c.bench_function(&format!("1000 gets of {name} keys"), |b| b.iter(|| count(&|key| tree.contains_key(key))));
        c.bench_function(&format!("1000 gets of {name} keys std"), |b| b.iter(|| count(&|key| std.contains_key(key))));
    }
}

criterion_group!(benches, words, batches, shapes, texts);
criterion_main!(benches);
