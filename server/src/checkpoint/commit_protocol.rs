//! The life of a checkpoint: what is done to its files and names, and in which order, so that a crash between any two
//! acts leaves a whole older one or the new one (hazards.md ST3, ST4, ST7).
//!
//! Pure: [`super`] carries the acts out on a file system, the simulator on a disk that forgets what was not flushed.

use std::collections::BTreeSet;

use coppice_client::wire::PartitionId;
use coppice_ordering::Instance;

/// Checkpoints of a partition that are kept.
pub const GENERATIONS: usize = 2;

/// What is done to a staged checkpoint that is whole, to make it count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Every file of it is flushed, and its directories.
    Flush,
    /// It gets its name.
    Rename,
    /// The directory that holds the name is flushed: it counts from now on.
    FlushDir,
    /// Each generation but the newest [`GENERATIONS`] is renamed out of the way, and removed.
    Prune,
}

/// The acts, in their order. Only when all are done may the log be trimmed.
pub fn acts() -> Vec<Act> {
    let skipped = |act: &Act| match act {
        Act::Flush => mutant!(checkpoint_unflushed),
        Act::FlushDir => mutant!(checkpoint_name_unflushed),
        Act::Rename | Act::Prune => false,
    };
    let mut acts = vec![Act::Flush, Act::Rename, Act::FlushDir, Act::Prune];
    acts.retain(|act| !skipped(act));
    acts
}

/// Whether a partition's directory is flushed when the checkpoint that is asked for is there already. Its writer may
/// have failed between the renaming and the flush of its name, and whoever hears that it is there takes it for durable.
pub fn flushes_present() -> bool {
    !mutant!(present_name_unflushed)
}

/// What a start does to the directory of each partition before it looks for checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// What was interrupted goes.
    Clear,
    /// The directory is flushed. The process before may have ended between the renaming of a checkpoint and the flush
    /// of its name: whatever is loaded counts, and the log is trimmed by it.
    FlushDir,
}

/// The acts of a start, in their order.
pub fn opening() -> Vec<Opening> {
    let mut acts = vec![Opening::Clear, Opening::FlushDir];
    acts.retain(|act| *act != Opening::FlushDir || !mutant!(loaded_name_unflushed));
    acts
}

/// The name of a checkpoint that counts.
pub fn name(instance: Instance) -> String {
    instance.0.to_string()
}

/// The name of one that is being written.
pub fn staging_name(instance: Instance) -> String {
    if mutant!(install_in_place) { name(instance) } else { format!("{}.tmp", instance.0) }
}

/// The name of one that is being removed: a half-removed checkpoint must not look like a damaged one.
pub fn aside_name(instance: Instance) -> String {
    format!("{}.old.tmp", instance.0)
}

/// The name of one that is damaged.
pub fn bad_name(instance: Instance) -> String {
    format!("{}.bad", instance.0)
}

/// The instance of a checkpoint of this name; none: it does not count.
pub fn instance_of(name: &str) -> Option<Instance> {
    name.parse().ok().map(Instance)
}

/// Whether a start removes what has this name: something that was interrupted.
pub fn is_leftover(name: &str) -> bool {
    name.ends_with(".tmp")
}

/// Whether what has this name goes with the next checkpoint: it was damaged.
pub fn is_bad(name: &str) -> bool {
    name.ends_with(".bad")
}

/// Those that are too old, of the instances of all checkpoints of a partition, ascending.
pub fn too_old(instances: &[Instance], keep: usize) -> impl Iterator<Item = Instance> + '_ {
    instances.iter().rev().skip(keep).copied()
}

/// The oldest of those that are kept, if there are as many: up to it the log may be trimmed.
pub fn oldest_kept(instances: &[Instance], keep: usize) -> Option<Instance> {
    instances.iter().rev().nth(keep - 1).copied()
}

/// Partitions of which a checkpoint is being written: one at a time (hazards.md ST5).
#[derive(Clone, Debug, Default)]
pub struct Busy(BTreeSet<PartitionId>);

impl Busy {
    /// A checkpoint is to be begun; false: it may not.
    pub fn begin(&mut self, partition: PartitionId) -> bool {
        self.0.insert(partition) || mutant!(two_snapshots)
    }

    /// It is there, or is given up.
    pub fn end(&mut self, partition: PartitionId) {
        self.0.remove(&partition);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn st3_a_checkpoint_counts_when_its_files_and_its_name_are_flushed() {
        assert_eq!(acts(), [Act::Flush, Act::Rename, Act::FlushDir, Act::Prune]);
    }

    /// Seed 200732: a process ended between the renaming of a checkpoint and the flush of its name; the next one loaded
    /// it and trimmed the log by it; then the power failed, and the name was gone.
    #[test]
    fn st3_what_a_start_loads_has_a_name_that_is_flushed() {
        assert_eq!(opening(), [Opening::Clear, Opening::FlushDir]);
    }

    #[test]
    fn st3_what_is_there_already_has_a_name_that_is_flushed() {
        assert!(flushes_present());
    }

    #[test]
    fn only_a_name_without_a_suffix_counts() {
        let at = Instance(184_000);
        assert_eq!(instance_of(&name(at)), Some(at));
        assert!([staging_name(at), aside_name(at), bad_name(at)].iter().all(|name| instance_of(name).is_none()));
        assert!(is_leftover(&staging_name(at)) && is_leftover(&aside_name(at)) && is_bad(&bad_name(at)));
    }

    #[test]
    fn the_log_is_kept_above_the_older_of_two() {
        let all = [1, 2, 3].map(Instance);
        assert_eq!(too_old(&all, GENERATIONS).collect::<Vec<_>>(), [Instance(1)]);
        assert_eq!([oldest_kept(&all, 2), oldest_kept(&all[..1], 2)], [Some(Instance(2)), None]);
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn an_act_that_is_left_out_is_caught() {
        let test =
            "checkpoint::commit_protocol::tests::st3_a_checkpoint_counts_when_its_files_and_its_name_are_flushed";
        planted::assert_caught("checkpoint_unflushed", test);
        planted::assert_caught("checkpoint_name_unflushed", test);
        let test = "checkpoint::commit_protocol::tests::st3_what_a_start_loads_has_a_name_that_is_flushed";
        planted::assert_caught("loaded_name_unflushed", test);
        let test = "checkpoint::commit_protocol::tests::st3_what_is_there_already_has_a_name_that_is_flushed";
        planted::assert_caught("present_name_unflushed", test);
    }
}
