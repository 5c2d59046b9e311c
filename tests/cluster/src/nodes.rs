//! Nodes as child processes: started, signalled, restarted, ended. It knows processes and what they print.
//!
//! All must be started on one thread that outlives them: a node's parent-death signal follows the thread that started
//! it.

use std::fmt;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use coppice_server::demo::certs::Certs;
use coppice_server::local::HeldPorts;
use rustix::process::{Pid, Signal, kill_process};

/// A node that has said nothing by then will not.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Where one node listens.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    /// Clients.
    pub native: u16,
    /// Other nodes.
    pub peer: u16,
}

/// Ports for so many nodes. They stay with this program while it holds them: a node that is down finds its own free
/// when it comes back, and another cluster that starts meanwhile on this machine is given others.
///
/// # Errors
/// The system has no more.
pub fn draw_ports(nodes: usize) -> io::Result<(Vec<Ports>, HeldPorts)> {
    let held = HeldPorts::draw(2 * nodes)?;
    let ports = held.numbers().chunks_exact(2).map(|pair| Ports { native: pair[0], peer: pair[1] }).collect();
    Ok((ports, held))
}

/// An address on this machine.
pub fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// What a node runs with.
#[derive(Debug)]
pub struct Plan {
    /// The program: `coppice`.
    pub program: PathBuf,
    /// Where directories and logs of nodes go; it exists.
    pub directory: PathBuf,
    /// Where each listens.
    pub ports: Vec<Ports>,
    /// What keeps these ports from others.
    pub _held: HeldPorts,
    /// A host of its own for each node; empty: all are on this one.
    pub hosts: Vec<Host>,
    /// What each dials instead of the others' peer ports: `n2=127.0.0.1:9002,..`.
    pub overrides: Vec<String>,
    /// Certificates; none: in the clear.
    pub certs: Option<Certs>,
    /// Further flags of `coppice serve`.
    pub flags: Vec<String>,
    /// The program has failpoints: what it reaches of them is written down.
    pub failpoints: bool,
}

/// A network namespace with an address.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its name.
    pub namespace: String,
    /// Its address, which this program reaches too.
    pub address: Ipv4Addr,
}

impl Plan {
    fn at(&self, node: usize, port: u16) -> SocketAddr {
        self.hosts.get(node).map_or_else(|| local(port), |host| (host.address, port).into())
    }
}

/// How a process sees the time: beside the others' by some seconds, and faster or slower. All of its clocks, the one
/// that never goes back too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Seconds ahead; below 0: behind.
    pub ahead: i64,
    /// Its rate, percent of the true one.
    pub percent: usize,
}

impl fmt::Display for Clock {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:+} s, {} % of the true rate", self.ahead, self.percent)
    }
}

/// What gives a process another clock, where Debian, Fedora and Arch put it.
pub fn libfaketime() -> Option<PathBuf> {
    let libraries = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let places = libraries.iter().map(|library| Path::new(library).join("faketime/libfaketimeMT.so.1"));
    places.into_iter().find(|file| file.is_file())
}

struct Process {
    child: Child,
    lines: Receiver<String>,
}

/// The nodes of a run, numbered from 0.
pub struct Nodes {
    plan: Plan,
    /// Process numbers of nodes that run, for whoever looks on; 0: it is down.
    pids: Arc<Vec<AtomicU32>>,
    running: Vec<Option<Process>>,
    /// How each sees the time from its next start on; none: as it is.
    clocks: Vec<Option<Clock>>,
    /// What each is armed with from its next start on (`failpoints.rs`).
    armed: Vec<Option<String>>,
    /// Directories of disks that were lost, in the order in which they were.
    lost: Vec<PathBuf>,
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for node in 0..self.running.len() {
            self.kill(node);
        }
    }
}

impl Nodes {
    /// Starts all and waits until each has spoken.
    ///
    /// # Errors
    /// One cannot be started, or ends.
    pub fn start(plan: Plan) -> io::Result<Nodes> {
        let count = plan.ports.len();
        let running = (0..count).map(|_| None).collect();
        let pids = Arc::new((0..count).map(|_| AtomicU32::new(0)).collect());
        let mut nodes =
            Nodes { plan, pids, running, clocks: vec![None; count], armed: vec![None; count], lost: Vec::new() };
        for node in 0..count {
            nodes.launch(node)?;
        }
        for node in 0..count {
            nodes.waits(node)?;
        }
        Ok(nodes)
    }

    /// Certificates; none: nodes are spoken to in the clear.
    pub fn certs(&self) -> Option<&Certs> {
        self.plan.certs.as_ref()
    }

    /// How many there are, running or not.
    pub fn count(&self) -> usize {
        self.running.len()
    }

    /// Where other nodes reach a node.
    pub fn peer(&self, node: usize) -> SocketAddr {
        self.plan.at(node, self.plan.ports[node].peer)
    }

    /// From its next start on a node sees the time like this.
    pub fn set_clock(&mut self, node: usize, clock: Clock) {
        self.clocks[node] = Some(clock);
    }

    /// From its next start on a node has this failpoint armed, or none.
    pub fn arm(&mut self, node: usize, shot: Option<String>) {
        self.armed[node] = shot;
    }

    /// How often processes of a node said that this failpoint fires.
    pub fn fires(&self, node: usize, name: &str) -> usize {
        super::failpoints::fires(&self.seen(node), name)
    }

    /// What all nodes' processes said of failpoints.
    pub fn all_seen(&self) -> String {
        (0..self.count()).map(|node| self.seen(node)).collect()
    }

    fn seen(&self, node: usize) -> String {
        let said = std::fs::read(self.seen_at(node)).unwrap_or_default();
        String::from_utf8_lossy(&said).into_owned()
    }

    fn seen_at(&self, node: usize) -> PathBuf {
        self.plan.directory.join(format!("n{}.seen", node + 1))
    }

    /// A node that is down loses its disk. What was on it is kept for whoever judges: it is in [`Nodes::lost`].
    ///
    /// # Errors
    /// The directory cannot be moved.
    pub fn lose_disk(&mut self, node: usize) -> io::Result<()> {
        let lost = self.plan.directory.join(format!("lost-{}-of-n{}", self.lost.len() + 1, node + 1));
        std::fs::rename(self.data(node), &lost)?;
        self.lost.push(lost);
        Ok(())
    }

    /// What was on the disks that were lost.
    pub fn lost(&self) -> &[PathBuf] {
        &self.lost
    }

    /// The data directory of a node.
    pub fn data(&self, node: usize) -> PathBuf {
        data(&self.plan.directory, node)
    }

    /// Where clients reach a node.
    pub fn native(&self, node: usize) -> SocketAddr {
        self.plan.at(node, self.plan.ports[node].native)
    }

    /// Where a tracer of a node writes.
    pub fn traced(&self, node: usize) -> PathBuf {
        self.plan.directory.join(format!("n{}.strace", node + 1))
    }

    /// Where a node's own messages go.
    fn log(&self, node: usize) -> PathBuf {
        self.plan.directory.join(format!("n{}.log", node + 1))
    }

    /// The end of what a node said on its standard error.
    pub fn said(&self, node: usize) -> String {
        tail(&self.log(node))
    }

    /// Ends a node without warning; one that is down stays down.
    pub fn kill(&mut self, node: usize) {
        if let Some(mut process) = self.running[node].take() {
            self.pids[node].store(0, Ordering::Relaxed);
            // It may have ended by itself; whoever asked has looked before.
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }

    /// Starts a node that is down without waiting.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn relaunch(&mut self, node: usize) -> io::Result<()> {
        if self.running[node].is_none() { self.launch(node) } else { Ok(()) }
    }

    /// Waits until a node without an identity runs and waits for one.
    ///
    /// # Errors
    /// It ends, or says nothing.
    pub fn waits(&mut self, node: usize) -> io::Result<()> {
        self.spoken(node, &["waiting for init", "ready"])
    }

    /// Waits until a node serves.
    ///
    /// # Errors
    /// It ends, or says nothing.
    pub fn ready(&mut self, node: usize) -> io::Result<()> {
        self.spoken(node, &["ready"])
    }

    /// Process numbers of all nodes, as they come and go; 0: it is down.
    pub fn pids(&self) -> Arc<Vec<AtomicU32>> {
        Arc::clone(&self.pids)
    }

    /// The process of a node that runs.
    pub fn pid(&self, node: usize) -> Option<u32> {
        self.running[node].as_ref().map(|process| process.child.id())
    }

    /// Stops a node: it lives and says nothing.
    pub fn pause(&self, node: usize) {
        self.signal(node, Signal::STOP);
    }

    /// Lets a stopped node go on.
    pub fn resume(&self, node: usize) {
        self.signal(node, Signal::CONT);
    }

    /// Ends all nodes, orderly where they still listen, else after `patience`.
    pub fn stop(&mut self, patience: Duration) {
        for node in 0..self.count() {
            self.signal(node, Signal::TERM);
            self.signal(node, Signal::CONT);
        }
        let deadline = Instant::now() + patience;
        for process in self.running.iter_mut().flatten() {
            while Instant::now() < deadline && matches!(process.child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        (0..self.count()).for_each(|node| self.kill(node));
    }

    /// A node that ended by itself, and how: a bug, unless its disk failed.
    pub fn fallen(&mut self) -> Option<String> {
        (0..self.count()).find_map(|node| self.ended(node)).map(|(_, how)| how)
    }

    /// Whether a node ended by itself: its exit status, and how in words.
    pub fn ended(&mut self, node: usize) -> Option<(Option<i32>, String)> {
        let status = self.running[node].as_mut()?.child.try_wait().ok()??;
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => format!("with exit status {code}"),
            (None, Some(signal)) => format!("by signal {signal}"),
            (None, None) => "in an unknown way".to_owned(),
        };
        let words = last_line(&self.log(node));
        Some((status.code(), format!("n{} ended by itself {how}; its last words: {words}", node + 1)))
    }

    fn signal(&self, node: usize, signal: Signal) {
        let pid = self.pid(node).and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // A child that nobody has waited for: its number is its own, dead or alive.
            let _ = kill_process(pid, signal);
        }
    }

    fn launch(&mut self, node: usize) -> io::Result<()> {
        let log = OpenOptions::new().create(true).append(true).mode(0o600).open(self.log(node))?;
        let data = self.data(node);
        if !data.exists() {
            DirBuilder::new().mode(0o700).create(&data)?;
        }
        let mut command = match self.plan.hosts.get(node) {
            None => Command::new(&self.plan.program),
            Some(host) => {
                let mut command = Command::new("nsenter");
                command.arg(super::kernel::enter(&host.namespace)).arg(&self.plan.program);
                command
            }
        };
        let seeds: Vec<String> = (0..self.count()).map(|node| self.peer(node).to_string()).collect();
        command
            .args(["serve", "--config", "/dev/null", "--end-with", &std::process::id().to_string()])
            .args(["--name", &format!("n{}", node + 1), "--log-format", "pretty"])
            .arg("--data-dir")
            .arg(&data)
            .args(["--listen-native", &self.native(node).to_string()])
            .args(["--listen-peer", &self.peer(node).to_string()])
            .args(["--seeds", &seeds.join(","), "--drain-timeout", "1s"])
            .args(&self.plan.flags);
        if self.plan.flags.iter().all(|flag| flag != "--listen-admin") {
            command.args(["--listen-admin", "off"]);
        }
        if let Some(certs) = &self.plan.certs {
            command.args(certs.flags_of_node(node as u32 + 1));
        }
        if !self.plan.hosts.is_empty() {
            command.arg("--insecure=true");
        }
        if !self.plan.overrides[node].is_empty() {
            command.args(["--allow-faults=true", "--dial-override", &self.plan.overrides[node]]);
        }
        for (name, _) in std::env::vars_os() {
            let kept = ["COPPICE_LOG", "COPPICE_MUTANT"];
            if name.to_str().is_some_and(|name| name.starts_with("COPPICE_") && !kept.contains(&name)) {
                command.env_remove(name);
            }
        }
        if self.plan.failpoints {
            command.env("COPPICE_FAILPOINTS_SEEN", self.seen_at(node));
            command.env("COPPICE_FAILPOINTS", self.armed[node].as_deref().unwrap_or_default());
        }
        if let (Some(clock), Some(library)) = (self.clocks[node], libfaketime()) {
            let rate = format!("{}.{:02}", clock.percent / 100, clock.percent % 100);
            command.env("LD_PRELOAD", library).env("FAKETIME", format!("{:+}s x{rate}", clock.ahead));
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).process_group(0);
        let mut child = command.spawn()?;
        let (said, lines) = channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    if said.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        self.pids[node].store(child.id(), Ordering::Relaxed);
        self.running[node] = Some(Process { child, lines });
        Ok(())
    }

    /// Waits for a line that begins with one of these words.
    fn spoken(&mut self, node: usize, words: &[&str]) -> io::Result<()> {
        let log = self.log(node);
        let Some(process) = &mut self.running[node] else { return Ok(()) };
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            match process.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if words.iter().any(|word| line.starts_with(word)) => return Ok(()),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    let what = format!("n{} is not ready after {START_TIMEOUT:?}", node + 1);
                    return Err(io::Error::new(io::ErrorKind::TimedOut, what));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let what = format!("n{} ended while it started: {}", node + 1, last_line(&log));
                    return Err(io::Error::other(what));
                }
            }
        }
    }
}

/// The data directory of a node, numbered from 0.
pub fn data(directory: &Path, node: usize) -> PathBuf {
    directory.join(format!("n{}", node + 1))
}

fn tail(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    String::from_utf8_lossy(&text[text.len().saturating_sub(4096)..]).into_owned()
}

/// The last line of a log that says something.
fn last_line(log: &Path) -> String {
    tail(log).lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("none").to_owned()
}
