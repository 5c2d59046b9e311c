//! The gate: outputs leave when everything they saw is decided and every ticket before them is released (ordering.md
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
    /// Ascending by position; so the tickets ascend too, and what may leave is at the front.
    held: VecDeque<Held<T>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Held<T> {
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
    /// guessed: `None` until one is told (reliability.md TK7).
    pub fn new(decided_upto: Instance, released: Option<Ticket>) -> Gate<T> {
        Gate { decided_upto, released, held: VecDeque::new() }
    }

    /// Holds `output`, which saw the log up to `position`, where `last_ticket` was the last ticket. Outputs of one
    /// position leave in the order in which they came. Complexity: O(1) at the newest position, else linear in what is
    /// behind it.
    pub fn hold(&mut self, position: Instance, last_ticket: Option<Ticket>, output: T) {
        let held = Held { position, last_ticket, output };
        if self.held.back().is_none_or(|back| back.position <= position) {
            self.held.push_back(held);
        } else {
            let at = self.held.partition_point(|other| other.position <= position);
            self.held.insert(at, held);
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
        let open = |held: &mut Held<T>| {
            let decided = held.position <= decided_upto || mutant!(reply_at_execute);
            // One comparison of two tickets; no ticket is below every ticket.
            decided && (released >= held.last_ticket || mutant!(gate_off))
        };
        Some(self.held.pop_front_if(open)?.output)
    }

    /// What was executed from `from` on is undone: its outputs are taken back, newest first (ordering.md 2.4).
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

    /// The watermark.
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
        // ordering.md 3: (a) every instance up to i is decided, (b) released >= last_ticket(i).
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
        // ordering.md 4.2.
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
