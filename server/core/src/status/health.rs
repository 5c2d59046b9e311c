//! How a cluster is, in a word and a sentence: whether it serves, what it may lose, and what it waits for.

use std::collections::{BTreeMap, BTreeSet};

use coppice_client::wire::{NodeId, NodeStatus, PartitionId, PartitionStatus, ReplicaStatus, Status};

/// A replica that is further behind than this counts as catching up. Two elections' worth: normal jitter stays far
/// below.
const LAG_MS_MAX: u64 = 1_000;

/// Whether the cluster may lose a node now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Every replica is there, and every write is taken.
    Healthy,
    /// Something is missing, or writes that grow are refused.
    Degraded,
    /// Some partition has no quorum or no leader.
    Unavailable,
    /// There is no cluster yet.
    Unformed,
    /// The node that answers is no longer one of the cluster.
    Removed,
}

impl Health {
    /// Of a cluster, from what its nodes say.
    #[must_use]
    pub fn of(status: &Status) -> Self {
        if status.cluster.is_none() {
            Self::Unformed
        } else if status.removed {
            Self::Removed
        } else if status.tolerated_failures < 0 || !status.majority {
            Self::Unavailable
        } else if status.nodes.iter().all(|node| node.up && full_for(node).is_none())
            && status.partitions.iter().all(|partition| is_whole(partition, status.replicas))
        {
            Self::Healthy
        } else {
            Self::Degraded
        }
    }

    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Unavailable => "unavailable",
            Self::Unformed => "waiting for init",
            Self::Removed => "removed",
        }
    }
}

fn is_whole(partition: &PartitionStatus, wanted: u32) -> bool {
    let serves = partition.leader.is_some() && partition.refuses.is_none();
    serves && voters(partition) >= wanted && partition.replicas.iter().all(is_near)
}

fn voters(partition: &PartitionStatus) -> u32 {
    partition.replicas.iter().filter(|replica| replica.voter).count() as u32
}

/// Whether a replica is there and near its leader.
#[must_use]
pub fn is_near(replica: &ReplicaStatus) -> bool {
    replica.up && replica.lag_ms <= LAG_MS_MAX
}

/// What a node that is up has no more room in.
pub(super) fn full_for(node: &NodeStatus) -> Option<&'static str> {
    let memory = node.memory_full.then_some("in memory");
    memory.or(node.disk_full.then_some("on its disk")).filter(|_| node.up)
}

/// The first line of `status`.
#[must_use]
pub fn sentence(status: &Status) -> String {
    let health = Health::of(status);
    let rest = match (health, status.tolerated_failures) {
        (Health::Healthy, 0) => "all replicas are up; survives the loss of no node".to_owned(),
        (Health::Healthy, 1) => "survives the loss of any 1 node".to_owned(),
        (Health::Healthy, n) => format!("survives the loss of any {n} nodes"),
        (Health::Degraded, n) => {
            let nodes = if n == 1 { "node" } else { "nodes" };
            let until = missing(status);
            let survives = format!("survives the loss of {n} more {nodes}{until}");
            let mut facts = refusing(status);
            facts.extend(too_few(status));
            facts.push(survives);
            if facts.len() == 1 && until.is_empty() {
                facts.extend(full(status));
            }
            facts.join("; ")
        }
        (Health::Unavailable, _) if status.majority => unserved(status),
        (Health::Unavailable, _) => format!(
            "{}, as {} sees it, which hears no majority of the directory: others may know better",
            unserved(status),
            status.node
        ),
        (Health::Unformed, _) => "these nodes belong to no cluster (form one: coppice init; add to one: coppice node \
                                  add; in place of a lost node: coppice node replace)"
            .to_owned(),
        (Health::Removed, _) => {
            format!("{} was removed from the cluster: stop it and delete its data directory", status.node)
        }
    };
    format!("{}: {rest}", health.word())
}

/// What is said of a node that a client reaches, and the node that answered does not.
#[must_use]
pub fn cut_off(node: NodeId, by: NodeId) -> String {
    format!("{node} answers this program, and not {by}: it is cut off from the other nodes")
}

/// Partitions that take no writes that grow, by the reason.
pub(super) fn refusing(status: &Status) -> Vec<String> {
    let mut reasons: BTreeMap<&str, Vec<&PartitionStatus>> = BTreeMap::new();
    for partition in &status.partitions {
        if let Some(why) = &partition.refuses {
            reasons.entry(why).or_default().push(partition);
        }
    }
    let told = reasons.into_iter().map(|(why, partitions)| {
        let all = partitions.len() == status.partitions.len();
        let who = if all { "the cluster".to_owned() } else { list(partitions.iter().copied()) };
        let verb = if all || partitions.len() == 1 { "refuses" } else { "refuse" };
        format!("{who} {verb} writes that grow: {why}")
    });
    told.collect()
}

/// Partitions that have fewer replicas than they shall have.
pub(super) fn too_few(status: &Status) -> Option<String> {
    let few: Vec<_> = status.partitions.iter().filter(|partition| voters(partition) < status.replicas).collect();
    let least = few.iter().map(|partition| voters(partition)).min()?;
    let whose =
        if few.len() == status.partitions.len() { String::new() } else { format!(" of {}", list(few.into_iter())) };
    Some(format!("{least} of {} replicas{whose}", status.replicas))
}

/// Nodes without room, though the others have some.
fn full(status: &Status) -> Option<String> {
    let full = status.nodes.iter().filter_map(|node| Some(format!("{} has no room {}", node.id, full_for(node)?)));
    let full = full.collect::<Vec<_>>().join(", ");
    if full.is_empty() { None } else { Some(full) }
}

/// What a degraded cluster waits for.
fn missing(status: &Status) -> String {
    let leaderless = list(status.partitions.iter().filter(|partition| partition.leader.is_none()));
    // An election takes a moment; until then nothing of these is served.
    let leaderless = if leaderless.is_empty() { leaderless } else { format!("; no leader for {leaderless} yet") };
    let down: Vec<String> = status.nodes.iter().filter(|node| !node.up).map(|node| node.id.to_string()).collect();
    if !down.is_empty() {
        let verb = if down.len() == 1 { "is" } else { "are" };
        return format!(" until {} {verb} back{leaderless}", down.join(" and "));
    }
    if !leaderless.is_empty() {
        return leaderless;
    }
    let replicas = status.partitions.iter().flat_map(|partition| &partition.replicas);
    let late: BTreeSet<NodeId> = replicas.filter(|replica| !is_near(replica)).map(|replica| replica.node).collect();
    let full = status.nodes.iter().filter(|node| node.disk_full && late.contains(&node.id));
    let full: Vec<String> = full.map(|node| node.id.to_string()).collect();
    if !full.is_empty() {
        let (verb, disks) = if full.len() == 1 { ("has", "its disk") } else { ("have", "their disks") };
        return format!(" until {} {verb} room on {disks}", full.join(" and "));
    }
    let behind = behind(status);
    if behind.is_empty() { String::new() } else { format!(" until the replicas of {behind} have caught up") }
}

/// Partitions of which not every replica is there and near its leader.
fn behind(status: &Status) -> String {
    list(status.partitions.iter().filter(|partition| !partition.replicas.iter().all(is_near)))
}

/// What catches up by itself, while every node is up.
pub(super) fn late(status: &Status) -> Option<String> {
    let behind = behind(status);
    let all_up = status.nodes.iter().all(|node| node.up);
    (all_up && !behind.is_empty()).then(|| format!("the replicas of {behind} catch up by themselves"))
}

fn list<'a>(partitions: impl Iterator<Item = &'a PartitionStatus>) -> String {
    let name = |partition: &PartitionStatus| match partition.id {
        PartitionId::DIRECTORY => "the directory".to_owned(),
        id => id.to_string(),
    };
    partitions.map(name).collect::<Vec<_>>().join(", ")
}

/// What is not served, and why.
pub(super) fn unserved(status: &Status) -> String {
    let has_quorum = |partition: &&PartitionStatus| {
        let up = partition.replicas.iter().filter(|replica| replica.voter && replica.up).count();
        up * 2 > voters(partition) as usize
    };
    let lost = list(status.partitions.iter().filter(|partition| !has_quorum(partition)));
    let leaderless = status.partitions.iter().filter(|partition| has_quorum(partition) && partition.leader.is_none());
    let leaderless = list(leaderless);
    match (lost.is_empty(), leaderless.is_empty()) {
        (true, true) => "no quorum for some partition".to_owned(),
        (true, false) => format!("no leader for {leaderless}"),
        (false, _) => format!("no quorum for {lost}"),
    }
}
