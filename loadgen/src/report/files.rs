//! `--out DIR`: `run.json`, `latency.hlog` and the plots of one run.

use std::path::Path;
use std::time::{Duration, SystemTime};

use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use serde::{Deserialize, Serialize};

use super::plot;
use super::summary::{Latency, Point, Summary, ms};
use crate::machine::Machine;
use crate::metrics::Ordering;
use crate::runner::{Tally, Timeline};

/// One slice of the window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SliceRow {
    /// Its middle, seconds from the start of the run.
    pub at_s: f64,
    /// Requests answered per second.
    pub throughput: f64,
    /// Commands answered per second.
    pub commands_per_second: f64,
    /// Not answered: failed, busy or unknown.
    pub errors: u64,
    /// Latencies.
    #[serde(flatten)]
    pub latency: Latency,
}

/// One sample of the server side.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OrderingRow {
    /// End of the second that it covers, from the start of the run.
    pub at_s: f64,
    /// Averages of that second.
    #[serde(flatten)]
    pub ordering: Ordering,
}

/// `run.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunFile {
    /// Version of this file; fields are only added.
    pub v: u32,
    /// The command line.
    pub command: String,
    /// Where it was made.
    pub machine: Machine,
    /// How the servers flush, as they say themselves.
    pub flush: String,
    /// The configuration of the first node that answered.
    pub server_config: serde_json::Value,
    /// The numbers.
    pub summary: Summary,
    /// The window, slice by slice.
    pub slices: Vec<SliceRow>,
    /// (percentile, milliseconds), ascending.
    pub percentiles: Vec<(f64, f64)>,
    /// The server side over time.
    pub ordering: Vec<OrderingRow>,
    /// The steps of `--find-max`.
    pub points: Vec<Point>,
}

/// The window as rows.
pub fn slices(tally: &Tally, timeline: &Timeline) -> Vec<SliceRow> {
    let row = |(index, slice): (usize, &crate::runner::tally::Slice)| {
        let (from, to) = timeline.bounds(index);
        let seconds = (to - from) as f64 / 1e9;
        let per_second = |count: u64| (count as f64 / seconds * 10.0).round() / 10.0;
        SliceRow {
            at_s: (from + to) as f64 / 2e9,
            throughput: per_second(slice.ends.ok),
            commands_per_second: per_second(slice.commands),
            errors: slice.ends.total() - slice.ends.ok,
            latency: Latency::of(&slice.latency),
        }
    };
    tally.slices.iter().enumerate().map(row).collect()
}

/// The curve of percentiles, six points per nine.
pub fn percentiles(histogram: &Histogram<u64>) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    let mut step = 0;
    while !histogram.is_empty() {
        let beyond = 10f64.powf(-f64::from(step) / 6.0);
        let percent = ((1.0 - beyond) * 1e8).round() / 1e6;
        points.push((percent, ms(histogram.value_at_quantile(1.0 - beyond))));
        // Beyond the last request nothing is known.
        if beyond * (histogram.len() as f64) < 1.0 {
            break;
        }
        step += 1;
    }
    points
}

/// Makes the directory if needed and tries to write into it, before anything is measured for it; the error names the
/// file.
pub fn prepare(directory: &Path) -> Result<(), String> {
    let error = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    std::fs::create_dir_all(directory).map_err(|e| error(directory, &e))?;
    let path = directory.join("run.json.tmp");
    std::fs::write(&path, "").and_then(|()| std::fs::remove_file(&path)).map_err(|e| error(&path, &e))
}

/// Writes the directory, making it if needed; the error names the file.
pub fn write(directory: &Path, run: &RunFile, tally: &Tally, timeline: &Timeline) -> Result<(), String> {
    let error = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    std::fs::create_dir_all(directory).map_err(|e| error(directory, &e))?;
    let mut files = vec![("run.json".to_owned(), run_json(run)), ("latency.hlog".to_owned(), hlog(tally, timeline)?)];
    files.extend(plot::of_runs(&[(String::new(), run)]).into_iter().map(|(name, svg)| (name, svg.into_bytes())));
    for (name, bytes) in files {
        let path = directory.join(name);
        std::fs::write(&path, bytes).map_err(|e| error(&path, &e))?;
    }
    Ok(())
}

fn run_json(run: &RunFile) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(run).expect("numbers and texts are always JSON");
    text.push(b'\n');
    text
}

/// Reads `run.json` of a directory.
pub fn read(directory: &Path) -> Result<RunFile, String> {
    let path = directory.join("run.json");
    let text = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    serde_json::from_slice(&text).map_err(|e| format!("{}: {e}", path.display()))
}

/// An HdrHistogram interval log of the window, values in nanoseconds, one untagged line per slice (they add up to the
/// whole) and one line tagged with its word per kind.
fn hlog(tally: &Tally, timeline: &Timeline) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let text = |e: &dyn std::fmt::Debug| format!("latency.hlog: {e:?}");
    let mut builder = IntervalLogWriterBuilder::new();
    builder.add_comment(concat!(
        "coppice-load ",
        env!("CARGO_PKG_VERSION"),
        ", values in nanoseconds, maxima in milliseconds"
    ));
    builder.with_start_time(SystemTime::now() - Duration::from_nanos(timeline.end()));
    builder.with_max_value_divisor(1e6);
    let mut writer = builder.begin_log_with(&mut bytes, &mut serializer).map_err(|e| text(&e))?;
    for (index, slice) in tally.slices.iter().enumerate() {
        let (from, to) = timeline.bounds(index);
        let (start, length) = (Duration::from_nanos(from), Duration::from_nanos(to - from));
        writer.write_histogram(&slice.latency, start, length, None).map_err(|e| text(&e))?;
    }
    let start = Duration::from_nanos(timeline.window().start);
    for (kind, of_kind) in crate::workload::Kind::ALL.iter().zip(&tally.kinds) {
        if !of_kind.latency.is_empty() {
            let tag = Tag::new(kind.name());
            writer.write_histogram(&of_kind.latency, start, timeline.window_length(), tag).map_err(|e| text(&e))?;
        }
    }
    Ok(bytes)
}
