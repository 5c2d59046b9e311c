//! The table of node settings (operations.md 3): one row per setting gives its name, default, meaning, reader and
//! printer.
//!
//! Flags, environment, files, `config show` and `config default` are all made from it, so that a setting cannot exist
//! in only one of them.

use std::time::Duration;

use coppice_core::settings::units::{GIB, KIB, MIB, TIB, show_rate, show_size, show_time};
use coppice_core::settings::values::{
    DAY, HOUR, MILLISECOND, Reading, SECOND, count, name_of, size, switch, time, word,
};

use super::node::{Flush, Keep, LogFormat, NodeConfig};
use super::values::{
    address, address_or_off, addresses, file, filter, joined, label, memory, optional, overrides, path, rate,
    show_file, show_optional,
};
use super::{Address, host};

const FLUSHES: [(&str, Flush); 2] = [("fdatasync", Flush::Fdatasync), ("off", Flush::Off)];
const KEEPS: [(&str, Keep); 2] = [("trim", Keep::Trim), ("all", Keep::All)];
const LOG_FORMATS: [(&str, LogFormat); 3] =
    [("auto", LogFormat::Auto), ("pretty", LogFormat::Pretty), ("json", LogFormat::Json)];

/// One node setting.
pub struct Setting {
    /// Its name in a file: `log.flush`. Flag and variable follow from it.
    pub key: &'static str,
    /// What holds where nothing is said.
    pub default: DefaultValue,
    /// What it is for, one sentence without its full stop.
    pub meaning: &'static str,
    read: fn(&mut NodeConfig, Reading<'_>) -> Result<(), String>,
    show: fn(&NodeConfig) -> String,
}

/// A default, as people would write it.
#[derive(Clone, Copy)]
pub enum DefaultValue {
    /// Always the same.
    Text(&'static str),
    /// Depends on the machine or the environment.
    Found {
        /// In words, for help and manuals.
        words: &'static str,
        /// The value on this machine.
        find: fn() -> String,
    },
}

impl DefaultValue {
    /// The value on this machine.
    #[must_use]
    pub fn value(&self) -> String {
        match self {
            Self::Text(text) => (*text).to_owned(),
            Self::Found { find, .. } => find(),
        }
    }

    /// How a manual names it.
    #[must_use]
    pub fn words(&self) -> &'static str {
        match self {
            Self::Text("") => "none",
            Self::Text(text) => text,
            Self::Found { words, .. } => words,
        }
    }
}

impl Setting {
    /// The flag without its dashes: `log-flush`.
    #[must_use]
    pub fn flag(&self) -> String {
        self.key.replace(['.', '_'], "-")
    }

    /// The environment variable: `COPPICE_LOG_FLUSH`.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("COPPICE_{}", self.key.replace('.', "_").to_ascii_uppercase())
    }

    /// True if its flag may stand without a value, and then means `true`.
    #[must_use]
    pub fn is_switch(&self) -> bool {
        matches!(self.default, DefaultValue::Text("false"))
    }

    /// Sets it from text.
    ///
    /// # Errors
    /// What was expected, as a phrase.
    pub fn read(&self, config: &mut NodeConfig, text: &str) -> Result<(), String> {
        (self.read)(config, Reading::Value(text))
    }

    /// Which values there are, as a phrase: `1s to 24h`.
    #[must_use]
    pub fn bounds(&self) -> String {
        (self.read)(&mut NodeConfig::blank(), Reading::Bounds).err().unwrap_or_default()
    }

    /// What it takes for another value to hold.
    #[must_use]
    pub fn change(&self) -> &'static str {
        match self.key {
            "log_level" => "live",
            key if key.starts_with("tls.") => "restart; contents live",
            _ => "restart",
        }
    }

    /// Its value in `config`, as it would be written.
    #[must_use]
    pub fn show(&self, config: &NodeConfig) -> String {
        (self.show)(config)
    }
}

/// The setting named `key`.
pub(super) fn find(key: &str) -> Option<&'static Setting> {
    NODE_SETTINGS.iter().find(|setting| setting.key == key)
}

/// Every node setting, in the order in which files and manuals show them.
pub static NODE_SETTINGS: &[Setting] = &[
    Setting {
        key: "name",
        default: DefaultValue::Found { words: "the host name", find: host::host_name },
        meaning: "a label for people; the directory gives ids",
        read: |c, t| label(t).map(|v| c.name = v),
        show: |c| c.name.clone(),
    },
    Setting {
        key: "data_dir",
        default: DefaultValue::Found { words: "$STATE_DIRECTORY, else ./coppice-data", find: host::data_dir },
        meaning: "the only directory that the node writes to",
        read: |c, t| path(t).map(|v| c.data_dir = v),
        show: |c| c.data_dir.display().to_string(),
    },
    Setting {
        key: "seeds",
        default: DefaultValue::Text(""),
        meaning: "peer addresses of the nodes that form the cluster, the same list on each; none: this node alone",
        read: |c, t| addresses(t).map(|v| c.seeds = v),
        show: |c| joined(&c.seeds),
    },
    Setting {
        key: "listen.native",
        default: DefaultValue::Text("127.0.0.1:7400"),
        meaning: "where clients and operators connect",
        read: |c, t| address(t).map(|v| c.listen.native = v),
        show: |c| c.listen.native.to_string(),
    },
    Setting {
        key: "listen.peer",
        default: DefaultValue::Text("127.0.0.1:7402"),
        meaning: "where other nodes connect",
        read: |c, t| address(t).map(|v| c.listen.peer = v),
        show: |c| c.listen.peer.to_string(),
    },
    Setting {
        key: "listen.resp",
        default: DefaultValue::Text("127.0.0.1:7401"),
        meaning: "where clients that speak RESP, the protocol of Redis, connect; off: nowhere",
        read: |c, t| address_or_off(t).map(|v| c.listen.resp = v),
        show: |c| c.listen.resp.as_ref().map_or_else(|| "off".to_owned(), Address::to_string),
    },
    Setting {
        key: "listen.admin",
        default: DefaultValue::Text("127.0.0.1:7403"),
        meaning: "health and metrics over HTTP, or `off`",
        read: |c, t| address_or_off(t).map(|v| c.listen.admin = v),
        show: |c| c.listen.admin.as_ref().map_or_else(|| "off".to_owned(), Address::to_string),
    },
    Setting {
        key: "advertise.native",
        default: DefaultValue::Text(""),
        meaning: "address that clients dial; required if listen.native is a wildcard",
        read: |c, t| optional(t).map(|v| c.advertise.native = v),
        show: |c| show_optional(c.advertise.native.as_ref()),
    },
    Setting {
        key: "advertise.peer",
        default: DefaultValue::Text(""),
        meaning: "address that other nodes dial; required if listen.peer is a wildcard",
        read: |c, t| optional(t).map(|v| c.advertise.peer = v),
        show: |c| show_optional(c.advertise.peer.as_ref()),
    },
    Setting {
        key: "advertise.resp",
        default: DefaultValue::Text(""),
        meaning: "address that RESP clients are told to dial; required if listen.resp is a wildcard",
        read: |c, t| optional(t).map(|v| c.advertise.resp = v),
        show: |c| show_optional(c.advertise.resp.as_ref()),
    },
    Setting {
        key: "advertise.admin",
        default: DefaultValue::Text(""),
        meaning: "address of health and metrics; required if listen.admin is a wildcard",
        read: |c, t| optional(t).map(|v| c.advertise.admin = v),
        show: |c| show_optional(c.advertise.admin.as_ref()),
    },
    Setting {
        key: "tls.ca",
        default: DefaultValue::Text(""),
        meaning: "authorities, in PEM, that sign the certificates of nodes and clients; reread when it changes",
        read: |c, t| file(t).map(|v| c.tls.ca = v),
        show: |c| show_file(c.tls.ca.as_deref()),
    },
    Setting {
        key: "tls.cert",
        default: DefaultValue::Text(""),
        meaning: "this node's certificate, in PEM: it names node.n1 and the hosts that clients dial",
        read: |c, t| file(t).map(|v| c.tls.cert = v),
        show: |c| show_file(c.tls.cert.as_deref()),
    },
    Setting {
        key: "tls.key",
        default: DefaultValue::Text(""),
        meaning: "the private key of tls.cert, in PEM",
        read: |c, t| file(t).map(|v| c.tls.key = v),
        show: |c| show_file(c.tls.key.as_deref()),
    },
    Setting {
        key: "insecure",
        default: DefaultValue::Text("false"),
        meaning: "allow to listen beyond loopback without TLS, and the admin port beyond loopback; every status warns",
        read: |c, t| switch(t).map(|v| c.insecure = v),
        show: |c| c.insecure.to_string(),
    },
    Setting {
        key: "allow_faults",
        default: DefaultValue::Text("false"),
        meaning: "allow tests to cut and slow links between nodes; loopback only",
        read: |c, t| switch(t).map(|v| c.allow_faults = v),
        show: |c| c.allow_faults.to_string(),
    },
    Setting {
        key: "dial_override",
        default: DefaultValue::Text(""),
        meaning: "dial a proxy instead of a node, as n2=127.0.0.1:9002; only with allow_faults",
        read: |c, t| overrides(t).map(|v| c.dial_override = v),
        show: |c| joined(c.dial_override.iter().map(|(node, address)| format!("n{node}={address}"))),
    },
    Setting {
        key: "log.segment_bytes",
        default: DefaultValue::Text("64 MiB"),
        meaning: "size of a log segment; the first of a new node has at most 1 MiB",
        read: |c, t| size(t, 64 * KIB..=4 * GIB).map(|v| c.log.segment_bytes = v),
        show: |c| show_size(c.log.segment_bytes),
    },
    Setting {
        key: "log.segments_ahead",
        default: DefaultValue::Text("1"),
        meaning: "log segments prepared before they are needed",
        read: |c, t| count(t, 0..=64).map(|v| c.log.segments_ahead = v),
        show: |c| c.log.segments_ahead.to_string(),
    },
    Setting {
        key: "log.flush",
        default: DefaultValue::Text("fdatasync"),
        meaning: "how a write becomes durable; `off` loses answered writes in a power cut and needs --unsafe-no-flush",
        read: |c, t| word(t, &FLUSHES).map(|v| c.log.flush = v),
        show: |c| name_of(c.log.flush, &FLUSHES),
    },
    Setting {
        key: "unsafe_no_flush",
        default: DefaultValue::Text("false"),
        meaning: "allows log.flush = off",
        read: |c, t| switch(t).map(|v| c.unsafe_no_flush = v),
        show: |c| c.unsafe_no_flush.to_string(),
    },
    Setting {
        key: "log.disk_reserve",
        default: DefaultValue::Text("1 GiB"),
        meaning: "free disk below which writes that grow the store are refused",
        read: |c, t| size(t, 0..=TIB).map(|v| c.log.disk_reserve = v),
        show: |c| show_size(c.log.disk_reserve),
    },
    Setting {
        key: "log.keep",
        default: DefaultValue::Text("trim"),
        meaning: "`all` moves trimmed log segments to log/old/ instead of deleting them",
        read: |c, t| word(t, &KEEPS).map(|v| c.log.keep = v),
        show: |c| name_of(c.log.keep, &KEEPS),
    },
    Setting {
        key: "checkpoint.log_bytes",
        default: DefaultValue::Text("256 MiB"),
        meaning: "log that a start of the node replays at most; beyond, the partition with most of it writes a checkpoint",
        read: |c, t| size(t, 64 * KIB..=TIB).map(|v| c.checkpoint.log_bytes = v),
        show: |c| show_size(c.checkpoint.log_bytes),
    },
    Setting {
        key: "checkpoint.rate",
        default: DefaultValue::Text("64 MiB/s"),
        meaning: "what writing a checkpoint may take from the disk",
        read: |c, t| rate(t, 64 * KIB..=TIB).map(|v| c.checkpoint.rate = v),
        show: |c| show_rate(c.checkpoint.rate),
    },
    Setting {
        key: "checkpoint.cache",
        default: DefaultValue::Text("32 MiB"),
        meaning: "memory for writing or reading one checkpoint",
        read: |c, t| size(t, MIB..=64 * GIB).map(|v| c.checkpoint.cache = v),
        show: |c| show_size(c.checkpoint.cache),
    },
    Setting {
        key: "memory.limit",
        default: DefaultValue::Text("70%"),
        meaning: "memory above which writes that grow the store are refused; a size, or a share of cgroup or machine",
        read: |c, t| memory(t).map(|v| c.memory_limit = v),
        show: |c| show_size(c.memory_limit),
    },
    Setting {
        key: "limits.connections",
        default: DefaultValue::Text("10000"),
        meaning: "client connections",
        read: |c, t| count(t, 1..=1_000_000).map(|v| c.limits.connections = v),
        show: |c| c.limits.connections.to_string(),
    },
    Setting {
        key: "limits.inflight",
        default: DefaultValue::Text("1024"),
        meaning: "requests in flight per connection",
        read: |c, t| count(t, 2..=1_000_000).map(|v| c.limits.inflight = v),
        show: |c| c.limits.inflight.to_string(),
    },
    Setting {
        key: "limits.inflight_bytes",
        default: DefaultValue::Text("16 MiB"),
        meaning: "bytes of requests in flight and of unread answers per connection; beyond: it is not read",
        read: |c, t| size(t, 1..=TIB).map(|v| c.limits.inflight_bytes = v),
        show: |c| show_size(c.limits.inflight_bytes),
    },
    Setting {
        key: "limits.node_bytes",
        default: DefaultValue::Text("256 MiB"),
        meaning: "bytes of requests in flight and of unread answers on the node; beyond: Busy",
        read: |c, t| size(t, 1..=TIB).map(|v| c.limits.node_bytes = v),
        show: |c| show_size(c.limits.node_bytes),
    },
    Setting {
        key: "limits.scan_bytes",
        default: DefaultValue::Text("256 MiB"),
        meaning: "bytes of scans under way on the node; beyond: scans wait",
        read: |c, t| size(t, 1..=TIB).map(|v| c.limits.scan_bytes = v),
        show: |c| show_size(c.limits.scan_bytes),
    },
    Setting {
        key: "limits.mailbox",
        default: DefaultValue::Text("4096"),
        meaning: "inputs that may wait for one worker thread; beyond: Busy",
        read: |c, t| count(t, 1..=1_000_000).map(|v| c.limits.mailbox = v),
        show: |c| c.limits.mailbox.to_string(),
    },
    Setting {
        key: "limits.stalled_reader",
        default: DefaultValue::Text("30s"),
        meaning: "time after which a client that reads none of its answers is disconnected",
        read: |c, t| time(t, SECOND..=DAY).map(|v| c.limits.stalled_reader = v),
        show: |c| show_time(c.limits.stalled_reader),
    },
    Setting {
        key: "limits.scan_snapshot_bytes",
        default: DefaultValue::Text("1 GiB"),
        meaning: "memory that the snapshot of a scan may keep alive; beyond: SnapshotExpired",
        read: |c, t| size(t, MIB..=TIB).map(|v| c.limits.scan_snapshot_bytes = v),
        show: |c| show_size(c.limits.scan_snapshot_bytes),
    },
    Setting {
        key: "limits.scan_snapshot_max_age",
        default: DefaultValue::Text("1h"),
        meaning: "how long a scan may hold its snapshot; beyond: SnapshotExpired",
        read: |c, t| time(t, SECOND..=DAY).map(|v| c.limits.scan_snapshot_max_age = v),
        show: |c| show_time(c.limits.scan_snapshot_max_age),
    },
    Setting {
        key: "limits.partitions",
        default: DefaultValue::Text("256"),
        meaning: "replicas that the node may hold",
        read: |c, t| count(t, 1..=65_536).map(|v| c.limits.partitions = v),
        show: |c| c.limits.partitions.to_string(),
    },
    Setting {
        key: "handshake_timeout",
        default: DefaultValue::Text("5s"),
        meaning: "time after which a connection without a complete handshake is closed",
        read: |c, t| time(t, MILLISECOND..=HOUR).map(|v| c.handshake_timeout = v),
        show: |c| show_time(c.handshake_timeout),
    },
    Setting {
        key: "keepalive",
        default: DefaultValue::Text("30s"),
        meaning: "time between two TCP probes of an idle connection",
        read: |c, t| time(t, SECOND..=HOUR).map(|v| c.keepalive = v),
        show: |c| show_time(c.keepalive),
    },
    Setting {
        key: "drain_timeout",
        default: DefaultValue::Text("10s"),
        meaning: "how long a stop waits for leaderships to move, at most leader_transfer_timeout",
        read: |c, t| time(t, Duration::ZERO..=HOUR).map(|v| c.drain_timeout = v),
        show: |c| show_time(c.drain_timeout),
    },
    Setting {
        key: "worker_threads",
        default: DefaultValue::Found { words: "cores - 1, at least 1", find: host::worker_threads },
        meaning: "threads that own replicas",
        read: |c, t| count(t, 1..=1024).map(|v| c.worker_threads = v),
        show: |c| c.worker_threads.to_string(),
    },
    Setting {
        key: "pin_threads",
        default: DefaultValue::Text("false"),
        meaning: "pin each worker thread to a core",
        read: |c, t| switch(t).map(|v| c.pin_threads = v),
        show: |c| c.pin_threads.to_string(),
    },
    Setting {
        key: "busy_poll",
        default: DefaultValue::Text("500us"),
        meaning: "how long an idle thread polls before it sleeps, if its last wait was as short; 0s: never",
        read: |c, t| time(t, Duration::ZERO..=MILLISECOND * 10).map(|v| c.busy_poll = v),
        show: |c| show_time(c.busy_poll),
    },
    Setting {
        key: "log_level",
        default: DefaultValue::Text("info"),
        meaning: "a level, or a filter such as info,coppice_server::log=debug; COPPICE_LOG is the same",
        read: |c, t| filter(t).map(|v| c.log_level = v),
        show: |c| c.log_level.clone(),
    },
    Setting {
        key: "log_format",
        default: DefaultValue::Text("auto"),
        meaning: "auto (pretty on a terminal, else json), pretty or json",
        read: |c, t| word(t, &LOG_FORMATS).map(|v| c.log_format = v),
        show: |c| name_of(c.log_format, &LOG_FORMATS),
    },
    Setting {
        key: "slow_request",
        default: DefaultValue::Text("500ms"),
        meaning: "a slower request is logged with the time of each stage",
        read: |c, t| time(t, Duration::ZERO..=HOUR).map(|v| c.slow_request = v),
        show: |c| show_time(c.slow_request),
    },
];

/// Every setting at its default on this machine.
pub(super) fn defaults() -> NodeConfig {
    let mut config = NodeConfig::blank();
    for setting in NODE_SETTINGS {
        // Our own table: a default that its own reader refuses is a bug of this file, and a test walks them all.
        setting.read(&mut config, &setting.default.value()).expect("a default is readable");
    }
    config
}

/// A configuration file with every setting at its default, commented out, and what each is for.
#[must_use]
pub fn default_file() -> String {
    let mut file = String::from(
        "# Settings of one node; flag > environment > file > default. Topology is not here: see `coppice init`.\n",
    );
    for setting in NODE_SETTINGS {
        file.push_str(&format!("\n# {}\n# default: {}\n", setting.meaning, setting.default.words()));
        file.push_str(&format!("# {} = {}\n", setting.key, toml_value(&setting.default.value())));
    }
    file
}

/// `text` as a value in a file: a number or a switch as it is, all else quoted.
#[must_use]
pub fn toml_value(text: &str) -> String {
    if text == "true" || text == "false" || (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())) {
        text.to_owned()
    } else {
        toml::Value::String(text.to_owned()).to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_default_is_readable_and_printed_as_it_is_read() {
        let config = NodeConfig::default();
        for setting in NODE_SETTINGS {
            let mut again = config.clone();
            let shown = setting.show(&config);
            assert_eq!(setting.read(&mut again, &shown), Ok(()), "{}", setting.key);
            assert_eq!(again, config, "{}", setting.key);
            if let DefaultValue::Text(text) = setting.default
                && !text.ends_with('%')
            {
                assert_eq!(shown, text, "{}", setting.key);
            }
        }
    }

    #[test]
    fn every_setting_changes_a_field_of_its_own() {
        let mut config = NodeConfig::blank();
        for setting in NODE_SETTINGS {
            let before = config.clone();
            let value = match setting.key {
                "seeds" | "advertise.native" | "advertise.peer" | "advertise.resp" | "advertise.admin" => {
                    "other:1".to_owned()
                }
                "dial_override" => "n2=other:1".to_owned(),
                "log.segments_ahead" => "2".to_owned(),
                "log.flush" => "off".to_owned(),
                "log.keep" => "all".to_owned(),
                "log_format" => "json".to_owned(),
                "tls.ca" | "tls.cert" | "tls.key" => "file.pem".to_owned(),
                _ if setting.is_switch() => "true".to_owned(),
                _ => setting.default.value(),
            };
            assert_eq!(setting.read(&mut config, &value), Ok(()), "{}", setting.key);
            assert_ne!(before, config, "{}", setting.key);
        }
    }

    #[test]
    fn names_flags_and_variables_are_unique_and_have_three_spellings() {
        let flush = find("log.flush").expect("a known key");
        assert_eq!((flush.flag().as_str(), flush.variable().as_str()), ("log-flush", "COPPICE_LOG_FLUSH"));
        let flags: BTreeSet<String> = NODE_SETTINGS.iter().map(Setting::flag).collect();
        assert_eq!(flags.len(), NODE_SETTINGS.len());
    }

    #[test]
    fn the_default_file_without_its_comments_is_a_good_file() {
        let file = default_file();
        let settings: Vec<&str> = file
            .lines()
            .filter_map(|line| line.strip_prefix("# "))
            .filter(|line| NODE_SETTINGS.iter().any(|setting| line.starts_with(&format!("{} = ", setting.key))))
            .collect();
        assert_eq!(settings.len(), NODE_SETTINGS.len());
        toml::from_str::<toml::Table>(&settings.join("\n")).expect("valid TOML");
        toml::from_str::<toml::Table>(&file).expect("valid TOML with its comments");
    }
}
