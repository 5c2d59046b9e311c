//! Speculative execution: figures 7, 8 and 12 (papers.md D17, D22).

use super::partitions::{CROSS_AXIS, across};
use super::*;

/// Updates in a command, from what takes far shorter to execute than to order, to what takes longer.
const LENGTHS: [u32; 4] = [100, 400, 800, 1600];

/// Clients with long commands: so few that the processors have time.
const LONG_CLIENTS: u32 = 4;

const LENGTH: (&str, Scale) = ("updates in a command", Scale::Log);

/// The same load with speculation and without.
fn on_and_off(load: Load) -> [Load; 2] {
    [load, Load { speculation: false, ..load }]
}

/// Figures 7 and 8.
pub fn speculation(extent: Extent, id: &'static str, replicas: u32) -> Figure {
    let pair = |workload, clients| on_and_off(on(replicas, workload, clients));
    let changes = |name: &'static str| {
        let of = |(colour, workload): (usize, Workload)| {
            let point = |&n: &u32| {
                let [on, off] = pair(workload, n);
                (f64::from(n), change(on, off, name))
            };
            line(workload.title(), colour, 0, extent.clients.iter().map(point))
        };
        [(0, A), (2, C)].into_iter().map(of).collect::<Vec<_>>()
    };
    let times = |(colour, legend, name): (usize, &str, &'static str)| {
        line(legend, colour, 0, extent.clients.iter().map(|&n| (f64::from(n), of(pair(C, n)[1], name))))
    };
    let long = |updates| on_and_off(Load { updates, ..on(replicas, C, LONG_CLIENTS) });
    let by_length = |colour, legend: &str, of: &dyn Fn([Load; 2]) -> Value| {
        line(legend, colour, 0, LENGTHS.map(|updates| (f64::from(updates), of(long(updates)))))
    };
    let long_ratios = || LENGTHS.map(|updates| ratio(long(updates)[0], long(updates)[1], name::MEAN_MS)).to_vec();
    let mut heats: Vec<Heat> =
        [A, C].iter().flat_map(|&w| extent.clients.iter().map(move |&n| heat(pair(w, n)))).collect();
    heats.extend(LENGTHS.map(|updates| heat(long(updates))));
    let ratios = |workload, name| {
        let of = |&n: &u32| {
            let [on, off] = pair(workload, n);
            ratio(on, off, name)
        };
        extent.clients.iter().map(of).collect::<Vec<_>>()
    };
    Figure {
        id,
        title: match replicas {
            4 => "Figure 7: speculative execution, 4 replicas",
            _ => "Figure 8: speculative execution, 8 replicas",
        },
        paper: "Speculation makes responses faster in all cases, up to 16.2 %, most with batched updates, and by \
                Little's law throughput grows with it.",
        ours: "Speculation hides executing a batch behind ordering it: a node first sends the messages and writes \
               the log that order a batch, then runs it ahead; so an answer needs nothing but the decision, and the \
               node's one thread is free when that comes. The third picture shows how long both take: executing is \
               short here, since the tree is quick and ordering waits for a flush. So the last two have longer \
               commands, up to those that take longer to execute than to order: what can be hidden is the shorter of \
               both. All replicas and the clients share the cores of this machine: what a node gains by working \
               while it waits, another one may lose. Queries are not ordered and run at once, with speculation or \
               without: how far their rows are from 1 is how far two equal runs are apart on this machine.",
        heats,
        panels: vec![
            Panel {
                title: "Throughput with speculation, against without",
                x: CLIENTS,
                y: ("percent", Scale::Linear),
                lines: changes(name::COMMANDS),
            },
            Panel {
                title: "Response with speculation, against without (below 0: faster)",
                x: CLIENTS,
                y: ("percent", Scale::Linear),
                lines: changes(name::MEAN_MS),
            },
            Panel {
                title: "An instance of batched updates, without speculation",
                x: CLIENTS,
                y: ("ms", Scale::Log),
                lines: vec![
                    times((0, "proposed to decided", name::INSTANCE_MS)),
                    times((2, "executed, by the thread's clock", name::EXECUTE_MS)),
                ],
            },
            Panel {
                title: "Response of four clients with long commands, against without (below 0: faster)",
                x: LENGTH,
                y: ("percent", Scale::Linear),
                lines: vec![by_length(2, "batched updates (c)", &|[on, off]| change(on, off, name::MEAN_MS))],
            },
            Panel {
                title: "An instance of these, without speculation",
                x: LENGTH,
                y: ("ms", Scale::Log),
                lines: vec![
                    by_length(0, "proposed to decided", &|[_, off]| of(off, name::INSTANCE_MS)),
                    by_length(2, "executed, by the thread's clock", &|[_, off]| of(off, name::EXECUTE_MS)),
                ],
            },
        ],
        checks: vec![
            check(
                "batched updates: of the response without, what could be hidden, at the best number of clients",
                "not said",
                " %",
                Value::Most(extent.clients.iter().map(|&n| of(pair(C, n)[1], name::HIDEABLE)).collect()),
                Goal::None,
            ),
            check(
                "batched updates: response, on / off, at the best number of clients",
                "0.838",
                "x",
                Value::Least(ratios(C, name::MEAN_MS)),
                Goal::AtMost(0.84),
            ),
            check(
                "batched updates: the same, at the worst",
                "below 1",
                "x",
                Value::Most(ratios(C, name::MEAN_MS)),
                Goal::AtMost(1.0),
            ),
            check(
                "four clients, 100 to 1600 updates in a command: response, on / off, at the best length",
                "not said",
                "x",
                Value::Least(long_ratios()),
                Goal::AtMost(0.84),
            ),
            check("the same, at the worst", "not said", "x", Value::Most(long_ratios()), Goal::AtMost(1.0)),
            check(
                "queries: response, on / off, at the best",
                "below 1",
                "x",
                Value::Least(ratios(A, name::MEAN_MS)),
                Goal::None,
            ),
            check("queries: the same, at the worst", "below 1", "x", Value::Most(ratios(A, name::MEAN_MS)), Goal::None),
            check(
                "batched updates: throughput, on / off, at the best",
                "above 1",
                "x",
                Value::Most(ratios(C, name::COMMANDS)),
                Goal::None,
            ),
        ],
    }
}

/// Figure 12.
pub fn speculation_and_partitions(extent: Extent) -> Figure {
    let most = extent.most();
    let pair = |percent| on_and_off(across(most, percent));
    let updates = on_and_off(Load { workload: C, ..across(most, 0) });
    let changes = |name: &'static str| {
        let point = |percent: u8| {
            let [on, off] = pair(percent);
            (f64::from(percent), change(on, off, name))
        };
        vec![line("queries (a)", 0, 0, CROSS_AXIS.map(point))]
    };
    let x = ("percent of queries across", Scale::Linear);
    let queries = |name| CROSS_AXIS.map(|percent| ratio(pair(percent)[0], pair(percent)[1], name)).to_vec();
    let mut heats: Vec<Heat> = CROSS_AXIS.map(|percent| heat(pair(percent))).to_vec();
    heats.push(heat(updates));
    Figure {
        id: "fig12",
        title: "Figure 12: speculative execution on top of state partitioning, two partitions of two replicas",
        paper: "At 0 % across responses are 16 % faster and throughput is 5 % higher; less as the share grows, since \
                a query across is less work for each partition, and less can be hidden.",
        ours: "Queries are not ordered here unless something changes beside them, so there is nothing to hide their \
               execution behind: their rows say how far two equal runs are apart on this machine. Only updates can \
               gain: the last two rows.",
        heats,
        panels: vec![
            Panel {
                title: "Throughput with speculation, against without",
                x,
                y: ("percent", Scale::Linear),
                lines: changes(name::COMMANDS),
            },
            Panel {
                title: "Response with speculation, against without (below 0: faster)",
                x,
                y: ("percent", Scale::Linear),
                lines: changes(name::MEAN_MS),
            },
        ],
        checks: vec![
            check(
                "queries at 0 % across: response, on / off",
                "0.84",
                "x",
                queries(name::MEAN_MS)[0].clone(),
                Goal::None,
            ),
            check(
                "queries at 0 % across: throughput, on / off",
                "1.05",
                "x",
                queries(name::COMMANDS)[0].clone(),
                Goal::None,
            ),
            check(
                "queries, the worst share: response, on / off",
                "below 1",
                "x",
                Value::Most(queries(name::MEAN_MS)),
                Goal::None,
            ),
            check(
                "batched updates: response, on / off",
                "not said",
                "x",
                ratio(updates[0], updates[1], name::MEAN_MS),
                Goal::AtMost(0.84),
            ),
            check(
                "batched updates: throughput, on / off",
                "not said",
                "x",
                ratio(updates[0], updates[1], name::COMMANDS),
                Goal::AtLeast(1.05),
            ),
        ],
    }
}
