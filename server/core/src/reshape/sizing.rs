//! Partitions that are too large or too hot, and neighbours that are small and cold: what the cluster splits and merges
//! by itself.
//!
//! Pure. A partition is merged only if it lies far below what splits one, and has for a long time within the boundaries
//! that it has: so what was split is not merged soon, and what was merged is not split.

use std::collections::BTreeSet;

use coppice_client::map::Entry;
use coppice_client::wire::{NodeId, PartitionId};

use super::balance::{Situation, about};
use crate::settings::AutoSplit;
use crate::settings::units::MIB;

/// Of the bytes that split a partition, two neighbours that are merged have at most this part together.
const MERGE_PART: u64 = 4;

/// The same where no size splits.
const MERGE_BYTES: u64 = 64 * MIB;

/// A partition is too hot from so many times the load on that nobody would notice.
const HOT: f64 = 10.0;

/// It is too hot with more than this part of what a node leads on average: then leaders cannot be spread evenly.
const HOT_PART: f64 = 0.5;

/// `load` splits until there are so many partitions per node.
const PARTITIONS_PER_NODE: usize = 8;

/// A change of boundaries that the cluster begins by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizing {
    /// The partition is cut, where half of its keys, or of its newest writes, lie on either side.
    Split { partition: PartitionId, by_load: bool },
    /// The partition moves beside the neighbour that will take it in.
    Join { partition: PartitionId, to: Vec<NodeId> },
    /// A neighbour takes it in.
    Merge { partition: PartitionId, into: PartitionId },
}

/// The next split, and why. Partitions that are `held` cannot be cut.
pub fn split(situation: &Situation<'_>, when: AutoSplit, held: &BTreeSet<PartitionId>) -> Option<(Sizing, String)> {
    let free = |entry: &&Entry| situation.is_at_rest(entry) && !held.contains(&entry.partition);
    let loads = situation.state.map.partitions.iter().filter(free);
    let loads = loads.filter_map(|entry| Some((entry.partition, situation.load(entry.partition)?)));
    match when {
        AutoSplit::Off => None,
        AutoSplit::Size(most) => {
            let (partition, load) = loads.filter(|(_, load)| load.bytes > most).max_by_key(|(_, load)| load.bytes)?;
            let reason = format!("it has {}, more than auto_split allows ({})", about(load.bytes), about(most));
            Some((Sizing::Split { partition, by_load: false }, reason))
        }
        AutoSplit::Load => {
            let (members, partitions) = (situation.members().len(), situation.state.map.partitions.len());
            if !situation.unknown().is_empty() || partitions >= members * PARTITIONS_PER_NODE {
                return None;
            }
            let all = situation.state.map.partitions.iter().filter_map(|entry| situation.load(entry.partition));
            let each = all.map(|load| load.operations).sum::<f64>() / members.max(1) as f64;
            let hot = (each * HOT_PART).max(situation.pace.operations_least * HOT);
            let loads = loads.filter(|(_, load)| load.operations > hot);
            let (partition, load) = loads.max_by(|(_, one), (_, other)| one.operations.total_cmp(&other.operations))?;
            let reason = format!("it has {:.0} op/s, of {each:.0} for each node", load.operations);
            Some((Sizing::Split { partition, by_load: true }, reason))
        }
    }
}

/// The next merge, or the move that comes before it, and why.
pub fn merge(situation: &Situation<'_>, when: AutoSplit) -> Option<(Sizing, String)> {
    let entries = &situation.state.map.partitions;
    // Each node has something to lead.
    if entries.len() <= situation.members().len() || !situation.state.absorbed.is_empty() {
        return None;
    }
    let most = if let AutoSplit::Size(most) = when { most / MERGE_PART } else { MERGE_BYTES };
    let cold = |entry: &Entry| {
        let load = situation.load(entry.partition).filter(|_| situation.is_at_rest(entry))?;
        let cold_for = if mutant!(merge_without_patience) { Default::default() } else { situation.pace.merge_after };
        let cold = load.cold_since.is_some_and(|since| situation.now.since(since) >= cold_for);
        (cold || mutant!(hot_is_merged)).then_some(load.bytes)
    };
    for pair in entries.windows(2) {
        let [low, high] = pair else { continue };
        let Some(bytes) = cold(low).zip(cold(high)).map(|(low, high)| low + high).filter(|bytes| *bytes <= most) else {
            continue;
        };
        let nodes = |entry: &Entry| entry.replicas.iter().map(|info| info.node).collect::<BTreeSet<NodeId>>();
        let (partition, into) = (high.partition, low.partition);
        let reason = format!("{into} and {partition} have {} together, and are cold", about(bytes));
        return Some(match nodes(low) == nodes(high) {
            true => (Sizing::Merge { partition, into }, reason),
            false => (Sizing::Join { partition, to: nodes(low).into_iter().collect() }, reason),
        });
    }
    None
}
