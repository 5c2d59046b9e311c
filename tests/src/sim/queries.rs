//! Queries over several partitions (ordering.md 4): the coordinator beside the directory's leader, letters between it
//! and the partitions' leaders, and clients that ask, put parts together and ask again.
//!
//! The coordinator, the chains and the gates are the real ones. The client's part is the simulator's own: whoever asks
//! keeps to ordering.md 4, step 6, that a result counts when every part of one ticket and its `Complete` are there.

use std::collections::BTreeMap;

use coppice_client::wire::{ClientId, PartitionId, Position};
use coppice_ordering::multicast::{Coordinator, CoordinatorSettings, Effect, Input, Query};
use coppice_ordering::{Ballot, MapVersion, QueryId, ReplicaId, Ticket};
use coppice_server::multicast::{Letter, Share, Word};
use coppice_server::net::translate;
use coppice_server::replica::{Input as Step, QueryPart};

use super::account::End;
use super::clients::key;
use super::plan::{MS, Nanos};
use super::world::{Event, World};
use crate::check::event::{Call, Output, Text, Ticket as ToldTicket};

/// A query without an end for so long is asked again, of another node.
const PATIENCE: Nanos = 700 * MS;

/// Pairs as the history writes them.
type Pairs = Vec<(Text<'static>, Text<'static>)>;

/// Who asked a coordinator: client, index of the operation, attempt.
type Asker = (usize, usize, u32);

/// A node's coordinator and whom it owes an answer.
pub struct Desk {
    coordinator: Coordinator,
    asked: BTreeMap<QueryId, (Asker, Vec<PartitionId>)>,
    next: u64,
}

impl Desk {
    /// Of a process that starts.
    pub fn new() -> Desk {
        let coordinator = Coordinator::new(CoordinatorSettings::default());
        Desk { coordinator, asked: BTreeMap::new(), next: 0 }
    }

    /// When the coordinator wants a tick.
    pub fn deadline(&self) -> Option<coppice_ordering::Time> {
        self.coordinator.deadline()
    }
}

/// A query that a client waits for.
#[derive(Debug)]
pub struct Asked {
    low: bytes::Bytes,
    high: Option<bytes::Bytes>,
    attempt: u32,
    cut: Option<(Ticket, Vec<PartitionId>)>,
    parts: BTreeMap<(Ticket, PartitionId), (Position, Pairs)>,
    completed: Option<Ticket>,
}

/// What a client hears.
#[derive(Debug)]
pub enum News {
    /// A ticket, and the partitions that give parts.
    Cut(Ticket, Vec<PartitionId>),
    /// A part.
    Part(Ticket, Position, Pairs),
    /// The parts of this ticket count.
    Completed(Ticket),
    /// Ask again; perhaps this node leads.
    Again(Option<usize>),
}

impl World {
    /// A client asks for a range over several partitions.
    pub fn ask(&mut self, client: usize, low: u32, high: u32) {
        let (low, high) = (key(low), Some(key(high)));
        let text = |bytes: &[u8]| Text::Owned(bytes.to_vec());
        let call = Call::Range { low: text(&low), high: high.as_deref().map(text), limit: 0, reverse: false };
        let index = self.account.invoke(client as u64 + 1, self.now, call, false);
        let asked = Asked { low, high, attempt: 0, cut: None, parts: BTreeMap::new(), completed: None };
        self.queries.insert((client, index), asked);
        self.ask_again(client, index, None);
    }

    fn ask_again(&mut self, client: usize, index: usize, node: Option<usize>) {
        let now = self.now;
        let Some(asked) = self.queries.get_mut(&(client, index)) else { return };
        asked.attempt += 1;
        (asked.cut, asked.completed) = (None, None);
        asked.parts.clear();
        let attempt = asked.attempt;
        let node = node.unwrap_or_else(|| self.random.below(self.nodes.len()));
        let at = now + self.net.delay();
        self.schedule(at, Event::Query { node, asker: (client, index, attempt) });
        self.schedule(now + PATIENCE, Event::QueryPatience { asker: (client, index, attempt) });
    }

    /// A query is not answered for long.
    pub fn on_query_patience(&mut self, (client, index, attempt): Asker) {
        if self.queries.get(&(client, index)).is_some_and(|asked| asked.attempt == attempt) {
            self.ask_again(client, index, None);
        }
    }

    /// A query arrives at a node.
    pub fn on_query(&mut self, node: usize, asker: Asker) {
        if !self.nodes[node].up {
            return;
        }
        if self.nodes[node].desk.coordinator.leading().is_none() {
            let hint = self.nodes[node].leaders.get(&PartitionId::DIRECTORY).copied().filter(|&hint| hint != node);
            return self.tell(asker, News::Again(hint));
        }
        let (client, index, attempt) = asker;
        let Some(asked) = self.queries.get(&(client, index)).filter(|asked| asked.attempt == attempt) else { return };
        let (low, high) = (asked.low.clone(), asked.high.clone());
        let entries = self.map.cover(&low, high.as_deref()).to_vec();
        let mut parts = BTreeMap::new();
        for entry in &entries {
            let high = match (&high, &entry.high) {
                (Some(wanted), Some(own)) => Some(wanted.min(own).clone()),
                (wanted, own) => wanted.clone().or_else(|| own.clone()),
            };
            let replica = self.draw_replica(entry.partition);
            let share = Share {
                client: ClientId(client as u64 + 1),
                query: (index as u32) << 10 | attempt & 1_023,
                replica,
                low: low.clone().max(entry.low.clone()),
                high,
                reverse: false,
                keys_only: false,
                count_only: false,
                pairs_max: 0,
                bytes_max: 0,
                credit: u32::MAX,
            };
            parts.insert(translate::core_partition(entry.partition), share.encode());
        }
        let desk = &mut self.nodes[node].desk;
        desk.next += 1;
        let id = QueryId(desk.next);
        desk.asked.insert(id, (asker, entries.iter().map(|entry| entry.partition).collect()));
        let map = MapVersion(self.map.version.0);
        self.coordinate(node, Input::Query(Query { id, map, parts }));
    }

    /// The replica that answers: any whose node is up, as far as its connection says.
    fn draw_replica(&mut self, partition: PartitionId) -> ReplicaId {
        let group = (partition, ReplicaId(0))..=(partition, ReplicaId(u32::MAX));
        let up = self.places.range(group).filter(|(_, node)| self.nodes[**node].up);
        let up: Vec<ReplicaId> = up.map(|((_, replica), _)| *replica).collect();
        let drawn = self.replica_random.below(up.len());
        up.get(drawn).copied().unwrap_or(ReplicaId(0))
    }

    fn tell(&mut self, asker: Asker, news: News) {
        let at = self.now + self.net.delay();
        if !self.net.breaks() {
            self.schedule(at, Event::News { asker, news });
        }
    }

    /// Steps a node's coordinator and carries out what that asks for.
    pub fn coordinate(&mut self, node: usize, input: Input) {
        let local = self.nodes[node].clock.local(self.now);
        let life = self.nodes[node].life;
        let mut effects = Vec::new();
        let words = self.trace.is_wordy().then(|| format!("{input:?}"));
        self.nodes[node].desk.coordinator.step(local, input, &mut effects);
        let now = self.now;
        self.trace.step(now, &(node, effects.len()), |line| {
            let words = words.unwrap_or_default();
            *line += &format!("n{node} coordinator {words} => {effects:?}");
        });
        for effect in effects {
            if self.nodes[node].life != life || !self.nodes[node].up {
                return;
            }
            match effect {
                Effect::Place { partition, place } => {
                    self.post(node, Letter { partition: translate::partition(partition), word: Word::Place(place) });
                }
                Effect::Released { partition, watermark } => {
                    let partition = translate::partition(partition);
                    self.post(node, Letter { partition, word: Word::Released(watermark) });
                }
                Effect::Confirm(token) => self.step(node, PartitionId::DIRECTORY, Step::Confirm(token)),
                Effect::Cut { query, ticket } => {
                    if let Some((asker, parts)) = self.nodes[node].desk.asked.get(&query).cloned() {
                        self.tell(asker, News::Cut(ticket, parts));
                    }
                }
                Effect::Complete { query, ticket } => self.end_query(node, query, News::Completed(ticket)),
                Effect::Aborted { query, .. } | Effect::Refused { query, .. } => {
                    self.end_query(node, query, News::Again(Some(node)));
                }
                Effect::Changed { .. } => {}
            }
        }
        self.arm(node);
    }

    fn end_query(&mut self, node: usize, query: QueryId, news: News) {
        if let Some((asker, _)) = self.nodes[node].desk.asked.remove(&query) {
            self.tell(asker, news);
        }
    }

    /// The directory's replica on a node leads.
    pub fn begin_coordinating(&mut self, node: usize, ballot: Ballot) {
        let partitions = self.map.partitions.iter().map(|entry| translate::core_partition(entry.partition)).collect();
        let map = MapVersion(self.map.version.0);
        self.coordinate(node, Input::Lead { ballot, map, partitions, changes: Vec::new() });
    }

    /// It leads no more.
    pub fn end_coordinating(&mut self, node: usize) {
        if self.nodes[node].desk.coordinator.leading().is_some() {
            self.coordinate(node, Input::Resign);
        }
    }

    /// A node learns of a partition's leader.
    pub fn on_new_leader(&mut self, node: usize, partition: PartitionId) {
        if partition != PartitionId::DIRECTORY && self.nodes[node].desk.coordinator.leading().is_some() {
            self.coordinate(node, Input::Resend(translate::core_partition(partition)));
        }
    }

    /// Sends a letter to whoever leads its receiver; if nobody is known to lead, to all who may.
    pub fn post(&mut self, node: usize, letter: Letter) {
        let receiver = match letter.word {
            Word::Place(_) | Word::Released(_) => letter.partition,
            Word::Placed(_) => PartitionId::DIRECTORY,
        };
        let to: Vec<usize> = match self.nodes[node].leaders.get(&receiver) {
            Some(&leader) => vec![leader],
            None => self.places.iter().filter(|((group, _), _)| *group == receiver).map(|(_, node)| *node).collect(),
        };
        for to in to {
            let [first, copy] = if to == node { [Some(0), None] } else { self.net.send(node, to) };
            for delay in [first, copy].into_iter().flatten() {
                self.schedule(self.now + delay, Event::Letter { from: node, to, letter: letter.clone() });
            }
        }
    }

    /// A letter arrives.
    pub fn on_letter(&mut self, node: usize, letter: Letter) {
        if !self.nodes[node].up {
            return;
        }
        match letter.word {
            Word::Place(place) => self.step(node, letter.partition, Step::Place(place)),
            Word::Released(ticket) => self.step(node, letter.partition, Step::Released(ticket)),
            Word::Placed(ticket) => {
                let partition = translate::core_partition(letter.partition);
                self.coordinate(node, Input::Placed { partition, ticket });
            }
        }
    }

    /// A replica gives its part: the pairs are read when the part leaves, which may be long after its place.
    pub fn give_part(&mut self, mut part: QueryPart) {
        let text = |bytes: &[u8]| Text::Owned(bytes.to_vec());
        let mut pairs = Pairs::new();
        part.cursor.walk(|key, value| {
            pairs.push((text(&key), text(value)));
            true
        });
        let client = part.share.client.0 as usize - 1;
        let (index, attempt) = ((part.share.query >> 10) as usize, part.share.query & 1_023);
        self.tell((client, index, attempt), News::Part(part.ticket, part.position, pairs));
    }

    /// A client hears of its query.
    pub fn on_news(&mut self, (client, index, attempt): Asker, news: News) {
        let Some(asked) = self.queries.get_mut(&(client, index)) else { return };
        if asked.attempt & 1_023 != attempt & 1_023 {
            return;
        }
        match news {
            News::Cut(ticket, parts) => asked.cut = Some((ticket, parts)),
            News::Part(ticket, position, pairs) => {
                asked.parts.insert((ticket, position.partition), (position, pairs));
            }
            News::Completed(ticket) => asked.completed = Some(ticket),
            News::Again(node) => return self.ask_again(client, index, node),
        }
        let Some((ticket, partitions)) = asked.cut.clone() else { return };
        if asked.completed != Some(ticket) {
            return;
        }
        let found = partitions.iter().map(|partition| asked.parts.get(&(ticket, *partition)));
        let Some(found) = found.collect::<Option<Vec<_>>>() else { return };
        let positions = found.iter().map(|(position, _)| *position).collect();
        let pairs = found.iter().flat_map(|(_, pairs)| pairs.iter().cloned()).collect();
        let Ballot { round, replica } = ticket.ballot;
        let ticket = ToldTicket { round: round.0, replica: replica.0, number: ticket.n };
        let end = End::Answered { output: Output::Pairs(pairs), positions, ticket: Some(ticket) };
        self.queries.remove(&(client, index));
        self.account.end(index, self.now, end);
        self.think(client);
    }
}
