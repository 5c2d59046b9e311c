//! The connections of one thread, as others on it see them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use coppice_client::command::Output;
use coppice_client::error::Result;
use coppice_core::resp::plan::Ranged;
use tokio::sync::Notify;

use crate::net::eviction::{self, Candidate};

/// What came to an end.
pub enum Done {
    /// A question, by its call.
    Answered(u64, Result<Output>),
    /// The reading of a range, by its call.
    Ranged(u64, Result<Ranged>),
}

/// What has come to an end and the connection has not taken in.
#[derive(Default)]
pub struct Inbox {
    done: Mutex<Vec<Done>>,
    /// Wakes the connection.
    pub bell: Notify,
}

impl Inbox {
    /// Takes it in.
    pub fn push(&self, done: Done) {
        let mut all = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(done);
        let first = all.len() == 1;
        drop(all);
        if first {
            self.bell.notify_one();
        }
    }

    /// Gives it out.
    pub fn take(&self) -> Vec<Done> {
        std::mem::take(&mut *self.done.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One connection.
#[derive(Default)]
pub struct Registration {
    /// Shared with the threads that answer it.
    pub inbox: Arc<Inbox>,
    /// Whether it acts for somebody.
    pub is_let_in: Cell<bool>,
    /// While nothing is under way: when it was heard last.
    pub idle_since: Cell<Option<Instant>>,
    /// It makes way for others.
    pub must_go: Cell<bool>,
}

/// All of them, by their number.
#[derive(Default)]
pub struct Registry(RefCell<BTreeMap<u64, Rc<Registration>>>);

impl Registry {
    /// For a new connection.
    pub fn open(&self, id: u64) -> Rc<Registration> {
        let registration = Rc::<Registration>::default();
        self.0.borrow_mut().insert(id, Rc::clone(&registration));
        registration
    }

    /// A connection has ended.
    pub fn close(&self, id: u64) {
        self.0.borrow_mut().remove(&id);
    }

    /// Has each of them look around.
    pub fn wake_all(&self) {
        self.0.borrow().values().for_each(|registration| registration.inbox.bell.notify_one());
    }

    /// Closes some that were silent longest, as at the native port. `false`: something is under way on each.
    pub fn make_way(&self) -> bool {
        let registry = self.0.borrow();
        let strangers = registry.values().filter(|registration| !registration.is_let_in.get()).count();
        let candidate = |(&id, registration): (&u64, &Rc<Registration>)| {
            let heard = registration.idle_since.get().filter(|_| !registration.must_go.get())?;
            Some(Candidate { id, greeted: registration.is_let_in.get(), heard })
        };
        let going = eviction::give_way((registry.len(), strangers), registry.iter().filter_map(candidate).collect());
        for registration in going.iter().filter_map(|id| registry.get(id)) {
            registration.must_go.set(true);
            registration.inbox.bell.notify_one();
        }
        !going.is_empty()
    }
}
