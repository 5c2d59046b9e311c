//! The client of one command.

use std::io;

use coppice_client::wire::NodeId;
use coppice_client::{Admin, Client, Config};

use super::args::{Cli, DEFAULT_ENDPOINTS};
use super::errors::Context;
use super::output::Output;

/// A client for the endpoints of a command line. It connects when it is first used.
pub fn connect(cli: &Cli) -> Client {
    Client::start(endpoints_of(cli), config_of(cli))
}

/// A client for questions about the cluster as a whole, at the same endpoints.
pub fn admin(cli: &Cli) -> Admin {
    Admin::new(endpoints_of(cli), config_of(cli))
}

/// How to ask: what the flags of every verb say of it.
pub fn config_of(cli: &Cli) -> Config {
    let global = &cli.global;
    let (token, tls) = (global.token.clone(), global.tls.clone());
    Config { timeout: global.timeout, fail_when_refused: true, token, tls, ..Config::default() }
}

/// Tells of nodes that were asked first and do not speak for the cluster, why, and who answered instead.
///
/// # Errors
/// That of stderr.
pub fn note_passed_over(admin: &Admin, output: &mut Output<'_>) -> io::Result<()> {
    note_passed_over_by(admin, |_| true, output)
}

/// The same; `is_member`: who is a node of the cluster, as the one that answered knows.
///
/// # Errors
/// That of stderr.
pub fn note_passed_over_by(
    admin: &Admin,
    is_member: impl Fn(NodeId) -> bool,
    output: &mut Output<'_>,
) -> io::Result<()> {
    let answered = admin.answered();
    for node in &answered.passed_over {
        let name = node.node.map_or_else(|| node.address.clone(), |id| format!("{id} at {}", node.address));
        let by = answered.by.map_or_else(|| "another node".to_owned(), |id| id.to_string());
        let removed = node.node.is_some_and(|id| !is_member(id));
        let told = node.node.and_then(|id| node.error.strip_prefix(&format!("{id} "))).unwrap_or(&node.error);
        let why = if removed { "was removed from the cluster" } else { told };
        output.note(&format!("{name} {why}; {by} answers instead"))?;
    }
    Ok(())
}

/// What messages need to know of a command line.
pub fn context_of(cli: &Cli, line: &[String]) -> Context {
    let endpoints = endpoints_of(cli);
    let default_endpoints = endpoints.join(",") == DEFAULT_ENDPOINTS;
    Context {
        verb: cli.verb.name(),
        line: line.get(1..).unwrap_or_default().to_vec(),
        timeout: cli.global.timeout,
        endpoints,
        default_endpoints,
        coding: cli.global.coding(),
        reverse: false,
        may_read_stdin: true,
    }
}

fn endpoints_of(cli: &Cli) -> Vec<String> {
    cli.global.endpoints.iter().map(ToString::to_string).collect()
}
