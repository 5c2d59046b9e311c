//! The cluster's settings: each node hears of them at a time of its own (protocol.md 6, operations.md 3).

use coppice_client::wire::PartitionId;
use coppice_core::sessions::SessionLimits;
use coppice_ordering::tuning::Tuning;

use super::events::Event;
use super::faults::Target;
use super::plan::{MS, Nanos, Plan};
use super::world::World;

/// A node hears of a setting at most so late.
const TOLD_MAX: Nanos = 1_000 * MS;

/// The bounds of session tables in a run of `plan`, until somebody sets others.
pub fn first_limits(plan: &Plan) -> SessionLimits {
    limits(plan.server.sessions_max, plan.server.expiry_instances)
}

fn limits(sessions_max: usize, expiry_instances: u64) -> SessionLimits {
    let usual = SessionLimits::default();
    // Where sessions end early, they end for their answers too.
    let table_bytes_max = if expiry_instances < 1_000_000 { 2 << 10 } else { usual.table_bytes_max };
    SessionLimits { expiry_instances, sessions_max, table_bytes_max, ..usual }
}

impl World {
    /// An operator sets other bounds.
    pub fn set_limits(&mut self, sessions_max: usize, expiry_instances: u64) {
        self.asked.limits = limits(sessions_max, expiry_instances);
        for node in 0..self.nodes.len() {
            self.tell_settings(node);
        }
    }

    /// The node that leads a group tunes it, as its autopilot does.
    pub fn tune(&mut self, group: PartitionId, batch_bytes_max: usize, window: u32, window_bytes_max: usize) {
        let node = self.node_of(Target::Leader(group.0));
        let Some(host) = self.nodes[node].group_mut(group) else { return };
        let paxos = host.replica.paxos_mut();
        let mut settings = paxos.settings().clone();
        // As on nodes, acceptors accept twice as far ahead as the widest window is.
        let window = window.min((settings.accept_ahead_max / 2) as u32);
        let tuning = Tuning { batch_bytes_max, window, window_bytes_max, ..Tuning::of(&settings) };
        tuning.apply(&mut settings);
        paxos.set_settings(settings);
    }

    /// This node hears of the settings, later.
    pub fn tell_settings(&mut self, node: usize) {
        let (life, wait) = (self.nodes[node].life, self.draws.told.below(TOLD_MAX as usize) as Nanos);
        self.schedule(self.now + wait, Event::Settings { node, life });
    }

    /// This node hears of the settings, now.
    pub fn on_settings(&mut self, node: usize) {
        let limits = self.asked.limits;
        let node = &mut self.nodes[node];
        node.process.limits = Some(limits);
        for group in node.process.workers.iter_mut().flat_map(|worker| worker.groups_mut().values_mut()) {
            group.replica.set_session_limits(limits);
        }
    }
}
