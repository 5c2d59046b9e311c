//! State partitioning: figures 9 to 11 (papers.md D18, D20, D21).

use super::*;

/// Partitions of figure 9, of two replicas each.
const PARTITION_AXIS: [u32; 3] = [1, 2, 4];

/// Clients for each of them: machines of their own would have as many each.
const PARTITION_CLIENTS: u32 = 500;

/// Shares of queries that span two partitions.
pub const CROSS_AXIS: [u8; 5] = [0, 25, 50, 75, 100];

/// Figure 9.
pub fn partitions() -> Figure {
    let load = |partitions: u32, workload| Load {
        shape: Shape { replicas: 2, partitions },
        ..on(2, workload, partitions * PARTITION_CLIENTS)
    };
    let lines = |name: &'static str| {
        let of = |(colour, workload): (usize, Workload)| {
            line(workload.title(), colour, 0, PARTITION_AXIS.map(|n| (f64::from(n), of(load(n, workload), name))))
        };
        [(0, A), (2, C)].into_iter().map(of).collect::<Vec<_>>()
    };
    let x = ("partitions of two replicas", Scale::Linear);
    let times = |n: u32, workload, name| ratio(load(n, workload), load(1, workload), name);
    let busiest = "for a second of the busiest node's processor";
    Figure {
        id: "fig9",
        title: "Figure 9: state partitioning, two replicas a partition, no queries across; 500 clients a partition",
        paper: "Queries: 2.1 times the throughput with two partitions, nearly 4 times with four. Batched updates: 1.8 \
                and 2.6 times. Responses hardly change.",
        ours: "Four partitions are eight nodes, and all of them and the clients share the cores of this machine: what \
               is measured directly cannot grow. What tells whether partitions would scale on machines of their own \
               is the processor time of all nodes for a command (flat: linear) and what a second of the busiest \
               node's processor is good for.",
        heats: [A, C].map(|workload| heat(PARTITION_AXIS.map(|n| load(n, workload)))).to_vec(),
        panels: vec![
            rates(
                "Throughput, all nodes and clients on the cores of this machine",
                x,
                Scale::Log,
                lines(name::COMMANDS),
            ),
            rates("Commands for a second of the busiest node's processor", x, Scale::Log, lines(name::PER_CORE)),
            Panel {
                title: "Processor time of all nodes for a command",
                x,
                y: ("microseconds", Scale::Log),
                lines: lines(name::NODES_US),
            },
            Panel { title: "Response", x, y: RESPONSE, lines: lines(name::MEAN_MS) },
        ],
        checks: vec![
            check(
                format!("queries {busiest}, 2 P / 1 P"),
                "2.1x",
                "x",
                times(2, A, name::PER_CORE),
                Goal::AtLeast(2.1),
            ),
            check(
                format!("queries {busiest}, 4 P / 1 P"),
                "nearly 4x",
                "x",
                times(4, A, name::PER_CORE),
                Goal::AtLeast(4.0),
            ),
            check(
                format!("updates {busiest}, 2 P / 1 P"),
                "1.8x",
                "x",
                times(2, C, name::PER_CORE),
                Goal::AtLeast(1.9),
            ),
            check(
                format!("updates {busiest}, 4 P / 1 P"),
                "2.6x",
                "x",
                times(4, C, name::PER_CORE),
                Goal::AtLeast(3.8),
            ),
            check(
                "queries: processor time of all nodes, 4 P / 1 P",
                "not said",
                "x",
                times(4, A, name::NODES_US),
                Goal::AtMost(1.1),
            ),
            check(
                "updates: processor time of all nodes, 4 P / 1 P",
                "not said",
                "x",
                times(4, C, name::NODES_US),
                Goal::AtMost(1.1),
            ),
        ],
    }
}

/// Queries on two partitions, so many of them across.
pub fn across(clients: u32, cross_percent: u8) -> Load {
    Load { shape: Shape { replicas: 2, partitions: 2 }, cross_percent, ..on(2, A, clients) }
}

fn cross_heats(extent: Extent) -> Vec<Heat> {
    extent.clients.iter().map(|&n| heat(CROSS_AXIS.map(|percent| across(n, percent)))).collect()
}

/// Figure 10.
pub fn cross_partition(extent: Extent) -> Figure {
    let lines = |name: &'static str| {
        let of = |(colour, percent): (usize, u8)| {
            let points = extent.clients.iter().map(|&n| (f64::from(n), of(across(n, percent), name)));
            line(format!("{percent} % across"), colour, 0, points)
        };
        CROSS_AXIS.into_iter().enumerate().map(of).collect::<Vec<_>>()
    };
    let most = extent.most();
    let against = |percent| ratio(across(most, percent), across(most, 0), name::COMMANDS);
    Figure {
        id: "fig10",
        title: "Figure 10: queries across partitions, two partitions of two replicas",
        paper: "At 100 clients all shares are alike. Under load 50 % is best, 75 % next, and no queries across is \
                worst: a query over two partitions is less work for each, and answers of fixed size cost more.",
        ours: "Here a query across partitions is as of one moment for both of them: read in both and then validated in \
               both, or ordered by a ticket of the coordinator where something changed in between. One inside a \
               partition is read once and not ordered; in the paper both are ordered alike, so there a query across \
               is the cheaper one, here the dearer. Answers have no fixed size.",
        heats: cross_heats(extent),
        panels: vec![
            Panel {
                title: "Throughput",
                x: CLIENTS,
                y: ("queries per second", Scale::Linear),
                lines: lines(name::COMMANDS),
            },
            Panel { title: "Response", x: CLIENTS, y: RESPONSE, lines: lines(name::MEAN_MS) },
        ],
        checks: [(50, "best, above 1"), (75, "above 1"), (100, "above 1")]
            .map(|(percent, paper)| {
                let what = format!("throughput at {percent} % across / at 0 %, most clients");
                check(what, paper, "x", against(percent), Goal::AtLeast(0.9))
            })
            .to_vec(),
    }
}

/// Stages of a node's thread, as its metrics name them.
const STAGES: [(&str, &str); 5] = [
    ("receive", "stage_percent_receive"),
    ("order", "stage_percent_order"),
    ("execute", "stage_percent_execute"),
    ("respond", "stage_percent_respond"),
    ("flush (its own thread)", "stage_percent_flush"),
];

/// Figure 11.
pub fn stages(extent: Extent) -> Figure {
    let most = extent.most();
    let by_cross = |name: &'static str| CROSS_AXIS.map(|percent| (f64::from(percent), of(across(most, percent), name)));
    let lines = STAGES.into_iter().enumerate().map(|(colour, (legend, name))| line(legend, colour, 0, by_cross(name)));
    let x = ("percent of queries across", Scale::Linear);
    Figure {
        id: "fig11",
        title: "Figure 11: where the processor goes, in the runs of figure 10 with most clients",
        paper: "Threads that receive, execute and respond, a processor each: executing takes 98 % at 0 % across; \
                executing and responding 95 % at 25 and 100 %; less than 90 % at 50 and 75 %.",
        ours: "A node has one thread for all stages of its replicas and one for its log; the shares are of the \
               busiest node, by the clock on the wall, so what a stage waits for a shared core is in them. A query is \
               executed where its answer is written: in the stage that responds. No stage is busy all the time: with \
               five processes on the cores of this machine a node gets a fraction of one. The busiest stage is where a \
               machine of its own would end.",
        heats: cross_heats(extent),
        panels: vec![
            Panel {
                title: "Stages of the busiest node",
                x,
                y: ("percent of the time", Scale::Linear),
                lines: lines.collect(),
            },
            Panel {
                title: "Processors kept busy",
                x,
                y: ("processors", Scale::Linear),
                lines: vec![
                    line("all nodes", 0, 0, by_cross(name::NODES_CORES)),
                    line("clients", 1, 0, by_cross(name::GENERATOR_CORES)),
                ],
            },
        ],
        checks: [0, 50, 100]
            .map(|percent| {
                let stages = STAGES.map(|(_, name)| of(across(most, percent), name));
                let what = format!("busiest stage of the busiest node at {percent} % across");
                let paper = match percent {
                    0 => "98 %",
                    50 => "below 90 %",
                    _ => "95 %",
                };
                check(what, paper, " %", Value::Most(stages.to_vec()), Goal::None)
            })
            .to_vec(),
    }
}
