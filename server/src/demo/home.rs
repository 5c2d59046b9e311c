//! Where a demo keeps its nodes' data: a temporary directory, removed with it, or one that stays and is resumed.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ports::NodePorts;

const MANIFEST: &str = "demo.json";
/// tmpfs and ramfs, from linux/magic.h.
const MEMORY_FILE_SYSTEMS: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// What a kept directory says about the cluster in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Format of this file.
    pub v: u32,
    /// Partitions that the cluster began with.
    pub partitions: u32,
    /// One entry per node.
    pub ports: Vec<NodePorts>,
    /// Nodes and clients connect inside TLS, with the certificates in the directory.
    #[serde(default)]
    pub tls: bool,
}

/// A directory in use by one demo.
#[derive(Debug)]
pub struct Home {
    pub path: PathBuf,
    /// Removed at the end.
    pub temporary: bool,
    /// On a file system in memory: it survives kills, not power cuts.
    pub in_memory: bool,
    /// What was found in it.
    pub found: Option<Manifest>,
    /// Locked for as long as the demo runs.
    manifest: File,
}

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// The system's reason.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Another demo runs in it.
    #[error("another demo runs in {path}", path = path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// It holds something, and no demo.
    #[error("{path} is not empty and no demo is in it", path = path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
    },
    /// Its manifest is damaged or of a later version.
    #[error("{path} is not readable as a demo's manifest: {reason}", path = path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl Home {
    /// A new directory of our own below the system's temporary one.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn temporary() -> Result<Self, HomeError> {
        let base = std::env::temp_dir();
        for attempt in 0_u32.. {
            let path = base.join(format!("coppice-demo-{}-{attempt}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Self::open(path, true),
                // Left by a process that had our number before; never reused.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(HomeError::Io { path, source }),
            }
        }
        unreachable!("one of 2^32 names is free")
    }

    /// A directory that stays: a new or empty one, or one that a demo has used before.
    ///
    /// # Errors
    /// It cannot be made, is in use, or holds something else.
    pub fn kept(path: &Path) -> Result<Self, HomeError> {
        let io_error = |source| HomeError::Io { path: path.to_owned(), source };
        DirBuilder::new().mode(0o700).recursive(true).create(path).map_err(io_error)?;
        let mut entries = std::fs::read_dir(path).map_err(io_error)?;
        if !path.join(MANIFEST).exists() && entries.next().is_some() {
            return Err(HomeError::Foreign { path: path.to_owned() });
        }
        // What is printed must be right in another shell's directory too.
        let path = std::path::absolute(path).map_err(io_error)?;
        Self::open(path, false)
    }

    fn open(path: PathBuf, temporary: bool) -> Result<Self, HomeError> {
        let file = path.join(MANIFEST);
        let io_error = |source| HomeError::Io { path: file.clone(), source };
        let mut manifest = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&file)
            .map_err(io_error)?;
        match rustix::fs::flock(&manifest, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(HomeError::InUse { path }),
            Err(errno) => return Err(io_error(errno.into())),
        }
        let mut text = String::new();
        manifest.read_to_string(&mut text).map_err(io_error)?;
        let found = if text.is_empty() { None } else { Some(parse(&text, &file)?) };
        let in_memory = is_in_memory(&path);
        Ok(Self { path, temporary, in_memory, found, manifest })
    }

    /// Writes down what the cluster is. An interrupted start is begun anew in the same directory.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn record(&mut self, manifest: &Manifest) -> Result<(), HomeError> {
        let text = serde_json::to_string_pretty(manifest).unwrap_or_default();
        self.manifest
            .write_all(text.as_bytes())
            .and_then(|()| self.manifest.sync_all())
            .map_err(|source| HomeError::Io { path: self.path.join(MANIFEST), source })
    }

    /// The data directory of node `number`.
    #[must_use]
    pub fn node(&self, number: u32) -> PathBuf {
        self.path.join(format!("n{number}"))
    }

    /// Where certificates are.
    #[must_use]
    pub fn certs(&self) -> PathBuf {
        self.path.join("certs")
    }

    /// Where the log of node `number` goes.
    #[must_use]
    pub fn log(&self, number: u32) -> PathBuf {
        self.path.join(format!("n{number}.log"))
    }
}

fn parse(text: &str, file: &Path) -> Result<Manifest, HomeError> {
    let wrong = |reason: String| HomeError::Manifest { path: file.to_owned(), reason };
    let manifest: Manifest = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    if manifest.v != 1 {
        return Err(wrong(format!("its version is {}, this program knows 1", manifest.v)));
    }
    if manifest.ports.is_empty() || manifest.ports.len() > 9 || manifest.partitions == 0 {
        return Err(wrong("it names no cluster that a demo could have made".to_owned()));
    }
    Ok(manifest)
}

/// Removes a temporary directory, also while a dying process still writes into it.
pub fn remove(path: &Path) {
    for _ in 0..50 {
        match std::fs::remove_dir_all(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            _ => return,
        }
    }
}

fn is_in_memory(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|stat| MEMORY_FILE_SYSTEMS.contains(&stat.f_type))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        Manifest { v: 1, partitions: 4, ports: vec![NodePorts::usual(1), NodePorts::usual(2)], tls: false }
    }

    #[test]
    fn a_kept_directory_is_used_by_one_demo_at_a_time_and_found_again() {
        let temporary = Home::temporary().expect("a directory");
        let path = temporary.path.join("kept");
        let mut home = Home::kept(&path).expect("a new directory");
        assert_eq!(home.found, None);
        home.record(&manifest()).expect("it is writable");
        assert!(matches!(Home::kept(&path), Err(HomeError::InUse { .. })));
        drop(home);
        assert_eq!(Home::kept(&path).expect("it is free").found, Some(manifest()));
        remove(&temporary.path);
        assert!(!temporary.path.exists());
    }

    #[test]
    fn a_directory_of_somebody_else_is_left_alone() {
        let temporary = Home::temporary().expect("a directory");
        let path = temporary.path.join("foreign");
        std::fs::create_dir(&path).expect("it is writable");
        std::fs::write(path.join("thesis.txt"), "years of work").expect("it is writable");
        assert!(matches!(Home::kept(&path), Err(HomeError::Foreign { .. })));
        std::fs::write(path.join(MANIFEST), "{\"v\":2,\"partitions\":1,\"ports\":[]}").expect("it is writable");
        assert!(matches!(Home::kept(&path), Err(HomeError::Manifest { .. })));
        remove(&temporary.path);
    }
}
