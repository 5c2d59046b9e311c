//! Counting: the pair at a given rank, and the rank of a key. O(log n).

use crate::key::Probe;
use crate::node::{Link, Node};
use crate::value::Key;

/// The key below `link` that has `rank` keys below it; `None` if there are not that many.
pub(crate) fn key_at(mut link: &Link, rank: u64) -> Option<Key> {
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
            Node::Fixed(leaf) => return leaf.key(rest as usize).map(|key| key.to_key()),
            Node::Variable(leaf) => return leaf.keys().get(rest as usize).cloned(),
        }
    }
}

/// How many keys below `link` are below the probe, which need not be there.
pub(crate) fn rank(mut link: &Link, probe: Probe<'_>) -> u64 {
    let mut rank = 0;
    loop {
        match link.node() {
            Node::Inner(inner) => {
                let at = inner.search(probe);
                rank += inner.children().take(at).map(|child| child.summary().len).sum::<u64>();
                link = inner.child(at);
            }
            Node::Fixed(leaf) => return rank + leaf.rank(leaf.lower_bound(probe)) as u64,
            Node::Variable(leaf) => return rank + leaf.lower_bound(probe) as u64,
        }
    }
}
