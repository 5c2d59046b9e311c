//! Settings of the whole cluster: kept in replicated state, changed while running, the same on every node.

use std::collections::BTreeMap;
use std::time::Duration;

use coppice_client::wire::control::AdminError;
use serde::{Deserialize, Serialize};

mod nearest;
pub mod units;
pub mod values;

pub use nearest::nearest;
use units::{GIB, KIB, MIB, parse_size, show_size, show_time};
use values::{DAY, HOUR, MILLISECOND, Reading, count, name_of, phrase, size, time, within, word};

/// The highest feature level that this program knows: what it may write to logs and say to other nodes. Level 1 is what
/// version 0.1 knows; level 2 adds the operations of [`coppice_btree`] that change what they find, and expiry. A
/// cluster's level is raised by hand, once all its nodes know it, and never lowered.
pub const FEATURE_LEVEL: u32 = 2;

/// The name of the setting.
pub const FEATURE_LEVEL_KEY: &str = "feature_level";

/// The fewest sessions that a partition may be bounded to: a program, an operator beside it, and each of them twice
/// where a merge has brought two of its sessions together. With one, every command of another client, and every
/// `coppice put`, ends the session of whoever waits for an answer.
const SESSIONS_LEAST: u64 = 4;

const SWITCH: [(&str, bool); 2] = [("on", true), ("off", false)];

const REBALANCE: [(&str, bool); 2] = [("off", false), ("auto", true)];

/// When the cluster splits a partition by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AutoSplit {
    /// Never.
    Off,
    /// When it holds more than so many bytes of keys and values.
    Size(u64),
    /// When so much of the cluster's load falls on it that other leaders cannot make up for it.
    Load,
}

/// Sizes of `size:`. A partition that is worth its replicas has some hundred megabytes; small ones are for trials.
const AUTO_SPLIT_BYTES: std::ops::RangeInclusive<u64> = KIB..=1024 * GIB;

fn auto_split(reading: Reading<'_>) -> Result<AutoSplit, String> {
    let size_of = || phrase(&AUTO_SPLIT_BYTES, |bytes| format!("size:{}", show_size(*bytes).replace(' ', "")));
    let text = reading.value(|| format!("off, load, {}", size_of()))?;
    match text.trim().split_once(':') {
        Some(("size", size)) => {
            within(parse_size(size)?, AUTO_SPLIT_BYTES, |bytes| show_size(*bytes)).map(AutoSplit::Size)
        }
        None if text.trim() == "off" => Ok(AutoSplit::Off),
        None if text.trim() == "load" => Ok(AutoSplit::Load),
        _ => Err(format!("`off`, `load` or a size such as `size:4GiB`, not `{text}`")),
    }
}

fn show_auto_split(value: AutoSplit) -> String {
    match value {
        AutoSplit::Off => "off".into(),
        AutoSplit::Size(bytes) => format!("size:{}", show_size(bytes).replace(' ', "")),
        AutoSplit::Load => "load".into(),
    }
}

/// The settings of a cluster (operations.md 3).
///
/// In replicated state and on the wire it travels as names and texts ([`ClusterSettings::pairs`]), so that versions
/// with more or fewer settings understand each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterSettings {
    /// Replicas of each partition and of the directory, 1 to 9.
    pub replicas: u32,
    /// What nodes may write; at most [`FEATURE_LEVEL`].
    pub feature_level: u32,
    /// Batches and windows that are not set tune themselves (protocol.md 9).
    pub auto_tuning: bool,
    /// Bytes at which a batch closes.
    pub batch_bytes_max: u64,
    /// How long a batch waits after its first command; a pipeline with room sends at once.
    pub batch_delay_max: Duration,
    /// Instances that may be undecided.
    pub window: u32,
    /// Bytes that may be undecided.
    pub window_bytes_max: u64,
    /// Executes batches before they are decided.
    pub speculation: bool,
    /// Instances decided and not executed, beyond which the leader proposes nothing.
    pub apply_lag_max: u32,
    /// Time between two heartbeats of a leader.
    pub heartbeat_interval: Duration,
    /// Time between two heartbeats of a leader whose group is idle; zero: [`Self::heartbeat_interval`].
    pub quiesce_heartbeat_interval: Duration,
    /// Silence after which a leader is replaced, drawn from 1x to 2x.
    pub election_timeout: Duration,
    /// Time after its ticket at which an unreleased query aborts; at least four measured rounds.
    pub place_timeout: Duration,
    /// How long a leader transfer may take.
    pub leader_transfer_timeout: Duration,
    /// How long a part of a query waits for its client to connect to the node that serves it.
    pub responder_connect_timeout: Duration,
    /// Instances without a command after which a session ends.
    pub session_expiry: u64,
    /// Sessions per partition.
    pub sessions_max: u64,
    /// Bytes of replies that one session may keep.
    pub session_bytes_max: u64,
    /// Instances between two comparisons of the replicas' digests.
    pub digest_interval: u64,
    /// When a partition is split by itself.
    pub auto_split: AutoSplit,
    /// Two neighbours that are small and cold are merged by themselves.
    pub auto_merge: bool,
    /// Leaders and replicas are spread by load and bytes by themselves.
    pub rebalance: bool,
}

pub struct ClusterSetting {
    pub key: &'static str,
    /// What holds where nothing was set.
    pub default: &'static str,
    /// What it is for, one sentence without its full stop.
    pub meaning: &'static str,
    read: fn(&mut ClusterSettings, Reading<'_>) -> Result<(), String>,
    show: fn(&ClusterSettings) -> String,
}

impl ClusterSetting {
    /// Which values there are, as a phrase: `1 to 9`.
    #[must_use]
    pub fn bounds(&self) -> String {
        (self.read)(&mut ClusterSettings::default(), Reading::Bounds).err().unwrap_or_default()
    }
}

/// Why a cluster setting was not set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClusterSettingError {
    /// No version knows the name.
    #[error(
        "unknown cluster setting `{key}`{}",
        nearest.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
    )]
    Unknown {
        /// The name as it was written.
        key: String,
        /// The nearest known name.
        nearest: Option<&'static str>,
    },
    /// The value cannot be.
    #[error("`{key}` must be {expected}")]
    Invalid {
        /// The name.
        key: &'static str,
        /// What was expected, and what was there.
        expected: String,
    },
}

impl From<ClusterSettingError> for AdminError {
    fn from(error: ClusterSettingError) -> AdminError {
        let text = error.to_string();
        match error {
            ClusterSettingError::Unknown { .. } => AdminError::NotFound(text),
            ClusterSettingError::Invalid { .. } => AdminError::Invalid(text),
        }
    }
}

/// Every cluster setting, in the order in which it is shown.
pub static CLUSTER_SETTINGS: &[ClusterSetting] = &[
    ClusterSetting {
        key: "replicas",
        default: "3",
        meaning: "replicas of each partition; an even number survives no more failures than the odd one below it",
        read: |s, t| count(t, 1..=9).map(|v| s.replicas = v),
        show: |s| s.replicas.to_string(),
    },
    ClusterSetting {
        key: FEATURE_LEVEL_KEY,
        default: "1",
        meaning: "what nodes may write: raised by hand when no node shall return to an older version, never lowered",
        read: |s, t| count(t, 1..=FEATURE_LEVEL).map(|v| s.feature_level = v),
        show: |s| s.feature_level.to_string(),
    },
    ClusterSetting {
        key: "auto_tuning",
        default: "on",
        meaning: "batches and windows that are at their defaults tune themselves",
        read: |s, t| word(t, &SWITCH).map(|v| s.auto_tuning = v),
        show: |s| name_of(s.auto_tuning, &SWITCH),
    },
    ClusterSetting {
        key: "batch_bytes_max",
        default: "64 KiB",
        meaning: "bytes at which a batch closes",
        read: |s, t| size(t, 1..=2 * MIB).map(|v| s.batch_bytes_max = v),
        show: |s| show_size(s.batch_bytes_max),
    },
    ClusterSetting {
        key: "batch_delay_max",
        default: "5ms",
        meaning: "how long a batch waits after its first command; a pipeline with room sends at once",
        read: |s, t| time(t, Duration::ZERO..=Duration::from_secs(1)).map(|v| s.batch_delay_max = v),
        show: |s| show_time(s.batch_delay_max),
    },
    ClusterSetting {
        key: "window",
        default: "16",
        meaning: "instances that may be undecided",
        read: |s, t| count(t, 1..=4096).map(|v| s.window = v),
        show: |s| s.window.to_string(),
    },
    ClusterSetting {
        key: "window_bytes_max",
        default: "1 MiB",
        meaning: "bytes that may be undecided",
        read: |s, t| size(t, 256 * KIB..=16 * MIB).map(|v| s.window_bytes_max = v),
        show: |s| show_size(s.window_bytes_max),
    },
    ClusterSetting {
        key: "speculation",
        default: "on",
        meaning: "execute batches before they are decided",
        read: |s, t| word(t, &SWITCH).map(|v| s.speculation = v),
        show: |s| name_of(s.speculation, &SWITCH),
    },
    ClusterSetting {
        key: "apply_lag_max",
        default: "128",
        meaning: "instances decided and not executed, beyond which the leader proposes nothing",
        read: |s, t| count(t, 1..=65_536).map(|v| s.apply_lag_max = v),
        show: |s| s.apply_lag_max.to_string(),
    },
    ClusterSetting {
        key: "heartbeat_interval",
        default: "50ms",
        meaning: "time between two heartbeats of a leader",
        read: |s, t| time(t, MILLISECOND..=Duration::from_secs(10)).map(|v| s.heartbeat_interval = v),
        show: |s| show_time(s.heartbeat_interval),
    },
    ClusterSetting {
        key: "quiesce_heartbeat_interval",
        default: "1s",
        meaning: "time between two heartbeats of a leader whose group is idle; 0s: heartbeat_interval",
        read: |s, t| time(t, Duration::ZERO..=Duration::from_secs(10)).map(|v| s.quiesce_heartbeat_interval = v),
        show: |s| show_time(s.quiesce_heartbeat_interval),
    },
    ClusterSetting {
        key: "election_timeout",
        default: "300ms",
        meaning: "silence after which a leader is replaced, drawn from 1x to 2x",
        read: |s, t| time(t, 2 * MILLISECOND..=HOUR).map(|v| s.election_timeout = v),
        show: |s| show_time(s.election_timeout),
    },
    ClusterSetting {
        key: "place_timeout",
        default: "150ms",
        meaning: "time, at least four measured rounds, after which an unreleased query across partitions aborts",
        read: |s, t| time(t, MILLISECOND..=Duration::from_secs(60)).map(|v| s.place_timeout = v),
        show: |s| show_time(s.place_timeout),
    },
    ClusterSetting {
        key: "leader_transfer_timeout",
        default: "2s",
        meaning: "how long a leader transfer may take",
        read: |s, t| time(t, MILLISECOND..=Duration::from_secs(60)).map(|v| s.leader_transfer_timeout = v),
        show: |s| show_time(s.leader_transfer_timeout),
    },
    ClusterSetting {
        key: "responder_connect_timeout",
        default: "1s",
        meaning: "how long a part of a query waits for its client to connect to the node that serves it",
        read: |s, t| time(t, MILLISECOND..=Duration::from_secs(60)).map(|v| s.responder_connect_timeout = v),
        show: |s| show_time(s.responder_connect_timeout),
    },
    ClusterSetting {
        key: "session_expiry",
        default: "1000000",
        meaning: "instances without a command after which a session ends",
        read: |s, t| count(t, 1..=u64::MAX).map(|v| s.session_expiry = v),
        show: |s| s.session_expiry.to_string(),
    },
    ClusterSetting {
        key: "sessions_max",
        default: "100000",
        meaning: "sessions per partition; beyond, an old session ends for each new one",
        read: |s, t| count(t, SESSIONS_LEAST..=10_000_000).map(|v| s.sessions_max = v),
        show: |s| s.sessions_max.to_string(),
    },
    ClusterSetting {
        key: "session_bytes_max",
        default: "2 MiB",
        meaning: "bytes of replies that one session may keep",
        read: |s, t| size(t, 1..=GIB).map(|v| s.session_bytes_max = v),
        show: |s| show_size(s.session_bytes_max),
    },
    ClusterSetting {
        key: "digest_interval",
        default: "1000",
        meaning: "instances between two comparisons of the replicas' digests",
        read: |s, t| count(t, 1..=u64::MAX).map(|v| s.digest_interval = v),
        show: |s| s.digest_interval.to_string(),
    },
    ClusterSetting {
        key: "auto_split",
        default: "off",
        meaning: "splits a partition larger than `size:4GiB`, or, with `load`, one that is too hot for one node",
        read: |s, t| auto_split(t).map(|v| s.auto_split = v),
        show: |s| show_auto_split(s.auto_split),
    },
    ClusterSetting {
        key: "auto_merge",
        default: "off",
        meaning: "merges two neighbours that stay small and cold",
        read: |s, t| word(t, &SWITCH).map(|v| s.auto_merge = v),
        show: |s| name_of(s.auto_merge, &SWITCH),
    },
    ClusterSetting {
        key: "rebalance",
        default: "off",
        meaning: "`auto` spreads leaders and replicas over the nodes by load and bytes",
        read: |s, t| word(t, &REBALANCE).map(|v| s.rebalance = v),
        show: |s| name_of(s.rebalance, &REBALANCE),
    },
];

impl Default for ClusterSettings {
    fn default() -> Self {
        let mut settings = Self {
            replicas: 0,
            feature_level: 0,
            auto_tuning: false,
            batch_bytes_max: 0,
            batch_delay_max: Duration::ZERO,
            window: 0,
            window_bytes_max: 0,
            speculation: false,
            apply_lag_max: 0,
            heartbeat_interval: Duration::ZERO,
            quiesce_heartbeat_interval: Duration::ZERO,
            election_timeout: DAY,
            place_timeout: Duration::ZERO,
            leader_transfer_timeout: Duration::ZERO,
            responder_connect_timeout: Duration::ZERO,
            session_expiry: 0,
            sessions_max: 0,
            session_bytes_max: 0,
            digest_interval: 0,
            auto_split: AutoSplit::Off,
            auto_merge: false,
            rebalance: false,
        };
        for setting in CLUSTER_SETTINGS {
            // Our own table: a default that its own reader refuses is a bug of this file, and a test walks them all.
            (setting.read)(&mut settings, Reading::Value(setting.default)).expect("a default is readable");
        }
        settings
    }
}

impl ClusterSettings {
    /// Sets one by name. The others stay; whether all go together is [`ClusterSettings::check`].
    ///
    /// # Errors
    /// The name is unknown, or the value is out of bounds.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), ClusterSettingError> {
        let Some(setting) = CLUSTER_SETTINGS.iter().find(|setting| setting.key == key) else {
            let known = CLUSTER_SETTINGS.iter().map(|setting| setting.key);
            return Err(ClusterSettingError::Unknown { key: key.to_owned(), nearest: nearest(key, known) });
        };
        (setting.read)(self, Reading::Value(text))
            .map_err(|expected| ClusterSettingError::Invalid { key: setting.key, expected })
    }

    /// Sets one by name, or returns it to its default; all go together then.
    ///
    /// # Errors
    /// As [`ClusterSettings::set`] and [`ClusterSettings::check`].
    pub fn change(&mut self, key: &str, value: Option<&str>) -> Result<(), ClusterSettingError> {
        let default = ClusterSettings::default().get(key).unwrap_or_default();
        let level = self.feature_level;
        self.set(key, value.unwrap_or(&default))?;
        if self.feature_level < level {
            let expected = format!("at least {level}: what is written cannot be taken back");
            return Err(ClusterSettingError::Invalid { key: FEATURE_LEVEL_KEY, expected });
        }
        self.check()
    }

    /// One value by name, as it would be written.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<String> {
        CLUSTER_SETTINGS.iter().find(|setting| setting.key == key).map(|setting| (setting.show)(self))
    }

    /// Every name with its value, as it would be written: the form that is logged and sent.
    #[must_use]
    pub fn pairs(&self) -> Vec<(&'static str, String)> {
        CLUSTER_SETTINGS.iter().map(|setting| (setting.key, (setting.show)(self))).collect()
    }

    /// The defaults, and these in their place.
    ///
    /// # Errors
    /// The first that is unknown, or that does not go together with the others.
    pub fn of_pairs(pairs: &BTreeMap<String, String>) -> Result<ClusterSettings, ClusterSettingError> {
        let mut settings = ClusterSettings::default();
        for (key, value) in pairs {
            settings.set(key, value)?;
        }
        settings.check()?;
        Ok(settings)
    }

    /// Whether the values go together.
    ///
    /// # Errors
    /// The setting that would have to change, and why.
    pub fn check(&self) -> Result<(), ClusterSettingError> {
        if self.election_timeout < 2 * self.heartbeat_interval {
            let expected = format!(
                "at least twice `heartbeat_interval` ({}), not {}",
                show_time(self.heartbeat_interval),
                show_time(self.election_timeout)
            );
            return Err(ClusterSettingError::Invalid { key: "election_timeout", expected });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_the_manual() {
        let settings = ClusterSettings::default();
        assert_eq!((settings.replicas, settings.window, settings.batch_bytes_max), (3, 16, 64 * KIB));
        assert_eq!(settings.election_timeout, Duration::from_millis(300));
        assert_eq!(settings.session_expiry, 1_000_000);
        assert_eq!(settings.check(), Ok(()));
    }

    #[test]
    fn every_setting_is_printed_as_it_is_read() {
        let settings = ClusterSettings::default();
        let mut again = ClusterSettings { replicas: 1, ..settings.clone() };
        for (setting, (key, text)) in CLUSTER_SETTINGS.iter().zip(settings.pairs()) {
            assert_eq!(text, setting.default, "{key}");
            assert_eq!(again.set(key, &text), Ok(()));
        }
        assert_eq!(again, settings);
    }

    #[test]
    fn values_out_of_bounds_and_unknown_names_are_refused() {
        let mut settings = ClusterSettings::default();
        let mut refused = |key: &str, text: &str| settings.set(key, text).expect_err("a refusal").to_string();
        assert_eq!(refused("replicas", "10"), "`replicas` must be a number from 1 to 9, not `10`");
        assert_eq!(refused("windw", "1"), "unknown cluster setting `windw`; did you mean `window`?");
        assert_eq!(
            refused("responder_connect_timeout", "61s"),
            "`responder_connect_timeout` must be from 1ms to 1min, not 61s"
        );
        assert_eq!(
            refused("responder_connect_timeout", "0"),
            "`responder_connect_timeout` must be from 1ms to 1min, not 0s"
        );
        assert_eq!(refused("sessions_max", "1"), "`sessions_max` must be a number from 4 to 10000000, not `1`");
        assert_eq!(refused("batch_bytes_max", "3 MiB"), "`batch_bytes_max` must be from 1 B to 2 MiB, not 3 MiB");
        assert_eq!(
            refused("auto_split", "4GiB"),
            "`auto_split` must be `off`, `load` or a size such as `size:4GiB`, not `4GiB`"
        );
        assert_eq!(refused("auto_split", "size:1B"), "`auto_split` must be from 1 KiB to 1 TiB, not 1 B");
        assert_eq!(refused("rebalance", "on"), "`rebalance` must be `off` or `auto`, not `on`");
        assert_eq!(settings, ClusterSettings::default());
    }

    #[test]
    fn a_size_that_splits_is_printed_as_it_is_read() {
        let mut settings = ClusterSettings::default();
        for text in ["size:4GiB", "load", "off"] {
            assert_eq!(settings.set("auto_split", text), Ok(()));
            assert_eq!(settings.get("auto_split").as_deref(), Some(text));
        }
    }

    #[test]
    fn an_election_timeout_below_two_heartbeats_is_refused() {
        let mut settings = ClusterSettings::default();
        assert_eq!(settings.set("heartbeat_interval", "200ms"), Ok(()));
        assert!(settings.check().is_err());
    }
}
