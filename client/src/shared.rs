//! What callers and the driver share: one queue in, one table of waiting callers out, behind one lock that is held for
//! a few dozen nanoseconds. A command costs no allocation here: its slot is reused, its waker is the caller's.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::Notify;

use crate::command::{Answer, Output};
use crate::error::{Error, Reason, Result};
use crate::map::PartitionMap;
use crate::session::Request;
use crate::wire::Position;

/// How a call ended.
pub type Outcome = Result<Answer<Output>>;

/// Hears of calls that end; see [`Client::submit`](crate::Client::submit).
pub type Callback = Arc<dyn Fn(u64, Outcome) + Send + Sync>;

/// What callers tell the driver.
pub(crate) enum Message {
    Submit { token: u64, deadline: Instant, request: Request },
    Credit { token: u64, bytes: u32 },
    Cancel { token: u64 },
}

/// One caller that waits.
enum Slot {
    Free,
    /// One call, not over.
    One(Option<Waker>),
    /// One call, over.
    Done(Outcome),
    /// Several calls with one waiting future.
    Batch {
        outcomes: Vec<Option<Outcome>>,
        left: usize,
        waker: Option<Waker>,
    },
    /// One call with a callback.
    Callback {
        callback: Callback,
        tag: u64,
    },
    /// A range.
    Range {
        parts: VecDeque<Chunk>,
        end: Option<Outcome>,
        waker: Option<Waker>,
    },
    /// The caller went away; so many calls are not over.
    Abandoned {
        left: usize,
    },
}

struct State {
    inbox: Vec<Message>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// The driver, while it sleeps.
    driver: Option<Waker>,
    /// Calls taken and not over, and their bytes.
    calls: usize,
    bytes: usize,
    /// Somebody waits for room.
    crowded: bool,
    closed: bool,
    map: Option<Arc<PartitionMap>>,
}

/// See the module.
pub(crate) struct Shared {
    state: Mutex<State>,
    room: Notify,
    calls_max: usize,
    bytes_max: usize,
}

fn token(slot: u32, index: u32) -> u64 {
    u64::from(slot) << 32 | u64::from(index)
}

impl Shared {
    pub fn new(calls_max: usize, bytes_max: usize) -> Shared {
        let state = State {
            inbox: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            driver: None,
            calls: 0,
            bytes: 0,
            crowded: false,
            closed: false,
            map: None,
        };
        Shared {
            state: Mutex::new(state),
            room: Notify::new(),
            calls_max: calls_max.max(1),
            bytes_max: bytes_max.max(1),
        }
    }

    /// Nothing here panics while it holds the lock, so a poisoned one holds a sound state.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The map that the driver routes by.
    pub fn map(&self) -> Option<Arc<PartitionMap>> {
        self.lock().map.clone()
    }

    /// Takes one call, if there is room.
    fn try_one(&self, deadline: Instant, request: &mut Option<Request>, slot: Slot) -> Result<Option<u32>> {
        let mut state = self.lock();
        if state.closed {
            return Err(Error::failed(Reason::Closed));
        }
        if !self.has_room(&state) {
            state.crowded = true;
            return Ok(None);
        }
        let Some(request) = request.take() else { return Ok(None) };
        state.calls += 1;
        state.bytes += request.bytes();
        let slot = state.place(slot);
        let token = token(slot, 0);
        state.inbox.push(Message::Submit { token, deadline, request });
        self.wake(state);
        Ok(Some(slot))
    }

    fn has_room(&self, state: &State) -> bool {
        state.calls < self.calls_max && state.bytes < self.bytes_max
    }

    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let driver = state.driver.take();
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// Takes one call; waits for room until the deadline.
    async fn take(&self, deadline: Instant, request: Request, slot: fn() -> Slot) -> Result<u32> {
        let mut request = Some(request);
        loop {
            // Registered before the look, so that room made in between is not missed.
            let room = self.room.notified();
            if let Some(slot) = self.try_one(deadline, &mut request, slot())? {
                return Ok(slot);
            }
            if tokio::time::timeout_at(deadline.into(), room).await.is_err() {
                return Err(Error::failed(Reason::QueueFull));
            }
        }
    }

    /// One call and its outcome.
    pub async fn call(self: &Arc<Shared>, deadline: Instant, request: Request) -> Outcome {
        let slot = self.take(deadline, request, || Slot::One(None)).await?;
        One { shared: self, slot, over: false }.await
    }

    /// One call with a callback. Never waits: without room it is refused.
    pub fn submit(&self, deadline: Instant, request: Request, callback: &Callback, tag: u64) -> Result<()> {
        let slot = Slot::Callback { callback: Arc::clone(callback), tag };
        match self.try_one(deadline, &mut Some(request), slot)? {
            Some(_) => Ok(()),
            None => Err(Error::failed(Reason::QueueFull)),
        }
    }

    /// Many calls and one future. They are taken all at once when there is any room at all.
    pub async fn batch(self: &Arc<Shared>, deadline: Instant, requests: Vec<Request>) -> Vec<Outcome> {
        let count = requests.len();
        if count == 0 {
            return Vec::new();
        }
        let refused = |reason: Reason| (0..count).map(|_| Err(Error::failed(reason.clone()))).collect();
        let slot = loop {
            let room = self.room.notified();
            {
                let mut state = self.lock();
                if state.closed {
                    return refused(Reason::Closed);
                }
                if self.has_room(&state) {
                    break self.take_batch(state, deadline, requests);
                }
                state.crowded = true;
            }
            if tokio::time::timeout_at(deadline.into(), room).await.is_err() {
                return refused(Reason::QueueFull);
            }
        };
        Batch { shared: self, slot, over: false }.await
    }

    fn take_batch(&self, mut state: MutexGuard<'_, State>, deadline: Instant, requests: Vec<Request>) -> u32 {
        let left = requests.len();
        state.calls += left;
        state.bytes += requests.iter().map(Request::bytes).sum::<usize>();
        let outcomes = (0..left).map(|_| None).collect();
        let slot = state.place(Slot::Batch { outcomes, left, waker: None });
        let messages = requests.into_iter().zip(0..).map(|(request, at)| {
            let token = token(slot, at);
            Message::Submit { token, deadline, request }
        });
        state.inbox.extend(messages);
        self.wake(state);
        slot
    }

    /// Begins a range; its parts are read with [`Shared::next_part`].
    pub async fn range(&self, deadline: Instant, request: Request) -> Result<u32> {
        self.take(deadline, request, || Slot::Range { parts: VecDeque::new(), end: None, waker: None }).await
    }

    /// The next chunk of a range, or its end.
    pub fn next_part(&self, slot: u32, cx: &mut Context<'_>) -> Poll<std::result::Result<Chunk, Outcome>> {
        let mut state = self.lock();
        match &mut state.slots[slot as usize] {
            Slot::Range { parts, end, waker } => {
                if let Some(part) = parts.pop_front() {
                    return Poll::Ready(Ok(part));
                }
                if let Some(end) = end.take() {
                    state.clear(slot);
                    return Poll::Ready(Err(end));
                }
                set(waker, cx);
                Poll::Pending
            }
            _ => Poll::Ready(Err(Err(Error::failed(Reason::Closed)))),
        }
    }

    /// So many bytes of a range were read.
    pub fn credit(&self, slot: u32, bytes: u32) {
        let mut state = self.lock();
        state.inbox.push(Message::Credit { token: token(slot, 0), bytes });
        self.wake(state);
    }

    /// The range's reader is gone.
    pub fn drop_range(&self, slot: u32) {
        let mut state = self.lock();
        if let Slot::Range { end, .. } = &state.slots[slot as usize] {
            if end.is_some() {
                return state.clear(slot);
            }
            state.slots[slot as usize] = Slot::Abandoned { left: 1 };
            state.inbox.push(Message::Cancel { token: token(slot, 0) });
            self.wake(state);
        }
    }

    /// The last handle is gone.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        self.wake(state);
        self.room.notify_waiters();
    }

    // The driver's side.

    /// What callers said since the last time, into `messages`. From now on the driver is woken by the next one.
    /// Returns whether the last handle is gone.
    pub fn receive(&self, messages: &mut Vec<Message>, cx: &mut Context<'_>) -> bool {
        let mut state = self.lock();
        std::mem::swap(&mut state.inbox, messages);
        set(&mut state.driver, cx);
        state.closed
    }

    /// No call is taken from now on; what was said and not received goes unheard.
    pub fn shut(&self) -> Vec<Message> {
        let mut state = self.lock();
        state.closed = true;
        std::mem::take(&mut state.inbox)
    }

    pub fn set_map(&self, map: &Arc<PartitionMap>) {
        self.lock().map = Some(Arc::clone(map));
    }

    /// Hands outcomes and parts to their callers.
    pub fn deliver(&self, delivery: &mut Delivery) {
        if delivery.parts.is_empty() && delivery.outcomes.is_empty() {
            return;
        }
        let mut state = self.lock();
        for (token, part) in delivery.parts.drain(..) {
            if let Slot::Range { parts, waker, .. } = &mut state.slots[(token >> 32) as usize] {
                parts.push_back(part);
                delivery.wakers.extend(waker.take());
            }
        }
        for (token, bytes, outcome) in delivery.outcomes.drain(..) {
            state.calls -= 1;
            state.bytes -= bytes;
            state.end(token, outcome, &mut delivery.wakers, &mut delivery.callbacks);
        }
        let room = state.crowded && self.has_room(&state);
        state.crowded &= !room;
        drop(state);
        if room {
            self.room.notify_waiters();
        }
        delivery.wakers.drain(..).for_each(Waker::wake);
        for (callback, tag, outcome) in delivery.callbacks.drain(..) {
            callback(tag, outcome);
        }
    }
}

/// A chunk of a range, and the position where it still held, if that is not its own.
pub(crate) type Chunk = (Bytes, Option<Position>);

/// What the driver hands over in one go. Its vectors are reused.
#[derive(Default)]
pub(crate) struct Delivery {
    /// Token, bytes that the call held, outcome.
    pub outcomes: Vec<(u64, usize, Outcome)>,
    pub parts: Vec<(u64, Chunk)>,
    wakers: Vec<Waker>,
    callbacks: Vec<(Callback, u64, Outcome)>,
}

fn set(waker: &mut Option<Waker>, cx: &Context<'_>) {
    match waker {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *waker = Some(cx.waker().clone()),
    }
}

impl State {
    fn place(&mut self, slot: Slot) -> u32 {
        if let Some(at) = self.free.pop() {
            self.slots[at as usize] = slot;
            return at;
        }
        self.slots.push(slot);
        (self.slots.len() - 1) as u32
    }

    fn clear(&mut self, at: u32) {
        self.slots[at as usize] = Slot::Free;
        self.free.push(at);
    }

    fn end(
        &mut self,
        token: u64,
        outcome: Outcome,
        wakers: &mut Vec<Waker>,
        callbacks: &mut Vec<(Callback, u64, Outcome)>,
    ) {
        let (at, index) = ((token >> 32) as u32, token as u32 as usize);
        let slot = &mut self.slots[at as usize];
        match slot {
            Slot::One(waker) => {
                wakers.extend(waker.take());
                *slot = Slot::Done(outcome);
            }
            Slot::Batch { outcomes, left, waker } => {
                outcomes[index] = Some(outcome);
                *left -= 1;
                if *left == 0 {
                    wakers.extend(waker.take());
                }
            }
            Slot::Callback { callback, tag } => {
                callbacks.push((Arc::clone(callback), *tag, outcome));
                self.clear(at);
            }
            Slot::Range { end, waker, .. } => {
                *end = Some(outcome);
                wakers.extend(waker.take());
            }
            Slot::Abandoned { left } => {
                *left -= 1;
                if *left == 0 {
                    self.clear(at);
                }
            }
            Slot::Free | Slot::Done(_) => debug_assert!(false, "a call ended twice"),
        }
    }
}

/// Waits for one call.
struct One<'s> {
    shared: &'s Shared,
    slot: u32,
    over: bool,
}

impl Future for One<'_> {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.shared.lock();
        let slot = self.slot;
        match &mut state.slots[slot as usize] {
            Slot::One(waker) => {
                set(waker, cx);
                Poll::Pending
            }
            done => {
                let done = std::mem::replace(done, Slot::Free);
                state.clear(slot);
                drop(state);
                self.over = true;
                match done {
                    Slot::Done(outcome) => Poll::Ready(outcome),
                    _ => Poll::Ready(Err(Error::failed(Reason::Closed))),
                }
            }
        }
    }
}

impl Drop for One<'_> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let mut state = self.shared.lock();
        match state.slots[self.slot as usize] {
            Slot::Done(_) => state.clear(self.slot),
            _ => state.slots[self.slot as usize] = Slot::Abandoned { left: 1 },
        }
    }
}

/// Waits for several calls.
struct Batch<'s> {
    shared: &'s Shared,
    slot: u32,
    over: bool,
}

impl Future for Batch<'_> {
    type Output = Vec<Outcome>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Vec<Outcome>> {
        let mut state = self.shared.lock();
        let slot = self.slot;
        let Slot::Batch { outcomes, left, waker } = &mut state.slots[slot as usize] else { return Poll::Pending };
        if *left > 0 {
            set(waker, cx);
            return Poll::Pending;
        }
        let outcomes = std::mem::take(outcomes);
        state.clear(slot);
        drop(state);
        self.over = true;
        Poll::Ready(outcomes.into_iter().flatten().collect())
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let mut state = self.shared.lock();
        let Slot::Batch { left, .. } = state.slots[self.slot as usize] else { return };
        match left {
            0 => state.clear(self.slot),
            left => state.slots[self.slot as usize] = Slot::Abandoned { left },
        }
    }
}
