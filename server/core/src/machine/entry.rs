//! The entries of a batch as the server knows them: the client's, and its own.

use bytes::{Bytes, BytesMut};
use coppice_btree::Key;
use coppice_client::wire::entry::{self as wire, Open, TAG_OPEN, TAG_PACK};
use coppice_client::wire::{ClientId, Pack};
use coppice_ordering::multicast::Place;
use coppice_ordering::{Ballot, ReplicaId, Round};
use serde::{Deserialize, Serialize};

use crate::machine::directory::DirectoryCommand;
use crate::multicast::message;
use crate::sessions::SessionLimits;
use crate::wire::codec::{Body, BodyReader};

// The server's own tags. Never used twice.
/// A directory command.
const TAG_DIRECTORY: u8 = 16;
/// A ticket of the multicast.
const TAG_PLACE: u8 = 17;
/// Other bounds of the session table.
const TAG_LIMITS: u8 = 18;
/// A pack, behind the mark of its user: 8 bytes, little-endian.
const TAG_OWNED_PACK: u8 = 19;
// From here on only where the cluster's feature level is 2 or more.
/// Another entry, of a pack, behind the time that it is at least: 8 bytes, little-endian.
const TAG_TIMED: u8 = 20;
/// Keys that may be due.
const TAG_EXPIRE: u8 = 21;
/// One of these two, behind the ballot of the leader that counted its time: round, 8 bytes, and replica, 4 bytes,
/// little-endian. Without it: below every ballot.
const TAG_COUNTED: u8 = 22;

/// One entry, decoded.
#[derive(Debug)]
pub enum Entry<'a> {
    /// Commands of a session.
    Pack {
        /// Not checked beyond its header.
        pack: Pack<'a>,
        /// The session must bear this mark; none: access control is off.
        owner: Option<u64>,
        /// The time of the partition is this or later; none: nothing asks for it.
        time: Option<Said>,
    },
    /// A session is opened.
    Open(Open),
    /// A change of the directory.
    Directory(DirectoryCommand),
    /// A ticket, and what it is for.
    Place(Place),
    /// Other bounds of the session table.
    Limits(SessionLimits),
    /// Keys that may be due, and who counted the time.
    Expire(Ballot, Expire),
    /// Written by a newer version, or damaged in a way that no checksum sees: every replica ignores it alike.
    Unknown,
}

/// What the time of a partition is at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// The leader that counted it.
    pub by: Ballot,
    /// Milliseconds of the partition's own time.
    pub time: u64,
}

/// What the time of a partition is at least, and keys that may be due then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expire {
    /// Milliseconds of the partition's own time.
    pub time: u64,
    pub keys: Vec<Key>,
}

/// The entries of one part of a batch.
pub fn entries(part: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    wire::entries(part).map(|entry| entry.ok().and_then(decode).unwrap_or(Entry::Unknown))
}

fn decode(entry: wire::Entry<'_>) -> Option<Entry<'_>> {
    match entry.tag {
        // The leader checked all of it before it was proposed.
        TAG_PACK => Pack::decode_header(entry.bytes).ok().map(|pack| Entry::Pack { pack, owner: None, time: None }),
        TAG_TIMED => {
            let (time, inner) = entry.bytes.split_first_chunk()?;
            let inner = wire::entries(inner).next()?.ok().filter(|inner| inner.tag != TAG_TIMED)?;
            match decode(inner)? {
                Entry::Pack { pack, owner, .. } => {
                    let time = u64::from_le_bytes(*time);
                    Some(Entry::Pack { pack, owner, time: Some(Said { by: Ballot::ZERO, time }) })
                }
                _ => None,
            }
        }
        TAG_EXPIRE => postcard::from_bytes(entry.bytes).ok().map(|due| Entry::Expire(Ballot::ZERO, due)),
        TAG_COUNTED => {
            let (round, rest) = entry.bytes.split_first_chunk()?;
            let (replica, inner) = rest.split_first_chunk()?;
            let round = Round(u64::from_le_bytes(*round));
            let by = Ballot { round, replica: ReplicaId(u32::from_le_bytes(*replica)) };
            let inner = wire::entries(inner).next()?.ok().filter(|inner| inner.tag != TAG_COUNTED)?;
            match decode(inner)? {
                Entry::Pack { pack, owner, time: Some(Said { time, .. }) } => {
                    Some(Entry::Pack { pack, owner, time: Some(Said { by, time }) })
                }
                Entry::Expire(_, due) => Some(Entry::Expire(by, due)),
                _ => None,
            }
        }
        TAG_OWNED_PACK => {
            let (owner, pack) = entry.bytes.split_first_chunk()?;
            let owner = Some(u64::from_le_bytes(*owner));
            Pack::decode_header(pack).ok().map(|pack| Entry::Pack { pack, owner, time: None })
        }
        TAG_OPEN => Open::decode(entry.bytes).ok().map(Entry::Open),
        TAG_LIMITS => postcard::from_bytes(entry.bytes).ok().map(Entry::Limits),
        TAG_DIRECTORY => postcard::from_bytes(entry.bytes).ok().map(Entry::Directory),
        TAG_PLACE => {
            let bytes = Bytes::copy_from_slice(entry.bytes);
            let mut reader = BodyReader::new(&bytes);
            message::place(&mut reader).ok().filter(|_| reader.is_empty()).map(Entry::Place)
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

/// A client's entry of a pack, with the mark of its user before the pack. The order of the log decides which sessions
/// there are, so the machine compares the marks, and not whoever admits the pack.
pub fn owned(entry: &[u8], owner: u64) -> Bytes {
    // It was decoded whole: an error would be one of ours, and an entry without a pack does nothing.
    let pack = wire::single(entry, TAG_PACK).unwrap_or_default();
    let mut out = BytesMut::with_capacity(wire::ENTRY_OVERHEAD_BYTES_MAX + 8 + pack.len());
    wire::put_entry_parts(&mut out, TAG_OWNED_PACK, &[&owner.to_le_bytes(), pack]);
    out.freeze()
}

/// An entry of a pack, behind the time: with it in one entry, so that no pack is decided without its time.
pub fn timed(said: Said, entry: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(wire::ENTRY_OVERHEAD_BYTES_MAX + 8 + entry.len());
    wire::put_entry_parts(&mut out, TAG_TIMED, &[&said.time.to_le_bytes(), entry]);
    counted(said.by, &out)
}

/// An entry that expires keys.
pub fn expire(by: Ballot, due: &Expire) -> Bytes {
    counted(by, &plain(TAG_EXPIRE, due))
}

fn counted(by: Ballot, entry: &[u8]) -> Bytes {
    let (round, replica) = (by.round.0.to_le_bytes(), by.replica.0.to_le_bytes());
    let mut out = BytesMut::with_capacity(wire::ENTRY_OVERHEAD_BYTES_MAX + 12 + entry.len());
    wire::put_entry_parts(&mut out, TAG_COUNTED, &[&round, &replica, entry]);
    out.freeze()
}

/// An entry that puts a ticket into the log.
pub fn place(place: &Place) -> Bytes {
    let mut body = Body::default();
    message::put_place(&mut body, place);
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
