//! Decoders, their valid images as fields, and what is done with any bytes: see `fuzz.rs`.

pub mod clients;
pub mod damage;
pub mod disk;
pub mod peers;
pub mod plain;
pub mod resp;
pub mod shape;
mod whole_node;

use shape::Shape;

/// A decoder, its valid images, and what is done with any bytes; true: they were understood.
pub struct Target {
    pub name: &'static str,
    /// One in so many of the images that are asked for: what takes longer gets fewer.
    pub one_in: u64,
    /// Bytes that it may take for each byte of an image, besides what any takes.
    pub bytes_each: u64,
    pub corpus: fn() -> Vec<Shape>,
    pub run: fn(&[u8]) -> bool,
}

const fn target(name: &'static str, one_in: u64, corpus: fn() -> Vec<Shape>, run: fn(&[u8]) -> bool) -> Target {
    Target { name, one_in, bytes_each: 64, corpus, run }
}

pub const TARGETS: &[Target] = &[
    target("frames", 1, peers::frames, peers::run_frames),
    target("peer_messages", 1, peers::peer_messages, peers::run_peer_messages),
    target("multicast", 1, peers::multicast, peers::run_multicast),
    target("share", 2, peers::shares, peers::run_share),
    target("greetings", 2, peers::greetings, peers::run_greetings),
    target("questions", 1, peers::questions, peers::run_questions),
    target("node_answers", 1, peers::node_answers, peers::run_node_answers),
    target("requests", 1, clients::requests, clients::run_requests),
    target("batch_entries", 1, clients::batch_entries, clients::run_batch_entries),
    target("execution", 2, clients::batch_entries, clients::run_execution),
    target("answers", 1, clients::answers, clients::run_answers),
    target("resp", 1, resp::requests, resp::run),
    target("log_record", 1, disk::log_records, disk::run_log_record),
    target("segment_header", 4, disk::headers, disk::run_header),
    target("plain_files", 2, disk::plain_files, disk::run_plain_file),
    target("known_incarnations_file", 100, disk::known_incarnations_files, disk::run_known_incarnations_file),
    target("manifest", 4, disk::manifests, disk::run_manifest),
    target("snapshot_stream", 4, disk::snapshot_streams, disk::run_snapshot_stream),
    target("snapshot_state", 2, disk::snapshot_states, disk::run_snapshot_state),
];
