//! Routes an operator's leader transfer to the leader, from whichever node was asked for it: finds the leader, asks it,
//! and repeats both until it answers or the time is over.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use coppice_client::map::PartitionMap;
use coppice_client::wire::control::AdminError;
use coppice_client::wire::{AdminReply, NodeId, PartitionId};

use super::transfer::may_lead;
use crate::question::Answer;

/// Between two looks for a leader, while there is none or the last one does not answer.
const LOOK: Duration = Duration::from_millis(20);

/// A transfer on its way to the leader.
#[derive(Debug)]
pub struct Routing {
    partition: PartitionId,
    to: NodeId,
    /// How often each node was named in this look.
    named: BTreeMap<NodeId, usize>,
    /// Why the last leader that was found did not transfer.
    reason: Option<String>,
    /// A leader may have been asked and have begun.
    was_asked: bool,
}

/// What its driver does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// After this pause, [`Routing::look`].
    Look(Duration),
    /// These nodes are asked who leads: [`Routing::on_named`] for each that answers, then [`Routing::on_all_named`].
    WhoLeads(Vec<NodeId>),
    /// Another one of these is to answer.
    Hear,
    /// This leader is asked: [`Routing::on_answer`].
    Transfer(NodeId),
}

/// What to do next, or what the operator hears.
pub type Next = ControlFlow<AdminReply, Ask>;

/// Why a leader that was asked gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unheard {
    /// It refuses to be asked.
    Refused(String),
    /// It was not asked: there is no connection.
    Unreachable(String),
    /// It may have been asked, and did not answer.
    Lost(String),
}

impl Routing {
    /// Of a leadership that is to go to node `to`.
    ///
    /// # Errors
    /// Why that node cannot lead, by this map.
    pub fn new(map: &PartitionMap, partition: PartitionId, to: NodeId) -> Result<Routing, AdminError> {
        may_lead(map, partition, to)?;
        Ok(Routing { partition, to, named: BTreeMap::new(), reason: None, was_asked: false })
    }

    /// Looks for the leader. `known`: who leads, as node `own` knows, which counts if it has a replica. `left` is, in
    /// all calls, the time until the operator is answered.
    pub fn look(&mut self, map: &PartitionMap, own: Option<NodeId>, known: Option<NodeId>, left: Duration) -> Next {
        let (Some(entry), Some(own)) = (map.group(self.partition), own) else { return self.look_again(left) };
        if let Some(leader) = known.filter(|_| entry.replica_on(own).is_some()) {
            return if leader == own { self.named_itself(leader) } else { Next::Continue(Ask::Transfer(leader)) };
        }
        self.named.clear();
        Next::Continue(Ask::WhoLeads(entry.replicas.iter().map(|info| info.node).filter(|&node| node != own).collect()))
    }

    /// A node that was asked names the leaders that it knows of; none: it did not answer.
    pub fn on_named(&mut self, node: NodeId, answer: Option<Answer>) -> Next {
        let leaders = if let Some(Answer::Map { leaders, .. }) = answer { leaders } else { Vec::new() };
        let leader = leaders.into_iter().find(|(group, _)| *group == self.partition).map(|(_, leader)| leader);
        match leader {
            // It knows best.
            Some(leader) if leader == node => return self.named_itself(leader),
            Some(leader) => *self.named.entry(leader).or_default() += 1,
            None => {}
        }
        Next::Continue(Ask::Hear)
    }

    /// All have answered that do: nobody says that it leads itself.
    pub fn on_all_named(&mut self, left: Duration) -> Next {
        match self.named.iter().max_by_key(|(_, count)| **count) {
            // Others may believe in it for longer than it leads.
            Some((&leader, _)) => Next::Continue(Ask::Transfer(leader)),
            None => self.look_again(left),
        }
    }

    /// This node says that it leads itself: there may be nothing left to transfer.
    fn named_itself(&self, leader: NodeId) -> Next {
        match leader == self.to {
            true => Next::Break(AdminReply::Transferred { pause_us: 0 }),
            false => Next::Continue(Ask::Transfer(leader)),
        }
    }

    /// The leader was asked, and this is its answer; none: it does not lead.
    pub fn on_answer(&mut self, leader: NodeId, answer: Result<Option<AdminReply>, Unheard>, left: Duration) -> Next {
        let partition = self.partition;
        self.was_asked |= matches!(answer, Err(Unheard::Lost(_)));
        self.reason = Some(match answer {
            Ok(Some(reply)) => return Next::Break(reply),
            Err(Unheard::Refused(text)) => return Next::Break(AdminReply::Failed(AdminError::Refused(text))),
            Ok(None) => format!("{leader} does not lead {partition}"),
            Err(Unheard::Unreachable(text) | Unheard::Lost(text)) => {
                format!("{leader}, the last known leader of {partition}, cannot be reached: {text}")
            }
        });
        self.look_again(left)
    }

    fn look_again(&self, left: Duration) -> Next {
        if left > LOOK {
            return Next::Continue(Ask::Look(LOOK));
        }
        let Routing { partition, to, .. } = self;
        let nobody = || format!("{partition} has no leader that its nodes know of");
        let reason = self.reason.clone().unwrap_or_else(nobody);
        Next::Break(AdminReply::Failed(match self.was_asked {
            true => AdminError::TimedOut(format!("{to} did not take {partition} over in time: {reason}")),
            false => AdminError::Unavailable(reason),
        }))
    }
}

#[cfg(test)]
mod tests {
    use coppice_client::map::{Addresses, Entry, NodeInfo, NodeState, ReplicaInfo, Role};
    use coppice_client::wire::ReplicaId;

    use super::*;

    const GROUP: PartitionId = PartitionId(1);
    const N1: NodeId = NodeId(1);
    const N2: NodeId = NodeId(2);
    const N3: NodeId = NodeId(3);
    const N4: NodeId = NodeId(4);
    const LONG: Duration = Duration::from_secs(1);
    const OVER: Duration = Duration::ZERO;

    /// The group is on the first three of four nodes.
    fn map() -> PartitionMap {
        let (state, role) = (NodeState::Member, Role::Voter);
        let info = |id| NodeInfo { id, name: String::new(), addresses: Addresses::default(), state };
        let replica = |node: NodeId| ReplicaInfo { replica: ReplicaId(node.0), node, role };
        let replicas = [N1, N2, N3].map(replica).into();
        let entry = Entry { partition: GROUP, replicas, ..Entry::default() };
        PartitionMap { nodes: [N1, N2, N3, N4].map(info).into(), partitions: vec![entry], ..PartitionMap::default() }
    }

    fn to(node: NodeId) -> Routing {
        Routing::new(&map(), GROUP, node).expect("it has a replica")
    }

    fn named(leader: NodeId) -> Option<Answer> {
        let (map, settings, users) = Default::default();
        Some(Answer::Map { map, leaders: vec![(PartitionId(2), N4), (GROUP, leader)], settings, users })
    }

    fn error(next: Next) -> AdminError {
        let Next::Break(AdminReply::Failed(error)) = next else { panic!("{next:?}") };
        error
    }

    const DONE: Next = Next::Break(AdminReply::Transferred { pause_us: 0 });

    #[test]
    fn a_replica_here_knows_who_leads() {
        assert_eq!(to(N3).look(&map(), Some(N1), Some(N2), LONG), Next::Continue(Ask::Transfer(N2)));
        assert_eq!(to(N3).look(&map(), Some(N1), Some(N1), LONG), Next::Continue(Ask::Transfer(N1)), "itself");
        assert_eq!(to(N3).look(&map(), Some(N3), Some(N3), LONG), DONE);
        let hearsay = to(N3).look(&map(), Some(N1), Some(N3), LONG);
        assert_eq!(hearsay, Next::Continue(Ask::Transfer(N3)), "it may lead no more");
        assert!(matches!(Routing::new(&map(), GROUP, N4), Err(AdminError::Invalid(_))));
    }

    #[test]
    fn who_names_itself_knows_best_and_else_the_most_named_one_is_asked() {
        let mut routing = to(N3);
        let asked = Next::Continue(Ask::WhoLeads(vec![N1, N2, N3]));
        assert_eq!(routing.look(&map(), Some(N4), Some(N2), LONG), asked, "nothing of the group is here");
        assert_eq!(routing.on_named(N1, named(N2)), Next::Continue(Ask::Hear));
        assert_eq!(routing.on_named(N2, None), Next::Continue(Ask::Hear));
        assert_eq!(routing.on_named(N3, named(N3)), DONE);

        assert_eq!(
            routing.look(&map(), Some(N1), None, LONG),
            Next::Continue(Ask::WhoLeads(vec![N2, N3])),
            "it knows none"
        );
        assert_eq!(routing.on_named(N2, named(N1)), Next::Continue(Ask::Hear));
        assert_eq!(routing.on_all_named(LONG), Next::Continue(Ask::Transfer(N1)));
        assert_eq!(routing.look(&map(), Some(N1), None, LONG), Next::Continue(Ask::WhoLeads(vec![N2, N3])));
        assert_eq!(routing.on_all_named(LONG), Next::Continue(Ask::Look(LOOK)), "what was named before does not count");
    }

    #[test]
    fn a_leader_is_looked_for_again_until_one_answers_or_the_time_is_over() {
        let mut routing = to(N3);
        assert_eq!(routing.on_answer(N1, Ok(None), LONG), Next::Continue(Ask::Look(LOOK)));
        assert_eq!(routing.on_answer(N2, Ok(Some(AdminReply::Done)), LONG), Next::Break(AdminReply::Done));
        let refused = error(routing.on_answer(N2, Err(Unheard::Refused("no".into())), LONG));
        assert_eq!(refused, AdminError::Refused("no".into()));
    }

    #[test]
    fn an_operator_hears_whether_a_leader_may_have_begun() {
        let nobody = error(to(N3).on_all_named(OVER));
        assert_eq!(nobody, AdminError::Unavailable("p1 has no leader that its nodes know of".into()));
        let mut routing = to(N3);
        let unreachable = error(routing.on_answer(N1, Err(Unheard::Unreachable("down".into())), OVER));
        let text = "n1, the last known leader of p1, cannot be reached: down";
        assert_eq!(unreachable, AdminError::Unavailable(text.into()));
        assert_eq!(routing.on_answer(N1, Err(Unheard::Lost("late".into())), LONG), Next::Continue(Ask::Look(LOOK)));
        let lost = error(routing.on_answer(N2, Ok(None), OVER));
        assert_eq!(lost, AdminError::TimedOut("n3 did not take p1 over in time: n2 does not lead p1".into()));
    }
}
