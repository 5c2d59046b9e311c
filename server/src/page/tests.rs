//! The page's files as they are embedded, and the json of its events.

use std::collections::BTreeMap;

use coppice_client::wire::{
    BatchAndWindow, ClusterId, GroupTuning, NodeId, NodeStatus, PartitionId, PartitionStatus, Status, TuningReport,
};
use coppice_core::status::Remedy;
use coppice_core::status::live::{ClusterLive, GroupLive, NodeLive, Sample, Samples};

use super::*;

fn text(file: &File) -> &'static str {
    std::str::from_utf8(file.bytes).expect("files of the page are texts")
}

fn header(answer: &Response, name: header::HeaderName) -> String {
    answer.headers()[name].to_str().expect("a text").to_owned()
}

/// What a browser resolves by itself, in quotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('"').skip(1).step_by(2)
}

#[test]
fn every_file_that_the_page_names_is_embedded_and_none_is_empty() {
    for name in quoted(HTML).filter_map(|path| path.strip_prefix("/ui/")) {
        assert!(FILES.iter().any(|file| file.name == name), "{name}");
    }
    for file in FILES.iter().filter(|file| file.kind == SCRIPT && file.name != "uplot.js") {
        for name in quoted(text(file)).filter_map(|path| path.strip_prefix("./")) {
            assert!(FILES.iter().any(|file| file.name == name), "{} imports {name}", file.name);
        }
    }
    for file in &FILES {
        assert!(!file.bytes.is_empty() && is_file(&format!("/ui/{}", file.name)), "{}", file.name);
    }
    let bytes = HTML.len() + FILES.iter().map(|file| file.bytes.len()).sum::<usize>();
    assert!(bytes <= 200 * 1_024, "{bytes} bytes: the page is there at once, or it is not an instrument");
    assert!(is_file("/ui") && !is_file("/ui/events") && !is_file("/ui/") && !is_file("/uix") && !is_file("/config"));
}

#[test]
fn the_page_asks_nobody_but_nodes() {
    const NAMESPACE: &str = "http://www.w3.org/2000/svg";
    for (name, text) in FILES.iter().map(|file| (file.name, text(file))).chain([("page.html", HTML)]) {
        let text = text.replace(NAMESPACE, "");
        let uplot = name.starts_with("uplot");
        for (at, _) in text.match_indices("://") {
            let around: String = text[..at].chars().rev().take(8).collect::<Vec<_>>().into_iter().rev().collect();
            let behind: String = text[at..].chars().take(24).collect();
            // uPlot names its home in a comment; a page's own addresses are made of those of nodes.
            let ours = behind.starts_with("://${address}") || behind.starts_with("://\", \"\")");
            assert!(ours || (uplot && text[..at].lines().count() == 1), "{name}: {around}{behind}");
        }
        for foreign in
            ["@import", "eval(", "innerHTML", "outerHTML", "document.write", "sourceMappingURL", "<style", " style="]
        {
            let owns = uplot && foreign == "innerHTML";
            assert!(owns || !text.contains(foreign), "{name} has {foreign}");
        }
    }
}

#[test]
fn every_element_that_a_script_asks_for_is_in_the_page() {
    for file in FILES.iter().filter(|file| file.kind == SCRIPT && file.name != "uplot.js") {
        for ask in ["getElementById(\"", " at(\"", "(at(\""] {
            for part in text(file).split(ask).skip(1) {
                let id = part.split('"').next().unwrap_or_default();
                assert!(HTML.contains(&format!("id=\"{id}\"")), "{} asks for {id}", file.name);
            }
        }
    }
}

#[test]
fn the_policy_allows_nodes_and_nothing_that_is_no_address() {
    let nodes = ["127.0.0.1:7403", "", "[::1]:7403", "n2.example:7403", "x; script-src *", "\"><script>", "a b"];
    let answer = document(Role::Node, &nodes.map(str::to_owned));
    let policy = header(&answer, header::CONTENT_SECURITY_POLICY);
    let wanted = "connect-src 'self' http://127.0.0.1:7403 http://[::1]:7403 http://n2.example:7403;";
    assert!(policy.starts_with("default-src 'none'; script-src 'self';") && policy.contains(wanted), "{policy}");
    assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
    assert_eq!(header(&file("page.css"), header::CONTENT_TYPE), CSS);
    assert_eq!(header(&file("page.css"), header::X_CONTENT_TYPE_OPTIONS), "nosniff");
    assert_eq!(file("../mod.rs").status(), StatusCode::NOT_FOUND);
    for placeholder in ["{role}", "{nodes}"] {
        assert_eq!(HTML.matches(placeholder).count(), 1, "{placeholder}");
    }
}

#[test]
fn an_event_has_what_the_page_shows() {
    let sample = |writes| Sample { span_ms: 1_000, writes, latencies: vec![0, 3], ..Sample::default() };
    let samples = Samples { newest: 9, age_ms: 40, samples: vec![sample(1), sample(2)] };
    let group = GroupLive { window_limit: 16, rollbacks: (1, 7), ..GroupLive::default() };
    let node = NodeLive { admin: "127.0.0.1:7403".into(), groups: BTreeMap::from([(PartitionId(1), group)]), samples };
    let in_force = BatchAndWindow { batch_bytes_max: 65_536, window: 16, window_bytes_max: 1 << 20 };
    let live = ClusterLive {
        status: Status {
            cluster: Some(ClusterId(1)),
            nodes: vec![NodeStatus { id: NodeId(1), up: true, ..NodeStatus::default() }],
            partitions: vec![PartitionStatus { id: PartitionId(1), ..PartitionStatus::default() }],
            changes: vec!["p1 moves".into()],
            ..Status::default()
        },
        remedies: vec![Remedy { wrong: "n2 is down".into(), verb: Some("coppice status".into()) }],
        tuning: TuningReport {
            on: true,
            groups: vec![GroupTuning { partition: PartitionId(1), leader: NodeId(1), in_force, account: None }],
            silent: vec![NodeId(2)],
        },
        nodes: BTreeMap::from([(NodeId(1), node)]),
    };
    let event = json::event(&live);
    assert_eq!(event["v"], 1);
    assert_eq!(event["status"]["changes"][0], "p1 moves");
    assert_eq!(event["remedies"][0]["verb"], "coppice status");
    assert_eq!(event["tuning"]["groups"][0]["in_force"]["window"], 16);
    assert_eq!((&event["tuning"]["groups"][0]["leader"], &event["tuning"]["silent"][0]), (&"n1".into(), &"n2".into()));
    let node = &event["nodes"]["n1"];
    assert_eq!((&node["admin"], &node["groups"]["p1"]["undone_commands"]), (&"127.0.0.1:7403".into(), &7.into()));
    assert_eq!(node["samples"]["writes"], serde_json::json!([1, 2]));
    assert_eq!(node["samples"]["latencies"][1], serde_json::json!([0, 3]));
    // The columns are those that the page reads.
    let columns = node["samples"].as_object().expect("columns");
    for column in columns.keys().filter(|column| !["newest", "age_ms"].contains(&column.as_str())) {
        assert!(
            FILES.iter().any(|file| file.name == "time.js" && text(file).contains(&format!("\"{column}\""))),
            "{column}"
        );
    }
}
