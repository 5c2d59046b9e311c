//! The RESP port: threads of their own, off the way of native clients. Each accepts connections and carries out what
//! [`RespConnection`](coppice_core::resp::RespConnection) decides; operations reach the cluster through the client
//! library, so that many connections pack together. It knows no replica and no worker.

mod clients;
mod connection;
mod idle;
mod listen;
mod registry;

use std::net::TcpListener as StdTcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use coppice_core::access::Access;
use coppice_core::resp::server::Facts;
use coppice_core::resp::{Context, NodeView};
use tokio::net::TcpListener;
use tokio::runtime::LocalOptions;
use tokio::sync::watch;

use clients::Clients;
use idle::Idle;
use registry::Registry;

use crate::shared::Shared;

/// How long a stopping node waits for the requests of this port.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// What the connections of one thread share.
struct Thread {
    node: Arc<Node>,
    clients: Clients,
    registry: Registry,
    idle: Idle,
}

/// What the threads of the port share.
struct Node {
    shared: Arc<Shared>,
    view: NodeView,
    /// Where this node's clients connect: the threads of the port are among them.
    native: String,
    /// Where clients are told that this port is.
    address: String,
    started: Instant,
    /// Everything durable is read.
    is_open: AtomicBool,
    /// The number of the next connection.
    connections: AtomicU64,
}

/// The threads of the port.
pub struct Server {
    node: Arc<Node>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Serves this port; `native` and `address` are what clients are told to dial.
    ///
    /// # Errors
    /// The system gives no thread or no event loop.
    pub fn start(
        listener: &StdTcpListener,
        shared: &Arc<Shared>,
        (native, address): (String, String),
    ) -> std::io::Result<Server> {
        let node = Arc::new(Node {
            shared: Arc::clone(shared),
            view: NodeView::new(crate::random::draw()),
            native,
            address,
            started: Instant::now(),
            is_open: AtomicBool::new(false),
            connections: AtomicU64::new(1),
        });
        let (stop, stopped) = watch::channel(false);
        let mut server = Server { node, stop, threads: Vec::new() };
        // Half as many as worker threads: an operation costs a worker more than it costs this port.
        for index in 0..shared.config.worker_threads.div_ceil(2) {
            let listener = listener.try_clone()?;
            listener.set_nonblocking(true)?;
            let (node, stopped) = (Arc::clone(&server.node), stopped.clone());
            let thread = std::thread::Builder::new().name(format!("resp-{index}"));
            server.threads.push(thread.spawn(move || {
                if let Err(error) = run(node, listener, stopped) {
                    tracing::error!(%error, "the RESP port is not served");
                }
            })?);
        }
        Ok(server)
    }

    /// The node serves: what it reads at its start is read.
    pub fn open(&self) {
        self.node.is_open.store(true, Ordering::Release);
    }
}

fn run(node: Arc<Node>, listener: StdTcpListener, stopped: watch::Receiver<bool>) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
    runtime.block_on(async {
        listen::serve(node, TcpListener::from_std(listener)?, stopped).await;
        Ok(())
    })
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.stop.send(true);
        for thread in self.threads.drain(..) {
            _ = thread.join();
        }
    }
}

impl Thread {
    /// A connection has ended.
    fn leave(&self, id: u64) {
        self.registry.close(id);
        self.node.view.clients().remove(&id);
    }
}

impl Node {
    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Calls `step` with what a step of a connection may look at. `room`: bytes of answers that it may yet take.
    fn with_context<T>(&self, access: &Access, room: usize, step: impl FnOnce(&mut Context<'_>) -> T) -> T {
        let map = self.shared.cluster.map();
        let loading = (!self.is_open()).then(|| self.shared.recovery.text());
        step(&mut Context {
            now: unix_now(),
            draw: &crate::random::draw,
            map: &map,
            access,
            node: &self.view,
            room,
            loading: loading.as_deref(),
            facts: &|| self.facts(),
        })
    }

    /// A number that no other connection of this start has.
    fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed)
    }

    fn facts(&self) -> Facts {
        let shared = &self.shared;
        Facts {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: shared.own.identity().map(|identity| identity.node),
            address: self.address.clone(),
            pid: std::process::id(),
            uptime: self.started.elapsed().as_secs(),
            connections: shared.usage.connections(),
            connections_max: shared.config.limits.connections,
            memory: crate::process::resident_bytes(),
            memory_limit: shared.config.memory_limit,
            commands: shared.metrics.resp().answered(),
            is_recovering: !self.is_open(),
        }
    }
}

/// By the wall clock, in milliseconds of Unix time.
fn unix_now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
