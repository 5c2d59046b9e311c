//! Nodes that know each other by names: what a name leads to may change while they run.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use crate::support::{Cluster, program};

/// Whether this machine lets us give processes an /etc/hosts of their own.
fn may_have_hosts_of_their_own() -> bool {
    let made = with_hosts(Path::new("/dev/null"), &Command::new("true")).output();
    let may = made.is_ok_and(|output| output.status.success());
    if !may {
        println!("skipped: no mount namespace can be made here (unshare --mount)");
    }
    may
}

/// The command, with this file as its /etc/hosts.
fn with_hosts(hosts: &Path, command: &Command) -> Command {
    let mut wrapped = Command::new("unshare");
    for (key, value) in program().get_envs() {
        match value {
            Some(value) => wrapped.env(key, value),
            None => wrapped.env_remove(key),
        };
    }
    let mount = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
    wrapped.args(["--map-root-user", "--mount", "--", "sh", "-c", mount]).arg(hosts);
    wrapped.arg(command.get_program()).args(command.get_args());
    wrapped
}

/// A pod that starts again has another address and the same name. Its old address may belong to something else by then,
/// which takes connections and says nothing.
#[test]
fn a_node_is_found_where_its_name_leads_after_a_restart() {
    if !may_have_hosts_of_their_own() {
        return;
    }
    let mut cluster = Cluster::stopped(3, &[]);
    let hosts = cluster.scratch.path("hosts");
    let lead = |third: u8| {
        let lines = [(1, 11), (2, 12), (3, third)].map(|(node, last)| format!("127.0.0.{last} n{node}.names.test\n"));
        std::fs::write(&hosts, lines.concat()).expect("a file");
    };
    let ports: Vec<u16> = (0..3).map(|index| cluster.peer_port(index)).collect();
    let name = |index: usize| format!("n{}.names.test:{}", index + 1, ports[index]);
    let seeds = (0..3).map(name).collect::<Vec<_>>().join(",");
    let command = |cluster: &Cluster, index: usize, last: u8| {
        let before = cluster.command(index);
        let own = format!("127.0.0.1:{}", ports[index]);
        let mut node = Command::new(before.get_program());
        for word in before.get_args() {
            let word = word.to_str().expect("text");
            match word {
                _ if word == own => node.arg(format!("127.0.0.{last}:{}", ports[index])),
                _ if word.contains(',') && word.contains(&own) => node.arg(&seeds),
                _ => node.arg(word),
            };
        }
        node.args(["--advertise-peer", &name(index)]);
        with_hosts(&hosts, &node)
    };
    lead(13);
    for (index, last) in [11, 12, 13].into_iter().enumerate() {
        let command = command(&cluster, index, last);
        cluster.start_as(index, command, "waiting for init");
    }
    cluster.form("m");
    cluster.kill(2);
    let _silent = TcpListener::bind(("127.0.0.13", ports[2])).expect("its port is free");
    let moved = command(&cluster, 2, 14);
    cluster.start_as(2, moved, "ready");
    lead(14);
    cluster.healthy();
    // Its links to it serve, too.
    cluster.kill(0);
    assert_eq!(cluster.run(&["put", "apple", "red"]).code, 0);
}
