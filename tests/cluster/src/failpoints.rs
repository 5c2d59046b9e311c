//! Failpoints as a run arms them: which, with what, at which hit; and how often each was armed, fired and reached. One
//! that never fires proves nothing, so those that were armed least are drawn first, and what was never reached is told.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use planted::failpoints::{ALL, Failpoint};
use serde_json::{Value, json};

use coppice_testkit::random::Random;

/// So many failpoints are drawn, of which that is armed which was armed least.
const CANDIDATES: usize = 4;

/// No hit above this is drawn: a node comes there within seconds.
const HIT_MAX: u64 = 1_024;

/// Whether a program was built with failpoints: it refuses what arms none.
pub fn armable(program: &Path) -> bool {
    // One without them finds no such configuration.
    let mut command = Command::new(program);
    command.args(["serve", "--config", "/dev/null/none"]).env("COPPICE_FAILPOINTS", "none").stdin(Stdio::null());
    let said = command.output().map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
    said.is_ok_and(|said| said.contains("arms no failpoint"))
}

/// What happens at an armed failpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The node panics.
    Panic,
    /// The disk fails (EIO).
    Error,
    /// The thread waits.
    Delay(Duration),
}

/// One armed failpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shot {
    pub point: Failpoint,
    pub action: Action,
    /// At this hit; none: at each.
    pub hit: Option<u64>,
}

/// As the node's environment wants it.
impl fmt::Display for Shot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}=", self.point.name)?;
        match self.action {
            Action::Panic => out.write_str("panic")?,
            Action::Error => out.write_str("error")?,
            Action::Delay(delay) => write!(out, "delay({})", delay.as_millis())?,
        }
        self.hit.map_or(Ok(()), |hit| write!(out, "@{hit}"))
    }
}

/// How a run comes to a failpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By starting.
    Start,
    /// By what its clients and operators ask for anyway.
    Load,
    /// A leader goes on executing while nobody hears it.
    Mute,
    /// Its disk was lost, and it takes its own place.
    Join,
    /// Another node's disk was lost: its place is given back, and it fetches its state from here.
    Give,
    /// It is given leaderships, and they are taken from it.
    Lead,
}

impl Shot {
    /// How a run comes there.
    pub fn way(&self) -> Way {
        let name = self.point.name;
        match name.split('.').next().unwrap_or_default() {
            "open" | "file" => Way::Start,
            "datadir" if name != "datadir.log_made" => Way::Start,
            "undo" => Way::Mute,
            _ if ["snapshot.chunk_sent", "change.move", "change.moved", "control.configures"].contains(&name) => {
                Way::Give
            }
            _ if ["worker.leads", "control.transfers"].contains(&name) => Way::Lead,
            "snapshot" | "datadir" => Way::Join,
            _ if ["control.joined", "checkpoint.before_load"].contains(&name) => Way::Join,
            _ => Way::Load,
        }
    }

    /// Whether the node must end: what a failed write or flush of the log was about is unknown (hazards.md ST1).
    pub fn ends(&self) -> bool {
        let of_log = ["log.", "open.", "segment.", "reuse.", "trim."];
        match self.action {
            Action::Panic => true,
            Action::Error => of_log.iter().any(|part| self.point.name.starts_with(part)),
            Action::Delay(_) => false,
        }
    }
}

/// What is known of one failpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    armed: u64,
    fired: u64,
    /// Hits in all processes, at least: each process tells of every one that is a power of two.
    reached: u64,
    /// Hits in one process, at least.
    most: u64,
}

/// What is known of all of them.
#[derive(Clone, Debug, Default)]
pub struct Failpoints {
    of: BTreeMap<&'static str, Counts>,
    /// Only these are armed; empty: all.
    only: Vec<Failpoint>,
}

impl Failpoints {
    /// Of nothing yet.
    pub fn new(only: &[Failpoint]) -> Failpoints {
        Failpoints { of: BTreeMap::new(), only: only.to_vec() }
    }

    /// The next one to arm.
    pub fn draw(&mut self, random: &mut Random, wanted: impl Fn(&Shot) -> bool) -> Shot {
        let among = if self.only.is_empty() { ALL } else { &self.only };
        let shot = |point: &Failpoint| Shot { point: *point, action: Action::Panic, hit: None };
        let mut among: Vec<Shot> = among.iter().map(shot).filter(|shot| wanted(shot)).collect();
        if among.is_empty() {
            among = ALL.iter().map(shot).filter(|shot| wanted(shot)).collect();
        }
        // Of few that were asked for none is left to chance.
        let count = if self.only.is_empty() { CANDIDATES } else { 8 * among.len() };
        let drawn = (0..count).map(|_| among[random.below(among.len())]);
        let armed = |shot: &Shot| self.of.get(shot.point.name).map_or(0, |counts| counts.armed);
        let mut drawn = drawn.min_by_key(armed).unwrap_or(among[0]);
        let counts = self.of.entry(drawn.point.name).or_default();
        counts.armed += 1;
        let highest = (counts.most / 4).clamp(1, HIT_MAX);
        let doublings = random.below(highest.ilog2() as usize + 1);
        drawn.hit = Some(1 + random.below(1 << doublings) as u64);
        if drawn.point.can_fail && random.chance(400) {
            drawn.action = Action::Error;
        } else if random.chance(200) {
            let once = random.chance(500);
            let longest = if once { 1_500 } else { 5 };
            drawn.action = Action::Delay(Duration::from_millis(1 + random.below(longest) as u64));
            drawn.hit = drawn.hit.filter(|_| once);
        }
        drawn
    }

    pub fn fired(&mut self, shot: &Shot) {
        self.of.entry(shot.point.name).or_default().fired += 1;
    }

    /// Learns from what processes said so far how often failpoints are reached in one.
    pub fn learn(&mut self, said: &str) {
        for (name, hits) in hits(said) {
            let counts = self.of.entry(name).or_default();
            counts.most = counts.most.max(hits.into_iter().max().unwrap_or(0));
        }
    }

    /// A round is over, of which this was said.
    pub fn close(&mut self, said: &str) {
        self.learn(said);
        for (name, hits) in hits(said) {
            self.of.entry(name).or_default().reached += hits.into_iter().sum::<u64>();
        }
    }

    /// Whether any was armed.
    pub fn any(&self) -> bool {
        self.of.values().any(|counts| counts.armed > 0)
    }

    /// For people.
    pub fn words(&self) -> Vec<String> {
        let counts = |point: &Failpoint| self.of.get(point.name).copied().unwrap_or_default();
        let fired = ALL.iter().filter(|point| counts(point).fired > 0).count();
        let times: u64 = self.of.values().map(|counts| counts.fired).sum();
        let mut words = vec![format!("failpoints: {fired} of {} fired, {times} times in all", ALL.len())];
        let cell = |point: &Failpoint| {
            let Counts { armed, fired, reached, .. } = counts(point);
            format!("{:28} {fired:>3} of {armed:<3} {reached:>9}", point.name)
        };
        words.push("how often each fired, was armed, and was reached at least:".to_owned());
        words.extend(ALL.chunks(2).map(|row| row.iter().map(cell).collect::<Vec<_>>().join("   ")));
        let names = |of: &dyn Fn(Counts) -> bool| -> Vec<&str> {
            ALL.iter().filter(|point| of(counts(point))).map(|point| point.name).collect()
        };
        let never = names(&|counts| counts.reached == 0);
        let unfired = names(&|counts| counts.reached > 0 && counts.fired == 0);
        words.extend((!never.is_empty()).then(|| format!("never reached: {}", never.join(" "))));
        words.extend((!unfired.is_empty()).then(|| format!("reached, and never fired: {}", unfired.join(" "))));
        words
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let of = |point: &Failpoint| {
            let Counts { armed, fired, reached, .. } = self.of.get(point.name).copied().unwrap_or_default();
            json!({ "name": point.name, "armed": armed, "fired": fired, "reached": reached })
        };
        ALL.iter().map(of).collect()
    }
}

/// Whether a process said that it fires, more often than `before`; how often.
pub fn fires(said: &str, name: &str) -> usize {
    said.lines().filter(|line| line.strip_suffix(" fires") == Some(name)).count()
}

/// The hits of each failpoint in each process that said so: the highest power of two below.
fn hits(said: &str) -> BTreeMap<&'static str, Vec<u64>> {
    let mut hits: BTreeMap<&'static str, Vec<u64>> = BTreeMap::new();
    for line in said.lines() {
        let Some((name, Ok(hit))) = line.split_once(' ').map(|(name, hit)| (name, hit.parse::<u64>())) else {
            continue;
        };
        let Some(point) = ALL.iter().find(|point| point.name == name) else { continue };
        let of = hits.entry(point.name).or_default();
        match of.last_mut() {
            Some(last) if hit > 1 => *last = hit.max(*last),
            // The first hit: another process.
            _ => of.push(hit),
        }
    }
    hits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_processes_say_is_counted_and_what_was_armed_least_is_drawn() {
        let said = "log.after_flush 1\nlog.after_flush 2\nlog.after_flush fires\nlog.after_flush 1\nnothing 1\nlog.aft";
        assert_eq!(hits(said), BTreeMap::from([("log.after_flush", vec![2, 1])]));
        assert_eq!([fires(said, "log.after_flush"), fires(said, "log.before_flush")], [1, 0]);
        let (mut failpoints, mut random) = (Failpoints::default(), Random::new(7));
        for _ in 0..6 * ALL.len() {
            let shot = failpoints.draw(&mut random, |_| true);
            assert!(shot.point.can_fail || shot.action != Action::Error, "{shot}");
            assert!(shot.hit.is_none_or(|hit| hit == 1), "nothing is known to be reached twice: {shot}");
        }
        assert!(failpoints.of.values().all(|counts| counts.armed > 2) && failpoints.of.len() == ALL.len());
        failpoints.close("worker.vote 1\nworker.vote 2\nworker.vote 4\nworker.vote 8\nworker.vote 1\n");
        assert_eq!((failpoints.of["worker.vote"].reached, failpoints.of["worker.vote"].most), (9, 8));
        let only: Vec<Failpoint> = ALL[..3].to_vec();
        let mut few = Failpoints::new(&only);
        let mut names: Vec<&str> = (0..3).map(|_| few.draw(&mut random, |_| true).point.name).collect();
        names.sort_unstable();
        let mut wanted: Vec<&str> = only.iter().map(|point| point.name).collect();
        wanted.sort_unstable();
        assert_eq!(names, wanted);
    }
}
