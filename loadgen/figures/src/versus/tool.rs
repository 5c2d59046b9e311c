//! etcd's benchmark tool: the keys that it writes, and what it prints.

use super::job::{Job, Measurement};

/// What one run of the tool printed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ToolOutput {
    /// How long it took, seconds.
    pub total_s: f64,
    /// Answered per second, failures left out.
    pub per_second: f64,
    /// Median, seconds.
    pub p50_s: f64,
    /// 99th percentile, seconds.
    pub p99_s: f64,
    /// Requests that failed.
    pub errors: u64,
}

impl ToolOutput {
    /// Reads the report, which stands behind a progress bar whose lines end with carriage returns.
    ///
    /// # Errors
    /// In words: there is no report of answered requests; the tool's own error if it gave one.
    pub fn parse(text: &str) -> Result<ToolOutput, String> {
        let mut printed = ToolOutput::default();
        let mut first_error = None;
        for line in text.split(['\n', '\r']).map(str::trim) {
            if let Some((count, error)) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
                // `[388]<tab>text`; the histogram's lines begin with a number before the bracket.
                printed.errors += count.trim().parse::<u64>().unwrap_or(0);
                first_error.get_or_insert(error.trim());
            }
            let mut words = line.split_whitespace();
            let field = match (words.next(), words.next()) {
                (Some("Total:"), value) => value.map(|value| (&mut printed.total_s, value)),
                (Some("Requests/sec:"), value) => value.map(|value| (&mut printed.per_second, value)),
                (Some("50%"), Some("in")) => words.next().map(|value| (&mut printed.p50_s, value)),
                (Some("99%"), Some("in")) => words.next().map(|value| (&mut printed.p99_s, value)),
                _ => None,
            };
            if let Some((field, value)) = field {
                *field = value.parse().map_err(|_| format!("`{line}` in the tool's report is no number"))?;
            }
        }
        if [printed.total_s, printed.per_second, printed.p50_s].iter().all(|&value| value > 0.0) {
            return Ok(printed);
        }
        Err(first_error
            .map_or_else(|| "the tool printed no report".to_owned(), |e| format!("no request succeeded: {e}")))
    }

    /// As a measurement. A run of fewer than a hundred requests has no 99th percentile; it is then the median.
    pub fn measured(&self, command: String) -> Measurement {
        Measurement {
            per_second: self.per_second,
            p50_ms: self.p50_s * 1e3,
            p99_ms: self.p99_s.max(self.p50_s) * 1e3,
            errors: self.errors,
            command,
        }
    }
}

/// Bytes of a key.
const KEY_BYTES: usize = 8;

/// The key that the tool writes for the number `index`: Go's signed varint, filled up with zeros.
fn key(index: u64) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    let mut rest = index << 1;
    let mut at = 0;
    while rest >= 0x80 {
        key[at] = (rest as u8 & 0x7f) | 0x80;
        rest >>= 7;
        at += 1;
    }
    key[at] = rest as u8;
    key
}

/// Both ends of a range that holds `keys` of the tool's first `entries` keys, in the middle of their order. An argument
/// of a program holds no zero bytes; without those at its end a key still sorts before all others that follow it.
pub fn range(entries: u64, keys: usize) -> (Vec<u8>, Vec<u8>) {
    let mut all: Vec<_> = (0..entries).map(key).collect();
    all.sort_unstable();
    let low = all.len().saturating_sub(keys) / 2;
    let bound = |at: usize| all.get(at).map_or(vec![0xff], |key| key.split(|&b| b == 0).next().unwrap_or(&[]).to_vec());
    (bound(low), bound(low + keys))
}

/// The tool's flags for a job: `total` requests over `entries` keys; a range goes from `low` to `high`.
pub fn arguments(job: Job, total: u64, entries: u64) -> Vec<String> {
    let conns = job.clients().min(64);
    let kind = match job {
        Job::UnloadedPut | Job::PackedPuts | Job::SinglePuts => {
            format!(" --key-size 8 --val-size 8 --key-space-size {entries}")
        }
        Job::Ranges | Job::Gets => " --consistency l".to_owned(),
    };
    let text = format!("--target-leader --precise --conns {conns} --clients {} --total {total}{kind}", job.clients());
    text.split(' ').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PRECISE: ToolOutput = ToolOutput {
        total_s: 5.994540983,
        per_second: 3336.368882407889,
        p50_s: 0.274811165,
        p99_s: 0.558194243,
        errors: 0,
    };

    const ROUNDED: ToolOutput =
        ToolOutput { total_s: 0.8824, per_second: 226.6616, p50_s: 0.0036, p99_s: 0.0166, errors: 0 };

    #[test]
    fn a_report_is_read_through_its_progress_bar() {
        // etcd 3.5.17, `benchmark put --precise`, then without `--precise`.
        let printed = ToolOutput::parse(include_str!("recorded/etcd-put.txt")).unwrap();
        assert_eq!(printed, PRECISE);
        let rounded = ToolOutput::parse(include_str!("recorded/etcd-put-rounded.txt")).unwrap();
        assert_eq!(rounded, ROUNDED);
        let measured = printed.measured("benchmark put".to_owned());
        assert_eq!((measured.p50_ms * 1e6).round(), (PRECISE.p50_s * 1e9).round());
    }

    #[test]
    fn failures_are_counted_and_a_run_of_nothing_else_is_none() {
        let printed = ToolOutput::parse(include_str!("recorded/etcd-errors.txt")).unwrap();
        assert_eq!((printed.errors, printed.p99_s), (388, 0.034963429));
        let all = ToolOutput::parse(include_str!("recorded/etcd-all-errors.txt"));
        assert_eq!(all, Err("no request succeeded: etcdserver: mvcc: database space exceeded".to_owned()));
        assert_eq!(ToolOutput::parse(""), Err("the tool printed no report".to_owned()));
        assert!(ToolOutput::parse("  Total:\tNaN! secs.\n").is_err_and(|e| e.contains("no number")));
    }

    #[test]
    fn keys_are_gos_varints() {
        assert_eq!(key(0), [0; 8]);
        assert_eq!(key(63), [126, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(key(64), [0x80, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(key(999_999), [0xfe, 0x88, 0x7a, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_range_holds_as_many_keys_as_asked_for_and_can_be_an_argument() {
        for entries in [10_000, 100_000, 300_001] {
            let (low, high) = range(entries, 1_000);
            let keys: BTreeSet<Vec<u8>> = (0..entries).map(|i| key(i).to_vec()).collect();
            assert_eq!(keys.range(low.clone()..high.clone()).count(), 1_000, "{entries}");
            assert!(!low.contains(&0) && !high.contains(&0) && low[0] != b'-');
        }
    }
}
