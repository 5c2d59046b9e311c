//! Handing a leadership over: whoever is asked finds the leader, asks it, and tells what came of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coppice_client::map::{Entry, NodeState, Role};
use coppice_client::wire::control::AdminError;
use coppice_client::wire::{AdminReply, NodeId, PartitionId, TRANSFER_DEADLINE_MAX};
use coppice_core::ids;
use coppice_ordering::Time;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Handle;
use super::admin::DIRECTORY_TIMEOUT;
use crate::net::question::{Answer, Question};
use crate::rpc::{AskError, ask};
use crate::shared::Shared;

/// How long another node may take to say who leads.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);

/// Between two looks for a leader, while there is none or the last one does not answer.
const LOOK: Duration = Duration::from_millis(20);

/// Between two tries to hand over.
const AGAIN: Duration = Duration::from_secs(1);

/// Of the answer, beside the pause that is waited for: the way there and back.
const MARGIN: Duration = Duration::from_secs(1);

/// What is handed over.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    partition: PartitionId,
    to: NodeId,
    until: Instant,
}

fn failed(error: AdminError) -> AdminReply {
    AdminReply::Failed(error)
}

/// Hands a leadership over: asked of the leader, whichever node that is.
pub(super) fn transfer(
    shared: &Arc<Handle>,
    partition: PartitionId,
    to: NodeId,
    deadline: Duration,
    reply: oneshot::Sender<AdminReply>,
) {
    if let Err(error) = can_lead(shared, partition, to) {
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
    if let Err(error) = can_lead(shared, partition, to) {
        _ = reply.send(Answer::Admin(failed(error)));
        return;
    }
    let (shared, until) = (Arc::clone(shared), Instant::now() + deadline.min(TRANSFER_DEADLINE_MAX));
    crate::task::spawn(async move {
        let handed = transfer_here(&shared, Transfer { partition, to, until }).await;
        _ = reply.send(handed.map_or(Answer::NotLeader, Answer::Admin));
    });
}

/// Whether the map names a replica of `partition` at node `to`.
fn can_lead(shared: &Arc<Handle>, partition: PartitionId, to: NodeId) -> Result<(), AdminError> {
    let map = shared.cluster.map();
    let Some(entry) = map.entry(partition) else {
        return Err(AdminError::NotFound(format!("there is no partition {partition}")));
    };
    if map.node(to).is_none_or(|info| info.state == NodeState::Removed) {
        return Err(AdminError::NotFound(format!("there is no node {to}")));
    }
    if entry.replica_on(to).is_none() {
        return Err(AdminError::Invalid(format!("{to} has no replica of {partition}")));
    }
    Ok(())
}

/// Asks the leader until it answers, or the time is over.
async fn route(shared: &Arc<Handle>, transfer: Transfer) -> AdminReply {
    let Transfer { partition, to, until } = transfer;
    let (mut trouble, mut sent) = (None, false);
    loop {
        match leader_of(shared, partition).await {
            Some(leader) if leader == to => return AdminReply::Transferred { pause_us: 0 },
            Some(leader) if is_own(shared, leader) => {
                if let Some(reply) = transfer_here(shared, transfer).await {
                    return reply;
                }
            }
            Some(leader) => match ask_leader(shared, leader, transfer).await {
                Ok(Some(reply)) => return reply,
                Ok(None) => trouble = Some(format!("{leader} does not lead {partition}")),
                Err(AskError::Refused { text, .. }) => return failed(AdminError::Refused(text)),
                Err(error) => {
                    sent |= !matches!(error, AskError::Unreachable { .. });
                    let text = format!("{leader}, the last known leader of {partition}, cannot be reached: {error}");
                    trouble = Some(text);
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
    match (sent, trouble) {
        (true, trouble) => {
            let text = trouble.unwrap_or_else(nobody);
            failed(AdminError::TimedOut(format!("{to} did not take {partition} over in time: {text}")))
        }
        (false, trouble) => failed(AdminError::Unavailable(trouble.unwrap_or_else(nobody))),
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

/// Hands over what this node leads; none: it does not lead it.
async fn transfer_here(shared: &Arc<Handle>, Transfer { partition, to, until }: Transfer) -> Option<AdminReply> {
    let own = shared.own.identity()?.node;
    let map = shared.cluster.map();
    let group = map.group(partition)?;
    let replica = ids::replica(group.replica_on(to)?.replica);
    match shared.cluster.leader(partition) {
        Some(leader) if leader == to => return Some(AdminReply::Transferred { pause_us: 0 }),
        Some(leader) if leader == own => {}
        _ => return None,
    }
    let begun = Instant::now();
    let reached = reached_nodes(shared, partition).await;
    if let Some(text) = in_the_way(group, to, Some(own), &reached) {
        return Some(failed(AdminError::Unavailable(text)));
    }
    while Instant::now() < until {
        // The leader gives up sooner than the asker does. One that is at it already goes on with it.
        start_transfer(shared, partition, replica, until.saturating_duration_since(Instant::now())).await;
        let again = until.min(Instant::now() + AGAIN);
        while Instant::now() < again {
            if shared.cluster.leader(partition) == Some(to) {
                let pause_us = begun.elapsed().as_micros() as u64;
                return Some(AdminReply::Transferred { pause_us });
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    Some(failed(AdminError::TimedOut(format!("{to} did not take {partition} over in time"))))
}

/// Why node `own` cannot hand `group` over to node `to`, if it reaches only these.
fn in_the_way(group: &Entry, to: NodeId, own: Option<NodeId>, reached: &[NodeId]) -> Option<String> {
    let partition = group.partition;
    let voters = group.replicas.iter().filter(|info| info.role == Role::Voter);
    let answers = |node: NodeId| Some(node) == own || reached.contains(&node);
    let (up, all) = voters.fold((0, 0), |(up, all), info| (up + usize::from(answers(info.node)), all + 1));
    if up <= all / 2 {
        return Some(format!("{partition} has no quorum: {up} of its {all} voters answer"));
    }
    (!answers(to)).then(|| format!("{to} does not answer, so {partition} stays where it is"))
}

/// The nodes to which the worker thread of `group` has a connection now.
pub(super) async fn reached_nodes(shared: &Arc<Handle>, group: PartitionId) -> Vec<NodeId> {
    let up = shared.ask_owner(group, DIRECTORY_TIMEOUT, |thread| {
        thread.links.values().filter(|link| link.is_up()).map(|link| link.node()).collect::<Vec<_>>()
    });
    up.await.unwrap_or_default()
}

pub(super) async fn start_transfer(
    shared: &Arc<Handle>,
    group: PartitionId,
    to: coppice_ordering::ReplicaId,
    deadline: Duration,
) {
    _ = shared
        .ask_owner(group, DIRECTORY_TIMEOUT, move |thread| {
            let until: Time = thread.now() + deadline;
            thread.input_of(group, coppice_core::replica::Input::TransferLeader { to, deadline: until });
            failpoint!("control.transfers");
        })
        .await;
}
