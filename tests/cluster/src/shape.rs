//! Changes of the map while everything else goes on: splits, merges, handed over leaderships, moved replicas, through
//! the operators' verbs like anybody's.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use coppice_client::admin::Error;
use coppice_client::map::PartitionMap;
use coppice_client::wire::{AdminError, ChangeId, MapReply, NodeId, PartitionId, ReshapeRequest, Reshaped, Shape};
use coppice_client::{Admin, Config};
use coppice_testkit::random::Random;
use tokio::runtime::Runtime;

use super::kinds::{Kind, Span};
use super::setup::RECOVERY_MAX;
use super::workload::Workload;

/// Partitions beyond which nothing is split.
const PARTITIONS_MAX: usize = 24;

/// Partitions that are left by merges: fewer make too few boundaries worth crossing.
const PARTITIONS_MIN: usize = 3;

/// A change that is not done by then is left to itself; the next one begins.
const PATIENCE: Duration = Duration::from_secs(5);

/// Changes of the map so far.
#[derive(Debug, Default)]
pub struct Changes {
    pub spans: Vec<Span>,
    /// Done: those of each kind, by name.
    pub done: BTreeMap<&'static str, u64>,
    /// Not done in time, or refused.
    pub not_done: u64,
}

/// Changes the map until `stop`.
pub async fn change(
    (endpoints, config): (Vec<String>, Config),
    workload: Arc<Workload>,
    seed: u64,
    stop: Arc<AtomicBool>,
) -> Changes {
    let config = Config { timeout: Duration::from_secs(1), ..config };
    let admin = Admin::new(endpoints, config);
    let mut random = Random::of(seed, 0x5a9e);
    let mut changes = Changes::default();
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(50 + random.below(700) as u64)).await;
        let Some(map) = admin.map().await.ok().and_then(|reply| reply.map) else { continue };
        let drawn = draw(&map, &workload, &mut random);
        let from = workload.recorder.now();
        // The history's failure is the workload's to tell.
        let _ = workload.recorder.fault("map", &drawn.to_string());
        let done = match &drawn {
            Drawn::Transfer(partition, to) => admin.transfer_leader(*partition, *to, PATIENCE).await.map(|_| ()),
            Drawn::Reshape(shape) => reshape(&admin, shape, &mut random, &stop).await,
        };
        changes.spans.push(Span { kind: Kind::Map, cut: None, from, to: workload.recorder.now() });
        match done {
            Ok(()) => *changes.done.entry(drawn.kind()).or_default() += 1,
            Err(_) => changes.not_done += 1,
        }
    }
    changes
}

/// Asks for what only an operator can know to be wanted.
#[derive(Debug)]
pub struct Operator<'a> {
    /// Where it asks from.
    pub runtime: &'a Runtime,
    /// Whom it asks.
    pub admin: Admin,
}

impl Operator<'_> {
    /// The node, counted from zero, that leads most partitions; none if nobody tells.
    pub fn leader_of_most(&self) -> Option<usize> {
        let MapReply { leaders, .. } = self.runtime.block_on(self.admin.map()).ok()?;
        let led = |node: NodeId| leaders.iter().filter(|(group, leader)| group.0 != 0 && *leader == node).count();
        let most = leaders.iter().map(|(_, leader)| *leader).max_by_key(|leader| led(*leader))?;
        (most.0 as usize).checked_sub(1)
    }

    /// The node, counted from zero, that leads the directory; none if nobody tells.
    pub fn coordinator(&self) -> Option<usize> {
        let MapReply { leaders, .. } = self.runtime.block_on(self.admin.map()).ok()?;
        let (_, leader) = leaders.iter().find(|(group, _)| group.0 == 0)?;
        (leader.0 as usize).checked_sub(1)
    }

    /// Hands every leadership, the directory's too, to one node, and comes back when it has them all.
    ///
    /// # Errors
    /// Who leads, if it is not so within [`RECOVERY_MAX`].
    pub fn gather(&self, node: NodeId) -> Result<(), String> {
        let deadline = Instant::now() + RECOVERY_MAX;
        self.runtime.block_on(async {
            loop {
                let MapReply { map, leaders } = self.admin.map().await.unwrap_or_default();
                let groups = map.iter().flat_map(PartitionMap::groups).map(|entry| entry.partition);
                let elsewhere: Vec<PartitionId> = groups.filter(|group| !leaders.contains(&(*group, node))).collect();
                if map.is_some() && elsewhere.is_empty() {
                    return Ok(());
                }
                if Instant::now() > deadline {
                    return Err(format!("{node} was not given {elsewhere:?}; leaders are {leaders:?}"));
                }
                for group in elsewhere {
                    // Refused, or not in time: asked again in the next round.
                    let _ = self.admin.transfer_leader(group, node, Duration::from_secs(1)).await;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
    }

    /// Hands the leaderships of partitions that others lead to one node, as many as go within `patience`.
    pub fn give(&self, node: NodeId, patience: Duration) {
        let deadline = Instant::now() + patience;
        self.runtime.block_on(async {
            let MapReply { leaders, .. } = self.admin.map().await.unwrap_or_default();
            for (group, _) in leaders.into_iter().filter(|(_, leader)| *leader != node) {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return;
                }
                // Refused, or not in time: others lead it on.
                let _ = tokio::time::timeout(left, self.admin.transfer_leader(group, node, left)).await;
            }
        });
    }

    /// The process that listens for other nodes at `address`, and has lost all that it knew, takes the place of the
    /// node that is known there: asks until that is done, whatever else goes on.
    ///
    /// # Errors
    /// What was said last, if it is not done within [`RECOVERY_MAX`].
    pub fn replace(&self, address: SocketAddr, change: u64) -> Result<(), String> {
        Replacement::new(address, change).ask(self, RECOVERY_MAX)
    }
}

/// A node that lost its disk gets its place back: asked for as often as it takes.
#[derive(Debug)]
pub struct Replacement {
    address: String,
    change: ChangeId,
    /// As it is asked for, once it is known which node was there: later the map names another one.
    request: Option<ReshapeRequest>,
}

impl Replacement {
    /// Of the node that is known at `address`.
    pub fn new(address: SocketAddr, change: u64) -> Replacement {
        Replacement { address: address.to_string(), change: ChangeId(change), request: None }
    }

    /// Asks for so long.
    ///
    /// # Errors
    /// What was said last, if it is not done.
    pub fn ask(&mut self, operator: &Operator<'_>, patience: Duration) -> Result<(), String> {
        let deadline = Instant::now() + patience;
        operator.runtime.block_on(async {
            loop {
                let said = match &self.request {
                    None => match operator.admin.map().await {
                        Ok(reply) => {
                            let nodes = reply.map.iter().flat_map(|map| &map.nodes);
                            let old =
                                nodes.filter(|node| node.addresses.peer == self.address).map(|node| node.id).next();
                            let address = self.address.clone();
                            self.request = old.map(|old| ReshapeRequest {
                                change: self.change,
                                shape: Shape::ReplaceNode { old, address },
                                dry_run: false,
                                force: false,
                                within: None,
                            });
                            format!("the map has no node at {}", self.address)
                        }
                        Err(error) => error.to_string(),
                    },
                    Some(request) => match operator.admin.reshape(request.clone()).await {
                        Ok(Reshaped { done: true, .. }) => return Ok(()),
                        Ok(reshaped) => format!("not done yet: {}", reshaped.steps.join(", ")),
                        Err(error) => error.to_string(),
                    },
                };
                if Instant::now() > deadline {
                    return Err(format!("within {patience:?}; the last answer: {said}"));
                }
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
        })
    }
}

/// What is asked for.
enum Drawn {
    Transfer(PartitionId, NodeId),
    Reshape(Shape),
}

impl Drawn {
    /// What a report counts it as.
    fn kind(&self) -> &'static str {
        match self {
            Drawn::Transfer(..) => "leaderships transferred",
            Drawn::Reshape(Shape::Split { .. }) => "splits",
            Drawn::Reshape(Shape::Merge { .. }) => "merges",
            Drawn::Reshape(Shape::Move { .. }) => "moves",
            Drawn::Reshape(_) => "others",
        }
    }
}

impl std::fmt::Display for Drawn {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Drawn::Transfer(partition, to) => write!(out, "leader of {partition} to {to}"),
            Drawn::Reshape(Shape::Split { at, .. }) => {
                write!(out, "split at {}", at.as_deref().map(String::from_utf8_lossy).unwrap_or_default())
            }
            Drawn::Reshape(Shape::Move { partition, from, to }) => write!(out, "move {partition} {from:?} {to:?}"),
            Drawn::Reshape(Shape::Merge { partition, .. }) => write!(out, "merge {partition}"),
            Drawn::Reshape(_) => write!(out, "another change"),
        }
    }
}

fn draw(map: &PartitionMap, workload: &Workload, random: &mut Random) -> Drawn {
    let count = map.partitions.len();
    let at = random.below(count.max(1));
    let Some(entry) = map.partitions.get(at) else {
        return Drawn::Transfer(PartitionId::DIRECTORY, NodeId(1));
    };
    let partition = if random.chance(150) { PartitionId::DIRECTORY } else { entry.partition };
    let nodes: Vec<NodeId> = map.nodes.iter().map(|node| node.id).collect();
    let spare: Vec<NodeId> = nodes.iter().copied().filter(|node| entry.replica_on(*node).is_none()).collect();
    match random.below(10) {
        0..3 if count < PARTITIONS_MAX => {
            let key = workload.space.key(random.below(workload.space.keys()));
            Drawn::Reshape(Shape::Split { partition: None, at: Some(Bytes::from(key)) })
        }
        3..5 if count > PARTITIONS_MIN => Drawn::Reshape(Shape::Merge { partition: entry.partition, into: None }),
        5..7 if !spare.is_empty() && !entry.replicas.is_empty() => {
            let from = entry.replicas[random.below(entry.replicas.len())].node;
            let to = spare[random.below(spare.len())];
            Drawn::Reshape(Shape::Move { partition: entry.partition, from: vec![from], to: vec![to] })
        }
        _ => Drawn::Transfer(partition, nodes[random.below(nodes.len())]),
    }
}

/// Asks until it is done, refused, or not done in time.
async fn reshape(admin: &Admin, shape: &Shape, random: &mut Random, stop: &AtomicBool) -> Result<(), Error> {
    let request = ReshapeRequest {
        change: ChangeId(random.next()),
        shape: shape.clone(),
        dry_run: false,
        force: false,
        within: None,
    };
    let deadline = Instant::now() + PATIENCE;
    loop {
        let told = admin.reshape(request.clone()).await;
        match told {
            Ok(reshaped) if reshaped.done => return Ok(()),
            Err(Error::Failed(error)) => return Err(Error::Failed(error)),
            // No node answered, or it is under way: asked again.
            Ok(_) | Err(_) => {}
        }
        if Instant::now() > deadline || stop.load(Ordering::Relaxed) {
            return Err(Error::Failed(AdminError::TimedOut("left to itself".into())));
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}
