//! Ranges across partitions that one node reads, because it has a replica of each of them (its `gather` has the proof
//! that they are one moment): one request, one answer, streamed like a range inside one partition. Where no such node
//! can be asked now, the client reads and validates by itself (`collects`); where something of the range changed
//! meanwhile, the coordinator is asked for a ticket (`queries`).

use std::collections::VecDeque;

use super::calls::CallKey;
use super::collects::Begun;
use super::lane::Lane;
use super::peers::{Flight, RangeFlight};
use super::{Effect, Session};
use crate::command::{RangeCall, ReadMode};
use crate::time::Time;
use crate::wire::{FEATURE_GATHER, GATHER_PARTS_MAX, GatherRequest};

impl Session {
    /// Asks a node for all of a range, if there is one that has all of it.
    pub(super) fn begin_gather(
        &mut self,
        now: Time,
        key: CallKey,
        range: &RangeCall,
        effects: &mut Vec<Effect>,
    ) -> Begun {
        let Some(map) = self.map.clone() else { return Begun::No };
        let Some(first) = map.position(&range.low) else { return Begun::No };
        let entries = map.cover(&range.low, range.high.as_deref());
        if !(2..=GATHER_PARTS_MAX).contains(&entries.len()) {
            return Begun::No;
        }
        let lanes = first..first + entries.len();
        let peer = match self.gatherer(now, lanes, range.mode, effects) {
            Ok(peer) => peer,
            Err(begun) => return begun,
        };
        if !self.collects.may_try() {
            return Begun::No;
        }
        let Some(stream) = self.peers[peer].next_stream() else { return Begun::No };
        let low = |low: &[u8]| if low > &range.low[..] { low.into() } else { range.low.clone() };
        let last = entries.last().and_then(|entry| entry.high.as_deref());
        let high = match (last, &range.high) {
            (Some(end), high) if high.as_ref().is_none_or(|high| end < &high[..]) => Some(end.into()),
            (_, high) => high.clone(),
        };
        let request = GatherRequest {
            parts: entries.iter().map(|entry| (entry.partition, low(&entry.low))).collect(),
            high,
            reverse: range.reverse,
            keys_only: range.keys_only,
            count_only: range.count_only,
            pairs_max: range.pairs_max,
            bytes_max: range.bytes_max,
            credit: self.config.range_credit,
        };
        request.encode(self.peers[peer].asks(), stream);
        let mut partitions: VecDeque<_> = request.parts.iter().map(|(partition, _)| *partition).collect();
        if range.reverse {
            partitions.make_contiguous().reverse();
        }
        let flight = RangeFlight::over(key, partitions, request.credit);
        self.sent(now, self.routes[first], peer, Flight::Range(flight), 0, true);
        if let Some(call) = self.calls.get_mut(key) {
            call.in_flight = true;
            call.stream = Some((peer as u32, stream));
        }
        Begun::Yes
    }

    /// A peer that has a replica of each of these partitions and can be asked now. For who reads from leaders, the one
    /// that leads the partition at an end of the range, the same end always: a node has fewer kinds of questions then,
    /// more of them in a message, and least waits for another node. Half of all sessions take the first partition, half
    /// the last, so that a range that everybody wants is read by two nodes; where the one has enough of this session's,
    /// another leader of a partition of the range takes the next, and else whoever has all of it.
    fn gatherer(
        &mut self,
        now: Time,
        routes: std::ops::Range<usize>,
        mode: ReadMode,
        effects: &mut Vec<Effect>,
    ) -> Result<usize, Begun> {
        if self.routes.get(routes.clone()).is_none_or(<[usize]>::is_empty) {
            return Err(Begun::No);
        }
        let rests = |&lane: &usize| self.lanes[lane].not_before > now;
        if self.routes[routes.clone()].iter().any(rests) {
            return Err(Begun::No);
        }
        let (crowd, first) = (self.config.range_window.max(1), self.routes[routes.start]);
        let end = if self.gathers_at_last { self.routes[routes.end - 1] } else { first };
        let (mut drawn, mut crowded) = ([(0, None); 3], false);
        for place in 0..self.lanes[first].replicas.len() {
            let node = self.lanes[first].replicas[place];
            let lanes = || self.routes[routes.clone()].iter().map(|&lane| &self.lanes[lane]);
            if !lanes().all(|lane| lane.replicas.contains(&node)) {
                continue;
            }
            let leads = |lane: &Lane| mode == ReadMode::AnyReplica || lane.leader == Some(node);
            let kind = if leads(&self.lanes[end]) { 0 } else { 2 - usize::from(lanes().any(leads)) };
            let known = self.peers.iter().position(|peer| peer.node == Some(node) && peer.is_open());
            let Some(at) = known.or_else(|| self.peer_of(node)) else { continue };
            if kind < 2 {
                // If it is not connected now, then for the next range.
                self.connect(now, at, effects);
            }
            let peer = &self.peers[at];
            if !peer.is_ready() || peer.features & FEATURE_GATHER == 0 || peer.suspect_until > now {
                continue;
            }
            if peer.ranges() >= crowd {
                crowded = true;
                continue;
            }
            // Each of a kind is as likely as the others.
            let (count, drawn) = &mut drawn[kind];
            *count += 1;
            if *count == 1 || self.draws.next().is_multiple_of(*count) {
                *drawn = Some(at);
            }
        }
        drawn.into_iter().find_map(|(_, drawn)| drawn).ok_or(if crowded { Begun::Later } else { Begun::No })
    }
}
