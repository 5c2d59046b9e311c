//! The files of a directory.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{Source, Storage, in_object_store};
use crate::error::{Refusal, Result, at};

const FILE_BYTES_MAX: u64 = 256 << 20;
/// Held by the process that writes, and never listed.
const LOCK: &str = "lock";
/// What is committed, while it is written.
const UNFINISHED: &str = "manifest.new";

/// A directory. See [`Storage`].
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    open: Option<(PathBuf, BufWriter<File>)>,
    lock: Option<File>,
}

impl Directory {
    pub(super) fn at(path: &Path) -> Directory {
        Directory { path: path.to_owned(), open: None, lock: None }
    }

    fn begin(&mut self, path: PathBuf, options: &OpenOptions) -> Result<()> {
        let file = options.open(&path).map_err(at(&path))?;
        self.open = Some((path, BufWriter::with_capacity(1 << 20, file)));
        Ok(())
    }
}

impl Write for Directory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.open.as_mut().map_or(Err(ErrorKind::NotFound.into()), |(_, file)| file.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.open.as_mut().map_or(Ok(()), |(_, file)| file.flush())
    }
}

impl Storage for Directory {
    fn address(&self) -> &Path {
        &self.path
    }

    fn file_bytes_max(&self) -> u64 {
        FILE_BYTES_MAX
    }

    fn list(&self) -> Result<Vec<(String, u64)>> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(at(&self.path))?,
        };
        let sized = entries.map(|entry| {
            let entry = entry?;
            Ok((entry.file_name().to_string_lossy().into_owned(), entry.metadata()?.len()))
        });
        let all: Vec<_> = sized.collect::<io::Result<_>>().map_err(at(&self.path))?;
        Ok(all.into_iter().filter(|(name, _)| ![LOCK, UNFINISHED].contains(&&name[..])).collect())
    }

    fn open(&self, name: &str) -> Result<Option<Box<dyn Source>>> {
        let path = self.path.join(name);
        match File::open(&path) {
            Ok(file) => Ok(Some(Box::new(file))),
            Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => Ok(None),
            Err(error) => Err(at(&path)(error)),
        }
    }

    fn lock(&mut self) -> Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.path).map_err(at(&self.path))?;
        let path = self.path.join(LOCK);
        let lock = private().create(true).open(&path).map_err(at(&path))?;
        match lock.try_lock() {
            Ok(()) => self.lock = Some(lock),
            Err(TryLockError::WouldBlock) => return Err(Refusal::InUse(self.path.clone()).into()),
            Err(TryLockError::Error(error)) => return Err(at(&path)(error)),
        }
        Ok(())
    }

    fn cut(&self, name: &str, bytes: u64) -> Result<()> {
        let path = self.path.join(name);
        let file = OpenOptions::new().write(true).open(&path).map_err(at(&path))?;
        file.set_len(bytes).and_then(|()| file.sync_all()).map_err(at(&path))
    }

    fn create(&mut self, name: &str) -> Result<()> {
        self.sync()?;
        self.begin(self.path.join(name), private().create_new(true))
    }

    fn sync(&mut self) -> Result<()> {
        let Some((path, open)) = self.open.take() else { return Ok(()) };
        let file = open.into_inner().map_err(|error| at(&path)(error.into_error()))?;
        file.sync_all().map_err(at(&path))
    }

    fn commit(&mut self, name: &str, write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        self.sync()?;
        let (unfinished, path) = (self.path.join(UNFINISHED), self.path.join(name));
        self.begin(unfinished.clone(), private().create(true).truncate(true))?;
        write(self).map_err(at(&unfinished))?;
        self.sync()?;
        fs::rename(&unfinished, &path).map_err(at(&path))?;
        let lock = self.path.join(LOCK);
        fs::remove_file(&lock).map_err(at(&lock))?;
        File::open(&self.path).and_then(|directory| directory.sync_all()).map_err(at(&self.path))
    }
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

/// A path without links and dots; of an object store it has none.
pub(super) fn canonical(path: &Path) -> Result<PathBuf> {
    if in_object_store(path) { Ok(path.to_owned()) } else { fs::canonicalize(path).map_err(at(path)) }
}
