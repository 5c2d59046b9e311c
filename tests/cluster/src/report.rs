//! What a run says at its end: the checks, the figures, one verdict line.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use coppice_check::cli::Line;
use coppice_testkit::say;
use serde_json::{Value, json};

use super::failpoints::Failpoints;
use super::figures::{Figures, Gap};
use super::kinds::Kind;
use super::matrix::{Matrix, percentile};
use super::resources::{Held, merge};
use super::setup::RoundResult;

/// All rounds together.
#[derive(Debug, Default)]
pub struct Report {
    /// Of the first round; the others count up from it.
    pub seed: u64,
    /// Kinds of faults that were asked for and not made, and why.
    pub skipped: Vec<(Kind, &'static str)>,
    /// Where the history lies.
    pub out: PathBuf,
    /// Sums.
    pub figures: Figures,
    /// Faults.
    pub count: u64,
    /// What is known of failpoints.
    pub failpoints: Failpoints,
    /// Of cuts and operations.
    pub matrix: Matrix,
    /// It was asked for.
    with_matrix: bool,
    /// What is wrong with it.
    late: Vec<String>,
    rounds: Rounds,
    /// Changes of the map that were done, of each kind, and how many were not.
    changes: (BTreeMap<&'static str, u64>, u64),
    held: Vec<Held>,
    lines: Vec<Line>,
    wrong: Vec<String>,
    timeline: Option<PathBuf>,
    kept: Option<PathBuf>,
}

/// How many rounds there were.
#[derive(Clone, Copy, Debug, Default)]
struct Rounds {
    all: u64,
    /// No checker could decide on these.
    undecided: u64,
    /// Something that was asked for was not checked in these.
    unchecked: u64,
}

/// The election timeout of a cluster that was told nothing else.
const TIMEOUT: Duration = Duration::from_millis(300);

/// The kill of the leader of everything stops service for no longer, in 99 of 100 cases.
const GAP_P99_MAX: Duration = Duration::from_secs(1);

fn milliseconds(nanoseconds: u64) -> u64 {
    nanoseconds / 1_000_000
}

/// One line per round on stderr.
pub fn progress(number: u64, ended: &RoundResult, elapsed: Duration) {
    let Figures { operations, unknown, .. } = ended.figures;
    let verdict = if ended.is_bad() { "WRONG" } else { "right" };
    let longest = milliseconds(ended.figures.longest());
    let (faults, seconds) = (ended.count, elapsed.as_secs_f64());
    eprintln!(
        "round {number}: {verdict}, {operations} operations, {unknown} unknown, {faults} faults, longest gap {longest} \
         ms, {seconds:.0} s"
    );
}

impl Report {
    /// Of nothing yet.
    pub fn new(seed: u64, skipped: Vec<(Kind, &'static str)>, out: PathBuf) -> Report {
        Report { seed, skipped, out, ..Report::default() }
    }

    /// Takes in one round.
    pub fn add(&mut self, number: u64, ended: RoundResult) {
        self.rounds.all = number;
        self.figures.add(&ended.figures);
        self.count += ended.count;
        self.rounds.undecided += u64::from(ended.unknown);
        self.rounds.unchecked += u64::from(ended.skipped);
        ended.changes.0.iter().for_each(|(kind, count)| *self.changes.0.entry(kind).or_default() += count);
        merge(&mut self.held, &ended.held);
        self.changes.1 += ended.changes.1;
        self.matrix.merge(ended.matrix);
        self.failpoints = ended.failpoints;
        self.lines = ended.lines;
        self.wrong = ended.wrong;
        self.timeline = ended.timeline;
        self.kept = ended.kept;
    }

    /// What is wrong with the matrix, if it was asked for, is wrong with the run (hazards.md G11).
    pub fn judge_matrix(&mut self, wanted: Option<u64>) {
        self.with_matrix = wanted.is_some();
        self.late = wanted.map(|wanted| self.matrix.complaints(wanted, 2 * TIMEOUT)).unwrap_or_default();
    }

    /// So is a leader's death that stops service for too long (hazards.md G17).
    pub fn judge_takeovers(&mut self) {
        let Some([_, _, p99, _]) = self.takeovers() else { return };
        if p99 > milliseconds(GAP_P99_MAX.as_nanos() as u64) {
            self.late.push(format!("service after a leader's death: p99 {p99} ms is more than {GAP_P99_MAX:?}"));
        }
    }

    /// Whether something is wrong.
    pub fn is_bad(&self) -> bool {
        !self.wrong.is_empty() || !self.late.is_empty()
    }

    /// Whether some round could not be decided.
    pub fn is_unknown(&self) -> bool {
        self.rounds.undecided > 0
    }

    /// Whether something that was asked for was not done.
    pub fn is_partial(&self) -> bool {
        !self.skipped.is_empty() || self.rounds.unchecked > 0
    }

    /// For people: checks of the last round, figures of all, the verdict.
    pub fn print(&self, elapsed: Duration) {
        for line in &self.lines {
            say!("{:11} {:8} {}", line.check, line.verdict, line.what.trim_end());
        }
        for (kind, why) in &self.skipped {
            say!("{kind:11} skipped  {why}");
        }
        say!("");
        let Figures { answered, refused, unknown, .. } = self.figures;
        say!("operations: {answered} answered, {refused} surely without effect, {unknown} writes unknown");
        for (kind, count) in &self.figures.faults {
            let gap = self.figures.gaps.get(&Some(*kind)).copied().unwrap_or_default();
            say!("{kind}: {count} times, {}", in_words(gap));
        }
        if let Some([p50, p90, p99, longest]) = self.takeovers() {
            say!(
                "service after each of {} kills of the leader of everything: p50 {p50} ms, p90 {p90} ms, p99 {p99} ms, \
                 longest {longest} ms",
                self.figures.takeovers.len()
            );
        }
        if !self.changes.0.is_empty() || self.changes.1 > 0 {
            let done: Vec<String> = self.changes.0.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
            say!("changes of the map: {}; {} refused or left", done.join(", "), self.changes.1);
        }
        for (node, held) in self.held.iter().enumerate() {
            say!("n{} held at most {held}", node + 1);
        }
        if self.failpoints.any() {
            self.failpoints.words().iter().for_each(|line| say!("{line}"));
        }
        if self.with_matrix {
            say!("cuts met, and election timeouts (p99) from their end to the full rate:");
            say!("{}\n{}", self.matrix.table(TIMEOUT), self.matrix.words(TIMEOUT));
            say!("longest waits while a cut lasted, of half of the cuts and of all, ms:\n{}", self.matrix.waits());
        }
        say!("without a fault: {}", in_words(self.figures.gaps.get(&None).copied().unwrap_or_default()));
        let rounds = if self.rounds.all == 1 { "1 round".to_owned() } else { format!("{} rounds", self.rounds.all) };
        say!("seed {}, {rounds}, {:.0} s\n", self.seed, elapsed.as_secs_f64());
        self.wrong.iter().chain(&self.late).for_each(|line| say!("{line}"));
        say!("{}", self.verdict());
    }

    /// How long the kill of the leader of everything stops service: p50, p90, p99 and the longest, milliseconds.
    fn takeovers(&self) -> Option<[u64; 4]> {
        let [p50, p90, p99, longest] =
            [50, 90, 99, 100].map(|percent| percentile(&self.figures.takeovers, percent).map(milliseconds));
        Some([p50?, p90?, p99?, longest?])
    }

    fn verdict(&self) -> String {
        let Figures { operations, ranges, crossing, .. } = self.figures;
        let word = match (self.is_bad(), self.is_unknown()) {
            (true, _) if self.wrong.is_empty() => "LATE, or not met",
            (true, _) => "VIOLATION",
            (false, true) => "UNKNOWN",
            (false, false) => "linearizable",
        };
        let mut line = format!(
            "{word}: {operations} operations, {ranges} ranges ({crossing} across partitions), {} faults, longest gap \
             {} ms; history in {}",
            self.count,
            milliseconds(self.figures.longest()),
            self.out.display()
        );
        if let Some(timeline) = &self.timeline {
            let _ = write!(line, "; timeline {}", timeline.display());
        }
        if let Some(kept) = &self.kept {
            let _ = write!(line, "; data and logs of the nodes in {}", kept.display());
        }
        line
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let gap = |gap: &Gap| {
            json!({ "longest_ms": milliseconds(gap.length), "behind_ms": milliseconds(gap.behind),
                "partition": format!("p{}", gap.partition) })
        };
        let faults = self.figures.faults.iter().map(|(kind, count)| {
            let gap = self.figures.gaps.get(&Some(*kind)).map(gap);
            json!({ "kind": kind.to_string(), "count": count, "gap": gap })
        });
        let checks = self
            .lines
            .iter()
            .map(|line| json!({ "check": line.check, "verdict": line.verdict, "what": line.what.trim() }));
        let skipped = self.skipped.iter().map(|(kind, why)| json!({ "kind": kind.to_string(), "why": why }));
        json!({
            "v": 1, "seed": self.seed, "rounds": self.rounds.all, "linearizable": self.wrong.is_empty() && !self.is_unknown(), "late": self.late,
            "operations": self.figures.operations, "answered": self.figures.answered, "refused": self.figures.refused,
            "unknown": self.figures.unknown, "ranges": self.figures.ranges, "crossing": self.figures.crossing,
            "fault_count": self.count, "faults": faults.collect::<Vec<_>>(),
            "takeover_ms": self.takeovers().map(|[p50, p90, p99, longest]| {
                json!({ "kills": self.figures.takeovers.len(), "p50": p50, "p90": p90, "p99": p99, "longest": longest })
            }),
            "skipped": skipped.collect::<Vec<_>>(), "checks": checks.collect::<Vec<_>>(),
            "failpoints": self.failpoints.any().then(|| self.failpoints.json()),
            "map_changes": self.changes.0, "map_changes_not_done": self.changes.1,
            "held_at_most": self.held.iter().map(Held::json).collect::<Vec<_>>(),
            "longest_gap_ms": milliseconds(self.figures.longest()), "wrong": self.wrong,
            "history": self.out.display().to_string(), "timeline": self.timeline, "data": self.kept,
        })
    }
}

fn in_words(gap: Gap) -> String {
    if gap.length == 0 {
        return "no partition was silent for 20 ms".to_owned();
    }
    let (length, behind) = (milliseconds(gap.length), milliseconds(gap.behind));
    format!("longest silence {length} ms (p{}), {behind} ms of it behind the fault", gap.partition)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_takeover_of_more_than_a_second_in_one_of_a_hundred_fails_the_run() {
        const MS: u64 = 1_000_000;
        let bad = |times: Vec<u64>| {
            let figures =
                Figures { takeovers: times.into_iter().map(|time| time * MS).collect(), ..Figures::default() };
            let mut report = Report { figures, ..Report::default() };
            report.judge_takeovers();
            (report.is_bad(), report.verdict().starts_with("LATE"))
        };
        assert_eq!(bad(vec![]), (false, false));
        assert_eq!(bad([vec![300; 99], vec![1_500]].concat()), (false, false), "one of a hundred may");
        assert_eq!(bad([vec![300; 98], vec![1_500; 2]].concat()), (true, true));
        assert_eq!(bad(vec![1_000]), (false, false));
    }
}
