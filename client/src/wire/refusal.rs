//! Refusals: why nothing was done, in terms that a client can act on (hazards.md 1).

use std::time::Duration;

use bytes::{BufMut, BytesMut};

use super::frame::{Kind, begin_frame, end_frame};
use super::varint::{Reader, WireError, put_varint};
use super::{MapVersion, NodeId, PartitionId, TEXT_BYTES_MAX};
use crate::map::Entry;

/// Why a request was not served. Unless said otherwise it is sure: this sending has no effect, now or later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another replica leads; ask the node of the hint, or any other.
    NotLeader {
        /// The group that was asked.
        partition: PartitionId,
        /// Who leads it, as far as this node knows.
        hint: Option<NodeId>,
    },
    /// A key lies outside the partition, or the partition is not here.
    WrongPartition {
        /// The partition that was asked.
        partition: PartitionId,
        /// Version of the map that this answer comes from.
        version: MapVersion,
        /// The entries that now cover what the partition covered, as far as this node knows.
        entries: Vec<Entry>,
    },
    /// A queue is full; ask again after this long.
    Busy {
        /// Milliseconds on the wire.
        retry_after: Duration,
        /// Which bound is reached.
        text: String,
    },
    /// Disk or memory is full: writes that grow wait for room, deletes and reads go on.
    Full {
        /// Which bound is reached.
        text: String,
    },
    /// The session is not in the partition's table: nothing of the pack was executed by this sending. An earlier
    /// sending of the same numbers may have been.
    SessionExpired,
    /// A key, value, command, pack or frame is above its limit.
    TooLarge {
        /// Which limit, and what was found.
        text: String,
    },
    /// The user of this connection may not do it.
    Denied {
        /// What is missing.
        text: String,
    },
    /// The node is about to stop; ask another one.
    ShuttingDown,
    /// The message was not understood.
    BadRequest {
        /// What was wrong with it.
        text: String,
    },
    /// Not sure: leadership ended after the commands were proposed, they may still be decided. Ask the node of the hint
    /// again, under the same numbers.
    Deposed {
        /// The group.
        partition: PartitionId,
        /// Who leads it, as far as this node knows.
        hint: Option<NodeId>,
    },
    /// The node belongs to no cluster yet: `init` was not run, or it waits to be added.
    NotInitialized,
    /// The snapshot of a range was pinned too long (`limits.scan_snapshot_max_age`): ask for the rest as a new range.
    SnapshotExpired,
    /// The node knows this request and cannot serve it, now or in general.
    Unavailable { text: String },
    /// The query has a ticket and no result, and never will: ask again, as a new attempt (protocol.md 4.1).
    Aborted {
        text: String,
        /// The partition that did not order it in time, if that is why.
        unplaced: Option<PartitionId>,
    },
    /// The connection acts for nobody: its credentials are missing, wrong, or no longer valid.
    Unauthenticated { text: String },
}

// Codes. Never used twice.
const NOT_LEADER: u8 = 1;
const WRONG_PARTITION: u8 = 2;
const BUSY: u8 = 3;
const FULL: u8 = 4;
const SESSION_EXPIRED: u8 = 5;
const TOO_LARGE: u8 = 6;
const DENIED: u8 = 7;
const SHUTTING_DOWN: u8 = 8;
const BAD_REQUEST: u8 = 9;
const DEPOSED: u8 = 10;
const NOT_INITIALIZED: u8 = 11;
const SNAPSHOT_EXPIRED: u8 = 12;
const UNAVAILABLE: u8 = 13;
const ABORTED: u8 = 14;
const UNAUTHENTICATED: u8 = 15;

impl Refusal {
    /// A `BadRequest` that says what was wrong.
    pub fn bad_request(error: &dyn std::fmt::Display) -> Refusal {
        Refusal::BadRequest { text: error.to_string() }
    }

    /// Of a message that is not one, or is above a limit: says what was wrong.
    pub fn of_message(error: &WireError) -> Refusal {
        match error {
            WireError::Limit { .. } => Refusal::TooLarge { text: error.to_string() },
            _ => Refusal::bad_request(error),
        }
    }

    /// Whether this sending certainly has no effect, now or later (hazards.md 1).
    pub fn is_sure(&self) -> bool {
        !matches!(self, Refusal::Deposed { .. })
    }

    /// What it says, for people.
    pub fn words(self) -> String {
        match self {
            Refusal::Denied { text }
            | Refusal::Unauthenticated { text }
            | Refusal::TooLarge { text }
            | Refusal::Busy { text, .. }
            | Refusal::Full { text }
            | Refusal::BadRequest { text }
            | Refusal::Unavailable { text } => text,
            refusal => format!("refused: {refusal:?}"),
        }
    }

    /// Appends the refusal as a whole frame.
    pub fn encode(&self, out: &mut BytesMut, stream: u32) {
        let start = begin_frame(out, Kind::Refused, stream);
        match self {
            Refusal::NotLeader { partition, hint } => put_hint(out, NOT_LEADER, *partition, *hint),
            Refusal::Deposed { partition, hint } => put_hint(out, DEPOSED, *partition, *hint),
            Refusal::WrongPartition { partition, version, entries } => {
                out.put_u8(WRONG_PARTITION);
                put_varint(out, u64::from(partition.0));
                put_varint(out, version.0);
                let entries = postcard::to_stdvec(entries).expect("entries are plain data");
                out.put_slice(&entries);
            }
            Refusal::Busy { retry_after, text } => {
                put_text(out, BUSY, text);
                put_varint(out, retry_after.as_millis().min(u128::from(u32::MAX)) as u64);
            }
            Refusal::Full { text } => put_text(out, FULL, text),
            Refusal::SessionExpired => out.put_u8(SESSION_EXPIRED),
            Refusal::TooLarge { text } => put_text(out, TOO_LARGE, text),
            Refusal::Denied { text } => put_text(out, DENIED, text),
            Refusal::ShuttingDown => out.put_u8(SHUTTING_DOWN),
            Refusal::BadRequest { text } => put_text(out, BAD_REQUEST, text),
            Refusal::NotInitialized => out.put_u8(NOT_INITIALIZED),
            Refusal::SnapshotExpired => out.put_u8(SNAPSHOT_EXPIRED),
            Refusal::Unavailable { text } => put_text(out, UNAVAILABLE, text),
            Refusal::Unauthenticated { text } => put_text(out, UNAUTHENTICATED, text),
            Refusal::Aborted { text, unplaced } => {
                put_text(out, ABORTED, text);
                put_option(out, unplaced.map(|partition| partition.0));
            }
        }
        end_frame(out, start);
    }

    /// Reads the body of a `Refused` frame.
    pub fn decode(body: &[u8]) -> Result<Refusal, WireError> {
        let mut reader = Reader::new(body);
        let code = reader.u8()?;
        let refusal = match code {
            NOT_LEADER | DEPOSED => {
                let partition = PartitionId(reader.varint_u32()?);
                let hint = option(&mut reader)?.map(NodeId);
                match code {
                    NOT_LEADER => Refusal::NotLeader { partition, hint },
                    _ => Refusal::Deposed { partition, hint },
                }
            }
            WRONG_PARTITION => {
                let partition = PartitionId(reader.varint_u32()?);
                let version = MapVersion(reader.varint()?);
                let (entries, rest) =
                    postcard::take_from_bytes(reader.rest()).map_err(|_| WireError::Control("map entry"))?;
                reader = Reader::new(rest);
                Refusal::WrongPartition { partition, version, entries }
            }
            BUSY => {
                let text = text(&mut reader)?;
                Refusal::Busy { retry_after: Duration::from_millis(u64::from(reader.varint_u32()?)), text }
            }
            FULL => Refusal::Full { text: text(&mut reader)? },
            SESSION_EXPIRED => Refusal::SessionExpired,
            TOO_LARGE => Refusal::TooLarge { text: text(&mut reader)? },
            DENIED => Refusal::Denied { text: text(&mut reader)? },
            SHUTTING_DOWN => Refusal::ShuttingDown,
            BAD_REQUEST => Refusal::BadRequest { text: text(&mut reader)? },
            NOT_INITIALIZED => Refusal::NotInitialized,
            SNAPSHOT_EXPIRED => Refusal::SnapshotExpired,
            UNAVAILABLE => Refusal::Unavailable { text: text(&mut reader)? },
            UNAUTHENTICATED => Refusal::Unauthenticated { text: text(&mut reader)? },
            ABORTED => Refusal::Aborted { text: text(&mut reader)?, unplaced: option(&mut reader)?.map(PartitionId) },
            code => return Err(WireError::Unknown { what: "refusal code", value: u64::from(code) }),
        };
        reader.finish()?;
        Ok(refusal)
    }
}

fn put_hint(out: &mut BytesMut, code: u8, partition: PartitionId, hint: Option<NodeId>) {
    out.put_u8(code);
    put_varint(out, u64::from(partition.0));
    put_option(out, hint.map(|node| node.0));
}

/// A number plus one; 0: none.
fn put_option(out: &mut BytesMut, number: Option<u32>) {
    put_varint(out, number.map_or(0, |number| u64::from(number) + 1));
}

fn option(reader: &mut Reader<'_>) -> Result<Option<u32>, WireError> {
    match reader.varint()? {
        0 => Ok(None),
        number => u32::try_from(number - 1).map(Some).map_err(|_| WireError::Overflow),
    }
}

fn put_text(out: &mut BytesMut, code: u8, text: &str) {
    let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
    out.put_u8(code);
    put_varint(out, text.len() as u64);
    out.put_slice(text.as_bytes());
}

fn text(reader: &mut Reader<'_>) -> Result<String, WireError> {
    let bytes = reader.bytes("text length", TEXT_BYTES_MAX)?;
    // Text is for people: what is not UTF-8 in it is shown as such.
    Ok(String::from_utf8_lossy(bytes).chars().take(TEXT_BYTES_MAX).collect())
}

/// Why one command of an otherwise executed pack was not executed; checked when applied, not only when routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommandRefusal {
    /// A key of it lies outside the partition (hazards.md MV2); nothing was stored for its number.
    WrongPartition {
        /// Version of the map at which the partition's bounds last changed.
        version: MapVersion,
    },
    /// The number is acknowledged, or its answer was dropped to keep the session small: whether it was executed is no
    /// longer known here, and it will not be executed now.
    Forgotten,
    /// It would grow the partition beyond its memory.
    Full,
    /// What it asks for, or would answer, is above a limit.
    TooLarge,
    /// The answers to what came before it in the same frame are as large as an answer may be: it is to be sent again.
    Later,
}
