//! A snapshot as one value (protocol.md 1.6): the decided state of a group at one instance, taken from a replica, and
//! put together again. Pure: `checkpoint` makes files of it, `control::snapshots` sends it.

use bytes::Bytes;
use coppice_btree::{Capacity, Key, KeyRange, Tree, Value};
use coppice_client::wire::{ClusterId, MapVersion, PartitionId};
use coppice_ordering::{Ballot, Configuration, Instance, Ticket};

use crate::machine::Machine;
use crate::machine::directory::{Directory, DirectoryState};
use crate::machine::partition::{Expiry, Partition};
use crate::replica::Replica;
use crate::sessions::Sessions;

/// Where and when a snapshot was taken: everything but the pairs and the blobs. One value, at one instance
/// (protocol.md 1.6).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Whose state: that of another cluster is never installed.
    pub cluster: ClusterId,
    pub partition: PartitionId,
    /// The state after this instance.
    pub instance: Instance,
    /// The lowest key of the range.
    pub low: Bytes,
    /// The first key above the range.
    pub high: Option<Bytes>,
    /// The version of the map that gave these bounds.
    pub map_version: MapVersion,
    /// The last ticket that counted.
    pub last_ticket: Option<Ticket>,
}

/// What a snapshot holds beside the tree. Opaque here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blobs {
    /// The session table.
    pub sessions: Bytes,
    /// Ids of the map changes that were applied.
    pub changes: Bytes,
    /// The configuration in force and the instance that decided it.
    pub configuration: Bytes,
    /// The state of the directory; in every other partition its time and when its keys expire, or nothing.
    pub directory: Bytes,
}

impl Blobs {
    /// All of them, in the order in which they are written.
    pub fn all(&self) -> [&Bytes; BLOBS] {
        [&self.sessions, &self.changes, &self.configuration, &self.directory]
    }
}

/// How many blobs there are.
pub const BLOBS: usize = 4;

/// The blobs of a snapshot that was taken. Deadlines are written where the blobs are wanted, and not in the step of the
/// worker that takes the snapshot: it would last as long as there are keys that expire.
#[derive(Debug, Default)]
pub struct TakenBlobs {
    blobs: Blobs,
    expiry: Option<Expiry>,
}

impl TakenBlobs {
    /// All of them. Linear in the deadlines.
    pub fn write(&self) -> Blobs {
        let mut blobs = self.blobs.clone();
        if let Some(expiry) = self.expiry.as_ref().filter(|_| !mutant!(expiry_lost_in_snapshot)) {
            blobs.directory = expiry.export();
        }
        blobs
    }
}

impl From<Blobs> for TakenBlobs {
    fn from(blobs: Blobs) -> TakenBlobs {
        TakenBlobs { blobs, expiry: None }
    }
}

/// The decided state of a group, ready to be written or sent.
#[derive(Debug)]
pub struct TakenSnapshot {
    /// Where and when.
    pub head: Head,
    /// Everything but the pairs.
    pub blobs: TakenBlobs,
    /// The pairs.
    pub tree: Tree,
}

/// A state read from disk or from a peer.
#[derive(Debug)]
pub struct LoadedSnapshot {
    /// The state.
    pub machine: Machine,
    /// The instance that it was taken at.
    pub instance: Instance,
    /// What governs the next instance.
    pub configuration: Configuration,
    /// The instance that decided that.
    pub configured_at: Instance,
    /// What the replica that took it had promised (protocol.md 1.5).
    pub promised: Ballot,
}

/// The blobs or pairs of an intact snapshot make no state: it was written by something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what the snapshot holds is no state of a partition")]
pub struct NoState;

/// The decided state of a group: O(1) for the trees, linear in the sessions.
pub fn take(cluster: ClusterId, replica: &Replica) -> TakenSnapshot {
    let executor = replica.executor();
    // Never what was last executed: what is above the decided instance may be taken back (hazards.md SP7).
    let state = if mutant!(snapshot_at_last_executed) { executor.machine().copy() } else { executor.decided_state() };
    let nobody = Configuration::default();
    let (configuration, configured_at) = match mutant!(snap_no_conf) {
        false if mutant!(snap_newest_conf) => replica.paxos().configuration(),
        // The executor may wait for a neighbour's state below a configuration that is decided.
        false => replica.paxos().configuration_at(executor.decided()),
        true => (&nobody, Instance::ZERO),
    };
    let promised = replica.paxos().promised();
    let plain = "replicated state is plain data";
    let mut blobs = Blobs {
        configuration: postcard::to_stdvec(&(configuration, configured_at, promised)).expect(plain).into(),
        ..Blobs::default()
    };
    let mut head = Head { cluster, partition: replica.group(), instance: executor.decided(), ..Head::default() };
    let (tree, expiry) = match state {
        Machine::Directory(directory) => {
            blobs.directory = directory_bytes(&directory);
            (Tree::new(), None)
        }
        Machine::Partition(data) => {
            head.low = Bytes::copy_from_slice(&data.range().low);
            head.high = data.range().high.as_ref().map(|high| Bytes::copy_from_slice(high));
            head.map_version = data.map_version();
            head.last_ticket = if mutant!(snap_no_ticket) { None } else { data.last_ticket() };
            let sessions = if mutant!(snap_no_sessions) { Vec::new() } else { data.sessions().export() };
            blobs.sessions = postcard::to_stdvec(&sessions).expect(plain).into();
            blobs.changes = postcard::to_stdvec(&(data.sealed(), data.session_limits())).expect(plain).into();
            let (tree, expiry) = data.into_trees();
            (tree, Some(expiry))
        }
    };
    TakenSnapshot { head, blobs: TakenBlobs { blobs, expiry }, tree }
}

/// All that the directory holds.
fn directory_bytes(directory: &Directory) -> Bytes {
    let mut state = (**directory.state()).clone();
    if mutant!(users_not_in_snapshot) {
        state.users = Default::default();
    }
    postcard::to_stdvec(&state).expect("replicated state is plain data").into()
}

fn directory_of(bytes: &[u8]) -> Result<Directory, NoState> {
    let state = postcard::from_bytes(bytes).ok().filter(DirectoryState::is_sound);
    state.map(Directory::new).ok_or(NoState)
}

/// The state that [`take`] took. The pairs must ascend.
///
/// # Errors
/// [`NoState`].
pub fn restore(
    head: &Head,
    blobs: &Blobs,
    pairs: impl Iterator<Item = (Key, Value)>,
) -> Result<LoadedSnapshot, NoState> {
    restore_with_capacity(head, blobs, pairs, Capacity::DEFAULT)
}

/// [`restore`] into a tree with nodes of another width: for tests.
///
/// # Errors
/// [`NoState`].
pub fn restore_with_capacity(
    head: &Head,
    blobs: &Blobs,
    pairs: impl Iterator<Item = (Key, Value)>,
    capacity: Capacity,
) -> Result<LoadedSnapshot, NoState> {
    let tree = Tree::from_sorted_with_capacity(pairs, capacity).map_err(|_| NoState)?;
    let Head { partition, instance, low, high, map_version, last_ticket, .. } = head.clone();
    let (configuration, configured_at, promised) = postcard::from_bytes(&blobs.configuration).map_err(|_| NoState)?;
    let machine = if partition == PartitionId::DIRECTORY {
        Machine::Directory(directory_of(&blobs.directory)?)
    } else {
        let range = KeyRange { low: (&low[..]).into(), high: high.as_deref().map(Into::into) };
        let saved = postcard::from_bytes(&blobs.sessions).map_err(|_| NoState)?;
        let sessions = Sessions::read(saved).ok_or(NoState)?;
        let mut partition = Partition::restored(partition, range, map_version, tree, sessions, last_ticket);
        let (sealed, limits) = postcard::from_bytes(&blobs.changes).map_err(|_| NoState)?;
        partition.set_sealed(sealed);
        partition.set_expiry(Expiry::import(&blobs.directory).ok_or(NoState)?);
        if !mutant!(install_default_limits) {
            partition.set_session_limits(limits);
        }
        Machine::Partition(Box::new(partition))
    };
    Ok(LoadedSnapshot { machine, instance, configuration, configured_at, promised })
}

/// Which boundaries of a replica are in a checkpoint or a snapshot on its own disk: those of the newest.
#[derive(Clone, Copy, Debug, Default)]
pub struct SavedBoundaries {
    version: MapVersion,
    /// That of the last change by which a neighbour was taken in.
    joined: MapVersion,
}

impl SavedBoundaries {
    /// Of a replica that begins with `machine`, loaded from the disk.
    pub fn new(machine: &Machine) -> SavedBoundaries {
        let version = machine.partition().map(Partition::map_version).unwrap_or_default();
        SavedBoundaries { version, joined: MapVersion::default() }
    }

    /// Neighbours were taken in by changes of these versions.
    pub fn joined(&mut self, joins: &[MapVersion]) {
        self.joined = joins.iter().copied().fold(self.joined, MapVersion::max);
    }

    /// A checkpoint or a snapshot with the boundaries of `version` is on the disk.
    pub fn saved(&mut self, version: MapVersion) {
        // The writing of a checkpoint may begin before and end after a newer snapshot came from a peer.
        self.version = if mutant!(older_checkpoint_counts) { version } else { version.max(self.version) };
    }

    /// The map version of the boundaries that are on the disk.
    pub fn version(&self) -> MapVersion {
        self.version
    }

    /// Whether a neighbour was taken in that is in no checkpoint yet.
    pub fn is_owed(&self) -> bool {
        self.joined > self.version
    }
}

#[cfg(test)]
mod tests {
    use coppice_client::Token;
    use coppice_client::wire::{Grant, Role, UserChange};

    use super::*;

    #[test]
    fn a_checkpoint_that_ends_after_a_newer_snapshot_takes_nothing_back() {
        let directory = Machine::Directory(Directory::new(Default::default()));
        let mut boundaries = SavedBoundaries::new(&directory);
        boundaries.joined(&[MapVersion(7)]);
        assert!(boundaries.is_owed());
        // A checkpoint is begun before the change; while it is written, a snapshot of a peer is installed.
        boundaries.saved(MapVersion(7));
        boundaries.saved(MapVersion(3));
        assert_eq!((boundaries.version(), boundaries.is_owed()), (MapVersion(7), false));
        boundaries.saved(MapVersion(8));
        assert_eq!(boundaries.version(), MapVersion(8));
    }

    /// A replica of the directory that begins from a snapshot must not let everybody in.
    #[test]
    fn a_snapshot_of_the_directory_holds_the_users() {
        let mut state = DirectoryState::default();
        let add = UserChange::Add {
            name: "root".into(),
            grant: Grant { role: Role::Admin, prefix: Bytes::new() },
            token: Some(Token::generate().expect("random bits").hash()),
            certificate: None,
        };
        assert_eq!(state.users.apply(None, &add, 0), Ok(true));
        let taken = directory_bytes(&Directory::new(state.clone()));
        assert_eq!(directory_of(&taken).expect("a state").state().users, state.users);
    }

    /// The next partition of one that holds the last number there is would be the directory.
    #[test]
    fn a_snapshot_of_the_directory_that_nothing_can_follow_is_refused() {
        let sound = DirectoryState { partitions_used: 1_000_000, ..DirectoryState::default() };
        assert!(directory_of(&directory_bytes(&Directory::new(sound.clone()))).is_ok());
        let damaged = |damage: fn(&mut DirectoryState)| {
            let mut state = sound.clone();
            damage(&mut state);
            directory_of(&directory_bytes(&Directory::new(state)))
        };
        assert!(damaged(|state| state.partitions_used = u32::MAX).is_err());
        assert!(damaged(|state| _ = state.replicas_used.insert(PartitionId(1), u32::MAX)).is_err());
        assert!(damaged(|state| state.map.version = MapVersion(u64::MAX)).is_err());
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn a_snapshot_without_users_is_caught() {
        let test = "snapshot::tests::a_snapshot_of_the_directory_holds_the_users";
        planted::assert_caught("users_not_in_snapshot", test);
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn an_older_checkpoint_that_counts_is_caught() {
        let test = "snapshot::tests::a_checkpoint_that_ends_after_a_newer_snapshot_takes_nothing_back";
        planted::assert_caught("older_checkpoint_counts", test);
    }
}
