//! What the worker is told of the world when it has changed: who leads where, who answers, what there is room for.

use std::collections::BTreeMap;

use coppice_client::wire::{NodeId, PartitionId};
use coppice_core::worker::{Input, Room};

use super::Shard;

/// What it was told last.
#[derive(Default)]
pub(super) struct Facts {
    node: Option<NodeId>,
    is_mute: bool,
    /// [`crate::shared::Shared::leaders_version`].
    leaders_version: u64,
}

impl Shard {
    /// Whether this node may speak for its replicas is asked before every step.
    pub(super) fn look_at_vetting(&mut self) {
        let is_mute = !self.shared.vetting.may_speak();
        if std::mem::replace(&mut self.facts.is_mute, is_mute) != is_mute {
            self.tell(Input::MaySpeak(!is_mute));
        }
    }

    /// Tells the worker what has changed.
    pub(super) fn tell_facts(&mut self) {
        if self.facts.node.is_none()
            && let Some(identity) = self.shared.identity()
        {
            self.facts.node = Some(identity.node);
            self.tell(Input::Identity(identity.node));
        }
        let changed = self.links.iter().map(|(&node, link)| (node, link.answers()));
        let changed = changed.filter(|(node, answers)| self.worker.is_answering(*node) != *answers);
        for (node, answers) in changed.collect::<Vec<_>>() {
            self.tell(Input::Answers(node, answers));
        }
        let version = self.shared.leaders_version();
        if version != self.facts.leaders_version {
            self.facts.leaders_version = version;
            self.tell_leaders(self.shared.leaders());
        }
        let room = self.room();
        if room != *self.worker.room() {
            self.tell(Input::Room(room));
        }
    }

    fn tell_leaders(&mut self, leaders: BTreeMap<PartitionId, NodeId>) {
        let known = self.worker.leaders();
        let gone = known.keys().filter(|group| !leaders.contains_key(group)).map(|&group| (group, None));
        let new = leaders.iter().filter(|(group, leader)| known.get(group) != Some(leader));
        let changed: Vec<_> = gone.chain(new.map(|(&group, &leader)| (group, Some(leader)))).collect();
        for (group, leader) in changed {
            self.tell(Input::Leader(group, leader));
        }
    }

    fn room(&self) -> Room {
        Room {
            log_is_stuck: self.log.as_ref().is_some_and(|log| log.is_stuck()),
            disk_is_full: self.log.as_ref().is_some_and(|log| log.space().full),
            memory_is_full: self.shared.memory_is_full(),
            memory_is_spent: self.shared.memory_is_spent(),
            full_nodes: self.shared.full_nodes(),
        }
    }

    /// A fact is told without a look at the others.
    fn tell(&mut self, input: Input) {
        let now = self.now();
        let mut effects = Vec::new();
        self.worker.step(now, input, &mut effects);
        effects.into_iter().for_each(|effect| self.perform(effect));
    }
}
