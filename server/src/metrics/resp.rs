//! What the threads of the RESP port write.

use std::sync::Arc;

use coppice_core::resp::connection::Counted;

use super::cells::Cell;

/// The threads of the port write to the same cells: once for all that a turn of a connection answers.
#[derive(Clone, Debug)]
pub struct Resp(pub(super) Arc<RespCells>);

#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct RespCells {
    pub connections: Cell,
    pub commands: [Cell; Counted::ALL.len()],
}

/// The label of a result.
pub(super) fn text(result: Counted) -> &'static str {
    match result {
        Counted::Ok => "ok",
        Counted::Error => "error",
        Counted::Denied => "denied",
        Counted::Busy => "busy",
        Counted::NoQuorum => "no_quorum",
        Counted::Unknown => "unknown",
    }
}

impl Resp {
    /// A client connected.
    pub fn opened(&self) {
        self.0.connections.add(1);
    }

    /// A client's connection ended.
    pub fn closed(&self) {
        self.0.connections.add(u64::MAX);
    }

    /// Connections now.
    pub fn connections(&self) -> usize {
        self.0.connections.get() as usize
    }

    /// So many commands were answered, by [`Counted::ALL`].
    pub fn count(&self, counts: &[u64; Counted::ALL.len()]) {
        let cells = self.0.commands.iter().zip(counts);
        cells.filter(|(_, count)| **count > 0).for_each(|(cell, count)| cell.add(*count));
    }

    /// Commands answered so far.
    pub fn answered(&self) -> u64 {
        self.0.commands.iter().map(Cell::get).sum()
    }
}
