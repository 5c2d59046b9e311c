//! Forming a cluster: the real [`coppice_core::bootstrap`] over seeds that start late, answer late, and end amid it.
//! The first one, which carries `init` out, may lose its disk too. A question of a process that has ended is not
//! answered, for its connection has ended; what it brought about stays, and its answer is lost.
//!
//! The rule: never two clusters, never two first configurations of group 0; and an `init` that is repeated when all
//! seeds are there ends with the cluster.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use coppice_client::map::PartitionMap;
use coppice_client::wire::control::AdminError;
use coppice_client::wire::{AdminReply, ClusterId, InitRequest, NodeId, PartitionId};
use coppice_core::bootstrap::{Ask, Bootstrap, Forming, Heard, Init, Next, Process, becomes, first_directory};
use coppice_core::controller::{Controller, Effect, Input, RecoveredReplica};
use coppice_core::machine::directory::{Directory, DirectoryCommand, DirectoryReply};
use coppice_core::machine::{Outcome, entry};
use coppice_core::question::{Assignment, Identified};
use coppice_core::replay::GroupReplay;
use coppice_core::replica_manager::CreateRequest;
use coppice_ordering::{Batch, Commands, Instance, ReplicaId, Time};
use coppice_testkit::random::Random;

use super::plan::{MS, Nanos};
use super::world::addresses;

const SEEDS: usize = 3;

/// No process ends later.
const FAULTS_END: Nanos = 20_000 * MS;

/// Between two questions to a seed that does not answer.
const ASK_AGAIN: Nanos = 20 * MS;

/// The directory is asked for so long.
const DECIDED_WITHIN: Nanos = 10_000 * MS;

/// A seed: its disk, then its process.
struct Seed {
    identity: Option<(ClusterId, NodeId)>,
    created: Option<(ReplicaId, CreateRequest)>,
    map: Arc<PartitionMap>,
    is_up: bool,
    /// Counts its processes.
    boot: u64,
    controller: Controller,
    bootstrap: Bootstrap,
    /// By the number of each `init`.
    forming: BTreeMap<u64, Forming>,
}

impl Seed {
    fn new() -> Seed {
        Seed {
            identity: None,
            created: None,
            map: Arc::default(),
            is_up: false,
            boot: 0,
            controller: Controller::new(1),
            bootstrap: Bootstrap::default(),
            forming: BTreeMap::new(),
        }
    }
}

/// A process that carries an `init` out: the boot of the first seed, and the number of the `init`.
type Asker = (u64, u64);

#[derive(Debug)]
enum Event {
    Start(usize),
    Crash { seed: usize, down: Nanos, is_wiped: bool },
    Init { seed: usize, if_needed: bool, replicas: u32 },
    Identify { asker: Asker, seed: usize },
    Assign { asker: Asker, seed: usize, assignment: Assignment },
    Decide { asker: Asker, command: Box<DirectoryCommand>, until: Nanos },
    Heard { asker: Asker, heard: Heard },
    Deadline { asker: Asker },
    Map { seed: usize },
}

struct World {
    now: Nanos,
    agenda: BinaryHeap<Reverse<(Nanos, u64)>>,
    events: BTreeMap<u64, Event>,
    ordered: u64,
    seeds: Vec<Seed>,
    /// What group 0 of each cluster has decided, once a majority of its first replicas is there.
    directories: BTreeMap<ClusterId, Directory>,
    random: Random,
    inits: u64,
    is_wiped: bool,
    answers: Vec<AdminReply>,
}

fn address(seed: usize) -> String {
    addresses(seed).peer
}

impl World {
    fn new(number: u64) -> World {
        let mut random = Random::new(number);
        let mut world = World {
            now: 0,
            agenda: BinaryHeap::new(),
            events: BTreeMap::new(),
            ordered: 0,
            seeds: (0..SEEDS).map(|_| Seed::new()).collect(),
            directories: BTreeMap::new(),
            inits: 0,
            is_wiped: false,
            answers: Vec::new(),
            random: random.clone(),
        };
        for seed in 0..SEEDS {
            world.order(random.below(3_000 * MS), Event::Start(seed));
        }
        for _ in 0..random.below(4) {
            let (at, seed) = (random.below(FAULTS_END), random.below(SEEDS));
            let replicas = if random.chance(200) { 1 } else { 3 };
            world.order(at, Event::Init { seed, if_needed: random.chance(300), replicas });
        }
        // Most faults come while the first `init` is at it.
        for _ in 0..random.below(6) {
            let at = if random.chance(800) { random.below(5_000 * MS) } else { random.below(FAULTS_END) };
            let (seed, down) = (random.below(SEEDS), random.below(4_000 * MS));
            world.order(at, Event::Crash { seed, down, is_wiped: seed == 0 && random.chance(200) });
        }
        world
    }

    fn order(&mut self, after: Nanos, event: Event) {
        self.ordered += 1;
        self.agenda.push(Reverse((self.now + after, self.ordered)));
        self.events.insert(self.ordered, event);
    }

    /// Most messages are fast, some are late.
    fn delay(&mut self) -> Nanos {
        let most = if self.random.chance(100) { 2_000 * MS } else { 50 * MS };
        self.random.below(most)
    }

    fn run(&mut self, until: Nanos) {
        while let Some(&Reverse((at, number))) = self.agenda.peek()
            && at <= until
        {
            self.agenda.pop();
            self.now = at;
            let event = self.events.remove(&number).expect("it was ordered");
            self.happen(event);
            self.check();
        }
        self.now = until;
    }

    fn check(&self) {
        let clusters: BTreeSet<ClusterId> =
            self.seeds.iter().filter_map(|seed| seed.identity.map(|(cluster, _)| cluster)).collect();
        assert!(clusters.len() <= 1, "two clusters: {clusters:?}");
        let created = self.directories.values().filter(|directory| directory.state().map.version.0 > 0);
        assert!(created.count() <= 1, "two maps were created");
        let mut created = self.seeds.iter().filter_map(|seed| seed.created.as_ref().map(|(_, create)| create));
        if let Some(first) = created.next() {
            assert!(created.all(|create| create == first), "two first configurations of group 0");
        }
    }

    fn is_there(&self, (boot, init): Asker) -> bool {
        self.seeds[0].is_up && self.seeds[0].boot == boot && self.seeds[0].forming.contains_key(&init)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Start(seed) => self.start(seed),
            Event::Crash { seed, down, is_wiped } if self.seeds[seed].is_up => {
                let each = &mut self.seeds[seed];
                let disk = (each.identity, each.created.take(), Arc::clone(&each.map));
                *each = Seed { boot: each.boot + 1, ..Seed::new() };
                match is_wiped {
                    true => self.is_wiped = true,
                    false => (each.identity, each.created, each.map) = disk,
                }
                self.order(down, Event::Start(seed));
            }
            Event::Crash { .. } => {}
            Event::Init { seed, if_needed, replicas } => self.init(seed, if_needed, replicas),
            Event::Identify { asker, seed } if self.is_there(asker) => match self.seeds[seed].is_up {
                true => self.hear(asker, Heard::Identified { seed: address(seed), who: self.identified(seed) }),
                false => self.order(ASK_AGAIN, Event::Identify { asker, seed }),
            },
            Event::Assign { asker, seed, assignment } if self.is_there(asker) => match self.seeds[seed].is_up {
                true => {
                    let assigned = self.become_node(seed, &assignment).map(|()| self.identified(seed));
                    self.hear(asker, Heard::Assigned(assigned));
                }
                false => self.order(ASK_AGAIN, Event::Assign { asker, seed, assignment }),
            },
            Event::Decide { asker, command, until } if self.is_there(asker) => self.decide(asker, command, until),
            Event::Heard { asker, heard } if self.is_there(asker) => self.step(asker, heard),
            Event::Deadline { asker } if self.is_there(asker) => {
                let deadline = self.seeds[0].forming[&asker.1].deadline().0;
                match deadline.checked_sub(self.now).filter(|left| *left > 0) {
                    Some(left) => self.order(left, Event::Deadline { asker }),
                    None => self.step(asker, Heard::TimedOut),
                }
            }
            Event::Map { seed } => self.learn(seed),
            Event::Identify { .. }
            | Event::Assign { .. }
            | Event::Decide { .. }
            | Event::Heard { .. }
            | Event::Deadline { .. } => {}
        }
    }

    /// An answer is on its way.
    fn hear(&mut self, asker: Asker, heard: Heard) {
        let delay = self.delay();
        self.order(delay, Event::Heard { asker, heard });
    }

    fn start(&mut self, seed: usize) {
        let each = &mut self.seeds[seed];
        each.is_up = true;
        let Some((_, node)) = each.identity else { return };
        self.tell(seed, Input::Identity { node, kept: None, seeds: Vec::new() });
        if let Some(created) = self.seeds[seed].created.clone() {
            let (group, created, replay) = (PartitionId::DIRECTORY, Some(created), GroupReplay::default());
            let recovered = RecoveredReplica { group, removed: None, created, loaded: None, replay };
            self.tell(seed, Input::Recovered(Box::new(recovered)));
        }
        let map = Arc::clone(&self.seeds[seed].map);
        self.tell(seed, Input::Map(map));
        self.tell(seed, Input::Restored { seeds: SEEDS as u32, copy: None });
        let delay = self.delay();
        self.order(delay, Event::Map { seed });
    }

    fn tell(&mut self, seed: usize, input: Input) {
        let mut effects = Vec::new();
        self.seeds[seed].controller.step(Time(self.now), input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Start(start) if start.group == PartitionId::DIRECTORY && start.is_new => {
                    self.seeds[seed].created = Some((start.me, start.create));
                }
                Effect::Map(map) => self.seeds[seed].map = map,
                _ => {}
            }
        }
    }

    fn identified(&self, seed: usize) -> Identified {
        let Seed { identity, map, .. } = &self.seeds[seed];
        let size = (map.version.0 > 0).then_some((map.nodes.len() as u32, map.partitions.len() as u32));
        Identified { identity: *identity, size, name: format!("n{seed}"), addresses: addresses(seed) }
    }

    fn become_node(&mut self, seed: usize, assignment: &Assignment) -> Result<(), String> {
        let &Assignment { cluster, node, ref directory } = assignment;
        if becomes(self.seeds[seed].identity, (cluster, node))? {
            self.seeds[seed].identity = Some((cluster, node));
            self.tell(seed, Input::Identity { node, kept: None, seeds: Vec::new() });
            self.tell(seed, Input::Restored { seeds: SEEDS as u32, copy: None });
        }
        self.seeds[seed].controller.replicas().may_found(&first_directory(directory))?;
        if self.seeds[seed].map.version.0 == 0 {
            self.tell(seed, Input::Founded(directory.clone()));
        }
        Ok(())
    }

    fn init(&mut self, seed: usize, if_needed: bool, replicas: u32) {
        self.inits += 1;
        let (number, drawn) = (self.inits, ClusterId(u128::from(self.random.next())));
        let settings = vec![("replicas".into(), replicas.to_string())];
        let request = InitRequest { partitions: 2, nonce: number, if_needed, settings, ..InitRequest::default() };
        let each = &mut self.seeds[seed];
        if !each.is_up {
            return;
        }
        let process = Process {
            cluster: each.identity.map(|(cluster, _)| cluster),
            map: &each.map,
            address: address(seed),
            seeds: (0..SEEDS).map(address).collect(),
            partitions_max: 256,
        };
        match each.bootstrap.init(process, request, drawn) {
            Init::PassOn(first) => {
                assert_eq!(first, address(0));
                self.init(0, if_needed, replicas);
            }
            Init::Answer(answer) => self.answers.push(*answer),
            Init::Form(mut forming) => {
                let asker = (each.boot, number);
                let next = forming.begin(Time(self.now));
                each.forming.insert(number, *forming);
                self.order(0, Event::Deadline { asker });
                self.go_on(asker, next);
            }
        }
    }

    fn step(&mut self, asker: Asker, heard: Heard) {
        let now = Time(self.now);
        let forming = self.seeds[0].forming.get_mut(&asker.1).expect("it is there");
        let next = forming.step(now, heard);
        self.go_on(asker, next);
    }

    fn go_on(&mut self, asker: Asker, next: Next) {
        let delay = self.delay();
        match next {
            ControlFlow::Break(answer) => {
                self.seeds[0].forming.remove(&asker.1);
                self.answers.push(answer);
            }
            ControlFlow::Continue(Ask::Identify(asked)) => {
                for seed in (0..SEEDS).filter(|seed| asked.contains(&address(*seed))) {
                    let delay = self.delay();
                    self.order(delay, Event::Identify { asker, seed });
                }
            }
            ControlFlow::Continue(Ask::Hear) => {}
            ControlFlow::Continue(Ask::Assign { seed, cluster, node, directory }) => {
                let seed = seed.map_or(0, |at| (0..SEEDS).find(|seed| address(*seed) == at).expect("a seed"));
                let assignment = Assignment { cluster, node, directory };
                self.order(delay, Event::Assign { asker, seed, assignment });
            }
            ControlFlow::Continue(Ask::Decide(command)) => {
                let until = self.now + DECIDED_WITHIN;
                self.order(delay, Event::Decide { asker, command, until });
            }
            ControlFlow::Continue(Ask::Map) => {
                let map = Arc::clone(&self.seeds[0].map);
                let (nodes, partitions) = (map.nodes.len() as u32, map.partitions.len() as u32);
                self.hear(asker, Heard::Exists { nodes, partitions });
            }
            ControlFlow::Continue(Ask::Leaders(_)) => self.hear(asker, Heard::Led),
        }
    }

    /// The replicas of group 0 decide, if a majority of them is there.
    fn decide(&mut self, asker: Asker, command: Box<DirectoryCommand>, until: Nanos) {
        let cluster = self.seeds[0].identity.expect("it is a node by now").0;
        let is_there =
            |seed: &&Seed| seed.is_up && seed.created.is_some() && seed.identity.unwrap_or_default().0 == cluster;
        let founders = self.founders().unwrap_or(SEEDS);
        if self.seeds.iter().filter(is_there).count() <= founders / 2 {
            return match self.now < until {
                true => self.order(ASK_AGAIN, Event::Decide { asker, command, until }),
                false => self.hear(asker, Heard::Decided(Err("no leader of the directory is known".into()))),
            };
        }
        let directory = self.directories.entry(cluster).or_default();
        let (batch, mut answers) = (Batch::Commands(Commands::new(1, entry::directory(&command))), Vec::new());
        directory.execute(Instance(1), &batch, &mut answers);
        let Some(Outcome::Directory(reply)) = answers.pop().map(|answer| answer.outcome) else { panic!("no answer") };
        self.hear(asker, Heard::Decided(Ok::<DirectoryReply, String>(reply)));
        for seed in 0..SEEDS {
            let delay = self.delay();
            self.order(delay, Event::Map { seed });
        }
    }

    /// With how many replicas group 0 began.
    fn founders(&self) -> Option<usize> {
        self.seeds.iter().find_map(|seed| Some(seed.created.as_ref()?.1.nodes().count()))
    }

    /// A node hears of its cluster's map, if there is one.
    fn learn(&mut self, seed: usize) {
        let Some((cluster, _)) = self.seeds[seed].identity.filter(|_| self.seeds[seed].is_up) else { return };
        let map = self.directories.get(&cluster).map(|directory| Arc::new(directory.state().map.clone()));
        if let Some(map) = map {
            self.tell(seed, Input::Map(map));
        }
    }
}

/// Plays one seed to its end: how the last `init` went, and whether there was anything to go on with.
fn play(number: u64) -> bool {
    let mut world = World::new(number);
    world.run(2 * FAULTS_END + 60_000 * MS);
    assert!(world.seeds.iter().all(|seed| seed.is_up && seed.forming.is_empty()), "{number}: an init has no end");
    let goes_on = world.seeds.iter().any(|seed| seed.identity.is_some());
    let replicas = world.founders().unwrap_or(SEEDS) as u32;
    world.order(0, Event::Init { seed: (number % 3) as usize, if_needed: true, replicas });
    world.run(world.now + Duration::from_secs(120).as_nanos() as Nanos);
    let cluster = world.seeds.iter().find_map(|seed| seed.identity).map(|(cluster, _)| cluster);
    match world.answers.last() {
        Some(AdminReply::Initialized { cluster: formed, nodes: 3, partitions: 2, .. }) if Some(*formed) == cluster => {}
        // The first seed has lost its disk, and another one belongs to the cluster that it began.
        Some(AdminReply::Failed(AdminError::Exists(_))) if world.is_wiped => {}
        other => panic!("{number}: {other:?}"),
    }
    goes_on
}

#[test]
fn one_cluster_is_formed_whatever_ends_and_is_asked_again_meanwhile() {
    let went_on = (0..2_000).filter(|number| play(*number)).count();
    assert!(went_on > 500, "{went_on}");
}

#[cfg(feature = "mutants")]
#[test]
fn forming_that_asks_nobody_or_begins_otherwise_is_caught() {
    let test = "forming::one_cluster_is_formed_whatever_ends_and_is_asked_again_meanwhile";
    planted::assert_caught("init_asks_nobody", test);
    planted::assert_caught("founds_otherwise", test);
}
