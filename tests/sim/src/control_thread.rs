//! A node's controller beside what it has yet to hear and what it waits for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use coppice_client::wire::{NodeId, PartitionId};
use coppice_core::controller::{Controller, FetchId, Input, VerbId};
use coppice_core::machine::directory::DirectoryCommand;
use coppice_ordering::{Ballot, Time};

use super::plan::{Balance, Nanos, Plan};
use super::store::SavedSnapshot;

/// A node's controller, and what is on its way to it and from it.
pub struct ControlThread {
    pub controller: Controller,
    /// Whether the workers may send what their replicas say.
    pub may_speak: bool,
    /// What it is yet to be told, and whether it is at it.
    pub inputs: VecDeque<Input>,
    pub is_stepping: bool,
    /// When the last thing arrives that each of the node's threads told it.
    pub reported: BTreeMap<usize, Nanos>,
    /// The earliest tick that is on its way.
    pub tick_at: Option<Nanos>,
    /// Snapshots of other nodes that have come, until the controller says whether they are wanted.
    pub offers: BTreeMap<FetchId, (PartitionId, SavedSnapshot)>,
    /// Fetches that have yet to end.
    pub fetches: BTreeSet<FetchId>,
    /// What the directory was asked for, by the streams of its answers.
    pub deciding: BTreeMap<u32, DirectoryCommand>,
    /// The nodes that it reached when a transfer of each group was asked for last.
    pub reached: BTreeMap<PartitionId, Vec<NodeId>>,
    /// It is to stop.
    pub stop: Option<Stop>,
    /// Groups whose checkpoints go, one after the other.
    pub deleting: BTreeSet<PartitionId>,
    /// The newest request of an operator.
    pub newest_verb: VerbId,
    /// Leaders as the node knows them.
    pub leaders: BTreeMap<PartitionId, NodeId>,
    /// When it last moved leader or replica of a partition by itself, while it leads the directory.
    pub moved: BTreeMap<(String, &'static str), u64>,
}

impl ControlThread {
    /// Of a process that has just begun.
    pub fn new(plan: &Plan) -> ControlThread {
        let mut controller = Controller::new(plan.server.workers as usize);
        if plan.balance.is_on() {
            controller.set_pace(Balance::PACE);
        }
        ControlThread {
            controller,
            may_speak: true,
            inputs: VecDeque::new(),
            is_stepping: false,
            reported: BTreeMap::new(),
            tick_at: None,
            offers: BTreeMap::new(),
            fetches: BTreeSet::new(),
            deciding: BTreeMap::new(),
            reached: BTreeMap::new(),
            stop: None,
            deleting: BTreeSet::new(),
            newest_verb: 0,
            leaders: BTreeMap::new(),
            moved: BTreeMap::new(),
        }
    }
}

/// A node that is to stop, as somebody asked.
pub struct Stop {
    /// How long it is down then.
    pub down: Nanos,
    /// It goes on for so long at most, by its own clock.
    pub until: Time,
    /// What it led when it was asked and others could lead, each in this ballot.
    pub led: Vec<(PartitionId, Ballot)>,
}
