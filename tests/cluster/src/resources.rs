//! What each node holds, looked at from outside while a round goes on: resident memory, descriptors, bytes on disk
//! (hazards.md 3.6, B8). It knows processes and directories by number and name alone.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fmt, fs};

use coppice_client::wire::Status;
use coppice_client::{Admin, Config};
use serde_json::{Value, json};

use coppice_check::cli::Line;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(200);

/// Looks that make one stretch of rest.
const STRETCH: u32 = 5;

/// What grows in so many stretches of rest, one after the other, keeps growing.
const STRETCHES: usize = 8;

/// From one stretch to the next, growth below this is none: allocators and clocks of the system breathe.
const SLACK: Held = Held { memory: 256 << 10, descriptors: 1, disk: 64 << 10 };

/// Descriptors that no node may exceed: connections of clients and other nodes, segments, snapshots.
const DESCRIPTORS_MAX: u64 = 4_096;

/// Bytes on disk that no node may exceed, what is kept for the judge apart: rounds write keys over and over.
const DISK_MAX: u64 = 512 << 20;

const MIB: u64 = 1 << 20;

/// What a node holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Resident memory, bytes.
    pub memory: u64,
    /// Open descriptors.
    pub descriptors: u64,
    /// Bytes on disk, without trimmed parts of the log, which are kept for the judge (`log.keep = "all"`).
    pub disk: u64,
}

impl fmt::Display for Held {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Held { memory, descriptors, disk } = self;
        write!(out, "{} MiB of memory, {descriptors} descriptors, {} MiB on disk", memory / MIB, disk / MIB)
    }
}

impl Held {
    /// What a process and its directory hold now; a process that is gone holds nothing.
    fn now(pid: u32, data: &Path) -> Held {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = resident.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |entries| entries.count() as u64);
        Held { memory: kilobytes.unwrap_or(0) << 10, descriptors, disk: bytes_in(data) }
    }

    fn most(self, other: Held) -> Held {
        Held {
            memory: self.memory.max(other.memory),
            descriptors: self.descriptors.max(other.descriptors),
            disk: self.disk.max(other.disk),
        }
    }

    fn each(self) -> [(&'static str, u64); 3] {
        [("resident bytes", self.memory), ("descriptors", self.descriptors), ("bytes on disk", self.disk)]
    }

    /// For programs.
    pub fn json(&self) -> Value {
        json!({ "memory_bytes": self.memory, "descriptors": self.descriptors, "disk_bytes": self.disk })
    }
}

/// Bytes of all files in a directory, but for those of `old`, as long as they are there.
fn bytes_in(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(data) if data.is_dir() && entry.file_name() == "old" => 0,
            Ok(data) if data.is_dir() => bytes_in(&entry.path()),
            Ok(data) => data.len(),
            Err(_) => 0,
        })
        .sum()
}

/// The most of both, node by node.
pub fn merge(most: &mut Vec<Held>, other: &[Held]) {
    most.resize(most.len().max(other.len()), Held::default());
    most.iter_mut().zip(other).for_each(|(most, other)| *most = most.most(*other));
}

/// Looks at nodes every now and then.
pub struct Sampler {
    pids: Arc<Vec<AtomicU32>>,
    directories: Vec<PathBuf>,
    stop: Arc<AtomicBool>,
    most: Arc<Mutex<Vec<Held>>>,
    looking: Option<JoinHandle<()>>,
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn look(pids: &[AtomicU32], directories: &[PathBuf]) -> Vec<Held> {
    let nodes = pids.iter().zip(directories);
    nodes.map(|(pid, data)| Held::now(pid.load(Ordering::Relaxed), data)).collect()
}

impl Sampler {
    /// Looks at these until it is finished or dropped.
    pub fn start(pids: Arc<Vec<AtomicU32>>, directories: Vec<PathBuf>) -> Sampler {
        let (stop, most) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (stopped, pids_, directories_, most_) =
            (Arc::clone(&stop), Arc::clone(&pids), directories.clone(), Arc::clone(&most));
        let looking = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let held = look(&pids_, &directories_);
                merge(&mut most_.lock().unwrap_or_else(PoisonError::into_inner), &held);
                std::thread::sleep(PAUSE);
            }
        });
        Sampler { pids, directories, stop, most, looking: Some(looking) }
    }

    /// What keeps growing although nobody asks for anything, in words. Ends as soon as nothing does.
    pub fn at_rest(&self) -> Vec<String> {
        let mut stretches: Vec<Vec<Held>> = Vec::new();
        loop {
            let mut most = Vec::new();
            for _ in 0..STRETCH {
                merge(&mut most, &look(&self.pids, &self.directories));
                std::thread::sleep(PAUSE);
            }
            stretches.push(most);
            let growing = growing(&stretches);
            if stretches.len() > 1 && growing.is_empty() || stretches.len() > STRETCHES {
                return growing;
            }
        }
    }

    /// The most that each held.
    pub fn finish(mut self) -> Vec<Held> {
        self.stop.store(true, Ordering::Relaxed);
        // A look that panics has seen nothing.
        let _ = self.looking.take().map(JoinHandle::join);
        std::mem::take(&mut self.most.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What grew from each stretch to the next.
fn growing(stretches: &[Vec<Held>]) -> Vec<String> {
    let mut growing = Vec::new();
    let (Some(first), Some(last)) = (stretches.first(), stretches.last()) else { return growing };
    for node in 0..first.len().min(last.len()) {
        for (what, slack) in SLACK.each().into_iter().enumerate() {
            let of = |held: &Vec<Held>| held[node].each()[what].1;
            if stretches.windows(2).all(|pair| of(&pair[1]) > of(&pair[0]) + slack.1) {
                let (from, to, name) = (of(first), of(last), slack.0);
                growing.push(format!("n{} keeps growing at rest: from {from} to {to} {name}", node + 1));
            }
        }
    }
    growing
}

/// Who held more than allowed, in words.
pub fn beyond(most: &[Held], memory_max: u64) -> Vec<String> {
    let bounds = Held { memory: memory_max, descriptors: DESCRIPTORS_MAX, disk: DISK_MAX };
    let each = most.iter().enumerate().flat_map(|(node, held)| {
        held.each().into_iter().zip(bounds.each()).map(move |((name, held), (_, bound))| (node, name, held, bound))
    });
    each.filter(|(_, _, held, bound)| held > bound)
        .map(|(node, name, held, bound)| format!("n{} held {held} {name}, more than {bound}", node + 1))
        .collect()
}

/// What waits for decisions and releases, as nodes tell: the most of any partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Replies behind the gate.
    pub replies: u64,
    /// Bytes of undo records.
    pub undo: u64,
    /// Open sessions; these stay.
    pub sessions: u64,
}

impl fmt::Display for Waiting {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Waiting { replies, undo, sessions } = self;
        write!(out, "a partition had {replies} replies behind its gate, {undo} bytes of undo, {sessions} sessions")
    }
}

impl Waiting {
    /// The most of any partition.
    pub fn of(status: &Status) -> Waiting {
        status.partitions.iter().fold(Waiting::default(), |most, partition| {
            most.most(Waiting { replies: partition.held, undo: partition.undo_bytes, sessions: partition.sessions })
        })
    }

    /// The most of both.
    pub fn most(self, other: Waiting) -> Waiting {
        Waiting {
            replies: self.replies.max(other.replies),
            undo: self.undo.max(other.undo),
            sessions: self.sessions.max(other.sessions),
        }
    }

    /// Nothing waits.
    pub fn is_over(&self) -> bool {
        self.replies == 0 && self.undo == 0
    }
}

/// Asks the nodes what waits every now and then, until `stop`.
pub async fn watch(endpoints: Vec<String>, config: Config, stop: Arc<AtomicBool>) -> Waiting {
    let admin = Admin::new(endpoints, Config { timeout: Duration::from_secs(1), ..config });
    let mut most = Waiting::default();
    while !stop.load(Ordering::Relaxed) {
        // Nodes that are down tell nothing.
        if let Ok(status) = admin.status(false).await {
            most = most.most(Waiting::of(&status));
        }
        tokio::time::sleep(2 * PAUSE).await;
    }
    most
}

/// B8, as a line of the report; none: no node was looked at.
pub fn bounds(most: &[Held], waiting: &Waiting, memory_max: u64) -> Option<Line> {
    let worst = most.iter().copied().reduce(Held::most)?;
    let (memory, disk) = (memory_max / MIB, DISK_MAX / MIB);
    let what = format!("at most {worst}; allowed: {memory} MiB, {DESCRIPTORS_MAX}, {disk} MiB; {waiting} at most");
    let verdict = if beyond(most, memory_max).is_empty() { "PASS" } else { "FAIL" };
    Some(Line { check: "B8".into(), verdict, what })
}

#[cfg(test)]
mod tests {
    use coppice_client::wire::PartitionStatus;

    use super::*;

    #[test]
    fn what_this_process_holds_is_seen() {
        let data = std::env::temp_dir().join(format!("coppice-held-{}", std::process::id()));
        fs::create_dir_all(data.join("log/old")).expect("a directory");
        fs::write(data.join("log/1"), [0; 1_000]).expect("written");
        fs::write(data.join("log/old/0"), [0; 5_000]).expect("written");
        let held = Held::now(std::process::id(), &data);
        assert!(held.memory > MIB && held.descriptors > 2 && held.disk == 1_000, "{held:?}");
        let pids = Arc::new(vec![AtomicU32::new(std::process::id())]);
        let sampler = Sampler::start(Arc::clone(&pids), vec![data.clone()]);
        while sampler.most.lock().expect("unharmed").is_empty() {
            std::thread::yield_now();
        }
        let most = sampler.finish();
        assert!(most[0].memory > MIB && most[0].disk == 1_000, "{most:?}");
        assert!(beyond(&most, 1 << 40).is_empty());
        assert_eq!(beyond(&most, 1_000).len(), 1);
        assert_eq!(bounds(&most, &Waiting::default(), 1_000).map(|line| line.verdict), Some("FAIL"));
        assert_eq!(Held::now(0, &data.join("none")), Held::default());
        fs::remove_dir_all(&data).expect("ours");
    }

    #[test]
    fn what_waits_is_the_most_of_any_partition() {
        let partition =
            |held, undo_bytes| PartitionStatus { held, undo_bytes, sessions: 9, ..PartitionStatus::default() };
        let of = |partitions: &[PartitionStatus]| {
            Waiting::of(&Status { partitions: partitions.to_vec(), ..Status::default() })
        };
        assert_eq!(of(&[partition(3, 0), partition(0, 70)]), Waiting { replies: 3, undo: 70, sessions: 9 });
        assert!(
            of(&[partition(0, 0)]).is_over() && !of(&[partition(1, 0)]).is_over() && !of(&[partition(0, 1)]).is_over()
        );
    }

    #[test]
    fn only_what_grows_all_the_time_keeps_growing() {
        let stretches = |memory: &[u64]| -> Vec<Vec<Held>> {
            memory
                .iter()
                .map(|memory| vec![Held::default(), Held { memory: memory * MIB, ..Held::default() }])
                .collect()
        };
        assert_eq!(
            growing(&stretches(&[10, 11, 12])),
            ["n2 keeps growing at rest: from 10485760 to 12582912 resident bytes"]
        );
        assert!(growing(&stretches(&[10, 20, 20])).is_empty());
        let mut slow = stretches(&[10, 10]);
        slow[1][1].memory += SLACK.memory;
        assert!(growing(&slow).is_empty());
        slow[1][1].memory += 1;
        assert_eq!(growing(&slow).len(), 1);
        slow[1][0].descriptors = 2;
        assert_eq!(growing(&slow).len(), 2);
    }
}
