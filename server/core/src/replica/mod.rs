//! One replica of one group: Paxos, the executor and the gate, composed.
//!
//! Pure: `step` takes the time and an input and returns effects. It pairs what clients asked with what their commands
//! came to, and lets nothing out before it is decided, released, and (for reads) read under a confirmed leadership. It
//! knows neither frames nor sockets nor files.

mod absorb;
mod limits;
mod outputs;
mod queries;
mod reads;
mod samples;
mod stalled_reads;
mod step;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use absorb::Stall;
use coppice_btree::KeyRange;
use coppice_client::wire::{PartitionId, Version};
use coppice_ordering::{
    Ballot, Batch, Config, ConfirmToken, Effect as Ordered, Gate, Input as Order, Instance, Lsn, Paxos,
    PlacementAcknowledger, ReadToken, RecoveredGroup, ReplicaId, SubmitError, Ticket, Time,
};
use limits::Limits;
pub use limits::{GATE_BYTES_MAX, GATE_MAX, READS_MAX};
use outputs::refuse;
use reads::{AskedRead, HeldRead};
pub use samples::{DecidedBatch, ProposedBatch, Samples};
use stalled_reads::StalledReads;
pub use step::{Effect, Input, QueryPart};

use crate::executor::{Executor, ExecutorSettings};
use crate::ids::wire_replica;
use crate::machine::directory::DirectoryState;
use crate::machine::entry;
use crate::machine::partition::PlacedTicket;
use crate::machine::{Answer, Machine};
use crate::request::{Origin, Refusal, Reply, Request};

/// What this replica proposed at one instance: who waits, and what came out.
#[derive(Default)]
struct PendingReplies {
    origins: Vec<Origin>,
    answers: Vec<Answer>,
}

/// A `Placed` that was not answered is told again after this: as soon as the coordinator would send its `Place` again.
const PLACED_INTERVAL: Duration = Duration::from_millis(50);

/// One replica of one group.
pub struct Replica {
    group: PartitionId,
    me: ReplicaId,
    paxos: Paxos,
    executor: Executor,
    /// Outputs, and since when they wait.
    gate: Gate<(Origin, Reply, Time)>,
    /// Bytes of the answers to packs in it; those to reads are charged to who asked.
    gate_bytes: usize,
    /// Of what is read here, but for the changes so far.
    version: Version,
    /// Tells the coordinator what is placed here.
    acknowledger: PlacementAcknowledger,
    /// Parts of queries at undecided instances, ascending.
    parts: VecDeque<(Instance, Box<QueryPart>)>,
    /// The newest instance of which other replicas give parts.
    others_respond: Instance,
    /// Up to here the followers were told what is decided because they give parts.
    announced: Instance,
    /// Since when the next batch waits for a neighbour's state, and when that is asked for again.
    stall: Option<Stall>,
    limits: Limits,
    stalled_reads: StalledReads,
    /// Buffer.
    placed: Vec<PlacedTicket>,
    /// Confirmations that the coordinator waits for, ascending.
    confirms: VecDeque<(ReadToken, ConfirmToken)>,
    /// Submitted and not yet proposed, oldest first; Paxos tells how many each instance took.
    queued: VecDeque<Origin>,
    work: BTreeMap<Instance, PendingReplies>,
    /// By token, ascending.
    reads: VecDeque<HeldRead>,
    asked: VecDeque<AskedRead>,
    /// The token that the reads of this turn share.
    read_token: ReadToken,
    ask_token: ReadToken,
    unconfirmed_reads: bool,
    unasked_reads: bool,
    /// A question for a position has stayed unanswered for too long, and stands.
    unheard: bool,
    leading: bool,
    leader: Option<ReplicaId>,
    leader_changes: u64,
    /// Proposed and not decided, ascending.
    undecided: VecDeque<ProposedBatch>,
    /// The newest record that somebody waits for, and how far its log is durable.
    written: Lsn,
    durable: Lsn,
    /// The batch accepted last: instance, bytes, commands.
    newest: (Instance, u64, u64),
    samples: Samples,
    now: Time,
    ordered: Vec<Ordered>,
    answers: Vec<Answer>,
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
            version: Version { replica: wire_replica(me), ..Version::default() },
            paxos,
            acknowledger: PlacementAcknowledger::new(PLACED_INTERVAL, decided, machine.last_ticket()),
            parts: VecDeque::new(),
            others_respond: Instance::ZERO,
            announced: Instance::ZERO,
            stall: None,
            limits: Limits::default(),
            stalled_reads: StalledReads::default(),
            placed: Vec::new(),
            confirms: VecDeque::new(),
            executor: Executor::new(machine, decided, executing),
            gate: Gate::new(decided, None),
            gate_bytes: 0,
            queued: VecDeque::new(),
            work: BTreeMap::new(),
            reads: VecDeque::new(),
            asked: VecDeque::new(),
            read_token: ReadToken(1),
            ask_token: ReadToken(1),
            unconfirmed_reads: false,
            unasked_reads: false,
            unheard: false,
            leading: false,
            leader: None,
            leader_changes: 0,
            undecided: VecDeque::new(),
            written: Lsn::default(),
            durable: Lsn::default(),
            newest: (Instance::ZERO, 0, 0),
            samples: Samples::default(),
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
        replica.version = Version { incarnation, began: now.0, ..replica.version };
        replica.ordered = ordered;
        replica.drain(now, effects);
        replica.note_stall(now, effects);
        replica
    }

    /// The group.
    pub fn group(&self) -> PartitionId {
        self.group
    }

    /// The Paxos core, to look at.
    pub fn paxos(&self) -> &Paxos {
        &self.paxos
    }

    /// The Paxos core's settings may change while it runs.
    pub fn paxos_mut(&mut self) -> &mut Paxos {
        &mut self.paxos
    }

    /// The executor, to look at.
    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    /// The executor's settings may change while it runs.
    pub fn executor_mut(&mut self) -> &mut Executor {
        &mut self.executor
    }

    /// Whether [`Input::Speculate`] would run anything that should run now. At a replica that follows not before its
    /// vote is out: nobody waits for what it executes, but its leader for its vote.
    pub fn may_speculate(&self) -> bool {
        self.executor.is_behind() || self.executor.may_speculate() && (self.leading || self.durable >= self.written)
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
        self.leading
    }

    /// The leader as far as known.
    pub fn leader(&self) -> Option<ReplicaId> {
        self.leader
    }

    /// How often the leader changed.
    pub fn leader_changes(&self) -> u64 {
        self.leader_changes
    }

    /// Submissions that wait for a batch.
    pub fn queued(&self) -> usize {
        self.queued.len()
    }

    /// Replies that wait behind the gate.
    pub fn held(&self) -> usize {
        self.gate.len()
    }

    /// The last ticket of the decided log.
    pub fn last_ticket(&self) -> Option<Ticket> {
        self.acknowledger.last_ticket()
    }

    /// Every ticket up to here is released, as far as this replica was told.
    pub fn released(&self) -> Option<Ticket> {
        self.acknowledger.watermark()
    }

    /// When `step` with `Tick` is next wanted.
    pub fn deadline(&self) -> Option<Time> {
        let stall = self.stall.map(|stall| stall.again);
        let behind = self.executor.is_behind().then_some(self.now);
        let mine = [stall, self.limits.again(), self.stalled_reads.ends(), self.asked_until(), behind];
        self.paxos.deadline().into_iter().chain(self.acknowledger.deadline()).chain(mine.into_iter().flatten()).min()
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
                self.durable = self.durable.max(lsn);
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
                self.acknowledger.installed(instance, machine.last_ticket());
                let undecided = self.executor.decided().next();
                self.executor.install(machine, instance);
                self.name_responders();
                self.redo_replaced_reads(undecided, effects);
                // Also what lies above the snapshot: it was executed on another state, and runs again.
                if !mutant!(part_survives_install) {
                    self.undo_parts(undecided);
                }
                self.gate.decided(instance);
                self.drop_work(effects);
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
            Input::TransferLeader { to, deadline } => self.order(now, Order::TransferLeader { to, deadline }, effects),
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
        self.note_stall(now, effects);
        self.check_stalled_reads(now, effects);
        self.give_up_asked(now, effects);
        self.let_out(effects);
    }

    fn on_request(&mut self, now: Time, origin: Origin, request: Request, effects: &mut Vec<Effect>) {
        if self.gate.len() >= GATE_MAX || self.gate_bytes >= GATE_BYTES_MAX {
            // The directory has lost its majority (protocol.md 4.4): what was promised to wait is held, and no more.
            return refuse(effects, origin, Refusal::Busy);
        }
        match request {
            Request::Pack { .. } | Request::Open { .. } if !self.has_keys() => {
                refuse(effects, origin, Refusal::WrongPartition);
            }
            Request::Pack { entry, commands, work, .. } => self.submit(now, origin, entry, (commands, work), effects),
            Request::Open { entry } => self.submit(now, origin, entry, (1, 1), effects),
            Request::Directory(command) => self.submit(now, origin, entry::directory(&command), (1, 1), effects),
            Request::Read(..) | Request::Range(_) | Request::Readings(_) | Request::Validate(..) => {
                self.on_read(origin, request, effects);
            }
        }
    }

    fn submit(
        &mut self,
        now: Time,
        origin: Origin,
        entry: bytes::Bytes,
        (commands, work): (u32, u32),
        effects: &mut Vec<Effect>,
    ) {
        match self.paxos.submit_work(now, entry, commands, work, &mut self.ordered) {
            Ok(()) => self.queued.push_back(origin),
            Err(SubmitError::NotLeader { hint }) => refuse(effects, origin, Refusal::NotLeader { hint }),
            Err(SubmitError::Busy) => refuse(effects, origin, Refusal::Busy),
        }
        self.drain(now, effects);
    }

    /// Confirms the reads of this turn with one round for all of them.
    fn on_turn_end(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if std::mem::take(&mut self.unconfirmed_reads) {
            let token = self.read_token;
            self.read_token = ReadToken(token.0 + 1);
            self.order(now, Order::Confirm(token), effects);
        }
        if std::mem::take(&mut self.unasked_reads) {
            let token = self.ask_token;
            self.ask_token = ReadToken(token.0 + 1);
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
                    self.written = lsn;
                }
                effects.push(Effect::Persist { lsn, record });
            }
            Ordered::Send { to, message } => effects.push(Effect::Send { to, message }),
            Ordered::Accepted { instance, batch, .. } => {
                self.newest = (instance, batch.len_bytes() as u64, u64::from(batch.count()));
                self.on_accepted(instance, batch, effects);
            }
            Ordered::Proposed { instance, submissions } => {
                let origins = self.queued.drain(..submissions as usize).collect();
                self.work.entry(instance).or_default().origins = origins;
                self.note_proposed(instance);
            }
            Ordered::Refused { submissions } => {
                let hint = self.leader;
                for origin in self.queued.drain(..submissions as usize) {
                    refuse(effects, origin, Refusal::NotLeader { hint });
                }
            }
            Ordered::Confirmed { upto } => self.on_confirmed(upto, effects),
            Ordered::Unconfirmed { upto } => self.on_unconfirmed(upto, effects),
            Ordered::Position { upto, instance } => {
                self.unheard = false;
                let asked = self.asked.iter_mut().take_while(|read| read.token <= upto);
                asked.for_each(|read| read.position = read.position.or(Some(instance)));
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
            Ordered::Released { watermark } => {
                self.note_released(watermark);
            }
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
            self.work.split_off(&from).into_values().for_each(|work| self.tell_unsure(work, effects));
            self.redo_reads(from, effects);
            self.undo_parts(from);
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
        let later = self.work.split_off(&upto.next());
        for (instance, work) in std::mem::replace(&mut self.work, later) {
            self.pair(instance, work, effects);
        }
        self.note_decided(upto);
        self.gate.decided(upto);
        self.acknowledger.decided(upto);
        self.send_parts(upto, effects);
        self.serve_asked();
        upto
    }

    fn on_leading(&mut self, ballot: Ballot, effects: &mut Vec<Effect>) {
        self.leading = true;
        self.name_responders();
        self.acknowledger.lead();
        self.note_leader(Some(ballot.replica));
        effects.push(Effect::Leading { ballot });
        for read in std::mem::take(&mut self.asked) {
            self.on_read(read.origin, read.request, effects);
        }
    }

    fn on_following(&mut self, leader: Option<ReplicaId>, ballot: Ballot, effects: &mut Vec<Effect>) {
        let led = std::mem::take(&mut self.leading);
        self.name_responders();
        self.acknowledger.follow();
        self.confirms.clear();
        self.undecided.clear();
        self.note_leader(leader);
        if led {
            for work in self.work.values_mut() {
                for origin in work.origins.drain(..) {
                    if mutant!(refused_after_propose) {
                        refuse(effects, origin, Refusal::NotLeader { hint: leader });
                        continue;
                    }
                    effects.push(Effect::Reply { origin, reply: Reply::Unsure { hint: leader } });
                }
            }
        }
        if leader.is_none() {
            for read in self.asked.drain(..) {
                refuse(effects, read.origin, Refusal::NotLeader { hint: None });
            }
        }
        effects.push(Effect::Following { leader, ballot });
    }

    fn note_leader(&mut self, leader: Option<ReplicaId>) {
        if leader.is_some() && leader != self.leader {
            self.leader_changes += 1;
        }
        self.leader = leader;
    }
}
