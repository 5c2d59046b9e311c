//! A node was killed with more instances in its log than a replica runs speculatively. Story: after its
//! restart the replica executed the first 2 048 of them and stood still; it led, and its reads were of the past.

#[cfg(feature = "mutants")]
mod common;

use bytes::Bytes;
use coppice_btree::KeyRange;
use coppice_client::wire::{MapVersion, PartitionId};
use coppice_core::executor::{ExecutorSettings, SPECULATIVE_INSTANCES_MAX};
use coppice_core::machine::Machine;
use coppice_core::machine::partition::Partition;
use coppice_core::replica::{Effect, Input, Replica};
use coppice_ordering::{
    Ballot, Batch, Commands, Config, Configuration, Instance, Lsn, Record, RecoveredGroup, ReplicaId, Round, Time,
};

const ME: ReplicaId = ReplicaId(1);

#[test]
fn a_replica_executes_its_whole_log_after_a_restart_however_long_it_is() {
    let count = 3 * SPECULATIVE_INSTANCES_MAX as u64 + 7;
    let mut recovered = RecoveredGroup::new();
    let ballot = Ballot { round: Round(1), replica: ME };
    for n in 1..=count {
        let batch = Batch::Commands(Commands::new(1, Bytes::from_static(b"")));
        let record = Record::Accept { instance: Instance(n), ballot, decided_upto: Instance(n - 1), batch };
        recovered.apply(Lsn(n), record);
    }
    let config = Config { campaign_first: true, ..Config::new(ME, Configuration::of_voters([ME]), 1) };
    let machine = Machine::Partition(Box::new(Partition::new(PartitionId(1), KeyRange::all(), MapVersion(1))));
    let (mut effects, mut now) = (Vec::new(), Time::ZERO);
    let mut replica = Replica::recover(
        PartitionId(1),
        config,
        recovered,
        machine,
        Instance::ZERO,
        ExecutorSettings::default(),
        now,
        &mut effects,
    );
    for _ in 0..10_000 {
        if replica.is_leading() {
            break;
        }
        for effect in std::mem::take(&mut effects) {
            if let Effect::Persist { lsn, .. } = effect {
                replica.step(now, Input::Persisted(lsn), &mut effects);
            }
        }
        now = replica.deadline().map_or(now, |deadline| deadline.max(now));
        replica.step(now, Input::Tick, &mut effects);
    }
    assert!(replica.is_leading());
    assert!(replica.executor().decided() >= Instance(count), "it stands at {}", replica.executor().decided());
}

#[cfg(feature = "mutants")]
#[test]
fn an_executor_that_stands_still_is_caught() {
    let test = "a_replica_executes_its_whole_log_after_a_restart_however_long_it_is";
    common::assert_caught("executor_stands_still", test);
}
