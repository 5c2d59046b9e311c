//! The map: first contact, refreshing it, and moving what waits when it changes.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;

use super::calls::{CallKey, Request};
use super::peers::{PendingRequest, RequestKind};
use super::queue::{LastError, PartitionQueue};
use super::{Effect, Session};
use crate::command::{Answer, Command, Operation, Output, ReadMode};
use crate::error::{Cause, Error, Reason};
use crate::map::{Entry, PartitionMap, Role};
use crate::time::Time;
use crate::wire::control::encode_control;
use crate::wire::{Kind, MapGet, MapReply, MapVersion, NodeId, PartitionId, Position};

/// Without a map, another endpoint is asked after this long, beside those that have not answered yet.
const HEDGE: Duration = Duration::from_millis(100);
/// Least time between two questions for the map of a cluster that works.
const REFRESH: Duration = Duration::from_millis(20);

/// The search for a (newer) map.
#[derive(Clone, Debug, Default)]
pub(super) struct MapSearch {
    /// A newer map is needed.
    wanted: bool,
    /// Who is asked next.
    rotation: usize,
    not_before: Time,
    pub last_error: LastError,
}

impl MapSearch {
    pub fn deadline(&self, no_map: bool) -> Option<Time> {
        (self.wanted || no_map).then_some(self.not_before)
    }

    /// An answer did not come: ask on.
    pub fn again(&mut self, now: Time) {
        self.not_before = self.not_before.min(now + Duration::from_millis(5));
    }
}

/// The map, and the queue of each of its partitions.
#[derive(Clone, Debug, Default)]
pub(super) struct RoutingTable {
    map: Option<Arc<PartitionMap>>,
    /// Maps taken so far.
    maps: u64,
    /// The queue of each entry of the map.
    queues: Vec<usize>,
}

impl RoutingTable {
    /// The present map, once there is one.
    pub fn map(&self) -> Option<&Arc<PartitionMap>> {
        self.map.as_ref()
    }

    /// Maps taken so far.
    pub fn maps(&self) -> u64 {
        self.maps
    }

    /// The queue of each entry of the map.
    pub fn queues(&self) -> &[usize] {
        &self.queues
    }

    /// The entry and the queue of a key.
    fn find(&self, key: &[u8]) -> Option<(&Entry, usize)> {
        let map = self.map()?;
        let at = map.position(key)?;
        Some((&map.partitions[at], self.queues[at]))
    }

    /// The queue of a key.
    pub fn queue_of(&self, key: &[u8]) -> Option<usize> {
        self.find(key).map(|(_, queue)| queue)
    }

    /// Routes by another map from now on.
    fn adopt(&mut self, map: PartitionMap, queues: Vec<usize>) {
        (self.map, self.queues) = (Some(Arc::new(map)), queues);
        self.maps += 1;
    }
}

impl Session {
    /// Queues a new call where it belongs, or says why there is no such place.
    pub(super) fn route(&mut self, key: CallKey) -> Result<(), Error> {
        let Some(call) = self.calls.get(key) else { return Ok(()) };
        let found = if call.request == Request::Map { None } else { self.routes.find(call.request.routing_key()) };
        let Some((entry, at)) = found else {
            self.unrouted.push(key);
            return Ok(());
        };
        let at = match (is_within(entry, &call.request), &call.request) {
            (_, Request::Keys { .. }) => {
                self.collects.waiting.push_back(key);
                return Ok(());
            }
            (true, _) => at,
            (false, Request::Range(range))
                if range.mode != ReadMode::Stale && !call.range.collect_tried && self.config.optimistic_scans =>
            {
                self.collects.waiting.push_back(key);
                return Ok(());
            }
            // The coordinator orders it in all of its partitions (protocol.md 4).
            (false, Request::Range(range)) if range.mode != ReadMode::Stale => {
                self.coordinator().ok_or_else(|| Error::failed(Reason::SpansPartitions))?
            }
            (false, _) => return Err(Error::failed(Reason::SpansPartitions)),
        };
        let queue = &mut self.queues[at];
        match &call.request {
            Request::Command(_) | Request::Resume(..) => queue.waiting.push_command(key, call.number),
            Request::Get { .. } | Request::Look { .. } => queue.waiting.gets.push_back(key),
            Request::Range(_) => queue.waiting.ranges.push_back(key),
            Request::Keys { .. } | Request::Map => {}
        }
        self.queues.list(at);
        Ok(())
    }

    /// The queue that a request waits in, by the present map.
    pub(super) fn home(&self, request: &Request) -> Option<usize> {
        let (entry, queue) = self.routes.find(request.routing_key())?;
        match request {
            Request::Range(range) if range.mode != ReadMode::Stale && !is_within(entry, request) => self.coordinator(),
            _ => Some(queue),
        }
    }

    /// Queues a call again, by the present map, under its number if it has one.
    pub(super) fn reroute(&mut self, now: Time, key: CallKey, effects: &mut Vec<Effect>) {
        if self.route(key).is_err() {
            self.end(now, key, Reason::SpansPartitions, Cause::SpansPartitions, effects);
        }
    }

    /// Calls that waited for a map go where it says.
    pub(super) fn route_waiting(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.unrouted.is_empty() || self.routes.map().is_none() {
            return;
        }
        for key in std::mem::take(&mut self.unrouted) {
            match self.calls.get(key).map(|call| call.request == Request::Map) {
                Some(true) => {
                    let nothing = Answer { output: Output::Loaded(0), position: Position::default() };
                    self.complete(key, nothing, effects);
                }
                Some(false) => self.reroute(now, key, effects),
                None => {}
            }
        }
    }

    /// A newer map is needed. It is asked for at the next dispatch, not more often than is good.
    pub(super) fn want_map(&mut self) {
        self.map_search.wanted = true;
    }

    /// Asks for the map if it is needed and time.
    pub(super) fn search_map(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let none = self.routes.map().is_none() && self.calls.len() > 0;
        if !(none || self.map_search.wanted) || now < self.map_search.not_before || self.peers.is_empty() {
            return;
        }
        self.map_search.not_before = now + if none { HEDGE } else { REFRESH };
        // A connection that is open comes first; without one, the next address is tried.
        let count = self.peers.len();
        let order = (0..count).map(|step| (self.map_search.rotation + step) % count);
        let ready = order.clone().find(|&at| self.peers[at].is_ready() && self.peers[at].suspect_until <= now);
        let next = order.clone().find(|&at| !self.peers[at].is_open() && self.peers[at].is_usable(now));
        if let Some(at) = ready {
            self.map_search.rotation = at + 1;
            self.ask_for_map(now, at, effects);
        }
        if let (true, Some(at)) = (none || ready.is_none(), next) {
            self.map_search.rotation = at + 1;
            self.connect(now, at, effects);
        }
    }

    pub(super) fn ask_for_map(&mut self, now: Time, at: usize, effects: &mut Vec<Effect>) {
        let Some(stream) = self.peers[at].streams.next() else { return };
        let known = self.routes.map().map_or(MapVersion(0), |map| map.version);
        let mut out = BytesMut::new();
        encode_control(&mut out, Kind::MapGet, stream, &MapGet { known });
        let patience = self.config.attempt_timeout;
        let pending = PendingRequest {
            kind: RequestKind::Map,
            queue: usize::MAX,
            epoch: 0,
            maps: self.routes.maps(),
            anywhere: true,
            at: now,
            until: now + patience,
            patience,
            pinged: true,
            abandoned: false,
        };
        self.peers[at].push(pending);
        self.send(at, out.freeze(), effects);
    }

    pub(super) fn on_map(&mut self, now: Time, reply: MapReply, effects: &mut Vec<Effect>) {
        self.map_search.wanted = false;
        // The hedge of a search without a map is over; a newer one may be needed soon.
        self.map_search.not_before = self.map_search.not_before.min(now + REFRESH);
        let newer = |map: &PartitionMap| self.routes.map().is_none_or(|old| map.version > old.version);
        if let Some(map) = reply.map.filter(newer)
            && !map.partitions.is_empty()
            && map.check().is_ok()
        {
            self.adopt(now, map, effects);
        }
        for (partition, node) in reply.leaders {
            // What a node remembers of who led may be older than its map: whoever is no replica leads nothing, and
            // would send this client away for ever, with nothing newer to say.
            let leads =
                |queue: &&mut PartitionQueue| queue.partition == partition && queue.replicas.nodes.contains(&node);
            let lost = self.is_lost(node);
            let queue = self.queues.iter_mut().find(leads);
            // While replicas say that they do not lead, they know better: the word of a node without a replica may be
            // old, and whoever follows it again and again never connects to the others.
            let unknown = |queue: &&mut PartitionQueue| {
                queue.replicas.leader.is_none() && (queue.replicas.misses == 0 || mutant!(client_believes_hearsay))
            };
            if let Some(queue) = queue.filter(unknown).filter(|_| !lost) {
                queue.replicas.follow(Some(node));
            }
        }
        self.queues.list_all();
    }

    /// Whether the connection to a node was lost: it may be gone although others, who name it as a leader, do not know
    /// that yet. It is asked when it is connected again, and until then the others are asked on.
    pub(super) fn is_lost(&self, node: NodeId) -> bool {
        let known = self.peers.iter().find(|peer| peer.node == Some(node));
        known.is_some_and(|peer| !peer.is_ready() && !peer.last_error.is_empty()) && !mutant!(client_follows_the_gone)
    }

    /// Takes newer entries into the map: what they overlap goes. Returns whether a whole map came out. It keeps its
    /// version, because nothing is known of the entries that were not told: the whole map is asked for too.
    pub(super) fn patch(&mut self, now: Time, entries: Vec<Entry>, effects: &mut Vec<Effect>) -> bool {
        let Some(map) = self.routes.map().filter(|_| !entries.is_empty()) else { return false };
        let mut patched = PartitionMap::clone(map);
        let mut newer = true;
        patched.partitions.retain(|old| {
            let mut over = entries.iter().filter(|new| new.overlaps(&old.low, old.high.as_deref())).peekable();
            let kept = over.peek().is_none();
            newer &= over.all(|new| new.version > old.version);
            kept
        });
        patched.partitions.extend(entries);
        patched.partitions.sort_by(|a, b| a.low.cmp(&b.low));
        self.want_map();
        let whole = newer && patched.check().is_ok();
        if whole {
            self.adopt(now, patched, effects);
        }
        whole
    }

    /// Routes by another map from now on; moves what waits.
    fn adopt(&mut self, now: Time, map: PartitionMap, effects: &mut Vec<Effect>) {
        let routes: Vec<usize> = map.partitions.iter().map(|entry| self.queue_for(entry)).collect();
        let directory = map.directory.as_ref().map(|entry| self.queue_for(entry));
        for (at, queue) in self.queues.iter_mut().enumerate() {
            queue.alive = routes.contains(&at) || Some(at) == directory;
        }
        let waiting: Vec<CallKey> = std::mem::take(&mut self.unrouted)
            .into_iter()
            .chain(self.queues.iter_mut().flat_map(|queue| queue.waiting.drain()))
            .collect();
        self.routes.adopt(map, routes);
        self.map_search.last_error = LastError::None;
        for key in waiting {
            self.reroute(now, key, effects);
        }
        let unasked = self.queues.iter_mut().flat_map(|queue| std::mem::take(&mut queue.waiting.validations));
        for (key, _) in unasked.collect::<Vec<_>>() {
            self.spoil(now, key, effects);
        }
        self.queues.list_all();
    }

    /// The queue of a new map's entry: the partition's own, or a new one that inherits the session of the partition
    /// which held these keys before. A split copies the sessions, so theirs is known there too (protocol.md 8), and
    /// commands that may have been executed before the split find their replies.
    fn queue_for(&mut self, entry: &Entry) -> usize {
        let replicas = entry.replicas.iter().filter(|replica| replica.role == Role::Voter);
        let nodes = replicas.map(|replica| replica.node).collect();
        let at = match self.queues.of(entry.partition) {
            Some(at) => at,
            None => {
                let parent = self.routes.queue_of(&entry.low).filter(|_| entry.partition != PartitionId::DIRECTORY);
                let rotation = self.draws.next() as usize % 16;
                let mut queue = PartitionQueue::new(entry.partition, rotation);
                if let Some(parent) = parent {
                    queue.session.key = self.queues[parent].session.key;
                    queue.replicas.leader = self.queues[parent].replicas.leader;
                }
                self.queues.push(queue)
            }
        };
        self.queues[at].replicas.move_to(nodes);
        at
    }
}

/// Whether one partition can serve all of a request.
fn is_within(entry: &Entry, request: &Request) -> bool {
    match request {
        // A move has two keys.
        Request::Command(Command::One(operation)) | Request::Resume(Command::One(operation), _)
            if !matches!(operation, Operation::Move { .. }) =>
        {
            true
        }
        Request::Get { .. } | Request::Look { .. } | Request::Map => true,
        Request::Keys { keys, .. } => keys.iter().all(|key| entry.contains(key)),
        Request::Command(command) | Request::Resume(command, _) => command.all_keys(|key| entry.contains(key)),
        Request::Range(range) => match (&range.high, &entry.high) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(high), Some(end)) => high[..] <= end[..] || high <= &range.low,
        },
    }
}
