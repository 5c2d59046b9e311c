//! The history file: what is written is read back, what is wrong is named with its line.

use super::super::build::Builder;
use super::super::event::{Call, Event, Output, Status, Text, bytes_of, text_of};
use super::super::generate::{Shape, events};
use super::super::history::{History, Kind};
use super::super::read::{parse, read};
use super::super::record::{Answer, Recorder};
use super::super::write::write;

fn load(text: &str) -> Result<History, String> {
    let mut builder = Builder::default();
    read("h", text.as_bytes(), |event| builder.push(&event)).map_err(|wrong| wrong.to_string())?;
    builder.finish()
}

#[test]
fn every_event_is_read_as_it_was_written() {
    let shape =
        Shape { many: 100, stale: 50, refused: 50, unanswered: 50, repeats: 100, changes: 50, ..Shape::default() };
    for event in events(&Shape { replicas: 2, coordinators: 50, ..shape }) {
        let mut line = Vec::new();
        write(&mut line, &event).expect("a Vec takes all");
        let text = String::from_utf8_lossy(&line).into_owned();
        assert_eq!(parse(&line).unwrap_or_else(|wrong| panic!("{wrong:?}: {text}")), event, "{text}");
    }
}

#[test]
fn a_head_says_how_the_cluster_was_set_and_a_log_line_its_ballot() {
    let line = r#"{"e":"head","v":1,"commit":"c0","seed":"7","clock":"mono_ns","reads":"quorum","speculation":false,"state":[]}"#;
    let Event::Head(head) = parse(line.as_bytes()).expect("well-formed") else { panic!("a head") };
    assert_eq!((&*head.reads, head.speculation), (&b"quorum"[..], Some(false)));
    let mut written = Vec::new();
    write(&mut written, &Event::Head(head)).expect("a Vec takes all");
    assert_eq!(String::from_utf8_lossy(&written).trim_end(), line);
    let line = r#"{"e":"log","p":4,"r":2,"i":9,"x":1,"b":[3,2],"do":"noop","hit":true}"#;
    let Event::Log(entry) = parse(line.as_bytes()).expect("well-formed") else { panic!("a log line") };
    assert_eq!((entry.replica, entry.ballot), (2, Some((3, 2))));
    let mut written = Vec::new();
    write(&mut written, &Event::Log(entry)).expect("a Vec takes all");
    assert_eq!(String::from_utf8_lossy(&written).trim_end(), line);
}

#[test]
fn the_lines_of_the_specification_are_read() {
    let text = r#"
        {"e":"head","v":1,"commit":"..","seed":"..","clock":"mono_ns","reads":"quorum","speculation":true,"state":[]}
        {"e":"inv","id":17,"at":1200345,"c":3,"n":41,"op":"put","k":"a7","v":"3.41"}
        {"e":"ret","id":17,"at":1201990,"st":"ok","out":"2.9","pos":[[4,8801,2]]}
        {"e":"inv","id":18,"at":1201991,"c":5,"n":7,"op":"range","lo":"a0","hi":"c0"}
        {"e":"ret","id":18,"at":1207720,"st":"ok","out":[["a7","3.41"]],"pos":[[4,8803,0],[6,512,3]],"tk":[2,1,57]}
        {"e":"fault","at":1203000,"do":"cut","who":"n1>n2"}
        {"e":"log","p":4,"r":1,"i":8801,"x":2,"b":[3,2],"do":"cmd","c":3,"n":41,"op":"put","k":"a7","v":"3.41","hit":true}
        {"e":"log","p":4,"r":1,"i":8803,"x":0,"b":[3,2],"do":"place","tk":[2,1,57],"prev":[2,1,55],"hit":true}
        {"e":"log","p":9,"r":1,"i":0,"x":0,"do":"born","from":[[4,9120,0]],"lo":"k0","hi":null}
    "#;
    let history = load(text).expect("well-formed");
    assert_eq!((history.operations.len(), history.log.len(), history.faults.len()), (2, 3, 1));
    assert_eq!(history.pairs(&history.operations[1]).len(), 1);
    assert_eq!(history.ticket(&history.operations[1]).map(|ticket| ticket.to_string()), Some("~2.57".into()));
}

#[test]
fn mistakes_are_named_with_line_and_column() {
    let inv = "{\"e\":\"inv\",\"id\":1,\"at\":5,\"c\":1,\"n\":1,\"op\":\"get\",\"k\":\"a\"}\n";
    for (text, wanted) in [
        ("{\"e\":\"inv\"", "h: line 1: column 11: expected a comma or the end of the object"),
        ("\n\n{\"e\":\"what\"}", "h: line 3: column 1: expected \"e\" to be head, inv, ret, fault, log or digest"),
        ("{\"e\":\"head\",\"v\":2}", "h: line 1: column 1: expected \"v\":1: this program reads no other version"),
        ("{\"e\":\"inv\",\"id\":-1}", "h: line 1: column 17: expected a number without sign or fraction"),
        (&format!("{inv}{inv}"), "h: line 2: operation 1 is invoked twice"),
        (
            "{\"e\":\"ret\",\"id\":7,\"at\":1,\"st\":\"ok\"}",
            "h: line 1: operation 7 is answered but was not invoked above",
        ),
        (
            &format!("{inv}{{\"e\":\"ret\",\"id\":1,\"at\":4,\"st\":\"ok\"}}"),
            "h: line 2: operation 1 is answered before it was invoked",
        ),
        (
            &format!("{inv}{{\"e\":\"ret\",\"id\":1,\"at\":9,\"st\":\"ok\",\"out\":[[\"a\",\"b\"]]}}"),
            "h: line 2: the answer to operation 1, a get, must be a value or null",
        ),
        ("{\"e\":\"log\",\"p\":4294967296}", "h: line 1: column 26: expected a number below 2^32"),
    ] {
        assert_eq!(load(text).expect_err(text), wanted, "{text}");
    }
}

#[test]
fn a_full_answer_of_a_limited_range_covers_its_pairs_only() {
    let bounds = |more: &str, out: &str| {
        let text = format!(
            "{{\"e\":\"inv\",\"id\":1,\"at\":5,\"c\":1,\"n\":1,\"op\":\"range\",\"lo\":\"a\",\"hi\":\"z\"{more}}}\n\
             {{\"e\":\"ret\",\"id\":1,\"at\":6,\"st\":\"ok\",\"out\":{out}}}"
        );
        let history = load(&text).expect("well-formed");
        let range = &history.operations[0];
        let last = (range.step.key..range.high).last().map_or(String::new(), |key| history.key(key));
        (history.key(range.step.key), last, history.impossible.len())
    };
    let pairs = "[[\"c\",\"1\"],[\"d\",\"2\"]]";
    assert_eq!(bounds("", pairs), ("a".into(), "d".into(), 0));
    assert_eq!(bounds(",\"limit\":3", pairs), ("a".into(), "d".into(), 0));
    assert_eq!(bounds(",\"limit\":2", pairs), ("a".into(), "d".into(), 0));
    assert_eq!(bounds(",\"limit\":2,\"rev\":true", pairs), ("c".into(), "d".into(), 0));
    assert_eq!(bounds(",\"limit\":1", pairs).2, 1, "more than was asked for");
    assert_eq!(bounds("", "[[\"d\",\"1\"],[\"c\",\"2\"]]").2, 1, "not in key order");
    assert_eq!(bounds("", "[[\"z\",\"1\"]]").2, 1, "out of bounds");
}

#[test]
fn bytes_survive_whether_they_are_text_or_not() {
    for bytes in [&b"a7"[..], b"", b"0x", b"0x6b", b"0xzz", "\u{e9}\u{1f333}\"\\\n\0".as_bytes(), &[0xff, 0, 7]] {
        let mut line = Vec::new();
        let event = Event::Head(super::super::event::Head {
            state: vec![(Text::Borrowed(bytes), Text::Borrowed(b"v"))],
            ..Default::default()
        });
        write(&mut line, &event).expect("a Vec takes all");
        assert_eq!(parse(&line).expect("well-formed"), event);
        assert_eq!(&*bytes_of(Text::Owned(text_of(bytes).into_owned().into_bytes())), bytes);
    }
    // Bytes order keys, not the letters that stand for them.
    let text = "{\"e\":\"head\",\"v\":1,\"state\":[[\"0xff\",\"1\"],[\"a\",\"2\"]]}";
    let history = load(text).expect("well-formed");
    assert_eq!((history.key(0), history.key(1)), ("a".into(), "0xff".into()));
}

#[test]
fn a_recorded_run_is_read_back() {
    let path = std::env::temp_dir().join(format!("coppice-record-{}", std::process::id()));
    let recorder = Recorder::create(&path, Default::default()).expect("a file can be made");
    let key = || Text::Borrowed(&b"a"[..]);
    let put = recorder.invoke(1, 1, Call::Put { key: key(), value: Text::Borrowed(b"1.1") }, false).expect("written");
    let get = recorder.invoke(2, 1, Call::Get { key: key() }, false).expect("written");
    recorder.fault("kill", "n1").expect("written");
    let value = Output::Value(Some(Text::Borrowed(&b"1.1"[..])));
    let answer = Answer { status: Status::Ok, output: value, positions: Vec::new(), ticket: None };
    recorder.answer(get, answer).expect("written");
    recorder.answer(put, Answer::refused()).expect("written");
    recorder.finish().expect("written");
    let history = History::load(&[path.display().to_string()]).expect("well-formed");
    std::fs::remove_file(&path).expect("it is there");
    assert_eq!(history.operations.len(), 2);
    assert!(history.operations[1].is_ok() && history.operations[1].kind() == Kind::Get);
    assert_eq!(history.operations[0].status, Some(Status::No));
}
