//! Asking the leader of the directory, wherever it is, as [`coppice_core::controller::directory_routing`] decides it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use coppice_client::wire::{NodeId, PartitionId};
use coppice_core::controller::directory_routing::{DirectoryLeader, ask_directory_again, directory_leader};
use coppice_core::machine::directory::{DirectoryCommand, DirectoryReply};
use coppice_core::question::{Answer, Question};
use coppice_core::request::{Refusal, Reply, Request};
use coppice_core::worker::Input;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Handle;
use crate::rpc::ask;

/// How long the directory's leader may take to decide a change.
pub(super) const DIRECTORY_TIMEOUT: Duration = Duration::from_secs(2);

/// How long an operator's change may take to reach a leader of the directory that decides it.
const SUBMIT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a question for the directory's leader is waited for.
#[derive(Clone, Copy)]
pub(super) struct Within {
    /// Of one try.
    pub ask: Duration,
    /// Of all; 0: one try.
    pub all: Duration,
}

/// Asks the directory's leader until `wanted` finds what it looks for in the answer.
pub(super) async fn ask_leader<T>(
    shared: &Arc<Handle>,
    question: Question,
    timeouts: Within,
    wanted: impl Fn(Answer) -> Option<T>,
) -> Result<T, String> {
    let until = Instant::now() + timeouts.all;
    loop {
        let reason = match ask_leader_once(shared, &question, timeouts.ask).await.map(&wanted) {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => "the leader of the directory gave an unexpected answer".to_owned(),
            Err(reason) => reason,
        };
        match ask_directory_again(reason, until.saturating_duration_since(Instant::now())) {
            ControlFlow::Continue(pause) => tokio::time::sleep(pause).await,
            ControlFlow::Break(reason) => return Err(reason),
        }
    }
}

async fn ask_leader_once(shared: &Arc<Handle>, question: &Question, timeout: Duration) -> Result<Answer, String> {
    let own = shared.own.identity().map(|identity| identity.node);
    match (directory_leader(own, shared.cluster.leader(PartitionId::DIRECTORY))?, question) {
        (DirectoryLeader::On(leader), _) => {
            let address = shared.peers.address(leader).ok_or_else(|| format!("{leader} has no known address"))?;
            ask(shared, Some(leader), &address, question, timeout).await.map_err(|error| error.to_string())
        }
        (DirectoryLeader::Here, Question::Directory(command)) => {
            decide_here(shared, command.clone()).await.map(Answer::Directory)
        }
        (DirectoryLeader::Here, Question::Map) => {
            shared.ask(|control| control.newest()).await.ok_or_else(|| "the node is stopping".to_owned())
        }
        // Its controller has yet to hear that it leads.
        (DirectoryLeader::Here, _) => Err("this node has just begun to lead the directory: ask again".to_owned()),
    }
}

fn decided(answer: Answer) -> Option<DirectoryReply> {
    if let Answer::Directory(reply) = answer { Some(reply) } else { None }
}

/// Has the leader of the directory decide `command`, wherever it is.
pub(super) async fn submit(shared: &Arc<Handle>, command: DirectoryCommand) -> Result<DirectoryReply, String> {
    let timeouts = Within { ask: DIRECTORY_TIMEOUT, all: SUBMIT_TIMEOUT };
    ask_leader(shared, Question::Directory(command), timeouts, decided).await
}

/// Has the directory decide `command`, also where no leader is known: the other nodes dial one that moved at its old
/// address, so that it hears of none.
pub(super) async fn tell(shared: &Arc<Handle>, own: NodeId, command: &DirectoryCommand) -> Result<(), String> {
    let question = Question::Directory(command.clone());
    let once = Within { ask: DIRECTORY_TIMEOUT, all: Duration::ZERO };
    let mut last = match ask_leader(shared, question.clone(), once, decided).await {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    let map = shared.cluster.map();
    for node in map.nodes.iter().filter(|node| node.id != own) {
        match ask(shared, Some(node.id), &node.addresses.peer, &question, DIRECTORY_TIMEOUT).await {
            Ok(Answer::Directory(_)) => return Ok(()),
            Ok(_) => last = format!("{}: an unexpected answer", node.id),
            Err(error) => last = format!("{}: {error}", node.id),
        }
    }
    Err(last)
}

/// Has the directory's replica here decide `command`.
pub(super) async fn decide_here(shared: &Arc<Handle>, command: DirectoryCommand) -> Result<DirectoryReply, String> {
    let (sender, receiver) = oneshot::channel();
    let asked = shared.ask_owner(PartitionId::DIRECTORY, DIRECTORY_TIMEOUT, move |thread| {
        let origin = thread.wait_for(sender);
        let (group, request) = (PartitionId::DIRECTORY, Request::Directory(Box::new(command)));
        thread.input(Input::Request { group, origin, request });
    });
    asked.await.ok_or("the directory's thread does not answer")?;
    match tokio::time::timeout(DIRECTORY_TIMEOUT, receiver).await {
        Ok(Ok(Reply::Directory(reply))) => Ok(reply),
        Ok(Ok(Reply::Refused(Refusal::NotLeader { .. }))) => Err("this node does not lead the directory".into()),
        Ok(Ok(_)) => Err("the directory is busy".into()),
        Ok(Err(_)) | Err(_) => Err("the directory did not decide in time".into()),
    }
}
