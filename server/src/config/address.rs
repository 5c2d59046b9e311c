//! `host:port` as it is written, before any name is resolved.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// A host (name or address) and a port, as configured. Names are resolved when they are used, so that a changed DNS
/// entry is followed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    host: String,
    port: u16,
}

impl Address {
    /// An address of `host`, a name or an IP address without brackets.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port }
    }

    /// The name or IP address, without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port; 0 asks the system for any free one.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The same host with another port.
    #[must_use]
    pub fn with_port(&self, port: u16) -> Self {
        Self { host: self.host.clone(), port }
    }

    /// True if the host is certainly this machine alone. A name other than `localhost` is not: what it resolves to may
    /// change.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.ip().is_some_and(|ip| ip.is_loopback())
    }

    /// True for `0.0.0.0` and `[::]`, which listen everywhere but lead nowhere.
    #[must_use]
    pub fn is_wildcard(&self) -> bool {
        self.ip().is_some_and(|ip| ip.is_unspecified())
    }

    /// Asks the resolver. Blocks while it answers.
    ///
    /// # Errors
    /// The resolver's, or `NotFound` if it knows no address.
    pub fn resolve(&self) -> std::io::Result<SocketAddr> {
        let mut addresses = (self.host.as_str(), self.port).to_socket_addrs()?;
        addresses
            .next()
            .ok_or_else(|| std::io::Error::new(std::io::ErrorKind::NotFound, format!("{} has no address", self.host)))
    }

    fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::new(address.ip().to_string(), address.port())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let expected = || format!("host:port, such as 127.0.0.1:7400 or [::1]:7400, not `{text}`");
        let (host, port) = text.rsplit_once(':').ok_or_else(expected)?;
        let port = port.parse().map_err(|_| expected())?;
        let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let valid = match bracketed {
            Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c)),
        };
        if valid { Ok(Self::new(bracketed.unwrap_or(host), port)) } else { Err(expected()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_printed_alike() {
        for text in ["127.0.0.1:7400", "[::1]:0", "n1.example:7402", "localhost:65535", "0.0.0.0:7400"] {
            assert_eq!(text.parse::<Address>().map(|a| a.to_string()), Ok(text.to_owned()));
        }
        for wrong in ["", "7400", ":7400", "host", "host:", "host:70000", "::1:7400", "[n1]:7400", "a b:1", "a/b:1"] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_what_is_certainly_loopback_counts_as_such() {
        let loopback = |text: &str| text.parse::<Address>().is_ok_and(|a| a.is_loopback());
        assert!(loopback("127.0.0.1:1") && loopback("127.8.9.1:1") && loopback("[::1]:1") && loopback("localhost:1"));
        assert!(!loopback("0.0.0.0:1") && !loopback("n1.example:1") && !loopback("10.0.0.1:1"));
        let wildcard = |text: &str| text.parse::<Address>().is_ok_and(|a| a.is_wildcard());
        assert!(wildcard("0.0.0.0:1") && wildcard("[::]:1") && !wildcard("127.0.0.1:1"));
    }
}
