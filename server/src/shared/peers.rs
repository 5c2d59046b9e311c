//! The other nodes: where they are, when they were heard, whether they have room, and faults of the ways there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use coppice_client::wire::{LinkFault, NodeId};
use coppice_core::failure_detector::LastHeard;
use coppice_ordering::Time;

/// What is known of them, by any thread.
#[derive(Default)]
pub struct Peers {
    addresses: Mutex<BTreeMap<NodeId, String>>,
    heard: Mutex<BTreeMap<NodeId, LastHeard>>,
    /// Those that said that they have no room, on disk or in memory.
    full_nodes: Mutex<BTreeSet<NodeId>>,
    /// Whether there are any: asked for every write.
    any_full_node: AtomicBool,
    /// Why the last question to them was refused before it was asked.
    excuses: Mutex<BTreeMap<NodeId, String>>,
    /// Of the ways to them, made on purpose (`allow_faults`).
    faults: Mutex<BTreeMap<NodeId, LinkFault>>,
}

impl Peers {
    /// Something came from `node`, on a new connection or on one that stands.
    pub fn heard(&self, node: NodeId, now: Time, anew: bool) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = heard.entry(node).or_default();
        heard.at = heard.at.max(now);
        heard.connection += u64::from(anew);
    }

    /// What was heard of each node so far.
    pub fn heard_of(&self) -> Vec<(NodeId, LastHeard)> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.iter().map(|(node, heard)| (*node, *heard)).collect()
    }

    /// A question to `node` was refused before it was asked, with these words; none: it was not refused.
    pub fn set_excuse(&self, node: NodeId, text: Option<String>) {
        let mut excuses = self.excuses.lock().unwrap_or_else(PoisonError::into_inner);
        match text {
            Some(text) => _ = excuses.insert(node, text),
            None => _ = excuses.remove(&node),
        }
    }

    /// What the nodes said that let nobody ask.
    pub fn excuses(&self) -> BTreeMap<NodeId, String> {
        self.excuses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Another node says whether its disk is filled to the reserve, or its memory to the limit.
    pub fn set_full(&self, node: NodeId, full: bool) {
        let mut nodes = self.full_nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if full {
            nodes.insert(node);
        } else {
            nodes.remove(&node);
        }
        self.any_full_node.store(!nodes.is_empty(), Ordering::Relaxed);
    }

    /// Other nodes that have no room, as they said last. Costs a load where all have.
    pub fn full_nodes(&self) -> BTreeSet<NodeId> {
        match self.any_full_node.load(Ordering::Relaxed) {
            true => self.full_nodes.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            false => BTreeSet::new(),
        }
    }

    /// Where other nodes reach `node`.
    pub fn address(&self, node: NodeId) -> Option<String> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).get(&node).cloned()
    }

    /// Other nodes reach `node` there: told by `init`, later by the map.
    pub fn set_address(&self, node: NodeId, address: &str) {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).insert(node, address.to_owned());
    }

    /// What is done to messages from here to others (`allow_faults`).
    pub fn set_faults(&self, faults: Vec<LinkFault>) {
        let faults = faults.into_iter().map(|fault| (fault.to, fault)).collect();
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    }

    /// Whether nothing may pass from here to `node`.
    pub fn is_cut_off(&self, node: NodeId) -> bool {
        let faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.get(&node).is_some_and(|fault| fault.cut)
    }
}
