//! Scripts as tests: a group whose every message and flush is moved by hand.
//!
//! A file is a list of blocks: a command, `----`, and what it printed, up to an empty line. `UPDATE=1` rewrites what
//! was printed; a rewritten diff is read like code. Lines that start with `#` are kept as they are. The commands:
//!
//! ```text
//! group n=3 [learners=1] [setting=value ..]   a group, all replicas up; prints nothing
//! clock r0 rate=91                            its clock runs at 91 %
//! elect r0                                    it becomes leader, everything is delivered; prints the outcome only
//! submit r0 a b c                             one submission per word
//! deliver 0->1 [count] | deliver all          moves messages; without a count all that are there now
//! copy 0->1                                   delivers the first message, and keeps it
//! drop 0->1 [count] | drop all
//! cut 0->1 | cut r0 | heal                    what is sent there is lost from now on | no more
//! hold 0->1 | hold r0 | release               stays under way, but for `deliver 0->1` | no more
//! stash 0->1 | unstash                        puts the first message aside | all of them back, in front
//! pause r0 | resume r0                        hears nothing and is not ticked, but for `tick r0`
//! show                                        the messages under way
//! flush r0 [count] | flush all                makes written records durable
//! run                                         delivers and flushes until nothing moves; prints the outcome only
//! advance 10ms                                time passes, nobody is ticked
//! tick r0                                     time passes to its deadline (not back), and it is ticked
//! idle 100ms                                  time passes, all moves, everybody is ticked; prints the outcome only
//! stuck r0 [elsewhere] | room r0              its log takes nothing; those of a majority do, or do not | it does again
//! crash r0 [kept=1] | restart r0              of the unflushed records `kept` survive
//! read r0 | ask r1                            a read as last executed; a read that needs a position
//! distance r0                                 how far it is to a quorum and back, as it measured it
//! change r0 voters=0,1 learners=3 | add r3    membership; a new replica, up
//! transfer r0 r1 20ms                         leader transfer
//! slow r0 | execute r0                        its executor waits | goes on
//! checkpoint r0 [keep=0] | install r1 r0      snapshot and trim | r1 installs a snapshot of r0
//! released r0 1.5                             watermark ~1.5
//! lost r1 r0 100ms                            r1 is told that r0's node is silent for so long
//! gone r1 r0                                  r1 is told that r0's process has ended
//! log all | log r0                            decided logs, with their digest of what is executed
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;
use coppice_ordering::{Ballot, Configuration, Input, LogRoom, Message, Paxos, Reads, ReplicaId, Settings, Ticket};

use super::Cluster;
use super::node::Clock;

type Link = (ReplicaId, ReplicaId);

pub struct Script {
    cluster: Option<Cluster>,
    settings: Settings,
    wire: BTreeMap<Link, VecDeque<Message>>,
    cut: BTreeSet<Link>,
    held: BTreeSet<Link>,
    paused: BTreeSet<ReplicaId>,
    stash: Vec<(Link, Message)>,
}

/// Runs a script; returns the text with what it really printed.
pub fn run(text: &str) -> String {
    let mut script = Script {
        cluster: None,
        settings: Settings::default(),
        wire: BTreeMap::new(),
        cut: BTreeSet::new(),
        held: BTreeSet::new(),
        paused: BTreeSet::new(),
        stash: Vec::new(),
    };
    let mut out = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        out += line;
        out += "\n";
        if line.starts_with('#') || line.trim().is_empty() {
            continue;
        }
        // The old output, up to an empty line.
        for old in lines.by_ref() {
            if old.trim().is_empty() {
                break;
            }
        }
        let printed = script.command(line);
        out += "----\n";
        out += &printed;
        out += "\n";
    }
    out
}

fn replica(word: &str) -> ReplicaId {
    ReplicaId(word.trim_start_matches('r').parse().unwrap_or_else(|_| panic!("{word} is no replica")))
}

fn millis(word: &str) -> Duration {
    let ms: f64 = word.trim_end_matches("ms").parse().unwrap_or_else(|_| panic!("{word} is no duration"));
    Duration::from_nanos((ms * 1e6) as u64)
}

fn link(word: &str) -> Link {
    let (from, to) = word.split_once("->").unwrap_or_else(|| panic!("{word} is no link"));
    (replica(from), replica(to))
}

fn option<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

fn list(word: Option<&str>) -> impl Iterator<Item = ReplicaId> {
    word.unwrap_or("").split(',').filter(|id| !id.is_empty()).map(replica)
}

impl Script {
    fn cluster(&mut self) -> &mut Cluster {
        self.cluster.as_mut().expect("a script begins with `group`")
    }

    fn command(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (verb, words) = words.split_first().expect("a command");
        let quiet = ["elect", "run", "idle", "group"].contains(verb);
        let mut out = self.act(verb, words);
        self.collect();
        for node in self.cluster().nodes.values_mut() {
            for line in node.log.drain(..).filter(|_| !quiet) {
                writeln!(out, "{}: {line}", node.id).expect("a string takes it");
            }
        }
        out
    }

    fn act(&mut self, verb: &str, words: &[&str]) -> String {
        if self.move_messages(verb, words) || self.change_membership(verb, words) {
            return String::new();
        }
        match (verb, words) {
            ("group", words) => self.group(words),
            ("clock", [id, rate]) => {
                let rate_percent = rate.trim_start_matches("rate=").parse().expect("a rate");
                self.cluster().node(replica(id)).clock = Clock { offset: 0, rate_percent };
            }
            ("elect", [id]) => return self.elect(replica(id)),
            ("submit", [id, words @ ..]) => return self.submit(replica(id), words),
            ("pause", [id]) => {
                self.paused.insert(replica(id));
            }
            ("resume", [id]) => {
                self.paused.remove(&replica(id));
            }
            ("show", []) => return self.show(),
            ("flush", ["all"]) => self.flush_all(),
            ("flush", [id, count @ ..]) => {
                let count = count.first().map_or(usize::MAX, |count| count.parse().expect("a count"));
                self.on(replica(id), |node, now, truth| node.flush(count, now, truth));
            }
            ("stuck", [id, elsewhere @ ..]) => {
                let room = if elsewhere.is_empty() { LogRoom::Nowhere } else { LogRoom::Elsewhere };
                self.set_room(replica(id), room);
            }
            ("room", [id]) => self.set_room(replica(id), LogRoom::Here),
            ("run", []) => {
                self.settle();
                return self.outcome();
            }
            ("advance", [time]) => self.cluster().now += millis(time).as_nanos() as u64,
            ("tick", [id]) => self.tick(replica(id)),
            ("idle", [time]) => {
                self.idle(millis(time));
                return self.outcome();
            }
            ("crash", [id, kept @ ..]) => {
                let kept = option(kept, "kept").map_or(0, |kept| kept.parse().expect("a count"));
                self.on(replica(id), |node, _, truth| node.crash(kept, truth));
            }
            ("restart", [id]) => self.on(replica(id), |node, now, truth| node.start(now, truth)),
            ("read", [id]) => return self.read(replica(id)),
            ("distance", [id]) => return self.distance(replica(id)),
            ("ask", [id]) => self.on(replica(id), |node, now, truth| node.ask(now, truth)),
            ("released", [id, ticket]) => {
                let (round, n) = ticket.split_once('.').expect("round.n");
                let ballot = Ballot::new(round.parse().expect("a round"), 0);
                let ticket = Ticket { ballot, n: n.parse().expect("a number") };
                self.on(replica(id), |node, now, truth| node.set_released(now, ticket, truth));
            }
            ("lost", [id, peer, silence]) => {
                let (peer, silence) = (replica(peer), millis(silence).as_nanos() as u64);
                let lost = |now: u64| Input::Lost { peer, since: coppice_ordering::Time(now - silence) };
                self.on(replica(id), |node, now, truth| node.step(now, lost(now), truth));
            }
            ("gone", [id, peer]) => self.cluster().step(replica(id), Input::Gone { peer: replica(peer) }),
            ("log", ["all"]) => return self.logs(None),
            ("log", [id]) => return self.logs(Some(replica(id))),
            _ => panic!("unknown command: {verb} {words:?}"),
        }
        String::new()
    }

    /// Commands about the wire; false if it is none of them.
    fn move_messages(&mut self, verb: &str, words: &[&str]) -> bool {
        match (verb, words) {
            ("deliver", ["all"]) => self.deliver_all(),
            ("deliver", [link_word, count @ ..]) => self.deliver(link(link_word), count.first().copied()),
            ("copy", [link_word]) => {
                let (from, to) = link(link_word);
                let message = self.wire.get(&(from, to)).and_then(|queue| queue.front()).cloned();
                self.cluster().deliver(from, to, message.expect("a message"));
            }
            ("drop", ["all"]) => self.wire.clear(),
            ("drop", [link_word, count @ ..]) => {
                self.take(link(link_word), count.first().copied());
            }
            ("cut", [which]) => {
                let links = self.links(which);
                self.cut.extend(links);
            }
            ("heal", []) => self.cut.clear(),
            ("hold", [which]) => {
                let links = self.links(which);
                self.held.extend(links);
            }
            ("release", []) => self.held.clear(),
            ("stash", [link_word]) => {
                let message = self.take(link(link_word), Some("1")).pop().expect("a message");
                self.stash.push((link(link_word), message));
            }
            ("unstash", []) => {
                for (link, message) in self.stash.drain(..) {
                    self.wire.entry(link).or_default().push_front(message);
                }
            }
            _ => return false,
        }
        true
    }

    /// Commands about who replicates and what is kept; false if it is none of them.
    fn change_membership(&mut self, verb: &str, words: &[&str]) -> bool {
        match (verb, words) {
            ("change", [id, words @ ..]) => {
                let mut configuration = Configuration::of_voters(list(option(words, "voters")));
                configuration.learners = list(option(words, "learners")).collect();
                self.cluster().step(replica(id), Input::Change(configuration));
            }
            ("add", [id]) => self.add(replica(id)),
            ("transfer", [id, to, time]) => {
                let now = self.cluster().now;
                let deadline = self.cluster().node(replica(id)).clock.read(now) + millis(time);
                self.cluster().step(replica(id), Input::TransferLeader { to: replica(to), deadline });
            }
            ("slow", [id]) => self.cluster().node(replica(id)).slow_executor = true,
            ("execute", [id]) => self.on(replica(id), |node, now, truth| {
                node.slow_executor = false;
                node.step(now, Input::Tick, truth);
            }),
            ("checkpoint", [id, keep @ ..]) => {
                let keep = option(keep, "keep").map_or(0, |keep| keep.parse().expect("a count"));
                self.on(replica(id), |node, now, truth| node.checkpoint(now, keep, truth));
            }
            ("install", [id, from]) => {
                let cluster = self.cluster();
                let snapshot = cluster.nodes[&replica(from)].take_snapshot(&cluster.truth);
                self.on(replica(id), |node, now, truth| node.install(snapshot, now, truth));
            }
            _ => return false,
        }
        true
    }

    fn on(&mut self, id: ReplicaId, f: impl FnOnce(&mut super::node::Node, u64, &mut super::truth::Truth)) {
        let Cluster { nodes, truth, now } = self.cluster();
        f(nodes.get_mut(&id).unwrap_or_else(|| panic!("there is no {id}")), *now, truth);
    }

    fn group(&mut self, words: &[&str]) {
        let number = |name: &str| option(words, name).map(|n| n.parse::<u64>().expect("a number"));
        let time = |name: &str, default| option(words, name).map_or(default, millis);
        let default = Settings::default();
        let lease = option(words, "reads") == Some("lease");
        self.settings = Settings {
            window: number("window").unwrap_or(16) as u32,
            eager_window: number("eager_window").unwrap_or(16) as u32,
            batch_bytes_max: number("batch_bytes_max").unwrap_or(64) as usize,
            batch_delay_max: time("batch_delay_max", default.batch_delay_max),
            window_bytes_max: number("window_bytes_max").unwrap_or(1 << 20) as usize,
            queue_submissions_max: number("queue_submissions_max").unwrap_or(8_192) as usize,
            apply_lag_max: number("apply_lag_max").unwrap_or(128),
            phase1b_bytes_max: number("phase1b_bytes_max").unwrap_or(1 << 20) as usize,
            catch_up_bytes_max: number("catch_up_bytes_max").unwrap_or(1 << 20) as u32,
            quiesce_heartbeat_interval: time("quiesce_heartbeat_interval", default.quiesce_heartbeat_interval),
            lease_duration: time("lease_duration", default.lease_duration),
            reads: if lease { Reads::Lease } else { Reads::Quorum },
            ..default
        };
        let voters = number("n").expect("n=") as u32;
        let learners = number("learners").unwrap_or(0) as u32;
        let mut first = Configuration::of_voters((0..voters).map(ReplicaId));
        first.learners = (voters..voters + learners).map(ReplicaId).collect();
        let mut cluster = Cluster::new(first.clone(), &self.settings, 7);
        for id in first.members() {
            cluster.node(id).logging = true;
            cluster.start(id);
        }
        self.cluster = Some(cluster);
        self.wire.clear();
    }

    fn add(&mut self, id: ReplicaId) {
        let settings = self.settings.clone();
        let cluster = self.cluster();
        let members = cluster.truth.governing(cluster.truth.decided_upto.next()).0.clone();
        cluster.add(id, &members, &settings, 7);
        cluster.node(id).logging = true;
        cluster.start(id);
    }

    /// One link, or all of a replica.
    fn links(&mut self, which: &str) -> Vec<Link> {
        if which.contains("->") {
            return vec![link(which)];
        }
        let id = replica(which);
        self.cluster().nodes.keys().flat_map(|other| [(id, *other), (*other, id)]).collect()
    }

    /// Takes what was sent to the links.
    fn collect(&mut self) {
        for node in self.cluster.as_mut().expect("a group").nodes.values_mut() {
            for (to, message) in node.sent.drain(..).filter(|(to, _)| !self.cut.contains(&(node.id, *to))) {
                self.wire.entry((node.id, to)).or_default().push_back(message);
            }
        }
    }

    fn take(&mut self, link: Link, count: Option<&str>) -> Vec<Message> {
        let queue = self.wire.entry(link).or_default();
        let count = count.map_or(queue.len(), |count| count.parse().expect("a count"));
        queue.drain(..count.min(queue.len())).collect()
    }

    fn deliver(&mut self, (from, to): Link, count: Option<&str>) {
        for message in self.take((from, to), count) {
            self.cluster().deliver(from, to, message);
        }
    }

    fn deliver_all(&mut self) {
        for link in self.moving() {
            self.deliver(link, None);
        }
    }

    /// The links on which something can move.
    fn moving(&self) -> Vec<Link> {
        let moves = |link: &&Link| !self.held.contains(link) && !self.paused.contains(&link.1);
        let full = self.wire.iter().filter(|(_, queue)| !queue.is_empty()).map(|(link, _)| link);
        full.filter(moves).copied().collect()
    }

    fn flush_all(&mut self) {
        let ids: Vec<ReplicaId> = self.cluster().nodes.keys().copied().collect();
        for id in ids {
            self.on(id, |node, now, truth| node.flush(usize::MAX, now, truth));
        }
    }

    fn settle(&mut self) {
        for _ in 0..1_000 {
            self.flush_all();
            self.collect();
            if self.moving().is_empty() {
                return;
            }
            self.deliver_all();
            self.collect();
        }
        panic!("it never settles");
    }

    fn tick(&mut self, id: ReplicaId) {
        let cluster = self.cluster();
        cluster.now = cluster.now.max(cluster.nodes[&id].deadline().unwrap_or(0));
        cluster.step(id, Input::Tick);
    }

    fn idle(&mut self, time: Duration) {
        let end = self.cluster().now + time.as_nanos() as u64;
        self.settle();
        for ticks in 0.. {
            assert!(ticks < 100_000, "time stands still");
            let paused = self.paused.clone();
            let awake = self.cluster().nodes.values().filter(|node| !paused.contains(&node.id));
            let next = awake.filter_map(|n| Some((n.deadline()?, n.id))).min();
            let Some((_, id)) = next.filter(|(at, _)| *at <= end) else { break };
            self.tick(id);
            self.settle();
        }
        self.cluster().now = end;
    }

    fn set_room(&mut self, id: ReplicaId, room: LogRoom) {
        let node = self.cluster().node(id);
        node.stuck = room != LogRoom::Here;
        node.paxos.as_mut().expect("it is up").set_log_room(room);
    }

    fn elect(&mut self, id: ReplicaId) -> String {
        for _ in 0..20 {
            self.tick(id);
            self.settle();
            if self.cluster().nodes[&id].is_leader() {
                return self.outcome();
            }
        }
        panic!("{id} is not elected: {}", self.outcome());
    }

    fn submit(&mut self, id: ReplicaId, words: &[&str]) -> String {
        let mut out = String::new();
        for word in words {
            let bytes = Bytes::from(format!("{word} "));
            let Cluster { nodes, truth, now } = self.cluster();
            if !nodes.get_mut(&id).expect("a replica").submit(*now, bytes, truth) {
                writeln!(out, "{id}: refuses {word}").expect("a string takes it");
            }
        }
        out
    }

    fn read(&mut self, id: ReplicaId) -> String {
        self.on(id, |node, now, truth| node.read(now, truth));
        String::new()
    }

    fn distance(&mut self, id: ReplicaId) -> String {
        let measured = self.cluster().nodes[&id].paxos.as_ref().and_then(Paxos::round_trip);
        measured.map_or_else(|| format!("{id}: not measured\n"), |time| format!("{id}: {time:?}\n"))
    }

    fn show(&self) -> String {
        let mut out = String::new();
        for ((from, to), queue) in &self.wire {
            for message in queue {
                writeln!(out, "{from} -> {to}: {message}").expect("a string takes it");
            }
        }
        out
    }

    fn outcome(&mut self) -> String {
        let mut out = String::new();
        for node in self.cluster().nodes.values() {
            let state = |paxos: &Paxos| {
                let role = match (paxos.is_leader(), paxos.leader()) {
                    (true, _) => "leads".to_owned(),
                    (false, Some(leader)) => format!("follows {leader}"),
                    (false, None) => "follows nobody".to_owned(),
                };
                format!("{role} in {}, decided {}", paxos.ballot(), paxos.decided_upto())
            };
            let gone = if node.gone { "is gone" } else { "is down" };
            let state = node.paxos.as_ref().map_or(gone.to_owned(), state);
            writeln!(out, "{} {state}", node.id).expect("a string takes it");
        }
        out
    }

    fn logs(&mut self, only: Option<ReplicaId>) -> String {
        let mut out = String::new();
        let cluster = self.cluster();
        for node in cluster.nodes.values().filter(|node| only.is_none_or(|id| id == node.id)) {
            let batch = |(instance, batch): (_, &_)| format!("{instance} {batch}");
            let log: Vec<String> =
                cluster.truth.log.iter().take(node.decided_upto.0 as usize).map(|(i, b)| batch((i, b))).collect();
            writeln!(out, "{}: {}", node.id, log.join(", ")).expect("a string takes it");
        }
        out
    }
}
