//! The bounded mailbox of a worker thread: the only place where threads of a node share memory on the data path.
//!
//! Any thread puts inputs in; one worker thread takes them out. Two queues: what consensus needs (durable log
//! positions, peers) is taken before what clients ask, so a heartbeat never waits behind a load. Putting never blocks:
//! a full queue gives the input back, and the caller stops reading its socket or answers `Busy`. Checked exhaustively
//! under loom (`server/tests/loom.rs`). It does not know what the inputs mean.

use sync::{Arc, Bell, Queue};

/// Which of the two queues an input takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Durable log positions and peers' messages.
    Consensus,
    /// Everything that can wait.
    Client,
}

struct Shared<T> {
    consensus: Queue<T>,
    client: Queue<T>,
    bell: Bell,
}

/// The sending side; cheap to clone.
pub struct Sender<T>(Arc<Shared<T>>);

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        Sender(Arc::clone(&self.0))
    }
}

/// The receiving side; there is one.
pub struct Receiver<T>(Arc<Shared<T>>);

/// A mailbox with `capacity` inputs per queue.
pub fn mailbox<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let shared = Shared { consensus: Queue::new(capacity), client: Queue::new(capacity), bell: Bell::new() };
    let shared = Arc::new(shared);
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

impl<T> Sender<T> {
    /// Puts `input` into its queue and wakes the worker thread.
    ///
    /// # Errors
    /// Gives `input` back when that queue is full.
    pub fn push(&self, priority: Priority, input: T) -> Result<(), T> {
        match priority {
            Priority::Consensus => self.0.consensus.push(input)?,
            Priority::Client => self.0.client.push(input)?,
        }
        // After the push: a worker thread that misses the input will hear the bell (the order is what loom checks).
        self.0.bell.ring();
        Ok(())
    }

    /// Wakes the worker thread, which finds elsewhere what there is.
    pub fn ring(&self) {
        self.0.bell.ring();
    }

    /// Inputs that wait, in both queues.
    pub fn len(&self) -> usize {
        self.0.consensus.len() + self.0.client.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Receiver<T> {
    /// The next input, consensus first.
    pub fn pop(&self) -> Option<T> {
        self.0.consensus.pop().or_else(|| self.0.client.pop())
    }

    /// Waits until something may have been put in since the last time [`Receiver::pop`] returned `None`.
    pub async fn wait(&self) {
        #[cfg(not(feature = "loom"))]
        self.0.bell.wait().await;
        #[cfg(feature = "loom")]
        self.wait_blocking();
    }

    /// The same for loom's threads, which know no event loop.
    #[cfg(feature = "loom")]
    pub fn wait_blocking(&self) {
        self.0.bell.wait();
    }
}

/// What the mailbox is made of. The bell keeps one ring for a worker thread that is not listening yet.
#[cfg(not(feature = "loom"))]
mod sync {
    pub use std::sync::Arc;

    pub use crossbeam::queue::ArrayQueue as Queue;

    pub struct Bell(tokio::sync::Notify);

    impl Bell {
        pub fn new() -> Bell {
            Bell(tokio::sync::Notify::new())
        }

        pub fn ring(&self) {
            self.0.notify_one();
        }

        pub async fn wait(&self) {
            self.0.notified().await;
        }
    }
}

/// The same parts on loom's primitives.
#[cfg(feature = "loom")]
mod sync {
    use std::collections::VecDeque;

    pub use loom::sync::Arc;
    use loom::sync::{Mutex, Notify};

    pub struct Queue<T> {
        inputs: Mutex<VecDeque<T>>,
        capacity: usize,
    }

    impl<T> Queue<T> {
        pub fn new(capacity: usize) -> Queue<T> {
            Queue { inputs: Mutex::new(VecDeque::new()), capacity }
        }

        pub fn push(&self, input: T) -> Result<(), T> {
            let mut inputs = self.inputs.lock().unwrap();
            if inputs.len() == self.capacity {
                return Err(input);
            }
            inputs.push_back(input);
            Ok(())
        }

        pub fn pop(&self) -> Option<T> {
            self.inputs.lock().unwrap().pop_front()
        }

        pub fn len(&self) -> usize {
            self.inputs.lock().unwrap().len()
        }
    }

    pub struct Bell(Notify);

    impl Bell {
        pub fn new() -> Bell {
            Bell(Notify::new())
        }

        pub fn ring(&self) {
            self.0.notify();
        }

        pub fn wait(&self) {
            self.0.wait();
        }
    }
}
