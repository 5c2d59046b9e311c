//! What a replica measures of its own batches, for the metrics and tuning (papers.md A12).

use std::collections::VecDeque;
use std::time::Duration;

use coppice_ordering::{Batch, Instance, Time};

use super::Replica;

/// A batch that this replica proposed, for the metrics (papers.md A12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProposedBatch {
    pub instance: Instance,
    /// Payload.
    pub bytes: u64,
    /// Commands in it.
    pub commands: u64,
    at: Time,
}

/// An instance that this replica proposed, and that is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecidedBatch {
    pub instance: Instance,
    /// When it was proposed, and executed here.
    pub proposed: Time,
    /// When this replica learned that it is decided.
    pub decided: Time,
}

impl DecidedBatch {
    /// From proposing to deciding.
    pub fn took(&self) -> Duration {
        self.decided.since(self.proposed)
    }
}

/// What became known of batches since it was last asked for.
#[derive(Debug, Default)]
pub struct Samples {
    /// Batches proposed.
    pub proposed: Vec<ProposedBatch>,
    /// Batches decided.
    pub decided: Vec<DecidedBatch>,
    /// Times that outputs waited for the release of a ticket.
    pub gate_waits: Vec<Duration>,
}

/// Samples kept for a driver that is slow to ask for them.
const SAMPLES_MAX: usize = 1_024;

/// Takes the samples.
#[derive(Debug, Default)]
pub(super) struct Sampler {
    /// The batch accepted last: instance, bytes, commands.
    newest: (Instance, u64, u64),
    /// Proposed and not decided, ascending.
    undecided: VecDeque<ProposedBatch>,
    samples: Samples,
}

impl Sampler {
    pub(super) fn accepted(&mut self, instance: Instance, batch: &Batch) {
        self.newest = (instance, batch.len_bytes() as u64, u64::from(batch.count()));
    }

    /// `Proposed` follows the `Accepted` of its instance.
    pub(super) fn proposed(&mut self, instance: Instance, now: Time) {
        let (accepted, bytes, commands) = self.newest;
        if accepted != instance || self.samples.proposed.len() >= SAMPLES_MAX {
            return;
        }
        let proposed = ProposedBatch { instance, bytes, commands, at: now };
        self.samples.proposed.push(proposed);
        self.undecided.push_back(proposed);
    }

    pub(super) fn decided(&mut self, upto: Instance, now: Time) {
        while let Some(proposed) = self.undecided.pop_front_if(|proposed| proposed.instance <= upto) {
            if self.samples.decided.len() < SAMPLES_MAX {
                let ProposedBatch { instance, at, .. } = proposed;
                self.samples.decided.push(DecidedBatch { instance, proposed: at, decided: now });
            }
        }
    }

    /// An output has waited for the release of a ticket.
    pub(super) fn released_after(&mut self, wait: Duration) {
        if !wait.is_zero() && self.samples.gate_waits.len() < SAMPLES_MAX {
            self.samples.gate_waits.push(wait);
        }
    }

    /// Others decide from now on: what was proposed is theirs.
    pub(super) fn follow(&mut self) {
        self.undecided.clear();
    }
}

impl Replica {
    /// Hands over the samples taken since the last call; a driver that never calls gets no more than a window of them.
    pub fn take_samples(&mut self, samples: &mut Samples) {
        samples.proposed.clear();
        samples.decided.clear();
        samples.gate_waits.clear();
        std::mem::swap(&mut self.samples.samples, samples);
    }
}
