//! What each verb prints in each format, on stdout and on stderr.

use std::time::Duration;

use super::args::Format;
use super::golden;
use super::output::{Output, ScanEnd, Style, WriteOutcome, time_left};
use crate::text::Coding;

type Print = fn(&mut Output<'_>) -> std::io::Result<super::Exit>;

fn transcript(name: &str, cases: &[(&str, Print)]) {
    let mut text = String::new();
    for (title, print) in cases {
        for (flag, format, coding) in [
            ("-o table", Format::Table, Coding::Plain),
            ("-o raw", Format::Raw, Coding::Plain),
            ("-o json", Format::Json, Coding::Plain),
            ("-o jsonl", Format::Jsonl, Coding::Plain),
            ("-o table --int", Format::Table, Coding::Int),
            ("-o json --int", Format::Json, Coding::Int),
            ("-o json --hex", Format::Json, Coding::Hex),
            ("-o raw --base64", Format::Raw, Coding::Base64),
        ] {
            let (mut data, mut notes) = (Vec::new(), Vec::new());
            let style = Style { format: Some(format), coding, quiet: false, terminal: false, color: false };
            let exit = print(&mut Output { style, data: &mut data, notes: &mut notes }).expect("memory takes it");
            text.push_str(&format!("{title} {flag}: exit {}\n", exit as u8));
            for (stream, bytes) in [("out", &data), ("err", &notes)] {
                for line in bytes.split_inclusive(|byte| *byte == b'\n') {
                    text.push_str(&format!("  {stream} {}\n", line.escape_ascii()));
                }
            }
        }
    }
    golden::check(name, &text);
}

const EIGHT: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 42];
const BINARY: &[u8] = &[0xff, 0, b'x'];

#[test]
fn get_prints_a_value_or_that_there_is_none() {
    transcript(
        "get",
        &[
            ("get a text", |o| o.get(b"apple", Some(b"dark red"), "p1#13.0")),
            ("get nothing", |o| o.get(b"nokey", None, "p1#13.0")),
            ("get an empty value", |o| o.get(b"apple", Some(b""), "p1#13.0")),
            ("get bytes", |o| o.get(EIGHT, Some(BINARY), "p1#13.0")),
        ],
    );
}

#[test]
fn writes_print_their_position_and_what_was_there() {
    transcript(
        "writes",
        &[
            ("a first put", |o| o.write(b"apple", &WriteOutcome::Done { previous: None }, "p1#12.0")),
            ("a second put", |o| o.write(b"apple", &WriteOutcome::Done { previous: Some(b"red") }, "p1#13.0")),
            ("a put over bytes", |o| o.write(EIGHT, &WriteOutcome::Done { previous: Some(BINARY) }, "p1#13.0")),
            ("a delete of nothing", |o| o.write(b"nokey", &WriteOutcome::NotFound, "p1#14.0")),
            ("an insert over something", |o| {
                o.write(b"apple", &WriteOutcome::Refused { word: "exists", current: Some(b"red") }, "p1#15.0")
            }),
            ("a cas that fits nothing", |o| {
                o.write(b"nokey", &WriteOutcome::Refused { word: "mismatch", current: None }, "p1#16.0")
            }),
        ],
    );
}

fn scan(
    output: &mut Output<'_>,
    pairs: &[(&[u8], Option<&[u8]>)],
    end: &ScanEnd,
    count: bool,
) -> std::io::Result<super::Exit> {
    if !count {
        output.scan_begin()?;
        for (index, (key, value)) in pairs.iter().enumerate() {
            output.scan_pair(index == 0, key, *value)?;
        }
    }
    output.scan_end(end, count)?;
    Ok(super::Exit::Done)
}

fn end(count: u64) -> ScanEnd {
    ScanEnd { count, positions: vec!["p1#13.0".to_owned()], ticket: None, stale: false, after: None }
}

#[test]
fn scans_print_pairs_and_say_how_many_and_as_of_when() {
    transcript(
        "scan",
        &[
            ("scan", |o| scan(o, &[(b"apple", Some(b"green")), (EIGHT, Some(BINARY))], &end(2), false)),
            ("scan --keys-only", |o| scan(o, &[(b"apple", None)], &end(1), false)),
            ("scan of nothing", |o| scan(o, &[], &end(0), false)),
            ("scan a..a", |o| scan(o, &[], &ScanEnd { positions: Vec::new(), ..end(0) }, false)),
            ("scan --count", |o| scan(o, &[], &end(12), true)),
            ("scan --limit", |o| {
                let after = Some("AQBhcHBsZQ".to_owned());
                scan(o, &[(b"apple", Some(b"green"))], &ScanEnd { after, ..end(1) }, false)
            }),
            ("scan --stale", |o| {
                let positions = vec!["p1#13.0".to_owned(), "p2#9.0".to_owned()];
                scan(o, &[(b"apple", Some(b"green"))], &ScanEnd { positions, stale: true, ..end(1) }, false)
            }),
        ],
    );
}

#[test]
fn a_time_to_live_is_told_in_seconds() {
    let told = [(0, "0 ms"), (999, "999 ms"), (1_000, "1 s"), (27_962, "28 s"), (86_399_981, "86400 s")];
    for (milliseconds, text) in told {
        assert_eq!(time_left(Duration::from_millis(milliseconds)), text);
    }
    assert_eq!(time_left(Duration::from_secs(9_223_372_036_854_775)), "9223372036854775 s");
}
