//! Changes of the users: decided by the directory, then told to every node, so that whoever asked for one knows which
//! nodes go by it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coppice_client::map::PartitionMap;
use coppice_client::wire::control::AdminError;
use coppice_client::wire::{AdminReply, MapVersion, NodeId, UserChange, UserChangeReply};
use coppice_core::access::Users;
use coppice_core::machine::directory::{DirectoryCommand, DirectoryReply};
use coppice_core::question::{Answer, Question};
use coppice_core::survey;
use tokio::sync::oneshot;

use super::Handle;
use super::directory::{Within, ask_leader, submit};
use super::survey::survey;

/// How long the leader of the directory may take to say what was decided, and then each node to follow.
const TOLD_TIMEOUT: Duration = Duration::from_secs(1);

/// Changes the users, as `by` asks.
pub(super) fn change_users(
    shared: &Arc<Handle>,
    by: Option<String>,
    change: UserChange,
    reply: oneshot::Sender<AdminReply>,
) {
    let shared = Arc::clone(shared);
    crate::task::spawn(async move {
        let decided = submit(&shared, DirectoryCommand::ChangeUsers { by, change: Box::new(change) }).await;
        _ = reply.send(match decided {
            Ok(DirectoryReply::UsersChanged { version, is_first }) => {
                AdminReply::UsersChanged(UserChangeReply { is_first, behind: tell_all(&shared, version).await })
            }
            Ok(DirectoryReply::UsersRefused(error)) => AdminReply::Failed(error.into()),
            Ok(_) => AdminReply::Failed(AdminError::Refused("the directory gave an unexpected answer".into())),
            Err(text) => AdminReply::Failed(AdminError::TimedOut(text)),
        });
    });
}

/// Tells every node what the directory holds at `version` or later; those that did not confirm it.
async fn tell_all(shared: &Arc<Handle>, version: MapVersion) -> Vec<NodeId> {
    let Ok(Ok((map, settings, users))) = tokio::time::timeout(TOLD_TIMEOUT, newest(shared, version)).await else {
        return survey::members(&shared.cluster.map()).collect();
    };
    let question = Question::Adopt { map: map.clone(), settings: settings.clone(), users: users.clone() };
    // Its own map says whom it tells.
    shared.ask(move |control| control.adopt(map, settings, users)).await;
    survey(shared, &question, TOLD_TIMEOUT, survey::consent).await.silent.into_iter().collect()
}

/// What the leader of the directory holds, once that is `version` or later.
async fn newest(
    shared: &Arc<Handle>,
    version: MapVersion,
) -> Result<(PartitionMap, BTreeMap<String, String>, Users), String> {
    let timeouts = Within { ask: TOLD_TIMEOUT, all: TOLD_TIMEOUT };
    let newest = ask_leader(shared, Question::Map, timeouts, |answer| match answer {
        Answer::Map { map, settings, users, .. } if map.version >= version => Some((map, settings, users)),
        _ => None,
    });
    newest.await
}
