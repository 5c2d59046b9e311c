//! What a start reads before anything else: the checkpoints of its partitions, then the log above them, which it
//! executes meanwhile.
//!
//! It runs on a thread of its own: the control thread answers meanwhile, and memory that only the reading needed goes
//! back to the system when the thread ends and the replicas have executed what it read.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use coppice_client::wire::PartitionId;
use coppice_core::replay::GroupReplay;
use coppice_core::roll_forward::{RollBounds, RollForward, RolledGroup, RolledState};
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
    /// Read.
    pub log: OpenLog<()>,
    pub checkpoints: Checkpoints,
    pub checkpointer: Checkpointer,
    /// Of each group what the log holds, and its newest good checkpoint, rolled forward as far as that says.
    pub groups: BTreeMap<PartitionId, (GroupReplay, Option<LoadedSnapshot>)>,
}

/// Reads everything in `home`, whose node has an identity, and executes what the log says is decided. `hooks` are those
/// of the log.
///
/// # Errors
/// See [`StorageError`].
pub(super) fn read(home: &mut DataDir, shared: &Arc<Handle>, hooks: Hooks) -> Result<Recovered, StorageError> {
    let (checkpoints, checkpointer) = open_checkpoints(home, &shared.config)?;
    let loaded = load_all(&checkpoints, shared)?;
    shared.recovery.note(RecoveryStep::Log, 0, 1);
    failpoint!("recovery.log");
    let rolled = RollForward::new(loaded, RollBounds::default(), execute_all);
    let OpenLog { writer, replay: rolled, identity, claim, cut } = home.open_log(rolled, log_options(shared), hooks)?;
    let mut groups = BTreeMap::new();
    for (group, RolledGroup { replay, mut loaded, reload }) in rolled.finish() {
        if let Some(instance) = reload {
            loaded = load(&checkpoints, group, shared)?.filter(|loaded| loaded.instance == instance);
            // The log above an older one is not in memory. The next start begins with that.
            loaded.as_ref().ok_or(CheckpointError::Gone(group, instance))?;
        }
        groups.insert(group, (replay, loaded));
    }
    shared.recovery.note(RecoveryStep::Log, 1, 1);
    Ok(Recovered { log: OpenLog { writer, replay: (), identity, claim, cut }, checkpoints, checkpointer, groups })
}

/// Executes what was read on each state, as many at a time as there are cores.
fn execute_all(states: Vec<&mut RolledState>) {
    let (most, states) = (states.len(), Mutex::new(states.into_iter()));
    // The lock is free again before the state is executed.
    let next = || states.lock().unwrap_or_else(PoisonError::into_inner).next();
    on_all_cores(most, || std::iter::from_fn(next).for_each(RolledState::execute));
}

/// Runs `work` on this thread and others, one for each core in all, `most` at most.
fn on_all_cores(most: usize, work: impl Fn() + Sync) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(most);
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(&work);
        }
        work();
    });
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
    on_all_cores(partitions.len(), load_some);
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
