//! The coordinator beside the directory's replica (protocol.md 4): it turns queries of clients into tickets, and tells
//! them what to expect and when that counts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::BytesMut;
use coppice_client::map::{Entry, PartitionMap, Role};
use coppice_client::wire::{self, ClientId, NodeId, PartitionId, QueryPlan, QueryRequest, SubRange};
use coppice_ordering::multicast::{
    Change, Coordinator, CoordinatorSettings, Effect as CoordinatorEffect, Input, Query, Refusal as NotTaken,
};
use coppice_ordering::{Ballot, ChangeId, MapVersion, QueryId, ReplicaId, Ticket, Time};

use super::{Effect, Message, Note, QueryResult, Report, Worker};
use crate::machine::directory::{DirectoryState, boundaries};
use crate::multicast::{MulticastBody, MulticastMessage, PartitionQuery};
use crate::request::{Origin, Refusal, Reply};
use crate::{ids, replica};

/// Why a query is refused for want of a place.
const QUERIES: &str = "too many queries across partitions are under way";

/// Who waits for a query, and what its client is to expect.
struct Pending {
    origin: Origin,
    since: Time,
    version: MapVersion,
    parts: Vec<SubRange>,
}

/// The coordinator of a node, and whom it owes an answer.
pub struct CoordinatorHost {
    coordinator: Coordinator,
    effects: Vec<CoordinatorEffect>,
    /// The decided map.
    map: Arc<PartitionMap>,
    pending: BTreeMap<QueryId, Pending>,
    /// Where the next partition queries are written.
    partition_queries: BytesMut,
    next: QueryId,
    /// Counts responders that were chosen in turn.
    chosen: usize,
    /// Changes of boundaries that this coordinator has released, and the directory has yet to end.
    released: BTreeSet<wire::MapVersion>,
    is_watched: bool,
}

impl Default for CoordinatorHost {
    fn default() -> CoordinatorHost {
        CoordinatorHost {
            coordinator: Coordinator::new(CoordinatorSettings::default()),
            effects: Vec::new(),
            map: Arc::default(),
            pending: BTreeMap::new(),
            partition_queries: BytesMut::new(),
            next: QueryId(0),
            chosen: 0,
            released: BTreeSet::new(),
            is_watched: false,
        }
    }
}

impl CoordinatorHost {
    /// Tells what it wants as [`Note::Coordinated`] too, from now on.
    pub fn watch(&mut self) {
        self.is_watched = true;
    }

    /// Whether it coordinates.
    pub fn is_leading(&self) -> bool {
        self.coordinator.leading().is_some()
    }

    /// The ballot in which it coordinates.
    pub fn leading(&self) -> Option<Ballot> {
        self.coordinator.leading()
    }

    /// Tickets that are neither released nor voided.
    pub fn tickets_in_flight(&self) -> usize {
        self.coordinator.in_flight().1
    }

    /// The number of the newest query.
    pub fn newest_query(&self) -> QueryId {
        self.next
    }

    /// Uses other settings from now on.
    pub(super) fn apply_settings(&mut self, settings: CoordinatorSettings) {
        self.coordinator.set_settings(settings);
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.coordinator.deadline()
    }

    /// Takes over the decided map; `true` if it is newer.
    fn read(&mut self, state: &DirectoryState) -> bool {
        let newer = state.map.version > self.map.version;
        if newer {
            self.map = Arc::new(state.map.clone());
        }
        newer
    }
}

impl Worker {
    /// A client asks for a range over several partitions.
    pub(super) fn on_query(&mut self, origin: Origin, client: ClientId, request: Box<QueryRequest>) {
        let owner = self.owner(PartitionId::DIRECTORY);
        if owner != self.index {
            if mutant!(queries_end_at_worker) {
                return;
            }
            return self.effects.push(Effect::Worker(owner, Message::Query { origin, client, request }));
        }
        if !self.coordinator.is_leading() {
            let hint = self.groups.get(&PartitionId::DIRECTORY).and_then(|group| group.replica.leader());
            return self.reply(PartitionId::DIRECTORY, origin, Reply::Refused(Refusal::NotLeader { hint }));
        }
        let id = QueryId(self.coordinator.next.0 + 1);
        self.coordinator.next = id;
        let silent = self.silent_nodes();
        let map = Arc::clone(&self.coordinator.map);
        let covered = map.cover(&request.low, request.high.as_deref());
        let (mut partition_queries, mut parts) = (BTreeMap::new(), Vec::with_capacity(covered.len()));
        for entry in covered {
            let responder = self.choose_responder(entry, &request, &silent);
            let (partition_query, part) = PartitionQuery::plan(entry, client, &request, responder);
            let partition_query = partition_query.encode_in(&mut self.coordinator.partition_queries);
            partition_queries.insert(ids::core_partition(entry.partition), partition_query);
            parts.push(part);
        }
        let version = MapVersion(map.version.0);
        self.coordinator.pending.insert(id, Pending { origin, since: self.now, version, parts });
        self.coordinate(Input::Query(Query { id, map: version, parts: partition_queries }));
    }

    /// The replica that answers: the leader, which knows first what is decided; or, if the client wants it so or the
    /// leader cannot be reached, the voters in turn, those that can be reached before the others.
    fn choose_responder(&mut self, entry: &Entry, request: &QueryRequest, silent: &[NodeId]) -> (ReplicaId, NodeId) {
        let up = |node: NodeId| {
            let reached = self.cluster.answering.contains(&node) && !silent.contains(&node);
            Some(node) == self.cluster.node || reached || mutant!(silent_responder)
        };
        let wanted = |node: &NodeId| (request.from_leaders || !request.spread) && up(*node);
        let leader = self.cluster.leaders.get(&entry.partition).copied();
        let voters = || entry.replicas.iter().filter(|info| info.role == Role::Voter);
        if let Some(info) = voters().find(|info| Some(info.node) == leader.filter(wanted)) {
            return (ids::replica(info.replica), info.node);
        }
        let chosen = self.coordinator.chosen;
        // Whose leader is not known here, the replica of this node most likely does not hear it: others may.
        let others = voters().any(|info| Some(info.node) != self.cluster.node && up(info.node));
        let hears = |node: NodeId| up(node) && !(leader.is_none() && others && Some(node) == self.cluster.node);
        let reachable = || voters().filter(|info| hears(info.node));
        let info = match (reachable().count(), voters().count()) {
            (0, voting) => voters().nth(chosen % voting.max(1)),
            (reached, _) => reachable().nth(chosen % reached),
        };
        let responder = info.map(|info| (ids::replica(info.replica), info.node));
        self.coordinator.chosen = chosen.wrapping_add(1);
        // A partition without voters: nobody answers, and the query is asked again by another map.
        responder.unwrap_or((ReplicaId(0), NodeId(0)))
    }

    /// Nodes whose replica of the directory owes its leader here an answer for longer than a follower waits for an
    /// election: cut off or stopped, though a connection may still stand. Of other nodes nothing is known here.
    fn silent_nodes(&self) -> Vec<NodeId> {
        let Some(directory) = self.groups.get(&PartitionId::DIRECTORY) else { return Vec::new() };
        let silent = directory.replica.paxos().silent_peers();
        let replicas = self.coordinator.map.group(PartitionId::DIRECTORY).map_or(&[][..], |entry| &entry.replicas);
        let of = |id| replicas.iter().find(|info| ids::replica(info.replica) == id).map(|info| info.node);
        silent.filter_map(of).collect()
    }

    /// Steps the coordinator and carries out what that asks for.
    pub(super) fn coordinate(&mut self, input: Input) {
        let mut effects = std::mem::take(&mut self.coordinator.effects);
        let ballot = self.coordinator.leading();
        self.coordinator.coordinator.step(self.now, input, &mut effects);
        if self.coordinator.is_watched {
            let note = Note::Coordinated(ballot, effects.clone());
            self.effects.push(Effect::Note(PartitionId::DIRECTORY, note));
        }
        for effect in effects.drain(..) {
            match effect {
                CoordinatorEffect::Place { partition, place } => {
                    self.send_multicast(MulticastMessage::new(ids::partition(partition), MulticastBody::Place(place)));
                }
                CoordinatorEffect::Released { partition, watermark } => {
                    self.send_multicast(MulticastMessage::new(
                        ids::partition(partition),
                        MulticastBody::Released(watermark),
                    ));
                }
                CoordinatorEffect::Confirm(token) => {
                    self.turn.touched.push(PartitionId::DIRECTORY);
                    self.step_group(PartitionId::DIRECTORY, replica::Input::Confirm(token));
                }
                CoordinatorEffect::Cut { query, ticket } => self.on_plan(query, ticket),
                CoordinatorEffect::Complete { query, ticket } => {
                    self.end_query(query, Reply::Completed { ticket: ids::ticket(ticket) });
                }
                CoordinatorEffect::Aborted { query, why } => self.end_query(query, Reply::aborted(why)),
                CoordinatorEffect::Refused { query, why } => self.on_not_taken(query, why),
                CoordinatorEffect::Changed { id, .. } => self.on_released_change(id),
            }
        }
        self.coordinator.effects = effects;
    }

    fn on_plan(&mut self, query: QueryId, ticket: Ticket) {
        let Some(pending) = self.coordinator.pending.get_mut(&query) else { return };
        let parts = std::mem::take(&mut pending.parts);
        let version = wire::MapVersion(pending.version.0);
        let cut = QueryPlan { ticket: ids::ticket(ticket), version, parts };
        let origin = pending.origin;
        self.reply(PartitionId::DIRECTORY, origin, Reply::QueryPlan(Box::new(cut)));
    }

    fn on_not_taken(&mut self, query: QueryId, why: NotTaken) {
        let reply = match why {
            NotTaken::Busy => Reply::Refused(Refusal::Busy(QUERIES)),
            NotTaken::NotLeading => Reply::Refused(Refusal::NotLeader { hint: None }),
            NotTaken::MapChanged { .. } | NotTaken::NoSuchPartition(_) | NotTaken::TooLarge => {
                Reply::Aborted { text: why.to_string(), unplaced: None }
            }
        };
        self.end_query(query, reply);
    }

    fn end_query(&mut self, query: QueryId, reply: Reply) {
        let Some(pending) = self.coordinator.pending.remove(&query) else { return };
        let result = match reply {
            Reply::Completed { .. } => QueryResult::Completed,
            Reply::Aborted { .. } => QueryResult::Aborted,
            _ => QueryResult::Refused,
        };
        self.effects.push(Effect::QueryEnded { result, took: self.now.since(pending.since) });
        self.reply(PartitionId::DIRECTORY, pending.origin, reply);
    }

    /// The directory's replica here leads: its node coordinates.
    pub(super) fn begin_coordinating(&mut self, ballot: Ballot) {
        self.read_decided_map();
        let partitions = boundaries::partitions(&self.coordinator.map);
        let map = MapVersion(self.coordinator.map.version.0);
        let changes = self.decided_changes();
        self.coordinate(Input::Lead { ballot, map, partitions, changes });
    }

    /// It leads no more.
    pub(super) fn end_coordinating(&mut self) {
        if self.coordinator.is_leading() {
            self.coordinate(Input::Resign);
        }
    }

    /// A batch of the directory was decided.
    pub(super) fn on_decided_map(&mut self) {
        if !self.coordinator.is_leading() || !self.read_decided_map() {
            return;
        }
        if mutant!(map_before_changes) {
            let partitions = boundaries::partitions(&self.coordinator.map);
            let version = MapVersion(self.coordinator.map.version.0);
            return self.coordinate(Input::Map { version, partitions });
        }
        // Before any query that is cut by the new map (hazards.md MV1).
        for change in self.decided_changes() {
            self.coordinate(Input::Change(change));
        }
        let partitions = boundaries::partitions(&self.coordinator.map);
        let version = MapVersion(self.coordinator.map.version.0);
        self.coordinate(Input::Map { version, partitions });
    }

    /// Changes of boundaries that are decided and not known to be released, oldest first.
    fn decided_changes(&mut self) -> Vec<Change> {
        let Some(state) = self.decided_directory() else { return Vec::new() };
        self.coordinator.released.retain(|version| state.boundary(*version).is_some());
        boundaries::changes(&state, &self.coordinator.released)
    }

    /// A change of boundaries is placed in all its partitions and released: the directory is to know.
    fn on_released_change(&mut self, id: ChangeId) {
        let version = wire::MapVersion(id.0);
        self.coordinator.released.insert(version);
        if !mutant!(released_untold) {
            self.effects.push(Effect::Controller(Report::Released(version)));
        }
    }

    /// Takes over the decided map, never one that is only executed (hazards.md MV13); `true` if it is newer.
    fn read_decided_map(&mut self) -> bool {
        self.decided_directory().is_some_and(|state| self.coordinator.read(&state))
    }

    fn decided_directory(&self) -> Option<Arc<DirectoryState>> {
        self.groups.get(&PartitionId::DIRECTORY)?.replica.decided_directory()
    }
}
