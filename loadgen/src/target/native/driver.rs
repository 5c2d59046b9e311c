//! Carries out what a client session wants: sockets, time, ends of calls. The session (numbers, packs, retries, hints,
//! deadlines) is the client library's own, so that what is measured is what programs get.

use std::collections::BTreeMap;
use std::task::Context;

use bytes::Bytes;
use coppice_client::command::{Answer, Output};
use coppice_client::error::Error;
use coppice_client::session::{CallKey, ConnectionId, Effect, Input, Request, Session, SubmitError};
use coppice_client::time::Time;
use coppice_client::tls::Tls;
use coppice_client::wire::{Part, Position};

use super::super::Nanos;
use super::super::clock::Clock;
use super::socket::{Event, Socket};

/// What a call told.
#[derive(Debug)]
pub enum DriverEvent {
    /// It is over.
    Ended(u64, Result<Answer<Output>, Error>),
    /// A chunk of a range, and the position where it still held, if that is not its own.
    Part(u64, Bytes, Option<Position>),
}

/// A session and its sockets.
#[derive(Debug)]
pub struct Driver {
    session: Session,
    tls: Option<Tls>,
    sockets: BTreeMap<ConnectionId, Socket>,
    effects: Vec<Effect>,
    /// Ranges under way by token, for credit.
    ranges: BTreeMap<u64, CallKey>,
    dirty: bool,
}

impl Driver {
    /// Connects to nothing before the first call.
    pub fn new(session: Session, tls: Option<Tls>) -> Driver {
        Driver { session, tls, sockets: BTreeMap::new(), effects: Vec::new(), ranges: BTreeMap::new(), dirty: false }
    }

    /// The session, to look at.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Takes a call; it is sent at the next turn.
    pub fn submit(&mut self, token: u64, deadline: Nanos, request: Request) -> Result<CallKey, Error> {
        let range = matches!(request, Request::Range(_));
        self.dirty = true;
        match self.session.submit(token, Time(deadline), request) {
            Ok(call) => {
                if range {
                    self.ranges.insert(token, call);
                }
                Ok(call)
            }
            Err(SubmitError::Refused(error)) => Err(error),
            Err(SubmitError::Full(_)) => unreachable!("the session has room for every slot"),
        }
    }

    /// When a turn is wanted even if nothing arrives.
    pub fn deadline(&self) -> Nanos {
        self.session.deadline().map_or(Nanos::MAX, |time| time.0)
    }

    /// Sends what was submitted and reads what has come, without waiting.
    pub fn turn(&mut self, cx: &mut Context<'_>, clock: &Clock, told: &mut Vec<DriverEvent>) {
        let (before, now) = (told.len(), clock.now());
        if std::mem::take(&mut self.dirty) {
            self.step(now, Input::TurnEnd, told);
        }
        if self.deadline() <= now {
            self.step(now, Input::Tick, told);
        }
        loop {
            let heard = self.exchange(cx, clock, told);
            // What was answered makes room for new packs; the caller's next calls should fill them, so with ends to
            // hand over the turn is over.
            if !heard || told.len() > before {
                return;
            }
            self.step(clock.now(), Input::TurnEnd, told);
        }
    }

    /// One look at every socket; whether anything happened.
    fn exchange(&mut self, cx: &mut Context<'_>, clock: &Clock, told: &mut Vec<DriverEvent>) -> bool {
        let Driver { session, sockets, effects, .. } = self;
        let (mut heard, now) = (false, Time(clock.now()));
        sockets.retain(|&connection, socket| {
            let mut open = true;
            socket.progress(cx, |event| {
                heard = true;
                let input = match event {
                    Event::Connected => Input::Connected(connection),
                    Event::Frame(frame) => Input::Frame { connection, frame },
                    Event::Ended(reason) => {
                        open = false;
                        Input::Disconnected { connection, reason }
                    }
                };
                session.step(now, input, effects);
            });
            open
        });
        self.dirty |= heard;
        self.act(clock.now(), told);
        heard
    }

    fn step(&mut self, now: Nanos, input: Input, told: &mut Vec<DriverEvent>) {
        self.session.step(Time(now), input, &mut self.effects);
        self.act(now, told);
    }

    /// Carries out what the session decided.
    fn act(&mut self, now: Nanos, told: &mut Vec<DriverEvent>) {
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Connect { connection, address } => {
                    self.sockets.insert(connection, Socket::open(address, self.tls.clone()));
                }
                Effect::Send { connection, bytes } => {
                    if let Some(socket) = self.sockets.get_mut(&connection) {
                        socket.send(bytes);
                    }
                }
                Effect::Close { connection } => drop(self.sockets.remove(&connection)),
                Effect::Complete { token, result, .. } => {
                    self.ranges.remove(&token);
                    told.push(DriverEvent::Ended(token, result));
                }
                Effect::Part { token, part, as_of } => self.part(now, token, (part, as_of), told),
            }
        }
        self.effects = effects;
    }

    /// A part is consumed as it comes, so its credit goes back at once.
    fn part(&mut self, now: Nanos, token: u64, (part, as_of): (Bytes, Option<Position>), told: &mut Vec<DriverEvent>) {
        let (call, bytes) = (self.ranges.get(&token).copied(), part.len() as u32);
        told.push(DriverEvent::Part(token, part, as_of));
        if let Some(call) = call {
            let mut effects = Vec::new();
            self.session.step(Time(now), Input::Credit { call, bytes }, &mut effects);
            for effect in effects {
                if let Effect::Send { connection, bytes } = effect
                    && let Some(socket) = self.sockets.get_mut(&connection)
                {
                    socket.send(bytes);
                }
            }
        }
    }
}

/// The pairs of a chunk that the session has checked.
pub fn pairs(part: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    Part::decode(part).into_iter().flat_map(|part| part.pairs())
}
