//! The learner: what is decided, under which configuration, and how to get what is missing (protocol.md 1.4, 1.5).
//!
//! It never concludes a decision from a number alone: the composition calls `decide` only for a batch that a quorum
//! accepted in one ballot.

use std::collections::{BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::time::Duration;

use crate::batch::{Batch, Configuration};
use crate::ids::{Ballot, Instance, ReplicaId, Time};
use crate::quorum::Quorum;
use crate::step::Effect;

/// Getting decided batches that this replica lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CatchUpState {
    /// Somebody has decided so far.
    pub upto: Instance,
    /// Who said so: the last resort, it has it for sure.
    pub informant: ReplicaId,
    /// When to ask, or to ask somebody else.
    pub due: Time,
    /// Who was asked and has not answered.
    pub asked: Option<ReplicaId>,
    /// How many were asked since the last progress.
    pub attempts: u32,
    /// How many of the last ones did not answer.
    pub silences: u32,
    /// Only a snapshot helps: offered by whom, and above which trim point.
    pub snapshot: Option<(ReplicaId, Instance)>,
}

/// Whom to ask, and when, decides nothing: no part of a hash (hazards.md 7, models).
impl Hash for CatchUpState {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Learner {
    /// Everything up to here is decided, and its decided value is in the slots or below the trim point.
    pub decided_upto: Instance,
    /// The leader of this ballot has decided so far: true of every batch accepted in that ballot, above a gap too.
    pub heard: (Ballot, Instance),
    /// Everything up to here is executed as decided. At most `decided_upto`.
    pub executed_upto: Instance,
    /// The newest decided configuration. It governs every instance above `decided_upto`.
    pub configuration: Configuration,
    /// The instance that decided it. At most `decided_upto`.
    pub configured_at: Instance,
    /// Those before it that are of use yet, with what decided them, ascending: the state at `executed_upto` or above
    /// may be older than `configuration`, while the executor waits.
    former: VecDeque<(Configuration, Instance)>,
    /// The voters of `configuration`.
    pub quorum: Quorum,
    /// A quorum of the newest configuration known to some leader durably holds everything up to here.
    pub held_upto: Instance,
    pub behind: Option<CatchUpState>,
    /// Whom this replica was told of at its start: asked for news beside the members.
    contacts: BTreeSet<ReplicaId>,
    /// The dismissal was announced.
    pub dismissed: bool,
}

impl Learner {
    pub fn new(decided_upto: Instance, configuration: Configuration, configured_at: Instance) -> Learner {
        let contacts = configuration.members().chain(configuration.leaving.iter().copied()).collect();
        let quorum = Quorum::of(&configuration);
        Learner {
            decided_upto,
            heard: (Ballot::ZERO, Instance::ZERO),
            executed_upto: decided_upto,
            configuration,
            configured_at,
            former: VecDeque::new(),
            quorum,
            held_upto: Instance::ZERO,
            behind: None,
            contacts,
            dismissed: false,
        }
    }

    /// Whether the batch accepted at `instance` in `ballot` is decided (protocol.md 1.4).
    pub fn knows_decided(&self, instance: Instance, ballot: Ballot) -> bool {
        instance <= self.decided_upto || (ballot == self.heard.0 && instance <= self.heard.1)
    }

    /// More replicas that may be asked for news.
    pub fn add_contacts(&mut self, configuration: &Configuration) {
        self.contacts.extend(configuration.members());
    }

    /// The next instance is decided, with `batch`. True if it is a configuration, which is in force from here on.
    pub fn decide(&mut self, batch: &Batch, effects: &mut Vec<Effect>) -> bool {
        let instance = self.decided_upto.next();
        self.decided_upto = instance;
        if self.behind.as_ref().is_some_and(|behind| behind.upto <= instance) {
            self.behind = None;
        }
        let Batch::Configuration(configuration) = batch else { return false };
        effects.push(Effect::ConfigurationDecided { instance, configuration: configuration.clone() });
        self.configure(configuration.clone(), instance);
        true
    }

    /// Puts a decided configuration in force.
    pub fn configure(&mut self, configuration: Configuration, at: Instance) {
        if !mutant!(old_quorum) {
            self.quorum = Quorum::of(&configuration);
        }
        let former = std::mem::replace(&mut self.configuration, configuration);
        self.former.push_back((former, self.configured_at));
        self.configured_at = at;
        self.forget_former();
    }

    /// Everything up to here is executed as decided.
    pub fn executed(&mut self, upto: Instance) {
        self.executed_upto = self.executed_upto.max(upto);
        self.forget_former();
    }

    /// The configuration that was in force after `instance` was decided, and what decided it; `instance` is from
    /// `executed_upto` on. No more of them are kept than there are instances to execute.
    pub fn configuration_at(&self, instance: Instance) -> (&Configuration, Instance) {
        let former = self.former.iter().rev().find(|(_, at)| *at <= instance);
        match former.filter(|_| self.configured_at > instance) {
            Some((configuration, at)) => (configuration, *at),
            None => (&self.configuration, self.configured_at),
        }
    }

    fn forget_former(&mut self) {
        let next = |learner: &Learner| learner.former.get(1).map_or(learner.configured_at, |(_, at)| *at);
        while !self.former.is_empty() && next(self) <= self.executed_upto {
            self.former.pop_front();
        }
    }

    /// Somebody has decided `upto`, and this replica lacks a part of it: asks around after `grace`.
    pub fn note_behind(&mut self, upto: Instance, informant: ReplicaId, now: Time, grace: Duration) {
        if upto <= self.decided_upto {
            return;
        }
        match &mut self.behind {
            Some(behind) => {
                // The newest to say so: an older one may be gone by now.
                if upto >= behind.upto {
                    behind.upto = upto;
                    behind.informant = informant;
                }
                if behind.asked.is_none() && behind.snapshot.is_none() {
                    behind.due = behind.due.min(now + grace);
                }
            }
            None => {
                let due = now + grace;
                self.behind =
                    Some(CatchUpState { upto, informant, due, asked: None, attempts: 0, silences: 0, snapshot: None });
            }
        }
    }

    /// The replica to ask for decided batches, changing with `attempts`: first the others, each replica another one
    /// first, then the leader, which has enough to do (papers.md D5); then whoever told of them.
    pub fn source(&self, me: ReplicaId, leader: Option<ReplicaId>, attempts: u32) -> Option<ReplicaId> {
        let informant = self.behind.as_ref().map(|behind| behind.informant);
        let mut all = self.contacts.clone();
        all.extend(self.configuration.members());
        all.extend(&self.configuration.leaving);
        all.extend(informant);
        all.extend(leader);
        all.remove(&me);
        let (low, high): (Vec<ReplicaId>, Vec<ReplicaId>) = all.into_iter().partition(|replica| *replica < me);
        let mut order: Vec<ReplicaId> = high.into_iter().chain(low).collect();
        // A stable sort keeps the ring order within each class.
        let class = |replica: &ReplicaId| {
            let strange = !self.configuration.is_member(*replica);
            if Some(*replica) == leader { 2 } else { u8::from(strange) * 3 }
        };
        order.sort_by_key(class);
        // Every other attempt goes to somebody who has it for sure, from the second on.
        match leader.or(informant).filter(|sure| *sure != me) {
            Some(sure) if attempts % 2 == 1 => Some(sure),
            _ => order.get(attempts as usize / 2 % order.len().max(1)).copied(),
        }
    }
}
