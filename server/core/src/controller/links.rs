//! The other nodes to which a node keeps links, and where these are: where the seeds say, then where the first replicas
//! of the directory were said to be, then where the map says.

use std::collections::BTreeMap;

use coppice_client::map::{NodeState, PartitionMap};
use coppice_client::wire::NodeId;

use super::Effect;

/// The address of each node to which there is a link.
#[derive(Debug, Default)]
pub(super) struct Links(BTreeMap<NodeId, String>);

impl Links {
    /// The nodes of the map are linked, and no other one that it names.
    pub(super) fn follow(&mut self, own: Option<NodeId>, map: &PartitionMap, effects: &mut Vec<Effect>) {
        for node in &map.nodes {
            if node.state != NodeState::Removed && !node.addresses.peer.is_empty() {
                self.link(own, node.id, &node.addresses.peer, effects);
            } else if self.0.remove(&node.id).is_some() {
                effects.push(Effect::Unlink(node.id));
            }
        }
    }

    /// The node is reached there.
    pub(super) fn link(&mut self, own: Option<NodeId>, node: NodeId, address: &str, effects: &mut Vec<Effect>) {
        let is_known = self.0.get(&node).is_some_and(|known| known == address);
        if own.is_some_and(|own| own != node) && !is_known {
            self.0.insert(node, address.to_owned());
            effects.push(Effect::Link(node, address.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use coppice_client::map::{Addresses, NodeInfo};
    use coppice_client::wire::MapVersion;
    use coppice_ordering::Time;

    use super::super::{Controller, Input};
    use super::*;

    fn tell(controller: &mut Controller, input: Input) -> Vec<String> {
        let mut effects = Vec::new();
        controller.step(Time(1), input, &mut effects);
        let said = |effect: &Effect| match effect {
            Effect::Link(node, address) => Some(format!("{node} at {address}")),
            Effect::Unlink(node) => Some(format!("not {node}")),
            _ => None,
        };
        effects.iter().filter_map(said).collect()
    }

    fn map(version: u64, nodes: &[(u32, &str, NodeState)]) -> Input {
        let node = |&(id, peer, state): &(u32, &str, NodeState)| {
            let addresses = Addresses { peer: peer.into(), ..Addresses::default() };
            NodeInfo { id: NodeId(id), name: String::new(), addresses, state }
        };
        let nodes = nodes.iter().map(node).collect();
        Input::Map(Arc::new(PartitionMap { version: MapVersion(version), nodes, ..PartitionMap::default() }))
    }

    #[test]
    fn links_go_where_the_seeds_say_until_the_map_says_so_and_not_to_who_was_removed() {
        use NodeState::{Member, Removed};
        let mut node = Controller::new(1);
        let seeds = ["a", "b", "c"].map(String::from).into();
        let begins = Input::Identity { node: NodeId(2), kept: None, seeds };
        assert_eq!(tell(&mut node, begins), ["n1 at a", "n3 at c"], "they are numbered in this order");
        let moved = map(1, &[(1, "a", Member), (2, "b", Member), (3, "d", Member), (4, "", Member)]);
        assert_eq!(tell(&mut node, moved), ["n3 at d"]);
        let removed = map(2, &[(1, "a", Removed), (2, "b", Member), (3, "d", Member), (4, "e", Member)]);
        assert_eq!(tell(&mut node, removed), ["not n1", "n4 at e"]);
    }
}
