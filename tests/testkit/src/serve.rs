//! The command line of a node: `coppice serve`, for clusters of this machine.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

/// What a node says once it runs and has no cluster: the beginning of its line on stdout.
pub const WAITING: &str = "waiting for init";
/// What it says once it serves.
pub const READY: &str = "ready";

/// Variables of the caller's environment that reach nodes; they have all other settings from their flags.
const VARIABLES_KEPT: [&str; 2] = ["COPPICE_LOG", "COPPICE_MUTANT"];

/// A node: where it keeps its data and where it listens.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its name: `n1`.
    pub name: String,
    /// Its data directory.
    pub data: PathBuf,
    /// For clients.
    pub native: SocketAddr,
    /// For other nodes.
    pub peer: SocketAddr,
    /// For health, metrics and status over HTTP; none: off.
    pub admin: Option<SocketAddr>,
}

/// Adds the words of `coppice serve` to a command that names the program. The node ends with this process, and reads no
/// file and no variable of the user's.
pub fn serve(command: &mut Command, place: &Place, seeds: &[SocketAddr]) {
    let seeds: Vec<String> = seeds.iter().map(SocketAddr::to_string).collect();
    let admin = place.admin.map_or_else(|| "off".to_owned(), |address| address.to_string());
    command
        .args(["serve", "--config", "/dev/null", "--end-with", &std::process::id().to_string()])
        .args(["--name", &place.name, "--seeds", &seeds.join(",")])
        .arg("--data-dir")
        .arg(&place.data)
        .args(["--listen-native", &place.native.to_string(), "--listen-peer", &place.peer.to_string()])
        .args(["--listen-admin", &admin]);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("COPPICE_") && !VARIABLES_KEPT.contains(&name)) {
            command.env_remove(name);
        }
    }
}
