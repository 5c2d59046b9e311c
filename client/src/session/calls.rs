//! The calls that wait: a slab with generations, so that a late answer never meets a newer call in the same place.

use coppice_btree::Value;

use super::collects::RangeCollect;
use super::comparison::Comparison;
use super::sessions::SessionKey;
use crate::command::{Command, RangeCall, ReadMode};
use crate::time::Time;
use crate::wire::PartitionId;

/// What a caller wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A write, executed at most once.
    Command(Command),
    /// A write that was begun before, under this number of this session.
    Resume(Command, crate::resume::ResumeToken),
    /// The value of a key.
    Get {
        key: Value,
        /// How it is served.
        mode: ReadMode,
    },
    /// What is known of a key without its value.
    Look {
        key: Value,
        /// How it is served.
        mode: ReadMode,
    },
    /// A range: inside one partition, or across several unless it is stale.
    Range(RangeCall),
    /// The values of keys as of one moment, whatever partitions they lie in: those that are there, each in a part.
    Keys {
        /// Without duplicates, at most [`KEYS_MAX`](super::KEYS_MAX).
        keys: Box<[Value]>,
        /// Without limits; of the bounds none counts.
        range: RangeCall,
    },
    /// That a map is known: answered as soon as it is, with nothing.
    Map,
}

impl Request {
    /// The key that decides where it goes. A range from the high end is at home where its low end is, all the same.
    pub(super) fn routing_key(&self) -> &[u8] {
        match self {
            Request::Command(command) | Request::Resume(command, _) => command.first_key().unwrap_or(&[]),
            Request::Get { key, .. } | Request::Look { key, .. } => key,
            Request::Range(range) => &range.low,
            Request::Keys { keys, .. } => keys.first().map_or(&[], |key| key),
            Request::Map => &[],
        }
    }

    pub(super) fn command(&self) -> Option<&Command> {
        match self {
            Request::Command(command) | Request::Resume(command, _) => Some(command),
            _ => None,
        }
    }

    /// How it is served and whether it is a look, if it reads one key.
    pub(super) fn read(&self) -> Option<(ReadMode, bool)> {
        match self {
            Request::Get { mode, .. } => Some((*mode, false)),
            Request::Look { mode, .. } => Some((*mode, true)),
            _ => None,
        }
    }

    /// How its parts are read, if it may have several.
    pub(super) fn range(&self) -> Option<&RangeCall> {
        match self {
            Request::Range(range) | Request::Keys { range, .. } => Some(range),
            _ => None,
        }
    }

    /// Bytes of keys and values.
    pub fn bytes(&self) -> usize {
        match self {
            Request::Command(command) | Request::Resume(command, _) => command.bytes(),
            Request::Get { key, .. } | Request::Look { key, .. } => key.len(),
            Request::Range(range) => range.low.len() + range.high.as_ref().map_or(0, |high| high.len()),
            Request::Keys { keys, .. } => keys.iter().map(|key| key.len()).sum(),
            Request::Map => 0,
        }
    }
}

/// Names a call as long as it waits, and nothing afterwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallKey {
    index: u32,
    generation: u32,
}

/// How far a call for a range has come.
#[derive(Clone, Debug, Default)]
pub(super) struct RangeState {
    /// It gave something out: it cannot start again.
    pub streaming: bool,
    /// Where it is under way: peer and stream.
    pub stream: Option<(u32, u32)>,
    /// With what its reader holds, where it is compared.
    pub comparison: Option<Comparison>,
    /// Across partitions: it was collected, or will not be.
    pub collect_tried: bool,
    /// While it is being collected.
    pub collect: Option<RangeCollect>,
    /// The attempt with a ticket that was made last.
    pub attempt: Option<u32>,
    /// Attempts that came to nothing, for whatever reason.
    pub voided: u8,
    /// The partition that did not order the last aborted attempt in time, if that was why.
    pub unplaced: Option<PartitionId>,
}

/// A call that waits.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub token: u64,
    pub deadline: Time,
    pub request: Request,
    /// Its session and its number in it, once it was packed: kept for all its repetitions (protocol.md 6).
    pub number: Option<(SessionKey, u64)>,
    /// Whether every key and value is 8 bytes long.
    pub eight: bool,
    /// It shares no frame with others: one of those that it shared one with was denied.
    pub alone: bool,
    /// Whether a sending of it is waiting for its answer.
    pub in_flight: bool,
    /// Whether an earlier sending ended without an answer: it may have been executed.
    pub maybe: bool,
    /// Sendings that ended in silence.
    pub attempts: u8,
    pub range: RangeState,
    bytes: u32,
}

impl Call {
    /// [`Request::bytes`] of its request.
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }
}

#[derive(Clone, Debug)]
struct Slot {
    generation: u32,
    call: Option<Call>,
}

/// All calls that wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    slots: Vec<Slot>,
    free: Vec<u32>,
    count: usize,
    bytes: usize,
    /// No call's deadline is before it.
    earliest: Option<Time>,
}

impl Calls {
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn insert(&mut self, token: u64, deadline: Time, request: Request, eight: bool) -> CallKey {
        let bytes = request.bytes() as u32;
        let call = Call {
            token,
            deadline,
            request,
            number: None,
            eight,
            alone: false,
            in_flight: false,
            maybe: false,
            attempts: 0,
            range: RangeState::default(),
            bytes,
        };
        self.count += 1;
        self.bytes += bytes as usize;
        self.note_deadline(deadline);
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.call = Some(call);
            return CallKey { index, generation: slot.generation };
        }
        self.slots.push(Slot { generation: 0, call: Some(call) });
        CallKey { index: (self.slots.len() - 1) as u32, generation: 0 }
    }

    /// A deadline was moved.
    pub fn note_deadline(&mut self, deadline: Time) {
        if self.earliest.is_none_or(|earliest| deadline < earliest) {
            self.earliest = Some(deadline);
        }
    }

    #[inline]
    pub fn get(&self, key: CallKey) -> Option<&Call> {
        let slot = self.slots.get(key.index as usize)?;
        if slot.generation == key.generation { slot.call.as_ref() } else { None }
    }

    #[inline]
    pub fn get_mut(&mut self, key: CallKey) -> Option<&mut Call> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation == key.generation { slot.call.as_mut() } else { None }
    }

    pub fn is_waiting(&self, key: CallKey) -> bool {
        self.get(key).is_some()
    }

    pub fn remove(&mut self, key: CallKey) -> Option<Call> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation != key.generation {
            return None;
        }
        let call = slot.call.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index);
        self.count -= 1;
        self.bytes -= call.bytes as usize;
        Some(call)
    }

    /// When the first deadline may pass.
    pub fn deadline(&self) -> Option<Time> {
        self.earliest
    }

    /// The calls whose deadline has passed. O(calls), but seldom: only when the earliest known deadline has passed, and
    /// with equal timeouts the next one is then a whole timeout away.
    pub fn overdue(&mut self, now: Time) -> Vec<CallKey> {
        if self.earliest.is_none_or(|earliest| earliest > now) {
            return Vec::new();
        }
        let (mut overdue, mut earliest) = (Vec::new(), None);
        for (index, slot) in self.slots.iter().enumerate() {
            let Some(call) = &slot.call else { continue };
            if call.deadline <= now {
                overdue.push(CallKey { index: index as u32, generation: slot.generation });
            } else if earliest.is_none_or(|earliest| call.deadline < earliest) {
                earliest = Some(call.deadline);
            }
        }
        self.earliest = earliest.filter(|&earliest| earliest != Time::NEVER);
        overdue
    }

    /// All calls.
    pub fn keys(&self) -> Vec<CallKey> {
        let slots = self.slots.iter().enumerate().filter(|(_, slot)| slot.call.is_some());
        slots.map(|(index, slot)| CallKey { index: index as u32, generation: slot.generation }).collect()
    }
}
