//! Requests of one connection, from their arrival to their answers: which stream waits for one, and which packs wait
//! until others are answered.

use std::collections::BTreeMap;
use std::sync::Arc;

use coppice_client::wire::{PartitionId, Refusal};

use super::RefusedFrame;
use super::packs::{Pack, Packs};
use crate::cost::{Account, Charge};
use crate::request::Request;
use crate::wire_reply::busy;
use crate::worker::Input;

/// Bytes that wait to be read by the client; beyond, its requests are not read.
const UNREAD_BYTES_MAX: usize = 8 << 20;

/// Statuses and verbs of one connection that may be under way: the operators' tools ask one at a time. Beyond: `Busy`.
const CONTROL_REQUESTS_MAX: usize = 4;

/// What waits on one connection; a driver remembers a `T` of each request.
pub struct Pending<T> {
    /// How many may wait (`limits.inflight`): at least two.
    inflight: usize,
    requests: BTreeMap<u32, PendingRequest<T>>,
    /// Those on their way to their partitions; they have their place in `requests`.
    packs: Packs<Input>,
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
        Pending { inflight, requests, packs, answer_bytes: 0, control_requests: 0 }
    }

    /// Whether the connection is read: one more request may wait, and its client reads what is written to it, of which
    /// `unread_bytes` wait.
    pub fn may_read(&self, account: &Account, unread_bytes: usize) -> bool {
        unread_bytes < UNREAD_BYTES_MAX && self.requests.len() < self.inflight && account.room() > 0
    }

    /// A status or a verb is under way from here on; `false`: as many are as may be.
    pub fn control_begins(&mut self) -> bool {
        let may_begin = self.control_requests < CONTROL_REQUESTS_MAX;
        self.control_requests += usize::from(may_begin);
        may_begin
    }

    /// It is not any more.
    pub fn control_ends(&mut self) {
        self.control_requests = self.control_requests.saturating_sub(1);
    }

    /// Whether a status or a verb is under way.
    pub fn has_control(&self) -> bool {
        self.control_requests > 0
    }

    /// Whether one more answer may wait for credit of the client, beside so many that do: each pins a snapshot. Beyond
    /// three quarters of the requests: `Busy`. A connection full of them would not be read, their credit included.
    pub fn may_stream(&self, streams: usize) -> bool {
        streams < (self.inflight / 4 * 3).max(1) || mutant!(streams_fill_connection)
    }

    /// How many requests wait for an answer.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
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
            return Err(RefusedFrame { refusal: busy(), closes: false });
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

    /// A pack's answer takes so many bytes.
    pub fn pack_answered(&mut self, bytes: usize) {
        self.answer_bytes = bytes.max(self.answer_bytes - self.answer_bytes / 8);
    }

    /// The oldest pack that waits and whose partition has room for it: what the worker is told of it.
    pub fn next_pack(&mut self) -> Option<Input> {
        self.packs.pop().map(|pack| pack.request)
    }

    /// Whether packs wait until others are answered.
    pub fn has_packs(&self) -> bool {
        self.packs.are_held()
    }

    /// The client no longer waits. A pack takes effect, and its work is done, whoever waits for it.
    pub fn cancel(&mut self, stream: u32) {
        if self.requests.get(&stream).is_some_and(|request| request.work.is_none()) {
            self.end(stream);
        }
    }

    /// The request of `stream` is answered; `true` if it waited.
    pub fn end(&mut self, stream: u32) -> bool {
        let ended = self.requests.remove(&stream);
        if let Some((group, work)) = ended.as_ref().and_then(|request| request.work) {
            self.packs.answered(group, work);
        }
        ended.is_some()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use coppice_client::wire::{CollectRequest, PACK_WORK_MAX, ScanOptions};

    use super::*;
    use crate::cost::{Budget, ClientBytes};
    use crate::request::Origin;

    fn pack(stream: u32) -> Input {
        let request = Request::Pack { entry: Bytes::new(), commands: 1, work: PACK_WORK_MAX, grows: true };
        let origin = Origin::Client { worker: 0, stream, connection: 1 };
        Input::Request { group: PartitionId(1), origin, request }
    }

    fn range() -> Input {
        let range = CollectRequest { parts: Vec::new(), high: None, scan: ScanOptions::default(), credit: 0 };
        Input::Collect { origin: Origin::Nobody, range }
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
        assert!(pending.end(5) && !pending.end(5));
        assert!(pending.admit((5, 1), &account, range(), "third").is_ok());
    }

    #[test]
    fn a_request_is_charged_for_its_bytes_and_a_pack_for_an_answer_like_those_of_late() {
        let (mut pending, account) = (Pending::new(8), Account::unbounded());
        let take = |pending: &mut Pending<()>, input: Input| {
            let before = account.bytes();
            assert!(pending.admit((7, 10), &account, input, ()).is_ok());
            let taken = account.bytes() - before;
            assert!(next(pending).is_none_or(|stream| stream == 7) && pending.end(7));
            taken
        };
        assert_eq!(take(&mut pending, pack(7)), 10);
        pending.pack_answered(800);
        assert_eq!((take(&mut pending, pack(7)), take(&mut pending, range())), (810, 10));
        pending.pack_answered(8);
        assert_eq!(take(&mut pending, pack(7)), 710, "it is forgotten by eighths");
        assert_eq!(account.bytes(), 0);
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
            let (mut stream, mut streams) = (0, 0);
            while pending.may_read(&account, 0) && stream < 2 * inflight as u32 {
                stream += 1;
                assert!(pending.admit((stream, 1), &account, range(), ()).is_ok());
                match pending.may_stream(streams) {
                    true => streams += 1,
                    false => assert!(pending.end(stream)),
                }
            }
            assert!(pending.may_read(&account, 0) && streams > 0, "{streams} of {inflight} stream");
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
        assert!(pending.end(1));
        assert_eq!((next(&mut pending), pending.has_packs()), (Some(2), false));
    }
}
