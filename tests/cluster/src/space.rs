//! The keys of a run: how they are named, where partitions begin, who asks for which.

use std::ops::Range;

use bytes::Bytes;

use coppice_check::marks::Kind;

/// The keys of a run, and the regions that begin as one partition each.
#[derive(Clone, Debug)]
pub struct Space {
    prefix: String,
    keys: usize,
    regions: usize,
    /// So many groups of keys that no call connects, a border in the middle of each; 0: all keys are one group.
    islands: usize,
}

/// Fewer keys per region make no borders worth crossing.
const KEYS_PER_REGION_MIN: usize = 4;

/// Keys of an island: as many as an independent judge can bear (hazards.md 3.5).
const KEYS_PER_ISLAND: (usize, usize) = (8, 16);

impl Space {
    /// So many keys that begin with `prefix`, cut into regions.
    pub fn new(prefix: &str, keys: usize, regions: usize) -> Space {
        let regions = regions.max(1);
        Space { prefix: prefix.to_owned(), keys: keys.max(regions * KEYS_PER_REGION_MIN), regions, islands: 0 }
    }

    /// About so many keys, as islands. There is one partition more than islands.
    pub fn islands(keys: usize, islands: usize) -> Space {
        let islands = islands.max(1);
        let (min, max) = KEYS_PER_ISLAND;
        let keys = (keys / islands).clamp(min, max) * islands;
        Space { prefix: String::new(), keys, regions: islands + 1, islands }
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

    /// The number of a key that [`Space::key`] named.
    pub fn number(&self, key: &[u8]) -> Option<usize> {
        std::str::from_utf8(key).ok()?.strip_prefix(&*self.prefix)?.parse().ok()
    }

    fn first(&self, region: usize) -> usize {
        match (self.islands, region) {
            (0, _) => region * self.keys / self.regions,
            (_, 0) => 0,
            (islands, _) if region > islands => self.keys,
            (islands, _) => (2 * region - 1) * self.keys / (2 * islands),
        }
    }

    /// The first keys of all regions but the first.
    pub fn borders(&self) -> Vec<Bytes> {
        (1..self.regions).map(|region| Bytes::from(self.key(self.first(region)))).collect()
    }

    /// How many islands there are; 0: all keys are one group.
    pub fn island_count(&self) -> usize {
        self.islands
    }

    /// The island of a client; 0 if there are none.
    pub fn island_of(&self, client: u32) -> usize {
        client as usize % self.islands.max(1)
    }

    /// Keys of a client, cut where partitions begin: all of them, or those of its island.
    pub fn regions_of(&self, client: u32) -> Vec<Range<usize>> {
        if self.islands == 0 {
            return (0..self.regions).map(|region| self.first(region)..self.first(region + 1)).collect();
        }
        let (island, size) = (self.island_of(client), self.keys / self.islands);
        let border = self.first(island + 1);
        vec![island * size..border, border..(island + 1) * size]
    }

    /// Bounds of everything that a client may ask for.
    pub fn bounds_of(&self, client: u32) -> (Bytes, Option<Bytes>) {
        if self.islands == 0 {
            return self.bounds();
        }
        let (island, size) = (self.island_of(client), self.keys / self.islands);
        (Bytes::from(self.key(island * size)), Some(Bytes::from(self.key((island + 1) * size))))
    }

    /// Bounds of all ranges that together show the whole map, and connect no islands.
    pub fn wholes(&self) -> Vec<(Bytes, Option<Bytes>)> {
        (0..self.islands.max(1) as u32).map(|island| self.bounds_of(island)).collect()
    }

    /// Which ladder or token a client moves; none: one of each kind is enough for an island.
    pub fn mark_of(&self, client: u32) -> Option<Kind> {
        if self.islands == 0 {
            return Kind::ALL.get(client as usize % 3).copied();
        }
        Kind::ALL.get(client as usize / self.islands).copied()
    }

    /// Bounds of everything that belongs to the run: the whole key space if there is no prefix.
    pub fn bounds(&self) -> (Bytes, Option<Bytes>) {
        // `:` is behind every digit.
        let high = (!self.prefix.is_empty()).then(|| Bytes::from(format!("{}:", self.prefix)));
        (Bytes::from(self.prefix.clone()), high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_tile_the_keys() {
        let space = Space::new("check-1/", 10, 4);
        assert_eq!(space.keys(), 16, "at least a few per region");
        assert_eq!(space.borders(), ["check-1/00004", "check-1/00008", "check-1/00012"]);
        assert_eq!(space.regions_of(5), [0..4, 4..8, 8..12, 12..16]);
        let (low, high) = space.bounds();
        assert!(*low <= *space.key(0).as_bytes() && *space.key(15).as_bytes() < *high.expect("a prefix is bounded"));
    }

    #[test]
    fn every_island_has_a_border_in_its_middle() {
        let space = Space::islands(96, 20);
        assert_eq!((space.keys(), space.regions(), space.borders().len()), (160, 21, 20));
        for island in 0..20 {
            let number = space.number(&space.borders()[island]).expect("a key");
            assert_eq!(number, island * 8 + 4);
            assert_eq!(space.regions_of(island as u32 + 40), [island * 8..number, number..island * 8 + 8]);
        }
        assert_eq!(Space::islands(1_000, 2).keys(), 32);
        let wholes = Space::islands(24, 2).wholes();
        assert_eq!(wholes[1], (Bytes::from("00012"), Some(Bytes::from("00024"))));
    }
}
