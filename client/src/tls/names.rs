//! Names in certificates. `node.n2` is node 2 of a cluster, `client.alice` is a client; hosts are hosts. All of them
//! are DNS names among the alternative names, so that any authority can issue them.
//!
//! The number of a node is fixed before it exists: `init` numbers the seeds in their order, and a node that is added
//! later gets the next number. Numbers are never used twice, and neither is a node's certificate.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme};

use crate::wire::NodeId;

const NODE: &str = "node.";
const CLIENT: &str = "client.";

/// The name of a node for whoever asks any of them: before a cluster is formed nobody knows who is where.
const ANY_NODE: &str = "node.any";

/// Names of one certificate that are looked at; a certificate for more hosts than that is for one purpose alone.
const NAMES_MAX: usize = 64;

/// After every date that a certificate can name.
const NEVER: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(1 << 40));

/// When a certificate ends, in seconds of Unix time; none: it is no certificate.
pub(super) fn ends_at(certificate: &CertificateDer<'_>) -> Option<u64> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    // The verifier looks at the dates before it looks for an issuer, and says which one has passed.
    let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
    match verify_server_cert_signed_by_trust_anchor(&parsed, &RootCertStore::empty(), &[], NEVER, algorithms.all) {
        Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => Some(not_after.as_secs()),
        _ => None,
    }
}

/// Whom a verified certificate names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    nodes: Vec<NodeId>,
    client: Option<String>,
}

impl Names {
    /// These nodes and this client.
    pub fn new(nodes: Vec<NodeId>, client: Option<String>) -> Names {
        Names { nodes, client }
    }

    /// Those of a certificate that was verified.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Names {
        let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else { return Names::default() };
        let mut names = Names::default();
        for name in certificate.valid_dns_names().take(NAMES_MAX) {
            if let Some(client) = name.strip_prefix(CLIENT) {
                names.client.get_or_insert_with(|| client.to_owned());
            } else if let Some(node) = name.strip_prefix(NODE).and_then(node_of) {
                names.nodes.push(node);
            }
        }
        names
    }

    /// Whether it names this node.
    pub fn is_node(&self, node: NodeId) -> bool {
        self.nodes.contains(&node)
    }

    /// The nodes that it names, mostly one or none.
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// The client that it names.
    pub fn client(&self) -> Option<&str> {
        self.client.as_deref()
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.nodes.iter().map(|node| format!("{NODE}{node}"));
        let all: Vec<String> = nodes.chain(self.client.iter().map(|client| format!("{CLIENT}{client}"))).collect();
        f.write_str(if all.is_empty() { "nobody" } else { "" })?;
        f.write_str(&all.join(", "))
    }
}

/// The name of a node in its certificate.
pub fn of_node(node: NodeId) -> String {
    format!("{NODE}{node}")
}

/// The name of a client in its certificate.
///
/// # Errors
/// What it may consist of, as a phrase.
pub fn of_client(name: &str) -> Result<String, String> {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
    let ends = name.bytes().next().zip(name.bytes().last());
    let ends_well = ends.is_some_and(|(first, last)| first != b'-' && last != b'-');
    if (1..=63).contains(&name.len()) && name.bytes().all(good) && ends_well {
        return Ok(format!("{CLIENT}{name}"));
    }
    Err(format!("1 to 63 of a-z, 0-9, `-` and `_`, no `-` at its ends, not `{name}`"))
}

fn node_of(text: &str) -> Option<NodeId> {
    let number: u32 = text.strip_prefix('n')?.parse().ok()?;
    let node = NodeId(number);
    (number > 0 && node.to_string() == text).then_some(node)
}

/// A name as the verifier prints it, `DnsName("n1")`, without its kind.
pub(super) fn bare(name: &str) -> &str {
    let inner = name.split_once('(').map_or(name, |(_, inner)| inner.trim_end_matches(')'));
    inner.trim_matches('"')
}

/// The name that the certificate of a node must have when it is dialled as `node`; none: any node's.
pub(crate) fn wanted(node: Option<NodeId>) -> ServerName<'static> {
    let name = node.map_or_else(|| ANY_NODE.to_owned(), of_node);
    ServerName::try_from(name).expect("letters, digits and dots")
}

/// Verifies that who answers at a peer port is the node that was meant, or any.
#[derive(Debug)]
pub(super) struct NodeVerifier {
    roots: Arc<RootCertStore>,
    signatures: Arc<WebPkiServerVerifier>,
}

impl NodeVerifier {
    pub(super) fn new(roots: Arc<RootCertStore>, signatures: Arc<WebPkiServerVerifier>) -> NodeVerifier {
        NodeVerifier { roots, signatures }
    }
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, algorithms.all)?;
        let names = Names::of(end_entity);
        let wanted = server_name.to_str();
        let named = match wanted.strip_prefix(NODE).and_then(node_of) {
            Some(node) => names.is_node(node),
            None => wanted == ANY_NODE && !names.nodes.is_empty(),
        };
        if named || mutant!(peers_answer_under_any_name) {
            return Ok(ServerCertVerified::assertion());
        }
        let wanted = if wanted == ANY_NODE { "a node".into() } else { wanted };
        let error = OtherError(Arc::new(NameMismatch(format!("is for {names}, not for {wanted}"))));
        Err(CertificateError::Other(error).into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signatures.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signatures.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signatures.supported_verify_schemes()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NameMismatch(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_one_spelling_and_a_client_is_a_word() {
        assert_eq!(node_of("n2"), Some(NodeId(2)));
        for wrong in ["", "n", "2", "n0", "n02", "n+2", "N2", "n2.example", "n4294967296"] {
            assert_eq!(node_of(wrong), None, "{wrong}");
        }
        assert_eq!(of_node(NodeId(2)), "node.n2");
        assert_eq!(of_client("alice-7_b"), Ok("client.alice-7_b".into()));
        for wrong in ["", "-a", "a-", "a.b", "Alice", "a b", &"a".repeat(64)] {
            assert!(of_client(wrong).is_err(), "{wrong}");
        }
    }
}
