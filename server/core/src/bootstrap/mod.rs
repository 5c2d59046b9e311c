//! Forming a cluster, once (operations.md 1.2): whether it can have that shape, its first map, and the order of what is
//! asked of its seeds.

mod forming;

use bytes::Bytes;
use coppice_client::map::{Entry, NodeInfo, PartitionMap, ReplicaInfo, Role};
use coppice_client::wire::{ClusterId, InitRequest, KEY_BYTES_MAX, MapVersion, NodeId, PartitionId, ReplicaId};

pub use forming::{Ask, Bootstrap, Forming, Heard, INIT_TIMEOUT, Init, Next, Process};

use crate::settings::ClusterSettings;

/// The settings of the cluster that `init` forms, if it can on so many nodes, each of which has room for so many
/// partitions.
fn check(request: &InitRequest, nodes: usize, partitions_max: usize) -> Result<ClusterSettings, String> {
    if request.partitions == 0 || request.partitions > 256 {
        return Err(format!("{} partitions: between 1 and 256 are possible", request.partitions));
    }
    let keys = &request.split_keys;
    if !keys.is_empty() && keys.len() as u32 != request.partitions - 1 {
        return Err(format!(
            "{} partitions need {} split keys, not {}",
            request.partitions,
            request.partitions - 1,
            keys.len()
        ));
    }
    if keys.windows(2).any(|pair| pair[0] >= pair[1]) || keys.first().is_some_and(Bytes::is_empty) {
        return Err("split keys must ascend".into());
    }
    if let Some(key) = keys.iter().find(|key| key.len() > KEY_BYTES_MAX) {
        return Err(format!("a split key has {} bytes, and a key has at most {KEY_BYTES_MAX}", key.len()));
    }
    check_space(request, nodes, partitions_max)
}

/// `limits.partitions`: as many replicas of partitions as one node gets must fit on it.
fn check_space(request: &InitRequest, nodes: usize, partitions_max: usize) -> Result<ClusterSettings, String> {
    let pairs = request.settings.iter().cloned().collect();
    let settings = ClusterSettings::of_pairs(&pairs).map_err(|error| error.to_string())?;
    let replicas = (settings.replicas as usize).min(nodes);
    let most = (request.partitions as usize * replicas).div_ceil(nodes.max(1));
    if most > partitions_max {
        return Err(format!("a node would hold {most} partitions, limits.partitions allows {partitions_max}"));
    }
    Ok(settings)
}

/// Partitions 1 to N; replicas and preferred leaders spread evenly.
fn first_map(
    nodes: Vec<NodeInfo>,
    directory: &[(ReplicaId, NodeId, String)],
    request: &InitRequest,
    replicas: usize,
) -> PartitionMap {
    let version = MapVersion(1);
    let cuts = if request.split_keys.is_empty() { even_cuts(request.partitions) } else { request.split_keys.clone() };
    let on = |first: usize| -> Vec<ReplicaInfo> {
        (0..replicas)
            .map(|at| ReplicaInfo {
                replica: ReplicaId(at as u32 + 1),
                node: nodes[(first + at) % nodes.len()].id,
                role: Role::Voter,
            })
            .collect()
    };
    let partitions = (0..request.partitions as usize)
        .map(|at| Entry {
            partition: PartitionId(at as u32 + 1),
            low: if at == 0 { Bytes::new() } else { cuts[at - 1].clone() },
            high: cuts.get(at).cloned(),
            version,
            replicas: on(at),
        })
        .collect();
    let directory = Some(Entry { version, ..first_directory(directory) });
    PartitionMap { version, nodes, directory, partitions, ..PartitionMap::default() }
}

/// Group 0 as it begins, with these replicas: id, node, peer address of the node.
pub fn first_directory(replicas: &[(ReplicaId, NodeId, String)]) -> Entry {
    let voter = |&(replica, node, _): &_| ReplicaInfo { replica, node, role: Role::Voter };
    let replicas = replicas.iter().map(voter).collect();
    Entry { partition: PartitionId::DIRECTORY, replicas, ..Entry::default() }
}

/// Whether a process becomes the node that it is told to be; else it is that node already.
///
/// # Errors
/// It is another one.
pub fn becomes(own: Option<(ClusterId, NodeId)>, told: (ClusterId, NodeId)) -> Result<bool, String> {
    match own {
        None => Ok(true),
        Some(own) if own == told => Ok(false),
        Some((cluster, node)) => Err(format!("this is {node} of cluster {cluster} already")),
    }
}

/// The space of 8-byte keys, cut evenly.
fn even_cuts(partitions: u32) -> Vec<Bytes> {
    let step = u128::from(u64::MAX) + 1;
    (1..u128::from(partitions))
        .map(|at| Bytes::copy_from_slice(&((step * at / u128::from(partitions)) as u64).to_be_bytes()))
        .collect()
}

#[cfg(test)]
mod tests {
    use coppice_client::map::{Addresses, NodeState};

    use super::*;

    fn request(partitions: u32, split_keys: &[&'static str]) -> InitRequest {
        let split_keys = split_keys.iter().map(|key| Bytes::from_static(key.as_bytes())).collect();
        InitRequest { partitions, split_keys, ..InitRequest::default() }
    }

    fn map(request: &InitRequest, nodes: u32) -> PartitionMap {
        let node = |id| NodeInfo {
            id: NodeId(id),
            name: format!("n{id}"),
            addresses: Addresses::default(),
            state: NodeState::Member,
        };
        let nodes = (1..=nodes).map(node).collect();
        let directory: Vec<_> = (1..=3).map(|n| (ReplicaId(n), NodeId(n), format!("a{n}"))).collect();
        first_map(nodes, &directory, request, 3)
    }

    #[test]
    fn keys_are_cut_evenly_and_replicas_are_spread() {
        let map = map(&request(4, &[]), 4);
        map.check().expect("a map");
        let lows: Vec<u8> = map.partitions.iter().map(|entry| entry.low.first().copied().unwrap_or(0)).collect();
        assert_eq!(lows, [0, 0x40, 0x80, 0xc0]);
        for node in 1..=4 {
            let held = map.partitions.iter().filter(|entry| entry.replica_on(NodeId(node)).is_some());
            assert_eq!(held.count(), 3, "n{node}");
        }
    }

    #[test]
    fn split_keys_are_used_as_given() {
        let map = map(&request(3, &["g", "p"]), 3);
        map.check().expect("a map");
        assert_eq!(map.partitions[1].low, "g");
        assert_eq!(map.partitions[1].high.as_deref(), Some(&b"p"[..]));
    }

    #[test]
    fn impossible_shapes_are_refused() {
        let fails = |request: &InitRequest, text: &str| {
            assert!(check(request, 3, 256).is_err_and(|why| why.contains(text)), "{text}");
        };
        fails(&request(0, &[]), "between 1 and 256");
        fails(&request(257, &[]), "between 1 and 256");
        fails(&request(3, &["g"]), "2 split keys, not 1");
        fails(&request(3, &["p", "g"]), "must ascend");
        assert!(check(&request(8, &[]), 3, 7).is_err_and(|why| why.contains("limits.partitions allows 7")));
        assert!(check(&request(8, &[]), 3, 8).is_ok());
    }

    #[test]
    fn a_process_takes_an_identity_once() {
        let told = (ClusterId(1), NodeId(2));
        assert_eq!([None, Some(told)].map(|own| becomes(own, told)), [Ok(true), Ok(false)]);
        for other in [(ClusterId(2), NodeId(2)), (ClusterId(1), NodeId(3))] {
            assert!(becomes(Some(other), told).is_err());
        }
    }
}
