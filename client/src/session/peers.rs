//! The nodes that this client talks to: one connection each, and the requests that wait on it.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::calls::CallKey;
use super::comparison::Told;
use super::sessions::SessionKey;
use crate::time::Time;
use crate::wire::{NodeId, Part, PartEnd, PartitionId, Position};

/// A first buffer for requests for ranges, some forty.
const ASKS_BYTES: usize = 2_048;

/// A connection: which peer, and which of its connections. Events of an earlier one are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId {
    /// Place in the session's table of peers.
    pub peer: u32,
    /// Counts the peer's connections.
    pub number: u32,
}

/// What a stream waits for.
#[derive(Clone, Debug)]
pub(super) enum RequestKind {
    /// Commands of one session; the last `left` are not answered yet.
    Pack {
        calls: Vec<CallKey>,
        left: u32,
        session: SessionKey,
    },
    /// A session's opening.
    Open,
    /// Gets; the last `left` are not answered yet.
    Read {
        calls: Vec<CallKey>,
        left: u32,
    },
    Range(RangeProgress),
    /// A part of a range that is collected from several partitions.
    Collect {
        call: CallKey,
        place: u32,
    },
    /// Whether parts of collected ranges have changed.
    Validate {
        entries: Vec<(CallKey, u32)>,
    },
    /// A query, with the number of the attempt.
    Query {
        call: CallKey,
        number: u32,
    },
    Map,
}

impl RequestKind {
    fn is_range(&self) -> bool {
        matches!(self, RequestKind::Range(_) | RequestKind::Collect { .. })
    }

    /// The calls whose collects come to nothing without an answer.
    pub fn collects(&self) -> Vec<CallKey> {
        match self {
            RequestKind::Collect { call, .. } => vec![*call],
            RequestKind::Validate { entries } => entries.iter().map(|&(call, _)| call).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether it is the attempt of a query with this number.
    pub fn is_query(&self, number: u32) -> bool {
        matches!(self, RequestKind::Query { number: of, .. } if *of == number)
    }

    /// Whether it is a range over several partitions that one node reads, and that gave nothing out yet.
    pub fn is_server_collect(&self) -> bool {
        matches!(self, RequestKind::Range(range) if range.server_collects && range.position.is_none())
    }
}

/// A range that is arriving.
#[derive(Clone, Debug)]
pub(super) struct RangeProgress {
    pub call: CallKey,
    /// Number of the next chunk.
    pub next: u32,
    /// Pairs so far.
    pub pairs: u64,
    /// Where the part that is arriving was read; none before the first chunk.
    position: Option<Position>,
    /// The partition of the next part, and those behind it, in the order of the range.
    upcoming: Option<PartitionId>,
    behind: VecDeque<PartitionId>,
    /// It is over several partitions.
    pub server_collects: bool,
    /// Bytes that the server may still send.
    pub credit: i64,
    /// What the server was told of what the reader holds.
    pub told: Option<Told>,
}

impl RangeProgress {
    /// A range inside a partition, with credit for so many bytes.
    pub fn new(call: CallKey, partition: PartitionId, credit: u32) -> RangeProgress {
        let (upcoming, credit) = (Some(partition), credit.into());
        RangeProgress {
            call,
            next: 0,
            pairs: 0,
            position: None,
            upcoming,
            behind: VecDeque::new(),
            server_collects: false,
            credit,
            told: None,
        }
    }

    /// A range over `partitions`, in its order.
    pub fn over(call: CallKey, mut partitions: VecDeque<PartitionId>, credit: u32) -> RangeProgress {
        let upcoming = partitions.pop_front();
        let credit = credit.into();
        RangeProgress {
            call,
            next: 0,
            pairs: 0,
            position: None,
            upcoming,
            behind: partitions,
            server_collects: true,
            credit,
            told: None,
        }
    }

    /// Whether the server owes something; else it is the reader who lets it wait.
    pub fn owes(&self) -> bool {
        self.credit > 0 && !self.told.as_ref().is_some_and(Told::is_done)
    }

    /// Takes the next chunk, with a body of so many bytes; `false`: it is not the next one.
    #[must_use]
    pub fn take(&mut self, part: &Part<'_>, counted: bool, bytes: usize) -> bool {
        let same = self.position == Some(part.position);
        let begins = !same && self.upcoming == Some(part.position.partition);
        let in_sequence = part.number == self.next || mutant!(chunk_unnumbered);
        let adds_up = part.pairs_so_far == self.pairs + part.len() as u64 || mutant!(chunk_unnumbered);
        let left = if begins { self.behind.len() } else { usize::from(self.upcoming.is_some()) };
        let whole = left == 0 || part.end != Some(PartEnd::Complete);
        if !(same || begins) || !in_sequence || !(counted || adds_up) || !whole {
            return false;
        }
        if begins {
            self.upcoming = self.behind.pop_front();
        }
        self.next += 1;
        self.pairs = part.pairs_so_far;
        self.position = Some(part.position);
        self.credit -= bytes as i64;
        true
    }
}

/// A request that was sent.
#[derive(Clone, Debug)]
pub(super) struct PendingRequest {
    pub kind: RequestKind,
    pub queue: usize,
    /// The queue's epoch when it was sent: a refusal of an older one says nothing about the present leader.
    pub epoch: u32,
    /// How many maps had been taken when it was sent: that an older one was wrong says nothing against the present one.
    pub maps: u64,
    /// A replica that need not lead was asked.
    pub anywhere: bool,
    pub at: Time,
    /// When silence is looked at next.
    pub until: Time,
    /// How long silence is borne.
    pub patience: Duration,
    /// Whether the node was asked if it lives.
    pub pinged: bool,
    /// Its calls were queued again; an answer that comes all the same is welcome, a refusal means nothing.
    pub abandoned: bool,
}

impl PendingRequest {
    pub fn asked(&self) -> RequestOrigin {
        RequestOrigin { queue: self.queue, at: self.at }
    }

    /// The calls of commands or gets that still wait for its answer.
    pub fn calls(&self) -> &[CallKey] {
        match &self.kind {
            RequestKind::Pack { calls, left, .. } | RequestKind::Read { calls, left } => {
                &calls[calls.len() - *left as usize..]
            }
            _ => &[],
        }
    }

    /// Whether several commands or gets wait for its answer.
    pub fn has_several(&self) -> bool {
        self.calls().len() > 1
    }
}

/// Whom something was asked, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestOrigin {
    pub queue: usize,
    pub at: Time,
}

/// The requests that wait on one connection, by stream. Streams count up and are never used twice in one connection, so
/// that a late answer can only meet the request that it answers. 0 is the connection itself.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    /// Stream of the first element of `requests`.
    first: u32,
    /// Those that are answered leave a hole, but in front.
    requests: VecDeque<Option<PendingRequest>>,
    /// How many of them are ranges.
    ranges: usize,
    /// No request's `until` is before it.
    earliest: Time,
}

impl Default for Streams {
    fn default() -> Streams {
        Streams { first: 1, requests: VecDeque::new(), ranges: 0, earliest: Time::NEVER }
    }
}

impl Streams {
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The stream that the next request gets; none: this connection has used all of them.
    pub fn next(&self) -> Option<u32> {
        u32::try_from(self.requests.len()).ok().and_then(|waiting| self.first.checked_add(waiting))
    }

    fn push(&mut self, pending: PendingRequest) {
        self.note_until(pending.until);
        self.ranges += usize::from(pending.kind.is_range());
        self.requests.push_back(Some(pending));
    }

    /// Ranges that are under way.
    pub fn ranges(&self) -> usize {
        self.ranges
    }

    /// The request on `stream`, if it waits.
    pub fn get(&mut self, stream: u32) -> Option<&mut PendingRequest> {
        let at = stream.checked_sub(self.first)? as usize;
        self.requests.get_mut(at)?.as_mut()
    }

    /// The request on `stream` is answered or abandoned.
    pub fn take(&mut self, stream: u32) -> Option<PendingRequest> {
        let at = stream.checked_sub(self.first)? as usize;
        let pending = self.requests.get_mut(at)?.take();
        self.ranges -= usize::from(pending.as_ref().is_some_and(|pending| pending.kind.is_range()));
        while let Some(None) = self.requests.front() {
            self.requests.pop_front();
            self.first += 1;
        }
        pending
    }

    /// A request's `until` was set.
    pub fn note_until(&mut self, until: Time) {
        self.earliest = self.earliest.min(until);
    }

    /// The streams whose silence lasts too long at `now`. Looks at all of them, but only when the earliest may be due.
    pub fn silent(&mut self, now: Time) -> Vec<u32> {
        let mut silent = Vec::new();
        if self.earliest > now {
            return silent;
        }
        self.earliest = Time::NEVER;
        for (pending, stream) in self.requests.iter().zip(self.first..) {
            match pending {
                Some(pending) if pending.until <= now => silent.push(stream),
                Some(pending) => self.earliest = self.earliest.min(pending.until),
                None => {}
            }
        }
        silent
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerState {
    /// Not connected, nothing against it.
    Idle,
    /// The driver is connecting, or `Hello` was sent.
    Opening { until: Time },
    /// Greeted.
    Ready,
    /// Not to be tried before.
    Down { until: Time },
}

#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub address: String,
    pub node: Option<NodeId>,
    pub state: PeerState,
    /// Which of its connections is the present one.
    pub connection: u32,
    /// Connections so far.
    connections: u32,
    /// Another connection is tried, because the present one fell silent; which.
    pub spare: Option<u32>,
    /// Failed connections in a row.
    pub failures: u32,
    /// Others are preferred until then: it was silent lately.
    pub suspect_until: Time,
    /// When it last said something, or was first asked after nothing had waited for it.
    pub heard: Time,
    /// When it greeted it belonged to no cluster.
    pub is_blank: bool,
    /// What it said that it can do beside what every node can.
    pub features: u64,
    /// What went wrong last, in words.
    pub last_error: String,
    /// Its last word was that it does not know whom this client acts for.
    pub turned_away: bool,
    /// What waits on the present connection.
    pub streams: Streams,
    /// Requests for ranges that leave together at the end of the turn: many, and small.
    asks: BytesMut,
}

impl Peer {
    pub fn new(address: String, node: Option<NodeId>) -> Peer {
        Peer {
            address,
            node,
            state: PeerState::Idle,
            connection: 0,
            connections: 0,
            spare: None,
            failures: 0,
            suspect_until: Time::default(),
            heard: Time::default(),
            is_blank: false,
            features: 0,
            last_error: String::new(),
            turned_away: false,
            streams: Streams::default(),
            asks: BytesMut::new(),
        }
    }

    pub fn is_ready(&self) -> bool {
        self.state == PeerState::Ready
    }

    pub fn is_open(&self) -> bool {
        matches!(self.state, PeerState::Ready | PeerState::Opening { .. })
    }

    /// Whether it may be tried now.
    pub fn is_usable(&self, now: Time) -> bool {
        !matches!(self.state, PeerState::Down { until } if until > now)
    }

    /// The number of a new connection.
    pub fn next_connection(&mut self) -> u32 {
        self.connections = self.connections.wrapping_add(1);
        self.connections
    }

    /// Notes that a request was sent on the next stream.
    pub fn push(&mut self, pending: PendingRequest) {
        if self.streams.is_empty() && self.spare.is_none() {
            self.heard = self.heard.max(pending.at);
        }
        self.streams.push(pending);
    }

    /// Where a request for a range is written to.
    pub fn asks(&mut self) -> &mut BytesMut {
        if self.asks.capacity() == 0 {
            self.asks.reserve(ASKS_BYTES);
        }
        &mut self.asks
    }

    /// The requests for ranges that were written since; `None` if there are none.
    pub fn take_asks(&mut self) -> Option<Bytes> {
        (!self.asks.is_empty()).then(|| self.asks.split().freeze())
    }

    /// Everything that waits, given up at the end of a connection. What was queued again is left out.
    pub fn take_all(&mut self) -> Vec<PendingRequest> {
        self.asks.clear();
        std::mem::take(&mut self.streams).requests.into_iter().flatten().filter(|pending| !pending.abandoned).collect()
    }

    /// When it is to be looked at next: [`Streams::silent`] may have something, or an end is due.
    pub fn deadline(&self) -> Time {
        let end = match self.state {
            PeerState::Opening { until } => until,
            _ if self.spare.is_some() => self.suspect_until,
            _ => Time::NEVER,
        };
        end.min(self.streams.earliest)
    }
}

/// Doubling pauses with jitter.
pub(super) fn pause(first: Duration, max: Duration, failures: u32, draw: u64) -> Duration {
    let whole = first.saturating_mul(1 << failures.min(16)).min(max);
    // Between half of it and all of it: clients that failed together do not come back together.
    whole / 2 + Duration::from_nanos((whole.as_nanos() as u64 / 2).checked_mul(draw % 1024).unwrap_or(0) / 1024)
}

/// Pseudo-random numbers from a seed (splitmix64).
#[derive(Clone, Debug)]
pub(super) struct Draws(pub u64);

impl Draws {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
