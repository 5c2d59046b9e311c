//! etcd's side: three processes on loopback as its manual starts them, driven by its own benchmark tool.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::job::Job;
use super::tool::{self, ToolOutput};
use super::{Column, Round};
use crate::site::{self, Site, free_ports, shown};
use coppice_loadgen::metrics;
use coppice_loadgen::units::{print_count, significant};

/// The most keys that etcd is loaded with: more take it minutes, and fewer favour it.
const ENTRIES_MAX: u64 = 1_000_000;

/// Puts in one transaction of the load: the most that a server takes (`--max-txn-ops`).
const LOAD_PUTS: u64 = 128;

/// Three processes elect a leader within two seconds; a loaded machine needs longer.
const READY_LIMIT: Duration = Duration::from_secs(40);

/// A load takes 20 s on two idle cores.
const LOAD_LIMIT: Duration = Duration::from_secs(600);

/// The one key of the gets, the same in base64.
const GET_KEY: (&str, &str) = ("coppice0", "Y29wcGljZTA=");

/// The programs of etcd that a comparison needs.
#[derive(Clone, Debug)]
pub struct Programs {
    server: Option<PathBuf>,
    tool: Option<PathBuf>,
}

/// A cluster that runs.
struct Cluster<'a> {
    tool: &'a Path,
    endpoints: String,
    entries: u64,
    site: &'a Site,
    round: &'a Round<'a>,
}

impl Programs {
    /// Those given, else those in PATH. The tool's name there, `benchmark`, may be anybody's: it is asked who it is.
    pub fn find(server: Option<&Path>, tool: Option<&Path>) -> Programs {
        let in_path = || {
            let tool = site::in_path(&["etcd-benchmark", "benchmark"])?;
            site::printed(&tool, "--help").contains("etcd").then_some(tool)
        };
        Programs {
            server: server.map(Path::to_owned).or_else(|| site::in_path(&["etcd"])),
            tool: tool.map(Path::to_owned).or_else(in_path),
        }
    }

    /// Its column before anything is measured.
    pub fn column(&self) -> Column {
        let missing = match (&self.server, &self.tool) {
            (None, _) => Some("not installed: apt install etcd-server"),
            (_, None) => Some(
                "its benchmark tool is not there: go build ./tools/benchmark in its sources, --etcd-benchmark PATH",
            ),
            _ => None,
        };
        Column {
            version: self.server.as_deref().map_or(String::new(), |p| version(&site::printed(p, "--version"))),
            cluster: "3 processes".to_owned(),
            durability: "fsync on a majority before the answer".to_owned(),
            missing: missing.map(str::to_owned),
            notes: vec![
                "its client sends single puts: the packed row repeats the row below it".to_owned(),
                "its tool asks for one range and one key again and again, where coppice-load draws them".to_owned(),
                "its tool is a heavier program than coppice-load and takes more of the processors from it".to_owned(),
                "it keeps the older versions of a key, which the others do not offer".to_owned(),
            ],
            ..Column::new("etcd")
        }
    }

    /// Starts the cluster and carries all jobs out.
    ///
    /// # Errors
    /// In words: it does not start, or the tool fails.
    pub fn run(&self, site: &Site, round: &Round, column: &mut Column) -> Result<(), String> {
        let (Some(server), Some(tool)) = (&self.server, &self.tool) else { return Ok(()) };
        let clients = start(server, site, round, column)?;
        let endpoints = clients.join(",");
        let cluster = Cluster { tool, endpoints, entries: round.entries.min(ENTRIES_MAX), site, round };
        cluster.load(column)?;
        for job in [Job::UnloadedPut, Job::SinglePuts, Job::Ranges, Job::Gets] {
            cluster.measure(job, column)?;
        }
        column.repeat_single_as_packed();
        Ok(())
    }
}

/// Starts three processes and waits until they take a put; returns their client addresses.
fn start(server: &Path, site: &Site, round: &Round, column: &mut Column) -> Result<Vec<String>, String> {
    let ports = free_ports(6)?;
    let address = |at: usize| format!("127.0.0.1:{}", ports[at]);
    let peers: Vec<String> = (0..3).map(|n| format!("n{n}=http://{}", address(n))).collect();
    let mut nodes = Vec::new();
    for n in 0..3 {
        let (name, peer, client) = (format!("n{n}"), format!("http://{}", address(n)), address(n + 3));
        let client = format!("http://{client}");
        let mut command = Command::new(server);
        command.arg("--name").arg(&name).arg("--data-dir").arg(site.path(&format!("etcd-{name}")));
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--initial-cluster", &peers.join(","), "--initial-cluster-state", "new"]);
        // The default quota of 2 GiB ends long runs; it has no part in speed.
        command.args(["--quota-backend-bytes", "8589934592", "--logger", "zap", "--log-level", "error"]);
        column.commands.push(shown(&command));
        round.say(&shown(&command));
        nodes.push((format!("etcd-{name}"), site.start(&format!("etcd-{name}"), command)?));
    }
    let body = format!(r#"{{"key":"{0}","value":"{0}"}}"#, GET_KEY.1);
    site.wait(&nodes, READY_LIMIT, || metrics::post(&address(3), "/v3/kv/put", &body).is_ok())?;
    Ok((3..6).map(address).collect())
}

impl Cluster<'_> {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.tool);
        command.args(words).args(["--endpoints", &self.endpoints]);
        command
    }

    /// The tool's keys of the numbers below `entries`, in transactions.
    fn load(&self, column: &mut Column) -> Result<(), String> {
        let total = self.entries.div_ceil(LOAD_PUTS);
        let mut command = self.command(&["txn-put", "--target-leader", "--conns", "8", "--clients", "32"]);
        command.args(["--key-size", "8", "--val-size", "8", "--key-space-size", &self.entries.to_string()]);
        command.args(["--txn-ops", &LOAD_PUTS.to_string(), "--total", &total.to_string()]);
        self.round.say(&shown(&command));
        let line = shown(&command);
        let printed = ToolOutput::parse(&self.site.run("etcd-load", command, LOAD_LIMIT)?)?;
        if printed.errors > 0 {
            return Err(format!("{} transactions of the load failed", print_count(printed.errors)));
        }
        column.entries = self.entries;
        column.commands.push(format!("{line}  # {} s", significant(printed.total_s)));
        Ok(())
    }

    /// The tool runs a number of requests, not a time: it grows until a run is long enough to tell the number.
    fn measure(&self, job: Job, column: &mut Column) -> Result<(), String> {
        let seconds = self.round.duration.as_secs_f64();
        let began = Instant::now();
        let mut total = u64::from(job.clients()) * 2 + 100;
        loop {
            let (printed, _) = self.run(job, total)?;
            total = ((printed.per_second * seconds) as u64).clamp(100, total.saturating_mul(8));
            if printed.total_s >= seconds / 5.0 || began.elapsed() >= self.round.duration {
                break;
            }
        }
        let (printed, command) = self.run(job, total)?;
        if printed.errors > 0 {
            column.notes.push(format!("{}: {} requests failed", job.title(), print_count(printed.errors)));
        }
        self.round.say(&command);
        column.commands.push(command.clone());
        column.jobs.insert(job, printed.measured(command));
        Ok(())
    }

    fn run(&self, job: Job, total: u64) -> Result<(ToolOutput, String), String> {
        let mut command = match job {
            Job::Ranges => {
                let (low, high) = tool::range(self.entries, 1_000);
                let mut command = self.command(&["range"]);
                command.arg(OsString::from_vec(low)).arg(OsString::from_vec(high));
                command
            }
            Job::Gets => self.command(&["range", GET_KEY.0]),
            Job::UnloadedPut | Job::PackedPuts | Job::SinglePuts => self.command(&["put"]),
        };
        command.args(tool::arguments(job, total, self.entries));
        let limit = self.round.duration * 8 + Duration::from_secs(60);
        let line = shown(&command);
        Ok((ToolOutput::parse(&self.site.run("etcd-benchmark", command, limit)?)?, line))
    }
}

/// `etcd Version: 3.5.17`, on the first line.
fn version(printed: &str) -> String {
    let line = printed.lines().find_map(|line| line.strip_prefix("etcd Version:"));
    line.map_or("unknown", str::trim).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read() {
        let printed = "etcd Version: 3.4.23\nGit SHA: Not provided (use ./build instead of go build)\nGo Version: \
                       go1.19.8\nGo OS/Arch: linux/amd64\n";
        assert_eq!(version(printed), "3.4.23");
        assert_eq!(version("no such file"), "unknown");
    }

    #[test]
    fn what_is_missing_is_told_with_the_way_to_get_it() {
        let column = Programs { server: None, tool: None }.column();
        assert!(column.missing.is_some_and(|text| text.contains("apt install etcd-server")));
        let column = Programs { server: Some("/nonexistent/etcd".into()), tool: None }.column();
        assert!(column.missing.is_some_and(|text| text.contains("--etcd-benchmark")));
    }
}
