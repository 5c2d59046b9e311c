//! Clients of a run that speak RESP: they draw what the others draw, and say it as programs for Redis do. What they are
//! told stands in the same history. An answer names no position, so the search judges it and the certificate cannot;
//! and nothing can be repeated under its number: without an answer it stays unknown.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use coppice_check::cli::Line;
use coppice_check::event::{Call, Output, Status, Text};
use coppice_check::marks::MoveResult;
use coppice_check::record::Answer;
use coppice_client::Operation;
use coppice_testkit::random::Random;
use coppice_testkit::resp::{Client, Reply, Request, request};

use super::counters::{Count, Counters};
use super::draw::{Draw, Drawer, call_of};
use super::workload::{Workload, learn, moved_by};

/// How long a client waits for an answer: most give up before the node does, some hear what the node says then.
const TIMEOUTS: [Duration; 3] = [Duration::from_secs(2), Duration::from_secs(2), Duration::from_secs(8)];

/// Pause behind an error, before another node is asked.
const ERROR_PAUSE: Duration = Duration::from_millis(20);

/// Requests that are sent at once, at most.
const PIPELINE_MAX: u32 = 6;

/// Calls of all clients that are in flight, at most: as many as the search wants.
const IN_FLIGHT_MAX: u32 = 64;

/// Codes of errors that say that nothing was done.
const SURE: [&str; 6] = ["NOQUORUM", "OVERLOADED", "OOM", "CROSSPARTITION", "EXECABORT", "LOADING"];

/// What the clients of a run share beside the workload.
#[derive(Debug)]
pub struct RespClients {
    /// Where each node listens.
    pub addresses: Vec<SocketAddr>,
    /// What they count.
    pub counters: Counters,
    /// Requests that one sends at once, at most.
    pipeline_max: usize,
    /// By command: answered, refused, unknown.
    told: Mutex<BTreeMap<String, [u64; 3]>>,
    wrong: Mutex<Vec<String>>,
}

impl RespClients {
    /// Of so many clients of both kinds, which have asked nothing.
    pub fn new(clients: u32, addresses: Vec<SocketAddr>, counters: Counters) -> RespClients {
        let pipeline_max = (IN_FLIGHT_MAX / clients.max(1)).clamp(1, PIPELINE_MAX) as usize;
        RespClients { addresses, counters, pipeline_max, told: Mutex::default(), wrong: Mutex::default() }
    }

    /// Answers that no command has.
    pub fn take_wrong(&self) -> Vec<String> {
        std::mem::take(&mut self.wrong.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What was asked, and how that ended.
    pub fn seen(&self) -> Line {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let each = |(name, [answered, refused, unknown]): (&String, &[u64; 3])| {
            format!("{name} {answered}/{refused}/{unknown}")
        };
        let each: Vec<String> = told.iter().map(each).collect();
        let what = format!("answered/refused/unknown over RESP: {}", each.join(", "));
        Line { check: "RESP".into(), verdict: "seen", what }
    }

    fn count(&self, name: String, told: &Outcome) {
        let place = match told {
            Outcome::Output(_) => 0,
            Outcome::Refused => 1,
            Outcome::Unknown => 2,
        };
        self.told.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default()[place] += 1;
    }
}

/// One operation of the history.
struct Question {
    call: Call<'static>,
    /// What it writes, for the drawer.
    operations: Vec<Operation>,
    /// What is sent for it: the last one is answered with its result.
    requests: Vec<Request>,
    recording: Recording,
}

impl Question {
    /// Whether it moves a ladder or a token.
    fn is_mark(&self) -> bool {
        self.operations.iter().any(is_mark)
    }

    /// Whether others may be sent before it is answered: a ladder or a token moves step by step, and what a transaction
    /// watches is looked at in between.
    fn may_be_followed(&self) -> bool {
        self.requests.len() == 1 && !self.is_mark()
    }
}

/// When the history learns of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Recording {
    /// Before it is sent.
    Ahead,
    /// Behind its answer: only then is it known which value it replaces.
    Behind,
    /// At the end: it counts up this counter.
    AtEnd(usize),
}

/// How an operation ended.
#[derive(Debug)]
enum Outcome {
    Output(Output<'static>),
    /// It certainly did nothing.
    Refused,
    Unknown,
}

/// A client.
pub struct RespClient {
    workload: Arc<Workload>,
    all: Arc<RespClients>,
    number: u32,
    drawer: Drawer,
    random: Random,
    /// The node that is asked.
    at: usize,
    connection: Option<Client>,
    /// The node has answered with an error.
    is_refused: bool,
}

impl RespClient {
    /// Client number `number`, which has asked nothing.
    pub fn new(workload: Arc<Workload>, all: Arc<RespClients>, number: u32) -> RespClient {
        let drawer = Drawer::new(number, workload.seed, workload.space.clone());
        let random = Random::of(workload.seed, 0x4e59_0000 + u64::from(number));
        RespClient { workload, all, number, drawer, random, at: number as usize, connection: None, is_refused: false }
    }

    /// Asks until it is told to stop.
    pub fn run(mut self) {
        while !self.workload.is_stopping() {
            if !self.is_connected() {
                std::thread::sleep(ERROR_PAUSE);
                continue;
            }
            let begun = Instant::now();
            let mut questions = vec![self.draw()];
            while questions.len() < self.all.pipeline_max
                && questions.last().is_some_and(Question::may_be_followed)
                && self.random.chance(400)
            {
                questions.push(self.draw());
            }
            let pause = self.workload.pause * questions.len() as u32;
            if let Err(error) = self.ask(questions) {
                return self.workload.fail(error);
            }
            if std::mem::take(&mut self.is_refused) {
                self.leave();
                std::thread::sleep(ERROR_PAUSE);
            }
            if !self.drawer.hurries() {
                std::thread::sleep(pause.saturating_sub(begun.elapsed()));
            }
        }
    }

    fn is_connected(&mut self) -> bool {
        if self.connection.is_none() {
            let timeout = TIMEOUTS[self.random.below(TIMEOUTS.len())];
            let address = self.all.addresses[self.at % self.all.addresses.len()];
            self.connection = Client::connect(address, timeout).ok();
            self.at += usize::from(self.connection.is_none());
        }
        self.connection.is_some()
    }

    /// Another node is asked from now on.
    fn leave(&mut self) {
        self.connection = None;
        self.at += 1;
    }

    fn draw(&mut self) -> Question {
        self.workload.count();
        if !self.drawer.hurries() && self.random.chance(80) {
            let counter = self.random.below(self.all.counters.keys().len());
            let key = &self.all.counters.keys()[counter];
            // What it writes is known at the end.
            let call = Call::Get { key: text(key.as_bytes()) };
            let requests = vec![request(["INCR", key])];
            return Question { call, operations: Vec::new(), requests, recording: Recording::AtEnd(counter) };
        }
        let draw = self.drawer.draw();
        let call = call_of(&draw);
        let (operations, requests) = match draw {
            Draw::Get { key, .. } if self.random.chance(500) => return self.get_many(key),
            Draw::Get { key, .. } => (Vec::new(), vec![request(["GET", &key])]),
            Draw::Range { low, high, limit, reverse, .. } => {
                (Vec::new(), vec![range(&low, high.as_deref(), limit, reverse)])
            }
            Draw::Write(operations) => {
                let requests = match &operations[..] {
                    [Operation::Cas { key, value, .. }] => {
                        vec![request(["MULTI"]), request([&b"SET"[..], key, value]), request(["EXEC"])]
                    }
                    [one] => vec![self.write(one)],
                    several => {
                        let several = several.iter().map(said_with_value);
                        // What was watched and not carried out is watched yet.
                        let begin = [request(["UNWATCH"]), request(["MULTI"])];
                        begin.into_iter().chain(several).chain([request(["EXEC"])]).collect()
                    }
                };
                (operations, requests)
            }
        };
        let recording = if matches!(call, Call::Cas { .. }) { Recording::Behind } else { Recording::Ahead };
        Question { call, operations, requests, recording }
    }

    /// This key and others from anywhere, at one moment.
    fn get_many(&mut self, first: String) -> Question {
        let mut keys = vec![first];
        for _ in 0..1 + self.random.below(3) {
            keys.push(self.workload.space.key(self.random.below(self.workload.space.keys())));
        }
        let counters = self.all.counters.keys();
        keys.push(counters[self.random.below(counters.len())].clone());
        let call = Call::Many(keys.iter().map(|key| Call::Get { key: text(key.as_bytes()) }).collect());
        let requests = vec![request(["MGET".to_owned()].into_iter().chain(keys))];
        Question { call, operations: Vec::new(), requests, recording: Recording::Ahead }
    }

    /// A write, so that it answers with the value that was there, or as most programs say it.
    fn write(&mut self, operation: &Operation) -> Request {
        match operation {
            Operation::Put { key, value } if self.random.chance(600) => request([&b"SET"[..], key, value]),
            // Whether the step of a ladder or token was done must be known.
            Operation::Insert { key, value } if !is_mark(operation) && self.random.chance(300) => {
                request([&b"SETNX"[..], key, value])
            }
            // Which one of several it was the logs do not say.
            Operation::Delete { key } if self.random.chance(200) => request([&b"DEL"[..], key]),
            other => said_with_value(other),
        }
    }

    fn ask(&mut self, questions: Vec<Question>) -> io::Result<()> {
        let recorder = &self.workload.recorder;
        let mut begun = Vec::new();
        for Question { call, recording, .. } in &questions {
            let (client, own) = (u64::from(self.number), self.drawer.writes());
            begun.push(match recording {
                Recording::Ahead => recorder.invoke(client, own, call.clone(), false)?,
                Recording::Behind | Recording::AtEnd(_) => recorder.now(),
            });
        }
        let at_once = questions.iter().filter(|question| question.recording != Recording::Behind);
        self.send(at_once.flat_map(|question| &question.requests));
        for (mut question, mut begun) in questions.into_iter().zip(begun) {
            let told = match question.recording {
                Recording::Behind => self.watch(&mut question, &mut begun),
                _ => self.hear(&question),
            };
            let name = match &question.requests[..] {
                [only] => String::from_utf8_lossy(&only[0]).into_owned(),
                _ if question.recording == Recording::Behind => "WATCH+EXEC".to_owned(),
                _ => "EXEC".to_owned(),
            };
            self.all.count(name, &told);
            self.record(question, begun, told)?;
        }
        Ok(())
    }

    /// `begun`: what the history calls the operation, or when it began if the history does not know it yet.
    fn record(&mut self, question: Question, begun: u64, told: Outcome) -> io::Result<()> {
        let is_mark = question.is_mark();
        let Question { call, operations, recording, .. } = question;
        let (recorder, client) = (&self.workload.recorder, u64::from(self.number));
        let now = recorder.now();
        let (moved, answer) = match told {
            Outcome::Unknown => (MoveResult::Unknown, None),
            Outcome::Refused => (MoveResult::Refused, Some(Answer::refused())),
            Outcome::Output(output) => {
                learn(&operations, &output, &mut self.drawer);
                if let (Call::Get { key }, Output::Value(value)) = (&call, &output) {
                    self.drawer.saw(key, value.as_deref());
                }
                let moved = moved_by(&operations, &output);
                (moved, Some(Answer { status: Status::Ok, output, positions: Vec::new(), ticket: None }))
            }
        };
        if is_mark {
            self.drawer.told(moved);
        }
        match (recording, answer) {
            (Recording::Ahead, Some(answer)) => recorder.answer(begun, answer)?,
            (Recording::Ahead, None) | (_, Some(Answer { status: Status::No, .. })) => {}
            (Recording::Behind, answer) => recorder.late(client, call, begun, answer.map(|answer| (now, answer)))?,
            (Recording::AtEnd(counter), answer) => {
                let number = answer.and_then(|answer| match answer.output {
                    Output::Value(Some(number)) => std::str::from_utf8(&number).ok()?.parse().ok(),
                    _ => None,
                });
                let answer = number.map(|number| (now, number));
                self.all.counters.add(Count { client, counter, from: begun, answer });
            }
        }
        Ok(())
    }

    fn send<'a>(&mut self, requests: impl IntoIterator<Item = &'a Request>) {
        if let Some(connection) = &mut self.connection
            && connection.send(requests).is_err()
        {
            self.leave();
        }
    }

    fn receive(&mut self) -> Option<Reply> {
        let reply = self.connection.as_mut()?.receive().ok();
        if reply.is_none() {
            self.leave();
        }
        reply
    }

    /// The answer to a question that was sent.
    fn hear(&mut self, question: &Question) -> Outcome {
        for _ in 1..question.requests.len() {
            if self.receive().is_none() {
                return Outcome::Unknown;
            }
        }
        self.receive().map_or(Outcome::Unknown, |reply| self.understand(&question.call, reply))
    }

    fn understand(&mut self, call: &Call<'static>, reply: Reply) -> Outcome {
        self.is_refused |= matches!(reply, Reply::Error(_));
        outcome_of(call, reply).unwrap_or_else(|wrong| {
            self.all.wrong.lock().unwrap_or_else(PoisonError::into_inner).push(wrong);
            Outcome::Unknown
        })
    }

    /// A read and a write, which WATCH and EXEC make one. Values never return: a key that holds one before WATCH and
    /// behind it held it then. What is absent may have been there meanwhile; EXEC finds it absent all the same.
    fn watch(&mut self, question: &mut Question, begun: &mut u64) -> Outcome {
        let Some(Operation::Cas { key, value, .. }) = question.operations.first() else { return Outcome::Refused };
        let get = request([&b"GET"[..], key]);
        let (own, new) = (text(key), text(value));
        self.send(&[request(["UNWATCH"]), get.clone(), request([&b"WATCH"[..], key]), get]);
        let mut replies = Vec::new();
        for _ in 0..4 {
            // Nothing was asked for that writes.
            let Some(reply) = self.receive() else { return Outcome::Refused };
            self.is_refused |= matches!(reply, Reply::Error(_));
            replies.push(reply);
        }
        let watched = replies[2] == Reply::Simple("OK".to_owned()) && replies[1] == replies[3];
        question.call = match replies.pop() {
            Some(Reply::Bulk(Some(old))) if watched => Call::Cas { key: own, old: Text::Owned(old), value: new },
            Some(Reply::Bulk(None)) if watched => Call::Insert { key: own, value: new },
            _ => return Outcome::Refused,
        };
        // Time for others to change it.
        std::thread::sleep(Duration::from_millis(self.random.below(4)));
        *begun = self.workload.recorder.now();
        self.send(&question.requests);
        self.hear(question)
    }
}

fn text(bytes: &[u8]) -> Text<'static> {
    coppice_words::text(bytes)
}

fn is_mark(operation: &Operation) -> bool {
    operation.key().contains(&b'~')
}

/// A write that answers with the value that was there.
fn said_with_value(operation: &Operation) -> Request {
    match operation {
        Operation::Insert { key, value } => request([&b"SET"[..], key, value, b"NX", b"GET"]),
        Operation::Delete { key } => request([&b"GETDEL"[..], key]),
        other => request([&b"SET"[..], other.key(), other.op().value().unwrap_or_default(), b"GET"]),
    }
}

fn range(low: &[u8], high: Option<&[u8]>, limit: u32, reverse: bool) -> Request {
    let low = if low.is_empty() { b"-".to_vec() } else { [b"[", low].concat() };
    let high = high.map_or_else(|| b"+".to_vec(), |high| [b"(", high].concat());
    let mut words = match reverse {
        false => vec![b"RANGE".to_vec(), low, high],
        true => vec![b"REVRANGE".to_vec(), high, low],
    };
    if limit > 0 {
        words.extend([b"LIMIT".to_vec(), limit.to_string().into_bytes()]);
    }
    words
}

/// What an answer says of a call; the words: that no server may say this.
fn outcome_of(call: &Call<'static>, reply: Reply) -> Result<Outcome, String> {
    let wrong = |reply: &Reply| format!("{call:?} was answered with {reply:?}");
    Ok(Outcome::Output(match (call, reply) {
        (_, Reply::Error(text)) => {
            return match text.split(' ').next() {
                Some("OUTCOMEUNKNOWN") => Ok(Outcome::Unknown),
                Some(code) if SURE.contains(&code) => Ok(Outcome::Refused),
                _ => Err(wrong(&Reply::Error(text))),
            };
        }
        (Call::Put { .. }, Reply::Simple(ok)) if ok == "OK" => Output::Done,
        (Call::Delete { .. }, Reply::Integer(1)) => Output::Done,
        (Call::Delete { .. }, Reply::Integer(0)) | (Call::Insert { .. }, Reply::Integer(1)) => Output::Value(None),
        // A value was there, and it does not say which one.
        (Call::Insert { .. }, Reply::Integer(0)) => return Ok(Outcome::Refused),
        // INCR: which call it was is known at the end.
        (Call::Get { .. }, Reply::Integer(number)) => Output::Value(Some(Text::Owned(number.to_string().into_bytes()))),
        (Call::Get { .. } | Call::Put { .. } | Call::Insert { .. } | Call::Delete { .. }, Reply::Bulk(value)) => {
            Output::Value(value.map(Text::Owned))
        }
        // The watched key holds another value, and it does not say which one.
        (Call::Cas { .. } | Call::Insert { .. }, Reply::Array(None)) => return Ok(Outcome::Refused),
        (Call::Cas { .. } | Call::Insert { .. }, Reply::Array(Some(replies)))
            if replies == [Reply::Simple("OK".to_owned())] =>
        {
            match call {
                Call::Cas { old, .. } => Output::Cas(true, Some(old.clone())),
                _ => Output::Value(None),
            }
        }
        (Call::Many(calls), Reply::Array(Some(replies))) if replies.len() == calls.len() => {
            let mut outputs = Vec::new();
            for (call, reply) in calls.iter().zip(replies) {
                match outcome_of(call, reply.clone())? {
                    Outcome::Output(output) => outputs.push(output),
                    _ => return Err(wrong(&reply)),
                }
            }
            Output::List(outputs)
        }
        (Call::Range { reverse, .. }, Reply::Array(Some(flat))) => {
            let mut strings = Vec::new();
            for reply in flat {
                match reply {
                    Reply::Bulk(Some(bytes)) => strings.push(Text::Owned(bytes)),
                    other => return Err(wrong(&other)),
                }
            }
            let (pairs, rest) = strings.as_chunks::<2>();
            if !rest.is_empty() {
                return Err(format!("{call:?} was answered with a key without a value"));
            }
            let mut pairs: Vec<_> = pairs.iter().map(|[key, value]| (key.clone(), value.clone())).collect();
            if *reverse {
                pairs.reverse();
            }
            Output::Pairs(pairs)
        }
        (_, reply) => return Err(wrong(&reply)),
    }))
}
