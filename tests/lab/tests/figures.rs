//! `coppice-figures paper` on real nodes: what it measures it draws beside what the paper says, and measures no point
//! twice. Nodes run the server that is built into `coppice-lab`.

use std::fs;
use std::path::PathBuf;

use clap::Parser;
use coppice_figures::args::{Cli, Command};
use coppice_loadgen::app::failure::{Exit, Failure};

/// A directory of its own, gone at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("coppice-figures-test-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("data")).expect("a directory can be made");
        Place(path)
    }

    fn text(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn figures(&self, words: &str) -> Result<Exit, Failure> {
        let (out, data) = (self.text("out"), self.text("data"));
        let line = format!("coppice-figures --quiet paper --short --out {out} --dir {data} {words}");
        let cli = Cli::try_parse_from(line.split_whitespace()).expect("the line is right");
        let Command::Paper(args) = &cli.command else { panic!("they are figures: {line}") };
        coppice_figures::paper::paper(args, &cli.global, &line)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Whether it works, not what comes out. Two seconds: something is answered on a busy machine, too.
const QUICK: &str = "--rounds 1 --duration 2s --entries 1000";

#[test]
#[ignore = "long: six measurements"]
fn a_figure_is_measured_once_and_drawn_beside_what_the_paper_says() {
    let place = Place::new("smr");
    let words = format!("smr --only fig12 {QUICK} --bin {}", env!("CARGO_BIN_EXE_coppice-lab"));
    assert_eq!(place.figures(&words), Ok(Exit::Done));
    let (measured, page, points) =
        (place.read("out/measured.jsonl"), place.read("out/index.html"), place.read("out/fig12.csv"));
    // Five shares of queries across and the updates, with speculation and without.
    assert_eq!(measured.lines().count(), 6, "{measured}");
    assert!(measured.lines().all(|line| line.matches("\"commands_per_s\":").count() == 2), "{measured}");
    assert!(page.contains("responses are 16 % faster") && page.contains("fig12.svg"), "{page}");
    assert!(!page.contains("not measured"), "{page}");
    assert_eq!(points.lines().count(), 1 + 2 * 5, "{points}");
    assert!(place.read("out/fig12.svg").contains("speculation, against without"));
    assert_eq!(fs::read_dir(place.0.join("data")).expect("it is there").count(), 0, "no data is left behind");
    // Nothing is left to be measured: no program is needed, and the numbers stay.
    assert_eq!(place.figures(&words.replace("coppice-lab", "nowhere")), Ok(Exit::Done));
    assert_eq!((place.read("out/measured.jsonl"), place.read("out/fig12.csv")), (measured, points));
}

#[test]
#[ignore = "long: two points of a figure"]
fn the_laboratory_writes_the_columns_that_figures_read() {
    let place = Place::new("tuning");
    let (program, out, data) = (env!("CARGO_BIN_EXE_coppice-lab"), place.text("out.csv"), place.text("data"));
    let words = ["grid", "--links", "lan", "--short", "--hold", "1s", "--also", "none", "--bin", program];
    let mut command = std::process::Command::new(program);
    let said = command.args(words).args(["--data", &data, "--out", &out]).output().expect("it runs");
    assert!(said.status.success(), "{said:?}");
    let written = place.read("out.csv");
    let columns: Vec<&str> = written.lines().next().unwrap_or_default().split(',').collect();
    for (column, _) in coppice_figures::paper::LAB_COLUMNS {
        assert!(columns.contains(&column), "no {column} in {columns:?}");
    }
    // Two points and nothing else; the model's columns are filled.
    assert_eq!(written.lines().count(), 3, "{written}");
    assert!(written.lines().all(|line| !line.ends_with(',')), "{written}");
    assert_eq!(place.figures("tuning --list"), Ok(Exit::Done));
}

#[test]
fn what_is_missing_is_named_before_anything_is_measured() {
    let place = Place::new("missing");
    let said = |words: &str| place.figures(words).map_err(|failure| (failure.exit, failure.text()));
    let (exit, text) = said("smr --only fig99").expect_err("there is none");
    assert!(exit == Exit::Usage && text.contains("no figure `fig99`") && text.contains("fig12"), "{text}");
    let (exit, text) = said("smr --bin /nowhere/coppice").expect_err("it is not there");
    assert!(exit == Exit::Usage && text.contains("no program /nowhere/coppice"), "{text}");
    let program = env!("CARGO_BIN_EXE_coppice-lab");
    let (exit, text) = said(&format!("tuning --bin {program} --lab /nowhere/lab")).expect_err("it is not there");
    assert!(exit == Exit::Usage && text.contains("no program /nowhere/lab"), "{text}");
    assert_eq!(place.read("out/measured.jsonl"), "");
}
