//! Verbs that change the cluster's shape: the plan, the question, the progress, the end (operations.md 2).
//!
//! A change that was begun goes on in the cluster whether anybody watches or not. This program draws its name, asks for
//! it until it is done, and may be interrupted: the same command with `--resume NAME` watches it again.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use bytes::Bytes;
use coppice_client::wire::{AdminError, ChangeId, NodeId, PartitionId, ReshapeRequest, Reshaped, Shape};
use coppice_client::{Admin, Client, admin};
use serde_json::json;

use super::args::{Cli, ConfirmArgs, Format};
use super::errors::{self, Context};
use super::failure::{Exit, Failure};
use super::input::Inputs;
use super::latency_probe::Waits;
use super::output::Output;
use super::shape_args::{NodeVerb, PartitionVerb, PlanArgs};
use super::{connect, operate, shape_args, shape_tables, words};

/// Between two questions how far a change is.
const POLL: Duration = Duration::from_millis(100);

/// While nobody in the cluster answers about a change that was begun, it is asked again for so long: elections and
/// restarts are part of a change's life.
const PATIENCE: Duration = Duration::from_secs(30);

/// A verb waits so long for a leader of the directory before it says that there is none: longer than an election takes.
const ELECTION_PATIENCE: Duration = Duration::from_secs(3);

type Outcome = io::Result<Result<Exit, Failure>>;

/// `node`.
///
/// # Errors
/// That of stdout or stderr; a failure is returned with its four lines.
pub async fn node(cli: &Cli, context: &Context, verb: &NodeVerb, output: &mut Output<'_>) -> Outcome {
    let (shape, plan) = match verb {
        NodeVerb::Ls => return shape_tables::nodes(&connect::admin(cli), context, output).await,
        NodeVerb::LogLevel { node, levels } => return operate::log_level(cli, context, *node, levels, output).await,
        NodeVerb::Add { address, plan } => (Shape::AddNode { address: address.clone() }, plan),
        NodeVerb::Drain { node, plan } => (Shape::DrainNode { node: *node }, plan),
        NodeVerb::Undrain { node, plan } => (Shape::UndrainNode { node: *node }, plan),
        NodeVerb::Remove { node, plan } => (Shape::RemoveNode { node: *node }, plan),
        NodeVerb::Replace { old, address, plan } => (Shape::ReplaceNode { old: *old, address: address.clone() }, plan),
    };
    change(&connect::admin(cli), context, shape, plan, None, output).await
}

/// `partition`.
///
/// # Errors
/// That of stdout or stderr; a failure is returned with its four lines.
pub async fn partition(cli: &Cli, context: &Context, verb: &PartitionVerb, output: &mut Output<'_>) -> Outcome {
    let admin = connect::admin(cli);
    let mut probes = None;
    let (shape, plan) = match verb {
        PartitionVerb::Split { partition, at, to, plan } => {
            let at = match at.as_ref().map(|key| split_key(context, key)).transpose() {
                Ok(at) => at,
                Err(failure) => return Ok(Err(failure)),
            };
            let split = Shape::Split { partition: *partition, at };
            if !to.is_empty() {
                return split_to(&admin, context, split, to, plan, output).await;
            }
            probes = Some(connect::connect(cli));
            (split, plan)
        }
        PartitionVerb::Merge { partition, into, plan } => {
            return merge(&admin, context, (*partition, *into), plan, output).await;
        }
        PartitionVerb::Ls => return shape_tables::partitions(&admin, context, output).await,
        PartitionVerb::Show { key } => return shape_tables::partition_of(&admin, context, key, output).await,
        PartitionVerb::Move { partition, from, to, plan } => {
            (Shape::Move { partition: *partition, from: from.clone(), to: to.clone() }, plan)
        }
    };
    change(&admin, context, shape, plan, probes, output).await
}

/// A change that the cluster works out by itself from a setting. Repeated, the same command watches it.
///
/// # Errors
/// That of stdout or stderr; a failure is returned with its four lines.
pub async fn change_as_planned(
    cli: &Cli,
    context: &Context,
    shape: Shape,
    confirm: ConfirmArgs,
    output: &mut Output<'_>,
) -> Outcome {
    let plan = PlanArgs { yes: confirm.yes, dry_run: confirm.dry_run, force: false, resume: None };
    change(&connect::admin(cli), context, shape, &plan, None, output).await
}

/// `rebalance`.
///
/// # Errors
/// That of stdout or stderr; a failure is returned with its four lines.
pub async fn rebalance(cli: &Cli, context: &Context, plan: &PlanArgs, output: &mut Output<'_>) -> Outcome {
    change(&connect::admin(cli), context, Shape::Rebalance, plan, None, output).await
}

fn split_key(context: &Context, key: &OsStr) -> Result<Bytes, Failure> {
    let mut stdin = io::stdin();
    Inputs::new(context.verb, context.coding, &mut stdin).bytes("--at", key).map(Bytes::from)
}

/// `partition split --to`: processes that are named by address join as nodes, the partition splits, and the new one
/// moves to these nodes. Each step is a change of its own; a repeated command skips the steps that are done.
async fn split_to(
    admin: &Admin,
    context: &Context,
    split: Shape,
    words: &[String],
    plan: &PlanArgs,
    output: &mut Output<'_>,
) -> Outcome {
    let name = plan.resume.unwrap_or_else(draw_change);
    let of = match split {
        Shape::Split { partition: Some(partition), .. } => partition.to_string(),
        Shape::Split { at: Some(_), .. } => "the partition that holds --at".to_owned(),
        _ => "the largest partition".to_owned(),
    };
    output.note(&format!("plan: {} join unless they are nodes already", words.join(" ")))?;
    output.note(&format!("plan: {of} splits, and the new partition moves to them"))?;
    let begun = match can_split_to(admin, name, &split, words, plan).await {
        Ok(begun) => begun,
        Err(error) => return Ok(Err(errors::admin_failure(&error, context))),
    };
    if plan.dry_run {
        return Ok(Ok(Exit::Done));
    }
    if let Some(failure) = not_agreed(context, plan, begun, output)? {
        return Ok(Err(failure));
    }
    match or_interrupted(context, name, Then::More, split_to_steps(admin, context, name, &split, words, plan, output))
        .await?
    {
        Ok(done) => report(&done, name, output).map(|()| Ok(Exit::Done)),
        Err(failure) => Ok(Err(failure)),
    }
}

/// Checks every step before the first begins, since a split is not taken back. True if a step was begun before.
async fn can_split_to(
    admin: &Admin,
    name: ChangeId,
    split: &Shape,
    words: &[String],
    plan: &PlanArgs,
) -> Result<bool, admin::Error> {
    let mut to = BTreeSet::new();
    let mut begun = false;
    for word in words {
        match shape_args::node(word) {
            Ok(node) => _ = to.insert(node),
            Err(_) => {
                let shape = Shape::AddNode { address: word.clone() };
                begun |= planned(admin, dry(draw_change(), shape, plan)).await?.begun;
            }
        }
    }
    let cut = planned(admin, dry(name, split.clone(), plan)).await?;
    if cut.begun {
        return Ok(true);
    }
    let Some(partition) = cut.partition else { return Ok(begun) };
    let map = admin.cluster_map().await?.map.unwrap_or_default();
    // Who is still to join is counted, as one of those that are there: more is known only then.
    let now = map.entry(partition).map_or(&[][..], |entry| &entry.replicas);
    let joining = now.iter().map(|info| info.node).filter(|node| !to.contains(node)).take(words.len() - to.len());
    let to = to.iter().copied().chain(joining).collect();
    planned(admin, dry(draw_change(), Shape::Move { partition, from: Vec::new(), to }, plan)).await?;
    Ok(begun)
}

fn draw_change() -> ChangeId {
    ChangeId(crate::random::draw())
}

/// Asks what a change would be.
fn dry(change: ChangeId, shape: Shape, plan: &PlanArgs) -> ReshapeRequest {
    ReshapeRequest { change, shape, dry_run: true, force: plan.force, within: None }
}

/// Asks for a change as it was planned: a partition is cut where the plan says, if it is still the same.
fn wet(request: ReshapeRequest, planned: &Reshaped) -> ReshapeRequest {
    let mut request = ReshapeRequest { dry_run: false, ..request };
    if let (Shape::Split { partition, at }, Some(cut)) = (&mut request.shape, &planned.cut) {
        (*partition, *at) = (planned.partition, Some(cut.at.clone()));
        request.within = Some(cut.boundaries.clone());
    }
    request
}

/// What a change would be; `request` is a dry run.
async fn planned(admin: &Admin, request: ReshapeRequest) -> Result<Reshaped, admin::Error> {
    let begun = Instant::now();
    loop {
        match admin.reshape(request.clone()).await {
            // The directory's leader may have died a moment ago; nothing was begun.
            Err(admin::Error::Failed(AdminError::TimedOut(_))) if begun.elapsed() < ELECTION_PATIENCE => {
                tokio::time::sleep(POLL).await;
            }
            answer => return answer,
        }
    }
}

async fn split_to_steps(
    admin: &Admin,
    context: &Context,
    name: ChangeId,
    split: &Shape,
    words: &[String],
    plan: &PlanArgs,
    output: &mut Output<'_>,
) -> io::Result<Result<Reshaped, Failure>> {
    let mut to = Vec::new();
    let ask = |number: u64, shape| dry(ChangeId(name.0.wrapping_add(number)), shape, plan);
    for (at, word) in words.iter().enumerate() {
        if let Ok(node) = shape_args::node(word) {
            to.push(node);
            continue;
        }
        let request = ReshapeRequest { dry_run: false, ..ask(at as u64 + 2, Shape::AddNode { address: word.clone() }) };
        match watch(admin, context, request, Then::More, output).await? {
            Ok(done) => to.extend(done.node),
            Err(failure) => return Ok(Err(failure)),
        }
    }
    // All nodes are known: check again whether the new partition may move there. It begins on its parent's nodes.
    let cut = ask(0, split.clone());
    let looked = async {
        let looked = planned(admin, cut.clone()).await?;
        if let Some(partition) = looked.partition.filter(|_| !looked.begun) {
            let shape = Shape::Move { partition, from: Vec::new(), to: to.clone() };
            planned(admin, dry(draw_change(), shape, plan)).await?;
        }
        Ok::<_, admin::Error>(looked)
    };
    let cut = match looked.await {
        Ok(looked) => wet(cut, &looked),
        Err(error) => return Ok(Err(errors::admin_failure(&error, context))),
    };
    match watch(admin, context, cut, Then::More, output).await? {
        Ok(Reshaped { partition: Some(partition), .. }) => {
            let shape = Shape::Move { partition, from: Vec::new(), to };
            let request = ReshapeRequest { dry_run: false, ..ask(1, shape) };
            watch(admin, context, request, Then::Nothing, output).await
        }
        done => Ok(done),
    }
}

/// Shows the plan, asks, begins, and watches until the end. With `probes`, it is measured meanwhile how long replies of
/// the partition wait.
async fn change(
    admin: &Admin,
    context: &Context,
    shape: Shape,
    plan: &PlanArgs,
    probes: Option<Client>,
    output: &mut Output<'_>,
) -> Outcome {
    let name = plan.resume.unwrap_or_else(draw_change);
    let request = dry(name, shape, plan);
    let planned = match planned(admin, request.clone()).await {
        Ok(planned) => planned,
        Err(error) => return Ok(Err(errors::admin_failure(&error, context))),
    };
    if planned.done {
        return report(&planned, name, output).map(|()| Ok(Exit::Done));
    }
    note_plan(admin, &planned, context, output)?;
    if plan.dry_run {
        return report(&planned, name, output).map(|()| Ok(Exit::Done));
    }
    if let Some(failure) = not_agreed(context, plan, planned.begun, output)? {
        return Ok(Err(failure));
    }
    let waits = match probes {
        Some(client) => waits(admin, client, planned.partition).await,
        None => None,
    };
    let watched = async {
        let watched = watch(admin, context, wet(request, &planned), Then::Nothing, output);
        let (watched, longest) = match waits {
            Some(waits) => waits.beside(watched).await,
            None => (watched.await, None),
        };
        watched.map(|done| done.map(|done| (done, longest)))
    };
    match or_interrupted(context, name, Then::Nothing, watched).await? {
        Ok((done, longest)) => report_with(&done, name, longest, output).map(|()| Ok(Exit::Done)),
        Err(failure) => Ok(Err(failure)),
    }
}

/// Probes of this partition, if the map has it.
async fn waits(admin: &Admin, client: Client, partition: Option<PartitionId>) -> Option<Waits> {
    let map = admin.map().await.ok()?.map?;
    let entry = map.partitions.iter().find(|entry| Some(entry.partition) == partition)?;
    Some(Waits::of(client, entry))
}

/// What is watched goes on in the cluster when the operator watches no more.
async fn or_interrupted<T>(
    context: &Context,
    name: ChangeId,
    then: Then,
    watching: impl Future<Output = io::Result<Result<T, Failure>>>,
) -> io::Result<Result<T, Failure>> {
    tokio::select! {
        watched = watching => watched,
        _ = tokio::signal::ctrl_c() => Ok(Err(interrupted(context, name, then))),
    }
}

/// `partition merge`: nothing is copied by a merge, so the replicas move beside those of the neighbour first.
async fn merge(
    admin: &Admin,
    context: &Context,
    (partition, into): (PartitionId, Option<PartitionId>),
    plan: &PlanArgs,
    output: &mut Output<'_>,
) -> Outcome {
    let name = plan.resume.unwrap_or_else(draw_change);
    let joining = dry(name, Shape::Merge { partition, into }, plan);
    let looked = async {
        let looked = planned(admin, joining.clone()).await?;
        let map = admin.cluster_map().await?.map.unwrap_or_default();
        let nodes = |id: PartitionId| map.entry(id).map(|entry| entry.replicas.iter().map(|info| info.node).collect());
        let beside: Option<BTreeSet<NodeId>> = looked.partition.and_then(nodes);
        let together = beside.is_none() || beside == nodes(partition);
        if looked.begun || (together && plan.resume.is_none()) {
            return Ok::<_, admin::Error>(None);
        }
        let to = beside.into_iter().flatten().collect();
        let moving = dry(ChangeId(name.0.wrapping_add(1)), Shape::Move { partition, from: Vec::new(), to }, plan);
        let begun = planned(admin, moving.clone()).await?.begun;
        Ok(Some((looked, moving, begun)))
    };
    let (looked, moving, begun) = match looked.await {
        Ok(Some(looked)) => looked,
        // No move comes before it, or that has ended.
        Ok(None) => return change(admin, context, joining.shape, plan, None, output).await,
        Err(error) => return Ok(Err(errors::admin_failure(&error, context))),
    };
    note_plan(admin, &looked, context, output)?;
    if plan.dry_run {
        return report(&looked, name, output).map(|()| Ok(Exit::Done));
    }
    if let Some(failure) = not_agreed(context, plan, begun, output)? {
        return Ok(Err(failure));
    }
    let steps = async {
        let moving = ReshapeRequest { dry_run: false, ..moving };
        if let Err(failure) = watch(admin, context, moving, Then::More, output).await? {
            return Ok(Err(failure));
        }
        watch(admin, context, ReshapeRequest { dry_run: false, ..joining }, Then::Nothing, output).await
    };
    match or_interrupted(context, name, Then::More, steps).await? {
        Ok(done) => report(&done, name, output).map(|()| Ok(Exit::Done)),
        Err(failure) => Ok(Err(failure)),
    }
}

/// What comes behind a change that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Nothing,
    /// Other changes, which this program begins.
    More,
}

fn note_plan(admin: &Admin, planned: &Reshaped, context: &Context, output: &mut Output<'_>) -> io::Result<()> {
    connect::note_passed_over(admin, output)?;
    for step in &planned.steps {
        let head = if step.starts_with("warning: ") { "" } else { "plan: " };
        output.note(&format!("{head}{step}"))?;
    }
    if let Some(cut) = &planned.cut {
        output.note(&format!("plan: its first key is {}", context.coding.show(&cut.at)))?;
    }
    Ok(())
}

/// Why a plan is not carried out: nobody agreed to it, or what is to be watched was never begun.
fn not_agreed(context: &Context, plan: &PlanArgs, begun: bool, output: &mut Output<'_>) -> io::Result<Option<Failure>> {
    match plan.resume {
        Some(name) if !begun => {
            let error = AdminError::NotFound(format!("no such change {name} is under way, or has ended lately"));
            Ok(Some(errors::admin_failure(&admin::Error::Failed(error), context)))
        }
        Some(_) => Ok(None),
        None if plan.yes || agreed(context, output)? => Ok(None),
        None => Ok(Some(disagreed(context))),
    }
}

/// Nobody said yes.
pub fn disagreed(context: &Context) -> Failure {
    let what = format!("{}: nothing was done", context.verb);
    Failure::usage(what, "nobody agreed to the plan", again(context, "--yes"))
}

/// Asks until the change is done.
async fn watch(
    admin: &Admin,
    context: &Context,
    request: ReshapeRequest,
    then: Then,
    output: &mut Output<'_>,
) -> io::Result<Result<Reshaped, Failure>> {
    let mut said = String::new();
    let mut heard = Instant::now();
    let mut begun = false;
    loop {
        match admin.reshape(request.clone()).await {
            Ok(progress) if progress.done => return Ok(Ok(progress)),
            Ok(progress) => {
                heard = Instant::now();
                // The first answer repeats the plan.
                let text = progress.steps.join("; ");
                if begun && text != said {
                    output.note(&text)?;
                }
                begun = true;
                said = text;
            }
            // Somebody is elected, or starts again; asking twice is not asking for two.
            Err(error) if is_silence(&error) && heard.elapsed() < PATIENCE => {}
            Err(error) if is_silence(&error) => return Ok(Err(interrupted(context, request.change, then))),
            Err(error) => return Ok(Err(errors::admin_failure(&error, context))),
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Nobody answered, or nobody who decides.
fn is_silence(error: &admin::Error) -> bool {
    use admin::Error::{Failed, NoMajority, Unanswered, Unreachable};
    matches!(error, Failed(AdminError::TimedOut(_)) | NoMajority(_) | Unreachable(_) | Unanswered(_))
}

/// Asks on a terminal; without one the answer is no.
pub fn agreed(context: &Context, output: &mut Output<'_>) -> io::Result<bool> {
    if !context.may_read_stdin || !io::stdin().is_terminal() {
        return Ok(false);
    }
    write!(output.notes, "go on? [y/N] ")?;
    output.notes.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn report(reshaped: &Reshaped, name: ChangeId, output: &mut Output<'_>) -> io::Result<()> {
    report_with(reshaped, name, None, output)
}

fn report_with(
    reshaped: &Reshaped,
    name: ChangeId,
    longest: Option<Duration>,
    output: &mut Output<'_>,
) -> io::Result<()> {
    let longest_ms = longest.map(|longest| longest.as_millis() as u64);
    match output.style.admin() {
        Format::Json | Format::Jsonl => {
            let fields = json!({
                "v": 1, "done": reshaped.done, "change": name.to_string(), "steps": reshaped.steps,
                "node": reshaped.node.map(|node| node.to_string()),
                "partition": reshaped.partition.map(|partition| partition.to_string()),
                "map_version": reshaped.map_version.0, "longest_wait_ms": longest_ms,
            });
            writeln!(output.data, "{fields}")
        }
        Format::Table | Format::Raw if reshaped.done => {
            let waited = longest_ms.map_or_else(String::new, |ms| format!("; no reply waited longer than {ms} ms"));
            writeln!(output.data, "{}; map version {}{waited}", reshaped.steps.join("; "), reshaped.map_version)
        }
        Format::Table | Format::Raw => Ok(()),
    }
}

/// The change goes on without this program, those behind it do not.
fn interrupted(context: &Context, name: ChangeId, then: Then) -> Failure {
    let goes_on = match then {
        Then::Nothing => "it goes on in the cluster",
        Then::More => "the step under way goes on in the cluster, the others when it is resumed",
    };
    Failure {
        exit: Exit::Unknown,
        code: "interrupted",
        what: format!("{}: not done yet; {goes_on}", context.verb),
        place: context.endpoints.join(", "),
        cause: "it was not watched to its end".to_owned(),
        // One that was resumed, or that a setting asks for, is resumed by the same words.
        next: match context.line.iter().any(|word| word.starts_with("--resume") || word == "config") {
            true => line_of(context),
            false => again(context, &format!("--resume {name}")),
        },
    }
}

fn again(context: &Context, more: &str) -> String {
    format!("{} {more}", line_of(context))
}

/// The command as it was typed.
fn line_of(context: &Context) -> String {
    words::join(["coppice"].into_iter().chain(context.line.iter().map(String::as_str)))
}
