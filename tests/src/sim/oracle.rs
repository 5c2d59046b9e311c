//! What the simulator itself knows: every vote that ever became durable, every decision, the state after each instance.
//! Replicas are held against it after every step (reliability.md 4, the table of invariants).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coppice_client::map::{NodeState, PartitionMap};
use coppice_client::wire::PartitionId;
use coppice_ordering::message::Message;
use coppice_ordering::{Ballot, Batch, Configuration, Instance, Lsn, Record, ReplicaId, Ticket};
use coppice_server::log::Entry;
use coppice_server::machine::shard::{Inheritance, Shard};
use coppice_server::machine::{Answer, Machine, Mark};
use coppice_server::replica::Effect;

use super::plan::Nanos;
use super::store::Saved;
use super::world::World;

/// The tip without its undo records is compared with the decided state each so many steps (I8).
const UNDO_CHECK_STEPS: u64 = 64;

/// What is known of one replica.
#[derive(Debug, Default)]
struct Known {
    /// Where it lives.
    node: usize,
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
    /// The keys that it begins with, and the last ticket.
    pub born: Born,
    /// Decided batches, from the instance after its birth on.
    pub decided: Vec<Batch>,
    /// What they came to.
    pub answers: Vec<Vec<Answer>>,
    /// Where tickets counted: instance and index.
    pub placed: BTreeSet<(u64, u32)>,
    /// The same in order, and when that was first decided.
    tickets: Vec<((u64, u32), Ticket, Nanos)>,
    /// Of the state after each instance, from that of its birth on.
    digests: Vec<u64>,
    /// Who governs from an instance on, ascending.
    configurations: Vec<(Instance, Configuration)>,
    proposals: BTreeMap<(Instance, Ballot), Batch>,
    /// Replicas whose vote became durable, one bit each.
    votes: BTreeMap<(Instance, Ballot), u64>,
    /// Which process used a ballot: node and life.
    ballots: BTreeMap<Ballot, (usize, u64)>,
}

/// How a partition began.
#[derive(Clone, Debug, Default)]
pub struct Born {
    /// The instance of its state; its own log begins behind it.
    pub instance: u64,
    /// First key.
    pub low: Vec<u8>,
    /// First key beyond.
    pub high: Option<Vec<u8>>,
    /// The last ticket placed before.
    pub ticket: Option<Ticket>,
}

/// The oracle.
#[derive(Default)]
pub struct Oracle {
    /// By group and replica.
    known: BTreeMap<(PartitionId, ReplicaId), Known>,
    /// Who lives where, by what is on disk.
    ids: BTreeMap<(usize, PartitionId), ReplicaId>,
    pub groups: BTreeMap<PartitionId, Group>,
    /// Replicas that lived on a disk that is lost.
    lost: BTreeSet<(PartitionId, ReplicaId)>,
}

pub type Found = Result<(), (&'static str, String)>;

pub fn broken<T>(check: &'static str, what: String) -> Result<T, (&'static str, String)> {
    Err((check, what))
}

impl Oracle {
    /// A group of the first map begins with this state and these voters.
    pub fn begin(&mut self, group: PartitionId, machine: Machine, voters: Vec<ReplicaId>) {
        self.groups.insert(group, Group::new(machine, Instance::ZERO, voters));
    }

    /// The last decided instance of a group.
    pub fn decided(&self, group: PartitionId) -> u64 {
        self.groups.get(&group).map_or(0, Group::decided_upto)
    }

    /// The decided map, once there is one.
    pub fn map(&self) -> Option<&PartitionMap> {
        let directory = self.groups.get(&PartitionId::DIRECTORY)?.machine.directory()?;
        Some(&directory.state().map).filter(|map| map.version.0 > 0)
    }

    /// What the directory has yet to bring to its end.
    pub fn under_way(&self) -> String {
        let directory = self.groups.get(&PartitionId::DIRECTORY).and_then(|group| group.machine.directory());
        let Some(state) = directory.map(|directory| Arc::clone(directory.state())) else { return String::new() };
        let mut words: String = state.changes.values().map(|change| format!("{change:?} is under way; ")).collect();
        words.extend(state.absorbed.keys().map(|partition| format!("{partition} is not gone; ")));
        let moving =
            |row: &&coppice_client::map::NodeInfo| matches!(row.state, NodeState::Joining | NodeState::Leaving);
        words.extend(state.map.nodes.iter().filter(moving).map(|row| format!("{} is {:?}; ", row.id, row.state)));
        words
    }

    /// All groups.
    pub fn groups(&self) -> impl Iterator<Item = (PartitionId, &Group)> {
        self.groups.iter().map(|(&id, group)| (id, group))
    }

    /// An entry of a node's log became durable.
    pub fn durable(&mut self, node: usize, entry: &Entry) {
        match entry {
            Entry::Created { group, replica, .. } => _ = self.ids.insert((node, *group), *replica),
            Entry::Removed { group, replica } => {
                self.known.remove(&(*group, *replica));
                if self.ids.get(&(node, *group)) == Some(replica) {
                    self.ids.remove(&(node, *group));
                }
            }
            Entry::Group { group, record } => {
                if let Some(&replica) = self.ids.get(&(node, *group)) {
                    self.durable_record(node, (*group, replica), record);
                }
            }
            Entry::Trimmed { .. } | Entry::Kept { .. } => {}
        }
    }

    /// A node's disk says that this replica lives there.
    pub fn lives(&mut self, node: usize, group: PartitionId, replica: ReplicaId) {
        self.ids.insert((node, group), replica);
    }

    fn durable_record(&mut self, node: usize, id: (PartitionId, ReplicaId), record: &Record) {
        let known = self.known.entry(id).or_default();
        known.node = node;
        match record {
            Record::Promise { ballot } => known.promised = known.promised.max(*ballot),
            Record::Accept { instance, ballot, .. } => {
                known.promised = known.promised.max(*ballot);
                known.accepted.insert(*instance, *ballot);
                self.vote(id.0, id.1, *instance, *ballot);
            }
            Record::Learned { .. } | Record::Decided { .. } | Record::Lease { .. } => {}
        }
    }

    /// A node's disk is gone, and with it what its replicas promised: none of them may come back.
    pub fn disk_lost(&mut self, node: usize) {
        self.lost.extend(self.known.iter().filter(|(_, known)| known.node == node).map(|(id, _)| *id));
        self.known.retain(|_, known| known.node != node);
        self.ids.retain(|(of, _), _| *of != node);
    }

    fn vote(&mut self, group: PartitionId, replica: ReplicaId, instance: Instance, ballot: Ballot) {
        let Some(state) = self.groups.get_mut(&group) else { return };
        *state.votes.entry((instance, ballot)).or_default() |= 1 << replica.0;
    }

    /// A process ended: what was only in its memory is gone.
    pub fn process_ended(&mut self, node: usize) {
        for known in self.known.values_mut().filter(|known| known.node == node) {
            known.slots.clear();
            known.decided = Instance::ZERO;
        }
    }

    /// A replica starts from a snapshot and these records. Whatever was durable before must be there (I2).
    pub fn recovered(
        &mut self,
        node: usize,
        (group, replica): (PartitionId, ReplicaId),
        snapshot: Instance,
        records: &[(Lsn, Record)],
    ) -> Found {
        if !self.groups.contains_key(&group) {
            let what = format!("n{node} starts {group}, and no split that makes it is decided");
            return broken("I15 child of an undecided split", what);
        }
        if self.lost.contains(&(group, replica)) {
            let what = format!("n{node} starts replica {replica} of {group}, whose disk is lost");
            return broken("I2 an empty disk votes", what);
        }
        let mut now = Known { node, decided: snapshot, ..Known::default() };
        for (_, record) in records {
            match record {
                Record::Promise { ballot } => now.promised = now.promised.max(*ballot),
                Record::Accept { instance, ballot, batch, .. } => {
                    now.promised = now.promised.max(*ballot);
                    now.accepted.insert(*instance, *ballot);
                    now.slots.insert(*instance, batch.clone());
                    let proposed = self.groups.get(&group).and_then(|state| state.proposals.get(&(*instance, *ballot)));
                    if proposed.is_some_and(|proposed| proposed != batch) {
                        let what = format!("n{node}.{group} finds another batch at {instance} than that of {ballot}");
                        return broken("I2 vote changed", what);
                    }
                    self.vote(group, replica, *instance, *ballot);
                }
                Record::Learned { instance, batch, .. } => _ = now.slots.insert(*instance, batch.clone()),
                Record::Decided { .. } | Record::Lease { .. } => {}
            }
        }
        let before = self.known.insert((group, replica), now).unwrap_or_default();
        let now = &self.known[&(group, replica)];
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
    pub fn installed(&mut self, group: PartitionId, replica: ReplicaId, instance: Instance) {
        let known = self.known.entry((group, replica)).or_default();
        if instance > known.decided {
            known.slots = known.slots.split_off(&instance.next());
        }
    }

    /// What a replica is about to write.
    fn persists(&mut self, (group, replica): (PartitionId, ReplicaId), record: &Record) -> Found {
        let (instance, ballot, batch) = match record {
            Record::Accept { instance, ballot, batch, .. } | Record::Learned { instance, ballot, batch } => {
                (*instance, *ballot, batch)
            }
            _ => return Ok(()),
        };
        self.known.entry((group, replica)).or_default().slots.insert(instance, batch.clone());
        let Some(state) = self.groups.get_mut(&group) else { return Ok(()) };
        let first = state.proposals.entry((instance, ballot)).or_insert_with(|| batch.clone());
        if first != batch {
            let what = format!("{group} {instance} in {ballot}: {first} and {batch}");
            return broken("I1 two batches in one ballot", what);
        }
        Ok(())
    }

    /// What a replica is about to say.
    fn sends(&mut self, (node, life): (usize, u64), id: (PartitionId, ReplicaId), message: &Message) -> Found {
        let (group, replica) = id;
        let known = self.known.entry(id).or_default();
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
                    let decided = instance <= state.decided_upto() || state.is_chosen(Instance(instance), m.ballot);
                    if votes >> replica.0 & 1 == 0 && !decided {
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
    fn decides(
        &mut self,
        (node, now): (usize, Nanos),
        (group, replica): (PartitionId, ReplicaId),
        upto: Instance,
    ) -> Found {
        let known = self.known.entry((group, replica)).or_default();
        let from = std::mem::replace(&mut known.decided, upto);
        if upto < from {
            return broken("I3 decided goes back", format!("n{node}.{group} from {from} to {upto}"));
        }
        for number in from.0 + 1..=upto.0 {
            let instance = Instance(number);
            let Some(state) = self.groups.get(&group) else { return Ok(()) };
            let slot = self.known.get(&(group, replica)).and_then(|known| known.slots.get(&instance));
            match (slot, state.at(number)) {
                // Covered by a snapshot, then: somebody else has decided it.
                (None, None) if number > state.decided_upto() => {
                    return broken("I3 decided above the truth", format!("n{node}.{group} {instance}"));
                }
                (Some(batch), Some(first)) if first != batch => {
                    let what = format!("n{node}.{group} {instance} is {batch}, and was {first}");
                    return broken("I1 two values", what);
                }
                (Some(batch), None) if number > state.decided_upto() => {
                    let batch = batch.clone();
                    self.decide(group, instance, (batch, now))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// An instance is decided for the first time. Splits in it make groups; what it takes in is there already.
    fn decide(&mut self, group: PartitionId, instance: Instance, batch: (Batch, Nanos)) -> Found {
        let Some(mut state) = self.groups.remove(&group) else { return Ok(()) };
        let decided = state.decide(group, instance, batch, |partition| {
            self.groups.get(&partition).and_then(|left| left.machine.shard()).and_then(Shard::inheritance)
        });
        self.groups.insert(group, state);
        for fork in Machine::forks(&decided?) {
            let voters = fork.replicas.iter().map(|info| ReplicaId(info.replica.0)).collect();
            let machine = Machine::Shard(Box::new(fork.shard.copy()));
            self.groups.insert(fork.shard.partition(), Group::new(machine, fork.instance, voters));
        }
        Ok(())
    }

    /// The configuration that governs an instance of a group, as far as it is decided.
    pub fn configuration(&self, group: PartitionId, instance: Instance) -> Option<&Configuration> {
        let governing = self.groups.get(&group)?.configurations.iter().rev();
        governing.into_iter().find(|(from, _)| *from <= instance).map(|(_, configuration)| configuration)
    }

    /// When a ticket was first decided in a partition, the one that it was born with included.
    pub fn placed_at(&self, partition: PartitionId, ticket: Ticket) -> Option<Nanos> {
        let group = self.groups.get(&partition)?;
        let found = group.tickets.binary_search_by_key(&ticket, |(_, ticket, _)| *ticket).ok();
        let born = (group.born.ticket == Some(ticket)).then_some(0);
        found.map(|at| group.tickets[at].2).or(born)
    }

    /// The digest of a state of a replica.
    fn digest(&self, node: usize, group: PartitionId, instance: Instance, digest: u64, check: &'static str) -> Found {
        let truth = self
            .groups
            .get(&group)
            .and_then(|state| state.digests.get(instance.0.checked_sub(state.born.instance)? as usize));
        match truth {
            Some(truth) if *truth == digest => Ok(()),
            _ => broken(check, format!("n{node}.{group} after {instance}: {digest:x}, and not {truth:x?}")),
        }
    }
}

impl Group {
    fn new(machine: Machine, instance: Instance, voters: Vec<ReplicaId>) -> Group {
        let shard = machine.shard();
        let born = Born {
            instance: instance.0,
            low: shard.map(|shard| shard.range().low.to_vec()).unwrap_or_default(),
            high: shard.and_then(|shard| shard.range().high.as_ref().map(|high| high.to_vec())),
            ticket: machine.last_ticket(),
        };
        Group {
            digests: vec![machine.digest()],
            machine,
            born,
            decided: Vec::new(),
            answers: Vec::new(),
            placed: BTreeSet::new(),
            tickets: Vec::new(),
            configurations: vec![(instance.next(), Configuration::of_voters(voters))],
            proposals: BTreeMap::new(),
            votes: BTreeMap::new(),
            ballots: BTreeMap::new(),
        }
    }

    /// The last decided instance.
    pub fn decided_upto(&self) -> u64 {
        self.born.instance + self.decided.len() as u64
    }

    /// The last ticket that counted at or before a place of its log, or before its birth.
    pub fn last_ticket(&self, at: (u64, u32)) -> Option<Ticket> {
        let after = self.tickets.partition_point(|(place, ..)| *place <= at);
        after.checked_sub(1).map(|last| self.tickets[last].1).or(self.born.ticket)
    }

    /// The batch decided at an instance of its own log.
    pub fn at(&self, instance: u64) -> Option<&Batch> {
        self.decided.get(instance.checked_sub(self.born.instance + 1)? as usize)
    }

    /// The ballots in which a quorum of its configuration has voted for an instance.
    fn quorums(&self, instance: Instance) -> impl Iterator<Item = Ballot> {
        let governing = self.configurations.iter().rev().find(|(from, _)| *from <= instance);
        let voters = governing.map(|(_, configuration)| &configuration.voters).expect("the first one begins at 1");
        let mask = voters.iter().fold(0_u64, |mask, voter| mask | 1 << voter.0);
        let votes = self.votes.range((instance, Ballot::ZERO)..(instance.next(), Ballot::ZERO));
        let enough = move |votes: u64| (votes & mask).count_ones() as usize > voters.len() / 2;
        votes.filter(move |(_, votes)| enough(**votes)).map(|((_, ballot), _)| *ballot)
    }

    /// Whether a quorum has voted for an instance in a ballot up to this one. It may wait to be executed: a merge waits
    /// for the state that it takes in.
    fn is_chosen(&self, instance: Instance, upto: Ballot) -> bool {
        self.quorums(instance).any(|ballot| ballot <= upto)
    }

    /// An instance is decided for the first time: a quorum must have voted for exactly this.
    fn decide(
        &mut self,
        group: PartitionId,
        instance: Instance,
        (batch, now): (Batch, Nanos),
        inheritance: impl Fn(PartitionId) -> Option<Inheritance>,
    ) -> Result<Mark, (&'static str, String)> {
        if instance.0 != self.decided_upto() + 1 {
            return broken("I3 decided with a gap", format!("{group} {instance}"));
        }
        if !self.quorums(instance).any(|ballot| self.proposals.get(&(instance, ballot)) == Some(&batch)) {
            return broken("I1 decided without a quorum", format!("{group} {instance} {batch}"));
        }
        if let Some(configuration) = batch.as_configuration() {
            self.configurations.push((instance.next(), configuration.clone()));
        }
        let mut answers = Vec::new();
        let mut mark = self.machine.execute(instance, &batch, &mut answers);
        if let Some(awaited) = Machine::awaits(&mark) {
            let Some(left) = inheritance(awaited.partition) else {
                let what = format!("{group} {instance} takes in {}, which is not sealed", awaited.partition);
                return broken("MV12 nothing to take in", what);
            };
            self.machine.undo(mark);
            self.machine.inherit(left);
            answers.clear();
            mark = self.machine.execute(instance, &batch, &mut answers);
        }
        self.machine.confirm(&mark, None);
        let mut placed = Vec::new();
        self.machine.take_placed(&mut placed);
        for placed in placed {
            let (at, ticket) = ((placed.instance.0, placed.index), placed.ticket);
            if let Some(before) = self.last_ticket(at).filter(|before| *before >= ticket) {
                return broken("I10 tickets", format!("{group} {instance}: {ticket} counts after {before}"));
            }
            self.placed.insert(at);
            self.tickets.push((at, ticket, now));
        }
        self.digests.push(self.machine.digest());
        self.decided.push(batch);
        self.answers.push(answers);
        Ok(mark)
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
        let process = (node, self.nodes[node].life);
        let Some(host) = self.nodes[node].hosts.get(&group) else { return Ok(()) };
        let id = (group, host.me);
        for effect in effects {
            match effect {
                Effect::Persist { record, .. } => self.oracle.persists(id, record)?,
                Effect::Send { message, .. } => self.oracle.sends(process, id, message)?,
                _ => {}
            }
        }
        let replica = &host.replica;
        let executor = replica.executor();
        self.oracle.decides((node, self.now), id, executor.decided())?;
        if group == PartitionId::DIRECTORY
            && let Some(map) = self.oracle.map().filter(|map| map.version > self.map.version)
        {
            if let Err(error) = map.check() {
                return broken("I14 map", error.to_string());
            }
            self.map = Arc::new(map.clone());
        }
        if let Some((instance, digest)) = executor.digest() {
            self.oracle.digest(node, group, instance, digest, "I7 states differ")?;
        }
        // What was under way when its window was made narrower runs out.
        let (in_flight, window) = (replica.paxos().in_flight().0, replica.paxos().settings().window);
        if in_flight > host.in_flight.max(window as usize) {
            return broken("I6 window", format!("n{node}.{group} has {in_flight} of {window} instances open"));
        }
        if self.trace.steps().is_multiple_of(UNDO_CHECK_STEPS) {
            let digest = executor.decided_state().digest();
            self.oracle.digest(node, group, executor.decided(), digest, "I8 undo")?;
        }
        if let Some(host) = self.nodes[node].hosts.get_mut(&group) {
            host.in_flight = in_flight;
        }
        for effect in effects {
            match effect {
                Effect::Reply { origin, reply } => self.replies(node, group, *origin, reply)?,
                Effect::Leading { ballot } if group == PartitionId::DIRECTORY => self.tickets.leads(*ballot, self.now),
                Effect::Part(part) if part.position.instance > self.oracle.decided(group) => {
                    return broken("I9 undecided part", format!("n{node}.{group} gives {}", part.position));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A snapshot must be the decided state of its instance, all of it (ST6, SP7).
    pub fn check_snapshot(&mut self, group: PartitionId, saved: &Saved) {
        let found = match saved.load() {
            Err(error) => broken("snapshot", format!("{group}: a snapshot just taken does not load: {error}")),
            Ok(loaded) => {
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
