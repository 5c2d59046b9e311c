//! What is next: of each move under way, and of what the nodes' states ask for.

use std::collections::{BTreeMap, BTreeSet};

use coppice_client::map::{Entry, NodeState, ReplicaInfo, Role};
use coppice_client::wire::{ChangeId, NodeId, PartitionId, ReplicaId};
use coppice_ordering::Configuration;

use super::surplus::{Surplus, surplus};
use super::{LeaderReport, Step, View, core_ids, load, placements};
use crate::machine::directory::{AbsorbedPartition, Change, DirectoryCommand, DirectoryState, Move, Reshape};
use crate::status::GroupReport;

/// Moves that the plan begins by itself run at most so many at a time: each sends a whole partition over the network.
const MOVES_MAX: usize = 2;

/// A learner that lacks at most so many instances, and holds the configuration that made it one, has caught up: it gets
/// the newest ones as voters do, so under load it is never quite there.
pub(super) const CAUGHT_UP_INSTANCES: u64 = 64;

/// The steps to take now. `replicas` is the cluster's setting; `tried` are groups whose leader was asked to hand over
/// and did not: their changes go on without.
pub fn steps(state: &DirectoryState, view: &View, replicas: usize, tried: &BTreeSet<PartitionId>) -> Vec<Step> {
    let mut steps = Vec::new();
    for node in &state.map.nodes {
        if node.state == NodeState::Joining {
            steps.push(Step::Assign { node: node.id });
        }
    }
    for (&id, change) in &state.changes {
        match change {
            Change::Move(change) => {
                steps.extend(next_of_move(state, view, id, change, tried.contains(&change.partition)))
            }
            // Its ticket is sent again until it is placed; the coordinator tells when it is released.
            Change::Split(_) | Change::Merge(_) => {}
        }
    }
    steps.extend(placements(state).filter_map(|(partition, _)| without_stray_learners(state, view, partition)));
    let gone = state.absorbed.iter().filter(|(partition, absorbed)| is_on_disk(state, view, **partition, absorbed));
    steps.extend(gone.map(|(&partition, _)| Step::Decide(DirectoryCommand::Reshape(Reshape::Gone { partition }))));
    transfer_leaders(state, view, &mut steps);
    begin_moves(state, view, replicas, tried, &mut steps);
    for node in state.map.nodes.iter().filter(|node| node.state == NodeState::Leaving) {
        if placements(state).all(|(_, nodes)| !nodes.contains(&node.id)) {
            steps.push(Step::Decide(DirectoryCommand::Reshape(Reshape::Removed { node: node.id })));
        }
    }
    steps
}

/// Whether all replicas that took the partition in have it on disk: until then they may have to take it in again, after
/// a restart, from the partition's replica beside them. Those on other nodes began with a snapshot that has it.
fn is_on_disk(state: &DirectoryState, view: &View, partition: PartitionId, absorbed: &AbsorbedPartition) -> bool {
    let (Some(ending), Some(target)) = (state.map.group(partition), state.map.entry(absorbed.target)) else {
        return true;
    };
    let mut beside = target.replicas.iter().filter(|info| ending.replica_on(info.node).is_some());
    let saved = |info: &ReplicaInfo| {
        let replica = view.node(info.node).and_then(|local| local.replicas.get(&absorbed.target));
        replica.is_some_and(|replica| replica.replica == info.replica && replica.saved >= absorbed.version)
    };
    state.change_of(partition).is_none() && beside.all(saved)
}

/// The next step of a move, if there is one to take now (protocol.md 1.5, 8).
fn next_of_move(state: &DirectoryState, view: &View, id: ChangeId, change: &Move, tried: bool) -> Option<Step> {
    let entry = state.map.entry(change.partition)?;
    let LeaderReport { leader, report } =
        view.led(change.partition).filter(|led| has_named(state, change.partition, led))?;
    let all: BTreeSet<ReplicaId> = entry.replicas.iter().map(|replica| replica.replica).collect();
    let added: BTreeSet<ReplicaId> = change.add.iter().copied().collect();
    let target: BTreeSet<ReplicaId> = all.iter().copied().filter(|id| !change.remove.contains(id)).collect();
    let before: BTreeSet<ReplicaId> = all.difference(&added).copied().collect();
    let voters: BTreeSet<ReplicaId> = report.voters.iter().copied().collect();
    let learners: BTreeSet<ReplicaId> = report.learners.iter().copied().collect();
    let decide = |command| Some(Step::Decide(DirectoryCommand::Reshape(command)));
    let configure = |voters: &BTreeSet<ReplicaId>, learners: &BTreeSet<ReplicaId>| {
        let configuration = Configuration {
            voters: core_ids(voters.iter().copied()),
            learners: core_ids(learners.iter().copied()),
            ..Configuration::default()
        };
        Some(Step::Configure { leader, partition: change.partition, expected: report.configured_at, configuration })
    };
    // A directory whose leader was deposed and does not know it may be whole moves behind its groups: what they say of
    // themselves fits no step of a move that it holds. Replicas that were removed must not be asked for again.
    if voters != before && voters != target && !mutant!(moves_of_another_time) {
        return None;
    }
    if voters == target && learners.is_empty() {
        // Only now may those that were removed forget: a quorum of the new ones holds all of it (hazards.md PX19).
        let held = report.held_upto >= report.configured_at;
        return if held { decide(Reshape::Moved { change: id }) } else { None };
    }
    // A node that goes gets nothing more, and may never come back to catch up.
    let onto_one_that_goes = || added.iter().filter_map(|&id| entry.node_of(id)).any(|node| goes(state, node));
    if !change.cancelled && onto_one_that_goes() && !mutant!(move_outlives_its_target) {
        return decide(Reshape::Cancel { change: id });
    }
    if change.cancelled {
        return if learners.is_empty() {
            decide(Reshape::Unmoved { change: id })
        } else {
            configure(&before, &BTreeSet::new())
        };
    }
    if voters == target && !mutant!(moves_of_another_time) {
        return configure(&target, &BTreeSet::new());
    }
    if !added.is_subset(&learners) {
        return configure(&voters, &added);
    }
    let held = |replica: &ReplicaId| report.durable.iter().find(|(id, _)| id == replica).map_or(0, |&(_, upto)| upto);
    let behind = |replica: &ReplicaId| held(replica) + CAUGHT_UP_INSTANCES < report.decided_upto;
    // In a young group one that is not even there lacks no more than that.
    let begun = |replica: &ReplicaId| held(replica) >= report.configured_at || mutant!(absent_learner_votes);
    if added.iter().any(|replica| behind(replica) || !begun(replica)) {
        return None;
    }
    if change.remove.iter().any(|&gone| entry.node_of(gone) == Some(leader)) && !tried {
        let stays = |entry: &Entry| {
            let staying = entry.replicas.iter().filter(|replica| replica.role == Role::Voter);
            let mut staying = staying.filter(|replica| target.contains(&replica.replica) && view.is_up(replica.node));
            staying.next().map(|replica| replica.node)
        };
        if let Some(to) = stays(entry) {
            return Some(Step::Transfer { leader, partition: change.partition, to });
        }
    }
    // Nodes may have been lost since the move was begun: it waits for them rather than leave a group without a quorum.
    if !keeps_quorum(view, entry, &target) && !mutant!(move_loses_a_quorum) {
        return None;
    }
    configure(&target, &BTreeSet::new())
}

/// Whether this directory has named all replicas of the group. Else another one leads meanwhile, and this one was
/// deposed and does not know it: a learner that it took for a stray would be removed for ever.
fn has_named(state: &DirectoryState, partition: PartitionId, led: &LeaderReport<'_>) -> bool {
    let used = state.replicas_used.get(&partition).copied().unwrap_or(0);
    let mut replicas = led.report.voters.iter().chain(&led.report.learners);
    replicas.all(|replica| replica.0 <= used) || mutant!(moves_of_another_time)
}

/// Removes learners that no move names: a configuration that was to add them came to the group's leader when the move
/// had been called off. Their leader would send to them for ever.
fn without_stray_learners(state: &DirectoryState, view: &View, partition: PartitionId) -> Option<Step> {
    let strays = |led: &LeaderReport<'_>| !led.report.learners.is_empty() && has_named(state, partition, led);
    let LeaderReport { leader, report } = view.led(partition).filter(strays)?;
    let entry = state.map.entry(partition).filter(|_| state.change_of(partition).is_none())?;
    let named: BTreeSet<ReplicaId> = entry.replicas.iter().map(|info| info.replica).collect();
    let voters: BTreeSet<ReplicaId> = report.voters.iter().copied().collect();
    // Else what is known of the group or of the directory is of another time.
    if voters != named {
        return None;
    }
    let configuration = Configuration { voters: core_ids(voters), ..Configuration::default() };
    Some(Step::Configure { leader, partition, expected: report.configured_at, configuration })
}

/// Whether a majority of these replicas of the group answers.
pub(super) fn keeps_quorum(view: &View, entry: &Entry, target: &BTreeSet<ReplicaId>) -> bool {
    let up = target.iter().filter(|&&id| entry.node_of(id).is_some_and(|node| view.is_up(node))).count();
    up > target.len() / 2
}

/// Whether a node is to hold nothing.
pub(super) fn goes(state: &DirectoryState, node: NodeId) -> bool {
    let state = state.map.node(node).map(|node| node.state);
    matches!(state, Some(NodeState::Draining | NodeState::Leaving))
}

/// Whether a replica durably holds nearly all that its group has decided.
pub(super) fn follows(report: &GroupReport, replica: ReplicaId) -> bool {
    let held = report.durable.iter().find(|(id, _)| *id == replica);
    held.is_some_and(|&(_, upto)| upto + CAUGHT_UP_INSTANCES >= report.decided_upto)
}

/// Nodes that are to hold nothing lead nothing, where another voter can.
fn transfer_leaders(state: &DirectoryState, view: &View, steps: &mut Vec<Step>) {
    let going = |node: NodeId| goes(state, node);
    let leads = leaderships(state, view);
    for entry in state.map.directory.iter().chain(&state.map.partitions) {
        let Some(led) = view.led(entry.partition).filter(|led| going(led.leader)) else { continue };
        if state.change_of(entry.partition).is_some() {
            continue;
        }
        let staying = |replica: &&coppice_client::map::ReplicaInfo| {
            replica.role == Role::Voter && !going(replica.node) && view.is_up(replica.node)
        };
        let to = entry.replicas.iter().filter(staying).min_by_key(|replica| leads.get(&replica.node).copied());
        if let Some(to) = to {
            steps.push(Step::Transfer { leader: led.leader, partition: entry.partition, to: to.node });
        }
    }
}

/// Begins the moves that the nodes' states and `replicas` ask for: away from nodes that go, onto those that came, and
/// off where a group has too many.
fn begin_moves(
    state: &DirectoryState,
    view: &View,
    replicas: usize,
    tried: &BTreeSet<PartitionId>,
    steps: &mut Vec<Step>,
) {
    let mut room = MOVES_MAX.saturating_sub(state.changes.len());
    let mut load = load(state);
    for (partition, nodes) in placements(state) {
        if room == 0 {
            return;
        }
        // Without its leader nothing can be changed; it may come back.
        if state.change_of(partition).is_some() || view.led(partition).is_none() {
            continue;
        }
        let to = match state.map.entry(partition).filter(|_| nodes.len() > replicas && !mutant!(surplus_stays)) {
            None => wanted(state, view, &nodes, replicas, &load),
            Some(entry) => match surplus(state, view, entry, &load, tried.contains(&partition)) {
                Some(Surplus::Remove(gone)) => Some(nodes.iter().copied().filter(|&node| node != gone).collect()),
                Some(Surplus::Transfer(to)) => {
                    let leader = view.led(partition).map_or(to, |led| led.leader);
                    steps.push(Step::Transfer { leader, partition, to });
                    None
                }
                None => None,
            },
        };
        let Some(to) = to else { continue };
        for &node in to.iter().filter(|node| !nodes.contains(node)) {
            *load.entry(node).or_default() += 1;
        }
        for gone in nodes.iter().filter(|node| !to.contains(node)) {
            load.entry(*gone).and_modify(|held| *held = held.saturating_sub(1));
        }
        // Every move raises the map's version, so the two name it for ever.
        let change = ChangeId(state.map.version.0 << 32 | u64::from(partition.0) | 1 << 63);
        let command = Reshape::Move { change, partition, to };
        steps.push(Step::Decide(DirectoryCommand::Reshape(command)));
        room -= 1;
    }
}

/// The nodes that a group on `nodes` should be on instead, if that is not where it is: one replica at a time.
fn wanted(
    state: &DirectoryState,
    view: &View,
    nodes: &[NodeId],
    replicas: usize,
    load: &BTreeMap<NodeId, usize>,
) -> Option<Vec<NodeId>> {
    let row = |node: NodeId| state.map.node(node);
    let going = |&node: &NodeId| row(node).is_none_or(|row| row.state != NodeState::Member);
    let free = |node: &NodeId| {
        let member = row(*node).is_some_and(|row| row.state == NodeState::Member);
        member && !nodes.contains(node) && view.node(*node).is_some_and(|local| !local.is_full())
    };
    let members = || state.map.nodes.iter().map(|row| row.id).filter(|node| free(node));
    let best = || members().min_by_key(|node| (load.get(node).copied().unwrap_or(0), *node));
    if let Some(&old) = nodes.iter().find(|node| going(node)) {
        let others = nodes.iter().copied().filter(|&node| node != old);
        let successor = state.successors.get(&old).copied();
        let new = match successor {
            // It will take over as soon as it has joined.
            Some(new) if row(new).is_some_and(|row| row.state == NodeState::Joining) => return None,
            Some(new) if free(&new) => Some(new),
            _ => best(),
        };
        return match new {
            Some(new) => Some(others.chain([new]).collect()),
            // Nowhere to go, and that was accepted.
            None if state.forced.contains(&old) && nodes.len() > 1 => Some(others.collect()),
            None => None,
        };
    }
    if nodes.len() < replicas
        && let Some(new) = best()
    {
        return Some(nodes.iter().copied().chain([new]).collect());
    }
    None
}

/// Partitions that each node leads. The directory does not count: it orders nothing that clients write.
fn leaderships(state: &DirectoryState, view: &View) -> BTreeMap<NodeId, usize> {
    let mut leads: BTreeMap<NodeId, usize> = state.map.nodes.iter().map(|node| (node.id, 0)).collect();
    for entry in &state.map.partitions {
        if let Some(led) = view.led(entry.partition) {
            *leads.entry(led.leader).or_default() += 1;
        }
    }
    leads
}
