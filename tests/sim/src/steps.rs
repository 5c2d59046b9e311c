//! What a node does: it tells its workers what happens and carries out what they want. A crash may fall between any two
//! effects, and what a worker says to another one of its node takes its time.

use std::collections::BTreeMap;

use coppice_client::wire::PartitionId;
use coppice_core::multicast::{MulticastBody, MulticastMessage};
use coppice_core::replay::Entry;
use coppice_core::wire::peer::Envelope;
use coppice_core::worker::{Effect, Input, Message, Worker};
use coppice_core::{controller, replica};
use coppice_server::log::Append;
use coppice_server::log::record::entry_bytes;

use super::control::own;
use super::events::{Event, Mail};
use super::node::place;
use super::plan::{MS, Nanos};
use super::store::WriteState;
use super::trace::Fingerprint;
use super::world::World;
use super::{damage, fingerprint};

/// Turns of a worker that follow each other while nothing comes from outside.
const TURNS_MAX: usize = 16;

/// A log at rest gets its mark after this long, as `LogOptions::idle_mark_after`.
const IDLE: Nanos = 100 * MS;

/// The threads that wait for the log, one for each group, among those of a node.
const AWAIT_LOG: usize = 1 << 32;

/// A write on a full disk is tried again after this long.
const FULL_RETRY: Nanos = 20 * MS;

/// What came of one step of a worker.
struct WorkerStep {
    /// It stepped a replica.
    stepped: bool,
    /// It lets everything else have its turn.
    yields: bool,
}

impl World {
    /// Something for one replica.
    pub fn step(&mut self, node: usize, group: PartitionId, input: replica::Input) {
        self.input(node, self.nodes[node].owner(group), Input::Replica(group, Box::new(input)));
    }

    /// Tells a worker something, has it end its turns, and carries out what it wants.
    pub fn input(&mut self, node: usize, worker: usize, input: Input) {
        let now = self.now;
        let signs = self.signs(node, worker);
        let words = self.trace.is_wordy().then(|| fingerprint::show_input(&input));
        let asked = fingerprint::input(&input);
        let (mut effects, mut stepped) = (Vec::new(), Vec::new());
        let mut so_far = (&mut effects, &mut stepped);
        for fact in self.facts(node, worker) {
            self.step_worker((node, worker), fact, &mut so_far);
        }
        if let Input::Query { origin, .. } | Input::Worker(Message::Query { origin, .. }) = &input {
            let answering = self.answering(node);
            self.nodes[node].process.answering.insert(*origin, answering);
        }
        let is_tick = matches!(input, Input::Tick);
        let parked = self.nodes[node].process.workers[worker].parked();
        let rollbacks = rollbacks(&self.nodes[node].process.workers[worker]);
        self.step_worker((node, worker), input, &mut so_far);
        if is_tick {
            let gone = parked - self.nodes[node].process.workers[worker].parked();
            self.coverage.add("query: nobody comes for a part", gone as u64);
        }
        let mut yielded = false;
        for _ in 0..TURNS_MAX {
            let turn = self.step_worker((node, worker), Input::TurnEnd, &mut so_far);
            if turn.stepped {
                continue;
            }
            if yielded || !turn.yields {
                break;
            }
            yielded = true;
            self.coverage.note("executor: runs ahead in a turn of its own");
            self.step_worker((node, worker), Input::Yielded { is_busy: false }, &mut so_far);
        }
        stepped.sort_unstable();
        stepped.dedup();
        let taken_back = self::rollbacks(&self.nodes[node].process.workers[worker]).saturating_sub(rollbacks);
        self.coverage.add("executor: takes back what it ran ahead", taken_back);
        effects.iter().for_each(|effect| self.coverage.effect(effect));
        let mut state = Fingerprint::default();
        for &group in &stepped {
            let Some(group) = self.nodes[node].process.workers[worker].groups().get(&group) else { continue };
            let executor = group.replica.executor();
            fingerprint::words(&(group.replica.group(), executor.decided(), executor.last_executed()), &mut state);
            if group.replica.reads_are_stalled() {
                self.coverage.note("replica: reads what is decided, for nothing gets decided");
            }
        }
        let state = (node, worker, std::hash::Hasher::finish(&state), asked, fingerprint::effects(&effects));
        self.trace.step(now, &state, |line| {
            let shown: Vec<String> = effects.iter().map(fingerprint::show).collect();
            *line += &format!("n{node}.w{worker} {} => {}", words.unwrap_or_default(), shown.join(", "));
        });
        for &group in &stepped {
            let before = signs.get(&group).cloned();
            self.fire(node, group, before, &effects);
        }
        self.carry_out(node, worker, &mut effects);
        self.begin_write(node, false);
        self.arm(node);
        let boot = self.nodes[node].boot;
        if !stepped.is_empty() && self.nodes[node].boot == boot && self.nodes[node].up {
            self.tell_storage(node, worker);
        }
    }

    /// One step of a worker, held against what is known.
    fn step_worker(
        &mut self,
        (node, worker): (usize, usize),
        input: Input,
        (effects, stepped): &mut (&mut Vec<Effect>, &mut Vec<PartitionId>),
    ) -> WorkerStep {
        let query = match &input {
            Input::Query { request, .. } | Input::Worker(Message::Query { request, .. }) => {
                Some((request.low.clone(), request.high.clone()))
            }
            _ => None,
        };
        let (local, before) = (self.nodes[node].clock.local(self.now), effects.len());
        let is_heard = matches!(input, Input::Heard { .. });
        let each = &mut self.nodes[node].process.workers[worker];
        let newest = each.coordinator().newest_query();
        each.step(local, input, effects);
        let yields = effects.extract_if(before.., |effect| matches!(effect, Effect::Yield)).count() > 0;
        let groups = each.stepped().to_vec();
        if is_heard && !groups.is_empty() {
            self.coverage.note("quiescence: a node is lost");
        }
        if let (Some((low, high)), Some(ballot)) = (query, each.coordinator().leading())
            && each.coordinator().newest_query() != newest
        {
            self.oracle.tickets.asked(ballot, each.coordinator().newest_query(), &low, high.as_ref());
        }
        self.observe((node, worker), &groups, &effects[before..]);
        stepped.extend(&groups);
        WorkerStep { stepped: !groups.is_empty(), yields }
    }

    /// Carries out effects: records of the log and what is known of leaders at once, in their order, since what the
    /// others bring about may make a worker want more of both; the others in a drawn order if the plan says so. What
    /// steps the worker comes last, so that what that brings about is behind all of this.
    fn carry_out(&mut self, node: usize, worker: usize, effects: &mut Vec<Effect>) {
        let is_kept =
            |effect: &mut Effect| matches!(effect, Effect::Persist { .. } | Effect::Trim(..) | Effect::Leader(..));
        let kept: Vec<Effect> = effects.extract_if(.., is_kept).collect();
        kept.into_iter().for_each(|effect| self.carry_out_one(node, worker, effect));
        let watches: Vec<Effect> = effects.extract_if(.., |effect| matches!(effect, Effect::Watch)).collect();
        if self.plan.shuffle && effects.len() > 1 {
            let cut = self.draws.world.below(effects.len());
            let reports = |effect: &Effect| matches!(effect, Effect::Controller(_));
            if !effects[..cut].iter().any(reports) || !effects[cut..].iter().any(reports) {
                effects.rotate_left(cut);
            }
        }
        let boot = self.nodes[node].boot;
        for effect in effects.drain(..).chain(watches) {
            if self.nodes[node].boot != boot || !self.nodes[node].up {
                continue;
            }
            if matches!(effect, Effect::Note(..) | Effect::QueryEnded { .. }) {
                continue;
            }
            if !self.is_doomed(node) {
                self.carry_out_one(node, worker, effect);
            }
        }
    }

    fn carry_out_one(&mut self, node: usize, worker: usize, effect: Effect) {
        match effect {
            Effect::Persist { group, lsn, record } => {
                let lazy = record.is_lazy();
                let entry = Entry::Group { group, record };
                self.nodes[node].process.workers[worker].logged(group, entry_bytes(&entry) as u64);
                self.nodes[node].store.append(Append { entry, lsn: Some(lsn), lazy });
            }
            Effect::Trim(group, upto) => {
                let entry = Entry::Trimmed { group, upto };
                self.nodes[node].store.append(Append { entry, lsn: None, lazy: true });
            }
            Effect::Checkpoint { group, number, taken, .. } => self.begin_checkpoint(node, (group, number), *taken),
            Effect::Yield => {}
            Effect::Full(is_full) => self.nodes[node].process.is_full = is_full,
            Effect::Watch => self.detect_failures(node, worker),
            Effect::Send(to, envelope) => self.send(node, place(to), &envelope),
            Effect::SendMulticast(to, message) => self.send_multicast(node, place(to), &message),
            Effect::Reply { group, origin, reply } => self.reply(node, group, origin, reply),
            Effect::Part(part) => self.give_part(node, worker, part),
            Effect::Worker(to, message) => self.mail(node, to, Mail::Message(message)),
            Effect::Controller(report) => self.report(node, worker, controller::Input::Report(report)),
            Effect::Leader(group, leader) => {
                let leaders = &mut self.nodes[node].process.control.leaders;
                match leader {
                    Some(leader) => _ = leaders.insert(group, leader),
                    None => _ = leaders.remove(&group),
                }
                let others = (0..self.nodes[node].process.workers.len()).filter(|&other| other != worker);
                others.for_each(|other| self.mail(node, other, Mail::Look));
            }
            Effect::Note(..) | Effect::QueryEnded { .. } => {}
        }
    }

    fn send(&mut self, node: usize, to: usize, envelope: &Envelope) {
        if !self.may_say(node, to) {
            return;
        }
        let [first, copy] = self.net.send(node, to);
        if let Some(random) = self.net.damages() {
            // The connection ends there, and what was on it is lost.
            let frame = damage::of_message(envelope);
            let refused = damage::refused(&frame, random);
            self.coverage.note("frame: damaged and refused");
            return refused.unwrap_or_else(|what| self.fail("damaged frame", what));
        }
        for delay in [first, copy].into_iter().flatten() {
            let envelope = envelope.clone();
            self.schedule(self.now + delay, Event::Peer { from: node, to, envelope });
        }
    }

    fn send_multicast(&mut self, node: usize, to: usize, message: &MulticastMessage) {
        if message.passed_on {
            self.coverage.note("multicast: sent on to who leads now");
        }
        if !self.may_say(node, to) {
            return;
        }
        let [first, copy] = self.net.send(node, to);
        if let Some(random) = self.net.damages() {
            let refused = damage::refused(&damage::of_multicast(message), random);
            self.coverage.note("frame: damaged and refused");
            return refused.unwrap_or_else(|what| self.fail("damaged frame", what));
        }
        for delay in [first, copy].into_iter().flatten() {
            self.schedule(self.now + delay, Event::MulticastMessage { from: node, to, message: message.clone() });
        }
    }

    /// A multicast message arrives, at whichever worker has the connection.
    pub fn on_multicast(&mut self, node: usize, sender: usize, message: MulticastMessage) {
        if !self.nodes[node].up {
            return;
        }
        let each = &self.nodes[node];
        let leading = each.process.workers[each.owner(PartitionId::DIRECTORY)].coordinator().leading();
        self.coverage.multicast(&message.body, leading);
        if matches!(message.body, MulticastBody::Place(_)) && each.group(message.partition).is_none() {
            self.coverage.note("ticket: for a partition that is not here");
        }
        let worker = sender % each.process.workers.len();
        self.input(node, worker, Input::Multicast { node: own(sender), messages: vec![message] });
    }

    /// A message of another node arrives, at whichever worker has the connection.
    pub fn receive(&mut self, node: usize, sender: usize, envelope: Envelope) {
        let full = self.nodes[sender].process.is_full;
        let each = &mut self.nodes[node];
        // Every frame says so.
        match full {
            true => _ = each.process.full_nodes.insert(own(sender)),
            false => _ = each.process.full_nodes.remove(&own(sender)),
        }
        let group = PartitionId(envelope.group);
        match each.group(group).filter(|group| group.me == envelope.to) {
            Some(host) => self.coverage.message(host.replica.paxos(), envelope.from, &envelope.message),
            None => self.coverage.note("message: for a replica that is not here"),
        }
        let worker = sender % self.nodes[node].process.workers.len();
        self.input(node, worker, Input::Peers { node: own(sender), envelopes: vec![envelope] });
    }

    /// Puts what waits into the log's next write, if none is under way.
    pub fn begin_write(&mut self, node: usize, idle: bool) {
        if !self.nodes[node].up || !self.nodes[node].store.begin(idle) {
            return;
        }
        let disk = &self.plan.disk;
        let (min, spread) = (disk.flush_min, disk.flush_max - disk.flush_min);
        let took = min + self.draws.disk.below(spread as usize + 1) as Nanos + self.nodes[node].flush_extra;
        let boot = self.nodes[node].boot;
        self.schedule(self.now + took, Event::Flushed { node, boot });
    }

    /// The flush of a node's write ends.
    pub fn on_flushed(&mut self, node: usize) {
        let boot = self.nodes[node].boot;
        match self.nodes[node].store.finish() {
            WriteState::Durable(appends) => {
                let mut groups: BTreeMap<PartitionId, coppice_ordering::Lsn> = BTreeMap::new();
                for append in &appends {
                    self.oracle.durable(node, &append.entry);
                    if let Entry::Trimmed { group, upto } = append.entry {
                        let found = self.nodes[node].check_trim(group, upto);
                        self.expect(found);
                    }
                    if let Some((group, input)) =
                        append.entry.group().zip(controller::Input::once_durable(&append.entry))
                    {
                        self.report(node, AWAIT_LOG + group.0 as usize, input);
                    }
                    if let (Some(group), Some(lsn)) = (append.entry.group(), append.lsn) {
                        groups.insert(group, lsn);
                    }
                }
                self.nodes[node].process.log_is_stuck = false;
                for (group, lsn) in groups {
                    if self.nodes[node].boot == boot && self.nodes[node].up {
                        let worker = self.nodes[node].owner(group);
                        self.input(node, worker, Input::Persisted { group, lsn });
                    }
                }
                if self.nodes[node].boot == boot {
                    self.begin_write(node, false);
                    self.schedule(self.now + IDLE, Event::Idle { node, boot });
                }
            }
            WriteState::Full => {
                self.coverage.note("log: finds no room, and waits");
                self.nodes[node].process.log_is_stuck = true;
                self.schedule(self.now + FULL_RETRY, Event::Flushed { node, boot });
            }
            // Poisoned: the process stops, and is started again.
            WriteState::Failed => {
                self.coverage.note("log: a write failed, and the process ends");
                self.crash_process(node, 100 * MS);
            }
        }
    }

    /// Tells the workers whose deadline has passed.
    pub fn on_tick(&mut self, node: usize) {
        self.nodes[node].tick_at = None;
        let local = self.nodes[node].clock.local(self.now);
        let boot = self.nodes[node].boot;
        for worker in 0..self.nodes[node].process.workers.len() {
            let due = self.nodes[node].process.workers[worker].deadline().is_some_and(|deadline| deadline <= local);
            if due && self.nodes[node].boot == boot && self.nodes[node].up {
                self.input(node, worker, Input::Tick);
            }
        }
        self.arm(node);
    }

    /// Orders the next tick.
    pub fn arm(&mut self, node: usize) {
        let now = self.now;
        let each = &mut self.nodes[node];
        let Some(deadline) = each.process.workers.iter().filter_map(Worker::deadline).min() else { return };
        let at = each.clock.when(deadline).max(now);
        if each.up && each.tick_at.is_none_or(|before| at < before) {
            each.tick_at = Some(at);
            let boot = each.boot;
            self.schedule(at, Event::Tick { node, boot, at });
        }
    }

    /// Whether this tick is the one that was ordered last.
    pub fn is_wanted(&self, node: usize, at: Nanos) -> bool {
        self.nodes[node].tick_at == Some(at)
    }
}

/// Batches that a worker's replicas have taken back so far.
fn rollbacks(worker: &Worker) -> u64 {
    worker.groups().values().map(|group| group.replica.executor().counters().rollbacks).sum()
}
