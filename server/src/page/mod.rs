//! The page at `/ui` (operations.md 1.8): its files, which are part of the program, and the headers that they go out
//! with. A node serves it and feeds it (`admin_http`); a demo serves it with buttons.

pub mod json;
#[cfg(test)]
mod tests;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// Where the page is.
pub const PATH: &str = "/ui";

/// Where a node tells what the page shows: one event a second.
pub const EVENTS: &str = "/ui/events";

/// The header with which the page asks for them. A browser lets a page of another site send it only once it has asked
/// whether that page may; pictures and scripts of such a page come without it.
pub const HEADER: &str = "coppice-page";

/// A file of the page, by its name below [`PATH`].
struct File {
    name: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
}

const HTML: &str = include_str!("files/page.html");

const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

const FILES: [File; 10] = [
    File { name: "page.css", kind: CSS, bytes: include_bytes!("files/page.css") },
    File { name: "page.js", kind: SCRIPT, bytes: include_bytes!("files/page.js") },
    File { name: "parts.js", kind: SCRIPT, bytes: include_bytes!("files/parts.js") },
    File { name: "stream.js", kind: SCRIPT, bytes: include_bytes!("files/stream.js") },
    File { name: "map.js", kind: SCRIPT, bytes: include_bytes!("files/map.js") },
    File { name: "time.js", kind: SCRIPT, bytes: include_bytes!("files/time.js") },
    File { name: "demo.js", kind: SCRIPT, bytes: include_bytes!("files/demo.js") },
    File { name: "icon.svg", kind: "image/svg+xml", bytes: include_bytes!("files/icon.svg") },
    // uPlot 1.6.32, MIT (`uplot/LICENSE`): charts on a canvas, 50 KB, without dependencies.
    File { name: "uplot.js", kind: SCRIPT, bytes: include_bytes!("files/uplot/uPlot.iife.min.js") },
    File { name: "uplot.css", kind: CSS, bytes: include_bytes!("files/uplot/uPlot.min.css") },
];

/// Who serves the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A node: the page reads only.
    Node,
    /// A demo: the page has buttons.
    Demo,
}

impl Role {
    const fn text(self) -> &'static str {
        match self {
            Role::Node => "node",
            Role::Demo => "demo",
        }
    }
}

/// The page. `nodes`: where nodes serve HTTP; it asks these and whoever served it, and may ask nobody else.
pub fn document(role: Role, nodes: &[String]) -> Response {
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).filter(|address| is_plain(address)).collect();
    let html = HTML.replacen("{role}", role.text(), 1).replacen("{nodes}", &nodes.join(" "), 1);
    let sources: String = nodes.iter().map(|address| format!(" http://{address}")).collect();
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'{sources}; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let policy = HeaderValue::from_str(&policy).unwrap_or(HeaderValue::from_static("default-src 'none'"));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    (headers, FRESH, html).into_response()
}

/// Files change with the program, whose version their names do not tell.
const FRESH: [(header::HeaderName, &str); 2] =
    [(header::CACHE_CONTROL, "no-cache"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];

/// A file of the page.
pub fn file(name: &str) -> Response {
    match FILES.iter().find(|file| file.name == name) {
        Some(file) => ([(header::CONTENT_TYPE, file.kind)], FRESH, file.bytes).into_response(),
        None => (StatusCode::NOT_FOUND, "no such file; the page is /ui\n").into_response(),
    }
}

/// Whether a path is one of the page's own files, which hold nothing of the cluster's.
pub fn is_file(path: &str) -> bool {
    let name = path.strip_prefix(PATH).and_then(|rest| rest.strip_prefix('/'));
    path == PATH || name.is_some_and(|name| FILES.iter().any(|file| file.name == name))
}

/// Whether an address can stand in a header and in HTML as it is: `host:port`, as a map that checks addresses has it.
fn is_plain(address: &str) -> bool {
    !address.is_empty() && address.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".:-_[]".contains(&byte))
}
