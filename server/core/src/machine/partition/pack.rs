//! Executing the packs of a batch: repeated commands are answered from the session table, new ones run on the tree.
//!
//! Every replica executes what a leader proposed, so what a batch may cost is bounded here, alike at all of them: an
//! [`Allowance`] of bytes to answer with, and work per pack. What does not fit is refused with
//! [`CommandRefusal::Later`], and its client asks again.

use std::collections::BTreeMap;
use std::ops::Range;
use std::slice;

use bytes::Bytes;
use coppice_btree::{Edit, Op, OpResult, Returns, Update};
use coppice_client::wire::reply::{PackReply, REPLY_BYTES_MAX, RESULT_BYTES_MAX};
use coppice_client::wire::{Command, CommandRefusal, Pack, SessionId, VALUE_BYTES_MAX};
use coppice_ordering::{Commands, Instance};

use super::command::{repeat, run, take_ready, value_bytes};
use super::{Answer, Outcome, Partition, PartitionMark};
use crate::machine::entry::{self, Entry};
use crate::sessions::{Answers, Numbers};

/// Operations that go down the tree together, at most: enough to overlap their waiting for memory, few enough that what
/// was fetched for the last is still in the cache when its turn comes.
const GATHERED_OPS_MAX: usize = 512;

/// Bytes that the packs of one batch may answer with together, beyond what each may in any case. The command that
/// passes it is still answered: each replica writes at most so many and one longest result.
pub const BATCH_ANSWER_BYTES_MAX: usize = VALUE_BYTES_MAX;

/// A pack may answer with so many bytes for each of its own, whatever the others of its batch answer: what updates of
/// small values take.
const ANSWERED_PER_BYTE: usize = 4;

/// Bytes that cost as much as one operation on the tree: they are copied, summed, stored and framed, mostly in memory
/// that the system clears first.
const BYTES_PER_WORK: u64 = 256;

/// Results of at least so many bytes are kept as a part of the answer, if they are most of its buffer.
const SHARED_BYTES_MIN: usize = 64 << 10;

/// Bytes that the commands of one batch may write beyond what they carry: copies of what they make longer, each kept
/// until the batch is decided. What would pass it waits for another batch; what passes it alone is never executed.
const WRITTEN_BYTES_MAX: usize = 16 << 20;

/// The longest sum: a floating-point number written out.
const SUM_BYTES_MAX: usize = 400;

/// Work of finding repeated commands that one pack may cause; beyond, they are asked for again.
const REPEAT_WORK_MAX: u64 = 16_384;

/// What the packs of a batch may still answer with, and what they have written beyond what they carry.
pub(super) struct Allowance {
    left: usize,
    written: usize,
}

impl Allowance {
    fn new() -> Allowance {
        Allowance { left: BATCH_ANSWER_BYTES_MAX, written: 0 }
    }

    /// Whether a command may write so many bytes beyond what it carries.
    fn may_write(&self, bytes: usize) -> bool {
        self.written.saturating_add(bytes) <= WRITTEN_BYTES_MAX || mutant!(answer_unbounded)
    }

    /// What `pack` may answer with in any case.
    fn own(pack: &Pack<'_>) -> usize {
        ANSWERED_PER_BYTE * pack.bytes()
    }

    /// Bytes that a pack which has answered with so many may answer its next command with: without bound while
    /// something is left, so that no command waits for ever.
    fn room(&self, own: usize, answered: usize) -> usize {
        let all = own.saturating_add(self.left);
        match (self.left > 0 && answered < all) || mutant!(answer_unbounded) {
            true => usize::MAX,
            false => all.saturating_sub(answered),
        }
    }

    fn take(&mut self, own: usize, answered: usize) {
        self.left = self.left.saturating_sub(answered.saturating_sub(own));
    }
}

/// Packs of one batch whose commands are all new: their operations run together, then each pack is answered.
#[derive(Debug, Default)]
struct Gathered<'a> {
    /// With the index of its first command in the batch.
    packs: Vec<(u32, Pack<'a>)>,
    ops: Vec<Op<'a>>,
    /// Per session in `packs`, the number above which all are new.
    known_upto: BTreeMap<SessionId, u64>,
}

impl Partition {
    pub(super) fn execute_commands(
        &mut self,
        instance: Instance,
        commands: &Commands,
        mark: &mut PartitionMark,
        answers: &mut Vec<Answer>,
    ) {
        let mut index = 0;
        let mut gathered = Gathered::default();
        let mut allowance = Allowance::new();
        self.expiry.begin_batch();
        for part in commands.parts() {
            mark.work += part.len() as u64 / BYTES_PER_WORK;
            for entry in entry::entries(part) {
                let commands = if let Entry::Pack { pack, .. } = &entry { pack.count() } else { 1 };
                if let Entry::Pack { pack, owner, time } = entry {
                    if let Some(said) = time.filter(|_| !self.is_closed()) {
                        // What was gathered asks for the time before it.
                        self.run_gathered(instance, &mut gathered, &mut allowance, mark, answers);
                        self.expiry.advance(said);
                    }
                    if self.is_anothers(pack.session(), owner) {
                        self.run_gathered(instance, &mut gathered, &mut allowance, mark, answers);
                        answers.push(self.answer(instance, index, Outcome::SessionExpired));
                    } else if gathered.ops.len() >= GATHERED_OPS_MAX || !self.gather(index, &pack, &mut gathered) {
                        self.run_gathered(instance, &mut gathered, &mut allowance, mark, answers);
                        if !self.gather(index, &pack, &mut gathered) {
                            let repeats = mutant!(gate_skips_repeats) && self.repeats(&pack);
                            let outcome = self.execute_pack(instance, index, &pack, &mut allowance, mark, None);
                            // A sealed state changes no more: a neighbour takes it in as it is.
                            if !self.is_closed() || mutant!(sealed_is_relieved) {
                                self.sessions.relieve(pack.session(), &self.session_limits, &mut mark.sessions);
                            }
                            let mut answer = self.answer(instance, index, outcome);
                            if repeats {
                                answer.last_ticket = None;
                            }
                            answers.push(answer);
                        }
                    }
                } else {
                    self.run_gathered(instance, &mut gathered, &mut allowance, mark, answers);
                    let outcome = self.execute_entry(instance, index, &entry, mark);
                    mark.work += 1;
                    answers.push(self.answer(instance, index, outcome));
                }
                index += commands;
            }
        }
        self.run_gathered(instance, &mut gathered, &mut allowance, mark, answers);
        mark.written = allowance.written;
    }

    /// Whether another user opened the session: the names of sessions can be guessed, and the answers that one keeps
    /// are not for this user.
    fn is_anothers(&self, session: SessionId, owner: Option<u64>) -> bool {
        let opened = |owner| self.sessions.client(session).is_some_and(|client| client != owner);
        owner.is_some_and(opened) && !mutant!(sessions_are_anybodys)
    }

    /// Whether all of a pack was executed before.
    fn repeats(&self, pack: &Pack<'_>) -> bool {
        let known = self.sessions.known_upto(pack.session());
        pack.commands().all(|(number, _)| Some(number) <= known)
    }

    /// Takes the operations of a pack if every number in it is new, also beside the packs gathered before it, and each
    /// of its commands may run beside others.
    fn gather<'a>(&self, index: u32, pack: &Pack<'a>, gathered: &mut Gathered<'a>) -> bool {
        let Some(known) = self.sessions.known_upto(pack.session()).filter(|_| !self.is_closed()) else { return false };
        let mut last = gathered.known_upto.get(&pack.session()).map_or(known, |&gathered| gathered.max(known));
        let before = gathered.ops.len();
        for (number, command) in pack.commands() {
            // Numbers ascend inside a pack, so the first one decides.
            if number <= last || goes_alone(&command) {
                gathered.ops.truncate(before);
                return false;
            }
            last = number;
            if self.owns(&command) {
                match command {
                    Command::Op(op) => gathered.ops.push(op),
                    Command::Many(operations) => gathered.ops.extend(operations.iter()),
                    Command::Load(_) => {}
                }
            }
        }
        gathered.known_upto.insert(pack.session(), last);
        gathered.packs.push((index, *pack));
        true
    }

    /// Executes what was gathered, in its order.
    fn run_gathered(
        &mut self,
        instance: Instance,
        gathered: &mut Gathered<'_>,
        allowance: &mut Allowance,
        mark: &mut PartitionMark,
        answers: &mut Vec<Answer>,
    ) {
        if gathered.packs.is_empty() {
            return;
        }
        let mut results = std::mem::take(&mut self.scratch.results_of_ops);
        let before = self.undo.mark();
        self.tree.execute_batch(&gathered.ops, &mut results, &mut self.undo);
        mark.work += gathered.ops.len() as u64;
        gathered.known_upto.clear();
        let bytes: usize = results.iter().map(value_bytes).sum();
        let own: usize = gathered.packs.iter().map(|(_, pack)| Allowance::own(pack)).sum();
        let too_many = bytes >= REPLY_BYTES_MAX / 2 || bytes > own.saturating_add(allowance.left);
        let one_by_one = too_many && !mutant!(answer_unbounded);
        if one_by_one {
            // An answer may become too large, which is found out pack by pack.
            self.tree.undo_to(&mut self.undo, before);
        } else if !self.expiry.is_empty() || gathered.ops.iter().any(|op| self.expiry.concerns(op)) {
            for (op, result) in gathered.ops.iter().zip(&mut results) {
                self.expiry.follow(op, result);
            }
        }
        gathered.ops.clear();
        let mut ready = results.iter();
        let newest = gathered.packs.last().map(|(_, pack)| pack.session());
        for (index, pack) in gathered.packs.drain(..) {
            let ready = (!one_by_one).then_some(&mut ready);
            let outcome = self.execute_pack(instance, index, &pack, allowance, mark, ready);
            answers.push(self.answer(instance, index, outcome));
        }
        if let Some(newest) = newest {
            self.sessions.relieve(newest, &self.session_limits, &mut mark.sessions);
        }
        results.clear();
        self.scratch.results_of_ops = results;
    }

    /// Executes a pack, or answers one whose operations have run: `ready` holds their results.
    fn execute_pack(
        &mut self,
        instance: Instance,
        index: u32,
        pack: &Pack<'_>,
        allowance: &mut Allowance,
        mark: &mut PartitionMark,
        mut ready: Option<&mut slice::Iter<'_, OpResult>>,
    ) -> Outcome {
        let session = pack.session();
        if self.is_closed() {
            return Outcome::Closed;
        }
        if !self.sessions.contains(session) && mutant!(session_reopened) {
            self.sessions.open(session, 0, &self.session_limits, &mut mark.sessions);
        }
        let lowest = pack.lowest_unacknowledged();
        self.sessions.acknowledge(session, lowest, instance.0, &self.session_limits, &mut mark.sessions);
        let Some(known) = self.sessions.known_upto(session) else { return Outcome::SessionExpired };
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.numbers.clear();
        scratch.indexes.clear();
        scratch.stored.clear();
        let mut reply = PackReply::new(&mut scratch.reply, self.partition, instance.0, index);
        let refusal = CommandRefusal::WrongPartition { version: self.map_version };
        let own = Allowance::own(pack);
        let mut repeats = self.sessions.repeats(session);
        let mut spent = false;
        for (offset, (number, command)) in pack.commands().enumerate() {
            // At every replica alike, as the answers before it are.
            if ready.is_none() && (spent || reply.is_full() || repeats.work() > REPEAT_WORK_MAX) {
                reply.refused(CommandRefusal::Later);
                continue;
            }
            let room = if ready.is_none() { allowance.room(own, reply.bytes()) } else { usize::MAX };
            if ready.is_none() && number <= known && repeat(&mut repeats, number, instance, room, &mut reply) {
                continue;
            }
            // Checked here, where the log has decided the order, not where the command was routed (protocol.md 8).
            if !self.owns(&command) {
                reply.refused(refusal);
                if !mutant!(refusal_stored) {
                    continue;
                }
            } else if let Some(ready) = ready.as_deref_mut() {
                take_ready(ready, &command, &mut reply);
            } else if goes_alone(&command) && !allowance.may_write(self.written_bytes_max(&command)) {
                let never = self.written_bytes_max(&command) > WRITTEN_BYTES_MAX;
                spent |= !never;
                reply.refused(if never { CommandRefusal::TooLarge } else { CommandRefusal::Later });
                continue;
            } else if room < usize::MAX && self.answer_bytes_max(&command) > room {
                // Those behind it neither: their values are not even looked up.
                spent = true;
                reply.refused(CommandRefusal::Later);
                continue;
            } else {
                if goes_alone(&command) {
                    let written = self.written_bytes_max(&command);
                    mark.work += written as u64 / BYTES_PER_WORK;
                    allowance.written = allowance.written.saturating_add(written);
                }
                mark.work += u64::from(command.work()) / 4 + 1;
                let many = &mut scratch.many;
                run(&mut self.tree, &mut self.undo, &mut self.expiry, &command, &mut reply, many);
            }
            scratch.numbers.push(number);
            scratch.indexes.push(u64::from(index) + offset as u64);
            let (start, end) = (reply.bytes() - reply.last_result().len(), reply.bytes());
            match scratch.stored.last_mut() {
                Some(stored) if stored.end == start => stored.end = end,
                _ => scratch.stored.push(start..end),
            }
        }
        mark.work += repeats.work();
        let answer = reply.finish_split();
        allowance.take(own, answer.len());
        mark.work += answer.len() as u64 / BYTES_PER_WORK;
        if !scratch.numbers.is_empty() {
            let answers = Answers {
                partition: self.partition,
                instance: instance.0,
                numbers: Numbers::from_ascending(&scratch.numbers),
                indexes: Numbers::from_ascending(&scratch.indexes),
                results: kept(&answer, &scratch.stored, scratch.reply.capacity()),
            };
            self.sessions.store(session, answers, &self.session_limits, &mut mark.sessions);
            if mutant!(relieved_amid_packs) {
                self.sessions.relieve(session, &self.session_limits, &mut mark.sessions);
            }
        }
        self.scratch = scratch;
        Outcome::Pack(answer)
    }

    /// Bytes that a command may answer with in the present state, or more. It decides what runs, so of the operations
    /// of feature level 1 it says what version 0.1 says.
    fn answer_bytes_max(&self, command: &Command<'_>) -> usize {
        let present = |key: &[u8]| self.tree.get(key).map_or(0, <[u8]>::len);
        match command {
            Command::Op(op) => answer_bytes(op, present(op.key())),
            Command::Many(operations) => {
                // What an operation finds, those before it may have written, or moved there.
                let mut written = 0_usize;
                let bytes = operations.iter().map(|op| {
                    let found = present(op.key()).max(written);
                    written = written.max(bytes_after(&op, found));
                    answer_bytes(&op, found)
                });
                bytes.fold(0, usize::saturating_add).min(RESULT_BYTES_MAX)
            }
            Command::Load(_) => 0,
        }
    }

    /// Bytes that a command may write beyond what it carries, or more: copies of values that it makes longer, each of
    /// which is kept until the command is decided.
    fn written_bytes_max(&self, command: &Command<'_>) -> usize {
        let present = |key: &[u8]| self.tree.get(key).map_or(0, <[u8]>::len);
        match command {
            Command::Op(op) if writes_more(op) => bytes_after(op, present(op.key())),
            Command::Many(operations) => {
                // How long the value of each key may be by then, whether what came before did anything or not.
                let mut lengths: BTreeMap<&[u8], usize> = BTreeMap::new();
                let bytes = operations.iter().map(|op| {
                    let before = |key| lengths.get(key).copied().unwrap_or_else(|| present(key));
                    let (to, found) = (op.other_key().unwrap_or(op.key()), before(op.key()));
                    let after = bytes_after(&op, found);
                    let longest = after.max(before(to));
                    lengths.insert(to, longest);
                    if writes_more(&op) { after } else { 0 }
                });
                bytes.fold(0, usize::saturating_add)
            }
            Command::Op(_) | Command::Load(_) => 0,
        }
    }
}

/// Whether a command does not run beside others before they are answered: a bulk load; what runs or does not after a
/// look at its guards; what may write more than it carries, and is bounded first.
fn goes_alone(command: &Command<'_>) -> bool {
    match command {
        Command::Op(op) => writes_more(op),
        Command::Many(operations) => operations.guards() > 0 || operations.iter().any(|op| writes_more(&op)),
        Command::Load(_) => true,
    }
}

/// The longest value that an operation may leave where it found one of so many bytes, if it writes.
fn bytes_after(op: &Op<'_>, found: usize) -> usize {
    match op {
        Op::Update { terms, .. } => {
            let more = Update::read(terms).map_or(0, |update| match update.edit {
                Edit::Set(value) => value.len(),
                Edit::Add(_) | Edit::AddFloat(_) => SUM_BYTES_MAX,
                edit => edit.grows_by().unwrap_or(0),
            });
            found.saturating_add(more).min(VALUE_BYTES_MAX)
        }
        Op::Move { .. } => found,
        _ => op.value().map_or(0, <[u8]>::len),
    }
}

/// Bytes that an operation may answer where it finds a value of so many.
fn answer_bytes(op: &Op<'_>, found: usize) -> usize {
    let returns = |terms| Update::read(terms).map_or(Returns::Nothing, |update| update.returns);
    match op {
        Op::Update { terms, .. } if returns(terms) == Returns::Nothing => 0,
        Op::Update { .. } => bytes_after(op, found),
        Op::Look { .. } | Op::Move { .. } => 0,
        _ => found,
    }
}

/// Whether an operation may write a value that is longer than what it carries, up to the sum of two numbers.
#[inline]
fn writes_more(op: &Op<'_>) -> bool {
    match op {
        Op::Update { terms, .. } => Update::read(terms).is_some_and(|update| update.edit.grows_by().is_some()),
        Op::Move { .. } => true,
        _ => false,
    }
}

/// These parts of an answer, copied unless they are large: a slice keeps the whole buffer alive, of which `spare` bytes
/// are behind the answer, for as long as the client is silent.
fn kept(answer: &Bytes, parts: &[Range<usize>], spare: usize) -> Bytes {
    match parts {
        [part] if part.len() >= SHARED_BYTES_MIN.max((answer.len() + spare) / 4 * 3) => answer.slice(part.clone()),
        [part] => Bytes::copy_from_slice(&answer[part.clone()]),
        parts => parts.iter().map(|part| &answer[part.clone()]).collect::<Vec<_>>().concat().into(),
    }
}
