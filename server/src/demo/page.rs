//! The demo's own page (operations.md 1.8): that of a node, with buttons. It is served on this machine only, takes
//! orders from itself only, and outlives every node.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::prompt::{self, PromptCommand};
use crate::admin_http::{Bounded, Hosts, check_host};
use crate::page;

/// Where a demo's page is, if nobody else is there.
const PORT: u16 = 7499;

/// Orders that wait for the one that is carried out; beyond, the page is told to wait.
const ORDERS_MAX: usize = 8;

/// Bytes of an order.
const ORDER_BYTES_MAX: usize = 256;

/// What a button orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// What can be said at the prompt too.
    Command(PromptCommand),
    /// Load begins, in the background, or ends.
    Load(bool),
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Wanted::Command(command) => command.fmt(f),
            Wanted::Load(true) => f.write_str("load"),
            Wanted::Load(false) => f.write_str("load stop"),
        }
    }
}

/// An order of the page. It may take longer than a browser waits: what became of it is in the [`View`].
#[derive(Debug)]
pub struct Order {
    pub number: u64,
    pub wanted: Wanted,
}

/// What became of an order: what the prompt says of it.
#[derive(Debug)]
pub struct Outcome {
    pub number: u64,
    pub said: Result<Vec<String>, String>,
}

/// What the page shows of the demo itself.
#[derive(Debug, Default)]
pub struct View {
    /// `up`, `paused` or `down`, by node.
    pub nodes: Vec<&'static str>,
    /// What is cut or slow, as it was said.
    pub faults: Vec<String>,
    /// Load of the page runs.
    pub load: bool,
    /// What is carried out now.
    pub running: Option<String>,
    /// What became of the newest order that has ended.
    pub outcome: Option<Outcome>,
}

/// The view, which the demo renews and the page reads.
#[derive(Clone, Debug, Default)]
pub struct Shown(Arc<Mutex<View>>);

impl Shown {
    /// Changes it.
    pub fn change(&self, change: impl FnOnce(&mut View)) {
        change(&mut self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, View> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn json(&self) -> Value {
        let view = self.lock();
        let nodes = (1..).zip(&view.nodes).map(|(n, state)| json!({ "node": format!("n{n}"), "state": state }));
        let outcome = view.outcome.as_ref().map(|Outcome { number, said }| match said {
            Ok(lines) => json!({ "number": number, "said": lines }),
            Err(text) => json!({ "number": number, "error": text }),
        });
        json!({
            "v": 1, "nodes": nodes.collect::<Vec<_>>(), "faults": view.faults, "load": view.load,
            "running": view.running, "outcome": outcome,
        })
    }
}

/// The page as it is served.
#[derive(Debug)]
pub struct Page {
    pub address: SocketAddr,
    pub orders: mpsc::Receiver<Order>,
    pub shown: Shown,
}

struct Shared {
    /// Where nodes serve HTTP.
    nodes: Vec<String>,
    orders: mpsc::Sender<Order>,
    ordered: AtomicU64,
    shown: Shown,
    port: u16,
}

/// Serves the page on this machine.
///
/// # Errors
/// There is no free port.
pub async fn serve(nodes: Vec<String>) -> io::Result<Page> {
    let bind = |port| tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let listener = match bind(PORT).await {
        Ok(listener) => listener,
        // Another demo's.
        Err(_) => bind(0).await?,
    };
    let address = listener.local_addr()?;
    let (sender, orders) = mpsc::channel(ORDERS_MAX);
    let shown = Shown::default();
    let shared =
        Shared { nodes, orders: sender, ordered: AtomicU64::new(0), shown: shown.clone(), port: address.port() };
    let router = Router::new()
        .route(page::PATH, get(document))
        .route("/ui/{file}", get(file))
        .route("/ui/demo", get(view).post(order))
        .layer(axum::extract::DefaultBodyLimit::max(ORDER_BYTES_MAX))
        .with_state(Arc::new(shared))
        .layer(axum::middleware::from_fn_with_state(Hosts::default(), check_host));
    let serving = axum::serve(Bounded::new(listener), router).into_future();
    crate::task::spawn(async move { _ = serving.await });
    Ok(Page { address, orders, shown })
}

async fn document(State(shared): State<Arc<Shared>>) -> Response {
    page::document(page::Role::Demo, &shared.nodes)
}

async fn file(Path(name): Path<String>) -> Response {
    page::file(&name)
}

async fn view(State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(shared.shown.json())
}

/// An order: the line that one would type. Only the demo's own page may give one: a browser names the page that asks.
async fn order(State(shared): State<Arc<Shared>>, headers: HeaderMap, line: String) -> Response {
    let refuse = |code: StatusCode, text: &str| (code, Json(json!({ "v": 1, "error": text }))).into_response();
    if !is_own(&headers, shared.port) {
        return refuse(StatusCode::FORBIDDEN, "only the demo's own page gives orders");
    }
    let wanted = match wanted(&line) {
        Ok(wanted) => wanted,
        Err(text) => return refuse(StatusCode::BAD_REQUEST, &text),
    };
    let number = shared.ordered.fetch_add(1, Ordering::Relaxed) + 1;
    match shared.orders.try_send(Order { number, wanted }) {
        Ok(()) => (StatusCode::ACCEPTED, Json(json!({ "v": 1, "number": number }))).into_response(),
        Err(_) => refuse(StatusCode::TOO_MANY_REQUESTS, "other orders wait: try again when they are done"),
    }
}

/// Whether a request comes from the page that is served here. Its content type is one that no form can send.
fn is_own(headers: &HeaderMap, port: u16) -> bool {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let own = [format!("127.0.0.1:{port}"), format!("localhost:{port}")];
    let host = text(header::HOST);
    own.iter().any(|own| own == host)
        && text(header::ORIGIN).strip_prefix("http://") == Some(host)
        && text(header::CONTENT_TYPE) == "application/x-coppice-order"
}

/// What a line orders.
fn wanted(line: &str) -> Result<Wanted, String> {
    match line.trim() {
        "load" => return Ok(Wanted::Load(true)),
        "load stop" => return Ok(Wanted::Load(false)),
        _ => {}
    }
    let mut commands = prompt::parse(line, &[])?;
    match (commands.pop(), commands.is_empty()) {
        (
            Some(
                command @ (PromptCommand::Kill(_)
                | PromptCommand::Pause(_)
                | PromptCommand::Resume(_)
                | PromptCommand::Restart(_)
                | PromptCommand::Cut(_)
                | PromptCommand::Slow(..)
                | PromptCommand::Heal),
            ),
            true,
        ) => Ok(Wanted::Command(command)),
        _ => Err("the page orders faults and load, one at a time; everything else is said at the prompt".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn buttons_order_faults_and_load_and_nothing_else() {
        assert_eq!(wanted("kill 2"), Ok(Wanted::Command(PromptCommand::Kill(2))));
        assert_eq!(wanted("cut 1|2,3"), Ok(Wanted::Command(PromptCommand::Cut(vec![vec![1], vec![2, 3]]))));
        assert_eq!(wanted("load"), Ok(Wanted::Load(true)));
        assert_eq!(wanted(" load stop "), Ok(Wanted::Load(false)));
        for line in ["", "quit", "put a b", "wait healthy", "load run --clients 9", "kill", "kill 1; kill 2", "help"] {
            assert!(wanted(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_page_of_another_site_orders_nothing() {
        const KIND: &str = "application/x-coppice-order";
        let is_own = |host: &'static str, origin: Option<&'static str>, kind: &'static str| {
            let mut headers = HeaderMap::new();
            let mut put = |name: HeaderName, value| headers.insert(name, HeaderValue::from_static(value));
            put(header::HOST, host);
            put(header::CONTENT_TYPE, kind);
            origin.map(|origin| put(header::ORIGIN, origin));
            is_own(&headers, 7499)
        };
        assert!(is_own("127.0.0.1:7499", Some("http://127.0.0.1:7499"), KIND));
        assert!(is_own("localhost:7499", Some("http://localhost:7499"), KIND));
        for origin in [
            None,
            Some("null"),
            Some("http://example.com"),
            Some("http://127.0.0.1:7403"),
            Some("http://localhost:7499"),
            Some("https://127.0.0.1:7499"),
        ] {
            assert!(!is_own("127.0.0.1:7499", origin, KIND), "{origin:?}");
        }
        // A name that was made to resolve to this machine.
        assert!(!is_own("rebound.example.com:7499", Some("http://rebound.example.com:7499"), KIND));
        assert!(!is_own("127.0.0.1:7499", Some("http://127.0.0.1:7499"), "text/plain"));
    }
}
