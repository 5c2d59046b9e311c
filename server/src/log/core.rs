//! The writer's decisions: which bytes go where, in which order, and when a segment may go. Pure: it emits
//! [`FileEffect`]s and is told when they have been carried out. It knows no thread, no clock and no file system.

use std::collections::VecDeque;

use bytes::Bytes;
use coppice_core::incarnation::Identity;
use coppice_core::incarnation::claim::PAST_BOOT_IDS_MAX;
use coppice_core::replay::Entry;

use super::ids::PartitionId;
use super::record::{self, Gather, entry_bytes};
use super::segment::{BOUNDARY_BYTES, Header, MarkSeed, SegmentNumber, StartNonces, boundary};
use super::segment_references::{RewriteTarget, SegmentReferences};

/// Sizes of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of the segment that each start opens: small, so that a start is quick.
    pub first_bytes: u64,
    /// Bytes of every other segment (`log.segment_bytes`).
    pub segment_bytes: u64,
    /// Segments prepared ahead (`log.segments_ahead`).
    pub segments_ahead: usize,
}

impl Default for Geometry {
    fn default() -> Geometry {
        Geometry { first_bytes: 1 << 20, segment_bytes: 64 << 20, segments_ahead: 1 }
    }
}

/// Files kept for segments to come at most; what two checkpoints cover frees at once what was written between them.
const POOL_SEGMENTS_MAX: usize = 64;

/// Segments that a log may have, beside twice what is needed in them, before the oldest one's batches are carried.
const SPARE_SEGMENTS: u64 = 2;

/// Bytes of carried batches that one write takes along, or one batch more: votes wait for them.
const CARRIED_BYTES_MAX: usize = 256 << 10;

/// Batches of an old segment, each with its lsn, in that order.
type Batches = VecDeque<(u64, Entry)>;

/// A file of the log directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileName {
    /// `00000017.seg`.
    Segment(SegmentNumber),
    /// `00000017.tmp`: not part of the log until it is renamed.
    Temporary(SegmentNumber),
    /// `old/00000017.seg`: trimmed, kept for inspection (`log.keep = "all"`).
    Old(SegmentNumber),
}

/// What the log asks of a disk. The effects of one call are carried out in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileEffect {
    /// A new file of `bytes` zeros, written out, replacing one of that name.
    Create {
        file: FileName,
        /// Its length.
        bytes: u64,
    },
    /// Writes `parts` one after the other from `offset` on, a multiple of 4 KiB, and zeros behind them up to the next
    /// multiple; the file grows if it must.
    Append {
        file: FileName,
        /// From which byte on.
        offset: u64,
        parts: Vec<Bytes>,
    },
    /// The file's contents and length are durable after this.
    Flush { file: FileName },
    /// Gives a file another name, replacing one of that name.
    Rename {
        /// The old name.
        from: FileName,
        /// The new name.
        to: FileName,
    },
    /// Names created, changed and removed in the log directory before this are durable after it.
    FlushDir,
    /// Cuts a file.
    Truncate {
        file: FileName,
        /// Its new length.
        bytes: u64,
    },
    /// Removes a file.
    Remove { file: FileName },
}

impl FileEffect {
    /// The file concerned; `None` for the directory.
    pub fn file(&self) -> Option<FileName> {
        match self {
            FileEffect::Create { file, .. }
            | FileEffect::Append { file, .. }
            | FileEffect::Flush { file }
            | FileEffect::Rename { from: file, .. }
            | FileEffect::Truncate { file, .. }
            | FileEffect::Remove { file } => Some(*file),
            FileEffect::FlushDir => None,
        }
    }
}

/// A segment to be made ready for writing: a file of so many bytes, which a flush then needs no metadata for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preparation {
    pub number: SegmentNumber,
    /// Its length.
    pub bytes: u64,
    /// The segment whose file it takes over, with what that one held; `None`: it is made of zeros.
    pub reuses: Option<SegmentNumber>,
}

impl Preparation {
    /// What makes the segment ready. Its name and length are durable then, and it has no header.
    pub fn effects(&self) -> Vec<FileEffect> {
        let file = FileName::Segment(self.number);
        let name = if mutant!(no_dir_flush) { FileEffect::Flush { file } } else { FileEffect::FlushDir };
        let Some(reuses) = self.reuses else {
            return vec![FileEffect::Create { file, bytes: self.bytes }, FileEffect::Flush { file }, name];
        };
        let old = FileName::Temporary(reuses);
        let no_header = vec![Bytes::from_static(&[0; BOUNDARY_BYTES as usize])];
        let mut effects = Vec::new();
        if !mutant!(reused_keeps_header) {
            // Else a start would find the header of another segment under this name.
            effects.push(FileEffect::Append { file: old, offset: 0, parts: no_header });
            effects.push(FileEffect::Flush { file: old });
        }
        effects.extend([FileEffect::Rename { from: old, to: file }, name]);
        effects
    }
}

/// The segment being written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Active {
    pub(super) number: SegmentNumber,
    /// Where the next write starts: a boundary.
    pub(super) next: u64,
    /// Bytes made ready; beyond, writes still succeed, more slowly.
    pub(super) capacity: u64,
    /// Whether the file holds what an older segment held.
    pub(super) reused: bool,
}

/// Files of segments that nobody needs, kept to be written again: making a segment of zeros costs as many
/// bytes as writing it.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool {
    /// Oldest first; their files are called [`FileName::Temporary`], and a start removes them.
    files: VecDeque<SegmentNumber>,
    /// Segments opened since the last drop.
    opened: usize,
    /// Segments that are opened between two drops: follows what is counted up at once, and down slowly.
    wanted: usize,
    /// From this number on segments have their whole length: they were prepared by this start.
    whole_from: SegmentNumber,
}

impl Pool {
    /// Segments are about to be dropped.
    fn begin_drop(&mut self) {
        let slower = self.wanted - self.wanted.div_ceil(4);
        self.wanted = std::mem::take(&mut self.opened).max(slower).min(POOL_SEGMENTS_MAX);
    }

    /// Keeps the file of `number` if it will be wanted.
    fn keeps(&mut self, number: SegmentNumber) -> bool {
        let keeps = number >= self.whole_from && self.files.len() <= self.wanted;
        if keeps {
            self.files.push_back(number);
        }
        keeps
    }
}

/// Which numbers the records of the log have, and how far they are durable.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    /// The lsn of the next record.
    next_lsn: u64,
    /// The checksum of the last record.
    chain: u32,
    /// The checksum from which that of the next record starts: of the last record, or of the mark that follows it.
    link: u32,
    /// Invariant: every record up to here is durable, and it is below `next_lsn`.
    durable: u64,
    /// Invariant: the newest mark says this, and it is at most `durable`.
    marked: u64,
    /// The lsn that a write under way makes durable.
    in_flight: Option<u64>,
}

impl Sequence {
    /// Goes on behind record `proven`, which is durable, with this checksum.
    fn after(proven: u64, chain: u32) -> Sequence {
        Sequence { next_lsn: proven + 1, chain, link: chain, durable: proven, marked: proven, in_flight: None }
    }
}

/// Segments to come.
#[derive(Clone, Debug)]
pub(super) struct Supply {
    /// Ready to be written.
    spares: VecDeque<Preparation>,
    /// Being prepared.
    ordered: VecDeque<Preparation>,
    pool: Pool,
}

/// The pure writer. One write is under way at a time: `write` or `mark`, the effects, then [`Core::flushed`].
#[derive(Clone, Debug)]
pub struct Core {
    identity: Identity,
    nonces: StartNonces,
    past_boot_ids: Vec<u64>,
    geometry: Geometry,
    active: Active,
    sequence: Sequence,
    references: SegmentReferences,
    supply: Supply,
    /// A segment whose batches are being written again; without them while they are being read.
    rewrite: Option<(RewriteTarget, Option<Batches>)>,
    /// Segments that may go as soon as the write under way is durable.
    leaving: Option<SegmentNumber>,
    /// Whether trimmed segments are moved aside instead of removed.
    keep_all: bool,
    /// True when something happened that may free a segment.
    trim_wanted: bool,
}

impl Core {
    /// Puts `entries` into one write: effects that end with a flush. Returns the lsn of the last record.
    ///
    /// # Panics
    /// If a write is under way; without entries; if one is a `Kept`.
    pub fn write<'a>(
        &mut self,
        entries: impl Iterator<Item = &'a Entry> + Clone,
        effects: &mut Vec<FileEffect>,
    ) -> u64 {
        assert!(self.sequence.in_flight.is_none(), "two writes at once");
        let before = self.sequence.next_lsn;
        let batches = self.next_batches();
        let carried_bytes: u64 = batches.iter().map(|(_, entry)| entry_bytes(entry) as u64).sum();
        self.make_room(carried_bytes + entries.clone().map(|entry| entry_bytes(entry) as u64).sum::<u64>());
        let mut out = Gather::default();
        let offset = self.open_write(&mut out);
        for entry in entries {
            assert!(!matches!(entry, Entry::Kept { .. }), "only the log itself says which segments it keeps");
            self.trim_wanted |= matches!(entry, Entry::Trimmed { .. } | Entry::Created { .. } | Entry::Removed { .. });
            self.put(entry, false, &mut out);
        }
        assert!(self.sequence.next_lsn > before, "a write without entries");
        self.carry_batches(batches, &mut out);
        for entry in self.take_carried() {
            self.put(&entry, true, &mut out);
        }
        self.close_write(offset, out, effects);
        self.sequence.next_lsn - 1
    }

    /// A write that only says what is durable, for a log that comes to rest. Nothing if the newest mark says it
    /// already.
    pub fn mark(&mut self, effects: &mut Vec<FileEffect>) -> bool {
        assert!(self.sequence.in_flight.is_none(), "two writes at once");
        if self.sequence.marked == self.sequence.durable {
            return false;
        }
        self.make_room(0);
        let mut out = Gather::default();
        let offset = self.open_write(&mut out);
        self.close_write(offset, out, effects);
        true
    }

    /// The effects of the last write are carried out: it is durable. Removes segments that nobody needs.
    pub fn flushed(&mut self, effects: &mut Vec<FileEffect>) {
        self.sequence.durable = self.sequence.in_flight.take().expect("flushed without a write");
        if let Some(first_kept) = self.leaving.take() {
            self.drop_segments(first_kept, effects);
        }
    }

    /// The next segment to prepare: its effects, then [`Core::prepared`].
    pub fn prepare(&mut self) -> Option<Preparation> {
        // From a quarter on: an idle node never zeroes 64 MiB, a busy one has three quarters of a segment's time to.
        let due = self.active.next >= self.active.capacity / 4;
        if !due || self.supply.spares.len() + self.supply.ordered.len() >= self.geometry.segments_ahead.max(1) {
            return None;
        }
        let last = self.supply.ordered.back().or(self.supply.spares.back()).map(|preparation| preparation.number);
        let number = last.unwrap_or(self.active.number) + 1;
        let reuses = self.supply.pool.files.pop_front();
        let preparation = Preparation { number, bytes: self.geometry.segment_bytes, reuses };
        self.supply.ordered.push_back(preparation);
        Some(preparation)
    }

    /// A segment asked for by [`Core::prepare`] is durable, contents and name.
    pub fn prepared(&mut self, number: SegmentNumber) {
        let preparation = self.supply.ordered.pop_front().filter(|preparation| preparation.number == number);
        self.supply.spares.push_back(preparation.expect("segments are prepared in order"));
    }

    /// The segment whose batches are to be read and carried, if that is due: then [`Core::read`].
    pub fn rewrite_target(&mut self) -> Option<RewriteTarget> {
        if self.rewrite.is_some() || mutant!(undecided_pins_log) {
            return None;
        }
        let rewrite = self.references.rewrite(SPARE_SEGMENTS * self.geometry.segment_bytes)?;
        self.rewrite = Some((rewrite.clone(), None));
        Some(rewrite)
    }

    /// The batches asked for by [`Core::rewrite_target`], each with its lsn, in that order. None: they could not be
    /// read, and are asked for again.
    pub fn read(&mut self, batches: Option<Vec<(u64, Entry)>>) {
        self.rewrite = self.rewrite.take().and_then(|(rewrite, _)| Some((rewrite, Some(batches?.into()))));
    }

    /// Bytes of the batches that are needed, at least.
    pub fn needed_bytes(&self) -> u64 {
        self.references.needed_bytes()
    }

    /// Gives up the files that are kept for segments to come: the disk needs their room.
    pub fn release_pool(&mut self, effects: &mut Vec<FileEffect>) {
        let files = self.supply.pool.files.drain(..).map(FileName::Temporary);
        effects.extend(files.map(|file| FileEffect::Remove { file }));
    }

    /// The boot id of this start, and those before it, newest first.
    pub fn boot_ids(&self) -> (u64, &[u64]) {
        (self.nonces.boot_id, &self.past_boot_ids)
    }

    /// The highest durable lsn.
    pub fn durable(&self) -> u64 {
        self.sequence.durable
    }

    /// The oldest segment and the groups that keep it, if it is not the newest.
    pub fn oldest(&self) -> Option<(SegmentNumber, Vec<PartitionId>)> {
        self.references.oldest()
    }

    /// Whether the newest mark says everything that is durable.
    pub fn is_marked(&self) -> bool {
        self.sequence.marked == self.sequence.durable
    }

    /// Bytes written into the segments in use, and those zeroed in the newest.
    pub fn bytes(&self) -> u64 {
        self.references.bytes() + self.active.capacity
    }

    /// Segments in use.
    pub fn segments(&self) -> usize {
        self.references.segments()
    }

    fn put(&mut self, entry: &Entry, carried: bool, out: &mut Gather) {
        self.sequence.chain = record::encode(entry, self.sequence.next_lsn, carried, self.sequence.link, out);
        self.sequence.link = self.sequence.chain;
        self.references.note(self.active.number, self.sequence.next_lsn, carried, entry);
        self.sequence.next_lsn += 1;
    }

    /// The batches that the next write carries.
    fn next_batches(&mut self) -> Vec<(u64, Entry)> {
        let Some((rewrite, Some(batches))) = &mut self.rewrite else { return Vec::new() };
        if !self.references.holds(rewrite.segment) {
            // Checkpoints were faster.
            self.rewrite = None;
            return Vec::new();
        }
        let (mut bytes, mut next) = (0, Vec::new());
        while bytes < CARRIED_BYTES_MAX
            && let Some((lsn, entry)) = batches.pop_front()
        {
            bytes += entry_bytes(&entry);
            next.push((lsn, entry));
        }
        next
    }

    /// Writes batches of an old segment again, as far as they still count, behind everything else of this write: that
    /// may end the replica whose they are. With the last ones the segment is needed no more.
    fn carry_batches(&mut self, batches: Vec<(u64, Entry)>, out: &mut Gather) {
        for (lsn, entry) in batches {
            if let Some((group, instance)) = entry.batch()
                && self.references.needs(lsn, group, instance)
            {
                self.put(&entry, true, out);
            }
        }
        if let Some((rewrite, _)) = self.rewrite.take_if(|(_, rest)| rest.as_ref().is_some_and(VecDeque::is_empty)) {
            self.references.carried(rewrite.segment);
            self.trim_wanted = true;
        }
    }

    /// What this write must hold too, so that segments can go when it is durable.
    fn take_carried(&mut self) -> Vec<Entry> {
        let mut carried = Vec::new();
        if std::mem::take(&mut self.trim_wanted) {
            let first_kept = self.references.first_needed();
            if self.references.oldest().is_some_and(|(oldest, _)| oldest < first_kept) {
                self.references.carry(first_kept, &mut carried);
                self.leaving = Some(first_kept);
            }
        }
        carried
    }

    /// Moves on to the next segment when the write does not fit into this one. Without a prepared one the segment
    /// grows: slower, but nobody waits.
    fn make_room(&mut self, bytes: u64) {
        if self.active.next + record::HEAD_BYTES as u64 + bytes <= self.active.capacity {
            return;
        }
        if let Some(Preparation { number, bytes, reuses }) = self.supply.spares.pop_front() {
            self.references.end_segment(self.active.number, self.active.next);
            self.active = Active { number, next: 0, capacity: bytes, reused: reuses.is_some() };
            self.supply.pool.opened += 1;
            self.references.begin_segment(number, self.sequence.next_lsn);
            self.trim_wanted = true;
        }
    }

    /// Starts a write: the header if the segment has none yet, then the mark. Returns the offset.
    fn open_write(&mut self, out: &mut Gather) -> u64 {
        let offset = self.active.next;
        if offset == 0 {
            let Active { number: segment, reused, .. } = self.active;
            let (identity, nonces, past_boot_ids) = (self.identity, self.nonces, self.past_boot_ids.clone());
            let header = Header { identity, nonces, past_boot_ids, segment, first_lsn: self.sequence.next_lsn, reused };
            out.copy(&header.encode());
        }
        let at = offset + out.len();
        let Identity { cluster, node, .. } = self.identity;
        let seed = MarkSeed::new(cluster, node, self.active.number, at, self.nonces.salt);
        self.sequence.link =
            record::encode_mark(self.sequence.next_lsn, self.sequence.durable, self.sequence.chain, seed, out);
        self.sequence.marked = self.sequence.durable;
        offset
    }

    fn close_write(&mut self, offset: u64, out: Gather, effects: &mut Vec<FileEffect>) {
        let file = FileName::Segment(self.active.number);
        self.active.next = boundary(offset + out.len());
        effects.push(FileEffect::Append { file, offset, parts: out.finish() });
        effects.push(FileEffect::Flush { file });
        self.sequence.in_flight = Some(self.sequence.next_lsn - 1);
        if mutant!(trim_early)
            && let Some(first_kept) = self.leaving.take()
        {
            let mut early = Vec::new();
            self.drop_segments(first_kept, &mut early);
            effects.splice(0..0, early);
        }
    }

    fn drop_segments(&mut self, first_kept: SegmentNumber, effects: &mut Vec<FileEffect>) {
        self.supply.pool.begin_drop();
        for number in self.references.drop_below(first_kept) {
            let file = FileName::Segment(number);
            effects.push(if self.keep_all {
                FileEffect::Rename { from: file, to: FileName::Old(number) }
            } else if self.supply.pool.keeps(number) {
                FileEffect::Rename { from: file, to: FileName::Temporary(number) }
            } else {
                FileEffect::Remove { file }
            });
        }
        effects.push(FileEffect::FlushDir);
    }
}

/// What a start must do before the log is open: see [`super::recovery`].
#[derive(Debug)]
pub struct Opening {
    /// To be carried out in order.
    pub effects: Vec<FileEffect>,
    /// The writer, once they are.
    pub core: Core,
}

/// What the proof of an older start left: everything a new segment continues.
#[derive(Debug)]
pub(super) struct Past {
    pub(super) references: SegmentReferences,
    /// Records up to here are proven durable.
    pub(super) proven: u64,
    /// The checksum of record `proven`.
    pub(super) chain: u32,
    /// Good records above `proven`, in order: to be written anew.
    pub(super) tail: Vec<(bool, Entry)>,
    /// The segment that the new one follows, and its proven bytes.
    pub(super) last: Option<(SegmentNumber, u64)>,
    /// The boot ids of all starts so far, newest first.
    pub(super) boot_ids: Vec<u64>,
    /// Files that are no part of the log: prepared segments, half-made ones.
    pub(super) leftovers: Vec<FileName>,
}

impl Past {
    /// Nothing: the log of a new node begins. Whatever lies there goes.
    pub(super) fn nothing(leftovers: Vec<FileName>) -> Past {
        let (references, tail, boot_ids) = (SegmentReferences::default(), Vec::new(), Vec::new());
        Past { references, proven: 0, chain: 0, tail, last: None, boot_ids, leftovers }
    }

    /// Opens the segment of this start, holding the unproven tail again.
    pub(super) fn open(
        mut self,
        identity: Identity,
        nonces: StartNonces,
        geometry: Geometry,
        keep_all: bool,
    ) -> Opening {
        self.boot_ids.truncate(PAST_BOOT_IDS_MAX);
        let number = self.last.map_or(1, |(number, _)| number + 1);
        let tail: u64 = self.tail.iter().map(|(_, entry)| entry_bytes(entry) as u64).sum();
        let capacity = geometry.first_bytes.max(boundary(BOUNDARY_BYTES + record::HEAD_BYTES as u64 + tail));
        let mut core = Core {
            identity,
            nonces,
            past_boot_ids: self.boot_ids,
            geometry,
            active: Active { number, next: 0, capacity, reused: false },
            sequence: Sequence::after(self.proven, self.chain),
            references: self.references,
            supply: Supply {
                spares: VecDeque::new(),
                ordered: VecDeque::new(),
                pool: Pool { whole_from: number + 1, ..Pool::default() },
            },
            rewrite: None,
            leaving: None,
            keep_all,
            trim_wanted: true,
        };
        if let Some((last, bytes)) = self.last {
            core.references.end_segment(last, bytes);
        }
        core.references.begin_segment(number, core.sequence.next_lsn);
        let mut effects: Vec<FileEffect> = self.leftovers.into_iter().map(|file| FileEffect::Remove { file }).collect();
        let mut out = Gather::default();
        core.open_write(&mut out);
        for (carried, entry) in &self.tail {
            core.put(entry, *carried, &mut out);
        }
        core.active.next = boundary(out.len());
        core.sequence.durable = core.sequence.next_lsn - 1;
        let (file, name) = (FileName::Temporary(number), FileName::Segment(number));
        effects.push(FileEffect::Create { file, bytes: capacity });
        effects.push(FileEffect::Append { file, offset: 0, parts: out.finish() });
        effects.push(FileEffect::Flush { file });
        effects.push(FileEffect::Rename { from: file, to: name });
        if !mutant!(no_dir_flush) {
            effects.push(FileEffect::FlushDir);
        }
        if let Some((last, bytes)) = self.last {
            // Space, not safety: the new header already says where the old segment ends.
            effects.push(FileEffect::Truncate { file: FileName::Segment(last), bytes });
        }
        Opening { effects, core }
    }
}
