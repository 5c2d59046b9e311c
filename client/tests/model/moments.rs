//! What the world held when: whether a range that came without a ticket was one moment of all its partitions, between
//! its being asked and its being answered.

use super::*;

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Every change of a pair, and how many there had been when each call was submitted, and when it ended.
#[derive(Debug, Default)]
pub struct Moments {
    /// The key, and what was there before.
    changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    submitted: BTreeMap<u64, usize>,
    ended: BTreeMap<u64, usize>,
}

impl Moments {
    pub fn submitted(&mut self, token: u64) {
        self.submitted.insert(token, self.changes.len());
    }

    pub(super) fn ended(&mut self, token: u64) {
        self.ended.insert(token, self.changes.len());
    }

    /// A partition's pairs changed from `before`.
    pub(super) fn note(&mut self, before: &Pairs, after: &Pairs) {
        let keys = before.keys().chain(after.keys()).collect::<std::collections::BTreeSet<_>>();
        for key in keys {
            if before.get(key) != after.get(key) {
                self.changes.push((key.clone(), before.get(key).cloned()));
            }
        }
    }
}

impl World {
    /// A range that came from several partitions without a ticket.
    pub fn is_collected(&self, token: u64) -> bool {
        let parts = self.parts.get(&token).map_or(&[][..], |parts| parts);
        let parts: Vec<_> = parts.iter().map(|part| Part::decode(part).unwrap()).collect();
        parts.len() > 1
            && parts[0].ticket.is_none()
            && parts.windows(2).any(|pair| pair[0].position != pair[1].position)
    }

    /// A range that one node read in several partitions, as far as it came.
    pub fn is_gathered(&self, token: u64) -> bool {
        let parts = self.parts.get(&token).map_or(&[][..], |parts| parts);
        let mut numbered = parts.iter().zip(0..);
        self.is_collected(token) && numbered.all(|(part, number)| Part::decode(part).unwrap().number == number)
    }

    /// There was a moment between its submission and its end at which the range held just what it gave out, up to its
    /// last pair if a limit ended it.
    pub fn check_moment(&self, token: u64, range: &coppice_client::command::RangeCall) {
        let parts: Vec<_> = self.parts[&token].iter().map(|part| Part::decode(part).unwrap()).collect();
        assert!(parts.iter().all(|part| part.ticket.is_none()), "token {token}");
        // Collected, each part is one chunk; gathered, there is one sequence of them.
        let numbered = parts.iter().zip(0..).all(|(part, number)| part.number == number);
        assert!(numbered || parts.iter().all(|part| part.end.is_some()), "token {token}");
        let given: Vec<(&[u8], &[u8])> = parts.iter().flat_map(Part::pairs).collect();
        let ordered = given.windows(2).all(|pair| (pair[0].0 < pair[1].0) != range.scan.reverse);
        assert!(ordered, "token {token}: parts out of order");
        let full = range.scan.pairs_max > 0 && given.len() as u64 >= range.scan.pairs_max;
        let limited = full || parts.last().unwrap().end == Some(PartEnd::Limited);
        let last = given.last().filter(|_| limited).map(|(key, _)| *key);
        let inside = |key: &[u8]| {
            let behind = last.is_some_and(|last| if range.scan.reverse { key < last } else { key > last });
            key >= &range.low[..] && range.high.as_ref().is_none_or(|high| key < &high[..]) && !behind
        };
        self.check_held(token, &given, inside);
    }

    /// There was a moment between its submission and its end at which these keys held just what it gave out.
    pub fn check_keys(&self, token: u64, keys: &[coppice_client::Value]) {
        let parts: Vec<_> = self.parts[&token].iter().map(|part| Part::decode(part).unwrap()).collect();
        assert_eq!(parts.len(), keys.len(), "token {token}: a part for each key");
        let given: Vec<(&[u8], &[u8])> = parts.iter().flat_map(Part::pairs).collect();
        let inside = |key: &[u8]| keys.iter().any(|asked| asked[..] == *key);
        assert!(given.iter().all(|(key, _)| inside(key)), "token {token}");
        self.check_held(token, &given, inside);
    }

    fn check_held(&self, token: u64, given: &[(&[u8], &[u8])], inside: impl Fn(&[u8]) -> bool) {
        let mut now: Pairs = BTreeMap::new();
        self.partitions.iter().for_each(|partition| now.extend(partition.data.clone()));
        now.retain(|key, _| inside(key));
        let given: Pairs = given.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
        let (from, to) = (self.moments.submitted[&token], self.moments.ended[&token]);
        for at in (from..=self.moments.changes.len()).rev() {
            if at <= to && now == given {
                return;
            }
            let Some((key, before)) = at.checked_sub(1).map(|at| &self.moments.changes[at]) else { break };
            match before {
                _ if !inside(key) => {}
                Some(before) => drop(now.insert(key.clone(), before.clone())),
                None => drop(now.remove(key)),
            }
        }
        panic!("token {token}: what it gave out never was, {} pairs", given.len());
    }
}
