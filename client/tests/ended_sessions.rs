//! A partition with room for fewer sessions than it has clients: each that is opened ends another one (protocol.md 6).
//! Clients that opened theirs again at once came round in a circle, and none of them ever got on.

mod script;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use coppice_btree::OpResult;
use coppice_client::command::{Command, Operation};
use coppice_client::config::Config;
use coppice_client::session::{ConnectionId, Effect, Input, Request, Session};
use coppice_client::time::Time;
use coppice_client::wire::control::encode_control;
use coppice_client::wire::{
    ClientId, Frame, Kind, MapReply, NodeId, PackReply, Refusal, RepliesWriter, Request as Asked, SessionId,
};
use script::{PARTITION, SECOND, frame, hello, map};

/// From a client to the node, and back.
const WAY: Duration = Duration::from_millis(20);
/// As many clients as a session's opening and its first pack take ways: one opens in each gap of another one.
const CLIENTS: usize = 4;

enum Event {
    Tick,
    Connected(ConnectionId),
    /// At the node.
    Asked(ConnectionId, Frame),
    Answered(ConnectionId, Frame),
}

/// Everything in order of time. The one node keeps one session.
struct World {
    now: Time,
    clients: Vec<Session>,
    events: BTreeMap<(Time, u64), (usize, Event)>,
    happened: u64,
    session: Option<SessionId>,
    opened: u64,
    instance: u64,
    done: usize,
}

impl World {
    fn order(&mut self, at: Time, client: usize, event: Event) {
        self.happened += 1;
        self.events.insert((at, self.happened), (client, event));
    }

    fn step(&mut self, client: usize, input: Input) {
        let mut effects = Vec::new();
        self.clients[client].step(self.now, input, &mut effects);
        self.clients[client].step(self.now, Input::TurnEnd, &mut effects);
        let then = self.now + WAY;
        for effect in effects {
            match effect {
                Effect::Connect { connection, .. } => self.order(then, client, Event::Connected(connection)),
                Effect::Send { connection, bytes } => {
                    self.order(then, client, Event::Asked(connection, frame(&bytes)));
                }
                Effect::Complete { result, .. } => {
                    assert!(result.is_ok(), "{result:?}");
                    self.done += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        if let Some(deadline) = self.clients[client].deadline() {
            self.order(deadline.max(self.now), client, Event::Tick);
        }
    }

    /// What the node answers.
    fn answer(&mut self, asked: &Frame) -> Option<Bytes> {
        let mut out = BytesMut::new();
        match Asked::decode(asked).expect("well formed") {
            Asked::Hello(_) => return Some(Bytes::new()),
            Asked::MapGet(_) => {
                let reply = MapReply { map: Some(map(&[2])), leaders: vec![(PARTITION, NodeId(2))] };
                encode_control(&mut out, Kind::Map, asked.stream, &reply);
            }
            Asked::OpenSession(_) => {
                self.instance += 1;
                self.opened += 1;
                let session = SessionId { partition: PARTITION, instance: self.instance, index: 0 };
                self.session = Some(session);
                let mut replies = RepliesWriter::new(&mut out);
                replies.opened(asked.stream, session);
                replies.finish();
            }
            Asked::Commands(request) => {
                self.instance += 1;
                let pack = request.pack().expect("a pack");
                if self.session != Some(pack.session()) {
                    Refusal::SessionExpired.encode(&mut out, asked.stream);
                    return Some(out.freeze());
                }
                let mut answer = BytesMut::new();
                let mut reply = PackReply::new(&mut answer, PARTITION, self.instance, 0);
                pack.commands().for_each(|_| reply.result(&OpResult::Put { previous: None }));
                reply.finish();
                let mut replies = RepliesWriter::new(&mut out);
                replies.answer(asked.stream, &answer).expect("well formed");
                replies.finish();
            }
            _ => return None,
        }
        Some(out.freeze())
    }

    /// Lets things happen until all that was asked is answered, or until then.
    fn run(&mut self, until: Time) {
        while self.done < CLIENTS
            && let Some(((at, _), (client, event))) = self.events.pop_first()
            && at <= until
        {
            self.now = at;
            match event {
                Event::Tick if self.clients[client].deadline().is_some_and(|deadline| deadline <= at) => {
                    self.step(client, Input::Tick);
                }
                Event::Tick => {}
                Event::Connected(connection) => self.step(client, Input::Connected(connection)),
                Event::Asked(connection, asked) => {
                    let answer = self.answer(&asked);
                    let answer = answer.map(|bytes| if bytes.is_empty() { hello(2) } else { frame(&bytes) });
                    if let Some(answer) = answer {
                        self.order(at + WAY, client, Event::Answered(connection, answer));
                    }
                }
                Event::Answered(connection, frame) => self.step(client, Input::Frame { connection, frame }),
            }
        }
    }
}

#[test]
fn clients_that_end_each_others_sessions_get_on_one_after_the_other() {
    let client = |at: usize| Session::new(Config::default(), ClientId(at as u64), at as u64, vec!["n2:1".into()]);
    let mut world = World {
        now: Time(SECOND),
        clients: (1..=CLIENTS).map(client).collect(),
        events: BTreeMap::new(),
        happened: 0,
        session: None,
        opened: 0,
        instance: 0,
        done: 0,
    };
    for client in 0..CLIENTS {
        let put = Request::Command(Command::One(Operation::put("k", "v")));
        world.clients[client].submit(1, Time(60 * SECOND), put).expect("there is room");
        world.now = Time(SECOND) + WAY * client as u32;
        world.order(world.now, client, Event::Tick);
    }
    world.run(Time(10 * SECOND));
    assert_eq!(world.done, CLIENTS, "{} sessions were opened", world.opened);
    assert!(world.opened < 10 * CLIENTS as u64, "{} sessions were opened", world.opened);
}

/// In a process of its own, as every planted bug (hazards.md 6).
#[cfg(feature = "mutants")]
#[test]
fn a_session_that_is_opened_again_at_once_is_caught() {
    let test = "clients_that_end_each_others_sessions_get_on_one_after_the_other";
    let program = std::env::current_exe().expect("this program");
    let mut command = std::process::Command::new(program);
    let output = command.args([test, "--exact"]).env("COPPICE_MUTANT", "client_reopens_at_once").output();
    assert!(!output.expect("it runs").status.success(), "the planted bug survived");
}
