//! What goes over sockets, whoever owns them: links to other nodes, handshakes, what waits to be written.

mod accept;
pub mod dial;
pub mod eviction;
pub mod fault;
pub mod handshake;
pub mod link;
pub mod outbox;
pub mod peer_slots;
pub mod progress;
pub mod silence;
pub mod ungreeted;

pub use accept::accept;
