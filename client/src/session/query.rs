//! One attempt at a query across partitions, as its client sees it: what was announced, what has arrived, what may be
//! given out (protocol.md 4, steps 2, 4 and 6). It knows neither connections nor time.
//!
//! Chunks come from several nodes, in any order between them, even before the `QueryPlan` that announces them. None
//! counts before the coordinator says `QueryCompleted` of the ticket that they carry: until then they wait here,
//! bounded by the credit that their part was given. From then on they leave in key order, part after part; the part
//! that is being read gets the credit that the reader has room for, the ones behind it keep what they were given at
//! first. Where the parts are compared with what the reader holds, each announces itself without credit, and its server
//! is told what the reader holds of it as the reader comes near.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use bytes::Bytes;
use coppice_btree::Value;

use super::calls::CallKey;
use super::comparison::{Comparison, Told};
use crate::wire::{NodeId, Part, PartEnd, PartitionId, Position, QueryPlan, Ticket};

/// Partitions of which chunks are kept before a `QueryPlan` says whether they are wanted.
const EARLY_PARTS_MAX: usize = 65_536;

/// Up to so many parts are looked through one by one.
const FEW_PARTS: usize = 16;

/// Least credit that a part is given at first, of however many: a page or two of small pairs.
const PART_CREDIT_MIN: u32 = 16 * 1024;

/// What a message did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It belongs to this attempt.
    Yes,
    /// It says nothing new.
    Stale,
    /// It belongs to another ticket, or to another map: the attempt comes to nothing (protocol.md 4).
    Void,
    /// No sound node says it.
    ProtocolError(&'static str),
}

/// What has come of one part.
#[derive(Clone, Debug)]
struct PartStream {
    partition: PartitionId,
    /// Its bounds and the node that serves it, once the plan is known. Copied: a query waits for its parts much longer
    /// than its plan should keep the buffer that it came in.
    plan: Option<(Value, Option<Value>, NodeId)>,
    /// The connection's peer that it comes from, once something came.
    peer: Option<usize>,
    /// Instance and index that it is read at.
    position: Option<(u64, u32)>,
    /// Number of the next chunk.
    next: u32,
    pairs: u64,
    /// Bytes that may still come.
    credit: i64,
    /// Chunks that are not given out, each with what it says of stretches ([`Told::on_part`]).
    held: VecDeque<(Bytes, Option<usize>)>,
    end: Option<PartEnd>,
    /// What its server was told of what the reader holds.
    told: Option<Told>,
}

/// How an attempt ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueryEnd {
    /// Pairs in the parts that were given out.
    pub pairs: u64,
    /// Of the last of them.
    pub position: Position,
}

/// Credit to be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub peer: usize,
    pub partition: PartitionId,
    pub bytes: u32,
}

/// What the server of a part is to be told of what the reader holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Telling {
    pub peer: usize,
    pub partition: PartitionId,
    /// Which stretches, and whether none follow.
    pub stretches: (Range<usize>, bool),
    /// The credit that the part is given with them.
    pub credit: u32,
}

/// One attempt. See the module.
#[derive(Clone, Debug)]
pub(super) struct Query {
    pub call: CallKey,
    /// Peer and stream that it was asked on.
    pub asked: (usize, u32),
    low: Bytes,
    high: Option<Bytes>,
    reverse: bool,
    /// Of the plan, or of the chunk that came first.
    ticket: Option<Ticket>,
    /// Once the plan is known, the parts in the order in which they are read; before, those of which something came.
    parts: Vec<PartStream>,
    /// Where each is in `parts`, if they are many.
    places: BTreeMap<PartitionId, usize>,
    is_planned: bool,
    completed: bool,
    /// Place in `parts` of the one that is being read.
    turn: usize,
    /// Pairs of the parts before it.
    pairs: u64,
    credit_first: u32,
    credit_max: u32,
    /// The parts are compared: each gets its first credit when it has announced itself.
    compares: bool,
    /// Bytes that were given out and not read.
    unread: i64,
}

/// The credit that each of `parts` parts is given at first, of `credit_max` for all.
pub(super) fn first_credit(credit_max: u32, parts: usize) -> u32 {
    let share = credit_max / u32::try_from(parts.max(1)).unwrap_or(u32::MAX);
    share.max(PART_CREDIT_MIN).min(credit_max)
}

impl Query {
    pub fn new(
        call: CallKey,
        asked: (usize, u32),
        (low, high, reverse): (Bytes, Option<Bytes>, bool),
        (credit_first, credit_max): (u32, u32),
        compares: bool,
    ) -> Query {
        Query {
            call,
            asked,
            low,
            high,
            reverse,
            ticket: None,
            parts: Vec::new(),
            places: BTreeMap::new(),
            is_planned: false,
            completed: false,
            turn: 0,
            pairs: 0,
            credit_first,
            credit_max,
            compares,
            unread: 0,
        }
    }

    /// Bytes that a part may send without more words.
    pub fn credit_unasked(&self) -> u32 {
        if self.compares { 0 } else { self.credit_first }
    }

    /// What the servers of parts are to be told of what the reader holds: of the parts that it comes near, or of one
    /// that something has come of.
    pub fn tell(&mut self, of: Option<PartitionId>, comparison: &Comparison) -> Vec<Telling> {
        let places = match of.map(|partition| self.place_of(partition)) {
            None => self.turn..self.parts.len(),
            Some(Some(place)) => place..place + 1,
            Some(None) => 0..0,
        };
        let (first, horizon, mut tellings) = (i64::from(self.credit_first), comparison.horizon(), Vec::new());
        for part in self.parts[places].iter_mut().filter(|part| part.end.is_none()) {
            let (Some((low, high, _)), Some(peer)) = (&part.plan, part.peer) else { continue };
            let is_new = part.told.is_none();
            let new = || Told::new(&comparison.stretches, low, high.as_deref());
            let mut told = part.told.clone().unwrap_or_else(new);
            if !is_new && told.next() >= horizon {
                break;
            }
            let Some(stretches) = told.more(horizon) else { continue };
            part.told = Some(told);
            let credit = if is_new { first - part.credit } else { 0 };
            part.credit += credit;
            tellings.push(Telling { peer, partition: part.partition, stretches, credit: credit as u32 });
        }
        tellings
    }

    /// Whether the ticket is the attempt's. The first that is named decides; a chunk alone may be wrong, then the plan
    /// or the completion names another one, and the attempt is void.
    fn is_of(&mut self, ticket: Ticket) -> bool {
        *self.ticket.get_or_insert(ticket) == ticket || mutant!(parts_by_query)
    }

    /// The coordinator's announcement.
    pub fn on_plan(&mut self, plan: QueryPlan) -> Verdict {
        if self.is_planned {
            return Verdict::ProtocolError("two plans of one query");
        }
        let ends = plan.parts.first().zip(plan.parts.last());
        if ends.is_none_or(|(first, last)| first.low != self.low || last.high != self.high) {
            return Verdict::ProtocolError("a plan with other bounds");
        }
        if !self.is_of(plan.ticket) {
            return Verdict::Void;
        }
        let early = std::mem::replace(&mut self.parts, Vec::with_capacity(plan.parts.len()));
        for part in plan.parts {
            let mut announced = PartStream::new(part.partition, self.credit_unasked());
            announced.plan = Some((Value::from(&*part.low), part.high.map(|high| Value::from(&*high)), part.node));
            self.parts.push(announced);
        }
        if self.reverse {
            self.parts.reverse();
        }
        self.is_planned = true;
        self.places.clear();
        self.note_places();
        // What came early takes the place that was announced for it.
        let early = early.into_iter().all(|part| match self.place_of(part.partition) {
            Some(place) => self.parts[place].adopt(part),
            None => false,
        });
        if early { Verdict::Yes } else { Verdict::Void }
    }

    fn place_of(&self, partition: PartitionId) -> Option<usize> {
        if self.parts.len() > FEW_PARTS {
            return self.places.get(&partition).copied();
        }
        self.parts.iter().position(|part| part.partition == partition)
    }

    fn note_places(&mut self) {
        if self.parts.len() > FEW_PARTS {
            let noted = self.places.len();
            self.places.extend(self.parts.iter().map(|part| part.partition).zip(0..).skip(noted));
        }
    }

    /// A chunk, with its body, from this peer.
    pub fn on_part(&mut self, peer: usize, part: &Part<'_>, body: &Bytes) -> Verdict {
        let Some(ticket) = part.ticket else { return Verdict::ProtocolError("a part without a ticket") };
        if !self.is_of(ticket) {
            return Verdict::Void;
        }
        let partition = part.position.partition;
        let place = match self.place_of(partition) {
            Some(place) => place,
            None if self.is_planned || self.parts.len() >= EARLY_PARTS_MAX => return Verdict::Void,
            None => {
                self.parts.push(PartStream::new(partition, self.credit_unasked()));
                self.note_places();
                self.parts.len() - 1
            }
        };
        self.parts[place].take(peer, part, body)
    }

    /// The coordinator's last word: the parts of this ticket are the result.
    pub fn on_completed(&mut self, ticket: Ticket) -> Verdict {
        // Without a plan nobody knows what is missing.
        if !self.is_planned || !self.is_of(ticket) {
            return Verdict::Void;
        }
        self.completed = true;
        Verdict::Yes
    }

    /// Whether the result may leave: it counts, and each of its parts has begun. A replica that was removed before it
    /// came to the ticket gives no part; while nothing was given out, the query is simply asked again.
    pub fn may_leave(&self) -> bool {
        let begun = || self.parts.iter().all(|part| part.position.is_some());
        self.completed && begun() || mutant!(client_no_complete)
    }

    /// Takes out what may be given to the reader now, in key order; the end, if that was all.
    pub fn give(&mut self, chunks: &mut Vec<(Bytes, Option<usize>)>) -> Option<QueryEnd> {
        if !self.may_leave() {
            return None;
        }
        while let Some(part) = self.parts.get_mut(self.turn).filter(|_| self.is_planned) {
            self.unread += part.held.iter().map(|(chunk, _)| chunk.len() as i64).sum::<i64>();
            chunks.extend(part.held.drain(..));
            let end = part.end?;
            self.turn += 1;
            self.pairs += part.pairs;
            // What is behind a part that a limit ended is not next to it: nothing of it may follow.
            let (partition, (instance, index)) = (part.partition, part.position.unwrap_or_default());
            if end == PartEnd::Limited || self.turn == self.parts.len() {
                return Some(QueryEnd { pairs: self.pairs, position: Position { partition, instance, index } });
            }
        }
        None
    }

    /// The reader has consumed so many bytes.
    pub fn on_read(&mut self, bytes: u32) {
        self.unread -= i64::from(bytes);
    }

    /// The part that is read now, if it has not come whole.
    fn current(&mut self) -> Option<&mut PartStream> {
        self.parts.get_mut(self.turn).filter(|part| self.is_planned && part.end.is_none())
    }

    /// Credit for the part that is being read: what the reader has room for, once half of what the part had at first is
    /// used up and there is room for more than a trickle.
    pub fn grant(&mut self) -> Option<Grant> {
        if !self.may_leave() {
            return None;
        }
        let (max, unread) = (i64::from(self.credit_max), self.unread.max(0));
        let (first, compares) = (i64::from(self.credit_first), self.compares);
        // Without a word of what the reader holds its server would send all pairs: its first credit goes with that.
        let part = self.current().filter(|part| !compares || part.told.is_some())?;
        let (partition, peer) = (part.partition, part.peer?);
        let room = max - unread - part.credit.max(0);
        if room <= 0 || part.credit > first / 2 || (part.credit > 0 && room < max / 4) {
            return None;
        }
        // What a chunk has overdrawn is made up for, else the node would not go on.
        let bytes = (room - part.credit.min(0)).clamp(0, i64::from(u32::MAX));
        part.credit += bytes;
        Some(Grant { peer, partition, bytes: bytes as u32 })
    }

    /// Whether the nodes owe the reader something; else it is the reader who lets them wait.
    pub fn is_owed(&mut self) -> bool {
        let all_begun = self.parts.iter().all(|part| part.position.is_some());
        let owes = |part: &mut PartStream| part.credit > 0 && !part.told.as_ref().is_some_and(Told::is_done);
        !all_begun || self.current().is_some_and(owes)
    }

    /// The node and, once something came, the peer of each part that has not come whole.
    pub fn missing(&self) -> impl Iterator<Item = (Option<usize>, Option<NodeId>)> {
        let missing = self.parts.iter().filter(|part| part.end.is_none());
        missing.map(|part| (part.peer, part.plan.as_ref().map(|(_, _, node)| *node)))
    }
}

impl PartStream {
    fn new(partition: PartitionId, credit: u32) -> PartStream {
        PartStream {
            partition,
            plan: None,
            peer: None,
            position: None,
            next: 0,
            pairs: 0,
            credit: i64::from(credit),
            held: VecDeque::new(),
            end: None,
            told: None,
        }
    }

    /// Takes over what came before the plan; `false` if that is not what was announced.
    fn adopt(&mut self, early: PartStream) -> bool {
        let plan = self.plan.take();
        *self = PartStream { plan, ..early };
        self.is_inside()
    }

    /// Whether the keys of what is held lie inside the part's bounds. The reader checks that they ascend.
    fn is_inside(&self) -> bool {
        self.held.iter().all(|(body, _)| Part::decode(body).is_ok_and(|part| self.holds(&part)))
    }

    fn holds(&self, part: &Part<'_>) -> bool {
        let Some((low, high, _)) = &self.plan else { return true };
        let inside = |key: &[u8]| key >= low.as_slice() && high.as_ref().is_none_or(|high| key < high.as_slice());
        part.ends().is_none_or(|(first, last)| inside(first) && inside(last))
    }

    fn take(&mut self, peer: usize, part: &Part<'_>, body: &Bytes) -> Verdict {
        if self.end.is_some() || self.peer.is_some_and(|known| known != peer) || part.number < self.next {
            return Verdict::Stale;
        }
        let read_at = (part.position.instance, part.position.index);
        let counted = part.is_empty() && part.end.is_some();
        let in_sequence = part.number == self.next || mutant!(chunk_unnumbered);
        let adds_up = counted || part.pairs_so_far == self.pairs + part.len() as u64 || mutant!(chunk_unnumbered);
        if !in_sequence || !adds_up || self.position.is_some_and(|position| position != read_at) {
            return Verdict::ProtocolError("a part out of sequence");
        }
        // It announces itself without credit.
        if self.credit <= 0 && !(part.number == 0 && part.is_empty()) {
            return Verdict::ProtocolError("more of a part than it had credit for");
        }
        if !self.holds(part) {
            return Verdict::ProtocolError("a part with keys of another one");
        }
        self.peer = Some(peer);
        self.position = Some(read_at);
        self.next = part.number + 1;
        self.pairs = part.pairs_so_far;
        self.credit -= body.len() as i64;
        self.end = part.end;
        if self.held.capacity() == 0 && part.end.is_some() {
            self.held.reserve_exact(1);
        }
        let next = self.told.as_mut().and_then(|told| told.on_part(part));
        self.held.push_back((body.clone(), next));
        Verdict::Yes
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::wire::part::PartHead;
    use crate::wire::{Compared, FrameDecoder, MapVersion, PairsSum, PartWriter, STRETCHES_MAX, Stretch, SubRange};

    fn chunk(of: u32, number: u32, compared: Option<Compared>, end: Option<PartEnd>) -> Bytes {
        let mut out = BytesMut::new();
        let position = Position { partition: PartitionId(of), instance: 1, index: 0 };
        let head = PartHead { stream: 1, position, ticket: Some(Ticket::default()), version: None, keys_only: false };
        let writer = PartWriter::new(&mut out, &head, number, true);
        let writer = if let Some(compared) = compared { writer.compared(compared) } else { writer };
        writer.finish(0, end);
        let mut decoder = FrameDecoder::default();
        decoder.feed(&out);
        decoder.next_frame().expect("ours").expect("one").body.clone()
    }

    #[test]
    fn a_part_has_no_credit_before_its_server_is_told_what_the_reader_holds() {
        let boundary = STRETCHES_MAX as u8;
        let stretch = |n: u8| Stretch {
            low: [n][..].into(),
            high: Some([n + 1][..].into()),
            sum: PairsSum { pairs: 1, bytes: 1, hash: [n; 32] },
        };
        let mut comparison = Comparison::new((0..3 * boundary).map(stretch).collect());
        let mut query = Query::new(CallKey::default(), (0, 1), (Bytes::new(), None, false), (16 << 10, 1 << 20), true);
        let high = Bytes::from(vec![boundary]);
        let sub = |n: u32, low: Bytes, high| SubRange { partition: PartitionId(n), low, high, node: NodeId(n) };
        let parts = vec![sub(1, Bytes::new(), Some(high.clone())), sub(2, high, None)];
        query.on_plan(QueryPlan { ticket: Ticket::default(), version: MapVersion(1), parts });
        query.on_completed(Ticket::default());
        let take = |query: &mut Query, of: u32, body: Bytes| {
            let part = Part::decode(&body).expect("ours");
            assert_eq!(query.on_part(of as usize, &part, &body), Verdict::Yes);
        };
        for of in [1, 2] {
            take(&mut query, of, chunk(of, 0, None, None));
            let told = query.tell(Some(PartitionId(of)), &comparison);
            assert_eq!(told.len(), usize::from(of == 1), "the second begins beyond what may be told: {told:?}");
        }
        // The first part ends before the reader has consumed any of it.
        for number in 0..u32::from(boundary) {
            let end = (number + 1 == u32::from(boundary)).then_some(PartEnd::Complete);
            take(&mut query, 1, chunk(1, number + 1, Some(Compared { number: number.into(), same: true }), end));
        }
        let mut chunks = Vec::new();
        query.give(&mut chunks);
        chunks.iter().for_each(|(chunk, next)| comparison.on_given(chunk.len(), *next));
        assert_eq!((query.turn, query.grant()), (1, None));
        // With what it consumes the second one's turn comes: it is told, and given credit with that.
        let mut tellings = Vec::new();
        for (chunk, _) in chunks {
            comparison.on_consumed(chunk.len() as u32);
            query.on_read(chunk.len() as u32);
            tellings.extend(query.tell(None, &comparison));
        }
        let first = tellings.first().expect("it is told");
        assert!(first.partition == PartitionId(2) && first.credit > 0, "{tellings:?}");
    }
}
