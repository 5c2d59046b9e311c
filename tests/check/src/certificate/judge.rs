//! Step 1 and 2 of hazards.md 3.2: walk the logs by the rules (protocol.md 4, 6, 8), decide by those what counts,
//! and compare with what the replicas say and with the answers. Knows nothing of time.

use std::collections::BTreeMap;

use super::super::event::{Position, Status, Ticket};
use super::super::history::{History, Kind, LogChange, LogEntry, LogKind, Operation};
use super::super::intern::{FastMap, NONE};
use super::super::verdict::Violation;

/// A place within one log.
pub type Place = (u64, u32);

/// After all places.
pub const LAST: Place = (u64::MAX, u32::MAX);

/// What the logs say.
#[derive(Debug, Default)]
pub struct LogFindings {
    /// By partition number.
    pub partitions: BTreeMap<u32, Partition>,
    /// Where each operation counted.
    pub counted: Vec<Option<Position>>,
    /// Splits and merges: nodes of chains beside the operations, numbered on from them.
    pub joints: u32,
}

/// One partition's log, judged.
#[derive(Debug, Default)]
pub struct Partition {
    /// What counted, in order: place and node (an operation, or a joint).
    pub chain: Vec<(Place, u32)>,
    /// From which place on which keys belong to it.
    pub bounds: Vec<(Place, u32, u32)>,
    /// Tickets that counted, and where.
    pub tickets: Vec<(Place, Ticket)>,
    /// The last place in any dump.
    pub last: Place,
}

impl Partition {
    /// The keys that belong to it at a place.
    pub fn bounds_at(&self, place: Place) -> (u32, u32) {
        let after = self.bounds.partition_point(|(from, _, _)| *from <= place);
        self.bounds.get(after.wrapping_sub(1)).map_or((0, 0), |(_, low, high)| (*low, *high))
    }

    /// How many nodes of the chain stand at or before a place.
    pub fn gap(&self, place: Place) -> usize {
        self.chain.partition_point(|(at, _)| *at <= place)
    }

    /// The ticket that counted at a place.
    pub fn ticket_at(&self, place: Place) -> Option<Ticket> {
        let at = self.tickets.binary_search_by_key(&place, |(at, _)| *at).ok()?;
        Some(self.tickets[at].1)
    }
}

/// A violation in words, about some operations.
pub fn wrong(what: String, about: impl IntoIterator<Item = u32>) -> Box<Violation> {
    Box::new(Violation { what, about: about.into_iter().collect(), ..Violation::default() })
}

type Outcome = Result<(), Box<Violation>>;

/// Other logs that one continues, each up to a place. One entry a log: a child that is merged back shares all of its
/// ancestors with its merge target, and a list of them would double with each such round.
#[derive(Clone, Default)]
struct Lineage(BTreeMap<u32, Place>);

impl Lineage {
    fn note(&mut self, partition: u32, upto: Place) {
        let known = self.0.entry(partition).or_insert(upto);
        *known = (*known).max(upto);
    }

    fn holds(&self, earlier: Position) -> bool {
        self.0.get(&earlier.partition).is_some_and(|upto| earlier.place() <= *upto)
    }
}

/// A log while it is walked.
#[derive(Default)]
struct Walk<'a> {
    /// One line per place.
    entries: Vec<&'a LogEntry>,
    at: usize,
    started: bool,
    judged: Partition,
    bounds: (u32, u32),
    last_ticket: Option<Ticket>,
    sealed: bool,
    /// Ids of changes done.
    changes: Vec<u64>,
    lineage: Lineage,
    /// Highest lowest-unacknowledged number seen, by client and session.
    low: BTreeMap<(u64, Option<Position>), u64>,
}

/// What a new partition begins with.
struct Fork {
    place: Position,
    joint: u32,
    bounds: (u32, u32),
    last_ticket: Option<Ticket>,
    lineage: Lineage,
    low: BTreeMap<(u64, Option<Position>), u64>,
    changes: Vec<u64>,
}

struct Judge<'a> {
    history: &'a History,
    walks: BTreeMap<u32, Walk<'a>>,
    forks: BTreeMap<u32, Fork>,
    by_number: FastMap<(u64, u64), u32>,
    counted: Vec<Option<Position>>,
    joints: u32,
}

/// Judges all logs, and compares with the answers.
pub fn judge(history: &History) -> Result<LogFindings, Box<Violation>> {
    let mut judge = Judge {
        history,
        walks: agreed(history)?,
        forks: BTreeMap::new(),
        by_number: by_number(history)?,
        counted: vec![None; history.operations.len()],
        joints: 0,
    };
    judge.walk_all()?;
    let partitions = judge.walks.into_iter().map(|(number, walk)| (number, walk.judged)).collect();
    let judged = LogFindings { partitions, counted: judge.counted, joints: judge.joints };
    for (index, operation) in history.operations.iter().enumerate() {
        compare(history, &judged, index as u32, operation)?;
    }
    for operation in history.stale.iter().filter(|operation| operation.is_ok()) {
        compare_read(history, &judged, operation).map_err(|what| wrong(what, []))?;
    }
    Ok(judged)
}

/// Mutations by client and number.
fn by_number(history: &History) -> Result<FastMap<(u64, u64), u32>, Box<Violation>> {
    let mut by_number = FastMap::default();
    by_number.reserve(history.operations.len());
    for (index, operation) in history.operations.iter().enumerate().filter(|(_, operation)| !operation.is_read()) {
        if let Some(other) = by_number.insert((operation.client, operation.number), index as u32) {
            let what = format!("two operations are command {} of client {}", operation.number, operation.client);
            return Err(wrong(what, [other, index as u32]));
        }
    }
    Ok(by_number)
}

/// One line per place, if all replicas that have an instance agree on it (B1), and no instance is missing.
fn agreed(history: &History) -> Result<BTreeMap<u32, Walk<'_>>, Box<Violation>> {
    let mut walks: BTreeMap<u32, Walk<'_>> = BTreeMap::new();
    for instance in history
        .log
        .chunk_by(|a, b| (a.position.partition, a.position.instance) == (b.position.partition, b.position.instance))
    {
        let at = instance[0].position;
        let walk = walks.entry(at.partition).or_default();
        let before = walk.entries.last().map(|entry| entry.position.instance);
        if before.is_some_and(|before| at.instance > before + 1) {
            return Err(wrong(format!("no dump has the instance before p{}#{}", at.partition, at.instance), []));
        }
        let mut places = instance.chunk_by(|a, b| a.position == b.position);
        let replicas = |place: &[LogEntry]| place.iter().map(|entry| entry.replica).collect::<Vec<_>>();
        let first = places.clone().next().map(replicas).unwrap_or_default();
        if let Some(odd) = places.clone().find(|place| place.len() != first.len() || replicas(place) != first) {
            let what = format!("replicas disagree: not all of {first:?} have exactly one entry {}", odd[0].position);
            return Err(wrong(what, []));
        }
        if let Some(odd) = places.find(|place| place.iter().any(|entry| entry.kind != place[0].kind)) {
            let what = format!("replicas {:?} disagree on the entry {}", replicas(odd), odd[0].position);
            return Err(wrong(what, []));
        }
        for place in instance.chunk_by(|a, b| a.position == b.position) {
            if place.iter().any(|entry| entry.hit != place[0].hit) {
                let what = format!("replicas {:?} disagree on whether {} counted", replicas(place), place[0].position);
                return Err(wrong(what, []));
            }
            walk.entries.push(&place[0]);
            walk.judged.last = place[0].position.place();
        }
    }
    Ok(walks)
}

impl<'a> Judge<'a> {
    /// Each log as far as it can go without another one, again and again.
    fn walk_all(&mut self) -> Outcome {
        let numbers: Vec<u32> = self.walks.keys().copied().collect();
        loop {
            let mut moved = false;
            for &number in &numbers {
                let mut walk = self.walks.remove(&number).unwrap_or_default();
                while let Some(&entry) = walk.entries.get(walk.at) {
                    if self.waits(&walk, entry) {
                        break;
                    }
                    moved = true;
                    walk.at += 1;
                    self.entry(&mut walk, entry)?;
                }
                self.walks.insert(number, walk);
            }
            if !moved {
                break;
            }
        }
        match self.walks.values().find_map(|walk| walk.entries.get(walk.at)) {
            None => Ok(()),
            Some(entry) => {
                let what = match self.history.log_kinds[entry.kind as usize] {
                    LogKind::Born { from: Some(from), .. } => {
                        let partition = entry.position.partition;
                        format!("p{partition} says that it began at {from}, where no split to it counted")
                    }
                    _ => format!("{} takes a partition that is not sealed, or not there", entry.position),
                };
                Err(wrong(what, []))
            }
        }
    }

    /// Whether another log must be walked further before this entry.
    fn waits(&self, walk: &Walk<'_>, entry: &LogEntry) -> bool {
        match self.history.log_kinds[entry.kind as usize] {
            LogKind::Born { from: Some(_), .. } => !self.forks.contains_key(&entry.position.partition),
            LogKind::Place { change: Some(LogChange::Take { from, id }), .. } if !walk.changes.contains(&id) => {
                let absorbed = self.walks.get(&from.partition);
                !absorbed.is_some_and(|absorbed| {
                    let next = absorbed.entries.get(absorbed.at).map_or(LAST, |entry| entry.position.place());
                    absorbed.sealed && next > from.place()
                })
            }
            _ => false,
        }
    }

    fn entry(&mut self, walk: &mut Walk<'a>, entry: &'a LogEntry) -> Outcome {
        let kind = self.history.log_kinds[entry.kind as usize];
        if !walk.started {
            walk.started = true;
            walk.bounds = (0, NONE);
            walk.judged.bounds.push(((0, 0), 0, NONE));
        }
        let (counts, ticket) = match kind {
            LogKind::Born { from, low, high, ticket } => {
                return self.born(walk, entry.position, from, (low, high), ticket);
            }
            LogKind::Other => return Ok(()),
            LogKind::Command { .. } => (self.command(walk, entry, kind)?, false),
            LogKind::Place { ticket, previous, change } => {
                (self.place(walk, entry.position, ticket, previous, change)?, true)
            }
        };
        if counts != entry.hit {
            let what = if ticket { "ticket" } else { "command" };
            let (rules, replicas) = if counts { ("counts", "does not") } else { ("does not count", "does") };
            let what = format!("by the rules the {what} at {} {rules}, by the replicas it {replicas}", entry.position);
            return Err(wrong(what, self.operation(kind)));
        }
        Ok(())
    }

    fn operation(&self, kind: LogKind) -> Option<u32> {
        match kind {
            LogKind::Command { client, number, .. } => self.by_number.get(&(client, number)).copied(),
            _ => None,
        }
    }

    fn born(
        &mut self,
        walk: &mut Walk<'a>,
        at: Position,
        from: Option<Position>,
        bounds: (u32, u32),
        ticket: Option<Ticket>,
    ) -> Outcome {
        walk.bounds = bounds;
        walk.last_ticket = ticket;
        if let Some(from) = from {
            let Some(fork) = self.forks.remove(&at.partition) else {
                return Err(wrong(format!("p{} began twice", at.partition), []));
            };
            if fork.place != from || fork.bounds != bounds || fork.last_ticket != ticket {
                let what = format!("p{} did not begin with what the split at {} gave it", at.partition, fork.place);
                return Err(wrong(what, []));
            }
            walk.judged.chain.push((at.place(), fork.joint));
            (walk.lineage, walk.low, walk.changes) = (fork.lineage, fork.low, fork.changes);
        }
        if let Some(ticket) = ticket {
            walk.judged.tickets.push((at.place(), ticket));
        }
        walk.judged.bounds = vec![(at.place(), bounds.0, bounds.1)];
        Ok(())
    }

    /// Whether a command counts; if so, that is noted.
    fn command(&mut self, walk: &mut Walk<'a>, entry: &LogEntry, kind: LogKind) -> Result<bool, Box<Violation>> {
        let LogKind::Command { client, number, fingerprint, low, session, expired } = kind else { return Ok(false) };
        let at = entry.position;
        let Some(&index) = self.by_number.get(&(client, number)) else {
            return Err(wrong(format!("{at} holds command {number} of client {client}, which nobody invoked"), []));
        };
        let operation = &self.history.operations[index as usize];
        if operation.fingerprint != fingerprint {
            return Err(wrong(format!("{at} holds this command with another content"), [index]));
        }
        let lowest = if low > 0 || !walk.low.is_empty() {
            let lowest = walk.low.entry((client, session)).or_insert(0);
            *lowest = low.max(*lowest);
            *lowest
        } else {
            0
        };
        let known = |earlier: Position| earlier.partition == at.partition || walk.lineage.holds(earlier);
        let new = !self.counted[index as usize].is_some_and(known);
        let inside = self.history.steps(operation).iter().all(|step| inside(walk.bounds, step.key));
        if !new || !inside || walk.sealed || expired || number < lowest {
            return Ok(false);
        }
        if let Some(earlier) = self.counted[index as usize] {
            return Err(wrong(format!("this command takes effect twice, at {earlier} and at {at}"), [index]));
        }
        if operation.status == Some(Status::No) {
            return Err(wrong(format!("this command ended in a sure error, but takes effect at {at}"), [index]));
        }
        self.counted[index as usize] = Some(at);
        walk.judged.chain.push((at.place(), index));
        Ok(true)
    }

    /// Whether a ticket counts; if so, that is noted and its change done.
    fn place(
        &mut self,
        walk: &mut Walk<'a>,
        at: Position,
        ticket: Ticket,
        previous: Option<Ticket>,
        change: Option<LogChange>,
    ) -> Result<bool, Box<Violation>> {
        let counts = match (previous, walk.last_ticket) {
            (Some(previous), last) => last == Some(previous),
            (None, None) => true,
            (None, Some(last)) => (ticket.round, ticket.replica) > (last.round, last.replica),
        };
        if !counts {
            return Ok(false);
        }
        if let Some(last) = walk.last_ticket.filter(|last| *last >= ticket) {
            return Err(wrong(format!("the ticket {ticket} counts at {at}, after {last}"), []));
        }
        walk.last_ticket = Some(ticket);
        walk.judged.tickets.push((at.place(), ticket));
        match change {
            Some(LogChange::Split { id, key, to }) if !walk.changes.contains(&id) => self.split(walk, at, id, key, to),
            Some(LogChange::Seal { id }) => {
                walk.changes.push(id);
                walk.sealed = true;
            }
            Some(LogChange::Take { id, from }) if !walk.changes.contains(&id) => self.take(walk, at, id, from)?,
            _ => {}
        }
        Ok(true)
    }

    fn split(&mut self, walk: &mut Walk<'a>, at: Position, id: u64, key: u32, to: u32) {
        let (low, high) = walk.bounds;
        if walk.sealed || key <= low || !inside(walk.bounds, key) {
            return;
        }
        let joint = self.joint();
        walk.changes.push(id);
        walk.bounds = (low, key);
        walk.judged.chain.push((at.place(), joint));
        walk.judged.bounds.push((at.place(), low, key));
        let mut lineage = walk.lineage.clone();
        lineage.note(at.partition, at.place());
        let fork = Fork {
            place: at,
            joint,
            bounds: (key, high),
            last_ticket: walk.last_ticket,
            lineage,
            low: walk.low.clone(),
            changes: walk.changes.clone(),
        };
        self.forks.insert(to, fork);
    }

    fn take(&mut self, walk: &mut Walk<'a>, at: Position, id: u64, from: Position) -> Outcome {
        let joint = self.joint();
        let Some(absorbed) = self.walks.get_mut(&from.partition) else { return Ok(()) };
        let (low, high) = walk.bounds;
        walk.bounds = match absorbed.bounds {
            (_, end) if end == low => (absorbed.bounds.0, high),
            (start, _) if start == high => (low, absorbed.bounds.1),
            _ => return Err(wrong(format!("{at} takes a partition that is not its neighbour"), [])),
        };
        absorbed.judged.chain.push((LAST, joint));
        walk.changes.push(id);
        walk.judged.chain.push((at.place(), joint));
        walk.judged.bounds.push((at.place(), walk.bounds.0, walk.bounds.1));
        absorbed.lineage.0.iter().for_each(|(&partition, &upto)| walk.lineage.note(partition, upto));
        walk.lineage.note(from.partition, LAST);
        for (session, low) in &absorbed.low {
            let mine = walk.low.entry(*session).or_insert(0);
            *mine = (*mine).max(*low);
        }
        Ok(())
    }

    fn joint(&mut self) -> u32 {
        self.joints += 1;
        self.history.operations.len() as u32 + self.joints - 1
    }
}

fn inside((low, high): (u32, u32), key: u32) -> bool {
    low <= key && key < high
}

/// An answer must be where it says.
fn compare(history: &History, judged: &LogFindings, index: u32, operation: &Operation) -> Outcome {
    if !operation.is_ok() {
        return Ok(());
    }
    if operation.is_read() {
        return compare_read(history, judged, operation).map_err(|what| wrong(what, [index]));
    }
    let what = match (judged.counted[index as usize], history.positions(operation)) {
        (Some(counted), [stated]) if counted == *stated => return Ok(()),
        (None, _) => "this command was answered, but counts in no log: it is lost".to_string(),
        (Some(counted), _) => format!("this command counts at {counted}, which is not the position in its answer"),
    };
    Err(wrong(what, [index]))
}

fn compare_read(history: &History, judged: &LogFindings, operation: &Operation) -> Result<(), String> {
    let positions = history.positions(operation);
    let mut parts = Vec::with_capacity(positions.len());
    for position in positions {
        let Some(partition) = judged.partitions.get(&position.partition) else {
            return Err(format!("it was answered at {position}, and no dump has that partition"));
        };
        if position.place() > partition.last {
            return Err(format!("it was answered at {position}, which is behind the end of that log"));
        }
        parts.push(partition.bounds_at(position.place()));
    }
    if operation.kind() == Kind::Get {
        return match parts[..] {
            [bounds] if inside(bounds, operation.step.key) => Ok(()),
            [_] => Err(format!("at {} its key does not belong to that partition", positions[0])),
            _ => Err("a get must have exactly one position".into()),
        };
    }
    tiles(history, &parts, operation)?;
    if operation.stale {
        return Ok(());
    }
    // Without one, several parts are one moment if no change of what they hold lies between them: the order tells.
    let Some(ticket) = history.ticket(operation) else { return Ok(()) };
    match positions.iter().find(|at| judged.partitions[&at.partition].ticket_at(at.place()) != Some(ticket)) {
        Some(at) => Err(format!("its ticket {ticket} does not count at {at}")),
        None => Ok(()),
    }
}

/// The parts must cover the range, and nothing twice.
fn tiles(history: &History, parts: &[(u32, u32)], operation: &Operation) -> Result<(), String> {
    let (low, high) = (operation.step.key, operation.high);
    if low >= high {
        return Ok(());
    }
    // A limited range may have asked partitions behind the last pair that it took.
    let wanted = |part: &&(u32, u32)| operation.limit == 0 || (part.1 > low && part.0 < high);
    let mut parts: Vec<(u32, u32)> = parts.iter().filter(wanted).copied().collect();
    parts.sort_unstable();
    let mut covered = low;
    for (at, (from, to)) in parts.iter().enumerate() {
        // Parts of a stale read are of their own times: one may not have seen yet that the next one split off from it.
        // It gave its keys up to there.
        let gap = if at == 0 || operation.stale { *from > covered } else { *from != covered };
        if gap || *to <= low || *from >= high {
            return Err(format!("its parts do not tile its range at {}", history.key(covered)));
        }
        covered = covered.max(*to);
    }
    if covered >= high { Ok(()) } else { Err(format!("its parts do not tile its range at {}", history.key(covered))) }
}
