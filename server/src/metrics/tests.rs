//! What `/metrics` shows is what was recorded, under names that are all in the enum.

use std::collections::BTreeSet;

use super::*;

/// The value of the one line that starts with `series`, a name with its labels.
fn value(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// A node on which everything was recorded at least once.
fn busy_node(partitions: u32) -> Node {
    let node = Node::new(2);
    for worker in [node.worker(0), node.worker(1)] {
        for op in Op::ALL {
            for outcome in Outcome::ALL {
                worker.request(*op, *outcome, Duration::from_micros(700));
            }
        }
        worker.turn();
        worker.instance_decided(Duration::from_millis(1));
        worker.batch_proposed(4_096, 200);
        CloseReason::ALL.iter().for_each(|reason| worker.batches_closed(*reason, 2));
        Stage::ALL.iter().for_each(|stage| worker.stage_busy(*stage, Duration::from_millis(250)));
        Queue::ALL.iter().for_each(|queue| worker.set_queue_depth(*queue, 3));
        Queue::ALL.iter().for_each(|queue| worker.rejected(*queue));
        Area::ALL.iter().for_each(|area| worker.set_memory(*area, 1 << 10));
    }
    node.log().flushed(Duration::from_micros(100), 8);
    node.log().set_disk(64 << 20, 1 << 30);
    node.log().set_queue_depth(5);
    node.set_tolerated_failures(Some(1));
    node.set_certificate_expiry(Some(2_000_000_000));
    Warning::ALL.iter().for_each(|warning| node.set_warning(*warning, true));
    for id in 0..partitions {
        let partition = node.partition(format_args!("p{id}"));
        partition.publish(&PartitionSample {
            commands_decided: 7,
            leads: true,
            keys: 12,
            ..PartitionSample::default()
        });
        partition.publish_tuning(Some(|tuned: Tuned| tuned.labels().0.len() as f64 + 0.5));
        partition.peer("n2").set_lag(4, Duration::from_millis(20));
        partition.peer("n3").set_lag(0, Duration::ZERO);
    }
    node
}

#[test]
fn every_metric_of_the_enum_has_a_series_and_no_other_exists() {
    let text = busy_node(3).render(Format::OpenMetrics);
    let series: BTreeSet<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| &line[..line.find(['{', ' ']).expect("a name ends at its labels or its value")])
        .collect();
    let mut known = BTreeSet::new();
    // Only this allocator says what it holds.
    let says = |metric: &&Metric| **metric != Metric::AllocatorBytes || cfg!(feature = "mimalloc");
    for &metric in Metric::ALL.iter().filter(says) {
        let endings: &[&str] = match metric.kind() {
            Kind::Counter => &["_total"],
            Kind::Gauge => &[""],
            Kind::Histogram => &["_bucket", "_sum", "_count"],
            Kind::Info => &["_info"],
        };
        for ending in endings {
            let name = metric.name() + ending;
            assert!(series.contains(name.as_str()), "{name} is not rendered");
            known.insert(name);
        }
        assert!(text.contains(&format!("# HELP {} {}\n", metric.name(), metric.help())), "{metric:?}");
    }
    assert_eq!(series, known.iter().map(String::as_str).collect());
    assert!(text.ends_with("# EOF\n"));
}

/// The older format differs in comments only, so whatever is asked of one is answered by the other.
#[test]
fn the_text_format_names_families_as_their_series_and_has_the_same_series() {
    let node = busy_node(3);
    let (open_metrics, text) = (node.render(Format::OpenMetrics), node.render(Format::Text));
    // Those of the process move while one looks.
    let series = |text: &str| -> Vec<String> {
        let ours = |line: &&str| line.starts_with("coppice_") && !line.starts_with("coppice_allocator");
        text.lines().filter(ours).map(str::to_owned).collect()
    };
    assert_eq!(series(&text), series(&open_metrics));
    for line in [
        "# HELP coppice_requests_total Requests answered, by operation and result.",
        "# TYPE coppice_requests_total counter",
        "# TYPE coppice_request_seconds histogram",
        "# TYPE coppice_queue_depth gauge",
        "# TYPE coppice_build_info gauge",
        "# TYPE process_cpu_seconds_total counter",
    ] {
        assert!(text.lines().any(|known| known == line), "{line}");
    }
    for &metric in Metric::ALL {
        assert_eq!(
            text.matches(&format!("# TYPE {}{} ", metric.name(), metric.kind().ending())).count(),
            1,
            "{metric:?}"
        );
    }
    assert!(!text.contains("# UNIT") && !text.contains("# EOF"));
    assert_eq!(text.lines().filter(|line| line.starts_with('#')).count(), 2 * Metric::ALL.len());
}

/// The manual's table is the list of metrics: type, unit and labels of each.
#[test]
fn the_manual_lists_every_metric_with_type_unit_and_labels() {
    let manual = include_str!("../../../docs/operations.md");
    for &metric in Metric::ALL {
        let kind = match metric.kind() {
            Kind::Counter => "C",
            Kind::Gauge => "G",
            Kind::Histogram => "H",
            Kind::Info => "info",
        };
        let unit = match metric.unit() {
            Unit::None => "",
            Unit::Seconds => " s",
            Unit::Bytes => " bytes",
        };
        let labels: Vec<String> = metric.labels().names().iter().map(|label| format!("`{label}`")).collect();
        let name = metric.name() + if metric.kind() == Kind::Info { "_info" } else { "" };
        let row = format!("| `{name}` | {kind}{unit} | {} |", labels.join(", ")).replace("|  |", "| |");
        assert!(manual.contains(&row), "docs/operations.md 4.1 lacks the row: {row}");
    }
}

#[test]
fn a_node_without_a_certificate_names_no_end_of_one() {
    let node = busy_node(1);
    let end = |node: &Node| value(&node.render(Format::OpenMetrics), "coppice_certificate_expiry_seconds");
    assert_eq!(end(&node), Some(2e9));
    node.set_certificate_expiry(None);
    assert_eq!(end(&node), None);
}

#[test]
fn what_all_threads_hold_is_added_up() {
    let text = busy_node(1).render(Format::OpenMetrics);
    assert_eq!(value(&text, "coppice_memory_bytes{area=\"logs\"}"), Some(2048.0));
    assert!(value(&text, "process_resident_memory_bytes").is_some_and(|bytes| bytes > 1e6));
    assert!(value(&text, "process_start_time_seconds").is_some_and(|seconds| seconds > 1.6e9));
}

#[test]
fn partition_and_node_are_never_on_a_histogram() {
    for metric in Metric::ALL.iter().filter(|metric| metric.kind() == Kind::Histogram) {
        assert!(!matches!(metric.labels(), Labels::Partition | Labels::PartitionNode), "{metric:?}");
    }
}

#[test]
fn names_are_unique_and_lower_case() {
    let names: BTreeSet<String> = Metric::ALL.iter().map(|metric| metric.name()).collect();
    assert_eq!(names.len(), Metric::ALL.len());
    assert!(names.iter().all(|name| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')), "{names:?}");
}

#[test]
fn workers_are_added_up() {
    let text = busy_node(1).render(Format::OpenMetrics);
    assert_eq!(value(&text, "coppice_requests_total{op=\"put\",result=\"busy\"}"), Some(2.0));
    assert_eq!(value(&text, "coppice_request_seconds_count{op=\"get\"}"), Some(2.0 * Outcome::COUNT as f64));
    assert_eq!(value(&text, "coppice_batches_closed_total{reason=\"delay\"}"), Some(4.0));
    assert_eq!(value(&text, "coppice_stage_busy_seconds_total{stage=\"order\"}"), Some(0.5));
    assert_eq!(value(&text, "coppice_stage_busy_seconds_total{stage=\"flush\"}"), Some(0.5001));
    assert_eq!(value(&text, "coppice_queue_depth{queue=\"log\"}"), Some(11.0));
    assert_eq!(value(&text, "coppice_rejected_total{queue=\"mailbox\"}"), Some(2.0));
}

#[test]
fn the_mean_batch_times_the_batches_is_the_number_of_commands() {
    let node = Node::new(2);
    for commands in 1..=1_000 {
        node.worker(commands as usize % 2).batch_proposed(commands * 17, commands);
    }
    let text = node.render(Format::OpenMetrics);
    assert_eq!(value(&text, "coppice_batch_commands_sum"), Some(500_500.0));
    assert_eq!(value(&text, "coppice_batch_commands_count"), Some(1_000.0));
    assert_eq!(value(&text, "coppice_batch_bytes_sum"), Some(500_500.0 * 17.0));
}

#[test]
fn buckets_are_cumulative_and_end_at_infinity() {
    let node = Node::new(1);
    let worker = node.worker(0);
    for micros in [10, 40, 40, 20_000_000] {
        worker.instance_decided(Duration::from_micros(micros));
    }
    let text = node.render(Format::OpenMetrics);
    for (le, count) in [("0.000032", 1.0), ("0.000064", 3.0), ("16.777216", 3.0), ("+Inf", 4.0)] {
        assert_eq!(value(&text, &format!("coppice_instance_seconds_bucket{{le=\"{le}\"}}")), Some(count), "{le}");
    }
}

#[test]
fn lag_is_shown_by_the_leader_only() {
    let node = Node::new(1);
    let partition = node.partition("p4");
    partition.publish(&PartitionSample { leads: true, ..PartitionSample::default() });
    partition.peer("n2").set_lag(9, Duration::from_millis(1_500));
    let text = node.render(Format::OpenMetrics);
    assert_eq!(value(&text, "coppice_replica_lag_instances{partition=\"p4\",node=\"n2\"}"), Some(9.0));
    assert_eq!(value(&text, "coppice_replica_lag_seconds{partition=\"p4\",node=\"n2\"}"), Some(1.5));
    partition.publish(&PartitionSample::default());
    assert!(!node.render(Format::OpenMetrics).contains("node=\"n2\""));
}

#[test]
fn the_tuning_metric_shows_what_is_predicted_chosen_and_measured_while_it_knows() {
    let node = busy_node(1);
    let series =
        |value: &str, kind: &str| format!("coppice_tuning{{partition=\"p0\",value=\"{value}\",kind=\"{kind}\"}}");
    let text = node.render(Format::OpenMetrics);
    for (name, kind) in [("throughput", "predicted"), ("window", "measured"), ("window", "chosen"), ("batch", "chosen")]
    {
        assert_eq!(value(&text, &series(name, kind)), Some(name.len() as f64 + 0.5), "{name} {kind}");
    }
    node.partition("p0").publish_tuning(None::<fn(Tuned) -> f64>);
    assert!(!node.render(Format::OpenMetrics).contains("coppice_tuning{"));
}

#[test]
fn a_partition_registered_twice_is_one_and_a_forgotten_one_is_gone() {
    let node = Node::new(1);
    for keys in [1, 2] {
        node.partition("p4").publish(&PartitionSample { keys, ..PartitionSample::default() });
    }
    assert_eq!(value(&node.render(Format::OpenMetrics), "coppice_partition_keys{partition=\"p4\"}"), Some(2.0));
    node.forget_partition("p4");
    assert!(!node.render(Format::OpenMetrics).contains("p4"));
}

#[test]
fn partitions_stand_in_the_order_of_their_numbers() {
    let node = Node::new(1);
    for id in ["p10", "p9", "p0", "p2"] {
        node.partition(id);
    }
    let text = node.render(Format::OpenMetrics);
    let places: Vec<_> =
        ["p0", "p2", "p9", "p10"].map(|id| text.find(&format!("partition_keys{{partition=\"{id}\"}}"))).to_vec();
    assert!(places.is_sorted() && places[0].is_some(), "{places:?}");
}

#[test]
fn no_quorum_is_minus_one_and_not_known_is_left_out() {
    let node = Node::new(1);
    assert_eq!(value(&node.render(Format::OpenMetrics), "coppice_tolerated_failures"), None);
    node.set_tolerated_failures(None);
    assert_eq!(value(&node.render(Format::OpenMetrics), "coppice_tolerated_failures"), Some(-1.0));
    node.set_tolerated_failures(Some(2));
    assert_eq!(value(&node.render(Format::OpenMetrics), "coppice_tolerated_failures"), Some(2.0));
}

#[test]
fn threads_that_record_while_others_render_lose_nothing() {
    let node = Node::new(2);
    std::thread::scope(|scope| {
        for index in 0..2 {
            let worker = node.worker(index);
            scope.spawn(move || (0..10_000).for_each(|n| worker.batch_proposed(n, 1)));
        }
        (0..20).for_each(|_| drop(node.render(Format::OpenMetrics)));
    });
    assert_eq!(value(&node.render(Format::OpenMetrics), "coppice_batch_commands_count"), Some(20_000.0));
}
