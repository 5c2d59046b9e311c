//! What a client's hello is answered with, and what its requests and their ends are counted as.

use coppice_client::wire::{
    Command, CommandsRequest, FEATURE_COLLECT, FEATURE_VALIDATE, FRAME_BYTES_MAX, Hello, HelloOk, KEY_BYTES_MAX,
    Limits, NodeIdentity, PROTOCOL, Refusal as Refused, VALUE_BYTES_MAX,
};
use coppice_core::request::{Refusal, Reply};

use crate::metrics::{Op, Outcome};
use crate::shared::Shared;

/// How a request ended, for the metrics.
pub fn outcome(reply: &Reply) -> Outcome {
    match reply {
        Reply::Refused(Refusal::NotLeader { .. }) | Reply::Unsure { .. } => Outcome::NotLeader,
        Reply::Refused(Refusal::Busy) => Outcome::Busy,
        Reply::Refused(Refusal::WrongPartition) => Outcome::WrongPartition,
        Reply::Refused(Refusal::SessionExpired) => Outcome::SessionExpired,
        Reply::Refused(Refusal::Full) => Outcome::Full,
        Reply::Aborted { .. } => Outcome::Busy,
        Reply::QueryPlan(_) | Reply::Completed { .. } | Reply::Directory(_) => Outcome::Ok,
        Reply::Pack(_) | Reply::Opened(_) => Outcome::Ok,
        Reply::Read { .. } | Reply::Range { .. } | Reply::CollectedParts { .. } | Reply::Collected { .. } => {
            Outcome::Ok
        }
        Reply::Validated { .. } => Outcome::Ok,
    }
}

/// What a pack is counted as.
pub fn pack_op(commands: &CommandsRequest) -> Op {
    let Ok(pack) = commands.pack() else { return Op::Pack };
    if pack.count() > 1 {
        return Op::Pack;
    }
    match pack.commands().next().map(|(_, command)| command) {
        Some(Command::Op(op)) => Op::of(&op),
        Some(Command::Many(_)) => Op::Many,
        Some(Command::Load(_)) => Op::Load,
        None => Op::Pack,
    }
}

/// Answers a client's `Hello`, or says why not.
pub fn greet(shared: &Shared, hello: &Hello) -> Result<HelloOk, Refused> {
    if hello.protocol_min > *PROTOCOL.end() || hello.protocol_max < *PROTOCOL.start() {
        let (min, max) = (hello.protocol_min, hello.protocol_max);
        let ours = format!("{} to {}", PROTOCOL.start(), PROTOCOL.end());
        let text = format!("the client speaks protocol {min} to {max}, this node {ours}: use another version");
        return Err(Refused::BadRequest { text });
    }
    let identity = shared.own.identity();
    if let (Some(wanted), Some(own)) = (hello.cluster, identity)
        && wanted != own.cluster
    {
        let text = format!("the client wants cluster {wanted}, this node belongs to cluster {}", own.cluster);
        return Err(Refused::Denied { text });
    }
    if shared.is_draining() {
        return Err(Refused::ShuttingDown);
    }
    let limits = &shared.config.limits;
    Ok(HelloOk {
        protocol: hello.protocol_max.min(*PROTOCOL.end()),
        features: FEATURE_VALIDATE | FEATURE_COLLECT,
        cluster: identity.map(|identity| identity.cluster),
        node: identity.map(|own| NodeIdentity { node: own.node, incarnation: own.incarnation }),
        map_version: shared.cluster.map().version,
        limits: Limits {
            frame_bytes: FRAME_BYTES_MAX as u32,
            key_bytes: KEY_BYTES_MAX as u32,
            value_bytes: VALUE_BYTES_MAX as u32,
            inflight: u32::try_from(limits.inflight).unwrap_or(u32::MAX),
            inflight_bytes: limits.inflight_bytes,
        },
    })
}
