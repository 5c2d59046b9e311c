//! How batching and pipelining of the groups are tuned: the answer to `coppice tuning` (protocol.md 9).

use serde::{Deserialize, Serialize};

use super::{NodeId, PartitionId};

/// How the groups of a cluster are tuned, as their leaders know it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TuningReport {
    /// Whether what is advised is put in force.
    pub on: bool,
    /// Groups whose leaders answered, ascending, the directory's too.
    pub groups: Vec<GroupTuning>,
    /// Nodes that did not answer: groups that they lead are missing.
    pub silent: Vec<NodeId>,
}

/// One group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupTuning {
    pub partition: PartitionId,
    /// Who leads it and says this.
    pub leader: NodeId,
    /// What it runs with.
    pub in_force: BatchAndWindow,
    /// What was measured and what follows; none: it has not done enough yet to tell anything.
    pub account: Option<TuningAccount>,
}

/// The settings that tuning chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchAndWindow {
    /// Bytes at which a batch closes.
    pub batch_bytes_max: u64,
    /// Instances that may be undecided.
    pub window: u32,
    /// Bytes that may be undecided.
    pub window_bytes_max: u64,
}

/// What the leader's model makes of what it measured (papers.md A17).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuningAccount {
    /// What the model advises, within the limits that the cluster's settings leave.
    pub advised: BatchAndWindow,
    /// Commands in a batch of that size.
    pub advised_batch_commands: f64,
    /// Of what batches without bound would reach, such batches reach this share, 0 to 1.
    pub advised_share: f64,
    /// Bytes of a command in a batch.
    pub command_bytes: f64,
    /// Time of the leader's thread for a batch, however small, in milliseconds.
    pub batch_cpu_ms: f64,
    /// And for each of its commands.
    pub command_cpu_ms: f64,
    /// There and back to the quickest quorum, without a flush, in milliseconds.
    pub round_trip_ms: f64,
    /// A flush of the log in milliseconds; 0: none was needed.
    pub flush_ms: f64,
    /// Batches that shared a flush, on average.
    pub batches_per_flush: f64,
    /// What the way to a quorum takes, in bytes per millisecond; none: it never was what everything waited for.
    pub link_bytes_per_ms: Option<f64>,
    /// Commands in a batch in the last interval that had enough of them.
    pub batch_commands: f64,
    /// Commands per second that such batches come to at most, in the window that is in force.
    pub predicted_throughput: f64,
    /// Commands per second in the last interval.
    pub measured_throughput: f64,
    /// Undecided instances that the measured throughput should take, on average.
    pub predicted_window: f64,
    /// Undecided instances in the last interval, on average.
    pub measured_window: f64,
    /// What would be busy all the time at the predicted throughput.
    pub bottleneck: Bottleneck,
}

/// What limits a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Bottleneck {
    /// The leader's thread.
    Cpu,
    /// The way to a quorum.
    Network,
    /// The log's device.
    Disk,
}

#[cfg(test)]
mod tests {
    use super::super::control::{decode_control, encode_control};
    use super::*;
    use crate::wire::{AdminReply, FrameDecoder, Kind};

    #[test]
    fn a_report_arrives_as_it_was_sent() {
        let account = TuningAccount {
            advised: BatchAndWindow { batch_bytes_max: 16_384, window: 2, window_bytes_max: 262_144 },
            advised_batch_commands: 900.0,
            advised_share: 0.98,
            command_bytes: 17.5,
            batch_cpu_ms: 0.06,
            command_cpu_ms: 0.004,
            round_trip_ms: 0.125,
            flush_ms: 0.25,
            batches_per_flush: 1.5,
            link_bytes_per_ms: None,
            batch_commands: 120.0,
            predicted_throughput: 200_000.0,
            measured_throughput: 90_000.0,
            predicted_window: 1.25,
            measured_window: 1.5,
            bottleneck: Bottleneck::Cpu,
        };
        let in_force = BatchAndWindow { batch_bytes_max: 65_536, window: 16, window_bytes_max: 1 << 20 };
        let group = |partition, account| GroupTuning { partition, leader: NodeId(3), in_force, account };
        let groups = vec![group(PartitionId(1), Some(account)), group(PartitionId(2), None)];
        let report = TuningReport { on: true, groups, silent: vec![NodeId(2)] };
        let reply = AdminReply::Tuning(report);
        let mut frame = bytes::BytesMut::new();
        encode_control(&mut frame, Kind::AdminReply, 1, &reply);
        let mut decoder = FrameDecoder::new(crate::wire::FRAME_BYTES_MAX);
        decoder.feed(&frame);
        let frame = decoder.next_frame().expect("a frame").expect("whole");
        assert_eq!(decode_control::<AdminReply>(&frame.body, "admin reply"), Ok(reply));
    }
}
