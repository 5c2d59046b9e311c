//! What a replica measures of its own batches, for the metrics and the autopilot (papers.md A12).

use std::time::Duration;

use coppice_ordering::{Instance, Time};

use super::Replica;

/// A batch that this replica proposed, for the metrics (papers.md A12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProposedBatch {
    /// Where.
    pub instance: Instance,
    /// Payload.
    pub bytes: u64,
    /// Commands in it.
    pub commands: u64,
    /// When.
    at: Time,
}

/// An instance that this replica proposed, and that is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecidedBatch {
    /// Where.
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
pub(super) const SAMPLES_MAX: usize = 1_024;

impl Replica {
    /// Hands over the samples taken since the last call; a driver that never calls gets no more than a window of them.
    pub fn take_samples(&mut self, samples: &mut Samples) {
        samples.proposed.clear();
        samples.decided.clear();
        samples.gate_waits.clear();
        std::mem::swap(&mut self.samples, samples);
    }

    /// `Proposed` follows the `Accepted` of its instance.
    pub(super) fn note_proposed(&mut self, instance: Instance) {
        let (accepted, bytes, commands) = self.newest;
        if accepted != instance || self.samples.proposed.len() >= SAMPLES_MAX {
            return;
        }
        let proposed = ProposedBatch { instance, bytes, commands, at: self.now };
        self.samples.proposed.push(proposed);
        self.undecided.push_back(proposed);
    }

    pub(super) fn note_decided(&mut self, upto: Instance) {
        while self.undecided.front().is_some_and(|proposed| proposed.instance <= upto) {
            let Some(proposed) = self.undecided.pop_front() else { return };
            if self.samples.decided.len() < SAMPLES_MAX {
                let ProposedBatch { instance, at, .. } = proposed;
                self.samples.decided.push(DecidedBatch { instance, proposed: at, decided: self.now });
            }
        }
    }
}
