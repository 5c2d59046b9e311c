//! Rules on manifests: who may import whom, what may come from outside, how many.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use super::{Complaints, Source};

/// A crate of ours, the crates of ours that it may import, and those from outside.
struct Room {
    name: &'static str,
    ours: &'static [&'static str],
    outside: &'static [&'static str],
}

/// Normal and build dependencies. Dev ones are free, except that nothing outside of `tests` imports what judges it; the
/// test kit judges nothing.
const ROOMS: &[Room] = &[
    Room { name: PLANTED, ours: &[], outside: &[] },
    Room { name: USAGE, ours: &[], outside: &["clap", "serde_json"] },
    Room { name: "coppice-btree", ours: &[PLANTED], outside: &["bytes", "serde"] },
    Room { name: "coppice-ordering", ours: &[PLANTED], outside: &["bytes", "serde"] },
    Room {
        name: "coppice-client",
        ours: &["coppice-btree", PLANTED],
        outside: &[
            "bytes",
            "crc32c",
            "futures-core",
            "postcard",
            "ring",
            "rustls",
            "rustls-webpki",
            "serde",
            "serde_json",
            "thiserror",
            "tokio",
            "toml",
        ],
    },
    Room {
        name: "coppice-transfer",
        ours: &["coppice-btree", "coppice-client", PLANTED],
        outside: &[
            "async-trait",
            "bytes",
            "crc32c",
            "csv-core",
            "http-body-util",
            "hyper-rustls",
            "hyper-util",
            "object_store",
            "ring",
            "rustls",
            "serde",
            "serde_json",
            "thiserror",
            "tokio",
        ],
    },
    Room {
        name: "coppice-core",
        ours: &["coppice-btree", "coppice-client", "coppice-ordering", PLANTED],
        outside: &["bytes", "crc32c", "postcard", "serde", "thiserror"],
    },
    Room {
        name: "coppice-server",
        ours: &[
            "coppice-btree",
            "coppice-client",
            "coppice-core",
            "coppice-ordering",
            PLANTED,
            "coppice-transfer",
            USAGE,
        ],
        outside: &[
            "anyhow",
            "axum",
            "bytes",
            "clap",
            "clap_complete",
            "clap_mangen",
            "comfy-table",
            "core_affinity",
            "crc32c",
            "crossbeam",
            "crossbeam-epoch",
            "futures-core",
            "indicatif",
            "mimalloc",
            "postcard",
            "prometheus-client",
            "rcgen",
            "rustix",
            "rustyline",
            "serde",
            "serde_json",
            "sled",
            "socket2",
            "thiserror",
            "tokio",
            "toml",
            "tracing",
            "tracing-subscriber",
        ],
    },
    Room {
        name: "coppice-loadgen",
        ours: &["coppice-btree", "coppice-client", USAGE],
        outside: &[
            "anyhow",
            "bytes",
            "clap",
            "comfy-table",
            "hdrhistogram",
            "indicatif",
            "mimalloc",
            "rustix",
            "serde",
            "serde_json",
            "thiserror",
            "tokio",
        ],
    },
    Room {
        name: "coppice-figures",
        ours: &["coppice-client", "coppice-loadgen", "coppice-testkit", USAGE],
        outside: &["clap", "comfy-table", "mimalloc", "serde", "serde_json", "tokio"],
    },
    Room {
        name: MODEL,
        ours: &["coppice-btree", "coppice-client", "coppice-core", "coppice-ordering", PLANTED],
        outside: &["bytes", "clap"],
    },
    Room { name: "coppice-testkit", ours: &[], outside: &["rustix"] },
    Room { name: "coppice-tidy", ours: &["coppice-testkit"], outside: &["serde_json"] },
    Room { name: "coppice-check", ours: &[PLANTED, "coppice-testkit"], outside: &["clap"] },
    Room {
        name: "coppice-words",
        ours: &["coppice-btree", "coppice-check", "coppice-client", "coppice-ordering"],
        outside: &["bytes"],
    },
    Room {
        name: "coppice-sim",
        ours: &[
            "coppice-btree",
            "coppice-check",
            "coppice-client",
            "coppice-core",
            MODEL,
            "coppice-ordering",
            "coppice-server",
            "coppice-testkit",
            "coppice-tidy",
            USAGE,
            "coppice-words",
        ],
        outside: &["bytes", "clap", "postcard", "rustix", "serde", "serde_json"],
    },
    Room {
        name: "coppice-cluster",
        ours: &[
            "coppice-btree",
            "coppice-check",
            "coppice-client",
            "coppice-core",
            "coppice-loadgen",
            "coppice-ordering",
            PLANTED,
            "coppice-server",
            "coppice-testkit",
            USAGE,
            "coppice-words",
        ],
        outside: &["bytes", "clap", "postcard", "rustix", "serde_json", "tokio"],
    },
    Room {
        name: "coppice-lab",
        ours: &[
            "coppice-client",
            "coppice-cluster",
            "coppice-core",
            "coppice-loadgen",
            "coppice-ordering",
            "coppice-server",
            "coppice-testkit",
            USAGE,
        ],
        outside: &["bytes", "clap", "tokio"],
    },
];

/// The crates that judge or measure the others, and that none of the others imports.
const TESTS: &[&str] = &[
    "coppice-figures",
    TESTKIT,
    "coppice-tidy",
    "coppice-check",
    "coppice-words",
    "coppice-sim",
    "coppice-cluster",
    "coppice-lab",
];
/// What tests of any crate may use.
const TESTKIT: &str = "coppice-testkit";
/// Planted bugs and failpoints, which know no crate of ours.
const PLANTED: &str = "coppice-planted";
/// Mistakes on command lines.
const USAGE: &str = "coppice-usage";
/// The searches of small worlds, which only the simulator imports.
const MODEL: &str = "coppice-model";

/// What `cargo metadata` says.
#[derive(Clone, Debug)]
pub struct Metadata(pub Value);

impl Metadata {
    /// Asks cargo, for this machine's target; nothing is built.
    pub fn read(more: &[&str]) -> Result<Self, String> {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let host = host(&cargo)?;
        let output = Command::new(cargo)
            .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", &host])
            .args(more)
            .current_dir(super::root())
            .output()
            .map_err(|error| format!("cargo metadata: {error}"))?;
        if !output.status.success() {
            return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
        }
        serde_json::from_slice(&output.stdout).map(Self).map_err(|error| format!("cargo metadata: {error}"))
    }

    fn packages(&self) -> impl Iterator<Item = &Value> {
        self.0["packages"].as_array().into_iter().flatten()
    }

    /// Package id to name, of the workspace's members.
    fn members(&self) -> BTreeMap<&str, &str> {
        let ids: BTreeSet<&str> = self.0["workspace_members"].as_array().into_iter().flatten().flat_map(text).collect();
        let named = self.packages().filter_map(|package| Some((text(&package["id"])?, text(&package["name"])?)));
        named.filter(|(id, _)| ids.contains(id)).collect()
    }
}

fn text(value: &Value) -> Option<&str> {
    value.as_str()
}

fn host(cargo: &str) -> Result<String, String> {
    let output = Command::new(cargo).arg("-vV").output().map_err(|error| format!("cargo -vV: {error}"))?;
    let says = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = says.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| format!("cargo -vV names no host: {says}"))
}

/// Imports against the direction, crates from outside that are not on the list, and rooms that the list does not know.
pub fn imports(metadata: &Metadata) -> Complaints {
    let members = metadata.members();
    let mut complaints = Complaints::new();
    for package in metadata.packages() {
        let (Some(id), Some(name)) = (text(&package["id"]), text(&package["name"])) else { continue };
        if !members.contains_key(id) {
            continue;
        }
        let room = ROOMS.iter().find(|room| room.name == name);
        if room.is_none() {
            complaints.push(format!("{name}: not in the table of rooms"));
        }
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let Some(imported) = text(&dependency["name"]) else { continue };
            let kit = imported == TESTKIT && text(&dependency["kind"]) == Some("dev");
            if TESTS.contains(&imported) && !TESTS.contains(&name) && !kit {
                complaints.push(format!("{name} imports {imported}"));
            }
            let (Some(room), None | Some("build")) = (room, text(&dependency["kind"])) else { continue };
            // It comes with the feature that one test has: a dev dependency in all but name.
            if imported == "loom" {
                continue;
            }
            if !room.ours.contains(&imported) && !room.outside.contains(&imported) {
                complaints.push(format!("{name} imports {imported}, which is not among its allowed imports"));
            }
        }
    }
    complaints
}

/// How many crates a build of all programs compiles, ours included, tests and their tools not.
pub fn crate_counts(metadata: &Metadata) -> usize {
    let members = metadata.members();
    let nodes: BTreeMap<&str, &Value> = metadata.0["resolve"]["nodes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|node| Some((text(&node["id"])?, node)))
        .collect();
    let programs = members.iter().filter(|(_, name)| !TESTS.contains(name) && **name != MODEL);
    let mut waiting: Vec<&str> = programs.map(|(id, _)| *id).collect();
    let mut reached = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if !reached.insert(id) {
            continue;
        }
        for dependency in nodes.get(id).and_then(|node| node["deps"].as_array()).into_iter().flatten() {
            let kinds = dependency["dep_kinds"].as_array().into_iter().flatten();
            let built = kinds.map(|kind| text(&kind["kind"])).any(|kind| matches!(kind, None | Some("build")));
            waiting.extend(text(&dependency["pkg"]).filter(|_| built));
        }
    }
    reached.len()
}

/// From the root, without naming a package: `cargo run` is the server, `cargo test` and `cargo build` are everything.
pub fn workspace_shape(sources: &[Source]) -> Complaints {
    let mut complaints = Complaints::new();
    let manifest = |path: &str| sources.iter().find(|source| source.path == path).map_or("", |source| &source.text);
    let root = manifest("Cargo.toml");
    let has = |text: &str, wanted: &str| text.lines().any(|line| line.trim_end().starts_with(wanted));
    if !has(root, "[workspace]") || has(root, "[package]") {
        complaints.push("Cargo.toml: the root is not a virtual workspace".into());
    }
    if has(root, "default-members") {
        complaints.push("Cargo.toml: default-members hides crates from plain `cargo test`".into());
    }
    for source in sources {
        let Some(room) = source.path.strip_suffix("/Cargo.toml") else { continue };
        let runs = has(&source.text, "default-run = \"coppice\"");
        if runs != (room == "server") {
            complaints.push(format!("{}: server alone sets default-run", source.path));
        }
        if !source.text.contains("[lints]\nworkspace = true") {
            complaints.push(format!("{}: does not take the workspace's lints", source.path));
        }
        for line in source.text.lines().filter(|line| line.contains("version = \"") && line.contains('{')) {
            complaints.push(format!("{}: a version outside the root manifest: {line}", source.path));
        }
    }
    complaints
}
