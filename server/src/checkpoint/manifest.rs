//! What a snapshot says of itself. Pure.

use bytes::{Buf, BufMut, Bytes};
use coppice_btree::Digest;
use coppice_client::wire::{ClusterId, MapVersion, PartitionId};
use coppice_core::snapshot::Head;
use coppice_ordering::{Ballot, Instance, Ticket};

/// First bytes of every manifest.
const MAGIC: [u8; 8] = *b"COPPSNAP";

/// Format of manifest and stream. From the first release on, version N reads N and N-1; formats 1 to
/// 3 were never released.
const FORMAT: u32 = 4;

/// The end of a snapshot: with it, its chunks are complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Where and when.
    pub head: Head,
    /// Number of chunks.
    pub chunks: u64,
    /// Bytes of all chunks.
    pub bytes: u64,
    /// crc32c of all chunks, one after the other.
    pub crc: u32,
    /// Number of pairs.
    pub pairs: u64,
    /// Digest of the pairs, as the tree counts it.
    pub digest: Digest,
}

impl Manifest {
    /// The manifest as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(160 + self.head.low.len());
        out.put_slice(&MAGIC);
        out.put_u32_le(FORMAT);
        out.put_u128_le(self.head.cluster.0);
        out.put_u32_le(self.head.partition.0);
        out.put_u64_le(self.head.instance.0);
        out.put_u64_le(self.head.map_version.0);
        let ticket = self.head.last_ticket.unwrap_or_default();
        out.put_u8(u8::from(self.head.last_ticket.is_some()));
        out.put_u64_le(ticket.ballot.round.0);
        out.put_u32_le(ticket.ballot.replica.0);
        out.put_u64_le(ticket.n);
        for number in [self.chunks, self.bytes, self.pairs, self.digest.0] {
            out.put_u64_le(number);
        }
        out.put_u32_le(self.crc);
        out.put_u8(u8::from(self.head.high.is_some()));
        for key in [Some(&self.head.low), self.head.high.as_ref()].into_iter().flatten() {
            out.put_u32_le(key.len() as u32);
            out.put_slice(key);
        }
        let crc = crc32c::crc32c(&out);
        out.put_u32_le(crc);
        out
    }

    /// Reads a manifest; `None` if anything is wrong with it.
    pub fn decode(bytes: &[u8]) -> Option<Manifest> {
        let (mut rest, crc) = bytes.split_last_chunk::<4>()?;
        if crc32c::crc32c(rest) != u32::from_le_bytes(*crc) || !rest.starts_with(&MAGIC) {
            return None;
        }
        let rest = &mut rest;
        rest.advance(MAGIC.len());
        if rest.try_get_u32_le().ok()? != FORMAT {
            return None;
        }
        let cluster = ClusterId(rest.try_get_u128_le().ok()?);
        let partition = PartitionId(rest.try_get_u32_le().ok()?);
        let instance = Instance(rest.try_get_u64_le().ok()?);
        let map_version = MapVersion(rest.try_get_u64_le().ok()?);
        let has_ticket = rest.try_get_u8().ok()?;
        let (round, replica) = (rest.try_get_u64_le().ok()?, rest.try_get_u32_le().ok()?);
        let ticket = Ticket { ballot: Ballot::new(round, replica), n: rest.try_get_u64_le().ok()? };
        let mut numbers = [0; 4];
        for number in &mut numbers {
            *number = rest.try_get_u64_le().ok()?;
        }
        let [chunks, bytes, pairs, digest] = numbers;
        let crc = rest.try_get_u32_le().ok()?;
        let has_high = rest.try_get_u8().ok()?;
        let low = get_key(rest)?;
        let high = if has_high == 1 { Some(get_key(rest)?) } else { None };
        let last_ticket = (has_ticket == 1).then_some(ticket);
        let head = Head { cluster, partition, instance, low, high, map_version, last_ticket };
        rest.is_empty().then_some(Manifest { head, chunks, bytes, crc, pairs, digest: Digest(digest) })
    }
}

fn get_key(rest: &mut &[u8]) -> Option<Bytes> {
    let length = rest.try_get_u32_le().ok()?;
    let (key, after) = rest.split_at_checked(length as usize)?;
    *rest = after;
    Some(Bytes::copy_from_slice(key))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn manifest() -> impl Strategy<Value = Manifest> {
        let key = || vec(any::<u8>(), 0..40).prop_map(Bytes::from);
        let ticket = (any::<u64>(), any::<u32>(), any::<u64>())
            .prop_map(|(round, replica, n)| Ticket { ballot: Ballot::new(round, replica), n });
        let head = (any::<(u128, u32, u64, u64)>(), key(), proptest::option::of(key()), proptest::option::of(ticket))
            .prop_map(|((cluster, partition, instance, version), low, high, last_ticket)| Head {
                cluster: ClusterId(cluster),
                partition: PartitionId(partition),
                instance: Instance(instance),
                low,
                high,
                map_version: MapVersion(version),
                last_ticket,
            });
        (head, any::<(u64, u64, u32, u64, u64)>()).prop_map(|(head, (chunks, bytes, crc, pairs, digest))| Manifest {
            head,
            chunks,
            bytes,
            crc,
            pairs,
            digest: Digest(digest),
        })
    }

    proptest! {
        #[test]
        fn a_manifest_reads_back_and_nothing_else_does(
            manifest in manifest(), at: prop::sample::Index, bit in 0..8, noise in vec(any::<u8>(), 0..200),
        ) {
            let mut bytes = manifest.encode();
            prop_assert_eq!(Manifest::decode(&bytes), Some(manifest));
            let at = at.index(bytes.len());
            prop_assert_eq!(Manifest::decode(&bytes[..at]), None);
            bytes[at] ^= 1_u8 << bit;
            prop_assert_eq!(Manifest::decode(&bytes), None);
            prop_assert_eq!(Manifest::decode(&noise), None);
        }
    }
}
