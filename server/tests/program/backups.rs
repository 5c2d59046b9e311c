//! Backups and restores by the real program: whole, damaged, interrupted, incremental, of a cluster under faults.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use coppice_client::{Operation, Range};
use coppice_testkit::poll::holds_within;
use coppice_transfer::backup::{Plan, Progress, backup};
use serde_json::Value;

use crate::cuts::cut;
use crate::support::{Cluster, Said, eventually, patient, run};

fn text(path: &std::path::Path) -> String {
    path.display().to_string()
}

#[track_caller]
fn expect(said: &Said, code: i32, out: &str, err: &str) {
    assert_eq!(said.code, code, "{said:?}");
    assert!(said.out.starts_with(out) && said.err.contains(err), "{said:?}");
}

fn put(cluster: &Cluster, keys: std::ops::Range<u32>, value: &str) {
    let client = cluster.client();
    let operations = keys.map(|n| Operation::put(format!("k{n:06}").as_str(), value)).collect();
    assert!(client.execute(operations).into_iter().all(|outcome| outcome.is_ok()));
}

/// The key in the middle, so that both partitions hold some.
const SPLIT: &str = "k002000";

#[test]
fn a_backup_goes_into_a_cluster_of_another_shape_and_beside_other_keys() {
    let (from, into) = (Cluster::formed(1, SPLIT), Cluster::formed(1, "k000500,k001000,k003000"));
    put(&from, 0..4_000, "a value of twenty-two");
    assert_eq!(from.run(&["put", "k000000", "a value of twenty-two", "--ttl", "1h"]).code, 0);
    let directory = text(&from.scratch.path("backup"));
    let said = from.run(&["backup", &directory, "-o", "json"]);
    assert_eq!(said.code, 0, "{said:?}");
    let made: Value = serde_json::from_str(&said.out).expect("json");
    assert_eq!((&made["keys"], made["positions"].as_array().map(Vec::len)), (&4_000.into(), Some(2)), "{made}");
    expect(&run(&["backup", "verify", &directory]), 0, "whole: 4000 keys, ", "one moment: p1#");
    let said = into.run(&["restore", &directory]);
    expect(&said, 0, "restored: 4000 keys, ", "the backup is one moment");
    assert!(said.err.contains("; what it holds does not expire\n"), "{said:?}");
    assert_eq!(into.run(&["get", "k003999"]).out, "a value of twenty-two");
    assert_eq!(into.run(&["ttl", "k000000"]).out, "does not expire\n");
    // The keys are there: nothing is written over them.
    expect(&into.run(&["restore", &directory]), 5, "", "the cluster holds keys already, the first is k000000");
    expect(&into.run(&["restore", &directory, "--prefix", "old/"]), 0, "restored: 4000 keys, ", "");
    assert_eq!(into.run(&["scan", "..", "--count"]).out, "8000\n");
    assert_eq!(into.run(&["get", "old/k000000"]).out, "a value of twenty-two");
}

#[test]
fn an_incremental_backup_holds_what_has_changed() {
    let cluster = Cluster::formed(1, SPLIT);
    put(&cluster, 0..4_000, &"x".repeat(300));
    let paths = ["monday", "tuesday", "wednesday"].map(|name| cluster.scratch.path(name));
    let [monday, tuesday, wednesday] = paths.each_ref().map(|path| text(path));
    let made = |words: &[&str]| -> Value {
        let said = cluster.run(&[words, &["-o", "json"]].concat());
        assert_eq!(said.code, 0, "{said:?}");
        serde_json::from_str(&said.out).expect("json")
    };
    let (first, again) = (made(&["backup", &monday]), text(&cluster.scratch.path("again")));
    let whole = first["written_bytes"].as_u64().expect("a number");
    assert_eq!(first["read_bytes"], first["bytes"]);
    // The nodes compare: no pair travels.
    let unchanged = made(&["backup", &again, "--since", &monday]);
    assert_eq!((&unchanged["read_bytes"], &unchanged["written_bytes"]), (&0.into(), &0.into()), "{unchanged}");
    assert_eq!(unchanged["digest"], first["digest"]);
    put(&cluster, 100..110, "changed");
    let second = made(&["backup", &tuesday, "--since", &monday]);
    assert!(second["written_bytes"].as_u64().expect("a number") * 2 < whole, "{second} of {whole}");
    // What has changed is read, and no other chunk.
    let (read, written) = (second["read_bytes"].as_u64(), second["written_bytes"].as_u64());
    assert!(read > Some(0) && read < written, "{second}: a chunk has lengths beside its pairs");
    assert_eq!(second["builds_on"], serde_json::json!(["../monday"]));
    put(&cluster, 3_000..3_010, "changed");
    let third = made(&["backup", &wednesday, "--since", &tuesday]);
    assert_eq!(third["builds_on"].as_array().map(Vec::len), Some(2), "{third}");
    expect(&run(&["backup", "verify", &wednesday]), 0, "whole: 4000 keys", "it builds on");
    let into = Cluster::formed(1, "");
    expect(&into.run(&["restore", &wednesday]), 0, "restored: 4000 keys", "");
    assert_eq!(into.run(&["get", "k000105"]).out, "changed");
    // Moved together they find each other; without the earlier one, the later one says what it lacks.
    std::fs::rename(&monday, cluster.scratch.path("gone")).expect("it can be moved");
    expect(&run(&["backup", "verify", &wednesday]), 4, "", "is not the earlier backup that");
}

/// A backup of version 0.1 says nothing that nodes can compare, and a cluster of feature level 1 compares nothing: all
/// is read, and not written again.
#[test]
fn without_sums_or_feature_level_all_is_read() {
    let (cluster, old) = (Cluster::formed(1, SPLIT), Cluster::waiting(1));
    assert_eq!(old.run(&["init", "--split-keys", SPLIT, "--set", "feature_level=1"]).code, 0);
    old.healthy();
    let made = |cluster: &Cluster, words: &[&str]| -> Value {
        let said = cluster.run(&[words, &["-o", "json"]].concat());
        assert_eq!(said.code, 0, "{said:?}");
        serde_json::from_str(&said.out).expect("json")
    };
    let [first, second, third] = ["first", "second", "third"].map(|name| text(&cluster.scratch.path(name)));
    for (cluster, since) in [(&cluster, true), (&old, false)] {
        put(cluster, 0..4_000, &"x".repeat(100));
        let begun = made(cluster, &["backup", &first]);
        if since {
            without_sums(&std::path::Path::new(&first).join("manifest"));
        }
        let [then, last] = [(&second, &first), (&third, &second)]
            .map(|(path, earlier)| made(cluster, &["backup", path, "--since", earlier]));
        assert_eq!((&then["read_bytes"], &then["written_bytes"]), (&begun["bytes"], &0.into()), "{then}");
        let read = if since { &0.into() } else { &begun["bytes"] };
        assert_eq!((&last["read_bytes"], &last["written_bytes"]), (read, &0.into()), "{last}");
        expect(&run(&["backup", "verify", &third]), 0, "whole: 4000 keys", "it builds on");
        for path in [&first, &second, &third] {
            std::fs::remove_dir_all(path).expect("it is there");
        }
    }
}

/// Takes out of a manifest what version 0.1 did not write.
fn without_sums(path: &std::path::Path) {
    let (text, mut out, mut crc) = (std::fs::read_to_string(path).expect("it is there"), String::new(), 0);
    for line in text.lines() {
        let mut fields: serde_json::Map<String, Value> = serde_json::from_str(line).expect("json");
        fields.remove("content");
        fields.remove("sha256");
        if fields.contains_key("crc32c") {
            fields.insert("crc32c".into(), format!("{crc:08x}").into());
        }
        let line = format!("{}\n", Value::from(fields));
        crc = crc32c::crc32c_append(crc, line.as_bytes());
        out += &line;
    }
    assert!(out.len() < text.len());
    std::fs::write(path, out).expect("it is writable");
}

#[test]
fn damage_and_mistakes_are_named() {
    let cluster = Cluster::formed(1, SPLIT);
    put(&cluster, 0..4_000, &"x".repeat(100));
    let directory = cluster.scratch.path("backup");
    let path = text(&directory);
    expect(&cluster.run(&["restore", &path]), 4, "", "holds no finished backup");
    expect(&cluster.run(&["backup", &path]), 0, "backed up: 4000 keys", "");
    expect(&cluster.run(&["backup", &path]), 5, "", "holds a finished backup");
    expect(&cluster.run(&["backup", "http://host/x"]), 2, "", "http:// is not supported");
    // Without its manifest it is a backup that was interrupted; its last chunk is torn.
    std::fs::remove_file(directory.join("manifest")).expect("it is there");
    let pairs = directory.join("pairs-00001");
    let size = std::fs::metadata(&pairs).expect("it is there").len();
    std::fs::OpenOptions::new().write(true).open(&pairs).and_then(|file| file.set_len(size - 1)).expect("it is cut");
    expect(&cluster.run(&["backup", &path]), 5, "", "holds a backup that was interrupted");
    expect(&run(&["backup", "verify", &path]), 4, "", "holds no finished backup");
    let said = cluster.run(&["backup", &path, "--resume", "-o", "json"]);
    let made: Value = serde_json::from_str(&said.out).expect("json");
    assert!(made["unchanged_bytes"].as_u64() > Some(0) && made["written_bytes"].as_u64() > Some(0), "{said:?}");
    expect(&run(&["backup", "verify", &path]), 0, "whole: 4000 keys", "");
    let mut bytes = std::fs::read(&pairs).expect("it is there");
    bytes[100] ^= 1;
    std::fs::write(&pairs, &bytes).expect("it is writable");
    let into = Cluster::formed(1, "");
    for said in [run(&["backup", "verify", &path]), into.run(&["restore", &path])] {
        expect(&said, 1, "", "pairs-00001 at byte 16: the checksum of the pairs differs");
    }
    std::fs::write(directory.join("notes"), "x").expect("it is writable");
    std::fs::remove_file(directory.join("manifest")).expect("it is there");
    expect(&cluster.run(&["backup", &path, "--resume"]), 5, "", "holds other files: notes");
}

#[test]
fn an_interrupted_restore_goes_on_and_finds_foreign_values() {
    let (from, into) = (Cluster::formed(1, SPLIT), Cluster::formed(1, "k001000"));
    put(&from, 0..4_000, "value");
    let directory = text(&from.scratch.path("backup"));
    expect(&from.run(&["backup", &directory]), 0, "", "");
    // Some of it is there.
    put(&into, 700..1_300, "value");
    expect(&into.run(&["restore", &directory, "--resume"]), 0, "restored: 4000 keys", "");
    // A key that the backup does not have, and a value that is another.
    into.run(&["put", "z", "1"]);
    expect(&into.run(&["restore", &directory, "--resume"]), 1, "", "the cluster holds 4001 pairs");
    into.run(&["delete", "z"]);
    into.run(&["put", "k000007", "other"]);
    expect(&into.run(&["restore", &directory, "--resume"]), 5, "", "the key k000007 holds a value that is not");
}

#[cfg(feature = "mutants")]
#[test]
fn restores_that_write_over_keys_or_prove_nothing_are_caught() {
    let test = "backups::an_interrupted_restore_goes_on_and_finds_foreign_values";
    planted::assert_caught("restore_writes_over", test);
    planted::assert_caught("restore_unproven", test);
}

/// A reading is interrupted when the node that serves it is killed: then all is read again, and what was written stays.
fn backed_up_while_killed(
    cluster: &mut Cluster,
    node: usize,
    directory: &std::path::Path,
    since: Option<PathBuf>,
) -> u32 {
    let endpoints: Vec<String> = cluster.endpoints().split(',').map(str::to_owned).collect();
    let plan = Plan { directory: directory.to_owned(), resume: false, since, pace: 100, program: "test".to_owned() };
    let (mut killed, mut again) = (false, 0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let done = runtime.block_on(async {
        let client = coppice_client::Client::start(endpoints, patient());
        let told = |told| match told {
            Progress::Read(..) if !std::mem::replace(&mut killed, true) => cluster.kill(node),
            Progress::Again(why) => {
                println!("again: {why}");
                again += 1;
            }
            _ => {}
        };
        backup(&client, &plan, told).await
    });
    assert_eq!(done.expect("a backup").manifest.header.pairs, 4_002);
    assert!(killed);
    again
}

/// Two keys in different partitions are only ever written by this test, first one and then the other, with ascending
/// numbers: at every moment the first is the second or one more. Their backup is one moment although nodes are killed
/// while it is taken, and so is what is restored.
#[test]
fn a_backup_under_faults_and_writes_is_one_moment() {
    let mut cluster = Cluster::formed(3, SPLIT);
    // More than a reader may have unread, so that the node that is killed has not sent all of it.
    put(&cluster, 0..4_000, &"x".repeat(2_000));
    cluster.run(&["put", "a", "0"]);
    cluster.run(&["put", "z", "0"]);
    let stop = Arc::new(AtomicBool::new(false));
    let (client, stopped) = (cluster.client(), Arc::clone(&stop));
    let writer = std::thread::spawn(move || {
        for n in 1u64.. {
            for key in ["a", "z"] {
                // One that is unknown is repeated: a later number never meets an earlier one that is late.
                while client.put(key, n.to_string().as_str()).is_err() {
                    std::thread::yield_now();
                }
            }
            client.put(format!("k{:06}", n % 4_000).as_str(), n.to_string().as_str()).ok();
            if stopped.load(Ordering::Relaxed) {
                return n;
            }
        }
        unreachable!("it is told to stop")
    });
    let into = Cluster::formed(1, "k003000");
    for round in 0..3 {
        let path = cluster.scratch.path(&format!("backup{round}"));
        let directory = text(&path);
        // The last one builds on the one before.
        let since = (round == 2).then(|| cluster.scratch.path("backup1"));
        let again = backed_up_while_killed(&mut cluster, round, &path, since);
        println!("round {round}: read {} times", again + 1);
        cluster.start(round, "ready");
        expect(&run(&["backup", "verify", &directory]), 0, "whole: 4002 keys", "");
        let prefix = format!("{round}/");
        expect(&into.run(&["restore", &directory, "--prefix", &prefix]), 0, "restored: 4002 keys", "");
        let restored = into.client();
        let number = |key: &str| -> u64 {
            let value =
                restored.get(format!("{prefix}{key}").as_str()).expect("it serves").output.expect("it is there");
            std::str::from_utf8(&value).expect("digits").parse().expect("a number")
        };
        let (first, second) = (number("a"), number("z"));
        assert!(
            first == second || first == second + 1,
            "round {round}: {first} and {second} were never there together"
        );
        let mut keys = restored.range(Range::prefix(prefix.as_bytes()).count_only()).expect("it serves");
        assert_eq!(keys.count().expect("it serves"), 4_002);
    }
    stop.store(true, Ordering::Relaxed);
    assert!(writer.join().expect("it writes") > 3);
    eventually("the cluster is whole", || cluster.run(&["status"]).code == 0);
}

/// A load whose node is killed is repeated under its own number, or compared with what is there.
#[test]
fn a_restore_and_an_import_outlive_a_killed_node() {
    let (from, mut into) = (Cluster::formed(1, SPLIT), Cluster::formed(3, "k001000,k003000"));
    put(&from, 0..4_000, &"x".repeat(2_000));
    let (directory, file) = (text(&from.scratch.path("backup")), text(&from.scratch.path("rows.bin")));
    expect(&from.run(&["backup", &directory]), 0, "backed up: 4000 keys", "");
    expect(&from.run(&["export", &file]), 0, "", "4000 keys");
    for (round, words) in [["restore", &directory], ["import", &file]].into_iter().enumerate() {
        let at = into.endpoints();
        let said = std::thread::scope(|scope| {
            let running = scope.spawn(|| crate::support::run_at(&at, &words, b""));
            std::thread::sleep(std::time::Duration::from_millis(30));
            into.kill(round);
            running.join().expect("it ends")
        });
        assert_eq!(said.code, 0, "{words:?}: {said:?}");
        into.start(round, "ready");
    }
    assert_eq!(digest(&from, "compared"), digest(&into, "compared"));
}

/// The digest of a backup that is made for it.
#[track_caller]
fn digest(cluster: &Cluster, name: &str) -> String {
    let said = cluster.run(&["backup", &text(&cluster.scratch.path(name)), "-o", "json"]);
    let made: Value = serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    made["digest"].as_str().unwrap_or_else(|| panic!("no digest: {made}")).to_owned()
}

/// Cuts a node off, kills or pauses it, by turns, and brings it back after a while, or when it is over.
fn harm(cluster: &mut Cluster, turn: usize, victim: usize, is_over: impl Fn() -> bool) {
    let hold = |at_most: u64| holds_within(Duration::from_millis(at_most), &is_over);
    match turn % 3 {
        0 => {
            cut(cluster, Some(victim));
            hold(2_000);
            cut(cluster, None);
        }
        1 => {
            cluster.kill(victim);
            hold(300);
            cluster.start(victim, "ready");
        }
        _ => {
            cluster.node(victim).signal("STOP");
            hold(1_000);
            cluster.node(victim).signal("CONT");
        }
    }
}

/// A cluster that takes writes is backed up, and restored many times into one whose nodes are cut off, killed and
/// paused, first the leader of everything amid the load: then all its replicas agree, on what they hold in a cluster
/// without faults. `COPPICE_RESTORES`: how many.
#[test]
fn restores_under_faults_leave_on_every_replica_what_the_backup_holds() {
    /// A load of so many is not over when the fault comes.
    const KEYS: u32 = 30_000;
    let restores = std::env::var("COPPICE_RESTORES").map_or(3, |count| count.parse().expect("a number"));
    let (from, calm) = (Cluster::formed(3, SPLIT), Cluster::formed(1, ""));
    let mut into = Cluster::formed_with(3, "0/k015000,1/k015000,2/k015000", &["--allow-faults"]);
    put(&from, 0..KEYS, &"x".repeat(100));
    // The backup builds on an earlier one: what the nodes find unchanged is not read.
    let (directory, backed_up) = (text(&from.scratch.path("backup")), AtomicBool::new(false));
    let earlier = text(&from.scratch.path("earlier"));
    expect(&from.run(&["backup", &earlier]), 0, &format!("backed up: {KEYS} keys"), "");
    let said = std::thread::scope(|scope| {
        scope.spawn(|| {
            let client = from.client();
            for n in (0..KEYS).cycle().take_while(|_| !backed_up.load(Ordering::Relaxed)) {
                client.put(format!("k{n:06}").as_str(), n.to_string().as_str()).expect("it serves");
            }
        });
        let said = from.run(&["backup", &directory, "--since", &earlier]);
        backed_up.store(true, Ordering::Relaxed);
        said
    });
    expect(&said, 0, &format!("backed up: {KEYS} keys"), "");
    let (at, client) = (into.endpoints(), into.client());
    let (restored, mut faults) = (format!("restored: {KEYS} keys"), 0);
    for restore in 0..restores {
        let prefix = format!("{restore}/");
        let words = ["restore", &directory, "--prefix", &prefix];
        expect(&calm.run(&words), 0, &restored, "");
        for partition in ["p0", "p1", "p2", "p3", "p4"] {
            let words = ["leader", "transfer", partition, &format!("n{}", restore % 3 + 1)];
            eventually("the leader moves", || into.run(&words).code == 0);
        }
        let said = std::thread::scope(|scope| {
            let running = scope.spawn(|| crate::support::run_at(&at, &words, b""));
            let is_over = || running.is_finished();
            eventually("a part is loaded", || {
                is_over() || client.get(format!("{prefix}k001000").as_str()).is_ok_and(|answer| answer.output.is_some())
            });
            for victim in restore.. {
                harm(&mut into, restore, victim % 3, is_over);
                faults += 1;
                if is_over() {
                    break;
                }
            }
            running.join().expect("it ends")
        });
        expect(&said, 0, &restored, "");
    }
    println!("{restores} restores, {faults} faults");
    into.healthy();
    eventually("all replicas agree", || {
        let said = into.run(&["check", "replicas", "-o", "table"]);
        said.code == 0 && said.out.matches("digests agree at #").count() == 5
    });
    let held = digest(&calm, "held");
    assert_eq!(digest(&into, "held"), held);
    // One value that is another one shows.
    assert_eq!(into.run(&["put", "0/k000000", "other"]).code, 0);
    assert_ne!(digest(&into, "spoilt"), held);
}
