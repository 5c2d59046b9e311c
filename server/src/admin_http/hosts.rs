//! The names under which admin HTTP is served. A page in a browser may have a name of its own resolve to this machine
//! (DNS rebinding) and read what only its user may: it comes with its own name in `Host`, and is turned away.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Names beside addresses and `localhost`.
#[derive(Clone, Debug, Default)]
pub struct Hosts(Vec<String>);

impl Hosts {
    /// These names.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Hosts {
        Hosts(names.into_iter().map(str::to_ascii_lowercase).collect())
    }

    /// Whether a request for `host` is meant for this node. An address is nobody's name; programs of old that send none
    /// are no browsers.
    fn allow(&self, host: Option<&str>) -> bool {
        let Some(host) = host else { return true };
        let Ok(authority) = host.parse::<Authority>() else { return false };
        let name = authority.host().trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
        let name = name.to_ascii_lowercase();
        name.parse::<IpAddr>().is_ok() || name == "localhost" || self.0.contains(&name)
    }
}

/// Passes on what is meant for this node.
pub async fn check(State(hosts): State<Hosts>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST);
    let named = host.map(|host| host.to_str().unwrap_or_default()).or_else(|| request.uri().host());
    if hosts.allow(named) {
        return next.run(request).await;
    }
    let text = "this name is not one of the node's: use its address, localhost, or the name in advertise.admin\n";
    (StatusCode::MISDIRECTED_REQUEST, text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_localhost_and_advertised_names_are_the_nodes_and_nothing_else_is() {
        let hosts = Hosts::new(["N1.example.net", "n1"]);
        for host in ["127.0.0.1:7402", "localhost", "LOCALHOST:80", "[::1]:7402", "10.1.2.3", "n1.example.net:1", "n1."]
        {
            assert!(hosts.allow(Some(host)), "{host}");
        }
        assert!(hosts.allow(None));
        for host in
            ["rebound.example.com:7402", "localhost.example.com", "n2", "", "n1@example.com", "::", "127.0.0.1.x"]
        {
            assert!(!hosts.allow(Some(host)), "{host}");
        }
    }
}
