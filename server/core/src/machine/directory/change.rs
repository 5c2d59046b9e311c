//! Changes of the cluster's shape as the directory remembers them, and the rules by which it takes them (protocol.md
//! 1.5, 8).
//!
//! Pure. A change stands in the state from its decision to its end, so whoever leads the directory next goes on with
//! it. At most one change touches a group at a time. It does not know which nodes are alive: that is asked before.

use std::collections::BTreeSet;
use std::fmt;

use bytes::Bytes;
use coppice_client::map::{Addresses, Entry, NodeInfo, NodeState, ReplicaInfo, Role};
use coppice_client::wire::{ChangeId, KEY_BYTES_MAX, MapVersion, NodeId, PartitionId, ReplicaId};
use serde::{Deserialize, Serialize};

use super::{DirectoryReply, DirectoryState};
use crate::machine::partition::{BoundaryChange, BoundaryStep};

/// Ends of changes that are remembered, to answer whoever asks again.
const ENDED_MAX: usize = 256;

/// A change under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// A group gets other replicas.
    Move(Move),
    /// A partition is cut in two: the map says so already, the partition will when the change's ticket is placed.
    Split(BoundaryChange),
    /// A partition is merged into its neighbour: first it is sealed, then the neighbour takes it in. This is what is
    /// to be placed now.
    Merge(BoundaryChange),
}

/// A partition that its neighbour took in, and whose replicas stay until that is on all disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbsorbedPartition {
    /// The neighbour.
    pub target: PartitionId,
    /// The version of the change that a checkpoint of the neighbour must include.
    pub version: MapVersion,
}

/// A group gets other replicas: they join as learners, then one configuration replaces the voters (protocol.md 1.5).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    pub partition: PartitionId,
    /// Replicas that come, with ids that the group never had before.
    pub add: Vec<ReplicaId>,
    /// Replicas that go.
    pub remove: Vec<ReplicaId>,
    /// It was called off: the learners go again, unless they vote already.
    pub cancelled: bool,
}

impl fmt::Display for Change {
    /// What an operator would call it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Move(Move { partition, cancelled: false, .. }) => write!(f, "move of {partition}"),
            Change::Move(Move { partition, .. }) => write!(f, "move of {partition}, called off"),
            Change::Split(BoundaryChange { step, .. }) | Change::Merge(BoundaryChange { step, .. }) => match step {
                BoundaryStep::Split { parent, child, .. } => write!(f, "split of {parent} into {parent} and {child}"),
                BoundaryStep::Seal { partition, target } | BoundaryStep::Join { partition, target } => {
                    write!(f, "merge of {partition} into {target}")
                }
            },
        }
    }
}

impl fmt::Display for ChangeOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChangeOutcome::Done => f.write_str("done"),
            ChangeOutcome::Made(partition) => write!(f, "made {partition}"),
            ChangeOutcome::Cancelled => f.write_str("called off"),
        }
    }
}

impl Change {
    /// The groups that it touches.
    pub fn groups(&self) -> impl Iterator<Item = PartitionId> {
        let (one, other) = match self {
            Change::Move(change) => (change.partition, None),
            Change::Split(change) | Change::Merge(change) => {
                let [one, other] = change.touched();
                (one, Some(other))
            }
        };
        std::iter::once(one).chain(other)
    }

    /// What is to be placed in partitions, if it moves boundaries.
    pub fn boundary(&self) -> Option<&BoundaryChange> {
        match self {
            Change::Move(_) => None,
            Change::Split(change) | Change::Merge(change) => Some(change),
        }
    }
}

/// What a change came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeOutcome {
    /// As was asked.
    Done,
    /// This partition came of it.
    Made(PartitionId),
    /// It was called off, and everything is as before.
    Cancelled,
}

/// Why the directory does not take a command. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Reason {
    /// It does not go together with the others.
    #[error("{0}")]
    Setting(String),
    /// No such node.
    #[error("there is no node {0}")]
    UnknownNode(NodeId),
    /// No such group.
    #[error("there is no partition {0}")]
    UnknownPartition(PartitionId),
    /// The node may not be given replicas.
    #[error("{0} is not a node that may hold replicas: it is joining, being drained or removed")]
    NotMember(NodeId),
    /// Somebody else was first.
    #[error("{partition} is being changed already, by change {change}: ask again when that is done")]
    Busy {
        partition: PartitionId,
        /// By which change.
        change: ChangeId,
    },
    /// A group without replicas is lost data.
    #[error("{0} would have no replica left")]
    NoReplica(PartitionId),
    /// Two processes cannot listen there.
    #[error("{node} is registered at {address} already")]
    AddressTaken { node: NodeId, address: String },
    /// Something on it would be lost.
    #[error("{node} still holds a replica of {partition}")]
    StillHolds { node: NodeId, partition: PartitionId },
    /// The key is not inside the partition, or its first one.
    #[error("{0} cannot be cut there: the key must lie inside it, and not be its first one")]
    NotInside(PartitionId),
    /// Only partitions that touch are merged.
    #[error("{0} and {1} are no neighbours: a partition is merged into the one before or behind it")]
    NotNeighbours(PartitionId, PartitionId),
    /// Nothing is copied by a merge, so each replica needs the other's beside it.
    #[error("{0} and {1} are not on the same nodes: move one of them first")]
    Apart(PartitionId, PartitionId),
    /// An earlier merge is not on all disks yet.
    #[error("{target} is still writing down what it took in from {partition}: ask again when that is done")]
    TakingIn {
        /// Who took it in.
        target: PartitionId,
        /// Which partition it was.
        partition: PartitionId,
    },
    /// No change of this name is under way.
    #[error("change {0} is not under way")]
    UnknownChange(ChangeId),
}

/// Commands about the nodes and groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reshape {
    /// A process becomes a node: it gets a number, which it has yet to take.
    Register {
        /// Its label.
        name: String,
        /// Where it serves.
        addresses: Addresses,
        /// The node whose replicas it gets, which is removed then.
        replaces: Option<NodeId>,
    },
    /// The node took its number durably.
    Joined { node: NodeId },
    /// A node shall hold replicas again, or give all away.
    SetState {
        node: NodeId,
        /// `Member`, `Draining` or `Leaving`.
        state: NodeState,
        /// Replicas that find no other place may be given up.
        force: bool,
    },
    /// A leaving node holds nothing.
    Removed { node: NodeId },
    /// A group's replicas shall be on these nodes.
    Move {
        /// The change's name.
        change: ChangeId,
        partition: PartitionId,
        /// All nodes that shall hold a replica.
        to: Vec<NodeId>,
    },
    /// The new configuration is decided, and a quorum of it durably holds everything up to there.
    Moved { change: ChangeId },
    /// A move shall be called off.
    Cancel { change: ChangeId },
    /// A partition shall be cut in two.
    Split {
        /// The change's name.
        change: ChangeId,
        partition: PartitionId,
        /// First key of the new one.
        #[serde(with = "coppice_client::serde_bytes")]
        at: Bytes,
    },
    /// A partition shall be taken in by its neighbour.
    Merge {
        /// The change's name.
        change: ChangeId,
        /// Which partition goes.
        partition: PartitionId,
        /// Its neighbour.
        target: PartitionId,
    },
    /// The ticket of a change of boundaries is placed in all its partitions and released.
    Released {
        /// See [`BoundaryChange::version`].
        version: MapVersion,
    },
    /// All replicas of its merge target have what they took in on disk: the partition is needed no more.
    Gone { partition: PartitionId },
    /// The group has its old configuration, without learners.
    Unmoved { change: ChangeId },
}

impl DirectoryState {
    /// The change under way that touches `group`.
    pub fn change_of(&self, group: PartitionId) -> Option<(ChangeId, &Change)> {
        let touches = |(_, change): &(&ChangeId, &Change)| change.groups().any(|touched| touched == group);
        self.changes.iter().find(touches).map(|(&id, change)| (id, change))
    }

    /// The change of boundaries under way that leads to the map of `version`, and the operator's name for it.
    pub fn boundary(&self, version: MapVersion) -> Option<(ChangeId, &BoundaryChange)> {
        let mut boundaries = self.changes.iter().filter_map(|(&id, change)| Some((id, change.boundary()?)));
        boundaries.find(|(_, boundary)| boundary.version == version)
    }

    /// What became of a change that ended lately.
    pub fn ended(&self, change: ChangeId) -> Option<ChangeOutcome> {
        self.ended.iter().find(|(id, _)| *id == change).map(|&(_, ended)| ended)
    }

    pub(super) fn reshape(&mut self, command: Reshape) -> DirectoryReply {
        match command {
            Reshape::Register { name, addresses, replaces } => self.register(name, addresses, replaces),
            Reshape::Joined { node } => self.joined(node),
            Reshape::SetState { node, state, force } => self.set_state(node, state, force),
            Reshape::Removed { node } => self.removed(node),
            Reshape::Move { change, partition, to } => self.begin_move(change, partition, &to),
            Reshape::Moved { change } => self.moved(change),
            Reshape::Cancel { change } => self.cancel(change),
            Reshape::Split { change, partition, at } => self.split(change, partition, at),
            Reshape::Merge { change, partition, target } => self.merge(change, partition, target),
            Reshape::Released { version } => self.released(version),
            Reshape::Gone { partition } => self.gone(partition),
            Reshape::Unmoved { change } => self.unmoved(change),
        }
    }

    fn register(&mut self, name: String, addresses: Addresses, replaces: Option<NodeId>) -> DirectoryReply {
        if let Some(old) = replaces
            && !self.map.node(old).is_some_and(|node| node.state != NodeState::Removed)
        {
            return refused(Reason::UnknownNode(old));
        }
        let taken = |node: &&NodeInfo| {
            node.addresses.peer == addresses.peer && node.state != NodeState::Removed && Some(node.id) != replaces
        };
        if let Some(node) = self.map.nodes.iter().find(taken) {
            if node.state == NodeState::Joining {
                return DirectoryReply::Registered(node.id);
            }
            return refused(Reason::AddressTaken { node: node.id, address: addresses.peer });
        }
        if mutant!(amnesiac_votes)
            && let Some(row) = self.map.nodes.iter_mut().find(|row| Some(row.id) == replaces)
        {
            (row.state, row.addresses) = (NodeState::Joining, addresses);
            self.map.version.0 += 1;
            return DirectoryReply::Registered(row.id);
        }
        // Never the old number: an empty disk does not vote as what it replaces (protocol.md 1.5, hazards.md PX11).
        let id = NodeId(self.map.nodes.last().map_or(0, |node| node.id.0) + 1);
        let state = NodeState::Joining;
        if let Some(old) = replaces {
            self.successors.insert(old, id);
            let peer = addresses.peer.clone();
            if let Some(row) = self.map.nodes.iter_mut().find(|row| row.id == old) {
                row.state = NodeState::Leaving;
                if row.addresses.peer == peer {
                    // Whoever answers there is the new node now.
                    row.addresses = Addresses::default();
                }
            }
        }
        self.map.nodes.push(NodeInfo { id, name, addresses, state });
        self.map.version.0 += 1;
        DirectoryReply::Registered(id)
    }

    fn joined(&mut self, node: NodeId) -> DirectoryReply {
        let Some(row) = self.map.nodes.iter_mut().find(|row| row.id == node) else {
            return refused(Reason::UnknownNode(node));
        };
        if row.state == NodeState::Joining {
            row.state = NodeState::Member;
            self.map.version.0 += 1;
        }
        DirectoryReply::Done
    }

    fn set_state(&mut self, node: NodeId, state: NodeState, force: bool) -> DirectoryReply {
        let Some(row) = self.map.nodes.iter_mut().find(|row| row.id == node) else {
            return refused(Reason::UnknownNode(node));
        };
        match (row.state, state) {
            (NodeState::Removed, NodeState::Leaving) => return DirectoryReply::Done,
            (NodeState::Removed, _) => return refused(Reason::UnknownNode(node)),
            // What is being removed is not called back: its successor may have its replicas already.
            (NodeState::Leaving, NodeState::Member | NodeState::Draining) => return refused(Reason::NotMember(node)),
            (NodeState::Joining, NodeState::Member | NodeState::Draining) => return refused(Reason::NotMember(node)),
            (_, NodeState::Removed | NodeState::Joining) => return refused(Reason::NotMember(node)),
            _ => {}
        }
        if force {
            self.forced.insert(node);
        }
        if row.state != state {
            row.state = state;
            self.map.version.0 += 1;
        }
        DirectoryReply::Done
    }

    fn removed(&mut self, node: NodeId) -> DirectoryReply {
        let holds = |entry: &&Entry| entry.replica_on(node).is_some();
        if let Some(entry) = self.map.directory.iter().chain(&self.map.partitions).find(holds) {
            return refused(Reason::StillHolds { node, partition: entry.partition });
        }
        let Some(row) = self.map.nodes.iter_mut().find(|row| row.id == node) else {
            return refused(Reason::UnknownNode(node));
        };
        match row.state {
            NodeState::Removed => {}
            NodeState::Leaving => {
                row.state = NodeState::Removed;
                row.addresses = Addresses::default();
                self.forced.remove(&node);
                self.successors.remove(&node);
                self.map.version.0 += 1;
            }
            NodeState::Member | NodeState::Draining | NodeState::Joining => return refused(Reason::NotMember(node)),
        }
        DirectoryReply::Done
    }

    fn begin_move(&mut self, change: ChangeId, partition: PartitionId, to: &[NodeId]) -> DirectoryReply {
        if self.is_known(change) {
            return DirectoryReply::Done;
        }
        let Some(entry) = self.map.entry(partition) else { return refused(Reason::UnknownPartition(partition)) };
        if let Some((change, _)) = self.change_of(partition) {
            return refused(Reason::Busy { partition, change });
        }
        let to: BTreeSet<NodeId> = to.iter().copied().collect();
        if to.is_empty() {
            return refused(Reason::NoReplica(partition));
        }
        let new: Vec<NodeId> = to.iter().copied().filter(|&node| entry.replica_on(node).is_none()).collect();
        for &node in &new {
            match self.map.node(node) {
                None => return refused(Reason::UnknownNode(node)),
                Some(row) if row.state != NodeState::Member => return refused(Reason::NotMember(node)),
                Some(_) => {}
            }
        }
        let gone = entry.replicas.iter().filter(|replica| !to.contains(&replica.node));
        let remove: Vec<ReplicaId> = gone.map(|replica| replica.replica).collect();
        if new.is_empty() && remove.is_empty() {
            self.end(change, ChangeOutcome::Done);
            return DirectoryReply::Done;
        }
        let used = self.replicas_used.entry(partition).or_default();
        let mut add = Vec::new();
        let mut joining = Vec::new();
        for node in new {
            // Never one that the group had before: an old voter's promises are not the new one's (protocol.md 1.5).
            *used += 1;
            add.push(ReplicaId(*used));
            joining.push(ReplicaInfo { replica: ReplicaId(*used), node, role: Role::Learner });
        }
        self.edit(partition, |entry| entry.replicas.extend(joining));
        self.changes.insert(change, Change::Move(Move { partition, add, remove, cancelled: false }));
        failpoint!("change.move");
        DirectoryReply::Done
    }

    fn moved(&mut self, change: ChangeId) -> DirectoryReply {
        let Some(Change::Move(done)) = self.changes.get(&change).cloned() else { return self.unknown(change) };
        self.edit(done.partition, |entry| {
            entry.replicas.retain(|replica| !done.remove.contains(&replica.replica));
            entry.replicas.iter_mut().for_each(|replica| replica.role = Role::Voter);
        });
        failpoint!("change.moved");
        self.end(change, ChangeOutcome::Done);
        DirectoryReply::Done
    }

    fn cancel(&mut self, change: ChangeId) -> DirectoryReply {
        match self.changes.get_mut(&change) {
            // Without learners nothing tells whether the new configuration is on its way: it is carried through.
            Some(Change::Move(change)) => change.cancelled = !change.add.is_empty(),
            // The map has it already: it is carried through.
            Some(Change::Split(_) | Change::Merge(_)) => {}
            None => return self.unknown(change),
        }
        DirectoryReply::Done
    }

    fn unmoved(&mut self, change: ChangeId) -> DirectoryReply {
        let Some(Change::Move(undone)) = self.changes.get(&change).cloned() else { return self.unknown(change) };
        self.edit(undone.partition, |entry| {
            entry.replicas.retain(|replica| !undone.add.contains(&replica.replica));
        });
        self.end(change, ChangeOutcome::Cancelled);
        DirectoryReply::Done
    }

    fn split(&mut self, change: ChangeId, partition: PartitionId, at: Bytes) -> DirectoryReply {
        if self.is_known(change) {
            return DirectoryReply::Done;
        }
        let entry = self.map.partitions.iter().find(|entry| entry.partition == partition);
        let Some(entry) = entry.cloned() else { return refused(Reason::UnknownPartition(partition)) };
        if let Some((change, _)) = self.change_of(partition) {
            return refused(Reason::Busy { partition, change });
        }
        if !entry.contains(&at) || at == entry.low || at.len() > KEY_BYTES_MAX {
            return refused(Reason::NotInside(partition));
        }
        let used = self.map.groups().map(|entry| entry.partition.0).max().unwrap_or(0);
        self.partitions_used = self.partitions_used.max(used) + 1;
        let child = PartitionId(self.partitions_used);
        // No change of the parent is under way, so all its replicas vote; each has the child's beside it.
        let beside = entry.replicas.iter().zip(1..);
        let replicas: Vec<ReplicaInfo> =
            beside.map(|(info, n)| ReplicaInfo { replica: ReplicaId(n), node: info.node, role: Role::Voter }).collect();
        self.replicas_used.insert(child, replicas.len() as u32);
        self.edit(partition, |entry| entry.high = Some(at.clone()));
        let version = self.map.version;
        let place = self.map.partitions.partition_point(|entry| entry.low < at);
        let new = Entry { partition: child, low: at.clone(), high: entry.high, version, replicas: replicas.clone() };
        self.map.partitions.insert(place, new);
        let step = BoundaryStep::Split { parent: partition, child, at, replicas };
        self.changes.insert(change, Change::Split(BoundaryChange { version, step }));
        failpoint!("change.split");
        DirectoryReply::Done
    }

    fn merge(&mut self, change: ChangeId, partition: PartitionId, target: PartitionId) -> DirectoryReply {
        if self.is_known(change) {
            return DirectoryReply::Done;
        }
        let place = |id: PartitionId| self.map.partitions.iter().position(|entry| entry.partition == id);
        let Some(at) = place(partition) else { return refused(Reason::UnknownPartition(partition)) };
        let Some(to) = place(target) else { return refused(Reason::UnknownPartition(target)) };
        for id in [partition, target] {
            if let Some((change, _)) = self.change_of(id) {
                return refused(Reason::Busy { partition: id, change });
            }
            // Its replicas may have to begin before that again, and need the other's beside them.
            if let Some((&before, _)) = self.absorbed.iter().find(|(_, absorbed)| absorbed.target == id) {
                return refused(Reason::TakingIn { target: id, partition: before });
            }
        }
        if at.abs_diff(to) != 1 {
            return refused(Reason::NotNeighbours(partition, target));
        }
        if nodes(&self.map.partitions[at]) != nodes(&self.map.partitions[to]) {
            return refused(Reason::Apart(partition, target));
        }
        // The version tells the coordinator that there is something to do.
        self.edit(partition, |_| {});
        let step = BoundaryStep::Seal { partition, target };
        let change_of_boundaries = BoundaryChange { version: self.map.version, step };
        self.changes.insert(change, Change::Merge(change_of_boundaries));
        failpoint!("change.merge");
        DirectoryReply::Done
    }

    fn released(&mut self, version: MapVersion) -> DirectoryReply {
        // Else it was released before: nothing else is ever known by that version.
        let Some((change, boundary)) = self.boundary(version) else { return DirectoryReply::Done };
        match boundary.step.clone() {
            BoundaryStep::Split { child, .. } => self.end(change, ChangeOutcome::Made(child)),
            BoundaryStep::Seal { partition, target } => self.join(change, partition, target),
            BoundaryStep::Join { target, .. } => self.end(change, ChangeOutcome::Made(target)),
        }
        failpoint!("change.released");
        DirectoryReply::Done
    }

    /// The partition is sealed: its keys are the neighbour's from now on.
    fn join(&mut self, change: ChangeId, partition: PartitionId, target: PartitionId) {
        let Some(at) = self.map.partitions.iter().position(|entry| entry.partition == partition) else { return };
        let ending = self.map.partitions.remove(at);
        self.edit(target, |entry| {
            if entry.low < ending.low {
                entry.high = ending.high.clone();
            } else {
                entry.low = ending.low.clone();
            }
        });
        let version = self.map.version;
        self.map.ending.push(Entry { version, ..ending });
        self.absorbed.insert(partition, AbsorbedPartition { target, version });
        let step = BoundaryStep::Join { partition, target };
        let next = BoundaryChange { version, step };
        self.changes.insert(change, Change::Merge(next));
    }

    fn gone(&mut self, partition: PartitionId) -> DirectoryReply {
        if let Some((change, _)) = self.change_of(partition) {
            return refused(Reason::Busy { partition, change });
        }
        if self.absorbed.remove(&partition).is_some() {
            self.map.ending.retain(|entry| entry.partition != partition);
            failpoint!("change.gone");
            self.map.version.0 += 1;
        }
        DirectoryReply::Done
    }

    /// A step that was done before is done: a new leader of the directory repeats what it cannot know of.
    fn unknown(&self, change: ChangeId) -> DirectoryReply {
        match self.ended(change) {
            Some(_) => DirectoryReply::Done,
            None => refused(Reason::UnknownChange(change)),
        }
    }

    fn is_known(&self, change: ChangeId) -> bool {
        let known = self.changes.contains_key(&change) || self.ended(change).is_some();
        known && !mutant!(change_not_idempotent)
    }

    fn end(&mut self, change: ChangeId, ended: ChangeOutcome) {
        self.changes.remove(&change);
        self.ended.push_back((change, ended));
        if self.ended.len() > ENDED_MAX {
            self.ended.pop_front();
        }
    }

    /// Changes an entry; it and the map get a new version.
    fn edit(&mut self, partition: PartitionId, change: impl FnOnce(&mut Entry)) {
        let version = MapVersion(self.map.version.0 + 1);
        let entries = self.map.partitions.iter_mut().chain(&mut self.map.directory);
        let Some(entry) = entries.into_iter().find(|entry| entry.partition == partition) else { return };
        change(entry);
        entry.version = version;
        self.map.version = version;
    }
}

fn refused(reason: Reason) -> DirectoryReply {
    DirectoryReply::Refused(reason)
}

/// The nodes of an entry's replicas.
fn nodes(entry: &Entry) -> BTreeSet<NodeId> {
    entry.replicas.iter().map(|info| info.node).collect()
}
