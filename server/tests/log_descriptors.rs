//! A process that has as many open files as it may: the log goes on to the segments that it has ready, then waits, and
//! goes on when a descriptor is free.

mod common;

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use bytes::Bytes;
use common::{Scratch, patience, wait_until};
use coppice_client::wire::PartitionId;
use coppice_core::incarnation::Identity;
use coppice_core::replay::{Entry, Replay};
use coppice_server::datadir::{ClusterId, NodeId};
use coppice_server::log::{
    Append, Ballot, Batch, Commands, Geometry, Hooks, Instance, Log, LogOptions, LogWriter, Lsn, Record,
};

const NODE: Identity = Identity { cluster: ClusterId(79), node: NodeId(2), incarnation: 1 };

fn vote(instance: u64) -> Append {
    let batch = Batch::Commands(Commands::new(1, Bytes::from(vec![instance as u8; 3_000])));
    let (instance, decided_upto) = (Instance(instance), Instance(0));
    let record = Record::Accept { instance, ballot: Ballot::new(3, 1), decided_upto, batch };
    Append { entry: Entry::Group { group: PartitionId(1), record }, lsn: Some(Lsn(instance.0)), lazy: false }
}

/// Opens files until no more can be.
fn exhaust() -> Vec<File> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let few = rustix::process::Rlimit { current: Some(256), maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, few).expect("fewer are always allowed");
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

/// Votes until the log has moved on to a new segment, `writes` times at most. The last vote that was completed.
fn votes(log: &Log, completions: &mpsc::Receiver<Lsn>, from: u64, writes: u64) -> u64 {
    for instance in from..from + writes {
        log.append(vec![vote(instance)]).expect("it runs");
        match completions.recv_timeout(Duration::from_secs(2)) {
            Ok(lsn) => assert_eq!(lsn.0, instance),
            Err(RecvTimeoutError::Timeout) if log.is_stuck() => return instance - 1,
            Err(error) => panic!("vote {instance}: {error}"),
        }
    }
    from + writes - 1
}

// The limit and what is open are those of the whole process: one test only.
#[test]
fn a_log_without_descriptors_waits_for_one_and_loses_nothing() {
    let dir = Scratch::new("log-descriptors");
    LogWriter::create(&dir.0, NODE).expect("created");
    let (done, completions) = mpsc::channel();
    let failed = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&failed);
    let hooks = Hooks {
        flushed: Box::new(move |flushed| flushed.completions.iter().for_each(|&(_, lsn)| _ = done.send(lsn))),
        failed: Box::new(move |_| told.store(true, Ordering::Relaxed)),
    };
    let geometry = Geometry { first_bytes: 64 << 10, segment_bytes: 128 << 10, segments_ahead: 1 };
    let options = LogOptions { geometry, disk_reserve_bytes: 0, ..LogOptions::default() };
    let opened = LogWriter::open(&dir.0, NODE, Replay::default(), options.clone(), hooks).expect("the log opens");
    let log = opened.writer.log();
    let before = votes(&log, &completions, 1, 200);
    assert_eq!(before, 200, "there are descriptors");
    let taken = exhaust();
    // Two segments' worth: one is open ahead, and no other one can be made ready; then the newest one grows.
    let after = votes(&log, &completions, before + 1, 100);
    for upto in (after.saturating_sub(60)..after).step_by(20) {
        let trimmed =
            Append { entry: Entry::Trimmed { group: PartitionId(1), upto: Instance(upto) }, lsn: None, lazy: false };
        log.append(vec![trimmed]).expect("it runs");
    }
    assert!(!failed.load(Ordering::Relaxed), "the log took a lack of descriptors for a broken disk");
    drop(taken);
    wait_until("the log goes on", patience(), || !log.is_stuck());
    // What waited while there were none comes first.
    while completions.try_recv().is_ok() {}
    let last = after + 1_000;
    log.append(vec![vote(last)]).expect("it runs");
    while completions.recv_timeout(patience()).expect("it goes on").0 != last {}
    assert!(!failed.load(Ordering::Relaxed));
    opened.writer.close();
    let hooks = Hooks { flushed: Box::new(|_| ()), failed: Box::new(|failure| panic!("{failure}")) };
    let mut replay = LogWriter::open(&dir.0, NODE, Replay::default(), options, hooks).expect("the log opens").replay;
    let group = replay.groups.get_mut(&PartitionId(1)).expect("known");
    let newest = group.take_records().filter_map(|(_, record)| match record {
        Record::Accept { instance, .. } => Some(instance.0),
        _ => None,
    });
    assert_eq!(newest.max(), Some(last));
}
