//! One replica of one group: Paxos, the executor and the gate, composed.
//!
//! Pure: `step` takes the time and an input and returns effects. It pairs what clients asked with what their commands
//! came to, and lets nothing out before it is decided, released, and (for reads) read under a confirmed leadership. It
//! knows neither frames nor sockets nor files.

mod absorb;
mod expiry;
mod limits;
mod outputs;
mod queries;
mod reads;
mod samples;
mod stalled_reads;
mod step;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use absorb::Stall;
use coppice_btree::KeyRange;
use coppice_client::wire::PartitionId;
use coppice_ordering::{
    Ballot, Batch, Config, Effect as Ordered, Input as Order, Instance, Lsn, Paxos, RecoveredGroup, ReplicaId,
    SubmitError, Ticket, Time,
};
use expiry::Elapsed;
use limits::Limits;
pub use limits::{GATE_BYTES_MAX, GATE_MAX, READS_MAX};
use outputs::{Outputs, refuse};
use queries::Queries;
use reads::Reads;
use samples::Sampler;
pub use samples::{DecidedBatch, ProposedBatch, Samples};
use stalled_reads::StalledReads;
pub use step::{Effect, Input, QueryPart};

use crate::executor::{Executor, ExecutorSettings};
use crate::machine::directory::DirectoryState;
use crate::machine::entry;
use crate::machine::{Answer, Machine};
use crate::request::{Origin, Refusal, Request};

/// One replica of one group.
pub struct Replica {
    group: PartitionId,
    me: ReplicaId,
    paxos: Paxos,
    executor: Executor,
    leadership: Leadership,
    log: LogProgress,
    outputs: Outputs,
    reads: Reads,
    queries: Queries,
    /// Since when the next batch waits for a neighbour's state, and when that is asked for again.
    stall: Option<Stall>,
    proposals: Proposals,
    stalled_reads: StalledReads,
    samples: Sampler,
    now: Time,
    ordered: Vec<Ordered>,
    answers: Vec<Answer>,
}

/// Entries that nobody asked for, which this replica proposes where it leads.
#[derive(Default)]
struct Proposals {
    limits: Limits,
    elapsed: Elapsed,
}

/// Who leads the group, as this replica knows.
#[derive(Debug, Default)]
struct Leadership {
    /// This replica does, and serves.
    is_own: bool,
    leader: Option<ReplicaId>,
    changes: u64,
}

impl Leadership {
    fn learn(&mut self, leader: Option<ReplicaId>) {
        if leader.is_some() && leader != self.leader {
            self.changes += 1;
        }
        self.leader = leader;
    }

    /// The refusal that points to the leader.
    fn refusal(&self) -> Refusal {
        Refusal::NotLeader { hint: self.leader }
    }
}

/// How far the log has come.
#[derive(Debug, Default)]
struct LogProgress {
    /// The newest record that somebody waits for.
    written: Lsn,
    durable: Lsn,
}

impl LogProgress {
    /// Whether nobody waits for a record that is not durable.
    fn is_caught_up(&self) -> bool {
        self.durable >= self.written
    }
}

impl Replica {
    /// A replica of `group` whose machine holds the state of `decided`; `paxos` goes on after it.
    pub fn new(
        group: PartitionId,
        paxos: Paxos,
        mut machine: Machine,
        decided: Instance,
        executing: ExecutorSettings,
    ) -> Replica {
        let me = paxos.id();
        machine.set_me(me);
        Replica {
            group,
            me,
            paxos,
            leadership: Leadership::default(),
            log: LogProgress::default(),
            outputs: Outputs::new(decided),
            reads: Reads::new(me),
            queries: Queries::new(decided, machine.last_ticket()),
            stall: None,
            proposals: Proposals::default(),
            stalled_reads: StalledReads::default(),
            executor: Executor::new(machine, decided, executing),
            samples: Sampler::default(),
            now: Time::ZERO,
            ordered: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// A replica that goes on where its log and its newest checkpoint stand: `machine` holds the state of `snapshot`.
    #[expect(clippy::too_many_arguments, reason = "the parts of a start, each of its own type")]
    pub fn recover(
        group: PartitionId,
        config: Config,
        recovered: RecoveredGroup,
        machine: Machine,
        snapshot: Instance,
        executing: ExecutorSettings,
        now: Time,
        effects: &mut Vec<Effect>,
    ) -> Replica {
        let mut ordered = Vec::new();
        let incarnation = config.incarnation;
        let paxos = Paxos::recover(config, recovered, now, &mut ordered);
        let mut replica = Replica::new(group, paxos, machine, snapshot, executing);
        replica.reads.begin_life(incarnation, now);
        replica.ordered = ordered;
        replica.drain(now, effects);
        replica.note_stall(now, effects);
        replica
    }

    pub fn group(&self) -> PartitionId {
        self.group
    }

    /// The Paxos core, to look at.
    pub fn paxos(&self) -> &Paxos {
        &self.paxos
    }

    /// The Paxos core's settings may change while it runs.
    pub(crate) fn paxos_mut(&mut self) -> &mut Paxos {
        &mut self.paxos
    }

    /// The executor, to look at.
    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    /// The executor's settings may change while it runs.
    pub(crate) fn executor_mut(&mut self) -> &mut Executor {
        &mut self.executor
    }

    /// Digests its state every so many instances from now on.
    pub fn set_digest_interval(&mut self, instances: u64) {
        self.executor.set_digest_interval(instances);
    }

    /// Whether [`Input::Speculate`] would run anything that should run now. At a replica that follows not before its
    /// vote is out: nobody waits for what it executes, but its leader for its vote.
    pub fn may_speculate(&self) -> bool {
        self.executor.is_behind()
            || self.executor.may_speculate() && (self.leadership.is_own || self.log.is_caught_up())
    }

    /// Whether something decided waits for the next step, because this one has done all that it may.
    pub fn is_behind(&self) -> bool {
        self.executor.is_behind()
    }

    /// What the directory has decided, if this is a replica of it: nobody acts on what may yet be taken back
    /// (hazards.md MV13).
    pub fn decided_directory(&self) -> Option<Arc<DirectoryState>> {
        if mutant!(change_before_decided) {
            return self.executor.machine().directory().map(|directory| Arc::clone(directory.state()));
        }
        self.executor.machine().directory()?;
        self.executor.decided_view().directory().map(|directory| Arc::clone(directory.state()))
    }

    /// Whether a split of this partition may yet give the key to another one: it is inside, as last executed. A sealed
    /// partition is split no more; its keys are its merge target's.
    pub fn holds(&self, key: &[u8]) -> bool {
        let open = self.executor.machine().partition().filter(|partition| partition.sealed().is_none());
        open.is_some_and(|partition| partition.range().contains(key))
    }

    /// The keys of the decided state; none: the directory.
    pub fn decided_range(&self) -> Option<KeyRange> {
        self.executor.decided_view().partition().map(|partition| partition.range().clone())
    }

    /// Whether this replica leads and serves.
    pub fn is_leading(&self) -> bool {
        self.leadership.is_own
    }

    /// The leader as far as known.
    pub fn leader(&self) -> Option<ReplicaId> {
        self.leadership.leader
    }

    /// How often the leader changed.
    pub fn leader_changes(&self) -> u64 {
        self.leadership.changes
    }

    /// Submissions that wait for a batch.
    pub fn queued(&self) -> usize {
        self.outputs.queued()
    }

    /// Keys and ranges that reads asked for, since the replica began here.
    pub fn reads_asked(&self) -> u64 {
        self.reads.count
    }

    /// Replies that wait behind the gate.
    pub fn held(&self) -> usize {
        self.outputs.held()
    }

    /// The last ticket of the decided log.
    pub fn last_ticket(&self) -> Option<Ticket> {
        self.queries.last_ticket()
    }

    /// Every ticket up to here is released, as far as this replica was told.
    pub fn released(&self) -> Option<Ticket> {
        self.queries.watermark()
    }

    /// When `step` with `Tick` is next wanted.
    pub fn deadline(&self) -> Option<Time> {
        let stall = self.stall.map(|stall| stall.again);
        let behind = self.executor.is_behind().then_some(self.now);
        let mine = [
            stall,
            self.proposals.limits.again(),
            self.proposals.elapsed.again(),
            self.stalled_reads.ends(),
            self.asked_until(),
            self.queries.deadline(),
            behind,
        ];
        self.paxos.deadline().into_iter().chain(mine.into_iter().flatten()).min()
    }

    /// The only way in.
    pub fn step(&mut self, now: Time, input: Input, effects: &mut Vec<Effect>) {
        self.now = now;
        self.executor.begin_step();
        match input {
            Input::Tick => self.order(now, Order::Tick, effects),
            Input::TurnEnd => self.on_turn_end(now, effects),
            Input::Speculate => {
                self.on_speculate(effects);
                self.run_decided(now, effects);
            }
            Input::Peer { from, message } => self.order(now, Order::Message { from, message }, effects),
            Input::Persisted(lsn) => {
                self.log.durable = self.log.durable.max(lsn);
                self.order(now, Order::Persisted(lsn), effects);
            }
            Input::Request { origin, request } => self.on_request(now, origin, request, effects),
            Input::Checkpointed(instance) => self.order(now, Order::Trim(instance), effects),
            Input::Installed { machine, instance, configuration, configured_at, promised } => {
                // The log may have caught up while the snapshot was on its way: then the state here is the newer one.
                if instance <= self.executor.decided() || !self.paxos.may_install(instance, &configuration, promised) {
                    return;
                }
                let mut machine = *machine;
                machine.set_me(self.me);
                self.queries.installed(instance, machine.last_ticket());
                let undecided = self.executor.decided().next();
                self.executor.install(machine, instance);
                self.name_responders();
                self.redo_replaced_reads(undecided, effects);
                // Also what lies above the snapshot: it was executed on another state, and runs again.
                if !mutant!(part_survives_install) {
                    self.queries.undo_from(undecided);
                }
                self.outputs.installed(instance, self.leadership.leader, effects);
                if self.group == PartitionId::DIRECTORY {
                    effects.push(Effect::DirectoryChanged);
                }
                self.order(now, Order::Installed { instance, configuration, configured_at, promised }, effects);
                self.run_decided(now, effects);
                // The snapshot is a decided state like any other; perhaps nothing is decided behind it for long.
                self.serve_asked();
            }
            Input::Change { expected, configuration } => {
                // A step that comes late must not bring back who was removed since.
                if self.paxos.configuration().1 == expected {
                    self.order(now, Order::Change(configuration), effects);
                }
            }
            Input::TransferLeader { to, deadline } => {
                self.order(now, Order::TransferLeader { to, deadline }, effects);
                failpoint!("control.transfers");
            }
            Input::Lost { peer, since } => self.order(now, Order::Lost { peer, since }, effects),
            Input::Gone { peer } => self.order(now, Order::Gone { peer }, effects),
            Input::Place(place) => self.on_place(now, &place, effects),
            Input::Released(ticket) => self.on_released(now, ticket, effects),
            Input::Absorb(left) => self.on_absorb(now, *left, effects),
            Input::Confirm(token) => self.on_confirm(token),
        }
        self.run_decided(now, effects);
        self.tell_placed(now, effects);
        self.propose_limits(now, effects);
        self.propose_expiry(now, effects);
        self.note_stall(now, effects);
        self.check_stalled_reads(now, effects);
        self.give_up_asked(now, effects);
        self.outputs.let_out(now, &mut self.samples, effects);
    }

    fn on_request(&mut self, now: Time, origin: Origin, request: Request, effects: &mut Vec<Effect>) {
        if self.outputs.are_full() {
            // The directory has lost its majority (protocol.md 4.4): what was promised to wait is held, and no more.
            return refuse(effects, origin, Refusal::Busy("16,384 answers wait for the directory"));
        }
        match request {
            Request::Pack { .. } | Request::Open { .. } if !self.has_keys() => {
                refuse(effects, origin, Refusal::WrongPartition);
            }
            Request::Pack { entry, commands, work, timed: true, .. } => {
                self.submit_timed(now, origin, &entry, (commands, work), effects);
            }
            Request::Pack { entry, commands, work, .. } => {
                self.submit(now, origin, entry, (commands, work), effects);
            }
            Request::Open { entry } => _ = self.submit(now, origin, entry, (1, 1), effects),
            Request::Directory(command) => _ = self.submit(now, origin, entry::directory(&command), (1, 1), effects),
            Request::Read(..) | Request::Range(_) | Request::CollectParts(_) | Request::Validate(..) => {
                self.on_read(origin, request, effects);
            }
        }
    }

    /// Whether the entry waits for a batch, or is in one.
    fn submit(
        &mut self,
        now: Time,
        origin: Origin,
        entry: bytes::Bytes,
        (commands, work): (u32, u32),
        effects: &mut Vec<Effect>,
    ) -> bool {
        let submitted = self.paxos.submit_work(now, entry, commands, work, &mut self.ordered);
        let is_taken = submitted.is_ok();
        match submitted {
            Ok(()) => self.outputs.submitted(origin),
            Err(SubmitError::NotLeader { hint }) => refuse(effects, origin, Refusal::NotLeader { hint }),
            Err(SubmitError::Busy) => {
                refuse(effects, origin, Refusal::Busy("the queue of commands to be ordered is full"))
            }
        }
        self.drain(now, effects);
        is_taken
    }

    /// Confirms the reads of this turn with one round for all of them.
    fn on_turn_end(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if let Some(token) = self.reads.take_unconfirmed() {
            self.order(now, Order::Confirm(token), effects);
        }
        if let Some(token) = self.reads.take_unasked() {
            self.order(now, Order::AskPosition(token), effects);
        }
    }

    fn order(&mut self, now: Time, input: Order, effects: &mut Vec<Effect>) {
        let mut ordered = std::mem::take(&mut self.ordered);
        self.paxos.step(now, input, &mut ordered);
        self.ordered = ordered;
        self.drain(now, effects);
    }

    /// Acts on what Paxos decided to do; what that makes Paxos do in turn is acted on too.
    fn drain(&mut self, now: Time, effects: &mut Vec<Effect>) {
        while !self.ordered.is_empty() {
            let mut ordered = std::mem::take(&mut self.ordered);
            let mut executed = None;
            for effect in ordered.drain(..) {
                match effect {
                    Ordered::Decided { upto } => executed = Some(self.on_decided(upto, effects)),
                    other => self.on_ordered(other, effects),
                }
            }
            // Reuse the allocation; `step` may have been called only through `self.ordered`, which is empty here.
            self.ordered = ordered;
            if let Some(upto) = executed {
                let mut more = std::mem::take(&mut self.ordered);
                self.paxos.step(now, Order::Executed(upto), &mut more);
                self.ordered = more;
            }
        }
    }

    fn on_ordered(&mut self, effect: Ordered, effects: &mut Vec<Effect>) {
        match effect {
            Ordered::Persist { lsn, record } => {
                if !record.is_lazy() {
                    self.log.written = lsn;
                }
                effects.push(Effect::Persist { lsn, record });
            }
            Ordered::Send { to, message } => effects.push(Effect::Send { to, message }),
            Ordered::Accepted { instance, batch, .. } => {
                self.samples.accepted(instance, &batch);
                self.on_accepted(instance, batch, effects);
            }
            Ordered::Proposed { instance, submissions } => {
                self.outputs.proposed(instance, submissions as usize);
                self.samples.proposed(instance, self.now);
            }
            Ordered::Refused { submissions } => {
                let refusal = self.leadership.refusal();
                self.outputs.take_queued(submissions as usize).for_each(|origin| refuse(effects, origin, refusal));
            }
            Ordered::Confirmed { upto } => self.on_confirmed(upto, effects),
            Ordered::Unconfirmed { upto } => self.on_unconfirmed(upto, effects),
            Ordered::Position { upto, instance } => {
                self.reads.told_position(upto, instance);
                self.serve_asked();
            }
            Ordered::Leading { ballot, .. } => self.on_leading(ballot, effects),
            Ordered::Following { leader, ballot } => self.on_following(leader, ballot, effects),
            Ordered::NeedSnapshot { from, instance } => effects.push(Effect::NeedSnapshot { from, instance }),
            Ordered::ConfigurationDecided { instance, configuration } => {
                self.name_responders();
                effects.push(Effect::Configured { instance, configuration });
            }
            Ordered::ChangeRefused(_) => {}
            Ordered::LeaderTransferFailed { to } => effects.push(Effect::TransferFailed { to }),
            Ordered::Dismissed { .. } => effects.push(Effect::Dismissed),
            Ordered::Released { watermark } => _ = self.note_released(watermark),
            // The log knows by the trim positions of checkpoints what may go.
            Ordered::Forget { .. } => {}
            Ordered::Decided { .. } => unreachable!("handled by drain"),
        }
    }

    fn on_accepted(&mut self, instance: Instance, batch: Batch, effects: &mut Vec<Effect>) {
        let mut answers = std::mem::take(&mut self.answers);
        let rolled_back = self.executor.accepted(instance, batch, &mut answers);
        self.answers = answers;
        effects.extend(self.executor.take_moved().into_iter().map(|mark| Effect::Moved { mark }));
        if let Some(from) = rolled_back {
            self.outputs.undo_from(from, self.leadership.leader, effects);
            self.redo_reads(from, effects);
            self.queries.undo_from(from);
        }
        self.keep_answers();
        self.keep_parts();
        if mutant!(part_undecided) {
            self.send_parts(self.executor.last_executed(), effects);
        }
    }

    fn on_speculate(&mut self, effects: &mut Vec<Effect>) {
        let mut answers = std::mem::take(&mut self.answers);
        self.executor.speculate(&mut answers);
        self.answers = answers;
        effects.extend(self.executor.take_moved().into_iter().map(|mark| Effect::Moved { mark }));
        self.keep_answers();
        self.keep_parts();
        if mutant!(part_undecided) {
            self.send_parts(self.executor.last_executed(), effects);
        }
    }

    fn on_decided(&mut self, upto: Instance, effects: &mut Vec<Effect>) -> Instance {
        let mut answers = std::mem::take(&mut self.answers);
        let from = self.executor.decided();
        self.executor.decided_upto(upto, &mut answers);
        self.refill(upto, &mut answers);
        // Less, while a batch waits for what a neighbour leaves.
        let upto = self.executor.decided();
        self.answers = answers;
        self.keep_answers();
        self.keep_parts();
        effects.extend(self.executor.take_moved().into_iter().map(|mark| Effect::Moved { mark }));
        if self.group == PartitionId::DIRECTORY && upto > from {
            effects.push(Effect::DirectoryChanged);
        }
        self.outputs.decided(upto, self.now, self.leadership.leader, effects);
        self.samples.decided(upto, self.now);
        self.queries.decided(upto);
        self.send_parts(upto, effects);
        self.serve_asked();
        upto
    }

    fn on_leading(&mut self, ballot: Ballot, effects: &mut Vec<Effect>) {
        self.leadership.is_own = true;
        self.begin_elapsed(ballot);
        self.name_responders();
        self.queries.lead();
        self.leadership.learn(Some(ballot.replica));
        effects.push(Effect::Leading { ballot });
        for read in self.reads.take_asked() {
            self.on_read(read.origin, read.request, effects);
        }
    }

    fn on_following(&mut self, leader: Option<ReplicaId>, ballot: Ballot, effects: &mut Vec<Effect>) {
        let led = std::mem::take(&mut self.leadership.is_own);
        self.end_elapsed();
        self.name_responders();
        self.queries.follow();
        self.samples.follow();
        self.leadership.learn(leader);
        if led {
            self.outputs.deposed(leader, effects);
        }
        if leader.is_none() {
            let refusal = Refusal::NotLeader { hint: None };
            self.reads.take_asked().into_iter().for_each(|read| refuse(effects, read.origin, refusal));
        }
        effects.push(Effect::Following { leader, ballot });
    }
}
