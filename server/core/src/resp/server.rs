//! What clients ask about the node: HELLO, INFO, COMMAND, CONFIG, CLUSTER. In the words of Redis, since programs parse
//! them.

use std::fmt::Write;

use coppice_client::map::{NodeInfo, NodeState, PartitionMap};
use coppice_client::token::sha256;
use coppice_client::wire::NodeId;

use super::commands::{self, COMMANDS};
use super::connection::Limits;
use super::glob;
use super::plan::syntax_error;
use super::reply::{Protocol, Reply};

/// The Redis whose commands these are: libraries choose by it what they send.
const REDIS_VERSION: &str = "7.4.0";

/// Slots of a Redis cluster.
const SLOTS: u16 = 16_384;

/// What a node tells of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Of the program.
    pub version: String,
    /// Who it is; none: it waits for `init`.
    pub node: Option<NodeId>,
    /// Where its RESP port is.
    pub address: String,
    /// Its process.
    pub pid: u32,
    /// Since its start, in seconds.
    pub uptime: u64,
    /// Connections of all clients.
    pub connections: usize,
    /// Most of them.
    pub connections_max: usize,
    /// Resident memory, in bytes.
    pub memory: u64,
    /// Above which writes that grow are refused.
    pub memory_limit: u64,
    /// Requests answered at this port since the start.
    pub commands: u64,
    /// It reads its log, and serves later.
    pub is_recovering: bool,
}

/// HELLO.
pub fn hello(protocol: Protocol, id: u64) -> Reply {
    let version = if protocol == Protocol::Resp3 { 3 } else { 2 };
    Reply::Map(vec![
        (Reply::bulk("server"), Reply::bulk("coppice")),
        (Reply::bulk("version"), Reply::bulk(REDIS_VERSION)),
        (Reply::bulk("proto"), Reply::Integer(version)),
        (Reply::bulk("id"), Reply::count(id)),
        (Reply::bulk("mode"), Reply::bulk("cluster")),
        (Reply::bulk("role"), Reply::bulk("master")),
        (Reply::bulk("modules"), Reply::Array(Vec::new())),
    ])
}

/// COMMAND.
pub fn command(strings: &[&[u8]]) -> Reply {
    let word = strings.get(1).map(|word| word.to_ascii_uppercase());
    let names = strings.get(2..).unwrap_or_default();
    match word.as_deref() {
        None => Reply::Array(COMMANDS.iter().map(commands::Command::row).collect()),
        Some(b"COUNT") if names.is_empty() => Reply::count(COMMANDS.len()),
        Some(b"LIST") if names.is_empty() => {
            Reply::Array(COMMANDS.iter().map(|command| Reply::bulk(command.name.to_ascii_lowercase())).collect())
        }
        Some(b"INFO") if names.is_empty() => Reply::Array(COMMANDS.iter().map(commands::Command::row).collect()),
        Some(b"INFO") => {
            let row = |name: &&[u8]| commands::find(name).map_or(Reply::NilArray, commands::Command::row);
            Reply::Array(names.iter().map(row).collect())
        }
        Some(b"DOCS") if names.is_empty() => Reply::Map(COMMANDS.iter().map(commands::Command::docs).collect()),
        Some(b"DOCS") => {
            Reply::Map(names.iter().filter_map(|name| commands::find(name)).map(commands::Command::docs).collect())
        }
        Some(b"GETKEYS") => match names.first().and_then(|name| commands::find(name)) {
            Some(command) if command.takes(names.len()) => {
                let keys: Vec<Reply> = command.keys(names.len()).map(|at| Reply::bulk(names[at])).collect();
                match keys.is_empty() {
                    true => Reply::err("The command has no key arguments"),
                    false => Reply::Array(keys),
                }
            }
            Some(_) => Reply::err("Invalid number of arguments specified for command"),
            None => Reply::err("Invalid command specified"),
        },
        Some(_) => syntax_error(),
    }
}

/// CONFIG GET: values that never change, in the names of Redis.
pub fn config(strings: &[&[u8]], limits: &Limits) -> Reply {
    if !strings[1].eq_ignore_ascii_case(b"GET") {
        let word: String = strings[1].escape_ascii().to_string().to_ascii_uppercase().chars().take(64).collect();
        return Reply::err(format_args!("CONFIG {word} is not supported: `coppice config set` changes the cluster"));
    }
    if strings.len() < 3 {
        return Reply::err("wrong number of arguments for 'config|get' command");
    }
    let values = [
        ("appendfsync", "always".to_owned()),
        ("appendonly", "yes".to_owned()),
        ("client-query-buffer-limit", limits.bytes.to_string()),
        ("cluster-enabled", "yes".to_owned()),
        ("databases", "1".to_owned()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("notify-keyspace-events", String::new()),
        ("proto-max-bulk-len", coppice_client::wire::VALUE_BYTES_MAX.to_string()),
        ("save", String::new()),
        ("timeout", "0".to_owned()),
    ];
    let wanted = |name: &str| {
        strings[2..].iter().any(|pattern| {
            pattern.len() <= glob::PATTERN_BYTES_MAX && glob::matches(&pattern.to_ascii_lowercase(), name.as_bytes())
        })
    };
    let found = values.into_iter().filter(|(name, _)| wanted(name));
    Reply::Map(found.map(|(name, value)| (Reply::bulk(name), Reply::bulk(value))).collect())
}

/// INFO.
pub fn info(strings: &[&[u8]], map: &PartitionMap, facts: &Facts) -> Reply {
    let words: Vec<Vec<u8>> = strings[1..].iter().map(|word| word.to_ascii_lowercase()).collect();
    let all = words.is_empty() || words.iter().any(|word| matches!(&word[..], b"all" | b"default" | b"everything"));
    let mut text = String::new();
    let mut section = |name: &str, lines: &[(&str, String)]| {
        if all || words.iter().any(|word| word == name.to_ascii_lowercase().as_bytes()) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            _ = write!(text, "# {name}\r\n");
            lines.iter().for_each(|(key, value)| _ = write!(text, "{key}:{value}\r\n"));
        }
    };
    let port = facts.address.rsplit_once(':').map_or("0", |(_, port)| port).to_owned();
    section(
        "Server",
        &[
            ("redis_version", REDIS_VERSION.into()),
            ("coppice_version", facts.version.clone()),
            ("redis_mode", "cluster".into()),
            ("os", "Linux".into()),
            ("arch_bits", "64".into()),
            ("process_id", facts.pid.to_string()),
            ("run_id", id_of(map, facts.node)),
            ("tcp_port", port),
            ("uptime_in_seconds", facts.uptime.to_string()),
            ("uptime_in_days", (facts.uptime / 86_400).to_string()),
        ],
    );
    section(
        "Clients",
        &[
            ("connected_clients", facts.connections.to_string()),
            ("maxclients", facts.connections_max.to_string()),
            ("blocked_clients", "0".into()),
        ],
    );
    section(
        "Memory",
        &[
            ("used_memory", facts.memory.to_string()),
            ("used_memory_human", human(facts.memory)),
            ("used_memory_rss", facts.memory.to_string()),
            ("maxmemory", facts.memory_limit.to_string()),
            ("maxmemory_human", human(facts.memory_limit)),
            ("maxmemory_policy", "noeviction".into()),
        ],
    );
    section(
        "Persistence",
        &[
            ("loading", u8::from(facts.is_recovering).to_string()),
            ("aof_enabled", "1".into()),
            ("rdb_bgsave_in_progress", "0".into()),
        ],
    );
    section("Stats", &[("total_commands_processed", facts.commands.to_string())]);
    section(
        "Replication",
        &[
            ("role", "master".into()),
            ("connected_slaves", members(map).filter(|node| Some(node.id) != facts.node).count().to_string()),
            ("master_replid", id_of(map, facts.node)),
        ],
    );
    section("Cluster", &[("cluster_enabled", "1".into())]);
    section("Keyspace", &[]);
    Reply::Text(text)
}

fn human(bytes: u64) -> String {
    match bytes {
        0..1_024 => format!("{bytes}B"),
        1_024..1_048_576 => format!("{:.2}K", bytes as f64 / 1_024.0),
        1_048_576..1_073_741_824 => format!("{:.2}M", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2}G", bytes as f64 / 1_073_741_824.0),
    }
}

/// Nodes that clients may be led to.
fn members(map: &PartitionMap) -> impl Iterator<Item = &NodeInfo> {
    map.nodes.iter().filter(|node| node.state != NodeState::Removed && !node.addresses.resp.is_empty())
}

/// Redis names nodes by 40 hexadecimal digits.
fn id_of(map: &PartitionMap, node: Option<NodeId>) -> String {
    let text = format!("{} {:?}", map.cluster, node);
    sha256(text.as_bytes())[..20].iter().fold(String::new(), |mut id, byte| {
        _ = write!(id, "{byte:02x}");
        id
    })
}

/// A node as clients of clusters know it.
struct Place {
    id: String,
    host: String,
    port: i64,
    is_own: bool,
}

/// This node first, which takes every slot; then the others.
fn places(map: &PartitionMap, facts: &Facts) -> Vec<Place> {
    let place = |id, address: &str, is_own| {
        let (host, port) = address.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Some(Place { id: id_of(map, id), host, port: port.parse().ok()?, is_own })
    };
    let own = place(facts.node, &facts.address, true);
    let others = members(map).filter(|node| Some(node.id) != facts.node);
    own.into_iter().chain(others.filter_map(|node| place(Some(node.id), &node.addresses.resp, false))).collect()
}

/// CLUSTER.
pub fn cluster(strings: &[&[u8]], map: &PartitionMap, facts: &Facts) -> Reply {
    let word = strings[1].to_ascii_uppercase();
    let last = i64::from(SLOTS) - 1;
    match (&word[..], &strings[2..]) {
        (b"MYID", []) => Reply::bulk(id_of(map, facts.node)),
        (b"KEYSLOT", [key]) => Reply::Integer(i64::from(slot(key))),
        (b"INFO", []) => {
            let places = places(map, facts);
            Reply::Text(format!(
                "cluster_enabled:1\r\ncluster_state:ok\r\ncluster_slots_assigned:{SLOTS}\r\ncluster_slots_ok:{SLOTS}\r\n\
                 cluster_slots_pfail:0\r\ncluster_slots_fail:0\r\ncluster_known_nodes:{}\r\ncluster_size:1\r\n\
                 cluster_current_epoch:{epoch}\r\ncluster_my_epoch:{epoch}\r\n",
                places.len(),
                epoch = map.version.0,
            ))
        }
        (b"SLOTS", []) => {
            let node = |place: Place| {
                let (host, id) = (Reply::bulk(place.host), Reply::bulk(place.id));
                Reply::Array(vec![host, Reply::Integer(place.port), id, Reply::Array(Vec::new())])
            };
            let nodes = places(map, facts).into_iter().map(node);
            let range = [Reply::Integer(0), Reply::Integer(last)].into_iter().chain(nodes);
            Reply::Array(vec![Reply::Array(range.collect())])
        }
        (b"SHARDS", []) => {
            let node = |place: Place| {
                let role = if place.is_own { "master" } else { "replica" };
                Reply::Map(vec![
                    (Reply::bulk("id"), Reply::bulk(place.id)),
                    (Reply::bulk("port"), Reply::Integer(place.port)),
                    (Reply::bulk("ip"), Reply::bulk(&place.host)),
                    (Reply::bulk("endpoint"), Reply::bulk(&place.host)),
                    (Reply::bulk("role"), Reply::bulk(role)),
                    (Reply::bulk("replication-offset"), Reply::Integer(0)),
                    (Reply::bulk("health"), Reply::bulk("online")),
                ])
            };
            let nodes = places(map, facts).into_iter().map(node).collect();
            Reply::Array(vec![Reply::Map(vec![
                (Reply::bulk("slots"), Reply::Array(vec![Reply::Integer(0), Reply::Integer(last)])),
                (Reply::bulk("nodes"), Reply::Array(nodes)),
            ])])
        }
        (b"NODES", []) => {
            let mut text = String::new();
            let own = id_of(map, facts.node);
            for Place { id, host, port, is_own } in places(map, facts) {
                // The bus of a Redis cluster is at the port and 10000; there is none here.
                _ = match is_own {
                    true => writeln!(text, "{id} {host}:{port}@0 myself,master - 0 0 1 connected 0-{last}"),
                    false => writeln!(text, "{id} {host}:{port}@0 slave {own} 0 0 1 connected"),
                };
            }
            Reply::Text(text)
        }
        _ => {
            let word: String = word.escape_ascii().to_string().chars().take(64).collect();
            Reply::err(format_args!("CLUSTER {word} is not supported: COMMAND DOCS CLUSTER names what is"))
        }
    }
}

/// The slot of a key, for clients that compute it too: CRC-16 of what stands in its first braces, else of all of it.
fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let behind = &key[open + 1..];
        let close = behind.iter().position(|&byte| byte == b'}').filter(|&close| close > 0)?;
        Some(&behind[..close])
    });
    let crc = tag.unwrap_or(key).iter().fold(0_u16, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 })
    });
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        for (key, wanted) in
            [("foo", 12_182), ("bar", 5_061), ("{user1000}.following", 3_443), ("user1000", 3_443), ("", 0)]
        {
            assert_eq!(slot(key.as_bytes()), wanted, "{key}");
        }
        assert_eq!(slot(b"foo{}{bar}"), 8_363);
    }
}
