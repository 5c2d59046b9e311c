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
pub struct Reaper {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Reaper {
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

    /// Names a process to kill at the end: a child of ours that nobody has waited for, so that its number is still its
    /// own.
    ///
    /// # Errors
    /// The guard is gone.
    pub fn watch(&mut self, pid: u32) -> io::Result<()> {
        match &mut self.pipe {
            Some(pipe) => writeln!(pipe, "{pid} {}", started(pid).unwrap_or(0)),
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
    let mut nodes: BTreeMap<u32, OwnedFd> = BTreeMap::new();
    for line in BufReader::new(io::stdin()).lines().map_while(Result::ok) {
        if let Some((pid, process)) = named(&line) {
            nodes.insert(pid, process);
        }
    }
    for node in nodes.values() {
        // It may have ended by itself.
        let _ = pidfd_send_signal(node, Signal::KILL);
    }
    if let Some(path) = &args.remove {
        wait_until_gone(&nodes);
        super::home::remove(path);
    }
}

/// The process of a line, held by a descriptor, which stays with it when its number is given to somebody else. One that
/// has ended, and whose number somebody else has got before we looked, is none.
fn named(line: &str) -> Option<(u32, OwnedFd)> {
    let (pid, since) = line.split_once(' ')?;
    let (pid, since): (u32, u64) = (pid.parse().ok()?, since.parse().ok()?);
    let process = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
    if started(pid)? == since { Some((pid, process)) } else { None }
}

/// When a process was started, in the system's ticks: with its number, its name for good.
fn started(pid: u32) -> Option<u64> {
    // The 22nd field; the second is a name in brackets that may hold anything.
    stat_after_name(pid)?.split_whitespace().nth(19)?.parse().ok()
}

fn stat_after_name(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(')')?.1.trim_start().to_owned())
}

/// Waits, at most a second, until no killed node can still write.
fn wait_until_gone(nodes: &BTreeMap<u32, OwnedFd>) {
    // A process that nobody waits for stays as a zombie, which writes nothing.
    let lives = |pid: &u32| stat_after_name(*pid).is_some_and(|stat| !stat.starts_with('Z'));
    for _ in 0..200 {
        if !nodes.keys().any(lives) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_was_given_to_somebody_else_is_nobody() {
        let pid = std::process::id();
        let since = started(pid).expect("this process has started");
        assert!(named(&format!("{pid} {since}")).is_some());
        assert!(named(&format!("{pid} {}", since + 1)).is_none());
        for wrong in ["", "1", "x y", "-1 1", "0 0", "4294967295 1"] {
            assert!(named(wrong).is_none(), "{wrong}");
        }
    }
}
