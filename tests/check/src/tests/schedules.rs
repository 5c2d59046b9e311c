//! The schedules A to F of hazards.md 6: the outcome of a wrong server fails, the outcome of a right one passes, in
//! every checker. x is written in p1 (keys a to i), y in p2 (j to r), and so on; Q reads all that it touches.

use super::super::history::History;
use super::super::search::Limits;
use super::super::verdict::{Verdict, Why};
use super::super::{brute, certificate, graph, search};
use super::script::history;

fn verdicts(history: &History) -> [Verdict; 3] {
    let found = certificate::check(history);
    [found.verdict, search::check(history, None, Limits::default()), graph::check(history, None)]
}

#[track_caller]
fn right(script: &str) {
    let history = history(script);
    assert!(brute::is_linearizable(&history));
    for (checker, verdict) in ["certificate", "search", "graph"].iter().zip(verdicts(&history)) {
        assert!(verdict.is_pass(), "{checker}: {verdict:?}");
    }
}

/// Returns the explanations of the certificate and of the graph.
#[track_caller]
fn wrong(script: &str) -> [String; 2] {
    let history = history(script);
    assert!(!brute::is_linearizable(&history));
    let [zero, one, graph] = verdicts(&history);
    assert!(one.is_fail(), "the search: {one:?}");
    let words = [("certificate", zero), ("graph", graph)].map(|(checker, verdict)| match verdict {
        Verdict::Fail(violation) => violation.words(&history).join("\n"),
        other => panic!("{checker}: {other:?}"),
    });
    println!("{}\n\n{}", words[0], words[1]);
    words
}

#[test]
fn a_without_a_gate_a_query_sees_the_later_of_two_writes_only() {
    let [zero, graph] = wrong(
        "c1 10 20 put a=x -> - @ p1#2
         c1 30 40 put j=y -> - @ p2#1
         c2 5 50 range a..s -> [j=y] @ p1#1 p2#2 ~1
         log p1: Q1 x
         log p2: y Q1",
    );
    for words in [zero, graph] {
        assert!(words.contains("put #1 was answered 10 ns before put #2 was invoked"), "{words}");
    }
}

#[test]
fn a_the_first_write_waits_until_the_query_is_placed() {
    right(
        "c1 10 45 put a=x -> - @ p1#2
         c1 46 60 put j=y -> - @ p2#2
         c2 5 50 range a..s -> [] @ p1#1 p2#1 ~1
         log p1: Q1 x
         log p2: Q1 y",
    );
}

#[test]
fn a_writes_that_overlap_may_be_seen_in_either_order() {
    right(
        "c1 10 45 put a=x -> - @ p1#2
         c3 30 40 put j=y -> - @ p2#1
         c2 5 50 range a..s -> [j=y] @ p1#1 p2#2 ~1
         log p1: Q1 x
         log p2: y Q1",
    );
}

#[test]
fn b_with_the_two_partition_rule_three_partitions_close_a_cycle() {
    // Tickets ~1 of Q1 over p2 and p3, ~2 of Q2 over p1 and p2.
    let [zero, graph] = wrong(
        "c1 10 20 put a=x -> - @ p1#2
         c1 30 40 put s=y -> - @ p3#1
         c2 5 60 put j=w -> - @ p2#2
         c3 4 70 range j.. -> [s=y] @ p2#1 p3#2 ~1
         c4 3 80 range a..s -> [j=w] @ p1#1 p2#3 ~2
         log p1: Q2 x
         log p2: Q1 w Q2
         log p3: y Q1",
    );
    // The log of p2 shows at once that Q1 is before Q2; from outside that takes w between them.
    assert!(!zero.contains("put #3"), "{zero}");
    for operation in ["put #1", "put #2", "range #4", "put #3", "range #5"] {
        assert!(graph.contains(operation), "{graph}");
    }
}

#[test]
fn b_the_second_query_waits_for_the_first_in_every_queue() {
    right(
        "c1 10 75 put a=x -> - @ p1#2
         c1 76 90 put s=y -> - @ p3#2
         c2 5 60 put j=w -> - @ p2#2
         c3 4 70 range j.. -> [] @ p2#1 p3#1 ~1
         c4 3 80 range a..s -> [j=w] @ p1#1 p2#3 ~2
         log p1: Q2 x
         log p2: Q1 w Q2
         log p3: Q1 y",
    );
}

#[test]
fn c_an_old_coordinator_must_complete_neither_query() {
    // Ballot 2 has freed x; ballot 1 hears of its ticket at p3 only now.
    let logs = "log p1: Q2 x
                log p2: Q1 w Q2
                log p3: y Q1";
    wrong(&format!(
        "c1 10 20 put a=x -> - @ p1#2
         c1 30 40 put s=y -> - @ p3#1
         c2 5 60 put j=w -> - @ p2#2
         c3 4 70 range j.. -> [s=y] @ p2#1 p3#2 ~1
         c4 3 80 range a..s -> [j=w] @ p1#1 p2#3 ~2
         {logs}"
    ));
    right(&format!(
        "c1 10 20 put a=x -> - @ p1#2
         c1 30 40 put s=y -> - @ p3#1
         c2 5 60 put j=w -> - @ p2#2
         c3 4 range j..
         c4 3 range a..s
         {logs}"
    ));
}

#[test]
fn d_a_ticket_whose_predecessor_was_lost_does_not_count() {
    wrong(
        "c1 10 60 put a=x -> - @ p1#2
         c2 10 60 put j=y -> - @ p2#2
         c3 5 70 range a..s -> [a=x] @ p1#3 p2#1 ~1
         c4 5 70 range a..s -> [j=y] @ p1#1 p2#3 ~2
         log p1: Q2 x Q1
         log p2: Q1 y Q2",
    );
    // By the rules Q2 is a no-op at p1 and comes again behind Q1; `prev` of the first copy names Q1, which is not
    // there.
    let first =
        "{\"e\":\"log\",\"p\":1,\"r\":1,\"i\":0,\"x\":1,\"do\":\"place\",\"tk\":[1,1,2],\"prev\":[1,1,1],\"hit\":";
    let script = "c1 10 60 put a=x -> - @ p1#1
         c2 10 60 put j=y -> - @ p2#2
         c3 5 70 range a..s -> [a=x] @ p1#2 p2#1 ~1
         c4 5 80 range a..s -> [a=x j=y] @ p1#3 p2#3 ~2
         log p1: x Q1 Q2
         log p2: Q1 y Q2";
    let right = super::script::history_with(script, &format!("{first}false}}\n"));
    assert!(certificate::check(&right).verdict.is_pass());
    let wrong = super::script::history_with(script, &format!("{first}true}}\n"));
    let Verdict::Fail(violation) = certificate::check(&wrong).verdict else { panic!("a lost predecessor passes") };
    assert_eq!(violation.what, "by the rules the ticket at p1#0.1 does not count, by the replicas it does");
}

#[test]
fn e_an_aborted_query_stays_aborted() {
    let logs = "log p1: Q1 x
                log p2: y Q1";
    wrong(&format!(
        "c1 10 20 put a=x -> - @ p1#2
         c1 30 40 put j=y -> - @ p2#1
         c2 5 50 range a..s -> [j=y] @ p1#1 p2#2 ~1
         {logs}"
    ));
    right(&format!(
        "c1 10 20 put a=x -> - @ p1#2
         c1 30 40 put j=y -> - @ p2#1
         c2 5 range a..s
         {logs}"
    ));
}

#[test]
fn f_a_part_shows_the_position_of_its_ticket_not_the_tip() {
    let [zero, _] = wrong(
        "c1 20 30 put j=y -> - @ p2#2
         c1 31 40 put a=x -> - @ p1#2
         c2 5 50 range a..s -> [a=x] @ p1#1 p2#1 ~1
         log p1: Q1 x
         log p2: Q1 y",
    );
    assert!(zero.contains("a was seen as x, and is nothing"), "{zero}");
    right(
        "c1 20 30 put j=y -> - @ p2#2
         c1 31 40 put a=x -> - @ p1#2
         c2 5 50 range a..s -> [] @ p1#1 p2#1 ~1
         log p1: Q1 x
         log p2: Q1 y",
    );
}

#[test]
fn the_cycle_of_a_is_the_shortest() {
    let history = history(
        "c1 10 20 put a=x -> - @ p1#2
         c1 30 40 put j=y -> - @ p2#1
         c2 5 50 range a..s -> [j=y] @ p1#1 p2#2 ~1
         log p1: Q1 x
         log p2: y Q1",
    );
    let [zero, _, graph] = verdicts(&history);
    for verdict in [zero, graph] {
        let Verdict::Fail(violation) = verdict else { panic!("passed") };
        assert_eq!(violation.cycle.len(), 3);
        assert_eq!(violation.cycle.iter().filter(|link| link.why == Why::Time).count(), 1);
        let page = super::super::timeline::html(&history, &violation);
        assert!(page.contains("<svg") && page.matches("class=\"arrow\"").count() == 3 && page.ends_with("</html>\n"));
    }
}

/// A range that was collected: found unchanged in p1 before x, and in p2 behind y. Both lie outside of what it read.
#[test]
fn g_what_was_collected_stands_before_the_next_change_of_what_it_read() {
    right(
        "c1 10 20 put a=x -> - @ p1#1
         c1 30 40 put r=y -> - @ p2#1
         c2 5 50 range c..k -> [] @ p1#0 p2#1
         log p1: x
         log p2: y",
    );
}

/// The same with x and y inside: no moment had y and not x.
#[test]
fn g_parts_that_were_read_one_after_the_other_are_no_moment() {
    let [zero, graph] = wrong(
        "c1 10 20 put d=x -> - @ p1#1
         c1 30 40 put j=y -> - @ p2#1
         c2 5 50 range c..k -> [j=y] @ p1#0 p2#1
         log p1: x
         log p2: y",
    );
    for words in [zero, graph] {
        assert!(words.contains("put #1 was answered 10 ns before put #2 was invoked"), "{words}");
    }
}

/// An insert that finds the key there changes nothing, wherever it stands: it counts, and is no change.
#[test]
fn g_a_command_that_changed_nothing_is_no_change() {
    right(
        "c1 1 2 put d=v -> - @ p1#1
         c1 10 20 insert d=x -> v @ p1#2
         c1 30 40 put r=y -> - @ p2#1
         c2 5 50 range c..k -> [d=v] @ p1#1 p2#1
         log p1: v x
         log p2: y",
    );
}

/// The same, but nobody heard of the insert: the log tells that it changed nothing. It stands in p1 before the position
/// where the range was found unchanged, and was asked after a change in p2 behind that was answered.
#[test]
fn g_what_was_never_answered_is_a_change_if_the_log_says_so() {
    let script = |before: &str| {
        format!(
            "c1 1 2 put {before}=v -> - @ p1#1
             c1 10 20 put j=y -> - @ p2#1
             c3 30 insert d=x
             c2 5 50 range c..k -> [d=v] @ p1#2 p2#0
             log p1: v x
             log p2: y"
        )
    };
    right(&script("d"));
    let inserted = history(&script("e").replace("[d=v]", "[d=x e=v]"));
    assert!(
        certificate::check(&inserted).verdict.is_fail(),
        "an insert that was asked for after y is seen, and y is not"
    );
}

/// What it gave out must have been there: a wrong position, or a wrong pair, is found.
#[test]
fn g_what_was_collected_is_replayed() {
    for (given, at) in [("[]", "p1#1 p2#0"), ("[d=x]", "p1#0 p2#1"), ("[d=x j=w]", "p1#1 p2#0")] {
        let script = format!(
            "c1 10 20 put d=x -> - @ p1#1
             c3 55 60 put j=w -> - @ p2#1
             c2 25 50 range c..k -> {given} @ {at}
             log p1: x
             log p2: w"
        );
        let history = history(&script);
        assert!(certificate::check(&history).verdict.is_fail(), "{given} {at}");
    }
}
