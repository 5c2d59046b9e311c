//! What goes into a replica and what comes out.

use coppice_btree::Cursor;
use coppice_client::wire::Position;
use coppice_ordering::multicast::Place;
use coppice_ordering::{Ballot, Configuration, ConfirmToken, Instance, Lsn, Message, Record, ReplicaId, Ticket, Time};

use crate::machine::partition::{AbsorbedState, AwaitedState};
use crate::machine::{Machine, Mark};
use crate::multicast::PartitionQuery;
use crate::request::{Origin, Reply, Request};

/// What [`super::Replica::step`] takes.
#[derive(Debug)]
pub enum Input {
    /// Time passed; wanted at [`super::Replica::deadline`].
    Tick,
    /// All inputs that arrived together were given: what was collected (reads to confirm) goes on now.
    TurnEnd,
    /// What the inputs so far ask for was sent and given to the log: batches run speculatively now, if
    /// [`crate::executor::ExecutorSettings::deferred`].
    Speculate,
    /// A peer's message.
    Peer {
        /// Who sent it.
        from: ReplicaId,
        message: Message,
    },
    /// Records of this group up to here are durable.
    Persisted(Lsn),
    /// A client's request.
    Request {
        /// Who waits.
        origin: Origin,
        /// For what.
        request: Request,
    },
    /// A snapshot of this replica, taken at this instance, is durable.
    Checkpointed(Instance),
    /// A peer's snapshot is durable and loaded.
    Installed {
        /// Its state.
        machine: Box<Machine>,
        /// Where it was taken.
        instance: Instance,
        /// What governs the next instance.
        configuration: Configuration,
        /// The instance that decided that.
        configured_at: Instance,
        /// What the replica that took it had promised.
        promised: Ballot,
    },
    /// Propose this configuration, if the one that it is to follow is still in force.
    Change {
        /// The instance that decided that one.
        expected: Instance,
        /// Who replicates from then on.
        configuration: Configuration,
    },
    /// Transfer leadership to this voter before the deadline.
    TransferLeader {
        /// Who shall lead.
        to: ReplicaId,
        /// When to give up.
        deadline: Time,
    },
    /// Nothing came from the node of this replica after `since`, or it began anew ([`coppice_ordering::Input::Lost`]).
    Lost {
        peer: ReplicaId,
        /// When its node was last heard.
        since: Time,
    },
    /// The process of this replica has ended ([`coppice_ordering::Input::Gone`]).
    Gone { peer: ReplicaId },
    /// The coordinator wants this ticket in the log.
    Place(Place),
    /// The coordinator has released or voided everything up to this ticket.
    Released(Ticket),
    /// What a sealed neighbour leaves to this partition.
    Absorb(Box<AbsorbedState>),
    /// The coordinator, beside this replica of the directory, wants its leadership confirmed from now on.
    Confirm(ConfirmToken),
}

/// A part of a query's result: this replica's, as of its ticket's place in the log (protocol.md 4, step 4).
pub struct QueryPart {
    /// The query's ticket.
    pub ticket: Ticket,
    /// Where it stands.
    pub position: Position,
    /// Who asked, and for what.
    pub partition_query: PartitionQuery,
    /// Walks over the state at that position.
    pub cursor: Box<Cursor>,
}

/// What the driver is to do, in any order.
pub enum Effect {
    /// Append to the log; answer `Persisted`.
    Persist {
        /// Its number.
        lsn: Lsn,
        record: Record,
    },
    /// Send to another replica of the group.
    Send { to: ReplicaId, message: Message },
    /// Answer a client.
    Reply {
        /// Who waits.
        origin: Origin,
        /// What came of it.
        reply: Reply,
    },
    /// This replica leads and serves.
    Leading {
        /// In this one.
        ballot: Ballot,
    },
    /// This replica follows.
    Following {
        /// Whom, if anybody was heard.
        leader: Option<ReplicaId>,
        /// The highest ballot known.
        ballot: Ballot,
    },
    /// A decided batch changed the directory.
    DirectoryChanged,
    /// A decided batch moved boundaries: children begin, a sealed partition's state goes to its neighbour, one that was
    /// taken in is to become durable (protocol.md 8).
    Moved {
        /// See [`Machine::forks`], [`Machine::seals`], [`Machine::joins`].
        mark: Mark,
    },
    /// The next batch needs what a neighbour leaves to this partition; nothing runs until [`Input::Absorb`].
    Awaits(AwaitedState),
    /// Fetch a snapshot from this replica.
    NeedSnapshot {
        /// Who offered one.
        from: ReplicaId,
        /// At or above this instance.
        instance: Instance,
    },
    /// The group's configuration from the next instance on.
    Configured {
        /// Its entry.
        instance: Instance,
        /// Who replicates.
        configuration: Configuration,
    },
    /// This replica was removed and may be deleted.
    Dismissed,
    /// The leader transfer timed out.
    TransferFailed {
        /// Who was to lead.
        to: ReplicaId,
    },
    /// Tell the coordinator that everything up to this ticket is decided here.
    Placed {
        /// The last one.
        ticket: Ticket,
    },
    /// Stream this to its client.
    Part(Box<QueryPart>),
    /// Leadership was confirmed for a moment after [`Input::Confirm`] came in.
    Confirmed(ConfirmToken),
}
