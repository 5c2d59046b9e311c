//! Ranges over several partitions that a node gathers for its clients, as `shard/gathers.rs` drives them.

use coppice_client::wire::{GatherRequest, PartitionId};
use coppice_core::gather::Act;
use coppice_core::request::{Origin, Reply};
use coppice_ordering::Time;

use super::world::World;

impl World {
    /// A client asks for a range over partitions that have replicas at this node.
    pub(super) fn gather(&mut self, node: usize, origin: Origin, range: GatherRequest) {
        let (now, mut acts) = (self.local(node), Vec::new());
        self.nodes[node].gathers.begin(now, origin, range, &mut acts);
        self.nodes[node].gathers.read(now, &mut acts);
        self.act_on_gathers(node, acts);
    }

    /// A replica answers what a gather asked. Each answer is a turn of its own here.
    pub(super) fn on_gathered(&mut self, node: usize, request: u64, partition: PartitionId, reply: Reply) {
        let (now, mut acts) = (self.local(node), Vec::new());
        self.reached.reply(&reply);
        self.nodes[node].gathers.on_reply(request, partition, reply, &mut acts);
        self.nodes[node].gathers.read(now, &mut acts);
        self.nodes[node].gathers.validate(now, &mut acts);
        self.act_on_gathers(node, acts);
        self.arm(node);
    }

    /// Ends gathers that have waited for too long.
    pub(super) fn tick_gathers(&mut self, node: usize) {
        let (now, mut acts) = (self.local(node), Vec::new());
        self.nodes[node].gathers.expire(now, &mut acts);
        if !acts.is_empty() {
            self.reached.note("gather: waited for too long");
        }
        self.act_on_gathers(node, acts);
    }

    fn act_on_gathers(&mut self, node: usize, acts: Vec<Act>) {
        let life = self.nodes[node].life;
        for act in acts {
            if self.nodes[node].life != life || !self.nodes[node].up {
                return;
            }
            match act {
                Act::Ask { partition, origin, request } => self.ask(node, partition, origin, request),
                Act::Answer { partition, origin, reply } => {
                    match &reply {
                        Reply::Gathered { .. } => self.reached.note("gather: one moment"),
                        Reply::Aborted { .. } => self.reached.note("gather: comes to nothing"),
                        _ => self.reached.note("gather: a replica refuses"),
                    }
                    self.reply(node, partition, origin, reply);
                }
            }
        }
    }

    fn local(&self, node: usize) -> Time {
        self.nodes[node].clock.local(self.now)
    }
}
