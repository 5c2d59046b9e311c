//! Reading a log offline, whoever wrote it: `coppice inspect log DIR`. Changes nothing.

use std::io;
use std::path::Path;

use coppice_core::replay::Entry;

use super::core::{FileEffect, FileName};
use super::disk::{Disk, FileDisk};
use super::recovery::{self, Cut};
use super::writer::LogError;

/// A record as it stands in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Its number in the node's log.
    pub lsn: u64,
    /// Written again, because its first copy was about to be trimmed.
    pub carried: bool,
    /// What it says.
    pub entry: Entry,
}

/// Gives every good record of the log in `dir` to `sink`, in log order, and returns the torn tail if there is one.
/// Segments that were trimmed and kept (`log.keep = "all"`) come first.
///
/// # Errors
/// As [`super::LogWriter::open`]. Records before a damaged place have been given to `sink` then, as far as a mark
/// proves them.
pub fn read(dir: &Path, mut sink: impl FnMut(Line)) -> Result<Option<Cut>, LogError> {
    let mut disk = ReadOnly { old: FileDisk::existing(&dir.join("old")).ok(), disk: FileDisk::existing(dir)? };
    let recovered = recovery::recover(&mut disk, None, &mut |lsn, carried, entry| sink(Line { lsn, carried, entry }))?;
    Ok(recovered.cut)
}

/// The segments of a log, with the trimmed ones that were moved aside in their old place.
struct ReadOnly {
    disk: FileDisk,
    old: Option<FileDisk>,
}

impl Disk for ReadOnly {
    fn list(&mut self) -> io::Result<Vec<FileName>> {
        let mut files = self.disk.list()?;
        if let Some(old) = &mut self.old {
            files.extend(old.list()?);
        }
        Ok(files)
    }

    fn read(&mut self, file: FileName, limit: usize) -> io::Result<Vec<u8>> {
        match (self.disk.read(file, limit), &mut self.old) {
            (Err(error), Some(old)) if error.kind() == io::ErrorKind::NotFound => old.read(file, limit),
            (read, _) => read,
        }
    }

    fn apply(&mut self, _: &FileEffect) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}
