//! The log loses power, space and flushes; what it answered for is there, and nothing else is made up.

use std::ops::Range;

use coppice_client::wire::PartitionId;
use coppice_core::incarnation::Identity;
use coppice_core::replay::Entry;
use coppice_server::log::engine::Progress;
use coppice_server::log::{Disk, Engine, FileEffect, FileName, Instance, LogError, Preparation};

use crate::log_common::model::{self, Model};
use crate::log_common::sim_disk::{Crash, SimDisk};
use crate::log_common::{DRAWN, Draw, NODE, SMALL, commit, keep, new_disk, open, read};

/// A log over several crashes, with what it must still hold.
struct Life {
    disk: SimDisk,
    known: Identity,
    /// What every write so far was about, torn ones cut off.
    entries: Vec<Entry>,
    /// The first so many were answered for.
    answered: usize,
    draw: Draw,
}

impl Life {
    fn new(seed: u64) -> Life {
        Life { disk: new_disk(SMALL), known: NODE, entries: Vec::new(), answered: 0, draw: Draw::new(seed) }
    }

    /// Opens the log, checks what it holds, writes `writes` times or until the power fails.
    fn run(&mut self, writes: usize) {
        let states = model::states(&self.entries);
        let opened = open(self.disk.clone(), self.known);
        let Ok((mut engine, replay, identity)) = opened else {
            // The power failed on the way: nothing that counts has changed, or the next start finds it.
            let mut disk = self.disk.clone();
            assert!(disk.cut_at.take().is_some(), "{:?}", opened.map(|_| ()).expect_err("not open"));
            self.disk = open_halfway(disk, self.disk.cut_at, self.known);
            return;
        };
        self.settle(&states, &model::of_replay(&replay));
        self.known = identity;
        let mut model = states[self.entries.len()].clone();
        for _ in 0..writes {
            let mut entries = Vec::new();
            for _ in 0..1 + self.draw.below(4) {
                let entry = model::draw_entry(&mut self.draw, &model);
                model::apply(&mut model, &entry);
                entries.push(entry);
            }
            self.entries.extend(entries.iter().cloned());
            if !commit(&mut engine, &entries) || !keep(&mut engine) {
                break;
            }
            self.answered = self.entries.len();
            if self.draw.below(8) == 0 && engine.mark() && engine.proceed().is_err() {
                break;
            }
        }
        self.disk = engine.disk().clone();
    }

    /// The log holds everything that was answered for, and nothing that was not written.
    fn settle(&mut self, states: &[Model], found: &Model) {
        let prefix = (self.answered..states.len()).rev().find(|&n| states[n] == *found);
        let prefix = prefix.unwrap_or_else(|| {
            let nearest = (self.answered..states.len()).map(|n| (n, model::difference(&states[n], found)));
            let (n, difference) = nearest.min_by_key(|(_, text)| text.len()).expect("there are states");
            panic!(
                "the log holds none of the states {}..{}; from {n} it differs in{difference}",
                self.answered,
                states.len()
            )
        });
        self.entries.truncate(prefix);
        // What a start has read it answers for.
        self.answered = prefix;
    }
}

/// The disk after a start that was cut off.
fn open_halfway(mut disk: SimDisk, cut_at: Option<u64>, known: Identity) -> SimDisk {
    disk.cut_at = cut_at;
    let mut replay = |_: bool, _: Entry| ();
    let found = coppice_server::log::engine::Found::read(&mut disk, known, &mut replay).expect("reads");
    let mut shared = SharedDisk(disk);
    assert!(found.open(&mut shared, DRAWN, SMALL, false).is_err(), "cut off");
    shared.0
}

/// A disk that outlives the engine.
struct SharedDisk(SimDisk);

impl coppice_server::log::Disk for &mut SharedDisk {
    fn list(&mut self) -> std::io::Result<Vec<FileName>> {
        self.0.list()
    }

    fn read(&mut self, file: FileName, limit: usize) -> std::io::Result<Vec<u8>> {
        self.0.read(file, limit)
    }

    fn apply(&mut self, effect: &FileEffect) -> std::io::Result<()> {
        self.0.apply(effect)
    }
}

/// Each effect of a run, cut in two of the ways.
#[test]
fn a_power_cut_between_any_two_effects_loses_nothing_that_was_answered() {
    cut_between_effects(0..1, |seed, cut_at| {
        vec![Crash::Drawn(cut_at), if cut_at % 2 == seed { Crash::AllLost } else { Crash::Process }]
    });
}

#[test]
#[ignore = "long: each effect cut in each way"]
fn a_power_cut_of_any_kind_between_any_two_effects_loses_nothing_that_was_answered() {
    cut_between_effects(0..3, |_, cut_at| {
        vec![Crash::AllLost, Crash::Drawn(cut_at), Crash::Drawn(cut_at + 1_000), Crash::Process]
    });
}

fn cut_between_effects(seeds: Range<u64>, crashes: impl Fn(u64, u64) -> Vec<Crash>) {
    for seed in seeds {
        let mut whole = Life::new(seed);
        whole.run(60);
        let effects = whole.disk.effects;
        assert!(whole.disk.file_names().iter().all(|name| *name > FileName::Segment(2)), "segments were trimmed");
        for cut_at in 0..effects {
            for crash in crashes(seed, cut_at) {
                let mut life = Life::new(seed);
                life.disk.effects = 0;
                life.disk.cut_at = Some(cut_at);
                life.run(60);
                life.disk = life.disk.crash(crash);
                // The second start is cut off too, somewhere, and the third goes on.
                life.disk.cut_at = Some(cut_at % 23);
                life.run(20);
                life.disk = life.disk.crash(crash);
                life.run(5);
                life.disk = life.disk.crash(Crash::AllLost);
                life.run(0);
            }
        }
    }
}

/// hazards.md ST1: every flush fails once, the next one would succeed.
#[test]
fn a_failed_flush_ends_the_log_and_is_not_believed_later() {
    for write in 0..20 {
        let mut life = Life::new(7);
        life.run(write);
        let (mut engine, _, identity) = open(life.disk.clone(), life.known).expect("opens");
        let before = engine.disk().effects;
        engine.disk().fail_flushes = 1;
        let entries = [Entry::Trimmed { group: PartitionId(9), upto: Instance(1) }];
        assert!(!commit(&mut engine, &entries), "a flush that failed was taken for one that did not");
        let effects = engine.disk().effects - before;
        assert_eq!(effects, 2, "one write, one flush, and nothing after it");
        // The process stops. The page cache still shows the record, so the next start takes it in; what it answers for
        // then must survive a power cut, although the kernel believes those pages to be clean.
        let disk = engine.disk().clone().crash(Crash::Process);
        let (mut engine, replay, identity) = open(disk, identity).expect("opens");
        let disk = engine.disk().clone().crash(Crash::AllLost);
        assert_eq!(model::of_replay(&read(&disk, identity).expect("reads")), model::of_replay(&replay));
    }
}

/// The record above is of the log itself; this one is a vote, so that its loss would show.
#[test]
fn a_vote_read_back_after_a_failed_flush_is_durable_from_then_on() {
    let mut life = Life::new(11);
    life.run(10);
    let (mut engine, replay, identity) = open(life.disk.clone(), life.known).expect("opens");
    let mut model = model::of_replay(&replay);
    let mut entries = Vec::new();
    while entries.len() < 5 {
        let entry = model::draw_entry(&mut life.draw, &model);
        model::apply(&mut model, &entry);
        entries.push(entry);
    }
    engine.disk().fail_flushes = 1;
    assert!(!commit(&mut engine, &entries));
    let (mut engine, replay, identity) = open(engine.disk().clone().crash(Crash::Process), identity).expect("opens");
    assert_eq!(model::of_replay(&replay), model, "the page cache has it all");
    let disk = engine.disk().clone().crash(Crash::AllLost);
    assert_eq!(model::of_replay(&read(&disk, identity).expect("reads")), model);
}

/// hazards.md ST10: the budget ends at each write, in the middle of a batch too, then returns.
#[test]
fn a_full_disk_stops_writes_and_room_brings_them_back() {
    let mut stuck = 0;
    for extra in (0..60_000).step_by(700) {
        let mut life = Life::new(5);
        let (mut engine, replay, identity) = open(life.disk.clone(), life.known).expect("opens");
        let mut model = model::of_replay(&replay);
        engine.disk().budget = Some(20_480 + 20_480 + extra);
        for _ in 0..40 {
            let entry = model::draw_entry(&mut life.draw, &model);
            model::apply(&mut model, &entry);
            engine.write([entry].iter());
            while engine.proceed().expect("a full disk is no failure") == Progress::Full {
                stuck += 1;
                let disk = engine.disk();
                disk.budget = disk.budget.map(|budget| budget + 1_000);
            }
            // Segments cannot be prepared now, so the newest one grows.
        }
        let disk = engine.disk().clone().crash(Crash::AllLost);
        assert_eq!(model::of_replay(&read(&disk, identity).expect("reads")), model, "extra {extra}");
    }
    assert!(stuck > 20, "the disk was hardly ever full: {stuck}");
}

/// A write for which no file can be opened is no broken disk: it waits, and the same bytes go to the same place later.
#[test]
fn a_write_without_a_descriptor_waits_for_one() {
    let mut life = Life::new(5);
    let (mut engine, replay, identity) = open(life.disk.clone(), life.known).expect("opens");
    let mut model = model::of_replay(&replay);
    for no_descriptors in [true, false] {
        engine.disk().no_descriptors = no_descriptors;
        let entry = model::draw_entry(&mut life.draw, &model);
        model::apply(&mut model, &entry);
        engine.write([entry].iter());
        if no_descriptors {
            assert_eq!(engine.proceed().expect("it passes by itself"), Progress::Full);
            engine.disk().no_descriptors = false;
        }
        assert_eq!(engine.proceed().expect("there is one"), Progress::Durable);
    }
    let disk = engine.disk().clone().crash(Crash::AllLost);
    assert_eq!(model::of_replay(&read(&disk, identity).expect("reads")), model);
}

/// Files of trimmed segments are written again, and given up when the disk needs their room.
#[test]
fn a_log_in_steady_state_makes_no_new_files() {
    let mut life = Life::new(11);
    let (mut engine, replay, _) = open(life.disk.clone(), life.known).expect("opens");
    let mut model = model::of_replay(&replay);
    let (mut prepared, mut reused) = (0, 0);
    for _ in 0..400 {
        let entry = model::draw_entry(&mut life.draw, &model);
        model::apply(&mut model, &entry);
        assert!(commit(&mut engine, &[entry]));
        engine.take_drops().iter().for_each(|effect| engine.disk().apply(effect).expect("carried out"));
        while let Some(preparation) = engine.to_prepare() {
            prepared += 1;
            reused += usize::from(preparation.reuses.is_some());
            preparation.effects().iter().for_each(|effect| engine.disk().apply(effect).expect("carried out"));
            engine.prepared(preparation.number);
        }
    }
    assert!(prepared > 20 && 5 * reused > 3 * prepared, "{reused} of {prepared}");
    let kept = |engine: &mut Engine<SimDisk>| {
        let files = engine.disk().file_names();
        files.into_iter().filter(|file| matches!(file, FileName::Temporary(_))).count()
    };
    // Never much more than what is in use.
    assert!(kept(&mut engine) < 8, "{}", kept(&mut engine));
    engine.release_pool();
    engine.take_drops().iter().for_each(|effect| engine.disk().apply(effect).expect("carried out"));
    assert_eq!(kept(&mut engine), 0);
    assert_eq!(model::of_replay(&read(engine.disk(), life.known).expect("reads")), model);
}

#[test]
fn every_start_is_told_apart_from_the_one_before() {
    let mut life = Life::new(1);
    for start in 1..5 {
        assert_eq!(life.known.incarnation, start);
        life.run(3);
        life.disk = life.disk.crash(Crash::AllLost);
    }
}

/// An idle log ends with a mark, so that damage to its last records is told from a torn tail.
#[test]
fn after_an_idle_mark_even_the_last_record_cannot_be_lost_in_silence() {
    let mut life = Life::new(3);
    life.run(6);
    let (mut engine, ..) = open(life.disk.clone(), life.known).expect("opens");
    let entries = [model::draw_entry(&mut life.draw, &Model::new())];
    assert!(commit(&mut engine, &entries));
    assert!(engine.mark(), "due");
    assert_eq!(engine.proceed().expect("flushed"), Progress::Durable);
    assert!(!engine.mark(), "nothing new to say");
    let mut disk = engine.disk().clone();
    let newest = *disk.file_names().iter().filter(|name| matches!(name, FileName::Segment(_))).max().expect("one");
    disk.damage(newest, |bytes| {
        let last = bytes.iter().rposition(|&byte| byte != 0).expect("not empty") / 4_096 * 4_096;
        let record = bytes[..last].iter().rposition(|&byte| byte != 0).expect("a record");
        bytes[record] ^= 1;
    });
    assert!(read(&disk, life.known).is_err());
}

/// A segment of zeros.
fn unused(number: u64) -> Preparation {
    Preparation { number, bytes: SMALL.segment_bytes, reuses: None }
}

/// Seed 647: a segment was prepared when its node died. The next start began another one behind it, and passed it over;
/// later the segments below were dropped, and the prepared one was the oldest of all. No node started on that log.
#[test]
fn a_log_whose_oldest_segment_was_prepared_and_never_used_is_read_as_if_it_were_not_there() {
    let mut life = Life::new(647);
    life.run(60);
    let mut disk = life.disk.crash(Crash::Process);
    let oldest = disk.file_names().into_iter().find_map(|file| match file {
        FileName::Segment(number) => Some(number),
        _ => None,
    });
    let oldest = oldest.expect("a log has segments");
    assert!(oldest > 2, "segments were trimmed: the oldest is {oldest}");
    let whole = read(&disk, life.known).expect("it is good");
    for below in [1, 2] {
        for effect in unused(oldest - below).effects() {
            disk.apply(&effect).expect("carried out");
        }
        let found = read(&disk, life.known).expect("what was never used says nothing");
        assert_eq!(model::of_replay(&found), model::of_replay(&whole));
    }
    let (mut engine, replay, _) = open(disk, life.known).expect("it starts");
    assert_eq!(model::of_replay(&replay), model::of_replay(&whole));
    let left = engine.disk().file_names();
    assert!(!left.iter().any(|file| *file < FileName::Segment(oldest)), "what was passed over is gone: {left:?}");
}

/// Seed 6498: a power cut tore the header of a new segment. The next start began another one behind it, and passed it
/// over; a drop of the segments below was cut short before it reached that one. The node could not start.
#[test]
fn a_torn_header_below_all_that_is_needed_is_passed_over_and_one_that_is_needed_is_refused() {
    let mut life = Life::new(6_498);
    life.run(60);
    let mut disk = life.disk.crash(Crash::Process);
    let segments = |disk: &SimDisk| {
        let files = disk.file_names().into_iter();
        files.filter_map(|file| if let FileName::Segment(number) = file { Some(number) } else { None }).min()
    };
    let oldest = segments(&disk).expect("a log has segments");
    assert!(oldest > 2, "segments were trimmed: the oldest is {oldest}");
    let whole = read(&disk, life.known).expect("it is good");
    let mut needed = disk.clone();
    needed.damage(FileName::Segment(oldest), |bytes| bytes[8] ^= 1);
    match read(&needed, life.known).expect_err("its records are gone") {
        LogError::Damage(damage) => assert_eq!((damage.file, damage.offset), (FileName::Segment(oldest), 0)),
        other => panic!("{other}"),
    }
    for below in [1, 2] {
        for effect in unused(oldest - below).effects() {
            disk.apply(&effect).expect("carried out");
        }
        disk.damage(FileName::Segment(oldest - below), |bytes| bytes[..512].fill(7));
        let found = read(&disk, life.known).expect("what was torn says nothing");
        assert_eq!(model::of_replay(&found), model::of_replay(&whole));
    }
    let (mut engine, replay, _) = open(disk, life.known).expect("it starts");
    assert_eq!(model::of_replay(&replay), model::of_replay(&whole));
    assert!(segments(engine.disk()) >= Some(oldest), "what was passed over is gone");
}

/// Runs this program's tests under each planted bug: at least one must fail (hazards.md 6).
#[cfg(feature = "mutants")]
#[test]
fn every_planted_bug_is_caught() {
    crate::log_common::catch("retry_flush", "crash::a_failed_flush_ends_the_log_and_is_not_believed_later");
    crate::log_common::catch(
        "no_dir_flush",
        "crash::a_power_cut_between_any_two_effects_loses_nothing_that_was_answered",
    );
    crate::log_common::catch(
        "reused_keeps_header",
        "crash::a_power_cut_between_any_two_effects_loses_nothing_that_was_answered",
    );
    crate::log_common::catch(
        "trim_early",
        "crash::a_power_cut_between_any_two_effects_loses_nothing_that_was_answered",
    );
    crate::log_common::catch("enospc_ignored", "crash::a_full_disk_stops_writes_and_room_brings_them_back");
    crate::log_common::catch("descriptors_end_the_log", "crash::a_write_without_a_descriptor_waits_for_one");
    crate::log_common::catch("no_incarnation", "crash::every_start_is_told_apart_from_the_one_before");
}
