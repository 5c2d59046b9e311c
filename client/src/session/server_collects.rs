//! Ranges across partitions that one node reads, because it has a replica of each of them: one request, one answer,
//! streamed like a range inside one partition. Where no such node can be asked now, the client reads and validates by
//! itself (`collects`); where something of the range changed meanwhile, the coordinator is asked for a ticket
//! (`queries`).

use std::collections::VecDeque;

use super::calls::CallKey;
use super::collects::CollectStart;
use super::peers::{RangeProgress, RequestKind};
use super::queue::PartitionQueue;
use super::{Effect, Session};
use crate::command::{RangeCall, ReadMode};
use crate::time::Time;
use crate::wire::{COLLECT_PARTS_MAX, CollectRequest, FEATURE_COLLECT};

impl Session {
    /// Asks a node for all of a range, if there is one that has all of it.
    pub(super) fn begin_server_collect(
        &mut self,
        now: Time,
        key: CallKey,
        range: &RangeCall,
        effects: &mut Vec<Effect>,
    ) -> CollectStart {
        let Some(map) = self.routes.map().cloned() else { return CollectStart::No };
        let Some(first) = map.position(&range.low) else { return CollectStart::No };
        let entries = map.cover(&range.low, range.high.as_deref());
        if !(2..=COLLECT_PARTS_MAX).contains(&entries.len()) {
            return CollectStart::No;
        }
        let queues = first..first + entries.len();
        let peer = match self.choose_collector(now, queues, range.mode, effects) {
            Ok(peer) => peer,
            Err(start) => return start,
        };
        if !self.collects.may_try() {
            return CollectStart::No;
        }
        let Some(stream) = self.peers[peer].streams.next() else { return CollectStart::No };
        let compares = self.begin_comparison(key, peer);
        let low = |low: &[u8]| if low > &range.low[..] { low.into() } else { range.low.clone() };
        let last = entries.last().and_then(|entry| entry.high.as_deref());
        let high = match (last, &range.high) {
            (Some(end), high) if high.as_ref().is_none_or(|high| end < &high[..]) => Some(end.into()),
            (_, high) => high.clone(),
        };
        let request = CollectRequest {
            parts: entries.iter().map(|entry| (entry.partition, low(&entry.low))).collect(),
            high,
            scan: range.scan,
            credit: if compares { 0 } else { self.config.range_credit },
        };
        request.encode(self.peers[peer].asks(), stream);
        let mut partitions: VecDeque<_> = request.parts.iter().map(|(partition, _)| *partition).collect();
        if range.scan.reverse {
            partitions.make_contiguous().reverse();
        }
        let kind = RangeProgress::over(key, partitions, request.credit);
        self.note_pending(now, self.routes.queues()[first], peer, RequestKind::Range(kind), 0, true);
        if let Some(call) = self.calls.get_mut(key) {
            call.in_flight = true;
            call.range.stream = Some((peer as u32, stream));
        }
        CollectStart::Yes
    }

    /// A peer that has a replica of each of these partitions and can be asked now. For who reads from leaders, the one
    /// that leads the partition at an end of the range, the same end always: a node has fewer kinds of questions then,
    /// more of them in a message, and least waits for another node. Half of all sessions take the first partition, half
    /// the last, so that a range that everybody wants is read by two nodes; where the one has enough of this session's,
    /// another leader of a partition of the range takes the next, and else whoever has all of it.
    fn choose_collector(
        &mut self,
        now: Time,
        routes: std::ops::Range<usize>,
        mode: ReadMode,
        effects: &mut Vec<Effect>,
    ) -> Result<usize, CollectStart> {
        if self.routes.queues().get(routes.clone()).is_none_or(<[usize]>::is_empty) {
            return Err(CollectStart::No);
        }
        let rests = |&queue: &usize| self.queues[queue].backoff.holds(now);
        if self.routes.queues()[routes.clone()].iter().any(rests) {
            return Err(CollectStart::No);
        }
        let (crowd, first) = (self.config.range_window.max(1), self.routes.queues()[routes.start]);
        let end = if self.collects.at_last { self.routes.queues()[routes.end - 1] } else { first };
        let (mut drawn, mut crowded) = ([(0, None); 3], false);
        for place in 0..self.queues[first].replicas.nodes.len() {
            let node = self.queues[first].replicas.nodes[place];
            let queues = || self.routes.queues()[routes.clone()].iter().map(|&queue| &self.queues[queue]);
            if !queues().all(|queue| queue.replicas.nodes.contains(&node)) {
                continue;
            }
            let leads = |queue: &PartitionQueue| mode == ReadMode::AnyReplica || queue.replicas.leader == Some(node);
            let kind = if leads(&self.queues[end]) { 0 } else { 2 - usize::from(queues().any(leads)) };
            let known = self.peers.iter().position(|peer| peer.node == Some(node) && peer.is_open());
            let Some(at) = known.or_else(|| self.peer_of(node)) else { continue };
            if kind < 2 {
                // If it is not connected now, then for the next range.
                self.connect(now, at, effects);
            }
            let peer = &self.peers[at];
            if !peer.is_ready() || peer.features & FEATURE_COLLECT == 0 || peer.suspect_until > now {
                continue;
            }
            if peer.streams.ranges() >= crowd {
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
        drawn.into_iter().find_map(|(_, drawn)| drawn).ok_or(if crowded {
            CollectStart::Later
        } else {
            CollectStart::No
        })
    }
}
