//! The directory's commands, one by one and repeated.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use coppice_btree::KeyRange;
use coppice_client::Token;
use coppice_client::map::{Addresses, Entry, NodeInfo, NodeState, PartitionMap, ReplicaInfo, Role};
use coppice_client::wire::{
    ChangeId, ClusterId, Grant, KEY_BYTES_MAX, MapVersion, NodeId, PartitionId, ReplicaId, Role as WireRole, UserChange,
};
use coppice_ordering::multicast::{Place, Work};
use coppice_ordering::{Ballot, Batch, Commands, Instance, Round, Ticket};

use super::{ChangeOutcome, Directory, DirectoryCommand, DirectoryReply, DirectoryState, Reason, Reshape, boundaries};
use crate::access::UserError;
use crate::machine::Outcome;
use crate::machine::partition::Partition;
use crate::settings::{FEATURE_LEVEL, FEATURE_LEVEL_KEY};

fn addresses(node: u32) -> Addresses {
    Addresses { native: format!("h{node}:1"), peer: format!("h{node}:2"), ..Addresses::default() }
}

/// Nodes 1 to `nodes`, the directory and p1 on the first three.
fn created(nodes: u32) -> Directory {
    let info =
        |id| NodeInfo { id: NodeId(id), name: format!("h{id}"), addresses: addresses(id), state: NodeState::Member };
    let replica = |n| ReplicaInfo { replica: ReplicaId(n), node: NodeId(n), role: Role::Voter };
    let entry = |partition| Entry {
        partition: PartitionId(partition),
        low: Bytes::new(),
        high: None,
        version: MapVersion(1),
        replicas: (1..=3).map(replica).collect(),
    };
    let map = PartitionMap {
        cluster: ClusterId(7),
        version: MapVersion(1),
        nodes: (1..=nodes).map(info).collect(),
        directory: Some(entry(0)),
        partitions: vec![entry(1)],
        ending: Vec::new(),
    };
    let mut directory = Directory::new(DirectoryState::default());
    let create = DirectoryCommand::Create { map, settings: BTreeMap::new() };
    assert_eq!(execute(&mut directory, create), DirectoryReply::Done);
    directory
}

fn execute(directory: &mut Directory, command: DirectoryCommand) -> DirectoryReply {
    let batch = Batch::Commands(Commands::new(1, crate::machine::entry::directory(&command)));
    let mut answers = Vec::new();
    directory.execute(Instance(7), &batch, &mut answers);
    match answers.remove(0).outcome {
        Outcome::Directory(reply) => reply,
        other => panic!("{other:?}"),
    }
}

fn reshape(directory: &mut Directory, command: Reshape) -> DirectoryReply {
    let reply = execute(directory, DirectoryCommand::Reshape(command));
    assert_eq!(directory.state().map.check(), Ok(()));
    reply
}

fn begin(change: u64, partition: u32, to: &[u32]) -> Reshape {
    let to = to.iter().map(|&node| NodeId(node)).collect();
    Reshape::Move { change: ChangeId(change), partition: PartitionId(partition), to }
}

fn replicas(directory: &Directory, partition: u32) -> Vec<(u32, u32, Role)> {
    let entry = directory.state().map.entry(PartitionId(partition)).expect("it is there");
    entry.replicas.iter().map(|info| (info.replica.0, info.node.0, info.role)).collect()
}

const VOTER: Role = Role::Voter;

#[test]
fn a_move_adds_learners_and_ends_with_voters() {
    let mut directory = created(5);
    assert_eq!(reshape(&mut directory, begin(9, 1, &[2, 3, 4])), DirectoryReply::Done);
    let learning = vec![(1, 1, VOTER), (2, 2, VOTER), (3, 3, VOTER), (4, 4, Role::Learner)];
    assert_eq!(replicas(&directory, 1), learning);
    let busy = Reason::Busy { partition: PartitionId(1), change: ChangeId(9) };
    assert_eq!(reshape(&mut directory, begin(10, 1, &[1, 2, 5])), DirectoryReply::Refused(busy), "one wins");
    assert_eq!(reshape(&mut directory, Reshape::Moved { change: ChangeId(9) }), DirectoryReply::Done);
    assert_eq!(replicas(&directory, 1), [(2, 2, VOTER), (3, 3, VOTER), (4, 4, VOTER)]);
    assert_eq!(directory.state().map.version, MapVersion(3));
    assert!(directory.state().changes.is_empty());
}

#[test]
fn a_removed_replicas_id_is_never_given_again() {
    let mut directory = created(3);
    for round in 0..3 {
        reshape(&mut directory, begin(2 * round, 1, &[1, 2]));
        reshape(&mut directory, Reshape::Moved { change: ChangeId(2 * round) });
        reshape(&mut directory, begin(2 * round + 1, 1, &[1, 2, 3]));
        reshape(&mut directory, Reshape::Moved { change: ChangeId(2 * round + 1) });
        assert_eq!(replicas(&directory, 1)[2], (4 + round as u32, 3, VOTER));
    }
}

/// A command of a former leader of the directory arrives when the change is long over, and its opposite was done since.
#[test]
fn mv8_a_repeated_step_changes_nothing() {
    let mut directory = created(4);
    for (change, to) in [(1, [2, 3, 4]), (2, [1, 2, 3])] {
        reshape(&mut directory, begin(change, 1, &to));
        reshape(&mut directory, begin(change, 1, &to));
        reshape(&mut directory, Reshape::Moved { change: ChangeId(change) });
        let once = directory.state().clone();
        assert_eq!(reshape(&mut directory, Reshape::Moved { change: ChangeId(change) }), DirectoryReply::Done);
        assert_eq!(directory.state(), &once);
    }
    let settled = directory.state().clone();
    assert_eq!(reshape(&mut directory, begin(1, 1, &[2, 3, 4])), DirectoryReply::Done);
    assert_eq!(directory.state(), &settled, "the first move was repeated after the second");
    let unknown = DirectoryReply::Refused(Reason::UnknownChange(ChangeId(77)));
    assert_eq!(reshape(&mut directory, Reshape::Moved { change: ChangeId(77) }), unknown);
}

#[test]
fn a_cancelled_move_leaves_everything_as_it_was() {
    let mut directory = created(4);
    let before = replicas(&directory, 1);
    reshape(&mut directory, begin(5, 1, &[1, 2, 3, 4]));
    reshape(&mut directory, Reshape::Cancel { change: ChangeId(5) });
    reshape(&mut directory, Reshape::Unmoved { change: ChangeId(5) });
    assert_eq!(replicas(&directory, 1), before);
    assert_eq!(reshape(&mut directory, begin(5, 1, &[1, 2, 3, 4])), DirectoryReply::Done, "it had its end");
    assert_eq!(replicas(&directory, 1), before);
}

#[test]
fn senseless_moves_are_refused_whole() {
    let mut directory = created(3);
    let before = directory.state().clone();
    for (partition, to, reason) in [
        (8, &[1][..], Reason::UnknownPartition(PartitionId(8))),
        (1, &[], Reason::NoReplica(PartitionId(1))),
        (1, &[1, 2, 9], Reason::UnknownNode(NodeId(9))),
    ] {
        assert_eq!(reshape(&mut directory, begin(1, partition, to)), DirectoryReply::Refused(reason));
        assert_eq!(directory.state(), &before);
    }
}

#[test]
fn a_node_registers_joins_drains_and_leaves() {
    let mut directory = created(3);
    let register = |node| Reshape::Register { name: "new".into(), addresses: addresses(node), replaces: None };
    let taken = Reason::AddressTaken { node: NodeId(2), address: "h2:2".into() };
    assert_eq!(reshape(&mut directory, register(2)), DirectoryReply::Refused(taken));
    let registered = DirectoryReply::Registered(NodeId(4));
    assert_eq!(reshape(&mut directory, register(4)), registered);
    assert_eq!(reshape(&mut directory, register(4)), registered, "asked twice, registered once");
    let not_member = DirectoryReply::Refused(Reason::NotMember(NodeId(4)));
    assert_eq!(reshape(&mut directory, begin(1, 1, &[1, 2, 4])), not_member, "it has not joined");
    reshape(&mut directory, Reshape::Joined { node: NodeId(4) });
    reshape(&mut directory, begin(1, 1, &[1, 2, 4]));
    reshape(&mut directory, Reshape::Moved { change: ChangeId(1) });
    let leave = Reshape::SetState { node: NodeId(4), state: NodeState::Leaving, force: false };
    assert_eq!(reshape(&mut directory, leave), DirectoryReply::Done);
    let holds = Reason::StillHolds { node: NodeId(4), partition: PartitionId(1) };
    assert_eq!(reshape(&mut directory, Reshape::Removed { node: NodeId(4) }), DirectoryReply::Refused(holds));
    reshape(&mut directory, begin(2, 1, &[1, 2, 3]));
    reshape(&mut directory, Reshape::Moved { change: ChangeId(2) });
    assert_eq!(reshape(&mut directory, Reshape::Removed { node: NodeId(4) }), DirectoryReply::Done);
    assert_eq!(reshape(&mut directory, register(4)), DirectoryReply::Registered(NodeId(5)), "a number is used once");
}

#[test]
fn a_lost_disk_comes_back_as_another_node() {
    let mut directory = created(3);
    let register = Reshape::Register { name: "n".into(), addresses: addresses(3), replaces: Some(NodeId(3)) };
    assert_eq!(reshape(&mut directory, register), DirectoryReply::Registered(NodeId(4)));
    let state = directory.state();
    assert_eq!(state.successors.get(&NodeId(3)), Some(&NodeId(4)));
    let old = state.map.node(NodeId(3)).expect("still there");
    assert_eq!((old.state, old.addresses.peer.as_str()), (NodeState::Leaving, ""));
    reshape(&mut directory, Reshape::Joined { node: NodeId(4) });
    reshape(&mut directory, begin(1, 1, &[1, 2, 4]));
    assert_eq!(replicas(&directory, 1)[3], (4, 4, Role::Learner), "a new id, and no vote yet");
}

fn cut(directory: &mut Directory, change: u64, at: &'static str) {
    let (change, partition) = (ChangeId(change), PartitionId(1));
    reshape(directory, Reshape::Split { change, partition, at: Bytes::from(at) });
    release(directory);
}

/// The ticket of the change of boundaries that is under way is released.
fn release(directory: &mut Directory) -> MapVersion {
    let version = directory.state().changes.values().find_map(|change| Some(change.boundary()?.version));
    let version = version.expect("a change of boundaries is under way");
    assert_eq!(reshape(directory, Reshape::Released { version }), DirectoryReply::Done);
    version
}

fn merge(change: u64, partition: u32, target: u32) -> Reshape {
    Reshape::Merge { change: ChangeId(change), partition: PartitionId(partition), target: PartitionId(target) }
}

fn bounds(directory: &Directory) -> Vec<(u32, String, Option<String>)> {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    let entries = directory.state().map.partitions.iter();
    entries.map(|entry| (entry.partition.0, text(&entry.low), entry.high.as_ref().map(text))).collect()
}

#[test]
fn a_boundary_longer_than_a_key_is_refused() {
    for (bytes, boundaries) in [(KEY_BYTES_MAX + 1, 1), (KEY_BYTES_MAX, 2)] {
        let mut directory = created(4);
        let at = Bytes::from(vec![b'k'; bytes]);
        reshape(&mut directory, Reshape::Split { change: ChangeId(1), partition: PartitionId(1), at });
        assert_eq!(bounds(&directory).len(), boundaries, "{bytes} bytes");
    }
}

#[test]
fn a_merge_is_sealed_then_joined_then_forgotten() {
    let mut directory = created(4);
    cut(&mut directory, 1, "k");
    let version = directory.state().map.version;
    assert_eq!(reshape(&mut directory, merge(2, 2, 1)), DirectoryReply::Done);
    assert!(directory.state().map.version > version, "the coordinator looks at new maps only");
    assert_eq!(bounds(&directory).len(), 2, "the keys are still those of the partition that is being sealed");
    let busy = Reason::Busy { partition: PartitionId(1), change: ChangeId(2) };
    assert_eq!(reshape(&mut directory, begin(3, 1, &[1, 2, 4])), DirectoryReply::Refused(busy));
    let sealed = release(&mut directory);
    for _ in 0..2 {
        assert_eq!(reshape(&mut directory, Reshape::Released { version: sealed }), DirectoryReply::Done);
        assert_eq!(bounds(&directory), [(1, String::new(), None)]);
        assert!(directory.state().map.group(PartitionId(2)).is_some(), "its replicas are needed still");
    }
    let gone = Reshape::Gone { partition: PartitionId(2) };
    assert!(matches!(reshape(&mut directory, gone.clone()), DirectoryReply::Refused(Reason::Busy { .. })));
    let joined = release(&mut directory);
    for _ in 0..2 {
        assert_eq!(reshape(&mut directory, Reshape::Released { version: joined }), DirectoryReply::Done);
        assert_eq!(directory.state().ended(ChangeId(2)), Some(ChangeOutcome::Made(PartitionId(1))));
    }
    cut(&mut directory, 5, "m");
    assert_eq!(bounds(&directory)[1].0, 3, "an id is used once");
    let early = Reason::TakingIn { target: PartitionId(1), partition: PartitionId(2) };
    assert_eq!(reshape(&mut directory, merge(6, 3, 1)), DirectoryReply::Refused(early));
    assert_eq!(reshape(&mut directory, gone), DirectoryReply::Done);
    assert!(directory.state().map.group(PartitionId(2)).is_none());
    assert_eq!(reshape(&mut directory, merge(6, 3, 1)), DirectoryReply::Done);
    assert_eq!(reshape(&mut directory, merge(2, 2, 1)), DirectoryReply::Done, "asked again, and not done again");
}

/// The partition remembered by the operator's name what it had applied, and the coordinator what it had released: one
/// used again, long after the directory had forgotten it, was decided and never carried out.
#[test]
fn a_name_used_again_after_many_others_is_another_change() {
    let mut directory = created(4);
    let mut state = Partition::new(PartitionId(1), KeyRange::all(), MapVersion(1));
    let mut split = |directory: &mut Directory, change: u64, at: String| {
        let (change, partition) = (ChangeId(change), PartitionId(1));
        let at = Bytes::from(at);
        assert_eq!(reshape(directory, Reshape::Split { change, partition, at: at.clone() }), DirectoryReply::Done);
        // What the coordinator sends; its name is new each time.
        let [boundary] = &boundaries::changes(directory.state(), &BTreeSet::new())[..] else { panic!("one change") };
        let n = boundary.id.0;
        let ballot = Ballot { round: Round(1), replica: coppice_ordering::ReplicaId(1) };
        let work = Work::Change { id: boundary.id, payload: boundary.payload.clone() };
        let prev = state.last_ticket();
        let place = Place { ticket: Ticket { ballot, n }, prev, work };
        let batch = Batch::Commands(Commands::new(1, crate::machine::entry::place(&place)));
        state.execute(Instance(n), &batch, &mut Vec::new());
        assert_eq!(state.range().high.as_deref(), Some(&at[..]), "it is carried out");
        release(directory);
    };
    split(&mut directory, 7, "z".into());
    for number in 0..300_u32 {
        split(&mut directory, 1_000 + u64::from(number), format!("y{:05}", 999 - number));
    }
    split(&mut directory, 7, "c".into());
    assert_eq!(directory.state().ended(ChangeId(7)), Some(ChangeOutcome::Made(PartitionId(303))));
}

/// Seed 927: the last partition of the first map was merged away, and the next split gave its name to the child; nodes
/// that had removed a replica of that name started none again.
#[test]
fn the_name_of_a_partition_that_was_merged_away_is_never_given_again() {
    let mut map = created(3).state().map.clone();
    let upper = Entry { partition: PartitionId(2), low: Bytes::from_static(b"m"), ..map.partitions[0].clone() };
    map.partitions[0].high = Some(upper.low.clone());
    map.partitions.push(upper);
    let mut directory = Directory::new(DirectoryState::default());
    execute(&mut directory, DirectoryCommand::Create { map, settings: BTreeMap::new() });
    reshape(&mut directory, merge(5, 2, 1));
    release(&mut directory);
    release(&mut directory);
    assert_eq!(reshape(&mut directory, Reshape::Gone { partition: PartitionId(2) }), DirectoryReply::Done);
    cut(&mut directory, 6, "k");
    assert_eq!(directory.state().map.partitions[1].partition, PartitionId(3));
}

#[test]
fn senseless_merges_are_refused_whole() {
    let mut directory = created(4);
    cut(&mut directory, 1, "k");
    cut(&mut directory, 2, "c");
    reshape(&mut directory, begin(3, 2, &[1, 2, 4]));
    reshape(&mut directory, Reshape::Moved { change: ChangeId(3) });
    let before = directory.state().clone();
    let id = PartitionId;
    for (partition, target, reason) in [
        (2, 1, Reason::NotNeighbours(id(2), id(1))),
        (1, 1, Reason::NotNeighbours(id(1), id(1))),
        (3, 2, Reason::Apart(id(3), id(2))),
        (9, 1, Reason::UnknownPartition(id(9))),
        (1, 9, Reason::UnknownPartition(id(9))),
        (0, 1, Reason::UnknownPartition(id(0))),
    ] {
        assert_eq!(reshape(&mut directory, merge(4, partition, target)), DirectoryReply::Refused(reason));
        assert_eq!(directory.state(), &before);
    }
}

#[test]
fn a_removed_node_has_no_address_any_more() {
    let mut directory = created(3);
    reshape(&mut directory, begin(1, 1, &[1, 2]));
    reshape(&mut directory, Reshape::Moved { change: ChangeId(1) });
    reshape(&mut directory, begin(2, 0, &[1, 2]));
    reshape(&mut directory, Reshape::Moved { change: ChangeId(2) });
    let node = NodeId(3);
    reshape(&mut directory, Reshape::SetState { node, state: NodeState::Leaving, force: false });
    reshape(&mut directory, Reshape::Removed { node });
    let before = directory.state().clone();
    let announce = DirectoryCommand::Announce { node, addresses: addresses(3) };
    assert_eq!(execute(&mut directory, announce), DirectoryReply::UnknownNode);
    assert_eq!(directory.state(), &before, "its process runs on, and says where");
}

#[test]
fn undo_takes_everything_back() {
    let mut directory = created(4);
    let before = directory.state().clone();
    let command = DirectoryCommand::Reshape(begin(1, 1, &[1, 2, 4]));
    let batch = Batch::Commands(Commands::new(1, crate::machine::entry::directory(&command)));
    let mark = directory.execute(Instance(8), &batch, &mut Vec::new());
    assert_ne!(directory.state().map, before.map);
    directory.undo(mark);
    assert_eq!(directory.state(), &before);
}

fn add_user(by: Option<&str>, name: &str, role: WireRole) -> DirectoryCommand {
    let token = Some(Token::generate().expect("random bits").hash());
    let grant = Grant { role, prefix: Bytes::new() };
    let change = UserChange::Add { name: name.into(), grant, token, certificate: None };
    DirectoryCommand::ChangeUsers { by: by.map(str::to_owned), change: Box::new(change) }
}

#[test]
fn users_change_under_the_maps_version_and_come_back_by_undo() {
    let mut directory = created(3);
    let before = directory.state().clone();
    let first = add_user(None, "root", WireRole::Admin);
    let batch = Batch::Commands(Commands::new(1, crate::machine::entry::directory(&first)));
    let mark = directory.execute(Instance(8), &batch, &mut Vec::new());
    assert_ne!(Directory::new((*before).clone()).digest(), directory.digest(), "replicas would differ unseen");
    directory.undo(mark);
    assert_eq!(directory.state(), &before);
    let changed = |version, is_first| DirectoryReply::UsersChanged { version: MapVersion(version), is_first };
    assert_eq!(execute(&mut directory, first.clone()), changed(2, true));
    let by_root = add_user(Some("root"), "guest", WireRole::Read);
    assert_eq!(execute(&mut directory, by_root.clone()), changed(3, false));
    assert_eq!(execute(&mut directory, by_root), changed(3, false), "asked twice, over a change of leader");
    assert_eq!(directory.state().map.version, MapVersion(3));
    let settled = directory.state().clone();
    // Judged where it is executed: the door may have judged by older users.
    for by in [None, Some("guest"), Some("nobody")] {
        let refused = execute(&mut directory, add_user(by, "eve", WireRole::Admin));
        assert!(matches!(refused, DirectoryReply::UsersRefused(UserError::NotAllowed { .. })), "{by:?}: {refused:?}");
        assert_eq!(directory.state(), &settled);
    }
}

/// Each of the two was right where it was asked for. Together no node could use them, nor any that came after.
#[test]
fn settings_that_do_not_go_together_are_refused_whoever_comes_first() {
    let mut directory = created(3);
    let set = |key: &str, value: &str| DirectoryCommand::Set { key: key.into(), value: value.into() };
    assert_eq!(execute(&mut directory, set("heartbeat_interval", "140ms")), DirectoryReply::Done);
    let version = directory.state().map.version;
    let refused = execute(&mut directory, set("election_timeout", "110ms"));
    assert!(matches!(&refused, DirectoryReply::Refused(Reason::Setting(why)) if why.contains("heartbeat_interval")));
    assert!(matches!(execute(&mut directory, set("no_such", "1")), DirectoryReply::Refused(Reason::Setting(_))));
    assert_eq!(directory.state().map.version, version);
    assert_eq!(execute(&mut directory, set("election_timeout", "280ms")), DirectoryReply::Done);
}

/// A setting that is returned to its default follows the default; with others it must still go together.
#[test]
fn a_setting_that_is_unset_is_at_its_default_again() {
    let mut directory = created(3);
    let set = |key: &str, value: &str| DirectoryCommand::Set { key: key.into(), value: value.into() };
    let unset = |key: &str| DirectoryCommand::Unset { key: key.into() };
    assert_eq!(execute(&mut directory, unset("window")), DirectoryReply::Done);
    let version = directory.state().map.version;
    assert_eq!(execute(&mut directory, set("window", "7")), DirectoryReply::Done);
    assert_eq!(execute(&mut directory, unset("window")), DirectoryReply::Done);
    assert_eq!((directory.state().settings.get("window"), directory.state().map.version.0), (None, version.0 + 2));
    assert_eq!(execute(&mut directory, set("election_timeout", "1s")), DirectoryReply::Done);
    assert_eq!(execute(&mut directory, set("heartbeat_interval", "400ms")), DirectoryReply::Done);
    let refused = execute(&mut directory, unset("election_timeout"));
    assert!(matches!(refused, DirectoryReply::Refused(Reason::Setting(_))), "{refused:?}");
}

/// The level is raised once every node of the map has noted it: a node that has come since has not.
#[test]
fn the_feature_level_is_raised_by_the_map_that_was_asked_and_by_nothing_else() {
    let mut directory = created(3);
    let level = |directory: &Directory| directory.state().settings.get(FEATURE_LEVEL_KEY).cloned();
    let set = |value: &str| DirectoryCommand::Set { key: FEATURE_LEVEL_KEY.into(), value: value.into() };
    let raise = |level, map| DirectoryCommand::RaiseFeatureLevel { level, map: MapVersion(map) };
    let refused = |reply| matches!(reply, DirectoryReply::Refused(Reason::Setting(_)));
    assert!(refused(execute(&mut directory, set("2"))));
    assert!(refused(execute(&mut directory, raise(2, 0))), "asked of another map");
    assert!(refused(execute(&mut directory, raise(FEATURE_LEVEL + 1, 1))), "nobody knows it");
    assert_eq!((level(&directory), directory.state().map.version.0), (None, 1));
    assert_eq!(execute(&mut directory, raise(2, 1)), DirectoryReply::Done);
    assert_eq!((level(&directory).as_deref(), directory.state().map.version.0), (Some("2"), 2));
    assert_eq!(execute(&mut directory, raise(2, 2)), DirectoryReply::Done, "repeated");
    assert!(refused(execute(&mut directory, raise(1, 2))));
    assert!(refused(execute(&mut directory, set("1"))));
    assert!(refused(execute(&mut directory, DirectoryCommand::Unset { key: FEATURE_LEVEL_KEY.into() })));
    assert_eq!(directory.state().map.version.0, 2);
}

/// A planted bug is on for a whole process, so the test runs once more in a process of its own, and must fail.
#[cfg(feature = "mutants")]
#[test]
fn a_step_that_is_done_twice_is_caught() {
    let test = "machine::directory::tests::mv8_a_repeated_step_changes_nothing";
    planted::assert_caught("change_not_idempotent", test);
    let test = "machine::directory::tests::settings_that_do_not_go_together_are_refused_whoever_comes_first";
    planted::assert_caught("settings_unjudged", test);
    let test = "machine::directory::tests::the_feature_level_is_raised_by_the_map_that_was_asked_and_by_nothing_else";
    planted::assert_caught("raised_over_a_new_node", test);
}
