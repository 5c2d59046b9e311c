//! Without a worker: first contact with a cluster, and bulk loads.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use coppice_btree::Value;
use coppice_client::command::{Answer, Command, Operation, Output, RangeCall, ReadMode};
use coppice_client::error::Error;
use coppice_client::map::PartitionMap;
use coppice_client::session::Request as Call;
use coppice_client::wire::ScanOptions;
use tokio::runtime::Runtime;

use super::super::Nanos;
use super::super::clock::{Clock, runtime};
use super::driver::{Driver, DriverEvent};
use super::{Options, unique_seed};
use crate::target::fill::{self, FillResult};
use crate::workload::{Key, KeySpace};

/// Bytes of keys and values in one `Load`: four of them fill the window of a partition (`window_bytes_max`, 1 MiB).
const LOAD_BYTES: usize = 224 * 1024;

/// Loads of one partition under way: one is executed while others are on their way.
const LOADS_MAX: usize = 4;

/// Calls under way: every pair of every load that can be.
const CALLS_MAX: u32 = 1 << 24;

/// A load may wait for an election or two.
const LOAD_TIMEOUT: Duration = Duration::from_secs(30);

/// One session, waited for.
struct Contact {
    clock: Clock,
    driver: Driver,
    told: Vec<DriverEvent>,
    timeout: Duration,
    runtime: Runtime,
}

impl Contact {
    fn new(options: &Options) -> Result<Contact, String> {
        let runtime = runtime().map_err(|e| e.to_string())?;
        let guard = runtime.enter();
        let clock = Clock::new(Instant::now()).map_err(|e| e.to_string())?;
        drop(guard);
        // A load that meets keys which are there asks for each pair of its own.
        let options = Options { slots: CALLS_MAX, ..options.clone() };
        let driver = Driver::new(options.session(unique_seed()), options.tls.clone());
        Ok(Contact { clock, driver, told: Vec::new(), timeout: options.timeout, runtime })
    }

    fn submit(&mut self, token: u64, timeout: Duration, call: Call) -> Result<(), Error> {
        let deadline = self.clock.now() + timeout.as_nanos() as Nanos;
        self.driver.submit(token, deadline, call).map(drop)
    }

    /// Waits until something was told.
    fn wait(&mut self) -> Vec<DriverEvent> {
        let Contact { clock, driver, told, runtime, .. } = self;
        runtime.block_on(poll_fn(|cx| {
            loop {
                driver.turn(cx, clock, told);
                if !told.is_empty() {
                    return Poll::Ready(());
                }
                if clock.poll_until(cx, driver.deadline()).is_pending() {
                    return Poll::Pending;
                }
            }
        }));
        std::mem::take(&mut self.told)
    }

    /// One call and its end; parts of a range go to `part`.
    fn call(&mut self, call: Call, mut part: impl FnMut(&[u8])) -> Result<Answer<Output>, Error> {
        self.submit(0, self.timeout, call)?;
        loop {
            for told in self.wait() {
                match told {
                    DriverEvent::Ended(_, result) => return result,
                    DriverEvent::Part(_, bytes, _) => part(&bytes),
                }
            }
        }
    }

    /// Reads one key, so that the map and a leader are known.
    fn greet(&mut self) -> Result<Arc<PartitionMap>, String> {
        let get = Call::Get { key: Value::from([0u8; 8]), mode: ReadMode::Leader };
        self.call(get, |_| {}).map_err(|error| error.to_string())?;
        self.driver.session().map().cloned().ok_or_else(|| "no node has told its partition map".to_owned())
    }
}

/// The partition map, once the cluster answers a read.
pub fn map(options: &Options) -> Result<Arc<PartitionMap>, String> {
    Contact::new(options)?.greet()
}

/// Whether a range over the boundary of two partitions is answered; the error says why not.
pub fn spans(options: &Options, boundary: &[u8]) -> Result<(), String> {
    let mut contact = Contact::new(options)?;
    contact.greet()?;
    let mut high = boundary.to_vec();
    high.push(0);
    let range = range(Value::EMPTY, Some(high.into()), 1);
    contact.call(Call::Range(range), |_| {}).map(drop).map_err(|error| error.to_string())
}

fn range(low: Value, high: Option<Value>, pairs_max: u64) -> RangeCall {
    RangeCall {
        low,
        high,
        scan: ScanOptions { pairs_max, ..ScanOptions::default() },
        mode: ReadMode::Leader,
        stretches: None,
    }
}

/// A pair's bytes.
pub type Pair = (Vec<u8>, Vec<u8>);

/// Every pair, partition by partition: the state that a recorded history starts from.
pub fn state(options: &Options) -> Result<Vec<Pair>, String> {
    let mut contact = Contact::new(options)?;
    let mut pairs = Vec::new();
    for entry in &contact.greet()?.partitions {
        let range = range(entry.low[..].into(), entry.high.as_deref().map(Value::from), 0);
        let more = |part: &[u8]| pairs.extend(super::driver::pairs(part).map(|(k, v)| (k.to_vec(), v.to_vec())));
        contact.call(Call::Range(range), more).map_err(|error| error.to_string())?;
    }
    Ok(pairs)
}

/// What a call of a bulk load carries.
enum BulkPart {
    /// Pairs of this part of the key space.
    Load { part: u64, pairs: Box<[(Value, Value)]> },
    /// One pair of a load that met a key which was there.
    Insert { part: u64 },
}

struct Part<I> {
    keys: I,
    under_way: usize,
}

/// Loads the first `entries` keys of the list; keys that are there keep their value.
pub fn load(
    options: &Options,
    space: &KeySpace,
    entries: u64,
    value_bytes: u32,
    mut told: impl FnMut(u64),
) -> Result<FillResult, String> {
    let mut contact = Contact::new(options)?;
    contact.greet()?;
    let mut parts: Vec<_> =
        (0..space.parts()).map(|part| Part { keys: space.sorted_in(part, entries), under_way: 0 }).collect();
    let mut loading = Loading { contact, value_bytes, taken: 0, token: 0, carried: BTreeMap::new() };
    let mut filled = FillResult::default();
    loop {
        for (index, part) in parts.iter_mut().enumerate() {
            while part.under_way < LOADS_MAX && loading.next(index as u64, &mut part.keys)? {
                part.under_way += 1;
            }
        }
        if loading.carried.is_empty() {
            return Ok(filled);
        }
        for event in loading.contact.wait() {
            let DriverEvent::Ended(token, result) = event else { continue };
            let ended = loading.carried.remove(&token).expect("a call ends once");
            let answer = result.map_err(|error| error.to_string())?;
            match (ended, answer.output) {
                (BulkPart::Load { part, pairs }, Output::NotLoaded(_)) => {
                    parts[part as usize].under_way += loading.insert_each(part, pairs)?;
                    parts[part as usize].under_way -= 1;
                }
                (BulkPart::Load { part, pairs }, _) => {
                    filled.keys += pairs.len() as u64;
                    parts[part as usize].under_way -= 1;
                }
                (BulkPart::Insert { part }, output) => {
                    filled.keys += 1;
                    let present = matches!(output, Output::One(coppice_btree::OpResult::Insert { present: Some(_) }));
                    filled.present += u64::from(present);
                    parts[part as usize].under_way -= 1;
                }
            }
        }
        told(filled.keys);
    }
}

struct Loading {
    contact: Contact,
    value_bytes: u32,
    taken: u64,
    token: u64,
    carried: BTreeMap<u64, BulkPart>,
}

impl Loading {
    fn submit(&mut self, command: Command, carried: BulkPart) -> Result<(), String> {
        self.token += 1;
        self.contact.submit(self.token, LOAD_TIMEOUT, Call::Command(command)).map_err(|error| error.to_string())?;
        self.carried.insert(self.token, carried);
        Ok(())
    }

    /// The next pairs of a part, if it has any left.
    fn next(&mut self, part: u64, keys: &mut impl Iterator<Item = Key>) -> Result<bool, String> {
        let count = (LOAD_BYTES / (8 + self.value_bytes as usize)).max(1);
        let mut scratch = Vec::new();
        let pairs: Box<[(Value, Value)]> = keys
            .take(count)
            .map(|key| {
                scratch.clear();
                fill::value(self.taken, self.value_bytes).write(&mut scratch);
                self.taken += 1;
                (Value::from(key.to_be_bytes()), Value::from(scratch.as_slice()))
            })
            .collect();
        if pairs.is_empty() {
            return Ok(false);
        }
        self.submit(Command::Load(pairs.clone()), BulkPart::Load { part, pairs })?;
        Ok(true)
    }

    /// A load takes new keys only, all or none: where some are there, the pairs go one by one.
    fn insert_each(&mut self, part: u64, pairs: Box<[(Value, Value)]>) -> Result<usize, String> {
        let count = pairs.len();
        for (key, value) in pairs {
            self.submit(Command::One(Operation::Insert { key, value }), BulkPart::Insert { part })?;
        }
        Ok(count)
    }
}
