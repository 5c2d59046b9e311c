//! The six numbers of *Tuning Paxos* (papers.md A12), read from the nodes' `/metrics` (operations.md 4) while a run
//! goes on.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// A node that does not answer in this time is left out of a sample.
const TIMEOUT: Duration = Duration::from_millis(300);

/// The largest answer that is read: a node of 256 partitions writes about 200 KiB.
const ANSWER_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Reads `http://address/path` and returns the body of a 200.
pub fn get(address: &str, path: &str) -> std::io::Result<String> {
    exchange(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"))
}

/// Posts a body of JSON to `http://address/path` and returns the body of a 200.
pub fn post(address: &str, path: &str, json: &str) -> std::io::Result<String> {
    let head = format!("POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n");
    exchange(address, &format!("{head}Content-Length: {}\r\nConnection: close\r\n\r\n{json}", json.len()))
}

/// One request over a connection of its own.
fn exchange(address: &str, request: &str) -> std::io::Result<String> {
    let other = |text: &str| std::io::Error::other(format!("{address}: {text}"));
    let target = address.to_socket_addrs()?.next().ok_or_else(|| other("no such address"))?;
    let mut stream = TcpStream::connect_timeout(&target, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    let split = answer.windows(4).position(|w| w == b"\r\n\r\n").ok_or_else(|| other("no HTTP answer"))?;
    let (head, body) = (String::from_utf8_lossy(&answer[..split]).to_ascii_lowercase(), &answer[split + 4..]);
    if head.split_whitespace().nth(1) != Some("200") {
        return Err(other(head.lines().next().unwrap_or_default()));
    }
    match head.contains("transfer-encoding: chunked") {
        true => Ok(String::from_utf8_lossy(&unchunk(body).ok_or_else(|| other("a broken chunk"))?).into_owned()),
        false => Ok(String::from_utf8_lossy(body).into_owned()),
    }
}

fn unchunk(mut body: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(body.len());
    loop {
        let line = body.windows(2).position(|w| w == b"\r\n")?;
        let size = std::str::from_utf8(&body[..line]).ok()?.split(';').next()?;
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        body = &body[line + 2..];
        if size == 0 {
            return Some(out);
        }
        out.extend_from_slice(body.get(..size)?);
        body = body.get(size.checked_add(2)?..)?;
    }
}

/// Seconds that a node's threads spent in each stage since it started, by the stage's word; empty: it does not answer.
pub fn stages(address: &str) -> BTreeMap<String, f64> {
    get(address, "/metrics").map(|text| stages_in(&text)).unwrap_or_default()
}

fn stages_in(text: &str) -> BTreeMap<String, f64> {
    let stage = |line: &str| {
        let (name, labels, value) = sample(line)?;
        let word = labels.strip_prefix("stage=\"")?.strip_suffix('"')?;
        (name == "coppice_stage_busy_seconds_total").then(|| (word.to_owned(), value))
    };
    text.lines().filter_map(stage).collect()
}

/// What one node counted at one time. Counters by partition, p0 (the directory) left out.
#[derive(Clone, Debug, Default, PartialEq)]
struct Node {
    commands: BTreeMap<u32, f64>,
    instances: BTreeMap<u32, f64>,
    keys: BTreeMap<u32, f64>,
    window_seconds: f64,
    window_limit: f64,
    instance_seconds: (f64, f64),
    batch_commands: (f64, f64),
    batch_bytes: (f64, f64),
    flush_seconds: (f64, f64),
}

/// One line of the text format: name, labels, value.
fn sample(line: &str) -> Option<(&str, &str, f64)> {
    let (series, value) = line.rsplit_once(' ')?;
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    Some((name, labels.trim_end_matches('}'), value.parse().ok()?))
}

fn partition(labels: &str) -> Option<u32> {
    let (_, rest) = labels.split_once("partition=\"p")?;
    rest.split('"').next()?.parse().ok().filter(|&id| id != 0)
}

fn parse(text: &str) -> Node {
    let mut node = Node::default();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, labels, value)) = sample(line) else { continue };
        let Some(name) = name.strip_prefix("coppice_") else { continue };
        let by_partition = match name {
            "commands_decided_total" => Some(&mut node.commands),
            "instances_decided_total" => Some(&mut node.instances),
            "partition_keys" => Some(&mut node.keys),
            _ => None,
        };
        if let (Some(map), Some(id)) = (by_partition, partition(labels)) {
            map.insert(id, value);
            continue;
        }
        match name {
            "window_instance_seconds_total" if partition(labels).is_some() => node.window_seconds += value,
            "window_limit" if partition(labels).is_some() => node.window_limit = node.window_limit.max(value),
            "instance_seconds_sum" => node.instance_seconds.0 = value,
            "instance_seconds_count" => node.instance_seconds.1 = value,
            "batch_commands_sum" => node.batch_commands.0 = value,
            "batch_commands_count" => node.batch_commands.1 = value,
            "batch_bytes_sum" => node.batch_bytes.0 = value,
            "batch_bytes_count" => node.batch_bytes.1 = value,
            "log_flush_seconds_sum" => node.flush_seconds.0 = value,
            "log_flush_seconds_count" => node.flush_seconds.1 = value,
            _ => {}
        }
    }
    node
}

/// What all nodes counted at about one time; nodes that did not answer are absent.
#[derive(Clone, Debug)]
pub struct Sample {
    at: Instant,
    nodes: BTreeMap<String, Node>,
}

impl Sample {
    /// Asks the admin address of each node.
    pub fn take(addresses: &[String]) -> Sample {
        let read = |address: &String| get(address, "/metrics").ok().map(|text| (address.clone(), parse(&text)));
        Sample { at: Instant::now(), nodes: addresses.iter().filter_map(read).collect() }
    }

    /// How long ago it was taken.
    pub fn age(&self) -> Duration {
        self.at.elapsed()
    }

    /// Whether any node answered.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Keys stored, by what the furthest replica of each partition says; `None` if no node answered.
    pub fn keys(&self) -> Option<u64> {
        let mut keys: BTreeMap<u32, f64> = BTreeMap::new();
        for (&id, &count) in self.nodes.values().flat_map(|node| &node.keys) {
            let most = keys.entry(id).or_default();
            *most = most.max(count);
        }
        (!self.is_empty()).then(|| keys.values().sum::<f64>() as u64)
    }
}

/// Averages between two samples. Every replica decides what its leader proposes, so decided counts are taken, partition
/// by partition, from the node that counted most; what only leaders count is summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ordering {
    /// Mean time from proposing to deciding, milliseconds.
    pub instance_ms: f64,
    /// Commands decided per second.
    pub commands_per_second: f64,
    /// Instances decided per second.
    pub instances_per_second: f64,
    /// Mean commands in a batch.
    pub batch_commands: f64,
    /// Mean bytes in a batch.
    pub batch_bytes: f64,
    /// Undecided instances, averaged over time and summed over partitions.
    pub window: f64,
    /// The largest window that a partition's leader allows itself.
    pub window_limit: f64,
    /// Mean time of one flush of a log, milliseconds.
    pub flush_ms: f64,
}

fn ratio(numerator: f64, denominator: f64) -> f64 {
    if denominator > 0.0 { numerator / denominator } else { 0.0 }
}

impl Ordering {
    /// From two samples; `None` unless at least one node answered both times.
    pub fn between(before: &Sample, after: &Sample) -> Option<Ordering> {
        let both = || after.nodes.iter().filter_map(|(address, node)| Some((before.nodes.get(address)?, node)));
        both().next()?;
        let seconds = after.at.duration_since(before.at).as_secs_f64();
        let decided = |of: fn(&Node) -> &BTreeMap<u32, f64>| -> f64 {
            let mut most: BTreeMap<u32, f64> = BTreeMap::new();
            for (before, after) in both() {
                for (id, count) in of(after) {
                    // A restarted node counts from 0 again.
                    let grown = count - of(before).get(id).copied().filter(|&b| b <= *count).unwrap_or(0.0);
                    let most = most.entry(*id).or_default();
                    *most = most.max(grown);
                }
            }
            most.values().sum()
        };
        let mean = |of: fn(&Node) -> (f64, f64)| {
            let (sum, count) = both().fold((0.0, 0.0), |sums, (before, after)| {
                let restarted = of(after).1 < of(before).1;
                let base = if restarted { (0.0, 0.0) } else { of(before) };
                (sums.0 + of(after).0 - base.0, sums.1 + of(after).1 - base.1)
            });
            ratio(sum, count)
        };
        let window: f64 = both().map(|(b, a)| (a.window_seconds - b.window_seconds).max(0.0)).sum();
        Some(Ordering {
            instance_ms: 1e3 * mean(|node| node.instance_seconds),
            commands_per_second: ratio(decided(|node| &node.commands), seconds),
            instances_per_second: ratio(decided(|node| &node.instances), seconds),
            batch_commands: mean(|node| node.batch_commands),
            batch_bytes: mean(|node| node.batch_bytes),
            window: ratio(window, seconds),
            window_limit: both().map(|(_, after)| after.window_limit).fold(0.0, f64::max),
            flush_ms: 1e3 * mean(|node| node.flush_seconds),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(commands: f64, instances: f64, leader: bool) -> String {
        let mut text = format!(
            "# TYPE coppice_commands_decided counter\ncoppice_commands_decided_total{{partition=\"p1\"}} {commands}\n\
             coppice_commands_decided_total{{partition=\"p0\"}} 77\n\
             coppice_instances_decided_total{{partition=\"p1\"}} {instances}\n\
             coppice_partition_keys{{partition=\"p1\"}} {commands}\n"
        );
        if leader {
            text += &format!(
                "coppice_instance_seconds_sum {}\ncoppice_instance_seconds_count {instances}\n\
                 coppice_batch_commands_sum {commands}\ncoppice_batch_commands_count {instances}\n\
                 coppice_window_instance_seconds_total{{partition=\"p1\"}} {}\n\
                 coppice_window_limit{{partition=\"p1\"}} 16.0\n# EOF\n",
                instances * 0.002,
                instances * 0.002
            );
        }
        text
    }

    fn sample_of(at: Instant, nodes: &[String]) -> Sample {
        Sample { at, nodes: nodes.iter().enumerate().map(|(i, text)| (i.to_string(), parse(text))).collect() }
    }

    #[test]
    fn the_six_numbers_come_from_leaders_and_the_furthest_replica() {
        let start = Instant::now();
        let before = sample_of(start, &[node(0.0, 0.0, true), node(0.0, 0.0, false)]);
        let after =
            sample_of(start + Duration::from_secs(10), &[node(10_000.0, 100.0, true), node(9_900.0, 99.0, false)]);
        let ordering = Ordering::between(&before, &after).unwrap();
        assert_eq!((ordering.commands_per_second, ordering.instances_per_second), (1_000.0, 10.0));
        assert_eq!((ordering.batch_commands, ordering.window_limit), (100.0, 16.0));
        assert!((ordering.instance_ms - 2.0).abs() < 1e-9 && (ordering.window - 0.02).abs() < 1e-9);
        // papers.md A12: requests/s = instances/s x average batch.
        let product = ordering.instances_per_second * ordering.batch_commands;
        assert!((product / ordering.commands_per_second - 1.0).abs() < 0.01);
        assert_eq!(after.keys(), Some(10_000));
    }

    #[test]
    fn a_node_that_restarted_or_is_silent_does_not_count_backwards() {
        let start = Instant::now();
        let before = sample_of(start, &[node(5_000.0, 50.0, true)]);
        let after = sample_of(start + Duration::from_secs(1), &[node(100.0, 1.0, true)]);
        let ordering = Ordering::between(&before, &after).unwrap();
        assert_eq!((ordering.commands_per_second, ordering.batch_commands, ordering.window), (100.0, 100.0, 0.0));
        let silent = Sample { at: start, nodes: BTreeMap::new() };
        assert_eq!((Ordering::between(&silent, &after), silent.keys()), (None, None));
    }

    #[test]
    fn stages_are_read_by_their_words() {
        let text = "# TYPE x counter\ncoppice_stage_busy_seconds_total{stage=\"order\"} 1.5\n\
                    coppice_stage_busy_seconds_total{stage=\"flush\"} 0.25\ncoppice_queue_depth{queue=\"x\"} 9\n";
        let stages = stages_in(text);
        assert_eq!(stages, BTreeMap::from([("order".to_owned(), 1.5), ("flush".to_owned(), 0.25)]));
    }

    #[test]
    fn chunked_answers_are_joined() {
        assert_eq!(unchunk(b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n").as_deref(), Some(b"abcde".as_slice()));
        assert_eq!(unchunk(b"5\r\nabc"), None);
        assert_eq!(unchunk(b"ffffffffffffffff\r\nabc"), None);
    }

    #[test]
    fn a_get_over_a_socket_returns_the_body_or_says_why_not() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serve = std::thread::spawn(move || {
            for answer in ["HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", "HTTP/1.1 404 Not Found\r\n\r\n"] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 1_024];
                let _ = stream.read(&mut request).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        assert_eq!(get(&address, "/metrics").unwrap(), "hi");
        assert!(get(&address, "/metrics").unwrap_err().to_string().contains("404"));
        serve.join().unwrap();
    }
}
