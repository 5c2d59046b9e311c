//! Rare questions of one node to another, their answers, and who may ask what.

use std::collections::BTreeMap;

use coppice_client::map::{Addresses, Entry, PartitionMap};
use coppice_client::wire::{AdminReply, AdminRequest, ClusterId, NodeId, PartitionId, Relay, ReplicaId};
use coppice_ordering::Configuration;
use serde::{Deserialize, Serialize};

use crate::access::Users;
use crate::bounds;
use crate::handshake::{self, Presence, Purpose};
use crate::machine::directory::{DirectoryCommand, DirectoryReply};
use crate::status::LocalStatus;
use crate::status::live::LiveReport;

/// A question of one node to another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Question {
    /// Who are you, and where do you serve?
    Identify,
    /// Become this node of this cluster (operations.md 1.2).
    Assign(Assignment),
    /// Your map.
    Map,
    /// What you know of yourself.
    Status,
    /// A verb that this node cannot carry out itself.
    Admin(AdminRequest),
    /// Hand over what you lead.
    Transfer {
        partition: PartitionId,
        /// To which node.
        to: NodeId,
        /// Past it the old leader goes on.
        deadline_ms: u32,
    },
    /// A change for the directory, which you lead.
    Directory(DirectoryCommand),
    /// A newer map, and the cluster's settings and users.
    Adopt {
        map: PartitionMap,
        /// Settings that differ from their defaults.
        settings: BTreeMap<String, String>,
        /// Who may do what.
        users: Users,
    },
    /// The key that cuts a partition here into two halves.
    Median {
        partition: PartitionId,
        /// Of its newest writes; else of its keys.
        by_load: bool,
    },
    /// Propose this configuration of a group that you lead, if the one decided at `expected` is in force.
    Configure {
        partition: PartitionId,
        /// Another one in force: do nothing.
        expected: u64,
        /// Who replicates from then on.
        configuration: Configuration,
    },
    /// Can you write what this feature level brings? If it is to be noted, your directory is for programs that know
    /// the level from then on.
    FeatureLevel { level: u32, note: bool },
    /// What you know of yourself, and your samples after that one: for the page. Nodes below [`LIVE_LEVEL`] cannot read
    /// it.
    Live { after: u64 },
}

/// The feature level of a cluster in which every node answers [`Question::Live`].
pub const LIVE_LEVEL: u32 = 2;

/// Most replicas of the directory in an [`Assignment`]: more than a group has voters.
const DIRECTORY_MAX: usize = 64;

/// Who asks, as the connection proved.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// What the connection is for: a question of this cluster's, or one of forming.
    pub purpose: Purpose,
    /// The process; none: it belongs to no cluster yet.
    pub from: Option<Presence>,
}

/// Why a question is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuestionRefusal {
    /// In words, for the asker.
    pub text: String,
    /// The node asks for the newest map: whoever the asker is, there may be a newer one.
    pub asks_for_map: bool,
}

impl Asker {
    /// Whether the node `own`, which knows `map`, answers this: only to who may ask it, and within bounds.
    ///
    /// # Errors
    /// Why not.
    pub fn judge(
        &self,
        question: &Question,
        own: Option<&Presence>,
        map: &PartitionMap,
    ) -> Result<(), QuestionRefusal> {
        let within = || if let Question::Directory(command) = question { bounds::directory(command) } else { Ok(()) };
        self.may_ask(question, own, map).and_then(|()| within()).map_err(|text| {
            let asks_for_map = matches!(question, Question::Adopt { map: newer, .. } if newer.version > map.version);
            QuestionRefusal { text, asks_for_map }
        })
    }

    /// What changes something is for nodes of the map.
    fn may_ask(&self, question: &Question, own: Option<&Presence>, map: &PartitionMap) -> Result<(), String> {
        let no = |text: &str| Err(text.to_owned());
        match (self.purpose, question) {
            (Purpose::Forming, Question::Identify) => Ok(()),
            (Purpose::Forming, Question::Admin(verb)) if verb.properties().relay == Relay::Forming => Ok(()),
            (Purpose::Forming, Question::Assign(assignment)) => match (self.from, own) {
                (Some(from), _) if from.cluster != assignment.cluster => no("you do not belong to that cluster"),
                // Each entry is a link here.
                _ if assignment.directory.len() > DIRECTORY_MAX => no("the directory has too many replicas"),
                (_, Some(own)) if own.cluster != assignment.cluster || own.node != assignment.node => {
                    Err(format!("this is {} of cluster {} already", own.node, own.cluster))
                }
                (Some(_), _) => Ok(()),
                (None, _) => no("you belong to no cluster"),
            },
            (Purpose::Question, Question::Identify | Question::Map | Question::Status | Question::Live { .. }) => {
                Ok(())
            }
            (Purpose::Question, Question::Adopt { map: newer, .. }) => {
                let (Some(from), Some(own)) = (self.from, own) else { return no("you belong to no cluster") };
                if newer.cluster != own.cluster && !mutant!(foreign_map_believed) {
                    return Err(format!("the map is of cluster {}, this node of {}", newer.cluster, own.cluster));
                }
                // A newer map says who leads the directory by now. It cannot vouch for a node that is not in the one
                // known here: without TLS whoever knows the cluster's id can make one that names the sender. Such a map
                // is a hint to ask for it (`ask_for_the_map` of the control thread).
                if !mutant!(newer_map_vouches) {
                    handshake::standing(from.node, map)?;
                }
                directs(from.node, map).or_else(|_| directs(from.node, newer))
            }
            (Purpose::Question, Question::Median { .. } | Question::Configure { .. }) => match self.from {
                Some(from) => directs(from.node, map),
                None => no("you belong to no cluster"),
            },
            (Purpose::Question, Question::Admin(verb)) if verb.properties().relay != Relay::Members => {
                no("nodes do not pass this verb on")
            }
            (
                Purpose::Question,
                Question::Directory(_) | Question::Transfer { .. } | Question::Admin(_) | Question::FeatureLevel { .. },
            ) => match self.from {
                Some(from) => handshake::standing(from.node, map),
                None => no("you belong to no cluster"),
            },
            _ => no("that is nothing that a node asks of another one"),
        }
    }
}

/// Whether `node` may lead the directory, by this map: whoever does says how the cluster changes.
fn directs(node: NodeId, map: &PartitionMap) -> Result<(), String> {
    handshake::standing(node, map)?;
    let lives = |entry: &Entry| entry.replica_on(node).is_some();
    match map.version.0 == 0 || map.directory.as_ref().is_some_and(lives) {
        true => Ok(()),
        false => Err(format!("{node} has no replica of the directory")),
    }
}

/// An identity given to a node that has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    pub cluster: ClusterId,
    /// The number of the node.
    pub node: NodeId,
    /// First configuration of group 0: replica, node, peer address.
    pub directory: Vec<(ReplicaId, NodeId, String)>,
}

/// Who a node is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identified {
    /// None: it waits for `init`.
    pub identity: Option<(ClusterId, NodeId)>,
    /// Nodes and partitions of its cluster; none: it knows no map yet.
    pub size: Option<(u32, u32)>,
    /// Its label.
    pub name: String,
    /// Where it serves.
    pub addresses: Addresses,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// To `Identify` and `Assign`.
    Identified(Identified),
    /// To `Map`.
    Map {
        /// The newest map known.
        map: PartitionMap,
        /// Who leads, as far as known.
        leaders: Vec<(PartitionId, NodeId)>,
        /// Settings of the cluster that differ from their defaults.
        settings: BTreeMap<String, String>,
        /// Who may do what.
        users: Users,
    },
    /// To `Status`.
    Status(Box<LocalStatus>),
    /// To `Admin`.
    Admin(AdminReply),
    /// To `Directory`.
    Directory(DirectoryReply),
    /// No, and why.
    Refused(String),
    /// To `Adopt`, `Configure` and `FeatureLevel`: it was taken up.
    Done,
    /// To `Median`; none if there are fewer than two keys.
    Median(Option<Vec<u8>>),
    /// To `Transfer`: another node leads, or none.
    NotLeader,
    /// To `Live`.
    Live(Box<LiveReport>),
}

#[cfg(test)]
mod tests {
    use coppice_client::map::{NodeInfo, NodeState, ReplicaInfo, Role};
    use coppice_client::wire::MapVersion;

    use super::*;

    const OURS: ClusterId = ClusterId(1);

    fn presence(cluster: ClusterId, node: u32) -> Presence {
        Presence { cluster, node: NodeId(node), ..Presence::default() }
    }

    fn map(cluster: ClusterId, version: u64, nodes: &[u32]) -> PartitionMap {
        let node = |&id: &u32| NodeInfo {
            id: NodeId(id),
            name: String::new(),
            addresses: Addresses::default(),
            state: NodeState::Member,
        };
        // All but the last have a replica of the directory, unless there is only that.
        let replica = |&id: &u32| ReplicaInfo { replica: ReplicaId(id), node: NodeId(id), role: Role::Voter };
        let replicas = nodes[..nodes.len() - usize::from(nodes.len() > 2)].iter().map(replica).collect();
        let nodes = nodes.iter().map(node).collect();
        let directory = Some(Entry { replicas, ..Entry::default() });
        PartitionMap { cluster, version: MapVersion(version), nodes, directory, ..PartitionMap::default() }
    }

    fn may(purpose: Purpose, from: Option<Presence>, question: &Question) -> bool {
        let (own, known) = (presence(OURS, 1), map(OURS, 3, &[1, 2, 3]));
        Asker { purpose, from }.judge(question, Some(&own), &known).is_ok()
    }

    /// A node once adopted the newer map of another cluster within two seconds, and removed its replicas.
    #[test]
    fn a_map_of_another_cluster_is_not_adopted() {
        let adopt = |cluster, nodes: &[u32]| {
            let (map, settings, users) = (map(cluster, 9, nodes), BTreeMap::new(), Users::default());
            Question::Adopt { map, settings, users }
        };
        let ours = Some(presence(OURS, 2));
        assert!(may(Purpose::Question, ours, &adopt(OURS, &[1, 2])));
        assert!(!may(Purpose::Question, ours, &adopt(ClusterId(2), &[1, 2])));
        let stranger = Some(presence(OURS, 7));
        assert!(!may(Purpose::Question, stranger, &adopt(OURS, &[1, 2])), "by no map it is a node");
        assert!(!may(Purpose::Question, Some(presence(OURS, 3)), &adopt(OURS, &[1, 2, 3])), "it cannot lead");
        assert!(!may(Purpose::Forming, ours, &adopt(OURS, &[1, 2])), "that needs a proof");
    }

    #[test]
    fn what_changes_something_is_for_nodes_of_the_map() {
        let configuration = Configuration::of_voters([]);
        let changes = [
            Question::Configure { partition: PartitionId(1), expected: 3, configuration },
            Question::Median { partition: PartitionId(1), by_load: false },
            Question::Admin(AdminRequest::Tuning { local: true }),
            Question::Directory(DirectoryCommand::Set { key: "window".into(), value: "7".into() }),
        ];
        for question in &changes {
            assert!(may(Purpose::Question, Some(presence(OURS, 2)), question), "{question:?}");
            assert!(!may(Purpose::Question, Some(presence(OURS, 7)), question), "{question:?}");
            assert!(!may(Purpose::Question, None, question), "{question:?}");
            assert!(!may(Purpose::Forming, Some(presence(OURS, 2)), question), "{question:?}");
        }
        for question in &changes[..2] {
            assert!(!may(Purpose::Question, Some(presence(OURS, 3)), question), "it cannot lead: {question:?}");
        }
        let absurd = Question::Directory(DirectoryCommand::Set { key: "window".into(), value: "x".repeat(5_000) });
        assert!(!may(Purpose::Question, Some(presence(OURS, 2)), &absurd), "beyond its bounds");
        let level = Question::Admin(AdminRequest::LogLevel { spec: "debug".into() });
        assert!(!may(Purpose::Question, Some(presence(OURS, 2)), &level), "a client's verb");
        for question in [Question::Map, Question::Status, Question::Identify, Question::Live { after: 0 }] {
            assert!(may(Purpose::Question, Some(presence(OURS, 7)), &question), "{question:?}");
        }
    }

    #[test]
    fn an_identity_is_given_by_nodes_of_that_cluster_and_once() {
        let assign =
            |cluster, node| Question::Assign(Assignment { cluster, node: NodeId(node), directory: Vec::new() });
        let by = |from, own: Option<Presence>, question: &Question| {
            Asker { purpose: Purpose::Forming, from }.judge(question, own.as_ref(), &PartitionMap::default()).is_ok()
        };
        let (ours, other) = (Some(presence(OURS, 1)), Some(presence(ClusterId(2), 1)));
        assert!(by(ours, None, &assign(OURS, 4)));
        assert!(!by(other, None, &assign(OURS, 4)) && !by(None, None, &assign(OURS, 4)));
        assert!(by(ours, Some(presence(OURS, 4)), &assign(OURS, 4)), "repeated");
        assert!(!by(ours, Some(presence(OURS, 5)), &assign(OURS, 4)));
        assert!(!by(ours, Some(presence(ClusterId(2), 4)), &assign(OURS, 4)));
    }

    /// Whoever knows the cluster's id can make a map that names the sender.
    #[test]
    fn a_newer_map_does_not_vouch_for_who_brings_it() {
        let (settings, users) = (BTreeMap::new(), Users::default());
        let forged = Question::Adopt { map: map(OURS, 9, &[1, 7]), settings, users };
        let stranger = Asker { purpose: Purpose::Question, from: Some(presence(OURS, 7)) };
        let judge = |version| stranger.judge(&forged, Some(&presence(OURS, 1)), &map(OURS, version, &[1, 2, 3]));
        assert!(judge(3).is_err_and(|refusal| refusal.asks_for_map), "there may be a newer one");
        assert!(judge(9).is_err_and(|refusal| !refusal.asks_for_map));
        assert!(
            may(Purpose::Question, Some(presence(OURS, 2)), &forged),
            "a node of the map says who took whose place"
        );
        let moved =
            Question::Adopt { map: map(OURS, 9, &[2, 3, 4]), settings: BTreeMap::new(), users: Users::default() };
        assert!(may(Purpose::Question, Some(presence(OURS, 3)), &moved), "the directory moved to a node of the map");
        let new = Asker { purpose: Purpose::Question, from: Some(presence(OURS, 2)) };
        let own = presence(OURS, 8);
        assert!(new.judge(&forged, Some(&own), &PartitionMap::default()).is_ok(), "a new node knows nobody yet");
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn a_map_that_vouches_for_who_brings_it_is_caught() {
        let test = "question::tests::a_newer_map_does_not_vouch_for_who_brings_it";
        planted::assert_caught("newer_map_vouches", test);
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn a_foreign_map_that_is_believed_is_caught() {
        let test = "question::tests::a_map_of_another_cluster_is_not_adopted";
        planted::assert_caught("foreign_map_believed", test);
    }
}
