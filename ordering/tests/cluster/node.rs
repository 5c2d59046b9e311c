//! One replica with its disk, its clock and a model of its executor. Carries out effects; messages and questions are
//! left for whoever drives the cluster.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use coppice_ordering::{
    Ballot, Batch, Config, Configuration, Effect, Input, Instance, Lsn, Message, Paxos, ReadToken, Record,
    RecoveredGroup, ReplicaId, Settings, Ticket, Time,
};

use super::truth::Truth;

/// The clock of a node: its own start and its own rate.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    pub offset: u64,
    pub rate_percent: u64,
}

impl Clock {
    pub const EXACT: Clock = Clock { offset: 0, rate_percent: 100 };

    pub fn read(self, now: u64) -> Time {
        Time(self.offset + now / 100 * self.rate_percent + now % 100 * self.rate_percent / 100)
    }

    /// The first true moment at which the clock shows `time` or more.
    pub fn when(self, time: Time) -> u64 {
        let local = time.0.saturating_sub(self.offset);
        (u128::from(local) * 100).div_ceil(u128::from(self.rate_percent)).min(u128::from(u64::MAX)) as u64 + 100
    }
}

#[derive(Clone, Debug)]
pub struct Snapshot {
    pub instance: Instance,
    pub configuration: Configuration,
    pub configured_at: Instance,
    pub promised: Ballot,
}

/// A read under way: what it must not miss, and what it saw.
#[derive(Clone, Debug)]
pub struct Read {
    pub token: ReadToken,
    pub floor: Instance,
    pub position: Instance,
}

#[derive(Default)]
pub struct Disk {
    pub records: BTreeMap<Lsn, Record>,
    pub written: VecDeque<(Lsn, Record)>,
    pub snapshot: Option<Snapshot>,
    /// The highest ballot on disk.
    promised: Ballot,
    /// Everything that a record said was decided, or a snapshot covers.
    decided_upto: Instance,
}

pub struct Node {
    pub id: ReplicaId,
    pub paxos: Option<Paxos>,
    pub clock: Clock,
    pub disk: Disk,
    pub incarnation: u64,
    /// Dismissed: gone for good.
    pub gone: bool,
    first: Configuration,
    settings: Settings,
    seed: u64,
    accepted: BTreeMap<Instance, (Ballot, Batch)>,
    pub decided_upto: Instance,
    pub executed_upto: Instance,
    /// Does not execute on its own: the driver says when.
    pub slow_executor: bool,
    /// Its log has no room: nothing that is written becomes durable.
    pub stuck: bool,
    trimmed_upto: Instance,
    pub released: Option<Ticket>,
    pub queue: VecDeque<Bytes>,
    next_token: u64,
    pub reads: VecDeque<Read>,
    pub asks: VecDeque<Read>,
    pub reads_answered: u64,
    pub asks_answered: u64,
    pub need_snapshot: Option<(ReplicaId, Instance)>,
    /// What it sent and nobody carried yet.
    pub sent: Vec<(ReplicaId, Message)>,
    /// Effects of the last inputs, for scripts.
    pub log: Vec<String>,
    pub logging: bool,
}

impl Node {
    pub fn new(id: ReplicaId, first: Configuration, settings: Settings, seed: u64) -> Node {
        Node {
            id,
            paxos: None,
            clock: Clock::EXACT,
            disk: Disk::default(),
            incarnation: 0,
            gone: false,
            first,
            settings,
            seed,
            accepted: BTreeMap::new(),
            decided_upto: Instance::ZERO,
            executed_upto: Instance::ZERO,
            slow_executor: false,
            stuck: false,
            trimmed_upto: Instance::ZERO,
            released: None,
            queue: VecDeque::new(),
            next_token: 0,
            reads: VecDeque::new(),
            asks: VecDeque::new(),
            reads_answered: 0,
            asks_answered: 0,
            need_snapshot: None,
            sent: Vec::new(),
            log: Vec::new(),
            logging: false,
        }
    }

    pub fn is_up(&self) -> bool {
        self.paxos.is_some()
    }

    pub fn is_leader(&self) -> bool {
        self.paxos.as_ref().is_some_and(Paxos::is_leader)
    }

    pub fn set_settings(&mut self, settings: Settings) {
        if let Some(paxos) = self.paxos.as_mut() {
            paxos.set_settings(settings.clone());
        }
        self.settings = settings;
    }

    /// The true moment at which it wants a tick.
    pub fn deadline(&self) -> Option<u64> {
        self.paxos.as_ref()?.deadline().map(|time| self.clock.when(time))
    }

    /// Starts the process on what the disk holds.
    pub fn start(&mut self, now: u64, truth: &mut Truth) {
        assert!(self.paxos.is_none() && !self.gone);
        self.incarnation += 1;
        self.next_token = 0;
        let mut recovered = match &self.disk.snapshot {
            Some(s) => RecoveredGroup::from_snapshot(s.instance, s.configuration.clone(), s.configured_at, s.promised),
            None => RecoveredGroup::new(),
        };
        for (lsn, record) in &self.disk.records {
            recovered.apply(*lsn, record.clone());
        }
        let start = self.disk.snapshot.as_ref().map_or(Instance::ZERO, |snapshot| snapshot.instance);
        self.accepted.clear();
        (self.decided_upto, self.executed_upto, self.trimmed_upto) = (start, start, start);
        self.released = None;
        let config = Config {
            incarnation: self.incarnation,
            settings: self.settings.clone(),
            ..Config::new(self.id, self.first.clone(), self.seed ^ self.incarnation << 32)
        };
        let mut effects = Vec::new();
        self.paxos = Some(Paxos::recover(config, recovered, self.clock.read(now), &mut effects));
        self.carry_out(effects, truth);
        self.execute(now, truth);
    }

    /// Kills the process: of what was written and not flushed the first `kept` records survive.
    pub fn crash(&mut self, kept: usize, truth: &mut Truth) {
        self.paxos = None;
        let kept = kept.min(self.disk.written.len());
        self.flush_records(kept, truth);
        self.disk.written.clear();
        self.queue.clear();
        self.reads.clear();
        self.asks.clear();
        self.sent.clear();
        self.need_snapshot = None;
    }

    pub fn step(&mut self, now: u64, input: Input, truth: &mut Truth) {
        let Some(paxos) = self.paxos.as_mut() else { return };
        let mut effects = Vec::new();
        paxos.step(self.clock.read(now), input, &mut effects);
        self.carry_out(effects, truth);
        self.execute(now, truth);
    }

    pub fn submit(&mut self, now: u64, bytes: Bytes, truth: &mut Truth) -> bool {
        let Some(paxos) = self.paxos.as_mut() else { return false };
        let mut effects = Vec::new();
        self.queue.push_back(bytes.clone());
        let submitted = paxos.submit(self.clock.read(now), bytes, 1, &mut effects);
        if submitted.is_err() {
            truth.refused.extend(self.queue.pop_back().map(word));
        }
        self.carry_out(effects, truth);
        self.execute(now, truth);
        submitted.is_ok()
    }

    pub fn set_released(&mut self, now: u64, watermark: Ticket, truth: &mut Truth) {
        let Some(paxos) = self.paxos.as_mut() else { return };
        let mut effects = Vec::new();
        paxos.set_released(self.clock.read(now), watermark, &mut effects);
        self.carry_out(effects, truth);
    }

    fn token(&mut self) -> ReadToken {
        self.next_token += 1;
        ReadToken(self.next_token)
    }

    /// A read arrives: it is executed as last executed, and waits for its confirmation.
    pub fn read(&mut self, now: u64, truth: &mut Truth) {
        let Some(paxos) = self.paxos.as_ref() else { return };
        let position = paxos.accepted_upto();
        let token = self.token();
        self.reads.push_back(Read { token, floor: truth.decided_upto, position });
        self.step(now, Input::Confirm(token), truth);
    }

    /// A read arrives that is to be answered from decided state.
    pub fn ask(&mut self, now: u64, truth: &mut Truth) {
        if self.paxos.is_some() {
            let token = self.token();
            self.asks.push_back(Read { token, floor: truth.decided_upto, position: Instance::ZERO });
            self.step(now, Input::AskPosition(token), truth);
        }
    }

    /// Flushes the first `count` written records.
    pub fn flush(&mut self, count: usize, now: u64, truth: &mut Truth) {
        if let Some(lsn) = self.flush_records(count, truth) {
            self.step(now, Input::Persisted(lsn), truth);
        }
    }

    fn flush_records(&mut self, count: usize, truth: &mut Truth) -> Option<Lsn> {
        let mut last = None;
        for _ in 0..if self.stuck { 0 } else { count } {
            let Some((lsn, record)) = self.disk.written.pop_front() else { break };
            match &record {
                Record::Promise { ballot } => self.disk.promised = self.disk.promised.max(*ballot),
                Record::Accept { instance, ballot, decided_upto, .. } => {
                    assert!(*ballot >= self.disk.promised, "I2: {} votes below its promise", self.id);
                    self.disk.promised = *ballot;
                    self.disk.decided_upto = self.disk.decided_upto.max(*decided_upto);
                    truth.voted(*instance, *ballot, self.id);
                }
                Record::Learned { instance: upto, .. } | Record::Decided { upto } => {
                    self.disk.decided_upto = self.disk.decided_upto.max(*upto);
                }
                Record::Lease { .. } => {}
            }
            self.disk.records.insert(lsn, record);
            last = Some(lsn);
        }
        truth.held.insert(self.id, self.disk.decided_upto);
        last
    }

    /// Executes all that is decided, unless the executor is slow.
    fn execute(&mut self, now: u64, truth: &mut Truth) {
        if !self.slow_executor && self.executed_upto < self.decided_upto && self.paxos.is_some() {
            self.executed_upto = self.decided_upto;
            self.step(now, Input::Executed(self.decided_upto), truth);
        }
    }

    /// Takes a snapshot of the executed state, makes it durable and trims the log behind it.
    pub fn checkpoint(&mut self, now: u64, keep: u64, truth: &mut Truth) {
        let instance = self.executed_upto;
        if self.paxos.is_none() || self.disk.snapshot.as_ref().is_some_and(|s| s.instance >= instance) {
            return;
        }
        self.disk.snapshot = Some(self.take_snapshot(truth));
        self.step(now, Input::Trim(Instance(instance.0.saturating_sub(keep))), truth);
    }

    pub fn take_snapshot(&self, truth: &Truth) -> Snapshot {
        let instance = self.executed_upto;
        let (configuration, configured_at) = truth.governing(instance.next());
        let promised = self.paxos.as_ref().map_or(Ballot::ZERO, Paxos::promised);
        Snapshot { instance, configuration: configuration.clone(), configured_at, promised }
    }

    /// A snapshot of a peer is in place.
    pub fn install(&mut self, snapshot: Snapshot, now: u64, truth: &mut Truth) {
        self.need_snapshot = None;
        if self.paxos.is_none() || snapshot.instance <= self.executed_upto {
            return;
        }
        let Snapshot { instance, configuration, configured_at, promised } = snapshot.clone();
        self.disk.snapshot = Some(snapshot);
        self.disk.decided_upto = self.disk.decided_upto.max(instance);
        truth.held.insert(self.id, self.disk.decided_upto);
        self.accepted = self.accepted.split_off(&instance.next());
        (self.decided_upto, self.executed_upto) = (self.decided_upto.max(instance), instance);
        self.step(now, Input::Installed { instance, configuration, configured_at, promised }, truth);
    }

    fn carry_out(&mut self, effects: Vec<Effect>, truth: &mut Truth) {
        for effect in effects {
            if self.logging {
                self.log.push(effect.to_string());
            }
            self.carry_out_one(effect, truth);
        }
        self.check(truth);
    }

    fn carry_out_one(&mut self, effect: Effect, truth: &mut Truth) {
        match effect {
            Effect::Persist { lsn, record } => self.disk.written.push_back((lsn, record)),
            Effect::Send { to, message } => {
                assert_ne!(to, self.id);
                self.check_sent(&message, truth);
                self.sent.push((to, message));
            }
            Effect::Accepted { instance, ballot, batch } => {
                assert!(instance > self.decided_upto, "{}: {instance} is decided, and accepted again", self.id);
                truth.accepted(instance, ballot, &batch);
                self.accepted.insert(instance, (ballot, batch));
            }
            Effect::Decided { upto } => {
                assert!(upto > self.decided_upto, "I3: {} decides {upto} again", self.id);
                while self.decided_upto < upto {
                    self.decided_upto = self.decided_upto.next();
                    let (_, batch) = self.accepted.get(&self.decided_upto).expect("accepted before decided");
                    truth.decided(self.decided_upto, batch, self.id);
                }
            }
            Effect::Proposed { instance, submissions } => {
                let parts: Vec<Bytes> = self.queue.drain(..submissions as usize).collect();
                let (_, batch) = &self.accepted[&instance];
                let Batch::Commands(commands) = batch else { panic!("{batch} holds submissions") };
                assert_eq!(commands.to_bytes(), parts.concat(), "papers.md A5: the order of submission");
            }
            Effect::Refused { submissions } => {
                assert_eq!(submissions as usize, self.queue.len());
                truth.refused.extend(self.queue.drain(..).map(word));
            }
            Effect::Confirmed { upto } => {
                while let Some(read) = self.reads.pop_front_if(|read| read.token <= upto) {
                    let Read { token, floor, position } = read;
                    assert!(position >= floor, "{}: read {token:?} at {position} misses {floor}", self.id);
                    self.reads_answered += 1;
                }
            }
            Effect::Unconfirmed { upto } => while self.reads.pop_front_if(|read| read.token <= upto).is_some() {},
            Effect::Position { upto, instance } => {
                while let Some(Read { token, floor, .. }) = self.asks.pop_front_if(|read| read.token <= upto) {
                    assert!(instance >= floor, "{}: read {token:?} told {instance} misses {floor}", self.id);
                    assert!(instance <= truth.decided_upto, "{}: position {instance} is not decided", self.id);
                    self.asks_answered += 1;
                }
            }
            Effect::Leading { ballot, .. } => truth.used(ballot, self.id, self.incarnation),
            Effect::NeedSnapshot { from, instance } => self.need_snapshot = Some((from, instance)),
            Effect::Dismissed { instance } => {
                truth.dismissed(instance, self.id);
                self.gone = true;
            }
            Effect::Released { watermark } => {
                assert!(Some(watermark) > self.released, "I3: released goes back");
                self.released = Some(watermark);
            }
            Effect::Forget { below } => self.disk.records = self.disk.records.split_off(&below),
            Effect::ConfigurationDecided { .. }
            | Effect::Following { .. }
            | Effect::ChangeRefused(_)
            | Effect::LeaderTransferFailed { .. } => {}
        }
    }

    /// I2: a promise, round or vote on the wire is in the sender's durable state.
    fn check_sent(&self, message: &Message, truth: &mut Truth) {
        let disk = &self.disk;
        match message {
            Message::Phase1a(m) => {
                truth.used(m.ballot, self.id, self.incarnation);
                assert!(disk.promised >= m.ballot, "I2: {} uses {} before it is durable", self.id, m.ballot);
            }
            Message::Phase1b(m) => {
                assert!(disk.promised >= m.ballot, "I2: {} promises {} before it is durable", self.id, m.ballot);
            }
            Message::Phase2a(m) => truth.used(m.ballot, self.id, self.incarnation),
            Message::Heartbeat(m) => truth.used(m.ballot, self.id, self.incarnation),
            Message::Phase2b(m) => {
                let covered = disk.decided_upto.max(self.decided_upto);
                let low = m.first.0.max(covered.0 + 1);
                for instance in low..=m.instance.0 {
                    let voted = truth.has_voted(Instance(instance), m.ballot, self.id);
                    assert!(voted, "I2: {} votes for #{instance} in {}, which is not durable", self.id, m.ballot);
                }
            }
            _ => {}
        }
    }

    /// I3 and I6, as seen from outside.
    fn check(&mut self, truth: &Truth) {
        let Some(paxos) = self.paxos.as_ref() else { return };
        assert_eq!(paxos.counters().messages_refused, 0, "{} refuses what another replica says", self.id);
        assert_eq!(paxos.decided_upto(), self.decided_upto.max(paxos.decided_upto()), "I3: decided_upto");
        assert!(paxos.decided_upto() <= truth.decided_upto, "I3: {} is above the truth", self.id);
        assert!(paxos.trimmed_upto() >= self.trimmed_upto, "I3: trimmed_upto goes back");
        self.trimmed_upto = paxos.trimmed_upto();
        let settings = paxos.settings();
        let (instances, bytes) = paxos.in_flight();
        assert!(instances <= settings.window as usize, "I6: {instances} instances in flight");
        assert!(bytes <= settings.window_bytes_max || instances == 1, "I6: {bytes} bytes in flight");
        let (submissions, bytes) = paxos.queued();
        assert_eq!(submissions as usize, self.queue.len());
        assert!(submissions as usize <= settings.queue_submissions_max);
        assert!(bytes <= settings.queue_bytes_max || submissions == 1, "I6: {bytes} bytes queued");
    }
}

/// A submission without the blank that ends it.
fn word(bytes: Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes.trim_ascii())
}
