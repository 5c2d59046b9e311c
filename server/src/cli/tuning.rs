//! `tuning`: what the leaders measured, what their models make of it, and why (protocol.md 9, papers.md A17).

use std::io;

use clap::{Args, Subcommand};
use coppice_client::wire::{BatchAndWindow, Bottleneck, GroupTuning, PartitionId, TuningAccount, TuningReport};
use serde_json::{Value, json};

use super::args::{Cli, Format};
use super::connect::admin;
use super::errors::{self, Context};
use super::failure::{Exit, Failure};
use super::output::Output;
use super::predict::{PredictArgs, readable};
use super::shape_args::partition;

/// `tuning`
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct TuningArgs {
    /// One partition, such as p2; p0 is the directory [default: all]
    #[arg(value_parser = partition)]
    pub partition: Option<PartitionId>,
    /// Without a cluster
    #[command(subcommand)]
    pub verb: Option<TuningVerb>,
}

/// `tuning ..`
#[derive(Debug, Clone, Subcommand)]
pub enum TuningVerb {
    /// Predict batch, window, throughput and bottleneck of a cluster that is not there yet
    Predict(PredictArgs),
}

/// Carries out `tuning [P]`.
///
/// # Errors
/// That of stdout; a failure is returned with its four lines.
pub async fn run(
    cli: &Cli,
    context: &Context,
    only: Option<PartitionId>,
    output: &mut Output<'_>,
) -> io::Result<Result<Exit, Failure>> {
    let mut report = match admin(cli).tuning().await {
        Ok(report) => report,
        Err(error) => return Ok(Err(errors::admin_failure(&error, context))),
    };
    report.groups.retain(|group| only.is_none_or(|only| group.partition == only));
    if let (Some(only), true) = (only, report.groups.is_empty()) {
        let exists = match admin(cli).map().await {
            Ok(reply) => reply.map.is_none_or(|map| map.group(only).is_some()),
            Err(error) => return Ok(Err(errors::admin_failure(&error, context))),
        };
        return Ok(Err(missing(context, only, exists)));
    }
    match output.style.admin() {
        Format::Json | Format::Jsonl => writeln!(output.data, "{}", object(&report))?,
        Format::Table | Format::Raw => table(&report, output)?,
    }
    Ok(Ok(Exit::Done))
}

fn missing(context: &Context, partition: PartitionId, exists: bool) -> Failure {
    let (exit, code, what, cause, next) = match exists {
        true => (Exit::Unavailable, "no_leader", "no leader answered", "nobody leads it now", "coppice status"),
        false => (Exit::NotFound, "not_found", "no such partition", "the map has none", "coppice partition ls"),
    };
    Failure {
        exit,
        code,
        what: format!("tuning: {partition}: {what}"),
        place: context.endpoints.join(", "),
        cause: cause.to_owned(),
        next: next.to_owned(),
    }
}

fn table(report: &TuningReport, output: &mut Output<'_>) -> io::Result<()> {
    let out = &mut output.data;
    match report.on {
        true => writeln!(out, "auto_tuning = on: batches and windows follow from what is measured")?,
        false => {
            writeln!(out, "auto_tuning = off: settings stay as they are (try: coppice config set auto_tuning on)")?
        }
    }
    for group in &report.groups {
        writeln!(out, "{} led by {}", group.partition, group.leader)?;
        writeln!(out, "  runs with   {}", settings(&group.in_force))?;
        let Some(account) = &group.account else {
            writeln!(out, "  measured    too little yet: some seconds with 32 commands each tell enough")?;
            continue;
        };
        if account.advised != group.in_force {
            let would = if report.on { "goes to" } else { "would take" };
            writeln!(out, "  {would:<10}  {}", settings(&account.advised))?;
        }
        writeln!(out, "  measured    {}", inputs(account))?;
        let (most, now) = (account.predicted_throughput, account.measured_throughput);
        let share = if most > 0.0 { format!(", {:.0} %", 100.0 * now / most) } else { String::new() };
        writeln!(out, "  throughput  at most {most:.0} commands/s predicted, {now:.0} measured{share}")?;
        let (predicted, measured) = (account.predicted_window, account.measured_window);
        writeln!(out, "  window      {predicted:.1} predicted, {measured:.1} measured")?;
        writeln!(out, "  bottleneck  {}", reason(account))?;
    }
    for node in &report.silent {
        writeln!(output.notes, "{node} did not answer: groups that it leads are missing")?;
    }
    Ok(())
}

fn settings(settings: &BatchAndWindow) -> String {
    let BatchAndWindow { batch_bytes_max, window, window_bytes_max } = *settings;
    let (batch, undecided) = (readable(batch_bytes_max as f64), readable(window_bytes_max as f64));
    format!("batch {batch}, window {window}, at most {undecided} undecided")
}

fn inputs(account: &TuningAccount) -> String {
    let TuningAccount { command_bytes, batch_commands, batch_cpu_ms, command_cpu_ms, round_trip_ms, .. } = *account;
    let (batch_us, command_us) = (1e3 * batch_cpu_ms, 1e3 * command_cpu_ms);
    let flush = match account.flush_ms {
        0.0 => "no flush".to_owned(),
        flush => format!("flush {flush:.2} ms shared by {:.1} batches", account.batches_per_flush),
    };
    let link = account.link_bytes_per_ms.map(|link| format!(", link {}/s", readable(1e3 * link))).unwrap_or_default();
    format!(
        "{batch_commands:.1} commands a batch, {command_bytes:.1} B each; cpu {batch_us:.1} us a batch and \
         {command_us:.2} us a command; {round_trip_ms:.2} ms to a quorum and back{link}; {flush}"
    )
}

/// The word for what limits.
fn word(bottleneck: Bottleneck) -> &'static str {
    match bottleneck {
        Bottleneck::Cpu => "cpu",
        Bottleneck::Network => "network",
        Bottleneck::Disk => "disk",
    }
}

/// What limits, and what follows from that, in a sentence.
fn reason(account: &TuningAccount) -> String {
    let TuningAccount { advised, advised_batch_commands: commands, advised_share, bottleneck, .. } = account;
    let (share, window) = (100.0 * advised_share, advised.window);
    let keep = match window {
        1 => "one at a time keeps it busy".to_owned(),
        window => format!("{window} at once keep it busy"),
    };
    let word = word(*bottleneck);
    format!("{word}: batches of {commands:.0} commands reach {share:.0} % of what larger ones would, {keep}")
}

fn object(report: &TuningReport) -> Value {
    let groups: Vec<Value> = report.groups.iter().map(group_object).collect();
    let silent: Vec<String> = report.silent.iter().map(ToString::to_string).collect();
    json!({ "v": 1, "on": report.on, "groups": groups, "silent": silent })
}

fn settings_object(settings: &BatchAndWindow) -> Value {
    let BatchAndWindow { batch_bytes_max, window, window_bytes_max } = settings;
    json!({ "batch_bytes_max": batch_bytes_max, "window": window, "window_bytes_max": window_bytes_max })
}

fn group_object(group: &GroupTuning) -> Value {
    let mut object = json!({
        "partition": group.partition.to_string(),
        "leader": group.leader.to_string(),
        "in_force": settings_object(&group.in_force),
        "advised": null,
    });
    let Some(account) = &group.account else { return object };
    object["advised"] = settings_object(&account.advised);
    object["inputs"] = json!({
        "batch_commands": account.batch_commands,
        "command_bytes": account.command_bytes,
        "batch_cpu_ms": account.batch_cpu_ms,
        "command_cpu_ms": account.command_cpu_ms,
        "round_trip_ms": account.round_trip_ms,
        "flush_ms": account.flush_ms,
        "batches_per_flush": account.batches_per_flush,
        "link_bytes_per_ms": account.link_bytes_per_ms,
    });
    let (predicted, measured) = (account.predicted_throughput, account.measured_throughput);
    object["commands_per_second"] = json!({ "predicted": predicted, "measured": measured });
    object["window"] = json!({ "predicted": account.predicted_window, "measured": account.measured_window });
    object["bottleneck"] = word(account.bottleneck).into();
    object["reason"] = reason(account).into();
    object
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;
    use coppice_client::wire::NodeId;

    use super::super::golden;
    use super::super::output::Style;
    use super::super::verbs::Verb;
    use super::*;
    use crate::text::Coding;

    fn report(on: bool) -> TuningReport {
        let fixed = BatchAndWindow { batch_bytes_max: 64 << 10, window: 16, window_bytes_max: 1 << 20 };
        let advised = BatchAndWindow { batch_bytes_max: 20 << 10, window: 2, window_bytes_max: 256 << 10 };
        let account = TuningAccount {
            advised,
            advised_batch_commands: 1_170.0,
            advised_share: 0.98,
            command_bytes: 17.5,
            batch_cpu_ms: 0.06,
            command_cpu_ms: 0.004,
            round_trip_ms: 0.12,
            flush_ms: 0.35,
            batches_per_flush: 1.5,
            link_bytes_per_ms: None,
            batch_commands: 120.0,
            predicted_throughput: 222_222.0,
            measured_throughput: 55_555.5,
            predicted_window: 0.3,
            measured_window: 0.4,
            bottleneck: Bottleneck::Cpu,
        };
        let slow = TuningAccount {
            advised: BatchAndWindow { window: 1, ..advised },
            flush_ms: 0.0,
            link_bytes_per_ms: Some(1_232.0),
            bottleneck: Bottleneck::Network,
            ..account
        };
        let group = |id, account: Option<TuningAccount>| {
            let in_force = account.filter(|_| on).map_or(fixed, |account| account.advised);
            GroupTuning { partition: PartitionId(id), leader: NodeId(id + 1), in_force, account }
        };
        let groups = vec![group(0, None), group(1, Some(account)), group(2, Some(slow))];
        TuningReport { on, groups, silent: vec![NodeId(5)] }
    }

    fn printed(report: &TuningReport) -> String {
        let (mut data, mut notes) = (Vec::new(), Vec::new());
        let style = Style { format: None, coding: Coding::Plain, quiet: false, terminal: true, color: false };
        table(report, &mut Output { style, data: &mut data, notes: &mut notes }).expect("memory");
        data.extend(notes);
        String::from_utf8(data).expect("text")
    }

    #[test]
    fn inputs_predictions_and_measurements_stand_side_by_side() {
        golden::check("tuning", &format!("{}\n{}", printed(&report(true)), printed(&report(false))));
    }

    #[test]
    fn the_object_says_the_same() {
        let object = object(&report(false));
        assert_eq!((&object["v"], &object["on"], &object["silent"]), (&json!(1), &json!(false), &json!(["n5"])));
        let groups = object["groups"].as_array().expect("a list");
        assert!(groups[0]["advised"].is_null() && groups[0]["bottleneck"].is_null());
        assert_eq!((&groups[1]["in_force"]["window"], &groups[1]["advised"]["window"]), (&json!(16), &json!(2)));
        assert_eq!(groups[1]["commands_per_second"], json!({ "predicted": 222_222.0, "measured": 55_555.5 }));
        assert_eq!(groups[2]["bottleneck"], "network");
        assert_eq!(groups[2]["inputs"]["link_bytes_per_ms"], 1_232.0);
    }

    #[test]
    fn a_partition_a_prediction_or_nothing_may_follow() {
        let args = |words: &[&str]| match Cli::parse_from([&["coppice", "tuning"], words].concat()).verb {
            Verb::Tuning(args) => args,
            other => panic!("{other:?}"),
        };
        assert!(args(&[]).partition.is_none() && args(&[]).verb.is_none());
        assert_eq!(args(&["p3"]).partition, Some(PartitionId(3)));
        assert!(args(&["predict"]).verb.is_some());
        for (exists, exit) in [(true, Exit::Unavailable), (false, Exit::NotFound)] {
            let failure = missing(&Context::of_demo("127.0.0.1:7400", Duration::from_secs(5)), PartitionId(9), exists);
            assert_eq!(failure.exit, exit);
            assert!(failure.next.split(' ').next() == Some("coppice"), "{failure}");
        }
        let wrong = Cli::try_parse_from(["coppice", "tuning", "q9"]).expect_err("no partition").to_string();
        assert!(wrong.contains("a partition such as p2"), "{wrong}");
    }
}
