//! Real processes for tests: one program run to its end, nodes, clusters, demos. Whatever a test starts ends with it.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use coppice_client::Config;
use coppice_client::blocking::Client;
use coppice_server::local::HeldPorts;

pub use crate::common::{Scratch, patience};
use crate::common::{wait_for, wait_until};

/// What a program said and how it ended.
#[derive(Debug)]
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// The program, without anything of the user's environment but the planted bug of a test that wants one.
pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coppice"));
    // Where the kernel gives out pages of 2 MiB, a few bytes in each count as all of it: tests measure what is held.
    command.env("MIMALLOC_ALLOW_THP", "0");
    for (name, _) in std::env::vars_os() {
        if name != "COPPICE_MUTANT" && name.to_string_lossy().starts_with("COPPICE_") {
            command.env_remove(name);
        }
    }
    command
}

/// Runs the program with these words to its end; `input` is its stdin.
pub fn run_with_input(words: &[&str], input: &[u8]) -> Said {
    let mut command = program();
    command.args(words);
    finish(command, input)
}

/// Runs a command to its end; `input` is its stdin.
pub fn finish(mut command: Command, input: &[u8]) -> Said {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    // A program that does not read its input may have ended.
    let _ = stdin.write_all(input);
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    Said {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs the program with these words to its end.
pub fn run(words: &[&str]) -> Said {
    run_with_input(words, b"")
}

/// Runs a verb at these endpoints, with time enough for any machine unless the words say otherwise.
pub fn run_at(endpoints: &str, words: &[&str], input: &[u8]) -> Said {
    let timeout = format!("{}s", patience().as_secs());
    let mut all = vec!["--endpoints", endpoints];
    if !words.contains(&"--timeout") {
        all.extend(["--timeout", &timeout]);
    }
    all.extend(words);
    run_with_input(&all, input)
}

/// The settings of a client whose calls end with an answer, unless the cluster does not serve.
pub fn patient() -> Config {
    Config { timeout: patience(), ..Config::default() }
}

/// Starts a process on a thread that never ends: a node's parent-death signal follows the thread that started it, and
/// the threads of tests come and go.
fn spawn(command: Command) -> Child {
    type Job = (Command, std::sync::mpsc::Sender<std::io::Result<Child>>);
    static SPAWNER: OnceLock<Mutex<std::sync::mpsc::Sender<Job>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, receiver) = std::sync::mpsc::channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, done) in receiver {
                // Nobody waits only if a test has failed.
                let _ = done.send(command.spawn());
            }
        });
        Mutex::new(jobs)
    });
    let (done, child) = std::sync::mpsc::channel();
    spawner.lock().expect("no spawner panics").send((command, done)).expect("the spawner lives");
    child.recv().expect("the spawner answers").expect("the program starts")
}

/// A process with its output read line by line.
pub struct Running {
    pub child: Child,
    lines: Mutex<std::sync::mpsc::Receiver<String>>,
    pub said: Vec<String>,
}

impl Running {
    pub fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped());
        let mut child = spawn(command);
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines: Mutex::new(lines), said: Vec::new() }
    }

    /// The next line that begins with `word`.
    #[track_caller]
    pub fn line(&mut self, word: &str) -> String {
        let deadline = Instant::now() + patience();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.get_mut().expect("no reader panics").recv_timeout(left) {
                Ok(line) => {
                    self.said.push(line.clone());
                    if line.starts_with(word) {
                        return line;
                    }
                }
                Err(error) => panic!("no line `{word}..` ({error}); it said:\n{}", self.said.join("\n")),
            }
        }
    }

    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    #[track_caller]
    pub fn ended(&mut self) -> ExitStatus {
        wait_for("the process ends", patience(), || self.child.try_wait().expect("it can be waited for"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal by its name, as a person would.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args(["-s", name, &pid.to_string()]).status().expect("kill runs");
    assert!(status.success(), "kill -s {name} {pid}");
}

/// Whether a process of ours lives. A zombie does not, nor does somebody else who was given the number since.
pub fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(head, rest)| head.ends_with("(coppice") && !rest.trim_start().starts_with('Z'))
}

/// Waits until `what` holds.
#[track_caller]
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    wait_until(what, patience(), holds);
}

/// Nodes of one cluster, each a process with a directory and ports of its own.
pub struct Cluster {
    pub scratch: Scratch,
    /// Three of each node; a node that is down finds its own free when it comes back.
    ports: HeldPorts,
    nodes: Vec<Option<Running>>,
    /// The first so many are seeds.
    seeds: usize,
    /// Settings of every node, beside its addresses.
    flags: Vec<String>,
}

impl Cluster {
    /// Starts `nodes` processes that wait for `init`.
    pub fn waiting(nodes: usize) -> Self {
        Self::waiting_with(nodes, &[])
    }

    fn waiting_with(nodes: usize, flags: &[&str]) -> Self {
        let mut cluster = Self::stopped(nodes, flags);
        (0..nodes).for_each(|index| cluster.start(index, "waiting for init"));
        cluster
    }

    /// Ports and directories of nodes that nobody has started.
    pub fn stopped(nodes: usize, flags: &[&str]) -> Self {
        let flags = flags.iter().map(|&flag| flag.to_owned()).collect();
        let waiting = (0..nodes).map(|_| None).collect();
        let ports = HeldPorts::draw(3 * nodes).expect("ports");
        Self { scratch: Scratch::new("test"), ports, nodes: waiting, seeds: nodes, flags }
    }

    /// Starts and forms a cluster of `nodes` nodes, cut at these keys, and waits until it is whole.
    pub fn formed(nodes: usize, split_keys: &str) -> Self {
        Self::formed_with(nodes, split_keys, &[])
    }

    /// The same with these settings of every node.
    pub fn formed_with(nodes: usize, split_keys: &str, flags: &[&str]) -> Self {
        let cluster = Self::waiting_with(nodes, flags);
        cluster.form(split_keys);
        cluster
    }

    /// A cluster of `nodes` nodes, and so many processes beside it that wait to be added.
    pub fn formed_beside(nodes: usize, waiting: usize, split_keys: &str) -> Self {
        let mut cluster = Self::stopped(nodes + waiting, &[]);
        cluster.seeds = nodes;
        (0..nodes + waiting).for_each(|index| cluster.start(index, "waiting for init"));
        cluster.form(split_keys);
        cluster
    }

    /// Forms a cluster of the waiting nodes.
    #[track_caller]
    pub fn form(&self, split_keys: &str) {
        // A node may be late; then what was begun is gone on with.
        let mut words = vec!["init", "--if-needed"];
        if !split_keys.is_empty() {
            words.extend(["--split-keys", split_keys]);
        }
        eventually("the cluster is formed", || {
            let said = self.run(&words);
            assert!([0, 3, 6].contains(&said.code), "{said:?}");
            said.code == 0
        });
        self.healthy();
    }

    #[track_caller]
    pub fn healthy(&self) {
        eventually("the cluster is healthy", || self.is_whole(&self.run(&["status"])));
    }

    /// Whether a status says that the cluster is as whole as it can be: with fewer nodes than replicas it is short of
    /// some.
    pub fn is_whole(&self, status: &Said) -> bool {
        let few = format!("degraded: {} of 3 replicas; survives the loss of 0 more nodes\n", self.seeds);
        status.code == 0 || (self.seeds < 3 && status.out.starts_with(&few))
    }

    /// The first so many nodes are seeds.
    pub fn set_seeds(&mut self, seeds: usize) {
        self.seeds = seeds;
    }

    pub fn endpoints(&self) -> String {
        let addresses: Vec<String> = (0..self.nodes.len()).map(|index| self.endpoint(index)).collect();
        addresses.join(",")
    }

    /// Where clients reach a node.
    pub fn endpoint(&self, index: usize) -> String {
        format!("127.0.0.1:{}", self.native_port(index))
    }

    pub fn native_port(&self, index: usize) -> u16 {
        self.ports.numbers()[3 * index]
    }

    pub fn peer_port(&self, index: usize) -> u16 {
        self.ports.numbers()[3 * index + 1]
    }

    pub fn admin_port(&self, index: usize) -> u16 {
        self.ports.numbers()[3 * index + 2]
    }

    pub fn data_dir(&self, index: usize) -> PathBuf {
        self.scratch.path(&format!("n{}", index + 1))
    }

    pub fn pid(&self, index: usize) -> u32 {
        self.nodes[index].as_ref().expect("it runs").child.id()
    }

    /// A verb against this cluster.
    pub fn run(&self, words: &[&str]) -> Said {
        self.run_with_input(words, b"")
    }

    pub fn run_with_input(&self, words: &[&str], input: &[u8]) -> Said {
        run_at(&self.endpoints(), words, input)
    }

    /// A verb that one node is asked for.
    pub fn run_at(&self, index: usize, words: &[&str]) -> Said {
        run_at(&self.endpoint(index), words, b"")
    }

    /// Starts a node and waits for its first word.
    #[track_caller]
    pub fn start(&mut self, index: usize, word: &str) {
        let command = self.command(index);
        self.start_as(index, command, word);
    }

    pub fn command(&self, index: usize) -> Command {
        let local = |port: u16| format!("127.0.0.1:{port}");
        let (native, peer, admin) = (self.native_port(index), self.peer_port(index), self.admin_port(index));
        let seeds: Vec<String> = (0..self.seeds).map(|index| local(self.peer_port(index))).collect();
        let mut command = program();
        command.args(["serve", "--config", "/dev/null", "--log-format", "pretty"]);
        command.args(["--end-with", &std::process::id().to_string(), "--data-dir"]).arg(self.data_dir(index));
        command.args(["--seeds", &seeds.join(",")]);
        command.args(["--listen-native", &local(native), "--listen-peer", &local(peer)]);
        command.args(["--listen-admin", &local(admin)]).args(&self.flags);
        // A flag of the test counts more.
        command.env("COPPICE_LISTEN_RESP", "off");
        command
    }

    /// Starts a node that must refuse to start, and tells what it said.
    #[track_caller]
    pub fn refused(&self, index: usize) -> Said {
        let output = self.command(index).stdin(Stdio::null()).output().expect("the program starts");
        Said {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// A client of this cluster.
    pub fn client(&self) -> Client {
        let endpoints = (0..self.nodes.len()).map(|index| self.endpoint(index));
        Client::connect_with(endpoints, patient()).expect("the cluster serves")
    }

    /// A node that runs.
    #[track_caller]
    pub fn node(&mut self, index: usize) -> &mut Running {
        self.nodes[index].as_mut().expect("it runs")
    }

    /// The page at a path of a node's admin port.
    #[track_caller]
    pub fn page(&self, index: usize, path: &str) -> String {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", self.admin_port(index))).expect("it listens");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }

    /// Starts a node by `command` in place of its own.
    #[track_caller]
    pub fn start_as(&mut self, index: usize, mut command: Command, word: &str) {
        command.stdin(Stdio::null()).stderr(log(&self.scratch.path(&format!("n{}.log", index + 1))));
        let mut node = Running::start(command);
        node.line(word);
        self.nodes[index] = Some(node);
    }

    /// kill -9.
    pub fn kill(&mut self, index: usize) {
        drop(self.nodes[index].take());
    }

    /// SIGTERM, and how it ended.
    #[track_caller]
    pub fn stop(&mut self, index: usize) -> ExitStatus {
        let mut node = self.nodes[index].take().expect("it runs");
        node.signal("TERM");
        node.ended()
    }

    /// What a node has logged.
    pub fn log(&self, index: usize) -> String {
        let mut text = String::new();
        let path = self.scratch.path(&format!("n{}.log", index + 1));
        std::fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text)).expect("a log");
        text
    }
}

fn log(path: &Path) -> std::fs::File {
    std::fs::OpenOptions::new().create(true).append(true).open(path).expect("a log file")
}

/// A demo that needs its ports again, for a node or a cluster that was down meanwhile, is alone: others may take them
/// in between.
static PORTS: RwLock<()> = RwLock::new(());

pub fn demo_alone() -> RwLockWriteGuard<'static, ()> {
    PORTS.write().unwrap_or_else(PoisonError::into_inner)
}

pub fn demo_beside_others() -> RwLockReadGuard<'static, ()> {
    PORTS.read().unwrap_or_else(PoisonError::into_inner)
}
