//! Checkpoints in the background, and snapshots between nodes: for a replica that is too far behind, or whose own
//! checkpoints are damaged (protocol.md 1.6).
//!
//! Both are the same value: the decided state of a group at one instance, as a stream of checksummed chunks. Sending
//! and receiving run on threads of their own with blocking sockets; shards only hand out O(1) copies.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::net::{TcpStream as StdTcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use coppice_btree::KeyRange;
use coppice_client::channel::BlockingChannel;
use coppice_client::wire::{FrameDecoder, MapVersion, NodeId, PartitionId};
use coppice_core::checkpoint_due::{Due, Storage, due};
use coppice_core::replay::Entry as LogEntry;
use coppice_core::replica::Input;
use coppice_core::snapshot::{self, Head, Loaded, Taken};
use coppice_core::worker::{self, Group};
use coppice_ordering::{Instance, ReplicaId};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::listeners::{Proven, first_frame};
use super::{Control, ToControl, ask_shard};
use crate::checkpoint::background::{Checkpointer, Job};
use crate::checkpoint::stream::Encoder;
use crate::checkpoint::{Checkpoint, CheckpointError, CheckpointOptions, Checkpoints, Chunk, Manifest, Written};
use crate::log::{Append, Awaited};
use crate::net::handshake::{self, HandshakeError, Purpose};
use crate::net::peer_frame;
use crate::shard::Shard;
use crate::shared::Shared;

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

impl Control {
    /// Opens the checkpoints of the data directory and starts the thread that writes them.
    pub(super) fn open_checkpoints(&mut self) -> Result<(), CheckpointError> {
        let config = &self.shared.config;
        let options = CheckpointOptions {
            cluster: self.home.identity().map(|identity| identity.cluster),
            rate_bytes: config.checkpoint.rate,
            cache_bytes: config.checkpoint.cache,
            space_floor_bytes: config.log.disk_reserve / 2,
        };
        let path = self.home.checkpoints();
        let at = |error| CheckpointError::Io { path: path.clone(), error };
        let checkpoints = Checkpoints::open(&path, options).map_err(at)?;
        let writer = Checkpointer::start(checkpoints.clone()).map_err(at)?;
        self.checkpoints = Some((checkpoints, Arc::new(writer)));
        Ok(())
    }

    /// Has every group for which it is time write a checkpoint.
    pub(crate) fn start_checkpoints(&mut self) {
        let Some((_, writer)) = &self.checkpoints else { return };
        let space = self.log.as_ref().map(|log| log.log().space());
        let storage = Storage {
            log_bytes_setting: self.shared.config.checkpoint.log_bytes,
            log_bytes: self.flush.log_bytes(),
            log_needed: self.log_needed(),
            full: space.is_some_and(|space| space.full),
            room: space.map_or(0, |space| space.free_bytes.saturating_sub(space.reserve_bytes / 2)),
        };
        let pins = self.flush.pinned_by();
        let running = self.replica_manager.running().keys();
        let needed: BTreeSet<PartitionId> =
            running.copied().filter(|&group| self.replica_manager.is_needed(group)).collect();
        for shard in 0..self.shared.shards() {
            let (shared, writer) = (Arc::clone(&self.shared), Arc::clone(writer));
            let (needed, pins) = (needed.clone(), pins.clone());
            self.on_shard_index(shard, move |shard| {
                for (&id, group) in shard.worker.groups_mut().iter_mut().filter(|(id, _)| !needed.contains(id)) {
                    let due = due(group.needs(pins.contains(&id)), storage).filter(|_| !group.checkpoints.writing);
                    if let Some(due) = due {
                        submit(&shared, &writer, id, group, due);
                    }
                }
            });
        }
    }

    /// Has this group write a checkpoint, unless one is being written.
    pub(super) fn checkpoint_now(&self, group: PartitionId) {
        let Some((_, writer)) = &self.checkpoints else { return };
        let (shared, writer) = (Arc::clone(&self.shared), Arc::clone(writer));
        self.on_shard(group, move |shard| {
            let Some(hosted) = shard.worker.groups_mut().get_mut(&group).filter(|hosted| !hosted.checkpoints.writing)
            else {
                return;
            };
            submit(&shared, &writer, group, hosted, Due::Second);
        });
    }

    /// The newest good checkpoint of a group, if there is any.
    pub(super) fn load_checkpoint(&self, group: PartitionId) -> Result<Option<Loaded>, CheckpointError> {
        let Some((checkpoints, _)) = &self.checkpoints else { return Ok(None) };
        let loaded = checkpoints.load(group)?;
        for bad in &loaded.bad {
            tracing::warn!(partition = %group, %bad, "a checkpoint is damaged; an older one or a peer's replaces it");
        }
        loaded.checkpoint.as_ref().map(machine_of).transpose()
    }

    /// Fetches a snapshot for a replica that holds `held` and can go on in no other way, and installs it.
    pub(super) fn fetch_snapshot(&mut self, (group, held): (PartitionId, KeyRange), from: NodeId, instance: Instance) {
        let Some((checkpoints, _)) = &self.checkpoints else { return };
        let (checkpoints, shared) = (checkpoints.clone(), Arc::clone(&self.shared));
        let Some(address) = self.shared.peer_address(from).filter(|_| !self.shared.is_cut_off(from)) else {
            // Asked again by the core; the replica must not wait for an answer that nobody was asked for.
            return self.on_shard(group, move |shard| {
                if let Some(group) = shard.worker.groups_mut().get_mut(&group) {
                    group.installing = false;
                }
            });
        };
        let runtime = tokio::runtime::Handle::current();
        let fetching = std::thread::Builder::new().name(format!("snapshot-{group}"));
        let spawned = fetching.spawn(move || {
            let _inside = runtime.enter();
            let admit = |head: &Head| may_install(&shared, group, held, head);
            let source = Source { from: (from, address), wanted: (group, instance) };
            let fetched = fetch(&shared, &checkpoints, &source, admit);
            let owner = group.0 as usize % shared.shards();
            let install = move |shard: &mut Shard| {
                if let Some(group) = shard.worker.groups_mut().get_mut(&group) {
                    group.installing = false;
                }
                match fetched {
                    Ok(Loaded { machine, instance, configuration, configured_at, promised }) => {
                        tracing::info!(partition = %group, %instance, %from, "a snapshot from a peer is in place");
                        if let (Some(group), Some(data)) = (shard.worker.groups_mut().get_mut(&group), machine.shard())
                        {
                            group.borders.saved(data.map_version());
                        }
                        // Below it the log has gaps, and votes that were overwritten: an older checkpoint is no way
                        // back. What says more of the log than this stands behind it there.
                        if !mutant!(install_trims_nothing) {
                            let entry = LogEntry::Trimmed { group: PartitionId(group.0), upto: instance };
                            shard.append(Append { entry, lsn: None, lazy: true });
                        }
                        let machine = Box::new(machine);
                        failpoint!("snapshot.before_install");
                        let input = Input::Installed { machine, instance, configuration, configured_at, promised };
                        shard.input_of(group, input);
                        failpoint!("snapshot.installed");
                        shard.input(worker::Input::HandOn(group));
                    }
                    Err(error @ FetchError::Early) => tracing::info!(partition = %group, %from, %error, "asking again"),
                    Err(error) => tracing::warn!(partition = %group, %from, %error, "no snapshot yet; asking again"),
                }
            };
            let mut input = crate::shard::ToShard::Call(Box::new(install));
            while let Err(back) = shared.sender(owner).push(crate::mailbox::Lane::Consensus, input) {
                input = back;
                std::thread::yield_now();
            }
        });
        if let Err(error) = spawned {
            tracing::warn!(partition = %group, %error, "no thread to fetch a snapshot with; asking again");
            self.on_shard(group, move |shard| {
                if let Some(group) = shard.worker.groups_mut().get_mut(&group) {
                    group.installing = false;
                }
            });
        }
    }
}

impl Control {
    /// Fetches a snapshot for a replica that is not there yet, from the first of `sources` that gives one; `then` gets
    /// it, or nothing.
    pub(super) fn fetch_first(
        &mut self,
        group: PartitionId,
        (me, sources): (ReplicaId, Vec<(NodeId, String)>),
        then: impl FnOnce(&mut Control, Option<Loaded>) + Send + 'static,
    ) {
        let Some((checkpoints, _)) = &self.checkpoints else { return };
        let (checkpoints, shared) = (checkpoints.clone(), Arc::clone(&self.shared));
        let fetching = std::thread::Builder::new().name(format!("join-{group}"));
        let spawned = fetching.spawn(move || {
            let mut loaded = None;
            for from in sources {
                let source = Source { from, wanted: (group, Instance::ZERO) };
                match fetch(&shared, &checkpoints, &source, |_| true) {
                    Ok(snapshot) => {
                        loaded = Some(snapshot);
                        break;
                    }
                    Err(error) => {
                        let (from, address) = source.from;
                        tracing::info!(partition = %group, %from, address, %error, "no first snapshot from there");
                    }
                }
            }
            shared.tell_control(ToControl::Call(Box::new(move |control| then(control, loaded))));
        });
        if let Err(error) = spawned {
            // `then` is gone with the thread; the map names the replica still, so it is tried again.
            tracing::warn!(partition = %group, %error, "no thread to fetch a snapshot with; trying again");
            self.replica_manager.end_join(group, me);
        }
    }

    /// The checkpoints of a replica that was removed go, in the background, once its removal is `logged`: a start that
    /// found neither would call the replica's state lost.
    pub(super) fn delete_checkpoints(&mut self, group: PartitionId, logged: Awaited) {
        let Some((checkpoints, _)) = &self.checkpoints else { return };
        let (checkpoints, shared) = (checkpoints.clone(), Arc::clone(&self.shared));
        self.deleting.insert(group);
        let deleting = std::thread::Builder::new().name(format!("delete-{group}"));
        let spawned = deleting.spawn(move || {
            if logged.wait().is_ok()
                && let Err(error) = checkpoints.remove(group)
            {
                tracing::warn!(partition = %group, %error, "the checkpoints of a removed replica are still there");
            }
            let done = move |control: &mut Control| _ = control.deleting.remove(&group);
            shared.tell_control(ToControl::Call(Box::new(done)));
        });
        if let Err(error) = spawned {
            self.deleting.remove(&group);
            tracing::warn!(partition = %group, %error, "no thread to delete checkpoints with");
        }
    }
}

/// Whether the snapshot that begins with `head` may take the place of a replica here that holds `held`. If what it does
/// not hold is not durable here yet, that is fetched first.
fn may_install(shared: &Arc<Shared>, group: PartitionId, held: KeyRange, head: &Head) -> bool {
    let (low, high) = ((&head.low[..]).into(), head.high.as_deref().map(Into::into));
    let (kept, version) = (KeyRange { low, high }, head.map_version);
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    let ask = move |control: &mut Control| {
        let own = control.shared.identity().map(|identity| identity.node).unwrap_or_default();
        let map = control.shared.map();
        let may = control.replica_manager.may_install(own, &map, (group, &held), (&kept, version));
        if !may {
            control.start_missing();
        }
        _ = sender.send(may);
    };
    shared.tell_control(ToControl::Call(Box::new(ask)));
    receiver.recv_timeout(SILENCE_MAX).unwrap_or(false)
}

/// Has the group's state of now written in the background.
fn submit(shared: &Arc<Shared>, writer: &Checkpointer, id: PartitionId, group: &mut Group, due: Due) {
    group.checkpoints.writing = true;
    // The log since the last checkpoint lies between two, once this one is there.
    let logged = std::mem::take(&mut group.checkpoints.logged_bytes);
    group.checkpoints.older_bytes += logged;
    let cluster = shared.identity().map(|identity| identity.cluster).unwrap_or_default();
    let taken = snapshot::take(cluster, &group.replica);
    let (instance, borders) = (taken.head.instance, taken.head.map_version);
    let done_shared = Arc::clone(shared);
    let done = move |written: Result<Written, CheckpointError>| {
        let owner = id.0 as usize % done_shared.shards();
        let finish = move |shard: &mut Shard| checkpointed(shard, id, (instance, borders, logged), written);
        let mut input = crate::shard::ToShard::Call(Box::new(finish));
        while let Err(back) = done_shared.sender(owner).push(crate::mailbox::Lane::Consensus, input) {
            input = back;
            std::thread::yield_now();
        }
    };
    let Taken { head, blobs, tree, .. } = taken;
    let job = Job { head, blobs, tree: tree.snapshot(), alone: due == Due::Alone, done: Box::new(done) };
    if let Err(job) = writer.submit(job) {
        (job.done)(Err(CheckpointError::Busy(id)));
    }
}

/// A checkpoint was written, or not: only then may batches be forgotten (hazards.md ST4).
fn checkpointed(
    shard: &mut Shard,
    id: PartitionId,
    (instance, borders, logged): (Instance, MapVersion, u64),
    written: Result<Written, CheckpointError>,
) {
    let Some(group) = shard.worker.groups_mut().get_mut(&id) else { return };
    group.checkpoints.writing = false;
    shard.input(worker::Input::Settle(id));
    let Some(group) = shard.worker.groups_mut().get_mut(&id) else { return };
    match written {
        Ok(Written { manifest, trim_upto }) => {
            group.checkpoints.bytes = manifest.bytes;
            group.replica.paxos_mut().set_snapshot_bytes(usize::try_from(manifest.bytes).unwrap_or(usize::MAX));
            group.borders.saved(borders);
            group.checkpoints.at = Some(instance);
            group.checkpoints.alone = trim_upto == Some(instance);
            if let Some(upto) = trim_upto {
                group.checkpoints.older_bytes = if group.checkpoints.alone { 0 } else { logged };
                let entry = LogEntry::Trimmed { group: PartitionId(id.0), upto };
                shard.append(Append { entry, lsn: None, lazy: true });
                failpoint!("checkpoint.counts");
            }
            tracing::debug!(partition = %id, %instance, bytes = manifest.bytes, "checkpoint written");
            saved(shard, id, instance);
        }
        // A peer's snapshot of this very instance came first: a child that began by a split while it was being fetched.
        // It is as durable as an own one, and the parent waits for it.
        Err(CheckpointError::Present(..)) => {
            group.checkpoints.at = Some(instance);
            group.borders.saved(borders);
            saved(shard, id, instance);
        }
        Err(error) => {
            tracing::warn!(partition = %id, %error, "no checkpoint; the log keeps growing until there is one")
        }
    }
}

/// A checkpoint of the group at `instance` is durable here.
fn saved(shard: &mut Shard, id: PartitionId, instance: Instance) {
    shard.input_of(id, Input::Checkpointed(instance));
    let saved = move |control: &mut Control| control.replica_manager.saved(id);
    shard.shared.tell_control(ToControl::Call(Box::new(saved)));
}

fn machine_of(checkpoint: &Checkpoint) -> Result<Loaded, CheckpointError> {
    let (blobs, mut pairs) = checkpoint.contents()?;
    let loaded = snapshot::restore(&checkpoint.manifest().head, &blobs, pairs.by_ref());
    pairs.finish()?;
    loaded.map_err(|_| CheckpointError::Stream(crate::checkpoint::StreamError::Incomplete))
}

/// Longest request for a snapshot, with its header.
const GET_BYTES_MAX: usize = 64;

/// Sends a snapshot of the group that the other node names.
pub(super) async fn send(shared: &Arc<Shared>, mut proven: Proven) {
    let wanted = (peer_frame::SNAPSHOT_GET, GET_BYTES_MAX);
    let Some(frame) = first_frame(shared, &mut proven, wanted).await else { return };
    let Ok(get) = postcard::from_bytes::<SnapshotGet>(&frame.body) else { return };
    let owner = get.group.0 as usize % shared.shards();
    let Some(own) = shared.identity() else { return };
    let taken = ask_shard(shared, owner, SILENCE_MAX, move |shard| {
        shard.worker.groups().get(&get.group).map(|group| snapshot::take(own.cluster, &group.replica))
    });
    let Some(Some(taken)) = taken.await else { return };
    let Ok(stream) = proven.stream.park().and_then(|parked| parked.blocking(SILENCE_MAX)) else { return };
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

fn send_all(mut stream: BlockingChannel, taken: &Taken) -> io::Result<()> {
    let mut put = |tag: u8, content: &[u8]| {
        let mut body = BytesMut::with_capacity(content.len() + 1);
        body.put_u8(tag);
        body.put_slice(content);
        stream.write_all(&peer_frame::frame(peer_frame::SNAPSHOT_CHUNK, &body))
    };
    let head = Manifest { head: taken.head.clone(), ..Manifest::default() };
    put(HEAD, &head.encode())?;
    let snapshot = taken.tree.snapshot();
    let mut encoder = Encoder::new(taken.head.clone(), &taken.blobs, snapshot.iter());
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
pub(super) enum FetchError {
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
    /// See [`coppice_core::replica_manager::ReplicaManager::may_install`].
    #[error("it skips a split whose other partition is not on this disk yet: that is fetched first")]
    Early,
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
pub(super) struct Source {
    /// The node, and its address.
    pub from: (NodeId, String),
    /// Of which group, at or above which instance.
    pub wanted: (PartitionId, Instance),
}

/// Receives a snapshot into a checkpoint of this node, whole or not at all, and loads it; or nothing, if `admit` says
/// so of its head.
pub(super) fn fetch(
    shared: &Shared,
    checkpoints: &Checkpoints,
    Source { from: (from, address), wanted: (group, instance) }: &Source,
    admit: impl FnOnce(&Head) -> bool,
) -> Result<Loaded, FetchError> {
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
        return Err(FetchError::Early);
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
                writer.finish(&manifest)?;
                failpoint!("snapshot.stored");
                return load(checkpoints, group);
            }
            _ => return Err(FetchError::Garbage),
        }
    }
}

fn load(checkpoints: &Checkpoints, group: PartitionId) -> Result<Loaded, FetchError> {
    let loaded = checkpoints.load(group)?;
    let checkpoint = loaded.checkpoint.ok_or(FetchError::Garbage)?;
    Ok(machine_of(&checkpoint)?)
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
