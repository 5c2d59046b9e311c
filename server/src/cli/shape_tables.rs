//! `node ls`, `partition ls` and `partition show`: who is there and who holds what.

use std::ffi::OsStr;
use std::io;

use coppice_client::map::{Entry, NodeInfo, NodeState, PartitionMap};
use coppice_client::wire::{NodeId, PartitionStatus, Status};
use coppice_client::{Admin, admin};
use serde_json::{Value, json};

use super::args::Format;
use super::errors::{self, Context};
use super::failure::{Exit, Failure};
use super::input::Inputs;
use super::output::Output;
use crate::text::{Coding, to_base64};

type Outcome = io::Result<Result<Exit, Failure>>;

/// What the tables are made of.
struct Facts {
    map: PartitionMap,
    status: Status,
}

async fn facts(admin: &Admin) -> Result<Facts, admin::Error> {
    let map = admin.cluster_map().await?.map.unwrap_or_default();
    Ok(Facts { map, status: admin.status(false).await? })
}

/// `node ls`.
///
/// # Errors
/// That of stdout; a failure is returned with its four lines.
pub async fn nodes(admin: &Admin, context: &Context, output: &mut Output<'_>) -> Outcome {
    let facts = match facts(admin).await {
        Ok(facts) => facts,
        Err(error) => return Ok(Err(errors::admin_failure(&error, context))),
    };
    let here = facts.map.nodes.iter().filter(|node| node.state != NodeState::Removed);
    let rows: Vec<Row> = here.map(|node| facts.row(node)).collect();
    if is_json(output.style.admin()) {
        let nodes: Vec<Value> = rows.iter().map(Row::json).collect();
        let fields = json!({ "v": 1, "map_version": facts.map.version.0, "nodes": nodes });
        writeln!(output.data, "{fields}")?;
    } else {
        writeln!(output.data, "node  state     up   replicas  leads  client                 peer")?;
        for row in &rows {
            let up = if row.up { "yes" } else { "no" };
            let Row { node, state, replicas, leads, .. } = row;
            let NodeInfo { id, addresses, .. } = node;
            let id = id.to_string();
            writeln!(
                output.data,
                "{id:<4}  {state:<8}  {up:<3}  {replicas:>8}  {leads:>5}  {:<21}  {}",
                addresses.native, addresses.peer
            )?;
        }
    }
    Ok(Ok(Exit::Done))
}

struct Row<'a> {
    node: &'a NodeInfo,
    state: &'static str,
    up: bool,
    replicas: usize,
    leads: usize,
}

impl Row<'_> {
    fn json(&self) -> Value {
        let NodeInfo { id, name, addresses, .. } = self.node;
        json!({
            "id": id.to_string(), "name": name, "state": self.state, "up": self.up, "replicas": self.replicas,
            "leads": self.leads, "client": addresses.native, "peer": addresses.peer,
        })
    }
}

impl Facts {
    fn row<'a>(&'a self, node: &'a NodeInfo) -> Row<'a> {
        let id = node.id;
        let entries = self.map.directory.iter().chain(&self.map.partitions);
        let up = self.status.nodes.iter().any(|status| status.id == id && status.up);
        Row {
            node,
            state: state(node.state),
            up,
            replicas: entries.filter(|entry| entry.replica_on(id).is_some()).count(),
            leads: self.status.partitions.iter().filter(|partition| partition.leader == Some(id)).count(),
        }
    }

    fn status_of(&self, entry: &Entry) -> PartitionStatus {
        let found = self.status.partitions.iter().find(|status| status.id == entry.partition);
        found.cloned().unwrap_or_default()
    }
}

fn state(state: NodeState) -> &'static str {
    match state {
        NodeState::Member => "member",
        NodeState::Draining => "draining",
        NodeState::Removed => "removed",
        NodeState::Joining => "joining",
        NodeState::Leaving => "leaving",
    }
}

/// `partition ls`.
///
/// # Errors
/// That of stdout; a failure is returned with its four lines.
pub async fn partitions(admin: &Admin, context: &Context, output: &mut Output<'_>) -> Outcome {
    match facts(admin).await {
        Ok(facts) => {
            let entries: Vec<&Entry> = facts.map.directory.iter().chain(&facts.map.partitions).collect();
            print(&facts, &entries, output).map(|()| Ok(Exit::Done))
        }
        Err(error) => Ok(Err(errors::admin_failure(&error, context))),
    }
}

/// `partition show KEY`.
///
/// # Errors
/// That of stdout; a failure is returned with its four lines.
pub async fn partition_of(admin: &Admin, context: &Context, key: &OsStr, output: &mut Output<'_>) -> Outcome {
    let mut stdin = io::stdin();
    let key = match Inputs::new(context.verb, context.coding, &mut stdin).bytes("KEY", key) {
        Ok(key) => key,
        Err(failure) => return Ok(Err(failure)),
    };
    match facts(admin).await {
        Ok(facts) => match facts.map.route(&key) {
            Some(entry) => print(&facts, &[entry], output).map(|()| Ok(Exit::Done)),
            None => Ok(Err(context.failure("incompatible", format!("{}: the map has no such key", context.verb)))),
        },
        Err(error) => Ok(Err(errors::admin_failure(&error, context))),
    }
}

fn print(facts: &Facts, entries: &[&Entry], output: &mut Output<'_>) -> io::Result<()> {
    let coding = output.style.coding;
    if is_json(output.style.admin()) {
        let rows: Vec<Value> = entries.iter().map(|entry| to_json(entry, &facts.status_of(entry))).collect();
        let fields = json!({ "v": 1, "map_version": facts.map.version.0, "partitions": rows });
        return writeln!(output.data, "{fields}");
    }
    writeln!(output.data, "partition  leader  replicas           keys       bytes  op/s  range")?;
    for entry in entries {
        let PartitionStatus { leader, keys, bytes, commands_per_second, .. } = facts.status_of(entry);
        let leader = leader.map_or_else(|| "-".to_owned(), |leader| leader.to_string());
        let replicas: Vec<String> = entry.replicas.iter().map(|info| info.node.to_string()).collect();
        let (id, replicas, range) = (entry.partition.to_string(), replicas.join(" "), range(entry, coding));
        writeln!(
            output.data,
            "{id:<9}  {leader:<6}  {replicas:<14}  {keys:>7}  {bytes:>10}  {commands_per_second:>4.0}  {range}"
        )?;
    }
    Ok(())
}

fn range(entry: &Entry, coding: Coding) -> String {
    if entry.partition.0 == 0 {
        return "the directory".to_owned();
    }
    let low = if entry.low.is_empty() { String::new() } else { coding.show(&entry.low) };
    format!("{low}..{}", entry.high.as_deref().map(|high| coding.show(high)).unwrap_or_default())
}

fn to_json(entry: &Entry, status: &PartitionStatus) -> Value {
    let key = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => Value::from(text),
        Err(_) => json!({ "b64": to_base64(bytes) }),
    };
    let nodes: Vec<Value> = entry
        .replicas
        .iter()
        .map(|info| {
            json!({
                "replica": info.replica.to_string(), "node": info.node.to_string(),
                "votes": info.role == coppice_client::map::Role::Voter,
            })
        })
        .collect();
    json!({
        "id": entry.partition.to_string(), "low": key(&entry.low), "high": entry.high.as_deref().map(key),
        "version": entry.version.0, "leader": status.leader.map(|leader: NodeId| leader.to_string()),
        "replicas": nodes, "keys": status.keys, "bytes": status.bytes,
        "commands_per_second": status.commands_per_second,
    })
}

fn is_json(format: Format) -> bool {
    matches!(format, Format::Json | Format::Jsonl)
}
