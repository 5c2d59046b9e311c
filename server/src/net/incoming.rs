//! Reading what a socket has, without asking it once more whether that was all.

use std::io;

use coppice_client::wire::FrameDecoder;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Reads what has come, up to one buffer, as `TcpStream::try_read_buf` does. A read that does not fill its buffer has
/// taken all there was, so the socket counts as not readable until the system says that it is again: that saves a
/// system call for each message that comes alone. An end that came with the bytes is still seen, since it stays known
/// apart from them.
pub fn read(stream: &TcpStream, decoder: &mut FrameDecoder) -> io::Result<usize> {
    let space = decoder.space();
    let room = space.capacity() - space.len();
    let read = stream.try_read_buf(space)?;
    if 0 < read && read < room {
        // Nothing is heard of the system between the read and this: both are on the thread that asks it.
        let nothing_more = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
        drop(stream.try_io(Interest::READABLE, nothing_more));
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    use bytes::BytesMut;
    use coppice_client::wire::{Kind, encode_frame};
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    fn frames(count: usize, bytes: usize) -> BytesMut {
        let mut out = BytesMut::new();
        (0..count).for_each(|_| encode_frame(&mut out, Kind::Ping, 1, &vec![7; bytes]));
        out
    }

    /// Reads until so many frames have come, with each wait for the socket; how many reads that took.
    async fn take(stream: &TcpStream, decoder: &mut FrameDecoder, frames: usize) -> usize {
        let (mut taken, mut reads) = (0, 0);
        while taken < frames {
            stream.readable().await.unwrap();
            match read(stream, decoder) {
                Ok(bytes) => assert!(bytes > 0, "an end"),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            reads += 1;
            while decoder.next_frame().unwrap().is_some() {
                taken += 1;
            }
        }
        reads
    }

    fn is_readable(stream: &TcpStream) -> bool {
        let mut readable = std::pin::pin!(stream.readable());
        matches!(readable.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(_))
    }

    #[tokio::test]
    async fn a_message_alone_takes_one_read_and_nothing_is_missed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (near, _) = listener.accept().await.unwrap();
        let mut decoder = FrameDecoder::default();
        for _ in 0..3 {
            far.write_all(&frames(1, 100)).await.unwrap();
            assert_eq!(take(&near, &mut decoder, 1).await, 1);
            assert!(!is_readable(&near));
        }
        // More than a buffer holds.
        let many = frames(3_000, 1_000);
        let (written, _) = tokio::join!(far.write_all(&many), take(&near, &mut decoder, 3_000));
        written.unwrap();
        // An end that comes together with the last bytes.
        far.write_all(&frames(1, 100)).await.unwrap();
        drop(far);
        take(&near, &mut decoder, 1).await;
        near.readable().await.unwrap();
        assert_eq!(read(&near, &mut decoder).unwrap(), 0);
    }
}
