//! A demo from its first line to its last.

use std::io;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use coppice_client::wire::InitRequest;
use coppice_client::{Admin, Client};
use coppice_core::settings::ClusterSettings;
use tokio::runtime::LocalOptions;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::availability_probe::AvailabilityProbe;
use super::certs;
use super::cuts::Cuts;
use super::faults::{Faults, Refused, lows};
use super::home::Home;
use super::nodes::{Death, Nodes, Progress};
use super::prompt::{self, PromptCommand};
use super::split_keys::split_keys;
use super::start::{Started, start};
use super::terminal::Terminal;
use crate::cli::args::{Cli, DemoArgs};
use crate::cli::{Exit, Failure, errors};
use crate::status_view::{Health, milliseconds};

/// A cluster that is not whole by then will not be.
const FORM_TIMEOUT: Duration = Duration::from_secs(20);
/// A cluster that was formed before shows by then that it was.
const EXISTS_TIMEOUT: Duration = Duration::from_secs(5);
/// Nodes whose data stays get this long to flush; all of a demo is gone within 2 s.
const END_PATIENCE: Duration = Duration::from_millis(1_500);
/// Verbs of the program that make no sense inside of a demo.
const NOT_HERE: [&str; 6] = ["demo", "serve", "init", "demo-guard", "completions", "man"];

/// Runs a demo until it is told to stop.
///
/// # Errors
/// That of stdout; a failure is returned with its four lines.
pub fn run(args: &DemoArgs) -> io::Result<Result<Exit, Failure>> {
    // One thread: the nodes' parent-death signal follows the thread that started them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
    runtime.block_on(demo(args))
}

async fn demo(args: &DemoArgs) -> io::Result<Result<Exit, Failure>> {
    let verbs = verbs();
    let verbs: Vec<&str> = verbs.iter().map(String::as_str).collect();
    let script = match args.exec.as_deref().map(|script| prompt::parse(script, &verbs)).transpose() {
        Ok(script) => script,
        Err(sentence) => {
            return Ok(Err(Failure::usage(
                format!("demo: {sentence}"),
                "`--exec` is read before anything starts",
                "coppice demo --help",
            )));
        }
    };
    let mut end = End::new()?;
    let mut terminal = Terminal::of_process();
    let started = tokio::select! {
        started = start(args) => started,
        () = end.asked() => return Ok(Ok(Exit::Done)),
    };
    let Started { mut nodes, home, partitions, waiting, other_ports, since, mut deaths } = match started {
        Ok(started) => started,
        Err(failure) => return Ok(Err(failure)),
    };
    let endpoints = endpoints(&nodes);
    let formed = tokio::select! {
        formed = form(&mut nodes, &waiting, partitions, &endpoints) => formed,
        () = end.asked() => {
            clear_up(nodes, &home).await;
            return Ok(Ok(Exit::Done));
        }
    };
    let Formed { admin, lows, lost } = match formed {
        Ok(formed) => formed,
        Err(failure) => {
            clear_up(nodes, &home).await;
            return Ok(Err(failure));
        }
    };
    for line in opening(&nodes, &home, lows.len(), since, other_ports.then_some(endpoints.as_str())) {
        terminal.line(&line)?;
    }
    for number in lost {
        let peer = nodes.ports(number).peer;
        terminal.line(&format!("n{number} has lost its data (try: node replace n{number} 127.0.0.1:{peer} --yes)"))?;
    }
    let client = Client::start(endpoints.split(','), certs::config(nodes.certs()));
    let pulse = AvailabilityProbe::start(&client, &lows);
    let partitions = lows.iter().map(|(id, _)| *id).collect();
    let mut faults = Faults { nodes, admin, pulse, partitions, endpoints, cuts: Cuts::default() };
    let exit = match script {
        Some(script) => run_script(&mut faults, script, &mut terminal, &mut end).await,
        None => run_prompt(&mut faults, args, &verbs, &mut terminal, &mut end, &mut deaths).await,
    };
    let Faults { nodes, pulse, .. } = faults;
    drop(pulse);
    clear_up(nodes, &home).await;
    exit.map(Ok)
}

/// A cluster that serves.
struct Formed {
    /// Who tells its status.
    admin: Admin,
    /// The partitions with their first keys.
    lows: Vec<(u32, Vec<u8>)>,
    /// Nodes whose data is gone: they wait to be told who they are.
    lost: Vec<u32>,
}

/// Forms the cluster if there is none, and waits until it is whole, as far as its nodes have their data. `waiting` are
/// those that belong to no cluster.
async fn form(nodes: &mut Nodes, waiting: &[u32], partitions: u32, endpoints: &str) -> Result<Formed, Failure> {
    let context = errors::Context::of_demo(endpoints, FORM_TIMEOUT);
    let admin = Admin::new(endpoints.split(','), certs::config(nodes.certs()));
    let mut lost = Vec::new();
    if waiting.len() < nodes.count() as usize && !waiting.is_empty() && exists(&admin).await {
        lost = waiting.to_vec();
    } else if !waiting.is_empty() {
        let request = InitRequest {
            partitions,
            split_keys: split_keys(partitions).into_iter().map(Bytes::from).collect(),
            if_needed: true,
            ..InitRequest::default()
        };
        admin.init(request).await.map_err(|error| errors::admin_failure(&error, &context))?;
    }
    for number in (1..=nodes.count()).filter(|number| !lost.contains(number)) {
        if let (Progress::Ended(how), _) = nodes.ready(number).await {
            return Err(context.failure("node", format!("demo: n{number} ended while the cluster was formed: {how}")));
        }
    }
    let deadline = Instant::now() + FORM_TIMEOUT;
    loop {
        if let Ok(status) = admin.status(false).await
            && (Health::of(&status) == Health::Healthy || (Health::of(&status) == Health::Degraded && !lost.is_empty()))
            && status.partitions.len() > 1
        {
            return Ok(Formed { admin, lows: lows(&status), lost });
        }
        if Instant::now() >= deadline {
            return Err(context.failure("not_healthy", "demo: the cluster did not become healthy".to_owned()));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Whether there is a cluster with partitions. One whose `init` was interrupted has none yet.
async fn exists(admin: &Admin) -> bool {
    let deadline = Instant::now() + EXISTS_TIMEOUT;
    while Instant::now() < deadline {
        if admin.status(false).await.is_ok_and(|status| status.partitions.len() > 1) {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    false
}

/// The lines that a demo begins with.
fn opening(nodes: &Nodes, home: &Home, partitions: usize, since: Instant, export: Option<&str>) -> Vec<String> {
    let (count, version) = (nodes.count(), env!("CARGO_PKG_VERSION"));
    let replicas = count.min(ClusterSettings::default().replicas);
    let plural = |n: usize, word: &str| if n == 1 { format!("1 {word}") } else { format!("{n} {word}s") };
    let mut lines = vec![format!(
        "coppice {version} demo: {}, {} x {}, flush fdatasync",
        plural(count as usize, "node"),
        plural(partitions, "partition"),
        plural(replicas as usize, "replica"),
    )];
    for number in 1..=count {
        let (ports, pid) = (nodes.ports(number), nodes.pid(number));
        lines.push(format!("  n{number}  client 127.0.0.1:{}  admin :{}  pid {pid}", ports.native, ports.admin));
    }
    let place = if home.temporary {
        "data in a temporary directory, removed on exit (--data-dir DIR keeps it)".to_owned()
    } else {
        format!("data in {}", home.path.display())
    };
    let memory =
        if home.in_memory { "; the file system is in memory: data survives kills, not power cuts" } else { "" };
    lines.push(format!("ready in {} ms; {place}{memory}", since.elapsed().as_millis()));
    if cfg!(debug_assertions) {
        lines.push("a debug build: to measure, run it with --release".to_owned());
    }
    if let Some(endpoints) = export {
        lines.push(format!("the usual ports are taken: export COPPICE_ENDPOINTS={endpoints}"));
    }
    let files = certs::of_client(nodes.certs());
    if !files.is_empty() {
        let names =
            files.iter().map(|(name, file)| format!("COPPICE_{}={file}", name.replace('-', "_").to_ascii_uppercase()));
        lines.push(format!("nodes speak TLS: export {}", names.collect::<Vec<_>>().join(" ")));
    }
    lines.push(format!("next: {}coppice put apple red; coppice get apple; coppice scan a..b", path_export()));
    lines
}

/// How a shell finds this program, if it does not yet.
fn path_export() -> String {
    let Some(directory) = std::env::current_exe().ok().and_then(|program| program.parent().map(ToOwned::to_owned))
    else {
        return String::new();
    };
    let found =
        std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|entry| entry == directory));
    if found {
        return String::new();
    }
    let below = std::env::current_dir().ok().and_then(|here| directory.strip_prefix(here).ok().map(ToOwned::to_owned));
    match below {
        Some(below) => format!("export PATH=\"$PWD/{}:$PATH\"; ", below.display()),
        None => format!("export PATH=\"{}:$PATH\"; ", directory.display()),
    }
}

async fn run_script(
    faults: &mut Faults,
    script: Vec<PromptCommand>,
    terminal: &mut Terminal,
    end: &mut End,
) -> io::Result<Exit> {
    terminal.line(&faults.health().await)?;
    let mut exit = Exit::Done;
    for command in script {
        terminal.echo(&command.to_string())?;
        if command == PromptCommand::Quit {
            break;
        }
        let outcome = tokio::select! {
            outcome = carry_out(faults, &command, terminal) => outcome?,
            () = end.asked() => break,
        };
        exit = match outcome {
            Ok(exit) => exit,
            Err(sentence) => {
                terminal.complain(&sentence);
                return Ok(Exit::Failed);
            }
        };
    }
    Ok(exit)
}

async fn run_prompt(
    faults: &mut Faults,
    args: &DemoArgs,
    verbs: &[&str],
    terminal: &mut Terminal,
    end: &mut End,
    deaths: &mut mpsc::UnboundedReceiver<Death>,
) -> io::Result<Exit> {
    // A sender that is never used keeps the channel open: without a prompt no line ever comes.
    let (_open, mut lines) = if args.no_prompt { mpsc::channel(1) } else { (mpsc::channel(1).0, terminal.lines()) };
    if !terminal.is_interactive() {
        terminal.line(&live(faults).await)?;
    } else {
        terminal.prompt(&live(faults).await)?;
    }
    let mut second = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            () = end.asked() => return Ok(Exit::Done),
            Some(death) = deaths.recv() => {
                terminal.line(&format!("n{} ended unasked: {} (try: restart {})", death.node, death.how, death.node))?;
                terminal.prompt(&live(faults).await)?;
            }
            _ = second.tick(), if terminal.is_interactive() => terminal.live(&live(faults).await)?,
            line = lines.recv() => {
                let Some(line) = line else { return Ok(Exit::Done) };
                terminal.typed();
                let commands = commands_of(&line, verbs).unwrap_or_else(|sentence| {
                    terminal.complain(&sentence);
                    Vec::new()
                });
                for command in commands {
                    if command == PromptCommand::Quit {
                        return Ok(Exit::Done);
                    }
                    let looks = matches!(command, PromptCommand::Verb(_) | PromptCommand::Wait(_));
                    tokio::select! {
                        biased;
                        outcome = carry_out(faults, &command, terminal) => if let Err(sentence) = outcome? {
                            terminal.complain(&sentence);
                        },
                        // Whoever only looks or waits is interrupted, and not the demo.
                        signal = end.signal() => if signal != Signal::Interrupt || !looks {
                            return Ok(Exit::Done);
                        },
                    }
                    if looks {
                        end.forget_interrupt();
                    }
                }
                terminal.prompt(&live(faults).await)?;
            }
        }
    }
}

/// The commands of a line that was typed or piped in.
fn commands_of(line: &[u8], verbs: &[&str]) -> Result<Vec<PromptCommand>, String> {
    let text = std::str::from_utf8(line);
    prompt::parse(text.map_err(|_| "the line is not UTF-8; other bytes are written with --hex or --base64")?, verbs)
}

/// The line above the prompt.
async fn live(faults: &Faults) -> String {
    let health = faults.health().await;
    match faults.pulse.recent() {
        Some(recent) => {
            let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            let (p50, p99) = (milliseconds(us(recent.p50)), milliseconds(us(recent.p99)));
            format!("{health} | pulse {} op/s, p50 {p50}, p99 {p99}", recent.per_second)
        }
        None => health,
    }
}

async fn carry_out(
    faults: &mut Faults,
    command: &PromptCommand,
    terminal: &mut Terminal,
) -> io::Result<Result<Exit, Refused>> {
    let lines = match command {
        PromptCommand::Kill(node) => faults.kill(*node).await,
        PromptCommand::Pause(node) => faults.pause(*node).await,
        PromptCommand::Resume(node) => faults.resume(*node).await,
        PromptCommand::Restart(node) => faults.restart(*node).await,
        PromptCommand::Cut(sides) => faults.cut(sides).await,
        PromptCommand::Slow(node, delay) => faults.slow(*node, *delay).await,
        PromptCommand::Heal => faults.heal().await,
        PromptCommand::Wait(until) => faults.wait(*until).await,
        PromptCommand::Load(arguments) => faults.load(arguments).await,
        PromptCommand::Verb(words) => {
            return crate::cli::at_prompt(words, &faults.access(), terminal.reads()).await.map(Ok);
        }
        PromptCommand::Help => {
            let verbs = verbs();
            Ok(prompt::help(&verbs.iter().map(String::as_str).collect::<Vec<_>>()).lines().map(str::to_owned).collect())
        }
        PromptCommand::Quit => Ok(Vec::new()),
    };
    match lines {
        Ok(lines) => lines[..shown(command, lines.len(), terminal)]
            .iter()
            .try_for_each(|line| terminal.line(line))
            .map(|()| Ok(Exit::Done)),
        Err(refused) => Ok(Err(refused)),
    }
}

/// How many of the lines are printed: how the cluster stands after a fault is said by the live line too, where there
/// is one.
fn shown(command: &PromptCommand, lines: usize, terminal: &Terminal) -> usize {
    let fault = matches!(command, PromptCommand::Kill(_) | PromptCommand::Pause(_) | PromptCommand::Cut(_));
    if fault && terminal.is_interactive() { lines - 1 } else { lines }
}

/// Verbs that can be said at the prompt.
fn verbs() -> Vec<String> {
    use clap::CommandFactory;
    let program = Cli::command();
    let names = program.get_subcommands().map(|verb| verb.get_name().to_owned());
    names.filter(|name| !NOT_HERE.contains(&name.as_str()) && name != "help").collect()
}

fn endpoints(nodes: &Nodes) -> String {
    let addresses: Vec<String> = (1..=nodes.count()).map(|n| format!("127.0.0.1:{}", nodes.ports(n).native)).collect();
    addresses.join(",")
}

async fn clear_up(nodes: Nodes, home: &Home) {
    nodes.end(!home.temporary, END_PATIENCE).await;
    if home.temporary {
        super::home::remove(&home.path);
    }
}

/// The signals that end a demo.
struct End {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
}

impl End {
    fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn asked(&mut self) {
        self.signal().await;
    }

    async fn signal(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.terminate.recv() => Signal::End,
            _ = self.hang_up.recv() => Signal::End,
        }
    }

    /// A verb that noticed the interrupt by itself has obeyed it.
    fn forget_interrupt(&mut self) {
        while self.interrupt.poll_recv(&mut Context::from_waker(Waker::noop())).is_ready() {}
    }
}

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// Everything else.
    End,
}
