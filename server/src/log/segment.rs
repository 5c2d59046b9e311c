//! Segment files: their names, their header and the boundaries inside. Knows no records and no disk.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use coppice_client::wire::{ClusterId, NodeId};
use coppice_core::incarnation::Identity;
use coppice_core::incarnation::claim::PAST_BOOT_IDS_MAX;

/// Every write starts at a multiple of this: no sector that holds durable bytes is ever written again.
pub const BOUNDARY_BYTES: u64 = 4_096;

/// First bytes of every segment.
const MAGIC: [u8; 8] = *b"COPPLOG\n";

/// Format of header and records. From the first release on, version N reads N and N-1; formats 1
/// to 7 were never released.
pub const FORMAT: u32 = 8;

/// Bytes of the header that mean something; zeros follow up to the first boundary.
pub const HEADER_BYTES: usize = 88 + 8 * PAST_BOOT_IDS_MAX;

/// Number of a segment, from 1, never reused while the file of an older one could be taken for it.
pub type SegmentNumber = u64;

/// Random numbers of one start of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartNonces {
    /// Tells this start from every other one, also from that of a copy of the directory which counts the same
    /// incarnation. Other nodes are told it.
    pub boot_id: u64,
    /// Seeds the marks of every segment that this start opens, and is part of them. Nobody outside the node learns it,
    /// so no client can write a value that holds a mark.
    ///
    /// One salt per start, not one per segment: a segment whose header is damaged is still searched for marks, with
    /// the salt of the segment before it. Segments of one start are told apart by the number in the seed.
    pub salt: u64,
}

/// What a segment says of itself. Written together with its first records, never again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Whose log this is, and which start of that node wrote it.
    pub identity: Identity,
    /// The random numbers of that start.
    pub nonces: StartNonces,
    /// The boot ids of the starts before it, newest first, at most [`PAST_BOOT_IDS_MAX`].
    pub past_boot_ids: Vec<u64>,
    /// Its own number: a file under a wrong name is found out.
    pub segment: SegmentNumber,
    /// The lsn of its first record. Everything before was durable when the header was written, and whatever older
    /// segments hold from this lsn on no longer counts.
    pub first_lsn: u64,
    /// Whether the file was another segment before. Behind the last write is then what that one held, not zeros.
    pub reused: bool,
}

impl Header {
    /// The header as the first [`BOUNDARY_BYTES`] of the file.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(BOUNDARY_BYTES as usize);
        out.put_slice(&MAGIC);
        out.put_u32_le(FORMAT);
        out.put_u128_le(self.identity.cluster.0);
        out.put_u32_le(self.identity.node.0);
        out.put_u64_le(self.identity.incarnation);
        out.put_u64_le(self.segment);
        out.put_u64_le(self.first_lsn);
        out.put_u64_le(u64::from(self.reused));
        out.put_u64_le(self.nonces.boot_id);
        out.put_u64_le(self.nonces.salt);
        let past_boot_ids = &self.past_boot_ids[..self.past_boot_ids.len().min(PAST_BOOT_IDS_MAX)];
        out.put_u32_le(past_boot_ids.len() as u32);
        past_boot_ids.iter().for_each(|boot_id| out.put_u64_le(*boot_id));
        out.resize(HEADER_BYTES - 4, 0);
        let crc = crc32c::crc32c(&out);
        out.put_u32_le(crc);
        out.resize(BOUNDARY_BYTES as usize, 0);
        out.freeze()
    }

    /// Reads the header of the file named `segment`.
    pub fn decode(bytes: &[u8], segment: SegmentNumber) -> Result<Header, BadHeader> {
        let Some(mut head) = bytes.get(..HEADER_BYTES) else {
            return Err(if bytes.iter().all(|&byte| byte == 0) { BadHeader::Unused } else { BadHeader::Short });
        };
        if head.iter().all(|&byte| byte == 0) {
            return Err(BadHeader::Unused);
        }
        let crc = crc32c::crc32c(&head[..HEADER_BYTES - 4]);
        let mut magic = [0; 8];
        head.copy_to_slice(&mut magic);
        let format = head.get_u32_le();
        let identity = Identity {
            cluster: ClusterId(head.get_u128_le()),
            node: NodeId(head.get_u32_le()),
            incarnation: head.get_u64_le(),
        };
        let (segment_found, first_lsn) = (head.get_u64_le(), head.get_u64_le());
        let reused = head.get_u64_le() == 1;
        let nonces = StartNonces { boot_id: head.get_u64_le(), salt: head.get_u64_le() };
        let count = (head.get_u32_le() as usize).min(PAST_BOOT_IDS_MAX);
        let mut past_boot_ids: Vec<u64> = (0..PAST_BOOT_IDS_MAX).map(|_| head.get_u64_le()).collect();
        past_boot_ids.truncate(count);
        let header = Header { identity, nonces, past_boot_ids, segment: segment_found, first_lsn, reused };
        if magic != MAGIC || crc != head.get_u32_le() {
            return Err(BadHeader::Checksum);
        }
        if format != FORMAT {
            return Err(BadHeader::Format { found: format });
        }
        if header.segment != segment {
            return Err(BadHeader::Number { found: header.segment });
        }
        Ok(header)
    }
}

/// Why a file does not open as the segment that its name promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHeader {
    /// Zeros: prepared ahead and never used.
    #[error("no header: the segment was never used")]
    Unused,
    /// Ends inside the header.
    #[error("the file ends inside its header")]
    Short,
    /// Magic or checksum do not fit.
    #[error("the header's checksum does not fit")]
    Checksum,
    /// Written by another version.
    #[error("log format {found}, this program reads {FORMAT}")]
    Format {
        /// The format number found.
        found: u32,
    },
    /// Intact, but another segment's.
    #[error("the header is that of segment {found}")]
    Number {
        /// The number found.
        found: SegmentNumber,
    },
}

/// What ties a mark to one place of one node's log, as one start wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkSeed {
    /// The checksum from which the mark's own starts.
    pub crc: u32,
    /// [`StartNonces::salt`], which the mark states: 32 bits of checksum alone could be met by trying.
    pub salt: u64,
}

impl MarkSeed {
    /// Of the mark at `offset` of a segment that was opened with this `salt`.
    pub fn new(cluster: ClusterId, node: NodeId, segment: SegmentNumber, offset: u64, salt: u64) -> MarkSeed {
        let salt = if mutant!(marks_unsalted) { 0 } else { salt };
        if mutant!(checksum_no_position) {
            return MarkSeed { crc: 0, salt };
        }
        let mut place = [0; 44];
        place[..16].copy_from_slice(&cluster.0.to_le_bytes());
        place[16..20].copy_from_slice(&node.0.to_le_bytes());
        place[20..28].copy_from_slice(&segment.to_le_bytes());
        place[28..36].copy_from_slice(&offset.to_le_bytes());
        place[36..].copy_from_slice(&salt.to_le_bytes());
        MarkSeed { crc: crc32c::crc32c(&place), salt }
    }
}

/// The next boundary at or after `offset`.
pub fn boundary(offset: u64) -> u64 {
    offset.next_multiple_of(BOUNDARY_BYTES)
}

/// `00000017.seg`: the name of a segment.
pub fn file_name(segment: SegmentNumber) -> String {
    format!("{segment:08}.seg")
}

/// The number in a segment's file name; `None` for any other file.
pub fn parse_file_name(name: &str) -> Option<SegmentNumber> {
    let number = name.strip_suffix(".seg")?;
    if number.len() < 8 || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number = number.parse().ok()?;
    (file_name(number) == name && number > 0).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let identity = Identity { cluster: ClusterId(7), node: NodeId(2), incarnation: 3 };
        let nonces = StartNonces { boot_id: 77, salt: 78 };
        Header { identity, nonces, past_boot_ids: vec![76, 75], segment: 17, first_lsn: 99, reused: true }
    }

    #[test]
    fn a_header_reads_back_and_every_flipped_byte_is_seen() {
        let bytes = header().encode();
        assert_eq!(Header::decode(&bytes, 17), Ok(header()));
        for at in 0..HEADER_BYTES {
            let mut bad = bytes.to_vec();
            bad[at] ^= 0x40;
            assert!(Header::decode(&bad, 17).is_err(), "byte {at}");
        }
        for length in 0..HEADER_BYTES {
            assert!(Header::decode(&bytes[..length], 17).is_err(), "length {length}");
        }
    }

    #[test]
    fn a_file_under_the_name_of_another_is_seen() {
        assert_eq!(Header::decode(&header().encode(), 18), Err(BadHeader::Number { found: 17 }));
        assert_eq!(Header::decode(&[0; 4096], 18), Err(BadHeader::Unused));
    }

    #[test]
    fn names_parse_back_and_nothing_else_does() {
        for number in [1, 17, 99_999_999, 123_456_789_012] {
            assert_eq!(parse_file_name(&file_name(number)), Some(number));
        }
        for name in ["00000000.seg", "1.seg", "00000001.tmp", "0000001x.seg", "000000001.seg", ".seg"] {
            assert_eq!(parse_file_name(name), None, "{name}");
        }
    }
}
