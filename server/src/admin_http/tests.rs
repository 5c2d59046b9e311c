//! The endpoint over a real socket, asked by hand-written HTTP.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::*;

fn admin(reasons: &'static [&'static str]) -> Admin {
    Admin {
        metrics: metrics::Node::new(2),
        status: ask(|| json!({ "v": 1, "healthy": true })),
        live: Arc::new(|_| Box::pin(async { Ok(ClusterLive::default()) })),
        nodes: Arc::new(|| vec!["127.0.0.1:7403".to_owned(), "n2.example:7403".to_owned()]),
        readiness: ask(move || reasons.iter().map(|reason| (*reason).to_owned()).collect()),
        config: ask(|| json!({ "v": 1, "tls.key": "set" })),
        hosts: Hosts::new(["test"]),
        access: Arc::new(Arc::default),
    }
}

fn serve(admin: Admin) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    Server::start(listener, admin).expect("the endpoint starts")
}

/// Sends raw bytes and returns all that comes back until the server closes.
fn exchange(server: &Server, request: &str) -> String {
    let mut stream = TcpStream::connect(server.address()).expect("connect");
    stream.set_read_timeout(Some(Duration::from_secs(120))).expect("set a timeout");
    stream.write_all(request.as_bytes()).expect("send");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("read the answer");
    answer
}

/// Status code, header lines and body of a GET.
fn fetch(server: &Server, path: &str) -> (u16, String, String) {
    let answer = exchange(server, &format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n"));
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status code");
    (code, head.to_owned(), body.to_owned())
}

#[test]
fn every_path_of_the_index_answers() {
    let server = serve(admin(&[]));
    let (code, _, index) = fetch(&server, "/");
    assert_eq!(code, 200);
    assert!(index.starts_with(concat!("coppice ", env!("CARGO_PKG_VERSION"))));
    let paths: Vec<&str> = index.lines().skip(1).filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(paths, ["/livez", "/readyz", "/metrics", "/status", "/config", "/ui"]);
    for path in paths {
        assert_eq!(fetch(&server, path).0, 200, "{path}");
    }
}

#[test]
fn metrics_come_as_they_are_asked_for() {
    let server = serve(admin(&[]));
    let (code, head, body) = fetch(&server, "/metrics");
    assert_eq!(code, 200);
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{head}");
    assert!(head.contains("vary: Accept"), "{head}");
    assert!(body.contains("# TYPE coppice_build_info gauge\ncoppice_build_info{version="), "{body}");
    let request = "GET /metrics HTTP/1.1\r\nhost: test\r\naccept: application/openmetrics-text;version=1.0.0,\
                   text/plain;version=0.0.4;q=0.5\r\nconnection: close\r\n\r\n";
    let answer = exchange(&server, request);
    let content_type = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n";
    assert!(answer.contains(content_type), "{answer}");
    assert!(answer.contains("# TYPE coppice_build info\ncoppice_build_info{version="), "{answer}");
    assert!(answer.ends_with("# EOF\n"));
}

#[test]
fn status_and_config_are_json() {
    let server = serve(admin(&[]));
    let (_, head, body) = fetch(&server, "/status");
    assert!(head.contains("content-type: application/json"), "{head}");
    assert_eq!(body, r#"{"healthy":true,"v":1}"#);
    assert_eq!(fetch(&server, "/config").2, r#"{"tls.key":"set","v":1}"#);
}

#[test]
fn a_node_that_is_not_ready_says_why() {
    let server = serve(admin(&["p2 has no confirmed leader", "p3 is 40 instances behind"]));
    let (code, _, body) = fetch(&server, "/readyz");
    assert_eq!(code, 503);
    let answer: Value = serde_json::from_str(&body).expect("json");
    assert_eq!(answer["ready"], false);
    assert_eq!(answer["reasons"][1], "p3 is 40 instances behind");
    let (code, _, body) = fetch(&server, "/readyz?verbose");
    assert_eq!((code, body.as_str()), (503, "p2 has no confirmed leader\np3 is 40 instances behind\n"));
}

#[test]
fn a_lost_quorum_makes_a_node_not_ready_but_it_stays_live() {
    let server = serve(admin(&["p2 has no confirmed leader"]));
    assert_eq!(fetch(&server, "/livez"), (200, fetch(&server, "/livez").1, "ok\n".to_owned()));
}

#[test]
fn an_unknown_path_names_the_known_ones_and_nothing_can_be_posted() {
    let server = serve(admin(&[]));
    let (code, _, body) = fetch(&server, "/nope");
    assert_eq!(code, 404);
    assert!(body.contains("/metrics"));
    let posted =
        exchange(&server, "POST /config HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}");
    assert!(posted.starts_with("HTTP/1.1 405 "), "{posted}");
}

/// A page whose name was made to resolve to this machine read status, addresses and configuration.
#[test]
fn a_request_under_a_name_that_is_not_the_nodes_is_turned_away() {
    let server = serve(admin(&[]));
    for path in ["/", "/status", "/config", "/metrics", "/livez", "/nope"] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: page.example.com\r\nconnection: close\r\n\r\n");
        let answer = exchange(&server, &request);
        assert!(answer.starts_with("HTTP/1.1 421 ") && answer.contains("advertise.admin"), "{answer}");
    }
    let answer = exchange(&server, "GET /livez HTTP/1.1\r\nhost: 127.0.0.1:7402\r\nconnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn garbage_is_answered_and_the_endpoint_lives_on() {
    let server = serve(admin(&[]));
    let answer = exchange(&server, "\u{1}\u{2} what is this\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert_eq!(fetch(&server, "/livez").0, 200);
}

#[test]
fn forgotten_connections_give_their_places_back() {
    let server = serve(admin(&[]));
    for _ in 0..3 {
        let idle: Vec<_> = (0..64).map(|_| TcpStream::connect(server.address()).expect("connect")).collect();
        drop(idle);
    }
    assert_eq!(fetch(&server, "/livez").0, 200);
}

/// 64 connections that each sent a header line every ten seconds kept `/livez` unanswered: every byte renewed the time
/// that a connection has.
#[test]
fn requests_that_drip_in_give_their_places_up() {
    let server = serve(admin(&[]));
    let mut drips: Vec<_> = (0..64).map(|_| TcpStream::connect(server.address()).expect("connect")).collect();
    let begun = Instant::now();
    let address = server.address();
    let asked = std::thread::spawn(move || {
        let mut stream = TcpStream::connect(address).expect("connect");
        stream.write_all(b"GET /livez HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").expect("send");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    });
    let head = b"GET / HTTP/1.1\r\n";
    let mut bytes = head.iter().chain(b"x: y\r\n".iter().cycle());
    while !asked.is_finished() && begun.elapsed() < Duration::from_secs(60) {
        let byte = [*bytes.next().expect("it goes on for ever")];
        // Those that were closed are gone.
        drips.retain_mut(|drip| drip.write_all(&byte).is_ok());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(asked.is_finished(), "no answer beside {} requests that drip in", drips.len());
    let answer = asked.join().expect("no panic").expect("an answer");
    // By now the worker threads of this test, which never turn, stand still.
    assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
}

#[test]
fn a_stopped_endpoint_gives_its_port_back() {
    let server = serve(admin(&[]));
    let address = server.address();
    assert_eq!(fetch(&server, "/livez").0, 200);
    drop(server);
    assert!(TcpStream::connect(address).is_err());
}

/// Whoever asked for the first time was told that all is well, however long a thread had stood still.
#[test]
fn the_first_question_finds_a_thread_that_stands_still() {
    let admin = admin(&[]);
    let (turning, standing) = (admin.metrics.worker(0), admin.metrics.worker(1));
    standing.turn();
    let server = serve(admin);
    let until = Instant::now() + STALL_MAX + WATCH + STALL_GRACE;
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let turns = std::thread::spawn(move || {
        while stopped.recv_timeout(Duration::from_millis(10)).is_err() {
            turning.turn();
        }
    });
    standing.turn();
    std::thread::sleep(until - Instant::now());
    let (code, _, body) = fetch(&server, "/livez");
    assert_eq!((code, body.as_str()), (503, r#"{"live":false,"stalled_workers":[1],"v":1}"#));
    standing.turn();
    assert_eq!(fetch(&server, "/livez").0, 200, "it turns again");
    _ = stop.send(());
    turns.join().expect("no panic");
}

#[test]
fn a_thread_that_stands_still_is_found_and_one_that_turns_is_not() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut turns = Turns::new(vec![5, 5], start);
    assert!(turns.stalled(&[5, 6], at(4)).is_empty());
    assert_eq!(turns.stalled(&[5, 6], at(5)), [0]);
    assert_eq!(turns.stalled(&[5, 6], at(9)), [0, 1]);
    assert!(turns.stalled(&[6, 7], at(60)).is_empty());
}

#[test]
fn the_page_and_its_events_are_served() {
    let server = serve(admin(&[]));
    let (code, head, body) = fetch(&server, "/ui");
    assert_eq!(code, 200);
    assert!(head.contains("connect-src 'self' http://127.0.0.1:7403 http://n2.example:7403;"), "{head}");
    assert!(body.contains("data-role=\"node\" data-nodes=\"127.0.0.1:7403 n2.example:7403\""), "{body}");
    assert!(fetch(&server, "/ui/page.js").1.contains("content-type: text/javascript"));
    assert_eq!(fetch(&server, "/ui/nothing.js").0, 404);
    // Two events, a second apart; then the page is closed.
    let mut stream = TcpStream::connect(server.address()).expect("connect");
    stream.set_read_timeout(Some(Duration::from_secs(120))).expect("set a timeout");
    stream.write_all(b"GET /ui/events HTTP/1.1\r\nhost: test\r\ncoppice-page: 1\r\n\r\n").expect("send");
    let (mut told, mut buffer) = (String::new(), [0; 4096]);
    while told.matches("data: {").count() < 2 {
        let count = stream.read(&mut buffer).expect("an event");
        assert!(count > 0, "{told}");
        told.push_str(std::str::from_utf8(&buffer[..count]).expect("text"));
    }
    assert!(told.contains("content-type: text/event-stream\r\n"), "{told}");
}

#[test]
fn a_page_of_another_site_reads_no_events_and_nodes_may() {
    let server = serve(admin(&[]));
    let ask = |method: &str, origin: &str| {
        let lines = format!("host: test\r\norigin: {origin}\r\nconnection: close\r\n\r\n");
        exchange(&server, &format!("{method} /ui/events HTTP/1.1\r\n{lines}"))
    };
    for method in ["GET", "OPTIONS"] {
        let answer = ask(method, "http://example.com");
        assert!(answer.starts_with("HTTP/1.1 403 ") && !answer.contains("access-control-allow-origin"), "{answer}");
    }
    let answer = ask("OPTIONS", "http://n2.example:7403");
    assert!(answer.starts_with("HTTP/1.1 204 "), "{answer}");
    for line in [
        "access-control-allow-origin: http://n2.example:7403\r\n",
        "access-control-allow-methods: GET\r\n",
        "access-control-allow-headers: authorization, coppice-page\r\n",
        "vary: Origin\r\n",
    ] {
        assert!(answer.contains(line), "{line} {answer}");
    }
    // No other path is for pages from elsewhere.
    assert!(
        !exchange(
            &server,
            "GET /status HTTP/1.1\r\nhost: test\r\norigin: http://n2.example:7403\r\nconnection: close\r\n\r\n"
        )
        .contains("access-control")
    );
}

/// Pictures on a page of another site, which browsers ask for without an origin, took every place.
#[test]
fn what_a_page_of_another_site_embeds_takes_no_place() {
    let server = serve(admin(&[]));
    let mut stream = TcpStream::connect(server.address()).expect("connect");
    stream.set_read_timeout(Some(Duration::from_secs(120))).expect("set a timeout");
    stream.write_all(b"GET /ui/events HTTP/1.1\r\nhost: test\r\n\r\n").expect("send");
    let mut answer = [0; 13];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(std::str::from_utf8(&answer), Ok("HTTP/1.1 403 "));
}

#[test]
fn a_node_that_has_nothing_to_show_says_why() {
    let live: AskLive = Arc::new(|_| Box::pin(async { Err(vec!["recovering: reading the log, 40 %".to_owned()]) }));
    let server = serve(Admin { live, ..admin(&[]) });
    let mut stream = TcpStream::connect(server.address()).expect("connect");
    stream.set_read_timeout(Some(Duration::from_secs(120))).expect("set a timeout");
    stream.write_all(b"GET /ui/events HTTP/1.1\r\nhost: test\r\ncoppice-page: 1\r\n\r\n").expect("send");
    let (mut told, mut buffer) = (String::new(), [0; 4096]);
    while !told.contains("recovering: reading the log, 40 %") {
        let count = stream.read(&mut buffer).expect("an event");
        assert!(count > 0, "{told}");
        told.push_str(std::str::from_utf8(&buffer[..count]).expect("text"));
    }
}
