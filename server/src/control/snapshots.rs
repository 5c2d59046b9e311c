//! Checkpoints in the background, and snapshots between nodes: for a replica that is too far behind, or whose own
//! checkpoints are damaged (protocol.md 1.6).
//!
//! Both are the same value: the decided state of a group at one instance, as a stream of checksummed chunks. Sending
//! and receiving run on threads of their own with blocking sockets; worker threads only hand out O(1) copies.

use std::io::{self, Write};
use std::net::{TcpStream as StdTcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use coppice_btree::KeyRange;
use coppice_client::channel::BlockingChannel;
use coppice_client::wire::{FrameDecoder, NodeId, PartitionId};
use coppice_core::checkpoint_due;
use coppice_core::controller::{self, FetchId};
use coppice_core::handshake::Purpose;
use coppice_core::snapshot::{self, Head, LoadedSnapshot, TakenSnapshot};
use coppice_core::wire::peer_frame;
use coppice_core::worker::{Input, Storage};
use coppice_ordering::Instance;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::listeners::{ProvenPeer, first_frame};
use super::{Control, Handle};
use crate::checkpoint::stream::Encoder;
use crate::checkpoint::{CheckpointError, Checkpoints, Chunk, Manifest};
use crate::net::handshake::{self, HandshakeError};
use crate::shared::Shared;
use crate::worker_thread::WorkerThread;

/// Asks for a snapshot of a group.
#[derive(Debug, Serialize, Deserialize)]
struct SnapshotGet {
    group: PartitionId,
    /// At or above it.
    instance: Instance,
}

/// A connection that carries a snapshot may be silent for so long; then the receiver asks again.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// How long connecting to a source may take: a machine that is gone says nothing.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

// First byte of a snapshot's frames.
const HEAD: u8 = 1;
const CHUNK: u8 = 2;
const MANIFEST: u8 = 3;

/// Tells the workers of the log and the disk, by which they write checkpoints.
pub(super) fn tell_storage(control: &Control) {
    let space = control.storage.log.as_ref().map(|log| log.log().space());
    let sizes = checkpoint_due::Storage {
        log_bytes_setting: control.shared.config.checkpoint.log_bytes,
        replays: control.rates.replays(),
        log_bytes: control.storage.flush.log_bytes(),
        log_needed: control.rates.log_needed(),
        full: space.is_some_and(|space| space.full),
        room: space.map_or(0, |space| space.free_bytes.saturating_sub(space.reserve_bytes / 2)),
    };
    if let Some((checkpoints, _)) = &control.storage.checkpoints {
        checkpoints.hurry.set(sizes.hurry());
    }
    let storage = Storage { sizes, pins: control.storage.flush.pinned_by() };
    control.outbox.on_all(|| {
        let storage = storage.clone();
        move |thread: &mut WorkerThread| thread.input(Input::Storage(storage))
    });
}

/// Fetches a snapshot of a group from another node, on a thread of its own.
pub(super) fn fetch(control: &mut Control, id: FetchId, group: PartitionId, from: NodeId, least: Instance) {
    let (checkpoints, shared) = (control.storage.checkpoints.clone(), Arc::clone(&control.shared));
    let address = control.shared.peers.address(from).filter(|_| !control.shared.peers.is_cut_off(from));
    let (Some((checkpoints, _)), Some(address)) = (checkpoints, address) else {
        return control.tell(controller::Input::Fetched(id, None));
    };
    let fetching = std::thread::Builder::new().name(format!("snapshot-{group}"));
    let spawned = fetching.spawn(move || {
        let source = Source { from: (from, address), wanted: (group, least) };
        let fetched = receive(&shared, &checkpoints, &source, |head| is_wanted(&shared, id, head));
        match &fetched {
            Ok(loaded) => {
                let instance = loaded.instance;
                tracing::info!(partition = %group, %instance, %from, "a snapshot from a peer is in place");
            }
            Err(error @ FetchError::Unwanted) => {
                tracing::debug!(partition = %group, %from, %error, "asking again");
            }
            Err(error) => tracing::warn!(partition = %group, %from, %error, "no snapshot yet; asking again"),
        }
        let fetched = controller::Input::Fetched(id, fetched.ok().map(Box::new));
        shared.tell(fetched);
    });
    if let Err(error) = spawned {
        tracing::warn!(partition = %group, %error, "no thread to fetch a snapshot with; asking again");
        control.tell(controller::Input::Fetched(id, None));
    }
}

/// The checkpoints of a replica that was removed go, in the background.
pub(super) fn delete_checkpoints(control: &mut Control, group: PartitionId) {
    let Some((checkpoints, _)) = control.storage.checkpoints.clone() else { return };
    let shared = Arc::clone(&control.shared);
    let deleting = std::thread::Builder::new().name(format!("delete-{group}"));
    let spawned = deleting.spawn(move || {
        if let Err(error) = checkpoints.remove(group) {
            tracing::warn!(partition = %group, %error, "the checkpoints of a removed replica are still there");
        }
        shared.tell(controller::Input::Deleted(group));
    });
    if let Err(error) = spawned {
        tracing::warn!(partition = %group, %error, "no thread for deleting checkpoints");
        control.tell(controller::Input::Deleted(group));
    }
}

/// Whether the controller wants the snapshot that begins with `head`.
fn is_wanted(shared: &Arc<Handle>, fetch: FetchId, head: &Head) -> bool {
    let (low, high) = ((&head.low[..]).into(), head.high.as_deref().map(Into::into));
    let (kept, version) = (KeyRange { low, high }, head.map_version);
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    let ask = move |control: &mut Control| {
        control.offers.insert(fetch, sender);
        control.tell(controller::Input::Offered { fetch, kept, version });
    };
    shared.call(ask);
    receiver.recv_timeout(SILENCE_MAX).unwrap_or(false)
}

/// Longest request for a snapshot, with its header.
const GET_BYTES_MAX: usize = 64;

/// Sends a snapshot of the group that the other node names.
pub(super) async fn send(shared: &Arc<Handle>, mut peer: ProvenPeer) {
    let wanted = (peer_frame::SNAPSHOT_GET, GET_BYTES_MAX);
    let Some(frame) = first_frame(shared, &mut peer, wanted).await else { return };
    let Ok(get) = postcard::from_bytes::<SnapshotGet>(&frame.body) else { return };
    let Some(own) = shared.own.identity() else { return };
    let taken = shared.ask_owner(get.group, SILENCE_MAX, move |thread| {
        thread.worker.groups().get(&get.group).map(|group| snapshot::take(own.cluster, &group.replica))
    });
    let Some(Some(taken)) = taken.await else { return };
    let Ok(stream) = peer.stream.park().and_then(|parked| parked.blocking(SILENCE_MAX)) else { return };
    if taken.head.instance < get.instance {
        return;
    }
    let (sender, sent) = oneshot::channel();
    let thread = std::thread::Builder::new().name(format!("send-{}", get.group));
    let spawned = thread.spawn(move || {
        if let Err(error) = send_all(stream, &taken) {
            tracing::debug!(partition = %taken.head.partition, %error, "a snapshot was not sent to its end");
        }
        _ = sender.send(());
    });
    if spawned.is_ok() {
        // It counts as long as it lasts.
        _ = sent.await;
    }
}

fn send_all(mut stream: BlockingChannel, taken: &TakenSnapshot) -> io::Result<()> {
    let mut put = |tag: u8, content: &[u8]| {
        let mut body = BytesMut::with_capacity(content.len() + 1);
        body.put_u8(tag);
        body.put_slice(content);
        stream.write_all(&peer_frame::frame(peer_frame::SNAPSHOT_CHUNK, &body))
    };
    let head = Manifest { head: taken.head.clone(), ..Manifest::default() };
    put(HEAD, &head.encode())?;
    let snapshot = taken.tree.snapshot();
    let mut encoder = Encoder::new(taken.head.clone(), &taken.blobs.write(), snapshot.iter());
    for Chunk { number, bytes, crc } in encoder.by_ref() {
        let mut content = BytesMut::with_capacity(12 + bytes.len());
        content.put_u64_le(number);
        content.put_u32_le(crc);
        content.put_slice(&bytes);
        put(CHUNK, &content)?;
        failpoint!(io "snapshot.chunk_sent")?;
    }
    put(MANIFEST, &encoder.finish().encode())
}

/// Why no snapshot came.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    /// The other node does not answer, has no state that reaches far enough, or went away.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// One of the two nodes refuses the other.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// It could not be kept.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Neither head nor chunk nor manifest.
    #[error("what came is no snapshot")]
    Garbage,
    /// It skips a split whose other partition is not on this disk yet, and that is fetched first; or a split that was
    /// executed here made it needless.
    #[error("it is not wanted now")]
    Unwanted,
}

/// Connects, or gives up soon: another source may be alive.
fn connect(address: &str) -> io::Result<StdTcpStream> {
    let mut failed = io::ErrorKind::AddrNotAvailable.into();
    for address in address.to_socket_addrs()? {
        match StdTcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Where a snapshot comes from, and what it must be of.
struct Source {
    /// The node, and its address.
    pub from: (NodeId, String),
    /// Of which group, at or above which instance.
    pub wanted: (PartitionId, Instance),
}

/// Receives a snapshot into a checkpoint of this node, whole or not at all, and loads it; or nothing, if `admit` says
/// so of its head.
fn receive(
    shared: &Shared,
    checkpoints: &Checkpoints,
    Source { from: (from, address), wanted: (group, instance) }: &Source,
    admit: impl Fn(&Head) -> bool,
) -> Result<LoadedSnapshot, FetchError> {
    let (group, instance) = (*group, *instance);
    let stream = connect(address)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    _ = stream.set_nodelay(true);
    let mut stream = BlockingChannel::to_node(stream, shared.tls(), *from)?;
    let hello = shared.hello(Purpose::Snapshot, Some(*from));
    handshake::dial_blocking(&mut stream, &hello, |them| shared.judge(them))?;
    let get = postcard::to_stdvec(&SnapshotGet { group, instance }).map_err(|_| FetchError::Garbage)?;
    stream.write_all(&peer_frame::frame(peer_frame::SNAPSHOT_GET, &get))?;
    let mut decoder = FrameDecoder::new(peer_frame::FRAME_BYTES_MAX);
    let (tag, head) = next_piece(&mut stream, &mut decoder)?;
    let head = Manifest::decode(&head).filter(|_| tag == HEAD).ok_or(FetchError::Garbage)?.head;
    if head.partition != group {
        return Err(FetchError::Garbage);
    }
    if !admit(&head) {
        return Err(FetchError::Unwanted);
    }
    let mut writer = match checkpoints.receive(head, Box::new(|_| true)) {
        Err(CheckpointError::Present(..)) => return load(checkpoints, group),
        writer => writer?,
    };
    failpoint!("snapshot.begun");
    loop {
        let (tag, content) = next_piece(&mut stream, &mut decoder)?;
        match tag {
            CHUNK if content.len() >= 12 => {
                let number = u64::from_le_bytes(*content.first_chunk().ok_or(FetchError::Garbage)?);
                let crc = u32::from_le_bytes(*content[8..].first_chunk().ok_or(FetchError::Garbage)?);
                writer.push(&Chunk { number, bytes: content.slice(12..), crc })?;
                failpoint!(io "snapshot.chunk_received")?;
            }
            MANIFEST => {
                let manifest = Manifest::decode(&content).ok_or(FetchError::Garbage)?;
                // A split may have been executed here since the head came.
                if !admit(&manifest.head) {
                    return Err(FetchError::Unwanted);
                }
                writer.finish(&manifest)?;
                failpoint!("snapshot.stored");
                return load(checkpoints, group);
            }
            _ => return Err(FetchError::Garbage),
        }
    }
}

fn load(checkpoints: &Checkpoints, group: PartitionId) -> Result<LoadedSnapshot, FetchError> {
    let loaded = checkpoints.load(group)?;
    let checkpoint = loaded.checkpoint.ok_or(FetchError::Garbage)?;
    Ok(checkpoint.restore(|_| ())?)
}

fn next_piece(stream: &mut BlockingChannel, decoder: &mut FrameDecoder) -> Result<(u8, Bytes), FetchError> {
    loop {
        if let Some(frame) = decoder.next_frame().map_err(|_| FetchError::Garbage)? {
            let tag = *frame.body.first().ok_or(FetchError::Garbage)?;
            return Ok((tag, frame.body.slice(1..)));
        }
        if stream.read_some(decoder.space())? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
    }
}
