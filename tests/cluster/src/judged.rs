//! The end of a round: the history is put beside the nodes' logs, and both are judged.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use coppice_check::cli::{Checker, Line, judge};
use coppice_check::event::{Event, Output, Return, Status};
use coppice_check::history::History;
use coppice_check::read::read;
use coppice_check::write::write;
use coppice_client::map::PartitionMap;

use super::dump::{Dump, DumpError, dump};
use super::figures::settle;
use super::kinds::Span;
use super::resources::bounds;
use super::setup::{RoundResult, Setup};
use super::workload::NumberedWrite;

/// Writes the history with what the logs know of it, and has it judged; what is found goes to `ended`.
///
/// # Errors
/// Files cannot be written or read.
pub fn judge_round(
    setup: &Setup,
    map: &PartitionMap,
    directories: Option<Vec<PathBuf>>,
    numbered: &[NumberedWrite],
    spans: &[Span],
    digests: &[(u32, u64, u64)],
    ended: &mut RoundResult,
) -> Result<(), String> {
    let (raw, history, logs) =
        (setup.out.join("raw.jsonl"), setup.out.join("history.jsonl"), setup.out.join("logs.jsonl"));
    let mut files = vec![history.display().to_string()];
    let dumped = match directories {
        None => None,
        Some(directories) => match dump_to(&logs, &directories, setup.nodes, map, digests) {
            Ok(dump) => {
                files.extend((!setup.resp).then(|| logs.display().to_string()));
                Some(dump)
            }
            Err(DumpError::Io(error)) => return Err(format!("{}: {error}", logs.display())),
            Err(DumpError::Disagree(what) | DumpError::Unreadable(what)) => {
                ended.wrong.push(what);
                None
            }
        },
    };
    let (mut figures, gaps, calls) =
        settle(&raw, &history, dumped.as_ref(), numbered).map_err(|error| format!("{}: {error}", raw.display()))?;
    if setup.matrix.is_some() {
        let first = calls.answered.iter().map(|answer| answer.2).min().unwrap_or(0);
        ended.matrix.add(&calls.answered, &calls.failed, spans, (first, ended.ended_at));
    }
    figures.gaps = gaps.longest(spans);
    figures.takeovers = gaps.after(&ended.kills);
    spans.iter().for_each(|span| *figures.faults.entry(span.kind).or_default() += 1);
    ended.figures = figures;
    let mut loaded = History::load(&files).map_err(|wrong| wrong.to_string())?;
    if let (true, Some(dump)) = (setup.resp, &dumped) {
        std::fs::rename(&history, &raw)
            .and_then(|()| complete(&raw, &history, dump.effects.answers(&loaded)))
            .map_err(|error| format!("{}: {error}", history.display()))?;
        loaded = History::load(&files).map_err(|wrong| wrong.to_string())?;
    }
    let possible = |checker: &&Checker| **checker != Checker::Certificate || (dumped.is_some() && !setup.resp);
    let checkers: Vec<Checker> = setup.checkers.iter().filter(possible).copied().collect();
    let judgement = judge(&loaded, &checkers);
    ended.lines = judgement.lines;
    let passed = |checker: &str| ended.lines.iter().any(|line| line.check == checker && line.verdict == "PASS");
    ended.unknown = !passed("certificate") && !passed("search");
    ended.skipped = ended.lines.iter().any(|line| line.verdict == "skipped");
    if let Some(violation) = &judgement.violation {
        ended.wrong.extend(violation.words(&loaded));
        let page = setup.out.join("violation.html");
        std::fs::write(&page, coppice_check::timeline::html(&loaded, violation)).map_err(|error| error.to_string())?;
        ended.timeline = Some(page);
    }
    ended.lines.push(ended.figures.availability());
    ended.lines.extend(bounds(&ended.held, &ended.waiting, setup.memory_max));
    if let Some(dump) = &dumped {
        ended.lines.push(compare_digests(dump, digests, &mut ended.wrong));
    }
    Ok(())
}

/// Writes a history with answers that the logs know, in place of those that do not say it all and behind all others.
fn complete(from: &Path, to: &Path, mut answers: HashMap<u64, (Status, Output<'static>)>) -> io::Result<()> {
    let mut out = io::BufWriter::with_capacity(1 << 20, std::fs::File::create(to)?);
    let input = io::BufReader::with_capacity(1 << 20, std::fs::File::open(from)?);
    let mut last = 0;
    let copied = read(&from.display().to_string(), input, |event| {
        let event = match event {
            Event::Return(mut answer) => {
                last = last.max(answer.at);
                if let Some((status, output)) = answers.remove(&answer.id) {
                    (answer.status, answer.output) = (status, output);
                }
                Event::Return(answer)
            }
            Event::Invoke(invoke) => {
                last = last.max(invoke.at);
                Event::Invoke(invoke)
            }
            other => other,
        };
        write(&mut out, &event).map_err(|error| error.to_string())
    });
    copied.map_err(|error| io::Error::other(error.to_string()))?;
    for (id, (status, output)) in answers {
        let answer = Return { id, at: last, status, output, positions: Vec::new(), ticket: None };
        write(&mut out, &Event::Return(answer))?;
    }
    io::Write::flush(&mut out)
}

fn dump_to(
    logs: &Path,
    directories: &[PathBuf],
    nodes: usize,
    map: &PartitionMap,
    digests: &[(u32, u64, u64)],
) -> Result<Dump, DumpError> {
    let mut out = io::BufWriter::with_capacity(1 << 20, std::fs::File::create(logs)?);
    let wanted = digests.iter().map(|(partition, instance, _)| (*partition, *instance)).collect();
    let dump = dump(directories, nodes, map, wanted, &mut |event| write(&mut out, event))?;
    io::Write::flush(&mut out)?;
    Ok(dump)
}

/// B1: the replicas' logs were compared when they were read; their states must be those of the logs.
fn compare_digests(dump: &Dump, digests: &[(u32, u64, u64)], wrong: &mut Vec<String>) -> Line {
    let mut equal = 0;
    let mut verdict = "PASS";
    for (partition, instance, digest) in digests {
        match dump.digests.get(&(*partition, *instance)) {
            Some(known) if known == digest => equal += 1,
            Some(known) => {
                verdict = "FAIL";
                let logged = format!("their logs give {known:016x}");
                wrong.push(format!("the state of p{partition} after #{instance} is {digest:016x}, {logged}"));
            }
            None => {}
        }
    }
    let what = format!("{} instances equal in several logs; {equal} states equal to their log's", dump.compared);
    Line { check: "logs".into(), verdict, what }
}
