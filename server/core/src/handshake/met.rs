//! Whom a node has met, and whom it takes for a copy of a node (hazards.md PX12).

use std::collections::BTreeMap;

use coppice_client::map::PartitionMap;
use coppice_client::wire::NodeId;

use super::{Objection, Presence, standing};
use crate::incarnation::table::IncarnationTable;

/// See the module.
#[derive(Debug, Default)]
pub struct MetNodes {
    table: IncarnationTable,
    /// Nodes that run on copies of their directories, and why.
    copies: BTreeMap<NodeId, String>,
}

/// A start of another node that was not met before.
#[derive(Debug)]
pub struct NewStart {
    node: NodeId,
    newer: IncarnationTable,
}

impl NewStart {
    /// What the file is to say.
    pub fn file(&self) -> Vec<u8> {
        self.newer.file()
    }
}

impl MetNodes {
    /// See [`IncarnationTable::read`].
    pub fn read(file: Option<&[u8]>) -> (MetNodes, bool) {
        let (table, is_damaged) = IncarnationTable::read(file);
        (MetNodes { table, copies: BTreeMap::new() }, is_damaged)
    }

    /// What is remembered of each node.
    pub fn table(&self) -> &IncarnationTable {
        &self.table
    }

    /// Nodes that run on copies of their directories, and why.
    pub fn copies(&self) -> &BTreeMap<NodeId, String> {
        &self.copies
    }

    /// Whether who is at the other end of a connection may talk in this life. A start that was not met before is
    /// returned: once its file is durable, [`MetNodes::take`], then the node is let in. Of nodes that the map does not
    /// know nothing is remembered.
    ///
    /// # Errors
    /// For both: its claim contradicts what was met before, so it runs on a copy of its directory.
    pub fn judge(&mut self, them: &Presence, map: &PartitionMap) -> Result<Option<NewStart>, Objection> {
        let node = them.node;
        if standing(node, map).is_err() {
            return Ok(None);
        }
        match self.table.judge(node, &them.claim) {
            Ok(newer) => {
                self.copies.remove(&node);
                Ok(newer.map(|newer| NewStart { node, newer }))
            }
            Err(error) => {
                self.copies.insert(node, error.to_string());
                Err(Objection::Copy(error))
            }
        }
    }

    /// It is durable that this start was met.
    pub fn take(&mut self, start: NewStart) {
        self.table.take(start.node, start.newer);
    }

    /// See [`IncarnationTable::raise_durable`].
    pub fn raise_durable(&mut self, node: NodeId, durable_lsn: u64) {
        self.table.raise_durable(node, durable_lsn);
    }
}
