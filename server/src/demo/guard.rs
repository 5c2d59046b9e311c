//! The guard: a small process that outlives a demo by a moment and removes what is left of it.
//!
//! It holds the read end of a pipe whose write end only the demo has. However the demo ends, the pipe closes; then
//! every node that was named and still lives, stopped ones too, is killed, and the temporary directory is removed. A
//! directory given by the user never is.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::cli::args::GuardArgs;

/// The demo's end.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Guard {
    /// Starts a guard that will remove `temporary`, if given.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start(program: &Path, temporary: Option<&Path>) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.arg("demo-guard");
        if let Some(path) = temporary {
            command.arg("--remove").arg(path);
        }
        // Its own process group: Ctrl-C at the terminal must not reach it. No output: it must not hold a caller's
        // pipes open.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let pipe = child.stdin.take();
        Ok(Self { child, pipe })
    }

    /// Names a node to kill at the end. Called before the node can be anything but alive.
    ///
    /// # Errors
    /// The guard is gone.
    pub fn watch(&mut self, pid: u32) -> io::Result<()> {
        match &mut self.pipe {
            Some(pipe) => writeln!(pipe, "{pid}"),
            None => Ok(()),
        }
    }

    /// Closes the pipe and waits until nothing is left.
    pub fn finish(mut self) {
        drop(self.pipe.take());
        // A guard that cannot be waited for has ended already.
        let _ = self.child.wait();
    }
}

/// The guard process itself: reads process numbers until the demo is gone, then clears up.
pub fn run(args: &GuardArgs) {
    let mut nodes: BTreeMap<i32, Option<OwnedFd>> = BTreeMap::new();
    for line in BufReader::new(io::stdin()).lines() {
        let Ok(line) = line else { break };
        if let Some(pid) = line.trim().parse().ok().and_then(Pid::from_raw) {
            // A descriptor stays with its process: a number that was given to somebody else is never killed.
            nodes.insert(pid.as_raw_nonzero().get(), pidfd_open(pid, PidfdFlags::empty()).ok());
        }
    }
    for node in nodes.values().flatten() {
        // It may have ended by itself.
        let _ = pidfd_send_signal(node, Signal::KILL);
    }
    if let Some(path) = &args.remove {
        wait_until_gone(&nodes);
        super::home::remove(path);
    }
}

/// Waits, at most a second, until no killed node can still write.
fn wait_until_gone(nodes: &BTreeMap<i32, Option<OwnedFd>>) {
    let lives = |pid: &i32| {
        // A process that nobody waits for stays as a zombie, which writes nothing.
        std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')))
    };
    for _ in 0..200 {
        if !nodes.iter().any(|(pid, node)| node.is_some() && lives(pid)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
