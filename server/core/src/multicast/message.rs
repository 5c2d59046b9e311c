//! What the coordinator and the partitions' leaders say to each other, as bytes (protocol.md 4). Losing, repeating or
//! reordering multicast messages is harmless.

use bytes::Bytes;
use coppice_client::map::{Entry, PartitionMap};
use coppice_client::wire::{NodeId, PartitionId, WireError};
use coppice_ordering::multicast::{Place, SubQuery, Work};
use coppice_ordering::{Ballot, ChangeId, QueryId, ReplicaId, Round, Ticket};

use crate::wire::codec::{Body, BodyReader};

/// Between the coordinator and the leader of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MulticastMessage {
    /// The partition that it is to or from.
    pub partition: PartitionId,
    /// What it says.
    pub body: MulticastBody,
    /// It came to somebody else first, who sent it on.
    pub passed_on: bool,
}

impl MulticastMessage {
    /// A multicast message of the one who says this.
    pub fn new(partition: PartitionId, body: MulticastBody) -> MulticastMessage {
        MulticastMessage { partition, body, passed_on: false }
    }

    /// The group whose leader it is for.
    pub fn receiver(&self) -> PartitionId {
        match self.body {
            MulticastBody::Place(_) | MulticastBody::Released(_) => self.partition,
            MulticastBody::Placed(_) => PartitionId::DIRECTORY,
        }
    }
}

impl MulticastMessage {
    /// Whether `sender` may write it, by this map: a node with a replica of the partition or of the directory, of which
    /// one writes it and any may send it on. Of a partition that the map does not know it says nothing.
    pub fn may_come_from(&self, sender: NodeId, map: &PartitionMap) -> bool {
        let Some(entry) = map.group(self.partition) else { return true };
        let lives = |entry: &Entry| entry.replica_on(sender).is_some();
        lives(entry) || map.directory.as_ref().is_none_or(lives) || mutant!(sender_not_checked)
    }
}

/// Where a multicast message goes on to that came from node `sender` to node `own`, which takes `leader` for the leader
/// of the group that it is for. The sender may not know who leads: without a replica of the group it hears so only
/// every other second. Or it knows, and the two do not hear each other: then it writes to all replicas, and one of them
/// hears both. That happens once to a multicast message.
pub fn goes_on_to(
    message: &MulticastMessage,
    group: &Entry,
    leader: Option<NodeId>,
    (own, sender): (NodeId, NodeId),
) -> Option<NodeId> {
    let knows = group.replica_on(own).is_some() && !message.passed_on;
    leader.filter(|leader| knows && ![own, sender].contains(leader) && !mutant!(multicast_ends_here))
}

/// The node to send a message for `group` to: the known leader, or the replica that issued the ticket. Nodes without a
/// directory replica learn leaders late.
pub fn addressee(message: &MulticastMessage, group: Option<&Entry>, known: Option<NodeId>) -> Option<NodeId> {
    let MulticastBody::Placed(ticket) = &message.body else { return known };
    let chose = |entry: &Entry| {
        entry.replicas.iter().find(|info| info.replica.0 == ticket.ballot.replica.0).map(|info| info.node)
    };
    group.and_then(chose).filter(|_| !mutant!(placed_by_hearsay)).or(known)
}

/// The leader's node by the newest map, if that differs from `known`.
pub fn leader_learned<N: Copy + PartialEq>(place: Option<N>, known: Option<N>) -> Option<N> {
    place.filter(|_| place != known && !mutant!(leader_node_unlearned))
}

/// What a multicast message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MulticastBody {
    /// To the partition: put this into your log.
    Place(Place),
    /// From the partition: everything up to this ticket is decided here.
    Placed(Ticket),
    /// To the partition: everything up to this ticket is released or voided.
    Released(Ticket),
}

// Numbers on the wire and in the log are never reused.
const PLACE: u8 = 1;
const PLACED: u8 = 2;
const RELEASED: u8 = 3;
/// Added to these where it was passed on.
const PASSED_ON: u8 = 0x80;

const NOTHING: u8 = 0;
const QUERIES: u8 = 1;
const CHANGE: u8 = 2;

/// Longest work of a ticket for one partition. The coordinator packs 1 MiB of queries into a ticket, and one more
/// command with its keys; it becomes a batch of the partition's log.
const PLACE_BYTES_MAX: usize = 2 << 20;

/// Most multicast messages in one frame: a sender closes a frame at 16 KiB, and the shortest multicast message has 5
/// bytes.
const FRAME_MESSAGES_MAX: usize = 4_096;

/// Appends one multicast message to a frame's body.
pub fn encode(body: &mut Body, message: &MulticastMessage) {
    body.put_varint(u64::from(message.partition.0));
    let how = if message.passed_on { PASSED_ON } else { 0 };
    match &message.body {
        MulticastBody::Place(place) => {
            body.put_u8(PLACE | how);
            put_place(body, place);
        }
        MulticastBody::Placed(ticket) => {
            body.put_u8(PLACED | how);
            put_ticket(body, *ticket);
        }
        MulticastBody::Released(ticket) => {
            body.put_u8(RELEASED | how);
            put_ticket(body, *ticket);
        }
    }
}

/// Reads all multicast messages of a frame's body.
///
/// # Errors
/// The first thing that is not what it should be; the connection is then closed.
pub fn decode(body: &Bytes) -> Result<Vec<MulticastMessage>, WireError> {
    let mut reader = BodyReader::new(body);
    let mut messages = Vec::new();
    while !reader.is_empty() {
        let partition = PartitionId(reader.varint_u32()?);
        let kind = reader.u8()?;
        let body = match kind & !PASSED_ON {
            PLACE => MulticastBody::Place(place(&mut reader)?),
            PLACED => MulticastBody::Placed(ticket(&mut reader)?),
            RELEASED => MulticastBody::Released(ticket(&mut reader)?),
            other => return Err(WireError::Unknown { what: "multicast message", value: u64::from(other) }),
        };
        if messages.len() == FRAME_MESSAGES_MAX {
            let (value, max) = (FRAME_MESSAGES_MAX as u64 + 1, FRAME_MESSAGES_MAX as u64);
            return Err(WireError::Limit { what: "messages in a frame", value, max });
        }
        messages.push(MulticastMessage { partition, body, passed_on: kind & PASSED_ON != 0 });
    }
    Ok(messages)
}

/// Appends a `Place`: the same bytes in a multicast message and in the partition's log.
pub fn put_place(body: &mut Body, place: &Place) {
    put_ticket(body, place.ticket);
    body.put_u8(u8::from(place.prev.is_some()));
    if let Some(prev) = place.prev {
        put_ticket(body, prev);
    }
    match &place.work {
        Work::Nothing => body.put_u8(NOTHING),
        Work::Queries(queries) => {
            body.put_u8(QUERIES);
            body.put_varint(queries.len() as u64);
            for sub in queries {
                body.put_varint(sub.query.0);
                body.put_bytes(&sub.bytes);
            }
        }
        Work::Change { id, payload } => {
            body.put_u8(CHANGE);
            body.put_varint(id.0);
            body.put_bytes(payload);
        }
    }
}

/// Reads what [`put_place`] wrote; byte strings share the memory that is read from.
///
/// # Errors
/// The first thing that is not what it should be.
pub fn place(reader: &mut BodyReader<'_>) -> Result<Place, WireError> {
    let at = ticket(reader)?;
    let prev = match reader.u8()? {
        0 => None,
        1 => Some(ticket(reader)?),
        other => return Err(WireError::Unknown { what: "option", value: u64::from(other) }),
    };
    let before = reader.left();
    let work = match reader.u8()? {
        NOTHING => Work::Nothing,
        QUERIES => {
            let count = reader.count("queries", 2)?;
            let mut queries = Vec::with_capacity(count.min(1_024));
            for _ in 0..count {
                let query = QueryId(reader.varint()?);
                queries.push(SubQuery { query, bytes: reader.bytes("partition query length", PLACE_BYTES_MAX)? });
                if before - reader.left() > PLACE_BYTES_MAX {
                    let value = (before - reader.left()) as u64;
                    return Err(WireError::Limit { what: "ticket length", value, max: PLACE_BYTES_MAX as u64 });
                }
            }
            Work::Queries(queries)
        }
        CHANGE => {
            let id = ChangeId(reader.varint()?);
            Work::Change { id, payload: reader.bytes("change length", PLACE_BYTES_MAX)? }
        }
        other => return Err(WireError::Unknown { what: "work", value: u64::from(other) }),
    };
    Ok(Place { ticket: at, prev, work })
}

fn put_ticket(body: &mut Body, ticket: Ticket) {
    body.put_varint(ticket.ballot.round.0);
    body.put_varint(u64::from(ticket.ballot.replica.0));
    body.put_varint(ticket.n);
}

fn ticket(reader: &mut BodyReader<'_>) -> Result<Ticket, WireError> {
    let ballot = Ballot { round: Round(reader.varint()?), replica: ReplicaId(reader.varint_u32()?) };
    Ok(Ticket { ballot, n: reader.varint()? })
}

#[cfg(test)]
mod tests {
    use coppice_client::map::{ReplicaInfo, Role};
    use coppice_client::wire::{MapVersion, ReplicaId as WireReplica};
    use proptest::prelude::*;

    use super::*;

    /// A partition was handed over by the node that its coordinator, without a replica of it, takes for its leader:
    /// queries waited two seconds, and everything behind their tickets.
    #[test]
    fn a_message_to_the_former_leader_is_forwarded_once() {
        let replicas = [3, 4, 5].map(|n| ReplicaInfo { replica: WireReplica(n), node: NodeId(n), role: Role::Voter });
        let (low, high, version) = (Bytes::new(), None, MapVersion(1));
        let group = Entry { partition: PartitionId(5), low, high, version, replicas: replicas.to_vec() };
        let [outside, before, leads, third] = [2, 3, 4, 5].map(NodeId);
        let message = MulticastMessage::new(PartitionId(5), MulticastBody::Released(Ticket::default()));
        let goes = |leader, way| goes_on_to(&message, &group, leader, way);
        assert_eq!(goes(Some(leads), (before, outside)), Some(leads));
        assert_eq!(goes(Some(leads), (leads, before)), None, "it is here");
        assert_eq!(goes(None, (before, outside)), None, "nobody leads");
        // A coordinator with a replica of its own, which does not hear the leader.
        assert_eq!(goes(Some(leads), (before, third)), Some(leads));
        assert_eq!(goes(Some(leads), (outside, third)), None, "who has no replica does not know");
        let message = MulticastMessage { passed_on: true, ..message.clone() };
        for way in (1..=6).flat_map(|own| (1..=6).map(move |sender| (NodeId(own), NodeId(sender)))) {
            assert_eq!(goes_on_to(&message, &group, Some(leads), way), None, "twice");
        }
    }

    /// Simulator, seed 1204789: the directory had left the node that led it, and most nodes told each other that it
    /// leads. Every query waited for replicas that had placed its ticket.
    #[test]
    fn what_is_placed_is_told_to_who_asked() {
        let replicas = [3, 4].map(|n| ReplicaInfo { replica: WireReplica(n), node: NodeId(n), role: Role::Voter });
        let directory = Entry { partition: PartitionId::DIRECTORY, replicas: replicas.to_vec(), ..Entry::default() };
        let ticket = |replica| Ticket { ballot: Ballot { round: Round(18), replica: ReplicaId(replica) }, n: 14 };
        let to = |body, known| addressee(&MulticastMessage::new(PartitionId(5), body), Some(&directory), known);
        assert_eq!(to(MulticastBody::Placed(ticket(3)), Some(NodeId(8))), Some(NodeId(3)));
        assert_eq!(to(MulticastBody::Placed(ticket(3)), None), Some(NodeId(3)));
        assert_eq!(
            to(MulticastBody::Placed(ticket(9)), Some(NodeId(8))),
            Some(NodeId(8)),
            "it is gone: who leads now may know"
        );
        assert_eq!(to(MulticastBody::Released(ticket(3)), Some(NodeId(8))), Some(NodeId(8)), "not for the directory");
    }

    /// Simulator, seed 1102011: the map came after the first heartbeat, and nobody looked again.
    #[test]
    fn the_node_of_a_leader_is_learned_when_a_map_names_it() {
        assert_eq!(leader_learned(Some(5), None), Some(5));
        assert_eq!(leader_learned(Some(5), Some(1)), Some(5), "who led before");
        assert_eq!(leader_learned(Some(5), Some(5)), None, "it is known");
        assert_eq!(leader_learned(None, Some(1)), None, "the map does not say");
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn a_message_that_is_not_forwarded_is_caught() {
        for (mutant, test) in [
            ("multicast_ends_here", "a_message_to_the_former_leader_is_forwarded_once"),
            ("placed_by_hearsay", "what_is_placed_is_told_to_who_asked"),
            ("leader_node_unlearned", "the_node_of_a_leader_is_learned_when_a_map_names_it"),
        ] {
            planted::assert_caught(mutant, &format!("multicast::message::tests::{test}"));
        }
    }

    fn any_ticket() -> impl Strategy<Value = Ticket> {
        (any::<u64>(), any::<u32>(), any::<u64>()).prop_map(|(round, replica, n)| Ticket {
            ballot: Ballot { round: Round(round), replica: ReplicaId(replica) },
            n,
        })
    }

    fn any_work() -> impl Strategy<Value = Work> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from);
        let sub = (any::<u64>(), bytes()).prop_map(|(query, bytes)| SubQuery { query: QueryId(query), bytes });
        let change = (any::<u64>(), bytes()).prop_map(|(id, payload)| Work::Change { id: ChangeId(id), payload });
        prop_oneof![Just(Work::Nothing), proptest::collection::vec(sub, 0..4).prop_map(Work::Queries), change]
    }

    fn any_message() -> impl Strategy<Value = MulticastMessage> {
        let place = (any_ticket(), proptest::option::of(any_ticket()), any_work())
            .prop_map(|(ticket, prev, work)| MulticastBody::Place(Place { ticket, prev, work }));
        let body = prop_oneof![
            place,
            any_ticket().prop_map(MulticastBody::Placed),
            any_ticket().prop_map(MulticastBody::Released)
        ];
        let how = (any::<u32>(), any::<bool>(), body);
        how.prop_map(|(partition, passed_on, body)| MulticastMessage {
            partition: PartitionId(partition),
            body,
            passed_on,
        })
    }

    fn bytes_of(messages: &[MulticastMessage]) -> Bytes {
        let mut body = Body::default();
        messages.iter().for_each(|message| encode(&mut body, message));
        body.take_pieces().concat().into()
    }

    proptest! {
        #[test]
        fn messages_round_trip(messages in proptest::collection::vec(any_message(), 0..5)) {
            prop_assert_eq!(decode(&bytes_of(&messages)), Ok(messages));
        }

        #[test]
        fn any_bytes_are_messages_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            _ = decode(&Bytes::from(bytes));
        }
    }
}
