//! A ticket in a group of three replicas of the real core, with no time passing: a follower that was drawn to give a
//! part hears at once that its place is decided, and nobody is told who gives nothing (protocol.md 4, step 4).

use bytes::Bytes;
use coppice_btree::KeyRange;
use coppice_client::wire::{ClientId, MapVersion, PartitionId};
use coppice_core::executor::ExecutorSettings;
use coppice_core::machine::Machine;
use coppice_core::machine::partition::Partition;
use coppice_core::multicast::PartitionQuery;
use coppice_core::replica::{Effect, Input, Replica};
use coppice_ordering::multicast::{Place, SubQuery, Work};
use coppice_ordering::{
    Ballot, Config, Configuration, Instance, Lsn, Message, QueryId, RecoveredGroup, ReplicaId, Ticket, Time,
};

const GROUP: PartitionId = PartitionId(1);

/// Replicas that hear each other at once, and whose disks flush at once.
struct Group {
    now: Time,
    replicas: Vec<Replica>,
    /// Who gave a part.
    gave: Vec<usize>,
    heartbeats: usize,
    placed: Option<Ticket>,
}

impl Group {
    /// A group that replica 0 leads, at rest.
    fn led() -> Group {
        let replica = |at: u32| {
            let config = Config {
                campaign_first: at == 0,
                ..Config::new(ReplicaId(at), Configuration::of_voters((0..3).map(ReplicaId)), u64::from(at))
            };
            let machine = Machine::Partition(Box::new(Partition::new(GROUP, KeyRange::all(), MapVersion(1))));
            let how = ExecutorSettings::speculating(true);
            let (log, begin) = (RecoveredGroup::new(), Instance::ZERO);
            Replica::recover(GROUP, config, log, machine, begin, how, Time::ZERO, &mut Vec::new())
        };
        let replicas = (0..3).map(replica).collect();
        let mut group = Group { now: Time::ZERO, replicas, gave: Vec::new(), heartbeats: 0, placed: None };
        while !group.replicas[0].is_leading() {
            let deadline = group.replicas.iter().filter_map(Replica::deadline).min();
            group.now = deadline.expect("somebody waits").max(group.now);
            (0..3).for_each(|at| group.step(at, Input::Tick));
        }
        // Everybody hears that the first batch of the leadership is decided.
        for _ in 0..8 {
            let deadline = group.replicas[0].deadline();
            group.now = deadline.expect("heartbeats go on").max(group.now);
            (0..3).for_each(|at| group.step(at, Input::Tick));
        }
        group.heartbeats = 0;
        group
    }

    fn step(&mut self, at: usize, input: Input) {
        let mut effects = Vec::new();
        self.replicas[at].step(self.now, input, &mut effects);
        self.replicas[at].step(self.now, Input::TurnEnd, &mut effects);
        let mut durable: Option<Lsn> = None;
        for effect in effects {
            match effect {
                Effect::Persist { lsn, .. } => durable = durable.max(Some(lsn)),
                Effect::Send { to, message } => {
                    self.heartbeats += usize::from(matches!(message, Message::Heartbeat(_)));
                    self.step(to.0 as usize, Input::Peer { from: ReplicaId(at as u32), message });
                }
                Effect::Part(_) => self.gave.push(at),
                Effect::Placed { ticket } => self.placed = Some(ticket),
                _ => {}
            }
        }
        if let Some(lsn) = durable {
            self.step(at, Input::Persisted(lsn));
        }
    }

    /// Ticket `n` with one query for each of `drawn`.
    fn place(&mut self, n: u64, drawn: &[u32]) {
        let sub = |&replica: &u32| {
            let share = PartitionQuery {
                client: ClientId(9),
                query: n as u32,
                replica: ReplicaId(replica),
                low: Bytes::new(),
                high: None,
                scan: Default::default(),
                credit: 0,
            };
            SubQuery { query: QueryId(n), bytes: share.encode() }
        };
        let ticket = |n| Ticket { ballot: Ballot::new(7, 0), n };
        let prev = (n > 1).then(|| ticket(n - 1));
        let work = Work::Queries(drawn.iter().map(sub).collect());
        self.gave.clear();
        (self.heartbeats, self.placed) = (0, None);
        self.step(0, Input::Place(Place { ticket: ticket(n), prev, work }));
        assert_eq!(self.placed, Some(ticket(n)), "decided and told");
    }
}

#[test]
fn a_follower_that_gives_a_part_hears_at_once_that_its_place_is_decided() {
    let mut group = Group::led();
    for (n, drawn) in [(1, &[1][..]), (2, &[0, 2]), (3, &[2, 1])] {
        group.place(n, drawn);
        group.gave.sort_unstable();
        let mut expected: Vec<usize> = drawn.iter().map(|&at| at as usize).collect();
        expected.sort_unstable();
        assert_eq!(group.gave, expected, "ticket {n}");
    }
}

#[test]
fn nobody_is_told_when_the_leader_gives_all_parts() {
    let mut group = Group::led();
    for n in 1..4 {
        group.place(n, &[0, 0]);
        assert_eq!((&group.gave[..], group.heartbeats), (&[0, 0][..], 0), "ticket {n}");
    }
    // One that follows such tickets is told again.
    group.place(4, &[0, 1]);
    assert_eq!((group.gave.len(), group.heartbeats), (2, 2));
}
