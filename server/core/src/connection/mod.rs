//! A client's connection as a node takes it: when it is read, what becomes of each request, what of one connection may
//! wait at a time, and when it ends. The words of what goes back are those of `wire_reply`.
//!
//! A driver reads a frame ([`decode`]), asks whether its sender may do that ([`check`]), and carries out the
//! [`Dispatch`]. [`Pending`] holds what waits, and [`Lifecycle`] says when the connection ends. None of them knows
//! sockets. Frames of other nodes have [`decode_peer`].

mod authorization;
mod clients;
mod hello;
mod lifecycle;
mod packs;
mod peer;
mod pending;
mod streams;

use std::collections::BTreeMap;

pub use authorization::{AdmissionError, check};
use bytes::Bytes;
pub use clients::ClientConnections;
use coppice_client::map::PartitionMap;
use coppice_client::wire::frame::HEADER_BYTES;
use coppice_client::wire::{
    self, AdminRequest, ClientId, CompareRequest, FRAME_BYTES_MAX, Frame, HELLO_BYTES_MAX, Hello, Kind, MapGet,
    MapReply, NodeId, PartitionId, Refusal, StatusGet,
};
pub use hello::{GreetedNode, features, greet};
pub use lifecycle::{Lifecycle, Unwritten};
pub use peer::{PeerDispatch, PeerFrameError, decode_peer};
pub use pending::Pending;
pub use streams::{FrameSink, Slice};

use crate::cost::Account;
use crate::machine::entry;
use crate::request::{Origin, Request};
use crate::worker::Input;

/// The longest frame that is read: who has not greeted is nobody's client yet, and pays for nothing.
pub fn frame_bytes_max(greeted: bool) -> usize {
    let whole = greeted || mutant!(strangers_send_large_frames);
    if whole { FRAME_BYTES_MAX } else { HEADER_BYTES + HELLO_BYTES_MAX }
}

/// Why a frame is no request.
#[derive(Debug)]
pub struct RefusedFrame {
    /// What its sender hears.
    pub refusal: Refusal,
    /// Nothing more is read of it.
    pub closes: bool,
}

/// Reads a frame of a client that has `greeted`, or not. Before, nothing but a `Hello` is decoded (hazards.md 8).
///
/// # Errors
/// What is refused, and whether the connection ends with it.
pub fn decode(frame: &Frame, greeted: bool) -> Result<wire::Request, RefusedFrame> {
    let closes = |text: &str| RefusedFrame { refusal: Refusal::BadRequest { text: text.into() }, closes: true };
    if !greeted && Kind::from_u8(frame.kind) != Some(Kind::Hello) {
        return Err(closes("the first frame must be Hello"));
    }
    let asked = wire::Request::decode(frame).map_err(|error| {
        let refusal = Refusal::of_message(&error);
        // The frame was whole, and what is behind it is another one.
        let goes_on = greeted && matches!(refusal, Refusal::TooLarge { .. });
        RefusedFrame { refusal, closes: !goes_on }
    })?;
    // Whoever is someone else from here on would be reached, and forgotten, as the first one.
    if greeted && matches!(asked, wire::Request::Hello(_)) {
        return Err(closes("Hello comes once, first on a connection: open another one"));
    }
    Ok(asked)
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Asker<'a> {
    /// The worker that has the connection, and its number there.
    pub connection: (u16, u64),
    /// Who said hello; nobody before, and no request of a worker comes then.
    pub client: ClientId,
    /// The mark of the user's sessions ([`crate::access::Rights::owner`]).
    pub owner: Option<u64>,
    /// What answers to reads are charged to.
    pub account: &'a Account,
}

/// What a node does for a request.
pub enum Dispatch {
    /// Lets the client in, or turns it away ([`greet`]).
    Hello(Hello),
    /// Sends a `Pong`.
    Ping,
    /// Sends the map ([`map_reply`]).
    Map(MapGet),
    /// Has the controller answer.
    Status(StatusGet),
    /// Has the controller carry out a verb.
    Admin(Box<AdminRequest>),
    /// Lets so many more bytes of the stream's range go ([`Pending::add_credit`]).
    Credit(u32),
    /// Drops the stream's range, and what may be dropped of its request ([`Pending::cancel`]).
    Cancel,
    /// Lets more of a part of a query go ([`Pending::add_part_credit`]).
    PartCredit { query: u32, partition: PartitionId, bytes: u32 },
    /// Compares the stream's range with what its reader holds ([`Pending::compare`]).
    Compare(CompareRequest),
    /// Compares a part of a query ([`Pending::compare_part`]).
    PartCompare { query: u32, partition: PartitionId, request: CompareRequest },
    /// Drops the parts of a query ([`Pending::cancel_parts`]).
    PartCancel { query: u32 },
    /// Tells the connection's worker, whose reply the stream waits for.
    Worker(Input),
}

impl Dispatch {
    /// What is done for a request that came on `stream`, and is admitted.
    pub fn new(asked: wire::Request, stream: u32, asker: &Asker<'_>) -> Dispatch {
        let (worker, connection) = asker.connection;
        let origin = Origin::Client { worker, stream, connection };
        let (group, request) = match asked {
            wire::Request::Hello(hello) => return Dispatch::Hello(hello),
            wire::Request::Ping => return Dispatch::Ping,
            wire::Request::MapGet(get) => return Dispatch::Map(get),
            wire::Request::Status(get) => return Dispatch::Status(get),
            wire::Request::Admin(admin) => return Dispatch::Admin(admin),
            wire::Request::Credit(bytes) => return Dispatch::Credit(bytes),
            wire::Request::Cancel => return Dispatch::Cancel,
            wire::Request::PartCredit { query, partition, bytes } => {
                return Dispatch::PartCredit { query, partition, bytes };
            }
            wire::Request::Compare(request) => return Dispatch::Compare(request),
            wire::Request::PartCompare { query, partition, request } => {
                return Dispatch::PartCompare { query, partition, request };
            }
            wire::Request::PartCancel { query } => return Dispatch::PartCancel { query },
            wire::Request::Collect(range) => return Dispatch::Worker(Input::Collect { origin, range }),
            wire::Request::Query(query) => {
                let (client, request) = (asker.client, Box::new(query));
                return Dispatch::Worker(Input::Query { origin, client, request });
            }
            wire::Request::Commands(commands) => {
                let entry = match asker.owner {
                    Some(owner) => entry::owned(&commands.entry, owner),
                    None => alone(&commands.entry),
                };
                (commands.partition, Request::pack(entry, &commands))
            }
            wire::Request::OpenSession(open) => {
                // A session is its user's; while users are not asked who they are, that of who said hello.
                let client = asker.owner.map_or(asker.client, ClientId);
                (open.partition, Request::Open { entry: entry::open(client, open.nonce) })
            }
            wire::Request::Read(read) => (read.partition, Request::Read(read, asker.account.clone(), None)),
            wire::Request::Range(range) => (range.partition, Request::Range(Box::new(range))),
            wire::Request::Validate(asked) => (asked.partition, Request::Validate(asked, None)),
        };
        Dispatch::Worker(Input::Request { group, origin, request })
    }
}

/// The answer of a node with this map, which knows these leaders.
pub fn map_reply(get: MapGet, map: &PartitionMap, leaders: BTreeMap<PartitionId, NodeId>) -> MapReply {
    let is_newer = map.version > get.known;
    MapReply { map: is_newer.then(|| map.clone()), leaders: leaders.into_iter().collect() }
}

/// An entry of the log of fewer bytes is copied out of the buffer in which it was received.
const ALONE_BYTES_MAX: usize = 1_024;

/// What is logged stays in memory for long: a few bytes must not keep the buffer in which they were received.
fn alone(entry: &Bytes) -> Bytes {
    if entry.len() < ALONE_BYTES_MAX { Bytes::copy_from_slice(entry) } else { entry.clone() }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use coppice_btree::Op;
    use coppice_client::wire::control::encode_control;
    use coppice_client::wire::{FrameDecoder, OpenRequest, PackWriter, SessionId, encode_frame};

    use super::*;
    use crate::machine::entry::{Entry, entries};

    const STREAM: u32 = 7;

    fn frame(bytes: &[u8]) -> Frame {
        let mut decoder = FrameDecoder::default();
        decoder.feed(bytes);
        decoder.next_frame().expect("a good frame").expect("a whole one")
    }

    fn hello() -> Frame {
        let mut out = BytesMut::new();
        encode_control(&mut out, Kind::Hello, STREAM, &Hello::default());
        frame(&out)
    }

    /// A pack of one put; its frame is as long as the value, and some.
    fn pack(value: &[u8]) -> Frame {
        let mut writer = PackWriter::new(Vec::new(), SessionId::default(), 1, false, 1 << 20);
        writer.push(1, Op::Put { key: b"k", value }).expect("it fits");
        frame(&writer.finish(PartitionId(3), STREAM).expect("a pack"))
    }

    /// The entry that a frame of client 4 puts into the log.
    fn logged(frame: &Frame, owner: Option<u64>) -> Bytes {
        let account = Account::unbounded();
        let asker = Asker { connection: (1, 9), client: ClientId(4), owner, account: &account };
        let asked = decode(frame, true).expect("a request");
        let Dispatch::Worker(Input::Request { group, origin, request }) = Dispatch::new(asked, STREAM, &asker) else {
            panic!("something for a group")
        };
        let origin_wanted = Origin::Client { worker: 1, stream: STREAM, connection: 9 };
        assert_eq!((group, origin), (PartitionId(3), origin_wanted));
        match request {
            Request::Pack { entry, .. } | Request::Open { entry } => entry,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_connection_begins_with_one_hello() {
        let mut out = BytesMut::new();
        encode_frame(&mut out, Kind::Ping, STREAM, &[]);
        let ping = frame(&out);
        assert!(decode(&ping, false).is_err_and(|refused| refused.closes));
        assert_eq!(decode(&ping, true).expect("a ping"), wire::Request::Ping);
        assert!(decode(&hello(), false).is_ok());
        assert!(decode(&hello(), true).is_err_and(|refused| refused.closes));
    }

    #[test]
    fn sessions_and_packs_bear_the_mark_of_their_user() {
        let mut out = BytesMut::new();
        OpenRequest::encode(&mut out, STREAM, PartitionId(3), ClientId(99), 5);
        let open = frame(&out);
        for (owner, client) in [(None, ClientId(4)), (Some(6), ClientId(6))] {
            let entry = logged(&open, owner);
            assert!(matches!(entries(&entry).next(), Some(Entry::Open(open)) if open.client == client), "{owner:?}");
            let entry = logged(&pack(b"v"), owner);
            let found = entries(&entry).next();
            assert!(matches!(found, Some(Entry::Pack { owner: found, .. }) if found == owner), "{owner:?}");
        }
    }

    #[test]
    fn small_entries_leave_the_buffer_in_which_they_came() {
        for (bytes, shares) in [(1, false), (2 * ALONE_BYTES_MAX, true)] {
            let frame = pack(&vec![0; bytes]);
            let buffer = frame.body.as_ptr_range();
            assert_eq!(buffer.contains(&logged(&frame, None).as_ptr()), shares, "{bytes} bytes");
        }
    }
}
