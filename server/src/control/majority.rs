//! Whether this node may speak for the cluster: whether a majority of the directory's voters answers it now. What a
//! node believes that is cut off from them may be long past, and what it is asked for it cannot carry out.

use std::sync::Arc;
use std::time::Duration;

use coppice_client::map::{Entry, PartitionMap, Role};
use coppice_client::wire::control::AdminError;
use coppice_client::wire::{AdminReply, AdminRequest, NodeId};
use coppice_core::question::{Answer, Question};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::coalesced;
use super::{Control, Handle};
use crate::rpc::ask;
use crate::shared::Shared;

/// How long a voter may take to say that it is there; the majority decides, so those that are gone are not waited for.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether these of the directory's nodes are a majority of its voters.
pub(super) fn is_majority(map: &PartitionMap, answers: impl Fn(NodeId) -> bool) -> bool {
    let voters = |entry: &Entry| {
        let voters = entry.replicas.iter().filter(|replica| replica.role == Role::Voter);
        voters.fold((0, 0), |(up, all), voter| (up + usize::from(answers(voter.node)), all + 1))
    };
    map.directory.as_ref().is_some_and(|entry| matches!(voters(entry), (up, all) if up > all / 2))
}

/// Carries a client's verb out, if this node may speak for the cluster.
pub(super) fn answer_operator(
    control: &mut Control,
    by: Option<String>,
    request: AdminRequest,
    reply: oneshot::Sender<AdminReply>,
) {
    // All others are about the node that is asked, or there is no cluster yet.
    if !request.properties().needs_majority {
        return answer_if_allowed(control, by, request, reply);
    }
    let (sender, heard) = oneshot::channel();
    let make = |control: &Control| {
        let shared = Arc::clone(&control.shared);
        async move { hears_majority(&shared).await }
    };
    coalesced::ask(control, |questions| &mut questions.majority, make, sender);
    let shared = Arc::clone(&control.shared);
    crate::task::spawn(async move {
        match heard.await {
            Ok(true) => shared.call(|control| {
                answer_if_allowed(control, by, request, reply);
            }),
            Ok(false) => _ = reply.send(AdminReply::Failed(alone(&shared))),
            // The node is stopping.
            Err(_) => {}
        }
    });
}

/// Judges a verb again, by the users of this moment. While it waited, the node may have joined a cluster that has
/// users, and `by` may have lost a role.
fn answer_if_allowed(
    control: &mut Control,
    by: Option<String>,
    request: AdminRequest,
    reply: oneshot::Sender<AdminReply>,
) {
    if control.shared.cluster.access().still_allows(by.as_deref(), &request) {
        return control.answer_admin(by, request, reply);
    }
    let by = by.as_deref().unwrap_or("whoever connects without credentials");
    tracing::warn!(by, "an operator's verb is denied: the users were changed while it waited");
    let text = format!("{by} may not do that: the users were changed while the verb waited");
    _ = reply.send(AdminReply::Failed(AdminError::Refused(text)));
}

/// Whether a majority of the directory's voters answers, this node included.
async fn hears_majority(shared: &Arc<Handle>) -> bool {
    let Some(own) = shared.own.identity() else { return false };
    let map = shared.cluster.map();
    let voters = map.directory.iter().flat_map(|entry| &entry.replicas).filter(|info| info.role == Role::Voter);
    let mut asked = JoinSet::new();
    for node in voters.map(|info| info.node).filter(|&node| node != own.node && !shared.peers.is_cut_off(node)) {
        let Some(address) = shared.peers.address(node) else { continue };
        let shared = Arc::clone(shared);
        asked.spawn_local(async move {
            (node, ask(&shared, Some(node), &address, &Question::Identify, PROBE_TIMEOUT).await)
        });
    }
    let mut heard = vec![own.node];
    while !is_majority(&map, |node| heard.contains(&node)) {
        match asked.join_next().await {
            // A process that lost its data answers as nobody.
            Some(Ok((node, Ok(Answer::Identified(who))))) if who.identity == Some((own.cluster, node)) => {
                heard.push(node);
            }
            Some(_) => {}
            None => return false,
        }
    }
    true
}

/// What a node says that hears no majority.
fn alone(shared: &Shared) -> AdminError {
    let own = shared.own.identity().map(|identity| identity.node);
    let name = own.map_or_else(|| "this node".to_owned(), |node| node.to_string());
    let map = shared.cluster.map();
    let others = map.nodes.iter().filter(|node| Some(node.id) != own && !node.addresses.native.is_empty());
    AdminError::NoMajority {
        text: format!("{name} hears no majority of the directory"),
        others: others.map(|node| node.addresses.native.clone()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use coppice_client::map::ReplicaInfo;
    use coppice_client::wire::ReplicaId;

    use super::*;

    #[test]
    fn learners_and_nodes_without_the_directory_make_no_majority() {
        let on = |node: u32, role| ReplicaInfo { replica: ReplicaId(node), node: NodeId(node), role };
        let mut replicas: Vec<ReplicaInfo> = (1..=3).map(|node| on(node, Role::Voter)).collect();
        replicas.push(on(4, Role::Learner));
        let directory = Some(Entry { replicas, ..Entry::default() });
        let map = PartitionMap { directory, ..PartitionMap::default() };
        let heard = |nodes: &[u32]| is_majority(&map, |node| nodes.contains(&node.0));
        assert!(heard(&[1, 3]) && heard(&[1, 2, 3, 4]));
        assert!(!heard(&[2, 4, 5]) && !heard(&[]));
        assert!(!is_majority(&PartitionMap::default(), |_| true), "no map is known yet");
    }
}
