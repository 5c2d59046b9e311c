//! Queries over several partitions, as the shard drives them (protocol.md 4): the coordinator beside the directory's
//! replica, letters between it and the partitions' leaders, and parts on their way to the clients that asked.
//!
//! The coordinator runs on the shard that owns the directory. Letters to a group of this shard are delivered at the end
//! of the turn, so nothing here calls itself.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use bytes::BytesMut;
use coppice_client::map::{Entry, PartitionMap, Role};
use coppice_client::wire::{self, ClientId, Cut, CutPart, NodeId, PartitionId, QueryRequest};
use coppice_core::cost::ClientBytes;
use coppice_core::ids;
use coppice_core::machine::directory::borders;
use coppice_core::multicast::{Letter, Share, Word, letter};
use coppice_core::replica::{Input as Step, QueryPart};
use coppice_core::request::{Origin, Refusal, Reply};
use coppice_core::scan::RangeJob;
use coppice_core::settings::ClusterSettings;
use coppice_ordering::multicast::{
    Change, Coordinator, CoordinatorSettings, Effect, Input, Query, Refusal as NotTaken,
};
use coppice_ordering::{Ballot, MapVersion, QueryId, Ticket, Time};

use super::{Shard, ToShard};
use crate::control::ToControl;
use crate::mailbox::Lane;
use crate::metrics::TicketResult;
use crate::net::link::Link;

/// Parts that wait so. Beyond, the oldest are dropped: their clients ask again.
const PARKED_PARTS_MAX: usize = 4_096;

/// Rounds of letters inside one turn: a query whose partitions and coordinator are on one shard needs two.
const LETTER_ROUNDS_MAX: usize = 8;

/// Who asked for a query, and what was promised.
struct Asked {
    origin: Origin,
    since: Clock,
    version: MapVersion,
    parts: Vec<CutPart>,
}

/// The coordinator of this node, with what it needs of the world.
pub(super) struct Queries {
    coordinator: Coordinator,
    effects: Vec<Effect>,
    /// The decided map.
    map: Arc<PartitionMap>,
    asked: BTreeMap<QueryId, Asked>,
    /// Where the next shares are written.
    shares: BytesMut,
    next: QueryId,
    /// Counts drawn replicas, so that they are drawn in turn.
    drawn: usize,
    /// Letters between groups of this shard.
    letters: VecDeque<Letter>,
    /// Changes of borders that this coordinator has released, and the directory has yet to end.
    released: BTreeSet<wire::MapVersion>,
    /// Parts whose clients are not connected yet.
    parked: VecDeque<(Clock, Box<QueryPart>)>,
    /// How long they wait for that.
    part_wait: Duration,
}

impl Queries {
    pub(super) fn new() -> Queries {
        Queries {
            coordinator: Coordinator::new(CoordinatorSettings::default()),
            effects: Vec::new(),
            map: Arc::default(),
            asked: BTreeMap::new(),
            shares: BytesMut::new(),
            next: QueryId(0),
            drawn: 0,
            letters: VecDeque::new(),
            released: BTreeSet::new(),
            parked: VecDeque::new(),
            part_wait: ClusterSettings::default().part_wait,
        }
    }

    /// Uses other settings from now on.
    fn apply_settings(&mut self, settings: &ClusterSettings) {
        self.part_wait = settings.part_wait;
        let (place_timeout, set) = (settings.place_timeout, CoordinatorSettings::default());
        self.coordinator.set_settings(CoordinatorSettings { place_timeout, ..set });
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.coordinator.deadline()
    }
}

/// The replica that serves a part, and its node.
type Drawn = (coppice_ordering::ReplicaId, NodeId);

impl Shard {
    /// Uses other settings of queries from now on.
    pub(crate) fn set_query_settings(&mut self, settings: &ClusterSettings) {
        self.queries.apply_settings(settings);
    }

    /// A client asks for a range over several partitions.
    pub fn query(&mut self, origin: Origin, client: ClientId, request: QueryRequest) {
        let owner = self.owner(PartitionId::DIRECTORY);
        if owner != self.index {
            let input = ToShard::Query { origin, client, request: Box::new(request) };
            if self.shared.sender(owner).push(Lane::Client, input).is_err() {
                self.metrics.busy(crate::metrics::Queue::Mailbox);
                self.reply(PartitionId::DIRECTORY, origin, Reply::Refused(Refusal::Busy));
            }
            return;
        }
        if self.queries.coordinator.leading().is_none() {
            let hint = self.groups.get(&PartitionId::DIRECTORY).and_then(|group| group.replica.leader());
            return self.reply(PartitionId::DIRECTORY, origin, Reply::Refused(Refusal::NotLeader { hint }));
        }
        let id = QueryId(self.queries.next.0 + 1);
        self.queries.next = id;
        let silent = self.silent_nodes();
        let map = Arc::clone(&self.queries.map);
        let covered = map.cover(&request.low, request.high.as_deref());
        let (mut shares, mut parts) = (BTreeMap::new(), Vec::with_capacity(covered.len()));
        for entry in covered {
            let drawn = self.draw(entry, &request, &silent);
            let (share, part) = Share::cut(entry, client, &request, drawn);
            let share = share.encode_in(&mut self.queries.shares);
            shares.insert(ids::core_partition(entry.partition), share);
            parts.push(part);
        }
        let version = MapVersion(self.queries.map.version.0);
        self.queries.asked.insert(id, Asked { origin, since: Clock::now(), version, parts });
        self.coordinate(Input::Query(Query { id, map: version, parts: shares }));
    }

    /// The replica that answers: the leader, which knows first what is decided; or, if the client wants it so or the
    /// leader cannot be reached, the voters in turn, those that can be reached before the others.
    fn draw(&mut self, entry: &Entry, request: &QueryRequest, silent: &[NodeId]) -> Drawn {
        let own = self.shared.identity().map(|identity| NodeId(identity.node.0));
        let up = |node: NodeId| {
            let connected = self.links.get(&node).is_some_and(|link| link.answers());
            Some(node) == own || (connected && !silent.contains(&node))
        };
        let wanted = |node: &NodeId| (request.from_leaders || !request.spread) && up(*node);
        let leader = self.shared.leader(entry.partition).filter(wanted);
        let voters = || entry.replicas.iter().filter(|info| info.role == Role::Voter);
        if let Some(info) = voters().find(|info| Some(info.node) == leader) {
            return (ids::replica(info.replica), info.node);
        }
        let drawn = self.queries.drawn;
        // Whose leader is not known here, the replica of this node most likely does not hear it: others may.
        let lost = self.shared.leader(entry.partition).is_none();
        let others = voters().any(|info| Some(info.node) != own && up(info.node));
        let hears = |node: NodeId| up(node) && !(lost && others && Some(node) == own);
        let reachable = || voters().filter(|info| hears(info.node));
        let info = match (reachable().count(), voters().count()) {
            (0, voting) => voters().nth(drawn % voting.max(1)),
            (reached, _) => reachable().nth(drawn % reached),
        };
        self.queries.drawn = drawn.wrapping_add(1);
        match info {
            Some(info) => (ids::replica(info.replica), info.node),
            // A partition without voters: nobody answers, and the query is asked again by another map.
            None => (coppice_ordering::ReplicaId(0), NodeId(0)),
        }
    }

    /// Nodes whose replica of the directory owes its leader here an answer for longer than a follower waits for an
    /// election: cut off or stopped, though a connection may still stand. Of other nodes nothing is known here.
    fn silent_nodes(&self) -> Vec<NodeId> {
        let Some(directory) = self.groups.get(&PartitionId::DIRECTORY) else { return Vec::new() };
        let silent = directory.replica.paxos().silent_peers();
        let replicas = self.queries.map.group(PartitionId::DIRECTORY).map_or(&[][..], |entry| &entry.replicas);
        let of = |id| replicas.iter().find(|info| ids::replica(info.replica) == id).map(|info| info.node);
        silent.filter_map(of).collect()
    }

    /// Steps the coordinator and carries out what that asks for.
    pub(super) fn coordinate(&mut self, input: Input) {
        let now = self.now();
        let mut effects = std::mem::take(&mut self.queries.effects);
        self.queries.coordinator.step(now, input, &mut effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Place { partition, place } => {
                    self.post(Letter::new(ids::partition(partition), Word::Place(place)));
                }
                Effect::Released { partition, watermark } => {
                    self.post(Letter::new(ids::partition(partition), Word::Released(watermark)));
                }
                Effect::Confirm(token) => {
                    self.touched.push(PartitionId::DIRECTORY);
                    self.step(PartitionId::DIRECTORY, Step::Confirm(token));
                }
                Effect::Cut { query, ticket } => self.on_cut(query, ticket),
                Effect::Complete { query, ticket } => {
                    let ticket = ids::ticket(ticket);
                    self.answer_query(query, Reply::Completed { ticket });
                }
                Effect::Aborted { query, why } => {
                    self.answer_query(query, Reply::aborted(why));
                }
                Effect::Refused { query, why } => self.on_not_taken(query, why),
                Effect::Changed { id, .. } => self.on_released_change(id),
            }
        }
        self.queries.effects = effects;
        self.metrics.set_tickets_in_flight(self.queries.coordinator.in_flight().1 as u64);
        self.turn.want();
    }

    fn on_cut(&mut self, query: QueryId, ticket: Ticket) {
        let Some(asked) = self.queries.asked.get_mut(&query) else { return };
        let version = wire::MapVersion(asked.version.0);
        let parts = std::mem::take(&mut asked.parts);
        let cut = Cut { ticket: ids::ticket(ticket), version, parts };
        let origin = asked.origin;
        self.reply(PartitionId::DIRECTORY, origin, Reply::Cut(Box::new(cut)));
    }

    fn on_not_taken(&mut self, query: QueryId, why: NotTaken) {
        let reply = match why {
            NotTaken::Busy => Reply::Refused(Refusal::Busy),
            NotTaken::NotLeading => Reply::Refused(Refusal::NotLeader { hint: None }),
            NotTaken::MapChanged { .. } | NotTaken::NoSuchPartition(_) | NotTaken::TooLarge => {
                Reply::Aborted { text: why.to_string(), unplaced: None }
            }
        };
        self.answer_query(query, reply);
    }

    fn answer_query(&mut self, query: QueryId, reply: Reply) {
        if let Some(asked) = self.queries.asked.remove(&query) {
            let result = match reply {
                Reply::Completed { .. } => TicketResult::Completed,
                Reply::Aborted { .. } => TicketResult::Aborted,
                _ => TicketResult::Refused,
            };
            self.metrics.ticket(result, asked.since.elapsed());
            self.reply(PartitionId::DIRECTORY, asked.origin, reply);
        }
    }

    /// The directory's replica here leads: its node coordinates.
    pub(super) fn begin_coordinating(&mut self, ballot: Ballot) {
        self.read_decided_map();
        let partitions = borders::partitions(&self.queries.map);
        let map = MapVersion(self.queries.map.version.0);
        let changes = self.decided_changes();
        self.coordinate(Input::Lead { ballot, map, partitions, changes });
    }

    /// It leads no more.
    pub(super) fn end_coordinating(&mut self) {
        if self.queries.coordinator.leading().is_some() {
            self.coordinate(Input::Resign);
        }
    }

    /// A batch of the directory was decided.
    pub(super) fn on_decided_map(&mut self) {
        if self.queries.coordinator.leading().is_none() || !self.read_decided_map() {
            return;
        }
        // Before any query that is cut by the new map (hazards.md MV1).
        for change in self.decided_changes() {
            self.coordinate(Input::Change(change));
        }
        let partitions = borders::partitions(&self.queries.map);
        let version = MapVersion(self.queries.map.version.0);
        self.coordinate(Input::Map { version, partitions });
    }

    /// Changes of borders that are decided and not known to be released, oldest first.
    fn decided_changes(&mut self) -> Vec<Change> {
        let Some(group) = self.groups.get(&PartitionId::DIRECTORY) else { return Vec::new() };
        let Some(state) = group.replica.decided_directory() else { return Vec::new() };
        self.queries.released.retain(|version| state.border(*version).is_some());
        borders::changes(&state, &self.queries.released)
    }

    /// A change of borders is placed in all its partitions and released: the directory is to know.
    fn on_released_change(&mut self, id: coppice_ordering::ChangeId) {
        let version = wire::MapVersion(id.0);
        self.queries.released.insert(version);
        self.shared.tell_control(ToControl::Call(Box::new(move |control| control.on_released(version))));
    }

    /// Takes over the decided map, never one that is only executed (hazards.md MV13); `true` if it is newer.
    fn read_decided_map(&mut self) -> bool {
        let Some(group) = self.groups.get(&PartitionId::DIRECTORY) else { return false };
        let decided = group.replica.executor().decided_view();
        let Some(directory) = decided.directory() else { return false };
        let map = &directory.state().map;
        if map.version <= self.queries.map.version {
            return false;
        }
        self.queries.map = Arc::new(map.clone());
        true
    }

    /// The leader of a partition changed, as far as this node knows.
    pub(crate) fn on_new_leader(&mut self, partition: PartitionId) {
        let owner = self.owner(PartitionId::DIRECTORY);
        if owner != self.index {
            let call = ToShard::Call(Box::new(move |shard| shard.on_new_leader(partition)));
            _ = self.shared.sender(owner).push(Lane::Consensus, call);
        } else if self.queries.coordinator.leading().is_some() {
            self.coordinate(Input::Resend(ids::core_partition(partition)));
        }
    }

    /// A ticket is placed in a partition that is led here.
    pub(super) fn on_placed(&mut self, partition: PartitionId, ticket: Ticket) {
        self.post(Letter::new(partition, Word::Placed(ticket)));
    }

    /// Sends a letter to whoever leads its receiver; if nobody is known to lead, or who does is not connected or does
    /// not answer, to all who may, one of which may hear the leader.
    fn post(&mut self, letter: Letter) {
        self.metrics.letter();
        let receiver = letter.receiver();
        let own = self.shared.identity().map(|identity| NodeId(identity.node.0));
        let send = |shard: &Shard, node: NodeId, letter: &Letter| {
            if let Some(link) = shard.links.get(&node).filter(|_| shard.shared.vetting.may_speak()) {
                link.send_letter(letter);
            }
        };
        let answers = |node: &NodeId| self.links.get(node).is_some_and(|link| link.answers());
        match letter::addressee(&letter, self.map.group(receiver), self.shared.leader(receiver)) {
            Some(node) if Some(node) == own => self.queries.letters.push_back(letter),
            Some(node) if answers(&node) => send(self, node, &letter),
            _ => {
                let map = Arc::clone(&self.map);
                let replicas = map.group(receiver).map_or(&[][..], |entry| &entry.replicas);
                replicas.iter().filter(|info| Some(info.node) != own).for_each(|info| send(self, info.node, &letter));
                if replicas.iter().any(|info| Some(info.node) == own) {
                    self.queries.letters.push_back(letter);
                }
            }
        }
        self.turn.want();
    }

    /// Letters of another node.
    pub fn on_letters_of(&mut self, sender: NodeId, mut letters: Vec<Letter>) {
        letters.retain(|letter| letter.may_come_from(sender, &self.map));
        letters.retain(|letter| match self.led_elsewhere(sender, letter) {
            Some(link) => {
                if self.shared.vetting.may_speak() {
                    link.send_letter(&Letter { passed_on: true, ..letter.clone() });
                }
                // What is released any replica may know, and tell its leader.
                matches!(letter.word, Word::Released(_))
            }
            None => true,
        });
        self.on_letters(letters);
        self.turn.want();
    }

    /// To whoever leads the receiver of `letter`, if it goes on from here.
    fn led_elsewhere(&self, sender: NodeId, letter: &Letter) -> Option<&Rc<Link>> {
        let (own, group) = (NodeId(self.shared.identity()?.node.0), letter.receiver());
        let next = letter::goes_on_to(letter, self.map.group(group)?, self.shared.leader(group), (own, sender))?;
        self.links.get(&next)
    }

    /// Letters of other nodes, or of other shards.
    pub fn on_letters(&mut self, letters: Vec<Letter>) {
        self.queries.letters.extend(letters);
        self.deliver_letters();
    }

    /// Delivers what waits; what that writes to this node is delivered too, as long as a turn may last.
    pub(super) fn deliver_letters(&mut self) {
        for _ in 0..LETTER_ROUNDS_MAX {
            let letters = std::mem::take(&mut self.queries.letters);
            if letters.is_empty() {
                return;
            }
            letters.into_iter().for_each(|letter| self.deliver(letter));
        }
        self.turn.want();
    }

    fn deliver(&mut self, letter: Letter) {
        let receiver = letter.receiver();
        let owner = self.owner(receiver);
        if owner != self.index {
            // A full mailbox loses it, as a network may.
            _ = self.shared.sender(owner).push(Lane::Consensus, ToShard::Letters(vec![letter]));
            return;
        }
        match letter.word {
            // The coordinator says it again, and gives up in time.
            Word::Place(_) if self.log_is_stuck() => {}
            Word::Place(place) => self.step(letter.partition, Step::Place(place)),
            Word::Released(ticket) => self.step(letter.partition, Step::Released(ticket)),
            Word::Placed(ticket) => {
                let partition = ids::core_partition(letter.partition);
                self.coordinate(Input::Placed { partition, ticket });
            }
        }
    }

    /// Gives a part to the client that asked, as soon as it is connected here.
    pub fn give_part(&mut self, part: Box<QueryPart>) {
        let Some(id) = self.shared.clients().newest(part.share.client) else {
            return self.park(part);
        };
        let shard = Origin { connection: id, stream: 0 }.shard();
        if shard != self.index {
            // A client that gets no part asks again.
            _ = self.shared.sender(shard).push(Lane::Client, ToShard::Part(part));
            return;
        }
        let Some(connection) = self.connections.get(&id).cloned() else { return self.park(part) };
        let (query, partition) = (part.share.query, part.position.partition);
        if !crate::net::public::may_give(&connection, &part.share, partition) {
            return;
        }
        let QueryPart { ticket, position, share, cursor } = *part;
        let job = RangeJob::of_query(position, ids::ticket(ticket), cursor, &share);
        connection.add_part(query, partition, job);
        self.touch_connection(&connection);
    }

    fn park(&mut self, part: Box<QueryPart>) {
        if self.queries.parked.len() >= PARKED_PARTS_MAX {
            self.queries.parked.pop_front();
        }
        self.queries.parked.push_back((Clock::now(), part));
    }

    /// A client said hello on some shard: parts may wait for it.
    pub fn unpark(&mut self, client: ClientId) {
        let parked = std::mem::take(&mut self.queries.parked).into_iter();
        let (found, rest): (VecDeque<_>, _) = parked.partition(|(_, part)| part.share.client == client);
        self.queries.parked = rest;
        found.into_iter().for_each(|(_, part)| self.give_part(part));
    }

    /// A client said hello on this shard; what it holds on all its connections.
    pub(crate) fn on_greeted(&mut self, client: ClientId, connection: u64) -> ClientBytes {
        let bytes = self.shared.clients().opened(client, connection);
        self.unpark(client);
        for shard in (0..self.shared.shards()).filter(|&shard| shard != self.index) {
            let call = ToShard::Call(Box::new(move |shard| shard.unpark(client)));
            _ = self.shared.sender(shard).push(Lane::Client, call);
        }
        bytes
    }

    /// What time alone changes about queries.
    pub(super) fn tick_queries(&mut self, now: Time) {
        while self.queries.parked.front().is_some_and(|(since, _)| since.elapsed() > self.queries.part_wait) {
            self.queries.parked.pop_front();
        }
        if self.queries.deadline().is_some_and(|deadline| deadline <= now) {
            self.coordinate(Input::Tick);
        }
    }
}
