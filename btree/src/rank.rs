//! Counting: the pair at a given rank, the rank of a key, and a good key to split a partition at. All O(log n).

use crate::key::Probe;
use crate::node::Node;
use crate::snapshot::Snapshot;
use crate::value::Key;

impl Snapshot {
    /// The key that has `rank` keys below it; `None` if there are not that many.
    pub fn key_at(&self, rank: u64) -> Option<Key> {
        let mut link = self.root.as_ref()?;
        let mut rest = rank;
        loop {
            match link.node() {
                Node::Inner(inner) => {
                    link = inner.children().find(|child| {
                        let len = child.summary().len;
                        let here = rest < len;
                        rest -= if here { 0 } else { len };
                        here
                    })?;
                }
                Node::Words(words) => return words.key(rest as usize).map(|key| key.to_key()),
                Node::Wide(wide) => return wide.keys().get(rest as usize).cloned(),
            }
        }
    }

    /// How many keys are below `key`, which need not be there.
    pub fn rank(&self, key: &[u8]) -> u64 {
        let probe = Probe::new(key);
        let Some(mut link) = self.root.as_ref() else { return 0 };
        let mut rank = 0;
        loop {
            match link.node() {
                Node::Inner(inner) => {
                    let at = inner.search(probe);
                    rank += inner.children().take(at).map(|child| child.summary().len).sum::<u64>();
                    link = inner.child(at);
                }
                Node::Words(words) => return rank + words.rank(words.lower_bound(probe)) as u64,
                Node::Wide(wide) => return rank + wide.lower_bound(probe) as u64,
            }
        }
    }

    /// The key that cuts the tree into two halves of the same number of pairs; `None` with fewer than two pairs.
    pub fn median(&self) -> Option<Key> {
        if self.len() < 2 { None } else { self.key_at(self.len() / 2) }
    }

    /// The smallest key.
    pub fn first_key(&self) -> Option<Key> {
        self.root.as_ref().map(|root| root.first_key().to_key())
    }

    /// The greatest key.
    pub fn last_key(&self) -> Option<Key> {
        self.root.as_ref().map(|root| root.last_key().to_key())
    }
}
