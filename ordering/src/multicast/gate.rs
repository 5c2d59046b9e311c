//! The gate: outputs leave when everything they saw is decided and every ticket before them is released (protocol.md
//! 3).
//!
//! It knows positions and tickets, not what it holds. Execution never waits for it; only outputs do.

use std::collections::VecDeque;

use crate::ids::{Instance, Ticket};

/// Outputs held until decided and released.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gate<T> {
    /// Everything up to here is decided. Never goes back.
    decided_upto: Instance,
    /// Every ticket up to here is released. Never goes back.
    released: Option<Ticket>,
    /// Ascending by position, and at one position by ticket: a read sees all of a batch, and an answer of the batch
    /// what is before it. The tickets of a log ascend, so those of all that is held do too, and what may leave is at
    /// the front.
    held: VecDeque<HeldOutput<T>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct HeldOutput<T> {
    position: Instance,
    last_ticket: Option<Ticket>,
    output: T,
}

impl<T> Default for Gate<T> {
    fn default() -> Gate<T> {
        Gate::new(Instance::ZERO, None)
    }
}

impl<T> Gate<T> {
    /// A gate at a replica that has decided `decided_upto` and knows `released` as the watermark. A watermark is never
    /// guessed: `None` until one is told (hazards.md TK7).
    pub fn new(decided_upto: Instance, released: Option<Ticket>) -> Gate<T> {
        Gate { decided_upto, released, held: VecDeque::new() }
    }

    /// Holds `output`, which saw the log up to `position`, where `last_ticket` was the last ticket when it was
    /// executed, whatever was executed since. Outputs of one position and ticket leave in the order in which they came.
    /// Complexity: O(1) at the newest position, else linear in what is behind it.
    pub fn hold(&mut self, position: Instance, last_ticket: Option<Ticket>, output: T) {
        let held = HeldOutput { position, last_ticket, output };
        let is_before = |other: &HeldOutput<T>| match mutant!(gate_in_order_of_arrival) {
            true => other.position <= position,
            false => (other.position, other.last_ticket) <= (position, last_ticket),
        };
        let at = match self.held.back().is_none_or(is_before) {
            true => self.held.len(),
            false => self.held.partition_point(is_before),
        };
        self.held.insert(at, held);
        if cfg!(any(debug_assertions, feature = "invariants")) {
            self.assert_ascends_at(at);
        }
    }

    fn assert_ascends_at(&self, at: usize) {
        let mut around = self.held.range(at.saturating_sub(1)..(at + 2).min(self.held.len()));
        let mut last = around.next();
        for held in around {
            let ascends = last.is_none_or(|last| last.last_ticket <= held.last_ticket);
            assert!(
                ascends,
                "#{}: {:?} behind {:?}",
                held.position.0,
                held.last_ticket,
                last.map(|held| held.last_ticket)
            );
            last = Some(held);
        }
    }

    /// Everything up to `upto` is decided, and was executed as decided.
    pub fn decided(&mut self, upto: Instance) {
        self.decided_upto = self.decided_upto.max(upto);
    }

    /// Every ticket up to `watermark` is released.
    pub fn released(&mut self, watermark: Ticket) {
        self.released = self.released.max(Some(watermark));
    }

    /// The next output that may leave.
    pub fn pop(&mut self) -> Option<T> {
        let (decided_upto, released) = (self.decided_upto, self.released);
        let open = |held: &mut HeldOutput<T>| {
            let decided = held.position <= decided_upto || mutant!(reply_at_execute);
            // One comparison of two tickets; no ticket is below every ticket.
            decided && (released >= held.last_ticket || mutant!(gate_off))
        };
        Some(self.held.pop_front_if(open)?.output)
    }

    /// What was executed from `from` on is undone: its outputs are taken back, newest first (protocol.md 2.4).
    pub fn undo_from(&mut self, from: Instance) -> impl Iterator<Item = T> + '_ {
        let keep = self.held.partition_point(|held| held.position < from);
        self.held.drain(keep..).rev().map(|held| held.output)
    }

    /// Number of outputs held: bound it by accepting no more work.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Number of outputs that are decided and wait for a ticket only. Complexity: logarithmic.
    pub fn held_by_ticket(&self) -> usize {
        self.held.partition_point(|held| held.position <= self.decided_upto)
    }

    /// The position up to which everything is decided.
    pub fn decided_upto(&self) -> Instance {
        self.decided_upto
    }

    pub fn watermark(&self) -> Option<Ticket> {
        self.released
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Ballot;

    fn ticket(round: u64, n: u64) -> Ticket {
        Ticket { ballot: Ballot::new(round, 0), n }
    }

    fn open(gate: &mut Gate<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| gate.pop()).collect()
    }

    #[test]
    fn an_output_leaves_when_decided_and_released() {
        // protocol.md 3: (a) every instance up to i is decided, (b) released >= last_ticket(i).
        let mut gate = Gate::default();
        gate.hold(Instance(1), None, "x");
        gate.hold(Instance(2), Some(ticket(1, 1)), "y");
        gate.hold(Instance(3), Some(ticket(1, 1)), "z");
        assert_eq!(open(&mut gate), [] as [&str; 0]);
        gate.decided(Instance(2));
        assert_eq!((open(&mut gate), gate.held_by_ticket()), (vec!["x"], 1));
        gate.released(ticket(1, 1));
        assert_eq!(open(&mut gate), ["y"]);
        gate.decided(Instance(3));
        assert_eq!((open(&mut gate), gate.is_empty()), (vec!["z"], true));
    }

    #[test]
    fn a_later_coordinators_watermark_frees_what_the_earlier_left() {
        // protocol.md 4.2.
        let mut gate = Gate::new(Instance(9), None);
        gate.hold(Instance(5), Some(ticket(1, 7)), "x");
        gate.released(ticket(1, 6));
        assert_eq!(open(&mut gate), [] as [&str; 0]);
        gate.released(ticket(2, 1));
        gate.released(ticket(1, 1));
        assert_eq!((open(&mut gate), gate.watermark()), (vec!["x"], Some(ticket(2, 1))));
    }

    #[test]
    fn outputs_leave_in_log_order_and_an_older_position_overtakes() {
        let mut gate = Gate::new(Instance(1), None);
        gate.hold(Instance(3), None, "late");
        gate.hold(Instance(1), None, "repeated reply");
        gate.hold(Instance(3), None, "later");
        assert_eq!(open(&mut gate), ["repeated reply"]);
        gate.decided(Instance(3));
        assert_eq!(open(&mut gate), ["late", "later"]);
    }

    /// A read of a batch waited for its confirmation in the gate before the batch was decided, and its answers came
    /// behind it: those before the ticket in the batch waited for that ticket.
    #[test]
    fn an_answer_is_not_held_by_a_ticket_behind_it_in_its_batch() {
        let mut gate = Gate::default();
        gate.hold(Instance(4), Some(ticket(1, 2)), "read");
        gate.hold(Instance(4), Some(ticket(1, 1)), "before the ticket");
        gate.hold(Instance(4), Some(ticket(1, 2)), "behind the ticket");
        gate.decided(Instance(4));
        gate.released(ticket(1, 1));
        assert_eq!(open(&mut gate), ["before the ticket"]);
        gate.released(ticket(1, 2));
        assert_eq!(open(&mut gate), ["read", "behind the ticket"]);
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn a_gate_that_keeps_no_order_is_caught() {
        let test = "multicast::gate::tests::an_answer_is_not_held_by_a_ticket_behind_it_in_its_batch";
        let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
        let output = command.args([test, "--exact"]).env("COPPICE_MUTANT", "gate_in_order_of_arrival").output();
        assert!(!output.expect("it runs").status.success(), "the planted bug survived");
    }

    #[test]
    fn undone_outputs_never_leave() {
        let mut gate = Gate::default();
        for (position, output) in [(1, "a"), (2, "b"), (3, "c")] {
            gate.hold(Instance(position), None, output);
        }
        assert_eq!(gate.undo_from(Instance(2)).collect::<Vec<_>>(), ["c", "b"]);
        gate.decided(Instance(3));
        assert_eq!(open(&mut gate), ["a"]);
    }
}
