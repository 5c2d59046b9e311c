//! What a run says at its end: the checks, the figures, one verdict line.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::figures::{Figures, Gap, percentile};
use super::kinds::Kind;
use super::matrix::Matrix;
use super::round::Ended;
use crate::check::cli::Line;

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
    /// Of cuts and operations.
    pub matrix: Matrix,
    /// It was asked for.
    with_matrix: bool,
    /// What is wrong with it.
    late: Vec<String>,
    rounds: u64,
    undecided: u64,
    changes: (u64, u64),
    lines: Vec<Line>,
    wrong: Vec<String>,
    timeline: Option<PathBuf>,
    kept: Option<PathBuf>,
}

/// The election timeout of a cluster that was told nothing else.
const TIMEOUT: Duration = Duration::from_millis(300);

fn milliseconds(nanoseconds: u64) -> u64 {
    nanoseconds / 1_000_000
}

/// One line per round on stderr.
pub fn progress(number: u64, ended: &Ended, elapsed: Duration) {
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
    pub fn add(&mut self, number: u64, ended: Ended) {
        self.rounds = number;
        self.figures.add(&ended.figures);
        self.count += ended.count;
        self.undecided += u64::from(ended.unknown);
        self.changes.0 += ended.changes.0;
        self.changes.1 += ended.changes.1;
        self.matrix.merge(ended.matrix);
        self.lines = ended.lines;
        self.wrong = ended.wrong;
        self.timeline = ended.timeline;
        self.kept = ended.kept;
    }

    /// What is wrong with the matrix, if it was asked for, is wrong with the run (reliability.md G11).
    pub fn judge_matrix(&mut self, wanted: Option<u64>) {
        self.with_matrix = wanted.is_some();
        self.late = wanted.map(|wanted| self.matrix.complaints(wanted, 2 * TIMEOUT)).unwrap_or_default();
    }

    /// Whether something is wrong.
    pub fn is_bad(&self) -> bool {
        !self.wrong.is_empty() || !self.late.is_empty()
    }

    /// Whether some round could not be decided.
    pub fn is_unknown(&self) -> bool {
        self.undecided > 0
    }

    /// For people: checks of the last round, figures of all, the verdict.
    pub fn print(&self, elapsed: Duration) {
        for line in &self.lines {
            println!("{:8} {:8} {}", line.check, line.verdict, line.what.trim_end());
        }
        for (kind, why) in &self.skipped {
            println!("{kind:8} skipped  {why}");
        }
        println!();
        let Figures { answered, refused, unknown, .. } = self.figures;
        println!("operations: {answered} answered, {refused} surely without effect, {unknown} writes unknown");
        for (kind, count) in &self.figures.faults {
            let gap = self.figures.gaps.get(&Some(*kind)).copied().unwrap_or_default();
            println!("{kind}: {count} times, {}", in_words(gap));
        }
        if let Some([p50, p90, p99, longest]) = self.takeovers() {
            println!(
                "service after each of {} kills of the leader of everything: p50 {p50} ms, p90 {p90} ms, p99 {p99} ms, \
                 longest {longest} ms",
                self.figures.takeovers.len()
            );
        }
        if self.changes != (0, 0) {
            println!("changes of the map: {} done, {} refused or left", self.changes.0, self.changes.1);
        }
        if self.with_matrix {
            println!("cuts met, and election timeouts (p99) from their end to the full rate:");
            println!("{}\n{}", self.matrix.table(TIMEOUT), self.matrix.words(TIMEOUT));
        }
        println!("without a fault: {}", in_words(self.figures.gaps.get(&None).copied().unwrap_or_default()));
        let rounds = if self.rounds == 1 { "1 round".to_owned() } else { format!("{} rounds", self.rounds) };
        println!("seed {}, {rounds}, {:.0} s\n", self.seed, elapsed.as_secs_f64());
        self.wrong.iter().chain(&self.late).for_each(|line| println!("{line}"));
        println!("{}", self.verdict());
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
        let checks = self.lines.iter().filter(|line| !line.verdict.is_empty());
        let checks =
            checks.map(|line| json!({ "check": line.check, "verdict": line.verdict, "what": line.what.trim() }));
        let skipped = self.skipped.iter().map(|(kind, why)| json!({ "kind": kind.to_string(), "why": why }));
        json!({
            "v": 1, "seed": self.seed, "rounds": self.rounds, "linearizable": self.wrong.is_empty() && !self.is_unknown(), "late": self.late,
            "operations": self.figures.operations, "answered": self.figures.answered, "refused": self.figures.refused,
            "unknown": self.figures.unknown, "ranges": self.figures.ranges, "crossing": self.figures.crossing,
            "fault_count": self.count, "faults": faults.collect::<Vec<_>>(),
            "takeover_ms": self.takeovers().map(|[p50, p90, p99, longest]| {
                json!({ "kills": self.figures.takeovers.len(), "p50": p50, "p90": p90, "p99": p99, "longest": longest })
            }),
            "skipped": skipped.collect::<Vec<_>>(), "checks": checks.collect::<Vec<_>>(),
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
