//! Surveys: whom a node asks that wants to know something of every node, and whose answers count.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use coppice_client::map::{NodeState, PartitionMap};
use coppice_client::wire::{AdminReply, GroupTuning, NodeId, TuningReport};
use coppice_ordering::Time;

use crate::question::Answer;
use crate::status::LocalStatus;
use crate::status::live::LiveReport;

/// The nodes of the cluster. Who was removed is none.
pub fn members(map: &PartitionMap) -> impl Iterator<Item = NodeId> {
    map.nodes.iter().filter(|node| node.state != NodeState::Removed).map(|node| node.id)
}

/// One question to all other nodes.
#[derive(Debug)]
pub struct Survey<T> {
    /// What the nodes said whose answers count.
    pub heard: BTreeMap<NodeId, T>,
    /// The other ones that are asked.
    pub silent: BTreeSet<NodeId>,
}

impl<T> Default for Survey<T> {
    /// Of nobody.
    fn default() -> Survey<T> {
        Survey { heard: BTreeMap::new(), silent: BTreeSet::new() }
    }
}

impl<T> Survey<T> {
    /// By node `own`, of the nodes in this map.
    pub fn new(map: &PartitionMap, own: NodeId) -> Survey<T> {
        Survey { silent: members(map).filter(|&node| node != own).collect(), ..Survey::default() }
    }

    /// The process at the address of `node` gave this answer. `counts`: what it is worth.
    pub fn hear(&mut self, node: NodeId, answer: Answer, counts: impl Fn(NodeId, Answer) -> Option<T>) {
        if let Some(worth) = counts(node, answer)
            && self.silent.remove(&node)
        {
            self.heard.insert(node, worth);
        }
    }
}

/// What a node says of itself. A process that lost its data, or has another node's, answers as somebody else: that node
/// is not up.
pub fn status(node: NodeId, answer: Answer) -> Option<LocalStatus> {
    match answer {
        Answer::Status(status) if status.node.id == node => Some(*status),
        _ => None,
    }
}

/// The same with what the page shows of it; of a node that cannot tell that, its status.
pub fn live(node: NodeId, answer: Answer) -> Option<LiveReport> {
    match answer {
        Answer::Live(live) if live.status.node.id == node => Some(*live),
        answer => status(node, answer).map(LiveReport::of_status),
    }
}

/// How the groups are tuned that a node leads.
pub fn tuning(_: NodeId, answer: Answer) -> Option<TuningReport> {
    if let Answer::Admin(AdminReply::Tuning(report)) = answer { Some(report) } else { None }
}

/// That a node took up what it was told.
pub fn consent(_: NodeId, answer: Answer) -> Option<()> {
    matches!(answer, Answer::Done).then_some(())
}

/// How all groups are tuned: `own`, which this node leads, and those of the other nodes.
pub fn tunings(on: bool, own: impl IntoIterator<Item = GroupTuning>, others: Survey<TuningReport>) -> TuningReport {
    let groups = own.into_iter().chain(others.heard.into_values().flat_map(|report| report.groups));
    let groups: BTreeMap<_, _> = groups.map(|group| (group.partition, group)).collect();
    TuningReport { on, groups: groups.into_values().collect(), silent: others.silent.into_iter().collect() }
}

/// Between two surveys that a node makes by itself: while something is decided there, and while nothing is.
const INTERVAL: Duration = Duration::from_secs(1);
const INTERVAL_CALM: Duration = Duration::from_secs(5);

/// When a node asks the others by itself how they are.
#[derive(Debug, Default)]
pub struct Schedule {
    last: Option<Time>,
    /// Nodes that did not answer lately, and how many surveys in a row.
    silent: BTreeMap<NodeId, u32>,
}

/// One survey that a node does not answer may have found it busy.
const SILENT_MAX: u32 = 2;

/// A node is down, or is up again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeNews {
    pub node: NodeId,
    pub is_up: bool,
}

impl Schedule {
    /// A survey that the node `own` made by itself was answered by those that `answered`. What is new about the others.
    pub fn note(&mut self, map: &PartitionMap, own: NodeId, answered: impl Fn(NodeId) -> bool) -> Vec<NodeNews> {
        self.silent.retain(|node, _| members(map).any(|member| member == *node));
        let mut news = Vec::new();
        for node in members(map).filter(|&node| node != own) {
            if answered(node) {
                let was_down = self.silent.remove(&node).is_some_and(|surveys| surveys >= SILENT_MAX);
                news.extend(was_down.then_some(NodeNews { node, is_up: true }));
            } else {
                let surveys = self.silent.entry(node).or_default();
                *surveys = surveys.saturating_add(1);
                news.extend((*surveys == SILENT_MAX).then_some(NodeNews { node, is_up: false }));
            }
        }
        news
    }

    /// Whether it asks now. `rests`: nothing is decided there. A node without a map has nobody to ask, and one that is
    /// about to stop need not know.
    pub fn is_due(&mut self, now: Time, map: &PartitionMap, rests: bool, is_draining: bool) -> bool {
        // Who was silent once is asked again soon.
        let doubts = self.silent.values().any(|&surveys| surveys < SILENT_MAX);
        let interval = if rests && !doubts { INTERVAL_CALM } else { INTERVAL };
        if self.last.is_some_and(|last| now.since(last) < interval) {
            return false;
        }
        self.last = Some(now);
        map.version.0 > 0 && !is_draining
    }
}

#[cfg(test)]
mod tests {
    use coppice_client::map::{Addresses, NodeInfo};
    use coppice_client::wire::{MapVersion, NodeStatus};

    use super::*;
    use crate::status::live::Samples;

    fn map() -> PartitionMap {
        let node =
            |(id, state)| NodeInfo { id: NodeId(id), name: String::new(), addresses: Addresses::default(), state };
        let states = [NodeState::Member, NodeState::Joining, NodeState::Leaving, NodeState::Removed];
        PartitionMap { nodes: (1..).zip(states).map(node).collect(), ..PartitionMap::default() }
    }

    #[test]
    fn all_nodes_are_asked_but_the_asker_and_those_that_were_removed() {
        assert_eq!(Survey::<()>::new(&map(), NodeId(2)).silent, BTreeSet::from([NodeId(1), NodeId(3)]));
    }

    #[test]
    fn who_answers_as_somebody_else_or_something_else_is_not_heard() {
        let mut survey = Survey::new(&map(), NodeId(1));
        let says = |id| {
            let node = NodeStatus { id: NodeId(id), ..NodeStatus::default() };
            Answer::Status(Box::new(LocalStatus { node, ..LocalStatus::default() }))
        };
        for (node, answer) in [(2, says(0)), (2, says(3)), (2, Answer::Done), (4, says(4))] {
            survey.hear(NodeId(node), answer, status);
            assert!(survey.heard.is_empty(), "{node}");
        }
        survey.hear(NodeId(3), says(3), status);
        assert_eq!(survey.heard.keys().copied().collect::<Vec<_>>(), [NodeId(3)]);
        assert_eq!(survey.silent, BTreeSet::from([NodeId(2)]));
    }

    #[test]
    fn a_node_below_the_level_of_the_page_tells_its_status_alone() {
        let status =
            LocalStatus { node: NodeStatus { id: NodeId(2), ..NodeStatus::default() }, ..LocalStatus::default() };
        let report =
            LiveReport { samples: Samples { newest: 7, ..Samples::default() }, ..LiveReport::of_status(status) };
        let of = |answer| live(NodeId(2), answer).map(|report| report.samples.newest);
        assert_eq!(of(Answer::Live(Box::new(report.clone()))), Some(7));
        assert_eq!(of(Answer::Status(Box::new(report.status.clone()))), Some(0));
        assert_eq!(of(Answer::Done), None);
        assert!(live(NodeId(3), Answer::Live(Box::new(report))).is_none(), "it answers as somebody else");
    }

    #[test]
    fn a_node_that_rests_asks_less_often() {
        let map = PartitionMap { version: MapVersion(1), ..PartitionMap::default() };
        let (mut schedule, at) = (Schedule::default(), |interval: Duration| Time(interval.as_nanos() as u64));
        assert!(schedule.is_due(at(INTERVAL), &map, true, false));
        assert!(!schedule.is_due(at(INTERVAL * 2), &map, true, false));
        assert!(schedule.is_due(at(INTERVAL * 2), &map, false, false));
        assert!(schedule.is_due(at(INTERVAL * 2 + INTERVAL_CALM), &map, true, false));
        assert!(!Schedule::default().is_due(Time::ZERO, &map, false, true), "it is about to stop");
        assert!(!Schedule::default().is_due(Time::ZERO, &PartitionMap::default(), false, false));
    }

    #[test]
    fn a_node_is_down_once_it_was_silent_twice_and_that_is_told_once() {
        let mut schedule = Schedule::default();
        let mut note = |answers: &[u32]| {
            let news = schedule.note(&map(), NodeId(1), |node| answers.contains(&node.0));
            news.into_iter().map(|news| (news.node.0, news.is_up)).collect::<Vec<_>>()
        };
        assert_eq!([note(&[2, 3]), note(&[2]), note(&[2, 3]), note(&[2])], [[], [], [], []], "it was busy");
        assert_eq!(note(&[2]), [(3, false)]);
        assert_eq!(note(&[]), []);
        assert_eq!(note(&[3]), [(2, false), (3, true)]);
        assert_eq!(note(&[2, 3]), [(2, true)]);
    }

    #[test]
    fn a_node_that_was_silent_once_is_asked_again_soon() {
        let map = PartitionMap { version: MapVersion(1), ..map() };
        let (mut schedule, at) = (Schedule::default(), |interval: Duration| Time(interval.as_nanos() as u64));
        assert!(schedule.is_due(at(INTERVAL), &map, true, false));
        schedule.note(&map, NodeId(1), |node| node == NodeId(2));
        assert!(schedule.is_due(at(INTERVAL * 2), &map, true, false));
        schedule.note(&map, NodeId(1), |node| node == NodeId(2));
        assert!(!schedule.is_due(at(INTERVAL * 3), &map, true, false), "it is down");
    }

    #[test]
    fn a_report_of_tuning_names_those_that_did_not_answer() {
        let mut survey = Survey::new(&map(), NodeId(1));
        let report = TuningReport { on: true, groups: Vec::new(), silent: Vec::new() };
        survey.hear(NodeId(3), Answer::Admin(AdminReply::Tuning(report)), tuning);
        assert_eq!(tunings(true, [], survey).silent, [NodeId(2)]);
    }
}
