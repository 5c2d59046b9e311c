//! A node that restarts keeps its promises: candidates storm it, it crashes between any two effects of its disk, and
//! what its log gives back to the core is all that it may build on (protocol.md 1.3; hazards.md PX1, PX2).
//!
//! The driver's own path is under test: core, records, log, crash, recovery, `GroupReplay::take_records`, core.

mod log_common;

use std::collections::BTreeMap;

use bytes::Bytes;
use coppice_client::wire::PartitionId;
use coppice_core::incarnation::Identity;
use coppice_core::replay::Entry;
use coppice_ordering::message::{HeartbeatAck, Message, Phase1a, Phase1b, Phase2a, Phase2b, PreVoteReply};
use coppice_ordering::{
    Ballot, Batch, Commands, Config, Configuration, Effect, Input, Instance, Lsn, Paxos, Record, RecoveredGroup,
    ReplicaId, Time,
};
use coppice_server::log::Engine;
use log_common::sim_disk::{Crash, SimDisk};
use log_common::{Draw, NODE, SMALL, commit, keep, new_disk, open};

const GROUP: PartitionId = PartitionId(1);
/// Another group of the node: its records share the segments, so that segments go while this group's promise stays.
const OTHER: PartitionId = PartitionId(2);
const ME: ReplicaId = ReplicaId(1);

/// What left the node: nothing of it may ever be forgotten.
#[derive(Default)]
struct Sent {
    /// The highest ballot that a `Phase1b` or `Phase2b` named.
    promised: Ballot,
    /// The highest ballot of an own `Phase1a`.
    candidate: Ballot,
    /// The newest question whether the leader is lost.
    attempt: u64,
    /// The highest ballot that each instance was voted for in.
    votes: BTreeMap<Instance, Ballot>,
    restarts: u64,
    promises: u64,
    candidacies: u64,
}

struct Node {
    paxos: Paxos,
    engine: Engine<SimDisk>,
    identity: Identity,
    now: Time,
    /// Persisted by the core, not written yet.
    waiting: Vec<(Lsn, Record)>,
    trimmed: Instance,
    decided: Instance,
}

fn config(seed: u64, incarnation: u64) -> Config {
    Config { incarnation, ..Config::new(ME, Configuration::of_voters((0..3).map(ReplicaId)), seed) }
}

/// Every leader of this world proposes the same at an instance: then whatever is decided is decided rightly.
fn batch(instance: Instance) -> Batch {
    let mut draw = Draw::new(instance.0);
    let mut parts = vec![Bytes::from(vec![draw.below(256) as u8; 200 + draw.below(2_000) as usize])];
    Batch::Commands(Commands::from_parts(1, &mut parts))
}

impl Node {
    fn start(disk: SimDisk, known: Identity, seed: u64, now: Time, sent: &mut Sent) -> Node {
        let (engine, mut replay, identity) = open(disk, known).expect("a crash is no damage");
        let mut group = replay.groups.remove(&GROUP).unwrap_or_default();
        let trimmed = group.trimmed.unwrap_or(Instance::ZERO);
        let configuration = Configuration::of_voters((0..3).map(ReplicaId));
        let mut recovered = match trimmed {
            Instance::ZERO => RecoveredGroup::new(),
            // As a checkpoint of that instance would say.
            trimmed => RecoveredGroup::from_snapshot(trimmed, configuration, Instance::ZERO, Ballot::ZERO),
        };
        for (lsn, record) in group.take_records() {
            recovered.apply(lsn, record);
        }
        let mut effects = Vec::new();
        let paxos = Paxos::recover(config(seed, identity.incarnation), recovered, now, &mut effects);
        let waiting = Vec::new();
        let mut node = Node { paxos, engine, identity, now, waiting, trimmed, decided: trimmed };
        sent.restarts += 1;
        node.carry_out(effects, sent);
        node
    }

    fn step(&mut self, input: Input, sent: &mut Sent) {
        let mut effects = Vec::new();
        self.paxos.step(self.now, input, &mut effects);
        self.carry_out(effects, sent);
    }

    /// Takes note of everything that leaves, and checks it against what has left before.
    fn carry_out(&mut self, effects: Vec<Effect>, sent: &mut Sent) {
        for effect in effects {
            match effect {
                Effect::Persist { lsn, record } => self.waiting.push((lsn, record)),
                Effect::Decided { upto } => self.decided = self.decided.max(upto),
                Effect::Send { message, .. } => sent.check(&message),
                _ => {}
            }
        }
    }

    /// One write and flush of everything that waits. `false`: the power failed in it.
    fn flush(&mut self, draw: &mut Draw, sent: &mut Sent) -> bool {
        let waiting = std::mem::take(&mut self.waiting);
        let Some(&(upto, _)) = waiting.last() else { return true };
        let of = |group, record| Entry::Group { group, record };
        let mut entries: Vec<Entry> = waiting.into_iter().map(|(_, record)| of(GROUP, record)).collect();
        let filler = Record::Learned { instance: Instance(1), ballot: Ballot::new(1, 0), batch: batch(Instance(1)) };
        entries.push(of(OTHER, filler));
        entries.push(Entry::Trimmed { group: OTHER, upto: Instance(1) });
        if draw.below(6) == 0 && self.decided > self.trimmed {
            self.trimmed = self.decided;
            entries.push(Entry::Trimmed { group: GROUP, upto: self.trimmed });
        }
        if !commit(&mut self.engine, &entries) || !keep(&mut self.engine) {
            return false;
        }
        self.step(Input::Persisted(upto), sent);
        true
    }
}

impl Sent {
    fn check(&mut self, message: &Message) {
        match message {
            Message::Phase1b(Phase1b { ballot, accepted, trimmed_upto, decided_upto, from }) => {
                assert!(*ballot >= self.promised, "a promise to {ballot} after one to {}", self.promised);
                self.promised = *ballot;
                self.promises += 1;
                let told = |instance: Instance| accepted.iter().find(|vote| vote.instance == instance);
                for (&instance, &voted) in self.votes.range(*from..) {
                    let known = instance <= *trimmed_upto.max(decided_upto);
                    let vote = told(instance).map(|vote| vote.ballot);
                    assert!(known || vote >= Some(voted), "the vote of {voted} at {instance} is forgotten: {vote:?}");
                }
            }
            Message::Phase2b(Phase2b { ballot, first, instance }) => {
                assert!(*ballot >= self.promised, "a vote in {ballot} after a promise to {}", self.promised);
                self.promised = *ballot;
                for instance in first.0..=instance.0 {
                    let vote = self.votes.entry(Instance(instance)).or_default();
                    *vote = (*vote).max(*ballot);
                }
            }
            Message::Phase1a(Phase1a { ballot, .. }) => {
                // To each of the others once; a ballot of an earlier life never again.
                assert!(*ballot >= self.candidate, "candidate again in {ballot} after {}", self.candidate);
                assert!(*ballot >= self.promised, "candidate in {ballot} below a promise to {}", self.promised);
                self.candidacies += u64::from(*ballot > self.candidate);
                self.candidate = *ballot;
            }
            Message::PreVote(pre_vote) => self.attempt = pre_vote.attempt,
            _ => {}
        }
    }
}

/// What the other two replicas say: candidates with ballots of any height, votes asked for, elections granted.
fn incoming(draw: &mut Draw, node: &Node, sent: &Sent, newest: &mut u64) -> (ReplicaId, Message) {
    let from = ReplicaId(if draw.below(2) == 0 { 0 } else { 2 });
    *newest += u64::from(draw.below(4) == 0);
    let ballot = Ballot::new(1 + draw.below(*newest), from.0);
    let decided = node.decided;
    let message = match draw.below(8) {
        0..3 => Phase1a { ballot, from: decided.next(), transfer: None }.into(),
        3..6 => {
            let instance = Instance(decided.0 + 1 + draw.below(4));
            let decided_upto = Instance(if draw.below(3) == 0 { instance.0 - 1 } else { decided.0 });
            Phase2a { ballot, instance, batch: batch(instance), decided_upto, released: None }.into()
        }
        6 => {
            let promised = Ballot::new(draw.below(*newest), from.0);
            let granted = draw.below(4) > 0;
            PreVoteReply { attempt: sent.attempt, granted, promised, decided_upto: decided }.into()
        }
        _ => {
            let round = coppice_ordering::HeartbeatRound(draw.below(50));
            HeartbeatAck { ballot, round, durable_upto: decided, lease: Default::default(), released: None }.into()
        }
    };
    (from, message)
}

#[test]
fn storms_of_candidates_and_crashes_never_make_a_node_forget_a_promise_or_use_a_round_twice() {
    let (mut restarts, mut promises, mut candidacies, mut trims) = (0, 0, 0, 0);
    for seed in 0..16 {
        let mut draw = Draw::new(seed);
        let mut sent = Sent::default();
        let mut node = Node::start(new_disk(SMALL), NODE, seed, Time::ZERO, &mut sent);
        let mut newest = 1;
        for _ in 0..600 {
            node.now = node.now + std::time::Duration::from_millis(draw.below(60));
            let (from, message) = incoming(&mut draw, &node, &sent, &mut newest);
            node.step(Input::Message { from, message }, &mut sent);
            if node.paxos.deadline().is_some_and(|deadline| deadline <= node.now) {
                node.step(Input::Tick, &mut sent);
            }
            // The rounds of others rise with what it says itself, or it would be left behind.
            newest = newest.max(sent.candidate.round.0);
            let mut crashed = draw.below(12) == 0;
            if draw.below(3) > 0 {
                if draw.below(10) == 0 {
                    let disk = node.engine.disk();
                    disk.cut_at = Some(disk.effects + draw.below(6));
                }
                crashed |= !node.flush(&mut draw, &mut sent);
            }
            if crashed {
                trims += u64::from(node.trimmed > Instance::ZERO);
                let kind = if draw.below(2) == 0 { Crash::AllLost } else { Crash::Drawn(draw.below(1 << 30)) };
                let disk = node.engine.disk().clone().crash(kind);
                let known = node.identity;
                node = Node::start(disk, known, draw.below(1 << 40), node.now, &mut sent);
            }
        }
        (restarts, promises) = (restarts + sent.restarts, promises + sent.promises);
        candidacies += sent.candidacies;
    }
    // It was a storm: the test means something.
    assert!(
        restarts > 500 && promises > 200 && candidacies > 50 && trims > 40,
        "{restarts} restarts, {promises} promises, {candidacies} candidacies, {trims} crashes behind a trim"
    );
}
