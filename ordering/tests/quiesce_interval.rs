//! Another `quiesce_heartbeat_interval` while groups are quiescent: nobody loses its leader by that (protocol.md 1.3).

use std::collections::VecDeque;
use std::time::Duration;

use coppice_ordering::{Config, Configuration, Effect, Input, Message, Paxos, ReplicaId, Settings, Time};

/// Three replicas whose messages and flushes take no time.
struct Group {
    now: Time,
    replicas: Vec<Paxos>,
    flying: VecDeque<(ReplicaId, ReplicaId, Message)>,
}

impl Group {
    fn new(settings: &Settings) -> Group {
        let replica = |id| {
            let config = Config {
                settings: settings.clone(),
                campaign_first: id == 0,
                ..Config::new(ReplicaId(id), Configuration::of_voters((0..3).map(ReplicaId)), 7 + u64::from(id))
            };
            Paxos::new(config, Time::ZERO)
        };
        Group { now: Time::ZERO, replicas: (0..3).map(replica).collect(), flying: VecDeque::new() }
    }

    fn step(&mut self, at: usize, input: Input) {
        let mut effects = Vec::new();
        self.replicas[at].step(self.now, input, &mut effects);
        let mut last = None;
        for effect in effects {
            match effect {
                Effect::Persist { lsn, .. } => last = Some(lsn),
                Effect::Send { to, message } => self.flying.push_back((ReplicaId(at as u32), to, message)),
                Effect::Decided { upto } => self.step(at, Input::Executed(upto)),
                _ => {}
            }
        }
        if let Some(lsn) = last {
            self.step(at, Input::Persisted(lsn));
        }
    }

    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            while let Some((from, to, message)) = self.flying.pop_front() {
                self.step(to.0 as usize, Input::Message { from, message });
            }
            self.now = self.now + Duration::from_millis(1);
            for at in 0..3 {
                if self.replicas[at].deadline().is_some_and(|at| at <= self.now) {
                    self.step(at, Input::Tick);
                }
            }
        }
    }
}

/// Half of an interval after the last heartbeat the interval becomes another one. Whether somebody leads all the time.
fn keeps_its_leader(from: Duration, to: Duration) -> bool {
    let mut group = Group::new(&Settings { quiesce_heartbeat_interval: from, ..Settings::default() });
    group.run(4 * from + from / 2 + Duration::from_secs(2));
    assert!(group.replicas[0].is_leader());
    for replica in &mut group.replicas {
        replica.set_settings(Settings { quiesce_heartbeat_interval: to, ..Settings::default() });
    }
    (0..2_300).all(|_| {
        group.run(Duration::from_millis(10));
        group.replicas[0].is_leader()
    })
}

#[test]
fn a_rest_that_is_made_shorter_or_longer_costs_no_leader() {
    let seconds = Duration::from_secs;
    for (from, to) in [(1, 0), (10, 1), (10, 0), (1, 10)] {
        assert!(keeps_its_leader(seconds(from), seconds(to)), "{from} s became {to} s");
    }
}
