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
        sessions.store(id, answers(id.instance, 3_000), &LIMITS, &mut records);
        sessions.relieve(id, &LIMITS, &mut records);
    }
    assert!(sessions.len() <= 5, "{} sessions keep their answers", sessions.len());
    assert!(sessions.contains(session(50_000)) && !sessions.contains(session(1_000)));
    assert_eq!(Sessions::import(sessions.export()), sessions, "a snapshot counts alike");
    for record in records.iter().rev() {
        sessions.undo(record);
    }
    assert_eq!(sessions, before);
}

/// One connection opened 209,000 sessions in six seconds, and ended those of everybody else.
#[test]
fn a_client_that_opens_sessions_without_end_ends_its_own() {
    let (mut sessions, mut records) = (Sessions::default(), Vec::new());
    let (many, few) = (7, 8..=57);
    for client in few.clone() {
        sessions.open(session(client), client, &LIMITS, &mut records);
    }
    let before = sessions.clone();
    records.clear();
    for instance in 100..1_000 {
        sessions.open(session(instance), many, &LIMITS, &mut records);
        if instance == 500 {
            sessions.acknowledge(session(490), 0, instance, &LIMITS, &mut records);
        }
        assert!(sessions.len() <= LIMITS.sessions_max);
    }
    assert!(few.clone().all(|client| sessions.contains(session(client))), "they have one each");
    assert!(sessions.contains(session(999)) && !sessions.contains(session(490)), "of its own the oldest goes");
    assert_eq!(Sessions::import(sessions.export()), sessions, "a snapshot counts alike");
    // Where everybody has one, the one that was used least recently goes.
    for record in records.iter().rev() {
        sessions.undo(record);
    }
    assert_eq!(sessions, before);
    for client in 1_000..1_051 {
        sessions.open(session(client), client, &LIMITS, &mut records);
    }
    assert!(!sessions.contains(session(8)) && sessions.contains(session(9)));
}

#[cfg(feature = "mutants")]
#[test]
fn sessions_that_end_by_age_alone_are_caught() {
    let test = "sessions::tests::a_client_that_opens_sessions_without_end_ends_its_own";
    planted::assert_caught("sessions_end_by_age", test);
}

#[test]
fn an_acknowledgement_makes_room_for_others() {
    let (mut sessions, mut records) = (Sessions::default(), Vec::new());
    for client in 1..=50 {
        let id = session(client * 1_000);
        sessions.open(id, client, &LIMITS, &mut records);
        sessions.acknowledge(id, 0, id.instance, &LIMITS, &mut records);
        sessions.store(id, answers(id.instance, 3_000), &LIMITS, &mut records);
        sessions.relieve(id, &LIMITS, &mut records);
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

/// Each planted bug makes the test of its rule fail, in a process of its own (hazards.md 6).
#[cfg(feature = "mutants")]
#[test]
fn planted_bugs_of_the_order_of_use_are_caught() {
    for test in [
        "a_short_expiry_ends_what_was_idle_for_so_long_and_nothing_else",
        "the_session_that_was_opened_last_is_not_the_first_to_go",
    ] {
        planted::assert_caught("used_in_steps", &format!("sessions::tests::{test}"));
    }
}

fn one_answer(number: u64, instance: u64, bytes: usize) -> Answers {
    let numbers = Numbers::Run { first: number, count: 1 };
    Answers { numbers, ..answers(instance, bytes) }
}

/// Bytes of all results in memory, kept or held for undo only.
fn held_bytes(sessions: &Sessions) -> usize {
    sessions.rows.values().flat_map(|row| &row.answers).map(|answers| answers.results.len()).sum()
}

/// A client opened 256 sessions first and then had each answer one pack of large gets: the bound held only where
/// sessions are opened, and every replica kept 1 GiB.
#[test]
fn sessions_that_are_open_already_keep_no_more_than_the_table_may() {
    let (mut sessions, mut records) = (Sessions::default(), Vec::new());
    let opened: Vec<SessionId> = (1..=50).map(|client| session(client * 1_000)).collect();
    opened.iter().for_each(|&id| sessions.open(id, id.instance, &LIMITS, &mut records));
    // One that keeps little keeps it.
    sessions.acknowledge(opened[0], 0, 60_000, &LIMITS, &mut records);
    sessions.store(opened[0], answers(60_000, 500), &LIMITS, &mut records);
    let (before, first) = (sessions.clone(), records.len());
    for (at, &id) in (60_001..).zip(&opened[1..]) {
        sessions.acknowledge(id, 0, at, &LIMITS, &mut records);
        sessions.store(id, answers(at, 5_000), &LIMITS, &mut records);
        sessions.relieve(id, &LIMITS, &mut records);
        assert!(sessions.bytes() <= LIMITS.table_bytes_max, "{} bytes are kept", sessions.bytes());
    }
    assert_eq!(sessions.len(), 50, "answers go, not sessions");
    assert!(matches!(sessions.find(opened[0], 1), CommandLookup::Answered { .. }));
    assert!(matches!(sessions.find(opened[49], 1), CommandLookup::Answered { .. }), "there is room for it");
    assert_eq!(sessions.find(opened[1], 1), CommandLookup::Forgotten);
    assert_eq!(Sessions::import(sessions.export()).digest(), sessions.digest(), "a snapshot counts alike");
    for record in records[first..].iter().rev() {
        sessions.undo(record);
    }
    assert_eq!((sessions.digest(), sessions), (before.digest(), before));
}

/// What a decided pack dropped stayed in memory until the session was used again, which may be never.
#[test]
fn what_a_decided_pack_drops_is_freed() {
    let (mut sessions, mut records) = (Sessions::default(), Vec::new());
    for client in 1..=20 {
        let id = session(client * 1_000);
        sessions.open(id, client, &LIMITS, &mut records);
        for (number, bytes) in [(1, 8_000), (2, 10)] {
            sessions.acknowledge(id, number, id.instance + number, &LIMITS, &mut records);
            sessions.store(id, one_answer(number, id.instance + number, bytes), &LIMITS, &mut records);
        }
    }
    // Nothing is decided: all of it may be taken back.
    assert_eq!(held_bytes(&sessions), 20 * 8_010);
    records.iter().for_each(|record| sessions.confirm(record));
    assert_eq!(held_bytes(&sessions), 20 * 10);
}

/// A pack of 209,000 commands took 190 s when it was repeated: each was looked for from the beginning.
#[test]
fn a_repeated_pack_is_answered_in_one_walk() {
    const COUNT: u64 = 16_384;
    let limits = SessionLimits { bytes_max: 1 << 30, table_bytes_max: 1 << 30, ..LIMITS };
    let (mut sessions, mut records) = (Sessions::default(), Vec::new());
    let id = session(1);
    sessions.open(id, 1, &limits, &mut records);
    let mut results = Vec::new();
    let numbers = |first| Numbers::Run { first, count: COUNT as u32 };
    let mut reply = bytes::BytesMut::new();
    let mut out = coppice_client::wire::reply::PackReply::new(&mut reply, PartitionId(1), 1, 0);
    out.loaded(7);
    (0..COUNT).for_each(|_| results.extend_from_slice(out.last_result()));
    for pack in 0..3 {
        let kept = Answers {
            numbers: numbers(1 + pack * COUNT),
            indexes: numbers(0),
            results: results.clone().into(),
            ..answers(2 + pack, 0)
        };
        sessions.acknowledge(id, 1, 2 + pack, &limits, &mut records);
        sessions.store(id, kept, &limits, &mut records);
    }
    let mut repeats = sessions.repeats(id);
    for number in 1..=3 * COUNT {
        let CommandLookup::Answered { instance, index, .. } = repeats.find(number) else {
            panic!("{number} is not known")
        };
        assert_eq!((instance, u64::from(index)), (2 + (number - 1) / COUNT, (number - 1) % COUNT));
    }
    assert!(repeats.work() < COUNT, "{} units of work", repeats.work());
    assert!(matches!(repeats.find(5), CommandLookup::Answered { instance: 2, index: 4, .. }), "backwards too");
    assert_eq!(repeats.find(3 * COUNT + 1), CommandLookup::New);
}

/// A user opened 47,000 sessions that each kept one answer of 1.5 KiB, and others lost every answer of more than 4 KiB.
#[test]
fn a_client_of_many_small_sessions_loses_its_own_answers() {
    let limits = SessionLimits { table_bytes_max: 100_000, ..LIMITS };
    let (mut sessions, mut records) = (Sessions::default(), Vec::new());
    let mut keeps = |sessions: &mut Sessions, client: u64, at: u64, bytes: usize| {
        let id = session(at);
        sessions.open(id, client, &limits, &mut records);
        sessions.acknowledge(id, 0, at, &limits, &mut records);
        sessions.store(id, answers(at, bytes), &limits, &mut records);
        sessions.relieve(id, &limits, &mut records);
        assert!(sessions.bytes() <= limits.table_bytes_max, "{} bytes are kept", sessions.bytes());
    };
    let before = sessions.clone();
    keeps(&mut sessions, 1, 1_000, 10_000);
    keeps(&mut sessions, 2, 2_000, 100);
    for at in 3_000..3_090 {
        keeps(&mut sessions, 3, at, 1_500);
    }
    assert!(matches!(sessions.find(session(1_000), 1), CommandLookup::Answered { .. }), "it keeps less than the other");
    assert!(matches!(sessions.find(session(2_000), 1), CommandLookup::Answered { .. }), "it keeps little");
    assert!(matches!(sessions.find(session(3_089), 1), CommandLookup::Answered { .. }), "the newest");
    assert!(!sessions.contains(session(3_000)), "of its own the oldest goes");
    assert_eq!(Sessions::import(sessions.export()), sessions, "a snapshot counts alike");
    for record in records.iter().rev() {
        sessions.undo(record);
    }
    assert_eq!(sessions, before);
}

#[cfg(feature = "mutants")]
#[test]
fn answers_that_go_by_session_are_caught() {
    let test = "sessions::tests::a_client_of_many_small_sessions_loses_its_own_answers";
    planted::assert_caught("answers_go_by_session", test);
}

#[cfg(feature = "mutants")]
#[test]
fn a_table_that_keeps_all_answers_is_caught() {
    let test = "sessions::tests::sessions_that_are_open_already_keep_no_more_than_the_table_may";
    planted::assert_caught("sessions_unbounded", test);
}

/// A snapshot comes from another node. One with a session twice kept the executor ending it for ever, and one whose
/// numbers wrap let them be executed again.
#[test]
fn a_table_of_a_snapshot_that_makes_no_sense_is_refused() {
    let (mut sessions, mut records) = (Sessions::default(), Vec::new());
    for n in 1..4 {
        sessions.open(session(n), n, &LIMITS, &mut records);
        sessions.acknowledge(session(n), 0, n, &LIMITS, &mut records);
        sessions.store(session(n), answers(n, 8), &LIMITS, &mut records);
    }
    let sound = sessions.export();
    assert_eq!(Sessions::read(sound.clone()), Some(sessions));
    let damaged = |damage: fn(&mut Vec<SavedSession>)| {
        let mut saved = sound.clone();
        damage(&mut saved);
        Sessions::read(saved)
    };
    let numbers = |numbers: fn() -> Numbers| {
        let mut saved = sound.clone();
        saved[1].answers[0].numbers = numbers();
        saved[1].highest = u64::MAX;
        Sessions::read(saved)
    };
    assert_eq!(damaged(|saved| saved.push(SavedSession { last_used: 9, ..saved[0].clone() })), None, "twice");
    assert_eq!(damaged(|saved| saved.swap(0, 1)), None, "out of order");
    assert_eq!(damaged(|saved| saved[1].highest = 0), None, "an answer to a number that is new");
    assert_eq!(numbers(|| Numbers::Run { first: u64::MAX, count: 1 }), None, "no number comes behind it");
    assert_eq!(numbers(|| Numbers::Run { first: 0, count: 0 }), None, "none");
    assert_eq!(numbers(|| Numbers::List(Box::new([]))), None, "none");
    assert_eq!(numbers(|| Numbers::Run { first: 1, count: 2 }), None, "a number without an index");
    assert!(numbers(|| Numbers::List(Box::new([7]))).is_some());
}

#[cfg(feature = "mutants")]
#[test]
fn a_saved_table_that_is_believed_is_caught() {
    let test = "sessions::tests::a_table_of_a_snapshot_that_makes_no_sense_is_refused";
    planted::assert_caught("saved_sessions_believed", test);
}
