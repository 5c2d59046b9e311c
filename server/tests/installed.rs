//! Found by the simulator: a replica that installed a snapshot went on with the default limits of the session table,
//! while the others used the cluster's. It ended other sessions than they, and their states differed (ordering.md 6).

#[cfg(feature = "mutants")]
mod common;

use coppice_btree::KeyRange;
use coppice_client::wire::{MapVersion, PartitionId};
use coppice_ordering::Instance;
use coppice_server::executor::{Executing, Executor};
use coppice_server::machine::Machine;
use coppice_server::machine::shard::Shard;
use coppice_server::sessions::SessionLimits;

fn shard() -> Shard {
    Shard::new(PartitionId(1), KeyRange::all(), MapVersion(1))
}

#[test]
fn an_installed_state_keeps_the_limits_that_are_set_here() {
    let limits = SessionLimits { expiry_instances: 7, sessions_max: 3, ..SessionLimits::default() };
    let mut own = shard();
    own.set_session_limits(limits);
    let mut executor = Executor::new(Machine::Shard(Box::new(own)), Instance::ZERO, Executing::default());
    executor.install(Machine::Shard(Box::new(shard())), Instance(5));
    assert_eq!(executor.machine().shard().map(Shard::session_limits), Some(limits));
}

#[cfg(feature = "mutants")]
#[test]
fn an_installed_state_with_default_limits_is_caught() {
    common::assert_caught("install_default_limits", "an_installed_state_keeps_the_limits_that_are_set_here");
}
