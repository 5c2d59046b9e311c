//! A log on a real disk ends at each step of its keeper: segments made, written again, removed (hazards.md 2, E10).
//! What had been completed is there. Each end takes a process of its own.
#![cfg(feature = "failpoints")]

mod common;

use std::path::Path;
use std::process::Command;
use std::sync::mpsc;

use bytes::Bytes;
use common::Scratch;
use coppice_client::wire::PartitionId;
use coppice_core::incarnation::Identity;
use coppice_core::replay::{Entry, Replay};
use coppice_server::datadir::{ClusterId, NodeId};
use coppice_server::log::{
    Append, Ballot, Batch, Commands, Geometry, Hooks, Instance, LogOptions, LogWriter, Lsn, OpenLog, Record,
};

const NODE: Identity = Identity { cluster: ClusterId(78), node: NodeId(2), incarnation: 1 };

/// Votes of one run: thirty segments and more.
const VOTES: u64 = 2_500;

/// So many of the newest votes are needed.
const KEPT: u64 = 100;

fn vote(instance: u64) -> Append {
    let batch = Batch::Commands(Commands::new(1, Bytes::from(vec![instance as u8; 3_000])));
    let (instance, decided_upto) = (Instance(instance), Instance(0));
    let record = Record::Accept { instance, ballot: Ballot::new(3, 1), decided_upto, batch };
    Append { entry: Entry::Group { group: PartitionId(1), record }, lsn: Some(Lsn(instance.0)), lazy: false }
}

fn open(dir: &Path, known: Identity, hooks: Hooks) -> OpenLog {
    let geometry = Geometry { first_bytes: 64 << 10, segment_bytes: 256 << 10, segments_ahead: 1 };
    let options = LogOptions { geometry, disk_reserve_bytes: 0, ..LogOptions::default() };
    LogWriter::open(dir, known, Replay::default(), options, hooks).expect("the log opens")
}

/// What the processes of the other test run: votes, and trimming, until a failpoint ends it.
#[test]
fn votes_and_trimming() {
    let Some(dir) = std::env::var_os("COPPICE_TEST_LOG") else { return };
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
    let (done, completions) = mpsc::channel();
    let hooks = Hooks {
        flushed: Box::new(move |flushed| flushed.completions.iter().for_each(|&(_, lsn)| _ = done.send(lsn))),
        failed: Box::new(|_| std::process::exit(1)),
    };
    let opened = open(Path::new(&dir), NODE, hooks);
    let log = opened.writer.log();
    for instance in 1..=VOTES {
        log.append(vec![vote(instance)]).expect("it runs, or the process ends");
        let Ok(lsn) = completions.recv() else { break };
        println!("done {}", lsn.0);
        if instance > KEPT && instance.is_multiple_of(50) {
            let entry = Entry::Trimmed { group: PartitionId(1), upto: Instance(instance - KEPT) };
            log.append(vec![Append { entry, lsn: None, lazy: true }]).expect("it runs, or the process ends");
        }
    }
}

/// Runs the votes with this armed; the exit status, and the last vote that was completed.
fn run(dir: &Path, armed: &str) -> (Option<i32>, u64) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["votes_and_trimming", "--exact", "--nocapture"]);
    let output = command.env("COPPICE_TEST_LOG", dir).env("COPPICE_FAILPOINTS", armed).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut done = said.lines().filter_map(|line| line.split_once("done ")?.1.parse().ok());
    (output.status.code(), done.next_back().unwrap_or(0))
}

#[test]
fn a_log_that_ends_at_any_step_of_its_keeper_holds_what_was_completed() {
    let points = [
        "segment.before_create",
        "segment.before_flush",
        "segment.before_flush_dir",
        "segment.after_flush_dir",
        "reuse.before_clear",
        "reuse.before_rename",
        "trim.before_rename",
        "trim.before_remove",
        "trim.before_flush_dir",
        "trim.after_flush_dir",
    ];
    for point in points {
        for action in ["panic", "error"] {
            if action == "error" && point.contains(".after") {
                continue;
            }
            let dir = Scratch::new("log-reuse");
            LogWriter::create(&dir.0, NODE).expect("created");
            let (code, done) = run(&dir.0, &format!("{point}={action}@2"));
            // Aborted, or ended by the log's own hook: a place that is never reached ends nothing.
            assert_eq!(code, (action == "error").then_some(1), "{point}={action}: {done} votes");
            let hooks = Hooks { flushed: Box::new(|_| ()), failed: Box::new(|failure| panic!("{failure}")) };
            let mut opened = open(&dir.0, NODE, hooks);
            let group = opened.replay.groups.get_mut(&PartitionId(1)).expect("known");
            let trimmed = group.trimmed.map_or(0, |upto| upto.0);
            let votes: Vec<u64> = group
                .take_records()
                .filter_map(|(_, record)| match record {
                    Record::Accept { instance, .. } => Some(instance.0),
                    _ => None,
                })
                .filter(|instance| *instance > trimmed)
                .collect();
            let (first, last) = (votes.first().copied().unwrap_or(0), votes.last().copied().unwrap_or(0));
            assert!(last >= done && done > 0, "{point}={action}: {done} votes were completed, {last} are there");
            assert!(
                votes.iter().copied().eq(first..=last) && first == trimmed + 1,
                "{point}={action}: {first} {trimmed}"
            );
        }
    }
}
