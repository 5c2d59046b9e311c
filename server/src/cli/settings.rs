//! `config get`, `describe`, `set` and `unset`: settings of a running cluster, and what each setting of a cluster or a
//! node means. The definitions that check values are the ones that are printed.

use std::io;

use coppice_client::admin::Error;
use coppice_client::wire::{AdminError, ConfigRow, Shape};
use coppice_core::settings::{CLUSTER_SETTINGS, ClusterSettings, FEATURE_LEVEL_KEY, nearest};
use serde_json::{Value, json};

use super::args::{Cli, ConfirmArgs, Format};
use super::connect::{admin, note_passed_over};
use super::errors::{self, Context};
use super::failure::{Exit, Failure};
use super::output::Output;
use super::{shape, words};
use crate::config::NODE_SETTINGS;

type Outcome = io::Result<Result<Exit, Failure>>;

/// The setting that replicas come and go by: another number is planned, agreed to and watched.
const REPLICAS: &str = "replicas";

/// What is agreed to when the feature level is raised.
const NO_WAY_BACK: &str = "plan: every node notes the feature level in its data directory; programs that do not know \
                           the level cannot open it from then on, and the level is never lowered";

/// One setting as its definition has it.
struct Definition {
    key: &'static str,
    /// Of the cluster; else of each node.
    of_cluster: bool,
    meaning: &'static str,
    default: &'static str,
    range: String,
    /// What another value takes to hold.
    change: &'static str,
}

/// Every setting, those of the cluster first.
fn definitions() -> impl Iterator<Item = Definition> {
    let of_cluster = CLUSTER_SETTINGS.iter().map(|setting| Definition {
        key: setting.key,
        of_cluster: true,
        meaning: setting.meaning,
        default: setting.default,
        range: setting.bounds(),
        change: "live",
    });
    let of_node = NODE_SETTINGS.iter().map(|setting| Definition {
        key: setting.key,
        of_cluster: false,
        meaning: setting.meaning,
        default: setting.default.words(),
        range: setting.bounds(),
        change: setting.change(),
    });
    of_cluster.chain(of_node)
}

impl Definition {
    /// How it is set, in words to type.
    fn how(&self) -> String {
        let Self { key, change, .. } = self;
        match NODE_SETTINGS.iter().find(|setting| setting.key == *key) {
            Some(setting) => {
                let live = if *key == "log_level" { ", by SIGHUP or coppice node log-level" } else { "" };
                format!("{change}{live}; `{key}` in the file, {}, or --{}", setting.variable(), setting.flag())
            }
            None => format!("{change}, on all nodes: coppice config set {key} VALUE, or config unset {key}"),
        }
    }

    fn json(&self, row: Option<&ConfigRow>) -> Value {
        json!({
            "key": self.key, "of": if self.of_cluster { "cluster" } else { "node" }, "meaning": self.meaning,
            "range": self.range, "default": self.default, "change": self.change,
            "value": row.map(|row| &row.value), "origin": row.map(|row| &row.origin),
        })
    }
}

/// `config get`: one setting, or all of the cluster, and where each value comes from.
///
/// # Errors
/// That of stdout; a failure is returned with its four lines.
pub async fn get(cli: &Cli, context: &Context, key: Option<&str>, output: &mut Output<'_>) -> Outcome {
    let admin = admin(cli);
    let rows = match admin.config().await {
        Ok(rows) => rows,
        Err(error) => return Ok(Err(errors::admin_failure(&error, context))),
    };
    note_passed_over(&admin, output)?;
    let shown: Vec<&ConfigRow> = rows.iter().filter(|row| key.map_or(row.cluster, |key| row.key == key)).collect();
    if let (Some(key), true) = (key, shown.is_empty()) {
        return Ok(Err(unknown(context, key)));
    }
    match output.style.admin() {
        Format::Json | Format::Jsonl => {
            let rows: Vec<Value> =
                shown.iter().map(|row| json!({ "key": row.key, "value": row.value, "origin": row.origin })).collect();
            writeln!(output.data, "{}", json!({ "v": 1, "settings": rows }))?;
        }
        Format::Table | Format::Raw => {
            let lines = shown.iter().map(|row| format!("{} = {}", row.key, row.value));
            let width = lines.clone().map(|line| line.len()).max().unwrap_or(0);
            for (line, row) in lines.zip(&shown) {
                writeln!(output.data, "{line:width$}  # {}", row.origin)?;
            }
        }
    }
    Ok(Ok(Exit::Done))
}

/// `config describe`: what one setting means, or all in a table, with the values of the node that answers. Without one
/// the definitions are still there.
///
/// # Errors
/// That of stdout or stderr; a failure is returned with its four lines.
pub async fn describe(cli: &Cli, context: &Context, key: Option<&str>, output: &mut Output<'_>) -> Outcome {
    let shown: Vec<Definition> = definitions().filter(|known| key.is_none_or(|key| known.key == key)).collect();
    if let (Some(key), true) = (key, shown.is_empty()) {
        return Ok(Err(unknown(context, key)));
    }
    let admin = admin(cli);
    let rows = match admin.config().await {
        Ok(rows) => rows,
        Err(error) => {
            let why = errors::admin_failure(&error, context).what;
            output.note(&format!("{why}: values are left out (--endpoints names nodes)"))?;
            Vec::new()
        }
    };
    note_passed_over(&admin, output)?;
    let by = admin.answered().by.map(|node| node.to_string());
    let row = |known: &Definition| rows.iter().find(|row| row.key == known.key);
    match output.style.admin() {
        Format::Json | Format::Jsonl => {
            let settings: Vec<Value> = shown.iter().map(|known| known.json(row(known))).collect();
            writeln!(output.data, "{}", json!({ "v": 1, "answered_by": by, "settings": settings }))?;
        }
        Format::Table | Format::Raw => match (key, &shown[..]) {
            (Some(_), [known]) => block(known, row(known), by.as_deref(), output)?,
            _ => table(&shown, row, by.as_deref(), output)?,
        },
    }
    Ok(Ok(Exit::Done))
}

/// What stands for an empty value.
fn shown_value(value: &str) -> &str {
    if value.is_empty() { "none" } else { value }
}

fn block(known: &Definition, row: Option<&ConfigRow>, by: Option<&str>, output: &mut Output<'_>) -> io::Result<()> {
    writeln!(output.data, "{}: {}", known.key, known.meaning)?;
    if let Some(row) = row {
        let on = by.filter(|_| !known.of_cluster).map_or_else(String::new, |node| format!(" on {node}"));
        writeln!(output.data, "  value    {}{on}, from: {}", shown_value(&row.value), row.origin)?;
    }
    writeln!(output.data, "  default  {}", known.default)?;
    writeln!(output.data, "  range    {}", known.range)?;
    writeln!(output.data, "  change   {}", known.how())
}

/// A line per setting; the meaning is last, for a terminal may wrap it.
fn table<'a>(
    shown: &[Definition],
    row: impl Fn(&Definition) -> Option<&'a ConfigRow>,
    by: Option<&str>,
    output: &mut Output<'_>,
) -> io::Result<()> {
    for of_cluster in [true, false] {
        let of = match (of_cluster, by) {
            (true, _) => "cluster setting".to_owned(),
            (false, Some(node)) => format!("setting of {node}"),
            (false, None) => "node setting".to_owned(),
        };
        let head = [of.as_str(), "value", "from", "default", "range", "change", "meaning"].map(str::to_owned);
        let lines = shown.iter().filter(|known| known.of_cluster == of_cluster).map(|known| {
            let row = row(known);
            let value = row.map_or("-", |row| shown_value(&row.value));
            let origin = row.map_or("-", |row| row.origin.as_str());
            [known.key, value, origin, known.default, &known.range, known.change, known.meaning].map(str::to_owned)
        });
        let lines: Vec<[String; 7]> = std::iter::once(head).chain(lines).collect();
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..6).map(width).collect();
        for line in &lines {
            let cells = line.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}  "));
            writeln!(output.data, "{}{}", cells.collect::<String>(), line[6])?;
        }
        if of_cluster {
            writeln!(output.data)?;
        }
    }
    Ok(())
}

fn unknown(context: &Context, key: &str) -> Failure {
    let near = nearest(key, definitions().map(|known| known.key));
    let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
    Failure {
        exit: Exit::NotFound,
        code: "not_found",
        what: format!("{}: no setting `{key}`{hint}", context.verb),
        place: context.endpoints.join(", "),
        cause: "neither the cluster nor a node has a setting of this name".to_owned(),
        next: words::join(["coppice", "config", "describe"].into_iter().chain(near)),
    }
}

/// The refusal of a name: a setting of nodes is none of the cluster's.
fn failure(error: &Error, context: &Context, key: &str) -> Failure {
    match error {
        Error::Failed(AdminError::NotFound(_)) => {
            let Some(known) = definitions().find(|known| known.key == key && !known.of_cluster) else {
                return unknown(context, key);
            };
            Failure {
                what: format!("{}: `{key}` is a setting of each node, not of the cluster", context.verb),
                cause: format!("it is set where the node starts: {}", known.how()),
                next: words::join(["coppice", "config", "describe", key]),
                ..unknown(context, key)
            }
        }
        // It was proposed, perhaps: a leader decides what it has in its log when it has a quorum again.
        Error::Failed(AdminError::TimedOut(text)) => {
            Failure { next: words::join(["coppice", "config", "get", key]), ..errors::unknown(text, context) }
        }
        error => errors::admin_failure(error, context),
    }
}

/// `config set`: a cluster setting, for all nodes at once and while they run; `config unset`: it returns to its
/// default. Another number of replicas moves data, and is planned first.
///
/// # Errors
/// That of stdout; a failure is returned with its four lines.
pub async fn change(
    cli: &Cli,
    context: &Context,
    (key, value): (&str, Option<&str>),
    confirm: ConfirmArgs,
    output: &mut Output<'_>,
) -> Outcome {
    let failed = |error: &Error| Ok(Err(failure(error, context, key)));
    if key == REPLICAS {
        let mut settings = ClusterSettings::default();
        return match value.map_or(Ok(()), |value| settings.set(key, value)) {
            Ok(()) => {
                let count = value.map(|_| settings.replicas);
                shape::change_as_planned(cli, context, Shape::SetReplicas { count }, confirm, output).await
            }
            Err(error) => failed(&Error::Failed(error.into())),
        };
    }
    let admin = admin(cli);
    if confirm.dry_run {
        return match would_be(&admin, key, value).await {
            Ok(plan) => plan_only(&plan, output).map(|()| Ok(Exit::Done)),
            Err(error) => failed(&error),
        };
    }
    if key == FEATURE_LEVEL_KEY && value.is_some() && !confirm.yes {
        if let Err(error) = would_be(&admin, key, value).await {
            return failed(&error);
        }
        output.note(NO_WAY_BACK)?;
        if !shape::agreed(context, output)? {
            return Ok(Err(shape::disagreed(context)));
        }
    }
    let changed = match value {
        Some(value) => admin.set_config(key, value).await,
        None => admin.unset_config(key).await,
    };
    if let Err(error) = changed {
        return failed(&error);
    }
    let default = || CLUSTER_SETTINGS.iter().find(|known| known.key == key).map_or("", |known| known.default);
    let holds = value.unwrap_or_else(default);
    match output.style.admin() {
        Format::Json | Format::Jsonl => {
            writeln!(output.data, "{}", json!({ "v": 1, "ok": true, "key": key, "value": holds }))?
        }
        Format::Table | Format::Raw if value.is_none() => writeln!(output.data, "ok  {key} = {holds}, its default")?,
        Format::Table | Format::Raw => writeln!(output.data, "ok  {key} = {holds}")?,
    }
    Ok(Ok(Exit::Done))
}

/// What the cluster would come to go by, judged as it judges.
async fn would_be(admin: &coppice_client::Admin, key: &str, value: Option<&str>) -> Result<String, Error> {
    let mut settings = ClusterSettings::default();
    for row in admin.config().await?.iter().filter(|row| row.cluster) {
        // A newer node has settings that this program does not know, and need not judge.
        _ = settings.set(&row.key, &row.value);
    }
    let before = settings.get(key).unwrap_or_default();
    settings.change(key, value).map_err(|error| Error::Failed(error.into()))?;
    Ok(format!("{key} = {}, was {before}", settings.get(key).unwrap_or_default()))
}

fn plan_only(plan: &str, output: &mut Output<'_>) -> io::Result<()> {
    match output.style.admin() {
        Format::Json | Format::Jsonl => writeln!(output.data, "{}", json!({ "v": 1, "done": false, "plan": plan })),
        Format::Table | Format::Raw => writeln!(output.data, "plan: {plan}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The rows of the manual's tables of settings: name, default, range, meaning, change.
    fn manual() -> BTreeMap<&'static str, Vec<&'static str>> {
        const PAGE: &str = include_str!("../../../docs/operations.md");
        let rows = PAGE.lines().filter(|line| line.starts_with("| `"));
        let cells = rows.map(|line| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>());
        let of_five = cells.filter(|cells| cells.len() == 5);
        of_five.map(|cells| (cells[0].trim_matches('`'), cells)).collect()
    }

    #[test]
    fn the_manual_says_of_every_setting_what_its_definition_says() {
        let manual = manual();
        for known in definitions() {
            let Some(cells) = manual.get(known.key) else { panic!("{} is not in operations.md", known.key) };
            assert_eq!(cells[1].replace('`', ""), known.default, "{}", known.key);
            assert_eq!(cells[4], known.change, "{}", known.key);
        }
        let settings = definitions().count();
        assert_eq!(
            manual.values().filter(|cells| ["live", "restart"].iter().any(|w| cells[4].starts_with(w))).count(),
            settings
        );
    }

    #[test]
    fn every_setting_says_which_values_there_are() {
        for known in definitions() {
            assert!(!known.range.is_empty() && !known.meaning.is_empty(), "{}", known.key);
        }
        let range = |key: &str| definitions().find(|known| known.key == key).expect("known").range;
        assert_eq!((range("replicas").as_str(), range("speculation").as_str()), ("1 to 9", "on, off"));
        assert_eq!(
            (range("log.segment_bytes").as_str(), range("log.flush").as_str()),
            ("64 KiB to 4 GiB", "fdatasync, off")
        );
        assert_eq!((range("session_expiry").as_str(), range("insecure").as_str()), ("from 1", "true, false"));
    }
}
