//! What a stranger types at the RESP port: requests in both forms, and all that a connection makes of them.

use bytes::BytesMut;
use coppice_client::error::{Error, Failure, Place, Reason};
use coppice_client::map::PartitionMap;
use coppice_core::access::Access;
use coppice_core::resp::connection::Limits;
use coppice_core::resp::identity::ClientRow;
use coppice_core::resp::plan::Ranged;
use coppice_core::resp::server::Facts;
use coppice_core::resp::{Context, Effect, Input, NodeView, RespConnection};

use super::shape::{Prefix, Shape};

const LIMITS: Limits = Limits { requests: 64, bytes: 1 << 20 };

fn request(words: &[&str]) -> Shape {
    let mut shape = Shape::default();
    let all = shape.open(Prefix::Nothing);
    shape.bytes(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        shape.bytes(format!("${}\r\n", word.len()).as_bytes());
        shape.bytes(word.as_bytes());
        shape.bytes(b"\r\n");
    }
    shape.close(all);
    shape
}

/// One of each kind, and some as people type them.
pub fn requests() -> Vec<Shape> {
    let mut typed = Shape::default();
    typed.bytes(b"set \"a b\" 'c' px 100\r\nping\r\n");
    let each = [
        "SET key value EX 10 NX GET",
        "MGET a b c",
        "MSETNX a 1 b 2",
        "INCRBY n -7",
        "SETRANGE a 5 xyz",
        "EXPIRE a 100 GT",
        "SCAN 0 MATCH a*[b-c]?\\x COUNT 7 TYPE string",
        "KEYS *[^a]*",
        "RANGE [a (b LIMIT 3 NOVALUES",
        "REVRANGE + -",
        "RANDOMKEY",
        "HELLO 3 SETNAME me",
        "CLIENT SETINFO LIB-NAME fuzz",
        "CLUSTER KEYSLOT {a}b",
        "COMMAND GETKEYS MSET a 1 b 2",
        "CONFIG GET *",
        "INFO server memory",
        "RESET",
        "RENAME a b",
    ];
    let mut shapes: Vec<Shape> =
        each.iter().map(|line| request(&line.split(' ').collect::<Vec<_>>())).chain([typed]).collect();
    let mut transaction = Shape::default();
    let all = transaction.open(Prefix::Nothing);
    for line in ["WATCH a", "MULTI", "SET a 1", "INCR a", "EXEC", "GET a", "DBSIZE", "GET b"] {
        transaction.append(&request(&line.split(' ').collect::<Vec<_>>()));
    }
    transaction.close(all);
    shapes.push(transaction);
    shapes
}

/// A connection that says these bytes. Every second question is answered, with a failure or nothing.
pub fn run(bytes: &[u8]) -> bool {
    let (map, access) = (PartitionMap::default(), Access::default());
    let node = NodeView::new(1);
    let mut context = Context {
        now: 1,
        draw: &|| 5,
        map: &map,
        access: &access,
        node: &node,
        room: LIMITS.bytes,
        loading: None,
        facts: &Facts::default,
    };
    let mut connection = RespConnection::new(1, ClientRow::default(), LIMITS, &mut context);
    let (mut input, mut effects) = (BytesMut::from(bytes), Vec::new());
    let failed = || Error::Failed(Box::new(Failure { reason: Reason::NoLeader, place: Place::default() }));
    for turn in 0..256 {
        let before = input.len();
        connection.step(&mut context, Input::TurnEnd(&mut input), &mut effects);
        if effects.is_empty() && (input.is_empty() || input.len() == before) && !connection.is_cut() {
            break;
        }
        for (at, effect) in std::mem::take(&mut effects).into_iter().enumerate() {
            match effect {
                Effect::Ask(ask) => {
                    connection.step(
                        &mut context,
                        Input::Answered { call: ask.call, outcome: Err(failed()) },
                        &mut effects,
                    );
                }
                Effect::Range { call, pattern, .. } => {
                    let mut ranged = Ranged { count: 7, is_limited: turn % 2 == 0, ..Ranged::default() };
                    (0..(at + turn) % 3).for_each(|_| _ = ranged.look_at(pattern.as_ref(), b"a", b"b"));
                    connection.step(&mut context, Input::Ranged { call, outcome: Ok(ranged) }, &mut effects);
                }
                Effect::Become(_) | Effect::Stranger(_) => {}
            }
        }
    }
    let output = connection.output();
    assert!(output.is_empty() || output.ends_with(b"\r\n"));
    !output.starts_with(b"-ERR Protocol error") && !output.is_empty()
}
