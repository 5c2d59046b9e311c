//! The directory's state machine: the map, the nodes, the cluster's settings and users (protocol.md, group 0).
//!
//! Pure. Every command is idempotent, so that one sent twice over a change of leader does no harm.

pub mod boundaries;
mod change;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

pub use change::{AbsorbedPartition, Change, ChangeOutcome, Move, Reason, Reshape};
use coppice_client::map::{NodeInfo, NodeState, PartitionMap};
use coppice_client::wire::{ChangeId, MapVersion, NodeId, PartitionId, UserChange};
use coppice_ordering::{Batch, Instance};
use serde::{Deserialize, Serialize};

use super::{Answer, Outcome};
use crate::access::{UserError, Users};
use crate::machine::entry::{self, Entry};
use crate::settings::{ClusterSettings, FEATURE_LEVEL_KEY};

/// A change of the directory, as it stands in group 0's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DirectoryCommand {
    /// Creates the map, once: a second one changes nothing.
    Create {
        /// The first map.
        map: PartitionMap,
        /// Settings that differ from their defaults.
        settings: BTreeMap<String, String>,
    },
    /// Sets one cluster setting; its name and value were checked before.
    Set {
        /// Full name.
        key: String,
        /// Value as written.
        value: String,
    },
    /// A node serves at other addresses than the map says.
    Announce {
        node: NodeId,
        /// Its addresses now.
        addresses: coppice_client::map::Addresses,
    },
    /// Something about the cluster's shape.
    Reshape(Reshape),
    /// Changes who may do what.
    ChangeUsers {
        /// The user who asks; none: access control was off where it was asked.
        by: Option<String>,
        /// What is to change.
        change: Box<UserChange>,
    },
    /// Returns one cluster setting to its default.
    Unset {
        /// Full name.
        key: String,
    },
    /// Raises the feature level: all nodes of the map of this version were asked whether they can, and have noted it
    /// in their directories.
    RaiseFeatureLevel { level: u32, map: MapVersion },
}

/// What a directory command answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DirectoryReply {
    /// Done, or done before.
    Done,
    /// The map was created before, by somebody else's `init`.
    AlreadyCreated,
    /// No such node.
    UnknownNode,
    /// The node has this number, from now on or since before.
    Registered(NodeId),
    /// Nothing was changed.
    Refused(Reason),
    /// The users are as asked.
    UsersChanged {
        /// From this version of the map on.
        version: MapVersion,
        /// Access control was off before.
        is_first: bool,
    },
    /// The users are as before.
    UsersRefused(UserError),
}

/// The replicated content. Small, so undo keeps the whole previous value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryState {
    /// The partition map; version 0 until it is created.
    pub map: PartitionMap,
    /// Settings that differ from their defaults.
    pub settings: BTreeMap<String, String>,
    /// Changes of the cluster's shape that are under way.
    pub changes: BTreeMap<ChangeId, Change>,
    /// What the newest changes came to, the oldest first.
    pub ended: VecDeque<(ChangeId, ChangeOutcome)>,
    /// The highest replica id that each group ever had.
    pub replicas_used: BTreeMap<PartitionId, u32>,
    /// The highest partition id that there ever was.
    pub partitions_used: u32,
    /// Partitions that were merged into others, and whose replicas are still there.
    pub absorbed: BTreeMap<PartitionId, AbsorbedPartition>,
    /// Leaving nodes, with the nodes that get their replicas.
    pub successors: BTreeMap<NodeId, NodeId>,
    /// Leaving nodes whose replicas may be given up if they find no other place.
    pub forced: BTreeSet<NodeId>,
    /// Who may do what.
    pub users: Users,
}

const NOT_RAISED: &str = "`feature_level` is raised once all nodes are ready for it, and never lowered";

/// A node may have come that was not asked.
const MAP_CHANGED: &str = "the cluster has changed since its nodes were asked: raise `feature_level` again";

/// No cluster counts nodes, partitions or replicas so far.
const NUMBER_MAX: u32 = u32::MAX / 2;

impl DirectoryState {
    /// Whether what comes next has a number of its own. A snapshot comes from a disk or from another node.
    pub fn is_sound(&self) -> bool {
        let nodes = self.map.nodes.iter().map(|node| node.id.0);
        let partitions = self.map.groups().map(|entry| entry.partition.0).chain([self.partitions_used]);
        let mut numbers = nodes.chain(partitions).chain(self.replicas_used.values().copied());
        numbers.all(|number| number <= NUMBER_MAX) && self.map.version.0 <= u64::MAX / 2
    }

    /// What nodes may write.
    fn feature_level(&self) -> u32 {
        ClusterSettings::of_pairs(&self.settings).unwrap_or_default().feature_level
    }

    /// Changes the settings, if they go together then: judged by the state that the change meets, for another one may
    /// have come since it was asked for. `raises`: the feature level, which nothing else may change.
    fn set(
        &mut self,
        raises: bool,
        change: impl FnOnce(&mut BTreeMap<String, String>) -> Option<String>,
    ) -> DirectoryReply {
        let mut settings = self.settings.clone();
        change(&mut settings);
        if settings == self.settings {
            return DirectoryReply::Done;
        }
        let level = self.feature_level();
        let text = match ClusterSettings::of_pairs(&settings) {
            Ok(new) if new.feature_level == level || raises && new.feature_level > level => None,
            Ok(_) => Some(NOT_RAISED.to_owned()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(text) = text.filter(|_| !mutant!(settings_unjudged)) {
            return DirectoryReply::Refused(Reason::Setting(text));
        }
        // Settings travel beside the map, under its version: who has a newer one has the newer settings.
        self.settings = settings;
        self.map.version.0 += 1;
        DirectoryReply::Done
    }
}

/// The machine of group 0.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    state: Arc<DirectoryState>,
}

impl Directory {
    /// A directory with this content.
    pub fn new(state: DirectoryState) -> Directory {
        Directory { state: Arc::new(state) }
    }

    /// The content as last executed.
    pub fn state(&self) -> &Arc<DirectoryState> {
        &self.state
    }

    /// Runs one batch; returns the state before it.
    pub fn execute(&mut self, instance: Instance, batch: &Batch, answers: &mut Vec<Answer>) -> Arc<DirectoryState> {
        let before = Arc::clone(&self.state);
        let Batch::Commands(commands) = batch else { return before };
        let mut index = 0;
        for part in commands.parts() {
            for entry in entry::entries(part) {
                let outcome = match entry {
                    Entry::Directory(command) => Outcome::Directory(self.apply(command)),
                    Entry::Place(_)
                    | Entry::Pack { .. }
                    | Entry::Open(_)
                    | Entry::Limits(_)
                    | Entry::Expire(..)
                    | Entry::Unknown => Outcome::Nothing,
                };
                answers.push(Answer { instance, index, last_ticket: None, outcome });
                index += 1;
            }
        }
        before
    }

    /// Puts back the state before a batch.
    pub fn undo(&mut self, before: Arc<DirectoryState>) {
        self.state = before;
    }

    /// A digest of the content: equal contents have equal digests.
    pub fn digest(&self) -> u64 {
        let bytes = postcard::to_stdvec(&*self.state).unwrap_or_default();
        u64::from(crc32c::crc32c(&bytes)) | (bytes.len() as u64) << 32
    }

    fn apply(&mut self, command: DirectoryCommand) -> DirectoryReply {
        let state = Arc::make_mut(&mut self.state);
        match command {
            DirectoryCommand::Create { map, settings } => {
                if state.map.version.0 > 0 {
                    return if state.map.partitions == map.partitions {
                        DirectoryReply::Done
                    } else {
                        DirectoryReply::AlreadyCreated
                    };
                }
                let groups = map.directory.iter().chain(&map.partitions);
                let highest =
                    |entry: &coppice_client::map::Entry| entry.replicas.iter().map(|info| info.replica.0).max();
                state.replicas_used = groups.map(|entry| (entry.partition, highest(entry).unwrap_or(0))).collect();
                // A partition that is merged away leaves its name behind: nodes know by it what was removed there.
                state.partitions_used = map.partitions.iter().map(|entry| entry.partition.0).max().unwrap_or(0);
                state.map = map;
                state.settings = settings;
                DirectoryReply::Done
            }
            DirectoryCommand::Set { key, value } => state.set(false, |settings| settings.insert(key, value)),
            DirectoryCommand::Unset { key } => state.set(false, |settings| settings.remove(&key)),
            DirectoryCommand::RaiseFeatureLevel { level, map } => {
                if state.map.version != map && !mutant!(raised_over_a_new_node) {
                    return DirectoryReply::Refused(Reason::Setting(MAP_CHANGED.into()));
                }
                let level = level.to_string();
                state.set(true, |settings| settings.insert(FEATURE_LEVEL_KEY.into(), level))
            }
            DirectoryCommand::Announce { node, addresses } => {
                let known = |row: &&mut NodeInfo| row.id == node && row.state != NodeState::Removed;
                let Some(row) = state.map.nodes.iter_mut().find(known) else {
                    return DirectoryReply::UnknownNode;
                };
                if row.addresses != addresses {
                    row.addresses = addresses;
                    state.map.version.0 += 1;
                }
                DirectoryReply::Done
            }
            DirectoryCommand::Reshape(command) => state.reshape(command),
            DirectoryCommand::ChangeUsers { by, change } => {
                let is_first = state.users.is_empty();
                match state.users.apply(by.as_deref(), &change, state.map.version.0) {
                    Ok(is_changed) => {
                        // Users travel beside the map, as settings do.
                        state.map.version.0 += u64::from(is_changed);
                        DirectoryReply::UsersChanged { version: state.map.version, is_first }
                    }
                    Err(error) => DirectoryReply::UsersRefused(error),
                }
            }
        }
    }
}

/// The group whose machine is the directory.
pub const DIRECTORY: PartitionId = PartitionId(0);
