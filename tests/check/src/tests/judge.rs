//! Each rule of the certificate's judge, and each check beyond linearizability, is seen to complain.

use super::super::beyond::{Finding, checks};
use super::super::certificate;
use super::super::generate::{Gate, Shape, events};
use super::super::history::History;
use super::super::verdict::Verdict;
use super::script::{history, history_with};

const SCRIPT: &str = "c1 10 20 put a=x -> - @ p1#1
                      c1 30 40 put b=y -> - @ p1#2
                      c2 35 50 get a -> x @ p1#2
                      c2 60 70 range .. -> [a=x b=y] @ p1#2 p2#0 p3#0 ~1";

#[track_caller]
fn fails(history: &History, words: &str) {
    match certificate::check(history).verdict {
        Verdict::Fail(violation) => assert!(violation.what.contains(words), "{}", violation.what),
        other => panic!("{other:?}"),
    }
}

/// The script with its one query placed in all logs.
fn whole() -> String {
    format!("{}\nlog p1: x y Q1\nlog p2: Q1\nlog p3: Q1", SCRIPT.replace("p1#2 p2#0 p3#0", "p1#3 p2#1 p3#1"))
}

#[test]
fn the_script_itself_passes() {
    let verdict = certificate::check(&history(&whole())).verdict;
    assert!(verdict.is_pass(), "{verdict:?}");
}

#[test]
fn an_answered_write_that_is_in_no_log_is_lost() {
    fails(&history(&whole().replace("log p1: x y Q1", "log p1: x Q1")), "it is lost");
}

#[test]
fn an_answer_at_another_position_is_lost() {
    fails(&history(&whole().replace("-> - @ p1#2", "-> - @ p1#1")), "not the position in its answer");
}

#[test]
fn a_command_that_nobody_invoked_is_invented() {
    let more = r#"{"e":"log","p":1,"r":1,"i":4,"x":0,"do":"cmd","c":9,"n":9,"op":"put","k":"c","v":"z","hit":true}"#;
    fails(&history_with(&whole(), more), "which nobody invoked");
}

#[test]
fn a_command_with_another_content_is_corrupt() {
    let more = r#"{"e":"log","p":1,"r":1,"i":4,"x":0,"do":"cmd","c":1,"n":1,"op":"put","k":"a","v":"z","hit":false}"#;
    fails(&history_with(&whole(), more), "another content");
}

#[test]
fn a_repeated_number_does_not_count_again() {
    let line = r#"{"e":"log","p":1,"r":1,"i":4,"x":0,"do":"cmd","c":1,"n":1,"op":"put","k":"a","v":"x","hit":"#;
    let right = history_with(&whole(), &format!("{line}false}}"));
    assert!(certificate::check(&right).verdict.is_pass());
    fails(&history_with(&whole(), &format!("{line}true}}")), "by the rules the command at p1#4.0 does not count");
}

#[test]
fn a_number_that_counts_in_two_partitions_takes_effect_twice() {
    // p2 was never split off p1: it does not know the sessions of p1. (Its bounds are moved to have the key.)
    let line = r#"{"e":"log","p":2,"r":1,"i":2,"x":0,"do":"cmd","c":1,"n":1,"op":"put","k":"a","v":"x","hit":true}"#;
    let json = super::script::json(&whole()).replace(r#""lo":"j""#, r#""lo":"""#) + line;
    let mut builder = super::super::build::Builder::default();
    super::super::read::read("test", json.as_bytes(), |event| builder.push(&event)).expect("well-formed");
    fails(&builder.finish().expect("well-formed"), "takes effect twice");
}

#[test]
fn a_refused_command_must_not_take_effect() {
    fails(&history(&whole().replace("put b=y -> - @ p1#2", "put b=y -> refused")), "sure error");
}

#[test]
fn a_command_outside_of_the_bounds_does_not_count() {
    let script = "c1 10 20 put j=x -> - @ p1#1\nlog p1: x\nlog p2:";
    fails(&history(script), "by the rules the command at p1#1.0 does not count");
}

#[test]
fn a_command_below_the_lowest_unacknowledged_number_does_not_count() {
    let script = "c1 10 put a=x
                  c1 30 40 put b=y -> - @ p1#1
                  log p1: y";
    let json = super::script::json(script)
        .replace(r#""n":2,"op":"put","k":"b","v":"y","hit""#, r#""n":2,"low":2,"op":"put","k":"b","v":"y","hit""#);
    let late = r#"{"e":"log","p":1,"r":1,"i":2,"x":0,"do":"cmd","c":1,"n":1,"op":"put","k":"a","v":"x","hit":"#;
    for (hit, passes) in [(false, true), (true, false)] {
        let text = format!("{json}{late}{hit}}}\n");
        let mut builder = super::super::build::Builder::default();
        super::super::read::read("test", text.as_bytes(), |event| builder.push(&event)).expect("well-formed");
        let verdict = certificate::check(&builder.finish().expect("well-formed")).verdict;
        assert_eq!(verdict.is_pass(), passes, "{verdict:?}");
    }
}

#[test]
fn replicas_that_disagree_fail() {
    let other = r#"{"e":"log","p":1,"r":2,"i":1,"x":0,"do":"cmd","c":1,"n":2,"op":"put","k":"b","v":"y","hit":true}"#;
    let history = history_with(&whole(), other);
    fails(&history, "disagree on the entry p1#1.0");
    assert!(matches!(&checks(&history, None)[0].2, Finding::Fail(what) if what.contains("disagree")));
    let longer = r#"{"e":"log","p":1,"r":2,"i":1,"x":0,"do":"cmd","c":1,"n":1,"op":"put","k":"a","v":"x","hit":true}
{"e":"log","p":1,"r":2,"i":1,"x":1,"do":"noop"}"#;
    fails(&history_with(&whole(), longer), "not all of [1, 2] have exactly one entry p1#1.1");
}

#[test]
fn a_dump_with_a_hole_fails() {
    let more = r#"{"e":"log","p":1,"r":1,"i":5,"x":0,"do":"noop"}"#;
    fails(&history_with(&whole(), more), "no dump has the instance before p1#5");
}

#[test]
fn parts_must_tile_the_range() {
    fails(&history(&whole().replace("p1#3 p2#1 p3#1", "p1#3 p3#1")), "do not tile");
    fails(&history(&whole().replace("p1#3 p2#1 p3#1", "p1#3 p2#0 p3#1")), "does not count at p2#0.0");
    // Without a ticket they are one moment if the order says so.
    let collected = history(&whole().replace("p1#3 p2#1 p3#1 ~1", "p1#3 p2#1 p3#1"));
    assert!(certificate::check(&collected).verdict.is_pass());
}

#[test]
fn a_read_behind_a_later_write_closes_a_cycle() {
    // b was written and answered before the get was invoked, but the get says that it stands before that.
    let script = whole().replace("c2 35 50 get a -> x @ p1#2", "c2 45 50 get a -> x @ p1#1");
    fails(&history(&script), "no order of the operations agrees");
    let positions = &checks(&history(&script), None)[3].2;
    assert!(matches!(positions, Finding::Fail(what) if what.contains("get #3 has p1#1.0")), "{positions:?}");
}

#[test]
fn a_read_saw_all_of_its_instance_but_a_part_of_a_query_stands_at_its_ticket() {
    // A batch of two was answered before each of the others; nodes name the first place of the instance that they read.
    let found = |line: &str| {
        let script = format!("c1 10 20 put a=x -> - @ p1#7.0\nc2 10 20 put b=y -> - @ p1#7.1\n{line}");
        checks(&history(&script), None)[3].2.clone()
    };
    let [get, range] = ["c1 30 40 get b -> y @", "c1 30 40 range a..c -> [a=x b=y] @"];
    assert_eq!(found(&format!("{get} p1#7.0")), Finding::Pass(3));
    assert_eq!(found(&format!("{range} p1#7.0")), Finding::Pass(3));
    assert!(matches!(found(&format!("{get} p1#6.9")), Finding::Fail(what) if what.contains("get #3 has p1#6.9")));
    assert!(
        matches!(found(&format!("{range} p1#7.0 ~1")), Finding::Fail(what) if what.contains("range #3 has p1#7.0"))
    );
}

#[test]
fn a_stale_read_shows_its_position_exactly() {
    let stale = |seen: &str, place: u64| {
        format!(
            "{{\"e\":\"inv\",\"id\":9,\"at\":90,\"c\":7,\"n\":1,\"op\":\"get\",\"k\":\"b\",\"stale\":true}}\n\
             {{\"e\":\"ret\",\"id\":9,\"at\":95,\"st\":\"ok\",\"out\":{seen},\"pos\":[[1,{place},0]]}}\n"
        )
    };
    assert!(certificate::check(&history_with(&whole(), &stale("null", 1))).verdict.is_pass());
    assert!(certificate::check(&history_with(&whole(), &stale("\"y\"", 2))).verdict.is_pass());
    fails(&history_with(&whole(), &stale("null", 2)), "stale");
}

#[test]
fn repeated_answers_must_be_identical() {
    let again = r#"{"e":"ret","id":1,"at":80,"st":"ok","out":null,"pos":[[1,1,0]]}"#;
    assert!(matches!(checks(&history_with(&whole(), again), None)[2].2, Finding::Pass(_)));
    let other = r#"{"e":"ret","id":1,"at":80,"st":"ok","out":null,"pos":[[1,2,0]]}"#;
    assert!(matches!(checks(&history_with(&whole(), other), None)[2].2, Finding::Fail(_)));
}

#[test]
fn digests_must_agree() {
    let digest =
        |replica: u32, state: &str| format!("{{\"e\":\"digest\",\"p\":1,\"r\":{replica},\"i\":2,\"d\":\"{state}\"}}\n");
    let finding = |second: &str| checks(&history_with("", &(digest(1, "aa") + &digest(2, second))), None)[0].2.clone();
    assert_eq!(finding("aa"), Finding::Pass(1));
    assert!(matches!(finding("ab"), Finding::Fail(what) if what.contains("digests")));
}

#[test]
fn a_ladder_has_no_gap_and_a_token_is_at_one_place() {
    let finding = |at: usize, script: &str| checks(&history(script), None)[at].2.clone();
    let ladder = "c1 10 20 insert a~L1.1=1.1 -> -
                  c1 30 40 insert s~L1.2=1.2 -> -
                  c2 5 50 range .. -> ";
    assert!(matches!(finding(4, &format!("{ladder}[a~L1.1=1.1 s~L1.2=1.2]")), Finding::Pass(_)));
    assert!(matches!(finding(4, &format!("{ladder}[s~L1.2=1.2]")), Finding::Fail(_)));
    let token = "c1 1 2 insert a~T1=1.1 -> -
                 c1 10 20 delete a~T1 -> 1.1
                 c1 30 40 insert s~T1=1.2 -> -
                 c2 5 50 range .. -> ";
    assert!(matches!(finding(5, &format!("{token}[]")), Finding::Pass(_)));
    assert!(matches!(finding(5, &format!("{token}[a~T1=1.1 s~T1=1.2]")), Finding::Fail(_)));
    let token = "c1 1 2 insert a~U1=1.1 -> -
                 c1 10 20 insert s~U1=1.2 -> -
                 c1 30 40 delete a~U1 -> 1.1
                 c2 5 50 range .. -> ";
    assert!(matches!(finding(5, &format!("{token}[a~U1=1.1 s~U1=1.2]")), Finding::Pass(_)));
    assert!(matches!(finding(5, &format!("{token}[]")), Finding::Fail(_)));
}

#[test]
fn ladders_and_tokens_show_a_missing_gate_and_accuse_no_right_one() {
    let findings = |seed: u64, gate: Gate| {
        let shape = Shape {
            seed,
            operations: 400,
            clients: 6,
            keys: 160,
            marks: 500,
            ranges: 250,
            whole: 700,
            changes: 10,
            coordinators: 10,
            unanswered: 2,
            refused: 10,
            logs: false,
            gate,
            ..Shape::default()
        };
        let history = History::from_events(&events(&shape)).expect("well-formed");
        let found = checks(&history, None);
        [found[4].2.clone(), found[5].2.clone()]
    };
    let (mut caught, mut checked) = ([0, 0], [0, 0]);
    for seed in 0..150 {
        for (check, finding) in findings(seed, Gate::Right).into_iter().enumerate() {
            assert!(!matches!(finding, Finding::Fail(_)), "seed {seed}: {finding:?}");
            checked[check] += u32::from(matches!(finding, Finding::Pass(_)));
        }
        for (check, finding) in findings(seed, Gate::Off).into_iter().enumerate() {
            caught[check] += u32::from(matches!(finding, Finding::Fail(_)));
        }
    }
    println!("without a gate: B5 fails in {} of 150 histories, B6 in {}", caught[0], caught[1]);
    assert!(checked.iter().all(|count| *count > 140), "{checked:?}");
    assert!(caught.iter().all(|count| *count > 5), "{caught:?}");
}

/// A real run had such a read: the client's map had two partitions where there was but one by then, which it so asked
/// twice.
#[test]
fn parts_of_a_stale_read_may_be_from_before_and_after_a_merge() {
    let script = "c1 10 20 put a=x -> - @ p1#1
                  c1 30 40 put k=y -> - @ p2#1
                  log p1: x
                  log p2: y";
    let read = |out: &str, positions: &str, more: &str| {
        let seal = r#""i":2,"x":0,"do":"seal","id":1,"tk":[1,1,1],"prev":null,"hit":true}"#;
        let take = r#""i":2,"x":0,"do":"merge","id":2,"from":[[2,2,0]],"tk":[1,1,2],"prev":null,"hit":true}"#;
        let lines: [&str; 4] = [
            &format!(r#"{{"e":"log","p":2,"r":1,{seal}"#),
            &format!(r#"{{"e":"log","p":1,"r":1,{take}"#),
            &format!(r#"{{"e":"inv","id":9,"at":90,"c":7,"n":1,"op":"range","lo":"","hi":"s","stale":true{more}}}"#),
            &format!(r#"{{"e":"ret","id":9,"at":95,"st":"ok","out":{out},"pos":{positions}}}"#),
        ];
        history_with(script, &lines.join("\n"))
    };
    let whole = r#"[["a","x"],["k","y"]]"#;
    for (positions, more) in [
        ("[[1,1,0],[1,2,0]]", ""),
        ("[[1,2,0],[1,2,0]]", ""),
        ("[[1,2,0],[2,1,0]]", ""),
        ("[[1,2,0],[1,1,0]]", r#","rev":true"#),
    ] {
        let verdict = certificate::check(&read(whole, positions, more)).verdict;
        assert!(verdict.is_pass(), "{positions}: {verdict:?}");
    }
    fails(&read(r#"[["a","x"]]"#, "[[1,1,0],[1,2,0]]", ""), "no places where its parts may meet");
    fails(&read(whole, "[[1,1,0],[1,1,0]]", ""), "do not tile");
}

/// A real run had such a read: one replica had not executed the split yet, another one was the child already.
#[test]
fn parts_of_a_stale_read_may_be_from_before_and_after_a_split() {
    let script = "c1 10 20 put a=x -> - @ p1#1
                  c1 30 40 put f=y -> - @ p1#2
                  log p1: x y";
    let read = |out: &str, positions: &str| {
        let split = r#""i":3,"x":0,"do":"split","id":1,"k":"d","to":5,"tk":[1,1,1],"prev":null,"hit":true}"#;
        let born = r#""i":3,"x":0,"do":"born","from":[[1,3,0]],"lo":"d","hi":"j","tk":[1,1,1],"hit":true}"#;
        let lines = [
            &format!(r#"{{"e":"log","p":1,"r":1,{split}"#),
            &format!(r#"{{"e":"log","p":5,"r":1,{born}"#),
            r#"{"e":"inv","id":9,"at":90,"c":7,"n":1,"op":"range","lo":"","hi":"j","stale":true}"#,
            &format!(r#"{{"e":"ret","id":9,"at":95,"st":"ok","out":{out},"pos":{positions}}}"#),
        ];
        history_with(script, &lines.join("\n"))
    };
    let whole = r#"[["a","x"],["f","y"]]"#;
    for before in [1, 2, 3] {
        let verdict = certificate::check(&read(whole, &format!("[[1,{before},0],[5,3,0]]"))).verdict;
        assert!(verdict.is_pass(), "{verdict:?}");
    }
    fails(&read(r#"[["a","x"]]"#, "[[1,1,0],[5,3,0]]"), "a stale read differs from the state of p5");
    fails(&read(r#"[["f","y"]]"#, "[[5,3,0]]"), "do not tile");
}

/// Seed 1816: a partition was split and its child merged back some thirty times. Each round doubled the list of logs
/// that the judge took the partition for a continuation of, until the machine's memory was full.
#[test]
fn a_partition_that_splits_and_merges_again_and_again_has_one_past() {
    let mut lines = Vec::new();
    let mut at = 1;
    for round in 0..64 {
        // Of the split, the seal and the merge; the seal is the child's alone.
        let [split, seal, merge] = [3 * round + 1, 3 * round + 2, 3 * round + 3];
        let before = if round == 0 { "null".into() } else { format!("[1,1,{}]", split - 1) };
        let (child, begun, sealed, taken) = (10 + round, at + 1, at + 2, at + 3);
        let line = |partition: u32, instance: u32, rest: &str| {
            format!(r#"{{"e":"log","p":{partition},"r":1,"i":{instance},"x":0,{rest},"hit":true}}"#)
        };
        let place = |ticket: u32, before: &str| format!(r#""tk":[1,1,{ticket}],"prev":{before}"#);
        let (first, later) = (place(split, &before), format!("[1,1,{split}]"));
        let (seals, takes) = (place(seal, &later), place(merge, &later));
        lines.extend([
            line(1, begun, &format!(r#""do":"split","id":{split},"k":"d","to":{child},{first}"#)),
            line(child, begun, &format!(r#""do":"born","from":[[1,{begun},0]],"lo":"d","hi":"j","tk":{later}"#)),
            line(child, sealed, &format!(r#""do":"seal","id":{seal},{seals}"#)),
            line(1, sealed, r#""do":"noop""#),
            line(1, taken, &format!(r#""do":"merge","id":{merge},"from":[[{child},{sealed},0]],{takes}"#)),
        ]);
        at = taken;
    }
    let repeated = |number: u32, hit: bool| {
        let command = format!(r#""do":"cmd","c":1,"n":{number},"op":"put","k":"f","v":"y","hit":{hit}}}"#);
        format!(r#"{{"e":"log","p":1,"r":1,"i":{},"x":0,{command}"#, at + 1)
    };
    let script = "c1 10 20 put f=y -> - @ p1#1\nlog p1: y";
    let told = |last: String| history_with(script, &[&lines[..], &[last]].concat().join("\n"));
    let verdict = certificate::check(&told(repeated(1, false))).verdict;
    assert!(verdict.is_pass(), "{verdict:?}");
    fails(&told(repeated(1, true)), "does not count");
}
