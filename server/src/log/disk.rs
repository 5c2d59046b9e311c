//! The log directory on a real file system. With `file`, all of `log/` that opens files.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::core::{FileEffect, FileName};
use super::file::{LogFile, Stage, Way};
use super::segment;
use super::writer::ReadObserver;

/// What the log needs of a disk: a real directory, or the simulator's.
pub trait Disk {
    /// The log's files.
    fn list(&mut self) -> io::Result<Vec<FileName>>;
    /// The first `limit` bytes of a file; fewer if it is shorter.
    fn read(&mut self, file: FileName, limit: usize) -> io::Result<Vec<u8>>;
    /// This file is written soon: the disk may open it now. If it cannot, it tries again when the file is written.
    fn open_ahead(&mut self, file: FileName) {
        _ = file;
    }
    /// Carries out one effect. A failed `Flush` must never be repeated (hazards.md ST1).
    fn apply(&mut self, effect: &FileEffect) -> io::Result<()>;
}

/// Bytes written between two flushes while a segment is zeroed: commits of others slip in between.
const ZERO_CHUNK_BYTES: u64 = 1 << 20;

/// A directory of segments. Each thread has one of its own.
#[derive(Debug)]
pub struct FileDisk {
    dir: PathBuf,
    /// Kept open: names are flushed when no descriptor is left, too.
    directory: File,
    /// The file written last, kept open.
    open: Option<(FileName, LogFile)>,
    /// Files to be written next.
    ahead: VecDeque<(FileName, LogFile)>,
    stage: Stage,
    /// `log.flush = off`: nothing is durable, a power cut loses votes.
    unsafe_no_flush: bool,
    reads: Option<Reads>,
}

/// Who is told of reads, of how many bytes, of how many.
#[derive(Debug)]
struct Reads {
    observer: ReadObserver,
    read: u64,
    all: u64,
}

impl FileDisk {
    /// The log in `dir`, which is created if need be.
    pub fn new(dir: &Path, unsafe_no_flush: bool) -> io::Result<FileDisk> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        FileDisk::at(dir, unsafe_no_flush)
    }

    /// The log in `dir`, which must be there.
    pub fn existing(dir: &Path) -> io::Result<FileDisk> {
        fs::read_dir(dir)?;
        FileDisk::at(dir, false)
    }

    fn at(dir: &Path, unsafe_no_flush: bool) -> io::Result<FileDisk> {
        let (directory, stage) = (File::open(dir)?, Stage::default());
        let (open, ahead, reads) = (None, VecDeque::new(), None);
        Ok(FileDisk { dir: dir.to_owned(), directory, open, ahead, stage, unsafe_no_flush, reads })
    }

    /// Tells how far all that is in the log now is read.
    pub(super) fn observe_reads(&mut self, observer: ReadObserver) -> io::Result<()> {
        let files = self.list()?.into_iter();
        let files = files.filter(|file| matches!(file, FileName::Segment(_)));
        let sizes = files.map(|file| Ok(fs::metadata(self.path(file))?.len()));
        let all = sizes.sum::<io::Result<u64>>()?;
        self.reads = Some(Reads { observer, read: 0, all });
        Ok(())
    }

    fn path(&self, file: FileName) -> PathBuf {
        self.dir.join(file.to_string())
    }

    /// Without flushes nothing waits for the disk, and the page cache takes the bytes fastest.
    fn way(&self) -> Way {
        if self.unsafe_no_flush { Way::Cached } else { Way::Direct }
    }

    fn file(&mut self, name: FileName) -> io::Result<&mut LogFile> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != name) {
            let file = match self.ahead.iter().position(|(ahead, _)| *ahead == name) {
                Some(at) => self.ahead.drain(..=at).next_back().expect("at least one").1,
                None => self.open_file(name)?,
            };
            self.open = Some((name, file));
        }
        Ok(&mut self.open.as_mut().expect("just opened").1)
    }

    fn open_file(&self, name: FileName) -> io::Result<LogFile> {
        LogFile::open(&self.path(name), OpenOptions::new().write(true), self.way())
    }

    fn write(&mut self, name: FileName, offset: u64, parts: &[Bytes]) -> io::Result<()> {
        let mut stage = std::mem::take(&mut self.stage);
        let written = self.file(name).and_then(|file| file.write(&mut stage, offset, parts));
        self.stage = stage;
        written
    }

    fn create(&mut self, name: FileName, bytes: u64) -> io::Result<()> {
        let path = self.path(name);
        let options = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).clone();
        let mut file = LogFile::open(&path, &options, self.way())?;
        let zeros = Bytes::from(vec![0; ZERO_CHUNK_BYTES.min(bytes) as usize]);
        let mut done = 0;
        while done < bytes {
            let chunk = ZERO_CHUNK_BYTES.min(bytes - done);
            let written = file.write(&mut self.stage, done, &[zeros.slice(..chunk as usize)]);
            if let Err(error) = written.and_then(|()| if self.unsafe_no_flush { Ok(()) } else { file.flush() }) {
                // Half a segment is of no use, and on a full disk it takes the room that votes need.
                _ = fs::remove_file(&path);
                return Err(error);
            }
            done += chunk;
        }
        self.open = Some((name, file));
        Ok(())
    }
}

impl Disk for FileDisk {
    fn list(&mut self) -> io::Result<Vec<FileName>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let name = entry?.file_name();
            files.extend(name.to_str().and_then(FileName::parse));
        }
        Ok(files)
    }

    fn read(&mut self, file: FileName, limit: usize) -> io::Result<Vec<u8>> {
        let file = File::open(self.path(file))?;
        let length = file.metadata()?.len().min(limit as u64);
        let mut bytes = Vec::with_capacity(length as usize);
        file.take(length).read_to_end(&mut bytes)?;
        if let Some(Reads { observer, read, all }) = self.reads.as_mut().filter(|_| limit == usize::MAX) {
            *read += length;
            (observer.0)(*read, *all);
        }
        Ok(bytes)
    }

    fn open_ahead(&mut self, file: FileName) {
        if let Ok(open) = self.open_file(file) {
            self.ahead.push_back((file, open));
        }
    }

    fn apply(&mut self, effect: &FileEffect) -> io::Result<()> {
        match effect {
            FileEffect::Create { file, bytes } => self.create(*file, *bytes),
            FileEffect::Append { file, offset, parts } => self.write(*file, *offset, parts),
            FileEffect::Flush { .. } if self.unsafe_no_flush => Ok(()),
            FileEffect::Flush { file } => self.file(*file)?.flush(),
            FileEffect::Rename { from, to } => {
                self.open = None;
                if let FileName::Old(_) = to {
                    DirBuilder::new().recursive(true).mode(0o700).create(self.dir.join("old"))?;
                }
                fs::rename(self.path(*from), self.path(*to))
            }
            FileEffect::FlushDir => {
                let old = self.dir.join("old");
                if old.exists() {
                    File::open(old)?.sync_all()?;
                }
                self.directory.sync_all()
            }
            FileEffect::Truncate { file, bytes } => {
                self.open = None;
                OpenOptions::new().write(true).open(self.path(*file))?.set_len(*bytes)
            }
            FileEffect::Remove { file } => {
                self.open = None;
                match fs::remove_file(self.path(*file)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                    _ => Ok(()),
                }
            }
        }
    }
}

impl std::fmt::Display for FileName {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FileName::Segment(number) => out.write_str(&segment::file_name(*number)),
            FileName::Temporary(number) => write!(out, "{number:08}.tmp"),
            FileName::Old(number) => write!(out, "old/{}", segment::file_name(*number)),
        }
    }
}

impl FileName {
    /// The log file with this name; `None` for any other file.
    pub fn parse(name: &str) -> Option<FileName> {
        if let Some(stem) = name.strip_suffix(".tmp") {
            return segment::parse_file_name(&format!("{stem}.seg")).map(FileName::Temporary);
        }
        segment::parse_file_name(name).map(FileName::Segment)
    }
}
