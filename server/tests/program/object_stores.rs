//! Backups in an object store by the real program: whole, incremental, interrupted, damaged, refused. `tests/s3` runs
//! it against a store that others wrote.

use std::process::{Command, Stdio};

use coppice_client::Operation;
use coppice_testkit::object_store::{KEY, ObjectStore, REFUSED, SECRET, TOKEN};

use crate::support::{Cluster, Said, eventually, finish, program, signal};

const MONDAY: &str = "s3://bucket/x/monday";

fn command(store: &ObjectStore, words: &[&str]) -> Command {
    let mut command = program();
    command.envs(store.variables()).args(words);
    command
}

/// Secrets are in no output, whatever the store says.
#[track_caller]
fn said(command: Command, code: i32, out: &str, err: &str) -> Said {
    let said = finish(command, b"");
    assert_eq!(said.code, code, "{said:?}");
    assert!(said.out.starts_with(out) && said.err.contains(err), "{said:?}");
    let all = format!("{}{}", said.out, said.err);
    assert!(![SECRET, TOKEN, KEY].iter().any(|secret| all.contains(secret)), "{all}");
    said
}

fn put(cluster: &Cluster, keys: std::ops::Range<u32>, value: &str) {
    let client = cluster.client();
    let operations = keys.map(|n| Operation::put(format!("k{n:06}").as_str(), value)).collect();
    assert!(client.execute(operations).into_iter().all(|outcome| outcome.is_ok()));
}

#[test]
fn a_backup_in_a_busy_object_store_is_incremental_whole_and_restored() {
    let store = ObjectStore::start();
    store.content().busy_every = 5;
    let (from, into) = (Cluster::formed(1, "k002000"), Cluster::formed(1, "k001000,k003000"));
    put(&from, 0..4_000, &"x".repeat(300));
    let (at, other) = (from.endpoints(), into.endpoints());
    let tuesday = "s3://bucket/x/tuesday";
    said(command(&store, &["--endpoints", &at, "backup", MONDAY]), 0, "backed up: 4000 keys, ", "one moment: p1#");
    put(&from, 100..110, "changed");
    let since = ["--endpoints", &at, "backup", tuesday, "--since", MONDAY, "-o", "json"];
    let made = said(command(&store, &since), 0, "", "");
    let made: serde_json::Value = serde_json::from_str(&made.out).expect("json");
    assert!(made["written_bytes"].as_u64() < made["unchanged_bytes"].as_u64(), "{made}");
    assert_eq!(made["builds_on"], serde_json::json!(["../monday"]));
    let names: Vec<String> = store.content().objects.keys().cloned().collect();
    assert_eq!(names, ["x/monday/manifest", "x/monday/pairs-00001", "x/tuesday/manifest", "x/tuesday/pairs-00001"]);
    said(command(&store, &["backup", "verify", tuesday]), 0, "whole: 4000 keys", "it builds on s3://bucket/x/monday,");
    said(command(&store, &["--endpoints", &other, "restore", tuesday]), 0, "restored: 4000 keys", "");
    assert_eq!(into.run(&["get", "k000105"]).out, "changed");
    // A directory may build on it, and be restored as long as it is there.
    let directory = from.scratch.path("directory").display().to_string();
    said(command(&store, &["--endpoints", &at, "backup", &directory, "--since", tuesday]), 0, "", "");
    said(command(&store, &["backup", "verify", &directory]), 0, "whole: 4000 keys", "");
    store.content().objects.remove("x/monday/manifest");
    said(command(&store, &["backup", "verify", &directory]), 4, "", "s3://bucket/x/monday is not the earlier backup");
}

#[test]
fn an_interrupted_backup_in_an_object_store_goes_on() {
    let store = ObjectStore::start();
    let cluster = Cluster::formed(1, "k002000");
    put(&cluster, 0..4_000, &"x".repeat(6_000));
    let at = cluster.endpoints();
    store.content().stuck = Some("pairs-00002".to_owned());
    let mut child = command(&store, &["--endpoints", &at, "backup", MONDAY, "--pace", "100"]);
    let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts");
    eventually("the first object is there", || !store.content().objects.is_empty());
    // As Ctrl-C does.
    signal(child.id(), "INT");
    assert!(!child.wait().expect("it ends").success());
    store.content().stuck = None;
    said(command(&store, &["backup", "verify", MONDAY]), 4, "", "holds no finished backup");
    said(command(&store, &["--endpoints", &at, "backup", MONDAY]), 5, "", "holds a backup that was interrupted");
    let resume = ["--endpoints", &at, "backup", MONDAY, "--resume", "-o", "json"];
    let made = said(command(&store, &resume), 0, "", "is there already");
    let made: serde_json::Value = serde_json::from_str(&made.out).expect("json");
    assert!(made["unchanged_bytes"].as_u64() > Some(16 << 20), "{made}");
    said(command(&store, &["backup", "verify", MONDAY]), 0, "whole: 4000 keys", "");
}

#[test]
fn damage_and_refusals_of_an_object_store_are_named() {
    let store = ObjectStore::start();
    let (cluster, into) = (Cluster::formed(1, "k002000"), Cluster::formed(1, ""));
    put(&cluster, 0..1_000, &"x".repeat(300));
    let (at, empty) = (cluster.endpoints(), into.endpoints());
    let backup = |address: &str| command(&store, &["--endpoints", &at, "backup", address]);
    let readers = || {
        [command(&store, &["backup", "verify", MONDAY]), command(&store, &["--endpoints", &empty, "restore", MONDAY])]
    };
    said(backup(MONDAY), 0, "backed up", "");
    said(backup(MONDAY), 5, "", "holds a finished backup");
    said(backup("s3://bucket/x"), 5, "", "holds other files: monday");
    said(backup("s3://bucket"), 2, "", "is s3://BUCKET/PREFIX, not s3://bucket");
    said(backup("s3://none/x"), 4, "", "NoSuchBucket: in the words of the store");
    let exits = |code: &str| if code == "RequestTimeTooSkewed" { "clock is wrong" } else { "" };
    for (key, code) in REFUSED {
        let mut refused = backup("s3://bucket/y");
        refused.env("AWS_ACCESS_KEY_ID", key);
        let said = said(refused, 1, "", &format!("{code}: in the words of the store"));
        assert!(said.err.contains(exits(code)) && !said.err.contains(key), "{said:?}");
    }
    let mut nobody = backup("s3://bucket/y");
    nobody.env_remove("AWS_SECRET_ACCESS_KEY");
    said(nobody, 2, "", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set");
    let mut odd = backup("s3://bucket/y");
    odd.env("AWS_SESSION_TOKEN", format!("{TOKEN}\n"));
    said(odd, 1, "", "AWS_SESSION_TOKEN holds a space or another odd character");
    let mut nowhere = backup("s3://bucket/y");
    nowhere.env("AWS_ENDPOINT_URL", "http://127.0.0.1:1");
    said(nowhere, 3, "", "http://127.0.0.1:1 cannot be reached: Connection refused");
    let whole = store.content().objects["x/monday/pairs-00001"].clone();
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        store.content().objects.insert("x/monday/pairs-00001".to_owned(), bytes);
    };
    changed(&|bytes| bytes[100] ^= 1);
    for reader in readers() {
        said(reader, 1, "", "s3://bucket/x/monday/pairs-00001 at byte 16: the checksum of the pairs differs");
    }
    changed(&|bytes| bytes.truncate(bytes.len() - 1));
    for reader in readers() {
        said(reader, 1, "", "the file ends inside of a chunk");
    }
    changed(&|bytes| bytes.clear());
    readers().into_iter().for_each(|reader| drop(said(reader, 1, "", "the file is cut off")));
    store.content().objects.remove("x/monday/pairs-00001");
    readers()
        .into_iter()
        .for_each(|reader| drop(said(reader, 1, "", "s3://bucket/x/monday/pairs-00001: it is missing")));
}
