//! The clients' connections of a worker thread.

use std::collections::HashMap;
use std::rc::Rc;

use coppice_core::connection::Slice;
use tokio::sync::Semaphore;

use super::connection::Connection;
use crate::net::eviction;

/// All of them, by their numbers.
pub(crate) struct Connections {
    open: HashMap<u64, Rc<Connection>>,
    /// Number of the newest one.
    newest: u64,
    /// Those with something to write at the end of the turn.
    dirty: Vec<u64>,
    /// Connections with much to do have their turn one after the other.
    pub(super) slices: Rc<Semaphore>,
}

impl Default for Connections {
    fn default() -> Connections {
        Connections { open: HashMap::new(), newest: 0, dirty: Vec::new(), slices: Rc::new(Semaphore::new(1)) }
    }
}

impl Connections {
    /// The number of the next connection.
    pub(super) fn next_id(&mut self) -> u64 {
        self.newest += 1;
        self.newest
    }

    pub(super) fn insert(&mut self, connection: Rc<Connection>) {
        self.open.insert(connection.id(), connection);
    }

    pub(super) fn remove(&mut self, id: u64) {
        self.open.remove(&id);
    }

    pub(super) fn get(&self, id: u64) -> Option<&Rc<Connection>> {
        self.open.get(&id)
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Rc<Connection>> {
        self.open.values()
    }

    /// This one has something to write at the end of the turn.
    pub(super) fn touch(&mut self, connection: &Connection) {
        if connection.mark_dirty() {
            self.dirty.push(connection.id());
        }
    }

    /// Writes what the turn has queued; whether there was anything.
    pub(super) fn flush(&mut self) -> bool {
        let mut slice = Slice::of_turn();
        let dirty = std::mem::take(&mut self.dirty);
        for connection in dirty.iter().filter_map(|id| self.open.get(id)) {
            connection.flush(&mut slice);
            failpoint!("worker.replied");
        }
        !dirty.is_empty()
    }

    /// Closes connections that have nothing in flight, for newcomers: how many. The node has `connections`, and of
    /// those have not greeted `ungreeted`.
    pub(super) fn make_way(&self, connections: usize, ungreeted: usize) -> usize {
        let idle = self.open.values().filter_map(|connection| connection.candidate()).collect();
        let give_way = eviction::give_way((connections, ungreeted), idle);
        give_way.iter().filter_map(|id| self.open.get(id)).map(|connection| connection.close()).count()
    }
}
