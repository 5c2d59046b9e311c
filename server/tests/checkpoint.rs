//! Checkpoints: whole or not there, damage found before use, the older generation behind the newer one.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{fs, thread};

use bytes::Bytes;
use common::{Scratch, patience};
use coppice_btree::{Tree, Value};
use coppice_client::wire::{ClusterId, MapVersion, PartitionId};
use coppice_core::snapshot::{Blobs, Head};
use coppice_ordering::{Ballot, Ticket};
use coppice_server::checkpoint::background::{Checkpointer, Job};
use coppice_server::checkpoint::{
    CHUNK_BYTES, CheckpointError, CheckpointOptions, Checkpoints, Chunk, Manifest, Observer, Staging, Step, StreamError,
};
use coppice_server::log::Instance;

const P: PartitionId = PartitionId(4);

const CLUSTER: ClusterId = ClusterId(7);

fn open(dir: &Scratch) -> Checkpoints {
    let cluster = Some(CLUSTER);
    let options = CheckpointOptions { cluster, rate_bytes: u64::MAX, space_floor_bytes: 0, ..Default::default() };
    Checkpoints::open(&dir.0, options).expect("opens")
}

fn head(instance: u64) -> Head {
    Head {
        cluster: CLUSTER,
        partition: P,
        instance: Instance(instance),
        low: Bytes::from_static(b"a"),
        high: Some(Bytes::from_static(b"q")),
        map_version: MapVersion(7),
        last_ticket: Some(Ticket { ballot: Ballot::new(2, 1), n: 57 }),
    }
}

fn blobs(instance: u64) -> Blobs {
    let sessions = Bytes::from(vec![instance as u8; 300]);
    Blobs { sessions, configuration: Bytes::from_static(b"r1 r2 r3"), ..Blobs::default() }
}

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// `count` pairs that differ with the instance.
fn pairs(instance: u64, count: u64) -> Pairs {
    let pair = |n: u64| (format!("k{n:08}").into_bytes(), format!("{instance}.{n}").into_bytes());
    (0..count).map(pair).collect()
}

fn never() -> Observer {
    Box::new(|_| true)
}

fn write(checkpoints: &Checkpoints, instance: u64, count: u64) -> Manifest {
    checkpoints
        .write(head(instance), &blobs(instance), pairs(instance, count).iter(), never())
        .and_then(Staging::finish)
        .expect("written")
        .manifest
}

/// The newest good checkpoint's instance; its content must be what was written.
fn newest(checkpoints: &Checkpoints, count: u64) -> Option<u64> {
    let loaded = checkpoints.load(P).expect("loads");
    let checkpoint = loaded.checkpoint?;
    let manifest = checkpoint.manifest().clone();
    let instance = manifest.head.instance.0;
    assert_eq!(manifest.head, head(instance));
    let (found, mut read) = checkpoint.contents().expect("readable");
    assert_eq!(found, blobs(instance));
    let found: Pairs = read.by_ref().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    read.finish().expect("complete");
    assert!(found == pairs(instance, count), "other pairs at {instance}");
    Some(instance)
}

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("readable") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = Vec::new();
    files(dir, &mut found);
    found.into_iter().map(|path| (path.clone(), fs::read(path).expect("readable"))).collect()
}

#[test]
fn a_checkpoint_reads_back_and_two_generations_are_kept() {
    let dir = Scratch::new("generations");
    let checkpoints = open(&dir);
    assert!(checkpoints.load(P).expect("nothing there").checkpoint.is_none());
    for instance in [10, 20, 30] {
        let manifest = write(&checkpoints, instance, 3_000);
        assert_eq!(manifest.pairs, 3_000);
        assert_eq!(newest(&checkpoints, 3_000), Some(instance));
    }
    let written = checkpoints
        .write(head(40), &blobs(40), pairs(40, 3_000).iter(), never())
        .and_then(Staging::finish)
        .expect("written");
    assert_eq!(written.trim_upto, Some(Instance(30)));
    assert_eq!(checkpoints.instances(P).expect("listed"), [Instance(30), Instance(40)]);
    assert_eq!(checkpoints.partitions().expect("listed"), [P]);
    let again = checkpoints.write(head(40), &blobs(40), pairs(40, 1).iter(), never());
    assert!(matches!(again, Err(CheckpointError::Present(P, Instance(40)))));
    let alone = checkpoints.keep_only(P, Instance(40)).expect("it is whole");
    assert_eq!((alone.trim_upto, alone.manifest), (Some(Instance(40)), written.manifest));
    assert_eq!(checkpoints.instances(P).expect("listed"), [Instance(40)]);
    checkpoints.remove(P).expect("removed");
    assert!(checkpoints.load(P).expect("loads").checkpoint.is_none());
}

#[test]
fn a_tree_comes_back_with_its_digest_from_the_background_thread() {
    let dir = Scratch::new("tree");
    let checkpoints = open(&dir);
    let key = |n: u64| n.to_be_bytes();
    let mut tree = Tree::from_sorted((0..100_000_u64).map(|n| (key(n), key(n * 3)))).expect("sorted");
    let snapshot = tree.snapshot();
    let checkpointer = Checkpointer::start(checkpoints.clone()).expect("started");
    let (done, result) = mpsc::channel();
    let head = Head { cluster: CLUSTER, partition: P, instance: Instance(5), ..Head::default() };
    let done = Box::new(move |written| done.send(written).expect("waiting"));
    let job = Job { head, blobs: Blobs::default().into(), tree: snapshot, alone: false, done };
    assert!(checkpointer.submit(job).is_ok());
    // Meanwhile the tree moves on.
    let digest = tree.digest();
    let mut undo = coppice_btree::Undo::default();
    let op = coppice_btree::Op::Put { key: &key(7), value: &[1] };
    tree.execute(op, &mut undo);
    let written = result.recv_timeout(patience()).expect("done").expect("written");
    assert_eq!(written.manifest.digest, digest);
    let checkpoint = checkpoints.load(P).expect("loads").checkpoint.expect("there");
    let (_, mut pairs) = checkpoint.contents().expect("readable");
    let loaded = Tree::from_sorted(pairs.by_ref()).expect("sorted");
    pairs.finish().expect("complete");
    assert_eq!(loaded.digest(), digest);
    assert_eq!(loaded.len(), 100_000);
}

#[test]
fn large_values_and_blobs_go_through() {
    let dir = Scratch::new("large");
    let checkpoints = open(&dir);
    let head = Head { cluster: CLUSTER, partition: P, instance: Instance(1), ..Head::default() };
    let sessions = Bytes::from(vec![3; 3 << 20]);
    let given = Blobs { sessions, directory: Bytes::from_static(b"map"), ..Blobs::default() };
    let big: Vec<(Vec<u8>, Value)> =
        (0..6_u8).map(|n| (vec![n; 4 << 10], Value::from(&vec![n; 1 << 20][..]))).collect();
    let pairs = big.iter().map(|(key, value)| (key, value.as_slice()));
    checkpoints.write(head, &given, pairs, never()).and_then(Staging::finish).expect("written");
    let checkpoint = checkpoints.load(P).expect("loads").checkpoint.expect("there");
    let (blobs, mut pairs) = checkpoint.contents().expect("readable");
    assert_eq!(blobs, given);
    assert!(pairs.by_ref().map(|(key, value)| (key.to_vec(), value)).eq(big));
    pairs.finish().expect("complete");
    let mut names = Vec::new();
    files(&dir.0, &mut names);
    assert!(!names.iter().any(|name| name.to_string_lossy().contains("blobs/")), "no side files: {names:?}");
}

/// What our checksums of sled's files stand on.
#[test]
fn reading_a_checkpoint_changes_none_of_its_files() {
    let dir = Scratch::new("unchanged");
    let checkpoints = open(&dir);
    for (instance, count) in [(1, 0), (2, 1), (3, 2_000), (4, 200_000)] {
        write(&checkpoints, instance, count);
        let before = contents(&dir.0);
        for _ in 0..3 {
            assert_eq!(newest(&checkpoints, count), Some(instance));
        }
        assert!(contents(&dir.0) == before, "{instance} has changed");
    }
}

#[test]
fn every_flipped_byte_is_found_and_the_older_checkpoint_is_used() {
    let dir = Scratch::new("flips");
    let checkpoints = open(&dir);
    write(&checkpoints, 10, 100);
    write(&checkpoints, 20, 100);
    let newer = dir.0.join("p4/20");
    let mut names = Vec::new();
    files(&newer, &mut names);
    let mut flips = 0;
    for name in names {
        let original = fs::read(&name).expect("readable");
        let mut bytes = original.clone();
        for at in 0..bytes.len() {
            // sled fills its last segment with one byte: a sample of those will do.
            if at % 4_096 != 0 && at > 0 && original[at] == original[at - 1] {
                continue;
            }
            bytes[at] ^= 1 << (at % 8);
            fs::write(&name, &bytes).expect("written");
            let refused = checkpoints.check(P, Instance(20));
            match &refused {
                Err(CheckpointError::Bad(bad)) => {
                    assert_eq!(bad.path, name);
                    assert!(bad.offset <= at as u64, "{bad} for byte {at}");
                }
                other => panic!("{} byte {at}: {other:?}", name.display()),
            }
            bytes[at] = original[at];
            flips += 1;
        }
        fs::write(&name, &original[..original.len() - 1]).expect("written");
        assert!(checkpoints.check(P, Instance(20)).is_err(), "cut short");
        fs::remove_file(&name).expect("removed");
        assert!(checkpoints.check(P, Instance(20)).is_err(), "missing");
        fs::write(&name, &original).expect("written");
    }
    assert!(flips > 1_500, "{flips}");
    fs::write(newer.join("snap.ffffffffffffffff"), b"rubbish").expect("written");
    assert!(matches!(checkpoints.keep_only(P, Instance(20)), Err(CheckpointError::Bad(_))), "it does not stand alone");
    assert_eq!(checkpoints.instances(P).expect("listed"), [Instance(10), Instance(20)]);
    let loaded = checkpoints.load(P).expect("loads");
    assert_eq!(loaded.bad.len(), 1);
    assert_eq!(loaded.bad[0].path, newer.join("snap.ffffffffffffffff"));
    assert_eq!(loaded.checkpoint.expect("the older one").manifest().head.instance, Instance(10));
    assert!(dir.0.join("p4/20.bad").exists() && !newer.exists(), "kept for inspection, out of the way");
    write(&checkpoints, 30, 100);
    assert!(!dir.0.join("p4/20.bad").exists());
    assert_eq!(checkpoints.instances(P).expect("listed"), [Instance(10), Instance(30)]);
}

/// hazards.md ST4: position and content belong together.
#[test]
fn a_large_checkpoint_is_read_back_in_parts() {
    let dir = Scratch::new("parts");
    let checkpoints = open(&dir);
    // More than the 32 MiB after which the store is opened anew.
    let large = vec![7; 1 << 20];
    let pairs = (0..34_u64).map(|n| (format!("k{n:02}"), &large));
    let written = checkpoints.write(head(40), &blobs(40), pairs, never()).and_then(Staging::finish).expect("written");
    assert!(written.manifest.chunks as usize > (33 << 20) / CHUNK_BYTES);
    let loaded = checkpoints.load(P).expect("loads").checkpoint.expect("there");
    assert_eq!(loaded.manifest(), &written.manifest);
    drop(loaded);

    // A node that ends while it reads one back need not wait, and has the one before.
    let pairs = (0..34_u64).map(|n| (format!("k{n:02}"), &large));
    let staging = checkpoints.write(head(41), &blobs(41), pairs, Box::new(|step| step != Step::Reading));
    assert!(matches!(staging.and_then(Staging::finish), Err(CheckpointError::Stopped)));
    assert_eq!(checkpoints.instances(P).expect("a list"), [Instance(40)]);
}

#[test]
fn a_checkpoint_under_another_name_is_refused() {
    let dir = Scratch::new("renamed");
    let checkpoints = open(&dir);
    write(&checkpoints, 10, 30);
    fs::rename(dir.0.join("p4/10"), dir.0.join("p4/11")).expect("renamed");
    let loaded = checkpoints.load(P).expect("loads");
    assert!(loaded.checkpoint.is_none() && loaded.bad.len() == 1);
}

/// hazards.md ST4, ST7: a crash between any two steps, also of an install from a peer.
#[test]
fn an_interrupted_checkpoint_is_the_old_one_or_the_new_one() {
    let mut steps = Vec::new();
    for stop_at in 0.. {
        let dir = Scratch::new("steps");
        let checkpoints = open(&dir);
        write(&checkpoints, 10, 2_000);
        let mut count = 0;
        let (seen, last) = mpsc::channel();
        let observer = Box::new(move |step| {
            count += 1;
            _ = seen.send(step);
            count <= stop_at
        });
        let written =
            checkpoints.write(head(20), &blobs(20), pairs(20, 2_000).iter(), observer).and_then(Staging::finish);
        let last = last.try_iter().last().expect("a step");
        drop(checkpoints);
        let checkpoints = open(&dir);
        let found = newest(&checkpoints, 2_000);
        match last {
            _ if written.is_ok() => assert_eq!(found, Some(20)),
            Step::Renamed | Step::Durable | Step::Pruned => assert_eq!(found, Some(20), "after {last:?}"),
            _ => {
                assert_eq!(found, Some(10), "after {last:?}");
                assert!(
                    !dir.0.join("p4/20.bad").exists(),
                    "after {last:?} something that is none looks like a checkpoint"
                );
            }
        }
        write(&checkpoints, 30, 2_000);
        assert_eq!(newest(&checkpoints, 2_000), Some(30));
        steps.push(last);
        if written.is_ok() {
            break;
        }
    }
    assert!(steps.len() > 10 && steps.contains(&Step::Chunk(2)) && steps.contains(&Step::Summed), "{steps:?}");
}

/// Another cluster has partitions of the same numbers, and nodes at the same addresses in time.
#[test]
fn a_snapshot_of_another_cluster_is_neither_received_nor_loaded() {
    let dir = Scratch::new("foreign");
    let foreign = Head { cluster: ClusterId(8), ..head(10) };
    assert!(matches!(open(&dir).receive(foreign.clone(), never()), Err(CheckpointError::Foreign { .. })));
    // Written under the other cluster's eyes: the chunks fit their head.
    let options = CheckpointOptions { cluster: None, rate_bytes: u64::MAX, space_floor_bytes: 0, ..Default::default() };
    let anybody = Checkpoints::open(&dir.0, options).expect("opens");
    let written = anybody.write(foreign, &blobs(10), pairs(10, 50).iter(), never()).and_then(Staging::finish);
    written.expect("written");
    let loaded = open(&dir).load(P).expect("looked at");
    assert!(loaded.checkpoint.is_none() && loaded.bad.iter().any(|bad| bad.reason.contains("of cluster")));
}

/// hazards.md ST5.
#[test]
fn only_one_checkpoint_of_a_partition_is_written_at_a_time() {
    let dir = Scratch::new("busy");
    let checkpoints = open(&dir);
    let first = checkpoints.receive(head(10), never()).expect("begun");
    assert!(matches!(checkpoints.receive(head(11), never()), Err(CheckpointError::Busy(P))));
    let other = Head { partition: PartitionId(5), ..head(10) };
    drop(checkpoints.receive(other, never()).expect("another partition"));
    drop(first);
    assert!(!dir.0.join("p4/10.tmp").exists(), "a dropped one leaves nothing");
    write(&checkpoints, 11, 10);
}

#[test]
fn a_peer_gets_the_same_snapshot_whatever_the_way_does_to_it() {
    let (here, there) = (Scratch::new("sender"), Scratch::new("receiver"));
    let (sender, receiver) = (open(&here), open(&there));
    let manifest = write(&sender, 10, 5_000);
    let checkpoint = sender.load(P).expect("loads").checkpoint.expect("there");
    let mut writer = receiver.receive(head(10), never()).expect("begun");
    let mut sent = 0;
    while sent < manifest.chunks {
        // Sent from where the receiver stands; damaged, doubled or skipped chunks are refused and change nothing.
        for chunk in checkpoint.chunks(writer.next()).take(3) {
            let chunk = chunk.expect("readable");
            let mut bytes = chunk.bytes.to_vec();
            bytes[5] ^= 1;
            let damaged = writer.push(&Chunk { bytes: bytes.into(), ..chunk.clone() });
            assert!(matches!(damaged, Err(CheckpointError::Stream(StreamError::Checksum { .. }))));
            let skipped = writer.push(&Chunk { number: chunk.number + 1, ..chunk.clone() });
            assert!(matches!(skipped, Err(CheckpointError::Stream(StreamError::Order { .. }))));
            writer.push(&chunk).expect("good");
            assert!(writer.push(&chunk).is_err(), "doubled");
        }
        sent = writer.next();
    }
    writer.finish(&manifest).expect("installed");
    assert_eq!(newest(&receiver, 5_000), Some(10));
    // Chunks without the end, or with that of another snapshot.
    let mut writer = receiver.receive(head(20), never()).expect("begun");
    let other = write(&sender, 20, 5_001);
    let checkpoint = sender.load(P).expect("loads").checkpoint.expect("there");
    checkpoint.chunks(0).for_each(|chunk| writer.push(&chunk.expect("readable")).expect("good"));
    let wrong = Manifest { pairs: other.pairs - 1, ..other };
    assert!(matches!(writer.finish(&wrong), Err(CheckpointError::Stream(StreamError::Incomplete))));
    assert_eq!(newest(&receiver, 5_000), Some(10));
}

#[test]
fn a_checkpoint_keeps_to_its_rate_and_leaves_a_full_disk_alone() {
    let dir = Scratch::new("rate");
    let options = CheckpointOptions { rate_bytes: 4 << 20, space_floor_bytes: 0, ..Default::default() };
    let checkpoints = Checkpoints::open(&dir.0, options).expect("opens");
    let start = Instant::now();
    let manifest = write(&checkpoints, 10, 60_000);
    let least = Duration::from_secs_f64(manifest.bytes as f64 / (4 << 20) as f64);
    assert!(start.elapsed() >= least.mul_f64(0.9), "{:?} for {} bytes", start.elapsed(), manifest.bytes);
    let options = CheckpointOptions { space_floor_bytes: u64::MAX, ..options };
    let checkpoints = Checkpoints::open(&dir.0, options).expect("opens");
    let refused = checkpoints.write(head(20), &blobs(20), pairs(20, 9).iter(), never());
    assert!(matches!(refused, Err(CheckpointError::Space { .. })));
    assert_eq!(newest(&checkpoints, 60_000), Some(10));
}

#[test]
fn a_store_whose_lock_is_let_go_late_is_waited_for() {
    let dir = Scratch::new("lock");
    let checkpoints = open(&dir);
    write(&checkpoints, 10, 100);
    let held = checkpoints.load(P).expect("loads").checkpoint.expect("there");
    let owner = thread::spawn(move || {
        thread::sleep(Duration::from_millis(200));
        drop(held);
    });
    assert_eq!(newest(&checkpoints, 100), Some(10));
    owner.join().expect("ends");
}

#[cfg(feature = "mutants")]
#[test]
fn every_planted_bug_is_caught() {
    use common::assert_caught;
    assert_caught("position_apart", "a_checkpoint_under_another_name_is_refused");
    assert_caught("install_in_place", "an_interrupted_checkpoint_is_the_old_one_or_the_new_one");
    assert_caught("foreign_snapshot_believed", "a_snapshot_of_another_cluster_is_neither_received_nor_loaded");
    assert_caught("two_snapshots", "only_one_checkpoint_of_a_partition_is_written_at_a_time");
}
