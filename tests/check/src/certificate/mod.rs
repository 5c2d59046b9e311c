//! A certificate (hazards.md 3.2). The logs fix what every operation saw; if one order agrees with all logs
//! and with real time, and replaying it gives every answer, the history is linearizable. The server is not trusted: a
//! wrong log can only make it fail.

mod changes;
mod explain;
mod judge;
mod order;
mod replay;

pub use judge::{LogFindings, Partition, judge};
pub use replay::execute;

use super::history::History;
use super::verdict::Verdict;

/// What it found.
#[derive(Debug)]
pub struct Certificate {
    pub verdict: Verdict,
    /// If it passed: all operations that happened, in one legal order.
    pub order: Vec<u32>,
    /// What the logs say of each operation; `None` if they contradict themselves.
    pub judged: Option<LogFindings>,
}

/// Checks a history with its dumps.
pub fn check(history: &History) -> Certificate {
    let fail = |verdict| Certificate { verdict, order: Vec::new(), judged: None };
    if history.log.is_empty() {
        return fail(Verdict::Unknown("the certificate needs the replicas' logs, and none was given".into()));
    }
    if let Some(complaint) = history.impossible.first() {
        return fail(complained(complaint));
    }
    let judged = match judge(history) {
        Ok(judged) => judged,
        Err(violation) => return fail(Verdict::Fail(violation)),
    };
    let (verdict, order) = match order::sort(history, &judged) {
        Err(violation) => (Verdict::Fail(violation), Vec::new()),
        Ok(sorted) => match replay::replay(history, &judged, &sorted) {
            Some(violation) => (Verdict::Fail(violation), Vec::new()),
            None => {
                let operations = history.operations.len() as u32;
                (Verdict::Pass, sorted.into_iter().filter(|node| *node < operations).collect())
            }
        },
    };
    Certificate { verdict, order, judged: Some(judged) }
}

/// A complaint as a failure.
pub(super) fn complained(complaint: &super::history::Complaint) -> Verdict {
    Verdict::Fail(Box::new(super::verdict::Violation {
        what: complaint.what.clone(),
        about: vec![complaint.operation],
        ..Default::default()
    }))
}
