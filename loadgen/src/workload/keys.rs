//! Which keys exist: a fixed, endless list of 8-byte numbers, spread evenly over the partitions of the map as it is.
//!
//! Key `i` lies in partition `i mod P` at the `i / P`-th point of van der Corput's sequence (the bits of the index,
//! mirrored, as a fraction of the partition's span). So the first N keys are even for every N, they contain the first M
//! < N, and a key inserted later falls between those that are there. Nothing here knows what is stored.

/// The smallest span that takes part: 2^32 numbers keep 2^32 points of the sequence apart.
const SPAN_MIN: u128 = 1 << 32;

/// The 8-byte numbers of one partition: `low .. low + span`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    low: u64,
    span: u128,
}

impl Part {
    /// The `index`-th key in it.
    pub fn key(&self, index: u64) -> u64 {
        self.at(index.reverse_bits())
    }

    fn end(&self) -> u128 {
        u128::from(self.low) + self.span
    }

    /// The number at the fraction `point / 2^64` of this part.
    fn at(&self, point: u64) -> u64 {
        self.low + ((u128::from(point) * self.span) >> 64) as u64
    }
}

/// A half-open range of 8-byte keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySpan {
    /// The first key inside.
    pub low: u64,
    /// The first key behind.
    pub high: u64,
}

/// The key list of one map of partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySpace {
    parts: Vec<Part>,
    skipped: usize,
}

/// The smallest 8-byte string at or above `boundary`, as a number; 2^64 when there is none.
fn number_at_or_above(boundary: &[u8]) -> u128 {
    let mut padded = [0u8; 8];
    let kept = boundary.len().min(8);
    padded[..kept].copy_from_slice(&boundary[..kept]);
    u128::from(u64::from_be_bytes(padded)) + u128::from(boundary.len() > 8)
}

impl KeySpace {
    /// From the ranges of a partition map, in key order: (low, high), where no high means unbounded. Partitions with
    /// room for fewer than 2^32 8-byte numbers get no keys; `None` when no partition has room.
    pub fn new<'a>(ranges: impl IntoIterator<Item = (&'a [u8], Option<&'a [u8]>)>) -> Option<KeySpace> {
        let mut space = KeySpace { parts: Vec::new(), skipped: 0 };
        for (low, high) in ranges {
            let low = number_at_or_above(low);
            let high = high.map_or(1 << 64, number_at_or_above);
            match high.checked_sub(low).filter(|&span| span >= SPAN_MIN) {
                Some(span) => space.parts.push(Part { low: low as u64, span }),
                None => space.skipped += 1,
            }
        }
        (!space.parts.is_empty()).then_some(space)
    }

    /// The keys of this space at a share `from` to `to` of all 8-byte keys; `None` if no partition has room there.
    pub fn within(&self, (from, to): (f64, f64)) -> Option<KeySpace> {
        let at = |share: f64| (share.clamp(0.0, 1.0) * 2_f64.powi(64)) as u128;
        let mut space = KeySpace { parts: Vec::new(), skipped: self.skipped };
        for part in &self.parts {
            let (low, end) = (u128::from(part.low).max(at(from)), part.end().min(at(to)));
            match end.checked_sub(low).filter(|&span| span >= SPAN_MIN) {
                Some(span) => space.parts.push(Part { low: low as u64, span }),
                None => space.skipped += 1,
            }
        }
        (!space.parts.is_empty()).then_some(space)
    }

    /// The space of all 8-byte keys, cut evenly (what `init --partitions` does, operations.md 1.2).
    pub fn even(partitions: u64) -> KeySpace {
        let boundary = |i: u64| ((u128::from(i) << 64) / u128::from(partitions)) as u64;
        let boundaries: Vec<[u8; 8]> = (0..partitions).map(|i| boundary(i).to_be_bytes()).collect();
        let ranges = boundaries.iter().enumerate();
        KeySpace::new(ranges.map(|(i, low)| (low.as_slice(), boundaries.get(i + 1).map(|high| high.as_slice()))))
            .expect("2^64 keys over a map of partitions leave room in each")
    }

    /// How many partitions get keys.
    pub fn parts(&self) -> u64 {
        self.parts.len() as u64
    }

    /// How many partitions are too narrow for any.
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    /// The `index`-th key of the list.
    pub fn key(&self, index: u64) -> u64 {
        let parts = self.parts();
        self.parts[(index % parts) as usize].key(index / parts)
    }

    /// The `index`-th part, in key order.
    pub fn part(&self, index: u64) -> Part {
        self.parts[index as usize]
    }

    /// How many of the first `count` keys of the list lie in `part`.
    pub fn count_in(&self, part: u64, count: u64) -> u64 {
        count / self.parts() + u64::from(part < count % self.parts())
    }

    /// Those keys in ascending order.
    pub fn sorted_in(&self, part: u64, count: u64) -> impl Iterator<Item = u64> + use<> {
        let count = self.count_in(part, count);
        let part = self.parts[part as usize];
        // The least power of two at or above the count: its points are a grid, on which we pass over those not yet in.
        let bits = count.max(1).next_power_of_two().trailing_zeros();
        (0..1u64 << bits).filter_map(move |cell| {
            let point = if bits == 0 { 0 } else { cell << (64 - bits) };
            (point.reverse_bits() < count).then(|| part.at(point))
        })
    }

    /// A range inside one part that holds `keys` of the first `count` keys of the list, a few more or less (the
    /// sequence is even to within the number of its bits). `position` picks the place: a fraction of 2^64 of all that
    /// are possible.
    pub fn span_in(&self, part: u64, keys: u64, count: u64, position: u64) -> KeySpan {
        let width = self.width(part, keys, count);
        let part = &self.parts[part as usize];
        let room = part.span - width;
        let low = u128::from(part.low) + ((room * u128::from(position >> 1)) >> 63);
        // One less than the part's end: a boundary shorter than 8 bytes lies below its own 8-byte number.
        KeySpan { low: low as u64, high: (low + width).min(part.end() - 1) as u64 }
    }

    /// A range of about `keys` of the first `count` keys around the boundary behind `part`, so that it touches two
    /// partitions; `None` behind the last part and beside a part without keys.
    pub fn span_across(&self, part: u64, keys: u64, count: u64, position: u64) -> Option<KeySpan> {
        let (left, right) = (self.parts[part as usize], self.parts.get(part as usize + 1)?);
        if left.end() != u128::from(right.low) {
            return None;
        }
        let share = |width: u128, position: u64| ((width * u128::from(position >> 1)) >> 63).max(1);
        let before = share(self.width(part, keys, count), position);
        let behind = share(self.width(part + 1, keys, count), !position);
        let low = left.end() - before.min(left.span);
        let high = u128::from(right.low) + 1 + behind;
        Some(KeySpan { low: low as u64, high: high.min(right.end() - 1) as u64 })
    }

    /// The end for a range that begins at `key` and stays in its partition.
    pub fn end_of_part_at(&self, key: u64) -> Option<u64> {
        let behind = self.parts.partition_point(|part| part.low <= key);
        self.parts[..behind].last().map(|part| (part.end() - 1) as u64)
    }

    /// The span of numbers that holds `keys` of the first `count` keys of the list in `part`.
    fn width(&self, part: u64, keys: u64, count: u64) -> u128 {
        let there = self.count_in(part, count).max(1);
        let span = self.parts[part as usize].span;
        if keys >= there { span } else { (span * u128::from(keys)).div_ceil(u128::from(there)) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn letters() -> KeySpace {
        // The demo's map: ..g, g..n, n..t, t.. .
        let boundaries: [&[u8]; 3] = [b"g", b"n", b"t"];
        KeySpace::new([
            (b"".as_slice(), Some(boundaries[0])),
            (boundaries[0], Some(boundaries[1])),
            (boundaries[1], Some(boundaries[2])),
            (boundaries[2], None),
        ])
        .unwrap()
    }

    fn part_of(key: u64) -> usize {
        let key = key.to_be_bytes();
        [b"g".as_slice(), b"n", b"t"].iter().filter(|boundary| key.as_slice() >= **boundary).count()
    }

    #[test]
    fn a_part_of_the_key_space_has_the_keys_inside_it() {
        let space = KeySpace::even(4).within((0.2, 0.5)).unwrap();
        assert_eq!((space.parts(), space.skipped()), (2, 2));
        let inside = |key: u64| (0.2..0.5).contains(&(key as f64 / 2_f64.powi(64)));
        assert!((0..1_000).all(|at| inside(space.key(at))));
        assert!(KeySpace::even(4).within((0.3, 0.300_000_000_01)).is_none());
        assert_eq!(KeySpace::even(4).within((0.0, 1.0)), Some(KeySpace::even(4)));
    }

    #[test]
    fn keys_are_spread_evenly_over_the_partitions_whatever_their_boundaries() {
        let space = letters();
        let mut counts = [0; 4];
        for i in 0..1_000 {
            counts[part_of(space.key(i))] += 1;
        }
        assert_eq!(counts, [250; 4]);
    }

    #[test]
    fn a_key_has_one_number_whatever_the_count() {
        let space = letters();
        let all: BTreeSet<u64> = (0..5_000).map(|i| space.key(i)).collect();
        assert_eq!(all.len(), 5_000, "two indexes have one key");
        for part in 0..4 {
            let few: BTreeSet<u64> = space.sorted_in(part, 3_001).collect();
            let many: BTreeSet<u64> = space.sorted_in(part, 5_000).collect();
            assert!(few.is_subset(&many));
        }
    }

    #[test]
    fn sorted_keys_are_exactly_the_first_of_the_list() {
        for count in [0u64, 1, 2, 3, 7, 8, 9, 1_000, 4_097] {
            for space in [letters(), KeySpace::even(1), KeySpace::even(7)] {
                let mut expected: Vec<u64> = (0..count).map(|i| space.key(i)).collect();
                expected.sort_unstable();
                let sorted: Vec<u64> = (0..space.parts()).flat_map(|part| space.sorted_in(part, count)).collect();
                assert_eq!(sorted, expected, "{count}");
            }
        }
    }

    #[test]
    fn keys_are_even_inside_a_partition() {
        let space = KeySpace::even(1);
        // 3 000 keys over 30 equal pieces of the space: 100 each, give or take the bits of the count.
        let mut counts = [0i64; 30];
        for i in 0..3_000 {
            counts[((u128::from(space.key(i)) * 30) >> 64) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (count - 100).abs() <= 12), "{counts:?}");
    }

    #[test]
    fn a_range_of_1000_keys_holds_1000_keys_and_stays_in_its_partition() {
        let space = letters();
        let count = 100_000;
        let all: BTreeSet<u64> = (0..count).map(|i| space.key(i)).collect();
        for part in 0..4 {
            for position in [0, 1, u64::MAX / 3, u64::MAX / 2, u64::MAX] {
                let span = space.span_in(part, 1_000, count, position);
                let inside = all.range(span.low..span.high).count();
                assert!((985..=1_015).contains(&inside), "part {part} at {position}: {inside}");
                assert_eq!((part_of(span.low), part_of(span.high)), (part as usize, part as usize));
            }
        }
    }

    #[test]
    fn a_range_wider_than_the_partition_is_the_partition() {
        let span = letters().span_in(1, 1_000, 40, u64::MAX);
        assert_eq!(span.low.to_be_bytes(), *b"g\0\0\0\0\0\0\0");
        assert_eq!(span.high.to_be_bytes(), *b"m\xff\xff\xff\xff\xff\xff\xff");
    }

    #[test]
    fn a_range_across_touches_two_partitions() {
        let space = letters();
        for part in 0..3 {
            for position in [0, 7, u64::MAX / 2, u64::MAX] {
                let span = space.span_across(part, 1_000, 100_000, position).unwrap();
                assert_eq!((part_of(span.low), part_of(span.high)), (part as usize, part as usize + 1));
            }
        }
        assert_eq!(space.span_across(3, 1_000, 100_000, 0), None);
    }

    #[test]
    fn boundaries_between_8_byte_numbers_are_kept() {
        // "apple-tree" is longer than 8 bytes: the first number behind it is "apple-tr" + 1.
        let long = b"apple-tree".as_slice();
        let space = KeySpace::new([(b"".as_slice(), Some(long)), (long, None)]).unwrap();
        for i in 0..100 {
            assert_eq!(space.key(i).to_be_bytes().as_slice() >= long, i % 2 == 1);
        }
        // Nothing of 8 bytes lies between "b" and "b\0".
        let narrow =
            KeySpace::new([(b"".as_slice(), Some(b"b".as_slice())), (b"b", Some(b"b\0")), (b"b\0", None)]).unwrap();
        assert_eq!((narrow.parts(), narrow.skipped()), (2, 1));
    }
}
