//! What is wrong with a node, in words for its operators.

use std::collections::BTreeMap;

use coppice_client::map::PartitionMap;
use coppice_client::wire::{NodeId, PartitionId};

use crate::settings::units::about_size;

/// What may be wrong with a node.
#[derive(Clone, Debug, Default)]
pub struct Condition {
    /// It listens beyond loopback (`insecure`), and its connections are in the clear.
    pub is_insecure: bool,
    pub access_is_on: bool,
    /// The log is not flushed.
    pub flush_is_off: bool,
    /// Its memory is filled to the limit.
    pub memory_is_full: bool,
    /// Memory in use and `memory.limit`, in bytes.
    pub memory: (u64, u64),
    /// Its disk is filled to the reserve.
    pub disk_is_full: bool,
    /// Free bytes of its disk and `log.disk_reserve`.
    pub disk: (u64, u64),
    /// It runs on a copy of its data directory: which node it is, why, and the command that comes next.
    pub copy: Option<(NodeId, String, String)>,
    /// Nodes that run on copies of their directories, as this one found out, and why.
    pub copies: BTreeMap<NodeId, String>,
    /// What a start has still to read or to execute, in sentences.
    pub recovering: Vec<String>,
    /// Partitions whose checkpoints cannot be read.
    pub damaged: Vec<PartitionId>,
}

impl Condition {
    /// What an operator is told. `map` says where nodes are.
    pub fn warnings(&self, map: &PartitionMap) -> Vec<String> {
        let mut warnings: Vec<String> = Vec::new();
        if self.is_insecure {
            warnings.push(match self.access_is_on {
                false => "listens beyond loopback without TLS, and access control is off (insecure = true): whoever \
                          reaches the ports may do everything"
                    .into(),
                true => "listens beyond loopback without TLS (insecure = true): tokens and data can be read on the \
                         way, and the peer port lets in whoever reaches it"
                    .into(),
            });
        }
        if self.flush_is_off {
            warnings.push("log.flush is off: a power cut may lose answered writes".into());
        }
        if self.memory_is_full {
            let (used, limit) = (about_size(self.memory.0), about_size(self.memory.1));
            warnings.push(format!(
                "memory limit reached: {used} used, memory.limit = {limit}: writes that grow are refused where it leads"
            ));
        }
        if self.disk_is_full {
            let (free, reserve) = (about_size(self.disk.0), about_size(self.disk.1));
            warnings.push(format!(
                "disk reserve reached: {free} free, log.disk_reserve = {reserve}: writes that grow are refused where \
                 a majority has no more room"
            ));
        }
        if let Some((own, why, next)) = &self.copy {
            warnings.push(format!("{own} takes part in nothing: {why}; replace it: `{next}`"));
        }
        for (&node, why) in &self.copies {
            let address = map.node(node).map_or("ADDRESS", |info| info.addresses.peer.as_str());
            warnings.push(format!("{node} is not let in: {why}; replace it: `coppice node replace {node} {address}`"));
        }
        warnings.extend(self.recovering.iter().cloned());
        let awaited =
            |partition| format!("{partition}: checkpoints are damaged; its state is awaited from another node");
        warnings.extend(self.damaged.iter().map(awaited));
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_condition_has_its_words_and_a_healthy_node_has_none() {
        let map = PartitionMap::default();
        assert!(Condition { access_is_on: true, ..Condition::default() }.warnings(&map).is_empty());
        let all = Condition {
            is_insecure: true,
            flush_is_off: true,
            memory_is_full: true,
            disk_is_full: true,
            copy: Some((NodeId(1), "it forgot".into(), "coppice node replace n1 HERE".into())),
            copies: BTreeMap::from([(NodeId(2), "it forgot".into())]),
            damaged: vec![PartitionId(3)],
            ..Condition::default()
        };
        let begins = ["listens", "log.flush", "memory", "disk", "n1 takes part", "n2 is not let in", "p3: checkpoints"];
        let warnings = all.warnings(&map);
        assert_eq!(warnings.len(), begins.len());
        for (text, begins) in warnings.iter().zip(begins) {
            assert!(text.starts_with(begins), "{text}");
        }
        assert!(warnings[5].ends_with("`coppice node replace n2 ADDRESS`"), "the map does not know where it is");
    }
}
