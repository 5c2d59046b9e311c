//! A figure as a picture and as a table of its points.

use std::fmt::Write;

use super::plan::{Figure, Panel, Results};
use coppice_loadgen::svg::{self, Chart, Series};

/// The picture, with those points that were measured; none: nothing was.
pub fn picture(figure: &Figure, results: &Results) -> Option<String> {
    let charts: Vec<Chart> = figure.panels.iter().map(|panel| chart(panel, results)).collect();
    let empty = charts.iter().all(|chart| chart.series.is_empty());
    (!empty).then(|| svg::render(&charts))
}

fn chart(panel: &Panel, results: &Results) -> Chart {
    let series = |line: &super::plan::Line| {
        let measured = line.points.iter().filter_map(|(x, value)| Some((*x, value.of(results)?.median)));
        let points: Vec<(f64, f64)> = measured.collect();
        let (colour, dash) = (line.colour, line.dash);
        (!points.is_empty()).then(|| Series { name: line.name.clone(), points, colour, dash, dots: false })
    };
    Chart {
        title: panel.title.to_owned(),
        x_label: panel.x.0.to_owned(),
        y_label: panel.y.0.to_owned(),
        x_scale: panel.x.1,
        y_scale: panel.y.1,
        series: panel.lines.iter().filter_map(series).collect(),
    }
}

/// The table: a line for each point that was measured.
pub fn table(figure: &Figure, results: &Results) -> String {
    let mut out = "panel,line,x,value,lowest,highest,rounds\n".to_owned();
    for panel in &figure.panels {
        for line in &panel.lines {
            for (x, value) in &line.points {
                let Some(spread) = value.of(results) else { continue };
                let (median, low, high, rounds) = (spread.median, spread.low, spread.high, spread.rounds);
                let (title, name) = (quoted(panel.title), quoted(&line.name));
                // Writing to a String never fails.
                let _ = writeln!(out, "{title},{name},{x},{median:.4},{low:.4},{high:.4},{rounds}");
            }
        }
    }
    out
}

/// A field of CSV.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}
