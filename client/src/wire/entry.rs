//! Entries: what a batch's payload is made of. The leader's batch is the concatenation of entries as they came in.
//!
//! An entry is `u8 tag, varint length, bytes`. A client's frame holds the whole entry, so the leader passes it on
//! untouched. This module knows tags 1 and 2; the others belong to the server.

use bytes::{BufMut, BytesMut};

use super::varint::{Reader, WireError, put_varint};
use super::{ClientId, PACK_BYTES_MAX};

/// Tag of a pack of commands ([`super::pack`]).
pub const TAG_PACK: u8 = 1;
/// Tag of a session's opening ([`Open`]).
pub const TAG_OPEN: u8 = 2;
// 3 to 255 are the server's.

/// Most bytes that an entry adds around its content.
pub const ENTRY_OVERHEAD_BYTES_MAX: usize = 6;

/// One entry of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// What the bytes are.
    pub tag: u8,
    /// The content.
    pub bytes: &'a [u8],
}

/// Walks over the entries of a payload. After an error it ends.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    reader: Reader<'a>,
}

/// The entries of `payload`, in order.
pub fn entries(payload: &[u8]) -> Entries<'_> {
    Entries { reader: Reader::new(payload) }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.is_empty() {
            return None;
        }
        let entry = read_entry(&mut self.reader);
        if entry.is_err() {
            self.reader = Reader::new(&[]);
        }
        Some(entry)
    }
}

fn read_entry<'a>(reader: &mut Reader<'a>) -> Result<Entry<'a>, WireError> {
    let tag = reader.u8()?;
    let bytes = reader.bytes("entry", u32::MAX as usize)?;
    Ok(Entry { tag, bytes })
}

/// The only entry of `bytes`, as a client sends it: nothing may follow, and it has the tag that its frame says.
pub fn single(bytes: &[u8], tag: u8) -> Result<&[u8], WireError> {
    let mut reader = Reader::new(bytes);
    let found = reader.u8()?;
    if found != tag {
        return Err(WireError::Unknown { what: "entry tag", value: u64::from(found) });
    }
    let content = reader.bytes("entry", PACK_BYTES_MAX)?;
    reader.finish()?;
    Ok(content)
}

/// Appends an entry.
pub fn put_entry(out: &mut BytesMut, tag: u8, bytes: &[u8]) {
    put_entry_parts(out, tag, &[bytes]);
}

/// Appends an entry whose content is these parts, one behind the other.
pub fn put_entry_parts(out: &mut BytesMut, tag: u8, parts: &[&[u8]]) {
    let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
    out.reserve(ENTRY_OVERHEAD_BYTES_MAX + bytes);
    out.put_u8(tag);
    put_varint(out, bytes as u64);
    parts.iter().for_each(|part| out.put_slice(part));
}

/// Content of an entry with [`TAG_OPEN`]: a client opens a session. The entry's position becomes the session's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Open {
    pub client: ClientId,
    /// Distinguishes the openings of this client, so that each answer finds its request.
    pub nonce: u64,
}

impl Open {
    /// Appends the whole entry.
    pub fn put(&self, out: &mut BytesMut) {
        let mut content = [0; 16];
        content[..8].copy_from_slice(&self.client.0.to_le_bytes());
        content[8..].copy_from_slice(&self.nonce.to_le_bytes());
        put_entry(out, TAG_OPEN, &content);
    }

    /// Reads the content of an entry.
    pub fn decode(content: &[u8]) -> Result<Open, WireError> {
        let mut reader = Reader::new(content);
        let open = Open { client: ClientId(reader.u64()?), nonce: reader.u64()? };
        reader.finish()?;
        Ok(open)
    }
}
