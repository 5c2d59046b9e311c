//! Clients: real sessions, a drawn workload, and a record of what they asked and heard.

use bytes::Bytes;
use coppice_btree::{OpResult, Value};
use coppice_check::event::{Call, Output as HistoryOutput};
use coppice_client::command::{Answer, Command, Operation, Output, RangeCall, ReadMode};
use coppice_client::error::Error;
use coppice_client::session::{Effect, Input, Request, SubmitError};
use coppice_client::time::Time;
use coppice_client::wire::{Compared, Part, ScanOptions};
use coppice_testkit::random::Random;

use super::account::End;
use super::client::{Waiting, key, text, ticket};
use super::content::{beyond, is_beyond};
use super::events::Event;
use super::lines::{Line, LineId};
use super::plan::{MS, Nanos};
use super::world::World;

/// A call without a deadline of its own ends by then, which no run reaches.
const FOREVER: Nanos = 10_000_000 * MS;

impl World {
    /// A client submits what it may, and thinks of when to do so again.
    pub fn think(&mut self, client: usize) {
        self.clients[client].thinking = false;
        while self.clients[client].left > 0 && self.busy(client) < self.clients[client].in_flight {
            if self.faults.healed {
                self.clients[client].left = 0;
                break;
            }
            self.clients[client].left -= 1;
            if self.map.partitions.len() > 1 && self.clients[client].random.below(100) < 15 {
                let keys = self.plan.workload.keys as usize;
                let low = self.clients[client].random.below(keys) as u32;
                let whole = self.clients[client].random.below(2) == 0;
                let high = low + 1 + self.clients[client].random.below(keys) as u32;
                let (low, high) = if whole { (0, self.plan.workload.keys) } else { (low, high) };
                let reverse = self.clients[client].random.below(8) == 0;
                let (request, call, stale) = range(key(low), Some(key(high)), 0, reverse, ReadMode::Leader);
                self.submit(client, request, call, stale);
                continue;
            }
            let (request, call, stale) = self.draw(client);
            self.submit(client, request, call, stale);
            if self.plan.workload.think > 0 {
                break;
            }
        }
        self.turn(client);
        self.think_later(client);
    }

    /// A client's connections break, and it gets none for a while: what it asked may be done meanwhile.
    pub fn send_away(&mut self, client: usize, length: Nanos) {
        self.clients[client].absent_until = self.now + length;
        let lines = self.lines.open.iter().filter(|(_, line)| line.client == client && line.client_open);
        let lines: Vec<LineId> = lines.map(|(&number, _)| number).collect();
        lines.into_iter().for_each(|number| self.cut_line(number));
    }

    /// Calls that a client waits for.
    fn busy(&self, client: usize) -> usize {
        self.clients[client].waiting.len()
    }

    fn think_later(&mut self, client: usize) {
        let (pause, busy) = (self.plan.workload.think, self.busy(client));
        let each = &mut self.clients[client];
        if each.left == 0 || each.thinking || busy >= each.in_flight {
            return;
        }
        each.thinking = true;
        let at = self.now + each.random.below(2 * pause as usize + 100_000) as Nanos;
        self.schedule(at, Event::Think { client });
    }

    fn draw(&mut self, client: usize) -> (Request, Call<'static>, bool) {
        let (plan, now) = (&self.plan, self.now);
        let each = &mut self.clients[client];
        let number = each.key(plan, now);
        let key = key(number);
        if plan.workload.updates > 0 && each.random.chance(plan.workload.updates) {
            if each.random.below(5) == 0 {
                let (key, mode) = (beyond(&key), mode(&mut each.random));
                // No history writes such a key: there it is a get that finds nothing. The ledger knows what it finds.
                let call = Call::Get { key: text(&key) };
                return (Request::Look { key: key[..].into(), mode }, call, mode == ReadMode::Stale);
            }
            let home = self.map.position(&key);
            let others = (number + 1..number + 3).map(self::key).filter(|other| self.map.position(other) == home);
            let others: Vec<Bytes> = others.collect();
            return (Request::Command(each.update(&key, &others)), Call::Many(Vec::new()), false);
        }
        match each.random.below(100) {
            0..58 => {
                let (operation, call) = each.operation(&key);
                (Request::Command(Command::One(operation)), call, false)
            }
            58..64 => {
                let count = 1 + each.random.below(4) as u32;
                let home = self.map.position(&key);
                let keys = (number..number + count).map(self::key).filter(|key| self.map.position(key) == home);
                let both: Vec<(Operation, Call<'static>)> = keys.map(|key| each.operation(&key)).collect();
                let (operations, calls): (Vec<_>, Vec<_>) = both.into_iter().unzip();
                (Request::Command(Command::Many(operations.into())), Call::Many(calls), false)
            }
            64..82 => {
                let mode = mode(&mut each.random);
                let request = Request::Get { key: Value::from(&key[..]), mode };
                (request, Call::Get { key: text(&key) }, mode == ReadMode::Stale)
            }
            _ => {
                let mode = mode(&mut each.random);
                // A limit counts keys that no history holds, too.
                let limited = each.random.below(4) == 0 && plan.workload.updates == 0;
                let limit = if limited { 1 + each.random.below(20) as u32 } else { 0 };
                let high = self::key(number + 1 + each.random.below(plan.workload.keys as usize) as u32);
                let home = self.map.route(&key).and_then(|entry| entry.high.clone());
                let high = Some(home.map_or(high.clone(), |home| home.min(high)));
                let reverse = each.random.below(4) == 0;
                range(key, high, limit, reverse, mode)
            }
        }
    }

    /// Reads all partitions, whole.
    pub fn read_everything(&mut self, client: usize) {
        let bounds: Vec<(Bytes, Option<Bytes>)> =
            self.map.partitions.iter().map(|entry| (entry.low.clone(), entry.high.clone())).collect();
        for (low, high) in bounds {
            let (request, call, stale) = range(low, high, 0, false, ReadMode::Leader);
            self.submit(client, request, call, stale);
        }
        self.turn(client);
    }

    fn submit(&mut self, client: usize, mut request: Request, call: Call<'static>, stale: bool) {
        let now = self.now;
        let each = &mut self.clients[client];
        let stretches = each.compare(&mut request);
        each.tokens += 1;
        let token = each.tokens;
        let impatient = each.random.chance(self.plan.workload.impatient);
        let patience = if impatient { MS + each.random.below(3_000 * MS as usize) as Nanos } else { FOREVER };
        let (command, limit, look) = match &request {
            Request::Command(command) => (Some(command.clone()), 0, None),
            Request::Range(range) => (None, range.scan.pairs_max as usize, None),
            Request::Look { key, .. } => (None, 0, Some(key.clone())),
            _ => (None, 0, None),
        };
        let reads = matches!(call, Call::Get { .. } | Call::Range { .. });
        match each.session.submit(token, Time(now + patience), request) {
            Ok(key) => {
                let index = self.account.invoke(each.number as u64 + 1, now, call, stale);
                let (pairs, positions) = (Vec::new(), Vec::new());
                let floor = (reads && !stale).then(|| self.account.positions.clone());
                let (ticket, resumed) = (None, false);
                let (beyond, read, same) = (0, Vec::new(), 0);
                let waiting = Waiting {
                    index,
                    key,
                    command,
                    look,
                    pairs,
                    beyond,
                    read,
                    stretches,
                    same,
                    positions,
                    ticket,
                    limit,
                    resumed,
                    floor,
                };
                each.waiting.insert(token, waiting);
            }
            // By the client's map, a boundary lies between the keys.
            Err(SubmitError::Refused(_)) if matches!(call, Call::Many(_)) || stale => {
                self.coverage.note("client: a boundary lies between the keys of one call");
            }
            Err(SubmitError::Full(_)) => {}
            Err(SubmitError::Refused(error)) => self.fail("client", format!("a good call is refused: {error}")),
        }
    }

    /// Ends a client's turn: what waits is packed, effects are carried out, the next tick is ordered.
    fn turn(&mut self, client: usize) {
        let now = Time(self.now);
        let each = &mut self.clients[client];
        let mut effects = std::mem::take(&mut each.effects);
        each.session.step(now, Input::TurnEnd, &mut effects);
        self.note_numbers(client);
        for effect in effects.drain(..) {
            self.client_effect(client, effect);
        }
        let each = &mut self.clients[client];
        // Ends of calls may have put more there.
        effects.append(&mut each.effects);
        each.effects = effects;
        if let Some(deadline) = each.session.deadline() {
            let at = deadline.0.max(self.now);
            if at < FOREVER && each.tick_at.is_none_or(|before| at < before) {
                each.tick_at = Some(at);
                self.schedule(at, Event::ClientTick { client, at });
            }
        }
    }

    /// Commands get their numbers when they are packed, and others if their session ended before they ran.
    fn note_numbers(&mut self, client: usize) {
        let each = &self.clients[client];
        for waiting in each.waiting.values().filter(|waiting| waiting.command.is_some()) {
            if let Some(number) = each.session.number(waiting.key) {
                self.account.number(waiting.index, number);
            }
        }
    }

    fn client_effect(&mut self, client: usize, effect: Effect) {
        match effect {
            Effect::Connect { connection, address } => {
                let node = address[1..].split(':').next().and_then(|node| node.parse().ok()).unwrap_or(0);
                let line = self.name_line();
                self.lines.open.insert(line, Line::new(client, connection, node, self.now));
                let ok = self.nodes[node].up && !self.net.refuses();
                // Some attempts hang: the session must notice by itself.
                let away = self.clients[client].absent_until > self.now;
                if !away && (ok || self.net.either()) {
                    let at = self.now + self.net.delay();
                    self.schedule(at, Event::Opened { line, ok });
                } else {
                    self.coverage.note("client: an attempt to connect hangs");
                }
            }
            Effect::Send { connection, bytes } => {
                let at = self.now + self.net.delay();
                let mut lines = self.lines.open.iter_mut();
                let found = lines.find(|(_, line)| line.client == client && line.id == connection);
                let Some((&number, line)) = found.filter(|(_, line)| line.client_open) else { return };
                line.to_node = line.to_node.max(at);
                let at = line.to_node;
                self.schedule(at, Event::ToNode { line: number, bytes });
                if self.net.breaks() {
                    self.cut_line(number);
                }
            }
            Effect::Close { connection } => {
                let mut lines = self.lines.open.iter();
                let found = lines.find(|(_, line)| line.client == client && line.id == connection);
                if let Some(&number) = found.map(|(number, _)| number) {
                    self.leave_line(number);
                }
            }
            Effect::Complete { token, result, .. } => self.complete(client, token, result),
            Effect::Part { token, part, as_of } => {
                let Some(waiting) = self.clients[client].waiting.get_mut(&token) else { return };
                let (call, bytes) = (waiting.key, part.len() as u32);
                let mut streams = false;
                match Part::decode(&part) {
                    Ok(part) => {
                        let compares = !waiting.stretches.is_empty();
                        streams = part.ticket.is_none() && part.end.is_none() || compares;
                        let begin = waiting.read.len();
                        waiting.read.extend(part.pairs().map(|(key, value)| (key.to_vec(), value.to_vec())));
                        if let Some(Compared { number, same: true }) = part.compared {
                            let stretch = std::mem::take(&mut waiting.stretches[number as usize]);
                            waiting.same += stretch.len() as u64;
                            waiting.read.extend(stretch);
                            self.coverage.note("client: a range has what its reader holds");
                        } else if part.compared.is_some() {
                            self.coverage.note("client: a range has other pairs than its reader holds");
                        }
                        let came = waiting.read[begin..].iter();
                        waiting.pairs.extend(came.clone().map(|(key, value)| (text(key), text(value))));
                        waiting.pairs.retain(|(key, _)| !is_beyond(key));
                        waiting.beyond += came.filter(|(key, _)| is_beyond(key)).count() as u64;
                        waiting.ticket = part.ticket.map(ticket);
                        let position = as_of.unwrap_or(part.position);
                        if waiting.positions.last() != Some(&position) {
                            waiting.positions.push(position);
                        }
                    }
                    Err(error) => self.fail("wire", format!("a part cannot be read: {error}")),
                }
                if streams {
                    // It was read at once.
                    let now = Time(self.now);
                    let each = &mut self.clients[client];
                    each.session.step(now, Input::Credit { call, bytes }, &mut each.effects);
                    self.turn_later(client);
                }
            }
        }
    }

    fn complete(&mut self, client: usize, token: u64, result: Result<Answer<Output>, Error>) {
        let now = self.now;
        let Some(mut waiting) = self.clients[client].waiting.remove(&token) else { return };
        let index = waiting.index;
        if let (Some(key), Ok(Answer { output: Output::One(found), position })) = (&waiting.look, &result) {
            self.coverage.note("client: a lifetime is read");
            if let Err((check, what)) = self.oracle.ledger.check_look(*position, key, found) {
                self.fail(check, what);
            }
        }
        let end = match result {
            Ok(answer) => match told(&answer.output, &mut waiting) {
                Some(output) => {
                    if matches!(output, HistoryOutput::Pairs(_)) && waiting.read.is_sorted() {
                        self.clients[client].held = std::mem::take(&mut waiting.read);
                    }
                    let own = if waiting.positions.is_empty() { vec![answer.position] } else { waiting.positions };
                    if waiting.resumed {
                        self.coverage.note("client: a write that was repeated is answered");
                    }
                    if own.len() > 1 && waiting.ticket.is_none() {
                        self.coverage.note("client: a range across partitions is one moment without a ticket");
                    }
                    let exactly = waiting.ticket.is_some();
                    if let Some(Err((check, what))) = waiting.floor.map(|floor| floor.allow(&own, exactly)) {
                        self.fail(check, what);
                    }
                    self.account.positions.raise(&own);
                    End::Answered { output, positions: own, ticket: waiting.ticket }
                }
                None => return self.fail("client", format!("a call got the answer of another: {:?}", answer.output)),
            },
            Err(Error::Failed(_)) if waiting.resumed => End::Unknown,
            Err(Error::Failed(_)) => {
                self.coverage.note("client: a call surely had no effect");
                let (client, numbers) = (self.clients[client].number as u64 + 1, self.account.numbers(index));
                if let Err((check, what)) = self.oracle.ledger.refuse(client, numbers) {
                    self.fail(check, what);
                }
                End::Refused
            }
            Err(error) => match (error.resume_token().copied(), waiting.command.clone()) {
                // Repeated under its number until it is known (hazards.md E4).
                (Some(resume), Some(command)) if self.clients[client].random.below(4) > 0 => {
                    let request = Request::Resume(command, resume);
                    let each = &mut self.clients[client];
                    if let Ok(key) = each.session.submit(token, Time(now + FOREVER), request) {
                        self.coverage.note("client: a write is repeated after an unknown end");
                        each.waiting.insert(token, Waiting { key, resumed: true, ..waiting });
                        return self.turn_later(client);
                    }
                    End::Unknown
                }
                _ => End::Unknown,
            },
        };
        if matches!(end, End::Unknown) {
            self.coverage.note("client: an end stays unknown");
        }
        self.account.end(index, now, end);
        self.think_later(client);
    }

    fn turn_later(&mut self, client: usize) {
        let at = self.now;
        self.clients[client].tick_at = Some(at);
        self.schedule(at, Event::ClientTick { client, at });
    }

    /// A deadline of a client's session.
    pub fn on_client_tick(&mut self, client: usize, at: Nanos) {
        if self.clients[client].tick_at == Some(at) {
            self.clients[client].tick_at = None;
            self.client_step(client, Input::Tick);
        }
    }

    fn client_step(&mut self, client: usize, input: Input) {
        let now = Time(self.now);
        let each = &mut self.clients[client];
        let mut effects = std::mem::take(&mut each.effects);
        each.session.step(now, input, &mut effects);
        each.effects = effects;
        self.turn(client);
    }

    /// A connection attempt ends.
    pub fn on_opened(&mut self, number: LineId, ok: bool) {
        let Some(line) = self.lines.open.get_mut(&number) else { return };
        let (client, connection) = (line.client, line.id);
        let ok = ok && line.node_open;
        if !ok {
            line.client_open = false;
            self.lines.remove(number);
        }
        let reason = "refused the connection".to_owned();
        let input = if ok { Input::Connected(connection) } else { Input::Disconnected { connection, reason } };
        self.client_step(client, input);
    }

    /// A connection broke.
    pub fn on_lost(&mut self, number: LineId) {
        let Some(line) = self.lines.open.get(&number) else { return };
        let (client, connection) = (line.client, line.id);
        if !line.client_open {
            self.lines.remove(number);
            return;
        }
        self.leave_line(number);
        if self.busy(client) > 0 {
            self.coverage.note("client: a connection is lost under a call");
        }
        let reason = "lost the connection".to_owned();
        self.client_step(client, Input::Disconnected { connection, reason });
    }

    /// Bytes of a node arrive at a client.
    pub fn client_receives(&mut self, number: LineId, bytes: &Bytes) {
        let Some(line) = self.lines.open.get_mut(&number).filter(|line| line.client_open) else { return };
        line.at_client.feed(bytes);
        while let Some(line) = self.lines.open.get_mut(&number) {
            let (client, connection) = (line.client, line.id);
            match line.at_client.next_frame() {
                Ok(Some(frame)) => self.client_step(client, Input::Frame { connection, frame }),
                Ok(None) => return,
                Err(error) => return self.fail("wire", format!("a node's frame cannot be read: {error}")),
            }
        }
    }
}

fn mode(random: &mut Random) -> ReadMode {
    [ReadMode::Leader, ReadMode::Leader, ReadMode::AnyReplica, ReadMode::Stale][random.below(4)]
}

fn range(low: Bytes, high: Option<Bytes>, limit: u32, reverse: bool, mode: ReadMode) -> (Request, Call<'static>, bool) {
    let call = Call::Range { low: text(&low), high: high.as_deref().map(text), limit, reverse };
    let scan = ScanOptions { reverse, pairs_max: u64::from(limit), ..ScanOptions::default() };
    let (low, high) = (low[..].into(), high.as_deref().map(Into::into));
    let range = RangeCall { low, high, scan, mode, stretches: None };
    (Request::Range(range), call, mode == ReadMode::Stale)
}

/// An answer as the history writes it.
fn told(output: &Output, waiting: &mut Waiting) -> Option<HistoryOutput<'static>> {
    let (mut pairs, limit) = (std::mem::take(&mut waiting.pairs), waiting.limit);
    if waiting.command.as_ref().and_then(Command::first_key).is_some_and(is_beyond) {
        return Some(HistoryOutput::List(Vec::new()));
    }
    match output {
        Output::One(result) => Some(told_one(result)),
        Output::Many(results) => Some(HistoryOutput::List(results.iter().map(told_one).collect())),
        Output::Loaded(count) => {
            let all = pairs.len() as u64 + waiting.beyond == *count + waiting.same;
            if limit > 0 {
                pairs.truncate(limit);
            }
            // Pairs are in key order in a history, whichever way they came.
            pairs.sort();
            all.then_some(HistoryOutput::Pairs(pairs))
        }
        Output::NotLoaded(_) | Output::Omitted | Output::Unmet(_) => None,
    }
}

fn told_one(result: &OpResult) -> HistoryOutput<'static> {
    let value = |value: &Option<Value>| value.as_deref().map(text);
    match result {
        OpResult::Put { previous } | OpResult::Delete { previous } => HistoryOutput::Value(value(previous)),
        OpResult::Insert { present } => HistoryOutput::Value(value(present)),
        OpResult::Cas { done, current } => HistoryOutput::Cas(*done, value(current)),
        OpResult::Get { value: found } => HistoryOutput::Value(value(found)),
        OpResult::Look { .. } => HistoryOutput::Value(None),
        OpResult::Update { .. } => HistoryOutput::List(Vec::new()),
    }
}
