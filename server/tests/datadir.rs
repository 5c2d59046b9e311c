//! Data directories: who may use them, what they hold, and that nothing is overwritten.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use common::Scratch;
use coppice_client::map::PartitionMap;
use coppice_client::wire::PartitionId;
use coppice_core::handshake::{Objection, Presence};
use coppice_core::incarnation::claim::ClaimError;
use coppice_core::replay::{Entry, Replay};
use coppice_server::datadir::known_incarnations::KnownIncarnations;
use coppice_server::datadir::{ClusterId, DataDir, DataDirError, NodeId};
use coppice_server::log::{Append, Hooks, LogError, LogOptions, OpenLog, ReplicaId};

const CLUSTER: ClusterId = ClusterId(0xc0ffee);

/// One test at a time: a process that another test is just starting holds every open file, locked ones too, up to exec.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A place for a directory that is not there yet.
fn absent(name: &str) -> Scratch {
    let scratch = Scratch::new(name);
    fs::remove_dir(&scratch).expect("it is empty");
    scratch
}

fn open_log(dir: &mut DataDir) -> Result<OpenLog, DataDirError> {
    let options = LogOptions { disk_reserve_bytes: 0, ..LogOptions::default() };
    dir.open_log(
        Replay::default(),
        options,
        Hooks { flushed: Box::new(|_| ()), failed: Box::new(|failure| panic!("{failure}")) },
    )
}

/// All files below `dir`, and the directories.
fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
    found.push(dir.to_owned());
    if dir.is_dir() {
        fs::read_dir(dir).expect("readable").for_each(|entry| walk(&entry.expect("an entry").path(), found));
    }
}

#[test]
fn a_directory_gets_an_owner_once_and_counts_its_starts() {
    let _alone = alone();
    let temp = absent("owner");
    let mut dir = DataDir::open(&temp.0).expect("made");
    assert!(dir.identity().is_none());
    assert!(matches!(open_log(&mut dir), Err(DataDirError::Nobody)));
    dir.adopt(CLUSTER, NodeId(2)).expect("adopted");
    dir.adopt(CLUSTER, NodeId(2)).expect("the same again");
    assert!(matches!(dir.adopt(CLUSTER, NodeId(3)), Err(DataDirError::Taken(owner)) if owner.node == NodeId(2)));
    drop(dir);
    for start in 2..5 {
        let mut dir = DataDir::open(&temp.0).expect("opens");
        let opened = open_log(&mut dir).expect("opens");
        assert_eq!(opened.identity.incarnation, start);
        assert_eq!(dir.identity(), Some(opened.identity));
    }
}

#[test]
fn nothing_is_open_to_other_users() {
    let _alone = alone();
    let temp = absent("modes");
    fs::create_dir_all(&temp.0).expect("made");
    fs::set_permissions(&temp.0, fs::Permissions::from_mode(0o755)).expect("set");
    let mut dir = DataDir::open(&temp.0).expect("made");
    dir.adopt(CLUSTER, NodeId(2)).expect("adopted");
    let opened = open_log(&mut dir).expect("opens");
    dir.write_endpoints("{}").expect("written");
    let mut found = Vec::new();
    walk(&temp.0, &mut found);
    assert!(found.len() > 7, "{found:?}");
    for path in found {
        let mode = fs::metadata(&path).expect("there").mode() & 0o777;
        assert_eq!(mode, if path.is_dir() { 0o700 } else { 0o600 }, "{}", path.display());
    }
    drop(opened);
    drop(dir);
    assert!(!temp.0.join("endpoints.json").exists());
}

#[test]
fn a_directory_with_anything_else_in_it_is_left_alone() {
    let _alone = alone();
    let temp = absent("foreign");
    fs::create_dir_all(&temp.0).expect("made");
    fs::write(temp.0.join("thesis.tex"), "years").expect("written");
    let refused = DataDir::open(&temp.0);
    assert!(matches!(&refused, Err(DataDirError::NotOurs { name, .. }) if name == "thesis.tex"), "{refused:?}");
    assert!(!temp.0.join("LOCK").exists());
    fs::remove_file(temp.0.join("thesis.tex")).expect("removed");
    fs::write(temp.0.join("VERSION"), "coppice data directory 9\n").expect("written");
    assert!(matches!(DataDir::open(&temp.0), Err(DataDirError::Version { .. })));
}

/// What is written at a higher feature level an older program would misunderstand: the directory says so first.
#[test]
fn a_raised_feature_level_stands_in_the_directory_and_is_never_lowered() {
    let _alone = alone();
    let temp = absent("level");
    let dir = DataDir::open(&temp.0).expect("made");
    let format = || fs::read_to_string(temp.0.join("VERSION")).expect("it is there");
    assert_eq!(format(), "coppice data directory 2\n");
    for level in [1, 2, 1] {
        dir.note_feature_level(level).expect("written");
    }
    assert_eq!(format(), "coppice data directory 3\n");
    drop(dir);
    DataDir::open(&temp.0).expect("this program knows the level");
    assert_eq!(format(), "coppice data directory 3\n");
}

/// Once it was taken for new: `init` deleted the log, and after the next start the checkpoints of the old cluster were
/// served, without what had been written since.
#[test]
fn a_directory_whose_node_toml_is_gone_is_not_taken_for_new() {
    let _alone = alone();
    let temp = absent("headless");
    let mut dir = DataDir::open(&temp.0).expect("made");
    dir.adopt(CLUSTER, NodeId(2)).expect("adopted");
    let opened = open_log(&mut dir).expect("opens");
    let create = Entry::Created { group: PartitionId(1), replica: ReplicaId(1), create: Bytes::from_static(b"create") };
    let logged = opened.writer.log().append_awaited(vec![Append { entry: create, lsn: None, lazy: false }]);
    logged.expect("it runs").wait().expect("durable");
    drop((opened, dir));
    fs::remove_file(temp.0.join("node.toml")).expect("removed");
    assert!(matches!(DataDir::open(&temp.0), Err(DataDirError::Headless { .. })));
    // A checkpoint alone is enough.
    fs::remove_dir_all(temp.0.join("log")).expect("removed");
    fs::create_dir_all(temp.0.join("checkpoints/p1")).expect("made");
    assert!(matches!(DataDir::open(&temp.0), Err(DataDirError::Headless { .. })));
}

/// A crash before `VERSION`, or between the log and `node.toml`, leaves a directory that the next attempt completes.
#[test]
fn an_interrupted_creation_is_completed() {
    let _alone = alone();
    let temp = absent("halfway");
    let mut dir = DataDir::open(&temp.0).expect("made");
    dir.adopt(CLUSTER, NodeId(9)).expect("adopted");
    drop(dir);
    fs::remove_file(temp.0.join("node.toml")).expect("removed");
    let mut dir = DataDir::open(&temp.0).expect("made");
    assert!(dir.identity().is_none());
    dir.adopt(CLUSTER, NodeId(2)).expect("adopted by another node");
    open_log(&mut dir).expect("opens");
    drop(dir);
    let temp = absent("halfway-version");
    drop(DataDir::open(&temp.0).expect("made"));
    fs::remove_file(temp.0.join("VERSION")).expect("removed");
    DataDir::open(&temp.0).expect("completed");
}

/// hazards.md PX11: an emptied log is a lost one, not a new one.
#[test]
fn a_directory_whose_log_is_gone_is_refused() {
    let _alone = alone();
    let temp = absent("no-log");
    let mut dir = DataDir::open(&temp.0).expect("made");
    dir.adopt(CLUSTER, NodeId(2)).expect("adopted");
    fs::remove_dir_all(temp.0.join("log")).expect("removed");
    let refused = open_log(&mut dir);
    assert!(matches!(refused, Err(DataDirError::Log(LogError::Damage(_)))), "{refused:?}");
}

/// A node that begins without what it remembers of the others lets copies of them in.
#[test]
fn a_node_does_not_start_without_what_it_remembers_of_the_others() {
    let home = absent("unreadable");
    drop(DataDir::open(&home.0).expect("made"));
    assert!(KnownIncarnations::open(&home.0).is_ok(), "it met nobody yet");
    std::fs::create_dir(home.path("incarnations")).expect("made");
    let error = KnownIncarnations::open(&home.0).expect_err("it cannot be read").to_string();
    assert!(error.contains("incarnations"), "{error}");
}

/// A node that met others, and remembers them in its own directory.
struct OtherNode {
    home: Scratch,
    known: KnownIncarnations,
}

impl OtherNode {
    fn new() -> OtherNode {
        let home = absent("other-node");
        drop(DataDir::open(&home.0).expect("made"));
        OtherNode { known: KnownIncarnations::open(&home.0).expect("read"), home }
    }

    /// Starts the node of this directory, which greets the other node and works.
    fn meets(&self, dir: &Path) -> Result<(), Objection> {
        let mut dir = DataDir::open(dir).expect("opens");
        let opened = open_log(&mut dir).expect("opens");
        let them = Presence { cluster: CLUSTER, node: NodeId(2), claim: opened.claim };
        self.known.meet(&them, &PartitionMap::default())
    }

    /// Its process ends, without a word, and starts again.
    fn restarts(&mut self) {
        self.known = KnownIncarnations::open(&self.home.0).expect("read");
    }
}

fn node_dir(name: &str) -> Scratch {
    let temp = absent(name);
    let mut dir = DataDir::open(&temp.0).expect("made");
    dir.adopt(CLUSTER, NodeId(2)).expect("adopted");
    temp
}

fn copy(from: &Path, to: &Path) {
    _ = fs::remove_dir_all(to);
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp runs");
    assert!(copied.success());
}

/// hazards.md PX12: a copy is restored over the directory, or run beside it.
#[test]
fn an_old_copy_is_told_by_those_that_met_the_original() {
    let _alone = alone();
    let (temp, old) = (node_dir("original"), absent("copy"));
    let other = OtherNode::new();
    other.meets(&temp.0).expect("the original");
    copy(&temp.0, &old.0);
    for _ in 0..3 {
        other.meets(&temp.0).expect("the original, started again");
    }
    assert!(other.meets(&old.0).is_err(), "an old copy was let in");
    other.meets(&temp.0).expect("the original");
}

/// Stopped, copied, started, stopped; the copy is put back. Both count the same start, and their logs end at the same
/// place. Every other node restarts in between.
#[test]
fn px12_a_copy_put_back_one_start_later_is_told_by_nodes_that_restarted_since() {
    let _alone = alone();
    let (temp, old) = (node_dir("one-life"), absent("one-life-copy"));
    let mut other = OtherNode::new();
    other.meets(&temp.0).expect("the original");
    copy(&temp.0, &old.0);
    other.meets(&temp.0).expect("the original, started again");
    other.restarts();
    let refused = other.meets(&old.0);
    assert!(matches!(refused, Err(Objection::Copy(ClaimError::Twins { .. }))), "{refused:?}");
    other.restarts();
    // The copy starts once more: a start that nobody knows, of another past.
    let refused = other.meets(&old.0);
    assert!(matches!(refused, Err(Objection::Copy(ClaimError::OtherPast { .. }))), "{refused:?}");
    other.meets(&temp.0).expect("the original");
}

/// The copy starts again and again where nobody hears it: its log grows, and so does the number of its starts.
#[test]
fn px12_a_copy_that_started_often_is_told_all_the_same() {
    let _alone = alone();
    let (temp, old) = (node_dir("often"), absent("often-copy"));
    let other = OtherNode::new();
    other.meets(&temp.0).expect("the original");
    copy(&temp.0, &old.0);
    other.meets(&temp.0).expect("the original, started again");
    for _ in 0..20 {
        OtherNode::new().meets(&old.0).expect("nobody who knows");
    }
    let refused = other.meets(&old.0);
    assert!(matches!(refused, Err(Objection::Copy(ClaimError::OtherPast { .. }))), "{refused:?}");
}

/// Once another node said so, no later start needs to be told.
#[test]
fn px12_a_directory_that_is_a_copy_stays_one() {
    let _alone = alone();
    let temp = node_dir("told");
    let opened = || DataDir::open(&temp.0).expect("opens");
    assert_eq!(opened().read_copy(), None);
    opened().write_copy("an old copy").expect("written");
    assert_eq!(opened().read_copy().as_deref(), Some("an old copy"));
}

/// A directory that was emptied and given the same identity again, while the others know its first start.
#[test]
fn a_wiped_directory_is_not_the_node_that_it_was() {
    let _alone = alone();
    let (temp, wiped) = (node_dir("first-life"), node_dir("wiped"));
    let mut other = OtherNode::new();
    other.meets(&temp.0).expect("the original");
    other.restarts();
    assert!(other.meets(&wiped.0).is_err(), "a node without its disk was let in");
}

/// Run by the test below as the other process: holds the directory until its standard input ends.
#[test]
fn hold() {
    let Some(dir) = std::env::var_os("COPPICE_TEST_HOLD") else { return };
    let _dir = DataDir::open(Path::new(&dir)).expect("opens");
    println!("\nholding");
    _ = std::io::stdin().lines().next();
}

/// hazards.md ST13.
#[test]
fn a_second_process_is_refused_and_told_who_has_the_directory() {
    let _alone = alone();
    let temp = absent("lock");
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "hold", "--nocapture"])
        .env("COPPICE_TEST_HOLD", &temp.0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let output = BufReader::new(child.stdout.take().expect("piped"));
    assert!(output.lines().map_while(Result::ok).any(|line| line == "holding"), "it holds the directory");
    let refused = DataDir::open(&temp.0);
    // Whoever tidies up removes the file, and the directory is in use all the same.
    std::fs::remove_file(temp.0.join("LOCK")).expect("it is there");
    let refused_again = DataDir::open(&temp.0);
    child.kill().expect("killed");
    child.wait().expect("ended");
    match refused {
        Err(DataDirError::Locked { pid, .. }) => assert_eq!(pid, child.id()),
        other => panic!("{other:?}"),
    }
    assert!(matches!(refused_again, Err(DataDirError::Locked { .. })), "{refused_again:?}");
    DataDir::open(&temp.0).expect("a killed process holds nothing");
}

#[cfg(feature = "mutants")]
#[test]
fn every_planted_bug_is_caught() {
    let _alone = alone();
    common::assert_caught("no_lock", "a_second_process_is_refused_and_told_who_has_the_directory");
    common::assert_caught("level_not_noted", "a_raised_feature_level_stands_in_the_directory_and_is_never_lowered");
    common::assert_caught("headless_is_new", "a_directory_whose_node_toml_is_gone_is_not_taken_for_new");
    common::assert_caught("no_incarnation", "an_old_copy_is_told_by_those_that_met_the_original");
    let one_start = "px12_a_copy_put_back_one_start_later_is_told_by_nodes_that_restarted_since";
    common::assert_caught("boot_id_ignored", one_start);
    common::assert_caught("incarnation_table_forgotten", one_start);
    common::assert_caught("copy_forgets", "px12_a_directory_that_is_a_copy_stays_one");
}
