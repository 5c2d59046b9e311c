//! A real cluster that changes its shape while it serves: nodes join and go, replicas move, a disk is lost.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use coppice_client::blocking::Client;
use coppice_client::map::{PartitionMap, Role};
use coppice_client::wire::{
    AdminError, AdminReply, AdminRequest, ChangeId, NodeId, PartitionId, ReshapeRequest, Reshaped, Shape,
};
use coppice_server::local::{Cluster, LocalOptions, admin};

struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("coppice-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Asks any node that answers, until the verb is done or refused.
fn reshape(cluster: &Cluster, change: u64, shape: Shape) -> Result<Reshaped, AdminError> {
    let request = ReshapeRequest { change: ChangeId(change), shape, dry_run: false, force: false };
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < Duration::from_secs(60), "{request:?} is never done");
        for endpoint in cluster.endpoints() {
            match admin(endpoint, AdminRequest::Reshape(request.clone()), Duration::from_secs(5)) {
                Ok(AdminReply::Reshaped(reshaped)) if reshaped.done => return Ok(reshaped),
                Ok(AdminReply::Failed(
                    error @ (AdminError::Refused(_) | AdminError::NotFound(_) | AdminError::Unavailable(_)),
                )) => {
                    return Err(error);
                }
                Ok(AdminReply::Reshaped(_)) => break,
                // Stopped, or without a leader of the directory for the moment.
                Ok(_) | Err(_) => {}
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn add(cluster: &mut Cluster, change: u64) -> NodeId {
    let at = cluster.start_waiting().unwrap();
    let address = cluster.node(at).unwrap().endpoints().peer.to_string();
    reshape(cluster, change, Shape::AddNode { address }).unwrap().node.unwrap()
}

fn relocate(partition: u32, to: &[u32]) -> Shape {
    Shape::Move { partition: PartitionId(partition), from: vec![], to: to.iter().map(|&node| NodeId(node)).collect() }
}

fn connect(cluster: &Cluster) -> Client {
    Client::connect(cluster.endpoints().iter().map(ToString::to_string)).unwrap()
}

/// The map as the newest node that answers has it.
fn map(cluster: &Cluster) -> PartitionMap {
    let maps = cluster.endpoints().into_iter().filter_map(|endpoint| {
        let client = Client::connect([endpoint.to_string()]).ok()?;
        client.map().ok().map(|map| map.as_ref().clone())
    });
    maps.max_by_key(|map| map.version).unwrap()
}

fn nodes_of(map: &PartitionMap, partition: u32) -> Vec<u32> {
    map.entry(PartitionId(partition)).unwrap().replicas.iter().map(|info| info.node.0).collect()
}

/// Inserts ever new keys until it is told to stop; returns how many, and the longest wait for one.
struct Writer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(u64, Duration)>,
}

fn key(n: u64) -> [u8; 8] {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

impl Writer {
    const FIRST: u64 = 100;

    /// Returns when [`Writer::FIRST`] keys are there: enough in every partition for a median.
    fn start(cluster: &Cluster) -> Writer {
        let (client, stop) = (connect(cluster), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let (first, written) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let (mut n, mut longest) = (0, Duration::ZERO);
            while !stopped.load(Ordering::Relaxed) {
                let begun = Instant::now();
                // An insert that had been executed before would find its own value.
                let present = client.insert(key(n), n.to_be_bytes()).unwrap().output;
                assert_eq!(present, None, "insert {n} was executed twice");
                longest = longest.max(begun.elapsed());
                n += 1;
                if n == Writer::FIRST {
                    first.send(()).unwrap();
                }
            }
            (n, longest)
        });
        written.recv().unwrap();
        Writer { stop, thread }
    }

    /// Every write that was answered is there.
    fn check(self, cluster: &Cluster) {
        self.stop.store(true, Ordering::Relaxed);
        let (count, longest) = self.thread.join().unwrap();
        println!("{count} writes, the longest took {longest:?}");
        assert!(count > Writer::FIRST, "no write in all that time");
        let client = connect(cluster);
        for n in 0..count {
            let value = client.get(key(n)).unwrap().output;
            assert_eq!(value.as_deref(), Some(&n.to_be_bytes()[..]), "write {n} is lost");
        }
    }
}

#[test]
fn every_replica_moves_to_new_nodes_and_the_old_ones_go_while_a_client_writes() {
    let directory = Directory::new("grow");
    let options = LocalOptions { partitions: 2, ..LocalOptions::new(&directory.0) };
    let mut cluster = Cluster::start_local(&options).unwrap();
    let writer = Writer::start(&cluster);
    let added: Vec<NodeId> = (0..3).map(|n| add(&mut cluster, 10 + n)).collect();
    assert_eq!(added, [4, 5, 6].map(NodeId));
    // The directory too; all at once, so that no old replica is left to ask.
    for partition in [1, 0, 2] {
        reshape(&cluster, 20 + u64::from(partition), relocate(partition, &[4, 5, 6])).unwrap();
    }
    let moved = map(&cluster);
    for partition in 0..=2 {
        assert_eq!(nodes_of(&moved, partition), [4, 5, 6]);
        let entry = moved.entry(PartitionId(partition)).unwrap();
        assert!(entry.replicas.iter().all(|info| info.role == Role::Voter && info.replica.0 > 3), "{entry:?}");
    }
    for node in 1..=3 {
        reshape(&cluster, 30 + u64::from(node), Shape::RemoveNode { node: NodeId(node) }).unwrap();
        cluster.stop(node as usize - 1);
    }
    // All that the cluster was formed of is gone; those that are left come back by themselves.
    for at in 3..6 {
        cluster.stop(at);
        cluster.restart(at).unwrap();
    }
    writer.check(&cluster);
}

#[test]
fn a_drained_node_holds_nothing_and_the_move_survives_the_directorys_leader() {
    let directory = Directory::new("drain");
    let options = LocalOptions { partitions: 3, ..LocalOptions::new(&directory.0) };
    let mut cluster = Cluster::start_local(&options).unwrap();
    let writer = Writer::start(&cluster);
    add(&mut cluster, 1);
    let leader = cluster.leader_of(PartitionId::DIRECTORY).unwrap();
    let request = ReshapeRequest { change: ChangeId(2), shape: relocate(1, &[2, 3, 4]), dry_run: false, force: false };
    let endpoint = cluster.endpoints()[leader.0 as usize - 1];
    admin(endpoint, AdminRequest::Reshape(request), Duration::from_secs(5)).unwrap();
    // It was decided a moment ago; whoever leads now finds it in the log.
    cluster.stop(leader.0 as usize - 1);
    reshape(&cluster, 2, relocate(1, &[2, 3, 4])).unwrap();
    cluster.restart(leader.0 as usize - 1).unwrap();
    assert_eq!(nodes_of(&map(&cluster), 1), [2, 3, 4]);
    reshape(&cluster, 3, Shape::DrainNode { node: NodeId(2) }).unwrap();
    let drained = map(&cluster);
    for partition in 0..=3 {
        let nodes = nodes_of(&drained, partition);
        assert!(nodes.len() == 3 && !nodes.contains(&2), "p{partition} is on {nodes:?}");
    }
    writer.check(&cluster);
}

#[test]
fn px11_a_node_that_lost_its_disk_comes_back_as_a_learner_with_another_id() {
    let directory = Directory::new("wiped");
    let mut cluster = Cluster::start_local(&LocalOptions::new(&directory.0)).unwrap();
    let writer = Writer::start(&cluster);
    cluster.stop(2);
    std::fs::remove_dir_all(directory.0.join("n3")).unwrap();
    cluster.restart(2).unwrap();
    let address = cluster.node(2).unwrap().endpoints().peer.to_string();
    assert_eq!(cluster.node(2).unwrap().identity(), None, "it must not remember who it was");
    let refusal = reshape(&cluster, 1, Shape::AddNode { address: address.clone() }).unwrap_err();
    assert!(refusal.to_string().contains("coppice node replace n3"), "{refusal}");
    reshape(&cluster, 2, Shape::ReplaceNode { old: NodeId(3), address }).unwrap();
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
    let directory = Directory::new("refused");
    let mut cluster = Cluster::start_local(&LocalOptions::new(&directory.0)).unwrap();
    let before = map(&cluster);
    let because = |shape: Shape, words: &str| {
        let error = reshape(&cluster, 1, shape).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    because(relocate(1, &[1, 2, 9]), "no node n9");
    because(relocate(1, &[2]), "--force");
    because(relocate(7, &[1, 2, 3]), "no partition p7");
    because(Shape::RemoveNode { node: NodeId(3) }, "add a node first");
    because(Shape::AddNode { address: "127.0.0.1:1".into() }, "nobody answers");
    let own = cluster.node(1).unwrap().endpoints().native.to_string();
    because(Shape::AddNode { address: own }, "peer port");
    assert_eq!(map(&cluster), before);
    let strangers = Directory::new("strangers");
    let other = Cluster::start_local(&LocalOptions { nodes: 1, ..LocalOptions::new(&strangers.0) }).unwrap();
    let address = other.node(0).unwrap().endpoints().peer.to_string();
    because(Shape::AddNode { address }, "another cluster");
    cluster.stop(1);
    cluster.stop(2);
}

#[test]
fn partitions_split_while_a_client_writes_and_go_on_after_every_restart() {
    let directory = Directory::new("split");
    let mut cluster = Cluster::start_local(&LocalOptions::new(&directory.0)).unwrap();
    let writer = Writer::start(&cluster);
    let cut = |cluster: &Cluster, change: u64, at: Option<u64>| {
        let at = at.map(|at| at.to_be_bytes().to_vec().into());
        reshape(cluster, change, Shape::Split { partition: None, at })
    };
    let quarter = u64::MAX / 4;
    let children: Vec<u32> = [(1, Some(2 * quarter)), (2, Some(quarter)), (3, Some(3 * quarter)), (4, None)]
        .into_iter()
        .map(|(change, at)| cut(&cluster, change, at).unwrap().partition.unwrap().0)
        .collect();
    assert_eq!(children, [2, 3, 4, 5]);
    let border = cut(&cluster, 9, Some(quarter)).unwrap_err();
    assert!(border.to_string().contains("begins at that key already"), "{border}");
    assert_eq!(cut(&cluster, 2, Some(quarter)).unwrap().partition, Some(PartitionId(3)), "asked again");
    let grown = map(&cluster);
    assert_eq!((grown.partitions.len(), grown.check()), (5, Ok(())));
    for at in 0..3 {
        cluster.stop(at);
        cluster.restart(at).unwrap();
    }
    add(&mut cluster, 20);
    reshape(&cluster, 21, relocate(3, &[2, 3, 4])).unwrap();
    writer.check(&cluster);
}

/// Two partitions are merged while a client writes to both and ranges go over both, in either direction; the nodes are
/// restarted before and after the merge is in a checkpoint.
#[test]
fn mv6_partitions_merge_while_a_client_writes_and_go_on_after_every_restart() {
    let directory = Directory::new("merge");
    let mut cluster = Cluster::start_local(&LocalOptions { partitions: 4, ..LocalOptions::new(&directory.0) }).unwrap();
    let writer = Writer::start(&cluster);
    let (stop, reader) = (Arc::clone(&writer.stop), connect(&cluster));
    let ranges = std::thread::spawn(move || {
        let (mut count, mut most) = (0, 0);
        while !stop.load(Ordering::Relaxed) {
            // A node that is stopped ends the streams that it serves.
            let Ok(seen) = reader.range(..).and_then(|mut pairs| pairs.count()) else { continue };
            assert!(seen >= most, "{seen} keys after {most}: nobody deletes");
            (count, most) = (count + 1, seen);
        }
        count
    });
    let merge = |cluster: &Cluster, change: u64, partition: u32, into: Option<u32>| {
        let (partition, into) = (PartitionId(partition), into.map(PartitionId));
        reshape(cluster, change, Shape::Merge { partition, into })
    };
    let far = merge(&cluster, 1, 4, Some(1)).unwrap_err();
    assert!(far.to_string().contains("no neighbours"), "{far}");
    assert_eq!(merge(&cluster, 2, 2, None).unwrap().partition, Some(PartitionId(1)));
    for at in 0..3 {
        cluster.stop(at);
        cluster.restart(at).unwrap();
    }
    // Downwards and upwards.
    assert_eq!(merge(&cluster, 3, 3, Some(4)).unwrap().partition, Some(PartitionId(4)));
    assert_eq!(merge(&cluster, 3, 3, Some(4)).unwrap().partition, Some(PartitionId(4)), "asked again");
    gone(&cluster, 2);
    gone(&cluster, 3);
    add(&mut cluster, 10);
    reshape(&cluster, 11, relocate(4, &[2, 3, 4])).unwrap();
    let apart = merge(&cluster, 12, 4, None).unwrap_err();
    assert!(apart.to_string().contains("coppice partition move p4 --to n1,n2,n3"), "{apart}");
    reshape(&cluster, 13, relocate(4, &[1, 2, 3])).unwrap();
    merge(&cluster, 14, 4, None).unwrap();
    let alone = merge(&cluster, 15, 1, None).unwrap_err();
    assert!(alone.to_string().contains("no neighbour"), "{alone}");
    let merged = map(&cluster);
    assert_eq!((merged.partitions.len(), merged.check()), (1, Ok(())));
    cluster.stop(0);
    cluster.restart(0).unwrap();
    writer.check(&cluster);
    let count = ranges.join().unwrap();
    assert!(count > 5, "only {count} ranges in all that time");
}

/// Waits until nothing is left of a partition that was taken in.
fn gone(cluster: &Cluster, partition: u32) {
    let begun = Instant::now();
    while map(cluster).group(PartitionId(partition)).is_some() {
        assert!(begun.elapsed() < Duration::from_secs(30), "p{partition} never goes");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A node is away from a partition while its neighbour takes it in, and comes back when both are one.
#[test]
fn a_node_that_was_down_over_a_merge_takes_it_in_when_it_is_back() {
    let directory = Directory::new("merge-down");
    let mut cluster = Cluster::start_local(&LocalOptions { partitions: 2, ..LocalOptions::new(&directory.0) }).unwrap();
    let writer = Writer::start(&cluster);
    std::thread::sleep(Duration::from_millis(200));
    cluster.stop(2);
    reshape(&cluster, 1, Shape::Merge { partition: PartitionId(2), into: None }).unwrap();
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
    reshape(cluster, change, Shape::Split { partition: None, at }).unwrap().partition.unwrap()
}

/// A replica is down over a split, and until the log of the split is trimmed: it goes on from a snapshot, and never
/// executes the split itself.
#[test]
fn mv10_a_replica_that_skips_the_split_by_a_snapshot_has_the_child_too() {
    let directory = Directory::new("skips");
    let mut options = LocalOptions::new(&directory.0);
    options.node.checkpoint.log_bytes = 64 << 10;
    options.node.log.segment_bytes = 256 << 10;
    let mut cluster = Cluster::start_local(&options).unwrap();
    let client = connect(&cluster);
    client.put("a", "before").unwrap();
    cluster.stop(2);
    assert_eq!(cut(&cluster, 1, "m"), PartitionId(2));
    // The directories of checkpoints are named after their instances; the log is trimmed up to the newest.
    let newest = |node: &str| {
        let names = std::fs::read_dir(directory.0.join(node).join("checkpoints/p1")).ok()?;
        names.filter_map(|name| name.ok()?.file_name().to_str()?.parse::<u64>().ok()).max()
    };
    let begun = Instant::now();
    while ["n1", "n2"].into_iter().any(|node| newest(node) < Some(50)) {
        assert!(begun.elapsed() < Duration::from_secs(60), "the log is never trimmed");
        for n in 0..50 {
            client.put(format!("b{n}").as_bytes(), &[7; 2_000][..]).unwrap();
        }
    }
    client.put("z", "after").unwrap();
    cluster.restart(2).unwrap();
    // One of the other two goes: without the third, neither partition has a quorum.
    cluster.stop(0);
    let client = connect(&cluster);
    client.put("c", "parent").unwrap();
    client.put("y", "child").unwrap();
    assert_eq!(client.get("z").unwrap().output.as_deref(), Some(&b"after"[..]));
}

/// After a restart the parent executes the split again, from its log: the child, which runs and has gone on, must not
/// begin a second time.
#[test]
fn mv11_a_replayed_split_begins_no_second_child() {
    let directory = Directory::new("again");
    let mut cluster = Cluster::start_local(&LocalOptions { nodes: 1, ..LocalOptions::new(&directory.0) }).unwrap();
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

/// Each planted bug makes the test of its rule fail, in a process of its own (reliability.md 6).
#[cfg(feature = "mutants")]
#[test]
fn planted_bugs_of_forks_are_caught() {
    for (mutant, test) in [
        ("snapshot_skips_fork", "mv10_a_replica_that_skips_the_split_by_a_snapshot_has_the_child_too"),
        ("fork_again", "mv11_a_replayed_split_begins_no_second_child"),
    ] {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let output = command.args([test, "--exact"]).env("COPPICE_MUTANT", mutant).output().unwrap();
        assert!(!output.status.success(), "{mutant} survived: {}", String::from_utf8_lossy(&output.stdout));
    }
}
