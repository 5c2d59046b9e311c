//! Who drives the connections, and how a call is waited for. A blocking client's caller does both itself, and looks for
//! Ctrl-C meanwhile. The calls of an asynchronous client run on a thread of their own, which never touches Python: what
//! ended waits in [`Completions`], and a byte in a socket wakes the event loop, which fetches all of it at once.

use std::future::Future;
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use coppice_client::{Client, Config, Error, blocking};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::reply::{Reply, closed, raise};

/// How long Ctrl-C, and the end of the client, may wait for a blocking call.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A client, and who drives it.
#[derive(Clone)]
pub enum Engine {
    /// The caller, and the client that it makes its calls on.
    Blocking(blocking::Client, Client),
    /// A thread.
    Thread(Arc<DriverThread>),
}

/// The thread behind an asynchronous client; it ends with this.
pub struct DriverThread {
    client: Client,
    handle: Handle,
    completions: Arc<Completions>,
    _end: oneshot::Sender<()>,
}

impl Engine {
    /// A client for blocking calls. It connects when it is first used.
    pub fn blocking(endpoints: Vec<String>, config: Config) -> PyResult<Engine> {
        let client = blocking::Client::start(endpoints, config).map_err(raise)?;
        let calls = client.block_on(async |client| client.clone());
        Ok(Engine::Blocking(client, calls))
    }

    /// A client for an event loop, and the socket that becomes readable when calls have ended.
    pub fn asynchronous(endpoints: Vec<String>, config: Config) -> PyResult<(Engine, UnixStream)> {
        let (wakes, woken) = UnixStream::pair()?;
        wakes.set_nonblocking(true)?;
        let completions = Arc::new(Completions { ended: Mutex::default(), wakes });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let client = {
            let _inside = handle.enter();
            Client::start(endpoints, config)
        };
        let (_end, ended) = oneshot::channel::<()>();
        thread::Builder::new().name("coppice-client".into()).spawn(move || _ = runtime.block_on(ended))?;
        Ok((Engine::Thread(Arc::new(DriverThread { client, handle, completions, _end })), woken))
    }

    /// Calls `verb` with this timeout. Without a `token` it is waited for; else this returns `None` at once, and
    /// [`Engine::completed`] names the token when it has ended.
    pub fn run<F>(
        &self,
        py: Python<'_>,
        token: Option<u64>,
        timeout: Duration,
        is_closed: impl Fn() -> bool,
        verb: impl FnOnce(Client) -> F,
    ) -> PyResult<Py<PyAny>>
    where
        F: Future<Output = Result<Reply, Error>> + Send + 'static,
    {
        match (self, token) {
            (Engine::Blocking(client, calls), _) => wait(py, client, is_closed, verb(calls.with_timeout(timeout))),
            (Engine::Thread(thread), Some(token)) => {
                let (call, completions) = (verb(thread.client.with_timeout(timeout)), Arc::clone(&thread.completions));
                thread.handle.spawn(async move { completions.add(token, call.await) });
                Ok(py.None())
            }
            (Engine::Thread(_), None) => Err(PyTypeError::new_err("a call of an asynchronous client needs a token")),
        }
    }

    /// What has ended since the last time, of an asynchronous client.
    pub fn completed(&self) -> Vec<(u64, Result<Reply, Error>)> {
        match self {
            Engine::Blocking(..) => Vec::new(),
            Engine::Thread(thread) => thread.completions.take(),
        }
    }
}

/// Waits for a call without holding Python's lock; a signal ends it, and another thread that closes the client.
fn wait(
    py: Python<'_>,
    client: &blocking::Client,
    is_closed: impl Fn() -> bool,
    call: impl Future<Output = Result<Reply, Error>> + Send,
) -> PyResult<Py<PyAny>> {
    let mut call = pin!(call);
    loop {
        let slice = || client.block_on(async |_| tokio::time::timeout(SIGNAL_CHECK_INTERVAL, call.as_mut()).await.ok());
        if let Some(outcome) = py.detach(slice) {
            return outcome.map_err(raise)?.into_python(py);
        }
        py.check_signals()?;
        if is_closed() {
            return Err(closed());
        }
    }
}

/// Calls that have ended and wait for their event loop.
struct Completions {
    ended: Mutex<Vec<(u64, Result<Reply, Error>)>>,
    wakes: UnixStream,
}

impl Completions {
    fn add(&self, token: u64, outcome: Result<Reply, Error>) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.push((token, outcome));
        if ended.len() == 1 {
            // A full socket wakes the loop as well, and a closed one has no loop.
            while matches!((&self.wakes).write(&[1]), Err(error) if error.kind() == ErrorKind::Interrupted) {}
        }
    }

    fn take(&self) -> Vec<(u64, Result<Reply, Error>)> {
        std::mem::take(&mut self.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
