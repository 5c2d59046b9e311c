//! What a replica keeps in memory of its log (protocol.md 1.6): enough for those who are a little behind, never more
//! than the limit, and nothing less than what only it knows.

use bytes::Bytes;
use coppice_ordering::message::{CatchUp, CatchUpReply, Heartbeat, Message, Phase2a};
use coppice_ordering::{
    Ballot, Batch, Commands, Config, Configuration, Effect, HeartbeatRound, Input, Instance, Lsn, Paxos, ReplicaId,
    Settings, Time,
};

const LEADER: ReplicaId = ReplicaId(0);
const NOW: Time = Time(1_000_000);
const BATCH_BYTES: usize = 100;
/// With what surrounds it.
const HELD_BYTES: usize = BATCH_BYTES + 128;

/// A follower that keeps `retain_bytes_min` in memory.
fn follower(retain_bytes_min: usize) -> Paxos {
    let config = Config {
        settings: Settings { retain_bytes_min, ..Settings::default() },
        ..Config::new(ReplicaId(1), Configuration::of_voters((0..3).map(ReplicaId)), 1)
    };
    Paxos::new(config, Time::ZERO)
}

fn ballot() -> Ballot {
    Ballot::new(1, LEADER.0)
}

fn hear(paxos: &mut Paxos, message: Message) -> Vec<Effect> {
    let mut effects = Vec::new();
    paxos.step(NOW, Input::Message { from: LEADER, message }, &mut effects);
    effects
}

/// Accepts `instance` and hears that everything before it is decided. Returns its record.
fn accept(paxos: &mut Paxos, instance: u64) -> Lsn {
    let batch = Batch::Commands(Commands::new(1, Bytes::from(vec![instance as u8; BATCH_BYTES])));
    let decided_upto = Instance(instance - 1);
    let message = Phase2a { ballot: ballot(), instance: Instance(instance), batch, decided_upto, released: None };
    let effects = hear(paxos, message.into());
    let written = effects.iter().filter_map(|effect| match effect {
        Effect::Persist { lsn, .. } => Some(*lsn),
        _ => None,
    });
    written.max().expect("what is accepted is written")
}

/// Hears that everything up to `upto` is decided, and has executed it. Returns how much this replica says it holds.
fn decide(paxos: &mut Paxos, upto: u64) -> Instance {
    let (decided_upto, held_upto, lease) = (Instance(upto), Instance::ZERO, std::time::Duration::ZERO);
    let message = Heartbeat {
        ballot: ballot(),
        round: HeartbeatRound(upto),
        decided_upto,
        held_upto,
        released: None,
        lease,
        quiesce: lease,
    };
    let said = hear(paxos, message.into()).into_iter().find_map(|effect| match effect {
        Effect::Send { message: Message::HeartbeatAck(ack), .. } => Some(ack.durable_upto),
        _ => None,
    });
    paxos.step(NOW, Input::Executed(decided_upto), &mut Vec::new());
    said.expect("a heartbeat is answered")
}

fn ask(paxos: &mut Paxos, from: u64) -> CatchUpReply {
    let message = CatchUp { from: Instance(from), bytes_max: 1 << 20 };
    let reply = hear(paxos, message.into()).into_iter().find_map(|effect| match effect {
        Effect::Send { message: Message::CatchUpReply(reply), .. } => Some(reply),
        _ => None,
    });
    reply.expect("whoever is behind is answered")
}

#[test]
fn memory_is_bounded_and_the_log_keeps_what_it_lost() {
    let mut paxos = follower(10 * HELD_BYTES);
    let mut records = Vec::new();
    for instance in 1..=100 {
        records.push(accept(&mut paxos, instance));
        paxos.step(NOW, Input::Persisted(records[instance as usize - 1]), &mut Vec::new());
        decide(&mut paxos, instance);
    }
    assert_eq!(paxos.kept_bytes(), 10 * HELD_BYTES);
    let near = ask(&mut paxos, 91);
    assert_eq!((near.decided.len(), near.trimmed_upto), (10, Instance(90)));
    let far = ask(&mut paxos, 90);
    assert_eq!((far.decided.len(), far.trimmed_upto), (0, Instance(90)), "only a snapshot can help");
    // A durable snapshot at 40: from 41 on the records are needed, whatever memory holds.
    let mut effects = Vec::new();
    paxos.step(NOW, Input::Trim(Instance(40)), &mut effects);
    let written = effects.iter().filter_map(|effect| match effect {
        Effect::Persist { lsn, .. } => Some(*lsn),
        _ => None,
    });
    let last = written.max().expect("what stands is repeated");
    paxos.step(NOW, Input::Persisted(last), &mut effects);
    let below = effects.iter().find_map(|effect| match effect {
        Effect::Forget { below } => Some(*below),
        _ => None,
    });
    assert!(below.is_some_and(|below| below <= records[40]), "{below:?} is above the record of #41, {}", records[40]);
    // Half of what a snapshot takes is kept, if that is more.
    paxos.set_snapshot_bytes(40 * HELD_BYTES);
    for instance in 101..=150 {
        let record = accept(&mut paxos, instance);
        paxos.step(NOW, Input::Persisted(record), &mut Vec::new());
        decide(&mut paxos, instance);
    }
    assert_eq!(paxos.trimmed_upto(), Instance(130));
}

#[test]
fn what_is_not_flushed_is_kept_and_not_said_to_be_held() {
    let mut paxos = follower(0);
    let first = accept(&mut paxos, 1);
    let second = accept(&mut paxos, 2);
    decide(&mut paxos, 2);
    assert_eq!((decide(&mut paxos, 2), paxos.trimmed_upto()), (Instance::ZERO, Instance::ZERO), "nothing is flushed");
    paxos.step(NOW, Input::Persisted(first), &mut Vec::new());
    assert_eq!((decide(&mut paxos, 2), paxos.trimmed_upto()), (Instance(1), Instance(1)));
    paxos.step(NOW, Input::Persisted(second), &mut Vec::new());
    assert_eq!((decide(&mut paxos, 2), paxos.trimmed_upto()), (Instance(2), Instance(2)));
}

/// Health checks go by it: a replica that was away knows how much it lacks as soon as it hears its leader.
#[test]
fn a_replica_knows_what_it_lacks_of_what_its_leader_has_decided() {
    let mut paxos = follower(0);
    accept(&mut paxos, 1);
    decide(&mut paxos, 1);
    assert_eq!((paxos.told_upto(), paxos.decided_upto()), (Instance(1), Instance(1)));
    decide(&mut paxos, 500);
    assert_eq!((paxos.told_upto(), paxos.decided_upto()), (Instance(500), Instance(1)));
    let window = u64::from(paxos.settings().window);
    assert!(paxos.may_be_on_their_way(2 * window) && !paxos.may_be_on_their_way(499));
}

#[cfg(feature = "mutants")]
#[test]
fn a_replica_that_sheds_what_is_not_flushed_is_caught() {
    let test = "what_is_not_flushed_is_kept_and_not_said_to_be_held";
    let program = std::env::current_exe().expect("this program");
    let mut command = std::process::Command::new(program);
    let output = command.args([test, "--exact"]).env("COPPICE_MUTANT", "evict_unflushed").output();
    assert!(!output.expect("it runs").status.success(), "the planted bug survived");
}
