//! A way that becomes longer than the wait for it, as behind a full window on a slow link (papers.md A15): what is only
//! under way is not sent again for ever. On links of 10 Mbit/s it was, two or three times, and less than half of what
//! they carried was of use.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use coppice_ordering::message::Message;
use coppice_ordering::{Config, Configuration, Effect, Input, Paxos, ReplicaId, Settings, Time};

const MINUTE: Time = Time(60_000_000_000);

/// Three replicas whose disks take no time, and whose batches arrive after `way`; everything else arrives at once.
struct World {
    now: Time,
    replicas: Vec<Paxos>,
    mail: BTreeMap<(Time, u64), (ReplicaId, ReplicaId, Message)>,
    sent: u64,
    way: Duration,
    /// What a link takes to send a batch; the next one waits for that.
    turn: Duration,
    /// When each replica's link has sent all that it has.
    free: [Time; 3],
}

impl World {
    fn new(window: u32) -> World {
        let settings = Settings {
            window,
            eager_window: window,
            // Far above ten round trips, as on any long way.
            election_timeout: Duration::from_secs(5),
            ..Settings::default()
        };
        let replica = |id| {
            let configuration = Configuration::of_voters((0..3).map(ReplicaId));
            let (settings, campaign_first) = (settings.clone(), id == 0);
            let config = Config { id: ReplicaId(id), configuration, seed: 1, incarnation: 1, settings, campaign_first };
            Paxos::new(config, Time::ZERO)
        };
        let replicas = (0..3).map(replica).collect();
        World {
            now: Time::ZERO,
            replicas,
            mail: BTreeMap::new(),
            sent: 0,
            way: Duration::ZERO,
            turn: Duration::ZERO,
            free: [Time::ZERO; 3],
        }
    }

    fn step(&mut self, id: ReplicaId, input: Input) {
        let mut effects = Vec::new();
        self.replicas[id.0 as usize].step(self.now, input, &mut effects);
        self.carry_out(id, effects);
    }

    fn submit(&mut self) -> bool {
        let mut effects = Vec::new();
        let taken = self.replicas[0].submit(self.now, Bytes::from_static(b"command"), 1, &mut effects);
        self.carry_out(ReplicaId(0), effects);
        taken.is_ok()
    }

    fn carry_out(&mut self, id: ReplicaId, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Persist { lsn, .. } => self.step(id, Input::Persisted(lsn)),
                Effect::Decided { upto } => self.step(id, Input::Executed(upto)),
                Effect::Send { to, message } => {
                    let mut at = self.now;
                    if matches!(message, Message::Phase2a(_)) {
                        let free = &mut self.free[to.0 as usize];
                        *free = self.now.max(*free) + self.turn;
                        at = *free + self.way;
                    }
                    self.sent += 1;
                    self.mail.insert((at, self.sent), (to, id, message));
                }
                _ => {}
            }
        }
    }

    /// Keeps the first replica's window full until then.
    fn run(&mut self, until: Time) {
        while self.now < until {
            while self.replicas[0].queued().0 < 8 && self.submit() {}
            self.step(ReplicaId(0), Input::Tick);
            let due = self.replicas.iter().filter_map(Paxos::deadline).min();
            let next = self.mail.keys().next().map(|(at, _)| *at).into_iter().chain(due).min();
            self.now = next.expect("there are heartbeats").max(self.now + Duration::from_micros(100));
            while let Some(mail) = self.mail.first_entry().filter(|mail| mail.key().0 <= self.now) {
                let (to, from, message) = mail.remove();
                self.step(to, Input::Message { from, message });
            }
            for id in (0..3).map(ReplicaId) {
                if self.replicas[id.0 as usize].deadline().is_some_and(|at| at <= self.now) {
                    self.step(id, Input::Tick);
                }
            }
        }
    }
}

#[test]
fn a_way_longer_than_the_wait_is_measured_and_waited_for() {
    let mut world = World::new(4);
    world.way = Duration::from_millis(10);
    world.run(MINUTE);
    let quick = world.replicas[0].counters().clone();
    assert!(quick.instances_decided > 10_000, "{quick:?}");
    // Longer than `retransmit_max`, and all at once: everything under way is sent again, and that is all.
    world.way = Duration::from_millis(700);
    world.run(Time(2 * MINUTE.0));
    let slow = world.replicas[0].counters().clone();
    world.run(Time(3 * MINUTE.0));
    let still = world.replicas[0].counters().clone();
    let decided = still.instances_decided - slow.instances_decided;
    assert!(decided > 300, "four at a time every 700 ms: {decided}");
    assert_eq!(still.retransmissions - slow.retransmissions, 0, "of {decided} instances");
    let first = slow.retransmissions - quick.retransmissions;
    assert!(first > 0 && first < 100, "{first}");
}

#[test]
fn what_waits_for_its_turn_on_a_link_is_not_sent_again() {
    // A window of 32 takes 1.3 s to send, its first batch 40 ms: nothing is known of the link before. A new cluster
    // over 10 Mbit/s sent the whole window three times in the first 100 ms, and its links were congested by that.
    let mut world = World::new(32);
    world.turn = Duration::from_millis(40);
    world.run(Time(MINUTE.0 / 2));
    let counters = world.replicas[0].counters().clone();
    assert!(counters.instances_decided > 700, "25 a second: {counters:?}");
    assert!(counters.retransmissions <= 8, "{counters:?}");
    // It was quick, and is ten times as slow: what is under way then is sent again, the oldest batch first.
    let mut world = World::new(32);
    world.turn = Duration::from_millis(1);
    world.run(Time(MINUTE.0 / 2));
    let quick = world.replicas[0].counters().clone();
    world.turn = Duration::from_millis(40);
    world.run(MINUTE);
    let slow = world.replicas[0].counters().clone();
    assert!(slow.instances_decided - quick.instances_decided > 700, "{slow:?}");
    let again = slow.retransmissions - quick.retransmissions;
    assert!(again <= 32, "less than half a window to each of two replicas: {again}");
}
