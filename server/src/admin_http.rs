//! Admin HTTP of a node (operations.md 1): health, metrics, status and configuration, read only. It runs on a thread
//! with a small runtime of its own, so a scrape never waits for a worker thread, nor a worker thread for a scrape. It
//! knows neither replicas nor files: what it shows comes from the closures in [`Admin`].
//!
//! | path | answer |
//! |---|---|
//! | `/livez` | 200 while all worker threads turn; it never looks at the cluster: restarting heals no quorum |
//! | `/readyz` | 200 when ready; else 503 and the reasons as json, with `?verbose` one per line |
//! | `/metrics` | OpenMetrics, or the text format of Prometheus, as `Accept` says |
//! | `/status` | the json of `coppice status` |
//! | `/config` | effective values as json; the closure leaves secrets out |
//! | `/ui` | the page, whose files are part of the program |
//! | `/ui/events` | what it shows: a server-sent event a second |
//! | `/` | an index of these |
//!
//! It answers only under names of its own (`hosts`). While access control is on, whoever asks from beyond this machine
//! shows a token (`Authorization: Bearer`): that of any user for metrics, status and events, that of an
//! admin for the configuration. Health and the page's files are for everybody.

mod authorization;
mod connections;
mod hosts;
mod live;
mod negotiation;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use coppice_client::wire::NodeId;
use coppice_core::access::Access;
use coppice_core::status::live::ClusterLive;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::{metrics, page};

/// How long a worker thread may stand still. A thread turns at least once a second, also when idle; five seconds are
/// far beyond any step, checkpoint or election.
const STALL_MAX: Duration = Duration::from_secs(5);

/// How often it is seen whether the threads turn, so that the first question is answered as well as the next ones.
const WATCH: Duration = Duration::from_secs(1);

/// A thread that seems to stand still gets this long to make a turn: after a pause of the whole process (SIGSTOP, a
/// suspended machine) the first question may come before the first turn.
const STALL_GRACE: Duration = Duration::from_millis(250);

/// `status` asks other nodes and gives them 300 ms; beyond this the answer is 503.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);

/// A question to the node, answered in its own time.
pub type Ask<T> = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = T> + Send>> + Send + Sync>;

/// What the page shows: `after` are the samples of each node that are known. Or why there is nothing to show.
pub type AskLive = Arc<
    dyn Fn(BTreeMap<NodeId, u64>) -> Pin<Box<dyn Future<Output = Result<ClusterLive, Vec<String>>> + Send>>
        + Send
        + Sync,
>;

pub use connections::Bounded;
pub use hosts::{Hosts, check as check_host};

/// Everything that the endpoint may see of its node.
#[derive(Clone)]
pub struct Admin {
    /// Rendered by `/metrics`; the turns of its worker threads are what `/livez` looks at.
    pub metrics: metrics::Node,
    /// The json of `coppice status`.
    pub status: Ask<Value>,
    /// What the page shows.
    pub live: AskLive,
    /// Where the nodes of the cluster serve HTTP.
    pub nodes: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
    /// Why the node is not ready, one sentence each; empty if it is.
    pub readiness: Ask<Vec<String>>,
    /// Effective configuration, with secrets only as `set`.
    pub config: Ask<Value>,
    /// Names that it is served under; requests for others are turned away.
    pub hosts: Hosts,
    /// The users.
    pub access: Arc<dyn Fn() -> Arc<Access> + Send + Sync>,
}

/// Makes an [`Ask`] of a closure that answers at once from shared state.
pub fn ask<T: Send + 'static>(answer: impl Fn() -> T + Send + Sync + 'static) -> Ask<T> {
    Arc::new(move || {
        let answer = answer();
        Box::pin(std::future::ready(answer))
    })
}

/// The running endpoint. Dropping it stops it.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves on a bound listener, on a new thread named `admin-http`.
    pub fn start(listener: TcpListener, admin: Admin) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name("admin-http".into()).spawn(move || {
            let turns = Mutex::new(Turns::new(admin.metrics.turns(), Instant::now()));
            let shared = Arc::new(Shared { admin, turns, pages: live::Pages::default() });
            let router = authorization::with_peers(router(&shared));
            let serve = axum::serve(connections::Bounded::new(listener), router).into_future();
            runtime.block_on(async {
                tokio::select! {
                    _ = serve => {}
                    () = watch(&shared) => {}
                    () = shared.pages.feed(&shared) => {}
                    _ = stopped => {}
                }
            });
            // Requests still under way are cut: all of them can be asked again.
            runtime.shutdown_background();
        })?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens; the real port if it was bound to port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of that thread was reported by the panic hook; nothing is left to do about it here.
            let _ = thread.join();
        }
    }
}

struct Shared {
    admin: Admin,
    turns: Mutex<Turns>,
    pages: live::Pages,
}

/// Sees for ever whether the threads turn.
async fn watch(shared: &Shared) {
    loop {
        tokio::time::sleep(WATCH).await;
        shared.stalled();
    }
}

fn router(shared: &Arc<Shared>) -> Router {
    let hosts = shared.admin.hosts.clone();
    let access = Arc::clone(&shared.admin.access);
    Router::new()
        .route("/", get(index))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(render_metrics))
        .route("/status", get(status))
        .route("/config", get(config))
        .route(page::PATH, get(document))
        .route("/ui/{file}", get(file))
        .route(page::EVENTS, get(live::events).options(live::events))
        .fallback(not_found)
        .layer(axum::middleware::from_fn_with_state(access, authorization::check))
        .with_state(Arc::clone(shared))
        .layer(axum::middleware::from_fn_with_state(hosts, hosts::check))
}

const INDEX: &str = concat!(
    "coppice ",
    env!("CARGO_PKG_VERSION"),
    "
/livez    200 while the worker threads turn
/readyz   200 when ready for clients, else 503 and the reasons (?verbose: one per line)
/metrics  OpenMetrics or Prometheus text, as Accept says
/status   the json of `coppice status`
/config   effective configuration
/ui       the page: the cluster as it runs, in a browser
"
);

async fn index() -> &'static str {
    INDEX
}

async fn document(State(shared): State<Arc<Shared>>) -> Response {
    page::document(page::Role::Node, &(shared.admin.nodes)())
}

async fn file(Path(name): Path<String>) -> Response {
    page::file(&name)
}

async fn not_found() -> Response {
    (StatusCode::NOT_FOUND, format!("no such path; there are:\n{INDEX}")).into_response()
}

async fn livez(State(shared): State<Arc<Shared>>) -> Response {
    let mut stalled = shared.stalled();
    if !stalled.is_empty() {
        tokio::time::sleep(STALL_GRACE).await;
        stalled = shared.stalled();
    }
    if stalled.is_empty() {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "v": 1, "live": false, "stalled_workers": stalled })))
        .into_response()
}

async fn readyz(State(shared): State<Arc<Shared>>, RawQuery(query): RawQuery) -> Response {
    let reasons = (shared.admin.readiness)().await;
    let code = if reasons.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let verbose = query.is_some_and(|query| query.split('&').any(|part| part == "verbose" || part == "verbose="));
    if !verbose {
        return (code, Json(json!({ "v": 1, "ready": reasons.is_empty(), "reasons": reasons }))).into_response();
    }
    let lines = if reasons.is_empty() { vec!["ready".to_owned()] } else { reasons };
    (code, lines.join("\n") + "\n").into_response()
}

async fn render_metrics(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    let format = negotiation::format(&headers);
    let headers = [(header::CONTENT_TYPE, format.content_type()), (header::VARY, "Accept")];
    (headers, shared.admin.metrics.render(format)).into_response()
}

async fn status(State(shared): State<Arc<Shared>>) -> Response {
    match tokio::time::timeout(STATUS_TIMEOUT, (shared.admin.status)()).await {
        Ok(status) => Json(status).into_response(),
        Err(_) => {
            let error = format!("no status within {} s", STATUS_TIMEOUT.as_secs());
            (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "v": 1, "error": error }))).into_response()
        }
    }
}

async fn config(State(shared): State<Arc<Shared>>) -> Response {
    Json((shared.admin.config)().await).into_response()
}

impl Shared {
    fn stalled(&self) -> Vec<usize> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.stalled(&self.admin.metrics.turns(), Instant::now())
    }
}

/// When each worker thread was last seen to have turned.
#[derive(Debug)]
struct Turns {
    seen: Vec<(u64, Instant)>,
}

impl Turns {
    fn new(turns: Vec<u64>, now: Instant) -> Self {
        Self { seen: turns.into_iter().map(|turns| (turns, now)).collect() }
    }

    /// Indexes of the threads that have not turned for [`STALL_MAX`], as far as was ever looked.
    fn stalled(&mut self, turns: &[u64], now: Instant) -> Vec<usize> {
        for (seen, turns) in self.seen.iter_mut().zip(turns) {
            if seen.0 != *turns {
                *seen = (*turns, now);
            }
        }
        let stands = |(_, since): &(u64, Instant)| now.duration_since(*since) >= STALL_MAX;
        self.seen.iter().enumerate().filter(|(_, seen)| stands(seen)).map(|(index, _)| index).collect()
    }
}
