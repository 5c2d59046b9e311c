//! What the server's types say, in the words of the checkers.
#![forbid(unsafe_code)]

use bytes::BytesMut;
use coppice_btree::Op;
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
    let mut out = BytesMut::new();
    let mut replies = RepliesWriter::new(&mut out);
    if replies.answer(1, answer).is_err() {
        return Vec::new();
    }
    replies.finish();
    let sections = Replies::new(out.get(frame::HEADER_BYTES..).unwrap_or_default());
    let results = sections.filter_map(Result::ok).flat_map(|section| section.results().collect::<Vec<_>>());
    let refusal = |result| match result {
        ResultRef::Refused(refusal) => Some(refusal),
        _ => None,
    };
    results.map(|(position, result)| (position, refusal(result))).collect()
}

/// A command of a pack.
pub fn call_of(command: &Packed<'_>) -> Call<'static> {
    match command {
        Packed::Op(op) => call_of_op(op),
        Packed::Many(operations) => Call::Many(operations.iter().map(|op| call_of_op(&op)).collect()),
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
    }
}
