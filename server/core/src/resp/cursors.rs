//! Cursors of SCAN: numbers for clients, which read nothing else, and the key behind which the next page begins.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// Cursors that a node keeps; the oldest makes way.
const CURSORS_MAX: usize = 16_384;

/// Bytes of their keys.
const BYTES_MAX: usize = 8 << 20;

/// Beyond, some languages lose digits.
const LARGEST: u64 = (1 << 53) - 1;

/// The cursors that a node has given, on all its threads.
#[derive(Debug)]
pub struct Cursors(Mutex<Given>);

#[derive(Debug)]
struct Given {
    behind: BTreeMap<u64, Bytes>,
    bytes: usize,
    next: u64,
}

impl Cursors {
    /// None yet. `draw` keeps the numbers of one start of a node apart from those of another one.
    pub fn new(draw: u64) -> Cursors {
        Cursors(Mutex::new(Given { behind: BTreeMap::new(), bytes: 0, next: 1 + draw % (LARGEST / 2) }))
    }

    fn given(&self) -> MutexGuard<'_, Given> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A cursor for the page behind this key.
    pub fn give(&self, key: &[u8]) -> u64 {
        let mut given = self.given();
        let cursor = given.next;
        given.next += 1;
        given.bytes += key.len();
        given.behind.insert(cursor, Bytes::copy_from_slice(key));
        while given.behind.len() > CURSORS_MAX || given.bytes > BYTES_MAX {
            let Some((_, oldest)) = given.behind.pop_first() else { break };
            given.bytes -= oldest.len();
        }
        cursor
    }

    /// The key behind which its page begins; none: this node does not know the cursor.
    pub fn behind(&self, cursor: u64) -> Option<Bytes> {
        self.given().behind.get(&cursor).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_cursors_make_way() {
        let cursors = Cursors::new(u64::MAX);
        let first = cursors.give(b"a");
        assert_eq!(cursors.behind(first).as_deref(), Some(&b"a"[..]));
        let others: Vec<u64> = (0..CURSORS_MAX).map(|_| cursors.give(b"b")).collect();
        assert!(cursors.behind(first).is_none() && cursors.behind(others[0]).is_some());
        let large = vec![b'x'; 4096];
        (0..4096).for_each(|_| _ = cursors.give(&large));
        let given = cursors.given();
        assert!(given.bytes <= BYTES_MAX && given.behind.len() < CURSORS_MAX && given.next < LARGEST);
    }
}
