//! What the worker is told of the world when it has changed: who leads where, who answers, what there is room for.

use coppice_client::wire::NodeId;
use coppice_core::worker::{Input, Resources};

use super::WorkerThread;

/// What it was told last.
#[derive(Default)]
pub(super) struct Facts {
    node: Option<NodeId>,
    is_mute: bool,
    /// In this turn it was told what has changed.
    is_told: bool,
    /// [`crate::shared::Shared::leaders_version`].
    leaders_version: u64,
}

impl Facts {
    /// What has changed since is yet to be told.
    pub(super) fn may_have_changed(&mut self) {
        self.is_told = false;
    }
}

impl WorkerThread {
    /// Whether this node may speak for its replicas is asked before every step.
    pub(super) fn tell_fence(&mut self) {
        let is_mute = !self.shared.own.may_speak();
        if std::mem::replace(&mut self.facts.is_mute, is_mute) != is_mute {
            self.step(Input::MaySpeak(!is_mute));
        }
    }

    /// Tells the worker what has changed since the last turn, before anything else happens in this one.
    pub(super) fn tell_facts(&mut self) {
        if std::mem::replace(&mut self.facts.is_told, true) {
            return;
        }
        if self.facts.node.is_none()
            && let Some(identity) = self.shared.own.identity()
        {
            self.facts.node = Some(identity.node);
            self.step(Input::Identity(identity.node, identity.cluster));
        }
        let version = self.shared.cluster.leaders_version();
        let is_newer = std::mem::replace(&mut self.facts.leaders_version, version) != version;
        let leaders = is_newer.then(|| self.shared.cluster.leaders());
        let answers = self.links.iter().map(|(&node, link)| (node, link.answers()));
        for news in self.worker.news(answers, leaders.as_ref(), self.room()) {
            self.step(news);
        }
    }

    fn room(&self) -> Resources {
        Resources {
            log_is_stuck: self.storage.log.as_ref().is_some_and(|log| log.is_stuck()),
            disk_is_full: self.storage.log.as_ref().is_some_and(|log| log.space().full),
            memory_is_full: self.shared.usage.memory_is_full(),
            memory_limit: self.shared.config.memory_limit,
            memory_is_spent: self.shared.usage.memory_is_spent(),
            full_nodes: self.shared.peers.full_nodes(),
        }
    }
}
