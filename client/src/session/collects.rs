//! Ranges across partitions without a ticket: read in each partition, and when all have answered, each is asked again
//! whether anything of what it gave has changed since (a double collect). Only where something has, or anything else is
//! in the way, the coordinator is asked for a ticket (`queries`), once and for all for that call.
//!
//! Why that is one moment. A second reading is a linearizable read like any other (protocol.md 7), by the same replica
//! as the first one, which has counted every change that it executed since. A first reading need not be the newest: it
//! is of a state that was decided when it was answered, behind the gate for the tickets before it (protocol.md 3). Take
//! the graph of protocol.md 5 with the second readings, and add each first reading as an event that stands behind all
//! that its partition's log holds up to its position x, and before nothing there. No edge of a log leaves it, and of
//! its answer the same is true as of that of a command there: it came after R(Q) of every query Q up to x (fact iii),
//! and after the decision of every command, which orders partitions without queries. So there is no cycle still, and an
//! order of everything that respects real time. In it the last change of each range up to x stands before its first
//! reading; every first reading before every second one, for none was asked before all of the first were answered; and
//! the next change of each range, which lies behind the second reading's position since none was found before, behind
//! that second reading. Put the query right behind the last of the first readings: it saw what holds there. What was
//! answered before the query was asked stands before the first readings, and what was asked after its answer behind the
//! second ones. QED
//!
//! It costs two reads of each partition, one of them confirmed, and nothing durable, where a ticket costs an entry in
//! each log and the coordinator's confirmation. It promises no end: where others write what it reads again and again,
//! it never holds. So each call tries once, and a client that has no luck tries ever more seldom.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use coppice_btree::Value;

use super::answers::{FrameResult, ProtocolError};
use super::calls::{CallKey, Calls, Request};
use super::peers::{PeerState, PendingRequest, RequestKind};
use super::query::first_credit;
use super::{Effect, Session};
use crate::command::{Answer, Output, RangeCall, ReadMode};
use crate::time::Time;
use crate::wire::frame::encode_frame;
use crate::wire::validate::RangeVersion;
use crate::wire::{
    FEATURE_VALIDATE, Frame, Kind, Part, PartEnd, Position, RangeRequest, ResultRef, Section, VALIDATE_RANGES_MAX,
    ValidateRequest, Version,
};

/// Most partitions of a collect: with each, another one may be slow, and another range may change.
const PARTS_MAX: usize = 16;

/// Bytes of bounds in one frame of validations.
const BOUNDS_BYTES_MAX: usize = 64 * 1024;

/// So long one waits for connections that are being opened, or for room on them; then it takes a ticket. Readers who
/// stop may hold that room for ever.
const LATER_MAX: Duration = Duration::from_millis(50);

/// Collects in a row that did not hold, as far as they count: at most 2^4 - 2 queries go straight to the coordinator
/// before the next try.
const MISSES_MAX: u32 = 4;

/// A query that is read in this way.
#[derive(Clone, Debug)]
pub(super) struct Collect {
    /// In the order of the range.
    parts: Vec<Collected>,
    /// Answers that it waits for: of readings, then of validations.
    waits_for: usize,
    /// Parts that belong to the result: not those behind one that reached the limit.
    counted: usize,
}

#[derive(Clone, Debug)]
struct Collected {
    queue: usize,
    low: Value,
    high: Option<Value>,
    /// Peer and stream that it was asked on.
    asked: (usize, u32),
    read: Option<Read>,
}

/// What came of a part: one chunk with all of it.
#[derive(Clone, Debug)]
struct Read {
    body: Bytes,
    version: Version,
    pairs: u64,
    /// Where it was read, or found unchanged since.
    position: Position,
}

/// The queries that wait to be begun, and whether it is worth it.
#[derive(Debug, Default)]
pub(super) struct Collects {
    pub waiting: VecDeque<CallKey>,
    misses: u32,
    skip: u32,
    /// Since when the first one could not be begun, because connections have as many ranges under way as they take, or
    /// are being opened.
    waits: Option<Time>,
}

impl Collects {
    pub fn held(&mut self) {
        self.misses = self.misses.saturating_sub(1);
    }

    pub fn missed(&mut self) {
        self.misses = (self.misses + 1).min(MISSES_MAX);
        self.skip = (1 << self.misses) - 2;
    }

    pub fn may_try(&mut self) -> bool {
        let skipped = self.skip > 0;
        self.skip = self.skip.saturating_sub(1);
        !skipped
    }

    /// When something is to be done.
    pub fn deadline(&self) -> Option<Time> {
        Some(self.waits? + LATER_MAX)
    }

    pub fn forget_done(&mut self, calls: &Calls) {
        self.waiting.retain(|key| calls.is_waiting(*key));
    }
}

/// How the beginning of a range without a ticket ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CollectStart {
    Yes,
    /// A connection has as many ranges under way as it takes, or is being opened.
    Later,
    No,
}

impl Session {
    /// Begins what waits, or leaves it to the coordinator.
    pub(super) fn begin_collects(&mut self, now: Time, effects: &mut Vec<Effect>) {
        while let Some(&key) = self.collects.waiting.front() {
            let Some(Request::Range(range)) = self.calls.get(key).map(|call| &call.request) else {
                self.collects.waiting.pop_front();
                continue;
            };
            let range = range.clone();
            let mut start = self.begin_server_collect(now, key, &range, effects);
            if let CollectStart::No = start {
                start = self.begin_collect(now, key, range, effects);
            }
            if let CollectStart::Later = start {
                let since = *self.collects.waits.get_or_insert(now);
                if now - since < LATER_MAX {
                    return;
                }
            } else {
                self.collects.waits = None;
            }
            self.collects.waiting.pop_front();
            if let Some(call) = self.calls.get_mut(key) {
                call.collected = true;
            }
            if !matches!(start, CollectStart::Yes) {
                self.reroute(now, key, effects);
            }
        }
        self.collects.waits = None;
    }

    /// Reads a range in each of its partitions, if all of them can be asked now.
    fn begin_collect(&mut self, now: Time, key: CallKey, range: RangeCall, effects: &mut Vec<Effect>) -> CollectStart {
        let parts = match self.parts_of(now, &range, effects) {
            Ok(parts) => parts,
            Err(start) => return start,
        };
        let crowd = self.config.range_window.max(1);
        if parts.iter().any(|part| self.peers[part.asked.0].ranges() >= crowd) {
            return CollectStart::Later;
        }
        if !self.collects.may_try() {
            return CollectStart::No;
        }
        let cap = cap(&range, self.config.range_credit, parts.len());
        let mut collect = Collect { waits_for: parts.len(), counted: parts.len(), parts };
        for place in 0..collect.parts.len() {
            let part = &mut collect.parts[place];
            let (queue, peer) = (part.queue, part.asked.0);
            let Some(stream) = self.peers[peer].next_stream() else {
                self.call_off_parts(&collect, effects);
                return CollectStart::No;
            };
            part.asked.1 = stream;
            let request = RangeRequest {
                low: part.low.clone(),
                high: part.high.clone(),
                reverse: range.reverse,
                keys_only: range.keys_only,
                count_only: range.count_only,
                anywhere: range.mode == ReadMode::AnyReplica,
                versioned: true,
                pairs_max: range.pairs_max,
                bytes_max: cap,
                // For one chunk, whatever its size.
                credit: 1,
                ..RangeRequest::whole(self.queues[queue].partition)
            };
            request.encode(self.peers[peer].asks(), stream);
            self.note_pending(
                now,
                queue,
                peer,
                RequestKind::Collect { call: key, place: place as u32 },
                0,
                request.anywhere,
            );
        }
        if let Some(call) = self.calls.get_mut(key) {
            call.in_flight = true;
            call.collect = Some(collect);
        }
        CollectStart::Yes
    }

    /// The parts of a range by the present map, in its order, each with the peer to ask. None if they are too many or
    /// too few, or somebody cannot be asked now; later if that is being changed.
    fn parts_of(
        &mut self,
        now: Time,
        range: &RangeCall,
        effects: &mut Vec<Effect>,
    ) -> Result<Vec<Collected>, CollectStart> {
        let map = self.map.clone().ok_or(CollectStart::No)?;
        let entries = map.cover(&range.low, range.high.as_deref());
        if !(2..=PARTS_MAX).contains(&entries.len()) {
            return Err(CollectStart::No);
        }
        let first = map.position(&range.low).ok_or(CollectStart::No)?;
        let mut parts = Vec::with_capacity(entries.len());
        for (place, entry) in entries.iter().enumerate() {
            let queue = self.routes[first + place];
            // Or somebody who says who leads: that one is found for the next query.
            let Some(peer) = self.range_target(now, queue, range.mode, effects) else {
                let replicas = &self.queues[queue].replicas;
                let mut theirs =
                    self.peers.iter().filter(|peer| peer.node.is_some_and(|node| replicas.contains(&node)));
                let opening = theirs.any(|peer| matches!(peer.state, PeerState::Opening { .. }));
                return Err(if opening { CollectStart::Later } else { CollectStart::No });
            };
            self.connect(now, peer, effects);
            let (rests, peer_is) = (self.queues[queue].not_before > now, &self.peers[peer]);
            let able = peer_is.is_ready() && peer_is.features & FEATURE_VALIDATE != 0;
            if rests || !able || peer_is.suspect_until > now {
                return Err(CollectStart::No);
            }
            let low = if entry.low[..] > range.low[..] { entry.low[..].into() } else { range.low.clone() };
            let high = match &entry.high {
                Some(own) if range.high.as_ref().is_none_or(|high| own[..] < high[..]) => Some(own[..].into()),
                _ => range.high.clone(),
            };
            parts.push(Collected { queue, low, high, asked: (peer, 0), read: None });
        }
        if range.reverse {
            parts.reverse();
        }
        Ok(parts)
    }

    /// A part has been read.
    pub(super) fn on_collected(
        &mut self,
        now: Time,
        at: usize,
        (key, place): (CallKey, usize),
        (part, frame): (&Part<'_>, &Frame),
        effects: &mut Vec<Effect>,
    ) -> FrameResult {
        let Some(pending) = self.peers[at].take(frame.stream) else { return Ok(()) };
        if self.queues.get(pending.queue).is_none_or(|queue| part.position.partition != queue.partition) {
            self.spoil(now, key, effects);
            return Err(ProtocolError("an answer of another partition"));
        }
        if part.end.is_none() {
            self.cancel(at, frame.stream, effects);
        }
        let Some(call) = self.calls.get_mut(key) else { return Ok(()) };
        let Request::Range(range) = &call.request else { return Ok(()) };
        let Some(collect) = call.collect.as_mut() else { return Ok(()) };
        let cap = cap(range, self.config.range_credit, collect.parts.len());
        let whole = match part.end {
            None => false,
            Some(PartEnd::Complete) => true,
            Some(PartEnd::Limited) => {
                cap == range.bytes_max || (range.pairs_max > 0 && part.pairs_so_far >= range.pairs_max)
            }
        };
        let limited = part.end == Some(PartEnd::Limited);
        let read = &mut collect.parts[place];
        let counted = part.is_empty() && part.end.is_some();
        if part.number != 0 || !(counted || part.pairs_so_far == part.len() as u64) {
            self.spoil(now, key, effects);
            return Err(ProtocolError("a part out of sequence"));
        }
        let Some(version) = part.version.filter(|_| whole) else {
            // More than fits, or nobody counts its changes.
            self.collects.missed();
            self.spoil(now, key, effects);
            return Ok(());
        };
        read.read = Some(Read { body: frame.body.clone(), version, pairs: part.pairs_so_far, position: part.position });
        if limited {
            collect.counted = collect.counted.min(place + 1);
        }
        collect.waits_for -= 1;
        let all = collect.waits_for == 0;
        self.confirm(at, pending.queue, false);
        if all {
            self.validate(now, key, effects);
        }
        Ok(())
    }

    /// All parts have been read: whether they still are what they were is asked at the end of the turn.
    fn validate(&mut self, now: Time, key: CallKey, effects: &mut Vec<Effect>) {
        let Some(call) = self.calls.get_mut(key) else { return };
        let pairs_max = if let Request::Range(range) = &call.request { range.pairs_max } else { 0 };
        let Some(collect) = call.collect.as_mut() else { return };
        let mut pairs = 0;
        let enough = collect.parts.iter().position(|part| {
            pairs += part.read.as_ref().map_or(0, |read| read.pairs);
            pairs_max > 0 && pairs >= pairs_max
        });
        // What lies behind a limit belongs to another page.
        collect.counted = enough.map_or(collect.counted, |place| collect.counted.min(place + 1));
        if mutant!(collects_once) {
            return self.collect_held(now, key, effects);
        }
        collect.waits_for = collect.counted;
        let wanted: Vec<usize> = collect.parts[..collect.counted].iter().map(|part| part.queue).collect();
        for (place, queue) in wanted.into_iter().enumerate() {
            self.queues[queue].validations.push((key, place as u32));
            self.list(queue);
        }
    }

    /// Sends the validations that wait for a partition, to the replicas that were read, many in a frame.
    pub(super) fn send_validations(&mut self, now: Time, queue: usize, effects: &mut Vec<Effect>) {
        while let Some(&(key, place)) = self.queues[queue].validations.first() {
            let (mut entries, mut others) = (std::mem::take(&mut self.queues[queue].validations), Vec::new());
            let Some((peer, anywhere)) = self.who_read(key, place) else {
                // Over already.
                entries.remove(0);
                self.queues[queue].validations = entries;
                continue;
            };
            let ready = self.peers[peer].is_ready();
            let Some(stream) = (if ready { self.stream(now, peer, effects) } else { None }) else {
                return entries.into_iter().for_each(|(key, _)| self.spoil(now, key, effects));
            };
            let (mut ranges, mut room) = (Vec::with_capacity(entries.len()), BOUNDS_BYTES_MAX);
            entries.retain(|&(key, place)| {
                let Some((asked, at)) = asked(&self.calls, key, place) else { return false };
                let bytes = asked.low.len() + asked.high.map_or(0, <[u8]>::len);
                let full = ranges.len() == VALIDATE_RANGES_MAX || (bytes > room && !ranges.is_empty());
                let mine = !full && at == peer;
                if mine {
                    room = room.saturating_sub(bytes);
                    ranges.push(asked);
                } else {
                    others.push((key, place));
                }
                mine
            });
            let mut out = BytesMut::with_capacity(32 + ranges.len() * 40);
            let partition = self.queues[queue].partition;
            ValidateRequest::encode(&mut out, stream, (partition, anywhere), ranges.into_iter());
            self.queues[queue].validations = others;
            self.note_pending(now, queue, peer, RequestKind::Validate { entries }, 0, anywhere);
            self.send(peer, out.freeze(), effects);
        }
    }

    /// Nobody can be asked on this connection any more whether what it gave has changed.
    pub(super) fn validations_lost(&mut self, now: Time, at: usize, effects: &mut Vec<Effect>) {
        let waiting = self.queues.iter().flat_map(|queue| &queue.validations);
        let lost = waiting.filter(|(key, place)| self.who_read(*key, *place).is_some_and(|(peer, _)| peer == at));
        for key in lost.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.spoil(now, key, effects);
        }
    }

    /// The peer that gave a part which is to be validated, and whether it need not lead.
    fn who_read(&self, key: CallKey, place: u32) -> Option<(usize, bool)> {
        let call = self.calls.get(key)?;
        let part = call.collect.as_ref()?.parts.get(place as usize)?;
        let Request::Range(range) = &call.request else { return None };
        Some((part.asked.0, range.mode == ReadMode::AnyReplica))
    }

    /// A partition says which of the ranges are what they were.
    pub(super) fn on_validated(
        &mut self,
        now: Time,
        at: usize,
        section: &Section<'_>,
        effects: &mut Vec<Effect>,
    ) -> FrameResult {
        let Some(PendingRequest { kind: RequestKind::Validate { entries }, queue, .. }) =
            self.peers[at].take(section.stream)
        else {
            return Ok(());
        };
        if section.first != 0 || usize::from(section.count) != entries.len() {
            entries.into_iter().for_each(|(key, _)| self.spoil(now, key, effects));
            return Err(ProtocolError("answers out of order"));
        }
        self.confirm(at, queue, false);
        for ((key, place), (position, result)) in entries.into_iter().zip(section.results()) {
            let Some(collect) = self.calls.get_mut(key).and_then(|call| call.collect.as_mut()) else { continue };
            match result {
                ResultRef::Unchanged => {
                    if let Some(read) = &mut collect.parts[place as usize].read {
                        read.position = position;
                    }
                    collect.waits_for -= 1;
                    if collect.waits_for == 0 {
                        self.collects.held();
                        self.collect_held(now, key, effects);
                    }
                }
                ResultRef::Changed => {
                    self.collects.missed();
                    self.spoil(now, key, effects);
                }
                _ => self.spoil(now, key, effects),
            }
        }
        Ok(())
    }

    /// What was read is the result.
    fn collect_held(&mut self, now: Time, key: CallKey, effects: &mut Vec<Effect>) {
        let Some(call) = self.calls.get_mut(key) else { return };
        let Some(mut collect) = call.collect.take() else { return };
        let (token, mut pairs, mut position) = (call.token, 0, None);
        collect.parts.truncate(collect.counted);
        for part in collect.parts {
            let Some(read) = part.read else { return self.spoil(now, key, effects) };
            pairs += read.pairs;
            position = Some(read.position);
            effects.push(Effect::Part { token, part: read.body, as_of: Some(read.position) });
        }
        let answer = Answer { output: Output::Loaded(pairs), position: position.unwrap_or_default() };
        self.complete(key, answer, effects);
    }

    /// A collect comes to nothing: its call goes to the coordinator.
    pub(super) fn spoil(&mut self, now: Time, key: CallKey, effects: &mut Vec<Effect>) {
        if self.drop_collect(key, effects) {
            self.reroute(now, key, effects);
        }
    }

    /// Forgets the collect of a call and calls off what may still come of it; `false` if there is none.
    pub(super) fn drop_collect(&mut self, key: CallKey, effects: &mut Vec<Effect>) -> bool {
        let Some(call) = self.calls.get_mut(key) else { return false };
        let Some(collect) = call.collect.take() else { return false };
        call.in_flight = false;
        self.call_off_parts(&collect, effects);
        true
    }

    fn call_off_parts(&mut self, collect: &Collect, effects: &mut Vec<Effect>) {
        for part in collect.parts.iter().filter(|part| part.read.is_none()) {
            let (at, stream) = part.asked;
            let waits = |pending: &mut PendingRequest| matches!(pending.kind, RequestKind::Collect { .. });
            if stream > 0 && self.peers[at].pending(stream).is_some_and(waits) {
                self.peers[at].take(stream);
                self.cancel(at, stream, effects);
            }
        }
    }

    fn cancel(&self, at: usize, stream: u32, effects: &mut Vec<Effect>) {
        let mut out = BytesMut::new();
        encode_frame(&mut out, Kind::Cancel, stream, &[]);
        self.send(at, out.freeze(), effects);
    }
}

/// Bytes that a part may have: the caller's limit, or its share of the memory that a range may take, if that is less.
fn cap(range: &RangeCall, credit_max: u32, parts: usize) -> u64 {
    let share = u64::from(first_credit(credit_max, parts));
    match range.bytes_max {
        _ if range.count_only => range.bytes_max,
        0 => share,
        wanted => wanted.min(share),
    }
}

/// What is asked about a part of a call that is still collected, and of which peer.
fn asked(calls: &Calls, key: CallKey, place: u32) -> Option<(RangeVersion<'_>, usize)> {
    let part = calls.get(key)?.collect.as_ref()?.parts.get(place as usize)?;
    let version = part.read.as_ref()?.version;
    Some((RangeVersion { version, low: &part.low, high: part.high.as_deref() }, part.asked.0))
}
