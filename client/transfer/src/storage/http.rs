//! The HTTP of an object store: hyper's client, over TLS with the certificates of the system.

use std::error::Error as StdError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::{BodyExt, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as Connector;
use hyper_util::rt::TokioExecutor;
use object_store::ClientOptions;
use object_store::client::{HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody};
use object_store::client::{HttpResponse, HttpService};
use rustls::crypto::ring::default_provider;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// What is sent, and what is answered, each takes at most this long, and a second for each of so many bytes.
const TIMEOUT: Duration = Duration::from_secs(30);
const BYTES_PER_SECOND_MIN: u64 = 128 << 10;
/// Longest answer: an object that was uploaded in one piece, read back.
const ANSWER_BYTES_MAX: usize = 40 << 20;

/// Makes the client of a store.
#[derive(Clone, Debug)]
pub(super) struct Http(Client<HttpsConnector<Connector>, HttpRequestBody>);

impl Http {
    /// Without the certificates of authorities it cannot be made; `plain`: it needs none.
    pub(super) fn new(plain: bool) -> std::io::Result<Http> {
        let builder = match HttpsConnectorBuilder::new().with_provider_and_native_roots(default_provider()) {
            Ok(builder) => builder.https_or_http(),
            Err(error) if !plain => return Err(error),
            Err(_) => {
                let builder = rustls::ClientConfig::builder_with_provider(default_provider().into())
                    .with_safe_default_protocol_versions()
                    .map_err(std::io::Error::other)?;
                let config = builder.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
                HttpsConnectorBuilder::new().with_tls_config(config).https_or_http()
            }
        };
        let mut connector = Connector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        Ok(Http(Client::builder(TokioExecutor::new()).build(builder.enable_http1().wrap_connector(connector))))
    }
}

impl HttpConnector for Http {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Service { http: self.clone(), reached: AtomicBool::new(false) }))
    }
}

#[derive(Debug)]
struct Service {
    http: Http,
    /// It has answered once: if it cannot be reached later, it helps to try again.
    reached: AtomicBool,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let bytes = request.body().content_length() as u64;
        let response = within(bytes, self.http.0.request(request)).await?.map_err(|error| {
            let kind = match error.is_connect() {
                true if self.reached.load(Ordering::Relaxed) => HttpErrorKind::Connect,
                true => HttpErrorKind::Unknown,
                false => HttpErrorKind::Interrupted,
            };
            HttpError::new(kind, error)
        })?;
        self.reached.store(true, Ordering::Relaxed);
        let (parts, body) = response.into_parts();
        let length = parts.headers.get("content-length").and_then(|length| length.to_str().ok()?.parse().ok());
        let bytes = length.unwrap_or(0).min(ANSWER_BYTES_MAX as u64);
        let body = within(bytes, Limited::new(body, ANSWER_BYTES_MAX).collect()).await?;
        let body = body.map_err(|error| HttpError::new_boxed(HttpErrorKind::Interrupted, error))?;
        Ok(HttpResponse::from_parts(parts, body.to_bytes().into()))
    }
}

async fn within<T>(bytes: u64, work: impl Future<Output = T>) -> Result<T, HttpError> {
    let time = TIMEOUT + Duration::from_secs(bytes / BYTES_PER_SECOND_MIN);
    tokio::time::timeout(time, work).await.map_err(|elapsed| HttpError::new(HttpErrorKind::Timeout, elapsed))
}

/// What a request ended with, if the network ended it, and the reason below all others.
pub(super) fn network_error(error: &(dyn StdError + 'static)) -> Option<(HttpErrorKind, String)> {
    let (mut last, mut kind) = (error, None);
    while let Some(source) = last.source() {
        kind = kind.or(source.downcast_ref::<HttpError>().map(HttpError::kind));
        last = source;
    }
    kind.map(|kind| (kind, last.to_string()))
}
