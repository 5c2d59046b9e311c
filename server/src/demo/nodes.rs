//! The nodes of a demo as child processes: starting, signalling, noticing their end.
//!
//! It knows processes and what they print, and nothing of what they store.

use std::cell::Cell;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};

use super::certs::Certs;
use super::home::Home;
use super::ports::NodePorts;
use super::reaper::Reaper;
use crate::local::HeldPorts;

/// What a node prints when it can serve, and while it has no cluster yet: the first word of its line on stdout.
pub const READY: &str = "ready";
/// The beginning of the other line.
pub const WAITING: &str = "waiting for init";

/// Variables that reach the nodes; all other settings are the demo's.
const VARIABLES_KEPT: [&str; 3] = ["COPPICE_LOG", "COPPICE_MUTANT", "COPPICE_BUSY_POLL"];

/// How far a node has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// Started, has said nothing yet.
    Starting,
    /// Has no cluster yet.
    Waiting,
    /// Serves.
    Ready,
    /// Gone, and how.
    Ended(String),
}

/// A node that ended unasked.
#[derive(Debug)]
pub struct Death {
    /// Its number.
    pub node: u32,
    /// How, and its last words.
    pub how: String,
}

/// One node.
#[derive(Debug)]
struct Slot {
    ports: NodePorts,
    pid: u32,
    process: Option<OwnedFd>,
    progress: watch::Receiver<Progress>,
    asked: Rc<Cell<bool>>,
    paused: bool,
    started: Instant,
}

/// All nodes of a demo.
#[derive(Debug)]
pub struct Nodes {
    program: PathBuf,
    data: Vec<PathBuf>,
    logs: Vec<PathBuf>,
    guard: Option<Reaper>,
    certs: Option<Certs>,
    deaths: mpsc::UnboundedSender<Death>,
    slots: Vec<Slot>,
    /// A node that is restarted finds its ports free.
    _ports: HeldPorts,
}

impl Nodes {
    /// Starts one node per entry of `ports`. Must be called on the program's first thread: a node's parent-death
    /// signal follows the thread that started it.
    ///
    /// # Errors
    /// A process cannot be started.
    pub fn start(
        program: &Path,
        home: &Home,
        ports: &[NodePorts],
        (held, certs): (HeldPorts, Option<Certs>),
        deaths: mpsc::UnboundedSender<Death>,
    ) -> io::Result<Self> {
        let numbers = || (1_u32..).take(ports.len());
        let mut nodes = Self {
            program: program.to_owned(),
            data: numbers().map(|number| home.node(number)).collect(),
            logs: numbers().map(|number| home.log(number)).collect(),
            guard: Some(Reaper::start(program, home.temporary.then_some(home.path.as_path()))?),
            certs,
            deaths,
            slots: Vec::new(),
            _ports: held,
        };
        for (number, ports_of_node) in numbers().zip(ports) {
            let slot = nodes.spawn(number, *ports_of_node, ports)?;
            nodes.slots.push(slot);
        }
        Ok(nodes)
    }

    /// Certificates; none: nodes are spoken to in the clear.
    #[must_use]
    pub fn certs(&self) -> Option<&Certs> {
        self.certs.as_ref()
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    /// True if there is a node of this number.
    #[must_use]
    pub fn has(&self, number: u32) -> bool {
        (1..=self.count()).contains(&number)
    }

    /// The process of a node.
    #[must_use]
    pub fn pid(&self, number: u32) -> u32 {
        self.slot(number).pid
    }

    /// The ports of a node.
    #[must_use]
    pub fn ports(&self, number: u32) -> NodePorts {
        self.slot(number).ports
    }

    /// True if the process of a node lives, stopped or not.
    #[must_use]
    pub fn lives(&self, number: u32) -> bool {
        !matches!(*self.slot(number).progress.borrow(), Progress::Ended(_))
    }

    /// True if a node is stopped.
    #[must_use]
    pub fn is_paused(&self, number: u32) -> bool {
        self.slot(number).paused && self.lives(number)
    }

    /// Waits until a node has said that it waits, is ready, or has ended. Returns how long that took from its start.
    pub async fn spoken(&mut self, number: u32) -> (Progress, Duration) {
        self.until(number, |progress| *progress != Progress::Starting).await
    }

    /// Waits until a node is ready or has ended.
    pub async fn ready(&mut self, number: u32) -> (Progress, Duration) {
        self.until(number, |progress| matches!(progress, Progress::Ready | Progress::Ended(_))).await
    }

    /// Ends a node without warning.
    pub async fn kill(&mut self, number: u32) {
        self.slot(number).asked.set(true);
        self.signal(number, Signal::KILL);
        self.until(number, |progress| matches!(progress, Progress::Ended(_))).await;
    }

    /// Stops a node: it lives and says nothing.
    pub fn pause(&mut self, number: u32) {
        self.signal(number, Signal::STOP);
        self.slot_mut(number).paused = true;
    }

    /// Lets a stopped node go on.
    pub fn resume(&mut self, number: u32) {
        self.signal(number, Signal::CONT);
        self.slot_mut(number).paused = false;
    }

    /// Starts a node that has ended, on its own data and ports.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn restart(&mut self, number: u32) -> io::Result<()> {
        let all: Vec<NodePorts> = self.slots.iter().map(|slot| slot.ports).collect();
        let slot = self.spawn(number, self.slot(number).ports, &all)?;
        *self.slot_mut(number) = slot;
        Ok(())
    }

    /// Names another process to end with the demo.
    ///
    /// # Errors
    /// The guard is gone.
    pub fn guard(&mut self, pid: u32) -> io::Result<()> {
        self.guard.as_mut().map_or(Ok(()), |guard| guard.watch(pid))
    }

    /// Ends all nodes: asked politely if their data stays, killed after `patience`; then lets the guard go.
    pub async fn end(mut self, politely: bool, patience: Duration) {
        for slot in &self.slots {
            slot.asked.set(true);
        }
        let deadline = tokio::time::Instant::now() + patience;
        let numbers = 1..=self.count();
        if politely {
            for number in numbers.clone() {
                self.signal(number, Signal::TERM);
                self.signal(number, Signal::CONT);
            }
            for number in numbers.clone() {
                let ended = self.until(number, |progress| matches!(progress, Progress::Ended(_)));
                let _ = tokio::time::timeout_at(deadline, ended).await;
            }
        }
        for number in numbers {
            self.kill(number).await;
        }
        if let Some(guard) = self.guard.take() {
            guard.finish();
        }
    }

    fn slot(&self, number: u32) -> &Slot {
        &self.slots[number as usize - 1]
    }

    fn slot_mut(&mut self, number: u32) -> &mut Slot {
        &mut self.slots[number as usize - 1]
    }

    fn signal(&self, number: u32, signal: Signal) {
        if let Some(process) = &self.slot(number).process {
            // It may have ended by itself; its watcher tells.
            let _ = pidfd_send_signal(process, signal);
        }
    }

    async fn until(&mut self, number: u32, reached: impl Fn(&Progress) -> bool) -> (Progress, Duration) {
        let slot = self.slot_mut(number);
        let progress = match slot.progress.wait_for(|progress| reached(progress)).await {
            Ok(progress) => progress.clone(),
            Err(_) => Progress::Ended("its watcher ended".to_owned()),
        };
        (progress, slot.started.elapsed())
    }

    fn spawn(&mut self, number: u32, ports: NodePorts, all: &[NodePorts]) -> io::Result<Slot> {
        let index = number as usize - 1;
        let log = OpenOptions::new().create(true).append(true).mode(0o600).open(&self.logs[index])?;
        let mut command = self.command(number, ports, all);
        let started = Instant::now();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn()?;
        let pid = child.id().ok_or_else(|| io::Error::other("a process without a number"))?;
        self.guard(pid)?;
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let process = match raw {
            Some(raw) => Some(pidfd_open(raw, PidfdFlags::empty())?),
            None => None,
        };
        let (said, progress) = watch::channel(Progress::Starting);
        let asked = Rc::new(Cell::new(false));
        let lines = child.stdout.take().map(BufReader::new);
        let watcher = Watcher {
            node: number,
            log: self.logs[index].clone(),
            asked: asked.clone(),
            said,
            deaths: self.deaths.clone(),
        };
        crate::task::spawn(watcher.run(child, lines));
        Ok(Slot { ports, pid, process, progress, asked, paused: false, started })
    }

    fn command(&self, number: u32, ports: NodePorts, all: &[NodePorts]) -> Command {
        let mut command = Command::new(&self.program);
        let local = |port: u16| format!("127.0.0.1:{port}");
        let seeds: Vec<String> = all.iter().map(|ports| local(ports.peer)).collect();
        command
            // No file of the user's: the demo is the same everywhere.
            .args(["serve", "--config", "/dev/null", "--end-with", &std::process::id().to_string()])
            .args(["--name", &format!("n{number}"), "--log-format", "pretty", "--allow-faults"])
            .arg("--data-dir")
            .arg(&self.data[number as usize - 1])
            .args(["--listen-native", &local(ports.native), "--listen-peer", &local(ports.peer)])
            .args(["--listen-resp", &if ports.resp == 0 { "off".to_owned() } else { local(ports.resp) }])
            .args(["--listen-admin", &local(ports.admin), "--seeds", &seeds.join(",")])
            // A demo that stops is gone within 2 s.
            .args(["--drain-timeout", "1s"]);
        if let Some(certs) = &self.certs {
            command.args(certs.flags_of_node(number));
        }
        for (name, _) in std::env::vars_os() {
            let ours =
                name.to_str().is_some_and(|name| name.starts_with("COPPICE_") && !VARIABLES_KEPT.contains(&name));
            if ours {
                command.env_remove(name);
            }
        }
        // Their own process groups: Ctrl-C at the terminal reaches the demo alone.
        command.process_group(0).kill_on_drop(true);
        command
    }
}

/// Follows one process from its start to its end.
struct Watcher {
    node: u32,
    log: PathBuf,
    asked: Rc<Cell<bool>>,
    said: watch::Sender<Progress>,
    deaths: mpsc::UnboundedSender<Death>,
}

impl Watcher {
    async fn run(self, mut child: Child, lines: Option<BufReader<tokio::process::ChildStdout>>) {
        if let Some(lines) = lines {
            let mut lines = lines.lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if line.starts_with(READY) {
                    self.said.send_replace(Progress::Ready);
                } else if line.starts_with(WAITING) {
                    self.said.send_replace(Progress::Waiting);
                }
            }
        }
        let how = child.wait().await.map_or_else(|error| error.to_string(), describe);
        let how = match last_words(&self.log) {
            Some(line) if !self.asked.get() => format!("{how}; its last words: {line}"),
            _ => how,
        };
        self.said.send_replace(Progress::Ended(how.clone()));
        if !self.asked.get() {
            // Nobody listens only when the demo itself ends.
            let _ = self.deaths.send(Death { node: self.node, how });
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown".to_owned(),
    }
}

/// What a log says last: the error that ended the process, else its last line that says something.
fn last_words(log: &Path) -> Option<String> {
    let text = std::fs::read(log).ok()?;
    let tail = String::from_utf8_lossy(&text[text.len().saturating_sub(4096)..]).into_owned();
    let lines = || tail.lines().rev().map(str::trim);
    let error = lines().find_map(|line| line.strip_prefix("error: "));
    error.or_else(|| lines().find(|line| !line.is_empty())).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_are_the_error_or_the_last_line() {
        let log = std::env::temp_dir().join(format!("coppice-last-words-{}.log", std::process::id()));
        for (text, words) in [
            (
                "INFO up\nerror: serve: log format 2\nwhere: /data\ntry:   coppice status\n\n",
                Some("serve: log format 2"),
            ),
            ("INFO up\nthread panicked at x\n\n", Some("thread panicked at x")),
            ("", None),
        ] {
            std::fs::write(&log, text).expect("it is written");
            assert_eq!(last_words(&log).as_deref(), words);
        }
        _ = std::fs::remove_file(&log);
    }
}
