//! Connections between clients and nodes, seen from both ends.

use std::collections::{BTreeMap, BTreeSet};

use coppice_client::session::ConnectionId;
use coppice_client::wire::{ClientId, FrameDecoder};
use coppice_core::connection::{ClientConnections, Pending};

use super::plan::Nanos;

/// A connection's name at its node: the worker that has it, and its number there.
pub type LineId = (usize, u64);

/// Requests of one connection that may wait, as each node says: the default of a real one.
pub const INFLIGHT: usize = 1_024;

/// Connections of clients, those that were and those that are.
#[derive(Default)]
pub struct Lines {
    /// By their names.
    pub open: BTreeMap<LineId, Line>,
    /// How many there were.
    pub opened: u64,
    /// Of each node, where its clients are reached.
    clients: BTreeMap<usize, ClientConnections>,
}

impl Lines {
    /// A client says hello.
    pub fn greets(&mut self, number: LineId, client: ClientId) {
        let Some(line) = self.open.get_mut(&number) else { return };
        line.greeted = Some(client);
        self.clients.entry(line.node).or_default().opened(client, number);
    }

    /// The node's process has it no more.
    pub fn ends_at_node(&mut self, number: LineId) {
        let Some(line) = self.open.get_mut(&number) else { return };
        line.node_open = false;
        if let (Some(client), Some(clients)) = (line.greeted, self.clients.get_mut(&line.node)) {
            clients.ended(client, number);
        }
    }

    /// The connection is closed at both ends.
    pub fn remove(&mut self, number: LineId) {
        self.ends_at_node(number);
        self.open.remove(&number);
    }

    /// The newest connection of a client at a node.
    pub fn newest(&self, node: usize, client: ClientId) -> Option<LineId> {
        self.clients.get(&node)?.newest(client)
    }
}

/// A connection, seen from both ends.
pub struct Line {
    pub client: usize,
    /// The client's name for it.
    pub id: ConnectionId,
    /// To which node.
    pub node: usize,
    /// The node's process still has it.
    pub node_open: bool,
    /// The client still has it.
    pub client_open: bool,
    /// What is on its way to the node arrives no earlier.
    pub late_until: Nanos,
    /// Bytes keep their order, each way.
    pub to_node: Nanos,
    /// See `to_node`.
    pub to_client: Nanos,
    pub at_node: FrameDecoder,
    pub at_client: FrameDecoder,
    pub greeted: Option<ClientId>,
    /// Requests that wait, and what streams.
    pub pending: Pending<()>,
    /// Of these, reads that take what is decided where they are asked.
    pub stale: BTreeSet<u32>,
    /// Of these, ranges that the node collects.
    pub collects: BTreeSet<u32>,
}

impl Line {
    /// A connection that is being opened.
    pub fn new(client: usize, id: ConnectionId, node: usize, now: Nanos) -> Line {
        Line {
            client,
            id,
            node,
            node_open: true,
            client_open: true,
            late_until: 0,
            to_node: now,
            to_client: now,
            at_node: FrameDecoder::default(),
            at_client: FrameDecoder::default(),
            greeted: None,
            pending: Pending::new(INFLIGHT),
            stale: BTreeSet::new(),
            collects: BTreeSet::new(),
        }
    }
}
