//! The checkpoints on a node's disk: directories whose entries survive a loss of power only when they were flushed, and
//! files whose content does only then. What is done to them, in which order and under which names is the server's
//! ([`coppice_server::checkpoint::commit_protocol`]); a crash may fall between any two acts.

use std::collections::BTreeMap;

use coppice_client::wire::PartitionId;
use coppice_ordering::Instance;
use coppice_server::checkpoint::commit_protocol::{self, Act, Busy, GENERATIONS, Opening};
use coppice_testkit::random::Random;

use super::SavedSnapshot;

/// The files of one checkpoint.
#[derive(Clone, Debug)]
struct Files {
    saved: SavedSnapshot,
    /// All of it is written, and nothing is removed or torn: its checksums fit.
    whole: bool,
    flushed: bool,
}

/// A change of a directory's entries.
#[derive(Clone, Debug)]
enum Change {
    Create(String, usize),
    Rename(String, String),
    Remove(String),
}

/// The directory of one group: names, and the files behind them by number.
#[derive(Clone, Debug, Default)]
struct Directory {
    now: BTreeMap<String, usize>,
    /// As of its last flush.
    durable: BTreeMap<String, usize>,
    /// Since then.
    changes: Vec<Change>,
}

impl Directory {
    fn change(&mut self, change: Change) {
        apply(&mut self.now, &change);
        self.changes.push(change);
    }

    fn flush(&mut self) {
        self.durable = self.now.clone();
        self.changes.clear();
    }

    /// The power fails: of what was not flushed nothing is there, or the first so many changes, or any of them. A
    /// rename is made as a whole or not at all.
    fn lose(&mut self, random: &mut Random) {
        let changes = std::mem::take(&mut self.changes);
        let (how, first) = (random.below(3), random.below(changes.len() + 1));
        for (at, change) in changes.iter().enumerate() {
            let kept = match how {
                0 => false,
                1 => at < first,
                _ => random.below(2) == 0,
            };
            if kept {
                apply(&mut self.durable, change);
            }
        }
        self.now = self.durable.clone();
    }

    /// Of all that have the name of one that counts, ascending.
    fn instances(&self) -> Vec<Instance> {
        instances(&self.now)
    }
}

fn apply(names: &mut BTreeMap<String, usize>, change: &Change) {
    match change {
        Change::Create(name, files) => _ = names.insert(name.clone(), *files),
        Change::Rename(from, to) => {
            if let Some(files) = names.remove(from) {
                names.insert(to.clone(), files);
            }
        }
        Change::Remove(name) => _ = names.remove(name),
    }
}

/// Whether the next act is the one that fails.
fn fails(left: &mut Option<u64>) -> bool {
    match left {
        Some(0) => {
            *left = None;
            true
        }
        Some(acts) => {
            *acts -= 1;
            false
        }
        None => false,
    }
}

fn instances(names: &BTreeMap<String, usize>) -> Vec<Instance> {
    let mut instances: Vec<Instance> = names.keys().filter_map(|name| commit_protocol::instance_of(name)).collect();
    instances.sort();
    instances
}

/// A checkpoint that is being written.
#[derive(Clone, Debug)]
struct StagedCheckpoint {
    group: PartitionId,
    instance: Instance,
    /// What is to be done, the next one first; none: its files are to be written.
    acts: Vec<Act>,
    filled: bool,
    /// Those that are renamed out of the way and not removed yet.
    aside: Vec<String>,
    pruned: bool,
    older: Option<Instance>,
}

/// How far a checkpoint is after one act more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// There is more to do.
    Going,
    /// It counts. The log may be trimmed up to the older one.
    Done(Option<Instance>),
    /// Its files or names are not where it left them: it is given up.
    GivenUp,
    /// The disk failed: it is given up.
    Failed,
}

/// Why a checkpoint is not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Another one of the group is being written.
    Busy,
    /// There is one of this instance already.
    Present,
    /// The disk failed.
    Failed,
    /// It has no room.
    Full,
}

/// All checkpoints of a disk.
#[derive(Clone, Debug, Default)]
pub struct Checkpoints {
    files: BTreeMap<usize, Files>,
    directories: BTreeMap<PartitionId, Directory>,
    busy: Busy,
    staged: BTreeMap<u64, StagedCheckpoint>,
    next: u64,
    /// Acts until one fails.
    pub(super) fail_at: Option<u64>,
}

impl Checkpoints {
    /// Begins one, on a disk with so much room. Names the checkpoint.
    pub fn begin(&mut self, group: PartitionId, saved: SavedSnapshot, room: Option<u64>) -> Result<u64, Refused> {
        let instance = saved.instance;
        let directory = self.directories.entry(group).or_default();
        if directory.now.contains_key(&commit_protocol::name(instance)) {
            if fails(&mut self.fail_at) {
                return Err(Refused::Failed);
            }
            if commit_protocol::flushes_present() {
                directory.flush();
            }
            return Err(Refused::Present);
        }
        if room.is_some_and(|room| room < saved.bytes() as u64) {
            return Err(Refused::Full);
        }
        if !self.busy.begin(group) {
            return Err(Refused::Busy);
        }
        if fails(&mut self.fail_at) {
            self.busy.end(group);
            return Err(Refused::Failed);
        }
        let (name, files) = (commit_protocol::staging_name(instance), self.next as usize);
        if let Some(before) = directory.now.get(&name) {
            // What an interrupted one left, or another one that is being written under the same name.
            self.files.entry(*before).and_modify(|files| files.whole = false);
            directory.change(Change::Remove(name.clone()));
        }
        directory.change(Change::Create(name, files));
        self.files.insert(files, Files { saved, whole: false, flushed: false });
        let mut acts = commit_protocol::acts();
        acts.reverse();
        let (filled, aside, pruned, older) = (false, Vec::new(), false, None);
        let checkpoint = StagedCheckpoint { group, instance, acts, filled, aside, pruned, older };
        self.staged.insert(self.next, checkpoint);
        self.next += 1;
        Ok(self.next - 1)
    }

    /// Does the next act of a checkpoint.
    pub fn proceed(&mut self, number: u64) -> Stage {
        let Some(mut checkpoint) = self.staged.remove(&number) else { return Stage::GivenUp };
        let stage = match fails(&mut self.fail_at) {
            true => {
                // What is written of it goes; if it has its name already, that is not flushed yet, or it counts.
                self.empty(checkpoint.group, &commit_protocol::staging_name(checkpoint.instance));
                Stage::Failed
            }
            false => self.act(&mut checkpoint).unwrap_or(Stage::GivenUp),
        };
        if stage == Stage::Going {
            self.staged.insert(number, checkpoint);
        } else {
            self.busy.end(checkpoint.group);
        }
        stage
    }

    fn act(&mut self, checkpoint: &mut StagedCheckpoint) -> Option<Stage> {
        let directory = self.directories.get_mut(&checkpoint.group)?;
        let name = commit_protocol::staging_name(checkpoint.instance);
        if !checkpoint.filled {
            let files = self.files.get_mut(directory.now.get(&name)?)?;
            (files.whole, checkpoint.filled) = (true, true);
            return Some(Stage::Going);
        }
        let Some(act) = checkpoint.acts.last().copied() else { return Some(Stage::Done(checkpoint.older)) };
        match act {
            Act::Flush => self.files.get_mut(directory.now.get(&name)?)?.flushed = true,
            Act::Rename => {
                directory.now.get(&name)?;
                directory.change(Change::Rename(name, commit_protocol::name(checkpoint.instance)));
            }
            Act::FlushDir => directory.flush(),
            Act::Prune if !checkpoint.pruned => {
                let instances = directory.instances();
                let bad = directory.now.keys().filter(|name| commit_protocol::is_bad(name)).cloned();
                checkpoint.aside = bad.collect();
                for old in commit_protocol::too_old(&instances, GENERATIONS) {
                    directory.change(Change::Rename(commit_protocol::name(old), commit_protocol::aside_name(old)));
                    checkpoint.aside.push(commit_protocol::aside_name(old));
                }
                (checkpoint.older, checkpoint.pruned) = (commit_protocol::oldest_kept(&instances, GENERATIONS), true);
                return Some(Stage::Going);
            }
            Act::Prune => {
                for name in std::mem::take(&mut checkpoint.aside) {
                    self.empty(checkpoint.group, &name);
                }
            }
        }
        checkpoint.acts.pop();
        Some(if checkpoint.acts.is_empty() { Stage::Done(checkpoint.older) } else { Stage::Going })
    }

    /// Removes the files behind a name, and the name.
    fn empty(&mut self, group: PartitionId, name: &str) {
        let Some(directory) = self.directories.get_mut(&group) else { return };
        let Some(files) = directory.now.get(name) else { return };
        if let Some(files) = self.files.get_mut(files) {
            files.whole = false;
        }
        directory.change(Change::Remove(name.to_owned()));
    }

    /// Whether a checkpoint of this group is being written.
    pub fn is_writing(&self, group: PartitionId) -> bool {
        self.staged.values().any(|checkpoint| checkpoint.group == group)
    }

    /// The process ends; with `power` what was not flushed may be lost.
    pub fn crash(&mut self, power: bool, random: &mut Random) {
        (self.busy, self.staged, self.fail_at) = (Busy::default(), BTreeMap::new(), None);
        if power {
            for files in self.files.values_mut().filter(|files| !files.flushed) {
                files.whole &= random.below(2) == 0;
                files.flushed = true;
            }
            self.directories.values_mut().for_each(|directory| directory.lose(random));
        }
        let named = |files: &usize| {
            self.directories.values().any(|directory| {
                directory.now.values().chain(directory.durable.values()).any(|named| named == files)
                    || directory.changes.iter().any(|change| matches!(change, Change::Create(_, new) if new == files))
            })
        };
        let gone: Vec<usize> = self.files.keys().filter(|files| !named(files)).copied().collect();
        gone.iter().for_each(|files| _ = self.files.remove(files));
    }

    /// A process starts.
    pub fn open(&mut self) {
        for act in commit_protocol::opening() {
            match act {
                Opening::Clear => self.clear(),
                Opening::FlushDir => self.directories.values_mut().for_each(Directory::flush),
            }
        }
    }

    fn clear(&mut self) {
        let leftovers = self.directories.iter().flat_map(|(&group, directory)| {
            let names = directory.now.keys().filter(|name| commit_protocol::is_leftover(name));
            names.map(move |name| (group, name.clone()))
        });
        for (group, name) in leftovers.collect::<Vec<_>>() {
            self.empty(group, &name);
        }
    }

    /// Those that have a directory.
    pub fn groups(&self) -> Vec<PartitionId> {
        self.directories.keys().copied().collect()
    }

    /// The newest one of a group that can be `read`; newer ones that cannot be are renamed. And how many these are.
    pub fn load<T>(&mut self, group: PartitionId, read: impl Fn(&SavedSnapshot) -> Option<T>) -> (Option<T>, usize) {
        let Some(directory) = self.directories.get_mut(&group) else { return (None, 0) };
        let mut bad = 0;
        for instance in directory.instances().into_iter().rev() {
            let files = directory.now.get(&commit_protocol::name(instance)).and_then(|files| self.files.get(files));
            if let Some(found) = files.filter(|files| files.whole).and_then(|files| read(&files.saved)) {
                return (Some(found), bad);
            }
            bad += 1;
            directory.change(Change::Rename(commit_protocol::name(instance), commit_protocol::bad_name(instance)));
        }
        (None, bad)
    }

    /// Up to where the newest one of a group reaches that would survive a loss of power now.
    pub fn newest_durable(&self, group: PartitionId) -> Option<Instance> {
        let durable = &self.directories.get(&group)?.durable;
        let is_durable = |instance: &Instance| {
            let files = durable.get(&commit_protocol::name(*instance)).and_then(|files| self.files.get(files));
            files.is_some_and(|files| files.whole && files.flushed)
        };
        instances(durable).into_iter().rev().find(is_durable)
    }

    /// Removes one of a group whose replica was removed, the newest first; true: there was none left, and that is
    /// flushed.
    pub fn remove(&mut self, group: PartitionId) -> bool {
        let Some(directory) = self.directories.get_mut(&group) else { return true };
        let newest = directory.instances().last().map(|instance| commit_protocol::name(*instance));
        match newest.or_else(|| directory.now.keys().next().cloned()) {
            Some(name) => self.empty(group, &name),
            None => directory.flush(),
        }
        self.directories.get(&group).is_none_or(|directory| directory.changes.is_empty())
    }

    /// Those that count, of each group, oldest first, to damage and to look at.
    pub fn counted(&mut self) -> Vec<Vec<&mut SavedSnapshot>> {
        let mut by_number: BTreeMap<usize, &mut SavedSnapshot> = self
            .files
            .iter_mut()
            .filter(|(_, files)| files.whole)
            .map(|(&number, files)| (number, &mut files.saved))
            .collect();
        let groups = self.directories.values();
        let of = |directory: &Directory| {
            let numbers = directory
                .instances()
                .into_iter()
                .filter_map(|at| directory.now.get(&commit_protocol::name(at)).copied());
            numbers.collect::<Vec<usize>>()
        };
        let numbers: Vec<Vec<usize>> = groups.map(of).collect();
        numbers
            .into_iter()
            .map(|group| group.into_iter().filter_map(|number| by_number.remove(&number)).collect())
            .collect()
    }
}
