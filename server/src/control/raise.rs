//! Raising the feature level (operations.md 5.7): every node is asked whether it can, then every node notes in its
//! directory that older programs must not open it, then the directory decides.

use std::sync::Arc;

use coppice_client::map::NodeState;
use coppice_client::wire::control::AdminError;
use coppice_client::wire::{AdminReply, NodeId};
use coppice_core::machine::directory::{DirectoryCommand, DirectoryReply};
use coppice_core::question::{Answer, Question};
use coppice_core::settings::FEATURE_LEVEL;
use tokio::sync::oneshot;

use super::directory::submit;
use super::topology::ASK_TIMEOUT;
use super::{Control, Handle};
use crate::rpc::ask;

/// Notes durably that the directory is for programs that know this feature level. Without that nothing of the level may
/// be written here.
///
/// # Errors
/// In words; the directory is as it was.
pub(super) fn note(control: &Control, level: u32) -> Result<(), String> {
    control.storage.home.note_feature_level(level).map_err(|error| error.to_string())
}

/// What a node answers that is asked for this level.
pub(super) fn answer(control: &Control, level: u32, must_note: bool) -> Answer {
    let can = if level <= FEATURE_LEVEL { Ok(()) } else { Err(format!("it knows levels up to {FEATURE_LEVEL}")) };
    let noted = if must_note { can.and_then(|()| note(control, level)) } else { can };
    noted.map_or_else(Answer::Refused, |()| Answer::Done)
}

/// Raises the level of the cluster, or says which node is in the way.
pub(super) fn raise(shared: &Arc<Handle>, level: u32, reply: oneshot::Sender<AdminReply>) {
    let shared = Arc::clone(shared);
    crate::task::spawn(async move {
        let raised = raise_all(&shared, level).await;
        _ = reply.send(raised.map_or_else(AdminReply::Failed, |()| AdminReply::Done));
    });
}

async fn raise_all(shared: &Arc<Handle>, level: u32) -> Result<(), AdminError> {
    let map = shared.cluster.map();
    let nodes: Vec<_> = map.nodes.iter().filter(|node| node.state != NodeState::Removed).collect();
    // Nobody notes anything before all have said that they can: an older program could not open the directory again.
    for must_note in [false, true] {
        for node in &nodes {
            ask_one(shared, node.id, &node.addresses.peer, level, must_note).await.map_err(|text| {
                AdminError::Refused(format!(
                    "feature level {level} is for clusters whose nodes all know it, and {} is not ready: {text}; \
                     upgrade, start or remove it, then ask again",
                    node.id
                ))
            })?;
        }
    }
    match submit(shared, DirectoryCommand::RaiseFeatureLevel { level, map: map.version }).await {
        Ok(DirectoryReply::Refused(reason)) => Err(AdminError::Invalid(reason.to_string())),
        Ok(_) => Ok(()),
        Err(text) => Err(AdminError::TimedOut(text)),
    }
}

async fn ask_one(shared: &Arc<Handle>, node: NodeId, address: &str, level: u32, must_note: bool) -> Result<(), String> {
    let answered = if shared.own.identity().is_some_and(|own| own.node == node) {
        shared.ask(move |control| answer(control, level, must_note)).await.ok_or("it is stopping")?
    } else {
        let question = Question::FeatureLevel { level, note: must_note };
        ask(shared, Some(node), address, &question, ASK_TIMEOUT).await.map_err(|error| error.to_string())?
    };
    match answered {
        Answer::Done => Ok(()),
        Answer::Refused(text) => Err(text),
        _ => Err("it gave an unexpected answer".into()),
    }
}
