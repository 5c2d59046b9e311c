//! By how much stored deadlines are off. A merge moves all deadlines of a side at once (protocol.md 11), and the tree
//! that holds them stays as it is: what is stored counts with the shift of the range that its key lies in.

use std::sync::Arc;

use bytes::BufMut;
use coppice_btree::Key;

/// Ranges with shifts of their own. Beyond, a merge writes all deadlines anew: each of so many merges has left keys
/// that are still here.
pub(super) const SHIFTS_MAX: usize = 1_024;

/// A deadline of so many milliseconds or more never comes, in 146 million years, and is moved by no merge.
const NEVER: u64 = 1 << 62;

/// Of the deadlines in one range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shift {
    /// Milliseconds.
    by: i64,
    /// What was due when its side was taken in is due at that moment.
    at_least: u64,
}

/// The deadline in these eight bytes, high ones first, before it is shifted.
fn stored(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(u64::MAX, u64::from_be_bytes)
}

impl Shift {
    /// The deadline that these bytes stand for.
    pub(super) fn read(self, bytes: &[u8]) -> u64 {
        match stored(bytes) {
            u64::MAX => u64::MAX,
            stored if self == Shift::default() => stored,
            stored => (stored as i64).saturating_add(self.by).max(self.at_least as i64) as u64,
        }
    }

    /// The bytes that stand for a deadline: a millisecond later where they would say never.
    pub(super) fn write(self, deadline: u64) -> [u8; 8] {
        if deadline >= NEVER {
            return u64::MAX.to_be_bytes();
        }
        let stored = (deadline as i64).saturating_sub(self.by);
        (if stored == -1 { 0 } else { stored }).to_be_bytes()
    }

    /// The same at a side whose time says `to` where it said `from`.
    fn moved(self, from: u64, to: u64) -> Shift {
        let by = (to.min(NEVER) as i64) - (from.min(NEVER) as i64);
        let at_least = (self.at_least as i64).saturating_add(by).max(to.min(NEVER) as i64);
        Shift { by: self.by.saturating_add(by), at_least: at_least as u64 }
    }
}

/// Ascending by first key, each up to the next one; below the first nothing is shifted. Neighbours differ, so equal
/// logs give equal shifts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shifts(Option<Arc<[(Key, Shift)]>>);

impl Shifts {
    fn of(ranges: impl Iterator<Item = (Key, Shift)>) -> Shifts {
        let (mut kept, mut last) = (Vec::new(), Shift::default());
        for (low, shift) in ranges {
            if shift != last {
                last = shift;
                kept.push((low, shift));
            }
        }
        Shifts((!kept.is_empty()).then(|| kept.into()))
    }

    fn ranges(&self) -> &[(Key, Shift)] {
        self.0.as_deref().unwrap_or_default()
    }

    /// How many ranges are shifted, or lie behind one that is.
    pub(super) fn len(&self) -> usize {
        self.ranges().len()
    }

    /// That of a key. O(log n) of the ranges.
    pub(super) fn at(&self, key: &[u8]) -> Shift {
        let behind = self.ranges().partition_point(|(low, _)| low.as_slice() <= key);
        behind.checked_sub(1).map_or(Shift::default(), |at| self.ranges()[at].1)
    }

    /// Those at or above `at`.
    pub(super) fn from(&self, at: &[u8]) -> Shifts {
        Shifts::of(self.ranges_from(at))
    }

    /// Those below `at`.
    pub(super) fn below(&self, at: &[u8]) -> Shifts {
        Shifts::of(self.ranges_below(at))
    }

    fn ranges_below(&self, at: &[u8]) -> impl Iterator<Item = (Key, Shift)> {
        self.ranges().iter().filter(move |(low, _)| low.as_slice() < at).cloned()
    }

    fn ranges_from(&self, at: &[u8]) -> impl Iterator<Item = (Key, Shift)> {
        let behind = self.ranges().iter().filter(move |(low, _)| low.as_slice() > at).cloned();
        std::iter::once((Key::from(at), self.at(at))).chain(behind)
    }

    /// These below `at`, and those of `upper` from there on.
    pub(super) fn joined(&self, at: &[u8], upper: &Shifts) -> Shifts {
        Shifts::of(self.ranges_below(at).chain(upper.ranges_from(at)))
    }

    /// All of a side whose time says `to` where it said `from`.
    pub(super) fn moved(&self, from: u64, to: u64) -> Shifts {
        match from == to {
            true => self.clone(),
            false => Shifts::of(self.ranges_from(&[]).map(|(low, shift)| (low, shift.moved(from, to)))),
        }
    }

    /// Zero where there are none.
    pub(super) fn digest(&self) -> u64 {
        self.ranges().iter().fold(0, |digest, (low, Shift { by, at_least })| {
            let low = u64::from(crc32c::crc32c(low));
            (digest ^ low ^ (*by as u64).rotate_left(32) ^ at_least.rotate_left(11))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29)
        })
    }

    /// For a snapshot.
    pub(super) fn export(&self, out: &mut Vec<u8>) {
        out.put_u32_le(self.len() as u32);
        for (low, Shift { by, at_least }) in self.ranges() {
            out.put_u32_le(low.len() as u32);
            out.put_slice(low);
            out.put_i64_le(*by);
            out.put_u64_le(*at_least);
        }
    }

    /// What [`Shifts::export`] wrote, and what is behind it.
    pub(super) fn import(bytes: &[u8]) -> Option<(Shifts, &[u8])> {
        let (count, mut rest) = bytes.split_first_chunk::<4>()?;
        let mut ranges = Vec::new();
        for _ in 0..u32::from_le_bytes(*count) {
            let (length, behind) = rest.split_first_chunk::<4>()?;
            let (low, behind) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            let (by, behind) = behind.split_first_chunk::<8>()?;
            let (at_least, behind) = behind.split_first_chunk::<8>()?;
            let shift = Shift { by: i64::from_le_bytes(*by), at_least: u64::from_le_bytes(*at_least) };
            ranges.push((Key::from(low), shift));
            rest = behind;
        }
        let ascending = ranges.windows(2).all(|pair| pair[0].0.as_slice() < pair[1].0.as_slice());
        ascending.then(|| (Shifts::of(ranges.into_iter()), rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shift(moves: &[(u64, u64)]) -> Shift {
        moves.iter().fold(Shift::default(), |shift, &(from, to)| shift.moved(from, to))
    }

    #[test]
    fn a_deadline_is_read_as_it_was_written_whatever_the_shift() {
        for moves in [&[][..], &[(5, 90)], &[(90, 5)], &[(90, 5), (7, 1_000_000)], &[(1_000_000, 0), (3, 4)]] {
            let shift = shift(moves);
            let time = moves.last().map_or(0, |(_, to)| *to);
            for deadline in [time, time + 1, time + 84, time + 85, time + 86, time + (1 << 40), u64::MAX] {
                let read = shift.read(&shift.write(deadline));
                assert!(
                    read == deadline || read == deadline + 1 && shift.by == deadline as i64 + 1,
                    "{deadline} {shift:?}"
                );
            }
        }
        assert_eq!(shift(&[]).read(&7_u64.to_be_bytes()), 7, "as without shifts");
    }

    #[test]
    fn a_deadline_moves_with_its_side_and_one_that_has_passed_is_due_at_once() {
        let none = Shift::default();
        for (deadline, from, to, moved) in
            [(100, 90, 5, 15), (100, 5, 90, 185), (100, 200, 5, 5), (100, 200, 900, 900), (u64::MAX, 5, 900, u64::MAX)]
        {
            assert_eq!(none.moved(from, to).read(&none.write(deadline)), moved, "{deadline} {from} {to}");
        }
    }

    #[test]
    fn ranges_are_cut_and_joined_as_their_keys_are() {
        let side = |to| Shifts::default().moved(0, to);
        let all = side(5).joined(b"g", &side(7)).joined(b"p", &Shifts::default());
        assert_eq!(all.len(), 3);
        let at = |shifts: &Shifts, key: &str| shifts.at(key.as_bytes()).by;
        for (key, by) in [("", 5), ("f", 5), ("g", 7), ("oz", 7), ("p", 0), ("z", 0)] {
            assert_eq!(at(&all, key), by, "{key}");
            for cut in ["a", "g", "h", "p", "x"] {
                let (lower, upper) = (all.below(cut.as_bytes()), all.from(cut.as_bytes()));
                assert_eq!(at(if key < cut { &lower } else { &upper }, key), by, "{key} {cut}");
                let again = lower.joined(cut.as_bytes(), &upper);
                assert_eq!((again.clone(), again.digest()), (all.clone(), all.digest()), "{cut}");
            }
        }
        assert_eq!(side(5).joined(b"g", &side(5)).len(), 1, "neighbours that differ not are one");
        let mut out = Vec::new();
        all.export(&mut out);
        assert_eq!(Shifts::import(&out), Some((all, &[][..])));
        (0..out.len()).for_each(|end| assert_eq!(Shifts::import(&out[..end]), None, "cut at {end}"));
        assert_eq!(Shifts::default().digest(), 0);
    }
}
