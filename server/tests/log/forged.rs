//! A client writes values that hold marks, records and headers of the log's own format. Whatever becomes of the segment
//! that holds them, a start takes none of them for its own.

use std::ops::Range;

use bytes::Bytes;
use coppice_client::wire::PartitionId;
use coppice_core::replay::{Entry, Replay};
use coppice_server::log::engine::{Found, Progress};
use coppice_server::log::record::{self, Gather, HEAD_BYTES};
use coppice_server::log::segment::{BOUNDARY_BYTES, HEADER_BYTES, Header, MarkSeed, StartNonces};
use coppice_server::log::{Ballot, Batch, Commands, Disk, Engine, FileName, Geometry, Instance, Record};

use crate::log_common::sim_disk::{Crash, SimDisk};
use crate::log_common::{DRAWN, Draw, NODE, keep, model, new_disk, read};

/// Sixteen blocks to a segment.
const BLOCKS: Geometry = Geometry { first_bytes: 32 << 10, segment_bytes: 64 << 10, segments_ahead: 1 };

/// Bytes between the boundary at which a write begins and the payload of its first vote: mark, head, two counts.
const BEFORE_PAYLOAD: usize = 2 * HEAD_BYTES + 12;

/// Which bytes a client puts on the boundaries.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Marks that say that far more was durable.
    Marks,
    /// Whole writes: a mark that fits an early lsn, and votes behind it.
    Writes,
    /// Headers of segments.
    Headers,
    /// A drawn one of them on each boundary.
    Mixed,
}

fn vote(instance: u64, payload: Vec<u8>) -> Entry {
    let batch = Batch::Commands(Commands::new(1, Bytes::from(payload)));
    let (instance, decided_upto) = (Instance(instance), Instance(0));
    Entry::Group {
        group: PartitionId(1),
        record: Record::Accept { instance, ballot: Ballot::new(1, 1), decided_upto, batch },
    }
}

/// What the client writes at a boundary, for a segment and an offset that it guesses. It knows the node and the format.
fn forged(shape: Shape, segment: u64, offset: u64, draw: &mut Draw) -> Vec<u8> {
    let seed = MarkSeed::new(NODE.cluster, NODE.node, segment, offset, 0);
    let mut out = Gather::default();
    match shape {
        Shape::Marks => _ = record::encode_mark(1 << 40, 1 << 39, 0, seed, &mut out),
        Shape::Writes => {
            let lsn = draw.below(200);
            let link = record::encode_mark(lsn, lsn.saturating_sub(1), 0, seed, &mut out);
            record::encode(&vote(lsn, vec![9; 500]), lsn, false, link, &mut out);
        }
        Shape::Headers => {
            let (nonces, past_boot_ids) = (StartNonces::default(), Vec::new());
            let header = Header { identity: NODE, nonces, past_boot_ids, segment, first_lsn: 1 << 40, reused: true };
            // Without its checksum: two headers with theirs differ by a multiple of the checksum's polynomial, which a
            // torn write may put in each other's place unseen.
            out.copy(&header.encode()[..HEADER_BYTES - 4]);
        }
        Shape::Mixed => {
            let shapes = [Shape::Marks, Shape::Writes, Shape::Headers];
            return forged(shapes[draw.below(3) as usize], segment, offset, draw);
        }
    }
    out.finish().concat()
}

/// A value of several blocks; on each boundary inside stands something for a place that is guessed.
fn value(shape: Shape, newest: u64, draw: &mut Draw) -> Vec<u8> {
    let block = BOUNDARY_BYTES as usize;
    let mut value = vec![b'v'; (1 + draw.below(6) as usize) * block + draw.below(900) as usize];
    let length = value.len();
    for at in (block - BEFORE_PAYLOAD..length).step_by(block) {
        let (segment, offset) = (newest + draw.below(4), (1 + draw.below(15)) * BOUNDARY_BYTES);
        let forged = forged(shape, segment, offset, draw);
        let bytes = forged.len().min(length - at);
        value[at..at + bytes].copy_from_slice(&forged[..bytes]);
    }
    value
}

fn newest_segment(disk: &SimDisk) -> u64 {
    let number = |name: FileName| if let FileName::Segment(number) = name { number } else { 0 };
    disk.file_names().into_iter().map(number).max().unwrap_or(1)
}

fn open(mut disk: SimDisk) -> Engine<SimDisk> {
    let found = Found::read(&mut disk, NODE, &mut |_, _| ()).expect("nothing is damaged");
    found.open(disk, DRAWN, BLOCKS, false).expect("opens")
}

/// What a start makes of this disk: one of the states from `answered` on.
fn starts(disk: &SimDisk, states: &[model::Model], answered: usize, what: &str) {
    let replay: Replay = read(disk, NODE).unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = model::of_replay(&replay);
    let differs = |state: &model::Model| model::difference(state, &found).chars().take(200).collect::<String>();
    let known = states[answered..].contains(&found);
    assert!(known, "{what}: made up, {} or {}", differs(&states[answered]), differs(&states[states.len() - 1]));
}

fn writes_and_crashes(shape: Shape, seed: u64) {
    let mut draw = Draw::new(seed);
    let mut engine = open(new_disk(BLOCKS));
    let mut entries = Vec::new();
    for instance in 1..=60 {
        let newest = newest_segment(engine.disk());
        let answered = entries.len();
        entries.push(vote(instance, value(shape, newest.saturating_sub(1), &mut draw)));
        if instance % 7 == 0 {
            entries.push(Entry::Trimmed { group: PartitionId(1), upto: Instance(instance - 3) });
        }
        let states = model::states(&entries);
        let what = format!("{shape:?}, seed {seed}, write {instance}");
        // The power fails in the middle of this write, before it is durable.
        let mut torn = engine.disk().clone();
        engine.write(entries[answered..].iter());
        torn.effects = 0;
        assert!(matches!(engine.proceed(), Ok(Progress::Durable)), "{what}");
        let written = engine.disk().clone();
        for crash in [Crash::AllLost, Crash::Process] {
            starts(&written.clone().crash(crash), &states, entries.len(), &format!("{what}, {crash:?}"));
        }
        for lost in 0..3 {
            starts(&tear(&torn, &written, lost, &mut draw), &states, answered, &format!("{what}, torn {lost}"));
        }
        assert!(keep(&mut engine), "{what}");
        starts(&engine.disk().clone().crash(Crash::AllLost), &states, entries.len(), &what);
        if draw.below(10) == 0 {
            engine = open(engine.disk().clone().crash(Crash::Process));
        }
    }
}

/// `after` with some sectors of what the last write changed as they were in `before`.
fn tear(before: &SimDisk, after: &SimDisk, lost: u64, draw: &mut Draw) -> SimDisk {
    let mut torn = after.clone();
    for name in after.file_names().into_iter().filter(|name| before.file_names().contains(name)) {
        let old = before.bytes(name).to_vec();
        torn.damage(name, |bytes| {
            bytes.resize(old.len().max(bytes.len()), 0);
            for (at, sector) in bytes.chunks_mut(512).enumerate() {
                let kept = old.get(at * 512..at * 512 + sector.len());
                let goes = if lost == 0 { at % 8 == 0 } else { draw.below(3) == 0 };
                if let Some(kept) = kept.filter(|_| goes) {
                    sector.copy_from_slice(kept);
                }
            }
        });
    }
    torn
}

#[test]
fn what_a_client_forges_in_a_value_is_never_taken_for_the_logs_own() {
    forge(0..1);
}

#[test]
#[ignore = "long: twelve seeds"]
fn what_a_client_forges_in_more_values_is_never_taken_for_the_logs_own() {
    forge(1..12);
}

fn forge(seeds: Range<u64>) {
    for seed in seeds {
        for shape in [Shape::Marks, Shape::Writes, Shape::Headers, Shape::Mixed] {
            writes_and_crashes(shape, seed);
        }
    }
}

/// A file is made ready for its next life: its header is cleared, and what it held is still behind it.
#[test]
fn a_file_that_is_ready_to_be_written_again_says_nothing() {
    let mut engine = open(new_disk(BLOCKS));
    let mut entries = Vec::new();
    for instance in 1..=40 {
        // Marks for every segment that the file may become, each on its own boundary.
        let mut draw = Draw::new(instance);
        entries.push(vote(instance, value(Shape::Marks, newest_segment(engine.disk()), &mut draw)));
        entries.push(Entry::Trimmed { group: PartitionId(1), upto: Instance(instance.saturating_sub(2)) });
        engine.write(entries[entries.len() - 2..].iter());
        assert!(matches!(engine.proceed(), Ok(Progress::Durable)));
        // Between clearing and renaming, and after it.
        for effect in engine.take_drops() {
            engine.disk().apply(&effect).expect("carried out");
        }
        while let Some(preparation) = engine.to_prepare() {
            for effect in preparation.effects() {
                engine.disk().apply(&effect).expect("carried out");
                let disk = engine.disk().clone();
                let state = &model::states(&entries)[entries.len()];
                let found = read(&disk, NODE).unwrap_or_else(|error| panic!("write {instance}: {error}"));
                assert!(model::of_replay(&found) == *state, "write {instance}");
            }
            engine.prepared(preparation.number);
        }
    }
}

/// Runs this program's tests under each planted bug: at least one must fail (hazards.md 6).
#[cfg(feature = "mutants")]
#[test]
fn every_planted_bug_is_caught() {
    crate::log_common::catch(
        "marks_unsalted",
        "forged::what_a_client_forges_in_a_value_is_never_taken_for_the_logs_own",
    );
}
