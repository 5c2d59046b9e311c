//! A real cluster that changes its shape while it serves: nodes join and go, replicas move, a disk is lost.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::cluster::{ASK, Writer, add, connect, formed, leader, map, refused, relocate, reshape};
use common::{Scratch, patience, wait_for, wait_until};
use coppice_client::map::{PartitionMap, Role};
use coppice_client::wire::{
    AdminError, AdminReply, AdminRequest, ChangeId, NodeId, PartitionId, ReshapeRequest, Shape,
};
use coppice_server::local::{Cluster, LocalOptions, admin};

fn nodes_of(map: &PartitionMap, partition: u32) -> Vec<u32> {
    map.entry(PartitionId(partition)).unwrap().replicas.iter().map(|info| info.node.0).collect()
}

/// Their states, and who is decided to replicate each group (hazards.md E6).
fn replicas_agree(cluster: &Cluster) {
    wait_for("all replicas are compared", patience(), || {
        let said =
            cluster.endpoints().into_iter().find_map(|endpoint| admin(endpoint, AdminRequest::CheckReplicas, ASK).ok());
        match said {
            Some(AdminReply::ReplicasChecked { missing, .. }) => missing.is_empty().then_some(()),
            Some(AdminReply::Failed(AdminError::Mismatch(text))) => panic!("{text}"),
            _ => None,
        }
    });
}

#[test]
#[ignore = "long: every group moves"]
fn every_replica_moves_to_new_nodes_and_the_old_ones_go_while_a_client_writes() {
    let directory = Scratch::new("grow");
    let options = LocalOptions { partitions: 2, ..LocalOptions::new(&directory.0) };
    let mut cluster = formed(&options);
    let writer = Writer::start(&cluster);
    let added: Vec<NodeId> = (0..3).map(|n| add(&mut cluster, 10 + n)).collect();
    assert_eq!(added, [4, 5, 6].map(NodeId));
    // The directory too; all at once, so that no old replica is left to ask.
    for partition in [1, 0, 2] {
        reshape(&cluster, 20 + u64::from(partition), relocate(partition, &[4, 5, 6]));
    }
    let moved = map(&cluster);
    for partition in 0..=2 {
        assert_eq!(nodes_of(&moved, partition), [4, 5, 6]);
        let entry = moved.entry(PartitionId(partition)).unwrap();
        assert!(entry.replicas.iter().all(|info| info.role == Role::Voter && info.replica.0 > 3), "{entry:?}");
    }
    for node in 1..=3 {
        reshape(&cluster, 30 + u64::from(node), Shape::RemoveNode { node: NodeId(node) });
        let address = cluster.node(node as usize - 1).unwrap().endpoints().peer.to_string();
        refused(&cluster, 40 + u64::from(node), Shape::AddNode { address }, "empty its data directory");
        cluster.stop(node as usize - 1);
    }
    // All that the cluster was formed of is gone; those that are left come back by themselves.
    for at in 3..6 {
        cluster.stop(at);
        cluster.restart(at).unwrap();
    }
    writer.check(&cluster);
    replicas_agree(&cluster);
}

#[test]
fn a_drained_node_holds_nothing_and_the_move_survives_the_directorys_leader() {
    let directory = Scratch::new("drain");
    let options = LocalOptions { partitions: 3, ..LocalOptions::new(&directory.0) };
    let mut cluster = formed(&options);
    let writer = Writer::start(&cluster);
    add(&mut cluster, 1);
    let request = ReshapeRequest {
        change: ChangeId(2),
        shape: relocate(1, &[2, 3, 4]),
        dry_run: false,
        force: false,
        within: None,
    };
    let leader = wait_for("the directory's leader has begun the move", patience(), || {
        let leader = leader(&cluster, PartitionId::DIRECTORY).0 as usize - 1;
        let asked = admin(cluster.endpoints()[leader], AdminRequest::Reshape(request.clone()), ASK);
        matches!(asked, Ok(AdminReply::Reshaped(_))).then_some(leader)
    });
    // It was decided a moment ago; whoever leads now finds it in the log.
    cluster.stop(leader);
    reshape(&cluster, 2, relocate(1, &[2, 3, 4]));
    cluster.restart(leader).unwrap();
    assert_eq!(nodes_of(&map(&cluster), 1), [2, 3, 4]);
    reshape(&cluster, 3, Shape::DrainNode { node: NodeId(2) });
    replicas_agree(&cluster);
    let drained = map(&cluster);
    for partition in 0..=3 {
        let nodes = nodes_of(&drained, partition);
        assert!(nodes.len() == 3 && !nodes.contains(&2), "p{partition} is on {nodes:?}");
    }
    writer.check(&cluster);
}

#[test]
fn px11_a_node_that_lost_its_disk_comes_back_as_a_learner_with_another_id() {
    let directory = Scratch::new("wiped");
    let mut cluster = formed(&LocalOptions::new(&directory.0));
    let writer = Writer::start(&cluster);
    cluster.stop(2);
    std::fs::remove_dir_all(directory.0.join("n3")).unwrap();
    cluster.restart(2).unwrap();
    let address = cluster.node(2).unwrap().endpoints().peer.to_string();
    assert_eq!(cluster.node(2).unwrap().identity(), None, "it must not remember who it was");
    refused(&cluster, 1, Shape::AddNode { address: address.clone() }, "coppice node replace n3");
    reshape(&cluster, 2, Shape::ReplaceNode { old: NodeId(3), address });
    assert_eq!(cluster.node(2).unwrap().identity().map(|(_, node)| node), Some(NodeId(4)));
    let replaced = map(&cluster);
    for partition in 0..=1 {
        let replicas: Vec<(u32, u32)> = replaced
            .entry(PartitionId(partition))
            .unwrap()
            .replicas
            .iter()
            .map(|info| (info.replica.0, info.node.0))
            .collect();
        assert_eq!(replicas, [(1, 1), (2, 2), (4, 4)]);
    }
    // With the new replica two of three: it votes.
    cluster.stop(0);
    connect(&cluster).put("after", "all").unwrap();
    cluster.restart(0).unwrap();
    writer.check(&cluster);
}

#[test]
fn what_makes_no_sense_is_refused_and_nothing_is_half_done() {
    let directory = Scratch::new("refused");
    let mut cluster = formed(&LocalOptions::new(&directory.0));
    let before = map(&cluster);
    let because = |shape: Shape, words: &str| refused(&cluster, 1, shape, words);
    because(relocate(1, &[1, 2, 9]), "no node n9");
    because(relocate(1, &[2]), "set `replicas` first");
    because(relocate(7, &[1, 2, 3]), "no partition p7");
    because(Shape::RemoveNode { node: NodeId(3) }, "add a node first");
    because(Shape::AddNode { address: "127.0.0.1:1".into() }, "nobody answers");
    let own = cluster.node(1).unwrap().endpoints().native.to_string();
    because(Shape::AddNode { address: own }, "peer port");
    assert_eq!(map(&cluster), before);
    let strangers = Scratch::new("strangers");
    let other = formed(&LocalOptions { nodes: 1, ..LocalOptions::new(&strangers.0) });
    let address = other.node(0).unwrap().endpoints().peer.to_string();
    because(Shape::AddNode { address }, "another cluster");
    cluster.stop(1);
    cluster.stop(2);
}

#[test]
fn partitions_split_while_a_client_writes_and_go_on_after_every_restart() {
    let directory = Scratch::new("split");
    let mut cluster = formed(&LocalOptions::new(&directory.0));
    let writer = Writer::start(&cluster);
    let split = |at: Option<u64>| {
        let at = at.map(|at| at.to_be_bytes().to_vec().into());
        Shape::Split { partition: None, at }
    };
    let quarter = u64::MAX / 4;
    for (change, at) in [(1, Some(2 * quarter)), (2, Some(quarter)), (3, Some(3 * quarter)), (4, None)] {
        if at.is_none() {
            // The largest partition has a median of its own then.
            writer.goes_on(40);
        }
        let child = reshape(&cluster, change, split(at)).partition;
        assert_eq!(child, Some(PartitionId(change as u32 + 1)), "change {change}");
    }
    refused(&cluster, 9, split(Some(quarter)), "begins at that key already");
    assert_eq!(reshape(&cluster, 2, split(Some(quarter))).partition, Some(PartitionId(3)), "asked again");
    let grown = map(&cluster);
    assert_eq!((grown.partitions.len(), grown.check()), (5, Ok(())));
    for at in 0..3 {
        cluster.stop(at);
        cluster.restart(at).unwrap();
    }
    add(&mut cluster, 20);
    reshape(&cluster, 21, relocate(3, &[2, 3, 4]));
    writer.check(&cluster);
}

/// Two partitions are merged while a client writes to both and ranges go over both, in either direction; the nodes are
/// restarted before and after the merge is in a checkpoint.
#[test]
#[ignore = "long: restarts before and after each step"]
fn mv6_partitions_merge_while_a_client_writes_and_go_on_after_every_restart() {
    let directory = Scratch::new("merge");
    let mut cluster = formed(&LocalOptions { partitions: 4, ..LocalOptions::new(&directory.0) });
    let writer = Writer::start(&cluster);
    let (stop, reader) = (writer.stop(), connect(&cluster));
    let ranges = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&ranges);
    let reads = std::thread::spawn(move || {
        let mut most = 0;
        while !stop.load(Ordering::Relaxed) {
            // A node that is stopped ends the streams that it serves.
            let Ok(seen) = reader.range(..).and_then(|mut pairs| pairs.count()) else { continue };
            assert!(seen >= most, "{seen} keys after {most}: nobody deletes");
            most = seen;
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let merge = |partition: u32, into: Option<u32>| {
        let (partition, into) = (PartitionId(partition), into.map(PartitionId));
        Shape::Merge { partition, into }
    };
    refused(&cluster, 1, merge(4, Some(1)), "no neighbours");
    assert_eq!(reshape(&cluster, 2, merge(2, None)).partition, Some(PartitionId(1)));
    for at in 0..3 {
        cluster.stop(at);
        cluster.restart(at).unwrap();
    }
    // Downwards and upwards.
    assert_eq!(reshape(&cluster, 3, merge(3, Some(4))).partition, Some(PartitionId(4)));
    assert_eq!(reshape(&cluster, 3, merge(3, Some(4))).partition, Some(PartitionId(4)), "asked again");
    gone(&cluster, 2);
    gone(&cluster, 3);
    add(&mut cluster, 10);
    reshape(&cluster, 11, relocate(4, &[2, 3, 4]));
    refused(&cluster, 12, merge(4, None), "coppice partition move p4 --to n1,n2,n3");
    reshape(&cluster, 13, relocate(4, &[1, 2, 3]));
    reshape(&cluster, 14, merge(4, None));
    refused(&cluster, 15, merge(1, None), "no neighbour");
    let merged = map(&cluster);
    assert_eq!((merged.partitions.len(), merged.check()), (1, Ok(())));
    cluster.stop(0);
    cluster.restart(0).unwrap();
    let before = ranges.load(Ordering::Relaxed);
    wait_until("ranges are read after it all", patience(), || {
        ranges.load(Ordering::Relaxed) > before + 5 || reads.is_finished()
    });
    writer.check(&cluster);
    reads.join().unwrap();
}

/// Waits until nothing is left of a partition that was taken in.
fn gone(cluster: &Cluster, partition: u32) {
    let what = format!("p{partition} is gone");
    wait_until(&what, patience(), || map(cluster).group(PartitionId(partition)).is_none());
}

/// A node is away from a partition while its neighbour takes it in, and comes back when both are one.
#[test]
fn a_node_that_was_down_over_a_merge_takes_it_in_when_it_is_back() {
    let directory = Scratch::new("merge-down");
    let mut cluster = formed(&LocalOptions { partitions: 2, ..LocalOptions::new(&directory.0) });
    let writer = Writer::start(&cluster);
    // In either partition, before and while the node is away.
    writer.goes_on(20);
    cluster.stop(2);
    reshape(&cluster, 1, Shape::Merge { partition: PartitionId(2), into: None });
    assert!(map(&cluster).group(PartitionId(2)).is_some(), "the third replica needs it");
    cluster.restart(2).unwrap();
    gone(&cluster, 2);
    cluster.stop(0);
    connect(&cluster).put("after", "all").unwrap();
    cluster.restart(0).unwrap();
    writer.check(&cluster);
}

fn cut(cluster: &Cluster, change: u64, at: &'static str) -> PartitionId {
    let at = Some(at.as_bytes().into());
    reshape(cluster, change, Shape::Split { partition: None, at }).partition.unwrap()
}

/// A replica is down over a split, and until the log of the split is trimmed: it goes on from a snapshot, and never
/// executes the split itself.
#[test]
fn mv10_a_replica_that_skips_the_split_by_a_snapshot_has_the_child_too() {
    let directory = Scratch::new("skips");
    let mut options = LocalOptions::new(&directory.0);
    options.node.checkpoint.log_bytes = 64 << 10;
    options.node.log.segment_bytes = 256 << 10;
    let mut cluster = formed(&options);
    let client = connect(&cluster);
    client.put("a", "before").unwrap();
    cluster.stop(2);
    assert_eq!(cut(&cluster, 1, "m"), PartitionId(2));
    // The directories of checkpoints are named after their instances; the log is trimmed up to the newest.
    let newest = |node: &str| {
        let names = std::fs::read_dir(directory.0.join(node).join("checkpoints/p1")).ok()?;
        names.filter_map(|name| name.ok()?.file_name().to_str()?.parse::<u64>().ok()).max()
    };
    wait_until("both logs are trimmed", patience(), || {
        for n in 0..50 {
            client.put(format!("b{n}").as_bytes(), &[7; 2_000][..]).unwrap();
        }
        ["n1", "n2"].into_iter().all(|node| newest(node) >= Some(50))
    });
    client.put("z", "after").unwrap();
    cluster.restart(2).unwrap();
    // One of the other two goes: without the third, neither partition has a quorum.
    cluster.stop(0);
    let client = connect(&cluster);
    client.put("c", "parent").unwrap();
    client.put("y", "child").unwrap();
    assert_eq!(client.get("z").unwrap().output.as_deref(), Some(&b"after"[..]));
}

/// A child writes its first checkpoint where it begins. A snapshot of that very instance, which a peer had sent before,
/// stood in its way: the child counted as unsaved for ever, and its parent, whose log it needed until then, was never
/// checkpointed again.
#[test]
fn a_child_whose_first_checkpoint_a_peer_had_already_sent_holds_its_parents_log_no_longer() {
    let directory = Scratch::new("sent-before");
    let mut options = LocalOptions::new(&directory.0);
    options.node.checkpoint.log_bytes = 64 << 10;
    let mut cluster = formed(&options);
    let client = connect(&cluster);
    client.put("z", "child").unwrap();
    let checkpoints = |node: &str, group: &str| -> Vec<u64> {
        let names = std::fs::read_dir(directory.0.join(node).join("checkpoints").join(group));
        let names = names.into_iter().flatten().flatten();
        names.filter_map(|name| name.file_name().to_str()?.parse().ok()).collect()
    };
    cluster.stop(2);
    assert_eq!(cut(&cluster, 1, "m"), PartitionId(2));
    wait_until("the child has a checkpoint", patience(), || checkpoints("n1", "p2").len() == 1);
    // As if the third node had asked the first one for it, and had it before it executes the split.
    let of = |node: &str| directory.0.join(node).join("checkpoints/p2");
    let copied = std::process::Command::new("cp").arg("-a").args([of("n1"), of("n3")]).status().unwrap();
    assert!(copied.success());
    let before = checkpoints("n3", "p1");
    cluster.restart(2).unwrap();
    wait_until("the parent is checkpointed", patience(), || {
        for n in 0..20 {
            client.put(format!("b{n}").as_bytes(), &[7; 2_000][..]).unwrap();
        }
        checkpoints("n3", "p1").iter().any(|instance| !before.contains(instance))
    });
}

/// After a restart the parent executes the split again, from its log: the child, which runs and has gone on, must not
/// begin a second time.
#[test]
fn mv11_a_replayed_split_begins_no_second_child() {
    let directory = Scratch::new("again");
    let mut cluster = formed(&LocalOptions { nodes: 1, ..LocalOptions::new(&directory.0) });
    let client = connect(&cluster);
    client.put("a", "parent").unwrap();
    client.put("z", "child").unwrap();
    cut(&cluster, 1, "m");
    for round in 0..2_u8 {
        let keys: Vec<String> = (0..50).map(|n| format!("x{round}{n}")).collect();
        for key in &keys {
            client.put(key.as_bytes(), "v").unwrap();
        }
        cluster.stop(0);
        cluster.restart(0).unwrap();
        let client = connect(&cluster);
        for key in keys.iter().map(String::as_str).chain(["a", "z"]) {
            assert!(client.get(key.as_bytes()).unwrap().output.is_some(), "{key} is lost");
        }
    }
}

#[cfg(feature = "mutants")]
#[test]
fn planted_bugs_of_forks_are_caught() {
    use common::assert_caught;
    assert_caught("snapshot_skips_fork", "mv10_a_replica_that_skips_the_split_by_a_snapshot_has_the_child_too");
    assert_caught("fork_again", "mv11_a_replayed_split_begins_no_second_child");
}
