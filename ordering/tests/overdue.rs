//! Found by the simulator (seed 2007931): a leader without followers stood still for a moment, and its queue was full
//! when its batch became due. The first thing that it heard then was one submission more; it was refused, and time had
//! passed: the batch had no deadline, and nothing else ever moved it.

use bytes::Bytes;
use coppice_ordering::{Config, Configuration, Effect, Input, Paxos, ReplicaId, Settings, SubmitError, Time};

/// Has everything flushed; whether something was written.
fn flush(paxos: &mut Paxos, now: Time, effects: &mut Vec<Effect>) -> bool {
    let mut wrote = false;
    loop {
        let lsns = effects.iter().filter_map(|effect| match effect {
            Effect::Persist { lsn, .. } => Some(*lsn),
            _ => None,
        });
        let Some(last) = lsns.max() else { return wrote };
        wrote = true;
        effects.clear();
        paxos.step(now, Input::Persisted(last), effects);
    }
}

#[test]
fn a_batch_that_is_due_goes_although_the_next_submission_is_refused() {
    let delay = Settings::default().batch_delay_max;
    let settings = Settings { eager_window: 0, queue_submissions_max: 2, ..Settings::default() };
    let config = Config {
        settings,
        campaign_first: true,
        ..Config::new(ReplicaId(0), Configuration::of_voters([ReplicaId(0)]), 1)
    };
    let mut paxos = Paxos::new(config, Time::ZERO);
    let mut effects = Vec::new();
    let mut now = Time::ZERO;
    let word = || Bytes::from_static(b"w");
    while paxos.submit(now, word(), 1, &mut effects).is_err() {
        now = paxos.deadline().unwrap_or(now).max(now);
        paxos.step(now, Input::Tick, &mut effects);
        flush(&mut paxos, now, &mut effects);
        assert!(now < Time::from_millis(60_000), "it leads alone");
    }
    assert_eq!(paxos.submit(now, word(), 1, &mut effects), Ok(()));
    assert!(!flush(&mut paxos, now, &mut effects), "it waits for company");
    let late = now + delay * 2;
    assert_eq!(paxos.submit(late, word(), 1, &mut effects), Err(SubmitError::Busy));
    assert!(flush(&mut paxos, late, &mut effects), "the batch is written");
    assert_eq!(paxos.submit(late, word(), 1, &mut effects), Ok(()), "there is room again");
}

#[cfg(feature = "mutants")]
#[test]
fn a_batch_that_is_forgotten_is_caught() {
    let test = "a_batch_that_is_due_goes_although_the_next_submission_is_refused";
    let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
    let output = command.args([test, "--exact"]).env("COPPICE_MUTANT", "refused_holds_up").output();
    assert!(!output.expect("it runs").status.success(), "the planted bug survived");
}
