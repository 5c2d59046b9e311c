//! Which process may become a node, by what it says of itself (protocol.md 1.5).

use coppice_client::map::NodeState;
use coppice_client::wire::{NodeId, Reshaped};

use crate::machine::directory::{DirectoryState, Reshape};
use crate::question::Identified;

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

/// A process that is to become a node.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its peer port.
    pub address: String,
    /// The node whose place it takes.
    pub replaces: Option<NodeId>,
    /// It gets a number; else it is only looked at.
    pub registers: bool,
    /// What will be done.
    pub plan: Reshaped,
}

impl Candidate {
    /// Judges what it says of itself.
    pub fn judge(&self, state: &DirectoryState, applicant: Identified) -> Enlistment {
        let Candidate { address, replaces, registers, plan } = self;
        match applicant.identity {
            Some((cluster, node)) if cluster == state.map.cluster => {
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
                let answer = Reshaped { done: true, begun: true, steps, node: Some(node), left: 0, ..plan.clone() };
                Enlistment::Answer(Box::new(answer))
            }
            Some((cluster, node)) => Enlistment::Refused(format!("{address} is {node} of another cluster, {cluster}")),
            None if *registers => {
                let Identified { name, addresses, .. } = applicant;
                Enlistment::Register(Reshape::Register { name, addresses, replaces: *replaces })
            }
            None => Enlistment::Answer(Box::new(plan.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use coppice_client::map::PartitionMap;
    use coppice_client::wire::{ClusterId, MapVersion};

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
        let map = PartitionMap { cluster: ClusterId(1), ..PartitionMap::default() };
        let state = DirectoryState { map, ..DirectoryState::default() };
        let judge = |identity, registers| {
            let applicant = Identified { identity, name: "new".into(), ..Identified::default() };
            let candidate = Candidate { address: "here".into(), replaces: None, registers, plan: plan() };
            candidate.judge(&state, applicant)
        };
        let refused = |enlistment| matches!(enlistment, Enlistment::Refused(_));
        assert!(refused(judge(Some((ClusterId(2), NodeId(1))), true)), "of another cluster");
        assert!(refused(judge(Some((ClusterId(1), NodeId(9))), true)), "it has data, and is no member");
        assert!(matches!(judge(None, true), Enlistment::Register(_)));
        assert_eq!(judge(None, false), Enlistment::Answer(Box::new(plan())));
    }
}
