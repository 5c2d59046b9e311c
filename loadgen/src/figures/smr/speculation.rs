//! Speculative execution: figures 7, 8 and 12 (papers.md D17, D22).

use super::partitions::{CROSS_AXIS, across};
use super::*;

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
        ours: "Speculation hides executing a batch behind ordering it: a node first sends the messages and writes the \
               log that order a batch, then runs it ahead; so an answer needs nothing but the decision, and the node's \
               one thread is free when that comes. The last picture shows how long both take: executing is short here, \
               since the tree is quick and ordering waits for a flush. All replicas and the clients share the cores of \
               this machine: what a node gains by working while it waits, another one may lose. Queries are not \
               ordered and run at once, with speculation or without: how far their rows are from 1 is how far two \
               equal runs are apart on this machine.",
        heats: [A, C].iter().flat_map(|&w| extent.clients.iter().map(move |&n| heat(pair(w, n)))).collect(),
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
