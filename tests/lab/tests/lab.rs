//! `coppice-lab` as a user calls it, in its short forms: real nodes, real sockets, links in between (papers.md A13 to
//! A15). What is checked holds on any machine, however busy: no link is faster than it is, every point is measured,
//! nothing is left behind. Nodes run the server that is built into `coppice-lab`.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A directory of its own, gone at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("coppice-lab-test-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("data")).expect("a directory can be made");
        Place(path)
    }

    fn text(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// Runs the program with its files in here: its exit status and what it said.
    fn run(&self, words: &[&str]) -> (Option<i32>, String) {
        let program = env!("CARGO_BIN_EXE_coppice-lab");
        let mut command = Command::new(program);
        command.args(words).args(["--bin", program, "--data", &self.text("data")]);
        let Output { status, stdout, stderr } = command.output().expect("it runs");
        (status.code(), String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr))
    }

    /// Every measurement that was written down: its columns by name.
    fn rows(&self) -> Vec<impl Fn(&str) -> String + use<>> {
        let csv = fs::read_to_string(self.0.join("out.csv")).expect("a file was written");
        let mut lines = csv.lines().map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
        let columns = lines.next().expect("a heading");
        let row = |cells: Vec<String>| {
            let columns = columns.clone();
            move |name: &str| cells[columns.iter().position(|column| column == name).expect("a column")].clone()
        };
        lines.map(row).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn number(text: String) -> f64 {
    text.parse().unwrap_or_else(|_| panic!("`{text}` is no number"))
}

#[test]
#[ignore = "long: real nodes over slow links"]
fn a_grid_over_a_slow_link_has_every_point_and_none_is_faster_than_the_link() {
    let place = Place::new("grid");
    let out = place.text("out.csv");
    let words = ["grid", "--links", "2Mbit/10ms", "--short", "--out", &out];
    let (code, said) = place.run(&words);
    assert_eq!(code, Some(0), "{said}");
    let rows = place.rows();
    let settings: Vec<String> = rows.iter().map(|row| row("settings")).collect();
    assert_eq!(settings, ["grid", "grid", "standard"], "{said}");
    for row in &rows {
        let used = number(row("link_used"));
        assert!(used > 0.0 && used < 1.05, "{used} of the link: {said}");
    }
    assert_eq!(fs::read_dir(place.0.join("data")).expect("it is there").count(), 0, "no data is left behind");
}

#[test]
#[ignore = "long: real nodes over slow links"]
fn tuning_is_compared_with_the_best_of_the_grid_cold_and_alone() {
    let place = Place::new("tuning");
    let out = place.text("out.csv");
    let (code, said) = place.run(&["tuning", "--links", "8Mbit/5ms", "--short", "--out", &out]);
    // Whether it reaches its goal in seconds, on a machine that does other things, is no question for a test.
    assert!(matches!(code, Some(0 | 1)) && said.contains("of the best of the grid (goal 95 %)"), "{said}");
    let rows = place.rows();
    let settings: Vec<String> = rows.iter().map(|row| row("settings")).collect();
    assert_eq!(settings, ["grid", "grid", "standard", "cold", "best", "light", "unbatched"], "{said}");
    assert!(number(rows[3]("of_best")) >= 0.0, "{said}");
    assert!(rows.iter().all(|row| number(row("link_used")) > 0.0), "{said}");
}

#[test]
fn a_cluster_over_links_serves_until_its_time_is_over() {
    let place = Place::new("link");
    let (code, said) = place.run(&["link", "--links", "wan", "--time", "500ms"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("ready: export COPPICE_ENDPOINTS=127.0.0.1:"), "{said}");
    assert!(said.contains("congested 0 times"), "{said}");
}

#[test]
fn mistakes_of_the_caller_exit_with_2() {
    let place = Place::new("usage");
    for words in [&["grid", "--links", "slow"][..], &["grid", "--sizes", "3"], &["fly"], &["grid", "--windows", "0"]] {
        let (code, said) = place.run(words);
        assert_eq!(code, Some(2), "{words:?}: {said}");
    }
}
