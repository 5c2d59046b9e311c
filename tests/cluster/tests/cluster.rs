//! `coppice-check cluster` as a user calls it, with real processes and real faults: short forms of what a release runs
//! for hours (hazards.md 5, 9). Nodes run the server that is built into `coppice-check`.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use coppice_testkit::poll::holds_within;
use rustix::process::{Pid, Signal, kill_process};

/// A directory of its own, gone at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("coppice-cluster-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("data")).expect("a directory can be made");
        Place(path)
    }

    fn text(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// The program and its words, with its files in here.
    fn command(&self, words: &[&str]) -> Command {
        let program = env!("CARGO_BIN_EXE_coppice-check");
        let mut command = Command::new(program);
        command.args(["cluster", "--bin", program, "--out", &self.text("out"), "--data", &self.text("data")]);
        command.args(words);
        command
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn run(mut command: Command) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    (status.code(), String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr))
}

/// Number `field` of the last line that is JSON.
fn figure(said: &str, field: &str) -> u64 {
    let line = said.lines().rev().find(|line| line.starts_with('{')).unwrap_or_default();
    let report: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
    report[field].as_u64().unwrap_or_else(|| panic!("no {field} in {said}"))
}

#[test]
fn nothing_is_lost_invented_or_doubled_when_nodes_are_killed() {
    let place = Place::new("kills");
    let words = ["--nemesis", "kill", "--kills", "5", "--rate", "600", "--seed", "11", "-o", "json"];
    let (code, said) = run(place.command(&words));
    assert_eq!(code, Some(0), "{said}");
    assert!(figure(&said, "fault_count") >= 5 && figure(&said, "answered") > 200, "{said}");
    let left = fs::read_dir(place.0.join("data")).expect("it is there").count();
    assert_eq!(left, 0, "a clean run leaves no data behind");
    let head = fs::read_to_string(place.text("out/history.jsonl")).expect("written");
    let head: serde_json::Value = serde_json::from_str(head.lines().next().unwrap_or_default()).expect("JSON");
    assert_eq!((&head["reads"], &head["speculation"]), (&"quorum".into(), &true.into()), "{head}");
    assert_eq!(head["commit"], coppice_cluster::COMMIT);
    let logs = fs::read_to_string(place.text("out/logs.jsonl")).expect("written");
    let logs = logs.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let unsaid = logs.filter(|line| line["do"] != "born" && (!line["b"].is_array() || line["r"] == 0)).count();
    assert_eq!(unsaid, 0, "every entry names its log and ballot");
    // The history and the logs can be judged again by anybody.
    let (history, logs) = (place.text("out/history.jsonl"), place.text("out/logs.jsonl"));
    let mut again = Command::new(env!("CARGO_BIN_EXE_coppice-check"));
    again.args(["history", &history, &logs]);
    let (code, said) = run(again);
    assert!(code == Some(0) && said.contains("certificate PASS"), "{said}");
}

/// Half of the clients speak RESP: SET, SETNX, GETDEL, DEL, INCR, MGET and RANGE over partitions, WATCH and EXEC.
#[test]
fn what_clients_hear_over_resp_under_faults_is_linearizable_and_spoilt_it_is_not() {
    let place = Place::new("resp");
    let words = ["--resp", "--nemesis", "kill,pause,cut", "--ops", "2000", "--round", "10m", "--rate", "600"];
    // On a machine that is too busy little is answered: then again.
    let said = ["33", "34", "35"].into_iter().find_map(|seed| {
        let (code, said) = run(place.command(&[&words[..], &["--seed", seed, "-o", "json"]].concat()));
        assert!(code == Some(0) && figure(&said, "fault_count") > 0, "{said}");
        (figure(&said, "answered") > 500).then_some(said)
    });
    let said = said.expect("something is answered");
    let commands = ["DEL ", "GET ", "INCR ", "MGET ", "RANGE ", "SET ", "WATCH+EXEC "];
    let unheard: Vec<&str> = commands.into_iter().filter(|name| !said.contains(&format!(" {name}"))).collect();
    assert!(unheard.is_empty(), "{unheard:?}: {said}");
    let history = fs::read_to_string(place.text("out/history.jsonl")).expect("written");
    let judged = |history: &str| {
        fs::write(place.text("spoilt.jsonl"), history).expect("it can be written");
        let mut check = Command::new(env!("CARGO_BIN_EXE_coppice-check"));
        check.args(["history", &place.text("spoilt.jsonl")]);
        run(check)
    };
    let (code, said) = judged(&history);
    assert!(code == Some(0) && said.contains("search      PASS"), "{said}");
    // What has written where nothing was is said to be refused.
    let (code, said) = judged(&history.replace(r#""st":"ok","out":null"#, r#""st":"no""#));
    assert!(code == Some(1) && said.contains("nothing that may have happened wrote it"), "{said}");
    // The last number of a counter is read as its first.
    let last = (1..=4).filter_map(|counter| history.rfind(&format!(r#""out":"{counter}000000"#)));
    let last = last.map(|at| at + r#""out":"1000000"#.len()).find(|at| history[*at..at + 3] != *"000");
    let at = last.expect("something was counted");
    let (code, said) = judged(&format!("{}000{}", &history[..at], &history[at + 3..]));
    assert!(code == Some(1) && said.contains("search      FAIL"), "{said}");
}

/// EXEC is carried out although the watched key has changed.
#[cfg(feature = "mutants")]
#[test]
#[ignore = "long: real processes under faults"]
fn guard_ignored_is_caught_over_resp() {
    let lost = ["1", "2", "3"].iter().any(|seed| {
        let place = Place::new("guards");
        let few = ["--partitions", "1", "--keys", "4", "--ops", "1000", "--rate", "1000", "--seed", seed];
        let mut command = place.command(&[&["--resp", "--nemesis", "none"], &few[..]].concat());
        command.env("COPPICE_MUTANT", "guard_ignored");
        let (code, said) = run(command);
        code == Some(1) && said.contains("an update was lost")
    });
    assert!(lost, "no EXEC met a change");
}

#[test]
#[ignore = "long: real processes under faults"]
fn each_kill_of_the_leader_of_everything_is_measured() {
    let place = Place::new("gaps");
    let (code, said) = run(place.command(&["--nemesis", "gap", "--count", "2", "--rate", "500", "--seed", "13"]));
    let words = said.split("service after each of 2 kills of the leader of everything: p50 ").nth(1);
    let p99 = words.and_then(|words| words.split("p99 ").nth(1)?.split(' ').next()?.parse::<u64>().ok());
    // More than a second is a failure, and nothing else is.
    assert_eq!(p99.map(|p99| i32::from(p99 > 1_000)), code, "{said}");
    assert_eq!(code == Some(1), said.contains("is more than 1s"), "{said}");
}

#[test]
#[ignore = "long: real processes under faults"]
fn what_nodes_hold_is_looked_at_and_bounded() {
    let place = Place::new("held");
    let words = ["--nemesis", "none", "--time", "2s", "--rate", "500", "--seed", "19"];
    let (code, said) = run(place.command(&words));
    assert!(code == Some(0) && said.contains("B8          PASS") && said.contains("B7          seen"), "{said}");
    assert!(said.contains("n1 held at most ") && said.contains("n3 held at most "), "{said}");
    assert!(said.contains(" replies behind its gate, ") && !said.contains(" 0 sessions at most"), "{said}");
    let (code, said) = run(place.command(&[&words[..], &["--memory-max", "1MiB", "-o", "json"]].concat()));
    assert!(code == Some(1) && said.contains(" resident bytes, more than 1048576"), "{said}");
    assert!(said.contains("\"memory_bytes\":"), "{said}");
}

#[test]
#[ignore = "long: real processes under faults"]
fn with_more_than_three_nodes_replicas_are_moved() {
    let place = Place::new("moves");
    let words = ["--nemesis", "map", "--nodes", "4", "--time", "10s", "--rate", "400", "--seed", "20"];
    let (code, said) = run(place.command(&words));
    let changes = said.lines().find(|line| line.starts_with("changes of the map: ")).unwrap_or_default();
    assert!(code == Some(0) && changes.contains(" moves") && changes.contains(" splits"), "{said}");
    assert!(!said.contains("--nodes above 3") && said.contains("no nodes added and removed"), "{said}");
}

#[test]
#[ignore = "long: real processes under faults"]
fn a_node_with_a_flipped_bit_refuses_to_start_and_is_replaced() {
    // What a bit means is chance: where the log is zero, or trimmed soon, it means nothing.
    let replaced = ["21", "22", "23", "24"].iter().any(|seed| {
        let place = Place::new("rot");
        let words = ["--nemesis", "rot", "--time", "15s", "--rate", "2000", "--seed", seed];
        let (code, said) = run(place.command(&words));
        assert!(code == Some(0) && said.contains("\nrot: "), "{said}");
        let history = fs::read_to_string(place.text("out/history.jsonl")).expect("written");
        history.contains("\"do\":\"replaced\"")
    });
    assert!(replaced, "no bit meant anything");
}

#[test]
#[ignore = "long: real processes under faults"]
fn cuts_pauses_and_splits_leave_the_history_linearizable() {
    let place = Place::new("mixed");
    let words = ["--nemesis", "cut,pause,map,power", "--time", "8s", "--rate", "500", "--seed", "12"];
    let (code, said) = run(place.command(&words));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("linearizable: ") && said.contains("power       skipped"), "{said}");
    // Ladders and tokens were moved, and seen by ranges.
    for check in ["B5          PASS", "B6          PASS"] {
        assert!(said.contains(check), "{said}");
    }
}

#[test]
#[ignore = "long: real processes under faults"]
fn each_kind_of_cut_meets_each_kind_of_operation() {
    let place = Place::new("matrix");
    let (_, said) = run(place.command(&["--nemesis", "cut", "--matrix", "1", "--rate", "800", "--seed", "14"]));
    // How soon the full rate is back is the machine's to say, too: no matter of this test.
    let met = said.lines().find(|line| line.starts_with("matrix: 10 kinds of cuts, each met "));
    assert!(met.is_some_and(|line| !line.contains("each met 0 times")), "{said}");
    assert!(said.contains("coordinator alone") && !said.contains("VIOLATION"), "{said}");
}

/// Whether this machine lets us make networks.
fn may_make_networks() -> bool {
    let at = format!("coppice-test-{}", std::process::id());
    let made = |words: &[&str]| Command::new("ip").args(words).output().is_ok_and(|output| output.status.success());
    let has_nft = Command::new("nft").arg("--version").output().is_ok_and(|output| output.status.success());
    let may = has_nft && made(&["netns", "add", &at]);
    may && made(&["netns", "del", &at])
}

/// Names of networks of a process.
fn networks_of(pid: u32) -> Vec<String> {
    let names = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&format!("coppice-check-{pid}-"))).collect()
}

#[test]
#[ignore = "long: real processes under faults"]
fn the_kernel_cuts_links_and_leaves_nothing_behind_even_after_an_interrupt() {
    if !may_make_networks() {
        return eprintln!("skipped: needs root, ip and nft");
    }
    let place = Place::new("kernel");
    let words = ["--root", "--nemesis", "cut", "--time", "120s", "--rate", "500", "--seed", "15", "-o", "json"];
    let mut command = place.command(&words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    let pid = child.id();
    let history = place.0.join("out/raw.jsonl");
    // The run itself ends after two minutes of load.
    let heals = || fs::read_to_string(&history).unwrap_or_default().matches("\"heal\"").count();
    let mut ended = || child.try_wait().expect("it is ours").is_some();
    assert!(holds_within(Duration::from_secs(110), || heals() >= 3 || ended()) && !ended(), "three cuts in time");
    assert_eq!(networks_of(pid).len(), 4, "one for each node, and one between them");
    let number = Pid::from_raw(i32::try_from(pid).expect("a number")).expect("not zero");
    kill_process(number, Signal::INT).expect("it is ours");
    let Output { status, stdout, stderr } = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(figure(&said, "fault_count") >= 3 && figure(&said, "answered") > 100, "{said}");
    assert_eq!(networks_of(pid), Vec::<String>::new());
    assert!(!fs::exists(format!("/sys/class/net/coppice{pid}")).expect("it can be asked"));
    assert_eq!(fs::read_dir(place.0.join("data")).expect("it is there").count(), 0);
}

#[test]
#[ignore = "long: real processes under faults"]
fn a_node_whose_flush_fails_ends_and_one_whose_disk_is_full_waits() {
    let place = Place::new("flush");
    let (code, said) =
        run(place.command(&["--nemesis", "flush,full-disk", "--count", "6", "--rate", "500", "--seed", "16"]));
    if said.contains("needs strace") {
        return eprintln!("skipped: needs strace");
    }
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("\nflush: ") && said.contains("\nfull-disk: "), "{said}");
}

/// The nodes run with a bug.
#[cfg(feature = "mutants")]
#[test]
#[ignore = "long: real processes under faults"]
fn retry_flush_is_caught_on_real_nodes() {
    let place = Place::new("retry");
    let mut command = place.command(&["--nemesis", "flush", "--count", "3", "--rate", "500", "--seed", "17"]);
    command.env("COPPICE_MUTANT", "retry_flush");
    let (code, said) = run(command);
    if said.contains("needs strace") {
        return eprintln!("skipped: needs strace");
    }
    assert!(code == Some(1) && said.contains("goes on 5s after a flush of its log failed"), "{said}");
}

#[test]
fn without_root_what_needs_it_is_refused() {
    let place = Place::new("unprivileged");
    let mut command = place.command(&["--root", "--nemesis", "cut", "--time", "1s"]);
    if rustix::process::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    let Ok(Output { status, stderr, .. }) = command.output() else {
        return eprintln!("skipped: another user may not run the program");
    };
    let said = String::from_utf8_lossy(&stderr);
    assert!(status.code() == Some(2) && said.contains("not root"), "{said}");
}

#[test]
fn mistakes_of_the_caller_exit_with_2() {
    let place = Place::new("usage");
    let (code, said) = run(place.command(&["--nemesis", "kill", "--matrix", "1"]));
    assert!(code == Some(2) && said.contains("--nemesis cut"), "{said}");
    let (code, said) = run(place.command(&["--nemesis", "kill", "--checker", "graph"]));
    assert!(code == Some(2) && said.contains("these decide"), "{said}");
    let (code, said) = run(place.command(&["--nemesis", "power"]));
    assert!(code == Some(2) && said.contains("power needs root, and --root"), "{said}");
    let (code, said) = run(place.command(&["--nemesis", "earthquake"]));
    assert!(code == Some(2) && said.contains("earthquake"), "{said}");
    let (code, said) = run(place.command(&["--endpoints", "127.0.0.1:1", "--nemesis", "none", "--time", "1s"]));
    assert!(code == Some(2) && said.contains("error: "), "{said}");
}
