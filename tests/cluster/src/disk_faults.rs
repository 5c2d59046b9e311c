//! Faults of one node's disk: slow, full, failing, without power, lost (hazards.md 5).

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fmt, io};

use coppice_testkit::random::Random;

use super::nemesis::{Nemesis, RoundError, names};
use super::strace::{LOG_WRITER, Tracer};

/// A node under load flushes so often that the drawn flush comes within this time.
const FLUSH_WITHIN: Duration = Duration::from_secs(10);

/// A node whose flush failed is gone within this time.
const END_WITHIN: Duration = Duration::from_secs(5);

/// One bit of a log.
#[derive(Debug)]
struct Flip {
    segment: String,
    offset: u64,
    mask: u8,
}

impl fmt::Display for Flip {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "bit {:#x} of byte {} of {}", self.mask, self.offset, self.segment)
    }
}

impl Flip {
    /// A bit of what is written in a segment that at least two later ones follow; none: there is no such segment.
    fn draw(log: &Path, random: &mut Random) -> io::Result<Option<Flip>> {
        let names = std::fs::read_dir(log)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut written = Vec::new();
        for segment in names.filter(|name| name.ends_with(".seg")) {
            let bytes = std::fs::read(log.join(&segment))?;
            let length = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            // Zeros alone: made ahead, not used yet.
            if length > 0 {
                written.push((segment, length));
            }
        }
        written.sort_unstable();
        let Some(older) = written.len().checked_sub(2).filter(|older| *older > 0) else { return Ok(None) };
        let (segment, length) = written.swap_remove(random.below(older));
        Ok(Some(Flip { segment, offset: random.below(length) as u64, mask: 1 << random.below(8) }))
    }

    /// Turns it over, or back.
    fn turn(&self, data: &Path) -> io::Result<()> {
        let file = OpenOptions::new().read(true).write(true).open(data.join("log").join(&self.segment))?;
        let mut byte = [0];
        file.read_exact_at(&mut byte, self.offset)?;
        file.write_all_at(&[byte[0] ^ self.mask], self.offset)?;
        file.sync_all()
    }
}

impl Nemesis<'_> {
    pub(super) fn slow_disk(&mut self) -> Result<(), RoundError> {
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

    /// One flush of the log fails; the next one would not. Do not trust the disk after that: the node ends
    /// (hazards.md ST1).
    pub(super) fn flush(&mut self) -> Result<(), RoundError> {
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
            (Some((_, how)), _) => return Err(RoundError::Node(how)),
            (None, Some(_)) => {
                let what = format!("n{} goes on {END_WITHIN:?} after a flush of its log failed", node + 1);
                return Err(RoundError::Node(what));
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

    /// The log finds no room for a while: nothing is lost, the node waits and goes on (hazards.md ST10).
    pub(super) fn full_disk(&mut self) -> Result<(), RoundError> {
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

    pub(super) fn power(&mut self) -> Result<(), RoundError> {
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

    /// A bit of an older segment of the log is turned over: what stands behind it proves that it was whole. The node
    /// refuses to start, or the bit meant nothing (hazards.md ST2).
    pub(super) fn rot(&mut self) -> Result<(), RoundError> {
        let node = self.random.below(self.nodes.count());
        self.note("rot", &names(&[node]))?;
        self.nodes.kill(node);
        self.count += 1;
        let Some(flip) = Flip::draw(&self.nodes.data(node).join("log"), &mut self.random)? else {
            // Too young: nothing is proven yet.
            self.nodes.relaunch(node)?;
            return self.back(&[node]);
        };
        flip.turn(&self.nodes.data(node))?;
        self.nodes.relaunch(node)?;
        match self.nodes.ready(node) {
            Ok(()) => return Ok(self.note("restart", &format!("n{}: {flip} meant nothing", node + 1))?),
            Err(error) if !self.nodes.said(node).contains(&flip.segment) => {
                let what = format!("{flip} was turned over: {error}, and it does not name the file");
                return Err(RoundError::Node(what));
            }
            Err(_) => {}
        }
        self.nodes.kill(node);
        self.nodes.lose_disk(node)?;
        // Whoever judges reads what stood there.
        flip.turn(self.nodes.lost().last().map_or(Path::new(""), PathBuf::as_path))?;
        self.replace(node)
    }

    /// One node at a time: another one is lost only when a majority of each partition has everything again.
    pub(super) fn wipe(&mut self) -> Result<(), RoundError> {
        let node = self.random.below(self.nodes.count());
        self.note("wipe", &names(&[node]))?;
        self.nodes.kill(node);
        self.nodes.lose_disk(node)?;
        self.count += 1;
        self.replace(node)
    }

    /// An empty process takes the place of a node that is down and has lost its disk.
    fn replace(&mut self, node: usize) -> Result<(), RoundError> {
        let down = self.random.below(300) as u64;
        std::thread::sleep(Duration::from_millis(down));
        self.nodes.relaunch(node)?;
        self.nodes.waits(node).map_err(|error| RoundError::Node(error.to_string()))?;
        let change = self.random.next();
        let replaced = self.operator.replace(self.nodes.peer(node), change);
        self.look()?;
        replaced.map_err(|why| RoundError::Node(format!("n{} lost its disk and was not replaced: {why}", node + 1)))?;
        Ok(self.note("replaced", &names(&[node]))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flip_hits_what_is_written_in_an_older_segment_and_can_be_taken_back() {
        let data = std::env::temp_dir().join(format!("coppice-flip-{}", std::process::id()));
        let log = data.join("log");
        std::fs::create_dir_all(&log).expect("a directory");
        let (mut random, whole) = (Random::new(7), [vec![1; 100], vec![0; 100]].concat());
        let names: Vec<String> = (1..=5).map(|number| format!("{number:08}.seg")).collect();
        // The last one is only prepared.
        for (at, name) in names.iter().enumerate() {
            assert!(at > 2 || Flip::draw(&log, &mut random).expect("readable").is_none(), "too young");
            std::fs::write(log.join(name), if at < 4 { &whole[..] } else { &[0; 200] }).expect("written");
        }
        for _ in 0..50 {
            let flip = Flip::draw(&log, &mut random).expect("readable").expect("there are older ones");
            assert!(names[..2].contains(&flip.segment) && flip.offset < 100, "{flip}");
            let read = || std::fs::read(log.join(&flip.segment)).expect("readable");
            flip.turn(&data).expect("ours");
            let differ = read().iter().zip(&whole).filter(|(one, other)| one != other).count();
            assert_eq!(differ, 1);
            flip.turn(&data).expect("ours");
            assert_eq!(read(), whole);
        }
        std::fs::remove_dir_all(&data).expect("ours");
    }
}
