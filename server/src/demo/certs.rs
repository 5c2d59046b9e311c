//! The certificates of a demo, and of a test's cluster: an authority of its own, one certificate for each node, and one
//! for whoever asks them.

use std::path::{Path, PathBuf};

use coppice_client::Config;
use coppice_client::tls::{Files, Own, Tls};

use crate::certs::{Authority, CertError, Pair, Subject};

/// Longer than any demo.
const DAYS: u32 = 3_650;

/// The name of whoever asks the nodes of a demo.
const CLIENT: &str = "demo";

/// Certificates in a directory.
#[derive(Debug, Clone)]
pub struct Certs {
    directory: PathBuf,
    client: Tls,
}

impl Certs {
    /// Those in `directory`, made first if there are none: for nodes on this machine, and `hosts`.
    ///
    /// # Errors
    /// They cannot be made, or read.
    pub fn of(directory: &Path, nodes: u32, hosts: impl Fn(u32) -> Vec<String>) -> Result<Self, CertError> {
        let client = Subject::Client { name: CLIENT.to_owned() };
        let authority = match Authority::open(directory) {
            Err(CertError::NoAuthority { .. }) => {
                let authority = Authority::create(directory, DAYS)?;
                for number in 1..=nodes {
                    authority.sign(&Subject::of_test(number, nodes, &hosts(number)), DAYS, false)?;
                }
                authority.sign(&client, DAYS, false)?;
                authority
            }
            authority => authority?,
        };
        let Pair { cert, key } = authority.pair(&client);
        let files = Files { ca: authority.certificate(), own: Some(Own { cert, key }) };
        let client = Tls::load(files).map_err(|error| CertError::Other(error.to_string()))?;
        Ok(Self { directory: directory.to_owned(), client })
    }

    /// The flags of node `number`.
    #[must_use]
    pub fn flags_of_node(&self, number: u32) -> Vec<String> {
        let file = |name: String| self.directory.join(name).display().to_string();
        let (cert, key) = (file(format!("n{number}.pem")), file(format!("n{number}.key")));
        ["--tls-ca".to_owned(), file("ca.pem".to_owned()), "--tls-cert".to_owned(), cert, "--tls-key".to_owned(), key]
            .into()
    }
}

/// How the nodes of a demo are asked.
#[must_use]
pub fn config(certs: Option<&Certs>) -> Config {
    Config { tls: certs.map(|certs| certs.client.clone()), ..Config::default() }
}

/// The files of whoever asks, by the names of their settings: `tls-ca`, `tls-cert`, `tls-key`.
#[must_use]
pub fn of_client(certs: Option<&Certs>) -> Vec<(&'static str, String)> {
    let Some(files) = certs.map(|certs| certs.client.files()) else { return Vec::new() };
    let mut named = vec![("tls-ca", files.ca.display().to_string())];
    if let Some(own) = &files.own {
        named.extend([("tls-cert", own.cert.display().to_string()), ("tls-key", own.key.display().to_string())]);
    }
    named
}
