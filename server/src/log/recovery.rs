//! Reading a log back: what is good, what is a torn tail, what is damage. Pure, over any [`Disk`].

use std::collections::{BTreeMap, VecDeque};

use coppice_core::replay::{BatchKey, Entry, batch_ballot, batch_key};

use super::core::{FileName, Past};
use super::disk::Disk;
use super::ids::{Ballot, PartitionId};
use super::record::{self, BadRecord, Decoded, LENGTH_BYTES};
use super::segment::{BOUNDARY_BYTES, BadHeader, HEADER_BYTES, Header, MarkSeed, SegmentNumber, boundary};
use super::segment_references::{RewriteTarget, SegmentReferences};
use super::writer::LogError;
use coppice_client::wire::{ClusterId, NodeId};

/// A bad byte where everything had been durable. The node must not vote: what it promised is lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: damaged at byte {offset}: {reason}")]
pub struct Damage {
    /// The file, relative to the log directory.
    pub file: FileName,
    /// Where the first record that cannot be read begins.
    pub offset: u64,
    /// What is wrong there.
    pub reason: BadPlace,
}

/// What is wrong at a place of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPlace {
    /// A segment's header.
    #[error(transparent)]
    Header(#[from] BadHeader),
    #[error(transparent)]
    Record(#[from] BadRecord),
    /// A whole file.
    #[error("the file is missing")]
    File,
    /// Intact, but written by another node.
    #[error("this segment belongs to node {node} of cluster {cluster}")]
    Foreign {
        /// The cluster that wrote it.
        cluster: ClusterId,
        /// The node that wrote it.
        node: NodeId,
    },
}

/// Reads the batches of a segment that are to be carried, each with its lsn, in log order; of several copies of one
/// batch only the one of the highest ballot.
///
/// # Errors
/// [`LogError::Damage`] if the segment cannot be read to its end; the disk's errors.
pub(super) fn read_batches<D: Disk>(disk: &mut D, rewrite: &RewriteTarget) -> Result<Vec<(u64, Entry)>, LogError> {
    let file = FileName::Segment(rewrite.segment);
    let bytes = disk.read(file, usize::MAX)?;
    let damage = |offset, reason| LogError::from(Damage { file, offset, reason });
    let header = Header::decode(&bytes, rewrite.segment).map_err(|reason| damage(0, reason.into()))?;
    let mut newest: BTreeMap<(PartitionId, BatchKey), (u64, Ballot, Entry)> = BTreeMap::new();
    let mut sink = |lsn, _, entry: Entry| {
        let Entry::Group { group, record } = &entry else { return };
        let Some(key) = batch_key(record) else { return };
        if rewrite.needed.get(group).is_none_or(|trimmed| key.0 <= *trimmed) {
            return;
        }
        let (key, ballot) = ((*group, key), batch_ballot(record));
        if newest.get(&key).is_none_or(|(_, known, _)| *known <= ballot) {
            newest.insert(key, (lsn, ballot, entry));
        }
    };
    let mut walk = Walk::new(Some((header.identity.cluster, header.identity.node)), &mut sink);
    (walk.next_lsn, walk.salt) = (header.first_lsn, Some(header.nonces.salt));
    let (offset, reason) = walk.segment(&header, &bytes, rewrite.end_lsn);
    if walk.next_lsn < rewrite.end_lsn {
        return Err(damage(offset, reason.unwrap_or(BadRecord::Missing).into()));
    }
    // The segments behind it are open: all of this one was durable before.
    walk.prove(rewrite.end_lsn.saturating_sub(1));
    let mut batches: Vec<(u64, Entry)> = newest.into_values().map(|(lsn, _, entry)| (lsn, entry)).collect();
    batches.sort_by_key(|(lsn, _)| *lsn);
    Ok(batches)
}

/// What recovery found and did not use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The file with the torn tail.
    pub file: FileName,
    /// Where it begins.
    pub offset: u64,
    /// What was found there.
    pub reason: BadPlace,
}

/// Where the good prefix ends.
#[derive(Clone, Debug)]
struct Stop {
    file: FileName,
    offset: u64,
    reason: BadPlace,
}

/// A log read back.
pub(super) struct Recovered {
    /// What the next segment continues.
    pub(super) past: Past,
    /// The torn tail, if there was one.
    pub(super) cut: Option<Cut>,
    /// The start of the node that wrote the newest segment.
    pub(super) incarnation: u64,
    /// The segment behind that one whose header cannot be read, if there is one.
    pub(super) behind: Option<Damage>,
}

struct Unproven {
    segment: SegmentNumber,
    lsn: u64,
    crc: u32,
    end: u64,
    carried: bool,
    entry: Entry,
}

struct Walk<'a> {
    owner: Option<(ClusterId, NodeId)>,
    references: SegmentReferences,
    next_lsn: u64,
    /// The checksum of the last record; `None` before the first mark of the oldest segment.
    chain: Option<u32>,
    /// The checksum from which that of the next record starts.
    link: u32,
    /// The salt of the segment being read; where its header is lost, that of the one before it.
    salt: Option<u64>,
    /// Records that no mark has proven durable yet: at most one write.
    buffer: VecDeque<Unproven>,
    proven: u64,
    proven_chain: u32,
    /// Where the last proven record ends.
    proven_end: (SegmentNumber, u64),
    /// The highest lsn that any mark or header says was durable.
    highest_mark: u64,
    sink: &'a mut dyn FnMut(u64, bool, Entry),
}

/// The segments of a directory.
struct Files {
    leftovers: Vec<FileName>,
    /// What is wrong with the segment just below the run, if there is one; `judge` checks that it is not needed.
    passed: Option<BadHeader>,
    /// The segments to walk, contiguous, each with its header; the last one's is good.
    run: Vec<(SegmentNumber, Result<Header, BadHeader>)>,
    /// Segments after the run: prepared ahead, or with a first write that was torn.
    unused: Vec<(SegmentNumber, BadHeader)>,
}

/// Walks the log of `owner` (`None`: whoever's it is), gives every good record to `sink` with its lsn and whether it is
/// a carried copy, and returns what a new segment continues.
///
/// # Errors
/// [`LogError::Damage`] if something durable cannot be read; the disk's errors.
pub(super) fn recover<D: Disk>(
    disk: &mut D,
    owner: Option<(ClusterId, NodeId)>,
    sink: &mut dyn FnMut(u64, bool, Entry),
) -> Result<Recovered, LogError> {
    let files = list(disk, owner)?;
    let mut walk = Walk::new(owner, sink);
    let stop = walk.all(disk, &files)?;
    walk.judge(&files, &stop)?;
    let torn = !stop.is_clean();
    let Walk { buffer, references, proven, proven_chain, proven_end, sink, .. } = walk;
    let last =
        files.run.last().map(|(last, _)| (*last, if proven_end.0 == *last { proven_end.1 } else { BOUNDARY_BYTES }));
    let mut leftovers = files.leftovers;
    leftovers.extend(files.unused.iter().map(|(number, _)| FileName::Segment(*number)));
    let mut tail = Vec::new();
    for Unproven { lsn, carried, entry, .. } in buffer {
        sink(lsn, carried, entry.clone());
        tail.push((carried, entry));
    }
    let cut = torn.then_some(Cut { file: stop.file, offset: stop.offset, reason: stop.reason });
    let newest = files.run.last().and_then(|(_, header)| header.as_ref().ok());
    let incarnation = newest.map_or(0, |header| header.identity.incarnation);
    let boot_ids =
        newest.map_or_else(Vec::new, |header| [&[header.nonces.boot_id], &header.past_boot_ids[..]].concat());
    let behind = files.unused.first().map(|(number, reason)| {
        let file = FileName::Segment(*number);
        Damage { file, offset: 0, reason: (*reason).into() }
    });
    Ok(Recovered {
        past: Past { references, proven, chain: proven_chain, tail, last, boot_ids, leftovers },
        cut,
        incarnation,
        behind,
    })
}

fn list<D: Disk>(disk: &mut D, owner: Option<(ClusterId, NodeId)>) -> Result<Files, LogError> {
    let mut files = Files { leftovers: Vec::new(), passed: None, run: Vec::new(), unused: Vec::new() };
    let mut headers = Vec::new();
    for file in disk.list()? {
        match file {
            FileName::Segment(number) => {
                let bytes = disk.read(file, HEADER_BYTES)?;
                headers.push((number, Header::decode(&bytes, number)));
            }
            FileName::Temporary(_) => files.leftovers.push(file),
            FileName::Old(_) => {}
        }
    }
    headers.sort_by_key(|(number, _)| *number);
    for (number, header) in &headers {
        // Intact, so no write was torn here: it is not this log's file, or not for this program.
        if let Err(reason @ (BadHeader::Number { .. } | BadHeader::Format { .. })) = *header
            && !mutant!(wrong_file_unused)
        {
            return Err(Damage { file: FileName::Segment(*number), offset: 0, reason: reason.into() }.into());
        }
        if let (Ok(header), Some(owner)) = (header, owner)
            && (header.identity.cluster, header.identity.node) != owner
        {
            let reason = BadPlace::Foreign { cluster: header.identity.cluster, node: header.identity.node };
            return Err(Damage { file: FileName::Segment(*number), offset: 0, reason }.into());
        }
    }
    let Some(last) = headers.iter().rposition(|(_, header)| header.is_ok()) else {
        // A log is born whole, by a rename: it is never found without a good header.
        return Err(match headers.first() {
            Some((number, Err(reason))) => {
                Damage { file: FileName::Segment(*number), offset: 0, reason: (*reason).into() }.into()
            }
            _ => Damage { file: FileName::Segment(1), offset: 0, reason: BadPlace::File }.into(),
        });
    };
    let after = headers.split_off(last + 1);
    files.unused = after.into_iter().filter_map(|(number, header)| Some((number, header.err()?))).collect();
    // What lies below a gap is what a drop, cut short, left over; `judge` checks that the gap was meant.
    let gap = headers.windows(2).rposition(|pair| pair[1].0 != pair[0].0 + 1).map_or(0, |at| at + 1);
    // So is one that a later start passed over, once the segments below it are dropped: prepared and never used, or
    // with a first write that was torn.
    let passed = headers[gap..].iter().take_while(|(_, header)| header.is_err()).count();
    files.passed = headers[..gap + passed].last().and_then(|(_, header)| header.as_ref().err().copied());
    files.leftovers.extend(headers.drain(..gap + passed).map(|(number, _)| FileName::Segment(number)));
    files.run = headers;
    Ok(files)
}

impl<'a> Walk<'a> {
    fn new(owner: Option<(ClusterId, NodeId)>, sink: &'a mut dyn FnMut(u64, bool, Entry)) -> Walk<'a> {
        Walk {
            owner,
            references: SegmentReferences::default(),
            next_lsn: 0,
            chain: None,
            link: 0,
            salt: None,
            buffer: VecDeque::new(),
            proven: 0,
            proven_chain: 0,
            proven_end: (0, 0),
            highest_mark: 0,
            sink,
        }
    }

    /// Walks every segment; after the first bad place only marks are looked for.
    fn all<D: Disk>(&mut self, disk: &mut D, files: &Files) -> Result<Stop, LogError> {
        let mut stop = None;
        for (at, (number, header)) in files.run.iter().enumerate() {
            let file = FileName::Segment(*number);
            // A newer segment says where it begins; what older ones hold from there on was written again.
            let newer = files.run[at + 1..].iter().filter_map(|(_, header)| Some(header.as_ref().ok()?.first_lsn));
            let limit = newer.min().unwrap_or(u64::MAX);
            let bytes = disk.read(file, usize::MAX)?;
            let header = match header {
                Ok(header) => header,
                // Its one write was not durable when a later start wrote it again: nothing of it counts.
                Err(_) if stop.is_none() && self.next_lsn == limit => {
                    self.references.begin_segment(*number, limit);
                    continue;
                }
                Err(reason) => {
                    stop.get_or_insert(Stop { file, offset: 0, reason: (*reason).into() });
                    self.scan_marks(*number, &bytes, 0);
                    continue;
                }
            };
            self.owner.get_or_insert((header.identity.cluster, header.identity.node));
            self.salt = Some(header.nonces.salt);
            self.highest_mark = self.highest_mark.max(header.first_lsn.saturating_sub(1));
            if at == 0 {
                self.next_lsn = header.first_lsn;
                self.proven = header.first_lsn.saturating_sub(1);
            }
            if stop.is_some() {
                self.scan_marks(*number, &bytes, 0);
                continue;
            }
            // A header is written when everything before it is durable, as a mark is.
            self.prove(header.first_lsn.saturating_sub(1));
            self.references.begin_segment(*number, header.first_lsn);
            let (offset, reason) = self.segment(header, &bytes, limit);
            self.references.end_segment(*number, bytes.len() as u64);
            let newest = at + 1 == files.run.len();
            if newest || self.next_lsn < limit {
                self.scan_marks(*number, &bytes, offset);
                // If this segment ends well and the next one's header is bad, that is the place to name.
                let complete = reason.is_none() && self.highest_mark < self.next_lsn;
                if !complete || !matches!(files.run.get(at + 1), Some((_, Err(_)))) {
                    stop = Some(Stop { file, offset, reason: reason.unwrap_or(BadRecord::Missing).into() });
                }
            }
        }
        let mut stop = stop.expect("the newest segment ends somewhere");
        self.unused(disk, files, &mut stop)?;
        Ok(stop)
    }

    /// Looks for marks in files without a good header: one whose first write was torn holds none that says more.
    fn unused<D: Disk>(&mut self, disk: &mut D, files: &Files, stop: &mut Stop) -> Result<(), LogError> {
        for (number, reason) in &files.unused {
            let bytes = disk.read(FileName::Segment(*number), usize::MAX)?;
            let before = self.highest_mark;
            self.scan_marks(*number, &bytes, 0);
            let missing = self.highest_mark > before && self.highest_mark >= self.next_lsn;
            if missing && stop.is_clean() {
                *stop = Stop { file: FileName::Segment(*number), offset: 0, reason: (*reason).into() };
            }
        }
        Ok(())
    }

    /// Walks one segment up to the record `limit`. Returns where it stopped, and why if not at a clean end.
    fn segment(&mut self, header: &Header, bytes: &[u8], limit: u64) -> (u64, Option<BadRecord>) {
        let number = header.segment;
        let mut offset = BOUNDARY_BYTES;
        while self.next_lsn < limit && offset < bytes.len() as u64 {
            match self.record(number, bytes, offset) {
                Ok(Some(length)) => offset += length as u64,
                // Zeros at a boundary: nothing was written from here on. Elsewhere: the rest of a write's last sector.
                Ok(None) if boundary(offset) == offset => break,
                Ok(None) => offset = boundary(offset),
                // Too near the boundary for a whole length: zeros that end a write, and the first bytes of the next.
                Err(_) if ends_short(bytes, offset) => offset = boundary(offset),
                // What the file held before it became this segment, or a write whose first block never came.
                Err(_) if header.reused && boundary(offset) == offset => break,
                Err(bad) => return (offset, Some(bad)),
            }
        }
        (offset, None)
    }

    fn record(&mut self, number: SegmentNumber, bytes: &[u8], offset: u64) -> Result<Option<usize>, BadRecord> {
        let seed = self.mark_seed(number, offset).expect("owner and salt are those of the segment's header");
        let Some((length, crc, decoded)) = record::decode(&bytes[offset as usize..], self.link, seed)? else {
            return Ok(None);
        };
        match decoded {
            Decoded::Mark { next_lsn, durable, chain } => {
                let expected = self.next_lsn;
                if next_lsn != expected || durable >= expected {
                    return Err(BadRecord::Order { found: next_lsn, expected });
                }
                let linked = self.chain.is_none_or(|known| known == chain) || mutant!(checksum_no_position);
                if !linked {
                    return Err(BadRecord::Checksum);
                }
                if self.chain.is_none() {
                    self.proven_chain = chain;
                }
                self.chain = Some(chain);
                self.link = crc;
                self.prove(durable);
            }
            Decoded::Entry { lsn, carried, entry } => {
                if lsn != self.next_lsn || self.chain.is_none() {
                    return Err(BadRecord::Order { found: lsn, expected: self.next_lsn });
                }
                self.chain = Some(crc);
                self.link = crc;
                self.next_lsn += 1;
                let end = offset + length as u64;
                self.buffer.push_back(Unproven { segment: number, lsn, crc, end, carried, entry });
            }
        }
        Ok(Some(length))
    }

    /// A mark says that everything up to `durable` was durable: it counts from now on.
    fn prove(&mut self, durable: u64) {
        self.highest_mark = self.highest_mark.max(durable);
        while let Some(record) = self.buffer.pop_front_if(|record| record.lsn <= durable) {
            self.references.note(record.segment, record.lsn, record.carried, &record.entry);
            (self.proven, self.proven_chain) = (record.lsn, record.crc);
            self.proven_end = (record.segment, record.end);
            (self.sink)(record.lsn, record.carried, record.entry);
        }
    }

    fn mark_seed(&self, number: SegmentNumber, offset: u64) -> Option<MarkSeed> {
        let (cluster, node) = self.owner?;
        Some(MarkSeed::new(cluster, node, number, offset, self.salt?))
    }

    /// Looks for marks at every boundary from `offset` on: each says how much there must be before it.
    fn scan_marks(&mut self, number: SegmentNumber, bytes: &[u8], offset: u64) {
        for at in (boundary(offset)..bytes.len() as u64).step_by(BOUNDARY_BYTES as usize) {
            // A mark's seed is its place, so that it can be read without what stood before it.
            let Some(seed) = self.mark_seed(number, at) else { return };
            if let Some(durable) = record::decode_mark(&bytes[at as usize..], seed) {
                self.highest_mark = self.highest_mark.max(durable);
            }
        }
    }

    /// A bad place above the highest mark is a torn tail; at or below it, damage.
    fn judge(&self, files: &Files, stop: &Stop) -> Result<(), Damage> {
        let damage = || Damage { file: stop.file, offset: stop.offset, reason: stop.reason };
        if mutant!(refuse_torn_tail) && !stop.is_clean() {
            return Err(damage());
        }
        if self.highest_mark >= self.next_lsn && !mutant!(cut_at_first_bad) {
            return Err(damage());
        }
        // Segments may go as soon as `Kept` is durable, before any mark says so.
        let unproven = self.buffer.iter().filter_map(|record| match record.entry {
            Entry::Kept { segment } => Some(segment),
            _ => None,
        });
        let kept = unproven.chain([self.references.kept()]).max().unwrap_or(1);
        let (oldest, _) = files.run.first().expect("a run is not empty");
        if *oldest > kept {
            let file = FileName::Segment(oldest - 1);
            let reason = files.passed.map_or(BadPlace::File, BadPlace::from);
            return Err(Damage { file, offset: 0, reason });
        }
        Ok(())
    }
}

/// Whether a write may have ended here with fewer zeros behind it than a length has bytes.
fn ends_short(bytes: &[u8], offset: u64) -> bool {
    let boundary = boundary(offset);
    let zeros = bytes.get(offset as usize..boundary as usize);
    let short = (1..LENGTH_BYTES).contains(&(boundary - offset)) && !mutant!(length_over_boundary);
    short && zeros.is_some_and(|zeros| zeros.iter().all(|&byte| byte == 0))
}

impl Stop {
    /// Zeros where the next write would begin.
    fn is_clean(&self) -> bool {
        self.reason == BadPlace::Record(BadRecord::Missing)
    }
}
