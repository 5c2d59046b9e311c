//! Whether this node may speak for the cluster: whether a majority of the directory's voters answers it now. What a
//! node believes that is cut off from them may be long past, and what it is asked for it cannot carry out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coppice_client::map::{Entry, PartitionMap, Role};
use coppice_client::wire::control::AdminError;
use coppice_client::wire::{AdminReply, AdminRequest, NodeId};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::{Control, ToControl};
use crate::net::rpc::{Answer, Question, ask};
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

impl Control {
    /// Carries a client's verb out, if this node may speak for the cluster.
    pub(super) fn answer_operator(
        &mut self,
        by: Option<String>,
        request: AdminRequest,
        reply: oneshot::Sender<AdminReply>,
    ) {
        // All others are about the node that is asked, or there is no cluster yet.
        if !request.properties().needs_majority {
            return self.answer_if_allowed(by, request, reply);
        }
        let (sender, heard) = oneshot::channel();
        if let Some(pause) = self.majority.ask(Instant::now(), sender) {
            self.later(pause, Control::probe);
        }
        let shared = Arc::clone(&self.shared);
        crate::task::spawn(async move {
            match heard.await {
                Ok(true) => shared.tell_control(ToControl::Call(Box::new(|control: &mut Control| {
                    control.answer_if_allowed(by, request, reply);
                }))),
                Ok(false) => _ = reply.send(AdminReply::Failed(alone(&shared))),
                // The node is stopping.
                Err(_) => {}
            }
        });
    }

    /// Judges a verb again, by the users of this moment. While it waited, the node may have joined a cluster that has
    /// users, and `by` may have lost a role.
    fn answer_if_allowed(&mut self, by: Option<String>, request: AdminRequest, reply: oneshot::Sender<AdminReply>) {
        if self.shared.access().still_allows(by.as_deref(), &request) {
            return self.answer_admin(by, request, reply);
        }
        let by = by.as_deref().unwrap_or("whoever connects without credentials");
        tracing::warn!(by, "an operator's verb is denied: the users were changed while it waited");
        let text = format!("{by} may not do that: the users were changed while the verb waited");
        _ = reply.send(AdminReply::Failed(AdminError::Refused(text)));
    }

    /// Asks the directory's voters.
    fn probe(&mut self) {
        self.majority.begins();
        let shared = Arc::clone(&self.shared);
        crate::task::spawn(async move {
            let heard = hears_majority(&shared).await;
            shared.tell_control(ToControl::Call(Box::new(move |control: &mut Control| {
                if let Some(pause) = control.majority.answered(Instant::now(), &heard) {
                    control.later(pause, Control::probe);
                }
            })));
        });
    }
}

/// Whether a majority of the directory's voters answers, this node included.
async fn hears_majority(shared: &Arc<Shared>) -> bool {
    let Some(own) = shared.identity() else { return false };
    let map = shared.map();
    let voters = map.directory.iter().flat_map(|entry| &entry.replicas).filter(|info| info.role == Role::Voter);
    let mut asked = JoinSet::new();
    for node in voters.map(|info| info.node).filter(|&node| node != own.node && !shared.is_cut_off(node)) {
        let Some(address) = shared.peer_address(node) else { continue };
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
    let own = shared.identity().map(|identity| identity.node);
    let name = own.map_or_else(|| "this node".to_owned(), |node| node.to_string());
    let map = shared.map();
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
