//! Sending: who is asked, what goes into a frame together, how much may be under way.

use bytes::BytesMut;

use super::calls::{CallKey, Request};
use super::lane::{Reader, Trouble};
use super::peers::{Asked, Flight, PeerState, RangeFlight, Sent, pause};
use super::rows::RowKey;
use super::{Effect, Session};
use crate::command::{RangeCall, ReadMode};
use crate::time::Time;
use crate::wire::pack::PushError;
use crate::wire::{KEY_BYTES_MAX, OpenRequest, PackWriter, PartitionId, RangeRequest, ReadRequest};

/// A pack is written as `eight` if this many commands at its front are: a mixed stream gets packs of mixed form instead
/// of packs of one command.
const EIGHT_RUN: usize = 16;
/// Keys in one read frame. Bounds what one frame makes a replica do at once.
const READ_KEYS: usize = 512;
/// What a command of two 8-byte strings takes, roughly: a first guess for a pack's buffer.
const COMMAND_BYTES: usize = 24;

/// So many ranges of a session, of those that any replica may answer, go to one replica before another one is drawn.
/// More than a few would keep one node busy while others have nothing to do.
const RANGES_SHARED: usize = 8;
/// After so many of a partition another one is drawn whatever is under way: what keeps it busy may be others' ranges.
const READER_RANGES: u32 = 64;

impl Session {
    /// Sends what waits and may go.
    pub(super) fn pump(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.search_map(now, effects);
        self.route_waiting(now, effects);
        self.pump_queries(now, effects);
        self.pump_collects(now, effects);
        for at in 0..self.lanes.len() {
            let lane = &mut self.lanes[at];
            if lane.not_before > Time::default() && lane.not_before <= now {
                lane.not_before = Time::default();
                self.list(at);
            }
        }
        for lane in std::mem::take(&mut self.crowded) {
            self.list(lane);
        }
        self.pump_listed(now, effects);
        // What a partition's lane could not do goes to the coordinator's.
        self.pump_listed(now, effects);
        for at in 0..self.peers.len() {
            if let Some(asks) = self.peers[at].take_asks() {
                self.send(at, asks, effects);
            }
        }
    }

    fn pump_listed(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let mut listed = std::mem::take(&mut self.listed);
        for lane in listed.drain(..) {
            self.lanes[lane].listed = false;
            if self.lanes[lane].not_before == Time::default() && self.lanes[lane].has_work() {
                self.pump_lane(now, lane, effects);
            }
        }
        // Keep the allocation, and what was listed meanwhile.
        listed.append(&mut self.listed);
        self.listed = listed;
    }

    fn pump_lane(&mut self, now: Time, lane: usize, effects: &mut Vec<Effect>) {
        if self.lanes[lane].has_commands()
            && let Some(peer) = self.leader(now, lane, effects)
        {
            self.send_packs(now, lane, peer, effects);
        }
        self.send_gets(now, lane, effects);
        self.send_ranges(now, lane, effects);
        self.send_validations(now, lane, effects);
    }

    /// The peer of the lane's leader if it can be sent to now; else whatever brings that nearer is begun.
    fn leader(&mut self, now: Time, lane: usize, effects: &mut Vec<Effect>) -> Option<usize> {
        if let Some(node) = self.lanes[lane].leader {
            if let Some(peer) = self.peer_of(node).filter(|&peer| self.peers[peer].is_usable(now)) {
                self.connect(now, peer, effects);
                return self.peers[peer].is_ready().then_some(peer);
            }
            self.lanes[lane].follow(None);
        }
        self.candidate(now, lane, effects)
    }

    /// While nobody knows who leads: the next replica in turn that is connected. All are connected to meanwhile.
    fn candidate(&mut self, now: Time, lane: usize, effects: &mut Vec<Effect>) -> Option<usize> {
        let replicas = self.lanes[lane].replicas.clone();
        let rotation = self.lanes[lane].rotation;
        let (mut ready, mut suspect, mut opening, mut rest) = (None, None, false, Time::NEVER);
        for step in 0..replicas.len() {
            let Some(peer) = self.peer_of(replicas[(rotation + step) % replicas.len()]) else { continue };
            self.connect(now, peer, effects);
            match self.peers[peer].state {
                PeerState::Ready if self.peers[peer].suspect_until > now => suspect = suspect.or(Some((step, peer))),
                PeerState::Ready => ready = ready.or(Some((step, peer))),
                PeerState::Down { until } => rest = rest.min(until),
                PeerState::Opening { .. } => opening = true,
                PeerState::Idle => {}
            }
        }
        let lane = &mut self.lanes[lane];
        match ready.or(suspect) {
            Some((step, peer)) => {
                lane.rotation = (rotation + step) % replicas.len();
                Some(peer)
            }
            None => {
                if !opening {
                    lane.trouble = Trouble::Unreachable;
                    lane.not_before = if rest == Time::NEVER { now + self.config.backoff_max } else { rest };
                    // Perhaps the map is old.
                    self.want_map();
                }
                None
            }
        }
    }

    /// A replica for a read that any replica may serve.
    fn any_replica(&mut self, now: Time, lane: usize, effects: &mut Vec<Effect>) -> Option<usize> {
        let replicas = self.lanes[lane].replicas.clone();
        let first = self.draws.next() as usize;
        let mut suspect = None;
        for step in 0..replicas.len() {
            let Some(peer) = self.peer_of(replicas[first.wrapping_add(step) % replicas.len()]) else { continue };
            self.connect(now, peer, effects);
            if self.peers[peer].is_ready() {
                if self.peers[peer].suspect_until <= now {
                    return Some(peer);
                }
                suspect = Some(peer);
            }
        }
        if suspect.is_none()
            && replicas.iter().all(|&node| self.peer_of(node).is_none_or(|at| !self.peers[at].is_open()))
        {
            let lane = &mut self.lanes[lane];
            lane.trouble = Trouble::Unreachable;
            lane.not_before = now + self.config.backoff * 4;
            self.want_map();
        }
        suspect
    }

    /// A replica for a range that any replica may serve: the one of the last range while it has some of this session's
    /// under way, but few, for these share messages. Beyond, when it has none any more, and every so often, another one
    /// is drawn.
    fn reader(&mut self, now: Time, lane: usize, effects: &mut Vec<Effect>) -> Option<usize> {
        let few = RANGES_SHARED.min(self.config.range_window.max(1));
        if let Some(Reader { node, left }) = &mut self.lanes[lane].reader
            && *left > 0
        {
            *left -= 1;
            let node = *node;
            let member = self.lanes[lane].replicas.contains(&node);
            if let Some(at) = self.peer_of(node) {
                let peer = &self.peers[at];
                let goes_on = member && peer.is_ready() && peer.suspect_until <= now;
                if goes_on && (1..few).contains(&peer.ranges()) {
                    return Some(at);
                }
            }
        }
        let peer = self.any_replica(now, lane, effects);
        let node = peer.and_then(|peer| self.peers[peer].node);
        self.lanes[lane].reader = node.map(|node| Reader { node, left: READER_RANGES });
        peer
    }

    /// The node at `at` refused what any replica may answer, or did not answer: the next range is another draw.
    pub(super) fn forget_reader(&mut self, at: usize, sent: &Sent) {
        let node = self.peers[at].node;
        if let Some(lane) = self.lanes.get_mut(sent.lane)
            && sent.anywhere
        {
            lane.reader.take_if(|reader| Some(reader.node) == node);
        }
    }

    pub(super) fn range_target(
        &mut self,
        now: Time,
        lane: usize,
        mode: ReadMode,
        effects: &mut Vec<Effect>,
    ) -> Option<usize> {
        match mode {
            ReadMode::Leader => self.leader(now, lane, effects),
            ReadMode::AnyReplica | ReadMode::Stale => self.reader(now, lane, effects),
        }
    }

    fn target(&mut self, now: Time, lane: usize, mode: ReadMode, effects: &mut Vec<Effect>) -> Option<usize> {
        match mode {
            ReadMode::Leader => self.leader(now, lane, effects),
            ReadMode::AnyReplica | ReadMode::Stale => self.any_replica(now, lane, effects),
        }
    }

    /// While the leader is in doubt, one frame is enough to find out.
    fn window(&self, lane: usize, window: usize) -> usize {
        if self.lanes[lane].confirmed { window.max(1) } else { 1 }
    }

    fn send_packs(&mut self, now: Time, lane: usize, peer: usize, effects: &mut Vec<Effect>) {
        while self.lanes[lane].packs_out < self.window(lane, self.config.window) {
            let row = match self.lanes[lane].retry.first_key_value() {
                Some((&(row, _), _)) => row,
                None => {
                    if self.lanes[lane].fresh.is_empty() {
                        return;
                    }
                    match self.lanes[lane].row.filter(|&row| !self.rows.is_expired(row)) {
                        Some(row) => row,
                        None => return self.open(now, lane, peer, effects),
                    }
                }
            };
            let Some(stream) = self.stream(now, peer, effects) else { return };
            let partition = self.lanes[lane].partition;
            let (calls, attempts, writer) = self.pack(lane, row);
            let Some(bytes) = writer.finish(partition, stream) else { continue };
            let flight = Flight::Pack { left: calls.len() as u32, calls, row };
            self.sent(now, lane, peer, flight, attempts, false);
            self.lanes[lane].packs_out += 1;
            self.send(peer, bytes, effects);
        }
    }

    /// Packs what waits for a session: first what is repeated, then new commands, which get their numbers here.
    fn pack(&mut self, lane: usize, row: RowKey) -> (Vec<CallKey>, u8, PackWriter) {
        let Session { lanes, calls, rows, config, .. } = self;
        let lane = &mut lanes[lane];
        let with_fresh = lane.row == Some(row);
        let fresh = lane.fresh.iter().take(if with_fresh { EIGHT_RUN } else { 0 });
        let retry = lane.retry.range((row, 0)..=(row, u64::MAX)).map(|(_, key)| key).take(EIGHT_RUN);
        let eight = retry.chain(fresh).all(|&key| calls.get(key).is_none_or(|call| call.eight));
        let guess = (lane.fresh.len() + lane.retry.len()).saturating_mul(COMMAND_BYTES) + 128;
        let buffer = Vec::with_capacity(guess.min(config.pack_bytes + 128));
        let lowest = rows.lowest_unacknowledged(row);
        let mut writer = PackWriter::new(buffer, rows.id(row), lowest, eight, config.pack_bytes);
        let (mut packed, mut attempts) = (Vec::with_capacity(guess.min(config.pack_bytes) / COMMAND_BYTES), 0);
        while let Some((&(of, number), &key)) = lane.retry.first_key_value()
            && of == row
        {
            let mut alone = false;
            if let Some(call) = calls.get_mut(key) {
                alone = call.alone;
                if alone && !packed.is_empty() {
                    return (packed, attempts, writer);
                }
                let number = if mutant!(client_retry_renumbered) { rows.next_number(row) } else { number };
                match call.request.command().map(|command| command.push(&mut writer, number)) {
                    Some(Ok(())) => {}
                    Some(Err(PushError::Full | PushError::NotEight)) => return (packed, attempts, writer),
                    // Checked when it was submitted; it would wait for its deadline here.
                    Some(Err(_)) | None => debug_assert!(false, "a command that no pack takes"),
                }
                call.in_flight = true;
                attempts = attempts.max(call.attempts);
                packed.push(key);
            }
            lane.retry.pop_first();
            if alone {
                return (packed, attempts, writer);
            }
        }
        while with_fresh && let Some(&key) = lane.fresh.front() {
            if let Some(call) = calls.get_mut(key) {
                let number = rows.upcoming_number();
                match call.request.command().map(|command| command.push(&mut writer, number)) {
                    Some(Ok(())) => {}
                    Some(Err(PushError::Full | PushError::NotEight)) => break,
                    Some(Err(_)) | None => debug_assert!(false, "a command that no pack takes"),
                }
                rows.next_number(row);
                call.number = Some(number);
                call.row = Some(row);
                call.in_flight = true;
                attempts = attempts.max(call.attempts);
                packed.push(key);
            }
            lane.fresh.pop_front();
        }
        (packed, attempts, writer)
    }

    fn open(&mut self, now: Time, lane: usize, peer: usize, effects: &mut Vec<Effect>) {
        if self.lanes[lane].opening {
            return;
        }
        let Some(stream) = self.stream(now, peer, effects) else { return };
        self.nonce += 1;
        let mut out = BytesMut::new();
        OpenRequest::encode(&mut out, stream, self.lanes[lane].partition, self.client, self.nonce);
        self.lanes[lane].opening = true;
        self.sent(now, lane, peer, Flight::Open, 0, false);
        self.send(peer, out.freeze(), effects);
    }

    fn send_gets(&mut self, now: Time, lane: usize, effects: &mut Vec<Effect>) {
        while let Some(mode) = self.next_get(lane) {
            let window = match mode {
                ReadMode::Leader => self.window(lane, self.config.read_window),
                ReadMode::AnyReplica | ReadMode::Stale => self.config.read_window.max(1),
            };
            if self.lanes[lane].reads_out >= window {
                return;
            }
            let Some(peer) = self.target(now, lane, mode, effects) else { return };
            let Some(stream) = self.stream(now, peer, effects) else { return };
            let Session { lanes, calls, .. } = self;
            let (mut keys, mut room, mut attempts) = (Vec::new(), self.config.pack_bytes.max(KEY_BYTES_MAX), 0);
            let mut alone = false;
            while let Some(&key) = lanes[lane].gets.front() {
                if let Some(call) = calls.get_mut(key) {
                    let Request::Get { key: name, mode: wanted } = &call.request else { break };
                    let full = name.len() > room || keys.len() == READ_KEYS;
                    if *wanted != mode || full || (!keys.is_empty() && (call.alone || alone)) {
                        break;
                    }
                    alone = call.alone;
                    room -= name.len();
                    call.in_flight = true;
                    attempts = attempts.max(call.attempts);
                    keys.push(key);
                }
                lanes[lane].gets.pop_front();
            }
            let names = keys.iter().map(|&key| calls.get(key).map_or(&[][..], |call| call.request.routing_key()));
            let how = (mode == ReadMode::Stale, mode != ReadMode::Leader);
            let mut out = BytesMut::with_capacity(32 + keys.len() * 12);
            ReadRequest::encode(&mut out, stream, lanes[lane].partition, how, names);
            let flight = Flight::Read { left: keys.len() as u32, calls: keys };
            self.sent(now, lane, peer, flight, attempts, mode != ReadMode::Leader);
            self.lanes[lane].reads_out += 1;
            self.send(peer, out.freeze(), effects);
        }
    }

    /// The mode of the first get that still waits.
    fn next_get(&mut self, lane: usize) -> Option<ReadMode> {
        loop {
            let &key = self.lanes[lane].gets.front()?;
            if let Some(Request::Get { mode, .. }) = self.calls.get(key).map(|call| &call.request) {
                return Some(*mode);
            }
            self.lanes[lane].gets.pop_front();
        }
    }

    fn send_ranges(&mut self, now: Time, lane: usize, effects: &mut Vec<Effect>) {
        while let Some(&key) = self.lanes[lane].ranges.front() {
            let Some(Request::Range(range)) = self.calls.get(key).map(|call| &call.request) else {
                self.lanes[lane].ranges.pop_front();
                continue;
            };
            let range = range.clone();
            let across = self.lanes[lane].partition == PartitionId::DIRECTORY;
            let mode = if across { ReadMode::Leader } else { range.mode };
            let Some(peer) = self.range_target(now, lane, mode, effects) else { return };
            if !across && self.peers[peer].ranges() >= self.config.range_window.max(1) {
                return self.crowded.push(lane);
            }
            let Some(stream) = self.stream(now, peer, effects) else { return };
            self.lanes[lane].ranges.pop_front();
            if across {
                self.send_query(now, (lane, peer, stream), (key, range), effects);
                continue;
            }
            let request = self.range_request(lane, range);
            let Some(call) = self.calls.get_mut(key) else { continue };
            call.in_flight = true;
            call.stream = Some((peer as u32, stream));
            let attempts = call.attempts;
            request.encode(self.peers[peer].asks(), stream);
            let flight = RangeFlight::new(key, request.partition, request.credit);
            self.sent(now, lane, peer, Flight::Range(flight), attempts, request.anywhere);
        }
    }

    fn range_request(&self, lane: usize, range: RangeCall) -> RangeRequest {
        let RangeCall { low, high, reverse, keys_only, count_only, pairs_max, bytes_max, mode } = range;
        RangeRequest {
            partition: self.lanes[lane].partition,
            low,
            high,
            reverse,
            keys_only,
            count_only,
            stale: mode == ReadMode::Stale,
            anywhere: mode != ReadMode::Leader,
            versioned: false,
            pairs_max,
            bytes_max,
            credit: self.config.range_credit,
        }
    }

    /// The stream for the next request on a connection. One that has used all streams is closed: none is used twice.
    pub(super) fn stream(&mut self, now: Time, peer: usize, effects: &mut Vec<Effect>) -> Option<u32> {
        let stream = self.peers[peer].next_stream();
        if stream.is_none() {
            self.hang_up(now, peer, "all streams were used".into(), effects);
        }
        stream
    }

    pub(super) fn sent(&mut self, now: Time, lane: usize, peer: usize, flight: Flight, attempts: u8, anywhere: bool) {
        let patience = self.config.attempt_timeout * (1 << attempts.min(3));
        let epoch = self.lanes[lane].epoch;
        let sent = Sent {
            flight,
            lane,
            epoch,
            maps: self.maps,
            anywhere,
            at: now,
            until: now + patience / 2,
            patience,
            pinged: false,
            abandoned: false,
        };
        self.peers[peer].push(sent);
    }

    /// Lets a lane wait before it sends again, because of what was asked: longer each time in a row. What was asked
    /// before it last began to wait, and is refused too, is no further time.
    pub(super) fn rest(&mut self, now: Time, asked: Asked, at_least: std::time::Duration) {
        let draw = self.draws.next();
        let lane = &mut self.lanes[asked.lane];
        let mut rest = at_least;
        if asked.at >= lane.rested_at {
            rest = rest.max(pause(self.config.backoff, self.config.backoff_max, lane.busy, draw));
            lane.busy = lane.busy.saturating_add(1);
            lane.rested_at = now;
        }
        lane.not_before = lane.not_before.max(now + rest);
    }
}
