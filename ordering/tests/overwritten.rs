//! Found by the simulator: a replica that knows a decision by catch-up only has promised nothing
//! to the ballot that made it. A proposal of the ballot before, overwritten since, came late, and the replica took it
//! for the decided value: it ended itself over the difference (protocol.md 1.1, 1.4).

use bytes::Bytes;
use coppice_ordering::message::{AcceptedBatch, CatchUpReply, Message, Phase1a, Phase2a};
use coppice_ordering::{
    Ballot, Batch, Commands, Config, Configuration, Effect, Input, Instance, Paxos, ReplicaId, Time,
};

fn batch(word: &'static str) -> Batch {
    Batch::Commands(Commands::new(1, Bytes::from_static(word.as_bytes())))
}

/// Gives a message and has everything flushed; returns what is sent.
fn hear(paxos: &mut Paxos, from: u32, message: Message) -> Vec<Message> {
    let (now, mut effects) = (Time::from_millis(1), Vec::new());
    paxos.step(now, Input::Message { from: ReplicaId(from), message }, &mut effects);
    let written = effects.iter().filter_map(|effect| match effect {
        Effect::Persist { lsn, .. } => Some(*lsn),
        _ => None,
    });
    if let Some(last) = written.max() {
        paxos.step(now, Input::Persisted(last), &mut effects);
    }
    let sent = effects.into_iter().filter_map(|effect| match effect {
        Effect::Send { message, .. } => Some(message),
        _ => None,
    });
    sent.collect()
}

fn replica() -> Paxos {
    let config = Config::new(ReplicaId(1), Configuration::of_voters((0..5).map(ReplicaId)), 1);
    Paxos::new(config, Time::ZERO)
}

fn proposal(ballot: Ballot, word: &'static str) -> Message {
    let (instance, batch) = (Instance(1), batch(word));
    Phase2a { ballot, instance, batch, decided_upto: Instance::ZERO, released: None }.into()
}

fn catch_up(ballot: Ballot, word: &'static str) -> Message {
    let decided = AcceptedBatch { instance: Instance(1), ballot, batch: batch(word) };
    let reply = CatchUpReply {
        decided: vec![decided],
        decided_upto: Instance(1),
        trimmed_upto: Instance::ZERO,
        held_upto: Instance::ZERO,
        promised: ballot,
    };
    reply.into()
}

#[test]
fn a_late_proposal_that_was_overwritten_is_neither_a_vote_nor_the_end() {
    let mut paxos = replica();
    let (first, second) = (Ballot::new(1, 0), Ballot::new(2, 2));
    hear(&mut paxos, 0, Phase1a { ballot: first, from: Instance(1), transfer: None }.into());
    hear(&mut paxos, 3, catch_up(second, "new"));
    assert_eq!(paxos.decided_upto(), Instance(1), "learned");
    let sent = hear(&mut paxos, 0, proposal(first, "old"));
    assert!(!sent.iter().any(|message| matches!(message, Message::Phase2b(_))), "a vote for what was overwritten");
}

/// Seed 2007361: the replica had voted for the decided batch in a ballot before that of the late proposal, and a later
/// ballot, found by catch-up, decided it.
#[test]
fn a_late_proposal_between_a_vote_and_the_decision_is_neither_a_vote_nor_the_end() {
    let mut paxos = replica();
    let (first, second, third) = (Ballot::new(1, 0), Ballot::new(2, 2), Ballot::new(3, 3));
    hear(&mut paxos, 0, proposal(first, "kept"));
    hear(&mut paxos, 3, catch_up(third, "kept"));
    assert_eq!(paxos.decided_upto(), Instance(1), "learned");
    let sent = hear(&mut paxos, 2, proposal(second, "lost"));
    assert!(!sent.iter().any(|message| matches!(message, Message::Phase2b(_))), "a vote for what was overwritten");
    assert_eq!(paxos.counters().messages_refused, 0, "it was late, not absurd");
}

#[cfg(feature = "mutants")]
fn catch(mutant: &str, test: &str) {
    let program = std::env::current_exe().expect("this program");
    let mut command = std::process::Command::new(program);
    let output = command.args([test, "--exact"]).env("COPPICE_MUTANT", mutant).output();
    assert!(!output.expect("it runs").status.success(), "the planted bug {mutant} survived");
}

#[cfg(feature = "mutants")]
#[test]
fn a_replica_that_takes_it_for_the_decided_one_is_caught() {
    catch("overwritten_is_heard", "a_late_proposal_that_was_overwritten_is_neither_a_vote_nor_the_end");
    catch("learned_under_an_old_vote", "a_late_proposal_between_a_vote_and_the_decision_is_neither_a_vote_nor_the_end");
}
