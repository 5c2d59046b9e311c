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
}

/// Fewer keys per region make no boundaries worth crossing.
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

    /// The number of a key that [`Space::key`] named.
    pub fn number(&self, key: &[u8]) -> Option<usize> {
        std::str::from_utf8(key).ok()?.strip_prefix(&*self.prefix)?.parse().ok()
    }

    fn first(&self, region: usize) -> usize {
        region * self.keys / self.regions
    }

    /// The first keys of all regions but the first.
    pub fn boundaries(&self) -> Vec<Bytes> {
        (1..self.regions).map(|region| Bytes::from(self.key(self.first(region)))).collect()
    }

    /// The keys of each region.
    pub fn ranges(&self) -> Vec<Range<usize>> {
        (0..self.regions).map(|region| self.first(region)..self.first(region + 1)).collect()
    }

    /// Which ladder or token a client moves.
    pub fn mark_of(&self, client: u32) -> Option<Kind> {
        Kind::ALL.get(client as usize % 3).copied()
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
        assert_eq!(space.boundaries(), ["check-1/00004", "check-1/00008", "check-1/00012"]);
        assert_eq!(space.ranges(), [0..4, 4..8, 8..12, 12..16]);
        let (low, high) = space.bounds();
        assert!(*low <= *space.key(0).as_bytes() && *space.key(15).as_bytes() < *high.expect("a prefix is bounded"));
    }
}
