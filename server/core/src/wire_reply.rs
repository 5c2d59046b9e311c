//! Replies in the words of the wire: what a connection sends for each. It knows neither sockets nor when something is
//! written.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use coppice_btree::Value;
use coppice_client::map::PartitionMap;
use coppice_client::wire::{self, CommandRefusal, NodeId, PackReply, PartitionId, QueryCompleted, QueryPlan};

use crate::cost::Charge;
use crate::request::{Refusal, Reply};
use crate::scan::RangeJob;

/// What a client is asked to wait when a queue is full: a flush or two, after which there is room.
const RETRY_AFTER: Duration = Duration::from_millis(5);

/// Why an operation of a newer version is refused.
const OLD_NODES: &str = "the cluster is at feature_level 1, where nodes of an older version may not know this \
                         operation: raise it to 2 when all nodes run this version";

/// What a connection does for a reply.
pub enum WireReply {
    /// Sends this answer, in a frame with others. The request has ended.
    Answer(Bytes),
    /// Encodes these values and sends them, in a frame with others. The request has ended.
    Values(ReadValues),
    /// Streams chunks as far as the client's credit reaches.
    Range(Box<RangeJob>),
    /// Sends the plan of a query, which goes on.
    Plan(Box<QueryPlan>),
    /// Says that the parts of a query are its result. The request has ended.
    Completed(QueryCompleted),
    /// Says why there is no result. The request has ended.
    Refused(wire::Refusal),
    /// Nothing: it is for nobody outside of the node. The request has ended.
    Nothing,
}

/// Values that were read, not encoded yet.
pub struct ReadValues {
    partition: PartitionId,
    instance: u64,
    values: Vec<Option<Value>>,
    left_out: usize,
    /// Until they are encoded; what is encoded is charged anew.
    _charge: Charge,
}

impl ReadValues {
    /// Bytes of the values.
    pub fn bytes(&self) -> usize {
        self.values.iter().flatten().map(|value| value.len()).sum()
    }

    /// As an answer.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(64 + self.bytes() + 8 * self.values.len());
        let mut answer = PackReply::read(&mut out, self.partition, self.instance, 0);
        self.values.iter().for_each(|value| answer.value(value.as_deref()));
        (0..self.left_out).for_each(|_| answer.refused(CommandRefusal::Later));
        answer.finish_split()
    }
}

/// The refusal that says: a queue is full, and which.
pub fn busy(text: impl Into<String>) -> wire::Refusal {
    wire::Refusal::Busy { retry_after: RETRY_AFTER, text: text.into() }
}

impl WireReply {
    /// What a client hears for a reply of `partition`, from a node with this map, which knows of a leader what `hint`
    /// says.
    pub fn new(
        partition: PartitionId,
        reply: Reply,
        map: impl FnOnce() -> Arc<PartitionMap>,
        hint: impl FnOnce(Refusal) -> Option<NodeId>,
    ) -> WireReply {
        let mut out = BytesMut::new();
        match reply {
            Reply::Pack(answer) => WireReply::Answer(answer),
            Reply::Opened(session) => {
                let mut answer = PackReply::new(&mut out, session.partition, session.instance, session.index);
                answer.opened();
                WireReply::Answer(answer.finish_split())
            }
            Reply::Read { instance, values, left_out, charge } => {
                let instance = instance.0;
                WireReply::Values(ReadValues { partition, instance, values, left_out, _charge: charge })
            }
            Reply::Looks { instance, looks, .. } => {
                let mut answer = PackReply::read(&mut out, partition, instance.0, 0);
                looks.iter().for_each(|look| answer.result(look));
                WireReply::Answer(answer.finish_split())
            }
            Reply::Validated { instance, unchanged } => {
                let mut answer = PackReply::read(&mut out, partition, instance.0, 0);
                unchanged.into_iter().for_each(|unchanged| answer.validated(unchanged));
                WireReply::Answer(answer.finish_split())
            }
            Reply::Range { instance, cursor, range, version } => {
                WireReply::Range(Box::new(RangeJob::new(partition, instance, cursor, range).versioned(version)))
            }
            Reply::Collected { parts, range } => {
                RangeJob::collected(parts, &*range).map_or(WireReply::Nothing, |job| WireReply::Range(Box::new(job)))
            }
            Reply::QueryPlan(cut) => WireReply::Plan(cut),
            Reply::Completed { ticket } => WireReply::Completed(QueryCompleted { ticket }),
            Reply::Aborted { text, unplaced } => WireReply::Refused(wire::Refusal::Aborted { text, unplaced }),
            Reply::Refused(refusal) => WireReply::Refused(match refusal {
                Refusal::NotLeader { .. } => wire::Refusal::NotLeader { partition, hint: hint(refusal) },
                Refusal::Busy(text) => busy(text),
                Refusal::WrongPartition => wrong_partition(&map(), partition),
                Refusal::SessionExpired => wire::Refusal::SessionExpired,
                Refusal::Full(why) => wire::Refusal::Full { text: why.to_string() },
                Refusal::FeatureLevel => wire::Refusal::Unavailable { text: OLD_NODES.into() },
            }),
            Reply::Unsure { hint: leader } => {
                let hint = hint(Refusal::NotLeader { hint: leader });
                WireReply::Refused(wire::Refusal::Deposed { partition, hint })
            }
            Reply::CollectedParts { .. } | Reply::Directory(_) => WireReply::Nothing,
        }
    }
}

/// The refusal that says: another partition, by this map.
fn wrong_partition(map: &PartitionMap, group: PartitionId) -> wire::Refusal {
    // What changed together with it: of a split, both parts.
    let version = map.entry(group).map(|entry| entry.version);
    let together = map.partitions.iter().filter(|entry| Some(entry.version) == version);
    wire::Refusal::WrongPartition { partition: group, version: map.version, entries: together.cloned().collect() }
}
