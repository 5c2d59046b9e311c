//! The load of an experiment: clients in a closed loop, one command each, one command a message, as in the paper
//! (papers.md A10). Carried out by the load generator, in this process.

use std::time::Duration;

use clap::Parser;
use coppice_loadgen::app::args::{Cli, Command};
use coppice_loadgen::app::{NOTHING_ANSWERED, measure};
use coppice_loadgen::target::native::WINDOW_UNPACKED;

/// Bytes of a key.
const KEY_BYTES: u64 = 8;

/// Clients of one connection: as many as it has under way. Others would wait in this process, and the load would be
/// less than it says.
const CONNECTION_CLIENTS: u64 = WINDOW_UNPACKED as u64;

/// All clients together have no more than so much under way: enough to overflow a WAN's queue (1200 KiB), less than a
/// leader queues before it refuses.
const UNDER_WAY_BYTES: u64 = 1_536 << 10;

/// The most clients.
const CLIENTS_MAX: u64 = 2_400;

/// How long a command may take: longer than what is under way takes on a congested link.
const TIMEOUT: &str = "60s";

/// Dropped at each end of a run, at most a quarter of it: until the first of what is under way on a slow link is
/// answered nothing is steady.
const TRIM: Duration = Duration::from_millis(1_500);

/// What is asked of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Key and value of a command, in bytes: more than a key takes.
    pub size: u64,
    /// Clients, each with one command under way.
    pub clients: u64,
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Got {
    /// Commands answered per second.
    pub throughput: f64,
    /// Their latency, in milliseconds.
    pub p50_ms: f64,
    /// The same, of the slowest of a hundred.
    pub p99_ms: f64,
    /// Commands that failed, were refused or not answered in time.
    pub errors: u64,
}

impl Load {
    /// As many clients as saturate any link with commands of this size.
    pub fn saturating(size: u64) -> Load {
        Load { size, clients: (UNDER_WAY_BYTES / size).clamp(1, CLIENTS_MAX) }
    }

    /// Asks for so long.
    ///
    /// # Errors
    /// In words: nobody is there.
    pub fn run(&self, endpoints: &[String], length: Duration) -> Result<Got, String> {
        let trim = TRIM.min(length / 4);
        let words = [
            "coppice-load".to_owned(),
            "run".into(),
            "--workload=put".into(),
            "--pack=0".into(),
            "--quiet".into(),
            format!("--endpoints={}", endpoints.join(",")),
            format!("--timeout={TIMEOUT}"),
            format!("--value-size={}", self.size.saturating_sub(KEY_BYTES)),
            format!("--clients={}", self.clients),
            format!("--connections={}", self.clients.div_ceil(CONNECTION_CLIENTS)),
            // Few keys: what is measured is how they are ordered.
            "--entries=10000".into(),
            format!("--duration={}ms", length.as_millis()),
            format!("--trim={}ms", trim.as_millis()),
        ];
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        let Command::Run(args) = &cli.command else { return Err("`run` is another command now".into()) };
        let summary = match measure(args, &cli.global) {
            Ok(summary) => summary,
            // A collapsed link: that is a result.
            Err(failure) if failure.what == NOTHING_ANSWERED => return Ok(Got::default()),
            Err(failure) => return Err(failure.text()),
        };
        Ok(Got {
            throughput: summary.commands_per_second,
            p50_ms: summary.latency.p50_ms,
            p99_ms: summary.latency.p99_ms,
            errors: summary.failed + summary.busy + summary.unknown,
        })
    }
}
