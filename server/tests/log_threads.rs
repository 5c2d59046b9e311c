//! The log with its threads, on a real file system.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use coppice_server::datadir::{ClusterId, Identity, NodeId};
use coppice_server::log::{
    Append, Ballot, Batch, Commands, Entry, Geometry, GroupId, Hooks, Instance, LogOptions, LogWriter, Lsn, Opened,
    Record,
};

const NODE: Identity = Identity { cluster: ClusterId(77), node: NodeId(2), incarnation: 1 };

/// A directory that goes with the test.
struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> TempDir {
        let dir = std::env::temp_dir().join(format!("coppice-{name}-{}", std::process::id()));
        _ = std::fs::remove_dir_all(&dir);
        TempDir(dir)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

fn accept(group: u32, instance: u64, size: usize) -> Entry {
    let batch = Batch::Commands(Commands::new(1, Bytes::from(vec![instance as u8; size])));
    let (instance, decided_upto) = (Instance(instance), Instance(0));
    let record = Record::Accept { instance, ballot: Ballot::new(3, 1), decided_upto, batch };
    Entry::Group { group: GroupId(group), record }
}

fn options() -> LogOptions {
    let geometry = Geometry { first_bytes: 64 << 10, segment_bytes: 256 << 10, segments_ahead: 1 };
    LogOptions { geometry, disk_reserve_bytes: 0, ..LogOptions::default() }
}

fn open(dir: &Path, known: Identity, options: LogOptions) -> (Opened, mpsc::Receiver<(GroupId, Lsn)>) {
    let (done, completions) = mpsc::channel();
    let hooks = Hooks {
        flushed: Box::new(move |flushed| flushed.completions.iter().for_each(|&one| done.send(one).unwrap_or(()))),
        failed: Box::new(|failure| panic!("{failure}")),
    };
    (LogWriter::open(dir, known, options, hooks).expect("the log opens"), completions)
}

#[test]
fn what_was_completed_is_there_after_every_start() {
    let dir = TempDir::new("log-threads");
    LogWriter::create(&dir.0, NODE).expect("created");
    let mut identity = NODE;
    for start in 0..5 {
        let (opened, completions) = open(&dir.0, identity, options());
        identity = opened.identity;
        assert_eq!(identity.incarnation, start + 2);
        let log = opened.writer.log();
        for group in [1, 2] {
            let records = opened.replay.groups.get(&GroupId(group)).map_or(0, |group| group.records.len());
            assert_eq!(records as u64, start * 100, "start {start}");
        }
        for instance in 1..=100 {
            for group in [1, 2] {
                let lsn = Some(Lsn(instance));
                let entry = accept(group, start * 100 + instance, 5_000);
                log.append(vec![Append { entry, lsn, lazy: false }]).expect("running");
            }
        }
        for _ in 0..200 {
            completions.recv_timeout(Duration::from_secs(20)).expect("completed");
        }
        opened.writer.close();
        assert!(log.append(vec![]).is_err(), "closed");
    }
    assert!(dir.0.join("00000006.seg").exists());
}
