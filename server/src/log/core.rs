//! The writer's decisions: which bytes go where, in which order, and when a segment may go. Pure: it emits
//! [`FileEffect`]s and is told when they have been carried out. It knows no thread, no clock and no file system.

use std::collections::VecDeque;

use bytes::Bytes;
use coppice_core::replay::Entry;

use super::ids::PartitionId;
use super::ledger::{Crowded, Ledger};
use super::record::{self, Gather, entry_bytes};
use super::segment::{BOUNDARY_BYTES, Drawn, Header, MarkSeed, PAST_LIVES_MAX, SegmentNumber, boundary};
use crate::datadir::Identity;

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
        /// Its name.
        file: FileName,
        /// Its length.
        bytes: u64,
    },
    /// Writes `parts` one after the other from `offset` on, a multiple of 4 KiB, and zeros behind them up to the next
    /// multiple; the file grows if it must.
    Append {
        /// Where.
        file: FileName,
        /// From which byte on.
        offset: u64,
        /// What.
        parts: Vec<Bytes>,
    },
    /// The file's contents and length are durable after this.
    Flush {
        /// Which file.
        file: FileName,
    },
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
        /// Which file.
        file: FileName,
        /// Its new length.
        bytes: u64,
    },
    /// Removes a file.
    Remove {
        /// Which file.
        file: FileName,
    },
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
    /// Its number.
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

/// Files of segments that nobody needs any more, kept to be written again: making a segment of zeros costs as many
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

/// The pure writer. One write is under way at a time: `write` or `mark`, the effects, then [`Core::flushed`].
#[derive(Clone, Debug)]
pub struct Core {
    pub(super) identity: Identity,
    pub(super) drawn: Drawn,
    pub(super) past_lives: Vec<u64>,
    pub(super) geometry: Geometry,
    pub(super) active: Active,
    /// The lsn of the next record.
    pub(super) next_lsn: u64,
    /// The checksum of the last record.
    pub(super) chain: u32,
    /// The checksum from which that of the next record starts: of the last record, or of the mark that follows it.
    pub(super) link: u32,
    /// Invariant: every record up to here is durable, and it is below `next_lsn`.
    pub(super) durable: u64,
    /// Invariant: the newest mark says this, and it is at most `durable`.
    pub(super) marked: u64,
    /// The lsn that a write under way makes durable.
    pub(super) in_flight: Option<u64>,
    pub(super) ledger: Ledger,
    /// Segments ready to be written.
    pub(super) spares: VecDeque<Preparation>,
    /// Segments that are being prepared.
    pub(super) ordered: VecDeque<Preparation>,
    pub(super) pool: Pool,
    /// A segment whose batches are being carried; without them while they are being read.
    pub(super) crowded: Option<(Crowded, Option<Batches>)>,
    /// Segments that may go as soon as the write under way is durable.
    pub(super) leaving: Option<SegmentNumber>,
    /// Whether trimmed segments are moved aside instead of removed.
    pub(super) keep_all: bool,
    /// True when something happened that may free a segment.
    pub(super) trim_wanted: bool,
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
        assert!(self.in_flight.is_none(), "two writes at once");
        let before = self.next_lsn;
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
        assert!(self.next_lsn > before, "a write without entries");
        self.carry_batches(batches, &mut out);
        for entry in self.take_carried() {
            self.put(&entry, true, &mut out);
        }
        self.close_write(offset, out, effects);
        self.next_lsn - 1
    }

    /// A write that only says what is durable, for a log that comes to rest. Nothing if the newest mark says it
    /// already.
    pub fn mark(&mut self, effects: &mut Vec<FileEffect>) -> bool {
        assert!(self.in_flight.is_none(), "two writes at once");
        if self.marked == self.durable {
            return false;
        }
        self.make_room(0);
        let mut out = Gather::default();
        let offset = self.open_write(&mut out);
        self.close_write(offset, out, effects);
        true
    }

    /// The effects of the last write are carried out: it is durable. Segments that nobody needs any more go.
    pub fn flushed(&mut self, effects: &mut Vec<FileEffect>) {
        self.durable = self.in_flight.take().expect("flushed without a write");
        if let Some(first_kept) = self.leaving.take() {
            self.drop_segments(first_kept, effects);
        }
    }

    /// The next segment to prepare: its effects, then [`Core::prepared`].
    pub fn prepare(&mut self) -> Option<Preparation> {
        // From a quarter on: an idle node never zeroes 64 MiB, a busy one has three quarters of a segment's time to.
        let due = self.active.next >= self.active.capacity / 4;
        if !due || self.spares.len() + self.ordered.len() >= self.geometry.segments_ahead.max(1) {
            return None;
        }
        let last = self.ordered.back().or(self.spares.back()).map(|preparation| preparation.number);
        let number = last.unwrap_or(self.active.number) + 1;
        let reuses = self.pool.files.pop_front();
        let preparation = Preparation { number, bytes: self.geometry.segment_bytes, reuses };
        self.ordered.push_back(preparation);
        Some(preparation)
    }

    /// A segment asked for by [`Core::prepare`] is durable, contents and name.
    pub fn prepared(&mut self, number: SegmentNumber) {
        let preparation = self.ordered.pop_front().filter(|preparation| preparation.number == number);
        self.spares.push_back(preparation.expect("segments are prepared in order"));
    }

    /// The segment whose batches are to be read and carried, if that is due: then [`Core::read`].
    pub fn to_carry(&mut self) -> Option<Crowded> {
        if self.crowded.is_some() || mutant!(undecided_pins_log) {
            return None;
        }
        let crowded = self.ledger.crowded(SPARE_SEGMENTS * self.geometry.segment_bytes)?;
        self.crowded = Some((crowded.clone(), None));
        Some(crowded)
    }

    /// The batches asked for by [`Core::to_carry`], each with its lsn, in that order. None: they could not be read, and
    /// are asked for again.
    pub fn read(&mut self, batches: Option<Vec<(u64, Entry)>>) {
        self.crowded = self.crowded.take().and_then(|(crowded, _)| Some((crowded, Some(batches?.into()))));
    }

    /// Bytes of the batches that are needed, at least.
    pub fn needed_bytes(&self) -> u64 {
        self.ledger.needed_bytes()
    }

    /// Gives up the files that are kept for segments to come: the disk needs their room.
    pub fn release_pool(&mut self, effects: &mut Vec<FileEffect>) {
        let files = self.pool.files.drain(..).map(FileName::Temporary);
        effects.extend(files.map(|file| FileEffect::Remove { file }));
    }

    /// The life of this start, and those before it, newest first.
    pub fn lives(&self) -> (u64, &[u64]) {
        (self.drawn.life, &self.past_lives)
    }

    /// The highest durable lsn.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// The oldest segment and the groups that keep it, if it is not the newest.
    pub fn oldest(&self) -> Option<(SegmentNumber, Vec<PartitionId>)> {
        self.ledger.oldest()
    }

    /// Whether the newest mark says everything that is durable.
    pub fn is_marked(&self) -> bool {
        self.marked == self.durable
    }

    /// Bytes written into the segments in use, and those zeroed in the newest.
    pub fn bytes(&self) -> u64 {
        self.ledger.bytes() + self.active.capacity
    }

    /// Segments in use.
    pub fn segments(&self) -> usize {
        self.ledger.segments()
    }

    fn put(&mut self, entry: &Entry, carried: bool, out: &mut Gather) {
        self.chain = record::encode(entry, self.next_lsn, carried, self.link, out);
        self.link = self.chain;
        self.ledger.note(self.active.number, self.next_lsn, carried, entry);
        self.next_lsn += 1;
    }

    /// The batches that the next write carries.
    fn next_batches(&mut self) -> Vec<(u64, Entry)> {
        let Some((crowded, Some(batches))) = &mut self.crowded else { return Vec::new() };
        if !self.ledger.holds(crowded.segment) {
            // Checkpoints were faster.
            self.crowded = None;
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
                && self.ledger.needs(lsn, group, instance)
            {
                self.put(&entry, true, out);
            }
        }
        if let Some((crowded, _)) = self.crowded.take_if(|(_, rest)| rest.as_ref().is_some_and(VecDeque::is_empty)) {
            self.ledger.carried(crowded.segment);
            self.trim_wanted = true;
        }
    }

    /// What this write must hold too, so that segments can go when it is durable.
    fn take_carried(&mut self) -> Vec<Entry> {
        let mut carried = Vec::new();
        if std::mem::take(&mut self.trim_wanted) {
            let first_kept = self.ledger.first_needed();
            if self.ledger.oldest().is_some_and(|(oldest, _)| oldest < first_kept) {
                self.ledger.carry(first_kept, &mut carried);
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
        if let Some(Preparation { number, bytes, reuses }) = self.spares.pop_front() {
            self.ledger.end_segment(self.active.number, self.active.next);
            self.active = Active { number, next: 0, capacity: bytes, reused: reuses.is_some() };
            self.pool.opened += 1;
            self.ledger.begin_segment(number, self.next_lsn);
            self.trim_wanted = true;
        }
    }

    /// Starts a write: the header if the segment has none yet, then the mark. Returns the offset.
    fn open_write(&mut self, out: &mut Gather) -> u64 {
        let offset = self.active.next;
        if offset == 0 {
            let Active { number: segment, reused, .. } = self.active;
            let (identity, drawn, past_lives) = (self.identity, self.drawn, self.past_lives.clone());
            let header = Header { identity, drawn, past_lives, segment, first_lsn: self.next_lsn, reused };
            out.copy(&header.encode());
        }
        let at = offset + out.len();
        let Identity { cluster, node, .. } = self.identity;
        let seed = MarkSeed::new(cluster, node, self.active.number, at, self.drawn.salt);
        self.link = record::encode_mark(self.next_lsn, self.durable, self.chain, seed, out);
        self.marked = self.durable;
        offset
    }

    fn close_write(&mut self, offset: u64, out: Gather, effects: &mut Vec<FileEffect>) {
        let file = FileName::Segment(self.active.number);
        self.active.next = boundary(offset + out.len());
        effects.push(FileEffect::Append { file, offset, parts: out.finish() });
        effects.push(FileEffect::Flush { file });
        self.in_flight = Some(self.next_lsn - 1);
        if mutant!(trim_early)
            && let Some(first_kept) = self.leaving.take()
        {
            let mut early = Vec::new();
            self.drop_segments(first_kept, &mut early);
            effects.splice(0..0, early);
        }
    }

    fn drop_segments(&mut self, first_kept: SegmentNumber, effects: &mut Vec<FileEffect>) {
        self.pool.begin_drop();
        for number in self.ledger.drop_below(first_kept) {
            let file = FileName::Segment(number);
            effects.push(if self.keep_all {
                FileEffect::Rename { from: file, to: FileName::Old(number) }
            } else if self.pool.keeps(number) {
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
    pub(super) ledger: Ledger,
    /// Records up to here are proven durable.
    pub(super) proven: u64,
    /// The checksum of record `proven`.
    pub(super) chain: u32,
    /// Good records above `proven`, in order: to be written anew.
    pub(super) tail: Vec<(bool, Entry)>,
    /// The segment that the new one follows, and its proven bytes.
    pub(super) last: Option<(SegmentNumber, u64)>,
    /// The lives of all starts so far, newest first.
    pub(super) lives: Vec<u64>,
    /// Files that are no part of the log: prepared segments, half-made ones.
    pub(super) leftovers: Vec<FileName>,
}

impl Past {
    /// Nothing: the log of a new node begins. Whatever lies there goes.
    pub(super) fn nothing(leftovers: Vec<FileName>) -> Past {
        let (ledger, tail, lives) = (Ledger::default(), Vec::new(), Vec::new());
        Past { ledger, proven: 0, chain: 0, tail, last: None, lives, leftovers }
    }

    /// Opens the segment of this start, holding the unproven tail again.
    pub(super) fn open(mut self, identity: Identity, drawn: Drawn, geometry: Geometry, keep_all: bool) -> Opening {
        self.lives.truncate(PAST_LIVES_MAX);
        let number = self.last.map_or(1, |(number, _)| number + 1);
        let tail: u64 = self.tail.iter().map(|(_, entry)| entry_bytes(entry) as u64).sum();
        let capacity = geometry.first_bytes.max(boundary(BOUNDARY_BYTES + record::HEAD_BYTES as u64 + tail));
        let mut core = Core {
            identity,
            drawn,
            past_lives: self.lives,
            geometry,
            active: Active { number, next: 0, capacity, reused: false },
            next_lsn: self.proven + 1,
            chain: self.chain,
            link: self.chain,
            durable: self.proven,
            marked: self.proven,
            in_flight: None,
            ledger: self.ledger,
            spares: VecDeque::new(),
            ordered: VecDeque::new(),
            pool: Pool { whole_from: number + 1, ..Pool::default() },
            crowded: None,
            leaving: None,
            keep_all,
            trim_wanted: true,
        };
        if let Some((last, bytes)) = self.last {
            core.ledger.end_segment(last, bytes);
        }
        core.ledger.begin_segment(number, core.next_lsn);
        let mut effects: Vec<FileEffect> = self.leftovers.into_iter().map(|file| FileEffect::Remove { file }).collect();
        let mut out = Gather::default();
        core.open_write(&mut out);
        for (carried, entry) in &self.tail {
            core.put(entry, *carried, &mut out);
        }
        core.active.next = boundary(out.len());
        core.durable = core.next_lsn - 1;
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
