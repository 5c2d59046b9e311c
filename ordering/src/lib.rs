//! MultiPaxos, batched and pipelined, as a pure state machine; tickets across groups.
//!
//! Everything here decides and nothing here acts: no clock, thread, file, socket or hash map. A driver feeds
//! [`Paxos::step`] with inputs and carries out the effects. The protocol is written down in `protocol.md`, whose
//! sections the comments cite; payload is opaque bytes.
//!
//! # Messages
//!
//! | message | from, to | carries | answered by |
//! |---|---|---|---|
//! | [`message::PreVote`] | candidate, voters | attempt, decided_upto | `PreVoteReply` |
//! | [`message::Phase1a`] | candidate, voters | ballot, first instance wanted | `Phase1b`, once durable |
//! | [`message::Phase1b`] | acceptor, candidate | ballot, accepted batches, decided_upto, trimmed_upto | |
//! | [`message::Phase2a`] | leader, members | ballot, instance, batch, decided_upto, released | `Phase2b` once durable |
//! | [`message::Phase2b`] | acceptor, leader | ballot, a contiguous run of instances | |
//! | [`message::Preempted`] | acceptor, proposer | the higher ballot | |
//! | [`message::Heartbeat`] | leader, members | ballot, round number, decided_upto, released | `HeartbeatAck`, which carries released too |
//! | [`message::CatchUp`] | replica, replica | first instance wanted | `CatchUpReply` |
//! | [`message::CatchUpReply`] | replica, replica | decided batches, or a snapshot offer | |
//! | [`message::ReadPosition`] | follower, leader | a question | `ReadPositionReply`, once confirmed |
//! | [`message::TransferLeader`] | leader, voter | the ballot that ends | `Phase1a` of the next |
//!
//! # Glossary
//!
//! | word | meaning |
//! |---|---|
//! | ballot | `(round, replica)`: one leadership, with one proposer; never used twice |
//! | instance | a position in the log, from 1; each decides one batch |
//! | batch | the value of an instance: commands, a configuration, or nothing |
//! | promised | the highest ballot whose candidate this replica answered: lower ones get nothing more |
//! | accepted | voted for: a batch with the ballot in which it was proposed |
//! | decided | accepted by a quorum in one ballot; never changes again |
//! | `decided_upto` | everything up to it is decided, and its batches are known here |
//! | `trimmed_upto` | batches up to it are forgotten; a snapshot covers them |
//! | window, in flight | instances proposed and undecided |
//! | heartbeat round | one heartbeat to everybody, numbered within a ballot |
//! | `held_upto` | a quorum of the newest configuration durably holds everything up to it |
//! | ticket, `released` | the multicast's ([`multicast`]); opaque to Paxos, carried along |

#![forbid(unsafe_code)]

#[macro_use]
extern crate planted;

mod acceptor;
pub mod batch;
mod batcher;
mod counters;
mod election;
mod heartbeats;
mod ids;
mod learner;
pub mod message;
pub mod multicast;
pub mod mutants;
mod paxos;
mod proposer;
pub mod quorum;
mod reads;
mod retransmission;
mod settings;
mod slots;
mod step;
mod trace;
pub mod tuning;
mod window;

pub use batch::{Batch, Commands, Configuration};
pub use counters::Counters;
pub use ids::{
    Ballot, ChangeId, ConfirmToken, HeartbeatRound, Instance, Lsn, MapVersion, PartitionId, QueryId, ReadToken,
    ReplicaId, Round, Ticket, Time,
};
pub use message::Message;
pub use multicast::{Chain, Coordinator, CoordinatorSettings, Gate, PlacementAcknowledger};
pub use paxos::{Config, LogRoom, Paxos, ROUND_MAX, RecoveredGroup};
pub use settings::{BATCH_BYTES_MAX, Reads, Settings, WINDOW_BYTES_MAX, WINDOW_MAX};
pub use step::{ChangeError, Effect, Input, Record, SubmitError};
