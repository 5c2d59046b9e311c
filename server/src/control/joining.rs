//! Replicas that join a group which is there already: they begin with a snapshot from one of its voters, as learners
//! (ordering.md 1.5).

use std::sync::Arc;

use coppice_client::map::{Entry, Role};
use coppice_client::wire::PartitionId;
use coppice_ordering::{RecoveredGroup, ReplicaId};

use super::groups::Birth;
use super::{Control, ToControl};
use crate::net::translate;
use crate::snapshot::Loaded;

impl Control {
    /// A replica of a group that is there already begins with a snapshot from one of its voters (ordering.md 1.5).
    pub(super) fn join_group(&mut self, entry: &Entry, me: ReplicaId) {
        let group = entry.partition;
        if self.deleting.contains(&group) || self.joining.get(&group).is_some_and(|&joining| joining >= me) {
            return;
        }
        let own = self.shared.identity().map(|identity| identity.node);
        let voters = entry.replicas.iter().filter(|info| info.role == Role::Voter && Some(info.node) != own);
        let sources: Vec<String> = voters.filter_map(|info| self.shared.peer_address(info.node)).collect();
        if sources.is_empty() {
            return;
        }
        self.joining.insert(group, me);
        let (entry, shared) = (entry.clone(), Arc::clone(&self.shared));
        let awaits_fork = self.awaits_fork(group, entry.low.clone());
        tokio::task::spawn_local(async move {
            let wait = awaits_fork.await && group != PartitionId::DIRECTORY;
            let begin = move |control: &mut Control| {
                // Called off when the fork came meanwhile; asked again at the next look otherwise.
                if control.joining.get(&group) != Some(&me) || wait {
                    control.joining.remove(&group);
                    return;
                }
                control.fetch_first(group, sources, move |control, loaded| {
                    control.joining.remove(&group);
                    if let Some(loaded) = loaded {
                        control.joined(&entry, me, loaded);
                    }
                });
            };
            shared.tell_control(ToControl::Call(Box::new(begin)));
        });
    }

    /// The first snapshot is here, durable: the replica starts from it, if the map still wants it.
    fn joined(&mut self, entry: &Entry, me: ReplicaId, loaded: Loaded) {
        let group = entry.partition;
        let map = self.shared.map();
        let Some(entry) = map.group(group) else { return };
        let own = self.shared.identity().map(|identity| identity.node).unwrap_or_default();
        let wanted = entry.replica_on(own).is_some_and(|info| translate::replica(info.replica) == me);
        let known = self.running.get(&group).or_else(|| self.removed.get(&group));
        if !wanted || known.is_some_and(|&known| known >= me) {
            return;
        }
        let birth = Birth::of_later(entry);
        if !self.note_birth(group, me, &birth) {
            return;
        }
        let Loaded { machine, instance, configuration, configured_at } = loaded;
        let recovered = RecoveredGroup::from_snapshot(instance, configuration, configured_at);
        tracing::info!(partition = %group, replica = %me, %instance, "a replica begins here from a snapshot");
        let launch = self.launch(group, me, &birth, recovered, machine, instance, false);
        self.start(launch);
    }

    /// Replicas that the map names for this node and that do not run yet: their snapshot did not come.
    pub(super) fn start_missing(&mut self) {
        let Some(identity) = self.shared.identity() else { return };
        let map = self.shared.map();
        self.remove_unnamed(&map);
        let mut named = map.groups();
        if named.all(|entry| entry.replica_on(identity.node).is_none() || self.running.contains_key(&entry.partition)) {
            return;
        }
        for entry in map.groups() {
            self.start_from_map(entry);
        }
    }
}
