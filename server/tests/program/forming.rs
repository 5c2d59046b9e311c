//! `init` asks all seeds who they are before it draws a cluster.

use coppice_client::wire::{AdminReply, AdminRequest, InitRequest};
use coppice_client::{Admin, Config};

use crate::support::{Cluster, patience};

fn cluster_of(cluster: &Cluster, index: usize) -> String {
    let said = cluster.run_at(index, &["status", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&said.out).expect("json");
    json["cluster"].as_str().expect("an id").to_owned()
}

/// A compose file runs `init --if-needed` at every start. A first seed whose disk was lost once formed a second, empty
/// cluster, at an address that the clients of the first one knew.
#[test]
fn a_first_seed_without_its_disk_forms_no_second_cluster() {
    let mut cluster = Cluster::formed(3, "m");
    assert_eq!(cluster.run(&["put", "a", "1"]).code, 0);
    let id = cluster_of(&cluster, 1);
    cluster.kill(0);
    std::fs::remove_dir_all(cluster.data_dir(0)).expect("it is ours");
    cluster.start(0, "waiting for init");
    let said = cluster.run_at(0, &["init", "--if-needed", "-o", "table"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.out.starts_with("exists already: ") && said.out.contains(&id), "{said:?}");
    let said = cluster.run_at(0, &["init"]);
    assert_eq!(said.code, 5, "{said:?}");
    for word in [&id, "coppice node replace n1"] {
        assert!(said.err.contains(word), "{word}: {said:?}");
    }
    let named = |index| said.err.contains(&format!("seed 127.0.0.1:{}", cluster.peer_port(index)));
    assert!(named(1) || named(2), "{said:?}");
    assert_eq!(cluster.run_at(0, &["get", "a", "--timeout", "1s"]).code, 3, "it belongs to nothing");
    assert_eq!(cluster.run_at(1, &["get", "a"]).out, "1");
}

/// While a seed does not answer nobody knows whether there is a cluster.
#[test]
fn nothing_is_begun_while_a_seed_does_not_answer() {
    let mut cluster = Cluster::stopped(3, &[]);
    (0..2).for_each(|index| cluster.start(index, "waiting for init"));
    let said = cluster.run_at(0, &["init", "--timeout", "2s"]);
    assert!([3, 6].contains(&said.code), "{said:?}");
    assert!(!cluster.data_dir(0).join("node.toml").exists(), "it has taken an identity");
    cluster.start(2, "waiting for init");
    cluster.form("");
    assert_eq!(cluster.run(&["put", "a", "1"]).code, 0);
}

/// On a busy machine a client gives up on an answer that is still to come, and asks again. It was once told that there
/// is a cluster already: the one that it had formed itself.
#[test]
fn an_init_that_is_sent_again_hears_that_it_formed_the_cluster() {
    let mut cluster = Cluster::stopped(1, &[]);
    cluster.start(0, "waiting for init");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let admin = Admin::new([cluster.endpoint(0)], Config { timeout: patience(), ..Config::default() });
    let init = |nonce| {
        let request = InitRequest { partitions: 1, nonce, ..InitRequest::default() };
        runtime.block_on(admin.verb(AdminRequest::Init(request)))
    };
    for _ in 0..2 {
        let said = init(7);
        assert!(matches!(said, Ok(AdminReply::Initialized { existed: false, .. })), "{said:?}");
    }
    let said = init(8);
    assert!(said.is_err(), "{said:?}");
}
