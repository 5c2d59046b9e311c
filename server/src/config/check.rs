//! Values that are good alone and not together.

use super::error::ConfigError;
use super::load::{Effective, Origin};
use super::node::{Flush, NodeConfig};

/// Refuses combinations that would serve a weaker guarantee than a reader of the file expects, or that cannot work.
pub(super) fn check(config: &NodeConfig, effective: &[Effective]) -> Result<(), ConfigError> {
    let conflict = |key: &str, what: String, remedy: &'static str| {
        let origin = effective.iter().find(|e| e.key == key).map_or(Origin::Default, |e| e.origin.clone());
        Err(ConfigError::Conflict { what, origin, remedy })
    };
    let listens = [
        ("listen.native", Some(&config.listen.native), config.advertise.native.as_ref()),
        ("listen.peer", Some(&config.listen.peer), config.advertise.peer.as_ref()),
        ("listen.resp", config.listen.resp.as_ref(), config.advertise.resp.as_ref()),
        ("listen.admin", config.listen.admin.as_ref(), config.advertise.admin.as_ref()),
    ];
    for (key, listen, advertise) in listens {
        let Some(listen) = listen else { continue };
        if !listen.is_loopback() && config.allow_faults {
            let what = format!("`allow_faults` refuses any address but loopback, and `{key}` is {listen}");
            return conflict(key, what, "faults are for tests on one machine");
        }
        if !listen.is_loopback() && !config.insecure && key == "listen.admin" {
            let what =
                format!("`{key}` is {listen}: health and metrics are in the clear, for anybody who reaches them");
            return conflict(key, what, "listen on loopback, or say `insecure = true` in a network that you trust");
        }
        if !listen.is_loopback() && !config.insecure && config.tls.files().is_none() {
            let what = format!("`{key}` is {listen}: beyond loopback, without TLS, anybody could read and write");
            return conflict(
                key,
                what,
                "give the node a certificate (`coppice cert node`), or say `insecure = true` in a network that you trust",
            );
        }
        if listen.is_wildcard() && advertise.is_none() {
            let advertise = key.replace("listen", "advertise");
            let what = format!("`{key}` is the wildcard {listen}, which nobody can dial, and `{advertise}` is not set");
            return conflict(key, what, "a wildcard needs the address that others shall dial");
        }
    }
    let tls = [("tls.ca", &config.tls.ca), ("tls.cert", &config.tls.cert), ("tls.key", &config.tls.key)];
    if let Some((missing, _)) = tls.iter().find(|(_, file)| file.is_none())
        && let Some((given, _)) = tls.iter().find(|(_, file)| file.is_some())
    {
        let what = format!("`{given}` is set, and `{missing}` is not");
        return conflict(given, what, "a node with TLS needs all of tls.ca, tls.cert and tls.key");
    }
    let open: Vec<_> = listens.iter().filter_map(|(key, listen, _)| Some((*key, (*listen)?))).collect();
    for (at, (key, listen)) in open.iter().enumerate() {
        let other = open[..at].iter().find(|(_, other)| other == listen && listen.port() != 0);
        if let Some((other, _)) = other {
            let what = format!("`{other}` and `{key}` are both {listen}");
            return conflict(key, what, "each needs a port of its own");
        }
    }
    if !config.dial_override.is_empty() && !config.allow_faults {
        let what = "`dial_override` needs `allow_faults = true`".to_owned();
        return conflict("dial_override", what, "dialling a proxy instead of a node is for tests");
    }
    if config.log.flush == Flush::Off && !config.unsafe_no_flush {
        let what =
            "`log.flush = off` needs `unsafe_no_flush = true`: a power cut would lose answered writes".to_owned();
        return conflict("log.flush", what, "leave it at fdatasync, or say that losing answered writes is meant");
    }
    Ok(())
}
