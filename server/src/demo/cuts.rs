//! Cuts and delays between the nodes of a demo: filters in their peer layers, told by an operator's verb.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use coppice_client::wire::{AdminReply, AdminRequest, LinkFault, NodeId, PartitionStatus, ReplicaStatus, Status};
use coppice_client::{Admin, Config};
use coppice_core::settings::units::show_time;

use super::faults::{CATCH_UP_PATIENCE, Faults, LOOK, Refused};
use coppice_core::status::is_near;

/// A node that does not take a fault within this is not there.
const TELL_TIMEOUT: Duration = Duration::from_secs(1);

/// Far longer than a message is on its way on one machine, far shorter than an election.
const IN_FLIGHT: Duration = Duration::from_millis(10);

/// The faults that are on.
#[derive(Debug, Default)]
pub struct Cuts {
    /// Nothing passes between nodes of different sides.
    sides: Vec<Vec<u32>>,
    /// What each message to and from a node takes longer.
    delays: BTreeMap<u32, Duration>,
}

impl Cuts {
    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sides.is_empty() && self.delays.is_empty()
    }

    /// The commands of the prompt that make them.
    pub fn said(&self) -> Vec<String> {
        let sides = self.sides.iter().map(|side| side.iter().map(u32::to_string).collect::<Vec<_>>().join(","));
        let cut = Some(sides.collect::<Vec<_>>().join("|")).filter(|sides| !sides.is_empty());
        let cut = cut.map(|sides| format!("cut {sides}"));
        let slow = self.delays.iter().map(|(node, delay)| format!("slow {node} {}", show_time(*delay)));
        cut.into_iter().chain(slow).collect()
    }

    /// What `node` does to its messages to each of the others.
    fn of(&self, node: u32, count: u32) -> Vec<LinkFault> {
        let side = |node: u32| self.sides.iter().position(|side| side.contains(&node));
        let fault = |other: u32| {
            let cut = matches!((side(node), side(other)), (Some(here), Some(there)) if here != there);
            let delay = [node, other].iter().filter_map(|node| self.delays.get(node)).max().copied();
            let delay_ms = u32::try_from(delay.unwrap_or_default().as_millis()).unwrap_or(u32::MAX);
            LinkFault { to: NodeId(other), cut, delay_ms }
        };
        (1..=count).filter(|other| *other != node).map(fault).collect()
    }

    /// Nodes that are on no largest side.
    fn cut_off(&self) -> Vec<u32> {
        let largest = self.sides.iter().map(Vec::len).max().unwrap_or(0);
        let main = self.sides.iter().position(|side| side.len() == largest);
        let others = self.sides.iter().enumerate().filter(|(at, _)| Some(*at) != main);
        others.flat_map(|(_, side)| side.iter().copied()).collect()
    }
}

impl Faults {
    /// Lets nothing pass between these sides, and measures the gap.
    ///
    /// # Errors
    /// There is no such node.
    pub async fn cut(&mut self, sides: &[Vec<u32>]) -> Result<Vec<String>, Refused> {
        sides.iter().flatten().try_for_each(|number| self.known(*number))?;
        let cuts = Cuts { sides: sides.to_vec(), delays: std::mem::take(&mut self.cuts.delays) };
        let led = self.before_fault(&cuts.cut_off()).await;
        self.cuts = cuts;
        self.tell_all().await;
        // What was on its way when the last node was told still arrives: it is not the recovery.
        tokio::time::sleep(IN_FLIGHT).await;
        self.pulse.fault();
        let names = |side: &Vec<u32>| side.iter().map(|number| format!("n{number}")).collect::<Vec<_>>().join(" ");
        let what = self.cuts.sides.iter().map(names).collect::<Vec<_>>().join(" | ");
        Ok(self.report_of(&format!("{what} cut"), &led, "the smaller side").await)
    }

    /// Delays every message to and from a node.
    ///
    /// # Errors
    /// There is no such node.
    pub async fn slow(&mut self, number: u32, delay: Duration) -> Result<Vec<String>, Refused> {
        self.known(number)?;
        self.cuts.delays.insert(number, delay);
        self.tell_all().await;
        let health = self.health().await;
        Ok(vec![format!("n{number}: every message to and from it takes {} longer; {health}", show_time(delay))])
    }

    /// Ends all cuts and delays, and waits until every node that runs is back. A node that is down or paused is not
    /// waited for: no cut keeps it away.
    ///
    /// # Errors
    /// There is nothing to heal, or a node does not come back.
    pub async fn heal(&mut self) -> Result<Vec<String>, Refused> {
        if self.cuts.is_empty() {
            return Err("nothing is cut or slowed (try: cut 1|2,3)".to_owned());
        }
        self.tell(&Cuts::default()).await;
        // Interrupted before, the cut stands as it was said, and `heal` can be said again.
        self.cuts = Cuts::default();
        let running: Vec<NodeId> = (1..=self.nodes.count())
            .filter(|number| self.nodes.lives(*number) && !self.nodes.is_paused(*number))
            .map(NodeId)
            .collect();
        let deadline = Instant::now() + CATCH_UP_PATIENCE;
        // Without a majority of the nodes there is nothing to catch up with.
        while running.len() * 2 > self.nodes.count() as usize
            && !self.status().await.is_some_and(|status| are_back(&status, &running))
        {
            if Instant::now() >= deadline {
                let seconds = CATCH_UP_PATIENCE.as_secs();
                return Err(format!("not all nodes that run are back after {seconds} s; {}", self.health().await));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(vec![self.health().await])
    }

    /// Every node that runs is told its faults anew: one that was restarted has forgotten them.
    pub(super) async fn tell_all(&self) {
        self.tell(&self.cuts).await;
    }

    async fn tell(&self, cuts: &Cuts) {
        for number in (1..=self.nodes.count()).filter(|number| self.nodes.lives(*number)) {
            let faults = cuts.of(number, self.nodes.count());
            // One that is paused hears it when it goes on, or is told again.
            let told: Result<AdminReply, _> = self.admin_of(number).verb(AdminRequest::Faults(faults)).await;
            if let Err(error) = told {
                tracing::debug!(node = number, %error, "a node was not told its faults");
            }
        }
    }

    fn admin_of(&self, number: u32) -> Admin {
        let endpoint = format!("127.0.0.1:{}", self.nodes.ports(number).native);
        Admin::new([endpoint], Config { timeout: TELL_TIMEOUT, ..super::certs::config(self.nodes.certs()) })
    }

    /// The state as the node sees it that sees most: the others may be cut off from it.
    pub(super) async fn status_of_most(&self) -> Option<Status> {
        let mut best: Option<Status> = None;
        for number in (1..=self.nodes.count()).filter(|number| self.nodes.lives(*number)) {
            let Ok(status) = self.admin_of(number).status(false).await else { continue };
            let seen = |status: &Status| status.nodes.iter().filter(|node| node.up).count();
            if best.as_ref().is_none_or(|best| seen(best) < seen(&status)) {
                best = Some(status);
            }
        }
        best
    }
}

/// Whether these nodes are up, and their replicas where the leaders are: of every partition that can have one.
fn are_back(status: &Status, running: &[NodeId]) -> bool {
    let runs = |replica: &&ReplicaStatus| running.contains(&replica.node);
    let serves =
        |partition: &&PartitionStatus| partition.replicas.iter().filter(runs).count() * 2 > partition.replicas.len();
    let mut nodes = status.nodes.iter().filter(|node| running.contains(&node.id));
    nodes.all(|node| node.up)
        && status.partitions.iter().filter(serves).all(|partition| {
            partition.leader.is_some_and(|leader| running.contains(&leader))
                && partition.replicas.iter().filter(runs).all(|replica| is_near(replica) && replica.lag_instances == 0)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_holds_in_both_directions_and_spares_who_is_not_named() {
        let cuts = Cuts { sides: vec![vec![1], vec![2, 3]], delays: BTreeMap::new() };
        let cut =
            |from: u32| cuts.of(from, 4).iter().filter(|fault| fault.cut).map(|fault| fault.to.0).collect::<Vec<_>>();
        assert_eq!((cut(1), cut(2), cut(3), cut(4)), (vec![2, 3], vec![1], vec![1], vec![]));
        assert_eq!(cuts.cut_off(), vec![1]);
    }

    #[test]
    fn a_slow_node_is_slow_both_ways() {
        let cuts = Cuts { sides: Vec::new(), delays: BTreeMap::from([(2, Duration::from_millis(50))]) };
        let delays = |from: u32| cuts.of(from, 3).iter().map(|fault| fault.delay_ms).collect::<Vec<_>>();
        assert_eq!((delays(1), delays(2), delays(3)), (vec![50, 0], vec![50, 50], vec![0, 50]));
    }
}
