//! What the simulator itself knows: every vote that ever became durable, every decision, the state after each instance.
//! Replicas are held against it after every step (reliability.md 4, the table of invariants).

use std::collections::{BTreeMap, BTreeSet};

use coppice_client::wire::PartitionId;
use coppice_ordering::message::Message;
use coppice_ordering::{Ballot, Batch, Configuration, Instance, Lsn, Record, ReplicaId};
use coppice_server::log::Entry;
use coppice_server::machine::{Answer, Machine};
use coppice_server::replica::Effect;
use coppice_server::request::Reply;

use super::store::Saved;
use super::world::World;
use crate::words::positions;

/// The tip without its undo records is compared with the decided state each so many steps (I8).
const UNDO_CHECK_STEPS: u64 = 64;

/// What is known of one replica.
#[derive(Debug, Default)]
struct Known {
    /// On disk.
    promised: Ballot,
    /// On disk: the ballot of the vote for each instance above the snapshot.
    accepted: BTreeMap<Instance, Ballot>,
    /// In memory: what it holds for each instance.
    slots: BTreeMap<Instance, Batch>,
    /// What it has decided and executed in this process.
    decided: Instance,
}

/// What is known of one group.
pub struct Group {
    /// Executes what is decided, without speculation, from the first instance on (reliability.md G16).
    machine: Machine,
    /// Decided batches, from instance 1 on.
    pub decided: Vec<Batch>,
    /// What they came to.
    pub answers: Vec<Vec<Answer>>,
    /// Where tickets counted: instance and index.
    pub placed: BTreeSet<(u64, u32)>,
    /// Of the state after each instance, from 0 on.
    digests: Vec<u64>,
    /// Who governs from an instance on, ascending.
    configurations: Vec<(Instance, Configuration)>,
    proposals: BTreeMap<(Instance, Ballot), Batch>,
    /// Replicas whose vote became durable, one bit each.
    votes: BTreeMap<(Instance, Ballot), u64>,
    /// Which process used a ballot: node and life.
    ballots: BTreeMap<Ballot, (usize, u64)>,
}

/// The oracle.
pub struct Oracle {
    replicas: u32,
    known: BTreeMap<(usize, PartitionId), Known>,
    ids: BTreeMap<(usize, PartitionId), ReplicaId>,
    groups: BTreeMap<PartitionId, Group>,
}

type Found = Result<(), (&'static str, String)>;

fn broken<T>(check: &'static str, what: String) -> Result<T, (&'static str, String)> {
    Err((check, what))
}

impl Oracle {
    /// Knows where replicas are, and nothing else yet.
    pub fn new(replicas: u32, places: &BTreeMap<(PartitionId, ReplicaId), usize>) -> Oracle {
        let ids = places.iter().map(|((group, replica), node)| ((*node, *group), *replica)).collect();
        Oracle { replicas, known: BTreeMap::new(), ids, groups: BTreeMap::new() }
    }

    /// The groups begin with these states.
    pub fn begin(&mut self, machines: BTreeMap<PartitionId, Machine>) {
        let first = Configuration::of_voters((0..self.replicas).map(ReplicaId));
        for (group, machine) in machines {
            let digests = vec![machine.digest()];
            let state = Group {
                machine,
                decided: Vec::new(),
                answers: Vec::new(),
                placed: BTreeSet::new(),
                digests,
                configurations: vec![(Instance(1), first.clone())],
                proposals: BTreeMap::new(),
                votes: BTreeMap::new(),
                ballots: BTreeMap::new(),
            };
            self.groups.insert(group, state);
        }
    }

    /// How many instances of a group are decided.
    pub fn decided(&self, group: PartitionId) -> u64 {
        self.groups.get(&group).map_or(0, |group| group.decided.len() as u64)
    }

    /// All groups.
    pub fn groups(&self) -> impl Iterator<Item = (PartitionId, &Group)> {
        self.groups.iter().map(|(&id, group)| (id, group))
    }

    /// An entry of a node's log became durable.
    pub fn durable(&mut self, node: usize, entry: &Entry) {
        let Entry::Group { group, record } = entry else { return };
        let Some(&replica) = self.ids.get(&(node, *group)) else { return };
        let known = self.known.entry((node, *group)).or_default();
        match record {
            Record::Promise { ballot } => known.promised = known.promised.max(*ballot),
            Record::Accept { instance, ballot, .. } => {
                known.promised = known.promised.max(*ballot);
                known.accepted.insert(*instance, *ballot);
                self.vote(*group, replica, *instance, *ballot);
            }
            Record::Learned { .. } | Record::Decided { .. } | Record::Lease { .. } => {}
        }
    }

    fn vote(&mut self, group: PartitionId, replica: ReplicaId, instance: Instance, ballot: Ballot) {
        let Some(state) = self.groups.get_mut(&group) else { return };
        *state.votes.entry((instance, ballot)).or_default() |= 1 << replica.0;
    }

    /// A process ended: what was only in its memory is gone.
    pub fn process_ended(&mut self, node: usize) {
        for (_, known) in self.known.iter_mut().filter(|((of, _), _)| *of == node) {
            known.slots.clear();
            known.decided = Instance::ZERO;
        }
    }

    /// A replica starts from a snapshot and these records. Whatever was durable before must be there (I2).
    pub fn recovered(
        &mut self,
        node: usize,
        group: PartitionId,
        snapshot: Instance,
        records: &[(Lsn, Record)],
    ) -> Found {
        let Some(&replica) = self.ids.get(&(node, group)) else { return Ok(()) };
        let mut now = Known { decided: snapshot, ..Known::default() };
        for (_, record) in records {
            match record {
                Record::Promise { ballot } => now.promised = now.promised.max(*ballot),
                Record::Accept { instance, ballot, batch, .. } => {
                    now.promised = now.promised.max(*ballot);
                    now.accepted.insert(*instance, *ballot);
                    now.slots.insert(*instance, batch.clone());
                    self.vote(group, replica, *instance, *ballot);
                }
                Record::Learned { instance, batch, .. } => _ = now.slots.insert(*instance, batch.clone()),
                Record::Decided { .. } | Record::Lease { .. } => {}
            }
        }
        let before = self.known.insert((node, group), now).unwrap_or_default();
        let now = &self.known[&(node, group)];
        if now.promised < before.promised {
            let what = format!("n{node}.{group} promised {} on disk and finds {}", before.promised, now.promised);
            return broken("I2 promise lost", what);
        }
        let lost = before.accepted.iter().find(|(instance, ballot)| {
            **instance > snapshot && now.accepted.get(instance).is_none_or(|found| found < *ballot)
        });
        match lost {
            Some((instance, ballot)) => {
                broken("I2 vote lost", format!("n{node}.{group} lost its vote for {instance} in {ballot}"))
            }
            None => Ok(()),
        }
    }

    /// A snapshot takes the place of what a replica holds up to here.
    pub fn installed(&mut self, node: usize, group: PartitionId, instance: Instance) {
        let known = self.known.entry((node, group)).or_default();
        if instance > known.decided {
            known.slots = known.slots.split_off(&instance.next());
        }
    }

    /// What a replica is about to write.
    fn persists(&mut self, node: usize, group: PartitionId, record: &Record) -> Found {
        let (instance, ballot, batch) = match record {
            Record::Accept { instance, ballot, batch, .. } | Record::Learned { instance, ballot, batch } => {
                (*instance, *ballot, batch)
            }
            _ => return Ok(()),
        };
        self.known.entry((node, group)).or_default().slots.insert(instance, batch.clone());
        let Some(state) = self.groups.get_mut(&group) else { return Ok(()) };
        let first = state.proposals.entry((instance, ballot)).or_insert_with(|| batch.clone());
        if first != batch {
            let what = format!("{group} {instance} in {ballot}: {first} and {batch}");
            return broken("I1 two batches in one ballot", what);
        }
        Ok(())
    }

    /// What a replica is about to say.
    fn sends(&mut self, node: usize, life: u64, group: PartitionId, message: &Message) -> Found {
        let known = self.known.entry((node, group)).or_default();
        let Some(&replica) = self.ids.get(&(node, group)) else { return Ok(()) };
        let Some(state) = self.groups.get_mut(&group) else { return Ok(()) };
        match message {
            Message::Phase1a(m) => {
                if known.promised < m.ballot {
                    return broken("I2 round not durable", format!("n{node}.{group} uses {}", m.ballot));
                }
                let user = *state.ballots.entry(m.ballot).or_insert((node, life));
                if user != (node, life) {
                    return broken("I1 ballot used twice", format!("n{node}.{group} uses {} again", m.ballot));
                }
            }
            Message::Phase1b(m) => {
                if known.promised < m.ballot {
                    return broken("I2 promise not durable", format!("n{node}.{group} promises {}", m.ballot));
                }
                let open = known.accepted.range(m.decided_upto.next().max(m.from)..);
                let mut hidden = open.filter(|(instance, ballot)| {
                    let told = m.accepted.iter().find(|told| told.instance == **instance);
                    **instance > m.trimmed_upto && told.is_none_or(|told| told.ballot < **ballot)
                });
                if let Some((instance, ballot)) = hidden.next() {
                    let what = format!("n{node}.{group} hides its vote for {instance} in {ballot}");
                    return broken("I2 vote not told", what);
                }
            }
            Message::Phase2b(m) => {
                for instance in m.first.0..=m.instance.0 {
                    let votes = state.votes.get(&(Instance(instance), m.ballot)).copied().unwrap_or(0);
                    // What is decided may be voted for in any higher ballot: its value can be no other.
                    if votes >> replica.0 & 1 == 0 && instance > state.decided.len() as u64 {
                        let what = format!("n{node}.{group} says that it voted for #{instance} in {}", m.ballot);
                        return broken("I2 vote not durable", what);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A replica says that it has decided and executed up to here.
    fn decides(&mut self, node: usize, group: PartitionId, upto: Instance) -> Found {
        let known = self.known.entry((node, group)).or_default();
        let from = std::mem::replace(&mut known.decided, upto);
        if upto < from {
            return broken("I3 decided goes back", format!("n{node}.{group} from {from} to {upto}"));
        }
        let Some(state) = self.groups.get_mut(&group) else { return Ok(()) };
        for number in from.0 + 1..=upto.0 {
            let instance = Instance(number);
            let Some(batch) = known.slots.get(&instance) else {
                // Covered by a snapshot, then: somebody else has decided it.
                if number > state.decided.len() as u64 {
                    return broken("I3 decided above the truth", format!("n{node}.{group} {instance}"));
                }
                continue;
            };
            match state.decided.get(number as usize - 1) {
                Some(first) if first != batch => {
                    let what = format!("n{node}.{group} {instance} is {batch}, and was {first}");
                    return broken("I1 two values", what);
                }
                Some(_) => {}
                None => state.decide(group, instance, batch.clone())?,
            }
        }
        Ok(())
    }

    /// The digest of a state of a replica.
    fn digest(&self, node: usize, group: PartitionId, instance: Instance, digest: u64, check: &'static str) -> Found {
        let truth = self.groups.get(&group).and_then(|state| state.digests.get(instance.0 as usize));
        match truth {
            Some(truth) if *truth == digest => Ok(()),
            _ => broken(check, format!("n{node}.{group} after {instance}: {digest:x}, and not {truth:x?}")),
        }
    }
}

impl Group {
    /// An instance is decided for the first time: a quorum must have voted for exactly this.
    fn decide(&mut self, group: PartitionId, instance: Instance, batch: Batch) -> Found {
        if instance.0 != self.decided.len() as u64 + 1 {
            return broken("I3 decided with a gap", format!("{group} {instance}"));
        }
        let governing = self.configurations.iter().rev().find(|(from, _)| *from <= instance);
        let voters = governing.map(|(_, configuration)| &configuration.voters).expect("the first one begins at 1");
        let mask = voters.iter().fold(0_u64, |mask, voter| mask | 1 << voter.0);
        let votes = self.votes.range((instance, Ballot::ZERO)..(instance.next(), Ballot::ZERO));
        let mut chosen = votes.filter(|(at, votes)| {
            let enough = (**votes & mask).count_ones() as usize > voters.len() / 2;
            enough && self.proposals.get(at) == Some(&batch)
        });
        if chosen.next().is_none() {
            return broken("I1 decided without a quorum", format!("{group} {instance} {batch}"));
        }
        if let Some(configuration) = batch.as_configuration() {
            self.configurations.push((instance.next(), configuration.clone()));
        }
        let mut answers = Vec::new();
        let mark = self.machine.execute(instance, &batch, &mut answers);
        self.machine.confirm(&mark, None);
        let mut placed = Vec::new();
        self.machine.take_placed(&mut placed);
        self.placed.extend(placed.iter().map(|placed| (placed.instance.0, placed.index)));
        self.digests.push(self.machine.digest());
        self.decided.push(batch);
        self.answers.push(answers);
        Ok(())
    }
}

impl World {
    /// Holds a replica against what is known, after a step and before its effects are carried out.
    pub fn observe(&mut self, node: usize, group: PartitionId, effects: &[Effect]) {
        if let Err((check, what)) = self.observed(node, group, effects) {
            self.fail(check, what);
        }
    }

    fn observed(&mut self, node: usize, group: PartitionId, effects: &[Effect]) -> Found {
        let life = self.nodes[node].life;
        for effect in effects {
            match effect {
                Effect::Persist { record, .. } => self.oracle.persists(node, group, record)?,
                Effect::Send { message, .. } => self.oracle.sends(node, life, group, message)?,
                _ => {}
            }
        }
        let Some(host) = self.nodes[node].hosts.get(&group) else { return Ok(()) };
        let replica = &host.replica;
        let executor = replica.executor();
        self.oracle.decides(node, group, executor.decided())?;
        if let Some((instance, digest)) = executor.digest() {
            self.oracle.digest(node, group, instance, digest, "I7 states differ")?;
        }
        let (in_flight, window) = (replica.paxos().in_flight().0, replica.paxos().settings().window);
        if in_flight > window as usize {
            return broken("I6 window", format!("n{node}.{group} has {in_flight} of {window} instances open"));
        }
        if self.trace.steps().is_multiple_of(UNDO_CHECK_STEPS) {
            let digest = executor.decided_state().digest();
            self.oracle.digest(node, group, executor.decided(), digest, "I8 undo")?;
        }
        for effect in effects {
            if let Effect::Reply { reply, .. } = effect {
                self.replies(node, group, reply)?;
            }
        }
        Ok(())
    }

    /// A reply leaves only if all up to its instance is decided (I9).
    fn replies(&self, node: usize, group: PartitionId, reply: &Reply) -> Found {
        let instance = match reply {
            Reply::Pack(answer) => match positions(answer).into_iter().map(|at| at.0.instance).max() {
                Some(instance) => instance,
                None => return Ok(()),
            },
            Reply::Opened(session) => session.instance,
            Reply::Read { instance, .. } | Reply::Range { instance, .. } => instance.0,
            Reply::Directory(_)
            | Reply::Refused(_)
            | Reply::Unsure { .. }
            | Reply::Cut(_)
            | Reply::Completed { .. }
            | Reply::Aborted { .. } => return Ok(()),
        };
        if instance > self.oracle.decided(group) {
            return broken("I9 undecided reply", format!("n{node}.{group} answers as of #{instance}"));
        }
        Ok(())
    }

    /// A snapshot must be the decided state of its instance, all of it (ST6, SP7).
    pub fn check_snapshot(&mut self, group: PartitionId, saved: &Saved) {
        let found = match saved.load() {
            Err(error) => broken("snapshot", format!("{group}: a snapshot just taken does not load: {error}")),
            Ok(mut loaded) => {
                super::node::set_limits(&mut loaded.machine, &self.plan);
                let digest = loaded.machine.digest();
                let state = self.oracle.digest(0, group, loaded.instance, digest, "ST6 snapshot");
                state.and_then(|()| self.oracle.governs(group, loaded.instance, &loaded.configuration))
            }
        };
        if let Err((check, what)) = found {
            self.fail(check, what);
        }
    }
}

impl Oracle {
    fn governs(&self, group: PartitionId, instance: Instance, found: &Configuration) -> Found {
        let configurations = self.groups.get(&group).map(|state| &state.configurations[..]).unwrap_or_default();
        let governing = configurations.iter().rev().find(|(from, _)| *from <= instance.next());
        match governing {
            Some((_, truth)) if truth == found => Ok(()),
            _ => broken("ST6 configuration", format!("{group} after {instance}: {found}, and not {governing:?}")),
        }
    }
}
