//! A real replica of a partition of the ticket worlds: a follower that was drawn to give its parts of all queries.

use bytes::Bytes;
use coppice_btree::{KeyRange, Op as TreeOp};
use coppice_client::wire::{ClientId, MapVersion, PackWriter, SessionId, frame};
use coppice_core::executor::ExecutorSettings;
use coppice_core::machine::entry;
use coppice_core::machine::partition::Partition;
use coppice_core::machine::{Machine, Outcome};
use coppice_core::multicast::PartitionQuery;
use coppice_core::replica::{Effect, Input, Replica};
use coppice_ordering::message::{Message, Phase2a};
use coppice_ordering::multicast::{Place, SubQuery, Work};
use coppice_ordering::{
    Ballot, Batch, Commands, Config, Configuration, Instance, PartitionId, RecoveredGroup, ReplicaId, Time,
};

use super::history::History;
use super::partition::Entry;

const ME: ReplicaId = ReplicaId(2);
const LEADER: Ballot = Ballot { round: coppice_ordering::Round(1), replica: ReplicaId(1) };
/// The state that it begins with: one session.
const BEGIN: Instance = Instance(1);

pub struct Follower {
    partition: coppice_client::wire::PartitionId,
    replica: Replica,
    session: SessionId,
    accepted: Instance,
}

impl Follower {
    pub fn new(partition: PartitionId) -> Follower {
        let partition = coppice_client::wire::PartitionId(partition.0);
        let mut state = Partition::new(partition, KeyRange::all(), MapVersion(1));
        let mut answers = Vec::new();
        state.execute(BEGIN, &batch(entry::open(ClientId(9), 1)), &mut answers);
        let Outcome::Opened(session) = answers[0].outcome else { panic!("{answers:?}") };
        state.forget_undo();
        let config = Config::new(ME, Configuration::of_voters([1, 2, 3].map(ReplicaId)), 1);
        let recovered =
            RecoveredGroup::from_snapshot(BEGIN, config.configuration.clone(), Instance::ZERO, Ballot::ZERO);
        let machine = Machine::Partition(Box::new(state));
        let how = ExecutorSettings::speculating(true);
        let replica = Replica::recover(partition, config, recovered, machine, BEGIN, how, Time::ZERO, &mut Vec::new());
        Follower { partition, replica, session, accepted: BEGIN }
    }

    /// The leader proposes the next entry of the log, and nothing more is decided: the keys of parts that leave.
    pub fn accepts(&mut self, entry: &Entry, history: &History) -> Vec<Vec<u8>> {
        let batch = match entry {
            Entry::Write(op) => batch(self.put(history.key(*op), *op as u64 + 1)),
            Entry::Place(place) => batch(entry::place(&self.drawn(place))),
            Entry::NoOp => Batch::NoOp,
        };
        self.accepted = self.accepted.next();
        self.hears(batch, self.accepted, BEGIN)
    }

    /// The leader proposes once more, and says that all before it is decided: the keys of parts that leave.
    pub fn hears_all_decided(&mut self) -> Vec<Vec<u8>> {
        let decided = self.accepted;
        self.accepted = decided.next();
        self.hears(Batch::NoOp, self.accepted, decided)
    }

    fn hears(&mut self, batch: Batch, instance: Instance, decided_upto: Instance) -> Vec<Vec<u8>> {
        let message = Message::Phase2a(Phase2a { ballot: LEADER, instance, batch, decided_upto, released: None });
        let mut effects = Vec::new();
        self.replica.step(Time::ZERO, Input::Peer { from: LEADER.replica, message }, &mut effects);
        let parts = effects.into_iter().filter_map(|effect| match effect {
            Effect::Part(part) => Some(part),
            _ => None,
        });
        let keys = parts.map(|mut part| {
            let mut keys = Vec::new();
            part.cursor.walk(|run| {
                keys.extend((0..run.len()).map(|rank| run.pair(rank).1[0]));
                run.len()
            });
            keys
        });
        keys.collect()
    }

    fn put(&self, key: u8, number: u64) -> Bytes {
        let mut pack = PackWriter::new(Vec::new(), self.session, 1, false, 4_096);
        pack.push(number, TreeOp::Put { key: &[key], value: &[key] }).expect("it fits");
        // Behind the frame's header and the partition stands the entry.
        pack.finish(self.partition, 1).expect("a pack").slice(frame::HEADER_BYTES + 1..)
    }

    /// The same ticket, whose queries ask this replica for all that it has.
    fn drawn(&self, place: &Place) -> Place {
        let share = PartitionQuery {
            client: ClientId(9),
            query: 1,
            replica: ME,
            low: Bytes::new(),
            high: None,
            scan: Default::default(),
            credit: 0,
        };
        let work = match &place.work {
            Work::Queries(subs) => {
                let asked = |sub: &SubQuery| SubQuery { query: sub.query, bytes: share.encode() };
                Work::Queries(subs.iter().map(asked).collect())
            }
            other => other.clone(),
        };
        Place { work, ..place.clone() }
    }
}

fn batch(entry: Bytes) -> Batch {
    Batch::Commands(Commands::new(1, entry))
}
