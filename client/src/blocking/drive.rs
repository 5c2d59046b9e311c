//! Who drives a blocking client: the caller itself while it is the only one, else a thread of the client's own.
//!
//! A call that another thread drives wakes that one to be sent and is woken by it when the answer is there: two
//! wake-ups, which take longer than the answer of a node on the same machine. So the caller writes and reads the socket
//! itself. Callers that come at the same time would pass the connections on with every answer, and somebody who has to
//! wait between calls must find answers taken in meanwhile: then the thread drives, as it does for whatever does not
//! block.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::Notify;

use crate::config::Config;

/// Without a call for this long the thread takes the connections over: sessions are kept alive and lost connections
/// noticed, and nothing that a node says waits for longer than this. Looked at once in this time, so an idle moment of
/// a busy caller costs one short wake-up.
const TAKE_OVER_AFTER: Duration = Duration::from_millis(10);

/// For this long after callers met, all of them leave the driving to the thread.
const CROWD_LASTS: Duration = Duration::from_millis(100);

/// Nobody has met yet.
const NEVER: u64 = 0;

/// The runtime of a blocking client, its thread, and who drives at the moment.
#[derive(Debug)]
pub(super) struct Drive {
    /// `None` only while it is dropped.
    runtime: Option<Arc<Runtime>>,
    duty: Arc<Duty>,
    thread: Thread,
    /// Takes the runtime back: it must end on its own thread, a caller's may be one of another runtime.
    back: Mutex<mpsc::Sender<Arc<Runtime>>>,
}

/// What callers and the thread share.
#[derive(Debug)]
struct Duty {
    start: Instant,
    /// Callers that wait now.
    callers: AtomicUsize,
    /// Calls that callers drove.
    calls: AtomicU64,
    /// Milliseconds after `start`, plus one, at which callers met last; see [`NEVER`].
    met_at: AtomicU64,
    /// The thread drives for ever: somebody uses the client without blocking.
    shared: AtomicBool,
    /// The thread drives, or is about to.
    driving: AtomicBool,
    /// Asks the thread to let go.
    release: Notify,
}

impl Drive {
    /// Starts a thread for a client of `endpoints`, which drives from now on.
    ///
    /// # Errors
    /// The system's, if it gives no thread or no event loop.
    pub(super) fn start(endpoints: Vec<String>, config: Config) -> std::io::Result<(crate::Client, Drive)> {
        let runtime = Arc::new(tokio::runtime::Builder::new_current_thread().enable_all().build()?);
        let duty = Arc::new(Duty {
            start: Instant::now(),
            callers: AtomicUsize::new(0),
            calls: AtomicU64::new(0),
            met_at: AtomicU64::new(NEVER),
            shared: AtomicBool::new(false),
            driving: AtomicBool::new(true),
            release: Notify::new(),
        });
        let (client, driver) = {
            let _inside = runtime.enter();
            crate::Client::parts(endpoints, config)
        };
        let driver = runtime.spawn(driver);
        let (back, returned) = mpsc::channel();
        let keeper = Keeper { runtime: Arc::clone(&runtime), duty: Arc::clone(&duty) };
        let body = move || {
            keeper.run(driver);
            // Whoever drops the last handle sends the runtime here.
            drop(returned.recv());
        };
        let thread = thread::Builder::new().name("coppice-client".into()).spawn(body)?.thread().clone();
        Ok((client, Drive { runtime: Some(runtime), duty, thread, back: Mutex::new(back) }))
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it is there until the drop")
    }

    /// Waits for `future`, which this thread drives if nobody else wants to.
    pub(super) fn wait<F: Future>(&self, future: F) -> F::Output {
        let alone = self.duty.callers.fetch_add(1, Ordering::SeqCst) == 0;
        let _caller = Caller(&self.duty);
        if !alone {
            self.duty.meet();
        }
        if !alone || self.duty.is_crowded() {
            self.have_driven();
            return self.runtime().handle().block_on(future);
        }
        if self.duty.driving.load(Ordering::SeqCst) {
            self.duty.release.notify_one();
        }
        self.runtime().block_on(future)
    }

    /// Waits for `future` while the thread drives: for callers that come again at once, and rarely have to wait.
    pub(super) fn wait_driven<F: Future>(&self, future: F) -> F::Output {
        self.duty.meet();
        self.have_driven();
        self.runtime().handle().block_on(future)
    }

    /// From now on the thread drives for ever.
    pub(super) fn share(&self) {
        self.duty.shared.store(true, Ordering::SeqCst);
        self.have_driven();
    }

    fn have_driven(&self) {
        if !self.duty.driving.load(Ordering::SeqCst) {
            self.thread.unpark();
        }
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            _ = self.back.lock().unwrap_or_else(PoisonError::into_inner).send(runtime);
        }
        self.share();
    }
}

/// A caller that waits; gone with it, also when the wait panics.
struct Caller<'a>(&'a Duty);

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        self.0.callers.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Duty {
    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64 + 1
    }

    fn meet(&self) {
        let now = self.now_ms();
        // Most calls of a crowd find this said already, and leave the line to the others' caches.
        if self.met_at.load(Ordering::SeqCst) != now {
            self.met_at.store(now, Ordering::SeqCst);
        }
    }

    /// Whether callers leave the driving to the thread.
    fn is_crowded(&self) -> bool {
        let met_at = self.met_at.load(Ordering::SeqCst);
        self.shared.load(Ordering::SeqCst)
            || (met_at != NEVER && self.now_ms().saturating_sub(met_at) <= CROWD_LASTS.as_millis() as u64)
    }
}

struct Keeper {
    runtime: Arc<Runtime>,
    duty: Arc<Duty>,
}

impl Keeper {
    /// Drives whenever no caller does, until the client's driver ends, which it does when the last handle is gone.
    fn run(self, driver: tokio::task::JoinHandle<()>) {
        let mut driver = std::pin::pin!(driver);
        let mut calls = 0;
        loop {
            self.duty.driving.store(true, Ordering::SeqCst);
            // Looked at after the store: a caller that comes now either is seen here, or sees it and rings.
            let wanted = self.duty.callers.load(Ordering::SeqCst) == 0 || self.duty.is_crowded();
            if wanted {
                let ended = self.runtime.block_on(async {
                    tokio::select! {
                        _ = &mut driver => true,
                        () = self.duty.release.notified() => false,
                    }
                });
                if ended {
                    return;
                }
            }
            // Asked to let go, although callers have met since, or left: the loop looks again.
            self.duty.driving.store(false, Ordering::SeqCst);
            loop {
                let before = std::mem::replace(&mut calls, self.duty.calls.load(Ordering::Relaxed));
                let idle = calls == before && self.duty.callers.load(Ordering::SeqCst) == 0;
                if idle || self.duty.is_crowded() {
                    break;
                }
                thread::park_timeout(TAKE_OVER_AFTER);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client of nobody, whose driver ends with its last handle.
    fn drive() -> (crate::Client, Drive) {
        Drive::start(vec!["127.0.0.1:1".into()], Config::default()).expect("a thread")
    }

    /// The thread on which tasks of the runtime run while a caller waits for one.
    fn driven_by(drive: &Drive) -> thread::ThreadId {
        let runtime = drive.runtime().handle().clone();
        drive.wait(async move { runtime.spawn(async { thread::current().id() }).await.expect("no panic") })
    }

    #[test]
    fn a_caller_drives_alone_and_the_thread_for_a_crowd() {
        let (_client, drive) = drive();
        let own = thread::current().id();
        // The first calls may find the thread at it.
        let begun = Instant::now();
        while driven_by(&drive) != own {
            assert!(begun.elapsed() < Duration::from_secs(60), "the thread never lets go");
        }
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..200).for_each(|_| _ = driven_by(&drive)));
            }
        });
        // As long as it takes this test: a crowd that never ends.
        drive.duty.met_at.store(u64::MAX, Ordering::SeqCst);
        assert_ne!(driven_by(&drive), own, "callers have met");
        drive.duty.met_at.store(NEVER, Ordering::SeqCst);
        let begun = Instant::now();
        while driven_by(&drive) != own {
            assert!(begun.elapsed() < Duration::from_secs(60), "the crowd never ends");
        }
        drive.share();
        assert_ne!(driven_by(&drive), own, "others drive for ever");
    }

    #[test]
    fn the_thread_takes_over_between_calls() {
        let (_client, drive) = drive();
        driven_by(&drive);
        let (sender, receiver) = mpsc::channel();
        drive.runtime().spawn(async move { sender.send(thread::current().id()) });
        let by = receiver.recv_timeout(Duration::from_secs(60)).expect("somebody runs it");
        assert_eq!(by, drive.thread.id());
    }

    #[test]
    fn a_client_may_be_dropped_inside_another_runtime() {
        let outer = tokio::runtime::Runtime::new().expect("a runtime");
        let (client, drive) = drive();
        driven_by(&drive);
        let runtime = Arc::downgrade(drive.runtime.as_ref().expect("it is there"));
        outer.block_on(async move {
            drop(drive);
            drop(client);
        });
        let begun = Instant::now();
        while runtime.strong_count() > 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "the thread never ends");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
