//! What the clients of a run ask for: drawn from a seed. Every written value is unique and names its write
//! (hazards.md 2, E1). It refuses to know who answers.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use coppice_check::event::{Call, Text};
use coppice_check::marks::MoveResult;
use coppice_client::{Operation, ReadMode};
use coppice_testkit::random::Random;

use super::mark_mover::MarkMover;
use super::space::Space;

/// What a client asks for next.
#[derive(Clone, Debug)]
pub enum Draw {
    /// A write: what is sent, one operation or several that take effect together.
    Write(Vec<Operation>),
    Get {
        /// Of which key.
        key: String,
        /// Served how.
        mode: ReadMode,
    },
    Range {
        /// First key.
        low: Bytes,
        /// First key beyond; none: unbounded.
        high: Option<Bytes>,
        /// Pairs at most; 0: all.
        limit: u32,
        /// From the high end down.
        reverse: bool,
        /// Served how.
        mode: ReadMode,
    },
}

/// The draws of one client.
#[derive(Debug)]
pub struct Drawer {
    client: u32,
    writes: u64,
    random: Random,
    space: Space,
    /// The regions that its ranges reach.
    regions: Vec<Range<usize>>,
    /// The one of its other operations; none: it roams. So each partition has clients that a fault of another one does
    /// not stop.
    home: Option<usize>,
    marks: MarkMover,
    /// Values that it saw last, for cas.
    seen: BTreeMap<usize, Vec<u8>>,
}

impl Drawer {
    /// Client number `client` of a run with this seed.
    pub fn new(client: u32, seed: u64, space: Space) -> Drawer {
        let regions = space.ranges();
        let home = client.is_multiple_of(2).then(|| client as usize / 2 % regions.len());
        let random = Random::of(seed, 0x0c11_e575 + u64::from(client));
        let marks = MarkMover::new(client, space.mark_of(client));
        Drawer { client, writes: 0, random, space, regions, home, marks, seen: BTreeMap::new() }
    }

    /// The number of the last write drawn: its values begin with `client.number`.
    pub fn writes(&self) -> u64 {
        self.writes
    }

    /// A value was seen at a key.
    pub fn saw(&mut self, key: &[u8], value: Option<&[u8]>) {
        let Some(number) = self.space.number(key) else { return };
        match value {
            Some(value) => _ = self.seen.insert(number, value.to_vec()),
            None => _ = self.seen.remove(&number),
        }
    }

    /// What became of the write drawn last.
    pub fn told(&mut self, told: MoveResult) {
        self.marks.told(told);
    }

    /// The next call follows the last answer at once: it moves the same ladder or token.
    pub fn hurries(&self) -> bool {
        self.marks.hurries()
    }

    /// The next call.
    pub fn draw(&mut self) -> Draw {
        if self.marks.hurries() {
            return self.move_mark();
        }
        match self.random.below(100) {
            0..25 => self.write(|drawer, key| {
                let value = drawer.value(0);
                Operation::put(&*drawer.space.key(key), &*value)
            }),
            25..36 => self.write(|drawer, key| {
                let value = drawer.value(0);
                Operation::insert(&*drawer.space.key(key), &*value)
            }),
            36..47 => self.write(|drawer, key| Operation::delete(&*drawer.space.key(key))),
            47..58 => self.write(Drawer::cas),
            58..61 => self.many(),
            61..63 if self.marks.may_begin() => self.move_mark(),
            61..80 => self.get(),
            _ => self.range(),
        }
    }

    /// A move of its ladder or token: those of one client follow each other at once, for only then can a query stand
    /// between them.
    fn move_mark(&mut self) -> Draw {
        self.writes += 1;
        let (value, space, random) = (self.value(0), &self.space, &mut self.random);
        let place = |region: &Range<usize>| space.key(region.start + random.below(region.len()));
        Draw::Write(vec![self.marks.step(&self.regions, place, value)])
    }

    fn write(&mut self, operation: impl FnOnce(&mut Drawer, usize) -> Operation) -> Draw {
        self.writes += 1;
        let key = self.key();
        Draw::Write(vec![operation(self, key)])
    }

    fn value(&self, part: usize) -> String {
        match part {
            0 => format!("{}.{}", self.client, self.writes),
            _ => format!("{}.{}.{part}", self.client, self.writes),
        }
    }

    fn cas(&mut self, key: usize) -> Operation {
        let value = self.value(0);
        let expected = self.seen.get(&key).cloned().unwrap_or_else(|| b"none".to_vec());
        Operation::cas(&*self.space.key(key), &*expected, &*value)
    }

    /// Two or three keys of one region, at once: a put and what comes.
    fn many(&mut self) -> Draw {
        self.writes += 1;
        let region = self.region();
        let region = self.regions[region].clone();
        let mut operations = Vec::new();
        for part in 0..2 + self.random.below(2) {
            let key = self.key_of(&region);
            let key = self.space.key(key);
            let value = self.value(part);
            operations.push(match if part == 0 { 0 } else { self.random.below(3) } {
                0 => Operation::put(&*key, &*value),
                1 => Operation::insert(&*key, &*value),
                _ => Operation::delete(&*key),
            });
        }
        Draw::Write(operations)
    }

    fn get(&mut self) -> Draw {
        let key = self.key();
        let mode = match self.random.below(10) {
            0..6 => ReadMode::Leader,
            6..9 => ReadMode::AnyReplica,
            _ => ReadMode::Stale,
        };
        Draw::Get { key: self.space.key(key), mode }
    }

    fn range(&mut self) -> Draw {
        let (low, high) = match self.random.below(10) {
            0..3 => self.space.bounds(),
            which => {
                // A few keys inside a region, or from anywhere to anywhere.
                let region = self.region();
                let keys = if which < 5 {
                    self.regions[region].clone()
                } else {
                    self.regions[0].start..self.regions[self.regions.len() - 1].end
                };
                let (one, two) = (self.key_of(&keys), self.key_of(&keys));
                let (low, high) = (one.min(two), one.max(two) + 1);
                (Bytes::from(self.space.key(low)), Some(Bytes::from(self.space.key(high))))
            }
        };
        let mode = match self.random.below(10) {
            0..8 => ReadMode::Leader,
            8 => ReadMode::AnyReplica,
            _ => ReadMode::Stale,
        };
        let limit = if self.random.chance(200) { 1 + self.random.below(8) as u32 } else { 0 };
        Draw::Range { low, high, limit, reverse: self.random.chance(200), mode }
    }

    fn region(&mut self) -> usize {
        match self.home {
            Some(home) => home,
            None => self.random.below(self.regions.len()),
        }
    }

    fn key_of(&mut self, keys: &Range<usize>) -> usize {
        keys.start + self.random.below(keys.len())
    }

    fn key(&mut self) -> usize {
        let region = self.region();
        self.key_of(&self.regions[region].clone())
    }
}

fn text(bytes: &[u8]) -> Text<'static> {
    coppice_words::text(bytes)
}

/// How a history names the call.
pub fn call_of(draw: &Draw) -> Call<'static> {
    match draw {
        Draw::Write(operations) => match &operations[..] {
            [one] => coppice_words::call_of_op(&one.op()),
            several => Call::Many(several.iter().map(|one| coppice_words::call_of_op(&one.op())).collect()),
        },
        Draw::Get { key, .. } => Call::Get { key: text(key.as_bytes()) },
        Draw::Range { low, high, limit, reverse, .. } => {
            Call::Range { low: text(low), high: high.as_deref().map(text), limit: *limit, reverse: *reverse }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn values_are_unique_and_the_same_seed_draws_the_same() {
        let space = Space::new("", 40, 4);
        let draw = |client: u32| {
            let mut drawer = Drawer::new(client, 7, space.clone());
            (0..2_000).map(|_| format!("{:?}", drawer.draw())).collect::<Vec<_>>()
        };
        assert_eq!(draw(3), draw(3));
        let mut drawer = Drawer::new(3, 7, space);
        let mut values = BTreeSet::new();
        for _ in 0..2_000 {
            let Draw::Write(operations) = drawer.draw() else { continue };
            for operation in &operations {
                if let Operation::Put { value, .. } | Operation::Insert { value, .. } = operation {
                    assert!(values.insert(value.to_vec()), "{value:?} twice");
                }
            }
        }
    }

    #[test]
    fn ladders_and_tokens_lie_in_several_regions_and_move_without_a_pause() {
        let space = Space::new("", 40, 4);
        for client in 0..6 {
            let mut drawer = Drawer::new(client, 7, space.clone());
            let (mut regions, mut followed, mut moves) = (BTreeSet::new(), 0, 0);
            for _ in 0..3_000 {
                let hurried = drawer.hurries();
                let Draw::Write(operations) = drawer.draw() else { continue };
                let key = String::from_utf8_lossy(operations[0].key()).into_owned();
                if let Some((number, _)) = key.split_once('~') {
                    let number: usize = number.parse().expect("a number");
                    regions.insert(number / 10);
                    (moves, followed) = (moves + 1, followed + u32::from(hurried));
                }
                drawer.told(MoveResult::Done);
            }
            assert!(moves > 100 && followed * 2 > moves, "{followed} of {moves} at once");
            assert!(regions.len() >= 2, "client {client}: {regions:?}");
        }
    }
}
