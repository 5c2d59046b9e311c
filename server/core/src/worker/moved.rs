//! What follows from moved boundaries on one node: a sealed partition's state goes to its neighbour's replica beside
//! it, and what was taken in is to become durable (protocol.md 8).

use coppice_client::wire::PartitionId;

use super::{Effect, Message, Report, Worker};
use crate::machine::shard::Inheritance;
use crate::machine::{Machine, Mark};
use crate::replica::Input;

impl Worker {
    /// A batch of `id` that moved boundaries is decided.
    pub(super) fn on_moved(&mut self, id: PartitionId, mark: Mark) {
        if Machine::seals(&mark) {
            self.leave(id);
        }
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.borders.joined(Machine::joins(&mark));
        let (me, led) = (group.me, group.replica.is_leading());
        if !Machine::forks(&mark).is_empty() {
            group.checkpoints.splits.executed += 1;
            self.effects.push(Effect::Controller(Report::Forked { group: id, me, led, mark }));
        }
    }

    /// A replica here needs the state of `partition`: the replica beside it is asked. It may not be sealed yet, or not
    /// run yet; whoever waits asks again.
    pub(super) fn ask_to_hand_on(&mut self, partition: PartitionId) {
        let owner = self.owner(partition);
        match owner == self.index {
            true => self.hand_on(partition),
            false if mutant!(neighbours_end_at_worker) => {}
            false => self.effects.push(Effect::Worker(owner, Message::HandOn(partition))),
        }
    }

    /// If the partition is sealed, and that is decided, its neighbour gets its state.
    pub(super) fn hand_on(&mut self, id: PartitionId) {
        let Some(group) = self.groups.get(&id) else { return };
        if group.replica.executor().decided_view().shard().is_some_and(|shard| shard.sealed().is_some()) {
            self.leave(id);
        }
    }

    fn leave(&mut self, id: PartitionId) {
        let Some(group) = self.groups.get(&id) else { return };
        let Some(left) = group.replica.executor().machine().shard().and_then(|shard| shard.inheritance()) else {
            return;
        };
        failpoint!("shard.leaves");
        let owner = self.owner(left.seal.heir);
        match owner == self.index {
            true => self.take_in(left),
            false if mutant!(neighbours_end_at_worker) => {}
            false => self.effects.push(Effect::Worker(owner, Message::TakeIn(Box::new(left)))),
        }
    }

    pub(super) fn take_in(&mut self, left: Inheritance) {
        self.step_group(left.seal.heir, Input::Inherit(Box::new(left)));
        failpoint!("shard.inherits");
    }
}
