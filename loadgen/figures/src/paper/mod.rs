//! `coppice-figures paper`: the figures of two papers, measured again on real processes through the client library,
//! each drawn beside what the paper says of it (papers.md 4). What is measured is data (`plan`, `smr`, `tuning`); what
//! was measured stands in a file, so that no point is measured twice.

mod cluster;
mod draw;
mod index;
mod lab;
mod measure;
mod plan;
mod point;
mod smr;
mod state;
mod tuning;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cluster::{Ground, Pool};
pub use lab::COLUMNS as LAB_COLUMNS;
use plan::{Figure, Results};
use point::{Heat, Point, Terms};
use serde_json::json;
use state::{Round, State};

use crate::args::{Global, Paper, PaperArgs};
use crate::site::{Site, in_path};
use coppice_loadgen::app::Progress;
use coppice_loadgen::app::args::Output;
use coppice_loadgen::app::failure::{Exit, Failure};
use coppice_loadgen::machine::Machine;
use coppice_loadgen::say::say;
use coppice_loadgen::units::{Think, print_count, print_duration};

/// Everything that was asked for, settled.
struct Work<'a> {
    args: &'a PaperArgs,
    global: &'a Global,
    terms: Terms,
    figures: Vec<Figure>,
}

/// Carries the command out; `command` is the command line, for the page.
pub fn paper(args: &PaperArgs, global: &Global, command: &str) -> Result<Exit, Failure> {
    let work = Work { args, global, terms: terms(args), figures: chosen(args)? };
    let mut state = State::open(&args.out)
        .map_err(|e| Failure::file("what was measured cannot be kept", e, "coppice-figures paper --out ANOTHER"))?;
    if args.list {
        return Ok(work.list(&state));
    }
    let measured = work.measure(&mut state);
    // What there is, is drawn, whatever ended it.
    work.draw(&state, command)
        .map_err(|e| Failure::file("the figures cannot be written", e, "coppice-figures paper --out ANOTHER"))?;
    measured?;
    work.tell(&state);
    Ok(Exit::Done)
}

fn terms(args: &PaperArgs) -> Terms {
    let seconds = |short, full| Duration::from_secs(if args.short { short } else { full });
    let hold = args.duration.unwrap_or(match args.paper {
        Paper::Smr => seconds(2, 60),
        // Over a slow link nothing is steady before the first of what is under way is answered.
        Paper::Tuning => seconds(10, 30),
    });
    Terms {
        hold,
        // The paper drops 10 s at each end of 60 s.
        trim: hold / 6,
        think: Think { low: Duration::ZERO, high: Duration::from_millis(10) },
        entries: args.entries.unwrap_or(if args.short { 200_000 } else { 12_000_000 }),
        flush: !args.no_flush,
        rounds: args.rounds.unwrap_or(match args.paper {
            Paper::Tuning if args.short => 1,
            _ => 3,
        }),
    }
}

/// The figures that were asked for.
fn chosen(args: &PaperArgs) -> Result<Vec<Figure>, Failure> {
    let all = match args.paper {
        Paper::Smr => smr::figures(if args.short { smr::Extent::SHORT } else { smr::Extent::FULL }),
        Paper::Tuning => tuning::figures(if args.short { tuning::Extent::SHORT } else { tuning::Extent::FULL }),
    };
    let ids: Vec<&str> = all.iter().map(|figure| figure.id).collect();
    if let Some(unknown) = args.only.iter().find(|id| !ids.contains(&id.as_str())) {
        let attempt = format!("coppice-figures paper {} --list", word(args.paper));
        return Err(Failure::usage(format!("no figure `{unknown}`"), format!("there are {}", ids.join(", ")), attempt));
    }
    let wanted = |figure: &Figure| args.only.is_empty() || args.only.iter().any(|id| id == figure.id);
    Ok(all.into_iter().filter(wanted).collect())
}

const fn word(paper: Paper) -> &'static str {
    match paper {
        Paper::Smr => "smr",
        Paper::Tuning => "tuning",
    }
}

impl Work<'_> {
    /// All heats, each once, those on the same clusters behind each other.
    fn heats(&self) -> Vec<&Heat> {
        let mut heats: Vec<&Heat> = self.figures.iter().flat_map(|figure| &figure.heats).collect();
        heats.sort_by_cached_key(|heat| (heat.shapes(), (*heat).clone()));
        heats.dedup();
        heats
    }

    fn results(&self, figure: &Figure, state: &State) -> Results {
        Results::new(&figure.heats, &self.terms, state)
    }

    /// How many rounds of a figure there are, and how many of them are over.
    fn progress(&self, figure: &Figure, state: &State) -> (u32, u32) {
        let all = figure.heats.len() as u32 * self.terms.rounds;
        let missing: u32 = figure.heats.iter().map(|heat| state.missing(heat, &self.terms)).sum();
        (all, all - missing)
    }

    fn list(&self, state: &State) -> Exit {
        for figure in &self.figures {
            let (all, over) = self.progress(figure, state);
            match self.global.output {
                Output::Table => say!("{:<8} {over} of {all} rounds measured  {}", figure.id, figure.title),
                Output::Json => say!(
                    "{}",
                    json!({"v": 1, "figure": figure.id, "title": figure.title, "rounds": all, "measured": over})
                ),
            }
        }
        Exit::Done
    }

    /// Measures what is missing.
    fn measure(&self, state: &mut State) -> Result<(), Failure> {
        let missing: Vec<(&Heat, u32)> =
            self.heats().into_iter().map(|heat| (heat, state.missing(heat, &self.terms))).collect();
        let points: u64 = missing.iter().map(|(heat, rounds)| heat.0.len() as u64 * u64::from(*rounds)).sum();
        if points == 0 {
            return Ok(());
        }
        let program = self.program(self.args.bin.as_deref(), "coppice")?;
        let lab = match self.args.paper {
            Paper::Tuning => Some(self.program(self.args.lab.as_deref(), "coppice-lab")?),
            Paper::Smr => None,
        };
        let base = self.args.dir.clone().unwrap_or_else(std::env::temp_dir);
        let site = Site::new(&base, "coppice-figures").map_err(|e| {
            let error = format!("{}: {e}", base.display());
            Failure::file("no directory for the data", error, "coppice-figures paper --dir ANOTHER")
        })?;
        let ground = Ground { site: &site, program: &program, terms: &self.terms, global: self.global };
        let mut pool = Pool::new(ground);
        let (progress, begun, mut done) = (Progress::new(points, self.global.quiet), Instant::now(), 0);
        for (heat, rounds) in missing {
            for round in 0..rounds {
                let left = left(begun.elapsed(), done, points);
                let first = heat.0.first().map(Point::to_string).unwrap_or_default();
                let more = if heat.0.len() > 1 { ", .." } else { "" };
                progress.count(done, format!("{done} of {points}{left}  {first}{more}"));
                let carried = match &lab {
                    None => race(heat, round, &ground, &mut pool),
                    Some(lab) => lab::race(heat, lab, &ground),
                };
                let readings = carried.map_err(|error| interrupted(&error))?;
                let commit = Machine::read().commit;
                let measured = Round { v: 1, heat: heat.key(&self.terms), commit, readings };
                state.add(measured).map_err(|e| Failure::file("the state cannot be written", e, "df -h"))?;
                done += heat.0.len() as u64;
            }
        }
        progress.finish();
        Ok(())
    }

    fn program(&self, given: Option<&Path>, name: &str) -> Result<PathBuf, Failure> {
        let attempt = "cargo build --release";
        if let Some(path) = given {
            let cause = "the path leads to no file";
            let missing = || Failure::usage(format!("there is no program {}", path.display()), cause, attempt);
            return if path.is_file() { Ok(path.to_owned()) } else { Err(missing()) };
        }
        let beside = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.join(name)));
        beside.filter(|program| program.is_file()).or_else(|| in_path(&[name])).ok_or_else(|| {
            let cause = "it is neither beside coppice-figures nor in PATH";
            Failure::usage(format!("the program {name} is not found"), cause, attempt)
        })
    }

    /// Pictures, tables and the page; the error names the file.
    fn draw(&self, state: &State, command: &str) -> Result<(), String> {
        let directory = &self.args.out;
        let write = |name: &str, text: &str| {
            let path = directory.join(name);
            std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))
        };
        let mut drawn = Vec::new();
        for figure in &self.figures {
            let results = self.results(figure, state);
            let picture = draw::picture(figure, &results);
            if let Some(picture) = &picture {
                write(&format!("{}.svg", figure.id), picture)?;
                write(&format!("{}.csv", figure.id), &draw::table(figure, &results))?;
            }
            drawn.push((figure, results, picture.is_some()));
        }
        let drawn: Vec<_> = drawn.iter().map(|(figure, results, picture)| (*figure, results, *picture)).collect();
        write("index.html", &index::page(&self.head(state, command), &drawn))
    }

    fn head(&self, state: &State, command: &str) -> index::Head {
        let rounds = self.heats().into_iter().flat_map(|heat| state.rounds(heat, &self.terms));
        let mut commits: Vec<String> = rounds.map(|round| round.commit.clone()).collect();
        commits.sort_unstable();
        commits.dedup();
        let (paper, how) = match self.args.paper {
            Paper::Smr => (
                "Marandi, Primi, Pedone: High Performance State-Machine Replication, measured again on Coppice",
                self.how_smr(),
            ),
            Paper::Tuning => ("Santos, Schiper: Tuning Paxos, measured again on Coppice", self.how_tuning()),
        };
        index::Head { paper, command: command.to_owned(), how, machine: Machine::read(), commits }
    }

    fn how_smr(&self) -> String {
        let Terms { hold, trim, think, entries, flush, rounds } = &self.terms;
        let flush = if *flush {
            "every answered update is flushed to disk on a majority of replicas"
        } else {
            "nothing is flushed to disk before an answer"
        };
        format!(
            "Every number is measured on node processes of their own that talk over loopback, through the client \
             library; points whose ratio counts are measured one after the other in the same round, and of {rounds} \
             rounds the median counts. {} of which the first and last {} are dropped; closed loops, clients pause \
             {think} between an answer and the next request; {} of {} keys are stored at the start; {flush}. All \
             nodes and all clients share the cores of one machine, where the paper had a machine for each server: \
             processor time for a command, and commands for a second of the busiest node's processor, stand in for \
             the machines that are not there.",
            print_duration(*hold),
            print_duration(*trim),
            print_count(*entries),
            print_count(2 * entries),
        )
    }

    fn how_tuning(&self) -> String {
        let Terms { hold, rounds, .. } = &self.terms;
        format!(
            "Every number is measured on three node processes of one machine, with an emulated link of a known \
             rate, delay and queue between every two of them (coppice-lab); of {rounds} rounds of {} the median \
             counts. Clients reach the nodes directly. Every answered command is flushed to disk on a majority of \
             replicas; the paper wrote to no disk. All nodes, links and clients share the cores of one machine: \
             where the processor is the bottleneck, absolute figures are those of a third of a small machine.",
            print_duration(*hold),
        )
    }

    /// The paper's numbers beside ours, on stdout.
    fn tell(&self, state: &State) {
        for figure in &self.figures {
            let results = self.results(figure, state);
            match self.global.output {
                Output::Table => coppice_loadgen::say::write(format_args!("{}", index::lines(figure, &results))),
                Output::Json => say!("{}", index::object(figure, &results)),
            }
        }
        if self.global.output == Output::Table {
            say!("{}", self.args.out.join("index.html").display());
        }
    }
}

/// One round of a heat on clusters; every other round goes the other way, so that a machine that becomes slower or
/// faster favours none of its points.
fn race(heat: &Heat, round: u32, ground: &Ground<'_>, pool: &mut Pool<'_>) -> Result<Vec<point::Reading>, String> {
    pool.need(&heat.shapes())?;
    let mut readings: Vec<Option<point::Reading>> = vec![None; heat.0.len()];
    let mut order: Vec<usize> = (0..heat.0.len()).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    for at in order {
        let Point::Load(load) = &heat.0[at] else { return Err("a point over links in a heat on clusters".into()) };
        let cluster = pool.cluster(load.shape).ok_or("its cluster does not run")?;
        let reading = measure::measure(cluster, load, ground).map_err(|error| format!("{load}: {error}"))?;
        readings[at] = Some(reading);
    }
    Ok(readings.into_iter().flatten().collect())
}

fn interrupted(error: &str) -> Failure {
    Failure {
        exit: Exit::Failed,
        what: "a point was not measured".to_owned(),
        place: "what was measured before is kept, and drawn".to_owned(),
        cause: error.to_owned(),
        attempt: "the same command again: it goes on from here".to_owned(),
    }
}

/// How much longer it will take, once that can be told.
fn left(since: Duration, done: u64, all: u64) -> String {
    if done == 0 {
        return String::new();
    }
    let minutes = (since.as_secs_f64() * (all - done) as f64 / done as f64 / 60.0).ceil();
    format!(", about {minutes} min left")
}
