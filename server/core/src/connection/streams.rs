//! Ranges, and parts of queries (protocol.md 4, step 4), on their way to one client: most leave whole as soon as they
//! come; what is left of the others goes on as the client gives credit. It knows neither sockets nor tickets.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::BytesMut;
use coppice_client::wire::CompareRequest;
use coppice_ordering::Time;

use crate::cost::Account;
use crate::scan::RangeJob;

/// Where the frames of a connection are gathered before its socket takes them.
pub trait FrameSink {
    /// Bytes that wait there.
    fn bytes(&self) -> usize;

    /// Lets `write` append to them.
    fn append(&mut self, write: impl FnOnce(&mut BytesMut));
}

impl FrameSink for BytesMut {
    fn bytes(&self) -> usize {
        self.len()
    }

    fn append(&mut self, write: impl FnOnce(&mut BytesMut)) {
        write(self);
    }
}

/// A chunk costs as much as walking over so many pairs, however few it holds.
const MIN_PAIRS: u64 = 64;

/// What streams on one connection, by name. Each pins a snapshot: the owner bounds how many there are.
pub(super) struct Streams<K> {
    /// Nothing of them was sent yet; in the order in which they came.
    fresh: VecDeque<(K, Stream)>,
    begun: BTreeMap<K, Stream>,
    /// Of those that were begun, the one that went on last: they take turns.
    last: Option<K>,
}

/// A range, and since when its snapshot is pinned.
struct Stream {
    job: RangeJob,
    since: Time,
}

/// Bytes of chunks and large answers that are made in one go: a quarter of a millisecond, and no chunk is larger.
const SLICE_BYTES: usize = 256 << 10;

/// Pairs that ranges walk over in one go: a quarter of a millisecond.
const SLICE_PAIRS: u64 = 16_384;

/// What may yet be made in one go, for one connection or for many.
#[derive(Debug)]
pub struct Slice {
    pub bytes: usize,
    /// Pairs that are walked over.
    pub pairs: u64,
}

impl Default for Slice {
    fn default() -> Slice {
        Slice { bytes: SLICE_BYTES, pairs: SLICE_PAIRS }
    }
}

impl Slice {
    /// Four times as much: what all connections together have at the end of a turn, before each has its own.
    pub fn of_turn() -> Slice {
        Slice { bytes: 4 * SLICE_BYTES, pairs: 4 * SLICE_PAIRS }
    }

    /// Whether there is nothing left.
    pub fn is_spent(&self) -> bool {
        self.bytes == 0 || self.pairs == 0
    }
}

impl<K> Default for Streams<K> {
    fn default() -> Streams<K> {
        Streams { fresh: VecDeque::new(), begun: BTreeMap::new(), last: None }
    }
}

impl<K: Copy + Ord> Streams<K> {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.fresh.len() + self.begun.len()
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether there is something that may be sent.
    pub(super) fn may_send(&self) -> bool {
        !self.fresh.is_empty() || self.begun.values().any(|stream| stream.job.may_send())
    }

    /// Takes one whose name no other has.
    pub(super) fn add(&mut self, name: K, job: RangeJob, now: Time) {
        self.fresh.push_back((name, Stream { job, since: now }));
    }

    fn job(&mut self, name: K) -> Option<&mut RangeJob> {
        let fresh = self.fresh.iter_mut().find(|(of, _)| *of == name).map(|(_, stream)| stream);
        self.begun.get_mut(&name).or(fresh).map(|stream| &mut stream.job)
    }

    /// The client makes room for more of one.
    pub(super) fn add_credit(&mut self, name: K, bytes: u32) {
        if let Some(job) = self.job(name) {
            job.add_credit(bytes);
        }
    }

    /// The client says what it holds of one.
    pub(super) fn compare(&mut self, name: K, request: CompareRequest, account: &Account) {
        if let Some(job) = self.job(name) {
            job.compare(request, account);
        }
    }

    /// Drops the streams that the client no longer wants.
    pub(super) fn drop_all(&mut self, unwanted: impl Fn(&K) -> bool) {
        self.begun.retain(|name, _| !unwanted(name));
        self.fresh.retain(|(name, _)| !unwanted(name));
    }

    /// Drops those whose snapshot was pinned for too long, or keeps too much memory alive, and names them.
    pub(super) fn expire(&mut self, now: Time, pin: Duration, bytes_max: u64) -> Vec<K> {
        let all = self.begun.iter().chain(self.fresh.iter().map(|(name, stream)| (name, stream)));
        let is_old = |stream: &Stream| now.since(stream.since) > pin || stream.job.kept_bytes() > bytes_max;
        let old: Vec<K> = all.filter(|(_, stream)| is_old(stream)).map(|(&name, _)| name).collect();
        if !old.is_empty() {
            self.drop_all(|name| old.contains(name));
        }
        old
    }

    /// Makes a chunk of each that has credit, while less than `bytes_max` waits in `sink` and as far as `slice` goes,
    /// in frames of the stream that `stream_of` says, and tells `ended` which of them that was the end of; `true` if
    /// there is more to make.
    pub(super) fn send_chunks<S: FrameSink>(
        &mut self,
        (sink, bytes_max): (&mut S, usize),
        slice: &mut Slice,
        stream_of: impl Fn(K) -> u32,
        mut ended: impl FnMut(K),
    ) -> bool {
        let mut send = |name: K, job: &mut RangeJob, sink: &mut S| {
            let mut last = false;
            let ((pairs, hashed), bytes) = (job.work(), sink.bytes());
            sink.append(|out| last = job.send(stream_of(name), out));
            let (pairs, hashed) = (job.work().0 - pairs, job.work().1 - hashed);
            slice.pairs = slice.pairs.saturating_sub(pairs.max(MIN_PAIRS));
            slice.bytes = slice.bytes.saturating_sub(sink.bytes().saturating_sub(bytes) + hashed as usize);
            if last {
                ended(name);
            }
            (last, !slice.is_spent())
        };
        let mut goes_on = true;
        for name in self.turns() {
            if sink.bytes() >= bytes_max || !goes_on {
                return true;
            }
            let Some(stream) = self.begun.get_mut(&name) else { continue };
            let (last, time) = send(name, &mut stream.job, sink);
            (self.last, goes_on) = (Some(name), time);
            if last {
                self.begun.remove(&name);
            }
        }
        while sink.bytes() < bytes_max
            && goes_on
            && let Some((name, mut stream)) = self.fresh.pop_front()
        {
            // One without credit waits for some among those that were begun.
            let mut last = false;
            if stream.job.may_send() {
                (last, goes_on) = send(name, &mut stream.job, sink);
            }
            if !last {
                self.begun.insert(name, stream);
            }
        }
        self.may_send()
    }

    /// Those that were begun and may go on, behind the one that went on last.
    fn turns(&self) -> Vec<K> {
        let all = || self.begun.iter().filter(|(_, stream)| stream.job.may_send()).map(|(&name, _)| name);
        let behind = |name: &K| self.last.is_none_or(|last| *name > last);
        all().filter(behind).chain(all().filter(|name| !behind(name))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::multicast::PartitionQuery;
    use coppice_btree::{Direction, KeyRange, Tree};
    use coppice_client::wire::{
        ClientId, Frame, FrameDecoder, Part, PartEnd, PartitionId, Position, ReplicaId, ScanOptions, Ticket,
    };

    /// More pairs than a chunk holds.
    const MANY: u64 = 20_000;

    fn tree(pairs: u64) -> Tree {
        let mut tree = Tree::new();
        (0..pairs).for_each(|n| drop(tree.put(&n.to_be_bytes(), b"8 bytes.")));
        tree
    }

    /// A part of so many pairs.
    fn job(credit: u32, pairs: u64) -> RangeJob {
        of_tree(&tree(pairs), credit, false)
    }

    fn of_tree(tree: &Tree, credit: u32, count_only: bool) -> RangeJob {
        let share = PartitionQuery {
            client: ClientId(1),
            query: 1,
            replica: coppice_ordering::ReplicaId(1),
            low: Default::default(),
            high: None,
            scan: ScanOptions { count_only, ..ScanOptions::default() },
            credit,
        };
        let position = Position { partition: PartitionId(1), instance: 5, index: 0 };
        let ticket = Ticket { round: 1, replica: ReplicaId(1), n: 7 };
        RangeJob::of_query(position, ticket, Box::new(tree.cursor(KeyRange::all(), Direction::Forward)), &share)
    }

    fn frames(out: &mut BytesMut) -> Vec<Frame> {
        let mut decoder = FrameDecoder::default();
        decoder.feed(&out.split());
        std::iter::from_fn(|| decoder.next_frame().expect("our own frames")).collect()
    }

    fn name(query: u32) -> (u32, PartitionId) {
        (query, PartitionId(1))
    }

    fn send_chunks(parts: &mut Streams<(u32, PartitionId)>, out: &mut BytesMut, bytes_max: usize) -> bool {
        let mut slice = Slice { bytes: usize::MAX, pairs: u64::MAX };
        parts.send_chunks((out, bytes_max), &mut slice, |(query, _)| query, |_| {})
    }

    /// 768 ranges that were only counted took 50 million pairs in one go, and the worker stood still for as long.
    #[test]
    fn ranges_that_are_counted_share_one_slice() {
        let (mut ranges, mut out, mut ended) = (Streams::default(), BytesMut::new(), Vec::new());
        let tree = tree(MANY);
        (0..50_u32).for_each(|name| ranges.add(name, of_tree(&tree, 1, true), Time(0)));
        let mut goes = 1;
        while ranges.send_chunks((&mut out, 1 << 30), &mut Slice::default(), |name| name, |name| ended.push(name)) {
            goes += 1;
        }
        assert!(goes > 50 * MANY / 20_480, "{goes} goes");
        assert_eq!((ended.len(), frames(&mut out).len(), ranges.is_empty()), (50, 50, true));
        // What has nothing to walk over costs something all the same.
        (0..1_000).for_each(|name| ranges.add(name, job(1, 0), Time(0)));
        assert!(ranges.send_chunks((&mut out, 1 << 30), &mut Slice::default(), |name| name, |_| {}));
    }

    #[test]
    fn a_part_goes_on_as_far_as_its_credit_reaches() {
        let (mut parts, mut out) = (Streams::default(), BytesMut::new());
        parts.add(name(9), job(1, MANY), Time(0));
        assert!(parts.may_send());
        // The first chunk overdraws the credit of one byte.
        assert!(!send_chunks(&mut parts, &mut out, 1 << 30));
        let first = frames(&mut out);
        assert_eq!((first.len(), first[0].stream, parts.may_send()), (1, 9, false));
        parts.add_credit(name(8), 1 << 30);
        assert!(!parts.may_send(), "credit of another part");
        parts.add_credit(name(9), 1 << 30);
        while send_chunks(&mut parts, &mut out, 1 << 30) {}
        let rest = frames(&mut out);
        let end = Part::decode(&rest.last().expect("chunks").body).expect("a part").end;
        assert_eq!((end, parts.is_empty()), (Some(PartEnd::Complete), true));
    }

    #[test]
    fn what_finds_no_room_waits_its_turn_and_may_be_called_off() {
        let (mut parts, mut out) = (Streams::default(), BytesMut::new());
        (1..=4).for_each(|query| parts.add(name(query), job(1, MANY), Time(0)));
        assert!(send_chunks(&mut parts, &mut out, 1), "one chunk fills the room");
        assert!(send_chunks(&mut parts, &mut out, 1));
        assert_eq!(frames(&mut out).iter().map(|frame| frame.stream).collect::<Vec<_>>(), [1]);
        parts.drop_all(|(query, _)| *query == 3);
        // Credit also reaches one of which nothing was sent.
        parts.add_credit(name(4), 1 << 30);
        assert!(send_chunks(&mut parts, &mut out, 1 << 30));
        let sent: Vec<u32> = frames(&mut out).iter().map(|frame| frame.stream).collect();
        assert_eq!(sent, [2, 4], "in the order in which they came");
        while send_chunks(&mut parts, &mut out, 1 << 30) {}
        assert!(frames(&mut out).len() == 1 && !parts.is_empty(), "1 and 2 wait for credit");
    }

    #[test]
    fn what_ends_or_is_pinned_for_too_long_is_named() {
        let (mut ranges, mut out, mut ended) = (Streams::default(), BytesMut::new(), Vec::new());
        for (name, job) in [(5, job(1, 3)), (2, job(1, MANY)), (7, job(0, 1))] {
            ranges.add(name, job, Time(0));
        }
        let mut slice = Slice { bytes: usize::MAX, pairs: u64::MAX };
        assert!(!ranges.send_chunks((&mut out, 1 << 30), &mut slice, |name| name, |name| ended.push(name)));
        assert_eq!((ended, ranges.len()), (vec![5], 2), "one without credit has not been begun");
        ranges.add(9, job(1, 1), Time(0));
        assert_eq!(ranges.expire(Time(1), Duration::from_secs(3600), u64::MAX), [0u32; 0]);
        let expired = ranges.expire(Time(1), Duration::ZERO, u64::MAX);
        assert_eq!((expired, ranges.is_empty()), (vec![2, 7, 9], true));
    }

    /// What is overwritten while a reader rests lives on for its snapshot: as much as the tree, for each such reader.
    #[test]
    fn a_snapshot_that_keeps_too_much_alive_expires() {
        let (mut ranges, mut tree) = (Streams::default(), tree(MANY));
        ranges.add(1_u32, of_tree(&tree, 0, false), Time(0));
        assert!(ranges.expire(Time(1), Duration::from_secs(3600), 1 << 40).is_empty());
        (0..MANY).for_each(|n| drop(tree.put(&n.to_be_bytes(), b"others..")));
        assert_eq!(ranges.expire(Time(1), Duration::from_secs(3600), 16 * MANY / 2), [1]);
    }
}
