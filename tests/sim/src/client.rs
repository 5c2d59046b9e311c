//! A client: its session, what it still waits for, and the operations that it draws.

use std::collections::BTreeMap;

use bytes::Bytes;
use coppice_btree::{Condition, Edit, Expiry, ExpiryCondition, Returns, Update, Value};
use coppice_check::event::{Call, Text, Ticket};
use coppice_client::command::{Command, Operation, ReadMode};
use coppice_client::config::Config;
use coppice_client::session::{CallKey, Effect, Request, Session};
use coppice_client::wire::{ClientId, PairsSum, Position, ScanOptions, Stretch};
use coppice_testkit::random::Random;

use super::content::beyond;
use super::plan::{Nanos, Plan, Purpose, random};
use super::positions::Positions;

/// The key of a number; in the order of the numbers.
pub fn key(number: u32) -> Bytes {
    Bytes::from(format!("k{number:05}"))
}

/// A call that waits.
pub struct Waiting {
    /// Its index in the account.
    pub index: usize,
    pub key: CallKey,
    /// To be repeated, if its outcome is unknown.
    pub command: Option<Command>,
    /// Of a look that is a read: at which key, which no history holds.
    pub look: Option<Value>,
    /// Pairs of a range, in the order in which they came.
    pub pairs: Vec<(Text<'static>, Text<'static>)>,
    /// Pairs that came and that no history holds.
    pub beyond: u64,
    /// All pairs that came, for the client to hold.
    pub read: Vec<(Vec<u8>, Vec<u8>)>,
    /// Of a range that is compared with what the client holds: the pairs of each stretch, and how many were the same.
    pub stretches: Vec<Vec<(Vec<u8>, Vec<u8>)>>,
    pub same: u64,
    /// Where its parts were read, in the order in which they came.
    pub positions: Vec<Position>,
    /// Of a query over several partitions.
    pub ticket: Option<Ticket>,
    /// Pairs that were asked for at most; 0: all. Each part of a query gives so many: the reader stops there.
    pub limit: usize,
    /// It was sent again after an unknown end: a failure says nothing about the first sending.
    pub resumed: bool,
    /// Of a read that is not stale: what had been answered when it was asked.
    pub floor: Option<Positions>,
}

pub struct Client {
    pub session: Session,
    pub number: usize,
    pub random: Random,
    /// Decides which ranges are compared: calls are drawn as they are without.
    pub comparing: Random,
    /// What it read last of a range.
    pub held: Vec<(Vec<u8>, Vec<u8>)>,
    pub waiting: BTreeMap<u64, Waiting>,
    /// Operations that it will still submit.
    pub left: u32,
    pub in_flight: usize,
    pub values: u64,
    pub tokens: u64,
    pub effects: Vec<Effect>,
    pub tick_at: Option<Nanos>,
    pub thinking: bool,
    /// It reaches no node until then.
    pub absent_until: Nanos,
}

impl Client {
    /// A client of the plan.
    pub fn new(plan: &Plan, number: usize) -> Client {
        let mut random = random(plan.seed, Purpose::Client, number as u64);
        let config = Config {
            pack_bytes: 64 << random.below(8),
            window: 1 + random.below(5),
            read_window: 1 + random.below(5),
            range_credit: 64 << random.below(10),
            optimistic_scans: plan.workload.collectors >> (number % 32) & 1 == 1,
            ..Config::default()
        };
        let endpoints = (0..plan.nodes).map(|node| format!("n{node}:7400")).collect();
        let session = Session::new(config, ClientId(number as u64 + 1), random.next(), endpoints);
        Client {
            session,
            number,
            random,
            comparing: self::random(plan.seed, Purpose::Client, 1_000 + number as u64),
            held: Vec::new(),
            waiting: BTreeMap::new(),
            left: plan.workload.operations / plan.workload.clients,
            in_flight: plan.workload.in_flight,
            values: 0,
            tokens: 0,
            effects: Vec::new(),
            tick_at: None,
            thinking: false,
            absent_until: 0,
        }
    }

    /// Whether it submits nothing more.
    pub fn is_done(&self) -> bool {
        self.left == 0
    }

    /// It reaches all nodes again.
    pub fn comes_back(&mut self) {
        self.absent_until = 0;
    }

    /// A range that may be compared with what the client holds: the pairs of its stretches.
    pub fn compare(&mut self, request: &mut Request) -> Vec<Vec<(Vec<u8>, Vec<u8>)>> {
        let Request::Range(range) = request else { return Vec::new() };
        let whole = range.scan == ScanOptions::default() && range.mode != ReadMode::Stale;
        if !whole || self.comparing.below(3) > 0 {
            return Vec::new();
        }
        let inside = |key: &[u8]| key >= &range.low[..] && range.high.as_ref().is_none_or(|high| key < &high[..]);
        let mut held: Vec<_> = self.held.iter().filter(|(key, _)| inside(key)).cloned().collect();
        let (mut all, mut stretches): (Vec<Vec<_>>, Vec<Stretch>) = (Vec::new(), Vec::new());
        while !held.is_empty() {
            let rest = held.split_off(held.len().min(1 + self.comparing.below(4)));
            let sum = PairsSum::of(held.iter().map(|(key, value)| (&key[..], &value[..])));
            let high = rest.first().map_or(range.high.clone(), |(key, _)| Some(key[..].into()));
            stretches.push(Stretch { low: held[0].0[..].into(), high, sum });
            all.push(std::mem::replace(&mut held, rest));
        }
        range.stretches = Some(stretches.into());
        all
    }

    fn value(&mut self) -> String {
        self.values += 1;
        format!("{}.{}", self.number, self.values)
    }

    pub fn key(&mut self, plan: &Plan, now: Nanos) -> u32 {
        // Half of the time a few hot keys, so that operations meet.
        let all = plan.workload.keys;
        let keys = if self.random.below(2) == 0 { all.min(8) } else { all };
        let spread = all / keys.max(1);
        let drawn = self.random.below(keys as usize) as u32;
        match now.checked_div(plan.balance.hot_for) {
            // Neighbours, in another part of all keys each time.
            Some(spot) if keys < all => (spot as u32 * (all / 3).max(1) + drawn) % all,
            _ => drawn * spread.max(1),
        }
    }

    /// A command whose effect depends on what is there, on keys beside `key`: the nearest of them share a partition
    /// with it where no boundary lies between.
    pub fn update(&mut self, key: &Bytes, others: &[Bytes]) -> Command {
        let names: Vec<Value> = others.iter().chain([key]).map(|key| Value::from(&beyond(key)[..])).collect();
        match self.random.below(10) {
            0..7 => Command::One(self.update_of(&names)),
            7 => Command::Many((0..1 + self.random.below(4)).map(|_| self.update_of(&names)).collect()),
            _ => {
                let guards: Vec<Operation> = (0..1 + self.random.below(2)).map(|_| self.guard(&names)).collect();
                let operations: Vec<Operation> = (0..self.random.below(4)).map(|_| self.update_of(&names)).collect();
                Command::guarded(guards, operations)
            }
        }
    }

    fn guard(&mut self, names: &[Value]) -> Operation {
        let name = names[self.random.below(names.len())].clone();
        let number = self.random.below(4).to_string();
        let condition = match self.random.below(4) {
            0 => Condition::Absent,
            1 | 2 => Condition::Present,
            _ => Condition::Equals(number.as_bytes()),
        };
        Operation::check(name, condition)
    }

    fn update_of(&mut self, names: &[Value]) -> Operation {
        let name = names[self.random.below(names.len())].clone();
        let value = self.value();
        let number = self.random.below(4).to_string();
        let edit = match self.random.below(16) {
            0..5 => Edit::Add(self.random.below(5) as i64 - 1),
            5 => Edit::AddFloat(b"0.25"),
            6 | 7 => Edit::Append(value.as_bytes()),
            8 => Edit::SetRange { offset: self.random.below(8) as u32, bytes: b"range" },
            9 => Edit::Set(number.as_bytes()),
            10 => Edit::Remove,
            11 => Edit::Keep,
            12 => return Operation::look(name),
            13 => return Operation::put(name, number.as_str()),
            14 => return Operation::get(name),
            _ => {
                let to = names[self.random.below(names.len())].clone();
                return Operation::Move { key: name, to, absent: self.random.below(2) == 0 };
            }
        };
        let condition = match self.random.below(8) {
            0 => Condition::Absent,
            1 => Condition::Present,
            2 => Condition::Equals(number.as_bytes()),
            _ => Condition::Always,
        };
        let expiry = match self.random.below(8) {
            0 => Expiry::Clear,
            1..4 => {
                let only = [
                    ExpiryCondition::Always,
                    ExpiryCondition::Always,
                    ExpiryCondition::None,
                    ExpiryCondition::Some,
                    ExpiryCondition::Later,
                    ExpiryCondition::Earlier,
                ][self.random.below(6)];
                // From less than a round trip to much of a run.
                let most = [10, 300, 3_000, 30_000][self.random.below(4)];
                Expiry::After { milliseconds: self.random.below(most) as u64, only }
            }
            _ => Expiry::Keep,
        };
        let returns = [Returns::Nothing, Returns::Previous, Returns::New][self.random.below(3)];
        Operation::update(name, Update::new(edit).when(condition).expiring(expiry).returning(returns))
    }

    /// One operation on a key, as a command and as the history writes it.
    pub fn operation(&mut self, key: &Bytes) -> (Operation, Call<'static>) {
        let value = self.value();
        let (name, told) = (|| Value::from(&key[..]), text(key));
        match self.random.below(8) {
            0..4 => {
                let call = Call::Put { key: told, value: text(value.as_bytes()) };
                (Operation::put(name(), value.as_str()), call)
            }
            4 | 5 => {
                let call = Call::Insert { key: told, value: text(value.as_bytes()) };
                (Operation::insert(name(), value.as_str()), call)
            }
            6 => (Operation::delete(name()), Call::Delete { key: told }),
            _ => {
                let (who, count) = (self.random.below(self.number + 2), self.random.below(self.values as usize + 1));
                let old = format!("{who}.{count}");
                let call = Call::Cas { key: told, old: text(old.as_bytes()), value: text(value.as_bytes()) };
                (Operation::cas(name(), old.as_str(), value.as_str()), call)
            }
        }
    }
}

pub fn text(bytes: &[u8]) -> Text<'static> {
    Text::Owned(bytes.to_vec())
}

pub fn ticket(told: coppice_client::wire::Ticket) -> Ticket {
    Ticket { round: told.round, replica: told.replica.0, number: told.n }
}
