//! Which keys of a partition changed lately: enough to tell whether a range is still what a reader saw.
//!
//! A client that reads in several partitions without an order between them asks each once more whether anything of what
//! it read has changed; if nothing has anywhere, all of it held at one moment (the client's `double_collect`). So
//! what this says may err on one side only: a range that has changed is never called unchanged. Of a key it remembers
//! the first sixteen bytes, of changes the newest few thousand, and what moves more than single keys (a boundary, a
//! snapshot) counts as a change of all of them. What an undone batch changed has changed; nobody was told what its undo
//! brought back.
//!
//! Not replicated: each replica counts for itself. It does not know who asks.

use bytes::Bytes;

/// Changes that are remembered, at 16 bytes each. A reader asks again after a round trip or two, a millisecond when
/// everything is busy; at 300 000 writes a second to one partition that is a tenth of this.
pub const CHANGES_KEPT: usize = 4_096;

/// So many changes tell where half of them lie.
const CHANGES_TOLD: u64 = 256;

/// The newest changes of one replica's tree. See the module.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Changes so far; only grows.
    count: u64,
    /// What changed before this one is not known.
    known_from: u64,
    /// Of change `n`, at `n % CHANGES_KEPT`: what is known of its key.
    kept: Vec<u128>,
}

impl Changes {
    /// How many there were: to be named later.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Those of an earlier state, after which there were `count`: of what changed before, nothing is remembered.
    pub fn at(count: u64) -> Changes {
        Changes { count, known_from: count, kept: Vec::new() }
    }

    /// These keys changed, each at its turn. O(keys).
    pub fn note<'k>(&mut self, keys: impl Iterator<Item = &'k [u8]>) {
        keys.for_each(|key| self.push(front(key)));
    }

    /// Anything may have changed.
    pub fn forget(&mut self) {
        self.push(0);
        self.known_from = self.count;
    }

    /// Goes on behind the changes of another state that this one takes the place of: what was named of that is never
    /// mistaken for a moment of this one.
    pub fn follow(&mut self, before: &Changes) {
        let count = before.count.max(self.count);
        *self = Changes { count, known_from: count, kept: Vec::new() };
        self.forget();
    }

    /// Whether no key of `[low, high)` has changed since there were `seen` changes. O(changes since then).
    pub fn are_none_in(&self, seen: u64, low: &[u8], high: Option<&[u8]>) -> bool {
        if mutant!(validates_anything) {
            return true;
        }
        if seen == self.count {
            return true;
        }
        let oldest = self.known_from.max(self.count.saturating_sub(CHANGES_KEPT as u64));
        if seen < oldest || seen > self.count {
            return false;
        }
        let (low, high) = (front(low), high.map_or(u128::MAX, front));
        let (from, to) = (place(seen), place(self.count));
        let since: [&[u128]; 2] = match from >= to {
            true => [&self.kept[from..], &self.kept[..to]],
            false => [&self.kept[from..to], &[]],
        };
        // Without a way out of the loop, so that many are looked at together.
        let inside = |changes: &[u128]| changes.iter().filter(|&&key| low <= key && key <= high).count();
        inside(since[0]) + inside(since[1]) == 0
    }

    /// The key on either side of which lies half of the newest changes: `Some(None)` if one key has so many of them
    /// that a quarter would not lie on either side; none if there were too few to tell. O(changes remembered).
    pub fn median(&self) -> Option<Option<Bytes>> {
        let newest = self.count.saturating_sub(self.known_from).min(CHANGES_KEPT as u64);
        if newest < CHANGES_TOLD {
            return None;
        }
        let mut keys: Vec<u128> = (self.count - newest..self.count).map(|change| self.kept[place(change)]).collect();
        keys.sort_unstable();
        let middle = keys[keys.len() / 2];
        let below = |key: u128| keys.partition_point(|&other| other < key);
        let next = keys.get(keys.partition_point(|&other| other <= middle)).copied();
        let divides = |key: &u128| (keys.len() / 4..=keys.len() * 3 / 4).contains(&below(*key));
        let at = [Some(middle), next].into_iter().flatten().find(divides);
        Some(at.map(|key| {
            let bytes = key.to_be_bytes();
            let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
            Bytes::copy_from_slice(&bytes[..end])
        }))
    }

    fn push(&mut self, key: u128) {
        let place = place(self.count);
        match self.kept.get_mut(place) {
            Some(kept) => *kept = key,
            None => {
                // While it grows: by the very next place, or, behind another state's changes, by all before it.
                self.kept.resize(place, 0);
                self.kept.push(key);
            }
        }
        self.count += 1;
    }
}

fn place(change: u64) -> usize {
    (change % CHANGES_KEPT as u64) as usize
}

/// The first sixteen bytes of a key, as a number: keys in order have them in order, though not all are told apart.
fn front(key: &[u8]) -> u128 {
    let mut bytes = [0; 16];
    let length = key.len().min(16);
    bytes[..length].copy_from_slice(&key[..length]);
    u128::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        // Short alphabets, and lengths around what is remembered: equal fronts, prefixes of each other.
        prop_oneof![
            proptest::collection::vec(0_u8..3, 0..4),
            proptest::collection::vec(0_u8..2, 14..19),
            proptest::collection::vec(proptest::sample::select(vec![0_u8, 0xff]), 0..18),
        ]
    }

    #[derive(Clone, Debug)]
    enum Act {
        Note(Vec<Vec<u8>>),
        Forget,
        Follow,
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            8 => proptest::collection::vec(key(), 0..6).prop_map(Act::Note),
            1 => Just(Act::Forget),
            1 => Just(Act::Follow),
        ]
    }

    #[test]
    fn the_median_of_changes_divides_them_or_there_is_none() {
        let median = |keys: &[&str]| {
            let mut changes = Changes::default();
            keys.iter().for_each(|key| changes.note([key.as_bytes()].into_iter()));
            changes.median().map(|median| median.map(|key| String::from_utf8(key.to_vec()).expect("text")))
        };
        let told = |keys: &[&str]| median(&keys.repeat(300));
        assert_eq!(median(&["a"; 255]), None, "too few to tell");
        assert_eq!(told(&["a", "b", "c", "d"]), Some(Some("c".into())));
        // A key cannot be cut in two: the cut lies before it or behind it, if that divides.
        assert_eq!(told(&["a", "b", "b", "c"]), Some(Some("b".into())));
        assert_eq!(told(&["a", "a", "a", "b"]), Some(Some("b".into())));
        assert_eq!(told(&["a", "a", "a", "a", "b"]), Some(None), "one key has most of them");
        assert_eq!(told(&["a"]), Some(None));
    }

    proptest! {
        #[test]
        fn what_has_changed_is_never_called_unchanged(
            acts in proptest::collection::vec(act(), 1..40), low in key(), high in proptest::option::of(key()),
        ) {
            let mut changes = Changes::default();
            // For each moment that could have been named: whether something of the range changed since.
            let mut named: Vec<(u64, bool)> = vec![(changes.count(), false)];
            let inside = |key: &Vec<u8>| *key >= low && high.as_ref().is_none_or(|high| key < high);
            for act in acts {
                let changed = match &act {
                    Act::Note(keys) => keys.iter().any(inside),
                    Act::Forget | Act::Follow => true,
                };
                match act {
                    Act::Note(keys) => changes.note(keys.iter().map(Vec::as_slice)),
                    Act::Forget => changes.forget(),
                    Act::Follow => {
                        let mut next = Changes::default();
                        next.note([&b"x"[..]; 3].into_iter());
                        next.follow(&changes);
                        changes = next;
                    }
                }
                named.iter_mut().for_each(|(_, so_far)| *so_far |= changed);
                named.push((changes.count(), false));
                for &(seen, changed) in &named {
                    let none = changes.are_none_in(seen, &low, high.as_deref());
                    prop_assert!(!(none && changed), "{seen} of {}", changes.count());
                }
                prop_assert!(changes.are_none_in(changes.count(), &low, high.as_deref()));
            }
        }
    }

    #[test]
    fn changes_elsewhere_and_long_ago_are_told_from_those_inside() {
        let mut changes = Changes::default();
        let seen = changes.count();
        changes.note([&b"apple"[..], b"pear"].into_iter());
        assert!(changes.are_none_in(seen, b"b", Some(b"c")));
        assert!(!changes.are_none_in(seen, b"a", Some(b"b")) && !changes.are_none_in(seen, b"b", None));
        let seen = changes.count();
        for n in 0..CHANGES_KEPT as u64 {
            assert!(changes.are_none_in(seen, b"b", Some(b"c")), "{n}");
            changes.note([&n.to_be_bytes()[..]].into_iter());
        }
        assert!(changes.are_none_in(seen, b"b", Some(b"c")), "as many as are kept");
        changes.note([&b"x"[..]].into_iter());
        assert!(!changes.are_none_in(seen, b"b", Some(b"c")), "one more than is kept");
        assert!(!changes.are_none_in(changes.count() + 1, b"b", Some(b"c")), "never named");
    }

    #[test]
    fn an_earlier_state_knows_that_it_is_unchanged_and_nothing_of_before() {
        let earlier = Changes::at(7);
        assert!(earlier.are_none_in(7, b"b", Some(b"c")));
        assert!(!earlier.are_none_in(6, b"b", Some(b"c")) && !earlier.are_none_in(8, b"b", Some(b"c")));
    }
}
