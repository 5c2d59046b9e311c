//! Sending: who is asked, what goes into a frame together, how much may be under way.

use bytes::BytesMut;

use super::calls::{CallKey, Request};
use super::peers::{PeerState, PendingRequest, RangeProgress, RequestKind, RequestOrigin, pause};
use super::queue::{LastError, ReplicaAffinity};
use super::sessions::SessionKey;
use super::{Effect, Session};
use crate::command::{Command, Operation, RangeCall, ReadMode};
use crate::error::{Cause, Reason};
use crate::time::Time;
use crate::wire::pack::PushError;
use crate::wire::{FEATURE_UPDATE, KEY_BYTES_MAX, OpenRequest, PackWriter, PartitionId, RangeRequest, ReadRequest};

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
const AFFINITY_RANGES_MAX: u32 = 64;

/// Why a command is not sent.
const OLDER: &str = "the leader runs a version that does not know this operation: upgrade all nodes, then raise \
                     feature_level to 2";

impl Session {
    /// Sends what waits and may go.
    pub(super) fn dispatch(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.search_map(now, effects);
        self.route_waiting(now, effects);
        self.retry_queries(now, effects);
        self.begin_collects(now, effects);
        self.queues.list_due(now);
        self.dispatch_listed(now, effects);
        // What a partition's queue could not do goes to the coordinator's.
        self.dispatch_listed(now, effects);
        for at in 0..self.peers.len() {
            if let Some(asks) = self.peers[at].take_asks() {
                self.send(at, asks, effects);
            }
        }
    }

    fn dispatch_listed(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let mut listed = self.queues.take_listed();
        for queue in listed.drain(..) {
            if self.queues.unlist(queue) {
                self.dispatch_queue(now, queue, effects);
            }
        }
        self.queues.put_back(listed);
    }

    fn dispatch_queue(&mut self, now: Time, queue: usize, effects: &mut Vec<Effect>) {
        if self.queues[queue].waiting.has_commands()
            && let Some(peer) = self.leader(now, queue, effects)
        {
            self.send_packs(now, queue, peer, effects);
        }
        self.send_gets(now, queue, effects);
        self.send_ranges(now, queue, effects);
        self.send_validations(now, queue, effects);
    }

    /// The peer of the queue's leader if it can be sent to now; else whatever brings that nearer is begun.
    fn leader(&mut self, now: Time, queue: usize, effects: &mut Vec<Effect>) -> Option<usize> {
        if let Some(node) = self.queues[queue].replicas.leader {
            if let Some(peer) = self.peer_of(node).filter(|&peer| self.peers[peer].is_usable(now)) {
                self.connect(now, peer, effects);
                return self.peers[peer].is_ready().then_some(peer);
            }
            self.queues[queue].replicas.follow(None);
        }
        self.candidate(now, queue, effects)
    }

    /// While nobody knows who leads: the next replica in turn that is connected. All are connected to meanwhile.
    fn candidate(&mut self, now: Time, queue: usize, effects: &mut Vec<Effect>) -> Option<usize> {
        let replicas = self.queues[queue].replicas.nodes.clone();
        let rotation = self.queues[queue].replicas.rotation;
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
        let queue = &mut self.queues[queue];
        match ready.or(suspect) {
            Some((step, peer)) => {
                queue.replicas.rotation = (rotation + step) % replicas.len();
                Some(peer)
            }
            None => {
                if !opening {
                    queue.last_error = LastError::Unreachable;
                    queue.backoff.set(if rest == Time::NEVER { now + self.config.backoff_max } else { rest });
                    // Perhaps the map is old.
                    self.want_map();
                }
                None
            }
        }
    }

    /// A replica for a read that any replica may serve.
    fn any_replica(&mut self, now: Time, queue: usize, effects: &mut Vec<Effect>) -> Option<usize> {
        let replicas = self.queues[queue].replicas.nodes.clone();
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
            let queue = &mut self.queues[queue];
            queue.last_error = LastError::Unreachable;
            queue.backoff.set(now + self.config.backoff * 4);
            self.want_map();
        }
        suspect
    }

    /// A replica for a range that any replica may serve: the one of the last range while it has some of this session's
    /// under way, but few, for these share messages. Another one is drawn when there are more or none, and every so
    /// often.
    fn affine_replica(&mut self, now: Time, queue: usize, effects: &mut Vec<Effect>) -> Option<usize> {
        let few = RANGES_SHARED.min(self.config.range_window.max(1));
        if let Some(ReplicaAffinity { node, left }) = &mut self.queues[queue].replicas.affinity
            && *left > 0
        {
            *left -= 1;
            let node = *node;
            let member = self.queues[queue].replicas.nodes.contains(&node);
            if let Some(at) = self.peer_of(node) {
                let peer = &self.peers[at];
                let goes_on = member && peer.is_ready() && peer.suspect_until <= now;
                if goes_on && (1..few).contains(&peer.streams.ranges()) {
                    return Some(at);
                }
            }
        }
        let peer = self.any_replica(now, queue, effects);
        let node = peer.and_then(|peer| self.peers[peer].node);
        self.queues[queue].replicas.affinity = node.map(|node| ReplicaAffinity { node, left: AFFINITY_RANGES_MAX });
        peer
    }

    /// The node at `at` refused what any replica may answer, or did not answer: the next range is another draw.
    pub(super) fn forget_affinity(&mut self, at: usize, pending: &PendingRequest) {
        let node = self.peers[at].node;
        if let Some(queue) = self.queues.get_mut(pending.queue)
            && pending.anywhere
        {
            queue.replicas.affinity.take_if(|affinity| Some(affinity.node) == node);
        }
    }

    pub(super) fn range_target(
        &mut self,
        now: Time,
        queue: usize,
        mode: ReadMode,
        effects: &mut Vec<Effect>,
    ) -> Option<usize> {
        match mode {
            ReadMode::Leader => self.leader(now, queue, effects),
            ReadMode::AnyReplica | ReadMode::Stale => self.affine_replica(now, queue, effects),
        }
    }

    fn target(&mut self, now: Time, queue: usize, mode: ReadMode, effects: &mut Vec<Effect>) -> Option<usize> {
        match mode {
            ReadMode::Leader => self.leader(now, queue, effects),
            ReadMode::AnyReplica | ReadMode::Stale => self.any_replica(now, queue, effects),
        }
    }

    fn send_packs(&mut self, now: Time, queue: usize, peer: usize, effects: &mut Vec<Effect>) {
        if self.peers[peer].features & FEATURE_UPDATE == 0 {
            self.refuse_unknown(now, queue, effects);
        }
        while self.queues[queue].packs_out < self.queues[queue].replicas.window(self.config.window) {
            let session = match self.queues[queue].waiting.retry.first_key_value() {
                Some((&(session, _), _)) => session,
                None => {
                    if self.queues[queue].waiting.fresh.is_empty() {
                        return;
                    }
                    match self.queues[queue].session.key.filter(|&session| !self.sessions.is_expired(session)) {
                        Some(session) => session,
                        None => return self.open(now, queue, peer, effects),
                    }
                }
            };
            let Some(stream) = self.stream(now, peer, effects) else { return };
            let partition = self.queues[queue].partition;
            let (calls, attempts, writer) = self.pack(queue, session);
            let Some(bytes) = writer.finish(partition, stream) else { continue };
            let kind = RequestKind::Pack { left: calls.len() as u32, calls, session };
            self.note_pending(now, queue, peer, kind, attempts, false);
            self.queues[queue].packs_out += 1;
            self.send(peer, bytes, effects);
        }
    }

    /// The leader runs an older version, which would not read these commands, nor those that share a pack with them.
    fn refuse_unknown(&mut self, now: Time, queue: usize, effects: &mut Vec<Effect>) {
        let waiting = &self.queues[queue].waiting;
        let unknown = |key: &CallKey| {
            let command = self.calls.get(*key).and_then(|call| call.request.command());
            command.is_some_and(|command| !command.is_known_everywhere())
        };
        let keys: Vec<CallKey> = waiting.retry.values().chain(&waiting.fresh).copied().filter(unknown).collect();
        for key in keys {
            self.end(now, key, Reason::Incompatible(OLDER.into()), Cause::Refused, effects);
        }
        let Session { queues, calls, .. } = self;
        queues[queue].waiting.forget_done(calls);
    }

    /// Packs what waits for a session: first what is repeated, then new commands, which get their numbers here.
    fn pack(&mut self, queue: usize, session: SessionKey) -> (Vec<CallKey>, u8, PackWriter) {
        let Session { queues, calls, sessions, config, .. } = self;
        let queue = &mut queues[queue];
        let with_fresh = queue.session.key == Some(session);
        let fresh = queue.waiting.fresh.iter().take(if with_fresh { EIGHT_RUN } else { 0 });
        let retry = queue.waiting.retry.range((session, 0)..=(session, u64::MAX)).map(|(_, key)| key).take(EIGHT_RUN);
        let eight = retry.chain(fresh).all(|&key| calls.get(key).is_none_or(|call| call.eight));
        let guess = (queue.waiting.fresh.len() + queue.waiting.retry.len()).saturating_mul(COMMAND_BYTES) + 128;
        let buffer = Vec::with_capacity(guess.min(config.pack_bytes + 128));
        let lowest = sessions.lowest_unacknowledged(session);
        let mut writer = PackWriter::new(buffer, sessions.id(session), lowest, eight, config.pack_bytes);
        let (mut packed, mut attempts) = (Vec::with_capacity(guess.min(config.pack_bytes) / COMMAND_BYTES), 0);
        while let Some((&(of, number), &key)) = queue.waiting.retry.first_key_value()
            && of == session
        {
            let mut alone = false;
            if let Some(call) = calls.get_mut(key) {
                alone = call.alone;
                if alone && !packed.is_empty() {
                    return (packed, attempts, writer);
                }
                let number = if mutant!(client_retry_renumbered) { sessions.next_number(session) } else { number };
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
            queue.waiting.retry.pop_first();
            if alone {
                return (packed, attempts, writer);
            }
        }
        while with_fresh && let Some(&key) = queue.waiting.fresh.front() {
            if let Some(call) = calls.get_mut(key) {
                let number = sessions.upcoming_number();
                match call.request.command().map(|command| command.push(&mut writer, number)) {
                    Some(Ok(())) => {}
                    Some(Err(PushError::Full | PushError::NotEight)) => break,
                    Some(Err(_)) | None => debug_assert!(false, "a command that no pack takes"),
                }
                sessions.next_number(session);
                call.number = Some((session, number));
                call.in_flight = true;
                attempts = attempts.max(call.attempts);
                packed.push(key);
            }
            queue.waiting.fresh.pop_front();
        }
        (packed, attempts, writer)
    }

    fn open(&mut self, now: Time, queue: usize, peer: usize, effects: &mut Vec<Effect>) {
        if self.queues[queue].session.opening {
            return;
        }
        let Some(stream) = self.stream(now, peer, effects) else { return };
        self.nonce += 1;
        let mut out = BytesMut::new();
        OpenRequest::encode(&mut out, stream, self.queues[queue].partition, self.client, self.nonce);
        self.queues[queue].session.opening = true;
        self.note_pending(now, queue, peer, RequestKind::Open, 0, false);
        self.send(peer, out.freeze(), effects);
    }

    fn send_gets(&mut self, now: Time, queue: usize, effects: &mut Vec<Effect>) {
        while let Some((mode, looks)) = self.next_get(queue) {
            let window = match mode {
                ReadMode::Leader => self.queues[queue].replicas.window(self.config.read_window),
                ReadMode::AnyReplica | ReadMode::Stale => self.config.read_window.max(1),
            };
            if self.queues[queue].reads_out >= window {
                return;
            }
            let Some(peer) = self.target(now, queue, mode, effects) else { return };
            if looks && self.peers[peer].features & FEATURE_UPDATE == 0 {
                self.look_by_command(queue);
                continue;
            }
            let Some(stream) = self.stream(now, peer, effects) else { return };
            let Session { queues, calls, .. } = self;
            let (mut keys, mut room, mut attempts) = (Vec::new(), self.config.pack_bytes.max(KEY_BYTES_MAX), 0);
            let mut alone = false;
            while let Some(&key) = queues[queue].waiting.gets.front() {
                if let Some(call) = calls.get_mut(key) {
                    let name = call.request.routing_key();
                    let full = name.len() > room || keys.len() == READ_KEYS;
                    if call.request.read() != Some((mode, looks)) || full || (!keys.is_empty() && (call.alone || alone))
                    {
                        break;
                    }
                    alone = call.alone;
                    room -= name.len();
                    call.in_flight = true;
                    attempts = attempts.max(call.attempts);
                    keys.push(key);
                }
                queues[queue].waiting.gets.pop_front();
            }
            let names = keys.iter().map(|&key| calls.get(key).map_or(&[][..], |call| call.request.routing_key()));
            let how = (mode == ReadMode::Stale, mode != ReadMode::Leader);
            let mut out = BytesMut::with_capacity(32 + keys.len() * 12);
            match looks {
                true => ReadRequest::encode_looks(&mut out, stream, queues[queue].partition, how, names),
                false => ReadRequest::encode(&mut out, stream, queues[queue].partition, how, names),
            }
            let kind = RequestKind::Read { left: keys.len() as u32, calls: keys };
            self.note_pending(now, queue, peer, kind, attempts, mode != ReadMode::Leader);
            self.queues[queue].reads_out += 1;
            self.send(peer, out.freeze(), effects);
        }
    }

    /// The first look goes through the log: whoever is to serve it does not know it as a read.
    fn look_by_command(&mut self, queue: usize) {
        let waiting = &mut self.queues[queue].waiting;
        let Some(key) = waiting.gets.pop_front() else { return };
        if let Some(call) = self.calls.get_mut(key) {
            let look = Operation::look(call.request.routing_key());
            call.request = Request::Command(Command::One(look));
            waiting.fresh.push_back(key);
            self.queues.list(queue);
        }
    }

    /// How the first get or look that still waits is served, and whether it is a look.
    fn next_get(&mut self, queue: usize) -> Option<(ReadMode, bool)> {
        loop {
            let &key = self.queues[queue].waiting.gets.front()?;
            if let Some(how) = self.calls.get(key).and_then(|call| call.request.read()) {
                return Some(how);
            }
            self.queues[queue].waiting.gets.pop_front();
        }
    }

    fn send_ranges(&mut self, now: Time, queue: usize, effects: &mut Vec<Effect>) {
        while let Some(&key) = self.queues[queue].waiting.ranges.front() {
            let Some(Request::Range(range)) = self.calls.get(key).map(|call| &call.request) else {
                self.queues[queue].waiting.ranges.pop_front();
                continue;
            };
            let range = range.clone();
            let across = self.queues[queue].partition == PartitionId::DIRECTORY;
            let mode = if across { ReadMode::Leader } else { range.mode };
            let Some(peer) = self.range_target(now, queue, mode, effects) else { return };
            if !across && self.peers[peer].streams.ranges() >= self.config.range_window.max(1) {
                return self.queues.note_crowded(queue);
            }
            let Some(stream) = self.stream(now, peer, effects) else { return };
            self.queues[queue].waiting.ranges.pop_front();
            if across {
                self.send_query(now, (queue, peer, stream), (key, range), effects);
                continue;
            }
            let compares = self.begin_comparison(key, peer);
            let request = self.range_request(queue, range, compares);
            let Some(call) = self.calls.get_mut(key) else { continue };
            call.in_flight = true;
            call.range.stream = Some((peer as u32, stream));
            let attempts = call.attempts;
            request.encode(self.peers[peer].asks(), stream);
            let kind = RangeProgress::new(key, request.partition, request.credit);
            self.note_pending(now, queue, peer, RequestKind::Range(kind), attempts, request.anywhere);
        }
    }

    fn range_request(&self, queue: usize, range: RangeCall, compares: bool) -> RangeRequest {
        let RangeCall { low, high, scan, mode, .. } = range;
        RangeRequest {
            partition: self.queues[queue].partition,
            low,
            high,
            scan,
            stale: mode == ReadMode::Stale,
            anywhere: mode != ReadMode::Leader,
            versioned: false,
            // What is compared announces itself first.
            credit: if compares { 0 } else { self.config.range_credit },
        }
    }

    /// The stream for the next request on a connection. One that has used all streams is closed: none is used twice.
    pub(super) fn stream(&mut self, now: Time, peer: usize, effects: &mut Vec<Effect>) -> Option<u32> {
        let stream = self.peers[peer].streams.next();
        if stream.is_none() {
            self.hang_up(now, peer, "all streams were used".into(), effects);
        }
        stream
    }

    pub(super) fn note_pending(
        &mut self,
        now: Time,
        queue: usize,
        peer: usize,
        kind: RequestKind,
        attempts: u8,
        anywhere: bool,
    ) {
        let patience = self.config.attempt_timeout * (1 << attempts.min(3));
        let epoch = self.queues[queue].replicas.epoch;
        let pending = PendingRequest {
            kind,
            queue,
            epoch,
            maps: self.routes.maps(),
            anywhere,
            at: now,
            until: now + patience / 2,
            patience,
            pinged: false,
            abandoned: false,
        };
        self.peers[peer].push(pending);
    }

    /// Lets a queue wait before it sends again, because of what was asked: longer each time in a row. What was asked
    /// before it last began to wait, and is refused too, is no further time.
    pub(super) fn rest(&mut self, now: Time, asked: RequestOrigin, at_least: std::time::Duration) {
        let draw = self.draws.next();
        let (first, max) = (self.config.backoff, self.config.backoff_max);
        self.queues[asked.queue].backoff.refused(now, asked.at, at_least, |refusals| pause(first, max, refusals, draw));
    }
}
