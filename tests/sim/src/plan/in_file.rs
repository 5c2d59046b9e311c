//! Settings of groups, as files of plans hold them.

use std::time::Duration;

use coppice_ordering::{Reads, Settings};
use serde::{Deserialize, Serialize};

/// What schedules of before it was a setting run with.
fn batch_work_max() -> u64 {
    Settings::default().batch_work_max
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Settings")]
pub(super) struct SettingsInFile {
    pub(crate) batch_bytes_max: usize,
    pub(crate) batch_delay_max: Duration,
    #[serde(default = "batch_work_max")]
    pub(crate) batch_work_max: u64,
    pub(crate) eager_window: u32,
    pub(crate) window: u32,
    pub(crate) window_bytes_max: usize,
    pub(crate) queue_bytes_max: usize,
    pub(crate) queue_submissions_max: usize,
    pub(crate) heartbeat_interval: Duration,
    #[serde(default)]
    pub(crate) quiesce_heartbeat_interval: Duration,
    pub(crate) election_timeout: Duration,
    pub(crate) apply_lag_max: u64,
    pub(crate) catch_up_bytes_max: u32,
    pub(crate) retain_bytes_min: usize,
    pub(crate) phase1b_bytes_max: usize,
    pub(crate) accept_ahead_max: u64,
    pub(crate) accept_ahead_bytes_max: usize,
    pub(crate) retransmit_max: Duration,
    pub(crate) retransmit_min: Duration,
    pub(crate) announce_delay: Duration,
    #[serde(with = "ReadsInFile")]
    pub(crate) reads: Reads,
    pub(crate) lease_duration: Duration,
    pub(crate) clock_rate_bound_percent: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Reads")]
enum ReadsInFile {
    Quorum,
    Lease,
}
