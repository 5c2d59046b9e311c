//! The page of all figures: beside each what the paper says, what was measured here, and how.

use std::fmt::Write;

use serde_json::json;

use super::plan::{Check, Figure, Goal, Results};
use coppice_loadgen::machine::Machine;
use coppice_loadgen::svg::escape;
use coppice_loadgen::units::significant;

/// What stands above all figures.
pub struct Head {
    pub paper: &'static str,
    /// The command line.
    pub command: String,
    /// How everything was measured, in sentences.
    pub how: String,
    pub machine: Machine,
    /// Source revisions that were measured.
    pub commits: Vec<String>,
}

/// A check as text: ours, ours beside the paper's, whether the goal is met.
struct Row {
    ours: String,
    goal: String,
    met: &'static str,
}

fn row(check: &Check, results: &Results) -> Row {
    let number = |value: f64| format!("{}{}", significant(value), check.unit);
    let goal = match check.goal {
        Goal::AtLeast(least) => format!("at least {}", number(least)),
        Goal::AtMost(most) => format!("at most {}", number(most)),
        Goal::None => String::new(),
    };
    match check.value.of(results) {
        None => Row { ours: "not measured".to_owned(), goal, met: "" },
        Some(spread) => Row {
            ours: match spread.rounds {
                1 => number(spread.median),
                rounds => format!(
                    "{} ({} to {}, {rounds} rounds)",
                    number(spread.median),
                    significant(spread.low),
                    significant(spread.high)
                ),
            },
            met: match check.goal.met(spread.median) {
                Some(true) => "met",
                Some(false) => "missed",
                None => "",
            },
            goal,
        },
    }
}

/// The checks of a figure for a terminal.
pub fn lines(figure: &Figure, results: &Results) -> String {
    let mut out = format!("{}  {}\n", figure.id, figure.title);
    for check in &figure.checks {
        let Row { ours, goal, met } = row(check, results);
        let verdict = if met.is_empty() { String::new() } else { format!("; {goal}: {met}") };
        let _ = writeln!(out, "    {}: paper {}; ours {ours}{verdict}", check.what, check.paper);
    }
    out
}

/// The same as one line of JSON.
pub fn object(figure: &Figure, results: &Results) -> String {
    let check = |check: &Check| {
        let spread = check.value.of(results);
        json!({
            "what": check.what, "paper": check.paper, "ours": spread.map(|spread| spread.median),
            "lowest": spread.map(|spread| spread.low), "highest": spread.map(|spread| spread.high),
            "met": spread.and_then(|spread| check.goal.met(spread.median)),
        })
    };
    let checks: Vec<_> = figure.checks.iter().map(check).collect();
    json!({"v": 1, "figure": figure.id, "title": figure.title, "checks": checks}).to_string()
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;\
color:#222;background:#fff}h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.5rem}table{border-collapse:collapse}\
td,th{border-bottom:1px solid #ccc;padding:.25rem .6rem;text-align:left;vertical-align:top}img{max-width:100%}\
.missed{font-weight:600}code{overflow-wrap:anywhere}\
@media(prefers-color-scheme:dark){body{color:#ddd;background:#1b1b1b}td,th{border-color:#444}a{color:#8bf}}";

/// The page, with the figures that have a picture.
pub fn page(head: &Head, figures: &[(&Figure, &Results, bool)]) -> String {
    let Machine { cpu, kernel, memory_bytes, disk, .. } = &head.machine;
    let gib = memory_bytes >> 30;
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title><style>{STYLE}</style></head>\
         <body>\n<h1>{0}</h1>\n<p><code>{1}</code></p>\n<p>{2}</p>\n<p>Machine: {3}, {gib} GiB, {4}, Linux {5}. \
         Measured: {6}.</p>\n",
        escape(head.paper),
        escape(&head.command),
        escape(&head.how),
        escape(cpu),
        escape(disk),
        escape(kernel),
        escape(&head.commits.join(", "))
    );
    for (figure, results, drawn) in figures {
        section(figure, results, *drawn, &mut out);
    }
    out.push_str("</body></html>\n");
    out
}

fn section(figure: &Figure, results: &Results, drawn: bool, out: &mut String) {
    // Writing to a String never fails; the results are dropped for that reason.
    let id = figure.id;
    let _ = writeln!(out, "<h2 id=\"{id}\">{}</h2>", escape(figure.title));
    let _ = writeln!(out, "<p>The paper: {}</p>", escape(figure.paper));
    if drawn {
        let _ = writeln!(out, "<p><img src=\"{id}.svg\" alt=\"{}\"></p>", escape(figure.title));
        let _ = writeln!(out, "<p>Points: <a href=\"{id}.csv\">{id}.csv</a></p>");
    } else {
        out.push_str("<p>Not measured yet.</p>\n");
    }
    out.push_str("<table><tr><th></th><th>paper</th><th>ours</th><th>goal</th><th></th></tr>\n");
    for check in &figure.checks {
        let Row { ours, goal, met } = row(check, results);
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"{met}\">{met}</td></tr>",
            escape(&check.what),
            escape(check.paper),
            escape(&ours),
            escape(&goal)
        );
    }
    let _ = writeln!(out, "</table>\n<p>Ours: {}</p>", escape(figure.ours));
}
