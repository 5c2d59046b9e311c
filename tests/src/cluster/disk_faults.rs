//! Faults of one node's disk: slow, full, failing, without power, lost (reliability.md 5).

use std::time::{Duration, Instant};

use super::nemesis::{Broken, Nemesis, names};
use super::strace::{LOG_WRITER, Tracer};

/// A node under load flushes so often that the drawn flush comes within this time.
const FLUSH_WITHIN: Duration = Duration::from_secs(10);

/// A node whose flush failed is gone within this time.
const END_WITHIN: Duration = Duration::from_secs(5);

impl Nemesis<'_> {
    pub(super) fn slow_disk(&mut self) -> Result<(), Broken> {
        let node = self.random.below(self.nodes.count());
        let Some(pid) = self.nodes.pid(node) else { return Ok(()) };
        let delay = self.span(5, 500);
        let inject = format!("delay_enter={}", delay.as_micros());
        let tracer = Tracer::start(pid, None, "fdatasync", &inject, &self.nodes.traced(node))?;
        self.note("slow-disk", &format!("n{}: {} ms a flush", node + 1, delay.as_millis()))?;
        self.count += 1;
        let span = self.span(300, 4_000);
        std::thread::sleep(span);
        drop(tracer);
        self.note("heal", &format!("n{}", node + 1))?;
        self.look()
    }

    /// One flush of the log fails; the next one would not. What it said is not to be believed any more: the node ends
    /// (reliability.md ST1).
    pub(super) fn flush(&mut self) -> Result<(), Broken> {
        let node = self.random.below(self.nodes.count());
        let Some(pid) = self.nodes.pid(node) else { return Ok(()) };
        let which = 1 + self.random.below(30);
        let inject = format!("error=EIO:when={which}");
        let tracer = Tracer::start(pid, Some(LOG_WRITER), "fdatasync", &inject, &self.nodes.traced(node))?;
        self.note("flush", &format!("n{}: flush {which} from now fails", node + 1))?;
        self.count += 1;
        let deadline = Instant::now() + FLUSH_WITHIN;
        let mut failed = None;
        let ended = loop {
            if let Some(ended) = self.nodes.ended(node) {
                break Some(ended);
            }
            let now = Instant::now();
            if failed.is_none() && tracer.has_injected() {
                failed = Some(now);
            }
            // A node that nobody writes to has nothing to flush.
            if failed.map_or(now > deadline, |at| now > at + END_WITHIN) {
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        drop(tracer);
        match (ended, failed) {
            (Some((Some(1), _)), _) => {}
            (Some((_, how)), _) => return Err(Broken::Node(how)),
            (None, Some(_)) => {
                let what = format!("n{} goes on {END_WITHIN:?} after a flush of its log failed", node + 1);
                return Err(Broken::Node(what));
            }
            (None, None) => return self.look(),
        }
        self.nodes.kill(node);
        if self.disks.can_fail() {
            self.disks.shut_down(node)?;
            self.disks.mount_again(node)?;
        }
        let down = self.random.below(300) as u64;
        std::thread::sleep(Duration::from_millis(down));
        self.look()?;
        self.nodes.relaunch(node)?;
        self.back(&[node])
    }

    /// The log finds no room for a while: nothing is lost, the node waits and goes on (reliability.md ST10).
    pub(super) fn full_disk(&mut self) -> Result<(), Broken> {
        let node = self.random.below(self.nodes.count());
        let Some(pid) = self.nodes.pid(node) else { return Ok(()) };
        let writes = "pwrite64,pwritev,pwritev2";
        let tracer = Tracer::start(pid, Some(LOG_WRITER), writes, "error=ENOSPC", &self.nodes.traced(node))?;
        self.note("full-disk", &names(&[node]))?;
        self.count += 1;
        let span = self.span(50, 3_000);
        std::thread::sleep(span);
        drop(tracer);
        self.note("heal", &names(&[node]))?;
        self.look()
    }

    pub(super) fn power(&mut self) -> Result<(), Broken> {
        let victims = self.victims();
        self.note("power", &names(&victims))?;
        for &node in &victims {
            // First the file system, then the process: nothing reaches the disk in between.
            self.disks.shut_down(node)?;
            self.nodes.kill(node);
        }
        self.count += victims.len() as u64;
        let down = self.random.below(300) as u64;
        std::thread::sleep(Duration::from_millis(down));
        for &node in &victims {
            self.disks.mount_again(node)?;
            self.nodes.relaunch(node)?;
        }
        self.back(&victims)
    }

    /// One node at a time: another one is lost only when a majority of each partition has everything again.
    pub(super) fn wipe(&mut self) -> Result<(), Broken> {
        let node = self.random.below(self.nodes.count());
        self.note("wipe", &names(&[node]))?;
        self.nodes.kill(node);
        self.nodes.lose_disk(node)?;
        self.count += 1;
        let down = self.random.below(300) as u64;
        std::thread::sleep(Duration::from_millis(down));
        self.nodes.relaunch(node)?;
        self.nodes.waits(node).map_err(|error| Broken::Node(error.to_string()))?;
        let change = self.random.next();
        let replaced = self.operator.replace(self.nodes.peer(node), change);
        self.look()?;
        replaced.map_err(|why| Broken::Node(format!("n{} lost its disk and was not replaced: {why}", node + 1)))?;
        Ok(self.note("replaced", &names(&[node]))?)
    }
}
