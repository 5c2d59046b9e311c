//! The limits and intervals of one group, with units and reasons. All may change while the group runs.

use std::time::Duration;

/// How leadership is confirmed for a read (protocol.md 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reads {
    /// By a quorum each time: no clock in the safety argument.
    Quorum,
    /// By a lease: as safe as `clock_rate_bound_percent` is true.
    Lease,
}

/// Limits and intervals. [`Settings::default`] are the fixed values of `operations.md` 3.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// A batch closes when one more submission would exceed this many bytes; a larger submission goes alone.
    pub batch_bytes_max: usize,
    /// A batch waits at most so long after its first command, while the window has room.
    pub batch_delay_max: Duration,
    /// While fewer than this many instances are undecided a batch is proposed at once. 1: only an idle leader does so
    /// (protocol.md 9). 0: every batch waits until it is full or due, the paper's fixed policy (papers.md A4).
    pub eager_window: u32,
    /// At most so many instances are undecided, 1 to 512.
    pub window: u32,
    /// At most so many bytes are undecided; a larger batch goes alone.
    pub window_bytes_max: usize,
    /// Submissions that wait in the batcher, in bytes. Full: `Busy`.
    pub queue_bytes_max: usize,
    /// Submissions that wait in the batcher. Full: `Busy`.
    pub queue_submissions_max: usize,
    /// Time between two heartbeats of a leader.
    pub heartbeat_interval: Duration,
    /// A leader whose group has nothing to do sends heartbeats this seldom, if that is longer than
    /// `heartbeat_interval`, and whoever drives the group tells of lost nodes ([`crate::step::Input::Lost`]). Zero: it
    /// never does.
    pub quiesce_heartbeat_interval: Duration,
    /// A leader not heard for one to two of these is lost; so is, to itself, one that heard no quorum for one.
    pub election_timeout: Duration,
    /// Decided instances that are not executed; beyond, the proposer waits (papers.md A11).
    pub apply_lag_max: u64,
    /// Work in one batch, in units of whoever submits, or that of a single submission: executing it is one step.
    pub batch_work_max: u64,
    /// Payload of one `CatchUpReply`, in bytes.
    pub catch_up_bytes_max: u32,
    /// Decided batches that stay in memory for replicas that are behind, in bytes with what surrounds them; half of
    /// what a snapshot takes, if that is more. Whoever is further behind gets a snapshot.
    pub retain_bytes_min: usize,
    /// Payload of already decided batches in one `Phase1b`, in bytes. Undecided ones come on top, bounded by
    /// `accept_ahead_max`.
    pub phase1b_bytes_max: usize,
    /// An acceptor ignores instances further ahead of what it has decided than this; they come again or by catch-up.
    pub accept_ahead_max: u64,
    /// The same in bytes of payload.
    pub accept_ahead_bytes_max: usize,
    /// First retransmission before a round trip was measured. None waits longer than `election_timeout`.
    pub retransmit_max: Duration,
    /// No retransmission before this, however short the measured round trip.
    pub retransmit_min: Duration,
    /// A decision or a watermark that no other message carried goes out alone after this.
    pub announce_delay: Duration,
    /// How reads are confirmed.
    pub reads: Reads,
    /// Length of a lease; below `election_timeout`.
    pub lease_duration: Duration,
    /// The clocks of two replicas run apart by at most this much.
    pub clock_rate_bound_percent: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            // 64 KiB: the knee of the batch curve on 2 cores; above it latency grows with no gain in throughput.
            batch_bytes_max: 64 << 10,
            batch_delay_max: Duration::from_millis(5),
            batch_work_max: 32_768,
            eager_window: 1,
            window: 16,
            window_bytes_max: 1 << 20,
            // Four windows: enough to refill the window, little enough that a queued command is young.
            queue_bytes_max: 4 << 20,
            queue_submissions_max: 8_192,
            heartbeat_interval: Duration::from_millis(50),
            quiesce_heartbeat_interval: Duration::ZERO,
            election_timeout: Duration::from_millis(300),
            apply_lag_max: 128,
            catch_up_bytes_max: 1 << 20,
            // A replica that was away for a second at 16 MiB/s.
            retain_bytes_min: 16 << 20,
            phase1b_bytes_max: 1 << 20,
            // Twice the largest window: a live leader is never further ahead of a replica that keeps up.
            accept_ahead_max: 1_024,
            accept_ahead_bytes_max: 16 << 20,
            retransmit_max: Duration::from_millis(200),
            retransmit_min: Duration::from_millis(10),
            announce_delay: Duration::from_millis(1),
            reads: Reads::Quorum,
            lease_duration: Duration::from_millis(200),
            clock_rate_bound_percent: 10,
        }
    }
}

/// An acceptor tells of votes at most this far above what it has decided: no setting lets it accept further ahead
/// ([`Settings::accept_ahead_max`]). Bounds what a candidate allocates for the values that it finds.
pub(crate) const ACCEPT_AHEAD_MAX: u64 = 1 << 16;

/// Payload of the largest batch, in bytes: one submission may be larger than a batch should be, and a node takes none
/// above 4 MiB. Half of what one record of a log holds.
pub const BATCH_BYTES_MAX: usize = 8 << 20;

/// Largest `quiesce_heartbeat_interval`: no follower waits longer for a heartbeat, whatever a leader says.
pub const QUIESCE_MAX: Duration = Duration::from_secs(10);

/// Largest `window_bytes_max`: an acceptor may hold twice that undecided, and tells a candidate all of it in one
/// `Phase1b`.
pub const WINDOW_BYTES_MAX: usize = 16 << 20;

/// Largest `window`.
pub const WINDOW_MAX: u32 = 512;

impl Settings {
    /// The same with every value inside its bounds: nothing is refused, the nearest sound value is taken.
    pub fn clamped(mut self) -> Settings {
        self.window = self.window.clamp(1, WINDOW_MAX);
        self.eager_window = self.eager_window.min(self.window);
        self.batch_bytes_max = self.batch_bytes_max.clamp(1, BATCH_BYTES_MAX);
        self.window_bytes_max = self.window_bytes_max.clamp(1, WINDOW_BYTES_MAX);
        self.queue_bytes_max = self.queue_bytes_max.max(1);
        self.queue_submissions_max = self.queue_submissions_max.max(1);
        self.apply_lag_max = self.apply_lag_max.max(1);
        self.catch_up_bytes_max = self.catch_up_bytes_max.max(1);
        self.accept_ahead_max = self.accept_ahead_max.clamp(2 * u64::from(self.window), ACCEPT_AHEAD_MAX);
        self.accept_ahead_bytes_max =
            self.accept_ahead_bytes_max.clamp(2 * self.window_bytes_max, 2 * WINDOW_BYTES_MAX);
        self.phase1b_bytes_max = self.phase1b_bytes_max.min(WINDOW_BYTES_MAX / 4);
        self.heartbeat_interval = self.heartbeat_interval.max(Duration::from_micros(100));
        self.election_timeout = self.election_timeout.max(2 * self.heartbeat_interval);
        self.quiesce_heartbeat_interval = self.quiesce_heartbeat_interval.min(QUIESCE_MAX);
        self.lease_duration = self.lease_duration.min(self.election_timeout);
        self.retransmit_min = self.retransmit_min.max(Duration::from_micros(100));
        self.retransmit_max = self.retransmit_max.max(self.retransmit_min);
        self
    }

    /// The lease a leader asks for: zero without leases.
    pub(crate) fn lease_wanted(&self) -> Duration {
        match self.reads {
            Reads::Quorum => Duration::ZERO,
            Reads::Lease => self.lease_duration,
        }
    }
}
