//! The directory as a replica: nobody acts on what is executed and not yet decided (hazards.md MV13).

#[cfg(feature = "mutants")]
mod common;

use std::collections::BTreeMap;

use coppice_client::map::{Addresses, NodeInfo, NodeState, PartitionMap};
use coppice_client::wire::{MapVersion, NodeId, PartitionId};
use coppice_core::executor::ExecutorSettings;
use coppice_core::machine::Machine;
use coppice_core::machine::directory::{Directory, DirectoryCommand};
use coppice_core::replica::{Effect, Input, Replica};
use coppice_core::request::{Origin, Request};
use coppice_ordering::{Config, Configuration, Instance, Lsn, RecoveredGroup, ReplicaId, Time};

/// The only voter: it decides when its own log is flushed.
fn alone(effects: &mut Vec<Effect>) -> Replica {
    let config =
        Config { campaign_first: true, ..Config::new(ReplicaId(1), Configuration::of_voters([ReplicaId(1)]), 1) };
    let machine = Machine::Directory(Directory::default());
    let group = PartitionId::DIRECTORY;
    Replica::recover(
        group,
        config,
        RecoveredGroup::new(),
        machine,
        Instance::ZERO,
        ExecutorSettings::default(),
        Time::ZERO,
        effects,
    )
}

/// Flushes all that is to be flushed, again and again.
fn flush(replica: &mut Replica, now: Time, effects: &mut Vec<Effect>) {
    let newest = |effects: &[Effect]| {
        let lsns = effects.iter().filter_map(|effect| match effect {
            Effect::Persist { lsn, .. } => Some(*lsn),
            _ => None,
        });
        lsns.max()
    };
    let mut flushed = Lsn(0);
    while let Some(lsn) = newest(effects).filter(|&lsn| lsn > flushed) {
        flushed = lsn;
        replica.step(now, Input::Persisted(lsn), effects);
    }
}

#[test]
fn mv13_the_directory_is_acted_on_only_as_far_as_it_is_decided() {
    let mut effects = Vec::new();
    let mut replica = alone(&mut effects);
    let now = Time::from_millis(1);
    replica.step(now, Input::Tick, &mut effects);
    flush(&mut replica, now, &mut effects);
    assert!(replica.is_leading());
    let addresses = Addresses::default();
    let node = NodeInfo { id: NodeId(1), name: "n".into(), addresses, state: NodeState::Member };
    let map = PartitionMap { version: MapVersion(1), nodes: vec![node], ..PartitionMap::default() };
    let command = DirectoryCommand::Create { map, settings: BTreeMap::new() };
    let request = Request::Directory(Box::new(command));
    effects.clear();
    replica.step(
        now,
        Input::Request { origin: Origin::Client { worker: 0, stream: 1, connection: 1 }, request },
        &mut effects,
    );
    replica.step(now, Input::TurnEnd, &mut effects);
    let last_executed = replica.executor().machine().directory().expect("it is the directory").state().map.version;
    assert_eq!(last_executed, MapVersion(1), "it is executed");
    let version = |replica: &Replica| replica.decided_directory().map(|state| state.map.version);
    assert_eq!(version(&replica), Some(MapVersion(0)), "and not decided");
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::DirectoryChanged)));
    flush(&mut replica, now, &mut effects);
    assert_eq!(version(&replica), Some(MapVersion(1)));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::DirectoryChanged)));
}

#[cfg(feature = "mutants")]
#[test]
fn a_change_that_is_told_before_it_is_decided_is_caught() {
    let test = "mv13_the_directory_is_acted_on_only_as_far_as_it_is_decided";
    common::assert_caught("change_before_decided", test);
}
