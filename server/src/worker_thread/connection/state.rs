//! What waits on a client's connection: answers on their way out, ranges that stream, and what they are charged for.

use std::cell::RefCell;

use bytes::Bytes;
use coppice_client::wire::{Refusal as Refused, RepliesWriter};
use coppice_core::connection::{FrameSink, Slice};
use coppice_core::cost::{Account, Charge};
use coppice_core::wire_reply::ReadValues;

use super::{Connection, State};
use crate::worker_thread::WorkerThread;

/// An answer of more bytes is written when there is time for it: others have their turn between two of them.
const LARGE_BYTES: usize = 64 << 10;

/// Large answers and range chunks are made while less than this waits to be written.
const RANGES_BYTES_MAX: usize = 1 << 20;

/// Answers may grow by so many bytes before the account is told.
const SETTLE_BYTES: usize = 64 << 10;

impl State {
    pub(super) fn refuse(&mut self, stream: u32, refusal: &Refused) {
        self.outbox.append(|out| refusal.encode(out, stream));
    }

    pub(super) fn push_answer(&mut self, stream: u32, answer: Bytes) {
        if answer.len() > LARGE_BYTES {
            let charge = self.charges.account.charge(answer.len());
            return self.answers.large.push_back((stream, Large::Pack(answer, charge)));
        }
        self.answers.bytes += answer.len();
        self.answers.small.push((stream, answer));
        if self.outbox.bytes() + self.answers.bytes > self.charges.unread_bytes + SETTLE_BYTES {
            self.settle();
        }
    }

    /// The answer to a read: written at once, or, if it is large, when there is time and room for it.
    pub(super) fn push_read(&mut self, stream: u32, read: ReadValues) {
        match read.bytes() > LARGE_BYTES {
            true => self.answers.large.push_back((stream, Large::Read(read))),
            false => self.push_answer(stream, read.encode()),
        }
    }

    /// Charges the account for what waits to be read by the client, and the node for the chunks among that: those that
    /// were written, or dropped with the connection, wait no more.
    pub(super) fn settle(&mut self) {
        self.charges.unread_bytes = self.outbox.bytes() + self.answers.bytes;
        self.charges.unread.resize(self.charges.unread_bytes);
        let left = self.scan_bytes.min(self.outbox.bytes());
        self.shared.usage.add_scan_bytes(left as i64 - self.scan_bytes as i64);
        self.scan_bytes = left;
    }

    /// No more is read, and nothing more written.
    pub(super) fn end(&mut self) {
        self.lifecycle.close();
        self.outbox.clear();
        self.answers.small.clear();
        self.answers.large.clear();
        self.answers.bytes = 0;
        self.settle();
    }

    pub(super) fn open_account(&mut self, account: Account) {
        self.charges.unread = account.charge(self.charges.unread_bytes);
        self.charges.account = account;
    }

    pub(super) fn frame_answers(&mut self) {
        if self.answers.small.is_empty() {
            return;
        }
        let mut answers = std::mem::take(&mut self.answers.small);
        self.answers.bytes = 0;
        self.write_answers(answers.drain(..));
        self.answers.small = answers;
    }

    fn write_answers(&mut self, answers: impl IntoIterator<Item = (u32, Bytes)>) {
        self.outbox.append(|out| {
            let mut replies = RepliesWriter::new(out);
            for (stream, answer) in answers {
                // What the executor wrote is well formed; were it not, the client would time out and ask again.
                _ = replies.answer(stream, &answer);
            }
            replies.finish();
        });
    }

    /// Whether writing what waits takes time: the system copies it.
    pub(super) fn has_much_to_write(&self) -> bool {
        self.outbox.bytes() > LARGE_BYTES
    }

    /// Writes large answers, and makes a chunk of each range and part that has credit; `true` if there is more to make.
    pub(super) fn make_answers(&mut self, slice: &mut Slice) -> bool {
        while !slice.is_spent()
            && self.outbox.bytes() < RANGES_BYTES_MAX
            && let Some((stream, large)) = self.answers.large.pop_front()
        {
            let (answer, _charge) = match large {
                Large::Pack(answer, charge) => (answer, Some(charge)),
                Large::Read(read) => (read.encode(), None),
            };
            slice.bytes = slice.bytes.saturating_sub(answer.len());
            self.write_answers([(stream, answer)]);
        }
        self.send_ranges(slice) || !self.answers.large.is_empty()
    }

    fn send_ranges(&mut self, slice: &mut Slice) -> bool {
        let may_send = self.pending.may_send();
        if !may_send || slice.is_spent() {
            return may_send;
        }
        // Beyond `limits.scan_bytes` they wait until other clients have read: looked at again by the clock.
        if !self.shared.usage.may_scan(self.scan_bytes) {
            return false;
        }
        let before = self.outbox.bytes();
        let more = self.pending.send_chunks((&mut self.outbox, RANGES_BYTES_MAX), slice);
        let made = self.outbox.bytes() - before;
        self.scan_bytes += made;
        self.shared.usage.add_scan_bytes(made as i64);
        more
    }
}

/// An answer that takes time to write.
pub(super) enum Large {
    /// Written already, and to be framed.
    Pack(Bytes, Charge),
    /// Not written.
    Read(ReadValues),
}

/// Refuses the request on `stream`, and reads nothing more.
pub(super) fn refuse_and_close(thread: &RefCell<WorkerThread>, connection: &Connection, stream: u32, refusal: Refused) {
    {
        let mut state = connection.state.borrow_mut();
        state.refuse(stream, &refusal);
        state.lifecycle.close();
    }
    thread.borrow_mut().touch_connection(connection);
}
