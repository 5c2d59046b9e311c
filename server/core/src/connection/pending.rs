//! Requests of one connection, from their arrival to their answers: which stream waits for one, and which packs wait
//! until others are answered.

use std::collections::BTreeMap;

use coppice_client::wire::{PartitionId, Refusal};

use super::packs::{Pack, Packs};
use crate::request::Request;
use crate::worker::Input;

/// What waits on one connection; a driver remembers a `T` of each request.
pub struct Pending<T> {
    /// How many may wait (`limits.inflight`): at least two.
    inflight: usize,
    requests: BTreeMap<u32, PendingRequest<T>>,
    /// Those on their way to their partitions; they have their place in `requests`.
    packs: Packs<Input>,
}

struct PendingRequest<T> {
    /// Of a pack: its partition, and what executing it costs there.
    work: Option<(PartitionId, u32)>,
    remembered: T,
}

impl<T> Pending<T> {
    /// Nothing, where so many requests may wait (`limits.inflight`).
    pub fn new(inflight: usize) -> Pending<T> {
        Pending { inflight, requests: BTreeMap::new(), packs: Packs::default() }
    }

    /// Whether one more request may wait; if not, the connection is not read.
    pub fn has_room(&self) -> bool {
        self.requests.len() < self.inflight
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

    /// Whether a request may come on `stream`.
    ///
    /// # Errors
    /// Another one waits there: the connection ends, since answers to the two could not be told apart.
    pub fn check(&self, stream: u32) -> Result<(), Refusal> {
        match self.requests.contains_key(&stream) {
            true => Err(Refusal::BadRequest { text: format!("stream {stream} is in use") }),
            false => Ok(()),
        }
    }

    /// A request has come on a `stream` that is free. What the worker is told at once; a pack waits for
    /// [`Pending::next_pack`].
    pub fn begin(&mut self, stream: u32, input: Input, remembered: T) -> Option<Input> {
        let work = match &input {
            Input::Request { group, request: Request::Pack { work, .. }, .. } => Some((*group, *work)),
            _ => None,
        };
        self.requests.insert(stream, PendingRequest { work, remembered });
        let Some((group, work)) = work else { return Some(input) };
        self.packs.push(Pack { group, work, request: input });
        None
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
        assert!(pending.check(5).is_ok());
        assert!(pending.begin(5, range(), "first").is_some(), "nothing holds it");
        assert!(pending.check(5).is_err() && pending.check(6).is_ok());
        assert_eq!((pending.get(5), pending.get(6)), (Some(&"first"), None));
        assert!(pending.end(5) && !pending.end(5));
        assert!(pending.check(5).is_ok() && pending.is_empty());
    }

    /// Requests beyond the bound of those that wait for credit are answered, so that credit is read at last.
    #[test]
    fn a_connection_full_of_ranges_that_wait_for_credit_is_read() {
        for inflight in [2, 3, 4, 1_024] {
            let (mut pending, mut streams) = (Pending::new(inflight), 0);
            let mut stream = 0;
            while pending.has_room() && stream < 2 * inflight as u32 {
                stream += 1;
                pending.begin(stream, range(), ());
                match pending.may_stream(streams) {
                    true => streams += 1,
                    false => assert!(pending.end(stream)),
                }
            }
            assert!(pending.has_room() && streams > 0, "{streams} of {inflight} stream");
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
        let mut pending = Pending::new(8);
        (1..=2).for_each(|stream| assert!(pending.begin(stream, pack(stream), ()).is_none()));
        assert!(pending.begin(3, range(), ()).is_some());
        assert_eq!((next(&mut pending), next(&mut pending), pending.has_packs()), (Some(1), None, true));
        (1..=3).for_each(|stream| pending.cancel(stream));
        assert_eq!((next(&mut pending), pending.len()), (None, 2), "the range is gone");
        assert!(pending.end(1));
        assert_eq!((next(&mut pending), pending.has_packs()), (Some(2), false));
    }
}
