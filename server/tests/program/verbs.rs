//! Every data verb against one node and four partitions: what is printed, and how it exits.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde_json::Value;

use crate::support::{Cluster, Said};

/// One cluster for the tests here that run at the same time; each uses keys of its own. It ends with the last of them.
fn cluster() -> Arc<Cluster> {
    static CLUSTER: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
    let mut shared = CLUSTER.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let cluster = Arc::new(Cluster::formed(1, "g,n,t"));
        *shared = Arc::downgrade(&cluster);
        cluster
    })
}

fn run(cluster: &Cluster, line: &str) -> Said {
    cluster.run(&line.split(' ').collect::<Vec<_>>())
}

#[track_caller]
fn expect(cluster: &Cluster, line: &str, code: i32, out: &str, err: &str) {
    let said = run(cluster, line);
    let plain = |text: &str| positions_hidden(text);
    assert_eq!((said.code, plain(&said.out).as_str(), plain(&said.err).as_str()), (code, out, err), "{line}");
}

/// Positions depend on what other tests do meanwhile: `p1#12.0` becomes `p1#.`.
fn positions_hidden(text: &str) -> String {
    let mut hidden = String::new();
    let mut skip = false;
    for letter in text.chars() {
        if skip && (letter.is_ascii_digit() || letter == '.') {
            continue;
        }
        skip = letter == '#';
        hidden.push(letter);
        if skip {
            hidden.push('.');
        }
    }
    hidden
}

fn json(cluster: &Cluster, line: &str) -> Value {
    let said = run(cluster, line);
    serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{line}: {error}: {said:?}"))
}

#[test]
fn help_is_plain_text_where_nobody_reads_it_on_a_terminal() {
    for (words, code) in [(&["--help"][..], 0), (&["put", "--help"], 0), (&[], 2)] {
        let said = crate::support::run(words);
        assert_eq!(said.code, code, "{said:?}");
        assert!(said.out.contains("Usage: ") || said.err.contains("Usage: "), "{said:?}");
        assert!(!said.out.contains('\u{1b}') && !said.err.contains('\u{1b}'), "{said:?}");
    }
}

#[test]
fn writes_tell_what_was_there() {
    let cluster = &*cluster();
    expect(cluster, "put apple red", 0, "ok  p1#.\n", "");
    expect(cluster, "put apple green", 0, "ok  p1#.  was red\n", "");
    expect(cluster, "get apple", 0, "green", "");
    expect(cluster, "get apple -o table", 0, "green\n", "");
    expect(cluster, "delete apple", 0, "ok  p1#.  was green\n", "");
    expect(cluster, "delete apple", 4, "", "not found: apple\n");
    expect(cluster, "get apple", 4, "", "not found: apple\n");
}

#[test]
fn insert_never_overwrites() {
    let cluster = &*cluster();
    expect(cluster, "insert heron 1", 0, "ok  p2#.\n", "");
    expect(cluster, "insert heron 2", 5, "1", "exists: heron  p2#.\n");
    expect(cluster, "get heron", 0, "1", "");
}

#[test]
fn cas_writes_only_over_what_it_expects() {
    let cluster = &*cluster();
    expect(cluster, "cas owl 1 2", 5, "", "mismatch: owl  p3#.\nnot found: owl\n");
    expect(cluster, "put owl 1", 0, "ok  p3#.\n", "");
    expect(cluster, "cas owl 1 2", 0, "ok  p3#.  was 1\n", "");
    expect(cluster, "cas owl 1 3", 5, "2", "mismatch: owl  p3#.\n");
}

#[test]
fn an_empty_value_is_a_value() {
    let cluster = &*cluster();
    let said = cluster.run(&["put", "empty", ""]);
    assert_eq!(said.code, 0, "{said:?}");
    expect(cluster, "get empty", 0, "", "");
    assert_eq!(json(cluster, "get empty -o json")["value"], "");
}

#[test]
fn json_has_a_place_for_every_byte_string() {
    let cluster = &*cluster();
    run(cluster, "put zebra striped");
    let object = json(cluster, "get zebra -o json");
    assert_eq!((&object["v"], &object["found"], &object["value"]), (&1.into(), &true.into(), &"striped".into()));
    assert!(object["position"].as_str().is_some_and(|position| position.starts_with("p4#")));
    assert_eq!(json(cluster, "get zebu -o json")["found"], false);
    let said = cluster.run_with_input(&["put", "zorilla", "-"], b"\xff\x00x");
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(json(cluster, "get zorilla -o json")["value_b64"], "/wB4");
    expect(cluster, "get zorilla -o table", 0, "0xff0078\n", "");
    assert_eq!(cluster.run(&["get", "zorilla", "--hex"]).code, 2, "zorilla is no hex");
}

#[test]
fn values_come_from_stdin_and_files() {
    let cluster = &*cluster();
    let file = cluster.scratch.path("value");
    std::fs::write(&file, "from a file\n").expect("it is writable");
    let argument = format!("@{}", file.display());
    assert_eq!(cluster.run(&["put", "fig", &argument]).code, 0);
    expect(cluster, "get fig", 0, "from a file\n", "");
    assert_eq!(cluster.run_with_input(&["put", "fig", "-"], b"from stdin").code, 0);
    expect(cluster, "get fig", 0, "from stdin", "");
}

#[test]
fn numbers_are_ordered_as_numbers() {
    let cluster = &*cluster();
    for number in [9, 10, 2, 300] {
        assert_eq!(run(cluster, &format!("put {number} {number} --int")).code, 0);
    }
    let said = run(cluster, "scan 2..300 --int -o table");
    assert_eq!((said.code, said.out.as_str()), (0, "2  2\n9  9\n10  10\n"), "{}", said.err);
}

#[test]
fn scans_stream_in_both_directions_with_limits_and_pages() {
    let cluster = &*cluster();
    for key in ["ca", "cb", "cc", "cd"] {
        assert_eq!(run(cluster, &format!("put {key} {key}")).code, 0);
    }
    expect(cluster, "scan ca..cd", 0, "ca\tca\ncb\tcb\ncc\tcc\n", "3 keys from p1, one moment: p1#.\n");
    expect(cluster, "scan ca..=cd --reverse --keys-only", 0, "cd\ncc\ncb\nca\n", "4 keys from p1, one moment: p1#.\n");
    // Other tests have other keys that begin with "c".
    expect(cluster, "scan --prefix cc --count", 0, "1\n", "1 key from p1, one moment: p1#.\n");
    expect(cluster, "scan --from cb --to cd -q", 0, "cb\tcb\ncc\tcc\n", "");
    for reverse in [false, true] {
        let flag = if reverse { " --reverse" } else { "" };
        let mut seen = Vec::new();
        let mut after = String::new();
        loop {
            let page = json(cluster, &format!("scan ca..ce --limit 3 -o json{flag}{after}"));
            seen.extend(
                page["pairs"]
                    .as_array()
                    .expect("pairs")
                    .iter()
                    .map(|pair| pair["key"].as_str().expect("text").to_owned()),
            );
            match page["after"].as_str() {
                Some(token) => after = format!(" --after {token}"),
                None => break,
            }
        }
        if reverse {
            seen.reverse();
        }
        assert_eq!(seen, ["ca", "cb", "cc", "cd"]);
    }
    let page = json(cluster, "scan ca..ce --bytes 8B -o json");
    assert_eq!(page["pairs"].as_array().map(Vec::len), Some(2));
    assert_eq!(run(cluster, "scan ca..ce --after nonsense").code, 2);
}

#[test]
fn a_large_scan_is_streamed_whole() {
    let cluster = &*cluster();
    let value = "x".repeat(60_000);
    for number in 0..40 {
        assert_eq!(cluster.run_with_input(&["put", &format!("tl{number:02}"), "-"], value.as_bytes()).code, 0);
    }
    let said = run(cluster, "scan --prefix tl");
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(said.out.lines().count(), 40);
    assert!(said.out.lines().all(|line| line.len() == 60_000 + 5));
}

/// With a ticket, or without one if nothing changed while it was read.
#[test]
fn a_scan_over_several_partitions_is_one_moment() {
    let cluster = &*cluster();
    run(cluster, "put bee 1");
    run(cluster, "put kiwi 1");
    for line in ["scan a..z", "scan a..z --reverse"] {
        let said = run(cluster, line);
        assert_eq!(said.code, 0, "{said:?}");
        assert!(said.out.contains("bee\t1\n") && said.out.contains("kiwi\t1\n"), "{said:?}");
        let moment = ["one moment: ticket ~", "one moment: p1#"];
        let backwards = "one moment: p4#";
        assert!(moment.iter().chain([&backwards]).any(|moment| said.err.contains(moment)), "{}", said.err);
        assert_eq!(said.out.find("bee") > said.out.find("kiwi"), line.ends_with("--reverse"));
    }
    let said = json(cluster, "scan bee..kiwi --count -o json");
    assert_eq!(said["positions"].as_array().map(Vec::len), Some(2), "{said}");
    assert!(said["count"].as_u64() > Some(0), "{said}");
    let said = run(cluster, "scan a..z --stale");
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.out.contains("bee\t1\n") && said.out.contains("kiwi\t1\n"));
    assert!(said.err.contains("stale"), "{}", said.err);
}

#[test]
fn what_is_too_large_is_refused_before_it_is_sent() {
    let cluster = &*cluster();
    let key = "k".repeat(4097);
    let said = cluster.run(&["put", &key, "1"]);
    assert_eq!(said.code, 2, "{said:?}");
    assert_eq!(cluster.run_with_input(&["put", "big", "-"], &vec![b'x'; (1 << 20) + 1]).code, 2);
    assert_eq!(cluster.run_with_input(&["put", "big", "-"], &vec![b'x'; 1 << 20]).code, 0);
}

#[test]
fn a_closed_pipe_is_no_error() {
    let cluster = &*cluster();
    use std::process::Stdio;
    run(cluster, "put pipe 1");
    let mut command = crate::support::program();
    command.args(["--endpoints", &cluster.endpoints(), "scan", "n..t"]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the program starts");
    drop(child.stdout.take());
    assert!(child.wait().expect("it ends").success());
}

/// How a verb ends whose stdout and stderr nobody reads.
fn unread(endpoints: &str, line: &str) -> Option<i32> {
    use std::process::Stdio;
    let mut command = crate::support::program();
    command.args(["--endpoints", endpoints]).args(line.split(' '));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    drop((child.stdout.take(), child.stderr.take()));
    child.wait().expect("it ends").code()
}

/// Whatever failed ended with 0 when the other end of the pipe was closed.
#[test]
fn a_closed_pipe_hides_no_failure() {
    let cluster = &*cluster();
    run(cluster, "put closed 1");
    assert_eq!(cluster.run_with_input(&["put", "closedlarge", "-"], &vec![b'x'; 1 << 20]).code, 0);
    let cases = [
        ("get closed", 0),
        ("get closednot -o json", 4),
        ("insert closed 2", 5),
        ("insert closedlarge 2", 5),
        ("insert closedlarge 2 -o json", 5),
        ("gte closed", 2),
    ];
    for (line, code) in cases {
        assert_eq!(unread(&cluster.endpoints(), line), Some(code), "{line}");
    }
    assert_eq!(unread("127.0.0.1:1", "put closed 2 --timeout 200ms"), Some(3));
}

/// A full device ended the program with 1 and without a word, though the write was done.
#[test]
fn output_that_cannot_be_written_is_told_in_four_lines() {
    let cluster = &*cluster();
    let endpoints = cluster.endpoints();
    for (line, what) in [
        ("put full 1", "error: put: it was carried out, and stdout cannot be written: "),
        ("get full", "error: get: it was carried out, and stdout cannot be written: "),
        ("man scan", "error: man: it"),
        ("--help", "error: coppice: it ends here: "),
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
        let mut command = crate::support::program();
        if line != "--help" {
            command.args(["--endpoints", &endpoints]);
        }
        let said = command.args(line.split(' ')).stdout(full).output().expect("the program starts");
        let err = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(1), "{line}: {err}");
        assert!(err.starts_with(what) && err.lines().count() == 4, "{line}: {err}");
    }
    expect(cluster, "get full", 0, "1", "");
}

#[test]
fn a_count_that_a_limit_ends_says_where_it_goes_on() {
    let cluster = &*cluster();
    for key in ["countedone", "countedthree", "countedtwo"] {
        run(cluster, &format!("put {key} 1"));
    }
    let page = json(cluster, "scan --prefix counted --count --limit 2 -o json");
    let after = page["after"].as_str().unwrap_or_else(|| panic!("{page}"));
    let rest = json(cluster, &format!("scan --prefix counted --count -o json --after {after}"));
    assert_eq!((&page["count"], &rest["count"], &rest["after"]), (&2.into(), &1.into(), &Value::Null));
    let said = run(cluster, "scan --prefix counted --count --bytes 11B");
    assert!(said.out == "1\n" && said.err.contains("more: --after "), "{said:?}");
}
