//! Answers behind a ticket that nobody releases: the directory has no majority (protocol.md 4.4).

use coppice_btree::Tree;

use super::*;
use crate::sessions::Sessions;

const DEADLINE: Duration = Duration::from_secs(5);

/// A follower that has answered nothing: what it read stands behind the ticket.
fn behind_a_ticket(deadline: Option<Duration>) -> Follower {
    let mut follower = Follower::new();
    follower.hears(1, 2, Batch::NoOp, 1);
    let ask = follower.is_asked();
    let put = follower.put(1);
    follower.hears(1, 3, place_until(deadline), 2);
    follower.hears(1, 4, put, 3);
    follower.hears(1, 5, Batch::NoOp, 4);
    assert_eq!(answers(&follower.is_told(ask, 2)), 0, "the tip is not decided");
    assert_eq!(answers(&follower.hears(1, 6, Batch::NoOp, 5)), 0, "the ticket is not released");
    follower
}

impl Follower {
    fn after(&mut self, time: Duration) -> usize {
        self.now = self.now + time;
        answers(&self.step(Input::Tick))
    }
}

#[test]
fn an_answer_leaves_when_nobody_takes_the_result_of_the_query_before_it() {
    let mut follower = behind_a_ticket(Some(DEADLINE));
    let early = follower.after(2 * DEADLINE - Duration::from_millis(1));
    assert_eq!(early, 0, "a client whose clock is slow may still take the query's result");
    assert!(follower.replica.deadline().is_some_and(|at| at <= follower.now + Duration::from_millis(1)));
    assert_eq!(follower.after(Duration::from_millis(1)), 1);
    assert_eq!((follower.replica.held(), follower.replica.tickets_freed()), (0, 1));
    assert_eq!(follower.replica.released(), None, "nobody else believes it");
}

#[test]
fn an_answer_waits_for_ever_without_the_option() {
    let mut follower = behind_a_ticket(None);
    assert_eq!(follower.after(Duration::from_secs(1_000_000)), 0);
    follower.replica.set_gate_escape(true);
    assert_eq!(follower.after(Duration::ZERO), 1, "every client has given up since");
}

/// What a snapshot skips has deadlines that nobody knows here; the clock of its last ticket starts with it.
#[test]
fn an_answer_behind_a_snapshot_waits_for_the_longest_deadline() {
    let mut follower = behind_a_ticket(Some(DEADLINE));
    follower.replica.set_gate_escape(true);
    let range = KeyRange::all();
    let later = Ticket { n: TICKET.n + 5, ..TICKET };
    let state = Shard::restored(GROUP, range, MapVersion(1), Tree::new(), Sessions::default(), Some(later));
    let Input::Installed { configuration, configured_at, promised, .. } = snapshot(9) else { panic!("a snapshot") };
    let (machine, instance) = (Box::new(Machine::Shard(Box::new(state))), Instance(9));
    follower.step(Input::Installed { machine, instance, configuration, configured_at, promised });
    let ask = follower.is_asked();
    assert_eq!(answers(&follower.is_told(ask, 9)), 0, "a ticket before it is not released");
    assert_eq!(follower.after(2 * DEADLINE), 1, "what waited before");
    assert_eq!(follower.after(Duration::from_secs(120) - 2 * DEADLINE - Duration::from_millis(1)), 0);
    assert_eq!(follower.after(Duration::from_millis(1)), 1);
}
