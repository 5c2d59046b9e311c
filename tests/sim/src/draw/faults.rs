//! The faults of a seed, as a list: shrinking takes items out of it.

use coppice_testkit::random::Random;

use super::members::{join, leave, replicas};
use super::scenarios::{belated, hold, isolate, rot, rot_log, sever, there_and_back, trigger, upset, wipe};
use crate::plan::fault::{Fault, Kind, SAFETY_MAX, Target};
use crate::plan::{MS, Nanos, Plan, Purpose, random};

/// Names of the kinds, in the order of their generators.
pub const KINDS: [&str; 33] = [
    "crash",
    "crash-all",
    "pause",
    "cut",
    "jump",
    "transfer",
    "slow-disk",
    "fail-flush",
    "io-error",
    "full-disk",
    "split",
    "merge",
    "move",
    "wipe",
    "isolate",
    "upset",
    "rot",
    "rot-log",
    "hold",
    "hang-up",
    "sever",
    "limits",
    "absent",
    "trigger",
    "return",
    "tune",
    "belated",
    "join",
    "leave",
    "replicas",
    "checkpoint-error",
    "copy",
    "stop",
];

/// Draws all faults of a plan, in order of time.
pub fn schedule(plan: &Plan) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (number, name) in KINDS.iter().enumerate() {
        let mut random = random(plan.seed, Purpose::Faults, 16 + number as u64);
        if random.below(2) == 0 {
            continue;
        }
        // Nodes greet each other only where there are copies, so most runs have none. Of a single voter's copy nobody
        // can know.
        if *name == "copy" && (plan.replicas < 3 || random.below(4) > 0) {
            continue;
        }
        let rare = match *name {
            "crash-all" | "isolate" | "upset" | "rot" | "sever" | "limits" | "belated" => 8,
            "trigger" | "return" | "copy" => 2,
            "join" | "leave" | "replicas" => 4,
            _ => 1,
        };
        let every = MS * (100 << random.below(6)) * rare;
        let mut at = 0;
        if *name == "wipe" {
            faults.extend(wipe(plan, every, &mut random));
            continue;
        }
        if *name == "rot" {
            faults.extend(rot(plan, every, &mut random));
            continue;
        }
        if *name == "rot-log" {
            faults.extend(rot_log(plan, every, &mut random));
            continue;
        }
        loop {
            at += every / 4 + random.below(every as usize * 3 / 2) as Nanos;
            if at > SAFETY_MAX {
                break;
            }
            match *name {
                "isolate" => faults.extend(isolate(plan, at, &mut random)),
                "upset" => faults.extend(upset(plan, at, &mut random)),
                "hold" => faults.extend(hold(plan, at, &mut random)),
                "sever" => faults.extend(sever(plan, at, &mut random)),
                "trigger" => faults.extend(trigger(plan, at, &mut random)),
                "belated" => faults.extend(belated(plan, at, &mut random)),
                "join" => faults.extend(join(plan, at, &mut random)),
                "leave" => faults.extend(leave(plan, at, &mut random)),
                "replicas" => faults.push(Fault { at, kind: replicas(plan, &mut random) }),
                "return" => faults.extend(there_and_back(plan, at, &mut random)),
                _ => faults.push(Fault { at, kind: draw(plan, number, &mut random) }),
            }
        }
    }
    // One disk of each group may be damaged or forget something, not two.
    let damage: [fn(&Kind) -> bool; 4] = [
        |kind| matches!(kind, Kind::Copy { .. }),
        |kind| matches!(kind, Kind::Wipe { .. }),
        |kind| matches!(kind, Kind::RotLog { .. }),
        |kind| matches!(kind, Kind::Rot { .. }),
    ];
    if let Some(first) = damage.iter().position(|is| faults.iter().any(|fault| is(&fault.kind))) {
        faults.retain(|fault| !damage[first + 1..].iter().any(|is| is(&fault.kind)));
    }
    faults.sort_by_key(|fault| fault.at);
    faults
}

pub(super) fn target(plan: &Plan, random: &mut Random) -> Target {
    match random.below(2) {
        0 => Target::Leader(random.below(plan.partitions as usize + 1) as u32),
        _ => Target::Node(random.below(plan.nodes as usize)),
    }
}

/// Mostly short, sometimes long.
pub(super) fn length(random: &mut Random, longest: Nanos) -> Nanos {
    let most = longest >> random.below(6);
    MS + random.below(most as usize) as Nanos
}

fn draw(plan: &Plan, number: usize, random: &mut Random) -> Kind {
    let who = target(plan, random);
    match number {
        0 => {
            let effects = if random.below(2) == 0 { 0 } else { random.below(30) as u32 };
            let again = (random.below(5) == 0).then(|| random.below(8) as u64);
            Kind::Crash { who, effects, down: length(random, 5_000 * MS), again }
        }
        1 => Kind::CrashAll { down: length(random, 2_000 * MS) },
        2 => Kind::Pause { who, length: length(random, 4_000 * MS) },
        3 => {
            let alone = (random.below(2) == 0).then_some(who);
            let side = if alone.is_some() { 0 } else { 1 + random.below((1 << plan.nodes) - 1) as u32 };
            let (one_way, length) = (random.below(3) == 0, length(random, 6_000 * MS));
            match alone {
                Some(who) if one_way && length % 2 == 0 => Kind::Mute { who, length },
                _ => Kind::Cut { side, alone, one_way, length },
            }
        }
        4 => Kind::Jump { who, by: length(random, 10_000 * MS) },
        5 => Kind::Transfer {
            group: random.below(plan.partitions as usize + 1) as u32,
            to: random.below(plan.replicas as usize) as u32,
        },
        6 => Kind::SlowDisk { who, by: length(random, 1_000 * MS), length: length(random, 4_000 * MS) },
        7 => Kind::FailFlush { who },
        8 => Kind::IoError { who, after: random.below(20) as u64 },
        10..=12 => change(plan, number, random),
        19 => Kind::HangUp { who },
        21 => Kind::Limits {
            sessions_max: [100_000, plan.workload.clients as usize + random.below(3)][random.below(2)],
            expiry_instances: [1_000_000, 20 + random.below(400) as u64][random.below(2)],
        },
        22 => Kind::Absent { client: random.below(plan.workload.clients as usize), length: length(random, 3_000 * MS) },
        25 => Kind::Tune {
            group: random.below(plan.partitions as usize + 1) as u32,
            batch_bytes_max: 1 << (4 + random.below(18)),
            window: 1 << random.below(8),
            window_bytes_max: 1 << (6 + random.below(21)),
        },
        31 => Kind::Copy {
            who,
            after: length(random, 3_000 * MS),
            down: length(random, 1_000 * MS),
            others_restart: random.below(2) == 0,
        },
        32 => Kind::Stop { who, down: length(random, 2_000 * MS) },
        30 => Kind::CheckpointError { who, after: random.below(12) as u64 },
        _ => Kind::FullDisk { who, bytes: random.below(60_000) as u64, length: length(random, 3_000 * MS) },
    }
}

pub(super) fn change(plan: &Plan, number: usize, random: &mut Random) -> Kind {
    let key = random.below(plan.workload.keys as usize) as u32;
    let again = (random.below(3) == 0).then(|| length(random, 3_000 * MS));
    match number {
        10 => Kind::Split { key, again },
        11 => Kind::Merge { key, up: random.below(2) == 0, again },
        _ => {
            let (gone, to) = (random.below(plan.replicas as usize) as u32, random.below(plan.nodes as usize) as u32);
            Kind::Move { key: (random.below(5) > 0).then_some(key), gone, to, again }
        }
    }
}
