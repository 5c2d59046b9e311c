//! What becomes of a frame that another node sends, behind the greeting.

use coppice_client::wire::{Frame, Kind, NodeId, WireError};

use crate::handshake::refusal_text;
use crate::multicast::message;
use crate::wire::{peer, peer_frame};
use crate::worker::Input;

/// What a node does for a frame of another one.
pub enum PeerDispatch {
    /// Tells the worker.
    Worker(Input),
    /// Remembers that the node's log is durable as far as this lsn.
    Durable(u64),
    /// Remembers whether the node has no room.
    Full(bool),
    /// Nothing: the node lives.
    Alive,
    /// Sends the frame back.
    Echo,
}

/// Why nothing more is read of a connection.
#[derive(Debug, thiserror::Error)]
pub enum PeerFrameError {
    /// The other node refuses this one.
    #[error("{0}")]
    Refused(String),
    /// A frame of no kind that comes there.
    #[error("a frame of the unknown kind {0}")]
    Kind(u8),
    /// A frame that is not what its kind says.
    #[error("a message cannot be read: {0}")]
    Message(#[from] WireError),
}

/// Reads a frame of `node`.
///
/// # Errors
/// It ends the connection.
pub fn decode_peer(node: NodeId, frame: Frame) -> Result<PeerDispatch, PeerFrameError> {
    Ok(match frame.kind {
        peer_frame::MESSAGES => PeerDispatch::Worker(Input::Peers { node, envelopes: peer::decode(frame.body)? }),
        peer_frame::MULTICAST => {
            PeerDispatch::Worker(Input::Multicast { node, messages: message::decode(&frame.body)? })
        }
        peer_frame::DURABLE => {
            let lsn = frame.body.first_chunk().ok_or(WireError::Truncated)?;
            PeerDispatch::Durable(u64::from_le_bytes(*lsn))
        }
        peer_frame::FULL => PeerDispatch::Full(*frame.body.first().ok_or(WireError::Truncated)? != 0),
        peer_frame::ALIVE => PeerDispatch::Alive,
        peer_frame::ECHO => PeerDispatch::Echo,
        kind if Kind::from_u8(kind) == Some(Kind::Refused) => {
            return Err(PeerFrameError::Refused(refusal_text(&frame.body)));
        }
        kind => return Err(PeerFrameError::Kind(kind)),
    })
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use coppice_client::wire::{FrameDecoder, Refusal};

    use super::*;

    fn decode(bytes: &[u8]) -> Result<PeerDispatch, PeerFrameError> {
        let mut decoder = FrameDecoder::default();
        decoder.feed(bytes);
        decode_peer(NodeId(2), decoder.next_frame().expect("a good frame").expect("a whole one"))
    }

    fn of(kind: u8, body: &[u8]) -> Result<PeerDispatch, PeerFrameError> {
        decode(&peer_frame::frame(kind, body))
    }

    #[test]
    fn each_kind_of_frame_has_its_place() {
        let worker =
            |input: fn(&Input) -> bool, kind| matches!(of(kind, &[]), Ok(PeerDispatch::Worker(it)) if input(&it));
        assert!(worker(|input| matches!(input, Input::Peers { node: NodeId(2), .. }), peer_frame::MESSAGES));
        assert!(worker(|input| matches!(input, Input::Multicast { node: NodeId(2), .. }), peer_frame::MULTICAST));
        assert!(matches!(of(peer_frame::DURABLE, &7_u64.to_le_bytes()), Ok(PeerDispatch::Durable(7))));
        assert!(matches!(of(peer_frame::FULL, &[0]), Ok(PeerDispatch::Full(false))));
        assert!(matches!(of(peer_frame::FULL, &[1]), Ok(PeerDispatch::Full(true))));
        assert!(matches!(of(peer_frame::ALIVE, &[]), Ok(PeerDispatch::Alive)));
        assert!(matches!(of(peer_frame::ECHO, &[]), Ok(PeerDispatch::Echo)));
    }

    #[test]
    fn what_cannot_be_read_or_does_not_come_there_ends_the_connection() {
        let cut = |kind| matches!(of(kind, &[]), Err(PeerFrameError::Message(WireError::Truncated)));
        assert!(cut(peer_frame::DURABLE) && cut(peer_frame::FULL));
        assert!(matches!(of(peer_frame::MESSAGES, &[1]), Err(PeerFrameError::Message(_))));
        assert!(matches!(of(peer_frame::HELLO, &[]), Err(PeerFrameError::Kind(peer_frame::HELLO))));
        let mut out = BytesMut::new();
        Refusal::Denied { text: "an old copy".into() }.encode(&mut out, 0);
        assert!(matches!(decode(&out), Err(PeerFrameError::Refused(text)) if text.contains("an old copy")));
    }
}
