//! What follows from moved boundaries on one node: a sealed partition's state goes to its neighbour's replica beside
//! it, and what was taken in is to become durable (protocol.md 8).

use coppice_client::wire::PartitionId;

use super::{Effect, Message, Report, Worker};
use crate::machine::partition::AbsorbedState;
use crate::machine::{Machine, Mark};
use crate::replica::Input;

impl Worker {
    /// A batch of `id` that moved boundaries is decided.
    pub(super) fn on_moved(&mut self, id: PartitionId, mark: Mark) {
        if Machine::seals(&mark) {
            self.send_sealed(id);
        }
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.boundaries.joined(Machine::joins(&mark));
        let (me, led) = (group.me, group.replica.is_leading());
        if !Machine::forks(&mark).is_empty() {
            group.checkpoints.splits.executed += 1;
            self.effects.push(Effect::Controller(Report::Forked { group: id, me, led, mark }));
        }
    }

    /// A replica here needs the state of `partition`: the replica beside it is asked. It may not be sealed yet, or not
    /// run yet; whoever waits asks again.
    pub(super) fn request_sealed_state(&mut self, partition: PartitionId) {
        let owner = self.owner(partition);
        match owner == self.index {
            true => self.send_if_sealed(partition),
            false if mutant!(neighbours_end_at_worker) => {}
            false => self.effects.push(Effect::Worker(owner, Message::SendSealed(partition))),
        }
    }

    /// If the partition is sealed, and that is decided, its neighbour gets its state.
    pub(super) fn send_if_sealed(&mut self, id: PartitionId) {
        let Some(group) = self.groups.get(&id) else { return };
        if group.replica.executor().decided_view().partition().is_some_and(|partition| partition.sealed().is_some()) {
            self.send_sealed(id);
        }
    }

    fn send_sealed(&mut self, id: PartitionId) {
        let Some(group) = self.groups.get(&id) else { return };
        let Some(left) =
            group.replica.executor().machine().partition().and_then(|partition| partition.absorbed_state())
        else {
            return;
        };
        failpoint!("worker.leaves");
        let owner = self.owner(left.seal.target);
        match owner == self.index {
            true => self.absorb(left),
            false if mutant!(neighbours_end_at_worker) => {}
            false => self.effects.push(Effect::Worker(owner, Message::Absorb(Box::new(left)))),
        }
    }

    pub(super) fn absorb(&mut self, left: AbsorbedState) {
        self.step_group(left.seal.target, Input::Absorb(Box::new(left)));
        failpoint!("worker.absorbs");
    }
}
