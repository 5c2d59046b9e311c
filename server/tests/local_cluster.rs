//! A real cluster in one process: real sockets, files, flushes.

mod common;

use std::net::SocketAddr;

use bytes::BytesMut;
use common::cluster::{ASK, formed, leader};
use common::raw::Raw;
use common::{Scratch, patience, wait_for, wait_until};
use coppice_btree::Op;
use coppice_client::wire::control::{decode_control, encode_control};
use coppice_client::wire::{
    AdminError, AdminReply, AdminRequest, ClientId, Frame, Kind, OpenRequest, PackWriter, PartitionId, Refusal,
    ReplicaStatus, Replies, SessionId, Status, StatusGet,
};
use coppice_server::local::{LocalOptions, admin};

const CLIENT: ClientId = ClientId(7);

/// A session in one partition at its leader, wherever that is.
struct Writer {
    endpoints: Vec<SocketAddr>,
    /// Which node is asked, and a connection to it.
    at: usize,
    raw: Raw,
    session: SessionId,
    partition: PartitionId,
    number: u64,
}

impl Writer {
    fn open(endpoints: &[SocketAddr], partition: PartitionId) -> Writer {
        let mut writer = Writer {
            endpoints: endpoints.to_vec(),
            at: 0,
            raw: Raw::connect(endpoints[0], CLIENT),
            session: SessionId::default(),
            partition,
            number: 0,
        };
        let mut out = BytesMut::new();
        OpenRequest::encode(&mut out, 3, partition, CLIENT, 1);
        let frame = writer.answered(&out);
        let section = Replies::new(&frame.body).next().unwrap().unwrap();
        writer.session = SessionId::at(section.results().next().unwrap().0);
        writer
    }

    /// Asks until a node answers that leads. Any may be asked; one that does not lead refuses.
    fn answered(&mut self, out: &[u8]) -> Frame {
        wait_for(&format!("a leader of {} answers", self.partition), patience(), || {
            let frame = self.raw.ask(out);
            if frame.kind == Kind::Replies as u8 {
                return Some(frame);
            }
            let refusal = Refusal::decode(&frame.body).unwrap();
            assert!(
                matches!(refusal, Refusal::NotLeader { .. } | Refusal::Deposed { .. } | Refusal::Busy { .. }),
                "{refusal:?}"
            );
            self.at = (self.at + 1) % self.endpoints.len();
            self.raw = Raw::connect(self.endpoints[self.at], CLIENT);
            None
        })
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.number += 1;
        let mut pack = PackWriter::new(Vec::new(), self.session, self.number, false, 1 << 20);
        pack.push(self.number, Op::Put { key, value }).unwrap();
        let out = pack.finish(self.partition, 4).unwrap();
        self.answered(&out);
    }
}

fn status(endpoint: SocketAddr) -> Status {
    let mut out = BytesMut::new();
    encode_control(&mut out, Kind::Status, 9, &StatusGet { local: false });
    decode_control(&Raw::connect(endpoint, CLIENT).ask(&out).body, "status").unwrap()
}

#[test]
fn durable_writes_at_every_leader_outlive_the_whole_cluster() {
    let directory = Scratch::new("outlive");
    let options = LocalOptions { partitions: 4, ..LocalOptions::new(&directory.0) };
    let cluster = formed(&options);
    let endpoints = cluster.endpoints();
    let map = Raw::connect(endpoints[0], CLIENT).map().map.unwrap();
    assert_eq!(map.partitions.len(), 4);
    for entry in &map.partitions {
        let mut writer = Writer::open(&endpoints, entry.partition);
        for n in 0..50u32 {
            let key = [&entry.low[..], &n.to_be_bytes()].concat();
            writer.put(&key, b"value");
        }
    }
    drop(cluster);
    let cluster = formed(&options);
    let endpoints = cluster.endpoints();
    wait_until("all keys are there again", patience(), || {
        let status = status(endpoints[1]);
        let data = status.partitions.iter().filter(|partition| partition.id != PartitionId::DIRECTORY);
        status.tolerated_failures == 1 && data.map(|partition| partition.keys).sum::<u64>() == 200
    });
}

/// Whoever may write any key at all could fill the directory's log, and was never answered.
#[test]
fn what_is_meant_for_keys_is_refused_by_the_directory() {
    let directory = Scratch::new("no-keys");
    let cluster = formed(&LocalOptions::new(&directory.0));
    let mut raw = Raw::connect(cluster.endpoints()[0], CLIENT);
    let mut open = BytesMut::new();
    OpenRequest::encode(&mut open, 3, PartitionId::DIRECTORY, CLIENT, 1);
    let mut pack = PackWriter::new(Vec::new(), SessionId::default(), 1, false, 1 << 20);
    pack.push(1, Op::Put { key: b"key", value: b"value" }).unwrap();
    let pack = pack.finish(PartitionId::DIRECTORY, 4).unwrap();
    for frame in [&open[..], &pack[..]] {
        raw.send(frame);
        let answer = raw.frame_within(patience()).expect("an answer");
        let refusal = Refusal::decode(&answer.body).expect("a refusal");
        assert!(matches!(refusal, Refusal::WrongPartition { .. }), "{refusal:?}");
    }
}

#[cfg(feature = "mutants")]
#[test]
fn a_directory_that_logs_what_is_meant_for_keys_is_caught() {
    common::assert_caught("directory_takes_packs", "what_is_meant_for_keys_is_refused_by_the_directory");
}

#[test]
fn a_replica_behind_the_trimmed_log_gets_a_snapshot_and_the_same_state() {
    let directory = Scratch::new("behind");
    let mut options = LocalOptions::new(&directory.0);
    options.node.checkpoint.log_bytes = 64 << 10;
    options.settings = vec![("digest_interval".into(), "10".into())];
    let mut cluster = formed(&options);
    let endpoints = cluster.endpoints();
    let leader = leader(&cluster, PartitionId(1));
    let behind = leader.0 as usize % 3;
    let alive = (behind + 1) % 3;
    cluster.stop(behind);
    let mut writer = Writer::open(&[endpoints[leader.0 as usize - 1], endpoints[alive]], PartitionId(1));
    let value = vec![7; 8 << 10];
    let mut n = 0u32;
    wait_until("the log is trimmed", patience(), || {
        for _ in 0..20 {
            writer.put(&n.to_be_bytes(), &value);
            n += 1;
        }
        let status = status(endpoints[alive]);
        status.partitions.iter().any(|partition| partition.id == PartitionId(1) && partition.trimmed_upto > 20)
    });
    cluster.restart(behind).unwrap();
    wait_until("the replica that was behind has caught up", patience(), || {
        let status = status(endpoints[alive]);
        let partition = status.partitions.iter().find(|partition| partition.id == PartitionId(1)).unwrap();
        let caught_up = |replica: &ReplicaStatus| replica.up && replica.lag_instances == 0;
        status.tolerated_failures == 1 && partition.replicas.iter().all(caught_up)
    });
    for k in 0..40u32 {
        writer.put(&(n + k).to_be_bytes(), b"after");
    }
    wait_until("all replicas of p1 are compared", patience(), || {
        match admin(endpoints[alive], AdminRequest::CheckReplicas, ASK) {
            Ok(AdminReply::ReplicasChecked { partitions, missing }) => {
                partitions.iter().any(|(id, ..)| *id == PartitionId(1))
                    && !missing.iter().any(|(id, _)| *id == PartitionId(1))
            }
            Ok(AdminReply::Failed(AdminError::Mismatch(text))) => panic!("{text}"),
            // Nobody answers for the moment.
            Ok(_) | Err(_) => false,
        }
    });
}
