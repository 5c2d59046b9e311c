//! Every error has four parts, exits as the manual says, and names a command that the program understands.

use std::time::Duration;

use bytes::Bytes;
use clap::Parser;
use clap::error::ErrorKind;
use coppice_client::error::{Cause, Error, Failure as ClientFailure, NodeError, Place, Reason, Unknown};
use coppice_client::wire::{AdminError, NodeId, PartitionId, Refusal, SessionId};
use coppice_client::{ResumeToken, admin};

use super::args::Cli;
use super::errors::{Context, admin_failure, failure};
use super::failure::{Exit, Failure};
use super::{golden, words};
use crate::text::Coding;

const BUSY: &str = "3000000 bytes do not fit the node: 1 MiB of limits.node_bytes = 4 MiB are free";
const NOBODY: &str = "this cluster lets in users only, and no token and no client certificate came with the connection";
const FULL: &str = "the node that leads has reached memory.limit = 64 MiB";
const LARGE: &str = "a value of 2000000 bytes is above the limit of 1048576 (1 MiB)";

fn context(line: &str) -> Context {
    let line: Vec<String> = words::split(line).expect("words").concat();
    let verb = ["put", "get", "scan", "status", "init"].into_iter().find(|verb| line[0] == *verb).expect("a verb");
    Context {
        verb,
        line,
        timeout: Duration::from_secs(5),
        endpoints: vec!["127.0.0.1:7400".to_owned(), "127.0.0.1:7410".to_owned()],
        default_endpoints: true,
        coding: Coding::Plain,
        reverse: false,
        may_read_stdin: true,
    }
}

fn place() -> Place {
    let node = |id: u32, error: &str| NodeError {
        node: Some(NodeId(id)),
        address: format!("127.0.0.1:74{}0", id - 1),
        error: error.to_owned(),
    };
    Place {
        partition: Some(PartitionId(2)),
        low: Bytes::from_static(b"g"),
        high: Some(Bytes::from_static(b"n")),
        nodes: vec![node(1, ""), node(2, "refused the connection"), node(3, "timed out")],
    }
}

fn all_reasons() -> Vec<Reason> {
    // A new variant must be put here, and then has to have its four lines.
    let known = |reason: &Reason| match reason {
        Reason::NoLeader
        | Reason::Unreachable
        | Reason::Busy(_)
        | Reason::Full(_)
        | Reason::TimedOut
        | Reason::QueueFull
        | Reason::TooLarge(_)
        | Reason::Invalid
        | Reason::SpansPartitions
        | Reason::Denied(_)
        | Reason::NotInitialized
        | Reason::Incompatible(_)
        | Reason::Interrupted { .. }
        | Reason::OtherCommand
        | Reason::Closed => (),
    };
    let reasons = vec![
        Reason::NoLeader,
        Reason::Unreachable,
        Reason::Busy(BUSY.to_owned()),
        Reason::Full(FULL.to_owned()),
        Reason::TimedOut,
        Reason::QueueFull,
        Reason::TooLarge(LARGE.to_owned()),
        Reason::Invalid,
        Reason::SpansPartitions,
        Reason::Denied("role read".to_owned()),
        Reason::NotInitialized,
        Reason::Incompatible("this node belongs to cluster a,\nthe client wants b".to_owned()),
        Reason::Interrupted { last: Some(Bytes::from_static(b"m")) },
        Reason::Interrupted { last: None },
        Reason::OtherCommand,
        Reason::Closed,
    ];
    reasons.iter().for_each(known);
    reasons
}

fn all_causes() -> Vec<Cause> {
    let known = |cause: &Cause| match cause {
        Cause::NoAnswer
        | Cause::SessionExpired
        | Cause::Forgotten
        | Cause::SpansPartitions
        | Cause::Refused
        | Cause::Closed => (),
    };
    let causes = vec![
        Cause::NoAnswer,
        Cause::SessionExpired,
        Cause::Forgotten,
        Cause::SpansPartitions,
        Cause::Refused,
        Cause::Closed,
    ];
    causes.iter().for_each(known);
    causes
}

#[track_caller]
fn assert_whole(failure: &Failure) {
    let text = failure.to_string();
    assert_eq!(text.lines().count(), 4, "{text}");
    for (line, opening) in text.lines().zip(["error: ", "where: ", "cause: ", "try:   "]) {
        assert!(line.starts_with(opening) && line.len() > opening.len(), "{text}");
    }
    let next = words::split(&failure.next).expect("words");
    assert_eq!(next.len(), 1, "one command: {}", failure.next);
    if let Err(error) = Cli::try_parse_from(&next[0]) {
        let help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
        assert!(help, "{} is not understood: {error}", failure.next);
    }
}

fn sure(reason: Reason, place: Place) -> Error {
    Error::Failed(Box::new(ClientFailure { reason, place }))
}

#[test]
fn every_sure_failure_has_four_parts_and_a_command_that_parses() {
    let lines = ["put apple 'dark red'", "get apple", "scan a..z --after x", "status --endpoints 127.0.0.1:1", "init"];
    for line in lines {
        for reason in all_reasons() {
            for place in [place(), Place::default()] {
                for default_endpoints in [true, false] {
                    let context = Context { default_endpoints, ..context(line) };
                    let failure = failure(&sure(reason.clone(), place.clone()), &context);
                    assert_whole(&failure);
                    assert_ne!(failure.exit, Exit::Unknown, "a sure failure is never unknown");
                    assert_ne!(failure.exit, Exit::Done);
                }
            }
        }
    }
}

#[test]
fn every_unknown_outcome_exits_6_and_is_resumed_if_it_can_be() {
    let token = ResumeToken {
        session: SessionId { partition: PartitionId(2), instance: 7, index: 0 },
        number: 57,
        checksum: 0xfeed,
    };
    for cause in all_causes() {
        for resume in [Some(token), None] {
            let error = Error::Unknown(Box::new(Unknown { cause, resume, place: place() }));
            let failure = failure(&error, &context("put apple 'dark red' --resume p1.1.1.1.00000001"));
            assert_whole(&failure);
            assert_eq!(failure.exit, Exit::Unknown);
            let expected = match resume {
                Some(token) => format!("coppice put apple 'dark red' --resume {token}"),
                None => "coppice get apple".to_owned(),
            };
            assert_eq!(failure.next, expected);
        }
    }
}

#[test]
fn every_refusal_of_an_operators_verb_has_four_parts() {
    let text = || "two\nlines".to_owned();
    let errors = [
        (AdminError::Exists(text()), Exit::Condition),
        (AdminError::NotFound(text()), Exit::NotFound),
        (AdminError::Invalid(text()), Exit::Usage),
        (AdminError::Refused(text()), Exit::Condition),
        (AdminError::Unavailable(text()), Exit::Unavailable),
        (AdminError::TimedOut(text()), Exit::Unavailable),
        (AdminError::Mismatch(text()), Exit::Failed),
    ];
    for (error, exit) in errors {
        let failure = admin_failure(&admin::Error::Failed(error), &context("init"));
        assert_whole(&failure);
        assert_eq!(failure.exit, exit);
    }
    let refusals = [
        Refusal::NotInitialized,
        Refusal::Denied { text: text() },
        Refusal::Unauthenticated { text: text() },
        Refusal::Busy { retry_after: Duration::ZERO, text: text() },
        Refusal::Full { text: text() },
        Refusal::TooLarge { text: text() },
        Refusal::NotLeader { partition: PartitionId(0), hint: None },
        Refusal::Deposed { partition: PartitionId(0), hint: None },
        Refusal::ShuttingDown,
        Refusal::SessionExpired,
        Refusal::SnapshotExpired,
        Refusal::BadRequest { text: text() },
        Refusal::Unavailable { text: text() },
        Refusal::Aborted { text: text(), unplaced: None },
    ];
    let errors = vec![NodeError { node: None, address: "127.0.0.1:1".to_owned(), error: "timed out".to_owned() }];
    let unanswered = admin::Error::Unanswered(errors.clone());
    assert_eq!(admin_failure(&unanswered, &context("init")).exit, Exit::Unknown);
    let refused = vec![NodeError { error: "refused the connection".to_owned(), ..errors[0].clone() }];
    for (errors, what) in [(&errors, "init: no node answered within 5s"), (&refused, "init: no node answered")] {
        assert_eq!(admin_failure(&admin::Error::Unreachable(errors.clone()), &context("init")).what, what);
    }
    let others = [admin::Error::Unreachable(errors), unanswered, admin::Error::Incompatible(text())];
    for error in refusals.into_iter().map(admin::Error::Refused).chain(others) {
        for line in ["init", "status"] {
            assert_whole(&admin_failure(&error, &context(line)));
        }
    }
}

/// A client that had a millisecond said that no node runs here.
#[test]
fn nodes_that_were_not_tried_are_not_called_silent() {
    let node = |error: &str| NodeError { node: None, address: "127.0.0.1:1".to_owned(), error: error.to_owned() };
    let place = Place { nodes: vec![node("refused the connection"), node("not tried")], ..Place::default() };
    let failure = failure(&sure(Reason::Unreachable, place), &context("get apple"));
    assert_whole(&failure);
    assert_eq!(failure.cause, "there was no time to try all of them");
}

#[test]
fn errors_read_as_in_the_manual() {
    let mut text = String::new();
    let mut denied = place();
    denied.nodes.iter_mut().for_each(|node| node.error = NOBODY.to_owned());
    let cases = [
        ("put melon ripe", Reason::NoLeader, place()),
        ("get apple", Reason::Unreachable, Place::default()),
        ("scan a..c", Reason::Interrupted { last: Some(Bytes::from_static(b"b")) }, place()),
        ("put melon ripe", Reason::Busy(BUSY.to_owned()), place()),
        ("put melon ripe", Reason::Full(FULL.to_owned()), place()),
        ("put melon ripe", Reason::TooLarge(LARGE.to_owned()), Place::default()),
        ("put melon ripe", Reason::Denied("user bob does not have role write for key melon".into()), place()),
        ("get apple", Reason::Denied(NOBODY.to_owned()), denied),
        ("status", Reason::NotInitialized, Place::default()),
    ];
    for (line, reason, place) in cases {
        text.push_str(&format!("$ coppice {line}\n{}\n\n", failure(&sure(reason, place), &context(line))));
    }
    golden::check("errors", &text);
}
