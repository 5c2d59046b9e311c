//! What a client asks for, in the generator's own words: small, copied, free of allocations. A target puts it on its
//! wire.

use super::keys::Part;
use crate::random::{Rng, mix};

/// A key of 8 bytes, as a number; its bytes are big-endian, so that both orders agree.
pub type Key = u64;

/// What is written. Every value of a run is different and names the request that wrote it (hazards.md E1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// The client that writes.
    pub client: u32,
    /// The number of its request.
    pub number: u64,
    /// How it looks on the wire.
    pub form: ValueForm,
}

/// The shape of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueForm {
    /// This many bytes: 8 of identity (fewer if the value is shorter), then noise that does not compress.
    Bytes(u32),
    /// `client.number` as text, as histories want it (hazards.md E1).
    Text,
}

const NOISE_BYTES: usize = 64 * 1024;

fn noise() -> &'static [u8; 2 * NOISE_BYTES] {
    static NOISE: std::sync::OnceLock<Box<[u8; 2 * NOISE_BYTES]>> = std::sync::OnceLock::new();
    NOISE.get_or_init(|| {
        let mut noise = Box::new([0; 2 * NOISE_BYTES]);
        for (i, chunk) in noise.chunks_exact_mut(8).enumerate() {
            chunk.copy_from_slice(&mix(i as u64 + 1).to_le_bytes());
        }
        noise
    })
}

impl Value {
    /// The first eight bytes of a binary value. 24 bits of client and 40 of number are unique for 10^12 requests of
    /// each of 16 million clients.
    pub fn identity(&self) -> [u8; 8] {
        (u64::from(self.client) << 40 | (self.number & ((1 << 40) - 1))).to_be_bytes()
    }

    /// Appends the value's bytes.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self.form {
            ValueForm::Bytes(8) => out.extend_from_slice(&self.identity()),
            ValueForm::Bytes(bytes) => {
                let bytes = bytes as usize;
                let identity = self.identity();
                let head = bytes.min(8);
                out.extend_from_slice(&identity[8 - head..]);
                let mut left = bytes - head;
                let mut at = mix(u64::from_be_bytes(identity)) as usize % NOISE_BYTES;
                while left > 0 {
                    let take = left.min(NOISE_BYTES);
                    out.extend_from_slice(&noise()[at..at + take]);
                    left -= take;
                    at = 0;
                }
            }
            ValueForm::Text => {
                use std::io::Write;
                let _ = write!(out, "{}.{}", self.client, self.number); // a Vec never refuses
            }
        }
    }

    /// The value's bytes, owned.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }
}

/// One update inside a request of several (papers.md D14, workload c).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// Insert if absent.
    Insert(Key, Value),
    /// Remove if present.
    Delete(Key),
}

impl Update {
    /// The key.
    pub const fn key(&self) -> Key {
        match *self {
            Update::Insert(key, _) | Update::Delete(key) => key,
        }
    }
}

/// Updates of one partition under one number. They are drawn anew whenever they are read, because every request is as
/// large as this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Updates {
    /// Their keys are among the first `keys` of this part.
    pub part: Part,
    /// How many keys they are drawn from; at least one.
    pub keys: u64,
    /// How many updates there are.
    pub count: u32,
    /// Draws the key of each and whether it is an insert.
    pub draws: Rng,
    /// What all inserts write.
    pub value: Value,
}

impl Updates {
    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = Update> + use<> {
        let Updates { part, keys, count, mut draws, value } = *self;
        (0..count).map(move |_| {
            let key = part.key(draws.below(keys));
            if draws.next() & 1 == 0 { Update::Insert(key, value) } else { Update::Delete(key) }
        })
    }
}

/// One request of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Read one key.
    Get(Key),
    /// Write, whatever is there.
    Put(Key, Value),
    /// Write if absent.
    Insert(Key, Value),
    /// Remove if present.
    Delete(Key),
    /// Several updates of one partition at once.
    Many(Updates),
    /// All pairs of `low..high`, at most `limit` of them (0: all).
    Range {
        /// The first key inside.
        low: Key,
        /// The first key behind; none: up to the end of the space.
        high: Option<Key>,
        /// The most pairs to return; 0 is no limit.
        limit: u32,
    },
    /// A get and, once it is answered, a put of the same key (YCSB F); one request, two commands.
    ReadModifyWrite(Key, Value),
}

/// Kinds of requests, for counting apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// [`Request::Get`].
    Get,
    /// [`Request::Put`].
    Put,
    /// [`Request::Insert`].
    Insert,
    /// [`Request::Delete`].
    Delete,
    /// [`Request::Many`].
    Many,
    /// [`Request::Range`].
    Range,
    /// [`Request::ReadModifyWrite`].
    ReadModifyWrite,
}

impl Kind {
    /// All kinds, in the order of reports; the position is the index of [`Kind::index`].
    pub const ALL: [Kind; 7] =
        [Kind::Get, Kind::Put, Kind::Insert, Kind::Delete, Kind::Many, Kind::Range, Kind::ReadModifyWrite];

    /// The position in [`Kind::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The word in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Get => "get",
            Kind::Put => "put",
            Kind::Insert => "insert",
            Kind::Delete => "delete",
            Kind::Many => "many",
            Kind::Range => "range",
            Kind::ReadModifyWrite => "read-modify-write",
        }
    }
}

impl Request {
    /// The kind.
    pub const fn kind(&self) -> Kind {
        match self {
            Request::Get(_) => Kind::Get,
            Request::Put(..) => Kind::Put,
            Request::Insert(..) => Kind::Insert,
            Request::Delete(_) => Kind::Delete,
            Request::Many(_) => Kind::Many,
            Request::Range { .. } => Kind::Range,
            Request::ReadModifyWrite(..) => Kind::ReadModifyWrite,
        }
    }

    /// The key, the first one of several.
    pub fn key(&self) -> Key {
        match *self {
            Request::Get(key) | Request::Delete(key) => key,
            Request::Put(key, _) | Request::Insert(key, _) | Request::ReadModifyWrite(key, _) => key,
            Request::Range { low, .. } => low,
            Request::Many(updates) => updates.iter().next().map_or(0, |update| update.key()),
        }
    }

    /// How many commands on the tree it carries.
    pub fn commands(&self) -> u32 {
        match self {
            Request::Many(updates) => updates.count,
            Request::ReadModifyWrite(..) => 2,
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_name_their_request_and_have_the_size_asked_for() {
        let value = |number, form| Value { client: 3, number, form };
        assert_eq!(value(41, ValueForm::Text).to_vec(), b"3.41");
        for bytes in [0, 1, 7, 8, 9, 100, 1_000, 65_536, 200_000] {
            let (a, b) = (value(41, ValueForm::Bytes(bytes)).to_vec(), value(42, ValueForm::Bytes(bytes)).to_vec());
            assert_eq!(a.len(), bytes as usize);
            assert_eq!(a == b, bytes == 0);
        }
    }

    #[test]
    fn a_request_is_small_however_many_updates_it_has() {
        assert!(size_of::<Request>() <= 96, "{} bytes", size_of::<Request>());
    }

    #[test]
    fn kinds_stand_at_their_index() {
        assert!(Kind::ALL.iter().enumerate().all(|(i, kind)| kind.index() == i));
    }
}
