//! The world's coordinator and the parts of queries (protocol.md 4): tickets that are placed at different moments,
//! completed, voided or forgotten with their coordinator; parts that come late, before their cut, twice, or of a ticket
//! that nobody waits for. It keeps book of what every ticket saw, and watches what the client gives out.

use coppice_client::wire::part::PartHead;

use super::nodes::RangeState;
use super::*;

/// How wild queries are, in permille per occasion.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueryChaos {
    /// The ticket is voided.
    pub void: u64,
    /// And the client is not told.
    pub untold: u64,
    /// A part is dropped.
    pub lost: u64,
    /// Another node coordinates from now on; what was under way is forgotten.
    pub coordinator_change: u64,
    /// The cut leaves long after the tickets are placed.
    pub late_cut: u64,
    /// A chunk is sent twice.
    pub twice: u64,
    /// A chunk of another ticket comes under the number of the attempt.
    pub foreign: u64,
    /// A placement takes long, or never comes.
    pub late_place: u64,
    /// Not a chance: whom a void ticket is blamed on.
    pub unplaced: Option<PartitionId>,
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// A ticket and what became of it.
#[derive(Debug)]
pub struct Tried {
    pub request: QueryRequest,
    pub client: (ConnectionId, u32),
    pub parts: Vec<SubRange>,
    /// What the ticket saw, by partition, and the instance of that.
    pub seen: BTreeMap<PartitionId, (u64, Pairs)>,
    pub round: u64,
    pub announced: bool,
    pub completed: bool,
    pub voided: bool,
}

/// What a client is given of a range.
#[derive(Debug, Default)]
pub struct Given {
    pub ticket: Option<Ticket>,
    pub unread: usize,
    pub unread_max: usize,
}

#[derive(Debug)]
pub enum QueryEvent {
    Cut(u64),
    Place(u64, PartitionId),
    /// A part looks for the connection of its client, until then.
    Give(Box<Parked>, Time),
    Release(u64),
    /// The reader of this token's range takes so many bytes.
    Read(u64, u32),
}

#[derive(Debug)]
pub struct Parked {
    node: NodeId,
    query: u32,
    part: RangeState,
}

#[derive(Debug, Default)]
pub struct Queries {
    pub chaos: QueryChaos,
    pub coordinator: u32,
    pub round: u64,
    /// By the number of the ticket.
    pub tickets: BTreeMap<u64, Tried>,
    pub given: BTreeMap<u64, Given>,
    pub calls: BTreeMap<u64, CallKey>,
    /// How long a reader takes for a chunk; none: it does not read.
    pub read_pause: Option<Duration>,
    pub(super) out: BTreeMap<(ConnectionId, u32, PartitionId), RangeState>,
}

impl World {
    fn leader_of(&self, partition: PartitionId) -> NodeId {
        NodeId(self.partitions.iter().find(|found| found.id == partition).expect("it is in the map").leader)
    }

    fn ticket(&self, n: u64) -> Ticket {
        let round = self.queries.tickets.get(&n).map_or(0, |tried| tried.round);
        Ticket { round, replica: ReplicaId(1), n }
    }

    pub(super) fn on_query(&mut self, node: u32, connection: ConnectionId, stream: u32, request: QueryRequest) {
        let refusal = if node != self.queries.coordinator {
            let hint = self.rng.chance(500).then_some(NodeId(self.queries.coordinator));
            Some(Refusal::NotLeader { partition: PartitionId::DIRECTORY, hint })
        } else if self.rng.chance(self.chaos.busy) {
            Some(Refusal::Busy { retry_after: Duration::from_millis(self.rng.below(50)), text: String::new() })
        } else {
            None
        };
        if let Some(refusal) = refusal {
            let mut out = BytesMut::new();
            refusal.encode(&mut out, stream);
            return self.reply(connection, out);
        }
        let n = self.queries.tickets.len() as u64 + 1;
        let high = request.high.clone();
        let (map, draw) = (self.map(), self.rng.next());
        let covers = map.cover(&request.low, high.as_deref());
        let parts: Vec<SubRange> = covers
            .iter()
            .zip(0u64..)
            .map(|(entry, at)| SubRange {
                partition: entry.partition,
                low: entry.low.clone().max(request.low.clone()),
                high: match (&entry.high, &high) {
                    (Some(mine), Some(high)) => Some(mine.min(high).clone()),
                    (mine, high) => mine.clone().or(high.clone()),
                },
                node: match request.from_leaders {
                    true => self.leader_of(entry.partition),
                    false => NodeId((draw.wrapping_add(at) % u64::from(self.nodes)) as u32 + 1),
                },
            })
            .collect();
        for part in &parts {
            let late = self.rng.chance(self.queries.chaos.late_place);
            let at = self.now + self.delay() * if late { 40 } else { 1 };
            self.schedule(at, Event::Query(QueryEvent::Place(n, part.partition)));
        }
        let late = self.rng.chance(self.queries.chaos.late_cut);
        let at = self.now + if late { self.delay() * 20 } else { Duration::ZERO };
        self.schedule(at, Event::Query(QueryEvent::Cut(n)));
        let round = self.queries.round;
        let tried = Tried {
            request,
            client: (connection, stream),
            parts,
            seen: BTreeMap::new(),
            round,
            announced: false,
            completed: false,
            voided: false,
        };
        self.queries.tickets.insert(n, tried);
        if self.rng.chance(self.queries.chaos.void) {
            let told = !self.rng.chance(self.queries.chaos.untold);
            self.void(n, told);
        }
    }

    /// The ticket will not complete; the client is told, or not.
    fn void(&mut self, n: u64, told: bool) {
        let Some(tried) = self.queries.tickets.get_mut(&n).filter(|tried| !tried.completed) else { return };
        tried.voided = true;
        let (connection, stream) = tried.client;
        if told {
            let mut out = BytesMut::new();
            Refusal::Aborted { text: "not placed in time".into(), unplaced: self.queries.chaos.unplaced }
                .encode(&mut out, stream);
            self.reply(connection, out);
        }
    }

    /// Another node coordinates: nothing of the old one completes.
    pub fn change_coordinator(&mut self) {
        self.queries.coordinator = self.rng.below(u64::from(self.nodes)) as u32 + 1;
        self.queries.round += 1;
        let round = self.queries.round;
        let old: Vec<u64> =
            self.queries.tickets.iter().filter(|(_, tried)| tried.round < round).map(|(&n, _)| n).collect();
        for n in old {
            let told = self.rng.chance(300);
            self.void(n, told);
        }
    }

    pub(super) fn stir_queries(&mut self) {
        if self.rng.chance(self.queries.chaos.coordinator_change) {
            self.change_coordinator();
        }
    }

    pub(super) fn query_event(&mut self, event: QueryEvent, session: &mut Session, effects: &mut Vec<Effect>) {
        match event {
            QueryEvent::Cut(n) => {
                let ticket = self.ticket(n);
                let tried = &self.queries.tickets[&n];
                let cut = QueryPlan { ticket, version: MapVersion(self.version), parts: tried.parts.clone() };
                let ((connection, stream), gone) = (tried.client, tried.voided);
                if !gone {
                    self.queries.tickets.get_mut(&n).unwrap().announced = true;
                    let mut out = BytesMut::new();
                    cut.encode(&mut out, stream).unwrap();
                    self.reply(connection, out);
                    self.release(n);
                }
            }
            QueryEvent::Place(n, partition) => self.place(n, partition),
            QueryEvent::Give(parked, until) => self.give(parked, until),
            QueryEvent::Release(n) => self.release(n),
            QueryEvent::Read(token, bytes) => {
                if let Some(given) = self.queries.given.get_mut(&token) {
                    given.unread -= bytes as usize;
                    let call = self.queries.calls[&token];
                    session.step(self.now, Input::Credit { call, bytes }, effects);
                }
            }
        }
    }

    /// The ticket is delivered in a partition: what is there now is what it sees.
    fn place(&mut self, n: u64, id: PartitionId) {
        let ticket = self.ticket(n);
        let Some(at) = self.partitions.iter().position(|found| found.id == id) else { return };
        let tried = &self.queries.tickets[&n];
        let part = tried.parts.iter().find(|part| part.partition == id).unwrap().clone();
        let bounds = &self.partitions[at];
        let cut_off = bounds.high.as_ref().is_some_and(|mine| part.high.as_ref().is_none_or(|high| high > mine));
        if cut_off {
            // A split came in between; the real coordinator orders both in one chain, this one begins anew.
            return self.void(n, true);
        }
        let partition = &mut self.partitions[at];
        partition.instance += 1;
        let instance = partition.instance;
        let inside = |key: &[u8]| key >= &part.low[..] && part.high.as_ref().is_none_or(|high| key < &high[..]);
        let pairs = partition.data.iter().filter(|(key, _)| inside(key));
        let mut pairs: Vec<_> = pairs.map(|(key, value)| (key.clone(), value.clone())).collect();
        if tried.request.scan.reverse {
            pairs.reverse();
        }
        let (query, credit) = (tried.request.query, i64::from(tried.request.credit));
        let pairs_max = tried.request.scan.pairs_max as usize;
        self.queries.tickets.get_mut(&n).unwrap().seen.insert(id, (instance, pairs.clone()));
        let limited = pairs_max > 0 && pairs.len() >= pairs_max;
        if limited {
            pairs.truncate(pairs_max);
        }
        let at = self.now + self.delay();
        self.schedule(at, Event::Query(QueryEvent::Release(n)));
        let position = Position { partition: id, instance, index: 0 };
        let head = PartHead { stream: query, position, ticket: Some(ticket), version: None, keys_only: false };
        let state = RangeState { pairs, sent: 0, number: 0, credit, head, limited, before: 0, behind: Vec::new() };
        if !self.rng.chance(self.queries.chaos.lost) {
            let until = self.now + Duration::from_secs(1);
            self.give(Box::new(Parked { node: part.node, query, part: state }), until);
        }
    }

    /// The node sends a part on the connection that it has with the client; without one it waits for it.
    fn give(&mut self, parked: Box<Parked>, until: Time) {
        if self.paused_until.get(&parked.node.0) == Some(&Time::NEVER) {
            return;
        }
        let mut lines = self.lines.iter().rev();
        let line = lines
            .find(|(_, line)| NodeId(line.node) == parked.node && line.client_open && line.node_open && line.greeted);
        match line {
            Some((&connection, _)) => {
                let Parked { query, part, .. } = *parked;
                let partition = part.head.position.partition;
                self.queries.out.insert((connection, query, partition), part);
                self.stream_part(connection, query, partition);
            }
            None if self.now < until => {
                let at = self.now + Duration::from_millis(1);
                self.schedule(at, Event::Query(QueryEvent::Give(parked, until)));
            }
            None => {}
        }
    }

    fn stream_part(&mut self, connection: ConnectionId, query: u32, partition: PartitionId) {
        let key = (connection, query, partition);
        while let Some(part) = self.queries.out.get_mut(&key) {
            if part.credit <= 0 {
                return;
            }
            if self.rng.chance(self.queries.chaos.foreign) {
                self.foreign(connection, query, partition);
                continue;
            }
            let (out, end) = part.chunk();
            if !self.rng.chance(self.chaos.lost_part) {
                if self.rng.chance(self.queries.chaos.twice) {
                    self.reply(connection, out.clone());
                }
                self.reply(connection, out);
            }
            if end {
                self.queries.out.remove(&key);
            } else if self.rng.chance(self.chaos.cut) {
                self.cut(connection);
            }
        }
    }

    /// A chunk of another ticket, with a key that nobody wrote.
    fn foreign(&mut self, connection: ConnectionId, query: u32, partition: PartitionId) {
        let low = self.partitions.iter().find(|found| found.id == partition).map(|found| found.low.clone());
        let Some(low) = low else { return };
        let part = &self.queries.out[&(connection, query, partition)];
        let mut head = part.head;
        head.ticket = head.ticket.map(|ticket| Ticket { round: ticket.round + 1, ..ticket });
        let mut out = BytesMut::new();
        let mut writer = PartWriter::new(&mut out, &head, part.number, false);
        assert!(writer.push(&[&low[..], b"a~foreign"].concat(), b"foreign"));
        writer.finish(part.sent as u64, None);
        self.reply(connection, out);
    }

    pub(super) fn on_part_credit(&mut self, connection: ConnectionId, query: u32, partition: PartitionId, bytes: u32) {
        if let Some(part) = self.queries.out.get_mut(&(connection, query, partition)) {
            part.credit += i64::from(bytes);
            self.stream_part(connection, query, partition);
        }
    }

    pub(super) fn on_part_cancel(&mut self, connection: ConnectionId, query: u32) {
        self.queries.out.retain(|key, _| (key.0, key.1) != (connection, query));
    }

    /// Completes the ticket if it is placed everywhere and its coordinator still leads.
    fn release(&mut self, n: u64) {
        let (ticket, round) = (self.ticket(n), self.queries.round);
        let tried = self.queries.tickets.get_mut(&n).unwrap();
        if !tried.announced
            || tried.completed
            || tried.voided
            || tried.round != round
            || tried.seen.len() < tried.parts.len()
        {
            return;
        }
        tried.completed = true;
        let (connection, stream) = tried.client;
        let mut out = BytesMut::new();
        QueryCompleted { ticket }.encode(&mut out, stream);
        self.reply(connection, out);
    }

    /// The client gives out a chunk: of a completed ticket, always of the same one, or it is wrong.
    pub(super) fn given(&mut self, token: u64, body: &Bytes) {
        let part = Part::decode(body).unwrap();
        if let Some(ticket) = part.ticket {
            let tried = &self.queries.tickets[&ticket.n];
            assert!(tried.completed, "token {token}: {ticket} gave something out and has not completed");
            let before = self.parts.get(&token).and_then(|parts| parts.first());
            let before = before.and_then(|first| Part::decode(first).unwrap().ticket);
            assert!(before.is_none_or(|before| before == ticket), "token {token}: parts of two tickets");
        }
        let given = self.queries.given.entry(token).or_default();
        given.ticket = part.ticket;
        given.unread += body.len();
        given.unread_max = given.unread_max.max(given.unread);
        if let Some(pause) = self.queries.read_pause
            && self.queries.calls.contains_key(&token)
        {
            let at = self.now + pause;
            self.schedule(at, Event::Query(QueryEvent::Read(token, body.len() as u32)));
        }
    }

    /// Parts that are being sent.
    pub fn parts_open(&self) -> usize {
        self.queries.out.len()
    }

    /// Whether something of this token's range came under a ticket.
    pub fn is_query(&self, token: u64) -> bool {
        self.queries.given.get(&token).is_some_and(|given| given.ticket.is_some())
    }

    /// What was given out under a ticket is what the ticket saw, in key order, without a hole; all of it if it ended.
    pub fn check_query(&self, token: u64, parts: &[Part<'_>], done: Option<u64>) {
        let Some(ticket) = parts.first().and_then(|part| part.ticket) else { return };
        let tried = &self.queries.tickets[&ticket.n];
        let mut order: Vec<&SubRange> = tried.parts.iter().collect();
        if tried.request.scan.reverse {
            order.reverse();
        }
        let (mut left, mut pairs) = (parts, 0);
        for (at, cut) in order.iter().enumerate() {
            let (instance, seen) = &tried.seen[&cut.partition];
            let count = left.iter().take_while(|part| part.position.partition == cut.partition).count();
            let (mine, rest) = left.split_at(count);
            left = rest;
            assert!(mine.iter().enumerate().all(|(at, part)| part.number == at as u32), "token {token}");
            assert!(mine.iter().all(|part| part.position.instance == *instance), "token {token}");
            let found: Vec<_> = mine.iter().flat_map(Part::pairs).collect();
            assert!(found.len() <= seen.len());
            let same = found.iter().zip(seen).all(|(found, seen)| (found.0, found.1) == (&seen.0[..], &seen.1[..]));
            assert!(same, "token {token}: {ticket} did not see that in {}", cut.partition);
            pairs += found.len() as u64;
            let end = mine.last().and_then(|part| part.end);
            if end == Some(PartEnd::Limited) {
                assert_eq!(found.len() as u64, tried.request.scan.pairs_max);
                assert!(left.is_empty(), "token {token}: something follows what a limit ended");
                break;
            }
            if end.is_none() {
                assert!(left.is_empty() && done.is_none(), "token {token}: a hole in part {at}");
                break;
            }
            assert_eq!(found.len(), seen.len(), "token {token}");
        }
        assert!(left.is_empty(), "token {token}: parts out of order");
        assert!(done.is_none_or(|done| done == pairs), "token {token}");
    }
}
