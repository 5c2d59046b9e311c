//! What happens in a run, and in which order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use coppice_client::map::PartitionMap;
use coppice_client::wire::{NodeId, PartitionId, ReshapeRequest};
use coppice_core::controller::{self, ClusterState, FetchId};
use coppice_core::multicast::MulticastMessage;
use coppice_core::replica_manager::Start;
use coppice_core::wire::peer::Envelope;
use coppice_core::worker::{Input, Message};
use coppice_ordering::{Configuration, Instance};

use super::fingerprint;
use super::lines::LineId;
use super::plan::Nanos;
use super::store::SavedSnapshot;

/// Something that happens.
#[derive(Debug)]
pub enum Event {
    /// A message arrives at a node.
    Peer { from: usize, to: usize, envelope: Envelope },
    /// A replica's deadline.
    Tick { node: usize, boot: u64, at: Nanos },
    /// A flush ends.
    Flushed { node: usize, boot: u64 },
    /// A log came to rest.
    Idle { node: usize, boot: u64 },
    /// A process starts.
    Start { node: usize, boot: u64 },
    /// The next act of a checkpoint's life.
    Checkpoint { node: usize, boot: u64, group: PartitionId, checkpoint: u64, writing: Writing },
    /// A node is asked for a snapshot.
    SnapshotAsked { from: usize, node: usize, boot: u64, fetch: FetchId, group: PartitionId, least: Instance },
    /// A snapshot is at the node that asked.
    SnapshotArrived { node: usize, boot: u64, fetch: FetchId, group: PartitionId, saved: SavedSnapshot },
    /// A snapshot did not come.
    SnapshotTimeout { node: usize, boot: u64, fetch: FetchId, group: PartitionId },
    /// The next checkpoint of a removed replica goes.
    Deleted { node: usize, boot: u64, group: PartitionId },
    /// A controller's deadline.
    ControlTick { node: usize, boot: u64, at: Nanos },
    /// The directory was to decide something by now.
    Undecided { node: usize, boot: u64, stream: u32 },
    /// Something comes to a controller.
    Control { node: usize, boot: u64, input: ControllerInput },
    /// A node is asked for its map.
    MapAsked { from: usize, node: usize, boot: u64 },
    /// A node hears of a map, and who leads what as far as the other knows.
    MapTold { node: usize, boot: u64, state: Arc<ClusterState>, leaders: Vec<(PartitionId, NodeId)> },
    /// A group's leader is to propose a configuration.
    Configure { node: usize, partition: PartitionId, expected: u64, configuration: Configuration },
    /// A group's leader is to transfer its leadership.
    TransferLeader { node: usize, partition: PartitionId, to: NodeId },
    /// A new process is told its number.
    Assign { node: usize, map: Arc<PartitionMap>, by: usize },
    /// The leader of the directory is to have this decided.
    /// An operator's verb.
    Operate { request: Box<ReshapeRequest> },
    /// A connection attempt ends.
    Opened { line: LineId, ok: bool },
    /// A node hears of the cluster's settings.
    Settings { node: usize, boot: u64 },
    /// Bytes arrive at a node.
    ToNode { line: LineId, bytes: Bytes },
    /// Bytes arrive at a client.
    ToClient { line: LineId, bytes: Bytes },
    /// A client hears that its connection is gone.
    Lost { line: LineId },
    /// A node's machine is told that another node's process has ended.
    Gone { node: usize, boot: u64, gone: usize },
    /// A client's deadline.
    ClientTick { client: usize, at: Nanos },
    /// A client submits more.
    Think { client: usize },
    /// Something comes to a worker from its own node.
    Mail { node: usize, boot: u64, worker: usize, mail: Mail },
    /// A multicast message arrives at a node.
    MulticastMessage { from: usize, to: usize, message: MulticastMessage },
    /// A fault of the plan begins.
    Fault { number: usize },
    /// A cut ends.
    Mend { side: u32, one_way: bool },
    /// One node hears another one again.
    MendPair { to: usize, from: usize },
    /// A node connects to another one.
    Greets { node: usize, boot: u64, to: usize },
    /// The copy of a disk takes its place.
    PutBack { node: usize },
    /// A slow or full disk is well again.
    DiskWell { node: usize },
}

impl Event {
    /// The process that it is for; no other one takes it.
    pub fn process(&self) -> Option<(usize, u64)> {
        match *self {
            Event::Tick { node, boot, .. }
            | Event::Flushed { node, boot }
            | Event::Idle { node, boot }
            | Event::Mail { node, boot, .. }
            | Event::Checkpoint { node, boot, .. }
            | Event::SnapshotArrived { node, boot, .. }
            | Event::SnapshotTimeout { node, boot, .. }
            | Event::Deleted { node, boot, .. }
            | Event::Settings { node, boot }
            | Event::ControlTick { node, boot, .. }
            | Event::Control { node, boot, .. }
            | Event::Undecided { node, boot, .. }
            | Event::MapTold { node, boot, .. }
            | Event::Greets { node, boot, .. } => Some((node, boot)),
            _ => None,
        }
    }
}

/// What comes to a worker from its own node.
pub enum Mail {
    /// Of another worker.
    Message(Message),
    /// What the workers share has changed.
    Look,
    /// Packs of the connection of this number may go on.
    Packs(u64),
    /// Of the controller.
    Control(Input),
    /// A replica is to be hosted.
    Start(Box<Start>),
}

impl fmt::Debug for Mail {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mail::Message(message) => write!(out, "{message:?}"),
            Mail::Look => out.write_str("look"),
            Mail::Packs(connection) => write!(out, "packs of {connection}"),
            Mail::Control(input) => out.write_str(&fingerprint::show_input(input)),
            Mail::Start(start) => write!(out, "start {} {}", start.group, start.me),
        }
    }
}

/// What comes to a controller from another thread of its node, or from another node.
pub struct ControllerInput(pub controller::Input);

impl fmt::Debug for ControllerInput {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&fingerprint::show_told(&self.0))
    }
}

/// A checkpoint that is being written.
#[derive(Clone, Copy, Debug)]
pub enum Writing {
    /// Of this node's own, of this number.
    Own(u64),
    /// It came from another node, for this fetch.
    Fetched(FetchId),
}

/// Events to come, and how many there were.
#[derive(Default)]
pub struct Agenda {
    events: BinaryHeap<Reverse<ScheduledEvent>>,
    /// Events ordered so far, and those that happened.
    ordered: u64,
    happened: u64,
}

impl Agenda {
    /// Orders an event.
    pub fn push(&mut self, at: Nanos, event: Event) {
        self.ordered += 1;
        self.events.push(Reverse(ScheduledEvent { at, number: self.ordered, event }));
    }

    /// The next one, unless that is later than `until`.
    pub fn pop(&mut self, until: Nanos) -> Option<(Nanos, Event)> {
        self.events.peek().filter(|next| next.0.at <= until)?;
        let Reverse(ScheduledEvent { at, event, .. }) = self.events.pop()?;
        self.happened += 1;
        Some((at, event))
    }

    /// How many are to come.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// How many happened.
    pub fn happened(&self) -> u64 {
        self.happened
    }
}

/// An event and its time; of equal times the one ordered first comes first.
struct ScheduledEvent {
    at: Nanos,
    /// Counts them.
    number: u64,
    event: Event,
}

impl PartialEq for ScheduledEvent {
    fn eq(&self, other: &ScheduledEvent) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for ScheduledEvent {}

impl PartialOrd for ScheduledEvent {
    fn partial_cmp(&self, other: &ScheduledEvent) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ScheduledEvent {
    fn cmp(&self, other: &ScheduledEvent) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
