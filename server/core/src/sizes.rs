//! Sizes of our wire for the model (papers.md A9): not constants, but what the encoders write.

use bytes::BytesMut;
use coppice_btree::{Op, OpResult};
use coppice_client::wire::frame::HEADER_BYTES;
use coppice_client::wire::reply::{PackReply, RepliesWriter};
use coppice_client::wire::{CommandsRequest, FrameDecoder, PackWriter, PartitionId, Request, SessionId};
use coppice_ordering::message::{Message, Phase2a, Phase2b};
use coppice_ordering::tuning::Sizes;
use coppice_ordering::{Ballot, Batch, Commands, Instance, ReplicaId};

use crate::wire::codec::Body;
use crate::wire::peer::{self, Envelope};

/// A partition that has run for a while: its numbers take the bytes that they take then.
const INSTANCE: u64 = 1 << 24;
const GROUP: PartitionId = PartitionId(1);
const KEY_BYTES: usize = 8;

/// The average sizes of commands whose key and value take `command_bytes` together (a key of up to 8 bytes), packed so
/// many to a frame: `None` if no pack holds such commands.
pub fn of_commands(command_bytes: usize, commands_per_pack: u32) -> Option<Sizes> {
    let entry = pack(command_bytes, commands_per_pack)?.entry;
    let (commands, pack_bytes) = (f64::from(commands_per_pack), entry.len());
    let batch = Batch::Commands(Commands::new(commands_per_pack, entry));
    let ballot = Ballot::new(1, 0);
    let accept =
        Phase2a { ballot, instance: Instance(INSTANCE), batch, decided_upto: Instance(INSTANCE), released: None };
    let vote = Phase2b { ballot, first: Instance(INSTANCE), instance: Instance(INSTANCE) };
    Some(Sizes {
        request: command_bytes as f64,
        request_header: pack_bytes as f64 / commands - command_bytes as f64,
        batch_header: (sent(accept.into()) - pack_bytes) as f64,
        answer: answer(commands_per_pack) as f64 / commands,
        vote: sent(vote.into()) as f64,
    })
}

/// The request as a leader's connection decodes it.
fn pack(command_bytes: usize, commands: u32) -> Option<CommandsRequest> {
    let session = SessionId { partition: GROUP, instance: INSTANCE, index: 0 };
    let bytes = vec![0; command_bytes];
    let (key, value) = bytes.split_at(command_bytes.min(KEY_BYTES));
    let eight = value.len() == KEY_BYTES;
    let mut writer = PackWriter::new(Vec::new(), session, INSTANCE, eight, usize::MAX);
    for number in 0..u64::from(commands) {
        writer.push(INSTANCE + number, Op::Put { key, value }).ok()?;
    }
    let mut decoder = FrameDecoder::new(coppice_client::wire::FRAME_BYTES_MAX);
    decoder.feed(&writer.finish(GROUP, 1)?);
    match Request::decode(&decoder.next_frame().ok()??).ok()? {
        Request::Commands(request) => Some(request),
        _ => None,
    }
}

/// Bytes of a frame with this message alone.
fn sent(message: Message) -> usize {
    let mut body = Body::default();
    peer::encode(&mut body, &Envelope { group: GROUP.0, to: ReplicaId(1), from: ReplicaId(0), message });
    HEADER_BYTES + body.len()
}

/// Bytes of a frame that answers a pack of puts alone.
fn answer(commands: u32) -> usize {
    let mut answer = BytesMut::new();
    let mut reply = PackReply::new(&mut answer, GROUP, INSTANCE, 0);
    (0..commands).for_each(|_| reply.result(&OpResult::Put { previous: None }));
    reply.finish();
    let mut frame = BytesMut::new();
    let mut writer = RepliesWriter::new(&mut frame);
    writer.answer(1, &answer).expect("an answer that was just written");
    writer.finish();
    frame.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_models_bytes_are_those_of_the_wire() {
        // papers.md A9: one batch of 3 packs of 5 commands, encoded, against S_2a.
        for (command_bytes, packed) in [(16, 5), (128, 5), (8_192, 5)] {
            let sizes = of_commands(command_bytes, packed).expect("packs");
            let part = pack(command_bytes, packed).expect("a pack").entry;
            let batch = Batch::Commands(Commands::new(15, [&part[..]; 3].concat().into()));
            let (ballot, instance) = (Ballot::new(1, 0), Instance(INSTANCE));
            let bytes = sent(Phase2a { ballot, instance, batch, decided_upto: instance, released: None }.into());
            // Lengths are varints: a batch three times as long may need a byte more.
            let predicted = sizes.batch(15.0);
            assert!((predicted - bytes as f64).abs() <= 2.0, "{command_bytes}: {predicted}, not {bytes}");
        }
        // The papers' update: 18 bytes in a pack, and a share of the pack's own.
        let eight = of_commands(16, 100).expect("packs");
        assert!((2.0..3.0).contains(&eight.request_header), "{eight:?}");
        assert!((1.0..2.0).contains(&eight.answer), "{eight:?}");
        // Alone it pays for the whole pack, and its answer for a whole frame.
        let alone = of_commands(16, 1).expect("packs");
        assert!(alone.request_header > 10.0 && alone.answer > HEADER_BYTES as f64, "{alone:?}");
        assert_eq!(of_commands(8 << 20, 1), None);
    }
}
