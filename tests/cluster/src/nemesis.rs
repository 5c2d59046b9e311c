//! Faults on real processes, drawn from a seed, one after the other: made, held for a while, healed (hazards.md 5).
//! Every fault is written into the history. Changes of the map are made beside them by `shape.rs`.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coppice_client::wire::NodeId;
use coppice_testkit::random::Random;

use super::cuts::Cut;
use super::failpoints::Failpoints;
use super::harm::{End, Harm};
use super::kinds::{Kind, Span};
use super::links::Links;
use super::nodes::{Clock, Nodes};
use super::power::Disks;
use super::shape::Operator;
use super::workload::Workload;

/// A killed leader of everything is down for so long: the others have to serve without it, for which the goal is a
/// second (hazards.md G17).
const DOWN: Duration = Duration::from_millis(1_500);

/// Of 1,000 pauses, so many last longer than any timeout: up to a minute, but no longer than the round.
const LONG_PER_MILLE: u32 = 40;

/// No pause is shorter.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// Makes the faults.
pub struct Nemesis<'a> {
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
    /// What is known of failpoints.
    pub failpoints: Failpoints,
    /// When the round ends, if it ends by time.
    pub until: Option<Instant>,
    /// What was made.
    pub spans: Vec<Span>,
    /// When a leader of everything was killed, nanoseconds of the history.
    pub kills: Vec<u64>,
    /// Faults so far: every node that is killed counts one.
    pub count: u64,
}

/// Why the faults ended early.
#[derive(Debug)]
pub enum RoundError {
    /// A node ended by itself, or did not come back: a bug of the server.
    Node(String),
    /// This program could not do its work.
    Machine(io::Error),
}

impl From<io::Error> for RoundError {
    fn from(error: io::Error) -> RoundError {
        RoundError::Machine(error)
    }
}

pub(super) fn names(victims: &[usize]) -> String {
    victims.iter().map(|node| format!("n{}", node + 1)).collect::<Vec<_>>().join(" ")
}

/// The directed links between so many nodes that are hit, and both directions between one of them and its clients.
pub(super) fn links(count: usize, hit: impl Fn(usize, usize) -> bool, clients: Option<usize>) -> Vec<(End, End)> {
    let all = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
    let between = all.filter(|(from, to)| from != to && hit(*from, *to));
    let between = between.map(|(from, to)| (End::Node(from), End::Node(to)));
    let outside = clients.into_iter().map(End::Node).flat_map(|node| [(node, End::Clients), (End::Clients, node)]);
    between.chain(outside).collect()
}

/// From `low` to `high` milliseconds, each order of magnitude alike.
fn span(random: &mut Random, low: u64, high: u64) -> Duration {
    let doublings = (high / low).ilog2() as usize;
    let base = low << random.below(doublings + 1);
    Duration::from_millis((base + random.below(base as usize + 1) as u64).min(high))
}

/// How long nodes are paused; a long one ends with the round.
fn pause_of(random: &mut Random, left: Option<Duration>) -> Duration {
    if random.chance(LONG_PER_MILLE) {
        let long = span(random, 4_000, 60_000);
        return long.min(left.unwrap_or(long)).max(PAUSE_MIN);
    }
    span(random, 10, 4_000)
}

impl Nemesis<'_> {
    /// Makes one fault after the other, until `enough` says so, then heals.
    ///
    /// # Errors
    /// See [`RoundError`].
    pub fn run(&mut self, mut enough: impl FnMut(u64) -> bool) -> Result<(), RoundError> {
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
        Ok(self.links.heal()?)
    }

    /// A while without a new fault: short ones, so that faults hit recoveries, and some that let all catch up.
    fn rest(&mut self) -> Result<(), RoundError> {
        let milliseconds =
            if self.random.chance(300) { 500 + self.random.below(1_000) } else { self.random.below(400) };
        std::thread::sleep(Duration::from_millis(milliseconds as u64));
        self.look()
    }

    /// A node that ended unasked is a bug.
    pub(super) fn look(&mut self) -> Result<(), RoundError> {
        self.nodes.fallen().map_or(Ok(()), |how| Err(RoundError::Node(how)))
    }

    fn fault(&mut self, kind: Kind) -> Result<(), RoundError> {
        match kind {
            Kind::Kill => self.kill(),
            Kind::Pause => self.pause(),
            Kind::Cut => self.cut(),
            Kind::SlowDisk => self.slow_disk(),
            Kind::Flush => self.flush(),
            Kind::FullDisk => self.full_disk(),
            Kind::Power => self.power(),
            Kind::Wipe => self.wipe(),
            Kind::Rot => self.rot(),
            Kind::Clock => self.clock(),
            Kind::Gap => self.gap(),
            Kind::Fail => self.fail(),
            Kind::Map | Kind::All => Ok(()),
        }
    }

    /// One node, a majority, or all.
    pub(super) fn victims(&mut self) -> Vec<usize> {
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

    pub(super) fn span(&mut self, low: u64, high: u64) -> Duration {
        span(&mut self.random, low, high)
    }

    pub(super) fn note(&self, action: &str, who: &str) -> io::Result<()> {
        self.workload.recorder.fault(action, who)
    }

    fn kill(&mut self) -> Result<(), RoundError> {
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
    fn gap(&mut self) -> Result<(), RoundError> {
        let victim = self.random.below(self.nodes.count());
        self.operator.gather(NodeId(victim as u32 + 1)).map_err(RoundError::Node)?;
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
    pub(super) fn back(&mut self, victims: &[usize]) -> Result<(), RoundError> {
        for &node in victims {
            self.nodes.ready(node).map_err(|error| RoundError::Node(error.to_string()))?;
        }
        Ok(self.note("restart", &names(victims))?)
    }

    fn pause(&mut self) -> Result<(), RoundError> {
        let victims = self.victims();
        self.note("pause", &names(&victims))?;
        victims.iter().for_each(|node| self.nodes.pause(*node));
        self.count += 1;
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        std::thread::sleep(pause_of(&mut self.random, left));
        victims.iter().for_each(|node| self.nodes.resume(*node));
        self.note("resume", &names(&victims))?;
        self.look()
    }

    fn cut(&mut self) -> Result<(), RoundError> {
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
        let harm = match (self.random.chance(300), self.links.are_real()) {
            (false, _) => Harm::Cut,
            (true, false) => match self.random.below(5) {
                0..2 => Harm::Slow(self.span(5, 200)),
                2 => Harm::Torn,
                3 => Harm::Flipped,
                _ => Harm::Half,
            },
            (true, true) if self.random.chance(500) => Harm::Lossy,
            (true, true) => Harm::Reset,
        };
        let word = match harm {
            Harm::Cut => "cut",
            Harm::Slow(_) => "slow",
            Harm::Torn => "torn",
            Harm::Flipped => "flipped",
            Harm::Half => "half",
            Harm::Lossy => "lossy",
            Harm::Reset => "reset",
        };
        let more = if clients { ", and its clients" } else { "" };
        self.note(word, &format!("{shape} n{}{more}", alone + 1))?;
        self.links.harm(&links(count, hit, clients.then_some(alone)), harm)?;
        self.count += 1;
        let span = self.span(50, 4_000);
        std::thread::sleep(span);
        self.links.heal()?;
        self.note("heal", &format!("n{}", alone + 1))?;
        self.look()
    }
}

impl Nemesis<'_> {
    /// Clocks stay as they are until the node's next turn.
    fn clock(&mut self) -> Result<(), RoundError> {
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
    fn cuts_of_matrix(&mut self, cuts: &[Cut], mut enough: impl FnMut(u64) -> bool) -> Result<(), RoundError> {
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

    fn cut_of_matrix(&mut self, cut: Cut) -> Result<(), RoundError> {
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
        let clients = (cut == Cut::Clients).then_some(one);
        let pairs = links(count, |from, to| cut.hits(from, to, one, other), clients);
        // From less than an election takes to several of them; some so long that who waits for their end shows.
        let longer = if self.random.chance(500) { 2_000 } else { 0 };
        let length = Duration::from_millis(100 + longer + self.random.below(1_200) as u64);
        self.links.harm(&pairs, Harm::Cut)?;
        if cut == Cut::Flapping {
            let until = Instant::now() + length;
            while Instant::now() < until {
                std::thread::sleep(Duration::from_millis(20 + self.random.below(130) as u64));
                self.links.heal()?;
                std::thread::sleep(Duration::from_millis(20 + self.random.below(60) as u64));
                self.links.harm(&pairs, Harm::Cut)?;
            }
        } else {
            std::thread::sleep(length);
        }
        Ok(self.links.heal()?)
    }
}

/// Between two cuts of the matrix: to come back, and to see how much is usual.
const MATRIX_REST: Duration = Duration::from_millis(1_600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pause_in_twenty_five_is_long_but_no_longer_than_the_round() {
        let mut random = Random::new(7);
        let mut drawn =
            |left: Option<Duration>| -> Vec<Duration> { (0..2_000).map(|_| pause_of(&mut random, left)).collect() };
        let (short, minute) = (Duration::from_secs(4), Duration::from_secs(60));
        let free = drawn(None);
        assert!(free.iter().all(|pause| (PAUSE_MIN..=minute).contains(pause)));
        let long = free.iter().filter(|pause| **pause > short).count();
        assert!((40..130).contains(&long) && free.iter().any(|pause| *pause > minute / 2), "{long} long ones");
        let left = Duration::from_secs(7);
        assert!(drawn(Some(left)).into_iter().all(|pause| pause <= left));
        assert!(drawn(Some(Duration::ZERO)).into_iter().all(|pause| (PAUSE_MIN..=short).contains(&pause)));
    }
}
