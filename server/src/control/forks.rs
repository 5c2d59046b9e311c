//! Children of splits: each replica of the parent starts the child's beside it, from the fork, and no data moves
//! (protocol.md 8). [`coppice_core::replica_manager`] decides; what it says of checkpoints and removal is obeyed here.

use std::sync::Arc;

use coppice_client::wire::PartitionId;
use coppice_core::machine::{Machine, Mark};

use super::{Control, ask_shard};

impl Control {
    /// A split is decided and executed in `parent`, which is `led` here or not.
    pub(super) fn on_forked(&mut self, parent: PartitionId, led: bool, mark: &Mark) {
        let Some(identity) = self.shared.identity() else { return };
        for fork in Machine::forks(mark) {
            if let Some(start) = self.replica_manager.fork(identity.node, parent, led, fork) {
                let (child, instance) = (start.group, fork.instance);
                tracing::info!(%parent, %child, %instance, "a split: the child begins here");
                self.start(start);
                failpoint!("control.forked");
                self.save_children();
            }
        }
    }

    /// Has the children that have no checkpoint yet write one.
    pub(super) fn save_children(&mut self) {
        for child in self.replica_manager.unsaved() {
            self.checkpoint_now(child);
        }
    }

    /// Whether a replica here still holds the keys that begin with `low`: then the split that gives them to another
    /// group has yet to be executed here, and the child will begin from the fork.
    pub(super) fn awaits_fork(&self, group: PartitionId, low: bytes::Bytes) -> impl Future<Output = bool> + use<> {
        let shared = Arc::clone(&self.shared);
        async move {
            for shard in 0..shared.shards() {
                let low = low.clone();
                let holds = ask_shard(&shared, shard, super::groups::LOOK_TIMEOUT, move |shard| {
                    shard.worker.groups().iter().any(|(&id, hosted)| id != group && hosted.replica.holds(&low))
                });
                if holds.await.unwrap_or(true) {
                    return true;
                }
            }
            false
        }
    }
}
