//! The entries of a batch as the server knows them: the client's, and its own.

use bytes::{Bytes, BytesMut};
use coppice_client::wire::entry::{self as wire, Open, TAG_OPEN, TAG_PACK};
use coppice_client::wire::{ClientId, Pack};
use coppice_ordering::multicast::Place;
use serde::Serialize;

use crate::machine::directory::DirectoryCommand;
use crate::multicast::letter;
use crate::net::codec::{Body, BodyReader};
use crate::sessions::SessionLimits;

// The server's own tags. Never used twice.
/// A directory command.
const TAG_DIRECTORY: u8 = 16;
/// A ticket of the multicast.
const TAG_PLACE: u8 = 17;
/// Other bounds of the session table.
const TAG_LIMITS: u8 = 18;

/// One entry, decoded.
#[derive(Debug)]
pub enum Entry<'a> {
    /// Commands of a session.
    Pack(Pack<'a>),
    /// A session is opened.
    Open(Open),
    /// A change of the directory.
    Directory(DirectoryCommand),
    /// A ticket, and what it is for.
    Place(Place),
    /// Other bounds of the session table.
    Limits(SessionLimits),
    /// Written by a newer version, or damaged in a way that no checksum sees: every replica ignores it alike.
    Unknown,
}

/// The entries of one part of a batch.
pub fn entries(part: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    wire::entries(part).map(|entry| entry.ok().and_then(decode).unwrap_or(Entry::Unknown))
}

fn decode(entry: wire::Entry<'_>) -> Option<Entry<'_>> {
    match entry.tag {
        // The leader checked all of it before it was proposed.
        TAG_PACK => Pack::decode_header(entry.bytes).ok().map(Entry::Pack),
        TAG_OPEN => Open::decode(entry.bytes).ok().map(Entry::Open),
        TAG_LIMITS => postcard::from_bytes(entry.bytes).ok().map(Entry::Limits),
        TAG_DIRECTORY => postcard::from_bytes(entry.bytes).ok().map(Entry::Directory),
        TAG_PLACE => {
            let bytes = Bytes::copy_from_slice(entry.bytes);
            let mut reader = BodyReader::new(&bytes);
            letter::place(&mut reader).ok().filter(|_| reader.is_empty()).map(Entry::Place)
        }
        _ => None,
    }
}

/// An entry that opens a session.
pub fn open(client: ClientId, nonce: u64) -> Bytes {
    let mut out = BytesMut::new();
    Open { client, nonce }.put(&mut out);
    out.freeze()
}

/// An entry that puts a ticket into the log.
pub fn place(place: &Place) -> Bytes {
    let mut body = Body::default();
    letter::put_place(&mut body, place);
    let mut out = BytesMut::with_capacity(body.len() + 8);
    wire::put_entry(&mut out, TAG_PLACE, &body.take_pieces().concat());
    out.freeze()
}

/// An entry that changes the directory.
pub fn directory(command: &DirectoryCommand) -> Bytes {
    plain(TAG_DIRECTORY, command)
}

/// An entry that gives the session table other bounds.
pub fn limits(limits: &SessionLimits) -> Bytes {
    plain(TAG_LIMITS, limits)
}

fn plain(tag: u8, data: &impl Serialize) -> Bytes {
    let mut out = BytesMut::new();
    wire::put_entry(&mut out, tag, &postcard::to_stdvec(data).expect("an entry is plain data"));
    out.freeze()
}
