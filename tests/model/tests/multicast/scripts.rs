//! Directed schedules: those of hazards.md 6 by name, beside A to F (`tests/model/src/tickets/scripts.rs`). Each drives
//! the world to where a planted bug goes wrong, as far as the protocol lets it; then everything must end well. P1, P2
//! and so on own the keys 10.., 20.. .

use std::time::Duration;

use coppice_model::tickets::partition::Entry;
use coppice_model::tickets::scripts::{self as lettered, PLACE_TIMEOUT, a_query_and_a_write_behind_it};
use coppice_model::tickets::stage::Stage;
use coppice_model::tickets::world::Message;
use coppice_ordering::PartitionId;

fn reported_by(message: &Message, partition: u32) -> bool {
    matches!(message, Message::Placed { from, .. } if from.0 == partition)
}

/// The coordinator dies after each message of a query: x must be answered all the same (hazards.md TK4).
pub fn tk04_a_coordinator_dies_in_mid_place() {
    let (mut stage, _, x, _) = a_query_and_a_write_behind_it();
    strike(&mut stage, Blow::CoordinatorAndMessages);
    stage.settle();
    assert!(stage.answered(x));
}

/// Ballot 1's `Place` is decided behind ballot 2's first one: it is a no-op, and ballot 2's chain goes on.
pub fn tk06_an_older_ballot_after_a_newer_one() {
    let mut stage = Stage::serving(2);
    let q = stage.query(10, 30);
    let places = stage.take(|message| matches!(message, Message::Place { .. }));
    stage.world.elect();
    stage.settle();
    for message in places {
        // An older leader let it into the pipe: the present one would not.
        let Message::Place { to, place } = message else { continue };
        stage.world.append(to, Entry::Place(place));
        stage.decide(to.0);
    }
    let next = stage.query(10, 30);
    stage.settle();
    assert!(stage.answered(next) && !stage.answered(q));
}

/// A at P1, whose leader changes: the new one knows no watermark and must not guess one.
pub fn tk07_a_new_leader_guesses_no_watermark() {
    let (mut stage, q, _, y) = a_query_and_a_write_behind_it();
    stage.world.change_leader(PartitionId(1), |_| true);
    stage.listen();
    let early = stage.put_if_free(y);
    stage.place(q, 2);
    stage.settle();
    assert!(!early && stage.answered(q));
}

/// Every watermark is lost, and the leader changes: the coordinator tells it again when it hears `Placed` again.
pub fn tk08_a_lost_watermark_is_told_again() {
    let (mut stage, q, x, _) = a_query_and_a_write_behind_it();
    stage.place(q, 2);
    stage.report(1);
    stage.report(2);
    stage.confirm();
    stage.take(|message| matches!(message, Message::Released { .. }));
    assert!(stage.answered(q) && !stage.answered(x));
    stage.world.change_leader(PartitionId(1), |_| true);
    // The first answer to the new leader is lost too.
    stage.report(1);
    stage.take(|message| matches!(message, Message::Released { .. }));
    stage.settle();
    assert!(stage.answered(x));
}

/// Every `Place` stands twice in the logs, the first ones too.
pub fn tk10_every_place_comes_twice() {
    let mut stage = Stage::empty(2);
    stage.world.elect();
    stage.listen();
    let mut seen: Vec<Message> = Vec::new();
    let (mut q, mut turn) = (None, 0);
    while turn < 40 {
        turn += 1;
        for message in stage.take(|_| true) {
            if let Message::Place { to, place } = &message {
                seen.push(message.clone());
                stage.world.append(*to, Entry::Place(place.clone()));
            } else {
                stage.world.deliver(message);
            }
        }
        // All that was ever sent comes again, oldest first.
        for message in &seen {
            let Message::Place { to, place } = message else { continue };
            stage.world.append(*to, Entry::Place(place.clone()));
        }
        stage.decide(1);
        stage.decide(2);
        stage.confirm();
        if turn == 5 || turn == 10 {
            q = Some(stage.query(10, 30));
            stage.write(11);
        }
    }
    assert!(q.is_some_and(|q| stage.answered(q)));
    stage.settle();
}

/// Abort, heal: the next query completes, because the voided ticket stayed in the chain.
pub fn tk12_a_voided_ticket_stays_in_the_chain() {
    let mut stage = Stage::serving(2);
    let q = stage.query(10, 30);
    stage.place(q, 1);
    stage.place(q, 2);
    // What P2 says is lost: for the coordinator it placed nothing.
    stage.take(|message| reported_by(message, 2));
    stage.report(1);
    stage.pass(PLACE_TIMEOUT);
    assert!(stage.aborted(q));
    stage.settle();
    let next = stage.query(10, 30);
    stage.settle();
    assert!(stage.answered(next));
}

/// Ticket 1 is slow, ticket 2 is voided because P3 is dead: that frees nothing behind ticket 1.
/// P1: [y, Q1]   P2: [Q1, Q2, x]   P3: nothing
pub fn tk13_voiding_a_later_ticket_frees_no_earlier_one() {
    let mut stage = Stage::serving(3);
    let q0 = stage.query(30, 40);
    stage.pass(Duration::from_millis(100));
    let q1 = stage.query(10, 30);
    stage.place(q1, 2);
    stage.report(2);
    // Q0's round is out at P3; Q2 waits for it, so it is a change of the map that gives Q2 its ticket.
    let q2 = stage.query(20, 40);
    stage.world.split(35);
    stage.listen();
    stage.place(q2, 2);
    let x = stage.write(21);
    let y = stage.plan_write(11, Some(x));
    stage.pass(Duration::from_millis(50));
    assert!(stage.aborted(q0) && stage.aborted(q2) && !stage.aborted(q1));
    stage.hear(2);
    let early = stage.put_if_free(y);
    stage.place(q1, 1);
    stage.report(1);
    stage.confirm();
    stage.settle();
    assert!(!early && stage.answered(q1));
}

/// `Placed` above an undecided hole: the place may yet be lost with what was said about it.
pub fn tk14_nothing_is_told_before_it_is_decided() {
    let mut stage = Stage::serving(2);
    let q = stage.query(10, 30);
    stage.place(q, 2);
    stage.pipe(q, 1);
    let told = stage.take(|message| reported_by(message, 1));
    stage.world.change_leader(PartitionId(1), |_| false);
    told.into_iter().for_each(|message| stage.world.deliver(message));
    stage.settle();
    assert!(stage.answered(q));
}

/// P2 has no majority for a minute: x at P1 waits one `place_timeout`, and queries over P2 end in bounded time.
pub fn tk18_a_partition_without_a_majority_blocks_nobody() {
    let (mut stage, q, x, _) = a_query_and_a_write_behind_it();
    let mut queries = vec![q];
    for _ in 0..600 {
        stage.pass(Duration::from_millis(100));
        stage.settle_only(&[1]);
        if queries.len() < 50 {
            queries.push(stage.query(10, 30));
        }
    }
    assert!(stage.answered(x));
    assert!(queries.iter().all(|q| stage.aborted(*q)), "a query over a dead partition has no end");
    stage.settle();
    let last = stage.query(10, 30);
    stage.settle();
    assert!(stage.answered(last));
}

/// A query waits for its ticket when the map changes: it gets one before the change, by whose old map it was cut.
pub fn mv01_a_query_is_cut_by_the_map_of_its_ticket() {
    let mut stage = Stage::serving(2);
    let first = stage.query(10, 30);
    let waiting = stage.query(10, 30);
    let child = stage.world.split(15);
    stage.listen();
    stage.settle();
    let after = stage.query(10, 30);
    let w = stage.write(16);
    stage.settle();
    assert!([first, waiting, after, w].iter().all(|op| stage.answered(*op)));
    assert_eq!(child, PartitionId(3));
}

/// A, with a split of P1 between Q and x: the child's first replies wait for what its parent's log held.
/// P1: [Q, split]   P3, the child: [x]   P2: [y, Q]
pub fn mv04_a_child_starts_with_its_parents_last_ticket() {
    for kill in [false, true] {
        let mut stage = Stage::serving(2);
        let q = stage.query(10, 30);
        stage.place(q, 1);
        let child = stage.world.split(15);
        stage.deliver(|message| matches!(message, Message::Place { to, .. } if to.0 == 1));
        stage.decide(1);
        if kill {
            stage.world.change_leader(child, |_| true);
        }
        let x = stage.write(16);
        let y = stage.plan_write(21, Some(x));
        let early = stage.put_if_free(y);
        stage.place(q, 2);
        stage.settle();
        assert!(!early && stage.answered(q) && stage.answered(x));
        // A query right behind the split, when the child's leader is killed.
        let next = stage.query(10, 30);
        stage.world.change_leader(child, |_| true);
        stage.settle();
        assert!(stage.answered(next));
    }
}

/// A split is done when the child serves too; until then its directory entry must be kept.
pub fn mv06_a_split_is_released_by_parent_and_child() {
    let mut stage = Stage::serving(1);
    let child = stage.world.split(15);
    stage.deliver(|message| matches!(message, Message::Place { to, .. } if to.0 == 1));
    stage.decide(1);
    stage.report(1);
    stage.take(|message| reported_by(message, child.0));
    stage.confirm();
    assert_eq!(stage.world.changes_open(), 1, "the child may not serve yet");
    stage.settle();
    assert_eq!(stage.world.changes_open(), 0);
}

/// The directory's leader dies after each step of a split: the next one repeats it, and it is applied once.
pub fn mv08_a_split_survives_its_coordinator() {
    for step in 0..8 {
        let mut stage = Stage::serving(2);
        let q = stage.query(10, 30);
        stage.world.split(15);
        stage.listen();
        for _ in 0..step {
            stage.turn();
        }
        stage.world.elect();
        stage.listen();
        stage.settle();
        let next = stage.query(10, 30);
        let w = stage.write(17);
        stage.settle();
        assert!(stage.answered(next) && stage.answered(w), "after step {step}");
        assert!(stage.answered(q) || stage.aborted(q), "after step {step}");
    }
}

/// P1 decides its split long after `place_timeout`: it is never voided, and what is behind it is.
pub fn mv09_a_split_is_never_voided() {
    let mut stage = Stage::serving(2);
    stage.world.split(15);
    stage.listen();
    let q = stage.query(10, 30);
    for _ in 0..10 {
        stage.pass(PLACE_TIMEOUT);
        stage.settle_only(&[2]);
    }
    assert!(stage.aborted(q) && stage.world.changes_open() == 1);
    stage.settle();
    let next = stage.query(10, 30);
    stage.settle();
    assert!(stage.answered(next) && stage.world.changes_open() == 0);
}

/// Single-partition commands never meet the coordinator (papers.md D10).
pub fn d10_writes_never_meet_the_coordinator() {
    let mut stage = Stage::serving(3);
    let before = stage.said;
    for k in 0..60 {
        stage.write(10 + k % 30);
    }
    stage.settle();
    assert_eq!(stage.said, before, "a message to or from the coordinator");
}

/// What may go wrong between two steps.
#[derive(Clone, Copy, Debug)]
enum Blow {
    Nothing,
    /// The coordinator is deposed; its messages still arrive.
    Coordinator,
    /// It is killed, and all messages under way are lost.
    CoordinatorAndMessages,
    /// A partition's leader dies, and its pipe survives, or is lost, or only the newest of it survives.
    Leader(u32, fn(usize) -> bool),
}

const BLOWS: &[Blow] = &[
    Blow::Nothing,
    Blow::Coordinator,
    Blow::CoordinatorAndMessages,
    Blow::Leader(1, |_| true),
    Blow::Leader(1, |_| false),
    Blow::Leader(2, |_| true),
    Blow::Leader(2, |_| false),
    Blow::Leader(2, |at| at == 1),
    Blow::Leader(3, |_| false),
];

fn strike(stage: &mut Stage, blow: Blow) {
    stage.listen();
    match blow {
        Blow::Nothing => {}
        Blow::Coordinator => drop(stage.world.elect()),
        Blow::CoordinatorAndMessages => {
            stage.world.kill_coordinator();
            stage.take(|_| true);
            stage.world.elect();
        }
        Blow::Leader(partition, survives) => stage.world.change_leader(PartitionId(partition), survives),
    }
    stage.listen();
}

/// Two queries that share P2, and writes in all three partitions, some of one client. `first` strikes after so many
/// small steps, `second` so many later. Returns the steps that it took without them.
fn two_queries_and_writes((at, first): (usize, Blow), (later, second): (usize, Blow)) -> usize {
    let mut stage = Stage::serving(3);
    let q1 = stage.query(20, 40);
    let x = stage.plan_write(11, None);
    stage.world.write(x);
    let y = stage.plan_write(31, Some(x));
    let w = stage.plan_write(21, None);
    let mut q2 = None;
    let mut steps = 0;
    loop {
        if steps == at {
            strike(&mut stage, first);
        }
        if steps == at + later {
            strike(&mut stage, second);
        }
        // Their clients ask as soon as they may.
        match steps {
            3 => stage.world.write(w),
            6 => q2 = Some(stage.query(10, 30)),
            _ if stage.world.history.may_invoke(y) => stage.world.write(y),
            _ => {}
        }
        if !stage.small_step(steps) && steps >= at + later {
            break;
        }
        steps += 1;
    }
    stage.settle();
    let q3 = stage.query(10, 40);
    for op in [w, y] {
        stage.put_if_free(op);
    }
    stage.settle();
    assert!([x, y, w, q3].iter().all(|op| stage.answered(*op)), "{first:?} after {at}, {second:?} {later} later");
    assert!([Some(q1), q2].iter().flatten().all(|q| stage.answered(*q) || stage.aborted(*q)));
    steps
}

/// The coordinator, and any partition's leader, fails between any two steps of a query; then once more.
pub fn failover_between_any_two_messages() {
    let steps = two_queries_and_writes((0, Blow::Nothing), (0, Blow::Nothing));
    assert!(steps > 20, "{steps} steps");
    for at in 0..=steps {
        for first in BLOWS {
            two_queries_and_writes((at, *first), (0, Blow::Nothing));
            for later in [1, 2, 3, 5, 8] {
                two_queries_and_writes((at, *first), (later, Blow::CoordinatorAndMessages));
                two_queries_and_writes((at, *first), (later, Blow::Leader(2, |at| at == 1)));
            }
        }
    }
}

/// A to F, and those of this file.
pub fn all() -> impl Iterator<Item = (&'static str, fn())> {
    lettered::SCRIPTS.iter().map(|script| (script.name, script.play)).chain(SCRIPTS.iter().copied())
}

/// By name, for the list of planted bugs.
const SCRIPTS: &[(&str, fn())] = &[
    ("tk04_a_coordinator_dies_in_mid_place", tk04_a_coordinator_dies_in_mid_place),
    ("tk06_an_older_ballot_after_a_newer_one", tk06_an_older_ballot_after_a_newer_one),
    ("tk07_a_new_leader_guesses_no_watermark", tk07_a_new_leader_guesses_no_watermark),
    ("tk08_a_lost_watermark_is_told_again", tk08_a_lost_watermark_is_told_again),
    ("tk10_every_place_comes_twice", tk10_every_place_comes_twice),
    ("tk12_a_voided_ticket_stays_in_the_chain", tk12_a_voided_ticket_stays_in_the_chain),
    ("tk13_voiding_a_later_ticket_frees_no_earlier_one", tk13_voiding_a_later_ticket_frees_no_earlier_one),
    ("tk14_nothing_is_told_before_it_is_decided", tk14_nothing_is_told_before_it_is_decided),
    ("tk18_a_partition_without_a_majority_blocks_nobody", tk18_a_partition_without_a_majority_blocks_nobody),
    ("mv01_a_query_is_cut_by_the_map_of_its_ticket", mv01_a_query_is_cut_by_the_map_of_its_ticket),
    ("mv04_a_child_starts_with_its_parents_last_ticket", mv04_a_child_starts_with_its_parents_last_ticket),
    ("mv06_a_split_is_released_by_parent_and_child", mv06_a_split_is_released_by_parent_and_child),
    ("mv08_a_split_survives_its_coordinator", mv08_a_split_survives_its_coordinator),
    ("mv09_a_split_is_never_voided", mv09_a_split_is_never_voided),
    ("failover_between_any_two_messages", failover_between_any_two_messages),
    ("d10_writes_never_meet_the_coordinator", d10_writes_never_meet_the_coordinator),
];

#[test]
fn every_script_ends_well() {
    for (name, script) in all() {
        println!("{name}");
        script();
    }
}
