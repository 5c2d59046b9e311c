//! The far ends of what is drawn (hazards.md 4): in one seed of three half of these, since a run there takes many
//! times as long as another one.

use std::time::Duration;

use super::plan::{MS, Nanos, Plan, Purpose, random};

/// Clients at most where nothing is widened.
const CLIENTS_USUAL: u32 = 12;

/// Operations in flight at most, of all clients together.
const IN_FLIGHT_MAX: usize = 64;

/// An election timeout is at least so many round trips: with fewer nobody leads for long, and that is no fault.
const ROUND_TRIPS: u64 = 4;

/// Widens what was drawn, if the seed says so. Before the faults are drawn, which are of this many clients and keys.
pub fn widen(plan: &mut Plan) {
    let mut random = random(plan.seed, Purpose::Wide, 0);
    if random.below(3) > 0 {
        return;
    }
    let mut on = |share: usize| (random.below(share) == 0).then(|| random.next());
    if let Some(draw) = on(2) {
        plan.workload.clients = 1 + draw as u32 % 32;
        plan.workload.in_flight = plan.workload.in_flight.min(IN_FLIGHT_MAX / plan.workload.clients as usize).max(1);
        plan.workload.operations = plan.workload.operations.max(plan.workload.clients);
    }
    if let Some(draw) = on(8) {
        plan.workload.operations = 1_000 + draw as u32 % 4_001;
    }
    if let Some(draw) = on(2) {
        plan.workload.keys = 8 + draw as u32 % 4_089;
    }
    if let Some(draw) = on(4) {
        plan.server.sessions_max = 2 + draw as usize % 63;
    }
    // With fewer sessions than clients each ends another one's, and nothing is promised.
    plan.server.sessions_max = plan.server.sessions_max.max(plan.workload.clients as usize);
    if let Some(draw) = on(4) {
        plan.network.delay_min = (3 * MS) << (draw % 4);
        plan.network.delay_mean = plan.network.delay_min * (draw >> 8 & 3);
    } else if let Some(draw) = on(4) {
        plan.network.delay_mean = plan.network.delay_min * (4 + draw % 7);
    }
    if let Some(draw) = on(4) {
        plan.disk.flush_min = [5 * MS, 20 * MS][draw as usize % 2];
        plan.disk.flush_max = plan.disk.flush_min * [1, 5, 12][(draw >> 8) as usize % 3];
    }
    if let Some(draw) = on(4)
        && plan.network.duplicates > 0
    {
        plan.network.duplicates = 300 + draw as u32 % 201;
    }
    if let Some(draw) = on(2) {
        plan.disk.read_errors = 1 + draw as u32 % 20;
    }
    slow_down(plan);
}

/// With many clients a session that ends sooner than each of them had a turn is of no use to any.
pub fn expiry_least(plan: &Plan) -> u64 {
    if plan.workload.clients > CLIENTS_USUAL { 4 * u64::from(plan.workload.clients) } else { 0 }
}

/// A message goes and its answer comes.
pub fn round_trip(plan: &Plan) -> Nanos {
    2 * (plan.network.delay_min + plan.network.delay_mean)
}

/// Timeouts that fit the network.
fn slow_down(plan: &mut Plan) {
    let round_trip = Duration::from_nanos(round_trip(plan));
    let least = ROUND_TRIPS * round_trip.as_nanos() as Nanos;
    let settings = &mut plan.settings;
    let timeout = settings.election_timeout.as_nanos() as Nanos;
    let factor = u32::try_from(least.div_ceil(timeout)).unwrap_or(u32::MAX).max(1);
    settings.election_timeout *= factor;
    settings.heartbeat_interval *= factor;
    settings.quiesce_heartbeat_interval *= factor;
    settings.lease_duration *= factor;
    settings.retransmit_max = settings.retransmit_max.max(2 * round_trip);
}
