//! Operators' verbs and other nodes' questions.

use std::sync::Arc;
use std::time::Duration;

use coppice_client::wire::control::AdminError;
use coppice_client::wire::{AdminReply, AdminRequest, ConfigRow, LinkFault, MapGet};
use coppice_core::controller::ClusterState;
use coppice_core::machine::directory::{DirectoryCommand, DirectoryReply};
use coppice_core::question::{Answer, Asker, Question, QuestionRefusal};
use coppice_core::settings::ClusterSettings;
use coppice_core::{bounds, controller};
use tokio::sync::oneshot;

use super::{Control, directory};
use crate::config::NODE_SETTINGS;
use crate::rpc::ask;
use crate::shared::Shared;

/// How long another node may take to give its map.
const MAP_TIMEOUT: Duration = Duration::from_millis(450);

/// Between two tries to tell the directory where this node serves.
const ANNOUNCE_PAUSE: Duration = Duration::from_millis(500);

impl Control {
    /// Carries a verb out that a client or another node asks for. `by`: the user who asks, and may; none: access
    /// control is off, or the node itself asks.
    pub(super) fn answer_admin(
        &mut self,
        by: Option<String>,
        request: AdminRequest,
        reply: oneshot::Sender<AdminReply>,
    ) {
        if let Err(text) = bounds::check(&request) {
            _ = reply.send(AdminReply::Failed(AdminError::Invalid(text)));
            return;
        }
        match request {
            AdminRequest::Init(request) => super::bootstrap::init(self, request, reply),
            AdminRequest::ConfigGet => _ = reply.send(AdminReply::Config(self.config_rows())),
            AdminRequest::ConfigSet { key, value } => self.change_setting(key, Some(value), reply),
            AdminRequest::ConfigUnset { key } => self.change_setting(key, None, reply),
            AdminRequest::LogLevel { spec } => {
                let done = self.shared.set_log_level(&spec);
                _ = reply.send(match done {
                    Ok(()) => AdminReply::Done,
                    Err(text) => AdminReply::Failed(AdminError::Invalid(text)),
                });
            }
            AdminRequest::TransferLeader { partition, to, deadline_ms } => {
                super::leader_transfer::transfer(
                    &self.shared,
                    partition,
                    to,
                    Duration::from_millis(u64::from(deadline_ms)),
                    reply,
                );
            }
            AdminRequest::CheckReplicas => super::check_replicas::check_replicas(self, reply),
            AdminRequest::Reshape(request) => super::topology::reshape(self, request, reply),
            AdminRequest::Tuning { local } => super::tuning::answer_tuning(self, local, reply),
            AdminRequest::Faults(faults) => _ = reply.send(self.set_faults(faults)),
            AdminRequest::Map => {
                let reply_of = self.shared.cluster.map_reply(MapGet::default());
                _ = reply.send(AdminReply::Map(reply_of));
            }
            AdminRequest::Users => {
                _ = reply.send(AdminReply::Users(self.shared.cluster.access().users().rows(by.as_deref())))
            }
            AdminRequest::ChangeUsers(change) => super::users::change_users(&self.shared, by, change, reply),
        }
    }

    /// Cuts or slows the ways to other nodes, or heals them.
    fn set_faults(&self, faults: Vec<LinkFault>) -> AdminReply {
        if !self.shared.config.allow_faults {
            return AdminReply::Failed(AdminError::Refused("this node was started without allow_faults".into()));
        }
        for thread in 0..self.shared.workers.count() {
            let faults = faults.clone();
            self.outbox.on_thread(thread, move |thread| {
                for (&node, link) in &thread.links {
                    let fault = faults.iter().find(|fault| fault.to == node);
                    let delay = fault.map_or(0, |fault| u64::from(fault.delay_ms));
                    link.set_fault(fault.is_some_and(|fault| fault.cut), Duration::from_millis(delay));
                }
            });
        }
        self.shared.peers.set_faults(faults);
        AdminReply::Done
    }

    /// The cluster's settings, then those of this node.
    fn config_rows(&self) -> Vec<ConfigRow> {
        let defaults = ClusterSettings::default();
        let cluster = self.controller.settings().pairs().into_iter().map(|(key, value)| {
            let origin = if defaults.get(key).as_deref() == Some(value.as_str()) { "default" } else { "cluster" };
            ConfigRow { key: key.to_owned(), value, origin: origin.to_owned(), cluster: true }
        });
        let config = &self.shared.config;
        let of_node = NODE_SETTINGS.iter().map(|setting| {
            let origin = config.origins.get(setting.key).map_or_else(|| "default".to_owned(), ToString::to_string);
            let (value, origin) = match self.shared.changed_log_level().filter(|_| setting.key == "log_level") {
                Some(level) => (level, "changed while it runs".to_owned()),
                None => (setting.show(config), origin),
            };
            ConfigRow { key: setting.key.to_owned(), value, origin, cluster: false }
        });
        cluster.chain(of_node).collect()
    }

    /// Sets a cluster setting; without a value it returns to its default.
    fn change_setting(&mut self, key: String, value: Option<String>, reply: oneshot::Sender<AdminReply>) {
        let before = self.controller.settings().feature_level;
        let mut settings = self.controller.settings().clone();
        if let Err(error) = settings.change(&key, value.as_deref()) {
            _ = reply.send(AdminReply::Failed(error.into()));
            return;
        }
        if settings.feature_level > before {
            return super::raise::raise(&self.shared, settings.feature_level, reply);
        }
        let command = match value {
            Some(value) => DirectoryCommand::Set { key, value },
            None => DirectoryCommand::Unset { key },
        };
        let shared = Arc::clone(&self.shared);
        crate::task::spawn(async move {
            let done = directory::submit(&shared, command).await;
            _ = reply.send(match done {
                Ok(DirectoryReply::Refused(reason)) => AdminReply::Failed(AdminError::Invalid(reason.to_string())),
                Ok(_) => AdminReply::Done,
                Err(text) => AdminReply::Failed(AdminError::TimedOut(text)),
            });
        });
    }

    pub(super) fn answer_question(&mut self, asker: Asker, question: Question, reply: oneshot::Sender<Answer>) {
        let judged = asker.judge(&question, self.shared.own.presence().as_ref(), &self.shared.cluster.map());
        if let Err(QuestionRefusal { text, asks_for_map }) = judged {
            let node = asker.from.map(|from| from.node).unwrap_or_default();
            tracing::warn!(%node, reason = %text, "a request of another node is refused");
            if asks_for_map {
                self.ask_for_the_map();
            }
            _ = reply.send(Answer::Refused(text));
            return;
        }
        match question {
            Question::Identify => _ = reply.send(Answer::Identified(super::bootstrap::identified(self))),
            Question::Assign(assignment) => _ = reply.send(super::bootstrap::assign(self, &assignment)),
            Question::Map => _ = reply.send(self.newest()),
            Question::Status => super::status::answer_local_status(self, reply),
            Question::Live { after } => super::live::answer_live_report(self, after, reply),
            Question::Adopt { map, settings, users } => {
                self.adopt(map, settings, users);
                _ = reply.send(Answer::Done);
            }
            Question::Median { partition, by_load } => {
                let shared = Arc::clone(&self.shared);
                crate::task::spawn(async move {
                    let median = super::topology::median(&shared, partition, by_load).await;
                    _ = reply.send(Answer::Median(median.map(Into::into)));
                });
            }
            Question::Configure { partition, expected, configuration } => {
                super::topology::configure(&self.shared, partition, expected, configuration);
                _ = reply.send(Answer::Done);
            }
            Question::FeatureLevel { level, note } => _ = reply.send(super::raise::answer(self, level, note)),
            Question::Admin(request) => {
                let (sender, receiver) = oneshot::channel();
                // The node that passes it on has asked whether its client may.
                self.answer_admin(None, request, sender);
                crate::task::spawn(async move {
                    if let Ok(answer) = receiver.await {
                        _ = reply.send(Answer::Admin(answer));
                    }
                });
            }
            Question::Transfer { partition, to, deadline_ms } => {
                super::leader_transfer::answer_transfer(
                    &self.shared,
                    partition,
                    to,
                    Duration::from_millis(u64::from(deadline_ms)),
                    reply,
                );
            }
            Question::Directory(command) => {
                let shared = Arc::clone(&self.shared);
                crate::task::spawn(async move {
                    _ = reply.send(match directory::decide_here(&shared, command).await {
                        Ok(done) => Answer::Directory(done),
                        Err(text) => Answer::Refused(text),
                    });
                });
            }
        }
    }

    /// The map, settings and users as this node knows them.
    pub(super) fn newest(&self) -> Answer {
        let ClusterState { map, settings, users } = self.controller.cluster_state();
        Answer::Map { map, leaders: self.shared.cluster.leaders().into_iter().collect(), settings, users }
    }

    /// A node without the directory, or whose replica of it knows no leader, asks the others for a newer map: one that
    /// its own map names, or, if that one gives none, whichever node of the cluster serves at a seed. All others may
    /// have been replaced while this node was away. Then nobody whom it knows can say so, and whom it does not know it
    /// must not believe ([`Asker::judge`]). It gets home by seeds that live, which its operator
    /// names, or is replaced itself.
    pub(super) fn ask_for_the_map(&self) {
        let Some(identity) = self.shared.own.identity() else { return };
        let map = self.shared.cluster.map();
        let others = map.nodes.iter().filter(|node| node.id != identity.node);
        let others = others.map(|node| (Some(node.id), node.addresses.peer.clone()));
        let own = &self.announcement.addresses.peer;
        let seeds = self.shared.config.seeds.iter().map(ToString::to_string).filter(|seed| seed != own);
        let drawn = [one_of(others.collect()), one_of(seeds.map(|seed| (None, seed)).collect())];
        let shared = Arc::clone(&self.shared);
        crate::task::spawn(async move {
            let mut answer = None;
            for (to, address) in drawn.into_iter().flatten() {
                answer = ask(&shared, to, &address, &Question::Map, MAP_TIMEOUT).await.ok();
                if answer.is_some() {
                    break;
                }
            }
            if let Some(Answer::Map { map, leaders, settings, users }) = answer
                && map.cluster == identity.cluster
            {
                shared.tell(controller::Input::LeadersTold(leaders.into_iter().collect()));
                let adopt = move |control: &mut Control| control.adopt(map, settings, users);
                shared.call(adopt);
            }
        });
    }

    /// The directory learns where this node serves now, if the map says otherwise (ports may change at a restart). Goes
    /// on until the map says so.
    pub(super) fn announce(&mut self) {
        if let Some(before) = self.announcement.task.take() {
            before.abort();
        }
        let Some(identity) = self.shared.own.identity() else { return };
        let (shared, addresses) = (Arc::clone(&self.shared), self.announcement.addresses.clone());
        let is_known = move |shared: &Shared| {
            let map = shared.cluster.map();
            map.node(identity.node).is_none_or(|known| known.addresses == addresses)
        };
        if is_known(&shared) {
            return;
        }
        let command =
            DirectoryCommand::Announce { node: identity.node, addresses: self.announcement.addresses.clone() };
        let announcing = crate::task::spawn(async move {
            let mut last = String::new();
            while !is_known(&shared) {
                if let Err(error) = directory::tell(&shared, identity.node, &command).await
                    && error != last
                {
                    tracing::warn!(%error, "the directory cannot be told this node's new addresses; trying on");
                    last = error;
                }
                tokio::time::sleep(ANNOUNCE_PAUSE).await;
            }
        });
        self.announcement.task = Some(announcing.abort_handle());
    }
}

/// One of them, drawn.
fn one_of<T>(mut all: Vec<T>) -> Option<T> {
    let drawn = crate::random::draw() as usize % all.len().max(1);
    (drawn < all.len()).then(|| all.swap_remove(drawn))
}
