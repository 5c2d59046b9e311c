//! A process ends, or its disk fails, at each step of a checkpoint (hazards.md 2, E10; ST4, ST7): the older one is
//! there, or the new one, whole, and the next one can be written. Each end takes a process of its own.
#![cfg(feature = "failpoints")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use common::Scratch;
use coppice_client::wire::PartitionId;
use coppice_core::snapshot::{Blobs, Head};
use coppice_server::checkpoint::{CheckpointError, CheckpointOptions, Checkpoints, Staging};
use coppice_server::log::Instance;

const P: PartitionId = PartitionId(4);

/// Pairs of a checkpoint: enough for a flush before its end.
const PAIRS: u64 = 60_000;

fn open(dir: &Path) -> Checkpoints {
    let options = CheckpointOptions { rate_bytes: u64::MAX, space_floor_bytes: 0, ..CheckpointOptions::default() };
    Checkpoints::open(dir, options).expect("opens")
}

fn pairs(instance: u64) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    (0..PAIRS).map(move |n| (format!("k{n:08}").into_bytes(), format!("{instance}.{n}").into_bytes()))
}

fn write(dir: &Path, instance: u64) -> Result<(), CheckpointError> {
    let head = Head { partition: P, instance: Instance(instance), low: Bytes::from_static(b"a"), ..Head::default() };
    open(dir).write(head, &Blobs::default(), pairs(instance), Box::new(|_| true)).and_then(Staging::finish).map(drop)
}

/// The newest checkpoint, which is whole; no newer one is damaged.
fn newest(dir: &Path) -> u64 {
    let loaded = open(dir).load(P).expect("loads");
    assert!(loaded.bad.is_empty(), "{:?}", loaded.bad);
    let checkpoint = loaded.checkpoint.expect("there is one");
    let instance = checkpoint.manifest().head.instance.0;
    let (_, mut found) = checkpoint.contents().expect("readable");
    let equal = found.by_ref().map(|(key, value)| (key.to_vec(), value.to_vec())).eq(pairs(instance));
    found.finish().expect("complete");
    assert!(equal, "other pairs at {instance}");
    instance
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("readable") {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).expect("an entry");
        if path.is_dir() {
            copy(&path, &to.join(name));
        } else {
            fs::copy(path, to.join(name)).expect("copied");
        }
    }
}

/// What the processes of the other test run.
#[test]
fn the_third_checkpoint() {
    let Some(dir) = std::env::var_os("COPPICE_TEST_CHECKPOINTS") else { return };
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
    std::process::exit(i32::from(write(Path::new(&dir), 30).is_err()));
}

/// What a process of the test below runs.
#[test]
fn a_checkpoint_three_times() {
    let Some(dir) = std::env::var_os("COPPICE_TEST_CHECKPOINTS_AGAIN") else { return };
    let dir = Path::new(&dir);
    for flushed in [false, false, true] {
        let written = write(dir, 30);
        let durable = matches!(written, Err(CheckpointError::Present(P, Instance(30))));
        assert_eq!(durable, flushed, "{written:?}");
    }
}

#[test]
fn a_checkpoint_whose_name_was_not_flushed_is_not_taken_for_a_durable_one() {
    let dir = Scratch::new("checkpoint-again");
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["a_checkpoint_three_times", "--exact"]).env("COPPICE_TEST_CHECKPOINTS_AGAIN", &dir.0);
    command.env("COPPICE_FAILPOINTS", "checkpoint.renamed=error@1,checkpoint.present=error@1");
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_checkpoint_that_ends_at_any_step_is_whole_or_not_there() {
    let before = ["begun", "chunk", "part_flushed", "written", "read_back", "summed", "before_rename"];
    let after = ["renamed", "durable", "old_aside", "old_gone"];
    let base = Scratch::new("checkpoint-base");
    write(&base.0, 10).and_then(|()| write(&base.0, 20)).expect("written");
    for (step, expected) in before.map(|step| (step, 20)).into_iter().chain(after.map(|step| (step, 30))) {
        for action in ["panic", "error"] {
            if action == "error" && ["durable", "old_gone"].contains(&step) {
                continue;
            }
            let dir = Scratch::new("checkpoint-ends");
            copy(&base.0, &dir.0);
            let mut command = Command::new(std::env::current_exe().expect("this program"));
            command.args(["the_third_checkpoint", "--exact"]).env("COPPICE_TEST_CHECKPOINTS", &dir.0);
            command.env("COPPICE_FAILPOINTS", format!("checkpoint.{step}={action}@1"));
            let output = command.output().expect("it runs");
            assert_eq!(output.status.code(), (action == "error").then_some(1), "{step}={action}");
            assert_eq!(newest(&dir.0), expected, "{step}={action}");
            write(&dir.0, 40).expect("the next one is written");
            assert_eq!(newest(&dir.0), 40, "{step}={action}");
        }
    }
}
