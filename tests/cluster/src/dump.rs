//! What the nodes' logs hold, once the nodes are down: every decided batch from the first instance on, run through the
//! machine again for its verdict on each command (hazards.md 2, E5), in the words of the checkers.
//!
//! All replicas' logs are read and compared; one line per entry is written. It refuses to know what clients were told.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::path::PathBuf;

use coppice_btree::KeyRange;
use coppice_client::map::PartitionMap;
use coppice_client::wire::{CommandRefusal, PartitionId, SessionId};
use coppice_core::machine::entry::{Entry as LogEntry, entries};
use coppice_core::machine::partition::{AbsorbedState, AwaitedState, BoundaryChange, BoundaryStep, Partition};
use coppice_core::machine::{Answer, Machine, Outcome};
use coppice_core::replay::Entry as Line;
use coppice_ordering::multicast::{Place, Work};
use coppice_ordering::{Ballot, Batch, Instance, Record};

use coppice_check::event::{Call, Change, Entry, Event, LogLine, Position};
use coppice_words::{self as words, Told, call_of, position, text, ticket, told};

use super::effects::Effects;

/// Replicas of a group, if there are as many nodes: the cluster setting `replicas`.
const REPLICAS: usize = 3;

/// Why there is no dump.
#[derive(Debug)]
pub enum DumpError {
    /// A log cannot be read, or lacks what it must hold.
    Unreadable(String),
    /// Two replicas hold different batches as decided: the worst there is.
    Disagree(String),
    /// The dump cannot be written.
    Io(io::Error),
}

impl From<io::Error> for DumpError {
    fn from(error: io::Error) -> DumpError {
        DumpError::Io(error)
    }
}

/// What a history needs to know of the logs.
#[derive(Debug, Default)]
pub struct Dump {
    /// The number of each command that carries a value, by that value.
    pub by_value: HashMap<Vec<u8>, u64>,
    /// Commands without a value, in log order.
    pub deletes: Vec<Delete>,
    /// Commands of each decided batch, by partition and instance.
    pub counts: HashMap<(u32, u64), u32>,
    /// Digests of the decided state, by partition and instance: those that were asked for.
    pub digests: BTreeMap<(u32, u64), u64>,
    /// Instances that at least two replicas held, all equal.
    pub compared: u64,
    /// Commands and tickets that counted.
    pub entries: u64,
    /// What commands did.
    pub effects: Effects,
}

/// A delete as a log has it.
#[derive(Clone, Debug)]
pub struct Delete {
    pub position: Position,
    pub client: u64,
    pub number: u64,
    /// Of which key.
    pub key: Vec<u8>,
}

/// A decided batch, and the log that it was taken from.
#[derive(Debug)]
struct Held {
    batch: Batch,
    /// Number of the directory.
    node: usize,
    /// In which that log accepted it; others may have accepted the same batch in another.
    ballot: Ballot,
}

/// The decided batches of all groups, agreed on by all logs.
#[derive(Default)]
struct Logs {
    /// The directories' names: that of a node, or of a disk that it lost.
    names: Vec<String>,
    groups: BTreeMap<PartitionId, BTreeMap<u64, Held>>,
    /// Votes that no log says to be decided: by instance and ballot.
    votes: BTreeMap<PartitionId, BTreeMap<(u64, Ballot), Vec<Vote>>>,
    compared: u64,
}

/// A node's vote.
type Vote = (usize, Batch);

/// What one node's log says of one group, while it is read.
#[derive(Default)]
struct Reading {
    slots: BTreeMap<u64, (Ballot, Batch)>,
    decided_upto: u64,
    /// Votes that a snapshot from a peer skipped: a later ballot may have decided something else there.
    skipped: Vec<(u64, Ballot, Batch)>,
}

impl Reading {
    fn apply(&mut self, record: Record) {
        match record {
            Record::Accept { instance, ballot, decided_upto, batch } => {
                self.decided_upto = self.decided_upto.max(decided_upto.0);
                self.slots.insert(instance.0, (ballot, batch));
            }
            Record::Learned { instance, ballot, batch } => {
                self.decided_upto = self.decided_upto.max(instance.0);
                self.slots.insert(instance.0, (ballot, batch));
            }
            Record::Decided { upto } => self.decided_upto = self.decided_upto.max(upto.0),
            Record::Promise { .. } | Record::Lease { .. } => {}
        }
    }

    /// A vote written again, behind records that may be newer than it.
    fn apply_copy(&mut self, record: Record) {
        let known = match &record {
            Record::Accept { instance, ballot, .. } | Record::Learned { instance, ballot, .. } => {
                self.slots.get(&instance.0).is_some_and(|(newest, _)| newest >= ballot)
            }
            Record::Promise { .. } | Record::Decided { .. } | Record::Lease { .. } => false,
        };
        if !known {
            self.apply(record);
        }
    }

    /// The log is trimmed up to here: by a checkpoint of what it says to be decided, or by a snapshot that says more.
    fn trim(&mut self, upto: u64) {
        if upto <= self.decided_upto {
            return;
        }
        let mut above = self.slots.split_off(&(self.decided_upto + 1));
        let later = above.split_off(&(upto + 1));
        self.skipped.extend(above.into_iter().map(|(instance, (ballot, batch))| (instance, ballot, batch)));
        self.slots.extend(later);
        self.decided_upto = upto;
    }
}

/// What one node's log says of all groups, while it is read.
#[derive(Default)]
struct Readings {
    groups: BTreeMap<PartitionId, Reading>,
    /// Of replicas that were removed, or followed by another one of their group: what they knew stays true.
    ended: Vec<(PartitionId, Reading)>,
}

impl Readings {
    fn apply(&mut self, carried: bool, entry: Line) {
        let Some(group) = entry.group().map(|group| PartitionId(group.0)) else { return };
        match entry {
            Line::Group { record, .. } => {
                let reading = self.groups.entry(group).or_default();
                if carried { reading.apply_copy(record) } else { reading.apply(record) }
            }
            // A copy says of the replica that runs who it is, and begins none.
            Line::Created { .. } | Line::Removed { .. } if carried => {}
            Line::Created { .. } | Line::Removed { .. } => self.ended.extend(self.groups.remove_entry(&group)),
            Line::Trimmed { upto, .. } => self.groups.entry(group).or_default().trim(upto.0),
            Line::Kept { .. } => {}
        }
    }
}

impl Logs {
    fn read(&mut self, node: usize, directory: &std::path::Path) -> Result<(), DumpError> {
        let name = directory.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let mut readings = Readings::default();
        coppice_server::log::reader::read(&directory.join("log"), |line| readings.apply(line.carried, line.entry))
            .map_err(|error| DumpError::Unreadable(format!("{name}: {error}")))?;
        self.names.push(name);
        for (group, reading) in readings.ended.into_iter().chain(readings.groups) {
            self.merge(node, group, reading)?;
        }
        Ok(())
    }

    fn merge(&mut self, node: usize, group: PartitionId, reading: Reading) -> Result<(), DumpError> {
        for (instance, ballot, batch) in reading.skipped {
            self.votes.entry(group).or_default().entry((instance, ballot)).or_default().push((node, batch));
        }
        for (instance, (ballot, batch)) in reading.slots {
            if instance > reading.decided_upto {
                let votes = self.votes.entry(group).or_default();
                votes.entry((instance, ballot)).or_default().push((node, batch));
            } else {
                self.decided(group, instance, Held { batch, node, ballot })?;
            }
        }
        Ok(())
    }

    fn decided(&mut self, group: PartitionId, instance: u64, held: Held) -> Result<(), DumpError> {
        let known = self.groups.entry(group).or_default();
        match known.get(&instance) {
            None => _ = known.insert(instance, held),
            Some(first) if first.batch == held.batch => self.compared += 1,
            Some(other) => {
                let (one, two) = (&self.names[other.node], &self.names[held.node]);
                let what = format!(
                    "{one} (accepted in {}) and {two} (in {}) hold different batches at {group}#{instance}, both decided",
                    other.ballot, held.ballot
                );
                return Err(DumpError::Disagree(what));
            }
        }
        Ok(())
    }

    /// What a quorum voted for in one ballot is decided, though nobody lived to write it down.
    fn count_votes(&mut self, quorum: usize) -> Result<(), DumpError> {
        for (group, votes) in std::mem::take(&mut self.votes) {
            for ((instance, ballot), votes) in votes.into_iter().filter(|(_, votes)| votes.len() >= quorum) {
                for (node, batch) in votes {
                    self.decided(group, instance, Held { batch, node, ballot })?;
                }
            }
        }
        Ok(())
    }
}

/// A partition that is about to be replayed.
struct Begin {
    partition: PartitionId,
    instance: u64,
    from: Option<Position>,
    state: Partition,
}

/// Reads the logs in all data directories of so many nodes (those that a node lost too), replays them from `map`, the
/// one that the cluster began with, and gives every entry to `sink`. `wanted`: partitions and instances whose states'
/// digests are to be known.
///
/// # Errors
/// See [`DumpError`].
pub fn dump(
    directories: &[PathBuf],
    nodes: usize,
    map: &PartitionMap,
    wanted: BTreeSet<(u32, u64)>,
    sink: &mut dyn FnMut(&Event<'_>) -> io::Result<()>,
) -> Result<Dump, DumpError> {
    let mut logs = Logs::default();
    for (node, directory) in directories.iter().enumerate() {
        logs.read(node, directory)?;
    }
    logs.count_votes(nodes.min(REPLICAS) / 2 + 1)?;
    let mut replay = Replay {
        dump: Dump { compared: logs.compared, ..Dump::default() },
        clients: HashMap::new(),
        seals: HashMap::new(),
        absorbed_states: Vec::new(),
        source: (0, None),
        wanted,
        sink,
    };
    let first = map.partitions.iter().map(|entry| Begin {
        partition: entry.partition,
        instance: 0,
        from: None,
        state: Partition::new(
            entry.partition,
            KeyRange { low: entry.low[..].into(), high: entry.high.as_deref().map(Into::into) },
            entry.version,
        ),
    });
    replay.all(first.collect(), logs.groups)?;
    Ok(replay.dump)
}

/// A partition while it is replayed.
struct Running {
    partition: PartitionId,
    machine: Machine,
    /// The instance that comes next.
    next: u64,
    /// What its log holds from there on.
    left: VecDeque<(u64, Held)>,
}

struct Replay<'a> {
    dump: Dump,
    /// Who opened each session.
    clients: HashMap<SessionId, u64>,
    /// Where partitions were sealed.
    seals: HashMap<PartitionId, Position>,
    /// What sealed partitions leave, once their logs are replayed to the end.
    absorbed_states: Vec<AbsorbedState>,
    /// The log that the current batch is taken from, and its ballot there.
    source: (u32, Option<(u64, u32)>),
    /// Where a digest is wanted.
    wanted: BTreeSet<(u32, u64)>,
    sink: &'a mut dyn FnMut(&Event<'_>) -> io::Result<()>,
}

/// One batch as it ran.
struct Ran<'a> {
    partition: PartitionId,
    instance: u64,
    answers: &'a [Answer],
    /// Indexes of the tickets that counted.
    placed: &'a [u32],
}

impl Ran<'_> {
    fn position(&self, index: u32) -> Position {
        Position { partition: self.partition.0, instance: self.instance, index }
    }
}

impl Replay<'_> {
    /// Replays all partitions: children after the splits that made them, merge targets as far as their neighbours'
    /// states are known, and then on.
    fn all(
        &mut self,
        mut begins: VecDeque<Begin>,
        mut logs: BTreeMap<PartitionId, BTreeMap<u64, Held>>,
    ) -> Result<(), DumpError> {
        let mut parked: Vec<(AwaitedState, Running)> = Vec::new();
        loop {
            let known =
                |awaited: &AwaitedState| self.absorbed_states.iter().any(|left| left.partition == awaited.partition);
            let running = match begins.pop_front() {
                Some(begin) => {
                    let batches = logs.remove(&begin.partition).unwrap_or_default();
                    self.begin(begin, batches)?
                }
                None => match parked.iter().position(|(awaited, _)| known(awaited)) {
                    Some(ready) => parked.swap_remove(ready).1,
                    None => break,
                },
            };
            parked.extend(self.run(running, &mut begins)?);
        }
        parked.first().map_or(Ok(()), |(awaited, running)| {
            let at = format!("{}#{}", running.partition, running.next);
            Err(DumpError::Unreadable(format!("{at} takes in {}, and no log seals that one", awaited.partition)))
        })
    }

    fn begin(&mut self, begin: Begin, batches: BTreeMap<u64, Held>) -> Result<Running, DumpError> {
        let Begin { partition, instance: born, from, state } = begin;
        let entry = Entry::Born {
            from,
            low: text(&state.range().low),
            high: state.range().high.as_ref().map(|high| text(high)),
            ticket: state.last_ticket().map(ticket),
        };
        self.source = (0, None);
        self.line(Position { partition: partition.0, instance: born, index: 0 }, entry, true)?;
        let left = batches.into_iter().filter(|(instance, _)| *instance > born).collect();
        Ok(Running { partition, machine: Machine::Partition(Box::new(state)), next: born + 1, left })
    }

    /// Replays one partition's log to its end, or to the batch that needs the state of a neighbour whose own log was
    /// not replayed yet. Partitions that split off on the way are added to `children`.
    fn run(
        &mut self,
        mut running: Running,
        children: &mut VecDeque<Begin>,
    ) -> Result<Option<(AwaitedState, Running)>, DumpError> {
        let partition = running.partition;
        while let Some((instance, held)) = running.left.pop_front() {
            let next = running.next;
            if instance != next {
                let what = format!("no node's log holds {partition}#{next}; the nodes must run with log.keep = all");
                return Err(DumpError::Unreadable(what));
            }
            let machine = &mut running.machine;
            let mut answers = Vec::new();
            let mark = machine.execute(Instance(instance), &held.batch, &mut answers);
            if let Some(awaited) = Machine::awaits(&mark) {
                // The batch runs again when its neighbour's state is there.
                machine.undo(mark);
                let left = self.absorbed_states.iter().find(|left| left.partition == awaited.partition).cloned();
                running.left.push_front((instance, held));
                if left.is_some_and(|left| running.machine.absorb(left)) {
                    continue;
                }
                return Ok(Some((awaited, running)));
            }
            let mut placed = Vec::new();
            machine.take_placed(&mut placed);
            machine.confirm(&mark, None);
            let placed: Vec<u32> = placed.iter().map(|placed| placed.index).collect();
            if self.wanted.contains(&(partition.0, instance)) {
                self.dump.digests.insert((partition.0, instance), machine.digest());
            }
            self.dump.counts.insert((partition.0, instance), held.batch.count());
            self.source = (held.node as u32 + 1, Some((held.ballot.round.0, held.ballot.replica.0)));
            let splits = self.batch(&Ran { partition, instance, answers: &answers, placed: &placed }, &held.batch)?;
            for fork in Machine::forks(&mark) {
                let child = fork.partition.id();
                let from = splits.iter().find(|(of, _)| *of == child).map(|(_, at)| *at);
                children.push_back(Begin {
                    partition: child,
                    instance: fork.instance.0,
                    from,
                    state: fork.partition.copy(),
                });
            }
            running.next += 1;
        }
        self.absorbed_states.extend(running.machine.partition().and_then(Partition::absorbed_state));
        Ok(None)
    }

    /// Writes one batch down; returns the splits that it holds.
    fn batch(&mut self, ran: &Ran<'_>, batch: &Batch) -> Result<Vec<(PartitionId, Position)>, DumpError> {
        let mut splits = Vec::new();
        let Batch::Commands(commands) = batch else {
            self.line(ran.position(0), Entry::Other, true)?;
            return Ok(splits);
        };
        let parts = commands.parts().iter().flat_map(|part| entries(part));
        for (entry, answer) in parts.zip(ran.answers) {
            let position = ran.position(answer.index);
            match entry {
                LogEntry::Pack { pack, .. } => self.pack(ran, &pack, answer)?,
                LogEntry::Open(open) => {
                    if let Outcome::Opened(session) = answer.outcome {
                        self.clients.insert(session, open.client.0);
                    }
                    self.line(position, Entry::Other, true)?;
                }
                LogEntry::Place(place) => {
                    let change = change_of(&place).and_then(|change| self.told(&change, position));
                    if let Some(Change::Split { to, .. }) = change {
                        splits.push((PartitionId(to), position));
                    }
                    let previous = place.prev.map(ticket);
                    let entry = Entry::Place { ticket: ticket(place.ticket), previous, change };
                    let hit = ran.placed.contains(&position.index);
                    self.line(position, entry, hit)?;
                }
                LogEntry::Directory(_) | LogEntry::Limits(_) | LogEntry::Expire(..) | LogEntry::Unknown => {
                    self.line(position, Entry::Other, true)?;
                }
            }
        }
        Ok(splits)
    }

    fn pack(&mut self, ran: &Ran<'_>, pack: &coppice_client::wire::Pack<'_>, answer: &Answer) -> io::Result<()> {
        let results = match &answer.outcome {
            Outcome::Pack(bytes) => told(bytes),
            _ => Vec::new(),
        };
        let session = pack.session();
        let client = self.clients.get(&session).copied().unwrap_or(u64::MAX);
        for (offset, (number, command)) in pack.commands().enumerate() {
            let at = ran.position(answer.index + offset as u32);
            let Some((told, result)) = results.get(offset) else {
                // Its session had ended: nothing ran, and the client may have numbered it anew since.
                self.line(at, Entry::Other, true)?;
                continue;
            };
            if let Told::Refused(CommandRefusal::WrongPartition { .. } | CommandRefusal::Later) = result {
                // Surely not executed here: its client sends it elsewhere, under another number.
                self.line(at, Entry::Other, true)?;
                continue;
            }
            let hit = !matches!(result, Told::Refused(_)) && position(*told) == at;
            if hit {
                self.dump.effects.add(&command, result);
            }
            let call = call_of(&command);
            match (value_of(&call), &call) {
                // If it stands there under two numbers, the judge will say so.
                (Some(value), _) => _ = self.dump.by_value.insert(value.to_vec(), number),
                (None, Call::Delete { key }) => {
                    self.dump.deletes.push(Delete { position: at, client, number, key: key.to_vec() });
                }
                (None, _) => {}
            }
            let session = words::session(session);
            let low = pack.lowest_unacknowledged();
            self.line(at, Entry::Command { client, number, call, low, session: Some(session), expired: false }, hit)?;
        }
        Ok(())
    }

    /// A change of boundaries in the checkers' words, as it stands in the log of one of its partitions.
    fn told(&mut self, change: &BoundaryChange, at: Position) -> Option<Change<'static>> {
        let id = change.version.0;
        match &change.step {
            BoundaryStep::Split { parent, child, at: key, .. } if parent.0 == at.partition => {
                Some(Change::Split { id, key: text(key), to: child.0 })
            }
            BoundaryStep::Seal { partition, .. } => {
                self.seals.entry(*partition).or_insert(at);
                Some(Change::Seal { id })
            }
            BoundaryStep::Join { partition, target } if target.0 == at.partition => {
                let from = self.seals.get(partition).copied()?;
                Some(Change::Take { id, from })
            }
            BoundaryStep::Join { target, .. } => Some(Change::End { id, to: target.0 }),
            BoundaryStep::Split { .. } => None,
        }
    }

    fn line(&mut self, position: Position, entry: Entry<'_>, hit: bool) -> io::Result<()> {
        self.dump.entries += u64::from(hit && !matches!(entry, Entry::Other));
        let (replica, ballot) = self.source;
        (self.sink)(&Event::Log(LogLine { position, replica, ballot, entry, hit }))
    }
}

/// The value that names a command: the first that it writes.
pub fn value_of<'a>(call: &'a Call<'_>) -> Option<&'a [u8]> {
    match call {
        Call::Put { value, .. } | Call::Insert { value, .. } | Call::Cas { value, .. } => Some(value),
        Call::Many(calls) => calls.iter().find_map(value_of),
        Call::Get { .. } | Call::Delete { .. } | Call::Range { .. } => None,
    }
}

fn change_of(place: &Place) -> Option<BoundaryChange> {
    let Work::Change { payload, .. } = &place.work else { return None };
    postcard::from_bytes(payload).ok()
}

#[cfg(test)]
mod tests {
    use coppice_ordering::Commands;

    use super::*;

    fn vote(instance: u64, round: u64, decided_upto: u64, what: &'static str) -> Record {
        let batch = Batch::Commands(Commands::new(1, what.as_bytes().into()));
        let ballot = Ballot::new(round, 1);
        Record::Accept { instance: Instance(instance), ballot, decided_upto: Instance(decided_upto), batch }
    }

    /// A segment that goes leaves a copy of the replica's create request, and copies of votes that a later ballot has
    /// replaced.
    #[test]
    fn a_copy_of_a_create_request_begins_no_replica() {
        let group = coppice_client::wire::PartitionId(3);
        let created = Line::Created { group, replica: coppice_ordering::ReplicaId(1), create: Default::default() };
        let of_group = |record| Line::Group { group, record };
        let mut readings = Readings::default();
        readings.apply(false, created.clone());
        for vote in [vote(1, 1, 0, "a"), vote(2, 1, 1, "overwritten"), vote(2, 2, 1, "b")] {
            readings.apply(false, of_group(vote));
        }
        readings.apply(true, created);
        readings.apply(true, of_group(vote(2, 1, 1, "overwritten")));
        readings.apply(false, of_group(vote(3, 2, 2, "c")));
        assert!(readings.ended.is_empty(), "it goes on");
        let reading = &readings.groups[&PartitionId(3)];
        assert_eq!((reading.decided_upto, reading.slots[&2].0), (2, Ballot::new(2, 1)));
    }

    /// A kill storm: a node that had led was behind, skipped by a snapshot what others decided instead of its last
    /// proposals, and those were taken for decided.
    #[test]
    fn votes_that_a_snapshot_skips_are_not_decided() {
        let mut logs = Logs { names: vec!["n1".to_owned(), "n2".to_owned()], ..Logs::default() };
        let mut other = Reading::default();
        for vote in [vote(4, 1, 3, "a"), vote(5, 2, 4, "b"), vote(6, 2, 5, "c"), vote(7, 2, 6, "d")] {
            other.apply(vote);
        }
        logs.merge(1, PartitionId(1), other).expect("the first");
        let mut behind = Reading::default();
        for vote in [vote(4, 1, 3, "a"), vote(5, 1, 4, "overwritten"), vote(7, 2, 4, "d")] {
            behind.apply(vote);
        }
        // A checkpoint of its own takes nothing back.
        behind.trim(3);
        behind.trim(6);
        behind.apply(Record::Decided { upto: Instance(7) });
        logs.merge(0, PartitionId(1), behind).expect("nothing that is decided differs");
        logs.count_votes(2).expect("one vote is no quorum");
        assert_eq!(logs.groups[&PartitionId(1)].keys().copied().collect::<Vec<_>>(), [4, 5, 6, 7]);

        let mut wrong = Reading::default();
        wrong.apply(vote(5, 1, 4, "overwritten"));
        wrong.apply(vote(6, 2, 5, "c"));
        wrong.trim(6);
        let found = logs.merge(0, PartitionId(1), wrong);
        assert!(matches!(found, Err(DumpError::Disagree(_))), "its own log says that it is decided: {found:?}");
    }
}
