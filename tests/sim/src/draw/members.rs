//! Nodes that come and go, and groups that get more or fewer voters.

use coppice_testkit::random::Random;

use super::faults::length;
use crate::plan::fault::{Fault, Kind, Target};
use crate::plan::{JOINS_MAX, MS, Nanos, Plan};

/// A node is added; groups get a replica there, or another number of them, and perhaps it ends meanwhile.
pub(super) fn join(plan: &Plan, at: Nanos, random: &mut Random) -> Vec<Fault> {
    let mut faults = vec![Fault { at, kind: Kind::Join }];
    for _ in 0..random.below(4) {
        let (key, pick) = (some_key(plan, random), random.next() as u32);
        let kind = match random.below(2) {
            0 => replicas(plan, random),
            _ => Kind::Move { key, gone: pick % plan.replicas, to: u32::MAX, again: None },
        };
        faults.push(Fault { at: at + random.below(2_000) as Nanos * MS, kind });
    }
    if random.below(3) == 0 {
        let (effects, down) = (random.below(60) as u32, length(random, 2_000 * MS));
        let kind = Kind::Crash { who: Target::Newest, effects, down, again: None };
        faults.push(Fault { at: at + random.below(2_000) as Nanos * MS, kind });
    }
    faults
}

/// A node is drained, then removed or called back; or it is removed at once.
pub(super) fn leave(plan: &Plan, at: Nanos, random: &mut Random) -> Vec<Fault> {
    let node = random.below(plan.nodes as usize + JOINS_MAX);
    let later = at + random.below(3_000) as Nanos * MS;
    let drain = Fault { at, kind: Kind::Drain { node } };
    match random.below(4) {
        0 => vec![drain],
        1 => vec![drain, Fault { at: later, kind: Kind::Undrain { node } }],
        2 => vec![drain, Fault { at: later, kind: Kind::Remove { node } }],
        _ => vec![Fault { at, kind: Kind::Remove { node } }],
    }
}

/// All groups are to have another number of voters: three to five, one to three where one is usual.
pub(super) fn replicas(plan: &Plan, random: &mut Random) -> Kind {
    Kind::Replicas { count: plan.replicas.min(3) + random.below(3) as u32 }
}

/// A key, or the directory.
fn some_key(plan: &Plan, random: &mut Random) -> Option<u32> {
    (random.below(5) > 0).then(|| random.below(plan.workload.keys as usize) as u32)
}
