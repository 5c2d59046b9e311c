//! What a start reads before anything else: the checkpoints of its partitions, then the log above them.
//!
//! It runs on a thread of its own: the control thread answers meanwhile, and memory that only the reading needed goes
//! back to the system when the thread ends and the replicas have executed what it read.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use coppice_client::wire::PartitionId;
use coppice_core::replay::Replay;
use coppice_core::snapshot::LoadedSnapshot;

use super::Handle;
use crate::checkpoint::background::Checkpointer;
use crate::checkpoint::{CheckpointError, CheckpointOptions, Checkpoints};
use crate::config::{Flush, Keep, NodeConfig};
use crate::datadir::DataDir;
use crate::log::{Geometry, Hooks, LogOptions, OpenLog, ReadObserver};
use crate::shared::RecoveryStep;
use crate::start_error::StorageError;

/// What a data directory held.
pub(super) struct Recovered {
    pub log: OpenLog,
    pub checkpoints: Checkpoints,
    pub checkpointer: Checkpointer,
    /// The newest good checkpoint of each partition that has one.
    pub loaded: BTreeMap<PartitionId, LoadedSnapshot>,
}

/// Reads everything in `home`, whose node has an identity. `hooks` are those of the log.
///
/// # Errors
/// See [`StorageError`].
pub(super) fn read(home: &mut DataDir, shared: &Arc<Handle>, hooks: Hooks) -> Result<Recovered, StorageError> {
    let (checkpoints, checkpointer) = open_checkpoints(home, &shared.config)?;
    let loaded = load_all(&checkpoints, shared)?;
    let snapshots = loaded.iter().map(|(&partition, loaded)| (partition, loaded.instance)).collect();
    shared.recovery.note(RecoveryStep::Log, 0, 1);
    failpoint!("recovery.log");
    let log = home.open_log(Replay::above(snapshots), log_options(shared), hooks)?;
    shared.recovery.note(RecoveryStep::Log, 1, 1);
    Ok(Recovered { log, checkpoints, checkpointer, loaded })
}

fn log_options(shared: &Arc<Handle>) -> LogOptions {
    let (config, observer) = (&shared.config, Arc::clone(shared));
    LogOptions {
        geometry: Geometry {
            segment_bytes: config.log.segment_bytes,
            segments_ahead: config.log.segments_ahead,
            ..Geometry::default()
        },
        keep_all: config.log.keep == Keep::All,
        unsafe_no_flush: config.unsafe_no_flush && config.log.flush == Flush::Off,
        disk_reserve_bytes: config.log.disk_reserve,
        busy_poll: config.busy_poll,
        read: ReadObserver(Arc::new(move |read, all| observer.recovery.note(RecoveryStep::Log, read, all))),
        ..LogOptions::default()
    }
}

/// Opens the checkpoints of the data directory and starts the thread that writes them.
fn open_checkpoints(home: &DataDir, config: &NodeConfig) -> Result<(Checkpoints, Checkpointer), CheckpointError> {
    let options = CheckpointOptions {
        cluster: home.identity().map(|identity| identity.cluster),
        rate_bytes: config.checkpoint.rate,
        cache_bytes: config.checkpoint.cache,
        space_floor_bytes: config.log.disk_reserve / 2,
    };
    let path = home.checkpoints();
    let at = |error| CheckpointError::Io { path: path.clone(), error };
    let checkpoints = Checkpoints::open(&path, options).map_err(at)?;
    let checkpointer = Checkpointer::start(checkpoints.clone()).map_err(at)?;
    Ok((checkpoints, checkpointer))
}

/// Loads the newest good checkpoint of each partition, as many at a time as there are cores.
fn load_all(
    checkpoints: &Checkpoints,
    shared: &Handle,
) -> Result<BTreeMap<PartitionId, LoadedSnapshot>, CheckpointError> {
    let partitions = checkpoints
        .partitions()
        .map_err(|error| CheckpointError::Io { path: Path::new("checkpoints").into(), error })?;
    let (next, loaded) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let load_some = || {
        while let Some(&partition) = partitions.get(next.fetch_add(1, Ordering::Relaxed)) {
            let snapshot = load(checkpoints, partition, shared);
            loaded.lock().unwrap_or_else(PoisonError::into_inner).insert(partition, snapshot);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(partitions.len());
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(load_some);
        }
        load_some();
    });
    let loaded = loaded.into_inner().unwrap_or_else(PoisonError::into_inner);
    loaded
        .into_iter()
        .filter_map(|(partition, loaded)| Some((partition, loaded.transpose()?)))
        .map(|(partition, loaded)| Ok((partition, loaded?)))
        .collect()
}

/// The newest good checkpoint of a partition, if there is any.
fn load(
    checkpoints: &Checkpoints,
    partition: PartitionId,
    shared: &Handle,
) -> Result<Option<LoadedSnapshot>, CheckpointError> {
    let step = RecoveryStep::Checkpoint(partition);
    shared.recovery.note(step, 0, 1);
    let loaded = checkpoints.load(partition)?;
    for bad in &loaded.bad {
        tracing::warn!(%partition, %bad, "a checkpoint is damaged; an older one or a peer's replaces it");
    }
    let restored = loaded.checkpoint.map(|checkpoint| {
        let all = checkpoint.manifest().bytes;
        checkpoint.restore(|read| shared.recovery.note(step, read.min(all - 1), all))
    });
    shared.recovery.note(step, 1, 1);
    restored.transpose()
}
