//! What the clients of a run ask for: drawn from a seed. Every written value is unique and names its write
//! (reliability.md 2, E1). It refuses to know who answers.

use std::collections::BTreeMap;

use bytes::Bytes;
use coppice_client::{Operation, ReadMode};

use crate::check::event::{Call, Text};
use crate::check::random::Random;

/// The keys of a run, and the regions that begin as one partition each.
#[derive(Clone, Debug)]
pub struct Space {
    prefix: String,
    keys: usize,
    regions: usize,
}

/// Fewer keys per region make no borders worth crossing.
const KEYS_PER_REGION_MIN: usize = 4;

impl Space {
    /// So many keys that begin with `prefix`, cut into regions.
    pub fn new(prefix: &str, keys: usize, regions: usize) -> Space {
        let regions = regions.max(1);
        Space { prefix: prefix.to_owned(), keys: keys.max(regions * KEYS_PER_REGION_MIN), regions }
    }

    /// How many keys there are.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// How many regions there are.
    pub fn regions(&self) -> usize {
        self.regions
    }

    /// A key by its number.
    pub fn key(&self, number: usize) -> String {
        format!("{}{number:05}", self.prefix)
    }

    fn first(&self, region: usize) -> usize {
        region * self.keys / self.regions
    }

    /// The first keys of all regions but the first.
    pub fn borders(&self) -> Vec<Bytes> {
        (1..self.regions).map(|region| Bytes::from(self.key(self.first(region)))).collect()
    }

    /// Bounds of everything that belongs to the run: the whole key space if there is no prefix.
    pub fn bounds(&self) -> (Bytes, Option<Bytes>) {
        // `:` is behind every digit.
        let high = (!self.prefix.is_empty()).then(|| Bytes::from(format!("{}:", self.prefix)));
        (Bytes::from(self.prefix.clone()), high)
    }
}

/// What a client asks for next.
#[derive(Clone, Debug)]
pub enum Draw {
    /// A write: what is sent, one operation or several that take effect together.
    Write(Vec<Operation>),
    /// A get.
    Get {
        /// Of which key.
        key: String,
        /// Served how.
        mode: ReadMode,
    },
    /// A range.
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
    /// The region of most of its operations; none: it roams. So each partition has clients that a fault of another one
    /// does not stop.
    home: Option<usize>,
    /// Values that it saw last, for cas.
    seen: BTreeMap<usize, Vec<u8>>,
}

impl Drawer {
    /// Client number `client` of a run with this seed.
    pub fn new(client: u32, seed: u64, space: Space) -> Drawer {
        let home = client.is_multiple_of(2).then(|| client as usize / 2 % space.regions());
        let random = Random::of(seed, 0x0c11_e575 + u64::from(client));
        Drawer { client, writes: 0, random, space, home, seen: BTreeMap::new() }
    }

    /// The number of the last write drawn: its values begin with `client.number`.
    pub fn writes(&self) -> u64 {
        self.writes
    }

    /// A value was seen at a key.
    pub fn saw(&mut self, key: &[u8], value: Option<&[u8]>) {
        let number = std::str::from_utf8(key).ok().and_then(|key| key.strip_prefix(&*self.space.prefix)?.parse().ok());
        let Some(number) = number else { return };
        match value {
            Some(value) => _ = self.seen.insert(number, value.to_vec()),
            None => _ = self.seen.remove(&number),
        }
    }

    /// The next call.
    pub fn draw(&mut self) -> Draw {
        match self.random.below(100) {
            0..28 => self.write(|drawer, key| {
                let value = drawer.value(0);
                Operation::put(&*drawer.space.key(key), &*value)
            }),
            28..40 => self.write(|drawer, key| {
                let value = drawer.value(0);
                Operation::insert(&*drawer.space.key(key), &*value)
            }),
            40..52 => self.write(|drawer, key| Operation::delete(&*drawer.space.key(key))),
            52..64 => self.write(Drawer::cas),
            64..67 => self.many(),
            67..84 => self.get(),
            _ => self.range(),
        }
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
        let mut operations = Vec::new();
        for part in 0..2 + self.random.below(2) {
            let key = self.key_of(region);
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
            3..5 => {
                // A few keys inside a region.
                let region = self.region();
                let (one, two) = (self.key_of(region), self.key_of(region));
                let (low, high) = (one.min(two), one.max(two) + 1);
                (Bytes::from(self.space.key(low)), Some(Bytes::from(self.space.key(high))))
            }
            _ => {
                let (one, two) = (self.random.below(self.space.keys()), self.random.below(self.space.keys()));
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
            None => self.random.below(self.space.regions()),
        }
    }

    fn key_of(&mut self, region: usize) -> usize {
        let (first, next) = (self.space.first(region), self.space.first(region + 1));
        first + self.random.below(next - first)
    }

    fn key(&mut self) -> usize {
        let region = self.region();
        self.key_of(region)
    }
}

fn text(bytes: &[u8]) -> Text<'static> {
    crate::words::text(bytes)
}

/// How a history names the call.
pub fn call_of(draw: &Draw) -> Call<'static> {
    match draw {
        Draw::Write(operations) => match &operations[..] {
            [one] => crate::words::call_of_op(&one.op()),
            several => Call::Many(several.iter().map(|one| crate::words::call_of_op(&one.op())).collect()),
        },
        Draw::Get { key, .. } => Call::Get { key: text(key.as_bytes()) },
        Draw::Range { low, high, limit, reverse, .. } => {
            Call::Range { low: text(low), high: high.as_deref().map(text), limit: *limit, reverse: *reverse }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

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
    fn regions_tile_the_keys() {
        let space = Space::new("check-1/", 10, 4);
        assert_eq!(space.keys(), 16, "at least a few per region");
        assert_eq!(space.borders(), ["check-1/00004", "check-1/00008", "check-1/00012"]);
        let (low, high) = space.bounds();
        assert!(*low <= *space.key(0).as_bytes() && *space.key(15).as_bytes() < *high.expect("a prefix is bounded"));
    }
}
