//! The order in which `init` forms a cluster: all seeds are asked who they are; each becomes the node of its place
//! among them; the directory, which begins with them, decides the map; then the partitions get leaders. One that was
//! interrupted goes on when it is repeated: what is done already is answered as if it were done then.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::Duration;

use coppice_client::map::{NodeInfo, NodeState, PartitionMap};
use coppice_client::wire::control::AdminError;
use coppice_client::wire::{AdminReply, ClusterId, InitRequest, NodeId, ReplicaId};
use coppice_ordering::Time;

use super::{check, first_map};
use crate::machine::directory::{DirectoryCommand, DirectoryReply};
use crate::question::Identified;
use crate::settings::{FEATURE_LEVEL, FEATURE_LEVEL_KEY};

/// How long the seeds may take to say who they are, and then the rest of `init`.
pub const INIT_TIMEOUT: Duration = Duration::from_secs(30);

/// The cluster that `init` forms, or formed, here.
#[derive(Debug, Default)]
pub struct Bootstrap {
    /// Its id, if it is asked for.
    drawn: Option<ClusterId>,
    /// The nonce of that `init`.
    formed_for: Option<u64>,
}

/// The process that is asked for `init`.
pub struct Process<'a> {
    /// The cluster to which it belongs.
    pub cluster: Option<ClusterId>,
    /// The newest map that it knows.
    pub map: &'a PartitionMap,
    /// Its peer port.
    pub address: String,
    /// The peer ports of the first nodes, in their order; none: it is alone.
    pub seeds: Vec<String>,
    /// `limits.partitions`.
    pub partitions_max: usize,
}

/// What comes of `init`.
pub enum Init {
    /// This seed, the first one, carries it out.
    PassOn(String),
    /// Nothing is formed here.
    Answer(Box<AdminReply>),
    /// This process forms the cluster.
    Form(Box<Forming>),
}

impl Bootstrap {
    /// Judges `init`. `drawn`: the id of the cluster, if none was drawn before: a repeated `init` goes on with the
    /// cluster that an interrupted one began.
    pub fn init(&mut self, process: Process<'_>, request: InitRequest, drawn: ClusterId) -> Init {
        if let Some(first) = process.seeds.first().filter(|first| **first != process.address) {
            return Init::PassOn(first.clone());
        }
        if process.map.version.0 > 0 {
            return Init::Answer(Box::new(self.existed(&process, &request)));
        }
        let seeds = if process.seeds.is_empty() { vec![process.address.clone()] } else { process.seeds };
        let settings = match check(&request, seeds.len(), process.partitions_max) {
            Ok(settings) => settings,
            Err(text) => return Init::Answer(Box::new(AdminReply::Failed(AdminError::Invalid(text)))),
        };
        let drawn = *self.drawn.get_or_insert(drawn);
        self.formed_for.get_or_insert(request.nonce);
        let replicas = (settings.replicas as usize).min(seeds.len()).max(1);
        let numbered = (1..).zip(seeds.iter().take(replicas));
        let directory = numbered.map(|(n, seed)| (ReplicaId(n), NodeId(n), seed.clone())).collect();
        let asked = if mutant!(init_asks_nobody) { seeds.len() } else { 1 };
        Init::Form(Box::new(Forming {
            request,
            address: process.address,
            cluster: process.cluster.unwrap_or(drawn),
            unheard: seeds.iter().skip(asked).cloned().collect(),
            seeds,
            directory,
            nodes: Vec::new(),
            until: Time::ZERO,
        }))
    }

    /// The directory has decided the map of the `init` with this nonce.
    pub fn created(&mut self, nonce: u64) {
        self.formed_for = Some(nonce);
    }

    fn existed(&self, process: &Process<'_>, request: &InitRequest) -> AdminReply {
        let cluster = process.cluster.unwrap_or_default();
        let again = request.nonce != 0 && self.formed_for == Some(request.nonce) && !mutant!(init_forgets);
        if !request.if_needed && !again {
            let text = format!("this node belongs to cluster {cluster} already");
            return AdminReply::Failed(AdminError::Exists(text));
        }
        let (nodes, partitions) = (process.map.nodes.len() as u32, process.map.partitions.len() as u32);
        AdminReply::Initialized { cluster, nodes, partitions, existed: !again }
    }
}

/// A cluster on its way. It waits for one answer at a time.
#[derive(Debug)]
pub struct Forming {
    request: InitRequest,
    /// The peer port of this process, the first seed.
    address: String,
    /// The cluster that is formed: that of this process, else one that only this process has drawn.
    cluster: ClusterId,
    seeds: Vec<String>,
    /// Seeds that have yet to say who they are.
    unheard: BTreeSet<String>,
    /// The first configuration of group 0.
    directory: Vec<(ReplicaId, NodeId, String)>,
    /// Seeds that have their identity.
    nodes: Vec<NodeInfo>,
    until: Time,
}

/// What the driver asks for, until it is answered or [`Forming::deadline`] has come. Seeds that do not answer have
/// perhaps not started yet: they are asked again.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// These seeds say who they are, all at once: [`Heard::Identified`] of the first one that answers.
    Identify(Vec<String>),
    /// [`Heard::Identified`] of another one.
    Hear,
    /// This seed, none: this process, becomes a node: [`Heard::Assigned`].
    Assign {
        seed: Option<String>,
        cluster: ClusterId,
        node: NodeId,
        /// First configuration of group 0: replica, node, peer address.
        directory: Vec<(ReplicaId, NodeId, String)>,
    },
    /// The directory decides this: [`Heard::Decided`].
    Decide(Box<DirectoryCommand>),
    /// This node knows a map: [`Heard::Exists`].
    Map,
    /// So many partitions have leaders: [`Heard::Led`].
    Leaders(u32),
}

/// What the driver hears.
#[derive(Clone, Debug)]
pub enum Heard {
    /// Who a seed is.
    Identified { seed: String, who: Identified },
    /// The seed is that node, durably; or why not.
    Assigned(Result<Identified, String>),
    /// What the directory says; or why it cannot be asked.
    Decided(Result<DirectoryReply, String>),
    /// So many nodes and partitions the map has.
    Exists { nodes: u32, partitions: u32 },
    /// The partitions have leaders.
    Led,
    /// The deadline has come.
    TimedOut,
}

/// What to ask next, or what the operator hears.
pub type Next = ControlFlow<AdminReply, Ask>;

fn failed(error: AdminError) -> Next {
    ControlFlow::Break(AdminReply::Failed(error))
}

fn refused(text: String) -> Next {
    failed(AdminError::Refused(text))
}

impl Forming {
    /// The nonce of its `init`.
    pub fn nonce(&self) -> u64 {
        self.request.nonce
    }

    /// Begins. All other seeds are asked first who they are: a first seed whose disk was lost would form a second
    /// cluster otherwise, at an address that the first one's clients know.
    pub fn begin(&mut self, now: Time) -> Next {
        self.until = now + INIT_TIMEOUT;
        match self.unheard.is_empty() {
            true => self.assign(),
            false => ControlFlow::Continue(Ask::Identify(self.unheard.iter().cloned().collect())),
        }
    }

    /// When [`Heard::TimedOut`] is wanted.
    pub fn deadline(&self) -> Time {
        self.until
    }

    /// What was asked for is answered.
    pub fn step(&mut self, now: Time, heard: Heard) -> Next {
        match heard {
            Heard::Identified { seed, who } => self.on_identified(now, &seed, who),
            Heard::Assigned(Ok(Identified { name, addresses, .. })) => {
                let id = NodeId(self.nodes.len() as u32 + 1);
                self.nodes.push(NodeInfo { id, name, addresses, state: NodeState::Member });
                self.assign()
            }
            Heard::Assigned(Err(text)) => refused(format!("seed {}: {text}", self.seeds[self.nodes.len()])),
            Heard::Decided(Ok(DirectoryReply::Done)) => ControlFlow::Continue(Ask::Leaders(self.request.partitions)),
            Heard::Decided(Ok(DirectoryReply::AlreadyCreated)) if self.request.if_needed => {
                ControlFlow::Continue(Ask::Map)
            }
            Heard::Decided(Ok(_)) => refused("another init created the map first".into()),
            Heard::Decided(Err(text)) => refused(text),
            Heard::Exists { nodes, partitions } => self.initialized(nodes, partitions, true),
            Heard::Led => self.initialized(self.nodes.len() as u32, self.request.partitions, false),
            Heard::TimedOut => failed(AdminError::TimedOut(match self.unheard.is_empty() {
                true => "init is not finished after 30 s; it goes on where it stopped when it is repeated".into(),
                false => "not all seeds answer: init asks all of them first, and has begun nothing".into(),
            })),
        }
    }

    fn initialized(&self, nodes: u32, partitions: u32, existed: bool) -> Next {
        ControlFlow::Break(AdminReply::Initialized { cluster: self.cluster, nodes, partitions, existed })
    }

    /// Whoever belongs to another cluster stands in the way, or to one that is whole. What an `init` has begun that was
    /// interrupted, or is under way beside this one, is gone on with.
    fn on_identified(&mut self, now: Time, seed: &str, who: Identified) -> Next {
        let stands_in_the_way = |cluster| cluster != self.cluster || who.size.is_some();
        if let Some((cluster, node)) = who.identity.filter(|&(cluster, _)| stands_in_the_way(cluster)) {
            if let (true, Some((nodes, partitions))) = (self.request.if_needed, who.size) {
                return ControlFlow::Break(AdminReply::Initialized { cluster, nodes, partitions, existed: true });
            }
            let (own, native) = (&self.address, who.addresses.native);
            // Nodes are numbered in the order of the seeds, and the first one carries `init` out.
            return failed(AdminError::Exists(format!(
                "seed {seed} is {node} of cluster {cluster} already, and this node is not part of that cluster; to let \
                 it take the place of a node that lost its disk: coppice node replace n1 {own} --endpoints {native} \
                 (coppice node ls --endpoints {native} tells which node was here)"
            )));
        }
        self.unheard.remove(seed);
        if !self.unheard.is_empty() {
            return ControlFlow::Continue(Ask::Hear);
        }
        self.until = now + INIT_TIMEOUT;
        self.assign()
    }

    /// The next seed becomes a node; after the last one the directory decides the map.
    fn assign(&self) -> Next {
        let at = self.nodes.len();
        ControlFlow::Continue(match self.seeds.get(at) {
            Some(seed) => Ask::Assign {
                seed: (at > 0).then(|| seed.clone()),
                cluster: self.cluster,
                node: NodeId(at as u32 + 1),
                directory: self.directory.clone(),
            },
            None => {
                let map = first_map(self.nodes.clone(), &self.directory, &self.request, self.directory.len());
                let map = PartitionMap { cluster: self.cluster, ..map };
                if let Err(error) = map.check() {
                    return refused(error.to_string());
                }
                let mut settings: BTreeMap<_, _> = self.request.settings.iter().cloned().collect();
                settings.entry(FEATURE_LEVEL_KEY.into()).or_insert_with(|| FEATURE_LEVEL.to_string());
                Ask::Decide(Box::new(DirectoryCommand::Create { map, settings }))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use coppice_client::map::Addresses;
    use coppice_client::wire::MapVersion;

    use super::*;

    const OURS: ClusterId = ClusterId(1);
    const OTHER: ClusterId = ClusterId(2);

    /// Asks process `a` for `init`, which has three seeds.
    fn init(bootstrap: &mut Bootstrap, cluster: Option<ClusterId>, map_version: u64, request: InitRequest) -> Init {
        let map = PartitionMap { version: MapVersion(map_version), ..PartitionMap::default() };
        let seeds = ["a", "b", "c"].map(String::from).into();
        let process = Process { cluster, map: &map, address: "a".into(), seeds, partitions_max: 256 };
        bootstrap.init(process, request, OURS)
    }

    fn request(if_needed: bool) -> InitRequest {
        InitRequest { partitions: 2, nonce: 7, if_needed, ..InitRequest::default() }
    }

    fn forming(own: Option<ClusterId>, if_needed: bool) -> Forming {
        match init(&mut Bootstrap::default(), own, 0, request(if_needed)) {
            Init::Form(forming) => *forming,
            Init::PassOn(_) | Init::Answer(_) => panic!("it is the first seed, without a map"),
        }
    }

    fn who(identity: Option<(ClusterId, u32)>) -> Identified {
        let identity = identity.map(|(cluster, node)| (cluster, NodeId(node)));
        let addresses = Addresses { native: "port".into(), ..Addresses::default() };
        Identified { identity, name: "name".into(), addresses, size: None }
    }

    fn is(seed: &str, identity: Option<(ClusterId, u32)>, size: Option<(u32, u32)>) -> Heard {
        Heard::Identified { seed: seed.into(), who: Identified { size, ..who(identity) } }
    }

    /// Who is asked what, in words.
    fn said(next: Next) -> String {
        match next {
            ControlFlow::Continue(Ask::Identify(seeds)) => format!("who are {}?", seeds.join(" ")),
            ControlFlow::Continue(Ask::Hear) => "and the others?".into(),
            ControlFlow::Continue(Ask::Assign { seed, cluster, node, directory }) => {
                let seed = seed.unwrap_or_else(|| "itself".into());
                format!("{seed} is {node} of {}, {} of them with the directory", cluster.0, directory.len())
            }
            ControlFlow::Continue(Ask::Decide(command)) => match *command {
                DirectoryCommand::Create { map, .. } => {
                    format!("create {} nodes, {} partitions", map.nodes.len(), map.partitions.len())
                }
                other => format!("{other:?}"),
            },
            ControlFlow::Continue(Ask::Map) => "the map?".into(),
            ControlFlow::Continue(Ask::Leaders(count)) => format!("{count} leaders?"),
            ControlFlow::Break(AdminReply::Initialized { cluster, nodes, partitions, existed }) => {
                format!("cluster {}, {nodes} nodes, {partitions} partitions, existed: {existed}", cluster.0)
            }
            ControlFlow::Break(AdminReply::Failed(error)) => format!("{error:?}"),
            ControlFlow::Break(reply) => format!("{reply:?}"),
        }
    }

    /// All seeds answer that they are these, and become nodes.
    fn until_created(forming: &mut Forming, identities: [Option<(ClusterId, u32)>; 2]) {
        let mut step = |heard| said(forming.step(Time::ZERO, heard));
        assert_eq!(step(is("c", identities[1], None)), "and the others?");
        assert_eq!(step(is("b", identities[0], None)), "itself is n1 of 1, 3 of them with the directory");
        assert_eq!(step(Heard::Assigned(Ok(who(None)))), "b is n2 of 1, 3 of them with the directory");
        assert_eq!(step(Heard::Assigned(Ok(who(None)))), "c is n3 of 1, 3 of them with the directory");
        assert_eq!(step(Heard::Assigned(Ok(who(None)))), "create 3 nodes, 2 partitions");
    }

    #[test]
    fn a_cluster_is_formed_in_the_order_of_the_seeds_once_all_have_said_who_they_are() {
        let mut forming = forming(None, false);
        assert_eq!(said(forming.begin(Time::ZERO)), "who are b c?");
        until_created(&mut forming, [None, None]);
        assert_eq!(said(forming.step(Time::ZERO, Heard::Decided(Ok(DirectoryReply::Done)))), "2 leaders?");
        assert_eq!(said(forming.step(Time::ZERO, Heard::Led)), "cluster 1, 3 nodes, 2 partitions, existed: false");
    }

    #[test]
    fn nothing_is_begun_while_a_seed_does_not_answer() {
        let mut forming = forming(None, false);
        assert_eq!(said(forming.begin(Time::ZERO)), "who are b c?");
        assert!(said(forming.step(Time::ZERO, Heard::TimedOut)).contains("has begun nothing"));
        until_created(&mut forming, [None, None]);
        assert!(said(forming.step(Time::ZERO, Heard::TimedOut)).contains("goes on where it stopped"));
    }

    #[test]
    fn an_interrupted_init_goes_on_with_the_cluster_that_it_began() {
        let mut forming = forming(Some(OURS), false);
        until_created(&mut forming, [Some((OURS, 2)), None]);
    }

    /// A client gives up while its `init` goes on, and asks again: the second one finds seeds that the first one has
    /// made nodes since it began.
    #[test]
    fn an_init_beside_another_one_of_the_same_process_forms_the_same_cluster() {
        let mut bootstrap = Bootstrap::default();
        let Init::Form(_) = init(&mut bootstrap, None, 0, request(false)) else { panic!("the first seed") };
        let Init::Form(mut second) = init(&mut bootstrap, None, 0, InitRequest { nonce: 8, ..request(true) }) else {
            panic!("the first seed")
        };
        until_created(&mut second, [Some((OURS, 2)), Some((OURS, 3))]);
    }

    /// A compose file runs `init --if-needed` at every start.
    #[test]
    fn a_seed_of_another_cluster_or_of_a_whole_one_stands_in_the_way() {
        for (own, cluster) in [(None, OTHER), (Some(OURS), OTHER), (Some(OURS), OURS)] {
            let said =
                |if_needed| said(forming(own, if_needed).step(Time::ZERO, is("b", Some((cluster, 3)), Some((5, 9)))));
            assert!(
                said(false).contains("seed b is n3 of cluster")
                    && said(false).contains("replace n1 a --endpoints port")
            );
            assert_eq!(said(true), format!("cluster {}, 5 nodes, 9 partitions, existed: true", cluster.0));
        }
        let half = forming(None, true).step(Time::ZERO, is("b", Some((OTHER, 3)), None));
        assert!(said(half).contains("seed b is n3"), "nobody can be told how large it is");
    }

    #[test]
    fn a_map_that_was_created_before_is_fine_where_one_is_needed() {
        let created = Heard::Decided(Ok(DirectoryReply::AlreadyCreated));
        assert!(said(forming(None, false).step(Time::ZERO, created.clone())).contains("another init created"));
        let mut forming = forming(None, true);
        assert_eq!(said(forming.step(Time::ZERO, created)), "the map?");
        let exists = Heard::Exists { nodes: 4, partitions: 8 };
        assert_eq!(said(forming.step(Time::ZERO, exists)), "cluster 1, 4 nodes, 8 partitions, existed: true");
    }

    #[test]
    fn a_refusal_ends_it() {
        let mut forming = forming(None, false);
        until_created(&mut forming, [None, None]);
        let error = said(forming.step(Time::ZERO, Heard::Decided(Err("no leader".into()))));
        assert_eq!(error, r#"Refused("no leader")"#);
        let mut other = self::forming(None, false);
        let error = said(other.step(Time::ZERO, Heard::Assigned(Err("it is full".into()))));
        assert_eq!(error, r#"Refused("seed a: it is full")"#);
    }

    /// On a busy machine a client gives up on an answer that is still to come, and asks again. It was once told that
    /// there is a cluster already: the one that it had formed itself.
    #[test]
    fn an_init_that_is_sent_again_hears_that_it_formed_the_cluster() {
        let mut bootstrap = Bootstrap::default();
        let begins = |bootstrap: &mut Bootstrap, nonce| {
            let request = InitRequest { nonce, ..request(false) };
            assert!(matches!(init(bootstrap, None, 0, request), Init::Form(_)));
        };
        // One that fails, or comes second, does not speak for the one that forms the cluster.
        begins(&mut bootstrap, 5);
        begins(&mut bootstrap, 7);
        bootstrap.created(7);
        begins(&mut bootstrap, 6);
        let mut again = |nonce, if_needed| {
            let request = InitRequest { nonce, ..request(if_needed) };
            let Init::Answer(reply) = init(&mut bootstrap, Some(OURS), 1, request) else { panic!("there is a map") };
            said(ControlFlow::Break(*reply))
        };
        assert!(again(7, false).ends_with("existed: false"));
        assert!(again(8, false).contains("belongs to cluster"));
        assert!(again(8, true).ends_with("existed: true"));
    }

    #[test]
    fn the_first_seed_carries_init_out_and_what_cannot_be_is_refused() {
        let map = PartitionMap::default();
        let seeds = ["b", "a"].map(String::from).into();
        let process = Process { cluster: None, map: &map, address: "a".into(), seeds, partitions_max: 256 };
        let mut bootstrap = Bootstrap::default();
        assert!(matches!(bootstrap.init(process, request(false), OURS), Init::PassOn(first) if first == "b"));
        let impossible = InitRequest { partitions: 0, ..request(false) };
        let answer = init(&mut bootstrap, None, 0, impossible);
        assert!(matches!(answer, Init::Answer(reply) if matches!(*reply, AdminReply::Failed(AdminError::Invalid(_)))));
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn planted_bugs_are_caught() {
        let tests = [
            ("init_forgets", "an_init_that_is_sent_again_hears_that_it_formed_the_cluster"),
            ("init_asks_nobody", "nothing_is_begun_while_a_seed_does_not_answer"),
        ];
        for (mutant, test) in tests {
            planted::assert_caught(mutant, &format!("bootstrap::forming::tests::{test}"));
        }
    }
}
