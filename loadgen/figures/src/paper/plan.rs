//! A figure as data: what the paper says, what is measured, which of that stands where, what is compared with what.

use std::collections::BTreeMap;

use super::point::{Heat, Point, Reading, Terms};
use super::state::State;
use coppice_loadgen::svg::Scale;

/// A figure of a paper.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Its word on the command line and the name of its files.
    pub id: &'static str,
    /// Its number in the paper and what it shows.
    pub title: &'static str,
    /// What the paper says about it.
    pub paper: &'static str,
    /// How ours was made, and why it may differ.
    pub ours: &'static str,
    /// What is measured.
    pub heats: Vec<Heat>,
    /// What is drawn.
    pub panels: Vec<Panel>,
    /// The paper's numbers beside ours.
    pub checks: Vec<Check>,
}

/// One pair of axes.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Above it.
    pub title: &'static str,
    /// The horizontal axis, with its unit.
    pub x: (&'static str, Scale),
    /// The vertical axis, with its unit.
    pub y: (&'static str, Scale),
    pub lines: Vec<Line>,
}

#[derive(Clone, Debug)]
pub struct Line {
    /// For the legend.
    pub name: String,
    /// Lines of one colour belong together.
    pub colour: usize,
    /// Lines of one pattern belong together.
    pub dash: usize,
    /// From left to right.
    pub points: Vec<(f64, Value)>,
}

/// A number of a figure, as a question to what was measured.
#[derive(Clone, Debug)]
pub enum Value {
    /// A number of a point.
    Of(Point, &'static str),
    /// The first point's number divided by the second one's, both of one round.
    Ratio(Point, Point, &'static str),
    /// What the first point's number is above (below: negative) the second one's, both of one round, in percent.
    Change(Point, Point, &'static str),
    /// The largest of these.
    Most(Vec<Value>),
    /// The smallest of these.
    Least(Vec<Value>),
    /// The first divided by the second: medians, not round by round.
    Quotient(Box<(Value, Value)>),
    /// By how much the first misses the second, up or down, in percent: medians, not round by round.
    Off(Box<(Value, Value)>),
    /// Of these, the first place whose value is at least this share of the largest one.
    First(Vec<(f64, Value)>, f64),
}

/// The median of some rounds, and their extremes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    /// The lowest.
    pub low: f64,
    /// The highest.
    pub high: f64,
    /// How many rounds.
    pub rounds: usize,
}

impl Spread {
    /// Of these, whatever their order; none: there is none.
    pub fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.retain(|value| value.is_finite());
        values.sort_by(f64::total_cmp);
        let (low, high) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
        Some(Spread { median, low, high, rounds: values.len() })
    }
}

/// What ours should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    AtLeast(f64),
    AtMost(f64),
    /// To be seen, no more.
    None,
}

impl Goal {
    /// Whether a value reaches it; none: nothing was to be reached.
    pub fn met(self, value: f64) -> Option<bool> {
        match self {
            Goal::AtLeast(least) => Some(value >= least),
            Goal::AtMost(most) => Some(value <= most),
            Goal::None => None,
        }
    }
}

/// A number of the paper beside ours.
#[derive(Clone, Debug)]
pub struct Check {
    pub what: String,
    /// The paper's, as it says it.
    pub paper: &'static str,
    /// Behind ours: `x`, ` %`.
    pub unit: &'static str,
    /// Ours.
    pub value: Value,
    /// What ours should be.
    pub goal: Goal,
}

/// What was measured of the points of some heats.
#[derive(Debug, Default)]
pub struct Results {
    /// Per heat that has a point: the readings of its rounds.
    rounds: BTreeMap<Point, Vec<(usize, Vec<Reading>)>>,
}

impl Results {
    /// What `state` has of these heats.
    pub fn new<'a>(heats: impl IntoIterator<Item = &'a Heat>, terms: &Terms, state: &State) -> Results {
        let mut results = Results::default();
        for (number, heat) in heats.into_iter().enumerate() {
            for (at, point) in heat.0.iter().enumerate() {
                let rounds = state.rounds(heat, terms).iter().map(|round| round.readings[at].clone());
                results.rounds.entry(point.clone()).or_default().push((number, rounds.collect()));
            }
        }
        results
    }

    fn all(&self, point: &Point, name: &str) -> Vec<f64> {
        let rounds = self.rounds.get(point).into_iter().flatten().flat_map(|(_, rounds)| rounds);
        rounds.filter_map(|reading| reading.get(name).copied()).collect()
    }

    /// Two points' numbers of the same rounds of the same heats.
    fn pairs(&self, first: &Point, second: &Point, name: &str) -> Vec<(f64, f64)> {
        let (Some(first), Some(second)) = (self.rounds.get(first), self.rounds.get(second)) else { return Vec::new() };
        let mut pairs = Vec::new();
        for (heat, rounds) in first {
            let Some((_, others)) = second.iter().find(|(other, _)| other == heat) else { continue };
            let both = rounds.iter().zip(others);
            pairs.extend(both.filter_map(|(a, b)| Some((*a.get(name)?, *b.get(name)?))));
        }
        pairs
    }
}

impl Value {
    /// The answer; none: not everything that it needs was measured.
    pub fn of(&self, results: &Results) -> Option<Spread> {
        let paired = |a: &Point, b: &Point, name: &str, of: fn(f64) -> f64| {
            Spread::of(results.pairs(a, b, name).into_iter().map(|(a, b)| of(a / b)).collect())
        };
        let answers = |values: &[Value]| values.iter().map(|value| value.of(results)).collect::<Option<Vec<_>>>();
        match self {
            Value::Of(point, name) => Spread::of(results.all(point, name)),
            Value::Ratio(a, b, name) => paired(a, b, name, |ratio| ratio),
            Value::Change(a, b, name) => paired(a, b, name, |ratio| 100.0 * (ratio - 1.0)),
            Value::Most(values) => answers(values)?.into_iter().max_by(|a, b| a.median.total_cmp(&b.median)),
            Value::Least(values) => answers(values)?.into_iter().min_by(|a, b| a.median.total_cmp(&b.median)),
            Value::Quotient(both) => {
                let (over, under) = (both.0.of(results)?, both.1.of(results)?);
                let rounds = over.rounds.min(under.rounds);
                let (median, low, high) = (over.median / under.median, over.low / under.high, over.high / under.low);
                Some(Spread { median, low, high, rounds }).filter(|spread| spread.median.is_finite())
            }
            Value::Off(both) => {
                let (said, was) = (both.0.of(results)?, both.1.of(results)?);
                Spread::of(vec![100.0 * (said.median / was.median - 1.0).abs()])
            }
            Value::First(places, share) => {
                let values = places.iter().map(|(at, value)| Some((*at, value.of(results)?.median)));
                let values: Vec<(f64, f64)> = values.collect::<Option<_>>()?;
                let most = values.iter().map(|(_, value)| *value).fold(0.0, f64::max);
                Spread::of(vec![values.iter().find(|(_, value)| *value >= share * most)?.0])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::point::Spot;
    use super::*;

    fn point(window: u32) -> Point {
        Point::Spot(Spot { link: "wan", size: 128, window, batch_bytes: Some(1) })
    }

    /// Windows 1 and 2 in one heat of three rounds, window 3 in another one.
    fn results() -> Results {
        let reading = |value: f64| Reading::from([("n".to_owned(), value)]);
        let rounds = |values: &[f64]| values.iter().map(|value| reading(*value)).collect::<Vec<_>>();
        let mut results = Results::default();
        results.rounds.insert(point(1), vec![(0, rounds(&[10.0, 20.0, 40.0]))]);
        results.rounds.insert(point(2), vec![(0, rounds(&[5.0, 8.0, 10.0]))]);
        results.rounds.insert(point(3), vec![(1, rounds(&[100.0]))]);
        results
    }

    #[test]
    fn ratios_are_of_numbers_of_the_same_round() {
        let results = results();
        let median = |value: Value| value.of(&results).map(|spread| spread.median);
        assert_eq!(median(Value::Of(point(1), "n")), Some(20.0));
        // 2, 2.5, 4; of the medians it would be 2.5 as well, of the extremes 1 to 8.
        let ratio = Value::Ratio(point(1), point(2), "n").of(&results).unwrap();
        assert_eq!((ratio.median, ratio.low, ratio.high, ratio.rounds), (2.5, 2.0, 4.0, 3));
        assert_eq!(median(Value::Change(point(2), point(1), "n")), Some(-60.0));
        // They were not measured beside each other.
        assert_eq!(median(Value::Ratio(point(1), point(3), "n")), None);
        let both = Box::new((Value::Of(point(3), "n"), Value::Of(point(1), "n")));
        assert_eq!(median(Value::Quotient(both)), Some(5.0));
        let off = Box::new((Value::Of(point(2), "n"), Value::Of(point(1), "n")));
        assert_eq!(median(Value::Off(off)), Some(60.0));
    }

    #[test]
    fn the_best_of_several_is_known_when_all_are() {
        let results = results();
        let of = |window| Value::Of(point(window), "n");
        let most = |windows: &[u32]| Value::Most(windows.iter().map(|&window| of(window)).collect());
        assert_eq!(most(&[1, 2]).of(&results).map(|spread| spread.median), Some(20.0));
        assert_eq!(most(&[1, 2, 4]).of(&results), None);
        let places = [1, 2, 3].map(|window| (f64::from(window), of(window)));
        let first = |share: f64| Value::First(places.to_vec(), share).of(&results).map(|spread| spread.median);
        assert_eq!([first(1.0), first(0.2), first(0.01)], [Some(3.0), Some(1.0), Some(1.0)]);
        let least = Value::Least(vec![of(1), of(2)]);
        assert_eq!(least.of(&results).map(|spread| spread.median), Some(8.0));
    }

    #[test]
    fn goals_are_met_or_not_or_none() {
        assert_eq!((Goal::AtLeast(2.0).met(2.0), Goal::AtLeast(2.0).met(1.9)), (Some(true), Some(false)));
        assert_eq!((Goal::AtMost(2.0).met(2.1), Goal::None.met(1.0)), (Some(false), None));
    }
}
