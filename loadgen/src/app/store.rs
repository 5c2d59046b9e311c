//! The store under load as the commands see it: what it is, and a target for each worker. Everything that differs
//! between stores and is not on a request's way stands here.

use std::sync::Arc;
use std::time::Instant;

use coppice_client::command::ReadMode;
use coppice_client::tls::{Files, Tls};

use super::args::{Global, TargetName};
use super::failure::Failure;
use crate::metrics::{self, Sample};
use crate::record::History;
use crate::runner::{self, Orders, Tally, Watch};
use crate::target::fill::{self, FillResult};
use crate::target::native::{self, Native, contact};
use crate::target::resp::{self, Resp};
use crate::workload::{KeySpace, Kind, Plan};

/// What a worker's connections are like.
#[derive(Clone, Copy, Debug)]
pub struct Wiring {
    /// Connections of each worker.
    pub connections: u32,
    /// Bytes packed into one frame; 0: one command per frame.
    pub pack_bytes: u64,
    /// Native: who serves reads.
    pub reads: ReadMode,
    /// Native: whether ranges across partitions are collected first.
    pub optimistic_scans: bool,
    /// The most requests of a worker under way.
    pub slots: u32,
    /// RESP: replicas that must have a write.
    pub wait_replicas: u32,
}

/// What can be known of a store before the run.
#[derive(Clone, Debug)]
pub struct Description {
    /// The keys of the generator over its partitions.
    pub keys: KeySpace,
    /// First keys of all partitions but the first.
    pub boundaries: Vec<Vec<u8>>,
    /// How many keys it says it holds.
    pub stored: Option<u64>,
    /// Admin addresses of its nodes.
    pub admin: Vec<String>,
    /// When it answers a write, in its own words.
    pub flush: String,
    /// Its configuration, as far as it tells.
    pub config: serde_json::Value,
}

/// A store that can be put under load.
#[derive(Clone, Debug)]
pub enum Store {
    /// Coppice, by its own protocol.
    Native(native::Options),
    /// Something that speaks RESP.
    Resp(resp::Options),
}

impl Store {
    /// From the command line; connects to nothing yet.
    pub fn new(target: TargetName, global: &Global) -> Result<Store, Failure> {
        let endpoints = |default: &[&str]| match global.endpoints.is_empty() {
            true => default.iter().map(|&e| e.to_owned()).collect(),
            false => global.endpoints.clone(),
        };
        match target {
            TargetName::Resp => Ok(Store::Resp(resp::Options {
                endpoints: endpoints(&["127.0.0.1:6379"]),
                connections: 1,
                timeout: global.timeout,
                pack: true,
                wait_replicas: 0,
            })),
            TargetName::Native => Ok(Store::Native(native::Options {
                endpoints: endpoints(&["127.0.0.1:7400", "127.0.0.1:7410", "127.0.0.1:7420"]),
                connections: 1,
                pack_bytes: 8 * 1024,
                timeout: global.timeout,
                reads: ReadMode::Leader,
                optimistic_scans: true,
                token: global.token.clone(),
                slots: 1 << 20,
                tls: tls(global)?,
            })),
        }
    }

    /// What it is; the first contact.
    pub fn describe(&self) -> Result<Description, Failure> {
        match self {
            Store::Native(options) => describe_native(options).map_err(|cause| self.unavailable(cause)),
            Store::Resp(options) => describe_resp(options),
        }
    }

    /// Whether requests of this kind can be asked for.
    pub fn has(&self, kind: Kind) -> bool {
        match self {
            Store::Native(_) => true,
            Store::Resp(_) => kind != Kind::Many,
        }
    }

    /// Runs the orders, one worker each.
    pub fn run(
        &self,
        plan: &Arc<Plan>,
        orders: &[Orders],
        wiring: Wiring,
        (epoch, history): (Instant, Option<&History>),
        watch: impl FnMut(Watch),
    ) -> Result<Tally, Failure> {
        let ran = match self {
            Store::Native(options) => {
                let Wiring { connections, pack_bytes, reads, optimistic_scans, slots, .. } = wiring;
                let options =
                    native::Options { connections, pack_bytes, reads, optimistic_scans, slots, ..options.clone() };
                let workers = orders.len() as u64;
                let connect = |worker: usize| {
                    let recorder = history.map(|history| history.recorder(worker as u64, workers));
                    Native::new(&options, epoch, recorder)
                };
                runner::run(plan, orders, epoch, connect, watch)
            }
            Store::Resp(options) => {
                let pack = wiring.pack_bytes > 0;
                let Wiring { connections, wait_replicas, .. } = wiring;
                let options = resp::Options { connections, pack, wait_replicas, ..options.clone() };
                runner::run(plan, orders, epoch, |_| Resp::connect(&options, epoch), watch)
            }
        };
        ran.map_err(|cause| self.unavailable(cause))
    }

    /// Loads the first `entries` keys of the list; `told` hears how many are done.
    pub fn fill(
        &self,
        keys: &KeySpace,
        entries: u64,
        value_bytes: u32,
        told: impl FnMut(u64),
    ) -> Result<FillResult, Failure> {
        let filled = match self {
            Store::Native(options) => contact::load(options, keys, entries, value_bytes, told),
            Store::Resp(options) => Resp::connect(options, Instant::now())
                .and_then(|mut target| fill::by_puts(&mut target, keys, entries, value_bytes, told)),
        };
        filled.map_err(|cause| Failure { what: "the load was not finished".into(), ..self.unavailable(cause) })
    }

    /// Whether a range over the boundary at `boundary` is answered; the error says why not.
    pub fn spans(&self, boundary: &[u8]) -> Result<(), String> {
        match self {
            Store::Native(options) => contact::spans(options, boundary),
            Store::Resp(_) => Ok(()),
        }
    }

    /// Every pair, as a history begins with; `None`: this store's runs cannot be recorded.
    pub fn state(&self) -> Option<Result<Vec<contact::Pair>, String>> {
        match self {
            Store::Native(options) => Some(contact::state(options)),
            Store::Resp(_) => None,
        }
    }

    /// The addresses, for errors.
    pub fn place(&self) -> String {
        match self {
            Store::Native(options) => options.endpoints.join(", "),
            Store::Resp(options) => options.endpoints.join(", "),
        }
    }

    /// The failure of a first contact.
    pub fn unavailable(&self, cause: impl Into<String>) -> Failure {
        Failure::unavailable("the store does not answer", self.place(), cause)
    }
}

/// Certificates, if any were named.
fn tls(global: &Global) -> Result<Option<Tls>, Failure> {
    let usage = |what: String| Failure::usage(what, "the files of one certificate go together", "coppice-load --help");
    let files = Files::given(global.tls_ca.clone(), global.tls_cert.clone(), global.tls_key.clone()).map_err(usage)?;
    files.map(Tls::load).transpose().map_err(|error| usage(error.to_string()))
}

fn describe_native(options: &native::Options) -> Result<Description, String> {
    let map = contact::map(options)?;
    let ranges = map.partitions.iter().map(|entry| (&entry.low[..], entry.high.as_deref()));
    let keys = KeySpace::new(ranges).ok_or("no partition has room for 8-byte keys")?;
    let admin = map.nodes.iter().map(|node| node.addresses.admin.clone()).filter(|address| !address.is_empty());
    let admin: Vec<String> = admin.collect();
    let (config, flush) = config_of(&admin).unwrap_or((serde_json::Value::Null, "unknown".to_owned()));
    let boundaries = map.partitions.iter().skip(1).map(|entry| entry.low.to_vec()).collect();
    Ok(Description { keys, boundaries, stored: Sample::take(&admin).keys(), admin, flush, config })
}

fn describe_resp(options: &resp::Options) -> Result<Description, Failure> {
    let place = &options.endpoints[0];
    let unavailable = |cause| Failure {
        attempt: format!("redis-cli -u redis://{place} ping"),
        ..Failure::unavailable("the store does not answer", place.clone(), cause)
    };
    let size = resp::ask(place, &["DBSIZE"]).map_err(unavailable)?;
    let stored = size.strip_prefix(':').and_then(|digits| digits.trim().parse().ok());
    // A bulk string's value is the last line but one; servers without the command say nothing of their durability.
    let setting = |name: &str| {
        let answer = resp::ask(place, &["CONFIG", "GET", name]).ok()?;
        answer.lines().rev().find(|line| !line.is_empty()).map(str::to_owned).filter(|line| !line.starts_with('*'))
    };
    let flush = match (setting("appendonly").as_deref(), setting("appendfsync")) {
        (Some("yes"), Some(fsync)) => format!("appendonly, appendfsync {fsync}"),
        (Some("no"), _) => "nothing is flushed (appendonly no)".to_owned(),
        _ => "unknown".to_owned(),
    };
    let config = serde_json::json!({"appendonly": setting("appendonly"), "appendfsync": setting("appendfsync")});
    Ok(Description { keys: KeySpace::even(1), boundaries: Vec::new(), stored, admin: Vec::new(), flush, config })
}

/// The configuration that the first node which answers tells at `/config`, and its flush mode.
pub fn config_of(admin: &[String]) -> Option<(serde_json::Value, String)> {
    let text = admin.iter().find_map(|address| metrics::get(address, "/config").ok())?;
    let config: serde_json::Value = serde_json::from_str(&text).ok()?;
    let flush = find(&config, "log.flush").unwrap_or_else(|| "unknown".to_owned());
    Some((config, flush))
}

/// The value of a setting by its full name, in an object of names, nested tables, or rows with `key` and `value`.
fn find(config: &serde_json::Value, name: &str) -> Option<String> {
    use serde_json::Value;
    let plain = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Object(row) => row.get("value").and_then(Value::as_str).map(str::to_owned),
        _ => None,
    };
    match config {
        Value::Object(map) => map.get(name).and_then(plain).or_else(|| {
            let nested = name.split_once('.').and_then(|(table, rest)| find(map.get(table)?, rest));
            nested.or_else(|| map.values().find_map(|value| find(value, name)))
        }),
        Value::Array(rows) => rows.iter().find_map(|row| match row.get("key").and_then(Value::as_str) {
            Some(key) if key == name => row.get("value").and_then(Value::as_str).map(str::to_owned),
            _ => None,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_flush_mode_is_found_however_settings_are_laid_out() {
        for config in [
            json!({"log.flush": "fdatasync"}),
            json!({"log": {"flush": "fdatasync"}}),
            json!({"v": 1, "settings": {"log.flush": {"value": "fdatasync", "origin": "default"}}}),
            json!({"v": 1, "settings": [{"key": "name", "value": "x"}, {"key": "log.flush", "value": "fdatasync"}]}),
        ] {
            assert_eq!(find(&config, "log.flush").as_deref(), Some("fdatasync"), "{config}");
        }
        assert_eq!(find(&json!({"v": 1}), "log.flush"), None);
    }
}
