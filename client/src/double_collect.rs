//! Several partitions read as of one moment without a ticket: the double collect (protocol.md 4.6). Each part is read;
//! when all have been, and not before, each is asked again, of the same replica, whether anything of what it gave has
//! changed since. If nothing has, all parts held when the last of them was first read (protocol.md 5.1).
//!
//! Pure, and the same for both who collect: a client, from several nodes (`session/collects.rs`), and a node, from its
//! own replicas (in `coppice-core`). They ask, and say here what was answered; a [`Verdict`] says what follows.
//!
//! It costs two reads of each partition, one of them confirmed, and nothing durable, where a ticket costs an entry in
//! each log and the coordinator's confirmation. It promises no end: where others write what it reads again and again,
//! it never holds.

#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::ids::{Position, Version};

/// What was read of a part.
#[derive(Clone, Debug)]
pub struct PartRead<T> {
    /// Named to the replica that was read, to be told whether anything has changed since.
    pub version: Version,
    /// Where it was read, or found unchanged since.
    pub position: Position,
    /// What was read.
    pub data: T,
}

/// What follows from an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Other answers are missing.
    Incomplete,
    /// These parts are to be validated.
    Validate(Range<usize>),
    /// All parts held at one moment: [`DoubleCollect::into_parts`].
    OneMoment,
    /// Something has changed, and all of it is to be read once more. Answers to the first reading are not for it: the
    /// caller keeps them away.
    ReadAgain,
    /// Something has changed: it comes to nothing.
    Changed,
}

/// A range over several partitions that is read in this way.
#[derive(Clone, Debug)]
pub struct DoubleCollect<T> {
    /// In the caller's order.
    parts: Vec<Option<PartRead<T>>>,
    /// Parts without a reading.
    unread: usize,
    /// Parts that belong to the result: the first ones, up to one that reached a limit.
    counted: usize,
    /// Parts that were found unchanged since they were read.
    validated: Vec<bool>,
    /// How many times more all of it is read if something has changed.
    rereads: u32,
}

impl<T> DoubleCollect<T> {
    /// So many parts, none of them read. Where something changes meanwhile, all is read again, `rereads` times at most:
    /// a replica that lagged behind its leader has come as far by then.
    pub fn new(parts: usize, rereads: u32) -> DoubleCollect<T> {
        let empty = std::iter::repeat_with(|| None).take(parts).collect();
        DoubleCollect { parts: empty, unread: parts, counted: parts, validated: vec![false; parts], rereads }
    }

    /// How many parts there are, whether or not they belong to the result.
    pub fn count(&self) -> usize {
        self.parts.len()
    }

    /// How many parts belong to the result, from the first on.
    pub fn counted(&self) -> usize {
        self.counted
    }

    /// What was read of a part.
    pub fn read(&self, place: usize) -> Option<&PartRead<T>> {
        self.parts.get(place)?.as_ref()
    }

    /// What was read of each part, in order.
    pub fn reads(&self) -> impl Iterator<Item = Option<&PartRead<T>>> {
        self.parts.iter().map(Option::as_ref)
    }

    /// A limit is reached within the first `parts` parts: what lies behind them belongs to another page, and is not
    /// validated.
    pub fn limit_to(&mut self, parts: usize) {
        self.counted = self.counted.min(parts);
    }

    /// A part has been read.
    pub fn on_read(&mut self, place: usize, read: PartRead<T>) -> Verdict {
        let Some(part) = self.parts.get_mut(place).filter(|part| part.is_none()) else { return Verdict::Incomplete };
        *part = Some(read);
        self.unread -= 1;
        if mutant!(validates_early) {
            return Verdict::Validate(place..place + 1);
        }
        match self.unread {
            0 if mutant!(collects_once) => Verdict::OneMoment,
            // None is validated before all are read.
            0 => Verdict::Validate(0..self.counted),
            _ => Verdict::Incomplete,
        }
    }

    /// Nothing of a part has changed since it was read, as of this position.
    pub fn on_unchanged(&mut self, place: usize, position: Position) -> Verdict {
        let Some(Some(read)) = self.parts.get_mut(place) else { return Verdict::Incomplete };
        read.position = position;
        self.validated[place] = true;
        let all = self.validated[..self.counted].iter().all(|&validated| validated);
        if all { Verdict::OneMoment } else { Verdict::Incomplete }
    }

    /// Something of a part has changed since it was read.
    pub fn on_changed(&mut self) -> Verdict {
        if self.rereads == 0 {
            return Verdict::Changed;
        }
        *self = DoubleCollect::new(self.parts.len(), self.rereads - 1);
        Verdict::ReadAgain
    }

    /// What was read, of the parts that belong to the result.
    pub fn into_parts(self) -> impl DoubleEndedIterator<Item = PartRead<T>> {
        let mut parts = self.parts;
        parts.truncate(self.counted);
        parts.into_iter().flatten()
    }
}
