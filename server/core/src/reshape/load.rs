//! How much the partitions are asked for: smoothed rates from the counters of their leaders.
//!
//! Pure. A rate is known once a partition was watched for long enough within its boundaries. Of what is not known
//! nothing is concluded. Reads that followers answer are not counted.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use coppice_client::map::Entry;
use coppice_client::wire::{NodeId, PartitionId};
use coppice_ordering::Time;

use super::View;
use crate::machine::directory::DirectoryState;

/// Rates of shorter times than this say more about packs and batches than about load.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// By what the cluster is balanced, split and merged, beside its settings: times, and the load that counts.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Between two looks at a cluster where nothing is under way.
    pub look: Duration,
    /// A rate is known after this, and forgets what was so long ago.
    pub watch: Duration,
    /// Between two changes that the cluster begins by itself.
    pub between: Duration,
    /// A partition whose leader or replica has moved by itself stays where it is for so long.
    pub settle: Duration,
    /// Neighbours are merged once both were small and cold for so long.
    pub merge_after: Duration,
    /// Operations per second below which nobody notices where a partition is.
    pub operations_least: f64,
}

impl Default for Pace {
    /// A rate that is known after 10 s has seen several surveys, and the figures of a transfer have settled before the
    /// next one is judged. A thread executes some 100,000 operations per second.
    fn default() -> Pace {
        Pace {
            look: Duration::from_secs(2),
            watch: Duration::from_secs(10),
            between: Duration::from_secs(10),
            settle: Duration::from_secs(120),
            merge_after: Duration::from_secs(600),
            operations_least: 100.0,
        }
    }
}

/// What is known of a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Operations per second: commands, and reads that its leader was asked for.
    pub operations: f64,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// Since when it was asked for next to nothing.
    pub cold_since: Option<Time>,
}

#[derive(Clone, Debug)]
struct Watch {
    low: Bytes,
    high: Option<Bytes>,
    /// The newest sample: when, whose, and the counter.
    sampled: (Time, NodeId, u64),
    /// How long the samples saw it.
    watched: Duration,
    load: Load,
}

/// The loads of all partitions.
#[derive(Clone, Debug, Default)]
pub struct Loads(BTreeMap<PartitionId, Watch>);

impl Loads {
    /// Takes in what the nodes say at this moment.
    pub fn note(&mut self, now: Time, state: &DirectoryState, view: &View, pace: &Pace) {
        self.0.retain(|&id, watch| state.map.entry(id).is_some_and(|entry| watch.is_of(entry)));
        for entry in &state.map.partitions {
            let Some(led) = view.led(entry.partition) else { continue };
            let Some(local) = view.node(led.leader).and_then(|local| local.replicas.get(&entry.partition)) else {
                continue;
            };
            let watch = self.0.entry(entry.partition).or_insert_with(|| Watch {
                low: entry.low.clone(),
                high: entry.high.clone(),
                sampled: (now, led.leader, local.operations),
                watched: Duration::ZERO,
                load: Load::default(),
            });
            watch.load.bytes = local.bytes;
            watch.sample(now, led.leader, local.operations, pace);
        }
    }

    /// The load of a partition, if it is known.
    pub fn get(&self, partition: PartitionId, pace: &Pace) -> Option<Load> {
        let watch = self.0.get(&partition)?;
        (watch.watched >= pace.watch || mutant!(unknown_load_is_zero)).then_some(watch.load)
    }
}

impl Watch {
    fn is_of(&self, entry: &Entry) -> bool {
        self.low == entry.low && self.high == entry.high
    }

    fn sample(&mut self, now: Time, leader: NodeId, operations: u64, pace: &Pace) {
        let (at, whose, before) = self.sampled;
        // Another process counts from its own beginning.
        let Some(more) = operations.checked_sub(before).filter(|_| whose == leader) else {
            self.sampled = (now, leader, operations);
            return;
        };
        let passed = now.since(at);
        if passed < SAMPLE_INTERVAL.min(pace.watch / 4) {
            return;
        }
        let rate = more as f64 / passed.as_secs_f64();
        // Of samples that lie half a watch apart, each counts as much as all before it.
        let part = match self.watched.is_zero() {
            true => 1.0,
            false => passed.as_secs_f64() / (passed + pace.watch / 2).as_secs_f64(),
        };
        self.load.operations += (rate - self.load.operations) * part;
        self.watched += passed;
        self.sampled = (now, leader, operations);
        let cold = self.load.operations < pace.operations_least;
        self.load.cold_since = if cold { self.load.cold_since.or(Some(now)) } else { None };
    }
}
