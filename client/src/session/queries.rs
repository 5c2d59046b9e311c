//! Queries across partitions: asking the coordinator, collecting the parts from the nodes that serve them, asking again
//! (protocol.md 4). An attempt that comes to nothing, for whatever reason, is repeated whole under a new number until
//! the call's deadline: queries only read. Once something was given out, it cannot be repeated.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};

use super::answers::{FrameResult, ProtocolError};
use super::calls::CallKey;
use super::peers::{PendingRequest, RequestKind, pause};
use super::query::{Query, Telling, Verdict, first_credit};
use super::{Effect, Session};
use crate::command::{Answer, Output, RangeCall, ReadMode};
use crate::error::{Cause, Reason};
use crate::time::Time;
use crate::wire::frame::encode_frame;
use crate::wire::{
    CompareRequest, Frame, Kind, NodeId, Part, PartitionId, QueryCompleted, QueryPlan, QueryRequest,
    encode_part_cancel, encode_part_credit,
};

/// The attempts that are under way, and the calls that wait for their next one.
#[derive(Debug, Default)]
pub(super) struct Queries {
    /// Number of the last attempt. None is used twice: what is late of an old attempt finds nobody.
    last: u32,
    under_way: BTreeMap<u32, Box<Attempt>>,
    /// When a call whose attempt came to nothing is asked again.
    resting: BTreeSet<(Time, CallKey)>,
    /// No attempt's `until` is before it.
    earliest: Option<Time>,
    /// Attempts some of whose nodes are not connected.
    unconnected: BTreeSet<u32>,
}

#[derive(Debug)]
struct Attempt {
    query: Query,
    /// When it is given up, unless something comes. Before `QueryCompleted` the coordinator's silence counts.
    until: Time,
}

impl Queries {
    fn next_number(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1);
            if !self.under_way.contains_key(&self.last) {
                return self.last;
            }
        }
    }

    /// When something is to be done.
    pub fn deadline(&self) -> Option<Time> {
        self.resting.first().map(|&(at, _)| at).into_iter().chain(self.earliest).min()
    }

    fn wait_until(&mut self, number: u32, until: Time) {
        if let Some(attempt) = self.under_way.get_mut(&number) {
            attempt.until = until;
            if until != Time::NEVER && self.earliest.is_none_or(|earliest| until < earliest) {
                self.earliest = Some(until);
            }
        }
    }

    /// The attempts whose time is over.
    fn overdue(&mut self, now: Time) -> Vec<u32> {
        if self.earliest.is_none_or(|earliest| earliest > now) {
            return Vec::new();
        }
        let waiting = self.under_way.values().map(|attempt| attempt.until);
        self.earliest = waiting.filter(|&until| until > now && until != Time::NEVER).min();
        let overdue = self.under_way.iter().filter(|(_, attempt)| attempt.until <= now);
        overdue.map(|(&number, _)| number).collect()
    }
}

impl Session {
    /// Asks the coordinator at `peer` on `stream`: a new attempt.
    pub(super) fn send_query(
        &mut self,
        now: Time,
        (queue, peer, stream): (usize, usize, u32),
        (key, range): (CallKey, RangeCall),
        effects: &mut Vec<Effect>,
    ) {
        let number = match self.calls.get(key).and_then(|call| call.range.attempt) {
            Some(old) if mutant!(parts_by_query) => old,
            _ => self.queries.next_number(),
        };
        let parts = self.routes.map().map_or(1, |map| map.cover(&range.low, range.high.as_deref()).len());
        let credit_max = self.config.range_credit;
        let credit = first_credit(credit_max, parts);
        let Some(call) = self.calls.get_mut(key) else { return };
        call.in_flight = true;
        call.range.attempt = Some(number);
        let (attempts, voided) = (call.attempts, call.range.voided);
        let compares = self.begin_comparison(key, peer);
        let RangeCall { low, high, scan, mode, .. } = range;
        let (low, high) = (Bytes::from(&low), high.as_ref().map(Bytes::from));
        let bounds = (low.clone(), high.clone(), scan.reverse);
        let query = Query::new(key, (peer, stream), bounds, (credit, credit_max), compares);
        let credit = query.credit_unasked();
        self.queries.under_way.insert(number, Box::new(Attempt { query, until: Time::NEVER }));
        let request = QueryRequest {
            query: number,
            low,
            high,
            scan,
            from_leaders: attempts > 0 || voided > 0,
            spread: mode == ReadMode::AnyReplica,
            credit,
        };
        let mut out = BytesMut::with_capacity(64);
        request.encode(&mut out, stream);
        self.note_pending(now, queue, peer, RequestKind::Query { call: key, number }, attempts, false);
        self.send(peer, out.freeze(), effects);
    }

    pub(super) fn on_plan(&mut self, now: Time, at: usize, frame: &Frame, effects: &mut Vec<Effect>) -> FrameResult {
        let plan = QueryPlan::decode(&frame.body).map_err(|_| ProtocolError("a query plan that is none"))?;
        let Some(number) = self.asked_on(at, frame.stream)? else { return Ok(()) };
        let queue = self.peers[at].streams.get(frame.stream).map(|pending| pending.queue);
        if let Some(queue) = queue {
            self.confirm(at, queue, true);
        }
        if self.routes.map().is_none_or(|map| map.version < plan.version) {
            self.want_map();
        }
        let Some(attempt) = self.queries.under_way.get_mut(&number) else { return Ok(()) };
        let verdict = attempt.query.on_plan(plan);
        if verdict == Verdict::Yes {
            self.connect_parts(now, number, effects);
            self.tell_parts(number, None, effects);
        }
        self.act_on(now, number, verdict, effects)
    }

    pub(super) fn on_completed(
        &mut self,
        now: Time,
        at: usize,
        frame: &Frame,
        effects: &mut Vec<Effect>,
    ) -> FrameResult {
        let QueryCompleted { ticket } =
            QueryCompleted::decode(&frame.body).map_err(|_| ProtocolError("a completion that is none"))?;
        let Some(number) = self.asked_on(at, frame.stream)? else { return Ok(()) };
        self.peers[at].streams.take(frame.stream);
        let Some(attempt) = self.queries.under_way.get_mut(&number) else { return Ok(()) };
        let verdict = attempt.query.on_completed(ticket);
        if verdict == Verdict::Yes {
            let until = now + self.part_patience(number);
            self.queries.wait_until(number, until);
        }
        self.act_on(now, number, verdict, effects)
    }

    /// The attempt that was asked for on this stream; none: nothing waits there.
    fn asked_on(&mut self, at: usize, stream: u32) -> Result<Option<u32>, ProtocolError> {
        match self.peers[at].streams.get(stream).map(|pending| &pending.kind) {
            None => Ok(None),
            Some(RequestKind::Query { number, .. }) => Ok(Some(*number)),
            Some(_) => Err(ProtocolError("an answer to another question")),
        }
    }

    /// A chunk of a part. Of an attempt that nobody waits for, the rest is called off.
    pub(super) fn on_query_part(
        &mut self,
        now: Time,
        at: usize,
        (number, part, frame): (u32, &Part<'_>, &Frame),
        effects: &mut Vec<Effect>,
    ) -> FrameResult {
        let Some(attempt) = self.queries.under_way.get_mut(&number) else {
            if part.end.is_none() {
                self.call_off(at, number, effects);
            }
            return Ok(());
        };
        let verdict = attempt.query.on_part(at, part, &frame.body);
        self.tell_parts(number, Some(part.position.partition), effects);
        self.act_on(now, number, verdict, effects)
    }

    /// Acts on what a message did to an attempt.
    fn act_on(&mut self, now: Time, number: u32, verdict: Verdict, effects: &mut Vec<Effect>) -> FrameResult {
        match verdict {
            Verdict::Yes => self.give_out(now, number, effects),
            Verdict::Stale => {}
            Verdict::Void => self.void(now, number, effects),
            Verdict::ProtocolError(what) => {
                self.void(now, number, effects);
                return Err(ProtocolError(what));
            }
        }
        Ok(())
    }

    /// Gives the reader what has come in key order, and grants what it has room for.
    fn give_out(&mut self, now: Time, number: u32, effects: &mut Vec<Effect>) {
        let Some(attempt) = self.queries.under_way.get_mut(&number) else { return };
        if !attempt.query.may_leave() {
            return;
        }
        let mut chunks = Vec::new();
        let ended = attempt.query.give(&mut chunks);
        let key = attempt.query.call;
        if let Some(call) = self.calls.get_mut(key) {
            let given = !chunks.is_empty();
            for (part, next) in chunks {
                if let Some(comparison) = &mut call.range.comparison {
                    comparison.on_given(part.len(), next);
                }
                effects.push(Effect::Part { token: call.token, part, as_of: None });
            }
            if given {
                // From here on the call's deadline watches over the range.
                call.range.streaming = true;
                self.queries.wait_until(number, Time::NEVER);
            }
        }
        if let Some(ended) = ended {
            self.drop_attempt(number, effects);
            let answer = Answer { output: Output::Loaded(ended.pairs), position: ended.position };
            return self.complete(key, answer, effects);
        }
        self.grant(now, number, effects);
    }

    /// Grants credit, and sets the deadline of a call that streams: it runs while a node owes something.
    fn grant(&mut self, now: Time, number: u32, effects: &mut Vec<Effect>) {
        let Some(attempt) = self.queries.under_way.get_mut(&number) else { return };
        let query = &mut attempt.query;
        let (grant, key) = (query.grant(), query.call);
        let owed = query.is_owed();
        if let Some(grant) = grant {
            let mut out = BytesMut::new();
            encode_part_credit(&mut out, number, grant.partition, grant.bytes);
            self.send(grant.peer, out.freeze(), effects);
        }
        let deadline = if owed { now + self.config.timeout } else { Time::NEVER };
        if let Some(call) = self.calls.get_mut(key).filter(|call| call.range.streaming) {
            call.deadline = deadline;
            self.calls.note_deadline(deadline);
        }
    }

    /// The reader of a query has consumed so many bytes.
    pub(super) fn on_query_credit(&mut self, now: Time, number: u32, bytes: u32, effects: &mut Vec<Effect>) {
        if let Some(attempt) = self.queries.under_way.get_mut(&number) {
            attempt.query.on_read(bytes);
            self.tell_parts(number, None, effects);
            self.grant(now, number, effects);
        }
    }

    /// Tells the servers of parts what the reader holds of them ([`Query::tell`]).
    fn tell_parts(&mut self, number: u32, of: Option<PartitionId>, effects: &mut Vec<Effect>) {
        let Some(attempt) = self.queries.under_way.get_mut(&number) else { return };
        let call = self.calls.get(attempt.query.call);
        let Some(comparison) = call.and_then(|call| call.range.comparison.as_ref()) else { return };
        let (tellings, all) = (attempt.query.tell(of, comparison), comparison.stretches.clone());
        for Telling { peer, partition, stretches: (stretches, last), credit } in tellings {
            let mut out = BytesMut::new();
            let told = (stretches.start as u64, &all[stretches], last);
            CompareRequest::encode(&mut out, number, Some(partition), told);
            if credit > 0 {
                encode_part_credit(&mut out, number, partition, credit);
            }
            self.send(peer, out.freeze(), effects);
        }
    }

    /// How long the nodes may take for the next chunk of an attempt of which nothing was given out.
    fn part_patience(&self, number: u32) -> std::time::Duration {
        let call = self.queries.under_way.get(&number).and_then(|attempt| self.calls.get(attempt.query.call));
        self.config.attempt_timeout * (1 << call.map_or(0, |call| call.attempts).min(3))
    }

    /// Connects to the nodes of a plan. A node that cannot be reached now makes the attempt void: the coordinator draws
    /// others for the next one.
    fn connect_parts(&mut self, now: Time, number: u32, effects: &mut Vec<Effect>) {
        let Some(attempt) = self.queries.under_way.get(&number) else { return };
        let unknown = attempt.query.missing().filter_map(|(peer, node)| if peer.is_none() { node } else { None });
        let is_ready = |node: NodeId| self.peers.iter().any(|peer| peer.node == Some(node) && peer.is_ready());
        let nodes: BTreeSet<NodeId> = unknown.filter(|&node| !is_ready(node)).collect();
        let mut all = true;
        for node in nodes {
            let Some(at) = self.peer_of(node) else {
                // A node that joined since: its address comes with the next map.
                self.want_map();
                all = false;
                continue;
            };
            if !self.peers[at].is_usable(now) {
                return self.void(now, number, effects);
            }
            self.connect(now, at, effects);
        }
        if all {
            self.queries.unconnected.remove(&number);
        } else {
            self.queries.unconnected.insert(number);
        }
    }

    /// What waited for its time, or for the address of a node.
    pub(super) fn retry_queries(&mut self, now: Time, effects: &mut Vec<Effect>) {
        while let Some(&(at, key)) = self.queries.resting.first()
            && at <= now
        {
            self.queries.resting.pop_first();
            self.reroute(now, key, effects);
        }
        for number in self.queries.overdue(now) {
            if let Some(attempt) = self.queries.under_way.get(&number) {
                self.note_silence(attempt.query.call);
            }
            self.ask_the_silent(now, number, effects);
            self.void(now, number, effects);
        }
        for number in self.queries.unconnected.iter().copied().collect::<Vec<_>>() {
            self.connect_parts(now, number, effects);
        }
    }

    /// Nodes that owe parts and were not heard of are asked something small: a dead connection is then found out.
    fn ask_the_silent(&mut self, now: Time, number: u32, effects: &mut Vec<Effect>) {
        let patience = self.part_patience(number);
        let Some(attempt) = self.queries.under_way.get(&number) else { return };
        let missing: Vec<_> = attempt.query.missing().collect();
        let peers: BTreeSet<usize> =
            missing.into_iter().filter_map(|(peer, node)| peer.or_else(|| self.peer_of(node?))).collect();
        for at in peers {
            if self.peers[at].is_ready() && now - self.peers[at].heard >= patience {
                self.ask_for_map(now, at, effects);
            }
        }
    }

    /// The connection is gone: attempts that wait for parts from it come to nothing.
    pub(super) fn parts_lost(&mut self, now: Time, at: usize, effects: &mut Vec<Effect>) {
        let node = self.peers[at].node;
        let waits = |attempt: &Attempt| {
            attempt.query.missing().any(|(peer, of)| match peer {
                Some(peer) => peer == at,
                None => of.is_some() && of == node,
            })
        };
        let under_way = self.queries.under_way.iter().filter(|(_, attempt)| waits(attempt));
        for number in under_way.map(|(&number, _)| number).collect::<Vec<_>>() {
            self.void(now, number, effects);
        }
    }

    /// An attempt comes to nothing. What was given out cannot be taken back; else it is asked again.
    fn void(&mut self, now: Time, number: u32, effects: &mut Vec<Effect>) {
        if let Some(key) = self.drop_attempt(number, effects) {
            self.query_again(now, key, effects);
        }
    }

    /// The call of an attempt that came to nothing is asked again after a pause, of its own: other queries are not
    /// delayed by a partition that does not answer.
    pub(super) fn query_again(&mut self, now: Time, key: CallKey, effects: &mut Vec<Effect>) {
        let draw = self.draws.next();
        let Some(call) = self.calls.get_mut(key) else { return };
        if call.range.streaming {
            return self.end(now, key, Reason::Interrupted { last: None }, Cause::NoAnswer, effects);
        }
        call.in_flight = false;
        if mutant!(refusals_make_patient) {
            call.attempts = call.attempts.saturating_add(1);
        }
        // An attempt costs the coordinator little, and its pause adds to every gap that a plan makes.
        let rest = pause(self.config.backoff, self.config.search_pause_max, u32::from(call.range.voided), draw);
        call.range.voided = call.range.voided.saturating_add(1);
        self.queries.resting.insert((now + rest, key));
    }

    /// An attempt waited in vain: the next one is waited for longer. One that was refused says nothing of how long an
    /// answer takes.
    pub(super) fn note_silence(&mut self, key: CallKey) {
        if let Some(call) = self.calls.get_mut(key) {
            call.attempts = call.attempts.saturating_add(1);
        }
    }

    /// Forgets an attempt and calls off what may still come of it. Returns its call.
    pub(super) fn drop_attempt(&mut self, number: u32, effects: &mut Vec<Effect>) -> Option<CallKey> {
        let query = self.queries.under_way.remove(&number)?.query;
        self.queries.unconnected.remove(&number);
        let (at, stream) = query.asked;
        let is_it = |pending: &mut PendingRequest| pending.kind.is_query(number);
        if self.peers[at].streams.get(stream).is_some_and(is_it) {
            self.peers[at].streams.take(stream);
            let mut out = BytesMut::new();
            encode_frame(&mut out, Kind::Cancel, stream, &[]);
            self.send(at, out.freeze(), effects);
        }
        let missing: Vec<_> = query.missing().collect();
        let peers: BTreeSet<usize> =
            missing.into_iter().filter_map(|(peer, node)| peer.or_else(|| self.peer_of(node?))).collect();
        for at in peers {
            self.call_off(at, number, effects);
        }
        Some(query.call)
    }

    fn call_off(&mut self, at: usize, number: u32, effects: &mut Vec<Effect>) {
        if self.peers[at].is_ready() {
            let mut out = BytesMut::new();
            encode_part_cancel(&mut out, number);
            self.send(at, out.freeze(), effects);
        }
    }

    /// The queue of the directory, whose leader coordinates.
    pub(super) fn coordinator(&self) -> Option<usize> {
        self.queues.alive(PartitionId::DIRECTORY)
    }
}
