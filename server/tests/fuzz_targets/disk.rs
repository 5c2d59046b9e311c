//! What a node finds on its disk, and what it fetches of another's: records, segments, checkpoints, snapshots.

use std::collections::BTreeMap;

use bytes::Bytes;
use coppice_btree::{Key, KeyRange, Value};
use coppice_client::map::PartitionMap;
use coppice_client::wire::{ClientId, ClusterId, MapVersion, NodeId, PartitionId, SessionId};
use coppice_core::access::Users;
use coppice_core::incarnation::Identity;
use coppice_core::incarnation::claim::{IncarnationClaim, Judgement, KnownIncarnation, PAST_BOOT_IDS_MAX};
use coppice_core::machine::Machine;
use coppice_core::machine::directory::DirectoryState;
use coppice_core::machine::entry;
use coppice_core::machine::partition::{BoundaryChange, Partition};
use coppice_core::replay::Entry;
use coppice_core::replica_manager::CreateRequest;
use coppice_core::sessions::{SessionLimits, Sessions};
use coppice_core::snapshot;
use coppice_core::snapshot::{Blobs, Head};
use coppice_ordering::message::AcceptedBatch;
use coppice_ordering::{Ballot, Batch, Commands, Configuration, Instance, Record, ReplicaId, Ticket};
use coppice_server::checkpoint::Manifest;
use coppice_server::checkpoint::stream::{Decoder, Encoder, chunk_crc};
use coppice_server::datadir::known_incarnations::KnownIncarnations;
use coppice_server::log::record::{self, Gather};
use coppice_server::log::segment::{HEADER_BYTES, Header, MarkSeed, StartNonces};

use super::clients::{ENTRIES, entry_of, pack_of, run_batch_entries, session};
use super::peers::{self, accepted, stable, tagged, used};
use super::plain::plain;
use super::shape::{Prefix, Shape, parse};

// -- the log ---------------------------------------------------------------------------------------------------------

fn log_entries() -> Vec<Entry> {
    let (group, ballot) = (PartitionId(2), Ballot::new(6, 1));
    let create = postcard::to_stdvec(&CreateRequest::of(&peers::map(ClusterId(7)).partitions[0])).expect("plain data");
    let mut entries = vec![
        Entry::Group { group, record: Record::Promise { ballot } },
        Entry::Group { group, record: Record::Decided { upto: Instance(8) } },
        Entry::Group { group, record: Record::Lease { duration: std::time::Duration::from_millis(9) } },
        Entry::Created { group, replica: ReplicaId(1), create: create.into() },
        Entry::Removed { group, replica: ReplicaId(1) },
        Entry::Trimmed { group, upto: Instance(77) },
        Entry::Kept { segment: 4 },
    ];
    for AcceptedBatch { instance, ballot, batch } in accepted() {
        let decided_upto = Instance(9);
        let vote = Record::Accept { instance, ballot, decided_upto, batch: batch.clone() };
        entries.push(Entry::Group { group, record: vote });
        entries.push(Entry::Group { group, record: Record::Learned { instance, ballot, batch } });
    }
    entries
}

fn recorded(entry: &Entry, lsn: u64, carried: bool) -> Vec<u8> {
    let mut out = Gather::default();
    record::encode(entry, lsn, carried, 0, &mut out);
    out.finish().concat()
}

pub fn log_records() -> Vec<Shape> {
    let shape = |entry: &Entry| {
        let body = match entry {
            Entry::Group { record: Record::Accept { batch, .. } | Record::Learned { batch, .. }, .. } => match batch {
                Batch::NoOp => "8".to_owned(),
                Batch::Commands(_) => format!("8 4 {ENTRIES}"),
                Batch::Configuration(_) => "8 C(4)C(4)C(4)".to_owned(),
            },
            _ => ".".to_owned(),
        };
        parse(&format!("4 4 8 4 8 8 4 b b 2 {body}"), &recorded(entry, 5, false))
    };
    log_entries().iter().map(shape).collect()
}

const NO_SEED: MarkSeed = MarkSeed { crc: 0, salt: 0 };

pub fn run_log_record(bytes: &[u8]) -> bool {
    _ = record::decode_mark(bytes, NO_SEED);
    let understood = matches!(record::decode(bytes, 0, NO_SEED), Ok(Some(_)));
    if bytes.len() < record::HEAD_BYTES {
        return understood;
    }
    // Again with a length and a checksum that fit.
    let mut whole = bytes.to_vec();
    whole[..4].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&whole[..4]), &whole[8..]);
    whole[4..8].copy_from_slice(&crc.to_le_bytes());
    _ = record::decode_mark(&whole, NO_SEED);
    let Ok(Some((length, _, decoded))) = record::decode(&whole, 0, NO_SEED) else { return false };
    assert_eq!(length, whole.len());
    if let record::Decoded::Entry { lsn, carried, entry } = decoded {
        if let Entry::Group { record: Record::Accept { batch: Batch::Commands(commands), .. }, .. } = &entry {
            commands.parts().iter().for_each(|part| _ = run_batch_entries(part));
        }
        let again = recorded(&entry, lsn, carried);
        match record::decode(&again, 0, NO_SEED) {
            Ok(Some((_, _, record::Decoded::Entry { entry: same, .. }))) => assert_eq!(same, entry),
            other => panic!("our own record: {other:?}"),
        }
    }
    true
}

pub fn headers() -> Vec<Shape> {
    let identity = Identity { cluster: ClusterId(7), node: NodeId(2), incarnation: 3 };
    let nonces = StartNonces { boot_id: 77, salt: 78 };
    let header = Header { identity, nonces, past_boot_ids: vec![76, 75], segment: 17, first_lsn: 99, reused: true };
    let grammar = format!("8 4 88 4 8 8 8 8 8 8 4 {} 4", "8".repeat(PAST_BOOT_IDS_MAX));
    vec![parse(&grammar, &header.encode()[..HEADER_BYTES])]
}

pub fn run_header(bytes: &[u8]) -> bool {
    let understood = Header::decode(bytes, 17).is_ok();
    let Some(head) = bytes.get(..HEADER_BYTES) else { return understood };
    let mut whole = head.to_vec();
    let crc = crc32c::crc32c(&whole[..HEADER_BYTES - 4]);
    whole[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    let Ok(header) = Header::decode(&whole, 17) else { return false };
    assert_eq!(Header::decode(&header.encode(), 17), Ok(header), "not the same when it is written again");
    true
}

// -- small files -----------------------------------------------------------------------------------------------------

type Kept = (PartitionMap, BTreeMap<String, String>, Users);

/// The first byte: which of the plain data that a node keeps.
pub fn plain_files() -> Vec<Shape> {
    let kept: Kept = (peers::map(ClusterId(7)), peers::settings(), peers::users());
    let entry = &kept.0.partitions[1];
    let claim = IncarnationClaim::new(3, 1 << 60, &[7, 8], 9);
    let mut files = vec![
        tagged(0, &plain(&kept)),
        tagged(1, &plain(&CreateRequest::of(entry))),
        tagged(1, &plain(&CreateRequest::of_later(entry))),
        tagged(3, &plain(&known_incarnations())),
        tagged(4, &plain(&claim)),
    ];
    files.extend(peers::boundary_changes().iter().map(|change| tagged(2, &plain(change))));
    files
}

fn known_incarnations() -> BTreeMap<NodeId, KnownIncarnation> {
    let one = |n: u64| match KnownIncarnation::default().judge(&IncarnationClaim::new(n, n << 32, &[3], 9)) {
        Ok(Judgement::New(one)) => one,
        other => panic!("{other:?}"),
    };
    (1..4).map(|n| (NodeId(n), one(u64::from(n)))).collect()
}

pub fn run_plain_file(bytes: &[u8]) -> bool {
    let Some((which, body)) = bytes.split_first() else { return false };
    match which {
        0 => stable::<Kept>(body).is_some_and(|(map, _, users)| {
            used(&map);
            _ = coppice_core::access::Access::new(users);
            true
        }),
        1 => stable::<CreateRequest>(body).is_some(),
        2 => stable::<BoundaryChange>(body).is_some(),
        3 => stable::<BTreeMap<NodeId, KnownIncarnation>>(body).is_some_and(|known| {
            let claim = IncarnationClaim::new(2, 9, &[1 << 32], 9);
            known.values().for_each(|one| _ = one.judge(&claim));
            true
        }),
        _ => stable::<IncarnationClaim>(body).is_some_and(|claim| {
            known_incarnations().values().for_each(|one| _ = one.judge(&claim));
            true
        }),
    }
}

/// The file of known incarnations, read from a disk.
pub fn known_incarnations_files() -> Vec<Shape> {
    let mut shape = Shape::default();
    let group = shape.open(Prefix::Nothing);
    shape.append(&parse("8 4", &[&b"COPPWIT\x01"[..], &[0; 4]].concat()));
    shape.append(&plain(&known_incarnations()));
    shape.close(group);
    vec![shape]
}

pub fn run_known_incarnations_file(bytes: &[u8]) -> bool {
    thread_local! {
        static SCRATCH: crate::common::Scratch = crate::common::Scratch::new("known-incarnations");
    }
    let mut whole = bytes.to_vec();
    if let Some((head, body)) = whole.split_at_mut_checked(12) {
        head[8..].copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
    }
    SCRATCH.with(|scratch| {
        std::fs::write(scratch.path("incarnations"), &whole).expect("written");
        let known = KnownIncarnations::open(&scratch.0).expect("read");
        known.raise_durable(NodeId(1), 1 << 40);
        let knows = !known.is_newest(NodeId(1), 5);
        knows || !known.is_newest(NodeId(2), 5)
    })
}

// -- checkpoints and snapshots ---------------------------------------------------------------------------------------

fn head() -> Head {
    Head {
        cluster: ClusterId(7),
        partition: PartitionId(1),
        instance: Instance(99),
        low: Bytes::from_static(b"a"),
        high: Some(Bytes::from_static(b"q")),
        map_version: MapVersion(4),
        last_ticket: Some(Ticket { ballot: Ballot::new(2, 1), n: 5 }),
    }
}

pub fn manifests() -> Vec<Shape> {
    let manifest = Manifest { head: head(), chunks: 3, bytes: 999, pairs: 7, ..Manifest::default() };
    let open = Manifest { head: Head { high: None, ..head() }, ..manifest.clone() };
    let fields = "8 4 88 4 8 8 b 8 4 8 8 8 8 8 4 b L";
    vec![parse(&format!("{fields} L 4"), &manifest.encode()), parse(&format!("{fields} 4"), &open.encode())]
}

pub fn run_manifest(bytes: &[u8]) -> bool {
    let mut understood = Manifest::decode(bytes).is_some();
    if let Some((rest, _)) = bytes.split_last_chunk::<4>() {
        let whole = [rest, &crc32c::crc32c(rest).to_le_bytes()].concat();
        if let Some(manifest) = Manifest::decode(&whole) {
            understood = true;
            assert_eq!(Manifest::decode(&manifest.encode()), Some(manifest));
        }
    }
    understood
}

/// Partition 1 with sessions that hold answers, in runs and in lists.
fn partition() -> Machine {
    let mut machine = Machine::Partition(Box::new(Partition::new(PartitionId(1), KeyRange::all(), MapVersion(4))));
    let other = SessionId { instance: 9, ..session() };
    for (instance, part) in [
        (7, entry::open(ClientId(7), 3)),
        (8, entry_of(&pack_of(session(), false))),
        (9, entry::open(ClientId(8), 3)),
        (10, entry_of(&pack_of(other, true))),
    ] {
        let batch = Batch::Commands(Commands::new(1, part));
        let mark = machine.execute(Instance(instance), &batch, &mut Vec::new());
        machine.confirm(&mark, None);
    }
    machine
}

struct Fields {
    sessions: Shape,
    changes: Shape,
    configuration: Shape,
    directory: Shape,
}

fn blob_fields() -> Fields {
    let configuration =
        Configuration { learners: [ReplicaId(4)].into(), ..Configuration::of_voters((1..4).map(ReplicaId)) };
    let machine = partition();
    let partition = machine.partition().expect("a partition");
    let ticket = Ticket { ballot: Ballot::new(2, 1), n: 5 };
    let seal = coppice_core::machine::partition::Seal {
        target: PartitionId(2),
        version: MapVersion(5),
        last_ticket: Some(ticket),
    };
    let directory = DirectoryState {
        map: peers::map(ClusterId(7)),
        settings: peers::settings(),
        users: peers::users(),
        partitions_used: 5,
        replicas_used: [(PartitionId(1), 3)].into(),
        ended: [(coppice_client::wire::ChangeId(4), coppice_core::machine::directory::ChangeOutcome::Done)].into(),
        forced: [NodeId(4)].into(),
        successors: [(NodeId(4), NodeId(1))].into(),
        ..DirectoryState::default()
    };
    Fields {
        sessions: plain(&partition.sessions().export()),
        changes: plain(&(Some(seal), partition.session_limits())),
        configuration: plain(&(configuration, Instance(4), Ballot::new(3, 1))),
        directory: plain(&directory),
    }
}

fn blobs() -> &'static Blobs {
    static BLOBS: std::sync::OnceLock<Blobs> = std::sync::OnceLock::new();
    BLOBS.get_or_init(|| {
        let Fields { sessions, changes, configuration, directory } = blob_fields();
        let [sessions, changes, configuration, directory] =
            [sessions, changes, configuration, directory].map(|fields| fields.whole().into());
        Blobs { sessions, changes, configuration, directory }
    })
}

pub fn snapshot_streams() -> Vec<Shape> {
    let pairs = (0..40).map(|number| (format!("b{number:02}").into_bytes(), vec![b'v'; number]));
    // In the place of the directory a partition has its time, and when its keys expire.
    let of_partition = Blobs { directory: Bytes::from_static(&[5, 0, 0, 0, 0, 0, 0, 0]), ..blobs().clone() };
    let stream: Vec<u8> = Encoder::new(head(), &of_partition, pairs).flat_map(|chunk| chunk.bytes.to_vec()).collect();
    let Fields { sessions, changes, configuration, .. } = blob_fields();
    let shape = parse("Q Q Q Q *(ll)", &stream);
    let blobs = [sessions, changes, configuration];
    vec![blobs.iter().fold(shape, |shape, fields| shape.graft(&fields.whole(), fields))]
}

/// What a receiver does with a stream that comes in pieces of so many bytes, each with a checksum that fits.
fn received(bytes: &[u8], piece_bytes: usize) -> (Option<Blobs>, Vec<(Key, Value)>) {
    let head = head();
    let mut decoder = Decoder::new(head.clone());
    let mut pairs: Vec<(Key, Value)> = Vec::new();
    let mut sound = true;
    for (number, piece) in (0..).zip(bytes.chunks(piece_bytes)) {
        decoder.push(number, piece, chunk_crc(&head, number, piece)).expect("the checksum fits");
        while sound {
            match decoder.next_pair() {
                Ok(Some(pair)) => {
                    assert!(pairs.last().is_none_or(|last| last.0 < pair.0), "pairs ascend or are refused");
                    pairs.push(pair);
                }
                Ok(None) => break,
                Err(_) => sound = false,
            }
        }
    }
    let blobs = decoder.blobs().ok().flatten();
    _ = decoder.finish(&Manifest { head, ..Manifest::default() });
    (blobs, pairs)
}

pub fn run_snapshot_stream(bytes: &[u8]) -> bool {
    let (blobs, pairs) = received(bytes, bytes.len().max(1));
    assert!((blobs.clone(), pairs.clone()) == received(bytes, 97), "it depends on where it is cut");
    let many = pairs.len() >= 30;
    blobs.is_some_and(|blobs| many && snapshot::restore(&head(), &blobs, pairs.into_iter()).is_ok())
}

/// The first byte: which blob.
pub fn snapshot_states() -> Vec<Shape> {
    let Fields { sessions, changes, configuration, directory } = blob_fields();
    (0..).zip([sessions, changes, configuration, directory]).map(|(which, fields)| tagged(which, &fields)).collect()
}

/// The bytes in the place of one blob; what comes of it must be usable.
pub fn run_snapshot_state(bytes: &[u8]) -> bool {
    let Some((&which, body)) = bytes.split_first() else { return false };
    let (mut blobs, damaged) = (blobs().clone(), Bytes::copy_from_slice(body));
    match which {
        0 => blobs.sessions = damaged,
        1 => blobs.changes = damaged,
        2 => blobs.configuration = damaged,
        _ => blobs.directory = damaged,
    }
    let partition = if which < 3 { PartitionId(1) } else { PartitionId::DIRECTORY };
    if partition != PartitionId::DIRECTORY {
        blobs.directory = Bytes::new();
    }
    let head = Head { partition, ..head() };
    let Ok(mut loaded) = snapshot::restore(&head, &blobs, std::iter::empty()) else { return false };
    let before = loaded.machine.digest();
    if let Machine::Partition(partition) = &loaded.machine {
        let saved = partition.sessions().export();
        let again = Sessions::import(saved.clone());
        assert_eq!(again.export(), saved, "not the same when it is saved again");
    }
    // The log goes on from there.
    for batch in commands_after() {
        let mark = loaded.machine.execute(Instance(100), batch, &mut Vec::new());
        loaded.machine.undo(mark);
        assert_eq!(loaded.machine.digest(), before, "what was executed is not taken back");
    }
    true
}

/// Packs of each session, then ends of sessions; every change of a directory.
fn commands_after() -> &'static [Batch] {
    static BATCHES: std::sync::OnceLock<Vec<Batch>> = std::sync::OnceLock::new();
    BATCHES.get_or_init(|| {
        let packs =
            [session(), SessionId { instance: 9, ..session() }].map(|session| entry_of(&pack_of(session, true)));
        let limits = SessionLimits { expiry_instances: 20, ..SessionLimits::default() };
        let ends = [entry::limits(&limits), entry::open(ClientId(9), 3), entry::open(ClientId(10), 3)];
        let commands: Vec<Bytes> = peers::directory_commands(ClusterId(7)).iter().map(entry::directory).collect();
        let batch = |parts: &[Bytes]| Batch::Commands(Commands::new(1, parts.concat().into()));
        vec![batch(&packs), batch(&ends), batch(&commands)]
    })
}
