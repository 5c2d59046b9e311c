//! Frames: the unit of everything that clients and peers send. Knows lengths and checksums, no message.
//!
//! Header, 16 bytes, little-endian: `u32 length` of the body, `u32 crc32c` of all that follows it, `u8 kind`,
//! `u8 flags`, `u16 zero`, `u32 stream`.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::FRAME_BYTES_MAX;

/// Length of a frame's header.
pub const HEADER_BYTES: usize = 16;
/// Longest body that fits a frame.
pub const BODY_BYTES_MAX: usize = FRAME_BYTES_MAX - HEADER_BYTES;
/// The first buffer of a decoder. Small, because a node holds thousands of idle connections.
const BUFFER_BYTES_MIN: usize = 4 * 1024;
/// Buffers of a connection that is used grow up to this. Frames share the buffer that they came in, and whoever keeps
/// one keeps all of that: the fuller a buffer gets, the less is kept for nothing.
const BUFFER_BYTES_MAX: usize = 16 * 1024;
/// The same for what clients receive. They have few connections, and chunks of ranges come as fast as they are read: a
/// smaller buffer takes a system call for each, and most of them are copied because they begin in one buffer and end in
/// the next.
const ANSWERS_BUFFER_BYTES_MAX: usize = 64 * 1024;
/// A buffer counts as full when less than this part of it is left.
const SPARE: usize = 8;
/// Most room that a decoder offers ahead of what it holds: a peer that only announces bytes gets no memory for them.
const READ_BYTES_MAX: usize = 256 * 1024;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// What a frame carries. Numbers are never used twice; below 128 from the client, above to it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Kind {
            $($(#[$doc])* $name = $number,)*
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &'static [Kind] = &[$(Kind::$name,)*];

            /// The kind with this number, if this version knows it.
            #[inline]
            pub fn from_u8(number: u8) -> Option<Kind> {
                match number {
                    $($number => Some(Kind::$name),)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// Who the client is; first on every connection.
    Hello = 1,
    /// Asks for the partition map.
    MapGet = 2,
    /// Asks for the cluster's status.
    Status = 3,
    /// An operator's verb.
    Admin = 4,
    /// Asks for a `Pong`.
    Ping = 5,
    /// A pack of commands for one partition.
    Commands = 16,
    /// Opens a session in one partition.
    OpenSession = 17,
    /// Reads keys of one partition.
    Read = 18,
    /// Reads a range in one partition.
    Range = 19,
    /// Lets more of a range come.
    Credit = 20,
    /// No more of a range is wanted.
    Cancel = 21,
    /// Asks the coordinator for a range over several partitions (protocol.md 4).
    RangeQuery = 22,
    /// Lets more of a query's part come.
    PartCredit = 23,
    /// No more of a query's parts is wanted.
    PartCancel = 24,
    /// Asks whether ranges of one partition have changed since they were read.
    Validate = 25,
    /// Asks a node for a range over several partitions that it has replicas of.
    Collect = 26,
    /// What the reader of a range holds of it.
    Compare = 27,
    /// What the reader of a query holds of a part.
    PartCompare = 28,
    // 64 to 127: between nodes.
    /// Answers `Hello`.
    HelloOk = 129,
    /// Answers `MapGet`.
    Map = 130,
    /// Answers `Status`.
    StatusReply = 131,
    /// Answers `Admin`.
    AdminReply = 132,
    /// Answers `Ping`.
    Pong = 133,
    /// Answers packs, opened sessions and reads, several streams in one frame.
    Replies = 144,
    /// A chunk of a range.
    Part = 145,
    /// The ticket of a query and who serves its parts.
    QueryPlan = 146,
    /// The parts of a query are its result.
    QueryCompleted = 147,
    /// Why nothing was done. Stream 0: the connection is about to close.
    Refused = 160,
}

/// A frame whose length and checksum were right. The body shares the buffer that it was received in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Number of the kind; see [`Kind::from_u8`].
    pub kind: u8,
    /// Depends on the kind; 0 where it says nothing.
    pub flags: u8,
    /// The request that this belongs to; the client's choice, unique among those that it waits for.
    pub stream: u32,
    /// The message.
    pub body: Bytes,
}

/// Why a stream of bytes is not a stream of frames. There is no way to go on: the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum FrameError {
    /// The announced length is above the limit.
    #[error("frame of {bytes} bytes, at most {max} are allowed")]
    TooLarge {
        /// Announced length with header.
        bytes: u64,
        /// Limit with header.
        max: u64,
    },
    /// The bytes were damaged, or are no frames.
    #[error("frame checksum does not match")]
    Checksum,
    /// The reserved field is not zero.
    #[error("frame header is damaged or of another version")]
    Header,
}

/// Cuts received bytes into frames. After an error it stays in error.
#[derive(Debug)]
pub struct FrameDecoder {
    buffer: BytesMut,
    /// The size of the next buffer.
    next: usize,
    /// The size of the largest buffer.
    buffer_bytes_max: usize,
    frame_bytes_max: usize,
    failed: Option<FrameError>,
}

impl Default for FrameDecoder {
    fn default() -> FrameDecoder {
        FrameDecoder::new(FRAME_BYTES_MAX)
    }
}

impl FrameDecoder {
    /// A decoder that refuses frames above `frame_bytes_max`, header included.
    pub fn new(frame_bytes_max: usize) -> FrameDecoder {
        let (next, buffer_bytes_max) = (BUFFER_BYTES_MIN, BUFFER_BYTES_MAX);
        FrameDecoder { buffer: BytesMut::new(), next, buffer_bytes_max, frame_bytes_max, failed: None }
    }

    /// From the next frame on it refuses those above `frame_bytes_max`, header included.
    pub fn set_frame_bytes_max(&mut self, frame_bytes_max: usize) {
        self.frame_bytes_max = frame_bytes_max;
    }

    /// A decoder of what nodes send to a client.
    pub fn of_answers() -> FrameDecoder {
        FrameDecoder { buffer_bytes_max: ANSWERS_BUFFER_BYTES_MAX, ..FrameDecoder::default() }
    }

    /// Where to read the next bytes to: has room for at least 512 bytes, more while a frame or a full stream is
    /// arriving, never more than twice what has arrived plus 4 KiB, or the size of the largest buffer.
    pub fn space(&mut self) -> &mut BytesMut {
        let held = self.buffer.len();
        if self.buffer.capacity() - held < self.next / SPARE {
            let room = self.missing().unwrap_or(0).min(held).clamp(self.next, READ_BYTES_MAX);
            self.buffer.reserve(room);
            self.next = (2 * self.next).min(self.buffer_bytes_max);
        }
        &mut self.buffer
    }

    /// Appends received bytes (for callers that do not read into [`FrameDecoder::space`]).
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// What was received behind the last frame: for another decoder to go on with.
    pub fn into_rest(self) -> BytesMut {
        self.buffer
    }

    /// Bytes held that were not given out as frames yet.
    pub fn held_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Whether [`FrameDecoder::next_frame`] gives a frame, or an error.
    pub fn has_frame(&self) -> bool {
        self.failed.is_some() || self.missing_bytes().is_some_and(|missing| missing <= 0)
    }

    /// How many bytes the first frame lacks; negative: there are more.
    fn missing_bytes(&self) -> Option<i64> {
        let length = u32::from_le_bytes(*self.buffer.first_chunk()?);
        let whole = HEADER_BYTES as i64 + i64::from(length);
        // A frame that is too long is an error as soon as its header is there.
        let header = if whole > self.frame_bytes_max as i64 { HEADER_BYTES as i64 } else { whole };
        Some(header - self.buffer.len() as i64)
    }

    /// How many bytes the frame that is arriving still lacks, if its header is there.
    fn missing(&self) -> Option<usize> {
        let length = u32::from_le_bytes(*self.buffer.first_chunk()?) as usize;
        (HEADER_BYTES + length).checked_sub(self.buffer.len())
    }

    /// The next frame, `None` if it has not arrived whole. The length is checked before any room is made for it.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        match self.cut() {
            Err(error) => {
                self.failed = Some(error);
                self.buffer = BytesMut::new();
                Err(error)
            }
            cut => cut,
        }
    }

    fn cut(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(header) = self.buffer.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let crc = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        let (kind, flags) = (header[8], header[9]);
        let stream = u32::from_le_bytes([header[12], header[13], header[14], header[15]]);
        if HEADER_BYTES + length > self.frame_bytes_max && !mutant!(frame_length_unchecked) {
            let (bytes, max) = ((HEADER_BYTES + length) as u64, self.frame_bytes_max as u64);
            return Err(FrameError::TooLarge { bytes, max });
        }
        if header[10] != 0 || header[11] != 0 {
            return Err(FrameError::Header);
        }
        if self.buffer.len() < HEADER_BYTES + length {
            return Ok(None);
        }
        let right = crc32c::crc32c(&self.buffer[8..HEADER_BYTES + length]) == crc;
        if !right && !mutant!(frame_checksum_unchecked) {
            return Err(FrameError::Checksum);
        }
        self.buffer.advance(HEADER_BYTES);
        let body = self.buffer.split_to(length).freeze();
        if length > self.buffer_bytes_max {
            // A command of a few bytes that came in the buffer of a large frame would keep all of it in memory.
            self.buffer = BytesMut::from(&self.buffer[..]);
        }
        Ok(Some(Frame { kind, flags, stream, body }))
    }
}

/// Appends a whole frame.
///
/// # Panics
/// If the body is longer than [`BODY_BYTES_MAX`]: what we make ourselves fits.
pub fn encode_frame(out: &mut BytesMut, kind: Kind, stream: u32, body: &[u8]) {
    out.reserve(HEADER_BYTES + body.len());
    let start = begin_frame(out, kind, stream);
    out.put_slice(body);
    end_frame(out, start);
}

/// Starts a frame whose body is then appended to `out`; give the result to [`end_frame`].
pub fn begin_frame(out: &mut BytesMut, kind: Kind, stream: u32) -> usize {
    let start = out.len();
    let mut header = [0; HEADER_BYTES];
    header[8] = kind as u8;
    header[12..].copy_from_slice(&stream.to_le_bytes());
    out.put_slice(&header);
    start
}

/// Ends the frame that began at `start`: writes its length and checksum.
///
/// # Panics
/// If the body is longer than [`BODY_BYTES_MAX`].
pub fn end_frame(out: &mut BytesMut, start: usize) {
    seal_frame(&mut out[start..]);
}

/// Writes length and checksum of a frame that stands alone in `frame`.
pub(super) fn seal_frame(frame: &mut [u8]) {
    let length = frame.len() - HEADER_BYTES;
    assert!(length <= BODY_BYTES_MAX, "a frame of our own is too long: {length} bytes");
    let crc = crc32c::crc32c(&frame[8..]);
    frame[..4].copy_from_slice(&(length as u32).to_le_bytes());
    frame[4..8].copy_from_slice(&crc.to_le_bytes());
}
