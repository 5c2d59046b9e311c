//! What an operator's verb comes to here and now: done, under way, to be begun, or refused with the reason.

use std::collections::BTreeSet;

use coppice_client::map::{NodeInfo, NodeState};
use coppice_client::wire::control::AdminError;
use coppice_client::wire::{AdminReply, ChangeId, NodeId, PartitionId, ReshapeRequest, Reshaped, Shape};

use super::plan::keeps_quorum;
use super::{View, placements};
use crate::machine::directory::{
    Change, ChangeOutcome, DirectoryCommand, DirectoryReply, DirectoryState, Move, Reshape,
};
use crate::status::replicas;

/// What a request comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was begun before: so far it is.
    Progress(Reshaped),
    /// It is to be begun by this command.
    Begin {
        /// For the directory.
        command: Box<DirectoryCommand>,
        /// What will be done.
        plan: Reshaped,
    },
    /// The partition is to be cut at its median, which this node, its leader, knows.
    Median { partition: PartitionId, leader: NodeId },
    /// The process at this address is to become a node.
    Enlist {
        /// Its peer port.
        address: String,
        /// The node that it replaces.
        replaces: Option<NodeId>,
        /// What will be done.
        plan: Reshaped,
    },
}

/// Judges a request. `replicas` is the cluster's setting.
///
/// # Errors
/// Why it cannot or must not be done; nothing was changed.
pub fn verdict(
    state: &DirectoryState,
    view: &View,
    replicas: usize,
    request: &ReshapeRequest,
) -> Result<Verdict, AdminError> {
    let judge = Judge { state, view, replicas, request };
    let verdict = judge.shape()?;
    if !matches!(verdict, Verdict::Progress(_)) {
        needs_directory(state, view)?;
    }
    Ok(verdict)
}

/// An error if the directory can decide nothing: whoever lost its quorum a moment ago still takes itself for the
/// leader.
///
/// # Errors
/// How many of its voters answer.
pub fn needs_directory(state: &DirectoryState, view: &View) -> Result<(), AdminError> {
    let (up, all) = view.voters_up(state, PartitionId::DIRECTORY);
    match up > all / 2 {
        true => Ok(()),
        false => unavailable(format!("the directory has no quorum: {up} of its {all} voters answer")),
    }
}

/// What an operator hears once the directory has decided what a request begins; an error: nobody knows whether it will.
pub fn begun(decided: Result<DirectoryReply, String>, plan: Reshaped) -> AdminReply {
    match decided {
        Ok(DirectoryReply::Refused(reason)) => AdminReply::Failed(AdminError::Refused(reason.to_string())),
        Ok(DirectoryReply::Registered(node)) => AdminReply::Reshaped(Reshaped { node: Some(node), ..plan }),
        Ok(_) => AdminReply::Reshaped(plan),
        Err(text) => AdminReply::Failed(AdminError::TimedOut(text)),
    }
}

pub(super) struct Judge<'a> {
    pub(super) state: &'a DirectoryState,
    pub(super) view: &'a View,
    pub(super) replicas: usize,
    pub(super) request: &'a ReshapeRequest,
}

pub(super) fn refused<T>(text: String) -> Result<T, AdminError> {
    Err(AdminError::Refused(text))
}

/// Somebody who is needed does not answer.
pub(super) fn unavailable<T>(text: String) -> Result<T, AdminError> {
    Err(AdminError::Unavailable(text))
}

/// The name belongs to a change of something else.
pub(super) fn another<T>(change: ChangeId) -> Result<T, AdminError> {
    refused(format!("change {change} was begun by another command: repeat the words that began it"))
}

/// `host:port`.
fn check_address(address: &str) -> Result<(), AdminError> {
    let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
    match port {
        Some(Ok(1..)) => Ok(()),
        _ => Err(AdminError::Invalid(format!("`{address}` is no address: give `host:port`"))),
    }
}

pub(super) fn decide(command: Reshape, plan: Reshaped) -> Result<Verdict, AdminError> {
    Ok(Verdict::Begin { command: Box::new(DirectoryCommand::Reshape(command)), plan })
}

impl Judge<'_> {
    fn shape(&self) -> Result<Verdict, AdminError> {
        match &self.request.shape {
            Shape::AddNode { address } => self.add(address),
            Shape::DrainNode { node } => self.drain(*node),
            Shape::UndrainNode { node } => self.undrain(*node),
            Shape::RemoveNode { node } => self.remove(*node),
            Shape::ReplaceNode { old, address } => self.replace(*old, address),
            Shape::Move { partition, from, to } => self.relocate(*partition, from, to),
            Shape::Split { partition, at } => self.split(*partition, at.as_deref()),
            Shape::Merge { partition, into } => self.merge(*partition, *into),
            Shape::SetReplicas { count } => self.set_replicas(*count),
            // What is planned by, the controller watches.
            Shape::Rebalance => refused("rebalance is not judged by the map alone".into()),
        }
    }

    pub(super) fn reshaped(&self, done: bool, left: usize, steps: Vec<String>) -> Reshaped {
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        let map_version = self.state.map.version;
        Reshaped { done, begun: false, steps, left, partition: None, node: None, cut: None, map_version }
    }

    /// Progress of a change that an earlier request began.
    pub(super) fn so_far(&self, done: bool, left: usize, step: String) -> Reshaped {
        Reshaped { begun: true, ..self.reshaped(done, left, vec![step]) }
    }

    fn progress(&self, done: bool, left: usize, step: String) -> Result<Verdict, AdminError> {
        Ok(Verdict::Progress(self.so_far(done, left, step)))
    }

    fn known(&self, node: NodeId) -> Result<&NodeInfo, AdminError> {
        let row = self.state.map.node(node);
        row.ok_or_else(|| AdminError::NotFound(format!("there is no node {node}")))
    }

    /// Groups that have a replica on the node.
    fn held_by(&self, node: NodeId) -> Vec<PartitionId> {
        let held = placements(self.state).filter(|(_, nodes)| nodes.contains(&node));
        held.map(|(partition, _)| partition).collect()
    }

    fn led_by(&self, node: NodeId) -> Vec<PartitionId> {
        let led = |partition: &PartitionId| self.view.led(*partition).is_some_and(|led| led.leader == node);
        placements(self.state).map(|(partition, _)| partition).filter(led).collect()
    }

    fn add(&self, address: &str) -> Result<Verdict, AdminError> {
        let listens = |row: &&NodeInfo| row.addresses.peer == address && row.state != NodeState::Removed;
        let row = self.state.map.nodes.iter().find(listens);
        let done = |row: &NodeInfo, done: bool, text: String| {
            Ok(Verdict::Progress(Reshaped { node: Some(row.id), ..self.so_far(done, usize::from(!done), text) }))
        };
        match row {
            Some(row) if row.state == NodeState::Joining => {
                done(row, false, format!("{} is told that it belongs to this cluster", row.id))
            }
            Some(row) if self.view.is_up(row.id) => done(row, true, format!("{} is a node of this cluster", row.id)),
            Some(row) => refused(format!(
                "{} is registered at {address} and does not answer; if its data is lost: coppice node replace {} {address}",
                row.id, row.id
            )),
            None => {
                check_address(address)?;
                let step =
                    format!("{address} becomes a node; partitions with fewer than `replicas` copies get one there");
                Ok(Verdict::Enlist {
                    address: address.to_owned(),
                    replaces: None,
                    plan: self.reshaped(false, 1, vec![step]),
                })
            }
        }
    }

    fn replace(&self, old: NodeId, address: &str) -> Result<Verdict, AdminError> {
        let row = self.known(old)?;
        let left = self.held_by(old).len();
        match (row.state, self.state.successors.get(&old)) {
            (NodeState::Removed, _) => {
                let listens = |row: &&NodeInfo| row.addresses.peer == address && row.state == NodeState::Member;
                match self.state.map.nodes.iter().find(listens) {
                    Some(new) => self.progress(true, 0, format!("{} has taken the place of {old}", new.id)),
                    None => refused(format!("{old} was removed before")),
                }
            }
            (_, Some(new)) => self.progress(false, left.max(1), format!("{} still to move to {new}", replicas(left))),
            (NodeState::Leaving, None) => refused(format!("{old} is being removed already")),
            _ => {
                check_address(address)?;
                self.quorums_without(old, |_| true)?;
                let steps = vec![
                    format!("{address} becomes a node"),
                    format!("it gets {left} replicas under new ids, as learners first: {}", list(&self.held_by(old))),
                    format!("{old} is removed"),
                ];
                let plan = self.reshaped(false, left.max(1), steps);
                Ok(Verdict::Enlist { address: address.to_owned(), replaces: Some(old), plan })
            }
        }
    }

    /// Every group on the node can agree on a change, now and afterwards: those that answer are a majority of its
    /// voters, and of the nodes that will hold it. `rebuilt`: whether another node takes the replica over.
    fn quorums_without(&self, node: NodeId, rebuilt: impl Fn(&[NodeId]) -> bool) -> Result<(), AdminError> {
        for (partition, nodes) in placements(self.state).filter(|(_, nodes)| nodes.contains(&node)) {
            let (up, all) = self.view.voters_up(self.state, partition);
            if up <= all / 2 {
                return unavailable(format!(
                    "{partition} has no quorum: {up} of its {all} voters answer, so it cannot decide to change them"
                ));
            }
            let others = nodes.iter().filter(|&&other| other != node);
            let new = usize::from(rebuilt(&nodes));
            let (up, all) =
                others.fold((new, new), |(up, all), &other| (up + usize::from(self.view.is_up(other)), all + 1));
            if all > 0 && up <= all / 2 && !mutant!(removal_loses_a_quorum) {
                return unavailable(format!(
                    "{partition} would lose its quorum: only {up} of the {all} nodes that would hold it answer"
                ));
            }
        }
        Ok(())
    }

    /// Whether a replica of a group that is on `nodes` is rebuilt on some node when one of these goes: the group has no
    /// more than it should, and there is a node that can take it.
    fn has_place(&self, nodes: &[NodeId]) -> bool {
        let on = nodes.iter().copied().collect();
        nodes.len() <= self.replicas && self.state.map.nodes.iter().any(|row| self.is_free(row, &on))
    }

    /// Every replica of the node has somewhere else to go, or may be given up.
    fn places_without(&self, node: NodeId) -> Result<Vec<String>, AdminError> {
        let mut steps = Vec::new();
        for (partition, nodes) in placements(self.state).filter(|(_, nodes)| nodes.contains(&node)) {
            if self.has_place(&nodes) {
                steps.push(format!("a replica of {partition} is rebuilt on another node, then that of {node} goes"));
            } else if nodes.len() > self.replicas || (self.request.force && nodes.len() > 1) {
                steps.push(format!("{partition} keeps {} replicas", nodes.len() - 1));
            } else if nodes.len() == 1 {
                return refused(format!("{node} holds the last replica of {partition}, and no other node can take it"));
            } else {
                return refused(format!(
                    "{partition} needs {} replicas and no other node can take that of {node}: add a node first, or accept \
                     to survive fewer failures with --force",
                    self.replicas
                ));
            }
        }
        Ok(steps)
    }

    fn drain(&self, node: NodeId) -> Result<Verdict, AdminError> {
        let (held, led) = (self.held_by(node), self.led_by(node));
        match self.known(node)?.state {
            NodeState::Draining if held.is_empty() => self.progress(true, 0, format!("{node} holds nothing")),
            NodeState::Draining => self.progress(false, held.len(), moving(&held)),
            NodeState::Member => {
                self.quorums_without(node, |nodes| self.has_place(nodes))?;
                let mut steps = self.places_without(node)?;
                if !led.is_empty() {
                    steps.insert(0, format!("{node} transfers its leaderships: {}", list(&led)));
                }
                let force = self.request.force;
                let plan = self.reshaped(false, held.len(), steps);
                decide(Reshape::SetState { node, state: NodeState::Draining, force }, plan)
            }
            _ => refused(format!("{node} is joining, being removed, or was")),
        }
    }

    fn undrain(&self, node: NodeId) -> Result<Verdict, AdminError> {
        match self.known(node)?.state {
            NodeState::Member => self.progress(true, 0, format!("{node} may hold replicas")),
            NodeState::Draining => {
                let plan = self.reshaped(false, 0, vec![format!("{node} may hold replicas again")]);
                decide(Reshape::SetState { node, state: NodeState::Member, force: false }, plan)
            }
            _ => refused(format!("{node} is joining, being removed, or was")),
        }
    }

    fn remove(&self, node: NodeId) -> Result<Verdict, AdminError> {
        let held = self.held_by(node);
        match self.known(node)?.state {
            NodeState::Removed => self.progress(true, 0, format!("{node} is removed from this cluster")),
            NodeState::Leaving => self.progress(false, held.len().max(1), moving(&held)),
            NodeState::Joining => self.begin_removal(node, vec![format!("{node} is removed before it joined")]),
            NodeState::Member | NodeState::Draining => {
                let members = |row: &&NodeInfo| row.state == NodeState::Member && row.id != node;
                if !self.state.map.nodes.iter().any(|row| members(&row)) {
                    return refused(format!("{node} is the last node that may hold replicas"));
                }
                self.quorums_without(node, |nodes| self.has_place(nodes))?;
                let mut steps = self.places_without(node)?;
                steps.push(format!("{node} is removed; its number is never used again"));
                self.begin_removal(node, steps)
            }
        }
    }

    fn begin_removal(&self, node: NodeId, steps: Vec<String>) -> Result<Verdict, AdminError> {
        let plan = self.reshaped(false, self.held_by(node).len().max(1), steps);
        decide(Reshape::SetState { node, state: NodeState::Leaving, force: self.request.force }, plan)
    }

    fn relocate(&self, partition: PartitionId, from: &[NodeId], to: &[NodeId]) -> Result<Verdict, AdminError> {
        let change = self.request.change;
        match self.state.changes.get(&change) {
            Some(Change::Move(under_way)) if under_way.partition == partition => {
                return Ok(Verdict::Progress(self.moving(under_way)));
            }
            Some(_) => return another(change),
            None => {}
        }
        match self.state.ended(change) {
            // An ended move keeps only its outcome; accept the retry if the outcome is a move's.
            Some(ChangeOutcome::Done) => {
                let now = self.nodes_of(partition);
                let gone =
                    if from.is_empty() { now.len() == to.len() } else { from.iter().all(|id| !now.contains(id)) };
                if !gone || !to.iter().all(|id| now.contains(id)) {
                    return another(change);
                }
                return self.progress(true, 0, format!("{partition} is on {}", self.place(partition)));
            }
            Some(ChangeOutcome::Made(_)) => return another(change),
            Some(ChangeOutcome::Cancelled) => return refused(format!("the move of {partition} was called off")),
            None => {}
        }
        let Some(entry) = self.state.map.entry(partition) else {
            return Err(AdminError::NotFound(format!("there is no partition {partition}")));
        };
        if let Some((other, _)) = self.state.change_of(partition) {
            return refused(format!(
                "{partition} is being changed already, by change {other}: ask again when it is done"
            ));
        }
        let now: BTreeSet<NodeId> = entry.replicas.iter().map(|replica| replica.node).collect();
        let target: BTreeSet<NodeId> = if from.is_empty() {
            to.iter().copied().collect()
        } else {
            if let Some(stranger) = from.iter().find(|node| !now.contains(node)) {
                return Err(AdminError::Invalid(format!("{stranger} has no replica of {partition}")));
            }
            now.iter().copied().filter(|node| !from.contains(node)).chain(to.iter().copied()).collect()
        };
        self.check_target(partition, &now, &target)?;
        let mut steps = Vec::new();
        for node in target.difference(&now) {
            steps.push(format!(
                "{node} gets a replica of {partition}: a learner that catches up by a snapshot, then votes"
            ));
        }
        for node in now.difference(&target) {
            steps.push(format!(
                "the replica of {partition} on {node} goes, when a quorum of the others holds everything"
            ));
        }
        let left = target.symmetric_difference(&now).count();
        let plan = Reshaped { partition: Some(partition), ..self.reshaped(left == 0, left, steps) };
        if left == 0 {
            let steps = vec![format!("{partition} is on {} already", self.place(partition))];
            return Ok(Verdict::Progress(Reshaped { partition: Some(partition), ..self.reshaped(true, 0, steps) }));
        }
        decide(Reshape::Move { change, partition, to: target.into_iter().collect() }, plan)
    }

    fn check_target(
        &self,
        partition: PartitionId,
        now: &BTreeSet<NodeId>,
        target: &BTreeSet<NodeId>,
    ) -> Result<(), AdminError> {
        if target.is_empty() {
            return refused(format!("{partition} would have no replica left: its data would be lost"));
        }
        // A node that does not exist is what is wrong, whatever else is.
        for &node in target.difference(now) {
            self.known(node)?;
        }
        if target.len() > self.replicas.max(now.len()) {
            return refused(format!(
                "{partition} would have {} and give one up at once, for `replicas` is {}: give it as many nodes, or set \
                 `replicas` first",
                replicas(target.len()),
                self.replicas
            ));
        }
        let fewer = target.len() < self.replicas.min(now.len());
        if let Some(back) = self.state.map.nodes.iter().find(|row| fewer && self.is_free(row, target)) {
            return refused(format!(
                "{partition} would have {} and get another at once, on {} perhaps, for `replicas` is {}: give it as many \
                 nodes, or set `replicas` first",
                replicas(target.len()),
                back.id,
                self.replicas
            ));
        }
        if fewer && !self.request.force {
            return refused(format!(
                "{partition} would have {} instead of {}, and survive fewer failures: give it as many nodes, set \
                 `replicas`, or accept it with --force",
                replicas(target.len()),
                now.len()
            ));
        }
        for &node in target.difference(now) {
            if self.known(node)?.state != NodeState::Member {
                return refused(format!("{node} takes no replicas: it is joining, drained or removed"));
            }
            match self.view.node(node) {
                None => return unavailable(format!("{node} does not answer: a replica there would not count")),
                Some(local) => {
                    if let Some(why) = &local.full {
                        return refused(format!("{node} is full: {why}"));
                    }
                }
            }
        }
        self.needs_quorum(partition)?;
        let up = target.iter().filter(|&&node| self.view.is_up(node)).count();
        if up <= target.len() / 2 {
            return unavailable(format!(
                "{partition} would lose its quorum: only {up} of these {} nodes answer",
                target.len()
            ));
        }
        Ok(())
    }

    /// An error if too few voters of the partition answer to decide anything.
    pub(super) fn needs_quorum(&self, partition: PartitionId) -> Result<(), AdminError> {
        let (up, all) = self.view.voters_up(self.state, partition);
        match up > all / 2 {
            true => Ok(()),
            false => unavailable(format!("{partition} has no quorum: {up} of its {all} voters answer")),
        }
    }

    /// Whether a group that is on `nodes` may be given a replica on this one.
    fn is_free(&self, row: &NodeInfo, nodes: &BTreeSet<NodeId>) -> bool {
        let takes = self.view.node(row.id).is_some_and(|local| !local.is_full());
        row.state == NodeState::Member && !nodes.contains(&row.id) && takes
    }

    /// Whether a move is not carried out since its group would have no quorum afterwards.
    fn waits(&self, change: &Move) -> bool {
        let Some(entry) = self.state.map.entry(change.partition) else { return false };
        let all = entry.replicas.iter().map(|info| info.replica);
        !keeps_quorum(self.view, entry, &all.filter(|id| !change.remove.contains(id)).collect())
    }

    fn moving(&self, change: &Move) -> Reshaped {
        let partition = change.partition;
        let left = change.add.len() + change.remove.len();
        let text = match self.view.led(partition) {
            None => format!("{partition} has no leader that answers"),
            Some(led) => {
                let learning = |id: &&coppice_client::wire::ReplicaId| led.report.learners.contains(id);
                let behind = change.add.iter().filter(learning).map(|id| {
                    let durable = led.report.durable.iter().find(|(known, _)| known == id);
                    led.report.decided_upto.saturating_sub(durable.map_or(0, |&(_, upto)| upto))
                });
                match behind.max() {
                    Some(0) | None if self.waits(change) => {
                        format!("{partition} waits: too few of the nodes that would hold it answer")
                    }
                    Some(0) | None => format!("{partition} changes its voters"),
                    Some(behind) => format!("a new replica of {partition} lacks {behind} instances"),
                }
            }
        };
        Reshaped { partition: Some(partition), ..self.so_far(false, left, text) }
    }

    pub(super) fn nodes_of(&self, partition: PartitionId) -> BTreeSet<NodeId> {
        let entry = self.state.map.entry(partition);
        entry.map(|entry| entry.replicas.iter().map(|info| info.node).collect()).unwrap_or_default()
    }

    pub(super) fn place(&self, partition: PartitionId) -> String {
        let entry = self.state.map.entry(partition);
        let nodes: Vec<String> =
            entry.map(|entry| entry.replicas.iter().map(|info| info.node.to_string()).collect()).unwrap_or_default();
        nodes.join(" ")
    }
}

fn moving(held: &[PartitionId]) -> String {
    match held.len() {
        0 => "nothing is left on it".into(),
        count => format!("{} still to be moved: {}", replicas(count), list(held)),
    }
}

fn list(partitions: &[PartitionId]) -> String {
    if partitions.is_empty() {
        return "none".into();
    }
    let names: Vec<String> = partitions.iter().map(PartitionId::to_string).collect();
    names.join(" ")
}
