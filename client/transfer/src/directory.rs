//! What lies in the directory of a backup, or below its prefix in an object store: files or objects with chunks, and
//! the manifest, which is written last.
//!
//! ```text
//! pairs-00001 ..   chunks, each file up to 256 MiB, each object about 16 MiB
//! manifest         where the chunks are; without it the backup was interrupted
//! lock             held by the process that writes, in a directory
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::ops::Bound::{Excluded, Unbounded};
use std::path::{Path, PathBuf};

use coppice_btree::Digest;
use coppice_client::wire::{PairsSum, Stretch};

use crate::chunk::{self, Chunk, FILE_HEADER_BYTES, ReadError, Record, Summary};
use crate::error::{Error, Refusal, Result, at, damaged};
use crate::manifest::{self, Base, ChunkEntry, FileEntry, Header, Manifest};
use crate::storage::{self, Source, Storage};

/// Files of a backup that are open while it is read, each with a buffer.
const FILES_OPEN_MAX: usize = 16;

/// Where a chunk lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Its file, from 0.
    pub file: usize,
    /// Offset of its record.
    pub at: u64,
}

/// A chunk of all keys from its first one to before `high`.
#[derive(Clone, Debug)]
struct Held {
    high: Option<Vec<u8>>,
    entry: ChunkEntry,
}

/// The files of a backup that is being written. A chunk that it holds, or an earlier backup does, is not written again.
#[derive(Debug)]
pub struct ChunkStore {
    storage: Box<dyn Storage>,
    files: Vec<FileEntry>,
    bases: Vec<Base>,
    known: HashMap<Summary, (Location, Option<PairsSum>)>,
    /// By their first keys, chunks that nodes can compare with what they read: no two of the same keys.
    held: BTreeMap<Vec<u8>, Held>,
    /// The number of the last file here.
    last: u64,
    /// Whether the last file takes more chunks.
    open: bool,
}

impl ChunkStore {
    /// Begins a backup at an address, or goes on with an interrupted one, if that is what `resume` wants.
    ///
    /// # Errors
    /// It holds something else, or cannot be written.
    pub fn open(address: &Path, resume: bool) -> Result<ChunkStore> {
        let mut storage = storage::at(address)?;
        let mut pairs = Vec::new();
        let mut foreign = None;
        for (name, _) in storage.list()? {
            match number(&name) {
                Some(number) => pairs.push((number, name)),
                None if name == manifest::NAME => return Err(Refusal::Finished(address.to_owned()).into()),
                None => foreign = Some(name),
            }
        }
        if let Some(file) = foreign {
            return Err(Refusal::Foreign { directory: address.to_owned(), file }.into());
        }
        if !pairs.is_empty() && !resume {
            return Err(Refusal::Unfinished(address.to_owned()).into());
        }
        storage.lock()?;
        pairs.sort();
        let last = pairs.last().map_or(0, |(number, _)| *number);
        let (files, bases, known) = (Vec::new(), Vec::new(), HashMap::new());
        let mut store = ChunkStore { storage, files, bases, known, held: BTreeMap::new(), last, open: false };
        pairs.into_iter().try_for_each(|(_, name)| store.take_in(name))?;
        Ok(store)
    }

    /// Reads the chunks of a file that an interrupted backup has left; its torn end is cut off.
    fn take_in(&mut self, name: String) -> Result<()> {
        let path = self.storage.address().join(&name);
        let mut input = BufReader::new(open_file(&*self.storage, &name)?);
        let mut header = [0; FILE_HEADER_BYTES as usize];
        let whole = chunk::fill(&mut input, &mut header).map_err(at(&path))? == header.len();
        let mut end = 0;
        if whole && header == chunk::file_header() {
            end = FILE_HEADER_BYTES;
            // The first record that is not whole ends what can be used.
            loop {
                let chunk = match chunk::read_record(&mut input) {
                    Ok(Some(Record::Chunk(chunk))) => chunk,
                    Err(ReadError::Io(error)) => return Err(at(&path)(error)),
                    _ => break,
                };
                let location = Location { file: self.files.len(), at: end };
                self.note(&chunk, location);
                end += chunk::HEADER_BYTES + u64::from(chunk.summary().bytes);
            }
        }
        self.storage.cut(&name, end)?;
        self.files.push(FileEntry { base: None, name, bytes: end });
        Ok(())
    }

    /// Chunks and bytes that are here already.
    pub fn held(&self) -> (usize, u64) {
        (self.known.len(), self.known.keys().map(|summary| u64::from(summary.bytes)).sum())
    }

    /// Uses the chunks of an earlier backup. Its files must be there.
    ///
    /// # Errors
    /// The earlier one is not whole.
    pub fn build_on(&mut self, earlier: &Path) -> Result<()> {
        let (manifest, storages) = open_all(earlier)?;
        // Bases of the base are bases of this one: each is found from here.
        let ids = [&manifest.header.id].into_iter().chain(manifest.header.bases.iter().map(|base| &base.id));
        let mut sizes = Vec::new();
        for (storage, id) in storages.iter().zip(ids) {
            let path = storage::path_from(self.storage.address(), storage.address())?;
            self.bases.push(Base { path, id: id.clone() });
            sizes.push(storage.list()?.into_iter().collect::<HashMap<_, _>>());
        }
        let (first, own) = (self.files.len(), std::mem::take(&mut self.held));
        for file in &manifest.header.files {
            let base = file.base.map_or(0, |base| base + 1);
            let path = storages[base].address().join(&file.name);
            let there = *sizes[base].get(&file.name).ok_or_else(|| damaged(&path, None, MISSING))?;
            if there < file.bytes {
                return Err(damaged(&path, there, format!("the file ends here, and the backup holds {}", file.bytes)));
            }
            self.files.push(FileEntry { base: Some(base), ..file.clone() });
        }
        let highs = manifest.chunks.iter().skip(1).map(ChunkEntry::low).chain([None]);
        for (entry, high) in manifest.chunks.iter().zip(highs) {
            let mut entry = entry.clone();
            entry.file += first;
            if let Some(summary) = entry.summary() {
                let location = Location { file: entry.file, at: entry.at };
                self.known.entry(summary).or_insert((location, entry.sum()));
            }
            self.hold(high, entry);
        }
        // What an interrupted reading has left is newer.
        own.into_values().for_each(|Held { high, entry }| self.hold(high, entry));
        Ok(())
    }

    /// Holds a chunk of the keys from its first one to before `high`, in place of those of any of these keys.
    fn hold(&mut self, high: Option<Vec<u8>>, entry: ChunkEntry) {
        let (Some(low), Some(_)) = (entry.low(), entry.sum()) else { return };
        let below = self.held.range((Unbounded, high.clone().map_or(Unbounded, Excluded))).rev();
        let overlaps = |held: &Held| held.high.as_ref().is_none_or(|high| *high > low);
        let gone: Vec<_> = below.take_while(|(_, held)| overlaps(held)).map(|(low, _)| low.clone()).collect();
        gone.iter().for_each(|low| drop(self.held.remove(low)));
        self.held.insert(low, Held { high, entry });
    }

    /// Notes where a chunk lies.
    fn note(&mut self, chunk: &Chunk, location: Location) -> ChunkEntry {
        let (summary, sum) = (chunk.summary(), chunk.sum());
        self.known.insert(summary, (location, Some(sum)));
        let entry = ChunkEntry::new(location.file, location.at, (&summary, &sum), chunk.low());
        self.hold(Some([chunk.last(), &[0]].concat()), entry.clone());
        entry
    }

    /// What nodes are told of the chunks that are here, in key order, and the chunks.
    pub fn stretches(&self) -> (Vec<Stretch>, Vec<ChunkEntry>) {
        let stretch = |(low, held): (&Vec<u8>, &Held)| {
            let high = held.high.as_ref().map(|high| high[..].into());
            Some((Stretch { low: low[..].into(), high, sum: held.entry.sum()? }, held.entry.clone()))
        };
        self.held.iter().filter_map(stretch).unzip()
    }

    /// Keeps a chunk; returns where it lies and what it is, and whether it had to be written.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn put(&mut self, chunk: &Chunk) -> Result<(ChunkEntry, bool)> {
        if let Some(&(location, sum)) = self.known.get(&chunk.summary())
            && sum.is_none_or(|sum| sum == chunk.sum())
        {
            return Ok((self.note(chunk, location), false));
        }
        let full = self.files.last().is_some_and(|file| file.bytes >= self.storage.file_bytes_max());
        if !self.open || full {
            self.next_file()?;
        }
        let file = self.files.len() - 1;
        let entry = &mut self.files[file];
        let location = Location { file, at: entry.bytes };
        let path = self.storage.address().join(&entry.name);
        entry.bytes += chunk.write(&mut self.storage).map_err(at(&path))?;
        Ok((self.note(chunk, location), true))
    }

    fn next_file(&mut self) -> Result<()> {
        self.last += 1;
        let name = format!("pairs-{:05}", self.last);
        self.storage.create(&name)?;
        let path = self.storage.address().join(&name);
        self.storage.write_all(&chunk::file_header()).map_err(at(&path))?;
        self.files.push(FileEntry { base: None, name, bytes: FILE_HEADER_BYTES });
        self.open = true;
        Ok(())
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn flush(&mut self) -> Result<()> {
        self.open = false;
        self.storage.sync()
    }

    /// Writes the manifest: from here on the backup is whole. Files and bases that no chunk lies in are
    /// not named.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish(mut self, header: Header, mut chunks: Vec<ChunkEntry>) -> Result<Manifest> {
        self.flush()?;
        let used: HashSet<usize> = chunks.iter().map(|chunk| chunk.file).collect();
        let mut places = vec![0; self.files.len()];
        let mut files = Vec::new();
        let (mut bases, mut base_places) = (Vec::new(), HashMap::new());
        for (place, file) in self.files.iter().enumerate().filter(|(place, _)| used.contains(place)) {
            places[place] = files.len();
            let base = file.base.map(|base| {
                *base_places.entry(base).or_insert_with(|| {
                    bases.push(self.bases[base].clone());
                    bases.len() - 1
                })
            });
            files.push(FileEntry { base, ..file.clone() });
        }
        chunks.iter_mut().for_each(|chunk| chunk.file = places[chunk.file]);
        let manifest = Manifest { header: Header { files, bases, ..header }, chunks };
        self.storage.commit(manifest::NAME, &mut |mut out| manifest.write(&mut out))?;
        Ok(manifest)
    }
}

/// What is said of a file that should be there.
const MISSING: &str = "it is missing";

/// The number of a file with chunks.
fn number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("pairs-")?;
    (digits.len() >= 5 && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok())?
}

/// The backup at an address: its manifest, its own storage, and those of the earlier backups that it builds on, if they
/// are where they were.
fn open_all(address: &Path) -> Result<(Manifest, Vec<Box<dyn Storage>>)> {
    let mut storages = vec![storage::at(address)?];
    let manifest = Manifest::read(&*storages[0])?;
    for base in &manifest.header.bases {
        let earlier = storage::at(&storage::beside(address, &base.path))?;
        let other = || Refusal::OtherBase { base: earlier.address().to_owned(), backup: address.to_owned() };
        match Manifest::read(&*earlier) {
            Ok(found) if found.header.id == base.id => {}
            Ok(_) | Err(Error::Refused(Refusal::NoBackup(_))) => return Err(other().into()),
            Err(error) => return Err(error),
        }
        storages.push(earlier);
    }
    Ok((manifest, storages))
}

fn open_file(storage: &dyn Storage, name: &str) -> Result<Box<dyn Source>> {
    storage.open(name)?.ok_or_else(|| damaged(&storage.address().join(name), None, MISSING))
}

/// A whole backup, to be read.
#[derive(Debug)]
pub struct Backup {
    /// What it is, and its chunks.
    pub manifest: Manifest,
    /// Its own, and those of its bases.
    storages: Vec<Box<dyn Storage>>,
    /// Files that are open, the one that was used last at the end: chunks of several backups come in turns.
    open: Vec<OpenFile>,
}

#[derive(Debug)]
struct OpenFile {
    file: usize,
    /// Where it is read next.
    at: u64,
    input: BufReader<Box<dyn Source>>,
}

impl Backup {
    /// Opens the backup at an address, and checks that those that it builds on are there.
    ///
    /// # Errors
    /// There is none, or it is damaged.
    pub fn open(address: &Path) -> Result<Backup> {
        let (manifest, storages) = open_all(address)?;
        Ok(Backup { manifest, storages, open: Vec::new() })
    }

    /// Where a file lies, and its path for errors.
    fn file(&self, file: usize) -> (&dyn Storage, &str, PathBuf) {
        let entry = &self.manifest.header.files[file];
        let storage = &*self.storages[entry.base.map_or(0, |base| base + 1)];
        (storage, &entry.name, storage.address().join(&entry.name))
    }

    /// Reads the chunk of this entry, and checks that it is the one that was written.
    ///
    /// # Errors
    /// It is damaged, or cannot be read.
    pub fn read(&mut self, entry: &ChunkEntry) -> Result<Chunk> {
        let (storage, name, path) = self.file(entry.file);
        let mut open = match self.open.iter().position(|open| open.file == entry.file) {
            None => OpenFile { file: entry.file, at: 0, input: open_pairs(storage, name)? },
            Some(place) => self.open.remove(place),
        };
        if open.at != entry.at {
            open.input.seek(SeekFrom::Start(entry.at)).map_err(at(&path))?;
        }
        let is_sum = |chunk: &Chunk| entry.sum().is_none_or(|sum| sum == chunk.sum());
        let damage = |what: String| damaged(&path, entry.at, what);
        let chunk = match chunk::read_record(&mut open.input) {
            Ok(Some(Record::Chunk(chunk))) if Some(chunk.summary()) == entry.summary() && is_sum(&chunk) => chunk,
            Ok(_) => return Err(damage("this is not the chunk that the manifest names".to_owned())),
            Err(ReadError::Io(error)) => return Err(at(&path)(error)),
            Err(error) => return Err(damage(error.to_string())),
        };
        open.at = entry.at + chunk::HEADER_BYTES + u64::from(chunk.summary().bytes);
        if self.open.len() >= FILES_OPEN_MAX {
            self.open.remove(0);
        }
        self.open.push(open);
        Ok(chunk)
    }

    /// Reads and checks all of it; `told` hears how many pairs and bytes were read so far.
    ///
    /// # Errors
    /// Something is damaged.
    pub fn verify(&mut self, mut told: impl FnMut(u64, u64)) -> Result<()> {
        let entries = std::mem::take(&mut self.manifest.chunks);
        let (mut pairs, mut bytes, mut digest) = (0, 0, Digest::default());
        let mut last: Vec<u8> = Vec::new();
        let verified = entries.iter().try_for_each(|entry| {
            let chunk = self.read(entry)?;
            if (pairs > 0 && chunk.low() <= &last[..]) || entry.low().as_deref() != Some(chunk.low()) {
                let (_, _, path) = self.file(entry.file);
                return Err(damaged(&path, entry.at, "the chunk is not in key order with those before it"));
            }
            bytes += chunk.pairs().map(|(key, value)| (key.len() + value.len()) as u64).sum::<u64>();
            if let Some((key, _)) = chunk.pairs().last() {
                last = key.to_vec();
            }
            pairs += u64::from(chunk.summary().pairs);
            digest = digest.and(chunk.summary().digest);
            told(pairs, bytes);
            Ok(())
        });
        self.manifest.chunks = entries;
        verified?;
        let header = &self.manifest.header;
        if (pairs, bytes, Some(digest)) != (header.pairs, header.bytes, manifest::digest(&header.digest)) {
            return Err(damaged(
                self.storages[0].address(),
                None,
                "the chunks together are not what the manifest says",
            ));
        }
        Ok(())
    }
}

fn open_pairs(storage: &dyn Storage, name: &str) -> Result<BufReader<Box<dyn Source>>> {
    let path = &storage.address().join(name);
    let mut file = open_file(storage, name)?;
    let mut header = [0; FILE_HEADER_BYTES as usize];
    let read = file.read_exact(&mut header);
    if let Err(error) = read {
        let cut = error.kind() == io::ErrorKind::UnexpectedEof;
        return Err(if cut { damaged(path, 0, "the file is cut off") } else { at(path)(error) });
    }
    match chunk::format_of(&header) {
        Some(chunk::FORMAT) => {}
        Some(format) => {
            let (format, known) = (u64::from(format), u64::from(chunk::FORMAT));
            return Err(Refusal::Format { path: path.to_owned(), format, known }.into());
        }
        None => return Err(damaged(path, 0, "this is no file of pairs")),
    }
    file.rewind().map_err(at(path))?;
    Ok(BufReader::with_capacity(1 << 18, file))
}
