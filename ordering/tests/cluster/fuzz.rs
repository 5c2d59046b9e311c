//! Random schedules from a seed: loss, duplication, reordering, crashes that lose what was not flushed, cuts, slow
//! disks and executors, snapshots, membership changes, leader transfers, reads. The judge watches every step; then the
//! faults stop, and the group must serve again.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use coppice_ordering::{Ballot, Configuration, Input, Instance, Message, ReplicaId, Ticket};

use super::Cluster;
use super::node::Clock;
use super::plan::{MS, Plan, Random};

/// A seed takes a few thousand; more than this means that somebody wants a tick over and over.
const STEPS_MAX: u64 = 1_000_000;

fn kind(message: &Message) -> &'static str {
    match message {
        Message::PreVote(_) | Message::PreVoteReply(_) => "PreVote",
        Message::Phase1a(_) => "Phase1a",
        Message::Phase1b(_) => "Phase1b",
        Message::Phase2a(_) => "Phase2a",
        Message::Phase2b(_) => "Phase2b",
        Message::Heartbeat(_) => "Heartbeat",
        Message::HeartbeatAck(_) => "HeartbeatAck",
        Message::CatchUp(_) => "CatchUp",
        Message::CatchUpReply(_) => "CatchUpReply",
        Message::Preempted(_)
        | Message::ReadPosition(_)
        | Message::ReadPositionReply(_)
        | Message::TransferLeader(_) => "other",
    }
}

enum Event {
    Deliver { from: ReplicaId, to: ReplicaId, message: Message },
    Flush { id: ReplicaId, incarnation: u64, count: usize },
    Restart { id: ReplicaId },
    Heal { from: ReplicaId, to: ReplicaId },
    Execute { id: ReplicaId },
    Snapshot { from: ReplicaId, to: ReplicaId, incarnation: u64, at_least: Instance },
    Resume { id: ReplicaId },
    Act,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Deliver { from, to, message } => write!(f, "{from} -> {to}: {message}"),
            Event::Flush { id, count, .. } => write!(f, "flush {id} {count}"),
            Event::Restart { id } => write!(f, "restart {id}"),
            Event::Heal { from, to } => write!(f, "heal {from} -> {to}"),
            Event::Execute { id } => write!(f, "execute {id}"),
            Event::Snapshot { from, to, .. } => write!(f, "snapshot {from} -> {to}"),
            Event::Resume { id } => write!(f, "resume {id}"),
            Event::Act => write!(f, "act"),
        }
    }
}

pub struct Fuzz {
    pub cluster: Cluster,
    pub plan: Plan,
    random: Random,
    events: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    cut: BTreeSet<(ReplicaId, ReplicaId)>,
    flushing: BTreeSet<ReplicaId>,
    /// Stopped processes, and what waits for them.
    paused: BTreeMap<ReplicaId, Vec<Event>>,
    next_replica: u32,
    submitted: u64,
    faults: bool,
    pub load: bool,
    pub reading: bool,
    ticket: u64,
    pub steps: u64,
    /// Messages sent, by kind and addressee; counted on request.
    pub carried: Option<BTreeMap<(&'static str, ReplicaId), u64>>,
    tracing: bool,
}

impl Fuzz {
    pub fn new(seed: u64) -> Fuzz {
        let mut random = Random::new(seed);
        let plan = Plan::draw(&mut random);
        Fuzz::with_plan(plan, random)
    }

    pub fn with_plan(plan: Plan, mut random: Random) -> Fuzz {
        let first = Configuration::of_voters((0..plan.voters).map(ReplicaId));
        let cluster = Cluster::new(first, &plan.settings, random.next());
        let next_replica = plan.voters;
        let mut fuzz = Fuzz {
            cluster,
            plan,
            random,
            events: BTreeMap::new(),
            sequence: 0,
            cut: BTreeSet::new(),
            flushing: BTreeSet::new(),
            paused: BTreeMap::new(),
            next_replica,
            submitted: 0,
            faults: true,
            load: true,
            reading: true,
            ticket: 0,
            steps: 0,
            carried: None,
            tracing: std::env::var("FUZZ_TRACE").is_ok(),
        };
        for id in 0..fuzz.plan.voters {
            fuzz.set_clock(ReplicaId(id));
            fuzz.cluster.start(ReplicaId(id));
        }
        fuzz.schedule(0, Event::Act);
        fuzz
    }

    fn set_clock(&mut self, id: ReplicaId) {
        let rate_percent = if self.plan.rates { 91 + self.random.below(19) } else { 100 };
        let offset = self.random.below(1_000 * MS);
        self.cluster.node(id).clock = Clock { offset, rate_percent };
    }

    fn schedule(&mut self, after: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((self.cluster.now + after, self.sequence), event);
    }

    /// The whole seed: faults, then none, then no load either.
    pub fn run(&mut self) {
        self.run_until(self.plan.duration);
        self.heal();
        let target = self.cluster.truth.decided_upto.0 + 3;
        assert!(
            self.reaches(100, |fuzz| fuzz.cluster.truth.decided_upto.0 >= target),
            "no progress: {}",
            self.summary()
        );
        self.load = false;
        assert!(self.reaches(300, Fuzz::converged), "the replicas do not converge: {}", self.summary());
    }

    /// Whether it comes true within so many election timeouts.
    fn reaches(&mut self, timeouts: u64, goal: impl Fn(&Fuzz) -> bool) -> bool {
        let election = self.plan.settings.election_timeout.as_nanos() as u64;
        let patience = self.cluster.now + timeouts * election;
        while !goal(self) {
            if self.cluster.now >= patience {
                return false;
            }
            self.run_until(self.cluster.now + election / 4);
        }
        true
    }

    fn converged(&self) -> bool {
        let upto = self.cluster.truth.decided_upto;
        let (configuration, _) = self.cluster.truth.governing(upto.next());
        let current = |id: ReplicaId| {
            let node = &self.cluster.nodes[&id];
            node.decided_upto == upto && node.executed_upto == upto && node.asks.is_empty() && node.reads.is_empty()
        };
        configuration.members().all(current)
    }

    pub fn summary(&self) -> String {
        let mut lines = format!("at {} ms, decided {}\n", self.cluster.now / MS, self.cluster.truth.decided_upto);
        let (configuration, at) = self.cluster.truth.governing(self.cluster.truth.decided_upto.next());
        lines += &format!("  {configuration} since {at}\n");
        for node in self.cluster.nodes.values().filter(|node| !node.gone) {
            let Some(paxos) = &node.paxos else {
                lines += &format!("  {} is down\n", node.id);
                continue;
            };
            let leader = paxos.leader().map_or("nobody".to_owned(), |leader| leader.to_string());
            let (decided, trimmed) = (node.decided_upto, paxos.trimmed_upto());
            lines += &format!("  {} {} leader {leader} decided {decided} trimmed {trimmed}", node.id, paxos.ballot());
            lines += &format!(" asks {} configured {}\n", node.asks.len(), paxos.configuration().1);
        }
        lines
    }

    /// Faults stop. What is lost for good stays lost.
    fn heal(&mut self) {
        self.faults = false;
        self.cut.clear();
        for id in self.paused.keys().copied().collect::<Vec<_>>() {
            self.resume(id);
        }
        let down: Vec<ReplicaId> =
            self.cluster.nodes.values().filter(|n| !n.is_up() && !n.gone).map(|n| n.id).collect();
        for id in down {
            self.cluster.start(id);
        }
        for node in self.cluster.nodes.values_mut() {
            node.slow_executor = false;
        }
    }

    pub fn run_until(&mut self, end: u64) {
        while self.cluster.now < end {
            self.collect();
            let awake = self.cluster.nodes.values().filter(|node| !self.paused.contains_key(&node.id));
            let due = awake.filter_map(|n| Some((n.deadline()?, n.id))).min();
            let event = self.events.keys().next().copied();
            let next = [due.map(|(at, _)| at), event.map(|(at, _)| at)].into_iter().flatten().min();
            let next = next.unwrap_or(end).max(self.cluster.now);
            if next >= end {
                self.cluster.now = end;
                return;
            }
            self.steps += 1;
            assert!(self.steps < STEPS_MAX, "time stands still: {}", self.summary());
            self.cluster.now = next;
            match event.filter(|(at, _)| *at <= next).and_then(|key| self.events.remove(&key)) {
                Some(event) => {
                    let what = if self.tracing { event.to_string() } else { String::new() };
                    self.happen(event);
                    self.trace(|| what);
                }
                None => {
                    // A little late, as timers are.
                    self.cluster.now += self.random.below(50_000);
                    let (_, id) = due.expect("an event or a deadline");
                    self.cluster.step(id, Input::Tick);
                    self.trace(|| format!("tick {id}"));
                }
            }
        }
    }

    /// Puts what the replicas sent and wrote on its way.
    fn collect(&mut self) {
        let mut sent = Vec::new();
        for node in self.cluster.nodes.values_mut() {
            sent.extend(node.sent.drain(..).map(|(to, message)| (node.id, to, message)));
        }
        for (from, to, message) in sent {
            self.carry(from, to, message);
        }
        let ids: Vec<ReplicaId> = self.cluster.nodes.keys().copied().collect();
        for id in ids {
            let node = self.cluster.node(id);
            let (incarnation, written) = (node.incarnation, node.disk.written.len());
            let need = node.need_snapshot.take();
            if written > 0 && node.is_up() && self.flushing.insert(id) {
                let after = 20_000 + self.random.below(self.plan.flush_max);
                let count = 1 + self.random.below(written as u64) as usize;
                self.schedule(after, Event::Flush { id, incarnation, count });
            }
            if let Some((from, at_least)) = need {
                let after = self.random.below(5 * MS);
                self.schedule(after, Event::Snapshot { from, to: id, incarnation, at_least });
            }
        }
    }

    fn carry(&mut self, from: ReplicaId, to: ReplicaId, message: Message) {
        if let Some(carried) = self.carried.as_mut() {
            *carried.entry((kind(&message), to)).or_default() += 1;
        }
        if self.cut.contains(&(from, to)) || self.faults && self.random.percent(self.plan.loss) {
            return;
        }
        let copies = 1 + u64::from(self.faults && self.random.percent(self.plan.duplication));
        for _ in 0..copies {
            let mut after = self.plan.delay_min + self.random.below(self.plan.delay_max - self.plan.delay_min);
            if self.faults && self.random.percent(self.plan.late) {
                after += self.random.below(100 * MS);
            }
            self.schedule(after, Event::Deliver { from, to, message: message.clone() });
        }
    }

    /// Prints what happened, when asked for with `FUZZ_TRACE`.
    fn trace(&mut self, what: impl FnOnce() -> String) {
        if !self.tracing {
            return;
        }
        println!("{:>9.3} {}", self.cluster.now as f64 / MS as f64, what());
        for node in self.cluster.nodes.values_mut() {
            for line in node.log.drain(..) {
                println!("              {}: {line}", node.id);
            }
            node.logging = true;
        }
    }

    /// The process goes on: what it finds first is a read, then what waited, in any order. The clock has gone on too.
    fn resume(&mut self, id: ReplicaId) {
        let Some(waiting) = self.paused.remove(&id) else { return };
        let Cluster { nodes, truth, now } = &mut self.cluster;
        let node = nodes.get_mut(&id).expect("a replica");
        if node.is_leader() {
            node.read(*now, truth);
        }
        for event in waiting {
            let after = self.random.below(MS);
            self.schedule(after, event);
        }
    }

    fn happen(&mut self, event: Event) {
        let now = self.cluster.now;
        let to = match &event {
            Event::Deliver { to: id, .. } | Event::Flush { id, .. } | Event::Snapshot { to: id, .. } => Some(id),
            _ => None,
        };
        if let Some(waiting) = to.and_then(|id| self.paused.get_mut(id)) {
            waiting.push(event);
            return;
        }
        let Cluster { nodes, truth, .. } = &mut self.cluster;
        match event {
            Event::Deliver { from, to, message } => self.cluster.deliver(from, to, message),
            Event::Flush { id, incarnation, count } => {
                self.flushing.remove(&id);
                let node = nodes.get_mut(&id).expect("a replica");
                if node.incarnation == incarnation {
                    node.flush(count, now, truth);
                }
            }
            Event::Restart { id } => {
                if !nodes[&id].is_up() && !nodes[&id].gone {
                    self.cluster.start(id);
                }
            }
            Event::Heal { from, to } => {
                self.cut.remove(&(from, to));
            }
            Event::Execute { id } => {
                let node = nodes.get_mut(&id).expect("a replica");
                node.slow_executor = false;
                node.step(now, Input::Tick, truth);
            }
            Event::Snapshot { from, to, incarnation, at_least } => {
                let source = &nodes[&from];
                if source.is_up() && source.executed_upto >= at_least && nodes[&to].incarnation == incarnation {
                    let snapshot = source.take_snapshot(truth);
                    nodes.get_mut(&to).expect("a replica").install(snapshot, now, truth);
                }
            }
            Event::Resume { id } => self.resume(id),
            Event::Act => self.act(),
        }
    }

    fn act(&mut self) {
        let after = 50_000 + self.random.below(self.plan.burst_every);
        self.schedule(after, Event::Act);
        if !self.load {
            return;
        }
        self.submit_some();
        let awake = self.cluster.nodes.values().filter(|node| node.is_up() && !self.paused.contains_key(&node.id));
        let ids: Vec<ReplicaId> = awake.map(|node| node.id).collect();
        let Some(id) = self.random.pick(&ids) else { return };
        if self.reading {
            self.read_some(id);
        }
        if self.faults {
            self.fault(id);
        }
    }

    fn read_some(&mut self, id: ReplicaId) {
        let now = self.cluster.now;
        let Cluster { nodes, truth, .. } = &mut self.cluster;
        let node = nodes.get_mut(&id).expect("a replica");
        // A reader may hold on to a replica that it takes for the leader.
        match self.random.below(4) {
            0 => node.ask(now, truth),
            1 if !node.is_leader() => node.ask(now, truth),
            _ => {
                let paused = &self.paused;
                for node in nodes.values_mut().filter(|node| node.is_leader() && !paused.contains_key(&node.id)) {
                    node.read(now, truth);
                }
            }
        }
    }

    fn submit_some(&mut self) {
        let Some(leader) = self.cluster.leader() else { return };
        // Now and then a deposed leader gets some too.
        let paused = |id: &ReplicaId| self.paused.contains_key(id);
        let leaders = self.cluster.nodes.values().filter(|node| node.is_leader()).map(|node| node.id);
        let leaders: Vec<ReplicaId> = leaders.filter(|id| !paused(id)).collect();
        let to = if self.random.percent(70) { leader } else { self.random.pick(&leaders).unwrap_or(leader) };
        if self.paused.contains_key(&to) {
            return;
        }
        for _ in 0..self.random.below(self.plan.burst) {
            self.submitted += 1;
            let padding = if self.random.percent(5) { 60 } else { 0 };
            let word = format!("{}{} ", self.submitted, "x".repeat(padding));
            let Cluster { nodes, truth, now } = &mut self.cluster;
            nodes.get_mut(&to).expect("a replica").submit(*now, Bytes::from(word), truth);
        }
        if self.random.percent(10) {
            self.ticket += 1;
            let ticket = Ticket { ballot: Ballot::new(1, 0), n: self.ticket };
            let Cluster { nodes, truth, now } = &mut self.cluster;
            nodes.get_mut(&to).expect("a replica").set_released(*now, ticket, truth);
        }
    }

    fn fault(&mut self, id: ReplicaId) {
        let now = self.cluster.now;
        if self.random.percent(self.plan.crashes) {
            let all = self.random.percent(5);
            let ids: Vec<ReplicaId> = if all { self.cluster.nodes.keys().copied().collect() } else { vec![id] };
            for id in ids {
                let kept = self.random.below(4) as usize;
                let Cluster { nodes, truth, .. } = &mut self.cluster;
                nodes.get_mut(&id).expect("a replica").crash(kept, truth);
                self.flushing.remove(&id);
                let after = self.random.below(60 * MS);
                self.schedule(after, Event::Restart { id });
            }
        }
        if self.random.percent(self.plan.cuts) {
            self.cut_some(id);
        }
        if self.random.percent(self.plan.pauses) {
            let leader = self.cluster.leader().filter(|_| self.random.percent(70));
            let id = leader.unwrap_or(id);
            let after = self.random.below(150 * MS);
            if let Entry::Vacant(entry) = self.paused.entry(id) {
                entry.insert(Vec::new());
                self.schedule(after, Event::Resume { id });
            }
        }
        if self.random.percent(self.plan.checkpoints) {
            let keep = self.random.below(6);
            let Cluster { nodes, truth, .. } = &mut self.cluster;
            nodes.get_mut(&id).expect("a replica").checkpoint(now, keep, truth);
        }
        if self.random.percent(self.plan.slow_executors / 4) {
            self.cluster.node(id).slow_executor = true;
            let after = self.random.below(20 * MS);
            self.schedule(after, Event::Execute { id });
        }
        let Some(leader) = self.cluster.leader().filter(|id| !self.paused.contains_key(id)) else { return };
        if self.random.percent(self.plan.transfers) {
            let ids: Vec<ReplicaId> = self.cluster.nodes.keys().copied().collect();
            let to = self.random.pick(&ids).expect("a replica");
            let clock = self.cluster.node(leader).clock;
            let deadline = clock.read(now + 5 * MS + self.random.below(20 * MS));
            self.cluster.step(leader, Input::TransferLeader { to, deadline });
        }
        if self.random.percent(self.plan.changes) {
            self.change(leader);
        }
    }

    fn cut_some(&mut self, id: ReplicaId) {
        let others: Vec<ReplicaId> = self.cluster.nodes.keys().copied().filter(|other| *other != id).collect();
        let (into, out) = [(true, true), (true, false), (false, true)][self.random.below(3) as usize];
        let after = self.random.below(120 * MS);
        let alone = self.random.percent(60);
        for other in others {
            if !alone && self.random.percent(50) {
                continue;
            }
            for (from, to) in [(other, id), (id, other)] {
                if if to == id { into } else { out } {
                    self.cut.insert((from, to));
                    self.schedule(after, Event::Heal { from, to });
                }
            }
        }
    }

    /// A learner comes, a learner becomes a voter, a member goes, or a mix of it.
    fn change(&mut self, leader: ReplicaId) {
        let Some(paxos) = self.cluster.nodes[&leader].paxos.as_ref() else { return };
        let mut new = paxos.configuration().0.clone();
        let learners: Vec<ReplicaId> = new.learners.iter().copied().collect();
        let voters: Vec<ReplicaId> = new.voters.iter().copied().collect();
        let newest = self.cluster.truth.governing(self.cluster.truth.decided_upto.next()).0.clone();
        for _ in 0..1 + self.random.below(3) {
            match self.random.below(3) {
                0 if self.next_replica < 12 => {
                    let id = ReplicaId(self.next_replica);
                    self.next_replica += 1;
                    self.cluster.add(id, &newest, &self.plan.settings, self.next_replica.into());
                    self.set_clock(id);
                    self.cluster.start(id);
                    new.learners.insert(id);
                }
                1 => {
                    if let Some(id) = self.random.pick(&learners) {
                        new.learners.remove(&id);
                        new.voters.insert(id);
                    }
                }
                _ => {
                    if let Some(id) = self.random.pick(&voters).filter(|_| new.voters.len() > 1) {
                        new.voters.remove(&id);
                    }
                }
            }
        }
        self.cluster.step(leader, Input::Change(new));
    }
}
