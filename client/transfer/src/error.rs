//! How a transfer fails: what, and where.

use std::io;
use std::path::{Path, PathBuf};

/// What every transfer returns.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a transfer ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster did not answer, or not as it should.
    #[error("{0}")]
    Client(#[from] coppice_client::Error),
    /// A file or directory could not be read or written.
    #[error("{path}: {error}", path = path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{path}{}: {what}", at.map(|at| format!(" at byte {at}")).unwrap_or_default(), path = path.display())]
    Damaged {
        /// Which.
        path: PathBuf,
        /// Offset of the damage, if it has one.
        at: Option<u64>,
        /// What was found.
        what: String,
    },
    /// An object store refused, or was not reached.
    #[error("{path}: {what}", path = path.display())]
    Store {
        /// What was asked for.
        path: PathBuf,
        /// Why, as far as it matters for what to do.
        reason: StoreReason,
        /// In the words of the store or the system.
        what: String,
    },
    /// It is not begun: something else must be done first.
    #[error("{0}")]
    Refused(#[from] Refusal),
}

/// Why an object store did not do what it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreReason {
    /// The program was built without it.
    NotBuilt,
    /// The address of the backup or of the store is none.
    Address,
    /// The environment holds no credentials.
    NoCredentials,
    /// It does not take the credentials.
    BadCredentials,
    /// The clocks of this machine and of the store differ.
    Clock,
    /// The credentials do not allow it.
    Denied,
    /// There is no such bucket.
    NoBucket,
    /// The bucket is in another region.
    Region,
    /// No connection, or no answer in time.
    Unreachable,
    /// No authority that this machine trusts vouches for it.
    Untrusted,
    /// It went on failing in passing.
    Busy,
    /// Something else.
    Other,
}

/// Why a transfer is not begun.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The directory holds a backup that is whole.
    #[error("{} holds a finished backup", .0.display())]
    Finished(PathBuf),
    /// The directory holds a backup that was interrupted.
    #[error("{} holds a backup that was interrupted", .0.display())]
    Unfinished(PathBuf),
    /// The directory holds files that no backup has.
    #[error("{} holds other files: {file}", directory.display())]
    Foreign {
        /// Which directory.
        directory: PathBuf,
        /// One of them.
        file: String,
    },
    /// There is no backup there.
    #[error("{} holds no finished backup", .0.display())]
    NoBackup(PathBuf),
    /// Another process writes there.
    #[error("another process writes to {}", .0.display())]
    InUse(PathBuf),
    /// The keys that a restore would write are not new.
    #[error("the cluster holds keys already, the first is {0}")]
    NotEmpty(String),
    /// A key that was restored has another value.
    #[error("the key {0} holds a value that is not the backup's")]
    Differs(String),
    /// What was restored is not what the backup holds.
    #[error("the cluster holds {found}, the backup {wanted}")]
    OtherContent {
        /// In the cluster.
        found: String,
        /// In the backup.
        wanted: String,
    },
    /// A file was written by a program that is newer, or older than those that can be read.
    #[error("{} has format {format}, this program reads format {known}", path.display())]
    Format {
        /// Which.
        path: PathBuf,
        /// Its number.
        format: u64,
        /// The number that is known.
        known: u64,
    },
    /// An earlier backup that this one builds on is gone, or is another one.
    #[error("{} is not the earlier backup that {} builds on", base.display(), backup.display())]
    OtherBase {
        /// Where it should be.
        base: PathBuf,
        /// Which backup needs it.
        backup: PathBuf,
    },
    /// A key with the prefix is longer than keys may be.
    #[error("with the prefix, the key {0} is too long")]
    LongKey(String),
    /// A position was kept for another file, or another plan.
    #[error("{} was kept for another content of the file, other flags or another cluster", .0.display())]
    OtherImport(PathBuf),
    /// There is no position to go on from.
    #[error("{} does not exist: there is nothing to resume", .0.display())]
    NoPosition(PathBuf),
}

/// Names the file of an error of the system. An error of ours that came through a reader or writer names its own.
pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
    move |error| error.downcast().unwrap_or_else(|error| Error::Io { path: path.to_owned(), error })
}

pub(crate) fn store(path: &Path, reason: StoreReason, what: impl Into<String>) -> Error {
    Error::Store { path: path.to_owned(), reason, what: what.into() }
}

pub(crate) fn damaged(path: &Path, at: impl Into<Option<u64>>, what: impl Into<String>) -> Error {
    Error::Damaged { path: path.to_owned(), at: at.into(), what: what.into() }
}
