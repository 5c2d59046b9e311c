//! What the system and the allocator say of this process.

use std::fs;
use std::sync::OnceLock;

/// Of `/proc/self`, where there is one: what the system does not say is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Process {
    /// Processor time of all threads, user and system.
    pub cpu_seconds: f64,
    pub threads: u64,
    /// Unix time.
    pub start_seconds: f64,
    pub virtual_bytes: u64,
    pub resident_bytes: u64,
    pub open_fds: u64,
    /// The soft limit; none: unlimited.
    pub fds_max: Option<u64>,
    /// Memory that the allocator has taken from the system and not given back; none: this program's allocator does not
    /// say.
    pub allocator_bytes: Option<u64>,
}

impl Process {
    /// Reads it: some files, some 100 us.
    pub fn read() -> Process {
        let own = fs::read_to_string("/proc/self/stat").ok().and_then(|text| Stat::parse(&text)).unwrap_or_default();
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        // Reading the directory opens it.
        let open_fds = fs::read_dir("/proc/self/fd").map_or(0, |fds| fds.count().saturating_sub(1) as u64);
        Process {
            cpu_seconds: own.cpu_ticks as f64 / ticks,
            threads: own.threads,
            start_seconds: booted_at() + own.start_ticks as f64 / ticks,
            virtual_bytes: own.virtual_bytes,
            resident_bytes: own.resident_pages * rustix::param::page_size() as u64,
            open_fds,
            fds_max: rustix::process::getrlimit(rustix::process::Resource::Nofile).current,
            allocator_bytes: allocator_bytes(),
        }
    }
}

/// Memory of this process, in bytes; 0 where the system does not say.
pub fn resident_bytes() -> u64 {
    let Ok(text) = fs::read_to_string("/proc/self/statm") else { return 0 };
    let pages: u64 = text.split_whitespace().nth(1).and_then(|field| field.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

/// Of `/proc/self/stat` (proc_pid_stat(5)).
#[derive(Debug, Default, PartialEq, Eq)]
struct Stat {
    cpu_ticks: u64,
    threads: u64,
    /// After the machine began.
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Stat> {
        // The second field is the program's name, which may hold anything.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // The manual counts from 1, and the third field is the first one here.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Stat {
            cpu_ticks: field(14)?.checked_add(field(15)?)?,
            threads: field(20)?,
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

/// When the machine began, in Unix time.
fn booted_at() -> f64 {
    static AT: OnceLock<f64> = OnceLock::new();
    *AT.get_or_init(|| {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = stat.lines().find_map(|line| line.strip_prefix("btime "));
        line.and_then(|seconds| seconds.trim().parse().ok()).unwrap_or(0.0)
    })
}

#[cfg(feature = "mimalloc")]
fn allocator_bytes() -> Option<u64> {
    let stats = mimalloc::MiMalloc::stats_json().ok()?;
    let stats: serde_json::Value = serde_json::from_slice(stats.to_bytes()).ok()?;
    stats["process"]["commit_current"].as_u64().filter(|&bytes| bytes > 0)
}

#[cfg(not(feature = "mimalloc"))]
fn allocator_bytes() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_a_name_that_looks_like_them() {
        let text =
            "7 (a) 9 (b) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 12 0 900 1048576 300 18446744073709551615\n";
        let stat = Stat { cpu_ticks: 300, threads: 12, start_ticks: 900, virtual_bytes: 1 << 20, resident_pages: 300 };
        assert_eq!(Stat::parse(text), Some(stat));
        for text in ["", "7 (a)", "7 (a) S 1 2 3", "7 (a) S x x x x x x x x x x x x x x x x x x x x x x x"] {
            assert_eq!(Stat::parse(text), None, "{text}");
        }
    }

    #[test]
    fn this_process_has_begun_and_holds_something() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("it is later than 1970");
        let process = Process::read();
        assert!(process.start_seconds > 0.0 && process.start_seconds <= now.as_secs_f64() + 1.0, "{process:?}");
        assert!(process.threads >= 1 && process.open_fds >= 3, "{process:?}");
        assert!(process.resident_bytes > 1 << 20 && process.virtual_bytes >= process.resident_bytes, "{process:?}");
        assert!(process.fds_max.is_none_or(|max| max >= process.open_fds), "{process:?}");
        assert!(resident_bytes() > 1 << 20);
    }
}
