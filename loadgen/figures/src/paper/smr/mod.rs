//! The figures of Marandi, Primi, Pedone: *High Performance State-Machine Replication* (papers.md D15 to D22).

mod partitions;
mod replicas;
mod speculation;

use Workload::{A, B, C};

use super::plan::{Check, Figure, Goal, Line, Panel, Value};
use super::point::{Heat, Load, Point, Shape, UPDATES, Workload, name};
use coppice_loadgen::svg::Scale;

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Numbers of clients, ascending.
    pub clients: &'static [u32],
}

impl Extent {
    /// Minutes in all.
    pub const SHORT: Extent = Extent { clients: &[10, 100, 1000] };
    /// The papers' curves.
    pub const FULL: Extent = Extent { clients: &[10, 30, 100, 300, 1000, 2000] };

    fn fewest(self) -> u32 {
        self.clients[0]
    }

    fn most(self) -> u32 {
        self.clients[self.clients.len() - 1]
    }
}

const CLIENTS: (&str, Scale) = ("clients", Scale::Log);
const RESPONSE: (&str, Scale) = ("mean response, ms", Scale::Linear);

/// All, in the paper's order.
pub fn figures(extent: Extent) -> Vec<Figure> {
    vec![
        replicas::read_only(extent),
        replicas::against_one_server(extent),
        replicas::by_replicas(extent),
        speculation::speculation(extent, "fig7", 4),
        speculation::speculation(extent, "fig8", 8),
        partitions::partitions(),
        partitions::cross_partition(extent),
        partitions::stages(extent),
        speculation::speculation_and_partitions(extent),
    ]
}

fn on(replicas: u32, workload: Workload, clients: u32) -> Load {
    let shape = Shape { replicas, partitions: 1 };
    Load { shape, workload, clients, updates: UPDATES, cross_percent: 0, speculation: true }
}

fn heat(loads: impl IntoIterator<Item = Load>) -> Heat {
    Heat(loads.into_iter().map(Point::Load).collect())
}

fn of(load: Load, name: &'static str) -> Value {
    Value::Of(Point::Load(load), name)
}

fn ratio(over: Load, under: Load, name: &'static str) -> Value {
    Value::Ratio(Point::Load(over), Point::Load(under), name)
}

fn change(new: Load, old: Load, name: &'static str) -> Value {
    Value::Change(Point::Load(new), Point::Load(old), name)
}

fn line(name: impl Into<String>, colour: usize, dash: usize, points: impl IntoIterator<Item = (f64, Value)>) -> Line {
    Line { name: name.into(), colour, dash, points: points.into_iter().collect() }
}

fn check(what: impl Into<String>, paper: &'static str, unit: &'static str, value: Value, goal: Goal) -> Check {
    Check { what: what.into(), paper, unit, value, goal }
}

fn rates(title: &'static str, x: (&'static str, Scale), scale: Scale, lines: Vec<Line>) -> Panel {
    Panel { title, x, y: ("commands per second", scale), lines }
}
