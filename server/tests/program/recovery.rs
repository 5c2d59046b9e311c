//! A node that reads what its data directory holds: what it says meanwhile, to whom, and that it can be stopped.

use std::net::TcpStream;

use crate::support::{Cluster, Running, eventually};

#[test]
fn a_node_that_recovers_says_so_everywhere_and_ends_when_told() {
    let mut cluster = Cluster::formed(1, "");
    assert_eq!(cluster.run(&["put", "a", "1"]).code, 0);
    cluster.stop(0);
    let mut command = cluster.command(0);
    command.env("COPPICE_FAILPOINTS", "recovery.log=delay(600000)");
    let mut recovering = Running::start(command);
    let sentence = "recovering: reading the log, 0 %";
    eventually("it listens", || TcpStream::connect(("127.0.0.1", cluster.admin_port(0))).is_ok());
    eventually("it is alive and not ready", || {
        let pages = ["/livez", "/readyz", "/status"].map(|path| cluster.page(0, path));
        let [alive, ready, status] = &pages;
        alive.starts_with("HTTP/1.1 200")
            && ready.starts_with("HTTP/1.1 503")
            && ready.contains(sentence)
            && status.contains(sentence)
    });
    let said = cluster.run(&["get", "a", "--timeout", "1s"]);
    assert!(said.code == 3 && said.err.contains(sentence), "{said:?}");
    let said = cluster.run(&["status", "--timeout", "1s"]);
    assert!(said.code == 3 && said.err.contains(sentence), "{said:?}");
    recovering.signal("TERM");
    assert!(recovering.ended().success());
    cluster.start(0, "ready");
    assert_eq!(cluster.run(&["get", "a"]).out, "1");
    assert!(cluster.log(0).contains("recovered: every replica here has executed its log"));
    eventually("it is ready", || cluster.page(0, "/readyz").starts_with("HTTP/1.1 200"));
}

#[test]
fn the_other_nodes_tell_that_one_recovers() {
    let mut cluster = Cluster::formed(3, "");
    cluster.stop(2);
    let mut command = cluster.command(2);
    command.env("COPPICE_FAILPOINTS", "recovery.log=delay(600000)");
    let _recovering = Running::start(command);
    eventually("the others know why it does not answer", || {
        let said = cluster.run_at(0, &["status"]);
        said.code == 1 && said.out.contains("n3 does not answer yet: recovering: reading the log, 0 %")
    });
}
