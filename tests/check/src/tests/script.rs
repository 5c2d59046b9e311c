//! Histories as a few lines of text, for tests that read like a story.
//!
//! `c1 10 20 put a=1.1 -> - @ p1#1` is an operation of client 1, invoked at 10, answered at 20, with its answer and
//! positions; without `->` it is unanswered. `log p1: Q2 put:1.1 Q1` is a log, one instance per entry: commands by the
//! value that they write (or `op:id`), tickets by number. Keys a to i belong to p1, j to r to p2, s to z to p3.

use super::super::history::History;

/// Parses and builds a history. Panics on mistakes of the test.
pub fn history(script: &str) -> History {
    history_with(script, "")
}

/// The same with further lines of JSON.
pub fn history_with(script: &str, more: &str) -> History {
    let text = json(script) + more;
    let mut builder = super::super::build::Builder::default();
    super::super::read::read("script", text.as_bytes(), |event| builder.push(&event))
        .expect("a script without mistakes");
    builder.finish().expect("a script without contradictions")
}

/// The history file of a script.
pub fn json(script: &str) -> String {
    let mut out = String::from("{\"e\":\"head\",\"v\":1}\n");
    let mut commands: Vec<(String, String)> = Vec::new();
    for (id, line) in script.lines().map(str::trim).filter(|line| line.starts_with('c')).enumerate() {
        operation(&mut out, &mut commands, id as u64 + 1, line);
    }
    for line in script.lines().map(str::trim).filter_map(|line| line.strip_prefix("log p")) {
        log(&mut out, &commands, line);
    }
    out
}

fn operation(out: &mut String, commands: &mut Vec<(String, String)>, id: u64, line: &str) {
    let (call, answer) = match line.split_once(" -> ") {
        Some((call, answer)) => (call, Some(answer)),
        None => (line, None),
    };
    let words: Vec<&str> = call.split_whitespace().collect();
    let (client, at) = (&words[0][1..], words[1]);
    let (end, rest) = if answer.is_some() { (words[2], &words[3..]) } else { ("", &words[2..]) };
    let fields = match rest[0] {
        "range" => {
            let (low, high) = rest[1].split_once("..").expect("low..high");
            let high = if high.is_empty() { "null".into() } else { format!("\"{high}\"") };
            format!("\"op\":\"range\",\"lo\":\"{low}\",\"hi\":{high}")
        }
        name => {
            let (key, value) = rest[1].split_once('=').unwrap_or((rest[1], ""));
            let (old, value) = value.split_once('>').unwrap_or(("", value));
            let field = |name: &str, text: &str| match text {
                "" => String::new(),
                text => format!(",\"{name}\":\"{text}\""),
            };
            format!("\"op\":\"{name}\",\"k\":\"{key}\"{}{}", field("old", old), field("v", value))
        }
    };
    let mark = rest[1].rsplit(['=', '>']).next().unwrap_or("").to_string();
    commands.push((mark, format!("\"c\":{client},\"n\":{id},{fields}")));
    out.push_str(&format!("{{\"e\":\"inv\",\"id\":{id},\"at\":{at},\"c\":{client},\"n\":{id},{fields}}}\n"));
    let Some(answer) = answer else { return };
    let (result, places) = answer.split_once(" @ ").unwrap_or((answer, ""));
    out.push_str(&format!(
        "{{\"e\":\"ret\",\"id\":{id},\"at\":{end},{}{}}}\n",
        result_of(result.trim()),
        positions(places)
    ));
}

fn result_of(result: &str) -> String {
    let value = |text: &str| if text == "-" { "null".to_string() } else { format!("\"{text}\"") };
    let output = match result {
        "refused" => return "\"st\":\"no\"".into(),
        _ if result.starts_with('[') => {
            let pairs = result.trim_matches(['[', ']']).split_whitespace().map(|pair| {
                let (key, value) = pair.split_once('=').expect("key=value");
                format!("[\"{key}\",\"{value}\"]")
            });
            format!("[{}]", pairs.collect::<Vec<_>>().join(","))
        }
        _ if result.starts_with("done ") => format!("[true,{}]", value(&result[5..])),
        _ if result.starts_with("not ") => format!("[false,{}]", value(&result[4..])),
        _ => value(result),
    };
    format!("\"st\":\"ok\",\"out\":{output}")
}

/// `p1#1 p2#3.1 ~2`; an index that is left out is 0.
fn positions(places: &str) -> String {
    let mut list = Vec::new();
    let mut ticket = String::new();
    for place in places.split_whitespace() {
        if let Some(number) = place.strip_prefix('~') {
            ticket = format!(",\"tk\":[1,1,{number}]");
        } else {
            let (partition, instance) = place[1..].split_once('#').expect("p1#1");
            let (instance, index) = instance.split_once('.').unwrap_or((instance, "0"));
            list.push(format!("[{partition},{instance},{index}]"));
        }
    }
    if list.is_empty() { String::new() } else { format!(",\"pos\":[{}]{ticket}", list.join(",")) }
}

fn log(out: &mut String, commands: &[(String, String)], line: &str) {
    let (partition, entries) = line.split_once(':').expect("p1: ..");
    let (low, high) =
        [("\"\"", "\"j\""), ("\"j\"", "\"s\""), ("\"s\"", "null")][partition.parse::<usize>().unwrap_or(1) - 1];
    let start = format!("{{\"e\":\"log\",\"p\":{partition},\"r\":1");
    out.push_str(&format!("{start},\"i\":0,\"x\":0,\"do\":\"born\",\"from\":[],\"lo\":{low},\"hi\":{high}}}\n"));
    let mut last = "null".to_string();
    for (index, entry) in entries.split_whitespace().enumerate() {
        let instance = index + 1;
        let (entry, hit) = entry.strip_suffix('!').map_or((entry, true), |entry| (entry, false));
        let what = match entry.strip_prefix('Q') {
            Some(number) => {
                let ticket = format!("[1,1,{number}]");
                let what = format!("\"do\":\"place\",\"tk\":{ticket},\"prev\":{last}");
                last = ticket;
                what
            }
            None => {
                let (_, fields) = commands.iter().find(|(mark, _)| mark == entry).expect("a command of the script");
                format!("\"do\":\"cmd\",{fields}")
            }
        };
        out.push_str(&format!("{start},\"i\":{instance},\"x\":0,{what},\"hit\":{hit}}}\n"));
    }
}
