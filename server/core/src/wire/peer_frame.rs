//! Frames between nodes: the header of the public protocol, kinds of their own, bodies in pieces that are never copied.

use bytes::{Bytes, BytesMut};
use coppice_client::wire::frame::HEADER_BYTES;

/// Who is calling; first on every connection. Body: postcard [`crate::handshake::PeerHello`].
pub const HELLO: u8 = 64;
/// Messages of any groups ([`super::peer`]).
pub const MESSAGES: u8 = 65;
/// A question of one node to another (postcard).
pub const CONTROL: u8 = 66;
/// The answer to it.
pub const CONTROL_REPLY: u8 = 67;
/// Asks for a snapshot of a group.
pub const SNAPSHOT_GET: u8 = 68;
/// A piece of it, numbered.
pub const SNAPSHOT_CHUNK: u8 = 69;

/// How far the sender's log is durable: a `u64` lsn, little-endian. Between messages.
pub const DURABLE: u8 = 70;
/// Multicast messages between the coordinator and the partitions ([`crate::multicast`]).
pub const MULTICAST: u8 = 71;
/// Says that this connection works: whoever gets it sends it back on the same connection. No body.
pub const ECHO: u8 = 72;
/// Says that the sender lives, when there is nothing else to say ([`crate::failure_detector`]). No body.
pub const ALIVE: u8 = 73;
/// Whether the sender has no room, its disk filled to its reserve or its memory to its limit: a byte, 0 or 1. It has
/// some when a connection begins.
pub const FULL: u8 = 74;
/// Who answers; the first frame back on every connection. Body: postcard [`crate::handshake::PeerWelcome`].
pub const WELCOME: u8 = 75;
/// In place of it: the dialer runs on a copy of its directory. Body: why, in words.
pub const COPY: u8 = 76;

/// Longest frame between nodes: all undecided batches of a window in one `Phase1b` or `CatchUpReply` fit. Nodes that
/// said who they are know each other; a decoder still makes no more room than bytes arrive.
pub const FRAME_BYTES_MAX: usize = 48 << 20;

/// A whole frame around a small body.
pub fn frame(kind: u8, body: &[u8]) -> BytesMut {
    let body = Bytes::copy_from_slice(body);
    let mut out = BytesMut::with_capacity(HEADER_BYTES + body.len());
    out.extend_from_slice(&header(kind, body.len(), std::slice::from_ref(&body)));
    out.extend_from_slice(&body);
    out
}

/// The header of a frame around `pieces`, which are `length` bytes together.
pub fn header(kind: u8, length: usize, pieces: &[Bytes]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&(length as u32).to_le_bytes());
    header[8] = kind;
    let crc = pieces.iter().fold(crc32c::crc32c(&header[8..]), |crc, piece| crc32c::crc32c_append(crc, piece));
    header[4..8].copy_from_slice(&crc.to_le_bytes());
    header
}
