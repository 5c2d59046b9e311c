//! What the requests of clients and their ends are counted as.

use coppice_client::wire::Command;
use coppice_core::machine::entry::{Entry, entries};
use coppice_core::request::{Refusal, Reply, Request};
use coppice_core::worker::Input;

use crate::metrics::{Op, Outcome};

/// How a request ended, for the metrics.
pub fn outcome(reply: &Reply) -> Outcome {
    match reply {
        Reply::Refused(Refusal::NotLeader { .. }) | Reply::Unsure { .. } => Outcome::NotLeader,
        Reply::Refused(Refusal::Busy(_)) => Outcome::Busy,
        Reply::Refused(Refusal::WrongPartition) => Outcome::WrongPartition,
        Reply::Refused(Refusal::SessionExpired) => Outcome::SessionExpired,
        Reply::Refused(Refusal::Full(_)) => Outcome::Full,
        Reply::Refused(Refusal::FeatureLevel) => Outcome::Error,
        Reply::Aborted { .. } => Outcome::Busy,
        Reply::QueryPlan(_) | Reply::Completed { .. } | Reply::Directory(_) => Outcome::Ok,
        Reply::Pack(_) | Reply::Opened(_) => Outcome::Ok,
        Reply::Read { .. } | Reply::Range { .. } | Reply::CollectedParts { .. } | Reply::Collected { .. } => {
            Outcome::Ok
        }
        Reply::Looks { .. } | Reply::Validated { .. } => Outcome::Ok,
    }
}

/// What a request is counted as.
pub fn op(input: &Input) -> Op {
    let Input::Request { request, .. } = input else { return Op::Range };
    match request {
        Request::Pack { entry, commands: 1, .. } => pack_op(entry),
        Request::Pack { .. } => Op::Pack,
        Request::Open { .. } => Op::Open,
        Request::Read(..) => Op::Get,
        Request::Validate(..) => Op::Validate,
        Request::Range(_) | Request::CollectParts(_) | Request::Directory(_) => Op::Range,
    }
}

/// What a pack of one command is counted as.
fn pack_op(entry: &[u8]) -> Op {
    let Some(Entry::Pack { pack, .. }) = entries(entry).next() else { return Op::Pack };
    match pack.commands().next().map(|(_, command)| command) {
        Some(Command::Op(op)) => Op::of(&op),
        Some(Command::Many(_)) => Op::Many,
        Some(Command::Load(_)) => Op::Load,
        None => Op::Pack,
    }
}
