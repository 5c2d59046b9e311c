//! What a figure must say about where it was made: commit, kernel, processors, disk; and the
//! processor time that the generator itself took.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The machine and the source, as far as they can be read; what cannot is `unknown`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Source revision of the working directory's repository, `-dirty` if changed.
    pub commit: String,
    /// Kernel release.
    pub kernel: String,
    /// Processor model and count.
    pub cpu: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// File system and device of the working directory.
    pub disk: String,
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn unknown_if_empty(text: String) -> String {
    if text.is_empty() { "unknown".to_owned() } else { text }
}

fn git(arguments: &[&str]) -> String {
    let output = Command::new("git").args(arguments).output();
    output
        .ok()
        .filter(|o| o.status.success())
        .map_or(String::new(), |o| String::from_utf8_lossy(&o.stdout).trim().into())
}

impl Machine {
    /// Reads it, in a few milliseconds.
    pub fn read() -> Machine {
        let commit = unknown_if_empty(git(&["rev-parse", "--short=12", "HEAD"]));
        let dirty = !git(&["status", "--porcelain", "--untracked-files=no"]).is_empty();
        let cpuinfo = read("/proc/cpuinfo");
        let field = |name: &str| cpuinfo.lines().find(|l| l.starts_with(name)).and_then(|l| l.split_once(':'));
        let model = field("model name").map_or("unknown", |(_, model)| model.trim());
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        let meminfo = read("/proc/meminfo");
        let memory =
            meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse().ok());
        Machine {
            commit: if dirty { commit + "-dirty" } else { commit },
            kernel: unknown_if_empty(read("/proc/sys/kernel/osrelease").trim().to_owned()),
            cpu: format!("{processors} x {model}"),
            memory_bytes: memory.unwrap_or(0u64) * 1_024,
            disk: disk_at(&std::env::current_dir().unwrap_or_default()),
        }
    }
}

/// File system and device that hold the absolute path `path`.
pub fn disk_at(path: &Path) -> String {
    unknown_if_empty(disk_of(path, &read("/proc/self/mounts")))
}

/// The mount that holds `path`: the longest mount point above it.
fn disk_of(path: &Path, mounts: &str) -> String {
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let (device, point, kind) = (fields.next()?, fields.next()?, fields.next()?);
        path.starts_with(point).then(|| (point.len(), format!("{kind} on {device}")))
    });
    mounts.max_by_key(|(length, _)| *length).map(|(_, text)| text).unwrap_or_default()
}

/// Linux counts processor time for programs in hundredths of a second, whatever the kernel's own tick.
const TICKS_PER_SECOND: f64 = 100.0;

/// Processor time of this process so far, user and system, all threads, those that ended too; 10 ms resolution.
pub fn cpu_time() -> Duration {
    cpu_time_in(&read("/proc/self/stat")).unwrap_or_default()
}

/// The same of another process; none: there is none of this number.
pub fn cpu_time_of(process: u32) -> Option<Duration> {
    cpu_time_in(&read(&format!("/proc/{process}/stat")))
}

fn cpu_time_in(stat: &str) -> Option<Duration> {
    // The name of the program stands in brackets and may hold anything; fields count from behind it.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(Duration::from_secs_f64(ticks as f64 / TICKS_PER_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_mount_point_wins() {
        let mounts = "/dev/vda / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/vdb /tmp/data xfs rw 0 0\n";
        assert_eq!(disk_of(Path::new("/tmp/data/x"), mounts), "xfs on /dev/vdb");
        assert_eq!(disk_of(Path::new("/tmp/database"), mounts), "tmpfs on tmpfs");
        assert_eq!(disk_of(Path::new("/home"), mounts), "ext4 on /dev/vda");
    }

    #[test]
    fn processor_time_is_user_and_system() {
        let stat = "123 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0";
        assert_eq!(cpu_time_in(stat), Some(Duration::from_secs(2)));
        assert_eq!(cpu_time_in("nonsense"), None);
    }

    #[test]
    fn this_machine_can_be_described() {
        let machine = Machine::read();
        assert!(cpu_time_of(std::process::id()).is_some() && cpu_time_of(u32::MAX).is_none());
        assert!(!machine.kernel.is_empty() && machine.cpu.contains(" x "));
    }
}
