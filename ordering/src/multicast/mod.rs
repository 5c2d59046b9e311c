//! Across partitions: tickets, and what they hold back (protocol.md 3, 4, 5, 8).
//!
//! Three parts, which a driver joins:
//!
//! - [`Coordinator`], beside the directory's replica on every node that may lead it: gives out tickets, releases them.
//! - [`Chain`], in the replicated state of each partition: the last ticket, and whether a delivered [`Place`] counts;
//!   [`PlacementAcknowledger`], beside each replica of a partition: tells the coordinator what is placed, until it is
//!   released. The leader tells at once, a follower when it has heard of no release for an interval.
//! - [`Gate`], beside each replica of a partition: what may leave.
//!
//! # Messages
//!
//! | message | from, to | carries | answered by |
//! |---|---|---|---|
//! | [`Place`] | coordinator, leader of a partition | ticket, the one before it there, queries or a map change | `Placed` |
//! | `Placed` | any replica of a partition, coordinator | partition, its last ticket: all up to it are decided | `Released` |
//! | `Released` | coordinator, any replica of a partition | the watermark: all up to it are released or voided | |
//!
//! Losing, repeating, delaying or reordering any of them is harmless. `Cut`, `Complete` and `Aborted` go to the client.
//!
//! # Cuts
//!
//! A coordinator and the leader of a partition that do not hear each other hold up nobody, as long as some replica
//! hears both. Where the way to a leader is silent its messages go to all replicas of its group, and one that follows
//! passes them on, once. That a ticket is decided is true whoever says so, and a follower that sees it unreleased says
//! so too. That one is released stays true: heartbeats and their acknowledgements carry the watermark within the group,
//! so who hears it first tells all, and who leads next knows it.
//!
//! Neither is a place where a rule could be bent. A replica acknowledges what its own decided log holds, never what it
//! has executed; and passes on a watermark that a coordinator told, never one that it concludes from what is placed. A
//! deposed coordinator's watermark was confirmed when it was told, so it may come as late as it likes.
//!
//! # Driving the coordinator
//!
//! - The directory's Paxos leads: `Lead` with the *decided* map and the changes of it that are not known to be done. It
//!   leads no more: `Resign`.
//! - A `RangeQuery` comes: cut the range by the decided map, draw a replica for each part, name it, `Query`. When
//!   [`Effect::Cut`] comes for it, tell the client what to expect; it ends in `Complete`, `Aborted` or `Refused`.
//!   Only queries are aborted or refused: the client asks again.
//! - A batch of the directory is *decided* that changes boundaries: `Change`, before any query that is cut by the new
//!   map, and never before it is decided (hazards.md MV13). One that changes only nodes, or that removes a
//!   partition whose merge is done: `Map`.
//! - [`Effect::Confirm`]: begin a confirmation of the directory's leadership (`crate::Input::Confirm`), after the
//!   effect came; answer `Confirmed`. Lost leadership is answered by `Resign`.
//! - A partition has a new leader, or the way to it is open again: `Resend`, so that nothing waits for a timer.
//!
//! # Driving a partition
//!
//! - A [`Place`] arrives at the leader: if [`PlacementAcknowledger::wants`] says so, submit it to the partition's own
//!   log, batched like everything else; else a `Placed` is due.
//! - It is executed, on any replica: [`Chain::place`]. `false`: it changes nothing, and nobody hears of it. `true`:
//!   give [`PlacementAcknowledger::placed`] the instance, and give the queries' parts from a snapshot as of that
//!   position once it is decided (not gated). A map change is applied unless its id was applied before. The undo of a
//!   batch restores the [`Chain`], which is `Copy`.
//! - Every output is held by [`Gate::hold`] with the last ticket of the state that it saw.
//! - Instances are decided, undone, a snapshot is installed: tell gate and acknowledger alike.
//! - `Released` arrives, or Paxos hears a watermark from another replica: [`PlacementAcknowledger::released`]; then
//!   give [`PlacementAcknowledger::watermark`] to [`Gate::released`] and, if it came as `Released`, to
//!   `Paxos::set_released`, on any replica.
//! - [`PlacementAcknowledger::poll`] after each turn, and at its deadline: the ticket to tell in `Placed`.

mod chain;
mod coordinator;
pub mod gate;
mod packs;
mod repeats;
mod step;
mod tickets;

pub use chain::{Chain, PlacementAcknowledger};
pub use coordinator::{Coordinator, CoordinatorCounters, CoordinatorSettings};
pub use gate::Gate;
pub use step::{Abort, Change, Effect, Input, Place, Query, Refusal, SubQuery, Work};
