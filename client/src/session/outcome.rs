//! How calls end, and what their callers are told. The rule (hazards.md 1): a command failed for sure only if no
//! sending of it can have been executed; else its outcome is unknown.

use super::calls::{Call, CallKey, Request};
use super::peers::PeerState;
use super::queue::LastError;
use super::{Effect, Session};
use crate::command::{Answer, Output};
use crate::error::{Cause, Error, Failure, NodeError, Place, Reason, Unknown};
use crate::resume::ResumeToken;
use crate::time::Time;

impl Session {
    /// The call is answered.
    pub(super) fn complete(&mut self, key: CallKey, answer: Answer<Output>, effects: &mut Vec<Effect>) {
        if let Some(call) = self.forget(key) {
            effects.push(Effect::Complete { token: call.token, bytes: call.bytes(), result: Ok(answer) });
        }
    }

    /// The call cannot go on: failed if that is sure, else unknown.
    pub(super) fn end(&mut self, now: Time, key: CallKey, reason: Reason, cause: Cause, effects: &mut Vec<Effect>) {
        let Some(call) = self.calls.remove(key) else { return };
        let place = self.place(&call);
        let may_have_run = call.request.command().is_some() && (call.maybe || call.in_flight);
        if !may_have_run || mutant!(client_unsure_is_sure) {
            if let Some((session, number)) = call.number {
                self.sessions.done(session, number);
            }
            let failure = Box::new(Failure { reason, place });
            effects.push(Effect::Complete {
                token: call.token,
                bytes: call.bytes(),
                result: Err(Error::Failed(failure)),
            });
            return;
        }
        let mut resume = None;
        if let (Some((session, number)), Some(command)) = (call.number, call.request.command()) {
            let id = self.sessions.id(session);
            if cause == Cause::NoAnswer {
                resume = Some(ResumeToken { session: id, number, checksum: command.checksum() });
                self.sessions.keep(session, number, now + self.config.resume_keep);
            } else {
                self.sessions.done(session, number);
            }
        }
        let unknown = Box::new(Unknown { cause, resume, place });
        effects.push(Effect::Complete { token: call.token, bytes: call.bytes(), result: Err(Error::Unknown(unknown)) });
    }

    /// The deadline passed.
    pub(super) fn end_overdue(&mut self, now: Time, key: CallKey, effects: &mut Vec<Effect>) {
        let Some(call) = self.calls.get(key) else { return };
        if call.range.streaming {
            self.cancel_range(key, effects);
            return self.end(now, key, Reason::TimedOut, Cause::NoAnswer, effects);
        }
        let queue = self.blamed(call);
        let last_error = queue.map_or(&self.map_search.last_error, |queue| &self.queues[queue].last_error);
        if let (Request::Keys { .. }, LastError::None, 1..) = (&call.request, last_error, call.range.voided) {
            self.cancel_range(key, effects);
            let reason = Reason::Busy("the keys change too often to be read as of one moment".into());
            return self.end(now, key, reason, Cause::NoAnswer, effects);
        }
        let last_error = match last_error.clone() {
            // Nothing was heard of a leader, and nobody can be asked: say that.
            LastError::None | LastError::NoLeader
                if !call.in_flight && self.peers.iter().all(|peer| !peer.is_ready()) =>
            {
                LastError::Unreachable
            }
            last_error => last_error,
        };
        self.cancel_range(key, effects);
        self.end(now, key, last_error.reason(), Cause::NoAnswer, effects);
    }

    /// The client closes.
    pub(super) fn end_closed(&mut self, key: CallKey, effects: &mut Vec<Effect>) {
        self.end(Time::default(), key, Reason::Closed, Cause::Closed, effects);
    }

    /// The queue that a call stands in at its end. Of a range across partitions the coordinator's, unless a partition
    /// did not order it in time, or the coordinator is well and a partition is not.
    fn blamed(&self, call: &Call) -> Option<usize> {
        let home = self.home(&call.request);
        if let Request::Keys { keys, .. } = &call.request {
            let mut queues = keys.iter().filter_map(|key| self.routes.queue_of(key));
            return queues.find(|&queue| self.queues[queue].last_error != LastError::None).or(home);
        }
        let Request::Range(range) = &call.request else { return home };
        if home.is_none() || home != self.coordinator() {
            return home;
        }
        if let Some(partition) = call.range.unplaced {
            return self.queues.alive(partition).or(home);
        }
        let well = |queue: usize| self.queues[queue].last_error == LastError::None;
        if home.is_some_and(|queue| !well(queue)) {
            return home;
        }
        let map = self.routes.map()?;
        let (first, count) = (map.position(&range.low)?, map.cover(&range.low, range.high.as_deref()).len());
        self.routes.queues()[first..first + count].iter().copied().find(|&queue| !well(queue)).or(home)
    }

    /// Where a call stood when it ended.
    fn place(&self, call: &Call) -> Place {
        let map = self.routes.map();
        let entry = map.and_then(|map| match self.blamed(call) {
            Some(queue) => map.group(self.queues[queue].partition),
            None => map.route(call.request.routing_key()),
        });
        let Some(entry) = entry else {
            return Place { nodes: self.peers.iter().map(error_of).collect(), ..Place::default() };
        };
        let nodes = entry.replicas.iter().map(|replica| {
            let peer = self.peers.iter().find(|peer| peer.node == Some(replica.node));
            let address = self.address_of(replica.node).unwrap_or_default();
            peer.map_or(NodeError { node: Some(replica.node), address, error: "not tried".into() }, error_of)
        });
        let nodes = nodes.collect();
        Place { partition: Some(entry.partition), low: entry.low.clone(), high: entry.high.clone(), nodes }
    }
}

fn error_of(peer: &super::peers::Peer) -> NodeError {
    let error = match peer.state {
        PeerState::Idle => "not tried".into(),
        PeerState::Opening { .. } if peer.last_error.is_empty() => "no answer to the connection attempt".into(),
        PeerState::Ready => String::new(),
        PeerState::Opening { .. } | PeerState::Down { .. } => peer.last_error.clone(),
    };
    NodeError { node: peer.node, address: peer.address.clone(), error }
}
