//! Why a node does not start, in four lines: above all what is to be done with a data directory that cannot be used.

use coppice_client::wire::NodeId;

use super::failure::{Exit, Failure};
use crate::checkpoint::CheckpointError;
use crate::config::NodeConfig;
use crate::datadir::DataDirError;
use crate::log::LogError;
use crate::log::record::BadRecord;
use crate::log::recovery::BadPlace;
use crate::log::segment::BadHeader;
use crate::node::{StartError, StorageError};

/// A cause, and the command that comes next.
type Advice = (&'static str, String);

const SHOW: &str = "coppice config show --origin";

/// The four lines of a node that does not start.
pub fn start_failure(error: &StartError, config: &NodeConfig) -> Failure {
    let directory = || format!("the data directory {}", config.data_dir.display());
    let (exit, code, place, (cause, next)) = match error {
        StartError::DataDir(error) => (Exit::Failed, "data_dir", directory(), data_dir(error, None, config)),
        StartError::Listen { address, .. } => (
            Exit::Failed,
            "listen",
            address.to_string(),
            (
                "another process listens there, or the address is not this machine's",
                "coppice status --local".to_owned(),
            ),
        ),
        StartError::Storage { node, error } => (Exit::Failed, "storage", directory(), storage(error, *node, config)),
        StartError::Thread(_) => {
            (Exit::Failed, "system", "this machine".to_owned(), ("a limit of the system is reached", SHOW.to_owned()))
        }
        StartError::Tls(_) => (
            Exit::Usage,
            "tls",
            "the settings tls.ca, tls.cert and tls.key".to_owned(),
            ("a file is missing, damaged, or belongs to another one", SHOW.to_owned()),
        ),
        StartError::Insecure { address } => (
            Exit::Usage,
            "config",
            address.to_string(),
            ("beyond loopback, without TLS, anybody could read and write", "coppice config default".to_owned()),
        ),
    };
    Failure { exit, code, what: format!("serve: {error}"), place, cause: cause.to_owned(), next }
}

fn storage(error: &StorageError, node: Option<NodeId>, config: &NodeConfig) -> Advice {
    match error {
        StorageError::DataDir(error) => data_dir(error, node, config),
        StorageError::Checkpoint(CheckpointError::Io { .. }) => system(),
        StorageError::Checkpoint(_) => lost(node, config),
        StorageError::CreateRequest(_) => other_version(),
        StorageError::StateLost { .. } => (
            "files were damaged or removed, and this was the only replica: only a copy of the directory helps",
            "coppice status".to_owned(),
        ),
    }
}

fn data_dir(error: &DataDirError, node: Option<NodeId>, config: &NodeConfig) -> Advice {
    match error {
        DataDirError::Locked { .. } => {
            ("another process uses it; one directory is one node", "coppice status --local".to_owned())
        }
        DataDirError::NotOurs { .. } => ("the setting `data_dir` names the wrong directory", SHOW.to_owned()),
        DataDirError::Version { .. } => other_version(),
        DataDirError::Headless { .. } => (
            "the file was deleted; to begin anew the whole directory has to be emptied, and `coppice node replace` gives \
             its replicas to another node",
            SHOW.to_owned(),
        ),
        DataDirError::Identity { .. } => ("the file was changed or damaged", SHOW.to_owned()),
        DataDirError::Taken(_) | DataDirError::Nobody => {
            ("the directory is not the one that this node had before", SHOW.to_owned())
        }
        DataDirError::Log(LogError::Damage(damage)) => match damage.reason {
            BadPlace::Header(BadHeader::Format { .. }) | BadPlace::Record(BadRecord::Unreadable { .. }) => {
                other_version()
            }
            BadPlace::Foreign { .. } => ("files of another node were copied into the directory", SHOW.to_owned()),
            BadPlace::Header(_) | BadPlace::Record(_) | BadPlace::File => lost(node, config),
        },
        DataDirError::Log(LogError::Older { .. }) => lost(node, config),
        DataDirError::Log(LogError::Io(_)) | DataDirError::Io { .. } => system(),
    }
}

fn system() -> Advice {
    ("the disk fails, it is full, or this user may not read and write there", SHOW.to_owned())
}

fn other_version() -> Advice {
    (
        "another version of this program wrote it, and nothing in it was changed: start that version with it, or this \
         one with an empty directory",
        "coppice --version".to_owned(),
    )
}

/// Something that was durable is gone, so this node must not vote; the others can rebuild its replicas.
fn lost(node: Option<NodeId>, config: &NodeConfig) -> Advice {
    let cause = "files were damaged or changed: this node must not vote with them; start it with an empty directory, \
                 and have the others rebuild it";
    let next = node.map_or_else(|| "coppice node ls".to_owned(), |node| config.replace_command(node));
    (cause, next)
}

#[cfg(test)]
mod tests {
    use std::io;

    use clap::Parser;
    use coppice_client::wire::PartitionId;
    use coppice_core::incarnation::Identity;
    use coppice_ordering::Instance;

    use super::*;
    use crate::cli::args::Cli;
    use crate::cli::words;
    use crate::datadir::ClusterId;
    use crate::log::{Damage, FileName};

    fn told(error: &StartError) -> Failure {
        let failure = start_failure(error, &NodeConfig::default());
        assert_eq!(failure.to_string().lines().count(), 4, "{failure}");
        let next = words::split(&failure.next).expect("words");
        if let Err(error) = Cli::try_parse_from(&next[0]) {
            let version = error.kind() == clap::error::ErrorKind::DisplayVersion;
            assert!(version, "{} is not understood: {error}", failure.next);
        }
        failure
    }

    fn log(reason: BadPlace) -> StartError {
        let file = FileName::Segment(3);
        let error = DataDirError::from(LogError::from(Damage { file, offset: 4_096, reason }));
        StartError::Storage { node: Some(NodeId(2)), error: error.into() }
    }

    #[test]
    fn a_log_of_another_format_is_not_called_damaged() {
        let failure = told(&log(BadHeader::Format { found: 2 }.into()));
        assert!(failure.what.contains("log format 2") && failure.what.contains("00000003.seg"), "{failure}");
        assert!(failure.cause.starts_with("another version of this program wrote it"), "{failure}");
        assert!(!failure.to_string().contains("were damaged"), "{failure}");
        assert_eq!(failure.next, "coppice --version");
    }

    #[test]
    fn a_damaged_log_is_answered_by_the_command_that_rebuilds_the_node() {
        for reason in [BadPlace::File, BadHeader::Short.into(), BadRecord::Checksum.into()] {
            let failure = told(&log(reason));
            assert!(failure.cause.contains("must not vote"), "{failure}");
            assert_eq!(failure.next, "coppice node replace n2 127.0.0.1:7402");
        }
    }

    #[test]
    fn every_reason_not_to_start_has_its_own_advice() {
        let path = || std::path::PathBuf::from("/var/lib/coppice");
        let identity = Identity { cluster: ClusterId(1), node: NodeId(1), incarnation: 1 };
        let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
        let directory = [
            (DataDirError::Locked { path: path(), pid: 7 }, "another process uses it"),
            (DataDirError::NotOurs { path: path(), name: "photos".to_owned() }, "names the wrong directory"),
            (DataDirError::Version { path: path(), found: "0".to_owned() }, "another version"),
            (DataDirError::Headless { path: path() }, "the whole directory has to be emptied"),
            (DataDirError::Identity { path: path(), reason: "no cluster".to_owned() }, "changed or damaged"),
            (DataDirError::Taken(identity), "not the one that this node had"),
            (DataDirError::Nobody, "not the one that this node had"),
            (LogError::Older { found: 1, known: 2 }.into(), "must not vote"),
            (LogError::Io(refused()).into(), "may not read and write"),
            (DataDirError::Io { path: path(), error: refused() }, "may not read and write"),
        ];
        for (error, cause) in directory {
            let failure = told(&StartError::DataDir(error));
            assert!(failure.cause.contains(cause), "{failure}");
        }
        let storage = [
            (StorageError::CreateRequest(PartitionId(3)), "another version"),
            (StorageError::StateLost { group: PartitionId(3), trimmed: Instance(7) }, "only replica"),
            (CheckpointError::Io { path: path(), error: refused() }.into(), "may not read and write"),
            (CheckpointError::Store { path: path(), error: "no".to_owned() }.into(), "must not vote"),
        ];
        for (error, cause) in storage {
            let failure = told(&StartError::Storage { node: None, error });
            assert!(failure.cause.contains(cause), "{failure}");
        }
        told(&StartError::Thread(refused()));
        let address = NodeConfig::default().listen.peer;
        told(&StartError::Listen { address: address.clone(), error: refused() });
        told(&StartError::Insecure { address });
    }
}
