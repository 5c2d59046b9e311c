//! That nodes live, as a node's shards know it of each other: once for all groups, of which some rest.

use coppice_client::wire::{NodeId, PartitionId};
use coppice_ordering::ReplicaId;
use coppice_server::replica::Input;
use coppice_server::vigil::{self, Heard};

use super::control::own;
use super::events::Event;
use super::plan::Nanos;
use super::world::World;

impl World {
    /// The first look of a process.
    pub fn begin_vigil(&mut self, node: usize) {
        if !self.plan.settings.rest_interval.is_zero() {
            let life = self.nodes[node].life;
            let first = self.vigil_interval() * ((life + node as u64) % 8) / 8;
            self.schedule(self.now + first, Event::Vigil { node, life });
        }
    }

    fn vigil_interval(&self) -> Nanos {
        vigil::interval(&self.plan.settings).as_nanos() as Nanos
    }

    /// A node lets the others hear that it lives, and tells its groups of those that it has lost.
    pub fn keep_vigil(&mut self, node: usize) {
        let life = self.nodes[node].life;
        self.schedule(self.now + self.vigil_interval(), Event::Vigil { node, life });
        for other in 0..self.nodes.len() {
            let listens = self.nodes[other].up && self.net.hears(other, node) && other != node;
            if listens {
                let at = self.nodes[other].clock.local(self.now);
                self.nodes[other].heard.insert(own(node), Heard { at, life });
            }
        }
        let heard = self.nodes[node].heard.clone();
        let now = self.nodes[node].clock.local(self.now);
        for (from, heard) in heard {
            if let Some(since) = self.nodes[node].vigil.look(from, heard, &self.plan.settings, now) {
                self.reached.note("rest: a node is lost");
                self.tell_lost(node, from, |peer| Input::Lost { peer, since });
            }
        }
    }

    fn tell_lost(&mut self, node: usize, lost: NodeId, input: impl Fn(ReplicaId) -> Input) {
        let all = self.nodes[node].hosts.iter().flat_map(|(&group, host)| {
            let there = host.nodes.iter().filter(|(_, at)| own(**at) == lost);
            there.map(move |(&peer, _)| (group, peer))
        });
        let peers: Vec<(PartitionId, ReplicaId)> = all.collect();
        let life = self.nodes[node].life;
        for (group, peer) in peers {
            if self.nodes[node].life == life {
                self.step(node, group, input(peer));
            }
        }
    }
}
