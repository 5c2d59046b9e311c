//! Requests of one connection, from their arrival to their answers: which stream waits for one, which packs wait until
//! others are answered, and which ranges and parts of queries wait for credit of the client.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coppice_client::wire::{CompareRequest, PartitionId, Refusal};
use coppice_ordering::Time;

use super::RefusedFrame;
use super::packs::{Pack, Packs};
use super::streams::{FrameSink, Slice, Streams};
use crate::cost::{Account, Charge};
use crate::ids;
use crate::replica::QueryPart;
use crate::request::Request;
use crate::scan::RangeJob;
use crate::settings::units::show_size;
use crate::wire_reply::{WireReply, busy};
use crate::worker::Input;

/// Bytes that wait to be read by the client; beyond, its requests are not read.
const UNREAD_BYTES_MAX: usize = 8 << 20;

/// Statuses and verbs of one connection that may be under way: the operators' tools ask one at a time. Beyond: `Busy`.
const CONTROL_REQUESTS_MAX: usize = 4;

/// Parts of queries that stream on a connection; beyond, they are dropped, and their client asks again.
const PARTS_MAX: usize = 4_096;

/// What waits on one connection; a driver remembers a `T` of each request.
pub struct Pending<T> {
    /// How many may wait (`limits.inflight`): at least two.
    inflight: usize,
    requests: BTreeMap<u32, PendingRequest<T>>,
    /// Those on their way to their partitions; they have their place in `requests`.
    packs: Packs<Input>,
    /// Ranges that wait for credit, by the streams of their requests, which end with them.
    ranges: Streams<u32>,
    /// Parts of queries that do: the client's number of the attempt, and whose part it is.
    parts: Streams<(u32, PartitionId)>,
    /// What the largest answers to packs took of late: what the next one is expected to take.
    answer_bytes: usize,
    /// Statuses and verbs under way: no place in `requests` is theirs.
    control_requests: usize,
}

struct PendingRequest<T> {
    /// Of a pack: its partition, and what executing it costs there.
    work: Option<(PartitionId, u32)>,
    /// Of its bytes, and of what its answer is expected to take.
    _charge: Arc<Charge>,
    remembered: T,
}

impl<T> Pending<T> {
    /// Nothing, where so many requests may wait (`limits.inflight`).
    pub fn new(inflight: usize) -> Pending<T> {
        let (requests, packs) = (BTreeMap::new(), Packs::default());
        let (ranges, parts) = (Streams::default(), Streams::default());
        Pending { inflight, requests, packs, ranges, parts, answer_bytes: 0, control_requests: 0 }
    }

    /// Whether the connection is read: one more request may wait, and its client reads what is written to it, of which
    /// `unread_bytes` wait.
    pub fn may_read(&self, account: &Account, unread_bytes: usize) -> bool {
        unread_bytes < UNREAD_BYTES_MAX && self.requests.len() < self.inflight && account.room() > 0
    }

    /// A status or a verb begins; `false`: as many are under way as may be.
    pub fn control_begins(&mut self) -> bool {
        let may_begin = self.control_requests < CONTROL_REQUESTS_MAX;
        self.control_requests += usize::from(may_begin);
        may_begin
    }

    /// A status or a verb has ended.
    pub fn control_ends(&mut self) {
        self.control_requests = self.control_requests.saturating_sub(1);
    }

    /// Whether a status or a verb is under way.
    pub fn has_control(&self) -> bool {
        self.control_requests > 0
    }

    /// Whether one more range may wait for credit: each pins a snapshot. Beyond three quarters of the requests: `Busy`.
    /// A connection full of them would not be read, their credit included.
    fn may_stream(&self) -> bool {
        self.ranges.len() < (self.inflight / 4 * 3).max(1) || mutant!(streams_fill_connection)
    }

    /// How many requests wait for an answer.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Whether nothing is under way at all.
    pub fn is_idle(&self) -> bool {
        self.is_empty() && !self.has_streams() && !self.has_control()
    }

    /// How many ranges stream.
    pub fn ranges(&self) -> usize {
        self.ranges.len()
    }

    /// Whether parts of queries stream.
    pub fn has_parts(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Whether something streams.
    pub fn has_streams(&self) -> bool {
        !self.ranges.is_empty() || self.has_parts()
    }

    /// Whether there is a chunk that may be sent.
    pub fn may_send(&self) -> bool {
        self.ranges.may_send() || self.parts.may_send()
    }

    /// What is remembered of the request of `stream`, if it waits.
    pub fn get(&self, stream: u32) -> Option<&T> {
        self.requests.get(&stream).map(|request| &request.remembered)
    }

    /// A request of so many bytes has come on `stream`, and is charged for until its answer. What the worker is told at
    /// once; a pack waits for [`Pending::next_pack`].
    ///
    /// # Errors
    /// The node has no room for it. Or another one waits on its stream: the connection ends, since answers to the two
    /// could not be told apart.
    pub fn admit(
        &mut self,
        (stream, bytes): (u32, usize),
        account: &Account,
        mut input: Input,
        remembered: T,
    ) -> Result<Option<Input>, RefusedFrame> {
        if self.requests.contains_key(&stream) {
            let refusal = Refusal::BadRequest { text: format!("stream {stream} is in use") };
            return Err(RefusedFrame { refusal, closes: true });
        }
        let work = match &input {
            Input::Request { group, request: Request::Pack { work, .. }, .. } => Some((*group, *work)),
            _ => None,
        };
        // A read is charged for its answer when it is executed.
        let answer_bytes = work.map_or(0, |_| self.answer_bytes);
        let Some(charge) = account.admit(bytes + answer_bytes) else {
            let (free, max) = account.of_node();
            let text = format!(
                "{bytes} bytes do not fit the node: {} of limits.node_bytes = {} are free",
                show_size(free),
                show_size(max)
            );
            return Err(RefusedFrame { refusal: busy(text), closes: false });
        };
        let charge = Arc::new(charge);
        if let Input::Request { request: Request::Read(_, _, held) | Request::Validate(_, held), .. } = &mut input {
            *held = Some(Arc::clone(&charge));
        }
        self.requests.insert(stream, PendingRequest { work, _charge: charge, remembered });
        let Some((group, work)) = work else { return Ok(Some(input)) };
        self.packs.push(Pack { group, work, request: input });
        Ok(None)
    }

    /// What is sent for a reply to the request of `stream`, which ends with it, unless it is the plan of a query; none:
    /// nobody waits for it, or it begins to stream.
    #[inline]
    pub fn answer(&mut self, stream: u32, reply: WireReply, now: impl FnOnce() -> Time) -> Option<WireReply> {
        let reply = match reply {
            WireReply::Plan(_) | WireReply::Range(_) if !self.requests.contains_key(&stream) => return None,
            // A query over more partitions than a frame can name gets no plan, and times out at its client.
            WireReply::Plan(_) => return Some(reply),
            WireReply::Range(job) if self.may_stream() => {
                self.ranges.add(stream, *job, now());
                return None;
            }
            WireReply::Range(_) => {
                let text = format!("too many ranges stream on one connection: limits.inflight = {}", self.inflight);
                WireReply::Refused(busy(text))
            }
            other => other,
        };
        let ended = self.end(stream)?;
        if let (Some(_), WireReply::Answer(answer)) = (ended.work, &reply) {
            self.answer_bytes = answer.len().max(self.answer_bytes - self.answer_bytes / 8);
        }
        Some(reply)
    }

    /// Streams this part of a query; beyond the bound it is dropped, and its client asks again.
    pub fn add_part(&mut self, part: QueryPart, now: Time) {
        if self.parts.len() < PARTS_MAX {
            let QueryPart { ticket, position, partition_query, cursor } = part;
            let name = (partition_query.query, position.partition);
            self.parts.add(name, RangeJob::of_query(position, ids::ticket(ticket), cursor, &partition_query), now);
        }
    }

    /// The client makes room for more of the range of `stream`.
    pub fn add_credit(&mut self, stream: u32, bytes: u32) {
        self.ranges.add_credit(stream, bytes);
    }

    /// And for more of a part.
    pub fn add_part_credit(&mut self, query: u32, partition: PartitionId, bytes: u32) {
        self.parts.add_credit((query, partition), bytes);
    }

    /// The client says what it holds of the range of `stream`: charged for until it is compared.
    pub fn compare(&mut self, stream: u32, request: CompareRequest, account: &Account) {
        self.ranges.compare(stream, request, account);
    }

    /// And of a part.
    pub fn compare_part(&mut self, query: u32, partition: PartitionId, request: CompareRequest, account: &Account) {
        self.parts.compare((query, partition), request, account);
    }

    /// The client wants no more parts of this query.
    pub fn cancel_parts(&mut self, query: u32) {
        self.parts.drop_all(|(of, _)| *of == query);
    }

    /// Whoever asked may not read on.
    pub fn drop_streams(&mut self) {
        self.ranges.drop_all(|_| true);
        self.parts.drop_all(|_| true);
    }

    /// Makes a chunk of each range and part that has credit, while less than `bytes_max` waits in `sink` and as far as
    /// `slice` goes; `true` if there is more to make.
    pub fn send_chunks(&mut self, (sink, bytes_max): (&mut impl FrameSink, usize), slice: &mut Slice) -> bool {
        let mut ended = Vec::new();
        let mut more = self.ranges.send_chunks((sink, bytes_max), slice, |stream| stream, |stream| ended.push(stream));
        more |= self.parts.send_chunks((sink, bytes_max), slice, |(query, _)| query, |_| {});
        for stream in ended {
            self.end(stream);
        }
        more
    }

    /// Ends ranges and parts whose snapshot was pinned for too long by a slow reader, or keeps too much memory alive.
    /// Of the ranges the client hears that: whether there were any.
    pub fn expire(&mut self, now: Time, pin: Duration, bytes_max: u64, sink: &mut impl FrameSink) -> bool {
        self.parts.expire(now, pin, bytes_max);
        let expired = self.ranges.expire(now, pin, bytes_max);
        for &stream in &expired {
            sink.append(|out| Refusal::SnapshotExpired.encode(out, stream));
            self.end(stream);
        }
        !expired.is_empty()
    }

    /// The oldest pack that waits and whose partition has room for it: what the worker is told of it.
    pub fn next_pack(&mut self) -> Option<Input> {
        self.packs.pop().map(|pack| pack.request)
    }

    /// Whether packs wait until others are answered.
    pub fn has_packs(&self) -> bool {
        self.packs.are_held()
    }

    /// The client no longer waits: its range ends. A pack takes effect, and its work is done, whoever waits for it.
    pub fn cancel(&mut self, stream: u32) {
        self.ranges.drop_all(|of| *of == stream);
        if self.requests.get(&stream).is_some_and(|request| request.work.is_none()) {
            self.end(stream);
        }
    }

    /// The request of `stream` waits no more, if it did.
    fn end(&mut self, stream: u32) -> Option<PendingRequest<T>> {
        let ended = self.requests.remove(&stream)?;
        if let Some((group, work)) = ended.work {
            self.packs.answered(group, work);
        }
        Some(ended)
    }
}

#[cfg(test)]
mod tests {
    use bytes::{Bytes, BytesMut};
    use coppice_btree::{Direction, KeyRange, Tree};
    use coppice_client::wire::{
        ClientId, CollectRequest, FrameDecoder, Kind, MapVersion, PACK_WORK_MAX, Position, QueryPlan, ScanOptions,
        Ticket,
    };
    use coppice_ordering::{Ballot, ReplicaId};

    use super::*;
    use crate::cost::{Budget, ClientBytes};
    use crate::multicast::PartitionQuery;
    use crate::request::Origin;

    fn pack(stream: u32) -> Input {
        let request = Request::Pack {
            entry: Bytes::new(),
            commands: 1,
            work: PACK_WORK_MAX,
            grows: true,
            known: true,
            timed: false,
        };
        let origin = Origin::Client { worker: 0, stream, connection: 1 };
        Input::Request { group: PartitionId(1), origin, request }
    }

    fn range() -> Input {
        let range = CollectRequest { parts: Vec::new(), high: None, scan: ScanOptions::default(), credit: 0 };
        Input::Collect { origin: Origin::Nobody, range }
    }

    /// A part of a query over an empty partition, with so much credit.
    fn part(query: u32, credit: u32) -> QueryPart {
        let (client, replica, scan) = (ClientId(1), ReplicaId(1), ScanOptions::default());
        let partition_query = PartitionQuery { client, query, replica, low: Bytes::new(), high: None, scan, credit };
        let cursor = Box::new(Tree::new().cursor(KeyRange::all(), Direction::Forward));
        let position = Position { partition: PartitionId(1), instance: 5, index: 0 };
        let ticket = coppice_ordering::Ticket { ballot: Ballot::default(), n: 7 };
        QueryPart { ticket, position, partition_query, cursor }
    }

    /// The answer of a range that has so much credit.
    fn job(credit: u32) -> WireReply {
        let QueryPart { position, cursor, partition_query, .. } = part(0, credit);
        WireReply::Range(Box::new(RangeJob::collected(vec![(position, cursor)], &partition_query).expect("a part")))
    }

    fn answer(pending: &mut Pending<()>, stream: u32, reply: WireReply) -> Option<WireReply> {
        pending.answer(stream, reply, || Time(0))
    }

    /// What is sent, as kinds of frames and their streams.
    fn sent(out: &mut BytesMut) -> Vec<(Option<Kind>, u32)> {
        let mut decoder = FrameDecoder::default();
        decoder.feed(&out.split());
        let frames = std::iter::from_fn(|| decoder.next_frame().expect("our own frames"));
        frames.map(|frame| (Kind::from_u8(frame.kind), frame.stream)).collect()
    }

    /// Which stream the next pack came on.
    fn next(pending: &mut Pending<()>) -> Option<u32> {
        match pending.next_pack()? {
            Input::Request { origin: Origin::Client { stream, .. }, .. } => Some(stream),
            _ => panic!("no pack"),
        }
    }

    #[test]
    fn a_stream_has_one_request_at_a_time() {
        let mut pending = Pending::new(8);
        let account = Account::unbounded();
        assert!(pending.admit((5, 1), &account, range(), "first").is_ok_and(|at_once| at_once.is_some()));
        assert!(pending.admit((5, 1), &account, range(), "second").is_err_and(|refused| refused.closes));
        assert_eq!((pending.get(5), pending.get(6)), (Some(&"first"), None));
        assert!(pending.end(5).is_some() && pending.end(5).is_none());
        assert!(pending.admit((5, 1), &account, range(), "third").is_ok());
    }

    #[test]
    fn a_request_is_charged_for_its_bytes_and_a_pack_for_an_answer_like_those_of_late() {
        let (mut pending, account) = (Pending::new(8), Account::unbounded());
        let mut charged = |input: Input, answer_bytes: usize| {
            assert!(pending.admit((7, 10), &account, input, ()).is_ok());
            let (charged, _) = (account.bytes(), next(&mut pending));
            let reply = WireReply::Answer(vec![0; answer_bytes].into());
            assert!(answer(&mut pending, 7, reply).is_some() && account.bytes() == 0);
            charged
        };
        assert_eq!(charged(pack(7), 800), 10);
        assert_eq!(charged(range(), 10_000), 10, "it is charged when it is executed");
        assert_eq!((charged(pack(7), 8), charged(pack(7), 8)), (810, 710), "by eighths it is forgotten");
    }

    #[test]
    fn a_connection_is_read_while_its_client_reads_and_has_room() {
        let (mut pending, account) = (Pending::new(2), Account::new(100, ClientBytes::default(), Budget::new(1 << 20)));
        assert!(pending.may_read(&account, 0) && !pending.may_read(&account, UNREAD_BYTES_MAX));
        assert!(pending.admit((1, 100), &account, range(), ()).is_ok());
        assert!(!pending.may_read(&account, 0), "its account is full");
        pending.end(1);
        (1..=2).for_each(|stream| assert!(pending.admit((stream, 1), &account, range(), ()).is_ok()));
        assert!(!pending.may_read(&account, 0), "two requests wait");
        assert!(pending.admit((3, 2 << 20), &account, range(), ()).is_err_and(|refused| !refused.closes));
    }

    #[test]
    fn a_range_ends_its_request_with_its_last_chunk_and_a_plan_does_not() {
        let (mut pending, account, mut out) = (Pending::new(8), Account::unbounded(), BytesMut::new());
        (1..=3).for_each(|stream| assert!(pending.admit((stream, 1), &account, range(), ()).is_ok()));
        let plan = || {
            WireReply::Plan(Box::new(QueryPlan {
                ticket: Ticket { round: 1, replica: coppice_client::wire::ReplicaId(1), n: 7 },
                version: MapVersion(1),
                parts: Vec::new(),
            }))
        };
        assert!(answer(&mut pending, 1, plan()).is_some() && answer(&mut pending, 9, plan()).is_none());
        assert!(answer(&mut pending, 2, job(1)).is_none() && answer(&mut pending, 3, job(0)).is_none());
        assert!(answer(&mut pending, 9, job(1)).is_none(), "nobody waits for it");
        pending.add_part(part(40, 1), Time(0));
        pending.add_part(part(41, 0), Time(0));
        assert!(!pending.send_chunks((&mut out, 1 << 20), &mut Slice::default()));
        assert_eq!(
            sent(&mut out),
            [2, 3, 40, 41].map(|of| (Some(Kind::Part), of)),
            "3 and 41 only announce themselves"
        );
        assert_eq!((pending.len(), pending.ranges(), pending.has_parts()), (2, 1, true), "3 and 41 wait for credit");
        pending.add_credit(3, 1 << 10);
        pending.add_part_credit(41, PartitionId(1), 1 << 10);
        assert!(!pending.send_chunks((&mut out, 1 << 20), &mut Slice::default()));
        assert_eq!((sent(&mut out).len(), pending.len(), pending.has_streams()), (2, 1, false), "the query goes on");
        assert!(answer(&mut pending, 1, WireReply::Nothing).is_some() && pending.is_idle());
    }

    #[test]
    fn what_pins_its_snapshot_for_too_long_ends_and_of_ranges_the_client_hears_that() {
        let (mut pending, account, mut out) = (Pending::new(8), Account::unbounded(), BytesMut::new());
        (1..=2).for_each(|stream| assert!(pending.admit((stream, 1), &account, range(), ()).is_ok()));
        (1..=2).for_each(|stream| assert!(answer(&mut pending, stream, job(0)).is_none()));
        pending.add_part(part(40, 0), Time(0));
        pending.cancel(1);
        let pin = Duration::from_nanos(5);
        assert!(!pending.expire(Time(5), pin, u64::MAX, &mut out) && pending.has_parts());
        assert!(pending.expire(Time(6), pin, u64::MAX, &mut out));
        assert_eq!((sent(&mut out), pending.is_idle()), (vec![(Some(Kind::Refused), 2)], true));
    }

    #[test]
    fn few_statuses_and_verbs_are_under_way() {
        let mut pending = Pending::<()>::new(2);
        (0..CONTROL_REQUESTS_MAX).for_each(|_| assert!(pending.control_begins()));
        assert!(!pending.control_begins());
        pending.control_ends();
        assert!(pending.control_begins());
        (0..CONTROL_REQUESTS_MAX).for_each(|_| pending.control_ends());
        assert!(!pending.has_control());
    }

    /// Requests beyond the bound of those that wait for credit are answered, so that credit is read at last.
    #[test]
    fn a_connection_full_of_ranges_that_wait_for_credit_is_read() {
        for inflight in [2, 3, 4, 1_024] {
            let (mut pending, account) = (Pending::new(inflight), Account::unbounded());
            let mut stream = 0;
            while pending.may_read(&account, 0) && stream < 2 * inflight as u32 {
                stream += 1;
                assert!(pending.admit((stream, 1), &account, range(), ()).is_ok());
                let refusal = answer(&mut pending, stream, job(0));
                assert!(matches!(refusal, None | Some(WireReply::Refused(Refusal::Busy { .. }))));
            }
            let ranges = pending.ranges();
            assert!(pending.may_read(&account, 0) && ranges > 0, "{ranges} of {inflight} stream");
        }
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn streams_that_fill_their_connection_are_caught() {
        let test = "connection::pending::tests::a_connection_full_of_ranges_that_wait_for_credit_is_read";
        planted::assert_caught("streams_fill_connection", test);
    }

    /// A client that cancelled its packs could have had as many of them before a partition as it liked.
    #[test]
    fn a_cancelled_pack_counts_until_it_is_answered() {
        let (mut pending, account) = (Pending::new(8), Account::unbounded());
        (1..=2).for_each(|stream| assert!(pending.admit((stream, 1), &account, pack(stream), ()).is_ok()));
        assert!(pending.admit((3, 1), &account, range(), ()).is_ok());
        assert_eq!((next(&mut pending), next(&mut pending), pending.has_packs()), (Some(1), None, true));
        (1..=3).for_each(|stream| pending.cancel(stream));
        assert_eq!((next(&mut pending), pending.len()), (None, 2), "the range is gone");
        assert!(pending.end(1).is_some());
        assert_eq!((next(&mut pending), pending.has_packs()), (Some(2), false));
    }
}
