//! Runs batches on the machine before they are decided, and takes back what was decided differently (protocol.md 2).
//!
//! Pure. It holds the last executed state, the undo of everything above the decided instance, and the batches that
//! arrived ahead of a gap. It does not know ballots beyond comparing batches, nor who waits for an answer.

use std::collections::{BTreeMap, VecDeque};

use coppice_btree::SettleProgress;
use coppice_ordering::{Batch, Instance, ReplicaId, Ticket};

use crate::machine::partition::{AbsorbedState, AwaitedState, Expiry, PlacedTicket, Values};
use crate::machine::{Answer, Machine, Mark};

/// Instances that may be executed or waiting above the decided one. The proposer's window is far below it; a follower
/// that hears of more drops them and catches up later.
pub const SPECULATIVE_INSTANCES_MAX: usize = 1_024;

/// How an executor works; none of it changes what comes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutorSettings {
    /// Batches run before they are decided.
    pub speculation: bool,
    /// What can run speculatively waits for [`Executor::speculate`], so that the driver sends and writes first what the
    /// batch is ordered by.
    pub deferred: bool,
    /// See [`SPECULATIVE_INSTANCES_MAX`].
    pub ahead_max: usize,
    /// Work of one step, in operations: what is left goes on in the next one ([`Executor::begin_step`]).
    pub step_work_max: u64,
}

/// The same for a node: a few milliseconds, which others wait for at most.
pub const STEP_WORK_MAX: u64 = 4_096;

/// Bytes of answers to batches that ran speculatively, and of what these wrote beyond what they carry; beyond, the next
/// waits until some are decided.
const SPECULATIVE_BYTES_MAX: usize = 16 << 20;

/// A view of the decided state is made anew when so many times what that costs was executed since the last one.
const VIEW_WORK_SHARE: u64 = 8;

/// Or when it was asked for so often that each time costs only so much.
const VIEW_WORK_EACH: u64 = 256;

impl Default for ExecutorSettings {
    fn default() -> ExecutorSettings {
        ExecutorSettings {
            speculation: true,
            deferred: false,
            ahead_max: SPECULATIVE_INSTANCES_MAX,
            step_work_max: u64::MAX,
        }
    }
}

impl ExecutorSettings {
    /// With or without speculation.
    pub fn speculating(speculation: bool) -> ExecutorSettings {
        ExecutorSettings { speculation, ..ExecutorSettings::default() }
    }
}

/// Digests remembered. At 20 000 instances per second and the default interval it is a second's worth: more than two
/// replicas are apart while both serve.
const DIGESTS_KEPT: usize = 20;

/// One instance above the decided one that ran on the last executed state.
struct ExecutedBatch {
    batch: Batch,
    mark: Mark,
    /// Bytes of its answers, and of what it wrote beyond what it carries.
    bytes: usize,
    /// Of the state after it (hazards.md E6).
    digest: u64,
}

/// What an executor did, for its metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecutorCounters {
    /// Times that at least one instance was taken back.
    pub rollbacks: u64,
    /// Commands taken back.
    pub undone_commands: u64,
    /// Commands executed, repeated executions after a rollback included.
    pub executed_commands: u64,
}

/// Executes one group's log on its machine.
pub struct Executor {
    machine: Machine,
    /// Everything up to here is decided and executed as decided.
    decided: Instance,
    /// What ran above `decided`, in order: `decided + 1 ..= last_executed`.
    executed: VecDeque<ExecutedBatch>,
    /// Accepted above `last_executed`, beyond a gap or not yet run.
    waiting: BTreeMap<Instance, Batch>,
    how: ExecutorSettings,
    /// A digest is taken every so many instances; 0: never.
    digest_interval: u64,
    /// The newest digests of decided states, ascending: replicas are compared at an instance that both have.
    digests: VecDeque<(Instance, u64)>,
    /// Of the state of `decided`, when something above it ran last.
    decided_digest: u64,
    counters: ExecutorCounters,
    /// Marks of decided batches that moved boundaries, not yet taken by [`Executor::take_moved`].
    moved: Vec<Mark>,
    /// The instance that cannot run yet, and what it needs: everything behind it waits (protocol.md 8).
    awaits: Option<(Instance, AwaitedState)>,
    /// Everything up to here is decided; above `decided` only while something is awaited.
    due: Instance,
    /// Those of all in `executed`.
    speculative_bytes: usize,
    /// Work done in this step, and since the start.
    step_work: u64,
    work: u64,
    view: Option<View>,
}

/// The state of a decided instance, for stale ranges.
struct View {
    at: Instance,
    machine: Machine,
    /// What it cost to make, how much work had been done then, and how often it was asked for since.
    cost: u64,
    made_at: u64,
    asked: u64,
}

impl Executor {
    /// An executor whose machine holds the state of `decided`.
    pub fn new(machine: Machine, decided: Instance, how: ExecutorSettings) -> Executor {
        Executor {
            decided_digest: machine.digest(),
            machine,
            decided,
            executed: VecDeque::new(),
            waiting: BTreeMap::new(),
            how,
            digest_interval: 1_000,
            digests: VecDeque::new(),
            counters: ExecutorCounters::default(),
            moved: Vec::new(),
            awaits: None,
            due: decided,
            speculative_bytes: 0,
            step_work: 0,
            work: 0,
            view: None,
        }
    }

    /// The last decided and executed instance.
    pub fn decided(&self) -> Instance {
        self.decided
    }

    /// Everything up to here is decided: at [`Executor::decided`], or still to be executed.
    pub fn due(&self) -> Instance {
        self.due.max(self.decided)
    }

    /// Instances that it takes ahead of the decided one.
    pub fn ahead_max(&self) -> usize {
        self.how.ahead_max
    }

    /// The last executed instance, decided or not.
    pub fn last_executed(&self) -> Instance {
        Instance(self.decided.0 + self.executed.len() as u64)
    }

    /// The state as last executed.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// See [`coppice_btree::Tree::settle`]. The state stays what it is.
    pub fn settle(&mut self, from: &[u8], nodes: usize) -> SettleProgress {
        self.machine.settle(from, nodes)
    }

    /// See [`Machine::set_responders`].
    pub fn set_responders(&mut self, responders: Option<Box<[ReplicaId]>>) {
        self.machine.set_responders(responders);
    }

    /// Of a partition as last executed: when keys expire.
    pub fn expiry_mut(&mut self) -> Option<&mut Expiry> {
        match &mut self.machine {
            Machine::Partition(partition) => Some(partition.expiry_mut()),
            Machine::Directory(_) => None,
        }
    }

    /// The state as last executed, to plant a bug in.
    #[cfg(feature = "mutants")]
    pub fn machine_mut(&mut self) -> &mut Machine {
        &mut self.machine
    }

    /// Counters since the start.
    pub fn counters(&self) -> ExecutorCounters {
        self.counters
    }

    /// Turns speculation on or off. What already ran speculatively stays until it is decided or taken back.
    pub fn set_speculation(&mut self, on: bool) {
        self.how.speculation = on;
    }

    /// An acceptor accepted `batch` at `instance`. Runs it if it is next, takes back what it contradicts.
    ///
    /// Returns the lowest instance that was taken back, if any: answers from there on must not leave.
    pub fn accepted(&mut self, instance: Instance, batch: Batch, answers: &mut Vec<Answer>) -> Option<Instance> {
        if instance <= self.decided {
            return None;
        }
        // Another batch there may need nothing.
        self.awaits = self.awaits.filter(|(at, _)| *at != instance);
        let mut rolled_back = None;
        if instance <= self.last_executed() {
            let at = (instance.0 - self.decided.0 - 1) as usize;
            // The same value under a higher ballot changes nothing. Compared by content: an instance number proves
            // nothing about what it holds (hazards.md SP6).
            if self.executed[at].batch == batch || mutant!(match_by_instance) {
                return None;
            }
            self.take_back_to(at);
            rolled_back = Some(instance);
        }
        self.waiting.insert(instance, batch);
        if self.waiting.len() > self.how.ahead_max {
            // The lowest run first: they must not find the room taken by what waits for them. What is dropped is given
            // again when it is decided.
            self.waiting.pop_last();
        }
        if self.how.speculation && !self.how.deferred {
            self.run_contiguous(None, answers);
        }
        rolled_back
    }

    /// Whether [`Executor::speculate`] would run anything.
    pub fn may_speculate(&self) -> bool {
        let room = self.executed.len() < self.how.ahead_max && self.awaits.is_none();
        let room = room && self.speculative_bytes < SPECULATIVE_BYTES_MAX;
        self.how.speculation && room && self.waiting.contains_key(&self.last_executed().next())
    }

    /// Whoever drives the replica begins a step: work is counted from here on.
    pub fn begin_step(&mut self) {
        self.step_work = 0;
    }

    /// Whether this step has done all the work that it may.
    pub fn has_worked_enough(&self) -> bool {
        self.step_work >= self.how.step_work_max
    }

    /// Whether something decided waits only for the next step.
    pub fn is_behind(&self) -> bool {
        self.has_worked_enough() && self.awaits.is_none() && self.decided < self.due
    }

    /// Runs what can run before it is decided.
    pub fn speculate(&mut self, answers: &mut Vec<Answer>) {
        if self.how.speculation {
            self.run_contiguous(None, answers);
        }
    }

    /// Everything up to `upto` is decided, and was given to [`Executor::accepted`] with its decided value. It is
    /// executed too, unless something is awaited: see [`Executor::decided`].
    pub fn decided_upto(&mut self, upto: Instance, answers: &mut Vec<Answer>) {
        self.due = self.due.max(upto);
        self.run_contiguous(Some(self.due), answers);
        while self.decided < self.due {
            let Some(executed) = self.executed.pop_front() else { break };
            self.machine.confirm(&executed.mark, self.executed.front().map(|next| &next.mark));
            self.decided = self.decided.next();
            self.speculative_bytes -= executed.bytes;
            failpoint!("batch.decided");
            if Machine::moves_boundaries(&executed.mark) && !acts_early(&executed.mark) {
                self.moved.push(executed.mark);
            }
            self.decided_digest = executed.digest;
            if self.digest_interval > 0 && self.decided.0.is_multiple_of(self.digest_interval) {
                if self.digests.len() == DIGESTS_KEPT {
                    self.digests.pop_front();
                }
                self.digests.push_back((self.decided, executed.digest));
            }
        }
    }

    /// Decided batches that moved boundaries: what follows from that is done now. Handed out once.
    pub fn take_moved(&mut self) -> Vec<Mark> {
        std::mem::take(&mut self.moved)
    }

    /// The instance that cannot run yet, and what it needs.
    pub fn awaits(&self) -> Option<(Instance, AwaitedState)> {
        self.awaits
    }

    /// Whether the instance that cannot run yet is decided.
    pub fn is_stalled(&self) -> bool {
        self.awaits.is_some_and(|(at, _)| at <= self.due)
    }

    /// What a neighbour leaves is here: what waited for it runs.
    pub fn absorb(&mut self, left: AbsorbedState, answers: &mut Vec<Answer>) {
        let partition = left.partition;
        if self.machine.absorb(left) && self.awaits.is_some_and(|(_, awaited)| awaited.partition == partition) {
            self.awaits = None;
            if self.how.speculation {
                self.run_contiguous(None, answers);
            }
        }
    }

    /// The newest digest of a decided state, and its instance: equal on all replicas.
    pub fn digest(&self) -> Option<(Instance, u64)> {
        self.digests.back().copied()
    }

    /// The digest of the decided state, and its instance.
    pub fn digest_now(&self) -> (Instance, u64) {
        let last_executed_is_decided = self.executed.is_empty();
        (self.decided, if last_executed_is_decided { self.machine.digest() } else { self.decided_digest })
    }

    /// The newest few, ascending by instance: two replicas under load have some in common.
    pub fn digests(&self) -> impl Iterator<Item = (Instance, u64)> + '_ {
        self.digests.iter().copied()
    }

    /// Memory of the undo of what is executed and undecided; linear in the changes that it would take back.
    pub fn undo_bytes(&self) -> u64 {
        self.machine.undo_bytes(self.executed.iter().map(|executed| &executed.mark))
    }

    /// A digest is taken every so many instances; 0: never.
    pub fn set_digest_interval(&mut self, instances: u64) {
        self.digest_interval = instances;
    }

    /// The last ticket placed in what was executed.
    pub fn last_ticket(&self) -> Option<Ticket> {
        self.machine.last_ticket()
    }

    /// Moves the tickets that counted since the last call to the end of `placed`.
    pub fn take_placed(&mut self, placed: &mut Vec<PlacedTicket>) {
        self.machine.take_placed(placed);
    }

    fn run_contiguous(&mut self, upto: Option<Instance>, answers: &mut Vec<Answer>) {
        loop {
            let next = self.last_executed().next();
            if upto.is_some_and(|upto| next > upto) || self.executed.len() >= self.how.ahead_max {
                return;
            }
            let ahead = upto.is_none() && self.speculative_bytes >= SPECULATIVE_BYTES_MAX;
            if self.awaits.is_some() || ahead || self.has_worked_enough() {
                return;
            }
            let Some(batch) = self.waiting.remove(&next) else { return };
            let known = answers.len();
            let mark = self.machine.execute(next, &batch, answers);
            if let Some(awaited) = Machine::awaits(&mark) {
                self.machine.undo(mark);
                answers.truncate(known);
                self.waiting.insert(next, batch);
                self.awaits = Some((next, awaited));
                return;
            }
            self.counters.executed_commands += u64::from(batch.count());
            let digest = self.machine.digest();
            if acts_early(&mark) {
                self.moved.push(mark.clone());
            }
            let bytes = mark.written() + answers[known..].iter().map(Answer::bytes).sum::<usize>();
            self.speculative_bytes += bytes;
            self.note_work(mark.work());
            self.executed.push_back(ExecutedBatch { batch, mark, bytes, digest });
            failpoint!("batch.executed");
        }
    }

    /// Takes back `executed[at..]`, newest first. What comes after the contradicted instance waits to run again: a new
    /// leader decides it again, or overwrites it too.
    fn take_back_to(&mut self, at: usize) {
        self.counters.rollbacks += 1;
        // What waited ran behind what is taken back. It is looked at again when its turn comes.
        if !mutant!(awaits_survives_undo) {
            self.awaits = None;
        }
        while self.executed.len() > at {
            let instance = self.last_executed();
            let Some(executed) = self.executed.pop_back() else { return };
            self.counters.undone_commands += u64::from(executed.batch.count());
            self.speculative_bytes -= executed.bytes;
            // A panic on the way ends the process: nobody goes on with what is half undone (hazards.md SP10).
            let left_half_undone = mutant!(catch_panic) && self.executed.len() == at;
            if !left_half_undone {
                self.machine.undo(executed.mark);
            }
            self.waiting.insert(instance, executed.batch);
            failpoint!("undo.batch");
        }
    }

    /// The decided state, as its own value: a copy of what was last executed (O(1) for the tree) with the undecided
    /// part taken back.
    pub fn decided_state(&self) -> Machine {
        let mut state = self.machine.copy();
        for executed in self.executed.iter().rev() {
            state.undo(executed.mark.clone());
        }
        state.forget_undo();
        state
    }

    fn note_work(&mut self, work: u64) {
        self.step_work += work;
        self.work += work;
        // It shares the tree's nodes, which are copied as long as it lasts.
        let old = |view: &View| self.work - view.made_at > VIEW_WORK_SHARE * (view.cost + STEP_WORK_MAX);
        if self.view.as_ref().is_some_and(old) {
            self.view = None;
        }
    }

    /// Keys of the decided state, without making it. Not where boundaries have moved above it.
    pub fn get_all_decided<'k, K: Iterator<Item = &'k [u8]>>(
        &mut self,
        keys: impl Fn() -> K,
        bytes_max: usize,
    ) -> Option<Option<Values>> {
        if self.executed.iter().any(|executed| Machine::moves_boundaries(&executed.mark)) {
            return None;
        }
        match &mut self.machine {
            Machine::Partition(partition) => Some(partition.get_all_before(keys, bytes_max)),
            Machine::Directory(_) => None,
        }
    }

    /// The state of a decided instance of late for reading only, and that instance. Making one costs what is undecided,
    /// so under load one serves for a while: asking costs `VIEW_WORK_EACH` at most, on average.
    pub fn recent_view(&mut self) -> (&Machine, Instance) {
        if self.executed.is_empty() {
            self.view = None;
            return (&self.machine, self.decided);
        }
        let cost = self.machine.partition().map_or(0, |partition| partition.undo_len() as u64);
        let (decided, work) = (self.decided, self.work);
        let serves = |view: &View| {
            let due = view.asked * VIEW_WORK_EACH >= cost || work - view.made_at >= VIEW_WORK_SHARE * cost;
            view.at == decided || !due
        };
        let view = self.view.take().filter(serves);
        let view = view.unwrap_or_else(|| {
            let machine = self.decided_view();
            View { at: decided, machine, cost, made_at: work, asked: 0 }
        });
        let view = self.view.insert(View { asked: view.asked + 1, ..view });
        (&view.machine, view.at)
    }

    /// The decided state for reading only: without the sessions, which would have to be copied.
    pub fn decided_view(&self) -> Machine {
        let mut state = self.machine.view();
        for executed in self.executed.iter().rev() {
            state.undo_view(&executed.mark);
        }
        state
    }

    /// Goes on from a snapshot that was installed at `instance`.
    pub fn install(&mut self, mut machine: Machine, instance: Instance) {
        if !mutant!(validates_over_snapshot) {
            machine.follow(&self.machine);
        }
        self.machine = machine;
        self.decided_digest = self.machine.digest();
        self.view = None;
        self.speculative_bytes = 0;
        self.decided = instance;
        self.due = self.due.max(instance);
        self.awaits = self.awaits.filter(|(at, _)| *at > instance);
        self.executed.clear();
        self.waiting = self.waiting.split_off(&instance.next());
    }
}

/// What follows from a batch waits for its decision: anything before that may be taken back (hazards.md SP8, MV12).
fn acts_early(mark: &Mark) -> bool {
    let forks = !Machine::forks(mark).is_empty() && mutant!(fork_undecided);
    forks || Machine::seals(mark) && mutant!(merge_undecided)
}
