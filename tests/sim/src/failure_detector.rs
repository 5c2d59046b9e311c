//! That nodes live, as a node's shards know it of each other: once for all groups, of which some rest.

use coppice_core::failure_detector::{self, Heard};
use coppice_core::worker::Input;

use super::control::own;
use super::events::Event;
use super::plan::{MS, Nanos};
use super::world::World;

/// A node tries to connect again so long after a connection ended.
const REFUSED_AFTER: Nanos = 5 * MS;

impl World {
    /// The first look of a process.
    pub fn begin_vigil(&mut self, node: usize) {
        if !self.plan.settings.rest_interval.is_zero() {
            let life = self.nodes[node].life;
            let first = self.failure_detector_interval() * ((life + node as u64) % 8) / 8;
            self.schedule(self.now + first, Event::FailureDetector { node, life });
        }
    }

    fn failure_detector_interval(&self) -> Nanos {
        failure_detector::interval(&self.plan.settings).as_nanos() as Nanos
    }

    /// A node lets the others hear that it lives, and tells its groups of those that it has lost.
    pub fn detect_failures(&mut self, node: usize) {
        let life = self.nodes[node].life;
        self.schedule(self.now + self.failure_detector_interval(), Event::FailureDetector { node, life });
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
            if let Some(since) = self.nodes[node].failure_detector.look(from, heard, &self.plan.settings, now) {
                self.reached.note("rest: a node is lost");
                self.tell_workers(node, || Input::Lost { node: from, since });
            }
        }
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
            self.reached.note("a node is told that another one's process ended");
            self.tell_workers(node, || Input::Gone(own(gone)));
        }
    }

    fn tell_workers(&mut self, node: usize, input: impl Fn() -> Input) {
        let life = self.nodes[node].life;
        for worker in 0..self.nodes[node].workers.len() {
            if self.nodes[node].life == life {
                self.input(node, worker, input());
            }
        }
    }
}
