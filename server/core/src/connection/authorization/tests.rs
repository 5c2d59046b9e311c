//! Each role and each request that a client can send.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use coppice_btree::Value;
use coppice_client::token::Token;
use coppice_client::wire::control::encode_control;
use coppice_client::wire::users::{Grant, UserChange};
use coppice_client::wire::validate::RangeVersion;
use coppice_client::wire::{
    AdminRequest, ChangeId, ClientId, CollectRequest, FrameDecoder, Hello, InitRequest, Kind, MapGet, OpenRequest,
    PackWriter, PartitionId, QueryRequest, RangeRequest, ReadRequest, ReshapeRequest, ScanOptions, SessionId, Shape,
    StatusGet, ValidateRequest, Version, encode_frame,
};

use super::*;
use crate::access::{Access, Credentials, Users};

/// What a client writes, as the node sees it.
fn asked(write: impl FnOnce(&mut BytesMut)) -> Request {
    let mut out = BytesMut::new();
    write(&mut out);
    let mut decoder = FrameDecoder::default();
    decoder.feed(&out);
    Request::decode(&decoder.next_frame().expect("a good frame").expect("a whole one")).expect("a request")
}

fn admin(request: AdminRequest) -> Request {
    asked(|out| encode_control(out, Kind::Admin, 1, &request))
}

fn pack(push: impl FnOnce(&mut PackWriter)) -> Request {
    let mut writer = PackWriter::new(Vec::new(), SessionId::default(), 1, false, 1 << 20);
    push(&mut writer);
    let frame = writer.finish(PartitionId(1), 1).expect("a pack");
    asked(|out| out.extend_from_slice(&frame))
}

fn op(op: Op<'_>) -> Request {
    pack(|writer| writer.push(1, op).expect("it fits"))
}

fn many(keys: [&[u8]; 2]) -> Request {
    let operations = [Op::Put { key: keys[0], value: b"v" }, Op::Delete { key: keys[1] }];
    pack(|writer| writer.push_many(1, operations.into_iter()).expect("it fits"))
}

fn load(keys: [&[u8]; 2]) -> Request {
    pack(|writer| writer.push_load(1, keys.map(|key| (key, &b"v"[..])).into_iter()).expect("it fits"))
}

fn range(low: &[u8], high: Option<&[u8]>, reverse: bool) -> Request {
    let scan = ScanOptions { reverse, ..ScanOptions::default() };
    let request =
        RangeRequest { low: low.into(), high: high.map(Value::from), scan, ..RangeRequest::whole(PartitionId(1)) };
    asked(|out| request.encode(out, 1))
}

fn collect(lows: &[&[u8]], high: Option<&[u8]>) -> Request {
    let parts = (1..).map(PartitionId).zip(lows.iter().map(|&low| Value::from(low))).collect();
    let high = high.map(Value::from);
    let scan = ScanOptions { count_only: true, ..ScanOptions::default() };
    let request = CollectRequest { parts, high, scan, credit: 0 };
    asked(|out| request.encode(out, 1))
}

fn query(low: &[u8], high: Option<&[u8]>) -> Request {
    let request = QueryRequest {
        query: 1,
        low: low.to_vec().into(),
        high: high.map(|high| high.to_vec().into()),
        scan: ScanOptions { reverse: true, ..ScanOptions::default() },
        from_leaders: true,
        spread: false,
        credit: 0,
    };
    asked(|out| request.encode(out, 1))
}

fn validate(low: &[u8], high: Option<&[u8]>) -> Request {
    let inside = RangeVersion { version: Version::default(), low: b"a/1", high: Some(b"a/2") };
    let other = RangeVersion { version: Version::default(), low, high };
    asked(|out| ValidateRequest::encode(out, 1, (PartitionId(1), false), [inside, other].into_iter()))
}

fn read(keys: &[&[u8]]) -> Request {
    asked(|out| ReadRequest::encode(out, 1, PartitionId(1), (true, true), keys.iter().copied()))
}

/// Rights of a user with these grants.
fn rights(grants: &[(Role, &str)]) -> Arc<Rights> {
    let mut users = Users::default();
    let root = Token::generate().expect("random bits").hash();
    let everything = Grant { role: Role::Admin, prefix: Default::default() };
    let add = |name: &str, grant: Grant, token| UserChange::Add {
        name: name.into(),
        grant,
        token: Some(token),
        certificate: None,
    };
    users.apply(None, &add("root", everything, root), 0).expect("the first one");
    let mine = Token::generate().expect("random bits").hash();
    for (at, (role, prefix)) in grants.iter().enumerate() {
        let grant = Grant { role: *role, prefix: prefix.as_bytes().to_vec().into() };
        let change = match at {
            0 => add("u", grant, mine),
            _ => UserChange::Grant { name: "u".into(), grant },
        };
        users.apply(Some("root"), &change, 0).expect("a change");
    }
    let credentials = Credentials { token: Some(mine), certificate: None };
    Arc::clone(Access::new(users).rights(&credentials).expect("the user"))
}

/// A request, and who may make it: [read, write, admin] for all keys, and the same for the keys under `a/`.
type Row = (&'static str, Request, [bool; 3], [bool; 3]);

const ALL: [bool; 3] = [true; 3];
const NOBODY: [bool; 3] = [false; 3];
const WRITERS: [bool; 3] = [false, true, true];
const ADMINS: [bool; 3] = [false, false, true];

fn rows() -> Vec<Row> {
    let put = |key| op(Op::Put { key, value: b"v" });
    let hello = Hello::default();
    let change = UserChange::Remove { name: "x".into() };
    vec![
        ("hello", asked(|out| encode_control(out, Kind::Hello, 1, &hello)), ALL, ALL),
        ("ping", asked(|out| encode_frame(out, Kind::Ping, 1, &[])), ALL, ALL),
        ("map", asked(|out| encode_control(out, Kind::MapGet, 1, &MapGet::default())), ALL, ALL),
        ("status", asked(|out| encode_control(out, Kind::Status, 1, &StatusGet::default())), ALL, ALL),
        ("credit", asked(|out| RangeRequest::encode_credit(out, 1, 9)), ALL, ALL),
        ("cancel", asked(|out| encode_frame(out, Kind::Cancel, 1, &[])), ALL, ALL),
        ("get inside", read(&[b"a/1", b"a/"]), ALL, ALL),
        ("get outside", read(&[b"a/1", b"b"]), ALL, NOBODY),
        ("range inside", range(b"a/", Some(b"a0"), false), ALL, ALL),
        ("range inside, reverse", range(b"a/", Some(b"a0"), true), ALL, ALL),
        ("range beyond", range(b"a/", Some(b"a0\0"), false), ALL, NOBODY),
        ("range beyond, reverse", range(b"a", Some(b"a/1"), true), ALL, NOBODY),
        ("range to the end", range(b"a/", None, false), ALL, NOBODY),
        ("range of all", range(b"", None, false), ALL, NOBODY),
        ("collect inside", collect(&[b"a/", b"a/5"], Some(b"a0")), ALL, ALL),
        ("collect beyond", collect(&[b"a/", b"a/5"], Some(b"b")), ALL, NOBODY),
        ("collect from before", collect(&[b"", b"a/"], Some(b"a/5")), ALL, NOBODY),
        ("collect in disorder", collect(&[b"a/5", b"", b"a/1"], Some(b"a/5")), ALL, NOBODY),
        ("query inside", query(b"a/", Some(b"a0")), ALL, ALL),
        ("query beyond", query(b"a/1", None), ALL, NOBODY),
        ("validate inside", validate(b"a/", Some(b"a0")), ALL, ALL),
        ("validate beyond", validate(b"b", Some(b"c")), ALL, NOBODY),
        ("get in a pack", op(Op::Get { key: b"a/1" }), ALL, ALL),
        ("get in a pack, outside", op(Op::Get { key: b"b" }), ALL, NOBODY),
        ("put inside", put(b"a/1"), WRITERS, WRITERS),
        ("put outside", put(b"a"), WRITERS, NOBODY),
        ("insert", op(Op::Insert { key: b"a/1", value: b"v" }), WRITERS, WRITERS),
        ("delete", op(Op::Delete { key: b"a/1" }), WRITERS, WRITERS),
        ("delete outside", op(Op::Delete { key: b"b" }), WRITERS, NOBODY),
        ("cas outside", op(Op::Cas { key: b"b", expected: b"", value: b"" }), WRITERS, NOBODY),
        (
            "put inside and put outside",
            pack(|writer| {
                writer.push(1, Op::Put { key: b"a/1", value: b"v" }).expect("it fits");
                writer.push(2, Op::Put { key: b"b", value: b"v" }).expect("it fits");
            }),
            WRITERS,
            NOBODY,
        ),
        ("many inside", many([b"a/1", b"a/2"]), WRITERS, WRITERS),
        ("many beyond", many([b"a/1", b"b"]), WRITERS, NOBODY),
        ("load inside", load([b"a/1", b"a/2"]), WRITERS, WRITERS),
        ("load beyond", load([b"a/1", b"b"]), WRITERS, NOBODY),
        ("session", asked(|out| OpenRequest::encode(out, 1, PartitionId(1), ClientId(1), 1)), WRITERS, WRITERS),
        ("users", admin(AdminRequest::Users), ADMINS, ADMINS),
        ("user remove", admin(AdminRequest::ChangeUsers(change)), ADMINS, ADMINS),
        ("init", admin(AdminRequest::Init(InitRequest::default())), ADMINS, NOBODY),
        ("config get", admin(AdminRequest::ConfigGet), ADMINS, NOBODY),
        ("config set", admin(AdminRequest::ConfigSet { key: "window".into(), value: "1".into() }), ADMINS, NOBODY),
        ("config unset", admin(AdminRequest::ConfigUnset { key: "window".into() }), ADMINS, NOBODY),
        ("log level", admin(AdminRequest::LogLevel { spec: "debug".into() }), ADMINS, NOBODY),
        ("check replicas", admin(AdminRequest::CheckReplicas), ADMINS, NOBODY),
        ("tuning", admin(AdminRequest::Tuning { local: true }), ADMINS, NOBODY),
        ("faults", admin(AdminRequest::Faults(Vec::new())), ADMINS, NOBODY),
    ]
}

#[test]
fn each_role_may_ask_what_it_includes_and_nothing_else() {
    for (what, asked, of_all, of_prefix) in rows() {
        for (role, all, prefix) in
            [(0, of_all[0], of_prefix[0]), (1, of_all[1], of_prefix[1]), (2, of_all[2], of_prefix[2])]
        {
            let role = Role::ALL[role];
            assert_eq!(check(&rights(&[(role, "")]), &asked).is_ok(), all, "{what}: {role}");
            assert_eq!(check(&rights(&[(role, "a/")]), &asked).is_ok(), prefix, "{what}: {role} under a/");
        }
        assert!(check(&Rights::everything(), &asked).is_ok(), "{what}: access control is off");
    }
}

/// A node that does not know the users yet must not take that for "there are none".
#[test]
fn before_the_users_are_known_a_node_answers_no_question_about_data() {
    let forming = Rights::while_forming();
    for (what, asked, of_all, of_prefix) in rows() {
        let harmless = ["hello", "ping", "map", "status", "credit", "cancel", "init"].contains(&what);
        match check(&forming, &asked) {
            Ok(()) => assert!(harmless, "{what}"),
            Err(AdmissionError::Forming) => assert!(!harmless, "{what}"),
            Err(AdmissionError::Denied(denial)) => panic!("{what}: {denial}, {of_all:?} {of_prefix:?}"),
        }
    }
}

#[test]
fn a_role_for_one_prefix_adds_to_that_for_all() {
    let both = rights(&[(Role::Read, ""), (Role::Write, "a/")]);
    for (what, asked, of_all, of_prefix) in rows() {
        assert_eq!(check(&both, &asked).is_ok(), of_all[0] || of_prefix[1], "{what}");
    }
}

/// The query asked at another node, perhaps for a client of another user.
#[test]
fn a_part_of_a_query_goes_to_whom_may_read_it() {
    let (query, low, high) = (1, Bytes::from_static(b"a/"), Some(Bytes::from_static(b"a/z")));
    let (client, replica, scan) = (ClientId(4), coppice_ordering::ReplicaId(1), ScanOptions::default());
    let part = PartitionQuery { client, query, replica, low, high, scan, credit: 0 };
    assert!(rights(&[(Role::Read, "a/")]).part(&part) && Rights::everything().part(&part));
    assert!(!rights(&[(Role::Read, "b/")]).part(&part) && !Rights::while_forming().part(&part));
}

/// What operators did is in the log by its name, and without keys or secrets.
#[test]
fn verbs_that_change_something_are_logged_without_keys() {
    let token = Token::generate().expect("random bits");
    let secret = UserChange::Token { name: "bob".into(), token: token.hash(), keep: false };
    let init = InitRequest { split_keys: vec!["secret".into()], ..InitRequest::default() };
    let shape = Shape::SetReplicas { count: Some(5) };
    let replicas = ReshapeRequest { change: ChangeId(1), shape, dry_run: false, force: false, within: None };
    for (admin, logged) in [
        (AdminRequest::ChangeUsers(secret), Some("user token bob")),
        (AdminRequest::Init(init), Some("init")),
        (AdminRequest::ConfigSet { key: "window".into(), value: "4".into() }, Some("config set window 4")),
        (AdminRequest::ConfigUnset { key: "window".into() }, Some("config unset window")),
        (AdminRequest::Reshape(replicas), Some("config set replicas 5")),
        (AdminRequest::ConfigGet, None),
        (AdminRequest::Users, None),
    ] {
        assert_eq!(admin.properties().changes.then(|| admin.to_string()).as_deref(), logged);
    }
}
