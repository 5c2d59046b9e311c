//! The incoming half of another node's traffic: frames of messages, handed to the worker thread as they come.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant as Clock};

use bytes::BytesMut;
use coppice_client::channel::Channel;
use coppice_client::wire::{FrameDecoder, NodeId};
use coppice_core::connection::{PeerDispatch, PeerFrameError, decode_peer};
use coppice_core::wire::peer_frame;

use super::{RETIRE_WITHIN, TURN_TIME_MAX, WorkerThread};

/// How often it is asked whether the connection began with certificates that have been replaced.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Reads `stream` until it ends. `received` came behind the greeting.
/// It is over when a newer start of the node is let in: of two processes on copies of one directory, one counts.
pub async fn serve(
    thread: Rc<RefCell<WorkerThread>>,
    (node, boot_id): (NodeId, u64),
    mut stream: Channel,
    received: BytesMut,
) {
    let mut decoder = FrameDecoder::new(peer_frame::FRAME_BYTES_MAX);
    decoder.feed(&received);
    let (tls, mut looked, mut outdated_since) = (thread.borrow().shared.tls().cloned(), Clock::now(), None);
    let mut look = tokio::time::interval(LOOK_EVERY);
    loop {
        if !thread.borrow().shared.own.incarnations.is_newest(node, boot_id) {
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
        let (begun, stepped) = (thread.borrow().clock.begins(), thread.borrow().clock.stepped());
        let (handed, more) = hand_on(&thread, node, &mut decoder, begun);
        thread.borrow().clock.received(begun, stepped);
        match handed {
            FrameOutcome::Bad => return,
            FrameOutcome::All => {}
            FrameOutcome::Asked if stream.write_all(&peer_frame::frame(peer_frame::ECHO, &[])).await.is_err() => return,
            FrameOutcome::Asked => {}
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
            Ok(_) => thread.borrow().heard(node),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// What came of the frames that were read.
enum FrameOutcome {
    All,
    /// And one of them asks for an echo.
    Asked,
    Bad,
}

/// Hands on what was read, and what came of it; and whether there is more of it: that has taken time since `begun`, and
/// others have their turn.
fn hand_on(
    thread: &RefCell<WorkerThread>,
    node: NodeId,
    decoder: &mut FrameDecoder,
    begun: Clock,
) -> (FrameOutcome, bool) {
    let mut handed = FrameOutcome::All;
    loop {
        if begun.elapsed() > TURN_TIME_MAX {
            return (handed, true);
        }
        let frame = match decoder.next_frame() {
            Ok(Some(frame)) => frame,
            Ok(None) => return (handed, false),
            Err(error) => {
                tracing::warn!(%node, %error, "bytes of a peer are no frames; its connection is closed");
                return (FrameOutcome::Bad, false);
            }
        };
        match decode_peer(node, frame) {
            Ok(PeerDispatch::Worker(input)) => thread.borrow_mut().input(input),
            Ok(PeerDispatch::Durable(lsn)) => thread.borrow().shared.own.incarnations.raise_durable(node, lsn),
            Ok(PeerDispatch::Full(full)) => thread.borrow().shared.peers.set_full(node, full),
            Ok(PeerDispatch::Alive) => {}
            Ok(PeerDispatch::Echo) => handed = FrameOutcome::Asked,
            Err(PeerFrameError::Refused(reason)) => {
                tracing::warn!(%node, %reason, "another node refuses this one");
                return (FrameOutcome::Bad, false);
            }
            Err(error) => {
                tracing::warn!(%node, %error, "what a peer sent is no message; its connection is closed");
                return (FrameOutcome::Bad, false);
            }
        }
    }
}
