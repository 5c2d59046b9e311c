//! Bringing a demo up: directory, ports, processes, and one cluster of them.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::certs::Certs;
use super::home::{Home, HomeError, Manifest};
use super::nodes::{Death, Nodes, Progress};
use super::ports::{self, NodePorts};
use crate::cli::args::DemoArgs;
use crate::cli::{Exit, Failure, words};

/// Nodes of a demo that is not told otherwise.
const NODES: u32 = 3;
/// Partitions of a demo that is not told otherwise.
const PARTITIONS: u32 = 4;
/// Demos that start at the same moment look at the same ports; the second attempt of each takes any.
const ATTEMPTS: u32 = 2;
/// A node that has said nothing by then will not. On a busy machine it takes minutes to read a lot of data.
const START_TIMEOUT: Duration = Duration::from_secs(600);

/// Processes that run, and what they are.
#[derive(Debug)]
pub struct Started {
    /// The processes.
    pub nodes: Nodes,
    /// Where their data is.
    pub home: Home,
    /// Partitions that the cluster begins or began with.
    pub partitions: u32,
    /// Nodes that belong to no cluster yet, or have lost their data.
    pub waiting: Vec<u32>,
    /// The usual ports were taken.
    pub other_ports: bool,
    /// When the first process was started.
    pub since: Instant,
    /// Nodes that end unasked.
    pub deaths: mpsc::UnboundedReceiver<Death>,
}

/// Starts the processes and waits until each has spoken.
///
/// # Errors
/// In four lines; nothing is left running then.
pub async fn start(args: &DemoArgs) -> Result<Started, Failure> {
    let mut any_ports = false;
    for _ in 1..ATTEMPTS {
        match attempt(args, any_ports).await {
            // Somebody else took a port between our look and our node: another demo, most likely.
            Err(StartError::PortTaken(_)) => any_ports = true,
            Err(StartError::Other(failure)) => return Err(failure),
            Ok(started) => return Ok(started),
        }
    }
    attempt(args, any_ports).await.map_err(|error| match error {
        StartError::PortTaken(failure) | StartError::Other(failure) => failure,
    })
}

/// Why an attempt failed.
enum StartError {
    /// Perhaps a port that was free a moment ago; others may do.
    PortTaken(Failure),
    /// Everything else.
    Other(Failure),
}

impl From<Failure> for StartError {
    fn from(failure: Failure) -> Self {
        Self::Other(failure)
    }
}

async fn attempt(args: &DemoArgs, any_ports: bool) -> Result<Started, StartError> {
    let mut home = match &args.data_dir {
        Some(path) => Home::kept(path),
        None => Home::temporary(),
    }
    .map_err(|error| home_failure(&error))?;
    let resumed = home.found.clone();
    let (partitions, (ports, held)) = match &resumed {
        Some(found) => {
            same_as(args, found, &home)?;
            let ports = resumed_ports(found, &home)?;
            let held = ports::hold(&ports);
            (found.partitions, (ports, held))
        }
        None => {
            let nodes = args.nodes.unwrap_or(NODES);
            let chosen = if any_ports { ports::free(nodes) } else { ports::choose(nodes) };
            (args.partitions.unwrap_or(PARTITIONS), chosen.map_err(|error| system_failure(&error))?)
        }
    };
    let program = std::env::current_exe().map_err(|error| system_failure(&error))?;
    let (sender, deaths) = mpsc::unbounded_channel();
    let since = Instant::now();
    let tls = resumed.as_ref().map_or(args.tls, |found| found.tls);
    let count = u32::try_from(ports.len()).unwrap_or(u32::MAX);
    let certs = tls.then(|| Certs::of(&home.certs(), count, |_| Vec::new())).transpose();
    let certs = certs.map_err(|error| system_failure(&std::io::Error::other(error)))?;
    let mut nodes =
        Nodes::start(&program, &home, &ports, (held, certs), sender).map_err(|error| system_failure(&error))?;
    let spoken = all_spoken(&mut nodes, &home).await;
    // Written once all nodes have their ports: a directory whose nodes never ran is no demo's yet.
    let recorded = spoken.and_then(|waiting| {
        if resumed.is_none() {
            home.record(&Manifest { v: 1, partitions, ports: ports.clone(), tls })
                .map_err(|error| home_failure(&error))?;
        }
        Ok(waiting)
    });
    match recorded {
        Ok(waiting) => {
            let usual = (1..=nodes.count()).all(|number| nodes.ports(number) == NodePorts::usual(number));
            Ok(Started { nodes, home, partitions, waiting, other_ports: !usual, since, deaths })
        }
        Err(failure) => {
            nodes.end(false, Duration::ZERO).await;
            if home.temporary {
                super::home::remove(&home.path);
            }
            // Two demos that took each other's ports may both have ended by now: no port shows it.
            let taken = resumed.is_none() && !any_ports;
            Err(if taken { StartError::PortTaken(failure) } else { StartError::Other(failure) })
        }
    }
}

/// Waits for the first word of every node; those that wait for `init`.
async fn all_spoken(nodes: &mut Nodes, home: &Home) -> Result<Vec<u32>, Failure> {
    let mut waiting = Vec::new();
    for number in 1..=nodes.count() {
        let spoken = tokio::time::timeout(START_TIMEOUT, nodes.spoken(number)).await;
        match spoken {
            Ok((Progress::Ended(how), _)) => return Err(node_failure(number, &how, home)),
            Ok((Progress::Waiting, _)) => waiting.push(number),
            Ok(_) => {}
            Err(_) => return Err(node_failure(number, "it says nothing", home)),
        }
    }
    Ok(waiting)
}

/// A kept cluster is what it is: other numbers than its own are refused.
fn same_as(args: &DemoArgs, found: &Manifest, home: &Home) -> Result<(), Failure> {
    let count = u32::try_from(found.ports.len()).unwrap_or(u32::MAX);
    let wrong = [("--nodes", args.nodes, count), ("--partitions", args.partitions, found.partitions)]
        .into_iter()
        .find(|(_, asked, is)| asked.is_some_and(|asked| asked != *is));
    let directory = home.path.display().to_string();
    let sentence = match wrong {
        Some((flag, asked, is)) => {
            let asked = asked.unwrap_or_default();
            format!("demo: {flag} {asked} was asked for, and the cluster in this directory has {is}")
        }
        None if args.tls && !found.tls => {
            "demo: --tls was asked for, and the cluster in this directory has no certificates".to_owned()
        }
        None => return Ok(()),
    };
    Err(Failure {
        place: directory.clone(),
        ..Failure::usage(
            sentence,
            "a cluster that exists is resumed as it is",
            words::join(["coppice", "demo", "--data-dir", &directory]),
        )
    })
}

/// A kept cluster's nodes know each other by these ports.
fn resumed_ports(found: &Manifest, home: &Home) -> Result<Vec<NodePorts>, Failure> {
    match ports::first_taken(&found.ports) {
        None => Ok(found.ports.clone()),
        Some(port) => Err(Failure {
            exit: Exit::Failed,
            code: "listen",
            what: format!("demo: the cluster in {} needs port {port}, which is taken", home.path.display()),
            place: format!("127.0.0.1:{port}"),
            cause: "another process listens there, perhaps another demo".to_owned(),
            next: "coppice status".to_owned(),
        }),
    }
}

fn node_failure(number: u32, how: &str, home: &Home) -> Failure {
    Failure {
        exit: Exit::Failed,
        code: "node",
        what: format!("demo: n{number} did not start: {how}"),
        place: home.log(number).display().to_string(),
        cause: "its log tells more; without --data-dir it is removed with the demo".to_owned(),
        next: words::join(["coppice", "demo", "--data-dir", "demo-data"]),
    }
}

fn home_failure(error: &HomeError) -> Failure {
    let (path, cause) = match error {
        HomeError::Io { path, .. } => (path, "it may not be written, or its disk is full"),
        HomeError::InUse { path } => (path, "one demo at a time runs in a directory"),
        HomeError::Foreign { path } => (path, "a demo writes only into a directory of its own"),
        HomeError::Manifest { path, .. } => (path, "another version wrote it, or it was changed"),
    };
    Failure {
        exit: Exit::Failed,
        code: "data_dir",
        what: format!("demo: {error}"),
        place: path.display().to_string(),
        cause: cause.to_owned(),
        next: "coppice demo".to_owned(),
    }
}

fn system_failure(error: &std::io::Error) -> Failure {
    Failure {
        exit: Exit::Failed,
        code: "system",
        what: format!("demo: {error}"),
        place: "this machine".to_owned(),
        cause: "a limit of the system is reached".to_owned(),
        next: "coppice demo --nodes 1".to_owned(),
    }
}
