//! Checkpoints of a worker's groups, and snapshots of other nodes that take the place of a replica's state (protocol.md
//! 1.6): when one is written, what counts once it is durable, and what the log may forget then.

use coppice_client::wire::PartitionId;
use coppice_ordering::Instance;

use super::{Effect, Report, Worker, Writing};
use crate::checkpoint_due::{self, Due, due};
use crate::replica::Input;
use crate::snapshot::{self, LoadedSnapshot};

/// Of the node's log and disk, as its driver knows it.
#[derive(Clone, Debug, Default)]
pub struct Storage {
    /// How much there is.
    pub sizes: checkpoint_due::Storage,
    /// Groups whose batches keep the oldest segment of the log.
    pub pins: Vec<PartitionId>,
}

/// What came of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointOutcome {
    /// It is durable.
    Done {
        bytes: u64,
        /// What the group's log holds up to here is in all checkpoints that are kept.
        trim_upto: Option<Instance>,
    },
    /// There is one of this instance already: a peer's snapshot came first, for a child that began by a split while it
    /// was being fetched. It is as durable as an own one.
    Present,
    /// It is not; the log keeps growing until there is one.
    Failed,
}

impl Worker {
    /// Every group for which it is time writes a checkpoint.
    pub(super) fn on_storage(&mut self, storage: Storage) {
        self.storage = Some(storage);
        let groups: Vec<PartitionId> = self.groups.keys().copied().collect();
        groups.into_iter().for_each(|group| self.checkpoint_if_due(group));
    }

    pub(super) fn checkpoint_if_due(&mut self, id: PartitionId) {
        let (Some(group), Some(storage)) = (self.groups.get(&id), &self.storage) else { return };
        // What it executes again would copy every leaf that the checkpoint holds, and be in none.
        if group.replay().is_some() {
            return;
        }
        let replays_most = storage.sizes.replays.largest == Some(id);
        if let Some(due) = due(group.needs(storage.pins.contains(&id), replays_most), storage.sizes) {
            self.checkpoint(id, due);
        }
    }

    /// The group writes a checkpoint, unless it is at it. While a child's beginning exists only as this group's log up
    /// to the split, the log must bring the group there again: no checkpoint above it (hazards.md MV10).
    pub(super) fn checkpoint(&mut self, id: PartitionId, due: Due) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let awaits_children = group.checkpoints.splits.await_children() && !mutant!(parent_saved_before_child);
        if group.checkpoints.writing.is_some() || awaits_children {
            return;
        }
        // The log since the last checkpoint lies between two, once this one is there.
        let logged = std::mem::take(&mut group.checkpoints.logged_bytes);
        group.checkpoints.older_bytes += logged;
        let taken = snapshot::take(self.cluster.cluster, &group.replica);
        let (instance, boundaries) = (taken.head.instance, taken.head.map_version);
        self.counters.checkpoints += 1;
        let number = self.counters.checkpoints;
        group.checkpoints.writing = Some(Writing { number, instance, boundaries, logged });
        self.effects.push(Effect::Checkpoint { group: id, number, taken: Box::new(taken), due });
    }

    /// A checkpoint was written, or not: only then may batches be forgotten (hazards.md ST4). One that an earlier
    /// replica of the group began says nothing of this one's.
    pub(super) fn on_checkpointed(&mut self, id: PartitionId, number: u64, written: CheckpointOutcome) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let is_its = |writing: &mut Writing| writing.number == number;
        let Some(writing) = group.checkpoints.writing.take_if(is_its) else { return };
        let Writing { instance, boundaries, logged, .. } = writing;
        let checkpoints = &mut group.checkpoints;
        match written {
            CheckpointOutcome::Done { bytes, trim_upto } => {
                (checkpoints.bytes, checkpoints.alone) = (bytes, trim_upto == Some(instance));
                group.replica.paxos_mut().set_snapshot_bytes(usize::try_from(bytes).unwrap_or(usize::MAX));
                if let Some(upto) = trim_upto {
                    checkpoints.older_bytes = if checkpoints.alone { 0 } else { logged };
                    self.effects.push(Effect::Trim(id, upto));
                    failpoint!("checkpoint.counts");
                }
            }
            CheckpointOutcome::Present => {}
            CheckpointOutcome::Failed => {
                if mutant!(writes_for_ever) {
                    checkpoints.writing = Some(writing);
                }
                return self.begin_reclamation(id);
            }
        }
        checkpoints.at = Some(instance);
        group.boundaries.saved(boundaries);
        self.begin_reclamation(id);
        self.step_group(id, Input::Checkpointed(instance));
        self.effects.push(Effect::Controller(Report::Saved(id)));
    }

    /// The children of so many splits need nothing of the group's log any more.
    pub(super) fn on_children_saved(&mut self, id: PartitionId, splits: u32) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.checkpoints.splits.saved = splits;
        self.checkpoint_if_due(id);
    }

    /// A peer's snapshot takes the place of what a replica here holds; none: none came, and the core asks again.
    pub(super) fn on_snapshot(&mut self, id: PartitionId, loaded: Option<Box<LoadedSnapshot>>) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.installing = loaded.is_none() && mutant!(installs_for_ever);
        let Some(loaded) = loaded else { return };
        let LoadedSnapshot { machine, instance, configuration, configured_at, promised } = *loaded;
        if let Some(data) = machine.partition() {
            group.boundaries.saved(data.map_version());
        }
        // Below it the log has gaps, and votes that were overwritten: an older checkpoint is no way back. What says
        // more of the log than this stands behind it there.
        if !mutant!(install_trims_nothing) {
            self.effects.push(Effect::Trim(id, instance));
        }
        failpoint!("snapshot.before_install");
        let machine = Box::new(machine);
        self.step_group(id, Input::Installed { machine, instance, configuration, configured_at, promised });
        failpoint!("snapshot.installed");
        self.send_if_sealed(id);
    }
}

#[cfg(test)]
mod tests {
    use coppice_client::wire;
    use coppice_ordering::Time;

    use super::*;
    use crate::worker::hosting::begins;
    use crate::worker::{Group, Input as Told};

    const GROUP: PartitionId = PartitionId(1);

    /// A worker with one replica, and what it asked to be written.
    struct Node(Worker);

    impl Node {
        fn new() -> Node {
            let mut node = Node(Worker::new(0, 1));
            node.tell(begins(GROUP, 3));
            node
        }

        fn tell(&mut self, input: Told) -> Vec<u64> {
            let mut effects = Vec::new();
            self.0.step(Time(2), input, &mut effects);
            let written = effects.iter().filter_map(|effect| match effect {
                Effect::Checkpoint { number, .. } => Some(*number),
                _ => None,
            });
            written.collect()
        }

        /// So much is logged, and the worker is told of the log.
        fn logs(&mut self, bytes: u64) -> Vec<u64> {
            self.group().checkpoints.logged_bytes += bytes;
            let sizes = checkpoint_due::Storage { log_bytes_setting: 100, ..Default::default() };
            self.tell(Told::Storage(Storage { sizes, pins: Vec::new() }))
        }

        fn group(&mut self) -> &mut Group {
            self.0.groups.get_mut(&GROUP).expect("it is hosted")
        }

        fn written(&mut self, number: u64, written: CheckpointOutcome) {
            self.tell(Told::Checkpointed { group: GROUP, number, written });
        }
    }

    #[test]
    fn a_checkpoint_that_failed_is_written_anew_and_another_replicas_counts_for_nothing() {
        let mut node = Node::new();
        assert_eq!([node.logs(100), node.logs(1), node.logs(200)], [vec![], vec![1], vec![]]);
        node.written(9, CheckpointOutcome::Done { bytes: 7, trim_upto: None });
        assert!(node.logs(1).is_empty() && node.group().checkpoints.at.is_none(), "it is at the first one yet");
        node.written(1, CheckpointOutcome::Failed);
        assert_eq!(node.logs(1), [2]);
        node.written(2, CheckpointOutcome::Done { bytes: 7, trim_upto: None });
        assert_eq!((node.group().checkpoints.at, node.group().checkpoints.bytes), (Some(Instance::ZERO), 7));
    }

    /// hazards.md MV10: what is above the split would be all that is left of it here.
    #[test]
    fn no_checkpoint_is_above_a_split_whose_child_is_in_memory_only() {
        let mut node = Node::new();
        node.group().checkpoints.splits.executed = 2;
        assert!(node.logs(200).is_empty() && node.tell(Told::CheckpointNow(GROUP)).is_empty());
        assert!(node.tell(Told::ChildrenSaved { group: GROUP, splits: 1 }).is_empty(), "there is another one");
        assert_eq!(node.tell(Told::ChildrenSaved { group: GROUP, splits: 2 }), [1]);
    }

    #[test]
    fn no_checkpoint_is_written_while_a_replica_replays_its_log() {
        let mut node = Node::new();
        let decided = node.group().replica.executor().decided();
        node.group().replay = (decided, decided.next());
        assert!(node.logs(200).is_empty());
        node.group().replay = (decided, decided);
        assert_eq!(node.logs(1), [1]);
    }

    #[test]
    fn groups_hear_of_a_node_whose_connection_is_a_new_one() {
        let mut node = Node::new();
        node.tell(Told::Heard { fresh: vec![wire::NodeId(2)], heard: Vec::new() });
        assert_eq!(node.0.stepped(), [GROUP]);
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn planted_bugs_are_caught() {
        let tests = [
            ("writes_for_ever", "a_checkpoint_that_failed_is_written_anew_and_another_replicas_counts_for_nothing"),
            ("parent_saved_before_child", "no_checkpoint_is_above_a_split_whose_child_is_in_memory_only"),
            ("lost_nodes_untold", "groups_hear_of_a_node_whose_connection_is_a_new_one"),
        ];
        for (mutant, test) in tests {
            planted::assert_caught(mutant, &format!("worker::checkpoints::tests::{test}"));
        }
    }
}
