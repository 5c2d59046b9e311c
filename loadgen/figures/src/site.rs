//! The processes of a comparison or an experiment and the directory that they write into. Whatever happens, an error
//! and Ctrl-C included, both are gone at the end. It knows processes and files, and nothing of stores.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use coppice_testkit::poll::found_within;
use coppice_testkit::process::{self, Process, how};
use tokio::signal::unix::{SignalKind, signal};

/// A process that was asked to end is killed after this time.
const END_PATIENCE: Duration = Duration::from_secs(3);

/// The exit code of a program that was interrupted, as shells count: 128 and the number of SIGINT.
const EXIT_INTERRUPTED: i32 = 130;

/// A directory of its own and the processes that run for it.
#[derive(Debug)]
pub struct Site {
    directory: PathBuf,
    running: Arc<Mutex<Running>>,
}

#[derive(Debug, Default)]
struct Running {
    processes: Vec<Process>,
    /// A signal has ended all; nothing can be started.
    over: bool,
}

fn locked(running: &Mutex<Running>) -> MutexGuard<'_, Running> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Site {
    /// A new directory `name-PID` below `base`. From here on the signals that end a program end the processes first.
    ///
    /// # Errors
    /// The directory cannot be made, or the system has no room for a thread.
    pub fn new(base: &Path, name: &str) -> io::Result<Site> {
        let directory = std::path::absolute(base)?.join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir(&directory)?;
        let site = Site { directory, running: Arc::default() };
        site.end_on_signals()?;
        Ok(site)
    }

    fn end_on_signals(&self) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let guard = runtime.enter();
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        drop(guard);
        let (running, directory) = (self.running.clone(), self.directory.clone());
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hang_up.recv() => {}
                }
            });
            let mut running = locked(&running);
            running.over = true;
            end(&mut running.processes);
            _ = std::fs::remove_dir_all(&directory);
            // The lock is held: nobody can start a process between its end and ours.
            std::process::exit(EXIT_INTERRUPTED);
        })?;
        Ok(())
    }

    /// A path inside the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Starts a process whose stdout goes to the file `name.out` and whose stderr goes to `name.log`; returns its id.
    ///
    /// # Errors
    /// In words: the program cannot be started.
    pub fn start(&self, name: &str, command: Command) -> Result<u32, String> {
        let mut running = locked(&self.running);
        if running.over {
            return Err("interrupted".to_owned());
        }
        let process = Process::start(command, &self.directory, name).map_err(|error| error.to_string())?;
        let id = process.id();
        running.processes.push(process);
        Ok(id)
    }

    fn with<T>(&self, id: u32, ask: impl FnOnce(&mut Process) -> T) -> Option<T> {
        locked(&self.running).processes.iter_mut().find(|process| process.id() == id).map(ask)
    }

    /// What a process has said on stdout.
    pub fn said(&self, id: u32) -> String {
        self.with(id, |process| process.printed()).unwrap_or_default()
    }

    /// The last lines that a process wrote anywhere, for errors.
    pub fn last_words(&self, id: u32) -> String {
        self.with(id, |process| process.last_words()).unwrap_or_default()
    }

    /// In words, how the process of this id ended, if it has.
    pub fn ended(&self, id: u32) -> Option<String> {
        let ended = |process: &mut Process| {
            let status = process.ended()?;
            Some(format!("it ended {}: {}", how(status), process.last_words()))
        };
        self.with(id, ended).flatten()
    }

    /// Runs a process to its end and returns what it said on stdout.
    ///
    /// # Errors
    /// In words: it cannot be started, fails, or takes longer than `limit`.
    pub fn run(&self, name: &str, command: Command, limit: Duration) -> Result<String, String> {
        let id = self.start(name, command)?;
        match found_within(limit, || self.with(id, Process::ended).flatten()) {
            Some(status) if status.success() => Ok(self.said(id)),
            Some(_) => Err(format!("{name}: {}", self.ended(id).unwrap_or_default())),
            None => Err(format!("{name}: no end in {} s", limit.as_secs())),
        }
    }

    /// Waits until `ready` says so, while all these processes live.
    ///
    /// # Errors
    /// In words: one of them ended, or none of this came true within `limit`.
    pub fn wait(
        &self,
        processes: &[(String, u32)],
        limit: Duration,
        mut ready: impl FnMut() -> bool,
    ) -> Result<(), String> {
        let ended = || processes.iter().find_map(|(name, id)| Some(format!("{name}: {}", self.ended(*id)?)));
        let ends = found_within(limit, || if ready() { Some(Ok(())) } else { ended().map(Err) });
        ends.unwrap_or_else(|| {
            let words = processes.iter().map(|(_, id)| self.last_words(*id)).find(|words| !words.is_empty());
            Err(format!("not ready in {} s: {}", limit.as_secs(), words.unwrap_or_default()))
        })
    }

    /// Ends the processes of these ids; the others go on.
    pub fn end(&self, ids: &[u32]) {
        let mut running = locked(&self.running);
        let all = std::mem::take(&mut running.processes);
        let (mut ending, others) = all.into_iter().partition(|process| ids.contains(&process.id()));
        running.processes = others;
        end(&mut ending);
    }

    /// Ends all processes and empties the directory, for the next store.
    pub fn clear(&self) {
        end(&mut locked(&self.running).processes);
        for entry in std::fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let path = entry.path();
            _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        end(&mut locked(&self.running).processes);
        _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn end(processes: &mut Vec<Process>) {
    process::end(processes.iter_mut(), END_PATIENCE);
    processes.clear();
}

/// A port of loopback that is free at the moment.
///
/// # Errors
/// In words: there is none.
pub fn free_ports(count: usize) -> Result<Vec<u16>, String> {
    // All are held until all are known: none is given twice.
    let listeners: io::Result<Vec<_>> = (0..count).map(|_| std::net::TcpListener::bind(("127.0.0.1", 0))).collect();
    let ports = listeners.and_then(|listeners| listeners.iter().map(|l| Ok(l.local_addr()?.port())).collect());
    ports.map_err(|e: io::Error| format!("no free port on loopback: {e}"))
}

/// The first of these programs in PATH.
pub fn in_path(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
    names.iter().find_map(|name| directories.iter().map(|d| d.join(name)).find(|program| program.is_file()))
}

/// What `program argument` prints, on both outputs; empty if it cannot be run.
pub fn printed(program: &Path, argument: &str) -> String {
    let output = Command::new(program).arg(argument).stdin(Stdio::null()).output();
    output.map_or(String::new(), |o| {
        String::from_utf8_lossy(&o.stdout).into_owned() + &String::from_utf8_lossy(&o.stderr)
    })
}

/// A command line as a shell reads it: words with other bytes than plain ones stand as `$'..'`.
pub fn shown(command: &Command) -> String {
    use std::os::unix::ffi::OsStrExt;
    let word = |word: &std::ffi::OsStr| {
        let bytes = word.as_bytes();
        let plain = |b: &u8| b.is_ascii_alphanumeric() || b"-_./:=,%+@".contains(b);
        if !bytes.is_empty() && bytes.iter().all(plain) {
            return String::from_utf8_lossy(bytes).into_owned();
        }
        let escaped: String = bytes
            .iter()
            .map(|b| match b {
                b if plain(b) => char::from(*b).to_string(),
                b => format!("\\x{b:02x}"),
            })
            .collect();
        format!("$'{escaped}'")
    };
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    std::iter::once(program).chain(command.get_args()).map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site() -> Site {
        // Tests of one process would take the same name: each gets a directory around it.
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let base = std::env::temp_dir().join(format!("coppice-versus-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&base).unwrap();
        Site::new(&base, "coppice-versus").unwrap()
    }

    fn remove(site: Site) {
        let (base, directory) = (site.directory.parent().unwrap().to_owned(), site.directory.clone());
        drop(site);
        assert!(!directory.exists());
        std::fs::remove_dir(base).unwrap();
    }

    fn command(program: &str, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(words);
        command
    }

    #[test]
    fn processes_end_with_the_site_even_those_that_will_not() {
        let site = site();
        let id = site.start("deaf", command("sh", &["-c", "trap '' TERM; echo up; sleep 60 & wait; wait"])).unwrap();
        site.wait(&[("deaf".to_owned(), id)], Duration::from_secs(120), || site.said(id) == "up\n").unwrap();
        let alive = || Path::new(&format!("/proc/{id}/exe")).read_link().is_ok();
        assert!(alive());
        site.clear();
        assert!(!alive() && std::fs::read_dir(&site.directory).unwrap().next().is_none());
        remove(site);
    }

    #[test]
    fn a_process_that_fails_is_quoted_and_one_that_hangs_is_left() {
        let site = site();
        let limit = Duration::from_secs(120);
        let failed = site.run("sad", command("sh", &["-c", "echo no such flag >&2; exit 3"]), limit);
        assert!(failed.is_err_and(|e| e.contains("exit status 3") && e.contains("no such flag")));
        let hangs = site.run("slow", command("sleep", &["60"]), Duration::from_millis(50));
        assert!(hangs.is_err_and(|e| e.contains("no end in")));
        let missing = site.run("none", command("/nonexistent/program", &[]), limit);
        assert!(missing.is_err_and(|e| e.contains("/nonexistent/program")));
        remove(site);
    }

    #[test]
    fn command_lines_can_be_pasted_into_a_shell() {
        use std::os::unix::ffi::OsStrExt;
        let mut command = Command::new("/opt/x/benchmark");
        command.args(["range", "--total=5"]).arg(std::ffi::OsStr::from_bytes(b"\x80k"));
        assert_eq!(shown(&command), "benchmark range --total=5 $'\\x80k'");
    }
}
