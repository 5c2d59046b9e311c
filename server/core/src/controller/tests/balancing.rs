//! What the leader of the directory begins by itself, and the operator's `rebalance`.

use super::super::automatic::AUTOMATIC;
use super::*;
use crate::reshape::Pace;
use crate::status::GroupReport;

/// A leader of the directory that balances three nodes: this one leads both partitions.
struct Balancing(Node, [u64; 2]);

impl Balancing {
    fn new(settings: &[(&str, &str)]) -> Balancing {
        let mut node = Node::new();
        let directory = Some(entry(PartitionId::DIRECTORY, 1, (b"", None), &[1]));
        let nodes = &[1, 2, 3];
        let partitions = vec![entry(PARENT, 1, (b"", Some(b"m")), nodes), entry(CHILD, 1, (b"m", None), nodes)];
        let mut map = PartitionMap { version: MapVersion(1), directory, partitions, ..PartitionMap::default() };
        let info = |id| NodeInfo {
            id: NodeId(id),
            name: String::new(),
            addresses: Addresses::default(),
            state: NodeState::Member,
        };
        map.nodes = [1, 2, 3].map(info).into();
        let settings = settings.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        let state = Arc::new(DirectoryState { map, settings, ..DirectoryState::default() });
        node.tell(Input::Report(Report::Led(PartitionId::DIRECTORY, Some(OWN))));
        node.tell(Input::Report(Report::Directory(state)));
        Balancing(node, [0; 2])
    }

    fn view(&self) -> View {
        let replica = |operations| {
            let group = GroupReport {
                voters: [1, 2, 3].map(WireReplica).into(),
                durable: [1, 2, 3].map(|id| (WireReplica(id), 0)).into(),
                ..GroupReport::default()
            };
            LocalReplica { leads: true, operations, group, ..LocalReplica::default() }
        };
        let replicas = [(PARENT, replica(self.1[0])), (CHILD, replica(self.1[1]))].into();
        let own = LocalStatus { replicas, ..LocalStatus::default() };
        View::new([(OWN, own), (NodeId(2), LocalStatus::default()), (NodeId(3), LocalStatus::default())].into())
    }

    /// For so many seconds, each with so many operations of the two partitions.
    fn watch(&mut self, seconds: u64, rates: [u64; 2]) -> Vec<String> {
        let mut said = Vec::new();
        for _ in 0..seconds {
            let view = self.view();
            said.extend(self.0.tell(Input::View(Box::new(view))));
            self.0.1 = self.0.1 + Duration::from_secs(1);
            self.1 = [self.1[0] + rates[0], self.1[1] + rates[1]];
        }
        said.retain(|said| said != "survey" && !said.contains("is led from"));
        said
    }

    fn ask(&mut self, change: u64, dry_run: bool) -> String {
        let request =
            ReshapeRequest { change: ChangeId(change), shape: Shape::Rebalance, dry_run, force: false, within: None };
        let view = Box::new(self.view());
        self.0.tell(Input::Verb { verb: 1, request: Box::new(request), view }).join(", ")
    }
}

#[test]
fn leaders_are_spread_by_themselves_once_their_loads_are_known() {
    let mut off = Balancing::new(&[]);
    assert_eq!(off.watch(1, [2_000, 1_000]), ["p1 goes from n1 to n2"], "by their number");
    let mut auto = Balancing::new(&[("rebalance", "auto")]);
    assert!(auto.watch(10, [2_000, 1_000]).is_empty());
    let begun = auto.watch(5, [2_000, 1_000]);
    let why = "by itself p1: the leader moves from n1 to n2: n1 leads 2 with 3000 op/s, n2 0 with 0; p1 has 2000";
    assert_eq!(begun, [why, "p1 goes from n1 to n2"]);
    assert_eq!(auto.0.0.changes_under_way(), [&why["by itself ".len()..]], "status shows it");
    assert!(auto.watch(3, [2_000, 1_000]).is_empty(), "one at a time");
    let later = auto.watch(60, [2_000, 1_000]);
    assert!(!later.iter().any(|said| said.starts_with("p1 goes")), "it settles: {later:?}");
    // Who leads the directory next knows nothing yet.
    auto.0.tell(led_directory(NodeId(2)));
    assert!(auto.0.0.changes_under_way().is_empty());
    auto.0.tell(led_directory(OWN));
    assert!(auto.watch(10, [2_000, 1_000]).is_empty());
    assert_ne!(auto.watch(30, [2_000, 1_000]), [""; 0]);
}

#[test]
fn an_operators_rebalance_is_planned_begun_and_watched_to_its_end() {
    let mut node = Balancing::new(&[]);
    assert!(node.ask(1, true).contains("the load of p1 p2 is not known yet: ask again after 10 s"));
    node.watch(12, [2_000, 1_000]);
    let plan = node.ask(1, true);
    assert!(plan.contains("done: false, begun: false") && plan.contains("p1: the leader moves from n1"), "{plan}");
    assert!(node.watch(1, [2_000, 1_000]).is_empty(), "it was only looked at");
    assert!(node.ask(1, false).contains("done: false, begun: false"));
    assert!(node.watch(30, [2_000, 1_000]).iter().any(|said| said.starts_with("p1 goes from n1")));
    assert!(node.ask(1, false).contains("begun: true"));
    // All are as good as idle, and led from different nodes.
    let mut even = Balancing::new(&[]);
    even.watch(12, [0, 0]);
    even.0.0.set_pace(Pace { operations_least: 0.0, ..Default::default() });
    let done = even.ask(2, false);
    assert!(done.contains("done: true") && done.contains("spread over the nodes"), "{done}");
}

#[test]
fn a_partition_that_is_too_hot_is_split_at_the_median_of_its_load() {
    let mut node = Balancing::new(&[("auto_split", "load"), ("rebalance", "auto")]);
    let asked = node.watch(12, [9_000, 100]);
    assert_eq!(asked, ["median of p1 from n1"]);
    assert!(node.watch(5, [9_000, 100]).is_empty(), "the key is awaited");
    let begun = node.0.tell(Input::Median(AUTOMATIC, Some(Bytes::from_static(b"g"))));
    assert_eq!(begun[0], "by itself p1 is split: it has 9000 op/s, of 3033 for each node");
    assert!(begun[1].starts_with("decide Reshape(Split") && begun[1].contains("at: b\"g\""), "{begun:?}");
    let mut node = Balancing::new(&[("auto_split", "load")]);
    assert_eq!(node.watch(12, [9_000, 100]).pop().as_deref(), Some("median of p1 from n1"));
    assert!(node.0.tell(Input::Median(AUTOMATIC, None)).is_empty());
    assert!(!node.watch(30, [9_000, 100]).iter().any(|said| said.contains("median")), "one key has it all");
}
