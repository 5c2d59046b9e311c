//! A group without a quorum decides nothing more, so no checkpoint ever covers its votes; a replica that awaits a
//! snapshot has none either. What they hold is carried from segment to segment, and the log of the node stays short.

use bytes::Bytes;
use coppice_client::wire::PartitionId;
use coppice_core::incarnation::Identity;
use coppice_core::replay::{Entry, ReadsLog, Replay};
use coppice_server::log::engine::{Found, Progress};
use coppice_server::log::record::entry_bytes;
use coppice_server::log::{Ballot, Batch, Commands, Engine, Geometry, Instance, Record, ReplicaId};

use crate::log_common::model::{self, Model};
use crate::log_common::sim_disk::{Crash, SimDisk};
use crate::log_common::{DRAWN, Draw, NODE, keep, new_disk, read};

const GEOMETRY: Geometry = Geometry { first_bytes: 20 << 10, segment_bytes: 24 << 10, segments_ahead: 1 };

const STUCK: PartitionId = PartitionId(1);
const HEALTHY: PartitionId = PartitionId(2);

/// Instances that the group without a quorum has voted for, and that no checkpoint will cover.
const UNDECIDED: u64 = 6;

fn vote(group: PartitionId, instance: u64, round: u64, bytes: usize, draw: &mut Draw) -> Entry {
    let payload = Bytes::from(vec![draw.below(256) as u8; bytes]);
    let batch = if draw.below(9) == 0 { Batch::NoOp } else { Batch::Commands(Commands::new(1, payload)) };
    let (instance, ballot, decided_upto) = (Instance(instance), Ballot::new(round, 1), Instance(2));
    Entry::Group { group, record: Record::Accept { instance, ballot, decided_upto, batch } }
}

/// The life of both groups: the stuck one votes now and then, for one of the same instances, in a higher ballot.
struct Life {
    draw: Draw,
    round: u64,
    healthy: u64,
}

impl Life {
    fn new(seed: u64) -> Life {
        Life { draw: Draw::new(seed), round: 1, healthy: 0 }
    }

    fn first(&mut self) -> Vec<Entry> {
        let created = |group| Entry::Created { group, replica: ReplicaId(1), create: Bytes::from_static(b"create") };
        let mut first = vec![created(STUCK), created(HEALTHY)];
        first.push(Entry::Trimmed { group: STUCK, upto: Instance(2) });
        for instance in 3..3 + UNDECIDED {
            first.push(vote(STUCK, instance, 1, 700, &mut self.draw));
        }
        first
    }

    fn next(&mut self) -> Vec<Entry> {
        let mut next = Vec::new();
        for _ in 0..1 + self.draw.below(3) {
            self.healthy += 1;
            let bytes = 200 + self.draw.below(3_000) as usize;
            next.push(vote(HEALTHY, self.healthy, 1, bytes, &mut self.draw));
        }
        if self.draw.below(3) == 0 {
            next.push(Entry::Trimmed {
                group: HEALTHY,
                upto: Instance(self.healthy.saturating_sub(self.draw.below(3))),
            });
        }
        match self.draw.below(40) {
            0 => {
                self.round += 1;
                let instance = 3 + self.draw.below(UNDECIDED);
                next.push(vote(STUCK, instance, self.round, 700, &mut self.draw));
            }
            1 => {
                self.round += 1;
                let ballot = Ballot::new(self.round, 2);
                next.push(Entry::Group { group: STUCK, record: Record::Promise { ballot } });
            }
            2 => {
                let upto = Instance(2 + self.draw.below(UNDECIDED));
                next.push(Entry::Group { group: STUCK, record: Record::Decided { upto } });
            }
            _ => {}
        }
        next
    }
}

fn open(mut disk: SimDisk, known: Identity) -> Option<(Engine<SimDisk>, Replay, Identity)> {
    let mut replay = Replay::default();
    let found = Found::read(&mut disk, known, &mut |carried, entry| replay.apply(carried, entry)).expect("no damage");
    let identity = found.identity;
    Some((found.open(disk, DRAWN, GEOMETRY, false).ok()?, replay, identity))
}

fn held(disk: &SimDisk, known: Identity) -> Model {
    model::of_replay(&read(disk, known).expect("no damage"))
}

/// Two spare segments, twice what is needed, and those that are filled while one is read, carried and removed.
fn bound(engine: &Engine<SimDisk>) -> u64 {
    2 * GEOMETRY.segment_bytes + 2 * engine.core().needed_bytes() + 8 * GEOMETRY.segment_bytes
}

#[test]
fn votes_that_are_never_decided_do_not_keep_the_log_of_the_others() {
    for seed in 0..3 {
        let mut life = Life::new(seed);
        let (mut engine, ..) = open(new_disk(GEOMETRY), NODE).expect("opens");
        let mut model = Model::new();
        let (mut written, mut next) = (0, life.first());
        while written < 24 << 20 {
            engine.write(next.iter());
            assert!(matches!(engine.proceed(), Ok(Progress::Durable)) && keep(&mut engine));
            for entry in &next {
                written += entry_bytes(entry);
                model::apply(&mut model, entry);
            }
            let (bytes, bound) = (engine.core().bytes(), bound(&engine));
            assert!(bytes <= bound, "seed {seed}: {bytes} bytes of log after {written}, at most {bound}");
            next = life.next();
            if life.draw.below(200) == 0 {
                let disk = engine.disk().clone().crash(Crash::AllLost);
                assert_eq!(held(&disk, NODE), model, "seed {seed} after {written}");
                if life.draw.below(4) == 0 {
                    engine = open(disk, NODE).expect("opens").0;
                }
            }
        }
    }
}

/// A replica is removed and created again while its batches are being carried: those of the old one are void.
#[test]
fn what_a_removed_replica_held_is_carried_no_further() {
    for seed in 0..40 {
        let mut life = Life::new(seed);
        let (mut engine, ..) = open(new_disk(GEOMETRY), NODE).expect("opens");
        let mut model = Model::new();
        let (mut next, mut replica) = (life.first(), 1);
        for _ in 0..400 {
            engine.write(next.iter());
            assert!(matches!(engine.proceed(), Ok(Progress::Durable)) && keep(&mut engine));
            next.iter().for_each(|entry| model::apply(&mut model, entry));
            next = life.next();
            if life.draw.below(30) == 0 {
                next.push(Entry::Removed { group: STUCK, replica: ReplicaId(replica) });
                replica += 1;
                next.push(Entry::Created { group: STUCK, replica: ReplicaId(replica), create: Bytes::new() });
                next.push(vote(STUCK, 3 + life.draw.below(UNDECIDED), life.round, 300, &mut life.draw));
            }
        }
        let disk = engine.disk().clone().crash(Crash::AllLost);
        assert_eq!(held(&disk, NODE), model, "seed {seed}");
    }
}

/// Each effect, cut in one of the ways.
#[test]
fn a_power_cut_while_votes_are_carried_loses_none() {
    cut_while_carrying(|at| vec![[Crash::Drawn(at), Crash::AllLost, Crash::Process][at as usize % 3]]);
}

#[test]
#[ignore = "long: each effect cut in each way"]
fn a_power_cut_of_any_kind_while_votes_are_carried_loses_none() {
    cut_while_carrying(|at| vec![Crash::AllLost, Crash::Drawn(at), Crash::Process]);
}

fn cut_while_carrying(crashes: impl Fn(u64) -> Vec<Crash>) {
    let run = |cut_at: Option<u64>, crash: Crash| {
        let mut life = Life::new(9);
        let mut disk = new_disk(GEOMETRY);
        (disk.effects, disk.cut_at) = (0, cut_at);
        let (mut known, mut entries, mut answered) = (NODE, Vec::new(), 0);
        let Some((mut engine, ..)) = open(disk, known) else { return 0 };
        let mut next = life.first();
        for _ in 0..130 {
            entries.extend(next);
            engine.write(entries[answered..].iter());
            if !matches!(engine.proceed(), Ok(Progress::Durable)) {
                break;
            }
            answered = entries.len();
            if !keep(&mut engine) {
                break;
            }
            next = life.next();
        }
        let effects = engine.disk().effects;
        let mut disk = engine.disk().clone().crash(crash);
        let (mut states, mut model) = (Vec::new(), Model::new());
        for (at, entry) in entries.iter().enumerate() {
            if at >= answered {
                states.push(model.clone());
            }
            model::apply(&mut model, entry);
        }
        states.push(model);
        // And what a start makes of it is there after the next loss of power too.
        for _ in 0..2 {
            let (mut engine, replay, identity) = open(disk, known).expect("opens");
            let found = model::of_replay(&replay);
            let nearest = &states[states.len() - 1];
            assert!(states.contains(&found), "cut at {cut_at:?}, {crash:?}:{}", model::difference(nearest, &found));
            states.retain(|state| *state == found);
            (disk, known) = (engine.disk().clone().crash(Crash::AllLost), identity);
        }
        effects
    };
    let effects = run(None, Crash::AllLost);
    for cut_at in 0..effects {
        for crash in crashes(cut_at) {
            run(Some(cut_at), crash);
        }
    }
}

/// Runs this program's tests under each planted bug: at least one must fail (hazards.md 6).
#[cfg(feature = "mutants")]
#[test]
fn every_planted_bug_is_caught() {
    crate::log_common::catch(
        "undecided_pins_log",
        "carry::votes_that_are_never_decided_do_not_keep_the_log_of_the_others",
    );
    crate::log_common::catch(
        "carried_vote_wins",
        "carry::votes_that_are_never_decided_do_not_keep_the_log_of_the_others",
    );
    crate::log_common::catch(
        "decided_uncarried",
        "carry::votes_that_are_never_decided_do_not_keep_the_log_of_the_others",
    );
}
