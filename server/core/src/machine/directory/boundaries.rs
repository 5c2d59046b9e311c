//! What the coordinator needs to know of the directory: the partitions, and the changes of boundaries that are to be
//! placed in them (protocol.md 8).

use std::collections::BTreeSet;

use coppice_client::map::PartitionMap;
use coppice_client::wire::MapVersion;
use coppice_ordering::multicast::Change;

use super::{Change as Decided, DirectoryState};
use crate::ids;
use crate::machine::partition::BoundaryChange;

/// Every partition that holds keys.
pub fn partitions(map: &PartitionMap) -> BTreeSet<coppice_ordering::PartitionId> {
    map.partitions.iter().map(|entry| ids::core_partition(entry.partition)).collect()
}

/// Changes of boundaries that are decided and not known to be `released`, oldest first.
pub fn changes(state: &DirectoryState, released: &BTreeSet<MapVersion>) -> Vec<Change> {
    let open = |change: &&BoundaryChange| !released.contains(&change.version);
    let boundaries = state.changes.values().filter_map(Decided::boundary).filter(open);
    let mut changes: Vec<Change> = boundaries
        .map(|change| Change {
            id: coppice_ordering::ChangeId(change.version.0),
            map: coppice_ordering::MapVersion(change.version.0),
            partitions: change.partitions().into_iter().map(ids::core_partition).collect(),
            first: change.first().map(ids::core_partition),
            payload: postcard::to_stdvec(change).expect("a change is plain data").into(),
        })
        .collect();
    changes.sort_by_key(|change| change.map);
    changes
}
