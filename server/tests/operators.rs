//! The doors of a node for operators: who asks much is bounded, who asks next is served, whoever is asked.

mod common;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use common::cluster::{formed, leader, map};
use common::raw::Raw;
use common::{Scratch, patience, wait_until};
use coppice_client::wire::control::encode_control;
use coppice_client::wire::{
    AdminError, AdminReply, AdminRequest, ClientId, Hello, Kind, NodeId, PROTOCOL, PartitionId, Refusal, Status,
    StatusGet,
};
use coppice_client::{Admin, Config};
use coppice_server::local::{Cluster, LocalOptions, admin};

const P1: PartitionId = PartitionId(1);

/// Open descriptors of this process, and so of the whole cluster in it.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fn status(cluster: &Cluster, timeout: Duration) -> Result<Status, coppice_client::admin::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let config = Config { timeout, ..Config::default() };
    let endpoints = cluster.endpoints().into_iter().map(|endpoint| endpoint.to_string());
    runtime.block_on(Admin::new(endpoints.take(1), config).status(false))
}

/// 340 KB of statuses and verbs took 20,000 descriptors, and a leadership with them: each asked all nodes anew.
#[test]
fn a_flood_of_statuses_and_verbs_takes_few_descriptors_and_locks_no_operator_out() {
    const FRAMES: u32 = 8_000;
    let scratch = Scratch::new("flood");
    let cluster = formed(&LocalOptions::new(&scratch.0));
    let before = descriptors();
    let mut flood: Vec<Raw> = (1..=3).map(|id| Raw::connect(cluster.endpoints()[0], ClientId(id))).collect();
    let mut out = BytesMut::new();
    for stream in 2..FRAMES + 2 {
        match stream % 4 {
            0 => encode_control(&mut out, Kind::Admin, stream, &AdminRequest::CheckReplicas),
            1 => encode_control(&mut out, Kind::Admin, stream, &AdminRequest::Tuning { local: false }),
            _ => encode_control(&mut out, Kind::Status, stream, &StatusGet { local: false }),
        }
    }
    flood.iter_mut().for_each(|raw| raw.send(&out));
    let (mut most, mut answered) = (0, 0);
    let begun = Instant::now();
    let operator = std::thread::scope(|scope| {
        let operator = scope.spawn(|| status(&cluster, patience()));
        for raw in &mut flood {
            for _ in 0..FRAMES {
                most = most.max(descriptors());
                let frame = raw.frame();
                match Kind::from_u8(frame.kind) {
                    Some(Kind::Refused) => {
                        let refusal = Refusal::decode(&frame.body).expect("readable");
                        assert!(matches!(refusal, Refusal::Busy { .. }), "{refusal:?}");
                    }
                    Some(Kind::StatusReply | Kind::AdminReply) => answered += 1,
                    kind => panic!("{kind:?}"),
                }
            }
        }
        operator.join().expect("it ends")
    });
    println!(
        "{answered} of {} were answered in {:?}, {most} descriptors, {before} before",
        3 * FRAMES,
        begun.elapsed()
    );
    assert!(most < before + 250, "{most} descriptors, {before} before");
    assert!(answered >= 3, "each is served all the same");
    assert!(operator.expect("an operator is served").majority);
}

/// A client that called itself something else on the same connection stayed known under its first name for ever, and
/// was reached there: parts of the queries of another one went to it.
#[test]
fn a_second_hello_on_a_connection_is_refused_and_ends_it() {
    let scratch = Scratch::new("hello");
    let cluster = formed(&LocalOptions { nodes: 1, ..LocalOptions::new(&scratch.0) });
    let mut raw = Raw::connect(cluster.endpoints()[0], ClientId(1));
    let (protocol_min, protocol_max) = (*PROTOCOL.start(), *PROTOCOL.end());
    let mut out = BytesMut::new();
    encode_control(
        &mut out,
        Kind::Hello,
        2,
        &Hello { protocol_min, protocol_max, client: ClientId(2), ..Hello::default() },
    );
    let frame = raw.ask(&out);
    assert_eq!(frame.kind, Kind::Refused as u8);
    let said = Refusal::decode(&frame.body).expect("readable");
    assert!(matches!(&said, Refusal::BadRequest { text } if text.contains("Hello comes once")), "{said:?}");
    assert!(raw.is_closed_within(patience()));
}

fn transfer(node: SocketAddr, to: NodeId, deadline_ms: u32) -> AdminReply {
    let request = AdminRequest::TransferLeader { partition: P1, to, deadline_ms };
    admin(node, request, patience()).expect("it answers")
}

/// 49 days were taken, and whatever waited for that long.
#[test]
fn a_deadline_of_days_is_refused_in_words() {
    let scratch = Scratch::new("deadline");
    let cluster = formed(&LocalOptions { nodes: 1, ..LocalOptions::new(&scratch.0) });
    match transfer(cluster.endpoints()[0], NodeId(1), u32::MAX) {
        AdminReply::Failed(AdminError::Invalid(text)) => assert!(text.contains("1min"), "{text}"),
        reply => panic!("{reply:?}"),
    }
}

/// A node without a replica, which hears of no leader, said that the outcome was unknown; nobody had been asked.
#[test]
fn a_transfer_is_carried_out_whichever_node_is_asked() {
    let scratch = Scratch::new("transfer");
    let cluster = formed(&LocalOptions { nodes: 4, ..LocalOptions::new(&scratch.0) });
    let entry = map(&cluster).entry(P1).expect("it is there").clone();
    let without = (1..=4).map(NodeId).find(|&node| entry.replica_on(node).is_none()).expect("three of four have one");
    let asked = cluster.endpoints()[without.0 as usize - 1];
    for info in &entry.replicas {
        wait_until(&format!("{} leads", info.node), patience(), || {
            match transfer(asked, info.node, 5_000) {
                AdminReply::Transferred { .. } => true,
                // On a busy machine the new leader may be late; then the old one goes on, and says so.
                AdminReply::Failed(AdminError::TimedOut(text) | AdminError::Unavailable(text)) => {
                    println!("{text}");
                    false
                }
                reply => panic!("{reply:?}"),
            }
        });
    }
    leader(&cluster, P1);
}

/// 10,000 clients that did nothing locked everybody else out.
#[test]
fn idle_clients_give_way_to_whoever_comes() {
    const MOST: usize = 20;
    let scratch = Scratch::new("idle");
    let mut options = LocalOptions { nodes: 1, ..LocalOptions::new(&scratch.0) };
    options.node.limits.connections = MOST;
    let cluster = formed(&options);
    let mut idle: Vec<Raw> =
        (0..MOST as u64).map(|id| Raw::connect(cluster.endpoints()[0], ClientId(100 + id))).collect();
    // It is the one that was heard last.
    idle[0].map();
    for _ in 0..5 {
        assert!(status(&cluster, patience()).expect("an operator finds a place").majority);
    }
    let newest = Raw::connect(cluster.endpoints()[0], ClientId(1));
    idle[0].map();
    wait_until("some that are silent were closed", patience(), || {
        idle[1..].iter_mut().any(|raw| raw.is_closed_within(Duration::from_millis(1)))
    });
    drop(newest);
}

/// A status that nobody answers ends when its time is over, not after the time that a connection may take.
#[test]
fn a_node_that_hangs_is_waited_for_until_the_timeout() {
    let hangs = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let timeout = Duration::from_millis(2_500);
    let address = hangs.local_addr().expect("bound").to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let admin = Admin::new([address], Config { timeout, ..Config::default() });
    for verb in [false, true] {
        let begun = Instant::now();
        let failed = match verb {
            true => runtime.block_on(admin.verb(AdminRequest::CheckReplicas)).map(drop),
            false => runtime.block_on(admin.status(false)).map(drop),
        };
        let took = begun.elapsed();
        assert!(failed.is_err());
        assert!(took > timeout - Duration::from_millis(200), "given up after {took:?}");
    }
}
