//! A disk in memory that forgets what was not flushed, sector by sector and name by name (hazards.md 4).

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use coppice_server::log::{Disk, FileEffect, FileName};

use super::Draw;

const SECTOR: usize = 512;

/// What is left of a write's last block becomes zeros.
const BLOCK: usize = 4_096;

/// What a crash does with bytes and names that were not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process ends; the page cache stays.
    Process,
    /// Nothing unflushed survives.
    AllLost,
    /// Each sector old, new or garbage, each name kept or lost, growth cut anywhere.
    Drawn(u64),
}

#[derive(Clone, Debug, Default)]
struct File {
    current: Vec<u8>,
    durable: Vec<u8>,
    /// Sectors that the next flush writes.
    dirty: BTreeSet<usize>,
}

/// The disk of one log.
#[derive(Clone, Debug, Default)]
pub struct SimDisk {
    files: Vec<File>,
    names: BTreeMap<FileName, usize>,
    durable_names: BTreeMap<FileName, usize>,
    /// Effects carried out so far.
    pub effects: u64,
    /// The power fails instead of this effect.
    pub cut_at: Option<u64>,
    /// This many flushes from now on fail; their data is gone, and the next flush says that all is well.
    pub fail_flushes: u32,
    /// No file can be opened: the process has as many as it may.
    pub no_descriptors: bool,
    /// After so many reads one fails; the next succeeds.
    pub fail_read: Option<u64>,
    /// How many bytes all files may hold.
    pub budget: Option<u64>,
}

impl SimDisk {
    /// The disk as the next start finds it.
    pub fn crash(mut self, crash: Crash) -> SimDisk {
        (self.effects, self.cut_at, self.fail_flushes) = (0, None, 0);
        let mut draw = match crash {
            Crash::Process => return self,
            Crash::AllLost => None,
            Crash::Drawn(seed) => Some(Draw::new(seed)),
        };
        for file in &mut self.files {
            file.lose(draw.as_mut());
        }
        let names: BTreeSet<FileName> = self.names.keys().chain(self.durable_names.keys()).copied().collect();
        for name in names {
            let keeps_new = draw.as_mut().is_some_and(|draw| draw.below(2) == 1);
            let kept = if keeps_new { self.names.get(&name) } else { self.durable_names.get(&name) }.copied();
            for names in [&mut self.names, &mut self.durable_names] {
                match kept {
                    Some(file) => _ = names.insert(name, file),
                    None => _ = names.remove(&name),
                }
            }
        }
        self
    }

    /// A file's bytes.
    pub fn bytes(&self, name: FileName) -> &[u8] {
        &self.files[self.names[&name]].current
    }

    /// A file's bytes, to be damaged for good.
    pub fn damage(&mut self, name: FileName, damage: impl FnOnce(&mut Vec<u8>)) {
        let file = &mut self.files[self.names[&name]];
        damage(&mut file.current);
        file.durable = file.current.clone();
        file.dirty.clear();
    }

    /// Takes a file away for good.
    pub fn lose_file(&mut self, name: FileName) {
        self.names.remove(&name);
        self.durable_names.remove(&name);
    }

    /// All names.
    pub fn file_names(&self) -> Vec<FileName> {
        self.names.keys().copied().collect()
    }

    fn file(&mut self, name: FileName) -> io::Result<&mut File> {
        let file = self.names.get(&name).ok_or(io::ErrorKind::NotFound)?;
        Ok(&mut self.files[*file])
    }

    /// Counts a read, and fails the one that is to fail.
    fn reads(&mut self) -> io::Result<()> {
        match self.fail_read {
            Some(0) => {
                self.fail_read = None;
                Err(io::Error::other("input/output error"))
            }
            _ => {
                self.fail_read = self.fail_read.map(|left| left - 1);
                Ok(())
            }
        }
    }

    fn room(&self) -> u64 {
        let used: usize = self.names.values().map(|file| self.files[*file].current.len()).sum();
        self.budget.map_or(u64::MAX, |budget| budget.saturating_sub(used as u64))
    }

    fn write(&mut self, name: FileName, offset: usize, bytes: &[u8]) -> io::Result<()> {
        let room = self.room() as usize;
        let file = self.file(name)?;
        let allowed = file.current.len().saturating_add(room).saturating_sub(offset).min(bytes.len());
        file.write(offset, &bytes[..allowed]);
        if allowed < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl File {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        if self.current.len() < offset + bytes.len() {
            self.current.resize(offset + bytes.len(), 0);
        }
        self.current[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.dirty.extend(offset / SECTOR..(offset + bytes.len()).div_ceil(SECTOR));
    }

    fn flush(&mut self) {
        self.durable.resize(self.current.len(), 0);
        for sector in std::mem::take(&mut self.dirty) {
            let start = (sector * SECTOR).min(self.current.len());
            let end = (start + SECTOR).min(self.current.len());
            self.durable[start..end].copy_from_slice(&self.current[start..end]);
        }
    }

    fn lose(&mut self, draw: Option<&mut Draw>) {
        if let Some(draw) = draw {
            let (short, long) =
                (self.durable.len().min(self.current.len()), self.durable.len().max(self.current.len()));
            let length = match draw.below(3) {
                0 => self.durable.len(),
                1 => self.current.len(),
                _ => short + draw.below((long - short) as u64 + 1) as usize,
            };
            self.durable.resize(length, 0);
            // Sectors behind the end were cut off since they were written.
            let whole = length.min(self.current.len());
            for sector in self.dirty.iter().filter(|sector| **sector * SECTOR < whole) {
                let start = sector * SECTOR;
                let end = (start + SECTOR).min(whole);
                match draw.below(4) {
                    0 => {}
                    1 => self.durable[start..end].iter_mut().for_each(|byte| *byte = draw.below(256) as u8),
                    _ => self.durable[start..end].copy_from_slice(&self.current[start..end]),
                }
            }
        }
        self.current = self.durable.clone();
        self.dirty.clear();
    }
}

impl Disk for SimDisk {
    fn list(&mut self) -> io::Result<Vec<FileName>> {
        self.reads()?;
        Ok(self.file_names())
    }

    fn read(&mut self, file: FileName, limit: usize) -> io::Result<Vec<u8>> {
        self.reads()?;
        let bytes = &self.file(file)?.current;
        Ok(bytes[..bytes.len().min(limit)].to_vec())
    }

    fn apply(&mut self, effect: &FileEffect) -> io::Result<()> {
        if self.cut_at == Some(self.effects) {
            return Err(io::Error::other("power cut"));
        }
        self.effects += 1;
        match effect {
            FileEffect::Create { file, bytes } => {
                self.names.insert(*file, self.files.len());
                self.files.push(File::default());
                let written = self.write(*file, 0, &vec![0; *bytes as usize]);
                if written.is_err() {
                    self.names.remove(file);
                }
                written
            }
            FileEffect::Append { .. } if self.no_descriptors => Err(rustix::io::Errno::MFILE.into()),
            FileEffect::Append { file, offset, parts } => {
                let mut bytes = parts.concat();
                bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
                self.write(*file, *offset as usize, &bytes)
            }
            FileEffect::Flush { file } if self.fail_flushes > 0 => {
                self.fail_flushes -= 1;
                self.file(*file)?.dirty.clear();
                Err(io::Error::other("input/output error"))
            }
            FileEffect::Flush { file } => {
                self.file(*file)?.flush();
                Ok(())
            }
            FileEffect::Rename { from, to } => {
                let file = self.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
                self.names.insert(*to, file);
                Ok(())
            }
            FileEffect::FlushDir => {
                self.durable_names = self.names.clone();
                Ok(())
            }
            FileEffect::Truncate { file, bytes } => {
                self.file(*file)?.current.truncate(*bytes as usize);
                Ok(())
            }
            FileEffect::Remove { file } => {
                self.names.remove(file);
                Ok(())
            }
        }
    }
}
