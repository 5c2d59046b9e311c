//! Connections: opening, greeting, losing them, and noticing that one went silent.

use bytes::{Bytes, BytesMut};

use super::peers::{ConnectionId, Peer, PeerState, PendingRequest, RequestKind, pause};
use super::queue::LastError;
use super::{Effect, Session};
use crate::error::{Cause, REFUSED, Reason};
use crate::time::Time;
use crate::wire::control::{decode_control, encode_control};
use crate::wire::frame::encode_frame;
use crate::wire::{Frame, Hello, HelloOk, Kind, NodeId, PROTOCOL, Refusal};

/// A live node may be so many times slower than a silent one before another replica is asked.
const SLOW: u32 = 4;

impl Session {
    /// Where a node is dialled.
    pub(super) fn address_of(&self, node: NodeId) -> Option<String> {
        let overridden = self.config.dial_override.iter().find(|(id, _)| *id == node);
        if let Some((_, address)) = overridden {
            return Some(address.clone());
        }
        let info = self.routes.map()?.node(node)?;
        (!info.addresses.native.is_empty()).then(|| info.addresses.native.clone())
    }

    /// The peer of a node; it is added when it is first needed.
    pub(super) fn peer_of(&mut self, node: NodeId) -> Option<usize> {
        let address = self.address_of(node)?;
        if let Some(at) = self.peers.iter().position(|peer| peer.node == Some(node)) {
            // A node that moved to another address is dialled there when its connection ends.
            if !self.peers[at].is_open() && self.peers[at].address != address {
                self.peers[at].address = address;
            }
            return Some(at);
        }
        if let Some(at) = self.peers.iter().position(|peer| peer.node.is_none() && peer.address == address) {
            self.peers[at].node = Some(node);
            return Some(at);
        }
        self.peers.push(Peer::new(address, Some(node)));
        Some(self.peers.len() - 1)
    }

    /// Starts to connect, if the peer is neither open nor resting.
    pub(super) fn connect(&mut self, now: Time, at: usize, effects: &mut Vec<Effect>) {
        let until = now + self.config.connect_timeout;
        let peer = &mut self.peers[at];
        if peer.is_open() || !peer.is_usable(now) {
            return;
        }
        peer.state = PeerState::Opening { until };
        peer.connection = peer.next_connection();
        let connection = ConnectionId { peer: at as u32, number: peer.connection };
        effects.push(Effect::Connect { connection, address: peer.address.clone() });
    }

    /// The peer of a live connection; events of ended ones are ignored.
    pub(super) fn live(&self, connection: ConnectionId) -> Option<usize> {
        let at = connection.peer as usize;
        let peer = self.peers.get(at)?;
        (peer.connection == connection.number && peer.is_open()).then_some(at)
    }

    /// The peer of which a connection is the spare one.
    pub(super) fn spare(&self, connection: ConnectionId) -> Option<usize> {
        let at = connection.peer as usize;
        self.peers.get(at).filter(|peer| peer.spare == Some(connection.number)).map(|_| at)
    }

    pub(super) fn connection(&self, at: usize) -> ConnectionId {
        ConnectionId { peer: at as u32, number: self.peers[at].connection }
    }

    pub(super) fn send(&self, at: usize, bytes: Bytes, effects: &mut Vec<Effect>) {
        effects.push(Effect::Send { connection: self.connection(at), bytes });
    }

    pub(super) fn on_connected(&mut self, now: Time, connection: ConnectionId, effects: &mut Vec<Effect>) {
        if let Some(at) = self.live(connection) {
            self.peers[at].heard = now;
        } else if self.spare(connection).is_none() {
            return;
        }
        let hello = Hello {
            protocol_min: *PROTOCOL.start(),
            protocol_max: *PROTOCOL.end(),
            features: 0,
            client: self.client,
            cluster: self.cluster,
            node: None,
            token: self.config.token.clone(),
        };
        let mut out = BytesMut::new();
        encode_control(&mut out, Kind::Hello, 0, &hello);
        effects.push(Effect::Send { connection, bytes: out.freeze() });
    }

    /// A connection that fell silent may be whole and useless: behind a cut the kernel repeats what was lost on it ever
    /// more rarely. So another one is tried; whichever is heard first stays.
    fn try_spare(&mut self, at: usize, effects: &mut Vec<Effect>) {
        let peer = &mut self.peers[at];
        if peer.is_ready() && peer.spare.is_none() && !mutant!(client_silence_is_borne) {
            let number = peer.next_connection();
            peer.spare = Some(number);
            let connection = ConnectionId { peer: at as u32, number };
            effects.push(Effect::Connect { connection, address: peer.address.clone() });
        }
    }

    /// The present connection is heard, or ends: drops the spare one.
    pub(super) fn drop_spare(&mut self, at: usize, effects: &mut Vec<Effect>) {
        if let Some(number) = self.peers[at].spare.take() {
            effects.push(Effect::Close { connection: ConnectionId { peer: at as u32, number } });
        }
    }

    /// The spare connection is greeted and takes the place of the silent one.
    pub(super) fn take_over(&mut self, now: Time, at: usize, effects: &mut Vec<Effect>) {
        effects.push(Effect::Close { connection: self.connection(at) });
        let until = now + self.config.connect_timeout;
        let peer = &mut self.peers[at];
        peer.connection = peer.spare.take().unwrap_or(peer.connection);
        peer.state = PeerState::Opening { until };
        self.requests_lost(now, at, effects);
    }

    pub(super) fn on_disconnected(
        &mut self,
        now: Time,
        connection: ConnectionId,
        reason: String,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(at) = self.live(connection) {
            self.lose(now, at, reason, effects);
        } else if let Some(at) = self.spare(connection) {
            self.peers[at].spare = None;
        }
    }

    /// Gives a connection up from this side.
    pub(super) fn hang_up(&mut self, now: Time, at: usize, reason: String, effects: &mut Vec<Effect>) {
        effects.push(Effect::Close { connection: self.connection(at) });
        self.lose(now, at, reason, effects);
    }

    /// The connection is gone.
    fn lose(&mut self, now: Time, at: usize, reason: String, effects: &mut Vec<Effect>) {
        self.drop_spare(at, effects);
        let draw = self.draws.next();
        let peer = &mut self.peers[at];
        let was_ready = peer.is_ready();
        // The first loss of a connection that worked is no reason to wait.
        peer.failures = if was_ready { 0 } else { peer.failures.saturating_add(1) };
        let rest = pause(self.config.backoff, self.config.backoff_max, peer.failures, draw);
        peer.state = PeerState::Down { until: now + rest };
        peer.last_error = reason;
        self.requests_lost(now, at, effects);
        if !was_ready && self.routes.map().is_none() {
            self.map_search.last_error = LastError::Unreachable;
            self.map_search.again(now);
            self.end_if_refused(now, effects);
        }
        self.queues.list_all();
    }

    /// Every endpoint refused the connection, and no map names other nodes.
    fn end_if_refused(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let refused = |peer: &Peer| matches!(peer.state, PeerState::Down { .. }) && peer.last_error == REFUSED;
        if self.config.fail_when_refused && self.peers.iter().all(refused) {
            for key in self.calls.keys() {
                self.end(now, key, Reason::Unreachable, Cause::NoAnswer, effects);
            }
        }
    }

    /// Whatever waited on the connection that was may or may not have been executed.
    fn requests_lost(&mut self, now: Time, at: usize, effects: &mut Vec<Effect>) {
        for pending in self.peers[at].take_all() {
            self.unanswered(now, pending, effects);
        }
        self.parts_lost(now, at, effects);
        self.validations_lost(now, at, effects);
        self.follow_no_more(at);
    }

    /// Every queue forgets that the node at `at` led it: a request sent there could wait in vain.
    fn follow_no_more(&mut self, at: usize) {
        let node = self.peers[at].node;
        for queue in self.queues.iter_mut().filter(|queue| node.is_some() && queue.replicas.leader == node) {
            queue.replicas.follow(None);
        }
    }

    /// A sending ended without an answer: by a lost connection, by silence, by a leader's fall.
    pub(super) fn unanswered(&mut self, now: Time, pending: PendingRequest, effects: &mut Vec<Effect>) {
        let queue = pending.queue;
        match pending.kind {
            RequestKind::Pack { calls, .. } => {
                self.queues[pending.queue].packs_out -= 1;
                for key in calls {
                    if let Some(call) = self.calls.get_mut(key) {
                        call.in_flight = false;
                        call.maybe = true;
                        call.attempts = call.attempts.saturating_add(1);
                        self.reroute(now, key, effects);
                    }
                }
            }
            RequestKind::Read { calls, .. } => {
                self.queues[pending.queue].reads_out -= 1;
                for key in calls {
                    self.again(now, key, effects);
                }
            }
            RequestKind::Range(range) => {
                let streaming = self.calls.get(range.call).is_some_and(|call| call.range.streaming);
                if streaming {
                    self.end(now, range.call, Reason::Interrupted { last: None }, Cause::NoAnswer, effects);
                } else {
                    self.again(now, range.call, effects);
                }
            }
            RequestKind::Collect { .. } | RequestKind::Validate { .. } => {
                pending.kind.collects().into_iter().for_each(|key| self.spoil(now, key, effects));
            }
            RequestKind::Query { call, number } => {
                self.drop_attempt(number, effects);
                self.query_again(now, call, effects);
            }
            RequestKind::Open => self.queues[queue].session.opening = false,
            RequestKind::Map => return self.map_search.again(now),
        }
        self.queues.list(queue);
    }

    /// A read or a range that gave nothing out yet is asked again.
    fn again(&mut self, now: Time, key: super::CallKey, effects: &mut Vec<Effect>) {
        if let Some(call) = self.calls.get_mut(key) {
            call.in_flight = false;
            call.attempts = call.attempts.saturating_add(1);
            self.reroute(now, key, effects);
        }
    }

    /// Greeted, or refused.
    pub(super) fn on_greeting(&mut self, now: Time, at: usize, frame: &Frame, effects: &mut Vec<Effect>) {
        match Kind::from_u8(frame.kind) {
            Some(Kind::HelloOk) => match decode_control::<HelloOk>(&frame.body, "hello") {
                Ok(hello) => self.greeted(now, at, &hello, effects),
                Err(error) => self.hang_up(now, at, error.to_string(), effects),
            },
            Some(Kind::Refused) => {
                let refusal = Refusal::decode(&frame.body);
                let is_stranger = matches!(refusal, Ok(Refusal::Unauthenticated { .. }));
                let reason = refusal.map_or_else(|error| error.to_string(), Refusal::words);
                self.hang_up(now, at, reason, effects);
                if is_stranger {
                    self.peers[at].turned_away = true;
                    self.end_if_unknown(now, at, effects);
                }
            }
            _ => self.hang_up(now, at, "did not greet".into(), effects),
        }
    }

    /// A node does not know whom this client acts for. If no other node may, waiting changes nothing.
    fn end_if_unknown(&mut self, now: Time, at: usize, effects: &mut Vec<Effect>) {
        let may_be_known = |peer: &Peer| match peer.state {
            PeerState::Idle => self.routes.map().is_none(),
            // Asked again, it would say the same.
            PeerState::Opening { .. } => !peer.turned_away,
            PeerState::Ready => true,
            PeerState::Down { .. } => false,
        };
        if self.peers.iter().any(may_be_known) {
            return;
        }
        let reason = Reason::Denied(self.peers[at].last_error.clone());
        for key in self.calls.keys() {
            self.end(now, key, reason.clone(), Cause::NoAnswer, effects);
        }
    }

    fn greeted(&mut self, now: Time, at: usize, hello: &HelloOk, effects: &mut Vec<Effect>) {
        if !PROTOCOL.contains(&hello.protocol) {
            let text = format!("speaks protocol {}, this client {}", hello.protocol, PROTOCOL.end());
            return self.hang_up(now, at, text, effects);
        }
        if let (Some(wanted), Some(found)) = (self.cluster, hello.cluster)
            && wanted != found
        {
            return self.hang_up(now, at, format!("belongs to cluster {found}, wanted is {wanted}"), effects);
        }
        if hello.cluster.is_none() && self.routes.map().is_some() {
            // Whatever the map says of this address: who answers there has lost its disk and serves nothing.
            return self.hang_up(now, at, "belongs to no cluster".into(), effects);
        }
        let identity = hello.node.map(|node| node.node);
        let expected = self.peers[at].node;
        if let (Some(expected), Some(found)) = (expected, identity)
            && expected != found
            && !self.config.dial_override.iter().any(|(node, _)| *node == expected)
        {
            // Another node answers at this address: what the map says of it is old.
            self.peers[at].node = None;
        }
        if self.peers[at].node.is_none() && identity.is_some() {
            // The same node may have been met under another address; one connection each is enough.
            if self.peers.iter().any(|peer| peer.node == identity && peer.is_ready()) {
                return self.hang_up(now, at, "met under another address".into(), effects);
            }
            self.peers.iter_mut().filter(|peer| peer.node == identity).for_each(|peer| peer.node = None);
            self.peers[at].node = identity;
        }
        let peer = &mut self.peers[at];
        peer.state = PeerState::Ready;
        peer.failures = 0;
        peer.last_error.clear();
        peer.turned_away = false;
        peer.is_blank = hello.cluster.is_none();
        peer.features = hello.features;
        self.cluster = self.cluster.or(hello.cluster);
        if hello.cluster.is_none() {
            self.map_search.last_error = LastError::NotInitialized;
        }
        let version = self.routes.map().map_or(0, |map| map.version.0);
        if version == 0 || hello.map_version.0 > version {
            self.ask_for_map(now, at, effects);
        }
        self.queues.list_all();
    }

    /// Looks for connections that open too slowly and requests that are unanswered for too long.
    pub(super) fn check_peers(&mut self, now: Time, effects: &mut Vec<Effect>) {
        for at in 0..self.peers.len() {
            if self.peers[at].deadline() > now {
                continue;
            }
            if matches!(self.peers[at].state, PeerState::Opening { until } if until <= now) {
                self.hang_up(now, at, "timed out".into(), effects);
                continue;
            }
            for stream in self.peers[at].streams.silent(now) {
                self.on_silence(now, at, stream, effects);
            }
            let silence_max = self.config.silence_max;
            if self.peers[at].is_ready() && now - self.peers[at].heard >= silence_max {
                self.hang_up(now, at, format!("silent for {silence_max:?}"), effects);
            }
        }
    }

    /// A request is unanswered for a while. A node that is alive is only slow, and asking it or another one again would
    /// make it slower: so it is asked whether it lives, and only a silent node, or one that is slow beyond measure, is
    /// given up.
    fn on_silence(&mut self, now: Time, at: usize, stream: u32, effects: &mut Vec<Effect>) {
        let connection = self.connection(at);
        let peer = &mut self.peers[at];
        let heard = peer.heard;
        let Some(pending) = peer.streams.get(stream) else { return };
        let alive = heard > pending.at && now - heard <= pending.patience;
        let wait = match (alive, pending.pinged) {
            (false, false) => Some(pending.patience / 2),
            (true, _) if now - pending.at < pending.patience * SLOW => Some(pending.patience),
            _ => None,
        };
        if let Some(wait) = wait {
            pending.until = now + wait;
            pending.pinged = true;
            peer.streams.note_until(now + wait);
            let mut out = BytesMut::new();
            encode_frame(&mut out, Kind::Ping, 0, &[]);
            effects.push(Effect::Send { connection, bytes: out.freeze() });
            return;
        }
        pending.until = Time::NEVER;
        pending.abandoned = true;
        let (pending, epoch) = (pending.clone(), pending.epoch);
        self.forget_affinity(at, &pending);
        let peer = &mut self.peers[at];
        if !alive {
            peer.suspect_until = heard + self.config.silence_max;
            peer.last_error = "timed out".into();
            self.try_spare(at, effects);
        }
        if !matches!(pending.kind, RequestKind::Pack { .. } | RequestKind::Read { .. }) {
            // Nothing that a late answer could still bring.
            self.peers[at].streams.take(stream);
        }
        if let Some(queue) = self.queues.get_mut(pending.queue)
            && !pending.anywhere
            && !matches!(pending.kind, RequestKind::Map)
            && queue.replicas.epoch == epoch
        {
            queue.replicas.rotation += 1;
            queue.replicas.follow(None);
        }
        if !alive && !mutant!(silence_of_one_queue) {
            // What comes next of this call, or of another one, is for another queue, and would find out as slowly.
            self.follow_no_more(at);
        }
        if let RequestKind::Query { call, .. } = pending.kind {
            self.note_silence(call);
        }
        self.unanswered(now, pending, effects);
    }
}
