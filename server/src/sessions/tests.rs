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
        let id = session(client * USE_STEP);
        sessions.open(id, client, &LIMITS, &mut records);
        sessions.acknowledge(id, 0, id.instance, &mut records);
        sessions.store(id, answers(id.instance, 3_000), &LIMITS);
    }
    assert!(sessions.len() <= 5, "{} sessions keep their answers", sessions.len());
    assert!(sessions.contains(session(50 * USE_STEP)) && !sessions.contains(session(USE_STEP)));
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
        let id = session(client * USE_STEP);
        sessions.open(id, client, &LIMITS, &mut records);
        sessions.acknowledge(id, 0, id.instance, &mut records);
        sessions.store(id, answers(id.instance, 3_000), &LIMITS);
        sessions.acknowledge(id, 2, id.instance, &mut records);
    }
    assert_eq!(sessions.len(), 50);
}
