//! What other threads tell the control thread.

use std::collections::BTreeMap;
use std::sync::Arc;

use coppice_client::wire::{AdminReply, AdminRequest, NodeId, Status, StatusGet};
use coppice_core::worker::Report;
use tokio::sync::oneshot;

use coppice_core::question::{Answer, Asker, Question};
use coppice_core::status::live::ClusterLive;

/// A message to the control thread.
pub enum ToControl {
    /// A worker reports to the controller.
    Report(Report),
    /// A client asks for the status.
    Status {
        get: StatusGet,
        /// Where to.
        reply: oneshot::Sender<Arc<Status>>,
    },
    /// A page is open.
    Live {
        /// The samples of each node that it has.
        after: BTreeMap<NodeId, u64>,
        /// Where to.
        reply: oneshot::Sender<ClusterLive>,
    },
    /// Why this node is not ready for clients; nothing: it is.
    Readiness(oneshot::Sender<Vec<String>>),
    /// An operator's verb.
    Admin {
        request: Box<AdminRequest>,
        /// Who asks; none: access control is off.
        by: Option<String>,
        /// Where to.
        reply: oneshot::Sender<AdminReply>,
    },
    /// Another node asks.
    Question {
        asker: Box<Asker>,
        question: Box<Question>,
        /// Where to.
        reply: oneshot::Sender<Answer>,
    },
    /// That node has let this one in; or it says that this one runs on a copy of its data directory, in words.
    Vetted(NodeId, Result<(), String>),
    /// Transfer leaderships, finish, stop.
    Stop,
}

/// The way to the control thread.
pub type TellControl = Box<dyn Fn(ToControl) + Send + Sync>;
