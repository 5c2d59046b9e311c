//! Growing and shrinking, as [`coppice_core::controller`] decides it: nodes are asked how they are, leaders to hand
//! over, processes to become nodes (protocol.md 1.5, 8); and operators' requests for that.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coppice_client::wire::control::AdminError;
use coppice_client::wire::{AdminReply, AdminRequest, NodeId, PartitionId, ReshapeRequest};
use coppice_core::controller::{Input, VerbId};
use coppice_core::machine::directory::DirectoryState;
use coppice_core::question::{Answer, Assignment, Question};
use coppice_core::replica;
use coppice_core::reshape::View;
use coppice_ordering::{Configuration, Instance};
use tokio::sync::oneshot;

use super::directory::{Within, ask_leader};
use super::effects::address_in;
use super::status::gather;
use super::{Control, Handle};
use crate::rpc::{AskError, ask, ask_anybody};

/// How long another node may take to say how it is.
pub(super) const ASK_TIMEOUT: Duration = Duration::from_millis(450);

/// How long a verb may take to reach the leader of the directory and come back.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(4);

/// Asks all nodes how they are, for the controller.
pub(super) fn survey_nodes(control: &mut Control) {
    if control.controller.driven().is_none() {
        return control.tell(Input::View(Box::default()));
    }
    let (shared, known) = (Arc::clone(&control.shared), gather(control, false));
    crate::task::spawn(async move {
        let view = View::new(known.await);
        shared.tell(Input::View(Box::new(view)));
    });
}

/// Tells a process which node it is, and the map.
pub(super) fn assign_number(shared: &Arc<Handle>, node: NodeId, state: &DirectoryState) {
    let Some(identity) = shared.own.identity() else { return };
    let address = address_in(&state.map, node).unwrap_or_default();
    let (shared, map, settings) = (Arc::clone(shared), state.map.clone(), state.settings.clone());
    let users = state.users.clone();
    crate::task::spawn(async move {
        let assignment = Assignment { cluster: identity.cluster, node, directory: Vec::new() };
        let told = ask_anybody(&shared, &address, &Question::Assign(assignment), FORWARD_TIMEOUT).await;
        let outcome = match told {
            Ok(Answer::Identified(_)) => {
                _ = ask(&shared, Some(node), &address, &Question::Adopt { map, settings, users }, ASK_TIMEOUT).await;
                Ok(())
            }
            Ok(_) => Err("it gave an unexpected answer".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        shared.tell(Input::Assigned(node, outcome));
    });
}

/// An operator's change of the cluster's shape: passed on to the leader of the directory, begun, or reported.
pub(super) fn reshape(control: &mut Control, request: ReshapeRequest, reply: oneshot::Sender<AdminReply>) {
    if control.controller.driven().is_none() {
        return forward(&control.shared, request, reply);
    }
    let (shared, known) = (Arc::clone(&control.shared), gather(control, false));
    crate::task::spawn(async move {
        let view = View::new(known.await);
        let judge = move |control: &mut Control| {
            control.verbs.newest += 1;
            let verb = control.verbs.newest;
            control.verbs.waiting.insert(verb, reply);
            control.tell(Input::Verb { verb, request: Box::new(request), view: Box::new(view) });
        };
        shared.call(judge);
    });
}

fn forward(shared: &Arc<Handle>, request: ReshapeRequest, reply: oneshot::Sender<AdminReply>) {
    let shared = Arc::clone(shared);
    crate::task::spawn(async move {
        let question = Question::Admin(AdminRequest::Reshape(request));
        let once = Within { ask: FORWARD_TIMEOUT, all: Duration::ZERO };
        let answer = |answer| if let Answer::Admin(answer) = answer { Some(answer) } else { None };
        let asked = ask_leader(&shared, question, once, answer).await;
        _ = reply.send(asked.unwrap_or_else(|error| AdminReply::Failed(AdminError::TimedOut(error))));
    });
}

/// The leader of a partition says where that is cut into two halves, for the controller.
pub(super) fn ask_for_median(
    shared: &Arc<Handle>,
    verb: VerbId,
    (partition, by_load): (PartitionId, bool),
    leader: NodeId,
) {
    let shared = Arc::clone(shared);
    crate::task::spawn(async move {
        let median = if shared.own.identity().is_some_and(|own| own.node == leader) {
            median(&shared, partition, by_load).await
        } else {
            let address = shared.peers.address(leader).unwrap_or_default();
            let question = Question::Median { partition, by_load };
            match ask(&shared, Some(leader), &address, &question, ASK_TIMEOUT).await {
                Ok(Answer::Median(median)) => median.map(Into::into),
                _ => None,
            }
        };
        shared.tell(Input::Median(verb, median));
    });
}

/// The key that cuts a partition here into two halves.
pub(super) async fn median(shared: &Arc<Handle>, partition: PartitionId, by_load: bool) -> Option<Bytes> {
    shared.ask_owner(partition, ASK_TIMEOUT, move |thread| thread.worker.median(partition, by_load)).await.flatten()
}

/// A process says who it is, for the controller.
pub(super) fn identify(shared: &Arc<Handle>, verb: VerbId, address: String) {
    let shared = Arc::clone(shared);
    crate::task::spawn(async move {
        let found = match ask_anybody(&shared, &address, &Question::Identify, ASK_TIMEOUT * 3).await {
            Ok(Answer::Identified(identified)) => Ok(Box::new(identified)),
            Ok(_) => Err(format!("{address} is not the peer port of a coppice process")),
            Err(AskError::Broken { text, .. }) => {
                Err(format!("{address} is not the peer port of a coppice process: {text}"))
            }
            Err(error) => Err(format!("nobody answers there: {error}; give the peer port of a running coppice serve")),
        };
        shared.tell(Input::Identified(verb, found));
    });
}

/// Has the group's replica here propose a configuration, if the one that it is to follow is still in force.
pub(super) fn configure(shared: &Arc<Handle>, partition: PartitionId, expected: u64, configuration: Configuration) {
    let shared = Arc::clone(shared);
    crate::task::spawn(async move {
        _ = shared
            .ask_owner(partition, ASK_TIMEOUT, move |thread| {
                thread.input_of(partition, replica::Input::Change { expected: Instance(expected), configuration });
                failpoint!("control.configures");
            })
            .await;
    });
}
