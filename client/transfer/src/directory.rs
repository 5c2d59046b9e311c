//! The directory of a backup: files with chunks, and the manifest, which is written last.
//!
//! ```text
//! DIR/pairs-00001 ..   chunks, each file up to 256 MiB
//! DIR/manifest         where the chunks are; a directory without it holds an interrupted backup
//! DIR/lock             held by the process that writes
//! ```

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use coppice_btree::Digest;

use crate::chunk::{self, Chunk, FILE_HEADER_BYTES, ReadError, Record, Summary};
use crate::error::{Error, Refusal, Result, at, damaged};
use crate::manifest::{self, Base, ChunkEntry, FileEntry, Header, Manifest};

/// A file that has reached this size is followed by the next one.
const FILE_BYTES_MAX: u64 = 256 << 20;
const LOCK: &str = "lock";
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

/// The files of a backup that is being written. A chunk that it holds, or an earlier backup does, is not written again.
#[derive(Debug)]
pub struct ChunkStore {
    directory: PathBuf,
    files: Vec<FileEntry>,
    bases: Vec<Base>,
    known: HashMap<Summary, Location>,
    open: Option<BufWriter<File>>,
    _lock: File,
}

impl ChunkStore {
    /// Makes the directory, or goes on with an interrupted backup in it, if that is what `resume` wants.
    ///
    /// # Errors
    /// The directory holds something else, or cannot be written.
    pub fn open(directory: &Path, resume: bool) -> Result<ChunkStore> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(at(directory))?;
        let mut pairs = Vec::new();
        let mut foreign = None;
        for entry in fs::read_dir(directory).map_err(at(directory))? {
            let name = entry.map_err(at(directory))?.file_name().to_string_lossy().into_owned();
            match &name[..] {
                manifest::NAME => return Err(Refusal::Finished(directory.to_owned()).into()),
                LOCK | UNFINISHED => {}
                _ if is_pairs(&name) => pairs.push(name),
                _ => foreign = Some(name),
            }
        }
        if let Some(file) = foreign {
            return Err(Refusal::Foreign { directory: directory.to_owned(), file }.into());
        }
        if !pairs.is_empty() && !resume {
            return Err(Refusal::Unfinished(directory.to_owned()).into());
        }
        let path = directory.join(LOCK);
        let lock = private().open(&path).map_err(at(&path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Refusal::InUse(directory.to_owned()).into()),
            Err(TryLockError::Error(error)) => return Err(at(&path)(error)),
        }
        pairs.sort();
        let mut store = ChunkStore {
            directory: directory.to_owned(),
            files: Vec::new(),
            bases: Vec::new(),
            known: HashMap::new(),
            open: None,
            _lock: lock,
        };
        pairs.into_iter().try_for_each(|name| store.take_in(name))?;
        Ok(store)
    }

    /// Reads the chunks of a file that an interrupted backup has left; its torn end is cut off.
    fn take_in(&mut self, name: String) -> Result<()> {
        let path = self.directory.join(&name);
        let mut input = BufReader::new(File::open(&path).map_err(at(&path))?);
        let mut header = [0; FILE_HEADER_BYTES as usize];
        let whole = chunk::fill(&mut input, &mut header).map_err(at(&path))? == header.len();
        let mut end = 0;
        if whole && header == chunk::file_header() {
            end = FILE_HEADER_BYTES;
            // The first record that is not whole ends what can be used.
            while let Ok(Some(Record::Chunk(chunk))) = chunk::read_record(&mut input) {
                let location = Location { file: self.files.len(), at: end };
                self.known.insert(chunk.summary(), location);
                end += chunk::HEADER_BYTES + u64::from(chunk.summary().bytes);
            }
        }
        let file = OpenOptions::new().write(true).open(&path).map_err(at(&path))?;
        file.set_len(end).map_err(at(&path))?;
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
        let manifest = Manifest::read(earlier)?;
        check_bases(earlier, &manifest)?;
        let own = fs::canonicalize(&self.directory).map_err(at(&self.directory))?;
        // Bases of the base are bases of this one: each is found from here.
        let paths =
            [earlier.to_owned()].into_iter().chain(manifest.header.bases.iter().map(|base| earlier.join(&base.path)));
        let ids = [&manifest.header.id].into_iter().chain(manifest.header.bases.iter().map(|base| &base.id));
        for (path, id) in paths.zip(ids) {
            let path = path_from(&own, &fs::canonicalize(&path).map_err(at(&path))?);
            self.bases.push(Base { path, id: id.clone() });
        }
        let first = self.files.len();
        for (file, path) in manifest.header.files.iter().zip(manifest.file_paths(earlier)) {
            let there = fs::metadata(&path).map_err(at(&path))?.len();
            if there < file.bytes {
                return Err(damaged(&path, there, format!("the file ends here, and the backup holds {}", file.bytes)));
            }
            let base = Some(file.base.map_or(0, |base| base + 1));
            self.files.push(FileEntry { base, ..file.clone() });
        }
        for entry in &manifest.chunks {
            if let Some(summary) = entry.summary() {
                self.known.entry(summary).or_insert(Location { file: first + entry.file, at: entry.at });
            }
        }
        Ok(())
    }

    /// Keeps a chunk; returns where it lies, and whether it had to be written.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn put(&mut self, chunk: &Chunk) -> Result<(Location, bool)> {
        if let Some(&location) = self.known.get(&chunk.summary()) {
            return Ok((location, false));
        }
        let full = self.files.last().is_some_and(|file| file.bytes >= FILE_BYTES_MAX);
        if self.open.is_none() || full {
            self.next_file()?;
        }
        let file = self.files.len() - 1;
        let entry = &mut self.files[file];
        let location = Location { file, at: entry.bytes };
        let path = self.directory.join(&entry.name);
        if let Some(open) = &mut self.open {
            entry.bytes += chunk.write(open).map_err(at(&path))?;
        }
        self.known.insert(chunk.summary(), location);
        Ok((location, true))
    }

    fn next_file(&mut self) -> Result<()> {
        self.flush()?;
        let own = self.files.iter().filter(|file| file.base.is_none());
        let name = format!("pairs-{:05}", own.count() + 1);
        let path = self.directory.join(&name);
        let mut file = BufWriter::with_capacity(1 << 20, private().create_new(true).open(&path).map_err(at(&path))?);
        file.write_all(&chunk::file_header()).map_err(at(&path))?;
        self.open = Some(file);
        self.files.push(FileEntry { base: None, name, bytes: FILE_HEADER_BYTES });
        Ok(())
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn flush(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let path = self.directory.join(self.files.last().map_or("", |file| &file.name));
        let file = open.into_inner().map_err(|error| at(&path)(error.into_error()))?;
        file.sync_all().map_err(at(&path))
    }

    /// Writes the manifest: from here on the directory holds a whole backup. Files and bases that no chunk lies in are
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
        let (unfinished, path) = (self.directory.join(UNFINISHED), self.directory.join(manifest::NAME));
        let file = private().truncate(true).open(&unfinished).map_err(at(&unfinished))?;
        let mut out = BufWriter::new(file);
        manifest.write(&mut out).map_err(at(&unfinished))?;
        let file = out.into_inner().map_err(|error| at(&unfinished)(error.into_error()))?;
        file.sync_all().map_err(at(&unfinished))?;
        fs::rename(&unfinished, &path).map_err(at(&path))?;
        let lock = self.directory.join(LOCK);
        fs::remove_file(&lock).map_err(at(&lock))?;
        File::open(&self.directory).and_then(|directory| directory.sync_all()).map_err(at(&self.directory))?;
        Ok(manifest)
    }
}

/// The manifest while it is written.
const UNFINISHED: &str = "manifest.new";

fn is_pairs(name: &str) -> bool {
    name.strip_prefix("pairs-").is_some_and(|rest| rest.len() >= 5 && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).write(true).mode(0o600);
    options
}

/// How `to` is found from `from`: relative if they lie side by side, so that both can be moved together.
fn path_from(from: &Path, to: &Path) -> String {
    match (to.parent() == from.parent(), to.file_name()) {
        (true, Some(name)) => format!("../{}", name.to_string_lossy()),
        _ => to.to_string_lossy().into_owned(),
    }
}

/// Whether the earlier backups that this one builds on are where they were.
fn check_bases(directory: &Path, manifest: &Manifest) -> Result<()> {
    for base in &manifest.header.bases {
        let path = directory.join(&base.path);
        let other = || Refusal::OtherBase { base: path.clone(), backup: directory.to_owned() };
        match Manifest::read(&path) {
            Ok(found) if found.header.id == base.id => {}
            Ok(_) | Err(Error::Refused(Refusal::NoBackup(_))) => return Err(other().into()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A whole backup, to be read.
#[derive(Debug)]
pub struct Backup {
    /// What it is, and its chunks.
    pub manifest: Manifest,
    paths: Vec<PathBuf>,
    /// Files that are open, the one that was used last at the end: chunks of several backups come in turns.
    open: Vec<OpenFile>,
}

#[derive(Debug)]
struct OpenFile {
    file: usize,
    /// Where it is read next.
    at: u64,
    input: BufReader<File>,
}

impl Backup {
    /// Opens the backup in a directory, and checks that those that it builds on are there.
    ///
    /// # Errors
    /// There is none, or it is damaged.
    pub fn open(directory: &Path) -> Result<Backup> {
        let manifest = Manifest::read(directory)?;
        check_bases(directory, &manifest)?;
        let paths = manifest.file_paths(directory);
        Ok(Backup { manifest, paths, open: Vec::new() })
    }

    /// Reads the chunk of this entry, and checks that it is the one that was written.
    ///
    /// # Errors
    /// It is damaged, or cannot be read.
    pub fn read(&mut self, entry: &ChunkEntry) -> Result<Chunk> {
        let path = &self.paths[entry.file];
        let mut open = match self.open.iter().position(|open| open.file == entry.file) {
            Some(place) => self.open.remove(place),
            None => OpenFile { file: entry.file, at: 0, input: open_pairs(path)? },
        };
        if open.at != entry.at {
            open.input.seek(SeekFrom::Start(entry.at)).map_err(at(path))?;
        }
        let damage = |what: String| damaged(path, entry.at, what);
        let chunk = match chunk::read_record(&mut open.input) {
            Ok(Some(Record::Chunk(chunk))) if Some(chunk.summary()) == entry.summary() => chunk,
            Ok(_) => return Err(damage("this is not the chunk that the manifest names".to_owned())),
            Err(ReadError::Io(error)) => return Err(at(path)(error)),
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
                let path = &self.paths[entry.file];
                return Err(damaged(path, entry.at, "the chunk is not in key order with those before it"));
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
            let path = self.paths.first().cloned().unwrap_or_default();
            return Err(damaged(&path, None, "the chunks together are not what the manifest says"));
        }
        Ok(())
    }
}

fn open_pairs(path: &Path) -> Result<BufReader<File>> {
    let mut file = File::open(path).map_err(at(path))?;
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
