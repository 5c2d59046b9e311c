//! Cursors of SCAN: numbers for clients, which read nothing else, and the key behind which the next page begins.

use std::collections::BTreeMap;

use bytes::Bytes;

/// Cursors that a node keeps; the oldest makes way.
const CURSORS_MAX: usize = 16_384;

/// Bytes of their keys.
const BYTES_MAX: usize = 8 << 20;

/// Beyond, some languages lose digits.
const LARGEST: u64 = (1 << 53) - 1;

/// The cursors that a node has given.
#[derive(Debug)]
pub struct Cursors {
    behind: BTreeMap<u64, Bytes>,
    bytes: usize,
    next: u64,
}

impl Cursors {
    /// None yet. `draw` keeps the numbers of one start of a node apart from those of another one.
    pub fn new(draw: u64) -> Cursors {
        Cursors { behind: BTreeMap::new(), bytes: 0, next: 1 + draw % (LARGEST / 2) }
    }

    /// A cursor for the page behind this key.
    pub fn give(&mut self, key: &[u8]) -> u64 {
        let cursor = self.next;
        self.next += 1;
        self.bytes += key.len();
        self.behind.insert(cursor, Bytes::copy_from_slice(key));
        while self.behind.len() > CURSORS_MAX || self.bytes > BYTES_MAX {
            let Some((_, oldest)) = self.behind.pop_first() else { break };
            self.bytes -= oldest.len();
        }
        cursor
    }

    /// The key behind which its page begins; none: this node does not know the cursor.
    pub fn behind(&self, cursor: u64) -> Option<Bytes> {
        self.behind.get(&cursor).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_cursors_make_way() {
        let mut cursors = Cursors::new(u64::MAX);
        let first = cursors.give(b"a");
        assert_eq!(cursors.behind(first).as_deref(), Some(&b"a"[..]));
        let others: Vec<u64> = (0..CURSORS_MAX).map(|_| cursors.give(b"b")).collect();
        assert!(cursors.behind(first).is_none() && cursors.behind(others[0]).is_some());
        let large = vec![b'x'; 4096];
        (0..4096).for_each(|_| _ = cursors.give(&large));
        assert!(cursors.bytes <= BYTES_MAX && cursors.behind.len() < CURSORS_MAX && cursors.next < LARGEST);
    }
}
