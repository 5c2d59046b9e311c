//! One frame from anybody could end a group for good: a candidate's round of 2^64-2 was promised durably, and the next
//! election wrapped, at every start. A peer's numbers, batches and configurations are checked before anything acts on
//! them (`paxos/validate.rs`); here a peer says whatever it likes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use coppice_ordering::message::{
    AcceptedBatch, CatchUp, CatchUpReply, Heartbeat, HeartbeatAck, Message, Phase1a, Phase1b, Phase2a, Phase2b,
    PreVote, PreVoteReply, Preempted, ReadPosition, ReadPositionReply, TransferLeader,
};
use coppice_ordering::{
    BATCH_BYTES_MAX, Ballot, Batch, Commands, Config, Configuration, Effect, HeartbeatRound, Input, Instance, Lsn,
    Paxos, ROUND_MAX, Record, RecoveredGroup, ReplicaId, Ticket, Time,
};
use coppice_testkit::random::Random;

const MS: u64 = 1_000_000;

fn configuration() -> Configuration {
    Configuration::of_voters((0..3).map(ReplicaId))
}

fn config(id: u32, seed: u64) -> Config {
    Config { campaign_first: id == 0, ..Config::new(ReplicaId(id), configuration(), seed) }
}

fn commands(length: usize) -> Batch {
    Batch::Commands(Commands::new(1, vec![b'x'; length].into()))
}

/// Replicas whose messages and flushes take a tenth of a millisecond each.
struct Group {
    now: Time,
    replicas: BTreeMap<u32, Paxos>,
    wire: VecDeque<(Time, u32, u32, Message)>,
}

impl Group {
    /// Of these; all others hear and say nothing.
    fn of(ids: &[u32], seed: u64) -> Group {
        let replicas = ids.iter().map(|id| (*id, Paxos::new(config(*id, seed), Time::ZERO))).collect();
        Group { now: Time::ZERO, replicas, wire: VecDeque::new() }
    }

    fn step(&mut self, id: u32, input: Input) {
        let mut effects = Vec::new();
        self.replicas.get_mut(&id).expect("a replica").step(self.now, input, &mut effects);
        self.carry_out(id, effects);
    }

    fn carry_out(&mut self, id: u32, mut effects: Vec<Effect>) {
        while !effects.is_empty() {
            let (mut durable, mut executed) = (None, None);
            for effect in effects.drain(..) {
                match effect {
                    Effect::Persist { lsn, .. } => durable = durable.max(Some(lsn)),
                    Effect::Decided { upto } => executed = executed.max(Some(upto)),
                    Effect::Send { to, message } => {
                        self.wire.push_back((self.now + Duration::from_micros(100), id, to.0, message));
                    }
                    _ => {}
                }
            }
            let replica = self.replicas.get_mut(&id).expect("a replica");
            let inputs = durable.map(Input::Persisted).into_iter().chain(executed.map(Input::Executed));
            inputs.for_each(|input| replica.step(self.now, input, &mut effects));
        }
    }

    /// Lets time pass; what it hears and its ticks move everybody.
    fn run(&mut self, length: Duration) {
        let end = self.now + length;
        loop {
            let due = self.replicas.iter().filter_map(|(id, paxos)| Some((paxos.deadline()?, *id))).min();
            let arrival = self.wire.front().map(|(at, ..)| *at);
            let next = due.map(|(at, _)| at).into_iter().chain(arrival).min().unwrap_or(end).max(self.now);
            if next >= end {
                self.now = end;
                return;
            }
            self.now = next;
            if arrival.is_some_and(|at| at <= next) {
                let (_, from, to, message) = self.wire.pop_front().expect("it arrives");
                if self.replicas.contains_key(&to) {
                    self.step(to, Input::Message { from: ReplicaId(from), message });
                }
            } else if let Some((_, id)) = due {
                self.now = self.now + Duration::from_micros(20);
                self.step(id, Input::Tick);
            }
        }
    }

    fn leader(&self) -> Option<u32> {
        self.replicas.iter().find(|(_, paxos)| paxos.is_leader()).map(|(id, _)| *id)
    }

    /// Whether something is decided on all of them, soon.
    fn goes_on(&mut self) -> bool {
        let before = self.replicas.values().map(Paxos::decided_upto).max();
        for _ in 0..100 {
            self.run(Duration::from_millis(50));
            if let Some(leader) = self.leader() {
                let mut effects = Vec::new();
                let paxos = self.replicas.get_mut(&leader).expect("it leads");
                _ = paxos.submit(self.now, Bytes::from_static(b"w"), 1, &mut effects);
                self.carry_out(leader, effects);
            }
            if self.replicas.values().all(|paxos| Some(paxos.decided_upto()) > before) {
                return true;
            }
        }
        false
    }

    fn refused(&self) -> u64 {
        self.replicas.values().map(|paxos| paxos.counters().messages_refused).sum()
    }
}

/// What no replica says, though its bytes are a message: to `r1`, from `r2`, in a group that has decided something.
fn absurdities(group: &Group) -> Vec<Message> {
    let known = group.replicas[&1].ballot();
    let last = group.replicas[&1].decided_upto();
    let [top, end] = [u64::MAX, u64::MAX - 1].map(|round| Ballot::new(round, 2));
    let far = Ballot::new(known.round.0 + (1 << 33), 2);
    let own = Ballot::new(known.round.0 + 1, 2);
    let crowd = |count: u32| Batch::Configuration(Configuration::of_voters((0..count).map(ReplicaId)));
    let both = Configuration { learners: BTreeSet::from([ReplicaId(1)]), ..configuration() };
    let phase2a = |ballot: Ballot, instance: Instance, batch: Batch| -> Message {
        Phase2a { ballot, instance, batch, decided_upto: last, released: None }.into()
    };
    let round = |ballot: Ballot, decided_upto: Instance, released: Option<Ticket>| -> Message {
        let (lease, quiesce) = (Duration::MAX, Duration::MAX);
        Heartbeat {
            ballot,
            round: HeartbeatRound(u64::MAX),
            decided_upto,
            held_upto: decided_upto,
            released,
            lease,
            quiesce,
        }
        .into()
    };
    let next = last.next();
    let mut all: Vec<Message> = Vec::new();
    for ballot in [top, end, far] {
        all.push(Phase1a { ballot, from: next, transfer: None }.into());
        all.push(Phase1a { ballot: own, from: next, transfer: Some(ballot) }.into());
        all.push(Preempted { ballot }.into());
        all.push(PreVoteReply { attempt: 1, granted: true, promised: ballot, decided_upto: last }.into());
        all.push(round(ballot, last, None));
        all.push(phase2a(ballot, next, Batch::NoOp));
        all.push(TransferLeader { ballot }.into());
        all.push(ReadPosition { incarnation: 1, ask: u64::MAX, ballot }.into());
        let decided = vec![AcceptedBatch { instance: next, ballot, batch: Batch::NoOp }];
        let (decided_upto, trimmed_upto, held_upto) = (next, last, last);
        all.push(CatchUpReply { decided, decided_upto, trimmed_upto, held_upto, promised: own }.into());
        let decided = Vec::new();
        all.push(CatchUpReply { decided, decided_upto, trimmed_upto, held_upto, promised: ballot }.into());
        all.push(round(own, last, Some(Ticket { ballot, n: 1 })));
    }
    for batch in [commands(20 << 20), commands(BATCH_BYTES_MAX + 1), crowd(0), crowd(33), Batch::Configuration(both)] {
        all.push(phase2a(own, next, batch));
    }
    let no = Instance(u64::MAX);
    all.push(round(own, no, None));
    all.push(phase2a(own, no, Batch::NoOp));
    all.push(phase2a(own, Instance::ZERO, Batch::NoOp));
    all.push(PreVote { attempt: u64::MAX, decided_upto: no }.into());
    all.push(Phase2b { ballot: known, first: Instance::ZERO, instance: no }.into());
    all.push(CatchUp { from: no, bytes_max: u32::MAX }.into());
    all.push(
        HeartbeatAck {
            ballot: known,
            round: HeartbeatRound(1),
            durable_upto: no,
            lease: Duration::MAX,
            released: None,
        }
        .into(),
    );
    for instances in [vec![u64::MAX], vec![last.0 + (1 << 40)], vec![last.0 + 2, last.0 + 1], vec![last.0 + 1; 2]] {
        let accepted =
            |instance: &u64| AcceptedBatch { instance: Instance(*instance), ballot: known, batch: Batch::NoOp };
        let accepted = instances.iter().map(accepted).collect();
        let (from, decided_upto, trimmed_upto) = (next, last, Instance::ZERO);
        all.push(Phase1b { ballot: known, from, accepted, decided_upto, trimmed_upto }.into());
    }
    // What only the leader of that ballot says.
    all.push(round(known, Instance(1 << 40), None));
    all.push(phase2a(known, next, commands(3)));
    all.push(ReadPositionReply { incarnation: 1, ask: 1, position: last, ballot: known }.into());
    all
}

#[test]
fn what_no_replica_says_changes_nothing() {
    let mut group = Group::of(&[0, 1], 1);
    assert!(group.goes_on(), "two of three");
    for to in [1, 0] {
        let said = absurdities(&group);
        for message in said {
            let (before, round) = (group.refused(), group.replicas[&to].ballot());
            let words = format!("{message:?}");
            group.step(to, Input::Message { from: ReplicaId(2), message });
            let words = &words[..words.len().min(200)];
            assert_eq!(group.refused(), before + 1, "r{to} takes {words}");
            assert_eq!(group.replicas[&to].ballot(), round, "r{to} promised by {words}");
        }
        assert!(group.goes_on(), "after all of that at r{to}");
    }
    assert!(group.replicas.values().all(|paxos| paxos.ballot().round < coppice_ordering::Round(9)));
}

#[test]
fn two_batches_for_one_place_end_nobody() {
    let mut paxos = Paxos::new(config(1, 1), Time::ZERO);
    let mut effects = Vec::new();
    let ballot = Ballot::new(1, 2);
    let mut say = |paxos: &mut Paxos, batch: Batch, decided_upto: u64| {
        let (instance, decided_upto, released) = (Instance(1), Instance(decided_upto), None);
        let message = Phase2a { ballot, instance, batch, decided_upto, released }.into();
        paxos.step(Time::ZERO, Input::Message { from: ReplicaId(2), message }, &mut effects);
    };
    say(&mut paxos, commands(1), 0);
    say(&mut paxos, commands(2), 0);
    assert_eq!(paxos.counters().messages_refused, 1, "undecided");
    say(&mut paxos, commands(1), 1);
    say(&mut paxos, commands(2), 1);
    assert_eq!((paxos.decided_upto(), paxos.counters().messages_refused), (Instance(1), 2), "decided");
}

#[test]
fn a_log_that_holds_the_last_round_ends_no_start() {
    for round in [u64::MAX, u64::MAX - 1, ROUND_MAX.0] {
        let mut recovered = RecoveredGroup::new();
        recovered.apply(Lsn(1), Record::Promise { ballot: Ballot::new(round, 7) });
        let mut effects = Vec::new();
        let paxos = Paxos::recover(config(0, 1), recovered, Time::ZERO, &mut effects);
        assert!(!paxos.has_rounds_left(), "the driver can say so");
        let mut group = Group::of(&[1, 2], 1);
        group.replicas.insert(0, paxos);
        group.carry_out(0, effects);
        group.run(Duration::from_secs(5));
        group.replicas.remove(&0);
        assert!(group.goes_on(), "the other two never hear of round {round}");
        assert!(group.replicas[&1].ballot().round.0 < 100);
    }
}

/// Draws messages that no good replica sends.
struct Absurd(Random);

impl Absurd {
    fn below(&mut self, n: usize) -> usize {
        self.0.below(n)
    }

    /// A boundary, or a number near one that is known.
    fn number(&mut self, known: u64) -> u64 {
        let bounds = [0, 1, 1 << 16, 1 << 32, 1 << 62, (1 << 62) + 1, u64::MAX - 1, u64::MAX];
        match self.below(3) {
            0 => bounds[self.below(bounds.len())],
            1 => known.wrapping_add(self.below(5) as u64).wrapping_sub(2),
            _ => known.saturating_add(1 << self.below(64)),
        }
    }

    fn ballot(&mut self, known: Ballot) -> Ballot {
        Ballot::new(self.number(known.round.0), self.below(5) as u32)
    }

    fn duration(&mut self) -> Duration {
        [Duration::ZERO, Duration::from_millis(200), Duration::MAX][self.below(3)]
    }

    fn batch(&mut self) -> Batch {
        match self.below(5) {
            0 => Batch::NoOp,
            1 | 2 => commands([0, 1, 2, 100][self.below(4)]),
            3 => commands(BATCH_BYTES_MAX + self.below(2)),
            _ => {
                let mut set = |most: usize| -> BTreeSet<ReplicaId> {
                    (0..self.below(most)).map(|_| ReplicaId(self.below(40) as u32)).collect()
                };
                Batch::Configuration(Configuration { voters: set(40), learners: set(40), leaving: set(4) })
            }
        }
    }

    fn accepted(&mut self, ballot: Ballot, from: Instance) -> Vec<AcceptedBatch> {
        let first = self.number(from.0);
        let kept = |k: u64, random: &mut Absurd| AcceptedBatch {
            instance: Instance(if random.below(9) == 0 { random.number(from.0) } else { first.wrapping_add(k) }),
            ballot: random.ballot(ballot),
            batch: random.batch(),
        };
        (0..self.below(4) as u64).map(|k| kept(k, self)).collect()
    }

    fn message(&mut self, about: &Paxos) -> Message {
        let (ballot, last) = (about.ballot(), about.decided_upto());
        let at = |random: &mut Absurd| Instance(random.number(last.0));
        let ticket = |random: &mut Absurd| {
            let ticket = Ticket { ballot: random.ballot(ballot), n: random.number(1) };
            (random.below(2) == 0).then_some(ticket)
        };
        match self.below(14) {
            0 => PreVote { attempt: self.number(1), decided_upto: at(self) }.into(),
            1 => {
                let (attempt, granted) = (self.number(3), self.below(2) == 0);
                PreVoteReply { attempt, granted, promised: self.ballot(ballot), decided_upto: at(self) }.into()
            }
            2 => {
                let transfer = (self.below(2) == 0).then(|| self.ballot(ballot));
                Phase1a { ballot: self.ballot(ballot), from: at(self), transfer }.into()
            }
            3 => {
                let accepted = self.accepted(ballot, last.next());
                let from = if self.below(2) == 0 { last.next() } else { at(self) };
                Phase1b { ballot, from, accepted, decided_upto: at(self), trimmed_upto: at(self) }.into()
            }
            4 | 5 => {
                let (ballot, instance, batch) = (self.ballot(ballot), at(self), self.batch());
                Phase2a { ballot, instance, batch, decided_upto: at(self), released: ticket(self) }.into()
            }
            6 => Phase2b { ballot, first: at(self), instance: at(self) }.into(),
            7 => Preempted { ballot: self.ballot(ballot) }.into(),
            8 => {
                let (ballot, round, released) = (self.ballot(ballot), HeartbeatRound(self.number(1)), ticket(self));
                let (decided_upto, held_upto) = (at(self), at(self));
                let (lease, quiesce) = (self.duration(), self.duration());
                Heartbeat { ballot, round, decided_upto, held_upto, released, lease, quiesce }.into()
            }
            9 => {
                let (round, durable_upto, lease) = (HeartbeatRound(self.number(9)), at(self), self.duration());
                HeartbeatAck { ballot, round, durable_upto, lease, released: ticket(self) }.into()
            }
            10 => CatchUp { from: at(self), bytes_max: self.number(1) as u32 }.into(),
            11 => {
                let decided = self.accepted(ballot, last.next());
                let (decided_upto, trimmed_upto, held_upto) = (at(self), at(self), at(self));
                let promised = self.ballot(ballot);
                CatchUpReply { decided, decided_upto, trimmed_upto, held_upto, promised }.into()
            }
            12 => {
                let (ask, ballot) = (self.number(1), self.ballot(ballot));
                ReadPosition { incarnation: self.number(1), ask, ballot }.into()
            }
            _ if self.below(2) == 0 => TransferLeader { ballot: self.ballot(ballot) }.into(),
            _ => {
                let (ask, position, ballot) = (self.number(1), at(self), self.ballot(ballot));
                ReadPositionReply { incarnation: self.number(1), ask, position, ballot }.into()
            }
        }
    }
}

/// A peer that lies within the bounds may do harm; no lie ends the process. `ABSURD_SEEDS` runs more.
#[test]
fn whatever_a_peer_says_no_replica_ends() {
    let seeds = std::env::var("ABSURD_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(60);
    for seed in 0..seeds {
        let mut random = Absurd(Random::new(seed));
        let mut group = Group::of(&[0, 1], seed);
        let mut heard = 0;
        while heard < 400 {
            group.run(Duration::from_micros(1 << random.below(18)));
            if let Some(leader) = group.leader() {
                let paxos = group.replicas.get_mut(&leader).expect("it leads");
                let mut effects = Vec::new();
                _ = paxos.submit(group.now, Bytes::from_static(b"w"), 1, &mut effects);
                let ask = coppice_ordering::ReadToken(heard);
                paxos.step(group.now, Input::Confirm(ask), &mut effects);
                group.carry_out(leader, effects);
            }
            for _ in 0..1 + random.below(8) {
                let (to, from) = (random.below(2) as u32, ReplicaId(2 + random.below(3) as u32));
                let mut message = random.message(&group.replicas[&to]);
                // Often it says what only it may say.
                match &mut message {
                    Message::Phase1a(m) if random.below(2) == 0 => m.ballot.replica = from,
                    Message::Phase2a(m) if random.below(2) == 0 => m.ballot.replica = from,
                    Message::Heartbeat(m) if random.below(2) == 0 => m.ballot.replica = from,
                    _ => {}
                }
                group.step(to, Input::Message { from, message });
                heard += 1;
            }
        }
        assert!(group.now > Time(MS) && group.refused() > 0);
    }
}

#[cfg(feature = "mutants")]
#[test]
fn a_replica_that_believes_anything_is_caught() {
    for mutant in ["absurd_round_promised", "anybody_leads"] {
        let program = std::env::current_exe().expect("this program");
        let mut command = std::process::Command::new(program);
        let output = command.args(["what_no_replica_says_changes_nothing", "--exact"]).env("COPPICE_MUTANT", mutant);
        assert!(!output.output().expect("it runs").status.success(), "the planted bug {mutant} survived");
    }
}
