//! `tuning predict`: what a cluster would do, before it is there (papers.md A17). Asks nobody.

use std::io;
use std::time::Duration;

use clap::{Args, ValueEnum};
use coppice_core::settings::units::{self, MIB};
use coppice_core::sizes;
use coppice_ordering::tuning::{Choice, Disk, InstanceCost, Limits, Link, MessageCost, Model, Network, Resource};
use serde_json::{Value, json};

use super::args::Format;
use super::failure::{Exit, Failure};
use super::output::Output;

/// `tuning predict`
#[derive(Debug, Clone, Args)]
pub struct PredictArgs {
    /// Replicas of a partition, the leader included
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=9), default_value_t = 3, value_name = "N")]
    pub nodes: u32,
    /// One way between two nodes
    #[arg(long, value_parser = latency, default_value = "50us", value_name = "TIME")]
    pub latency: Duration,
    /// Of a node's link, such as 10Mbit or 1Gbit
    #[arg(long, value_parser = units::parse_bandwidth, default_value = "1Gbit", value_name = "RATE")]
    pub bandwidth: u64,
    /// Key and value of a command together, such as 128 or 8k
    #[arg(long, value_parser = command_size, default_value = "128", value_name = "SIZE")]
    pub size: u64,
    /// Commands that the client library packs into one message
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000), default_value_t = 1, value_name = "N")]
    pub pack: u32,
    /// One flush of the log; 0: none
    #[arg(long, value_parser = flush, default_value = "500us", value_name = "TIME")]
    pub flush: Duration,
    /// CPU time of sending or receiving one small message; each KiB adds a microsecond
    #[arg(long, value_parser = message_cpu, default_value = "6us", value_name = "TIME")]
    pub message_cpu: Duration,
    /// Whether all copies of a batch share the leader's link [default: lan up to a latency of 1 ms]
    #[arg(long, value_enum, value_name = "KIND")]
    pub network: Option<NetworkKind>,
}

/// Whose link carries what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NetworkKind {
    /// One link for all copies and all answers
    Lan,
    /// A link of its own to each replica
    Wan,
}

/// Copying and checksums, in milliseconds per byte.
const BYTE_CPU_MS: f64 = 0.001 / 1_024.0;
/// What a log's device writes, in bytes per millisecond: 1 GB/s. The flush is what counts.
const DISK_BYTES_PER_MS: f64 = 1e6;
/// Up to here the nodes are taken to be on one network.
const LAN_LATENCY_MAX: Duration = Duration::from_millis(1);

fn bounded(text: &str, low: Duration, high: Duration) -> Result<Duration, String> {
    let time = units::parse_time(text)?;
    let range = || format!("from {} to {}, not {text}", units::show_time(low), units::show_time(high));
    if (low..=high).contains(&time) { Ok(time) } else { Err(range()) }
}

fn latency(text: &str) -> Result<Duration, String> {
    bounded(text, Duration::ZERO, Duration::from_secs(10))
}

fn flush(text: &str) -> Result<Duration, String> {
    bounded(text, Duration::ZERO, Duration::from_secs(1))
}

fn message_cpu(text: &str) -> Result<Duration, String> {
    bounded(text, Duration::from_nanos(100), Duration::from_millis(100))
}

/// `128`, `1k`, `8 KiB`: bytes where no unit is given.
fn command_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let kibibytes = text.strip_suffix(['k', 'K']).map(|digits| format!("{digits} KiB"));
    let bytes = match (text.parse(), kibibytes) {
        (Ok(bytes), _) => bytes,
        (_, Some(kibibytes)) => units::parse_size(&kibibytes)?,
        _ => units::parse_size(text)?,
    };
    if (1..=MIB).contains(&bytes) { Ok(bytes) } else { Err(format!("from 1 B to 1 MiB, not {text}")) }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The model of what was described; `None`: such commands do not fit into a pack.
fn model(args: &PredictArgs) -> Option<Model> {
    let sizes = sizes::of_commands(args.size as usize, args.pack)?;
    let network = args.network.unwrap_or(match args.latency <= LAN_LATENCY_MAX {
        true => NetworkKind::Lan,
        false => NetworkKind::Wan,
    });
    let network = match network {
        NetworkKind::Lan => Network::Lan,
        NetworkKind::Wan => Network::Wan,
    };
    // Who is alone waits for nobody.
    let latency = if args.nodes == 1 { Duration::ZERO } else { args.latency };
    // A message in and a message out: of a client for each of its packs, of a replica for each batch.
    let both_ms = 2.0 * milliseconds(args.message_cpu);
    let replica = MessageCost { per_byte_ms: BYTE_CPU_MS, per_message_ms: both_ms };
    let client = MessageCost { per_byte_ms: BYTE_CPU_MS, per_message_ms: both_ms / f64::from(args.pack) };
    let link = Link { network, bytes_per_ms: args.bandwidth as f64 / 8_000.0, latency_ms: milliseconds(latency) };
    let flush_ms = milliseconds(args.flush);
    let disk = (flush_ms > 0.0).then_some(Disk { flush_ms, batches_per_flush: 1.0, bytes_per_ms: DISK_BYTES_PER_MS });
    let cpu = InstanceCost::of_messages(client, replica, 0.0, args.nodes, &sizes);
    let mut model = Model { replicas: args.nodes, sizes, link, cpu, execute_ms: 0.0, disk, alone: None };
    // One flush takes every batch that waits for it: half the window, on average.
    for _ in 0..GROUP_COMMIT_ROUNDS {
        let waiting = (f64::from(best_of(&model).window) / 2.0).max(1.0);
        model.disk = model.disk.map(|disk| Disk { batches_per_flush: waiting, ..disk });
    }
    Some(model)
}

/// What the model would choose.
fn best_of(model: &Model) -> Choice {
    Limits::default().choose(model)
}

/// The window depends on the batches that share a flush, and those on the window; it settles in two or three rounds.
const GROUP_COMMIT_ROUNDS: usize = 4;

/// Carries out `tuning predict`.
///
/// # Errors
/// That of stdout; a failure is returned with its four lines.
pub fn run(args: &PredictArgs, output: &mut Output<'_>) -> io::Result<Result<Exit, Failure>> {
    let Some(model) = model(args) else {
        let what = format!("tuning predict: {} commands of {} do not fit into a pack", args.pack, args.size);
        let next = "coppice tuning predict --pack 1";
        return Ok(Err(Failure::usage(what, "a frame holds 4 MiB at most", next)));
    };
    match output.style.admin() {
        Format::Json | Format::Jsonl => writeln!(output.data, "{}", object(args, &model))?,
        Format::Table | Format::Raw => table(args, &model, output)?,
    }
    Ok(Ok(Exit::Done))
}

/// Batches around the best one, for the curve.
fn around(best: &Choice) -> impl Iterator<Item = f64> {
    let k = best.requests;
    let mut sizes: Vec<f64> =
        [1.0, k / 16.0, k / 4.0, k, k * 4.0].into_iter().map(|k: f64| k.floor().max(1.0)).collect();
    sizes.dedup();
    sizes.into_iter()
}

fn table(args: &PredictArgs, model: &Model, output: &mut Output<'_>) -> io::Result<()> {
    let best = best_of(model);
    let k = best.requests;
    let most = model.window_bytes_max(best.batch_bytes);
    let kind = match model.link.network {
        Network::Lan => "shared by all copies",
        Network::Wan => "to each node",
    };
    let (latency, bandwidth) = (units::show_time(args.latency), units::show_bandwidth(args.bandwidth));
    let out = &mut output.data;
    let flush = units::show_time(args.flush);
    match args.nodes {
        1 => writeln!(out, "1 node, flush {flush}")?,
        nodes => writeln!(out, "{nodes} nodes {latency} apart, {bandwidth} {kind}, flush {flush}")?,
    }
    let Model { sizes, .. } = model;
    let wire = sizes.request + sizes.request_header;
    writeln!(out, "commands of {} B, {wire:.1} B in a batch, {:.1} B to answer", args.size, sizes.answer)?;
    let bytes = readable(best.batch_bytes);
    writeln!(out, "best        batch {bytes} ({k} commands), window {}", best.window)?;
    writeln!(out, "undecided   at most {}, {} needed", readable(most), readable(needed(&best)))?;
    writeln!(out, "throughput  {:.0} commands/s", best.throughput)?;
    writeln!(out, "instance    {:.2} ms", model.instance_ms(k))?;
    writeln!(out, "bottleneck  {}", sentence(model, k))?;
    writeln!(out, "    batch  commands  window  commands/s")?;
    for k in around(&best) {
        let choice = model.choice(k);
        let mark = if k == best.requests { "  <- best" } else { "" };
        let (bytes, window) = (readable(choice.batch_bytes), choice.window);
        writeln!(out, "{bytes:>9}  {k:>8}  {window:>6}  {:>10.0}{mark}", choice.throughput)?;
    }
    Ok(())
}

fn needed(choice: &Choice) -> f64 {
    choice.batch_bytes * f64::from(choice.window)
}

/// Bytes for people: three digits and a unit.
pub(super) fn readable(bytes: f64) -> String {
    const KIB: f64 = 1_024.0;
    match bytes {
        bytes if bytes < KIB => format!("{bytes:.0} B"),
        bytes if bytes < 10.0 * KIB => format!("{:.1} KiB", bytes / KIB),
        bytes if bytes < KIB * KIB => format!("{:.0} KiB", bytes / KIB),
        bytes => format!("{:.1} MiB", bytes / KIB / KIB),
    }
}

/// The word for a resource.
fn word(resource: Resource) -> &'static str {
    match resource {
        Resource::Cpu => "cpu",
        Resource::Network => "network",
        Resource::Disk => "disk",
    }
}

/// How busy each resource is when the busiest is so all the time, 0 to 1.
fn busy(model: &Model, k: f64) -> [(Resource, f64); 3] {
    let (_, most) = model.bottleneck(k);
    [
        (Resource::Cpu, model.cpu_ms(k) / most),
        (Resource::Network, model.network_ms(k) / most),
        (Resource::Disk, model.disk_ms(k) / most),
    ]
}

fn sentence(model: &Model, k: f64) -> String {
    let shares = busy(model, k).map(|(resource, share)| format!("{} {:.0} %", word(resource), 100.0 * share));
    format!("{} (busy: {})", word(model.bottleneck(k).0), shares.join(", "))
}

fn object(args: &PredictArgs, model: &Model) -> Value {
    let best = best_of(model);
    let describe = |choice: Choice| {
        json!({
            "batch_bytes": choice.batch_bytes.round(),
            "batch_commands": choice.requests,
            "window": choice.window,
            "window_exact": choice.window_exact,
            "commands_per_second": choice.throughput,
            "bottleneck": word(choice.bottleneck),
        })
    };
    let curve: Vec<Value> = around(&best).map(|k| describe(model.choice(k))).collect();
    let shares: serde_json::Map<String, Value> = busy(model, best.requests)
        .into_iter()
        .map(|(resource, share)| (word(resource).to_owned(), share.into()))
        .collect();
    json!({
        "v": 1,
        "inputs": {
            "nodes": args.nodes,
            "latency_ms": milliseconds(args.latency),
            "bandwidth_bits_per_second": args.bandwidth,
            "network": if model.link.network == Network::Lan { "lan" } else { "wan" },
            "command_bytes": args.size,
            "command_bytes_in_batch": model.sizes.request + model.sizes.request_header,
            "answer_bytes": model.sizes.answer,
            "batch_header_bytes": model.sizes.batch_header,
            "flush_ms": milliseconds(args.flush),
            "batch_cpu_ms": model.cpu.per_batch_ms,
            "command_cpu_ms": model.cpu.per_request_ms,
        },
        "best": describe(best),
        "window_bytes_max": model.window_bytes_max(best.batch_bytes).round(),
        "instance_ms": model.instance_ms(best.requests),
        "busy": shares,
        "curve": curve,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::args::Cli;
    use super::super::golden;
    use super::super::output::Style;
    use super::super::tuning::TuningVerb;
    use super::super::verbs::Verb;
    use super::*;

    fn args(words: &str) -> PredictArgs {
        let line = ["coppice", "tuning", "predict"].into_iter().chain(words.split_whitespace());
        match Cli::parse_from(line).verb {
            Verb::Tuning(args) => match args.verb {
                Some(TuningVerb::Predict(args)) => args,
                None => panic!("no verb"),
            },
            other => panic!("{other:?}"),
        }
    }

    fn printed(words: &str, format: Format) -> String {
        let (mut data, mut notes) = (Vec::new(), Vec::new());
        let coding = crate::text::Coding::Plain;
        let style = Style { format: Some(format), coding, quiet: false, terminal: false, color: false };
        let mut output = Output { style, data: &mut data, notes: &mut notes };
        run(&args(words), &mut output).expect("memory").expect("a prediction");
        String::from_utf8(data).expect("text")
    }

    #[test]
    fn a_prediction_names_batch_window_throughput_and_bottleneck() {
        let words = ["--nodes 5 --latency 50ms --bandwidth 10Mbit --size 128", "--nodes 3 --size 1k", "--nodes 1"];
        let texts = words.map(|words| format!("$ coppice tuning predict {words}\n{}", printed(words, Format::Table)));
        golden::check("predict", &texts.join("\n"));
    }

    #[test]
    fn the_object_says_the_same() {
        let words = "--nodes 5 --latency 50ms --bandwidth 10Mbit --size 128";
        let object: Value = serde_json::from_str(&printed(words, Format::Json)).expect("json");
        let model = model(&args(words)).expect("a model");
        let best = best_of(&model);
        assert_eq!(object["v"], 1);
        assert_eq!(object["inputs"]["network"], "wan");
        assert_eq!(object["best"]["window"], best.window);
        assert_eq!(object["best"]["batch_commands"], best.requests);
        assert_eq!(object["best"]["bottleneck"], "network");
        assert_eq!(object["busy"]["network"], 1.0);
    }

    #[test]
    fn more_of_the_bottleneck_is_more_throughput_and_more_of_another_is_not() {
        let throughput = |words: &str| best_of(&model(&args(words)).expect("a model")).throughput;
        let wan = "--nodes 5 --latency 50ms --size 128 --bandwidth";
        let (slow, fast) = (throughput(&format!("{wan} 10Mbit")), throughput(&format!("{wan} 20Mbit")));
        assert!((fast / slow - 2.0).abs() < 0.1, "{slow} {fast}");
        let cpu = throughput(&format!("{wan} 10Mbit --message-cpu 3us"));
        assert!((cpu / slow - 1.0).abs() < 0.06, "{slow} {cpu}");
        // Packed by the client, a command costs a share of its message (papers.md B11).
        assert!(throughput("--size 16 --pack 400") > 20.0 * throughput("--size 16 --pack 1"));
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_reason() {
        for (words, reason) in [
            ("--nodes 0", "0 is not in 1..=9"),
            ("--bandwidth 10", "a bandwidth with its unit"),
            ("--bandwidth 10Mbitt", "a bandwidth with its unit"),
            ("--latency 11s", "from 0s to 10s"),
            ("--size 2M", "a size with its unit"),
            ("--size 0", "from 1 B to 1 MiB"),
            ("--flush 2s", "from 0s to 1s"),
            ("--message-cpu 0", "from 100ns to 100ms"),
            ("--network mesh", "invalid value 'mesh'"),
        ] {
            let line = ["coppice", "tuning", "predict"].into_iter().chain(words.split_whitespace());
            let error = Cli::try_parse_from(line).expect_err(words).to_string();
            assert!(error.contains(reason), "{words}: {error}");
        }
        let mut nowhere = (Vec::new(), Vec::new());
        let style =
            Style { format: None, coding: crate::text::Coding::Plain, quiet: false, terminal: true, color: false };
        let mut output = Output { style, data: &mut nowhere.0, notes: &mut nowhere.1 };
        let refused = run(&args("--size 1024k --pack 5"), &mut output).expect("memory").expect_err("too large");
        assert_eq!((refused.exit, refused.next.as_str()), (Exit::Usage, "coppice tuning predict --pack 1"));
    }
}
