//! System calls of a running node that fail, or take longer: strace, attached for a while.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{fs, io};

/// The thread that writes and flushes the log of a node.
pub const LOG_WRITER: &str = "log-writer";

/// An strace at work; it lets its process go when this is dropped.
#[derive(Debug)]
pub struct Tracer {
    child: Child,
    said: PathBuf,
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // Told to end, strace lets its process go; killed, the kernel does.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Tracer {
    /// From soon on these calls of all threads of a process, or of one, go as `inject` says. What was done to them is
    /// written to `said`.
    ///
    /// # Errors
    /// strace cannot be started, or there is no such thread.
    pub fn start(pid: u32, thread: Option<&str>, calls: &str, inject: &str, said: &Path) -> io::Result<Tracer> {
        let _ = fs::remove_file(said);
        let mut command = Command::new("strace");
        match thread {
            None => command.args(["-f", "-p", &pid.to_string()]),
            Some(name) => command.args(["-p", &task(pid, name)?]),
        };
        let child = command
            .args(["-qq", "-e", &format!("trace={calls}"), "-e", &format!("inject={calls}:{inject}"), "-o"])
            .arg(said)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Tracer { child, said: said.to_owned() })
    }

    /// Whether a call went otherwise than it would have.
    pub fn has_injected(&self) -> bool {
        fs::read(&self.said).is_ok_and(|said| said.windows(10).any(|word| word == b"(INJECTED)"))
    }
}

/// The number of a thread of this name.
fn task(pid: u32, name: &str) -> io::Result<String> {
    for task in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        if fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name) {
            return Ok(task.file_name().to_string_lossy().into_owned());
        }
    }
    Err(io::Error::other(format!("process {pid} has no thread `{name}`")))
}
