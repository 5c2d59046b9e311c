//! `node.toml`: which node of which cluster a directory belongs to, and how often it was started.

use std::path::Path;
use std::{fs, io};

use coppice_client::wire::{ClusterId, NodeId};
use coppice_core::incarnation::Identity;
use serde::Deserialize;

use super::DataDirError;

#[derive(Deserialize)]
struct NodeToml {
    cluster: String,
    node: u32,
    incarnation: u64,
}

/// The content of `node.toml`.
pub(super) fn print(identity: Identity) -> String {
    let Identity { cluster, node, incarnation } = identity;
    format!(
        "# Written by coppice. A copy of this directory must never run beside it, or after it.\n\
         cluster = \"{cluster}\"\nnode = {}\nincarnation = {incarnation}\n",
        node.0
    )
}

/// Reads `node.toml`; `None` if there is none.
pub(super) fn read(path: &Path) -> Result<Option<Identity>, DataDirError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(DataDirError::Io { path: path.to_owned(), error }),
    };
    let refuse = |reason: String| DataDirError::Identity { path: path.to_owned(), reason };
    let read: NodeToml = toml::from_str(&text).map_err(|error| refuse(error.message().to_owned()))?;
    let cluster = Some(&read.cluster).filter(|text| text.len() == 32);
    let cluster = cluster.and_then(|text| text.parse().ok());
    let cluster: ClusterId = cluster.ok_or_else(|| refuse("cluster is no id of 32 hexadecimal digits".to_owned()))?;
    if read.node == 0 || read.incarnation == 0 {
        return Err(refuse("node and incarnation count from 1".to_owned()));
    }
    let node = NodeId(read.node);
    Ok(Some(Identity { cluster, node, incarnation: read.incarnation }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_reads_back() {
        let identity = Identity { cluster: ClusterId(0xab << 90), node: NodeId(7), incarnation: u64::MAX >> 1 };
        let file = std::env::temp_dir().join(format!("coppice-node-{}.toml", std::process::id()));
        fs::write(&file, print(identity)).expect("written");
        assert_eq!(read(&file).expect("good"), Some(identity));
        for bad in ["", "cluster = \"12\"\nnode = 1\nincarnation = 1", "node = 1", "cluster = 3"] {
            fs::write(&file, bad).expect("written");
            assert!(matches!(read(&file), Err(DataDirError::Identity { .. })), "{bad}");
        }
        fs::remove_file(&file).expect("removed");
        assert!(read(&file).expect("absent").is_none());
    }
}
