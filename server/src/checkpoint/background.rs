//! The thread that writes checkpoints, one after the other, while replicas go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use coppice_btree::Snapshot;
use coppice_core::snapshot::{Head, TakenBlobs};
use crossbeam::channel::{self, Receiver, Sender};

use super::{CheckpointError, Checkpoints, Staging, Written};

/// The niceness of the thread and of those of sled's that it starts: on a full machine it gets a quarter of what a
/// thread gets that clients wait for. Less, and the log would grow for longer.
const NICENESS: i32 = 6;

/// Checkpoints that wait at most: one of each partition (`limits.partitions`).
const JOBS_MAX: usize = 256;

/// A checkpoint to be written.
pub struct Job {
    /// Where and when.
    pub head: Head,
    /// Everything but the tree.
    pub blobs: TakenBlobs,
    /// The tree's pairs.
    pub tree: Snapshot,
    /// It is to stand alone. One that is there already is as good.
    pub alone: bool,
    /// Called from the thread when it counts, or failed. After `Ok` the log may be trimmed as it says.
    pub done: Box<dyn FnOnce(Result<Written, CheckpointError>) + Send>,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Job").field("head", &self.head).finish_non_exhaustive()
    }
}

/// The running thread.
#[derive(Debug)]
pub struct Checkpointer {
    jobs: Option<Sender<Job>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's.
    pub fn start(checkpoints: Checkpoints) -> std::io::Result<Checkpointer> {
        let (jobs, inbox) = channel::bounded(JOBS_MAX);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let name = thread::Builder::new().name("checkpoints".into());
        let thread = name.spawn(move || {
            // Linux means this thread, other systems the whole process. Refused: checkpoints are written all the same.
            if cfg!(target_os = "linux") {
                _ = rustix::process::setpriority_process(None, NICENESS);
            }
            run(&checkpoints, &inbox, &stopped);
        })?;
        Ok(Checkpointer { jobs: Some(jobs), stop, thread: Some(thread) })
    }

    /// Queues a checkpoint; gives it back when too many wait.
    pub fn submit(&self, job: Job) -> Result<(), Box<Job>> {
        let Some(jobs) = &self.jobs else { return Err(Box::new(job)) };
        jobs.try_send(job).map_err(|refused| Box::new(refused.into_inner()))
    }
}

impl Drop for Checkpointer {
    /// Stops where it is: what is half written does not count.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

fn run(checkpoints: &Checkpoints, jobs: &Receiver<Job>, stop: &Arc<AtomicBool>) {
    for Job { head, blobs, tree, alone, done } in jobs {
        let stop = Arc::clone(stop);
        let (partition, instance) = (head.partition, head.instance);
        let written = blobs.write();
        drop(blobs);
        let staging = checkpoints.write(head, &written, tree.iter(), Box::new(move |_| !stop.load(Ordering::Relaxed)));
        // Here, not at a worker thread: the last holder of a snapshot frees what only it still had. What the tree has
        // replaced since goes with its next changes there, or is looked for (`coppice_core::worker`).
        drop(tree);
        let mut result = staging.and_then(Staging::finish);
        if alone && matches!(result, Ok(_) | Err(CheckpointError::Present(..))) {
            result = checkpoints.keep_only(partition, instance);
        }
        done(result);
    }
}
