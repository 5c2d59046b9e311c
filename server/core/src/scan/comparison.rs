//! What the reader of a range holds of it, as far as it has said, and how far that is compared with what is read.
//!
//! A range that is compared is walked piece by piece: a stretch that the reader named, or what lies between two. Of a
//! stretch the pairs are hashed first, some at a time; if they differ, the same piece of the same snapshot is walked
//! again, and sent.

use std::collections::VecDeque;

use coppice_btree::{Cursor, FixedBuffer, Run};
use coppice_client::wire::compare::PairsHasher;
use coppice_client::wire::{CompareRequest, Compared, STRETCHES_MAX, Stretch};

use super::take_while;
use crate::cost::{Account, Charge};

/// Bytes that are hashed before others have their turn: a tenth of a millisecond.
const HASH_BYTES: u64 = 64 * 1024;

/// See the module.
pub(super) struct Comparison {
    stretches: VecDeque<Stretch>,
    /// Number of the first of them.
    number: u64,
    /// None follows them.
    last: bool,
    piece: Piece,
    /// Pairs that were hashed, and the bytes of their keys and values.
    hashed: (u64, u64),
    /// Of the stretches.
    charge: Charge,
}

/// What is done with the piece at hand.
enum Piece {
    /// It is to be chosen.
    Next,
    /// Its pairs are sent.
    Sent,
    /// It is the first stretch, and hashed.
    Hashed { start: Box<Cursor>, hasher: Box<PairsHasher> },
}

/// What is to be sent next.
pub(super) enum Progress {
    /// The pairs of the piece.
    Pairs,
    /// What became of a stretch.
    Compared(Compared),
    /// Nothing yet.
    Nothing,
}

impl Comparison {
    pub(super) fn new(first: u64, account: &Account) -> Comparison {
        let (stretches, charge) = (VecDeque::new(), account.charge(0));
        Comparison { stretches, number: first, last: false, piece: Piece::Next, hashed: (0, 0), charge }
    }

    /// Takes what the reader says next. More than may wait, or out of order: nothing more is compared, and all is sent.
    pub(super) fn add(&mut self, request: CompareRequest, cursor: &mut Box<Cursor>) {
        let CompareRequest { first, stretches, last } = request;
        let in_sequence = first == self.number + self.stretches.len() as u64 && !self.last;
        let behind = self.stretches.back().zip(stretches.first()).is_none_or(|(back, first)| {
            let high = back.high.as_ref();
            high.is_some_and(|high| *high <= first.low)
        });
        self.last |= last;
        if in_sequence && behind && self.stretches.len() + stretches.len() <= STRETCHES_MAX {
            self.stretches.extend(stretches);
        } else {
            if let Piece::Hashed { start, .. } = std::mem::replace(&mut self.piece, Piece::Next) {
                *cursor = start;
            }
            self.stretches.clear();
            self.last = true;
        }
        self.recharge();
    }

    /// Whether it is known what comes next.
    pub(super) fn may_go_on(&self) -> bool {
        !matches!(self.piece, Piece::Next) || !self.stretches.is_empty() || self.last
    }

    /// A piece was walked to its end.
    pub(super) fn ends_piece(&mut self) {
        self.piece = Piece::Next;
    }

    /// Goes on with what is left of a part, or of a piece of it. What is cut off behind the piece at hand is put into
    /// `rest`.
    pub(super) fn go_on(&mut self, cursor: &mut Box<Cursor>, rest: &mut Option<Box<Cursor>>) -> Progress {
        match &mut self.piece {
            Piece::Sent => Progress::Pairs,
            Piece::Next => self.choose(cursor, rest),
            Piece::Hashed { hasher, .. } => {
                let Some(Stretch { sum, .. }) = self.stretches.front() else { return Progress::Nothing };
                let before = (hasher.pairs(), hasher.bytes());
                let until = before.1 + HASH_BYTES;
                let differs = |hasher: &PairsHasher| hasher.pairs() > sum.pairs || hasher.bytes() > sum.bytes;
                let mut take = |key: &[u8], value: &[u8]| {
                    let taken = hasher.bytes() < until && !differs(hasher);
                    if taken {
                        hasher.push(key, value);
                    }
                    taken
                };
                let direction = cursor.direction();
                cursor.walk(|run| match run {
                    Run::Fixed(run) => {
                        let mut buffer: FixedBuffer = [[0; 16]; _];
                        let pairs = run.copy_to(&mut buffer);
                        pairs.iter().take_while(|pair| take(&pair[..8], &pair[8..])).count()
                    }
                    Run::Variable(run) => take_while(run, direction, &mut take),
                });
                self.hashed.0 += hasher.pairs() - before.0;
                self.hashed.1 += hasher.bytes() - before.1;
                match cursor.is_done() || differs(hasher) {
                    true => self.compare(cursor),
                    false => Progress::Nothing,
                }
            }
        }
    }

    /// Chooses the next piece of what is left of a part: the first stretch, or what lies before it.
    fn choose(&mut self, cursor: &mut Box<Cursor>, rest: &mut Option<Box<Cursor>>) -> Progress {
        let left = cursor.rest();
        let is_inside = |key: &[u8]| key > &left.low[..] && left.high.as_ref().is_none_or(|high| key < &high[..]);
        let Some(Stretch { low, high, .. }) = self.stretches.front() else {
            self.piece = Piece::Sent;
            return Progress::Pairs;
        };
        if *low < left.low {
            // It begins in an earlier part, or the reader is behind.
            return Progress::Compared(self.answer(false));
        }
        let (hashed, end) = if *low == left.low { (true, high.as_ref()) } else { (false, Some(low)) };
        if let Some(end) = end.filter(|end| is_inside(end)) {
            let end = end.clone();
            *rest = Some(Box::new(cursor.split_off(end)));
        }
        if hashed {
            self.piece = Piece::Hashed { start: cursor.clone(), hasher: Box::default() };
            return Progress::Nothing;
        }
        self.piece = Piece::Sent;
        Progress::Pairs
    }

    /// All of the first stretch that lies in the part is hashed, or enough to know that it differs.
    fn compare(&mut self, cursor: &mut Box<Cursor>) -> Progress {
        let Piece::Hashed { start, hasher } = std::mem::replace(&mut self.piece, Piece::Sent) else {
            return Progress::Nothing;
        };
        let whole = cursor.is_done();
        let same = whole && self.stretches.front().is_some_and(|stretch| hasher.finish() == stretch.sum);
        if !same {
            *cursor = start;
        }
        Progress::Compared(self.answer(same))
    }

    fn answer(&mut self, same: bool) -> Compared {
        let number = self.number;
        self.number += 1;
        self.stretches.pop_front();
        self.recharge();
        Compared { number, same }
    }

    fn recharge(&mut self) {
        let bytes = |stretch: &Stretch| stretch.low.len() + stretch.high.as_ref().map_or(0, |high| high.len());
        self.charge.resize(self.stretches.iter().map(|stretch| size_of::<Stretch>() + bytes(stretch)).sum());
    }

    /// Pairs that were hashed so far, and the bytes of their keys and values.
    pub(super) fn hashed(&self) -> (u64, u64) {
        self.hashed
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::BytesMut;
    use coppice_btree::{Direction, KeyRange, Tree};
    use coppice_client::wire::{FrameDecoder, PairsSum, Part, PartitionId, Position};
    use proptest::prelude::*;

    use super::super::{RangeJob, ScanOptions, Terms};
    use super::*;

    type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

    fn borrowed<'a>(pairs: &'a [(&'a Vec<u8>, &'a Vec<u8>)]) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        pairs.iter().map(|(key, value)| (&key[..], &value[..]))
    }

    /// What a reader who holds `pairs` says of every so many of them.
    fn stretches(pairs: &Pairs, each: usize) -> Vec<Stretch> {
        let all: Vec<_> = pairs.iter().collect();
        let low = |chunk: &[(&Vec<u8>, &Vec<u8>)]| chunk[0].0[..].into();
        let chunks: Vec<_> = all.chunks(each.max(1)).collect();
        let highs = chunks.iter().skip(1).map(|chunk| Some(low(chunk))).chain([None]);
        let stretch = |(chunk, high): (&&[(&Vec<u8>, &Vec<u8>)], _)| Stretch {
            low: low(chunk),
            high,
            sum: PairsSum::of(borrowed(chunk)),
        };
        chunks.iter().zip(highs).map(stretch).collect()
    }

    fn inside<'a>(pairs: &'a Pairs, stretch: &Stretch) -> Vec<(&'a Vec<u8>, &'a Vec<u8>)> {
        let high = |key: &Vec<u8>| stretch.high.as_ref().is_none_or(|high| key[..] < high[..]);
        pairs.range(stretch.low.to_vec()..).take_while(|(key, _)| high(key)).collect()
    }

    /// A range over the partitions that begin at these keys.
    fn job(pairs: &Pairs, boundaries: &[Vec<u8>]) -> RangeJob {
        let mut lows: Vec<&[u8]> = boundaries.iter().map(|low| &low[..]).filter(|low| !low.is_empty()).collect();
        lows.sort_unstable();
        lows.dedup();
        lows.insert(0, &[]);
        let highs = lows.iter().skip(1).map(|low| Some(*low)).chain([None]);
        let part = |((number, low), high): ((u32, &&[u8]), Option<&[u8]>)| {
            let mut tree = Tree::new();
            let own = pairs.range(low.to_vec()..).take_while(|(key, _)| high.is_none_or(|high| &key[..] < high));
            own.for_each(|(key, value)| drop(tree.put(key, value)));
            let range = KeyRange { low: (*low).into(), high: high.map(Into::into) };
            let position = Position { partition: PartitionId(number), instance: 5, index: 0 };
            (position, Box::new(tree.cursor(range, Direction::Forward)))
        };
        let parts = (1..).zip(&lows).zip(highs).map(part).collect();
        RangeJob::collected(parts, Terms { scan: ScanOptions::default(), credit: 0 }).expect("a part")
    }

    /// Reads a range with these stretches, `window` at a time: its pairs with those that are taken from `held`, how
    /// many were sent, and the stretches that are the same.
    fn read(mut job: RangeJob, held: &Pairs, all: &[Stretch], window: usize) -> (Pairs, u64, Vec<u64>) {
        let (mut out, mut decoder, account) = (BytesMut::new(), FrameDecoder::default(), Account::unbounded());
        let (mut pairs, mut same, mut answered, mut told) = (Pairs::new(), Vec::new(), 0, 0);
        assert!(job.may_send() && !job.send(7, &mut out) && !job.may_send(), "it announces itself, and waits");
        job.add_credit(1 << 30);
        let (mut sent, mut ended, mut first) = (0, false, true);
        while !ended {
            let upto = all.len().min(answered + window.clamp(1, STRETCHES_MAX));
            if upto > told || first {
                let stretches = all[told..upto].to_vec();
                job.compare(CompareRequest { first: told as u64, stretches, last: upto == all.len() }, &account);
                (told, first) = (upto, false);
            }
            let before = job.work();
            while job.may_send() && !ended {
                ended = job.send(7, &mut out);
            }
            assert!(ended || job.work() >= before);
            decoder.feed(&out.split());
            while let Some(frame) = decoder.next_frame().expect("our own frames") {
                let part = Part::decode(&frame.body).expect("a chunk of ours");
                sent += part.len() as u64;
                assert_eq!(part.pairs_so_far, sent);
                let mut push = |key: &[u8], value: &[u8]| {
                    assert!(pairs.last_key_value().is_none_or(|(last, _)| &last[..] < key), "in order");
                    pairs.insert(key.to_vec(), value.to_vec());
                };
                part.pairs().for_each(|(key, value)| push(key, value));
                if let Some(Compared { number, same: is_same }) = part.compared {
                    assert_eq!(number as usize, answered);
                    answered += 1;
                    if is_same {
                        same.push(number);
                        inside(held, &all[number as usize]).iter().for_each(|(key, value)| push(key, value));
                    }
                }
            }
        }
        assert_eq!(account.bytes(), 0, "nothing waits");
        (pairs, sent, same)
    }

    fn key(n: u16) -> Vec<u8> {
        // Some keys have eight bytes, as have some values.
        if n.is_multiple_of(3) { format!("{n:05}...").into_bytes() } else { format!("{n:05}").into_bytes() }
    }

    fn held(count: u16) -> Pairs {
        let value = |n: u16| if n.is_multiple_of(5) { vec![n as u8; 3_000] } else { vec![n as u8; 8] };
        (0..count).map(|n| (key(n), value(n))).collect()
    }

    #[test]
    fn what_has_not_changed_is_not_sent_and_what_has_is() {
        let pairs = held(3_000);
        let all = stretches(&pairs, 100);
        let boundary = [all[10].low.to_vec()];
        let (read_back, sent, same) = read(job(&pairs, &boundary), &pairs, &all, 8);
        assert!(read_back == pairs && (sent, same.len()) == (0, 30), "{sent} pairs, {} stretches", same.len());
        let mut changed = pairs.clone();
        changed.get_mut(&key(777)).expect("it is there").pop();
        changed.insert(b"02000...!".to_vec(), b"new".to_vec());
        changed.remove(&key(2_999));
        let (read_back, sent, same) = read(job(&changed, &boundary), &pairs, &all, 8);
        assert!(read_back == changed);
        assert_eq!((sent, same.len()), (100 + 101 + 99, 27));
    }

    #[test]
    fn a_reader_who_says_too_much_or_out_of_order_gets_all_pairs() {
        let pairs = held(500);
        let all = stretches(&pairs, 10);
        let (upside, account) = ([all[1].clone(), all[0].clone()], Account::unbounded());
        for stretches in [&all[..STRETCHES_MAX + 1], &upside[..]] {
            let mut job = job(&pairs, &[]);
            for (first, stretch) in stretches.iter().enumerate() {
                let request = CompareRequest { first: first as u64, stretches: vec![stretch.clone()], last: false };
                job.compare(request, &account);
            }
            let (mut out, mut sent) = (BytesMut::new(), 0);
            job.add_credit(1 << 30);
            while job.may_send() && !job.send(7, &mut out) {}
            let mut decoder = FrameDecoder::default();
            decoder.feed(&out);
            while let Some(frame) = decoder.next_frame().expect("our own frames") {
                sent += Part::decode(&frame.body).expect("a chunk of ours").len();
            }
            assert_eq!(sent, pairs.len());
        }
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn a_hash_that_leaves_out_values_is_caught() {
        let test = "scan::comparison::tests::what_has_not_changed_is_not_sent_and_what_has_is";
        planted::assert_caught("hash_without_values", test);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn pairs_and_stretches_together_are_the_range(
            count in 0u16..400, each in 1usize..60, window in 1usize..40,
            changes in proptest::collection::vec((0u16..420, any::<Option<u8>>()), 0..8),
            boundaries in proptest::collection::vec(0u16..420, 0..4),
            gaps in proptest::collection::vec(any::<bool>(), 0..40),
        ) {
            let held = held(count);
            let all: Vec<Stretch> = stretches(&held, each)
                .into_iter()
                .enumerate()
                .filter(|(place, _)| !gaps.get(*place).copied().unwrap_or(false))
                .map(|(_, stretch)| stretch)
                .collect();
            let mut now = held.clone();
            for (n, change) in changes {
                match change {
                    None => drop(now.remove(&key(n))),
                    Some(byte) => drop(now.insert(key(n), vec![byte; usize::from(byte) * 40])),
                }
            }
            let boundaries: Vec<Vec<u8>> = boundaries.into_iter().map(key).collect();
            let (read_back, _, same) = read(job(&now, &boundaries), &held, &all, window);
            prop_assert!(read_back == now);
            let is_same = |number: &u64| inside(&held, &all[*number as usize]) == inside(&now, &all[*number as usize]);
            let straddles = |stretch: &Stretch| boundaries.iter().any(|at| {
                at[..] > stretch.low[..] && stretch.high.as_ref().is_none_or(|high| at[..] < high[..])
            });
            // What another partition has of a stretch comes behind it.
            let in_one = |number: &u64| !straddles(&all[*number as usize]);
            let right = |number: u64| is_same(&number) == same.contains(&number);
            prop_assert!((0..all.len() as u64).filter(in_one).all(right));
        }
    }
}
