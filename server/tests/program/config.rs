//! What needs no cluster: settings, completions, manuals, mistakes on the command line.

use crate::support::{Scratch, run, run_with_input};

#[test]
fn the_default_settings_file_is_a_good_one() {
    let scratch = Scratch::new("config");
    let file = scratch.path("coppice.toml");
    let default = run(&["config", "default"]);
    assert_eq!(default.code, 0);
    std::fs::write(&file, default.out).expect("it is writable");
    let check = run(&["config", "check", file.to_str().expect("text"), "-o", "table"]);
    assert_eq!((check.code, check.err.as_str()), (0, ""), "{check:?}");
}

#[test]
fn a_misspelled_setting_is_named_with_the_nearest_in_four_lines() {
    let scratch = Scratch::new("config");
    let file = scratch.path("coppice.toml");
    std::fs::write(&file, "[log]\nflsh = \"fdatasync\"\n").expect("it is writable");
    let said = run(&["config", "check", file.to_str().expect("text")]);
    assert_eq!((said.code, said.out.as_str()), (2, ""));
    let lines: Vec<&str> = said.err.lines().collect();
    assert_eq!(lines[0], "error: config check: unknown setting `log.flsh`; did you mean `log.flush`?");
    assert_eq!(lines[1], format!("where: file {}", file.display()));
    assert_eq!(lines.len(), 4);
}

#[test]
fn settings_say_where_they_come_from() {
    let said = run(&["config", "show", "--origin", "--name", "alpha", "-o", "table"]);
    assert_eq!(said.code, 0, "{said:?}");
    let line =
        |key: &str| said.out.lines().find(|line| line.starts_with(key)).expect("every setting is shown").to_owned();
    assert!(line("name ").ends_with("# flag --name"), "{}", line("name "));
    assert!(line("log.flush ").ends_with("# default"));
    let json: serde_json::Value = serde_json::from_str(&run(&["config", "show", "-o", "json"]).out).expect("json");
    assert_eq!(json["v"], 1);
}

#[test]
fn mistakes_exit_2_and_are_objects_if_json_was_asked_for() {
    let said = run(&["gte", "apple"]);
    assert_eq!((said.code, said.out.as_str()), (2, ""));
    assert!(said.err.starts_with("error: unrecognized subcommand 'gte'\nwhere: "), "{}", said.err);
    let said = run(&["get", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&said.err).expect("one object");
    assert_eq!((json["error"]["exit"].as_i64(), json["error"]["code"].as_str()), (Some(2), Some("usage")));
}

#[test]
fn without_any_node_a_verb_says_so_exits_3_and_names_the_demo() {
    // Port 1 is nobody's.
    let said = run(&["--endpoints", "127.0.0.1:1", "get", "apple"]);
    assert_eq!((said.code, said.out.as_str()), (3, ""), "{said:?}");
    assert!(said.err.starts_with("error: get: no node answered\nwhere: 127.0.0.1:1 "), "{}", said.err);
    assert_eq!(said.err.lines().count(), 4);
}

#[test]
fn completions_and_manuals_are_printed() {
    for words in [["completions", "bash"], ["completions", "zsh"], ["completions", "fish"], ["man", "scan"]] {
        let said = run(&words);
        assert_eq!((said.code, said.err.as_str()), (0, ""));
        assert!(said.out.len() > 1000, "{words:?}");
    }
    assert_eq!(run(&["man", "scam"]).code, 4);
}

#[test]
fn stdin_is_one_argument_only() {
    let said = run_with_input(&["--endpoints", "127.0.0.1:1", "put", "-", "-"], b"x");
    assert_eq!(said.code, 2);
    assert!(said.err.contains("stdin can be only one argument"), "{}", said.err);
}
