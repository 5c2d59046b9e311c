//! Line charts as SVG text: axes, ticks, lines, legend. It knows numbers and names, not what they mean.

use std::fmt::Write;

/// How values become places on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Even.
    Linear,
    /// Powers of ten.
    Log,
    /// Percentiles, so that 90, 99, 99.9 % are evenly apart.
    Nines,
}

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// For the legend.
    pub name: String,
    /// In the order in which they are joined.
    pub points: Vec<(f64, f64)>,
    /// Which colour; lines of one run share it.
    pub colour: usize,
    /// Which pattern; lines of one meaning share it.
    pub dash: usize,
    /// Whether points are marked and not joined.
    pub dots: bool,
}

/// One pair of axes and its lines.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Above the axes.
    pub title: String,
    /// Below the horizontal axis, with its unit.
    pub x_label: String,
    /// Beside the vertical axis, with its unit.
    pub y_label: String,
    /// Horizontal scale.
    pub x_scale: Scale,
    /// Vertical scale.
    pub y_scale: Scale,
    /// The lines.
    pub series: Vec<Series>,
}

const WIDTH: f64 = 860.0;
const PANEL: f64 = 330.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 52.0;
const LEGEND_LINE: f64 = 16.0;

/// Colours that colour-blind eyes tell apart (Okabe and Ito), on light and dark ground alike.
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a6fdf"];
const DASHES: [&str; 4] = ["none", "7 4", "2 3", "9 3 2 3"];

const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#222}.t{font-size:14px;font-weight:600}\
.g{stroke:#ccc;stroke-width:1}.a{stroke:#555;stroke-width:1}.b{fill:#fff}\
@media(prefers-color-scheme:dark){text{fill:#ddd}.g{stroke:#444}.a{stroke:#aaa}.b{fill:#1b1b1b}}";

/// A span of values and the ticks that name it.
#[derive(Clone, Debug, PartialEq)]
struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    ticks: Vec<(f64, String)>,
}

fn number(value: f64) -> String {
    let (value, unit) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{value:.3}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

impl Axis {
    fn new(scale: Scale, values: impl Iterator<Item = f64>) -> Axis {
        let usable = values.filter(|v| v.is_finite() && (scale != Scale::Log || *v > 0.0));
        let (low, high) = usable.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
        let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
        match scale {
            Scale::Linear => Axis::linear(low.min(0.0), high),
            Scale::Log => Axis::log(low, high),
            Scale::Nines => Axis::nines(high),
        }
    }

    /// Steps of 1, 2 or 5 times a power of ten, five to ten of them, up to the first at or above the highest value.
    fn linear(low: f64, high: f64) -> Axis {
        let high = if high > low { high } else { low + 1.0 };
        let raw = (high - low) / 8.0;
        let power = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|s| s * power).find(|s| *s >= raw).unwrap_or(raw);
        let (first, last) = ((low / step).floor() as i64, (high / step).ceil() as i64);
        let ticks: Vec<_> = (first..=last).map(|i| i as f64 * step).map(|v| (v, number(v))).collect();
        Axis { scale: Scale::Linear, low: first as f64 * step, high: last as f64 * step, ticks }
    }

    /// From power of ten to power of ten; 2 and 5 between where there is room.
    fn log(low: f64, high: f64) -> Axis {
        let (low, high) = if low > 0.0 { (low, high) } else { (1.0, 10.0) };
        let first = low.log10().floor() as i32;
        let last = (high.log10().ceil() as i32).max(first + 1);
        let between: &[f64] = if last - first <= 4 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let all = (first..last).flat_map(|p| between.iter().map(move |b| b * 10f64.powi(p)));
        let ticks = all.chain([10f64.powi(last)]).map(|v| (v, number(v))).collect();
        Axis { scale: Scale::Log, low: 10f64.powi(first), high: 10f64.powi(last), ticks }
    }

    /// Percentiles up to the last full nine at or above the highest one.
    fn nines(high: f64) -> Axis {
        let nines = (-(1.0 - high / 100.0).max(1e-7).log10()).ceil().clamp(2.0, 7.0) as i32;
        let percent = |n: i32| 100.0 * (1.0 - 10f64.powi(-n));
        let label = |n: i32| match n {
            0 => "0 %".to_owned(),
            n => format!("{:.*} %", (n - 2).max(0) as usize, percent(n)),
        };
        let ticks = (0..=nines).map(|n| (percent(n), label(n))).collect();
        Axis { scale: Scale::Nines, low: 0.0, high: percent(nines), ticks }
    }

    /// The place of a value, as a fraction of the axis.
    fn at(&self, value: f64) -> f64 {
        let flat = |v: f64| match self.scale {
            Scale::Linear => v,
            Scale::Log => v.max(self.low).log10(),
            Scale::Nines => -(1.0 - v.min(self.high) / 100.0).max(1e-9).log10(),
        };
        ((flat(value) - flat(self.low)) / (flat(self.high) - flat(self.low))).clamp(0.0, 1.0)
    }
}

/// Text as it stands in XML and HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A line of no more points than this shows where they are: between few points a line says little.
const MARKED_POINTS_MAX: usize = 12;

/// One picture of several charts, one below the other.
pub fn render(charts: &[Chart]) -> String {
    let heights: Vec<f64> = charts.iter().map(height).collect();
    let total: f64 = heights.iter().sum();
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {total}\" \
         width=\"{WIDTH}\" height=\"{total}\">\
         <style>{STYLE}</style><rect class=\"b\" width=\"100%\" height=\"100%\"/>\n"
    );
    let mut top = 0.0;
    for (chart, height) in charts.iter().zip(&heights) {
        let _ = writeln!(out, "<g transform=\"translate(0 {top})\">");
        panel(chart, &mut out);
        out.push_str("</g>\n");
        top += height;
    }
    out.push_str("</svg>\n");
    out
}

fn legend_lines(chart: &Chart) -> usize {
    chart.series.len().div_ceil(3)
}

fn height(chart: &Chart) -> f64 {
    PANEL + LEGEND_LINE * legend_lines(chart) as f64
}

fn panel(chart: &Chart, out: &mut String) {
    let points = || chart.series.iter().flat_map(|series| &series.points);
    let x = Axis::new(chart.x_scale, points().map(|p| p.0));
    let y = Axis::new(chart.y_scale, points().map(|p| p.1));
    let place_x = |value: f64| LEFT + x.at(value) * (WIDTH - LEFT - RIGHT);
    let place_y = |value: f64| PANEL - BOTTOM - y.at(value) * (PANEL - TOP - BOTTOM);
    let (bottom, right) = (PANEL - BOTTOM, WIDTH - RIGHT);
    // Writing to a String never fails; the results are dropped for that reason.
    let _ = writeln!(out, "<text class=\"t\" x=\"{LEFT}\" y=\"24\">{}</text>", escape(&chart.title));
    for (value, label) in &y.ticks {
        let at = place_y(*value);
        let _ = writeln!(
            out,
            "<path class=\"g\" d=\"M{LEFT} {at:.1}H{right}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    for (value, label) in &x.ticks {
        let at = place_x(*value);
        let _ = writeln!(
            out,
            "<path class=\"g\" d=\"M{at:.1} {TOP}V{bottom}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
            bottom + 16.0
        );
    }
    let _ = writeln!(
        out,
        "<path class=\"a\" fill=\"none\" d=\"M{LEFT} {TOP}V{bottom}H{right}\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
         <text transform=\"translate(16 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        (LEFT + right) / 2.0,
        bottom + 36.0,
        escape(&chart.x_label),
        (TOP + bottom) / 2.0,
        escape(&chart.y_label)
    );
    for (index, series) in chart.series.iter().enumerate() {
        line(series, &place_x, &place_y, out);
        legend(index, series, out);
    }
}

fn line(series: &Series, place_x: &impl Fn(f64) -> f64, place_y: &impl Fn(f64) -> f64, out: &mut String) {
    let colour = COLOURS[series.colour % COLOURS.len()];
    let usable = || series.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite());
    if series.dots || series.points.len() == 1 {
        for (x, y) in usable() {
            let _ = writeln!(
                out,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{colour}\"/>",
                place_x(*x),
                place_y(*y)
            );
        }
        return;
    }
    let mut path = String::new();
    for (x, y) in usable() {
        let _ = write!(path, "{}{:.1} {:.1}", if path.is_empty() { 'M' } else { 'L' }, place_x(*x), place_y(*y));
    }
    let few = series.points.len() <= MARKED_POINTS_MAX;
    for (x, y) in usable().filter(|_| few) {
        let (x, y) = (place_x(*x), place_y(*y));
        let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.8\" fill=\"{colour}\"/>");
    }
    let dash = DASHES[series.dash % DASHES.len()];
    let _ = writeln!(
        out,
        "<path fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" stroke-dasharray=\"{dash}\" d=\"{path}\"/>"
    );
}

fn legend(index: usize, series: &Series, out: &mut String) {
    let column = (WIDTH - LEFT - RIGHT) / 3.0;
    let (x, y) = (LEFT + (index % 3) as f64 * column, PANEL + (index / 3) as f64 * LEGEND_LINE);
    let colour = COLOURS[series.colour % COLOURS.len()];
    let dash = DASHES[series.dash % DASHES.len()];
    let _ = writeln!(
        out,
        "<path stroke=\"{colour}\" stroke-width=\"2.5\" stroke-dasharray=\"{dash}\" d=\"M{x:.1} {:.1}h26\"/>\
         <text x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
        y - 4.0,
        x + 32.0,
        escape(&series.name)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(points: &[(f64, f64)]) -> Series {
        Series { name: "a <b>".into(), points: points.to_vec(), colour: 0, dash: 0, dots: false }
    }

    fn chart(x_scale: Scale, y_scale: Scale, points: &[(f64, f64)]) -> Chart {
        let label = |text: &str| text.to_owned();
        let series = vec![series(points)];
        Chart { title: label("t"), x_label: label("x"), y_label: label("y"), x_scale, y_scale, series }
    }

    #[test]
    fn linear_axes_end_on_round_numbers() {
        let axis = Axis::new(Scale::Linear, [0.0, 47_300.0].into_iter());
        assert_eq!((axis.low, axis.high), (0.0, 50_000.0));
        assert_eq!(axis.ticks.last().unwrap().1, "50k");
        assert!((5..=11).contains(&axis.ticks.len()));
        assert_eq!(axis.at(25_000.0), 0.5);
    }

    #[test]
    fn log_axes_span_powers_of_ten() {
        let axis = Axis::new(Scale::Log, [0.3, 42.0].into_iter());
        assert_eq!((axis.low, axis.high), (0.1, 100.0));
        assert!((axis.at(1.0) - 1.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn percentiles_are_as_far_apart_as_their_nines() {
        let axis = Axis::new(Scale::Nines, [50.0, 99.95].into_iter());
        let labels: Vec<&str> = axis.ticks.iter().map(|(_, label)| label.as_str()).collect();
        assert_eq!(labels, ["0 %", "90 %", "99 %", "99.9 %", "99.99 %"]);
        assert!((axis.at(99.0) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn pictures_are_well_formed_whatever_the_points() {
        let odd = [(0.0, 0.0), (f64::NAN, 1.0), (1.0, f64::INFINITY), (2.0, 1e12)];
        for x in [Scale::Linear, Scale::Log, Scale::Nines] {
            for y in [Scale::Linear, Scale::Log] {
                for points in [&odd[..], &[], &[(5.0, 5.0)]] {
                    let text = render(&[chart(x, y, points), chart(x, y, points)]);
                    assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
                    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
                    assert_eq!(text.matches("<g ").count(), text.matches("</g>").count());
                    assert!(text.contains("a &lt;b&gt;"));
                }
            }
        }
    }
}
