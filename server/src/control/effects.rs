//! Carries out what the controller wants: from the log, from other threads, from other nodes.

use std::sync::Arc;

use coppice_client::wire::AdminReply;
use coppice_core::controller::{Effect, Input};
use coppice_core::machine::directory::DirectoryReply;
use coppice_core::question::Question;
use coppice_core::reshape::begun;
use coppice_core::worker;

use super::Control;
use super::directory::decide_here;
use super::topology::{ASK_TIMEOUT, configure};
use crate::rpc::ask;
use crate::start_error::StorageError;
use crate::worker_thread::WorkerThread;

impl Control {
    pub(super) fn perform(&mut self, effect: Effect) {
        let shared = Arc::clone(&self.shared);
        match effect {
            Effect::Worker(worker, worker::Input::Drop(group)) => {
                self.outbox.on_thread(worker, move |thread| thread.drop_group(group));
            }
            Effect::Worker(worker, input) => self.outbox.on_thread(worker, move |thread| thread.input(input)),
            Effect::MaySpeak(may) => shared.own.set_may_speak(may),
            Effect::Unreached(nodes) => {
                tracing::info!(missing = ?nodes, "nodes that could not be asked whether this one is a copy");
            }
            Effect::WriteCopyMark { by, text } => self.write_copy_mark(by, &text),
            Effect::Start(start) => self.start(*start),
            Effect::StateLost(group, lost) => {
                self.driver.state_lost = Some(StorageError::StateLost { group, trimmed: lost.0 });
            }
            Effect::Log(entry) => self.append(*entry),
            Effect::Removed(group, replica) => {
                failpoint!("control.removed");
                shared.cluster.set_leader(group, None);
                shared.metrics.forget_partition(group);
                tracing::debug!(partition = %group, %replica, "the replica here was removed");
            }
            Effect::DeleteCheckpoints(group) => super::snapshots::delete_checkpoints(self, group),
            Effect::Map(map) => self.use_map(map),
            Effect::Link(node, address) => self.link(node, &address),
            Effect::Unlink(node) => self.unlink(node),
            Effect::ChangeBegun(name, change) => tracing::info!(%name, %change, "a change of the cluster begins"),
            Effect::ChangeEnded(name, outcome) => tracing::info!(%name, %outcome, "a change of the cluster has ended"),
            Effect::SettingsUnknown => {
                tracing::warn!("the directory holds settings that this version does not know; the known ones stay");
            }
            Effect::FeatureLevel(level) => {
                if let Err(error) = super::raise::note(self, level) {
                    (self.failed)(format!("the data directory cannot note feature level {level}: {error}"));
                }
                shared.cluster.set_feature_level(level);
            }
            Effect::Access { access, is_followed } => {
                shared.cluster.set_access(Arc::clone(&access));
                if is_followed {
                    let users = access.users().len();
                    tracing::debug!(on = access.is_on(), users, "access control follows the directory");
                    self.outbox.on_all(|| {
                        let access = Arc::clone(&access);
                        move |thread: &mut WorkerThread| thread.apply_access(&access)
                    });
                }
            }
            Effect::AskForMap => self.ask_for_the_map(),
            Effect::Fetch { fetch, group, from, least } => super::snapshots::fetch(self, fetch, group, from, least),
            Effect::Admit(fetch, may) => {
                if let Some(waiting) = self.offers.remove(&fetch) {
                    _ = waiting.send(may);
                }
            }
            Effect::Survey => super::topology::survey_nodes(self),
            Effect::Leaders(leaders) => {
                let mut news = false;
                leaders.into_iter().for_each(|(group, leader)| news |= shared.cluster.set_leader(group, Some(leader)));
                if news {
                    // The workers look at who leads where when their turns begin.
                    self.outbox.on_all(|| |thread: &mut WorkerThread| thread.look());
                }
            }
            Effect::Tell(nodes, state) => {
                for (to, address) in nodes.into_iter().filter_map(|node| Some((node, address_in(&state.map, node)?))) {
                    let (map, settings, users) = (state.map.clone(), state.settings.clone(), state.users.clone());
                    let shared = Arc::clone(&shared);
                    crate::task::spawn(async move {
                        // Lost, it comes with the next look.
                        let question = Question::Adopt { map, settings, users };
                        _ = ask(&shared, Some(to), &address, &question, ASK_TIMEOUT).await;
                    });
                }
            }
            Effect::Decide(command) => {
                crate::task::spawn(async move {
                    let decided = decide_here(&shared, (*command).clone()).await;
                    match &decided {
                        Ok(DirectoryReply::Refused(reason)) => {
                            tracing::debug!(?command, %reason, "the directory refused a step of a topology change");
                        }
                        Ok(_) => {}
                        Err(error) => tracing::debug!(?command, %error, "a step is not decided yet"),
                    }
                    shared.tell(Input::Decided(command, decided.ok()));
                });
            }
            Effect::Configure { leader, partition, expected, configuration } => {
                tracing::debug!(%partition, %configuration, "a new configuration is proposed");
                if shared.own.identity().is_some_and(|own| own.node == leader) {
                    return configure(&shared, partition, expected, configuration);
                }
                let address = shared.peers.address(leader).unwrap_or_default();
                crate::task::spawn(async move {
                    let question = Question::Configure { partition, expected, configuration };
                    if let Err(error) = ask(&shared, Some(leader), &address, &question, ASK_TIMEOUT).await {
                        tracing::debug!(%partition, %error, "a configuration was not proposed; it will be");
                    }
                });
            }
            Effect::TransferLeader { leader, partition, to } => {
                super::leader_transfer::request(self, leader, partition, to)
            }
            Effect::TransferEnded(transfer, outcome) => self.verbs.transfers.end(transfer, outcome),
            Effect::Stopped => self.driver.may_stop = true,
            Effect::Assign(node, state) => super::topology::assign_number(&self.shared, node, &state),
            Effect::Median { verb, partition, leader, by_load } => {
                super::topology::ask_for_median(&self.shared, verb, (partition, by_load), leader);
            }
            Effect::Announce { what, reason } => tracing::info!(%what, %reason, "the topology changes by itself"),
            Effect::Answer(verb, reply) => self.answer_verb(verb, *reply),
            Effect::Begin(verb, command, plan) => {
                let Some(reply) = self.verbs.waiting.remove(&verb) else { return };
                crate::task::spawn(async move { _ = reply.send(begun(decide_here(&shared, *command).await, *plan)) });
            }
            Effect::Identify { verb, address } => super::topology::identify(&self.shared, verb, address),
        }
    }

    pub(super) fn answer_verb(&mut self, verb: u64, reply: AdminReply) {
        if let Some(waiting) = self.verbs.waiting.remove(&verb) {
            _ = waiting.send(reply);
        }
    }
}

/// Where a map says that a node listens to the others.
pub(super) fn address_in(
    map: &coppice_client::map::PartitionMap,
    node: coppice_client::wire::NodeId,
) -> Option<String> {
    map.node(node).map(|row| row.addresses.peer.clone())
}
