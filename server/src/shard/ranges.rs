//! A range on its way to a client: chunks straight from the leaves of a snapshot, as far as the client's credit
//! reaches.

use std::time::{Duration, Instant as Clock};

use bytes::BytesMut;
use coppice_btree::Cursor;
use coppice_client::wire::part::PartHead;
use coppice_client::wire::{PartEnd, PartWriter, PartitionId, Position, RangeRequest, Ticket};
use coppice_ordering::Instance;

use crate::multicast::Share;

/// Pairs counted without sending, per turn: about a millisecond of walking.
const COUNT_PAIRS: u64 = 65_536;

/// What is sent of a range, and how much of it unasked.
#[derive(Clone, Copy)]
pub struct Terms {
    keys_only: bool,
    count_only: bool,
    /// 0: no limit.
    pairs_max: u64,
    /// 0: no limit.
    bytes_max: u64,
    credit: u32,
}

impl Terms {
    fn is_reached(self, pairs: u64, bytes: u64) -> bool {
        (self.pairs_max > 0 && pairs >= self.pairs_max) || (self.bytes_max > 0 && bytes >= self.bytes_max)
    }
}

impl From<Box<RangeRequest>> for Terms {
    fn from(range: Box<RangeRequest>) -> Terms {
        let RangeRequest { keys_only, count_only, pairs_max, bytes_max, credit, .. } = *range;
        Terms { keys_only, count_only, pairs_max, bytes_max, credit }
    }
}

impl From<&Share> for Terms {
    fn from(share: &Share) -> Terms {
        let Share { keys_only, count_only, pairs_max, bytes_max, credit, .. } = *share;
        Terms { keys_only, count_only, pairs_max, bytes_max, credit }
    }
}

/// One range being streamed.
pub struct RangeJob {
    cursor: Box<Cursor>,
    terms: Terms,
    position: Position,
    /// Of the query that it is a part of.
    ticket: Option<Ticket>,
    credit: i64,
    number: u32,
    pairs: u64,
    bytes: u64,
    eight: bool,
    /// A pair that did not fit the chunk before.
    carried: Option<(Vec<u8>, Vec<u8>)>,
    limited: bool,
    since: Clock,
}

impl RangeJob {
    /// A range of `partition`, read at `instance`.
    pub fn new(partition: PartitionId, instance: Instance, cursor: Box<Cursor>, terms: impl Into<Terms>) -> RangeJob {
        let position = Position { partition, instance: instance.0, index: 0 };
        RangeJob::at(position, None, cursor, terms.into())
    }

    /// A part of the query with this ticket, as of `position`.
    pub fn of_query(position: Position, ticket: Ticket, cursor: Box<Cursor>, terms: impl Into<Terms>) -> RangeJob {
        RangeJob::at(position, Some(ticket), cursor, terms.into())
    }

    fn at(position: Position, ticket: Option<Ticket>, cursor: Box<Cursor>, terms: Terms) -> RangeJob {
        RangeJob {
            cursor,
            terms,
            position,
            ticket,
            credit: i64::from(terms.credit),
            number: 0,
            pairs: 0,
            bytes: 0,
            eight: true,
            carried: None,
            limited: false,
            since: Clock::now(),
        }
    }

    /// The client makes room for more.
    pub fn add_credit(&mut self, bytes: u32) {
        self.credit = self.credit.saturating_add(i64::from(bytes));
    }

    /// How long the snapshot has been pinned.
    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Whether the next chunk may be sent.
    pub fn may_send(&self) -> bool {
        self.credit > 0
    }

    /// Appends the next chunk as a frame; `true`: it was the last one.
    pub fn send(&mut self, stream: u32, out: &mut BytesMut) -> bool {
        if self.terms.count_only {
            return self.count(stream, out);
        }
        let head = self.head(stream);
        let start = out.len();
        let mut part = PartWriter::new(out, &head, self.number, self.eight);
        let before = self.pairs;
        self.fill(&mut part);
        if part.count() == 0 && self.carried.is_some() && part.is_eight() {
            // The first pair is not of 8 bytes: begin the chunk again, in the general form.
            out.truncate(start);
            self.eight = false;
            return self.send(stream, out);
        }
        let done = self.limited || (self.cursor.is_done() && self.carried.is_none());
        let end = done.then_some(if self.limited { PartEnd::Limited } else { PartEnd::Complete });
        self.credit -= part.finish(before, end) as i64;
        self.number += 1;
        done
    }

    fn fill(&mut self, part: &mut PartWriter<'_>) {
        if let Some((key, value)) = self.carried.take() {
            if !part.push(&key, &value) {
                self.carried = Some((key, value));
                return;
            }
            self.note(&key, &value);
        }
        if self.limited {
            return;
        }
        let RangeJob { cursor, terms, pairs, bytes, carried, limited, .. } = self;
        cursor.walk(|key, value| {
            if !part.push(&key, value) {
                *carried = Some((key.to_vec(), value.to_vec()));
                return false;
            }
            *pairs += 1;
            *bytes += (key.len() + value.len()) as u64;
            *limited = terms.is_reached(*pairs, *bytes);
            !*limited
        });
        if self.carried.is_some() && part.is_eight() && part.count() > 0 {
            let (key, value) = self.carried.as_ref().map_or((8, 8), |(key, value)| (key.len(), value.len()));
            self.eight = key == 8 && (value == 8 || self.terms.keys_only);
        }
    }

    fn note(&mut self, key: &[u8], value: &[u8]) {
        self.pairs += 1;
        self.bytes += (key.len() + value.len()) as u64;
        self.limited = self.terms.is_reached(self.pairs, self.bytes);
    }

    fn head(&self, stream: u32) -> PartHead {
        PartHead { stream, position: self.position, ticket: self.ticket, keys_only: self.terms.keys_only }
    }

    fn count(&mut self, stream: u32, out: &mut BytesMut) -> bool {
        let until = self.pairs + COUNT_PAIRS;
        let RangeJob { cursor, terms, pairs, bytes, limited, .. } = self;
        cursor.walk(|key, value| {
            *pairs += 1;
            *bytes += (key.len() + value.len()) as u64;
            *limited = terms.is_reached(*pairs, *bytes);
            !*limited && *pairs < until
        });
        let done = self.limited || self.cursor.is_done();
        if done {
            let part = PartWriter::new(out, &self.head(stream), 0, true);
            part.finish(self.pairs, Some(if self.limited { PartEnd::Limited } else { PartEnd::Complete }));
        }
        done
    }
}
