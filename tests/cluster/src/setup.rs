//! What a round is made of, and what comes of it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use coppice_check::cli::{Checker, Line};

use super::cuts::Cut;
use super::failpoints::Failpoints;
use super::figures::Figures;
use super::kinds::Kind;
use super::matrix::Matrix;
use super::resources::{Held, Waiting};

/// After the last fault every write without an answer gets one within this time, and the whole map can be read.
pub const RECOVERY_MAX: Duration = Duration::from_secs(60);

/// When a round ends.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// After so long.
    pub time: Option<Duration>,
    /// After so many operations.
    pub ops: Option<u64>,
    /// After so many faults.
    pub count: Option<u64>,
}

/// What a round is made of.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The program `coppice`.
    pub program: PathBuf,
    /// A cluster that runs already; empty: one of its own.
    pub endpoints: Vec<String>,
    /// Its nodes and clients connect inside TLS.
    pub tls: bool,
    /// For the nodes' data; made by the round.
    pub directory: PathBuf,
    /// For the history.
    pub out: PathBuf,
    pub nodes: usize,
    /// Partitions at the beginning.
    pub partitions: u32,
    pub clients: u32,
    /// Half of them speak RESP.
    pub resp: bool,
    pub keys: usize,
    /// What judges the history.
    pub checkers: Vec<Checker>,
    /// Operations per second; 0: no limit.
    pub rate: u32,
    /// Faults that can be made here.
    pub kinds: Vec<Kind>,
    /// Links are cut by the kernel, not by proxies.
    pub kernel: bool,
    /// Cuts of the matrix that are still to be made, in this order.
    pub matrix: Option<Vec<Cut>>,
    /// What is known of failpoints, and which may be armed.
    pub failpoints: Failpoints,
    /// Of all draws.
    pub seed: u64,
    /// Resident memory that no node may exceed, bytes.
    pub memory_max: u64,
    /// When it ends.
    pub limits: Limits,
    /// Ctrl-C.
    pub interrupted: Arc<AtomicBool>,
}

/// How a round ended.
#[derive(Debug, Default)]
pub struct RoundResult {
    pub figures: Figures,
    /// Faults; every node killed counts one.
    pub count: u64,
    /// When a leader of everything was killed, nanoseconds of the history.
    pub kills: Vec<u64>,
    /// When the faults ended, nanoseconds of the history.
    pub ended_at: u64,
    /// What is known of failpoints by now.
    pub failpoints: Failpoints,
    /// Of cuts and operations, if it was asked for.
    pub matrix: Matrix,
    /// Changes of the map that were done, of each kind, and how many were not.
    pub changes: (BTreeMap<&'static str, u64>, u64),
    /// The most that each node held.
    pub held: Vec<Held>,
    /// The most that waited in a partition.
    pub waiting: Waiting,
    /// What was checked, and the outcome.
    pub lines: Vec<Line>,
    /// What is wrong, in words; empty: nothing.
    pub wrong: Vec<String>,
    /// Neither the certificate nor the search could decide.
    pub unknown: bool,
    /// A check that was asked for was not made.
    pub skipped: bool,
    /// The timeline of a violation.
    pub timeline: Option<PathBuf>,
    /// The nodes' data, kept because something is wrong.
    pub kept: Option<PathBuf>,
}
