//! Users: who is let in, what each may do, and what is left of it when that changes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use coppice_client::blocking::Client;
use coppice_client::error::{Error, Reason};
use coppice_client::wire::control::encode_control;
use coppice_client::wire::{FrameDecoder, Hello, Kind, PROTOCOL, Refusal};
use coppice_client::{Config, Range, ReadMode, Token};
use coppice_server::shared::STRANGERS_MAX;

use crate::support::{Cluster, Said, eventually, patience, patient};

/// A cluster whose users have tokens in files.
struct Guarded {
    cluster: Cluster,
}

impl Guarded {
    /// Three nodes, two partitions, and `root`, who may do everything.
    fn new() -> Guarded {
        let guarded = Guarded { cluster: Cluster::formed(3, "m") };
        let said = guarded.cluster.run(&["user", "add", "root", "--role", "admin"]);
        assert_eq!(said.code, 0, "{said:?}");
        assert!(said.err.contains("access control is on"), "{said:?}");
        guarded.keep("root", &said);
        guarded
    }

    fn file(&self, name: &str) -> PathBuf {
        self.cluster.scratch.path(&format!("{name}.token"))
    }

    /// Writes the token down that a verb has said.
    #[track_caller]
    fn keep(&self, name: &str, said: &Said) {
        assert_eq!(said.code, 0, "{said:?}");
        std::fs::write(self.file(name), &said.out).expect("a file");
    }

    /// A verb, asked by a user.
    fn run(&self, user: &str, words: &[&str]) -> Said {
        let file = self.file(user);
        let mut all = vec!["--token-file", file.to_str().expect("a path")];
        all.extend(words);
        self.cluster.run(&all)
    }

    #[track_caller]
    fn add(&self, name: &str, words: &[&str]) {
        let said = self.run("root", &[&["user", "add", name][..], words].concat());
        self.keep(name, &said);
    }

    fn config(&self, user: &str) -> Config {
        Config { token: Some(token(&self.file(user))), ..patient() }
    }

    fn client(&self, user: &str) -> Client {
        let endpoints = (0..3).map(|index| self.cluster.endpoint(index));
        Client::connect_with(endpoints, self.config(user)).expect("the cluster serves")
    }
}

fn token(file: &Path) -> Token {
    Token::from_file(file).expect("a token")
}

#[track_caller]
fn assert_denied<T: std::fmt::Debug>(what: &str, result: Result<T, Error>) {
    match result {
        Err(Error::Failed(failed)) if matches!(failed.reason, Reason::Denied(_)) => {}
        other => panic!("{what}: {other:?}"),
    }
}

/// What somebody may do with a key outside and inside of `a/`.
#[track_caller]
fn assert_may(client: &Client, who: &str, (read, write): (bool, bool), key: &str) {
    let check = |what: &str, result: Result<(), Error>, allowed: bool| match allowed {
        true => assert!(result.is_ok(), "{who} {what} {key}: {result:?}"),
        false => assert_denied(&format!("{who} {what} {key}"), result),
    };
    let key = key.to_owned();
    check("gets", client.get(&*key).map(drop), read);
    check("gets anywhere", client.get_as(&*key, ReadMode::AnyReplica).map(drop), read);
    check("gets stale", client.get_as(&*key, ReadMode::Stale).map(drop), read);
    check("looks at", client.look(&*key).map(drop), read);
    check("asks for the time to live of", client.ttl(&*key).map(drop), read);
    check("looks for", client.contains_many([&*key, &*key]).map(drop), read);
    for range in
        [Range::prefix(key.as_bytes()), Range::prefix(key.as_bytes()).reverse(), Range::prefix(key.as_bytes()).stale()]
    {
        let counted = client.range(range).and_then(|mut range| range.count());
        check("scans", counted.map(drop), read);
    }
    check("puts", client.put(&*key, "v").map(drop), write);
    check("inserts", client.insert(format!("{key}1").into_bytes(), "v").map(drop), write);
    check("swaps", client.cas(&*key, "v", "w").map(drop), write);
    check("deletes", client.delete(&*key).map(drop), write);
}

#[test]
fn each_role_does_what_it_includes_over_the_wire() {
    let guarded = Guarded::new();
    for (name, words) in [
        ("reader", &["--role", "read"][..]),
        ("writer", &["--role", "write"]),
        ("tenant", &["--role", "write", "--prefix", "a/"]),
        ("guest", &["--role", "read", "--prefix", "a/"]),
    ] {
        guarded.add(name, words);
    }
    let root = guarded.client("root");
    root.put("a/0", "v").expect("done");
    root.put("z/0", "v").expect("done");
    for (name, inside, outside) in [
        ("root", (true, true), (true, true)),
        ("reader", (true, false), (true, false)),
        ("writer", (true, true), (true, true)),
        ("tenant", (true, true), (false, false)),
        ("guest", (true, false), (false, false)),
    ] {
        let client = guarded.client(name);
        assert_may(&client, name, inside, "a/x");
        assert_may(&client, name, outside, "z/x");
        let whole = client.range(..).and_then(|mut range| range.count());
        let across = client.range("a/".."z0").and_then(|mut range| range.count());
        match outside.0 {
            true => {
                assert!(whole.is_ok() && across.is_ok(), "{name}: {whole:?} {across:?}");
                assert_eq!(client.contains_many(["z/0", "a/0", "m"]).expect("granted"), [true, true, false], "{name}");
            }
            false => {
                assert_denied(name, client.contains_many(["z/0", "a/0"]));
                assert_denied(name, whole);
                assert_denied(name, across);
            }
        }
        let admin = guarded.run(name, &["config", "get"]);
        assert_eq!(admin.code, if name == "root" { 0 } else { 1 }, "{name}: {admin:?}");
        assert_eq!(guarded.run(name, &["status"]).code, 0, "{name}");
    }
    let said = guarded.run("guest", &["put", "a/x", "v"]);
    assert!(said.code == 1 && said.err.contains("user guest does not have role write for"), "{said:?}");
    let log: String = (0..3).map(|index| guarded.cluster.log(index)).collect();
    assert!(log.contains("a request is denied") && log.contains("user add tenant"), "{log}");
    for name in ["root", "tenant"] {
        assert!(!log.contains(token(&guarded.file(name)).reveal()), "a token is in a log");
    }
    assert!(!log.contains("a/x") && !log.contains("z/x"), "a key is in a log: {log}");
}

#[test]
fn users_are_managed_by_verbs() {
    let cluster = Cluster::formed(3, "");
    let early = cluster.run(&["user", "add", "bob", "--role", "read"]);
    assert!(early.code == 5 && early.err.contains("the first user must be an admin"), "{early:?}");
    let none = cluster.run(&["user", "ls", "-o", "table"]);
    assert!(none.code == 0 && none.err.contains("access control is off"), "{none:?}");
    cluster.run(&["put", "k", "v"]);
    drop(cluster);

    let guarded = Guarded::new();
    let stranger = guarded.cluster.run(&["get", "k"]);
    assert!(stranger.code == 1 && stranger.err.contains("--token-file"), "{stranger:?}");
    let stranger = guarded.cluster.run(&["user", "add", "eve", "--role", "admin"]);
    assert!(stranger.code == 1 && stranger.out.is_empty(), "{stranger:?}");
    guarded.add("bob", &["--role", "write", "--prefix", "b/"]);
    let said = guarded.run("root", &["user", "grant", "bob", "--role", "read", "--prefix", "c/"]);
    assert_eq!(said.code, 0, "{said:?}");
    let listed = guarded.run("root", &["user", "ls", "-o", "json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed.out).expect("json");
    assert_eq!(
        listed["users"][0],
        serde_json::json!({
            "user": "bob", "tokens": 1, "certificate": null,
            "grants": [{ "role": "read", "prefix": "c/" }, { "role": "write", "prefix": "b/" }],
        })
    );
    let bob = guarded.client("bob");
    bob.put("b/1", "v").expect("granted");
    bob.get("c/1").expect("granted");
    assert_eq!(guarded.run("bob", &["user", "ls"]).code, 1);
    let wrong = guarded.run("root", &["user", "revoke", "bob", "--role", "read", "--prefix", "d/"]);
    assert_eq!(wrong.code, 4, "{wrong:?}");
    assert_eq!(guarded.run("root", &["user", "revoke", "bob", "--role", "read", "--prefix", "c/"]).code, 0);
    assert_denied("revoked", bob.get("c/1"));
    bob.put("b/2", "v").expect("the connection ends, and another one has what is left");
    for words in [&["user", "remove", "root"][..], &["user", "revoke", "root", "--role", "admin"]] {
        let last = guarded.run("root", words);
        assert!(last.code == 5 && last.err.contains("no admin for all keys"), "{last:?}");
    }
    let again = guarded.run("root", &["user", "add", "bob", "--role", "read"]);
    assert_eq!(again.code, 5, "{again:?}");
    // A new token, with the one before for as long as programs are told of it.
    let old = guarded.client("bob");
    let kept = guarded.run("root", &["user", "token", "bob", "--keep"]);
    guarded.keep("bob", &kept);
    old.get("b/1").expect("both tokens count");
    guarded.client("bob").get("b/1").expect("both tokens count");
    let only = guarded.run("root", &["user", "token", "bob"]);
    assert_denied("the oldest token", old.get("b/1"));
    guarded.keep("bob", &only);
    guarded.client("bob").get("b/1").expect("the newest token counts");
}

/// One who is connected everywhere, in the middle of a range, and gone: no node answers.
#[test]
#[ignore = "long: processes that wait for each other"]
fn a_removed_user_is_out_while_connected() {
    let mut guarded = Guarded::new();
    guarded.add("bob", &["--role", "write"]);
    let root = guarded.client("root");
    for number in 0..200 {
        root.put(format!("k{number:03}").into_bytes(), vec![b'v'; 64 << 10]).expect("done");
    }
    let bobs: Vec<Client> = (0..3)
        .map(|index| {
            let config = Config { range_credit: 1, ..guarded.config("bob") };
            Client::connect_with([guarded.cluster.endpoint(index)], config).expect("it serves")
        })
        .collect();
    let mut ranges = Vec::new();
    for bob in &bobs {
        bob.get_as("k000", ReadMode::Stale).expect("he may");
        let mut range = bob.range(Range::prefix(b"k").stale()).expect("a range");
        assert!(range.next().expect("he may").is_some());
        ranges.push(range);
    }
    let said = guarded.run("root", &["user", "remove", "bob"]);
    assert_eq!((said.code, &*said.err), (0, ""), "every node has confirmed it: {said:?}");
    for (bob, mut range) in bobs.iter().zip(ranges) {
        assert_denied("a get", bob.get_as("k000", ReadMode::Stale));
        let rest = std::iter::from_fn(|| range.next().map(|pair| pair.map(drop)).transpose());
        let got: Vec<Result<(), Error>> = rest.collect();
        assert!(got.last().is_some_and(Result::is_err), "the range went on to its end: {} pairs", got.len());
    }
    // Nor is he let in by nodes that all begin anew.
    (0..3).for_each(|index| guarded.cluster.kill(index));
    (0..3).for_each(|index| guarded.cluster.start(index, "ready"));
    eventually("the cluster serves again", || guarded.run("root", &["get", "k000"]).code == 0);
    for index in 0..3 {
        let config = Config { timeout: patience(), ..guarded.config("bob") };
        let alone = Client::start([guarded.cluster.endpoint(index)], config).expect("a client");
        assert_denied("after a restart", alone.get_as("k000", ReadMode::Stale));
        let nobody = Client::start([guarded.cluster.endpoint(index)], patient()).expect("a client");
        assert_denied("without a token", nobody.get("k000"));
    }
}

/// Of a node that was down when users changed, and of one that comes to the cluster later.
#[test]
fn a_node_that_was_away_hears_of_users_when_it_is_back() {
    let mut cluster = Cluster::formed(3, "");
    cluster.kill(2);
    let said = cluster.run(&["user", "add", "root", "--role", "admin"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.err.contains("n3 did not confirm it"), "{said:?}");
    cluster.start(2, "ready");
    let guarded = Guarded { cluster };
    guarded.keep("root", &said);
    let config = Config { timeout: Duration::from_secs(2), ..patient() };
    eventually("n3 asks who asks", || {
        let nobody = Client::start([guarded.cluster.endpoint(2)], config.clone()).expect("a client");
        matches!(nobody.get("k"), Err(Error::Failed(failed)) if matches!(failed.reason, Reason::Denied(_)))
    });
    let own = Client::connect_with([guarded.cluster.endpoint(2)], guarded.config("root")).expect("n3 knows root");
    own.get("k").expect("root may");
}

/// What a node says to this hello, and after how long; none: it closed the connection without a word.
fn greeted(port: u16, token: Option<Token>) -> (Option<Refusal>, Duration) {
    let hello = Hello { protocol_min: *PROTOCOL.start(), protocol_max: *PROTOCOL.end(), token, ..Hello::default() };
    let mut out = BytesMut::new();
    encode_control(&mut out, Kind::Hello, 7, &hello);
    let begun = Instant::now();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(patience())).expect("a socket");
    let _ = stream.write_all(&out);
    let (mut decoder, mut buffer) = (FrameDecoder::default(), [0; 4096]);
    let mut refusal = None;
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        decoder.feed(&buffer[..count]);
        while let Some(frame) = decoder.next_frame().expect("its frames are good") {
            assert_eq!(Kind::from_u8(frame.kind), Some(Kind::Refused));
            refusal = Some(Refusal::decode(&frame.body).expect("readable"));
        }
    }
    (refusal, begun.elapsed())
}

#[test]
fn wrong_credentials_cost_the_asker_time_and_not_the_server() {
    let guarded = Guarded::new();
    let (port, root) = (guarded.cluster.native_port(0), guarded.client("root"));
    root.put("k", "v").expect("done");
    let wrong = Token::generate().expect("random bits");
    for token in [None, Some(wrong.clone())] {
        let (refusal, took) = greeted(port, token);
        assert!(matches!(refusal, Some(Refusal::Unauthenticated { .. })), "{refusal:?}");
        assert!(took >= Duration::from_millis(450), "answered after {took:?}");
    }
    // A crowd of them: as many as may wait are answered late, the others not at all, and nobody else waits for them.
    let crowd: Vec<_> = (0..4 * STRANGERS_MAX)
        .map(|_| {
            let wrong = wrong.clone();
            std::thread::spawn(move || greeted(port, Some(wrong)))
        })
        .collect();
    let config = Config { connect_timeout: patience(), ..guarded.config("root") };
    let beside = Client::connect_with([guarded.cluster.endpoint(0)], config).expect("a user is let in");
    beside.get("k").expect("it serves");
    let answered = crowd.into_iter().map(|asker| asker.join().expect("no panic"));
    let (late, closed): (Vec<_>, Vec<_>) = answered.partition(|(refusal, _)| refusal.is_some());
    assert!(late.iter().all(|(_, took)| *took >= Duration::from_millis(450)), "{late:?}");
    assert_eq!(late.len() + closed.len(), 4 * STRANGERS_MAX);
    let log = guarded.cluster.log(0);
    let lines = log.lines().filter(|line| line.contains("a client is refused")).count();
    assert!((1..20).contains(&lines), "{lines} lines");
    assert!(!log.contains(wrong.reveal()) && log.contains("127.0.0.1"), "the address, and not the token");
}
