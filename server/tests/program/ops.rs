//! The files of server/ops name what a node serves: an alert of a metric that is gone, or of a label that it never had,
//! never fires, and a panel shows nothing. And a node says why it is not ready.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use coppice_server::metrics::Metric;

use crate::support::{Cluster, eventually, run};

/// Labels that Prometheus gives to what it scrapes.
const SCRAPED: [&str; 2] = ["instance", "job"];

fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("ops").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// One alert, as its file says.
#[derive(Debug, Default)]
struct Alert {
    name: String,
    expression: String,
    wait: String,
    severity: String,
    /// What is said of it, by key.
    texts: BTreeMap<String, String>,
}

/// The alerts, of a file that is written as ours is: `key: value`, and folded texts.
fn alerts() -> Vec<Alert> {
    let text = file("alerts.yml");
    let mut alerts: Vec<Alert> = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some((key, value)) = line.trim().split_once(':') else { continue };
        let indent = |line: &str| line.len() - line.trim_start().len();
        let mut value = value.trim().to_owned();
        if value == ">-" {
            let mut folded = Vec::new();
            while let Some(next) = lines.next_if(|next| indent(next) > indent(line)) {
                folded.push(next.trim());
            }
            value = folded.join(" ");
        }
        match (key, alerts.last_mut()) {
            ("- alert", _) => alerts.push(Alert { name: value, ..Alert::default() }),
            ("expr", Some(alert)) => alert.expression = value,
            ("for", Some(alert)) => alert.wait = value,
            ("severity", Some(alert)) => alert.severity = value,
            ("summary" | "means" | "runbook", Some(alert)) => _ = alert.texts.insert(key.to_owned(), value),
            _ => {}
        }
    }
    alerts
}

/// Every text of these keys, however deep.
fn texts_of<'a>(value: &'a serde_json::Value, keys: &[&str], found: &mut Vec<(&'a str, &'a serde_json::Value)>) {
    match value {
        serde_json::Value::Array(items) => items.iter().for_each(|item| texts_of(item, keys, found)),
        serde_json::Value::Object(members) => members.iter().for_each(|(key, member)| match member.as_str() {
            Some(text) if keys.contains(&key.as_str()) => found.push((text, value)),
            _ => texts_of(member, keys, found),
        }),
        _ => {}
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// What an expression takes of metrics: `name{label="value",..}`, of those that a node serves.
#[derive(Debug)]
struct Selector<'a> {
    name: &'a str,
    /// Label, operator, value.
    matchers: Vec<(&'a str, &'a str, &'a str)>,
}

fn selectors(expression: &str) -> Vec<Selector<'_>> {
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(at) = ["coppice_", "process_"].iter().filter_map(|prefix| rest.find(prefix)).min() {
        rest = &rest[at..];
        let (name, after) = rest.split_at(rest.find(|c| !is_name(c)).unwrap_or(rest.len()));
        rest = after;
        let mut matchers = Vec::new();
        if let Some((inside, after)) = after.strip_prefix('{').and_then(|inside| inside.split_once('}')) {
            rest = after;
            for matcher in inside.split("\",").map(|matcher| matcher.trim_end_matches('"')) {
                let (label, value) = matcher.split_once('"').expect("a matcher has a value");
                let operator = label.trim_start_matches(is_name);
                matchers.push((label.trim_end_matches(operator), operator, value));
            }
        }
        found.push(Selector { name, matchers });
    }
    found
}

/// Labels by which an expression groups and joins, and those of a legend.
fn grouped_by(expression: &str) -> Vec<&str> {
    let groups = ["by (", "on (", "group_left ("].into_iter().flat_map(|word| expression.split(word).skip(1));
    let labels = groups.filter_map(|rest| rest.split(')').next()).flat_map(|labels| labels.split(", "));
    labels.filter(|label| !label.is_empty()).collect()
}

/// The series that the nodes of a cluster serve: by name, the values of each label.
#[derive(Default)]
struct Served(BTreeMap<String, BTreeMap<String, BTreeSet<String>>>);

impl Served {
    fn add(&mut self, text: &str) {
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some(at) = line.find(|c| !is_name(c)) else { continue };
            let labels = self.0.entry(line[..at].to_owned()).or_default();
            let Some((inside, _)) = line[at..].strip_prefix('{').and_then(|rest| rest.split_once('}')) else {
                continue;
            };
            for (label, value) in inside.split(',').filter_map(|pair| pair.split_once('=')) {
                labels.entry(label.to_owned()).or_default().insert(value.trim_matches('"').to_owned());
            }
        }
    }

    /// What an expression names that no node has; nothing if all is well.
    fn complaints(&self, expression: &str, legend: &str) -> Vec<String> {
        let mut complaints = Vec::new();
        let mut known: BTreeSet<&str> = SCRAPED.into();
        for Selector { name, matchers } in selectors(expression) {
            let Some(labels) = self.0.get(name) else {
                complaints.push(format!("no node serves {name}"));
                continue;
            };
            known.extend(labels.keys().map(String::as_str));
            for (label, operator, value) in matchers.into_iter().filter(|(label, ..)| !SCRAPED.contains(label)) {
                let Some(values) = labels.get(label) else {
                    complaints.push(format!("{name} has no label {label}"));
                    continue;
                };
                let names_values = ["=", "=~"].contains(&operator) && !value.contains('$');
                let mut unknown = value.split('|').filter(|value| names_values && !values.contains(*value));
                complaints.extend(unknown.next().map(|value| format!("{name} is never {label}=\"{value}\"")));
            }
        }
        let shown = legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next());
        let unknown = grouped_by(expression).into_iter().chain(shown).filter(|label| !known.contains(label));
        complaints.extend(unknown.map(|label| format!("nothing here has the label {label}")));
        complaints.iter().map(|complaint| format!("{complaint}: {expression}")).collect()
    }
}

/// Ends the load, also where the test fails.
struct StopsLoad<'a>(&'a AtomicBool);

impl Drop for StopsLoad<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes, conditional writes, deletes, and scans over all partitions.
fn some_of_everything(cluster: &Cluster, until: &AtomicBool) {
    let client = cluster.client();
    let mut round = 0_u32;
    while !until.load(Ordering::Relaxed) {
        for key in ["a", "h", "p", "z"] {
            client.put(key, round.to_string().as_str()).expect("a put");
            client.get(key).expect("a get");
        }
        let key = format!("k{round}");
        client.insert(key.as_str(), "1").expect("an insert");
        client.delete(key.as_str()).expect("a delete");
        client.range("a".."zz").expect("a scan").count().expect("its pairs");
        round += 1;
    }
}

#[test]
fn every_metric_and_label_of_the_files_is_served_and_every_metric_is_on_the_dashboard() {
    let cluster = Cluster::formed(3, "g,n,t");
    let until = AtomicBool::new(false);
    let mut served = Served::default();
    std::thread::scope(|scope| {
        let stop = StopsLoad(&until);
        let loads: Vec<_> = (0..2).map(|_| scope.spawn(|| some_of_everything(&cluster, &until))).collect();
        // Tuning is the last to know: it takes some intervals under load.
        eventually("all metrics have series", || {
            (0..3).for_each(|node| served.add(&metrics(&cluster, node)));
            loads.iter().any(|load| load.is_finished()) || served.0.contains_key("coppice_tuning")
        });
        (0..3).for_each(|node| served.add(&metrics(&cluster, node)));
        drop(stop);
    });
    served.add(&metrics_of_one_with_a_certificate());
    let dashboard: serde_json::Value = serde_json::from_str(&file("grafana.json")).expect("json");
    let mut expressions = Vec::new();
    texts_of(&dashboard, &["expr", "definition"], &mut expressions);
    assert!(expressions.len() > 60, "only {} expressions were found", expressions.len());
    let legend = |panel: &serde_json::Value| {
        ["legendFormat", "titleFormat"].map(|key| panel[key].as_str().unwrap_or_default()).concat()
    };
    let mut complaints: Vec<String> = Vec::new();
    for (text, panel) in &expressions {
        // The names of variables end in what they take: label_values(metric, label).
        complaints.extend(served.complaints(text, &legend(panel)));
    }
    for alert in alerts() {
        complaints.extend(served.complaints(&alert.expression, ""));
    }
    let tests = file("alerts_test.yml");
    for series in tests.lines().filter_map(|line| line.trim().strip_prefix("- series: ")) {
        // Bounds of buckets are those that the test wants.
        complaints.extend(served.complaints(series, "").into_iter().filter(|text| !text.contains(" is never le=")));
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    let shown: BTreeSet<&str> =
        expressions.iter().flat_map(|(text, _)| selectors(text)).map(|used| used.name).collect();
    let is_shown = |metric: &&Metric| shown.iter().any(|name| name.starts_with(&metric.name()));
    let forgotten: Vec<String> =
        Metric::ALL.iter().filter(|metric| !is_shown(metric)).map(|metric| metric.name()).collect();
    assert!(forgotten.is_empty(), "the dashboard does not show {}", forgotten.join(", "));
    match promtool() {
        Some(promtool) => (0..3).for_each(|node| lint(&promtool, &metrics(&cluster, node))),
        None => {
            eprintln!("skipped: `promtool check metrics`, since there is no promtool (Debian's package prometheus)")
        }
    }
}

/// What a process shows beside that if it has a certificate. It belongs to no cluster.
fn metrics_of_one_with_a_certificate() -> String {
    let mut cluster = Cluster::stopped(1, &[]);
    let directory = cluster.scratch.path("certs");
    let said = run(&["cert", "ca", "--dir", &directory.display().to_string(), "--nodes", "1"]);
    assert_eq!(said.code, 0, "{said:?}");
    let mut command = cluster.command(0);
    for (flag, file) in [("--tls-ca", "ca.pem"), ("--tls-cert", "n1.pem"), ("--tls-key", "n1.key")] {
        command.arg(flag).arg(directory.join(file));
    }
    cluster.start_as(0, command, "waiting for init");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("it is later than 1970");
    let mut text = String::new();
    eventually("the end of the certificate is served", || {
        text = metrics(&cluster, 0);
        let line = text.lines().find_map(|line| line.strip_prefix("coppice_certificate_expiry_seconds "));
        let days = line.map(|ends_at| (ends_at.parse::<f64>().expect("a number") - now.as_secs_f64()) / 86_400.0);
        // It lasts 365 days, and began a little earlier than it was made.
        days.inspect(|days| assert!((363.0..366.0).contains(days), "{days}")).is_some()
    });
    text
}

/// What a node serves to whoever does not ask for OpenMetrics.
fn metrics(cluster: &Cluster, node: usize) -> String {
    let page = cluster.page(node, "/metrics");
    let (head, body) = page.split_once("\r\n\r\n").expect("a body");
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    body.to_owned()
}

fn promtool() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join("promtool")).find(|program| program.is_file())
}

#[track_caller]
fn lint(promtool: &Path, text: &str) {
    let mut command = Command::new(promtool);
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("promtool starts");
    child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

#[test]
fn every_alert_is_tested_and_documented_and_says_what_to_do() {
    let (tests, manual) = (file("alerts_test.yml"), include_str!("../../../docs/operations.md"));
    let alerts = alerts();
    assert!(alerts.len() > 10, "only {} alerts were found", alerts.len());
    for alert in &alerts {
        let Alert { name, expression, wait, severity, texts } = alert;
        assert!(tests.contains(&format!("{{alertname=\"{name}\",severity=\"{severity}\"}}")), "{name} has no test");
        let wait = if wait.is_empty() { "at once" } else { wait };
        let row = format!("| `{name}` | `{}` | {wait} | {severity} |", expression.replace('|', "\\|"));
        assert!(manual.contains(&row), "docs/operations.md 4.2 lacks the row: {row}");
        assert!(["page", "ticket"].contains(&severity.as_str()), "{name}");
        for key in ["summary", "means", "runbook"] {
            assert!(texts.get(key).is_some_and(|text| text.len() > 20), "{name} has no {key}");
        }
    }
    let rows = manual.lines().filter(|line| line.starts_with("| `Coppice")).count();
    assert_eq!(rows, alerts.len(), "docs/operations.md 4.2 names alerts that do not exist");
}

#[test]
fn a_name_or_label_that_no_node_serves_is_found() {
    let mut served = Served::default();
    served.add("# HELP x y\ncoppice_warning{kind=\"a\"} 1\ncoppice_up 1\nprocess_x_bucket{le=\"1\",op=\"b\"} 2\n");
    for good in [
        "sum by (kind) (coppice_warning{job=\"$job\",kind=~\"a|a\"})",
        "coppice_up > 0 and on (instance) coppice_warning{kind!=\"z\"} == 1",
        "histogram_quantile(0.9, sum by (le, op) (rate(process_x_bucket{op=\"b\"}[5m])))",
        "coppice_warning{kind=\"$kind\"}",
    ] {
        assert_eq!(served.complaints(good, "{{instance}}"), [] as [&str; 0]);
    }
    for (bad, complaint) in [
        ("sum(coppice_warnings)", "no node serves coppice_warnings"),
        ("coppice_up{kind=\"a\"}", "coppice_up has no label kind"),
        ("coppice_warning{kind=~\"a|b\"}", "coppice_warning is never kind=\"b\""),
        ("sum by (instance, op) (coppice_warning)", "nothing here has the label op"),
    ] {
        assert_eq!(served.complaints(bad, ""), [format!("{complaint}: {bad}")]);
    }
    assert_eq!(served.complaints("coppice_up", "{{kind}}"), ["nothing here has the label kind: coppice_up"]);
}

#[test]
fn a_node_without_a_quorum_says_which_groups_have_no_leader_and_is_ready_again_once_there_is_one() {
    let mut cluster = Cluster::formed(3, "m");
    eventually("all are ready", || (0..3).all(|node| cluster.page(node, "/readyz").starts_with("HTTP/1.1 200")));
    [1, 2].into_iter().for_each(|node| cluster.kill(node));
    eventually("every group is named", || {
        let page = cluster.page(0, "/readyz?verbose");
        let reasons = ["p0", "p1", "p2"].map(|group| format!("{group} has no leader that this node knows\n"));
        page.starts_with("HTTP/1.1 503") && page.ends_with(&format!("\r\n\r\n{}", reasons.concat()))
    });
    let page = cluster.page(0, "/readyz");
    assert!(page.contains(r#""ready":false,"reasons":["p0 has no leader that this node knows","#), "{page}");
    assert!(cluster.page(0, "/livez").starts_with("HTTP/1.1 200"), "restarting it would heal nothing");
    cluster.start(1, "ready");
    eventually("two are ready", || (0..2).all(|node| cluster.page(node, "/readyz").starts_with("HTTP/1.1 200")));
    cluster.start(2, "ready");
    eventually("the last one too", || cluster.page(2, "/readyz").starts_with("HTTP/1.1 200"));
}
