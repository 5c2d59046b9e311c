//! The command line of `coppice-check cluster`, and a run: round after round until its time, operations or faults are
//! used up.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use clap::{Args, ValueEnum};
use coppice_check::cli::Checker;
use coppice_core::settings::units::{parse_size, parse_time};
use coppice_testkit::say;
use coppice_testkit::variant::run_with;
use planted::failpoints::{ALL, Failpoint};

use super::failpoints::{Failpoints, armable};
use super::kinds::{Kind, kernel_obstacle, possible, unmade};
use super::report::{self, Report};
use super::round::round;
use super::setup::{Limits, RoundResult, Setup};

/// Exits (operations.md 2).
const FAILED: u8 = 1;
const UNKNOWN: u8 = 6;

/// How a run is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// One object.
    Json,
}

/// `cluster`
#[derive(Debug, Args)]
pub struct Arguments {
    /// Kinds of faults, separated by commas; `none`: only the workload
    #[arg(long, value_delimiter = ',', default_value = "kill,pause,cut", value_parser = kind, value_name = "KIND,..")]
    pub nemesis: Vec<Option<Kind>>,
    /// How long [default: 60s, unless --ops or --count is given]
    #[arg(long, value_parser = parse_time, value_name = "TIME")]
    pub time: Option<Duration>,
    /// Until so many operations were asked for, such as 1e6
    #[arg(long, value_parser = number, value_name = "N")]
    pub ops: Option<u64>,
    /// Until so many faults were made; every node that is killed counts one
    #[arg(long, alias = "kills", value_parser = number, value_name = "N")]
    pub count: Option<u64>,
    /// Each kind of cut until each kind of operation met it so often: prints the table, and how soon the full rate was
    /// back. Needs `--nemesis cut`
    #[arg(long, value_parser = number, value_name = "N", conflicts_with_all = ["ops", "count", "endpoints"])]
    pub matrix: Option<u64>,
    /// Of the failpoints only these are armed [default: all]
    #[arg(long, value_delimiter = ',', value_parser = failpoint, value_name = "NAME,..")]
    pub failpoint: Vec<Failpoint>,
    /// Of everything that is drawn [default: another one each time; it is printed]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Nodes; partitions have three replicas, so that with more nodes `map` moves replicas too
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=9))]
    pub nodes: u32,
    /// Partitions to begin with
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub partitions: u32,
    /// Clients, each with one call at a time; the search wants at most 64
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub clients: u32,
    /// What judges the history: the certificate from the nodes' logs, the search over the calls alone, the graph to
    /// explain
    #[arg(long, value_delimiter = ',', default_value = "certificate,search", value_name = "CHECKER,..")]
    pub checker: Vec<Checker>,
    /// Keys
    #[arg(long, default_value_t = 96, value_parser = clap::value_parser!(u32).range(1..=99_999))]
    pub keys: u32,
    /// Operations per second of all clients together; 0: as fast as they go
    #[arg(long, default_value_t = 3_000)]
    pub rate: u32,
    /// After so long a round is judged, and the next one begins with a new cluster
    #[arg(long, value_parser = parse_time, default_value = "60s", value_name = "TIME")]
    pub round: Duration,
    /// Resident memory that no node may exceed; descriptors and disk have bounds of their own (B8)
    #[arg(long, value_parser = parse_size, default_value = "1GiB", value_name = "SIZE")]
    pub memory_max: u64,
    /// Run against this cluster instead of one of its own; faults that it cannot make there are skipped
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT,..")]
    pub endpoints: Vec<String>,
    /// The program `coppice` [default: the one beside this program, else the server that is built into it]
    #[arg(long, value_name = "FILE")]
    pub bin: Option<PathBuf>,
    /// Where the history goes [default: check-SEED in this directory]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Where the nodes' data goes, removed unless something is wrong [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Allow what needs root: power loss on loop-mounted file systems; `cut` by the kernel, each node a host of its own
    #[arg(long)]
    pub root: bool,
    /// Nodes and clients connect inside TLS, with certificates of the round's own
    #[arg(long, conflicts_with = "endpoints")]
    pub tls: bool,
    /// Every second client speaks RESP, as programs for Redis do. Its answers name no position, so that the certificate
    /// cannot judge them, and the search does
    #[arg(long, conflicts_with_all = ["endpoints", "tls"])]
    pub resp: bool,
    /// What was skipped or could not be decided is a failure
    #[arg(long)]
    pub strict: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Output,
}

fn kind(text: &str) -> Result<Option<Kind>, String> {
    if text == "none" { Ok(None) } else { Kind::from_str(text, false).map(Some) }
}

fn failpoint(name: &str) -> Result<Failpoint, String> {
    let found = ALL.iter().find(|point| point.name == name).copied();
    found.ok_or_else(|| format!("no failpoint is called `{name}`; tests/planted/src/failpoints.rs lists all"))
}

/// A count such as 5000 or 1e6.
fn number(text: &str) -> Result<u64, String> {
    let wrong = || format!("a count such as 5000 or 1e6, not `{text}`");
    let (digits, zeros) = text.split_once('e').unwrap_or((text, "0"));
    let zeros: u32 = zeros.parse().map_err(|_| wrong())?;
    let digits: u64 = digits.parse().map_err(|_| wrong())?;
    10_u64.checked_pow(zeros).and_then(|power| digits.checked_mul(power)).filter(|count| *count > 0).ok_or_else(wrong)
}

/// Runs it; the exit status.
///
/// # Errors
/// In words: what was asked for cannot be done on this machine.
pub fn run(arguments: &Arguments) -> Result<u8, String> {
    let wanted: Vec<Kind> = arguments.nemesis.iter().flatten().copied().collect();
    if arguments.matrix.is_some() && (wanted != [Kind::Cut] || arguments.nodes < 3) {
        return Err("--matrix goes with `--nemesis cut` alone, and three nodes or more".to_owned());
    }
    if arguments.checker == [Checker::Graph] {
        return Err("--checker needs certificate or search among others: these decide".to_owned());
    }
    if arguments.root && !rustix::process::geteuid().is_root() {
        return Err("--root: this user is not root; without it, what needs root is skipped".to_owned());
    }
    let own = arguments.endpoints.is_empty();
    if wanted.contains(&Kind::Fail) && own && arguments.bin.is_none() && !cfg!(feature = "failpoints") {
        return Ok(run_with("failpoints", env!("CARGO_PKG_NAME"), "coppice-check", "failpoints"));
    }
    let may_fail = own && [Kind::Fail, Kind::All].iter().any(|kind| wanted.contains(kind));
    let may_fail = may_fail && armable(&program(arguments)?);
    let (kinds, mut skipped) = possible(&wanted, own, arguments.root, may_fail);
    if kinds.is_empty() && !skipped.is_empty() {
        let reasons: Vec<String> = skipped.iter().map(|(kind, why)| format!("{kind} {why}")).collect();
        return Err(format!("nothing of `--nemesis` can be done here: {}", reasons.join("; ")));
    }
    let by_kernel = kernel_obstacle(arguments.root);
    if arguments.matrix.is_none() {
        skipped.extend(unmade(&kinds, arguments.nodes, by_kernel.is_none()));
    }
    if let (true, true, Some(why)) = (arguments.root, kinds.contains(&Kind::Cut), by_kernel) {
        skipped.push((Kind::Cut, why));
    }
    let seed = arguments.seed.unwrap_or_else(seed_of_now);
    let out = arguments.out.clone().unwrap_or_else(|| PathBuf::from(format!("check-{seed}")));
    std::fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let interrupted = interrupts()?;
    let mut report = Report::new(seed, skipped, out.clone());
    report.failpoints = Failpoints::new(&arguments.failpoint);
    let started = Instant::now();
    let whole = Limits {
        time: arguments
            .time
            .or((arguments.ops.or(arguments.count).or(arguments.matrix).is_none()).then_some(Duration::from_secs(60))),
        ops: arguments.ops,
        count: arguments.count,
    };
    for number in 0.. {
        let left = Limits {
            time: whole.time.map(|time| time.saturating_sub(started.elapsed())),
            ops: whole.ops.map(|ops| ops.saturating_sub(report.figures.operations)),
            count: whole.count.map(|count| count.saturating_sub(report.count)),
        };
        let mut setup = setup(arguments, kinds.clone(), seed.wrapping_add(number), &out, left, &interrupted)?;
        setup.kernel = by_kernel.is_none();
        setup.failpoints = report.failpoints.clone();
        setup.matrix = arguments.matrix.map(|wanted| report.matrix.missing(wanted));
        let ended = round(&setup)?;
        if arguments.output == Output::Table {
            report::progress(number + 1, &ended, started.elapsed());
        }
        report.add(number + 1, ended);
        let used_up = left.time.is_some_and(|_| Some(started.elapsed()) >= whole.time)
            || whole.ops.is_some_and(|ops| report.figures.operations >= ops)
            || whole.count.is_some_and(|count| report.count >= count)
            || arguments.matrix.is_some_and(|wanted| report.matrix.missing(wanted).is_empty());
        if report.is_bad() || used_up || interrupted.load(Ordering::Relaxed) {
            break;
        }
    }
    report.judge_matrix(arguments.matrix);
    report.judge_takeovers();
    match arguments.output {
        Output::Table => report.print(started.elapsed()),
        Output::Json => say!("{}", report.json()),
    }
    Ok(match (report.is_bad(), report.is_unknown()) {
        (true, _) => FAILED,
        (false, true) if arguments.strict => FAILED,
        (false, true) => UNKNOWN,
        (false, false) if arguments.strict && report.is_partial() => FAILED,
        (false, false) => 0,
    })
}

fn setup(
    arguments: &Arguments,
    kinds: Vec<Kind>,
    seed: u64,
    out: &std::path::Path,
    left: Limits,
    interrupted: &Arc<AtomicBool>,
) -> Result<Setup, String> {
    let program = program(arguments)?;
    let base = arguments.data.clone().unwrap_or_else(std::env::temp_dir);
    let time = left.time.map_or(arguments.round, |time| time.min(arguments.round));
    Ok(Setup {
        tls: arguments.tls,
        program,
        endpoints: arguments.endpoints.clone(),
        directory: base.join(format!("coppice-check-{}-{seed}", std::process::id())),
        out: out.to_owned(),
        nodes: arguments.nodes as usize,
        partitions: arguments.partitions,
        clients: arguments.clients,
        resp: arguments.resp,
        keys: arguments.keys as usize,
        checkers: arguments.checker.clone(),
        rate: arguments.rate,
        kinds,
        kernel: false,
        matrix: None,
        failpoints: Failpoints::default(),
        seed,
        memory_max: arguments.memory_max,
        limits: Limits { time: Some(time), ..left },
        interrupted: Arc::clone(interrupted),
    })
}

/// What the nodes run.
fn program(arguments: &Arguments) -> Result<PathBuf, String> {
    match &arguments.bin {
        Some(program) => Ok(program.clone()),
        None => beside().map_err(|error| format!("this program: {error}")),
    }
}

/// `coppice` in the directory of this program, else this program, which holds a server too.
pub fn beside() -> std::io::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let program = own.with_file_name("coppice");
    Ok(if program.is_file() { program } else { own })
}

fn seed_of_now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // 32 bits are enough to tell runs apart, and short enough to be typed.
    coppice_testkit::random::Random::of(now.as_nanos() as u64, u64::from(std::process::id())).next() >> 32
}

/// Set by Ctrl-C: the round is ended and judged as it is. A second one ends the program.
pub fn interrupts() -> Result<Arc<AtomicBool>, String> {
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            while tokio::signal::ctrl_c().await.is_ok() {
                if set.swap(true, Ordering::Relaxed) {
                    std::process::exit(130);
                }
            }
        });
    });
    Ok(flag)
}

impl RoundResult {
    /// Whether the round found something wrong.
    pub fn is_bad(&self) -> bool {
        !self.wrong.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_may_have_exponents() {
        assert_eq!((number("5000"), number("1e6")), (Ok(5_000), Ok(1_000_000)));
        for wrong in ["", "e", "1e", "-1", "1.5", "1e99", "0"] {
            assert!(number(wrong).is_err(), "{wrong}");
        }
    }
}
