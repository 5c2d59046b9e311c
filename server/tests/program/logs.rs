//! What a node says to its operators: each sentence when it is due, once, and nothing that the manual does not list.

use std::collections::BTreeSet;

use crate::support::{Cluster, eventually};

const OPERATIONS: &str = include_str!("../../../docs/operations.md");

/// The messages of the manual's table, up to what varies.
fn listed() -> Vec<&'static str> {
    let section = OPERATIONS.split_once("### 4.3 Logs").expect("a section").1;
    let section = section.split_once("\n## ").expect("another one").0;
    let rows =
        section.lines().filter(|line| ["| error", "| warn", "| info"].iter().any(|level| line.starts_with(level)));
    let cells = rows.filter_map(|row| row.split(" | ").nth(1));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(|message| message.trim_end_matches("..")).collect()
}

/// An event without its time.
fn events(log: &str) -> Vec<&str> {
    log.lines().map(|line| line.split_once(' ').map_or(line, |(_, event)| event)).collect()
}

/// How many events have all these words.
fn count(log: &str, words: &[&str]) -> usize {
    events(log).iter().filter(|event| words.iter().all(|word| event.contains(word))).count()
}

#[test]
fn a_node_says_what_an_operator_needs_once_and_nothing_else() {
    let mut cluster = Cluster::formed(3, "g");
    let serves = |cluster: &Cluster| cluster.run(&["put", "b", "1"]).code == 0;
    eventually("n1 leads", || cluster.run(&["leader", "transfer", "p1", "n1"]).code == 0);
    cluster.kill(0);
    for index in [1, 2] {
        eventually("a node is missed", || {
            serves(&cluster) && count(&cluster.log(index), &["a node is down", "node=n1"]) == 1
        });
    }
    cluster.start(0, "ready");
    for index in [1, 2] {
        eventually("it is back", || {
            serves(&cluster) && count(&cluster.log(index), &["a node is up again", "node=n1"]) == 1
        });
    }
    cluster.healthy();
    let said = cluster.run(&["partition", "split", "p1", "--at", "c", "--yes"]);
    assert_eq!(said.code, 0, "{said:?}");
    let all = |cluster: &Cluster| (0..3).map(|index| cluster.log(index)).collect::<String>();
    eventually("the split has ended", || count(&all(&cluster), &["a change of the cluster has ended", "made p3"]) == 1);
    assert_eq!(count(&all(&cluster), &["a change of the cluster begins", "split of p1 into p1 and p3"]), 1);
    assert_eq!(count(&all(&cluster), &["an operator's verb", "split"]), 1, "{}", all(&cluster));
    // It leads something, so that it has something to give away.
    eventually("n2 leads", || cluster.run(&["leader", "transfer", "p2", "n2"]).code == 0);
    let (led, lost) = (["this node leads ", "partition=p2"], ["this node leads no more", "partition=p2"]);
    let before = count(&cluster.log(1), &lost);
    assert!(count(&cluster.log(1), &led) > 0);
    assert!(cluster.stop(1).success());
    let log = cluster.log(1);
    assert_eq!(count(&log, &["this node stops: its leaderships move first", "SIGTERM"]), 1, "{log}");
    assert_eq!(count(&log, &lost), before + 1, "{log}");
    assert!(events(&log).last().is_some_and(|last| last.contains("this node has stopped")), "{log}");

    let listed = listed();
    assert!(listed.len() > 20, "{listed:?}");
    for index in 0..3 {
        let log = cluster.log(index);
        let mut seen = BTreeSet::new();
        for event in events(&log) {
            let message = event.split_once(": ").map_or(event, |(_, message)| message);
            assert!(listed.iter().any(|listed| message.starts_with(listed)), "n{}: {event}", index + 1);
            // What is held back comes once more, with its count.
            assert!(seen.insert(event) || event.contains(" repeated="), "n{} says twice: {event}", index + 1);
        }
    }
}
