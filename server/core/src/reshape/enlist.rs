//! Which process may become a node, by what it says of itself (protocol.md 1.5).

use coppice_client::map::{Addresses, NodeState};
use coppice_client::wire::{ClusterId, NodeId, Reshaped};

use crate::machine::directory::{DirectoryState, Reshape};

/// What the process at an address says of itself.
#[derive(Clone, Debug)]
pub struct Applicant {
    /// The node that it is already; none: it waits for a number.
    pub identity: Option<(ClusterId, NodeId)>,
    /// Its label.
    pub name: String,
    /// Where it serves.
    pub addresses: Addresses,
}

/// What comes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enlistment {
    /// It cannot become a node, for this reason.
    Refused(String),
    /// Nothing is to be done, and this is the answer.
    Answer(Box<Reshaped>),
    /// The directory is to decide this.
    Register(Reshape),
}

/// Judges the process at `address`, which is to become a node of cluster `own`, perhaps in the place of another one.
/// Without `registers` it is only looked at.
pub fn enlist(
    state: &DirectoryState,
    own: Option<ClusterId>,
    address: &str,
    applicant: Applicant,
    (replaces, registers): (Option<NodeId>, bool),
    plan: Reshaped,
) -> Enlistment {
    match applicant.identity {
        Some((cluster, node)) if Some(cluster) == own => {
            let known = state.map.node(node).map(|row| row.state);
            if known == Some(NodeState::Removed) {
                return Enlistment::Refused(format!(
                    "{address} is {node}, which was removed: stop it, empty its data directory and start it again"
                ));
            }
            if replaces.is_some() || known != Some(NodeState::Member) {
                return Enlistment::Refused(format!("{address} is {node} of this cluster, with its data"));
            }
            let steps = vec![format!("{node} is a node of this cluster")];
            let answer = Reshaped { done: true, begun: true, steps, node: Some(node), left: 0, ..plan };
            Enlistment::Answer(Box::new(answer))
        }
        Some((cluster, node)) => Enlistment::Refused(format!("{address} is {node} of another cluster, {cluster}")),
        None if registers => {
            let Applicant { name, addresses, .. } = applicant;
            Enlistment::Register(Reshape::Register { name, addresses, replaces })
        }
        None => Enlistment::Answer(Box::new(plan)),
    }
}

#[cfg(test)]
mod tests {
    use coppice_client::wire::MapVersion;

    use super::*;

    fn plan() -> Reshaped {
        Reshaped {
            done: false,
            begun: false,
            steps: Vec::new(),
            left: 0,
            partition: None,
            node: None,
            cut: None,
            map_version: MapVersion(0),
        }
    }

    #[test]
    fn only_an_empty_process_becomes_a_node() {
        let state = DirectoryState::default();
        let judge = |identity, registers| {
            let applicant = Applicant { identity, name: "new".into(), addresses: Addresses::default() };
            enlist(&state, Some(ClusterId(1)), "here", applicant, (None, registers), plan())
        };
        let refused = |enlistment| matches!(enlistment, Enlistment::Refused(_));
        assert!(refused(judge(Some((ClusterId(2), NodeId(1))), true)), "of another cluster");
        assert!(refused(judge(Some((ClusterId(1), NodeId(9))), true)), "it has data, and is no member");
        assert!(matches!(judge(None, true), Enlistment::Register(_)));
        assert_eq!(judge(None, false), Enlistment::Answer(Box::new(plan())));
    }
}
