//! Sockets for the emulated links: between every two nodes a port that forwards to the other's, through the link of
//! that direction. It knows nothing of what it forwards, and neither loses nor reorders it.
//!
//! One thread serves all links of a cluster. What comes is read at once, so that what a link has not delivered is in
//! the link and not in some buffer of the kernel, up to a bound that is far beyond any link's queue.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use coppice_loadgen::target::clock::Clock;
use coppice_ordering::Time;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};

use super::link::{Link, LinkCounters, Shape};

/// What a frame of Ethernet carries.
const PACKET_BYTES: usize = 1_460;

/// Bytes taken from a socket at once.
const CHUNK_BYTES: usize = 64 << 10;

/// Undelivered bytes of one link beyond which its sockets are not read.
const BACKLOG_BYTES_MAX: u64 = 64 << 20;

/// How long a full backlog is left alone.
const BACKLOG_PAUSE: Duration = Duration::from_millis(1);

/// Packets written at once.
const WRITES_MAX: usize = 1_024;

/// Two nodes, numbered from 0: who sends, who receives.
pub type Pair = (usize, usize);

/// A piece of a connection, or its end, on its way to the socket that it leaves through.
struct Packet {
    to: mpsc::UnboundedSender<Bytes>,
    /// Empty: nothing more comes.
    bytes: Bytes,
}

/// A link and what wakes the task that serves it.
struct Way {
    link: Mutex<Link<Packet>>,
    bell: Notify,
}

impl Way {
    fn link(&self) -> MutexGuard<'_, Link<Packet>> {
        // Nothing panics while it holds this.
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where time is counted from.
#[derive(Clone, Copy)]
struct Epoch(Instant);

impl Epoch {
    fn now(self) -> Time {
        Time(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// The links of a cluster, at work until this is dropped.
pub struct Relays {
    epoch: Epoch,
    ways: BTreeMap<Pair, Arc<Way>>,
    addresses: BTreeMap<Pair, SocketAddr>,
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Relays {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            // It ends with its runtime; what it panicked with was said on stderr.
            let _ = thread.join();
        }
    }
}

impl Relays {
    /// Links of this shape between all of these nodes, which listen at `targets`.
    ///
    /// # Errors
    /// The system gives no port, thread or timer.
    pub fn start(targets: &[SocketAddr], shape: Shape) -> io::Result<Relays> {
        let epoch = Epoch(Instant::now());
        let pairs: Vec<Pair> = (0..targets.len())
            .flat_map(|from| (0..targets.len()).map(move |to| (from, to)))
            .filter(|(from, to)| from != to)
            .collect();
        let way = || Arc::new(Way { link: Mutex::new(Link::new(shape)), bell: Notify::new() });
        let ways: BTreeMap<Pair, Arc<Way>> = pairs.iter().map(|pair| (*pair, way())).collect();
        let mut listeners = Vec::new();
        let mut addresses = BTreeMap::new();
        for pair in pairs {
            let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            listener.set_nonblocking(true)?;
            addresses.insert(pair, listener.local_addr()?);
            listeners.push((pair, listener, targets[pair.1]));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let stop = Arc::new(Notify::new());
        let (inside, until) = (ways.clone(), Arc::clone(&stop));
        let tasks = async move {
            for way in inside.values() {
                tokio::spawn(carry(Arc::clone(way), epoch, Clock::new(epoch.0)?));
            }
            for ((from, to), listener, target) in listeners {
                let both = [Arc::clone(&inside[&(from, to)]), Arc::clone(&inside[&(to, from)])];
                tokio::spawn(accept(TcpListener::from_std(listener)?, target, both, epoch));
            }
            until.notified().await;
            io::Result::Ok(())
        };
        let serve = move || {
            if let Err(error) = runtime.block_on(tasks) {
                eprintln!("coppice-lab: the links do not work: {error}");
            }
        };
        let thread = std::thread::Builder::new().name("links".into()).spawn(serve)?;
        Ok(Relays { epoch, ways, addresses, stop, thread: Some(thread) })
    }

    /// Where a node reaches another one through their link.
    pub fn address(&self, pair: Pair) -> SocketAddr {
        self.addresses[&pair]
    }

    /// All links are like this from now on.
    pub fn set(&self, shape: Shape) {
        for way in self.ways.values() {
            let mut arrived = Vec::new();
            way.link().set(self.epoch.now(), shape, &mut arrived);
            arrived.into_iter().for_each(deliver);
            way.bell.notify_one();
        }
    }

    /// What each has carried.
    pub fn carried(&self) -> BTreeMap<Pair, LinkCounters> {
        self.ways.iter().map(|(pair, way)| (*pair, way.link().carried())).collect()
    }
}

/// Gives a packet to the writer of its connection; one that is gone needs nothing.
fn deliver(packet: Packet) {
    let _ = packet.to.send(packet.bytes);
}

/// Moves one link on.
async fn carry(way: Arc<Way>, epoch: Epoch, mut clock: Clock) {
    let mut arrived = Vec::new();
    loop {
        let next = {
            let mut link = way.link();
            link.step(epoch.now(), &mut arrived);
            link.deadline()
        };
        arrived.drain(..).for_each(deliver);
        tokio::select! {
            () = way.bell.notified() => {}
            () = poll_fn(|cx| clock.poll_until(cx, next.unwrap_or_default().0)), if next.is_some() => {}
        }
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, ways: [Arc<Way>; 2], epoch: Epoch) {
    loop {
        match listener.accept().await {
            Ok((near, _)) => drop(tokio::spawn(serve(near, target, ways.clone(), epoch))),
            // Out of descriptors: later there are some.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn serve(near: TcpStream, target: SocketAddr, [forth, back]: [Arc<Way>; 2], epoch: Epoch) {
    let Ok(far) = TcpStream::connect(target).await else { return };
    if near.set_nodelay(true).and_then(|()| far.set_nodelay(true)).is_err() {
        return;
    }
    let (near_in, near_out) = near.into_split();
    let (far_in, far_out) = far.into_split();
    // The end of one direction is passed on as such; a broken one breaks the other.
    let _ = tokio::try_join!(forward(near_in, far_out, &forth, epoch), forward(far_in, near_out, &back, epoch));
}

async fn forward(input: OwnedReadHalf, output: OwnedWriteHalf, way: &Way, epoch: Epoch) -> io::Result<()> {
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::try_join!(read(input, sender, way, epoch), write(output, receiver)).map(|_: ((), ())| ())
}

/// From the socket into the link.
async fn read(mut input: OwnedReadHalf, to: mpsc::UnboundedSender<Bytes>, way: &Way, epoch: Epoch) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    loop {
        while way.link().carried().undelivered > BACKLOG_BYTES_MAX {
            tokio::time::sleep(BACKLOG_PAUSE).await;
        }
        buffer.reserve(CHUNK_BYTES);
        let ended = input.read_buf(&mut buffer).await? == 0;
        let mut chunk = buffer.split().freeze();
        let mut arrived = Vec::new();
        {
            let (now, mut link) = (epoch.now(), way.link());
            while !chunk.is_empty() {
                let bytes = chunk.split_to(PACKET_BYTES.min(chunk.len()));
                link.send(now, bytes.len(), Packet { to: to.clone(), bytes }, &mut arrived);
            }
            if ended {
                link.send(now, 0, Packet { to: to.clone(), bytes: Bytes::new() }, &mut arrived);
            }
        }
        arrived.into_iter().for_each(deliver);
        way.bell.notify_one();
        if ended {
            return Ok(());
        }
    }
}

/// From the link to the socket.
async fn write(mut output: OwnedWriteHalf, mut from: mpsc::UnboundedReceiver<Bytes>) -> io::Result<()> {
    let mut packets = Vec::new();
    let mut together = BytesMut::new();
    while from.recv_many(&mut packets, WRITES_MAX).await > 0 {
        let ended = packets.last().is_some_and(Bytes::is_empty);
        packets.drain(..).for_each(|packet| together.extend_from_slice(&packet));
        output.write_all(&together).await?;
        together.clear();
        if ended {
            break;
        }
    }
    output.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use coppice_cluster::proxy::echo;

    /// Connects through the link from node 0 to node 1, which answers every byte.
    async fn through(relays: &Relays) -> TcpStream {
        TcpStream::connect(relays.address((0, 1))).await.expect("it listens")
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn bytes_and_ends_pass_in_order_at_the_rate_of_the_link() {
        let target = echo().await;
        // Each way 40 ms, and 100 kB at 1 MB/s.
        let shape = Shape { rate: 1_000_000, delay: Duration::from_millis(40), queue: None };
        let relays = Relays::start(&[target; 2], shape).expect("ports");
        let mut stream = through(&relays).await;
        let begun = Instant::now();
        let said: Vec<u8> = (0..100_000_u32).map(|number| (number % 251) as u8).collect();
        stream.write_all(&said).await.expect("it takes them");
        stream.shutdown().await.expect("it ends");
        let mut heard = Vec::new();
        let reading = stream.read_to_end(&mut heard);
        tokio::time::timeout(Duration::from_secs(60), reading).await.expect("in time").expect("to the end");
        assert!(heard == said, "what comes back is what was said");
        // A loaded machine may take longer, never less.
        assert!(begun.elapsed() >= Duration::from_millis(180), "{:?}", begun.elapsed());
        let carried = relays.carried();
        assert_eq!([carried[&(0, 1)].bytes, carried[&(1, 0)].bytes], [100_000; 2]);
        assert_eq!(carried[&(0, 1)].undelivered, 0);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_link_can_be_changed_and_says_when_its_queue_overflows() {
        let target = echo().await;
        // So slow that not even one packet arrives meanwhile.
        let slow = Shape { rate: 10, delay: Duration::ZERO, queue: Some(10_000) };
        let relays = Relays::start(&[target; 2], slow).expect("ports");
        let mut stream = through(&relays).await;
        stream.write_all(&[7; 50_000]).await.expect("it takes them");
        // All of it, however many reads that took: a part read after the change could overflow the queue once more.
        while relays.carried()[&(0, 1)].undelivered < 50_000 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        relays.set(Shape { rate: 1_000_000_000, ..slow });
        let mut heard = vec![0; 50_000];
        let reading = stream.read_exact(&mut heard);
        tokio::time::timeout(Duration::from_secs(60), reading).await.expect("in time").expect("all of it");
        let carried = relays.carried()[&(0, 1)];
        assert_eq!((carried.bytes, carried.congestions, carried.undelivered_max), (50_000, 1, 50_000));
    }
}
