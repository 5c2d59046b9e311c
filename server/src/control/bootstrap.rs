//! Forming a cluster, once (operations.md 1.2), as [`coppice_core::bootstrap`] decides it.

use std::sync::Arc;
use std::time::Duration;

use coppice_client::map::Addresses;
use coppice_client::wire::control::AdminError;
use coppice_client::wire::{AdminReply, AdminRequest, ClusterId, InitRequest, PartitionId};
use coppice_core::bootstrap::{Ask, Forming, Heard, INIT_TIMEOUT, Init, Next, Process, becomes, first_directory};
use coppice_core::controller;
use coppice_core::incarnation::Identity;
use coppice_core::machine::directory::DirectoryReply;
use coppice_core::question::{Answer, Assignment, Identified, Question};
use coppice_ordering::Time;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;

use super::directory::submit;
use super::{Control, Handle};
use crate::rpc::ask_anybody;

/// How long one node may take to become a member.
const ASSIGN_TIMEOUT: Duration = Duration::from_secs(5);

/// Carries `init` out, or passes it on to the first seed.
pub(super) fn init(control: &mut Control, request: InitRequest, reply: tokio::sync::oneshot::Sender<AdminReply>) {
    let shared = Arc::clone(&control.shared);
    let process = Process {
        cluster: shared.own.identity().map(|identity| identity.cluster),
        map: &shared.cluster.map(),
        address: control.announcement.addresses.peer.clone(),
        seeds: shared.config.seeds.iter().map(ToString::to_string).collect(),
        partitions_max: shared.config.limits.partitions,
    };
    match control.bootstrap.init(process, request.clone(), draw_cluster()) {
        Init::Answer(answer) => _ = reply.send(*answer),
        Init::Form(forming) => {
            crate::task::spawn(async move { _ = reply.send(form(&shared, *forming).await) });
        }
        Init::PassOn(first) => {
            crate::task::spawn(async move {
                let question = Question::Admin(AdminRequest::Init(request));
                _ = reply.send(match ask_anybody(&shared, &first, &question, INIT_TIMEOUT).await {
                    Ok(Answer::Admin(answer)) => answer,
                    Ok(_) => failed("the first seed gave an unexpected answer"),
                    Err(error) => failed(&format!("the first seed must carry out init: {error}")),
                });
            });
        }
    }
}

/// Becomes a node of a cluster: durable before it answers; only a node without an identity accepts.
pub(super) fn assign(control: &mut Control, assignment: &Assignment) -> Answer {
    match become_node(control, assignment) {
        Ok(()) => Answer::Identified(identified(control)),
        Err(text) => Answer::Refused(text),
    }
}

fn become_node(control: &mut Control, &Assignment { cluster, node, ref directory }: &Assignment) -> Result<(), String> {
    let own = control.shared.own.identity().map(|own| (own.cluster, own.node));
    if becomes(own, (cluster, node))? {
        if let Some(Err(error)) = control.shared.tls().map(|tls| tls.must_name(node)) {
            return Err(format!("this node is to be {node}: {error}"));
        }
        control.storage.home.adopt(cluster, node).map_err(|error| error.to_string())?;
        control.open_log().map_err(|error| error.to_string())?;
    }
    control.controller.replicas().may_found(&first_directory(directory))?;
    // Once there is a map, it says where the directory is.
    if control.shared.cluster.map().version.0 == 0 {
        control.tell(controller::Input::Founded(directory.clone()));
    }
    Ok(())
}

pub(super) fn identified(control: &Control) -> Identified {
    let identity = control.shared.own.identity().map(|Identity { cluster, node, .. }| (cluster, node));
    let map = control.shared.cluster.map();
    let size = (map.version.0 > 0).then_some((map.nodes.len() as u32, map.partitions.len() as u32));
    Identified {
        identity,
        size,
        name: control.shared.config.name.clone(),
        addresses: control.announcement.addresses.clone(),
    }
}

fn failed(text: &str) -> AdminReply {
    AdminReply::Failed(AdminError::Refused(text.to_owned()))
}

fn draw_cluster() -> ClusterId {
    ClusterId(u128::from(crate::random::draw()) << 64 | u128::from(crate::random::draw()))
}

/// Asks for what `forming` wants until there is an answer.
async fn form(shared: &Arc<Handle>, mut forming: Forming) -> AdminReply {
    let begun = Instant::now();
    let now = || Time(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let mut seeds = None;
    let mut next = forming.begin(now());
    loop {
        let ask = match next {
            Next::Continue(ask) => ask,
            Next::Break(answer) => {
                if let AdminReply::Initialized { cluster, .. } = answer
                    && shared.own.identity().is_none_or(|own| own.cluster != cluster)
                {
                    tracing::warn!(%cluster, "a seed belongs to a cluster that this node does not belong to");
                }
                return answer;
            }
        };
        let until = begun + Duration::from_nanos(forming.deadline().0);
        let heard = tokio::time::timeout_at(until, hear(shared, &mut seeds, ask)).await.unwrap_or(Heard::TimedOut);
        if matches!(heard, Heard::Decided(Ok(DirectoryReply::Done))) {
            let nonce = forming.nonce();
            shared.call(move |control| control.bootstrap.created(nonce));
        }
        next = forming.step(now(), heard);
    }
}

/// What is answered. `seeds`: answers of those that were asked who they are.
async fn hear(shared: &Arc<Handle>, seeds: &mut Option<UnboundedReceiver<Heard>>, ask: Ask) -> Heard {
    match ask {
        Ask::Identify(asked) => seeds.insert(identify(shared, asked)).recv().await.unwrap_or(Heard::TimedOut),
        Ask::Hear => match seeds {
            Some(seeds) => seeds.recv().await.unwrap_or(Heard::TimedOut),
            None => Heard::TimedOut,
        },
        Ask::Assign { seed, cluster, node, directory } => {
            let assignment = Assignment { cluster, node, directory };
            Heard::Assigned(assign_to(shared, seed, assignment).await)
        }
        Ask::Decide(command) => Heard::Decided(submit(shared, *command).await),
        Ask::Map => {
            wait_until(|| shared.cluster.map().version.0 > 0).await;
            let map = shared.cluster.map();
            Heard::Exists { nodes: map.nodes.len() as u32, partitions: map.partitions.len() as u32 }
        }
        Ask::Leaders(partitions) => {
            wait_for_leaders(shared, partitions).await;
            Heard::Led
        }
    }
}

/// Asks seeds who they are, each until it answers or nobody listens.
fn identify(shared: &Arc<Handle>, seeds: Vec<String>) -> UnboundedReceiver<Heard> {
    let (sender, answers) = tokio::sync::mpsc::unbounded_channel();
    for seed in seeds {
        let (shared, sender) = (Arc::clone(shared), sender.clone());
        crate::task::spawn(async move {
            while !sender.is_closed() {
                match ask_anybody(&shared, &seed, &Question::Identify, ASSIGN_TIMEOUT).await {
                    Ok(Answer::Identified(identified)) => {
                        _ = sender.send(Heard::Identified { seed, who: identified });
                        return;
                    }
                    // Not started yet, perhaps.
                    Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        });
    }
    answers
}

async fn assign_to(shared: &Arc<Handle>, seed: Option<String>, assignment: Assignment) -> Result<Identified, String> {
    let answer = match seed {
        None => {
            let assigned = shared.ask(move |control| assign(control, &assignment)).await;
            assigned.ok_or_else(|| "the node is stopping".to_owned())?
        }
        Some(seed) => loop {
            match ask_anybody(shared, &seed, &Question::Assign(assignment.clone()), ASSIGN_TIMEOUT).await {
                Ok(answer) => break answer,
                Err(crate::rpc::AskError::Refused { text, .. }) => return Err(text),
                // Not started yet, perhaps: `init` waits for all seeds, within its own time limit.
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        },
    };
    match answer {
        Answer::Identified(identified) => Ok(identified),
        Answer::Refused(text) => Err(text),
        _ => Err("an unexpected answer".into()),
    }
}

async fn wait_for_leaders(shared: &Arc<Handle>, partitions: u32) {
    wait_until(|| {
        let leaders = shared.cluster.leaders();
        (1..=partitions).all(|id| leaders.contains_key(&PartitionId(id)))
    })
    .await;
}

async fn wait_until(holds: impl Fn() -> bool) {
    while !holds() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Where this node is reached, before a map says so.
pub fn addresses(native: String, peer: String, resp: Option<String>, admin: Option<String>) -> Addresses {
    Addresses { native, peer, admin: admin.unwrap_or_default(), resp: resp.unwrap_or_default() }
}
