//! The tree at its working size, beside other ordered maps, in one run:
//! `cargo bench --manifest-path loadgen/rivals/Cargo.toml --bench tree`.
//!
//! Every phase is cut into rounds, and in every round each map does the same work, one after the other: whatever else
//! the machine does meanwhile, all of them get their share of it. Time is that of this thread on a core, not of the
//! clock on the wall; what neighbours do to caches and memory remains, so only ratios count. The median round is
//! printed, with `std::collections::BTreeMap` as 1.0. All maps use mimalloc. `ENTRIES=1000000` makes it smaller,
//! `PHASES=get,scan` picks phases by name.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::process::Command;
use std::time::Duration;

use brie_tree::BTree;
use brie_tree::nonmax::NonMaxU64;
use coppice_btree::{FixedBuffer, KeyRange, Op, Run, Snapshot, Tree, Undo};
use rustix::time::{ClockId, clock_gettime};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What all maps can do with 8-byte keys and values.
trait Map: Default {
    const NAME: &'static str;

    fn insert(&mut self, key: u64, value: u64) -> bool;
    fn get(&self, key: u64) -> Option<u64>;
    fn delete(&mut self, key: u64) -> bool;
    /// The sum of keys and values of `count` pairs from `low` on.
    fn scan(&self, low: u64, count: usize) -> u64;

    fn get_many(&self, keys: &[u64]) -> u64 {
        keys.iter().map(|key| self.get(*key).unwrap_or(0)).fold(0, u64::wrapping_add)
    }

    /// One batch of inserts as a replica executes it: results kept, and undo if the map has it.
    fn insert_batch(&mut self, keys: &[u64]) -> usize {
        let results: Vec<bool> = keys.iter().map(|key| self.insert(*key, !key)).collect();
        black_box(&results).len()
    }

    fn delete_batch(&mut self, keys: &[u64]) -> usize {
        let results: Vec<bool> = keys.iter().map(|key| self.delete(*key)).collect();
        black_box(&results).len()
    }

    /// A snapshot is taken now and stays until the phase ends. Maps without snapshots go on without.
    fn hold_snapshot(&mut self) {}
    fn drop_snapshot(&mut self) {}
}

#[derive(Default)]
struct Coppice {
    tree: Tree,
    undo: Undo,
    results: Vec<coppice_btree::OpResult>,
    held: Option<Snapshot>,
}

impl Coppice {
    fn batch(&mut self, ops: &[Op]) -> usize {
        self.results.clear();
        self.tree.execute_batch(ops, &mut self.results, &mut self.undo);
        self.undo.forget_all();
        self.results.len()
    }
}

impl Map for Coppice {
    const NAME: &'static str = "coppice";

    fn insert(&mut self, key: u64, value: u64) -> bool {
        self.tree.insert(&key.to_be_bytes(), &value.to_be_bytes()).is_none()
    }

    fn get(&self, key: u64) -> Option<u64> {
        Some(u64::from_be_bytes(self.tree.get(&key.to_be_bytes())?.try_into().ok()?))
    }

    fn delete(&mut self, key: u64) -> bool {
        self.tree.delete(&key.to_be_bytes()).is_some()
    }

    fn scan(&self, low: u64, count: usize) -> u64 {
        let range = KeyRange::from(&low.to_be_bytes());
        let pairs = self.tree.range(&range).take(count);
        pairs.fold(0, |sum, (key, value)| sum.wrapping_add(word(&key)).wrapping_add(word(value)))
    }

    fn get_many(&self, keys: &[u64]) -> u64 {
        let keys: Vec<[u8; 8]> = keys.iter().map(|key| key.to_be_bytes()).collect();
        let mut sum = 0_u64;
        self.tree.get_batch(&keys, |_, value| sum = sum.wrapping_add(value.map_or(0, word)));
        sum
    }

    fn insert_batch(&mut self, keys: &[u64]) -> usize {
        let pairs: Vec<_> = keys.iter().map(|key| (key.to_be_bytes(), (!key).to_be_bytes())).collect();
        let ops: Vec<Op> = pairs.iter().map(|(key, value)| Op::Insert { key, value }).collect();
        self.batch(&ops)
    }

    fn delete_batch(&mut self, keys: &[u64]) -> usize {
        let keys: Vec<_> = keys.iter().map(|key| key.to_be_bytes()).collect();
        let ops: Vec<Op> = keys.iter().map(|key| Op::Delete { key }).collect();
        self.batch(&ops)
    }

    fn hold_snapshot(&mut self) {
        self.held = Some(self.tree.snapshot());
    }

    fn drop_snapshot(&mut self) {
        self.held = None;
    }
}

/// The same sum, the pairs copied out leaf by leaf as the server encodes them.
fn scan_runs(tree: &Tree, low: u64, count: usize) -> u64 {
    let (mut sum, mut left) = (0_u64, count);
    let mut buffer: FixedBuffer = [[0; 16]; _];
    for run in tree.runs(&KeyRange::from(&low.to_be_bytes())) {
        if let Run::Fixed(run) = run {
            let pairs = run.copy_to(&mut buffer);
            let pairs = &pairs[..pairs.len().min(left)];
            left -= pairs.len();
            let words = pairs.as_flattened().as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word));
            sum = words.fold(sum, u64::wrapping_add);
        }
        if left == 0 {
            break;
        }
    }
    sum
}

type Brie = BTree<NonMaxU64, u64>;

fn non_max(key: u64) -> NonMaxU64 {
    NonMaxU64::new(key).expect("no key of this program is the maximum")
}

impl Map for BTreeMap<u64, u64> {
    const NAME: &'static str = "std";

    fn insert(&mut self, key: u64, value: u64) -> bool {
        self.insert(key, value).is_none()
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.get(&key).copied()
    }

    fn delete(&mut self, key: u64) -> bool {
        self.remove(&key).is_some()
    }

    fn scan(&self, low: u64, count: usize) -> u64 {
        self.range(low..).take(count).fold(0, |sum, (key, value)| sum.wrapping_add(*key).wrapping_add(*value))
    }
}

impl Map for Brie {
    const NAME: &'static str = "brie-tree";

    fn insert(&mut self, key: u64, value: u64) -> bool {
        self.insert(non_max(key), value).is_none()
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.get(non_max(key)).copied()
    }

    fn delete(&mut self, key: u64) -> bool {
        self.remove(non_max(key)).is_some()
    }

    fn scan(&self, low: u64, count: usize) -> u64 {
        let pairs = self.range(non_max(low)..).take(count);
        pairs.fold(0, |sum, (key, value)| sum.wrapping_add(key.get()).wrapping_add(*value))
    }
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("eight bytes"))
}

/// The n-th key: a bijection of the integers that looks random (splitmix64). Never `u64::MAX`, which brie-tree cannot
/// hold, for the numbers used here.
fn key(n: u64) -> u64 {
    let mut z = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn entries() -> u64 {
    std::env::var("ENTRIES").ok().and_then(|text| text.parse().ok()).unwrap_or(12_000_000)
}

/// All maps, and the times of the phase under way.
#[derive(Default)]
struct Field {
    std: BTreeMap<u64, u64>,
    coppice: Coppice,
    brie: Brie,
}

const COLUMNS: [&str; 3] = ["std", "coppice", "brie-tree"];

/// One phase: rounds of work on each map in turn, on the same keys. Prints the median round of each.
fn phase(
    name: &str,
    field: &mut Field,
    (rounds, ops): (u64, u64),
    keys: impl Fn(u64) -> Vec<u64>,
    work: impl Fn(&mut Field, usize, &mut [u64]),
) {
    if std::env::var("PHASES")
        .is_ok_and(|phases| !name.starts_with("build") && !phases.split(',').any(|p| name.contains(p)))
    {
        return;
    }
    let mut times = vec![Vec::new(); COLUMNS.len()];
    for round in 0..rounds {
        // Another order each round: nobody always runs in the caches that the same neighbour left.
        for turn in 0..COLUMNS.len() {
            let map = (turn + round as usize) % COLUMNS.len();
            let mut keys = keys(round);
            let start = thread_time();
            work(field, map, &mut keys);
            times[map].push(thread_time() - start);
        }
    }
    let medians: Vec<Duration> = times.iter_mut().map(|times| median(times)).collect();
    print!("| {name} |");
    for time in &medians {
        let nanos = time.as_nanos() as f64 / ops as f64;
        print!(" {nanos:.1} ns ({:.2}x) |", medians[0].as_secs_f64() / time.as_secs_f64());
    }
    println!();
}

/// How long this thread has run.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Calls the same generic function with the map of a column.
macro_rules! each {
    ($field:expr, $map:expr, $function:ident($($argument:expr),*)) => {
        match $map {
            0 => $function(&mut $field.std, $($argument),*),
            1 => $function(&mut $field.coppice, $($argument),*),
            _ => $function(&mut $field.brie, $($argument),*),
        }
    };
}

fn insert_all<M: Map>(map: &mut M, keys: &[u64]) {
    for key in keys {
        black_box(map.insert(*key, !key));
    }
}

fn main() {
    if let Ok(name) = std::env::var("MEMORY_OF") {
        return match name.as_str() {
            "std" => memory::<BTreeMap<u64, u64>>(),
            "coppice" => memory::<Coppice>(),
            _ => memory::<Brie>(),
        };
    }
    let n = entries();
    println!("{n} random pairs of 8-byte keys and values; ns per operation (speed relative to std)\n");
    println!("| phase | {} |\n|---|{}", COLUMNS.join(" | "), "---|".repeat(COLUMNS.len()));
    let mut field = Field::default();
    let rounds = 48;
    let chunk = n / rounds;
    // The median round is the one in the middle of the growth; `insert` below is at full size.
    let next = |round| (round * chunk..(round + 1) * chunk).map(key).collect();
    phase("build, one by one", &mut field, (rounds, chunk), next, |field, map, keys| {
        each!(field, map, insert_all(keys))
    });
    run_phases(&mut field, n);
    drop(field);
    print_memory();
}

fn run_phases(field: &mut Field, n: u64) {
    let (rounds, ops) = (15, 100_000);
    let size = (rounds, ops);
    let present = |round: u64| (0..ops).map(|i| key(key(round << 32 | i) % n)).collect();
    phase("get", field, size, present, |field, map, keys| each!(field, map, get_all(keys)));
    phase("get, 16 together", field, size, present, |field, map, keys| each!(field, map, get_chunks(keys)));
    let low_keys = |round: u64| (0..1000).map(|i| key(!(round << 32 | i))).collect();
    let size_pairs = (rounds, 1_000_000);
    phase("scan of 1000, per pair", field, size_pairs, low_keys, |field, map, keys| each!(field, map, scan_all(keys)));
    phase("scan of 1000 by runs, per pair", field, size_pairs, low_keys, |field, map, keys| match map {
        1 => keys.iter().for_each(|key| _ = black_box(scan_runs(&field.coppice.tree, *key, 1000))),
        _ => each!(field, map, scan_all(keys)),
    });
    // Keys never used before.
    let mut fresh = n;
    let mut write_phase = |name: &str, field: &mut Field, kind: Write| {
        let from = fresh;
        fresh += rounds * ops;
        let keys = |round: u64| (from + round * ops..from + (round + 1) * ops).map(key).collect();
        phase(name, field, size, keys, |field, map, keys| each!(field, map, write_all(keys, kind)));
    };
    write_phase("insert", field, Write::Insert);
    write_phase("insert, then delete", field, Write::InsertDelete);
    write_phase("batch of 1000 inserts", field, Write::Batch);
    write_phase("sorted batch of 1000 inserts", field, Write::SortedBatch);
    write_phase("batch of 1000 inserts, then of deletes", field, Write::BatchDelete);
    write_phase("insert, new snapshot every 10000", field, Write::Snapshots);
    for map in 0..COLUMNS.len() {
        each!(field, map, hold());
    }
    write_phase("insert, snapshot held since before", field, Write::Insert);
    for map in 0..COLUMNS.len() {
        each!(field, map, release());
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Write {
    Insert,
    InsertDelete,
    Batch,
    SortedBatch,
    BatchDelete,
    Snapshots,
}

fn write_all<M: Map>(map: &mut M, keys: &mut [u64], kind: Write) {
    match kind {
        Write::Insert => insert_all(map, keys),
        Write::InsertDelete => {
            insert_all(map, keys);
            for key in keys {
                black_box(map.delete(*key));
            }
        }
        Write::Batch => keys.chunks(1000).for_each(|keys| assert_eq!(map.insert_batch(keys), keys.len())),
        Write::SortedBatch => {
            for keys in keys.chunks_mut(1000) {
                keys.sort();
                map.insert_batch(keys);
            }
        }
        Write::BatchDelete => {
            keys.chunks(1000).for_each(|keys| assert_eq!(map.insert_batch(keys), keys.len()));
            keys.chunks(1000).for_each(|keys| assert_eq!(map.delete_batch(keys), keys.len()));
        }
        Write::Snapshots => {
            for keys in keys.chunks(10_000) {
                map.hold_snapshot();
                insert_all(map, keys);
            }
            map.drop_snapshot();
        }
    }
}

fn get_all<M: Map>(map: &mut M, keys: &[u64]) {
    for key in keys {
        black_box(map.get(*key));
    }
}

fn get_chunks<M: Map>(map: &mut M, keys: &[u64]) {
    for keys in keys.chunks(16) {
        black_box(map.get_many(keys));
    }
}

fn scan_all<M: Map>(map: &mut M, keys: &[u64]) {
    for key in keys {
        black_box(map.scan(*key, 1000));
    }
}

fn hold<M: Map>(map: &mut M) {
    map.hold_snapshot();
}

fn release<M: Map>(map: &mut M) {
    map.drop_snapshot();
}

/// Bytes per entry after random inserts: resident memory of a process that holds nothing else.
fn print_memory() {
    print!("| bytes per entry |");
    for name in COLUMNS {
        let program = std::env::current_exe().expect("the path of this program");
        let output = Command::new(program).env("MEMORY_OF", name).output().expect("this program starts");
        print!(" {} |", String::from_utf8_lossy(&output.stdout).trim());
    }
    println!();
}

fn memory<M: Map>() {
    let n = entries();
    let before = resident_bytes();
    let mut map = M::default();
    for i in 0..n {
        map.insert(key(i), i);
    }
    println!("{:.1}", (resident_bytes() - before) as f64 / n as f64);
    let _ = (map, M::NAME);
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number of pages");
    pages * 4096
}
