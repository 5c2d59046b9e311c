//! A node as an installed service: what it tells systemd.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use crate::support::{Cluster, Running, eventually, patience};

/// What systemd hears, message by message.
struct Manager(UnixDatagram);

impl Manager {
    #[track_caller]
    fn hears(&self, wanted: &str) {
        let mut heard = Vec::new();
        let mut message = [0; 4096];
        self.0.set_read_timeout(Some(patience())).expect("it can be set");
        while !heard.iter().any(|one| one == wanted) {
            match self.0.recv(&mut message) {
                Ok(length) => heard.push(String::from_utf8_lossy(&message[..length]).into_owned()),
                Err(error) => panic!("not `{wanted}` ({error}), but {heard:?}"),
            }
        }
    }

    /// Forgets what was said.
    fn ignores(&self) {
        self.0.set_read_timeout(Some(Duration::from_millis(1))).expect("it can be set");
        let mut message = [0; 4096];
        let ended = loop {
            if let Err(error) = self.0.recv(&mut message) {
                break error;
            }
        };
        assert!(matches!(ended.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{ended}");
    }
}

#[test]
fn systemd_hears_when_a_node_waits_serves_recovers_and_stops() {
    let mut cluster = Cluster::stopped(1, &[]);
    let path = cluster.scratch.path("notify");
    let manager = Manager(UnixDatagram::bind(&path).expect("a socket"));
    let command = |cluster: &Cluster, failpoints: &str| {
        let mut command = cluster.command(0);
        command.env("NOTIFY_SOCKET", &path).env("COPPICE_FAILPOINTS", failpoints);
        command
    };
    // `systemctl start` returns although nobody has typed `init`.
    cluster.start_as(0, command(&cluster, ""), "waiting for init");
    manager.hears("READY=1\nSTATUS=waiting for init");
    cluster.form("");
    manager.hears("READY=1\nSTATUS=ready");
    assert!(cluster.stop(0).success());
    manager.hears("STOPPING=1\nSTATUS=leaderships move to other nodes");
    // A start that takes long is not ended for that.
    if cfg!(feature = "failpoints") {
        manager.ignores();
        let mut recovering = Running::start(command(&cluster, "recovery.log=delay(600000)"));
        manager.hears("EXTEND_TIMEOUT_USEC=30000000\nSTATUS=reading the data directory");
        recovering.signal("TERM");
        assert!(recovering.ended().success());
    }
    cluster.start_as(0, command(&cluster, ""), "ready");
    manager.hears("READY=1\nSTATUS=ready");
    eventually("it serves", || cluster.run(&["get", "a"]).code == 4);
}
