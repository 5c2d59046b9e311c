//! A replica of the model: the real core, a log of which the end may not be flushed, and a clock that nobody else has.

use std::time::Duration;

use bytes::Bytes;
use coppice_ordering::message::{CatchUp, PreVoteReply};
use coppice_ordering::{
    Ballot, Batch, Config, Configuration, Effect, HeartbeatRound, Input, Instance, Lsn, Message, Paxos, Record,
    RecoveredGroup, ReplicaId, Settings, Time,
};

use super::News;

/// Longer than anything that a replica waits for.
const LONG: Duration = Duration::from_secs(100_000);

/// A message on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Letter {
    pub from: ReplicaId,
    pub to: ReplicaId,
    pub message: Message,
}

impl Letter {
    /// The ballot that it is about, if it is about one.
    pub fn ballot(&self) -> Option<Ballot> {
        match &self.message {
            Message::Phase1a(m) => Some(m.ballot),
            Message::Phase1b(m) => Some(m.ballot),
            Message::Phase2a(m) => Some(m.ballot),
            Message::Phase2b(m) => Some(m.ballot),
            Message::Heartbeat(m) => Some(m.ballot),
            _ => None,
        }
    }

    /// Whether it may arrive in a world with these news. A heartbeat that tells of no decision is silence.
    pub fn is_of_use(&self, news: News) -> bool {
        match &self.message {
            Message::CatchUpReply(_) => news == News::Anybody,
            Message::Heartbeat(m) => news != News::Proposals && m.decided_upto > Instance::ZERO,
            _ => true,
        }
    }

    /// An answer to a candidate or leader, who is gone when its process is.
    pub fn is_answer(&self) -> bool {
        matches!(self.message, Message::Phase1b(_) | Message::Phase2b(_))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Replica {
    pub id: ReplicaId,
    pub paxos: Paxos,
    /// Records on the disk.
    durable: Vec<(Lsn, Record)>,
    /// Records written and not flushed.
    pub written: Vec<(Lsn, Record)>,
    /// Counts its processes.
    pub incarnation: u64,
    /// Its disk is lost, and nothing happens to it.
    pub gone: bool,
    clock: Time,
}

/// Long intervals: nothing here waits for time. A window for all instances, and each submission alone.
fn settings() -> Settings {
    Settings {
        batch_bytes_max: 1,
        eager_window: 8,
        window: 8,
        heartbeat_interval: LONG / 100,
        election_timeout: LONG / 10,
        ..Settings::default()
    }
}

fn config(id: ReplicaId, group: u32, incarnation: u64) -> Config {
    let configuration = Configuration { voters: (0..group).map(ReplicaId).collect(), ..Configuration::default() };
    Config { id, configuration, seed: 0, incarnation, settings: settings(), campaign_first: false }
}

impl Replica {
    pub fn new(id: ReplicaId, group: u32) -> Replica {
        Replica {
            id,
            paxos: Paxos::new(config(id, group, 1), Time::ZERO),
            durable: Vec::new(),
            written: Vec::new(),
            incarnation: 1,
            gone: false,
            clock: Time::ZERO,
        }
    }

    /// The highest ballot promised on the disk: it listens to no lower one for ever.
    pub fn promised(&self) -> Ballot {
        let ballot = |(_, record): &(Lsn, Record)| match record {
            Record::Promise { ballot } | Record::Accept { ballot, .. } => *ballot,
            Record::Learned { .. } | Record::Decided { .. } | Record::Lease { .. } => Ballot::ZERO,
        };
        self.durable.iter().map(ballot).max().unwrap_or(Ballot::ZERO)
    }

    /// The highest ballot of its own in which it has proposed: Phase 1 of that, and of all below, is behind it.
    pub fn proposes_in(&self) -> Ballot {
        let own = |(_, record): &(Lsn, Record)| match record {
            Record::Accept { ballot, .. } if ballot.replica == self.id => *ballot,
            _ => Ballot::ZERO,
        };
        self.durable.iter().chain(&self.written).map(own).max().unwrap_or(Ballot::ZERO)
    }

    /// The votes on its disk.
    pub fn votes(&self) -> impl Iterator<Item = (Instance, Ballot, &Batch)> {
        self.durable.iter().filter_map(|(_, record)| match record {
            Record::Accept { instance, ballot, batch, .. } => Some((*instance, *ballot, batch)),
            _ => None,
        })
    }

    pub fn step(&mut self, input: Input, out: &mut Vec<Letter>) {
        let mut effects = Vec::new();
        self.paxos.step(self.clock, input, &mut effects);
        self.carry_out(effects, out);
    }

    /// A client's command.
    pub fn submit(&mut self, command: Bytes, out: &mut Vec<Letter>) {
        let mut effects = Vec::new();
        self.paxos.submit(self.clock, command, 1, &mut effects).expect("a leader with room takes it");
        self.carry_out(effects, out);
    }

    fn carry_out(&mut self, effects: Vec<Effect>, out: &mut Vec<Letter>) {
        let mut decided = None;
        for effect in effects {
            match effect {
                Effect::Persist { lsn, record } => self.written.push((lsn, record)),
                Effect::Send { to, message } => out.extend(self.letter(to, message)),
                Effect::Decided { upto } => decided = Some(upto),
                _ => {}
            }
        }
        if let Some(upto) = decided {
            self.step(Input::Executed(upto), out);
            self.tell_decided(out);
        }
        // What is decided is told at once: that it arrives late, or never, is up to the network.
        let mut effects = Vec::new();
        self.paxos.announce(self.clock, &mut effects);
        if !effects.is_empty() {
            self.carry_out(effects, out);
        }
    }

    /// Everybody asks everybody for what was decided, always.
    fn tell_decided(&mut self, out: &mut Vec<Letter>) {
        let members: Vec<ReplicaId> = self.paxos.configuration().0.members().filter(|to| *to != self.id).collect();
        for to in members {
            let message = CatchUp { from: Instance(1), bytes_max: 1 << 20 }.into();
            self.step(Input::Message { from: to, message }, out);
        }
    }

    /// What goes out, without what no receiver of the model looks at: else states would differ for nothing.
    fn letter(&self, to: ReplicaId, mut message: Message) -> Option<Letter> {
        match &mut message {
            Message::Phase1a(_) | Message::Phase1b(_) | Message::Phase2a(_) | Message::Phase2b(_) => {}
            // Nobody reads by rounds, nobody was removed.
            Message::Heartbeat(m) => (m.round, m.held_upto) = (HeartbeatRound(1), Instance::ZERO),
            Message::CatchUpReply(m) => (m.promised, m.held_upto) = (Ballot::ZERO, Instance::ZERO),
            _ => return None,
        }
        Some(Letter { from: self.id, to, message })
    }

    /// It has heard of no leader for long, a peer neither, and it stands for election. The pre-vote always passes: it
    /// is no part of the proof (protocol.md 1.1).
    pub fn campaign(&mut self, peer: &Replica, out: &mut Vec<Letter>) {
        let mut attempt = None;
        // A leader or candidate gives up first.
        for _ in 0..4 {
            self.clock = self.clock + LONG;
            let mut effects = Vec::new();
            self.paxos.step(self.clock, Input::Tick, &mut effects);
            attempt = effects.iter().find_map(|effect| match effect {
                Effect::Send { message: Message::PreVote(m), .. } => Some(m.attempt),
                _ => None,
            });
            self.carry_out(effects, out);
            if attempt.is_some() {
                break;
            }
        }
        let attempt = attempt.expect("who hears nothing for long asks for votes");
        let (promised, decided_upto) = (peer.paxos.promised(), peer.paxos.decided_upto());
        let message = PreVoteReply { attempt, granted: true, promised, decided_upto }.into();
        self.step(Input::Message { from: peer.id, message }, out);
    }

    /// All that is written is on the disk.
    pub fn flush(&mut self, out: &mut Vec<Letter>) {
        while let Some((lsn, _)) = self.written.last() {
            let lsn = *lsn;
            self.durable.append(&mut self.written);
            self.step(Input::Persisted(lsn), out);
        }
    }

    /// The process ends and starts again: of what is not flushed the first `kept` records survive.
    pub fn crash(&mut self, kept: usize, group: u32, out: &mut Vec<Letter>) {
        self.durable.extend(self.written.drain(..).take(kept));
        self.restart(group, out);
    }

    /// The disk is lost for good. Its votes were given, and count where they were heard; nothing else is left of the
    /// replica that could make two states differ.
    pub fn lose(&mut self) {
        let group = self.paxos.configuration().0.voters.len() as u32;
        let durable = std::mem::take(&mut self.durable);
        *self = Replica { durable, gone: true, ..Replica::new(self.id, group) };
    }

    /// The disk is lost, and the replica comes back as if it were new, under its old id: what protocol.md 1.5 forbids.
    pub fn forget(&mut self, group: u32, out: &mut Vec<Letter>) {
        self.durable.clear();
        self.written.clear();
        self.restart(group, out);
    }

    fn restart(&mut self, group: u32, out: &mut Vec<Letter>) {
        self.written.clear();
        self.incarnation += 1;
        let mut recovered = RecoveredGroup::new();
        self.durable.iter().for_each(|(lsn, record)| recovered.apply(*lsn, record.clone()));
        let mut effects = Vec::new();
        self.paxos = Paxos::recover(config(self.id, group, self.incarnation), recovered, self.clock, &mut effects);
        self.carry_out(effects, out);
    }
}
