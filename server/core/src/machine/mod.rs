//! What a group's log runs on: a shard of the data, or the directory. Two machines, one enum.

pub mod directory;
pub mod entry;
pub mod shard;

use std::sync::Arc;

use bytes::Bytes;
use coppice_btree::SettleProgress;
use coppice_client::wire::{MapVersion, SessionId};
use coppice_ordering::{Batch, Instance, ReplicaId, Ticket};
use directory::{Directory, DirectoryReply, DirectoryState};
use shard::{Awaited, Fork, Inheritance, Placed, Shard, ShardMark};

/// What an entry of a batch came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A pack: its encoded answer, without the stream.
    Pack(Bytes),
    /// A pack of a session that is not open: nothing of it was executed.
    SessionExpired,
    /// A session was opened; its id is the entry's position.
    Opened(SessionId),
    /// A directory command.
    Directory(DirectoryReply),
    /// A pack or a session for a partition that is sealed: nothing of it was executed.
    Closed,
    /// An entry that this machine does not know changes nothing.
    Nothing,
}

/// An outcome with its position. The k-th entry of a batch has the k-th answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Instance of the batch.
    pub instance: Instance,
    /// Index of its first command in the batch.
    pub index: u32,
    /// The last ticket placed in the partition before it: the gate waits for its release.
    pub last_ticket: Option<Ticket>,
    /// What it came to.
    pub outcome: Outcome,
}

/// A group's state at the tip of its log, with the undo of what is not decided.
#[derive(Debug)]
pub enum Machine {
    /// A partition's data.
    Shard(Box<Shard>),
    /// The directory.
    Directory(Directory),
}

/// Takes back one executed batch.
#[derive(Clone, Debug)]
pub enum Mark {
    /// Of a shard.
    Shard(Arc<ShardMark>),
    /// Of the directory: the state before.
    Directory(Arc<DirectoryState>),
}

impl Answer {
    /// Bytes that it holds until it is given out.
    pub fn bytes(&self) -> usize {
        if let Outcome::Pack(answer) = &self.outcome { answer.len() } else { 0 }
    }
}

impl Mark {
    /// What executing the batch cost, in operations on a tree.
    pub fn work(&self) -> u64 {
        match self {
            Mark::Shard(mark) => mark.work(),
            Mark::Directory(_) => 1,
        }
    }
}

impl Machine {
    /// Runs one batch at `instance`, in order; the answers of all its entries are appended.
    pub fn execute(&mut self, instance: Instance, batch: &Batch, answers: &mut Vec<Answer>) -> Mark {
        match self {
            Machine::Shard(shard) => Mark::Shard(Arc::new(shard.execute(instance, batch, answers))),
            Machine::Directory(directory) => Mark::Directory(directory.execute(instance, batch, answers)),
        }
    }

    /// Takes back the newest executed batch that was not taken back yet.
    pub fn undo(&mut self, mark: Mark) {
        match (self, mark) {
            (Machine::Shard(shard), Mark::Shard(mark)) => shard.undo(&mark),
            (Machine::Directory(directory), Mark::Directory(before)) => directory.undo(before),
            _ => unreachable!("a mark of another machine"),
        }
    }

    /// The oldest executed batch, which `mark` takes back, is decided: its undo is dropped. `next` is the batch after
    /// it.
    ///
    /// Splits of it are decided now: their children begin.
    pub fn confirm(&mut self, mark: &Mark, next: Option<&Mark>) {
        if let (Machine::Shard(shard), Mark::Shard(mark)) = (self, mark) {
            let next = next.and_then(|next| match next {
                Mark::Shard(next) => Some(&**next),
                Mark::Directory(_) => None,
            });
            shard.confirm(mark, next);
        }
    }

    /// Children of splits that the batch made; they begin when it is decided.
    pub fn forks(mark: &Mark) -> &[Fork] {
        match mark {
            Mark::Shard(mark) => mark.forks(),
            Mark::Directory(_) => &[],
        }
    }

    /// Whether the batch moved a border: then somebody must act when it is decided.
    pub fn moves_borders(mark: &Mark) -> bool {
        match mark {
            Mark::Shard(mark) => mark.seals() || !mark.joins().is_empty() || !mark.forks().is_empty(),
            Mark::Directory(_) => false,
        }
    }

    /// Whether the batch sealed the partition.
    pub fn seals(mark: &Mark) -> bool {
        matches!(mark, Mark::Shard(mark) if mark.seals())
    }

    /// Versions of the changes by which the batch took neighbours in.
    pub fn joins(mark: &Mark) -> &[MapVersion] {
        match mark {
            Mark::Shard(mark) => mark.joins(),
            Mark::Directory(_) => &[],
        }
    }

    /// What the batch needs and is not here.
    pub fn awaits(mark: &Mark) -> Option<Awaited> {
        match mark {
            Mark::Shard(mark) => mark.awaits(),
            Mark::Directory(_) => None,
        }
    }

    /// Keeps what a neighbour leaves to this partition; `true` if it is news.
    pub fn inherit(&mut self, left: Inheritance) -> bool {
        match self {
            Machine::Shard(shard) => shard.inherit(left),
            Machine::Directory(_) => false,
        }
    }

    /// The last ticket placed in the partition.
    pub fn last_ticket(&self) -> Option<Ticket> {
        self.shard().and_then(Shard::last_ticket)
    }

    /// Says which replica holds this state: which parts of queries are its own to give.
    pub fn set_me(&mut self, me: ReplicaId) {
        if let Machine::Shard(shard) = self {
            shard.set_me(me);
        }
    }

    /// Says who gives parts of queries by itself, while the replica that holds this state leads.
    pub fn set_givers(&mut self, givers: Option<Box<[ReplicaId]>>) {
        if let Machine::Shard(shard) = self {
            shard.set_givers(givers);
        }
    }

    /// Moves the tickets that counted since the last call to the end of `placed`.
    pub fn take_placed(&mut self, placed: &mut Vec<Placed>) {
        if let Machine::Shard(shard) = self {
            shard.take_placed(placed);
        }
    }

    /// Takes the place of another state of the same group.
    pub fn follow(&mut self, before: &Machine) {
        if let (Machine::Shard(shard), Machine::Shard(before)) = (self, before) {
            shard.follow(before);
        }
    }

    /// A copy of everything.
    pub fn copy(&self) -> Machine {
        match self {
            Machine::Shard(shard) => Machine::Shard(Box::new(shard.copy())),
            Machine::Directory(directory) => Machine::Directory(directory.clone()),
        }
    }

    /// A copy for reading only, O(1): its sessions are empty.
    pub fn view(&self) -> Machine {
        match self {
            Machine::Shard(shard) => Machine::Shard(Box::new(shard.view())),
            Machine::Directory(directory) => Machine::Directory(directory.clone()),
        }
    }

    /// Takes a batch back in a copy made by [`Machine::view`].
    pub fn undo_view(&mut self, mark: &Mark) {
        match (self, mark) {
            (Machine::Shard(shard), Mark::Shard(mark)) => shard.undo_view(mark),
            (Machine::Directory(directory), Mark::Directory(before)) => directory.undo(Arc::clone(before)),
            _ => unreachable!("a mark of another machine"),
        }
    }

    /// Memory of what could take back the batches that `marks` are of: all that are executed and undecided. Of the
    /// directory it is a reference to its state before.
    pub fn undo_bytes<'m>(&self, marks: impl Iterator<Item = &'m Mark>) -> u64 {
        let of = |mark: &Mark| match mark {
            Mark::Shard(mark) => mark.bytes(),
            Mark::Directory(_) => size_of::<Mark>() as u64,
        };
        self.shard().map_or(0, Shard::undo_bytes) + marks.map(of).sum::<u64>()
    }

    /// Drops all undo: this copy of the state will not be taken back.
    pub fn forget_undo(&mut self) {
        if let Machine::Shard(shard) = self {
            shard.forget_undo();
        }
    }

    /// A digest of the whole replicated state, equal on all replicas at equal instances.
    pub fn digest(&self) -> u64 {
        match self {
            Machine::Shard(shard) => shard.digest(),
            Machine::Directory(directory) => directory.digest(),
        }
    }

    /// See [`coppice_btree::Tree::settle`]. The directory has no tree.
    pub fn settle(&mut self, from: &[u8], nodes: usize) -> SettleProgress {
        match self {
            Machine::Shard(shard) => shard.settle(from, nodes),
            Machine::Directory(_) => SettleProgress::default(),
        }
    }

    /// The shard, if this is one.
    pub fn shard(&self) -> Option<&Shard> {
        match self {
            Machine::Shard(shard) => Some(shard),
            Machine::Directory(_) => None,
        }
    }

    /// The directory, if this is it.
    pub fn directory(&self) -> Option<&Directory> {
        match self {
            Machine::Directory(directory) => Some(directory),
            Machine::Shard(_) => None,
        }
    }
}
