//! Certificates of a cluster: an authority in a directory, and what it signs. Keys are files that only their owner
//! reads; nothing here prints one.
//!
//! An authority of one's own is as good: what counts is the names (`coppice_client::tls::names`), `node.n1` and the
//! hosts for a node, `client.alice` for a client, and the usages.

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coppice_client::tls::names;
use coppice_client::wire::NodeId;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

/// Hosts that every node's certificate names beside the given ones: clients on the same machine.
const LOCAL_HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Numbers of nodes beside its own that a certificate of a test names.
const LATER: u32 = 32;

/// Clocks of other machines may be behind by this much.
const BEGINS_BEFORE: Duration = Duration::from_secs(3600);

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertError {
    /// A file cannot be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// It is there already: what uses it would find itself without a valid one.
    #[error("{}: it exists", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// There is no authority to sign with.
    #[error("{}: there is no authority", path.display())]
    NoAuthority {
        /// The file that it would be.
        path: PathBuf,
    },
    /// A name cannot stand in a certificate.
    #[error("{0}")]
    Name(String),
    /// Anything else, in the words of the library that makes certificates.
    #[error("{0}")]
    Other(String),
}

impl From<rcgen::Error> for CertError {
    fn from(error: rcgen::Error) -> CertError {
        CertError::Other(error.to_string())
    }
}

/// What a certificate is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A node, and the names and addresses by which clients dial it.
    Node {
        /// Its number.
        node: NodeId,
        /// Numbers that it may have later: a node that has lost its disk comes back under another one.
        later: Vec<NodeId>,
        hosts: Vec<String>,
    },
    /// A client or an operator.
    Client { name: String },
}

impl Subject {
    /// Node `number`, reached by clients at `hosts` and on its own machine.
    #[must_use]
    pub fn node(number: u32, hosts: &[String]) -> Subject {
        Subject::Node { node: NodeId(number), later: Vec::new(), hosts: hosts.to_vec() }
    }

    /// Node `number` of `count`, which may come back under any of the next numbers: for clusters that
    /// are killed, wiped and replaced on purpose.
    #[must_use]
    pub fn of_test(number: u32, count: u32, hosts: &[String]) -> Subject {
        let later = (count + 1..=count + LATER).map(NodeId).collect();
        Subject::Node { node: NodeId(number), later, hosts: hosts.to_vec() }
    }

    /// The beginning of its files' names.
    #[must_use]
    pub fn file(&self) -> String {
        match self {
            Subject::Node { node, .. } => node.to_string(),
            Subject::Client { name } => format!("client-{name}"),
        }
    }

    /// The names in its certificate.
    ///
    /// # Errors
    /// One of them cannot stand there.
    pub fn names(&self) -> Result<Vec<String>, CertError> {
        match self {
            Subject::Node { node, later, hosts } => {
                let mut names: Vec<String> =
                    [node].into_iter().chain(later).map(|node| names::of_node(*node)).collect();
                for host in hosts.iter().map(String::as_str).chain(LOCAL_HOSTS) {
                    if host.starts_with("node.") || host.starts_with("client.") {
                        return Err(CertError::Name(format!(
                            "{host}: a host whose name begins like a node's or client's"
                        )));
                    }
                    if !names.iter().any(|name| name == host) {
                        names.push(host.to_owned());
                    }
                }
                Ok(names)
            }
            Subject::Client { name } => {
                let name = names::of_client(name);
                Ok(vec![name.map_err(|expected| CertError::Name(format!("a client's name must be {expected}")))?])
            }
        }
    }

    fn usages(&self) -> Vec<ExtendedKeyUsagePurpose> {
        match self {
            Subject::Node { .. } => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
            Subject::Client { .. } => vec![ExtendedKeyUsagePurpose::ClientAuth],
        }
    }
}

/// A certificate and its key, as files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The certificate.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl Pair {
    fn at(directory: &Path, file: &str) -> Pair {
        let path = |kind: &str| directory.join(format!("{file}.{kind}"));
        Pair { cert: path("pem"), key: path("key") }
    }
}

/// An authority in a directory: `ca.pem` is for everybody, `ca.key` for whoever may add nodes and clients.
pub struct Authority {
    directory: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl Authority {
    /// Makes one that is valid for so many days.
    ///
    /// # Errors
    /// There is one, or the directory cannot be written.
    pub fn create(directory: &Path, days: u32) -> Result<Authority, CertError> {
        let at = |error| CertError::Io { path: directory.to_owned(), error };
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(at)?;
        let files = Pair::at(directory, "ca");
        let key = KeyPair::generate()?;
        let mut params = authority_of(&key);
        valid_for(&mut params, days);
        let certificate = params.self_signed(&key)?;
        write(&files, &certificate.pem(), &key, false)?;
        Ok(Authority { directory: directory.to_owned(), issuer: Issuer::new(params, key) })
    }

    /// Takes the one that is in `directory`.
    ///
    /// # Errors
    /// There is none, or its key cannot be read.
    pub fn open(directory: &Path) -> Result<Authority, CertError> {
        let path = Pair::at(directory, "ca").key;
        let pem = match std::fs::read_to_string(&path) {
            Ok(pem) => pem,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(CertError::NoAuthority { path }),
            Err(error) => return Err(CertError::Io { path, error }),
        };
        // The library's own words could quote the file.
        let key = KeyPair::from_pem(&pem).map_err(|_| CertError::Other(format!("{}: no key", path.display())))?;
        Ok(Authority { directory: directory.to_owned(), issuer: Issuer::new(authority_of(&key), key) })
    }

    /// The certificate that everybody needs.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        Pair::at(&self.directory, "ca").cert
    }

    /// The files of a certificate that it has signed, or would sign.
    #[must_use]
    pub fn pair(&self, subject: &Subject) -> Pair {
        Pair::at(&self.directory, &subject.file())
    }

    /// Signs a certificate for `subject`, valid for so many days, and writes it beside the authority's. `again`: in
    /// place of the one that is there.
    ///
    /// # Errors
    /// There is one, a name cannot stand in it, or the directory cannot be written.
    pub fn sign(&self, subject: &Subject, days: u32, again: bool) -> Result<Pair, CertError> {
        let files = self.pair(subject);
        let names = subject.names()?;
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names.clone())?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, names[0].clone());
        params.extended_key_usages = subject.usages();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        valid_for(&mut params, days);
        let certificate = params.signed_by(&key, &self.issuer)?;
        write(&files, &certificate.pem(), &key, again)?;
        Ok(files)
    }
}

/// What an authority says of itself follows from its key, so that the key is all that signing needs. Two authorities
/// have two names, so that whoever trusts one is told that the other is unknown.
fn authority_of(key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    let label = crc32c::crc32c(key.public_key_raw());
    params.distinguished_name.push(DnType::CommonName, format!("coppice authority {label:08x}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// From a little before now, for so many days.
fn valid_for(params: &mut CertificateParams, days: u32) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(BEGINS_BEFORE);
    params.not_after = epoch + now + DAY * days;
}

/// Writes both files for their owner alone; the key first, so that a certificate never stands without its key.
fn write(files: &Pair, certificate: &str, key: &KeyPair, again: bool) -> Result<(), CertError> {
    for path in [&files.key, &files.cert] {
        if !again && path.exists() {
            return Err(CertError::Exists { path: path.clone() });
        }
    }
    for (path, text) in [(&files.key, key.serialize_pem().as_str()), (&files.cert, certificate)] {
        // Whole or not at all: whoever rereads it must not find half of it.
        let new = path.with_extension("new");
        let written = replace(&new, path, text);
        written.map_err(|error| CertError::Io { path: path.clone(), error })?;
    }
    Ok(())
}

fn replace(new: &Path, path: &Path, text: &str) -> io::Result<()> {
    match std::fs::remove_file(new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use coppice_client::tls::{Files, Own, Tls};

    use super::*;

    #[test]
    fn what_an_authority_signs_is_used_by_its_owner_alone_and_never_overwritten() {
        let directory = std::env::temp_dir().join(format!("coppice-certs-{}", std::process::id()));
        _ = std::fs::remove_dir_all(&directory);
        assert!(matches!(Authority::open(&directory), Err(CertError::NoAuthority { .. })));
        drop(Authority::create(&directory, 30).expect("an empty directory"));
        assert!(matches!(Authority::create(&directory, 30), Err(CertError::Exists { .. })));
        let authority = Authority::open(&directory).expect("it was made");
        let node = Subject::node(3, &["n3.example".into(), "10.0.0.3".into()]);
        let names = ["node.n3", "n3.example", "10.0.0.3", "localhost", "127.0.0.1", "::1"];
        assert_eq!(node.names().expect("good names"), names);
        let pair = authority.sign(&node, 30, false).expect("good names");
        assert!(matches!(authority.sign(&node, 30, false), Err(CertError::Exists { .. })));
        authority.sign(&node, 30, true).expect("in its place");
        authority.sign(&Subject::Client { name: "alice".into() }, 30, false).expect("a good name");
        let wrong = authority.sign(&Subject::Client { name: "Alice B".into() }, 30, false).expect_err("a bad name");
        assert!(wrong.to_string().contains("a-z"), "{wrong}");
        assert!(authority.sign(&Subject::node(1, &["client.alice".into()]), 30, false).is_err());
        let mode = |path: &Path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        assert_eq!(mode(&directory), 0o700);
        let mut files: Vec<String> = Vec::new();
        for entry in std::fs::read_dir(&directory).expect("it is there") {
            let path = entry.expect("it is there").path();
            assert_eq!(mode(&path), 0o600, "{}", path.display());
            files.push(path.file_name().expect("a file").to_string_lossy().into_owned());
        }
        files.sort();
        assert_eq!(files, ["ca.key", "ca.pem", "client-alice.key", "client-alice.pem", "n3.key", "n3.pem"]);
        let Pair { cert, key } = pair;
        let tls = Tls::load(Files { ca: authority.certificate(), own: Some(Own { cert, key }) }).expect("a good set");
        assert!(tls.must_name(NodeId(3)).is_ok() && tls.must_name(NodeId(4)).is_err());
        std::fs::remove_dir_all(&directory).expect("it is ours");
    }
}
