//! Certificates: which files, what they make of a connection, and reading them again when they change.
//!
//! One context serves a process: nodes listen and dial with it, clients dial. TLS 1.3 only, and no session is resumed:
//! every connection shows its certificate again. A context never holds what could not be read: it keeps what it has.

pub mod names;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use std::{fmt, io};

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{AlertDescription, CertificateError, ClientConfig, InvalidMessage, RootCertStore, ServerConfig};

use self::names::{Names, NodeVerifier};
use crate::wire::NodeId;

/// Certificates of an authority or a chain in one file at most: what is read at each change is bounded.
const CERTIFICATES_MAX: usize = 64;

/// A file of certificates or a key has no more bytes than this.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where certificates are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// Authorities that sign everybody's certificate, in PEM.
    pub ca: PathBuf,
    /// The own certificate, with what leads to an authority, and its key, in PEM. A node needs one.
    pub own: Option<Own>,
}

/// The own certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Own {
    /// PEM file with the certificate and those between it and an authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl Files {
    /// From what was given on a command line.
    ///
    /// # Errors
    /// What lacks, as a phrase.
    pub fn given(ca: Option<PathBuf>, cert: Option<PathBuf>, key: Option<PathBuf>) -> Result<Option<Files>, String> {
        let own = match (cert, key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some(Own { cert, key }),
            (Some(_), None) => return Err("a certificate needs its key (tls-key)".into()),
            (None, Some(_)) => return Err("a key needs its certificate (tls-cert)".into()),
        };
        match (ca, own) {
            (Some(ca), own) => Ok(Some(Files { ca, own })),
            (None, None) => Ok(None),
            (None, Some(_)) => Err("a certificate needs the authority of the other end (tls-ca)".into()),
        }
    }
}

/// Why certificates cannot be used. Never holds a byte of them.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{}: {what}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

/// What certificates make of connections; cheap to clone, all clones are one.
#[derive(Clone)]
pub struct Tls(Arc<Inner>);

struct Inner {
    files: Files,
    state: Mutex<State>,
}

struct State {
    configs: Configs,
    /// The files as they were when they were last read, whether that went well or not.
    stamps: Stamps,
    /// Why the newest files are not in use.
    last_error: Option<String>,
}

/// What the files make of a connection, at one time.
#[derive(Clone)]
struct Configs {
    /// Grows by one with each change of the files.
    generation: u64,
    /// Whom the own certificate names.
    names: Names,
    /// When it ends.
    ends_at: Option<u64>,
    to_server: Arc<ClientConfig>,
    to_node: Arc<ClientConfig>,
    /// Both none without an own certificate.
    for_clients: Option<Arc<ServerConfig>>,
    for_nodes: Option<Arc<ServerConfig>>,
}

impl Configs {
    fn named(&self, files: &Files, node: Option<NodeId>) -> Result<(), TlsError> {
        let Some(node) = node.filter(|node| !self.names.is_node(*node)) else { return Ok(()) };
        let path = files.own.as_ref().map_or(&files.ca, |own| &own.cert).clone();
        let what = format!("the certificate is for {}, not for {}", self.names, names::of_node(node));
        Err(TlsError::Content { path, what })
    }
}

/// What tells one state of a file from another: when it was written, its length, and which file the name leads to.
type Stamp = Option<(SystemTime, u64, u64)>;
type Stamps = Vec<Stamp>;

impl PartialEq for Tls {
    fn eq(&self, other: &Tls) -> bool {
        self.0.files == other.0.files
    }
}

impl Eq for Tls {}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.0.files).finish()
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// Which file cannot be used, and why.
    pub fn load(files: Files) -> Result<Tls, TlsError> {
        let stamps = stamps(&files);
        let configs = read(&files, 0)?;
        Ok(Tls(Arc::new(Inner { files, state: Mutex::new(State { configs, stamps, last_error: None }) })))
    }

    /// The files that it was made of.
    pub fn files(&self) -> &Files {
        &self.0.files
    }

    /// Reads the files again if they have changed. What cannot be used changes nothing and is told once. The own
    /// certificate must still name `node`, if this is one.
    pub fn refresh(&self, node: Option<NodeId>) -> CertificateRefresh {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        let stamps = stamps(&self.0.files);
        if state.stamps == stamps {
            return CertificateRefresh::Same;
        }
        state.stamps = stamps;
        let read = read(&self.0.files, state.configs.generation + 1);
        let read = read.and_then(|configs| configs.named(&self.0.files, node).map(|()| configs));
        match read {
            Ok(configs) => {
                (state.configs, state.last_error) = (configs, None);
                CertificateRefresh::Changed
            }
            Err(error) => {
                let text = error.to_string();
                state.last_error = Some(text.clone());
                CertificateRefresh::Unusable(text)
            }
        }
    }

    /// Whether the own certificate names this node.
    ///
    /// # Errors
    /// Whom it names.
    pub fn must_name(&self, node: NodeId) -> Result<(), TlsError> {
        self.current().named(&self.0.files, Some(node))
    }

    /// When the own certificate ends, in seconds of Unix time; none: there is none.
    pub fn ends_at(&self) -> Option<u64> {
        self.current().ends_at
    }

    /// Why the newest files are not in use, if they are not.
    pub fn last_error(&self) -> Option<String> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).last_error.clone()
    }

    /// How often the certificates have changed: a connection of an earlier generation shows what is outdated.
    pub fn generation(&self) -> u64 {
        self.current().generation
    }

    fn current(&self) -> Configs {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).configs.clone()
    }

    fn newest(&self) -> Configs {
        self.refresh(None);
        self.current()
    }

    /// For dialling a node's client port: its certificate must name the host that is dialled.
    pub(crate) fn to_server(&self) -> (Arc<ClientConfig>, u64) {
        let configs = self.newest();
        (configs.to_server, configs.generation)
    }

    /// For dialling a node's peer port: its certificate must name a node, whatever its host.
    pub(crate) fn to_node(&self) -> (Arc<ClientConfig>, u64) {
        let configs = self.current();
        (configs.to_node, configs.generation)
    }

    /// For the client port: a certificate is optional, and verified if it is shown.
    pub(crate) fn for_clients(&self) -> Option<(Arc<ServerConfig>, u64)> {
        let configs = self.current();
        Some((configs.for_clients?, configs.generation))
    }

    /// For the peer port: a certificate is demanded.
    pub(crate) fn for_nodes(&self) -> Option<(Arc<ServerConfig>, u64)> {
        let configs = self.current();
        Some((configs.for_nodes?, configs.generation))
    }
}

/// What [`Tls::refresh`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateRefresh {
    /// Nothing has changed.
    Same,
    /// New connections use other certificates from now on.
    Changed,
    /// What changed cannot be used, and why.
    Unusable(String),
}

fn stamps(files: &Files) -> Stamps {
    use std::os::unix::fs::MetadataExt;
    let stamp = |path: &Path| {
        let meta = std::fs::metadata(path).ok()?;
        Some((meta.modified().ok()?, meta.len(), meta.ino()))
    };
    let own = files.own.iter().flat_map(|own| [&own.cert, &own.key]);
    [&files.ca].into_iter().chain(own).map(|path| stamp(path)).collect()
}

/// AES-128 first: the fastest in hardware, and no weaker in practice.
fn provider() -> Arc<CryptoProvider> {
    use ring::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256};
    let cipher_suites = vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256];
    Arc::new(CryptoProvider { cipher_suites, ..ring::default_provider() })
}

fn bytes_of(path: &Path) -> Result<Vec<u8>, TlsError> {
    let at = |error| TlsError::Io { path: path.to_owned(), error };
    let bytes = std::fs::metadata(path).map_err(at)?.len();
    if bytes > FILE_BYTES_MAX {
        let what = format!("{bytes} bytes are too many for certificates, at most {FILE_BYTES_MAX}");
        return Err(TlsError::Content { path: path.to_owned(), what });
    }
    std::fs::read(path).map_err(at)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let content = |what: String| TlsError::Content { path: path.to_owned(), what };
    let bytes = bytes_of(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).take(CERTIFICATES_MAX).collect();
    let found = found.map_err(|error| content(format!("no PEM: {error}")))?;
    if found.is_empty() { Err(content("no certificate is in it".into())) } else { Ok(found) }
}

fn read(files: &Files, generation: u64) -> Result<Configs, TlsError> {
    let at =
        |path: &Path, error: &dyn fmt::Display| TlsError::Content { path: path.to_owned(), what: error.to_string() };
    let provider = provider();
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&files.ca)? {
        roots.add(certificate).map_err(|error| at(&files.ca, &format!("no authority: {error}")))?;
    }
    let roots = Arc::new(roots);
    let own = match &files.own {
        None => None,
        Some(own) => {
            let key = PrivateKeyDer::from_pem_slice(&bytes_of(&own.key)?);
            let key = key.map_err(|_| at(&own.key, &"no private key in PEM is in it"))?;
            Some((certificates(&own.cert)?, key, own))
        }
    };
    let versions = [&rustls::version::TLS13];
    let dialling = |nodes: bool| -> Result<Arc<ClientConfig>, TlsError> {
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&versions);
        let builder = builder.map_err(|error| at(&files.ca, &error))?.dangerous();
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider)).build();
        let verifier = verifier.map_err(|error| at(&files.ca, &error))?;
        let builder = if nodes {
            builder.with_custom_certificate_verifier(Arc::new(NodeVerifier::new(Arc::clone(&roots), verifier)))
        } else {
            builder.with_custom_certificate_verifier(verifier)
        };
        let mut config = match &own {
            None => builder.with_no_client_auth(),
            Some((chain, key, own)) => builder
                .with_client_auth_cert(chain.clone(), key.clone_key())
                .map_err(|error| at(&own.cert, &unusable(&error, own)))?,
        };
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        Ok(Arc::new(config))
    };
    let listening = |nodes: bool| -> Result<Option<Arc<ServerConfig>>, TlsError> {
        let Some((chain, key, own)) = &own else { return Ok(None) };
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let verifier = if nodes { verifier } else { verifier.allow_unauthenticated() };
        let verifier = verifier.build().map_err(|error| at(&files.ca, &error))?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&versions);
        let builder = builder.map_err(|error| at(&files.ca, &error))?.with_client_cert_verifier(verifier);
        let config = builder.with_single_cert(chain.clone(), key.clone_key());
        let mut config = config.map_err(|error| at(&own.cert, &unusable(&error, own)))?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Some(Arc::new(config)))
    };
    let certificate = own.as_ref().and_then(|(chain, ..)| chain.first());
    Ok(Configs {
        generation,
        names: certificate.map(Names::of).unwrap_or_default(),
        ends_at: certificate.and_then(names::ends_at),
        to_server: dialling(false)?,
        to_node: dialling(true)?,
        for_clients: listening(false)?,
        for_nodes: listening(true)?,
    })
}

fn unusable(error: &rustls::Error, own: &Own) -> String {
    match error {
        rustls::Error::InconsistentKeys(_) => format!("{} is the key of another certificate", own.key.display()),
        error => error.to_string(),
    }
}

/// What went wrong in a handshake or on a connection, in words for whoever set up the certificates.
pub(crate) fn explain(error: &rustls::Error) -> String {
    use rustls::Error as E;
    let theirs = |what: &str| format!("its certificate {what}");
    match error {
        E::InvalidMessage(InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion) => {
            "the other end speaks no TLS".into()
        }
        E::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            theirs("is not signed by an authority of tls-ca")
        }
        E::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            theirs("has expired")
        }
        E::InvalidCertificate(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) => {
            theirs("is not valid yet; do the clocks differ?")
        }
        E::InvalidCertificate(CertificateError::NotValidForNameContext { expected, presented }) => {
            let presented: Vec<&str> = presented.iter().map(|name| names::bare(name)).collect();
            theirs(&format!("is for {}, not for {}", presented.join(", "), expected.to_str()))
        }
        E::InvalidCertificate(CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. }) => {
            theirs("is for another purpose: a client's at a node, or the reverse")
        }
        E::InvalidCertificate(CertificateError::Other(other)) => theirs(&other.to_string()),
        E::NoCertificatesPresented => "it shows no certificate".into(),
        E::AlertReceived(AlertDescription::CertificateRequired) => {
            "it asks for a certificate (tls-cert, tls-key)".into()
        }
        E::AlertReceived(AlertDescription::UnknownCA | AlertDescription::DecryptError) => {
            "it does not know the authority of this end's certificate".into()
        }
        E::AlertReceived(AlertDescription::CertificateExpired) => "this end's certificate has expired".into(),
        E::AlertReceived(
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateUnknown,
        ) => "it refuses this end's certificate".into(),
        E::AlertReceived(AlertDescription::ProtocolVersion) => "it speaks no TLS 1.3".into(),
        E::AlertReceived(alert) => format!("it ends TLS: {alert:?}"),
        error => format!("TLS: {error}"),
    }
}
