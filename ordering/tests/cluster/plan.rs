//! What a seed draws: the shape of the group, its settings, and how much of each fault there is.

use std::time::Duration;

use coppice_ordering::{Reads, Settings};
pub use coppice_testkit::random::Random;

pub const MS: u64 = 1_000_000;

/// What a seed draws.
#[derive(Clone, Debug)]
pub struct Plan {
    pub voters: u32,
    pub settings: Settings,
    /// One way, in nanoseconds.
    pub delay_min: u64,
    pub delay_max: u64,
    pub flush_max: u64,
    /// Submissions in a burst, and nanoseconds between two bursts.
    pub burst: u64,
    pub burst_every: u64,
    pub loss: u64,
    pub duplication: u64,
    pub late: u64,
    pub crashes: u64,
    pub cuts: u64,
    pub pauses: u64,
    pub changes: u64,
    pub transfers: u64,
    pub checkpoints: u64,
    pub slow_executors: u64,
    pub rates: bool,
    pub duration: u64,
}

impl Plan {
    /// No faults: the default settings, 0.1 ms one way, flushes of up to 0.5 ms.
    pub fn calm(voters: u32) -> Plan {
        Plan {
            voters,
            settings: Settings::default(),
            delay_min: 100_000,
            delay_max: 110_000,
            flush_max: 500_000,
            burst: 6,
            burst_every: MS,
            duration: 1_000 * MS,
            rates: false,
            loss: 0,
            duplication: 0,
            late: 0,
            crashes: 0,
            cuts: 0,
            pauses: 0,
            changes: 0,
            transfers: 0,
            checkpoints: 0,
            slow_executors: 0,
        }
    }

    pub fn draw(random: &mut Random) -> Plan {
        let mut some = |percent: u64, max: u64| if random.percent(percent) { 1 + random.below(max) } else { 0 };
        let (loss, duplication, late) = (some(50, 30), some(50, 30), some(30, 10));
        let (crashes, cuts, changes, pauses) = (some(60, 12), some(50, 12), some(40, 8), some(50, 12));
        let (transfers, checkpoints, slow_executors) = (some(30, 8), some(50, 25), some(30, 60));
        let lease = random.percent(25);
        let settings = Settings {
            batch_bytes_max: 1 + random.below(40) as usize,
            batch_delay_max: Duration::from_micros(random.below(3_000)),
            batch_work_max: Settings::default().batch_work_max,
            eager_window: random.below(3) as u32,
            window: 1 + random.below(8) as u32,
            window_bytes_max: 16 + random.below(100) as usize,
            queue_bytes_max: 64 + random.below(200) as usize,
            queue_submissions_max: 1 + random.below(30) as usize,
            heartbeat_interval: Duration::from_millis(5),
            // Nobody tells of lost nodes here: they are found out an interval later.
            quiesce_heartbeat_interval: Duration::from_millis([0, 20][random.below(2) as usize]),
            election_timeout: Duration::from_millis(30),
            apply_lag_max: 1 + random.below(10),
            catch_up_bytes_max: 1 + random.below(60) as u32,
            retain_bytes_min: random.below(4_000) as usize,
            phase1b_bytes_max: random.below(60) as usize,
            accept_ahead_max: 1 + random.below(40),
            accept_ahead_bytes_max: 64 + random.below(400) as usize,
            retransmit_max: Duration::from_millis(10),
            retransmit_min: Duration::from_millis(1),
            announce_delay: Duration::from_micros(random.below(2_000)),
            reads: if lease { Reads::Lease } else { Reads::Quorum },
            lease_duration: Duration::from_millis(20),
            clock_rate_bound_percent: 20,
        };
        Plan {
            voters: [1, 3, 3, 3, 3, 5, 5][random.below(7) as usize],
            settings,
            delay_min: 20_000,
            delay_max: 100_000 + random.below(6 * MS),
            flush_max: 50_000 + random.below(4 * MS),
            burst: 6,
            burst_every: 3 * MS,
            loss,
            duplication,
            late,
            crashes,
            cuts,
            pauses,
            changes,
            transfers,
            checkpoints,
            slow_executors,
            rates: lease && random.percent(60),
            duration: 250 * MS + random.below(400 * MS),
        }
    }
}
