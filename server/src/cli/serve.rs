//! `serve`: one node, from its settings to its end.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, Signal, getppid, getrlimit, set_parent_process_death_signal, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

use super::args::ServeArgs;
use super::config_verb::{node_config, warn};
use super::failure::{Exit, Failure};
use super::output::Output;
use super::start_failure::start_failure;
use crate::config::{LogFormat, NodeConfig};
use crate::logging::{self, Format, Logging};
use crate::node::Node;

/// How often a waiting node looks whether it has become part of a cluster: often enough to be unnoticed in `ready`.
const IDENTITY_POLL: Duration = Duration::from_millis(5);

/// How often a node says how far its recovery is.
const RECOVERY_TOLD: Duration = Duration::from_secs(2);

/// Said as often, so that systemd waits for a start as long as it goes on: 30 s from each time, in microseconds.
const EXTEND_TIMEOUT: &str = "EXTEND_TIMEOUT_USEC=30000000";

/// Runs a node until it is told to stop.
///
/// # Errors
/// That of stdout; a refusal is returned with its four lines.
pub fn run(args: &ServeArgs, output: &mut Output<'_>) -> io::Result<Result<Exit, Failure>> {
    if let Some(parent) = args.end_with
        && !follow(parent)
    {
        return Ok(Ok(Exit::Failed));
    }
    end_on_panic();
    planted::failpoints::arm();
    let loaded = match node_config("serve", &args.settings.sources(args.config.clone())) {
        Ok(loaded) => loaded,
        Err(failure) => return Ok(Err(failure)),
    };
    warn(&loaded, output)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Handlers stand before the node starts: a SIGTERM in between must not kill it half way.
    let mut signals = runtime.block_on(async { Signals::new() })?;
    let mut config = loaded.config;
    if let Some(warning) = fit_connections(&mut config) {
        output.note(&warning)?;
    }
    let logging = match logging::init(&config.log_level, log_format(config.log_format)) {
        Ok(logging) => logging,
        Err(error) => return Ok(Err(log_failure(&error.to_string()))),
    };
    let (for_start, its_logging) = (config.clone(), logging.clone());
    let started = runtime.block_on(async {
        let mut starting = tokio::task::spawn_blocking(move || Node::start(for_start, Some(its_logging), stop_at_once));
        loop {
            tokio::select! {
                started = &mut starting => break started.map_err(io::Error::other),
                // What it reads stays as it is.
                () = signals.end() => std::process::exit(i32::from(Exit::Done as u8)),
                () = tokio::time::sleep(RECOVERY_TOLD) => {
                    notify(&format!("{EXTEND_TIMEOUT}\nSTATUS=reading the data directory"));
                }
            }
        }
    });
    let node = match started? {
        Ok(node) => node,
        Err(error) => return Ok(Err(start_failure(&error, &config))),
    };
    let asked_by = runtime.block_on(async {
        if node.identity().is_none() {
            announce(output, "waiting for init", &node, &config)?;
            // It has started, and waits for a person: longer than a start may take.
            notify("READY=1\nSTATUS=waiting for init");
            if let Some(signal) = signals.until(args, &logging, joined(&node)).await {
                return io::Result::Ok(Some(signal));
            }
        }
        if let Some(signal) = signals.until(args, &logging, recovered(&node)).await {
            return io::Result::Ok(Some(signal));
        }
        announce(output, "ready", &node, &config)?;
        notify("READY=1\nSTATUS=ready");
        Ok(signals.until(args, &logging, std::future::pending()).await)
    })?;
    notify("STOPPING=1\nSTATUS=leaderships move to other nodes");
    tracing::info!(signal = asked_by, "this node stops: its leaderships move first");
    stop(node, &runtime, signals);
    tracing::info!("this node has stopped");
    Ok(Ok(Exit::Done))
}

/// A panic of any thread ends the process, in builds too in which it would unwind: what a thread left half changed must
/// never be served by the others (hazards.md SP10).
fn end_on_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
}

/// Descriptors that are not clients': 128 connections at the peer port that have proven nothing, 64 at the admin port,
/// 64 clients that are being turned away, log, checkpoints, other nodes.
const OTHER_DESCRIPTORS: u64 = 384;

/// Takes as many descriptors as the system gives this process, and no more clients than they suffice for: without one
/// the next segment of the log cannot be opened, and the node would stop.
fn fit_connections(config: &mut NodeConfig) -> Option<String> {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let raised = setrlimit(Resource::Nofile, most).is_ok();
    let descriptors = if raised { limit.maximum } else { limit.current }?;
    let room =
        usize::try_from(descriptors.saturating_sub(OTHER_DESCRIPTORS).max(descriptors / 2)).unwrap_or(usize::MAX);
    let wanted = config.limits.connections;
    config.limits.connections = wanted.min(room);
    let warning =
        format!("warning: the system allows {descriptors} open files (ulimit -n): {room} connections, not {wanted}");
    (room < wanted).then_some(warning)
}

/// Hands over, finishes and flushes; a second signal ends the process at once, which is always safe.
fn stop(node: Node, runtime: &tokio::runtime::Runtime, mut signals: Signals) {
    let (stopped, done) = tokio::sync::oneshot::channel();
    let thread = std::thread::spawn(move || {
        node.stop();
        // The other side is gone only if the process ends anyway.
        let _ = stopped.send(());
    });
    let orderly = runtime.block_on(async {
        tokio::select! {
            _ = done => true,
            () = signals.end() => false,
        }
    });
    if !orderly {
        std::process::exit(i32::from(Exit::Failed as u8));
    }
    // It has sent, so it has ended or is about to.
    let _ = thread.join();
}

/// Waits until the node is part of a cluster.
async fn joined(node: &Node) {
    while node.identity().is_none() {
        tokio::time::sleep(IDENTITY_POLL).await;
    }
}

/// Waits until its replicas have executed their logs.
async fn recovered(node: &Node) {
    let mut told = tokio::time::Instant::now();
    while !node.is_recovered() {
        if told.elapsed() >= RECOVERY_TOLD {
            told = tokio::time::Instant::now();
            let text = node.recovering();
            notify(&format!("{EXTEND_TIMEOUT}\nSTATUS={text}"));
            tracing::info!(progress = text, "recovering");
        }
        tokio::time::sleep(IDENTITY_POLL).await;
    }
}

/// One line on stdout, flushed at once: a parent process waits for it.
fn announce(output: &mut Output<'_>, word: &str, node: &Node, config: &NodeConfig) -> io::Result<()> {
    let who = node.identity().map_or_else(|| config.name.clone(), |(_, id)| id.to_string());
    let endpoints = node.endpoints();
    let shown = |address: Option<std::net::SocketAddr>| address.map_or("off".to_owned(), |address| address.to_string());
    let (redis, admin) = (shown(endpoints.resp), shown(endpoints.admin));
    let (native, peer) = (endpoints.native, endpoints.peer);
    let (ms, pid) = (node.age().as_millis(), std::process::id());
    write!(output.data, "{word}  {who}  client {native}  redis {redis}  peer {peer}  admin {admin}  ")?;
    writeln!(output.data, "pid {pid}  in {ms} ms")?;
    output.data.flush()
}

/// The signals that a node listens to.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    reread: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            reread: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for `event` (none) or a signal that ends the node, and rereads the log level on SIGHUP meanwhile.
    async fn until(
        &mut self,
        args: &ServeArgs,
        logging: &Logging,
        event: impl Future<Output = ()>,
    ) -> Option<&'static str> {
        tokio::pin!(event);
        loop {
            tokio::select! {
                () = &mut event => return None,
                _ = self.terminate.recv() => return Some("SIGTERM"),
                _ = self.interrupt.recv() => return Some("SIGINT"),
                _ = self.reread.recv() => reread(args, logging),
            }
        }
    }

    async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Takes the log level from the settings as they are now; all others hold until a restart.
fn reread(args: &ServeArgs, logging: &Logging) {
    match node_config("serve", &args.settings.sources(args.config.clone())) {
        Ok(loaded) => match logging.set_level(&loaded.config.log_level) {
            Ok(()) => tracing::info!(log_level = loaded.config.log_level, "settings reread"),
            Err(error) => tracing::warn!(%error, "log level not changed"),
        },
        Err(failure) => tracing::warn!(error = failure.what, place = failure.place, "settings not reread"),
    }
}

/// Asks the system to end this process with its parent, and tells whether that is still alive.
fn follow(parent: i32) -> bool {
    // SIGKILL is always safe for a node; the demo's data is meant for it.
    if set_parent_process_death_signal(Some(Signal::KILL)).is_err() {
        return false;
    }
    // It may have ended before the request: then somebody else is the parent.
    getppid().is_some_and(|pid| pid.as_raw_nonzero().get() == parent)
}

/// The log can make nothing durable: whoever goes on would promise what may be lost (hazards.md ST1).
fn stop_at_once(reason: String) {
    let failure = Failure {
        exit: Exit::Failed,
        code: "storage",
        what: format!("serve: the node stops: {reason}"),
        place: "the acceptor log".to_owned(),
        cause: "the disk refused a write or a flush; after that nothing it says about older writes can be trusted"
            .to_owned(),
        next: "coppice status".to_owned(),
    };
    tracing::error!(reason, "the node stops");
    // Stderr may be what is broken; the exit status tells.
    let _ = writeln!(io::stderr(), "{failure}");
    std::process::exit(i32::from(Exit::Failed as u8));
}

fn log_format(format: LogFormat) -> Format {
    match format {
        LogFormat::Auto => Format::Auto,
        LogFormat::Pretty => Format::Text,
        LogFormat::Json => Format::Json,
    }
}

fn log_failure(reason: &str) -> Failure {
    Failure {
        exit: Exit::Usage,
        code: "config",
        what: format!("serve: {reason}"),
        place: "`log_level`".to_owned(),
        cause: "the filter is written wrongly".to_owned(),
        next: "coppice config default".to_owned(),
    }
}

/// Tells systemd, if it started us.
fn notify(state: &str) {
    if let Some(path) = std::env::var_os("NOTIFY_SOCKET") {
        // Nobody but systemd cares, and it has its own timeout.
        let _ = notify_at(&path, state);
    }
}

fn notify_at(path: &OsStr, state: &str) -> io::Result<usize> {
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(path),
    }?;
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_hears_by_path_and_by_abstract_name() {
        let name = format!("coppice-notify-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let by_path = UnixDatagram::bind(&path).expect("a socket");
        let by_name =
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).expect("a name")).expect("a socket");
        for (socket, address) in [(by_path, path.clone().into_os_string()), (by_name, format!("@{name}").into())] {
            notify_at(&address, "READY=1").expect("it listens");
            let mut heard = [0; 16];
            let length = socket.recv(&mut heard).expect("a message");
            assert_eq!(&heard[..length], b"READY=1");
        }
        std::fs::remove_file(path).expect("it is ours");
    }
}
