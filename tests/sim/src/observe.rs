//! Holds each step of a worker against what is known: what its replicas wrote, sent and decided, what it answers, and
//! what it chose.

use std::sync::Arc;

use coppice_client::map::Role;
use coppice_client::wire::{NodeId, PartitionId, SubRange};
use coppice_core::request::{Origin, Refusal, Reply};
use coppice_core::worker::{self, Effect, Note};
use coppice_ordering::{Ballot, Instance, ReplicaId, multicast};
use coppice_words::positions;

use super::found::{Found, broken};
use super::members::note_members;
use super::node::place;
use super::oracle::UNDO_CHECK_STEPS;
use super::watermarks::has_sound_tree;
use super::world::World;

impl World {
    /// Holds a worker's step against what is known, before its effects are carried out.
    pub fn observe(&mut self, (node, worker): (usize, usize), stepped: &[PartitionId], effects: &[Effect]) {
        let found = self.observed((node, worker), stepped, effects);
        self.expect(found);
    }

    fn observed(&mut self, (node, worker): (usize, usize), stepped: &[PartitionId], effects: &[Effect]) -> Found {
        self.writes_and_sends(node, effects)?;
        for &group in stepped {
            self.decides(node, group)?;
        }
        for effect in effects {
            match effect {
                Effect::Note(group, Note::Leads(ballot)) => self.begins_to_lead(node, *group, *ballot)?,
                Effect::Note(_, Note::Coordinated(ballot, wanted)) => {
                    wanted.iter().for_each(|effect| self.note_coordinated(effect));
                    self.oracle.coordinated(*ballot, wanted)?;
                }
                effect => self.says((node, worker), effect)?,
            }
        }
        for &group in stepped {
            let released = self.oracle.tickets.released(group);
            let named = |(check, what)| (check, format!("n{node}.{group}: {what}"));
            self.nodes[node].check_step(group, released).map_err(named)?;
        }
        Ok(())
    }

    fn note_coordinated(&mut self, effect: &multicast::Effect) {
        self.coverage.coordinated(effect);
        match effect {
            multicast::Effect::Cut { .. } => self.coverage.note("query: cut by the coordinator"),
            multicast::Effect::Aborted { .. } => self.coverage.note("query: aborted"),
            _ => {}
        }
    }

    fn writes_and_sends(&mut self, node: usize, effects: &[Effect]) -> Found {
        let process = (node, self.nodes[node].boot);
        for effect in effects {
            match effect {
                Effect::Persist { group, record, .. } => {
                    let Some(host) = self.nodes[node].group(*group) else { continue };
                    self.oracle.persists((*group, host.me), record)?;
                }
                Effect::Send(_, envelope) => {
                    let group = PartitionId(envelope.group);
                    let saved = || self.nodes[node].store.newest_checkpoint(group).unwrap_or_default();
                    self.oracle.sends(process, (group, envelope.from), saved, &envelope.message)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn decides(&mut self, node: usize, group: PartitionId) -> Found {
        let Some(host) = self.nodes[node].group(group) else { return Ok(()) };
        let id = (group, host.me);
        let (replica, executor) = (&host.replica, host.replica.executor());
        if replica.paxos().counters().messages_refused > 0 {
            return broken("I19 refused", format!("n{node}.{group} refuses what another replica says"));
        }
        self.oracle.decides((node, self.now), id, executor.decided())?;
        if group == PartitionId::DIRECTORY
            && let Some(map) = self.oracle.map().filter(|map| map.version > self.map.version)
        {
            if let Err(error) = map.check() {
                return broken("I14 map", error.to_string());
            }
            let map = Arc::new(map.clone());
            note_members(&mut self.coverage, self.plan.replicas as usize, &self.map, &map);
            self.map = map;
        }
        if let Some((instance, digest)) = executor.digest() {
            self.oracle.digest(node, group, instance, digest, "I7 states differ")?;
        }
        let (configuration, at) = replica.paxos().configuration();
        self.oracle.is_governed(group, at, configuration)?;
        if self.trace.steps().is_multiple_of(UNDO_CHECK_STEPS) {
            let decided = executor.decided_state();
            self.oracle.digest(node, group, executor.decided(), decided.digest(), "I8 undo")?;
            for machine in [&decided, executor.machine()] {
                has_sound_tree(machine, self.plan.capacity(node))?;
            }
        }
        Ok(())
    }

    fn begins_to_lead(&mut self, node: usize, group: PartitionId, ballot: Ballot) -> Found {
        let Some(host) = self.nodes[node].group(group) else { return Ok(()) };
        let (configuration, _) = host.replica.paxos().configuration();
        self.oracle.leads((group, host.me), ballot, configuration)?;
        if group == PartitionId::DIRECTORY {
            self.oracle.tickets.leads(ballot, self.now);
        }
        Ok(())
    }

    /// What leaves a worker for clients and for the coordinator.
    fn says(&mut self, (node, worker): (usize, usize), effect: &Effect) -> Found {
        match effect {
            Effect::Reply { group, origin, reply }
            | Effect::Worker(_, worker::Message::Reply { group, origin, reply }) => {
                // The worker of the connection passes on what another one chose before.
                if self.nodes[node].owner(*group) == worker {
                    self.is_well_chosen(node, *group, *origin, reply)?;
                }
                self.replies(node, *group, *origin, reply)
            }
            Effect::Note(group, Note::Placed(ticket)) if !self.oracle.is_placed(*group, *ticket) => {
                broken("I11 an undecided place", format!("n{node}.{group} acknowledges {ticket}"))
            }
            Effect::Part(part) if part.position.instance > self.oracle.decided(part.position.partition) => {
                broken("I9 undecided part", format!("n{node} gives {}", part.position))
            }
            Effect::Part(part) => self.oracle.gives(part),
            Effect::Note(group, Note::TransferWhenFull(to)) => self.has_room_at(node, *group, *to),
            _ => Ok(()),
        }
    }

    /// What a worker chose by what it knows: responders that answer, where there are some; refusals for want of room
    /// only where fewer than a majority have any.
    fn is_well_chosen(&self, node: usize, group: PartitionId, origin: Origin, reply: &Reply) -> Found {
        match reply {
            // By the map that it was cut by.
            Reply::QueryPlan(cut) if cut.version == self.map.version => {
                cut.parts.iter().try_for_each(|part| self.answered_or_nobody(node, origin, part))
            }
            Reply::Refused(Refusal::Full(_)) if !self.nodes[node].process.log_is_stuck => {
                let Some(host) = self.nodes[node].group(group) else { return Ok(()) };
                let voters = &host.replica.paxos().configuration().0.voters;
                let at = |voter| host.nodes.get(voter).is_none_or(|&at| self.is_known_to_have_room(node, at));
                match voters.iter().filter(|voter| at(voter)).count() > voters.len() / 2 {
                    true => broken("ST10 refused", format!("n{node}.{group} is full, and a majority has room")),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn answered_or_nobody(&self, node: usize, origin: Origin, part: &SubRange) -> Found {
        let Some(entry) = self.map.group(part.partition) else { return Ok(()) };
        let Some(answering) = self.nodes[node].process.answering.get(&origin) else { return Ok(()) };
        let mut voters = entry.replicas.iter().filter(|info| info.role == Role::Voter);
        match answering.contains(&part.node) || !voters.any(|info| answering.contains(&info.node)) {
            true => Ok(()),
            false => broken("query: a silent responder", format!("n{node} chose {} for {}", part.node, part.partition)),
        }
    }

    fn is_known_to_have_room(&self, node: usize, at: NodeId) -> bool {
        match place(at) == node {
            true => !self.nodes[node].store.is_full(),
            false => !self.nodes[node].process.full_nodes.contains(&at),
        }
    }

    /// Who is to lead for want of room elsewhere has some, as far as is known.
    fn has_room_at(&self, node: usize, group: PartitionId, to: ReplicaId) -> Found {
        let at = self.nodes[node].group(group).and_then(|host| host.nodes.get(&to).copied());
        match at.is_some_and(|at| self.is_known_to_have_room(node, at)) {
            true => Ok(()),
            false => broken("ST10 a successor without space", format!("n{node}.{group} transfers to {to}")),
        }
    }

    /// A reply leaves only if all up to its instance is decided, and every ticket up to its place is released (I9).
    pub fn replies(&mut self, node: usize, group: PartitionId, origin: Origin, reply: &Reply) -> Found {
        if let Reply::Collected { parts, .. } = reply {
            return parts.iter().try_for_each(|(at, _)| self.answers(node, at.partition, origin, reply, at.instance));
        }
        let (of, instance, index) = match reply {
            // A repeated answer names the place where the command ran first, perhaps in the parent's log.
            Reply::Pack(answer) => match positions(answer).into_iter().max_by_key(|at| at.0.instance) {
                Some((at, _)) => (at.partition, at.instance, at.index),
                None => return Ok(()),
            },
            Reply::Opened(session) => (session.partition, session.instance, session.index),
            Reply::Read { instance, .. }
            | Reply::Looks { instance, .. }
            | Reply::Range { instance, .. }
            | Reply::CollectedParts { instance, .. }
            | Reply::Validated { instance, .. } => return self.answers(node, group, origin, reply, instance.0),
            Reply::Collected { .. } => return Ok(()),
            Reply::Directory(_)
            | Reply::Refused(_)
            | Reply::Unsure { .. }
            | Reply::QueryPlan(_)
            | Reply::Completed { .. }
            | Reply::Aborted { .. } => return Ok(()),
        };
        self.answers_of(node, (group, of), origin, reply, (instance, index))
    }

    /// What was read at an instance of a group.
    fn answers(&mut self, node: usize, group: PartitionId, origin: Origin, reply: &Reply, instance: u64) -> Found {
        self.answers_of(node, (group, group), origin, reply, (instance, u32::MAX))
    }

    fn answers_of(
        &mut self,
        node: usize,
        (group, of): (PartitionId, PartitionId),
        origin: Origin,
        reply: &Reply,
        (instance, index): (u64, u32),
    ) -> Found {
        if instance > self.oracle.decided(of) {
            return broken("I9 undecided reply", format!("n{node}.{group} answers as of {of} #{instance}"));
        }
        let saved = |node: usize| self.nodes[node].store.newest_checkpoint(group).unwrap_or_default();
        let writes = of == group && matches!(reply, Reply::Pack(_) | Reply::Opened(_));
        // One that was merged away is held by its merge target, and its own replicas forget it: but for a process that
        // stood still meanwhile, which has an answer left to give (seed 900439).
        let gone = self.oracle.map().is_some_and(|map| map.group(group).is_none());
        if writes && !gone && !self.oracle.is_held(group, Instance(instance), saved) {
            return broken("I4 answered and not held", format!("n{node}.{group} #{instance}, by no majority"));
        }
        // The tickets of the parent's log are behind the one that the child was born with, or behind a later first one.
        let before = self.oracle.groups.get(&group).filter(|_| of == group);
        let ticket = before.and_then(|state| state.last_ticket((instance, index)));
        if of != group && matches!(reply, Reply::Pack(_)) {
            self.coverage.note("session: answered from the parent's log");
        }
        if ticket.is_some() {
            self.coverage.note("gate: a reply stands behind a ticket");
        }
        let released = self.oracle.tickets.released(group);
        if ticket > released && self.is_stale(origin) {
            self.coverage.note("gate: a stale read does not wait");
        } else if ticket > released {
            let what = format!("n{node}.{group} answers as of #{instance} behind {ticket:?}");
            return broken("I9 the gate", what);
        }
        Ok(())
    }
}
