//! What a replica begins with: its create request, as the log keeps it, and the state and records that it goes on from.

use coppice_btree::KeyRange;
use coppice_client::map::{Entry, Role};
use coppice_client::wire::{MapVersion, NodeId, PartitionId};
use coppice_ordering::{Ballot, Configuration, Instance, Lsn, RecoveredGroup, ReplicaId};
use serde::{Deserialize, Serialize};

use crate::ids;
use crate::machine::Machine;
use crate::machine::directory::Directory;
use crate::machine::partition::{Fork, Partition};
use crate::replay::GroupReplay;
use crate::snapshot::LoadedSnapshot;

/// What a replica starts from when nothing else is known of it: written to the log before it does anything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateRequest {
    voters: Vec<ReplicaId>,
    learners: Vec<ReplicaId>,
    nodes: Vec<(ReplicaId, NodeId)>,
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    map_version: u64,
    /// It was there when the group was made: from nothing, the group's log makes its state. One that came later has it
    /// from a snapshot.
    founder: bool,
    /// The partition that it was split off from, if it began with a fork.
    parent: Option<PartitionId>,
}

impl CreateRequest {
    /// Of a replica of a group that the map made.
    pub fn of(entry: &Entry) -> CreateRequest {
        let role = |wanted: Role| {
            let chosen = entry.replicas.iter().filter(move |replica| replica.role == wanted);
            chosen.map(|replica| ids::replica(replica.replica)).collect()
        };
        CreateRequest {
            voters: role(Role::Voter),
            learners: role(Role::Learner),
            nodes: entry.replicas.iter().map(|info| (ids::replica(info.replica), info.node)).collect(),
            low: entry.low.to_vec(),
            high: entry.high.as_ref().map(|high| high.to_vec()),
            map_version: entry.version.0,
            founder: true,
            parent: None,
        }
    }

    /// Of a replica that joins a group which is there already.
    pub fn of_later(entry: &Entry) -> CreateRequest {
        CreateRequest { founder: false, ..CreateRequest::of(entry) }
    }

    /// Of a child: its state comes from the fork, or later from a snapshot, never from its log alone.
    pub fn of_fork(parent: PartitionId, fork: &Fork) -> CreateRequest {
        let range = fork.partition.range();
        let create = CreateRequest::of_later(&Entry {
            partition: fork.partition.id(),
            version: fork.version,
            low: bytes::Bytes::copy_from_slice(&range.low),
            high: range.high.as_ref().map(|high| bytes::Bytes::copy_from_slice(high)),
            replicas: fork.replicas.clone(),
        });
        CreateRequest { parent: Some(parent), ..create }
    }

    /// Whether a fork of `group` is what it began with.
    pub(super) fn is_child_of(&self, group: PartitionId) -> bool {
        self.parent == Some(group)
    }

    /// Where the group's replicas were, this one included.
    pub fn nodes(&self) -> impl Iterator<Item = (ReplicaId, NodeId)> + '_ {
        self.nodes.iter().copied()
    }

    /// The map that asked for it.
    pub fn map_version(&self) -> MapVersion {
        MapVersion(self.map_version)
    }

    /// Who votes and who learns, unless the group's log or a snapshot says otherwise.
    pub fn configuration(&self) -> Configuration {
        Configuration {
            voters: self.voters.iter().copied().collect(),
            learners: self.learners.iter().copied().collect(),
            leaving: Default::default(),
        }
    }

    /// Up to where the state must come from elsewhere before the replica may run; none: it has all that it needs.
    ///
    /// Votes up to the trim position are gone from the log: without the state that came of them the replica must not
    /// run. So it is if all that it began with was a fork or a snapshot.
    pub(super) fn lacks(&self, snapshot: Option<Instance>, trimmed: Option<Instance>) -> Option<Instance> {
        let reached = snapshot.unwrap_or(Instance::ZERO);
        let lost = if self.founder || snapshot.is_some() { None } else { Some(Instance::ZERO) };
        trimmed.filter(|trimmed| *trimmed > reached).or(lost)
    }

    fn machine(&self, group: PartitionId) -> Machine {
        if group == PartitionId::DIRECTORY {
            return Machine::Directory(Directory::default());
        }
        let range = KeyRange { low: self.low.as_slice().into(), high: self.high.as_deref().map(Into::into) };
        Machine::Partition(Box::new(Partition::new(group, range, self.map_version())))
    }
}

/// A replica that is to begin, or to go on, with all that is known of it.
#[derive(Debug)]
pub struct Start {
    pub group: PartitionId,
    pub me: ReplicaId,
    /// What it starts from when nothing else is known.
    pub create: CreateRequest,
    /// The create request is to be written to the log, before anything else of the replica.
    pub is_new: bool,
    /// What its log and snapshot say to the core: of a checkpoint that was rolled forward, as it is on the disk.
    pub recovered: RecoveredGroup,
    /// Its state.
    pub machine: Machine,
    /// The instance of that state.
    pub snapshot: Instance,
    /// The log is to be trimmed up to here, before anything else is written of the replica: its state is of a snapshot
    /// from elsewhere, and a crash came before that was said. What the log holds below is no way to it from an older
    /// checkpoint.
    pub trim_upto: Option<Instance>,
    /// Nobody leads yet, and it is the one to try first.
    pub campaign_first: bool,
}

/// The numbers of a replica's records begin above this, far above those of any replica of its group before it: what the
/// log still owes that one must not be taken for an answer to this one, which would vote without a flush
/// (hazards.md PX1).
fn first_lsn(me: ReplicaId) -> Lsn {
    if mutant!(lsns_begin_anew) {
        return Lsn(0);
    }
    Lsn(u64::from(me.0) << 40)
}

impl Start {
    /// Of a group that was just made: its log makes its state.
    pub(crate) fn founding(group: PartitionId, me: ReplicaId, create: CreateRequest, campaign_first: bool) -> Start {
        let machine = create.machine(group);
        let (recovered, snapshot) = (RecoveredGroup::new(), Instance::ZERO);
        Start { group, me, create, is_new: true, recovered, machine, snapshot, trim_upto: None, campaign_first }
    }

    /// Of a replica that ran here before, from its checkpoint, rolled forward as far as `replay` says, and what the log
    /// holds above that.
    pub(super) fn again(
        group: PartitionId,
        me: ReplicaId,
        create: CreateRequest,
        loaded: Option<LoadedSnapshot>,
        replay: &mut GroupReplay,
    ) -> Start {
        let mut start = match loaded {
            Some(loaded) => Start::joining(group, me, create, loaded),
            None => Start::founding(group, me, create, false),
        };
        start.is_new = false;
        if !mutant!(install_trims_nothing) {
            start.trim_upto = Some(start.snapshot).filter(|snapshot| *snapshot > replay.decided());
        }
        start.snapshot = start.snapshot.max(replay.state());
        if let Some((upto, bytes)) = replay.evicted {
            start.recovered.evict(upto, bytes);
        }
        start.replay(replay);
        start
    }

    /// Of a replica that begins with a snapshot.
    pub(super) fn joining(group: PartitionId, me: ReplicaId, create: CreateRequest, loaded: LoadedSnapshot) -> Start {
        let LoadedSnapshot { machine, instance, configuration, configured_at, promised } = loaded;
        let mut recovered = RecoveredGroup::from_snapshot(instance, configuration, configured_at, promised);
        recovered.number_above(first_lsn(me));
        Start {
            group,
            me,
            create,
            is_new: true,
            recovered,
            machine,
            snapshot: instance,
            trim_upto: None,
            campaign_first: false,
        }
    }

    /// Of a split's child; whoever leads the parent leads the child soonest.
    pub(super) fn forked(parent: PartitionId, fork: &Fork, me: ReplicaId, parent_is_led: bool) -> Start {
        let voters = fork.replicas.iter().map(|info| ids::replica(info.replica));
        let configuration = Configuration::of_voters(voters);
        // A new group: nobody has led it yet.
        let mut recovered = RecoveredGroup::from_snapshot(fork.instance, configuration, fork.instance, Ballot::ZERO);
        recovered.number_above(first_lsn(me));
        Start {
            group: fork.partition.id(),
            me,
            create: CreateRequest::of_fork(parent, fork),
            is_new: true,
            recovered,
            machine: Machine::Partition(Box::new(fork.partition.copy())),
            snapshot: fork.instance,
            trim_upto: None,
            campaign_first: parent_is_led,
        }
    }

    /// Takes in what the log holds of it.
    pub(super) fn replay(&mut self, replay: &mut GroupReplay) {
        for (lsn, record) in replay.take_records() {
            self.recovered.apply(lsn, record);
        }
    }
}
