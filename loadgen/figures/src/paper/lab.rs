//! Points over emulated links, carried out by the program `coppice-lab`: real nodes, with a link of a known rate and
//! delay between every two of them. What it wrote down is read here, by the names of its columns.

use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use super::cluster::Ground;
use super::point::{Heat, Point, Reading, Spot, name};
use coppice_loadgen::units::print_duration;

/// Columns of the program's CSV that are numbers, and the names that they have here.
pub const COLUMNS: [(&str, &str); 12] = [
    ("commands_per_s", name::COMMANDS),
    ("p50_ms", name::P50_MS),
    ("p99_ms", name::P99_MS),
    ("errors", name::ERRORS),
    ("batch_bytes", name::BATCH_BYTES),
    ("window", name::WINDOW),
    ("congestions", name::CONGESTIONS),
    ("batch_cpu_ms", name::BATCH_CPU_MS),
    ("command_cpu_ms", name::COMMAND_CPU_MS),
    ("flush_ms", name::FLUSH_MS),
    ("model_per_s", name::MODEL),
    ("model_window", name::MODEL_WINDOW),
];

/// What tuning gets before it is measured (papers.md A13).
const SETTLE: Duration = Duration::from_secs(20);

/// Of a point, everything but its measurement takes no longer, even if a slow link has to be emptied first.
const PATIENCE: Duration = Duration::from_secs(60);

/// One round of a heat over links: batches of one size of command, one link and one window, or tuning.
///
/// # Errors
/// In words: the program failed, or wrote something else than what was asked for.
pub fn race(heat: &Heat, lab: &Path, ground: &Ground<'_>) -> Result<Vec<Reading>, String> {
    let spots = heat.0.iter().map(|point| match point {
        Point::Spot(spot) => Ok(spot),
        Point::Load(load) => Err(format!("{load}: in a heat over links")),
    });
    let spots: Vec<&Spot> = spots.collect::<Result<_, _>>()?;
    let hold = ground.terms.hold;
    let out = ground.site.path("lab.csv");
    let mut command = Command::new(lab);
    command.args(flags(&spots, hold)?).arg("--out").arg(&out).arg("--bin").arg(ground.program);
    command.arg("--data").arg(ground.site.path(""));
    let limit = spots.len() as u32 * (hold + PATIENCE) + SETTLE + PATIENCE;
    ground.site.run("lab", command, limit)?;
    let text = std::fs::read_to_string(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let rows = rows(&text)?;
    let settings = if spots.iter().any(|spot| spot.batch_bytes.is_none()) { "tuning" } else { "grid" };
    let measured: Vec<&Row<'_>> = rows.iter().filter(|row| row.text("settings") == Some(settings)).collect();
    if measured.len() != spots.len() {
        return Err(format!("coppice-lab measured {} points of {}", measured.len(), spots.len()));
    }
    measured.into_iter().map(Row::reading).collect()
}

/// What `coppice-lab` is called with.
fn flags(spots: &[&Spot], hold: Duration) -> Result<Vec<String>, String> {
    let first = spots.first().ok_or("a heat without a point")?;
    let alike = |spot: &&&Spot| (spot.link, spot.size, spot.window) == (first.link, first.size, first.window);
    if !spots.iter().all(|spot| alike(&spot)) {
        return Err("a heat of several links, sizes or windows".to_owned());
    }
    let (batches, also) = match first.batch_bytes {
        Some(_) => {
            let batches = spots.iter().filter_map(|spot| Some(spot.batch_bytes?.to_string()));
            (batches.collect::<Vec<_>>().join(","), "none")
        }
        // The grid needs a point: one that is quickly measured.
        None => ("65536".to_owned(), "tuning"),
    };
    let Spot { link, size, window, .. } = first;
    let words = [
        format!("grid --links {link} --sizes {size} --windows {window} --batch-bytes {batches} --also {also}"),
        format!("--hold {} --settle {}", print_duration(hold), print_duration(SETTLE)),
    ];
    Ok(words.join(" ").split(' ').map(str::to_owned).collect())
}

/// A line of the program's CSV, whose fields hold no commas.
struct Row<'a> {
    columns: Rc<[&'a str]>,
    cells: Vec<&'a str>,
}

impl Row<'_> {
    fn text(&self, column: &str) -> Option<&str> {
        let at = self.columns.iter().position(|name| *name == column)?;
        self.cells.get(at).copied()
    }

    fn number(&self, column: &str) -> Option<f64> {
        self.text(column)?.parse().ok().filter(|value: &f64| value.is_finite())
    }

    fn reading(&self) -> Result<Reading, String> {
        let mut reading = Reading::new();
        for (column, name) in COLUMNS {
            if let Some(value) = self.number(column) {
                reading.insert(name.to_owned(), value);
            }
        }
        if let Some(share) = self.number("link_used") {
            reading.insert(name::LINK.to_owned(), 100.0 * share);
        }
        match reading.contains_key(name::COMMANDS) {
            true => Ok(reading),
            false => Err(format!("coppice-lab gave no throughput: {}", self.cells.join(","))),
        }
    }
}

fn rows(text: &str) -> Result<Vec<Row<'_>>, String> {
    let mut lines = text.lines();
    let columns: Rc<[&str]> = lines.next().ok_or("coppice-lab wrote nothing")?.split(',').collect();
    Ok(lines.map(|line| Row { columns: Rc::clone(&columns), cells: line.split(',').collect() }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spot(window: u32, batch_bytes: Option<u64>) -> Spot {
        Spot { link: "wan", size: 1_024, window, batch_bytes }
    }

    #[test]
    fn a_heat_is_one_call_of_the_laboratory() {
        let (small, large, tuned) = (spot(5, Some(1_024)), spot(5, Some(65_536)), spot(1, None));
        let hold = Duration::from_secs(4);
        let line = |spots: &[&Spot]| flags(spots, hold).map(|words| words.join(" "));
        assert_eq!(
            line(&[&small, &large]).unwrap(),
            "grid --links wan --sizes 1024 --windows 5 --batch-bytes 1024,65536 --also none --hold 4s --settle 20s"
        );
        assert!(line(&[&tuned]).unwrap().contains("--also tuning"));
        assert!(line(&[&small, &spot(2, Some(1_024))]).is_err() && line(&[]).is_err());
    }

    #[test]
    fn numbers_are_found_by_their_columns_and_missing_ones_stay_missing() {
        let text = "link,settings,commands_per_s,link_used,model_per_s\nwan,grid,1150.5,0.5,\nwan,standard,,0,1\n";
        let rows = rows(text).unwrap();
        let reading = rows[0].reading().unwrap();
        assert_eq!((reading[name::COMMANDS], reading[name::LINK]), (1_150.5, 50.0));
        assert!(!reading.contains_key(name::MODEL));
        assert_eq!(rows[1].text("settings"), Some("standard"));
        assert!(rows[1].reading().is_err());
    }
}
