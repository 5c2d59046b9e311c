//! Faults on real processes, drawn from a seed, one after the other: made, held for a while, healed (reliability.md 5).
//! Every fault is written into the history. Changes of the map are made beside them by `shape.rs`.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use coppice_client::wire::NodeId;

use super::matrix::Cut;
use super::nodes::{Clock, Nodes, libfaketime};
use super::power::Disks;
use super::proxy::{Proxy, Way};
use super::shape::Operator;
use super::workload::Workload;
use crate::check::random::Random;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Kind {
    /// SIGKILL of one node, of several, of all at once; restarted, sometimes killed again while it recovers.
    Kill,
    /// SIGSTOP, later SIGCONT.
    Pause,
    /// Links between nodes, and from clients to nodes, are held: both ways or one.
    Cut,
    /// Every flush of a node takes longer (strace).
    SlowDisk,
    /// The file system of a node loses what was not flushed, and the node is killed (root, loop device).
    Power,
    /// The disk of a node is lost with everything on it; it comes back as another node (`coppice node replace`).
    Wipe,
    /// A node is restarted with another clock: up to an hour off, at half to twice the rate (libfaketime).
    Clock,
    /// Partitions are split and merged, leaderships handed over, replicas moved.
    Map,
    /// One node is given every leadership and gets a SIGKILL: how long does each partition serve nobody? To be asked
    /// for alone; no part of `all`.
    Gap,
    /// Every kind that this machine allows.
    All,
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.to_possible_value().as_ref().map_or("?", |value| value.get_name()))
    }
}

/// A killed leader of everything is down for so long: the others have to serve without it, for which the goal is a
/// second (reliability.md G17).
const DOWN: Duration = Duration::from_millis(1_500);

/// A fault that was made: from when to when, nanoseconds of the history.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Which.
    pub kind: Kind,
    /// Of the matrix: which cut.
    pub cut: Option<Cut>,
    /// When it began.
    pub from: u64,
    /// When it was healed: all nodes run and hear each other.
    pub to: u64,
}

/// All links of a cluster, each with a proxy.
#[derive(Debug, Default)]
pub struct Links {
    /// From one node to another.
    pub peers: BTreeMap<(usize, usize), Proxy>,
    /// From all clients to a node.
    pub clients: Vec<Proxy>,
}

impl Links {
    fn set(&self, from: usize, to: usize, way: Way) {
        if let Some(proxy) = self.peers.get(&(from, to)) {
            proxy.set(way);
        }
    }

    /// Opens everything.
    pub fn heal(&self) {
        self.peers.values().chain(&self.clients).for_each(|proxy| proxy.set(Way::Open));
    }
}

/// Makes the faults.
pub struct Nemesis<'a> {
    /// The nodes.
    pub nodes: &'a mut Nodes,
    /// Their links.
    pub links: &'a Links,
    /// Their file systems.
    pub disks: &'a Disks,
    /// Gives a node that lost its disk back to the cluster.
    pub operator: Operator<'a>,
    /// Where faults are written down.
    pub workload: &'a Arc<Workload>,
    /// Of all draws.
    pub random: Random,
    /// Kinds to draw from; never `Map` and `All`.
    pub kinds: Vec<Kind>,
    /// Cuts of the matrix that are still to be made; the matrix takes the place of all other faults.
    pub matrix: Option<Vec<Cut>>,
    /// What was made.
    pub spans: Vec<Span>,
    /// When a leader of everything was killed, nanoseconds of the history.
    pub kills: Vec<u64>,
    /// Faults so far: every node that is killed counts one.
    pub count: u64,
}

/// Why the faults ended early.
#[derive(Debug)]
pub enum Broken {
    /// A node ended by itself, or did not come back: a bug of the server.
    Node(String),
    /// This program could not do its work.
    Machine(io::Error),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Broken {
        Broken::Machine(error)
    }
}

fn names(victims: &[usize]) -> String {
    victims.iter().map(|node| format!("n{}", node + 1)).collect::<Vec<_>>().join(" ")
}

impl Nemesis<'_> {
    /// Makes one fault after the other, until `enough` says so, then heals.
    ///
    /// # Errors
    /// See [`Broken`].
    pub fn run(&mut self, mut enough: impl FnMut(u64) -> bool) -> Result<(), Broken> {
        if let Some(cuts) = self.matrix.take() {
            return self.cuts_of_matrix(&cuts, enough);
        }
        while !enough(self.count) {
            self.rest()?;
            if self.kinds.is_empty() {
                continue;
            }
            let kind = self.kinds[self.random.below(self.kinds.len())];
            let from = self.workload.recorder.now();
            self.fault(kind)?;
            let to = self.workload.recorder.now();
            self.spans.push(Span { kind, cut: None, from, to });
        }
        self.links.heal();
        Ok(())
    }

    /// A while without a new fault: short ones, so that faults hit recoveries, and some that let all catch up.
    fn rest(&mut self) -> Result<(), Broken> {
        let milliseconds =
            if self.random.chance(300) { 500 + self.random.below(1_000) } else { self.random.below(400) };
        std::thread::sleep(Duration::from_millis(milliseconds as u64));
        self.look()
    }

    /// A node that ended unasked is a bug.
    fn look(&mut self) -> Result<(), Broken> {
        self.nodes.fallen().map_or(Ok(()), |how| Err(Broken::Node(how)))
    }

    fn fault(&mut self, kind: Kind) -> Result<(), Broken> {
        match kind {
            Kind::Kill => self.kill(),
            Kind::Pause => self.pause(),
            Kind::Cut => self.cut(),
            Kind::SlowDisk => self.slow_disk(),
            Kind::Power => self.power(),
            Kind::Wipe => self.wipe(),
            Kind::Clock => self.clock(),
            Kind::Gap => self.gap(),
            Kind::Map | Kind::All => Ok(()),
        }
    }

    /// One node, a majority, or all.
    fn victims(&mut self) -> Vec<usize> {
        let count = self.nodes.count();
        let wanted = match self.random.below(10) {
            0..6 => 1,
            6..8 => count / 2 + 1,
            _ => count,
        };
        let mut all: Vec<usize> = (0..count).collect();
        for at in 0..count {
            let other = at + self.random.below(count - at);
            all.swap(at, other);
        }
        all.truncate(wanted);
        all
    }

    /// From `low` to `high` milliseconds, each order of magnitude alike.
    fn span(&mut self, low: u64, high: u64) -> Duration {
        let doublings = (high / low).ilog2() as usize;
        let base = low << self.random.below(doublings + 1);
        Duration::from_millis((base + self.random.below(base as usize + 1) as u64).min(high))
    }

    fn note(&self, action: &str, who: &str) -> io::Result<()> {
        self.workload.recorder.fault(action, who)
    }

    fn kill(&mut self) -> Result<(), Broken> {
        let victims = self.victims();
        self.note("kill", &names(&victims))?;
        victims.iter().for_each(|node| self.nodes.kill(*node));
        self.count += victims.len() as u64;
        let down = self.random.below(500) as u64;
        std::thread::sleep(Duration::from_millis(down));
        self.look()?;
        for &node in &victims {
            self.nodes.relaunch(node)?;
        }
        if self.random.chance(200) {
            // Again, while it recovers.
            let again = victims[self.random.below(victims.len())];
            let after = self.random.below(60) as u64;
            std::thread::sleep(Duration::from_millis(after));
            self.look()?;
            self.note("kill", &names(&[again]))?;
            self.nodes.kill(again);
            self.count += 1;
            self.nodes.relaunch(again)?;
        }
        self.back(&victims)
    }

    /// The leader of everything dies, and stays down until the others have taken over.
    fn gap(&mut self) -> Result<(), Broken> {
        let victim = self.random.below(self.nodes.count());
        self.operator.gather(NodeId(victim as u32 + 1)).map_err(Broken::Node)?;
        // Longer than any heartbeat: the kill meets a leader that is at rest, at any time between two of them.
        std::thread::sleep(Duration::from_millis(200 + self.random.below(100) as u64));
        self.note("kill", &names(&[victim]))?;
        let at = self.workload.recorder.now();
        self.nodes.kill(victim);
        self.count += 1;
        self.kills.push(at);
        std::thread::sleep(DOWN);
        self.look()?;
        self.nodes.relaunch(victim)?;
        self.back(&[victim])
    }

    /// Waits until these serve again.
    fn back(&mut self, victims: &[usize]) -> Result<(), Broken> {
        for &node in victims {
            self.nodes.ready(node).map_err(|error| Broken::Node(error.to_string()))?;
        }
        Ok(self.note("restart", &names(victims))?)
    }

    fn pause(&mut self) -> Result<(), Broken> {
        let victims = self.victims();
        self.note("pause", &names(&victims))?;
        victims.iter().for_each(|node| self.nodes.pause(*node));
        self.count += 1;
        let span = self.span(10, 4_000);
        std::thread::sleep(span);
        victims.iter().for_each(|node| self.nodes.resume(*node));
        self.note("resume", &names(&victims))?;
        self.look()
    }

    fn cut(&mut self) -> Result<(), Broken> {
        let count = self.nodes.count();
        let alone = self.random.below(count);
        let side = |node: usize| node == alone;
        let shape = ["alone", "alone", "deaf", "mute", "bridge", "all"][self.random.below(6)];
        let hit = |from: usize, to: usize| match shape {
            "alone" => side(from) != side(to),
            "deaf" => side(to),
            "mute" => side(from),
            // All others hear only this one.
            "bridge" => !side(from) && !side(to),
            _ => true,
        };
        let clients = self.random.chance(300);
        let slow = self.random.chance(150);
        let way = match slow {
            true => Way::Slow(self.span(5, 200)),
            false => Way::Held,
        };
        let word = if slow { "slow" } else { "cut" };
        let more = if clients { ", and its clients" } else { "" };
        self.note(word, &format!("{shape} n{}{more}", alone + 1))?;
        for from in 0..count {
            (0..count).filter(|to| from != *to && hit(from, *to)).for_each(|to| self.links.set(from, to, way));
        }
        if let Some(proxy) = self.links.clients.get(alone).filter(|_| clients) {
            proxy.set(way);
        }
        self.count += 1;
        let span = self.span(50, 4_000);
        std::thread::sleep(span);
        self.links.heal();
        self.note("heal", &format!("n{}", alone + 1))?;
        self.look()
    }

    fn slow_disk(&mut self) -> Result<(), Broken> {
        let node = self.random.below(self.nodes.count());
        let Some(pid) = self.nodes.pid(node) else { return Ok(()) };
        let delay = self.span(5, 500);
        let mut tracer = trace(pid, delay)?;
        self.note("slow-disk", &format!("n{}: {} ms a flush", node + 1, delay.as_millis()))?;
        self.count += 1;
        let span = self.span(300, 4_000);
        std::thread::sleep(span);
        // Told to end, strace lets its process go; killed, the kernel does.
        let _ = tracer.kill();
        tracer.wait()?;
        self.note("heal", &format!("n{}", node + 1))?;
        self.look()
    }

    fn power(&mut self) -> Result<(), Broken> {
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
}

impl Nemesis<'_> {
    /// One node at a time: another one is lost only when a majority of each partition has everything again.
    fn wipe(&mut self) -> Result<(), Broken> {
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

    /// Clocks stay as they are until the node's next turn.
    fn clock(&mut self) -> Result<(), Broken> {
        let node = self.random.below(self.nodes.count());
        let ahead = self.random.below(7_201) as i64 - 3_600;
        let clock = Clock { ahead, percent: 50 + self.random.below(151) };
        self.note("clock", &format!("n{}: {clock}", node + 1))?;
        self.nodes.kill(node);
        self.nodes.set_clock(node, clock);
        self.nodes.relaunch(node)?;
        self.count += 1;
        self.back(&[node])
    }
}

impl Nemesis<'_> {
    /// One cut after the other, each with time to come back from it before the next one.
    fn cuts_of_matrix(&mut self, cuts: &[Cut], mut enough: impl FnMut(u64) -> bool) -> Result<(), Broken> {
        std::thread::sleep(MATRIX_REST);
        for cut in cuts {
            if enough(self.count) {
                break;
            }
            let from = self.workload.recorder.now();
            self.cut_of_matrix(*cut)?;
            let to = self.workload.recorder.now();
            self.spans.push(Span { kind: Kind::Cut, cut: Some(*cut), from, to });
            self.note("heal", cut.name())?;
            std::thread::sleep(MATRIX_REST + Duration::from_millis(self.random.below(100) as u64));
            self.look()?;
        }
        Ok(())
    }

    fn cut_of_matrix(&mut self, cut: Cut) -> Result<(), Broken> {
        let count = self.nodes.count();
        let drawn = self.random.below(count);
        let one = match cut {
            Cut::Leader => self.operator.leader_of_most().unwrap_or(drawn),
            Cut::Coordinator => self.operator.coordinator().unwrap_or(drawn),
            _ => drawn,
        };
        let other = (one + 1 + self.random.below(count.max(2) - 1)) % count;
        self.note("cut", &format!("{}: n{}", cut.name(), one + 1))?;
        self.count += 1;
        let set = |way: Way| {
            for from in 0..count {
                let hit = |to: &usize| from != *to && cut.hits(from, *to, one, other);
                (0..count).filter(hit).for_each(|to| self.links.set(from, to, way));
            }
            if let Some(proxy) = self.links.clients.get(one).filter(|_| cut == Cut::Clients) {
                proxy.set(way);
            }
        };
        // From less than an election takes to several of them.
        let length = Duration::from_millis(100 + self.random.below(1_200) as u64);
        set(Way::Held);
        if cut == Cut::Flapping {
            let until = std::time::Instant::now() + length;
            while std::time::Instant::now() < until {
                std::thread::sleep(Duration::from_millis(20 + self.random.below(130) as u64));
                set(Way::Open);
                std::thread::sleep(Duration::from_millis(20 + self.random.below(60) as u64));
                set(Way::Held);
            }
        } else {
            std::thread::sleep(length);
        }
        self.links.heal();
        Ok(())
    }
}

/// Between two cuts of the matrix: to come back, and to see how much is usual.
const MATRIX_REST: Duration = Duration::from_millis(1_600);

/// Every fdatasync of a process takes longer from now on.
fn trace(pid: u32, delay: Duration) -> io::Result<Child> {
    Command::new("strace")
        .args(["-f", "-qq", "-p", &pid.to_string(), "-e", "trace=fdatasync"])
        .args(["-e", &format!("inject=fdatasync:delay_enter={}", delay.as_micros())])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

/// The kinds of these that can be made here, and why others cannot.
pub fn possible(wanted: &[Kind], own_processes: bool, root: bool) -> (Vec<Kind>, Vec<(Kind, &'static str)>) {
    let every = [Kind::Kill, Kind::Pause, Kind::Cut, Kind::SlowDisk, Kind::Power, Kind::Wipe, Kind::Clock, Kind::Map];
    let every = every.into_iter().chain([Kind::Gap]);
    let all = wanted.contains(&Kind::All);
    let (mut kinds, mut skipped): (Vec<Kind>, Vec<_>) = (Vec::new(), Vec::new());
    for kind in every.filter(|kind| (all && *kind != Kind::Gap) || wanted.contains(kind)) {
        match obstacle(kind, own_processes, root) {
            // A mounted directory cannot be set aside.
            None if kind == Kind::Wipe && kinds.contains(&Kind::Power) => skipped.push((kind, "not beside power")),
            None => kinds.push(kind),
            Some(why) => skipped.push((kind, why)),
        }
    }
    (kinds, skipped)
}

fn obstacle(kind: Kind, own_processes: bool, root: bool) -> Option<&'static str> {
    match kind {
        Kind::Map => None,
        _ if !own_processes => Some("needs nodes that this program started (no --endpoints)"),
        Kind::Kill | Kind::Pause | Kind::Cut | Kind::Wipe | Kind::Gap | Kind::All => None,
        Kind::SlowDisk if !runs("strace") => Some("needs strace"),
        Kind::SlowDisk => None,
        Kind::Power if !(root && rustix::process::geteuid().is_root()) => Some("needs root, and --root"),
        Kind::Power if !(runs("losetup") && runs("mkfs.ext4") && runs("perl")) => {
            Some("needs losetup, mkfs.ext4 and perl")
        }
        Kind::Power => None,
        Kind::Clock if libfaketime().is_none() => Some("needs libfaketime (Debian: apt install faketime)"),
        Kind::Clock => None,
    }
}

/// Whether a program of this name is there.
fn runs(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    places.any(|place| place.join(program).is_file())
}
