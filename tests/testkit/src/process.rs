//! Child processes: started, signalled, watched, restarted, ended. It knows processes and what they print.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::poll::found_within;

/// Of what a process said last, errors quote so many lines.
const LAST_LINES: usize = 3;

/// A child and the files that it writes to. Dropping this kills it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Its stdout, of this start only.
    out: PathBuf,
    /// Its stderr, of every start.
    log: PathBuf,
}

impl Process {
    /// Starts a command whose stdout goes to the file `name.out` of the directory, and whose stderr goes to the end of
    /// `name.log`.
    ///
    /// # Errors
    /// A file cannot be opened, or the program cannot be started; names it.
    pub fn start(mut command: Command, directory: &Path, name: &str) -> io::Result<Process> {
        let path = |ending: &str| directory.join(format!("{name}.{ending}"));
        let (out, log) = (path("out"), path("log"));
        let program = command.get_program().to_string_lossy().into_owned();
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{program}: {error}"));
        let appended = OpenOptions::new().create(true).append(true).open(&log).map_err(named)?;
        command.stdin(Stdio::null()).stdout(File::create(&out).map_err(named)?).stderr(appended);
        let child = spawn(command).map_err(named)?;
        Ok(Process { child, out, log })
    }

    /// Its process number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has printed on stdout since its start.
    pub fn printed(&self) -> String {
        read(&self.out)
    }

    /// The last lines that it wrote anywhere, for errors.
    pub fn last_words(&self) -> String {
        last_words(&[&self.out, &self.log])
    }

    /// Sends a signal, unless it is gone.
    pub fn signal(&mut self, signal: Signal) {
        // Once it was waited for, another process may have its number.
        if self.ended().is_none() {
            _ = kill_process(Pid::from_child(&self.child), signal);
        }
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for a line on stdout that begins with one of these words.
    ///
    /// # Errors
    /// It ends before, or says no such line within the limit; quotes it.
    pub fn wait_for_line(&mut self, words: &[&str], limit: Duration) -> io::Result<()> {
        let said = |out: &Path| read(out).lines().any(|line| words.iter().any(|word| line.starts_with(word)));
        let spoken = found_within(limit, || {
            // In this order: what it says before it ends counts.
            let ended = self.ended();
            if said(&self.out) { Some(None) } else { ended.map(Some) }
        });
        match spoken {
            Some(None) => Ok(()),
            Some(Some(status)) => {
                let what = format!("it ended while it started {}: {}", how(status), self.last_words());
                Err(io::Error::other(what))
            }
            None => {
                let what = format!("it has not said `{}` after {limit:?}", words.join("` or `"));
                Err(io::Error::new(io::ErrorKind::TimedOut, what))
            }
        }
    }

    /// Ends it without warning.
    pub fn kill(&mut self) {
        // It may have ended by itself; whoever cares has looked before.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Asks all to end, also those that are stopped, and kills those that have not after `patience`.
pub fn end<'a>(processes: impl IntoIterator<Item = &'a mut Process>, patience: Duration) {
    let mut processes: Vec<&mut Process> = processes.into_iter().collect();
    for process in &mut processes {
        process.signal(Signal::TERM);
        process.signal(Signal::CONT);
    }
    let deadline = Instant::now() + patience;
    for process in processes {
        found_within(deadline.saturating_duration_since(Instant::now()), || process.ended());
        process.kill();
    }
}

/// An exit status in words.
pub fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("with exit status {code}"),
        (None, Some(signal)) => format!("by signal {signal}"),
        (None, None) => "in an unknown way".to_owned(),
    }
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

/// The last lines of these files that say something.
fn last_words(files: &[&Path]) -> String {
    let text: Vec<String> = files.iter().map(|file| read(file)).collect();
    let lines: Vec<&str> = text.iter().flat_map(|text| text.lines()).map(str::trim).filter(|l| !l.is_empty()).collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("; ")
}

/// Starts a command on a thread that never ends: a node's parent-death signal (`coppice serve --end-with`) follows the
/// thread that started it, and the threads of tests come and go.
fn spawn(command: Command) -> io::Result<Child> {
    type Job = (Command, Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, receiver) = channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, done) in receiver {
                // Nobody waits only if a test has failed.
                _ = done.send(command.spawn());
            }
        });
        Mutex::new(jobs)
    });
    let (done, child) = channel();
    let gone = |_| io::Error::other("the thread that starts processes is gone");
    spawner.lock().unwrap_or_else(PoisonError::into_inner).send((command, done)).map_err(|_| gone(()))?;
    child.recv().map_err(|_| gone(()))?
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(120);

    fn shell(name: &str, script: &str) -> Process {
        let directory = std::env::temp_dir().join(format!("coppice-process-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Process::start(command, &directory, name).unwrap()
    }

    fn gone(process: Process) {
        let (id, directory) = (process.id(), process.out.parent().unwrap().to_owned());
        drop(process);
        assert!(Path::new(&format!("/proc/{id}/exe")).read_link().is_err());
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_process_that_does_not_end_when_asked_is_killed() {
        let mut deaf = shell("deaf", "trap '' TERM; echo up; sleep 60 & wait; wait");
        deaf.wait_for_line(&["down", "up"], LIMIT).unwrap();
        end([&mut deaf], Duration::from_millis(50));
        assert_eq!(deaf.ended().and_then(|status| status.signal()), Some(9));
        gone(deaf);
    }

    #[test]
    fn a_process_that_stopped_ends_when_asked() {
        let mut stopped = shell("stopped", "trap 'exit 7' TERM; echo up; while :; do sleep 0.01; done");
        stopped.wait_for_line(&["up"], LIMIT).unwrap();
        stopped.signal(Signal::STOP);
        end([&mut stopped], LIMIT);
        assert_eq!(stopped.ended().and_then(|status| status.code()), Some(7));
        gone(stopped);
    }

    #[test]
    fn one_that_ends_before_its_line_is_quoted_and_one_that_is_silent_is_named() {
        let mut sad = shell("sad", "echo begun; echo no such flag >&2; exit 3");
        let error = sad.wait_for_line(&["ready"], LIMIT).unwrap_err().to_string();
        assert!(error.contains("with exit status 3: begun; no such flag"), "{error}");
        sad.wait_for_line(&["begun"], LIMIT).unwrap();
        gone(sad);
        let mut silent = shell("silent", "sleep 60");
        let error = silent.wait_for_line(&["ready"], Duration::from_millis(20)).unwrap_err().to_string();
        assert!(error.contains("has not said `ready`"), "{error}");
        gone(silent);
    }

    #[test]
    fn a_program_that_is_missing_is_named() {
        let missing = Process::start(Command::new("/nonexistent/program"), &std::env::temp_dir(), "coppice-missing");
        assert!(missing.is_err_and(|error| error.to_string().contains("/nonexistent/program")));
        for ending in ["out", "log"] {
            std::fs::remove_file(std::env::temp_dir().join(format!("coppice-missing.{ending}"))).unwrap();
        }
    }
}
