//! What the nodes say: answers, refusals, parts. Anything that does not fit its question closes the connection: it is
//! then as if it had never been answered.

use std::time::Duration;

use coppice_btree::OpResult;

use super::calls::{CallKey, Request};
use super::peers::{ConnectionId, PeerState, PendingRequest, RequestKind, RequestOrigin, pause};
use super::queue::LastError;
use super::{Effect, Session};
use crate::command::{Answer, Output};
use crate::error::{Cause, Reason};
use crate::time::Time;
use crate::wire::control::decode_control;
use crate::wire::{
    CommandRefusal, Frame, Kind, MapReply, NodeId, Position, Refusal, Replies, ResultRef, Section, SessionId,
};

/// What keeps a client from its sessions (`sessions_max`).
const SESSIONS: &str = "more clients want a session than sessions_max allows";

/// Why a command is not executed that would grow its partition.
const GROWTH: &str = "the partition may not grow";

/// Why a command is not executed that no batch takes.
const ANSWER: &str = "the command, its answer, or what it writes, is larger than a batch takes";

/// The answer is not one to the question.
pub(super) struct ProtocolError(pub &'static str);

/// What came of a frame.
pub(super) type FrameResult = Result<(), ProtocolError>;

impl Session {
    pub(super) fn on_frame(&mut self, now: Time, connection: ConnectionId, frame: Frame, effects: &mut Vec<Effect>) {
        let at = match (self.live(connection), self.spare(connection)) {
            (Some(at), _) => {
                self.drop_spare(at, effects);
                at
            }
            (None, Some(at)) if frame.kind == Kind::HelloOk as u8 => {
                self.take_over(now, at, effects);
                at
            }
            (None, Some(at)) => return self.drop_spare(at, effects),
            (None, None) => return,
        };
        self.peers[at].heard = now;
        self.peers[at].suspect_until = now;
        if let PeerState::Opening { .. } = self.peers[at].state {
            return self.on_greeting(now, at, &frame, effects);
        }
        let done = match Kind::from_u8(frame.kind) {
            Some(Kind::Replies) => self.on_replies(now, at, &frame, effects),
            Some(Kind::Part) => self.on_part(now, at, &frame, effects),
            Some(Kind::QueryPlan) => self.on_plan(now, at, &frame, effects),
            Some(Kind::QueryCompleted) => self.on_completed(now, at, &frame, effects),
            Some(Kind::Refused) => self.on_refused(now, at, &frame, effects),
            Some(Kind::Map) => self.on_map_frame(now, at, &frame, effects),
            Some(Kind::Pong) => Ok(()),
            _ => Err(ProtocolError("a frame that nobody asked for")),
        };
        if let Err(ProtocolError(what)) = done {
            self.hang_up(now, at, format!("sent {what}"), effects);
        }
    }

    fn on_map_frame(&mut self, now: Time, at: usize, frame: &Frame, effects: &mut Vec<Effect>) -> FrameResult {
        let reply = decode_control::<MapReply>(&frame.body, "map").map_err(|_| ProtocolError("a map that is none"))?;
        self.peers[at].streams.take(frame.stream);
        let known = self.cluster;
        if reply.map.as_ref().is_some_and(|map| map.version.0 > 0 && known.is_some_and(|known| map.cluster != known))
            && !mutant!(client_takes_foreign_map)
        {
            return Err(ProtocolError("a map of another cluster"));
        }
        self.on_map(now, reply, effects);
        Ok(())
    }

    fn on_replies(&mut self, now: Time, at: usize, frame: &Frame, effects: &mut Vec<Effect>) -> FrameResult {
        for section in Replies::new(&frame.body) {
            let section = section.map_err(|_| ProtocolError("an answer that is none"))?;
            self.on_section(now, at, &section, effects)?;
        }
        Ok(())
    }

    fn on_section(&mut self, now: Time, at: usize, section: &Section<'_>, effects: &mut Vec<Effect>) -> FrameResult {
        // A late answer to what was given up.
        let Some(pending) = self.peers[at].streams.get(section.stream) else { return Ok(()) };
        let (queue, asked, abandoned) = (pending.queue, pending.asked(), pending.abandoned);
        if self.queues.get(queue).is_none_or(|queue| section.position.partition != queue.partition) {
            return Err(ProtocolError("an answer of another partition"));
        }
        let (calls, left, session) = match &mut pending.kind {
            RequestKind::Pack { calls, left, session } if !section.read => (calls, left, Some(*session)),
            RequestKind::Read { calls, left } if section.read => (calls, left, None),
            RequestKind::Open if !section.read => return self.on_opened(at, section),
            RequestKind::Validate { .. } if section.read => return self.on_validated(now, at, section, effects),
            _ => return Err(ProtocolError("an answer to another question")),
        };
        let (first, count) = (section.first as usize, usize::from(section.count));
        if first != calls.len() - *left as usize || count > *left as usize {
            return Err(ProtocolError("answers out of order"));
        }
        let calls = std::mem::take(calls);
        let mut done = Ok(());
        for (&key, (position, result)) in calls[first..].iter().zip(section.results()) {
            if abandoned && matches!(result, ResultRef::Refused(_)) {
                continue;
            }
            done = self.on_result(now, asked, key, position, &result, effects);
            if done.is_err() {
                break;
            }
        }
        let over = {
            let Some(pending) = self.peers[at].streams.get(section.stream) else { return Ok(()) };
            let (RequestKind::Pack { calls: empty, left, .. } | RequestKind::Read { calls: empty, left }) =
                &mut pending.kind
            else {
                return Ok(());
            };
            *empty = calls;
            if done.is_ok() {
                *left -= count as u32;
            }
            *left == 0
        };
        done?;
        if over {
            self.peers[at].streams.take(section.stream);
            match session {
                _ if abandoned => {}
                Some(_) => self.queues[queue].packs_out -= 1,
                None => self.queues[queue].reads_out -= 1,
            }
            self.queues.list(queue);
        }
        if session.is_some() {
            self.queues[queue].session.barren = 0;
        }
        self.confirm(at, queue, session.is_some());
        Ok(())
    }

    /// A replica answered as only a leader does: it is the leader.
    pub(super) fn confirm(&mut self, at: usize, queue: usize, wrote: bool) {
        let node = self.peers[at].node;
        if self.queues[queue].replicas.leader == node && node.is_some() {
            self.queues[queue].answered();
        } else if wrote && self.queues[queue].replicas.leader.is_none() {
            self.queues[queue].replicas.follow(node);
            self.queues[queue].answered();
        }
    }

    fn on_opened(&mut self, at: usize, section: &Section<'_>) -> FrameResult {
        let Some((position, ResultRef::Opened)) = section.results().next() else {
            return Err(ProtocolError("an answer to another question"));
        };
        let Some(pending) = self.peers[at].streams.take(section.stream) else { return Ok(()) };
        let session = self.sessions.insert(SessionId::at(position));
        let queue = &mut self.queues[pending.queue];
        queue.session.key = Some(session);
        queue.session.opening = false;
        self.confirm(at, pending.queue, true);
        if self.queues[pending.queue].session.barren > 0 {
            self.queues[pending.queue].last_error = LastError::Busy(SESSIONS.into());
        }
        self.queues.list(pending.queue);
        Ok(())
    }

    fn on_result(
        &mut self,
        now: Time,
        asked: RequestOrigin,
        key: CallKey,
        position: Position,
        result: &ResultRef<'_>,
        effects: &mut Vec<Effect>,
    ) -> FrameResult {
        // Over already: the deadline passed, or an earlier sending was answered.
        let Some(call) = self.calls.get_mut(key) else { return Ok(()) };
        if let ResultRef::Refused(refusal) = *result {
            call.in_flight = false;
            self.on_command_refused(now, asked, key, refusal, effects);
            return Ok(());
        }
        let output = match (call.request.command(), result) {
            (Some(command), result) => command.output(result),
            (None, result) => match (&call.request, *result) {
                (Request::Get { .. }, ResultRef::Get { value }) => {
                    Some(Output::One(OpResult::Get { value: value.map(crate::command::owned) }))
                }
                (Request::Look { .. }, ResultRef::Look { exists, length, remaining }) => {
                    Some(Output::One(OpResult::Look { exists, length, remaining }))
                }
                _ => None,
            },
        };
        let output = output.ok_or(ProtocolError("an answer to another question"))?;
        self.complete(key, Answer { output, position }, effects);
        Ok(())
    }

    /// One command of an executed pack was not executed.
    fn on_command_refused(
        &mut self,
        now: Time,
        asked: RequestOrigin,
        key: CallKey,
        refusal: CommandRefusal,
        effects: &mut Vec<Effect>,
    ) {
        match refusal {
            CommandRefusal::WrongPartition { version } => {
                if self.routes.map().is_none_or(|map| map.version < version) {
                    self.want_map();
                }
                self.reroute_elsewhere(now, asked, key, effects);
            }
            CommandRefusal::Full => {
                self.queues[asked.queue].last_error = LastError::Full(GROWTH.into());
                self.rest(now, asked, Duration::ZERO);
                self.reroute(now, key, effects);
            }
            CommandRefusal::Forgotten => {
                if let Some(call) = self.calls.get_mut(key) {
                    call.maybe = true;
                }
                self.end(now, key, Reason::TimedOut, Cause::Forgotten, effects);
            }
            CommandRefusal::TooLarge => {
                self.end(now, key, Reason::TooLarge(ANSWER.into()), Cause::Refused, effects);
            }
            CommandRefusal::Later => self.reroute(now, key, effects),
        }
    }

    /// Queues a call again; if the map still sends it where it was refused, a newer map must come first.
    fn reroute_elsewhere(&mut self, now: Time, asked: RequestOrigin, key: CallKey, effects: &mut Vec<Effect>) {
        let queue = self.calls.get(key).and_then(|call| self.routes.queue_of(call.request.routing_key()));
        if queue == Some(asked.queue) {
            self.want_map();
            self.rest(now, asked, Duration::ZERO);
        }
        self.reroute(now, key, effects);
    }

    fn on_refused(&mut self, now: Time, at: usize, frame: &Frame, effects: &mut Vec<Effect>) -> FrameResult {
        let refusal = Refusal::decode(&frame.body).map_err(|_| ProtocolError("a refusal that is none"))?;
        if frame.stream == 0 {
            self.hang_up(now, at, format!("ended the connection: {}", refusal.words()), effects);
            return Ok(());
        }
        let Some(pending) = self.peers[at].streams.take(frame.stream) else { return Ok(()) };
        if pending.abandoned {
            return Ok(());
        }
        if let RequestKind::Map = pending.kind {
            if refusal == Refusal::NotInitialized {
                self.map_search.last_error = LastError::NotInitialized;
            }
            return Ok(());
        }
        if let RequestKind::Query { number, .. } = pending.kind {
            self.drop_attempt(number, effects);
        }
        self.forget_affinity(at, &pending);
        let collects = pending.kind.collects();
        self.refused(now, at, pending, refusal.clone(), effects);
        collects.into_iter().for_each(|key| self.spoil_refused(now, key, &refusal, effects));
        Ok(())
    }

    fn refused(&mut self, now: Time, at: usize, pending: PendingRequest, refusal: Refusal, effects: &mut Vec<Effect>) {
        let (queue, asked) = (pending.queue, pending.asked());
        match refusal {
            Refusal::NotLeader { hint, .. } => {
                self.on_not_leader(now, at, &pending, hint);
                self.send_again(now, pending, effects);
            }
            Refusal::Deposed { hint, .. } => {
                self.on_not_leader(now, at, &pending, hint);
                self.unanswered(now, pending, effects);
            }
            Refusal::ShuttingDown => {
                self.peers[at].suspect_until = now + Duration::from_secs(1);
                self.on_not_leader(now, at, &pending, None);
                self.send_again(now, pending, effects);
            }
            Refusal::WrongPartition { entries, .. } => {
                // It was met before there was a map, and still knows none.
                let blank = self.peers[at].is_blank && entries.is_empty();
                self.want_map();
                if !self.patch(now, entries, effects) && pending.maps == self.routes.maps() {
                    // This node knows no more than we do, or what it told does not fit our map. Nor does it lead.
                    let node = self.peers[at].node;
                    let doubted = &mut self.queues[queue];
                    if doubted.replicas.epoch == pending.epoch && !pending.anywhere {
                        let place = doubted.replicas.nodes.iter().position(|&replica| Some(replica) == node);
                        doubted.replicas.rotation = place.unwrap_or(doubted.replicas.rotation) + 1;
                        doubted.replicas.follow(None);
                    }
                    self.rest(now, asked, Duration::ZERO);
                }
                self.send_again(now, pending, effects);
                if blank {
                    self.hang_up(now, at, "belongs to no cluster".into(), effects);
                }
            }
            Refusal::Busy { retry_after, text } => {
                self.queues[queue].last_error = LastError::Busy(text);
                self.rest(now, asked, retry_after);
                self.send_again(now, pending, effects);
            }
            Refusal::Full { text } => {
                self.queues[queue].last_error = LastError::Full(text);
                self.rest(now, asked, Duration::ZERO);
                self.send_again(now, pending, effects);
            }
            Refusal::NotInitialized => {
                self.queues[queue].last_error = LastError::NotInitialized;
                self.rest(now, asked, Duration::ZERO);
                self.send_again(now, pending, effects);
            }
            Refusal::SessionExpired => self.on_session_expired(now, pending, effects),
            Refusal::SnapshotExpired => self.give_up(now, pending, Reason::Interrupted { last: None }, effects),
            Refusal::TooLarge { text } => self.give_up(now, pending, Reason::TooLarge(text), effects),
            Refusal::Denied { .. } | Refusal::Unavailable { .. } if pending.has_several() => {
                self.send_apart(now, pending, effects);
            }
            Refusal::Denied { text } | Refusal::Unauthenticated { text } => {
                self.give_up(now, pending, Reason::Denied(text), effects);
            }
            Refusal::Aborted { unplaced, .. } if matches!(pending.kind, RequestKind::Query { .. }) => {
                if let RequestKind::Query { call, .. } = pending.kind
                    && let Some(call) = self.calls.get_mut(call)
                {
                    call.range.unplaced = unplaced;
                }
                self.unanswered(now, pending, effects)
            }
            Refusal::Aborted { .. } if pending.kind.is_server_collect() => {
                self.collects.missed();
                self.send_again(now, pending, effects);
            }
            Refusal::BadRequest { text } | Refusal::Unavailable { text } | Refusal::Aborted { text, .. } => {
                self.give_up(now, pending, Reason::Incompatible(text), effects);
            }
        }
    }

    /// The node does not lead. Follow the hint at once; without one ask the next replica, with a pause after each
    /// round.
    fn on_not_leader(&mut self, now: Time, at: usize, pending: &PendingRequest, hint: Option<NodeId>) {
        let node = self.peers[at].node;
        let draw = self.draws.next();
        let lost = hint.is_some_and(|hint| self.is_lost(hint));
        let queue = &mut self.queues[pending.queue];
        if pending.anywhere {
            // It could not get a position from the leader; that says nothing about who leads.
            let rest = pause(self.config.backoff, self.config.search_pause_max, 0, draw);
            queue.backoff.extend(now + rest);
            return;
        }
        if queue.replicas.epoch != pending.epoch {
            // Said of a leader that is no longer followed.
            return;
        }
        queue.last_error = LastError::NoLeader;
        queue.replicas.misses = queue.replicas.misses.saturating_add(1);
        // A leader that our map does not name, or nobody who knows one in a whole round: the replicas have moved.
        let mut moved = hint.is_some_and(|hint| !queue.replicas.nodes.contains(&hint));
        let hint = hint.filter(|&hint| Some(hint) != node && !lost && queue.replicas.nodes.contains(&hint));
        queue.replicas.follow(hint);
        if hint.is_none() {
            queue.replicas.rotation += 1;
        }
        // Hints may go round in a circle too.
        let round = queue.replicas.nodes.len().max(1) as u32 * if hint.is_some() { 2 } else { 1 };
        if queue.replicas.misses >= round {
            let rest = pause(self.config.backoff, self.config.search_pause_max, queue.replicas.misses / round, draw);
            queue.backoff.extend(now + rest);
            moved = true;
        }
        if moved {
            self.want_map();
        }
    }

    /// A sending was refused for sure: its calls are queued again as they were.
    fn send_again(&mut self, now: Time, pending: PendingRequest, effects: &mut Vec<Effect>) {
        for key in self.landed(&pending) {
            let Some(call) = self.calls.get_mut(key) else { continue };
            call.in_flight = false;
            if call.range.streaming {
                self.end(now, key, Reason::Interrupted { last: None }, Cause::NoAnswer, effects);
            } else {
                self.reroute(now, key, effects);
            }
        }
        self.queues.list(pending.queue);
    }

    /// One of the calls of a sending is denied, and so were the others: each is sent alone.
    fn send_apart(&mut self, now: Time, pending: PendingRequest, effects: &mut Vec<Effect>) {
        for &key in pending.calls() {
            if let Some(call) = self.calls.get_mut(key) {
                call.alone = true;
            }
        }
        self.send_again(now, pending, effects);
    }

    /// A sending was refused for sure, and would be again.
    fn give_up(&mut self, now: Time, pending: PendingRequest, reason: Reason, effects: &mut Vec<Effect>) {
        if let RequestKind::Open = pending.kind {
            // No session, so nothing of what waits can be done.
            for key in self.queues[pending.queue].waiting.fresh.drain(..).collect::<Vec<_>>() {
                self.end(now, key, reason.clone(), Cause::Refused, effects);
            }
        }
        for key in self.landed(&pending) {
            if let Some(call) = self.calls.get_mut(key) {
                call.in_flight = false;
            }
            self.end(now, key, reason.clone(), Cause::Refused, effects);
        }
        self.queues.list(pending.queue);
    }

    /// Books a sending as over and returns its calls.
    fn landed(&mut self, pending: &PendingRequest) -> Vec<CallKey> {
        let queue = &mut self.queues[pending.queue];
        match &pending.kind {
            RequestKind::Pack { .. } => {
                queue.packs_out -= 1;
                pending.calls().to_vec()
            }
            RequestKind::Read { .. } => {
                queue.reads_out -= 1;
                pending.calls().to_vec()
            }
            RequestKind::Range(range) => vec![range.call],
            RequestKind::Query { call, .. } => vec![*call],
            RequestKind::Open => {
                queue.session.opening = false;
                Vec::new()
            }
            // Spoiled, not asked again in this way.
            RequestKind::Collect { .. } | RequestKind::Validate { .. } | RequestKind::Map => Vec::new(),
        }
    }

    /// The session is gone. What may have been executed under it stays unknown; what certainly was not goes into a new
    /// session under a new number (hazards.md SE5: never in silence).
    fn on_session_expired(&mut self, now: Time, pending: PendingRequest, effects: &mut Vec<Effect>) {
        if let RequestKind::Pack { session, .. } = pending.kind {
            if self.queues[pending.queue].session.key == Some(session) {
                self.on_session_lost(now, pending.queue);
            }
            self.sessions.expire(session);
            for queue in self.queues.iter_mut().filter(|queue| queue.session.key == Some(session)) {
                queue.session.key = None;
            }
        }
        for key in self.landed(&pending) {
            let Some(call) = self.calls.get_mut(key) else { continue };
            call.in_flight = false;
            if call.maybe && !mutant!(client_session_reopened) {
                self.end(now, key, Reason::TimedOut, Cause::SessionExpired, effects);
                continue;
            }
            self.renumber(key);
            self.reroute(now, key, effects);
        }
        self.queues.list(pending.queue);
    }

    /// Whoever opens a session where there are as many as may be ends another one. That happens to anybody once; if it
    /// goes on before anything was answered, more clients want sessions than there are, and would end each other's for
    /// ever. Each waits for a while of its own, so that they get on one after the other.
    fn on_session_lost(&mut self, now: Time, queue: usize) {
        let draw = self.draws.next();
        let queue = &mut self.queues[queue];
        if queue.session.barren > 0 && !mutant!(client_reopens_at_once) {
            let rest = pause(self.config.backoff, self.config.backoff_max, queue.session.barren - 1, draw);
            queue.backoff.extend(now + rest);
        }
        queue.session.barren = queue.session.barren.saturating_add(1);
        queue.last_error = LastError::Busy(SESSIONS.into());
    }

    fn renumber(&mut self, key: CallKey) {
        let Some(call) = self.calls.get_mut(key) else { return };
        if let Some((session, number)) = call.number.take() {
            self.sessions.done(session, number);
        }
    }

    pub(super) fn on_cancel(&mut self, key: CallKey, effects: &mut Vec<Effect>) {
        self.cancel_range(key, effects);
        let Some(call) = self.calls.get(key) else { return };
        // A command that was sent goes on: whether anybody waits or not, its number must be answered.
        let was_sent = call.in_flight || call.maybe || call.number.is_some();
        if call.request.command().is_none() || !was_sent {
            self.forget(key);
        }
    }
}
