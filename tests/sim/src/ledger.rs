//! What the decided logs come to by a model of its own: plain maps and bounds, and where each command took effect. The
//! server's machine executes the same logs beside it, for the oracle; both must agree (I13 to I16 of hazards.md 4).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use coppice_btree::{KeyRange, Op, OpResult, UpdateOutcome};
use coppice_client::wire::{Command, ManyOps, MapVersion, Pack, PartitionId, Position, SessionId};
use coppice_core::machine::entry::{Entry, Expire, entries};
use coppice_core::machine::partition::{BoundaryChange, BoundaryStep, Expiry};
use coppice_core::machine::{Answer, Outcome};
use coppice_core::multicast::PartitionQuery;
use coppice_core::replica::QueryPart;
use coppice_ordering::multicast::{Place, Work};
use coppice_ordering::{Ballot, Batch, Ticket};
use coppice_words::{Told, told as told_of};

use super::content::Content;
use super::found::{Found, broken};
use super::trace::Fingerprint;

/// A partition.
#[derive(Clone, Debug, Default)]
struct Model {
    low: Bytes,
    high: Option<Bytes>,
    sealed: bool,
    /// A neighbour has its keys.
    gone: bool,
    content: Content,
}

/// One share of a query: in which partition, at which ticket, whose.
type ShareOf = (PartitionId, Ticket, u64, u32);

/// First key, and the first one beyond.
type Bounds = (Bytes, Option<Bytes>);

/// All of them, and all commands.
#[derive(Debug, Default)]
pub struct Ledger {
    models: BTreeMap<PartitionId, Model>,
    applied: BTreeSet<(PartitionId, MapVersion)>,
    /// Who opened each session.
    clients: BTreeMap<SessionId, u64>,
    /// Where each command, by client and number, took effect.
    effects: BTreeMap<(u64, u64), Position>,
    /// Commands whose clients were told that they surely have none.
    refused: BTreeSet<(u64, u64)>,
    /// The pairs that each share of a query stands for, as a number.
    shares: BTreeMap<ShareOf, u64>,
    /// The bounds of each partition at each of its tickets.
    bounds: BTreeMap<(Ticket, PartitionId), Bounds>,
    /// What a look finds at the keys that no history holds, behind each instance that changed it.
    looks: BTreeMap<PartitionId, BTreeMap<u64, BTreeMap<Bytes, OpResult>>>,
}

/// Whether keys from `low` up to `high` lie inside.
fn holds((from, to): (&[u8], Option<&[u8]>), (low, high): (&[u8], Option<&[u8]>)) -> bool {
    let below = match (high, to) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(high), Some(to)) => high <= to,
    };
    low >= from && below
}

impl Model {
    fn owns(&self, key: &[u8]) -> bool {
        key >= &self.low[..] && self.high.as_ref().is_none_or(|high| key < high)
    }

    fn bounds(&self) -> (&[u8], Option<&[u8]>) {
        (&self.low, self.high.as_deref())
    }

    /// The pairs of a range, as a number.
    fn fingerprint(&self, low: &Bytes, high: Option<&Bytes>) -> u64 {
        let from = self.content.pairs.range::<Bytes, _>(low..);
        fingerprint(from.take_while(|(key, _)| high.is_none_or(|high| *key < high)))
    }
}

/// Runs guards until one does not hold, then the operations behind them.
fn run_many(
    operations: &ManyOps<'_>,
    mut run: impl FnMut(&Op<'_>) -> Result<OpResult, (&'static str, String)>,
) -> Result<Told, (&'static str, String)> {
    let mut results = Vec::new();
    for (at, op) in operations.iter().enumerate() {
        let result = run(&op)?;
        if at >= operations.guards() {
            results.push(result);
        } else if !matches!(result, OpResult::Update { outcome: UpdateOutcome::Done, .. }) {
            return Ok(Told::Unmet(at as u64));
        }
    }
    Ok(Told::Results(results))
}

fn fingerprint<K: AsRef<[u8]>, V: AsRef<[u8]>>(pairs: impl Iterator<Item = (K, V)>) -> u64 {
    use std::hash::Hasher;
    let mut hash = Fingerprint::default();
    for (key, value) in pairs {
        for bytes in [key.as_ref(), value.as_ref()] {
            hash.write_usize(bytes.len());
            hash.write(bytes);
        }
    }
    hash.finish()
}

impl Ledger {
    /// A partition of the first map.
    pub fn begin(&mut self, partition: PartitionId, range: &KeyRange) {
        let bytes = |key: &[u8]| Bytes::copy_from_slice(key);
        let model = Model { low: bytes(&range.low), high: range.high.as_deref().map(bytes), ..Model::default() };
        self.models.insert(partition, model);
    }

    /// An instance is decided, and came to these answers; `counts` says which of its tickets count, by index.
    pub fn decide(
        &mut self,
        (group, instance): (PartitionId, u64),
        batch: &Batch,
        answers: &[Answer],
        counts: impl Fn(u32) -> bool,
    ) -> Found {
        let Batch::Commands(commands) = batch else { return Ok(()) };
        if !self.models.contains_key(&group) {
            return Ok(());
        }
        let entries = commands.parts().iter().flat_map(|part| entries(part));
        for (entry, answer) in entries.zip(answers) {
            // The time passes whatever becomes of the pack.
            if let Entry::Pack { time: Some(said), .. } = entry {
                self.expire(group, said.by, &Expire { time: said.time, keys: Vec::new() });
            }
            match (entry, &answer.outcome) {
                (Entry::Open(open), Outcome::Opened(session)) => _ = self.clients.insert(*session, open.client.0),
                (Entry::Place(place), _) if counts(answer.index) => self.place(group, &place),
                (Entry::Expire(by, due), _) => self.expire(group, by, &due),
                (Entry::Pack { pack, .. }, Outcome::Pack(told)) => {
                    let first = Position { partition: group, instance, index: answer.index };
                    self.pack(first, &pack, told)?;
                }
                _ => {}
            }
        }
        self.note_looks(group, instance);
        Ok(())
    }

    fn note_looks(&mut self, group: PartitionId, instance: u64) {
        let Some(model) = self.models.get(&group) else { return };
        let (now, noted) = (model.content.looks(), self.looks.entry(group).or_default());
        if noted.values().next_back().map_or(!now.is_empty(), |last| *last != now) {
            noted.insert(instance, now);
        }
    }

    /// A client was told of a key that no history holds: that must be what its position says (RD7, RD9).
    pub fn check_look(&self, at: Position, key: &[u8], found: &OpResult) -> Found {
        let noted = self.looks.get(&at.partition).and_then(|noted| noted.range(..=at.instance).next_back());
        let absent = OpResult::Look { exists: false, length: 0, remaining: None };
        let own = noted.and_then(|(_, looks)| looks.get(key)).unwrap_or(&absent);
        match own == found {
            true => Ok(()),
            false => broken("I7 another look", format!("{} at {at}: {found:?}, and not {own:?}", key.escape_ascii())),
        }
    }

    /// Keys may be due.
    fn expire(&mut self, group: PartitionId, by: Ballot, due: &Expire) {
        if let Some(model) = self.models.get_mut(&group).filter(|model| !model.sealed) {
            model.content.expire(by, due.time, &due.keys);
        }
    }

    /// Keys that expire soon, and when; of all partitions.
    pub fn due_within(&self, milliseconds: u64) -> Vec<(Bytes, u64)> {
        let models = self.models.values().filter(|model| !model.gone && !model.sealed);
        let due = models.flat_map(|Model { content, .. }| {
            content.deadlines.iter().filter(move |(_, at)| **at <= content.time + milliseconds)
        });
        due.map(|(key, at)| (key.clone(), *at)).collect()
    }

    /// Whether none of these is there any more.
    pub fn have_expired(&self, due: &[(Bytes, u64)]) -> bool {
        let holds = |model: &Model, (key, at): &(Bytes, u64)| model.content.deadlines.get(key) == Some(at);
        !self.models.values().any(|model| !model.gone && due.iter().any(|due| holds(model, due)))
    }

    /// Commands of a client: what they were told says which ran here.
    fn pack(&mut self, first: Position, pack: &Pack<'_>, told: &[u8]) -> Found {
        let group = first.partition;
        let client = self.clients.get(&pack.session()).copied().unwrap_or(u64::MAX);
        for (index, ((number, command), (at, told))) in (first.index..).zip(pack.commands().zip(told_of(told))) {
            let here = Position { index, ..first };
            if matches!(told, Told::Refused(_)) || at != here {
                continue;
            }
            if let Some(before) = self.effects.insert((client, number), here) {
                return broken("I16 twice", format!("c{client} {number} runs at {before} and at {here}"));
            }
            if self.refused.contains(&(client, number)) {
                return broken("I16 refused", format!("c{client} {number} was refused, and runs at {here}"));
            }
            let Some(model) = self.models.get_mut(&group) else { return Ok(()) };
            let mut run = |op: &Op<'_>| {
                if !model.owns(op.key()) || op.other_key().is_some_and(|key| !model.owns(key)) || model.sealed {
                    let (low, high) = (&model.low, &model.high);
                    let what = format!("{op:?} runs at {here}, of {low:?} to {high:?}, sealed: {}", model.sealed);
                    return broken("I14 a key elsewhere", what);
                }
                Ok(model.content.apply(op))
            };
            let expected = match &command {
                Command::Op(op) => Told::Results(vec![run(op)?]),
                Command::Many(operations) => run_many(operations, run)?,
                Command::Load(pairs) => {
                    pairs.iter().try_for_each(|(key, value)| run(&Op::Put { key, value }).map(drop))?;
                    Told::Other
                }
            };
            if told != expected {
                return broken("I7 another answer", format!("{command:?} at {here}: {told:?}, and not {expected:?}"));
            }
        }
        Ok(())
    }

    /// A ticket counts.
    fn place(&mut self, group: PartitionId, place: &Place) {
        if let Work::Change { payload, .. } = &place.work
            && let Ok(change) = postcard::from_bytes::<BoundaryChange>(payload)
            && self.applied.insert((group, change.version))
        {
            self.change(group, &change.step);
        }
        let Some(model) = self.models.get(&group) else { return };
        self.bounds.insert((place.ticket, group), (model.low.clone(), model.high.clone()));
        let Work::Queries(queries) = &place.work else { return };
        for share in queries.iter().filter_map(|sub| PartitionQuery::decode(&sub.bytes).ok()) {
            if holds(model.bounds(), (&share.low, share.high.as_deref())) {
                let of = (group, place.ticket, share.client.0, share.query);
                self.shares.insert(of, model.fingerprint(&share.low, share.high.as_ref()));
            }
        }
    }

    fn change(&mut self, group: PartitionId, step: &BoundaryStep) {
        match step {
            BoundaryStep::Split { parent, child, at, .. } if *parent == group => {
                let Some(model) = self.models.get_mut(&group) else { return };
                if !model.owns(at) || *at == model.low || model.sealed {
                    return;
                }
                let content = model.content.split_off(at);
                let high = model.high.replace(at.clone());
                self.models.insert(*child, Model { low: at.clone(), high, content, ..Model::default() });
                self.note_looks(*child, 0);
            }
            BoundaryStep::Seal { partition, .. } if *partition == group => {
                self.models.entry(group).or_default().sealed = true;
            }
            BoundaryStep::Join { partition, target } if *target == group => {
                let Some(left) = self.models.get(partition).cloned() else { return };
                let Some(model) = self.models.get_mut(&group) else { return };
                if left.high.as_ref() == Some(&model.low) {
                    model.low = left.low;
                } else if model.high.as_ref() == Some(&left.low) {
                    model.high = left.high;
                } else {
                    return;
                }
                model.content.join(left.content);
                self.models.entry(*partition).or_default().gone = true;
            }
            _ => {}
        }
    }

    /// A client is told that a command, under each of these numbers, surely has no effect.
    pub fn refuse(&mut self, client: u64, numbers: &[u64]) -> Found {
        for &number in numbers {
            if let Some(at) = self.effects.get(&(client, number)) {
                return broken("I16 refused", format!("c{client} {number} is refused, and ran at {at}"));
            }
            self.refused.insert((client, number));
        }
        Ok(())
    }

    /// Holds the time and the deadlines of the server's machine against the model.
    pub fn agrees_on_expiry(&self, partition: PartitionId, expiry: &Expiry) -> Found {
        let Some(Model { content, .. }) = self.models.get(&partition) else { return Ok(()) };
        let (own, found) = ((content.time, content.deadlines.len() as u64), (expiry.time(), expiry.len()));
        match own == found {
            true => Ok(()),
            false => broken("I7 another time", format!("{partition} has {found:?} (time, deadlines), and not {own:?}")),
        }
    }

    /// Holds the bounds and the number of pairs of the server's machine against the model.
    pub fn agrees(&self, partition: PartitionId, range: &KeyRange, pairs: u64) -> Found {
        let Some(model) = self.models.get(&partition) else { return Ok(()) };
        if model.bounds() != (&range.low[..], range.high.as_deref()) {
            let what = format!("{partition} has {range:?}, and not {:?} to {:?}", model.low, model.high);
            return broken("I14 boundaries", what);
        }
        if model.content.pairs.len() as u64 != pairs {
            let what = format!("{partition} has {pairs} pairs, and not {}", model.content.pairs.len());
            return broken("I7 another state", what);
        }
        Ok(())
    }

    /// Holds all pairs of the server's machine against the model.
    pub fn same(&self, partition: PartitionId, pairs: impl Iterator<Item = (Vec<u8>, Vec<u8>)>) -> Found {
        let Some(model) = self.models.get(&partition) else { return Ok(()) };
        let own = fingerprint(model.content.pairs.iter());
        if fingerprint(pairs) == own { Ok(()) } else { broken("I7 another state", format!("{partition} at its end")) }
    }

    /// Keys that no partition has, or two have, in words. A sealed one counts until another one has its keys.
    pub fn check_map(&self) -> Found {
        let there = self.models.values().filter(|model| !model.gone);
        let bounds = there.map(|model| (model.low.clone(), model.high.clone()));
        match gap(bounds.collect(), &Bytes::new(), None) {
            None => Ok(()),
            Some(at) => broken("I14 the map", format!("not one partition has {at:?}")),
        }
    }

    /// A part of a query leaves: it must be that of its ticket's place (I13).
    pub fn check_part(&self, part: &QueryPart) -> Found {
        let QueryPart { ticket, position, partition_query, cursor } = part;
        let of = (position.partition, *ticket, partition_query.client.0, partition_query.query);
        let Some(wanted) = self.shares.get(&of) else {
            return broken("I13 a part of nothing", format!("{position} of {ticket} for {}", partition_query.client.0));
        };
        let mut pairs = Vec::new();
        let mut rest = Box::clone(cursor);
        rest.walk(|run| {
            pairs.extend((0..run.len()).map(|at| (run.pair(at).0.to_vec(), run.pair(at).1.to_vec())));
            run.len()
        });
        pairs.sort();
        if fingerprint(pairs.iter().map(|(key, value)| (key, value))) != *wanted {
            return broken("I13 a part of another state", format!("{position} of {ticket}: {} pairs", pairs.len()));
        }
        Ok(())
    }

    /// A query over this range completes: the partitions of its ticket, as they were there, have every key once (I13).
    pub fn check_tiles(&self, ticket: Ticket, (low, high): (&Bytes, Option<&Bytes>)) -> Found {
        let first = PartitionId(0);
        let parts = self.bounds.range((ticket, first)..=(ticket, PartitionId(u32::MAX)));
        match gap(parts.map(|(_, bounds)| bounds.clone()).collect(), low, high) {
            None => Ok(()),
            Some(at) => broken("I13 the parts", format!("not one part of {ticket} has {at:?}, of {low:?} to {high:?}")),
        }
    }
}

/// The first key from `low` up to `high` that none of the ranges has, or two have.
fn gap(mut ranges: Vec<Bounds>, low: &Bytes, high: Option<&Bytes>) -> Option<Bytes> {
    let outside = |(from, to): &Bounds| {
        to.as_ref().is_some_and(|to| to <= low) || high.is_some_and(|high| from >= high) || to.as_ref() == Some(from)
    };
    ranges.retain(|range| !outside(range));
    ranges.sort();
    let mut reached = Some(low.clone());
    for (from, to) in ranges {
        let Some(at) = reached else { return Some(from) };
        if from > at || (from < at && at != *low) {
            return Some(at.min(from));
        }
        reached = to;
    }
    reached.filter(|at| high.is_none_or(|high| at < high))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Bytes {
        Bytes::copy_from_slice(text.as_bytes())
    }

    fn range(low: &str, high: &str) -> Bounds {
        (bytes(low), (!high.is_empty()).then(|| bytes(high)))
    }

    fn gap_in(ranges: &[(&str, &str)], low: &str, high: &str) -> Option<Bytes> {
        let (low, high) = range(low, high);
        gap(ranges.iter().map(|(low, high)| range(low, high)).collect(), &low, high.as_ref())
    }

    /// I13, I14: every key once.
    #[test]
    fn parts_tile_a_range_or_name_the_key() {
        assert_eq!(gap_in(&[("", "d"), ("d", "k"), ("k", "")], "", ""), None);
        assert_eq!(gap_in(&[("", "d"), ("d", "k"), ("k", "")], "b", "f"), None);
        assert_eq!(gap_in(&[("k", ""), ("", "d")], "b", "f"), Some(bytes("d")));
        assert_eq!(gap_in(&[("", "f"), ("d", "k")], "b", "k"), Some(bytes("d")), "two have it");
        assert_eq!(gap_in(&[("c", "k")], "b", "k"), Some(bytes("b")));
        assert_eq!(gap_in(&[("", "d")], "b", ""), Some(bytes("d")));
        assert_eq!(gap_in(&[("", ""), ("d", "")], "", ""), Some(bytes("d")));
    }

    /// I16.
    #[test]
    fn a_refused_command_that_ran_is_found() {
        let mut ledger = Ledger::default();
        let at = Position { partition: PartitionId(1), instance: 4, index: 0 };
        ledger.effects.insert((1, 7), at);
        assert_eq!(ledger.refuse(1, &[6]), Ok(()));
        assert_eq!(ledger.refuse(1, &[7]).expect_err("it ran").0, "I16 refused");
    }

    /// I14: a sealed partition's keys are its own until its neighbour has them.
    #[test]
    fn a_key_has_one_partition_through_a_split_and_a_merge() {
        let mut ledger = Ledger::default();
        let (one, two) = (PartitionId(1), PartitionId(2));
        ledger.begin(one, &KeyRange::all());
        let split = BoundaryStep::Split { parent: one, child: two, at: bytes("m"), replicas: Vec::new() };
        ledger.change(one, &split);
        assert_eq!(ledger.check_map(), Ok(()));
        let moved = KeyRange { low: b"m"[..].into(), high: None };
        assert_eq!((ledger.agrees(two, &moved, 0), ledger.agrees(two, &moved, 1).is_err()), (Ok(()), true));
        assert_eq!(ledger.agrees(one, &KeyRange::all(), 0).expect_err("it gave keys away").0, "I14 boundaries");
        ledger.change(two, &BoundaryStep::Seal { partition: two, target: one });
        assert_eq!(ledger.check_map(), Ok(()));
        ledger.change(one, &BoundaryStep::Join { partition: two, target: one });
        assert_eq!((ledger.check_map(), ledger.agrees(one, &KeyRange::all(), 0)), (Ok(()), Ok(())));
        ledger.models.get_mut(&two).expect("there").gone = false;
        assert_eq!(ledger.check_map().expect_err("two have it").0, "I14 the map");
    }
}
