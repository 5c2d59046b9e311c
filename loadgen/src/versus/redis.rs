//! Redis' side: one process, driven by the same generator as Coppice.

use super::job::Job;
use super::processes::{self, Site, free_ports, shown};
use super::{Column, Round, generator};
use crate::target::resp;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A process without data answers within a second.
const READY_LIMIT: Duration = Duration::from_secs(20);

/// The program given, else that in PATH.
pub fn program(given: Option<&Path>) -> Option<PathBuf> {
    given.map(Path::to_owned).or_else(|| processes::in_path(&["redis-server"]))
}

/// Its column before anything is measured.
pub fn column(program: Option<&Path>) -> Column {
    Column {
        version: program.map_or(String::new(), |p| version(&processes::printed(p, "--version"))),
        cluster: "1 process".to_owned(),
        durability: "appendonly, appendfsync always".to_owned(),
        missing: program.is_none().then(|| "not installed: apt install redis-server".to_owned()),
        notes: vec![
            "it is one copy: the loss of its machine loses the data".to_owned(),
            "its plain keys have no order: no ranges".to_owned(),
        ],
        ..Column::new("redis")
    }
}

/// Starts the process and carries all jobs out.
///
/// # Errors
/// In words: it does not start or does not answer.
pub fn run(program: &Path, site: &Site, round: &Round, column: &mut Column) -> Result<(), String> {
    let address = start(program, site, round, column)?;
    let place = format!(" --target resp --endpoints {address}");
    column.durability = generator::load(round, column, &place)? + " before the answer";
    for job in [Job::UnloadedPut, Job::PackedPuts, Job::SinglePuts, Job::Gets] {
        generator::measure(round, column, job, &place)?;
    }
    Ok(())
}

/// Starts one process and returns its address.
fn start(program: &Path, site: &Site, round: &Round, column: &mut Column) -> Result<String, String> {
    let port = free_ports(1)?[0];
    let name = format!("redis-{port}");
    let directory = site.path(&name);
    std::fs::create_dir(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    let mut command = Command::new(program);
    command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--dir"]).arg(directory);
    // No snapshots beside the file of appended commands: they are no part of the comparison.
    command.args(["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--daemonize", "no"]);
    column.commands.push(shown(&command));
    round.say(&shown(&command));
    let process = (name.clone(), site.start(&name, &mut command)?);
    let address = format!("127.0.0.1:{port}");
    site.wait(&[process], READY_LIMIT, || resp::ask(&address, &["PING"]).is_ok())?;
    Ok(address)
}

/// `Redis server v=7.0.15 sha=..`.
fn version(printed: &str) -> String {
    let word = printed.split_whitespace().find_map(|word| word.strip_prefix("v="));
    word.unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read() {
        let printed = "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=ae4d7c971a948f0\n";
        assert_eq!(version(printed), "7.0.15");
        assert_eq!(version(""), "unknown");
    }

    #[test]
    fn a_missing_server_is_a_row() {
        assert!(column(None).missing.is_some_and(|text| text.contains("apt install redis-server")));
    }
}
