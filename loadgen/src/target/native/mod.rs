//! Coppice, through the session of its client library: the same packs, numbers, retries and hints that programs get,
//! driven by the worker's own thread so that a request costs no hop between threads.

pub mod contact;
pub mod driver;
mod recording;
pub mod socket;

use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use coppice_btree::{OpResult, Value as Bytes};
use coppice_client::Token;
use coppice_client::command::{Command, Operation, Output, RangeCall, ReadMode};
use coppice_client::config::Config;
use coppice_client::error::{Error, Reason};
use coppice_client::session::{Request as Call, Session};
use coppice_client::tls::Tls;
use coppice_client::wire::{ClientId, Part, ScanOptions};
use driver::{Driver, DriverEvent};
use recording::Recording;
use tokio::runtime::Runtime;

use super::clock::{Clock, runtime};
use super::{Done, End, Nanos, Target};
use crate::record::Recorder;
use crate::workload::{Request, Update, Value};

/// Packs of one partition under way when every command goes alone: the server takes 1024 requests of a connection
/// (operations.md 3), and four partitions share one.
pub const WINDOW_UNPACKED: usize = 256;

/// How a worker talks to the cluster.
#[derive(Clone, Debug)]
pub struct Options {
    /// Any nodes of the cluster, `host:port`.
    pub endpoints: Vec<String>,
    /// Client instances of one worker, each with its own connections and sessions.
    pub connections: u32,
    /// Bytes packed into one frame; 0: one command per frame.
    pub pack_bytes: u64,
    /// When silence counts as unknown.
    pub timeout: Duration,
    /// Who serves reads.
    pub reads: ReadMode,
    /// Whether ranges across partitions are collected before a ticket is asked for.
    pub optimistic_scans: bool,
    /// Shows whom the load is on behalf of.
    pub token: Option<Token>,
    /// The most requests under way: slots are below it.
    pub slots: u32,
    /// Certificates; none: in the clear.
    pub tls: Option<Tls>,
}

impl Options {
    pub(crate) fn config(&self) -> Config {
        let defaults = Config::default();
        let packed = self.pack_bytes > 0;
        Config {
            timeout: self.timeout,
            fail_when_refused: true,
            pack_bytes: self.pack_bytes.max(1) as usize,
            window: if packed { defaults.window } else { WINDOW_UNPACKED },
            read_window: if packed { defaults.read_window } else { WINDOW_UNPACKED },
            // The loop bounds what is under way; the session must not refuse it.
            calls_max: self.slots as usize + 1,
            bytes_max: usize::MAX,
            reads: self.reads,
            optimistic_scans: self.optimistic_scans,
            token: self.token.clone(),
            tls: self.tls.clone(),
            ..defaults
        }
    }

    /// A session of its own; `seed` draws its identity.
    pub fn session(&self, seed: u64) -> Session {
        let client = ClientId(crate::random::Rng::new(seed, 0x636c_6965_6e74).next());
        Session::new(self.config(), client, seed, self.endpoints.clone())
    }
}

/// The target of one worker.
#[derive(Debug)]
pub struct Native {
    clock: Clock,
    drivers: Vec<Driver>,
    reads: ReadMode,
    timeout: Nanos,
    told: Vec<DriverEvent>,
    /// Ends of calls that were refused at submission.
    refused: Vec<u32>,
    recording: Option<Recording>,
    scratch: Vec<u8>,
    first_error: Option<String>,
    runtime: Runtime,
}

impl Native {
    /// Makes sessions; they connect when they are first used. Times count from `epoch`.
    pub fn new(options: &Options, epoch: Instant, recorder: Option<Recorder>) -> Result<Native, String> {
        let runtime = runtime().map_err(|e| e.to_string())?;
        let guard = runtime.enter();
        let clock = Clock::new(epoch).map_err(|e| e.to_string())?;
        drop(guard);
        let session = |_| Driver::new(options.session(unique_seed()), options.tls.clone());
        Ok(Native {
            clock,
            drivers: (0..options.connections.max(1)).map(session).collect(),
            reads: options.reads,
            timeout: options.timeout.as_nanos() as Nanos,
            told: Vec::new(),
            refused: Vec::new(),
            recording: recorder
                .map(|recorder| Recording::new(recorder, options.slots, options.reads == ReadMode::Stale)),
            scratch: Vec::new(),
            first_error: None,
            runtime,
        })
    }

    fn call(&mut self, request: &Request) -> Call {
        let key = |key: u64| Bytes::from(key.to_be_bytes());
        let mut value = |value: &Value| {
            self.scratch.clear();
            value.write(&mut self.scratch);
            Bytes::from(self.scratch.as_slice())
        };
        let operation = match request {
            Request::Get(at) => return Call::Get { key: key(*at), mode: self.reads },
            Request::Put(at, v) | Request::ReadModifyWrite(at, v) => Operation::Put { key: key(*at), value: value(v) },
            Request::Insert(at, v) => Operation::Insert { key: key(*at), value: value(v) },
            Request::Delete(at) => Operation::Delete { key: key(*at) },
            Request::Many(updates) => {
                let operation = |update| match update {
                    Update::Insert(at, v) => Operation::Insert { key: key(at), value: value(&v) },
                    Update::Delete(at) => Operation::Delete { key: key(at) },
                };
                return Call::Command(Command::Many(updates.iter().map(operation).collect()));
            }
            Request::Range { low, high, limit } => {
                return Call::Range(RangeCall {
                    low: key(*low),
                    high: high.map(key),
                    scan: ScanOptions { pairs_max: u64::from(*limit), ..ScanOptions::default() },
                    mode: self.reads,
                    stretches: None,
                });
            }
        };
        Call::Command(Command::One(operation))
    }

    /// Turns what the session told into ends.
    fn hear(&mut self, at: Nanos, done: &mut Vec<Done>) {
        for told in self.told.drain(..) {
            match told {
                DriverEvent::Part(slot, part, as_of) => {
                    // The session has checked it.
                    if let Some(recording) = &mut self.recording
                        && let Ok(part) = Part::decode(&part)
                    {
                        recording.part(slot as u32, &part, as_of);
                    }
                }
                DriverEvent::Ended(slot, result) => {
                    let slot = slot as u32;
                    if let Some(recording) = &mut self.recording {
                        recording.ended(slot, at, &result);
                    }
                    let (end, found) = match result {
                        Ok(answer) => (End::Ok, found(&answer.output)),
                        Err(error) => {
                            let end = end_of(&error);
                            self.first_error.get_or_insert_with(|| error.to_string());
                            (end, 0)
                        }
                    };
                    done.push(Done { slot, end, at, found });
                }
            }
        }
    }
}

/// Sessions of two runs must never share an identity: their numbers would be taken for repetitions.
pub(crate) fn unique_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // The standard library keys its hashers from the system's random source.
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

fn found(output: &Output) -> u32 {
    match output {
        Output::One(OpResult::Get { value }) => u32::from(value.is_some()),
        Output::Loaded(pairs) => u32::try_from(*pairs).unwrap_or(u32::MAX),
        _ => 0,
    }
}

fn end_of(error: &Error) -> End {
    match error.reason() {
        Some(Reason::Busy(_)) => End::Busy,
        Some(_) => End::Failed,
        None => End::Unknown,
    }
}

impl Target for Native {
    fn now(&self) -> Nanos {
        self.clock.now()
    }

    fn submit(&mut self, slot: u32, request: &Request) {
        let call = self.call(request);
        let now = self.clock.now();
        let index = slot as usize % self.drivers.len();
        let driver = &mut self.drivers[index];
        let submitted = driver.submit(u64::from(slot), now + self.timeout, call);
        match submitted {
            Ok(call) => {
                if let Some(recording) = &mut self.recording {
                    recording.begun(slot, index, call, now, request);
                }
            }
            Err(error) => {
                self.first_error.get_or_insert_with(|| error.to_string());
                self.refused.push(slot);
            }
        }
    }

    fn poll(&mut self, until: Nanos, done: &mut Vec<Done>) {
        let at = self.clock.now();
        let before = done.len();
        done.extend(self.refused.drain(..).map(|slot| Done { slot, end: End::Failed, at, found: 0 }));
        let Native { clock, drivers, told, recording, runtime, .. } = self;
        let none = done.len() == before;
        let at = runtime.block_on(poll_fn(|cx| {
            loop {
                let now = clock.now();
                for (index, driver) in drivers.iter_mut().enumerate() {
                    driver.turn(cx, clock, told);
                    if let Some(recording) = recording {
                        recording.numbered(index, driver.session());
                    }
                }
                if !told.is_empty() || !none {
                    return Poll::Ready(now);
                }
                let wake = drivers.iter().map(Driver::deadline).min().unwrap_or(Nanos::MAX);
                match clock.poll_until(cx, wake.min(until)) {
                    Poll::Ready(()) if clock.now() < until => {}
                    Poll::Ready(()) => return Poll::Ready(now),
                    Poll::Pending => return Poll::Pending,
                }
            }
        }));
        self.hear(at, done);
    }

    fn first_error(&mut self) -> Option<String> {
        self.first_error.take()
    }
}
