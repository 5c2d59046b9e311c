//! Healing: a replica whose checkpoints are all damaged or gone takes its state from another replica before it runs
//! (see [`coppice_core::replica_manager::Healing`]).

use std::sync::Arc;

use coppice_client::wire::{NodeId, PartitionId};
use coppice_core::snapshot::Loaded;

use super::snapshots::{FetchError, Source, fetch};
use super::{Control, ToControl};

impl Control {
    /// A replica here waits for a snapshot of another node.
    pub(super) fn report_healing(&self, group: PartitionId) {
        let trimmed = self.replica_manager.healing().get(&group).map(|healing| healing.trimmed().0);
        tracing::warn!(partition = %group, trimmed, "no good checkpoint reaches the trimmed log; a peer is asked for its state");
    }

    /// Asks the next node for each replica that waits. Called a few times a second.
    pub(super) fn ask_for_states(&mut self) {
        let Some((checkpoints, _)) = &self.checkpoints else { return };
        let Some(own) = self.shared.identity().map(|identity| identity.node) else { return };
        let map = self.shared.map();
        for group in self.replica_manager.unasked() {
            let reachable = |node| self.shared.peer_address(node).is_some();
            let Some((from, least)) = self.replica_manager.ask_for_state(own, &map, group, reachable) else { continue };
            let Some(address) = self.shared.peer_address(from) else { continue };
            let (checkpoints, shared) = (checkpoints.clone(), Arc::clone(&self.shared));
            let thread = std::thread::Builder::new().name(format!("heal-{group}"));
            let spawned = thread.spawn(move || {
                let source = Source { from: (from, address), wanted: (group, least) };
                let fetched = fetch(&shared, &checkpoints, &source, |_| true);
                let call = move |control: &mut Control| control.on_state(group, from, fetched);
                shared.tell_control(ToControl::Call(Box::new(call)));
            });
            if spawned.is_err() {
                // Without a thread now there may be one at the next look.
                _ = self.replica_manager.healed(group, None);
            }
        }
    }

    fn on_state(&mut self, group: PartitionId, from: NodeId, fetched: Result<Loaded, FetchError>) {
        let loaded = match fetched {
            Ok(loaded) => Some(loaded),
            Err(error) => {
                tracing::warn!(partition = %group, %from, %error, "no state from this peer; the next one is asked");
                None
            }
        };
        if let Some(start) = self.replica_manager.healed(group, loaded) {
            let instance = start.snapshot;
            tracing::info!(partition = %group, %instance, %from, "the state of a peer is in place; the replica runs again");
            self.start(start);
        }
    }
}
