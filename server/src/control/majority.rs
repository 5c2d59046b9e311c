//! Verbs of clients, for most of which this node must speak for the cluster: whether it may, [`Probe`] decides.

use std::sync::Arc;
use std::time::Duration;

use coppice_client::wire::control::AdminError;
use coppice_client::wire::{AdminReply, AdminRequest};
use coppice_core::majority::Probe;
use coppice_core::question::{Answer, Question};
use tokio::sync::oneshot;

use super::coalesced;
use super::survey::ask_each;
use super::{Control, Handle};
use crate::shared::Shared;

/// How long a voter may take to say that it is there; the majority decides, so those that are gone are not waited for.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

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
    let mut probe = Probe::new(&map, (own.cluster, own.node));
    let mut asked = ask_each(shared, probe.unheard(), &Question::Identify, PROBE_TIMEOUT);
    while !probe.is_majority() {
        match asked.join_next().await {
            Some(Ok((node, Some(Answer::Identified(who))))) => probe.hear(node, who.identity),
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
