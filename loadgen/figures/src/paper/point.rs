//! What is measured: a load on a cluster, or a batch size and window over emulated links; and several of them that are
//! measured one after the other because their ratio counts. It knows what they are, not how they are carried out.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use coppice_loadgen::units::{Think, print_duration};

/// The numbers of one measurement, by name; see [`name`].
pub type Reading = BTreeMap<String, f64>;

/// Names of the numbers.
pub mod name {
    /// Requests answered per second.
    pub const REQUESTS: &str = "requests_per_s";
    /// Commands on the tree answered per second.
    pub const COMMANDS: &str = "commands_per_s";
    /// Mean response time in milliseconds.
    pub const MEAN_MS: &str = "mean_ms";
    /// Its median.
    pub const P50_MS: &str = "p50_ms";
    /// Its 99th percentile.
    pub const P99_MS: &str = "p99_ms";
    /// Requests that failed, were refused, or stayed without an answer.
    pub const ERRORS: &str = "errors";
    /// X (R + Z) / N: 1 where the numbers agree with Little's law.
    pub const LITTLE: &str = "little";
    /// Processor time of all nodes for a command, in microseconds.
    pub const NODES_US: &str = "nodes_us_per_command";
    /// Processor time of the busiest node for a command, in microseconds.
    pub const BUSIEST_US: &str = "busiest_us_per_command";
    /// Commands for a second of processor time of the busiest node.
    pub const PER_CORE: &str = "commands_per_busiest_core_s";
    /// Processors that all nodes kept busy.
    pub const NODES_CORES: &str = "nodes_cores";
    /// Processors that the generator kept busy.
    pub const GENERATOR_CORES: &str = "generator_cores";
    /// Mean time from proposing an instance to its decision, in milliseconds.
    pub const INSTANCE_MS: &str = "instance_ms";
    /// Mean execution time of an instance on the node that executes most, in milliseconds.
    pub const EXECUTE_MS: &str = "execute_ms";
    /// Of the response, what speculation could hide: the shorter one of ordering and executing, in percent.
    pub const HIDEABLE: &str = "hideable_percent";
    /// Mean commands of an instance.
    pub const BATCH: &str = "batch_commands";
    /// Of the busiest node's thread: share of the time in a stage, in percent; behind it the stage's word.
    pub const STAGE: &str = "stage_percent_";
    /// Commands per second that the model predicts.
    pub const MODEL: &str = "model_per_s";
    /// Undecided instances that the model predicts to be enough.
    pub const MODEL_WINDOW: &str = "model_window";
    /// Bytes of a batch that were in force.
    pub const BATCH_BYTES: &str = "batch_bytes";
    /// Undecided instances that were allowed.
    pub const WINDOW: &str = "window";
    /// Times that a link's queue overflowed.
    pub const CONGESTIONS: &str = "congestions";
    /// Time of the leader's thread for a batch, in milliseconds.
    pub const BATCH_CPU_MS: &str = "batch_cpu_ms";
    /// And for each of its commands.
    pub const COMMAND_CPU_MS: &str = "command_cpu_ms";
    /// A flush of the log, in milliseconds.
    pub const FLUSH_MS: &str = "flush_ms";
    /// Of what the link could carry, the share that it carried, in percent.
    pub const LINK: &str = "link_percent";
}

/// The papers' workloads (papers.md D14).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workload {
    /// Ranges of 1000 keys.
    A,
    /// Single inserts and deletes.
    B,
    /// Seven updates in one command.
    C,
}

impl Workload {
    /// The word on the command line.
    pub const fn word(self) -> &'static str {
        match self {
            Workload::A => "a",
            Workload::B => "b",
            Workload::C => "c",
        }
    }

    /// For legends.
    pub const fn title(self) -> &'static str {
        match self {
            Workload::A => "queries (a)",
            Workload::B => "single updates (b)",
            Workload::C => "batched updates (c)",
        }
    }
}

/// A cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    /// Replicas of each partition, on nodes of its own.
    pub replicas: u32,
    pub partitions: u32,
}

impl Shape {
    /// Node processes.
    pub const fn nodes(self) -> u32 {
        self.replicas * self.partitions
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (replicas, partitions) = (self.replicas, self.partitions);
        let of = if replicas == 1 { "1 replica".to_owned() } else { format!("{replicas} replicas") };
        match partitions {
            1 => f.write_str(&of),
            _ => write!(f, "{partitions} partitions of {of}"),
        }
    }
}

/// Updates in a command of the paper's workload c.
pub const UPDATES: u32 = 7;

/// Clients in a closed loop on a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Load {
    /// The cluster.
    pub shape: Shape,
    /// What they ask for.
    pub workload: Workload,
    pub clients: u32,
    /// Updates in a command of workload c.
    pub updates: u32,
    /// Of queries, this percentage spans two partitions.
    pub cross_percent: u8,
    /// Whether batches run before they are decided.
    pub speculation: bool,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Load { shape, workload, clients, updates, cross_percent, speculation } = self;
        write!(f, "{shape}, workload {}, {clients} clients", workload.word())?;
        if shape.partitions > 1 && *workload == Workload::A {
            write!(f, ", {cross_percent} % across")?;
        }
        if *workload == Workload::C && *updates != UPDATES {
            write!(f, ", {updates} updates in one")?;
        }
        if *speculation { Ok(()) } else { f.write_str(", speculation off") }
    }
}

/// A batch size and a window over an emulated link.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spot {
    /// The link's word.
    pub link: &'static str,
    /// Key and value of a command, in bytes.
    pub size: u64,
    /// Undecided instances.
    pub window: u32,
    /// Bytes of a batch; none: batch and window are tuning's.
    pub batch_bytes: Option<u64>,
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Spot { link, size, window, batch_bytes } = self;
        match batch_bytes {
            Some(bytes) => write!(f, "{link}, commands of {size} B, batches of {bytes} B, window {window}"),
            None => write!(f, "{link}, commands of {size} B, tuning"),
        }
    }
}

/// One point of a figure.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Point {
    /// On a cluster.
    Load(Load),
    /// Over emulated links.
    Spot(Spot),
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Point::Load(load) => load.fmt(f),
            Point::Spot(spot) => spot.fmt(f),
        }
    }
}

/// What is alike for all measurements of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    /// Length of one measurement.
    pub hold: Duration,
    /// Dropped at each of its ends.
    pub trim: Duration,
    /// Pause of a client.
    pub think: Think,
    /// Keys loaded first.
    pub entries: u64,
    /// Whether votes wait for the disk.
    pub flush: bool,
    /// Times that everything is measured.
    pub rounds: u32,
}

/// Points that are measured one after the other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Heat(pub Vec<Point>);

impl Heat {
    /// Names the heat and everything that its numbers depend on: what was measured in another way is another heat.
    pub fn key(&self, terms: &Terms) -> String {
        let points: Vec<String> = self.0.iter().map(Point::to_string).collect();
        let links = matches!(self.0.first(), Some(Point::Spot(_)));
        let hold = print_duration(terms.hold);
        let how = if links {
            format!("{hold} each")
        } else {
            let Terms { think, entries, flush, .. } = terms;
            let flush = if *flush { "fdatasync" } else { "no flush" };
            format!("{hold} each, {} trimmed, think {think}, {entries} keys, {flush}", print_duration(terms.trim))
        };
        format!("{}: {how}", points.join("; "))
    }

    /// The clusters that it needs.
    pub fn shapes(&self) -> Vec<Shape> {
        let shapes = self.0.iter().filter_map(|point| match point {
            Point::Load(load) => Some(load.shape),
            Point::Spot(_) => None,
        });
        let mut shapes: Vec<Shape> = shapes.collect();
        shapes.sort_unstable();
        shapes.dedup();
        shapes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> Terms {
        let (hold, trim) = (Duration::from_secs(2), Duration::from_millis(400));
        Terms { hold, trim, think: Think::NONE, entries: 1_000, flush: true, rounds: 3 }
    }

    #[test]
    fn a_heat_that_is_measured_in_another_way_has_another_name() {
        let shape = Shape { replicas: 3, partitions: 1 };
        let load = Load { shape, workload: Workload::C, clients: 9, updates: 7, cross_percent: 0, speculation: true };
        let heat = |load: Load| Heat(vec![Point::Load(load)]);
        let key = heat(load).key(&terms());
        assert_eq!(key, "3 replicas, workload c, 9 clients: 2s each, 400ms trimmed, think 0, 1000 keys, fdatasync");
        let others = [
            heat(Load { speculation: false, ..load }).key(&terms()),
            heat(Load { clients: 10, ..load }).key(&terms()),
            heat(Load { updates: 8, ..load }).key(&terms()),
            heat(load).key(&Terms { entries: 2_000, ..terms() }),
            heat(load).key(&Terms { flush: false, ..terms() }),
            heat(load).key(&Terms { hold: Duration::from_secs(3), ..terms() }),
        ];
        assert!(others.iter().all(|other| *other != key), "{others:?}");
        // More rounds of the same are the same.
        assert_eq!(heat(load).key(&Terms { rounds: 5, ..terms() }), key);
    }
}
