//! The verbs of `coppice-check` that judge histories and the checkers, and how they say it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, Subcommand, ValueEnum};
use coppice_testkit::say;

use super::beyond::{Finding, checks};
use super::diff::{Disagreement, MUTANTS, Tally, compare_all, small_history};
use super::history::History;
use super::search::Limits;
use super::verdict::{Verdict, Violation};
use super::write::{text, write};
use super::{certificate, graph, search, timeline};

/// Exits (operations.md 2).
const FAILED: u8 = 1;
const UNKNOWN: u8 = 6;

/// The verbs that need nothing but a history.
#[derive(Subcommand)]
pub enum Command {
    /// Is this history linearizable? Exit 0: yes, 1: no, 6: not known.
    History(HistoryArgs),
    /// Do the checkers agree with brute force on small random histories?
    Diff(DiffArgs),
    /// Write a synthetic history that a correct server could have given.
    Generate(super::generate::Arguments),
}

/// A checker of linearizability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Checker {
    /// Certificate from the replicas' logs.
    Certificate,
    /// Wing-Gong-Lowe search over what clients saw.
    Search,
    /// Graph of lives of keys: explains a failure.
    Graph,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

/// Arguments of `coppice-check history`.
#[derive(Args)]
pub struct HistoryArgs {
    /// Histories and dumps of one run (hazards.md 3.1), in that order.
    #[arg(required = true)]
    files: Vec<String>,
    /// Which checkers judge [default: certificate if there are logs, and search]
    #[arg(long, value_delimiter = ',')]
    checker: Vec<Checker>,
    /// Where to write the timeline of a violation [default: FILE.html]
    #[arg(long)]
    html: Option<PathBuf>,
    /// What could not be checked is a failure.
    #[arg(long)]
    strict: bool,
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

/// Arguments of `coppice-check diff`.
#[derive(Args)]
pub struct DiffArgs {
    /// Histories.
    #[arg(long, default_value_t = 20_000)]
    count: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Plant this bug in the checkers: diff must fail (build with the feature `mutants`).
    #[arg(long, value_parser = MUTANTS)]
    mutant: Option<String>,
    /// Plant each bug in turn: diff must fail each time.
    #[arg(long)]
    mutants: bool,
}

/// Runs a verb: the exit code.
///
/// # Errors
/// In words: it cannot be done.
pub fn run(command: &Command) -> Result<u8, String> {
    match command {
        Command::History(arguments) => history(arguments),
        Command::Diff(arguments) => diff(arguments),
        Command::Generate(arguments) => super::generate::write(arguments)
            .or_else(coppice_testkit::say::unheard)
            .map(|()| 0)
            .map_err(|failed| failed.to_string()),
    }
}

/// One line of the report.
#[derive(Clone, Debug)]
pub struct Line {
    /// What was checked.
    pub check: String,
    /// PASS, FAIL, UNKNOWN, skipped, `seen` of what is only told, or that there was nothing to check.
    pub verdict: &'static str,
    /// Details.
    pub what: String,
}

/// What the checks of a history came to.
#[derive(Debug)]
pub struct Judgement {
    /// Each of them.
    pub lines: Vec<Line>,
    /// The best explained violation.
    pub violation: Option<Violation>,
}

fn history(arguments: &HistoryArgs) -> Result<u8, String> {
    let started = Instant::now();
    let history = History::load(&arguments.files).map_err(|wrong| wrong.to_string())?;
    let read = started.elapsed();
    if history.operations.is_empty() && history.stale.is_empty() {
        return Err(format!("{}: no operation in it, so there is nothing to judge", arguments.files.join(", ")));
    }
    let mut checkers = arguments.checker.clone();
    if checkers.is_empty() {
        checkers =
            if history.log.is_empty() { vec![Checker::Search] } else { vec![Checker::Certificate, Checker::Search] };
    }
    let Judgement { mut lines, violation } = judge(&history, &checkers);
    let skipped = lines.iter().any(|line| line.verdict == "skipped");
    let failed = lines.iter().any(|line| line.verdict == "FAIL");
    let unknown = lines.iter().any(|line| line.verdict == "UNKNOWN");
    let html = violation.as_ref().map(|violation| {
        let file = arguments.html.clone().unwrap_or_else(|| format!("{}.html", arguments.files[0]).into());
        std::fs::write(&file, timeline::html(&history, violation)).map(|()| file)
    });
    if let Some(Err(wrong)) = &html {
        eprintln!("warning: no timeline: {wrong}");
    }
    lines.insert(
        0,
        Line {
            check: "read".into(),
            verdict: "",
            what: format!(
                "{} operations, {} log lines  {read:.2?}",
                history.operations.len() + history.stale.len(),
                history.log.len()
            ),
        },
    );
    let timeline = html.and_then(Result::ok);
    let words = violation.map(|violation| violation.words(&history)).unwrap_or_default();
    match arguments.output {
        Output::Table => print_table(&lines, &words, timeline.as_deref()),
        Output::Json => print_json(&lines, &words, timeline.as_deref(), &history),
    }
    Ok(match (failed, unknown) {
        (true, _) => FAILED,
        (false, true) if arguments.strict => FAILED,
        (false, true) => UNKNOWN,
        (false, false) if skipped && arguments.strict => FAILED,
        (false, false) => 0,
    })
}

/// All checks, and the best explained violation.
pub fn judge(history: &History, checkers: &[Checker]) -> Judgement {
    let mut lines = Vec::new();
    let mut violations: Vec<Violation> = Vec::new();
    let mut judged = None;
    for checker in checkers {
        let started = Instant::now();
        let (name, verdict) = match checker {
            Checker::Certificate => {
                let found = certificate::check(history);
                judged = found.judged;
                ("certificate", found.verdict)
            }
            Checker::Search => ("search", search::check(history, judged.as_ref(), Limits::default())),
            Checker::Graph => ("graph", graph::check(history, judged.as_ref())),
        };
        let elapsed = started.elapsed();
        let (verdict, what) = match verdict {
            Verdict::Pass => ("PASS", String::new()),
            Verdict::Unknown(why) => ("UNKNOWN", why),
            Verdict::Fail(violation) => {
                let what = violation.what.clone();
                violations.push(*violation);
                ("FAIL", what)
            }
        };
        lines.push(Line { check: name.into(), verdict, what: format!("{elapsed:.2?}  {what}") });
    }
    // A failure without a cycle is explained by the graph form.
    if violations.iter().all(|violation| violation.cycle.is_empty())
        && !violations.is_empty()
        && !checkers.contains(&Checker::Graph)
        && let Verdict::Fail(violation) = graph::check(history, None)
    {
        violations.push(*violation);
    }
    if judged.is_none() && !history.log.is_empty() && !checkers.contains(&Checker::Certificate) {
        judged = certificate::judge(history).ok();
    }
    for (check, what, finding) in checks(history, judged.as_ref()) {
        let (verdict, what) = match finding {
            Finding::Pass(count) => ("PASS", format!("{what} ({count})")),
            Finding::Nothing => ("-", format!("{what}: nothing to check")),
            Finding::Fail(wrong) => {
                violations.push(Violation { what: wrong.clone(), ..Violation::default() });
                ("FAIL", wrong)
            }
        };
        lines.push(Line { check: check.into(), verdict, what });
    }
    let cycle = violations.iter().position(|violation| !violation.cycle.is_empty()).unwrap_or(0);
    let best = (!violations.is_empty()).then(|| violations.swap_remove(cycle));
    Judgement { lines, violation: best }
}

fn print_table(lines: &[Line], words: &[String], timeline: Option<&Path>) {
    for line in lines {
        say!("{:11} {:8} {}", line.check, line.verdict, line.what.trim_end());
    }
    if !words.is_empty() {
        say!("");
        words.iter().for_each(|line| say!("{line}"));
    }
    if let Some(timeline) = timeline {
        say!("\ntimeline: {}", timeline.display());
    }
}

fn print_json(lines: &[Line], words: &[String], timeline: Option<&Path>, history: &History) {
    let string = |value: &str| {
        let mut out = Vec::new();
        text(&mut out, value.as_bytes()).map(|()| String::from_utf8_lossy(&out).into_owned()).unwrap_or_default()
    };
    let mut out =
        format!("{{\"v\":1,\"commit\":{},\"seed\":{},\"checks\":[", string(&history.commit), string(&history.seed));
    for (index, line) in lines.iter().filter(|line| !line.verdict.is_empty()).enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let (check, verdict, what) = (string(&line.check), string(line.verdict), string(&line.what));
        let _ = write!(out, "{comma}{{\"check\":{check},\"verdict\":{verdict},\"what\":{what}}}");
    }
    let words: Vec<String> = words.iter().map(|line| string(line)).collect();
    let timeline = timeline.map_or("null".into(), |timeline| string(&timeline.display().to_string()));
    say!("{out}],\"violation\":[{}],\"timeline\":{timeline}}}", words.join(","));
}

fn diff(arguments: &DiffArgs) -> Result<u8, String> {
    if (arguments.mutants || arguments.mutant.is_some()) && !cfg!(feature = "mutants") {
        return Err("planted bugs need a build with `--features mutants`".into());
    }
    if arguments.mutants {
        return run_mutants(arguments);
    }
    if let Some(mutant) = &arguments.mutant {
        planted::activate(mutant)?;
    }
    let started = Instant::now();
    match on_all_cores(arguments.from, arguments.count) {
        Ok(tally) => {
            say!("PASS     {tally}  {:.2?}", started.elapsed());
            Ok(0)
        }
        Err(found) => {
            say!("FAIL     seed {}: {}", found.seed, found.what);
            let mut out = Vec::new();
            for event in small_history(found.seed).0 {
                write(&mut out, &event).map_err(|failed| failed.to_string())?;
            }
            say!("{}", String::from_utf8_lossy(&out).trim_end());
            Ok(FAILED)
        }
    }
}

/// The seeds in stretches, the lowest disagreement of all.
fn on_all_cores(from: u64, count: u64) -> Result<Tally, Disagreement> {
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
    let stretch = count.div_ceil(threads);
    let found = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|at| (from + at * stretch)..(from + ((at + 1) * stretch).min(count)).max(from + at * stretch))
            .map(|seeds| scope.spawn(move || compare_all(seeds)))
            .collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).collect::<Vec<_>>()
    });
    let mut sum = Tally::default();
    for tally in found {
        let tally = tally?;
        sum.histories += tally.histories;
        sum.illegal += tally.illegal;
        sum.unanswered += tally.unanswered;
        sum.clouded += tally.clouded;
        sum.certified += tally.certified;
    }
    Ok(sum)
}

/// Each planted bug in its own process: it stays on for the whole of one.
fn run_mutants(arguments: &DiffArgs) -> Result<u8, String> {
    let program = std::env::current_exe().map_err(|failed| failed.to_string())?;
    let mut survivors = 0;
    for mutant in MUTANTS {
        let (count, from) = (arguments.count.to_string(), arguments.from.to_string());
        let output = std::process::Command::new(&program)
            .args(["diff", "--count", &count, "--from", &from, "--mutant", mutant])
            .output()
            .map_err(|failed| failed.to_string())?;
        let said = String::from_utf8_lossy(&output.stdout);
        let first = said.lines().next().unwrap_or("nothing said");
        let caught = output.status.code() == Some(i32::from(FAILED));
        survivors += u32::from(!caught);
        let shown: String = first.chars().take(160).collect();
        say!("{:8} {mutant}: {shown}", if caught { "caught" } else { "SURVIVED" });
    }
    Ok(if survivors == 0 { 0 } else { FAILED })
}
