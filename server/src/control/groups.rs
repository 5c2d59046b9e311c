//! Replicas of this node: started from the map, from the log at start, from a snapshot; stopped when removed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coppice_client::map::{NodeState, PartitionMap};
use coppice_client::wire::{NodeId, PartitionId};
use coppice_core::access::Users;
use coppice_core::controller::{self, ClusterState, RecoveredReplica};
use coppice_core::replay::{Entry as LogEntry, GroupReplay};
use coppice_core::replica_manager::Start;
use coppice_core::snapshot::LoadedSnapshot;
use coppice_core::worker::Input;

use super::recovery::{self, Recovered};
use super::status::FlushTimes;
use super::{Control, Handle};
use crate::log::{Append, Hooks};
use crate::shared::RecoveryStep;
use crate::start_error::StorageError;

/// What the log says of a node that has forgotten promises.
const COPY_FOUND: &str = "this node runs on a copy of its data directory: it votes no more";

/// A flush that takes longer holds up every write of the node; a sound disk takes a few milliseconds.
const SLOW_FLUSH: Duration = Duration::from_millis(100);

impl Control {
    /// Opens the log of a node that has just got its identity: there is nothing in it.
    pub(super) fn open_log(&mut self) -> Result<(), StorageError> {
        let hooks = hooks(&self.shared, &self.storage.flush, &self.failed);
        let recovered = recovery::read(&mut self.storage.home, &self.shared, hooks)?;
        self.begin(recovered)
    }

    /// Goes on where the data directory stands: every replica that its log knows starts.
    pub(super) fn begin(&mut self, recovered: Recovered) -> Result<(), StorageError> {
        let Recovered { log: opened, checkpoints, checkpointer, groups } = recovered;
        if let Some(cut) = &opened.cut {
            tracing::info!(?cut, "the log ended in a write that was never answered for; it was cut");
        }
        self.shared.own.set_claim(opened.claim);
        self.shared.own.set_identity(opened.identity);
        let checkpointer = Arc::new(checkpointer);
        for thread in 0..self.shared.workers.count() {
            let (log, checkpointer) = (opened.writer.log(), Arc::downgrade(&checkpointer));
            self.outbox.on_thread(thread, move |thread| thread.set_storage(log, checkpointer));
        }
        self.storage.checkpoints = Some((checkpoints, checkpointer));
        self.storage.log = Some(opened.writer);
        let kept = self.storage.home.read_map().and_then(|kept| postcard::from_bytes::<ClusterState>(&kept).ok());
        let kept = kept.map(Arc::new);
        let seeds = self.shared.config.seeds.iter().map(ToString::to_string).collect();
        let (node, kept_state) = (opened.identity.node, kept.clone());
        self.tell(controller::Input::Identity { node, kept: kept_state, seeds });
        for (group, (replay, loaded)) in groups {
            self.restart(group, replay, loaded)?;
        }
        for (group, waiting) in self.controller.replicas().awaiting_snapshot() {
            let trimmed = waiting.trimmed().0;
            tracing::warn!(
                partition = %group, trimmed,
                "no good checkpoint reaches the trimmed log; a peer is asked for its state"
            );
        }
        self.delete_stale_checkpoints();
        // What the seeds do not name is found by the map as it was before; it may be old, so others are asked all the
        // same.
        if let Some(kept) = kept {
            self.tell(controller::Input::Map(Arc::new(kept.map.clone())));
        }
        let copy = self.storage.home.read_copy();
        if let Some(reason) = &copy {
            tracing::error!(reason = reason.as_str(), next = %self.instead_of_copy(), "{COPY_FOUND}");
        }
        self.tell(controller::Input::Restored { seeds: self.shared.config.seeds.len() as u32, copy });
        Ok(())
    }

    /// Another node says that this one runs on a copy of its directory.
    pub(super) fn write_copy_mark(&self, by: NodeId, reason: &str) {
        tracing::error!(%by, reason, next = %self.instead_of_copy(), "{COPY_FOUND}");
        if let Err(error) = self.storage.home.write_copy(reason) {
            tracing::warn!(%error, "the mark that this directory is a copy cannot be written");
        }
    }

    /// The command that comes next where this node runs on a copy.
    fn instead_of_copy(&self) -> String {
        let own = self.shared.own.identity();
        own.map(|own| self.shared.config.replace_command(own.node)).unwrap_or_default()
    }

    /// After a crash between a removal and the end of its deletion. One that stays takes room, and is tried again at
    /// the next start.
    fn delete_stale_checkpoints(&self) {
        let Some((checkpoints, _)) = &self.storage.checkpoints else { return };
        for group in self.controller.replicas().stale(checkpoints.partitions().unwrap_or_default()) {
            match checkpoints.remove(group) {
                Ok(()) => tracing::debug!(partition = %group, "checkpoints of a removed replica were deleted"),
                Err(error) => {
                    tracing::warn!(partition = %group, %error, "checkpoints of a removed replica could not be deleted")
                }
            }
        }
    }

    /// A group that the log knows.
    fn restart(
        &mut self,
        group: PartitionId,
        replay: GroupReplay,
        loaded: Option<LoadedSnapshot>,
    ) -> Result<(), StorageError> {
        let recovered = RecoveredReplica::new(group, replay, loaded);
        let recovered = recovered.ok_or(StorageError::CreateRequest(group))?;
        self.tell(controller::Input::Recovered(Box::new(recovered)));
        self.driver.state_lost.take().map_or(Ok(()), Err)
    }

    /// Writes an entry of the controller to the log, and tells it once that is durable, if it waits for it.
    pub(super) fn append(&self, entry: LogEntry) {
        let Some(log) = &self.storage.log else { return };
        let durable = controller::Input::once_durable(&entry);
        let appends = vec![Append { entry, lsn: None, lazy: durable.is_none() }];
        // A log that has stopped ends the process.
        let Some(durable) = durable else {
            _ = log.log().append(appends);
            return;
        };
        let Ok(logged) = log.log().append_awaited(appends) else { return };
        let shared = Arc::clone(&self.shared);
        let spawned = std::thread::Builder::new().name("await-log".into()).spawn(move || {
            if logged.wait().is_ok() {
                shared.tell(durable);
            }
        });
        if let Err(error) = spawned {
            // It counts as not durable until the next start, and what needs it waits.
            tracing::warn!(%error, "no thread for waiting for the log");
        }
    }

    /// The worker of a replica hosts it.
    pub(super) fn start(&mut self, start: Start) {
        failpoint!("control.created");
        let (partition, replica, instance) = (start.group, start.me, start.snapshot);
        match start.is_new {
            true => tracing::debug!(%partition, %replica, %instance, "a replica begins here"),
            false => tracing::debug!(%partition, %replica, %instance, "a replica goes on"),
        }
        let to_execute = start.recovered.decided_upto().0.saturating_sub(instance.0);
        self.shared.recovery.note(RecoveryStep::Replay(partition), 0, to_execute);
        let metrics = self.shared.metrics.partition(partition);
        let incarnation = self.shared.own.identity().map_or(0, |identity| identity.incarnation);
        self.outbox.on_owner(partition, move |thread| {
            thread.start(start, incarnation, metrics);
            failpoint!("control.hosted");
        });
    }

    /// Another node says that the directory holds this.
    pub(super) fn adopt(&mut self, map: PartitionMap, settings: BTreeMap<String, String>, users: Users) {
        self.tell(controller::Input::Adopt(Arc::new(ClusterState { map, settings, users })));
    }

    /// The controller uses this map: so does the next start.
    pub(super) fn use_map(&mut self, map: Arc<PartitionMap>) {
        _ = self.shared.cluster.set_map(Arc::clone(&map));
        let own = self.shared.own.identity().map(|identity| identity.node);
        if own.and_then(|own| map.node(own)).is_some_and(|node| node.state == NodeState::Removed) {
            tracing::warn!("this node was removed from its cluster: it may be stopped, and its data directory deleted");
        }
        let kept = postcard::to_stdvec(&self.controller.cluster_state()).expect("a map is plain data");
        if let Err(error) = self.storage.home.write_map(&kept) {
            tracing::warn!(%error, "the partition map was not kept for the next start");
        }
        failpoint!("control.map_kept");
        self.announce();
        failpoint!("control.map_adopted");
    }

    /// Worker threads close their links to nodes that have left the map.
    pub(super) fn unlink(&self, node: NodeId) {
        for thread in 0..self.shared.workers.count() {
            self.outbox.on_thread(thread, move |thread| {
                thread.input(Input::Answers(node, false));
                if let Some(link) = thread.links.remove(&node) {
                    link.close();
                }
            });
        }
    }

    /// Every worker thread keeps a link to every other node.
    pub(super) fn link(&self, node: NodeId, address: &str) {
        let address = self.shared.config.dial_override.get(&node.0).cloned().or_else(|| address.parse().ok());
        let Some(address) = address else { return };
        // Questions and snapshots take the same way as the links.
        self.shared.peers.set_address(node, &address.to_string());
        for thread in 0..self.shared.workers.count() {
            let address = address.clone();
            self.outbox.on_thread(thread, move |thread| thread.link_to(node, address));
        }
    }
}

/// What the log tells of its flushes.
pub(super) fn hooks(
    shared: &Arc<Handle>,
    flush: &Arc<FlushTimes>,
    failed: &Arc<dyn Fn(String) + Send + Sync>,
) -> Hooks {
    let (shared, flush, failed) = (Arc::clone(shared), Arc::clone(flush), Arc::clone(failed));
    let metrics = shared.metrics.log();
    let mut by_worker: Vec<Vec<(PartitionId, coppice_ordering::Lsn)>> = vec![Vec::new(); shared.workers.count()];
    Hooks {
        flushed: Box::new(move |flushed| {
            metrics.flushed(flushed.took, flushed.records as u64);
            if flushed.took >= SLOW_FLUSH {
                let took_ms = flushed.took.as_millis() as u64;
                tracing::warn!(took_ms, records = flushed.records, "slow flush");
            }
            flush.note(&flushed);
            shared.looked(flushed.looked);
            // Before the completions: a vote never leaves ahead of the position that it raised.
            shared.set_durable_lsn(flushed.durable_lsn);
            for &(group, lsn) in flushed.completions {
                let of_worker = &mut by_worker[shared.workers.owner(group)];
                let group = PartitionId(group.0);
                match of_worker.last_mut() {
                    // Completions of a group ascend: the last one says it all.
                    Some(last) if last.0 == group => last.1 = last.1.max(lsn),
                    _ => of_worker.push((group, lsn)),
                }
            }
            for (at, durable) in by_worker.iter_mut().enumerate().filter(|(_, durable)| !durable.is_empty()) {
                shared.workers.raise_durable(at, durable);
            }
        }),
        failed: Box::new(move |failure| failed(failure.to_string())),
    }
}
