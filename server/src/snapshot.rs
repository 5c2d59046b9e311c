//! A snapshot as one value (ordering.md 1.6): the decided state of a group at one instance, taken from a replica, and
//! put together again. Pure: `checkpoint` makes files of it, `control::snapshots` sends it.

use bytes::Bytes;
use coppice_btree::{Capacity, Key, KeyRange, Tree, Value};
use coppice_client::wire::{ChangeId, PartitionId};
use coppice_ordering::{Ballot, Configuration, Instance};

use crate::checkpoint::{Blobs, Head};
use crate::machine::Machine;
use crate::machine::directory::Directory;
use crate::machine::shard::Shard;
use crate::replica::Replica;
use crate::sessions::Sessions;

/// The decided state of a group, ready to be written or sent.
#[derive(Debug)]
pub struct Taken {
    /// Where and when.
    pub head: Head,
    /// Everything but the pairs.
    pub blobs: Blobs,
    /// Changes of borders that are in it.
    pub applied: Vec<ChangeId>,
    /// The pairs.
    pub tree: Tree,
}

/// A state read from disk or from a peer.
#[derive(Debug)]
pub struct Loaded {
    /// The state.
    pub machine: Machine,
    /// The instance that it was taken at.
    pub instance: Instance,
    /// What governs the next instance.
    pub configuration: Configuration,
    /// The instance that decided that.
    pub configured_at: Instance,
    /// What the replica that took it had promised (ordering.md 1.5).
    pub promised: Ballot,
}

/// The blobs or pairs of an intact snapshot make no state: it was written by something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what the snapshot holds is no state of a partition")]
pub struct NoState;

/// The decided state of a group: O(1) for the tree, linear in the sessions.
pub fn take(replica: &Replica) -> Taken {
    let executor = replica.executor();
    // Never the tip: what is above the decided instance may be taken back (reliability.md SP7).
    let state = if crate::mutant!(snapshot_at_tip) { executor.machine().copy() } else { executor.decided_state() };
    let nobody = Configuration::default();
    let (configuration, configured_at) = match crate::mutant!(snap_no_conf) {
        false if crate::mutant!(snap_newest_conf) => replica.paxos().configuration(),
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
    let mut head = Head { partition: replica.group(), instance: executor.decided(), ..Head::default() };
    let mut applied = Vec::new();
    let tree = match state {
        Machine::Directory(directory) => {
            blobs.directory = postcard::to_stdvec(&**directory.state()).expect(plain).into();
            Tree::new()
        }
        Machine::Shard(data) => {
            head.low = Bytes::copy_from_slice(&data.range().low);
            head.high = data.range().high.as_ref().map(|high| Bytes::copy_from_slice(high));
            head.map_version = data.map_version();
            head.last_ticket = if crate::mutant!(snap_no_ticket) { None } else { data.last_ticket() };
            let sessions = if crate::mutant!(snap_no_sessions) { Vec::new() } else { data.sessions().export() };
            blobs.sessions = postcard::to_stdvec(&sessions).expect(plain).into();
            blobs.changes =
                postcard::to_stdvec(&(data.applied(), data.sealed(), data.session_limits())).expect(plain).into();
            applied = data.applied().to_vec();
            data.into_tree()
        }
    };
    Taken { head, blobs, applied, tree }
}

/// The state that [`take`] took. The pairs must ascend.
///
/// # Errors
/// [`NoState`].
pub fn restore(head: &Head, blobs: &Blobs, pairs: impl Iterator<Item = (Key, Value)>) -> Result<Loaded, NoState> {
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
) -> Result<Loaded, NoState> {
    let tree = Tree::from_sorted_with_capacity(pairs, capacity).map_err(|_| NoState)?;
    let Head { partition, instance, low, high, map_version, last_ticket } = head.clone();
    let (configuration, configured_at, promised) = postcard::from_bytes(&blobs.configuration).map_err(|_| NoState)?;
    let machine = if partition == PartitionId::DIRECTORY {
        Machine::Directory(Directory::new(postcard::from_bytes(&blobs.directory).map_err(|_| NoState)?))
    } else {
        let range = KeyRange { low: (&low[..]).into(), high: high.as_deref().map(Into::into) };
        let sessions = Sessions::import(postcard::from_bytes(&blobs.sessions).map_err(|_| NoState)?);
        let mut shard = Shard::restored(partition, range, map_version, tree, sessions, last_ticket);
        let (applied, sealed, limits) = postcard::from_bytes(&blobs.changes).map_err(|_| NoState)?;
        shard.set_borders(applied, sealed);
        if !crate::mutant!(install_default_limits) {
            shard.set_session_limits(limits);
        }
        Machine::Shard(Box::new(shard))
    };
    Ok(Loaded { machine, instance, configuration, configured_at, promised })
}

/// What of the changes of borders that a replica went through is in a checkpoint or a snapshot on its own disk.
#[derive(Clone, Debug, Default)]
pub struct SavedBorders {
    /// Of the newest checkpoint or snapshot.
    instance: Instance,
    changes: Vec<ChangeId>,
    /// Changes by which neighbours were taken in, in memory only.
    joins: Vec<ChangeId>,
}

impl SavedBorders {
    /// Of a replica that begins with `machine`, loaded from what was taken at `instance`.
    pub fn new(machine: &Machine, instance: Instance) -> SavedBorders {
        let changes = machine.shard().map(|shard| shard.applied().to_vec()).unwrap_or_default();
        SavedBorders { instance, changes, joins: Vec::new() }
    }

    /// Neighbours were taken in by these changes.
    pub fn joined(&mut self, joins: &[ChangeId]) {
        self.joins.extend_from_slice(joins);
    }

    /// A checkpoint or a snapshot of `instance`, which includes `changes`, is on the disk.
    pub fn saved(&mut self, instance: Instance, changes: Vec<ChangeId>) {
        // The writing of a checkpoint may begin before and end after a newer snapshot came from a peer.
        if instance < self.instance && !crate::mutant!(older_checkpoint_counts) {
            return;
        }
        self.joins.retain(|join| !changes.contains(join));
        (self.instance, self.changes) = (instance, changes);
    }

    /// Changes that are on the disk.
    pub fn changes(&self) -> &[ChangeId] {
        &self.changes
    }

    /// Whether a neighbour was taken in that is in no checkpoint yet.
    pub fn is_owed(&self) -> bool {
        !self.joins.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_that_ends_after_a_newer_snapshot_takes_nothing_back() {
        let directory = Machine::Directory(Directory::new(Default::default()));
        let mut borders = SavedBorders::new(&directory, Instance(5));
        borders.joined(&[ChangeId(7)]);
        assert!(borders.is_owed());
        // Begun before the change, at 6; while it is written, a snapshot of a peer is installed.
        borders.saved(Instance(9), vec![ChangeId(7)]);
        borders.saved(Instance(6), vec![]);
        assert_eq!((borders.changes(), borders.is_owed()), (&[ChangeId(7)][..], false));
        borders.saved(Instance(12), vec![ChangeId(7), ChangeId(8)]);
        assert_eq!(borders.changes(), [ChangeId(7), ChangeId(8)]);
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn an_older_checkpoint_that_counts_is_caught() {
        let test = "snapshot::tests::a_checkpoint_that_ends_after_a_newer_snapshot_takes_nothing_back";
        crate::mutants::assert_caught("older_checkpoint_counts", test);
    }
}
