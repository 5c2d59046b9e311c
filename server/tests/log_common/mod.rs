//! A simulated disk for the log, a model of what the log must hold, and a workload.
#![allow(dead_code)] // Each test program uses a part of it.

pub mod model;
pub mod sim_disk;

use coppice_core::incarnation::Identity;
use coppice_core::replay::{Entry, ReadsLog, Replay};
use coppice_server::datadir::{ClusterId, NodeId};
use coppice_server::log::engine::{Found, Progress, read_batches};
use coppice_server::log::segment::StartNonces;
use coppice_server::log::{Disk, Engine, Geometry, LogError};
use sim_disk::SimDisk;

/// The node whose log it is.
pub const NODE: Identity = Identity { cluster: ClusterId(0x51), node: NodeId(3), incarnation: 1 };

/// What every start of it draws.
pub const DRAWN: StartNonces = StartNonces { boot_id: 0x11fe, salt: 0x5a17 };

/// Segments so small that a few writes fill one.
pub const SMALL: Geometry = Geometry { first_bytes: 20 << 10, segment_bytes: 24 << 10, segments_ahead: 1 };

/// Deterministic numbers (xorshift64*).
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    pub fn new(seed: u64) -> Draw {
        Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

/// A fresh log on a fresh disk.
pub fn new_disk(geometry: Geometry) -> SimDisk {
    let mut disk = SimDisk::default();
    coppice_server::log::engine::create(&mut disk, NODE, DRAWN, geometry).expect("created");
    disk
}

/// Reads the log and opens it for writing.
pub fn open(mut disk: SimDisk, known: Identity) -> Result<(Engine<SimDisk>, Replay, Identity), LogError> {
    let mut replay = Replay::default();
    let found = Found::read(&mut disk, known, &mut |carried, entry| replay.apply(carried, entry))?;
    let identity = found.identity;
    Ok((found.open(disk, DRAWN, SMALL, false)?, replay, identity))
}

/// Reads the log and changes nothing.
pub fn read(disk: &SimDisk, known: Identity) -> Result<Replay, LogError> {
    let mut replay = Replay::default();
    Found::read(&mut disk.clone(), known, &mut |carried, entry| replay.apply(carried, entry))?;
    Ok(replay)
}

/// Writes `entries` and does what the keeper thread does. False if the disk failed.
pub fn commit(engine: &mut Engine<SimDisk>, entries: &[Entry]) -> bool {
    engine.write(entries.iter());
    matches!(engine.proceed(), Ok(Progress::Durable))
}

/// What the keeper thread does between two writes. False if the disk failed.
pub fn keep(engine: &mut Engine<SimDisk>) -> bool {
    let drops = engine.take_drops();
    if !drops.iter().all(|effect| engine.disk().apply(effect).is_ok()) {
        return false;
    }
    while let Some(preparation) = engine.to_prepare() {
        if !preparation.effects().iter().all(|effect| engine.disk().apply(effect).is_ok()) {
            return false;
        }
        engine.prepared(preparation.number);
    }
    if let Some(rewrite) = engine.rewrite_target() {
        let batches = read_batches(engine.disk(), &rewrite).expect("nothing is damaged");
        engine.rewrite(Some(batches));
    }
    true
}

/// Runs one test of this program under a planted bug, in a process of its own: it must fail.
#[cfg(feature = "mutants")]
pub fn catch(mutant: &str, test: &str) {
    let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
    let output = command.args(["--exact", test]).env("COPPICE_MUTANT", mutant).output().expect("the test runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("running 1 test"), "no test {test}");
    assert!(!output.status.success(), "{mutant} is not caught by {test}");
}
