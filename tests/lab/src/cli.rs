//! The program `coppice-lab`. Exit 0: done; 1: it did not work, or tuning missed its goal; 2: called wrongly.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use coppice_cluster::command::{beside, interrupts};
use coppice_core::settings::units::{parse_bandwidth, parse_size, parse_time, show_size};

use super::figures::{Row, heading, write_csv};
use super::link::Shape;
use super::scenes::{self, Also, Scene, Setup};

/// Tuning reaches this share of the best of the grid (papers.md A13).
const GOAL: f64 = 0.95;

/// Three nodes on this machine, with emulated links between them: what batches and windows come to there
#[derive(Debug, Parser)]
#[command(name = "coppice-lab", version, infer_long_args = true, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
    /// The program `coppice` [default: the one beside this program, else the server that is built into it]
    #[arg(long, global = true, value_name = "FILE")]
    bin: Option<PathBuf>,
    /// Where the nodes' data goes, removed at the end [default: the system's temporary directory]
    #[arg(long, global = true, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Links, separated by commas: lan (940 Mbit/s, 50 us), wan (10 Mbit/s, 50 ms, congested beyond 1200 KiB), or
    /// RATE/DELAY[/QUEUE] such as 5Mbit/100ms/600KiB
    #[arg(long, global = true, value_delimiter = ',', value_parser = link, default_value = "wan")]
    #[arg(value_name = "LINK,..")]
    links: Vec<(String, Shape)>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// A cluster over the first of the links, until Ctrl-C
    Link {
        /// End after so long
        #[arg(long, value_parser = parse_time, value_name = "TIME")]
        time: Option<Duration>,
    },
    /// Throughput of every batch size and window: minutes per link and size
    Grid(Grid),
    /// Tuning against the best of the grid: from a cold start, after changes of load and link, and idle
    Tuning(Experiment),
}

#[derive(Debug, Args)]
struct Grid {
    #[command(flatten)]
    experiment: Experiment,
    /// What is measured beside the points
    #[arg(long, value_enum, value_delimiter = ',', default_value = "standard", value_name = "WHAT,..")]
    also: Vec<Also>,
}

#[derive(Debug, Args)]
struct Experiment {
    /// Key and value of a command, in bytes
    #[arg(long, value_delimiter = ',', value_parser = size, default_value = "128,1k,8k", value_name = "BYTES,..")]
    sizes: Vec<u64>,
    /// Batch sizes of the grid
    #[arg(long, value_delimiter = ',', value_parser = size, default_value = BATCHES, value_name = "BYTES,..")]
    batch_bytes: Vec<u64>,
    /// Windows of the grid
    #[arg(long, value_delimiter = ',', value_parser = window, default_value = "1,2,5,10,20", value_name = "N,..")]
    windows: Vec<u32>,
    /// Length of one measurement
    #[arg(long, value_parser = parse_time, default_value = "6s", value_name = "TIME")]
    hold: Duration,
    /// Time that tuning has after a cold start or a change
    #[arg(long, value_parser = parse_time, default_value = "20s", value_name = "TIME")]
    settle: Duration,
    /// Turns of tuning and of what it is compared with
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100), default_value_t = 2, value_name = "N")]
    turns: u32,
    /// Some seconds in all, to see that it works: few points, short measurements; not for figures
    #[arg(long)]
    short: bool,
    /// Write everything that was measured into this file, as CSV
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Batch sizes of a full grid.
const BATCHES: &str = "1k,8k,32k,64k,128k,256k";

/// `1` to `512`.
fn window(text: &str) -> Result<u32, String> {
    let window = text.parse().ok().filter(|window| (1..=512).contains(window));
    window.ok_or_else(|| format!("from 1 to 512 instances, not `{text}`"))
}

/// `lan`, `wan`, `10Mbit/50ms`, `10Mbit/50ms/1200KiB`.
fn link(text: &str) -> Result<(String, Shape), String> {
    let shape = match text {
        "lan" => Shape::LAN,
        "wan" => Shape::WAN,
        other => {
            let parts: Vec<&str> = other.split('/').collect();
            let expected = || format!("lan, wan or RATE/DELAY[/QUEUE] such as 5Mbit/100ms/600KiB, not `{other}`");
            let (rate, delay, queue) = match parts[..] {
                [rate, delay] => (rate, delay, None),
                [rate, delay, queue] => (rate, delay, Some(parse_size(queue)?)),
                _ => return Err(expected()),
            };
            let rate = parse_bandwidth(rate).map_err(|error| format!("{error}; {}", expected()))? / 8;
            let delay = parse_time(delay).map_err(|error| format!("{error}; {}", expected()))?;
            if delay > Duration::from_secs(1) {
                return Err(format!("a delay of at most 1 s, not {parts:?}: the nodes' election timeout is 3 s"));
            }
            Shape { rate, delay, queue }
        }
    };
    Ok((text.to_owned(), shape))
}

/// `128`, `1k`, `64KiB`.
fn size(text: &str) -> Result<u64, String> {
    let bytes = match text.strip_suffix('k') {
        Some(kib) => parse_size(&format!("{kib}KiB")),
        None if text.bytes().all(|byte| byte.is_ascii_digit()) => parse_size(&format!("{text} B")),
        None => parse_size(text),
    };
    let bytes = bytes.map_err(|error| format!("{error}; or 128, 1k"))?;
    if (9..=1 << 20).contains(&bytes) { Ok(bytes) } else { Err(format!("from 9 B to 1 MiB, not {text}")) }
}

/// Runs the program.
pub fn main() -> ExitCode {
    let cli: Cli = match coppice_usage::parse() {
        Ok(cli) => cli,
        Err(exit) => return exit,
    };
    match carry_out(&cli) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn carry_out(cli: &Cli) -> Result<bool, String> {
    let program = match &cli.bin {
        Some(program) => program.clone(),
        None => beside().map_err(|error| format!("this program: {error}"))?,
    };
    let setup = Setup {
        program,
        data: cli.data.clone().unwrap_or_else(std::env::temp_dir),
        scenes: Vec::new(),
        batches: Vec::new(),
        windows: Vec::new(),
        hold: Duration::ZERO,
        settle: Duration::ZERO,
        also: vec![Also::Standard],
        turns: 1,
        interrupted: interrupts()?,
    };
    match &cli.verb {
        Verb::Link { time } => {
            let (name, shape) = cli.links.first().cloned().ok_or("no link")?;
            let carried = scenes::serve(&setup, &Scene { name, shape, size: 0 }, *time)?;
            let (bytes, most) = (show_size(carried.bytes), show_size(carried.undelivered_max));
            let (times, long) = (carried.congestions, carried.congested);
            println!("busiest node: {bytes} sent, at most {most} undelivered, congested {times} times for {long:?}");
            Ok(true)
        }
        Verb::Grid(Grid { experiment, also }) => {
            let setup = Setup { also: also.clone(), ..setup };
            let (setup, mut rows) = (experiment.setup(cli, setup), Vec::new());
            let done = scenes::grid(&setup, &mut told(&mut rows));
            experiment.keep(&rows)?;
            done.map(|()| true)
        }
        Verb::Tuning(experiment) => {
            let (setup, mut rows) = (experiment.setup(cli, setup), Vec::new());
            let done = scenes::tuning(&setup, &mut told(&mut rows));
            experiment.keep(&rows)?;
            done.map(|()| verdict(&rows))
        }
    }
}

/// Prints rows as they come.
fn told(rows: &mut Vec<Row>) -> impl FnMut(Row) {
    println!("{}", heading());
    |row| {
        println!("{}", row.line());
        rows.push(row);
    }
}

/// Says how tuning did; whether everywhere as well as it should.
fn verdict(rows: &[Row]) -> bool {
    let tuned: Vec<&Row> = rows.iter().filter(|row| row.of_best.is_some()).collect();
    let worst = tuned.iter().filter_map(|row| row.of_best).fold(f64::INFINITY, f64::min);
    let off = |row: &&Row| row.predicted.map(|(rate, _)| (rate / row.got.throughput.max(1e-9) - 1.0).abs());
    let furthest = tuned.iter().filter_map(off).fold(0.0, f64::max);
    let congested: u64 = tuned.iter().map(|row| row.congestions).sum();
    let (reached, error) = (100.0 * worst, 100.0 * furthest);
    println!(
        "tuning: at least {reached:.1} % of the best of the grid (goal {:.0} %), predictions off by at most \
         {error:.1} % (goal 10 %), {congested} congestions",
        100.0 * GOAL
    );
    worst >= GOAL && furthest <= 0.1
}

impl Experiment {
    fn setup(&self, cli: &Cli, setup: Setup) -> Setup {
        let scenes = cli.links.iter().flat_map(|(name, shape)| {
            let sizes = if self.short { &[1_024][..] } else { &self.sizes };
            sizes.iter().map(|&size| Scene { name: name.clone(), shape: *shape, size })
        });
        let (second, scenes) = (Duration::from_secs(1), scenes.collect());
        match self.short {
            true => Setup {
                scenes,
                batches: vec![64 << 10],
                windows: vec![1, 5],
                hold: 2 * second,
                settle: 3 * second,
                turns: 1,
                ..setup
            },
            false => Setup {
                scenes,
                batches: self.batch_bytes.clone(),
                windows: self.windows.clone(),
                hold: self.hold,
                settle: self.settle,
                turns: self.turns,
                ..setup
            },
        }
    }

    fn keep(&self, rows: &[Row]) -> Result<(), String> {
        let Some(file) = &self.out else { return Ok(()) };
        write_csv(file, rows).map_err(|error| format!("{}: {error}", file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_have_names_or_rates() {
        assert_eq!(link("wan"), Ok(("wan".to_owned(), Shape::WAN)));
        let own = Shape { rate: 625_000, delay: Duration::from_millis(100), queue: Some(600 << 10) };
        assert_eq!(link("5Mbit/100ms/600KiB"), Ok(("5Mbit/100ms/600KiB".to_owned(), own)));
        assert_eq!(link("5Mbit/100ms").map(|(_, shape)| shape.queue), Ok(None));
        for wrong in ["", "man", "5/100ms", "5Mbit", "5Mbit/100", "5Mbit/100ms/x", "5Mbit/1ms/1KiB/1", "5Mbit/2s"] {
            assert!(link(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_bytes() {
        assert_eq!([size("128"), size("8k"), size("64KiB")], [Ok(128), Ok(8_192), Ok(65_536)]);
        for wrong in ["8", "", "k", "2MiB", "-1"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
