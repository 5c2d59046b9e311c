//! The tree with its one unsafe module beside the same tree without it, in one run, at the working size:
//! `cargo bench -p coppice-btree --bench twins`. The unsafe module stays while it makes what it is for (commands on
//! eight-byte keys) at least 1.3 times as fast.
//!
//! The safe tree is built from the same files as part of this program, with `link_safe.rs` in the place of `link.rs`.
//! Rounds take turns, time is that of this thread, and only ratios count.
//! `ENTRIES=1000000` makes it smaller.
#![allow(dead_code, unused_imports, unreachable_pub)]

use std::hint::black_box;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

// The crate's files, as `lib.rs` lists them.
#[macro_use]
extern crate planted;
#[path = "../src/bulk.rs"]
mod bulk;
#[path = "../src/capacity.rs"]
mod capacity;
#[path = "../src/check.rs"]
mod check;
#[path = "../src/cursor.rs"]
mod cursor;
#[path = "../src/descent.rs"]
mod descent;
#[path = "../src/digest.rs"]
mod digest;
#[path = "../src/execute.rs"]
mod execute;
#[path = "../src/fix.rs"]
mod fix;
#[path = "../src/insert.rs"]
mod insert;
#[path = "../src/iter.rs"]
mod iter;
#[path = "../src/join.rs"]
mod join;
#[path = "../src/key.rs"]
mod key;
#[path = "../src/mutants.rs"]
mod mutants;
#[path = "../src/node"]
mod node {
    mod copied;
    mod fixed_leaf;
    mod inner;
    mod kinds;
    #[path = "link_safe.rs"]
    mod link;
    mod variable_leaf;

    pub use self::copied::copied_bytes;
    pub(crate) use self::fixed_leaf::{BLOCKS, FIXED_SLOTS, FixedLeaf, Slot};
    pub(crate) use self::inner::{INNER_HEAD_LINES, INNER_SLOTS, Inner};
    pub(crate) use self::kinds::{Node, NodeMut, OwnedNode, Split, Summary};
    pub(crate) use self::link::{Children, Link, LinkMut, Owners, prefetch};
    pub(crate) use self::variable_leaf::VariableLeaf;
}
#[path = "../src/op.rs"]
mod op;
#[path = "../src/rank.rs"]
mod rank;
#[path = "../src/remove.rs"]
mod remove;
#[path = "../src/run.rs"]
mod run;
#[path = "../src/search.rs"]
mod search;
#[path = "../src/settle.rs"]
mod settle;
#[path = "../src/snapshot.rs"]
mod snapshot;
#[path = "../src/split.rs"]
mod split;
#[path = "../src/tree.rs"]
mod tree;
#[path = "../src/undo.rs"]
mod undo;
#[path = "../src/update.rs"]
mod update;
#[path = "../src/value.rs"]
mod value;

/// The same work on either tree.
macro_rules! contender {
    ($name:ident, $tree:ty, $undo:ty, $result:ty, $op:path) => {
        #[derive(Default)]
        struct $name {
            tree: $tree,
            undo: $undo,
            results: Vec<$result>,
        }

        impl $name {
            fn work(&mut self, kind: Kind, keys: &[[u8; 8]]) {
                use $op as Op;
                let tree = &mut self.tree;
                match kind {
                    Kind::Get => keys.iter().for_each(|key| _ = black_box(tree.get(key))),
                    Kind::GetBatch => {
                        keys.chunks(16).for_each(|keys| tree.get_batch(keys, |_, value| _ = black_box(value)));
                    }
                    Kind::Insert => keys.iter().for_each(|key| _ = black_box(tree.insert(key, key))),
                    Kind::InsertBatch => {
                        for keys in keys.chunks(200) {
                            let ops: Vec<Op> = keys.iter().map(|key| Op::Insert { key, value: key }).collect();
                            self.results.clear();
                            tree.execute_batch(&ops, &mut self.results, &mut self.undo);
                            self.undo.forget_all();
                        }
                    }
                    Kind::Delete => keys.iter().for_each(|key| _ = black_box(tree.delete(key))),
                }
            }
        }
    };
}

contender!(Safe, tree::Tree, undo::Undo, op::OpResult, op::Op);
contender!(Unsafe, coppice_btree::Tree, coppice_btree::Undo, coppice_btree::OpResult, coppice_btree::Op);

#[derive(Clone, Copy)]
enum Kind {
    Get,
    GetBatch,
    Insert,
    InsertBatch,
    Delete,
}

/// The n-th key: a bijection of the integers that looks random (splitmix64).
fn key(n: u64) -> u64 {
    let mut z = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn main() {
    const ROUNDS: u64 = 31;
    const OPS: u64 = 20_000;
    let n = std::env::var("ENTRIES").ok().and_then(|text| text.parse().ok()).unwrap_or(12_000_000);
    let (mut safe, mut fast) = (Safe::default(), Unsafe::default());
    for from in (0..n).step_by(OPS as usize) {
        let keys: Vec<_> = (from..n.min(from + OPS)).map(|n| key(n).to_be_bytes()).collect();
        safe.work(Kind::InsertBatch, &keys);
        fast.work(Kind::InsertBatch, &keys);
    }
    println!("{n} random pairs of 8-byte keys and values; ns per operation\n");
    println!("| phase | safe | with the unsafe module | ratio |\n|---|---|---|---|");
    let mut fresh = n;
    for (name, kind) in [
        ("get", Kind::Get),
        ("get, 16 together", Kind::GetBatch),
        ("insert", Kind::Insert),
        ("delete", Kind::Delete),
        ("batch of 200 inserts", Kind::InsertBatch),
    ] {
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..ROUNDS {
            let keys: Vec<_> = match kind {
                Kind::Get | Kind::GetBatch => (0..OPS).map(|i| key(key(round << 32 | i) % n).to_be_bytes()).collect(),
                Kind::Delete => (0..OPS).map(|i| key(n + round * OPS + i).to_be_bytes()).collect(),
                _ => (0..OPS).map(|i| key(fresh + i).to_be_bytes()).collect(),
            };
            fresh += if matches!(kind, Kind::Insert | Kind::InsertBatch) { OPS } else { 0 };
            for turn in 0..2 {
                let start = thread_time();
                match (turn + round) % 2 {
                    0 => safe.work(kind, &keys),
                    _ => fast.work(kind, &keys),
                }
                times[((turn + round) % 2) as usize].push(thread_time() - start);
            }
        }
        let [safe, fast] = times.map(|mut times| {
            times.sort();
            times[times.len() / 2].as_nanos() as f64 / OPS as f64
        });
        println!("| {name} | {safe:.0} ns | {fast:.0} ns | {:.2}x |", safe / fast);
    }
    assert_eq!(safe.tree.digest().0, fast.tree.digest().0, "the same work gave different content");
}
