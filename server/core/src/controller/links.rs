//! The other nodes to which a node keeps links, and where these are: where the seeds say, then where the first replicas
//! of the directory were said to be, then where the map says.

use std::collections::BTreeMap;

use coppice_client::map::NodeState;
use coppice_client::wire::NodeId;

use super::{Controller, Effect};

/// The address of each node to which there is a link.
pub(super) type Links = BTreeMap<NodeId, String>;

impl Controller {
    /// Before the map is known again: `init` numbered the nodes in the order of the seeds.
    pub(super) fn link_to_seeds(&mut self, seeds: &[String]) {
        (1..).map(NodeId).zip(seeds).for_each(|(node, seed)| self.link(node, seed));
    }

    /// Links to the nodes of the map, and to no other one that it names.
    pub(super) fn link_to_nodes(&mut self) {
        let map = std::sync::Arc::clone(&self.map);
        for node in &map.nodes {
            if node.state != NodeState::Removed && !node.addresses.peer.is_empty() {
                self.link(node.id, &node.addresses.peer);
            } else if self.links.remove(&node.id).is_some() {
                self.effects.push(Effect::Unlink(node.id));
            }
        }
    }

    /// The node is reached there.
    pub(super) fn link(&mut self, node: NodeId, address: &str) {
        let is_known = self.links.get(&node).is_some_and(|known| known == address);
        if self.node.is_some_and(|own| own != node) && !is_known {
            self.links.insert(node, address.to_owned());
            self.effects.push(Effect::Link(node, address.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use coppice_client::map::{Addresses, NodeInfo, PartitionMap};
    use coppice_client::wire::MapVersion;
    use coppice_ordering::Time;

    use super::super::Input;
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
