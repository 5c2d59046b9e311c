//! Links that can be cut, from one side or both, without privileges: a proxy forwards bytes and closes nothing while it
//! holds them (hazards.md 5). It knows nothing of what it forwards.
//!
//! A node tells each other node what it has to say over a connection of its own, so one proxy per directed pair makes
//! every shape of cut.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Bytes taken from a socket at once.
const CHUNK_BYTES: usize = 64 << 10;

/// Chunks on their way through one direction of a connection; beyond, the socket is not read, and TCP holds the sender.
const CHUNKS_MAX: usize = 64;

/// What a proxy does with what passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Forwards at once.
    Open,
    /// Holds everything; it arrives, old as it is, when the way is open again.
    Held,
    /// Forwards each byte so much later.
    Slow(Duration),
    /// Forwards what comes next up to somewhere in it, and then breaks the connection.
    Torn,
    /// Forwards what comes next with one bit of it turned over, and what follows as it is.
    Flipped,
    /// Forwards what comes next, and tells this side's end, while the other direction goes on.
    Half,
}

/// A listening port that forwards to another one.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    way: watch::Sender<Way>,
    accepting: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Proxy {
    /// Listens on a free port of the loopback address and forwards to `target`.
    ///
    /// # Errors
    /// The system has no free port.
    pub async fn start(target: SocketAddr) -> io::Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (way, watched) = watch::channel(Way::Open);
        let accepting = tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((near, _)) => drop(tokio::spawn(serve(near, target, watched.clone()))),
                    // Out of descriptors: later there are some.
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        });
        Ok(Proxy { address, way, accepting })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it does from now on.
    pub fn set(&self, way: Way) {
        self.way.send_replace(way);
    }
}

async fn serve(near: TcpStream, target: SocketAddr, mut way: watch::Receiver<Way>) {
    // Whoever connects through a cut is not refused: it hears nothing.
    if open(&mut way).await.is_none() {
        return;
    }
    let Ok(far) = TcpStream::connect(target).await else { return };
    if near.set_nodelay(true).and_then(|()| far.set_nodelay(true)).is_err() {
        return;
    }
    let (near_in, near_out) = near.into_split();
    let (far_in, far_out) = far.into_split();
    let forth = forward(near_in, far_out, way.clone());
    let back = forward(far_in, near_out, way);
    // The end of one direction is passed on as such; a broken one breaks the other.
    let _ = tokio::try_join!(forth, back);
}

/// Waits until the way is not held; `None`: the proxy is gone.
async fn open(way: &mut watch::Receiver<Way>) -> Option<Way> {
    way.wait_for(|way| *way != Way::Held).await.ok().map(|way| *way)
}

/// A place in what passes that depends on nothing but that: a frame is rarely cut at its end.
fn somewhere(chunk: &[u8]) -> usize {
    let sum = chunk.iter().fold(17_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(*byte)));
    sum % chunk.len().max(1)
}

async fn forward(
    mut input: OwnedReadHalf,
    mut output: OwnedWriteHalf,
    mut way: watch::Receiver<Way>,
) -> Result<(), io::Error> {
    let (queue, mut queued) = mpsc::channel::<(Instant, Vec<u8>)>(CHUNKS_MAX);
    let reading = async move {
        loop {
            let mut chunk = Vec::with_capacity(CHUNK_BYTES);
            if input.read_buf(&mut chunk).await? == 0 || queue.send((Instant::now(), chunk)).await.is_err() {
                return Ok(());
            }
        }
    };
    let mut flipped = false;
    let writing = async move {
        while let Some((arrived, mut chunk)) = queued.recv().await {
            let Some(now) = open(&mut way).await else { return Ok(()) };
            match now {
                Way::Slow(delay) => tokio::time::sleep_until(arrived + delay).await,
                Way::Torn => {
                    output.write_all(&chunk[..somewhere(&chunk)]).await?;
                    return Err(io::ErrorKind::ConnectionReset.into());
                }
                Way::Flipped if !flipped => {
                    flipped = true;
                    let at = somewhere(&chunk);
                    chunk[at] ^= 1 << (at % 8);
                }
                Way::Half => {
                    output.write_all(&chunk).await?;
                    break;
                }
                Way::Open | Way::Held | Way::Flipped => {}
            }
            output.write_all(&chunk).await?;
        }
        output.shutdown().await
    };
    tokio::try_join!(reading, writing).map(|_: ((), ())| ())
}

/// A listener that says back what it hears: for tests.
///
/// # Panics
/// There is no port.
pub async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut input, mut output) = stream.split();
                tokio::io::copy(&mut input, &mut output).await
            });
        }
    });
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(stream: &mut TcpStream, patience: Duration) -> Option<u8> {
        stream.write_all(b"x").await.expect("it takes a byte");
        let mut byte = [0];
        tokio::time::timeout(patience, stream.read_exact(&mut byte)).await.ok()?.ok()?;
        Some(byte[0])
    }

    #[tokio::test]
    async fn a_held_way_says_nothing_and_loses_nothing() {
        let proxy = Proxy::start(echo().await).await.expect("a port");
        let mut before = TcpStream::connect(proxy.address()).await.expect("it listens");
        assert_eq!(ask(&mut before, Duration::from_secs(10)).await, Some(b'x'));
        proxy.set(Way::Held);
        assert_eq!(ask(&mut before, Duration::from_millis(50)).await, None);
        let mut during = TcpStream::connect(proxy.address()).await.expect("a cut refuses nobody");
        assert_eq!(ask(&mut during, Duration::from_millis(50)).await, None);
        proxy.set(Way::Slow(Duration::from_millis(5)));
        let (mut old, mut young) = ([0; 2], [0; 2]);
        assert_eq!(ask(&mut before, Duration::from_secs(10)).await, Some(b'x'), "what was held comes first");
        before.read_exact(&mut old[..1]).await.expect("and then the rest");
        assert_eq!(ask(&mut during, Duration::from_secs(10)).await, Some(b'x'));
        during.read_exact(&mut young[..1]).await.expect("of both");
    }

    #[tokio::test]
    async fn a_torn_way_breaks_connections_within_what_passes_and_a_flipped_one_turns_a_bit_over() {
        let proxy = Proxy::start(echo().await).await.expect("a port");
        let said = [7; 1_000];
        let mut stream = TcpStream::connect(proxy.address()).await.expect("it listens");
        assert_eq!(ask(&mut stream, Duration::from_secs(10)).await, Some(b'x'));
        proxy.set(Way::Torn);
        stream.write_all(&said).await.expect("it takes it");
        let mut heard = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut heard)).await;
        assert!(ended.is_ok() && heard.len() < said.len(), "{} bytes, {ended:?}", heard.len());
        proxy.set(Way::Flipped);
        let mut stream = TcpStream::connect(proxy.address()).await.expect("it listens");
        stream.write_all(&said).await.expect("it takes it");
        let mut heard = [0; 1_000];
        let all = tokio::time::timeout(Duration::from_secs(10), stream.read_exact(&mut heard)).await;
        all.expect("in time").expect("nothing is missing");
        // One bit on its way there, and another one on its way back.
        let turned: u32 = heard.iter().zip(said).map(|(heard, said)| (heard ^ said).count_ones()).sum();
        assert_eq!(turned, 2);
    }

    #[tokio::test]
    async fn a_half_closed_way_ends_one_direction_after_the_other() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let proxy = Proxy::start(listener.local_addr().expect("bound")).await.expect("a port");
        let mut near = TcpStream::connect(proxy.address()).await.expect("it listens");
        let (mut far, _) = listener.accept().await.expect("it is passed on");
        proxy.set(Way::Half);
        near.write_all(b"ask").await.expect("it takes it");
        let mut heard = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(10), far.read_to_end(&mut heard)).await;
        assert!(matches!(ended, Ok(Ok(3))), "{ended:?}");
        far.write_all(b"told").await.expect("this direction is open");
        let mut told = [0; 4];
        let all = tokio::time::timeout(Duration::from_secs(10), near.read_exact(&mut told)).await;
        assert!(matches!(all, Ok(Ok(4))) && told == *b"told");
    }

    #[tokio::test]
    async fn the_end_of_one_side_reaches_the_other() {
        let proxy = Proxy::start(echo().await).await.expect("a port");
        let mut stream = TcpStream::connect(proxy.address()).await.expect("it listens");
        assert_eq!(ask(&mut stream, Duration::from_secs(10)).await, Some(b'x'));
        stream.shutdown().await.expect("it ends");
        let ended = tokio::time::timeout(Duration::from_secs(10), stream.read_u8()).await.expect("it is told");
        assert_eq!(ended.expect_err("nothing comes").kind(), io::ErrorKind::UnexpectedEof);
    }
}
