//! What the server's types say, in the words of the checkers.
#![forbid(unsafe_code)]

use bytes::BytesMut;
use coppice_btree::{Op, OpResult, Value};
use coppice_client::wire::{
    Command as Packed, CommandRefusal, Position as WirePosition, Replies, RepliesWriter, ResultRef, SessionId, frame,
};

use coppice_check::event::{Call, Position, Text, Ticket};

/// Bytes that outlive what they came from.
pub fn text(bytes: &[u8]) -> Text<'static> {
    Text::Owned(bytes.to_vec())
}

/// A position of the wire.
pub fn position(at: WirePosition) -> Position {
    Position { partition: at.partition.0, instance: at.instance, index: at.index }
}

/// A session's id is the position of its opening.
pub fn session(id: SessionId) -> Position {
    Position { partition: id.partition.0, instance: id.instance, index: id.index }
}

/// A ticket of the ordering core.
pub fn ticket(ticket: coppice_ordering::Ticket) -> Ticket {
    Ticket { round: ticket.ballot.round.0, replica: ticket.ballot.replica.0, number: ticket.n }
}

/// The position of each command of an encoded answer, and why it was refused, if so.
pub fn positions(answer: &[u8]) -> Vec<(WirePosition, Option<CommandRefusal>)> {
    let refusal = |told| match told {
        Told::Refused(refusal) => Some(refusal),
        _ => None,
    };
    told(answer).into_iter().map(|(position, told)| (position, refusal(told))).collect()
}

/// A command of a pack.
pub fn call_of(command: &Packed<'_>) -> Call<'static> {
    match command {
        Packed::Op(op) => call_of_op(op),
        // Of what the checkers know.
        Packed::Many(operations) => {
            let known = operations.iter().filter(|op| !is_beyond(op));
            Call::Many(known.map(|op| call_of_op(&op)).collect())
        }
        Packed::Load(pairs) => {
            let insert = |(key, value)| Call::Insert { key: text(key), value: text(value) };
            Call::Many(pairs.iter().map(insert).collect())
        }
    }
}

/// One operation.
pub fn call_of_op(op: &Op<'_>) -> Call<'static> {
    match *op {
        Op::Put { key, value } => Call::Put { key: text(key), value: text(value) },
        Op::Insert { key, value } => Call::Insert { key: text(key), value: text(value) },
        Op::Delete { key } => Call::Delete { key: text(key) },
        Op::Cas { key, expected, value } => Call::Cas { key: text(key), old: text(expected), value: text(value) },
        Op::Get { key } => Call::Get { key: text(key) },
        Op::Update { .. } | Op::Look { .. } | Op::Move { .. } => Call::Many(Vec::new()),
    }
}

/// Whether the checkers know nothing of the operation: a history holds its place, and none of its effect. Its keys are
/// in no history, and the simulator's own model judges what becomes of them.
fn is_beyond(op: &Op<'_>) -> bool {
    matches!(op, Op::Update { .. } | Op::Look { .. } | Op::Move { .. })
}

/// What one command came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    Refused(CommandRefusal),
    /// A guard does not hold.
    Unmet(u64),
    /// Of each operation.
    Results(Vec<OpResult>),
    /// Of something else.
    Other,
}

/// The position of each command of an encoded answer, and what it came to.
pub fn told(answer: &[u8]) -> Vec<(WirePosition, Told)> {
    let mut out = BytesMut::new();
    let mut replies = RepliesWriter::new(&mut out);
    if replies.answer(1, answer).is_err() {
        return Vec::new();
    }
    replies.finish();
    let sections = Replies::new(out.get(frame::HEADER_BYTES..).unwrap_or_default());
    let results = sections.filter_map(Result::ok).flat_map(|section| section.results().collect::<Vec<_>>());
    let told = |result| match result {
        ResultRef::Refused(refusal) => Told::Refused(refusal),
        ResultRef::Unmet { guard } => Told::Unmet(guard),
        ResultRef::Many(many) => Told::Results(many.iter().filter_map(owned).collect()),
        result => owned(result).map_or(Told::Other, |result| Told::Results(vec![result])),
    };
    results.map(|(position, result)| (position, told(result))).collect()
}

fn owned(result: ResultRef<'_>) -> Option<OpResult> {
    let own = |value: Option<&[u8]>| value.map(Value::from);
    Some(match result {
        ResultRef::Put { previous } => OpResult::Put { previous: own(previous) },
        ResultRef::Insert { present } => OpResult::Insert { present: own(present) },
        ResultRef::Delete { previous } => OpResult::Delete { previous: own(previous) },
        ResultRef::Cas { done, current } => OpResult::Cas { done, current: own(current) },
        ResultRef::Get { value } => OpResult::Get { value: own(value) },
        ResultRef::Update { outcome, exists, length, value } => {
            OpResult::Update { outcome, exists, length, value: own(value) }
        }
        ResultRef::Look { exists, length, remaining } => OpResult::Look { exists, length, remaining },
        _ => return None,
    })
}
