//! Names that the glossary has replaced do not come back: one thing has one name, the one of the field.

use std::collections::BTreeSet;

use super::{Complaints, Source, is_rust, without_comment};

/// A word or several in a row of an identifier, in snake case, and what to say. Words with an ordinary second meaning
/// (`rest`, `guard`, `look`) are not here.
const REPLACED: &[(&str, &str)] = &[
    ("ailments", "faults"),
    ("autopilot", "tuning"),
    ("birth", "create request"),
    ("borders", "boundaries"),
    ("desk", "coordinator host"),
    ("draft", "staging"),
    ("execute_lag_max", "apply_lag_max"),
    ("gate_escape", "gate timeout"),
    ("gate_held", "replies_held"),
    ("gate_wait", "reply_hold"),
    ("giver", "responder, or what gives"),
    ("handover", "leader transfer"),
    ("heir", "merge target"),
    ("inheritance", "absorbed state"),
    ("lane", "queue"),
    ("log_flush_batches", "log_flush_records"),
    ("look_around", "reconcile"),
    ("nonsense", "protocol error"),
    ("pacemaker", "tuning"),
    ("part_wait", "responder_connect_timeout"),
    ("pilot", "tuning model, or controller"),
    ("pump", "dispatch, or send"),
    ("reign", "leadership"),
    ("reporter", "placement acknowledger"),
    ("residents", "replica manager"),
    ("rest_interval", "quiesce_heartbeat_interval"),
    ("rouse", "wake"),
    ("shard", "worker, or partition"),
    ("shards", "workers, or partitions"),
    ("shed", "evict"),
    ("snapshot_pin", "scan_snapshot_max_age"),
    ("stories", "scenarios"),
    ("tier", "log certificate, search, or graph checker"),
    ("traps", "triggers"),
    ("trouble", "error, or reason"),
    ("troubles", "errors"),
    ("unborn", "pending create"),
    ("vigil", "liveness, or failure detector"),
    ("witness", "incarnation fencing"),
    ("witnesses", "known incarnations"),
];

/// Identifiers of Rust code that hold a replaced word.
pub fn names(sources: &[Source]) -> Complaints {
    let mut complaints = Complaints::new();
    let patterns: Vec<String> = REPLACED.iter().map(|(old, _)| format!("_{old}_")).collect();
    let mut clean = BTreeSet::new();
    for source in sources.iter().filter(|source| is_rust(source)) {
        for (index, line) in source.text.lines().enumerate() {
            let code = without_strings(without_comment(line));
            for identifier in code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
                if clean.contains(identifier) {
                    continue;
                }
                let words = format!("_{}_", snake_case(identifier));
                match patterns.iter().position(|pattern| words.contains(pattern)) {
                    Some(at) => {
                        let ((old, new), path) = (REPLACED[at], &source.path);
                        complaints.push(format!("{path}:{}: {identifier}: not {old}, but {new}", index + 1));
                    }
                    None => _ = clean.insert(identifier.to_owned()),
                }
            }
        }
    }
    complaints
}

/// What stands outside of quotes. A string of several lines is read as code.
fn without_strings(code: &str) -> String {
    code.replace("\\\"", "").split('"').step_by(2).collect::<Vec<_>>().join(" ")
}

/// `LeaderTransfer` and `LEADER_TRANSFER` are `leader_transfer`.
fn snake_case(identifier: &str) -> String {
    let mut snake = String::new();
    let mut was_lower = false;
    for c in identifier.chars() {
        if c.is_ascii_uppercase() && was_lower {
            snake.push('_');
        }
        was_lower = c.is_ascii_lowercase() || c.is_ascii_digit();
        snake.push(c.to_ascii_lowercase());
    }
    snake
}
