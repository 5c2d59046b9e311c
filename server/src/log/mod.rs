//! The acceptor log: one per node, for all its groups, so that one flush serves every vote that waits.
//!
//! `record`, `segment`, `segment_references`, `core` and `recovery` are pure: they turn records into [`FileEffect`]s
//! and bytes back into records, and the simulator runs them over a disk of its own. `disk`, `file` and `writer` touch
//! the world. The hazards are ST1 to ST4, ST8 and ST10 of `hazards.md`.
//!
//! # The file format
//!
//! Segments `00000001.seg`, `00000002.seg` .. hold one sequence of records, numbered by `lsn` from 1 without gaps.
//! A segment opens with a header in its first 4 KiB ([`segment::Header`]). Every write starts at the next 4 KiB
//! boundary with a mark: the lsn durable before it, and the checksum of the record before it. A mark's checksum is
//! seeded with cluster, node, segment, offset and the salt of the start that opened the segment, each other record's
//! with the checksum of its predecessor: an intact record in a wrong place does not fit, nor do bytes that a client
//! made up, since it does not know the salt. Zeros end a write, up to the boundary. What lies behind the last write are
//! zeros, or in a file that was a segment before, which the header tells, what that one held: its marks do not fit.
//!
//! # What recovery believes
//!
//! Everything before the highest mark was durable, so a bad byte there is damage: the node must not vote. What follows
//! the highest mark is one write that was perhaps never answered for: its good prefix is taken, the rest is cut. The
//! prefix is then written anew, into the segment that every start opens for itself, because pages that a failed flush
//! left behind can be read but are not on disk (PostgreSQL's fsync surprise; ST1). The header of that segment says
//! which lsn it starts at; what an older segment holds from there on no longer counts.
//!
//! # Trimming
//!
//! A segment goes when no group needs a batch in it. What must outlive it (promises, create requests, removals, trim
//! positions) is written again first, in a flush of its own time ([`segment_references::SegmentReferences`]). So are
//! batches, once the log is more than twice as long as what is needed in it: votes of a group without a quorum, and
//! what a replica holds that awaits a snapshot. Their copies say that they are copies, and keep ballot and instance.
//! Its file becomes a segment again: making one of zeros writes every byte twice.

mod apply;
pub mod core;
pub mod disk;
pub mod engine;
mod file;
pub mod ids;
pub mod reader;
pub mod record;
pub mod recovery;
pub mod segment;
pub mod segment_references;
mod thread;
pub mod writer;

pub use self::core::{FileEffect, FileName, Geometry, Preparation};
pub use self::disk::{Disk, FileDisk};
pub use self::engine::Engine;
pub use self::ids::{Ballot, Batch, Commands, Configuration, Instance, Lsn, PartitionId, Record, ReplicaId, Round};
pub use self::recovery::{Cut, Damage};
pub(crate) use self::thread::free_bytes;
pub use self::writer::{
    Append, DurableWait, FlushReport, Hooks, Log, LogError, LogFailure, LogOptions, LogWriter, OpenLog, ReadObserver,
    Space, Stopped,
};
