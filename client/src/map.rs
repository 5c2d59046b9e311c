//! Who serves which keys: the partition map, and finding one's way in it. Pure; it does not know who leads.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::ids::{ClusterId, MapVersion, NodeId, PartitionId, ReplicaId};
use crate::serde_bytes;

/// The partition map: replicated by the directory, cached by everybody else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PartitionMap {
    /// Whose map: one of another cluster is never used, however new.
    pub cluster: ClusterId,
    /// Every change raises it; 0: the map was not created yet.
    pub version: MapVersion,
    /// All nodes, ascending by id.
    pub nodes: Vec<NodeInfo>,
    /// Group 0: an entry without a range.
    pub directory: Option<Entry>,
    /// The partitions, ascending by low key; they tile the key space without gap or overlap.
    pub partitions: Vec<Entry>,
    /// Partitions without keys whose neighbours took them in (protocol.md 8): their replicas stay until each of the
    /// neighbour's has what it took in on disk.
    pub ending: Vec<Entry>,
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Its number in the cluster.
    pub id: NodeId,
    /// Its name for people: `name` of its configuration.
    pub name: String,
    /// Where it is reached.
    pub addresses: Addresses,
    /// What it is for.
    pub state: NodeState,
}

/// Where a node is reached, as `host:port`; empty: that door is closed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Addresses {
    /// For clients.
    pub native: String,
    /// For other nodes.
    pub peer: String,
    /// For health, metrics and status over HTTP.
    pub admin: String,
    /// For clients that speak RESP.
    pub resp: String,
}

/// What a node is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NodeState {
    /// It may hold replicas.
    #[default]
    Member,
    /// Its replicas and leaderships are moved away.
    Draining,
    /// It holds nothing and will not come back under this id.
    Removed,
    /// It was given its number, and has not taken it yet.
    Joining,
    /// Its replicas and leaderships are moved away, and then it is removed.
    Leaving,
}

/// A partition: its keys and its replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// Its number in the cluster.
    pub partition: PartitionId,
    /// First key of the partition.
    #[serde(with = "serde_bytes")]
    pub low: Bytes,
    /// First key beyond; none: unbounded.
    #[serde(with = "serde_bytes::option")]
    pub high: Option<Bytes>,
    /// The map version at which this entry changed last.
    pub version: MapVersion,
    /// Its replicas, ascending by id.
    pub replicas: Vec<ReplicaInfo>,
}

/// A replica of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReplicaInfo {
    /// Its number in the group.
    pub replica: ReplicaId,
    /// Where it runs.
    pub node: NodeId,
    /// Whether it votes.
    pub role: Role,
}

/// Whether a replica votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Counts for quorums.
    Voter,
    /// Catches up, votes later (protocol.md 1.5).
    Learner,
}

impl Entry {
    /// Whether `key` is one of the partition's.
    #[inline]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.is_from(key) && self.is_below_high(key)
    }

    /// Whether the partition begins at or below `key`. The first one begins at the empty key, which is compared with
    /// nothing: there `memcmp` takes 80 ns where the vector units of x86 read no byte of an address that is none.
    #[inline]
    fn is_from(&self, key: &[u8]) -> bool {
        self.low.is_empty() || *self.low <= *key
    }

    #[inline]
    fn is_below_high(&self, key: &[u8]) -> bool {
        self.high.as_deref().is_none_or(|high| key < high)
    }

    /// Whether some key could be in the partition and in `[low, high)`.
    pub fn overlaps(&self, low: &[u8], high: Option<&[u8]>) -> bool {
        high.is_none_or(|high| &*self.low < high && low < high) && self.high.as_deref().is_none_or(|mine| low < mine)
    }

    /// The replica on `node`.
    pub fn replica_on(&self, node: NodeId) -> Option<&ReplicaInfo> {
        self.replicas.iter().find(|replica| replica.node == node)
    }

    /// The node of `replica`.
    pub fn node_of(&self, replica: ReplicaId) -> Option<NodeId> {
        self.replicas.iter().find(|info| info.replica == replica).map(|info| info.node)
    }
}

impl PartitionMap {
    /// The partition of `key`; none: the map is empty or has a hole there. O(log partitions).
    #[inline]
    pub fn route(&self, key: &[u8]) -> Option<&Entry> {
        self.position(key).map(|at| &self.partitions[at])
    }

    /// Place in `partitions` of the partition of `key`. O(log partitions).
    #[inline]
    pub fn position(&self, key: &[u8]) -> Option<usize> {
        let at = self.partitions.partition_point(|entry| entry.is_from(key)).checked_sub(1)?;
        self.partitions[at].is_below_high(key).then_some(at)
    }

    /// The partitions that hold keys of `[low, high)`, ascending; `high` none: unbounded. O(log partitions).
    pub fn cover(&self, low: &[u8], high: Option<&[u8]>) -> &[Entry] {
        if high.is_some_and(|high| high <= low) {
            return &[];
        }
        let from = self.partitions.partition_point(|entry| entry.high.as_deref().is_some_and(|mine| mine <= low));
        let to = match high {
            None => self.partitions.len(),
            Some(high) => self.partitions.partition_point(|entry| &*entry.low < high),
        };
        self.partitions.get(from..to).unwrap_or(&[])
    }

    /// The entry of a partition, the directory's included.
    pub fn entry(&self, partition: PartitionId) -> Option<&Entry> {
        if partition == PartitionId::DIRECTORY {
            return self.directory.as_ref();
        }
        self.partitions.iter().find(|entry| entry.partition == partition)
    }

    /// All groups: the directory, the partitions, and those that end.
    pub fn groups(&self) -> impl Iterator<Item = &Entry> {
        self.directory.iter().chain(&self.partitions).chain(&self.ending)
    }

    /// The entry of a group of [`PartitionMap::groups`].
    pub fn group(&self, group: PartitionId) -> Option<&Entry> {
        self.groups().find(|entry| entry.partition == group)
    }

    /// A node.
    pub fn node(&self, node: NodeId) -> Option<&NodeInfo> {
        self.nodes.iter().find(|info| info.id == node)
    }

    /// What is wrong with the map, if anything: partitions must tile the key space, ids must be unique, replicas must
    /// be on known nodes. A map from the network is checked before it is used.
    pub fn check(&self) -> Result<(), MapError> {
        let mut low: Option<&[u8]> = Some(&[]);
        let mut ids = Vec::with_capacity(self.partitions.len());
        for entry in &self.partitions {
            if low != Some(&*entry.low) {
                return Err(MapError::Gap { partition: entry.partition });
            }
            if entry.high.as_deref().is_some_and(|high| high <= &*entry.low) {
                return Err(MapError::Empty { partition: entry.partition });
            }
            low = entry.high.as_deref();
            ids.push(entry.partition);
        }
        if low.is_some() && !self.partitions.is_empty() {
            return Err(MapError::Gap { partition: ids[ids.len() - 1] });
        }
        ids.extend(self.ending.iter().map(|entry| entry.partition));
        ids.sort_unstable();
        if ids.windows(2).any(|pair| pair[0] == pair[1]) || ids.contains(&PartitionId::DIRECTORY) {
            return Err(MapError::Ids);
        }
        if self.nodes.windows(2).any(|pair| pair[0].id >= pair[1].id) {
            return Err(MapError::Ids);
        }
        let known = |node: NodeId| self.nodes.binary_search_by_key(&node, |info| info.id).is_ok();
        for entry in self.groups() {
            if !entry.replicas.iter().all(|replica| known(replica.node)) {
                return Err(MapError::UnknownNode { partition: entry.partition });
            }
        }
        Ok(())
    }
}

/// What is wrong with a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum MapError {
    /// Keys before or behind this partition belong to nobody, or to two.
    #[error("the key space has a gap or an overlap at {partition}")]
    Gap {
        /// The partition behind the gap, or with the overlap.
        partition: PartitionId,
    },
    /// A partition without keys.
    #[error("{partition} has no keys")]
    Empty {
        /// The partition without keys.
        partition: PartitionId,
    },
    /// Ids of nodes or partitions are not unique, or not in order.
    #[error("ids are not unique")]
    Ids,
    /// A replica on a node that the map does not know.
    #[error("{partition} has a replica on an unknown node")]
    UnknownNode {
        /// The partition that the replica belongs to.
        partition: PartitionId,
    },
}
