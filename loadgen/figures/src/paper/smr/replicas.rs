//! Replication against a server alone: figures 2, 5 and 6 (papers.md D15, D16).

use super::*;

/// Replicas of a replicated cluster where the paper says nothing else: the fewest that survive the loss of one.
const REPLICAS: u32 = 3;

/// Replicas of the axis of figures 2 and 6; one is the client-server baseline.
const REPLICA_AXIS: [u32; 4] = [1, 2, 4, 8];

/// The client-server baseline beside three replicas, at one number of clients.
fn beside(workload: Workload, clients: u32) -> Heat {
    heat([1, REPLICAS].map(|replicas| on(replicas, workload, clients)))
}

/// All numbers of replicas, at one load.
fn all_replicas(workload: Workload, clients: u32) -> Heat {
    heat(REPLICA_AXIS.map(|replicas| on(replicas, workload, clients)))
}

/// Figure 2.
pub fn read_only(extent: Extent) -> Figure {
    let most = extent.most();
    let response =
        |replicas: u32| extent.clients.iter().map(move |&n| (f64::from(n), of(on(replicas, A, n), name::MEAN_MS)));
    let by_replicas = |name: &'static str| REPLICA_AXIS.map(|n| (f64::from(n), of(on(n, A, most), name)));
    let mut heats: Vec<Heat> = extent.clients.iter().map(|&n| beside(A, n)).collect();
    heats.push(all_replicas(A, most));
    Figure {
        id: "fig2",
        title: "Figure 2: a client-server set-up against state-machine replication, queries only",
        paper: "Below saturation (28 clients) replication makes responses slower. Throughput grows up to four \
                replicas; with eight, delivering and discarding queries that others answer costs too much.",
        ours: "The baseline is the same server with one replica. A query is not ordered here: a replica drawn at \
               random answers it once its leader has confirmed that it still leads, so a replica does nothing for \
               queries that others answer. All nodes and the clients share the cores of this machine, so more \
               replicas cannot add throughput to what is measured directly; what shows whether they would on machines \
               of their own is the processor time of all nodes for a query (flat: nothing is lost by adding \
               replicas) and what a second of the busiest node's processor is good for.",
        heats,
        panels: vec![
            Panel {
                title: "Response",
                x: CLIENTS,
                y: RESPONSE,
                lines: vec![line("client-server", 0, 0, response(1)), line("3 replicas", 1, 0, response(REPLICAS))],
            },
            rates(
                "Throughput, all nodes and clients on the cores of this machine",
                ("replicas", Scale::Linear),
                Scale::Linear,
                vec![line("queries", 0, 0, by_replicas(name::COMMANDS))],
            ),
            rates(
                "Queries for a second of the busiest node's processor",
                ("replicas", Scale::Linear),
                Scale::Linear,
                vec![line("queries", 0, 0, by_replicas(name::PER_CORE))],
            ),
            Panel {
                title: "Processor time of all nodes for a query",
                x: ("replicas", Scale::Linear),
                y: ("microseconds", Scale::Linear),
                lines: vec![line("queries", 0, 0, by_replicas(name::NODES_US))],
            },
        ],
        checks: vec![
            check(
                "response, 3 replicas / client-server, fewest clients",
                "above 1",
                "x",
                ratio(on(REPLICAS, A, extent.fewest()), on(1, A, extent.fewest()), name::MEAN_MS),
                Goal::None,
            ),
            check(
                "queries for a second of the busiest node's processor, 4 replicas / 1",
                "grows to 4",
                "x",
                ratio(on(4, A, most), on(1, A, most), name::PER_CORE),
                Goal::None,
            ),
            check(
                "the same, 8 replicas / 4",
                "no more growth",
                "x",
                ratio(on(8, A, most), on(4, A, most), name::PER_CORE),
                Goal::AtLeast(1.0),
            ),
            check(
                "processor time of all nodes for a query, 8 replicas / 1",
                "grows",
                "x",
                ratio(on(8, A, most), on(1, A, most), name::NODES_US),
                Goal::AtMost(1.05),
            ),
        ],
    }
}

/// Figure 5.
pub fn against_one_server(extent: Extent) -> Figure {
    let line_of = |replicas: u32, workload: Workload, name: &'static str| {
        let points = extent.clients.iter().map(|&n| (f64::from(n), of(on(replicas, workload, n), name)));
        let legend = if replicas == 1 { "client-server".to_owned() } else { format!("{replicas} replicas") };
        line(legend, usize::from(replicas > 1), 0, points)
    };
    let both = |workload, name| [1, REPLICAS].map(|replicas| line_of(replicas, workload, name)).to_vec();
    let panel = |workload: Workload| {
        let title = |rate: &'static str, response: &'static str| [rate, response];
        let [rate, response] = match workload {
            A => title("Queries (a): throughput", "Queries (a): response"),
            B => title("Single updates (b): throughput", "Single updates (b): response"),
            C => title("Batched updates (c): throughput", "Batched updates (c): response"),
        };
        [
            rates(rate, CLIENTS, Scale::Linear, both(workload, name::COMMANDS)),
            Panel { title: response, x: CLIENTS, y: RESPONSE, lines: both(workload, name::MEAN_MS) },
        ]
    };
    let (most, fewest) = (extent.most(), extent.fewest());
    let pair = |workload, clients| (on(REPLICAS, workload, clients), on(1, workload, clients));
    let mut checks = Vec::new();
    for (workload, paper) in [(A, "about 1"), (B, "below 1"), (C, "about 1")] {
        let (replicated, plain) = pair(workload, most);
        let word = workload.title();
        let what = format!("{word}: throughput, 3 replicas / client-server, most clients");
        checks.push(check(what, paper, "x", ratio(replicated, plain, name::COMMANDS), Goal::None));
        let what = format!("{word}: commands for a second of the busiest node's processor, the same");
        checks.push(check(what, paper, "x", ratio(replicated, plain, name::PER_CORE), Goal::AtLeast(0.9)));
        let (replicated, plain) = pair(workload, fewest);
        let what = format!("{word}: response, the same, fewest clients");
        checks.push(check(what, "above 1", "x", ratio(replicated, plain, name::MEAN_MS), Goal::None));
    }
    Figure {
        id: "fig5",
        title: "Figure 5: state-machine replication against a client-server set-up, three workloads",
        paper: "For queries (a) and batched updates (c) replication costs no throughput: both are bound by the \
                processor. Single updates (b) are bound by the instances per second that Ring Paxos runs. Responses \
                are always slower; with few clients (c) waits for a packet to fill or time out.",
        ours: "Three replicas and the clients share the cores of this machine, and three logs its one disk. Of \
               updates every replica executes every one, so three replicas take at least three times the processor \
               time of one, and the throughput that is measured directly shows that and not the cost of \
               replication; commands for a second of the busiest node's processor show what a leader on a machine of \
               its own would do. An idle pipe sends at once: no client waits for a packet to fill. Every answered \
               update is on the disk of a majority, with or without replication; the paper wrote to no disk.",
        heats: [A, B, C].iter().flat_map(|&w| extent.clients.iter().map(move |&n| beside(w, n))).collect(),
        panels: [A, B, C].into_iter().flat_map(panel).collect(),
        checks,
    }
}

/// Figure 6.
pub fn by_replicas(extent: Extent) -> Figure {
    let most = extent.most();
    let lines = |name: &'static str| {
        let of = |(colour, workload): (usize, Workload)| {
            let points = REPLICA_AXIS.map(|n| (f64::from(n), of(on(n, workload, most), name)));
            line(workload.title(), colour, 0, points)
        };
        [A, B, C].into_iter().enumerate().map(of).collect::<Vec<_>>()
    };
    let x = ("replicas (1: client-server)", Scale::Linear);
    Figure {
        id: "fig6",
        title: "Figure 6: more replicas, three workloads, most clients",
        paper: "More replicas help queries. Updates gain nothing from them, since every replica takes part in every \
                one. Responses are slowest with eight replicas.",
        ours: "All replicas share the cores of this machine, so for updates what is measured directly falls with the \
               replicas' number; with machines of their own only what the leader does for another replica would \
               count: see the commands for a second of the busiest node's processor.",
        heats: [A, B, C].map(|workload| all_replicas(workload, most)).to_vec(),
        panels: vec![
            rates(
                "Throughput, all nodes and clients on the cores of this machine",
                x,
                Scale::Log,
                lines(name::COMMANDS),
            ),
            rates("Commands for a second of the busiest node's processor", x, Scale::Log, lines(name::PER_CORE)),
            Panel { title: "Response", x, y: RESPONSE, lines: lines(name::MEAN_MS) },
        ],
        checks: vec![
            check(
                "queries for a second of the busiest node's processor, 8 replicas / 1",
                "above 1",
                "x",
                ratio(on(8, A, most), on(1, A, most), name::PER_CORE),
                Goal::AtLeast(1.0),
            ),
            check(
                "single updates, the same",
                "not above 1",
                "x",
                ratio(on(8, B, most), on(1, B, most), name::PER_CORE),
                Goal::None,
            ),
            check(
                "batched updates, the same",
                "not above 1",
                "x",
                ratio(on(8, C, most), on(1, C, most), name::PER_CORE),
                Goal::None,
            ),
        ],
    }
}
