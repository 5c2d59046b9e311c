//! Scripts of a connection: what a client types, and what it reads. The cluster behind is a tree that executes what is
//! asked, at once or when a test says so.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use coppice_btree::{Tree, Undo};
use coppice_client::command::{Command, Output};
use coppice_client::error::{Cause, Error, Failure, Place, Reason, Unknown};
use coppice_client::map::{Entry, PartitionMap};
use coppice_client::token::Token;
use coppice_client::wire::{Grant, PartitionId, Role, UserChange};
use coppice_client::{OpResult, Value};

use super::connection::{Counted, Limits};
use super::identity::ClientRow;
use super::pipeline::Ask;
use super::plan::Ranged;
use super::server::Facts;
use super::{Context, Effect, Input, NodeView, RespConnection};
use crate::access::{Access, Users};

/// Partitions ..m and m...
fn map() -> PartitionMap {
    let entry = |id, low: &'static str, high: Option<&'static str>| Entry {
        partition: PartitionId(id),
        low: Bytes::from(low),
        high: high.map(Bytes::from),
        ..Entry::default()
    };
    PartitionMap { partitions: vec![entry(1, "", Some("m")), entry(2, "m", None)], ..PartitionMap::default() }
}

mod bounds;
mod looks;

struct Client {
    limits: Limits,
    connection: RespConnection,
    map: PartitionMap,
    access: Access,
    node: NodeView,
    tree: Tree,
    /// Asked, not answered.
    asked: VecDeque<Effect>,
    become_: Vec<Option<Token>>,
    strangers: Vec<String>,
    loading: Option<&'static str>,
    /// Came, and was not taken yet.
    bytes: BytesMut,
}

const LIMITS: Limits = Limits { requests: 8, bytes: 1 << 20 };

impl Client {
    fn new() -> Client {
        Client::with(Access::default(), LIMITS)
    }

    fn with(access: Access, limits: Limits) -> Client {
        let node = NodeView::new(6);
        let map = map();
        let mut context = Context {
            now: 1_000_000,
            draw: &|| 7,
            map: &map,
            access: &access,
            node: &node,
            room: LIMITS.bytes,
            loading: None,
            facts: &Facts::default,
        };
        let row = ClientRow { address: "127.0.0.1:5".into(), ..ClientRow::default() };
        let connection = RespConnection::new(1, row, limits, &mut context);
        Client {
            limits,
            connection,
            map,
            access,
            node,
            tree: Tree::default(),
            asked: VecDeque::new(),
            become_: Vec::new(),
            strangers: Vec::new(),
            loading: None,
            bytes: BytesMut::new(),
        }
    }

    fn step(&mut self, input: Option<Input<'_>>) {
        let mut context = Context {
            now: 1_000_000,
            draw: &|| 7,
            map: &self.map,
            access: &self.access,
            node: &self.node,
            room: self.limits.bytes.saturating_sub(self.connection.bytes()),
            loading: self.loading,
            facts: &Facts::default,
        };
        let mut effects = Vec::new();
        if let Some(input) = input {
            self.connection.step(&mut context, input, &mut effects);
        }
        self.connection.step(&mut context, Input::TurnEnd(&mut self.bytes), &mut effects);
        for effect in effects {
            match effect {
                Effect::Become(token) => self.become_.push(token),
                Effect::Stranger(text) => self.strangers.push(text),
                asked => self.asked.push_back(asked),
            }
        }
    }

    /// Types lines, and answers nothing that is asked.
    fn types(&mut self, lines: &str) {
        self.bytes.extend_from_slice(lines.replace('|', "\n").as_bytes());
        self.bytes.extend_from_slice(b"\n");
        self.step(None);
    }

    /// What it has read.
    fn reads(&mut self) -> String {
        let output = self.connection.output().split();
        output.escape_ascii().to_string().replace(r"\r\n", " ").replace(r"\'", "'").trim_end().to_owned()
    }

    /// Carries out what was asked first, or fails it.
    fn answer(&mut self, error: Option<Error>) {
        let Some(effect) = self.asked.pop_front() else { panic!("nothing was asked") };
        match effect {
            Effect::Ask(Ask { call, command, reads_anywhere }) => {
                let outcome = match error {
                    Some(error) => Err(error),
                    None if self.spans(&command) && !reads_anywhere => Err(failed(Reason::SpansPartitions)),
                    None => Ok(self.execute(&command)),
                };
                self.step(Some(Input::Answered { call, outcome }));
            }
            Effect::Range { call, range, pattern } => {
                let outcome = error.map_or_else(|| Ok(self.range(&range, pattern.as_ref())), Err);
                self.step(Some(Input::Ranged { call, outcome }));
            }
            other => panic!("{other:?} needs no answer"),
        }
    }

    fn spans(&self, command: &Command) -> bool {
        let keys: Vec<&[u8]> = match command {
            Command::Many(operations) => operations.iter().map(|operation| operation.key()).collect(),
            _ => Vec::new(),
        };
        keys.windows(2).any(|pair| self.map.position(pair[0]) != self.map.position(pair[1]))
    }

    fn execute(&mut self, command: &Command) -> Output {
        let mut undo = Undo::default();
        let mut all = |operations: &[coppice_client::Operation]| -> Vec<OpResult> {
            operations.iter().map(|operation| self.tree.execute(operation.op(), &mut undo)).collect()
        };
        match command {
            Command::One(operation) => Output::One(all(std::slice::from_ref(operation)).remove(0)),
            Command::Many(operations) => Output::Many(all(operations)),
            Command::Guarded { guards, operations } => {
                let (guards, guarded) = operations.split_at(*guards);
                let unmet = |result: &OpResult| {
                    !matches!(result, OpResult::Update { outcome: coppice_btree::UpdateOutcome::Done, .. })
                };
                match all(guards).iter().position(unmet) {
                    Some(guard) => Output::Unmet(guard as u64),
                    None => Output::Many(all(guarded)),
                }
            }
            Command::Load(_) => unreachable!("the connection loads nothing"),
        }
    }

    /// All pairs from low to high: the tests have few.
    fn range(&self, range: &coppice_client::Range, pattern: Option<&Bytes>) -> Ranged {
        let text = format!("{range:?}");
        let number = |name: &str| -> usize {
            let behind = text.split(name).nth(1).expect("a field");
            behind[..behind.find([',', ' ', '}']).expect("more")].parse().expect("a number")
        };
        let inside = |key: &[u8]| key >= range.low() && range.high().is_none_or(|high| key < high);
        let snapshot = self.tree.clone_pairs();
        let mut pairs: Vec<(Value, Value)> = snapshot.into_iter().filter(|(key, _)| inside(key)).collect();
        if text.contains("reverse: true") {
            pairs.reverse();
        }
        if text.contains("count_only: true") {
            return Ranged { count: pairs.len() as u64, ..Ranged::default() };
        }
        let most = number("pairs_max: ");
        let is_limited = most > 0 && pairs.len() > most;
        pairs.truncate(if most > 0 { most } else { usize::MAX });
        if text.contains("keys_only: true") {
            pairs.iter_mut().for_each(|(_, value)| *value = Value::EMPTY);
        }
        let mut ranged = Ranged { count: pairs.len() as u64, is_limited, ..Ranged::default() };
        pairs.iter().for_each(|(key, value)| _ = ranged.look_at(pattern, key, value));
        ranged
    }

    /// Types, and answers all that is asked, until all is read.
    fn says(&mut self, lines: &str) -> String {
        self.types(lines);
        while !self.asked.is_empty() {
            self.answer(None);
        }
        self.reads()
    }

    /// The operations of what was asked, in words.
    fn asked(&self) -> Vec<usize> {
        let operations = |effect: &Effect| match effect {
            Effect::Ask(Ask { command: Command::Many(operations), .. }) => operations.len(),
            Effect::Ask(_) => 1,
            _ => 0,
        };
        self.asked.iter().map(operations).collect()
    }
}

trait Pairs {
    fn clone_pairs(&self) -> Vec<(Value, Value)>;
}

impl Pairs for Tree {
    fn clone_pairs(&self) -> Vec<(Value, Value)> {
        self.snapshot().iter().map(|(key, value)| (Value::from(&*key), Value::from(value))).collect()
    }
}

fn failed(reason: Reason) -> Error {
    Error::Failed(Box::new(Failure { reason, place: Place::default() }))
}

#[test]
fn strings_are_written_read_and_changed_as_redis_does() {
    let mut client = Client::new();
    for (typed, read) in [
        ("PING", "+PONG"),
        ("ping hello", "$5 hello"),
        ("GET a", "$-1"),
        ("SET a 1", "+OK"),
        ("GET a", "$1 1"),
        ("SET a 2 NX", "$-1"),
        ("SET b 2 XX", "$-1"),
        ("SET a 2 XX GET", "$1 1"),
        ("SET a 2 NX XX", "-ERR syntax error"),
        ("SET a 2 EX", "-ERR syntax error"),
        ("SET a 2 EX 0", "-ERR invalid expire time in 'set' command"),
        ("SET a 2 EX x", "-ERR value is not an integer or out of range"),
        ("SET a 2 EX 5 PX 5", "-ERR syntax error"),
        ("SETNX a 3", ":0"),
        ("SETNX c 3", ":1"),
        ("GETSET a 10", "$1 2"),
        ("INCR a", ":11"),
        ("DECRBY a 20", ":-9"),
        ("INCRBY a 9223372036854775807", ":9223372036854775798"),
        ("INCRBY a 10", "-ERR increment or decrement would overflow"),
        ("DECRBY a -9223372036854775808", "-ERR decrement would overflow"),
        ("APPEND c x", ":2"),
        ("INCR c", "-ERR value is not an integer or out of range"),
        ("INCRBYFLOAT c 1", "-ERR value is not a valid float"),
        ("INCRBYFLOAT f 1.25", "$4 1.25"),
        ("INCRBYFLOAT f nan", "-ERR value is not a valid float"),
        ("GETRANGE c 0 -1", "$2 3x"),
        ("SETRANGE c 3 y", ":4"),
        ("GET c", r"$4 3x\x00y"),
        ("SETRANGE c -1 y", "-ERR offset is out of range"),
        ("SETRANGE c 1048576 y", "-ERR string exceeds maximum allowed size (1 MiB)"),
        ("SETRANGE nothing 9999999999 ''", ":0"),
        ("STRLEN c", ":4"),
        ("TYPE c", "+string"),
        ("TYPE nothing", "+none"),
        ("MSET a 1 b 2", "+OK"),
        ("MSET a 1 b", "-ERR wrong number of arguments for 'mset' command"),
        ("MGET a l b", "*3 $1 1 $-1 $1 2"),
        ("MGET a nothing z b", "*4 $1 1 $-1 $-1 $1 2"),
        ("MSETNX a 1 d 2", ":0"),
        ("MSETNX d 1 e 2", ":1"),
        ("EXISTS a a l", ":2"),
        (
            "DEL a b nothing",
            "-CROSSPARTITION keys a (p1) and nothing (p2) lie in different partitions: send a command for each",
        ),
        ("DEL a b l", ":2"),
        ("DEL a", ":0"),
        ("GETDEL d", "$1 1"),
        ("GETDEL d", "$-1"),
        ("RENAME e g", "+OK"),
        ("RENAME e g", "-ERR no such key"),
        ("RENAMENX g c", ":0"),
        ("GETEX g", "$1 2"),
        ("GETEX g EX", "-ERR syntax error"),
        ("EXPIRE nothing 5", ":0"),
        ("EXPIRE g 5 NX GT", "-ERR NX, XX, GT and LT exclude each other: give one"),
        ("EXPIRE g 5 QQ", "-ERR Unsupported option QQ"),
        ("EXPIRE g 9223372036854775807", "-ERR invalid expire time in 'expire' command"),
        ("TTL g", ":-1"),
        ("PTTL nothing", ":-2"),
        ("EXPIRE g -1", ":1"),
        ("TTL g", ":-2"),
        ("GET", "-ERR wrong number of arguments for 'get' command"),
        ("LPUSH a b", "-ERR LPUSH is not supported: the only type here is string"),
    ] {
        assert_eq!(client.says(typed), read, "{typed}");
    }
    let counts = client.connection.take_counts();
    assert!(counts[Counted::Ok as usize] > 30 && counts[Counted::Error as usize] > 15, "{counts:?}");
}

#[test]
fn keys_are_listed_counted_and_paged_in_their_order() {
    let mut client = Client::new();
    assert_eq!(client.says("RANDOMKEY"), "$-1");
    client.says("SET a 1|SET ab 2|SET b 3|SET n 4|SET z 5");
    for (typed, read) in [
        ("DBSIZE", ":5"),
        ("KEYS a*", "*2 $1 a $2 ab"),
        ("KEYS [bz]", "*2 $1 b $1 z"),
        ("SCAN 0 COUNT 2", "*2 $1 7 *2 $1 a $2 ab"),
        ("SCAN 7 COUNT 2", "*2 $1 8 *2 $1 b $1 n"),
        ("SCAN 8 COUNT 2", "*2 $1 0 *1 $1 z"),
        ("SCAN 7 MATCH a* COUNT 2", "*2 $1 0 *0"),
        ("SCAN 0 TYPE hash", "*2 $1 0 *0"),
        ("SCAN 0 COUNT 0", "-ERR syntax error"),
        ("SCAN x", "-ERR invalid cursor"),
        ("RANGE - + LIMIT 2", "*4 $1 a $1 1 $2 ab $1 2"),
        ("RANGE [ab (n NOVALUES", "*2 $2 ab $1 b"),
        ("RANGE (ab [n NOVALUES", "*2 $1 b $1 n"),
        ("REVRANGE + - LIMIT 1", "*2 $1 z $1 5"),
        ("RANGE + -", "*0"),
        ("RANGE a b", "-ERR min or max not valid string range item: write [key, (key, - or +"),
        ("RANGE - + LIMIT 0", "*0"),
        ("RANGE - + LIMIT -1", "-ERR LIMIT is negative"),
        ("RANGECOUNT [b +", ":3"),
        ("RANGECOUNT + [b", ":0"),
        ("RANDOMKEY", "$2 ab"),
    ] {
        assert_eq!(client.says(typed), read, "{typed}");
    }
    assert!(client.says("SCAN 999").starts_with("-ERR unknown cursor"));
    assert!(client.says(&format!("KEYS {}", "x".repeat(300))).starts_with("-ERR a pattern has at most 256 bytes"));
}

#[test]
fn answers_come_in_the_order_of_the_requests() {
    let mut client = Client::new();
    client.types("SET a 1|PING|GET z|GET y");
    assert_eq!(client.asked.len(), 3);
    client.asked.rotate_left(1);
    client.answer(None);
    assert_eq!(client.reads(), "");
    client.asked.rotate_left(1);
    client.answer(None);
    assert_eq!(client.reads(), "+OK +PONG $-1");
    client.answer(None);
    assert_eq!(client.reads(), "$-1");
}

/// Writes of one partition share a command; a read of a key waits for the write before it, and a write for the read.
#[test]
fn requests_of_one_key_keep_their_order() {
    let mut client = Client::new();
    client.types("SET a 1|SET b 1|SET z 1|INCR a|GET a|SET a 3|INCR b");
    assert_eq!(client.asked(), [4, 1]);
    assert_eq!(client.says(""), "+OK +OK +OK :2 $1 2 +OK :2");
    // Reads do not wait for each other; those of one key are one.
    client.types("GET a|GET a|GET b|GETRANGE b 0 0");
    assert_eq!(client.asked(), [1, 1]);
    assert_eq!(client.says(""), "$1 3 $1 3 $1 2 $1 2");
    // Writes of one key share a command in their order.
    client.types("SET a 1|SET a 2|SET b 1|INCR b|SET b 5|SET b 6|SET c 1");
    assert_eq!(client.asked(), [7]);
    assert_eq!(client.says("GET a|GET b"), "+OK +OK +OK :2 +OK +OK +OK $1 2 $1 6");
    // What is not asked for takes no room in the answer.
    client.types("SET a 1|INCR b|SET c 1");
    let Some(Effect::Ask(Ask { command: Command::Many(operations), .. })) = client.asked.front() else {
        panic!("many")
    };
    assert!(operations.iter().all(|operation| matches!(operation, coppice_client::Operation::Update { .. })));
    client.says("");
    client.types("SET a 7|SET a 8");
    assert_eq!(client.asked(), [2]);
    client.answer(Some(failed(Reason::Full("x".into()))));
    assert_eq!(client.asked(), [1], "asked again alone, the second behind the first");
    assert_eq!(client.says("GET a"), "+OK +OK $1 8");
}

#[test]
fn a_shared_command_that_did_nothing_is_asked_again_one_by_one() {
    let mut client = Client::new();
    client.types("SET a 1|SET b 2|SET c 3");
    assert_eq!(client.asked(), [3]);
    client.answer(Some(failed(Reason::Full("the disk".into()))));
    assert_eq!(client.asked(), [1, 1, 1]);
    client.answer(None);
    client.answer(Some(failed(Reason::Full("the disk".into()))));
    client.answer(None);
    assert_eq!(client.reads(), "+OK -OOM writes that grow the store are refused, the disk. Deletes are taken +OK");
    // What may have been done is not asked again.
    client.types("SET a 1|SET b 2");
    let unknown = Unknown { cause: Cause::NoAnswer, resume: None, place: Place::default() };
    client.answer(Some(Error::Unknown(Box::new(unknown))));
    assert!(client.asked.is_empty());
    assert_eq!(client.reads().matches("-OUTCOMEUNKNOWN it may have been carried out, once at most").count(), 2);
}

#[test]
fn failures_are_told_by_codes_that_programs_know() {
    for (reason, said) in [
        (Reason::NoLeader, "-NOQUORUM no leader: it was certainly not carried out. `coppice status` says what is down"),
        (Reason::Busy("inflight".into()), "-OVERLOADED retry in 500 ms: the servers are busy: inflight"),
        (Reason::Denied("user u".into()), "-NOPERM user u"),
        (Reason::SpansPartitions, "-CROSSPARTITION the keys lie in different partitions: send a command for each"),
        (Reason::Incompatible("old".into()), "-ERR old"),
    ] {
        let mut client = Client::new();
        client.types("GET a");
        client.answer(Some(failed(reason)));
        assert_eq!(client.reads(), said);
    }
}

#[test]
fn transactions_are_one_command_with_guards() {
    let mut client = Client::new();
    let mut says = |typed: &str| client.says(typed);
    assert_eq!(
        says("MULTI|SET a 1|INCR a|GET a|PING|EXEC"),
        "+OK +QUEUED +QUEUED +QUEUED +QUEUED *4 +OK :2 $1 2 +PONG"
    );
    assert_eq!(says("MULTI|EXEC"), "+OK *0");
    assert_eq!(
        says("MULTI|MULTI|DISCARD|DISCARD"),
        "+OK -ERR MULTI calls can not be nested +OK -ERR DISCARD without MULTI"
    );
    assert_eq!(says("EXEC"), "-ERR EXEC without MULTI");
    let aborted = "-EXECABORT Transaction discarded because of previous errors.";
    assert_eq!(says("MULTI|NOPE|EXEC").split(" -").last(), Some(&aborted[1..]));
    assert_eq!(says("MULTI|KEYS *|EXEC"), format!("+OK -ERR KEYS is not possible between MULTI and EXEC {aborted}"));
    assert_eq!(says("MULTI|GET|EXEC").split(" -").last(), Some(&aborted[1..]));
    assert_eq!(
        says("MULTI|SET a 5|SET z 5|EXEC"),
        "+OK +QUEUED +QUEUED -CROSSPARTITION keys a (p1) and z (p2) lie in different partitions: send a command for each"
    );
    // An operation that is not done keeps no other from running.
    assert_eq!(
        says("SET b x|MULTI|INCR b|SET b 1|EXEC"),
        "+OK +OK +QUEUED +QUEUED *2 -ERR value is not an integer or out of range +OK"
    );
    assert_eq!(
        says("WATCH a nothing"),
        "-CROSSPARTITION keys a (p1) and nothing (p2) lie in different partitions: send a command for each"
    );
    assert_eq!(says("MULTI|EXEC"), "+OK -EXECABORT Transaction discarded because WATCH failed.");
    assert_eq!(says("WATCH a c|MULTI|SET c 1|EXEC"), "+OK +OK +QUEUED *1 +OK");
    assert_eq!(says("WATCH a c|SET a 9|MULTI|SET c 2|EXEC"), "+OK +OK +OK +QUEUED *-1");
    assert_eq!(says("WATCH a|UNWATCH|SET a 8|MULTI|GET c|EXEC"), "+OK +OK +OK +OK +QUEUED *1 $1 1");
    assert_eq!(says("WATCH a|SET a 9|MULTI|EXEC|MULTI|PING|EXEC"), "+OK +OK +OK *-1 +OK +QUEUED *1 +PONG");
    assert_eq!(says("MULTI|WATCH a|DISCARD"), "+OK -ERR WATCH inside MULTI is not allowed +OK");
}

#[test]
fn a_range_sees_what_was_asked_before_and_nothing_that_comes_after() {
    let mut client = Client::new();
    client.types("SET a 1|SET z 1|DBSIZE|SET b 1");
    assert_eq!(client.asked(), [1, 1]);
    client.answer(None);
    assert_eq!(client.asked(), [1]);
    client.answer(None);
    assert_eq!(client.asked(), [0]);
}

#[test]
fn as_much_is_read_as_may_be_under_way() {
    let mut client = Client::new();
    let many: Vec<String> = (0..20).map(|n| format!("GET z{n}")).collect();
    client.types(&many.join("|"));
    assert_eq!(
        (client.asked.len(), client.connection.wants_input(), client.bytes.is_empty()),
        (LIMITS.requests, false, false)
    );
    client.answer(None);
    assert_eq!((client.asked.len(), client.connection.wants_input()), (LIMITS.requests, false));
    while !client.asked.is_empty() {
        client.answer(None);
    }
    assert_eq!(client.reads().matches("$-1").count(), 20);
    assert!(client.connection.wants_input() && client.connection.is_idle());
}

#[test]
fn hello_chooses_the_protocol_and_nobody_hangs_on_a_null() {
    let mut client = Client::new();
    assert!(client.says("HELLO 3 SETNAME me").starts_with("%7 $6 server $7 coppice "));
    assert_eq!(client.says("GET nothing|CLIENT GETNAME"), "_ $2 me");
    assert!(client.says("GET nothing|HELLO 2").starts_with("_ *14 "));
    assert_eq!(client.says("GET nothing"), "$-1");
    assert_eq!(client.says("HELLO 4"), "-NOPROTO unsupported protocol version: 2 or 3");
    assert_eq!(client.says("HELLO 3 NOPE"), "-ERR syntax error");
    assert_eq!(client.says("RESET"), "+RESET");
    assert_eq!(client.says("CLIENT GETNAME"), "$-1");
    assert_eq!(client.says("CLIENT SETINFO lib-name redis-py|CLIENT ID|CLIENT NO-EVICT on"), "+OK :1 +OK");
    assert!(
        client
            .says("CLIENT LIST")
            .contains("addr=127.0.0.1:5 laddr= name= age=1000 db=0 user=default lib-name=redis-py")
    );
    assert!(client.says("CLIENT TRACKING ON").starts_with("-ERR CLIENT TRACKING is not supported"));
    assert!(
        client.says("CLIENT MAINT_NOTIFICATIONS ON").starts_with("-ERR CLIENT MAINT_NOTIFICATIONS is not supported")
    );
    assert_eq!(
        client.says("SELECT 0|SELECT 1|CONFIG GET sav*"),
        "+OK -ERR DB index is out of range: there is one database, 0 *2 $4 save $0"
    );
    assert_eq!(client.says("QUIT|PING"), "+OK");
    assert!(client.connection.is_closing());
}

#[test]
fn a_protocol_error_is_told_behind_the_answers_and_ends_the_connection() {
    let mut client = Client::new();
    client.types("GET a|*1\r|:1\r|PING");
    assert!(!client.connection.is_closing() && !client.connection.wants_input());
    client.answer(None);
    assert_eq!(client.reads(), "$-1 -ERR Protocol error: expected '$', got ':'");
    assert!(client.connection.is_closing());
}

fn access(token: &Token) -> Access {
    let mut users = Users::default();
    let grant = Grant { role: Role::Admin, prefix: Bytes::new() };
    let name = "root".to_owned();
    users
        .apply(None, &UserChange::Add { name, grant, token: Some(token.hash()), certificate: None }, 1)
        .expect("the first user");
    Access::new(users)
}

#[test]
fn whoever_shows_no_token_is_told_to() {
    let token = Token::generate().expect("random bits");
    let mut client = Client::with(access(&token), LIMITS);
    let no_auth = "-NOAUTH Authentication required: AUTH with a user's token";
    assert_eq!(client.says("GET a|CLIENT ID|HELLO 3"), [no_auth; 3].join(" "));
    assert!(client.says("AUTH nonsense").starts_with("-WRONGPASS a user is known by its token"));
    let other = Token::generate().expect("random bits");
    assert!(client.says(&format!("AUTH {}", other.reveal())).starts_with("-WRONGPASS no user has the token"));
    assert!(
        client.says(&format!("AUTH other {}", token.reveal())).starts_with("-WRONGPASS the token is another user's")
    );
    assert_eq!(client.strangers.len(), 3);
    assert!(client.become_.is_empty());
    assert!(client.says(&format!("HELLO 3 AUTH default {}", token.reveal())).starts_with("%7"));
    assert_eq!(client.become_, [Some(token.clone())]);
    assert_eq!(client.says("GET a"), "_");
    assert!(client.says("CLIENT LIST").contains(" user=root "));
    assert_eq!(client.says("RESET"), "+RESET");
    assert_eq!(client.says("GET a"), no_auth);
    assert_eq!(client.says(&format!("AUTH root {}", token.reveal())), "+OK");
    // The user goes, and with it the connection.
    assert!(client.connection.follow(&access(&token)));
    assert!(!client.connection.follow(&access(&other)));
}

#[test]
fn without_users_everybody_is_the_default_user() {
    let mut client = Client::new();
    assert_eq!(client.says("AUTH default anything"), "+OK");
    assert!(
        client.says("AUTH somebody anything").starts_with("-ERR AUTH <token> called, and this cluster has no users")
    );
    let mut forming = Client::with(Access::unknown(), LIMITS);
    assert!(forming.says("GET a").starts_with("-LOADING this node does not know its cluster yet"));
    forming.loading = Some("recovering p1 40 %");
    forming.access = Access::default();
    assert_eq!(forming.says("GET a|PING"), "-LOADING this node starts: recovering p1 40 % +PONG");
}

/// The manual's table is made from the table of commands: `UPDATE=1 cargo test` rewrites it.
#[test]
fn the_manual_lists_every_command() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the root");
    let path = root.join("docs/operations.md");
    let page = std::fs::read_to_string(&path).expect("the manual");
    let (before, rest) = page.split_once("### 9.1 Commands\n\n").expect("the chapter");
    let (table, after) = rest.split_once("\n### 9.2").expect("the next one");
    let wanted = super::commands::table();
    if std::env::var_os("UPDATE").is_some() {
        let page = format!("{before}### 9.1 Commands\n\n{wanted}\n### 9.2{after}");
        return std::fs::write(path, page).expect("the manual is writable");
    }
    assert!(table == wanted, "docs/operations.md 9.1 differs (UPDATE=1 rewrites it)");
}
