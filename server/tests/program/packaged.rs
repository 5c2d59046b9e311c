//! A node as it is installed: the settings that packages give it, and what it tells systemd.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::{Cluster, Running, Scratch, eventually, patience, program};

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

fn installed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("ops").join(name)
}

fn text(name: &str) -> String {
    std::fs::read_to_string(installed(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn the_settings_of_the_debian_package_are_taken_as_they_are_and_as_they_are_meant() {
    let scratch = Scratch::new("settings");
    let written = text("coppice.toml");
    let settings: Vec<_> = written.lines().filter(|line| line.contains(" = ")).collect();
    assert_eq!(settings.len(), 3, "{settings:?}");
    let meant: String = settings.iter().map(|line| line.trim_start_matches("# ").to_owned() + "\n").collect();
    let path = scratch.path("meant.toml");
    std::fs::write(&path, meant).expect("a file");
    for (path, count) in [(installed("coppice.toml"), 0), (path, 6)] {
        let output = program().args(["config", "check"]).arg(&path).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.ends_with(&format!(": {count} settings\n")), "{output:?}");
    }
}

/// A variable that is misspelt is a warning, or a default that nobody wants.
#[test]
fn every_variable_of_the_images_is_a_setting_or_a_flag() {
    let names =
        ["Dockerfile", "compose.yaml", "helm/coppice/templates/statefulset.yaml", "helm/coppice/templates/init.yaml"];
    let mut found = std::collections::BTreeSet::new();
    for name in names {
        let text = text(name);
        let words = text.split(|c: char| !c.is_ascii_uppercase() && c != '_');
        found.extend(words.filter(|word| word.starts_with("COPPICE_")).map(str::to_owned));
    }
    assert!(found.len() > 10, "{found:?}");
    let output = program().args(["config", "default"]).output().expect("it runs");
    let settings = String::from_utf8_lossy(&output.stdout).into_owned();
    for variable in found {
        let setting = |line: &str| {
            let key = line.trim_start_matches("# ").split(" = ").next().unwrap_or_default();
            format!("COPPICE_{}", key.replace('.', "_").to_uppercase()) == variable
        };
        let flag = ["COPPICE_ENDPOINTS", "COPPICE_CONFIG"].contains(&variable.as_str());
        assert!(flag || settings.lines().any(setting), "{variable}");
    }
}
