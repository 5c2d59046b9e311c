//! How a cluster's state reads: a table, or json. What its sentence is, [`coppice_core::status`] decides.

use std::collections::BTreeSet;
use std::io::{self, Write};

use clap::builder::styling::{AnsiColor, Style};
use coppice_client::wire::{NodeId, PartitionStatus, ReplicaStatus, Status, Ticket};
use coppice_core::settings::FEATURE_LEVEL;
use coppice_core::settings::units::about_size;
use coppice_core::status as health;
use coppice_core::status::{Health, sentence};
use serde_json::{Value, json};

use crate::exit::Exit;
use crate::text::{Coding, to_base64};

/// How `status` exits.
#[must_use]
pub fn exit(health: Health) -> Exit {
    match health {
        Health::Healthy => Exit::Done,
        Health::Degraded | Health::Removed => Exit::Failed,
        Health::Unavailable | Health::Unformed => Exit::Unavailable,
    }
}

/// Columns of a screen that every terminal has.
const COLUMNS: usize = 80;

/// Where the range of a partition stands in its row.
const RANGE: usize = 1;

/// Columns of the replicas of a partition; beyond, the first ones and how many there are more.
const REPLICAS_MAX: usize = 14;

fn range(partition: &PartitionStatus, coding: Coding) -> String {
    let low = if partition.low.is_empty() { String::new() } else { coding.show(&partition.low) };
    let high = partition.high.as_deref().map(|high| coding.show(high)).unwrap_or_default();
    format!("{low}..{high}")
}

/// How the table is drawn.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    pub coding: Coding,
    /// States are coloured.
    pub color: bool,
}

/// The whole of it for a person, in 80 columns. `cut_off`: nodes that do not answer the node that told this, and answer
/// here.
///
/// # Errors
/// That of `to`.
pub fn table(status: &Status, cut_off: &BTreeSet<NodeId>, look: Look, to: &mut dyn Write) -> io::Result<()> {
    let health = Health::of(status);
    let color = match health {
        Health::Healthy => AnsiColor::Green,
        Health::Degraded | Health::Unformed => AnsiColor::Yellow,
        Health::Unavailable | Health::Removed => AnsiColor::Red,
    };
    let paint = |text: &str, color: AnsiColor| if look.color { painted(text, color) } else { text.to_owned() };
    let text = wrap(&sentence(status), "  ");
    writeln!(to, "{}{}", paint(health.word(), color), text.strip_prefix(health.word()).unwrap_or(&text))?;
    if health == Health::Unformed {
        return Ok(());
    }
    let nodes = status.nodes.iter().map(|node| match (node.up, cut_off.contains(&node.id)) {
        (true, _) => format!("{} up", node.id),
        (false, true) => format!("{} cut off", node.id),
        (false, false) => format!("{} down", node.id),
    });
    let flush_us = status.nodes.iter().map(|node| node.flush_us_p99).max().unwrap_or(0);
    let facts = [format!("  flush p99 {}", milliseconds(flush_us)), format!("  answered by {}", status.node)];
    for (at, line) in lines(nodes.chain(facts), COLUMNS - 12).into_iter().enumerate() {
        let line = format!("{:<12}{line}", if at == 0 { "nodes" } else { "" });
        let line =
            [" down", " cut off"].iter().fold(line, |line, state| line.replace(state, &paint(state, AnsiColor::Red)));
        writeln!(to, "{line}")?;
    }
    let data = || status.partitions.iter().filter(|partition| partition.id.0 != 0);
    let header = ["partitions", "range", "leader", "replicas", "keys", "size", "op/s", "lag"];
    let mut rows = vec![header.map(str::to_owned)];
    rows.extend(data().map(|partition| row(partition, look.coding)));
    write_rows(&mut rows, to)?;
    let leader = status.partitions.iter().find(|partition| partition.id.0 == 0).and_then(|directory| directory.leader);
    let leader = leader.map_or_else(|| paint("no leader", AnsiColor::Red), |node| format!("leader {node}"));
    let tickets = match status.tickets_in_flight {
        1 => "1 ticket".to_owned(),
        count => format!("{count} tickets"),
    };
    let (version, level) = (status.map_version, status.feature_level);
    writeln!(to, "directory   {leader}, map version {version}, {tickets} in flight, feature level {level}")?;
    if (1..FEATURE_LEVEL).contains(&level) {
        let next = format!(
            "feature level {FEATURE_LEVEL} is there once every node runs this version: coppice config set \
             feature_level {FEATURE_LEVEL} (no way back)"
        );
        writeln!(to, "{}", wrap(&next, "  "))?;
    }
    for change in &status.changes {
        writeln!(to, "{}", wrap(&format!("under way   {change}"), "  "))?;
    }
    for node in cut_off {
        writeln!(to, "{}", wrap(&health::cut_off(*node, status.node), "  "))?;
    }
    for warning in &status.warnings {
        let text = wrap(&format!("warning: {warning}"), "  ");
        writeln!(to, "{}{}", paint("warning", AnsiColor::Yellow), text.strip_prefix("warning").unwrap_or(&text))?;
    }
    Ok(())
}

fn painted(text: &str, color: AnsiColor) -> String {
    let style = Style::new().fg_color(Some(color.into()));
    format!("{style}{text}{style:#}")
}

/// Words two blanks apart, in lines of at most so many columns.
fn lines(words: impl Iterator<Item = String>, columns: usize) -> Vec<String> {
    words.fold(Vec::new(), |mut lines, word| {
        match lines.last_mut() {
            Some(line) if line.len() + 2 + word.len() <= columns => *line = format!("{line}  {word}"),
            _ => lines.push(word.trim_start().to_owned()),
        }
        lines
    })
}

/// A sentence in lines of 80 columns, broken between words and never within a command in backticks.
fn wrap(text: &str, indent: &str) -> String {
    let mut quoted = false;
    let (mut line, mut wrapped) = (String::new(), String::new());
    let mut words = text.split(' ').peekable();
    while let Some(word) = words.next() {
        let mut word = word.to_owned();
        quoted ^= word.matches('`').count() % 2 == 1;
        while quoted && let Some(next) = words.next() {
            quoted ^= next.matches('`').count() % 2 == 1;
            word = format!("{word} {next}");
        }
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            wrapped += &line;
            wrapped.push('\n');
            line = format!("{indent}{word}");
        } else {
            line = if line.is_empty() { word } else { format!("{line} {word}") };
        }
    }
    wrapped + &line
}

/// Replicas by their nodes, those that are not there first and in brackets.
fn replicas_of(partition: &PartitionStatus) -> String {
    let mut replicas: Vec<&ReplicaStatus> = partition.replicas.iter().collect();
    replicas.sort_by_key(|replica| replica.node);
    let word = |replica: &&ReplicaStatus| {
        if replica.up { replica.node.to_string() } else { format!("({})", replica.node) }
    };
    let all = replicas.iter().map(word).collect::<Vec<_>>().join(" ");
    if all.len() <= REPLICAS_MAX {
        return all;
    }
    replicas.sort_by_key(|replica| (replica.up, replica.node));
    let some: Vec<String> = replicas.iter().map(word).take(2).collect();
    format!("{} +{}", some.join(" "), replicas.len() - some.len())
}

fn row(partition: &PartitionStatus, coding: Coding) -> [String; 8] {
    let lag = partition.replicas.iter().map(|replica| replica.lag_instances).max().unwrap_or(0);
    [
        format!("  {}", partition.id),
        range(partition, coding),
        partition.leader.map_or_else(|| "-".to_owned(), |node| node.to_string()),
        replicas_of(partition),
        count(partition.keys),
        about_size(partition.bytes),
        count(partition.commands_per_second.round() as u64),
        count(lag),
    ]
}

/// A range of which each end keeps its beginning.
fn shortened(range: &str, columns: usize) -> String {
    let cut = |text: &str, columns: usize| match text.chars().count() <= columns {
        true => text.to_owned(),
        false => text.chars().take(columns.saturating_sub(1)).chain(['…']).collect(),
    };
    let Some((low, high)) = range.split_once("..").filter(|_| range.chars().count() > columns) else {
        return range.to_owned();
    };
    let room = columns.saturating_sub(2);
    let low_columns = low.chars().count().min(room.saturating_sub(high.chars().count().min(room / 2)));
    format!("{}..{}", cut(low, low_columns), cut(high, room - low_columns))
}

/// A number of at most five columns.
fn count(number: u64) -> String {
    let units = [("T", 1_000_000_000_000), ("G", 1_000_000_000), ("M", 1_000_000), ("k", 1_000)];
    let unit = units.into_iter().find(|(_, unit)| number >= 100_000 && number >= *unit);
    unit.map_or_else(|| number.to_string(), |(name, unit)| format!("{}{name}", number / unit))
}

/// The first four columns are words, the others numbers. Ranges take what the others leave.
fn write_rows(rows: &mut [[String; 8]], to: &mut dyn Write) -> io::Result<()> {
    let width = |rows: &[[String; 8]], column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths = |rows: &[[String; 8]]| [0, 1, 2, 3, 4, 5, 6, 7].map(|column| width(rows, column).unwrap_or(0));
    let all = widths(rows);
    let range_max = COLUMNS.saturating_sub(all.iter().map(|width| width + 2).sum::<usize>() - 2 - all[RANGE]);
    rows.iter_mut().skip(1).for_each(|row| row[RANGE] = shortened(&row[RANGE], range_max));
    let widths = widths(rows);
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
                "disk_free_bytes": node.disk_free_bytes, "disk_full": node.disk_full,
                "memory_full": node.memory_full, "memory_bytes": node.memory_bytes,
                "connections": node.connections,
            })
        })
        .collect();
    let partitions: Vec<Value> = status.partitions.iter().map(partition_json).collect();
    json!({
        "v": 1,
        "health": health.word(),
        "sentence": sentence(status),
        "exit": exit(health) as u8,
        "tolerated_failures": status.tolerated_failures,
        "cluster": status.cluster.map(|cluster| cluster.to_string()),
        "answered_by": status.node.to_string(),
        "majority": status.majority,
        "removed": status.removed,
        "replicas": status.replicas,
        "map_version": status.map_version.0,
        "feature_level": status.feature_level,
        "tickets_in_flight": status.tickets_in_flight,
        "nodes": nodes,
        "partitions": partitions,
        "warnings": status.warnings,
        "changes": status.changes,
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
        "refuses": partition.refuses,
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
