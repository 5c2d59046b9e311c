//! The native target against a server of one node: the client library's session over real sockets.

mod mini;

use std::sync::Arc;
use std::time::{Duration, Instant};

use coppice_client::command::ReadMode;
use coppice_loadgen::record::History;
use coppice_loadgen::runner::{self, Orders, Pace, Tally, Timeline};
use coppice_loadgen::target::native::{Native, Options, contact};
use coppice_loadgen::target::{Done, End, Target};
use coppice_loadgen::units::Think;
use coppice_loadgen::workload::{KeySpace, Mix, Plan, Request, Value, ValueForm};
use mini::Mini;

/// How long anything may take that does not take for ever, on any machine, however busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// Deadlines that are to pass, and before them something that takes a busy machine a while; or how long to measure.
const GROWING: [Duration; 3] = [Duration::from_millis(300), Duration::from_secs(3), Duration::from_secs(30)];

fn options(mini: &Mini) -> Options {
    Options {
        endpoints: vec![mini.address.clone()],
        connections: 1,
        pack_bytes: 8_192,
        timeout: PATIENCE,
        reads: ReadMode::Leader,
        optimistic_scans: true,
        token: None,
        slots: 64,
        tls: None,
    }
}

fn key_space(mini: &Mini) -> KeySpace {
    let map = contact::map(&options(mini)).unwrap();
    KeySpace::new(map.partitions.iter().map(|entry| (&entry.low[..], entry.high.as_deref()))).unwrap()
}

fn run(mini: &Mini, workload: &str, window: Duration, value: ValueForm, history: Option<&History>) -> Tally {
    let mix = Mix::named(workload).unwrap();
    let (entries, universe, range_keys) = (2_000, 4_000, 200);
    let keys = key_space(mini);
    let plan = Arc::new(Plan { mix, keys, entries, universe, value, range_keys, cross_percent: 0, seed: 3 });
    let timeline = Timeline::new(window, Duration::ZERO).unwrap();
    let order = |worker: u64| Orders {
        timeline: timeline.clone(),
        pace: Pace::Closed { clients: 32, think: Think::NONE },
        workers: 2,
        first_client: worker as u32 * 32,
        seed: 3,
        drain: 2 * PATIENCE.as_nanos() as u64,
        start: 0,
    };
    let (options, epoch) = (options(mini), Instant::now());
    let connect = |worker| Native::new(&options, epoch, history.map(|history| history.recorder(worker as u64, 2)));
    runner::run(&plan, &[order(0), order(1)], epoch, connect, |_| {}).unwrap()
}

fn ends(target: &mut Native, count: usize) -> Vec<Done> {
    let mut done = Vec::new();
    while done.len() < count {
        let until = target.now() + 50_000_000;
        target.poll(until, &mut done);
    }
    done
}

#[test]
fn every_workload_of_the_papers_is_answered_without_errors() {
    let mini = Mini::start(4);
    contact::load(&options(&mini), &key_space(&mini), 2_000, 8, |_| {}).unwrap();
    for workload in ["a", "b", "c", "mixed", "ycsb-d", "ycsb-e", "ycsb-f"] {
        let mut answered = 0;
        for window in GROWING {
            let tally = run(&mini, workload, window, ValueForm::Bytes(8), None);
            let ends = tally.ends();
            assert_eq!((ends.failed, ends.busy, ends.unknown), (0, 0, 0), "{workload}: {:?}", tally.first_error);
            answered += ends.ok;
            if answered > 100 {
                break;
            }
        }
        assert!(answered > 100, "{workload}: {answered} in {GROWING:?}");
    }
}

#[test]
fn ranges_return_the_keys_that_are_there() {
    let mini = Mini::start(4);
    contact::load(&options(&mini), &key_space(&mini), 2_000, 8, |_| {}).unwrap();
    let ranges = GROWING.into_iter().find_map(|window| {
        let mut tally = run(&mini, "a", window, ValueForm::Bytes(8), None);
        let ranges = tally.kinds.swap_remove(coppice_loadgen::workload::Kind::Range.index());
        (ranges.latency.len() > 10).then_some(ranges)
    });
    let ranges = ranges.expect("ranges are read");
    // 200 of 4 000 keys, of which every second one is there.
    let mean = ranges.found as f64 / ranges.latency.len() as f64;
    assert!((95.0..=105.0).contains(&mean), "{mean}");
}

#[test]
fn a_bulk_load_is_complete_and_keeps_what_was_there() {
    let mini = Mini::start(3);
    let (options, space) = (options(&mini), key_space(&mini));
    let first = contact::load(&options, &space, 10_000, 8, |_| {}).unwrap();
    assert_eq!((first.keys, first.present, mini.keys()), (10_000, 0, 10_000));
    let mut told = 0;
    let second = contact::load(&options, &space, 50_000, 8, |done| told = done).unwrap();
    assert_eq!((second.keys, second.present, mini.keys(), told), (50_000, 10_000, 50_000, 50_000));
    let state = contact::state(&options).unwrap();
    assert!(state.len() == 50_000 && state.is_sorted());
}

#[test]
fn silence_ends_as_unknown_for_writes_and_as_failure_for_reads() {
    // A busy machine may not even have sent them in time, or heard the first answer.
    let as_it_should = GROWING.into_iter().any(|timeout| {
        let mini = Mini::start(1);
        let options = Options { timeout, ..options(&mini) };
        let mut target = Native::new(&options, Instant::now(), None).unwrap();
        let value = Value { client: 1, number: 1, form: ValueForm::Bytes(8) };
        target.submit(0, &Request::Put(5, value));
        let heard = ends(&mut target, 1)[0].end == End::Ok;
        mini.state.lock().unwrap().silent = true;
        target.submit(1, &Request::Put(5, value));
        target.submit(2, &Request::Get(5));
        let mut done = ends(&mut target, 2);
        done.sort_by_key(|done| done.slot);
        assert!(done.iter().all(|done| done.end != End::Ok) && target.first_error().is_some(), "nobody answered");
        heard && done.iter().map(|done| done.end).eq([End::Unknown, End::Failed])
    });
    assert!(as_it_should);
}

#[test]
fn nobody_there_is_said_within_the_timeout() {
    let address = "127.0.0.1:1".to_owned();
    let options = Options { timeout: Duration::from_millis(300), ..options(&Mini::start(1)) };
    let error = contact::map(&Options { endpoints: vec![address.clone()], ..options }).unwrap_err();
    assert!(error.contains(&address), "{error}");
}

#[test]
fn a_recorded_run_has_a_line_for_each_beginning_and_end() {
    let mini = Mini::start(2);
    let path = std::env::temp_dir().join(format!("coppice-load-native-{}", std::process::id()));
    let history = History::create(&path, "c0ffee", 3, &contact::state(&options(&mini)).unwrap()).unwrap();
    // Time enough for a busy machine to read something that was written before.
    let tally = run(&mini, "mixed", Duration::from_secs(2), ValueForm::Text, Some(&history));
    history.finish().unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| lines.iter().filter(|line| line["e"] == kind).collect::<Vec<_>>();
    let (begun, ended) = (of("inv"), of("ret"));
    // What ended after the last instant of the window is in the history all the same.
    assert_eq!((begun.len(), ended.len() as u64), (ended.len(), tally.ends().total() + tally.trimmed));
    // Writes are named by client and number, each once; what was read names the write that it came from.
    let writes: Vec<_> = begun.iter().filter(|line| line["n"] != 0).collect();
    let names: std::collections::BTreeSet<String> = writes.iter().map(|l| format!("{} {}", l["c"], l["n"])).collect();
    assert_eq!(names.len(), writes.len());
    let written: std::collections::BTreeSet<&str> = writes.iter().filter_map(|line| line["v"].as_str()).collect();
    let read = ended.iter().filter_map(|line| line["out"].as_str());
    let read: Vec<&str> = read.collect();
    assert!(!read.is_empty() && read.iter().all(|value| written.contains(value)));
}
