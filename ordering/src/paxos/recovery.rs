//! Starting: from nothing, or from a snapshot and the records of the log (protocol.md 1.3, 1.6).

use std::time::Duration;

use crate::acceptor::Acceptor;
use crate::batch::{Batch, Configuration};
use crate::counters::Counters;
use crate::election::Election;
use crate::ids::{Ballot, Instance, Lsn, ReplicaId, Time};
use crate::learner::Learner;
use crate::paxos::{DurableSnapshot, LogRoom, Paxos};
use crate::reads::PositionQuestions;
use crate::settings::Settings;
use crate::slots::{Slot, Slots};
use crate::step::{Effect, Record};

/// What a replica is told at its start.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Its id: never one whose disk was lost (protocol.md 1.5).
    pub id: ReplicaId,
    /// The first configuration of the group; for a replica that joins, one that names it as a learner and its peers as
    /// the members, to be replaced by what it learns.
    pub configuration: Configuration,
    /// Of all randomness. Different at each start.
    pub seed: u64,
    /// Names this run of the process, never another one of this replica: questions and answers carry it.
    pub incarnation: u64,
    /// Limits and intervals.
    pub settings: Settings,
    /// Stand for election at once: for the replica that is to lead when a group first starts.
    pub campaign_first: bool,
}

impl Config {
    /// Of a replica in its first run, with standard settings.
    pub fn new(id: ReplicaId, configuration: Configuration, seed: u64) -> Config {
        Config { id, configuration, seed, incarnation: 1, settings: Settings::default(), campaign_first: false }
    }
}

/// What the log and the newest durable snapshot of a group hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecoveredGroup {
    snapshot: Instance,
    configuration: Option<(Configuration, Instance)>,
    /// What whoever took the snapshot had promised. The log may not hold it, and says what is promised here.
    snapshot_promised: Ballot,
    promised: Ballot,
    slots: Slots,
    /// Payload of batches between the snapshot and the slots, in bytes.
    evicted_bytes: usize,
    decided_upto: Instance,
    lease_bound: Duration,
    last_lsn: Lsn,
}

impl Default for RecoveredGroup {
    fn default() -> RecoveredGroup {
        RecoveredGroup::new()
    }
}

impl RecoveredGroup {
    /// A group without a snapshot.
    pub fn new() -> RecoveredGroup {
        RecoveredGroup {
            snapshot: Instance::ZERO,
            configuration: None,
            snapshot_promised: Ballot::ZERO,
            promised: Ballot::ZERO,
            slots: Slots::default(),
            evicted_bytes: 0,
            decided_upto: Instance::ZERO,
            lease_bound: Duration::ZERO,
            last_lsn: Lsn(0),
        }
    }

    /// A group whose snapshot was taken at `instance`, when the configuration decided at `configured_at` was in force,
    /// by a replica that had promised `promised`.
    pub fn from_snapshot(
        instance: Instance,
        configuration: Configuration,
        configured_at: Instance,
        promised: Ballot,
    ) -> RecoveredGroup {
        RecoveredGroup {
            snapshot: instance,
            configuration: Some((configuration, configured_at)),
            snapshot_promised: promised,
            slots: Slots::after(instance),
            decided_upto: instance,
            ..RecoveredGroup::new()
        }
    }

    /// Numbers records from above `lsn` on: an earlier replica of the group in this process may still hear that its own
    /// are durable.
    pub fn number_above(&mut self, lsn: Lsn) {
        self.last_lsn = self.last_lsn.max(lsn);
    }

    /// Batches above the snapshot up to `upto`, with so many bytes of payload, are decided, and only the log holds
    /// them: the replica goes on with a state at or above `upto`. No batch was given to [`RecoveredGroup::apply`] yet.
    pub fn evict(&mut self, upto: Instance, bytes: usize) {
        if upto > self.snapshot {
            (self.slots, self.evicted_bytes) = (Slots::after(upto), bytes);
            self.decided_upto = self.decided_upto.max(upto);
        }
    }

    /// The next record of the log, in `lsn` order. All records that are on disk must come, from the oldest kept one on,
    /// but batches that are evicted.
    pub fn apply(&mut self, lsn: Lsn, record: Record) {
        self.last_lsn = self.last_lsn.max(lsn);
        match record {
            Record::Promise { ballot } => self.promised = self.promised.max(ballot),
            Record::Accept { instance, ballot, decided_upto, batch } => {
                self.promised = self.promised.max(ballot);
                self.decided_upto = self.decided_upto.max(decided_upto);
                self.keep(instance, Slot { ballot, batch, lsn });
            }
            Record::Learned { instance, ballot, batch } => {
                self.decided_upto = self.decided_upto.max(instance);
                self.keep(instance, Slot { ballot, batch, lsn });
            }
            Record::Decided { upto } => self.decided_upto = self.decided_upto.max(upto),
            Record::Lease { duration } => self.lease_bound = self.lease_bound.max(duration),
        }
    }

    fn keep(&mut self, instance: Instance, slot: Slot) {
        if instance > self.slots.trimmed_upto() {
            self.slots.set(instance, slot);
        }
    }

    /// Everything up to here is known to be decided.
    pub fn decided_upto(&self) -> Instance {
        self.decided_upto
    }

    /// Payload of the batches above the snapshot, in bytes.
    pub fn logged_bytes(&self) -> usize {
        self.slots.len_bytes() + self.evicted_bytes
    }

    /// Whether there was anything.
    pub fn is_empty(&self) -> bool {
        self.last_lsn == Lsn(0) && self.snapshot == Instance::ZERO
    }
}

impl Paxos {
    /// A replica of a new group, or one that starts without any state.
    pub fn new(config: Config, now: Time) -> Paxos {
        Paxos::recover(config, RecoveredGroup::new(), now, &mut Vec::new())
    }

    /// A replica that goes on where its disk stands. The effects tell the executor what is accepted above the snapshot
    /// and how much of it is known to be decided.
    pub fn recover(config: Config, recovered: RecoveredGroup, now: Time, effects: &mut Vec<Effect>) -> Paxos {
        let settings = config.settings.clamped();
        let RecoveredGroup { snapshot, configuration, promised, slots, decided_upto, lease_bound, last_lsn, .. } =
            recovered;
        let evicted = (slots.trimmed_upto(), recovered.evicted_bytes);
        let (configuration, configured_at) = configuration.unwrap_or((config.configuration.clone(), Instance::ZERO));
        for (instance, slot) in slots.iter_from(Instance::ZERO) {
            let batch = slot.batch.clone();
            effects.push(Effect::Accepted { instance, ballot: slot.ballot, batch });
        }
        let mut learner = Learner::new(evicted.0, configuration, configured_at);
        learner.add_contacts(&config.configuration);
        while learner.decided_upto < decided_upto
            && let Some(slot) = slots.get(learner.decided_upto.next())
        {
            learner.decide(&slot.batch, effects);
        }
        if learner.decided_upto > evicted.0 {
            effects.push(Effect::Decided { upto: learner.decided_upto });
        }
        let mut acceptor = Acceptor::recovered(promised, slots, learner.decided_upto, last_lsn, lease_bound, now);
        if evicted.0 > snapshot {
            acceptor.note_evicted(evicted.0, evicted.1);
        }
        let mut election = Election::new(config.seed, config.id, promised);
        election.draw(&settings);
        election.timeout_at = match config.campaign_first {
            true => now,
            // No leader is known: the first timeout is short, and the pre-vote keeps it from disturbing one.
            false => now + election.random.duration(settings.heartbeat_interval, settings.election_timeout),
        };
        effects.push(Effect::Following { leader: None, ballot: promised });
        let mut paxos = Paxos {
            id: config.id,
            incarnation: config.incarnation,
            settings,
            now,
            acceptor,
            learner,
            election,
            proposer: None,
            asks: PositionQuestions::default(),
            released: None,
            snapshot: DurableSnapshot { upto: snapshot, ..DurableSnapshot::default() },
            lacks_from: None,
            log_room: LogRoom::default(),
            runs: Vec::new(),
            counters: Counters::default(),
        };
        paxos.promise_with(recovered.snapshot_promised, effects);
        paxos
    }
}

impl Batch {
    /// Whether this is a configuration.
    pub(crate) fn is_configuration(&self) -> bool {
        self.as_configuration().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Commands;

    /// A replica goes on with a state at 13, rolled forward from its snapshot at 10: as one that has let go of batches
    /// while it ran, it holds no 11 and no 12, and its snapshot stays what it is.
    #[test]
    fn batches_that_only_the_log_holds_are_decided_and_not_held() {
        let configuration = Configuration::of_voters([ReplicaId(1)]);
        let mut recovered =
            RecoveredGroup::from_snapshot(Instance(10), configuration.clone(), Instance(1), Ballot::ZERO);
        recovered.evict(Instance(12), 700);
        let accept = |instance: u64, decided: u64| Record::Accept {
            instance: Instance(instance),
            ballot: Ballot::new(3, 1),
            decided_upto: Instance(decided),
            batch: Batch::Commands(Commands::new(1, vec![0; 72].into())),
        };
        for (lsn, record) in [(1, accept(12, 10)), (2, accept(13, 11)), (3, accept(14, 13))] {
            recovered.apply(Lsn(lsn), record);
        }
        assert_eq!((recovered.decided_upto(), recovered.logged_bytes()), (Instance(13), 700 + 2 * 200));
        let mut effects = Vec::new();
        let paxos = Paxos::recover(Config::new(ReplicaId(1), configuration, 1), recovered, Time::ZERO, &mut effects);
        paxos.assert_invariants();
        assert_eq!((paxos.trimmed_upto(), paxos.snapshot.upto), (Instance(12), Instance(10)));
        assert_eq!((paxos.learner.decided_upto, paxos.learner.executed_upto), (Instance(13), Instance(12)));
        let told: Vec<String> = effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Accepted { instance, .. } => Some(format!("accepted {instance}")),
                Effect::Decided { upto } => Some(format!("decided {upto}")),
                _ => None,
            })
            .collect();
        assert_eq!(told, ["accepted #13", "accepted #14", "decided #13"]);
        let mut acceptor = paxos.acceptor.clone();
        let oldest = |acceptor: &mut Acceptor| acceptor.repeat_standing(&mut Vec::new()).1;
        assert_eq!(oldest(&mut acceptor), Lsn(1), "the log above the snapshot is needed");
        acceptor.trim(Instance(12));
        assert_eq!(oldest(&mut acceptor), Lsn(2));
    }
}
