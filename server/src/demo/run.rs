//! A demo from its first line to its last.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use coppice_client::wire::InitRequest;
use coppice_client::{Admin, Client};
use coppice_core::settings::ClusterSettings;
use coppice_core::status::Health;
use tokio::runtime::LocalOptions;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::availability_probe::AvailabilityProbe;
use super::certs;
use super::cuts::Cuts;
use super::faults::{Faults, Refused, lows};
use super::home::Home;
use super::nodes::{Death, Nodes, Progress};
use super::page::{self, Order, Outcome, Page, Shown, Wanted};
use super::prompt::{self, PromptCommand};
use super::split_keys::split_keys;
use super::start::{Started, start};
use super::terminal::{Terminal, Typed};
use crate::cli::args::{Cli, DemoArgs};
use crate::cli::{Exit, Failure, errors};

/// A cluster that is not whole by then will not be.
const FORM_TIMEOUT: Duration = Duration::from_secs(20);
/// A cluster that was formed before shows by then that it was.
const EXISTS_TIMEOUT: Duration = Duration::from_secs(5);
/// Nodes whose data stays get this long to flush; all of a demo is gone within 2 s.
const END_PATIENCE: Duration = Duration::from_millis(1_500);
/// What was typed at the prompt, in the demo's directory: it goes where the data goes.
const HISTORY: &str = "history";
/// What Ctrl-C says where nothing runs.
const HOW_TO_QUIT: &str = "to stop the cluster: quit, or Ctrl-D";
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
            // No node is left to ask for its status, and a temporary directory takes the logs with it.
            let kept = if home.temporary { "DIR".into() } else { home.path.to_string_lossy() };
            return Ok(Err(Failure { next: format!("coppice demo --data-dir {kept}"), ..failure }));
        }
    };
    let admin_ports = (1..=nodes.count()).map(|number| format!("127.0.0.1:{}", nodes.ports(number).admin));
    let page = match page::serve(admin_ports.collect()).await {
        Ok(page) => page,
        Err(error) => {
            clear_up(nodes, &home).await;
            let context = errors::Context::of_demo(&endpoints, FORM_TIMEOUT);
            return Ok(Err(context.failure("listen", format!("demo: the page has no port: {error}"))));
        }
    };
    let said = (since, page.address, other_ports.then_some(endpoints.as_str()));
    for line in opening(&nodes, &home, lows.len(), said) {
        terminal.line(&line)?;
    }
    for number in lost {
        let peer = nodes.ports(number).peer;
        terminal.line(&format!("n{number} has lost its data (try: node replace n{number} 127.0.0.1:{peer} --yes)"))?;
    }
    let client = Client::start(endpoints.split(','), certs::config(nodes.certs()));
    let pulse = AvailabilityProbe::start(&client, &lows);
    let partitions = lows.iter().map(|(id, _)| *id).collect();
    let (cuts, page_load, Page { shown, orders, .. }) = (Cuts::default(), None, page);
    let mut faults = Faults { nodes, admin, pulse, partitions, endpoints, cuts, shown, page_load };
    faults.show(None);
    let exit = match script {
        Some(script) => {
            crate::task::spawn(refuse_orders(orders, faults.shown.clone()));
            run_script(&mut faults, script, &mut terminal, &mut end).await
        }
        None => {
            let history = (!args.no_prompt).then(|| home.path.join(HISTORY));
            let from = (&mut deaths, orders);
            run_prompt(&mut faults, (&verbs, history.as_deref()), &mut terminal, &mut end, from).await
        }
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
            // As many as there can be: a smaller cluster is not short of any.
            settings: vec![("replicas".to_owned(), replicas(nodes.count()).to_string())],
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

/// Replicas of each partition, of so many nodes.
fn replicas(nodes: u32) -> u32 {
    nodes.min(ClusterSettings::default().replicas)
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
fn opening(
    nodes: &Nodes,
    home: &Home,
    partitions: usize,
    (since, page, export): (Instant, SocketAddr, Option<&str>),
) -> Vec<String> {
    let (count, version) = (nodes.count(), env!("CARGO_PKG_VERSION"));
    let replicas = replicas(count);
    let plural = |n: usize, word: &str| if n == 1 { format!("1 {word}") } else { format!("{n} {word}s") };
    let mut lines = vec![format!(
        "coppice {version} demo: {}, {} x {}, flush fdatasync",
        plural(count as usize, "node"),
        plural(partitions, "partition"),
        plural(replicas as usize, "replica"),
    )];
    for number in 1..=count {
        let (ports, pid) = (nodes.ports(number), nodes.pid(number));
        let redis = if ports.resp == 0 { "off".to_owned() } else { format!(":{}", ports.resp) };
        let (native, admin) = (ports.native, ports.admin);
        lines.push(format!("  n{number}  client 127.0.0.1:{native}  redis {redis}  admin :{admin}  pid {pid}"));
    }
    let place = if home.temporary {
        "data in a temporary directory, removed on exit (--data-dir DIR keeps it)".to_owned()
    } else {
        format!("data in {}", home.path.display())
    };
    let memory =
        if home.in_memory { "; the file system is in memory: data survives kills, not power cuts" } else { "" };
    lines.push(format!("ready in {} ms; page http://{page}/ui; {place}{memory}", since.elapsed().as_millis()));
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
    let redis = match (nodes.ports(1).resp, nodes.certs()) {
        (0, _) | (_, Some(_)) => String::new(),
        (port, None) => format!("; redis-cli -p {port} get apple"),
    };
    lines.push(format!("next: {}coppice put apple red; coppice get apple; coppice scan a..b{redis}", path_export()));
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
        faults.show(None);
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

/// What the prompt waits for.
enum Event {
    Typed(Option<Typed>),
    Died(Death),
    Signal(Signal),
    Order(Order),
}

/// A script leaves no room for orders.
async fn refuse_orders(mut orders: mpsc::Receiver<Order>, shown: Shown) {
    while let Some(Order { number, .. }) = orders.recv().await {
        let said = Err("the demo carries out a script: it takes no orders".to_owned());
        shown.change(|view| view.outcome = Some(Outcome { number, said }));
    }
}

async fn run_prompt(
    faults: &mut Faults,
    (verbs, history): (&[&str], Option<&Path>),
    terminal: &mut Terminal,
    end: &mut End,
    (deaths, mut orders): (&mut mpsc::UnboundedReceiver<Death>, mpsc::Receiver<Order>),
) -> io::Result<Exit> {
    // A sender that is never used keeps the channel open: without a prompt no line ever comes.
    let (_open, mut typed) = match history {
        None => mpsc::channel(1),
        Some(history) => (mpsc::channel(1).0, terminal.typed(verbs, history)),
    };
    let (live, names) = faults.look().await;
    if !terminal.is_interactive() {
        terminal.line(&live)?;
    }
    terminal.show(live, names);
    loop {
        terminal.prompt();
        let event = tokio::select! {
            biased;
            signal = end.signal() => Event::Signal(signal),
            Some(death) = deaths.recv() => Event::Died(death),
            Some(order) = orders.recv() => Event::Order(order),
            typed = typed.recv() => Event::Typed(typed),
            () = keep_live(faults, terminal), if terminal.is_interactive() => continue,
        };
        match event {
            Event::Signal(Signal::Interrupt) if terminal.is_interactive() => terminal.line(HOW_TO_QUIT)?,
            Event::Signal(_) | Event::Typed(None) => return Ok(Exit::Done),
            Event::Order(order) => {
                if run_order(faults, order, terminal, end).await? == Then::Quit {
                    return Ok(Exit::Done);
                }
                let (live, names) = faults.look().await;
                terminal.show(live, names);
            }
            Event::Died(Death { node, how }) => {
                faults.show(None);
                terminal.line(&format!("n{node} ended unasked: {how} (try: restart {node})"))?;
            }
            Event::Typed(Some(typed)) => {
                terminal.answered();
                match typed {
                    Typed::End => return Ok(Exit::Done),
                    Typed::Failed(error) => {
                        terminal.complain(&format!(
                            "the terminal cannot be read: {error} (try: coppice demo --exec 'status')"
                        ));
                        return Ok(Exit::Failed);
                    }
                    Typed::Interrupt { was_empty: true } => terminal.line(HOW_TO_QUIT)?,
                    Typed::Interrupt { was_empty: false } => {}
                    Typed::Line(line) => {
                        if run_line(faults, &line, verbs, terminal, end).await? == Then::Quit {
                            return Ok(Exit::Done);
                        }
                        let (live, names) = faults.look().await;
                        terminal.show(live, names);
                    }
                }
            }
        }
    }
}

/// Whether a prompt goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Continue,
    Quit,
}

/// Carries out the commands of a line. Ctrl-C ends the one that runs, and those behind it; never the cluster.
async fn run_line(
    faults: &mut Faults,
    line: &[u8],
    verbs: &[&str],
    terminal: &mut Terminal,
    end: &mut End,
) -> io::Result<Then> {
    let commands = commands_of(line, verbs).unwrap_or_else(|sentence| {
        terminal.complain(&sentence);
        Vec::new()
    });
    for command in commands {
        if command == PromptCommand::Quit {
            return Ok(Then::Quit);
        }
        faults.show(Some(command.to_string()));
        let outcome = tokio::select! {
            biased;
            outcome = carry_out(faults, &command, terminal) => Some(outcome?),
            signal = end.signal() => match signal {
                Signal::End => return Ok(Then::Quit),
                Signal::Interrupt => None,
            },
        };
        faults.show(None);
        // A verb that noticed the interrupt by itself has obeyed it.
        let was_interrupted = end.forget_interrupt() || outcome.is_none();
        match outcome {
            Some(Ok(_)) => {}
            Some(Err(sentence)) => terminal.complain(&sentence),
            None => {
                faults.pulse.calm();
                // A terminal has printed `^C` where the output stopped.
                let begin = if terminal.is_interactive() { "\n" } else { "" };
                terminal.line(&format!("{begin}{}", interrupted(&command)))?;
            }
        }
        if was_interrupted {
            break;
        }
    }
    Ok(Then::Continue)
}

/// Carries out what the page orders, and says it at the prompt too. Ctrl-C ends it.
async fn run_order(faults: &mut Faults, order: Order, terminal: &Terminal, end: &mut End) -> io::Result<Then> {
    let Order { number, wanted } = order;
    terminal.line(&format!("page: {wanted}"))?;
    faults.show(Some(wanted.to_string()));
    let said = tokio::select! {
        biased;
        said = async {
            match &wanted {
                Wanted::Load(on) => faults.load_of_page(*on),
                Wanted::Command(command) => faults.carry_out(command).await.unwrap_or_else(|| Ok(Vec::new())),
            }
        } => said,
        signal = end.signal() => match signal {
            Signal::End => return Ok(Then::Quit),
            Signal::Interrupt => {
                faults.pulse.calm();
                Err(format!("interrupted: {wanted}; what it had begun stays begun"))
            }
        },
    };
    faults.show(None);
    match &said {
        Ok(lines) => lines.iter().try_for_each(|line| terminal.line(line))?,
        Err(sentence) => terminal.complain(sentence),
    }
    faults.shown.change(|view| view.outcome = Some(Outcome { number, said }));
    Ok(Then::Continue)
}

/// What is said of a command that Ctrl-C ended.
fn interrupted(command: &PromptCommand) -> String {
    const WRITES: [&str; 4] = ["put", "insert", "delete", "cas"];
    let rest = match command {
        PromptCommand::Verb(words) if WRITES.iter().any(|verb| words.first().is_some_and(|first| first == verb)) => {
            "; whether it was executed is not known (try: get)"
        }
        PromptCommand::Verb(_) | PromptCommand::Wait(_) | PromptCommand::Load(_) | PromptCommand::Help => "",
        _ => "; what it had begun stays begun",
    };
    format!("interrupted: {command}{rest}")
}

/// Renews the live line, and what Tab offers, for ever.
async fn keep_live(faults: &Faults, terminal: &Terminal) {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (live, names) = faults.look().await;
        terminal.show(live, names);
    }
}

/// The commands of a line that was typed or piped in.
fn commands_of(line: &[u8], verbs: &[&str]) -> Result<Vec<PromptCommand>, String> {
    let text = std::str::from_utf8(line);
    prompt::parse(text.map_err(|_| "the line is not UTF-8; other bytes are written with --hex or --base64")?, verbs)
}

async fn carry_out(
    faults: &mut Faults,
    command: &PromptCommand,
    terminal: &mut Terminal,
) -> io::Result<Result<Exit, Refused>> {
    let lines = match command {
        PromptCommand::Wait(until) => faults.wait(*until).await,
        PromptCommand::Load(arguments) => faults.load(arguments).await,
        PromptCommand::Verb(words) => {
            return crate::cli::at_prompt(words, &faults.access(), terminal.reads()).await.map(Ok);
        }
        PromptCommand::Help => {
            let verbs = verbs();
            Ok(prompt::help(&verbs.iter().map(String::as_str).collect::<Vec<_>>()).lines().map(str::to_owned).collect())
        }
        _ => faults.carry_out(command).await.unwrap_or_else(|| Ok(Vec::new())),
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

    /// Whether an interrupt came that nobody has asked for yet; none is left.
    fn forget_interrupt(&mut self) -> bool {
        let mut came = false;
        while self.interrupt.poll_recv(&mut Context::from_waker(Waker::noop())).is_ready() {
            came = true;
        }
        came
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
