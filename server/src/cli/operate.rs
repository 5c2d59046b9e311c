//! Operators' verbs that are one question to the cluster: `leader transfer`, `check replicas`; or to one node:
//! `node log-level`.

use std::io;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use coppice_client::admin::Error;
use coppice_client::map::NodeState;
use coppice_client::wire::{AdminError, AdminReply, AdminRequest, NodeId, PartitionId, TRANSFER_DEADLINE_MAX};
use coppice_client::{Admin, Config};
use coppice_core::settings::units;
use serde_json::{Value, json};

use super::args::{Cli, Format};
use super::connect::{admin, config_of, note_passed_over};
use super::errors::{self, Context};
use super::failure::{Exit, Failure};
use super::output::Output;
use super::shape_args::{node, partition};

/// A leader transfer that is late completes within an election, if at all.
const LATE_MAX: Duration = Duration::from_secs(1);

type Outcome = io::Result<Result<Exit, Failure>>;

/// `leader`
#[derive(Debug, Clone, Subcommand)]
pub enum LeaderVerb {
    /// Transfer the leadership of a partition to another of its nodes
    Transfer(TransferArgs),
}

/// `leader transfer`
#[derive(Debug, Clone, Args)]
pub struct TransferArgs {
    /// The partition, such as p2; p0 is the directory
    #[arg(value_parser = partition)]
    pub partition: PartitionId,
    /// The node that shall lead, such as n3
    #[arg(value_parser = node)]
    pub node: NodeId,
    /// How long to wait; past it the old leader continues, or the transfer completes a moment later
    #[arg(long, value_parser = transfer_deadline, default_value = "2s", value_name = "TIME")]
    pub deadline: Duration,
    /// Only show the plan
    #[arg(long)]
    pub dry_run: bool,
}

fn transfer_deadline(text: &str) -> Result<Duration, String> {
    let deadline = units::parse_time(text)?;
    if deadline < Duration::from_millis(1) || deadline > TRANSFER_DEADLINE_MAX {
        return Err(format!("between 1ms and {}", units::show_time(TRANSFER_DEADLINE_MAX)));
    }
    Ok(deadline)
}

/// `check`
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum CheckVerb {
    /// Compare the digests of all replicas of each partition
    Replicas,
}

/// `leader transfer`.
///
/// # Errors
/// That of stdout; a failure is returned with its four lines.
pub async fn transfer(cli: &Cli, context: &Context, args: &TransferArgs, output: &mut Output<'_>) -> Outcome {
    let TransferArgs { partition, node, deadline, dry_run } = *args;
    // The question must outlive what it asks for.
    let timeout = cli.global.timeout.max(deadline + Duration::from_secs(2));
    let endpoints = cli.global.endpoints.iter().map(ToString::to_string);
    let admin = Admin::new(endpoints, Config { timeout, ..config_of(cli) });
    let before = match admin.cluster_map().await {
        Ok(reply) => reply.leaders.into_iter().find(|(id, _)| *id == partition).map(|(_, leader)| leader),
        Err(error) => return Ok(Err(errors::admin_failure(&error, context))),
    };
    note_passed_over(&admin, output)?;
    let name = |leader: Option<NodeId>| leader.map_or_else(|| "nobody".to_owned(), |leader| leader.to_string());
    if dry_run {
        let plan =
            format!("{partition} would go from {} to {node} within {}", name(before), units::show_time(deadline));
        match output.style.admin() {
            Format::Json | Format::Jsonl => {
                writeln!(output.data, "{}", json!({ "v": 1, "done": false, "plan": plan }))?
            }
            Format::Table | Format::Raw => writeln!(output.data, "plan: {plan}")?,
        }
        return Ok(Ok(Exit::Done));
    }
    let pause = match admin.transfer_leader(partition, node, deadline).await {
        Ok(pause) => Some(pause),
        Err(Error::Failed(AdminError::TimedOut(_)) | Error::Unanswered(_)) => {
            match led_late(&admin, partition, node).await {
                Ok(()) => None,
                Err(leader) => {
                    let within = units::show_time(deadline);
                    let leader = name(leader);
                    let text =
                        format!("{node} did not take {partition} over within {within}; last known leader: {leader}");
                    return Ok(Err(errors::unknown(&text, context)));
                }
            }
        }
        Err(error) => return Ok(Err(errors::admin_failure(&error, context))),
    };
    let pause_ms = pause.map(|pause| pause.as_secs_f64() * 1e3);
    match output.style.admin() {
        Format::Json | Format::Jsonl => {
            let from = before.map(|leader| leader.to_string());
            let fields = json!({
                "v": 1, "done": true, "partition": partition.to_string(), "from": from, "to": node.to_string(),
                "pause_ms": pause_ms,
            });
            writeln!(output.data, "{fields}")?;
        }
        Format::Table | Format::Raw if before == Some(node) => {
            writeln!(output.data, "{node} leads {partition} already")?
        }
        Format::Table | Format::Raw => {
            let pause = pause_ms.map_or_else(|| "later than asked".to_owned(), |ms| format!("pause {ms:.1} ms"));
            writeln!(output.data, "{partition} led by {node}, was {}; {pause}", name(before))?;
        }
    }
    Ok(Ok(Exit::Done))
}

/// `node log-level`: of one node, until it restarts.
///
/// # Errors
/// That of stdout; a failure is returned with its four lines.
pub async fn log_level(cli: &Cli, context: &Context, node: NodeId, spec: &str, output: &mut Output<'_>) -> Outcome {
    let set = async {
        let map = admin(cli).map().await?.map.unwrap_or_default();
        let Some(info) = map.node(node).filter(|info| info.state != NodeState::Removed) else {
            return Err(Error::Failed(AdminError::NotFound(format!("there is no node {node}"))));
        };
        Admin::new([&info.addresses.native], config_of(cli)).set_log_level(spec).await
    };
    if let Err(error) = set.await {
        return Ok(Err(errors::admin_failure(&error, context)));
    }
    match output.style.admin() {
        Format::Json | Format::Jsonl => {
            let fields = json!({ "v": 1, "ok": true, "node": node.to_string(), "log_level": spec });
            writeln!(output.data, "{fields}")?;
        }
        Format::Table | Format::Raw => writeln!(output.data, "ok  {node} logs {spec} until it restarts")?,
    }
    Ok(Ok(Exit::Done))
}

/// Whether the node has come to lead the partition after the deadline; if not, who leads it.
async fn led_late(admin: &Admin, partition: PartitionId, node: NodeId) -> Result<(), Option<NodeId>> {
    let until = Instant::now() + LATE_MAX;
    loop {
        let leaders = admin.cluster_map().await.map(|reply| reply.leaders).unwrap_or_default();
        match leaders.into_iter().find(|(id, _)| *id == partition).map(|(_, leader)| leader) {
            Some(leader) if leader == node => return Ok(()),
            leader if Instant::now() >= until => return Err(leader),
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// `check replicas`: compares the digests of all replicas. A replica that does not answer, or has reported none yet, is
/// named and makes the verdict incomplete.
///
/// # Errors
/// That of stdout; a failure is returned with its four lines.
pub async fn check_replicas(cli: &Cli, context: &Context, output: &mut Output<'_>) -> Outcome {
    let admin = admin(cli);
    let reply = match admin.verb(AdminRequest::CheckReplicas).await {
        Ok(reply) => reply,
        Err(error) => return Ok(Err(errors::admin_failure(&error, context))),
    };
    note_passed_over(&admin, output)?;
    let by = admin.answered().by.map(|node| node.to_string());
    let AdminReply::ReplicasChecked { partitions, missing } = reply else {
        return Ok(Err(context.failure("incompatible", "check replicas: the node answered something else".to_owned())));
    };
    let exit = if missing.is_empty() { Exit::Done } else { Exit::Failed };
    match output.style.admin() {
        Format::Json | Format::Jsonl => {
            let agreed: Vec<Value> = partitions
                .iter()
                .map(|(partition, instance, digest)| {
                    json!({ "partition": partition.to_string(), "instance": instance, "digest": format!("{digest:016x}") })
                })
                .collect();
            let missing: Vec<Value> = missing
                .iter()
                .map(|(partition, node)| json!({ "partition": partition.to_string(), "node": node.to_string() }))
                .collect();
            writeln!(output.data, "{}", json!({ "v": 1, "answered_by": by, "agreed": agreed, "missing": missing }))?;
        }
        Format::Table | Format::Raw => {
            for (partition, instance, digest) in &partitions {
                writeln!(output.data, "{partition}  digests agree at #{instance}: {digest:016x}")?;
            }
            for (partition, node) in &missing {
                writeln!(output.notes, "{partition}  no digest of {node} at that instance")?;
            }
        }
    }
    Ok(Ok(exit))
}
