//! The pictures of runs: throughput and latency over time, percentiles, latency against throughput, batch and
//! window. Several runs lie over each other, a colour each.

use super::RunFile;
use crate::svg::{self, Chart, Scale, Series};

/// A run and the name that the legend gives it; the only run of a picture needs none.
pub type Named<'a> = (String, &'a RunFile);

/// File names and contents.
pub fn of_runs(runs: &[Named<'_>]) -> Vec<(String, String)> {
    let pictures: [(&str, Vec<Chart>); 4] = [
        ("time.svg", vec![throughput(runs), latency(runs)]),
        ("percentiles.svg", vec![percentiles(runs)]),
        ("latency-throughput.svg", vec![latency_against_throughput(runs)]),
        ("ordering.svg", vec![batch(runs), window(runs)]),
    ];
    let drawn = pictures.into_iter().filter(|(_, charts)| charts.iter().any(|chart| !chart.series.is_empty()));
    drawn.map(|(name, charts)| (name.to_owned(), svg::render(&charts))).collect()
}

fn chart(title: &str, x_label: &str, y_label: &str, x_scale: Scale, y_scale: Scale) -> Chart {
    let own = str::to_owned;
    Chart { title: own(title), x_label: own(x_label), y_label: own(y_label), x_scale, y_scale, series: Vec::new() }
}

/// `run p99`, or `p99` where there is one run.
fn named(run: &str, line: &str) -> String {
    [run, line].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

fn add(chart: &mut Chart, name: String, (colour, dash): (usize, usize), points: Vec<(f64, f64)>) {
    if !points.is_empty() {
        chart.series.push(Series { name, points, colour, dash, dots: false });
    }
}

const TIME: &str = "seconds since the start";

fn throughput(runs: &[Named<'_>]) -> Chart {
    let mut chart = chart("Throughput", TIME, "per second", Scale::Linear, Scale::Linear);
    for (index, (name, run)) in runs.iter().enumerate() {
        let points = run.slices.iter().map(|row| (row.at_s, row.throughput)).collect();
        add(&mut chart, named(name, "requests"), (index, 0), points);
        if run.summary.commands_per_second > 1.01 * run.summary.throughput {
            let points = run.slices.iter().map(|row| (row.at_s, row.commands_per_second)).collect();
            add(&mut chart, named(name, "commands"), (index, 1), points);
        }
    }
    chart
}

fn latency(runs: &[Named<'_>]) -> Chart {
    let mut chart = chart("Latency", TIME, "ms", Scale::Linear, Scale::Log);
    for (index, (name, run)) in runs.iter().enumerate() {
        // A lone run tells its percentiles by colour too.
        let style = |dash: usize| if runs.len() == 1 { (dash, dash) } else { (index, dash) };
        let answered = || run.slices.iter().filter(|row| row.latency.max_ms > 0.0);
        add(&mut chart, named(name, "p50"), style(0), answered().map(|r| (r.at_s, r.latency.p50_ms)).collect());
        add(&mut chart, named(name, "p99"), style(1), answered().map(|r| (r.at_s, r.latency.p99_ms)).collect());
        add(&mut chart, named(name, "p99.9"), style(2), answered().map(|r| (r.at_s, r.latency.p999_ms)).collect());
    }
    chart
}

fn percentiles(runs: &[Named<'_>]) -> Chart {
    let mut chart = chart("Latency by percentile", "percentile", "ms", Scale::Nines, Scale::Log);
    for (index, (name, run)) in runs.iter().enumerate() {
        let name = if name.is_empty() { &run.summary.setup.workload } else { name };
        add(&mut chart, name.clone(), (index, 0), run.percentiles.clone());
    }
    chart
}

fn latency_against_throughput(runs: &[Named<'_>]) -> Chart {
    let mut chart = chart("Latency against throughput", "commands per second", "ms", Scale::Linear, Scale::Log);
    for (index, (name, run)) in runs.iter().enumerate() {
        let mut points = run.points.clone();
        points.sort_by(|a, b| a.load.total_cmp(&b.load));
        if points.is_empty() {
            // A run at one load is one point per percentile.
            let summary = &run.summary;
            let at = |ms: f64| vec![(summary.commands_per_second, ms)];
            add(&mut chart, named(name, "p50"), (index, 0), at(summary.latency.p50_ms));
            add(&mut chart, named(name, "p99"), (index, 1), at(summary.latency.p99_ms));
            continue;
        }
        let line = |of: fn(&super::Point) -> f64| points.iter().map(|p| (p.commands_per_second, of(p))).collect();
        add(&mut chart, named(name, "p50"), (index, 0), line(|p| p.latency.p50_ms));
        add(&mut chart, named(name, "p99"), (index, 1), line(|p| p.latency.p99_ms));
    }
    chart
}

fn batch(runs: &[Named<'_>]) -> Chart {
    let mut chart = chart("Batch", TIME, "commands", Scale::Linear, Scale::Linear);
    for (index, (name, run)) in runs.iter().enumerate() {
        let points = run.ordering.iter().map(|row| (row.at_s, row.ordering.batch_commands)).collect();
        add(&mut chart, named(name, "commands in a batch"), (index, 0), points);
    }
    chart
}

fn window(runs: &[Named<'_>]) -> Chart {
    let mut chart = chart("Window", TIME, "instances", Scale::Linear, Scale::Linear);
    for (index, (name, run)) in runs.iter().enumerate() {
        let points = run.ordering.iter().map(|row| (row.at_s, row.ordering.window)).collect();
        add(&mut chart, named(name, "undecided instances, all partitions"), (index, 0), points);
    }
    chart
}
