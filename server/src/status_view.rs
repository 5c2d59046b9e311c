//! How a cluster's state reads: one sentence, a table, or json. The words are here, the facts come from the nodes.

use std::collections::BTreeSet;
use std::io::{self, Write};

use coppice_client::wire::{NodeId, PartitionStatus, ReplicaStatus, Status, Ticket};
use serde_json::{Value, json};

use crate::exit::Exit;
use crate::text::{Coding, to_base64};

/// A replica that is further behind than this counts as catching up. Two elections' worth: normal jitter stays far
/// below.
const LAG_MS_MAX: u64 = 1_000;

/// Whether the cluster may lose a node now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Every replica is there.
    Healthy,
    /// Everything is served, something is missing.
    Degraded,
    /// Some partition has no quorum.
    Unavailable,
    /// There is no cluster yet.
    Unformed,
}

impl Health {
    /// Of a cluster, from what its nodes say.
    #[must_use]
    pub fn of(status: &Status) -> Self {
        if status.cluster.is_none() {
            Self::Unformed
        } else if status.tolerated_failures < 0 || !status.majority {
            Self::Unavailable
        } else if status.nodes.iter().all(|node| node.up) && status.partitions.iter().all(is_whole) {
            Self::Healthy
        } else {
            Self::Degraded
        }
    }

    /// How `status` exits.
    #[must_use]
    pub fn exit(self) -> Exit {
        match self {
            Self::Healthy => Exit::Done,
            Self::Degraded => Exit::Failed,
            Self::Unavailable | Self::Unformed => Exit::Unavailable,
        }
    }

    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Unavailable => "unavailable",
            Self::Unformed => "waiting for init",
        }
    }
}

fn is_whole(partition: &PartitionStatus) -> bool {
    partition.leader.is_some() && partition.replicas.iter().all(is_near)
}

/// Whether a replica is there and near its leader.
#[must_use]
pub fn is_near(replica: &ReplicaStatus) -> bool {
    replica.up && replica.lag_ms <= LAG_MS_MAX
}

/// The first line of `status`.
#[must_use]
pub fn sentence(status: &Status) -> String {
    let health = Health::of(status);
    let word = health.word();
    match (health, status.tolerated_failures) {
        (Health::Healthy, 0) => format!("{word}: all replicas are up; survives the loss of no node"),
        (Health::Healthy, 1) => format!("{word}: survives the loss of any 1 node"),
        (Health::Healthy, n) => format!("{word}: survives the loss of any {n} nodes"),
        (Health::Degraded, n) => {
            let nodes = if n == 1 { "node" } else { "nodes" };
            format!("{word}: survives the loss of {n} more {nodes}{}", missing(status))
        }
        (Health::Unavailable, _) if status.majority => format!("{word}: {}", unserved(status)),
        (Health::Unavailable, _) => format!(
            "{word}: {}, as {} sees it, which hears no majority of the directory: others may know better",
            unserved(status),
            status.node
        ),
        (Health::Unformed, _) => format!(
            "{word}: these nodes belong to no cluster (form one: coppice init; add to one: coppice node add; \
             in place of a lost node: coppice node replace)"
        ),
    }
}

/// What a degraded cluster waits for.
fn missing(status: &Status) -> String {
    let down: Vec<String> = status.nodes.iter().filter(|node| !node.up).map(|node| node.id.to_string()).collect();
    if !down.is_empty() {
        let verb = if down.len() == 1 { "is" } else { "are" };
        return format!(" until {} {verb} back", down.join(" and "));
    }
    let leaderless = list(status.partitions.iter().filter(|partition| partition.leader.is_none()));
    if !leaderless.is_empty() {
        return format!(" until {leaderless} has a leader");
    }
    let replicas = status.partitions.iter().flat_map(|partition| &partition.replicas);
    let late: BTreeSet<NodeId> = replicas.filter(|replica| !is_near(replica)).map(|replica| replica.node).collect();
    let full = status.nodes.iter().filter(|node| node.disk_full && late.contains(&node.id));
    let full: Vec<String> = full.map(|node| node.id.to_string()).collect();
    if !full.is_empty() {
        let (verb, disks) = if full.len() == 1 { ("has", "its disk") } else { ("have", "their disks") };
        return format!(" until {} {verb} room on {disks}", full.join(" and "));
    }
    let behind = list(status.partitions.iter().filter(|partition| !is_whole(partition)));
    if behind.is_empty() { String::new() } else { format!(" until the replicas of {behind} have caught up") }
}

fn list<'a>(partitions: impl Iterator<Item = &'a PartitionStatus>) -> String {
    partitions.map(|partition| partition.id.to_string()).collect::<Vec<_>>().join(" ")
}

/// What is not served, and why.
fn unserved(status: &Status) -> String {
    let has_quorum = |partition: &&PartitionStatus| {
        let voters = partition.replicas.iter().filter(|replica| replica.voter);
        let (all, up) = (voters.clone().count(), voters.filter(|replica| replica.up).count());
        up * 2 > all
    };
    let name = |partition: &PartitionStatus| match partition.id.0 {
        0 => "the directory".to_owned(),
        _ => format!("{} ({})", partition.id, range(partition, Coding::Plain)),
    };
    let lost: Vec<String> = status.partitions.iter().filter(|partition| !has_quorum(partition)).map(name).collect();
    let leaderless = status.partitions.iter().filter(|partition| has_quorum(partition) && partition.leader.is_none());
    let leaderless: Vec<String> = leaderless.map(name).collect();
    match (lost.is_empty(), leaderless.is_empty()) {
        (true, true) => "no quorum for some partition".to_owned(),
        (true, false) => format!("no leader for {}", leaderless.join(", ")),
        (false, _) => format!("no quorum for {}", lost.join(", ")),
    }
}

fn range(partition: &PartitionStatus, coding: Coding) -> String {
    let low = if partition.low.is_empty() { String::new() } else { coding.show(&partition.low) };
    let high = partition.high.as_deref().map(|high| coding.show(high)).unwrap_or_default();
    format!("{low}..{high}")
}

/// The whole of it for a person.
///
/// # Errors
/// That of `to`.
pub fn table(status: &Status, coding: Coding, to: &mut dyn Write) -> io::Result<()> {
    writeln!(to, "{}", sentence(status))?;
    if Health::of(status) == Health::Unformed {
        return Ok(());
    }
    let nodes: Vec<String> =
        status.nodes.iter().map(|n| format!("{} {}", n.id, if n.up { "up" } else { "down" })).collect();
    let flush_us = status.nodes.iter().map(|node| node.flush_us_p99).max().unwrap_or(0);
    let answered = format!("answered by {}", status.node);
    writeln!(to, "nodes       {}    flush p99 {}    {answered}", nodes.join("  "), milliseconds(flush_us))?;
    let header =
        ["partitions", "range", "leader", "replicas", "keys", "bytes", "op/s", "lag", "window", "batch", "held"];
    let mut rows = vec![header.map(str::to_owned)];
    rows.extend(
        status.partitions.iter().filter(|partition| partition.id.0 != 0).map(|partition| row(partition, coding)),
    );
    write_rows(&rows, to)?;
    let leader = status.partitions.iter().find(|partition| partition.id.0 == 0).and_then(|directory| directory.leader);
    let leader = leader.map_or_else(|| "no leader".to_owned(), |node| format!("leader {node}"));
    let warnings = if status.warnings.is_empty() { "none".to_owned() } else { status.warnings.join("; ") };
    let (version, level) = (status.map_version, status.feature_level);
    let tickets = match status.tickets_in_flight {
        1 => "1 ticket".to_owned(),
        count => format!("{count} tickets"),
    };
    writeln!(
        to,
        "directory   {leader}, map version {version}, {tickets} in flight, feature level {level}; warnings: {warnings}"
    )
}

fn row(partition: &PartitionStatus, coding: Coding) -> [String; 11] {
    let mut replicas: Vec<&ReplicaStatus> = partition.replicas.iter().collect();
    replicas.sort_by_key(|replica| replica.node);
    let replicas: Vec<String> = replicas.into_iter().map(replica_word).collect();
    let lag = partition.replicas.iter().map(|replica| replica.lag_instances).max().unwrap_or(0);
    [
        format!("  {}", partition.id),
        range(partition, coding),
        partition.leader.map_or_else(|| "-".to_owned(), |node| node.to_string()),
        replicas.join(" "),
        partition.keys.to_string(),
        partition.bytes.to_string(),
        format!("{:.0}", partition.commands_per_second),
        lag.to_string(),
        partition.window.to_string(),
        format!("{:.0}", partition.batch_commands),
        partition.held.to_string(),
    ]
}

/// A replica by its node; in brackets if it is not there.
fn replica_word(replica: &ReplicaStatus) -> String {
    if replica.up { replica.node.to_string() } else { format!("({})", replica.node) }
}

/// The first four columns are words, the others numbers.
fn write_rows(rows: &[[String; 11]], to: &mut dyn Write) -> io::Result<()> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..11).map(|column| if column == 0 { width(0).max(10) } else { width(column) }).collect();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let cell = if column < 4 { format!("{cell:width$}") } else { format!("{cell:>width$}") };
            line.push_str(&cell);
            line.push_str("  ");
        }
        writeln!(to, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Microseconds as milliseconds with one decimal.
#[must_use]
pub fn milliseconds(us: u64) -> String {
    format!("{}.{} ms", us / 1000, us % 1000 / 100)
}

/// Everything, for programs. `/status` of the admin port is the same.
#[must_use]
pub fn to_json(status: &Status) -> Value {
    let health = Health::of(status);
    let nodes: Vec<Value> = status
        .nodes
        .iter()
        .map(|node| {
            json!({
                "node": node.id.to_string(), "name": node.name, "address": node.address, "up": node.up,
                "incarnation": node.incarnation, "version": node.version, "uptime_ms": node.uptime_ms,
                "flush_us_p99": node.flush_us_p99, "log_bytes": node.log_bytes,
                "disk_free_bytes": node.disk_free_bytes, "disk_full": node.disk_full, "memory_bytes": node.memory_bytes,
                "connections": node.connections,
            })
        })
        .collect();
    let partitions: Vec<Value> = status.partitions.iter().map(partition_json).collect();
    json!({
        "v": 1,
        "health": health.word(),
        "sentence": sentence(status),
        "exit": health.exit() as u8,
        "tolerated_failures": status.tolerated_failures,
        "cluster": status.cluster.map(|cluster| cluster.to_string()),
        "answered_by": status.node.to_string(),
        "majority": status.majority,
        "map_version": status.map_version.0,
        "feature_level": status.feature_level,
        "tickets_in_flight": status.tickets_in_flight,
        "nodes": nodes,
        "partitions": partitions,
        "warnings": status.warnings,
    })
}

fn partition_json(partition: &PartitionStatus) -> Value {
    let replicas: Vec<Value> = partition
        .replicas
        .iter()
        .map(|replica| {
            json!({
                "replica": replica.replica.to_string(), "node": replica.node.to_string(), "voter": replica.voter,
                "up": replica.up, "lag_instances": replica.lag_instances, "lag_ms": replica.lag_ms,
            })
        })
        .collect();
    let ticket = |ticket: Option<Ticket>| ticket.map(|ticket| ticket.to_string());
    let mut object = json!({
        "partition": partition.id.to_string(),
        "leader": partition.leader.map(|node| node.to_string()),
        "replicas": replicas,
        "ballot": format!("{}.{}", partition.ballot.0, partition.ballot.1),
        "decided_upto": partition.decided_upto,
        "trimmed_upto": partition.trimmed_upto,
        "last_ticket": ticket(partition.last_ticket),
        "released": ticket(partition.released),
        "replies_held": partition.held,
        "undo_bytes": partition.undo_bytes,
        "keys": partition.keys,
        "bytes": partition.bytes,
        "commands_per_second": partition.commands_per_second,
        "window": partition.window,
        "batch_commands": partition.batch_commands,
        "sessions": partition.sessions,
        "digest": partition.digest.map(|(instance, digest)| json!({
            "instance": instance, "digest": format!("{digest:016x}"),
        })),
    });
    if partition.id.0 != 0 {
        put_key(&mut object, "low", Some(&partition.low));
        put_key(&mut object, "high", partition.high.as_deref());
    }
    object
}

/// A boundary: a text if it is one, else base64 under another name; null if there is none.
fn put_key(object: &mut Value, name: &str, key: Option<&[u8]>) {
    match key.map(|key| std::str::from_utf8(key).map_err(|_| key)) {
        None => object[name] = Value::Null,
        Some(Ok(text)) => object[name] = text.into(),
        Some(Err(bytes)) => object[format!("{name}_b64")] = to_base64(bytes).into(),
    }
}
