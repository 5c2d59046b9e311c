//! Records: what the log keeps, and its bytes. Pure; knows neither files nor time.
//!
//! A record is a head of [`HEAD_BYTES`] and a body. All numbers are little-endian:
//!
//! | at | field | meaning |
//! |---|---|---|
//! | 0 | u32 length | head and body; 0 where a write ends |
//! | 4 | u32 crc | crc32c of the rest and the length, seeded with that of the record before, a mark's with its [`MarkSeed`] |
//! | 8 | u64 lsn | number of the record; of a mark: of the record after it |
//! | 16 | u32 group | 0 is the directory's; 0 in records of the node itself |
//! | 20 | u64 instance | of an accepted batch; a trim position; a mark: the lsn durable before it |
//! | 28 | u64 round | of the ballot; a mark: its salt |
//! | 36 | u32 replica | of the ballot; of a create request or removal; a mark: the crc of the record before it |
//! | 40 | u8 kind | [`Kind`] |
//! | 41 | u8 carried | 1: written again because its first copy was about to be trimmed |
//! | 42 | u16 zero | |

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use coppice_core::replay::Entry;

use super::ids::{Ballot, Batch, Commands, Configuration, Instance, PartitionId, Record, ReplicaId, Round};
use super::segment::MarkSeed;

/// Bytes of a record's head.
pub const HEAD_BYTES: usize = 44;

/// Bytes of the length that each record begins with.
pub const LENGTH_BYTES: u64 = 4;

/// Records are refused above this. A batch is at most 2 MiB and one oversized command more (frames end at 4 MiB).
pub const RECORD_BYTES_MAX: usize = 16 << 20;

/// Bodies up to this are copied next to their head: cheaper than one more slice for `pwritev` to walk.
const INLINE_BYTES_MAX: usize = 256;

/// What a record is. Numbers are explicit and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Opens a write: everything before it is durable.
    Mark = 1,
    /// No ballot below this one gets a promise or a vote from then on.
    Promise = 2,
    /// Voted for an empty batch. Body: u64 what was known to be decided.
    AcceptNoOp = 3,
    /// Voted for a batch of commands. Body: u64 decided, u32 count, the commands.
    AcceptCommands = 4,
    /// Voted for a configuration. Body: u64 decided, then voters, learners, leaving: each u32 count and u32 ids.
    AcceptConfiguration = 5,
    /// Everything up to the instance is known to be decided.
    Decided = 6,
    /// Learned that an empty batch is decided; the body as `AcceptNoOp`.
    LearnedNoOp = 7,
    /// Learned that a batch of commands is decided; the body as `AcceptCommands`.
    LearnedCommands = 8,
    /// Learned that a configuration is decided; the body as `AcceptConfiguration`.
    LearnedConfiguration = 9,
    /// Leases of at most so many nanoseconds (the instance field) are promised.
    Lease = 10,
    /// A replica of a group was started here.
    Created = 16,
    /// It was removed.
    Removed = 17,
    /// Instances up to this one are in a durable checkpoint.
    Trimmed = 18,
    /// Segments below the one in the instance field were dropped on purpose.
    Kept = 19,
}

impl Kind {
    fn from_number(number: u8) -> Option<Kind> {
        Some(match number {
            1 => Kind::Mark,
            2 => Kind::Promise,
            3 => Kind::AcceptNoOp,
            4 => Kind::AcceptCommands,
            5 => Kind::AcceptConfiguration,
            6 => Kind::Decided,
            7 => Kind::LearnedNoOp,
            8 => Kind::LearnedCommands,
            9 => Kind::LearnedConfiguration,
            10 => Kind::Lease,
            16 => Kind::Created,
            17 => Kind::Removed,
            18 => Kind::Trimmed,
            19 => Kind::Kept,
            _ => return None,
        })
    }
}

/// Bytes that an entry takes in a segment.
pub fn entry_bytes(entry: &Entry) -> usize {
    HEAD_BYTES
        + match entry {
            Entry::Group { record: Record::Accept { batch, .. } | Record::Learned { batch, .. }, .. } => {
                8 + match batch {
                    Batch::NoOp => 0,
                    Batch::Commands(commands) => 4 + commands.len_bytes(),
                    Batch::Configuration(configuration) => configuration_bytes(configuration),
                }
            }
            Entry::Created { create, .. } => create.len(),
            _ => 0,
        }
}

fn head_of(entry: &Entry) -> Head {
    let mut head = Head { group: entry.group().map_or(0, |group| group.0), ..Head::new(Kind::Kept) };
    match entry {
        Entry::Group { record, .. } => record_head(record, &mut head),
        Entry::Created { replica, .. } => (head.kind, head.replica) = (Kind::Created, replica.0),
        Entry::Removed { replica, .. } => (head.kind, head.replica) = (Kind::Removed, replica.0),
        Entry::Trimmed { upto, .. } => (head.kind, head.instance) = (Kind::Trimmed, upto.0),
        Entry::Kept { segment } => head.instance = *segment,
    }
    head
}

fn record_head(record: &Record, head: &mut Head) {
    match record {
        Record::Promise { ballot } => head.set(Kind::Promise, Instance(0), *ballot),
        Record::Accept { instance, ballot, batch, .. } => {
            let kind = match batch {
                Batch::NoOp => Kind::AcceptNoOp,
                Batch::Commands(_) => Kind::AcceptCommands,
                Batch::Configuration(_) => Kind::AcceptConfiguration,
            };
            head.set(kind, *instance, *ballot);
        }
        Record::Learned { instance, ballot, batch } => {
            let kind = match batch {
                Batch::NoOp => Kind::LearnedNoOp,
                Batch::Commands(_) => Kind::LearnedCommands,
                Batch::Configuration(_) => Kind::LearnedConfiguration,
            };
            head.set(kind, *instance, *ballot);
        }
        Record::Decided { upto } => (head.kind, head.instance) = (Kind::Decided, upto.0),
        Record::Lease { duration } => {
            let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
            (head.kind, head.instance) = (Kind::Lease, nanoseconds);
        }
    }
}

fn configuration_bytes(configuration: &Configuration) -> usize {
    12 + 4 * (configuration.voters.len() + configuration.learners.len() + configuration.leaving.len())
}

/// The fixed fields of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    lsn: u64,
    group: u32,
    instance: u64,
    round: u64,
    replica: u32,
    kind: Kind,
    carried: bool,
}

impl Head {
    fn new(kind: Kind) -> Head {
        Head { lsn: 0, group: 0, instance: 0, round: 0, replica: 0, kind, carried: false }
    }

    fn set(&mut self, kind: Kind, instance: Instance, ballot: Ballot) {
        *self = Head { kind, instance: instance.0, round: ballot.round.0, replica: ballot.replica.0, ..*self };
    }

    /// The head as bytes, its checksum still missing: (length, everything from the lsn on).
    fn encode(&self, length: u32) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        let mut out = &mut bytes[..];
        out.put_u32_le(length);
        out.put_u32_le(0);
        out.put_u64_le(self.lsn);
        out.put_u32_le(self.group);
        out.put_u64_le(self.instance);
        out.put_u64_le(self.round);
        out.put_u32_le(self.replica);
        out.put_u8(self.kind as u8);
        out.put_u8(u8::from(self.carried));
        bytes
    }
}

/// The bytes of one write: small ones in one buffer, payloads as they are.
#[derive(Debug, Default)]
pub struct Gather {
    small: BytesMut,
    pieces: Vec<Piece>,
    /// Where in `small` the bytes start that no piece covers yet.
    open: usize,
    bytes: u64,
}

#[derive(Debug)]
enum Piece {
    Small(Range<usize>),
    Large(Bytes),
}

impl Gather {
    /// Bytes so far.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// True before the first byte.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Copies `bytes` in.
    pub fn copy(&mut self, bytes: &[u8]) {
        self.small.put_slice(bytes);
        self.bytes += bytes.len() as u64;
    }

    /// Takes `bytes` in without copying them, unless they are few.
    pub fn share(&mut self, bytes: &Bytes) {
        if bytes.len() <= INLINE_BYTES_MAX {
            return self.copy(bytes);
        }
        self.close();
        self.pieces.push(Piece::Large(bytes.clone()));
        self.bytes += bytes.len() as u64;
    }

    fn close(&mut self) {
        if self.open < self.small.len() {
            self.pieces.push(Piece::Small(self.open..self.small.len()));
            self.open = self.small.len();
        }
    }

    /// The bytes in order, as slices of what came in.
    pub fn finish(mut self) -> Vec<Bytes> {
        self.close();
        let small = self.small.freeze();
        let part = |piece| match piece {
            Piece::Small(range) => small.slice(range),
            Piece::Large(bytes) => bytes,
        };
        self.pieces.into_iter().map(part).collect()
    }
}

/// Adds one record. `chain` is the checksum of the record or mark before it; returns its own.
///
/// # Panics
/// If the record is larger than [`RECORD_BYTES_MAX`]: every limit above this one is smaller.
pub fn encode(entry: &Entry, lsn: u64, carried: bool, chain: u32, out: &mut Gather) -> u32 {
    let length = entry_bytes(entry);
    assert!(length <= RECORD_BYTES_MAX, "a record of {length} bytes");
    let head = Head { lsn, carried, ..head_of(entry) };
    match entry {
        Entry::Group { record, .. } => {
            let (decided, batch) = match record {
                Record::Accept { decided_upto, batch, .. } => (decided_upto.0, batch),
                Record::Learned { batch, .. } => (0, batch),
                _ => return encode_parts(&head, chain, &[], &[], out),
            };
            let decided = decided.to_le_bytes();
            match batch {
                Batch::NoOp => encode_parts(&head, chain, &decided, &[], out),
                Batch::Commands(commands) => {
                    let mut small = [0; 12];
                    small[..8].copy_from_slice(&decided);
                    small[8..].copy_from_slice(&commands.count().to_le_bytes());
                    encode_parts(&head, chain, &small, commands.parts(), out)
                }
                Batch::Configuration(configuration) => {
                    encode_parts(&head, chain, &encode_configuration(&decided, configuration), &[], out)
                }
            }
        }
        Entry::Created { create, .. } => encode_parts(&head, chain, &[], std::slice::from_ref(create), out),
        _ => encode_parts(&head, chain, &[], &[], out),
    }
}

/// Adds a mark: `durable` is the highest lsn known to be durable, `next_lsn` that of the record after the mark.
/// `seed` is the mark's place, `chain` the checksum of the last record before it. Returns the mark's own checksum,
/// from which that of the next record starts.
pub fn encode_mark(next_lsn: u64, durable: u64, chain: u32, seed: MarkSeed, out: &mut Gather) -> u32 {
    let head = Head { lsn: next_lsn, instance: durable, round: seed.salt, replica: chain, ..Head::new(Kind::Mark) };
    encode_parts(&head, seed.crc, &[], &[], out)
}

fn encode_parts(head: &Head, chain: u32, small: &[u8], large: &[Bytes], out: &mut Gather) -> u32 {
    let length = HEAD_BYTES + small.len() + large.iter().map(Bytes::len).sum::<usize>();
    let mut bytes = head.encode(length as u32);
    let chain = if mutant!(checksum_no_position) { 0 } else { chain };
    let mut crc = crc32c::crc32c_append(chain, &bytes[..4]);
    crc = crc32c::crc32c_append(crc, &bytes[8..]);
    crc = crc32c::crc32c_append(crc, small);
    for part in large {
        crc = crc32c::crc32c_append(crc, part);
    }
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    out.copy(&bytes);
    out.copy(small);
    large.iter().for_each(|part| out.share(part));
    crc
}

/// A record read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// Opens a write.
    Mark {
        /// The lsn of the record after it.
        next_lsn: u64,
        /// Everything up to this lsn was durable when the mark was written.
        durable: u64,
        /// The checksum of the record before it.
        chain: u32,
    },
    /// Anything else.
    Entry {
        /// Its number.
        lsn: u64,
        /// Written again, because its first copy was about to be trimmed.
        carried: bool,
        /// What it says.
        entry: Entry,
    },
}

/// Why bytes are not the record that belongs there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRecord {
    /// Zeros where a record was expected.
    #[error("no record where one was expected")]
    Missing,
    /// A length that no record has, or that leads out of the file.
    #[error("a record length of {length} bytes")]
    Length {
        /// The length found.
        length: u32,
    },
    /// Bytes changed, or those of another place.
    #[error("the checksum does not fit this place")]
    Checksum,
    /// Intact, but not what this program writes.
    #[error("a record that this version cannot read (kind {kind})")]
    Unreadable {
        /// The kind's number.
        kind: u8,
    },
    /// Intact, but another number than the next.
    #[error("lsn {found} where {expected} was expected")]
    Order {
        /// The lsn found.
        found: u64,
        /// The lsn that comes next.
        expected: u64,
    },
}

/// Reads the record at the start of `bytes`: its length in bytes, its checksum, and what it says. `None`: the write
/// ends here. `chain` is the checksum of the record or mark before it, `seed` that of a mark at this place.
///
/// # Errors
/// Anything that is not the record that was written here.
pub fn decode(bytes: &[u8], chain: u32, seed: MarkSeed) -> Result<Option<(usize, u32, Decoded)>, BadRecord> {
    let mut head = match bytes.get(..HEAD_BYTES) {
        Some(head) if head[..4] != [0; 4] => head,
        None if bytes.len() >= 4 && bytes[..4] != [0; 4] => return Err(bad_length(bytes)),
        _ => return Ok(None),
    };
    let length = head.get_u32_le() as usize;
    let crc = head.get_u32_le();
    let lsn = head.get_u64_le();
    let (group, instance, round, replica) =
        (head.get_u32_le(), head.get_u64_le(), head.get_u64_le(), head.get_u32_le());
    let (kind, carried) = (head.get_u8(), head.get_u8());
    if !(HEAD_BYTES..=RECORD_BYTES_MAX).contains(&length) || length > bytes.len() {
        return Err(bad_length(bytes));
    }
    let start = match kind {
        _ if mutant!(checksum_no_position) => 0,
        1 => seed.crc,
        _ => chain,
    };
    let found = crc32c::crc32c_append(crc32c::crc32c_append(start, &bytes[..4]), &bytes[8..length]);
    let salted = kind != Kind::Mark as u8 || round == seed.salt;
    if (found != crc || !salted) && !mutant!(catchup_unverified) {
        return Err(BadRecord::Checksum);
    }
    let unreadable = BadRecord::Unreadable { kind };
    let head = Head {
        lsn,
        group,
        instance,
        round,
        replica,
        kind: Kind::from_number(kind).ok_or(unreadable)?,
        carried: carried == 1,
    };
    let decoded = decode_entry(&head, &bytes[HEAD_BYTES..length]).ok_or(unreadable)?;
    Ok(Some((length, crc, decoded)))
}

/// The mark at the start of `bytes`, wherever it was found: the lsn that it says was durable before it.
pub fn decode_mark(bytes: &[u8], seed: MarkSeed) -> Option<u64> {
    // Cheap first: a boundary in the middle of a payload is the usual case.
    if bytes.get(40) != Some(&(Kind::Mark as u8)) || bytes[..4] != (HEAD_BYTES as u32).to_le_bytes() {
        return None;
    }
    match decode(bytes, 0, seed) {
        Ok(Some((_, _, Decoded::Mark { durable, .. }))) => Some(durable),
        _ => None,
    }
}

fn bad_length(bytes: &[u8]) -> BadRecord {
    BadRecord::Length { length: u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) }
}

fn decode_entry(head: &Head, mut body: &[u8]) -> Option<Decoded> {
    let ballot = Ballot { round: Round(head.round), replica: ReplicaId(head.replica) };
    let (group, instance) = (PartitionId(head.group), Instance(head.instance));
    let record = |record| Entry::Group { group, record };
    let entry = match head.kind {
        Kind::Mark => {
            return Some(Decoded::Mark { next_lsn: head.lsn, durable: head.instance, chain: head.replica });
        }
        Kind::Promise => record(Record::Promise { ballot }),
        Kind::AcceptNoOp | Kind::AcceptCommands | Kind::AcceptConfiguration => {
            let decided_upto = Instance(body.try_get_u64_le().ok()?);
            let batch = decode_batch(head.kind, &mut body)?;
            record(Record::Accept { instance, ballot, decided_upto, batch })
        }
        Kind::LearnedNoOp | Kind::LearnedCommands | Kind::LearnedConfiguration => {
            body.try_get_u64_le().ok()?;
            record(Record::Learned { instance, ballot, batch: decode_batch(head.kind, &mut body)? })
        }
        Kind::Decided => record(Record::Decided { upto: instance }),
        Kind::Lease => record(Record::Lease { duration: Duration::from_nanos(head.instance) }),
        Kind::Created => {
            let create = Bytes::copy_from_slice(std::mem::take(&mut body));
            Entry::Created { group, replica: ReplicaId(head.replica), create }
        }
        Kind::Removed => Entry::Removed { group, replica: ReplicaId(head.replica) },
        Kind::Trimmed => Entry::Trimmed { group, upto: instance },
        Kind::Kept => Entry::Kept { segment: head.instance },
    };
    body.is_empty().then_some(Decoded::Entry { lsn: head.lsn, carried: head.carried, entry })
}

fn decode_batch(kind: Kind, body: &mut &[u8]) -> Option<Batch> {
    Some(match kind {
        Kind::AcceptCommands | Kind::LearnedCommands => {
            let count = body.try_get_u32_le().ok()?;
            Batch::Commands(Commands::new(count, Bytes::copy_from_slice(std::mem::take(body))))
        }
        Kind::AcceptConfiguration | Kind::LearnedConfiguration => Batch::Configuration(decode_configuration(body)?),
        _ => Batch::NoOp,
    })
}

fn encode_configuration(decided: &[u8], configuration: &Configuration) -> Vec<u8> {
    let mut out = decided.to_vec();
    for replicas in [&configuration.voters, &configuration.learners, &configuration.leaving] {
        out.put_u32_le(replicas.len() as u32);
        replicas.iter().for_each(|replica| out.put_u32_le(replica.0));
    }
    out
}

fn decode_configuration(body: &mut &[u8]) -> Option<Configuration> {
    let mut replicas = || {
        let count = body.try_get_u32_le().ok()?;
        (0..count).map(|_| body.try_get_u32_le().ok().map(ReplicaId)).collect::<Option<BTreeSet<ReplicaId>>>()
    };
    Some(Configuration { voters: replicas()?, learners: replicas()?, leaving: replicas()? })
}
