//! What waits on a client's connection: answers on their way out, ranges that stream, and what they are charged for.

use bytes::{Bytes, BytesMut};
use coppice_client::wire::{Refusal as Refused, RepliesWriter};

use super::{Connection, State};
use crate::cost::Account;
use crate::net::streams::PumpRoom;

/// Pairs that ranges walk over in one go: a quarter of a millisecond. Beyond, others have their turn.
const RANGES_PAIRS_MAX: u64 = 16_384;

/// Range chunks are made while less than this waits to be written.
const RANGES_BYTES_MAX: usize = 1 << 20;

/// Answers may grow by so many bytes before the account is told.
const SETTLE_BYTES: usize = 64 << 10;

impl Connection {
    /// Appends a frame to what is written at the end of the turn.
    pub fn append(&self, write: impl FnOnce(&mut BytesMut)) {
        self.state.borrow_mut().outbox.append(write);
    }
}

impl State {
    pub(super) fn refuse(&mut self, stream: u32, refusal: &Refused) {
        self.outbox.append(|out| refusal.encode(out, stream));
    }

    /// The request is answered; `true` if reading had to wait for that.
    pub(super) fn done(&mut self, stream: u32) -> bool {
        self.waiting.remove(&stream).is_some()
    }

    pub(super) fn push_answer(&mut self, stream: u32, answer: Bytes) {
        self.answers_bytes += answer.len();
        self.answers.push((stream, answer));
        if self.outbox.bytes() + self.answers_bytes > self.unread_bytes + SETTLE_BYTES {
            self.settle();
        }
    }

    /// Charges the account for what waits to be read by the client, and the node for the chunks among that: those that
    /// were written, or dropped with the connection, wait no more.
    pub(super) fn settle(&mut self) {
        self.unread_bytes = self.outbox.bytes() + self.answers_bytes;
        self.unread.resize(self.unread_bytes);
        let left = self.scan_bytes.min(self.outbox.bytes());
        self.shared.add_scan_bytes(left as i64 - self.scan_bytes as i64);
        self.scan_bytes = left;
    }

    /// No more is read, and nothing more written.
    pub(super) fn end(&mut self) {
        self.closing = true;
        self.outbox.clear();
        self.answers.clear();
        self.answers_bytes = 0;
        self.settle();
    }

    pub(super) fn open_account(&mut self, account: Account) {
        self.unread = account.charge(self.unread_bytes);
        self.account = account;
    }

    pub(super) fn frame_answers(&mut self) {
        if self.answers.is_empty() {
            return;
        }
        let State { answers, outbox, .. } = self;
        self.answers_bytes = 0;
        outbox.append(|out| {
            let mut replies = RepliesWriter::new(out);
            for (stream, answer) in answers.drain(..) {
                // What the executor wrote is well formed; were it not, the client would time out and ask again.
                _ = replies.answer(stream, &answer);
            }
            replies.finish();
        });
    }

    /// Makes a chunk of each range and part that has credit; `true` if there is more to make.
    pub(super) fn pump_ranges(&mut self) -> bool {
        // Beyond `limits.scan_bytes` they wait until other clients have read: looked at again by the clock.
        if !self.shared.may_scan(self.scan_bytes) {
            return false;
        }
        let before = self.outbox.bytes();
        let State { ranges, parts, outbox, .. } = self;
        let mut ended = Vec::new();
        let room = PumpRoom { bytes_max: RANGES_BYTES_MAX, pairs_max: RANGES_PAIRS_MAX };
        let mut more = ranges.pump((outbox, room), |stream| stream, |stream| ended.push(stream));
        more |= parts.pump((outbox, room), |(query, _)| query, |_| {});
        for stream in ended {
            self.done(stream);
        }
        let made = self.outbox.bytes() - before;
        self.scan_bytes += made;
        self.shared.add_scan_bytes(made as i64);
        more
    }
}
