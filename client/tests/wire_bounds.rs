//! What a frame may make of its bytes: lists of operators are bounded while they are read.

use bytes::Bytes;
use coppice_client::wire::control::decode_control;
use coppice_client::wire::{
    AdminRequest, ChangeId, InitRequest, LinkFault, NodeId, PartitionId, ReshapeRequest, Shape, WireError,
};

fn decoded(request: &AdminRequest) -> Result<AdminRequest, WireError> {
    decode_control(&postcard::to_stdvec(request).expect("plain data"), "admin request")
}

/// 4 MiB of empty strings took 0.3 s and 290 MiB of a node, whoever sent them.
#[test]
fn a_list_of_an_operator_is_refused_before_it_takes_memory() {
    let settings = |count| vec![(String::new(), String::new()); count];
    let init = |count| AdminRequest::Init(InitRequest { settings: settings(count), ..InitRequest::default() });
    assert_eq!(decoded(&init(4_096)), Ok(init(4_096)));
    let many = 1 << 20;
    let fault = LinkFault { to: NodeId(1), cut: true, delay_ms: 0 };
    let shape = Shape::Move { partition: PartitionId(1), from: vec![NodeId(1)], to: vec![NodeId(2); many] };
    let moved = ReshapeRequest { change: ChangeId(1), shape, dry_run: false, force: false, within: None };
    for request in [
        init(4_097),
        AdminRequest::Init(InitRequest { split_keys: vec![Bytes::new(); many], ..InitRequest::default() }),
        AdminRequest::Faults(vec![fault; many]),
        AdminRequest::Reshape(moved),
    ] {
        assert!(decoded(&request).is_err());
    }
}

/// In a process of its own, as every planted bug (hazards.md 6).
#[cfg(feature = "mutants")]
#[test]
fn a_list_without_a_bound_is_caught() {
    let test = "a_list_of_an_operator_is_refused_before_it_takes_memory";
    let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
    let output = command.args([test, "--exact"]).env("COPPICE_MUTANT", "lists_unbounded").output().expect("it runs");
    assert!(!output.status.success(), "lists_unbounded is not caught");
}
