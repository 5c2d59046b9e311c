//! What a log must hold after a prefix of the entries that were written, and a drawn workload.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use coppice_client::wire::PartitionId;
use coppice_core::replay::{Entry, Replay};
use coppice_server::log::{Ballot, Batch, Commands, Configuration, Instance, Record, ReplicaId};

use super::Draw;

/// A group's state, independent of how the log came to hold it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    created: Option<(ReplicaId, Bytes)>,
    removed: Option<ReplicaId>,
    promised: Ballot,
    lease: Duration,
    trimmed: Instance,
    decided: Instance,
    batches: BTreeMap<Instance, Held>,
}

/// What is held of one instance. A vote stays one beside what was learned later, and the other way round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Held {
    vote: Option<(Ballot, Batch)>,
    learned: Option<(Ballot, Batch)>,
}

/// The state of all groups.
pub type Model = BTreeMap<PartitionId, Group>;

/// The model after one more entry.
pub fn apply(model: &mut Model, entry: &Entry) {
    let Some(group) = entry.group() else { return };
    let state = model.entry(group).or_default();
    match entry {
        Entry::Group { record, .. } => state.apply(record),
        Entry::Created { replica, create, .. } => {
            let created = Some((*replica, create.clone()));
            *state = Group { created, removed: state.removed, ..Group::default() };
        }
        Entry::Removed { replica, .. } => *state = Group { removed: Some(*replica), ..Group::default() },
        Entry::Trimmed { upto, .. } => state.trim(*upto),
        Entry::Kept { .. } => {}
    }
}

impl Group {
    fn apply(&mut self, record: &Record) {
        match record {
            Record::Promise { ballot } => self.promised = self.promised.max(*ballot),
            Record::Accept { instance, ballot, decided_upto, batch } => {
                self.promised = self.promised.max(*ballot);
                self.decided = self.decided.max(*decided_upto);
                if let Some(held) = self.held(*instance) {
                    held.vote = Some((*ballot, batch.clone()));
                }
            }
            Record::Learned { instance, ballot, batch } => {
                self.decided = self.decided.max(*instance);
                if let Some(held) = self.held(*instance) {
                    held.learned = Some((*ballot, batch.clone()));
                }
            }
            Record::Lease { duration } => self.lease = self.lease.max(*duration),
            Record::Decided { upto } => self.decided = self.decided.max(*upto),
        }
    }

    /// None: a checkpoint has it.
    fn held(&mut self, instance: Instance) -> Option<&mut Held> {
        (instance > self.trimmed).then(|| self.batches.entry(instance).or_default())
    }

    /// The batch that a ballot has for an instance, if the log says so: it never has another one, and once a batch is
    /// decided, neither has any ballot.
    fn proposed(&self, instance: Instance, ballot: Ballot) -> Option<Batch> {
        let Held { vote, learned } = self.batches.get(&instance)?;
        let vote = vote.iter().filter(|(known, _)| *known == ballot);
        learned.iter().chain(vote).map(|(_, batch)| batch.clone()).next()
    }

    fn trim(&mut self, upto: Instance) {
        self.trimmed = self.trimmed.max(upto);
        self.decided = self.decided.max(upto);
        self.batches.retain(|instance, _| *instance > upto);
    }
}

/// The model after each prefix: `states[n]` follows the first `n` entries.
pub fn states(entries: &[Entry]) -> Vec<Model> {
    let mut model = Model::new();
    let mut states = vec![model.clone()];
    for entry in entries {
        apply(&mut model, entry);
        states.push(model.clone());
    }
    states
}

/// What a start read, as a model.
pub fn of_replay(replay: &Replay) -> Model {
    let of_group = |(group, replay): (&PartitionId, &coppice_core::replay::GroupReplay)| {
        let (created, removed) = (replay.created.clone(), replay.removed);
        let mut state = Group { created, removed, ..Group::default() };
        replay.clone().take_records().for_each(|(_, record)| state.apply(&record));
        state.trim(replay.trimmed.unwrap_or_default());
        (*group, state)
    };
    replay.groups.iter().map(of_group).collect()
}

/// Draws the next entry of a plausible life of three groups.
pub fn draw_entry(draw: &mut Draw, model: &Model) -> Entry {
    let group = PartitionId(draw.below(3) as u32);
    let empty = Group::default();
    let state = model.get(&group).unwrap_or(&empty);
    let newest = state.batches.last_key_value().map_or(state.trimmed, |(instance, _)| *instance);
    let Some((replica, _)) = state.created else {
        let replica = ReplicaId(state.removed.map_or(1, |removed| removed.0 + 1));
        return Entry::Created { group, replica, create: payload(draw) };
    };
    let instance = Instance((newest.0 + 1).saturating_sub(draw.below(3)).max(state.trimmed.0 + 1));
    let record = match draw.below(40) {
        0 => return Entry::Removed { group, replica },
        1..6 => return Entry::Trimmed { group, upto: Instance(newest.0.saturating_sub(draw.below(3))) },
        6..9 => {
            Record::Promise { ballot: Ballot::new(state.promised.round.0 + draw.below(2), 1 + draw.below(3) as u32) }
        }
        9 => Record::Lease { duration: Duration::from_millis(draw.below(500)) },
        10 => Record::Decided { upto: newest },
        11..15 => {
            let (ballot, batch) = (state.promised, batch(draw));
            Record::Learned { instance, ballot, batch: state.proposed(instance, ballot).unwrap_or(batch) }
        }
        _ => {
            let ballot = Ballot::new(state.promised.round.0.max(1), 1 + draw.below(3) as u32).max(state.promised);
            let (decided_upto, batch) = (state.trimmed, batch(draw));
            let batch = state.proposed(instance, ballot).unwrap_or(batch);
            Record::Accept { instance, ballot, decided_upto, batch }
        }
    };
    Entry::Group { group, record }
}

fn batch(draw: &mut Draw) -> Batch {
    match draw.below(8) {
        0 => Batch::NoOp,
        1 => {
            let replicas = |draw: &mut Draw| (0..draw.below(4) as u32).map(ReplicaId).collect();
            let (voters, learners, leaving) = (replicas(draw), replicas(draw), replicas(draw));
            Batch::Configuration(Configuration { voters, learners, leaving })
        }
        _ => {
            let mut parts: Vec<Bytes> = (0..1 + draw.below(3)).map(|_| payload(draw)).collect();
            Batch::Commands(Commands::from_parts(parts.len() as u32, &mut parts))
        }
    }
}

fn payload(draw: &mut Draw) -> Bytes {
    let length = if draw.below(4) == 0 { draw.below(3_000) } else { draw.below(200) };
    let byte = draw.below(256) as u8;
    Bytes::from(vec![byte; length as usize])
}

/// Names what differs, for people.
pub fn difference(expected: &Model, found: &Model) -> String {
    let mut text = String::new();
    let groups: std::collections::BTreeSet<_> = expected.keys().chain(found.keys()).collect();
    let none = Group::default();
    for group in groups {
        let (a, b) = (expected.get(group).unwrap_or(&none), found.get(group).unwrap_or(&none));
        for (name, same) in [
            ("created", a.created == b.created),
            ("removed", a.removed == b.removed),
            ("promised", a.promised == b.promised),
            ("lease", a.lease == b.lease),
            ("trimmed", a.trimmed == b.trimmed),
            ("decided", a.decided == b.decided),
            ("batches", a.batches == b.batches),
        ] {
            if !same {
                text += &format!(" {group} {name};");
            }
        }
        let instances: std::collections::BTreeSet<_> = a.batches.keys().chain(b.batches.keys()).collect();
        for instance in instances.into_iter().filter(|instance| a.batches.get(instance) != b.batches.get(instance)) {
            text += &format!(" {instance}: {:?} != {:?};", a.batches.get(instance), b.batches.get(instance));
        }
    }
    text.truncate(2_000);
    text
}
