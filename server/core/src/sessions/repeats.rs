//! Answers to the repeated numbers of one pack, found in one walk over what a session keeps.
//!
//! A client repeats a pack as it sent it, so its numbers mostly stand one after the other in one [`Answers`]: finding
//! the next one costs one step. A pack that jumps between answers costs more, and [`Repeats::work`] counts it.

use std::collections::vec_deque;

use coppice_client::wire::SessionId;
use coppice_client::wire::reply::result_bytes;

use super::{Answers, CommandLookup, Row, Sessions};

/// Steps of a search that count as one unit of work.
const STEPS_PER_WORK: u64 = 16;

/// What one session knows of numbers that are asked for one after the other.
pub struct Repeats<'s> {
    row: Option<&'s Row>,
    cursor: Option<Cursor<'s>>,
    steps: u64,
}

/// A place in one [`Answers`].
struct Cursor<'s> {
    answers: &'s Answers,
    /// Index of the result, and where it begins.
    at: usize,
    start: usize,
}

impl<'s> Cursor<'s> {
    fn begin(answers: &'s Answers) -> Cursor<'s> {
        Cursor { answers, at: 0, start: 0 }
    }

    /// Goes on to the result with this index, which is not before the present one.
    fn advance(&mut self, at: usize, steps: &mut u64) -> Option<()> {
        while self.at < at {
            self.start += result_bytes(self.answers.results.get(self.start..)?).ok()?;
            self.at += 1;
            *steps += 1;
        }
        Some(())
    }

    fn known(&self) -> Option<CommandLookup<'s>> {
        let Answers { partition, instance, indexes, results, .. } = self.answers;
        let rest = results.get(self.start..)?;
        let result = rest.get(..result_bytes(rest).ok()?)?;
        let index = indexes.get(self.at)? as u32;
        Some(CommandLookup::Answered { partition: *partition, instance: *instance, index, result })
    }
}

impl Sessions {
    /// What the table knows of numbers of `session`, which are asked for one after the other.
    pub fn repeats(&self, session: SessionId) -> Repeats<'_> {
        Repeats { row: self.rows.get(&session), cursor: None, steps: 0 }
    }
}

impl<'s> Repeats<'s> {
    /// What the table knows of `number`. The session must be open; an absent one answers [`CommandLookup::Forgotten`].
    pub fn find(&mut self, number: u64) -> CommandLookup<'s> {
        let Some(row) = self.row else { return CommandLookup::Forgotten };
        self.steps += 1;
        if number < row.lowest_unacknowledged && !mutant!(acked_executes) {
            return CommandLookup::Acknowledged;
        }
        if number > row.highest {
            return CommandLookup::New;
        }
        match self.seek(row, number) {
            Some(known) => known,
            None if number <= row.forgotten_upto || mutant!(highest_only) => CommandLookup::Forgotten,
            None => CommandLookup::New,
        }
    }

    /// Units of work that the answers so far took.
    pub fn work(&self) -> u64 {
        self.steps / STEPS_PER_WORK
    }

    fn seek(&mut self, row: &'s Row, number: u64) -> Option<CommandLookup<'s>> {
        let here = self.cursor.as_ref().and_then(|cursor| cursor.answers.numbers.index_of(number));
        if let (Some(at), Some(cursor)) = (here, &mut self.cursor)
            && at >= cursor.at
        {
            cursor.advance(at, &mut self.steps)?;
            return cursor.known();
        }
        let mut kept: vec_deque::Iter<'s, Answers> = row.answers.range((row.dropped - row.freed) as usize..);
        let (answers, at) = kept.find_map(|answers| {
            self.steps += 1;
            Some((answers, answers.numbers.index_of(number)?))
        })?;
        let mut cursor = Cursor::begin(answers);
        cursor.advance(at, &mut self.steps)?;
        let known = cursor.known();
        self.cursor = Some(cursor);
        known
    }
}
