//! What the simulator knows of one replica: what is on its disk, and what its process holds. It is set aside while a
//! copy takes the place of that disk.

use std::collections::{BTreeMap, BTreeSet};

use coppice_client::wire::PartitionId;
use coppice_ordering::{Ballot, Batch, Instance, Record, ReplicaId};

use super::groups::Group;

/// What is known of one replica.
#[derive(Debug, Default)]
pub struct Known {
    /// Where it lives.
    pub node: usize,
    /// On disk.
    pub promised: Ballot,
    /// On disk: the ballot of the vote for each instance above the snapshot.
    pub accepted: BTreeMap<Instance, Ballot>,
    /// On disk: instances that others told to be decided.
    pub learned: BTreeSet<Instance>,
    /// On disk: up to where everything is decided, by the log's own word.
    pub decided_on_disk: Instance,
    /// On disk: the state that this process began with.
    pub state_on_disk: Instance,
    /// In memory: what it holds for each instance.
    pub slots: BTreeMap<Instance, Batch>,
    /// What it has decided and executed in this process.
    pub decided: Instance,
}

impl Known {
    /// Whether all of a group's log up to an instance is on this disk, whose newest checkpoint is `saved`, and would be
    /// known to be decided after a start as far as configurations go: who was removed forgets then (PX19).
    pub fn holds(&self, group: &Group, upto: Instance, saved: Instance) -> Result<(), String> {
        // A vote for what was decided, not for something else in an older ballot.
        let voted = |instance: &Instance| {
            let ballot = self.accepted.get(instance)?;
            Some(group.at(instance.0).is_none() || group.proposals.get(&(*instance, *ballot)) == group.at(instance.0))
        };
        let logged = |instance: &Instance| self.learned.contains(instance) || voted(instance) == Some(true);
        let saved = self.state_on_disk.max(saved);
        let above = (saved.0 + 1..=upto.0).map(Instance);
        if let Some(lacking) = { above }.find(|instance| !logged(instance)) {
            return Err(format!("{lacking} is not on its disk"));
        }
        let configurations = group.configurations.iter().rev().map(|(from, _)| from.0.saturating_sub(1));
        match { configurations }.find(|at| *at <= upto.0) {
            Some(at) if at > saved.max(self.decided_on_disk).0 => {
                Err(format!("that #{at}, a configuration, is decided is not on its disk"))
            }
            _ => Ok(()),
        }
    }
}

/// What the oracle knows of the replicas on a disk.
#[derive(Default)]
pub struct Aside {
    pub known: BTreeMap<(PartitionId, ReplicaId), Known>,
    pub ids: BTreeMap<(usize, PartitionId), ReplicaId>,
}

/// Up to where a record tells a start that everything is decided.
pub fn decided_by(record: &Record) -> Instance {
    match record {
        Record::Decided { upto } | Record::Accept { decided_upto: upto, .. } => *upto,
        // It is kept only when everything below it is decided.
        Record::Learned { instance, .. } => *instance,
        Record::Promise { .. } | Record::Lease { .. } => Instance::ZERO,
    }
}
