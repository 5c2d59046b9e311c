//! What clients take of a node's memory: counted before it is taken, per connection, per client and per node.
//!
//! A request is charged when it is admitted, for its bytes and what its answer is expected to take; a read is charged
//! for its answer when it is executed, and executed only as far as there is room; an answer is charged until the socket
//! has taken it. A [`Charge`] ends by being dropped, wherever its request or answer ends.
//!
//! The bound of a connection and of a client shrinks with what the node has left, and a part of the node is kept for
//! those that hold little: however many connections take all that they may, some is left for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A connection may hold one part in so many of what the node has left.
const CONNECTION_SHARE: u64 = 8;

/// A client, on all its connections, one part in so many.
const CLIENT_SHARE: u64 = 4;

/// One part in so many of what a node may hold is for connections that hold little.
const RESERVE_SHARE: u64 = 4;

/// And little is one part in so many: 64 KiB of 256 MiB.
const LITTLE_SHARE: u64 = 4_096;

/// Bytes of requests and answers that a node holds.
#[derive(Debug)]
pub struct Budget {
    bytes: AtomicU64,
    max: u64,
}

impl Budget {
    /// So many bytes at most (`limits.node_bytes`).
    pub fn new(max: u64) -> Arc<Budget> {
        Arc::new(Budget { bytes: AtomicU64::new(0), max })
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes that may yet be taken.
    pub fn free(&self) -> u64 {
        self.max.saturating_sub(self.bytes())
    }
}

/// Bytes that one client holds, on all its connections.
pub type ClientBytes = Arc<AtomicU64>;

/// The account of one connection. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Account(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bytes: AtomicU64,
    max: u64,
    client: ClientBytes,
    node: Arc<Budget>,
}

impl Account {
    /// The account of a connection of this client that holds at most `max` bytes (`limits.inflight_bytes`).
    pub fn new(max: u64, client: ClientBytes, node: Arc<Budget>) -> Account {
        Account(Arc::new(Inner { bytes: AtomicU64::new(0), max, client, node }))
    }

    /// One without bounds, for requests of the node itself and for tests.
    pub fn unbounded() -> Account {
        Account::new(u64::MAX, ClientBytes::default(), Budget::new(u64::MAX))
    }

    /// Bytes that the connection holds.
    pub fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// Bytes that it may yet take.
    pub fn room(&self) -> u64 {
        let Inner { max, client, node, .. } = &*self.0;
        let bytes = self.bytes();
        let reserve = if bytes < node.max / LITTLE_SHARE { 0 } else { node.max / RESERVE_SHARE };
        let free = node.free().saturating_sub(reserve);
        let own = (*max).min(free / CONNECTION_SHARE).saturating_sub(bytes);
        let clients = (free / CLIENT_SHARE).saturating_sub(client.load(Ordering::Relaxed));
        if mutant!(answers_uncharged) { u64::MAX } else { own.min(clients) }
    }

    /// What the node may yet take of `limits.node_bytes`, and all of that, in bytes.
    pub fn of_node(&self) -> (u64, u64) {
        (self.0.node.free(), self.0.node.max)
    }

    /// Takes a request in; none: the node has no room for it. Whether the connection has room for another one is asked
    /// before it is read, so that one of any size comes through.
    pub fn admit(&self, bytes: usize) -> Option<Charge> {
        (bytes as u64 <= self.0.node.free()).then(|| self.charge(bytes))
    }

    /// Counts these bytes until the charge is dropped.
    pub fn charge(&self, bytes: usize) -> Charge {
        let mut charge = Charge { account: self.clone(), bytes: 0 };
        charge.resize(bytes);
        charge
    }

    /// Whether the connection holds more than it may, and more than the node has left: whoever else needs room is worth
    /// more than answers that it does not read.
    pub fn is_overdrawn(&self) -> bool {
        self.bytes() > self.0.max && self.bytes() > self.0.node.free()
    }

    fn add(&self, bytes: u64) {
        let Inner { bytes: own, client, node, .. } = &*self.0;
        [own, &**client, &node.bytes].into_iter().for_each(|cell| _ = cell.fetch_add(bytes, Ordering::Relaxed));
    }

    fn take(&self, bytes: u64) {
        let Inner { bytes: own, client, node, .. } = &*self.0;
        [own, &**client, &node.bytes].into_iter().for_each(|cell| _ = cell.fetch_sub(bytes, Ordering::Relaxed));
    }
}

/// Bytes that count until this is dropped.
#[derive(Debug)]
pub struct Charge {
    account: Account,
    bytes: u64,
}

impl Charge {
    /// From now on so many.
    pub fn resize(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        if bytes > self.bytes {
            self.account.add(bytes - self.bytes);
        } else if bytes < self.bytes {
            self.account.take(self.bytes - bytes);
        }
        self.bytes = bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: u64 = 1 << 20;

    fn account(node: &Arc<Budget>, client: &ClientBytes) -> Account {
        Account::new(NODE / 16, Arc::clone(client), Arc::clone(node))
    }

    #[test]
    fn what_is_charged_is_given_back_wherever_it_ends() {
        let (node, client) = (Budget::new(NODE), ClientBytes::default());
        let connection = account(&node, &client);
        let mut charge = connection.admit(1_000).expect("there is room");
        let answer = connection.charge(500);
        assert_eq!((connection.bytes(), client.load(Ordering::Relaxed), node.bytes()), (1_500, 1_500, 1_500));
        charge.resize(200);
        drop(answer);
        assert_eq!((connection.bytes(), node.free()), (200, NODE - 200));
        drop(charge);
        assert_eq!((connection.bytes(), client.load(Ordering::Relaxed), node.bytes()), (0, 0, 0));
        assert!(connection.admit(NODE as usize + 1).is_none());
    }

    /// Sixteen connections that read nothing held all that the node has, and everybody else was told that it is busy.
    #[test]
    fn connections_that_take_all_they_may_leave_room_for_others() {
        let node = Budget::new(NODE);
        let mut charges = Vec::new();
        for _ in 0..200 {
            let hog = account(&node, &ClientBytes::default());
            while hog.room() > 0 {
                charges.push(hog.charge(hog.room().min(1_000) as usize));
            }
        }
        let modest = account(&node, &ClientBytes::default());
        assert!(modest.room() > 1_000, "{} of {} bytes are free", node.free(), NODE);
        assert!(modest.admit(1_000).is_some());
    }

    #[test]
    fn one_client_on_many_connections_holds_no_more_than_its_share() {
        let (node, client) = (Budget::new(NODE), ClientBytes::default());
        let mut charges = Vec::new();
        for _ in 0..64 {
            let connection = account(&node, &client);
            charges.push(connection.charge(connection.room() as usize));
        }
        let held = client.load(Ordering::Relaxed);
        assert!(held <= NODE / CLIENT_SHARE, "{held} bytes");
        assert_eq!(account(&node, &client).room(), 0);
        assert!(account(&node, &ClientBytes::default()).room() >= NODE / 32);
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn answers_that_nobody_is_charged_for_are_caught() {
        let test = "cost::tests::one_client_on_many_connections_holds_no_more_than_its_share";
        planted::assert_caught("answers_uncharged", test);
    }
}
