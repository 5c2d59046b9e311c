//! Healing: a replica whose checkpoints are all damaged or gone takes its state from another replica before it runs.
//!
//! Its promises, and its votes above the trim position, are in the log and intact; what it voted for below is decided,
//! and only the state that came of it is missing. So it is still the old voter (ordering.md 1.5 speaks of lost votes),
//! but until a snapshot at or above the trim position is here it neither votes nor serves: as an acceptor it would
//! report holes where batches were decided (reliability.md PX6).

use std::sync::Arc;

use coppice_client::wire::{NodeId, PartitionId};
use coppice_ordering::{Instance, ReplicaId};

use super::groups::Birth;
use super::snapshots::{FetchError, fetch};
use super::{Control, ToControl};
use crate::log::GroupReplay;
use crate::snapshot::Loaded;

/// A replica that waits for its state.
pub(super) struct Healing {
    /// Which replica.
    pub(super) me: ReplicaId,
    /// What it started from.
    pub(super) birth: Birth,
    /// Its promises and votes.
    pub(super) replay: GroupReplay,
    /// The snapshot must reach this far.
    pub(super) trimmed: Instance,
    /// A snapshot is on its way.
    pub(super) fetching: bool,
    /// Nodes asked so far; the next one is asked next time.
    pub(super) asked: usize,
}

impl Control {
    /// Has `group` wait for a snapshot of another node.
    pub(super) fn heal(&mut self, group: PartitionId, healing: Healing) {
        let trimmed = healing.trimmed;
        tracing::warn!(partition = %group, %trimmed, "no good checkpoint reaches the trimmed log; a peer is asked for its state");
        self.healing.insert(group, healing);
    }

    /// Asks the next node for each replica that waits. Called a few times a second.
    pub(super) fn ask_for_states(&mut self) {
        let Some((checkpoints, _)) = &self.checkpoints else { return };
        let Some(own) = self.shared.identity().map(|identity| identity.node) else { return };
        let map = self.shared.map();
        for (&group, healing) in &mut self.healing {
            if healing.fetching {
                continue;
            }
            let mut nodes: Vec<NodeId> = healing.birth.nodes().collect();
            nodes.extend(map.group(group).into_iter().flat_map(|entry| entry.replicas.iter().map(|info| info.node)));
            nodes.sort_unstable();
            nodes.dedup();
            nodes.retain(|node| *node != own && self.shared.peer_address(*node).is_some());
            let Some(&from) = nodes.get(healing.asked % nodes.len().max(1)) else { continue };
            let Some(address) = self.shared.peer_address(from) else { continue };
            healing.asked += 1;
            healing.fetching = true;
            let (checkpoints, shared, trimmed) = (checkpoints.clone(), Arc::clone(&self.shared), healing.trimmed);
            let thread = std::thread::Builder::new().name(format!("heal-{group}"));
            let spawned = thread.spawn(move || {
                let fetched = fetch(&checkpoints, &address, group, trimmed);
                let call = move |control: &mut Control| control.on_state(group, from, fetched);
                shared.tell_control(ToControl::Call(Box::new(call)));
            });
            // Without a thread now there may be one at the next look.
            healing.fetching = spawned.is_ok();
        }
    }

    fn on_state(&mut self, group: PartitionId, from: NodeId, fetched: Result<Loaded, FetchError>) {
        let Some(mut healing) = self.healing.remove(&group) else { return };
        healing.fetching = false;
        match fetched {
            Ok(loaded) if loaded.instance >= healing.trimmed => {
                let instance = loaded.instance;
                tracing::info!(partition = %group, %instance, %from, "the state of a peer is in place; the replica runs again");
                let Healing { me, birth, replay, .. } = healing;
                self.resume(group, me, &birth, Some(loaded), replay);
            }
            Ok(loaded) => {
                tracing::debug!(partition = %group, instance = %loaded.instance, %from, "the state of a peer is too old");
                self.healing.insert(group, healing);
            }
            Err(error) => {
                tracing::warn!(partition = %group, %from, %error, "no state from this peer; the next one is asked");
                self.healing.insert(group, healing);
            }
        }
    }
}
