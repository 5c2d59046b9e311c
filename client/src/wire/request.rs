//! What a client asks, apart from control messages: commands, sessions, reads, ranges. Hand-written, decoded in place.

use bytes::{BufMut, Bytes, BytesMut};
use coppice_btree::Value;

use super::collect::CollectRequest;
use super::compare::CompareRequest;
use super::control::{AdminRequest, Hello, MapGet, StatusGet, decode_control};
use super::entry::{self, Open};
use super::frame::{Frame, Kind, begin_frame, end_frame};
use super::pack::Pack;
use super::query::{QueryRequest, decode_part_credit};
use super::scan::{ScanOptions, put_bound};
use super::validate::ValidateRequest;
use super::varint::{Reader, WireError, put_varint};
use super::{ClientId, HELLO_BYTES_MAX, KEY_BYTES_MAX, PartitionId, READ_KEYS_MAX, SessionId};

/// A request, decoded and checked whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Who the client is.
    Hello(Hello),
    /// Asks for the map.
    MapGet(MapGet),
    /// Asks for the status.
    Status(StatusGet),
    /// An operator's verb.
    Admin(Box<AdminRequest>),
    /// Asks for a `Pong`.
    Ping,
    /// Commands for the leader of a partition.
    Commands(CommandsRequest),
    /// Opens a session with the leader of a partition.
    OpenSession(OpenRequest),
    /// Reads keys of a partition.
    Read(ReadRequest),
    /// Reads a range in a partition.
    Range(RangeRequest),
    /// Asks whether ranges of a partition have changed since they were read.
    Validate(ValidateRequest),
    /// Reads a range over several partitions of this node.
    Collect(CollectRequest),
    /// Lets so many more bytes of the stream's range come.
    Credit(u32),
    /// No more of the stream's range is wanted.
    Cancel,
    /// Reads a range over several partitions.
    Query(QueryRequest),
    /// Lets more of a query's part come.
    PartCredit {
        /// Number of the attempt.
        query: u32,
        partition: PartitionId,
        /// How many bytes more.
        bytes: u32,
    },
    /// What the reader of the stream's range holds of it.
    Compare(CompareRequest),
    /// What the reader of a query holds of a part.
    PartCompare {
        /// Number of the attempt.
        query: u32,
        partition: PartitionId,
        /// What it holds.
        request: CompareRequest,
    },
    /// No more of any part of this attempt is wanted on this connection.
    PartCancel {
        /// Number of the attempt.
        query: u32,
    },
}

impl Request {
    /// Decodes what a client sent. Before a connection is authenticated decode nothing but `Hello` (hazards.md 8):
    /// compare [`Frame::kind`] first.
    pub fn decode(frame: &Frame) -> Result<Request, WireError> {
        let unknown = WireError::Unknown { what: "request kind", value: u64::from(frame.kind) };
        let kind = Kind::from_u8(frame.kind).ok_or(unknown)?;
        let body = &frame.body;
        match kind {
            Kind::Hello if body.len() > HELLO_BYTES_MAX => {
                let (value, max) = (body.len() as u64, HELLO_BYTES_MAX as u64);
                Err(WireError::Limit { what: "hello bytes", value, max })
            }
            Kind::Hello => decode_control(body, "hello").map(Request::Hello),
            Kind::MapGet => decode_control(body, "map request").map(Request::MapGet),
            Kind::Status => decode_control(body, "status request").map(Request::Status),
            Kind::Admin => decode_control(body, "admin request").map(|admin| Request::Admin(Box::new(admin))),
            Kind::Ping => Reader::new(body).finish().map(|()| Request::Ping),
            Kind::Commands => CommandsRequest::decode(body).map(Request::Commands),
            Kind::OpenSession => OpenRequest::decode(body).map(Request::OpenSession),
            Kind::Read => ReadRequest::decode(body).map(Request::Read),
            Kind::Range => RangeRequest::decode(body).map(Request::Range),
            Kind::Credit => {
                let mut reader = Reader::new(body);
                let credit = reader.varint_u32()?;
                reader.finish()?;
                Ok(Request::Credit(credit))
            }
            Kind::Cancel => Reader::new(body).finish().map(|()| Request::Cancel),
            Kind::Validate => ValidateRequest::decode(body).map(Request::Validate),
            Kind::Collect => CollectRequest::decode(body).map(Request::Collect),
            Kind::RangeQuery => QueryRequest::decode(body).map(Request::Query),
            Kind::PartCredit => decode_part_credit(body).map(|(partition, bytes)| Request::PartCredit {
                query: frame.stream,
                partition,
                bytes,
            }),
            Kind::Compare => CompareRequest::decode(body).map(Request::Compare),
            Kind::PartCompare => CompareRequest::decode_part(body).map(|(partition, request)| Request::PartCompare {
                query: frame.stream,
                partition,
                request,
            }),
            Kind::PartCancel => Reader::new(body).finish().map(|()| Request::PartCancel { query: frame.stream }),
            Kind::HelloOk
            | Kind::Map
            | Kind::StatusReply
            | Kind::AdminReply
            | Kind::Pong
            | Kind::Replies
            | Kind::Part
            | Kind::QueryPlan
            | Kind::QueryCompleted
            | Kind::Refused => Err(unknown),
        }
    }
}

/// A pack for a partition. `entry` goes into the leader's batch as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandsRequest {
    /// Which partition executes it.
    pub partition: PartitionId,
    pub session: SessionId,
    /// How many commands.
    pub count: u32,
    /// What executing them costs ([`super::PACK_WORK_MAX`]).
    pub work: u32,
    /// Every version that speaks the protocol knows them.
    pub known: bool,
    /// The whole entry: tag, length and pack. Shares the frame's buffer.
    pub entry: Bytes,
}

impl CommandsRequest {
    fn decode(body: &Bytes) -> Result<CommandsRequest, WireError> {
        let (partition, entry) = split_entry(body)?;
        let (pack, work, known) = Pack::decode_counted(entry::single(&entry, entry::TAG_PACK)?)?;
        let (session, count) = (pack.session(), pack.count());
        Ok(CommandsRequest { partition, session, count, work, known, entry })
    }

    /// The pack inside the entry.
    pub fn pack(&self) -> Result<Pack<'_>, WireError> {
        Pack::decode_header(entry::single(&self.entry, entry::TAG_PACK)?)
    }
}

fn split_entry(body: &Bytes) -> Result<(PartitionId, Bytes), WireError> {
    let mut reader = Reader::new(body);
    let partition = PartitionId(reader.varint_u32()?);
    Ok((partition, body.slice_ref(reader.rest())))
}

/// A session to open. `entry` goes into the leader's batch as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenRequest {
    /// In which partition.
    pub partition: PartitionId,
    pub client: ClientId,
    /// Pairs the answer with the request.
    pub nonce: u64,
    /// The whole entry.
    pub entry: Bytes,
}

impl OpenRequest {
    /// Appends an `OpenSession` frame.
    pub fn encode(out: &mut BytesMut, stream: u32, partition: PartitionId, client: ClientId, nonce: u64) {
        let start = begin_frame(out, Kind::OpenSession, stream);
        put_varint(out, u64::from(partition.0));
        Open { client, nonce }.put(out);
        end_frame(out, start);
    }

    fn decode(body: &Bytes) -> Result<OpenRequest, WireError> {
        let (partition, entry) = split_entry(body)?;
        let Open { client, nonce } = Open::decode(entry::single(&entry, entry::TAG_OPEN)?)?;
        Ok(OpenRequest { partition, client, nonce, entry })
    }
}

const READ_STALE: u8 = 1;
const READ_ANYWHERE: u8 = 2;
const READ_EIGHT: u8 = 4;
const READ_LOOKS: u8 = 8;

/// Keys to read, all at one position of one partition; the answer is a read section of a `Replies` frame.
///
/// Body: `u8 flags (1 stale, 2 anywhere, 4 eight, 8 looks), varint partition, varint count, keys`. The last flag only
/// where the node has [`FEATURE_UPDATE`](super::FEATURE_UPDATE).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    pub partition: PartitionId,
    /// The decided state of the replica that is asked will do (protocol.md 7).
    pub stale: bool,
    /// The replica that is asked shall serve even if it does not lead: after a confirmation from the leader, unless
    /// `stale`. Without it a follower answers `NotLeader`.
    pub anywhere: bool,
    /// What is known of the keys without their values is read, not the values.
    pub looks: bool,
    count: u32,
    eight: bool,
    keys: Bytes,
}

impl ReadRequest {
    /// Appends a `Read` frame of values. Keys are at most [`READ_KEYS_MAX`], each at most [`KEY_BYTES_MAX`] long, and
    /// fit a frame: the caller has checked.
    pub fn encode<'k>(
        out: &mut BytesMut,
        stream: u32,
        partition: PartitionId,
        how: (bool, bool),
        keys: impl ExactSizeIterator<Item = &'k [u8]> + Clone,
    ) {
        ReadRequest::put(out, stream, partition, (how, 0), keys);
    }

    /// The same of looks.
    pub fn encode_looks<'k>(
        out: &mut BytesMut,
        stream: u32,
        partition: PartitionId,
        how: (bool, bool),
        keys: impl ExactSizeIterator<Item = &'k [u8]> + Clone,
    ) {
        ReadRequest::put(out, stream, partition, (how, READ_LOOKS), keys);
    }

    fn put<'k>(
        out: &mut BytesMut,
        stream: u32,
        partition: PartitionId,
        ((stale, anywhere), looks): ((bool, bool), u8),
        keys: impl ExactSizeIterator<Item = &'k [u8]> + Clone,
    ) {
        let eight = keys.clone().all(|key| key.len() == 8);
        let start = begin_frame(out, Kind::Read, stream);
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        out.put_u8(flag(stale, READ_STALE) | flag(anywhere, READ_ANYWHERE) | flag(eight, READ_EIGHT) | looks);
        put_varint(out, u64::from(partition.0));
        put_varint(out, keys.len() as u64);
        for key in keys {
            if !eight {
                put_varint(out, key.len() as u64);
            }
            out.put_slice(key);
        }
        end_frame(out, start);
    }

    fn decode(body: &Bytes) -> Result<ReadRequest, WireError> {
        let mut reader = Reader::new(body);
        let flags = reader.u8()?;
        if flags & !(READ_STALE | READ_ANYWHERE | READ_EIGHT | READ_LOOKS) != 0 {
            return Err(WireError::Unknown { what: "read flag", value: u64::from(flags) });
        }
        let partition = PartitionId(reader.varint_u32()?);
        let count = reader.varint_u32()?;
        if count as usize > READ_KEYS_MAX {
            return Err(WireError::Limit { what: "keys", value: u64::from(count), max: READ_KEYS_MAX as u64 });
        }
        if count == 0 {
            return Err(WireError::Empty("keys"));
        }
        let eight = flags & READ_EIGHT != 0;
        let keys = body.slice_ref(reader.rest());
        for _ in 0..count {
            read_key(&mut reader, eight)?;
        }
        reader.finish()?;
        let (stale, anywhere, looks) = (flags & READ_STALE != 0, flags & READ_ANYWHERE != 0, flags & READ_LOOKS != 0);
        Ok(ReadRequest { partition, stale, anywhere, looks, count, eight, keys })
    }

    /// How many keys, at least one.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none; a decoded request has some.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The keys in order.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let (mut reader, eight) = (Reader::new(&self.keys), self.eight);
        std::iter::from_fn(move || read_key(&mut reader, eight).ok())
    }

    /// The keys in order, sharing the frame's buffer.
    pub fn shared_keys(&self) -> impl Iterator<Item = Bytes> {
        self.keys().map(|key| self.keys.slice_ref(key))
    }
}

fn read_key<'a>(reader: &mut Reader<'a>, eight: bool) -> Result<&'a [u8], WireError> {
    if eight { Ok(reader.array::<8>()?) } else { reader.bytes("key length", KEY_BYTES_MAX) }
}

const RANGE_STALE: u8 = 1;
const RANGE_ANYWHERE: u8 = 2;
/// Where the flags of [`ScanOptions`] begin.
const RANGE_SCAN_SHIFT: u32 = 2;
const RANGE_HIGH: u8 = 32;
const RANGE_VERSIONED: u8 = 64;

/// A range to read inside one partition; the answer is a sequence of `Part` frames.
///
/// Body: `u8 flags (1 stale, 2 anywhere, 4 reverse, 8 keys only, 16 count, 32 high, 64 versioned), varint
/// partition, varint pairs_max, varint bytes_max, varint credit, low, [high]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeRequest {
    pub partition: PartitionId,
    /// First key.
    pub low: Value,
    /// First key beyond; none: to the end of the partition, wherever that is when it is read. A client that wants to be
    /// sure of the end gives it.
    pub high: Option<Value>,
    /// How it is read.
    pub scan: ScanOptions,
    /// As in [`ReadRequest`].
    pub stale: bool,
    /// As in [`ReadRequest`].
    pub anywhere: bool,
    /// The first part is to bear the range's [`Version`](super::Version). Nothing says that the range is the newest, or
    /// was when it was asked for, before a [`ValidateRequest`] with that version is answered.
    pub versioned: bool,
    /// Bytes of parts that may come before the client sends `Credit`. A chunk may overdraw it, the next one waits. 0:
    /// an empty chunk says where it is read.
    pub credit: u32,
}

impl RangeRequest {
    /// All pairs of a partition in ascending order, read afresh by its leader, which announces the range with an empty
    /// chunk, and sends nothing more without credit.
    #[must_use]
    pub fn whole(partition: PartitionId) -> RangeRequest {
        RangeRequest {
            partition,
            low: Value::EMPTY,
            high: None,
            scan: ScanOptions::default(),
            stale: false,
            anywhere: false,
            versioned: false,
            credit: 0,
        }
    }

    /// Appends a `Range` frame.
    pub fn encode(&self, out: &mut BytesMut, stream: u32) {
        let start = begin_frame(out, Kind::Range, stream);
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        out.put_u8(
            flag(self.stale, RANGE_STALE)
                | flag(self.anywhere, RANGE_ANYWHERE)
                | self.scan.flags() << RANGE_SCAN_SHIFT
                | flag(self.high.is_some(), RANGE_HIGH)
                | flag(self.versioned, RANGE_VERSIONED),
        );
        put_varint(out, u64::from(self.partition.0));
        self.scan.put_limits(out);
        put_varint(out, u64::from(self.credit));
        for bound in std::iter::once(&self.low).chain(&self.high) {
            put_bound(out, bound);
        }
        end_frame(out, start);
    }

    fn decode(body: &Bytes) -> Result<RangeRequest, WireError> {
        let mut reader = Reader::new(body);
        let flags = reader.u8()?;
        if flags >= 128 {
            return Err(WireError::Unknown { what: "range flag", value: u64::from(flags) });
        }
        let partition = PartitionId(reader.varint_u32()?);
        let scan = ScanOptions::read(flags >> RANGE_SCAN_SHIFT, &mut reader)?;
        let credit = reader.varint_u32()?;
        // A bound may be one byte longer than a key: the first key behind the longest one.
        let mut bound = || reader.bytes("bound length", KEY_BYTES_MAX + 1).map(Value::from);
        let low = bound()?;
        let high = if flags & RANGE_HIGH != 0 { Some(bound()?) } else { None };
        reader.finish()?;
        Ok(RangeRequest {
            partition,
            low,
            high,
            scan,
            stale: flags & RANGE_STALE != 0,
            anywhere: flags & RANGE_ANYWHERE != 0,
            versioned: flags & RANGE_VERSIONED != 0,
            credit,
        })
    }

    /// Appends a `Credit` frame.
    pub fn encode_credit(out: &mut BytesMut, stream: u32, bytes: u32) {
        let start = begin_frame(out, Kind::Credit, stream);
        put_varint(out, u64::from(bytes));
        end_frame(out, start);
    }
}
