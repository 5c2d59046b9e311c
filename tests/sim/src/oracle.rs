//! What the simulator itself knows: every vote that ever became durable, every decision, the state after each instance.
//! Replicas are held against it after every step (hazards.md 4, the table of invariants).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coppice_btree::Capacity;
use coppice_client::map::{NodeState, PartitionMap};
use coppice_client::wire::PartitionId;
use coppice_core::machine::Machine;
use coppice_core::machine::partition::Partition;
use coppice_core::replay::Entry;
use coppice_core::replica::QueryPart;
use coppice_ordering::message::Message;
use coppice_ordering::{Ballot, Batch, Configuration, Instance, Lsn, Record, ReplicaId, Ticket, multicast};

use super::found::{Found, broken};
use super::groups::{Group, Groups};
use super::known::{Aside, Known, decided_by};
use super::ledger::Ledger;
use super::plan::Nanos;
use super::store::SavedSnapshot;
use super::tickets::Tickets;
use super::watermarks::{forked_whole, is_elected};

/// The tip without its undo records is compared with the decided state each so many steps (I8), and the nodes of both
/// trees are looked through.
pub const UNDO_CHECK_STEPS: u64 = 64;

#[derive(Default)]
pub struct Oracle {
    /// By group and replica.
    known: BTreeMap<(PartitionId, ReplicaId), Known>,
    /// Who lives where, by what is on disk.
    ids: BTreeMap<(usize, PartitionId), ReplicaId>,
    pub groups: Groups,
    /// Replicas that lived on a disk that is lost.
    lost: BTreeSet<(PartitionId, ReplicaId)>,
    /// Replicas whose state is lost, but not what they promised and voted for: a checkpoint rotted, of one node at
    /// most. They wait for that of another one.
    rotten: BTreeSet<(PartitionId, ReplicaId)>,
    /// Nodes that run on copies of their disks, and who lives on the disks themselves. What is written to a copy counts
    /// for nobody.
    copies: BTreeMap<usize, BTreeSet<(PartitionId, ReplicaId)>>,
    /// What the logs come to, by a model.
    pub ledger: Ledger,
    pub tickets: Tickets,
}

impl Oracle {
    /// A group of the first map begins with this state and these voters.
    pub fn begin(&mut self, group: PartitionId, machine: Machine, voters: Vec<ReplicaId>) {
        if let Some(partition) = machine.partition() {
            self.ledger.begin(group, partition.range());
        }
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
        known.decided_on_disk = known.decided_on_disk.max(decided_by(record));
        match record {
            Record::Promise { ballot } => known.promised = known.promised.max(*ballot),
            Record::Accept { instance, ballot, .. } => {
                known.promised = known.promised.max(*ballot);
                known.accepted.insert(*instance, *ballot);
                if !self.copies.contains_key(&node) {
                    self.vote(id.0, id.1, *instance, *ballot);
                }
            }
            Record::Learned { instance, .. } => _ = known.learned.insert(*instance),
            Record::Decided { .. } | Record::Lease { .. } => {}
        }
    }

    /// A replica has no state that its log goes on from, and gets one of the others.
    pub fn state_lost(&mut self, group: PartitionId, replica: ReplicaId) {
        self.rotten.insert((group, replica));
    }

    /// A node's disk is gone, and with it what its replicas promised: none of them may come back.
    pub fn disk_lost(&mut self, node: usize) {
        self.lost.extend(self.known.iter().filter(|(_, known)| known.node == node).map(|(id, _)| *id));
        self.known.retain(|_, known| known.node != node);
        self.ids.retain(|(of, _), _| *of != node);
    }

    /// A copy takes the place of a node's disk: what is known of the replicas there is kept until that comes back.
    pub fn set_aside(&mut self, node: usize) -> Aside {
        let aside = self.take_known(node);
        self.copies.insert(node, aside.known.keys().copied().collect());
        aside
    }

    /// The disk of a node is back.
    pub fn put_back(&mut self, node: usize, aside: Aside) {
        self.copies.remove(&node);
        self.take_known(node);
        self.known.extend(aside.known);
        self.ids.extend(aside.ids);
    }

    fn take_known(&mut self, node: usize) -> Aside {
        let known = self.known.extract_if(.., |_, known| known.node == node).collect();
        let ids = self.ids.extract_if(.., |(of, _), _| *of == node).collect();
        Aside { known, ids }
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
        let mut now = Known { node, decided: snapshot, state_on_disk: snapshot, ..Known::default() };
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
                    if !self.copies.contains_key(&node) {
                        self.vote(group, replica, *instance, *ballot);
                    }
                }
                Record::Learned { instance, batch, .. } => {
                    now.slots.insert(*instance, batch.clone());
                    now.learned.insert(*instance);
                }
                Record::Decided { .. } | Record::Lease { .. } => {}
            }
            now.decided_on_disk = now.decided_on_disk.max(decided_by(record));
        }
        self.rotten.remove(&(group, replica));
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
    pub(super) fn persists(&mut self, (group, replica): (PartitionId, ReplicaId), record: &Record) -> Found {
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

    /// What a replica is about to say, whose newest checkpoint is `saved`.
    pub(super) fn sends(
        &mut self,
        (node, boot): (usize, u64),
        id: (PartitionId, ReplicaId),
        saved: impl Fn() -> Instance,
        message: &Message,
    ) -> Found {
        let (group, replica) = id;
        let known = self.known.entry(id).or_default();
        let Some(state) = self.groups.get_mut(&group) else { return Ok(()) };
        match message {
            Message::Phase1a(m) => {
                if known.promised < m.ballot {
                    return broken("I2 round not durable", format!("n{node}.{group} uses {}", m.ballot));
                }
                let user = *state.ballots.entry(m.ballot).or_insert((node, boot));
                if user != (node, boot) {
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
                *state.promises.entry(m.ballot).or_default() |= 1 << replica.0;
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
            Message::HeartbeatAck(m) => {
                if let Err(what) = known.holds(state, m.durable_upto, saved()) {
                    let what = format!("n{node}.{group} says that it holds all up to {}: {what}", m.durable_upto);
                    return broken("I2 what it holds is not durable", what);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A replica says that it has decided and executed up to here.
    pub(super) fn decides(
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
            self.groups.get(&partition).and_then(|left| left.machine.partition()).and_then(Partition::absorbed_state)
        });
        let whole = decided.as_ref().map_or(Ok(()), |mark| forked_whole(group, &state, mark));
        self.groups.insert(group, state);
        let decided = decided?;
        whole?;
        let moves = Machine::moves_boundaries(&decided);
        for fork in Machine::forks(&decided) {
            let voters = fork.replicas.iter().map(|info| ReplicaId(info.replica.0)).collect();
            let machine = Machine::Partition(Box::new(fork.partition.copy()));
            self.groups.insert(fork.partition.id(), Group::new(machine, fork.instance, voters));
        }
        self.account(group, instance, moves)
    }

    /// Takes a decided instance into the ledger, which must come to the same.
    fn account(&mut self, group: PartitionId, instance: Instance, moves: bool) -> Found {
        let Some(state) = self.groups.get(&group) else { return Ok(()) };
        let (Some(batch), Some(answers)) = (state.decided.last(), state.answers.last()) else { return Ok(()) };
        let counts = |index| state.placed.contains(&(instance.0, index));
        self.ledger.decide((group, instance.0), batch, answers, counts)?;
        for (&partition, state) in self.groups.iter().filter(|(partition, _)| moves || **partition == group) {
            if let Some(state) = state.machine.partition() {
                self.ledger.agrees(partition, state.range(), state.tree().len())?;
                self.ledger.agrees_on_expiry(partition, state.expiry())?;
            }
        }
        if moves { self.ledger.check_map() } else { Ok(()) }
    }

    /// All pairs of all partitions are those of the model.
    pub fn same_pairs(&self) -> Found {
        for (&partition, state) in &self.groups {
            if let Some(state) = state.machine.partition() {
                let snapshot = state.tree().snapshot();
                let pairs = snapshot.iter().map(|(key, value)| (key.to_vec(), value.to_vec()));
                self.ledger.same(partition, pairs)?;
            }
        }
        Ok(())
    }

    /// A replica begins to lead (I5).
    pub(super) fn leads(
        &self,
        (group, replica): (PartitionId, ReplicaId),
        ballot: Ballot,
        under: &Configuration,
    ) -> Found {
        let promises = self.groups.get(&group).and_then(|state| state.promises.get(&ballot)).copied().unwrap_or(0);
        is_elected(ballot, promises | 1 << replica.0, under)
    }

    /// Every replica that knows which instance decided a configuration knows the same one (I5).
    pub(super) fn is_governed(&self, group: PartitionId, at: Instance, found: &Configuration) -> Found {
        match self.configuration(group, at.next()) {
            Some(truth) if at.0 <= self.decided(group) && truth != found => {
                broken("I5 another configuration", format!("{group} after {at}: {found}, and not {truth}"))
            }
            _ => Ok(()),
        }
    }

    /// Whether a majority of the voters durably holds an instance of a group's own log, in its log or in the state that
    /// `saved` tells of a node; of a configuration from the one that governed it to the newest (I4).
    pub fn is_held(&self, group: PartitionId, instance: Instance, saved: impl Fn(usize) -> Instance) -> bool {
        let Some(state) = self.groups.get(&group) else { return false };
        let holds = |voter: &ReplicaId| {
            let id = (group, *voter);
            let known = self.known.get(&id).is_some_and(|known| {
                let logged = known.accepted.contains_key(&instance) || known.learned.contains(&instance);
                logged || saved(known.node) >= instance
            });
            // What it held when it answered is gone with its disk, or with a part of that, or a copy stands in the
            // disk's place: one of a majority may be (seeds 901356 and 2331).
            let is_aside = || self.copies.values().any(|replicas| replicas.contains(&id));
            known || self.lost.contains(&id) || self.rotten.contains(&id) || is_aside()
        };
        let governing = state.configurations.partition_point(|(from, _)| *from <= instance).saturating_sub(1);
        state.configurations[governing..].iter().any(|(_, configuration)| {
            let voters = &configuration.voters;
            voters.iter().filter(|voter| holds(voter)).count() * 2 > voters.len()
        })
    }

    /// The configuration that governs an instance of a group, as far as it is decided.
    pub fn configuration(&self, group: PartitionId, instance: Instance) -> Option<&Configuration> {
        let governing = self.groups.get(&group)?.configurations.iter().rev();
        governing.into_iter().find(|(from, _)| *from <= instance).map(|(_, configuration)| configuration)
    }

    /// Whether a partition has decided a ticket.
    pub fn is_placed(&self, partition: PartitionId, ticket: Ticket) -> bool {
        self.groups.get(&partition).is_some_and(|group| group.placed_at(ticket).is_some())
    }

    /// A coordinator, in this ballot so far, asks for this in one step.
    pub fn coordinated(&mut self, ballot: Option<Ballot>, effects: &[multicast::Effect]) -> Found {
        let Oracle { tickets, groups, ledger, .. } = self;
        tickets.coordinated((groups, ledger), ballot, effects)
    }

    /// The digest of a state of a replica.
    pub(super) fn digest(
        &self,
        node: usize,
        group: PartitionId,
        instance: Instance,
        digest: u64,
        check: &'static str,
    ) -> Found {
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

impl Oracle {
    /// A process must begin with the decided state of its instance, a child with what the split left it (I7, I15).
    pub fn check_start(&mut self, node: usize, group: PartitionId, instance: Instance, digest: u64) -> Found {
        self.digest(node, group, instance, digest, "I7 another beginning")
    }

    /// A snapshot must be the decided state of its instance, all of it (ST6, SP7).
    pub fn check_snapshot(&mut self, group: PartitionId, saved: &SavedSnapshot) -> Found {
        match saved.load(Capacity::DEFAULT) {
            Err(error) => broken("snapshot", format!("{group}: a snapshot just taken does not load: {error}")),
            Ok(loaded) => {
                let digest = loaded.machine.digest();
                self.digest(0, group, loaded.instance, digest, "ST6 snapshot")?;
                self.governs(group, loaded.instance, &loaded.configuration)
            }
        }
    }

    /// A part of a query leaves (I13).
    pub(super) fn gives(&self, part: &QueryPart) -> Found {
        let group = self.groups.get(&part.position.partition);
        let place = group.and_then(|state| state.place_of(part.ticket));
        if place != Some((part.position.instance, part.position.index)) {
            return broken(
                "I13 a part of another place",
                format!("{} at {}, and not {place:?}", part.ticket, part.position),
            );
        }
        self.ledger.check_part(part)
    }

    fn governs(&self, group: PartitionId, instance: Instance, found: &Configuration) -> Found {
        let configurations = self.groups.get(&group).map(|state| &state.configurations[..]).unwrap_or_default();
        let governing = configurations.iter().rev().find(|(from, _)| *from <= instance.next());
        match governing {
            Some((_, truth)) if truth == found => Ok(()),
            _ => broken("ST6 configuration", format!("{group} after {instance}: {found}, and not {governing:?}")),
        }
    }
}
