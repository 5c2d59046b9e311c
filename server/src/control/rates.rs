//! How fast the groups that run here decide, from samples of their counters. Pure.

use std::collections::BTreeMap;
use std::time::Instant;

use coppice_client::wire::PartitionId;
use coppice_core::checkpoint_due::Replays;
use coppice_core::worker::{Checkpoints, Group};

/// The counters of one group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub group: PartitionId,
    /// Commands decided so far.
    pub commands: u64,
    /// Instances decided so far.
    pub instances: u64,
    /// Bytes logged since its newest checkpoint.
    pub logged_bytes: u64,
    /// Bytes of the log that it needs beside that.
    pub older_bytes: u64,
    /// Bytes of its newest checkpoint.
    pub checkpoint: u64,
    /// See [`Group::replay`].
    pub replay: Option<(u64, u64)>,
}

impl Sample {
    /// Of this group, now.
    pub fn of(id: PartitionId, group: &Group) -> Sample {
        let status = group.status();
        let Checkpoints { logged_bytes, older_bytes, bytes: checkpoint, .. } = group.checkpoints;
        let (commands, instances) = (status.commands_decided, status.instances_decided);
        Sample { group: id, commands, instances, logged_bytes, older_bytes, checkpoint, replay: group.replay() }
    }
}

/// How fast a group decides, lately.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    at: Instant,
    newest: Sample,
    /// Commands per second.
    pub per_second: f64,
    /// Commands per batch.
    pub batch: f64,
}

/// The newest rates of the groups that run here.
#[derive(Clone, Debug, Default)]
pub(super) struct Rates {
    groups: BTreeMap<PartitionId, Rate>,
    /// Instances that were decided here when it was asked last.
    decided: u64,
}

impl Rates {
    /// Takes in samples of some groups.
    pub fn note(&mut self, now: Instant, samples: &[Sample]) {
        for &newest in samples {
            let Sample { group, commands, instances, .. } = newest;
            let mut rate = Rate { at: now, newest, per_second: 0.0, batch: 0.0 };
            if let Some(old) = self.groups.get(&group) {
                let seconds = now.duration_since(old.at).as_secs_f64().max(1e-3);
                let (commands, instances) = (
                    commands.saturating_sub(old.newest.commands) as f64,
                    instances.saturating_sub(old.newest.instances) as f64,
                );
                rate.per_second = commands / seconds;
                rate.batch = if instances > 0.0 { commands / instances } else { 0.0 };
            }
            self.groups.insert(group, rate);
        }
    }

    /// Forgets groups that run here no more; a sample of one may have been on its way when it ended.
    pub fn retain(&mut self, runs: impl Fn(PartitionId) -> bool) {
        self.groups.retain(|&group, _| runs(group));
    }

    /// That of one group.
    pub fn get(&self, group: PartitionId) -> Option<&Rate> {
        self.groups.get(&group)
    }

    /// Instances that all of them have decided.
    fn instances(&self) -> u64 {
        self.groups.values().map(|rate| rate.newest.instances).sum()
    }

    /// Whether nothing was decided here since this was asked last.
    pub fn rest(&mut self) -> bool {
        let decided = self.instances();
        std::mem::replace(&mut self.decided, decided) == decided
    }

    /// Bytes of the log that all of them need.
    pub fn log_needed(&self) -> u64 {
        self.groups.values().map(|rate| rate.newest.logged_bytes + rate.newest.older_bytes).sum()
    }

    /// What a start would replay now.
    pub fn replays(&self) -> Replays {
        let newest = self.groups.values().map(|rate| rate.newest);
        Replays::of(newest.map(|sample| (sample.group, sample.logged_bytes, sample.checkpoint)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Groups that a node gave up, by moves and merges, stayed for as long as it ran.
    #[test]
    fn groups_that_end_are_forgotten_and_the_others_keep_their_rates() {
        let (mut rates, start) = (Rates::default(), Instant::now());
        let sample = |group: u32, commands: u64| Sample {
            group: PartitionId(group),
            commands,
            instances: commands / 10,
            logged_bytes: 60,
            older_bytes: 40,
            checkpoint: 7,
            replay: None,
        };
        for group in 1..=1_000 {
            rates.note(start, &[sample(group, 100)]);
        }
        rates.retain(|group| group.0 <= 2);
        rates.note(start + Duration::from_secs(2), &[sample(1, 300), sample(2, 100)]);
        assert_eq!((rates.groups.len(), rates.log_needed(), rates.instances()), (2, 200, 40));
        let replays = Replays { bytes: 120, largest: Some(PartitionId(1)), checkpoints: 14 };
        assert_eq!(rates.replays(), replays);
        let one = rates.get(PartitionId(1)).expect("it runs");
        assert_eq!((one.per_second, one.batch), (100.0, 10.0));
        assert!(rates.get(PartitionId(3)).is_none());
    }
}
