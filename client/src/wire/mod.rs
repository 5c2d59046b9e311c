//! The public protocol, version 1: frames, packs of commands, requests and replies.
//!
//! Hot messages are hand-written over `bytes`, decode in place and never trust a length; control messages are postcard.
//! Pure: it knows neither sockets nor time, and nothing of how a reply comes about.
//!
//! | kind | direction | body |
//! |---|---|---|
//! | `Hello`, `HelloOk` | first on every connection, and back | [`Hello`], [`HelloOk`] (postcard) |
//! | `MapGet`, `Map` | client, any node | [`MapGet`], [`MapReply`] (postcard) |
//! | `Status`, `StatusReply` | client, any node | [`StatusGet`], [`Status`] (postcard) |
//! | `Admin`, `AdminReply` | client, any node | [`AdminRequest`], [`AdminReply`] (postcard) |
//! | `Ping`, `Pong` | client, any node | empty |
//! | `Commands` | client, leader | partition, then one [`entry`] with tag pack |
//! | `OpenSession` | client, leader | partition, then one [`entry`] with tag open |
//! | `Read` | client, leader or other replica | [`ReadRequest`]: keys of one partition |
//! | `Range` | client, leader or other replica | [`RangeRequest`]: bounds in one partition, limits, credit |
//! | `Credit`, `Cancel` | client, server of a range | bytes more that may come; no more wanted |
//! | `Collect` | client, node with a replica of each | [`CollectRequest`]: bounds over several partitions |
//! | `Validate` | client, server of a range | [`ValidateRequest`]: whether ranges have changed since |
//! | `Compare`, `PartCompare` | client, server of a range, or of a query's part | [`CompareRequest`]: what the client holds of it |
//! | `RangeQuery` | client, coordinator | [`QueryRequest`]: bounds over several partitions (see [`query`]) |
//! | `PartCredit`, `PartCancel` | client, server of a query's parts | bytes more of one part; no more of any wanted |
//! | `Replies` | back | [`Replies`]: answers to several packs and reads, each with its stream and position |
//! | `Part` | back | [`Part`]: a chunk of a range, or of a query's part |
//! | `QueryPlan`, `QueryCompleted` | coordinator, client | [`QueryPlan`]: who serves the parts; [`QueryCompleted`]: they are the result |
//! | `Refused` | back | [`Refusal`]: why nothing was done |

mod answer;
pub mod collect;
pub mod compare;
pub mod control;
pub mod entry;
pub mod frame;
mod op;
pub mod pack;
mod pack_writer;
pub mod part;
pub mod query;
pub mod refusal;
pub mod reply;
pub mod request;
pub mod reshape;
pub mod scan;
pub mod status;
pub mod tuning;
pub mod users;
pub mod validate;
mod varint;

pub use crate::ids::{
    ClientId, ClusterId, MapVersion, NodeId, PartitionId, Position, ReplicaId, SessionId, Ticket, Version,
};
pub use collect::CollectRequest;
pub use compare::{CompareRequest, Compared, PairsSum, STRETCHES_MAX, Stretch};
pub use control::{
    AdminError, AdminReply, AdminRequest, ConfigRow, Hello, HelloOk, InitRequest, Limits, LinkFault, MapGet, MapReply,
    NodeIdentity, Permission, Relay, StatusGet, TRANSFER_DEADLINE_MAX, VerbProperties,
};
pub use frame::{Frame, FrameDecoder, FrameError, Kind, begin_frame, encode_frame, end_frame};
pub use pack::{Command, LoadPairs, ManyOps, Pack, PackWriter, PushError};
pub use part::{Part, PartCursor, PartEnd, PartWriter};
pub use query::{QueryCompleted, QueryPlan, QueryRequest, SubRange, encode_part_cancel, encode_part_credit};
pub use refusal::{CommandRefusal, Refusal};
pub use reply::{AnswerWriter, ManyResults, PackReply, REPLY_BYTES_MAX, Replies, RepliesWriter, ResultRef, Section};
pub use request::{CommandsRequest, OpenRequest, RangeRequest, ReadRequest, Request};
pub use reshape::{Boundaries, ChangeId, ReshapeRequest, Reshaped, Shape, SplitPlan};
pub use scan::ScanOptions;
pub use status::{NodeStatus, PartitionStatus, ReplicaStatus, Status};
pub use tuning::{BatchAndWindow, Bottleneck, GroupTuning, TuningAccount, TuningReport};
pub use users::{Grant, Role, UserChange, UserChangeReply, UserRow};
pub use validate::ValidateRequest;
pub use varint::{Reader, WireError, put_varint, varint_bytes};

/// The newest protocol version that this library speaks, and the oldest.
pub const PROTOCOL: std::ops::RangeInclusive<u16> = 5..=5;

/// In [`HelloOk::features`]: the node names versions of ranges, and validates them.
pub const FEATURE_VALIDATE: u64 = 1;
/// In [`HelloOk::features`]: the node reads ranges over all partitions that it has a replica of.
pub const FEATURE_COLLECT: u64 = 2;
/// In [`HelloOk::features`]: the node knows updates, looks (in the log and as reads), moves and guarded commands.
pub const FEATURE_UPDATE: u64 = 4;
/// In [`HelloOk::features`]: all nodes of the cluster compare ranges with what their readers hold.
pub const FEATURE_COMPARE: u64 = 8;

/// Longest key (operations.md 3).
pub const KEY_BYTES_MAX: usize = 4 * 1024;
/// Longest value (operations.md 3).
pub const VALUE_BYTES_MAX: usize = 1024 * 1024;
/// Longest frame, header included; checked before anything is allocated (operations.md 3).
pub const FRAME_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Longest body of a `Many` or `Load`: 1 MiB of pairs and room for their lengths.
pub const COMPOUND_BYTES_MAX: usize = VALUE_BYTES_MAX + 64 * 1024;
/// Longest pack: one cas with a longest key and two longest values fits, and a batch of it fits a frame between peers.
pub const PACK_BYTES_MAX: usize = 2 * VALUE_BYTES_MAX + 64 * 1024;
/// Most work in one pack: no step of an executor may take longer than 10 ms. An operation counts
/// [`OPERATION_WORK`], a pair of a bulk load 1.
pub const PACK_WORK_MAX: u32 = 16_384;
/// What one operation on the tree counts in [`PACK_WORK_MAX`].
pub const OPERATION_WORK: u32 = 8;
/// Most operations in one `Many`; bounds the work that one command can ask of an executor.
pub const MANY_OPERATIONS_MAX: usize = PACK_WORK_MAX as usize / OPERATION_WORK as usize;
/// Most keys in one `Read` frame.
pub const READ_KEYS_MAX: usize = 16_384;
/// Most ranges in one `Validate` frame.
pub const VALIDATE_RANGES_MAX: usize = 1_024;
/// Most partitions in one `Collect` frame: each pins a snapshot.
pub const COLLECT_PARTS_MAX: usize = 64;
/// Size of a chunk of a range (operations.md 3); one pair above it travels alone.
pub const PART_BYTES: usize = 256 * 1024;
/// Longest postcard body that a client sends before it is known who it is.
pub const HELLO_BYTES_MAX: usize = 4 * 1024;
/// Longest text in a refusal or reply, cut there.
pub const TEXT_BYTES_MAX: usize = 1024;
