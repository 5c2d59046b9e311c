//! What is done to links between nodes and clients.

use std::time::Duration;

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Node(usize),
    /// All clients.
    Clients,
}

/// What is done to a link, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// Nothing arrives. By a proxy it arrives later, old as it is; by the kernel it is lost, and TCP says it again.
    Cut,
    /// Proxies only: everything arrives so much later.
    Slow(Duration),
    /// Proxies only: connections break within a frame.
    Torn,
    /// Proxies only: a bit of each connection is turned over; the frame's checksum must tell.
    Flipped,
    /// Proxies only: each side is told the end of the other's words, and may go on with its own.
    Half,
    /// The kernel only: three packets of ten are lost.
    Lossy,
    /// The kernel only: whoever sends is told that the connection is gone.
    Reset,
}
