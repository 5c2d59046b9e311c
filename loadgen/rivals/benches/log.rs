//! Why the acceptor log is our own: durable batches of 1, 8 and 64 records of 256 bytes, each answered for before the
//! next one begins, in our log and in the embedded stores that could have held votes instead; and of three logs at once
//! on one disk, as three nodes of a demo have them, against plain files written through the page cache.
//!
//! `cargo bench --manifest-path loadgen/rivals/Cargo.toml --bench log`; `COPPICE_BENCH_DIR` names a directory on the
//! disk to be measured.
//! fdatasync and fsync of one engine, 2000 batches of each size:
//! `strace -fc -e trace=fsync,fdatasync,sync_file_range,msync BINARY --count ENGINE` (ours are counted by the log too).

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::Bytes;
use coppice_client::wire::PartitionId;
use coppice_core::incarnation::Identity;
use coppice_core::replay::{Entry, Replay};
use coppice_server::datadir::{ClusterId, NodeId};
use coppice_server::log::{Append, Ballot, Batch, Commands, Hooks, Instance, Log, LogOptions, LogWriter, Lsn, Record};
use criterion::{BenchmarkId, Criterion, Throughput};

const BATCHES: [usize; 3] = [1, 8, 64];
const RECORD_BYTES: usize = 256;
const ENGINES: [&str; 6] = ["floor", "coppice", "sled", "sled+fdatasync", "redb", "fjall"];

/// Something that makes `count` records durable and returns.
type Engine = Box<dyn FnMut(usize)>;

fn engine(name: &str, dir: &Path) -> Engine {
    _ = std::fs::remove_dir_all(dir);
    std::fs::create_dir_all(dir).expect("made");
    match name {
        "floor" => floor(dir),
        "coppice" => coppice(dir),
        "sled" => sled(dir, false),
        "sled+fdatasync" => sled(dir, true),
        "redb" => redb(dir),
        "fjall" => fjall(dir),
        other => panic!("no engine {other:?}; there are {ENGINES:?}"),
    }
}

/// The least that a durable write costs here: one `pwrite` into zeros, one `fdatasync`.
fn floor(dir: &Path) -> Engine {
    let file = OpenOptions::new().create_new(true).write(true).open(dir.join("file")).expect("made");
    let bytes = 64 << 20;
    (0..64).for_each(|at| file.write_all_at(&vec![0; 1 << 20], at << 20).expect("written"));
    file.sync_all().expect("flushed");
    let mut at = 0;
    Box::new(move |count| {
        let write = vec![7; count * RECORD_BYTES];
        file.write_all_at(&write, at % (bytes - (1 << 20))).expect("written");
        file.sync_data().expect("flushed");
        at += (write.len() as u64).next_multiple_of(4_096);
    })
}

fn coppice(dir: &Path) -> Engine {
    let identity = Identity { cluster: ClusterId(1), node: NodeId(1), incarnation: 1 };
    LogWriter::create(dir, identity).expect("made");
    let (done, flushed) = mpsc::channel();
    let flushes = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&flushes);
    let hooks = Hooks {
        flushed: Box::new(move |flushed| {
            counter.fetch_add(1, Ordering::Relaxed);
            _ = done.send(flushed.completions.last().map(|(_, lsn)| *lsn));
        }),
        failed: Box::new(|failure| panic!("{failure}")),
    };
    let options = LogOptions { disk_reserve_bytes: 0, ..LogOptions::default() };
    let opened = LogWriter::open(dir, identity, Replay::default(), options, hooks).expect("opens");
    let log: Log = opened.writer.log();
    let mut instance = 0;
    let end = End { _writer: opened.writer, flushes };
    Box::new(move |count| {
        let _ = &end;
        let record = |_| {
            instance += 1;
            let batch = Batch::Commands(Commands::new(1, Bytes::from(vec![7; RECORD_BYTES])));
            let (decided_upto, at) = (Instance(instance - 1), Instance(instance));
            let record = Record::Accept { instance: at, ballot: Ballot::new(1, 1), decided_upto, batch };
            let entry = Entry::Group { group: PartitionId(1), record };
            Append { entry, lsn: Some(Lsn(instance)), lazy: false }
        };
        log.append((0..count).map(record).collect()).expect("running");
        while flushed.recv().expect("running") != Some(Lsn(instance)) {}
    })
}

/// Says at the end how often our log flushed.
struct End {
    _writer: LogWriter,
    flushes: Arc<AtomicU64>,
}

impl Drop for End {
    fn drop(&mut self) {
        eprintln!("coppice: {} writes with one fdatasync each", self.flushes.load(Ordering::Relaxed));
    }
}

/// sled's flush is no fsync: with `fdatasync` it is made as durable as the others.
fn sled(dir: &Path, fdatasync: bool) -> Engine {
    let db = sled::Config::new().path(dir).flush_every_ms(None).open().expect("opens");
    let file = File::open(dir.join("db")).expect("there");
    let mut next = 0_u64;
    Box::new(move |count| {
        let mut batch = sled::Batch::default();
        for _ in 0..count {
            next += 1;
            batch.insert(&next.to_be_bytes(), vec![7; RECORD_BYTES]);
        }
        db.apply_batch(batch).expect("applied");
        db.flush().expect("flushed");
        if fdatasync {
            file.sync_data().expect("flushed");
        }
    })
}

fn redb(dir: &Path) -> Engine {
    let table: redb::TableDefinition<'static, u64, &'static [u8]> = redb::TableDefinition::new("log");
    let db = redb::Database::create(dir.join("db")).expect("made");
    let mut next = 0_u64;
    Box::new(move |count| {
        let mut write = db.begin_write().expect("begun");
        write.set_durability(redb::Durability::Immediate).expect("set");
        {
            let mut table = write.open_table(table).expect("there");
            for _ in 0..count {
                next += 1;
                table.insert(next, &[7; RECORD_BYTES][..]).expect("inserted");
            }
        }
        write.commit().expect("committed");
    })
}

fn fjall(dir: &Path) -> Engine {
    let db = fjall::Database::builder(dir).open().expect("opens");
    let log = db.keyspace("log", fjall::KeyspaceCreateOptions::default).expect("made");
    let mut next = 0_u64;
    Box::new(move |count| {
        let mut batch = db.batch().durability(Some(fjall::PersistMode::SyncData));
        for _ in 0..count {
            next += 1;
            batch.insert(&log, next.to_be_bytes(), vec![7; RECORD_BYTES]);
        }
        batch.commit().expect("committed");
    })
}

fn dir() -> PathBuf {
    let given = std::env::var_os("COPPICE_BENCH_DIR").map(PathBuf::from);
    let base = given.unwrap_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")));
    base.join(format!("log-bench-{}", std::process::id()))
}

fn main() {
    let dir = dir();
    let mut args = std::env::args().skip_while(|arg| arg != "--count").skip(1);
    if let Some(name) = args.next() {
        let mut write = engine(&name, &dir);
        BATCHES.iter().for_each(|&count| (0..2_000).for_each(|_| write(count)));
        drop(write);
        _ = std::fs::remove_dir_all(&dir);
        return;
    }
    let mut criterion = Criterion::default().configure_from_args();
    for count in BATCHES {
        let mut group = criterion.benchmark_group(format!("{count} x {RECORD_BYTES} B durable"));
        group.throughput(Throughput::Elements(count as u64)).sample_size(20);
        group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(3));
        for name in ENGINES {
            let mut write = engine(name, &dir);
            group.bench_function(BenchmarkId::from_parameter(name), |bencher| bencher.iter(|| write(count)));
        }
        group.finish();
    }
    three_at_once(&mut criterion, &dir);
    _ = std::fs::remove_dir_all(&dir);
    criterion.final_summary();
}

/// One durable batch in each of three logs, by three threads that begin together.
fn three_at_once(criterion: &mut Criterion, dir: &Path) {
    let mut group = criterion.benchmark_group(format!("three times 8 x {RECORD_BYTES} B durable"));
    group.sample_size(20).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(3));
    for name in ["floor", "coppice"] {
        let threads: Vec<_> = (0..3).map(|n| Worker::new(name, dir.join(n.to_string()))).collect();
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter(|| {
                threads.iter().for_each(|worker| worker.begin.send(()).expect("runs"));
                threads.iter().for_each(|worker| worker.done.recv().expect("runs"));
            });
        });
    }
    group.finish();
}

/// A thread that makes one batch durable each time it is told to; it ends with its handle.
struct Worker {
    begin: mpsc::Sender<()>,
    done: mpsc::Receiver<()>,
}

impl Worker {
    fn new(name: &'static str, dir: PathBuf) -> Worker {
        let ((begin, begun), (finished, done)) = (mpsc::channel(), mpsc::channel());
        std::thread::spawn(move || {
            let mut write = engine(name, &dir);
            while begun.recv().is_ok() {
                write(8);
                _ = finished.send(());
            }
        });
        Worker { begin, done }
    }
}
