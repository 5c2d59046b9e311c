//! Redis' side: one process, and one with two replicas and WAIT, driven by the same generator as Coppice.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::job::Job;
use super::{Column, Round, generator};
use crate::site::{self, Site, free_ports, shown};
use coppice_loadgen::target::resp;

/// A process without data answers within a second.
const READY_LIMIT: Duration = Duration::from_secs(20);

/// The program given, else that in PATH.
pub fn program(given: Option<&Path>) -> Option<PathBuf> {
    given.map(Path::to_owned).or_else(|| site::in_path(&["redis-server"]))
}

/// Its column before anything is measured, alone or with `replicas`.
pub fn column(program: Option<&Path>, replicas: bool) -> Column {
    let notes: &[&str] = match replicas {
        false => &["it is one copy: the loss of its machine loses the data"],
        true => &[
            "it replicates without agreement: nobody is elected when the first process is lost, and an answered write \
             can be lost with it",
            "WAIT holds up its connection: 1000 clients share 500; the packed row repeats the row below it",
        ],
    };
    let mut notes: Vec<String> = notes.iter().map(|&note| note.to_owned()).collect();
    notes.push("its plain keys have no order: no ranges".to_owned());
    Column {
        version: program.map_or(String::new(), |p| version(&site::printed(p, "--version"))),
        cluster: if replicas { "3 processes" } else { "1 process" }.to_owned(),
        durability: "appendonly, appendfsync always".to_owned(),
        missing: program.is_none().then(|| "not installed: apt install redis-server".to_owned()),
        notes,
        ..Column::new(if replicas { "redis, WAIT" } else { "redis" })
    }
}

/// Starts the process and carries all jobs out.
///
/// # Errors
/// In words: it does not start or does not answer.
pub fn run(program: &Path, site: &Site, round: &Round, column: &mut Column) -> Result<(), String> {
    let address = start(program, None, site, round, column)?;
    let place = format!(" --target resp --endpoints {address}");
    column.durability = generator::load(round, column, &place)? + " before the answer";
    for job in [Job::UnloadedPut, Job::PackedPuts, Job::SinglePuts, Job::Gets] {
        generator::measure(round, column, job, job.flags(), &place)?;
    }
    Ok(())
}

/// Starts three processes, two of which follow the first, and carries the puts out: a read does not wait for anybody.
///
/// # Errors
/// In words: they do not start, do not follow, or do not answer.
pub fn run_replicated(program: &Path, site: &Site, round: &Round, column: &mut Column) -> Result<(), String> {
    let first = start(program, None, site, round, column)?;
    for _ in 0..2 {
        start(program, Some(&first), site, round, column)?;
    }
    site.wait(&[], READY_LIMIT, || resp::ask(&first, &["WAIT", "2", "100"]).is_ok_and(|reply| reply.trim() == ":2"))?;
    let place = format!(" --target resp --endpoints {first}");
    column.durability = generator::load(round, column, &place)?
        + " on the first, and one of two replicas has it (WAIT 1; its flush is not promised)";
    let place = format!(" --wait-replicas 1{place}");
    generator::measure(round, column, Job::UnloadedPut, Job::UnloadedPut.flags(), &place)?;
    let flags = "--workload put --clients 1000 --connections 500";
    generator::measure(round, column, Job::SinglePuts, flags, &place)?;
    column.repeat_single_as_packed();
    Ok(())
}

/// Starts one process, alone or following another, and returns its address.
fn start(
    program: &Path,
    follows: Option<&str>,
    site: &Site,
    round: &Round,
    column: &mut Column,
) -> Result<String, String> {
    let port = free_ports(1)?[0];
    let name = format!("redis-{port}");
    let directory = site.path(&name);
    std::fs::create_dir(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    let mut command = Command::new(program);
    command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--dir"]).arg(directory);
    // No snapshots beside the file of appended commands: they are no part of the comparison.
    command.args(["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--daemonize", "no"]);
    if let Some((host, port)) = follows.and_then(|address| address.split_once(':')) {
        command.args(["--replicaof", host, port]);
    }
    // Replicas are copied to at once, not after the five seconds in which more of them might come.
    command.args(["--repl-diskless-sync-delay", "0"]);
    column.commands.push(shown(&command));
    round.say(&shown(&command));
    let process = (name.clone(), site.start(&name, command)?);
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
        assert!(column(None, true).missing.is_some_and(|text| text.contains("apt install redis-server")));
    }
}
