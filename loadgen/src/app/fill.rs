//! `coppice-load fill`, and `run --preload`.

use std::time::{Duration, Instant};

use super::args::{FillArgs, Global, Output};
use super::failure::{Exit, Failure};
use super::progress::Progress;
use super::store::{Description, Store};
use crate::metrics::Sample;
use crate::say::say;
use crate::target::fill::FillResult;
use crate::units::{print_count, significant};

/// How long a fill waits for the nodes' own count.
const SETTLE_MAX: Duration = Duration::from_secs(3);

/// Carries the command out.
pub fn fill(args: &FillArgs, global: &Global) -> Result<Exit, Failure> {
    let (filled, description, seconds) = fill_quietly(args, global)?;
    settle(&description, filled.keys);
    let rate = filled.keys as f64 / seconds.max(1e-9);
    match global.output {
        Output::Json => say!(
            "{}",
            serde_json::json!({
                "v": 1, "entries": filled.keys, "present": filled.present, "seconds": seconds,
                "keys_per_second": rate.round(), "partitions": description.keys.parts(), "value_bytes": args.value_size,
            })
        ),
        Output::Table => say!(
            "{} keys of 8 bytes with values of {} bytes in {} partitions, in {} s: {} keys/s{}",
            print_count(filled.keys),
            print_count(args.value_size),
            description.keys.parts(),
            significant(seconds),
            print_count(rate as u64),
            match filled.present {
                0 => String::new(),
                present => format!(" ({} were there before)", print_count(present)),
            }
        ),
    }
    Ok(Exit::Done)
}

/// Nodes count their keys about once a second, and a run takes its keys from that count: waits until it is true, though
/// not for long.
fn settle(description: &Description, keys: u64) {
    let until = Instant::now() + SETTLE_MAX;
    let told = || Sample::take(&description.admin).keys();
    while told().is_some_and(|told| told < keys) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The same without a word on stdout: what was filled, into what, and the seconds that it took.
pub fn fill_quietly(args: &FillArgs, global: &Global) -> Result<(FillResult, Description, f64), Failure> {
    let store = Store::new(args.target, global)?;
    let description = store.describe()?;
    let began = Instant::now();
    let filled = load(&store, &description, args.entries, args.value_size, global.quiet)?;
    Ok((filled, description, began.elapsed().as_secs_f64()))
}

/// Loads the first `entries` keys of the list.
pub fn load(
    store: &Store,
    description: &Description,
    entries: u64,
    value_bytes: u64,
    quiet: bool,
) -> Result<FillResult, Failure> {
    let value_bytes = value_bytes_checked(value_bytes)?;
    let progress = Progress::new(entries, quiet);
    let began = Instant::now();
    let mut drawn = Instant::now();
    let filled = store.fill(&description.keys, entries, value_bytes, |done| {
        if drawn.elapsed().as_millis() >= 100 {
            drawn = Instant::now();
            let rate = done as f64 / began.elapsed().as_secs_f64().max(1e-9);
            progress.count(done, format!("{} keys, {} keys/s", print_count(done), print_count(rate as u64)));
        }
    });
    progress.finish();
    filled
}

/// A value has at most 1 MiB (operations.md 3).
pub fn value_bytes_checked(bytes: u64) -> Result<u32, Failure> {
    u32::try_from(bytes)
        .ok()
        .filter(|&bytes| bytes <= 1 << 20)
        .ok_or_else(|| Failure::usage("--value-size", "a value has at most 1 MiB", "coppice-load run --value-size 1k"))
}
