//! Which replica goes where a group has more than `replicas`.

use std::collections::BTreeMap;

use coppice_client::map::{Entry, ReplicaInfo};
use coppice_client::wire::{NodeId, PartitionId};

use super::plan::{follows, goes};
use super::{LeaderReport, View};
use crate::machine::directory::DirectoryState;

/// What a group with too many replicas does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Surplus {
    /// It gives up the replica on this node.
    Remove(NodeId),
    /// Its leader transfers its leadership to this node: then the replica that goes is no leader's.
    Transfer(NodeId),
}

/// What to do about a group that has more replicas than it should. The replicas that help least go first: those on
/// nodes that go anyway, on nodes that do not answer, or that lag; among equals one on the node that holds most. The
/// leader's never goes. Where it should, for its node goes or holds more than the others, it hands over first;
/// `tried`: it was asked to, and did not.
pub(super) fn surplus(
    state: &DirectoryState,
    view: &View,
    entry: &Entry,
    load: &BTreeMap<NodeId, usize>,
    tried: bool,
) -> Option<Surplus> {
    let led = view.led(entry.partition)?;
    let held = |node: NodeId| load.get(&node).copied().unwrap_or(0);
    let is_well = |info: &ReplicaInfo, led: &LeaderReport<'_>| {
        (view.is_up(info.node) && follows(led.report, info.replica)) || mutant!(surplus_ignores_health)
    };
    let others = || entry.replicas.iter().filter(|info| info.node != led.leader || mutant!(surplus_takes_the_leader));
    let usefulness = |info: &&ReplicaInfo| (!goes(state, info.node), is_well(info, &led));
    let least = others().min_by_key(|info| (usefulness(info), usize::MAX - held(info.node), u32::MAX - info.node.0))?;
    // A healthy one goes: is it the leader's that should?
    let leader_goes = goes(state, led.leader);
    let leader_holds_more = held(led.leader) > held(least.node) + 1 && entry.partition != PartitionId::DIRECTORY;
    if tried || !matches!(usefulness(&least), (true, true)) || !(leader_goes || leader_holds_more) {
        return Some(Surplus::Remove(least.node));
    }
    let heirs = others().filter(|info| matches!(usefulness(info), (true, true)));
    heirs.min_by_key(|info| (held(info.node), info.node)).map(|info| Surplus::Transfer(info.node))
}
