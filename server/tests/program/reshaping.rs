//! Verbs that change the cluster's shape: nothing is begun that cannot end, and nothing that nobody agreed to.

use coppice_client::wire::{ChangeId, NodeId, PartitionId, ReshapeRequest, Shape};
use coppice_client::{Admin, Config};

use crate::support::{Cluster, eventually};

/// Which partition is where.
fn places(cluster: &Cluster) -> Vec<String> {
    let said = cluster.run(&["partition", "ls", "-o", "table"]);
    let words = |line: &str| line.split_whitespace().take(5).map(str::to_owned).collect::<Vec<_>>().join(" ");
    said.out.lines().skip(1).map(words).collect()
}

fn of<'a>(places: &'a [String], partition: &str) -> &'a str {
    places.iter().find(|line| line.starts_with(partition)).expect("it is there")
}

/// Has a change begun and carried out.
fn ended(cluster: &Cluster, request: ReshapeRequest) {
    let admin = Admin::new([cluster.endpoint(0)], Config::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    eventually("the change ends", || {
        runtime.block_on(admin.reshape(request.clone())).is_ok_and(|reshaped| reshaped.done)
    });
}

/// The one was moved beside the other, and then they were no neighbours; `--dry-run` said that all was well.
#[test]
#[ignore = "long: processes that wait for each other"]
fn a_merge_that_cannot_be_moves_nothing() {
    let cluster = Cluster::formed(5, "g,n,t");
    for (partition, nodes) in [("p1", "n3,n4,n5"), ("p2", "n1,n2,n3"), ("p3", "n1,n2,n3"), ("p4", "n1,n2,n3")] {
        let said = cluster.run(&["partition", "move", partition, "--to", nodes, "--yes", "--timeout", "60s"]);
        assert_eq!(said.code, 0, "{said:?}");
    }
    assert_eq!(cluster.run(&["put", "h", "1"]).code, 0);
    let before = places(&cluster);
    for how in ["--dry-run", "--yes"] {
        let said = cluster.run(&["partition", "merge", "p3", "--into", "p1", how]);
        assert!(said.code == 5 && said.err.contains("partition merge: p3 and p1 are no neighbours"), "{said:?}");
    }
    // What nobody has begun is not watched, and not begun either.
    for words in
        [&["split", "p1"][..], &["split", "p2", "--at", "j"], &["merge", "p2"], &["move", "p2", "--to", "n1,n2,n4"]]
    {
        let said = cluster.run(&[&["partition"], words, &["--resume", "abc"]].concat());
        assert_ne!(said.code, 0, "{said:?}");
        assert!(said.code == 4 || said.err.contains("fewer than two keys"), "{words:?}: {said:?}");
    }
    let said = cluster.run(&["partition", "merge", "p2", "--dry-run", "-o", "table"]);
    assert!(said.code == 0 && said.err.contains("plan: p2 moves to n3 n4 n5, beside p1"), "{said:?}");
    let line = |partition| of(&before, partition).split(' ').skip(2).map(str::to_owned).collect::<Vec<_>>();
    let now = places(&cluster);
    for partition in ["p1", "p2", "p3", "p4"] {
        let place: Vec<_> = of(&now, partition).split(' ').skip(2).collect();
        assert_eq!(place, line(partition), "{partition}");
    }
    // As if it had been interrupted when its move was done, which has the next name: that was the step under way.
    let to = [3, 4, 5].map(NodeId).to_vec();
    let shape = Shape::Move { partition: PartitionId(2), from: Vec::new(), to };
    ended(&cluster, ReshapeRequest { change: ChangeId(0xabd), shape, dry_run: false, force: false, within: None });
    let said = cluster.run(&["partition", "merge", "p2", "--resume", "abc", "--timeout", "60s"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(cluster.run(&["get", "h"]).out, "1");
    assert!(!places(&cluster).iter().any(|line| line.starts_with("p2")));
}

/// `node remove --force` beside a dead node ended with two nodes of which one was there: nothing could be decided.
#[test]
fn no_force_takes_a_quorum_away() {
    let mut cluster = Cluster::formed(3, "");
    cluster.kill(2);
    eventually("it is missed", || cluster.run(&["status"]).code == 1);
    for verb in ["remove", "drain"] {
        let said = cluster.run(&["node", verb, "n2", "--yes", "--force"]);
        assert!(said.code == 3 && said.err.contains("would lose its quorum"), "{said:?}");
    }
    assert_eq!(cluster.run(&["put", "a", "1"]).code, 0);
    // The dead one may go.
    let said = cluster.run(&["node", "remove", "n3", "--yes", "--force", "--timeout", "60s"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(cluster.run(&["put", "a", "2"]).code, 0);
}
