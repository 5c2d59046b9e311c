//! The page's events (`/ui/events`): one a second to each page that is open, made once for all of them. While none is
//! open, nothing is asked.
//!
//! A page may come from another node, or from a demo on this machine: its origin is checked, and only `GET` is allowed.
//! A browser does not tell the origin of what a page of another site only embeds; that comes without
//! [`page::HEADER`].

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use coppice_client::wire::NodeId;
use coppice_core::status::live::{ClusterLive, SAMPLES_MAX, Sample};
use serde_json::json;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::authorization::Peer;
use super::{STATUS_TIMEOUT, Shared};
use crate::page;

/// Pages that may be open on a node at a time: a quarter of its connections over HTTP, so that probes find a place.
const PAGES_MAX: usize = 16;

/// Between two events.
const INTERVAL: Duration = Duration::from_secs(1);

/// Events that wait for a page which does not read; it gets what it missed with the next one that it reads.
const WAITING_MAX: usize = 2;

/// The pages that are open, and what they know.
#[derive(Default)]
pub(super) struct Pages {
    open: Mutex<Vec<Page>>,
    store: Mutex<Store>,
    opened: Notify,
}

struct Page {
    events: mpsc::Sender<Bytes>,
    /// Number of the last event that it was sent.
    has: u64,
}

/// What all nodes said since the first page was opened.
#[derive(Default)]
struct Store {
    /// The newest, its samples taken out; none: nothing yet.
    newest: Option<ClusterLive>,
    /// Of each node: the number of its newest sample, and its samples, each with the number of the event that brought
    /// it.
    samples: BTreeMap<NodeId, (u64, VecDeque<(u64, Sample)>)>,
    /// Events so far.
    events: u64,
}

impl Store {
    /// The samples that are known, by node.
    fn after(&self) -> BTreeMap<NodeId, u64> {
        self.samples.iter().map(|(node, (newest, _))| (*node, *newest)).collect()
    }

    fn note(&mut self, mut live: ClusterLive) {
        self.events += 1;
        self.samples.retain(|node, _| live.nodes.contains_key(node));
        for (node, of) in &mut live.nodes {
            let told = std::mem::take(&mut of.samples.samples);
            let (newest, known) = self.samples.entry(*node).or_default();
            known.extend(told.into_iter().map(|sample| (self.events, sample)));
            known.drain(..known.len().saturating_sub(SAMPLES_MAX));
            // Who did not answer keeps its number.
            if of.samples.newest > 0 {
                *newest = of.samples.newest;
            }
        }
        self.newest = Some(live);
    }

    /// The event for a page that has those up to number `has`.
    fn event(&self, has: u64) -> Option<Bytes> {
        let mut live = self.newest.clone()?;
        for (node, of) in &mut live.nodes {
            let known = self.samples.get(node).into_iter().flat_map(|(_, samples)| samples);
            of.samples.samples = known.filter(|(event, _)| *event > has).map(|(_, sample)| sample.clone()).collect();
        }
        Some(frame(&page::json::event(&live)))
    }
}

/// One server-sent event.
fn frame(value: &serde_json::Value) -> Bytes {
    Bytes::from(format!("data: {value}\n\n"))
}

impl Pages {
    /// A page is opened; none: as many are open as may be.
    fn open(&self) -> Option<mpsc::Receiver<Bytes>> {
        let (events, receiver) = mpsc::channel(WAITING_MAX);
        let mut open = lock(&self.open);
        open.retain(|page| !page.events.is_closed());
        if open.len() >= PAGES_MAX {
            return None;
        }
        let store = lock(&self.store);
        let mut page = Page { events, has: 0 };
        page.send(store.event(0), store.events);
        open.push(page);
        self.opened.notify_one();
        Some(receiver)
    }

    /// Feeds the pages for ever.
    pub(super) async fn feed(&self, shared: &Shared) {
        loop {
            lock(&self.open).retain(|page| !page.events.is_closed());
            if lock(&self.open).is_empty() {
                *lock(&self.store) = Store::default();
                self.opened.notified().await;
                continue;
            }
            let begun = Instant::now();
            let after = lock(&self.store).after();
            let live = tokio::time::timeout(STATUS_TIMEOUT, (shared.admin.live)(after)).await;
            match live {
                Ok(Ok(live)) => {
                    let (mut open, mut store) = (lock(&self.open), lock(&self.store));
                    store.note(live);
                    // Pages that have the same get the same.
                    let mut made: BTreeMap<u64, Option<Bytes>> = BTreeMap::new();
                    for page in &mut *open {
                        let event = made.entry(page.has).or_insert_with(|| store.event(page.has)).clone();
                        page.send(event, store.events);
                    }
                }
                Ok(Err(why)) => self.say(&why),
                Err(_) => self.say(&[format!("this node gave no status within {} s", STATUS_TIMEOUT.as_secs())]),
            }
            tokio::time::sleep_until(begun + INTERVAL).await;
        }
    }

    /// There is nothing to show, and why.
    fn say(&self, why: &[String]) {
        let event = frame(&json!({ "v": 1, "nothing": why }));
        for page in lock(&self.open).iter_mut() {
            _ = page.events.try_send(event.clone());
        }
    }
}

impl Page {
    fn send(&mut self, event: Option<Bytes>, number: u64) {
        if event.is_some_and(|event| self.events.try_send(event).is_ok()) {
            self.has = number;
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing is half done between two statements that a panic could come between.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The body of an answer that goes on as long as the page is open.
struct Events(mpsc::Receiver<Bytes>);

impl futures_core::Stream for Events {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|event| event.map(Ok))
    }
}

/// `GET /ui/events`, and the question of a browser whether a page from elsewhere may ask that.
pub(super) async fn events(
    State(shared): State<Arc<Shared>>,
    ConnectInfo(Peer(peer)): ConnectInfo<Peer>,
    method: Method,
    headers: HeaderMap,
) -> Response {
    let origin = headers.get(header::ORIGIN).cloned();
    if let Some(origin) = &origin
        && !may_read(origin, peer, &(shared.admin.nodes)())
    {
        let text = "a page of another site may not read this; the page of this cluster is /ui\n";
        return (StatusCode::FORBIDDEN, text).into_response();
    }
    let mut answer = match method {
        Method::OPTIONS => {
            let names = format!("authorization, {}", page::HEADER);
            let methods = (header::ACCESS_CONTROL_ALLOW_METHODS, "GET".to_owned());
            let allowed = [methods, (header::ACCESS_CONTROL_ALLOW_HEADERS, names)];
            (StatusCode::NO_CONTENT, allowed).into_response()
        }
        _ if !headers.contains_key(page::HEADER) => {
            let text = format!("this is for the page /ui, which sends the header {}: 1\n", page::HEADER);
            (StatusCode::FORBIDDEN, text).into_response()
        }
        Method::HEAD => StatusCode::OK.into_response(),
        _ => match shared.pages.open() {
            Some(receiver) => {
                let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
                (headers, Body::from_stream(Events(receiver))).into_response()
            }
            None => {
                let text = format!("{PAGES_MAX} pages are open here: close one, or open it on another node\n");
                (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
            }
        },
    };
    answer.headers_mut().insert(header::VARY, HeaderValue::from_static("Origin"));
    if let Some(origin) = origin {
        answer.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    }
    answer
}

/// Whether the page of an origin may read the events: that of a node, and on the machine of the node that of anything
/// there, as of a demo. Any other page in the browser of somebody who may read them could pass them on.
fn may_read(origin: &HeaderValue, peer: SocketAddr, nodes: &[String]) -> bool {
    let Some(authority) = origin.to_str().ok().and_then(|origin| origin.strip_prefix("http://")) else { return false };
    if nodes.iter().any(|node| node.eq_ignore_ascii_case(authority)) {
        return true;
    }
    let Ok(authority) = authority.parse::<Authority>() else { return false };
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let is_here = host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|host: IpAddr| host.is_loopback());
    is_here && !authority.as_str().contains('@') && peer.ip().to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use coppice_core::status::live::{NodeLive, Samples};

    use super::*;

    /// One node that says that its newest samples end with number `newest`.
    fn live(newest: u64, samples: usize) -> ClusterLive {
        let samples = (0..samples).map(|at| Sample { writes: newest as u32 - at as u32, ..Sample::default() });
        let mut samples: Vec<Sample> = samples.collect();
        samples.reverse();
        let node = NodeLive { samples: Samples { newest, age_ms: 1, samples }, ..NodeLive::default() };
        ClusterLive { nodes: BTreeMap::from([(NodeId(1), node)]), ..ClusterLive::default() }
    }

    fn writes(event: &Bytes) -> Vec<u64> {
        let text = std::str::from_utf8(event).expect("text");
        let body = text.strip_prefix("data: ").and_then(|text| text.strip_suffix("\n\n")).expect("an event");
        let value: serde_json::Value = serde_json::from_str(body).expect("json");
        let column = value["nodes"]["n1"]["samples"]["writes"].as_array().expect("a column").clone();
        column.iter().map(|number| number.as_u64().expect("a number")).collect()
    }

    #[test]
    fn each_page_gets_what_it_does_not_have() {
        let mut store = Store::default();
        assert!(store.event(0).is_none() && store.after().is_empty());
        store.note(live(3, 3));
        assert_eq!(writes(&store.event(0).expect("an event")), [1, 2, 3]);
        assert_eq!(store.after(), BTreeMap::from([(NodeId(1), 3)]));
        store.note(live(4, 1));
        assert_eq!(writes(&store.event(1).expect("an event")), [4]);
        assert_eq!(writes(&store.event(0).expect("an event")), [1, 2, 3, 4]);
        // A node that says nothing keeps what it said.
        store.note(live(0, 0));
        assert_eq!(store.after(), BTreeMap::from([(NodeId(1), 4)]));
        assert!(writes(&store.event(2).expect("an event")).is_empty());
        store.note(live(2_000, SAMPLES_MAX));
        assert_eq!(writes(&store.event(0).expect("an event")).len(), SAMPLES_MAX);
    }

    #[test]
    fn so_many_pages_are_open_and_one_that_does_not_read_waits_for_none() {
        let pages = Pages::default();
        let mut open: Vec<_> = (0..PAGES_MAX).map(|_| pages.open().expect("a place")).collect();
        assert!(pages.open().is_none());
        for _ in 0..=WAITING_MAX {
            pages.say(&["x".into()]);
        }
        assert!(open[0].try_recv().is_ok());
        drop(open.pop());
        assert!(pages.open().is_some(), "the place of a page that was closed");
    }

    #[test]
    fn pages_of_nodes_and_of_this_machine_may_read() {
        let nodes = ["n2.example:7403".to_owned(), "10.0.0.2:7403".to_owned()];
        let may = |origin: &'static str, peer: &str| {
            may_read(&HeaderValue::from_static(origin), peer.parse().expect("an address"), &nodes)
        };
        let (here, there) = ("127.0.0.1:9", "10.0.0.9:9");
        for origin in ["http://n2.example:7403", "http://N2.example:7403", "http://10.0.0.2:7403"] {
            assert!(may(origin, here) && may(origin, there), "{origin}");
        }
        for origin in ["http://127.0.0.1:7499", "http://localhost:1", "http://[::1]:7499"] {
            assert!(may(origin, here) && !may(origin, there), "{origin}");
        }
        for origin in [
            "null",
            "http://example.com",
            "http://10.0.0.2",
            "https://n2.example:7403",
            "http://10.0.0.3:7403",
            "http://localhost.example.com",
            "http://localhost@example.com",
            "http://127.0.0.1.example.com:1",
        ] {
            assert!(!may(origin, here), "{origin}");
        }
    }
}
