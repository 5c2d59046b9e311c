//! Imports and exports by the real program: every format there and back, resumed, damaged, through pipes.

use crate::support::{Cluster, Said, run};

#[track_caller]
fn expect(said: &Said, code: i32, out: &str, err: &str) {
    assert_eq!(said.code, code, "{said:?}");
    assert!(said.out.contains(out) && said.err.contains(err), "{said:?}");
}

#[test]
fn what_is_exported_is_imported_again_in_every_format() {
    let (from, into) = (Cluster::formed(1, "g,n"), Cluster::formed(1, "m"));
    for (key, value) in
        [("apple", "red, or green"), ("grape", "a \"quoted\" one"), ("zebra", "two\nlines"), ("void", "")]
    {
        assert_eq!(from.run(&["put", key, value]).code, 0);
    }
    assert_eq!(from.run_with_input(&["put", "binary", "-"], b"\xff\x00\r").code, 0);
    let all = from.run(&["scan", "..", "-o", "jsonl"]).out;
    assert_eq!(all.lines().count(), 5);
    for name in ["rows.csv", "rows.jsonl", "rows.bin"] {
        let file = from.scratch.path(name).display().to_string();
        expect(&from.run(&["export", &file]), 0, "", "5 keys from p1 p2 p3, one moment: p1#");
        expect(&from.run(&["export", &file]), 5, "", "exists already");
        assert!(!from.scratch.path(&format!("{name}.part")).exists());
        expect(&into.run(&["import", &file]), 0, "imported: 5 rows in ", "");
        assert_eq!(into.run(&["scan", "..", "-o", "jsonl"]).out, all, "{name}");
        // Once more, over what is there, and beside it.
        expect(&into.run(&["import", &file]), 0, "imported: 5 rows", "");
        expect(&into.run(&["import", &file, "--prefix", "x/"]), 0, "imported: 5 rows", "");
        assert_eq!(into.run(&["scan", "..", "--count"]).out, "10\n");
        assert_eq!(into.run(&["get", "x/zebra"]).out, "two\nlines");
        for line in into.run(&["scan", "..", "--keys-only"]).out.lines() {
            assert_eq!(into.run(&["delete", line]).code, 0);
        }
    }
    let said = from.run(&["export", "-", "--format", "csv", "--prefix", "gra", "--hex"]);
    assert_eq!(said.code, 2, "`gra` is no hex: {said:?}");
    let said = from.run(&["export", "-", "a..h", "--format", "csv", "--delimiter", "tab", "--no-header"]);
    assert_eq!(said.out.lines().next(), Some("apple\tred, or green"), "{said:?}");
    let words = ["import", "-", "--format", "csv", "--delimiter", "tab", "--no-header", "--key-column", "2"];
    expect(
        &into.run_with_input(&[&words[..], &["--value-column", "1"]].concat(), b"1\tone\n"),
        0,
        "imported: 1 row ",
        "",
    );
    assert_eq!(into.run(&["get", "one"]).out, "1");
    assert_eq!(
        into.run_with_input(&["import", "-", "--format", "jsonl", "--int"], b"{\"key\":7,\"value\":8}\n").code,
        0
    );
    assert_eq!(into.run(&["get", "7", "--int", "-o", "table"]).out, "8\n");
    expect(&into.run(&["import", "-", "--format", "etcd"]), 1, "", "read from a file, not from a stream");
    expect(&into.run(&["import", "rows"]), 2, "", "which format has rows?");
    expect(&into.run(&["import", "/nowhere/rows.csv"]), 1, "", "/nowhere/rows.csv: No such file");
    // A pipe is read once, from its beginning to its end.
    expect(
        &into.run_with_input(&["import", "/dev/stdin", "--format", "csv"], b"key,value\npiped,1\n"),
        0,
        "1 row ",
        "",
    );
    assert_eq!(into.run(&["get", "piped"]).out, "1");
    expect(
        &into.run_with_input(&["import", "/dev/stdin", "--format", "csv", "--resume"], b""),
        4,
        "",
        "nothing to resume",
    );
}

#[test]
fn an_export_writes_over_no_file_of_anybody() {
    let cluster = Cluster::formed(1, "");
    let (file, part) = (cluster.scratch.path("rows.csv"), cluster.scratch.path("rows.csv.part"));
    std::fs::write(&part, "mine").expect("it is writable");
    let said = cluster.run(&["export", &file.display().to_string()]);
    expect(&said, 5, "", "rows.csv.part exists already");
    assert!(!file.exists());
    assert_eq!(std::fs::read_to_string(&part).expect("it is there"), "mine");
}

#[test]
fn a_flag_of_another_format_is_refused() {
    for (line, flag, format, formats) in [
        ("import x.csv --db 3", "--db", "csv", "rdb"),
        ("import x.jsonl --strings-only", "--strings-only", "jsonl", "rdb"),
        ("import x.bin --int", "--int", "bin", "csv, jsonl"),
        ("import snap.db --key-column k", "--key-column", "etcd", "csv"),
        ("import x --format rdb --base64", "--base64", "rdb", "csv, jsonl"),
        ("export x.bin --delimiter ;", "--delimiter", "bin", "csv"),
        ("export x.jsonl a..b --no-header", "--no-header", "jsonl", "csv"),
        ("export x.bin --hex", "--hex", "bin", "csv, jsonl"),
    ] {
        let said = run(&line.split(' ').collect::<Vec<_>>());
        expect(&said, 2, "", &format!(": {flag} is without effect for the format {format}\n"));
        assert!(said.err.contains(&format!("cause: it is for {formats}\n")), "{said:?}");
    }
    // Keys of the command line are written so.
    for line in ["import /nowhere/x.bin --prefix 00 --hex", "export /nowhere/x.bin 00..01 --hex"] {
        let said = run(&[&line.split(' ').collect::<Vec<_>>()[..], &["--timeout", "1ms"]].concat());
        assert!(said.code != 2 && !said.err.contains("without effect"), "{said:?}");
    }
}

/// The later row of a key counts, wherever the batches are cut, and a large file has several.
#[test]
fn the_last_row_of_a_key_counts() {
    let cluster = Cluster::formed(1, "k3");
    let file = cluster.scratch.path("rows.csv");
    let mut text = "key,value\n".to_owned();
    let wide = "x".repeat(4_000);
    for n in 0..2_500u32 {
        text.push_str(&format!("k{},{wide}{n}\n", n % 500));
    }
    std::fs::write(&file, text).expect("it is writable");
    let file = file.display().to_string();
    expect(&cluster.run(&["import", &file]), 0, "imported: 2500 rows", "");
    assert_eq!(cluster.run(&["scan", "..", "--count"]).out, "500\n");
    for n in [0, 77, 499] {
        let value = cluster.run(&["get", &format!("k{n}")]).out;
        assert_eq!(value.strip_prefix(&wide), Some(&*(2_000 + n).to_string()));
    }
}

#[test]
fn an_import_that_ends_early_keeps_its_position_and_goes_on_behind_it() {
    let cluster = Cluster::formed(1, "k3");
    let file = cluster.scratch.path("rows.csv");
    let rows = |good: bool| {
        let mut text = "key,value\n".to_owned();
        for n in 0..3_000u32 {
            text.push_str(&format!("k{n:05},{}\n", "x".repeat(3_000)));
        }
        text.push_str(if good { "last,1\n" } else { "last\n" });
        text
    };
    std::fs::write(&file, rows(false)).expect("it is writable");
    let path = file.display().to_string();
    expect(&cluster.run(&["import", &path, "--resume"]), 4, "", "there is nothing to resume");
    let said = cluster.run(&["import", &path]);
    expect(&said, 1, "", "rows.csv: line 3002: it has 1 column, and number 2 is wanted");
    assert!(said.err.contains("rows.csv.position keeps how far it is") && said.err.contains("--resume"), "{said:?}");
    expect(&cluster.run(&["import", &path, "--resume"]), 1, "", "line 3002");
    // Another import of the file has loaded none of its rows.
    let other = "was kept for another content of the file, other flags or another cluster";
    expect(&cluster.run(&["import", &path, "--prefix", "x/", "--resume"]), 5, "", other);
    expect(&Cluster::formed(1, "").run(&["import", &path, "--resume"]), 5, "", other);
    // The row is mended: this is another file, of which nobody knows what was loaded.
    std::fs::write(&file, rows(true)).expect("it is writable");
    expect(&cluster.run(&["import", &path, "--resume"]), 5, "", other);
    // Of the same size and beginning, it is believed to be the same.
    std::fs::write(&file, rows(false).replace("last\n", "\n")).expect("it is writable");
    expect(&cluster.run(&["import", &path]), 0, "imported: 3000 rows", "");
    assert!(!cluster.scratch.path("rows.csv.position").exists());
    assert_eq!(cluster.run(&["scan", "..", "--count"]).out, "3000\n");
}

#[test]
fn a_dump_of_redis_is_imported_and_what_is_no_string_is_refused() {
    let cluster = Cluster::formed(1, "m");
    // `set a 1`, `set b x` with an expiry, `rpush l x`, of Redis 6, without a checksum.
    let dump = b"REDIS0009\xfe\x00\xfb\x03\x01\x00\x01a\xc0\x01\xfc\x01\x02\x03\x04\x05\x06\x07\x08\x00\x01b\x01x\
                 \x01\x01l\x01\x01x\xff\x00\x00\x00\x00\x00\x00\x00\x00";
    let file = cluster.scratch.path("dump.rdb");
    std::fs::write(&file, dump).expect("it is writable");
    let path = file.display().to_string();
    let said = cluster.run(&["import", &path]);
    expect(&said, 1, "imported: 2 rows", "keys that are no strings were not imported: 1 of type list (as l)");
    assert!(said.err.contains("keys with an expiry time: 1"), "{said:?}");
    expect(&cluster.run(&["import", &path, "--strings-only"]), 0, "imported: 2 rows", "1 of type list");
    assert_eq!(cluster.run(&["get", "a"]).out, "1");
    std::fs::write(&file, &dump[..dump.len() - 12]).expect("it is writable");
    expect(&cluster.run(&["import", &path]), 1, "", "the file is cut off");
}
