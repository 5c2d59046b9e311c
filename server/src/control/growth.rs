//! Growing and shrinking, the part that acts: the leader of the directory looks at all nodes, asks
//! [`coppice_core::reshape`] what is next, and has it done (protocol.md 1.5, 8). Whoever leads the directory next goes
//! on from its log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use coppice_client::map::{NodeState, PartitionMap};
use coppice_client::wire::control::AdminError;
use coppice_client::wire::{
    AdminReply, AdminRequest, ChangeId, MapVersion, NodeId, PartitionId, ReshapeRequest, Reshaped, Shape,
};
use coppice_core::machine::directory::{Change, DirectoryCommand, DirectoryReply, DirectoryState, Reshape};
use coppice_core::replica::Input;
use coppice_core::reshape::{Deciding, Step, Verdict, View, balance, steps, verdict};
use coppice_core::status::LocalStatus;
use coppice_ordering::{Configuration, Instance};
use tokio::sync::oneshot;

use super::admin::decide_here;
use super::{Control, ToControl, ask_shard};
use crate::net::rpc::{Answer, AskError, Assignment, Question, ask, ask_anybody};
use crate::shared::Shared;

/// How long another node may take to say how it is.
const ASK_TIMEOUT: Duration = Duration::from_millis(450);

/// Between two looks while something is under way: a move is to be done soon after its learner has caught up.
const LOOK_BUSY: Duration = Duration::from_millis(50);

/// Between two looks at a cluster that is as it should be.
const LOOK_CALM: Duration = Duration::from_secs(2);

/// Between two handovers that only make leaderships more even.
const BALANCE_INTERVAL: Duration = Duration::from_secs(2);

/// After that time, and the handover's own, a handover may be asked for again.
const HANDOVER_MEMORY: Duration = Duration::from_secs(20);

/// How long a verb may take to reach the leader of the directory and come back.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(4);

/// What the driver remembers between its looks; nothing that safety rests on.
pub(crate) struct Driver {
    /// When to look next.
    pub next: Instant,
    /// A look is under way.
    looking: bool,
    /// When each group's leader was last asked to hand over.
    asked: BTreeMap<PartitionId, Instant>,
    balanced: Instant,
    /// Changes of borders whose ticket is released: the directory does not know yet.
    released: BTreeSet<MapVersion>,
    /// Steps that the directory has yet to decide.
    deciding: Deciding,
    /// Nodes that could not be told their number, and why.
    troubles: BTreeMap<NodeId, String>,
}

impl Default for Driver {
    fn default() -> Driver {
        let now = Instant::now();
        Driver {
            next: now,
            looking: false,
            asked: BTreeMap::new(),
            balanced: now,
            released: BTreeSet::new(),
            deciding: Deciding::default(),
            troubles: BTreeMap::new(),
        }
    }
}

impl Control {
    /// Whether this node leads the directory.
    fn drives(&self) -> bool {
        let own = self.shared.identity().map(|identity| identity.node);
        own.is_some() && self.shared.leader(PartitionId::DIRECTORY) == own
    }

    /// Looks at all nodes, if this one leads the directory, and does what is next.
    pub(super) fn drive(&mut self) {
        self.driver.next = Instant::now() + LOOK_CALM;
        let (true, Some(state)) = (self.drives(), self.directory.clone()) else { return };
        if state.map.version.0 == 0 || std::mem::replace(&mut self.driver.looking, true) {
            return;
        }
        let look = self.look(&state);
        let shared = Arc::clone(&self.shared);
        tokio::task::spawn_local(async move {
            let view = look.await;
            shared.tell_control(ToControl::Call(Box::new(move |control| control.on_view(&view))));
        });
    }

    /// What all nodes say of themselves.
    fn look(&self, state: &DirectoryState) -> impl Future<Output = View> + use<> {
        let shared = Arc::clone(&self.shared);
        let own = shared.identity().map(|identity| identity.node).unwrap_or_default();
        let local = self.local_status();
        let others = state.map.nodes.iter().filter(|node| node.id != own && !node.addresses.peer.is_empty());
        let others: Vec<(NodeId, String)> = others.map(|node| (node.id, node.addresses.peer.clone())).collect();
        async move {
            let asked: Vec<_> = others
                .into_iter()
                .map(|(id, address)| {
                    let shared = Arc::clone(&shared);
                    let asked =
                        async move { (id, ask(&shared, Some(id), &address, &Question::Status, ASK_TIMEOUT).await) };
                    tokio::task::spawn_local(asked)
                })
                .collect();
            let mut nodes: BTreeMap<NodeId, LocalStatus> = BTreeMap::from([(own, local.await)]);
            for task in asked {
                // A process that lost its data answers as nobody: that node is not up.
                if let Ok((id, Ok(Answer::Status(status)))) = task.await
                    && status.node.id == id
                {
                    nodes.insert(id, *status);
                }
            }
            View::new(nodes)
        }
    }

    fn on_view(&mut self, view: &View) {
        self.driver.looking = false;
        let (true, Some(state)) = (self.drives(), self.directory.clone()) else { return };
        let now = Instant::now();
        let longest = self.settings.handover_timeout;
        self.driver.asked.retain(|_, asked| now - *asked < HANDOVER_MEMORY + longest);
        let replicas = self.settings.replicas as usize;
        self.driver.released.retain(|version| state.border(*version).is_some());
        let mut steps = steps(&state, view, replicas, &self.tried(&state, now));
        let cut = |&version: &MapVersion| Step::Decide(DirectoryCommand::Reshape(Reshape::Released { version }));
        steps.extend(self.driver.released.iter().map(cut));
        let pending = !steps.is_empty() || !state.changes.is_empty();
        let here = |group| self.replica_manager.running().contains_key(&group);
        let mut news = false;
        for (group, leader) in view.leaders_elsewhere(&state.map, here) {
            news |= self.shared.set_leader(group, Some(leader));
        }
        if news {
            // The workers look at who leads where when their turns begin.
            self.on_all_shards(|| |shard: &mut crate::shard::Shard| shard.look());
        }
        self.push_map(&state.map, view);
        for step in steps {
            self.take_step(step, &state);
        }
        if pending {
            self.driver.next = now + LOOK_BUSY;
        } else if now - self.driver.balanced >= BALANCE_INTERVAL {
            self.driver.balanced = now;
            if let Some(step) = balance(&state, view) {
                self.take_step(step, &state);
            }
        }
    }

    /// Moves whose leader was asked to hand over, and did not in time.
    fn tried(&self, state: &DirectoryState, now: Instant) -> BTreeSet<ChangeId> {
        let slow = |change: &Change| {
            change.groups().any(|group| {
                self.driver.asked.get(&group).is_some_and(|&asked| now - asked >= self.settings.handover_timeout)
            })
        };
        state.changes.iter().filter(|(_, change)| slow(change)).map(|(&id, _)| id).collect()
    }

    /// Nodes that do not host the directory hear of a new map at once; they ask for it from time to time too.
    fn push_map(&self, map: &PartitionMap, view: &View) {
        for node in &map.nodes {
            let behind = view.node(node.id).is_some_and(|local| local.map_version < map.version.0);
            if behind && !node.addresses.peer.is_empty() {
                let (to, address) = (node.id, node.addresses.peer.clone());
                let (shared, map, settings) = (Arc::clone(&self.shared), map.clone(), self.pairs.clone());
                let users = self.shared.access().users().clone();
                tokio::task::spawn_local(async move {
                    // Lost, it comes with the next look.
                    _ = ask(&shared, Some(to), &address, &Question::Adopt { map, settings, users }, ASK_TIMEOUT).await;
                });
            }
        }
    }

    fn take_step(&mut self, step: Step, state: &Arc<DirectoryState>) {
        let shared = Arc::clone(&self.shared);
        let address = |node: NodeId| state.map.node(node).map(|row| row.addresses.peer.clone()).unwrap_or_default();
        let own = shared.identity().map(|identity| identity.node);
        match step {
            Step::Decide(command) => {
                if !self.driver.deciding.begin(&command) {
                    return;
                }
                tokio::task::spawn_local(async move {
                    let decided = decide_here(&shared, command.clone()).await;
                    let goes_on = matches!(&decided, Ok(reply) if !matches!(reply, DirectoryReply::Refused(_)));
                    match decided {
                        Ok(DirectoryReply::Refused(reason)) => {
                            tracing::info!(?command, %reason, "the directory does not take a step");
                        }
                        Ok(_) => {}
                        Err(error) => tracing::debug!(?command, %error, "a step is not decided yet"),
                    }
                    let end = move |control: &mut Control| {
                        control.driver.deciding.end(&command);
                        if goes_on {
                            control.drive();
                        }
                    };
                    shared.tell_control(ToControl::Call(Box::new(end)));
                });
            }
            Step::Configure { leader, partition, expected, configuration } => {
                tracing::info!(%partition, %configuration, "a new configuration is to be proposed");
                if Some(leader) == own {
                    configure(&shared, partition, expected, configuration);
                    return;
                }
                let address = address(leader);
                tokio::task::spawn_local(async move {
                    let question = Question::Configure { partition, expected, configuration };
                    if let Err(error) = ask(&shared, Some(leader), &address, &question, ASK_TIMEOUT).await {
                        tracing::debug!(%partition, %error, "a configuration was not proposed; it will be");
                    }
                });
            }
            Step::Transfer { leader, partition, to } => {
                let now = Instant::now();
                if self.driver.asked.contains_key(&partition) {
                    return;
                }
                self.driver.asked.insert(partition, now);
                let longest = self.settings.handover_timeout;
                let deadline_ms = longest.as_millis() as u32;
                let address = address(leader);
                tracing::info!(%partition, from = %leader, %to, "leadership is to be handed over");
                if Some(leader) == own {
                    let (sender, receiver) = oneshot::channel();
                    self.answer_transfer(partition, to, longest, sender);
                    tokio::task::spawn_local(async move { _ = receiver.await });
                    return;
                }
                tokio::task::spawn_local(async move {
                    let question = Question::Transfer { partition, to, deadline_ms };
                    _ = ask(&shared, Some(leader), &address, &question, longest + ASK_TIMEOUT).await;
                });
            }
            Step::Assign { node } => self.assign_number(node, address(node), state),
        }
    }

    /// Tells a process which node it is; once that is durable there, the directory is told.
    fn assign_number(&self, node: NodeId, address: String, state: &DirectoryState) {
        let Some(identity) = self.shared.identity() else { return };
        let (shared, map, settings) = (Arc::clone(&self.shared), state.map.clone(), state.settings.clone());
        let users = state.users.clone();
        tokio::task::spawn_local(async move {
            let assignment = Assignment { cluster: identity.cluster, node, directory: Vec::new() };
            let told = ask_anybody(&shared, &address, &Question::Assign(assignment), FORWARD_TIMEOUT).await;
            let trouble = match told {
                Ok(Answer::Identified(_)) => {
                    _ = ask(&shared, Some(node), &address, &Question::Adopt { map, settings, users }, ASK_TIMEOUT)
                        .await;
                    let joined = DirectoryCommand::Reshape(Reshape::Joined { node });
                    decide_here(&shared, joined).await.err()
                }
                Ok(_) => Some("it gave an answer of another kind".to_owned()),
                Err(error) => Some(error.to_string()),
            };
            let note = move |control: &mut Control| {
                match trouble {
                    Some(text) => control.driver.troubles.insert(node, text),
                    None => control.driver.troubles.remove(&node),
                };
                control.drive();
            };
            shared.tell_control(ToControl::Call(Box::new(note)));
        });
    }

    /// The ticket of a change of borders is released.
    pub(crate) fn on_released(&mut self, version: MapVersion) {
        self.driver.released.insert(version);
        self.drive();
    }

    /// Proposes a configuration of a group that this node leads.
    pub(super) fn answer_configure(&self, partition: PartitionId, expected: u64, configuration: Configuration) {
        configure(&self.shared, partition, expected, configuration);
    }

    /// An operator's change of the cluster's shape: passed on to the leader of the directory, begun, or reported.
    pub(super) fn reshape(&mut self, request: ReshapeRequest, reply: oneshot::Sender<AdminReply>) {
        let (true, Some(state)) = (self.drives(), self.directory.clone()) else {
            return self.forward(request, reply);
        };
        let look = self.look(&state);
        let shared = Arc::clone(&self.shared);
        tokio::task::spawn_local(async move {
            let view = look.await;
            let request = with_median(&shared, &state, &view, request).await;
            let judge = move |control: &mut Control| control.judge(request, &view, reply);
            shared.tell_control(ToControl::Call(Box::new(judge)));
        });
    }

    fn forward(&self, request: ReshapeRequest, reply: oneshot::Sender<AdminReply>) {
        let leader = self.shared.leader(PartitionId::DIRECTORY);
        let own = self.shared.identity().map(|identity| identity.node);
        let address = leader.filter(|&leader| Some(leader) != own).and_then(|leader| self.shared.peer_address(leader));
        let shared = Arc::clone(&self.shared);
        tokio::task::spawn_local(async move {
            let Some(address) = address else {
                let text = "no leader of the directory is known: a majority of its nodes must be up".to_owned();
                _ = reply.send(AdminReply::Failed(AdminError::TimedOut(text)));
                return;
            };
            let question = Question::Admin(AdminRequest::Reshape(request));
            let asked = ask(&shared, leader, &address, &question, FORWARD_TIMEOUT).await;
            _ = reply.send(match asked {
                Ok(Answer::Admin(answer)) => answer,
                Ok(_) => AdminReply::Failed(AdminError::Refused("an answer of another kind".into())),
                Err(error) => AdminReply::Failed(AdminError::TimedOut(error.to_string())),
            });
        });
    }

    fn judge(&mut self, request: ReshapeRequest, view: &View, reply: oneshot::Sender<AdminReply>) {
        let (true, Some(state)) = (self.drives(), self.directory.clone()) else {
            let text = "the directory has just got another leader: ask again".to_owned();
            _ = reply.send(AdminReply::Failed(AdminError::TimedOut(text)));
            return;
        };
        let judged = verdict(&state, view, self.settings.replicas as usize, &request);
        let shared = Arc::clone(&self.shared);
        match judged {
            Err(error) => _ = reply.send(AdminReply::Failed(error)),
            Ok(Verdict::Progress(mut progress)) => {
                let trouble = progress.node.and_then(|node| self.driver.troubles.get(&node));
                progress.steps.extend(trouble.cloned());
                _ = reply.send(AdminReply::Reshaped(progress));
                self.drive();
            }
            Ok(Verdict::Begin { plan, .. }) if request.dry_run => _ = reply.send(AdminReply::Reshaped(plan)),
            Ok(Verdict::Begin { command, plan }) => {
                tokio::task::spawn_local(async move {
                    _ = reply.send(begun(&shared, *command, plan).await);
                    shared.tell_control(ToControl::Call(Box::new(Control::drive)));
                });
            }
            Ok(Verdict::Enlist { address, replaces, plan }) => {
                tokio::task::spawn_local(async move {
                    let register = !request.dry_run;
                    _ = reply.send(enlist(&shared, &state, address, (replaces, register), plan).await);
                    shared.tell_control(ToControl::Call(Box::new(Control::drive)));
                });
            }
        }
    }
}

/// A split that does not say where is given the median, as the partition's leader has it.
async fn with_median(
    shared: &Arc<Shared>,
    state: &DirectoryState,
    view: &View,
    mut request: ReshapeRequest,
) -> ReshapeRequest {
    let begun = state.changes.contains_key(&request.change) || state.ended(request.change).is_some();
    let Shape::Split { partition, at: at @ None } = &mut request.shape else { return request };
    let Some(wanted) = partition.or_else(|| view.largest(state)).filter(|_| !begun) else { return request };
    *partition = Some(wanted);
    let Some(leader) = view.led(wanted).map(|led| led.leader) else { return request };
    let median = if shared.identity().is_some_and(|own| own.node == leader) {
        median(shared, wanted).await
    } else {
        let address = shared.peer_address(leader).unwrap_or_default();
        match ask(shared, Some(leader), &address, &Question::Median(wanted), ASK_TIMEOUT).await {
            Ok(Answer::Median(median)) => median,
            _ => None,
        }
    };
    *at = median.map(Into::into);
    request
}

/// The key that cuts a partition here into two halves.
pub(super) async fn median(shared: &Arc<Shared>, partition: PartitionId) -> Option<Vec<u8>> {
    let owner = partition.0 as usize % shared.shards();
    let median = ask_shard(shared, owner, ASK_TIMEOUT, move |shard| {
        let data = shard.worker.groups().get(&partition)?.replica.executor().machine().shard()?;
        data.tree().median().map(|key| key.to_vec())
    });
    median.await.flatten()
}

/// Has the directory decide the beginning of a change.
async fn begun(shared: &Arc<Shared>, command: DirectoryCommand, plan: Reshaped) -> AdminReply {
    match decide_here(shared, command).await {
        Ok(DirectoryReply::Refused(reason)) => AdminReply::Failed(AdminError::Refused(reason.to_string())),
        Ok(_) => AdminReply::Reshaped(plan),
        Err(text) => AdminReply::Failed(AdminError::TimedOut(text)),
    }
}

/// Gives the process at `address` a number, if it waits for one; without `register` only looks whether it does.
async fn enlist(
    shared: &Arc<Shared>,
    state: &DirectoryState,
    address: String,
    (replaces, register): (Option<NodeId>, bool),
    plan: Reshaped,
) -> AdminReply {
    let refused = |text: String| AdminReply::Failed(AdminError::Refused(text));
    let identified = match ask_anybody(shared, &address, &Question::Identify, ASK_TIMEOUT * 3).await {
        Ok(Answer::Identified(identified)) => identified,
        Ok(_) => return refused(format!("{address} is not the peer port of a coppice process")),
        Err(AskError::Broken { text, .. }) => {
            return refused(format!("{address} is not the peer port of a coppice process: {text}"));
        }
        Err(error) => {
            return refused(format!("nobody answers there: {error}; give the peer port of a running coppice serve"));
        }
    };
    let own = shared.identity().map(|identity| identity.cluster);
    match identified.identity {
        Some((cluster, node)) if Some(cluster) == own => {
            let done = state.map.node(node).is_some_and(|row| row.state == NodeState::Member);
            if state.map.node(node).is_some_and(|row| row.state == NodeState::Removed) {
                return refused(format!(
                    "{address} is {node}, which was removed: stop it, empty its data directory and start it again"
                ));
            }
            if replaces.is_some() || !done {
                return refused(format!("{address} is {node} of this cluster, with its data"));
            }
            let steps = vec![format!("{node} is a node of this cluster")];
            return AdminReply::Reshaped(Reshaped { done, begun: true, steps, node: Some(node), left: 0, ..plan });
        }
        Some((cluster, node)) => return refused(format!("{address} is {node} of another cluster, {cluster}")),
        None => {}
    }
    if !register {
        return AdminReply::Reshaped(plan);
    }
    let (name, addresses) = (identified.name, identified.addresses);
    let register = DirectoryCommand::Reshape(Reshape::Register { name, addresses, replaces });
    match decide_here(shared, register).await {
        Ok(DirectoryReply::Registered(node)) => AdminReply::Reshaped(Reshaped { node: Some(node), ..plan }),
        Ok(DirectoryReply::Refused(reason)) => refused(reason.to_string()),
        Ok(_) => refused("the directory gave an answer of another kind".into()),
        Err(text) => AdminReply::Failed(AdminError::TimedOut(text)),
    }
}

/// Has the group's replica here propose a configuration, if the one that it is to follow is still in force.
fn configure(shared: &Arc<Shared>, partition: PartitionId, expected: u64, configuration: Configuration) {
    let owner = partition.0 as usize % shared.shards();
    let shared = Arc::clone(shared);
    tokio::task::spawn_local(async move {
        _ = ask_shard(&shared, owner, ASK_TIMEOUT, move |shard| {
            shard.input_of(partition, Input::Change { expected: Instance(expected), configuration });
            failpoint!("control.configures");
        })
        .await;
    });
}
