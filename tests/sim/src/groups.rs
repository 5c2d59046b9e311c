//! What is known of one group: its decided log, the state after each instance, votes and promises.

use std::collections::{BTreeMap, BTreeSet};

use coppice_client::wire::PartitionId;
use coppice_core::machine::partition::AbsorbedState;
use coppice_core::machine::{Answer, Machine, Mark};
use coppice_ordering::{Ballot, Batch, Configuration, Instance, ReplicaId, Ticket};

use super::found::{Found, broken};
use super::plan::Nanos;

/// By partition.
pub type Groups = BTreeMap<PartitionId, Group>;

/// What is known of one group.
pub struct Group {
    /// Executes what is decided, without speculation, from the first instance on (hazards.md G16).
    pub machine: Machine,
    /// The keys that it begins with, and the last ticket.
    pub born: Born,
    /// Decided batches, from the instance after its birth on.
    pub decided: Vec<Batch>,
    /// What they came to.
    pub answers: Vec<Vec<Answer>>,
    /// Where tickets counted: instance and index.
    pub placed: BTreeSet<(u64, u32)>,
    /// The same in order, and when that was first decided.
    pub(super) tickets: Vec<((u64, u32), Ticket, Nanos)>,
    /// Of the state after each instance, from that of its birth on.
    pub(super) digests: Vec<u64>,
    /// In its session table, and its limit.
    pub(super) sessions: (usize, usize),
    /// Who governs from an instance on, ascending.
    pub(super) configurations: Vec<(Instance, Configuration)>,
    pub(super) proposals: BTreeMap<(Instance, Ballot), Batch>,
    /// Replicas whose vote became durable, one bit each.
    pub(super) votes: BTreeMap<(Instance, Ballot), u64>,
    /// Which process used a ballot: node and boot.
    pub(super) ballots: BTreeMap<Ballot, (usize, u64)>,
    /// Replicas that promised it, durably, and said so, one bit each.
    pub(super) promises: BTreeMap<Ballot, u64>,
}

/// How a partition began.
#[derive(Clone, Debug, Default)]
pub struct Born {
    /// The instance of its state; its own log begins behind it.
    pub instance: u64,
    /// First key.
    pub low: Vec<u8>,
    /// First key beyond.
    pub high: Option<Vec<u8>>,
    /// The last ticket placed before.
    pub ticket: Option<Ticket>,
}

impl Group {
    pub(super) fn new(machine: Machine, instance: Instance, voters: Vec<ReplicaId>) -> Group {
        let partition = machine.partition();
        let born = Born {
            instance: instance.0,
            low: partition.map(|partition| partition.range().low.to_vec()).unwrap_or_default(),
            high: partition.and_then(|partition| partition.range().high.as_ref().map(|high| high.to_vec())),
            ticket: machine.last_ticket(),
        };
        Group {
            digests: vec![machine.digest()],
            sessions: partition
                .map_or((0, 0), |partition| (partition.sessions().len(), partition.session_limits().sessions_max)),
            machine,
            born,
            decided: Vec::new(),
            answers: Vec::new(),
            placed: BTreeSet::new(),
            tickets: Vec::new(),
            configurations: vec![(instance.next(), Configuration::of_voters(voters))],
            proposals: BTreeMap::new(),
            votes: BTreeMap::new(),
            ballots: BTreeMap::new(),
            promises: BTreeMap::new(),
        }
    }

    /// The last decided instance.
    pub fn decided_upto(&self) -> u64 {
        self.born.instance + self.decided.len() as u64
    }

    /// Where a ticket counts in its own log.
    pub fn place_of(&self, ticket: Ticket) -> Option<(u64, u32)> {
        let found = self.tickets.binary_search_by_key(&ticket, |(_, ticket, _)| *ticket).ok()?;
        Some(self.tickets[found].0)
    }

    /// When a ticket was first decided here, the one that it was born with included.
    pub fn placed_at(&self, ticket: Ticket) -> Option<Nanos> {
        let found = self.tickets.binary_search_by_key(&ticket, |(_, ticket, _)| *ticket).ok();
        let born = (self.born.ticket == Some(ticket)).then_some(0);
        found.map(|at| self.tickets[at].2).or(born)
    }

    /// The last ticket that counted at or before a place of its log, or before its birth.
    pub fn last_ticket(&self, at: (u64, u32)) -> Option<Ticket> {
        let after = self.tickets.partition_point(|(place, ..)| *place <= at);
        after.checked_sub(1).map(|last| self.tickets[last].1).or(self.born.ticket)
    }

    /// The batch decided at an instance of its own log.
    pub fn at(&self, instance: u64) -> Option<&Batch> {
        self.decided.get(instance.checked_sub(self.born.instance + 1)? as usize)
    }

    /// The ballots in which a quorum of its configuration has voted for an instance.
    pub(super) fn quorums(&self, instance: Instance) -> impl Iterator<Item = Ballot> {
        let governing = self.configurations.iter().rev().find(|(from, _)| *from <= instance);
        let voters = governing.map(|(_, configuration)| &configuration.voters).expect("the first one begins at 1");
        let mask = voters.iter().fold(0_u64, |mask, voter| mask | 1 << voter.0);
        let votes = self.votes.range((instance, Ballot::ZERO)..(instance.next(), Ballot::ZERO));
        let enough = move |votes: u64| (votes & mask).count_ones() as usize > voters.len() / 2;
        votes.filter(move |(_, votes)| enough(**votes)).map(|((_, ballot), _)| *ballot)
    }

    /// Whether a quorum has voted for an instance in a ballot up to this one. It may wait to be executed: a merge waits
    /// for the state that it takes in.
    pub(super) fn is_chosen(&self, instance: Instance, upto: Ballot) -> bool {
        self.quorums(instance).any(|ballot| ballot <= upto)
    }

    /// An instance is decided for the first time: a quorum must have voted for exactly this.
    pub(super) fn decide(
        &mut self,
        group: PartitionId,
        instance: Instance,
        (batch, now): (Batch, Nanos),
        absorbed_state: impl Fn(PartitionId) -> Option<AbsorbedState>,
    ) -> Result<Mark, (&'static str, String)> {
        if instance.0 != self.decided_upto() + 1 {
            return broken("I3 decided with a gap", format!("{group} {instance}"));
        }
        if !self.quorums(instance).any(|ballot| self.proposals.get(&(instance, ballot)) == Some(&batch)) {
            let votes: Vec<_> = self.votes.range((instance, Ballot::ZERO)..(instance.next(), Ballot::ZERO)).collect();
            let proposed: Vec<_> =
                self.proposals.range((instance, Ballot::ZERO)..(instance.next(), Ballot::ZERO)).collect();
            let governing = self.configurations.iter().rev().find(|(from, _)| *from <= instance);
            let what = format!("{group} {instance} {batch}; votes {votes:?}; proposed {proposed:?}; {governing:?}");
            return broken("I1 decided without a quorum", what);
        }
        if let Some(configuration) = batch.as_configuration() {
            self.configurations.push((instance.next(), configuration.clone()));
        }
        let mut answers = Vec::new();
        let mut mark = self.machine.execute(instance, &batch, &mut answers);
        if let Some(awaited) = Machine::awaits(&mark) {
            let Some(left) = absorbed_state(awaited.partition) else {
                let what = format!("{group} {instance} takes in {}, which is not sealed", awaited.partition);
                return broken("MV12 nothing to take in", what);
            };
            self.machine.undo(mark);
            self.machine.absorb(left);
            answers.clear();
            mark = self.machine.execute(instance, &batch, &mut answers);
        }
        self.machine.confirm(&mark, None);
        self.has_room(group, Machine::joins(&mark).is_empty())?;
        let mut placed = Vec::new();
        self.machine.take_placed(&mut placed);
        for placed in placed {
            let (at, ticket) = ((placed.instance.0, placed.index), placed.ticket);
            if let Some(before) = self.last_ticket(at).filter(|before| *before >= ticket) {
                return broken("I10 tickets", format!("{group} {instance}: {ticket} counts after {before}"));
            }
            self.placed.insert(at);
            self.tickets.push((at, ticket, now));
        }
        self.digests.push(self.machine.digest());
        self.decided.push(batch);
        self.answers.push(answers);
        Ok(mark)
    }
}

impl Group {
    /// I6: no session is opened above the limit; a table that takes in another one, or whose limit is lowered, may hold
    /// more until then.
    pub(super) fn has_room(&mut self, group: PartitionId, opens: bool) -> Found {
        let Some(partition) = self.machine.partition() else { return Ok(()) };
        let (now, limit) = (partition.sessions().len(), partition.session_limits().sessions_max);
        let (before, limit_before) = std::mem::replace(&mut self.sessions, (now, limit));
        // In one batch a session may be opened, and the limit lowered behind it.
        if opens && now > before.max(limit).max(limit_before).max(1) {
            return broken("I6 a limit", format!("{group} has {now} sessions of {limit}"));
        }
        Ok(())
    }
}
