//! A range that arrives from one node: its chunks, its reader's credit, what the reader holds of it, its end before its
//! time.

use bytes::BytesMut;

use super::answers::{FrameResult, ProtocolError};
use super::calls::{Call, CallKey, Request};
use super::comparison::{Comparison, Told};
use super::peers::{PendingRequest, RequestKind};
use super::{Effect, Session};
use crate::command::{Answer, Output};
use crate::time::Time;
use crate::wire::frame::encode_frame;
use crate::wire::{CompareRequest, FEATURE_COMPARE, Frame, Kind, Part, PartEnd, RangeRequest};

impl Session {
    /// A range is asked for at this peer: whether it will be told what the reader holds, if that holds something.
    pub(super) fn begin_comparison(&mut self, key: CallKey, peer: usize) -> bool {
        let Some(call) = self.calls.get_mut(key) else { return false };
        let Request::Range(range) = &call.request else { return false };
        let compares = self.peers[peer].features & FEATURE_COMPARE != 0;
        call.range.comparison = range.stretches.clone().filter(|_| compares).map(Comparison::new);
        call.range.comparison.is_some()
    }

    pub(super) fn on_part(&mut self, now: Time, at: usize, frame: &Frame, effects: &mut Vec<Effect>) -> FrameResult {
        let part = Part::decode(&frame.body).map_err(|_| ProtocolError("a part that is none"))?;
        if part.ticket.is_some() {
            return self.on_query_part(now, at, (frame.stream, &part, frame), effects);
        }
        let Some(pending) = self.peers[at].streams.get(frame.stream) else { return Ok(()) };
        let queue = pending.queue;
        if let RequestKind::Collect { call, place } = pending.kind {
            return self.on_collected(now, at, (call, place as usize), (&part, frame), effects);
        }
        let RequestKind::Range(range) = &mut pending.kind else {
            return Err(ProtocolError("an answer to another question"));
        };
        let (key, server_collects, begins) = (range.call, range.server_collects, range.next == 0);
        let counts =
            matches!(self.calls.get(key), Some(Call { request: Request::Range(call), .. }) if call.scan.count_only);
        if !range.take(&part, part.is_empty() && (counts || part.end.is_some()), frame.body.len()) {
            return Err(ProtocolError("a part out of sequence"));
        }
        let next = range.told.as_mut().and_then(|told| told.on_part(&part));
        let (owes, pairs) = (range.owes(), range.pairs);
        if server_collects && begins {
            self.collects.held();
        }
        // From here on the call's deadline watches over the range, not the request's.
        pending.until = Time::NEVER;
        let timeout = self.config.timeout;
        let (position, end) = (part.position, part.end);
        let Some(call) = self.calls.get_mut(key) else { return Ok(()) };
        call.range.streaming = true;
        let deadline = if owes { now + timeout } else { Time::NEVER };
        call.deadline = deadline;
        if let Some(comparison) = &mut call.range.comparison {
            comparison.on_given(frame.body.len(), next);
        }
        effects.push(Effect::Part { token: call.token, part: frame.body.clone(), as_of: None });
        self.calls.note_deadline(deadline);
        if !server_collects {
            self.confirm(at, queue, false);
        }
        if let Some(PartEnd::Complete | PartEnd::Limited) = end {
            self.peers[at].streams.take(frame.stream);
            self.complete(key, Answer { output: Output::Loaded(pairs), position }, effects);
        } else if begins {
            self.begin_telling(now, key, effects);
        }
        Ok(())
    }

    pub(super) fn on_credit(&mut self, now: Time, key: CallKey, bytes: u32, effects: &mut Vec<Effect>) {
        if let Some(comparison) = self.calls.get_mut(key).and_then(|call| call.range.comparison.as_mut()) {
            comparison.on_consumed(bytes);
        }
        if let Some(number) = self.calls.get(key).and_then(|call| call.range.attempt) {
            return self.on_query_credit(now, number, bytes, effects);
        }
        self.tell(key, effects);
        self.add_range_credit(now, key, bytes, effects);
    }

    /// A range that is compared has announced itself, without credit: its server is told what comes first, then it may
    /// go on.
    fn begin_telling(&mut self, now: Time, key: CallKey, effects: &mut Vec<Effect>) {
        let Some(Call { request: Request::Range(range), range: state, .. }) = self.calls.get(key) else { return };
        let (Some(comparison), Some((at, stream))) = (&state.comparison, state.stream) else { return };
        let told = Told::new(&comparison.stretches, &range.low, range.high.as_deref());
        if let Some(RequestKind::Range(progress)) = self.range_of(key, at as usize, stream) {
            progress.told = Some(told);
            self.tell(key, effects);
            self.add_range_credit(now, key, self.config.range_credit, effects);
        }
    }

    /// Tells the server of a range what its reader holds next, as far as that has come.
    fn tell(&mut self, key: CallKey, effects: &mut Vec<Effect>) {
        let Some(state) = self.calls.get(key).map(|call| &call.range) else { return };
        let (Some(comparison), Some((at, stream))) = (&state.comparison, state.stream) else { return };
        let (stretches, horizon) = (comparison.stretches.clone(), comparison.horizon());
        let Some(RequestKind::Range(progress)) = self.range_of(key, at as usize, stream) else { return };
        if let Some((more, last)) = progress.told.as_mut().and_then(|told| told.more(horizon)) {
            let mut out = BytesMut::new();
            CompareRequest::encode(&mut out, stream, None, (more.start as u64, &stretches[more], last));
            self.send(at as usize, out.freeze(), effects);
        }
    }

    /// The range of a call, if it is under way there.
    fn range_of(&mut self, key: CallKey, at: usize, stream: u32) -> Option<&mut RequestKind> {
        let kind = self.peers[at].streams.get(stream).map(|pending| &mut pending.kind)?;
        matches!(kind, RequestKind::Range(range) if range.call == key).then_some(kind)
    }

    fn add_range_credit(&mut self, now: Time, key: CallKey, bytes: u32, effects: &mut Vec<Effect>) {
        let Some((at, stream)) = self.calls.get(key).and_then(|call| call.range.stream) else { return };
        let Some(RequestKind::Range(range)) = self.range_of(key, at as usize, stream) else { return };
        range.credit += i64::from(bytes);
        let deadline = if range.owes() { now + self.config.timeout } else { Time::NEVER };
        if let Some(call) = self.calls.get_mut(key).filter(|call| call.range.streaming) {
            call.deadline = deadline;
            self.calls.note_deadline(deadline);
        }
        let mut out = BytesMut::new();
        RangeRequest::encode_credit(&mut out, stream, bytes);
        self.send(at as usize, out.freeze(), effects);
    }

    /// Tells the server that no more of a range is wanted, if one is under way.
    pub(super) fn cancel_range(&mut self, key: CallKey, effects: &mut Vec<Effect>) {
        if let Some(number) = self.calls.get(key).and_then(|call| call.range.attempt) {
            self.drop_attempt(number, effects);
        }
        self.drop_collect(key, effects);
        let Some((at, stream)) = self.calls.get(key).and_then(|call| call.range.stream) else { return };
        let at = at as usize;
        let is_it =
            |pending: &mut PendingRequest| matches!(&pending.kind, RequestKind::Range(range) if range.call == key);
        if self.peers[at].streams.get(stream).is_some_and(is_it) {
            self.peers[at].streams.take(stream);
            let mut out = BytesMut::new();
            encode_frame(&mut out, Kind::Cancel, stream, &[]);
            self.send(at, out.freeze(), effects);
        }
    }
}
