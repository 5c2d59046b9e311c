//! Every kind of cut against every kind of operation (hazards.md 9, G11): how many cuts each of them met, how long
//! operations waited while the cut lasted, and how long after it was healed until answers came as often as ever.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use coppice_check::event::Call;

use super::cuts::Cut;
use super::kinds::Span;

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    Put,
    Insert,
    Delete,
    /// A compare and swap.
    Cas,
    /// Several writes of one partition, that take effect together.
    Many,
    Get,
    /// A range inside one partition.
    Range,
    /// A range across partitions.
    Crossing,
    /// The same with a ticket.
    Ticketed,
}

impl What {
    /// All of them.
    pub const EVERY: [What; 9] = [
        What::Put,
        What::Insert,
        What::Delete,
        What::Cas,
        What::Many,
        What::Get,
        What::Range,
        What::Crossing,
        What::Ticketed,
    ];

    /// In the words of the table.
    pub fn name(self) -> &'static str {
        match self {
            What::Put => "put",
            What::Insert => "insert",
            What::Delete => "delete",
            What::Cas => "cas",
            What::Many => "many",
            What::Get => "get",
            What::Range => "range",
            What::Crossing => "crossing",
            What::Ticketed => "ticketed",
        }
    }

    /// What a call is; a range shows by its answer whether it crosses a boundary.
    pub fn of(call: &Call<'_>) -> What {
        match call {
            Call::Put { .. } => What::Put,
            Call::Insert { .. } => What::Insert,
            Call::Delete { .. } => What::Delete,
            Call::Cas { .. } => What::Cas,
            Call::Many(_) => What::Many,
            Call::Get { .. } => What::Get,
            Call::Range { .. } => What::Range,
        }
    }
}

/// That of `sorted`, of which so many percent are not longer; none if there are none.
pub fn percentile(sorted: &[u64], percent: usize) -> Option<u64> {
    sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1)).copied()
}

/// A call that was answered: what, when asked, when answered, nanoseconds.
pub type Answered = (What, u64, u64);

/// While a cut lasts nobody waits for longer than this: a client finds out after half a second that it asks in vain.
pub const WAIT_MAX: Duration = Duration::from_secs(1);

/// Answers are counted over so long.
const WINDOW: u64 = 200_000_000;

/// As often as ever: so much of the usual number of answers, in percent. A window holds few of the rarest kinds.
const FULL_PERCENT: usize = 60;

/// So long behind a cut nothing counts as usual.
const AFTERMATH: u64 = 1_000_000_000;

/// One field of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// Cuts during which such operations waited for an answer, or were answered.
    pub met: u64,
    /// Operations that were under way during such a cut.
    pub operations: u64,
    /// For each cut: from its end to the full rate, nanoseconds.
    pub back: Vec<u64>,
    /// For each cut that leaves a majority: the longest wait while it lasted, nanoseconds.
    pub waits: Vec<u64>,
}

/// The whole table, of all rounds.
#[derive(Clone, Debug, Default)]
pub struct Matrix(BTreeMap<(Cut, What), Cell>);

impl Matrix {
    /// Takes in a round: its answers in any order, those calls that ended in an error or not at all (then they end with
    /// the largest number), its cuts in order of time, and when it began and ended.
    pub fn add(&mut self, answers: &[Answered], failed: &[Answered], spans: &[Span], (begin, end): (u64, u64)) {
        let cuts: Vec<(Cut, u64, u64)> =
            spans.iter().filter_map(|span| Some((span.cut?, span.from, span.to))).collect();
        for what in What::EVERY {
            let mut moments: Vec<u64> =
                answers.iter().filter(|answer| answer.0 == what).map(|(_, _, to)| *to).collect();
            moments.sort_unstable();
            let within = |from: u64, to: u64| {
                moments.partition_point(|at| *at < to).saturating_sub(moments.partition_point(|at| *at < from))
            };
            let usual = usual(&cuts, (begin, end), within);
            for (index, (cut, from, to)) in cuts.iter().enumerate() {
                let cell = self.0.entry((*cut, what)).or_default();
                let under_way = answers.iter().filter(|answer| answer.0 == what && answer.1 < *to && answer.2 > *from);
                let under_way = under_way.count() as u64;
                cell.operations += under_way;
                cell.met += u64::from(under_way > 0);
                if cut.leaves_a_majority() {
                    let of_kind = answers.iter().chain(failed).filter(|call| call.0 == what);
                    let waits = of_kind.map(|call| call.2.min(*to).saturating_sub(call.1.max(*from)));
                    cell.waits.push(waits.max().unwrap_or(0));
                }
                let next = cuts.get(index + 1).map_or(end, |next| next.1);
                cell.back.extend(usual.map(|usual| back(&moments, (*to, next), usual)));
            }
        }
    }

    /// Cuts of a kind so far: what every operation met.
    pub fn met(&self, cut: Cut) -> u64 {
        What::EVERY.iter().map(|what| self.0.get(&(cut, *what)).map_or(0, |cell| cell.met)).min().unwrap_or(0)
    }

    /// Cuts that are still to be made, in turns, until each was met so often.
    pub fn missing(&self, wanted: u64) -> Vec<Cut> {
        let most = Cut::EVERY.iter().map(|cut| wanted.saturating_sub(self.met(*cut))).max().unwrap_or(0);
        let turn = |turn: u64| Cut::EVERY.into_iter().filter(move |cut| wanted.saturating_sub(self.met(*cut)) > turn);
        (0..most).flat_map(turn).collect()
    }

    /// Takes in another one.
    pub fn merge(&mut self, other: Matrix) {
        for (field, cell) in other.0 {
            let own = self.0.entry(field).or_default();
            own.met += cell.met;
            own.operations += cell.operations;
            own.back.extend(cell.back);
            own.waits.extend(cell.waits);
        }
    }

    /// From the end of a cut to the full rate, of all fields, ascending, nanoseconds.
    pub fn backs(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.0.values().flat_map(|cell| cell.back.iter().copied()).collect();
        all.sort_unstable();
        all
    }

    /// What is wrong with it, in words: a field that was met too rarely; a wait that was too long while the cut lasted;
    /// the full rate too late.
    pub fn complaints(&self, wanted: u64, late: Duration) -> Vec<String> {
        let mut complaints = Vec::new();
        let late = late.as_nanos() as u64;
        for (cut, what) in Cut::EVERY.into_iter().flat_map(|cut| What::EVERY.map(|what| (cut, what))) {
            let none = Cell::default();
            let cell = self.0.get(&(cut, what)).unwrap_or(&none);
            let (cut, what) = (cut.name(), what.name());
            if cell.met < wanted {
                complaints.push(format!("{cut}: met {what} {} times, not {wanted}", cell.met));
            }
            let long = WAIT_MAX.as_nanos() as u64;
            let held = cell.waits.iter().filter(|wait| **wait > long).count();
            if held > 0 {
                let worst = cell.waits.iter().max().copied().unwrap_or(0) / 1_000_000;
                complaints
                    .push(format!("{cut}: {held} times {what} waited too long in it; the worst waited {worst} ms"));
            }
            let slow = cell.back.iter().filter(|back| **back > late).count();
            if slow > 0 {
                let worst = cell.back.iter().max().copied().unwrap_or(0) / 1_000_000;
                complaints.push(format!("{cut}: {slow} times {what} was not back in time; the worst took {worst} ms"));
            }
        }
        complaints
    }
}

/// Answers of a window outside of cuts and what follows them; none: there was no such time.
fn usual(cuts: &[(Cut, u64, u64)], (begin, end): (u64, u64), within: impl Fn(u64, u64) -> usize) -> Option<f64> {
    let (mut time, mut count, mut at) = (0, 0, begin);
    for (from, to) in cuts.iter().map(|(_, from, to)| (*from, *to)).chain([(end, end)]) {
        if from > at {
            time += from - at;
            count += within(at, from);
        }
        at = to + AFTERMATH;
    }
    (time >= WINDOW).then(|| count as f64 * WINDOW as f64 / time as f64)
}

/// How long after `healed` the first window begins that has its share of answers; as long as there was, if none does.
fn back(moments: &[u64], (healed, next): (u64, u64), usual: f64) -> u64 {
    let wanted = (usual * FULL_PERCENT as f64 / 100.0).floor() as usize;
    let first = moments.partition_point(|at| *at < healed);
    if wanted == 0 {
        return 0;
    }
    // A window that begins at the end of the cut, or at an answer.
    let full = |start: u64, from: usize| moments.get(from + wanted - 1).is_some_and(|last| *last <= start + WINDOW);
    if full(healed, first) {
        return 0;
    }
    let later = (first..moments.len()).find(|at| moments[*at] >= next || full(moments[*at], *at));
    later.map_or(next, |at| moments[at].min(next)).saturating_sub(healed)
}

fn tenths(nanoseconds: u64, timeout: Duration) -> String {
    format!("{:.1}", nanoseconds as f64 / timeout.as_nanos() as f64)
}

impl Matrix {
    /// The table: in each field the cuts that were met, and how many election timeouts (p99) passed to the full rate.
    pub fn table(&self, timeout: Duration) -> impl fmt::Display {
        let mut text = format!("{:18}", "cut");
        What::EVERY.iter().for_each(|what| text += &format!(" {:>11}", what.name()));
        for cut in Cut::EVERY {
            text += &format!("\n{:18}", cut.name());
            for what in What::EVERY {
                let cell = self.0.get(&(cut, what)).cloned().unwrap_or_default();
                let mut back = cell.back;
                back.sort_unstable();
                let p99 = percentile(&back, 99).map_or("-".to_owned(), |back| tenths(back, timeout));
                text += &format!(" {:>11}", format!("{} {p99}", cell.met));
            }
        }
        text
    }

    /// The table of waits while a cut lasts: in each field the median and the worst, milliseconds.
    pub fn waits(&self) -> impl fmt::Display {
        let mut text = format!("{:18}", "cut");
        What::EVERY.iter().for_each(|what| text += &format!(" {:>11}", what.name()));
        for cut in Cut::EVERY.into_iter().filter(|cut| cut.leaves_a_majority()) {
            text += &format!("\n{:18}", cut.name());
            for what in What::EVERY {
                let mut waits = self.0.get(&(cut, what)).map(|cell| cell.waits.clone()).unwrap_or_default();
                waits.sort_unstable();
                let [p50, worst] = [50, 100].map(|of| percentile(&waits, of).unwrap_or(0) / 1_000_000);
                text += &format!(" {:>11}", format!("{p50} {worst}"));
            }
        }
        text
    }

    /// One line: how soon the full rate was back.
    pub fn words(&self, timeout: Duration) -> String {
        let backs = self.backs();
        let [p50, p99, worst] =
            [50, 99, 100].map(|of| percentile(&backs, of).map_or("-".to_owned(), |back| tenths(back, timeout)));
        let operations: u64 = self.0.values().map(|cell| cell.operations).sum();
        let met = Cut::EVERY.iter().map(|cut| self.met(*cut)).min().unwrap_or(0);
        format!(
            "matrix: {} kinds of cuts, each met {met} times or more by each of {} kinds of operations ({operations} under \
             way); full rate again after p50 {p50}, p99 {p99}, worst {worst} election timeouts of {} ms",
            Cut::EVERY.len(),
            What::EVERY.len(),
            timeout.as_millis()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::kinds::Kind;
    use super::*;

    #[test]
    fn so_many_percent_are_not_longer() {
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!([50, 99, 100].map(|percent| percentile(&hundred, percent)), [Some(50), Some(99), Some(100)]);
        assert_eq!((percentile(&[7], 99), percentile(&[7, 9], 99), percentile(&[], 99)), (Some(7), Some(9), None));
    }

    const MS: u64 = 1_000_000;

    /// A put each 10 ms, but for one that waits from `from` to `to`.
    fn puts(from: u64, to: u64) -> Vec<Answered> {
        let moments = (0..1_000).map(|at| at * 10).filter(|at| !(from..to).contains(at));
        let asked = |at: u64| if at == to { from * MS } else { (at * MS).saturating_sub(MS) };
        moments.map(|at| (What::Put, asked(at), at * MS)).collect()
    }

    #[test]
    fn the_full_rate_is_back_when_answers_come_as_often_as_ever() {
        let cut = |from: u64, to: u64| Span { kind: Kind::Cut, cut: Some(Cut::Alone), from: from * MS, to: to * MS };
        let mut matrix = Matrix::default();
        matrix.add(&puts(3_000, 4_250), &[], &[cut(3_000, 4_000)], (0, 10_000 * MS));
        let cell = matrix.0[&(Cut::Alone, What::Put)].clone();
        assert_eq!((cell.met, cell.back.len()), (1, 1), "the call that waited was under way");
        // Twenty answers a window are usual; the first window with twelve of them begins with the first answer.
        assert_eq!(cell.back, [250 * MS]);
        matrix.add(&puts(3_000, 3_900), &[], &[cut(3_000, 4_000)], (0, 10_000 * MS));
        assert_eq!(matrix.0[&(Cut::Alone, What::Put)].back, [250 * MS, 0]);
        // Nothing came back at all before the next cut.
        matrix.add(&puts(3_000, 6_000), &[], &[cut(3_000, 4_000), cut(5_500, 6_000)], (0, 10_000 * MS));
        assert_eq!(matrix.0[&(Cut::Alone, What::Put)].back, [250 * MS, 0, 1_500 * MS, 0]);
        let late = matrix.complaints(1, Duration::from_millis(600));
        assert!(late.iter().any(|line| line.starts_with("one alone: 1 times put was not back")), "{late:?}");
        assert!(late.iter().any(|line| line.starts_with("bridge: met get 0 times")), "{late:?}");
    }

    /// A read that finds nobody ends in an error, and a call may have no end at all: both waited.
    #[test]
    fn who_waits_while_a_cut_lasts_is_counted_whatever_comes_of_it() {
        let cut = |cut: Cut, from: u64, to: u64| Span { kind: Kind::Cut, cut: Some(cut), from: from * MS, to: to * MS };
        let (mut matrix, all) = (Matrix::default(), (0, 10_000 * MS));
        let spans = [cut(Cut::Pair, 1_000, 3_000), cut(Cut::All, 6_000, 9_000)];
        matrix.add(&[(What::Get, 900 * MS, 1_400 * MS)], &[], &spans, all);
        matrix.add(&[], &[(What::Get, 1_100 * MS, 2_300 * MS)], &spans, all);
        matrix.add(&[], &[(What::Get, 1_500 * MS, u64::MAX)], &spans, all);
        assert_eq!(matrix.0[&(Cut::Pair, What::Get)].waits, [400 * MS, 1_200 * MS, 1_500 * MS]);
        assert!(matrix.0[&(Cut::All, What::Get)].waits.is_empty(), "there is no majority");
        let late = matrix.complaints(0, Duration::from_secs(9));
        assert!(late.iter().any(|line| line.starts_with("a pair: 2 times get waited too long")), "{late:?}");
    }

    #[test]
    fn cuts_hit_the_links_that_their_names_say() {
        let hit = |cut: Cut| {
            let links = (0..3).flat_map(|from| (0..3).map(move |to| (from, to))).filter(|(from, to)| from != to);
            links.filter(|(from, to)| cut.hits(*from, *to, 0, 1)).collect::<Vec<_>>()
        };
        assert_eq!(hit(Cut::Deaf), [(1, 0), (2, 0)]);
        assert_eq!(hit(Cut::Mute), [(0, 1), (0, 2)]);
        assert_eq!(hit(Cut::Pair), [(0, 1), (1, 0)]);
        assert_eq!(hit(Cut::Leader), [(0, 1), (0, 2), (1, 0), (2, 0)]);
        assert_eq!(hit(Cut::Bridge), [(1, 2), (2, 1)]);
        assert_eq!(hit(Cut::All).len(), 6);
    }
}
