//! One node: its threads, started in order, stopped in reverse.

mod admin;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use coppice_client::tls::Tls;
use coppice_client::wire::{ClusterId, NodeId, PartitionId};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::config::{Address, NodeConfig};
use crate::control::{self, Event, Handle, Listeners};
use crate::datadir::{DataDir, DataDirError};
use crate::logging::Logging;
use crate::mailbox::mailbox;
use crate::messages::ToControl;
use crate::metrics;
use crate::shared::Shared;
pub use crate::start_error::{StartError, StorageError};
use crate::worker_thread::Mailboxes;

/// Where a node serves, once it does.
#[derive(Clone, Debug)]
pub struct Endpoints {
    /// Clients and operators.
    pub native: SocketAddr,
    /// Other nodes.
    pub peer: SocketAddr,
    /// Clients that speak RESP.
    pub resp: Option<SocketAddr>,
    /// Health and metrics over HTTP.
    pub admin: Option<SocketAddr>,
}

/// A running node.
pub struct Node {
    shared: Arc<Shared>,
    endpoints: Endpoints,
    control_thread: Option<JoinHandle<()>>,
    worker_threads: Vec<JoinHandle<()>>,
    stop_workers: Vec<Arc<Notify>>,
    resp: Option<crate::resp::Server>,
    admin: Option<crate::admin_http::Server>,
    started: Instant,
}

impl Node {
    /// Starts a node: when it returns, the node listens, and whatever its directory holds is read; its replicas may yet
    /// execute what they logged ([`Node::is_recovered`]).
    ///
    /// `failed` is called at most once, when the log can make nothing durable: the process must stop then.
    /// `logging` lets operators change the log level.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left running.
    pub fn start(
        config: NodeConfig,
        logging: Option<Logging>,
        failed: impl Fn(String) + Send + Sync + 'static,
    ) -> Result<Node, StartError> {
        let started = Instant::now();
        let tls = config.tls.files().map(Tls::load).transpose()?;
        let in_clear = [(&config.listen.native, tls.is_some()), (&config.listen.peer, tls.is_some())];
        let in_clear = in_clear.into_iter().chain(config.listen.resp.iter().map(|address| (address, tls.is_some())));
        let in_clear = in_clear.chain(config.listen.admin.iter().map(|address| (address, false)));
        for (address, _) in in_clear.filter(|(_, secured)| !secured) {
            if !address.is_loopback() && !config.insecure {
                return Err(StartError::Insecure { address: address.clone() });
            }
        }
        let home = DataDir::open(&config.data_dir)?;
        if let (Some(tls), Some(identity)) = (&tls, home.identity()) {
            tls.must_name(identity.node)?;
        }
        let native = listen(&config.listen.native)?;
        let peer = listen(&config.listen.peer)?;
        let resp = match config.listen.resp.as_ref().map(listen).transpose() {
            // Nobody asked for this port: several nodes of a machine have the same default.
            Err(StartError::Listen { address, error }) if !config.origins.contains_key("listen.resp") => {
                tracing::warn!(%address, %error, "no RESP port: set listen.resp to another address, or to off");
                None
            }
            resp => resp?,
        };
        let admin = config.listen.admin.as_ref().map(listen).transpose()?;
        let bound = |listener: &Option<TcpListener>, wanted: &Option<Address>| {
            listener.as_ref().zip(wanted.as_ref()).map(|(listener, wanted)| address_of(listener, wanted)).transpose()
        };
        let endpoints = Endpoints {
            native: address_of(&native, &config.listen.native)?,
            peer: address_of(&peer, &config.listen.peer)?,
            resp: bound(&resp, &config.listen.resp)?,
            admin: bound(&admin, &config.listen.admin)?,
        };
        let workers = config.worker_threads.max(1);
        let metrics = metrics::Node::new(workers);
        metrics.set_memory_limit(config.memory_limit);
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..workers).map(|_| mailbox(config.limits.mailbox)).unzip();
        let (events, to_control) = mpsc::unbounded_channel();
        let tell = events.clone();
        let tell_control = Box::new(move |message| _ = tell.send(Event::Message(message)));
        let addresses = control::addresses(
            config.advertised_native(endpoints.native).to_string(),
            config.advertised_peer(endpoints.peer).to_string(),
            endpoints.resp.and_then(|resp| config.advertised_resp(resp)).map(|resp| resp.to_string()),
            endpoints.admin.and_then(|admin| config.advertised_admin(admin)).map(|admin| admin.to_string()),
        );
        let json = serde_json::json!({
            "native": addresses.native, "peer": addresses.peer, "admin": addresses.admin, "resp": addresses.resp,
            "pid": std::process::id(),
        });
        let written = home.write_endpoints(&json.to_string());
        written.map_err(|error| DataDirError::Io { path: config.data_dir.join("endpoints.json"), error })?;
        let pin = config.pin_threads;
        let shared = Shared::new(config, metrics, tell_control, logging, tls)?;
        let workers = Mailboxes::new(senders);
        let mut node = Node {
            shared: Arc::clone(&shared),
            endpoints,
            control_thread: None,
            worker_threads: Vec::new(),
            stop_workers: Vec::new(),
            resp: None,
            admin: None,
            started,
        };
        for (index, receiver) in receivers.into_iter().enumerate() {
            let (known, stop) = ((Arc::clone(&shared), workers.clone()), Arc::new(Notify::new()));
            node.stop_workers.push(Arc::clone(&stop));
            let thread = std::thread::Builder::new().name(format!("worker-{index}"));
            let thread = thread.spawn(move || {
                if pin {
                    crate::worker_thread::pin(index);
                }
                crate::worker_thread::run(index, known, receiver, started, stop);
            });
            node.worker_threads.push(thread.map_err(StartError::Thread)?);
        }
        let (opened, ready) = oneshot::channel();
        let handle = Handle::new(Arc::clone(&shared), workers, events);
        if let Some(listener) = admin {
            let admin = admin::admin_http(&shared);
            node.admin = Some(crate::admin_http::Server::start(listener, admin).map_err(StartError::Thread)?);
        }
        if let Some(listener) = resp {
            let told = (addresses.native.clone(), addresses.resp.clone());
            node.resp = Some(crate::resp::Server::start(&listener, &shared, told).map_err(StartError::Thread)?);
        }
        let start = control::Start { shared: handle, home, addresses, started, failed: Arc::new(failed) };
        let listeners = Listeners { native, peer };
        let thread = std::thread::Builder::new().name("control".into());
        let thread = thread.spawn(move || control::run(start, listeners, to_control, opened));
        node.control_thread = Some(thread.map_err(StartError::Thread)?);
        match ready.blocking_recv() {
            Ok(Ok(())) => node.resp.iter().for_each(crate::resp::Server::open),
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(StartError::Thread(std::io::Error::other("the control thread ended at once"))),
        }
        Ok(node)
    }

    /// Where it serves.
    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// How long ago it began to start.
    pub fn age(&self) -> std::time::Duration {
        self.started.elapsed()
    }

    /// Whether every replica of it has executed what its log holds: what clients ask of them is not late for that.
    pub fn is_recovered(&self) -> bool {
        self.shared.recovery.is_over()
    }

    /// What it is at until then, in one line.
    pub fn recovering(&self) -> String {
        self.shared.recovery.text()
    }

    /// Which node of which cluster it is; none: it waits for `init`.
    pub fn identity(&self) -> Option<(ClusterId, NodeId)> {
        self.shared.own.identity().map(|identity| (identity.cluster, identity.node))
    }

    /// Its metrics, as `/metrics` shows them.
    pub fn metrics(&self) -> String {
        self.shared.metrics.render(metrics::Format::OpenMetrics)
    }

    /// Who leads a group, as this node knows it.
    pub fn leader_of(&self, group: PartitionId) -> Option<NodeId> {
        self.shared.cluster.leader(group)
    }

    /// Transfers leaderships, finishes what is in flight, flushes, and stops. Takes up to `drain_timeout`.
    pub fn stop(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        self.shared.tell_control(ToControl::Stop);
        if let Some(thread) = self.control_thread.take() {
            _ = thread.join();
        }
        drop(self.resp.take());
        drop(self.admin.take());
        self.stop_workers.drain(..).for_each(|stop| stop.notify_one());
        for thread in self.worker_threads.drain(..) {
            _ = thread.join();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shut_down();
    }
}

fn listen(address: &Address) -> Result<TcpListener, StartError> {
    let error = |error| StartError::Listen { address: address.clone(), error };
    let resolved = address.resolve().map_err(error)?;
    TcpListener::bind(resolved).map_err(error)
}

fn address_of(listener: &TcpListener, wanted: &Address) -> Result<SocketAddr, StartError> {
    listener.local_addr().map_err(|error| StartError::Listen { address: wanted.clone(), error })
}
