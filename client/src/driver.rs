//! The task behind a client: it carries out what the session decides. One task for all connections of a client, so that
//! a command needs no hop between tasks, and everything that waits is packed and delivered together.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::time::Sleep;

use crate::config::Config;
use crate::connection::{Connection, Event};
use crate::error::{Error, Reason, describe};
use crate::map::PartitionMap;
use crate::session::{CallKey, ConnectionId, Effect, Input, Request, Session, SubmitError};
use crate::shared::{Delivery, Message, Shared};
use crate::time::Time;
use crate::tls::Tls;
use crate::wire::ClientId;

/// Rounds before other tasks of the runtime have their turn.
const ROUNDS_PER_TURN: usize = 8;

/// See the module. A future that ends when the last handle of its client is dropped.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    session: Session,
    tls: Option<Tls>,
    start: Instant,
    connections: BTreeMap<ConnectionId, Connection>,
    effects: Vec<Effect>,
    messages: Vec<Message>,
    delivery: Delivery,
    /// The ranges that are under way.
    ranges: BTreeMap<u64, CallKey>,
    map: Option<Arc<PartitionMap>>,
    sleep: Pin<Box<Sleep>>,
    /// What `sleep` is set to.
    alarm: Option<Time>,
}

impl Driver {
    pub fn new(shared: Arc<Shared>, config: Config, client: ClientId, seed: u64, endpoints: Vec<String>) -> Driver {
        // The shared table bounds what waits; a batch that it took whole is not refused here.
        let config = Config { calls_max: usize::MAX, bytes_max: usize::MAX, ..config };
        let tls = config.tls.clone();
        Driver {
            shared,
            tls,
            session: Session::new(config, client, seed, endpoints),
            start: Instant::now(),
            connections: BTreeMap::new(),
            effects: Vec::new(),
            messages: Vec::new(),
            delivery: Delivery::default(),
            ranges: BTreeMap::new(),
            map: None,
            sleep: Box::pin(tokio::time::sleep(Duration::ZERO)),
            alarm: None,
        }
    }

    fn time_of(&self, moment: Instant) -> Time {
        Time::default() + moment.saturating_duration_since(self.start)
    }

    /// Takes in what callers want. Returns whether there was something.
    fn hear(&mut self) -> bool {
        let heard = !self.messages.is_empty();
        let mut messages = std::mem::take(&mut self.messages);
        for message in messages.drain(..) {
            match message {
                Message::Submit { token, deadline, request } => self.submit(token, self.time_of(deadline), request),
                Message::Credit { token, bytes } => {
                    if let Some(&call) = self.ranges.get(&token) {
                        let now = self.time_of(Instant::now());
                        self.session.step(now, Input::Credit { call, bytes }, &mut self.effects);
                    }
                }
                Message::Cancel { token } => self.cancel(token),
            }
        }
        self.messages = messages;
        heard
    }

    fn submit(&mut self, token: u64, deadline: Time, request: Request) {
        let bytes = request.bytes();
        let is_range = matches!(request, Request::Range(_) | Request::Keys { .. });
        let error = match self.session.submit(token, deadline, request) {
            Ok(call) => {
                if is_range {
                    self.ranges.insert(token, call);
                }
                return;
            }
            Err(SubmitError::Refused(error)) => error,
            Err(SubmitError::Full(_)) => Error::failed(Reason::QueueFull),
        };
        self.delivery.outcomes.push((token, bytes, Err(error)));
    }

    /// The reader of a range went away.
    fn cancel(&mut self, token: u64) {
        let Some(call) = self.ranges.remove(&token) else { return };
        let now = self.time_of(Instant::now());
        let bytes = self.session.bytes_of(call);
        self.session.step(now, Input::Cancel(call), &mut self.effects);
        self.delivery.outcomes.push((token, bytes, Err(Error::failed(Reason::Closed))));
    }

    /// Takes in what the nodes say. Returns whether there may be more at once.
    fn listen(&mut self, now: Time, cx: &mut Context<'_>) -> bool {
        let mut more = false;
        let Driver { connections, session, effects, .. } = self;
        connections.retain(|&connection, open| {
            let mut lost = false;
            more |= open.receive(cx, |event| {
                let input = match event {
                    Event::Connected => Input::Connected(connection),
                    Event::Frame(frame) => Input::Frame { connection, frame },
                    Event::Lost(reason) => {
                        lost = true;
                        Input::Disconnected { connection, reason }
                    }
                };
                session.step(now, input, effects);
            });
            !lost
        });
        more
    }

    /// Carries out what the session decided. Returns whether there was something.
    fn act(&mut self) -> bool {
        let acted = !self.effects.is_empty();
        for effect in self.effects.drain(..) {
            match effect {
                Effect::Connect { connection, address } => {
                    self.connections.insert(connection, Connection::open(address, self.tls.clone()));
                }
                Effect::Send { connection, bytes } => {
                    if let Some(open) = self.connections.get_mut(&connection) {
                        open.send(bytes);
                    }
                }
                Effect::Close { connection } => {
                    self.connections.remove(&connection);
                }
                Effect::Complete { token, bytes, result } => {
                    self.ranges.remove(&token);
                    self.delivery.outcomes.push((token, bytes, result));
                }
                Effect::Part { token, part, as_of } => self.delivery.parts.push((token, (part, as_of))),
            }
        }
        acted
    }

    /// Writes what waits on all connections.
    fn speak(&mut self, now: Time, cx: &mut Context<'_>) {
        let Driver { connections, session, effects, .. } = self;
        connections.retain(|&connection, open| {
            let flushed = open.flush(cx);
            if let Err(error) = &flushed {
                let input = Input::Disconnected { connection, reason: describe(error) };
                session.step(now, input, effects);
            }
            flushed.is_ok()
        });
    }

    fn publish_map(&mut self) {
        let known = self.session.map();
        let same = match (&self.map, known) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (None, None) => true,
            _ => false,
        };
        if let (false, Some(map)) = (same, known) {
            self.map = Some(Arc::clone(map));
            self.shared.set_map(map);
        }
    }

    /// Sets the alarm to the session's deadline. Returns whether that has passed already.
    fn set_alarm(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(deadline) = self.session.deadline() else {
            self.alarm = None;
            return false;
        };
        if self.alarm != Some(deadline) {
            self.alarm = Some(deadline);
            let moment = self.start + (deadline - Time::default());
            self.sleep.as_mut().reset(moment.into());
        }
        self.sleep.as_mut().poll(cx).is_ready()
    }

    /// Everything once. Returns whether there may be more to do at once.
    fn round(&mut self, cx: &mut Context<'_>) -> bool {
        let heard = self.hear();
        let now = self.time_of(Instant::now());
        let more = self.listen(now, cx);
        let due = self.session.deadline().is_some_and(|deadline| deadline <= now);
        self.session.step(now, if due { Input::Tick } else { Input::TurnEnd }, &mut self.effects);
        self.publish_map();
        let acted = self.act();
        self.speak(now, cx);
        self.shared.deliver(&mut self.delivery);
        // New connections must be polled once, and a failed write has effects too.
        heard || more || acted || !self.effects.is_empty()
    }

    fn close(&mut self) {
        self.messages.append(&mut self.shared.shut());
        self.hear();
        self.session.close(&mut self.effects);
        self.act();
        self.shared.deliver(&mut self.delivery);
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let driver = &mut *self;
        for _ in 0..ROUNDS_PER_TURN {
            if driver.shared.receive(&mut driver.messages, cx) {
                driver.close();
                return Poll::Ready(());
            }
            let more = driver.round(cx);
            if !more && !driver.set_alarm(cx) {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for Driver {
    /// The runtime may drop the task at any time: nobody is left waiting.
    fn drop(&mut self) {
        self.close();
    }
}
