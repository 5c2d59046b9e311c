//! A violation as one HTML page with one drawing, readable without any other file: operations as bars over time, and
//! arrows from each operation of the cycle to the next.

use std::fmt::Write;

use super::event::{NEVER, text_of};
use super::history::{History, Kind};
use super::verdict::{Violation, Why, describe, duration, reason, short};

/// Pixels of the drawing.
const WIDTH: f64 = 1_000.0;
const LEFT: f64 = 180.0;
const ROW: f64 = 64.0;
const BAR: f64 = 22.0;
const TOP: f64 = 40.0;

/// The page.
pub fn html(history: &History, violation: &Violation) -> String {
    let mut page = String::from(concat!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Coppice: a violation</title>\n<style>\n",
        ":root{--ink:#1b1f24;--paper:#fff;--faint:#d8dee4;--bar:#bcd7f5;--edge:#2f6db5;--bad:#b3261e}\n",
        "@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#0d1117;--faint:#30363d;--bar:#1f3b5c;",
        "--edge:#7db3f0;--bad:#ff8a80}}\n",
        "body{background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif;max-width:1040px;margin:2em auto;",
        "padding:0 1em}\nsvg{width:100%;height:auto}svg text{fill:var(--ink);font:13px system-ui,sans-serif}\n",
        ".bar{fill:var(--bar);stroke:var(--edge)}.axis{stroke:var(--faint)}.arrow{stroke:var(--bad);fill:none;",
        "stroke-width:2}.head{fill:var(--bad)}.open{stroke-dasharray:4 3}\ncode{font-size:13px}li{margin:.4em 0}\n",
        "</style></head><body>\n"
    ));
    let _ = writeln!(page, "<h1>{}</h1>", escape(&violation.what));
    let run = [("commit", &history.commit), ("seed", &history.seed)];
    let run: Vec<String> = run
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("{name} {}", escape(value)))
        .collect();
    let _ = writeln!(page, "<p>{}</p>", run.join(", "));
    let rows = rows(history, violation);
    if !rows.is_empty() {
        drawing(&mut page, history, violation, &rows);
    }
    if !violation.cycle.is_empty() {
        page += "<p>Each of these must be before the next, and the last before the first:</p>\n<ol>\n";
        for link in &violation.cycle {
            let _ = writeln!(
                page,
                "<li><b>{}</b> is before <b>{}</b>: {}</li>",
                escape(&short(history, link.from)),
                escape(&short(history, link.to)),
                escape(&reason(history, link))
            );
        }
        page += "</ol>\n";
    }
    page += "<ul>\n";
    for index in &rows {
        let _ = writeln!(
            page,
            "<li><code>{}</code></li>",
            escape(&describe(history, &history.operations[*index as usize]))
        );
    }
    for note in &violation.notes {
        let _ = writeln!(page, "<li>{}</li>", escape(note));
    }
    page + "</ul>\n</body></html>\n"
}

/// The operations to draw, in order of invocation.
fn rows(history: &History, violation: &Violation) -> Vec<u32> {
    let mut rows: Vec<u32> =
        violation.cycle.iter().map(|link| link.from).chain(violation.about.iter().copied()).collect();
    rows.retain(|index| (*index as usize) < history.operations.len());
    rows.sort_unstable();
    rows.dedup();
    rows
}

fn drawing(page: &mut String, history: &History, violation: &Violation, rows: &[u32]) {
    let operation = |index: u32| &history.operations[index as usize];
    let start = rows.iter().map(|index| operation(*index).invoked).min().unwrap_or(0);
    let ends = rows.iter().map(|index| operation(*index).returned).filter(|returned| *returned != NEVER);
    let latest = rows.iter().map(|index| operation(*index).invoked).max().unwrap_or(0);
    let end = ends.chain([latest]).max().unwrap_or(0).max(start + 1);
    let scale = (WIDTH - LEFT - 20.0) / (end - start) as f64;
    let x = |at: u64| LEFT + (at.min(end) - start) as f64 * scale;
    let y = |index: u32| TOP + ROW * rows.partition_point(|row| *row < index) as f64;
    let height = TOP + ROW * rows.len() as f64;
    let _ = writeln!(page, "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"timeline\">");
    page.push_str(concat!(
        "<defs><marker id=\"a\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" ",
        "orient=\"auto-start-reverse\"><path class=\"head\" d=\"M0 0L8 4L0 8z\"/></marker></defs>\n"
    ));
    for tick in 0..=4_u64 {
        let at = start + (end - start) * tick / 4;
        let x = x(at);
        let _ = writeln!(page, "<line class=\"axis\" x1=\"{x:.1}\" y1=\"22\" x2=\"{x:.1}\" y2=\"{height}\"/>");
        let _ = writeln!(page, "<text x=\"{x:.1}\" y=\"16\" text-anchor=\"middle\">{}</text>", duration(at));
    }
    for &index in rows {
        let each = operation(index);
        let (left, right, top) = (x(each.invoked), x(each.returned), y(index));
        let open = if each.returned == NEVER { " open" } else { "" };
        let width = (right - left).max(3.0);
        let _ = writeln!(
            page,
            "<rect class=\"bar{open}\" x=\"{left:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"{BAR}\" rx=\"3\"><title>{}</title></rect>",
            escape(&describe(history, each))
        );
        let _ = writeln!(
            page,
            "<text x=\"4\" y=\"{}\">c{} {}</text>",
            top + 15.0,
            each.client,
            escape(&short(history, index))
        );
        let _ =
            writeln!(page, "<text x=\"{LEFT}\" y=\"{}\">{}</text>", top + BAR + 15.0, escape(&label(history, index)));
    }
    for link in &violation.cycle {
        let (from, to) = (operation(link.from), operation(link.to));
        let middle = |invoked: u64, returned: u64| (x(invoked) + x(returned)) / 2.0;
        let time = link.why == Why::Time;
        let from_x = if time { x(from.returned) } else { middle(from.invoked, from.returned) };
        let to_x = if time { x(to.invoked) } else { middle(to.invoked, to.returned) };
        let down = y(link.to) > y(link.from);
        let from_y = y(link.from) + if down { BAR } else { 0.0 };
        let to_y = y(link.to) + if down { 0.0 } else { BAR };
        let bend = (from_x + to_x) / 2.0 + if down { 30.0 } else { -30.0 };
        let _ = writeln!(
            page,
            "<path class=\"arrow\" marker-end=\"url(#a)\" d=\"M{from_x:.1} {from_y}Q{bend:.1} {:.1} {to_x:.1} {to_y}\"><title>{}</title></path>",
            (from_y + to_y) / 2.0,
            escape(&reason(history, link))
        );
    }
    page.push_str("</svg>\n");
}

/// What an operation did, short enough to stand under its bar.
fn label(history: &History, index: u32) -> String {
    const LENGTH_MAX: usize = 110;
    let operation = &history.operations[index as usize];
    let text = describe(history, operation);
    let text = text.split("  (c").next().unwrap_or(&text);
    let text = match operation.kind() {
        Kind::Many => text.to_string(),
        kind => text.trim_start_matches(kind.name()).trim_start().to_string(),
    };
    if text.chars().count() <= LENGTH_MAX {
        return text;
    }
    text.chars().take(LENGTH_MAX).collect::<String>() + " .."
}

fn escape(text: &str) -> String {
    let text = text_of(text.as_bytes());
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
