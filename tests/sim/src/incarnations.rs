//! Boot ids: whom a node has met.

use std::collections::{BTreeMap, BTreeSet};

use coppice_core::handshake::MetNodes;

/// What a node knows of the others' boot ids, and they of its own.
#[derive(Default)]
pub struct Incarnations {
    /// Whom its process has met, as on its disk and since.
    pub known: MetNodes,
    /// The same on its disk.
    pub file: Option<Vec<u8>>,
    /// Processes to which it has a connection.
    pub links: BTreeMap<usize, u64>,
    /// The truth: boot ids of other nodes that were met by this disk.
    pub met: BTreeSet<(usize, u64)>,
    /// It runs on a copy.
    pub is_copy: bool,
}

impl Incarnations {
    /// The process ends.
    pub fn forget(&mut self) {
        self.links.clear();
    }
}
