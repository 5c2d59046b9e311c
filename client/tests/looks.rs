//! Looks are reads where the node that is asked knows them as such, and commands where it does not.

mod script;

use coppice_btree::OpResult;
use coppice_client::command::ReadMode;
use coppice_client::session::{Input, Request};
use coppice_client::time::Time;
use coppice_client::wire::{Kind, NodeId, PackReply, Request as Asked};
use script::{Bench, PARTITION, SECOND, hello_of_older, start};

/// Node 2 leads, and is connected to.
fn led() -> Bench {
    let mut bench = start(&[1, 2], NodeId(2));
    let get = bench.asks(Kind::Read);
    bench.answer(get, |out, stream| answered(out, stream, None));
    assert_eq!(bench.answered, 1);
    bench
}

/// What a node answers to one get, or to one look.
fn answered(out: &mut bytes::BytesMut, stream: u32, look: Option<OpResult>) {
    let mut answer = bytes::BytesMut::new();
    let mut reply = PackReply::read(&mut answer, PARTITION, 5, 0);
    match look {
        Some(look) => reply.result(&look),
        None => reply.value(None),
    }
    reply.finish();
    let mut replies = coppice_client::wire::RepliesWriter::new(out);
    replies.answer(stream, &answer).expect("our own");
    replies.finish();
}

fn looks(bench: &mut Bench, count: u64, mode: ReadMode) {
    for token in 0..count {
        let key = format!("k{token}").as_str().into();
        bench.session.submit(100 + token, Time(60 * SECOND), Request::Look { key, mode }).expect("there is room");
    }
    bench.step(Input::Tick);
}

#[test]
fn looks_share_a_read_and_gets_have_another() {
    let mut bench = led();
    looks(&mut bench, 3, ReadMode::Leader);
    let asked = bench.asks(Kind::Read);
    let Ok(Asked::Read(read)) = Asked::decode(&asked.1) else { panic!("a read") };
    assert_eq!((read.looks, read.len(), read.stale, read.anywhere), (true, 3, false, false));
    for get in 1..3 {
        let get = Request::Get { key: format!("g{get}").as_str().into(), mode: ReadMode::Leader };
        bench.session.submit(50, Time(60 * SECOND), get).expect("there is room");
    }
    bench.step(Input::Tick);
    let Ok(Asked::Read(gets)) = Asked::decode(&bench.asks(Kind::Read).1) else { panic!("a read") };
    assert_eq!((gets.looks, gets.len()), (false, 2));
}

/// An answer of another kind is never believed.
#[test]
fn a_value_does_not_answer_a_look() {
    for (look, believed) in
        [(OpResult::Look { exists: true, length: 3, remaining: Some(7) }, 2), (OpResult::Get { value: None }, 1)]
    {
        let mut bench = led();
        looks(&mut bench, 1, ReadMode::Leader);
        let asked = bench.asks(Kind::Read);
        bench.answer(asked, |out, stream| answered(out, stream, Some(look.clone())));
        assert_eq!(bench.answered, believed, "{look:?}");
    }
}

#[test]
fn looks_take_the_log_where_the_node_that_is_asked_is_older() {
    let mut bench = led();
    // Each is for a replica that is drawn.
    let look = |bench: &mut Bench| {
        looks(bench, 1, ReadMode::AnyReplica);
        let asked: Vec<_> = bench.asked.extract_if(.., |(_, frame)| frame.kind == Kind::Read as u8).collect();
        let found = OpResult::Look { exists: false, length: 0, remaining: None };
        asked.iter().for_each(|asked| {
            bench.answer(asked.clone(), |out, stream| answered(out, stream, Some(found.clone())));
        });
        asked.into_iter().map(|(connection, _)| connection).collect::<Vec<_>>()
    };
    (0..20).for_each(|_| drop(look(&mut bench)));
    let (connection, address) = bench.dialled.remove(0);
    assert_eq!((address.as_str(), bench.answered), ("n1:1", 21));
    bench.step(Input::Connected(connection));
    bench.step(Input::Frame { connection, frame: hello_of_older(1) });
    let served: Vec<_> = (0..40).flat_map(|_| look(&mut bench)).collect();
    assert!((5..35).contains(&served.len()) && !served.contains(&connection), "{served:?}");
    let (at, _) = bench.asks(Kind::OpenSession);
    assert_ne!(at, connection, "the leader orders the others");
}
