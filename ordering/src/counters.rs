//! What a group counts about itself: plain numbers that only grow, read by the metrics (papers.md A12).

/// Counters of one replica of one group since it started.
///
/// The six metrics of *Tuning Paxos* come from differences: requests/s from `commands_decided`, instances/s from
/// `instances_decided`, the average batch from their quotient, the average window from `window_instance_ns` per elapsed
/// nanosecond, instance latency from `instance_latency_ns` per `instance_latency_samples`. Client latency is the
/// server's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Instances decided here in own ballots.
    pub instances_decided: u64,
    /// Commands in them.
    pub commands_decided: u64,
    /// Payload bytes in them.
    pub bytes_decided: u64,
    /// Batches closed because they were full.
    pub batches_closed_full: u64,
    /// Batches closed because nothing was in flight (or `eager_window` was not reached).
    pub batches_closed_idle: u64,
    /// Batches closed because they were due.
    pub batches_closed_due: u64,
    /// Undecided instances integrated over time, in instance nanoseconds.
    pub window_instance_ns: u64,
    /// Sum of the times from proposing an instance to its decision, in nanoseconds.
    pub instance_latency_ns: u64,
    /// Instances in that sum.
    pub instance_latency_samples: u64,
    /// Submissions refused because the queue was full.
    pub submissions_refused: u64,
    /// `Phase2a` sent again.
    pub retransmissions: u64,
    /// Candidacies: rounds taken.
    pub rounds_taken: u64,
    /// Pre-votes asked.
    pub pre_votes: u64,
    /// Phase 1 completed as a candidate or under a new configuration.
    pub phases1_completed: u64,
    /// Leaderships that began to serve.
    pub leaderships: u64,
    /// Leaderships ended because no quorum was heard.
    pub resignations: u64,
    /// Heartbeat rounds begun.
    pub heartbeat_rounds: u64,
    /// Tokens or positions confirmed by a heartbeat round, a decision, or a lease.
    pub confirmations: u64,
    /// `CatchUp` sent.
    pub catch_ups: u64,
    /// Batches learned by catch-up or Phase 1.
    pub batches_learned: u64,
    /// Snapshots asked for.
    pub snapshots_needed: u64,
    /// Phase2a ignored because they were too far ahead.
    pub accepts_ahead_ignored: u64,
    /// Messages refused because no replica that works says what they say. More than none: somebody else speaks.
    pub messages_refused: u64,
}

/// No part of a hash: an exhaustive search takes replicas for one that only counted differently (hazards.md 7).
impl std::hash::Hash for Counters {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}
