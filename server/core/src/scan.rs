//! A range on its way to a client: chunks straight from the leaves of a snapshot, as far as the client's credit
//! reaches.

mod comparison;

use std::collections::VecDeque;

use bytes::BytesMut;
use coppice_btree::{Cursor, Direction, FixedBuffer, Run, VariableRun};
use coppice_client::wire::part::PartHead;
use coppice_client::wire::{
    CollectRequest, CompareRequest, Compared, PartEnd, PartWriter, PartitionId, Position, RangeRequest, ScanOptions,
    Ticket, Version,
};
use coppice_ordering::Instance;

use self::comparison::{Comparison, Progress};
use crate::cost::Account;
use crate::multicast::PartitionQuery;

/// Pairs counted without sending before others have their turn: a fraction of a millisecond.
const COUNT_PAIRS: u64 = 4_096;

/// What is sent of a range, and how much of it unasked.
#[derive(Clone, Copy)]
pub struct Terms {
    scan: ScanOptions,
    credit: u32,
}

impl Terms {
    fn is_reached(self, sum: Sum) -> bool {
        self.scan.is_reached(sum.pairs, sum.bytes)
    }

    /// How many more pairs of eight bytes and eight it takes to reach a limit.
    fn words_left(self, sum: Sum) -> usize {
        let left = |max: u64, now: u64, each: u64| match max {
            0 => u64::MAX,
            _ => max.saturating_sub(now).div_ceil(each),
        };
        let words = left(self.scan.pairs_max, sum.pairs, 1).min(left(self.scan.bytes_max, sum.bytes, WORDS_BYTES));
        usize::try_from(words).unwrap_or(usize::MAX)
    }
}

/// A pair whose key and value have eight bytes each.
const WORDS_BYTES: u64 = 16;

/// Pairs so far, and the bytes of their keys and values.
#[derive(Clone, Copy, Default)]
struct Sum {
    pairs: u64,
    bytes: u64,
}

impl Sum {
    fn add_words(&mut self, pairs: usize) {
        self.pairs += pairs as u64;
        self.bytes += WORDS_BYTES * pairs as u64;
    }

    fn add(&mut self, key: &[u8], value: &[u8]) {
        self.pairs += 1;
        self.bytes += (key.len() + value.len()) as u64;
    }
}

impl From<Box<RangeRequest>> for Terms {
    fn from(range: Box<RangeRequest>) -> Terms {
        Terms { scan: range.scan, credit: range.credit }
    }
}

impl From<&CollectRequest> for Terms {
    fn from(range: &CollectRequest) -> Terms {
        Terms { scan: range.scan, credit: range.credit }
    }
}

impl From<&PartitionQuery> for Terms {
    fn from(partition_query: &PartitionQuery) -> Terms {
        Terms { scan: partition_query.scan, credit: partition_query.credit }
    }
}

/// One range being streamed.
pub struct RangeJob {
    cursor: Box<Cursor>,
    terms: Terms,
    position: Position,
    /// What follows: the rest of the part, if it is compared piece by piece, and the parts in other partitions.
    behind: VecDeque<(Position, Box<Cursor>)>,
    /// Of the query that it is a part of.
    ticket: Option<Ticket>,
    /// For a reader who will ask whether it has changed.
    version: Option<Version>,
    credit: i64,
    number: u32,
    sum: Sum,
    /// Chunks can only hold pairs of eight bytes and eight; until a pair is not.
    eight: bool,
    limited: bool,
    /// With what its reader holds.
    comparison: Option<Box<Comparison>>,
    /// Bytes of nodes that had been copied when it began: what was copied since may live on for this snapshot.
    copied: u64,
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

    /// A range over several partitions, of which there is at least one.
    pub fn collected(parts: Vec<(Position, Box<Cursor>)>, terms: impl Into<Terms>) -> Option<RangeJob> {
        let mut behind = VecDeque::from(parts);
        let (position, cursor) = behind.pop_front()?;
        Some(RangeJob { behind, ..RangeJob::at(position, None, cursor, terms.into()) })
    }

    fn at(position: Position, ticket: Option<Ticket>, cursor: Box<Cursor>, terms: Terms) -> RangeJob {
        RangeJob {
            cursor,
            terms,
            position,
            behind: VecDeque::new(),
            ticket,
            version: None,
            credit: i64::from(terms.credit),
            number: 0,
            sum: Sum::default(),
            eight: true,
            limited: false,
            comparison: None,
            copied: coppice_btree::copied_bytes(),
        }
    }

    /// The same, with the version of what it reads.
    #[must_use]
    pub fn versioned(self, version: Option<Version>) -> RangeJob {
        RangeJob { version, ..self }
    }

    /// The client makes room for more.
    pub fn add_credit(&mut self, bytes: u32) {
        self.credit = self.credit.saturating_add(i64::from(bytes));
    }

    /// Memory that its snapshot keeps alive, at most.
    pub fn kept_bytes(&self) -> u64 {
        coppice_btree::copied_bytes() - self.copied
    }

    /// What the reader holds of it. A range that is not read whole and upward is not compared: its pairs are sent.
    pub fn compare(&mut self, request: CompareRequest, account: &Account) {
        if self.terms.scan == ScanOptions::default() {
            let first = request.first;
            let comparison = self.comparison.get_or_insert_with(|| Box::new(Comparison::new(first, account)));
            comparison.add(request, &mut self.cursor);
        }
    }

    /// Pairs that it has walked over, and bytes that it has hashed.
    pub fn work(&self) -> (u64, u64) {
        let (pairs, bytes) = self.comparison.as_ref().map_or((0, 0), |comparison| comparison.hashed());
        (self.sum.pairs + pairs, bytes)
    }

    /// Whether the next chunk may be sent.
    pub fn may_send(&self) -> bool {
        let goes_on = || self.comparison.as_ref().is_none_or(|comparison| comparison.may_go_on());
        self.announces() || self.credit > 0 && goes_on()
    }

    /// Whether its reader, who has given no credit, is to hear that it begins.
    fn announces(&self) -> bool {
        self.terms.credit == 0 && self.number == 0 && !self.terms.scan.count_only
    }

    /// Appends the next chunk as a frame, if there is one after a while; `true`: it was the last one.
    pub fn send(&mut self, stream: u32, out: &mut BytesMut) -> bool {
        if self.terms.scan.count_only {
            return self.count(stream, out);
        }
        if self.announces() {
            return self.send_empty(stream, None, None, out);
        }
        if let Some(comparison) = &mut self.comparison {
            let mut rest = None;
            let progress = comparison.go_on(&mut self.cursor, &mut rest);
            if let Some(rest) = rest {
                self.behind.push_front((self.position, rest));
            }
            match progress {
                Progress::Pairs => {}
                Progress::Nothing => return false,
                Progress::Compared(compared) => {
                    let done = compared.same;
                    let end = self.end_of_part(done);
                    self.eight = true;
                    self.send_empty(stream, Some(compared), end, out);
                    return self.go_on(done, end);
                }
            }
        }
        let head = self.head(stream);
        let start = out.len();
        let mut part = PartWriter::new(out, &head, self.number, self.eight);
        let before = self.sum.pairs;
        self.fill(&mut part);
        let done = self.limited || self.cursor.is_done();
        if part.count() == 0 && !done {
            // The first pair is not of 8 bytes: begin the chunk again, in the general form.
            out.truncate(start);
            self.eight = false;
            return self.send(stream, out);
        }
        let end = self.end_of_part(done);
        self.credit -= part.finish(before, end) as i64;
        self.number += 1;
        self.go_on(done, end)
    }

    /// Appends a chunk without pairs.
    fn send_empty(
        &mut self,
        stream: u32,
        compared: Option<Compared>,
        end: Option<PartEnd>,
        out: &mut BytesMut,
    ) -> bool {
        let part = PartWriter::new(out, &self.head(stream), self.number, true);
        let part = if let Some(compared) = compared { part.compared(compared) } else { part };
        self.credit -= part.finish(self.sum.pairs, end) as i64;
        self.number += 1;
        end.is_some()
    }

    /// How the range ends, if it ends with this part.
    fn end_of_part(&self, done: bool) -> Option<PartEnd> {
        match done {
            true if self.limited => Some(PartEnd::Limited),
            true if self.behind.is_empty() => Some(PartEnd::Complete),
            _ => None,
        }
    }

    /// Behind a chunk, the last one of its part or piece or not: whether the range has ended.
    fn go_on(&mut self, done: bool, end: Option<PartEnd>) -> bool {
        if done
            && end.is_none()
            && let Some((position, cursor)) = self.behind.pop_front()
        {
            if let Some(comparison) = &mut self.comparison {
                comparison.ends_piece();
            }
            (self.position, self.cursor, self.eight) = (position, cursor, true);
        }
        end.is_some()
    }

    fn fill(&mut self, part: &mut PartWriter<'_>) {
        let RangeJob { cursor, terms, sum, limited, .. } = self;
        let direction = cursor.direction();
        let mut buffer: FixedBuffer = [[0; 16]; _];
        cursor.walk(|run| {
            let taken = match run {
                _ if *limited => 0,
                Run::Fixed(run) => {
                    let words = run.copy_to(&mut buffer);
                    if direction == Direction::Reverse {
                        words.reverse();
                    }
                    let taken = part.push_words(&words[..words.len().min(terms.words_left(*sum))]);
                    sum.add_words(taken);
                    taken
                }
                Run::Variable(run) => take_while(run, direction, |key, value| {
                    let taken = !terms.is_reached(*sum) && part.push(key, value);
                    if taken {
                        sum.add(key, value);
                    }
                    taken
                }),
            };
            *limited = terms.is_reached(*sum);
            taken
        });
    }

    fn head(&self, stream: u32) -> PartHead {
        let RangeJob { position, ticket, version, terms: Terms { scan: ScanOptions { keys_only, .. }, .. }, .. } =
            *self;
        PartHead { stream, position, ticket, version, keys_only }
    }

    fn count(&mut self, stream: u32, out: &mut BytesMut) -> bool {
        let RangeJob { cursor, terms, sum, limited, .. } = self;
        let until = sum.pairs + COUNT_PAIRS;
        let direction = cursor.direction();
        cursor.walk(|run| {
            let taken = match run {
                _ if *limited || sum.pairs >= until => 0,
                Run::Fixed(run) => {
                    let taken = run.len().min(terms.words_left(*sum));
                    sum.add_words(taken);
                    taken
                }
                Run::Variable(run) => take_while(run, direction, |key, value| {
                    let taken = !terms.is_reached(*sum) && sum.pairs < until;
                    if taken {
                        sum.add(key, value);
                    }
                    taken
                }),
            };
            *limited = terms.is_reached(*sum);
            taken
        });
        let done = self.limited || self.cursor.is_done();
        let end = self.end_of_part(done);
        if done {
            let part = PartWriter::new(out, &self.head(stream), self.number, true);
            part.finish(self.sum.pairs, end);
            self.number += 1;
        }
        self.go_on(done, end)
    }
}

/// Hands out pairs until `take` refuses one; returns how many it took.
fn take_while(run: VariableRun<'_>, direction: Direction, mut take: impl FnMut(&[u8], &[u8]) -> bool) -> usize {
    let take = |&(key, value): &(&[u8], &[u8])| take(key, value);
    match direction {
        Direction::Forward => run.pairs().take_while(take).count(),
        Direction::Reverse => run.pairs().rev().take_while(take).count(),
    }
}

#[cfg(test)]
mod tests {
    use coppice_btree::{KeyRange, Tree};
    use coppice_client::wire::{FrameDecoder, PART_BYTES, Part};

    use super::*;

    type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

    /// Enough pairs for several chunks; `wide`: one of so many is not of 8 bytes and 8.
    fn pairs(count: u64, wide: u64) -> Pairs {
        let pair = |n: u64| {
            let key = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
            match n % wide {
                0 if n.is_multiple_of(2) => ([&key[..], b"longer"].concat(), n.to_le_bytes().to_vec()),
                0 => (key.to_vec(), vec![n as u8; n as usize % 300]),
                _ => (key.to_vec(), n.to_le_bytes().to_vec()),
            }
        };
        let mut pairs: Pairs = (1..=count).map(pair).collect();
        pairs.sort();
        pairs
    }

    fn terms(pairs_max: u64, bytes_max: u64) -> Terms {
        Terms { scan: ScanOptions { pairs_max, bytes_max, ..ScanOptions::default() }, credit: u32::MAX }
    }

    /// All that a range sends: its pairs, and what its last chunk says.
    fn send(tree: &Tree, direction: Direction, terms: Terms) -> (Pairs, u64, PartEnd) {
        let cursor = Box::new(tree.cursor(KeyRange::all(), direction));
        let position = Position { partition: PartitionId(1), instance: 5, index: 0 };
        let mut job = RangeJob::at(position, None, cursor, terms);
        let mut out = BytesMut::new();
        while !job.send(7, &mut out) {}
        let mut decoder = FrameDecoder::default();
        decoder.feed(&out);
        let (mut pairs, mut number, mut end) = (Pairs::new(), 0, None);
        while let Some(frame) = decoder.next_frame().expect("our own frames") {
            let part = Part::decode(&frame.body).expect("a chunk of ours");
            assert!(end.is_none() && part.number == number && frame.body.len() <= PART_BYTES + 64);
            pairs.extend(part.pairs().map(|(key, value)| (key.to_vec(), value.to_vec())));
            assert!(terms.scan.count_only || part.pairs_so_far == pairs.len() as u64);
            number += 1;
            end = part.end.map(|end| (part.pairs_so_far, end));
        }
        let (sum, end) = end.expect("a last chunk");
        (pairs, sum, end)
    }

    #[test]
    fn a_range_sends_its_pairs_up_to_its_limits() {
        for (count, wide) in [(40_000, u64::MAX), (9_000, 5_000), (3_000, 2), (1, 3), (0, 1)] {
            let mut model = pairs(count, wide);
            let mut tree = Tree::new();
            model.iter().for_each(|(key, value)| drop(tree.put(key, value)));
            for direction in [Direction::Forward, Direction::Reverse] {
                for pairs_max in [0, 1, 31, 1_000, count, 50_000] {
                    for bytes_max in [0, 1, 17, 10_000, 600_000] {
                        let terms = terms(pairs_max, bytes_max);
                        let (mut expected, mut bytes) = (model.clone(), 0);
                        let reached = model.iter().enumerate().position(|(at, (key, value))| {
                            bytes += (key.len() + value.len()) as u64;
                            terms.is_reached(Sum { pairs: at as u64 + 1, bytes })
                        });
                        expected.truncate(reached.map_or(model.len(), |at| at + 1));
                        let end = if reached.is_some() { PartEnd::Limited } else { PartEnd::Complete };
                        let what = format!("{count} {wide} {direction:?} {pairs_max} {bytes_max}");
                        let sum = expected.len() as u64;
                        assert!(send(&tree, direction, terms) == (expected.clone(), sum, end), "{what}");
                        let counted = send(
                            &tree,
                            direction,
                            Terms { scan: ScanOptions { count_only: true, ..terms.scan }, ..terms },
                        );
                        assert!(counted == (Pairs::new(), sum, end), "{what}");
                        expected.iter_mut().for_each(|(_, value)| value.clear());
                        let keys = send(
                            &tree,
                            direction,
                            Terms { scan: ScanOptions { keys_only: true, ..terms.scan }, ..terms },
                        );
                        assert!(keys == (expected, sum, end), "{what}");
                    }
                }
                model.reverse();
            }
        }
    }
}
