//! Disks that are full under running nodes: writes are refused or wait, reads go on, room brings everything back
//! (hazards.md ST10).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Cluster, Scratch, eventually, patience};

/// No answer of a cluster with a full disk takes longer: the client's own deadline, and some for a loaded machine.
const BOUNDED: Duration = Duration::from_secs(60);

/// Whether this user may give a process a file system of its own.
fn own_mounts() -> Option<Vec<&'static str>> {
    let ways: [&[&str]; 2] = [&["--mount"], &["--user", "--map-root-user", "--mount"]];
    let works = |flags: &&&[&str]| {
        let scratch = Scratch::new("mounts");
        let mount = "mount -t tmpfs -o size=1m tmpfs \"$0\"";
        let mut command = Command::new("unshare");
        command.args(**flags).args(["sh", "-c", mount]).arg(&scratch.0);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    ways.iter().find(works).map(|flags| flags.to_vec())
}

/// `command` with a file system of its own, of so many MiB, at `dir`.
fn on_small_disk(flags: &[&str], command: &Command, dir: &Path, mib: u32) -> Command {
    let script = format!("mount -t tmpfs -o size={mib}m tmpfs \"$0\" && exec \"$@\"");
    let mut wrapped = Command::new("unshare");
    wrapped.args(flags).args(["sh", "-c", &script]).arg(dir).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs().filter(|(_, value)| value.is_none()) {
        assert!(value.is_none());
        wrapped.env_remove(name);
    }
    wrapped
}

/// Nodes on disks of 48 MiB each, and where those can be seen from here.
fn nodes_on_small_disks(flags: &[&str], nodes: usize, settings: &[&str]) -> (Cluster, Vec<PathBuf>) {
    cut_on_small_disks(flags, nodes, settings, "")
}

/// The same, of a cluster that is cut at these keys.
fn cut_on_small_disks(flags: &[&str], nodes: usize, settings: &[&str], split_keys: &str) -> (Cluster, Vec<PathBuf>) {
    let mut cluster = Cluster::stopped(nodes, settings);
    for node in 0..nodes {
        let dir = cluster.data_dir(node);
        std::fs::create_dir_all(&dir).expect("a directory");
        let command = on_small_disk(flags, &cluster.command(node), &dir, 48);
        cluster.start_as(node, command, "waiting for init");
    }
    cluster.form(split_keys);
    let seen = |node| PathBuf::from(format!("/proc/{}/root{}", cluster.pid(node), cluster.data_dir(node).display()));
    let disks = (0..nodes).map(seen).collect();
    (cluster, disks)
}

fn node_on_small_disk(flags: &[&str], settings: &[&str]) -> (Cluster, PathBuf) {
    let (cluster, mut disks) = nodes_on_small_disks(flags, 1, settings);
    (cluster, disks.remove(0))
}

/// Fills a disk to its last byte with a file, as another program would.
fn fill(disk: &Path) -> PathBuf {
    let filler = disk.join("filler");
    let mut file = std::fs::File::create(&filler).expect("a file");
    while file.write_all(&[1; 64 << 10]).is_ok() {}
    filler
}

#[test]
fn below_the_disk_reserve_writes_are_refused_and_freed_space_brings_them_back() {
    let Some(flags) = own_mounts() else { return eprintln!("skipped: this user may not mount") };
    let settings = ["--log-disk-reserve=16MiB", "--log-segment-bytes=1MiB"];
    let (cluster, disk) = node_on_small_disk(&flags, &settings);
    assert_eq!(cluster.run(&["put", "a", "1"]).code, 0);
    let filler = disk.join("filler");
    std::fs::write(&filler, vec![1; 32 << 20]).expect("room for it");
    eventually("writes are refused, and it is said why", || {
        let said = cluster.run(&["put", "a", "2", "--timeout", "1s"]);
        let told = said.err.contains("takes no writes that grow it");
        assert!(!told || (said.code, said.err.lines().count()) == (3, 4), "certainly not executed: {said:?}");
        told
    });
    // Reads go on; deletes are how one makes room.
    let value = cluster.run(&["get", "a"]);
    assert_eq!(value.code, 0, "{value:?}");
    assert!(["1", "2"].contains(&value.out.as_str()), "{value:?}");
    let said = cluster.run(&["delete", "a"]);
    assert_eq!(said.code, 0, "{said:?}");
    eventually("the status warns of it, and so do the metrics", || {
        cluster.run(&["status", "-o", "table"]).out.contains("disk reserve reached")
            && cluster.page(0, "/metrics").contains("coppice_warning{kind=\"disk_reserve\"} 1\n")
    });
    std::fs::remove_file(&filler).expect("it is ours");
    eventually("freed space brings writes back", || cluster.run(&["put", "a", "4", "--timeout", "1s"]).code == 0);
    assert_eq!(cluster.run(&["get", "a"]).out, "4");
}

/// Nothing but the store's own data fills the disk, and nobody but its users can make room.
#[test]
#[ignore = "long: processes that wait for each other"]
fn deletes_make_room_on_a_full_disk() {
    let Some(flags) = own_mounts() else { return eprintln!("skipped: this user may not mount") };
    let settings = ["--log-disk-reserve=16MiB", "--log-segment-bytes=1MiB"];
    let (cluster, _) = node_on_small_disk(&flags, &settings);
    let value = format!("@{}", cluster.scratch.path("value").display());
    std::fs::write(cluster.scratch.path("value"), vec![b'v'; 256 << 10]).expect("a file");
    let put = |key: &str| cluster.run(&["put", key, &value, "--timeout", "5s"]);
    let mut keys = Vec::new();
    loop {
        let key = format!("k{:03}", keys.len());
        let said = put(&key);
        if said.code != 0 {
            break assert!(said.err.contains("takes no writes that grow it"), "{said:?}");
        }
        keys.push(key);
        assert!(keys.len() < 300, "the disk is never full");
    }
    let client = cluster.client();
    for key in &keys {
        client.delete(key.as_str()).expect("deletes are how one makes room");
    }
    eventually("writes go on", || put("after").code == 0);
    assert_eq!(put("again").code, 0);
}

#[test]
fn a_disk_that_is_full_to_the_last_byte_loses_nothing_and_goes_on_when_there_is_room() {
    let Some(flags) = own_mounts() else { return eprintln!("skipped: this user may not mount") };
    // No reserve: the log itself meets the end of the disk.
    let settings = ["--log-disk-reserve=0", "--log-segment-bytes=1MiB"];
    let (cluster, disk) = node_on_small_disk(&flags, &settings);
    let filler = disk.join("filler");
    std::fs::write(&filler, vec![1; 40 << 20]).expect("room for it");
    let value = format!("@{}", cluster.scratch.path("value").display());
    std::fs::write(cluster.scratch.path("value"), vec![b'v'; 256 << 10]).expect("a file");
    let (mut done, mut refused) = (Vec::new(), 0);
    let started = Instant::now();
    for number in 0.. {
        let key = format!("k{number:03}");
        let asked = Instant::now();
        let said = cluster.run(&["put", &key, &value, "--timeout", "1s"]);
        assert!(asked.elapsed() < BOUNDED, "{said:?}");
        match said.code {
            0 => {
                done.push(key);
                refused = 0;
            }
            3 | 6 => refused += 1,
            _ => panic!("{said:?}"),
        }
        if refused == 3 {
            break;
        }
        assert!(started.elapsed() < patience(), "the disk is never full");
    }
    assert!(!done.is_empty());
    let last = done.last().expect("not empty");
    for how in ["--stale", "--timeout=10s"] {
        let said = cluster.run(&["get", how, last]);
        assert_eq!((said.code, said.out.len()), (0, 256 << 10), "reads go on: {}", said.err);
    }
    std::fs::remove_file(&filler).expect("it is ours");
    eventually("room brings writes back", || cluster.run(&["put", "after", "1", "--timeout", "1s"]).code == 0);
    for key in &done {
        assert_eq!(cluster.run(&["get", key]).out.len(), 256 << 10, "{key} was acknowledged");
    }
}

/// A value that fills a segment of the log soon, as an argument.
fn large_value(cluster: &Cluster) -> String {
    let path = cluster.scratch.path("value");
    std::fs::write(&path, vec![b'v'; 256 << 10]).expect("a file");
    format!("@{}", path.display())
}

#[test]
fn one_full_disk_of_three_stops_nothing() {
    let Some(flags) = own_mounts() else { return eprintln!("skipped: this user may not mount") };
    let settings = ["--log-disk-reserve=0", "--log-segment-bytes=1MiB"];
    let (cluster, disks) = nodes_on_small_disks(&flags, 3, &settings);
    let value = large_value(&cluster);
    assert_eq!(cluster.run(&["put", "a", "1"]).code, 0);
    for (node, disk) in disks.iter().enumerate() {
        let filler = fill(disk);
        // More than the log has made ready: it meets the end of the disk.
        for number in 0..12 {
            let key = format!("n{node}k{number}");
            let said = cluster.run(&["put", &key, &value, "--timeout", "20s"]);
            assert_eq!(said.code, 0, "the others have room: {said:?}");
            let said = cluster.run(&["get", &key, "--timeout", "20s"]);
            assert_eq!((said.code, said.out.len()), (0, 256 << 10), "{}", said.err);
        }
        std::fs::remove_file(filler).expect("it is ours");
        cluster.healthy();
    }
}

/// Puts values until one is refused; tells how many were taken.
fn put_until_full(cluster: &Cluster) -> usize {
    let value = large_value(cluster);
    let (mut done, mut refused) = (0, 0);
    let started = Instant::now();
    while refused < 3 {
        let said = cluster.run(&["put", &format!("k{done:03}"), &value, "--timeout", "1s"]);
        match said.code {
            0 => (done, refused) = (done + 1, 0),
            3 | 6 => refused += 1,
            _ => panic!("{said:?}"),
        }
        assert!(started.elapsed() < patience(), "the disks are never full");
    }
    done
}

#[test]
#[ignore = "long: three full disks"]
fn where_all_disks_are_full_reads_of_the_newest_state_go_on() {
    let Some(flags) = own_mounts() else { return eprintln!("skipped: this user may not mount") };
    let settings = ["--log-disk-reserve=0", "--log-segment-bytes=1MiB"];
    let (cluster, disks) = cut_on_small_disks(&flags, 3, &settings, "m");
    assert_eq!(cluster.run(&["put", "a", "1"]).code, 0);
    assert_eq!(cluster.run(&["put", "z", "9"]).code, 0);
    let fillers: Vec<PathBuf> = disks.iter().map(|disk| fill(disk)).collect();
    let done = put_until_full(&cluster);
    for number in 0..done {
        let asked = Instant::now();
        let said = cluster.run(&["get", &format!("k{number:03}"), "--timeout", "10s"]);
        assert_eq!((said.code, said.out.len()), (0, 256 << 10), "reads go on: {}", said.err);
        assert!(asked.elapsed() < BOUNDED);
    }
    // One partition decides nothing; a range over both is read without a ticket, which it could not place.
    let said = cluster.run(&["scan", "..", "--keys-only", "--timeout", "10s"]);
    assert_eq!((said.code, said.out.lines().count()), (0, done + 2), "ranges go on: {said:?}");
    eventually("the status misses nothing but room", || {
        let said = cluster.run(&["status", "-o", "json"]);
        said.code == 1 && said.out.contains(" room ")
    });
    // Room on two of them is a majority.
    fillers[1..].iter().for_each(|filler| std::fs::remove_file(filler).expect("it is ours"));
    eventually("room brings writes back", || cluster.run(&["put", "a", "2", "--timeout", "1s"]).code == 0);
    std::fs::remove_file(&fillers[0]).expect("it is ours");
    cluster.healthy();
    assert_eq!(cluster.run(&["get", "a"]).out, "2");
}

/// Disks are hardly ever full at the same write. The first one holds a write that the others decide without it: nobody
/// can send that again, it waits for room there.
#[test]
#[ignore = "long: three disks, one after the other"]
fn a_disk_that_is_full_before_the_others_is_what_the_status_waits_for() {
    let Some(flags) = own_mounts() else { return eprintln!("skipped: this user may not mount") };
    let settings = ["--log-disk-reserve=0", "--log-segment-bytes=1MiB"];
    let (cluster, disks) = nodes_on_small_disks(&flags, 3, &settings);
    assert_eq!(cluster.run(&["put", "a", "1"]).code, 0);
    let fillers: Vec<PathBuf> = disks.iter().map(|disk| fill(disk)).collect();
    for filler in [&fillers[0], &fillers[2]] {
        // Room for one value more.
        let file = std::fs::File::options().write(true).open(filler).expect("it is ours");
        let bytes = file.metadata().expect("it is there").len();
        file.set_len(bytes - (300 << 10)).expect("it is shorter");
    }
    let done = put_until_full(&cluster);
    let mut said = None;
    eventually("the status names the disk", || {
        let now = cluster.run(&["status", "-o", "json"]);
        let named = now.code == 1 && now.out.contains("until n2 has room on its disk");
        said = Some(now);
        named
    });
    let last = format!("k{:03}", done - 1);
    assert_eq!(cluster.run(&["get", &last, "--timeout", "20s"]).code, 0, "{said:?}");
    fillers.iter().for_each(|filler| std::fs::remove_file(filler).expect("it is ours"));
    cluster.healthy();
    eventually("room brings writes back", || cluster.run(&["put", "a", "2", "--timeout", "1s"]).code == 0);
}

#[test]
fn below_the_reserve_of_a_majority_writes_are_refused_and_deletes_are_not() {
    let Some(flags) = own_mounts() else { return eprintln!("skipped: this user may not mount") };
    let settings = ["--log-disk-reserve=16MiB", "--log-segment-bytes=1MiB"];
    let (cluster, disks) = nodes_on_small_disks(&flags, 3, &settings);
    assert_eq!(cluster.run(&["put", "a", "1"]).code, 0);
    let nearly = |disk: &PathBuf| {
        let filler = disk.join("filler");
        std::fs::write(&filler, vec![1; 32 << 20]).expect("room for it");
        filler
    };
    let first = nearly(&disks[0]);
    eventually("the node says that its disk is full", || {
        cluster.page(0, "/metrics").contains("coppice_warning{kind=\"disk_reserve\"} 1\n")
    });
    assert_eq!(cluster.run(&["put", "a", "2"]).code, 0, "a majority has room");
    let second = nearly(&disks[1]);
    eventually("writes are refused, wherever the leader is", || {
        cluster.run(&["put", "a", "3", "--timeout", "1s"]).err.contains("takes no writes that grow it")
    });
    assert_eq!(cluster.run(&["get", "a"]).code, 0);
    assert_eq!(cluster.run(&["delete", "a"]).code, 0, "deletes are how one makes room");
    std::fs::remove_file(first).expect("it is ours");
    eventually("freed space brings writes back", || cluster.run(&["put", "a", "4", "--timeout", "1s"]).code == 0);
    std::fs::remove_file(second).expect("it is ours");
    assert_eq!(cluster.run(&["get", "a"]).out, "4");
}

/// Resident memory of a node, MiB.
fn resident_mib(cluster: &Cluster, node: usize) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", cluster.pid(node))).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") >> 10
}

/// Starts a node anew that has less memory than the program takes.
fn restart_limited(cluster: &mut Cluster, node: usize) {
    cluster.kill(node);
    let mut command = cluster.command(node);
    command.arg("--memory-limit=16MiB");
    cluster.start_as(node, command, "ready");
}

/// A status of such a cluster was `healthy`: every node was up, and no write was taken.
#[test]
fn a_cluster_whose_memory_is_at_its_limit_is_not_healthy_and_names_the_limit() {
    let mut cluster = Cluster::formed(3, "");
    restart_limited(&mut cluster, 2);
    let says = |cluster: &Cluster, sentence: &str| {
        let said = cluster.run(&["status", "-o", "json"]);
        said.code == 1 && said.out.contains(sentence)
    };
    eventually("one of three has no room", || says(&cluster, "; n3 has no room in memory"));
    assert_eq!(cluster.run(&["put", "a", "1"]).code, 0, "the others have some");
    restart_limited(&mut cluster, 1);
    restart_limited(&mut cluster, 0);
    eventually("no node has any", || {
        says(&cluster, "the cluster refuses writes that grow: the node that leads has reached memory.limit = 16 MiB; ")
    });
    let said = cluster.run(&["put", "a", "2", "--timeout", "1s"]);
    assert!(said.code == 3 && said.err.contains("memory.limit = 16 MiB"), "{said:?}");
    let said = cluster.run(&["status"]);
    assert!(said.out.contains("warning: n2: memory limit reached: "), "a table, in a pipe too: {said:?}");
}

/// The leader has memory without end. Unless the others tell it of their limit, they grow until they are killed.
#[test]
#[ignore = "long: processes that wait for each other"]
fn where_the_memory_of_a_majority_is_at_its_limit_writes_are_refused_and_deletes_are_not() {
    let mut cluster = Cluster::formed(3, "");
    for node in [1, 2] {
        let limit = resident_mib(&cluster, node) + 48;
        cluster.kill(node);
        let mut command = cluster.command(node);
        command.arg(format!("--memory-limit={limit}MiB"));
        if let Ok(mutant) = std::env::var("COPPICE_MUTANT") {
            command.env("COPPICE_MUTANT", mutant);
        }
        cluster.start_as(node, command, "ready");
        cluster.healthy();
    }
    eventually("the node without a limit leads", || cluster.run(&["leader", "transfer", "p1", "n1"]).code == 0);
    let value = format!("@{}", cluster.scratch.path("value").display());
    std::fs::write(cluster.scratch.path("value"), vec![b'v'; 512 << 10]).expect("a file");
    let mut keys = 0;
    eventually("writes are refused, and it is said why", || {
        let said = cluster.run(&["put", &format!("k{keys:03}"), &value, "--timeout", "5s"]);
        keys += 1;
        let refused = said.err.contains("takes no writes that grow it");
        assert!(refused || said.code == 0, "after {keys} of them: {said:?}");
        refused
    });
    let full = |node: usize| cluster.page(node, "/metrics").contains("coppice_warning{kind=\"memory_limit\"} 1\n");
    assert_eq!([0, 1, 2].map(full), [false, true, true]);
    assert_eq!(cluster.run(&["get", "k000", "-o", "raw"]).code, 0);
    assert_eq!(cluster.run(&["delete", "k000"]).code, 0, "deletes are how one makes room");
}

/// Neither took what a leader proposes, and the partition had none for as long as that lasted.
#[test]
#[ignore = "long: processes that wait for each other"]
fn where_the_memory_of_a_majority_is_spent_somebody_leads_and_deletes_make_room() {
    let mut cluster = Cluster::formed(3, "");
    let value = format!("@{}", cluster.scratch.path("value").display());
    std::fs::write(cluster.scratch.path("value"), vec![b'v'; 512 << 10]).expect("a file");
    let put = |cluster: &Cluster, key: &str| cluster.run(&["put", key, &value]);
    for key in 0..40 {
        assert_eq!(put(&cluster, &format!("k{key:03}")).code, 0);
    }
    for node in [1, 2] {
        // Less than it takes to hold what is there.
        cluster.kill(node);
        let mut command = cluster.command(node);
        command.arg("--memory-limit=16MiB");
        if let Ok(mutant) = std::env::var("COPPICE_MUTANT") {
            command.env("COPPICE_MUTANT", mutant);
        }
        cluster.start_as(node, command, "ready");
    }
    let full = |node: usize| cluster.page(node, "/metrics").contains("coppice_warning{kind=\"memory_limit\"} 1\n");
    eventually("their memory is at its limit", || full(1) && full(2));
    for key in ["k000", "k001", "k002"] {
        // It has room itself, and needs the vote of one that has none.
        let said = cluster.run(&["leader", "transfer", "p1", "n1", "--timeout", "30s"]);
        assert_eq!(said.code, 0, "{said:?}");
        let said = cluster.run(&["delete", key, "--timeout", "30s"]);
        assert_eq!(said.code, 0, "somebody leads: {said:?}");
    }
    let said = cluster.run(&["put", "more", &value, "--timeout", "5s"]);
    assert!(said.err.contains("takes no writes that grow it"), "{said:?}");
}

#[cfg(feature = "mutants")]
#[test]
#[ignore = "long: processes that wait for each other"]
fn spent_memory_that_takes_nothing_is_caught() {
    let test = "full_disks::where_the_memory_of_a_majority_is_spent_somebody_leads_and_deletes_make_room";
    crate::common::assert_caught("spent_memory_loses_all", test);
}

#[cfg(feature = "mutants")]
#[test]
#[ignore = "long: processes that wait for each other"]
fn nodes_that_do_not_tell_that_they_are_full_are_caught() {
    let test = "full_disks::where_the_memory_of_a_majority_is_at_its_limit_writes_are_refused_and_deletes_are_not";
    crate::common::assert_caught("fullness_untold", test);
}
