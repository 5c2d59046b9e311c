//! Defaults that depend on the machine: its name, its memory, its cores.

use std::path::{Path, PathBuf};

/// The host name, or `node` where the system has none.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "node".to_owned() } else { name.to_owned() }
}

/// `$STATE_DIRECTORY` (the first, if systemd gives several), else a directory below the current one.
pub fn data_dir() -> String {
    let given = std::env::var("STATE_DIRECTORY").unwrap_or_default();
    match given.split(':').next() {
        Some(first) if !first.is_empty() => first.to_owned(),
        _ => "./coppice-data".to_owned(),
    }
}

/// One core is left to the sockets, the log writer and everybody else.
pub fn worker_threads() -> String {
    cores().saturating_sub(1).max(1).to_string()
}

/// Bytes of memory that this process may use: the smallest limit of its control groups, else what the machine has.
pub fn memory_bytes() -> u64 {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = cgroup_limit(&groups, |path| std::fs::read_to_string(path).ok());
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    // 1 GiB where the system does not say: small enough to be true nearly everywhere.
    let machine = memory_total(&meminfo).unwrap_or(1 << 30);
    limit.map_or(machine, |limit| limit.min(machine))
}

/// Cores that this process may run on, at least 1.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The smallest memory limit on the way from this process's control group to the root, in version 2 or version 1 files.
fn cgroup_limit(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let mut smallest = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next(), fields.next()?, fields.next()?);
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            c if c.split(',').any(|c| c == "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        // In a container the path is that of the host and may not exist here; the root then is the container's own
        // group.
        for ancestor in Path::new(path).ancestors() {
            let below = ancestor.strip_prefix("/").unwrap_or(ancestor);
            let limit_file: PathBuf = Path::new(root).join(below).join(file);
            let limit = read(&limit_file).and_then(|text| text.trim().parse::<u64>().ok());
            smallest = [smallest, limit].into_iter().flatten().min();
        }
    }
    smallest
}

fn memory_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_limit_on_the_way_up_counts() {
        let read = |path: &Path| match path.to_str()? {
            "/sys/fs/cgroup/system.slice/coppice.service/memory.max" => Some("max\n".to_owned()),
            "/sys/fs/cgroup/system.slice/memory.max" => Some("1073741824\n".to_owned()),
            "/sys/fs/cgroup/memory.max" => Some("4294967296\n".to_owned()),
            _ => None,
        };
        assert_eq!(cgroup_limit("0::/system.slice/coppice.service\n", read), Some(1 << 30));
        assert_eq!(cgroup_limit("0::/gone\n", |_| None), None);
        let version_1 = |path: &Path| path.ends_with("y/memory.limit_in_bytes").then(|| "7".to_owned());
        assert_eq!(cgroup_limit("4:cpu:/x\n3:memory:/y\n", version_1), Some(7));
    }

    #[test]
    fn the_machine_tells_its_memory() {
        assert_eq!(memory_total("MemTotal:       16 kB\nMemFree: 1 kB\n"), Some(16384));
        assert_eq!(memory_total("nonsense"), None);
        assert!(memory_bytes() > 0 && cores() > 0 && !host_name().is_empty());
    }
}
