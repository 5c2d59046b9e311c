//! What a replica lets out, and when: one follower, whose peers are played by hand.

use bytes::Bytes;
use coppice_btree::{KeyRange, Op};
use coppice_client::wire::{ClientId, ClusterId, MapVersion, PackWriter, PartitionId, RangeRequest, SessionId, frame};
use coppice_ordering::message::{Message, Phase1b, Phase2a, PreVoteReply, ReadPositionReply};
use coppice_ordering::multicast::{Place, SubQuery, Work};
use coppice_ordering::{
    Ballot, Batch, Commands, Config, Configuration, Instance, QueryId, RecoveredGroup, ReplicaId, Round, Settings,
    Ticket, Time,
};

use super::{Effect, Input, Replica};
use crate::executor::ExecutorSettings;
use crate::machine::entry;
use crate::machine::partition::Partition;
use crate::machine::{Machine, Outcome};
use crate::multicast::PartitionQuery;
use crate::request::{Origin, Reply, Request};
use crate::sessions::SessionLimits;
use crate::snapshot::{self, TakenSnapshot};

mod expiry;
mod looks;
mod responders;
mod stalled_reads;
mod tickets;
mod validation;

const GROUP: PartitionId = PartitionId(1);
const ME: ReplicaId = ReplicaId(2);
/// The state that the follower begins with: one session.
const BEGIN: Instance = Instance(1);
const TICKET: Ticket = Ticket { ballot: Ballot { round: Round(7), replica: ReplicaId(1) }, n: 1 };

struct Follower {
    replica: Replica,
    session: SessionId,
    now: Time,
}

impl Follower {
    fn new() -> Follower {
        Follower::executing(ExecutorSettings::speculating(true))
    }

    fn executing(how: ExecutorSettings) -> Follower {
        let mut partition = Partition::new(GROUP, KeyRange::all(), MapVersion(1));
        let mut answers = Vec::new();
        partition.execute(BEGIN, &batch(entry::open(ClientId(9), 1)), &mut answers);
        let Outcome::Opened(session) = answers[0].outcome else { panic!("{answers:?}") };
        partition.forget_undo();
        let config = Config::new(ME, Configuration::of_voters([1, 2, 3].map(ReplicaId)), 1);
        let recovered =
            RecoveredGroup::from_snapshot(BEGIN, config.configuration.clone(), Instance::ZERO, Ballot::ZERO);
        let machine = Machine::Partition(Box::new(partition));
        let now = Time::ZERO;
        let replica = Replica::recover(GROUP, config, recovered, machine, BEGIN, how, now, &mut Vec::new());
        Follower { replica, session, now }
    }

    fn step(&mut self, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.replica.step(self.now, input, &mut effects);
        effects
    }

    /// The leader of `round` proposes, and says what is decided.
    fn hears(&mut self, round: u64, instance: u64, batch: Batch, decided: u64) -> Vec<Effect> {
        let leader = ReplicaId(if round == 1 { 1 } else { 3 });
        let message = Message::Phase2a(Phase2a {
            ballot: Ballot::new(round, leader.0),
            instance: Instance(instance),
            batch,
            decided_upto: Instance(decided),
            released: None,
        });
        self.step(Input::Peer { from: leader, message })
    }

    /// A client reads everything here; the leader is asked for a position.
    fn is_asked(&mut self) -> u64 {
        let range = RangeRequest { anywhere: true, ..RangeRequest::whole(GROUP) };
        self.asks_its_leader(Origin::Client { worker: 0, stream: 1, connection: 1 }, Request::Range(Box::new(range)))
    }

    /// The same for any read.
    fn asks_its_leader(&mut self, origin: Origin, request: Request) -> u64 {
        let mut effects = self.step(Input::Request { origin, request });
        effects.extend(self.step(Input::TurnEnd));
        let ask = effects.iter().find_map(|effect| match effect {
            Effect::Send { message: Message::ReadPosition(m), .. } => Some(m.ask),
            _ => None,
        });
        ask.expect("the leader is asked")
    }

    fn is_told(&mut self, ask: u64, position: u64) -> Vec<Effect> {
        let message =
            ReadPositionReply { incarnation: 1, ask, position: Instance(position), ballot: Ballot::new(0, 1) }.into();
        self.step(Input::Peer { from: ReplicaId(1), message })
    }

    fn put(&self, number: u64) -> Batch {
        let mut pack = PackWriter::new(Vec::new(), self.session, 1, false, 4_096);
        pack.push(number, Op::Put { key: b"k", value: b"v" }).expect("it fits");
        // Behind the frame's header and the partition stands the entry.
        batch(pack.finish(GROUP, 1).expect("a pack").slice(frame::HEADER_BYTES + 1..))
    }
}

fn batch(entry: Bytes) -> Batch {
    Batch::Commands(Commands::new(1, entry))
}

/// A ticket with one query, which this replica was drawn to answer.
fn place() -> Batch {
    let work = Work::Queries(vec![SubQuery { query: QueryId(1), bytes: share(ME).encode() }]);
    batch(entry::place(&Place { ticket: TICKET, prev: None, work }))
}

/// The whole partition, read by `replica`.
fn share(replica: ReplicaId) -> PartitionQuery {
    PartitionQuery {
        client: ClientId(9),
        query: 1,
        replica,
        low: Bytes::new(),
        high: None,
        scan: Default::default(),
        credit: 0,
    }
}

fn parts(effects: &[Effect]) -> usize {
    effects.iter().filter(|effect| matches!(effect, Effect::Part(_))).count()
}

fn answers(effects: &[Effect]) -> usize {
    let answer = |effect: &&Effect| matches!(effect, Effect::Reply { reply: Reply::Range { .. }, .. });
    effects.iter().filter(answer).count()
}

#[test]
fn a_batch_runs_ahead_when_what_it_is_ordered_by_was_given_out() {
    let mut follower = Follower::executing(ExecutorSettings { deferred: true, ..ExecutorSettings::speculating(true) });
    let put = follower.put(1);
    let effects = follower.hears(1, 2, put, 1);
    let vote = effects.iter().find_map(|effect| match effect {
        Effect::Persist { lsn, .. } => Some(*lsn),
        _ => None,
    });
    let vote = vote.expect("its vote waits for the disk");
    assert!(!follower.replica.may_speculate(), "the leader waits for the vote, and nobody for what it executes");
    let effects = follower.step(Input::Persisted(vote));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Send { message: Message::Phase2b(_), .. })));
    assert!(follower.replica.may_speculate());
    let executor = follower.replica.executor();
    assert_eq!((executor.last_executed(), executor.may_speculate()), (BEGIN, true), "the driver writes first");
    assert_eq!(follower.step(Input::Speculate).len(), 0);
    let executor = follower.replica.executor();
    assert_eq!((executor.last_executed(), executor.decided(), executor.may_speculate()), (Instance(2), BEGIN, false));
    // What nobody ran speculatively runs when it is decided.
    let put = follower.put(2);
    follower.hears(1, 3, put, 2);
    follower.hears(1, 4, Batch::NoOp, 3);
    assert_eq!(follower.replica.executor().decided(), Instance(3));
    let mut without = Follower::executing(ExecutorSettings { deferred: true, ..ExecutorSettings::speculating(false) });
    let put = without.put(1);
    without.hears(1, 2, put, 1);
    without.step(Input::Speculate);
    assert_eq!(
        (without.replica.executor().last_executed(), without.replica.executor().may_speculate()),
        (BEGIN, false)
    );
}

/// Everything that was decided while a replica was behind ran in one step, however long that took.
#[test]
fn what_is_decided_runs_in_steps_between_which_others_have_their_turn() {
    let how = ExecutorSettings { deferred: true, step_work_max: 2, ..ExecutorSettings::speculating(true) };
    let mut follower = Follower::executing(how);
    for instance in 2..12 {
        let put = follower.put(instance);
        follower.hears(1, instance, put, 1);
    }
    follower.hears(1, 12, Batch::NoOp, 11);
    let mut steps = 1;
    while follower.replica.executor().decided() < Instance(11) {
        assert!(follower.replica.may_speculate(), "it goes on in the next step");
        let before = follower.replica.executor().decided().0;
        follower.step(Input::Speculate);
        let ran = follower.replica.executor().decided().0 - before;
        assert!((1..=2).contains(&ran), "{ran} batches of one operation in a step of two");
        steps += 1;
    }
    assert!(steps >= 5, "{steps} steps");
    follower.step(Input::Speculate);
    assert!(!follower.replica.may_speculate());
}

#[test]
fn sp7_a_part_leaves_when_its_place_is_decided() {
    let mut follower = Follower::new();
    assert_eq!(parts(&follower.hears(1, 2, place(), 1)), 0, "executed, and not decided");
    assert_eq!(parts(&follower.hears(1, 3, Batch::NoOp, 2)), 1);
}

#[test]
fn rd7_a_read_of_what_is_taken_back_is_not_answered() {
    let mut follower = Follower::new();
    let put = follower.put(1);
    follower.hears(1, 2, put, 1);
    let ask = follower.is_asked();
    assert_eq!(answers(&follower.is_told(ask, 1)), 0, "what it read is not decided");
    let mut later = follower.hears(2, 2, Batch::NoOp, 1);
    later.extend(follower.hears(2, 3, Batch::NoOp, 2));
    assert_eq!(follower.replica.executor().decided(), Instance(2), "something else is decided there");
    assert_eq!(answers(&later), 0, "the answer holds what was never decided");
}

/// Seed 13248: a leader that its group did not hear answered a read under its lease once a snapshot had replaced what
/// the read saw: a write that was never decided there.
#[test]
fn rd7_a_read_of_what_a_snapshot_replaces_is_not_answered() {
    let mut follower = Follower::new();
    let put = follower.put(1);
    follower.hears(1, 2, put, 1);
    let ask = follower.is_asked();
    assert_eq!(answers(&follower.is_told(ask, 1)), 0, "what it read is not decided");
    let effects = follower.step(snapshot(5));
    assert_eq!(follower.replica.executor().decided(), Instance(5), "something else is decided there");
    assert_eq!(answers(&effects), 0, "the answer holds what was never decided");
    let refused = |effect: &Effect| matches!(effect, Effect::Reply { reply: Reply::Refused(_), .. });
    assert!(effects.iter().any(refused), "its client asks again");
}

/// Nothing was decided behind the snapshot, and the reads that it reaches waited until something was.
#[test]
fn a_follower_answers_from_an_installed_snapshot_what_was_asked_before() {
    let mut follower = Follower::new();
    follower.hears(1, 2, Batch::NoOp, 1);
    let ask = follower.is_asked();
    assert_eq!(answers(&follower.is_told(ask, 5)), 0, "it is not as far as its leader");
    assert_eq!(answers(&follower.step(snapshot(4))), 0, "nor is that snapshot");
    assert_eq!(answers(&follower.step(snapshot(5))), 1);
}

/// An empty state at this instance.
fn snapshot(instance: u64) -> Input {
    Input::Installed {
        machine: Box::new(Machine::Partition(Box::new(Partition::new(GROUP, KeyRange::all(), MapVersion(1))))),
        instance: Instance(instance),
        configuration: Configuration::of_voters([1, 2, 3].map(ReplicaId)),
        configured_at: Instance::ZERO,
        promised: Ballot::new(2, 3),
    }
}

/// Seed 1097: a part of a query was made on top of a write that a snapshot replaced, and left when the ticket was
/// decided above the snapshot: the client would have seen the write.
#[test]
fn sp7_a_part_of_what_a_snapshot_replaces_is_made_again() {
    let mut follower = Follower::new();
    let put = follower.put(1);
    follower.hears(1, 2, put, 1);
    assert_eq!(parts(&follower.hears(1, 3, place(), 1)), 0, "executed, and not decided");
    follower.step(snapshot(2));
    let mut effects = follower.hears(2, 3, place(), 2);
    effects.extend(follower.hears(2, 4, Batch::NoOp, 3));
    assert_eq!(follower.replica.executor().decided(), Instance(3), "the ticket is decided");
    let mut pairs = Vec::new();
    for effect in effects {
        if let Effect::Part(mut part) = effect {
            let mut count = 0;
            part.cursor.walk(|run| {
                count += run.len();
                run.len()
            });
            pairs.push(count);
        }
    }
    assert_eq!(pairs, [0], "one part, without what never was");
}

const LIMITS: SessionLimits =
    SessionLimits { expiry_instances: 7, sessions_max: 3, bytes_max: 1 << 10, table_bytes_max: 1 << 20 };

impl Follower {
    fn limits(&self) -> SessionLimits {
        self.replica.executor().machine().partition().expect("a partition").session_limits()
    }
}

/// Sessions end by them: a node that used a setting when it heard of it ended other sessions than the rest.
#[test]
fn bounds_of_sessions_are_those_of_the_log_and_not_those_that_a_node_has_heard_of() {
    let mut follower = Follower::new();
    follower.replica.set_session_limits(LIMITS);
    follower.hears(1, 2, Batch::NoOp, 1);
    assert_eq!(follower.limits(), SessionLimits::default());
    follower.hears(1, 3, batch(entry::limits(&LIMITS)), 2);
    assert_eq!(follower.limits(), LIMITS);
}

#[test]
fn bounds_of_sessions_that_are_not_decided_are_taken_back() {
    let mut follower = Follower::new();
    follower.hears(1, 2, batch(entry::limits(&LIMITS)), 1);
    assert_eq!(follower.limits(), LIMITS);
    follower.hears(2, 2, Batch::NoOp, 1);
    assert_eq!(follower.limits(), SessionLimits::default(), "another batch stands there");
}

#[test]
fn a_snapshot_holds_the_bounds_of_sessions() {
    let mut follower = Follower::new();
    follower.hears(1, 2, batch(entry::limits(&LIMITS)), 1);
    follower.hears(1, 3, Batch::NoOp, 2);
    let TakenSnapshot { head, blobs, .. } = snapshot::take(ClusterId(7), &follower.replica);
    let loaded = snapshot::restore(&head, &blobs.write(), std::iter::empty()).expect("what was taken");
    assert_eq!(loaded.instance, Instance(2));
    assert_eq!(loaded.machine.partition().map(Partition::session_limits), Some(LIMITS));
}

/// Steps, answers what it asks the first of its peers for until nothing is asked any more, and flushes at once.
fn led_by_itself(follower: &mut Follower, input: Input) -> Vec<Effect> {
    let mut all = Vec::new();
    let mut inputs = std::collections::VecDeque::from([input]);
    while let Some(input) = inputs.pop_front() {
        for effect in follower.step(input) {
            let answer: Option<Message> = match &effect {
                Effect::Persist { lsn, .. } => {
                    inputs.push_back(Input::Persisted(*lsn));
                    None
                }
                Effect::Send { to: ReplicaId(1), message: Message::PreVote(m) } => Some(
                    PreVoteReply {
                        attempt: m.attempt,
                        granted: true,
                        promised: Ballot::ZERO,
                        decided_upto: m.decided_upto,
                    }
                    .into(),
                ),
                Effect::Send { to: ReplicaId(1), message: Message::Phase1a(m) } => Some(
                    Phase1b {
                        ballot: m.ballot,
                        from: m.from,
                        accepted: Vec::new(),
                        decided_upto: BEGIN,
                        trimmed_upto: Instance::ZERO,
                    }
                    .into(),
                ),
                _ => None,
            };
            inputs.extend(answer.map(|message| Input::Peer { from: ReplicaId(1), message }));
            all.push(effect);
        }
    }
    all
}

/// What was proposed may still be decided, whoever leads.
#[test]
fn se6_a_proposed_command_is_never_called_refused_when_the_leader_is_deposed() {
    let mut leader = Follower::new();
    leader.now = leader.replica.deadline().expect("an election timeout");
    let effects = led_by_itself(&mut leader, Input::Tick);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Leading { .. })), "elected");
    let Batch::Commands(commands) = leader.put(1) else { panic!("a pack") };
    let entry = commands.parts()[0].clone();
    let request = Request::Pack { entry, commands: 1, work: 4, grows: true, known: true, timed: false };
    led_by_itself(
        &mut leader,
        Input::Request { origin: Origin::Client { worker: 0, stream: 1, connection: 1 }, request },
    );
    led_by_itself(&mut leader, Input::TurnEnd);
    let effects = leader.hears(9, 2, Batch::NoOp, 1);
    let replies: Vec<&Reply> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Reply { reply, .. } => Some(reply),
            _ => None,
        })
        .collect();
    assert!(matches!(replies[..], [Reply::Unsure { .. }]), "{} replies", replies.len());
}

/// Seed 100357: a get waited at a follower of a partition that a merge ended; the replica was removed, and nobody told
/// the client.
#[test]
fn who_waits_at_a_removed_replica_is_told() {
    let mut follower = Follower::new();
    follower.hears(1, 2, Batch::NoOp, 1);
    follower.is_asked();
    let mut effects = Vec::new();
    follower.replica.retire(&mut effects);
    let refused = |effect: &Effect| matches!(effect, Effect::Reply { reply: Reply::Refused(_), .. });
    assert_eq!(effects.iter().filter(|effect| refused(effect)).count(), 1, "its client asks elsewhere");
}

#[test]
fn rd10_a_follower_waits_for_the_tickets_before_what_it_read() {
    let mut follower = Follower::new();
    follower.hears(1, 2, Batch::NoOp, 1);
    let ask = follower.is_asked();
    // The leader told its position before the ticket; the answer arrives when ticket and write are decided.
    let put = follower.put(1);
    follower.hears(1, 3, place(), 2);
    follower.hears(1, 4, put, 3);
    follower.hears(1, 5, Batch::NoOp, 4);
    assert_eq!(answers(&follower.is_told(ask, 2)), 0, "what was executed is not decided");
    assert_eq!(answers(&follower.hears(1, 6, Batch::NoOp, 5)), 0, "it saw the write behind the ticket");
    assert_eq!(answers(&follower.step(Input::Released(TICKET))), 1);
}

/// Seed 2004679: one of three replicas waited for a state; of its questions every sixth one only went out, and each of
/// these was to a node that had none.
#[test]
fn all_are_asked_whatever_time_an_answer_takes() {
    for (every, count) in (1..60).flat_map(|every| (1..6).map(move |count| (every, count))) {
        let mut asked = vec![0; count];
        (0..100).for_each(|number| asked[super::absorb::turn(number * every, count)] += 1);
        assert!(!asked.contains(&0), "every {every} of {count}: {asked:?}");
    }
}

/// Each planted bug makes the test of its rule fail, in a process of its own (hazards.md 6).
#[cfg(feature = "mutants")]
#[test]
fn planted_bugs_of_a_replica_are_caught() {
    for (mutant, test) in [
        ("limits_unlogged", "bounds_of_sessions_are_those_of_the_log_and_not_those_that_a_node_has_heard_of"),
        ("undo_no_limits", "bounds_of_sessions_that_are_not_decided_are_taken_back"),
        ("install_default_limits", "a_snapshot_holds_the_bounds_of_sessions"),
        ("stall_asks_in_step", "all_are_asked_whatever_time_an_answer_takes"),
        ("nobody_stands_in", "responders::the_leader_gives_the_part_of_a_replica_that_left"),
        ("removed_in_silence", "who_waits_at_a_removed_replica_is_told"),
        ("part_survives_install", "sp7_a_part_of_what_a_snapshot_replaces_is_made_again"),
        ("refused_after_propose", "se6_a_proposed_command_is_never_called_refused_when_the_leader_is_deposed"),
        ("part_undecided", "sp7_a_part_leaves_when_its_place_is_decided"),
        ("read_survives_undo", "rd7_a_read_of_what_is_taken_back_is_not_answered"),
        ("look_undecided", "looks::rd9_a_stale_look_sees_nothing_that_is_not_decided"),
        ("read_survives_install", "rd7_a_read_of_what_a_snapshot_replaces_is_not_answered"),
        ("follower_gate_at_told", "rd10_a_follower_waits_for_the_tickets_before_what_it_read"),
        (
            "patient_sees_tip",
            "stalled_reads::rd7_a_read_behind_a_write_without_a_majority_is_answered_from_what_is_decided",
        ),
        ("patient_unconfirmed", "stalled_reads::rd1_a_leader_without_patience_waits_for_its_confirmation"),
        ("validates_anything", "validation::rd14_a_range_that_has_changed_is_told"),
        ("validates_another_count", "validation::rd14_what_was_counted_elsewhere_or_in_another_life_means_nothing"),
        (
            "decided_counts_as_last_executed",
            "validation::rd14_a_leader_without_patience_counts_the_changes_of_what_is_decided",
        ),
        (
            "patient_skips_gate",
            "stalled_reads::rd10_a_follower_without_patience_waits_for_the_tickets_before_what_it_read",
        ),
    ] {
        planted::assert_caught(mutant, &format!("replica::tests::{test}"));
    }
}
