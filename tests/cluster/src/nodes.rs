//! Nodes as child processes: started, signalled, restarted, ended. It knows processes and what they print.

use std::fmt;
use std::fs::DirBuilder;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use coppice_server::demo::certs::Certs;
use coppice_server::local::HeldPorts;
use coppice_testkit::process::{self, Process};
use coppice_testkit::serve::{Place, READY, WAITING, serve};
use rustix::process::Signal;

/// A node that has said nothing by then will not.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Of a node's log, its end of so many bytes tells what it said last.
const SAID_BYTES: usize = 4_096;

/// Where one node listens.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    /// Clients.
    pub native: u16,
    /// Other nodes.
    pub peer: u16,
    /// Clients that speak RESP.
    pub resp: u16,
}

/// Ports for so many nodes. They stay with this program while it holds them: a node that is down finds its own free
/// when it comes back, and another cluster that starts meanwhile on this machine is given others.
///
/// # Errors
/// The system has no more.
pub fn draw_ports(nodes: usize) -> io::Result<(Vec<Ports>, HeldPorts)> {
    let held = HeldPorts::draw(3 * nodes)?;
    let ports = |of: &[u16; 3]| Ports { native: of[0], peer: of[1], resp: of[2] };
    let ports = held.numbers().as_chunks().0.iter().map(ports).collect();
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
    /// Where clients are told to reach each; empty: where it listens.
    pub advertised: Vec<SocketAddr>,
    /// What each dials instead of the others' peer ports: `n2=127.0.0.1:9002,..`.
    pub overrides: Vec<String>,
    /// Certificates; none: in the clear.
    pub certs: Option<Certs>,
    /// Further flags of `coppice serve`.
    pub flags: Vec<String>,
    /// Nodes serve HTTP, at ports that the system draws.
    pub admin: bool,
    /// The program has failpoints: what it reaches of them is written down.
    pub failpoints: bool,
}

/// A network namespace with an address.
#[derive(Clone, Debug)]
pub struct Host {
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
        self.plan.directory.join(format!("{}.seen", name(node)))
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

    /// Where clients that speak RESP reach a node.
    pub fn resp(&self, node: usize) -> SocketAddr {
        self.plan.at(node, self.plan.ports[node].resp)
    }

    /// Where a tracer of a node writes.
    pub fn traced(&self, node: usize) -> PathBuf {
        self.plan.directory.join(format!("{}.strace", name(node)))
    }

    /// The end of what a node said on its standard error.
    pub fn said(&self, node: usize) -> String {
        let text = std::fs::read(self.plan.directory.join(format!("{}.log", name(node)))).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(SAID_BYTES)..]).into_owned()
    }

    /// Ends a node without warning; one that is down stays down.
    pub fn kill(&mut self, node: usize) {
        self.pids[node].store(0, Ordering::Relaxed);
        self.running[node] = None;
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
        self.spoken(node, &[WAITING, READY])
    }

    /// Waits until a node serves.
    ///
    /// # Errors
    /// It ends, or says nothing.
    pub fn ready(&mut self, node: usize) -> io::Result<()> {
        self.spoken(node, &[READY])
    }

    /// Process numbers of all nodes, as they come and go; 0: it is down.
    pub fn pids(&self) -> Arc<Vec<AtomicU32>> {
        Arc::clone(&self.pids)
    }

    /// The process of a node that runs.
    pub fn pid(&self, node: usize) -> Option<u32> {
        self.running[node].as_ref().map(Process::id)
    }

    /// Stops a node: it lives and says nothing.
    pub fn pause(&mut self, node: usize) {
        self.signal(node, Signal::STOP);
    }

    /// Lets a stopped node go on.
    pub fn resume(&mut self, node: usize) {
        self.signal(node, Signal::CONT);
    }

    /// Ends all nodes, orderly where they still listen, else after `patience`.
    pub fn stop(&mut self, patience: Duration) {
        process::end(self.running.iter_mut().flatten(), patience);
        (0..self.count()).for_each(|node| self.kill(node));
    }

    /// A node that ended by itself, and how: a bug, unless its disk failed.
    pub fn fallen(&mut self) -> Option<String> {
        (0..self.count()).find_map(|node| self.ended(node)).map(|(_, how)| how)
    }

    /// Whether a node ended by itself: its exit status, and how in words.
    pub fn ended(&mut self, node: usize) -> Option<(Option<i32>, String)> {
        let process = self.running[node].as_mut()?;
        let status = process.ended()?;
        let (how, words) = (process::how(status), process.last_words());
        Some((status.code(), format!("n{} ended by itself {how}; its last words: {words}", node + 1)))
    }

    fn signal(&mut self, node: usize, signal: Signal) {
        if let Some(process) = &mut self.running[node] {
            process.signal(signal);
        }
    }

    fn launch(&mut self, node: usize) -> io::Result<()> {
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
        let place = Place {
            name: name(node),
            data,
            native: self.native(node),
            peer: self.peer(node),
            admin: self.plan.admin.then(|| local(0)),
        };
        let seeds: Vec<SocketAddr> = (0..self.count()).map(|node| self.peer(node)).collect();
        serve(&mut command, &place, &seeds);
        command.args(["--listen-resp", &self.resp(node).to_string()]);
        command.args(["--log-format", "pretty", "--drain-timeout", "1s"]).args(&self.plan.flags);
        if let Some(certs) = &self.plan.certs {
            command.args(certs.flags_of_node(node as u32 + 1));
        }
        if !self.plan.hosts.is_empty() {
            command.arg("--insecure=true");
        }
        if let Some(address) = self.plan.advertised.get(node) {
            command.args(["--advertise-native", &address.to_string()]);
        }
        if !self.plan.overrides[node].is_empty() {
            command.args(["--allow-faults=true", "--dial-override", &self.plan.overrides[node]]);
        }
        if self.plan.failpoints {
            command.env("COPPICE_FAILPOINTS_SEEN", self.seen_at(node));
            command.env("COPPICE_FAILPOINTS", self.armed[node].as_deref().unwrap_or_default());
        }
        if let (Some(clock), Some(library)) = (self.clocks[node], libfaketime()) {
            let rate = format!("{}.{:02}", clock.percent / 100, clock.percent % 100);
            command.env("LD_PRELOAD", library).env("FAKETIME", format!("{:+}s x{rate}", clock.ahead));
        }
        // Ctrl-C is for this program alone, which ends its nodes.
        command.process_group(0);
        let process = Process::start(command, &self.plan.directory, &name(node))?;
        self.pids[node].store(process.id(), Ordering::Relaxed);
        self.running[node] = Some(process);
        Ok(())
    }

    /// Waits for a line that begins with one of these words.
    fn spoken(&mut self, node: usize, words: &[&str]) -> io::Result<()> {
        let Some(process) = &mut self.running[node] else { return Ok(()) };
        let named = |error: io::Error| io::Error::new(error.kind(), format!("n{}: {error}", node + 1));
        process.wait_for_line(words, START_TIMEOUT).map_err(named)
    }
}

/// The name of a node, numbered from 0.
fn name(node: usize) -> String {
    format!("n{}", node + 1)
}

/// The data directory of a node, numbered from 0.
pub fn data(directory: &Path, node: usize) -> PathBuf {
    directory.join(name(node))
}
