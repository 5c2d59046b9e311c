//! Between the ids of the wire and those of the ordering core: the one place where they meet.

use coppice_client::wire::{PartitionId, Ticket};

/// A replica's name inside the core and on the wire.
pub fn replica(id: coppice_client::wire::ReplicaId) -> coppice_ordering::ReplicaId {
    coppice_ordering::ReplicaId(id.0)
}

/// A replica's name on the wire and inside the core.
pub fn wire_replica(id: coppice_ordering::ReplicaId) -> coppice_client::wire::ReplicaId {
    coppice_client::wire::ReplicaId(id.0)
}

/// A partition's name on the wire and inside the core.
pub fn core_partition(id: PartitionId) -> coppice_ordering::PartitionId {
    coppice_ordering::PartitionId(id.0)
}

/// A partition's name inside the core and on the wire.
pub fn partition(id: coppice_ordering::PartitionId) -> PartitionId {
    PartitionId(id.0)
}

/// A ticket inside the core and on the wire.
pub fn ticket(ticket: coppice_ordering::Ticket) -> Ticket {
    Ticket { round: ticket.ballot.round.0, replica: wire_replica(ticket.ballot.replica), n: ticket.n }
}
