//! Leader transfers on their way: whoever is asked finds the leader, asks it, and tells what came of it. Both that and
//! what the leader does is decided in [`coppice_core::controller`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coppice_client::wire::{AdminReply, NodeId, PartitionId, TRANSFER_DEADLINE_MAX};
use coppice_core::controller::routing::{Ask, Next, Routing, Unheard};
use coppice_core::controller::{Input, Reached, TransferId, TransferOutcome};
use coppice_core::question::{Answer, Question};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::directory::DIRECTORY_TIMEOUT;
use super::survey::ask_each;
use super::{Control, Handle};
use crate::rpc::{AskError, ask};
use crate::shared::Shared;

/// How long another node may take to say who leads.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);

/// Of the answer, beside the pause that is waited for: the way there and back.
const MARGIN: Duration = Duration::from_secs(1);

/// What is transferred.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    partition: PartitionId,
    to: NodeId,
    until: Instant,
}

/// Transfers of which somebody waits to hear.
#[derive(Default)]
pub(super) struct Waiting {
    newest: TransferId,
    askers: BTreeMap<TransferId, oneshot::Sender<TransferOutcome>>,
}

impl Waiting {
    /// One has ended.
    pub(super) fn end(&mut self, transfer: TransferId, outcome: TransferOutcome) {
        if let Some(asker) = self.askers.remove(&transfer) {
            _ = asker.send(outcome);
        }
    }
}

/// Transfers a leadership: asked of the leader, whichever node that is.
pub(super) fn transfer(
    shared: &Arc<Handle>,
    partition: PartitionId,
    to: NodeId,
    deadline: Duration,
    reply: oneshot::Sender<AdminReply>,
) {
    let routing = match Routing::new(&shared.cluster.map(), partition, to) {
        Ok(routing) => routing,
        Err(error) => {
            _ = reply.send(AdminReply::Failed(error));
            return;
        }
    };
    let (shared, until) = (Arc::clone(shared), Instant::now() + deadline);
    crate::task::spawn(async move {
        _ = reply.send(route(&shared, routing, Transfer { partition, to, until }).await);
    });
}

/// Another node asks for a leadership of this one.
pub(super) fn answer_transfer(
    shared: &Arc<Handle>,
    partition: PartitionId,
    to: NodeId,
    deadline: Duration,
    reply: oneshot::Sender<Answer>,
) {
    let (shared, within) = (Arc::clone(shared), deadline.min(TRANSFER_DEADLINE_MAX));
    crate::task::spawn(async move {
        let outcome = transfer_here(&shared, (partition, to), within).await;
        _ = reply.send(outcome.reply().map_or(Answer::NotLeader, Answer::Admin));
    });
}

/// The controller has the leader of a group transfer its leadership.
pub(super) fn request(control: &Control, leader: NodeId, partition: PartitionId, to: NodeId) {
    tracing::debug!(%partition, from = %leader, %to, "leader transfer begins");
    let (shared, within) = (Arc::clone(&control.shared), control.controller.settings().leader_transfer_timeout);
    crate::task::spawn(async move {
        if is_own(&shared, leader) {
            _ = transfer_here(&shared, (partition, to), within).await;
            return;
        }
        let address = shared.peers.address(leader).unwrap_or_default();
        let question = Question::Transfer { partition, to, deadline_ms: within.as_millis() as u32 };
        _ = ask(&shared, Some(leader), &address, &question, within + ASK_TIMEOUT).await;
    });
}

/// The node is to stop: its leaderships go first.
pub(super) fn begin_stop(shared: &Arc<Handle>) {
    shared.drain();
    let shared = Arc::clone(shared);
    crate::task::spawn(async move {
        let mut led = Reached::default();
        for (group, _) in shared.cluster.leaders().into_iter().filter(|(_, leader)| is_own(&shared, *leader)) {
            led.insert(group, reached_nodes(&shared, group).await);
        }
        shared.tell(Input::Stop { within: shared.config.drain_timeout, led });
    });
}

/// Asks who leads and then the leader, as `routing` decides.
async fn route(shared: &Arc<Handle>, mut routing: Routing, transfer: Transfer) -> AdminReply {
    let left = || transfer.until.saturating_duration_since(Instant::now());
    let (mut next, mut asked) = (Next::Continue(Ask::Look(Duration::ZERO)), JoinSet::new());
    loop {
        let ask = match next {
            Next::Continue(ask) => ask,
            Next::Break(answer) => return answer,
        };
        next = match ask {
            Ask::Look(pause) => {
                tokio::time::sleep(pause).await;
                let own = shared.own.identity().map(|own| own.node);
                routing.look(&shared.cluster.map(), own, shared.cluster.leader(transfer.partition), left())
            }
            Ask::WhoLeads(nodes) => {
                asked = ask_each(shared, nodes, &Question::Map, ASK_TIMEOUT);
                Next::Continue(Ask::Hear)
            }
            Ask::Hear => match asked.join_next().await {
                Some(Ok((node, answer))) => routing.on_named(node, answer),
                Some(Err(_)) => Next::Continue(Ask::Hear),
                None => routing.on_all_named(left()),
            },
            Ask::Transfer(leader) => {
                let answer = ask_leader(shared, leader, transfer, left()).await;
                routing.on_answer(leader, answer, left())
            }
        }
    }
}

fn is_own(shared: &Shared, node: NodeId) -> bool {
    shared.own.identity().is_some_and(|own| own.node == node)
}

async fn ask_leader(
    shared: &Arc<Handle>,
    leader: NodeId,
    Transfer { partition, to, .. }: Transfer,
    left: Duration,
) -> Result<Option<AdminReply>, Unheard> {
    if is_own(shared, leader) {
        return Ok(transfer_here(shared, (partition, to), left).await.reply());
    }
    let address = shared.peers.address(leader).unwrap_or_default();
    let deadline_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
    let question = Question::Transfer { partition, to, deadline_ms };
    match ask(shared, Some(leader), &address, &question, left + MARGIN).await {
        Ok(Answer::Admin(reply)) => Ok(Some(reply)),
        Ok(Answer::NotLeader) => Ok(None),
        Ok(_) => Err(Unheard::Refused("an unexpected answer".into())),
        Err(AskError::Refused { text, .. }) => Err(Unheard::Refused(text)),
        Err(error @ AskError::Unreachable { .. }) => Err(Unheard::Unreachable(error.to_string())),
        Err(error) => Err(Unheard::Lost(error.to_string())),
    }
}

/// Transfers what this node leads.
async fn transfer_here(
    shared: &Arc<Handle>,
    (partition, to): (PartitionId, NodeId),
    within: Duration,
) -> TransferOutcome {
    let reached = reached_nodes(shared, partition).await;
    let (sender, receiver) = oneshot::channel();
    shared.call(move |control| {
        control.verbs.transfers.newest += 1;
        let transfer = control.verbs.transfers.newest;
        control.verbs.transfers.askers.insert(transfer, sender);
        control.tell(Input::Transfer { transfer, partition, to, within, reached });
    });
    receiver.await.unwrap_or(TransferOutcome::NotLeader)
}

/// The nodes to which the worker thread of `group` has a connection now.
async fn reached_nodes(shared: &Arc<Handle>, group: PartitionId) -> Vec<NodeId> {
    let up = shared.ask_owner(group, DIRECTORY_TIMEOUT, |thread| {
        thread.links.values().filter(|link| link.is_up()).map(|link| link.node()).collect::<Vec<_>>()
    });
    up.await.unwrap_or_default()
}
