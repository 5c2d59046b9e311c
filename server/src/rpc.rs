//! Asks another node a question: one connection, a handshake, one frame there, one frame back, all within a deadline.

use std::time::Duration;

use coppice_client::channel::Channel;
use coppice_client::resolve;
use coppice_client::wire::{FrameDecoder, Kind, NodeId};
use coppice_core::handshake::{PeerHello, Purpose, WelcomeError, refusal_text};
use coppice_core::question::{Answer, Question};
use coppice_core::wire::peer_frame;

use crate::net::handshake::{self, HandshakeError};
use crate::shared::Shared;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// There is no connection: it was not asked.
    #[error("{address}: {text}")]
    Unreachable {
        /// Who was to be asked.
        address: String,
        /// What the system said.
        text: String,
    },
    /// The connection broke before the answer: it may have been asked.
    #[error("{address}: {text}")]
    Broken {
        /// Who was asked.
        address: String,
        /// What the system said.
        text: String,
    },
    /// No answer in time.
    #[error("{address}: no answer within {timeout:?}")]
    TimedOut {
        /// Who was asked.
        address: String,
        /// How long was waited.
        timeout: Duration,
    },
    /// It refused.
    #[error("{address}: {text}")]
    Refused {
        /// Who was asked.
        address: String,
        /// Its words.
        text: String,
    },
}

/// Asks node `to`, whose peer port is `address`; none: whichever node of this cluster serves there. Where faults made
/// on purpose cut the link to it, no question passes either.
pub async fn ask(
    shared: &Shared,
    to: Option<NodeId>,
    address: &str,
    question: &Question,
    timeout: Duration,
) -> Result<Answer, AskError> {
    if to.is_some_and(|node| shared.peers.is_cut_off(node)) {
        return Err(AskError::Unreachable { address: address.to_owned(), text: "cut off".into() });
    }
    let hello = shared.hello(Purpose::Question, to);
    let mut excuse = None;
    let answer = ask_as(shared, &hello, address, question, timeout, &mut excuse).await;
    if let Some(node) = to {
        shared.peers.set_excuse(node, excuse);
    }
    answer
}

/// Asks whoever serves the peer port `address`, of this cluster, of another one or of none: what forming a cluster and
/// adding a node ask.
pub async fn ask_anybody(
    shared: &Shared,
    address: &str,
    question: &Question,
    timeout: Duration,
) -> Result<Answer, AskError> {
    let hello = shared.hello(Purpose::Forming, None);
    ask_as(shared, &hello, address, question, timeout, &mut None).await
}

/// `excuse`: what the node says that does not let anybody ask.
async fn ask_as(
    shared: &Shared,
    hello: &PeerHello,
    address: &str,
    question: &Question,
    timeout: Duration,
    excuse: &mut Option<String>,
) -> Result<Answer, AskError> {
    let unreachable =
        |error: std::io::Error| AskError::Unreachable { address: address.to_owned(), text: error.to_string() };
    let broken = |error: std::io::Error| AskError::Broken { address: address.to_owned(), text: error.to_string() };
    let refused = |text: String| AskError::Refused { address: address.to_owned(), text };
    let exchange = async {
        let stream = resolve::connect(address).await.map_err(unreachable)?;
        let mut stream = Channel::to_node(stream, shared.tls(), hello.to).await.map_err(unreachable)?;
        match handshake::dial(&mut stream, hello, |them| shared.judge(them)).await {
            Ok(_) => {}
            Err(HandshakeError::Io(error)) => return Err(broken(error)),
            Err(HandshakeError::Welcome(WelcomeError::Refused(text) | WelcomeError::Copy(text))) => {
                *excuse = Some(text.clone());
                return Err(refused(text));
            }
            Err(HandshakeError::Welcome(error @ WelcomeError::Unwanted(_))) => return Err(refused(error.to_string())),
        }
        let body = postcard::to_stdvec(question).expect("questions are plain data");
        stream.write_all(&peer_frame::frame(peer_frame::CONTROL, &body)).await.map_err(broken)?;
        let mut decoder = FrameDecoder::new(peer_frame::FRAME_BYTES_MAX);
        let frame = handshake::read_frame(&mut stream, &mut decoder).await.map_err(broken)?;
        if Kind::from_u8(frame.kind) == Some(Kind::Refused) {
            return Err(refused(refusal_text(&frame.body)));
        }
        match postcard::from_bytes(&frame.body) {
            Ok(Answer::Refused(text)) => Err(refused(text)),
            Ok(answer) => Ok(answer),
            Err(_) => Err(refused("its answer cannot be read".into())),
        }
    };
    match tokio::time::timeout(timeout, exchange).await {
        Ok(answer) => answer,
        Err(_) => Err(AskError::TimedOut { address: address.to_owned(), timeout }),
    }
}
