//! Serde for [`Bytes`] as one byte string: length and bytes, without a call per byte.

use std::fmt;

use bytes::Bytes;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::ser::Serializer;

/// Writes a byte string.
pub fn serialize<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

/// Reads a byte string.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    deserializer.deserialize_byte_buf(BytesVisitor)
}

struct BytesVisitor;

impl<'de> Visitor<'de> for BytesVisitor {
    type Value = Bytes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a byte string")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
        Ok(Bytes::copy_from_slice(bytes))
    }

    fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Bytes, E> {
        Ok(Bytes::from(bytes))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Bytes, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = sequence.next_element()? {
            bytes.push(byte);
        }
        Ok(Bytes::from(bytes))
    }
}

/// The same for an optional byte string.
pub mod option {
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Wrapped(#[serde(with = "super")] Bytes);

    /// Writes an optional byte string.
    pub fn serialize<S: Serializer>(bytes: &Option<Bytes>, serializer: S) -> Result<S::Ok, S::Error> {
        bytes.clone().map(Wrapped).serialize(serializer)
    }

    /// Reads an optional byte string.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Bytes>, D::Error> {
        Ok(Option::<Wrapped>::deserialize(deserializer)?.map(|wrapped| wrapped.0))
    }
}

/// The same for a list of byte strings, of [`bounded::ELEMENTS_MAX`] at most.
pub mod list {
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Wrapped(#[serde(with = "super")] Bytes);

    /// Writes a list of byte strings.
    pub fn serialize<S: Serializer>(list: &[Bytes], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(list.iter().cloned().map(Wrapped))
    }

    /// Reads a list of byte strings.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Bytes>, D::Error> {
        let list: Vec<Wrapped> = super::bounded::deserialize(deserializer)?;
        Ok(list.into_iter().map(|wrapped| wrapped.0).collect())
    }
}

/// Lists that are refused while they are read if they are longer than any sender makes them: an element may take many
/// times its bytes, and time.
pub mod bounded {
    use std::marker::PhantomData;

    use serde::Deserialize;

    use super::*;

    /// Elements of a list at most.
    pub const ELEMENTS_MAX: usize = 4_096;

    /// Reads a list.
    pub fn deserialize<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
        deserializer.deserialize_seq(ListVisitor(PhantomData))
    }

    struct ListVisitor<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {ELEMENTS_MAX} elements")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(element) = sequence.next_element()? {
                if list.len() >= ELEMENTS_MAX && !mutant!(lists_unbounded) {
                    return Err(Error::invalid_length(list.len() + 1, &self));
                }
                list.push(element);
            }
            Ok(list)
        }
    }
}
