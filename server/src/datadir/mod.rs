//! The data directory of a node: who it belongs to, who may open it, and what stands where (operations.md 1).
//!
//! | name | what |
//! |---|---|
//! | `LOCK` | locked while a process uses the directory; holds its pid |
//! | `VERSION` | format of the directory; written last at its creation, and anew when the feature level is raised |
//! | `node.toml` | cluster, node and incarnation ([`Identity`]); there is a log as soon as it is there |
//! | `incarnations` | which incarnation of each other node was met last ([`known_incarnations`]) |
//! | `copy` | another node said that this directory is a copy, and why: it takes part in nothing |
//! | `endpoints.json` | the addresses after bind; removed at shutdown |
//! | `map` | the newest partition map known, with its crc32c: a hint, for finding the others after a restart |
//! | `log/`, `checkpoints/` | see [`crate::log`], `crate::checkpoint` |
//!
//! Directories are 0700 and files 0600. A file that matters changes by temporary file, fsync, rename, and fsync of the
//! directory, so it is whole at any time.

pub mod known_incarnations;
mod node_toml;

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub use coppice_client::wire::{ClusterId, NodeId};
use coppice_core::incarnation::Identity;
use coppice_core::replay::ReadsLog;
use coppice_core::settings::FEATURE_LEVEL;
use rustix::fs::{FlockOperation, flock};

use crate::files::{flush_dir, replace};
use crate::log::{Hooks, LogError, LogOptions, LogWriter, OpenLog};

/// Content of `VERSION` of a directory in which nothing is above this feature level. Level 1 is format 2.
fn version(feature_level: u32) -> String {
    format!("coppice data directory {}\n", feature_level + 1)
}

/// The feature level that a directory notes.
fn noted_level(version_file: &str) -> Option<u32> {
    (1..=FEATURE_LEVEL).find(|&level| version(level) == version_file)
}

/// What a directory may hold before `VERSION` stands in it: leavings of an interrupted creation.
const OURS: &[&str] = &["LOCK", "log", "checkpoints", "VERSION.tmp", "lost+found"];

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another process uses it.
    #[error("{path} is in use by process {pid}")]
    Locked {
        /// The directory.
        path: PathBuf,
        /// The process that holds it; 0 if it has not said so yet.
        pid: u32,
    },
    /// Something else lies there.
    #[error(
        "{path} holds {name}, which is not of this program: give an empty directory, or the data directory of a node"
    )]
    NotOurs {
        /// The directory.
        path: PathBuf,
        /// The first foreign name.
        name: String,
    },
    /// Written by another version, or for newer ones.
    #[error(
        "{path} is a {found:?}, and this program opens formats up to {:?}: start the version that wrote it, or a newer \
         one; there is no way back from a raised feature level",
        version(FEATURE_LEVEL).trim()
    )]
    Version {
        /// The directory.
        path: PathBuf,
        /// What its `VERSION` says.
        found: String,
    },
    /// `node.toml` cannot be understood.
    #[error("{path}: {reason}")]
    Identity {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// `node.toml` is gone, and what it is about is not: taken for new, the directory would lose it.
    #[error("{path}: node.toml is missing, but log/ or checkpoints/ hold a node's data")]
    Headless {
        /// The directory.
        path: PathBuf,
    },
    /// The directory has an owner already.
    #[error("this is the directory of node {} of cluster {}", .0.node, .0.cluster)]
    Taken(Identity),
    /// The directory has no owner yet: the node waits for `init` or `node add`.
    #[error("this directory belongs to no node yet")]
    Nobody,
    /// The log does not open.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The system refused.
    #[error("{path}: {error}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

/// A data directory in use by this process.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// Locked until they are dropped.
    _locks: [File; 2],
    identity: Option<Identity>,
}

impl DataDir {
    /// Opens `path`, making it a data directory if it is absent or empty.
    ///
    /// # Errors
    /// [`DataDirError`]; nothing has been changed then, unless the system failed half-way, which the next call mends.
    pub fn open(path: &Path) -> Result<DataDir, DataDirError> {
        let at = |error| DataDirError::Io { path: path.to_owned(), error };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(at)?;
        let new = is_new(path)?;
        fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(at)?;
        let locks = lock(path)?;
        if new {
            create(path).map_err(at)?;
        }
        for name in ["log", "checkpoints"] {
            DirBuilder::new().recursive(true).mode(0o700).create(path.join(name)).map_err(at)?;
        }
        let identity = node_toml::read(&path.join("node.toml"))?;
        if identity.is_none() && holds_data(path).map_err(at)? && !mutant!(headless_is_new) {
            return Err(DataDirError::Headless { path: path.to_owned() });
        }
        _ = fs::remove_file(path.join("endpoints.json"));
        Ok(DataDir { path: path.to_owned(), _locks: locks, identity })
    }

    /// Whose directory it is, as of the last start that went through; `None` before [`DataDir::adopt`].
    pub fn identity(&self) -> Option<Identity> {
        self.identity
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the log's segments are.
    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Where the checkpoints are.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// Gives the directory to a node, durably: its empty log, then `node.toml`. Once; the same again does nothing.
    ///
    /// # Errors
    /// [`DataDirError::Taken`] if it is another node's.
    pub fn adopt(&mut self, cluster: ClusterId, node: NodeId) -> Result<(), DataDirError> {
        if let Some(identity) = self.identity {
            let same = identity.cluster == cluster && identity.node == node;
            return if same { Ok(()) } else { Err(DataDirError::Taken(identity)) };
        }
        let identity = Identity { cluster, node, incarnation: 1 };
        // In this order: a node that knows who it is has had a log, so that an empty one is a lost one (PX11).
        LogWriter::create(&self.log(), identity)?;
        failpoint!("datadir.log_made");
        self.write_identity(identity)
    }

    /// Opens the log and counts this start: first in the log, whose new segment names the incarnation, then in
    /// `node.toml`. So a log that is older than `node.toml` has lost segments, and no incarnation is used twice.
    ///
    /// # Errors
    /// [`DataDirError::Nobody`] before [`DataDir::adopt`]; [`DataDirError::Log`].
    pub fn open_log<R: ReadsLog>(
        &mut self,
        replay: R,
        options: LogOptions,
        hooks: Hooks,
    ) -> Result<OpenLog<R>, DataDirError> {
        let known = self.identity.ok_or(DataDirError::Nobody)?;
        let opened = LogWriter::open(&self.log(), known, replay, options, hooks)?;
        failpoint!("datadir.log_opened");
        self.write_identity(opened.identity)?;
        failpoint!("datadir.identified");
        Ok(opened)
    }

    fn write_identity(&mut self, identity: Identity) -> Result<(), DataDirError> {
        replace(&self.path, "node.toml", node_toml::print(identity).as_bytes())
            .map_err(|error| DataDirError::Io { path: self.path.join("node.toml"), error })?;
        self.identity = Some(identity);
        Ok(())
    }

    /// Notes durably that programs which do not know this feature level must not open the directory.
    ///
    /// # Errors
    /// The system's; the directory is as it was.
    pub fn note_feature_level(&self, level: u32) -> io::Result<()> {
        let noted = noted_level(&fs::read_to_string(self.path.join("VERSION"))?);
        if noted.is_some_and(|noted| noted >= level) || mutant!(level_not_noted) {
            return Ok(());
        }
        replace(&self.path, "VERSION", version(level).as_bytes())
    }

    /// Writes `endpoints.json`, for tools and tests that start a node on port 0. It goes when `self` is dropped.
    ///
    /// # Errors
    /// The system's.
    pub fn write_endpoints(&self, json: &str) -> io::Result<()> {
        replace(&self.path, "endpoints.json", json.as_bytes())
    }

    /// Writes down what another node said: that this directory is a copy. It stays one however often it starts.
    ///
    /// # Errors
    /// The system's.
    pub fn write_copy(&self, text: &str) -> io::Result<()> {
        replace(&self.path, "copy", text.as_bytes())
    }

    /// Why this directory is a copy, if another node said so to any process that used it.
    pub fn read_copy(&self) -> Option<String> {
        let text = fs::read(self.path.join("copy")).ok()?;
        (!mutant!(copy_forgets)).then(|| String::from_utf8_lossy(&text).into_owned())
    }

    /// Keeps the newest map that this node knows, so that a restart finds nodes that the seeds do not name.
    ///
    /// # Errors
    /// The system's.
    pub fn write_map(&self, map: &[u8]) -> io::Result<()> {
        let mut content = crc32c::crc32c(map).to_le_bytes().to_vec();
        content.extend_from_slice(map);
        replace(&self.path, "map", &content)
    }

    /// The map that was kept; none if there is none that is whole: it is only a hint.
    pub fn read_map(&self) -> Option<Vec<u8>> {
        let content = fs::read(self.path.join("map")).ok()?;
        let (crc, map) = content.split_at_checked(4)?;
        (crc == crc32c::crc32c(map).to_le_bytes()).then(|| map.to_vec())
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        _ = fs::remove_file(self.path.join("endpoints.json"));
    }
}

/// Whether the directory is still to be made. Refuses one with anything else in it.
fn is_new(path: &Path) -> Result<bool, DataDirError> {
    let at = |error| DataDirError::Io { path: path.to_owned(), error };
    match fs::read_to_string(path.join("VERSION")) {
        Ok(found) if noted_level(&found).is_some() => return Ok(false),
        Ok(found) => return Err(DataDirError::Version { path: path.to_owned(), found: found.trim().to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(at(error)),
    }
    for entry in fs::read_dir(path).map_err(at)? {
        let name = entry.map_err(at)?.file_name().to_string_lossy().into_owned();
        if !OURS.contains(&name.as_str()) {
            return Err(DataDirError::NotOurs { path: path.to_owned(), name });
        }
    }
    Ok(true)
}

/// Whether there is more than the empty log that [`DataDir::adopt`] makes first.
fn holds_data(path: &Path) -> io::Result<bool> {
    if fs::read_dir(path.join("checkpoints"))?.next().is_some() {
        return Ok(true);
    }
    if fs::read_dir(path.join("log"))?.next().is_none() {
        return Ok(false);
    }
    let mut any = false;
    let read = crate::log::reader::read(&path.join("log"), |_| any = true);
    Ok(any || read.is_err())
}

fn create(path: &Path) -> io::Result<()> {
    for name in ["log", "checkpoints"] {
        DirBuilder::new().recursive(true).mode(0o700).create(path.join(name))?;
    }
    flush_dir(path)?;
    if let Some(parent) = path.canonicalize()?.parent() {
        flush_dir(parent)?;
    }
    replace(path, "VERSION", version(1).as_bytes())
}

/// Takes the lock, or says who has it (hazards.md ST13). The directory itself is locked, for somebody may remove
/// `LOCK` beneath a running process; the file too, whose content says who that is.
fn lock(path: &Path) -> Result<[File; 2], DataDirError> {
    let name = path.join("LOCK");
    let at = |error: io::Error| DataDirError::Io { path: name.clone(), error };
    let directory = File::open(path).map_err(at)?;
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(false).mode(0o600).open(&name).map_err(at)?;
    for locked in [&directory, &file] {
        match flock(locked, FlockOperation::NonBlockingLockExclusive) {
            _ if mutant!(no_lock) => {}
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let pid = fs::read_to_string(&name).map_err(at)?.trim().parse().unwrap_or(0);
                return Err(DataDirError::Locked { path: path.to_owned(), pid });
            }
            Err(error) => return Err(at(error.into())),
        }
    }
    let write = |file: &mut File| {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    };
    write(&mut file).map_err(at)?;
    Ok([directory, file])
}
