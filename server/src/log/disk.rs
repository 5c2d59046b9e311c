//! The log directory on a real file system. The only file of `log/` that opens files.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, IoSlice, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bytes::{Buf, Bytes};

use super::core::{FileEffect, FileName};
use super::segment;

/// What the log needs of a disk: a real directory, or the simulator's.
pub trait Disk {
    /// The log's files.
    fn list(&mut self) -> io::Result<Vec<FileName>>;
    /// The first `limit` bytes of a file; fewer if it is shorter.
    fn read(&mut self, file: FileName, limit: usize) -> io::Result<Vec<u8>>;
    /// Carries out one effect. A failed `Flush` must never be repeated (reliability.md ST1).
    fn carry_out(&mut self, effect: &FileEffect) -> io::Result<()>;
}

/// Bytes written between two flushes while a segment is zeroed: commits of others slip in between.
const ZERO_CHUNK_BYTES: u64 = 1 << 20;

/// Slices that one `pwritev` takes (IOV_MAX on Linux).
const SLICES_MAX: usize = 1_024;

/// A directory of segments. Each thread has one of its own.
#[derive(Debug)]
pub struct FileDisk {
    dir: PathBuf,
    /// The file written last, kept open.
    open: Option<(FileName, File)>,
    /// `log.flush = off`: nothing is durable, a power cut loses votes.
    unsafe_no_flush: bool,
}

impl FileDisk {
    /// The log in `dir`, which is created if need be.
    pub fn new(dir: &Path, unsafe_no_flush: bool) -> io::Result<FileDisk> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        Ok(FileDisk { dir: dir.to_owned(), open: None, unsafe_no_flush })
    }

    /// The log in `dir`, which must be there.
    pub fn existing(dir: &Path) -> io::Result<FileDisk> {
        fs::read_dir(dir)?;
        Ok(FileDisk { dir: dir.to_owned(), open: None, unsafe_no_flush: false })
    }

    fn path(&self, file: FileName) -> PathBuf {
        self.dir.join(file.to_string())
    }

    fn file(&mut self, name: FileName) -> io::Result<&File> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != name) {
            let file = OpenOptions::new().write(true).open(self.path(name))?;
            self.open = Some((name, file));
        }
        Ok(&self.open.as_ref().expect("just opened").1)
    }

    fn create(&mut self, name: FileName, bytes: u64) -> io::Result<()> {
        let path = self.path(name);
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        let zeros = Bytes::from(vec![0; ZERO_CHUNK_BYTES.min(bytes) as usize]);
        let mut done = 0;
        while done < bytes {
            let chunk = ZERO_CHUNK_BYTES.min(bytes - done);
            let written = write_all_at(&file, done, &[zeros.slice(..chunk as usize)]);
            if let Err(error) = written.and_then(|()| if self.unsafe_no_flush { Ok(()) } else { file.sync_data() }) {
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
        Ok(bytes)
    }

    fn carry_out(&mut self, effect: &FileEffect) -> io::Result<()> {
        match effect {
            FileEffect::Create { file, bytes } => self.create(*file, *bytes),
            FileEffect::Append { file, offset, parts } => write_all_at(self.file(*file)?, *offset, parts),
            FileEffect::Flush { .. } if self.unsafe_no_flush => Ok(()),
            FileEffect::Flush { file } => self.file(*file)?.sync_data(),
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
                File::open(&self.dir)?.sync_all()
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

/// Writes `parts` one after the other at `offset`, as few system calls as they allow, without copying them together.
fn write_all_at(file: &File, mut offset: u64, parts: &[Bytes]) -> io::Result<()> {
    let mut parts: Vec<Bytes> = parts.iter().filter(|part| !part.is_empty()).cloned().collect();
    let mut first = 0;
    while first < parts.len() {
        let slices: Vec<IoSlice<'_>> = parts[first..].iter().take(SLICES_MAX).map(|part| IoSlice::new(part)).collect();
        let mut written = match rustix::io::pwritev(file, &slices, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => written,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        offset += written as u64;
        while first < parts.len() && written >= parts[first].len() {
            written -= parts[first].len();
            first += 1;
        }
        if written > 0 {
            parts[first].advance(written);
        }
    }
    Ok(())
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
