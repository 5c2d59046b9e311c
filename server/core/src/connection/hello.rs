//! What a client's hello is answered with.

use coppice_client::wire::{
    ClusterId, FEATURE_COLLECT, FEATURE_COMPARE, FEATURE_UPDATE, FEATURE_VALIDATE, FRAME_BYTES_MAX, Hello, HelloOk,
    KEY_BYTES_MAX, Limits, MapVersion, NodeIdentity, PROTOCOL, Refusal, VALUE_BYTES_MAX,
};

/// What a node can do beyond the protocol's least.
const FEATURES: u64 = FEATURE_VALIDATE | FEATURE_COLLECT | FEATURE_UPDATE | FEATURE_COMPARE;

/// The feature level from which on every node compares ranges.
const COMPARES: u32 = 2;

/// What a node of a cluster of this feature level says that it can do. Whoever is asked for a query may have any node
/// serve its parts: what not all nodes know is not told before all do.
pub fn features(feature_level: u32) -> u64 {
    if feature_level < COMPARES { FEATURES & !FEATURE_COMPARE } else { FEATURES }
}

/// The node that a client greets.
#[derive(Clone, Copy, Debug)]
pub struct GreetedNode {
    /// Its cluster, and who it is there; none: it waits for `init` or for `node add`.
    pub identity: Option<(ClusterId, NodeIdentity)>,
    /// What it can do: [`features`].
    pub features: u64,
    /// Of its map.
    pub map_version: MapVersion,
    /// Requests of one connection that may wait for an answer (`limits.inflight`).
    pub inflight: usize,
    /// Their bytes (`limits.inflight_bytes`).
    pub inflight_bytes: u64,
    /// It takes in nobody more: it is about to stop.
    pub is_draining: bool,
}

/// The answer of `node` to a hello.
///
/// # Errors
/// Why the client is not let in.
pub fn greet(hello: &Hello, node: &GreetedNode) -> Result<HelloOk, Refusal> {
    if hello.protocol_min > *PROTOCOL.end() || hello.protocol_max < *PROTOCOL.start() {
        let (min, max) = (hello.protocol_min, hello.protocol_max);
        let ours = format!("{} to {}", PROTOCOL.start(), PROTOCOL.end());
        let text = format!("the client speaks protocol {min} to {max}, this node {ours}: use another version");
        return Err(Refusal::BadRequest { text });
    }
    let (cluster, identity) = node.identity.unzip();
    if let (Some(wanted), Some(own)) = (hello.cluster, cluster)
        && wanted != own
    {
        let text = format!("the client wants cluster {wanted}, this node belongs to cluster {own}");
        return Err(Refusal::Denied { text });
    }
    if node.is_draining {
        return Err(Refusal::ShuttingDown);
    }
    Ok(HelloOk {
        protocol: hello.protocol_max.min(*PROTOCOL.end()),
        features: node.features,
        cluster,
        node: identity,
        map_version: node.map_version,
        limits: Limits {
            frame_bytes: FRAME_BYTES_MAX as u32,
            key_bytes: KEY_BYTES_MAX as u32,
            value_bytes: VALUE_BYTES_MAX as u32,
            inflight: u32::try_from(node.inflight).unwrap_or(u32::MAX),
            inflight_bytes: node.inflight_bytes,
        },
    })
}
