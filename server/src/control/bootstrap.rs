//! Forming a cluster, once (operations.md 1.2): identities to all seeds, group 0, then the map.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coppice_client::map::{Addresses, Entry, NodeInfo, NodeState, PartitionMap, ReplicaInfo, Role};
use coppice_client::wire::control::AdminError;
use coppice_client::wire::{AdminReply, ClusterId, InitRequest, NodeId, PartitionId, ReplicaId};
use coppice_core::bootstrap::{check, first_map, is_in_the_way};
use coppice_core::controller;
use coppice_core::incarnation::Identity;
use coppice_core::machine::directory::{DirectoryCommand, DirectoryReply};
use coppice_core::question::{Answer, Assignment, Identified, Question};
use coppice_core::settings::ClusterSettings;

use super::{Control, Handle};
use crate::rpc::ask_anybody;

/// How long one node may take to become a member.
const ASSIGN_TIMEOUT: Duration = Duration::from_secs(5);

/// The cluster that `init` forms, or formed, here.
#[derive(Default)]
pub(super) struct Bootstrap {
    /// Its id, if it is asked for.
    drawn: Option<ClusterId>,
    /// The nonce of that `init`.
    formed_for: Option<u64>,
}

/// How long the whole of `init` may take.
const INIT_TIMEOUT: Duration = Duration::from_secs(30);

/// Carries `init` out, or passes it on to the first seed.
pub(super) fn init(control: &mut Control, request: InitRequest, reply: tokio::sync::oneshot::Sender<AdminReply>) {
    let seeds: Vec<String> = control.shared.config.seeds.iter().map(ToString::to_string).collect();
    let own = control.announcement.addresses.peer.clone();
    let first = seeds.first().cloned().unwrap_or_else(|| own.clone());
    if first != own {
        let shared = Arc::clone(&control.shared);
        crate::task::spawn(async move {
            let question = Question::Admin(coppice_client::wire::AdminRequest::Init(request));
            let answer = match ask_anybody(&shared, &first, &question, INIT_TIMEOUT).await {
                Ok(Answer::Admin(answer)) => answer,
                Ok(_) => failed("the first seed gave an unexpected answer"),
                Err(error) => failed(&format!("the first seed must carry out init: {error}")),
            };
            _ = reply.send(answer);
        });
        return;
    }
    if control.shared.cluster.map().version.0 > 0 {
        _ = reply.send(existed(control, &request));
        return;
    }
    let seeds = if seeds.is_empty() { vec![own.clone()] } else { seeds };
    let room = control.shared.config.limits.partitions;
    if let Err(text) = check(&request, seeds.len(), room) {
        _ = reply.send(AdminReply::Failed(AdminError::Invalid(text)));
        return;
    }
    // Drawn once: a repeated init goes on with the cluster that an interrupted one began.
    let drawn = *control.bootstrap.drawn.get_or_insert_with(draw_cluster);
    control.bootstrap.formed_for = Some(request.nonce);
    let shared = Arc::clone(&control.shared);
    crate::task::spawn(async move {
        let found = tokio::time::timeout(INIT_TIMEOUT, look_for_cluster(&shared, &seeds)).await;
        match found {
            Ok(None) => {}
            Ok(Some(found)) => {
                _ = reply.send(found.answer(&request, &own));
                return;
            }
            Err(_) => {
                let text = "not all seeds answer: init asks all of them first, and has begun nothing".to_owned();
                _ = reply.send(AdminReply::Failed(AdminError::TimedOut(text)));
                return;
            }
        }
        let cluster = shared.own.identity().map_or(drawn, |identity| identity.cluster);
        let formed = tokio::time::timeout(INIT_TIMEOUT, form(&shared, cluster, &seeds, &request)).await;
        _ = reply.send(match formed {
            Ok(Ok(answer)) => answer,
            Ok(Err(text)) => AdminReply::Failed(AdminError::Refused(text)),
            Err(_) => AdminReply::Failed(AdminError::TimedOut(
                "init is not finished after 30 s; it goes on where it stopped when it is repeated".into(),
            )),
        });
    });
}

fn existed(control: &Control, request: &InitRequest) -> AdminReply {
    let map = control.shared.cluster.map();
    let cluster = control.shared.own.identity().map(|identity| identity.cluster).unwrap_or_default();
    let again = request.nonce != 0 && control.bootstrap.formed_for == Some(request.nonce) && !mutant!(init_forgets);
    if !request.if_needed && !again {
        let text = format!("this node belongs to cluster {cluster} already");
        return AdminReply::Failed(AdminError::Exists(text));
    }
    let (nodes, partitions) = (map.nodes.len() as u32, map.partitions.len() as u32);
    AdminReply::Initialized { cluster, nodes, partitions, existed: !again }
}

/// Becomes a node of a cluster: durable before it answers; only a node without an identity accepts.
pub(super) fn assign(control: &mut Control, assignment: &Assignment) -> Answer {
    if let Some(own) = control.shared.own.identity() {
        if (own.cluster, own.node) == (assignment.cluster, assignment.node) {
            // Once there is a map, it says where the directory is.
            if control.shared.cluster.map().version.0 == 0 {
                start_directory(control, assignment);
            }
            return Answer::Identified(identified(control));
        }
        return Answer::Refused(format!("this is {} of cluster {} already", own.node, own.cluster));
    }
    if let Some(Err(error)) = control.shared.tls().map(|tls| tls.must_name(assignment.node)) {
        return Answer::Refused(format!("this node is to be {}: {error}", assignment.node));
    }
    match control.storage.home.adopt(assignment.cluster, assignment.node) {
        Ok(()) => {
            if let Err(error) = control.open_log() {
                return Answer::Refused(error.to_string());
            }
            start_directory(control, assignment);
            Answer::Identified(identified(control))
        }
        Err(error) => Answer::Refused(error.to_string()),
    }
}

/// Starts group 0 here if the assignment places a replica of it on this node.
fn start_directory(control: &mut Control, assignment: &Assignment) {
    let replicas: Vec<ReplicaInfo> = assignment
        .directory
        .iter()
        .map(|(replica, node, _)| ReplicaInfo { replica: *replica, node: *node, role: Role::Voter })
        .collect();
    for (_, node, address) in &assignment.directory {
        control.link(*node, address);
    }
    let entry = Entry { partition: PartitionId::DIRECTORY, replicas, ..Entry::default() };
    control.tell(controller::Input::Founded(Box::new(entry)));
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

/// A seed that belongs to a cluster already, where this node belongs to none or to another one.
struct ForeignSeed {
    seed: String,
    cluster: ClusterId,
    node: NodeId,
    /// Nodes and partitions, if that cluster is whole.
    size: Option<(u32, u32)>,
    /// Where that node serves clients.
    native: String,
}

impl ForeignSeed {
    /// What `init` says of it: nothing is formed, and nothing was begun.
    fn answer(&self, request: &InitRequest, own: &str) -> AdminReply {
        let ForeignSeed { seed, cluster, node, size, native } = self;
        if let (true, Some((nodes, partitions))) = (request.if_needed, *size) {
            tracing::warn!(%cluster, %seed, "a seed belongs to a cluster that this node does not belong to");
            return AdminReply::Initialized { cluster: *cluster, nodes, partitions, existed: true };
        }
        // Nodes are numbered in the order of the seeds, and the first one carries `init` out.
        AdminReply::Failed(AdminError::Exists(format!(
            "seed {seed} is {node} of cluster {cluster} already, and this node is not part of that cluster; to let it \
             take the place of a node that lost its disk: coppice node replace n1 {own} --endpoints {native} \
             (coppice node ls --endpoints {native} tells which node was here)"
        )))
    }
}

/// Asks all other seeds who they are, before anything is begun; returns when all have answered, or one belongs to a
/// cluster that this node does not belong to. A first seed whose disk was lost would form a second cluster otherwise,
/// at an address that the first one's clients know.
async fn look_for_cluster(shared: &Arc<Handle>, seeds: &[String]) -> Option<ForeignSeed> {
    if mutant!(init_asks_nobody) {
        return None;
    }
    let (sender, mut answers) = tokio::sync::mpsc::unbounded_channel();
    for seed in seeds.iter().skip(1).cloned() {
        let (shared, sender) = (Arc::clone(shared), sender.clone());
        crate::task::spawn(async move {
            // Until the receiver is gone.
            while !sender.is_closed() {
                match ask_anybody(&shared, &seed, &Question::Identify, ASSIGN_TIMEOUT).await {
                    Ok(Answer::Identified(identified)) => {
                        _ = sender.send((seed, identified));
                        return;
                    }
                    // Not started yet, perhaps.
                    Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        });
    }
    drop(sender);
    let own = shared.own.identity().map(|identity| identity.cluster);
    while let Some((seed, Identified { identity, size, addresses, .. })) = answers.recv().await {
        let foreign = identity.filter(|_| is_in_the_way(identity, own, size.is_some()));
        if let Some((cluster, node)) = foreign {
            return Some(ForeignSeed { seed, cluster, node, size, native: addresses.native });
        }
    }
    None
}

fn failed(text: &str) -> AdminReply {
    AdminReply::Failed(AdminError::Refused(text.to_owned()))
}

fn draw_cluster() -> ClusterId {
    ClusterId(u128::from(crate::random::draw()) << 64 | u128::from(crate::random::draw()))
}

/// Identities, group 0, the map, and leaders for all partitions.
async fn form(
    shared: &Arc<Handle>,
    cluster: ClusterId,
    seeds: &[String],
    request: &InitRequest,
) -> Result<AdminReply, String> {
    let settings: BTreeMap<String, String> = request.settings.iter().cloned().collect();
    let parsed = ClusterSettings::of_pairs(&settings).map_err(|error| error.to_string())?;
    let replicas = (parsed.replicas as usize).min(seeds.len()).max(1);
    let directory: Vec<(ReplicaId, NodeId, String)> =
        (1..=replicas as u32).map(|n| (ReplicaId(n), NodeId(n), seeds[n as usize - 1].clone())).collect();
    let mut nodes = Vec::new();
    for (at, seed) in seeds.iter().enumerate() {
        let node = NodeId(at as u32 + 1);
        let assignment = Assignment { cluster, node, directory: directory.clone() };
        let identified = assign_to(shared, seed, assignment, at == 0).await?;
        nodes.push(NodeInfo {
            id: node,
            name: identified.name,
            addresses: identified.addresses,
            state: NodeState::Member,
        });
    }
    let map = PartitionMap { cluster, ..first_map(nodes, &directory, request, replicas) };
    map.check().map_err(|error| error.to_string())?;
    let (nodes, partitions) = (map.nodes.len() as u32, map.partitions.len() as u32);
    let command = DirectoryCommand::Create { map, settings };
    match submit(shared, command).await? {
        DirectoryReply::Done => {}
        DirectoryReply::AlreadyCreated if request.if_needed => {
            wait_until(|| shared.cluster.map().version.0 > 0).await;
            let map = shared.cluster.map();
            let (nodes, partitions) = (map.nodes.len() as u32, map.partitions.len() as u32);
            return Ok(AdminReply::Initialized { cluster, nodes, partitions, existed: true });
        }
        DirectoryReply::AlreadyCreated
        | DirectoryReply::UnknownNode
        | DirectoryReply::Registered(_)
        | DirectoryReply::UsersChanged { .. }
        | DirectoryReply::UsersRefused(_)
        | DirectoryReply::Refused(_) => return Err("another init created the map first".into()),
    }
    wait_for_leaders(shared, partitions).await;
    Ok(AdminReply::Initialized { cluster, nodes, partitions, existed: false })
}

async fn assign_to(shared: &Arc<Handle>, seed: &str, assignment: Assignment, own: bool) -> Result<Identified, String> {
    let answer = if own {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        shared.call(move |control| _ = sender.send(assign(control, &assignment)));
        receiver.await.map_err(|_| "the node is stopping".to_owned())?
    } else {
        loop {
            match ask_anybody(shared, seed, &Question::Assign(assignment.clone()), ASSIGN_TIMEOUT).await {
                Ok(answer) => break answer,
                Err(crate::rpc::AskError::Refused { text, .. }) => return Err(format!("seed {seed}: {text}")),
                // Not started yet, perhaps: `init` waits for all seeds, within its own time limit.
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    match answer {
        Answer::Identified(identified) => Ok(identified),
        Answer::Refused(text) => Err(format!("seed {seed}: {text}")),
        _ => Err(format!("seed {seed}: an unexpected answer")),
    }
}

/// Has the leader of the directory decide `command`, wherever it is.
pub(super) async fn submit(shared: &Arc<Handle>, command: DirectoryCommand) -> Result<DirectoryReply, String> {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    let mut last = "no leader of the directory is known".to_owned();
    while tokio::time::Instant::now() < deadline {
        match super::admin::directory(shared, command.clone()).await {
            Ok(reply) => return Ok(reply),
            Err(text) => last = text,
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Err(last)
}

async fn wait_for_leaders(shared: &Arc<Handle>, partitions: u32) {
    wait_until(|| {
        let leaders = shared.cluster.leaders();
        (1..=partitions).all(|id| leaders.contains_key(&PartitionId(id)))
    })
    .await;
}

/// Waits until it holds, five seconds at most.
async fn wait_until(holds: impl Fn() -> bool) {
    for _ in 0..1_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Where this node is reached, before a map says so.
pub fn addresses(native: String, peer: String, admin: Option<String>) -> Addresses {
    Addresses { native, peer, admin: admin.unwrap_or_default(), resp: String::new() }
}
