//! Verbs about the cluster as a whole: `status` and `init`.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use bytes::Bytes;
use coppice_client::wire::{AdminReply, InitRequest, NodeId, Status};
use coppice_client::{Admin, Config};
use coppice_core::settings::{ClusterSettingError, ClusterSettings};
use coppice_core::status::Health;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use super::args::{Cli, Format, InitArgs, StatusArgs};
use super::connect::{admin, config_of, note_passed_over_by};
use super::errors::{self, Context};
use super::failure::{Exit, Failure};
use super::input::Inputs;
use super::output::Output;
use crate::status_view::{Look, exit, table, to_json};
use crate::text::Coding;

/// Between two looks of `status --watch`.
const WATCH: Duration = Duration::from_secs(1);

/// How long a node that the others do not hear may take to answer this program.
const REACH: Duration = Duration::from_millis(150);

/// `status`: one look, or one each second until Ctrl-C.
///
/// # Errors
/// That of stdout; a failure is returned with its four lines.
pub async fn status(
    cli: &Cli,
    context: &Context,
    args: &StatusArgs,
    output: &mut Output<'_>,
) -> io::Result<Result<Exit, Failure>> {
    let admin = admin(cli);
    if !args.watch {
        let (text, looked) = look(cli, &admin, context, output).await?;
        output.data.write_all(&text)?;
        return Ok(looked);
    }
    let on_screen = output.style.admin() == Format::Table && output.style.terminal && io::stdout().is_terminal();
    let _screen = on_screen.then(Screen::take).transpose()?;
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    loop {
        let round = async {
            let (text, looked) = look(cli, &admin, context, output).await?;
            if on_screen {
                // Home, and clear what is below.
                output.data.write_all(b"\x1b[H\x1b[J")?;
            }
            output.data.write_all(&text)?;
            if let Err(failure) = looked {
                // It may come back: that is what one watches for.
                output.failure(&failure)?;
            }
            output.data.flush()?;
            tokio::time::sleep(WATCH).await;
            io::Result::Ok(())
        };
        tokio::select! {
            round = round => round?,
            _ = interrupt.recv() => return Ok(Ok(Exit::Done)),
            _ = terminate.recv() => return Ok(Ok(Exit::Done)),
        }
    }
}

/// The terminal's second screen, without a cursor; given back when it is dropped, however the watch ends.
struct Screen;

impl Screen {
    fn take() -> io::Result<Screen> {
        write_terminal(b"\x1b[?1049h\x1b[?25l").map(|()| Screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that has gone needs nothing.
        let _ = write_terminal(b"\x1b[?25h\x1b[?1049l");
    }
}

fn write_terminal(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush())
}

/// What one look shows, and how it ends.
async fn look(
    cli: &Cli,
    admin: &Admin,
    context: &Context,
    output: &mut Output<'_>,
) -> io::Result<(Vec<u8>, Result<Exit, Failure>)> {
    let status = match admin.status(false).await {
        Ok(status) => status,
        Err(error) => return Ok((Vec::new(), Err(errors::admin_failure(&error, context)))),
    };
    if status.majority && !status.removed {
        note_passed_over_by(admin, |node| status.nodes.iter().any(|row| row.id == node), output)?;
    }
    let cut_off = reached(cli, &status).await;
    let mut text = Vec::new();
    match output.style.admin() {
        Format::Json | Format::Jsonl => {
            let mut object = to_json(&status);
            object["cut_off"] = cut_off.iter().map(ToString::to_string).collect();
            writeln!(text, "{object}")?;
        }
        Format::Table | Format::Raw => {
            let look = Look { coding: cli.global.coding(), color: output.style.color };
            table(&status, &cut_off, look, &mut text)?;
        }
    }
    Ok((text, Ok(exit(Health::of(&status)))))
}

/// Nodes that do not answer the one that told this status, and answer here: they run, and are cut off.
async fn reached(cli: &Cli, status: &Status) -> BTreeSet<NodeId> {
    let mut asked = JoinSet::new();
    for node in status.nodes.iter().filter(|node| !node.up && status.majority) {
        let config = Config { timeout: REACH, ..config_of(cli) };
        let (id, one) = (node.id, Admin::new([node.address.clone()], config));
        asked.spawn(async move { one.status(true).await.is_ok_and(|told| told.node == id).then_some(id) });
    }
    asked.join_all().await.into_iter().flatten().collect()
}

/// `init`: forms the cluster.
///
/// # Errors
/// That of stdout; a failure is returned with its four lines.
pub async fn init(
    cli: &Cli,
    context: &Context,
    args: &InitArgs,
    output: &mut Output<'_>,
) -> io::Result<Result<Exit, Failure>> {
    let request = match request_of(args, cli.global.coding()) {
        Ok(request) => request,
        Err(failure) => return Ok(Err(failure)),
    };
    let reply = match admin(cli).init(request).await {
        Ok(reply) => reply,
        Err(error) => return Ok(Err(errors::admin_failure(&error, context))),
    };
    match reply {
        AdminReply::Initialized { cluster, nodes, partitions, existed } => {
            let word = if existed { "exists already" } else { "formed" };
            match output.style.admin() {
                Format::Json | Format::Jsonl => {
                    let cluster = cluster.to_string();
                    let fields = json!({ "v": 1, "cluster": cluster, "nodes": nodes, "partitions": partitions, "existed": existed });
                    writeln!(output.data, "{fields}")?;
                }
                Format::Table | Format::Raw => {
                    let nodes = if nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") };
                    let s = if partitions == 1 { "" } else { "s" };
                    writeln!(output.data, "{word}: cluster {cluster}, {nodes}, {partitions} partition{s}")?;
                }
            }
            Ok(Ok(Exit::Done))
        }
        _ => Ok(Err(context.failure("incompatible", "init: the node answered something else".to_owned()))),
    }
}

/// What is asked of the node, checked as far as that is possible here.
fn request_of(args: &InitArgs, coding: Coding) -> Result<InitRequest, Failure> {
    let refused = |what: String, cause: &str| Failure::usage(format!("init: {what}"), cause, "coppice init --help");
    let mut split_keys: Vec<Bytes> = Vec::new();
    for key in &args.split_keys {
        let key = coding.decode(Inputs::plain(key)).map_err(|expected| {
            refused(format!("a split key must be {expected}"), "the flag says how keys are written")
        })?;
        if key.is_empty() || split_keys.last().is_some_and(|last| *last >= key) {
            return Err(refused(
                "split keys must ascend".to_owned(),
                "each partition begins where the one before it ends",
            ));
        }
        split_keys.push(Bytes::from(key));
    }
    let cut = u32::try_from(split_keys.len() + 1).unwrap_or(u32::MAX);
    let partitions = args.partitions.unwrap_or(cut);
    if !split_keys.is_empty() && partitions != cut {
        let what = format!("{} split keys make {cut} partitions, not {partitions}", split_keys.len());
        return Err(refused(what, "there is one split key fewer than partitions"));
    }
    let mut settings = ClusterSettings::default();
    let mut given = Vec::new();
    for setting in &args.settings {
        let (key, value) = setting
            .split_once('=')
            .ok_or_else(|| refused(format!("`{setting}` is no KEY=VALUE"), "--set takes both in one word"))?;
        settings.set(key, value).map_err(|error| setting_failure(&error))?;
        given.push((key.to_owned(), value.to_owned()));
    }
    settings.check().map_err(|error| setting_failure(&error))?;
    Ok(InitRequest { partitions, split_keys, settings: given, if_needed: args.if_needed, nonce: 0 })
}

fn setting_failure(error: &ClusterSettingError) -> Failure {
    let cause = match error {
        ClusterSettingError::Unknown { .. } => "no cluster setting has this name; those of a node stand in its file",
        ClusterSettingError::Invalid { .. } => "the value is written wrongly or out of bounds",
    };
    Failure::usage(format!("init: {error}"), cause, "coppice init --help")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::verbs::Verb;

    fn request(line: &str) -> Result<InitRequest, String> {
        let cli = Cli::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?;
        match &cli.verb {
            Verb::Init(args) => request_of(args, cli.global.coding()).map_err(|failure| failure.what),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn partitions_follow_from_split_keys_or_the_other_way_round() {
        let keys = |line: &str| request(line).map(|request| (request.partitions, request.split_keys.len()));
        assert_eq!(keys("coppice init"), Ok((1, 0)));
        assert_eq!(keys("coppice init --partitions 4"), Ok((4, 0)));
        assert_eq!(keys("coppice init --split-keys g,n,t"), Ok((4, 3)));
        assert_eq!(keys("coppice init --split-keys 10,20 --int"), Ok((3, 2)));
        assert_eq!(
            keys("coppice init --partitions 2 --split-keys g,n"),
            Err("init: 2 split keys make 3 partitions, not 2".into())
        );
        assert_eq!(keys("coppice init --split-keys n,g"), Err("init: split keys must ascend".into()));
        assert!(keys("coppice init --split-keys x --int").is_err());
    }

    #[test]
    fn cluster_settings_are_checked_before_they_are_sent() {
        let settings = |line: &str| request(line).map(|request| request.settings);
        assert_eq!(settings("coppice init --set replicas=1"), Ok(vec![("replicas".into(), "1".into())]));
        assert_eq!(settings("coppice init --set replicas"), Err("init: `replicas` is no KEY=VALUE".into()));
        assert!(settings("coppice init --set replcas=1").is_err_and(|what| what.contains("did you mean `replicas`")));
        assert!(
            settings("coppice init --set election_timeout=60ms").is_err_and(|what| what.contains("heartbeat_interval"))
        );
    }
}
