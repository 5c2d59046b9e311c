//! Each test is a rule of [`super`], told by what goes in and what comes out.

mod balancing;
mod readiness;

use bytes::Bytes;
use coppice_btree::KeyRange;
use coppice_client::map::{Addresses, Entry, NodeInfo, NodeState, ReplicaInfo, Role};
use coppice_client::wire::{ChangeId, MapVersion, ReplicaId as WireReplica, ReshapeRequest, Shape};
use coppice_ordering::{Ballot, Configuration, Instance, ReplicaId};

use super::*;
use crate::machine::Machine;
use crate::machine::directory::{Change, ChangeOutcome, DirectoryCommand, DirectoryState, Move, Reshape};
use crate::machine::partition::{Fork, Partition};
use crate::question::Identified;
use crate::replay::{Entry as LogEntry, GroupReplay};
use crate::replica;
use crate::reshape::View;
use crate::snapshot::LoadedSnapshot;
use crate::status::{LocalReplica, LocalStatus};

const OWN: NodeId = NodeId(1);
const PARENT: PartitionId = PartitionId(1);
const CHILD: PartitionId = PartitionId(2);

fn range(low: &[u8], high: Option<&[u8]>) -> KeyRange {
    KeyRange { low: low.into(), high: high.map(Into::into) }
}

fn entry(partition: PartitionId, version: u64, (low, high): (&[u8], Option<&[u8]>), nodes: &[u32]) -> Entry {
    let role = Role::Voter;
    let info = |(replica, &node): (u32, &u32)| ReplicaInfo { replica: WireReplica(replica), node: NodeId(node), role };
    Entry {
        partition,
        version: MapVersion(version),
        low: Bytes::copy_from_slice(low),
        high: high.map(Bytes::copy_from_slice),
        replicas: (1..).zip(nodes).map(info).collect(),
    }
}

/// The parent holds everything, and from version 2 on what is below `m`, where it is named at all.
fn map(version: u64, parent: &[u32], child: &[u32]) -> Input {
    let high: Option<&[u8]> = if version > 1 { Some(b"m") } else { None };
    let mut partitions = vec![entry(PARENT, 1, (b"", high), parent)];
    if version > 1 {
        partitions.push(entry(CHILD, 2, (b"m", None), child));
    }
    let mut map = PartitionMap { version: MapVersion(version), partitions, ..PartitionMap::default() };
    let (name, addresses, state) = (String::new(), Addresses::default(), NodeState::Member);
    let node = |id| NodeInfo { id: NodeId(id), name: name.clone(), addresses: addresses.clone(), state };
    map.nodes = [1, 2, 3, 4].map(node).into();
    assert_eq!(map.check(), Ok(()));
    Input::Map(Arc::new(map))
}

fn loaded(instance: u64) -> Box<LoadedSnapshot> {
    Box::new(LoadedSnapshot {
        machine: Machine::Partition(Box::new(Partition::new(CHILD, range(b"m", None), MapVersion(2)))),
        instance: Instance(instance),
        configuration: Configuration::of_voters([ReplicaId(1)]),
        configured_at: Instance(7),
        promised: Ballot::ZERO,
    })
}

fn fork() -> Fork {
    Fork {
        instance: Instance(7),
        version: MapVersion(2),
        replicas: entry(CHILD, 2, (b"m", None), &[1, 2, 3]).replicas,
        partition: Partition::new(CHILD, range(b"m", None), MapVersion(2)),
    }
}

/// A controller with two workers, and what it asked for since it was looked at last, in words.
struct Node(Controller, Time);

impl Node {
    fn new() -> Node {
        let mut node = Node(Controller::new(2), Time(1));
        node.tell(Input::Identity { node: OWN, kept: None, seeds: Vec::new() });
        node
    }

    fn tell(&mut self, input: Input) -> Vec<String> {
        let mut effects = Vec::new();
        self.0.step(self.1, input, &mut effects);
        effects.iter().filter_map(said).collect()
    }

    /// The parent's replica here, of this number, has executed the split.
    fn forks(&mut self, me: u32) -> Vec<String> {
        self.0.on_forked((PARENT, ReplicaId(me)), false, &[fork()]);
        self.0.release_parents();
        std::mem::take(&mut self.0.effects).iter().filter_map(said).collect()
    }

    fn look(&mut self) -> Vec<String> {
        self.1 = self.1 + Duration::from_secs(1);
        self.tell(Input::Tick)
    }
}

fn said(effect: &Effect) -> Option<String> {
    Some(match effect {
        Effect::Worker(worker, worker::Input::Holds { group, .. }) => format!("w{worker} holds {group}?"),
        Effect::Worker(worker, worker::Input::Drop(group)) => format!("w{worker} drops {group}"),
        Effect::Worker(worker, worker::Input::CheckpointNow(group)) => format!("w{worker} saves {group}"),
        Effect::Worker(worker, worker::Input::ChildrenSaved { group, splits }) => {
            format!("w{worker} releases {group} at {splits}")
        }
        Effect::Worker(worker, worker::Input::Snapshot(group, loaded)) => {
            format!("w{worker} {} {group}", if loaded.is_some() { "installs" } else { "asks on for" })
        }
        Effect::MaySpeak(may) => format!("may speak: {may}"),
        Effect::Unreached(nodes) => format!("unreached: {nodes:?}"),
        Effect::WriteCopyMark { by, text } => format!("copy by {by}: {text}"),
        Effect::Start(start) => format!("start {} {}", start.group, start.me),
        Effect::Removed(group, replica) => format!("remove {group} {replica}"),
        Effect::DeleteCheckpoints(group) => format!("delete {group}"),
        Effect::Fetch { fetch, group, from, .. } => format!("fetch {fetch}: {group} from {from}"),
        Effect::Admit(fetch, may) => format!("fetch {fetch}: {}", if *may { "wanted" } else { "unwanted" }),
        Effect::Worker(worker, worker::Input::Replica(group, input)) => match **input {
            replica::Input::TransferLeader { to, .. } => format!("w{worker} transfers {group} to {to}"),
            _ => return None,
        },
        Effect::TransferEnded(transfer, outcome) => format!("transfer {transfer}: {outcome:?}"),
        Effect::Stopped => "stopped".into(),
        Effect::Survey => "survey".into(),
        Effect::AskForMap => "ask for the map".into(),
        Effect::Assign(node, _) => format!("assign {node}"),
        Effect::ChangeBegun(name, change) => format!("{name} begins: {change}"),
        Effect::ChangeEnded(name, outcome) => format!("{name} has ended: {outcome}"),
        Effect::Median { partition, leader, .. } => format!("median of {partition} from {leader}"),
        Effect::Identify { address, .. } => format!("who is at {address}?"),
        Effect::TransferLeader { leader, partition, to } => format!("{partition} goes from {leader} to {to}"),
        Effect::Announce { what, reason } => format!("by itself {what}: {reason}"),
        Effect::Begin(_, command, _) => format!("begin {command:?}"),
        Effect::Answer(_, reply) => format!("answer {reply:?}"),
        Effect::Decide(command) => format!("decide {command:?}"),
        Effect::Leaders(leaders) => {
            let said = leaders.iter().map(|(group, leader)| format!("{group} is led from {leader}"));
            said.collect::<Vec<_>>().join(", ")
        }
        _ => return None,
    })
}

fn held_of(group: PartitionId, asked: u64) -> Input {
    Input::Report(Report::Held { asked, group, is_held: false })
}

fn held(asked: u64, is_held: bool) -> Input {
    Input::Report(Report::Held { asked, group: CHILD, is_held })
}

#[test]
fn a_replica_joins_once_every_worker_has_said_that_none_of_its_own_holds_the_keys() {
    let mut node = Node::new();
    assert_eq!(node.tell(map(2, &[2, 3], &[2, 1, 3])), ["w0 holds p2?", "w1 holds p2?"]);
    assert!(node.tell(held(1, false)).is_empty(), "the other worker may hold them");
    assert_eq!(node.tell(held(1, true)), Vec::<String>::new(), "a split is to come here");
    assert_eq!(node.look(), ["w0 holds p2?", "w1 holds p2?", "ask for the map"]);
    assert!(node.tell(held(1, false)).is_empty() && node.tell(held(2, false)).is_empty(), "an answer from before");
    assert_eq!(node.tell(held(2, false)), ["fetch 3: p2 from n2"]);
}

#[test]
fn one_source_after_the_other_is_asked_and_then_all_again() {
    let mut node = Node::new();
    node.tell(map(2, &[2, 3], &[2, 1, 3]));
    _ = (node.tell(held(1, false)), node.tell(held(1, false)));
    assert_eq!(node.tell(Input::Fetched(2, None)), ["fetch 3: p2 from n2"]);
    assert!(node.tell(Input::Fetched(2, Some(loaded(9)))).is_empty(), "it comes too late");
    assert!(node.tell(Input::Fetched(3, None)).is_empty());
    assert_eq!(node.look(), ["w0 holds p2?", "w1 holds p2?", "ask for the map"]);
    _ = (node.tell(held(4, false)), node.tell(held(4, false)));
    let offered = Input::Offered { fetch: 5, kept: range(b"m", None), version: MapVersion(2) };
    assert_eq!(node.tell(offered), ["fetch 5: wanted"]);
    assert_eq!(node.tell(Input::Fetched(5, Some(loaded(9)))), ["start p2 r2"]);
}

/// Simulator, seed 8009011: a learner had become a voter, which the map did not know yet, and one voter was down: where
/// the third was to begin, nobody asked the one that had the keys, and the group had no leader for want of a second.
#[test]
fn who_joins_asks_learners_after_the_voters() {
    let mut node = Node::new();
    let Input::Map(map) = map(1, &[2, 1, 3], &[]) else { unreachable!() };
    let mut with_learner = (*map).clone();
    with_learner.partitions[0].version = MapVersion(2);
    let learner = ReplicaInfo { replica: WireReplica(7), node: NodeId(4), role: Role::Learner };
    with_learner.partitions[0].replicas.push(learner);
    with_learner.version = MapVersion(2);
    node.tell(Input::Map(Arc::new(with_learner)));
    _ = (node.tell(held_of(PARENT, 1)), node.tell(held_of(PARENT, 1)));
    assert_eq!(node.tell(Input::Fetched(2, None)), ["fetch 3: p1 from n2"]);
    assert_eq!(node.tell(Input::Fetched(3, None)), ["fetch 4: p1 from n4"]);
}

#[test]
fn no_replica_joins_while_checkpoints_of_the_one_before_it_are_deleted() {
    let mut node = Node::new();
    assert_eq!(node.tell(map(1, &[1, 2, 3], &[])), ["start p1 r1"]);
    assert_eq!(node.tell(map(2, &[2, 3], &[2, 3])), ["w1 drops p1"]);
    // It says nothing any more: only now may the log say that it is gone.
    assert_eq!(node.tell(Input::Report(Report::Dropped(PARENT))), ["remove p1 r1"]);
    assert_eq!(node.tell(Input::RemovalDurable(PARENT)), ["delete p1"]);
    // Back again, as a replica that has never been here.
    let mut again = entry(PARENT, 3, (b"", Some(b"m")), &[2, 3]);
    again.replicas.push(ReplicaInfo { replica: WireReplica(7), node: OWN, role: Role::Voter });
    let Input::Map(before) = map(3, &[2, 3], &[2, 3]) else { unreachable!() };
    let mut newest = (*before).clone();
    newest.partitions[0] = again;
    assert!(node.tell(Input::Map(Arc::new(newest))).is_empty());
    assert_eq!(node.tell(Input::Deleted(PARENT)), ["w0 holds p1?", "w1 holds p1?"]);
}

#[test]
fn a_parent_writes_a_checkpoint_when_its_children_are_on_the_disk_and_born() {
    let mut node = Node::new();
    node.tell(map(1, &[1, 2, 3], &[]));
    assert_eq!(node.forks(1), ["start p2 r1", "w0 saves p2"]);
    assert!(node.tell(Input::Report(Report::Saved(CHILD))).is_empty(), "its create request may be lost");
    assert_eq!(node.tell(Input::CreateDurable(CHILD, ReplicaId(1))), ["w1 releases p1 at 1"]);
    // Executed again after a restart of the process: the child is known.
    assert_eq!(node.forks(1), ["w1 releases p1 at 2"]);
    assert!(node.forks(9).is_empty(), "of a replica that does not run here");
}

#[test]
fn a_parent_that_goes_is_forgotten_when_the_child_of_a_split_that_was_on_its_way_is_on_the_disk() {
    let mut node = Node::new();
    node.tell(map(1, &[1, 2, 3], &[]));
    assert!(node.tell(map(2, &[2, 3], &[1, 2, 3])).contains(&"w1 drops p1".to_owned()));
    assert_eq!(node.forks(1), ["start p2 r1", "w0 saves p2"]);
    assert!(node.tell(Input::Report(Report::Dropped(PARENT))).is_empty(), "the child is in its log only");
    assert!(node.tell(Input::CreateDurable(CHILD, ReplicaId(1))).is_empty());
    assert_eq!(node.tell(Input::Report(Report::Saved(CHILD))), ["remove p1 r1"]);
    assert!(node.tell(Input::Report(Report::Dropped(PARENT))).is_empty(), "once");
}

#[test]
fn a_parent_is_released_when_the_log_says_that_its_child_is_gone() {
    let mut node = Node::new();
    node.tell(map(1, &[1, 2, 3], &[]));
    node.forks(1);
    assert_eq!(node.tell(map(3, &[1, 2, 3], &[2, 3])), ["w0 drops p2"]);
    assert_eq!(node.tell(Input::Report(Report::Dropped(CHILD))), ["remove p2 r1", "w1 releases p1 at 1"]);
}

#[test]
fn whoever_knows_no_leader_of_the_directory_asks_for_the_map_and_whoever_leads_it_tells_who_leads_elsewhere() {
    let mut node = Node::new();
    assert_eq!(node.look(), ["ask for the map"]);
    let Input::Map(map) = map(1, &[2, 3], &[]) else { unreachable!() };
    let state = Arc::new(DirectoryState { map: (*map).clone(), ..DirectoryState::default() });
    node.tell(Input::Report(Report::Led(PartitionId::DIRECTORY, Some(OWN))));
    assert_eq!(node.tell(Input::Report(Report::Directory(state))), ["survey"]);
    let leads = LocalReplica { leads: true, ..LocalReplica::default() };
    let status = LocalStatus { replicas: [(PARENT, leads)].into(), map_version: 1, ..LocalStatus::default() };
    let view = View::new([(NodeId(3), status)].into());
    assert_eq!(node.tell(Input::View(Box::new(view))), ["p1 is led from n3"]);
}

#[test]
fn the_leader_of_the_directory_tells_once_that_a_change_begins_and_that_it_has_ended() {
    let mut node = Node::new();
    let Input::Map(map) = map(1, &[1, 2, 3], &[]) else { unreachable!() };
    let (name, none) = (ChangeId(7), Vec::new());
    let state = |changes: &[ChangeId], ended: &[ChangeId]| {
        let change = Move { partition: PARENT, add: none.clone(), remove: none.clone(), cancelled: false };
        let state = DirectoryState {
            map: (*map).clone(),
            changes: changes.iter().map(|&name| (name, Change::Move(change.clone()))).collect(),
            ended: ended.iter().map(|&name| (name, ChangeOutcome::Done)).collect(),
            ..DirectoryState::default()
        };
        Input::Report(Report::Directory(Arc::new(state)))
    };
    let told = |said: Vec<String>| said.into_iter().filter(|said| said != "survey").collect::<Vec<_>>();
    node.tell(state(&[], &[]));
    assert_eq!(told(node.tell(state(&[name], &[]))), [""; 0], "another one leads, and tells");
    node.tell(Input::Report(Report::Led(PartitionId::DIRECTORY, Some(OWN))));
    let other = ChangeId(8);
    assert_eq!(told(node.tell(state(&[name, other], &[]))), [format!("{other} begins: move of p1")]);
    assert_eq!(told(node.tell(state(&[other], &[name]))), [format!("{name} has ended: done")]);
    assert_eq!(told(node.tell(state(&[other], &[name]))), [""; 0]);
}

#[test]
fn a_snapshot_that_skips_a_split_waits_for_the_child() {
    let mut node = Node::new();
    node.tell(map(1, &[1, 2, 3], &[]));
    let (held, instance) = (range(b"", None), Instance(20));
    let need = Report::NeedSnapshot { group: PARENT, held, from: NodeId(2), instance };
    assert_eq!(node.tell(Input::Report(need)), ["fetch 1: p1 from n2"]);
    node.tell(map(2, &[1, 2, 3], &[1, 2, 3]));
    let offered = || Input::Offered { fetch: 1, kept: range(b"", Some(b"m")), version: MapVersion(2) };
    let said = node.tell(offered());
    assert_eq!(said.first().map(String::as_str), Some("fetch 1: unwanted"));
    assert_eq!(node.tell(Input::Fetched(1, None)), ["w1 asks on for p1"]);
}

#[test]
fn an_older_map_changes_nothing() {
    let mut node = Node::new();
    node.tell(map(2, &[2, 3], &[2, 3]));
    assert!(node.tell(map(1, &[1, 2, 3], &[])).is_empty() && node.0.map().version == MapVersion(2));
}

#[test]
fn a_process_is_told_its_number_once_at_a_time_and_then_the_directory_hears_of_it() {
    let mut node = Node::new();
    let Input::Map(map) = map(1, &[1, 2, 3], &[]) else { unreachable!() };
    let mut joining = (*map).clone();
    joining.nodes[3].state = NodeState::Joining;
    let state = Arc::new(DirectoryState { map: joining, ..DirectoryState::default() });
    node.tell(Input::Report(Report::Led(PartitionId::DIRECTORY, Some(OWN))));
    node.tell(Input::Report(Report::Directory(state)));
    let view = || Input::View(Box::new(View::new([].into())));
    assert_eq!(node.tell(view()), ["assign n4"]);
    assert!(node.tell(view()).is_empty(), "it is being told");
    assert!(node.tell(Input::Assigned(NodeId(4), Err("it is down".into()))).is_empty());
    assert_eq!(node.tell(view()), ["assign n4"]);
    assert_eq!(node.tell(Input::Assigned(NodeId(4), Ok(()))), ["decide Reshape(Joined { node: NodeId(4) })"]);
    assert!(node.tell(view()).is_empty(), "the directory has not answered");
    let command = DirectoryCommand::Reshape(Reshape::Joined { node: NodeId(4) });
    assert!(node.tell(Input::Decided(Box::new(command), None)).is_empty());
    assert_eq!(node.tell(view()), ["assign n4"], "nobody knows whether it is decided");
}

#[test]
fn another_nodes_word_for_a_leader_counts_where_no_replica_is_here() {
    let mut node = Node::new();
    node.tell(map(2, &[1, 2, 3], &[2, 3]));
    let told = vec![(PARENT, NodeId(2)), (CHILD, NodeId(3)), (PartitionId(9), NodeId(2))];
    assert_eq!(node.tell(Input::LeadersTold(told)), ["p2 is led from n3"]);
}

#[test]
fn the_word_of_the_other_nodes_of_every_group_here_is_awaited() {
    let mut node = Node::new();
    let restored = || Input::Restored { seeds: 3, copy: None };
    let founded = [1, 2].map(|n| (WireReplica(n), NodeId(n), String::new()));
    node.tell(Input::Founded(founded.into()));
    node.tell(restored());
    assert_eq!(node.0.fence().awaited(), &[2, 3].map(NodeId).into(), "there is no map yet");
    node.tell(map(1, &[1, 2, 4], &[]));
    node.tell(restored());
    assert_eq!(node.0.fence().awaited(), &[2, 4].map(NodeId).into());
    assert!(node.tell(Input::LetIn(NodeId(2))).is_empty());
    assert_eq!(node.tell(Input::LetIn(NodeId(4))), ["may speak: true"]);
    assert_eq!(node.tell(Input::Identity { node: OWN, kept: None, seeds: Vec::new() }), ["may speak: false"]);
    node.tell(map(2, &[1, 2, 3], &[]));
    node.tell(restored());
    let said = node.look();
    assert!(said.ends_with(&["unreached: {NodeId(3)}".into(), "may speak: true".into()]), "{said:?}");
}

#[test]
fn a_copy_is_silent_before_it_is_marked_and_drops_what_it_runs() {
    let mut node = Node::new();
    node.tell(map(1, &[1, 2], &[]));
    node.tell(Input::Restored { seeds: 0, copy: None });
    assert_eq!(node.tell(Input::LetIn(NodeId(2))), ["may speak: true"]);
    let is_copy = || Input::IsCopy { by: NodeId(2), text: "old".into() };
    assert_eq!(node.tell(is_copy()), ["may speak: false", "copy by n2: old", "w1 drops p1"]);
    assert!(node.tell(is_copy()).is_empty() && node.tell(Input::LetIn(NodeId(2))).is_empty());
    let mut next = Node::new();
    next.tell(map(1, &[1, 2], &[]));
    assert_eq!(next.tell(Input::Restored { seeds: 0, copy: Some("old".into()) }), ["w1 drops p1"]);
    assert!(next.tell(Input::LetIn(NodeId(2))).is_empty());
}

#[test]
fn a_split_that_does_not_say_where_goes_on_with_the_median_of_the_largest_partition() {
    let mut node = Node::new();
    let directory = Some(entry(PartitionId::DIRECTORY, 1, (b"", None), &[1]));
    let partitions = vec![entry(PARENT, 1, (b"", Some(b"m")), &[1]), entry(CHILD, 1, (b"m", None), &[1])];
    let map = PartitionMap { version: MapVersion(1), directory, partitions, ..PartitionMap::default() };
    node.tell(Input::Report(Report::Directory(Arc::new(DirectoryState { map, ..DirectoryState::default() }))));
    node.tell(Input::Report(Report::Led(PartitionId::DIRECTORY, Some(OWN))));
    let replica = |keys| LocalReplica { leads: true, keys, ..LocalReplica::default() };
    let replicas = [(PARENT, replica(3)), (CHILD, replica(7))].into();
    let view = View::new([(OWN, LocalStatus { replicas, ..LocalStatus::default() })].into());
    let mut split = |verb, median: Option<&'static [u8]>| {
        let shape = Shape::Split { partition: None, at: None };
        let request = ReshapeRequest { change: ChangeId(1), shape, dry_run: false, force: false, within: None };
        let asked = node.tell(Input::Verb { verb, request: Box::new(request), view: Box::new(view.clone()) });
        assert_eq!(asked, ["median of p2 from n1"]);
        node.tell(Input::Median(verb, median.map(Bytes::from_static))).join(", ")
    };
    assert!(
        split(1, Some(b"t"))
            .contains("begin Reshape(Split { change: ChangeId(1), partition: PartitionId(2), at: b\"t\"")
    );
    assert!(split(2, None).contains("fewer than two keys"));
    assert!(node.tell(Input::Median(2, None)).is_empty(), "it was answered");
}

#[test]
fn a_process_gets_a_number_once_it_has_said_that_it_has_none() {
    let mut node = Node::new();
    let directory = Some(entry(PartitionId::DIRECTORY, 1, (b"", None), &[1]));
    let map = PartitionMap { version: MapVersion(1), directory, ..PartitionMap::default() };
    node.tell(Input::Report(Report::Directory(Arc::new(DirectoryState { map, ..DirectoryState::default() }))));
    node.tell(led_directory(OWN));
    let add = |node: &mut Node, verb, dry_run| {
        let shape = Shape::AddNode { address: "h4:2".into() };
        let request = ReshapeRequest { change: ChangeId(1), shape, dry_run, force: false, within: None };
        let view = View::new([(OWN, LocalStatus::default())].into());
        assert_eq!(
            node.tell(Input::Verb { verb, request: Box::new(request), view: Box::new(view) }),
            ["who is at h4:2?"]
        );
    };
    let found = |node: &mut Node, verb| {
        let applicant = Identified { name: "new".into(), ..Identified::default() };
        node.tell(Input::Identified(verb, Ok(Box::new(applicant)))).join(", ")
    };
    (1..=4).for_each(|verb| add(&mut node, verb, verb == 2));
    assert!(found(&mut node, 1).starts_with("begin Reshape(Register"));
    assert!(found(&mut node, 1).is_empty(), "it was answered");
    assert!(found(&mut node, 2).starts_with("answer Reshaped"), "it is only looked at");
    assert!(node.tell(Input::Identified(3, Err("nobody".into()))).join(", ").contains("Refused(\"nobody\")"));
    node.tell(led_directory(NodeId(2)));
    assert!(found(&mut node, 4).contains("another leader"));
}

fn led_directory(leader: NodeId) -> Input {
    Input::Report(Report::Led(PartitionId::DIRECTORY, Some(leader)))
}

fn led(leader: NodeId) -> Input {
    Input::Report(Report::Led(PARENT, Some(leader)))
}

fn transfer(transfer: TransferId, to: u32, reached: &[u32]) -> Input {
    let (within, reached) = (Duration::from_millis(1_500), reached.iter().copied().map(NodeId).collect());
    Input::Transfer { transfer, partition: PARENT, to: NodeId(to), within, reached }
}

#[test]
fn a_transfer_is_tried_again_until_the_other_node_leads_or_the_time_is_over() {
    let mut node = Node::new();
    node.tell(map(1, &[1, 2, 3], &[]));
    assert_eq!(node.tell(transfer(1, 2, &[2, 3])), ["transfer 1: NotLeader"]);
    node.tell(led(OWN));
    assert!(node.tell(transfer(2, 2, &[3]))[0].contains("n2 does not answer"));
    assert!(node.tell(transfer(3, 2, &[]))[0].contains("no quorum"));
    assert!(node.tell(transfer(4, 4, &[2, 3, 4]))[0].contains("n4 has no replica of p1"));
    assert_eq!(node.tell(transfer(5, 2, &[2])), ["w1 transfers p1 to r2"]);
    assert!(node.look().contains(&"w1 transfers p1 to r2".to_owned()));
    assert!(node.look().iter().any(|said| said.contains("did not take p1 over in time")));
    assert_eq!(node.tell(transfer(6, 3, &[2, 3])), ["w1 transfers p1 to r3"]);
    assert_eq!(node.tell(led(NodeId(3))), ["transfer 6: Done(0ns)"]);
}

#[test]
fn a_node_stops_when_others_lead_what_they_can() {
    let stop = |reached: &[u32]| {
        let led = [(PARENT, reached.iter().copied().map(NodeId).collect())].into();
        Input::Stop { within: Duration::from_secs(5), led }
    };
    let mut node = Node::new();
    node.tell(map(1, &[1, 2, 3], &[]));
    node.tell(led(OWN));
    assert_eq!(node.tell(stop(&[2, 3])), ["w1 transfers p1 to r2"]);
    assert_eq!(node.tell(led(NodeId(2))), ["stopped"]);
    assert_eq!(node.tell(stop(&[2, 3])), ["stopped"], "another one leads");
    node.tell(led(OWN));
    assert_eq!(node.tell(stop(&[])), ["stopped"], "nobody is there");
}

#[test]
fn the_log_hears_of_a_replica_before_its_worker_and_of_its_end_before_its_checkpoints_go() {
    let logged = |node: &mut Node, input| {
        let mut effects = Vec::new();
        node.0.step(node.1, input, &mut effects);
        let said = effects.iter().filter_map(|effect| match effect {
            Effect::Log(entry) => {
                let awaited = Input::once_durable(entry).is_some();
                let log = match **entry {
                    LogEntry::Created { replica, .. } => format!("log {replica}"),
                    LogEntry::Removed { replica, .. } => format!("log the end of {replica}"),
                    _ => format!("log {entry:?}"),
                };
                Some(format!("{log}, awaited {awaited}"))
            }
            effect => said(effect),
        });
        said.collect::<Vec<_>>()
    };
    let mut node = Node::new();
    assert_eq!(logged(&mut node, map(1, &[1, 2, 3], &[])), ["log r1, awaited true", "start p1 r1"]);
    node.tell(map(2, &[2, 3], &[2, 3]));
    let dropped = logged(&mut node, Input::Report(Report::Dropped(PARENT)));
    assert_eq!(dropped, ["log the end of r1, awaited true", "remove p1 r1"]);
    assert_eq!(node.tell(Input::RemovalDurable(PARENT)), ["delete p1"]);
}

#[test]
fn a_checkpoint_counts_only_for_a_replica_that_the_log_knows() {
    let of = |replay| RecoveredReplica::new(CHILD, replay, Some(*loaded(9)));
    let (mut removed, mut unknown) = (GroupReplay::default(), GroupReplay::default());
    removed.removed = Some(ReplicaId(1));
    assert!(of(removed).is_some_and(|found| found.removed.is_some() && found.loaded.is_none()));
    unknown.created = Some((ReplicaId(1), Bytes::new()));
    assert!(of(unknown).is_none(), "of another version");
}

#[cfg(feature = "mutants")]
#[test]
fn planted_bugs_are_caught() {
    let tests = [
        ("one_worker_knows_all", "a_replica_joins_once_every_worker_has_said_that_none_of_its_own_holds_the_keys"),
        ("joins_amid_deletion", "no_replica_joins_while_checkpoints_of_the_one_before_it_are_deleted"),
        ("forgotten_while_it_speaks", "no_replica_joins_while_checkpoints_of_the_one_before_it_are_deleted"),
        ("joins_before_fork", "a_replica_joins_once_every_worker_has_said_that_none_of_its_own_holds_the_keys"),
        (
            "removed_under_its_child",
            "a_parent_that_goes_is_forgotten_when_the_child_of_a_split_that_was_on_its_way_is_on_the_disk",
        ),
        ("released_before_removal", "a_parent_is_released_when_the_log_says_that_its_child_is_gone"),
        (
            "directory_asks_nobody",
            "whoever_knows_no_leader_of_the_directory_asks_for_the_map_and_whoever_leads_it_tells_who_leads_elsewhere",
        ),
        (
            "leaders_elsewhere_unlearned",
            "whoever_knows_no_leader_of_the_directory_asks_for_the_map_and_whoever_leads_it_tells_who_leads_elsewhere",
        ),
        ("removal_unflushed", "the_log_hears_of_a_replica_before_its_worker_and_of_its_end_before_its_checkpoints_go"),
        ("older_map_counts", "an_older_map_changes_nothing"),
        ("fence_awaits_nobody", "the_word_of_the_other_nodes_of_every_group_here_is_awaited"),
        ("learners_unasked", "who_joins_asks_learners_after_the_voters"),
        ("balance_settles_nothing", "balancing::leaders_are_spread_by_themselves_once_their_loads_are_known"),
        ("assigned_at_every_look", "a_process_is_told_its_number_once_at_a_time_and_then_the_directory_hears_of_it"),
    ];
    for (mutant, test) in tests {
        planted::assert_caught(mutant, &format!("controller::tests::{test}"));
    }
}
