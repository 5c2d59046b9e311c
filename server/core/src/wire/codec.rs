//! Bodies of peers' frames: small fields gathered, payloads shared and never copied, on the way out and on the way in.

use bytes::{BufMut, Bytes, BytesMut};
use coppice_client::wire::{Reader, WireError, put_varint};

/// Reads fields off the front of a frame's body; byte strings share its memory.
pub struct BodyReader<'a> {
    body: &'a Bytes,
    reader: Reader<'a>,
}

impl<'a> BodyReader<'a> {
    /// Reads `body` from the start.
    pub fn new(body: &'a Bytes) -> BodyReader<'a> {
        BodyReader { body, reader: Reader::new(body) }
    }

    /// Bytes that are not read yet.
    pub fn left(&self) -> usize {
        self.reader.rest().len()
    }

    /// Whether everything is read.
    pub fn is_empty(&self) -> bool {
        self.reader.is_empty()
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, WireError> {
        self.reader.u8()
    }

    pub fn varint(&mut self) -> Result<u64, WireError> {
        self.reader.varint()
    }

    /// A varint of at most 32 bits.
    pub fn varint_u32(&mut self) -> Result<u32, WireError> {
        self.reader.varint_u32()
    }

    /// A length of at most `max`, then so many bytes, shared with the frame.
    pub fn bytes(&mut self, what: &'static str, max: usize) -> Result<Bytes, WireError> {
        let slice = self.reader.bytes(what, max)?;
        Ok(self.body.slice_ref(slice))
    }

    /// A count of things of at least `bytes_min` bytes each: bounded by what is there before anything is allocated.
    pub fn count(&mut self, what: &'static str, bytes_min: usize) -> Result<usize, WireError> {
        let count = self.reader.varint()?;
        let most = self.reader.rest().len() / bytes_min;
        usize::try_from(count).ok().filter(|&count| count <= most).ok_or(WireError::Unknown { what, value: count })
    }
}

/// A body under construction: small fields gathered, payloads kept as they are and never copied.
#[derive(Debug, Default)]
pub struct Body {
    pieces: Vec<Bytes>,
    tail: BytesMut,
    length: usize,
}

impl Body {
    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.length + self.tail.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends one byte.
    pub fn put_u8(&mut self, value: u8) {
        self.tail.put_u8(value);
    }

    /// Appends a varint.
    pub fn put_varint(&mut self, value: u64) {
        put_varint(&mut self.tail, value);
    }

    /// Appends a length and the bytes, copied.
    pub fn put_bytes(&mut self, bytes: &[u8]) {
        self.put_varint(bytes.len() as u64);
        self.tail.extend_from_slice(bytes);
    }

    /// Appends a length and the parts; long ones are shared, short ones copied.
    pub fn put_parts(&mut self, length: usize, parts: &[Bytes]) {
        self.put_varint(length as u64);
        for part in parts {
            if part.len() < 1_024 {
                self.tail.extend_from_slice(part);
            } else {
                self.seal();
                self.length += part.len();
                self.pieces.push(part.clone());
            }
        }
    }

    fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.length += self.tail.len();
            self.pieces.push(self.tail.split().freeze());
        }
    }

    /// The pieces, in order; the body is empty afterwards and keeps its buffer.
    pub fn take_pieces(&mut self) -> Vec<Bytes> {
        self.seal();
        self.length = 0;
        std::mem::take(&mut self.pieces)
    }
}
