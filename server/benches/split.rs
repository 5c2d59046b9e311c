//! How long a split keeps commands waiting: a partition with 12 million entries on three nodes (one process, real
//! files, real flushes) is cut at its median, again and again, while clients write and read single keys in closed
//! loops. Told are the longest waits of the seconds before each split, and of the time from its verb to a second after
//! its end.
//!
//! `cargo bench -p coppice-server --bench split`; `COPPICE_SPLIT_ENTRIES` is another number of entries,
//! `COPPICE_BENCH_DIR` names a directory on the disk to be measured.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use coppice_btree::Value;
use coppice_client::blocking::Client;
use coppice_client::wire::{AdminReply, AdminRequest, ChangeId, ReshapeRequest, Reshaped, Shape};
use coppice_server::local::{Cluster, LocalOptions, admin};

/// A load is one command, and at most 1 MiB.
const LOAD_PAIRS: u64 = 32_768;

const WRITERS: u64 = 4;
const READERS: u64 = 4;
const SPLITS: u64 = 3;

/// The goal: nobody waits longer.
const GOAL: Duration = Duration::from_millis(100);

fn key(n: u64) -> [u8; 8] {
    (n << 16).to_be_bytes()
}

fn fill(client: &Client, entries: u64) {
    let begun = Instant::now();
    for from in (0..entries).step_by(LOAD_PAIRS as usize) {
        let pairs: Vec<(Value, Value)> = (from..entries.min(from + LOAD_PAIRS))
            .map(|n| (Value::from(&key(n)[..]), Value::from(&n.to_be_bytes()[..])))
            .collect();
        client.load(pairs).expect("loaded");
    }
    println!("{entries} entries in {:.1?}", begun.elapsed());
}

/// The longest wait since it was last asked for, in microseconds, and the commands done.
#[derive(Default)]
struct Waits {
    longest_us: AtomicU64,
    commands: AtomicU64,
}

impl Waits {
    fn note(&self, took: Duration) {
        self.longest_us.fetch_max(took.as_micros() as u64, Ordering::Relaxed);
        self.commands.fetch_add(1, Ordering::Relaxed);
    }

    fn take(&self) -> (Duration, u64) {
        let longest = Duration::from_micros(self.longest_us.swap(0, Ordering::Relaxed));
        (longest, self.commands.swap(0, Ordering::Relaxed))
    }
}

/// Commands on keys spread over all of them, one after the other, until it is told to stop.
fn client(cluster: &Cluster, at: u64, entries: u64, waits: &Waits, stop: &AtomicBool) {
    let client = Client::connect(cluster.endpoints().iter().map(ToString::to_string)).expect("connected");
    let mut n = at * 7_919;
    while !stop.load(Ordering::Relaxed) {
        n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let key = key((n >> 20) % entries);
        let begun = Instant::now();
        if at < WRITERS {
            client.put(&key[..], &n.to_be_bytes()[..]).expect("written");
        } else {
            client.get(&key[..]).expect("read");
        }
        waits.note(begun.elapsed());
    }
}

fn split(cluster: &Cluster, change: u64) -> Reshaped {
    let shape = Shape::Split { partition: None, at: None::<Bytes> };
    let request = ReshapeRequest { change: ChangeId(change), shape, dry_run: false, force: false, within: None };
    loop {
        for endpoint in cluster.endpoints() {
            match admin(endpoint, AdminRequest::Reshape(request.clone()), Duration::from_secs(5)) {
                Ok(AdminReply::Reshaped(reshaped)) if reshaped.done => return reshaped,
                Ok(AdminReply::Reshaped(_)) => break,
                other => println!("asking again: {other:?}"),
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn measure(cluster: &Cluster, waits: &Waits) -> Duration {
    let mut worst = Duration::ZERO;
    for change in 1..=SPLITS {
        std::thread::sleep(Duration::from_secs(1));
        waits.take();
        std::thread::sleep(Duration::from_secs(3));
        let (before, commands) = waits.take();
        let begun = Instant::now();
        let reshaped = split(cluster, change);
        let took = begun.elapsed();
        std::thread::sleep(Duration::from_secs(1));
        let (during, _) = waits.take();
        println!(
            "split {change}: {} in {took:.1?}; longest wait {during:.1?}, before it {before:.1?} at {} commands/s",
            reshaped.steps.join("; "),
            commands / 3
        );
        worst = worst.max(during);
    }
    worst
}

fn main() {
    let entries = std::env::var("COPPICE_SPLIT_ENTRIES").ok().and_then(|text| text.parse().ok()).unwrap_or(12_000_000);
    let parent = std::env::var_os("COPPICE_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let directory = parent.join(format!("coppice-split-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("made");
    let mut cluster = Cluster::start_local(&LocalOptions::new(&directory)).expect("started");
    fill(&Client::connect(cluster.endpoints().iter().map(ToString::to_string)).expect("connected"), entries);
    let (waits, stop) = (Waits::default(), AtomicBool::new(false));
    let worst = std::thread::scope(|scope| {
        for at in 0..WRITERS + READERS {
            let (cluster, waits, stop) = (&cluster, &waits, &stop);
            scope.spawn(move || client(cluster, at, entries, waits, stop));
        }
        let worst = measure(&cluster, &waits);
        stop.store(true, Ordering::Relaxed);
        worst
    });
    println!("longest wait around {SPLITS} splits: {worst:.1?} (goal: at most {GOAL:?})");
    (0..3).for_each(|at| cluster.stop(at));
    _ = std::fs::remove_dir_all(&directory);
}
