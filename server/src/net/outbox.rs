//! Bytes on their way into one socket: queued by a worker thread, written without blocking, as many as the socket
//! takes.
//!
//! Small pieces are gathered into one buffer, large ones (batches, chunks) are kept as they are and never copied.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytes::{Buf, Bytes, BytesMut};
use coppice_client::channel::Channel;
use coppice_client::wire::PART_BYTES;
use coppice_core::connection::FrameSink;
use coppice_core::wire::codec::Body;
use coppice_core::wire::peer_frame;

/// Pieces of at least this many bytes are queued as they are; below it, copying costs less than another slice.
const KEEP_BYTES_MIN: usize = 2_048;

/// Slices per system call; Linux takes up to 1024, and 64 pieces of 64 KiB fill any socket buffer.
const SLICES_MAX: usize = 64;

/// Bytes of one write, which the system copies while this thread waits: others have their turn before the next one.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// The tail is closed at this size: a turn full of answers fills several buffers instead of growing one.
const TAIL_BYTES: usize = 64 << 10;

/// What a buffer for tails holds: one that is almost full, and a whole chunk of a range on top.
const BUFFER_BYTES: usize = TAIL_BYTES + PART_BYTES + 1_024;

/// Buffers that a thread keeps for the next tails; more than that wait in a turn only under overload.
const BUFFERS_MAX: usize = 32;

thread_local! {
    /// Buffers whose bytes were written. An allocator that is given and asked for such sizes by turns spends more time
    /// on it than the walk over the tree that fills them.
    static BUFFERS: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// What waits to be written to one socket, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    pieces: VecDeque<Bytes>,
    /// Gathers small pieces; always logically behind `pieces`.
    tail: BytesMut,
    bytes: usize,
    /// Bytes of the first piece that were written: its buffer holds them still.
    written: usize,
    /// Bytes that the socket has taken, of everything that was queued.
    taken: u64,
    /// The socket took nothing more when it was last asked.
    blocked: bool,
}

impl FrameSink for Outbox {
    #[inline]
    fn bytes(&self) -> usize {
        self.bytes
    }

    #[inline]
    fn append(&mut self, write: impl FnOnce(&mut BytesMut)) {
        self.make_room();
        let before = self.tail.len();
        write(&mut self.tail);
        self.bytes += self.tail.len() - before;
    }
}

impl Outbox {
    /// Bytes that the socket has taken so far.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Pieces that wait, small ones gathered into one.
    pub fn waiting(&self) -> usize {
        self.pieces.len() + usize::from(!self.tail.is_empty())
    }

    /// Queues `piece` without copying it if it is large.
    pub fn push(&mut self, piece: Bytes) {
        self.bytes += piece.len();
        if piece.len() < KEEP_BYTES_MIN {
            self.make_room();
            self.tail.extend_from_slice(&piece);
        } else {
            self.seal_tail();
            self.pieces.push_back(piece);
        }
    }

    /// Queues a frame between nodes, of `kind`, around everything in `body`.
    pub fn push_frame(&mut self, kind: u8, body: &mut Body) {
        let length = body.len();
        let pieces = body.take_pieces();
        let header = peer_frame::header(kind, length, &pieces);
        self.append(|tail| tail.extend_from_slice(&header));
        pieces.into_iter().for_each(|piece| self.push(piece));
    }

    /// Takes everything out, in order.
    pub fn take(&mut self) -> Vec<Bytes> {
        self.seal_tail();
        (self.bytes, self.written) = (0, 0);
        self.pieces.drain(..).collect()
    }

    /// Forgets everything: the connection is gone.
    pub fn clear(&mut self) {
        *self = Outbox::default();
    }

    fn seal_tail(&mut self) {
        if self.blocked && !self.tail.is_empty() && self.tail.len() < KEEP_BYTES_MIN {
            // Whoever waits for long keeps its own bytes only, not the buffer that they were gathered in.
            self.pieces.push_back(Bytes::copy_from_slice(&self.tail));
            self.tail.clear();
        } else if !self.tail.is_empty() {
            self.pieces.push_back(std::mem::take(&mut self.tail).freeze());
        }
    }

    fn make_room(&mut self) {
        if self.tail.len() >= TAIL_BYTES {
            self.seal_tail();
        }
        if self.tail.capacity() == 0 {
            let kept = BUFFERS.with_borrow_mut(Vec::pop);
            self.tail = kept.unwrap_or_else(|| BytesMut::with_capacity(BUFFER_BYTES));
        }
    }

    /// Writes until the socket would block, nothing is left, or `WRITE_BYTES_MAX` are written. `Ok(true)`: all is
    /// written, and has left the channel.
    ///
    /// # Errors
    /// The socket's error; the connection is then of no further use.
    pub fn write_to(&mut self, stream: &Channel) -> io::Result<bool> {
        // While the socket takes nothing, small pieces gather in one buffer instead of one each turn.
        if !self.blocked {
            self.seal_tail();
        }
        let mut left = WRITE_BYTES_MAX;
        loop {
            if self.pieces.is_empty() {
                self.seal_tail();
            }
            if self.pieces.is_empty() {
                return stream.try_flush();
            }
            if left == 0 {
                return Ok(false);
            }
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let (mut count, mut offered) = (0, 0);
            for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
                *slice = IoSlice::new(&piece[..piece.len().min(left - offered)]);
                (count, offered) = (count + 1, offered + slice.len());
                if offered == left {
                    break;
                }
            }
            match stream.write_vectored(&slices[..count]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.blocked = false;
                    left -= written;
                    self.advance(written);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = true;
                    self.let_go_of_written();
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// A socket that takes nothing more may do so for long: what is left of the first piece is kept without the larger
    /// part of its buffer, which is written.
    fn let_go_of_written(&mut self) {
        if let Some(front) = self.pieces.front_mut()
            && self.written > front.len()
        {
            let left = Bytes::copy_from_slice(front);
            keep(std::mem::replace(front, left));
            self.written = 0;
        }
    }

    fn advance(&mut self, mut written: usize) {
        self.bytes -= written;
        self.taken += written as u64;
        while written > 0 {
            let Some(front) = self.pieces.front_mut() else { return };
            if front.len() > written {
                front.advance(written);
                self.written += written;
                return;
            }
            written -= front.len();
            self.written = 0;
            if let Some(piece) = self.pieces.pop_front() {
                keep(piece);
            }
        }
    }
}

/// Keeps the buffer behind `piece` for a later tail, if it is one and nobody else has a part of it.
fn keep(piece: Bytes) {
    if let Ok(mut buffer) = piece.try_into_mut() {
        buffer.clear();
        // What was written piecemeal begins in the middle of its buffer: the front is taken back too.
        if buffer.try_reclaim(BUFFER_BYTES) && buffer.capacity() <= 2 * BUFFER_BYTES {
            BUFFERS.with_borrow_mut(|buffers| {
                if buffers.len() < BUFFERS_MAX {
                    buffers.push(buffer);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_keep_their_order_across_small_and_large_ones() {
        let mut outbox = Outbox::default();
        outbox.push(Bytes::from_static(b"a"));
        outbox.push(Bytes::from(vec![b'b'; KEEP_BYTES_MIN]));
        outbox.append(|tail| tail.extend_from_slice(b"c"));
        outbox.push(Bytes::from_static(b"d"));
        assert_eq!(outbox.bytes(), KEEP_BYTES_MIN + 3);
        outbox.seal_tail();
        let all: Vec<u8> = outbox.pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
        assert_eq!((all[0], all[1], all[KEEP_BYTES_MIN + 1], all[KEEP_BYTES_MIN + 2]), (b'a', b'b', b'c', b'd'));
        outbox.advance(2);
        assert_eq!(outbox.bytes(), KEEP_BYTES_MIN + 1);
        outbox.advance(KEEP_BYTES_MIN);
        assert_eq!(outbox.pieces.len(), 1);
    }

    /// A node that was paused for a minute: each turn of the others left a small frame for it, in a buffer of 64 KiB of
    /// its own, and they held gigabytes.
    #[tokio::test]
    async fn what_waits_for_a_socket_that_takes_nothing_pins_little_more_than_its_bytes() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let stream = tokio::net::TcpStream::connect(listener.local_addr().expect("bound")).await.expect("it listens");
        let stream = Channel::Plain(stream);
        let (mut far, _) = listener.accept().await.expect("it is accepted");
        let mut outbox = Outbox::default();
        let turn = |outbox: &mut Outbox, bytes: usize| {
            outbox.append(|tail| tail.resize(tail.len() + bytes, 7));
            outbox.write_to(&stream).expect("it is open")
        };
        stream.writable().await.expect("it is open");
        while turn(&mut outbox, TAIL_BYTES) {}
        for _ in 0..2_000 {
            assert!(!turn(&mut outbox, 82));
            outbox.push(Bytes::from(vec![8; KEEP_BYTES_MIN]));
        }
        let bytes = outbox.bytes();
        let capacity = |piece: Bytes| piece.try_into_mut().map_or(0, |buffer| buffer.capacity());
        let held: usize = outbox.take().into_iter().map(capacity).sum();
        assert!(held < 2 * bytes + 64 * BUFFER_BYTES, "{held} bytes are held for {bytes}");
        // Nothing is lost on the way to a socket that takes all again.
        drop(far.readable().await);
        let mut outbox = Outbox { blocked: true, ..Outbox::default() };
        outbox.append(|tail| tail.extend_from_slice(b"end"));
        let mut chunk = vec![0; 1 << 20];
        while !outbox.write_to(&stream).expect("it is open") {
            // All may be read before the socket is known to take more.
            tokio::select! {
                read = tokio::io::AsyncReadExt::read(&mut far, &mut chunk) => assert!(read.expect("it is open") > 0),
                writable = stream.writable() => writable.expect("it is open"),
            }
        }
        assert!(outbox.is_empty());
    }

    /// Slow readers of large values pinned buffers of 260 KiB for the last few bytes in each.
    #[tokio::test]
    async fn what_is_left_of_a_piece_does_not_pin_what_was_written_of_it() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let stream = tokio::net::TcpStream::connect(listener.local_addr().expect("bound")).await.expect("it listens");
        let stream = Channel::Plain(stream);
        let (_far, _) = listener.accept().await.expect("it is accepted");
        let mut outbox = Outbox::default();
        outbox.push(Bytes::from(vec![7; 64 << 20]));
        stream.writable().await.expect("it is open");
        // The socket takes what it can, a bounded write at a time; nobody reads.
        while !outbox.blocked {
            let taken = outbox.taken();
            assert!(!outbox.write_to(&stream).expect("it is open"));
            assert!(outbox.taken() <= taken + WRITE_BYTES_MAX as u64);
        }
        let front = outbox.pieces.front().expect("most of it").len();
        assert!(outbox.written <= front, "{} bytes are held for {front}", outbox.written + front);
        // As if the socket had taken nearly all of it.
        outbox.advance(front - 100);
        outbox.let_go_of_written();
        let left = outbox.take().into_iter().next().expect("the end of it");
        assert_eq!(left.len(), 100);
        assert!(left.try_into_mut().expect("its own").capacity() < 4_096);
    }

    #[test]
    fn buffers_of_written_tails_are_used_again() {
        let mut outbox = Outbox::default();
        outbox.append(|tail| tail.resize(TAIL_BYTES + 1, 1));
        let first = outbox.tail.as_ptr();
        outbox.append(|tail| tail.resize(TAIL_BYTES, 2));
        assert_eq!((outbox.waiting(), outbox.bytes()), (2, 2 * TAIL_BYTES + 1));
        outbox.seal_tail();
        // The first is written; the second only in part.
        outbox.advance(TAIL_BYTES + 11);
        assert_eq!((outbox.waiting(), outbox.bytes()), (1, TAIL_BYTES - 10));
        outbox.append(|tail| tail.resize(10, 3));
        assert_eq!(outbox.tail.as_ptr(), first);
        // Written piecemeal, the second comes back whole.
        let second = outbox.pieces[0].as_ptr().wrapping_sub(10);
        outbox.advance(TAIL_BYTES - 20);
        outbox.advance(10);
        assert_eq!((outbox.waiting(), outbox.bytes()), (1, 10));
        let whole = |kept: &BytesMut| kept.as_ptr() == second && kept.capacity() >= BUFFER_BYTES;
        assert!(BUFFERS.with_borrow(|buffers| buffers.iter().any(whole)));
    }
}
