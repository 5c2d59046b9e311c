//! What a group's log runs on: a partition of the data, or the directory. Two machines, one enum.

pub mod directory;
pub mod entry;
pub mod partition;

use std::sync::Arc;

use bytes::Bytes;
use coppice_btree::SettleProgress;
use coppice_client::wire::{MapVersion, SessionId};
use coppice_ordering::{Batch, Instance, ReplicaId, Ticket};
use directory::{Directory, DirectoryReply, DirectoryState};
use partition::{AbsorbedState, AwaitedState, Fork, Partition, PartitionMark, PlacedTicket};

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

/// A group's state as last executed, with the undo of what is not decided.
#[derive(Debug)]
pub enum Machine {
    /// A partition's data.
    Partition(Box<Partition>),
    Directory(Directory),
}

/// Takes back one executed batch.
#[derive(Clone, Debug)]
pub enum Mark {
    Partition(Arc<PartitionMark>),
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
            Mark::Partition(mark) => mark.work(),
            Mark::Directory(_) => 1,
        }
    }

    /// Bytes that the batch wrote beyond what it carries, at most: they are kept until it is decided.
    pub fn written(&self) -> usize {
        match self {
            Mark::Partition(mark) => mark.written(),
            Mark::Directory(_) => 0,
        }
    }
}

impl Machine {
    /// Runs one batch at `instance`, in order; the answers of all its entries are appended.
    pub fn execute(&mut self, instance: Instance, batch: &Batch, answers: &mut Vec<Answer>) -> Mark {
        match self {
            Machine::Partition(partition) => Mark::Partition(Arc::new(partition.execute(instance, batch, answers))),
            Machine::Directory(directory) => Mark::Directory(directory.execute(instance, batch, answers)),
        }
    }

    /// Runs a batch that is decided, for a state that no replica runs on yet. `false`: somebody must act on what the
    /// batch does, or it needs a neighbour's state; then nothing is changed, and a replica has to execute it.
    pub fn roll_forward(&mut self, instance: Instance, batch: &Batch) -> bool {
        let Machine::Partition(partition) = self else { return false };
        if batch.as_configuration().is_some() {
            return false;
        }
        let mark = partition.execute(instance, batch, &mut Vec::new());
        if (mark.moves_boundaries() || mark.awaits().is_some()) && !mutant!(rolls_over_boundary) {
            partition.undo(&mark);
            partition.take_placed(&mut Vec::new());
            return false;
        }
        partition.confirm(&mark, None);
        // Whoever asked for parts asks again.
        partition.take_placed(&mut Vec::new());
        true
    }

    /// Takes back the newest executed batch that was not taken back yet.
    pub fn undo(&mut self, mark: Mark) {
        match (self, mark) {
            (Machine::Partition(partition), Mark::Partition(mark)) => partition.undo(&mark),
            (Machine::Directory(directory), Mark::Directory(before)) => directory.undo(before),
            _ => unreachable!("a mark of another machine"),
        }
    }

    /// The oldest executed batch, which `mark` takes back, is decided: its undo is dropped. `next` is the batch after
    /// it.
    ///
    /// Splits of it are decided now: their children begin.
    pub fn confirm(&mut self, mark: &Mark, next: Option<&Mark>) {
        if let (Machine::Partition(partition), Mark::Partition(mark)) = (self, mark) {
            let next = next.and_then(|next| match next {
                Mark::Partition(next) => Some(&**next),
                Mark::Directory(_) => None,
            });
            partition.confirm(mark, next);
        }
    }

    /// Children of splits that the batch made; they begin when it is decided.
    pub fn forks(mark: &Mark) -> &[Fork] {
        match mark {
            Mark::Partition(mark) => mark.forks(),
            Mark::Directory(_) => &[],
        }
    }

    /// Whether the batch moved a boundary: then somebody must act when it is decided.
    pub fn moves_boundaries(mark: &Mark) -> bool {
        match mark {
            Mark::Partition(mark) => mark.moves_boundaries(),
            Mark::Directory(_) => false,
        }
    }

    /// Whether the batch sealed the partition.
    pub fn seals(mark: &Mark) -> bool {
        matches!(mark, Mark::Partition(mark) if mark.seals())
    }

    /// Versions of the changes by which the batch took neighbours in.
    pub fn joins(mark: &Mark) -> &[MapVersion] {
        match mark {
            Mark::Partition(mark) => mark.joins(),
            Mark::Directory(_) => &[],
        }
    }

    /// What the batch needs and is not here.
    pub fn awaits(mark: &Mark) -> Option<AwaitedState> {
        match mark {
            Mark::Partition(mark) => mark.awaits(),
            Mark::Directory(_) => None,
        }
    }

    /// Keeps what a neighbour leaves to this partition; `true` if it is news.
    pub fn absorb(&mut self, left: AbsorbedState) -> bool {
        match self {
            Machine::Partition(partition) => partition.absorb(left),
            Machine::Directory(_) => false,
        }
    }

    /// The last ticket placed in the partition.
    pub fn last_ticket(&self) -> Option<Ticket> {
        self.partition().and_then(Partition::last_ticket)
    }

    /// Says which replica holds this state: which parts of queries are its own to give.
    pub fn set_me(&mut self, me: ReplicaId) {
        if let Machine::Partition(partition) = self {
            partition.set_me(me);
        }
    }

    /// Says who gives parts of queries by itself, while the replica that holds this state leads.
    pub fn set_responders(&mut self, responders: Option<Box<[ReplicaId]>>) {
        if let Machine::Partition(partition) = self {
            partition.set_responders(responders);
        }
    }

    /// Moves the tickets that counted since the last call to the end of `placed`.
    pub fn take_placed(&mut self, placed: &mut Vec<PlacedTicket>) {
        if let Machine::Partition(partition) = self {
            partition.take_placed(placed);
        }
    }

    /// Takes the place of another state of the same group.
    pub fn follow(&mut self, before: &Machine) {
        if let (Machine::Partition(partition), Machine::Partition(before)) = (self, before) {
            partition.follow(before);
        }
    }

    /// A copy of everything.
    pub fn copy(&self) -> Machine {
        match self {
            Machine::Partition(partition) => Machine::Partition(Box::new(partition.copy())),
            Machine::Directory(directory) => Machine::Directory(directory.clone()),
        }
    }

    /// A copy for reading only, O(1): its sessions are empty.
    pub fn view(&self) -> Machine {
        match self {
            Machine::Partition(partition) => Machine::Partition(Box::new(partition.view())),
            Machine::Directory(directory) => Machine::Directory(directory.clone()),
        }
    }

    /// Takes a batch back in a copy made by [`Machine::view`].
    pub fn undo_view(&mut self, mark: &Mark) {
        match (self, mark) {
            (Machine::Partition(partition), Mark::Partition(mark)) => partition.undo_view(mark),
            (Machine::Directory(directory), Mark::Directory(before)) => directory.undo(Arc::clone(before)),
            _ => unreachable!("a mark of another machine"),
        }
    }

    /// Memory of what could take back the batches that `marks` are of: all that are executed and undecided. Of the
    /// directory it is a reference to its state before.
    pub fn undo_bytes<'m>(&self, marks: impl Iterator<Item = &'m Mark>) -> u64 {
        let of = |mark: &Mark| match mark {
            Mark::Partition(mark) => mark.bytes(),
            Mark::Directory(_) => size_of::<Mark>() as u64,
        };
        self.partition().map_or(0, Partition::undo_bytes) + marks.map(of).sum::<u64>()
    }

    /// Drops all undo: this copy of the state will not be taken back.
    pub fn forget_undo(&mut self) {
        if let Machine::Partition(partition) = self {
            partition.forget_undo();
        }
    }

    /// A digest of the whole replicated state, equal on all replicas at equal instances.
    pub fn digest(&self) -> u64 {
        match self {
            Machine::Partition(partition) => partition.digest(),
            Machine::Directory(directory) => directory.digest(),
        }
    }

    /// See [`coppice_btree::Tree::settle`]. The directory has no tree.
    pub fn settle(&mut self, from: &[u8], nodes: usize) -> SettleProgress {
        match self {
            Machine::Partition(partition) => partition.settle(from, nodes),
            Machine::Directory(_) => SettleProgress::default(),
        }
    }

    /// The partition, if this is one.
    pub fn partition(&self) -> Option<&Partition> {
        match self {
            Machine::Partition(partition) => Some(partition),
            Machine::Directory(_) => None,
        }
    }

    /// The directory, if this is it.
    pub fn directory(&self) -> Option<&Directory> {
        match self {
            Machine::Directory(directory) => Some(directory),
            Machine::Partition(_) => None,
        }
    }
}
