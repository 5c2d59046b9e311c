//! Who may see what of a node over HTTP.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::connect_info::{Connected, IntoMakeServiceWithConnectInfo};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::serve::IncomingStream;
use coppice_client::Token;
use coppice_client::wire::Role;
use coppice_core::access::{Access, Credentials};

use super::connections::Bounded;
use crate::page;

/// Where a connection comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub SocketAddr);

impl Connected<IncomingStream<'_, Bounded>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Bounded>) -> Peer {
        Peer(*stream.remote_addr())
    }
}

/// `router`, which is told where each connection comes from.
pub(super) fn with_peers(router: Router) -> IntoMakeServiceWithConnectInfo<Router, Peer> {
    router.into_make_service_with_connect_info::<Peer>()
}

/// The users of the node.
pub(super) type Users = Arc<dyn Fn() -> Arc<Access> + Send + Sync>;

/// Lets a request through, or says what it lacks.
pub(super) async fn check(
    State(users): State<Users>,
    ConnectInfo(Peer(peer)): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let authorization = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    // A browser asks without a token whether it may ask with one.
    let asks_whether = request.method() == Method::OPTIONS && request.uri().path() == page::EVENTS;
    let lacks = lacking(&users(), peer, request.uri().path(), authorization).filter(|_| !asks_whether);
    match lacks {
        None => next.run(request).await,
        Some((code, text)) => {
            let (from, port, code_number) = (peer.ip(), peer.port(), code.as_u16());
            tracing::warn!(%from, port, code = code_number, "a request over HTTP is denied");
            ([(header::WWW_AUTHENTICATE, "Bearer"), (header::CONNECTION, "close")], (code, text)).into_response()
        }
    }
}

/// What a request from `peer` lacks; none: it is let through.
fn lacking(
    access: &Access,
    peer: SocketAddr,
    path: &str,
    authorization: Option<&str>,
) -> Option<(StatusCode, &'static str)> {
    let of_everybody = matches!(path, "/" | "/livez" | "/readyz") || page::is_file(path);
    if of_everybody || peer.ip().to_canonical().is_loopback() || !access.is_on() {
        return None;
    }
    let token =
        authorization.and_then(|value| value.strip_prefix("Bearer ")).and_then(|text| Token::parse(text.trim()));
    let credentials = Credentials { token: token.as_ref().map(Token::hash), certificate: None };
    match access.rights(&credentials) {
        Err(_) => Some((StatusCode::UNAUTHORIZED, "the token of a user is needed: Authorization: Bearer TOKEN\n")),
        Ok(rights) if matches!(path, "/metrics" | "/status" | page::EVENTS) || rights.all_keys(Role::Admin) => None,
        Ok(_) => Some((StatusCode::FORBIDDEN, "role admin for all keys is needed\n")),
    }
}

#[cfg(test)]
mod tests {
    use coppice_client::wire::{Grant, UserChange};

    use super::*;

    #[test]
    fn beyond_this_machine_users_see_what_their_role_allows() {
        let mut users = coppice_core::access::Users::default();
        let [root, guest] = [(); 2].map(|()| Token::generate().expect("random bits"));
        for (name, role, token) in [("root", Role::Admin, &root), ("guest", Role::Read, &guest)] {
            let grant = Grant { role, prefix: Default::default() };
            let by = (name != "root").then_some("root");
            let add = UserChange::Add { name: name.into(), grant, token: Some(token.hash()), certificate: None };
            users.apply(by, &add, 0).expect("a user");
        }
        let (on, off) = (Access::new(users), Access::default());
        let header = |token: &Token| format!("Bearer {}", token.reveal());
        let wrong = header(&Token::generate().expect("random bits"));
        let code = |access: &Access, from: &str, path: &str, header: Option<&str>| {
            lacking(access, from.parse().expect("an address"), path, header).map_or(200, |(code, _)| code.as_u16())
        };
        for (path, nobody, of_guest) in [
            ("/livez", 200, 200),
            ("/readyz", 200, 200),
            ("/", 200, 200),
            ("/metrics", 401, 200),
            ("/status", 401, 200),
            ("/ui", 200, 200),
            ("/ui/page.js", 200, 200),
            ("/ui/events", 401, 200),
            ("/ui/nothing", 401, 403),
            ("/config", 401, 403),
            ("/x", 401, 403),
        ] {
            for near in ["127.0.0.1:9", "[::1]:9", "[::ffff:127.0.0.1]:9"] {
                assert_eq!(code(&on, near, path, None), 200, "{path} from {near}");
            }
            for far in ["10.0.0.1:9", "[fe80::1]:9"] {
                assert_eq!(code(&off, far, path, None), 200, "{path}");
                for none in [None, Some("Bearer"), Some("Basic eDp5"), Some(&*wrong)] {
                    assert_eq!(code(&on, far, path, none), nobody, "{path} {none:?}");
                }
                assert_eq!(code(&on, far, path, Some(&header(&guest))), of_guest, "{path}");
                assert_eq!(code(&on, far, path, Some(&header(&root))), 200, "{path}");
            }
        }
    }
}
