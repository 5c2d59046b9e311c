//! One log over one disk, step by step: the loop body of the writer thread, without the thread. The simulator and the
//! tests drive it over disks of their own.

use std::collections::VecDeque;
use std::io;

use coppice_core::incarnation::Identity;
use coppice_core::replay::Entry;

use super::apply;
use super::core::{Core, FileEffect, FileName, Geometry, Opening, Past, Preparation};
use super::disk::Disk;
use super::recovery::{self, Cut, Recovered};
use super::segment::{SegmentNumber, StartNonces};
pub use super::segment_references::RewriteTarget;
use super::writer::LogError;

/// A failed effect, and what it was.
#[derive(Debug)]
pub struct Failure {
    /// The effect that failed.
    pub effect: FileEffect,
    /// What the disk said.
    pub error: io::Error,
}

/// How far a write has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Everything written is durable.
    Durable,
    /// The disk is full, or no file can be opened. Nothing is lost: ask again when there may be room.
    Full,
}

/// A log over a disk.
#[derive(Debug)]
pub struct Engine<D> {
    core: Core,
    disk: D,
    /// Effects of the write under way that are still to be carried out.
    pending: VecDeque<FileEffect>,
    /// Effects that free segments nobody needs.
    drops: Vec<FileEffect>,
    scratch: Vec<FileEffect>,
}

/// What a disk held.
#[derive(Debug)]
pub struct Found {
    past: Past,
    /// The node, with the incarnation that this start must use.
    pub identity: Identity,
    /// The torn tail, if there was one.
    pub cut: Option<Cut>,
}

impl Found {
    /// Reads the log of `known`, the node as it last started; `sink` gets every durable entry, and whether it is a
    /// carried copy.
    ///
    /// # Errors
    /// As [`super::LogWriter::open`].
    pub fn read<D: Disk>(disk: &mut D, known: Identity, sink: &mut dyn FnMut(bool, Entry)) -> Result<Found, LogError> {
        let owner = Some((known.cluster, known.node));
        let Recovered { past, cut, incarnation, behind } =
            recovery::recover(disk, owner, &mut |_, carried, entry| sink(carried, entry))?;
        if incarnation < known.incarnation {
            if let Some(damage) = behind {
                // The segment that the last start opened: its marks cannot be found without the salt in its header.
                return Err(damage.into());
            }
            return Err(LogError::Older { found: incarnation, known: known.incarnation });
        }
        // Above every start that this directory has seen: peers tell an old copy by it (hazards.md PX12).
        let incarnation = if mutant!(no_incarnation) { incarnation } else { incarnation + 1 };
        Ok(Found { past, identity: Identity { incarnation, ..known }, cut })
    }

    /// Entries at the end that no mark says were durable: those of the last write. Were a part of them missing, nothing
    /// would tell that from a write that a crash tore.
    pub fn unproven(&self) -> usize {
        self.past.tail.len()
    }

    /// Opens the segment of this start, which drew these numbers.
    ///
    /// # Errors
    /// The disk's.
    pub fn open<D: Disk>(
        self,
        mut disk: D,
        nonces: StartNonces,
        geometry: Geometry,
        keep_all: bool,
    ) -> io::Result<Engine<D>> {
        let opening = self.past.open(self.identity, nonces, geometry, keep_all);
        let core = apply_opening(opening, &mut disk)?;
        Ok(Engine::new(core, disk))
    }
}

/// Makes the empty log of a new node.
///
/// # Errors
/// The disk's.
pub fn create<D: Disk>(disk: &mut D, identity: Identity, nonces: StartNonces, geometry: Geometry) -> io::Result<()> {
    let leftovers = disk.list()?;
    apply_opening(Past::nothing(leftovers).open(identity, nonces, geometry, false), disk).map(|_| ())
}

fn apply_opening<D: Disk>(opening: Opening, disk: &mut D) -> io::Result<Core> {
    opening.effects.iter().try_for_each(|effect| apply::open(disk, effect))?;
    Ok(opening.core)
}

impl<D: Disk> Engine<D> {
    fn new(core: Core, disk: D) -> Engine<D> {
        Engine { core, disk, pending: VecDeque::new(), drops: Vec::new(), scratch: Vec::new() }
    }

    /// Takes `entries` into one write; [`Engine::proceed`] carries it out.
    ///
    /// # Panics
    /// If a write is under way.
    pub fn write<'a>(&mut self, entries: impl Iterator<Item = &'a Entry> + Clone) {
        self.core.write(entries, &mut self.scratch);
        self.pending.extend(self.scratch.drain(..));
    }

    /// Takes a mark into a write, if the newest one does not say everything. Returns whether there is something to do.
    pub fn mark(&mut self) -> bool {
        let due = self.core.mark(&mut self.scratch);
        self.pending.extend(self.scratch.drain(..));
        due
    }

    /// Carries the write under way out, as far as the disk lets it.
    ///
    /// # Errors
    /// A write or flush failed: do not use the log again (hazards.md ST1).
    pub fn proceed(&mut self) -> Result<Progress, Failure> {
        while let Some(effect) = self.pending.front() {
            match apply::commit(&mut self.disk, effect) {
                Ok(()) => {}
                // The disk took nothing yet that anybody relies on: the same bytes go to the same place later. A flush
                // that reports a full disk has lost pages, and is a failure like any other.
                Err(error) if is_full(&error) && matches!(effect, FileEffect::Append { .. }) => {
                    if !mutant!(enospc_ignored) {
                        return Ok(Progress::Full);
                    }
                }
                Err(_) if mutant!(retry_flush) && self.disk.apply(effect).is_ok() => {}
                Err(error) => return Err(Failure { effect: effect.clone(), error }),
            }
            self.pending.pop_front();
        }
        self.core.flushed(&mut self.drops);
        Ok(Progress::Durable)
    }

    /// Effects that free what nobody needs; whoever asks carries them out, in order, whenever it likes.
    pub fn take_drops(&mut self) -> Vec<FileEffect> {
        std::mem::take(&mut self.drops)
    }

    /// The segment to prepare next, if one is due.
    pub fn to_prepare(&mut self) -> Option<Preparation> {
        self.core.prepare()
    }

    /// A segment asked for by [`Engine::to_prepare`] is ready.
    pub fn prepared(&mut self, number: SegmentNumber) {
        // So that a process which runs out of descriptors can still go on to it.
        self.disk.open_ahead(FileName::Segment(number));
        self.core.prepared(number);
    }

    /// Gives up files that are kept for segments to come: [`Engine::take_drops`] has them then.
    pub fn release_pool(&mut self) {
        self.core.release_pool(&mut self.drops);
    }

    /// The segment whose batches are to be carried, if that is due: [`read_batches`] reads them.
    pub fn rewrite_target(&mut self) -> Option<RewriteTarget> {
        self.core.rewrite_target()
    }

    /// What was read of a segment asked for by [`Engine::rewrite_target`]; none: it could not be read now.
    pub fn rewrite(&mut self, batches: Option<Vec<(u64, Entry)>>) {
        self.core.read(batches);
    }

    /// The log's state.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// The disk, for tests that fail it.
    pub fn disk(&mut self) -> &mut D {
        &mut self.disk
    }
}

/// Reads what is to be carried of a segment: each batch with its lsn.
///
/// # Errors
/// As [`super::LogWriter::open`].
pub fn read_batches<D: Disk>(disk: &mut D, rewrite: &RewriteTarget) -> Result<Vec<(u64, Entry)>, LogError> {
    recovery::read_batches(disk, rewrite)
}

/// Whether the disk is full, this user's share of it, or the table of open files: what passes by itself.
pub fn is_full(error: &io::Error) -> bool {
    let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    full || is_out_of_descriptors(error)
}

/// Whether this process, or the machine, has as many open files as it may (EMFILE, ENFILE).
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    let code = rustix::io::Errno::from_io_error(error);
    let out = matches!(code, Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE));
    out && !mutant!(descriptors_end_the_log)
}
