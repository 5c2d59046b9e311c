//! One partition's part of a query: who asked, what, and which replica answers. Written by the coordinator's node,
//! opaque to the ordering core, read by the partition's replicas when its ticket is executed.

use bytes::{BufMut, Bytes, BytesMut};
use coppice_client::map::Entry;
use coppice_client::wire::{ClientId, NodeId, QueryRequest, Reader, ScanOptions, SubRange, WireError, put_varint};
use coppice_ordering::ReplicaId;

/// Beside the flags of [`ScanOptions`].
const HIGH: u8 = 8;

/// A bound of a range: the longest key and one byte, which makes it the first key behind.
const BOUND_BYTES_MAX: usize = coppice_client::wire::KEY_BYTES_MAX + 1;

/// A buffer that partition queries gather in: a few hundred of them with short bounds. The last of them that is kept
/// keeps it all.
const GATHERED_BYTES: usize = 16 << 10;

/// One partition's part of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionQuery {
    /// Who asked.
    pub client: ClientId,
    /// The client's number of this attempt.
    pub query: u32,
    /// The responder that the coordinator chose.
    pub replica: ReplicaId,
    /// First key.
    pub low: Bytes,
    /// First key beyond; none: the end of the key space.
    pub high: Option<Bytes>,
    /// How it is read.
    pub scan: ScanOptions,
    /// Bytes that may be sent unasked.
    pub credit: u32,
}

impl PartitionQuery {
    /// The partition query of the partition of `entry` in a client's query, which the responder answers; and what the
    /// client is to expect of it.
    pub fn plan(
        entry: &Entry,
        client: ClientId,
        request: &QueryRequest,
        (replica, node): (ReplicaId, NodeId),
    ) -> (PartitionQuery, SubRange) {
        let low = request.low.clone().max(entry.low.clone());
        let high = match (&request.high, &entry.high) {
            (Some(wanted), Some(own)) => Some(wanted.min(own).clone()),
            (wanted, own) => wanted.clone().or_else(|| own.clone()),
        };
        let part = SubRange { partition: entry.partition, low: low.clone(), high: high.clone(), node };
        let partition_query = PartitionQuery {
            client,
            query: request.query,
            replica,
            low,
            high,
            scan: request.scan,
            credit: request.credit,
        };
        (partition_query, part)
    }

    /// As bytes, in a buffer of their own.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.len_max());
        self.append_to(&mut out);
        out.freeze()
    }

    /// As bytes, in a buffer that partition queries gather in: they live and go together.
    pub fn encode_in(&self, gathered: &mut BytesMut) -> Bytes {
        if gathered.capacity() - gathered.len() < self.len_max() {
            *gathered = BytesMut::with_capacity(GATHERED_BYTES.max(self.len_max()));
        }
        self.append_to(gathered);
        gathered.split().freeze()
    }

    /// More than it takes as bytes.
    fn len_max(&self) -> usize {
        48 + self.low.len() + self.high.as_ref().map_or(0, Bytes::len)
    }

    fn append_to(&self, out: &mut BytesMut) {
        out.put_u8(self.scan.flags() | if self.high.is_some() { HIGH } else { 0 });
        out.put_u64_le(self.client.0);
        put_varint(out, u64::from(self.query));
        put_varint(out, u64::from(self.replica.0));
        for bound in std::iter::once(&self.low).chain(&self.high) {
            put_varint(out, bound.len() as u64);
            out.extend_from_slice(bound);
        }
        self.scan.put_limits(out);
        put_varint(out, u64::from(self.credit));
    }

    /// The replica that was chosen for the partition query that `bytes` hold: all replicas of a partition are given all
    /// partition queries, and only one reads on. What is no partition query is nobody's.
    pub fn responder_of(bytes: &[u8]) -> Option<ReplicaId> {
        let mut reader = Reader::new(bytes);
        let mut responder = || -> Result<u32, WireError> {
            let (_flags, _client, _query) = (reader.u8()?, reader.u64()?, reader.varint_u32()?);
            reader.varint_u32()
        };
        responder().ok().map(ReplicaId)
    }

    /// Reads what [`PartitionQuery::encode`] wrote; the bounds share its memory.
    ///
    /// # Errors
    /// The first thing that is not what it should be.
    pub fn decode(bytes: &Bytes) -> Result<PartitionQuery, WireError> {
        let mut reader = Reader::new(bytes);
        let flags = reader.u8()?;
        if flags & !(ScanOptions::FLAGS | HIGH) != 0 {
            return Err(WireError::Unknown { what: "partition query flag", value: u64::from(flags) });
        }
        let client = ClientId(reader.u64()?);
        let query = reader.varint_u32()?;
        let replica = ReplicaId(reader.varint_u32()?);
        let low = bytes.slice_ref(reader.bytes("low bound", BOUND_BYTES_MAX)?);
        let high = match flags & HIGH {
            0 => None,
            _ => Some(bytes.slice_ref(reader.bytes("high bound", BOUND_BYTES_MAX)?)),
        };
        let scan = ScanOptions::read(flags, &mut reader)?;
        let credit = reader.varint_u32()?;
        reader.finish()?;
        Ok(PartitionQuery { client, query, replica, low, high, scan, credit })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_partition_query() -> impl Strategy<Value = PartitionQuery> {
        let bound = || proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from);
        let names = (any::<u64>(), any::<u32>(), any::<u32>());
        let how = (any::<bool>(), any::<bool>(), any::<bool>(), any::<u64>(), any::<u64>(), any::<u32>());
        (names, bound(), proptest::option::of(bound()), how).prop_map(|((client, query, replica), low, high, how)| {
            let (reverse, keys_only, count_only, pairs_max, bytes_max, credit) = how;
            let (client, replica) = (ClientId(client), ReplicaId(replica));
            let scan = ScanOptions { reverse, keys_only, count_only, pairs_max, bytes_max };
            PartitionQuery { client, query, replica, low, high, scan, credit }
        })
    }

    proptest! {
        #[test]
        fn a_partition_query_round_trips(partition_query in any_partition_query()) {
            let bytes = partition_query.encode();
            prop_assert_eq!(PartitionQuery::responder_of(&bytes), Some(partition_query.replica));
            prop_assert_eq!(PartitionQuery::decode(&bytes), Ok(partition_query));
        }

        #[test]
        fn any_bytes_are_a_partition_query_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(partition_query) = PartitionQuery::decode(&Bytes::from(bytes)) {
                prop_assert_eq!(PartitionQuery::decode(&partition_query.encode()), Ok(partition_query));
            }
        }

        #[test]
        fn a_truncated_partition_query_is_an_error(
            query in any_partition_query(),
            cut in any::<proptest::sample::Index>(),
        ) {
            let bytes = query.encode();
            prop_assert!(PartitionQuery::decode(&bytes.slice(..cut.index(bytes.len()))).is_err());
        }

        #[test]
        fn partition_queries_in_one_buffer_stay_apart(
            queries in proptest::collection::vec(any_partition_query(), 0..8),
            capacity in 0..400_usize,
        ) {
            let mut gathered = BytesMut::with_capacity(capacity);
            let bytes: Vec<Bytes> = queries.iter().map(|query| query.encode_in(&mut gathered)).collect();
            for (query, bytes) in queries.into_iter().zip(bytes) {
                prop_assert_eq!(&bytes, &query.encode());
                prop_assert_eq!(PartitionQuery::decode(&bytes), Ok(query));
            }
        }
    }
}
