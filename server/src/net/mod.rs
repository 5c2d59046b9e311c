//! Sockets: clients on one port, nodes on another, the same frames on both.

pub mod arriving;
pub mod clients;
pub mod dial;
pub mod eviction;
pub mod fault;
pub mod handshake;
pub mod link;
pub mod outbox;
pub mod peer_frame;
pub mod peer_in;
pub mod progress;
pub mod public;
pub mod rpc;
pub mod silence;
pub mod streams;
pub mod translate;
pub mod ungreeted;
