//! Queries over several partitions on a real cluster in one process, spoken on the wire itself: what the client library
//! builds upon (protocol.md 4).

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use common::cluster::{connect, formed, leader};
use common::raw::Raw;
use common::{Scratch, patience, wait_for};
use coppice_client::wire::control::{decode_control, encode_control};
use coppice_client::wire::{
    ClientId, Kind, NodeId, Part, PartEnd, PartitionId, QueryCompleted, QueryPlan, QueryRequest, Refusal, Status,
    StatusGet,
};
use coppice_server::local::{Cluster, LocalOptions};

/// An attempt that has not ended by then is given up, as every client does: a part may have been dropped.
const ATTEMPT: Duration = Duration::from_secs(3);

/// How often what needs a moment to be met is tried.
const ATTEMPTS: usize = 10;

/// One connection to each node.
struct Asker {
    nodes: BTreeMap<NodeId, Raw>,
    query: u32,
}

/// What became of one attempt.
#[derive(Debug)]
enum Ended {
    Result(Vec<(Bytes, Bytes)>, QueryPlan),
    Aborted,
    /// In time, at least: nothing of it is used.
    Silent,
    NotLeader(Option<NodeId>),
}

impl Asker {
    /// A client of its own: a node that starts again may still send parts of what an earlier one asked.
    fn connect(cluster: &Cluster) -> Asker {
        static CLIENTS: AtomicU64 = AtomicU64::new(77);
        let client = ClientId(CLIENTS.fetch_add(1, Ordering::Relaxed));
        let mut nodes = BTreeMap::new();
        for address in cluster.endpoints() {
            let mut raw = Raw::connect(address, client);
            let map = wait_for("a node that has just started knows the map", patience(), || raw.map().map);
            let own = map.nodes.iter().find(|node| node.addresses.native == address.to_string()).expect("this node");
            nodes.insert(own.id, raw);
        }
        Asker { nodes, query: 0 }
    }

    /// One attempt, at `coordinator`.
    fn attempt(&mut self, coordinator: NodeId, request: &QueryRequest) -> Ended {
        self.query += 1;
        let request = QueryRequest { query: self.query, ..request.clone() };
        let mut out = BytesMut::new();
        let stream = 1_000_000 + self.query;
        request.encode(&mut out, stream);
        self.nodes.get_mut(&coordinator).unwrap().send(&out);
        let (mut cut, mut completed): (Option<QueryPlan>, Option<QueryCompleted>) = (None, None);
        let mut parts: BTreeMap<PartitionId, (Vec<(Bytes, Bytes)>, bool)> = BTreeMap::new();
        let deadline = Instant::now() + ATTEMPT;
        while Instant::now() < deadline {
            for raw in self.nodes.values_mut() {
                let Some(frame) = raw.frame_within(Duration::from_millis(2)) else { continue };
                match Kind::from_u8(frame.kind).unwrap() {
                    // Of an attempt that was given up.
                    Kind::QueryPlan | Kind::QueryCompleted | Kind::Refused if frame.stream != stream => {}
                    Kind::QueryPlan => cut = Some(QueryPlan::decode(&frame.body).unwrap()),
                    Kind::QueryCompleted => completed = Some(QueryCompleted::decode(&frame.body).unwrap()),
                    Kind::Refused => match Refusal::decode(&frame.body).unwrap() {
                        Refusal::NotLeader { hint, .. } => return Ended::NotLeader(hint),
                        Refusal::Aborted { .. } | Refusal::Busy { .. } => return Ended::Aborted,
                        other => panic!("{other:?}"),
                    },
                    Kind::Part if frame.stream == self.query => {
                        let part = Part::decode(&frame.body).unwrap();
                        if let Some(cut) = &cut {
                            assert_eq!(part.ticket, Some(cut.ticket));
                        }
                        let entry = parts.entry(part.position.partition).or_default();
                        let pairs = part
                            .pairs()
                            .map(|(key, value)| (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
                        entry.0.extend(pairs);
                        entry.1 |= part.end == Some(PartEnd::Complete);
                    }
                    Kind::Part => {}
                    other => panic!("{other:?}"),
                }
            }
            if let (Some(cut), Some(done)) = (&cut, &completed)
                && cut.parts.iter().all(|part| parts.get(&part.partition).is_some_and(|(_, done)| *done))
            {
                assert_eq!(cut.ticket, done.ticket);
                let in_order = cut.parts.iter().flat_map(|part| parts[&part.partition].0.clone());
                let mut pairs: Vec<_> = in_order.collect();
                if request.scan.reverse {
                    pairs.sort_by(|a, b| b.cmp(a));
                }
                return Ended::Result(pairs, cut.clone());
            }
        }
        println!("no end: cut {cut:?}, completed {completed:?}, parts {:?}", parts.keys());
        Ended::Silent
    }

    /// Asks until there is a result; returns how often it was asked for.
    fn query(&mut self, request: &QueryRequest) -> (Vec<(Bytes, Bytes)>, QueryPlan, usize) {
        let mut coordinator = *self.nodes.keys().next().unwrap();
        let mut attempts = 0;
        wait_for("a query has a result", patience(), || {
            attempts += 1;
            match self.attempt(coordinator, request) {
                Ended::Result(pairs, cut) => return Some((pairs, cut, attempts)),
                Ended::Aborted => {}
                Ended::Silent | Ended::NotLeader(None) => {
                    let next = self.nodes.keys().copied().find(|&node| node > coordinator);
                    coordinator = next.unwrap_or(*self.nodes.keys().next().unwrap());
                }
                Ended::NotLeader(Some(hint)) => coordinator = hint,
            }
            None
        })
    }
}

fn everything() -> QueryRequest {
    QueryRequest {
        query: 0,
        low: Bytes::new(),
        high: None,
        scan: Default::default(),
        from_leaders: false,
        spread: false,
        credit: 1 << 20,
    }
}

/// Tells a thread to stop, whether the test fails or not.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_query_reads_all_partitions_at_one_ticket_while_they_change() {
    let directory = Scratch::new("queries");
    let cluster = formed(&LocalOptions { partitions: 4, ..LocalOptions::new(&directory.0) });
    let client = connect(&cluster);
    let mut asker = Asker::connect(&cluster);
    // One key in each partition, always written in key order: x in the first one, then the same x in the next.
    let keys: Vec<Vec<u8>> = (0..4u64).map(|n| (n << 62 | 5).to_be_bytes().to_vec()).collect();
    let stop = AtomicBool::new(false);
    let (mut queries, mut seen) = (0, BTreeSet::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0u64;
            while !stop.load(Ordering::Relaxed) {
                round += 1;
                for key in &keys {
                    client.put(key.as_slice(), round.to_be_bytes()).unwrap();
                }
            }
        });
        let _stop = Stop(&stop);
        let begun = Instant::now();
        let mut last: Vec<u64> = vec![0; keys.len()];
        while queries < 50 || seen.len() < 10 {
            assert!(begun.elapsed() < patience(), "{queries} queries saw {} states", seen.len());
            let (pairs, cut, _) = asker.query(&everything());
            assert_eq!(cut.parts.len(), 4, "{cut:?}");
            let values: Vec<u64> =
                pairs.iter().map(|(_, value)| u64::from_be_bytes(value[..].try_into().unwrap())).collect();
            // The writer waits for each answer: what was written later is never seen without what was written before,
            // and no query sees less than an earlier one.
            let mut expected = values.clone();
            expected.sort_by(|a, b| b.cmp(a));
            assert_eq!(values, expected, "a later write without an earlier one");
            if values.len() == keys.len() {
                assert!(values[0] - values[3] <= 1, "{values:?}");
                assert!(values.iter().zip(&last).all(|(now, before)| now >= before), "{values:?} after {last:?}");
                last = values.clone();
            }
            seen.insert(values);
            queries += 1;
        }
    });
    println!("{queries} queries, {} different states", seen.len());
}

/// The status, as one node knows it (hazards.md E7).
fn status(cluster: &Cluster, at: usize, local: bool) -> Status {
    let mut out = BytesMut::new();
    encode_control(&mut out, Kind::Status, 7, &StatusGet { local });
    let frame = Raw::connect(cluster.endpoints()[at], ClientId(76)).ask(&out);
    assert_eq!(Kind::from_u8(frame.kind), Some(Kind::StatusReply));
    decode_control(&frame.body, "status").expect("readable")
}

#[test]
fn the_status_of_every_node_says_the_last_ticket_and_that_it_is_released() {
    let directory = Scratch::new("queries-status");
    let cluster = formed(&LocalOptions { partitions: 4, ..LocalOptions::new(&directory.0) });
    let (_, cut, _) = Asker::connect(&cluster).query(&everything());
    assert_eq!(cut.parts.len(), 4, "{cut:?}");
    for at in 0..3 {
        // The watermark and what the others know come a moment after the answer.
        wait_for("the ticket is placed and released in all partitions", patience(), || {
            let told = status(&cluster, at, false).partitions.into_iter().filter(|partition| partition.id.0 != 0);
            let tickets: Vec<_> = told.map(|partition| (partition.last_ticket, partition.released)).collect();
            let done = tickets.iter().all(|(last, released)| *last >= Some(cut.ticket) && released >= last);
            (tickets.len() == 4 && done).then_some(())
        });
    }
    let directory = &status(&cluster, 0, false).partitions[0];
    assert_eq!((directory.id.0, directory.last_ticket), (0, None), "no ticket stands in the directory");
}

#[test]
fn the_status_says_how_much_undo_waits_for_a_majority() {
    let directory = Scratch::new("queries-undo");
    let mut cluster = formed(&LocalOptions { partitions: 1, ..LocalOptions::new(&directory.0) });
    let data = PartitionId(1);
    let client = connect(&cluster);
    client.put(b"key", vec![b'v'; 1_000]).expect("the cluster serves");
    let undo = |cluster: &Cluster, at: usize| {
        let told = status(cluster, at, true).partitions.into_iter().find(|partition| partition.id == data);
        told.map_or(0, |partition| partition.undo_bytes)
    };
    wait_for("nothing is undecided", patience(), || (0..3).all(|at| undo(&cluster, at) == 0).then_some(()));
    let endpoints = cluster.endpoints();
    let (stop, puts) = (AtomicBool::new(false), AtomicU64::new(0));
    let (stopped, puts) = (&stop, &puts);
    std::thread::scope(|scope| {
        let write = || {
            let config = coppice_client::Config { timeout: ATTEMPT, ..coppice_client::Config::default() };
            let writer =
                coppice_client::blocking::Client::connect_with(endpoints.iter().map(ToString::to_string), config);
            let writer = writer.expect("the cluster serves");
            // One fails while a node stops, another one finds the leader before it knows that its majority is gone.
            while !stopped.load(Ordering::Relaxed) {
                if writer.put(b"key", vec![b'w'; 1_000]).is_ok() {
                    puts.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        for _ in 0..4 {
            scope.spawn(write);
        }
        let _stop = Stop(stopped);
        // Leadership may move while they stop, and a leader without majority proposes for 300 ms only: then again.
        let seen = (0..ATTEMPTS).any(|_| {
            // Who was refused a moment ago rests, and puts nothing that could stay undecided.
            let before = puts.load(Ordering::Relaxed);
            let flows = || (puts.load(Ordering::Relaxed) > before + 100).then_some(());
            wait_for("puts flow", patience(), flows);
            let leads = leader(&cluster, data);
            let at = (0..3).find(|&at| status(&cluster, at, true).node == leads).expect("one of the three");
            let others = (0..3).filter(|&other| other != at);
            others.clone().for_each(|other| cluster.stop(other));
            let deadline = Instant::now() + ATTEMPT;
            while Instant::now() < deadline {
                if undo(&cluster, at) >= 1_000 {
                    return true;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            others.for_each(|other| cluster.restart(other).expect("it starts"));
            false
        });
        assert!(seen, "no undecided put has undo");
    });
}

#[test]
fn a_query_counts_as_one_request_however_many_messages_answer_it() {
    let directory = Scratch::new("queries-counted");
    let cluster = formed(&LocalOptions { partitions: 4, ..LocalOptions::new(&directory.0) });
    let mut asker = Asker::connect(&cluster);
    for _ in 0..5 {
        asker.query(&everything());
    }
    let counted = |text: String| -> f64 {
        let of_ranges = |line: &&str| line.starts_with("coppice_requests_total{op=\"range\",result=\"ok\"}");
        let value = |line: &str| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
        text.lines().filter(of_ranges).filter_map(value).sum()
    };
    let sum: f64 = (0..3).map(|at| counted(cluster.node(at).expect("runs").metrics())).sum();
    assert_eq!(sum, 5.0);
}

/// Leaders know first what is decided, so parts come from them; a client may have all replicas share in the work.
#[test]
fn parts_come_from_leaders_unless_the_client_spreads_them() {
    let directory = Scratch::new("queries-drawn");
    let cluster = formed(&LocalOptions { partitions: 4, ..LocalOptions::new(&directory.0) });
    let mut asker = Asker::connect(&cluster);
    let mut nodes = |spread| -> Vec<BTreeSet<NodeId>> {
        let mut nodes = vec![BTreeSet::new(); 4];
        for _ in 0..6 {
            let (_, cut, _) = asker.query(&QueryRequest { spread, ..everything() });
            cut.parts.iter().zip(&mut nodes).for_each(|(part, nodes)| _ = nodes.insert(part.node));
        }
        nodes
    };
    // Another may come to lead, but not between any two queries.
    wait_for("each partition is served by one node", patience(), || {
        nodes(false).iter().all(|nodes| nodes.len() == 1).then_some(())
    });
    assert!(nodes(true).iter().all(|nodes| nodes.len() > 1), "the voters are drawn in turn");
}

#[test]
fn a_query_survives_the_coordinator_and_a_partitions_leader() {
    let directory = Scratch::new("queries-failover");
    let mut cluster = formed(&LocalOptions { partitions: 4, ..LocalOptions::new(&directory.0) });
    let client = connect(&cluster);
    for n in 0..40u64 {
        client.put((n << 58).to_be_bytes(), n.to_be_bytes()).unwrap();
    }
    let mut asker = Asker::connect(&cluster);
    assert_eq!(asker.query(&everything()).0.len(), 40);
    for at in 0..3 {
        cluster.stop(at);
        cluster.restart(at).unwrap();
        let mut asker = Asker::connect(&cluster);
        let since = Instant::now();
        let (pairs, _, attempts) = asker.query(&everything());
        println!("node {} restarted: {attempts} attempts, {:?}", at + 1, since.elapsed());
        assert_eq!(pairs.len(), 40);
        client.put((40u64 << 50 | at as u64).to_be_bytes(), b"x").unwrap();
        client.delete((40u64 << 50 | at as u64).to_be_bytes()).unwrap();
    }
}
