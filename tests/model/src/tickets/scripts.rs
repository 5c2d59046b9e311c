//! Schedules A to F of hazards.md 6 over the real coordinator, chain, acknowledger and gate; F over a real replica too,
//! which reads the part. Each drives the world to where its planted bugs go wrong, as far as the protocol lets it; then
//! everything must end well. P1, P2 .. own the keys 10.., 20.. .

use std::time::Duration;

use coppice_ordering::PartitionId;

use super::history::Op;
use super::part::Follower;
use super::stage::{Stage, place_of};
use super::world::Message;

/// A schedule, and what it catches.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    pub name: &'static str,
    /// Plays it; panics if it does not end well.
    pub play: fn(),
    /// The planted bugs with which it must not end well.
    pub mutants: &'static [&'static str],
}

const fn script(name: &'static str, play: fn(), mutants: &'static [&'static str]) -> Script {
    Script { name, play, mutants }
}

/// A to F.
pub const SCRIPTS: &[Script] = &[
    script("a_two_partitions", a_two_partitions, &["gate_off"]),
    script("b_three_partitions", b_three_partitions, &["gate_two_partition"]),
    script("c_zombie", c_zombie, &["complete_unconfirmed", "confirm_before_placed"]),
    script("d_lost_in_the_pipe", d_lost_in_the_pipe, &["no_prev_check"]),
    script("e_voided", e_voided, &["late_placed_completes"]),
    script("f_a_part_that_is_read_late", f_a_part_that_is_read_late, &["part_at_last_executed", "part_old"]),
];

/// The default `place_timeout`.
pub const PLACE_TIMEOUT: Duration = Duration::from_millis(150);

/// A query over P1 and P2 stands in P1's log, and a write x behind it; its client would then write y to P2.
pub fn a_query_and_a_write_behind_it() -> (Stage, Op, Op, Op) {
    let mut stage = Stage::serving(2);
    let q = stage.query(10, 30);
    stage.place(q, 1);
    let x = stage.write(11);
    let y = stage.plan_write(21, Some(x));
    (stage, q, x, y)
}

/// P1: [Q, x]   P2: [y, Q]
fn a_two_partitions() {
    let (mut stage, q, x, y) = a_query_and_a_write_behind_it();
    let early = stage.put_if_free(y);
    stage.place(q, 2);
    stage.settle();
    assert!(!early, "x was answered before P2 had placed the query");
    stage.put(y);
    stage.settle();
    assert!([q, x, y].iter().all(|op| stage.answered(*op)));
}

/// The logs of B as far as they get before P3 has Q1: Q1 reads P2, P3 and Q2 reads P1, P2.
/// P1: [Q2, x]   P2: [Q1, w, Q2]   P3: []
fn b_logs() -> (Stage, [Op; 4]) {
    let mut stage = Stage::serving(3);
    let q1 = stage.query(20, 40);
    stage.place(q1, 2);
    stage.report(2);
    stage.write(21);
    let q2 = stage.query(10, 30);
    stage.place(q2, 2);
    stage.place(q2, 1);
    let x = stage.write(11);
    let y = stage.plan_write(31, Some(x));
    (stage, [q1, q2, x, y])
}

/// P1: [Q2, x]   P2: [Q1, w, Q2]   P3: [y, Q1]
fn b_three_partitions() {
    let (mut stage, [q1, q2, x, y]) = b_logs();
    stage.report(1);
    stage.report(2);
    stage.confirm();
    stage.hear(1);
    let early = stage.put_if_free(y);
    stage.place(q1, 3);
    stage.settle();
    assert!(!early, "Q2 was released before Q1, which stands before it in P2");
    assert!([q1, q2, x].iter().all(|op| stage.answered(*op)));
}

/// The logs of B; ballot 2 takes over, its first tickets free P1 and P2; then P3 places Q1, and ballot 1 hears it.
fn c_zombie() {
    let (mut stage, [q1, q2, x, y]) = b_logs();
    stage.report(1);
    stage.report(2);
    stage.confirm();
    stage.world.elect();
    stage.listen();
    for partition in [1, 2] {
        stage.deliver(
            |message| matches!(message, Message::Place { to, place } if to.0 == partition && place.prev.is_none()),
        );
        stage.decide(partition);
        stage.report(partition);
    }
    stage.confirm();
    stage.hear(1);
    stage.hear(2);
    assert!(stage.answered(x), "the first ticket of ballot 2 frees what ballot 1 left");
    stage.put(y);
    stage.place(q1, 3);
    stage.report(3);
    assert!(!stage.answered(q1) && !stage.answered(q2), "a deposed coordinator completes nothing");
    stage.settle();
}

/// P1 pipes Q1 and Q2; its leader changes, Q1 is lost and Q2 survives. Q0 keeps Q2 waiting while Q1 goes.
/// Wrong: P1: [Q2, x, Q1]   P2: [Q1, y, Q2]
fn d_lost_in_the_pipe() {
    let mut stage = Stage::serving(3);
    let q0 = stage.query(30, 40);
    let q2 = stage.query(10, 40);
    let q1 = stage.query(10, 30);
    stage.place(q0, 3);
    stage.report(3);
    stage.pipe(q1, 1);
    stage.pipe(q2, 1);
    stage.world.change_leader(PartitionId(1), |at| at == 1);
    stage.write(11);
    stage.place(q1, 2);
    stage.write(21);
    stage.place(q2, 2);
    stage.place(q2, 3);
    stage.settle();
    assert!([q0, q1, q2].iter().all(|op| stage.answered(*op)));
}

/// P1: [Q, x]; Q is voided because P2 is slow; x is answered; P2: [y, Q], told at last. Q stays aborted, and the next
/// query completes although Q came late.
fn e_voided() {
    let (mut stage, q, x, y) = a_query_and_a_write_behind_it();
    stage.report(1);
    stage.pass(PLACE_TIMEOUT);
    assert!(stage.aborted(q));
    stage.hear(1);
    assert!(stage.answered(x), "a voided ticket holds nothing back");
    stage.put(y);
    // The first sending, with the query in it, arrives after all.
    let place = stage.take(|message| place_of(message, q, 2)).remove(0);
    stage.world.deliver(place);
    stage.decide(2);
    stage.report(2);
    stage.confirm();
    stage.settle();
    let next = stage.query(10, 30);
    stage.settle();
    assert!(stage.answered(next) && stage.aborted(q));
}

/// P1: [w, Q, x]   P2: [Q, y]; Q is released, y is answered, then x. The replica of P1 that was drawn to give its part
/// holds all of the log and hears only now that it is decided: its part is that of Q's position, with w and without x.
fn f_a_part_that_is_read_late() {
    let mut stage = Stage::serving(2);
    let w = stage.write(12);
    let q = stage.query(10, 30);
    stage.place(q, 1);
    stage.place(q, 2);
    stage.settle();
    let y = stage.write(21);
    assert!(stage.answered(q) && stage.answered(y), "Q is released, and holds nothing back");
    let x = stage.write(11);
    assert!(stage.answered(w) && stage.answered(x));
    let (mut drawn, log) = (Follower::new(PartitionId(1)), &stage.world.partitions[&PartitionId(1)].log);
    for entry in log {
        let early = drawn.accepts(entry, &stage.world.history);
        assert!(early.is_empty(), "a part left before its place was decided: {early:?}");
    }
    assert_eq!(drawn.hears_all_decided(), [vec![12]], "the part is not as of its ticket");
}
