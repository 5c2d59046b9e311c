//! Nodes that go, for a while or for good: handing over what they lead, or having lost all that they knew.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use coppice_client::blocking::Client;
use coppice_client::map::{PartitionMap, Role};
use coppice_client::wire::PartitionId;

use crate::common::cluster::{Writer, key};
use crate::support::{Cluster, eventually, patient, run_at};

/// Replica ids and nodes of a partition's voters, and of its learners.
fn replicas(map: &PartitionMap, partition: u32, role: Role) -> Vec<(u32, u32)> {
    let entry = map.group(PartitionId(partition)).expect("it is in the map");
    let of_role = entry.replicas.iter().filter(|info| info.role == role);
    of_role.map(|info| (info.replica.0, info.node.0)).collect()
}

/// Whether three nodes vote, the new one among them.
fn is_replaced(map: &PartitionMap, partition: u32) -> bool {
    let voters: BTreeSet<u32> = replicas(map, partition, Role::Voter).iter().map(|(_, node)| *node).collect();
    voters.into_iter().eq([1, 2, 4])
}

/// The map as a node has it.
fn map_of(cluster: &Cluster, index: usize) -> Arc<PartitionMap> {
    let client = Client::connect_with([cluster.endpoint(index)], patient());
    client.and_then(|client| client.map()).expect("it has a map")
}

/// hazards.md PX11, with processes: a data directory is removed while its node is down. What comes back there has
/// promised nothing that it knows of: the old replica must never vote again, and the new one only once it has it all.
#[test]
#[ignore = "long: a whole replacement"]
fn px11_a_node_whose_disk_was_wiped_is_replaced_under_new_ids_and_votes_again() {
    let mut cluster = Cluster::formed(3, "m");
    for key in ["a", "z"] {
        assert_eq!(cluster.run(&["put", key, "before"]).code, 0);
    }
    assert!(cluster.stop(2).success(), "{}", cluster.log(2));
    std::fs::remove_dir_all(cluster.data_dir(2)).expect("it is ours");
    cluster.start(2, "waiting for init");
    eventually("its process is not taken for the node", || {
        cluster.run(&["status", "-o", "json"]).out.contains(r#""node":"n3","up":false"#)
    });
    // It knows nobody, and nobody counts it: with one of the other two there is no quorum.
    cluster.kill(0);
    let said = cluster.run(&["put", "a", "amnesia", "--timeout", "2s"]);
    assert!([3, 6].contains(&said.code), "one of two voters is no quorum: {said:?}");
    let survived = said.code == 6;
    cluster.start(0, "ready");
    eventually("two of three serve", || cluster.run(&["put", "z", "two", "--timeout", "5s"]).code == 0);
    let value = cluster.run(&["get", "a"]).out;
    assert!(value == "before" || (survived && value == "amnesia"), "{value}");
    // Its old place is not simply given back.
    let address = format!("127.0.0.1:{}", cluster.peer_port(2));
    eventually("it is said how it comes back", || {
        let said = cluster.run(&["node", "add", &address, "--yes"]);
        assert_ne!(said.code, 0, "{said:?}");
        said.err.contains("coppice node replace n3")
    });
    let client = cluster.client();
    // While it is replaced, and after: what the map names on the new node has a new id, and is no voter at first.
    let endpoints = cluster.endpoints();
    let replacing = std::thread::spawn(move || {
        eventually("the node is replaced", || {
            let said = run_at(&endpoints, &["node", "replace", "n3", &address, "--yes"], b"");
            assert!([0, 3].contains(&said.code), "{said:?}");
            said.code == 0
        });
    });
    let mut seen = BTreeSet::new();
    eventually("every replica is replaced", || {
        let map = map_of(&cluster, 0);
        for partition in 0..=2 {
            let (voters, learners) = (replicas(&map, partition, Role::Voter), replicas(&map, partition, Role::Learner));
            let both = || voters.iter().chain(&learners);
            assert!(both().all(|&(id, node)| (id > 3) == (node == 4)), "{voters:?} {learners:?}");
            seen.insert((voters, learners));
        }
        (0..=2).all(|partition| is_replaced(&map, partition)) || replacing.is_finished()
    });
    println!("voters and learners as they were seen: {seen:?}");
    replacing.join().expect("it is replaced");
    let replaced = map_of(&cluster, 0);
    assert!((0..=2).all(|partition| is_replaced(&replaced, partition)), "{replaced:?}");
    eventually("the cluster is healthy again", || cluster.run(&["status"]).code == 0);
    // With the new replica two of three: it votes.
    cluster.kill(0);
    for key in ["a", "z"] {
        client.put(key.as_bytes(), &b"after"[..]).expect("a quorum");
        assert_eq!(client.get(key.as_bytes()).expect("a quorum").output.as_deref(), Some(&b"after"[..]));
    }
}

/// A node that is told to stop hands over what it leads before it goes: clients see a retry, never a failure or an
/// unknown outcome, and nobody waits for an election.
#[test]
fn a_node_that_is_told_to_stop_hands_its_leaders_over_first() {
    // Whoever has to wait for an election waits for so long.
    let election = Duration::from_secs(20);
    let mut cluster = Cluster::waiting(3);
    let said = cluster.run(&["init", "--split-keys", "m", "--set", "election_timeout=20s"]);
    assert_eq!(said.code, 0, "{said:?}");
    cluster.healthy();
    let mut waits = Vec::new();
    // A busy machine may not be able to hand over in time, two seconds; but not again and again.
    for victim in [0, 1, 2] {
        let name = format!("n{}", victim + 1);
        for partition in ["p0", "p1", "p2"] {
            eventually("it leads everything", || cluster.run(&["leader", "transfer", partition, &name]).code == 0);
        }
        let writer = Writer::of(cluster.client());
        writer.goes_on(20);
        assert!(cluster.stop(victim).success(), "{}", cluster.log(victim));
        writer.goes_on(20);
        let longest = writer.check_with(&cluster.client());
        cluster.start(victim, "ready");
        cluster.healthy();
        waits.push(longest);
        if longest < election / 2 {
            return;
        }
        // The keys of the next round are those of this one.
        let client = cluster.client();
        let deleted = |n| client.delete(key(n)).expect("served").output.is_some();
        assert!((0..).take_while(|&n| deleted(n)).count() > 20);
    }
    panic!("every time somebody waited for an election: {waits:?}");
}
