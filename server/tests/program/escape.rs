//! Replies behind a query when the directory has no majority: with `gate_escape` they leave (protocol.md 4.4).

use std::time::{Duration, Instant};

use coppice_client::blocking::Client;
use coppice_client::map::{Entry, PartitionMap};
use coppice_client::wire::{NodeId, PartitionId};

use crate::support::{Cluster, eventually, patient, signal};

const DEADLINE: Duration = Duration::from_secs(2);

fn index(node: NodeId) -> usize {
    node.0 as usize - 1
}

fn nodes(entry: &Entry) -> Vec<usize> {
    entry.replicas.iter().map(|info| index(info.node)).collect()
}

/// The node that leads a group, as the node itself says.
fn leader(cluster: &Cluster, group: PartitionId, candidates: &[usize]) -> Option<usize> {
    let name = format!("coppice_partition_leader{{partition=\"{group}\"}} 1");
    candidates.iter().copied().find(|&node| cluster.page(node, "/metrics").lines().any(|line| line == name))
}

/// A partition of which two replicas stand on nodes that have none of the directory, and the one of them that leads.
fn apart(cluster: &Cluster, map: &PartitionMap) -> Option<(Entry, usize)> {
    let directory = nodes(map.directory.as_ref().expect("a directory"));
    map.partitions.iter().find_map(|entry| {
        let others: Vec<usize> = nodes(entry).into_iter().filter(|node| !directory.contains(node)).collect();
        let leads = leader(cluster, entry.partition, &others)?;
        (others.len() >= 2).then_some((entry.clone(), leads))
    })
}

/// The directory's leader sends a ticket while its followers stand still, and dies before it is released or voided.
/// A put behind that ticket: how long it took. None: leaders stand where nothing is shown.
fn put_behind_a_ticket(cluster: &mut Cluster) -> Option<Duration> {
    let client = Client::connect_with([cluster.endpoint(0)], patient()).expect("it serves");
    let map = client.map().expect("it has a map");
    let directory = nodes(map.directory.as_ref().expect("a directory"));
    let (partition, serves) = apart(cluster, &map)?;
    let leads = leader(cluster, PartitionId::DIRECTORY, &directory)?;
    let followers: Vec<u32> = directory.iter().filter(|&&node| node != leads).map(|&node| cluster.pid(node)).collect();
    followers.iter().for_each(|&pid| signal(pid, "STOP"));
    let scan = cluster.run_at(leads, &["scan", "a..zz", "--timeout", "500ms"]);
    assert_ne!(scan.code, 0, "nobody can release its ticket: {scan:?}");
    cluster.kill(leads);
    let begun = Instant::now();
    let key = if partition.low.is_empty() { "a".to_owned() } else { String::from_utf8_lossy(&partition.low).into() };
    let said = cluster.run_at(serves, &["put", &key, "v", "--timeout", "30s"]);
    let took = begun.elapsed();
    assert_eq!(said.code, 0, "it waits for a directory that has no majority: {said:?}");
    if took > DEADLINE {
        let name = format!("coppice_tickets_freed_total{{partition=\"{}\"}} ", partition.partition);
        let freed = || {
            cluster
                .page(serves, "/metrics")
                .lines()
                .any(|line| line.strip_prefix(&name).is_some_and(|count| count != "0"))
        };
        eventually("it is counted", freed);
    }
    followers.iter().for_each(|&pid| signal(pid, "CONT"));
    cluster.start(leads, "ready");
    cluster.healthy();
    Some(took)
}

#[test]
fn a_put_behind_a_query_is_answered_though_the_directory_has_no_majority() {
    let mut cluster = Cluster::formed(5, "e,j,o,t");
    // The ticket is not voided, and its coordinator goes on, for as long as the scan takes.
    for (key, value) in [("election_timeout", "5s"), ("place_timeout", "2s"), ("query_deadline", "2s")] {
        assert_eq!(cluster.run(&["config", "set", key, value]).code, 0);
    }
    assert_eq!(cluster.run(&["config", "set", "gate_escape", "on"]).code, 0);
    // On a busy machine the coordinator may have died before it had sent its ticket, or have voided it.
    let waits = (0..4).filter_map(|_| put_behind_a_ticket(&mut cluster)).find(|took| *took > DEADLINE);
    let took = waits.expect("a put that waited for a ticket");
    assert!(took < 10 * DEADLINE, "{took:?}");
    assert_eq!(cluster.run(&["scan", "a..zz"]).code, 0, "queries go on when the directory is back");
}
