//! Frames between nodes of which bytes change on the way, or which end early: they are encoded and decoded as the
//! server does it, and must be refused (hazards.md 4, bytes).

use bytes::Bytes;
use coppice_client::wire::frame::FrameDecoder;
use coppice_core::multicast::{MulticastMessage, message};
use coppice_core::wire::codec::Body;
use coppice_core::wire::peer::{self, Envelope};
use coppice_core::wire::peer_frame::{self, FRAME_BYTES_MAX, MESSAGES, MULTICAST};

use coppice_testkit::random::Random;

fn whole(kind: u8, mut body: Body) -> Vec<u8> {
    let body: Vec<u8> = body.take_pieces().concat();
    peer_frame::frame(kind, &body).to_vec()
}

/// The frame of a message.
pub fn of_message(envelope: &Envelope) -> Vec<u8> {
    let mut body = Body::default();
    peer::encode(&mut body, envelope);
    whole(MESSAGES, body)
}

/// The frame of a multicast message.
pub fn of_multicast(told: &MulticastMessage) -> Vec<u8> {
    let mut body = Body::default();
    message::encode(&mut body, told);
    whole(MULTICAST, body)
}

/// Damages a frame, and receives it with an intact one behind it. In words: what was made of it all the same.
pub fn refused(frame: &[u8], random: &mut Random) -> Result<(), String> {
    let at = random.below(frame.len());
    let mut arrived = frame.to_vec();
    match random.below(3) {
        // A piece of it is missing, or comes twice.
        0 => drop(arrived.drain(at..(at + 1 + random.below(16)).min(frame.len()))),
        1 => {
            let piece = frame[at..(at + 1 + random.below(16)).min(frame.len())].to_vec();
            arrived.splice(at..at, piece);
        }
        _ => arrived[at] ^= 1 << random.below(8),
    }
    // By chance a piece that comes twice is the beginning of the next frame, or what is missing came twice.
    if arrived.starts_with(frame) || [&arrived[..], frame].concat().starts_with(frame) {
        return Ok(());
    }
    let mut decoder = FrameDecoder::new(FRAME_BYTES_MAX);
    decoder.feed(&arrived);
    decoder.feed(frame);
    let length = arrived.first_chunk().map_or(0, |length| u32::from_le_bytes(*length) as usize);
    match decoder.next_frame() {
        Ok(None) if length > FRAME_BYTES_MAX => {
            Err(format!("byte {at} was damaged, and {length} bytes are waited for"))
        }
        Ok(None) | Err(_) => Ok(()),
        Ok(Some(taken)) => {
            let known = match taken.kind {
                MESSAGES => peer::decode(Bytes::clone(&taken.body)).map(|messages| messages.len()).ok(),
                _ => None,
            };
            Err(format!(
                "byte {at} of {} was damaged, and a frame of kind {} taken: {known:?}",
                frame.len(),
                taken.kind
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use coppice_ordering::message::Preempted;
    use coppice_ordering::{Ballot, ReplicaId};

    use super::*;

    #[test]
    fn no_damaged_frame_is_taken() {
        let message = Preempted { ballot: Ballot::new(7, 1) }.into();
        let frame = of_message(&Envelope { group: 3, to: ReplicaId(1), from: ReplicaId(2), message });
        let mut random = Random::of(1, 2);
        for _ in 0..20_000 {
            refused(&frame, &mut random).expect("refused");
        }
    }
}
