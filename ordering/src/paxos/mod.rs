//! The composition: one replica of one group (protocol.md 1, 7).
//!
//! `step` matches and passes on; the parts decide. `phase1` takes a leadership, `phase2` runs what is in flight, `lead`
//! keeps the leadership and confirms reads, `quiesce` lets it send heartbeats seldom, `follow` listens and catches up,
//! `change` changes the membership and transfers the leadership, `timers` knows what is due when, `recovery` starts
//! from what the log and a snapshot hold, `validate` refuses what no peer may say.

mod change;
mod follow;
mod lead;
mod phase1;
mod phase2;
mod quiesce;
mod recovery;
mod timers;
mod validate;

use std::time::Duration;

use bytes::Bytes;
pub use recovery::{Config, RecoveredGroup};
pub use validate::ROUND_MAX;

use crate::acceptor::{Acceptor, Run};
use crate::batch::Configuration;
use crate::counters::Counters;
use crate::election::Election;
use crate::ids::{Ballot, Instance, Lsn, ReplicaId, Ticket, Time};
use crate::learner::Learner;
use crate::message::{Message, Preempted};
use crate::proposer::Proposer;
use crate::reads::PositionQuestions;
use crate::settings::{BATCH_BYTES_MAX, Settings};
use crate::step::{Effect, Input, Record, SubmitError};

/// Whose logs take records, as far as a replica's driver knows: disks may be full (hazards.md ST10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LogRoom {
    /// This replica's does.
    #[default]
    Here,
    /// This replica's waits for room; those of a majority of the voters take records.
    Elsewhere,
    /// This replica's waits for room, and so do too many others: nobody can be elected.
    Nowhere,
}

/// The newest snapshot that is durable here, and what it makes the log forget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct DurableSnapshot {
    /// It covers everything up to here.
    upto: Instance,
    /// What it takes, in bytes; zero: not known yet.
    bytes: usize,
    /// Log records below the second are needed no more once the first is flushed.
    forget: Option<(Lsn, Lsn)>,
}

/// One replica of one group: acceptor, proposer and learner at once (papers.md A1).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Paxos {
    id: ReplicaId,
    incarnation: u64,
    settings: Settings,
    /// The latest time that was told; never goes back.
    now: Time,
    acceptor: Acceptor,
    learner: Learner,
    election: Election,
    /// While this replica is a candidate or leads. Its ballot is the promised one.
    proposer: Option<Box<Proposer>>,
    asks: PositionQuestions,
    /// The highest watermark told or heard.
    released: Option<Ticket>,
    snapshot: DurableSnapshot,
    /// What stands there and is decided cannot be executed here: see [`Paxos::set_lacking`].
    lacks_from: Option<Instance>,
    /// See [`Paxos::set_log_room`].
    log_room: LogRoom,
    /// Reused by every `Persisted`.
    runs: Vec<Run>,
    counters: Counters,
}

impl Paxos {
    /// The only way in. No I/O, no clock; randomness only from the seed in `Config`. `now` was read after the input
    /// arrived; if it goes back it counts as unchanged.
    pub fn step(&mut self, now: Time, input: Input, effects: &mut Vec<Effect>) {
        self.pass_time(now);
        match input {
            Input::Tick => self.on_tick(effects),
            Input::Message { from, message } => self.on_message(from, message, effects),
            Input::Persisted(lsn) => self.on_persisted(lsn, effects),
            Input::Confirm(token) => self.on_confirm(token, effects),
            Input::AskPosition(token) => self.on_ask_position(token, effects),
            Input::Change(configuration) => self.on_change(configuration, effects),
            Input::TransferLeader { to, deadline } => self.on_transfer_leader(to, deadline, effects),
            Input::Lost { peer, since } => self.on_lost(peer, since, effects),
            Input::Gone { peer } => self.on_gone(peer),
            Input::Executed(instance) => {
                self.learner.executed(instance.min(self.learner.decided_upto));
            }
            Input::Trim(instance) => self.on_trim(instance, effects),
            Input::Installed { instance, configuration, configured_at, promised } => {
                self.on_installed(instance, (configuration, configured_at), promised, effects);
            }
        }
        self.advance(effects);
    }

    /// Queues a submission of `count` commands. It will be proposed, unless [`Effect::Refused`] says otherwise.
    ///
    /// # Errors
    /// Nothing was queued, and nothing of it will be proposed.
    pub fn submit(
        &mut self,
        now: Time,
        bytes: Bytes,
        count: u32,
        effects: &mut Vec<Effect>,
    ) -> Result<(), SubmitError> {
        self.submit_work(now, bytes, count, count, effects)
    }

    /// [`Paxos::submit`] of commands that cost `work` ([`Settings::batch_work_max`]).
    pub fn submit_work(
        &mut self,
        now: Time,
        bytes: Bytes,
        count: u32,
        work: u32,
        effects: &mut Vec<Effect>,
    ) -> Result<(), SubmitError> {
        self.pass_time(now);
        let hint = self.election.leader;
        let Some(proposer) = self.proposer.as_deref_mut() else { return Err(SubmitError::NotLeader { hint }) };
        if !proposer.is_serving() || proposer.pauses() {
            return Err(SubmitError::Busy);
        }
        let fits = bytes.len() <= BATCH_BYTES_MAX;
        if !fits || !proposer.batcher.submit(self.now, bytes, count, work, &self.settings) {
            self.counters.submissions_refused += 1;
            // Time has passed here as well: what has become due would have no deadline.
            if !mutant!(refused_holds_up) {
                self.advance(effects);
            }
            return Err(SubmitError::Busy);
        }
        self.advance(effects);
        Ok(())
    }

    /// Tickets up to here are released (protocol.md 3, 4). A leader carries that to all members with its next message,
    /// a follower to its leader with its next acknowledgement; whoever leads later knows it.
    pub fn set_released(&mut self, now: Time, watermark: Ticket, effects: &mut Vec<Effect>) {
        self.pass_time(now);
        if watermark.may_follow(self.released) {
            self.released = self.released.max(Some(watermark));
        }
        self.advance(effects);
    }

    /// Leader: somebody waits for what the followers will do once they know what is decided. They are told at once,
    /// unless a message told them since; else they hear of it within `announce_delay`.
    pub fn announce(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.pass_time(now);
        let current = (self.learner.decided_upto, self.released);
        if self
            .proposer
            .as_deref()
            .is_some_and(|p| p.is_elected() && !p.announcement.is_carried(current) && !p.peers.is_empty())
        {
            self.begin_round(true, effects);
        }
    }

    /// What a snapshot of this group takes, in bytes: up to half of that is kept for those who are behind.
    pub fn set_snapshot_bytes(&mut self, bytes: usize) {
        self.snapshot.bytes = bytes;
    }

    /// Takes other limits and intervals from now on; values out of bounds are brought inside.
    pub fn set_settings(&mut self, settings: Settings) {
        let settings = settings.clamped();
        let quiesces_otherwise = settings.quiesce_heartbeat_interval != self.settings.quiesce_heartbeat_interval;
        self.settings = settings;
        if quiesces_otherwise {
            self.apply_quiesce_interval();
        }
    }

    /// Tells whose logs take records. A replica whose log waits for room neither stands for election nor says that it
    /// would vote: its promise would not become durable, and it would follow nobody until it is. Where nobody can be
    /// elected, the leader stays, and its replicas serve reads.
    pub fn set_log_room(&mut self, room: LogRoom) {
        self.log_room = room;
    }

    fn pass_time(&mut self, now: Time) {
        let elapsed = now - self.now;
        if let Some(proposer) = &self.proposer {
            let ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
            self.counters.window_instance_ns += ns.saturating_mul(proposer.window.len() as u64);
        }
        self.now = self.now.max(now);
    }

    fn on_message(&mut self, from: ReplicaId, message: Message, effects: &mut Vec<Effect>) {
        if from == self.id {
            return;
        }
        if self.is_absurd(from, &message) {
            self.counters.messages_refused += 1;
            return;
        }
        match message {
            Message::PreVote(m) => {
                self.wake(effects);
                self.on_pre_vote(from, m, effects);
            }
            Message::PreVoteReply(m) => self.on_pre_vote_reply(from, m, effects),
            Message::Phase1a(m) => self.on_phase1a(from, m, effects),
            Message::Phase1b(m) => self.on_phase1b(from, m, effects),
            Message::Phase2a(m) => self.on_phase2a(m, effects),
            Message::Phase2b(m) => self.on_phase2b(from, m, effects),
            Message::Preempted(m) => self.on_preempted(m, effects),
            Message::Heartbeat(m) => self.on_heartbeat(m, effects),
            Message::HeartbeatAck(m) => self.on_heartbeat_ack(from, m, effects),
            Message::CatchUp(m) => self.on_catch_up(from, m, effects),
            Message::CatchUpReply(m) => self.on_catch_up_reply(from, m, effects),
            Message::ReadPosition(m) => self.on_read_position(from, m, effects),
            Message::ReadPositionReply(m) => self.on_read_position_reply(m, effects),
            Message::TransferLeader(m) => self.on_asked_to_lead(m, effects),
        }
    }

    fn on_persisted(&mut self, lsn: Lsn, effects: &mut Vec<Effect>) {
        let mut runs = std::mem::take(&mut self.runs);
        self.acceptor.persisted(lsn, &mut runs);
        for run in runs.drain(..) {
            self.send_votes(run, effects);
        }
        self.runs = runs;
        self.answer_promise(effects);
        if let Some((flushed, below)) = self.snapshot.forget
            && self.acceptor.is_durable(flushed)
        {
            self.snapshot.forget = None;
            effects.push(Effect::Forget { below });
        }
    }

    /// What follows from the state as it is now, whatever the input was. Every step ends here.
    fn advance(&mut self, effects: &mut Vec<Effect>) {
        self.begin_if_durable(effects);
        self.propose_waiting(effects);
        self.serve_if_ready(effects);
        self.confirm_reads(effects);
        self.advance_transfer(effects);
        self.catch_up(effects);
        self.arm_announcement();
        self.wake_if_busy();
        self.ask_leader(effects);
        self.dismiss_if_safe(effects);
        self.evict();
        if cfg!(any(debug_assertions, feature = "invariants")) {
            self.assert_invariants();
        }
    }

    /// Answers whoever used `stale`, if this replica knows a higher ballot. A promise that is not flushed is not told.
    fn preempt(&self, to: ReplicaId, stale: Ballot, effects: &mut Vec<Effect>) {
        let promised = if self.acceptor.promise_is_durable() { self.acceptor.promised() } else { Ballot::ZERO };
        let ballot = promised.max(self.election.leader_ballot);
        if ballot > stale && to != self.id {
            effects.push(Effect::Send { to, message: Preempted { ballot }.into() });
        }
    }

    /// Forgets batches that a durable snapshot covers (protocol.md 1.6).
    fn on_trim(&mut self, upto: Instance, effects: &mut Vec<Effect>) {
        let upto = upto.min(self.learner.executed_upto);
        if upto <= self.snapshot.upto {
            return;
        }
        self.snapshot.upto = upto;
        self.acceptor.trim(upto);
        self.acceptor.persist(Record::Decided { upto: self.learner.decided_upto }, effects);
        self.snapshot.forget = Some(self.acceptor.repeat_standing(effects));
    }

    /// Memory holds what replicas that are a little behind will ask for; the log holds the rest.
    fn evict(&mut self) {
        let retain = self.settings.retain_bytes_min.max(self.snapshot.bytes / 2);
        self.acceptor.evict(self.learner.executed_upto, self.learner.decided_upto, retain);
    }

    fn assert_invariants(&self) {
        self.acceptor.assert_invariants();
        let (slots, learner) = (&self.acceptor.slots, &self.learner);
        assert!(slots.trimmed_upto() <= learner.executed_upto, "trimmed above what is executed");
        assert!(learner.executed_upto <= learner.decided_upto);
        assert!(learner.decided_upto <= slots.last(), "{} is decided, but not held", learner.decided_upto);
        assert!(learner.configured_at <= learner.decided_upto);
        let newest = learner.decided_upto;
        assert!(newest == slots.trimmed_upto() || slots.get(newest).is_some(), "{newest} is decided, but not held");
        let Some(proposer) = self.proposer.as_deref() else { return };
        assert!(self.election.leader.is_none(), "a candidate or leader that follows somebody");
        assert_eq!(proposer.ballot, self.acceptor.promised(), "a proposer's ballot is what it promised itself");
        assert_eq!(proposer.ballot.replica, self.id);
        if proposer.has_begun() {
            assert!(self.acceptor.is_durable(proposer.ballot_lsn), "{} is used, but not durable", proposer.ballot);
            assert_eq!(proposer.window.next().0, learner.decided_upto.0 + 1 + proposer.window.len() as u64);
        }
        assert!(proposer.phase1.is_none() || proposer.window.is_empty(), "Phase 1 with instances in flight");
        proposer.window.assert_invariants();
        proposer.batcher.assert_invariants();
        proposer.confirmations.assert_invariants();
    }
}

/// What there is to see.
impl Paxos {
    /// This replica.
    pub fn id(&self) -> ReplicaId {
        self.id
    }

    /// Whether this replica takes commands and serves reads: `Effect::Leading` is out and no `Effect::Following` since.
    pub fn is_leader(&self) -> bool {
        self.proposer.as_ref().is_some_and(|proposer| proposer.is_serving())
    }

    /// The leader, if one is known, perhaps this replica.
    pub fn leader(&self) -> Option<ReplicaId> {
        if self.is_leader() { Some(self.id) } else { self.election.leader }
    }

    /// At a leader, the replicas that have left its heartbeats unanswered for an election timeout.
    pub fn silent_peers(&self) -> impl Iterator<Item = ReplicaId> {
        let proposer = self.proposer.as_deref().filter(|proposer| proposer.is_serving());
        let (peers, silence_max) = proposer.map_or((&[][..], Duration::ZERO), |p| (&p.peers, self.silence_max(p)));
        peers.iter().filter(move |peer| peer.heard_at + silence_max <= self.now).map(|peer| peer.id)
    }

    /// The highest ballot promised or heard.
    pub fn ballot(&self) -> Ballot {
        self.acceptor.promised().max(self.election.leader_ballot)
    }

    /// The highest ballot promised, perhaps not durably: part of every snapshot, see [`Input::Installed`].
    pub fn promised(&self) -> Ballot {
        self.acceptor.promised()
    }

    /// Batches in memory, and what is around them, in bytes.
    pub fn kept_bytes(&self) -> usize {
        self.acceptor.slots.len_bytes()
    }

    /// Some leader or replica has decided everything up to here, as far as this one was told; it may lack a part of it.
    pub fn told_upto(&self) -> Instance {
        let told = self.learner.behind.as_ref().map_or(Instance::ZERO, |behind| behind.upto);
        self.learner.decided_upto.max(told)
    }

    /// Whether so many missing instances are few enough to be on their way; more of them have to be asked for.
    pub fn may_be_on_their_way(&self, missing: u64) -> bool {
        missing <= 2 * u64::from(self.settings.window)
    }

    /// Everything up to here is decided, and known here.
    pub fn decided_upto(&self) -> Instance {
        self.learner.decided_upto
    }

    /// The batch accepted or learned at `instance`, unless it is forgotten.
    pub fn batch(&self, instance: Instance) -> Option<&crate::Batch> {
        self.acceptor.slots.get(instance).map(|slot| &slot.batch)
    }

    /// Batches up to here are not in memory.
    pub fn trimmed_upto(&self) -> Instance {
        self.acceptor.slots.trimmed_upto()
    }

    /// The highest accepted or proposed instance: at a leader, what was last executed.
    pub fn accepted_upto(&self) -> Instance {
        self.acceptor.slots.last()
    }

    /// The newest decided configuration, and the instance that decided it (zero for the first).
    pub fn configuration(&self) -> (&Configuration, Instance) {
        (&self.learner.configuration, self.learner.configured_at)
    }

    /// The configuration that governs the instance after `instance`, and what decided it: it belongs to the state at
    /// `instance`, which is everything that was told executed or later, while the executor is behind what is decided
    /// (protocol.md 1.6).
    pub fn configuration_at(&self, instance: Instance) -> (&Configuration, Instance) {
        self.learner.configuration_at(instance)
    }

    /// The watermark of released tickets, as far as known (protocol.md 3).
    pub fn released(&self) -> Option<Ticket> {
        self.released
    }

    /// Instances in flight, and their bytes; zero unless leading.
    pub fn in_flight(&self) -> (usize, usize) {
        self.proposer.as_ref().map_or((0, 0), |proposer| (proposer.window.len(), proposer.window.bytes()))
    }

    /// Submissions queued and not proposed, and their bytes; zero unless leading.
    pub fn queued(&self) -> (u32, usize) {
        self.proposer.as_ref().map_or((0, 0), |p| (p.batcher.submissions(), p.batcher.bytes()))
    }

    /// Leader: what `replica` durably holds of the decided log, as it last said.
    pub fn durable_upto(&self, replica: ReplicaId) -> Option<Instance> {
        Some(self.proposer.as_ref()?.peer(replica)?.durable_upto)
    }

    /// Leader: the quickest way to a quorum and back of late, by heartbeats, which wait for no flush; zero if this
    /// replica is a quorum. `None`: not measured yet.
    pub fn round_trip(&self) -> Option<Duration> {
        let proposer = self.proposer.as_deref()?;
        let shortest = |id| {
            let measured = proposer.peer(id).and_then(|peer| peer.nearest.shortest());
            std::cmp::Reverse(if id == self.id { Duration::ZERO } else { measured.unwrap_or(Duration::MAX) })
        };
        let std::cmp::Reverse(quorum) = self.learner.quorum.reached(shortest)?;
        (quorum < Duration::MAX).then_some(quorum)
    }

    /// A quorum of the newest configuration durably holds everything up to here, as far as known (protocol.md 1.5).
    pub fn held_upto(&self) -> Instance {
        self.learner.held_upto
    }

    /// The settings in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}
