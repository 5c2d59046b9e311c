//! Faults that wait for their moment: the next time that a leader does something, it is cut off or ends before anybody
//! hears of it. Drawn times hit what lasts a few milliseconds too rarely.

use std::collections::{BTreeMap, BTreeSet};

use coppice_client::wire::{MapVersion, PartitionId};
use coppice_core::machine::Machine;
use coppice_core::wire::peer::Envelope;
use coppice_core::worker::{Effect, Note};
use coppice_ordering::{Batch, Configuration, Instance, Message, ReplicaId, Ticket};

use super::events::Event;
use super::faults::Trigger;
use super::node::place;
use super::plan::fault::Moment;
use super::plan::{MS, Nanos};
use super::world::World;

/// A trigger that nothing fires is gone after this long.
const PATIENCE: Nanos = 4_000 * MS;

/// What tells that a moment has come, of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signs {
    boundary: (Option<Vec<u8>>, bool),
    ticket: Option<Ticket>,
    /// The directory's map, and how many changes of it are under way.
    map: (MapVersion, usize),
}

impl Signs {
    fn of(machine: &Machine) -> Signs {
        let partition = machine.partition();
        let high = partition.and_then(|partition| partition.range().high.as_ref().map(|high| high.to_vec()));
        let sealed = partition.is_some_and(|partition| partition.sealed().is_some());
        let state = machine.directory().map(|directory| directory.state());
        let map = state.map(|state| (state.map.version, state.changes.len())).unwrap_or_default();
        Signs { boundary: (high, sealed), ticket: machine.last_ticket(), map }
    }
}

impl World {
    /// Sets a trigger.
    pub fn set_trigger(&mut self, moment: Moment, crash: bool, length: Nanos) {
        self.faults.triggers.push(Trigger { moment, length, crash, until: self.now + PATIENCE });
    }

    /// Before a step of a worker: what is to be compared after it, if a trigger waits.
    pub fn signs(&self, node: usize, worker: usize) -> BTreeMap<PartitionId, Signs> {
        if self.faults.triggers.is_empty() {
            return BTreeMap::new();
        }
        let groups = self.nodes[node].process.workers[worker].groups().iter();
        groups.map(|(&id, group)| (id, Signs::of(group.replica.executor().machine()))).collect()
    }

    /// After a step, and before its effects are carried out: the moment of a trigger may have come.
    pub fn fire(&mut self, node: usize, group: PartitionId, before: Option<Signs>, effects: &[Effect]) {
        let now = self.now;
        self.faults.triggers.retain(|trigger| trigger.until > now);
        let (Some(before), Some(host)) = (before, self.nodes[node].group(group)) else { return };
        let (executor, leads) = (host.replica.executor(), host.replica.is_leading());
        let (after, ahead) = (Signs::of(executor.machine()), leads && executor.last_executed() > executor.decided());
        let newcomers = self.newcomers(node, group, effects);
        let comes = |trigger: &Trigger| match trigger.moment {
            Moment::Configured => leads && !newcomers.is_empty(),
            Moment::Boundary | Moment::Retried => ahead && after.boundary != before.boundary,
            Moment::Ticket => ahead && after.ticket != before.ticket,
            Moment::Map => ahead && after.map != before.map,
            Moment::Coordinates => {
                let begins = |effect: &Effect| matches!(effect, Effect::Note(PartitionId::DIRECTORY, Note::Leads(_)));
                group == PartitionId::DIRECTORY && effects.iter().any(begins)
            }
            Moment::Proposes => leads && proposal(group, effects).is_some(),
        };
        let Some(at) = self.faults.triggers.iter().position(comes) else { return };
        let Trigger { moment, length, crash, .. } = self.faults.triggers.swap_remove(at);
        self.coverage.note(match moment {
            Moment::Configured => "trigger: a configuration has just been decided",
            Moment::Boundary => "trigger: a boundary is moved, and that is not decided",
            Moment::Retried => "trigger: a boundary is moved, and clients do not hear what came of their writes",
            Moment::Ticket => "trigger: a ticket is executed, and that is not decided",
            Moment::Map => "trigger: a map is executed, and that is not decided",
            Moment::Coordinates => "trigger: another one coordinates",
            Moment::Proposes => "trigger: a batch is proposed, and nobody has it",
        });
        self.trace.step(now, &(node, group, length), |line| *line += &format!("n{node}.{group} {moment:?}"));
        match moment {
            Moment::Proposes => return self.belate(node, group, effects, length),
            Moment::Retried => return self.hang_up(node),
            _ => {}
        }
        let members: BTreeSet<usize> = host.nodes.values().copied().map(place).collect();
        let side: BTreeSet<usize> = newcomers.into_iter().chain([node]).collect();
        match moment {
            Moment::Boundary | Moment::Ticket | Moment::Map if crash => self.nodes[node].crash.doom = Some((0, length)),
            Moment::Coordinates => {
                let others = (0..self.nodes.len()).filter(|node| !members.contains(node)).collect();
                self.part(&side, &others, length);
            }
            _ => self.part(&side, &members.difference(&side).copied().collect(), length),
        }
    }

    /// A leader ends with what it has just proposed. One of its followers gets that so much later, and until then hears
    /// of no other replica of the group.
    fn belate(&mut self, node: usize, group: PartitionId, effects: &[Effect], length: Nanos) {
        let (Some((to, message)), Some(host)) = (proposal(group, effects), self.nodes[node].group(group)) else {
            return;
        };
        let Some(follower) = host.nodes.get(&to).copied().map(place) else { return };
        let others =
            host.nodes.values().copied().map(place).filter(|other| ![node, follower].contains(other)).collect();
        let envelope = Envelope { group: group.0, to, from: host.me, message: message.clone() };
        self.schedule(self.now + length, Event::Peer { from: node, to: follower, envelope });
        self.part(&[follower].into(), &others, length + MS);
        self.nodes[node].crash.doom = Some((0, length / 32));
    }

    /// Nodes of voters that a configuration adds which a step decides.
    fn newcomers(&self, node: usize, group: PartitionId, effects: &[Effect]) -> Vec<usize> {
        let decided = |effect: &Effect| match effect {
            Effect::Note(of, Note::Configured(instance, configuration)) if *of == group => {
                Some((*instance, configuration.clone()))
            }
            _ => None,
        };
        let decided: Option<(Instance, Configuration)> = effects.iter().find_map(decided);
        let (Some((instance, new)), Some(host)) = (decided, self.nodes[node].group(group)) else {
            return Vec::new();
        };
        let old = self.oracle.configuration(group, instance);
        let added = new.voters.iter().filter(|voter| old.is_some_and(|old| !old.voters.contains(voter)));
        added.filter_map(|voter: &ReplicaId| host.nodes.get(voter).copied().map(place)).collect()
    }

    /// Nodes of two sides do not hear each other.
    fn part(&mut self, side: &BTreeSet<usize>, others: &BTreeSet<usize>, length: Nanos) {
        let at = self.now + length;
        for (&one, &other) in side.iter().flat_map(|one| others.iter().map(move |other| (one, other))) {
            for (to, from) in [(one, other), (other, one)] {
                self.net.cut_pair(to, from, 1);
                self.schedule(at, Event::MendPair { to, from });
            }
        }
    }
}

/// The first message of a step that proposes commands which the step itself has only begun to write, and to whom.
fn proposal<'a>(group: PartitionId, effects: &'a [Effect]) -> Option<(ReplicaId, &'a Message)> {
    let begins = effects.iter().any(|effect| matches!(effect, Effect::Persist { group: of, .. } if *of == group));
    let proposes = |effect: &'a Effect| match effect {
        Effect::Send(_, it) if it.group == group.0 => match &it.message {
            Message::Phase2a(m) if matches!(m.batch, Batch::Commands(_)) => Some((it.to, &it.message)),
            _ => None,
        },
        _ => None,
    };
    effects.iter().find_map(proposes).filter(|_| begins)
}
