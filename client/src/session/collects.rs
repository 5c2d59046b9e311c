//! Ranges across partitions without a ticket, from outside: a [`DoubleCollect`] over the nodes that serve the parts.
//! One chunk of each part is kept until all are validated. Only where something has changed, or anything else is in the
//! way, the coordinator is asked for a ticket (`queries`), once and for all for that call: where others write what it
//! reads again and again, a collect never holds. So each call tries once, and a client that has no luck tries ever more
//! seldom.
//!
//! Keys that are read as of one moment are collected too, a key in each part. There is no ticket for them: they are
//! read again after a pause until their deadline.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use coppice_btree::Value;

use super::answers::{FrameResult, ProtocolError};
use super::calls::{CallKey, Calls, Request};
use super::peers::{PeerState, PendingRequest, RequestKind};
use super::query::first_credit;
use super::{Effect, Session};
use crate::command::{Answer, Output, RangeCall, ReadMode};
use crate::double_collect::{DoubleCollect, PartRead, Verdict};
use crate::error::{Cause, Reason};
use crate::time::Time;
use crate::wire::frame::encode_frame;
use crate::wire::validate::RangeVersion;
use crate::wire::{
    FEATURE_VALIDATE, Frame, Kind, Part, PartEnd, Position, RangeRequest, Refusal, ResultRef, ScanOptions, Section,
    VALIDATE_RANGES_MAX, ValidateRequest,
};

/// Most partitions of a collect: with each, another one may be slow, and another range may change.
const PARTS_MAX: usize = 16;

/// Most keys that are read as of one moment: each is asked for by a frame, and the answers together may have so many
/// values of 1 MiB.
pub const KEYS_MAX: usize = 256;

/// Bytes of bounds in one frame of validations.
const BOUNDS_BYTES_MAX: usize = 64 * 1024;

/// So long one waits for connections that are being opened, or for room on them; then it takes a ticket. Readers who
/// stop may hold that room for ever.
const LATER_MAX: Duration = Duration::from_millis(50);

/// Collects in a row that did not hold, as far as they count: at most 2^4 - 2 queries go straight to the coordinator
/// before the next try.
const MISSES_MAX: u32 = 4;

/// A range that is read in this way.
#[derive(Clone, Debug)]
pub(super) struct RangeCollect {
    /// In the order of the range.
    parts: Vec<PartTarget>,
    reads: DoubleCollect<Chunk>,
}

/// A part, and who is asked for it.
#[derive(Clone, Debug)]
struct PartTarget {
    queue: usize,
    low: Value,
    high: Option<Value>,
    peer: usize,
    /// The stream that it was asked on; 0: not yet.
    stream: u32,
}

/// What came of a part: one chunk with all of it.
#[derive(Clone, Debug)]
struct Chunk {
    body: Bytes,
    pairs: u64,
}

impl RangeCollect {
    /// Leaves out what lies behind a limit of so many pairs: it belongs to another page.
    fn limit_pairs(&mut self, pairs_max: u64) {
        let mut pairs = 0;
        let enough = self.reads.reads().position(|read| {
            pairs += read.map_or(0, |read| read.data.pairs);
            pairs_max > 0 && pairs >= pairs_max
        });
        enough.into_iter().for_each(|place| self.reads.limit_to(place + 1));
    }
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
    /// Which end of a range across partitions says which node is asked for it (`choose_collector`).
    pub at_last: bool,
}

impl Collects {
    pub fn new(at_last: bool) -> Collects {
        Collects { at_last, ..Collects::default() }
    }

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
    /// Begins what waits, or leaves it to who can do it otherwise.
    pub(super) fn begin_collects(&mut self, now: Time, effects: &mut Vec<Effect>) {
        while let Some(&key) = self.collects.waiting.front() {
            let start = match self.calls.get(key).map(|call| &call.request) {
                Some(Request::Range(range)) => {
                    let range = range.clone();
                    match self.begin_server_collect(now, key, &range, effects) {
                        CollectStart::No => {
                            let parts = self.parts_of(now, &range, effects);
                            self.begin_collect(now, key, (range, parts), effects)
                        }
                        start => start,
                    }
                }
                Some(Request::Keys { keys, range }) => {
                    let (keys, range) = (keys.clone(), range.clone());
                    let parts = self.parts_of_keys(now, &keys, range.mode, effects);
                    self.begin_collect(now, key, (range, parts), effects)
                }
                _ => {
                    self.collects.waiting.pop_front();
                    continue;
                }
            };
            // Keys come back after a pause, and hold nobody up.
            if start == CollectStart::Later && !self.is_of_keys(key) {
                let since = *self.collects.waits.get_or_insert(now);
                if now - since < LATER_MAX {
                    return;
                }
            } else {
                self.collects.waits = None;
            }
            self.collects.waiting.pop_front();
            if let Some(call) = self.calls.get_mut(key) {
                call.range.collect_tried = true;
            }
            if !matches!(start, CollectStart::Yes) {
                self.collect_otherwise(now, key, effects);
            }
        }
        self.collects.waits = None;
    }

    /// What cannot be read without a ticket now: a range gets one, and keys are read again, until their deadline.
    fn collect_otherwise(&mut self, now: Time, key: CallKey, effects: &mut Vec<Effect>) {
        match self.is_of_keys(key) {
            true => self.query_again(now, key, effects),
            false => self.reroute(now, key, effects),
        }
    }

    fn is_of_keys(&self, key: CallKey) -> bool {
        matches!(self.calls.get(key).map(|call| &call.request), Some(Request::Keys { .. }))
    }

    /// A collect held or did not. Keys have no other way, so they do not decide how often ranges try this one.
    fn note_collect(&mut self, key: CallKey, held: bool) {
        match (self.is_of_keys(key), held) {
            (true, _) => {}
            (false, true) => self.collects.held(),
            (false, false) => self.collects.missed(),
        }
    }

    /// Reads all parts, if all of those who have them can be asked now.
    fn begin_collect(
        &mut self,
        now: Time,
        key: CallKey,
        (range, parts): (RangeCall, Result<Vec<PartTarget>, CollectStart>),
        effects: &mut Vec<Effect>,
    ) -> CollectStart {
        let parts = match parts {
            Ok(parts) => parts,
            Err(start) => return start,
        };
        let crowd = self.config.range_window.max(1);
        if parts.iter().any(|part| self.peers[part.peer].streams.ranges() >= crowd) {
            return CollectStart::Later;
        }
        let of_keys = self.is_of_keys(key);
        if !of_keys && !self.collects.may_try() {
            return CollectStart::No;
        }
        let cap = if of_keys { 0 } else { cap(&range, self.config.range_credit, parts.len()) };
        let mut collect = RangeCollect { reads: DoubleCollect::new(parts.len(), 0), parts };
        for place in 0..collect.parts.len() {
            let part = &mut collect.parts[place];
            let (queue, peer) = (part.queue, part.peer);
            let Some(stream) = self.peers[peer].streams.next() else {
                self.call_off_parts(&collect, effects);
                return CollectStart::No;
            };
            part.stream = stream;
            let request = RangeRequest {
                low: part.low.clone(),
                high: part.high.clone(),
                scan: ScanOptions { bytes_max: cap, ..range.scan },
                anywhere: range.mode == ReadMode::AnyReplica,
                versioned: true,
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
            call.range.collect = Some(collect);
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
    ) -> Result<Vec<PartTarget>, CollectStart> {
        let map = self.routes.map().cloned().ok_or(CollectStart::No)?;
        let entries = map.cover(&range.low, range.high.as_deref());
        // A reader who holds much of it wants more than fits in a chunk of each part.
        if !(2..=PARTS_MAX).contains(&entries.len()) || range.stretches.is_some() {
            return Err(CollectStart::No);
        }
        let first = map.position(&range.low).ok_or(CollectStart::No)?;
        let mut parts = Vec::with_capacity(entries.len());
        for (place, entry) in entries.iter().enumerate() {
            let queue = self.routes.queues()[first + place];
            let peer = self.part_peer(now, queue, range.mode, effects)?;
            let low = if entry.low[..] > range.low[..] { entry.low[..].into() } else { range.low.clone() };
            let high = match &entry.high {
                Some(own) if range.high.as_ref().is_none_or(|high| own[..] < high[..]) => Some(own[..].into()),
                _ => range.high.clone(),
            };
            parts.push(PartTarget { queue, low, high, peer, stream: 0 });
        }
        if range.scan.reverse {
            parts.reverse();
        }
        Ok(parts)
    }

    /// The parts of keys by the present map, a key in each.
    fn parts_of_keys(
        &mut self,
        now: Time,
        keys: &[Value],
        mode: ReadMode,
        effects: &mut Vec<Effect>,
    ) -> Result<Vec<PartTarget>, CollectStart> {
        let mut peers = BTreeMap::new();
        let mut parts = Vec::with_capacity(keys.len());
        for key in keys {
            let queue = self.routes.queue_of(key).ok_or(CollectStart::No)?;
            let peer = match peers.get(&queue) {
                Some(&peer) => peer,
                None => self.part_peer(now, queue, mode, effects)?,
            };
            peers.insert(queue, peer);
            let behind = [&key[..], &[0]].concat();
            parts.push(PartTarget { queue, low: key.clone(), high: Some(behind.into()), peer, stream: 0 });
        }
        Ok(parts)
    }

    /// The peer to ask for a part, if it can be asked now; later if that is being changed.
    fn part_peer(
        &mut self,
        now: Time,
        queue: usize,
        mode: ReadMode,
        effects: &mut Vec<Effect>,
    ) -> Result<usize, CollectStart> {
        // Or somebody who says who leads: that one is found for the next query.
        let Some(peer) = self.range_target(now, queue, mode, effects) else {
            let replicas = &self.queues[queue].replicas.nodes;
            let mut theirs = self.peers.iter().filter(|peer| peer.node.is_some_and(|node| replicas.contains(&node)));
            let opening = theirs.any(|peer| matches!(peer.state, PeerState::Opening { .. }));
            return Err(if opening { CollectStart::Later } else { CollectStart::No });
        };
        self.connect(now, peer, effects);
        let (rests, peer_is) = (self.queues[queue].backoff.holds(now), &self.peers[peer]);
        let able = peer_is.is_ready() && peer_is.features & FEATURE_VALIDATE != 0;
        if rests || !able || peer_is.suspect_until > now { Err(CollectStart::No) } else { Ok(peer) }
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
        let Some(pending) = self.peers[at].streams.take(frame.stream) else { return Ok(()) };
        if self.queues.get(pending.queue).is_none_or(|queue| part.position.partition != queue.partition) {
            self.spoil(now, key, effects);
            return Err(ProtocolError("an answer of another partition"));
        }
        if part.end.is_none() {
            self.cancel(at, frame.stream, effects);
        }
        let Some(call) = self.calls.get_mut(key) else { return Ok(()) };
        let Some(range) = call.request.range() else { return Ok(()) };
        let Some(collect) = call.range.collect.as_mut() else { return Ok(()) };
        let of_keys = matches!(call.request, Request::Keys { .. });
        let cap = if of_keys { 0 } else { cap(range, self.config.range_credit, collect.parts.len()) };
        let whole = match part.end {
            None => false,
            Some(PartEnd::Complete) => true,
            Some(PartEnd::Limited) => {
                cap == range.scan.bytes_max || (range.scan.pairs_max > 0 && part.pairs_so_far >= range.scan.pairs_max)
            }
        };
        let limited = part.end == Some(PartEnd::Limited);
        let counted = part.is_empty() && part.end.is_some();
        if part.number != 0 || !(counted || part.pairs_so_far == part.len() as u64) {
            self.spoil(now, key, effects);
            return Err(ProtocolError("a part out of sequence"));
        }
        let Some(version) = part.version.filter(|_| whole) else {
            // More than fits, or nobody counts its changes.
            self.note_collect(key, false);
            self.spoil(now, key, effects);
            return Ok(());
        };
        if limited {
            collect.reads.limit_to(place + 1);
        }
        let data = Chunk { body: frame.body.clone(), pairs: part.pairs_so_far };
        let verdict = collect.reads.on_read(place, PartRead { version, position: part.position, data });
        if verdict != Verdict::Incomplete {
            collect.limit_pairs(range.scan.pairs_max);
        }
        self.confirm(at, pending.queue, false);
        self.judge(now, key, verdict, effects);
        Ok(())
    }

    /// Does what follows from an answer about a part.
    fn judge(&mut self, now: Time, key: CallKey, verdict: Verdict, effects: &mut Vec<Effect>) {
        match verdict {
            Verdict::Incomplete => {}
            // Asked at the end of the turn.
            Verdict::Validate(places) => {
                let Some(collect) = self.calls.get(key).and_then(|call| call.range.collect.as_ref()) else { return };
                let end = places.end.min(collect.reads.counted());
                for place in places.start..end {
                    let queue = collect.parts[place].queue;
                    self.queues[queue].waiting.validations.push((key, place as u32));
                    self.queues.list(queue);
                }
            }
            Verdict::OneMoment => {
                self.note_collect(key, true);
                self.give_collect(key, effects);
            }
            Verdict::ReadAgain | Verdict::Changed => {
                self.note_collect(key, false);
                self.spoil(now, key, effects);
            }
        }
    }

    /// Sends the validations that wait for a partition, to the replicas that were read, many in a frame.
    pub(super) fn send_validations(&mut self, now: Time, queue: usize, effects: &mut Vec<Effect>) {
        while let Some(&(key, place)) = self.queues[queue].waiting.validations.first() {
            let (mut entries, mut others) = (std::mem::take(&mut self.queues[queue].waiting.validations), Vec::new());
            let Some((peer, anywhere)) = self.who_read(key, place) else {
                // Over already.
                entries.remove(0);
                self.queues[queue].waiting.validations = entries;
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
            self.queues[queue].waiting.validations = others;
            self.note_pending(now, queue, peer, RequestKind::Validate { entries }, 0, anywhere);
            self.send(peer, out.freeze(), effects);
        }
    }

    /// The connection is lost: nobody can be asked on it whether what it gave has changed.
    pub(super) fn validations_lost(&mut self, now: Time, at: usize, effects: &mut Vec<Effect>) {
        let waiting = self.queues.iter().flat_map(|queue| &queue.waiting.validations);
        let lost = waiting.filter(|(key, place)| self.who_read(*key, *place).is_some_and(|(peer, _)| peer == at));
        for key in lost.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.spoil(now, key, effects);
        }
    }

    /// The peer that gave a part which is to be validated, and whether it need not lead.
    fn who_read(&self, key: CallKey, place: u32) -> Option<(usize, bool)> {
        let call = self.calls.get(key)?;
        let part = call.range.collect.as_ref()?.parts.get(place as usize)?;
        Some((part.peer, call.request.range()?.mode == ReadMode::AnyReplica))
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
            self.peers[at].streams.take(section.stream)
        else {
            return Ok(());
        };
        if section.first != 0 || usize::from(section.count) != entries.len() {
            entries.into_iter().for_each(|(key, _)| self.spoil(now, key, effects));
            return Err(ProtocolError("answers out of order"));
        }
        self.confirm(at, queue, false);
        for ((key, place), (position, result)) in entries.into_iter().zip(section.results()) {
            let Some(collect) = self.calls.get_mut(key).and_then(|call| call.range.collect.as_mut()) else { continue };
            let verdict = match result {
                ResultRef::Unchanged => collect.reads.on_unchanged(place as usize, position),
                ResultRef::Changed => collect.reads.on_changed(),
                _ => {
                    self.spoil(now, key, effects);
                    continue;
                }
            };
            self.judge(now, key, verdict, effects);
        }
        Ok(())
    }

    /// What was read is the result.
    fn give_collect(&mut self, key: CallKey, effects: &mut Vec<Effect>) {
        let Some(call) = self.calls.get_mut(key) else { return };
        let Some(collect) = call.range.collect.take() else { return };
        let (token, mut pairs, mut last) = (call.token, 0, Position::default());
        for PartRead { position, data: Chunk { body, pairs: more }, .. } in collect.reads.into_parts() {
            (pairs, last) = (pairs + more, position);
            effects.push(Effect::Part { token, part: body, as_of: Some(position) });
        }
        self.complete(key, Answer { output: Output::Loaded(pairs), position: last }, effects);
    }

    /// A collect comes to nothing: a range goes to the coordinator.
    pub(super) fn spoil(&mut self, now: Time, key: CallKey, effects: &mut Vec<Effect>) {
        if self.drop_collect(key, effects) {
            self.collect_otherwise(now, key, effects);
        }
    }

    /// The same, since a part is refused. Keys that are denied would be denied again.
    pub(super) fn spoil_refused(&mut self, now: Time, key: CallKey, why: &Refusal, effects: &mut Vec<Effect>) {
        match why {
            Refusal::Denied { text } if self.is_of_keys(key) => {
                self.drop_collect(key, effects);
                self.end(now, key, Reason::Denied(text.clone()), Cause::Refused, effects);
            }
            _ => self.spoil(now, key, effects),
        }
    }

    /// Forgets the collect of a call and calls off what may still come of it; `false` if there is none.
    pub(super) fn drop_collect(&mut self, key: CallKey, effects: &mut Vec<Effect>) -> bool {
        let Some(call) = self.calls.get_mut(key) else { return false };
        let Some(collect) = call.range.collect.take() else { return false };
        call.in_flight = false;
        self.call_off_parts(&collect, effects);
        true
    }

    fn call_off_parts(&mut self, collect: &RangeCollect, effects: &mut Vec<Effect>) {
        let unread = collect.parts.iter().zip(collect.reads.reads()).filter(|(_, read)| read.is_none());
        for (&PartTarget { peer: at, stream, .. }, _) in unread {
            let waits = |pending: &mut PendingRequest| matches!(pending.kind, RequestKind::Collect { .. });
            if stream > 0 && self.peers[at].streams.get(stream).is_some_and(waits) {
                self.peers[at].streams.take(stream);
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

/// Bytes that a part of a range may have: the caller's limit, or its share of the memory that a range may take, if that
/// is less.
fn cap(range: &RangeCall, credit_max: u32, parts: usize) -> u64 {
    let share = u64::from(first_credit(credit_max, parts));
    match range.scan.bytes_max {
        _ if range.scan.count_only => range.scan.bytes_max,
        0 => share,
        wanted => wanted.min(share),
    }
}

/// What is asked about a part of a call that is still collected, and of which peer.
fn asked(calls: &Calls, key: CallKey, place: u32) -> Option<(RangeVersion<'_>, usize)> {
    let collect = calls.get(key)?.range.collect.as_ref()?;
    let part = collect.parts.get(place as usize)?;
    let version = collect.reads.read(place as usize)?.version;
    Some((RangeVersion { version, low: &part.low, high: part.high.as_deref() }, part.peer))
}
