use super::*;

const LIMITS: SessionLimits =
    SessionLimits { expiry_instances: 1_000_000, sessions_max: 100, bytes_max: 1 << 20, table_bytes_max: 10_000 };

fn session(instance: u64) -> SessionId {
    SessionId { partition: PartitionId(1), instance, index: 0 }
}

fn answers(instance: u64, bytes: usize) -> Answers {
    let run = |first| Numbers::Run { first, count: 1 };
    let results = Bytes::from(vec![0; bytes]);
    Answers { partition: PartitionId(1), instance, numbers: run(1), indexes: run(0), results }
}

/// Each overwrites a large value and never comes back, as a script does that calls a program per write.
#[test]
fn answers_that_nobody_acknowledges_are_bounded_by_the_sessions_that_left_them() {
    let (mut sessions, mut records) = (Sessions::default(), Vec::new());
    let before = sessions.clone();
    for client in 1..=50 {
        let id = session(client * 1_000);
        sessions.open(id, client, &LIMITS, &mut records);
        sessions.acknowledge(id, 0, id.instance, &LIMITS, &mut records);
        sessions.store(id, answers(id.instance, 3_000), &LIMITS);
    }
    assert!(sessions.len() <= 5, "{} sessions keep their answers", sessions.len());
    assert!(sessions.contains(session(50_000)) && !sessions.contains(session(1_000)));
    assert_eq!(Sessions::import(sessions.export()), sessions, "a snapshot counts alike");
    for record in records.iter().rev() {
        sessions.undo(record);
    }
    assert_eq!(sessions, before);
}

#[test]
fn an_acknowledgement_makes_room_for_others() {
    let (mut sessions, mut records) = (Sessions::default(), Vec::new());
    for client in 1..=50 {
        let id = session(client * 1_000);
        sessions.open(id, client, &LIMITS, &mut records);
        sessions.acknowledge(id, 0, id.instance, &LIMITS, &mut records);
        sessions.store(id, answers(id.instance, 3_000), &LIMITS);
        sessions.acknowledge(id, 2, id.instance, &LIMITS, &mut records);
    }
    assert_eq!(sessions.len(), 50);
}

/// Seeds 5000069 and 5002088: a use counted as one at the last multiple of 1,024 instances, so with a shorter expiry a
/// session was too old as soon as it was opened. Each client that opened one ended those of all others, and so on.
#[test]
fn a_short_expiry_ends_what_was_idle_for_so_long_and_nothing_else() {
    let limits = SessionLimits { expiry_instances: 29, ..LIMITS };
    let (mut sessions, mut records) = (Sessions::default(), Vec::new());
    let opened = [900, 901, 902].map(session);
    for (client, id) in (1..).zip(opened) {
        sessions.open(id, client, &limits, &mut records);
    }
    assert!(opened.iter().all(|&id| sessions.contains(id)), "{} of 3 sessions are left", sessions.len());
    sessions.acknowledge(opened[0], 0, 920, &limits, &mut records);
    sessions.acknowledge(opened[1], 0, 921, &limits, &mut records);
    sessions.open(session(932), 4, &limits, &mut records);
    assert!(!sessions.contains(opened[2]), "it ordered nothing for 29 instances");
    let before = sessions.clone();
    records.clear();
    sessions.acknowledge(opened[0], 0, 949, &limits, &mut records);
    sessions.open(session(951), 5, &limits, &mut records);
    assert_eq!([opened[0], opened[1]].map(|id| sessions.contains(id)), [true, false]);
    assert_eq!(Sessions::import(sessions.export()), sessions, "a snapshot knows the order of use");
    records.iter().rev().for_each(|record| sessions.undo(record));
    assert_eq!(sessions, before);
}

/// Else two that need one end each other's for ever, beside others that nobody needs.
#[test]
fn the_session_that_was_opened_last_is_not_the_first_to_go() {
    let short = SessionLimits { expiry_instances: 100, sessions_max: 3, ..LIMITS };
    let (mut sessions, mut records) = (Sessions::default(), Vec::new());
    for instance in [1_001, 1_002, 1_003] {
        sessions.open(session(instance), instance, &short, &mut records);
    }
    sessions.acknowledge(session(1_001), 0, 1_050, &short, &mut records);
    sessions.open(session(1_060), 4, &short, &mut records);
    assert!(sessions.contains(session(1_001)) && !sessions.contains(session(1_002)));
    // The bound may change meanwhile: what was noted more exactly before counts for no more.
    let long = SessionLimits { sessions_max: 3, ..LIMITS };
    sessions.open(session(1_070), 5, &long, &mut records);
    sessions.open(session(1_080), 6, &long, &mut records);
    assert!([1_060, 1_070, 1_080].iter().all(|&instance| sessions.contains(session(instance))));
}

/// Each planted bug makes the test of its rule fail, in a process of its own (reliability.md 6).
#[cfg(feature = "mutants")]
#[test]
fn planted_bugs_of_the_order_of_use_are_caught() {
    for test in [
        "a_short_expiry_ends_what_was_idle_for_so_long_and_nothing_else",
        "the_session_that_was_opened_last_is_not_the_first_to_go",
    ] {
        crate::mutants::assert_caught("used_in_steps", &format!("sessions::tests::{test}"));
    }
}
