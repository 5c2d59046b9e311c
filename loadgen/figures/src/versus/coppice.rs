//! Coppice's side: the cluster that `coppice demo` makes, as anybody can.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::job::Job;
use super::{Column, Round, generator};
use crate::site::{self, Site, shown};

/// Three processes that have no data form a cluster within a second; a loaded machine needs longer.
const READY_LIMIT: Duration = Duration::from_secs(40);

/// The program beside this one, else in PATH.
pub fn program() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.join("coppice")));
    beside.filter(|program| program.is_file()).or_else(|| site::in_path(&["coppice"]))
}

/// `coppice 0.1.0`.
pub fn version(printed: &str) -> String {
    printed.strip_prefix("coppice ").map_or("unknown", str::trim).to_owned()
}

/// Its column before anything is measured.
pub fn column(program: &Path, partitions: u32) -> Column {
    let parts = if partitions == 1 { "1 partition".to_owned() } else { format!("{partitions} partitions") };
    Column {
        version: version(&site::printed(program, "--version")),
        cluster: format!("3 processes, {parts}"),
        notes: vec!["its demo measures itself meanwhile: 50 small requests per second and partition".to_owned()],
        ..Column::new("coppice")
    }
}

/// Starts the cluster and carries all jobs out.
///
/// # Errors
/// In words: it does not start or does not answer.
pub fn run(program: &Path, partitions: u32, site: &Site, round: &Round, column: &mut Column) -> Result<(), String> {
    let mut command = Command::new(program);
    command.args(["demo", "--no-prompt", "--nodes", "3", "--partitions", &partitions.to_string()]);
    // The demo's own directory is in ours then: on the disk that was asked for, and removed in any case.
    command.env("TMPDIR", site.path(""));
    column.commands.push(shown(&command));
    round.say(&shown(&command));
    let demo = site.start("coppice", command)?;
    site.wait(&[("coppice".to_owned(), demo)], READY_LIMIT, || site.said(demo).contains("\nready in "))?;
    let endpoints = endpoints(&site.said(demo));
    if endpoints.is_empty() {
        return Err(format!("the demo named no node: {}", site.last_words(demo)));
    }
    let place = format!(" --endpoints {}", endpoints.join(","));
    let flush = generator::load(round, column, &place)?;
    column.durability = format!("{flush} on a majority before the answer");
    for job in Job::ALL {
        generator::measure(round, column, job, job.flags(), &place)?;
    }
    Ok(())
}

/// The client addresses in the demo's opening lines.
fn endpoints(said: &str) -> Vec<String> {
    let node = |line: &str| line.split_whitespace().skip_while(|word| *word != "client").nth(1).map(str::to_owned);
    let nodes = said.lines().filter(|line| line.starts_with("  n"));
    nodes.filter_map(node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_are_read_from_the_demos_opening() {
        let said = "coppice 0.1.0 demo: 3 nodes, 1 partition x 3 replicas, flush fdatasync\n  n1  client \
                    127.0.0.1:7400  admin :7403  pid 40112\n  n2  client 127.0.0.1:34711  admin :7413  pid 40113\n\
                    ready in 312 ms; data in a temporary directory\nnext: coppice put apple red\n";
        assert_eq!(endpoints(said), ["127.0.0.1:7400", "127.0.0.1:34711"]);
        assert_eq!(endpoints("error: demo: no free port\n"), [""; 0]);
        assert_eq!([version("coppice 0.1.0\n"), version("")], ["0.1.0", "unknown"]);
    }
}
