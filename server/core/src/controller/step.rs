//! What a controller is told, and what it asks its driver to do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coppice_btree::KeyRange;
use coppice_client::map::PartitionMap;
use coppice_client::wire::{self, AdminReply, ChangeId, MapVersion, NodeId, PartitionId, ReshapeRequest, Reshaped};
use coppice_ordering::{Configuration, Instance, ReplicaId};

use super::adoption::ClusterState;
use super::transfer::{Reached, TransferId, TransferOutcome};
use crate::access::Access;
use crate::machine::directory::{Change, ChangeOutcome, DirectoryCommand, DirectoryReply, DirectoryState};
use crate::question::Identified;
use crate::replay::{Entry as LogEntry, GroupReplay};
use crate::replica_manager::{CreateRequest, Start, StateLost};
use crate::reshape::View;
use crate::snapshot::LoadedSnapshot;
use crate::worker::{self, Report};

/// Names one fetch of a snapshot, as long as the process lives.
pub type FetchId = u64;

/// Names one request of an operator, as its driver counts them.
pub type VerbId = u64;

/// What happens to a controller.
pub enum Input {
    /// Time passed: a deadline has come.
    Tick,
    /// This process is that node of the cluster. What its disk holds follows: nothing is said before
    /// [`Input::Restored`].
    Identity {
        node: NodeId,
        /// What it kept for its start.
        kept: Option<Arc<ClusterState>>,
        /// Addresses of the first nodes.
        seeds: Vec<String>,
    },
    /// At a start, behind what was recovered: the map that was kept.
    Map(Arc<PartitionMap>),
    /// Another node says that the directory holds this.
    Adopt(Arc<ClusterState>),
    /// At a start, for each group that the log of this node knows.
    Recovered(Box<RecoveredReplica>),
    /// That was every group, and the map that was kept.
    Restored {
        /// So many nodes the cluster was formed of.
        seeds: u32,
        /// What [`Effect::WriteCopyMark`] has left on this disk.
        copy: Option<String>,
    },
    /// That node has let this process in.
    LetIn(NodeId),
    /// That node says that this process runs on a copy of its directory, in words.
    IsCopy { by: NodeId, text: String },
    /// The directory was just made, and its first replicas are these, on nodes at these addresses: a map will say so.
    Founded(Vec<(wire::ReplicaId, NodeId, String)>),
    /// A worker of this node says.
    Report(Report),
    /// The create request of a replica here is durable.
    CreateDurable(PartitionId, ReplicaId),
    /// The removal of a replica here is durable.
    RemovalDurable(PartitionId),
    /// The head of a snapshot has come: [`Effect::Admit`] says whether the rest is wanted.
    Offered {
        /// Of which fetch.
        fetch: FetchId,
        /// The keys that it holds.
        kept: KeyRange,
        /// The map version of these boundaries.
        version: MapVersion,
    },
    /// A fetch has ended: the snapshot is durable here, or none came.
    Fetched(FetchId, Option<Box<LoadedSnapshot>>),
    /// The checkpoints of a replica that was removed are gone, or stay until the next start.
    Deleted(PartitionId),
    /// What the nodes that answer say of themselves.
    View(Box<View>),
    /// The directory was asked for this, and answered; none: nobody knows whether it will be decided.
    Decided(Box<DirectoryCommand>, Option<DirectoryReply>),
    /// A process has its number, durably; or why it was not told.
    Assigned(NodeId, Result<(), String>),
    /// Another node says who leads these groups.
    LeadersTold(Vec<(PartitionId, NodeId)>),
    /// A leadership of this node is to go to another one: [`Effect::TransferEnded`], always.
    Transfer {
        /// Which request this is.
        transfer: TransferId,
        /// Of which group.
        partition: PartitionId,
        /// To whom.
        to: NodeId,
        /// How long it is tried.
        within: Duration,
        /// The nodes that the group's worker reaches.
        reached: Vec<NodeId>,
    },
    /// The node is to stop: its leaderships go first, then [`Effect::Stopped`], always.
    Stop {
        /// How long that may take.
        within: Duration,
        /// What it leads.
        led: Reached,
    },
    /// An operator's request, with what the nodes say of themselves at this moment.
    Verb {
        verb: VerbId,
        /// What is asked for.
        request: Box<ReshapeRequest>,
        /// What the nodes say.
        view: Box<View>,
    },
    /// Where the partition of [`Effect::Median`] is cut into two halves; none: it has fewer than two keys, or its
    /// leader does not answer.
    Median(VerbId, Option<Bytes>),
    /// What the process of [`Effect::Identify`] says of itself; or why it does not.
    Identified(VerbId, Result<Box<Identified>, String>),
}

impl Input {
    /// What a controller is to hear once an entry of [`Effect::Log`] is durable; none: nobody waits for that.
    pub fn once_durable(entry: &LogEntry) -> Option<Input> {
        match entry {
            LogEntry::Created { group, replica, .. } => Some(Input::CreateDurable(*group, *replica)),
            LogEntry::Removed { group, .. } => Some(Input::RemovalDurable(*group)),
            LogEntry::Group { .. } | LogEntry::Trimmed { .. } | LogEntry::Kept { .. } => None,
        }
    }
}

/// What the log of this node, and its checkpoints, hold of one group.
pub struct RecoveredReplica {
    pub group: PartitionId,
    /// A replica that was removed here.
    pub removed: Option<ReplicaId>,
    /// The replica that was started, and what it began with.
    pub created: Option<(ReplicaId, CreateRequest)>,
    /// Its newest good checkpoint.
    pub loaded: Option<LoadedSnapshot>,
    /// Its records.
    pub replay: GroupReplay,
}

impl RecoveredReplica {
    /// From what the log holds of a group, and its newest good checkpoint, which counts only for a replica that the
    /// log knows. None: its create request is one of another version.
    pub fn new(
        group: PartitionId,
        mut replay: GroupReplay,
        loaded: Option<LoadedSnapshot>,
    ) -> Option<RecoveredReplica> {
        let removed = replay.removed;
        let Some((me, create)) = replay.created.take() else {
            return Some(RecoveredReplica { group, removed, created: None, loaded: None, replay });
        };
        let create = postcard::from_bytes(&create).ok()?;
        Some(RecoveredReplica { group, removed, created: Some((me, create)), loaded, replay })
    }
}

/// What a controller wants done, in order.
pub enum Effect {
    /// To a worker of this node: such inputs arrive, in their order.
    Worker(usize, worker::Input),
    /// Whether the workers may send anything for their replicas, from now on: true before the first one.
    MaySpeak(bool),
    /// These nodes were not reached, and are awaited no longer.
    Unreached(BTreeSet<NodeId>),
    /// This process runs on a copy of its directory, as that node says: the next start on this disk is told so.
    WriteCopyMark { by: NodeId, text: String },
    /// This goes into the log, behind what went there before; [`Input::once_durable`] says what follows.
    Log(Box<LogEntry>),
    /// A replica begins, or goes on: its worker hosts it.
    Start(Box<Start>),
    /// A start finds no way to a replica's state: the process must end.
    StateLost(PartitionId, StateLost),
    /// A replica has gone: its metrics go too.
    Removed(PartitionId, ReplicaId),
    /// The checkpoints of a replica that was removed go; then [`Input::Deleted`], always.
    DeleteCheckpoints(PartitionId),
    /// This is the newest map: it is kept for the next start, with [`Controller::cluster_state`].
    ///
    /// [`Controller::cluster_state`]: super::Controller::cluster_state
    Map(Arc<PartitionMap>),
    /// There is to be a link to the node, at this address.
    Link(NodeId, String),
    /// The link to the node is to close.
    Unlink(NodeId),
    /// A change of the cluster's shape has begun, as the leader of the directory sees it.
    ChangeBegun(ChangeId, Change),
    /// It has ended.
    ChangeEnded(ChangeId, ChangeOutcome),
    /// The directory holds settings that this version does not know: those in use stay.
    SettingsUnknown,
    /// The cluster's feature level is this one, or the node has kept that it was: before anything that it brings is
    /// written here, the data directory must note that older programs cannot read it.
    FeatureLevel(u32),
    /// Who may do what: for whoever connects from now on and, where it `is_followed`, for the connections that stand.
    Access { access: Arc<Access>, is_followed: bool },
    /// Some other node is asked for its map.
    AskForMap,
    /// A snapshot of another node is to become durable here: [`Input::Offered`], then [`Input::Fetched`], always.
    Fetch {
        /// Which fetch this is.
        fetch: FetchId,
        /// Of which group.
        group: PartitionId,
        /// From whom.
        from: NodeId,
        /// At least as new as this.
        least: Instance,
    },
    /// Whether the snapshot that was offered is wanted.
    Admit(FetchId, bool),
    /// All nodes are asked how they are: [`Input::View`], always.
    Survey,
    /// These groups are led there, as this node learned from others.
    Leaders(Vec<(PartitionId, NodeId)>),
    /// These nodes have an older map than the directory.
    Tell(Vec<NodeId>, Arc<DirectoryState>),
    /// The directory here is to decide: [`Input::Decided`], always.
    Decide(Box<DirectoryCommand>),
    /// The leader of a group is to propose a configuration, if the one that it is to follow is still in force.
    Configure {
        /// Who leads it.
        leader: NodeId,
        partition: PartitionId,
        /// The instance that decided the configuration which this one is to follow.
        expected: u64,
        /// Who replicates from then on.
        configuration: Configuration,
    },
    /// The leader of a group is to transfer its leadership, within the setting's time.
    TransferLeader {
        /// Who leads it.
        leader: NodeId,
        partition: PartitionId,
        /// To whom.
        to: NodeId,
    },
    /// What came of a transfer that this node was asked for.
    TransferEnded(TransferId, TransferOutcome),
    /// The node leads nothing any more that another one could lead, or waits no longer: it may end.
    Stopped,
    /// The process at the node's address is to be told which node it is: [`Input::Assigned`], always.
    Assign(NodeId, Arc<DirectoryState>),
    /// The leader of the partition is asked for its median, `by_load` for that of its newest writes: [`Input::Median`],
    /// always.
    Median { verb: VerbId, partition: PartitionId, leader: NodeId, by_load: bool },
    /// A change begins that nobody asked for: operators read of it in the log.
    Announce { what: String, reason: String },
    /// An operator is answered.
    Answer(VerbId, Box<AdminReply>),
    /// The directory is to decide what an operator asked for; [`crate::reshape::begun`] is the answer.
    Begin(VerbId, Box<DirectoryCommand>, Box<Reshaped>),
    /// The process at this address is asked who it is: [`Input::Identified`], always.
    Identify { verb: VerbId, address: String },
}

/// What is remembered by group.
pub(super) type ByGroup<T> = BTreeMap<PartitionId, T>;
