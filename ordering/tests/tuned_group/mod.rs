//! Three real replicas in virtual time: links, logs, cores and closed-loop clients around them, and a controller that
//! measures the leader twice a second as a node does. Deterministic: nothing here asks for time or luck.

#![allow(dead_code)] // Each test program uses its own part.

pub mod link;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use coppice_ordering::tuning::{Account, Controller, Costs, Limits, Measurement, Tuning};
use coppice_ordering::{
    Config, Configuration, Counters, Effect, Input, Instance, Lsn, Message, Paxos, ReplicaId, Settings, Time,
};
use link::{Link, Shape};

pub const NODES: usize = 3;
/// The load's own process, after the nodes.
const CLIENTS: usize = NODES;
/// Headers of a message on the wire.
const HEADER_BYTES: usize = 40;
/// A frame is closed at this size, as nodes do it: server/src/net/link.rs.
const FRAME_BYTES: usize = 16 << 10;
/// As a node measures.
const INTERVAL: Duration = Duration::from_millis(500);

/// What things take on a core.
#[derive(Clone, Copy, Debug)]
pub struct CpuTime {
    /// A turn of a thread, however little there is to do.
    pub turn: Duration,
    /// A message between replicas, sent or received.
    pub message: Duration,
    /// A command at the leader, and executing it at any replica.
    pub command: Duration,
    /// A byte received or sent.
    pub byte_ns: f64,
    /// A command at its client.
    pub client: Duration,
    pub flush: Duration,
}

#[derive(Clone, Copy, Debug)]
pub struct Scene {
    pub name: &'static str,
    pub shape: Shape,
    /// Bytes of a command.
    pub size: usize,
    /// Each has one command under way.
    pub clients: usize,
    pub spent: CpuTime,
    /// That all processes share; none: each has its own.
    pub cores: Option<usize>,
}

enum Work {
    Input(Input),
    /// Commands come from clients.
    Submit(usize),
    /// Commands are answered.
    Answer(usize),
}

enum Event {
    /// A process' turn is over.
    Turn(usize),
    Leaves(usize, usize),
    Arrives(usize, usize, usize, Vec<Message>),
    Flushed(usize),
    Timer(usize),
    Sample,
}

#[derive(Default)]
struct Process {
    inbox: VecDeque<Work>,
    /// The turn under way.
    turn: Vec<Work>,
    running: bool,
    waiting: bool,
    busy: Duration,
    /// What the next turn pays for what the last one sent.
    owes: Duration,
}

#[derive(Default)]
struct Disk {
    flushing: Option<Lsn>,
    waiting: Option<Lsn>,
    flushes: u64,
}

pub struct World {
    pub scene: Scene,
    pub now: Time,
    number: u64,
    luck: u64,
    events: BinaryHeap<Reverse<(Time, u64)>>,
    what: BTreeMap<u64, Event>,
    replicas: Vec<Paxos>,
    timers: Vec<Option<Time>>,
    processes: Vec<Process>,
    ready: VecDeque<usize>,
    cores_used: usize,
    disks: Vec<Disk>,
    links: BTreeMap<(usize, usize), Link<Vec<Message>>>,
    /// Messages of this turn, and their bytes: they arrive as one frame.
    frames: BTreeMap<(usize, usize), (usize, Vec<Message>)>,
    /// Submissions of the leader in each instance.
    proposed: VecDeque<(Instance, u32)>,
    /// Commands.
    under_way: usize,
    draining: bool,
    /// The leader was: a collapse.
    pub lost: bool,
    pub answered: u64,
    /// Others keep the machine busy all the time.
    pub foreign: bool,
    pub tuner: Option<Tuner>,
    pub trace: bool,
}

/// What a node has for each group that it leads.
pub struct Tuner {
    pub controller: Controller,
    costs: Costs,
    machine: Costs,
    before: Counters,
    busy: Duration,
    all_busy: Duration,
    flushes: u64,
    pub chosen: Vec<(Time, Tuning)>,
    /// What it said once a second.
    pub accounts: Vec<Option<Account>>,
}

impl World {
    pub fn new(scene: Scene) -> World {
        let replica = |id| {
            let configuration = Configuration::of_voters((0..NODES as u32).map(ReplicaId));
            let settings = Settings { election_timeout: Duration::from_secs(3), ..Settings::default() };
            let config =
                Config { id: ReplicaId(id), configuration, seed: 1, incarnation: 1, settings, campaign_first: id == 0 };
            Paxos::new(config, Time::ZERO)
        };
        let pairs = (0..NODES).flat_map(|from| (0..NODES).map(move |to| (from, to))).filter(|(from, to)| from != to);
        let mut world = World {
            scene,
            now: Time::ZERO,
            number: 0,
            luck: 1,
            events: BinaryHeap::new(),
            what: BTreeMap::new(),
            replicas: (0..NODES as u32).map(replica).collect(),
            timers: vec![None; NODES],
            processes: (0..=NODES).map(|_| Process::default()).collect(),
            ready: VecDeque::new(),
            cores_used: 0,
            disks: (0..NODES).map(|_| Disk::default()).collect(),
            links: pairs.map(|pair| (pair, Link::new(Shape::LAN))).collect(),
            frames: BTreeMap::new(),
            proposed: VecDeque::new(),
            under_way: 0,
            draining: false,
            lost: false,
            answered: 0,
            foreign: false,
            tuner: None,
            trace: std::env::var("TRACE").is_ok(),
        };
        for node in 0..NODES {
            world.give(node, Work::Input(Input::Tick));
        }
        // Formed over quick links, as in the laboratory.
        while !world.replicas[0].is_leader() {
            world.step();
        }
        world.at(world.now + INTERVAL, Event::Sample);
        world
    }

    /// Another link; what is under way stays so.
    pub fn set_link(&mut self, shape: Shape) {
        self.scene.shape = shape;
        self.links.values_mut().for_each(|link| link.shape = shape);
    }

    /// Lets the load end, and another one begin over other links.
    pub fn set(&mut self, scene: Scene) {
        self.draining = true;
        self.set_link(Shape::LAN);
        while self.under_way > 0 {
            self.step();
        }
        self.draining = false;
        self.set_link(scene.shape);
        self.scene = scene;
        self.under_way = scene.clients;
        self.give(0, Work::Submit(scene.clients));
    }

    pub fn fly(&mut self, limits: Limits) {
        self.put(&Tuning::first(&limits));
        self.tuner = Some(Tuner {
            controller: Controller::new(limits),
            costs: Costs::default(),
            machine: Costs::default(),
            before: self.replicas[0].counters().clone(),
            busy: self.processes[0].busy,
            all_busy: self.all_busy(),
            flushes: self.disks[0].flushes,
            chosen: Vec::new(),
            accounts: Vec::new(),
        });
    }

    pub fn put(&mut self, tuning: &Tuning) {
        let mut settings = self.replicas[0].settings().clone();
        tuning.apply(&mut settings);
        self.replicas[0].set_settings(settings);
    }

    /// As settings that nobody tunes: only an idle leader takes what there is.
    pub fn fix(&mut self, tuning: &Tuning) {
        self.put(tuning);
        let settings = Settings { eager_window: 1, ..self.replicas[0].settings().clone() };
        self.replicas[0].set_settings(settings);
    }

    pub fn chosen(&self) -> &[(Time, Tuning)] {
        self.tuner.as_ref().map_or(&[], |tuner| &tuner.chosen)
    }

    pub fn settings(&self) -> Tuning {
        Tuning::of(self.replicas[0].settings())
    }

    pub fn congestions(&self) -> u64 {
        self.links.values().map(|link| link.congestions).sum()
    }

    /// Commands per second from now on for so long.
    pub fn run(&mut self, time: Duration) -> f64 {
        let (before, until) = (self.answered, self.now + time);
        while !self.lost && self.events.peek().is_some_and(|Reverse((at, _))| *at <= until) {
            self.step();
        }
        self.now = until;
        (self.answered - before) as f64 / time.as_secs_f64()
    }

    fn all_busy(&self) -> Duration {
        self.processes.iter().map(|process| process.busy).sum()
    }

    fn at(&mut self, at: Time, event: Event) {
        self.number += 1;
        self.events.push(Reverse((at, self.number)));
        self.what.insert(self.number, event);
    }

    fn give(&mut self, process: usize, work: Work) {
        self.processes[process].inbox.push_back(work);
        self.wake(process);
    }

    fn wake(&mut self, process: usize) {
        let p = &mut self.processes[process];
        if !p.running && !p.waiting && !p.inbox.is_empty() {
            p.waiting = true;
            self.ready.push_back(process);
        }
        self.schedule();
    }

    fn schedule(&mut self) {
        while self.cores_used < self.scene.cores.unwrap_or(NODES + 1)
            && let Some(process) = self.ready.pop_front()
        {
            self.cores_used += 1;
            let spent = self.scene.spent;
            let p = &mut self.processes[process];
            (p.waiting, p.running) = (false, true);
            p.turn = p.inbox.drain(..).collect();
            let size = self.scene.size;
            let mut takes = spent.turn + std::mem::take(&mut p.owes);
            for work in &p.turn {
                takes += match work {
                    Work::Submit(count) => (spent.command + bytes(&spent, size)) * (*count as u32),
                    Work::Answer(count) => spent.client * (*count as u32),
                    Work::Input(Input::Message { message: Message::Phase2a(m), .. }) => {
                        spent.message + bytes(&spent, m.batch.len_bytes()) + spent.command * m.batch.count() / 4
                    }
                    Work::Input(Input::Message { .. }) => spent.message,
                    Work::Input(_) => Duration::ZERO,
                };
            }
            // No two turns are alike: without this they fall into step. A tenth more or less.
            self.luck = self.luck.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let takes = takes.mul_f64(0.9 + 0.2 * (self.luck >> 40) as f64 / (1_u64 << 24) as f64);
            let p = &mut self.processes[process];
            p.busy += takes;
            let end = self.now + takes;
            self.at(end, Event::Turn(process));
        }
    }

    fn step(&mut self) {
        let Some(Reverse((at, number))) = self.events.pop() else { return };
        self.now = at;
        match self.what.remove(&number).expect("an event") {
            Event::Turn(process) => {
                let turn = std::mem::take(&mut self.processes[process].turn);
                for work in turn {
                    self.work(process, work);
                }
                while let Some(((from, to), frame)) = self.frames.pop_first() {
                    self.seal(from, to, frame);
                }
                if process < NODES {
                    self.flush(process);
                }
                self.cores_used -= 1;
                self.processes[process].running = false;
                self.wake(process);
                self.set_timer(process);
            }
            Event::Leaves(from, to) => {
                let link = self.links.get_mut(&(from, to)).expect("a link");
                if let Some((arrives, bytes, messages, next)) = link.left(at) {
                    self.at(arrives, Event::Arrives(from, to, bytes, messages));
                    if let Some(next) = next {
                        self.at(next, Event::Leaves(from, to));
                    }
                }
            }
            Event::Arrives(from, to, bytes, messages) => {
                self.links.get_mut(&(from, to)).expect("a link").arrived(bytes);
                for message in messages {
                    self.give(to, Work::Input(Input::Message { from: ReplicaId(from as u32), message }));
                }
            }
            Event::Flushed(node) => {
                let disk = &mut self.disks[node];
                let lsn = disk.flushing.take().expect("a flush");
                self.give(node, Work::Input(Input::Persisted(lsn)));
                self.flush(node);
            }
            Event::Timer(node) => {
                if self.timers[node].is_some_and(|due| due <= at) {
                    self.timers[node] = None;
                    self.give(node, Work::Input(Input::Tick));
                }
            }
            Event::Sample => {
                self.sample();
                self.at(at + INTERVAL, Event::Sample);
            }
        }
    }

    fn set_timer(&mut self, node: usize) {
        let Some(due) = self.replicas.get(node).and_then(Paxos::deadline) else { return };
        let due = due.max(self.now + Duration::from_micros(10));
        if self.timers[node].is_none_or(|set| due < set) {
            self.timers[node] = Some(due);
            self.at(due, Event::Timer(node));
        }
    }

    fn work(&mut self, process: usize, work: Work) {
        let mut effects = Vec::new();
        match work {
            Work::Input(input) => self.replicas[process].step(self.now, input, &mut effects),
            Work::Submit(count) => {
                let command = Bytes::from(vec![0; self.scene.size]);
                for _ in 0..count {
                    // Clients are fewer than the queue is long.
                    let taken = self.replicas[process].submit(self.now, command.clone(), 1, &mut effects);
                    assert!(taken.is_ok() || self.lost, "{taken:?}");
                }
                self.replicas[process].step(self.now, Input::Tick, &mut effects);
            }
            Work::Answer(count) => {
                self.answered += count as u64;
                if self.draining {
                    self.under_way -= count;
                } else {
                    self.give(0, Work::Submit(count));
                }
            }
        }
        self.carry_out(process, effects);
    }

    fn carry_out(&mut self, node: usize, effects: Vec<Effect>) {
        let mut effects = VecDeque::from(effects);
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Persist { lsn, .. } => {
                    // Flushed at the end of the turn, all at once.
                    self.disks[node].waiting = Some(lsn);
                }
                Effect::Send { to, message } => self.send(node, to.0 as usize, message),
                Effect::Proposed { instance, submissions } => self.proposed.push_back((instance, submissions)),
                Effect::Decided { upto } => {
                    let mut more = Vec::new();
                    self.replicas[node].step(self.now, Input::Executed(upto), &mut more);
                    if upto.0 % 64 == 0 {
                        self.replicas[node].step(self.now, Input::Trim(upto), &mut more);
                    }
                    effects.extend(more);
                    let mut done = 0;
                    while node == 0
                        && let Some((_, submissions)) = self.proposed.pop_front_if(|(at, _)| *at <= upto)
                    {
                        done += submissions as usize;
                    }
                    if done > 0 {
                        self.give(CLIENTS, Work::Answer(done));
                    }
                }
                Effect::Following { .. } if node == 0 => self.lost = self.answered > 0,
                _ => {}
            }
        }
    }

    fn send(&mut self, from: usize, to: usize, message: Message) {
        let payload = match &message {
            Message::Phase2a(m) => m.batch.len_bytes(),
            Message::CatchUpReply(_) => 1_000,
            _ => 0,
        };
        let spent = self.scene.spent;
        self.processes[from].owes += spent.message + bytes(&spent, payload);
        let frame = self.frames.entry((from, to)).or_default();
        frame.0 += payload + HEADER_BYTES;
        frame.1.push(message);
        if frame.0 >= FRAME_BYTES {
            let frame = std::mem::take(frame);
            self.seal(from, to, frame);
        }
    }

    fn seal(&mut self, from: usize, to: usize, (bytes, messages): (usize, Vec<Message>)) {
        if messages.is_empty() {
            return;
        }
        let now = self.now;
        if let Some(leaves) = self.links.get_mut(&(from, to)).expect("a link").send(now, bytes, messages) {
            self.at(leaves, Event::Leaves(from, to));
        }
    }

    fn flush(&mut self, node: usize) {
        let disk = &mut self.disks[node];
        if disk.flushing.is_none()
            && let Some(lsn) = disk.waiting.take()
        {
            disk.flushing = Some(lsn);
            disk.flushes += 1;
            let done = self.now + self.scene.spent.flush;
            self.at(done, Event::Flushed(node));
        }
    }

    /// As a node does it: server/core/src/worker/tuning.rs.
    fn sample(&mut self) {
        let (now, busy, all, flushes) =
            (self.replicas[0].counters().clone(), self.processes[0].busy, self.all_busy(), self.disks[0].flushes);
        let (in_force, round_trip) = (self.settings(), self.replicas[0].round_trip());
        let cores = self.scene.cores.unwrap_or(NODES + 1) as u32;
        let foreign = self.foreign;
        let Some(tuner) = &mut self.tuner else { return };
        let before = std::mem::replace(&mut tuner.before, now.clone());
        let seconds = INTERVAL.as_secs_f64();
        let (busy, machine) = (
            busy.saturating_sub(std::mem::replace(&mut tuner.busy, busy)),
            all.saturating_sub(std::mem::replace(&mut tuner.all_busy, all)) / cores,
        );
        let machine = if foreign { INTERVAL } else { machine };
        let flushed = flushes - std::mem::replace(&mut tuner.flushes, flushes);
        let since = |of: fn(&Counters) -> u64| of(&now) - of(&before);
        let (batches, commands, bytes) =
            (since(|c| c.instances_decided), since(|c| c.commands_decided), since(|c| c.bytes_decided));
        let done = [batches as f64, commands as f64, bytes as f64, 20.0];
        tuner.costs.learn(done, busy);
        tuner.machine.learn(done, machine);
        let samples = since(|c| c.instance_latency_samples);
        let machine_first = machine > busy && busy >= INTERVAL.mul_f64(0.15);
        let costs = if machine_first { &tuner.machine } else { &tuner.costs };
        let flush = self.scene.spent.flush;
        let measured = Measurement {
            interval: INTERVAL,
            replicas: NODES as u32,
            batches,
            commands,
            bytes,
            batch_header_bytes: HEADER_BYTES as f64,
            window: since(|c| c.window_instance_ns) as f64 / INTERVAL.as_nanos() as f64,
            instance: (samples > 0).then(|| Duration::from_nanos(since(|c| c.instance_latency_ns) / samples)),
            round_trip,
            flush: (flushed > 0).then_some(flush),
            batches_per_flush: batches as f64 / flushed.max(1) as f64,
            cost: Some(costs.stage()),
            cpu_busy: if machine_first { machine } else { busy }.as_secs_f64() / seconds,
            disk_busy: flush.as_secs_f64() * flushed as f64 / seconds,
            share: if commands > 0 { 1.0 } else { 0.0 },
            in_force: Some(in_force),
        };
        let told = tuner.controller.step(&measured);
        tuner.accounts.push(tuner.controller.account());
        if self.trace {
            eprintln!(
                "{} {commands:>6} in {batches:>5} window {:>5.1} took {:>7.2?} rtt {:>7.2?} cpu {:.2} disk {:.2} \
                 bytes {bytes:>9} now {}x{}/{} -> {:?}",
                self.now,
                measured.window,
                measured.instance.unwrap_or_default(),
                round_trip.unwrap_or_default(),
                measured.cpu_busy,
                measured.disk_busy,
                in_force.batch_bytes_max,
                in_force.window,
                in_force.window_bytes_max,
                told.map(|t| (t.batch_bytes_max, t.window, t.window_bytes_max)),
            );
        }
        if let Some(tuning) = told {
            tuner.chosen.push((self.now, tuning));
            self.put(&tuning);
        }
    }
}

fn bytes(spent: &CpuTime, bytes: usize) -> Duration {
    Duration::from_nanos((spent.byte_ns * bytes as f64) as u64)
}
