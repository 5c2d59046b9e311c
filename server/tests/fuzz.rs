//! Decoders of nodes, and of what they say to clients, meet images that were valid once: no panic, no loop, nothing
//! made up, no memory beyond what the bytes deserve (hazards.md 7, G20).
//!
//! Each target takes bytes and decodes them as a node would, then uses what it got, and says it again. Cases are drawn
//! from a seed. An image is known as a tree of fields (`fuzz_targets/shape.rs`): numbers become those at the ends of
//! their range, their neighbours and each other's, lengths and counts lie, parts are left out, doubled, cut, and taken
//! from other images, and what stands around them is written to fit. One in five is damaged byte by byte besides.
//! Where a checksum protects the bytes it is made to fit, as an attacker or a bug of ours would make it.
//!
//! Under `cargo test` a few thousand cases per target; tests/README.md has the long form, and what it found:
//!
//! ```text
//! COPPICE_FUZZ_RUNS=10000000 [COPPICE_FUZZ_TARGET=peer_messages] [COPPICE_FUZZ_SEED=7] [COPPICE_FUZZ_THREADS=2] \
//!     cargo test --release -p coppice-server --test fuzz decoder -- --nocapture
//! ```

mod common;
mod fuzz_targets;
mod log_common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use coppice_server::log::{FileName, LogError};
use fuzz_targets::damage::damage;
use fuzz_targets::shape::Shape;
use fuzz_targets::{TARGETS, Target};
use log_common::model::{self, Model};
use log_common::sim_disk::SimDisk;
use log_common::{Draw, NODE, SMALL, commit, keep, new_disk, open, read};

/// Cases per target under plain `cargo test`.
const RUNS: u64 = 3_000;

/// What any image may take: a serde decoder believes a length for so much before it meets the end of the bytes.
const BYTES_ALWAYS: u64 = 2 << 20;

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

fn number(name: &str, default: u64) -> u64 {
    variable(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Of this run: another one each time, printed, unless it is given.
fn seed() -> u64 {
    let clock = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64 >> 10);
    let seed = number("COPPICE_FUZZ_SEED", clock);
    println!("COPPICE_FUZZ_SEED={seed}");
    seed
}

/// What the cases of a target came to.
#[derive(Default)]
struct Tally {
    understood: AtomicU64,
    /// The most that one of them took: for each byte of its image, beyond what any may take.
    bytes_each: AtomicU64,
}

fn run_case(target: &Target, corpus: &[Shape], (seed, case): (u64, u64), tally: &Tally) {
    let mut draw = Draw::new(seed.wrapping_mul(0x1_0000_0001).wrapping_add(case));
    let shape = &corpus[draw.below(corpus.len() as u64) as usize];
    let bytes = shape.mutated(corpus, &mut |bound| draw.below(bound));
    let mut understood = Ok(false);
    let took = allocation_counter::measure(|| {
        understood = catch_unwind(AssertUnwindSafe(|| (target.run)(&bytes)));
    });
    let whose = || format!("target {}, seed {seed}, case {case}: {bytes:02x?}", target.name);
    match understood {
        Ok(understood) => _ = tally.understood.fetch_add(u64::from(understood), Ordering::Relaxed),
        Err(_) => panic!("{}", whose()),
    }
    let (most, length) = (took.bytes_max, bytes.len() as u64 + 1);
    assert!(most <= BYTES_ALWAYS + target.bytes_each * length, "{most} bytes of memory: {}", whose());
    tally.bytes_each.fetch_max(most.saturating_sub(BYTES_ALWAYS) / length, Ordering::Relaxed);
}

#[test]
fn damaged_images_panic_no_decoder() {
    let (runs, seed, threads) = (number("COPPICE_FUZZ_RUNS", RUNS), seed(), number("COPPICE_FUZZ_THREADS", 1));
    let wanted = variable("COPPICE_FUZZ_TARGET");
    let (mut ran, mut images) = (0, 0);
    for target in TARGETS.iter().filter(|target| wanted.as_deref().is_none_or(|wanted| wanted == target.name)) {
        let corpus = (target.corpus)();
        // What is whole is understood: a corpus that is refused would test nothing.
        for whole in &corpus {
            assert!((target.run)(&whole.whole()), "target {} refuses {:02x?}", target.name, whole.whole());
        }
        let (runs, tally, begun) = ((runs / target.one_in).max(100), Tally::default(), std::time::Instant::now());
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (corpus, tally) = (&corpus, &tally);
                scope.spawn(move || {
                    (thread..runs)
                        .step_by(threads as usize)
                        .for_each(|case| run_case(target, corpus, (seed, case), tally));
                });
            }
        });
        let (understood, each) = (tally.understood.into_inner(), tally.bytes_each.into_inner());
        println!(
            "{:<16} {runs:>9} images of {:>2}, {:>3} % understood, {each} bytes each, {:.1} s",
            target.name,
            corpus.len(),
            100 * understood / runs,
            begun.elapsed().as_secs_f64()
        );
        (ran, images) = (ran + 1, images + runs);
    }
    assert!(ran > 0, "no target has the name {wanted:?}");
    println!("{images} images");
}

/// A log with several starts and segments, and every state that its entries went through.
fn written_log() -> (SimDisk, Vec<Model>) {
    let (mut engine, _, mut identity) = open(new_disk(SMALL), NODE).expect("an empty log");
    let mut draw = Draw::new(11);
    let (mut model, mut entries) = (Model::new(), Vec::new());
    for write in 0..24 {
        let before = entries.len();
        for _ in 0..1 + draw.below(5) {
            let entry = model::draw_entry(&mut draw, &model);
            model::apply(&mut model, &entry);
            entries.push(entry);
        }
        assert!(commit(&mut engine, &entries[before..]) && keep(&mut engine));
        if write % 9 == 8 {
            let disk = engine.disk().clone();
            (engine, _, identity) = open(disk, identity).expect("it is whole");
        }
    }
    (engine.disk().clone(), model::states(&entries))
}

fn damage_disk(disk: &mut SimDisk, draw: &mut Draw) {
    let names: Vec<FileName> = disk.file_names();
    let other = disk.bytes(names[draw.below(names.len() as u64) as usize]).to_vec();
    let name = names[draw.below(names.len() as u64) as usize];
    match draw.below(8) {
        0 => disk.lose_file(name),
        1 => {
            // A sector in another's place.
            let sectors = |bytes: &[u8]| (bytes.len() / 512).max(1) as u64;
            let (from, to) =
                (draw.below(sectors(&other)) as usize * 512, draw.below(sectors(disk.bytes(name))) as usize);
            let sector: Vec<u8> = other.iter().skip(from).take(512).copied().collect();
            disk.damage(name, |bytes| {
                let until = (to * 512 + sector.len()).min(bytes.len());
                let start = (to * 512).min(until);
                bytes[start..until].copy_from_slice(&sector[..until - start]);
            });
        }
        _ => disk.damage(name, |bytes| damage(bytes, &other, &mut |bound| draw.below(bound))),
    }
}

/// hazards.md G8 in small: whatever is damaged, a start finds a state that was, or refuses; it makes nothing up.
#[test]
fn damaged_logs_are_read_as_a_state_that_was_or_refused() {
    let (whole, states) = written_log();
    let runs = number("COPPICE_FUZZ_RUNS", 600);
    let (mut refused, mut taken) = (0_u64, 0_u64);
    for case in 0..runs {
        let mut draw = Draw::new(number("COPPICE_FUZZ_SEED", 1).wrapping_mul(0x9_0001).wrapping_add(case));
        let mut disk = whole.clone();
        for _ in 0..1 + draw.below(3) {
            damage_disk(&mut disk, &mut draw);
        }
        match read(&disk, NODE) {
            Ok(replay) => {
                let found = model::of_replay(&replay);
                assert!(states.contains(&found), "case {case}: made up");
                taken += 1;
            }
            Err(LogError::Damage(_) | LogError::Older { .. } | LogError::Io(_)) => refused += 1,
        }
    }
    assert!(runs < 600 || (refused > 100 && taken > 20), "refused {refused}, taken {taken}");
}
