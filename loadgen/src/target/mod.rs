//! What is under load, seen by one worker: requests go in with a slot number, ends come out. The clock belongs to the
//! target, so that the simulated one runs in virtual time through the same loops as the real ones.

pub mod clock;
pub mod fill;
pub mod native;
pub mod resp;
pub mod simulated;

pub use crate::units::Nanos;
use crate::workload::Request;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Answered: done, or "not there", "already there": the store gave the right answer.
    Ok,
    /// A sure error: it has no effect.
    Failed,
    /// Refused for overload until its deadline, without effect.
    Busy,
    /// No answer before its deadline: it may have happened.
    Unknown,
}

/// The end of the request in one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The slot given at submission.
    pub slot: u32,
    /// How it ended.
    pub end: End,
    /// When the whole answer had been read.
    pub at: Nanos,
    /// Pairs returned by a range, keys found by a get; 0 for writes.
    pub found: u32,
}

/// A connection, or a few, of one worker to a store.
pub trait Target {
    /// The time.
    fn now(&self) -> Nanos;

    /// Takes a request; nothing is sent before [`Target::poll`]. A slot holds one request at a time.
    fn submit(&mut self, slot: u32, request: &Request);

    /// Sends what was taken, then waits until a request has ended or `until` has come, and appends what has ended.
    fn poll(&mut self, until: Nanos, done: &mut Vec<Done>);

    /// The text of the first error since the last call, for the report.
    fn first_error(&mut self) -> Option<String>;
}
