//! Reports: a golden line of JSON, the text, and the files read back.

use std::time::Duration;

use super::files::{self, OrderingRow};
use super::*;
use crate::machine::Machine;
use crate::metrics::Ordering;
use crate::runner::tally::Times;
use crate::runner::{Tally, Timeline};
use crate::target::{Done, End};
use crate::workload::{KeySpace, Kind, Mix, Plan, ValueForm};

fn example() -> (Tally, Timeline, Summary) {
    let timeline = Timeline::new(Duration::from_secs(10), Duration::from_secs(1)).unwrap();
    let mut tally = Tally::new(&timeline, false);
    for i in 0..8_000u64 {
        let ended = 1_000_000_000 + i * 1_000_000;
        let times = Times { intended: ended - 1_000_000 - i * 100, ended };
        let end = if i < 5 { End::Unknown } else { End::Ok };
        let kind = if i % 2 == 0 { Kind::Many } else { Kind::Range };
        tally.add(kind, if i % 2 == 0 { 7 } else { 1 }, times, &Done { slot: 0, end, at: ended, found: 3 });
    }
    let mix = Mix::named("c").unwrap();
    let value = ValueForm::Bytes(8);
    let keys = KeySpace::even(4);
    let plan = Plan { mix, keys, entries: 1_000, universe: 2_000, value, range_keys: 1_000, cross_percent: 0, seed: 7 };
    let setup = Setup {
        target: "native".into(),
        loop_kind: "closed".into(),
        clients: 64,
        think: "0..10ms".into(),
        workers: 1,
        connections: 1,
        pack_bytes: 8_192,
        duration_s: 10.0,
        trim_s: 1.0,
        ..Setup::of_plan(&plan)
    };
    let ordering =
        Ordering { instance_ms: 0.5, batch_commands: 40.0, instances_per_second: 100.0, ..Default::default() };
    let summary = Summary::new(setup, &tally, &timeline, Duration::from_millis(16), Some(ordering));
    (tally, timeline, summary)
}

#[test]
fn json_is_one_compact_line_with_the_fields_that_were_promised() {
    let golden = concat!(
        r#"{"v":1,"target":"native","workload":"c","loop":"closed","clients":64,"think":"0..10ms","rate":null,"#,
        r#""workers":1,"#,
        r#""connections":1,"pack_bytes":8192,"entries":1000,"universe":2000,"value_bytes":8,"cross_percent":0,"#,
        r#""partitions":4,"seed":7,"duration_s":10.0,"trim_s":1.0,"requests":7995,"throughput":999.4,"#,
        r#""commands_per_second":3997.1,"mean_ms":1.4,"p50_ms":1.401,"p90_ms":1.72,"p95_ms":1.76,"p99_ms":1.793,"#,
        r#""p999_ms":1.8,"max_ms":1.8,"failed":0,"busy":0,"unknown":3,"unsent":0,"dropped":2,"kinds":[{"kind":"many","#,
        r#""requests":3997,"found":11991,"mean_ms":1.4,"p50_ms":1.401,"p90_ms":1.72,"p95_ms":1.76,"p99_ms":1.793,"#,
        r#""p999_ms":1.8,"max_ms":1.8},{"kind":"range","requests":3998,"found":11994,"mean_ms":1.4,"p50_ms":1.401,"#,
        r#""p90_ms":1.72,"p95_ms":1.76,"p99_ms":1.793,"p999_ms":1.8,"max_ms":1.8}],"#,
        r#""generator_cpu_us_per_command":0.5,"#,
        r#""generator_cores":0.0,"ordering":{"instance_ms":0.5,"commands_per_second":0.0,"#,
        r#""instances_per_second":100.0,"#,
        r#""batch_commands":40.0,"batch_bytes":0.0,"window":0.0,"window_limit":0.0,"flush_ms":0.0},"#,
        r#""first_error":null}"#,
    );
    assert_eq!(json(&example().2), golden);
}

#[test]
fn text_names_the_loop_and_counts_errors_apart() {
    let (_, _, mut summary) = example();
    let closed = text::render(&summary);
    assert!(closed.starts_with("closed loop: 64 clients, think 0..10ms; workload c, 1 000 of 2 000 keys"), "{closed}");
    assert!(
        closed.contains("failed 0  busy 0  unknown 3") && closed.contains("0.500 us of CPU per command"),
        "{closed}"
    );
    assert!(closed.lines().any(|line| line.trim_start().starts_with("many")), "{closed}");
    summary.setup.rate = Some(5_000.0);
    summary.unsent = 1_234;
    summary.ordering = None;
    let open = text::render(&summary);
    assert!(open.starts_with("open loop: 5 000 requests/s due"), "{open}");
    assert!(open.contains("never sent 1 234") && open.contains("lower bounds"), "{open}");
}

#[test]
fn a_directory_of_a_run_can_be_read_back_and_drawn_over_another() {
    let directory = std::env::temp_dir().join(format!("coppice-load-report-{}", std::process::id()));
    let (tally, timeline, summary) = example();
    let run = RunFile {
        v: 1,
        command: "coppice-load run".into(),
        machine: Machine::read(),
        flush: "fdatasync".into(),
        server_config: serde_json::json!({"log.flush": "fdatasync"}),
        slices: files::slices(&tally, &timeline),
        percentiles: files::percentiles(&tally.latency()),
        ordering: vec![OrderingRow { at_s: 1.0, ordering: summary.ordering.unwrap() }; 3],
        points: Vec::new(),
        summary,
    };
    files::write(&directory, &run, &tally, &timeline).unwrap();
    assert!(files::read(&directory).unwrap() == run);
    for name in ["time.svg", "percentiles.svg", "latency-throughput.svg", "ordering.svg"] {
        assert!(std::fs::read_to_string(directory.join(name)).unwrap().contains("</svg>"), "{name}");
    }
    let two = crate::report::plot::of_runs(&[("x".into(), &run), ("y".into(), &run)]);
    assert!(two.iter().any(|(name, svg)| name == "time.svg" && svg.contains("x p99") && svg.contains("y p99")));
    let hlog = std::fs::read_to_string(directory.join("latency.hlog")).unwrap();
    assert_eq!(count_in(&hlog), (7_995, 7_995));
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Requests in the untagged and in the tagged lines of a log.
fn count_in(hlog: &str) -> (u64, u64) {
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
    let mut counts = (0, 0);
    for entry in IntervalLogIterator::new(hlog.as_bytes()) {
        let LogEntry::Interval(line) = entry.unwrap() else { continue };
        let bytes = decode_base64(line.encoded_histogram());
        let histogram: hdrhistogram::Histogram<u64> = Deserializer::new().deserialize(&mut bytes.as_slice()).unwrap();
        *(if line.tag().is_some() { &mut counts.1 } else { &mut counts.0 }) += histogram.len();
    }
    counts
}

fn decode_base64(text: &str) -> Vec<u8> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |c: u8| ALPHABET.iter().position(|&a| a == c).unwrap() as u32;
    let (mut bits, mut held, mut out) = (0u32, 0, Vec::new());
    for c in text.bytes().filter(|&c| c != b'=') {
        bits = bits << 6 | digit(c);
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held & 0xff) as u8);
        }
    }
    out
}

#[test]
fn percentiles_rise_and_stop_where_requests_do() {
    let points = files::percentiles(&example().0.latency());
    assert_eq!(points[0].0, 0.0);
    assert!(points.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 <= w[1].1));
    assert!(points.last().unwrap().0 < 99.999 && files::percentiles(&crate::runner::tally::histogram()).is_empty());
}
