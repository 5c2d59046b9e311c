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

    /// The next record of the log, in `lsn` order. All records that are on disk must come, from the oldest kept one on.
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
        if instance > self.snapshot {
            self.slots.set(instance, slot);
        }
    }

    /// Instances above the snapshot that are known to be decided.
    pub fn decided(&self) -> u64 {
        self.decided_upto.0.saturating_sub(self.snapshot.0)
    }

    /// Payload of the batches above the snapshot, in bytes.
    pub fn held_bytes(&self) -> usize {
        self.slots.len_bytes()
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
        let (configuration, configured_at) = configuration.unwrap_or((config.configuration.clone(), Instance::ZERO));
        for (instance, slot) in slots.iter_from(Instance::ZERO) {
            let batch = slot.batch.clone();
            effects.push(Effect::Accepted { instance, ballot: slot.ballot, batch });
        }
        let mut learner = Learner::new(snapshot, configuration, configured_at);
        learner.add_contacts(&config.configuration);
        while learner.decided_upto < decided_upto
            && let Some(slot) = slots.get(learner.decided_upto.next())
        {
            learner.decide(&slot.batch, effects);
        }
        if learner.decided_upto > snapshot {
            effects.push(Effect::Decided { upto: learner.decided_upto });
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
            acceptor: Acceptor::recovered(promised, slots, learner.decided_upto, last_lsn, lease_bound, now),
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
