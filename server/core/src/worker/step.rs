//! What a worker is told, and what it asks its driver to do.

use std::sync::Arc;

use bytes::Bytes;
use coppice_btree::KeyRange;
use coppice_client::map::PartitionMap;
use coppice_client::wire::{ClientId, ClusterId, CollectRequest, MapVersion, NodeId, PartitionId, QueryRequest};
use coppice_ordering::tuning::Account;
use coppice_ordering::{Ballot, Configuration, Instance, Lsn, Record, ReplicaId, Ticket, multicast};

use super::checkpoints::{CheckpointOutcome, Storage};
use super::disk_admission::Resources;
use super::settings::WorkerSettings;
use super::tuning::Load;
use crate::checkpoint_due::Due;
use crate::failure_detector::LastHeard;
use crate::machine::Mark;
use crate::machine::directory::DirectoryState;
use crate::machine::partition::AbsorbedState;
use crate::multicast::MulticastMessage;
use crate::replica::{self, QueryPart};
use crate::replica_manager::Start;
use crate::request::{Origin, Reply, Request};
use crate::snapshot::{LoadedSnapshot, TakenSnapshot};
use crate::wire::peer::Envelope;

/// What happens to a worker.
pub enum Input {
    /// Time passed: a deadline has come.
    Tick,
    /// Everything that had come is stepped: what shares a heartbeat round, a batch or a frame leaves now.
    TurnEnd,
    /// Everything else had its turn, as [`Effect::Yield`] asks.
    Yielded {
        /// And there is more to do, at whose end the worker asks again.
        is_busy: bool,
    },
    /// The log is durable for a group up to here.
    Persisted {
        group: PartitionId,
        /// Its own count.
        lsn: Lsn,
    },
    /// Messages of a node's replicas to replicas here.
    Peers {
        /// The node that sent them, as its connection proved.
        node: NodeId,
        envelopes: Vec<Envelope>,
    },
    /// Multicast messages of another node.
    Multicast {
        /// The node that sent them, as its connection proved.
        node: NodeId,
        messages: Vec<MulticastMessage>,
    },
    /// A client, or the node itself, wants something of a group.
    Request {
        group: PartitionId,
        /// Who waits.
        origin: Origin,
        /// For what.
        request: Request,
    },
    /// A client wants a range over several partitions, ordered by a ticket.
    Query {
        /// Who waits.
        origin: Origin,
        /// Which client that is.
        client: ClientId,
        /// For what.
        request: Box<QueryRequest>,
    },
    /// A client of this worker wants a range over partitions that have replicas on this node.
    Collect {
        /// Who waits.
        origin: Origin,
        /// For what.
        range: CollectRequest,
    },
    /// The client of this part is not connected.
    Unclaimed(Box<QueryPart>),
    /// A client has connected to this worker: parts may wait for it, here and at the others.
    Greeted(ClientId),
    /// Of another worker of this node.
    Worker(Message),
    /// A message to another worker, whose queue is full.
    Undelivered(Message),
    /// A replica lives here from now on.
    Start {
        start: Box<Start>,
        /// Of its random timeouts.
        seed: u64,
        /// Counts the starts of this node.
        incarnation: u64,
    },
    /// Stop hosting this replica.
    Drop(PartitionId),
    /// Something for one replica.
    Replica(PartitionId, Box<replica::Input>),
    /// This is the newest map.
    Map(Arc<PartitionMap>),
    /// These are the cluster's settings.
    Settings(Arc<WorkerSettings>),
    /// A group is led from this node, as another part of this node learned.
    Leader(PartitionId, Option<NodeId>),
    /// A node answers on its connection, or does not.
    Answers(NodeId, bool),
    /// What there is room for, here and elsewhere.
    Resources(Resources),
    /// This process is that node of that cluster.
    Identity(NodeId, ClusterId),
    /// The other nodes have let this process in: its replicas may speak.
    MaySpeak(bool),
    /// Other nodes, as [`Effect::Watch`] asks.
    Heard {
        /// Nodes to which there is a connection that is new.
        fresh: Vec<NodeId>,
        /// When something came of each node last.
        heard: Vec<(NodeId, LastHeard)>,
    },
    /// The process of a node has ended.
    Gone(NodeId),
    /// Of the node's log and disk, a few times a second: groups for which it is time write a checkpoint.
    Storage(Storage),
    /// How busy everything was in the interval that ends now: groups are tuned by that.
    Load(Load),
    /// This group writes a checkpoint, unless it is at it.
    CheckpointNow(PartitionId),
    /// A checkpoint is written, or is not.
    Checkpointed {
        /// Of which group.
        group: PartitionId,
        number: u64,
        /// What came of it.
        written: CheckpointOutcome,
    },
    /// The children of so many splits of this group are on the disk, or need nothing of it.
    ChildrenSaved {
        group: PartitionId,
        /// How many of [`Report::Forked`] that answers.
        splits: u32,
    },
    /// The snapshot that a replica needs is on the disk, or none came.
    Snapshot(PartitionId, Option<Box<LoadedSnapshot>>),
    /// Does a replica here, of another group than this, hold the key `low`? [`Report::Held`].
    Holds {
        /// The question's number.
        asked: u64,
        group: PartitionId,
        /// The key.
        low: Bytes,
    },
}

/// What the workers of a node tell each other, through bounded queues.
pub enum Message {
    /// Messages of a node for replicas of the other worker.
    Peers {
        /// The node that sent them.
        node: NodeId,
        envelopes: Vec<Envelope>,
    },
    /// Multicast messages for groups of the other worker.
    Multicast(Vec<MulticastMessage>),
    /// A request for a group of the other worker.
    Request {
        group: PartitionId,
        /// Who waits.
        origin: Origin,
        /// For what.
        request: Request,
    },
    /// A query, for the worker of the directory.
    Query {
        /// Who waits.
        origin: Origin,
        /// Which client that is.
        client: ClientId,
        /// For what.
        request: Box<QueryRequest>,
    },
    /// An answer for a connection of the other worker.
    Reply {
        /// Of which group.
        group: PartitionId,
        /// Who waits.
        origin: Origin,
        /// What came of it.
        reply: Reply,
    },
    /// A client has connected to the other worker.
    Greeted(ClientId),
    /// A group is led anew, perhaps by who led it before: what its leader may not have heard is sent again.
    Led(PartitionId),
    /// A partition of the other worker needs to be asked whether it is sealed.
    SendSealed(PartitionId),
    /// The state of a sealed partition, for its neighbour.
    Absorb(Box<AbsorbedState>),
}

impl std::fmt::Debug for Message {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Message::Peers { node, envelopes } => write!(out, "Peers {node} {envelopes:?}"),
            Message::Multicast(messages) => write!(out, "Multicast {messages:?}"),
            Message::Request { group, origin, request } => write!(out, "Request {group} {origin:?} {request:?}"),
            Message::Query { origin, client, request } => write!(out, "Query {origin:?} {client} {request:?}"),
            Message::Reply { group, origin, .. } => write!(out, "Reply {group} {origin:?}"),
            Message::Greeted(client) => write!(out, "Greeted {client}"),
            Message::Led(group) => write!(out, "Led {group}"),
            Message::SendSealed(partition) => write!(out, "SendSealed {partition}"),
            Message::Absorb(left) => write!(out, "Absorb {} {:?}", left.partition, left.seal),
        }
    }
}

impl Message {
    /// Whether it is for a client: such messages never hold up those between replicas.
    pub fn is_for_clients(&self) -> bool {
        matches!(self, Message::Request { .. } | Message::Query { .. } | Message::Reply { .. } | Message::Greeted(_))
    }

    /// Whether it must arrive: a driver that finds no room for it tries again.
    pub fn must_arrive(&self) -> bool {
        matches!(self, Message::SendSealed(_) | Message::Absorb(_))
    }
}

/// What a worker wants done. In order, for one group; effects of different groups in any order.
pub enum Effect {
    /// Into the log; [`Input::Persisted`] says when it is durable.
    Persist {
        group: PartitionId,
        /// Its own count.
        lsn: Lsn,
        record: Record,
    },
    /// Into the log: what a group holds up to here is in its checkpoints.
    Trim(PartitionId, Instance),
    /// The group's state becomes a checkpoint: [`Input::Checkpointed`], always.
    Checkpoint {
        group: PartitionId,
        /// Counts the checkpoints of this worker.
        number: u64,
        /// Its state.
        taken: Box<TakenSnapshot>,
        /// Of which kind.
        due: Due,
    },
    /// Everything else that is to be done has its turn; [`Input::Yielded`], always.
    Yield,
    /// The other nodes hear from now on that this one has no room, or that it has.
    Full(bool),
    /// The other nodes hear that this one lives, and what was heard of them comes as [`Input::Heard`].
    Watch,
    /// To a replica on another node.
    Send(NodeId, Envelope),
    /// To another node.
    SendMulticast(NodeId, MulticastMessage),
    /// To a connection of this worker.
    Reply {
        /// Of which group.
        group: PartitionId,
        /// Which connection, and which request there.
        origin: Origin,
        /// What came of it.
        reply: Reply,
    },
    /// To the client that asked; if that is not connected, [`Input::Unclaimed`] says so.
    Part(Box<QueryPart>),
    /// To another worker of this node.
    Worker(usize, Message),
    /// To the node's controller.
    Controller(Report),
    /// This node knows who leads a group, or that nobody does.
    Leader(PartitionId, Option<NodeId>),
    /// For the log of the program.
    Note(PartitionId, Note),
    /// A query over several partitions has ended.
    QueryEnded {
        result: QueryResult,
        /// After how long.
        took: std::time::Duration,
    },
}

/// How a query over several partitions ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryResult {
    /// All parts hold.
    Completed,
    /// It came to nothing.
    Aborted,
    /// It was not begun.
    Refused,
}

/// What a controller hears of its workers.
pub enum Report {
    /// Who leads a group, as its replica here knows; none: nobody, or it has no replica here any more.
    Led(PartitionId, Option<NodeId>),
    /// What the directory has decided, at its replica here.
    Directory(Arc<DirectoryState>),
    /// A replica can go on with a snapshot only.
    NeedSnapshot {
        /// Of which group.
        group: PartitionId,
        /// The keys that it holds.
        held: KeyRange,
        /// Who has one.
        from: NodeId,
        /// At least as new as this.
        instance: Instance,
    },
    /// A replica is no part of its group any more, and nobody needs it.
    Dismissed(PartitionId),
    /// The answer to [`Input::Holds`].
    Held {
        /// The question's number.
        asked: u64,
        group: PartitionId,
        /// Whether one does.
        is_held: bool,
    },
    /// No replica of the group says anything here any more, as [`Input::Drop`] asked.
    Dropped(PartitionId),
    /// A checkpoint of a group is durable here.
    Saved(PartitionId),
    /// A partition was split, and that is decided. The group writes no checkpoint until [`Input::ChildrenSaved`].
    Forked {
        /// The parent.
        group: PartitionId,
        /// Its replica here.
        me: ReplicaId,
        /// Whether its replica here leads.
        led: bool,
        /// The children.
        mark: Mark,
    },
    /// A change of boundaries is placed in all its partitions and released.
    Released(MapVersion),
}

/// What a person who reads the log wants to know.
#[derive(Clone, Debug)]
pub enum Note {
    /// A replica here leads.
    Leads(Ballot),
    /// It does not.
    Follows(Option<ReplicaId>, Ballot),
    /// It led until now, and has promised this ballot.
    LeadsNoMore(Ballot),
    /// These replicate the group from this instance on.
    Configured(Instance, Configuration),
    /// Its log holds a promise that no election made, so it can neither vote nor lead.
    HasNoRounds(ReplicaId, Ballot),
    /// Leadership is to go to this replica, for want of room.
    TransferWhenFull(ReplicaId),
    /// It did not take it in time.
    TransferFailed(ReplicaId),
    /// A ticket is placed.
    Placed(Ticket),
    /// A batch that moved boundaries is decided.
    Moved,
    /// The next batch waits for the state of this neighbour.
    Awaits(PartitionId),
    /// It gets other batches or another window, and why.
    Tuned(Box<Account>),
    /// The coordinator, in this ballot before, wants this. Only where somebody watches it
    /// ([`super::CoordinatorHost::watch`]).
    Coordinated(Option<Ballot>, Vec<multicast::Effect>),
}
