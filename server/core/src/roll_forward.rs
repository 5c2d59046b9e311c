//! Rolling checkpoints forward while a start reads the log: what is decided is executed as it is read, and let go.
//!
//! Memory holds the states and a bounded part of the log, never all that lies above the checkpoints, and partitions go
//! on beside each other on all cores, before any worker has them. What comes of it is a start from a newer checkpoint,
//! but for the disk: that one is still the older, and the log above it is needed.
//!
//! A state stops where a start from a newer checkpoint would lack something: at a change of boundaries, on which others
//! act; at a configuration; at a batch of which only carried copies are there. Its replica executes the rest.

use std::collections::{BTreeMap, VecDeque};

use coppice_client::wire::PartitionId;
use coppice_ordering::{Instance, Record};

use crate::replay::{Entry, GroupReplay, ReadsLog, Replay, batch_bytes, batch_of};
use crate::snapshot::LoadedSnapshot;

/// How much of the log a start holds.
#[derive(Clone, Copy, Debug)]
pub struct RollBounds {
    /// Payload that is read before it is executed, in bytes.
    pub read: usize,
    /// Payload of executed batches that each group keeps for replicas that are a little behind, in bytes.
    pub kept: usize,
}

impl Default for RollBounds {
    fn default() -> RollBounds {
        // Rounds that take each core a tenth of a second; what a replica keeps of its log at least
        // (`coppice_ordering::Settings::retain_bytes_min`).
        RollBounds { read: 32 << 20, kept: 16 << 20 }
    }
}

/// Calls [`RolledState::execute`] of each: one after the other, or on several threads.
pub type Executes = fn(Vec<&mut RolledState>);

/// One after the other.
pub fn one_by_one(states: Vec<&mut RolledState>) {
    states.into_iter().for_each(RolledState::execute);
}

/// The log as it is read, and the states that it is executed on.
pub struct RollForward {
    replay: Replay,
    states: BTreeMap<PartitionId, RolledState>,
    bounds: RollBounds,
    executes: Executes,
    /// Bytes of batches since the last round, of groups whose states go on.
    read: usize,
}

/// The state of a checkpoint, rolled forward.
pub struct RolledState {
    loaded: LoadedSnapshot,
    /// It holds everything up to here, at or above the checkpoint.
    executed: Instance,
    /// What comes next: decided, ascending.
    next: Vec<Record>,
    /// The newest of what it executed, and their bytes.
    kept: VecDeque<Record>,
    kept_bytes: usize,
    kept_bytes_max: usize,
    /// See [`GroupReplay`].
    evicted: Option<(Instance, usize)>,
    /// It goes on no more.
    stops: bool,
}

/// What a start has of one group.
#[derive(Debug)]
pub struct RolledGroup {
    pub replay: GroupReplay,
    /// Its checkpoint, rolled forward as far as `replay` says; none: it has none, or `reload`.
    pub loaded: Option<LoadedSnapshot>,
    /// A newer replica began here than the one by whose log the state went on: the checkpoint of this instance is to be
    /// loaded again, and no other.
    pub reload: Option<Instance>,
}

impl RollForward {
    /// Nothing of the log is read yet.
    pub fn new(
        loaded: impl IntoIterator<Item = (PartitionId, LoadedSnapshot)>,
        bounds: RollBounds,
        executes: Executes,
    ) -> RollForward {
        let states = loaded.into_iter().map(|(group, loaded)| (group, RolledState::new(loaded, bounds.kept)));
        let states: BTreeMap<_, _> = states.collect();
        let replay = Replay::above(states.iter().map(|(&group, state)| (group, state.executed)).collect());
        RollForward { replay, states, bounds, executes, read: 0 }
    }

    fn roll(&mut self) {
        self.read = 0;
        let mut ready = Vec::new();
        for (group, state) in self.states.iter_mut().filter(|(_, state)| !state.stops) {
            let Some(replay) = self.replay.groups.get_mut(group) else { continue };
            match replay.take_decided() {
                Some(next) => {
                    state.next = next;
                    ready.push((*group, state));
                }
                None => state.stops = true,
            }
        }
        let groups: Vec<PartitionId> = ready.iter().map(|(group, _)| *group).collect();
        (self.executes)(ready.into_iter().map(|(_, state)| state).collect());
        for group in groups {
            let (Some(state), Some(replay)) = (self.states.get_mut(&group), self.replay.groups.get_mut(&group)) else {
                continue;
            };
            replay.put_back(state.next.drain(..));
            self.replay.set_state(group, state.executed);
        }
    }

    /// All of the log is read: executes the rest, and gives what there is of each group that the log knows.
    pub fn finish(mut self) -> impl Iterator<Item = (PartitionId, RolledGroup)> {
        self.roll();
        let RollForward { replay, mut states, .. } = self;
        replay.groups.into_iter().map(move |(group, mut replay)| {
            let Some(state) = states.remove(&group) else {
                return (group, RolledGroup { replay, loaded: None, reload: None });
            };
            if replay.state() < state.executed {
                let reload = replay.created.is_some().then_some(state.loaded.instance);
                return (group, RolledGroup { replay, loaded: None, reload });
            }
            replay.put_back(state.kept);
            replay.evicted = state.evicted;
            (group, RolledGroup { replay, loaded: Some(state.loaded), reload: None })
        })
    }
}

impl ReadsLog for RollForward {
    /// Executes what is decided, each time that so much was read.
    fn apply(&mut self, carried: bool, entry: Entry) {
        if let Some((group, state)) = entry.group().and_then(|group| Some((group, self.states.get_mut(&group)?))) {
            let begins = matches!(entry, Entry::Created { .. } | Entry::Removed { .. }) && !carried;
            if begins && state.has_rolled() && !mutant!(rolls_over_replica) {
                state.stops = true;
                self.replay.set_state(group, state.loaded.instance);
            }
            if let (Entry::Group { record, .. }, false) = (&entry, state.stops) {
                self.read += batch_bytes(record);
            }
        }
        self.replay.apply(carried, entry);
        if self.read >= self.bounds.read {
            self.roll();
        }
    }
}

impl RolledState {
    fn new(loaded: LoadedSnapshot, kept_bytes_max: usize) -> RolledState {
        RolledState {
            executed: loaded.instance,
            loaded,
            next: Vec::new(),
            kept: VecDeque::new(),
            kept_bytes: 0,
            kept_bytes_max,
            evicted: None,
            stops: false,
        }
    }

    fn has_rolled(&self) -> bool {
        self.executed > self.loaded.instance
    }

    /// Executes what comes next, up to what only a replica can execute.
    pub fn execute(&mut self) {
        let mut next = std::mem::take(&mut self.next).into_iter();
        for record in next.by_ref() {
            let executes = batch_of(&record).is_some_and(|(instance, batch)| {
                assert_eq!(instance, self.executed.next(), "a batch out of its order");
                self.loaded.machine.roll_forward(instance, batch)
            });
            if !executes {
                self.next.push(record);
                break;
            }
            self.executed = self.executed.next();
            self.keep(record);
        }
        self.next.extend(next);
        self.stops = !self.next.is_empty();
    }

    fn keep(&mut self, record: Record) {
        self.kept_bytes += batch_bytes(&record);
        self.kept.push_back(record);
        while self.kept_bytes > self.kept_bytes_max
            && let Some(oldest) = self.kept.pop_front()
        {
            let bytes = batch_bytes(&oldest);
            self.kept_bytes -= bytes;
            let before = self.evicted.map_or(0, |(_, bytes)| bytes);
            self.evicted = batch_of(&oldest).map(|(instance, _)| (instance, before + bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use coppice_btree::KeyRange;
    use coppice_client::wire::{ClientId, MapVersion};
    use coppice_ordering::multicast::{Place, Work};
    use coppice_ordering::{Ballot, Batch, ChangeId, Commands, Configuration, ReplicaId, Round, Ticket};

    use super::*;
    use crate::machine::partition::{BoundaryChange, BoundaryStep, Partition};
    use crate::machine::{Machine, entry};

    const GROUP: PartitionId = PartitionId(1);
    const SMALL: RollBounds = RollBounds { read: 1, kept: 0 };

    fn checkpoint(instance: u64) -> LoadedSnapshot {
        LoadedSnapshot {
            machine: Machine::Partition(Box::new(Partition::new(GROUP, KeyRange::all(), MapVersion(1)))),
            instance: Instance(instance),
            configuration: Configuration::of_voters([ReplicaId(1)]),
            configured_at: Instance(1),
            promised: Ballot::ZERO,
        }
    }

    /// What opens a session changes the state.
    fn opens(nonce: u64) -> Batch {
        Batch::Commands(Commands::new(1, entry::open(ClientId(7), nonce)))
    }

    fn seals() -> Batch {
        let step = BoundaryStep::Seal { partition: GROUP, target: PartitionId(2) };
        let change = BoundaryChange { version: MapVersion(2), step };
        let payload = Bytes::from(postcard::to_stdvec(&change).expect("plain data"));
        let ticket = Ticket { ballot: Ballot { round: Round(2), replica: ReplicaId(1) }, n: 1 };
        let work = Work::Change { id: ChangeId(2), payload };
        Batch::Commands(Commands::new(1, entry::place(&Place { ticket, prev: None, work })))
    }

    fn vote(instance: u64, round: u64, decided: u64, batch: Batch) -> Entry {
        let (instance, ballot, decided_upto) = (Instance(instance), Ballot::new(round, 1), Instance(decided));
        Entry::Group { group: GROUP, record: Record::Accept { instance, ballot, decided_upto, batch } }
    }

    /// Of a checkpoint at 10: how far its state comes, its digest, which batches are left, and what is to be loaded
    /// again.
    fn rolled(bounds: RollBounds, log: Vec<(bool, Entry)>) -> (u64, Option<u64>, Vec<u64>, Option<Instance>) {
        let mut rolled = RollForward::new([(GROUP, checkpoint(10))], bounds, one_by_one);
        log.into_iter().for_each(|(carried, entry)| rolled.apply(carried, entry));
        let (_, RolledGroup { mut replay, loaded, reload }) = rolled.finish().next().expect("the log knows it");
        let left = replay.take_records().filter_map(|(_, record)| Some(batch_of(&record)?.0.0)).collect();
        (replay.state().0, loaded.map(|loaded| loaded.machine.digest()), left, reload)
    }

    fn digest(batches: impl IntoIterator<Item = Batch>) -> Option<u64> {
        let mut machine = checkpoint(10).machine;
        (11..).zip(batches).for_each(|(n, batch)| _ = machine.execute(Instance(n), &batch, &mut Vec::new()));
        Some(machine.digest())
    }

    #[test]
    fn what_is_decided_is_executed_and_let_go() {
        let log = || (8..=15).map(|n| (false, vote(n, 1, n - 2, opens(n)))).collect::<Vec<_>>();
        let state = digest((11..=13).map(opens));
        assert_eq!(rolled(SMALL, log()), (13, state, vec![14, 15], None));
        let keeps_two = RollBounds { kept: 400, ..SMALL };
        assert_eq!(rolled(keeps_two, log()), (13, state, vec![12, 13, 14, 15], None));
        assert_eq!(rolled(RollBounds::default(), log()), (13, state, vec![11, 12, 13, 14, 15], None), "one round");
    }

    #[test]
    fn of_an_instance_the_newest_vote_before_its_decision_counts() {
        let log = [vote(11, 1, 10, opens(1)), vote(12, 1, 10, opens(2)), vote(11, 2, 10, opens(3))];
        let log = log.into_iter().chain([vote(12, 2, 11, opens(4))]).map(|entry| (false, entry)).collect();
        assert_eq!(rolled(SMALL, log), (11, digest([opens(3)]), vec![12, 12], None));
    }

    /// The newer vote of 11 stood in a segment that is gone, and comes behind the word that it is decided.
    #[test]
    fn no_carried_batch_is_executed_since_another_one_may_count() {
        let carried = |round, nonce| (true, vote(11, round, 10, opens(nonce)));
        let log = vec![carried(1, 1), (false, vote(12, 2, 11, opens(2))), carried(2, 3)];
        let (state, digest_found, left, _) = rolled(SMALL, log);
        assert_eq!((state, digest_found, left), (10, digest([]), vec![11, 12]));
    }

    #[test]
    fn a_state_stops_where_somebody_must_act() {
        let [split, configured] = [seals(), Batch::Configuration(Configuration::of_voters([ReplicaId(1)]))];
        for stop in [split, configured] {
            let log = [vote(11, 1, 10, opens(1)), vote(12, 1, 11, stop), vote(13, 1, 12, opens(3))];
            let log = log.into_iter().chain([vote(14, 1, 13, opens(4))]).map(|entry| (false, entry)).collect();
            assert_eq!(rolled(SMALL, log), (11, digest([opens(1)]), vec![12, 13, 14], None));
        }
    }

    #[test]
    fn what_an_earlier_replica_executed_is_no_state_of_a_newer_one() {
        let created = |replica| Entry::Created { group: GROUP, replica: ReplicaId(replica), create: Bytes::new() };
        let first = [created(1), vote(11, 1, 11, opens(1))];
        let log = |then: Vec<Entry>| first.iter().cloned().chain(then).map(|entry| (false, entry)).collect();
        assert_eq!(rolled(SMALL, log(vec![])), (11, digest([opens(1)]), vec![], None));
        let again = vec![created(2), vote(12, 2, 12, opens(2)), vote(13, 2, 12, opens(3))];
        assert_eq!(rolled(SMALL, log(again)), (10, None, vec![12, 13], Some(Instance(10))));
        // It is removed: nothing starts.
        let removed = Entry::Removed { group: GROUP, replica: ReplicaId(1) };
        assert_eq!(rolled(SMALL, log(vec![removed])), (10, None, vec![], None));
    }

    #[test]
    fn a_gap_or_a_trim_position_above_the_state_ends_it() {
        let gap = vec![(false, vote(12, 1, 12, opens(2)))];
        assert_eq!(rolled(SMALL, gap), (10, digest([]), vec![12], None));
        let trimmed = (false, Entry::Trimmed { group: GROUP, upto: Instance(11) });
        let log = vec![(false, vote(11, 1, 10, opens(1))), trimmed, (false, vote(12, 1, 12, opens(2)))];
        assert_eq!(rolled(SMALL, log), (10, digest([]), vec![12], None));
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn planted_bugs_are_caught() {
        let tests = [
            ("rolls_undecided", "what_is_decided_is_executed_and_let_go"),
            ("rolls_over_boundary", "a_state_stops_where_somebody_must_act"),
            ("rolls_over_replica", "what_an_earlier_replica_executed_is_no_state_of_a_newer_one"),
        ];
        for (mutant, test) in tests {
            planted::assert_caught(mutant, &format!("roll_forward::tests::{test}"));
        }
    }
}
