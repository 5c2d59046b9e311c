//! The requests of a connection that are under way: their answers leave in the order in which they came.
//!
//! Requests of different keys are under way together; those of one key wait for each other, unless they share a
//! command. Writes of one partition that are ready at the same time share one, as far as its bounds allow: a pipeline
//! of writes costs one place in the log. Reads of one key that are ready
//! at the same time share one too. If a shared command certainly did nothing, for a reason that may be of one of them,
//! each is asked again alone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::BytesMut;
use coppice_btree::{Edit, Update};
use coppice_client::command::{Command, Operation, Output};
use coppice_client::error::{Error, Reason, Result};
use coppice_client::map::PartitionMap;
use coppice_client::{OpResult, Value};

use super::errors;
use super::plan::{Work, results};
use super::reply::{Protocol, Reply};

/// Operations that share a command, and their bytes.
const SHARED_OPERATIONS_MAX: usize = 128;
const SHARED_BYTES_MAX: usize = 32 << 10;

/// Requests that wait for others and are passed over in one look.
const PASSED_OVER_MAX: usize = 128;

/// What a value is expected to take before one has come, in bytes.
const EXPECTED_BYTES: usize = 64 << 10;

/// Values asked for and not here: nobody knows how large they are.
const READS_MAX: usize = 64;

/// Bytes of answers that are written before the client has taken some.
const WRITTEN_BYTES_MAX: usize = 1 << 20;

/// What the cluster is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// Names it when its answer comes.
    pub call: u64,
    /// A get or a look is served as a read.
    pub command: Command,
    /// It gets or looks at keys as of one moment, wherever they lie.
    pub reads_anywhere: bool,
}

#[derive(Debug)]
enum State {
    /// Not asked yet.
    Waiting(Work),
    /// Asked.
    Asked(Work),
    Done(Reply),
}

#[derive(Debug)]
struct Slot {
    state: State,
    /// Bytes of the request; done: of the answer.
    bytes: usize,
    /// It changes nothing.
    reads: bool,
    /// Shares no command.
    alone: bool,
}

/// Requests under way that use a key.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    readers: u32,
    writers: u32,
    /// The call of the writers.
    call: u64,
}

/// What was asked at once.
#[derive(Debug)]
struct Call {
    slots: Vec<u64>,
    /// Each of them asks for all of the results; else each has its own.
    is_same: bool,
}

/// A command to which writes of one partition are yet added.
struct Shared {
    partition: usize,
    call: u64,
    operations: usize,
    bytes: usize,
    slots: Vec<u64>,
}

/// See the module.
#[derive(Debug)]
pub struct Pipeline {
    slots: VecDeque<Slot>,
    /// Number of the first of `slots`.
    first: u64,
    /// The slots of each call.
    calls: BTreeMap<u64, Call>,
    next_call: u64,
    uses: BTreeMap<Value, Use>,
    /// Bytes of `slots`.
    bytes: usize,
    waiting: usize,
    /// Values asked for.
    reads: usize,
    /// What a value is expected to take: that of the largest that came lately.
    expected: usize,
}

impl Default for Pipeline {
    fn default() -> Pipeline {
        Pipeline {
            slots: VecDeque::new(),
            first: 0,
            calls: BTreeMap::new(),
            next_call: 0,
            uses: BTreeMap::new(),
            bytes: 0,
            waiting: 0,
            reads: 0,
            expected: EXPECTED_BYTES,
        }
    }
}

impl Pipeline {
    /// Requests under way.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Bytes of requests and answers, and what the values asked for are expected to take.
    pub fn bytes(&self) -> usize {
        self.bytes + self.reads * self.expected
    }

    /// Whether an answer waits only to be written.
    pub fn is_ready(&self) -> bool {
        matches!(self.slots.front(), Some(Slot { state: State::Done(_), .. }))
    }

    /// A number for a question that is asked beside the pipeline.
    pub fn draw_call(&mut self) -> u64 {
        self.next_call += 1;
        self.next_call
    }

    /// An answer that needs nothing, in its turn.
    pub fn reply(&mut self, reply: Reply) {
        let bytes = reply.bytes();
        self.bytes += bytes;
        self.slots.push_back(Slot { state: State::Done(reply), bytes, reads: true, alone: false });
    }

    /// A request that the cluster is asked.
    pub fn push(&mut self, work: Work) {
        let (bytes, reads) = (work.bytes(), work.is_read());
        self.bytes += bytes;
        self.waiting += 1;
        self.slots.push_back(Slot { state: State::Waiting(work), bytes, reads, alone: false });
    }

    /// Asks what is ready, as far as there is room for so many bytes of values.
    pub fn dispatch(&mut self, map: &PartitionMap, room: usize, asks: &mut Vec<Ask>) {
        if self.waiting == 0 {
            return;
        }
        let (mut blocked, mut passed_over) = (BTreeSet::<Value>::new(), 0);
        let (mut shared, mut reads) = (Vec::<Shared>::new(), BTreeMap::<(Value, bool), u64>::new());
        let mut anywhere = BTreeSet::new();
        let before = self.next_call;
        let reads_max = READS_MAX.min(self.reads + room / self.expected);
        let Pipeline { slots, first, calls, next_call, uses, waiting, reads: under_way, .. } = self;
        for (number, slot) in (*first..).zip(slots) {
            let State::Waiting(work) = &slot.state else { continue };
            let partition = match partition_of(map, work) {
                _ if work.reads_anywhere() => None,
                Ok(partition) => partition,
                Err(reply) => {
                    // Its bytes stay those of the request.
                    slot.state = State::Done(reply);
                    *waiting -= 1;
                    continue;
                }
            };
            let values = work.values();
            // The answer that all others wait for is asked for in any case.
            let fits = values == 0 || number == *first || *under_way + values <= reads_max;
            let read = slot.reads;
            let shares = !slot.alone && !read && work.answers_little();
            let open = partition.and_then(|at| shared.iter_mut().find(|open| open.partition == at));
            let open = open.filter(|open| {
                shares
                    && open.operations + work.operations.len() <= SHARED_OPERATIONS_MAX
                    && open.bytes + slot.bytes <= SHARED_BYTES_MAX
            });
            let joins = open.as_ref().map(|open| open.call);
            let ready = fits
                && work.keys().all(|key| {
                    let free = uses.get(key).is_none_or(|used| match read {
                        true => used.writers == 0,
                        false => used.readers == 0 && (used.writers == 0 || joins == Some(used.call)),
                    });
                    free && !blocked.contains(key)
                });
            if !ready {
                blocked.extend(work.keys().cloned());
                passed_over += 1;
                if passed_over == PASSED_OVER_MAX {
                    break;
                }
                continue;
            }
            *waiting -= 1;
            *under_way += values;
            let read_of_one = work.read_of_one();
            let same = read_of_one.as_ref().and_then(|read| reads.get(read)).copied();
            let call = joins.or(same).unwrap_or_else(|| {
                *next_call += 1;
                *next_call
            });
            for key in work.keys() {
                let used = uses.entry(key.clone()).or_default();
                if read {
                    used.readers += 1;
                } else {
                    used.writers += 1;
                    used.call = call;
                }
            }
            match (open, partition, same.and_then(|call| calls.get_mut(&call))) {
                (Some(open), ..) => {
                    open.operations += work.operations.len();
                    open.bytes += slot.bytes;
                    open.slots.push(number);
                }
                (None, Some(partition), _) if shares => {
                    // One that is full gives its place to this one.
                    if let Some(at) = shared.iter().position(|open| open.partition == partition) {
                        let full = shared.swap_remove(at);
                        calls.insert(full.call, Call { slots: full.slots, is_same: false });
                    }
                    let (operations, bytes) = (work.operations.len(), slot.bytes);
                    shared.push(Shared { partition, call, operations, bytes, slots: vec![number] });
                }
                (_, _, Some(same)) => same.slots.push(number),
                _ => {
                    anywhere.extend(work.reads_anywhere().then_some(call));
                    reads.extend(read_of_one.map(|read| (read, call)));
                    calls.insert(call, Call { slots: vec![number], is_same: true });
                }
            }
            let State::Waiting(work) = std::mem::replace(&mut slot.state, State::Done(Reply::Nil)) else { continue };
            slot.state = State::Asked(work);
        }
        calls.extend(shared.into_iter().map(|open| (open.call, Call { slots: open.slots, is_same: false })));
        let asked = self.calls.range(before + 1..);
        asks.extend(asked.map(|(&number, call)| Ask {
            call: number,
            command: self.command(call),
            reads_anywhere: anywhere.contains(&number),
        }));
    }

    /// The command of a call.
    fn command(&self, call: &Call) -> Command {
        let all = if call.is_same { &call.slots[..1] } else { &call.slots[..] };
        let mut works = all.iter().filter_map(|number| self.asked(*number)).peekable();
        let Some(first) = works.next() else { return Command::Many(Box::default()) };
        if works.peek().is_none() {
            return first.clone().command();
        }
        let operations = first.operations.iter().chain(works.flat_map(|work| &work.operations)).cloned();
        let operations: Vec<Operation> = operations.collect();
        // A put answers the value before it, which nobody reads here: large ones would leave no room for other answers.
        let only_puts = operations.iter().all(|operation| matches!(operation, Operation::Put { .. }));
        let silent = |operation| match operation {
            Operation::Put { key, value } => Operation::update(key, Update::new(Edit::Set(&value))),
            other => other,
        };
        Command::Many(if only_puts { operations.into() } else { operations.into_iter().map(silent).collect() })
    }

    /// The work of a slot, if it is a part of its command.
    fn asked(&self, number: u64) -> Option<&Work> {
        match self.slots.get((number - self.first) as usize)? {
            Slot { state: State::Asked(work), .. } => Some(work),
            _ => None,
        }
    }

    /// Takes in how a call ended. `false`: it is none of this pipeline.
    pub fn answered(&mut self, call: u64, outcome: Result<Output>, map: &PartitionMap, now: u64) -> bool {
        let Some(Call { slots: numbers, is_same }) = self.calls.remove(&call) else { return false };
        let retry = numbers.len() > 1 && !is_same && outcome.as_ref().is_err_and(may_be_of_one);
        let unmet = matches!(outcome, Ok(Output::Unmet(_)));
        let (mut rest, error) = match outcome {
            Ok(output) => (results(output).map(Vec::into_iter), None),
            Err(error) => (None, Some(error)),
        };
        for number in numbers {
            let Some(slot) = self.slots.get_mut((number - self.first) as usize) else { continue };
            let State::Asked(work) = std::mem::replace(&mut slot.state, State::Done(Reply::Nil)) else { continue };
            let read = slot.reads;
            self.reads -= work.values();
            for key in work.keys() {
                if let Some(used) = self.uses.get_mut(key) {
                    let count = if read { &mut used.readers } else { &mut used.writers };
                    *count -= 1;
                    if used.readers + used.writers == 0 {
                        self.uses.remove(key);
                    }
                }
            }
            if retry {
                slot.alone = true;
                slot.state = State::Waiting(work);
                self.waiting += 1;
                continue;
            }
            let values = work.values();
            let reply = match (&error, &mut rest) {
                (Some(error), _) => errors::reply(error, work.keys(), map),
                (None, Some(rest)) if is_same => work.answer.reply(rest.as_slice(), now),
                (None, Some(rest)) => {
                    let own: Vec<OpResult> = rest.take(work.operations.len()).collect();
                    work.answer.reply(&own, now)
                }
                (None, None) if unmet => work.answer.unmet(),
                (None, None) => work.answer.omitted(),
            };
            let bytes = reply.bytes();
            if let Some(each) = bytes.checked_div(values) {
                self.expected = each.max(self.expected - self.expected / 8).max(1);
            }
            self.bytes = self.bytes - slot.bytes + bytes;
            (slot.state, slot.bytes) = (State::Done(reply), bytes);
        }
        true
    }

    /// Writes the answers whose turn it is, until enough is written; `counted` hears of each whether it is an error.
    pub fn write(&mut self, protocol: Protocol, out: &mut BytesMut, mut counted: impl FnMut(&Reply)) {
        while let Some(Slot { state: State::Done(reply), bytes, .. }) = self.slots.front()
            && out.len() < WRITTEN_BYTES_MAX
        {
            reply.encode(protocol, out);
            counted(reply);
            self.bytes -= bytes;
            self.slots.pop_front();
            self.first += 1;
        }
    }
}

/// Whether a command that certainly did nothing may have been refused for one of those that share it.
fn may_be_of_one(error: &Error) -> bool {
    matches!(
        error.reason(),
        Some(Reason::Full(_) | Reason::TooLarge(_) | Reason::SpansPartitions | Reason::Denied(_) | Reason::Invalid)
    )
}

/// The place in the map of the partition of all keys; none: the map does not say.
fn partition_of(map: &PartitionMap, work: &Work) -> std::result::Result<Option<usize>, Reply> {
    let mut keys = work.keys();
    let Some(first) = keys.next() else { return Ok(None) };
    let Some(partition) = map.position(first) else { return Ok(None) };
    let inside = |key: &Value| map.partitions[partition].contains(key);
    if keys.all(inside) { Ok(Some(partition)) } else { Err(errors::crosses(work.keys(), map)) }
}
