//! Bounds of what a verb may ask for: counts, sizes and times, before anything is done with them.
//!
//! Sizes of partitions and keys of `init` and of a split are checked where they are used, with what the cluster has.

use std::time::Duration;

use crate::access;
use crate::machine::directory::{DirectoryCommand, Reshape};
use crate::settings::ClusterSettings;
use crate::settings::units::show_time;
use coppice_client::map::Addresses;
use coppice_client::wire::{
    AdminRequest, InitRequest, KEY_BYTES_MAX, LinkFault, MapVersion, ReshapeRequest, Shape, TRANSFER_DEADLINE_MAX,
};

/// Bytes of a setting's name, or of its value: all that there are need fewer than fifty.
const SETTING_BYTES_MAX: usize = 256;

/// Settings of one `init`: more than there are.
const SETTINGS_MAX: usize = 256;

/// Split keys of one `init`: one fewer than partitions.
const SPLIT_KEYS_MAX: usize = 255;

/// Bytes of a log filter.
const LOG_FILTER_BYTES_MAX: usize = 1_024;

/// Bytes of `host:port`: the longest name that DNS knows, and a port.
const ADDRESS_BYTES_MAX: usize = 253 + 6;

/// Bytes of a node's label.
const NAME_BYTES_MAX: usize = 1_024;

/// Nodes in one verb: more than a cluster has.
const NODES_MAX: usize = 1_024;

/// A fault makes a link so much slower at most.
const FAULT_DELAY_MAX: Duration = Duration::from_secs(60);

/// Whether the request stays within the bounds.
///
/// # Errors
/// In words, the bound that it breaks.
pub fn check(request: &AdminRequest) -> Result<(), String> {
    match request {
        AdminRequest::Init(request) => init(request),
        AdminRequest::ConfigSet { key, value } => setting(key, value),
        AdminRequest::ConfigUnset { key } => setting(key, ""),
        AdminRequest::LogLevel { spec } => at_most("a log filter", spec.len(), LOG_FILTER_BYTES_MAX, "bytes"),
        AdminRequest::TransferLeader { deadline_ms, .. } => {
            let deadline = Duration::from_millis(u64::from(*deadline_ms));
            if deadline.is_zero() || deadline > TRANSFER_DEADLINE_MAX {
                let (is, most) = (show_time(deadline), show_time(TRANSFER_DEADLINE_MAX));
                return Err(format!("the deadline of a transfer is between 1ms and {most}, not {is}"));
            }
            Ok(())
        }
        AdminRequest::Reshape(request) => reshape(request),
        AdminRequest::Faults(faults) => {
            at_most("a list of faults", faults.len(), NODES_MAX, "nodes")?;
            let delay = |fault: &LinkFault| Duration::from_millis(u64::from(fault.delay_ms));
            match faults.iter().map(delay).find(|delay| *delay > FAULT_DELAY_MAX) {
                Some(delay) => {
                    Err(format!("a link is slowed by at most {}, not {}", show_time(FAULT_DELAY_MAX), show_time(delay)))
                }
                None => Ok(()),
            }
        }
        AdminRequest::ChangeUsers(change) => access::check(change).map_err(|error| error.to_string()),
        other => match other.properties() {
            verb if verb.has_data => Err(format!("the data of {} has no bound here", verb.name)),
            _ => Ok(()),
        },
    }
}

/// The same for a change of the directory that another node passes on: what an operator asked for was checked there, by
/// a node that may have been broken since. What is once in the directory's log every node takes.
///
/// # Errors
/// In words, the bound that it breaks.
pub fn directory(command: &DirectoryCommand) -> Result<(), String> {
    match command {
        DirectoryCommand::Create { map, settings } => {
            if map.version != MapVersion(1) {
                return Err(format!("the first map has version 1, not {}", map.version.0));
            }
            map.check().map_err(|error| error.to_string())?;
            at_most("a map", map.nodes.len(), NODES_MAX, "nodes")?;
            map.nodes.iter().try_for_each(|node| named(&node.name, &node.addresses))?;
            settings.iter().try_for_each(|(key, value)| known_setting(key, value))
        }
        DirectoryCommand::Set { key, value } => known_setting(key, value),
        DirectoryCommand::Unset { key } => setting(key, ""),
        DirectoryCommand::RaiseFeatureLevel { .. } => Ok(()),
        DirectoryCommand::Announce { addresses, .. } => named("", addresses),
        DirectoryCommand::Reshape(Reshape::Register { name, addresses, .. }) => named(name, addresses),
        DirectoryCommand::Reshape(Reshape::Move { to, .. }) => at_most("a move", to.len(), NODES_MAX, "target nodes"),
        DirectoryCommand::ChangeUsers { change, .. } => access::check(change).map_err(|error| error.to_string()),
        // Whose numbers and keys the directory judges.
        DirectoryCommand::Reshape(_) => Ok(()),
    }
}

fn known_setting(key: &str, value: &str) -> Result<(), String> {
    setting(key, value)?;
    ClusterSettings::default().set(key, value).map_err(|error| error.to_string())
}

fn named(name: &str, addresses: &Addresses) -> Result<(), String> {
    at_most("the name of a node", name.len(), NAME_BYTES_MAX, "bytes")?;
    let Addresses { native, peer, admin, resp } = addresses;
    [native, peer, admin, resp]
        .into_iter()
        .try_for_each(|address| at_most("an address", address.len(), ADDRESS_BYTES_MAX, "bytes"))
}

fn at_most(what: &str, is: usize, most: usize, unit: &str) -> Result<(), String> {
    if is > most { Err(format!("{what} has at most {most} {unit}, not {is}")) } else { Ok(()) }
}

fn setting(key: &str, value: &str) -> Result<(), String> {
    at_most("the name of a setting", key.len(), SETTING_BYTES_MAX, "bytes")?;
    at_most("the value of a setting", value.len(), SETTING_BYTES_MAX, "bytes")
}

fn init(request: &InitRequest) -> Result<(), String> {
    at_most("init", request.split_keys.len(), SPLIT_KEYS_MAX, "split keys")?;
    at_most("init", request.settings.len(), SETTINGS_MAX, "settings")?;
    request.settings.iter().try_for_each(|(key, value)| setting(key, value))
}

fn reshape(request: &ReshapeRequest) -> Result<(), String> {
    match &request.shape {
        Shape::AddNode { address } | Shape::ReplaceNode { address, .. } => {
            at_most("an address", address.len(), ADDRESS_BYTES_MAX, "bytes")?;
        }
        Shape::Move { from, to, .. } => {
            at_most("a move", from.len(), NODES_MAX, "source nodes")?;
            at_most("a move", to.len(), NODES_MAX, "target nodes")?;
        }
        Shape::Split { at: Some(at), .. } => at_most("a key", at.len(), KEY_BYTES_MAX, "bytes")?,
        Shape::Split { at: None, .. }
        | Shape::DrainNode { .. }
        | Shape::UndrainNode { .. }
        | Shape::RemoveNode { .. }
        | Shape::Merge { .. }
        | Shape::Rebalance
        // The judge knows the bounds of the setting.
        | Shape::SetReplicas { .. } => {}
    }
    let Some(within) = &request.within else { return Ok(()) };
    let longest = within.low.len().max(within.high.as_ref().map_or(0, |high| high.len()));
    at_most("a boundary", longest, KEY_BYTES_MAX, "bytes")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use coppice_client::map::PartitionMap;
    use coppice_client::wire::{Boundaries, ChangeId, NodeId, PartitionId};

    use super::*;

    fn transfer(deadline_ms: u32) -> Result<(), String> {
        check(&AdminRequest::TransferLeader { partition: PartitionId(1), to: NodeId(2), deadline_ms })
    }

    /// Whatever a transfer holds is held until its deadline.
    #[test]
    fn a_transfer_takes_no_deadline_of_days() {
        assert_eq!(transfer(1).and_then(|()| transfer(60_000)), Ok(()));
        let words = |outcome: Result<(), String>| outcome.expect_err("it is refused");
        assert_eq!(words(transfer(60_001)), "the deadline of a transfer is between 1ms and 1min, not 60001ms");
        assert!(words(transfer(u32::MAX)).contains("1min") && words(transfer(0)).contains("1ms"));
    }

    /// Every node takes what is in the directory's log.
    #[test]
    fn what_another_node_passes_on_to_the_directory_is_bounded_too() {
        let (long, map) = (|| "x".repeat(5_000), |version| PartitionMap { version, ..PartitionMap::default() });
        let set = |key: &str, value: String| DirectoryCommand::Set { key: key.into(), value };
        let create = |version| DirectoryCommand::Create { map: map(MapVersion(version)), settings: BTreeMap::new() };
        let announce = |native: String| DirectoryCommand::Announce {
            node: NodeId(1),
            addresses: Addresses { native, ..Addresses::default() },
        };
        let register = |name: String| {
            let (addresses, replaces) = (Addresses::default(), None);
            DirectoryCommand::Reshape(Reshape::Register { name, addresses, replaces })
        };
        let fine = [set("replicas", "3".into()), create(1), announce("n1:7400".into()), register("rack 1".into())];
        assert!(fine.iter().all(|command| directory(command) == Ok(())));
        let absurd =
            [set("replicas", long()), set("no_such", "1".into()), create(u64::MAX), announce(long()), register(long())];
        assert!(absurd.iter().all(|command| directory(command).is_err()));
    }

    #[test]
    fn no_count_no_size_and_no_time_of_a_verb_is_without_bound() {
        let long = || "x".repeat(5_000);
        let shape = |shape| {
            AdminRequest::Reshape(ReshapeRequest {
                change: ChangeId(1),
                shape,
                dry_run: true,
                force: false,
                within: None,
            })
        };
        let pair = |key: &str, value: &str| InitRequest {
            partitions: 1,
            settings: vec![(key.into(), value.into())],
            ..InitRequest::default()
        };
        let keys = vec![bytes::Bytes::new(); 256];
        let fault = LinkFault { to: NodeId(1), cut: false, delay_ms: 60_000 };
        let to = vec![NodeId(1); 1_025];
        let within = Boundaries { low: long().into(), high: None };
        let cut = Shape::Split { partition: None, at: None };
        let split = ReshapeRequest {
            change: ChangeId(1),
            shape: cut.clone(),
            dry_run: true,
            force: false,
            within: Some(within),
        };
        let absurd = [
            AdminRequest::Init(pair(&long(), "1")),
            AdminRequest::Init(pair("replicas", &long())),
            AdminRequest::Init(InitRequest { settings: vec![Default::default(); 257], ..pair("", "") }),
            AdminRequest::Init(InitRequest { split_keys: keys, ..pair("", "") }),
            AdminRequest::ConfigSet { key: long(), value: String::new() },
            AdminRequest::ConfigSet { key: String::new(), value: long() },
            AdminRequest::LogLevel { spec: long() },
            AdminRequest::Faults(vec![fault; 1_025]),
            AdminRequest::Faults(vec![LinkFault { delay_ms: 60_001, ..fault }]),
            shape(Shape::AddNode { address: long() }),
            shape(Shape::ReplaceNode { old: NodeId(1), address: long() }),
            shape(Shape::Move { partition: PartitionId(1), from: Vec::new(), to: to.clone() }),
            shape(Shape::Move { partition: PartitionId(1), from: to, to: Vec::new() }),
            shape(Shape::Split { partition: None, at: Some(long().into()) }),
            AdminRequest::Reshape(split),
        ];
        for request in absurd {
            let said = check(&request).expect_err("it is refused");
            assert!(said.contains("at most") && said.len() < 120, "{said}");
        }
        let usual = [AdminRequest::Init(pair("replicas", "3")), AdminRequest::Faults(vec![fault; 3]), shape(cut)];
        assert!(usual.iter().all(|request| check(request).is_ok()));
    }
}
