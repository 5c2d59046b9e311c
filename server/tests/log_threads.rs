//! The log with its threads, on a real file system.

mod common;

use std::path::Path;
use std::sync::mpsc;

use bytes::Bytes;
use common::{Scratch, patience, wait_until};
use coppice_client::wire::PartitionId;
use coppice_core::incarnation::Identity;
use coppice_core::replay::{Entry, Replay};
use coppice_server::datadir::{ClusterId, NodeId};
use coppice_server::log::{
    Append, Ballot, Batch, Commands, Geometry, Hooks, Instance, Log, LogError, LogOptions, LogWriter, Lsn, OpenLog,
    Record, reader,
};

const NODE: Identity = Identity { cluster: ClusterId(77), node: NodeId(2), incarnation: 1 };

fn accept(group: u32, instance: u64, size: usize) -> Entry {
    let batch = Batch::Commands(Commands::new(1, Bytes::from(vec![instance as u8; size])));
    let (instance, decided_upto) = (Instance(instance), Instance(0));
    let record = Record::Accept { instance, ballot: Ballot::new(3, 1), decided_upto, batch };
    Entry::Group { group: PartitionId(group), record }
}

fn options() -> LogOptions {
    let geometry = Geometry { first_bytes: 64 << 10, segment_bytes: 256 << 10, segments_ahead: 1 };
    LogOptions { geometry, disk_reserve_bytes: 0, ..LogOptions::default() }
}

fn open(dir: &Path, known: Identity, options: LogOptions) -> (OpenLog, mpsc::Receiver<(PartitionId, Lsn)>) {
    let (done, completions) = mpsc::channel();
    let hooks = Hooks {
        flushed: Box::new(move |flushed| flushed.completions.iter().for_each(|&one| done.send(one).unwrap_or(()))),
        failed: Box::new(|failure| panic!("{failure}")),
    };
    (LogWriter::open(dir, known, Replay::default(), options, hooks).expect("the log opens"), completions)
}

#[test]
fn what_was_completed_is_there_after_every_start() {
    let dir = Scratch::new("log-threads");
    LogWriter::create(&dir.0, NODE).expect("created");
    let mut identity = NODE;
    for start in 0..5 {
        let (mut opened, completions) = open(&dir.0, identity, options());
        identity = opened.identity;
        assert_eq!(identity.incarnation, start + 2);
        let log = opened.writer.log();
        for group in [1, 2] {
            let records =
                opened.replay.groups.get_mut(&PartitionId(group)).map_or(0, |group| group.take_records().count());
            // The promise that the votes imply comes first.
            assert_eq!(records as u64, start * 100 + start.min(1), "start {start}");
        }
        for instance in 1..=100 {
            for group in [1, 2] {
                let lsn = Some(Lsn(instance));
                let entry = accept(group, start * 100 + instance, 5_000);
                log.append(vec![Append { entry, lsn, lazy: false }]).expect("running");
            }
        }
        for _ in 0..200 {
            completions.recv_timeout(patience()).expect("completed");
        }
        opened.writer.close();
        assert!(log.append(vec![]).is_err(), "closed");
    }
    assert!(dir.0.join("00000006.seg").exists());
}

fn write_one(log: &Log, completions: &mpsc::Receiver<(PartitionId, Lsn)>, instance: u64, size: usize) {
    let lsn = Some(Lsn(instance));
    log.append(vec![Append { entry: accept(1, instance, size), lsn, lazy: false }]).expect("running");
    let completed = completions.recv_timeout(patience()).expect("completed");
    assert_eq!(completed, (PartitionId(1), Lsn(instance)));
}

#[test]
fn what_is_awaited_is_on_the_disk_when_the_wait_ends() {
    let dir = Scratch::new("log-awaited");
    LogWriter::create(&dir.0, NODE).expect("created");
    let (opened, _completions) = open(&dir.0, NODE, options());
    for instance in 1..=20 {
        let append = Append { entry: accept(1, instance, 40_000), lsn: None, lazy: false };
        opened.writer.log().append_awaited(vec![append]).expect("running").wait().expect("running");
        let found = loop {
            let mut found = 0;
            match reader::read(&dir.0, |line| found += u64::from(line.entry.group() == Some(PartitionId(1)))) {
                // A segment that is being made ready got its own name between the listing and the reading.
                Err(LogError::Io(error)) if error.kind() == std::io::ErrorKind::NotFound => {}
                read => break read.map(|_| found).expect("a sound log"),
            }
        };
        assert_eq!(found, instance);
    }
    let log = opened.writer.log();
    opened.writer.close();
    assert!(log.append_awaited(vec![]).is_err(), "closed");
}

#[test]
fn trimmed_segments_go_or_are_kept_aside() {
    for keep_all in [false, true] {
        let dir = Scratch::new(if keep_all { "log-keep" } else { "log-trim" });
        LogWriter::create(&dir.0, NODE).expect("created");
        let (opened, completions) = open(&dir.0, NODE, LogOptions { keep_all, ..options() });
        let log = opened.writer.log();
        for instance in 1..=200 {
            write_one(&log, &completions, instance, 5_000);
        }
        assert!(dir.0.join("00000004.seg").exists(), "several segments");
        let trim = Entry::Trimmed { group: PartitionId(1), upto: Instance(200) };
        log.append(vec![Append { entry: trim, lsn: Some(Lsn(201)), lazy: false }]).expect("running");
        wait_until("the oldest segments go", patience(), || !dir.0.join("00000003.seg").exists());
        assert_eq!(dir.0.join("old/00000003.seg").exists(), keep_all);
        opened.writer.close();
        let (mut opened, _) = open(&dir.0, opened.identity, options());
        let group = opened.replay.groups.get_mut(&PartitionId(1)).expect("known");
        assert_eq!(group.trimmed, Some(Instance(200)));
        let promise = Record::Promise { ballot: Ballot::new(3, 1) };
        assert!(group.take_records().eq([(Lsn(1), promise)]), "the promise outlives its votes");
    }
}

#[test]
fn the_reader_shows_every_record_and_changes_nothing() {
    let dir = Scratch::new("log-reader");
    LogWriter::create(&dir.0, NODE).expect("created");
    let (opened, completions) = open(&dir.0, NODE, options());
    for instance in 1..=50 {
        write_one(&opened.writer.log(), &completions, instance, 3_000);
    }
    opened.writer.close();
    let names = || {
        let mut names: Vec<_> = std::fs::read_dir(&dir.0).expect("there").map(|e| e.expect("there").path()).collect();
        names.sort();
        names.into_iter().map(|name| (name.clone(), std::fs::read(name).expect("readable"))).collect::<Vec<_>>()
    };
    let before = names();
    let mut lines = Vec::new();
    let cut = reader::read(&dir.0, |line| lines.push(line)).expect("readable");
    assert!(cut.is_none() && names() == before);
    let entries: Vec<Entry> = (1..=50).map(|instance| accept(1, instance, 3_000)).collect();
    assert!(lines.iter().map(|line| line.lsn).eq(1..=lines.len() as u64));
    // What the log writes for itself is marked as carried.
    assert!(lines.into_iter().filter(|line| !line.carried).map(|line| line.entry).eq(entries));
    // The last record is followed by the mark of a closed log: damage to it is no torn tail.
    let (name, mut bytes) = names().into_iter().next().expect("a segment");
    bytes[9_000] ^= 1;
    std::fs::write(name, bytes).expect("written");
    let mut good = 0;
    let refused = reader::read(&dir.0, |_| good += 1);
    assert!(matches!(refused, Err(LogError::Damage(_))), "{refused:?}");
}

#[test]
fn lazy_records_ride_along_in_order_and_are_written_when_the_log_rests() {
    let dir = Scratch::new("log-lazy");
    LogWriter::create(&dir.0, NODE).expect("created");
    let (opened, completions) = open(&dir.0, NODE, options());
    let log = opened.writer.log();
    let lazy = |lsn| {
        let entry = Entry::Group { group: PartitionId(1), record: Record::Decided { upto: Instance(lsn) } };
        Append { entry, lsn: Some(Lsn(lsn)), lazy: true }
    };
    log.append(vec![lazy(1), lazy(2)]).expect("running");
    let entry = accept(1, 3, 10);
    log.append(vec![Append { entry, lsn: Some(Lsn(3)), lazy: false }, lazy(4)]).expect("running");
    log.append(vec![lazy(5)]).expect("running");
    let completed = || completions.recv_timeout(patience()).expect("completed").1;
    assert_eq!([completed(), completed(), completed(), completed(), completed()], [1, 2, 3, 4, 5].map(Lsn));
}

#[test]
fn a_full_queue_gives_appends_back_and_then_takes_them() {
    let dir = Scratch::new("log-queue");
    LogWriter::create(&dir.0, NODE).expect("created");
    let (go_on, wait) = mpsc::channel::<()>();
    let hooks = Hooks { flushed: Box::new(move |_| _ = wait.recv()), failed: Box::new(|failure| panic!("{failure}")) };
    let options = LogOptions { queue_submissions_max: 2, ..options() };
    let opened = LogWriter::open(&dir.0, NODE, Replay::default(), options, hooks).expect("opens");
    let log = opened.writer.log();
    let one = |instance| vec![Append { entry: accept(1, instance, 10), lsn: None, lazy: false }];
    log.append(one(1)).expect("taken");
    wait_until("the first is under way", patience(), || log.waiting() == 0);
    log.try_append(one(2)).expect("taken");
    log.try_append(one(3)).expect("taken");
    assert_eq!(log.try_append(one(4)), Err(one(4)));
    assert_eq!(log.waiting(), 2);
    drop(go_on);
    wait_until("the queue empties", patience(), || log.waiting() == 0);
    log.try_append(one(4)).expect("taken");
}

#[test]
fn below_the_reserve_the_log_is_full_and_still_writes() {
    let dir = Scratch::new("log-reserve");
    LogWriter::create(&dir.0, NODE).expect("created");
    let (opened, completions) = open(&dir.0, NODE, LogOptions { disk_reserve_bytes: u64::MAX, ..options() });
    let log = opened.writer.log();
    assert!(log.space().full && log.space().free_bytes > 0);
    write_one(&log, &completions, 1, 100);
    drop(opened);
    let (opened, _) = open(&dir.0, NODE, options());
    assert!(!opened.writer.log().space().full);
}

/// hazards.md ST1, with threads: the hook hears of it once, and nothing is taken afterwards.
#[test]
fn a_failed_write_ends_the_log_for_good() {
    let dir = Scratch::new("log-failed");
    LogWriter::create(&dir.0, NODE).expect("created");
    let (failed, failure) = mpsc::channel();
    let hooks = Hooks { flushed: Box::new(|_| ()), failed: Box::new(move |why| failed.send(why).expect("heard")) };
    let opened = LogWriter::open(&dir.0, NODE, Replay::default(), options(), hooks).expect("opens");
    let log = opened.writer.log();
    let spare = dir.0.join("00000003.seg");
    let one = |instance| vec![Append { entry: accept(1, instance, 5_000), lsn: None, lazy: false }];
    let mut instance = 0;
    // The next segment is taken away while it is prepared, or before it is opened: either fails, and names it.
    wait_until("the next segment is there", patience(), || {
        instance += 1;
        log.append(one(instance)).expect("running");
        spare.exists()
    });
    std::fs::remove_file(&spare).expect("removed");
    wait_until("the log takes nothing", patience(), || {
        instance += 1;
        log.append(one(instance)).is_err()
    });
    let failure = failure.recv_timeout(patience()).expect("heard");
    assert_eq!(failure.path, spare);
    assert!(log.try_append(one(1)).is_err());
}

#[cfg(feature = "mutants")]
#[test]
fn a_wait_that_ends_before_the_flush_is_caught() {
    common::assert_caught("removal_unflushed", "what_is_awaited_is_on_the_disk_when_the_wait_ends");
}
