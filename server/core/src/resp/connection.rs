//! One connection: requests in, questions to the cluster out, answers back in the order of the requests.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::{Buf, Bytes, BytesMut};
use coppice_client::Value;
use coppice_client::command::Output;
use coppice_client::error::Result;
use coppice_client::map::PartitionMap;
use coppice_client::token::Token;

use super::commands::{self, Command, Connection, Kind, Transaction as In};
use super::cursors::Cursors;
use super::errors;
use super::identity::{ClientRow, Identity};
use super::keyspace;
use super::parse::{Parsed, Parser};
use super::pipeline::{Ask, Pipeline};
use super::plan::{Arguments, Planned, RangePlan, Ranged, Work};
use super::reply::{Protocol, Reply};
use super::server::{self, Facts};
use super::transaction::Transaction;
use crate::access::Access;

/// Requests that one step begins, so that other connections of the thread have their turn.
const REQUESTS_PER_STEP: usize = 512;

/// Requests of so many strings need no allocation for where they stand.
const STRINGS_FEW: usize = 8;

/// What the connections of a node share, on all its threads.
#[derive(Debug)]
pub struct NodeView {
    /// The cursors of SCAN.
    pub cursors: Cursors,
    clients: Mutex<BTreeMap<u64, ClientRow>>,
}

impl NodeView {
    /// No connections. `draw` is random.
    pub fn new(draw: u64) -> NodeView {
        NodeView { cursors: Cursors::new(draw), clients: Mutex::default() }
    }

    /// All connections, by number.
    pub fn clients(&self) -> MutexGuard<'_, BTreeMap<u64, ClientRow>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a step may look at beside the connection.
pub struct Context<'a> {
    /// By this node's clock, in milliseconds of Unix time.
    pub now: u64,
    /// Draws a random number.
    pub draw: &'a dyn Fn() -> u64,
    /// The map as this node knows it.
    pub map: &'a PartitionMap,
    /// The users as this node knows them.
    pub access: &'a Access,
    /// Shared with the other connections.
    pub node: &'a NodeView,
    /// Bytes of answers for which there is room.
    pub room: usize,
    /// How far the start of this node is, until it serves.
    pub loading: Option<&'a str>,
    /// What INFO and CLUSTER tell of the node.
    pub facts: &'a dyn Fn() -> Facts,
}

/// What happens to a connection.
#[derive(Debug)]
pub enum Input<'b> {
    /// A question was answered.
    Answered {
        /// [`Ask::call`].
        call: u64,
        /// How.
        outcome: Result<Output>,
    },
    /// A range was read.
    Ranged {
        /// Of [`Effect::Range`].
        call: u64,
        /// How that ended.
        outcome: Result<Ranged>,
    },
    /// Everything else that came together was given, and these bytes: requests are removed from their front, and what
    /// is ready is asked. Wanted after other inputs.
    TurnEnd(&'b mut BytesMut),
}

/// What the driver is to do.
#[derive(Debug)]
pub enum Effect {
    /// Ask the cluster, and report it.
    Ask(Ask),
    /// Read a range, and report it.
    Range {
        /// Names it.
        call: u64,
        /// What to read.
        range: coppice_client::Range,
        /// The keys that are wanted of it, for [`Ranged::look_at`].
        pattern: Option<Bytes>,
    },
    /// Ask as the user of this token from now on; none: without one.
    Become(Option<Token>),
    /// Wrong credentials, in words: whoever shows them waits.
    Stranger(String),
}

/// Requests answered, by how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counted {
    /// With an answer.
    Ok,
    /// It was wrong, or not supported.
    Error,
    /// The user may not.
    Denied,
    /// The cluster was busy or full.
    Busy,
    /// No node that could carry it out was reached.
    NoQuorum,
    /// Nobody knows.
    Unknown,
}

impl Counted {
    /// All of them.
    pub const ALL: [Counted; 6] =
        [Counted::Ok, Counted::Error, Counted::Denied, Counted::Busy, Counted::NoQuorum, Counted::Unknown];

    fn of(reply: &Reply) -> Counted {
        let Reply::Error(text) = reply else { return Counted::Ok };
        match text.split(' ').next() {
            Some("NOAUTH" | "NOPERM" | "WRONGPASS") => Counted::Denied,
            Some("OVERLOADED" | "OOM") => Counted::Busy,
            Some("NOQUORUM") => Counted::NoQuorum,
            Some("OUTCOMEUNKNOWN") => Counted::Unknown,
            _ => Counted::Error,
        }
    }
}

/// How much of a connection may be under way.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests (`limits.inflight`).
    pub requests: usize,
    /// Bytes of requests and of answers (`limits.inflight_bytes`).
    pub bytes: usize,
}

/// What has the connection for itself: nothing else is under way meanwhile.
#[derive(Debug)]
enum Exclusive {
    Range(RangePlan),
    Watch(Work),
}

/// See the module.
#[derive(Debug)]
pub struct RespConnection {
    limits: Limits,
    parser: Parser,
    /// What the last request named: the next one names it again, as a rule.
    named: Option<&'static Command>,
    identity: Identity,
    protocol: Protocol,
    transaction: Transaction,
    pipeline: Pipeline,
    exclusive: Option<(u64, Exclusive)>,
    /// A request that waits until those before it are answered.
    held: Option<Vec<Vec<u8>>>,
    output: BytesMut,
    is_closing: bool,
    /// More requests may be here: the step ended before they did.
    is_cut: bool,
    counts: [u64; Counted::ALL.len()],
}

impl RespConnection {
    /// A connection that has just been accepted. Its number is unique on the node.
    pub fn new(id: u64, row: ClientRow, limits: Limits, context: &mut Context<'_>) -> RespConnection {
        let mut identity = Identity::new(id, row);
        identity.follow(context.access);
        identity.publish(context);
        RespConnection {
            limits,
            parser: Parser::default(),
            named: None,
            identity,
            protocol: Protocol::Resp2,
            transaction: Transaction::default(),
            pipeline: Pipeline::default(),
            exclusive: None,
            held: None,
            output: BytesMut::new(),
            is_closing: false,
            is_cut: false,
            counts: [0; Counted::ALL.len()],
        }
    }

    /// The only way in.
    pub fn step(&mut self, context: &mut Context<'_>, input: Input<'_>, effects: &mut Vec<Effect>) {
        if !self.identity.is_let_in() {
            self.identity.follow(context.access);
        }
        match input {
            Input::Answered { call, outcome } => self.on_answered(call, outcome, context),
            Input::Ranged { call, outcome } => self.on_ranged(call, outcome, context, effects),
            Input::TurnEnd(bytes) => {
                self.flush();
                loop {
                    self.receive(bytes, context, effects);
                    let mut asks = Vec::new();
                    self.pipeline.dispatch(context.map, context.room, &mut asks);
                    effects.extend(asks.into_iter().map(Effect::Ask));
                    self.flush();
                    if self.held.is_none() || !self.pipeline.is_empty() {
                        return;
                    }
                }
            }
        }
    }

    /// Other users count from now on; `false`: the connection ends.
    pub fn follow(&mut self, access: &Access) -> bool {
        self.identity.follow(access)
    }

    /// Answers for the client, in their order.
    pub fn output(&mut self) -> &mut BytesMut {
        &mut self.output
    }

    /// Whether more bytes may be read: else the client waits.
    pub fn wants_input(&self) -> bool {
        let fits = self.pipeline.len() < self.limits.requests
            && (self.bytes() < self.limits.bytes || self.pipeline.is_empty());
        fits && self.output.len() < self.limits.bytes
            && self.exclusive.is_none()
            && self.held.is_none()
            && !self.is_closing
    }

    /// Bytes that it holds for its client, beside the request that arrives.
    pub fn bytes(&self) -> usize {
        self.pipeline.bytes() + self.output.len() + self.transaction.bytes()
    }

    /// Bytes that the next string needs beyond those here.
    pub fn needs(&self, buffered: usize) -> usize {
        self.parser.wants(buffered)
    }

    /// Whether nothing is under way and nothing waits for the client.
    pub fn is_idle(&self) -> bool {
        self.pipeline.is_empty() && self.exclusive.is_none() && self.held.is_none() && self.output.is_empty()
    }

    /// Whether it is known for whom it acts.
    pub fn is_let_in(&self) -> bool {
        self.identity.is_let_in()
    }

    /// Whether it ends once its output is written.
    pub fn is_closing(&self) -> bool {
        self.is_closing && self.pipeline.is_empty()
    }

    /// Whether another turn is wanted at once, though nothing has come.
    pub fn is_cut(&self) -> bool {
        self.is_cut && self.wants_input() || self.output.is_empty() && self.pipeline.is_ready()
    }

    /// Answers since the last time, by [`Counted::ALL`].
    pub fn take_counts(&mut self) -> [u64; Counted::ALL.len()] {
        std::mem::take(&mut self.counts)
    }

    fn flush(&mut self) {
        let RespConnection { pipeline, output, counts, protocol, .. } = self;
        pipeline.write(*protocol, output, |reply| counts[Counted::of(reply) as usize] += 1);
    }

    fn receive(&mut self, bytes: &mut BytesMut, context: &mut Context<'_>, effects: &mut Vec<Effect>) {
        if let Some(held) = self.held.take() {
            self.words(&held, context, effects);
        }
        self.is_cut = false;
        for _ in 0..REQUESTS_PER_STEP {
            // Whoever shows wrong credentials waits, and what follows them waits too.
            if !self.wants_input() || matches!(effects.last(), Some(Effect::Stranger(_))) {
                break;
            }
            self.parser.is_stranger = !self.identity.is_let_in();
            match self.parser.next(bytes) {
                Ok(Parsed::Request(length)) => {
                    let spans = self.parser.take_spans();
                    let (mut few, many): (_, Vec<&[u8]>);
                    let strings = if spans.len() <= STRINGS_FEW {
                        few = [&bytes[..0]; STRINGS_FEW];
                        few.iter_mut().zip(&spans).for_each(|(string, span)| *string = &bytes[span.clone()]);
                        &few[..spans.len()]
                    } else {
                        many = spans.iter().map(|span| &bytes[span.clone()]).collect();
                        &many
                    };
                    self.request(strings, context, effects);
                    self.parser.give_back(spans);
                    bytes.advance(length);
                }
                Ok(Parsed::Words(words)) => self.words(&words, context, effects),
                Ok(Parsed::TooLarge(text)) => {
                    self.transaction.refuse();
                    self.pipeline.reply(Reply::err(format_args!("too large: {text}")));
                }
                Ok(Parsed::Incomplete) => return,
                Err(error) => {
                    self.pipeline.reply(Reply::err(error));
                    self.is_closing = true;
                    bytes.clear();
                    return;
                }
            }
        }
        self.is_cut = !bytes.is_empty();
    }

    fn words(&mut self, words: &[Vec<u8>], context: &mut Context<'_>, effects: &mut Vec<Effect>) {
        let strings: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        self.request(&strings, context, effects);
    }

    fn request(&mut self, strings: &[&[u8]], context: &mut Context<'_>, effects: &mut Vec<Effect>) {
        let again = self.named.filter(|command| strings[0].eq_ignore_ascii_case(command.name.as_bytes()));
        let Some(command) = again.or_else(|| commands::find(strings[0])) else {
            return self.refuse(commands::refusal(strings[0]));
        };
        self.named = Some(command);
        if !command.takes(strings.len()) {
            let name = command.name.to_ascii_lowercase();
            return self.refuse(Reply::err(format_args!("wrong number of arguments for '{name}' command")));
        }
        if !command.is_open() && !self.identity.is_let_in() {
            return self.refuse(self.identity.stranger(context.access));
        }
        match (command.kind, context.loading) {
            (Kind::Data(_) | Kind::Transaction(In::Watch | In::Exec), Some(text)) => {
                if matches!(command.kind, Kind::Transaction(_)) {
                    self.transaction = Transaction::default();
                }
                self.refuse(Reply::Error(format!("LOADING this node starts: {text}")));
            }
            (Kind::Data(plan), _) => {
                let mut arguments = Arguments { strings, now: context.now, cursors: &context.node.cursors };
                let planned = plan(&mut arguments);
                if self.transaction.is_open() {
                    let reply = self.transaction.queue(command.name, planned);
                    return self.pipeline.reply(reply);
                }
                self.begin(planned, strings, effects);
            }
            (Kind::Transaction(which), _) => self.transaction(which, strings, effects),
            (Kind::Connection(which), _) => self.connection(command, which, strings, context, effects),
        }
    }

    /// Keeps a request until those before it are answered.
    fn hold(&mut self, strings: &[&[u8]]) {
        self.held = Some(strings.iter().map(|string| string.to_vec()).collect());
    }

    /// What is wrong with a request breaks the transaction that it stands in.
    fn refuse(&mut self, error: Reply) {
        self.transaction.refuse();
        self.pipeline.reply(error);
    }

    fn begin(&mut self, planned: std::result::Result<Planned, Reply>, strings: &[&[u8]], effects: &mut Vec<Effect>) {
        match planned {
            Ok(Planned::Reply(reply)) | Err(reply) => self.pipeline.reply(reply),
            Ok(Planned::Work(work)) => self.pipeline.push(work),
            // It sees all that was asked before it, and nothing that comes after it.
            Ok(Planned::Range(_)) if !self.pipeline.is_empty() => self.hold(strings),
            Ok(Planned::Range(plan)) => self.ask_range(plan, effects),
        }
    }

    fn ask_range(&mut self, plan: RangePlan, effects: &mut Vec<Effect>) {
        let call = self.pipeline.draw_call();
        effects.push(Effect::Range { call, range: plan.range.clone(), pattern: plan.pattern.clone() });
        self.exclusive = Some((call, Exclusive::Range(plan)));
    }

    fn transaction(&mut self, which: In, strings: &[&[u8]], effects: &mut Vec<Effect>) {
        let reply = match which {
            In::Multi => self.transaction.begin(),
            In::Discard => self.transaction.discard(),
            In::Unwatch if self.transaction.is_open() => {
                self.transaction.queue("UNWATCH", Ok(Planned::Reply(Reply::OK)))
            }
            In::Unwatch => {
                self.transaction.forget_watched();
                Reply::OK
            }
            In::Exec => {
                let planned = self.transaction.exec();
                return self.begin(planned, strings, effects);
            }
            In::Watch if !self.pipeline.is_empty() => {
                self.hold(strings);
                return;
            }
            In::Watch => match self.transaction.watch(strings[1..].iter().map(|key| Value::from(*key)).collect()) {
                Ok(work) => {
                    let call = self.pipeline.draw_call();
                    effects.push(Effect::Ask(Ask { call, command: work.clone().command(), reads_anywhere: false }));
                    self.exclusive = Some((call, Exclusive::Watch(work)));
                    return;
                }
                Err(error) => error,
            },
        };
        self.pipeline.reply(reply);
    }

    fn connection(
        &mut self,
        command: &Command,
        which: Connection,
        strings: &[&[u8]],
        context: &mut Context<'_>,
        effects: &mut Vec<Effect>,
    ) {
        use Connection as C;
        // These change how what follows is answered, or as whom it is asked.
        let changes = matches!(which, C::Auth | C::Hello | C::Reset | C::Quit);
        if changes && !self.pipeline.is_empty() {
            self.hold(strings);
            return;
        }
        let in_transaction = self.transaction.is_open();
        if in_transaction && matches!(which, C::Auth | C::Hello) {
            let name = command.name;
            return self.refuse(Reply::err(format_args!("{name} is not possible between MULTI and EXEC")));
        }
        let reply = match which {
            C::Quit => {
                self.is_closing = true;
                Reply::OK
            }
            C::Reset => {
                self.transaction = Transaction::default();
                self.protocol = Protocol::Resp2;
                self.identity.reset(context, effects);
                return self.pipeline.reply(Reply::Simple("RESET"));
            }
            C::Auth if strings.len() == 2 => self.identity.authenticate((None, strings[1]), context, effects),
            C::Auth if strings.len() == 3 => {
                self.identity.authenticate((Some(strings[1]), strings[2]), context, effects)
            }
            C::Auth => super::plan::syntax_error(),
            C::Hello => match self.identity.hello(strings, context, effects) {
                Ok(protocol) => {
                    self.protocol = protocol;
                    server::hello(protocol, self.identity.id)
                }
                Err(error) => error,
            },
            C::Ping if strings.len() > 2 => Reply::err("wrong number of arguments for 'ping' command"),
            C::Ping => strings.get(1).map_or(Reply::Simple("PONG"), Reply::bulk),
            C::Echo => Reply::bulk(strings[1]),
            C::Select if strings[1] == b"0" => Reply::OK,
            C::Select => Reply::err("DB index is out of range: there is one database, 0"),
            C::ReadOnly => Reply::OK,
            C::Client => self.identity.client(strings, context),
            C::Commands => server::command(strings),
            C::Config => server::config(strings, &self.limits),
            C::Cluster => server::cluster(strings, context.map, &(context.facts)()),
            C::Info => server::info(strings, context.map, &(context.facts)()),
        };
        if in_transaction && which != C::Quit {
            let queued = self
                .transaction
                .queue(command.name, if reply.is_error() { Err(reply) } else { Ok(Planned::Reply(reply)) });
            return self.pipeline.reply(queued);
        }
        self.pipeline.reply(reply);
    }

    fn on_answered(&mut self, call: u64, outcome: Result<Output>, context: &Context<'_>) {
        if self.exclusive.as_ref().is_none_or(|(waits_for, _)| *waits_for != call) {
            self.pipeline.answered(call, outcome, context.map, context.now);
            return;
        }
        let Some((_, Exclusive::Watch(work))) = self.exclusive.take() else { return };
        let reply = match outcome {
            Ok(output) => self.transaction.watched(work, output),
            Err(error) => {
                self.transaction.lose_sight();
                errors::reply(&error, work.keys(), context.map)
            }
        };
        self.pipeline.reply(reply);
    }

    fn on_ranged(&mut self, call: u64, outcome: Result<Ranged>, context: &mut Context<'_>, effects: &mut Vec<Effect>) {
        if self.exclusive.as_ref().is_none_or(|(waits_for, _)| *waits_for != call) {
            return;
        }
        let Some((_, Exclusive::Range(plan))) = self.exclusive.take() else { return };
        let reply = match outcome {
            Err(error) => errors::reply(&error, std::iter::empty(), context.map),
            Ok(ranged) => match keyspace::answer(plan, ranged, &context.node.cursors, (context.draw)()) {
                Ok(reply) => reply,
                Err(next) => return self.ask_range(*next, effects),
            },
        };
        self.pipeline.reply(reply);
    }
}
