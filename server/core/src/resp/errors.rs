//! How calls that ended without an answer are told: a code that programs know, and a sentence with what to do.

use coppice_client::Value;
use coppice_client::error::{Error, Reason};
use coppice_client::map::PartitionMap;

use super::reply::Reply;

/// Keys in errors are cut to so many bytes.
const SHOWN_BYTES_MAX: usize = 64;

/// Pause that a client is asked for when the cluster is busy, in milliseconds: the longest of the client library.
const RETRY_MS: u64 = 500;

/// The answer to a request about these keys whose call ended so.
pub fn reply<'a>(error: &Error, keys: impl Iterator<Item = &'a Value>, map: &PartitionMap) -> Reply {
    let Some(reason) = error.reason() else {
        let text = error.to_string();
        let what = text.strip_prefix("outcome unknown: ").unwrap_or(&text);
        return Reply::Error(format!(
            "OUTCOMEUNKNOWN it may have been carried out, once at most: {what}. Read before you repeat it"
        ));
    };
    let place = error.place();
    Reply::Error(match reason {
        Reason::NoLeader | Reason::Unreachable | Reason::TimedOut | Reason::NotInitialized | Reason::Closed => {
            format!("NOQUORUM {reason}{place}: it was certainly not carried out. `coppice status` says what is down")
        }
        Reason::Busy(_) | Reason::QueueFull => format!("OVERLOADED retry in {RETRY_MS} ms: {reason}"),
        Reason::Full(text) => format!("OOM writes that grow the store are refused, {text}. Deletes are taken"),
        Reason::SpansPartitions => return crosses(keys, map),
        Reason::Denied(text) => format!("NOPERM {text}"),
        Reason::Interrupted { .. } => "OVERLOADED the range was interrupted: ask again".to_owned(),
        Reason::TooLarge(_) | Reason::Invalid | Reason::OtherCommand | Reason::Incompatible(_) => {
            format!("ERR {reason}")
        }
    })
}

/// The refusal of what is about keys of several partitions: which two.
pub fn crosses<'a>(keys: impl Iterator<Item = &'a Value>, map: &PartitionMap) -> Reply {
    let mut placed = keys.filter_map(|key| Some((key, map.route(key)?.partition)));
    let first = placed.next();
    let other = first.and_then(|(_, partition)| placed.find(|(_, other)| *other != partition));
    Reply::Error(match (first, other) {
        (Some((key, partition)), Some((other, another))) => format!(
            "CROSSPARTITION keys {} ({partition}) and {} ({another}) lie in different partitions: send a command for each",
            shown(key),
            shown(other)
        ),
        // A split or a merge came in between.
        _ => "CROSSPARTITION the keys lie in different partitions: send a command for each".to_owned(),
    })
}

fn shown(key: &[u8]) -> String {
    match key.get(..SHOWN_BYTES_MAX) {
        Some(start) => format!("{}...", start.escape_ascii()),
        None => key.escape_ascii().to_string(),
    }
}
