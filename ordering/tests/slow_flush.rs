//! Disks whose every flush takes longer than an election timeout: a leader is elected all the same, for the patience of
//! Phase 1 grows with each attempt (protocol.md 1.1).

#[cfg(feature = "mutants")]
mod planted;

use std::collections::VecDeque;
use std::time::Duration;

use coppice_ordering::{Config, Configuration, Effect, Input, Lsn, Message, Paxos, ReplicaId, Time};

/// Replicas whose messages take no time and whose flushes take long.
struct Group {
    now: Time,
    flush: Duration,
    replicas: Vec<Paxos>,
    flying: VecDeque<(ReplicaId, ReplicaId, Message)>,
    /// When the flush of each replica ends, and up to where; and what waits for the next.
    flushing: Vec<Option<(Time, Lsn)>>,
    waiting: Vec<Option<Lsn>>,
}

impl Group {
    fn new(count: u32, flush: Duration) -> Group {
        let replica = |id| {
            let config =
                Config::new(ReplicaId(id), Configuration::of_voters((0..count).map(ReplicaId)), 11 + u64::from(id));
            Paxos::new(config, Time::ZERO)
        };
        let (flushing, waiting) = (vec![None; count as usize], vec![None; count as usize]);
        let replicas = (0..count).map(replica).collect();
        Group { now: Time::ZERO, flush, replicas, flying: VecDeque::new(), flushing, waiting }
    }

    fn step(&mut self, at: usize, input: Input) {
        let mut effects = Vec::new();
        self.replicas[at].step(self.now, input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Persist { lsn, .. } => self.waiting[at] = Some(lsn),
                Effect::Send { to, message } => self.flying.push_back((ReplicaId(at as u32), to, message)),
                Effect::Decided { upto } => self.step(at, Input::Executed(upto)),
                _ => {}
            }
        }
        if self.flushing[at].is_none() {
            self.flushing[at] = self.waiting[at].take().map(|lsn| (self.now + self.flush, lsn));
        }
    }

    /// When there is a leader.
    fn elects(&mut self, until: Time) -> Option<Time> {
        while self.now < until && !self.replicas.iter().any(Paxos::is_leader) {
            while let Some((from, to, message)) = self.flying.pop_front() {
                self.step(to.0 as usize, Input::Message { from, message });
            }
            self.now = self.now + Duration::from_millis(1);
            for at in 0..self.replicas.len() {
                if let Some((_, lsn)) = self.flushing[at].take_if(|(end, _)| *end <= self.now) {
                    self.step(at, Input::Persisted(lsn));
                }
                if self.replicas[at].deadline().is_some_and(|at| at <= self.now) {
                    self.step(at, Input::Tick);
                }
            }
        }
        self.replicas.iter().any(Paxos::is_leader).then_some(self.now)
    }
}

#[test]
fn a_leader_is_elected_however_long_a_flush_takes() {
    for count in [3, 5, 7] {
        for ms in [10, 100, 290, 310, 400, 1_000, 3_000] {
            let mut group = Group::new(count, Duration::from_millis(ms));
            // An election takes two flushes; and some elections come to nothing before that is known.
            let elected = group.elects(Time::from_millis(10_000 + 20 * ms));
            println!("{count} replicas, a flush of {ms} ms: a leader after {elected:?}");
            assert!(elected.is_some(), "{count} replicas, a flush of {ms} ms");
        }
    }
}

#[cfg(feature = "mutants")]
#[test]
fn a_patience_that_does_not_grow_is_caught() {
    let directed = [("phase1_impatient", "a_leader_is_elected_however_long_a_flush_takes")];
    assert_eq!(coppice_ordering::mutants::SLOW_FLUSH, directed.map(|(mutant, _)| mutant));
    planted::assert_caught(&directed);
}
