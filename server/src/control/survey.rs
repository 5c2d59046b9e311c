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
    for node in nodes {
        let Some(address) = shared.peers.address(node) else { continue };
        let (shared, question) = (Arc::clone(shared), question.clone());
        asked.spawn_local(async move { (node, ask(&shared, Some(node), &address, &question, timeout).await.ok()) });
    }
    asked
}

/// Asks all other nodes, now, and waits until each has answered or had its time.
pub(super) fn survey<T>(
    shared: &Arc<Handle>,
    question: &Question,
    timeout: Duration,
    counts: impl Fn(NodeId, Answer) -> Option<T>,
) -> impl Future<Output = Survey<T>> {
    let own = shared.own.identity().map(|identity| identity.node).unwrap_or_default();
    let mut survey = Survey::new(&shared.cluster.map(), own);
    let mut asked = ask_each(shared, survey.silent.iter().copied(), question, timeout);
    async move {
        while let Some(answered) = asked.join_next().await {
            if let Ok((node, Some(answer))) = answered {
                survey.hear(node, answer, &counts);
            }
        }
        survey
    }
}
