//! Leader transfers on their way: whoever is asked finds the leader, asks it, and tells what came of it. What the
//! leader does is decided in [`coppice_core::controller`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coppice_client::wire::control::AdminError;
use coppice_client::wire::{AdminReply, NodeId, PartitionId, TRANSFER_DEADLINE_MAX};
use coppice_core::controller::{Input, Reached, TransferId, TransferOutcome, may_lead};
use coppice_core::question::{Answer, Question};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::admin::DIRECTORY_TIMEOUT;
use super::{Control, Handle};
use crate::rpc::{AskError, ask};
use crate::shared::Shared;

/// How long another node may take to say who leads.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);

/// Between two looks for a leader, while there is none or the last one does not answer.
const LOOK: Duration = Duration::from_millis(20);

/// Of the answer, beside the pause that is waited for: the way there and back.
const MARGIN: Duration = Duration::from_secs(1);

/// What is transferred.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    partition: PartitionId,
    to: NodeId,
    until: Instant,
}

fn failed(error: AdminError) -> AdminReply {
    AdminReply::Failed(error)
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
    if let Err(error) = may_lead(&shared.cluster.map(), partition, to) {
        _ = reply.send(failed(error));
        return;
    }
    let (shared, until) = (Arc::clone(shared), Instant::now() + deadline);
    crate::task::spawn(async move {
        _ = reply.send(route(&shared, Transfer { partition, to, until }).await);
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
        _ = reply.send(admin_reply(outcome).map_or(Answer::NotLeader, Answer::Admin));
    });
}

/// The controller has the leader of a group transfer its leadership.
pub(super) fn request(control: &Control, leader: NodeId, partition: PartitionId, to: NodeId) {
    tracing::info!(%partition, from = %leader, %to, "leader transfer begins");
    let (shared, within) = (Arc::clone(&control.shared), control.settings.values.leader_transfer_timeout);
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

/// What an operator hears of a transfer; none: the leader is somewhere else.
fn admin_reply(outcome: TransferOutcome) -> Option<AdminReply> {
    match outcome {
        TransferOutcome::Done(pause) => Some(AdminReply::Transferred { pause_us: pause.as_micros() as u64 }),
        TransferOutcome::NotLeader => None,
        TransferOutcome::Failed(error) => Some(failed(error)),
    }
}

/// Asks the leader until it answers, or the time is over.
async fn route(shared: &Arc<Handle>, transfer: Transfer) -> AdminReply {
    let Transfer { partition, to, until } = transfer;
    let (mut reason, mut sent) = (None, false);
    loop {
        match leader_of(shared, partition).await {
            Some(leader) if leader == to => return AdminReply::Transferred { pause_us: 0 },
            Some(leader) if is_own(shared, leader) => {
                let within = until.saturating_duration_since(Instant::now());
                if let Some(reply) = admin_reply(transfer_here(shared, (partition, to), within).await) {
                    return reply;
                }
            }
            Some(leader) => match ask_leader(shared, leader, transfer).await {
                Ok(Some(reply)) => return reply,
                Ok(None) => reason = Some(format!("{leader} does not lead {partition}")),
                Err(AskError::Refused { text, .. }) => return failed(AdminError::Refused(text)),
                Err(error) => {
                    sent |= !matches!(error, AskError::Unreachable { .. });
                    let text = format!("{leader}, the last known leader of {partition}, cannot be reached: {error}");
                    reason = Some(text);
                }
            },
            None => {}
        }
        if Instant::now() + LOOK >= until {
            break;
        }
        tokio::time::sleep(LOOK).await;
    }
    let nobody = || format!("{partition} has no leader that its nodes know of");
    match (sent, reason) {
        (true, reason) => {
            let text = reason.unwrap_or_else(nobody);
            failed(AdminError::TimedOut(format!("{to} did not take {partition} over in time: {text}")))
        }
        (false, reason) => failed(AdminError::Unavailable(reason.unwrap_or_else(nobody))),
    }
}

fn is_own(shared: &Shared, node: NodeId) -> bool {
    shared.own.identity().is_some_and(|own| own.node == node)
}

/// Who leads, as this node knows it; a node without a replica of the group asks those that have one.
async fn leader_of(shared: &Arc<Handle>, partition: PartitionId) -> Option<NodeId> {
    let map = shared.cluster.map();
    let entry = map.group(partition)?;
    let own = shared.own.identity()?.node;
    let known = shared.cluster.leader(partition);
    if entry.replica_on(own).is_some() && known.is_some() {
        return known;
    }
    let mut asked = JoinSet::new();
    let others = entry.replicas.iter().map(|info| info.node);
    for node in others.filter(|&node| node != own && !shared.peers.is_cut_off(node)) {
        let Some(address) = shared.peers.address(node) else { continue };
        let shared = Arc::clone(shared);
        asked.spawn_local(async move { (node, ask(&shared, Some(node), &address, &Question::Map, ASK_TIMEOUT).await) });
    }
    let mut named: BTreeMap<NodeId, usize> = BTreeMap::new();
    while let Some(answer) = asked.join_next().await {
        let Ok((node, Ok(Answer::Map { leaders, .. }))) = answer else { continue };
        let leader = leaders.iter().find(|(group, _)| *group == partition).map(|(_, leader)| *leader);
        if leader == Some(node) {
            // It knows best.
            return leader;
        }
        leader.into_iter().for_each(|leader| *named.entry(leader).or_default() += 1);
    }
    named.into_iter().max_by_key(|(_, count)| *count).map(|(leader, _)| leader)
}

/// What the leader says; none: it does not lead.
async fn ask_leader(
    shared: &Shared,
    leader: NodeId,
    Transfer { partition, to, until }: Transfer,
) -> Result<Option<AdminReply>, AskError> {
    let address = shared.peers.address(leader).unwrap_or_default();
    if shared.peers.is_cut_off(leader) {
        return Err(AskError::Unreachable { address, text: "cut off".into() });
    }
    let left = until.saturating_duration_since(Instant::now());
    let deadline_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
    let question = Question::Transfer { partition, to, deadline_ms };
    match ask(shared, Some(leader), &address, &question, left + MARGIN).await? {
        Answer::Admin(reply) => Ok(Some(reply)),
        Answer::NotLeader => Ok(None),
        _ => Err(AskError::Refused { address, text: "an unexpected answer".into() }),
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
