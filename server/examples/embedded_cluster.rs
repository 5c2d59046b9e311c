//! A cluster of three nodes inside one process: for tests of programs that use Coppice. Real sockets, files, flushes.
//!
//! `cargo run -p coppice-server --example embedded_cluster`

use std::error::Error;
use std::path::Path;

use coppice_client::blocking::Client;
use coppice_server::local::{Cluster, LocalOptions};

/// What the example does, with its files in `directory`, which must exist.
///
/// # Errors
/// Those of the cluster and of the client.
pub fn run(directory: &Path) -> Result<(), Box<dyn Error>> {
    let cluster = Cluster::start_local(&LocalOptions { partitions: 2, ..LocalOptions::new(directory) })?;
    let client = Client::connect(cluster.endpoints().iter().map(ToString::to_string))?;
    client.put("apple", "red")?;
    assert_eq!(client.get("apple")?.output.as_deref(), Some(&b"red"[..]));
    // Dropping the cluster stops its nodes; the directory stays.
    Ok(())
}

/// Runs the example.
pub fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::temp_dir().join(format!("coppice-embedded-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let ran = run(&directory);
    std::fs::remove_dir_all(&directory)?;
    ran
}
