//! Slots for the connections of other nodes: each node has so many, and a new one takes the place of its oldest.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use coppice_client::wire::NodeId;
use tokio::sync::Notify;

/// Connections of one node that are read at once. One more ends the oldest of them, whose other end may be long gone: a
/// node keeps one for each of its worker threads.
const CONNECTIONS_MAX: usize = 256;

/// The connections of all other nodes.
#[derive(Debug, Default)]
pub struct PeerSlots {
    taken: Mutex<BTreeMap<NodeId, VecDeque<Weak<Notify>>>>,
}

impl PeerSlots {
    /// A slot for one more connection of a node.
    pub fn take(&self, node: NodeId) -> PeerSlot {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let places = taken.entry(node).or_default();
        places.retain(|place| place.strong_count() > 0);
        if places.len() >= CONNECTIONS_MAX
            && let Some(oldest) = places.pop_front().and_then(|place| place.upgrade())
        {
            oldest.notify_one();
        }
        let place = PeerSlot(Arc::new(Notify::new()));
        places.push_back(Arc::downgrade(&place.0));
        place
    }
}

/// A connection's slot among those of its node, as long as it lives.
#[derive(Debug)]
pub struct PeerSlot(Arc<Notify>);

impl PeerSlot {
    /// Returns when a newer connection takes it.
    pub async fn taken(&self) {
        self.0.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_connection_too_many_of_a_node_ends_the_oldest_of_its_own() {
        let places = PeerSlots::default();
        let other = places.take(NodeId(2));
        let mut first: VecDeque<PeerSlot> = (0..CONNECTIONS_MAX).map(|_| places.take(NodeId(1))).collect();
        drop(first.remove(7));
        let _fits = places.take(NodeId(1));
        let ends = async |place: &PeerSlot| {
            tokio::time::timeout(std::time::Duration::from_millis(1), place.taken()).await.is_ok()
        };
        assert!(!ends(&first[0]).await);
        let _too_many = places.take(NodeId(1));
        assert!(ends(&first[0]).await && !ends(&first[1]).await && !ends(&other).await);
    }
}
