//! The incoming half of another node's traffic: frames of messages, handed to the shard as they come.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant as Clock};

use bytes::BytesMut;
use coppice_client::channel::Channel;
use coppice_client::wire::{FrameDecoder, Kind, NodeId};
use coppice_core::multicast::message;
use coppice_core::wire::peer;
use coppice_core::worker::Input;
use tokio::sync::Notify;

use super::peer_frame;
use crate::control::RETIRE_WITHIN;
use crate::shard::{Shard, TURN_TIME_MAX};

/// How often it is asked whether the connection began with certificates that have been replaced.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Connections of one node that are read at once. One more ends the oldest of them, whose other end may be long gone: a
/// node keeps one for each of its shards.
const CONNECTIONS_MAX: usize = 256;

/// The connections of all other nodes.
#[derive(Debug, Default)]
pub struct Places {
    taken: Mutex<BTreeMap<NodeId, VecDeque<Weak<Notify>>>>,
}

impl Places {
    /// A place for one more connection of a node.
    pub fn take(&self, node: NodeId) -> Place {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let places = taken.entry(node).or_default();
        places.retain(|place| place.strong_count() > 0);
        if places.len() >= CONNECTIONS_MAX
            && let Some(oldest) = places.pop_front().and_then(|place| place.upgrade())
        {
            oldest.notify_one();
        }
        let place = Place(Arc::new(Notify::new()));
        places.push_back(Arc::downgrade(&place.0));
        place
    }
}

/// A connection's place among those of its node, as long as it lives.
#[derive(Debug)]
pub struct Place(Arc<Notify>);

impl Place {
    /// Returns when a newer connection takes it.
    pub async fn taken(&self) {
        self.0.notified().await;
    }
}

/// Reads `stream` until it ends. `received` came behind the greeting.
/// It is over when a newer life of the node is let in: of two processes on copies of one directory, one counts.
pub async fn serve(shard: Rc<RefCell<Shard>>, (node, life): (NodeId, u64), mut stream: Channel, received: BytesMut) {
    let mut decoder = FrameDecoder::new(peer_frame::FRAME_BYTES_MAX);
    decoder.feed(&received);
    let (tls, mut looked, mut outdated_since) = (shard.borrow().shared.tls().cloned(), Clock::now(), None);
    let mut look = tokio::time::interval(LOOK_EVERY);
    loop {
        if !shard.borrow().shared.witnesses.is_newest(node, life) {
            return;
        }
        if tls.is_some() && looked.elapsed() > LOOK_EVERY {
            looked = Clock::now();
            // The other node connects again at once, and shows its certificate to the new authorities.
            if stream.is_outdated(tls.as_ref())
                && outdated_since.get_or_insert(looked).elapsed() + 2 * LOOK_EVERY > RETIRE_WITHIN
            {
                return;
            }
        }
        let (begun, stepped) = (shard.borrow().step_begins(), shard.borrow().stepped());
        let (handed, more) = hand_on(&shard, node, &mut decoder, begun);
        shard.borrow().received(begun, stepped);
        match handed {
            Handed::Bad => return,
            Handed::All => {}
            Handed::Asked if stream.write_all(&peer_frame::frame(peer_frame::ECHO, &[])).await.is_err() => return,
            Handed::Asked => {}
        }
        if more {
            tokio::task::yield_now().await;
            continue;
        }
        tokio::select! {
            ready = stream.readable() => if ready.is_err() { return },
            // Whoever is silent is looked at too.
            _ = look.tick(), if tls.is_some() => continue,
        }
        match stream.read(decoder.space()) {
            Ok(0) => return,
            Ok(_) => shard.borrow().heard(node),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// What came of the frames that were read.
enum Handed {
    All,
    /// And one of them asks for an echo.
    Asked,
    Bad,
}

/// Hands on what was read, and what came of it; and whether there is more of it: that has taken time since `begun`, and
/// others have their turn.
fn hand_on(shard: &RefCell<Shard>, node: NodeId, decoder: &mut FrameDecoder, begun: Clock) -> (Handed, bool) {
    let mut handed = Handed::All;
    loop {
        if begun.elapsed() > TURN_TIME_MAX {
            return (handed, true);
        }
        let frame = match decoder.next_frame() {
            Ok(Some(frame)) => frame,
            Ok(None) => return (handed, false),
            Err(error) => {
                tracing::warn!(%node, %error, "bytes of a peer are no frames; its connection is closed");
                return (Handed::Bad, false);
            }
        };
        if Kind::from_u8(frame.kind) == Some(Kind::Refused) {
            let reason = super::rpc::refusal_text(&frame.body);
            tracing::warn!(%node, %reason, "another node refuses this one");
            return (Handed::Bad, false);
        }
        if frame.kind == peer_frame::DURABLE
            && let Some(lsn) = frame.body.first_chunk()
        {
            shard.borrow().shared.witnesses.told(node, u64::from_le_bytes(*lsn));
            continue;
        }
        if frame.kind == peer_frame::FULL
            && let Some(full) = frame.body.first()
        {
            shard.borrow().shared.set_node_full(node, *full != 0);
            continue;
        }
        if frame.kind == peer_frame::ALIVE {
            continue;
        }
        if frame.kind == peer_frame::ECHO {
            handed = Handed::Asked;
            continue;
        }
        let read = match frame.kind {
            peer_frame::MESSAGES => {
                peer::decode(frame.body).map(|envelopes| shard.borrow_mut().input(Input::Peers { node, envelopes }))
            }
            peer_frame::MULTICAST => message::decode(&frame.body)
                .map(|messages| shard.borrow_mut().input(Input::Multicast { node, messages })),
            _ => {
                tracing::warn!(%node, kind = frame.kind, "a peer sent a frame of an unknown kind; its connection is closed");
                return (Handed::Bad, false);
            }
        };
        if let Err(error) = read {
            tracing::warn!(%node, %error, "a peer's message cannot be read; its connection is closed");
            return (Handed::Bad, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_connection_too_many_of_a_node_ends_the_oldest_of_its_own() {
        let places = Places::default();
        let other = places.take(NodeId(2));
        let mut first: VecDeque<Place> = (0..CONNECTIONS_MAX).map(|_| places.take(NodeId(1))).collect();
        drop(first.remove(7));
        let _fits = places.take(NodeId(1));
        let ends = async |place: &Place| {
            tokio::time::timeout(std::time::Duration::from_millis(1), place.taken()).await.is_ok()
        };
        assert!(!ends(&first[0]).await);
        let _too_many = places.take(NodeId(1));
        assert!(ends(&first[0]).await && !ends(&first[1]).await && !ends(&other).await);
    }
}
