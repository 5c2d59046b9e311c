//! The cluster as this node knows it: the map, who leads, the users.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use coppice_client::map::PartitionMap;
use coppice_client::wire::{MapGet, MapReply, NodeId, PartitionId};
use coppice_core::access::Access;
use tokio::sync::watch;

/// Read often, written rarely.
#[derive(Default)]
pub struct ClusterView {
    map: RwLock<Arc<PartitionMap>>,
    /// Read when a connection greets and when they change.
    access: watch::Sender<Arc<Access>>,
    leaders: Mutex<BTreeMap<PartitionId, NodeId>>,
    leaders_version: AtomicU64,
    feature_level: AtomicU32,
}

impl ClusterView {
    /// The newest map that this node knows; version 0 before there is one.
    pub fn map(&self) -> Arc<PartitionMap> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Uses `map` from now on if it is newer.
    pub fn set_map(&self, map: Arc<PartitionMap>) -> bool {
        let mut current = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let newer = map.version > current.version;
        if newer {
            *current = map;
        }
        newer
    }

    /// What nodes may write; 0 before this node knows.
    pub fn feature_level(&self) -> u32 {
        self.feature_level.load(Ordering::Relaxed)
    }

    /// Nodes may write what this level brings.
    pub fn set_feature_level(&self, level: u32) {
        self.feature_level.store(level, Ordering::Relaxed);
    }

    /// The users as this node knows them.
    pub fn access(&self) -> Arc<Access> {
        Arc::clone(&self.access.borrow())
    }

    /// Told when the users change.
    pub fn access_changes(&self) -> watch::Receiver<Arc<Access>> {
        self.access.subscribe()
    }

    /// Goes by `access` from now on: whoever connects at once, and each connection that stands when its worker thread
    /// is told.
    pub fn set_access(&self, access: Arc<Access>) {
        self.access.send_replace(access);
    }

    /// The leader of `group`, as this node knows it.
    pub fn leader(&self, group: PartitionId) -> Option<NodeId> {
        self.leaders.lock().unwrap_or_else(PoisonError::into_inner).get(&group).copied()
    }

    /// All leaders that this node knows.
    pub fn leaders(&self) -> BTreeMap<PartitionId, NodeId> {
        self.leaders.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes who leads `group`; whether that is news.
    pub fn set_leader(&self, group: PartitionId, leader: Option<NodeId>) -> bool {
        let mut leaders = self.leaders.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match leader {
            Some(leader) => leaders.insert(group, leader),
            None => leaders.remove(&group),
        };
        if before != leader {
            self.leaders_version.fetch_add(1, Ordering::Relaxed);
        }
        before != leader
    }

    /// Counts changes of leaders. Costs a load.
    pub fn leaders_version(&self) -> u64 {
        self.leaders_version.load(Ordering::Relaxed)
    }

    /// The map, if it is newer than what the client has, and who leads.
    pub fn map_reply(&self, get: MapGet) -> MapReply {
        coppice_core::connection::map_reply(get, &self.map(), self.leaders())
    }
}
