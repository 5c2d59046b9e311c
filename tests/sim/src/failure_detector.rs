//! That nodes live, as a node's shards know it of each other: once for all groups, of which some rest.

use coppice_core::failure_detector::LastHeard;
use coppice_core::worker::Input;

use super::control::own;
use super::events::Event;
use super::plan::{MS, Nanos};
use super::world::World;

/// A node tries to connect again so long after a connection ended.
const REFUSED_AFTER: Nanos = 5 * MS;

impl World {
    /// A worker lets the other nodes hear that its node lives, and hears of them.
    pub fn detect_failures(&mut self, node: usize, worker: usize) {
        let life = self.nodes[node].life;
        for other in 0..self.nodes.len() {
            let listens = self.nodes[other].up && self.net.hears(other, node) && other != node;
            if listens {
                let at = self.nodes[other].clock.local(self.now);
                self.nodes[other].process.heard.insert(own(node), LastHeard { at, life });
            }
        }
        let heard = self.nodes[node].process.heard.iter().map(|(&node, &heard)| (node, heard)).collect();
        self.input(node, worker, Input::Heard { fresh: Vec::new(), heard });
    }

    /// The process of a node ended and its machine did not: it closes the connections to the others, and refuses those
    /// that they try to make anew.
    pub fn close_links(&mut self, gone: usize) {
        for node in (0..self.nodes.len()).filter(|node| *node != gone) {
            if self.nodes[node].up && self.net.hears(node, gone) && self.net.hears(gone, node) {
                let (life, after) = (self.nodes[node].life, REFUSED_AFTER + self.net.delay());
                self.schedule(self.now + after, Event::Gone { node, life, gone });
            }
        }
    }

    /// The groups of a node are told that the process of another one has ended, if it has not begun anew meanwhile.
    pub fn on_gone(&mut self, node: usize, life: u64, gone: usize) {
        if self.nodes[node].life == life && self.nodes[node].up && !self.nodes[gone].up {
            self.coverage.note("a node is told that another one's process ended");
            self.tell_workers(node, || Input::Gone(own(gone)));
        }
    }

    fn tell_workers(&mut self, node: usize, input: impl Fn() -> Input) {
        let life = self.nodes[node].life;
        for worker in 0..self.nodes[node].process.workers.len() {
            if self.nodes[node].life == life {
                self.input(node, worker, input());
            }
        }
    }
}
