//! The order of rooms inside a crate: a module imports from those below it, never from one above.

use super::{Complaints, Source, code, is_rust};

/// The modules of a crate, from the lowest to the highest.
struct Order {
    /// Where its sources are.
    below: &'static str,
    modules: &'static [&'static str],
}

/// Crates whose modules stand in an order.
const ORDERS: &[Order] = &[
    Order {
        below: "client/src/",
        modules: &[
            "time",
            "ids",
            "serde_bytes",
            "double_collect",
            "token",
            "map",
            "wire",
            "resume",
            "command",
            "error",
            "tls",
            "resolve",
            "channel",
            "dial",
            "connection",
            "config",
            "session",
            "shared",
            "handle",
            "driver",
            "range",
            "client",
            "admin",
            "blocking",
        ],
    },
    Order {
        below: "client/transfer/src/",
        modules: &[
            "text",
            "error",
            "chunk",
            "storage",
            "manifest",
            "directory",
            "load",
            "backup",
            "restore",
            "rows",
            "import",
            "export",
        ],
    },
    Order {
        below: "btree/src/",
        modules: &[
            "value", "key", "digest", "search", "node", "capacity", "fix", "join", "split", "settle", "descent",
            "insert", "remove", "rank", "check", "run", "undo", "update", "op", "snapshot", "iter", "mutants", "tree",
            "execute", "bulk", "cursor",
        ],
    },
    Order {
        below: "ordering/src/",
        modules: &[
            "ids",
            "batch",
            "quorum",
            "slots",
            "message",
            "step",
            "trace",
            "counters",
            "settings",
            "acceptor",
            "learner",
            "election",
            "reads",
            "window",
            "batcher",
            "heartbeats",
            "retransmission",
            "proposer",
            "paxos",
            "tuning",
            "multicast",
            "mutants",
        ],
    },
    Order {
        below: "loadgen/src/",
        modules: &[
            "say", "units", "random", "machine", "metrics", "svg", "workload", "record", "target", "runner", "report",
            "app", "main",
        ],
    },
    Order {
        below: "server/core/src/",
        modules: &[
            "ids",
            "incarnation",
            "access",
            "resp",
            "cost",
            "failure_detector",
            "majority",
            "checkpoint_due",
            "replay",
            "sessions",
            "settings",
            "wire",
            "handshake",
            "status",
            "digests",
            "multicast",
            "sizes",
            "scan",
            "machine",
            "bounds",
            "question",
            "survey",
            "executor",
            "request",
            "wire_reply",
            "collects",
            "replica",
            "snapshot",
            "roll_forward",
            "reshape",
            "bootstrap",
            "replica_manager",
            "worker",
            "connection",
            "controller",
        ],
    },
    Order {
        below: "server/src/",
        modules: &[
            "random",
            "task",
            "exit",
            "text",
            "cores",
            "busy_poll",
            "logging",
            "config",
            "process",
            "metrics",
            "status_view",
            "files",
            "mailbox",
            "durable",
            "certs",
            "page",
            "admin_http",
            "log",
            "datadir",
            "checkpoint",
            "start_error",
            "net",
            "messages",
            "shared",
            "rpc",
            "resp",
            "worker_thread",
            "control",
            "node",
            "local",
            "cli",
            "demo",
            "program",
            "main",
        ],
    },
    Order { below: "loadgen/figures/src/", modules: &["args", "site", "paper", "versus", "main"] },
    Order {
        below: "tests/lab/src/",
        modules: &["link", "load", "figures", "relay", "cluster", "scenes", "cli", "bin"],
    },
    Order { below: "tests/model/src/", modules: &["search", "paxos", "tickets", "cli"] },
    Order { below: "tests/planted/src/", modules: &["failpoints", "mutants"] },
    Order {
        below: "tests/testkit/src/",
        modules: &["caught", "hazards", "object_store", "poll", "random", "resp", "say", "serve", "variant", "process"],
    },
    Order {
        below: "tests/tidy/src/",
        modules: &[
            "citations",
            "failpoint_names",
            "hazard_table",
            "log_messages",
            "manifests",
            "mutant_names",
            "names",
            "rooms",
            "types",
        ],
    },
    Order { below: "tests/words/src/", modules: &[] },
    Order {
        below: "tests/check/src/",
        modules: &[
            "event",
            "intern",
            "marks",
            "faults",
            "history",
            "json",
            "state",
            "write",
            "brute",
            "generate",
            "read",
            "record",
            "verdict",
            "build",
            "cycle",
            "facts",
            "timeline",
            "certificate",
            "beyond",
            "search",
            "graph",
            "diff",
            "cli",
            "tests",
        ],
    },
    Order {
        below: "tests/cluster/src/",
        modules: &[
            "mark_mover",
            "cuts",
            "effects",
            "dump",
            "failpoints",
            "harm",
            "proxy",
            "resources",
            "space",
            "strace",
            "tools",
            "counters",
            "draw",
            "kernel",
            "power",
            "links",
            "nodes",
            "workload",
            "resp",
            "fairness",
            "kinds",
            "matrix",
            "security",
            "figures",
            "setup",
            "judged",
            "report",
            "shape",
            "nemesis",
            "disk_faults",
            "fail",
            "round",
            "command",
            "cli",
            "bin",
        ],
    },
    Order {
        below: "tests/sim/src/",
        modules: &[
            "found",
            "plan",
            "wide",
            "draw",
            "trace",
            "fingerprint",
            "damage",
            "net",
            "store",
            "groups",
            "known",
            "content",
            "ledger",
            "tickets",
            "watermarks",
            "oracle",
            "positions",
            "account",
            "coverage",
            "lines",
            "client",
            "events",
            "faults",
            "control_thread",
            "incarnations",
            "node",
            "world",
            "forming",
            "control",
            "stops",
            "processes",
            "steps",
            "workers",
            "snapshots",
            "endpoints",
            "clients",
            "copies",
            "members",
            "operators",
            "harm",
            "triggers",
            "observe",
            "phases",
            "watch",
            "panics",
            "failing",
            "sweep",
            "shrink",
            "schedule",
            "planted",
            "scripts",
            "exhaustive",
            "during",
            "cli",
            "bin",
        ],
    },
];

/// Modules that import from one above them, that the order does not know, or of which it knows and there is none.
pub fn rooms(sources: &[Source]) -> Complaints {
    let mut complaints = Complaints::new();
    for Order { below, modules } in ORDERS {
        let all = sources.iter().filter(|source| is_rust(source));
        let inside: Vec<(&str, &Source)> =
            all.filter_map(|source| Some((module_of(source.path.strip_prefix(below)?), source))).collect();
        let place = |module: &str| modules.iter().position(|known| *known == module);
        for &(module, source) in inside.iter().filter(|(module, _)| *module != "lib") {
            let Some(own) = place(module) else {
                complaints.push(format!("{}: {module} has no place in the order of rooms", source.path));
                continue;
            };
            if source.path.ends_with("/tests.rs") || source.path.contains("/tests/") {
                continue;
            }
            for (number, line) in code(&source.text) {
                let depth = depth_of(source.path.strip_prefix(below).unwrap_or_default());
                for above in imported(line, depth).filter(|name| place(name).is_some_and(|other| other > own)) {
                    complaints.push(format!("{}:{number}: {module} imports upward, from {above}", source.path));
                }
            }
        }
        if inside.len() > 1 {
            let exists = |name: &str| inside.iter().any(|(module, _)| *module == name);
            let gone = modules.iter().filter(|name| !exists(name));
            complaints.extend(gone.map(|name| format!("{below}: no module {name}, which the order of rooms names")));
        }
    }
    complaints
}

/// The top module of a file of a crate.
fn module_of(path: &str) -> &str {
    let first = path.split('/').next().unwrap_or(path);
    first.strip_suffix(".rs").unwrap_or(first)
}

/// How many modules a file of a crate is in.
fn depth_of(path: &str) -> usize {
    path.split('/').filter(|part| !["mod.rs", "lib.rs", "main.rs"].contains(part)).count()
}

/// The modules of its own crate that a line names, in a file that many modules deep: behind `crate::`, or behind as
/// many `super::` as lead there.
fn imported(line: &str, depth: usize) -> impl Iterator<Item = &str> {
    let roots = ["crate::".to_owned(), "super::".repeat(depth.max(1))];
    roots.into_iter().flat_map(move |root| {
        let places: Vec<usize> = line.match_indices(&root).map(|(at, _)| at + root.len()).collect();
        places.into_iter().flat_map(|at| names(&line[at..]))
    })
}

/// The name that `text` begins with, or those of a list in braces.
fn names(text: &str) -> Vec<&str> {
    let end = |text: &str| text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    match text.strip_prefix('{') {
        None => vec![&text[..end(text)]],
        Some(list) => list.split(',').map(str::trim).map(|item| &item[..end(item)]).collect(),
    }
}
