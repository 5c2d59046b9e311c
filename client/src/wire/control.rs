//! Control messages: rare, so serde and postcard. A struct here changes only with the protocol version; enum variants
//! are only added at the end (postcard numbers them in order).

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::frame::{BODY_BYTES_MAX, Kind, encode_frame};
use super::reshape::{ReshapeRequest, Reshaped, Shape};
use super::tuning::TuningReport;
use super::users::{UserChange, UserChangeReply, UserRow};
use super::varint::WireError;
use super::{ClientId, ClusterId, MapVersion, NodeId, PartitionId, Refusal};
use crate::map::PartitionMap;
use crate::serde_bytes;
use crate::token::Token;

/// Appends a control message as a whole frame; a refusal in place of one that does not fit a frame.
pub fn encode_control<T: Serialize>(out: &mut BytesMut, kind: Kind, stream: u32, message: &T) {
    let body = postcard::to_stdvec(message).expect("control messages are plain data");
    if body.len() > BODY_BYTES_MAX {
        let text = format!("the answer has {} bytes, and a frame holds {BODY_BYTES_MAX}", body.len());
        return Refusal::BadRequest { text }.encode(out, stream);
    }
    encode_frame(out, kind, stream, &body);
}

/// Decodes the body of a control frame. Bytes behind the message are ignored: a newer version may have appended fields.
pub fn decode_control<T: DeserializeOwned>(body: &[u8], what: &'static str) -> Result<T, WireError> {
    postcard::take_from_bytes(body).map(|(message, _)| message).map_err(|_| WireError::Control(what))
}

/// First on every connection. The versions come first, so that any version can read them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Oldest protocol version that the sender speaks.
    pub protocol_min: u16,
    /// Newest protocol version that the sender speaks.
    pub protocol_max: u16,
    /// Optional abilities, one bit each; none yet.
    pub features: u64,
    pub client: ClientId,
    /// The cluster that it wants; none: it does not know one yet. Another one is refused, with both ids.
    pub cluster: Option<ClusterId>,
    /// Set when a node connects to a node.
    pub node: Option<NodeIdentity>,
    /// Which user the client acts for; none: by its certificate, or nobody.
    pub token: Option<Token>,
}

/// Which node, and which incarnation of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeIdentity {
    pub node: NodeId,
    /// Changes when its directory is made anew: a disk that lost its state is not the old voter (protocol.md 1.5).
    pub incarnation: u64,
}

/// Answers [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelloOk {
    /// The version that both speak from now on: the highest common one.
    pub protocol: u16,
    /// Abilities that both have.
    pub features: u64,
    /// The node's cluster; none: it waits for `init` or for `node add`.
    pub cluster: Option<ClusterId>,
    /// Who answers; none as above.
    pub node: Option<NodeIdentity>,
    /// The node's map.
    pub map_version: MapVersion,
    /// What the node accepts.
    pub limits: Limits,
}

/// What a node accepts from one connection (operations.md 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Limits {
    /// Longest frame, header included.
    pub frame_bytes: u32,
    /// Longest key.
    pub key_bytes: u32,
    /// Longest value.
    pub value_bytes: u32,
    /// Requests of one connection that may wait for an answer; beyond: `Busy`, or not read.
    pub inflight: u32,
    /// Their bytes.
    pub inflight_bytes: u64,
}

/// Asks for the map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapGet {
    /// The version that the client has: the answer leaves out a map that is not newer.
    pub known: MapVersion,
}

/// Answers [`MapGet`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapReply {
    /// The node's map, if it is newer than what the client has.
    pub map: Option<PartitionMap>,
    /// Who leads, as far as the node knows. Hints travel beside the map.
    pub leaders: Vec<(PartitionId, NodeId)>,
}

/// Asks for the status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusGet {
    /// Only what the node knows itself: it asks no other one.
    pub local: bool,
}

/// Forms a cluster, once (operations.md 1.2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitRequest {
    /// Partitions to begin with, at least 1.
    pub partitions: u32,
    /// Where to cut: `partitions - 1` ascending keys; none: the space of 8-byte keys is cut evenly.
    #[serde(with = "serde_bytes::list")]
    pub split_keys: Vec<Bytes>,
    /// Cluster settings that differ from their defaults, by full name.
    #[serde(deserialize_with = "serde_bytes::bounded::deserialize")]
    pub settings: Vec<(String, String)>,
    /// A cluster that exists is fine.
    pub if_needed: bool,
    /// Drawn for each request: one that is sent again, since its answer was slow to come, hears that it formed the
    /// cluster, not that there is one. [`crate::Admin::init`] draws it.
    pub nonce: u64,
}

/// The longest deadline of a leader transfer: far beyond what an election takes, and nobody is kept waiting for days.
pub const TRANSFER_DEADLINE_MAX: Duration = Duration::from_secs(60);

/// An operator's verbs (operations.md 2). Every one is idempotent; what was begun and interrupted goes on when
/// repeated. What holds for each is a row of [`AdminRequest::properties`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AdminRequest {
    /// Forms the cluster.
    Init(InitRequest),
    /// The effective settings of the node that is asked, and the cluster's.
    ConfigGet,
    /// Sets a cluster setting.
    ConfigSet {
        /// Full name.
        key: String,
        /// Value as written.
        value: String,
    },
    /// Sets the log level of the node that is asked.
    LogLevel {
        /// As in `COPPICE_LOG`.
        spec: String,
    },
    /// Transfers a leadership.
    TransferLeader {
        partition: PartitionId,
        /// To which node.
        to: NodeId,
        /// Past it the old leader goes on.
        deadline_ms: u32,
    },
    /// Compares the digests of all replicas at logged positions.
    CheckReplicas,
    /// Changes the cluster's shape, or says how far that is.
    Reshape(ReshapeRequest),
    /// What the node that is asked does to its messages to others, from now on: those not named go as they are. Only
    /// with `allow_faults`; for the demo.
    Faults(#[serde(deserialize_with = "serde_bytes::bounded::deserialize")] Vec<LinkFault>),
    /// How groups are tuned (protocol.md 9).
    Tuning {
        /// Only the groups that the node leads which is asked: it asks no other one.
        local: bool,
    },
    /// The map, of a node that hears a majority of the directory.
    Map,
    Users,
    /// Changes who may do what.
    ChangeUsers(UserChange),
    /// Returns a cluster setting to its default.
    ConfigUnset {
        /// Full name.
        key: String,
    },
}

/// What client and nodes know of a verb before it is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbProperties {
    /// As an operator types it.
    pub name: &'static str,
    /// Whether it changes something. Then nodes log who asked, and without an answer its outcome is unknown.
    pub changes: bool,
    /// Whether it speaks for the cluster: a node carries it out only while it hears a majority of the directory.
    pub needs_majority: bool,
    /// Who may ask for it.
    pub permission: Permission,
    /// Which node may pass it on to another one.
    pub relay: Relay,
    /// Whether it carries data. Nodes refuse data without a bound in `server/core/src/bounds.rs`.
    pub has_data: bool,
}

/// Who may ask for a verb, while access control is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// An admin for all keys.
    Admin,
    /// An admin for any keys: the directory judges which users it may see and change.
    AdminOfSomeKeys,
    /// An admin for all keys; everybody at a node that belongs to no cluster yet.
    AdminOrForming,
    /// Every user.
    Everybody,
}

/// Which node may pass a verb on to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relay {
    /// None: clients ask the node itself.
    None,
    /// Nodes of the cluster.
    Members,
    /// A node that forms a cluster.
    Forming,
}

impl VerbProperties {
    /// A verb without data that changes nothing.
    const fn read(name: &'static str) -> Self {
        let (permission, relay) = (Permission::Admin, Relay::None);
        Self { name, changes: false, needs_majority: true, permission, relay, has_data: false }
    }

    /// A verb with data that changes something.
    const fn change(name: &'static str) -> Self {
        Self { changes: true, has_data: true, ..Self::read(name) }
    }
}

impl AdminRequest {
    /// The properties of the verb.
    #[must_use]
    pub fn properties(&self) -> VerbProperties {
        type Verb = VerbProperties;
        let of_one_node = |name| Verb { needs_majority: false, ..Verb::change(name) };
        let of_users = |verb| Verb { permission: Permission::AdminOfSomeKeys, ..verb };
        match self {
            Self::Init(_) => {
                Verb { permission: Permission::AdminOrForming, relay: Relay::Forming, ..of_one_node("init") }
            }
            Self::ConfigGet => Verb::read("config get"),
            Self::ConfigSet { .. } => Verb::change("config set"),
            Self::ConfigUnset { .. } => Verb::change("config unset"),
            Self::LogLevel { .. } => of_one_node("node log-level"),
            Self::TransferLeader { .. } => Verb::change("leader transfer"),
            Self::CheckReplicas => Verb::read("check replicas"),
            Self::Reshape(request) => {
                Verb { changes: !request.dry_run, relay: Relay::Members, ..Verb::change(request.shape.name()) }
            }
            Self::Faults(_) => of_one_node("faults"),
            // `local`: one node gathers the answers of the others.
            Self::Tuning { local: true } => Verb { relay: Relay::Members, ..Verb::read("tuning") },
            Self::Tuning { local: false } => Verb::read("tuning"),
            // The same as `MapGet`, which everybody may ask.
            Self::Map => Verb { permission: Permission::Everybody, ..Verb::read("map") },
            Self::Users => of_users(Verb::read("user ls")),
            Self::ChangeUsers(_) => of_users(Verb::change("user")),
        }
    }
}

/// The verb with its arguments, for the log; without keys, which are the client's.
impl std::fmt::Display for AdminRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.properties().name;
        match self {
            Self::ConfigSet { key, value } => write!(f, "{name} {key} {value}"),
            Self::ConfigUnset { key } => write!(f, "{name} {key}"),
            Self::LogLevel { spec } => write!(f, "{name} {spec}"),
            Self::TransferLeader { partition, to, .. } => write!(f, "{name} {partition} {to}"),
            Self::Reshape(ReshapeRequest { shape: Shape::SetReplicas { count }, .. }) => {
                write!(f, "{name} replicas")?;
                count.map_or(Ok(()), |count| write!(f, " {count}"))
            }
            Self::Reshape(request) => write!(f, "{name} ({})", request.change),
            Self::ChangeUsers(change) => write!(f, "{name} {} {}", change.verb(), change.name()),
            _ => f.write_str(name),
        }
    }
}

/// A fault of the way from one node to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkFault {
    /// To which node.
    pub to: NodeId,
    /// Nothing arrives.
    pub cut: bool,
    /// Everything arrives so many milliseconds later.
    pub delay_ms: u32,
}

/// Answers [`AdminRequest`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AdminReply {
    /// Done, nothing to say.
    Done,
    /// The cluster is formed, now or (with `if_needed`) before.
    Initialized {
        cluster: ClusterId,
        /// How many nodes it has.
        nodes: u32,
        /// How many partitions.
        partitions: u32,
        /// Whether it was there before.
        existed: bool,
    },
    /// Effective settings.
    Config(Vec<ConfigRow>),
    /// Leadership was transferred.
    Transferred {
        /// How long nobody led, in microseconds.
        pause_us: u64,
    },
    /// Digests agree.
    ReplicasChecked {
        /// Per partition: instance and digest that all replicas which answered share.
        partitions: Vec<(PartitionId, u64, u64)>,
        /// Replicas that did not answer.
        missing: Vec<(PartitionId, NodeId)>,
    },
    /// Not done, and why, in terms that a caller can act on.
    Failed(AdminError),
    /// How far a change of the cluster's shape is.
    Reshaped(Reshaped),
    /// How groups are tuned.
    Tuning(TuningReport),
    /// The map, and who leads.
    Map(MapReply),
    /// The users, by name.
    Users(Vec<UserRow>),
    /// The users are changed.
    UsersChanged(UserChangeReply),
}

/// Why a verb was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum AdminError {
    /// The cluster, key or thing exists already.
    #[error("{0}")]
    Exists(String),
    /// No such node, partition, setting.
    #[error("{0}")]
    NotFound(String),
    /// The argument makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The cluster is not in the state that it needs, or it would be unsafe.
    #[error("{0}")]
    Refused(String),
    /// It did not happen in time; the cluster is as before.
    #[error("{0}")]
    TimedOut(String),
    /// Replicas differ: the worst news there is.
    #[error("{0}")]
    Mismatch(String),
    /// A quorum or a node that it needs does not answer; nothing was done.
    #[error("{0}")]
    Unavailable(String),
    /// The node that was asked hears no majority of the directory: it cannot speak for the cluster; nothing was done.
    #[error("{text}")]
    NoMajority {
        /// What it says of itself.
        text: String,
        /// Where clients reach the other nodes that it knows.
        others: Vec<String>,
    },
}

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigRow {
    /// Full name.
    pub key: String,
    /// Effective value.
    pub value: String,
    /// Where it comes from: flag, environment, file, cluster, default.
    pub origin: String,
    /// Whether it holds for the cluster and can be set live; else it is one of the node that answers.
    pub cluster: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{FRAME_BYTES_MAX, FrameDecoder};

    /// What fits no frame is refused in words; once a body of some bytes too many ended the process.
    #[test]
    fn a_message_too_long_for_a_frame_becomes_a_refusal() {
        // The length of the text takes four bytes.
        for (bytes, kind) in [(BODY_BYTES_MAX - 4, Kind::AdminReply), (BODY_BYTES_MAX - 3, Kind::Refused)] {
            let mut out = BytesMut::new();
            encode_control(&mut out, Kind::AdminReply, 1, &"x".repeat(bytes));
            let mut decoder = FrameDecoder::new(FRAME_BYTES_MAX);
            decoder.feed(&out);
            assert_eq!(
                decoder.next_frame().map(|frame| frame.map(|frame| frame.kind)),
                Ok(Some(kind as u8)),
                "{bytes} bytes"
            );
        }
    }
}
