//! An exhaustive search of one group: every order of every event within the bounds, over the real Paxos core
//! (hazards.md 7, models). Judged by its end alone: no two values are decided at one instance, nobody takes
//! anything else for decided, and what was decided once stays so whatever happens to the replicas.
//!
//! The network is the set of all messages ever said: each may arrive at any time, in any order, again and again, or
//! never. Proposers stand for election at any moment, whoever leads. A process ends at any moment and comes back with
//! what is flushed and any beginning of what is not; or its disk is lost, and it stays away for ever.
//!
//! What is left out because it can make no difference to what is decided: a message of a ballot that its receiver has
//! durably put behind it; an answer to a process that is gone; `Preempted`, which says no more than silence does; pre-
//! votes, which always pass; confirmations of leadership. What counts, measures and times is no part of a state. In
//! `eager` worlds a replica that has written flushes, or crashes, before it does anything else, and a leader proposes
//! as soon as it may: doing so later is losing, or delaying, what it says. The worlds that are not eager show that.

mod replica;
mod worlds;

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use coppice_ordering::{Ballot, Batch, Input, Instance, Message, ReplicaId};
pub use replica::{Letter, Replica};
pub use worlds::{WORLDS_SMALL, worlds};

use super::search::{Model, fingerprint};

/// How replicas hear what is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// With later proposals of the leader, and from acceptors in Phase 1.
    Proposals,
    /// By heartbeats too.
    Heartbeats,
    /// And from any replica that knows it.
    Anybody,
}

/// What may happen, and how often.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Acceptors, all voters.
    pub acceptors: u32,
    /// The first so many stand for election.
    pub proposers: u32,
    /// Nothing is proposed above this instance.
    pub instances: u64,
    /// Times that a proposer stands for election, all together.
    pub campaigns: u8,
    /// Times that a process ends.
    pub crashes: u8,
    /// Flushes and proposals do not wait.
    pub eager: bool,
    /// How replicas hear what is decided.
    pub news: News,
    /// What becomes of them at a crash.
    pub disks: Disks,
}

/// What a crash leaves of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disks {
    /// What was flushed, and any beginning of what was not.
    Kept,
    /// Nothing: the replica takes no part. Whoever comes in its place has another id, and is no member here
    /// (protocol.md 1.5).
    Lost,
    /// That, or nothing, and the replica comes back under its old id: this must be found.
    Forgotten,
}

impl Bounds {
    /// Whether a search must find that a rule is broken.
    pub fn must_break(&self) -> bool {
        self.disks == Disks::Forgotten
    }
}

impl std::fmt::Display for Bounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Bounds { acceptors, proposers, instances, campaigns, crashes, eager, news, disks } = self;
        write!(f, "{acceptors} acceptors, {proposers} proposers, {instances} instances, {campaigns} campaigns")?;
        write!(f, ", {crashes} crashes")?;
        f.write_str(if *eager { "; flushes and proposals at once" } else { "; flushes and proposals at any time" })?;
        f.write_str(match news {
            News::Proposals => "; decisions are told with proposals",
            News::Heartbeats => "; decisions are told by the leader",
            News::Anybody => "; decisions are told by anybody",
        })?;
        f.write_str(match disks {
            Disks::Kept => "",
            Disks::Lost => "; a crash takes the disk, and the replica with it",
            Disks::Forgotten => "; a lost disk comes back under its old id",
        })
    }
}

/// What happens next.
#[derive(Clone, Debug)]
pub enum Action {
    /// The first stands for election, and the second tells it what it has promised.
    Campaign(ReplicaId, ReplicaId),
    Submit(ReplicaId),
    Deliver(Rc<Letter>),
    Flush(ReplicaId),
    /// So many of the records survive that were not flushed.
    Crash(ReplicaId, usize),
    LoseDisk(ReplicaId),
}

/// Letters by fingerprint.
type Letters = BTreeMap<u64, Rc<Letter>>;

/// A group, what was said in it, and what is left of the bounds.
#[derive(Clone)]
pub struct State {
    replicas: Vec<Rc<Replica>>,
    /// Of the replicas: one step changes one of them.
    fingerprints: Vec<u64>,
    /// What may arrive.
    sent: Letters,
    /// What has arrived, and would be news again after a crash of its receiver.
    arrived: Letters,
    campaigns: u8,
    crashes: u8,
    /// What a quorum once voted for in one ballot.
    chosen: BTreeMap<Instance, Batch>,
}

impl std::hash::Hash for State {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.fingerprints.hash(state);
        for letters in [&self.sent, &self.arrived] {
            letters.len().hash(state);
            letters.keys().for_each(|letter| letter.hash(state));
        }
        (self.campaigns, self.crashes).hash(state);
        self.chosen.hash(state);
    }
}

impl State {
    /// Something happens at a replica; what follows at once follows.
    fn at(&mut self, bounds: &Bounds, id: ReplicaId, event: impl FnOnce(&mut Replica, &mut Vec<Letter>)) {
        let replica = Rc::make_mut(&mut self.replicas[id.0 as usize]);
        let mut said = Vec::new();
        event(replica, &mut said);
        if bounds.eager {
            loop {
                // With no crash to come, nothing is lost by flushing now.
                let flushes = self.crashes == 0 && !replica.written.is_empty();
                if flushes {
                    replica.flush(&mut said);
                }
                if !may_submit(bounds, replica) {
                    if !flushes {
                        break;
                    }
                } else {
                    submit(replica, &mut said);
                }
            }
        }
        self.fingerprints[id.0 as usize] = fingerprint(&*replica);
        for letter in said {
            let key = fingerprint(&letter);
            if self.replicas[letter.to.0 as usize].gone {
                continue;
            }
            if letter.is_of_use(bounds.news) && !self.arrived.contains_key(&key) {
                self.sent.entry(key).or_insert_with(|| Rc::new(letter));
            }
        }
        self.judge(bounds, id);
        self.tidy(id);
    }

    fn deliver(&mut self, bounds: &Bounds, letter: &Rc<Letter>) {
        let Letter { from, to, message } = (**letter).clone();
        let before = self.fingerprints[to.0 as usize];
        self.at(bounds, to, |replica, said| replica.step(Input::Message { from, message }, said));
        // What changed nothing now may be news later. What did will not be again, before a crash.
        if self.fingerprints[to.0 as usize] != before {
            let key = fingerprint(&**letter);
            self.sent.remove(&key);
            if self.crashes > 0 && !letter.is_answer() {
                self.arrived.insert(key, letter.clone());
            }
            self.tidy(to);
        }
    }

    /// A process is gone: what had arrived there may arrive again, and answers to it find nobody.
    fn unlearn(&mut self, id: ReplicaId) {
        self.crashes -= 1;
        self.sent.retain(|_, letter| letter.to != id || !letter.is_answer());
        let (again, arrived) = std::mem::take(&mut self.arrived).into_iter().partition(|(_, letter)| letter.to == id);
        self.arrived = arrived;
        self.sent.append(&mut { again });
    }

    /// A disk is gone, and its replica with it. What was chosen stays so.
    fn lose(&mut self, id: ReplicaId) {
        let replica = Rc::make_mut(&mut self.replicas[id.0 as usize]);
        replica.lose();
        self.fingerprints[id.0 as usize] = fingerprint(&*replica);
        let stays = |letter: &Letter| letter.to != id;
        self.sent.retain(|_, letter| stays(letter));
        self.arrived.retain(|_, letter| stays(letter));
    }

    fn judge(&mut self, bounds: &Bounds, id: ReplicaId) {
        let mut votes: BTreeMap<(Instance, Ballot), (u32, &Batch)> = BTreeMap::new();
        for replica in &self.replicas {
            let mut own = BTreeMap::new();
            own.extend(replica.votes().map(|(instance, ballot, batch)| ((instance, ballot), batch)));
            for (at, batch) in own {
                let (count, first) = votes.entry(at).or_insert((0, batch));
                assert_eq!(*first, batch, "two values at {} in {}", at.0, at.1);
                *count += 1;
            }
        }
        for ((instance, ballot), (count, batch)) in votes {
            if 2 * count > bounds.acceptors {
                let first = self.chosen.entry(instance).or_insert_with(|| batch.clone());
                assert_eq!(first, batch, "{instance} is decided again in {ballot}");
            }
        }
        let paxos = &self.replicas[id.0 as usize].paxos;
        for instance in 1..=paxos.decided_upto().0 {
            let instance = Instance(instance);
            assert_eq!(
                paxos.batch(instance),
                self.chosen.get(&instance),
                "{id} takes a value for decided at {instance}"
            );
        }
    }

    /// Forgets what can make no difference from now on.
    fn tidy(&mut self, id: ReplicaId) {
        let replica = &self.replicas[id.0 as usize];
        let promised = replica.promised();
        let (proposes, decided_upto) = (replica.proposes_in(), replica.paxos.decided_upto());
        let news = |letter: &Letter| {
            letter.ballot().is_none_or(|ballot| ballot >= promised)
                && match &letter.message {
                    Message::Phase1b(m) => m.ballot > proposes,
                    Message::Phase2b(m) => m.instance > decided_upto,
                    _ => true,
                }
        };
        self.sent.retain(|_, letter| letter.to != id || news(letter));
        match self.crashes {
            0 => self.arrived.clear(),
            _ => self.arrived.retain(|_, letter| letter.to != id || news(letter)),
        }
    }
}

/// Whether it leads, and an instance is left for a command.
fn may_submit(bounds: &Bounds, replica: &Replica) -> bool {
    replica.paxos.is_leader() && replica.paxos.accepted_upto().0 < bounds.instances
}

/// A command that was never given before: by process, ballot, and instance that it goes into.
fn submit(replica: &mut Replica, said: &mut Vec<Letter>) {
    let command =
        format!("{} {} {}", replica.paxos.ballot(), replica.incarnation, replica.paxos.accepted_upto().next());
    replica.submit(Bytes::from(command), said);
}

impl Model for Bounds {
    type State = State;
    type Action = Action;

    fn first(&self) -> State {
        let replica = |id: u32| Rc::new(Replica::new(ReplicaId(id), self.acceptors));
        let replicas: Vec<Rc<Replica>> = (0..self.acceptors).map(replica).collect();
        let fingerprints = replicas.iter().map(|replica| fingerprint(&**replica)).collect();
        let (sent, arrived) = Default::default();
        let Bounds { campaigns, crashes, .. } = *self;
        State { replicas, fingerprints, sent, arrived, campaigns, crashes, chosen: BTreeMap::new() }
    }

    fn actions(&self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        let busy = |id: ReplicaId| self.eager && !state.replicas[id.0 as usize].written.is_empty();
        for replica in state.replicas.iter().filter(|replica| !replica.gone) {
            let id = replica.id;
            if !replica.written.is_empty() {
                actions.push(Action::Flush(id));
            }
            if state.crashes > 0 && self.disks != Disks::Lost {
                actions.extend((0..=replica.written.len()).map(|kept| Action::Crash(id, kept)));
            }
            if state.crashes > 0 && self.disks != Disks::Kept {
                actions.push(Action::LoseDisk(id));
            }
            if busy(id) {
                continue;
            }
            if state.campaigns > 0 && id.0 < self.proposers && replica.written.is_empty() {
                let others = state.replicas.iter().filter(|peer| peer.id != id && !peer.gone);
                let peers = others.map(|peer| peer.id);
                actions.extend(peers.map(|peer| Action::Campaign(id, peer)));
            }
            if may_submit(self, replica) {
                actions.push(Action::Submit(id));
            }
        }
        let arrives = |letter: &&Rc<Letter>| !busy(letter.to);
        actions.extend(state.sent.values().filter(arrives).cloned().map(Action::Deliver));
        actions
    }

    fn act(&self, state: &mut State, action: Action) {
        let group = self.acceptors;
        match action {
            Action::Campaign(id, peer) => {
                state.campaigns -= 1;
                let peer = state.replicas[peer.0 as usize].clone();
                state.at(self, id, |replica, said| replica.campaign(&peer, said));
            }
            Action::Submit(id) => state.at(self, id, submit),
            Action::Deliver(letter) => state.deliver(self, &letter),
            Action::Flush(id) => state.at(self, id, Replica::flush),
            Action::Crash(id, kept) => {
                state.unlearn(id);
                state.at(self, id, |replica, said| replica.crash(kept, group, said));
            }
            Action::LoseDisk(id) => {
                state.unlearn(id);
                match self.disks {
                    Disks::Lost => state.lose(id),
                    Disks::Kept | Disks::Forgotten => {
                        state.at(self, id, |replica, said| replica.forget(group, said));
                    }
                }
            }
        }
    }

    fn has_ended(&self, state: &State) -> bool {
        (1..=self.instances).all(|instance| state.chosen.contains_key(&Instance(instance)))
    }
}
