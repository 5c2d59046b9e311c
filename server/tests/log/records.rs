//! Records read back as they were written; any other bytes are refused without a panic.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use coppice_client::wire::PartitionId;
use coppice_core::replay::Entry;
use coppice_server::log::record::{Decoded, Gather, decode, decode_mark, encode, encode_mark, entry_bytes};
use coppice_server::log::segment::MarkSeed;
use coppice_server::log::{Ballot, Batch, Commands, Configuration, Instance, Record, ReplicaId};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

fn bytes(max: usize) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..max).prop_map(Bytes::from)
}

fn replicas() -> impl Strategy<Value = BTreeSet<ReplicaId>> {
    btree_set(any::<u32>().prop_map(ReplicaId), 0..5)
}

fn batch() -> impl Strategy<Value = Batch> {
    let commands = (any::<u32>(), vec(bytes(600), 1..5))
        .prop_map(|(count, mut parts)| Batch::Commands(Commands::from_parts(count, &mut parts)));
    let configuration = (replicas(), replicas(), replicas());
    let configuration = configuration
        .prop_map(|(voters, learners, leaving)| Batch::Configuration(Configuration { voters, learners, leaving }));
    prop_oneof![Just(Batch::NoOp), commands, configuration]
}

fn record() -> impl Strategy<Value = Record> {
    let ballot = || (any::<u64>(), any::<u32>()).prop_map(|(round, replica)| Ballot::new(round, replica));
    let instance = || any::<u64>().prop_map(Instance);
    prop_oneof![
        ballot().prop_map(|ballot| Record::Promise { ballot }),
        (instance(), ballot(), instance(), batch()).prop_map(|(instance, ballot, decided_upto, batch)| {
            Record::Accept { instance, ballot, decided_upto, batch }
        }),
        (instance(), ballot(), batch()).prop_map(|(instance, ballot, batch)| Record::Learned {
            instance,
            ballot,
            batch
        }),
        instance().prop_map(|upto| Record::Decided { upto }),
        any::<u64>().prop_map(|nanoseconds| Record::Lease { duration: Duration::from_nanos(nanoseconds) }),
    ]
}

fn entry() -> impl Strategy<Value = Entry> {
    let group = || any::<u32>().prop_map(PartitionId);
    let replica = || any::<u32>().prop_map(ReplicaId);
    prop_oneof![
        6 => (group(), record()).prop_map(|(group, record)| Entry::Group { group, record }),
        1 => (group(), replica(), bytes(900))
            .prop_map(|(group, replica, create)| Entry::Created { group, replica, create }),
        1 => (group(), replica()).prop_map(|(group, replica)| Entry::Removed { group, replica }),
        1 => (group(), any::<u64>()).prop_map(|(group, upto)| Entry::Trimmed { group, upto: Instance(upto) }),
        1 => any::<u64>().prop_map(|segment| Entry::Kept { segment }),
    ]
}

const NO_SEED: MarkSeed = MarkSeed { crc: 0, salt: 0 };

fn encoded(entry: &Entry, lsn: u64, carried: bool, chain: u32) -> (Vec<u8>, u32) {
    let mut out = Gather::default();
    let crc = encode(entry, lsn, carried, chain, &mut out);
    assert_eq!(out.len(), entry_bytes(entry) as u64);
    (out.finish().concat(), crc)
}

proptest! {
    #[test]
    fn a_record_reads_back(entry in entry(), lsn: u64, carried: bool, chain: u32, crc: u32, salt: u64) {
        let seed = MarkSeed { crc, salt };
        let (bytes, crc) = encoded(&entry, lsn, carried, chain);
        let decoded = decode(&bytes, chain, seed);
        prop_assert_eq!(decoded, Ok(Some((bytes.len(), crc, Decoded::Entry { lsn, carried, entry }))));
    }

    #[test]
    fn a_mark_reads_back_at_its_place_only(
        next_lsn: u64, durable: u64, chain: u32, crc: u32, salt: u64, other: u32, other_salt: u64,
    ) {
        prop_assume!(crc != other && salt != other_salt);
        let seed = MarkSeed { crc, salt };
        let mut out = Gather::default();
        encode_mark(next_lsn, durable, chain, seed, &mut out);
        let bytes = out.finish().concat();
        prop_assert_eq!(decode_mark(&bytes, seed), Some(durable));
        prop_assert_eq!(decode_mark(&bytes, MarkSeed { crc: other, salt }), None);
        prop_assert_eq!(decode_mark(&bytes, MarkSeed { crc, salt: other_salt }), None);
        let decoded = decode(&bytes, 5, seed).expect("good").expect("a record").2;
        prop_assert_eq!(decoded, Decoded::Mark { next_lsn, durable, chain });
    }

    #[test]
    fn a_flipped_bit_or_another_place_is_refused(
        entry in entry(),
        lsn: u64,
        chain: u32,
        at: prop::sample::Index,
        bit in 0..8,
    ) {
        let (mut bytes, _) = encoded(&entry, lsn, false, chain);
        prop_assert!(decode(&bytes, chain ^ 1, NO_SEED).is_err());
        let at = at.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        let seed = MarkSeed { crc: chain, salt: 0 };
        prop_assert!(decode(&bytes, chain, seed).is_err());
    }

    #[test]
    fn a_record_cut_short_is_refused(entry in entry(), chain: u32, at: prop::sample::Index) {
        let (bytes, _) = encoded(&entry, 1, false, chain);
        let at = at.index(bytes.len());
        prop_assert!(!matches!(decode(&bytes[..at], chain, NO_SEED), Ok(Some(_))));
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in vec(any::<u8>(), 0..300), chain: u32, crc: u32, salt: u64) {
        let seed = MarkSeed { crc, salt };
        _ = decode(&bytes, chain, seed);
        _ = decode_mark(&bytes, seed);
    }

    /// Random bytes hardly ever pass the checksum; these have a right one, so that the body's decoder is reached.
    #[test]
    fn any_body_under_a_right_checksum_is_read_without_a_panic(
        mut bytes in vec(any::<u8>(), 44..200), kind in 0..24_u8, small in 0..4_u32,
    ) {
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes[40] = kind;
        if let Some(count) = bytes.get_mut(52..56) {
            count.copy_from_slice(&small.to_le_bytes());
        }
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..4]), &bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        _ = decode(&bytes, 0, NO_SEED);
    }
}
