//! Replicas that join a group which is there already: they begin with a snapshot from one of its voters, as learners
//! (protocol.md 1.5).

use std::sync::Arc;

use coppice_client::map::{Entry, Role};
use coppice_client::wire::PartitionId;
use coppice_core::snapshot::Loaded;
use coppice_ordering::ReplicaId;

use super::{Control, ToControl};

impl Control {
    /// A replica of a group that is there already begins with a snapshot from one of its voters (protocol.md 1.5).
    pub(super) fn join_group(&mut self, entry: &Entry, me: ReplicaId) {
        let group = entry.partition;
        if self.deleting.contains(&group) {
            return;
        }
        let own = self.shared.identity().map(|identity| identity.node);
        let voters = entry.replicas.iter().filter(|info| info.role == Role::Voter && Some(info.node) != own);
        let sources = voters.filter_map(|info| Some((info.node, self.shared.peer_address(info.node)?)));
        let sources: Vec<_> = sources.collect();
        if sources.is_empty() || !self.replica_manager.begin_join(group, me) {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let may_be_forked = self.replica_manager.may_be_forked(&self.shared.map(), group);
        let awaits_fork = self.awaits_fork(group, entry.low.clone());
        tokio::task::spawn_local(async move {
            let wait = may_be_forked && awaits_fork.await;
            let begin = move |control: &mut Control| {
                // Called off when the fork came meanwhile; asked again at the next look otherwise.
                if !control.replica_manager.is_joining(group, me) || wait {
                    control.replica_manager.end_join(group, me);
                    return;
                }
                control.fetch_first(group, (me, sources), move |control, loaded| match loaded {
                    Some(loaded) => control.joined(group, me, loaded),
                    None => _ = control.replica_manager.end_join(group, me),
                });
            };
            shared.tell_control(ToControl::Call(Box::new(begin)));
        });
    }

    /// The first snapshot is here, durable: the replica starts from it, if the map still wants it.
    fn joined(&mut self, group: PartitionId, me: ReplicaId, loaded: Loaded) {
        let map = self.shared.map();
        let own = self.shared.identity().map(|identity| identity.node).unwrap_or_default();
        if let Some(start) = self.replica_manager.joined(own, &map, (group, me), loaded) {
            let instance = start.snapshot;
            tracing::info!(partition = %group, replica = %me, %instance, "a replica begins here from a snapshot");
            self.start(start);
            failpoint!("control.joined");
        }
    }

    /// Replicas that the map names for this node and that do not run yet: their snapshot did not come.
    pub(super) fn start_missing(&mut self) {
        let Some(identity) = self.shared.identity() else { return };
        let map = self.shared.map();
        self.remove_unnamed(&map);
        if !self.replica_manager.lacks_any(identity.node, &map) {
            return;
        }
        for entry in map.groups() {
            self.start_from_map(entry);
        }
    }
}
