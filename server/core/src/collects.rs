//! Ranges over several partitions that this node has replicas of: read here in each of them, and given out as one
//! moment without a ticket. Pure: it says what to ask of the replicas, and hears their answers.
//!
//! Each range is a [`DoubleCollect`] of the node's own replicas. Each part is read, from a snapshot that is kept; a
//! reading is answered when what it saw is decided and behind the gate (protocol.md 3). Validations (`Validate`) are
//! linearizable reads (protocol.md 7): a leader confirms that it leads, a follower asks its leader how far it must have
//! decided, and waits for that. Where something has changed, all is read once more; where it has again, there is no
//! answer: the client asks the coordinator.
//!
//! What a client collects by itself waits in its memory, chunk by chunk, until it is validated. Here that is the
//! snapshots, whatever the size of the range; bytes leave once, when it is known that they count.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use coppice_btree::Cursor;
use coppice_client::double_collect::{DoubleCollect, PartRead, Verdict};
use coppice_client::wire::validate::RangeVersion;
use coppice_client::wire::{CollectRequest, PartitionId, Position, VALIDATE_RANGES_MAX, ValidateRequest};
use coppice_ordering::Time;

use crate::request::{Bounds, Origin, Refusal, Reply, Request};

/// Parts of ranges that are read at a time, each with a snapshot; beyond: `Busy`.
const BUSY: &str = "4,096 parts of ranges are read on the node";
const PARTS_MAX: usize = 65_536;

/// A collect ends if no answer came for so long: one was lost between workers, or nobody leads. A client waits as long
/// before it asks another node.
const LASTS_MAX: Duration = Duration::from_millis(500);

/// Why a collect came to nothing, for its client.
const CHANGED: &str = "the range changed while it was read";
const UNCOUNTED: &str = "a replica of this node does not count its changes";
const UNANSWERED: &str = "a replica of this node did not answer in time";

/// What a collect wants done.
pub enum Act {
    /// A request for a replica of this node; the answer is for [`Collects::on_reply`].
    Ask {
        /// Of which partition.
        partition: PartitionId,
        /// Names the answer.
        origin: Origin,
        request: Request,
    },
    /// The end of a collect.
    Answer {
        /// The partition that it is about.
        partition: PartitionId,
        /// Who asked for the range.
        origin: Origin,
        /// [`Reply::Collected`], or why there is none.
        reply: Reply,
    },
}

/// So often all of a range is read again.
const REREADS: u32 = 1;

struct Collect {
    origin: Origin,
    range: Box<CollectRequest>,
    /// Its parts in ascending order.
    reads: DoubleCollect<Box<Cursor>>,
    since: Time,
}

/// A part of a collect: which collect, which part.
type Place = (u64, u32);

/// Parts that one request to a replica is about, and since when it waits for its answer.
struct PendingRequest {
    places: Vec<Place>,
    since: Time,
}

/// The collects of one worker's connections.
pub struct Collects {
    worker: u16,
    /// Number of the first one of `under_way`.
    first: u64,
    /// By number; those that have ended leave a hole, but in front.
    under_way: VecDeque<Option<Collect>>,
    /// Parts of these.
    parts: usize,
    /// Parts to be read next, and to be validated next.
    unread: BTreeMap<PartitionId, Vec<Place>>,
    read: BTreeMap<PartitionId, Vec<Place>>,
    /// Requests without an answer, by number, and how many there were.
    asked: BTreeMap<u64, PendingRequest>,
    requests: u64,
}

impl Collects {
    /// None, of this worker.
    pub fn new(worker: u16) -> Collects {
        Collects {
            worker,
            first: 0,
            under_way: VecDeque::new(),
            parts: 0,
            unread: BTreeMap::new(),
            read: BTreeMap::new(),
            asked: BTreeMap::new(),
            requests: 0,
        }
    }

    /// Takes a range for whoever waits at `origin`, to be read at the end of the turn.
    pub fn begin(&mut self, now: Time, origin: Origin, range: CollectRequest, acts: &mut Vec<Act>) {
        let count = range.parts.len();
        if self.parts + count > PARTS_MAX {
            let partition = range.parts[0].0;
            return acts.push(Act::Answer { partition, origin, reply: Reply::Refused(Refusal::Busy(BUSY)) });
        }
        let reads = DoubleCollect::new(count, REREADS);
        self.read_all(Collect { origin, range: Box::new(range), reads, since: now });
    }

    /// Lets all parts of a collect be read, under a number of its own.
    fn read_all(&mut self, collect: Collect) {
        let id = self.first + self.under_way.len() as u64;
        self.parts += collect.reads.count();
        for (place, (partition, _)) in (0..).zip(&collect.range.parts) {
            self.unread.entry(*partition).or_default().push((id, place));
        }
        self.under_way.push_back(Some(collect));
    }

    /// Asks for the first readings of what has begun, many at a time: at the end of each turn.
    pub fn read(&mut self, now: Time, acts: &mut Vec<Act>) {
        for (partition, mut places) in std::mem::take(&mut self.unread) {
            while let Some(places) = self.some_of(&mut places) {
                let bounds = |&(id, place): &Place| {
                    let range = &self.collect(id)?.range;
                    let (low, high) = range.bounds(place as usize);
                    Some(Bounds { low: low.clone(), high: high.cloned(), reverse: range.scan.reverse })
                };
                let request = Request::CollectParts(places.iter().filter_map(bounds).collect());
                acts.push(self.ask(now, (partition, places), request));
            }
        }
    }

    /// Asks whether what was read is still what it was, many parts at a time: at the end of each turn.
    pub fn validate(&mut self, now: Time, acts: &mut Vec<Act>) {
        for (partition, mut places) in std::mem::take(&mut self.read) {
            while let Some(places) = self.some_of(&mut places) {
                let part = |&(id, place): &Place| {
                    let collect = self.collect(id)?;
                    let version = collect.reads.read(place as usize)?.version;
                    let (low, high) = collect.range.bounds(place as usize);
                    Some(RangeVersion { version, low, high: high.map(|high| &high[..]) })
                };
                let ranges: Vec<RangeVersion<'_>> = places.iter().filter_map(part).collect();
                let request = Request::Validate(ValidateRequest::of(partition, true, ranges.into_iter()), None);
                acts.push(self.ask(now, (partition, places), request));
            }
        }
    }

    /// As many of these places as one request may be about, without those that need nothing.
    fn some_of(&self, places: &mut Vec<Place>) -> Option<Vec<Place>> {
        places.retain(|(id, _)| self.collect(*id).is_some());
        let rest = places.split_off(places.len().min(VALIDATE_RANGES_MAX));
        let some = std::mem::replace(places, rest);
        (!some.is_empty()).then_some(some)
    }

    fn ask(&mut self, now: Time, (partition, places): (PartitionId, Vec<Place>), request: Request) -> Act {
        self.requests += 1;
        self.asked.insert(self.requests, PendingRequest { places, since: now });
        Act::Ask { partition, origin: Origin::Collect { worker: self.worker, number: self.requests }, request }
    }

    fn collect(&self, id: u64) -> Option<&Collect> {
        self.under_way.get(id.checked_sub(self.first)? as usize)?.as_ref()
    }

    fn collect_mut(&mut self, id: u64) -> Option<&mut Collect> {
        self.under_way.get_mut(id.checked_sub(self.first)? as usize)?.as_mut()
    }

    /// An answer to the request of this number ([`Origin::Collect`]).
    pub fn on_reply(&mut self, request: u64, partition: PartitionId, reply: Reply, acts: &mut Vec<Act>) {
        let Some(PendingRequest { places, .. }) = self.asked.remove(&request) else { return };
        match reply {
            Reply::CollectedParts { instance, version: Some(version), cursors } if cursors.len() == places.len() => {
                let position = Position { partition, instance: instance.0, index: 0 };
                for (place, cursor) in places.into_iter().zip(cursors) {
                    match cursor {
                        Some(data) => {
                            let read = PartRead { version, position, data };
                            self.judge(place, partition, acts, |collect, place| collect.on_read(place, read));
                        }
                        None => self.end(place.0, partition, Reply::Refused(Refusal::WrongPartition), acts),
                    }
                }
            }
            Reply::Validated { instance, unchanged } if unchanged.len() == places.len() => {
                let position = Position { partition, instance: instance.0, index: 0 };
                for (place, unchanged) in places.into_iter().zip(unchanged) {
                    self.judge(place, partition, acts, |collect, place| match unchanged {
                        true => collect.on_unchanged(place, position),
                        false => collect.on_changed(),
                    });
                }
            }
            Reply::Refused(refusal) => {
                places.into_iter().for_each(|(id, _)| self.end(id, partition, Reply::Refused(refusal), acts));
            }
            _ => places.into_iter().for_each(|(id, _)| self.end(id, partition, aborted(UNCOUNTED), acts)),
        }
    }

    /// Tells a collect of an answer about one of its parts, and does what follows. What is on its way to an earlier
    /// reading, or back, finds nothing under its number.
    fn judge(
        &mut self,
        (id, place): Place,
        partition: PartitionId,
        acts: &mut Vec<Act>,
        answer: impl FnOnce(&mut DoubleCollect<Box<Cursor>>, usize) -> Verdict,
    ) {
        let Some(collect) = self.collect_mut(id) else { return };
        match answer(&mut collect.reads, place as usize) {
            Verdict::Incomplete => {}
            Verdict::Validate(places) => {
                let Collects { first, under_way, read, .. } = self;
                let Some(Some(collect)) = under_way.get((id - *first) as usize) else { return };
                for place in places {
                    read.entry(collect.range.parts[place].0).or_default().push((id, place as u32));
                }
            }
            Verdict::OneMoment => self.finish(id, acts),
            Verdict::ReadAgain => {
                if let Some(collect) = self.take(id) {
                    self.read_all(collect);
                }
            }
            Verdict::Changed => self.end(id, partition, aborted(CHANGED), acts),
        }
    }

    /// All of it held at one moment.
    fn finish(&mut self, id: u64, acts: &mut Vec<Act>) {
        let Some(Collect { origin, range, reads, .. }) = self.take(id) else { return };
        let mut parts: Vec<_> = reads.into_parts().map(|read| (read.position, read.data)).collect();
        if range.scan.reverse {
            parts.reverse();
        }
        let partition = range.parts[0].0;
        acts.push(Act::Answer { partition, origin, reply: Reply::Collected { parts, range } });
    }

    /// It comes to nothing.
    fn end(&mut self, id: u64, partition: PartitionId, reply: Reply, acts: &mut Vec<Act>) {
        if let Some(collect) = self.take(id) {
            acts.push(Act::Answer { partition, origin: collect.origin, reply });
        }
    }

    fn take(&mut self, id: u64) -> Option<Collect> {
        let collect = self.under_way.get_mut(id.checked_sub(self.first)? as usize)?.take()?;
        self.parts -= collect.reads.count();
        while let Some(None) = self.under_way.front() {
            self.under_way.pop_front();
            self.first += 1;
        }
        Some(collect)
    }

    /// When [`Collects::expire`] has something to do.
    pub fn deadline(&self) -> Option<Time> {
        let first = self.under_way.front().and_then(|collect| Some(collect.as_ref()?.since));
        let asked = self.asked.first_key_value().map(|(_, asked)| asked.since);
        Some(first.into_iter().chain(asked).min()? + LASTS_MAX)
    }

    /// Ends what has waited for too long.
    pub fn expire(&mut self, now: Time, acts: &mut Vec<Act>) {
        while let Some(Some(collect)) = self.under_way.front()
            && collect.since + LASTS_MAX <= now
        {
            let partition = collect.range.parts[0].0;
            self.end(self.first, partition, aborted(UNANSWERED), acts);
        }
        while self.asked.first_key_value().is_some_and(|(_, asked)| asked.since + LASTS_MAX <= now) {
            self.asked.pop_first();
        }
    }
}

fn aborted(why: &str) -> Reply {
    Reply::Aborted { text: why.into(), unplaced: None }
}
