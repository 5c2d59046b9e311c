//! Bytes of the log rot, vanish, or stand in the wrong place: a torn tail is cut, everything else is refused by name.

use std::ops::Range;

use bytes::Bytes;
use coppice_client::wire::PartitionId;
use coppice_core::incarnation::Identity;
use coppice_core::replay::Entry;
use coppice_server::datadir::NodeId;
use coppice_server::log::engine::{Found, create};
use coppice_server::log::record::{BadRecord, entry_bytes};
use coppice_server::log::recovery::BadPlace;
use coppice_server::log::segment::{BadHeader, FORMAT, HEADER_BYTES, Header};
use coppice_server::log::{Ballot, Batch, Commands, Damage, Engine, FileName, Geometry, Instance, LogError, Record};

use crate::log_common::model::{self, Model};
use crate::log_common::sim_disk::SimDisk;
use crate::log_common::{DRAWN, Draw, NODE, SMALL, commit, keep, new_disk, read};

/// Two writes to a segment.
const TINY: Geometry = Geometry { first_bytes: 12 << 10, segment_bytes: 12 << 10, segments_ahead: 1 };

/// A log at rest.
struct Written {
    disk: SimDisk,
    states: Vec<Model>,
    /// The entries before the last write: its mark proves them.
    proven: usize,
    /// Where the last write stands.
    last_write: (FileName, usize),
}

fn open(disk: SimDisk, known: Identity) -> (Engine<SimDisk>, Identity) {
    let mut disk = disk;
    let found = Found::read(&mut disk, known, &mut |_, _| ()).expect("reads");
    let identity = found.identity;
    (found.open(disk, DRAWN, TINY, false).expect("opens"), identity)
}

fn new_log() -> Engine<SimDisk> {
    let mut disk = SimDisk::default();
    create(&mut disk, NODE, DRAWN, TINY).expect("created");
    open(disk, NODE).0
}

/// `writes` writes of up to four drawn entries each.
fn write(writes: usize, seed: u64) -> Written {
    let mut engine = new_log();
    let mut draw = Draw::new(seed);
    let (mut model, mut entries) = (Model::new(), Vec::new());
    let mut proven = 0;
    for write in 0..writes {
        proven = entries.len();
        for _ in 0..1 + draw.below(4) {
            let entry = model::draw_entry(&mut draw, &model);
            model::apply(&mut model, &entry);
            entries.push(entry);
        }
        assert!(commit(&mut engine, &entries[proven..]));
        // What the last write allows to be removed is still there: it may not be durable.
        assert!(write + 1 == writes || keep(&mut engine));
    }
    let disk = engine.disk().clone();
    let last_write = newest_write(&disk);
    Written { disk, states: model::states(&entries), proven, last_write }
}

fn segments(disk: &SimDisk) -> Vec<FileName> {
    disk.file_names().into_iter().filter(|name| matches!(name, FileName::Segment(_))).collect()
}

/// The segment written last and the boundary of its last write.
fn newest_write(disk: &SimDisk) -> (FileName, usize) {
    let used = |name: &FileName| disk.bytes(*name)[..64].iter().any(|&byte| byte != 0);
    let newest = segments(disk).into_iter().rfind(used).expect("a segment");
    let bytes = disk.bytes(newest);
    let mark = |at: &usize| bytes.get(at + 40) == Some(&1) && bytes[*at..at + 4] == 44_u32.to_le_bytes();
    (newest, (1..bytes.len() / 4_096).map(|page| page * 4_096).rfind(mark).expect("a write"))
}

/// The log is read as one of the states `from..`, and which.
fn state_of(written: &Written, disk: &SimDisk, from: usize) -> Result<usize, LogError> {
    let found = model::of_replay(&read(disk, NODE)?);
    let state = (from..written.states.len()).rev().find(|&n| written.states[n] == found);
    Ok(state.unwrap_or_else(|| panic!("made up: {}", model::difference(&written.states[from], &found))))
}

/// hazards.md ST2: each byte.
#[test]
fn every_flipped_byte_is_cut_off_at_the_tail_or_refused_by_file_and_offset() {
    flip_bytes(write(9, 2), 1);
}

/// The same where the newest segments are files of older ones, and end with what those held; every fifth byte.
#[test]
fn what_a_file_held_before_it_became_a_segment_again_counts_for_nothing() {
    flip_bytes_of_reused_files(5);
}

#[test]
#[ignore = "long: each byte"]
fn no_byte_that_a_file_held_before_it_became_a_segment_again_counts() {
    flip_bytes_of_reused_files(1);
}

fn flip_bytes_of_reused_files(step: usize) {
    let reused = |written: &Written| {
        let (FileName::Segment(number), _) = written.last_write else { return false };
        let bytes = written.disk.bytes(written.last_write.0);
        let behind = &bytes[written.last_write.1 + 4_096..];
        Header::decode(bytes, number).expect("a header").reused && behind.iter().any(|&byte| byte != 0)
    };
    let logs = (0..20).flat_map(|seed| (20..60).step_by(5).map(move |writes| write(writes, seed)));
    let logs: Vec<Written> = logs.filter(reused).collect();
    assert!(logs.len() > 10, "{}", logs.len());
    for written in &logs {
        let last = written.states.len() - 1;
        assert_eq!(state_of(written, &written.disk, 0).expect("nothing is damaged"), last);
        assert!(Found::read(&mut written.disk.clone(), NODE, &mut |_, _| ()).expect("reads").cut.is_none());
    }
    let smallest = logs.into_iter().min_by_key(|written| segments(&written.disk).len());
    flip_bytes(smallest.expect("there are some"), step);
}

/// Flips a bit of every `step`-th byte.
fn flip_bytes(mut written: Written, step: usize) {
    let (mut refused, mut cut) = (0, 0);
    for name in segments(&written.disk) {
        for at in (0..written.disk.bytes(name).len()).step_by(step) {
            let flip = |disk: &mut SimDisk| disk.damage(name, |bytes| bytes[at] ^= 1 << (at % 8));
            flip(&mut written.disk);
            match state_of(&written, &written.disk, written.proven) {
                Ok(n) => cut += usize::from(n + 1 < written.states.len()),
                Err(LogError::Damage(Damage { file, offset, .. })) => {
                    assert!(file == name && offset <= at as u64, "{name} byte {at}, but {file} byte {offset} is named");
                    refused += 1;
                }
                Err(other) => panic!("{name} byte {at}: {other}"),
            }
            flip(&mut written.disk);
        }
    }
    assert!(refused > 1_000 / step && cut > 50 / step, "refused {refused}, cut {cut}");
}

#[test]
fn a_tail_torn_at_any_length_is_cut_and_the_rest_is_there() {
    tear_tails(0..2);
}

#[test]
#[ignore = "long: six logs"]
fn tails_of_more_logs_torn_at_any_length_are_cut() {
    tear_tails(2..6);
}

fn tear_tails(seeds: Range<u64>) {
    for seed in seeds {
        let written = write(7, 100 + seed);
        let (name, start) = written.last_write;
        let whole = written.disk.bytes(name).to_vec();
        let end = whole.iter().rposition(|&byte| byte != 0).expect("not empty") + 1;
        let mut draw = Draw::new(seed);
        let mut last = written.proven;
        for length in start..=end {
            let mut disk = written.disk.clone();
            disk.damage(name, |bytes| bytes[length..].fill(0));
            let state = state_of(&written, &disk, last).expect("a torn tail is no damage");
            // The same with rubbish behind it, and with the file ending there.
            disk.damage(name, |bytes| bytes[length..end].fill_with(|| draw.below(255) as u8 + 1));
            assert!(state_of(&written, &disk, written.proven).expect("no damage") <= state);
            disk.damage(name, |bytes| bytes.truncate(length));
            assert!(state_of(&written, &disk, written.proven).expect("no damage") <= state);
            last = state;
        }
        assert_eq!(written.states[last], written.states[written.states.len() - 1], "nothing is cut from a whole log");
    }
}

/// hazards.md ST8: a flush that was answered kept old bytes. Those are zeros here, which look like an end.
#[test]
fn a_lost_sector_below_the_last_mark_is_damage() {
    let written = write(9, 4);
    let (last_file, last_start) = written.last_write;
    let mut lost = 0;
    for name in segments(&written.disk) {
        // A header belongs to the first write.
        let proven = if last_start == 4_096 { 0 } else { last_start };
        let end = if name == last_file { proven } else { written.disk.bytes(name).len() };
        for sector in (0..end).step_by(512) {
            let mut disk = written.disk.clone();
            let before = disk.bytes(name)[sector..sector + 512].to_vec();
            if before.iter().all(|&byte| byte == 0) {
                continue;
            }
            disk.damage(name, |bytes| bytes[sector..sector + 512].fill(0));
            match read(&disk, NODE) {
                Err(LogError::Damage(damage)) => {
                    assert!(
                        damage.file == name && damage.offset <= sector as u64 + 511,
                        "{damage} for {name} {sector}"
                    );
                }
                Err(other) => panic!("{name} byte {sector}: {other}"),
                Ok(_) => panic!("{name} byte {sector}: believed"),
            }
            lost += 1;
        }
    }
    assert!(lost > 8, "{lost}");
}

fn vote(instance: u64, byte: u8) -> Entry {
    voted(instance, vec![byte; 900])
}

fn voted(instance: u64, payload: Vec<u8>) -> Entry {
    let batch = Batch::Commands(Commands::new(1, Bytes::from(payload)));
    let (instance, decided_upto) = (Instance(instance), Instance(0));
    let record = Record::Accept { instance, ballot: Ballot::new(1, 1), decided_upto, batch };
    Entry::Group { group: PartitionId(1), record }
}

/// The log of `node`, whose votes all hold `byte`.
fn votes(node: u32, byte: u8) -> SimDisk {
    let identity = Identity { node: NodeId(node), ..NODE };
    let mut disk = SimDisk::default();
    create(&mut disk, identity, DRAWN, TINY).expect("created");
    let (mut engine, _) = open(disk, identity);
    for instance in 1..=6 {
        assert!(commit(&mut engine, &[vote(instance, byte)]) && keep(&mut engine));
    }
    engine.disk().clone()
}

/// A vote whose record takes `bytes` in the log.
fn vote_of(instance: u64, bytes: usize) -> Entry {
    let rest = entry_bytes(&voted(instance, Vec::new()));
    voted(instance, vec![7; bytes - rest])
}

/// A write may end so near the next boundary that the zeros behind it do not fill a length: what follows them is the
/// mark of the next write. And a record may begin there, with its length on both sides of the boundary.
#[test]
fn a_write_may_end_and_a_record_begin_at_any_distance_from_a_boundary() {
    for short in 0..64 {
        let (mut engine, ..) = crate::log_common::open(new_disk(SMALL), NODE).expect("opens");
        let mut entries = Vec::new();
        for write in 0..9 {
            // Behind the 44 bytes of the mark, the first vote ends `short` bytes before a boundary.
            let first = entries.len();
            entries.push(vote_of(1 + first as u64, 4_096 - 44 - short));
            if write % 3 == 1 {
                entries.push(vote_of(2 + first as u64, 1_000));
            }
            assert!(commit(&mut engine, &entries[first..]) && keep(&mut engine));
            let found = read(engine.disk(), NODE).unwrap_or_else(|error| panic!("{short} bytes short: {error}"));
            assert!(model::of_replay(&found) == model::states(&entries)[entries.len()], "{short} bytes short");
        }
    }
}

/// hazards.md ST8: intact, with the right lsn, but of another node's log at the same place.
#[test]
fn an_intact_write_of_another_log_is_refused() {
    let (own, other) = (votes(3, 7), votes(4, 9));
    assert!(read(&own, NODE).is_ok());
    let (last_file, last_start) = newest_write(&own);
    for name in segments(&own) {
        for write in (4_096..own.bytes(name).len()).step_by(4_096) {
            if own.bytes(name)[write] == 0 || (name, write) == (last_file, last_start) {
                continue;
            }
            let mut disk = own.clone();
            disk.damage(name, |bytes| {
                bytes[write..write + 4_096].copy_from_slice(&other.bytes(name)[write..write + 4_096])
            });
            let Err(LogError::Damage(damage)) = read(&disk, NODE) else { panic!("{name} byte {write} is believed") };
            assert_eq!((damage.file, damage.offset), (name, write as u64));
        }
    }
    let mut disk = own.clone();
    let name = segments(&own)[1];
    disk.damage(name, |bytes| bytes.copy_from_slice(other.bytes(name)));
    let Err(LogError::Damage(Damage { reason: BadPlace::Foreign { node, .. }, .. })) = read(&disk, NODE) else {
        panic!("a foreign segment is believed")
    };
    assert_eq!(node, NodeId(4));
}

/// hazards.md ST8: a write that landed on the next boundary instead of its own.
#[test]
fn a_misplaced_write_is_refused() {
    let own = votes(3, 7);
    let name = segments(&own)[2];
    let mut disk = own.clone();
    disk.damage(name, |bytes| bytes.copy_within(4_096..8_192, 8_192));
    let refused = read(&disk, NODE);
    assert!(matches!(&refused, Err(LogError::Damage(damage)) if damage.file == name), "{refused:?}");
    let mut disk = own.clone();
    disk.damage(name, |bytes| {
        bytes.copy_within(4_096..8_192, 8_192);
        bytes[4_096..8_192].fill(0);
    });
    let Err(LogError::Damage(damage)) = read(&disk, NODE) else { panic!("believed") };
    assert_eq!((damage.file, damage.offset), (name, 4_096));
    assert_eq!(damage.reason, BadPlace::Record(BadRecord::Missing));
}

/// hazards.md ST8: a whole file that is another one. A newest file that was not used yet, or whose first write was
/// torn, has no header; one whose header is whole was once passed over like these, with the votes that it held.
#[test]
fn a_file_that_is_another_one_is_refused() {
    let own = votes(3, 7);
    let (newest, _) = newest_write(&own);
    let used = || segments(&own).into_iter().filter(|name| *name <= newest);
    for (name, given) in used().flat_map(|name| used().map(move |given| (name, given))).filter(|(a, b)| a != b) {
        let mut disk = own.clone();
        disk.damage(name, |bytes| *bytes = own.bytes(given).to_vec());
        let Err(LogError::Damage(damage)) = read(&disk, NODE) else { panic!("{given} passes for {name}") };
        let FileName::Segment(found) = given else { panic!("a segment") };
        assert_eq!((damage.file, damage.offset, damage.reason), (name, 0, BadHeader::Number { found }.into()));
    }
}

/// What a later version wrote is no tail that may be cut off.
#[test]
fn a_segment_of_another_format_is_refused() {
    let mut disk = votes(3, 7);
    let (newest, _) = newest_write(&disk);
    disk.damage(newest, |bytes| {
        bytes[8..12].copy_from_slice(&(FORMAT + 1).to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    });
    let Err(LogError::Damage(damage)) = read(&disk, NODE) else { panic!("it is cut off") };
    assert_eq!((damage.file, damage.reason), (newest, BadHeader::Format { found: FORMAT + 1 }.into()));
}

#[test]
fn a_missing_file_is_refused_by_name() {
    let own = votes(3, 7);
    let names = segments(&own);
    let (newest, _) = newest_write(&own);
    for name in names.into_iter().filter(|name| *name < newest) {
        let mut disk = own.clone();
        disk.lose_file(name);
        let Err(LogError::Damage(damage)) = read(&disk, NODE) else { panic!("{name} is not missed") };
        assert_eq!((damage.file, damage.reason), (name, BadPlace::File));
    }
    let mut disk = own.clone();
    segments(&own).into_iter().for_each(|name| disk.lose_file(name));
    assert!(matches!(read(&disk, NODE), Err(LogError::Damage(Damage { reason: BadPlace::File, .. }))), "an empty log");
}

#[test]
fn a_log_without_the_segments_of_the_last_start_is_refused() {
    let own = votes(3, 7);
    let before = segments(&own).len() as u64;
    let (engine, identity) = open(own, Identity { incarnation: 2, ..NODE });
    let mut engine = engine;
    assert!(commit(&mut engine, &[vote(7, 1)]));
    let mut disk = engine.disk().clone();
    assert!(read(&disk, identity).is_ok());
    for name in segments(&disk) {
        if matches!(name, FileName::Segment(number) if number >= before) {
            disk.lose_file(name);
        }
    }
    let refused = read(&disk, identity);
    assert!(matches!(refused, Err(LogError::Older { found: 2, known: 3 })), "{refused:?}");
}

/// Runs this program's tests under each planted bug: at least one must fail (hazards.md 6).
#[cfg(feature = "mutants")]
#[test]
fn every_planted_bug_is_caught() {
    crate::log_common::catch("cut_at_first_bad", "damage::a_lost_sector_below_the_last_mark_is_damage");
    crate::log_common::catch("refuse_torn_tail", "damage::a_tail_torn_at_any_length_is_cut_and_the_rest_is_there");
    crate::log_common::catch(
        "length_over_boundary",
        "damage::a_write_may_end_and_a_record_begin_at_any_distance_from_a_boundary",
    );
    crate::log_common::catch(
        "catchup_unverified",
        "damage::every_flipped_byte_is_cut_off_at_the_tail_or_refused_by_file_and_offset",
    );
    crate::log_common::catch("checksum_no_position", "damage::an_intact_write_of_another_log_is_refused");
    crate::log_common::catch("wrong_file_unused", "damage::a_file_that_is_another_one_is_refused");
}
