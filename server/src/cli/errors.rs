//! The client library's errors in four lines: what, where, the likely cause, the next command.

use std::time::Duration;

use clap::CommandFactory;
use coppice_client::admin;
use coppice_client::error::{Cause, Error, NodeError, Place, REFUSED, Reason, Unknown};
use coppice_client::wire::{AdminError, Refusal};
use coppice_core::settings::units::show_time;

use super::args::Cli;
use super::failure::{Exit, Failure};
use super::page_token::PageToken;
use super::words;
use crate::text::Coding;

/// What a message needs to know of the command that failed.
#[derive(Debug, Clone)]
pub struct Context {
    pub verb: &'static str,
    /// The words after `coppice`, as they were given.
    pub line: Vec<String>,
    /// How long it tried.
    pub timeout: Duration,
    /// The nodes that it began with.
    pub endpoints: Vec<String>,
    /// Nobody named other endpoints: a newcomer may have nothing running at all.
    pub default_endpoints: bool,
    /// How keys are shown.
    pub coding: Coding,
    /// The direction of a scan.
    pub reverse: bool,
    /// Nobody else reads stdin.
    pub may_read_stdin: bool,
}

impl Context {
    /// Of a demo that talks to its own nodes.
    #[must_use]
    pub fn of_demo(endpoints: &str, timeout: Duration) -> Self {
        Self {
            verb: "demo",
            line: vec!["demo".to_owned()],
            timeout,
            endpoints: endpoints.split(',').map(str::to_owned).collect(),
            default_endpoints: true,
            coding: Coding::Plain,
            reverse: false,
            may_read_stdin: false,
        }
    }

    /// A failure that is not the client library's.
    #[must_use]
    pub fn failure(&self, code: &'static str, what: String) -> Failure {
        Failure {
            exit: Exit::Failed,
            code,
            what,
            place: self.endpoints.join(", "),
            cause: "the nodes' logs say more".to_owned(),
            next: self.look(),
        }
    }

    /// The same command with more words, without an earlier token.
    fn again(&self, more: &[&str]) -> String {
        let mut line = vec!["coppice"];
        let mut given = self.line.iter().map(String::as_str);
        while let Some(word) = given.next() {
            match word {
                "--resume" | "--after" => {
                    given.next();
                }
                _ if word.starts_with("--resume=") || word.starts_with("--after=") => {}
                _ => line.push(word),
            }
        }
        line.extend(more);
        words::join(line)
    }

    /// How to look at the cluster.
    fn look(&self) -> String {
        self.by(&["coppice", "status"])
    }

    /// How to see what a verb that changes the cluster's shape speaks of.
    fn list(&self) -> Option<String> {
        match self.verb.split(' ').next() {
            Some("node") => Some(self.by(&["coppice", "node", "ls"])),
            Some("user") => Some(self.by(&["coppice", "user", "ls"])),
            Some("partition" | "leader") => Some(self.by(&["coppice", "partition", "ls"])),
            _ => None,
        }
    }

    /// A command for the nodes that this one asked.
    fn by(&self, words: &[&str]) -> String {
        let endpoints = self.endpoints.join(",");
        let flags = if self.default_endpoints { &[][..] } else { &["--endpoints", &endpoints] };
        words::join(words.iter().chain(flags))
    }

    fn within(&self) -> String {
        format!("within {}", show_time(self.timeout))
    }
}

/// A question about the cluster, or an operator's verb, that got no answer.
#[must_use]
pub fn admin_failure(error: &admin::Error, context: &Context) -> Failure {
    match error {
        admin::Error::Unreachable(errors) => {
            let place = Place { nodes: errors.clone(), ..Place::default() };
            let failure = sure(&Reason::Unreachable, &place, context);
            if errors.iter().any(|node| node.error == "timed out") {
                return failure;
            }
            // Nobody was waited for.
            Failure { what: format!("{}: no node answered", context.verb), ..failure }
        }
        admin::Error::Unanswered(errors) => {
            let place = Place { nodes: errors.clone(), ..Place::default() };
            let what = format!("sent, and no answer {}", context.within());
            Failure { place: nodes_of(&place, context), ..unknown(&what, context) }
        }
        admin::Error::NoMajority(errors) => {
            let place = Place { nodes: errors.clone(), ..Place::default() };
            Failure {
                exit: Exit::Unavailable,
                code: "no_majority",
                what: format!(
                    "{}: no node that answers hears a majority of the directory; nothing was done",
                    context.verb
                ),
                place: nodes_of(&place, context),
                cause: "they are cut off from the others, or too many nodes are down".to_owned(),
                next: context.look(),
            }
        }
        admin::Error::Refused(refusal) => refused(refusal, context),
        admin::Error::Failed(error) => not_done(error, context),
        admin::Error::Incompatible(why) => sure(&Reason::Incompatible(why.clone()), &Place::default(), context),
    }
}

/// A verb that was begun, and perhaps carried out.
#[must_use]
pub fn unknown(what: &str, context: &Context) -> Failure {
    Failure {
        exit: Exit::Unknown,
        code: "unknown",
        what: format!("{}: outcome unknown: {what}; it may be carried out yet", context.verb),
        place: context.endpoints.join(", "),
        cause: "too few of the nodes that must agree answer, or they are slow".to_owned(),
        next: context.look(),
    }
}

/// A verb that the cluster did not carry out.
fn not_done(error: &AdminError, context: &Context) -> Failure {
    let (exit, code, cause) = match error {
        AdminError::Exists(_) if context.verb == "init" => {
            (Exit::Condition, "exists", "it was done before; --if-needed accepts that")
        }
        AdminError::Exists(_) => (Exit::Condition, "exists", "it exists already, and differs from what was asked for"),
        AdminError::NotFound(_) => (Exit::NotFound, "not_found", "nothing has this name"),
        AdminError::Invalid(_) => (Exit::Usage, "invalid", "an argument is invalid"),
        AdminError::Refused(_) => (Exit::Condition, "refused", "the cluster is not in the state that this verb needs"),
        AdminError::NoMajority { .. } => {
            (Exit::Unavailable, "no_majority", "it is cut off from the others, or too many nodes are down")
        }
        AdminError::Unavailable(_) => (Exit::Unavailable, "unavailable", "a node that is needed does not answer"),
        AdminError::TimedOut(_) => (Exit::Unavailable, "timed_out", "a node that is needed does not answer"),
        AdminError::Mismatch(_) => {
            (Exit::Failed, "mismatch", "replicas differ: keep the data directories and report this")
        }
    };
    let next = if code == "invalid" { help(context.verb) } else { context.list().unwrap_or_else(|| context.look()) };
    Failure {
        exit,
        code,
        what: format!("{}: {}", context.verb, one_line(&error.to_string())),
        place: context.endpoints.join(", "),
        cause: cause.to_owned(),
        next,
    }
}

/// A node that answered, and did nothing.
fn refused(refusal: &Refusal, context: &Context) -> Failure {
    let reason = match refusal {
        Refusal::NotInitialized => Reason::NotInitialized,
        Refusal::Denied { text } | Refusal::Unauthenticated { text } => Reason::Denied(one_line(text)),
        Refusal::Busy { text, .. } => Reason::Busy(one_line(text)),
        Refusal::Full { text } => Reason::Full(one_line(text)),
        Refusal::TooLarge { text } => Reason::TooLarge(one_line(text)),
        Refusal::NotLeader { .. } | Refusal::Deposed { .. } | Refusal::WrongPartition { .. } => Reason::NoLeader,
        Refusal::ShuttingDown | Refusal::SessionExpired | Refusal::SnapshotExpired | Refusal::Aborted { .. } => {
            Reason::TimedOut
        }
        Refusal::BadRequest { text } | Refusal::Unavailable { text } => Reason::Incompatible(one_line(text)),
    };
    sure(&reason, &Place::default(), context)
}

/// A failure of the client library in our words.
#[must_use]
pub fn failure(error: &Error, context: &Context) -> Failure {
    match error {
        Error::Failed(failed) => sure(&failed.reason, &failed.place, context),
        Error::Unknown(unknown) => unsure(unknown, context),
    }
}

fn sure(reason: &Reason, place: &Place, context: &Context) -> Failure {
    let verb = context.verb;
    let partition = partition_of(place, context.coding);
    let (exit, code, what, cause, next) = match reason {
        Reason::NoLeader => (
            Exit::Unavailable,
            "no_leader",
            format!("no leader for {partition} {}", context.within()),
            silent_replicas(place, &partition),
            context.look(),
        ),
        Reason::Unreachable => unreachable(place, &partition, context),
        Reason::Busy(limit) => (
            Exit::Unavailable,
            "busy",
            format!("{partition} was busy for {}: {limit}", show_time(context.timeout)),
            "more is asked for than this limit admits: ask for less at a time, or raise it if it is a setting"
                .to_owned(),
            context.look(),
        ),
        Reason::Full(limit) => (
            Exit::Unavailable,
            "full",
            format!("{partition} takes no writes that grow it: {limit}"),
            "it clears by itself once there is room: delete keys, which is taken, raise the limit, or add nodes"
                .to_owned(),
            context.look(),
        ),
        Reason::TimedOut => (
            Exit::Unavailable,
            "timed_out",
            format!("no answer {}; certainly not executed", context.within()),
            silent_replicas(place, &partition),
            context.look(),
        ),
        Reason::QueueFull => (
            Exit::Unavailable,
            "queue_full",
            "too many calls wait in this client".to_owned(),
            "this client asks faster than the cluster answers".to_owned(),
            context.look(),
        ),
        Reason::TooLarge(limit) => (
            Exit::Usage,
            "too_large",
            limit.clone(),
            "no setting changes this limit: cut what is written into several keys or commands".to_owned(),
            help(verb),
        ),
        Reason::Invalid => {
            (Exit::Usage, "invalid", "not a valid command".to_owned(), "it holds no operation".to_owned(), help(verb))
        }
        Reason::SpansPartitions => spans(context),
        Reason::Denied(why) => (
            Exit::Failed,
            "denied",
            format!("denied: {why}"),
            "the user that this client acts for may not do that, or it showed none: --token-file FILE".to_owned(),
            if why.contains("no token") { context.again(&["--token-file", "FILE"]) } else { help(verb) },
        ),
        Reason::NotInitialized => (
            Exit::Unavailable,
            "not_initialized",
            "the nodes wait to be formed into a cluster".to_owned(),
            "init was not run yet".to_owned(),
            "coppice init".to_owned(),
        ),
        // The text names the setting, for those who read nothing else.
        Reason::Incompatible(why) if why.contains("feature_level") => (
            Exit::Failed,
            "feature_level",
            one_line(why),
            "an operation is taken once every node of the cluster knows it".to_owned(),
            "coppice config set feature_level 2".to_owned(),
        ),
        Reason::Incompatible(why) => (
            Exit::Failed,
            "incompatible",
            one_line(why),
            "the node belongs to another cluster, runs another version, or is no node of Coppice".to_owned(),
            "coppice --version".to_owned(),
        ),
        Reason::Interrupted { last } => interrupted(last.as_deref(), context),
        Reason::OtherCommand => (
            Exit::Usage,
            "other_command",
            "the token belongs to another command".to_owned(),
            "--resume repeats exactly the command that printed the token, with the same key and value".to_owned(),
            help(verb),
        ),
        Reason::Closed => (
            Exit::Failed,
            "closed",
            "the client was closed".to_owned(),
            "the program is ending".to_owned(),
            context.again(&[]),
        ),
    };
    let mut place = place.clone();
    if let Reason::Denied(why) = reason {
        // What is denied is said once.
        place.nodes.iter_mut().filter(|node| node.error == *why).for_each(|node| node.error.clear());
    }
    // What can never succeed is not sent.
    let place = match (exit, place.nodes.is_empty()) {
        (Exit::Usage, true) => "the command line".to_owned(),
        _ => nodes_of(&place, context),
    };
    Failure { exit, code, what: format!("{verb}: {what}"), place, cause, next }
}

type Parts = (Exit, &'static str, String, String, String);

fn unreachable(place: &Place, partition: &str, context: &Context) -> Parts {
    let nobody = place.partition.is_none();
    let refused = !place.nodes.is_empty() && place.nodes.iter().all(|node| node.error == REFUSED);
    let what = if nobody && refused {
        // Nobody was waited for.
        "no node answered".to_owned()
    } else if nobody {
        format!("no node answered {}", context.within())
    } else {
        format!("no node that serves {partition} answered {}", context.within())
    };
    let objects = |node: &NodeError| ["TLS", "certificate"].iter().any(|word| node.error.contains(word));
    if nobody && place.nodes.iter().any(objects) {
        let cause =
            "a node is there, and one side does not accept the other: --tls-ca FILE, --tls-cert FILE, --tls-key FILE"
                .to_owned();
        return (Exit::Unavailable, "unreachable", what, cause, help(context.verb));
    }
    if let Some(full) = place.nodes.iter().find(|node| node.error.contains("limits.")) {
        let cause = format!("{}: close connections, or raise it in the node's settings", full.error);
        return (Exit::Unavailable, "busy", what, cause, context.look());
    }
    if nobody && place.nodes.iter().any(|node| node.error == "not tried") {
        let cause = "there was no time to try all of them".to_owned();
        return (Exit::Unavailable, "unreachable", what, cause, context.look());
    }
    let (cause, next) = match (nobody, context.default_endpoints) {
        (true, true) => ("no node runs on this machine".to_owned(), "coppice demo".to_owned()),
        (true, false) => {
            ("no node runs or answers there, or --endpoints names other machines".to_owned(), context.look())
        }
        (false, _) => (silent_replicas(place, partition), context.look()),
    };
    (Exit::Unavailable, "unreachable", what, cause, next)
}

/// Only a write can span what it must not: a scan over several partitions is one moment.
fn spans(context: &Context) -> Parts {
    let cause = "a command executes in one partition, wholly or not at all; a boundary lies between its keys";
    let what = "the keys belong to more than one partition".to_owned();
    (Exit::Usage, "spans_partitions", what, cause.to_owned(), context.look())
}

fn interrupted(last: Option<&[u8]>, context: &Context) -> Parts {
    let next = match last {
        Some(last) if context.verb == "scan" => {
            let token = PageToken { reverse: context.reverse, last: last.to_vec() };
            context.again(&["--after", &token.encode()])
        }
        _ => context.again(&[]),
    };
    (
        Exit::Unavailable,
        "interrupted",
        "interrupted after some pairs: what was printed is of one moment, the rest would be of another".to_owned(),
        "the node that served it stopped, or its partition moved".to_owned(),
        next,
    )
}

fn unsure(unknown: &Unknown, context: &Context) -> Failure {
    let partition = partition_of(&unknown.place, context.coding);
    let (what, cause) = match unknown.cause {
        Cause::NoAnswer => (
            format!("sent to {partition}, no answer {}", context.within()),
            silent_replicas(&unknown.place, &partition),
        ),
        Cause::SessionExpired => (
            "repeated after its session had expired".to_owned(),
            "it was away for too long, or its partition was merged".to_owned(),
        ),
        Cause::Forgotten => (
            "repeated after its answer was dropped".to_owned(),
            "the client had acknowledged it, or started anew since".to_owned(),
        ),
        Cause::SpansPartitions => (
            "its keys came to lie in several partitions".to_owned(),
            "a partition was split while it was under way".to_owned(),
        ),
        Cause::Refused => {
            ("sent, and refused when it was repeated".to_owned(), "the cluster changed in between".to_owned())
        }
        Cause::Closed => {
            ("sent, and the client was closed before the answer".to_owned(), "the program is ending".to_owned())
        }
    };
    let next = match &unknown.resume {
        Some(token) => context.again(&["--resume", &token.to_string()]),
        None => key_of(context).map_or_else(|| context.look(), |key| words::join(["coppice", "get", &key])),
    };
    Failure {
        exit: Exit::Unknown,
        code: "unknown",
        what: format!("{}: outcome unknown: {what}; it was executed at most once", context.verb),
        place: nodes_of(&unknown.place, context),
        cause,
        next,
    }
}

/// How to see what a write did; none for other verbs.
pub fn read_back(context: &Context) -> Option<String> {
    let writes = ["put", "insert", "delete", "cas"].contains(&context.verb);
    key_of(context).filter(|_| writes).map(|key| words::join(["coppice", "get", &key]))
}

/// The key of a write as it was given.
fn key_of(context: &Context) -> Option<String> {
    let program = Cli::command();
    let names = |word: &str| program.find_subcommand(word).is_some_and(|verb| verb.get_name() == context.verb);
    let mut words = context.line.iter().skip_while(|word| !names(word));
    words.nth(1).filter(|key| !key.starts_with('-')).cloned()
}

fn help(verb: &str) -> String {
    format!("coppice {verb} --help")
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// `p2 (g..n)`, or what can be said without knowing it.
fn partition_of(place: &Place, coding: Coding) -> String {
    match place.partition {
        Some(partition) if partition.0 == 0 => "the directory".to_owned(),
        Some(partition) => {
            let low = if place.low.is_empty() { String::new() } else { coding.show(&place.low) };
            let high = place.high.as_deref().map(|high| coding.show(high)).unwrap_or_default();
            format!("{partition} ({low}..{high})")
        }
        None => "the key's partition".to_owned(),
    }
}

/// `n1 127.0.0.1:7400; n2 refused the connection; n3 timed out`.
fn nodes_of(place: &Place, context: &Context) -> String {
    let nodes: Vec<String> = place
        .nodes
        .iter()
        .map(|node| {
            let who = match node.node {
                Some(id) if node.error.is_empty() => format!("{id} {}", node.address),
                Some(id) => id.to_string(),
                None => node.address.clone(),
            };
            one_line(&format!("{who} {}", node.error))
        })
        .collect();
    if nodes.is_empty() { context.endpoints.join(", ") } else { nodes.join("; ") }
}

fn silent_replicas(place: &Place, partition: &str) -> String {
    // Those that were not tried may well answer.
    let is_silent = |node: &&NodeError| !node.error.is_empty() && node.error != "not tried";
    let (all, silent) = (place.nodes.len(), place.nodes.iter().filter(is_silent).count());
    if silent == 0 && all > 0 && place.nodes.iter().all(|node| !node.error.is_empty()) {
        return format!("there was no time to reach a replica of {partition}");
    }
    if silent == 0 {
        return format!("an election is under way, or too few replicas of {partition} reach each other");
    }
    let name = place.partition.map_or_else(|| "nodes".to_owned(), |partition| format!("replicas of {partition}"));
    let verb = if silent == 1 { "does" } else { "do" };
    format!("{silent} of {all} {name} {verb} not answer")
}
