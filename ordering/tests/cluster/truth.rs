//! What the whole cluster knows together: the only place from which agreement can be judged (hazards.md 4, I1 to
//! I3).
//!
//! Every function panics with the number of the invariant that is broken.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use bytes::Bytes;
use coppice_ordering::quorum::Quorum;
use coppice_ordering::{Ballot, Batch, Configuration, Instance, ReplicaId};

pub struct Truth {
    /// The decided log.
    pub log: BTreeMap<Instance, Batch>,
    /// The configuration decided at each instance; the first one at 0.
    pub configurations: BTreeMap<Instance, Configuration>,
    /// Every batch that was accepted anywhere in a ballot.
    proposals: HashMap<(Instance, Ballot), Batch>,
    /// Who has it durably.
    votes: HashMap<Instance, BTreeMap<Ballot, BTreeSet<ReplicaId>>>,
    /// Which run of which replica used a ballot.
    ballots: HashMap<Ballot, (ReplicaId, u64)>,
    /// Submissions that were refused: they must never be decided.
    pub refused: HashSet<Bytes>,
    pub decided_upto: Instance,
    /// What each replica's disk knows to be decided, and holds.
    pub held: BTreeMap<ReplicaId, Instance>,
}

impl Truth {
    pub fn new(first: Configuration) -> Truth {
        Truth {
            log: BTreeMap::new(),
            configurations: BTreeMap::from([(Instance::ZERO, first)]),
            proposals: HashMap::new(),
            votes: HashMap::new(),
            ballots: HashMap::new(),
            refused: HashSet::new(),
            decided_upto: Instance::ZERO,
            held: BTreeMap::new(),
        }
    }

    /// The configuration that governs `instance`, and the instance that decided it.
    pub fn governing(&self, instance: Instance) -> (&Configuration, Instance) {
        let (at, configuration) = self.configurations.range(..instance).next_back().expect("there is a first one");
        (configuration, *at)
    }

    /// A removed replica deletes its state: its successors must hold everything up to `instance` (protocol.md 1.5).
    pub fn dismissed(&self, instance: Instance, id: ReplicaId) {
        let configuration = &self.configurations[&instance];
        assert!(configuration.leaving.contains(&id), "{id} was not removed by {instance}");
        // A later configuration may have replaced that one's voters: then its quorum holds it.
        let held = self.configurations.range(instance..).any(|(_, configuration)| {
            let holds = |id: &&ReplicaId| self.held.get(id).is_some_and(|upto| *upto >= instance);
            2 * configuration.voters.iter().filter(holds).count() > configuration.voters.len()
        });
        assert!(held, "I4: {id} deletes its state, but no quorum of its successors holds {instance}");
    }

    /// A ballot is used on the wire.
    pub fn used(&mut self, ballot: Ballot, by: ReplicaId, incarnation: u64) {
        assert_eq!(ballot.replica, by, "I1: {by} uses the ballot {ballot}");
        let first = *self.ballots.entry(ballot).or_insert((by, incarnation));
        assert_eq!(first, (by, incarnation), "I1: {ballot} is used by two runs of a replica");
    }

    /// A batch is accepted, or kept as decided, in a ballot.
    pub fn accepted(&mut self, instance: Instance, ballot: Ballot, batch: &Batch) {
        let first = self.proposals.entry((instance, ballot)).or_insert_with(|| batch.clone());
        assert_eq!(first, batch, "I1: two batches at {instance} in {ballot}");
    }

    /// A vote is on disk.
    pub fn voted(&mut self, instance: Instance, ballot: Ballot, by: ReplicaId) {
        self.votes.entry(instance).or_default().entry(ballot).or_default().insert(by);
    }

    /// Whether that vote is on disk.
    pub fn has_voted(&self, instance: Instance, ballot: Ballot, by: ReplicaId) -> bool {
        self.votes.get(&instance).and_then(|votes| votes.get(&ballot)).is_some_and(|votes| votes.contains(&by))
    }

    /// A replica holds `batch` for decided at `instance`.
    pub fn decided(&mut self, instance: Instance, batch: &Batch, by: ReplicaId) {
        if let Some(first) = self.log.get(&instance) {
            assert_eq!(first, batch, "I1: {instance} is decided twice, now by {by}");
            return;
        }
        assert_eq!(instance, self.decided_upto.next(), "I3: {by} decides {instance} above a hole");
        let (configuration, _) = self.governing(instance);
        let quorum = Quorum::of(configuration);
        let enough = self.votes.get(&instance).into_iter().flatten().any(|(ballot, votes)| {
            let votes = votes.iter().filter(|voter| configuration.voters.contains(voter)).count();
            2 * votes > configuration.voters.len() && self.proposals[&(instance, *ballot)] == *batch
        });
        assert!(enough, "I3: {by} holds {instance} {batch} for decided, but no quorum of {:?} voted", quorum.voters());
        if let Batch::Configuration(configuration) = batch {
            self.configurations.insert(instance, configuration.clone());
        }
        if let Batch::Commands(commands) = batch {
            for part in commands.to_bytes().split(|byte| *byte == b' ').filter(|part| !part.is_empty()) {
                assert!(!self.refused.contains(part), "a refused submission was decided at {instance}");
            }
        }
        self.log.insert(instance, batch.clone());
        self.decided_upto = instance;
    }
}
