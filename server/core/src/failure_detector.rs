//! Which other nodes live, found out once for all groups: a group that rests hears from its leader too seldom to know
//! (protocol.md 1.3).
//!
//! Pure: the worker is told what was heard and when, and tells its groups of lost
//! nodes ([`coppice_ordering::Input::Lost`]).

use std::collections::BTreeMap;
use std::time::Duration;

use coppice_client::wire::NodeId;
use coppice_ordering::{Settings, Time};

/// What was heard of another node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastHeard {
    /// When something came last.
    pub at: Time,
    /// Changes when its process or its connection is another one.
    pub connection: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct FailureDetector {
    nodes: BTreeMap<NodeId, PeerState>,
    due: Time,
}

#[derive(Debug, Default)]
struct PeerState {
    connection: u64,
    lost: bool,
}

/// How often a node looks at the others, and lets them know that it lives.
pub fn interval(settings: &Settings) -> Duration {
    settings.election_timeout / 2
}

impl FailureDetector {
    /// When to look again, if groups may rest.
    pub fn deadline(&self, settings: &Settings) -> Option<Time> {
        (!settings.quiesce_heartbeat_interval.is_zero()).then_some(self.due)
    }

    /// Whether it is time to look, and to let the others know that this node lives.
    pub fn is_due(&mut self, settings: &Settings, now: Time) -> bool {
        let due = self.deadline(settings).is_some_and(|due| due <= now);
        if due {
            self.due = now + interval(settings);
        }
        due
    }

    /// Looks at a node. If it is lost, and that was not said before: when it was last heard.
    pub fn look(&mut self, node: NodeId, heard: LastHeard, settings: &Settings, now: Time) -> Option<Time> {
        let silence_max = settings.election_timeout - settings.heartbeat_interval;
        let known = self.nodes.entry(node).or_default();
        if std::mem::replace(&mut known.connection, heard.connection) != heard.connection {
            known.lost = false;
            return Some(now);
        }
        let lost = now.since(heard.at) > silence_max;
        let was_lost = std::mem::replace(&mut known.lost, lost);
        (lost && !was_lost).then_some(heard.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(2);
    const MS: u64 = 1_000_000;

    fn settings() -> Settings {
        Settings { quiesce_heartbeat_interval: Duration::from_secs(1), ..Settings::default() }
    }

    #[test]
    fn a_silent_node_is_lost_once_until_it_speaks_again() {
        let mut failure_detector = FailureDetector::default();
        let mut look = |at: u64, now: u64| {
            failure_detector
                .look(NODE, LastHeard { at: Time(at * MS), connection: 0 }, &settings(), Time(now * MS))
                .map(|at| at.0 / MS)
        };
        assert_eq!(look(0, 250), None);
        assert_eq!(look(0, 251), Some(0));
        assert_eq!(look(0, 500), None, "it was told");
        assert_eq!(look(490, 500), None);
        assert_eq!(look(490, 900), Some(490));
    }

    #[test]
    fn a_node_that_began_anew_is_lost_however_soon_it_speaks() {
        let mut failure_detector = FailureDetector::default();
        let mut look = |connection: u64, now: u64| {
            failure_detector
                .look(NODE, LastHeard { at: Time(now * MS), connection }, &settings(), Time(now * MS))
                .map(|at| at.0 / MS)
        };
        assert_eq!(look(1, 10), Some(10));
        assert_eq!(look(1, 20), None);
        assert_eq!(look(2, 30), Some(30));
        assert_eq!(look(2, 40), None);
    }

    #[test]
    fn where_no_group_rests_nobody_looks() {
        let mut failure_detector = FailureDetector::default();
        assert!(
            !failure_detector.is_due(&Settings::default(), Time(MS))
                && failure_detector.deadline(&Settings::default()).is_none()
        );
        assert!(failure_detector.is_due(&settings(), Time(MS)));
        assert!(
            !failure_detector.is_due(&settings(), Time(50 * MS))
                && failure_detector.deadline(&settings()) == Some(Time(151 * MS))
        );
    }
}
