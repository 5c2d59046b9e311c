//! One command of a pack: answered from the table, from results that are there, or run on the tree.

use std::slice;

use coppice_btree::{LoadError, Op, OpResult, Tree, Undo, UpdateOutcome};
use coppice_client::wire::reply::PackReply;
use coppice_client::wire::{Command, CommandRefusal, Position};
use coppice_ordering::Instance;

use super::expiry::Expiry;
use crate::sessions::{CommandLookup, Repeats};

/// Answers a number that is not above all that were executed before, with `room` bytes at most; `false` if it is new
/// all the same.
pub(super) fn repeat(
    repeats: &mut Repeats<'_>,
    number: u64,
    now: Instance,
    room: usize,
    reply: &mut PackReply<'_>,
) -> bool {
    match repeats.find(number) {
        CommandLookup::New => return false,
        // Two copies in flight at once: when the second was proposed, the first was not in the table (SE1).
        CommandLookup::Answered { instance, .. } if mutant!(dedupe_at_propose) && now.0 - instance < 16 => {
            return false;
        }
        // Never computed again: the state has moved on since (hazards.md SE7).
        CommandLookup::Answered { .. } if mutant!(repeat_recomputed) => return false,
        CommandLookup::Answered { result, .. } if result.len() > room => reply.refused(CommandRefusal::Later),
        CommandLookup::Answered { partition, instance, index, result } => {
            reply.repeated(Position { partition, instance, index }, result);
        }
        CommandLookup::Acknowledged | CommandLookup::Forgotten => reply.refused(CommandRefusal::Forgotten),
    }
    true
}

/// Whether a guard holds.
fn is_done(result: &OpResult) -> bool {
    matches!(result, OpResult::Update { outcome: UpdateOutcome::Done, .. })
}

/// Bytes of the value in a result.
pub(super) fn value_bytes(result: &OpResult) -> usize {
    result.value().map_or(0, |value| value.len())
}

/// Answers one command whose operations have run.
pub(super) fn take_ready(ready: &mut slice::Iter<'_, OpResult>, command: &Command<'_>, reply: &mut PackReply<'_>) {
    match command {
        Command::Many(operations) => {
            let (mine, rest) = ready.as_slice().split_at(operations.len().min(ready.len()));
            *ready = rest.iter();
            reply.many(mine.iter());
        }
        // Packs with a bulk load or guards are never gathered.
        Command::Op(_) | Command::Load(_) => {
            if let Some(result) = ready.next() {
                reply.result(result);
            }
        }
    }
}

/// Executes one command that is new and inside the partition.
pub(super) fn run(
    tree: &mut Tree,
    undo: &mut Undo,
    expiry: &mut Expiry,
    command: &Command<'_>,
    reply: &mut PackReply<'_>,
    many: &mut Vec<OpResult>,
) {
    let mut execute = |op: Op<'_>| {
        let mut result = tree.execute(op, undo);
        if expiry.concerns(&op) {
            expiry.follow(&op, &mut result);
        }
        result
    };
    match command {
        Command::Op(op) => reply.result(&execute(*op)),
        Command::Many(operations) => {
            many.clear();
            for (at, op) in operations.iter().enumerate() {
                let result = execute(op);
                if at >= operations.guards() {
                    many.push(result);
                } else if !is_done(&result) && !mutant!(guard_ignored) {
                    return reply.unmet(at as u64);
                }
            }
            reply.many(many.iter());
        }
        Command::Load(pairs) => match tree.load(pairs.iter(), undo) {
            Ok(count) => reply.loaded(count),
            Err(LoadError::Present { index } | LoadError::NotSorted { index }) => reply.not_loaded(index),
        },
    }
}
