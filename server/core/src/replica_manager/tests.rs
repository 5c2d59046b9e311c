//! Each test is a rule of [`super`], told by what goes in and what comes out.

use bytes::Bytes;
use coppice_btree::KeyRange;
use coppice_client::map::ReplicaInfo;
use coppice_client::wire::ReplicaId as WireReplica;
use coppice_ordering::{Ballot, Config, Configuration, Effect, Input, Paxos, Record, Time};

use super::*;
use crate::machine::Machine;
use crate::machine::partition::Partition;
use crate::replay::{Entry as LogEntry, ReadsLog, Replay};

const OWN: NodeId = NodeId(1);
const PARENT: PartitionId = PartitionId(1);
const CHILD: PartitionId = PartitionId(2);

fn entry(partition: PartitionId, version: u64, nodes: &[u32], role: Role) -> Entry {
    let info = |(replica, &node): (u32, &u32)| ReplicaInfo { replica: WireReplica(replica), node: NodeId(node), role };
    Entry {
        partition,
        version: MapVersion(version),
        low: Bytes::new(),
        high: None,
        replicas: (1..).zip(nodes).map(info).collect(),
    }
}

fn map(version: u64, partitions: Vec<Entry>) -> PartitionMap {
    PartitionMap { version: MapVersion(version), partitions, ..PartitionMap::default() }
}

fn fork(nodes: &[u32]) -> Fork {
    Fork {
        instance: Instance(7),
        version: MapVersion(2),
        replicas: entry(CHILD, 2, nodes, Role::Voter).replicas,
        partition: Partition::new(CHILD, KeyRange { low: b"m"[..].into(), high: None }, MapVersion(2)),
    }
}

fn loaded(instance: u64) -> LoadedSnapshot {
    let partition = Partition::new(CHILD, KeyRange { low: b"m"[..].into(), high: None }, MapVersion(2));
    LoadedSnapshot {
        machine: Machine::Partition(Box::new(partition)),
        instance: Instance(instance),
        configuration: Configuration::of_voters([ReplicaId(1)]),
        configured_at: Instance(7),
        promised: Ballot::ZERO,
    }
}

/// A replica manager with a running parent.
fn parent(nodes: &[u32]) -> ReplicaManager {
    let mut replica_manager = ReplicaManager::default();
    let PlacementDemand::Begin(start) = replica_manager.wanted(OWN, &entry(PARENT, 1, nodes, Role::Voter)) else {
        panic!("the first map founds the group");
    };
    assert!(start.is_new && start.campaign_first);
    replica_manager.runs(&start);
    replica_manager
}

#[test]
fn a_replica_of_a_later_map_begins_with_a_snapshot() {
    let mut replica_manager = ReplicaManager::default();
    assert!(matches!(
        replica_manager.wanted(OWN, &entry(PARENT, 2, &[1, 2], Role::Voter)),
        PlacementDemand::Join(ReplicaId(1))
    ));
    assert!(matches!(
        replica_manager.wanted(OWN, &entry(PARENT, 1, &[1], Role::Learner)),
        PlacementDemand::Join(ReplicaId(1))
    ));
    assert!(matches!(replica_manager.wanted(OWN, &entry(PARENT, 1, &[2, 3], Role::Voter)), PlacementDemand::Nothing));
}

#[test]
fn a_child_begins_once_even_if_it_was_removed_since() {
    let mut replica_manager = parent(&[1, 2, 3]);
    let start = replica_manager.fork(OWN, PARENT, false, &fork(&[1, 2, 3])).expect("it begins");
    assert!(start.is_new && start.snapshot == Instance(7) && !start.campaign_first);
    replica_manager.runs(&start);
    assert!(replica_manager.fork(OWN, PARENT, false, &fork(&[1, 2, 3])).is_none());
    replica_manager.saved(CHILD);
    assert_eq!(replica_manager.remove(OWN, &PartitionMap::default(), CHILD), Some(ReplicaId(1)));
    assert!(replica_manager.fork(OWN, PARENT, false, &fork(&[1, 2, 3])).is_none());
    assert!(matches!(replica_manager.wanted(OWN, &entry(CHILD, 3, &[1], Role::Voter)), PlacementDemand::Nothing));
}

#[test]
fn a_parent_is_needed_until_its_child_has_a_checkpoint() {
    let mut replica_manager = parent(&[1, 2, 3]);
    let start = replica_manager.fork(OWN, PARENT, true, &fork(&[1, 2, 3])).expect("it begins");
    replica_manager.runs(&start);
    replica_manager.create_is_durable(CHILD, start.me);
    assert!(replica_manager.is_needed(PARENT) && !replica_manager.is_needed(CHILD));
    let moved = map(5, vec![entry(CHILD, 2, &[1, 2, 3], Role::Voter)]);
    assert_eq!(
        (replica_manager.unnamed(OWN, &moved), replica_manager.remove(OWN, &PartitionMap::default(), PARENT)),
        (vec![], None)
    );
    replica_manager.saved(CHILD);
    assert_eq!(replica_manager.unnamed(OWN, &moved), [PARENT]);
    assert_eq!(replica_manager.remove(OWN, &PartitionMap::default(), PARENT), Some(ReplicaId(1)));
}

/// Seed 1100114: the deletion of the older replica's checkpoints took the snapshot that the next one began with.
#[test]
fn a_replica_joins_once_an_older_one_of_its_group_is_gone() {
    let mut replica_manager = parent(&[1, 2, 3]);
    let start = replica_manager.fork(OWN, PARENT, true, &fork(&[1, 2, 3])).expect("it begins");
    replica_manager.runs(&start);
    replica_manager.create_is_durable(CHILD, start.me);
    let again = ReplicaInfo { replica: WireReplica(4), node: OWN, role: Role::Learner };
    let moved = Entry { replicas: vec![again], ..entry(PARENT, 5, &[], Role::Learner) };
    let map = map(5, vec![moved.clone(), entry(CHILD, 2, &[1, 2, 3], Role::Voter)]);
    assert!(replica_manager.unnamed(OWN, &map).is_empty(), "its child has no checkpoint");
    assert!(matches!(replica_manager.wanted(OWN, &moved), PlacementDemand::Nothing));
    replica_manager.saved(CHILD);
    assert_eq!(replica_manager.unnamed(OWN, &map), [PARENT]);
    assert_eq!(replica_manager.remove(OWN, &map, PARENT), Some(ReplicaId(1)));
    assert!(matches!(replica_manager.wanted(OWN, &moved), PlacementDemand::Join(ReplicaId(4))));
}

/// The snapshot was under way when the parent's replica here executed the split. The two would have run side by side.
#[test]
fn a_split_that_is_executed_meanwhile_calls_a_join_off() {
    let mut replica_manager = parent(&[1, 2, 3]);
    assert!(replica_manager.begin_join(CHILD, ReplicaId(4)));
    let start = replica_manager.fork(OWN, PARENT, true, &fork(&[1, 2, 3])).expect("it begins");
    replica_manager.runs(&start);
    let again = ReplicaInfo { replica: WireReplica(4), node: OWN, role: Role::Learner };
    let named = Entry { replicas: vec![again], ..entry(CHILD, 5, &[], Role::Learner) };
    assert!(replica_manager.joined(OWN, &map(5, vec![named]), (CHILD, ReplicaId(4)), loaded(9)).is_none());
    assert!(!replica_manager.end_join(CHILD, ReplicaId(4)));
}

#[test]
fn an_older_map_removes_nobody() {
    let mut replica_manager = ReplicaManager::default();
    assert!(replica_manager.begin_join(CHILD, ReplicaId(1)));
    let start = replica_manager.joined(
        OWN,
        &map(4, vec![entry(CHILD, 4, &[1], Role::Learner)]),
        (CHILD, ReplicaId(1)),
        loaded(9),
    );
    replica_manager.runs(&start.expect("the map wants it"));
    assert!(replica_manager.unnamed(OWN, &map(3, vec![])).is_empty());
    assert!(replica_manager.unnamed(OWN, &PartitionMap::default()).is_empty());
    assert_eq!(replica_manager.unnamed(OWN, &map(5, vec![])), [CHILD]);
}

#[test]
fn a_replica_without_its_state_waits_for_one_that_reaches_its_votes() {
    let mut replica_manager = ReplicaManager::default();
    let create = CreateRequest::of(&entry(CHILD, 1, &[1, 2, 3], Role::Voter));
    let mut replay = Replay::default();
    replay.apply(false, LogEntry::Trimmed { group: CHILD, upto: Instance(20) });
    let replay = replay.groups.remove(&CHILD).expect("it was told of");
    let start = replica_manager.restart(OWN, (CHILD, ReplicaId(1)), create, Some(loaded(12)), replay);
    assert!(matches!(start, Ok(None)));
    assert_eq!(replica_manager.unasked(), [CHILD]);
    let first = replica_manager.ask_for_state(OWN, &map(1, vec![]), CHILD);
    assert_eq!((first, replica_manager.unasked()), (Some((vec![NodeId(2), NodeId(3)], Instance(20))), vec![]));
    assert!(replica_manager.snapshot_arrived(CHILD, Some(loaded(19))).is_none());
    let second = replica_manager.ask_for_state(OWN, &map(1, vec![]), CHILD);
    assert_eq!(second, Some((vec![NodeId(3), NodeId(2)], Instance(20))));
    let start = replica_manager.snapshot_arrived(CHILD, Some(loaded(20))).expect("it reaches far enough");
    assert!(!start.is_new && start.snapshot == Instance(20) && replica_manager.awaiting_snapshot().is_empty());
}

/// A crash came between a snapshot from a peer and what the log says of it.
#[test]
fn a_replica_whose_log_knows_nothing_of_its_snapshot_trims_it_first() {
    let create = || CreateRequest::of(&entry(CHILD, 1, &[1, 2, 3], Role::Voter));
    let start = |decided: u64| {
        let mut replay = Replay::default();
        let record = Record::Decided { upto: Instance(decided) };
        replay.apply(false, LogEntry::Group { group: CHILD, record });
        let replay = replay.groups.remove(&CHILD).expect("it was told of");
        let start = ReplicaManager::default().restart(OWN, (CHILD, ReplicaId(1)), create(), Some(loaded(12)), replay);
        start.expect("its state is there").expect("it goes on").trim_upto
    };
    assert_eq!([start(11), start(12), start(20)], [Some(Instance(12)), None, None]);
}

#[test]
fn a_child_that_lost_its_beginning_goes_on_from_the_split_executed_again() {
    let mut replica_manager = ReplicaManager::default();
    let create = CreateRequest::of_fork(PARENT, &fork(&[1, 2, 3]));
    let waits = replica_manager.restart(OWN, (CHILD, ReplicaId(1)), create, None, GroupReplay::default());
    assert!(matches!(waits, Ok(None)));
    let start = replica_manager.fork(OWN, PARENT, false, &fork(&[1, 2, 3])).expect("it goes on");
    assert!(!start.is_new && start.snapshot == Instance(7) && replica_manager.awaiting_snapshot().is_empty());
}

/// Seed 534: a checkpoint that had been fetched rotted, the older one was the fork's own, and a parent that was as far
/// back executed the split again: the child began from its fork, and reported holes where it had voted.
#[test]
fn mv11_a_child_whose_log_is_trimmed_above_its_fork_does_not_go_on_from_there() {
    let mut replica_manager = ReplicaManager::default();
    let create = || CreateRequest::of_fork(PARENT, &fork(&[1, 2, 3]));
    let replay = |upto| {
        let mut replay = Replay::default();
        replay.apply(false, LogEntry::Trimmed { group: CHILD, upto: Instance(upto) });
        replay.groups.remove(&CHILD).expect("it was told of")
    };
    let waits = replica_manager.restart(OWN, (CHILD, ReplicaId(1)), create(), Some(loaded(7)), replay(9));
    assert!(matches!(waits, Ok(None)));
    assert!(replica_manager.fork(OWN, PARENT, false, &fork(&[1, 2, 3])).is_none());
    assert_eq!(replica_manager.unasked(), [CHILD], "it still waits for a state that reaches its votes");
    // A replica that took the place of the one which the split began.
    let waits = replica_manager.restart(OWN, (CHILD, ReplicaId(4)), create(), None, GroupReplay::default());
    assert!(matches!(waits, Ok(None)));
    assert!(replica_manager.fork(OWN, PARENT, false, &fork(&[1, 2, 3])).is_none());
    assert_eq!(replica_manager.unasked(), [CHILD]);
    // Trimmed up to the fork it has all its votes.
    let waits = replica_manager.restart(OWN, (CHILD, ReplicaId(1)), create(), None, replay(7));
    assert!(matches!(waits, Ok(None)));
    assert!(replica_manager.fork(OWN, PARENT, false, &fork(&[1, 2, 3])).is_some());
}

/// Seed 128: a node that alone held a partition was killed behind a split, before the child's first checkpoint, and
/// refused to start ever after.
#[test]
fn a_child_that_is_nowhere_else_waits_for_its_parent() {
    let mut replica_manager = ReplicaManager::default();
    let create = CreateRequest::of_fork(PARENT, &fork(&[1]));
    let waits = replica_manager.restart(OWN, (CHILD, ReplicaId(1)), create, None, GroupReplay::default());
    assert!(matches!(waits, Ok(None)), "{waits:?}");
    assert!(replica_manager.ask_for_state(OWN, &map(2, vec![]), CHILD).is_none(), "nobody else has it");
    assert!(replica_manager.fork(OWN, PARENT, false, &fork(&[1])).is_some());
}

/// Seed 1038: a replica of a partition that ended was to join beside the merge target, which held its keys by then: it
/// waited for a split that never came, and the merge's ticket for a quorum.
#[test]
fn a_replica_of_a_partition_that_ends_waits_for_no_fork() {
    let replica_manager = ReplicaManager::default();
    let mut named = map(4, vec![entry(PARENT, 4, &[1], Role::Voter), entry(CHILD, 4, &[1], Role::Voter)]);
    assert!(
        replica_manager.may_be_forked(&named, CHILD) && !replica_manager.may_be_forked(&named, PartitionId::DIRECTORY)
    );
    named.ending.extend(named.partitions.pop());
    assert!(!replica_manager.may_be_forked(&named, CHILD) && replica_manager.may_be_forked(&named, PARENT));
}

/// Seed 543: two of a partition's three replicas skipped its split by a snapshot, so the child was on one disk.
#[test]
fn mv10_a_snapshot_that_skips_a_split_waits_until_the_child_is_durable_here() {
    let mut replica_manager = parent(&[1, 2, 3]);
    let child = Entry { low: b"m"[..].into(), ..entry(CHILD, 2, &[1, 2, 3], Role::Voter) };
    let named = map(2, vec![entry(PARENT, 2, &[1, 2, 3], Role::Voter), child.clone()]);
    let (held, kept) = (KeyRange::all(), KeyRange::new(b"", b"m"));
    let asked = |replica_manager: &mut ReplicaManager, kept: &KeyRange, map: &PartitionMap| {
        replica_manager.may_install(OWN, map, (PARENT, &held), (kept, MapVersion(2)))
    };
    assert!(asked(&mut replica_manager, &held, &named), "it gives nothing away");
    assert!(!asked(&mut replica_manager, &kept, &map(1, vec![])), "nobody knows who has the rest");
    assert!(replica_manager.may_be_forked(&named, CHILD));
    assert!(!asked(&mut replica_manager, &kept, &named));
    assert!(!replica_manager.may_be_forked(&named, CHILD), "it waits for no fork");

    // The fork comes all the same: its checkpoint is awaited.
    let start = replica_manager.fork(OWN, PARENT, false, &fork(&[1, 2, 3])).expect("it begins");
    replica_manager.runs(&start);
    assert!(!asked(&mut replica_manager, &kept, &named));
    replica_manager.create_is_durable(CHILD, start.me);
    assert!(!asked(&mut replica_manager, &kept, &named));
    replica_manager.saved(CHILD);
    assert!(asked(&mut replica_manager, &kept, &named));

    // Or a snapshot of the child comes.
    let mut replica_manager = parent(&[1, 2, 3]);
    assert!(!asked(&mut replica_manager, &kept, &named));
    assert!(replica_manager.begin_join(CHILD, ReplicaId(1)));
    let start = replica_manager.joined(OWN, &named, (CHILD, ReplicaId(1)), loaded(9)).expect("it is wanted");
    replica_manager.runs(&start);
    assert!(!asked(&mut replica_manager, &kept, &named), "the log does not know of it yet");
    replica_manager.create_is_durable(CHILD, start.me);
    assert!(asked(&mut replica_manager, &kept, &named));

    // Or the child is no longer to be here.
    let mut replica_manager = parent(&[1, 2, 3]);
    let elsewhere = Entry { replicas: entry(CHILD, 3, &[4, 5, 6], Role::Voter).replicas, ..child };
    assert!(asked(&mut replica_manager, &kept, &map(3, vec![elsewhere])));
}

/// Seed 2949: a replica skipped by one snapshot a merge, which had brought it keys, and the split that gave them away
/// again. The replica of the partition that had ended was the last here that had them.
#[test]
fn mv10_a_snapshot_that_skips_a_merge_and_a_split_waits_for_the_child_too() {
    const ENDED: PartitionId = PartitionId(3);
    let mut replica_manager = parent(&[1, 2, 3]);
    let high = Some(Bytes::from("m"));
    let own = Entry { high: high.clone(), ..entry(PARENT, 4, &[1, 2, 3], Role::Voter) };
    let child = Entry { low: b"m"[..].into(), ..entry(CHILD, 4, &[1, 2, 3], Role::Voter) };
    let ended = Entry { low: b"m"[..].into(), ..entry(ENDED, 3, &[1, 2, 3], Role::Voter) };
    let named = PartitionMap { ending: vec![ended.clone()], ..map(4, vec![own, child]) };
    let held = KeyRange::new(b"", b"m");
    let asked = |replica_manager: &mut ReplicaManager, map: &PartitionMap| {
        replica_manager.may_install(OWN, map, (PARENT, &held), (&held, MapVersion(4)))
    };
    assert!(asked(&mut replica_manager, &named), "the partition that ends is not here");
    let PlacementDemand::Begin(start) = replica_manager.wanted(OWN, &Entry { version: FIRST_MAP, ..ended }) else {
        panic!("new")
    };
    replica_manager.runs(&start);
    replica_manager.create_is_durable(ENDED, start.me);
    assert!(!asked(&mut replica_manager, &map(3, vec![])), "nobody knows what ended");
    assert!(!asked(&mut replica_manager, &named));
    assert!(!replica_manager.may_be_forked(&named, CHILD), "it waits for no fork");
    assert!(replica_manager.begin_join(CHILD, ReplicaId(1)));
    let start = replica_manager.joined(OWN, &named, (CHILD, ReplicaId(1)), loaded(9)).expect("it is wanted");
    replica_manager.runs(&start);
    replica_manager.create_is_durable(CHILD, start.me);
    assert!(asked(&mut replica_manager, &named));
}

/// Seed 2001337: a replica skipped a split, a merge and another split by one snapshot. The last child was not born yet:
/// its parent lacked the majority that this node was needed for, and waited here for the fork that was skipped.
#[test]
fn mv10_a_snapshot_that_waits_for_a_child_to_start_lets_its_parent_join() {
    const GRANDCHILD: PartitionId = PartitionId(3);
    let mut replica_manager = parent(&[1, 2, 3]);
    let high = |key: &'static str| Some(Bytes::from(key));
    let ended = Entry { high: high("m"), ..entry(PARENT, 3, &[1, 2, 3], Role::Voter) };
    let target = Entry { high: high("b"), ..entry(CHILD, 4, &[1, 2, 3], Role::Voter) };
    let pending_creates = Entry { low: b"b"[..].into(), ..entry(GRANDCHILD, 4, &[1, 2, 3], Role::Voter) };
    let named = PartitionMap { ending: vec![ended], ..map(4, vec![target, pending_creates]) };
    assert!(replica_manager.may_be_forked(&named, CHILD));
    let (held, kept) = (KeyRange::all(), KeyRange::new(b"", b"m"));
    assert!(!replica_manager.may_install(OWN, &named, (PARENT, &held), (&kept, MapVersion(4))));
    assert!(!replica_manager.may_be_forked(&named, CHILD), "only with it does the group have its majority");
}

/// A crash may leave a checkpoint of a child that the log does not know, and the parent's behind the split.
#[test]
fn mv10_a_child_is_durable_when_both_its_create_request_and_its_checkpoint_are() {
    for create_request_first in [true, false] {
        let mut replica_manager = parent(&[1, 2, 3]);
        let start = replica_manager.fork(OWN, PARENT, false, &fork(&[1, 2, 3])).expect("it begins");
        replica_manager.runs(&start);
        let create = |replica_manager: &mut ReplicaManager| replica_manager.create_is_durable(CHILD, start.me);
        if create_request_first {
            create(&mut replica_manager);
            assert_eq!((replica_manager.unsaved(), replica_manager.is_needed(PARENT)), (vec![CHILD], true));
        }
        replica_manager.saved(CHILD);
        assert_eq!((replica_manager.unsaved(), replica_manager.is_needed(PARENT)), (vec![], !create_request_first));
        create(&mut replica_manager);
        assert!(!replica_manager.is_needed(PARENT));
    }
}

/// Seed 1424: a child was split before it had a checkpoint. It wrote one behind that split, its own child had none, and
/// all power was lost: nothing made that child again.
#[test]
fn mv11_a_child_that_was_split_waits_for_the_checkpoint_of_its_own_child() {
    const GRANDCHILD: PartitionId = PartitionId(3);
    let mut replica_manager = parent(&[1, 2, 3]);
    let start = replica_manager.fork(OWN, PARENT, false, &fork(&[1, 2, 3])).expect("it begins");
    replica_manager.runs(&start);
    replica_manager.create_is_durable(CHILD, start.me);
    let partition = Partition::new(GRANDCHILD, KeyRange { low: b"t"[..].into(), high: None }, MapVersion(2));
    let start = replica_manager.fork(OWN, CHILD, false, &Fork { partition, ..fork(&[1, 2, 3]) }).expect("it begins");
    replica_manager.runs(&start);
    replica_manager.create_is_durable(GRANDCHILD, start.me);
    assert_eq!(replica_manager.unsaved(), [GRANDCHILD]);
    replica_manager.saved(GRANDCHILD);
    assert_eq!((replica_manager.unsaved(), replica_manager.is_needed(PARENT)), (vec![CHILD], true));
}

/// Seed 1005419: all nodes started again after a split and a merge of the parent, before the child had a checkpoint.
/// The map had dropped the parent, so it went before it had executed the split again, and the child's keys
/// with it.
#[test]
fn mv11_a_parent_stays_until_a_child_that_waits_is_forked_again() {
    const GRANDCHILD: PartitionId = PartitionId(3);
    let mut replica_manager = parent(&[1]);
    for (child, of) in [(CHILD, PARENT), (GRANDCHILD, CHILD)] {
        let create = CreateRequest::of_fork(of, &fork(&[1]));
        let waits = replica_manager.restart(OWN, (child, ReplicaId(1)), create, None, GroupReplay::default());
        assert!(matches!(waits, Ok(None)));
    }
    let named = |child: PartitionId| map(5, vec![Entry { partition: child, ..entry(CHILD, 2, &[1], Role::Voter) }]);
    assert!(replica_manager.unnamed(OWN, &named(CHILD)).is_empty());
    assert!(
        replica_manager.unnamed(OWN, &named(GRANDCHILD)).is_empty(),
        "it comes of the child, which comes of the parent"
    );
    assert_eq!(replica_manager.unnamed(OWN, &map(5, vec![])), [PARENT], "nobody wants them");
    // It was moved away, and a quorum of those that stay holds its log; this node does not know the map yet.
    assert_eq!(replica_manager.remove(OWN, &map(1, vec![]), PARENT), None);
    let start = replica_manager.fork(OWN, PARENT, true, &fork(&[1])).expect("it goes on");
    replica_manager.runs(&start);
    replica_manager.create_is_durable(CHILD, start.me);
    assert!(replica_manager.unnamed(OWN, &named(CHILD)).is_empty(), "it has no checkpoint");
    replica_manager.saved(CHILD);
    assert_eq!(replica_manager.unnamed(OWN, &named(CHILD)), [PARENT]);
}

/// Seed 75: the log still owed a removed replica its flushes; the one that took its place had numbered its own records
/// from the beginning, took them for its own, and voted without a flush.
#[test]
fn px1_no_flush_of_a_removed_replica_is_its_successors() {
    let first_record = |me: u32| {
        let mut replica_manager = ReplicaManager::default();
        let replicas = vec![ReplicaInfo { replica: WireReplica(me), node: OWN, role: Role::Voter }];
        let named = Entry { replicas, ..entry(CHILD, 4, &[], Role::Voter) };
        let loaded = LoadedSnapshot { configuration: Configuration::of_voters([ReplicaId(me)]), ..loaded(9) };
        assert!(replica_manager.begin_join(CHILD, ReplicaId(me)));
        let start =
            replica_manager.joined(OWN, &map(4, vec![named]), (CHILD, ReplicaId(me)), loaded).expect("it is wanted");
        let config = Config { campaign_first: true, ..Config::new(start.me, start.create.configuration(), 1) };
        let mut effects = Vec::new();
        let mut paxos = Paxos::recover(config, start.recovered, Time::ZERO, &mut effects);
        paxos.step(Time::ZERO, Input::Tick, &mut effects);
        let lsn = |effect: &Effect| if let Effect::Persist { lsn, .. } = effect { Some(*lsn) } else { None };
        effects.iter().find_map(lsn).expect("the round that it takes")
    };
    assert!(first_record(2).0 - first_record(1).0 > 1 << 32, "more records than a replica writes before it is removed");
}

/// The process ends between a removal and the deletion that follows it; the next one knows who was removed.
#[test]
fn the_checkpoints_of_a_replica_that_is_gone_are_stale() {
    let mut replica_manager = parent(&[1, 2, 3]);
    let on_disk = || vec![PARENT, CHILD];
    assert_eq!(replica_manager.stale(on_disk()), [CHILD], "of a replica that never began");
    replica_manager.note_removed(CHILD, ReplicaId(1));
    assert_eq!(replica_manager.stale(on_disk()), [CHILD]);
    let start = replica_manager.fork(OWN, PARENT, false, &fork(&[2, 3])).map(|_| ());
    assert!(start.is_none(), "the child has no replica here");
    replica_manager.remove(OWN, &PartitionMap::default(), PARENT).expect("it runs");
    assert_eq!(replica_manager.stale(on_disk()), on_disk());
}

/// Each planted bug makes the test of its rule fail, in a process of its own (hazards.md 6).
#[cfg(feature = "mutants")]
#[test]
fn planted_bugs_of_the_replica_manager_are_caught() {
    for (mutant, test) in [
        ("founds_otherwise", "the_directory_begins_with_the_same_replicas_however_often_it_is_founded"),
        ("stale_checkpoints_stay", "the_checkpoints_of_a_replica_that_is_gone_are_stale"),
        ("parent_awaits_fork", "mv10_a_snapshot_that_waits_for_a_child_to_start_lets_its_parent_join"),
        ("merge_skipped", "mv10_a_snapshot_that_skips_a_merge_and_a_split_waits_for_the_child_too"),
        ("lsns_begin_anew", "px1_no_flush_of_a_removed_replica_is_its_successors"),
        ("fork_again", "a_child_begins_once_even_if_it_was_removed_since"),
        ("child_saved_before_its_child", "mv11_a_child_that_was_split_waits_for_the_checkpoint_of_its_own_child"),
        ("joins_beside_its_elder", "a_replica_joins_once_an_older_one_of_its_group_is_gone"),
        ("joins_after_fork", "a_split_that_is_executed_meanwhile_calls_a_join_off"),
        ("awaited_parent_goes", "mv11_a_parent_stays_until_a_child_that_waits_is_forked_again"),
        ("create_unflushed", "mv10_a_child_is_durable_when_both_its_create_request_and_its_checkpoint_are"),
        ("fork_below_trimmed", "mv11_a_child_whose_log_is_trimmed_above_its_fork_does_not_go_on_from_there"),
        ("install_before_children", "mv10_a_snapshot_that_skips_a_split_waits_until_the_child_is_durable_here"),
        ("install_trims_nothing", "a_replica_whose_log_knows_nothing_of_its_snapshot_trims_it_first"),
        ("snapshot_skips_fork", "a_replica_of_a_later_map_begins_with_a_snapshot"),
    ] {
        planted::assert_caught(mutant, &format!("replica_manager::tests::{test}"));
    }
}

/// Two majorities that do not meet: of the replicas of one `init`, and of those of another one.
#[test]
fn the_directory_begins_with_the_same_replicas_however_often_it_is_founded() {
    let founding = |nodes: &[u32]| entry(PartitionId::DIRECTORY, 0, nodes, Role::Voter);
    let mut manager = ReplicaManager::default();
    assert_eq!(manager.may_found(&founding(&[1])), Ok(()), "nothing began here");
    let PlacementDemand::Begin(start) = manager.wanted(OWN, &founding(&[1])) else { panic!("it begins") };
    manager.runs(&start);
    assert_eq!(manager.may_found(&founding(&[1])), Ok(()), "repeated");
    assert_eq!(manager.may_found(&founding(&[])), Ok(()), "a node that is added");
    assert!(manager.may_found(&founding(&[1, 2, 3])).is_err_and(|text| text.contains("on n1:")));
    let mut again = ReplicaManager::default();
    let replay = GroupReplay::default();
    _ = again.restart(OWN, (PartitionId::DIRECTORY, start.me), start.create, None, replay);
    assert!(again.may_found(&founding(&[1, 2, 3])).is_err(), "a process that started again");
}
