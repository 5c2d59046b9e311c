//! Queries over several partitions (protocol.md 4), as `shard::queries` drives them: the coordinator beside the
//! directory's leader, letters between it and the partitions' leaders, and parts on their way to the clients that
//! asked.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::Hasher;
use std::sync::Arc;

use coppice_client::map::{Entry, PartitionMap, Role};
use coppice_client::wire::{self, ClientId, Cut, CutPart, NodeId, PartitionId, QueryRequest};
use coppice_core::ids;
use coppice_core::machine::directory::borders;
use coppice_core::multicast::{Letter, Share, Word, letter};
use coppice_core::replica::{Input as Step, QueryPart};
use coppice_core::request::{Origin, Refusal, Reply};
use coppice_ordering::multicast::{
    Change, Coordinator, CoordinatorSettings, Effect, Input, Query, Refusal as NotTaken,
};
use coppice_ordering::{Ballot, MapVersion, QueryId, ReplicaId};

use super::events::Event;
use super::trace::Fingerprint;
use super::world::World;
use super::{damage, said};

/// A node's coordinator and whom it owes an answer.
pub struct Desk {
    coordinator: Coordinator,
    /// Of the coordinator.
    pub settings: CoordinatorSettings,
    /// The decided map.
    map: Arc<PartitionMap>,
    asked: BTreeMap<QueryId, (Origin, Cut)>,
    next: u64,
    /// Changes of borders that this coordinator has released, and the directory has yet to end.
    released: BTreeSet<wire::MapVersion>,
}

impl Desk {
    /// Of a process that starts.
    pub fn new(settings: CoordinatorSettings) -> Desk {
        Desk {
            coordinator: Coordinator::new(settings.clone()),
            settings,
            map: Arc::default(),
            asked: BTreeMap::new(),
            next: 0,
            released: BTreeSet::new(),
        }
    }

    /// When the coordinator wants a tick.
    pub fn deadline(&self) -> Option<coppice_ordering::Time> {
        self.coordinator.deadline()
    }
}

impl World {
    /// A client's query arrives at a node.
    pub fn query(&mut self, node: usize, origin: Origin, client: ClientId, request: &QueryRequest) {
        if self.nodes[node].desk.coordinator.leading().is_none() {
            let host = self.nodes[node].hosts.get(&PartitionId::DIRECTORY);
            let hint = host.and_then(|host| host.replica.leader());
            self.reached.note("query: asked of one that does not coordinate");
            let refusal = Reply::Refused(Refusal::NotLeader { hint });
            return self.reply(node, PartitionId::DIRECTORY, origin, refusal);
        }
        let map = Arc::clone(&self.nodes[node].desk.map);
        let (mut shares, mut parts) = (BTreeMap::new(), Vec::<CutPart>::new());
        for entry in map.cover(&request.low, request.high.as_deref()) {
            let drawn = self.draw_replica(node, entry, request.from_leaders);
            let (share, part) = Share::cut(entry, client, request, drawn);
            shares.insert(ids::core_partition(entry.partition), share.encode());
            parts.push(part);
        }
        let desk = &mut self.nodes[node].desk;
        desk.next += 1;
        let id = QueryId(desk.next);
        if let Some(ballot) = desk.coordinator.leading() {
            self.tickets.asked(ballot, id, &request.low, request.high.as_ref());
        }
        let cut = Cut { ticket: Default::default(), version: map.version, parts };
        desk.asked.insert(id, (origin, cut));
        self.coordinate(node, Input::Query(Query { id, map: MapVersion(map.version.0), parts: shares }));
    }

    /// The replica that answers: the leader if that is wanted and known, else any voter, of those whose nodes are up
    /// and answer as far as their connections say.
    fn draw_replica(&mut self, node: usize, entry: &Entry, from_leader: bool) -> (ReplicaId, NodeId) {
        let answers = |to: usize| self.nodes[to].up && !self.net.is_silent(node, to, self.now);
        let leader = self.nodes[node].leaders.get(&entry.partition).filter(|&&leader| from_leader && answers(leader));
        let voters = || entry.replicas.iter().filter(|info| info.role == Role::Voter);
        let place = |node: NodeId| node.0 as usize - 1;
        let led = voters().find(|info| Some(&place(info.node)) == leader);
        let up: Vec<_> = voters().filter(|info| answers(place(info.node))).collect();
        let drawn = self.replica_random.below(up.len());
        match led.or_else(|| up.get(drawn).copied()).or_else(|| entry.replicas.first()) {
            Some(info) => (ReplicaId(info.replica.0), info.node),
            None => (ReplicaId(0), NodeId(0)),
        }
    }

    /// Steps a node's coordinator and carries out what that asks for.
    pub fn coordinate(&mut self, node: usize, input: Input) {
        let local = self.nodes[node].clock.local(self.now);
        let life = self.nodes[node].life;
        let mut effects = Vec::new();
        let words = self.trace.is_wordy().then(|| format!("{input:?}"));
        let ballot = self.nodes[node].desk.coordinator.leading();
        let mut said = Fingerprint::default();
        said::words(&input, &mut said);
        self.nodes[node].desk.coordinator.step(local, input, &mut effects);
        if let Err((check, what)) = self.tickets.coordinated(&self.oracle, ballot, &effects) {
            self.fail(check, what);
        }
        let now = self.now;
        said::words(&effects, &mut said);
        self.trace.step(now, &(node, said.finish()), |line| {
            let words = words.unwrap_or_default();
            *line += &format!("n{node} coordinator {words} => {effects:?}");
        });
        for effect in effects {
            if self.nodes[node].life != life || !self.nodes[node].up {
                return;
            }
            self.coordinated(node, effect);
        }
        self.arm(node);
    }

    fn coordinated(&mut self, node: usize, effect: Effect) {
        self.reached.coordinated(&effect);
        match effect {
            Effect::Place { partition, place } => {
                self.post(node, Letter::new(ids::partition(partition), Word::Place(place)));
            }
            Effect::Released { partition, watermark } => {
                let partition = ids::partition(partition);
                self.post(node, Letter::new(partition, Word::Released(watermark)));
            }
            Effect::Confirm(token) => self.step(node, PartitionId::DIRECTORY, Step::Confirm(token)),
            Effect::Cut { query, ticket } => {
                self.reached.note("query: cut by the coordinator");
                if let Some((origin, cut)) = self.nodes[node].desk.asked.get_mut(&query) {
                    let (origin, parts) = (*origin, std::mem::take(&mut cut.parts));
                    let cut = Cut { ticket: ids::ticket(ticket), version: cut.version, parts };
                    self.reply(node, PartitionId::DIRECTORY, origin, Reply::Cut(Box::new(cut)));
                }
            }
            Effect::Complete { query, ticket } => {
                self.end_query(node, query, Reply::Completed { ticket: ids::ticket(ticket) });
            }
            Effect::Aborted { query, why } => {
                self.reached.note("query: aborted");
                self.end_query(node, query, Reply::aborted(why));
            }
            Effect::Refused { query, why } => {
                let reply = match why {
                    NotTaken::Busy => Reply::Refused(Refusal::Busy),
                    NotTaken::NotLeading => Reply::Refused(Refusal::NotLeader { hint: None }),
                    why => Reply::Aborted { text: why.to_string(), unplaced: None },
                };
                self.end_query(node, query, reply);
            }
            Effect::Changed { id, .. } => {
                self.nodes[node].desk.released.insert(wire::MapVersion(id.0));
                self.on_released_change(node, wire::MapVersion(id.0));
            }
        }
    }

    fn end_query(&mut self, node: usize, query: QueryId, reply: Reply) {
        if let Some((origin, _)) = self.nodes[node].desk.asked.remove(&query) {
            self.reply(node, PartitionId::DIRECTORY, origin, reply);
        }
    }

    /// The directory's replica on a node leads.
    pub fn begin_coordinating(&mut self, node: usize, ballot: Ballot) {
        self.read_decided_map(node);
        let map = &self.nodes[node].desk.map;
        let (map, partitions) = (MapVersion(map.version.0), borders::partitions(map));
        let changes = self.decided_changes(node);
        self.coordinate(node, Input::Lead { ballot, map, partitions, changes });
    }

    /// It leads no more.
    pub fn end_coordinating(&mut self, node: usize) {
        if self.nodes[node].desk.coordinator.leading().is_some() {
            self.coordinate(node, Input::Resign);
        }
    }

    /// A batch of the directory was decided.
    pub fn on_decided_map(&mut self, node: usize) {
        if self.nodes[node].desk.coordinator.leading().is_none() || !self.read_decided_map(node) {
            return;
        }
        let life = self.nodes[node].life;
        // Before any query that is cut by the new map (hazards.md MV1).
        for change in self.decided_changes(node) {
            self.coordinate(node, Input::Change(change));
        }
        if self.nodes[node].life == life {
            let map = &self.nodes[node].desk.map;
            let (version, partitions) = (MapVersion(map.version.0), borders::partitions(map));
            self.coordinate(node, Input::Map { version, partitions });
        }
    }

    fn decided_changes(&mut self, node: usize) -> Vec<Change> {
        let each = &mut self.nodes[node];
        let host = each.hosts.get(&PartitionId::DIRECTORY);
        let Some(state) = host.and_then(|host| host.replica.decided_directory()) else { return Vec::new() };
        each.desk.released.retain(|version| state.border(*version).is_some());
        borders::changes(&state, &each.desk.released)
    }

    /// Takes over the decided map, never one that is only executed (hazards.md MV13); `true` if it is newer.
    fn read_decided_map(&mut self, node: usize) -> bool {
        let each = &mut self.nodes[node];
        let host = each.hosts.get(&PartitionId::DIRECTORY);
        let Some(state) = host.and_then(|host| host.replica.decided_directory()) else { return false };
        let newer = state.map.version > each.desk.map.version;
        if newer {
            each.desk.map = Arc::new(state.map.clone());
        }
        newer
    }

    /// A node learns of a partition's leader.
    pub fn on_new_leader(&mut self, node: usize, partition: PartitionId) {
        if self.nodes[node].desk.coordinator.leading().is_some() {
            self.coordinate(node, Input::Resend(ids::core_partition(partition)));
        }
    }

    /// Sends a letter to whoever leads its receiver; if nobody is known to lead, or who does is not connected or does
    /// not answer, to all who may.
    pub fn post(&mut self, node: usize, letter: Letter) {
        let receiver = letter.receiver();
        let (map, known) = (&self.nodes[node].control.map, self.nodes[node].leaders.get(&receiver));
        let known = known.map(|&leader| NodeId(leader as u32 + 1));
        let to: Vec<usize> = match letter::addressee(&letter, map.group(receiver), known).map(|to| to.0 as usize - 1) {
            Some(leader) if self.nodes[leader].up && !self.net.is_silent(node, leader, self.now) => vec![leader],
            _ => super::processes::places(&self.nodes[node].control.map, receiver).map(|(_, node)| node).collect(),
        };
        self.send_letter(node, to, letter);
    }

    fn send_letter(&mut self, node: usize, to: Vec<usize>, letter: Letter) {
        for to in to {
            if !self.may_say(node, to) {
                continue;
            }
            let [first, copy] = if to == node { [Some(0), None] } else { self.net.send(node, to) };
            if let Some(random) = self.net.damages().filter(|_| to != node) {
                let refused = damage::refused(&damage::of_letter(&letter), random);
                self.reached.note("frame: damaged and refused");
                refused.unwrap_or_else(|what| self.fail("damaged frame", what));
                continue;
            }
            for delay in [first, copy].into_iter().flatten() {
                self.schedule(self.now + delay, Event::Letter { from: node, to, letter: letter.clone() });
            }
        }
    }

    /// A letter arrives.
    pub fn on_letter(&mut self, node: usize, sender: usize, letter: Letter) {
        if !self.nodes[node].up {
            return;
        }
        if let Some(next) = self.led_elsewhere(node, sender, &letter) {
            self.reached.note("letter: sent on to who leads now");
            self.send_letter(node, vec![next], Letter { passed_on: true, ..letter.clone() });
            // What is released any replica may know, and tell its leader.
            if !matches!(letter.word, Word::Released(_)) {
                return;
            }
        }
        self.reached.letter(&letter.word, self.nodes[node].desk.coordinator.leading());
        match letter.word {
            Word::Place(_) if !self.nodes[node].hosts.contains_key(&letter.partition) => {
                self.reached.note("ticket: for a partition that is not here");
            }
            Word::Place(place) => self.step(node, letter.partition, Step::Place(place)),
            Word::Released(ticket) => self.step(node, letter.partition, Step::Released(ticket)),
            Word::Placed(ticket) => {
                let partition = ids::core_partition(letter.partition);
                self.coordinate(node, Input::Placed { partition, ticket });
            }
        }
    }

    /// The leader of a letter's receiver, if it goes on from here.
    fn led_elsewhere(&self, node: usize, sender: usize, letter: &Letter) -> Option<usize> {
        let group = letter.receiver();
        let (named, each) = (|node: usize| NodeId(node as u32 + 1), &self.nodes[node]);
        let leader = each.leaders.get(&group).map(|&leader| named(leader));
        let next = letter::goes_on_to(letter, each.control.map.group(group)?, leader, (named(node), named(sender)))?;
        Some(next.0 as usize - 1)
    }

    /// A replica gives its part to the client that asked, as soon as that is connected here.
    pub fn give_part(&mut self, node: usize, part: Box<QueryPart>) {
        match self.line_of(node, part.share.client) {
            Some(line) => self.stream_part(line, *part),
            None => {
                let now = self.now;
                self.reached.note("query: a part waits for its client to connect");
                self.nodes[node].parked.push_back((now, part));
            }
        }
    }

    /// A client said hello: parts may wait for it.
    pub fn unpark(&mut self, node: usize, client: ClientId) {
        let parked = std::mem::take(&mut self.nodes[node].parked).into_iter();
        let (found, rest): (VecDeque<_>, _) = parked.partition(|(_, part)| part.share.client == client);
        self.nodes[node].parked = rest;
        self.reached.add("query: a part finds its client", found.len() as u64);
        found.into_iter().for_each(|(_, part)| self.give_part(node, part));
    }
}
