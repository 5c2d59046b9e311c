//! Whether this process may speak for the replicas that it found on its disk (hazards.md PX12).
//!
//! A node that runs on a copy of its directory has forgotten promises, and only others can know. One of them may not
//! know better and let it in while another one, who does, is just being connected: with the first alone it could form a
//! quorum again that it was a part of before. So a process that found replicas says nothing for them before every other
//! node of their groups has let it in, or could not be reached for an election timeout: no vote, no promise, no
//! acknowledgement counts before it is said. In a cluster that runs this takes one greeting of each node.
//!
//! Once a node says that this is a copy, it is one for good: nothing is said until the process ends.

use std::collections::BTreeSet;

use coppice_client::wire::NodeId;
use coppice_ordering::Time;

/// What the others make of this process.
#[derive(Debug, Default)]
pub struct Fence {
    /// Replicas were found, and it is not known yet whose word counts.
    begins: bool,
    /// Nodes whose word is awaited.
    awaited: BTreeSet<NodeId>,
    /// Nodes that have let this process in.
    let_in: BTreeSet<NodeId>,
    /// When whoever has not been reached is awaited no longer.
    until: Time,
    /// In words, why it is a copy.
    copy: Option<String>,
}

impl Fence {
    /// Replicas are about to start as a disk holds them: nothing is said for them until [`Fence::await_nodes`].
    pub fn hold(&mut self) {
        self.begins = true;
    }

    /// The word of these nodes is awaited until then.
    pub fn await_nodes(&mut self, nodes: impl IntoIterator<Item = NodeId>, until: Time) {
        self.begins = false;
        self.awaited = nodes.into_iter().filter(|node| !self.let_in.contains(node)).collect();
        self.until = until;
    }

    /// The nodes whose word is awaited.
    pub fn awaited(&self) -> &BTreeSet<NodeId> {
        &self.awaited
    }

    /// When [`Fence::stop_waiting`] is wanted.
    pub fn deadline(&self) -> Option<Time> {
        (!self.awaited.is_empty()).then_some(self.until)
    }

    /// A node has let this process in.
    pub fn let_in(&mut self, node: NodeId) {
        self.let_in.insert(node);
        self.awaited.remove(&node);
    }

    /// It is time: whoever has not been reached is awaited no longer. Names them.
    pub fn stop_waiting(&mut self) -> BTreeSet<NodeId> {
        std::mem::take(&mut self.awaited)
    }

    /// A node says that this process runs on a copy of its directory. Whether that is new.
    pub fn mark_copy(&mut self, text: &str) -> bool {
        let new = self.copy.is_none();
        self.copy.get_or_insert_with(|| text.to_owned());
        new
    }

    /// Why this process is a copy, if it is one.
    pub fn copy(&self) -> Option<&str> {
        self.copy.as_deref()
    }

    /// Whether anything may be said for the replicas here.
    pub fn may_speak(&self) -> bool {
        let waits = (self.begins || !self.awaited.is_empty()) && !mutant!(speaks_unvetted);
        !waits && self.copy.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);

    #[test]
    fn px12_nothing_is_said_before_every_other_node_has_let_the_process_in() {
        let mut fence = Fence::default();
        assert!(fence.may_speak(), "a node without replicas");
        fence.hold();
        fence.let_in(A);
        assert!(!fence.may_speak(), "it is not known yet who else there is");
        fence.await_nodes([A, B], Time(7));
        assert!(!fence.may_speak(), "one of them may know better");
        fence.let_in(B);
        assert!(fence.may_speak());
    }

    #[test]
    fn a_node_that_cannot_be_reached_is_not_waited_for_for_ever() {
        let mut fence = Fence::default();
        fence.hold();
        fence.await_nodes([A, B], Time(7));
        fence.let_in(B);
        assert_eq!(fence.deadline(), Some(Time(7)));
        assert_eq!(fence.stop_waiting(), BTreeSet::from([A]));
        assert!(fence.may_speak() && fence.deadline().is_none());
    }

    #[test]
    fn a_copy_says_nothing_any_more() {
        let mut fence = Fence::default();
        assert!(fence.mark_copy("first") && !fence.mark_copy("second"));
        fence.stop_waiting();
        fence.let_in(A);
        assert!(!fence.may_speak());
        assert_eq!(fence.copy(), Some("first"));
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn a_process_that_speaks_before_it_is_let_in_is_caught() {
        let test = "incarnation::fence::tests::px12_nothing_is_said_before_every_other_node_has_let_the_process_in";
        planted::assert_caught("speaks_unvetted", test);
    }
}
