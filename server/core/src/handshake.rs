//! What opens every connection at the peer port, whatever it is for: the dialer says who it is and whom it means, the
//! acceptor checks that and says who it is, the dialer checks the answer. Nothing else is sent or believed before.
//!
//! A mismatch is a refusal with a sentence, which both ends log: the one that refuses sends it.

mod met;

use bytes::BytesMut;
use coppice_client::map::{NodeState, PartitionMap};
use coppice_client::tls::names::Names;
use coppice_client::wire::frame::HEADER_BYTES;
use coppice_client::wire::{ClusterId, Frame, FrameDecoder, Kind, NodeId, Refusal};
pub use met::{MetNodes, NewStart};
use serde::{Deserialize, Serialize};

use crate::incarnation::claim::{ClaimError, IncarnationClaim};
use crate::settings::FEATURE_LEVEL;
use crate::wire::peer_frame;

/// The newest version of what nodes say to one another that this program speaks. Each feature level has its own.
pub const PEER_PROTOCOL: u16 = PEER_PROTOCOL_OLDEST - 1 + FEATURE_LEVEL as u16;

/// The oldest: that of feature level 1.
pub const PEER_PROTOCOL_OLDEST: u16 = 14;

/// What nodes of a cluster of this feature level say. A program that does not know the level refuses it.
pub fn peer_protocol(feature_level: u32) -> u16 {
    PEER_PROTOCOL_OLDEST - 1 + feature_level.clamp(1, FEATURE_LEVEL) as u16
}

/// Longest frame before both ends have said who they are, with its header: a greeting, or a refusal.
pub const HELLO_BYTES_MAX: usize = HEADER_BYTES + 3_072;

/// Words of a refusal, in bytes.
const REFUSAL_BYTES_MAX: usize = 2_048;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// Messages of groups, one way.
    Messages,
    /// One question and its answer ([`crate::question`]).
    Question,
    /// One snapshot of a group.
    Snapshot,
    /// A question of forming a cluster or of adding a node: either end may belong to no cluster yet, or to another one.
    Forming,
}

/// Which process a node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    pub cluster: ClusterId,
    pub node: NodeId,
    /// What it says of its log.
    pub claim: IncarnationClaim,
}

/// What one end of a connection has against the other one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Objection {
    /// It runs on a copy of its directory: it must not vote.
    Copy(ClaimError),
    /// It is not let in now.
    Other(String),
}

impl Objection {
    /// In words.
    pub fn text(&self) -> String {
        match self {
            Objection::Copy(error) => error.to_string(),
            Objection::Other(text) => text.clone(),
        }
    }

    /// As the frame that tells the dialer.
    pub fn frame(&self) -> BytesMut {
        match self {
            Objection::Copy(error) => peer_frame::frame(peer_frame::COPY, error.to_string().as_bytes()),
            Objection::Other(text) => refusal(text),
        }
    }
}

/// The first frame of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerHello {
    /// See [`peer_protocol`].
    pub protocol: u16,
    pub purpose: Purpose,
    /// The dialer; none: it belongs to no cluster yet.
    pub from: Option<Presence>,
    /// The node that is meant; none: any of the cluster, or whoever it is if the purpose is to form one.
    pub to: Option<NodeId>,
}

/// The answer to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerWelcome {
    /// That of the dialer.
    pub protocol: u16,
    /// The acceptor; none: it belongs to no cluster yet.
    pub from: Option<Presence>,
}

/// A greeting as a frame.
pub fn frame_of<T: Serialize>(kind: u8, greeting: &T) -> BytesMut {
    peer_frame::frame(kind, &postcard::to_stdvec(greeting).expect("a greeting is plain data"))
}

/// Reads a greeting. The version comes first: of another one nothing else is read.
fn read<T: for<'a> Deserialize<'a>>(body: &[u8]) -> Result<T, String> {
    let (protocol, _) = postcard::take_from_bytes::<u16>(body).map_err(|_| UNREADABLE.to_owned())?;
    if !(PEER_PROTOCOL_OLDEST..=PEER_PROTOCOL).contains(&protocol) {
        return Err(format!(
            "peer protocol {protocol} is not one of {PEER_PROTOCOL_OLDEST} to {PEER_PROTOCOL}: {WAY_OF_UPGRADES}"
        ));
    }
    match postcard::take_from_bytes(body) {
        Ok((greeting, [])) => Ok(greeting),
        _ => Err(UNREADABLE.to_owned()),
    }
}

const WAY_OF_UPGRADES: &str = "run versions that follow each other, and raise `feature_level` last";

const UNREADABLE: &str = "the greeting cannot be read";

/// Reads the first frame of a connection.
///
/// # Errors
/// In words, for the dialer.
pub fn read_hello(frame: &Frame) -> Result<PeerHello, String> {
    match frame.kind {
        peer_frame::HELLO => read(&frame.body),
        kind => Err(format!("a frame of kind {kind} does not open a connection between nodes")),
    }
}

/// Judges the first frame of a connection, as the acceptor that is `own`: the dialer's certificate has the names
/// `names`, it may be served, and `judge` has nothing against it. Returns what it says, and the answer.
///
/// # Errors
/// For both, and which node the dialer says that it is.
pub fn accept(
    frame: &Frame,
    names: Option<&Names>,
    own: Option<Presence>,
    map: &PartitionMap,
    judge: impl FnOnce(&Presence) -> Result<(), Objection>,
) -> Result<(PeerHello, BytesMut), (Option<NodeId>, Objection)> {
    let hello = read_hello(frame).map_err(|text| (None, Objection::Other(text)))?;
    let judged = certified(&hello, names).and_then(|()| admit(&hello, own.as_ref(), map)).map_err(Objection::Other);
    let judged = judged.and_then(|()| match &hello.from {
        Some(them) if hello.purpose != Purpose::Forming => judge(them),
        _ => Ok(()),
    });
    match judged {
        Ok(()) => {
            let welcome = PeerWelcome { protocol: hello.protocol, from: own };
            Ok((hello, frame_of(peer_frame::WELCOME, &welcome)))
        }
        Err(objection) => Err((hello.from.map(|them| them.node), objection)),
    }
}

/// Whether the acceptor, which is `own`, may serve the dialer that says `hello`.
fn admit(hello: &PeerHello, own: Option<&Presence>, map: &PartitionMap) -> Result<(), String> {
    if hello.purpose == Purpose::Forming {
        return Ok(());
    }
    let Some(own) = own else { return Err("this node belongs to no cluster yet".into()) };
    let Some(from) = &hello.from else { return Err("you belong to no cluster, this node does".into()) };
    if from.cluster != own.cluster {
        return Err(format!("you belong to cluster {}, this node to cluster {}", from.cluster, own.cluster));
    }
    if let Some(to) = hello.to.filter(|&to| to != own.node) {
        return Err(format!("you mean {to}, this is {}", own.node));
    }
    if from.node == own.node {
        return Err(format!("you say that you are {}, and so is this node", own.node));
    }
    // Whoever is not in the map, or no more, may still ask for it.
    if hello.purpose != Purpose::Question {
        standing(from.node, map)?;
    }
    Ok(())
}

/// Whether the dialer's certificate is that of the node that it says it is; none: connections are in the clear, and
/// whoever reaches the port is believed. A process that belongs to no cluster yet shows a node's certificate too.
fn certified(hello: &PeerHello, names: Option<&Names>) -> Result<(), String> {
    let Some(names) = names else { return Ok(()) };
    match &hello.from {
        _ if mutant!(certificate_not_compared) => Ok(()),
        Some(from) if names.is_node(from.node) => Ok(()),
        Some(from) => Err(format!("your certificate is for {names}, and you say that you are {}", from.node)),
        None if !names.nodes().is_empty() => Ok(()),
        None => Err(format!("your certificate is for {names}, not for a node")),
    }
}

/// Whether `node` is one of the cluster's. Before the first map any is that says so: the nodes that form it.
///
/// # Errors
/// In words, for the node.
pub fn standing(node: NodeId, map: &PartitionMap) -> Result<(), String> {
    if map.version.0 == 0 {
        return Ok(());
    }
    match map.node(node).map(|info| info.state) {
        None => Err(format!("{node} is not in the map of version {} that this node knows", map.version.0)),
        Some(NodeState::Removed) => Err(format!("{node} was removed from the cluster: stop it")),
        Some(_) => Ok(()),
    }
}

/// Reads the acceptor's answer and checks that it is who was meant.
fn read_welcome(hello: &PeerHello, frame: &Frame) -> Result<Option<Presence>, WelcomeError> {
    if Kind::from_u8(frame.kind) == Some(Kind::Refused) {
        return Err(WelcomeError::Refused(refusal_text(&frame.body)));
    }
    if frame.kind == peer_frame::COPY {
        return Err(WelcomeError::Copy(String::from_utf8_lossy(&frame.body).into_owned()));
    }
    let own = WelcomeError::Unwanted;
    if frame.kind != peer_frame::WELCOME {
        return Err(own(format!("a frame of kind {} is no answer to a greeting", frame.kind)));
    }
    let welcome: PeerWelcome = read(&frame.body).map_err(own)?;
    if hello.purpose == Purpose::Forming || mutant!(answerer_not_checked) {
        return Ok(welcome.from);
    }
    let Some(them) = welcome.from else { return Err(own("it belongs to no cluster yet".into())) };
    if let Some(us) = hello.from.filter(|us| us.cluster != them.cluster) {
        return Err(own(format!("it belongs to cluster {}, this node to cluster {}", them.cluster, us.cluster)));
    }
    if let Some(to) = hello.to.filter(|&to| to != them.node) {
        return Err(own(format!("{to} is meant, it is {}", them.node)));
    }
    Ok(Some(them))
}

/// Why a connection is of no use to its dialer.
#[derive(Debug, thiserror::Error)]
pub enum WelcomeError {
    /// The acceptor refused.
    #[error("it refuses this node: {0}")]
    Refused(String),
    /// The acceptor says that this node runs on a copy of its directory.
    #[error("it refuses this node: {0}")]
    Copy(String),
    /// The acceptor is not who was meant, or not what it was.
    #[error("this node refuses it: {0}")]
    Unwanted(String),
}

/// Judges an answer: who gave it is who was meant, nothing came behind it, and `judge` has nothing against it.
///
/// # Errors
/// The acceptor refused, or is somebody else.
pub fn judge_answer(
    hello: &PeerHello,
    frame: &Frame,
    behind: &FrameDecoder,
    judge: impl FnOnce(&Presence) -> Result<(), Objection>,
) -> Result<Option<Presence>, WelcomeError> {
    let them = read_welcome(hello, frame)?;
    if behind.held_bytes() > 0 {
        return Err(WelcomeError::Unwanted("it says more than it was asked".into()));
    }
    if hello.purpose != Purpose::Forming
        && let Some(them) = &them
    {
        judge(them).map_err(|objection| WelcomeError::Unwanted(objection.text()))?;
    }
    Ok(them)
}

/// A refusal as a frame.
pub fn refusal(text: &str) -> BytesMut {
    // A certificate may name more than the other end reads.
    encoded(Refusal::Denied { text: text[..text.floor_char_boundary(REFUSAL_BYTES_MAX)].to_owned() })
}

/// A frame that refuses a connection for now: this node can serve nobody yet.
pub fn not_yet(text: &str) -> BytesMut {
    encoded(Refusal::Unavailable { text: text.to_owned() })
}

fn encoded(refusal: Refusal) -> BytesMut {
    let mut out = BytesMut::new();
    refusal.encode(&mut out, 0);
    out
}

/// The words of a refusal.
pub fn refusal_text(body: &[u8]) -> String {
    match Refusal::decode(body) {
        Ok(refusal) => refusal.words(),
        Err(_) => "refused".into(),
    }
}

#[cfg(test)]
mod tests;
