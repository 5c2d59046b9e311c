//! What is wrong with a cluster, one sentence each, and the command that mends it.

use coppice_client::wire::{NodeId, Status};

use super::health::{full_for, late, refusing, too_few, unserved};
use super::{Health, sentence};

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// What, and what to do about it.
    pub wrong: String,
    /// The command to type; none: there is nothing to type, or nothing to do.
    pub verb: Option<String>,
}

/// What is wrong, most urgent first. `peer`: where other nodes reach a node.
pub fn remedies(status: &Status, peer: impl Fn(NodeId) -> Option<String>) -> Vec<Remedy> {
    let mut found = Vec::new();
    let mut add = |wrong: String, verb: Option<&str>| found.push(Remedy { wrong, verb: verb.map(str::to_owned) });
    match Health::of(status) {
        Health::Unformed => add("these nodes belong to no cluster".to_owned(), Some("coppice init")),
        Health::Removed => add(sentence(status), None),
        _ => {}
    }
    if status.cluster.is_none() || status.removed {
        return found;
    }
    if !status.majority {
        let text = "this node hears no majority of the directory: ask another one, and look for the cut between them";
        add(text.to_owned(), Some("coppice status"));
    } else if status.tolerated_failures < 0 {
        add(unserved(status), Some("coppice status"));
    }
    for node in status.nodes.iter().filter(|node| !node.up) {
        let address = peer(node.id).unwrap_or_else(|| "ADDRESS".to_owned());
        let replace = format!("coppice node replace {} {address}", node.id);
        let mend = "start it again, or mend its network; only if its disk is lost, replace it";
        add(format!("{} does not answer: {mend}", node.id), Some(&replace));
    }
    for text in refusing(status) {
        add(format!("{text}; deletes go on; more room comes with another node"), Some("coppice node add ADDRESS"));
    }
    if let Some(text) = too_few(status) {
        add(format!("{text}: the missing ones come as nodes join"), Some("coppice node add ADDRESS"));
    }
    for node in &status.nodes {
        if let Some(what) = full_for(node) {
            add(format!("{} has no room {what}: it takes no new replicas", node.id), Some("coppice rebalance"));
        }
    }
    if let Some(text) = late(status) {
        add(text, None);
    }
    for warning in &status.warnings {
        let quoted = warning.split('`').nth(1);
        add(warning.clone(), quoted);
    }
    found
}

#[cfg(test)]
mod tests {
    use coppice_client::wire::{ClusterId, NodeStatus, PartitionId, PartitionStatus, ReplicaStatus};

    use super::*;

    fn status() -> Status {
        let node = |n| NodeStatus { id: NodeId(n), up: true, ..NodeStatus::default() };
        let replica = |n| ReplicaStatus { node: NodeId(n), voter: true, up: true, ..ReplicaStatus::default() };
        let partition = |id| PartitionStatus {
            id: PartitionId(id),
            leader: Some(NodeId(1)),
            replicas: (1..=3).map(replica).collect(),
            ..PartitionStatus::default()
        };
        Status {
            cluster: Some(ClusterId(1)),
            nodes: (1..=3).map(node).collect(),
            partitions: (0..=2).map(partition).collect(),
            majority: true,
            replicas: 3,
            tolerated_failures: 1,
            ..Status::default()
        }
    }

    fn of(status: &Status) -> Vec<(String, Option<String>)> {
        let peer = |node: NodeId| (node.0 == 2).then(|| "h2:7402".to_owned());
        remedies(status, peer).into_iter().map(|remedy| (remedy.wrong, remedy.verb)).collect()
    }

    #[test]
    fn a_healthy_cluster_needs_nothing() {
        assert_eq!(of(&status()), []);
    }

    #[test]
    fn a_node_that_is_down_is_named_with_the_verb_that_replaces_it() {
        let mut status = status();
        status.nodes[1].up = false;
        status.nodes[2].up = false;
        let [(wrong, verb), (_, unknown)] = &of(&status)[..] else { panic!("two nodes: {:?}", of(&status)) };
        assert!(wrong.starts_with("n2 does not answer"), "{wrong}");
        assert_eq!(verb.as_deref(), Some("coppice node replace n2 h2:7402"));
        assert_eq!(unknown.as_deref(), Some("coppice node replace n3 ADDRESS"), "the map does not say where");
    }

    #[test]
    fn each_reason_has_its_sentence_in_the_words_of_status() {
        let mut status = status();
        status.partitions[1].refuses = Some("memory limit".into());
        status.partitions[2].replicas.pop();
        status.partitions[2].replicas[1].lag_ms = 5_000;
        status.nodes[0].memory_full = true;
        status.warnings = vec!["n3 is not let in: replace it: `coppice node replace n3 X`".into()];
        let found = of(&status);
        let begins = [
            ("p1 refuses writes that grow: memory limit", Some("coppice node add ADDRESS")),
            ("2 of 3 replicas of p2", Some("coppice node add ADDRESS")),
            ("n1 has no room in memory", Some("coppice rebalance")),
            ("the replicas of p2 catch up", None),
            ("n3 is not let in", Some("coppice node replace n3 X")),
        ];
        assert_eq!(found.len(), begins.len(), "{found:?}");
        for ((wrong, verb), (begin, wanted)) in found.iter().zip(begins) {
            assert!(wrong.starts_with(begin), "{wrong}");
            assert_eq!(verb.as_deref(), wanted, "{wrong}");
        }
    }

    #[test]
    fn without_a_cluster_or_a_majority_that_comes_first() {
        assert_eq!(of(&Status::default())[0].1.as_deref(), Some("coppice init"));
        assert!(of(&Status { majority: false, ..status() })[0].0.contains("no majority"));
        assert!(of(&Status { tolerated_failures: -1, ..status() })[0].0.contains("no quorum"));
        assert_eq!(of(&Status { removed: true, ..status() }).len(), 1);
    }
}
