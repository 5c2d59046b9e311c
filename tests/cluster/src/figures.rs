//! From what the clients wrote to the history that is checked, once the logs are known; and the figures of a run on the
//! way: operations, ranges, how long each partition answered nobody.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::Path;

use coppice_check::cli::Line;
use coppice_check::event::{Call, Event, Position, Return, Status};
use coppice_check::read::read;
use coppice_check::write::write;

use super::dump::{Delete, Dump, value_of};
use super::kinds::{Kind, Span};
use super::matrix::{Answered, What};
use super::workload::NumberedWrite;

/// Commands that are in no log: above all numbers of the client library.
const UNNUMBERED: u64 = 1 << 60;

/// Shorter gaps between two answers of a partition are not remembered, nanoseconds.
const GAP_MIN: u64 = 20_000_000;

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Calls made.
    pub operations: u64,
    /// Answered with a result.
    pub answered: u64,
    /// Ended in a sure error.
    pub refused: u64,
    /// Writes whose outcome stayed unknown.
    pub unknown: u64,
    /// Ranges that were answered.
    pub ranges: u64,
    /// Those of them that span partitions.
    pub crossing: u64,
    /// The longest time that a partition answered nobody, nanoseconds, by the kind of a fault that was on meanwhile;
    /// none: outside of all faults.
    pub gaps: BTreeMap<Option<Kind>, Gap>,
    /// How long some partition answered nobody after each kill of the leader of everything, nanoseconds, ascending; 0:
    /// less than 20 ms.
    pub takeovers: Vec<u64>,
    /// Faults, by kind: as often as they were made.
    pub faults: BTreeMap<Kind, u64>,
}

/// A time without an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// How long, nanoseconds.
    pub length: u64,
    /// The part of it that lay behind the end of the fault, while no other one was on (changes of the map are none).
    pub behind: u64,
    /// In which partition.
    pub partition: u32,
    /// When it began.
    pub from: u64,
}

/// The numbers by which the logs name the clients' writes.
struct Numbers<'a> {
    dump: &'a Dump,
    own: HashMap<(u64, u64), u64>,
}

impl<'a> Numbers<'a> {
    fn new(dump: &'a Dump, numbered: &[NumberedWrite]) -> Numbers<'a> {
        let by_position: HashMap<Position, &Delete> =
            dump.deletes.iter().map(|delete| (delete.position, delete)).collect();
        let mut own = HashMap::new();
        let mut claimed: std::collections::HashSet<(u64, u64)> = std::collections::HashSet::new();
        let mut open = Vec::new();
        for write in numbered {
            let at = write.position.and_then(|at| by_position.get(&at)).filter(|delete| delete.client == write.client);
            match write.number.or(at.map(|delete| delete.number)) {
                Some(number) => {
                    claimed.insert((write.client, number));
                    own.insert((write.client, write.own), number);
                }
                None => open.push(write),
            }
        }
        // A delete without a number, or with a sure error, that stands in a log all the same: the judge decides.
        for write in open.into_iter().filter(|write| !write.key.is_empty()) {
            let left = dump.deletes.iter().find(|delete| {
                delete.client == write.client
                    && delete.key == write.key
                    && !claimed.contains(&(delete.client, delete.number))
            });
            if let Some(delete) = left {
                claimed.insert((delete.client, delete.number));
                own.insert((write.client, write.own), delete.number);
            }
        }
        Numbers { dump, own }
    }

    fn of(&self, client: u64, own: u64, call: &Call<'_>) -> u64 {
        let by_value = value_of(call).and_then(|value| self.dump.by_value.get(value)).copied();
        by_value.or_else(|| self.own.get(&(client, own)).copied()).unwrap_or(UNNUMBERED + own)
    }
}

/// A call that waits for its answer.
#[derive(Clone, Copy)]
struct CallStart {
    at: u64,
    write: bool,
    stale: bool,
    range: bool,
    what: What,
}

/// Writes the history of `raw` to `out`, with the logs' numbers of its writes and the whole position of its reads, and
/// counts. `dump`: none if the nodes' logs are not at hand; then the history keeps the clients' own numbers.
///
/// # Errors
/// Of the files.
pub fn settle(
    raw: &Path,
    out: &Path,
    dump: Option<&Dump>,
    numbered: &[NumberedWrite],
) -> io::Result<(Figures, Gaps, Calls)> {
    let numbers = dump.map(|dump| Numbers::new(dump, numbered));
    let mut figures = Figures::default();
    let mut gaps = Gaps::default();
    let mut calls = Calls::default();
    let mut asked: HashMap<u64, CallStart> = HashMap::new();
    let mut file = BufWriter::with_capacity(1 << 20, File::create(out)?);
    let input = BufReader::with_capacity(1 << 20, File::open(raw)?);
    let told = read(&raw.display().to_string(), input, |event| {
        let event = match event {
            Event::Invoke(mut invoke) => {
                let range = matches!(invoke.call, Call::Range { .. });
                let write = !range && !only_gets(&invoke.call);
                figures.operations += 1;
                let what = What::of(&invoke.call);
                asked.insert(invoke.id, CallStart { at: invoke.at, write, stale: invoke.stale, range, what });
                if let (Some(numbers), true) = (&numbers, write) {
                    invoke.number = numbers.of(invoke.client, invoke.number, &invoke.call);
                }
                Event::Invoke(invoke)
            }
            Event::Return(mut answer) => {
                if let Some(asked) = asked.remove(&answer.id) {
                    count(&mut figures, asked, &answer);
                    gaps.answered(asked, &answer);
                    calls.add(asked, &answer);
                    if !asked.write && answer.ticket.is_none() {
                        answer.positions.iter_mut().for_each(|at| at.index = last_index(dump, *at));
                    }
                }
                Event::Return(answer)
            }
            other => other,
        };
        write(&mut file, &event).map_err(|error| error.to_string())
    });
    told.map_err(|error| io::Error::other(error.to_string()))?;
    figures.unknown = asked.values().filter(|asked| asked.write).count() as u64;
    let endless = asked.values().filter(|asked| !asked.stale).map(|asked| (asked.what, asked.at, u64::MAX));
    calls.failed.extend(endless);
    file.flush()?;
    Ok((figures, gaps, calls))
}

fn only_gets(call: &Call<'_>) -> bool {
    match call {
        Call::Many(calls) => calls.iter().all(only_gets),
        call => matches!(call, Call::Get { .. }),
    }
}

/// Whether a range spans partitions, with a ticket or without.
fn crosses(answer: &Return<'_>) -> bool {
    answer.ticket.is_some() || answer.positions.len() > 1
}

/// For the matrix: what was asked when, and when that ended. A stale read is answered by whoever is asked.
#[derive(Debug, Default)]
pub struct Calls {
    /// With a result.
    pub answered: Vec<Answered>,
    /// In an error, or not at all.
    pub failed: Vec<Answered>,
}

impl Calls {
    fn add(&mut self, asked: CallStart, answer: &Return<'_>) {
        let what = match asked.range && crosses(answer) {
            true if answer.ticket.is_some() => What::Ticketed,
            true => What::Crossing,
            false => asked.what,
        };
        let to = if answer.status == Status::Ok { &mut self.answered } else { &mut self.failed };
        to.extend((!asked.stale).then_some((what, asked.at, answer.at)));
    }
}

/// A read without a ticket saw all of its instance, however much that was if there are no logs to tell.
fn last_index(dump: Option<&Dump>, at: Position) -> u32 {
    let count = |dump: &Dump| dump.counts.get(&(at.partition, at.instance)).copied();
    dump.map_or(u32::MAX, |dump| count(dump).unwrap_or(0).saturating_sub(1))
}

fn count(figures: &mut Figures, asked: CallStart, answer: &Return<'_>) {
    match answer.status {
        Status::No => figures.refused += 1,
        Status::Ok => {
            figures.answered += 1;
            figures.ranges += u64::from(asked.range);
            figures.crossing += u64::from(asked.range && crosses(answer));
        }
    }
}

/// Times without an answer, by partition: as long as an operation waited that was answered at last.
#[derive(Debug, Default)]
pub struct Gaps {
    last: BTreeMap<u32, u64>,
    found: Vec<(u32, u64, u64)>,
}

impl Gaps {
    fn answered(&mut self, asked: CallStart, answer: &Return<'_>) {
        if asked.stale || answer.status != Status::Ok {
            return;
        }
        for at in &answer.positions {
            let last = self.last.entry(at.partition).or_insert(answer.at);
            // Nobody is silent who was not asked.
            let from = asked.at.max(*last);
            if answer.at > from + GAP_MIN {
                self.found.push((at.partition, from, answer.at));
            }
            *last = (*last).max(answer.at);
        }
    }

    /// The longest ones, each under every kind of fault that was on meanwhile.
    pub fn longest(&self, spans: &[Span]) -> BTreeMap<Option<Kind>, Gap> {
        let mut longest: BTreeMap<Option<Kind>, Gap> = BTreeMap::new();
        for &(partition, from, to) in &self.found {
            let mut alone = true;
            for span in spans.iter().filter(|span| span.from < to && from < span.to) {
                alone = false;
                let behind = undisturbed(span.to.max(from), to, spans);
                let gap = Gap { length: to - from, behind, partition, from };
                keep(&mut longest, Some(span.kind), gap);
            }
            if alone {
                keep(&mut longest, None, Gap { length: to - from, behind: to - from, partition, from });
            }
        }
        longest
    }
}

impl Gaps {
    /// The longest silence of any partition over each of these moments or right behind it, nanoseconds, ascending.
    pub fn after(&self, moments: &[u64]) -> Vec<u64> {
        let silence = |moment: u64| {
            // The last answer of the dead may have been read a moment after its death was noted.
            let over = self.found.iter().filter(|(_, from, to)| *from < moment + GAP_MIN && moment < *to);
            over.map(|(_, from, to)| to - from).max().unwrap_or(0)
        };
        let mut silences: Vec<u64> = moments.iter().map(|moment| silence(*moment)).collect();
        silences.sort_unstable();
        silences
    }
}

/// How much of a time no fault was on, nanoseconds.
fn undisturbed(from: u64, to: u64, spans: &[Span]) -> u64 {
    let mut faults: Vec<(u64, u64)> =
        spans.iter().filter(|span| span.kind != Kind::Map).map(|span| (span.from, span.to)).collect();
    faults.sort_unstable();
    let (mut free, mut at) = (0, from);
    for (begin, end) in faults.into_iter().chain([(to, to)]) {
        free += begin.min(to).saturating_sub(at);
        at = at.max(end);
    }
    free
}

fn keep(longest: &mut BTreeMap<Option<Kind>, Gap>, kind: Option<Kind>, gap: Gap) {
    let known = longest.entry(kind).or_default();
    if gap.length > known.length {
        *known = gap;
    }
}

impl Figures {
    /// Adds those of another round.
    pub fn add(&mut self, other: &Figures) {
        self.operations += other.operations;
        self.answered += other.answered;
        self.refused += other.refused;
        self.unknown += other.unknown;
        self.ranges += other.ranges;
        self.crossing += other.crossing;
        other.gaps.iter().for_each(|(kind, gap)| keep(&mut self.gaps, *kind, *gap));
        self.takeovers.extend(&other.takeovers);
        self.takeovers.sort_unstable();
        other.faults.iter().for_each(|(kind, count)| *self.faults.entry(*kind).or_default() += count);
    }

    /// B7, which is judged elsewhere (`--nemesis gap`, `--matrix`): what this run saw.
    pub fn availability(&self) -> Line {
        let milliseconds = |nanoseconds: u64| nanoseconds / 1_000_000;
        let outside = milliseconds(self.gaps.get(&None).map_or(0, |gap| gap.length));
        let behind = self.gaps.iter().filter_map(|(kind, gap)| Some((gap.behind, (*kind)?))).max();
        let behind = behind.map_or(String::new(), |(time, kind)| {
            format!("; behind the end of a fault {} ms ({kind})", milliseconds(time))
        });
        let what = format!("longest silence of a partition outside of faults {outside} ms{behind}");
        Line { check: "B7".into(), verdict: "seen", what }
    }

    /// The longest gap of all, nanoseconds.
    pub fn longest(&self) -> u64 {
        self.gaps.values().map(|gap| gap.length).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(at: u64, partition: u32) -> Return<'static> {
        let positions = vec![Position { partition, instance: 1, index: 0 }];
        let output = coppice_check::event::Output::Value(None);
        Return { id: 1, at, status: Status::Ok, output, positions, ticket: None }
    }

    #[test]
    fn each_kill_has_the_longest_silence_over_it() {
        const MS: u64 = 1_000_000;
        let asked = CallStart { at: 0, write: true, stale: false, range: false, what: What::Put };
        let mut gaps = Gaps::default();
        for (partition, moments) in [(1, [10, 400, 410, 1_000]), (2, [12, 500, 510, 900])] {
            moments.iter().for_each(|at| gaps.answered(asked, &answer(at * MS, partition)));
        }
        // The last answer of the one that was killed at 505 came at 510.
        assert_eq!(gaps.after(&[15 * MS, 505 * MS, 2_000 * MS]), [0, 488 * MS, 590 * MS]);
    }

    #[test]
    fn a_gap_belongs_to_every_fault_that_was_on_meanwhile() {
        const MS: u64 = 1_000_000;
        let asked = CallStart { at: 0, write: true, stale: false, range: false, what: What::Put };
        let mut gaps = Gaps::default();
        for at in [10, 20, 400, 410, 500] {
            gaps.answered(asked, &answer(at * MS, 1));
        }
        gaps.answered(asked, &answer(450 * MS, 2));
        gaps.answered(CallStart { at: 890 * MS, ..asked }, &answer(900 * MS, 2));
        let spans = [
            Span { kind: Kind::Kill, cut: None, from: 15 * MS, to: 100 * MS },
            Span { kind: Kind::Cut, cut: None, from: 390 * MS, to: 395 * MS },
            Span { kind: Kind::Pause, cut: None, from: 600 * MS, to: 700 * MS },
        ];
        let longest = gaps.longest(&spans);
        let gap = |behind: u64| Gap { length: 380 * MS, behind: behind * MS, partition: 1, from: 20 * MS };
        assert_eq!(longest.get(&Some(Kind::Cut)), Some(&gap(5)));
        // 300 ms from the kill's end on, but for the 5 of the cut.
        assert_eq!(longest.get(&Some(Kind::Kill)), Some(&gap(295)));
        assert_eq!(longest.get(&Some(Kind::Pause)), None);
        let alone = Gap { length: 90 * MS, behind: 90 * MS, partition: 1, from: 410 * MS };
        assert_eq!(longest.get(&None), Some(&alone));
    }
}
