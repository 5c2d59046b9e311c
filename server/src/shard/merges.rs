//! What follows from moved borders on one node: a sealed partition's state goes to its neighbour's replica beside it,
//! and what was taken in is to become durable (protocol.md 8).

use std::sync::Arc;

use coppice_client::wire::PartitionId;
use coppice_core::machine::shard::{Awaited, Inheritance};
use coppice_core::machine::{Machine, Mark};
use coppice_core::replica::Input;

use super::Shard;
use crate::control::{Control, ToControl, push_call};

impl Shard {
    /// A batch of `id` that moved borders is decided.
    pub(super) fn on_moved(&mut self, id: PartitionId, mark: Mark) {
        if Machine::seals(&mark) {
            self.leave(id);
        }
        if let Some(group) = self.groups.get_mut(&id) {
            group.borders.joined(Machine::joins(&mark));
        }
        if !Machine::joins(&mark).is_empty() {
            self.shared.tell_control(ToControl::Call(Box::new(Control::start_checkpoints)));
        }
        if !Machine::forks(&mark).is_empty() {
            let led = self.groups.get(&id).is_some_and(|group| group.replica.is_leading());
            self.shared.tell_control(ToControl::Forked { group: id, led, mark });
        }
    }

    /// A partition here needs what `awaited` names: the replica beside it is asked. It may not be sealed yet, or not
    /// run yet; whoever waits asks again.
    pub(super) fn on_awaits(&mut self, awaited: Awaited) {
        let owner = self.owner(awaited.partition);
        if owner == self.index {
            return self.leave_decided(awaited.partition);
        }
        push_call(&self.shared, owner, Box::new(move |shard| shard.leave_decided(awaited.partition)));
    }

    /// If the partition is sealed, and that is decided, its neighbour gets its state.
    pub(crate) fn leave_decided(&mut self, id: PartitionId) {
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
        if owner == self.index {
            return self.take_in(left);
        }
        push_call(&Arc::clone(&self.shared), owner, Box::new(move |shard| shard.take_in(left)));
    }

    fn take_in(&mut self, left: Inheritance) {
        self.step(left.seal.heir, Input::Inherit(Box::new(left)));
        failpoint!("shard.inherits");
    }
}
