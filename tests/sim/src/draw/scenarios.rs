//! Faults that belong together: what goes wrong, and what makes that matter.

use coppice_testkit::random::Random;

use super::faults::{change, length, target};
use crate::plan::fault::{Fault, Kind, Moment, SAFETY_MAX, Target};
use crate::plan::{MS, Nanos, Plan};

/// Checkpoints of one node rot, again and again: what the older ones lead back to may be gone, and then the others have
/// it.
pub(super) fn rot(plan: &Plan, every: Nanos, random: &mut Random) -> Vec<Fault> {
    let who = Target::Node(random.below(plan.nodes as usize));
    let (mut faults, mut at) = (Vec::new(), random.below(every as usize) as Nanos);
    while at < SAFETY_MAX && plan.replicas >= 3 {
        let kind = Kind::Rot { who, at: random.next(), down: length(random, 2_000 * MS) };
        faults.push(Fault { at, kind });
        at += every / 4 + random.below(every as usize * 3 / 2) as Nanos;
    }
    faults
}

/// At most one log rots. Half as often as others, so that checkpoints and whole disks have their turn.
pub(super) fn rot_log(plan: &Plan, latest: Nanos, random: &mut Random) -> Option<Fault> {
    let at = random.below(latest as usize) as Nanos;
    let down = (random.below(2) == 0).then(|| length(random, 2_000 * MS));
    let kind = Kind::RotLog { who: target(plan, random), at: random.next(), down };
    (plan.replicas >= 3 && random.below(2) == 0).then_some(Fault { at, kind })
}

/// The directory's leader executes a change of the map that it cannot decide, while everybody else hears it; or another
/// group's leader does so with whatever comes (hazards.md SP1, MV13).
pub(super) fn sever(plan: &Plan, at: Nanos, random: &mut Random) -> Vec<Fault> {
    let group = if random.below(2) == 0 { 0 } else { random.below(plan.partitions as usize + 1) as u32 };
    let (who, one_way) = (Target::Leader(group), random.below(4) == 0);
    let length = 2 * plan.settings.election_timeout.as_nanos() as Nanos + length(random, 1_000 * MS);
    let mut faults = vec![Fault { at, kind: Kind::Sever { who, one_way, length } }];
    if group == 0 {
        let kind = change(plan, 10 + random.below(3), random);
        faults.push(Fault { at: at + MS * random.below(20) as Nanos, kind });
    }
    faults
}

/// A leader is lost at the very moment that it has done something, beside an operator who has it done.
pub(super) fn trigger(plan: &Plan, at: Nanos, random: &mut Random) -> Vec<Fault> {
    let moments =
        [Moment::Configured, Moment::Boundary, Moment::Retried, Moment::Ticket, Moment::Map, Moment::Coordinates];
    let moment = moments[random.below(moments.len())];
    let (crash, key) = (random.below(3) == 0, random.below(plan.workload.keys as usize) as u32);
    // Long enough for another one to be elected.
    let election_timeout = plan.settings.election_timeout.as_nanos() as Nanos;
    let length = 6 * election_timeout + length(random, 1_000 * MS);
    let set = Fault { at, kind: Kind::Trigger { moment, crash, length } };
    let kind = match moment {
        Moment::Configured => {
            let (gone, to) = (random.below(plan.replicas as usize) as u32, random.below(plan.nodes as usize) as u32);
            Kind::Move { key: (random.below(5) > 0).then_some(key), gone, to, again: None }
        }
        Moment::Boundary | Moment::Retried if random.below(2) == 0 => {
            // The partition that a split has just made is sealed.
            let cut = Fault { at: at.saturating_sub((100 + random.below(400) as Nanos) * MS), kind: split(key) };
            let kind = Kind::Merge { key, up: false, again: None };
            return vec![cut, set, Fault { at: at + MS, kind }];
        }
        Moment::Boundary | Moment::Retried => split(key),
        Moment::Map => change(plan, 10 + random.below(3), random),
        Moment::Ticket | Moment::Proposes => return vec![set],
        Moment::Coordinates => Kind::Pause { who: Target::Leader(0), length: 3 * election_timeout },
    };
    vec![set, Fault { at: at + MS, kind }]
}

/// What a leader proposes at its end comes late to one replica, which has heard by then, from that node, what was
/// decided in its place (protocol.md 1.1).
pub(super) fn belated(plan: &Plan, at: Nanos, random: &mut Random) -> Option<Fault> {
    let length = 6 * plan.settings.election_timeout.as_nanos() as Nanos + length(random, 1_000 * MS);
    let kind = Kind::Trigger { moment: Moment::Proposes, crash: true, length };
    (plan.replicas >= 3).then_some(Fault { at, kind })
}

fn split(key: u32) -> Kind {
    Kind::Split { key, again: None }
}

/// A partition is cut, and the parts are united again; meanwhile clients that asked for something on either side wait
/// for the answer (hazards.md SE8, MV5).
pub(super) fn there_and_back(plan: &Plan, at: Nanos, random: &mut Random) -> Vec<Fault> {
    let key = random.below(plan.workload.keys as usize) as u32;
    let back = at + (100 + random.below(1_500) as Nanos) * MS;
    let mut faults = vec![
        Fault { at, kind: split(key) },
        Fault { at: back, kind: Kind::Merge { key, up: random.below(4) == 0, again: None } },
    ];
    for _ in 0..random.below(4) {
        let gone = at + random.below((back - at) as usize) as Nanos;
        let length = back - gone + length(random, 1_000 * MS);
        let client = random.below(plan.workload.clients as usize);
        faults.push(Fault { at: gone, kind: Kind::Absent { client, length } });
    }
    faults
}

/// Tickets hang between two partitions, while clients of the one where they are placed repeat what waits there, and ask
/// in the other one (hazards.md TK1, TK3, TK8, TK11).
pub(super) fn hold(plan: &Plan, at: Nanos, random: &mut Random) -> Vec<Fault> {
    let group = 1 + random.below(plan.partitions as usize) as u32;
    let usual = plan.server.place_timeout * [1, 1, 1, 3][random.below(4)];
    let length = MS + random.below(usual as usize) as Nanos;
    let mut faults = vec![Fault { at, kind: Kind::Hold { group, mute: random.below(4) == 0, length } }];
    for _ in 0..random.below(6) {
        let who = Target::Leader(1 + random.below(plan.partitions as usize) as u32);
        faults.push(Fault { at: at + random.below(length as usize) as Nanos, kind: Kind::HangUp { who } });
    }
    faults
}

/// At most one disk is lost: of each group a majority keeps its own.
pub(super) fn wipe(plan: &Plan, latest: Nanos, random: &mut Random) -> Option<Fault> {
    let at = random.below(latest as usize) as Nanos;
    let kind = Kind::Wipe { node: random.below(plan.nodes as usize) };
    (plan.replicas >= 3).then_some(Fault { at, kind })
}

/// A leader is cut off from the other nodes, not from the clients, and stands still until another one has taken its
/// place: when it wakes, what clients asked meanwhile is the first that it sees (hazards.md RD1, RD6).
pub(super) fn isolate(plan: &Plan, at: Nanos, random: &mut Random) -> [Fault; 2] {
    let who = Target::Leader(random.below(plan.partitions as usize + 1) as u32);
    let length = 4 * plan.settings.election_timeout.as_nanos() as Nanos + length(random, 1_000 * MS);
    let cut = Kind::Cut { side: 0, alone: Some(who), one_way: false, length: length + length / 2 };
    [Fault { at, kind: cut }, Fault { at: at + MS, kind: Kind::Pause { who, length } }]
}

/// A boundary or a place moves, and who leads there is lost on the way (hazards.md MV5 to MV12).
pub(super) fn upset(plan: &Plan, at: Nanos, random: &mut Random) -> [Fault; 2] {
    let number = 10 + random.below(3);
    let kind = change(plan, number, random);
    let key = match kind {
        Kind::Split { key, .. } | Kind::Merge { key, .. } | Kind::Move { key: Some(key), .. } => key,
        _ => 0,
    };
    let after = at + MS + ((random.below(400) as Nanos * MS) >> random.below(7));
    let (who, effects, down) = (Target::Holder(key), random.below(30) as u32, length(random, 2_000 * MS));
    let loss = match random.below(4) {
        0 => Kind::Pause { who, length: down },
        1 => Kind::Sever { who, one_way: false, length: 2 * plan.settings.election_timeout.as_nanos() as Nanos + down },
        _ => Kind::Crash { who, effects, down, again: None },
    };
    [Fault { at, kind }, Fault { at: after, kind: loss }]
}
