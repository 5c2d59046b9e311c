//! The figures and tables of Santos, Schiper: *Tuning Paxos for High-Throughput with Batching and Pipelining*
//! (papers.md A13, A14, A20 to A24). The links are emulated: see [`super::lab`].

use super::plan::{Check, Figure, Goal, Line, Panel, Value};
use super::point::{Heat, Point, Spot, name};
use coppice_loadgen::svg::Scale;

const KIB: u64 = 1_024;

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    lan: Grid,
    wan: Grid,
}

/// Batch sizes and windows over one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grid {
    link: &'static str,
    /// Ascending.
    windows: &'static [u32],
    /// Ascending, for each of [`SIZES`].
    batches: [&'static [u64]; 3],
}

/// Sizes of commands, in bytes.
const SIZES: [u64; 3] = [128, KIB, 8 * KIB];

/// Of a grid, what is within so much of the best counts as the best: two runs are not closer on any real machine.
const AS_GOOD: f64 = 0.95;

impl Extent {
    /// Minutes in all.
    pub const SHORT: Extent = Extent {
        lan: Grid {
            link: "lan",
            windows: &[1, 2, 5],
            batches: [
                &[128, KIB, 10 * KIB, 64 * KIB],
                &[KIB, 8 * KIB, 64 * KIB, 256 * KIB],
                &[8 * KIB, 64 * KIB, 128 * KIB, 256 * KIB],
            ],
        },
        wan: Grid {
            link: "wan",
            windows: &[1, 2, 5, 10, 20],
            batches: [
                &[128, 10 * KIB, 40 * KIB, 70 * KIB],
                &[KIB, 8 * KIB, 64 * KIB, 130 * KIB, 256 * KIB],
                &[8 * KIB, 64 * KIB, 130 * KIB, 256 * KIB],
            ],
        },
    };

    /// The paper's curves.
    pub const FULL: Extent = Extent {
        lan: Grid {
            link: "lan",
            windows: &[1, 2, 5],
            batches: [
                &[128, 256, 512, KIB, 2 * KIB, 4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB],
                &[KIB, 2 * KIB, 4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB],
                &[8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB],
            ],
        },
        wan: Grid {
            link: "wan",
            windows: &[1, 2, 5, 10, 20, 35, 50],
            batches: [
                &[128, KIB, 4 * KIB, 10 * KIB, 20 * KIB, 40 * KIB, 70 * KIB, 130 * KIB],
                &[KIB, 4 * KIB, 8 * KIB, 32 * KIB, 64 * KIB, 130 * KIB, 224 * KIB, 256 * KIB],
                &[8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 130 * KIB, 224 * KIB, 256 * KIB],
            ],
        },
    };
}

/// All, in the paper's order; the tables last.
pub fn figures(extent: Extent) -> Vec<Figure> {
    let Extent { lan, wan } = extent;
    vec![cluster(lan), by_batch(wan), by_window(wan), table("table2-3", lan), table("table4", wan)]
}

impl Grid {
    fn spot(self, size: u64, window: u32, batch: u64) -> Point {
        Point::Spot(Spot { link: self.link, size, window, batch_bytes: Some(batch) })
    }

    fn tuned(self, size: u64) -> Point {
        Point::Spot(Spot { link: self.link, size, window: 1, batch_bytes: None })
    }

    fn rate(self, size: u64, window: u32, batch: u64) -> Value {
        Value::Of(self.spot(size, window, batch), name::COMMANDS)
    }

    /// A line of the grid is one heat: all batches of a window.
    fn heats(self) -> Vec<Heat> {
        let lines = SIZES.iter().zip(self.batches).flat_map(|(&size, batches)| {
            let line = move |&window: &u32| Heat(batches.iter().map(|&b| self.spot(size, window, b)).collect());
            self.windows.iter().map(line)
        });
        lines.collect()
    }

    fn all_tuned(self) -> Vec<Heat> {
        SIZES.map(|size| Heat(vec![self.tuned(size)])).to_vec()
    }

    /// The highest throughput of some windows.
    fn best(self, at: usize, windows: &[u32]) -> Value {
        let size = SIZES[at];
        let all = windows.iter().flat_map(|&w| self.batches[at].iter().map(move |&b| self.rate(size, w, b)));
        Value::Most(all.collect())
    }

    fn worst(self, at: usize) -> Value {
        let (size, batches) = (SIZES[at], self.batches[at]);
        // Those that fill no link cannot overflow one: the largest batch of each window.
        let largest = batches[batches.len() - 1];
        Value::Least(self.windows.iter().map(|&window| self.rate(size, window, largest)).collect())
    }

    fn panel_by_batch(self, at: usize) -> Panel {
        let (size, batches) = (SIZES[at], self.batches[at]);
        let line = |(colour, &window): (usize, &u32)| Line {
            name: format!("window {window}"),
            colour,
            dash: 0,
            points: batches.iter().map(|&b| (b as f64, self.rate(size, window, b))).collect(),
        };
        let lines = self.windows.iter().enumerate().map(line).collect();
        rates(["Commands of 128 B", "Commands of 1 KB", "Commands of 8 KB"][at], BATCH, lines)
    }
}

const BATCH: (&str, Scale) = ("batch, bytes", Scale::Log);
const WINDOW: (&str, Scale) = ("window, instances", Scale::Linear);

fn rates(title: &'static str, x: (&'static str, Scale), lines: Vec<Line>) -> Panel {
    Panel { title, x, y: ("commands per second", Scale::Linear), lines }
}

fn quotient(over: Value, under: Value) -> Value {
    Value::Quotient(Box::new((over, under)))
}

fn check(what: impl Into<String>, paper: &'static str, value: Value, goal: Goal) -> Check {
    Check { what: what.into(), paper, unit: "x", value, goal }
}

/// For people.
fn show(size: u64) -> String {
    if size < KIB { format!("{size} B") } else { format!("{} KB", size / KIB) }
}

fn cluster(grid: Grid) -> Figure {
    let gain = |at: usize| quotient(grid.best(at, grid.windows), grid.rate(SIZES[at], 1, grid.batches[at][0]));
    let alone = |at: usize| quotient(grid.best(at, &[1]), grid.best(at, grid.windows));
    let mut checks = vec![
        check("128 B: best / one command a batch, window 1", "almost 10", gain(0), Goal::AtLeast(10.0)),
        check("1 KB: the same", "not said", gain(1), Goal::None),
        check("8 KB: the same", "a little over 4", gain(2), Goal::AtLeast(4.0)),
    ];
    checks.extend([0, 1, 2].map(|at| {
        let what = format!("{}: best at window 1 / best", show(SIZES[at]));
        check(what, "about 1", alone(at), Goal::None)
    }));
    Figure {
        id: "fig4",
        title: "Figure 4: throughput by batch size, LAN (940 Mbit/s, 50 us)",
        paper: "Batching gains almost 10 times at 128 B and a little over 4 times at 8 KB; the best is reached from \
                batches of 10, 64 and 128 KB for 128 B, 1 KB and 8 KB. Windows 1, 2 and 5 are alike, since the \
                leader's processor is the bottleneck, and nothing collapses.",
        ours: "A batch costs a leader here three message handlings and a share of a flush, a command of its own a \
               message in and one out; how much batching gains is the ratio of both. The three nodes, their links and \
               the clients share the cores of this machine, so a leader has less than one of them, and a window \
               above 1 gains where one instance waits for the disk. Clients send one command a message.",
        heats: grid.heats(),
        panels: [0, 1, 2].map(|at| grid.panel_by_batch(at)).to_vec(),
        checks,
    }
}

fn by_batch(grid: Grid) -> Figure {
    let alone = |at: usize| quotient(grid.best(at, &[1]), grid.best(at, grid.windows));
    let two = |at: usize| quotient(grid.best(at, &[1, 2]), grid.best(at, grid.windows));
    let checks = [("almost 1", "1"), ("about 0.5", "1"), ("about 0.5", "1")].into_iter().enumerate();
    let checks = checks.flat_map(|(at, (window_1, window_2))| {
        let size = show(SIZES[at]);
        [
            check(format!("{size}: best at window 1 / best"), window_1, alone(at), Goal::None),
            check(format!("{size}: best at window 1 or 2 / best"), window_2, two(at), Goal::None),
        ]
    });
    let checks = checks.collect::<Vec<_>>().into_iter().chain([1, 2].map(|at| {
        let what = format!("{}: worst of the largest batches / best", show(SIZES[at]));
        check(what, "about 0.1", quotient(grid.worst(at), grid.best(at, grid.windows)), Goal::None)
    }));
    Figure {
        id: "fig7",
        title: "Figure 7: throughput by batch size, WAN (10 Mbit/s, 50 ms)",
        paper: "Batching alone (window 1) reaches almost the maximum at 128 B and half of it at 1 and 8 KB; window 2 \
                reaches it with batches of 40 KB (128 B) or 140 KB. What overflows the network collapses: window 5 \
                at 256 KB, window 10 at 130 KB, window 20 at 64 KB; never at 128 B.",
        ours: "The link is emulated, from the paper's numbers: with more than 1200 KiB undelivered it moves at a tenth \
               of its rate until half of that is left; the paper names loss as the cause and 10 % as the effect. At \
               128 B the paper's leader was bound by its processor (850 MHz); ours is bound by the link there as \
               well, so window 1 reaches less of the maximum.",
        heats: grid.heats(),
        panels: [0, 1, 2].map(|at| grid.panel_by_batch(at)).to_vec(),
        checks: checks.collect(),
    }
}

fn by_window(grid: Grid) -> Figure {
    let panel = |at: usize| {
        let (size, batches) = (SIZES[at], grid.batches[at]);
        let line = |(colour, &batch): (usize, &u64)| Line {
            name: format!("batches of {}", show(batch)),
            colour,
            dash: 0,
            points: grid.windows.iter().map(|&w| (f64::from(w), grid.rate(size, w, batch))).collect(),
        };
        let mut lines: Vec<Line> = batches.iter().enumerate().map(line).collect();
        let tuned = Value::Of(grid.tuned(size), name::COMMANDS);
        let ends = [grid.windows[0], grid.windows[grid.windows.len() - 1]];
        let points = ends.map(|window| (f64::from(window), tuned.clone())).to_vec();
        lines.push(Line { name: "tuning".to_owned(), colour: batches.len(), dash: 1, points });
        rates(["Commands of 128 B", "Commands of 1 KB", "Commands of 8 KB"][at], WINDOW, lines)
    };
    let unbatched = |at: usize| {
        let all = grid.windows.iter().map(|&window| grid.rate(SIZES[at], window, grid.batches[at][0]));
        quotient(Value::Most(all.collect()), grid.best(at, grid.windows))
    };
    let tuned = |at: usize| quotient(Value::Of(grid.tuned(SIZES[at]), name::COMMANDS), grid.best(at, grid.windows));
    let congested = |at: usize| Value::Of(grid.tuned(SIZES[at]), name::CONGESTIONS);
    let mut checks = Vec::new();
    for at in [0, 1, 2] {
        let size = show(SIZES[at]);
        let (what, paper) =
            (format!("{size}: best of windows with one command a batch / best"), ["below 1", "below 1", "1"]);
        checks.push(check(what, paper[at], unbatched(at), Goal::None));
        checks.push(check(format!("{size}: tuning / best"), "not there", tuned(at), Goal::AtLeast(0.95)));
        let what = format!("{size}: times that tuning overflowed a link");
        checks.push(Check { unit: "", ..check(what, "not there", congested(at), Goal::AtMost(0.0)) });
    }
    Figure {
        id: "fig8",
        title: "Figure 8: throughput by window, WAN (10 Mbit/s, 50 ms)",
        paper: "A larger window reaches the maximum with smaller batches; pipelining alone reaches it at 8 KB only, \
                from window 15. The larger the batch, the smaller the window at which throughput collapses.",
        ours: "The points of figure 7 again, and tuning, which the paper does not have: 20 s after it was \
               turned on, under load. It is drawn over all windows, since it chooses its own.",
        heats: grid.heats().into_iter().chain(grid.all_tuned()).collect(),
        panels: [0, 1, 2].map(panel).to_vec(),
        checks,
    }
}

fn table(id: &'static str, grid: Grid) -> Figure {
    let best = |at: usize, batch: u64, name: &'static str| {
        Value::Most(grid.windows.iter().map(|&w| Value::Of(grid.spot(SIZES[at], w, batch), name)).collect())
    };
    let first = |at: usize, batch: u64| {
        let windows = grid.windows.iter().map(|&w| (f64::from(w), grid.rate(SIZES[at], w, batch)));
        Value::First(windows.collect(), AS_GOOD)
    };
    // By the costs of the run in the middle window: what they lead to is that of a window that is large enough.
    let middle = grid.windows[grid.windows.len() / 2];
    let model = |at: usize, batch: u64, name: &'static str| Value::Of(grid.spot(SIZES[at], middle, batch), name);
    let panels = [0, 1, 2].into_iter().flat_map(|at| {
        let lines = |measured: &dyn Fn(u64) -> Value, predicted: &dyn Fn(u64) -> Value| {
            let of = |value: &dyn Fn(u64) -> Value| grid.batches[at].iter().map(|&b| (b as f64, value(b))).collect();
            vec![
                Line { name: "measured".to_owned(), colour: 0, dash: 0, points: of(measured) },
                Line { name: "model".to_owned(), colour: 1, dash: 1, points: of(predicted) },
            ]
        };
        let rate = lines(&|b| best(at, b, name::COMMANDS), &|b| model(at, b, name::MODEL));
        let window = lines(&|b| first(at, b), &|b| model(at, b, name::MODEL_WINDOW));
        let titles = [
            ("128 B: highest throughput of a batch size", "128 B: smallest window that reaches it"),
            ("1 KB: highest throughput of a batch size", "1 KB: smallest window that reaches it"),
            ("8 KB: highest throughput of a batch size", "8 KB: smallest window that reaches it"),
        ];
        [
            rates(titles[at].0, BATCH, rate),
            Panel { title: titles[at].1, x: BATCH, y: ("instances", Scale::Log), lines: window },
        ]
    });
    let off = |at: usize| {
        let all = grid.batches[at]
            .iter()
            .map(|&batch| Value::Off(Box::new((model(at, batch, name::MODEL), best(at, batch, name::COMMANDS)))));
        Value::Most(all.collect())
    };
    let (title, paper_off) = match grid.link {
        "lan" => ("Tables II and III: the model beside the experiment, LAN", ["6.0 %", "6.0 %", "12.1 %"]),
        _ => ("Table IV: the model beside the experiment, WAN", ["22.2 %", "22.2 %", "22.2 %"]),
    };
    let checks = [0, 1, 2].map(|at| {
        let what = format!("{}: worst prediction of throughput, off by", show(SIZES[at]));
        Check { unit: " %", ..check(what, paper_off[at], off(at), Goal::AtMost(10.0)) }
    });
    Figure {
        id,
        title,
        paper: "From measured costs of the processor the model predicts the throughput of each batch size and the \
                window that reaches it, in the worst case 6.0 % off at 128 B and 1 KB and 12.1 % at 8 KB (LAN), and \
                22.2 % (WAN).",
        ours: "The experiment columns, from the points of the figures: per batch size the highest throughput of all \
               windows, and the smallest window within 5 % of it. Beside it the model, whose inputs were measured in \
               the same runs by the leader itself: processor time for a batch and for a command, the flush; rate and \
               delay are the link's. It takes the leader's thread for a processor of its own; where nodes and \
               clients share the cores, the thread waits for one, and the model promises more than the machine can \
               do.",
        heats: grid.heats(),
        panels: panels.collect(),
        checks: checks.to_vec(),
    }
}
