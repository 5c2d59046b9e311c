//! The client over real sockets, against a server that behaves well, and one that does not.

mod fake;
mod model;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use coppice_btree::{OpResult, Value};
use coppice_client::error::{Cause, Reason};
use coppice_client::wire::ClusterId;
use coppice_client::{Admin, Callback, Cas, Client, Config, Error, Load, Operation, Range, ReadMode, blocking};
use fake::{Manner, Server};

fn value(text: &str) -> Option<Value> {
    Some(Value::from(text))
}

fn reason<T: std::fmt::Debug>(result: Result<T, Error>) -> Reason {
    result.unwrap_err().reason().expect("a sure failure").clone()
}

/// How long anything may take that does not take for ever, on any machine, however busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// Calls that end with an answer, unless there is none.
fn patient() -> Config {
    Config { timeout: PATIENCE, ..Config::default() }
}

async fn connect(server: &Server) -> Client {
    Client::connect_with([server.address.clone()], patient()).await.unwrap()
}

/// Waits until `holds`, `bound` at most.
async fn wait_until(what: &str, bound: Duration, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < bound, "waited {bound:?} in vain until {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// What must end by a deadline of its own, and not only when somebody loses patience.
async fn ends<F: Future>(what: F) -> F::Output {
    tokio::time::timeout(PATIENCE, what).await.expect("it ends")
}

/// A deadline that is to pass, and before it something that takes a busy machine a while.
const DEADLINES: [Duration; 3] = [Duration::from_millis(300), Duration::from_secs(3), Duration::from_secs(30)];

/// A port that nobody listens on, and that nobody is given while the socket is there.
fn closed() -> (tokio::net::TcpSocket, String) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap().to_string();
    (socket, address)
}

async fn connected(splits: &[&'static str]) -> (Server, Client) {
    let server = Server::start(splits).await;
    let client = connect(&server).await;
    (server, client)
}

async fn all_pairs(client: &Client, range: Range) -> Vec<(String, String)> {
    let mut stream = client.range(range).await.unwrap();
    let mut pairs = Vec::new();
    while let Some((key, value)) = stream.next().await.unwrap() {
        pairs.push((String::from_utf8_lossy(key).into(), String::from_utf8_lossy(value).into()));
    }
    pairs
}

#[tokio::test]
async fn every_operation_answers_what_was_there_before() {
    let (_server, client) = connected(&["m"]).await;
    assert_eq!(client.put("a", "1").await.unwrap().output, None);
    assert_eq!(client.put("a", "2").await.unwrap().output, value("1"));
    assert_eq!(client.insert("a", "3").await.unwrap().output, value("2"));
    assert_eq!(client.insert("b", "1").await.unwrap().output, None);
    let cas = client.cas("a", "2", "4").await.unwrap();
    assert_eq!(cas.output, Cas { done: true, current: value("2") });
    let failed = client.cas("a", "2", "5").await.unwrap();
    assert_eq!(failed.output, Cas { done: false, current: value("4") });
    assert!(failed.position > cas.position);
    assert_eq!(client.delete("b").await.unwrap().output, value("1"));
    assert_eq!(client.delete("b").await.unwrap().output, None);
    assert_eq!(client.get("a").await.unwrap().output, value("4"));
    assert_eq!(client.get_as("zebra", ReadMode::Stale).await.unwrap().output, None);
    let many = [Operation::put("a", "6"), Operation::get("a"), Operation::delete("c")];
    let results = client.many(many).await.unwrap().output.unwrap();
    assert_eq!(results[0], OpResult::Put { previous: value("4") });
    assert_eq!(results[1], OpResult::Get { value: value("6") });
    assert_eq!(results[2], OpResult::Delete { previous: None });
    assert_eq!(reason(client.many([Operation::delete("a"), Operation::delete("z")]).await), Reason::SpansPartitions);
}

#[tokio::test]
async fn loads_are_all_or_nothing() {
    let (_server, client) = connected(&[]).await;
    let pairs = |keys: &[&str]| keys.iter().map(|&key| (Value::from(key), Value::from("x"))).collect::<Vec<_>>();
    assert_eq!(client.load(pairs(&["a", "b", "c"])).await.unwrap().output, Load::Done { pairs: 3 });
    assert_eq!(client.load(pairs(&["0", "b", "d"])).await.unwrap().output, Load::Present { pair: 1 });
    assert_eq!(client.get("d").await.unwrap().output, None);
    assert_eq!(reason(client.load(pairs(&["f", "e"])).await), Reason::Invalid);
    assert_eq!(reason(client.load(Vec::new()).await), Reason::Invalid);
}

#[tokio::test]
async fn ranges_go_both_ways_with_limits_and_without_values() {
    let (server, client) = connected(&["m"]).await;
    server.fill(["a", "b", "c", "d"].iter().map(|key| (key.as_bytes().to_vec(), b"1".to_vec())));
    let keys = |pairs: &[(String, String)]| pairs.iter().map(|pair| pair.0.clone()).collect::<String>();
    assert_eq!(keys(&all_pairs(&client, Range::new("a".."c")).await), "ab");
    assert_eq!(keys(&all_pairs(&client, Range::new("a"..="c").reverse()).await), "cba");
    assert_eq!(all_pairs(&client, Range::new("b".."c").keys_only()).await, [("b".into(), String::new())]);
    assert_eq!(all_pairs(&client, Range::new("c".."a")).await, []);
    let mut page = client.range(Range::new("a".."m").limit(3)).await.unwrap();
    while page.next().await.unwrap().is_some() {}
    assert!(page.is_limited());
    assert_eq!(page.last_key(), Some(&b"c"[..]));
    let rest = Range::new("a".."m").after(page.last_key().unwrap());
    assert_eq!(keys(&all_pairs(&client, rest).await), "d");
    assert_eq!(client.range(Range::new("a".."m").count_only()).await.unwrap().count().await.unwrap(), 4);
}

#[tokio::test]
async fn a_range_over_partitions_is_one_moment_with_a_position_of_each_and_a_ticket_if_one_was_needed() {
    for optimistic_scans in [true, false] {
        a_range_over_partitions_is_one_moment(optimistic_scans).await;
    }
}

async fn a_range_over_partitions_is_one_moment(optimistic_scans: bool) {
    let server = Server::start(&["g", "n"]).await;
    let config = Config { optimistic_scans, ..patient() };
    let client = Client::connect_with([server.address.clone()], config).await.unwrap();
    server.fill(('a'..='z').map(|key| (vec![key as u8], b"1".to_vec())));
    let keys = |pairs: Vec<(String, String)>| pairs.into_iter().map(|pair| pair.0).collect::<String>();
    assert_eq!(keys(all_pairs(&client, Range::new("c".."q")).await), "cdefghijklmnop");
    assert_eq!(keys(all_pairs(&client, Range::new("c".."q").reverse()).await), "ponmlkjihgfedc");
    assert_eq!(all_pairs(&client, Range::new("f".."h").keys_only()).await.len(), 2);
    let mut stream = client.range(..).await.unwrap();
    assert_eq!(stream.ticket(), None);
    assert_eq!(stream.count().await.unwrap(), 26);
    assert_eq!(stream.positions().iter().map(|position| position.partition.0).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!((stream.ticket().is_none(), stream.is_limited()), (optimistic_scans, false));
    let mut one = client.range("a".."c").await.unwrap();
    assert_eq!((one.count().await.unwrap(), one.ticket()), (2, None));
}

#[tokio::test]
async fn limits_hold_for_all_parts_of_a_range_together() {
    let (server, client) = connected(&["g", "n"]).await;
    server.fill(('a'..='z').map(|key| (vec![key as u8], b"1".to_vec())));
    let keys = |pairs: Vec<(String, String)>| pairs.into_iter().map(|pair| pair.0).collect::<String>();
    assert_eq!(keys(all_pairs(&client, Range::new("c"..).limit(6)).await), "cdefgh");
    assert_eq!(keys(all_pairs(&client, Range::new("c"..).limit_bytes(12)).await), "cdefgh");
    assert_eq!(keys(all_pairs(&client, Range::new(.."x").reverse().limit(14)).await), "wvutsrqponmlkj");
    for limited in [Range::new("c"..).limit(6), Range::new("c"..).limit_bytes(12)] {
        let mut counted = client.range(limited.clone().count_only()).await.unwrap();
        assert_eq!((counted.count().await.unwrap(), counted.is_limited()), (6, true), "{limited:?}");
        let mut page = client.range(limited.clone()).await.unwrap();
        while page.next().await.unwrap().is_some() {}
        assert_eq!((page.is_limited(), page.last_key(), page.positions().len()), (true, Some(&b"h"[..]), 2));
        let rest = limited.after(page.last_key().unwrap());
        assert_eq!(keys(all_pairs(&client, rest).await), "ijklmn");
    }
    let mut counted = client.range(Range::new("e".."z").count_only()).await.unwrap();
    assert_eq!((counted.count().await.unwrap(), counted.is_limited()), (21, false));
    let mut counted = client.range(Range::new("e".."z").count_only()).await.unwrap();
    assert_eq!(counted.next().await.unwrap(), None);
}

#[tokio::test]
async fn a_slow_reader_of_a_long_query_reads_every_pair_of_every_part_once() {
    let server = Server::start(&["3", "6"]).await;
    server.fill((0..90_000u64).map(|n| (format!("{n:05}").into_bytes(), n.to_be_bytes().to_vec())));
    let config = Config { range_credit: 100_000, ..patient() };
    let client = Client::connect_with([server.address.clone()], config).await.unwrap();
    for reverse in [false, true] {
        let range = if reverse { Range::new(..).reverse() } else { Range::new(..) };
        let mut stream = client.range(range).await.unwrap();
        // Time for the server to send more than it may, if it did; the test holds without.
        tokio::time::sleep(Duration::from_millis(30)).await;
        let mut n = 0;
        while let Some((key, _)) = stream.next().await.unwrap() {
            let expected = if reverse { 89_999 - n } else { n };
            assert_eq!(key, format!("{expected:05}").as_bytes());
            n += 1;
        }
        assert_eq!(n, 90_000);
    }
    // One chunk may overdraw the credit.
    assert!(server.unread_max() <= 100_000 + 300_000, "{}", server.unread_max());
    // Dropped at the first pair, again and again: nothing is left that would be in the way.
    for _ in 0..10 {
        assert!(client.range(..).await.unwrap().next().await.unwrap().is_some());
    }
}

#[tokio::test]
async fn a_stale_range_over_partitions_is_read_piece_by_piece() {
    let (server, client) = connected(&["g", "n"]).await;
    server.fill(('a'..='z').map(|key| (vec![key as u8], b"1".to_vec())));
    let keys = |pairs: Vec<(String, String)>| pairs.into_iter().map(|pair| pair.0).collect::<String>();
    assert_eq!(keys(all_pairs(&client, Range::new("c".."q").stale()).await), "cdefghijklmnop");
    assert_eq!(keys(all_pairs(&client, Range::new("c".."q").stale().reverse()).await), "ponmlkjihgfedc");
    assert_eq!(keys(all_pairs(&client, Range::new("c"..).stale().limit(6)).await), "cdefgh");
    let mut stream = client.range(Range::new(..).stale()).await.unwrap();
    assert_eq!(stream.count().await.unwrap(), 26);
    assert_eq!(stream.positions().iter().map(|position| position.partition.0).collect::<Vec<_>>(), [1, 2, 3]);
    let mut counted = client.range(Range::new("e".."z").stale().count_only()).await.unwrap();
    assert_eq!(counted.count().await.unwrap(), 21);
}

#[tokio::test]
async fn a_slow_reader_of_a_long_range_holds_no_more_than_its_credit() {
    let server = Server::start(&[]).await;
    server.fill((0..200_000u64).map(|n| (n.to_be_bytes().to_vec(), n.to_be_bytes().to_vec())));
    let config = Config { range_credit: 400_000, ..patient() };
    let client = Client::connect_with([server.address.clone()], config).await.unwrap();
    let mut stream = client.range(..).await.unwrap();
    // Time for the server to send more than it may, if it did; the test holds without.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut n = 0u64;
    while let Some((key, value)) = stream.next().await.unwrap() {
        assert_eq!((key, value), (&n.to_be_bytes()[..], &n.to_be_bytes()[..]));
        n += 1;
    }
    assert_eq!(n, 200_000);
    // One chunk may overdraw the credit.
    assert!(server.unread_max() <= 400_000 + 300_000, "{}", server.unread_max());
}

#[tokio::test]
async fn ranges_wait_for_room_on_their_connection() {
    let server = Server::start(&["m"]).await;
    server.fill((0..500u64).map(|n| (format!("a{n:05}").into_bytes(), vec![7; 2_000])));
    server.fill((0..500u64).map(|n| (format!("z{n:05}").into_bytes(), vec![7; 2_000])));
    let config = Config { range_credit: 10_000, range_window: 3, ..patient() };
    let client = Client::connect_with([server.address.clone()], config).await.unwrap();
    let read = |prefix: &'static str| {
        let client = client.clone();
        async move { all_pairs(&client, Range::from(prefix.to_owned()..format!("{prefix}~"))).await.len() }
    };
    let reads: Vec<_> = (0..20).map(|n| tokio::spawn(read(if n % 2 == 0 { "a" } else { "z" }))).collect();
    for read in reads {
        assert_eq!(read.await.unwrap(), 500);
    }
    // Some streamed at the same time, and no more than were allowed.
    assert!((2..=3).contains(&server.ranges_max()), "{}", server.ranges_max());
}

#[tokio::test]
async fn a_dropped_range_makes_room_for_the_next() {
    let (server, _) = connected(&[]).await;
    server.fill((0..100_000u64).map(|n| (n.to_be_bytes().to_vec(), vec![7; 40])));
    let config = Config { range_credit: 100_000, calls_max: 2, ..patient() };
    let client = Client::connect_with([server.address.clone()], config).await.unwrap();
    for _ in 0..20 {
        let mut stream = client.range(..).await.unwrap();
        assert!(stream.next().await.unwrap().is_some());
    }
    assert_eq!(client.get("x").await.unwrap().output, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_together_travels_together() {
    let (server, client) = connected(&["m"]).await;
    let operations =
        (0..5_000).map(|n| Operation::put(format!("{}{n}", if n % 2 == 0 { "a" } else { "z" }).as_str(), "1"));
    let results = client.execute(operations.collect()).await;
    assert!(results.iter().all(|result| matches!(result.as_ref().unwrap().output, OpResult::Put { previous: None })));
    // 5000 commands of about 10 bytes in packs of 8 KiB.
    assert!(server.packs() <= 40, "{} packs", server.packs());
    let gets = (0..5_000).map(|n| Operation::get(format!("{}{n}", if n % 2 == 0 { "a" } else { "z" }).as_str()));
    let results = client.execute(gets.collect()).await;
    assert!(results.iter().all(|result| result.as_ref().unwrap().output == OpResult::Get { value: value("1") }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_share_a_small_client_and_wait_for_room() {
    let server = Server::start(&[]).await;
    let config = Config { calls_max: 8, ..patient() };
    let client = Client::connect_with([server.address.clone()], config).await.unwrap();
    let tasks: Vec<_> = (0..300)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.put(format!("{n}").as_str(), "1").await.unwrap() })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap().output, None);
    }
    assert_eq!(client.range(..).await.unwrap().count().await.unwrap(), 300);
}

#[tokio::test]
async fn callbacks_hear_of_every_command_and_a_full_client_refuses() {
    let server = Server::start(&[]).await;
    let config = Config { calls_max: 100, ..patient() };
    let client = Client::connect_with([server.address.clone()], config).await.unwrap();
    let sum = Arc::new(AtomicU64::new(0));
    let callback: Callback = {
        let sum = Arc::clone(&sum);
        Arc::new(move |tag, outcome| {
            assert!(outcome.is_ok());
            sum.fetch_add(tag, Ordering::SeqCst);
        })
    };
    let mut taken = 0;
    let refused = loop {
        match client.submit(Operation::put("k", "v"), &callback, 1) {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((taken, refused.reason()), (100, Some(&Reason::QueueFull)));
    wait_until("all are heard of", PATIENCE, || sum.load(Ordering::SeqCst) == 100).await;
    assert!(client.submit(Operation::get("k"), &callback, 1).is_ok());
}

#[tokio::test]
async fn whatever_a_node_sends_instead_of_answers_the_command_runs_once() {
    let manners =
        [Manner::Noise, Manner::NoiseLater, Manner::Oversized, Manner::CloseAfterExecution, Manner::WrongAnswer];
    for manner in manners {
        let server = Server::start(&[]).await;
        server.behave(manner, 3);
        let client = connect(&server).await;
        let put = client.put("a", "once").await.unwrap_or_else(|error| panic!("{manner:?}: {error}"));
        assert_eq!(put.output, None, "{manner:?}");
        assert_eq!(server.executions("once"), 1, "{manner:?}");
        assert_eq!(client.get("a").await.unwrap().output, value("once"));
        assert!(server.connections() >= 4, "{manner:?}");
    }
}

#[tokio::test]
async fn a_silent_node_leaves_the_outcome_unknown_and_the_token_finds_it() {
    let server = Server::start(&[]).await;
    server.behave(Manner::NeverAnswers, 1_000);
    let client = connect(&server).await;
    let mut deadlines = DEADLINES.into_iter();
    let (error, unknown) = loop {
        let client = client.with_timeout(deadlines.next().expect("it was never sent in time"));
        match ends(client.put("a", "once")).await.unwrap_err() {
            Error::Unknown(unknown) => break (Error::Unknown(unknown.clone()), unknown),
            // A busy machine may not even send it in time: then it is sure that nothing was done.
            sure => assert_eq!(sure.reason(), Some(&Reason::TimedOut)),
        }
    };
    assert_eq!(unknown.cause, Cause::NoAnswer);
    let token = *error.resume_token().unwrap();
    // Another process, which knows the token and the command.
    server.behave(Manner::Good, 0);
    let other = connect(&server).await;
    let wrong = other.resume(token, Operation::put("a", "twice")).await;
    assert_eq!(reason(wrong), Reason::OtherCommand);
    for _ in 0..3 {
        let answer = other.resume(token, Operation::put("a", "once")).await.unwrap();
        assert_eq!(answer.output, coppice_client::Output::One(OpResult::Put { previous: None }));
    }
    assert_eq!(server.executions("once"), 1);
}

#[tokio::test]
async fn a_half_open_endpoint_does_not_keep_the_others_from_being_found() {
    let silent = Server::start(&[]).await;
    silent.behave(Manner::Silent, 1_000);
    let good = Server::start(&[]).await;
    // Whoever waits for the silent one waits for an hour.
    let hour = Duration::from_secs(3_600);
    let config = Config { timeout: hour, connect_timeout: hour, silence_max: hour, ..Config::default() };
    let endpoints = [silent.address.clone(), good.address.clone()];
    let client = ends(Client::connect_with(endpoints.clone(), config.clone())).await.unwrap();
    ends(client.put("a", "1")).await.unwrap();
    let admin = Admin::new(endpoints, config);
    assert_eq!(ends(admin.status(false)).await.unwrap().node.0, 1);
}

#[tokio::test]
async fn nobody_there_is_said_within_the_timeout_with_what_became_of_each() {
    let (_held, closed) = closed();
    let silent = Server::start(&[]).await;
    silent.behave(Manner::Silent, 1_000);
    let mut deadlines = DEADLINES.into_iter();
    let config = loop {
        let timeout = deadlines.next().expect("nobody was refused in time");
        let config = Config { timeout, ..Config::default() };
        let connecting = Client::connect_with([closed.clone(), silent.address.clone()], config.clone());
        let error = ends(connecting).await.unwrap_err();
        assert_eq!(error.reason(), Some(&Reason::Unreachable));
        let nodes = &error.place().nodes;
        assert_eq!(nodes[0].address, closed);
        assert!(!nodes[1].error.is_empty());
        // A busy machine may not even have been refused by then.
        if nodes[0].error == "refused the connection" {
            break config;
        }
    };
    let admin = Admin::new([closed], config).status(true).await.unwrap_err();
    assert!(matches!(admin, coppice_client::admin::Error::Unreachable(nodes) if nodes.len() == 1), "status");
}

/// A command used to try until its timeout although nobody listened anywhere.
#[tokio::test]
async fn endpoints_that_all_refuse_are_not_tried_until_the_timeout() {
    let ((_held, first), (_also_held, second)) = (closed(), closed());
    let long = Config { timeout: Duration::from_secs(3_600), fail_when_refused: true, ..Config::default() };
    let client = Client::start([first.clone(), second], long.clone());
    for error in [ends(client.get("a")).await.unwrap_err(), ends(client.put("a", "b")).await.unwrap_err()] {
        assert_eq!(error.reason(), Some(&Reason::Unreachable));
        assert!(error.place().nodes.iter().all(|node| node.error == "refused the connection"), "{error}");
    }
    let server = Server::start(&[]).await;
    let client = Client::start([first, server.address.clone()], long);
    ends(client.get("a")).await.expect("one of them answers");
}

#[tokio::test]
async fn another_cluster_is_refused_with_both_ids() {
    let server = Server::start(&[]).await;
    let mut errors = Vec::new();
    for timeout in DEADLINES {
        let config = Config { cluster: Some(ClusterId(7)), timeout, ..Config::default() };
        let error = ends(Client::connect_with([server.address.clone()], config)).await.unwrap_err();
        let error = error.place().nodes[0].error.clone();
        if error.contains(&ClusterId(7).to_string()) && error.contains(&model::CLUSTER.to_string()) {
            return;
        }
        // A busy machine may not even have been greeted by then.
        errors.push(error);
    }
    panic!("{errors:?}");
}

#[tokio::test]
async fn a_slow_server_is_slow_and_not_wrong() {
    let (server, client) = connected(&[]).await;
    client.put("warm", "1").await.unwrap();
    server.delay(Duration::from_millis(30));
    let before = server.packs();
    let operations = (0..100).map(|n| Operation::put(format!("{n}").as_str(), format!("v{n}").as_str())).collect();
    assert!(client.execute(operations).await.iter().all(Result::is_ok));
    // What waits for a slow server travels together, and is not repeated.
    assert!(server.packs() - before <= 20, "{} packs", server.packs() - before);
    assert!((0..100).all(|n| server.executions(&format!("v{n}")) == 1));
}

#[tokio::test]
async fn a_closed_client_leaves_nobody_waiting() {
    let server = Server::start(&[]).await;
    server.behave(Manner::NeverAnswers, 1_000);
    let client = connect(&server).await;
    let (sender, receiver) = mpsc::channel();
    let callback: Callback = Arc::new(move |_, outcome| sender.send(outcome).unwrap());
    client.submit(Operation::put("a", "1"), &callback, 1).unwrap();
    wait_until("it is executed", PATIENCE, || server.executions("1") == 1).await;
    drop(client);
    let mut heard = None;
    wait_until("its caller hears of it", PATIENCE, || {
        heard = receiver.try_recv().ok();
        heard.is_some()
    })
    .await;
    let Some(Err(Error::Unknown(unknown))) = heard else { panic!("it was sent: {heard:?}") };
    assert_eq!(unknown.cause, Cause::Closed);
}

#[tokio::test]
async fn verbs_are_carried_out_or_say_why_not() {
    let server = Server::start(&[]).await;
    let admin = Admin::new([server.address.clone()], patient());
    assert_eq!(admin.set_config("replicas", "3").await, Ok(()));
    let error = admin.set_config("no.such", "3").await.unwrap_err();
    assert_eq!(error.to_string(), "no setting no.such");
    assert_eq!(admin.hello().await.unwrap().cluster, Some(model::CLUSTER));
    assert_eq!(admin.map().await.unwrap().map.unwrap().partitions.len(), 1);
}

/// A setting was said to be certainly not set, exit 3, and was: a node had been asked that answered too late.
#[tokio::test]
async fn a_change_that_a_node_was_asked_for_is_not_called_undone() {
    let hangs = Server::start(&[]).await;
    hangs.behave(Manner::NeverAnswers, u64::MAX);
    let config = || Config { timeout: Duration::from_millis(500), ..patient() };
    let admin = Admin::new([hangs.address.clone()], config());
    let error = admin.set_config("replicas", "3").await.unwrap_err();
    assert!(matches!(&error, coppice_client::admin::Error::Unanswered(nodes) if nodes.len() == 1), "{error:?}");
    let error = admin.config().await.unwrap_err();
    assert!(matches!(&error, coppice_client::admin::Error::Unreachable(_)), "a question: {error:?}");
    let nobody = Admin::new(["127.0.0.1:1"], config());
    let error = nobody.set_config("replicas", "3").await.unwrap_err();
    assert!(matches!(&error, coppice_client::admin::Error::Unreachable(_)), "never sent: {error:?}");
}

/// The first node of the list was stopped: a verb waited for it until its time was up, and no other node was asked.
#[tokio::test]
async fn a_verb_goes_on_to_the_next_endpoint_when_one_hangs() {
    for manner in [Manner::Silent, Manner::NeverAnswers] {
        let (hangs, good) = (Server::start(&[]).await, Server::start(&[]).await);
        hangs.behave(manner, u64::MAX);
        let mut deadlines = DEADLINES.into_iter();
        loop {
            let timeout = deadlines.next().expect("nobody else was asked in time");
            // Only the deadline of the whole verb bounds anything.
            let config = Config { timeout, connect_timeout: Duration::from_secs(3_600), ..Config::default() };
            let admin = Admin::new([hangs.address.clone(), good.address.clone()], config);
            if ends(admin.set_config("replicas", "3")).await == Ok(()) && ends(admin.hello()).await.is_ok() {
                break;
            }
        }
    }
}

/// The first node of the list had lost its disk; its answer was taken for the cluster's: no cluster was formed yet, no
/// partition differs, nobody leads the directory.
#[tokio::test]
async fn a_node_without_a_cluster_answers_for_itself_only() {
    let (blank, server) = (Server::start(&[]).await, Server::start(&[]).await);
    blank.behave(Manner::Blank, u64::MAX);
    let admin = Admin::new([blank.address.clone(), server.address.clone()], patient());
    assert_eq!(admin.status(false).await.unwrap().cluster, Some(model::CLUSTER));
    assert!(admin.map().await.unwrap().map.is_some());
    assert_eq!(admin.set_config("replicas", "3").await, Ok(()));
    assert_eq!(admin.status(true).await.unwrap().cluster, None, "what it knows itself was asked for");
    // With nobody else to ask, it is asked.
    let alone = Admin::new([blank.address.clone()], patient());
    assert_eq!(alone.status(false).await.unwrap().cluster, None);
    assert_eq!(alone.set_config("replicas", "3").await.unwrap_err().to_string(), "it knows nobody");
}

#[test]
fn the_blocking_face_does_the_same_from_many_threads() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(Server::start(&["5"]));
    let client = blocking::Client::connect_with([server.address.clone()], patient()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let client = client.clone();
            scope.spawn(move || {
                for n in 0..50 {
                    client.put(format!("{thread}{n:02}").as_str(), "1").unwrap();
                }
            });
        }
    });
    let mut stream = client.range(.."5").unwrap();
    let mut count = 0;
    while let Some((_, value)) = stream.next().unwrap() {
        assert_eq!(value, b"1");
        count += 1;
    }
    assert_eq!(count, 200);
    assert_eq!(client.get("000").unwrap().output, value("1"));
    drop(stream);
    let silent = runtime.block_on(Server::start(&[]));
    silent.behave(Manner::Silent, 1_000);
    let config = Config { timeout: Duration::from_millis(100), ..Config::default() };
    assert!(blocking::Client::connect_with([silent.address.clone()], config).unwrap_err().is_sure());
}
