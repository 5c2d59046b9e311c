//! Asks many nodes the same, all at once; whom, and whose answer counts, [`coppice_core::survey`] decides.

use std::sync::Arc;
use std::time::Duration;

use coppice_client::wire::NodeId;
use coppice_core::question::{Answer, Question};
use coppice_core::survey::Survey;
use tokio::task::JoinSet;

use super::Handle;
use crate::rpc::ask;

/// Asks these nodes; none: one does not answer in time.
pub(super) fn ask_each(
    shared: &Arc<Handle>,
    nodes: impl IntoIterator<Item = NodeId>,
    question: &Question,
    timeout: Duration,
) -> JoinSet<(NodeId, Option<Answer>)> {
    let mut asked = JoinSet::new();
    nodes.into_iter().for_each(|node| ask_one(&mut asked, shared, node, question.clone(), timeout));
    asked
}

fn ask_one(
    asked: &mut JoinSet<(NodeId, Option<Answer>)>,
    shared: &Arc<Handle>,
    node: NodeId,
    question: Question,
    timeout: Duration,
) {
    let Some(address) = shared.peers.address(node) else { return };
    let shared = Arc::clone(shared);
    asked.spawn_local(async move { (node, ask(&shared, Some(node), &address, &question, timeout).await.ok()) });
}

/// Asks all other nodes, now, and waits until each has answered or had its time.
pub(super) fn survey<T>(
    shared: &Arc<Handle>,
    question: &Question,
    timeout: Duration,
    counts: impl Fn(NodeId, Answer) -> Option<T>,
) -> impl Future<Output = Survey<T>> {
    survey_each(shared, |_| question.clone(), timeout, counts)
}

/// The same with a question for each node.
pub(super) fn survey_each<T>(
    shared: &Arc<Handle>,
    question: impl Fn(NodeId) -> Question,
    timeout: Duration,
    counts: impl Fn(NodeId, Answer) -> Option<T>,
) -> impl Future<Output = Survey<T>> {
    let own = shared.own.identity().map(|identity| identity.node).unwrap_or_default();
    let mut survey = Survey::new(&shared.cluster.map(), own);
    let mut asked = JoinSet::new();
    for &node in &survey.silent {
        ask_one(&mut asked, shared, node, question(node), timeout);
    }
    async move {
        while let Some(answered) = asked.join_next().await {
            if let Ok((node, Some(answer))) = answered {
                survey.hear(node, answer, &counts);
            }
        }
        survey
    }
}
