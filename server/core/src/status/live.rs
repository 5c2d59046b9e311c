//! What the page shows beyond the status: the last minutes of each node, sample by sample, and how its groups run.

use std::collections::BTreeMap;

use coppice_client::wire::{GroupTuning, NodeId, PartitionId, Status, TuningReport};
use serde::{Deserialize, Serialize};

use super::{LocalStatus, Remedy};

/// Samples that a node keeps of itself: ten minutes.
pub const SAMPLES_MAX: usize = 600;

/// A second of a node, or about that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// How long it was, in milliseconds.
    pub span_ms: u32,
    /// Commands that were decided where it leads.
    pub writes: u32,
    /// Reads that it answered.
    pub reads: u32,
    /// Requests that it refused or failed.
    pub failed: u32,
    /// How many of its requests took up to 32 us, 64 us, and so on by powers of 2. Zeros at the end are left out.
    pub latencies: Vec<u32>,
    /// Flush of the log, in microseconds; 0: there was none.
    pub flush_us_p99: u32,
    /// How long replies waited for a ticket, in microseconds; 0: none did.
    pub hold_us_p99: u32,
    /// Replies that waited at its end.
    pub held: u32,
    /// Tickets that it coordinated at its end.
    pub tickets_in_flight: u32,
    /// Queries with a ticket that ended.
    pub queries: u32,
    /// Commands that were executed early and undone.
    pub undone: u32,
    /// Resident memory at its end.
    pub memory_bytes: u64,
    /// Bytes of the log at its end.
    pub log_bytes: u64,
}

/// The newest samples of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Samples {
    /// Number of the last one; the first of a process is 1.
    pub newest: u64,
    /// How long ago it ended, in milliseconds.
    pub age_ms: u32,
    /// Ascending.
    pub samples: Vec<Sample>,
}

/// How one replica runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupLive {
    /// Undecided instances that its leader allows itself.
    pub window_limit: u32,
    /// Instances executed and not decided.
    pub speculative_instances: u64,
    /// Times that executed batches were undone, and their commands, since the process began.
    pub rollbacks: (u64, u64),
    /// Changes of leader that it has seen, since the process began.
    pub leader_changes: u64,
}

/// What a node tells another one for the page.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LiveReport {
    pub status: LocalStatus,
    /// Of the groups that it leads.
    pub tunings: Vec<GroupTuning>,
    pub groups: BTreeMap<PartitionId, GroupLive>,
    pub samples: Samples,
}

impl LiveReport {
    /// Of a node that can tell its status alone, since the cluster's feature level is lower.
    pub fn of_status(status: LocalStatus) -> LiveReport {
        LiveReport { status, ..LiveReport::default() }
    }
}

/// One node on the page.
#[derive(Clone, Debug, Default)]
pub struct NodeLive {
    /// Where it serves HTTP; empty: nowhere.
    pub admin: String,
    /// How its replicas run.
    pub groups: BTreeMap<PartitionId, GroupLive>,
    /// Those that were not known yet.
    pub samples: Samples,
}

/// The cluster on the page.
#[derive(Clone, Debug, Default)]
pub struct ClusterLive {
    pub status: Status,
    /// What is wrong, and what mends it.
    pub remedies: Vec<Remedy>,
    pub tuning: TuningReport,
    /// Every node of the map.
    pub nodes: BTreeMap<NodeId, NodeLive>,
}
