//! One attempt at a query across partitions, as its client sees it: what was announced, what has arrived, what may be
//! given out (ordering.md 4, steps 2, 4 and 6). It knows neither connections nor time.
//!
//! Chunks come from several nodes, in any order between them, even before the `Cut` that announces them. None counts
//! before the coordinator says `Completed` of the ticket that they carry: until then they wait here, bounded by the
//! credit that their part was given. From then on they leave in key order, part after part; the part that is being read
//! gets the credit that the reader has room for, the ones behind it keep what they were given at first.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::wire::{Cut, NodeId, Part, PartEnd, PartitionId, Position, Ticket};

use super::calls::CallKey;

/// Partitions of which chunks are kept before a `Cut` says whether they are wanted.
const EARLY_PARTS_MAX: usize = 65_536;

/// Least credit that a part is given at first, of however many: a page or two of small pairs.
const PART_CREDIT_MIN: u32 = 16 * 1024;

/// What a message did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It belongs to this attempt.
    Yes,
    /// It says nothing new.
    Stale,
    /// It belongs to another ticket, or to another map: the attempt comes to nothing (ordering.md 4).
    Void,
    /// No sound node says it.
    Nonsense(&'static str),
}

/// What has come of one part.
#[derive(Clone, Debug, Default)]
struct Arriving {
    /// Its bounds and the node that serves it, once the cut is known.
    cut: Option<(Bytes, Option<Bytes>, NodeId)>,
    /// The connection's peer that it comes from, once something came.
    peer: Option<usize>,
    /// Instance and index that it is read at.
    position: Option<(u64, u32)>,
    /// Number of the next chunk.
    next: u32,
    pairs: u64,
    /// Bytes that may still come.
    credit: i64,
    /// Chunks that are not given out.
    held: VecDeque<Bytes>,
    end: Option<PartEnd>,
}

/// How an attempt ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
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

/// One attempt. See the module.
#[derive(Clone, Debug)]
pub(super) struct Query {
    pub call: CallKey,
    /// Peer and stream that it was asked on.
    pub asked: (usize, u32),
    low: Bytes,
    high: Option<Bytes>,
    reverse: bool,
    /// Of the cut, or of the chunk that came first.
    ticket: Option<Ticket>,
    /// The parts in the order in which they are read; empty before the cut.
    order: Vec<PartitionId>,
    parts: BTreeMap<PartitionId, Arriving>,
    completed: bool,
    /// Place in `order` of the part that is being read.
    turn: usize,
    /// Pairs of the parts before it.
    pairs: u64,
    credit_first: u32,
    credit_max: u32,
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
    ) -> Query {
        Query {
            call,
            asked,
            low,
            high,
            reverse,
            ticket: None,
            order: Vec::new(),
            parts: BTreeMap::new(),
            completed: false,
            turn: 0,
            pairs: 0,
            credit_first,
            credit_max,
            unread: 0,
        }
    }

    /// Whether the ticket is the attempt's. The first that is named decides; a chunk alone may be wrong, then the cut
    /// or the completion names another one, and the attempt is void.
    fn is_of(&mut self, ticket: Ticket) -> bool {
        *self.ticket.get_or_insert(ticket) == ticket || mutant!(parts_by_query)
    }

    /// The coordinator's announcement.
    pub fn on_cut(&mut self, cut: Cut) -> Taken {
        if !self.order.is_empty() {
            return Taken::Nonsense("two cuts of one query");
        }
        let ends = cut.parts.first().zip(cut.parts.last());
        if ends.is_none_or(|(first, last)| first.low != self.low || last.high != self.high) {
            return Taken::Nonsense("a cut with other bounds");
        }
        if !self.is_of(cut.ticket) {
            return Taken::Void;
        }
        self.order = cut.parts.iter().map(|part| part.partition).collect();
        if self.reverse {
            self.order.reverse();
        }
        let credit = i64::from(self.credit_first);
        for part in cut.parts {
            let fresh = || Arriving { credit, ..Arriving::default() };
            let arriving = self.parts.entry(part.partition).or_insert_with(fresh);
            arriving.cut = Some((part.low, part.high, part.node));
        }
        let announced = self.parts.values().all(|part| part.cut.is_some() && part.is_inside());
        if announced { Taken::Yes } else { Taken::Void }
    }

    /// A chunk, with its body, from this peer.
    pub fn on_part(&mut self, peer: usize, part: &Part<'_>, body: &Bytes) -> Taken {
        let Some(ticket) = part.ticket else { return Taken::Nonsense("a part without a ticket") };
        if !self.is_of(ticket) {
            return Taken::Void;
        }
        let partition = part.position.partition;
        let known = self.parts.contains_key(&partition);
        if !known && (!self.order.is_empty() || self.parts.len() >= EARLY_PARTS_MAX) {
            return Taken::Void;
        }
        let credit = i64::from(self.credit_first);
        let arriving = self.parts.entry(partition).or_insert_with(|| Arriving { credit, ..Arriving::default() });
        arriving.take(peer, part, body)
    }

    /// The coordinator's last word: the parts of this ticket are the result.
    pub fn on_completed(&mut self, ticket: Ticket) -> Taken {
        // Without a cut nobody knows what is missing.
        if self.order.is_empty() || !self.is_of(ticket) {
            return Taken::Void;
        }
        self.completed = true;
        Taken::Yes
    }

    /// Whether the result may leave: it counts, and each of its parts has begun. A replica that was removed before it
    /// came to the ticket gives no part; while nothing was given out, the query is simply asked again.
    fn may_leave(&self) -> bool {
        let begun = self.order.iter().all(|id| self.parts.get(id).is_some_and(|part| part.position.is_some()));
        begun && self.completed || mutant!(client_no_complete)
    }

    /// Takes out what may be given to the reader now, in key order; the end, if that was all.
    pub fn give(&mut self, chunks: &mut Vec<Bytes>) -> Option<Ended> {
        if !self.may_leave() {
            return None;
        }
        while let Some(&partition) = self.order.get(self.turn) {
            let part = self.parts.get_mut(&partition)?;
            self.unread += part.held.iter().map(|chunk| chunk.len() as i64).sum::<i64>();
            chunks.extend(part.held.drain(..));
            let end = part.end?;
            self.turn += 1;
            self.pairs += part.pairs;
            // What is behind a part that a limit ended is not next to it: nothing of it may follow.
            if end == PartEnd::Limited || self.turn == self.order.len() {
                let (instance, index) = part.position.unwrap_or_default();
                return Some(Ended { pairs: self.pairs, position: Position { partition, instance, index } });
            }
        }
        None
    }

    /// The reader has consumed so many bytes.
    pub fn on_read(&mut self, bytes: u32) {
        self.unread -= i64::from(bytes);
    }

    /// The part that is read now, if it has not come whole.
    fn current(&mut self) -> Option<(PartitionId, &mut Arriving)> {
        let &partition = self.order.get(self.turn)?;
        let part = self.parts.get_mut(&partition).filter(|part| part.end.is_none())?;
        Some((partition, part))
    }

    /// Credit for the part that is being read: what the reader has room for, once half of what the part had at first is
    /// used up and there is room for more than a trickle.
    pub fn grant(&mut self) -> Option<Grant> {
        if !self.may_leave() {
            return None;
        }
        let (max, unread) = (i64::from(self.credit_max), self.unread.max(0));
        let first = i64::from(self.credit_first);
        let (partition, part) = self.current()?;
        let peer = part.peer?;
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
        let all_begun = self.parts.values().all(|part| part.position.is_some());
        !all_begun || self.current().is_some_and(|(_, part)| part.credit > 0)
    }

    /// The node and, once something came, the peer of each part that has not come whole.
    pub fn missing(&self) -> impl Iterator<Item = (Option<usize>, Option<NodeId>)> {
        let missing = self.parts.values().filter(|part| part.end.is_none());
        missing.map(|part| (part.peer, part.cut.as_ref().map(|(_, _, node)| *node)))
    }
}

impl Arriving {
    /// Whether the keys of what is held lie inside the part's bounds. The reader checks that they ascend.
    fn is_inside(&self) -> bool {
        self.held.iter().all(|body| Part::decode(body).is_ok_and(|part| self.holds(&part)))
    }

    fn holds(&self, part: &Part<'_>) -> bool {
        let Some((low, high, _)) = &self.cut else { return true };
        let inside = |key: &[u8]| key >= &low[..] && high.as_ref().is_none_or(|high| key < &high[..]);
        part.ends().is_none_or(|(first, last)| inside(first) && inside(last))
    }

    fn take(&mut self, peer: usize, part: &Part<'_>, body: &Bytes) -> Taken {
        if self.end.is_some() || self.peer.is_some_and(|known| known != peer) || part.number < self.next {
            return Taken::Stale;
        }
        let read_at = (part.position.instance, part.position.index);
        let counted = part.is_empty() && part.end.is_some();
        let in_sequence = part.number == self.next || mutant!(chunk_unnumbered);
        let adds_up = counted || part.pairs_so_far == self.pairs + part.len() as u64 || mutant!(chunk_unnumbered);
        if !in_sequence || !adds_up || self.position.is_some_and(|position| position != read_at) {
            return Taken::Nonsense("a part out of sequence");
        }
        if self.credit <= 0 {
            return Taken::Nonsense("more of a part than it had credit for");
        }
        if !self.holds(part) {
            return Taken::Nonsense("a part with keys of another one");
        }
        self.peer = Some(peer);
        self.position = Some(read_at);
        self.next = part.number + 1;
        self.pairs = part.pairs_so_far;
        self.credit -= body.len() as i64;
        self.end = part.end;
        self.held.push_back(body.clone());
        Taken::Yes
    }
}
