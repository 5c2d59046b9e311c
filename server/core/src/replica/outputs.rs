//! What leaves a replica for those who wait at it: answers beside their origins, behind the gate, or a word of why
//! there is none.

use std::collections::{BTreeMap, VecDeque};

use coppice_ordering::{Gate, Instance, ReplicaId, Ticket, Time};

use super::samples::Sampler;
use super::{Effect, GATE_BYTES_MAX, GATE_MAX, Replica};
use crate::machine::{Answer, Outcome};
use crate::request::{Origin, Refusal, Reply};

/// What this replica proposed at one instance: who waits, and what came out.
#[derive(Default)]
struct PendingReplies {
    origins: Vec<Origin>,
    answers: Vec<Answer>,
}

/// Who waits for what was submitted, and what may not leave yet.
pub(super) struct Outputs {
    /// Submitted and not yet proposed, oldest first; Paxos tells how many each instance took.
    queued: VecDeque<Origin>,
    /// Proposed and not decided.
    pending: BTreeMap<Instance, PendingReplies>,
    /// Outputs, and since when they wait.
    gate: Gate<(Origin, Reply, Time)>,
    /// Bytes of the answers to packs in the gate; those to reads are charged to who asked.
    gate_bytes: usize,
}

impl Outputs {
    /// Nobody waits, and everything up to `decided` has left.
    pub(super) fn new(decided: Instance) -> Outputs {
        let gate = Gate::new(decided, None);
        Outputs { queued: VecDeque::new(), pending: BTreeMap::new(), gate, gate_bytes: 0 }
    }

    /// Submissions that wait for a batch.
    pub(super) fn queued(&self) -> usize {
        self.queued.len()
    }

    /// Replies that wait behind the gate.
    pub(super) fn held(&self) -> usize {
        self.gate.len()
    }

    /// Whether the gate holds as much as it may: the directory has lost its majority (protocol.md 4.4).
    pub(super) fn are_full(&self) -> bool {
        self.gate.len() >= GATE_MAX || self.gate_bytes >= GATE_BYTES_MAX
    }

    pub(super) fn submitted(&mut self, origin: Origin) {
        self.queued.push_back(origin);
    }

    /// The oldest submissions, which Paxos has refused.
    pub(super) fn take_queued(&mut self, submissions: usize) -> impl Iterator<Item = Origin> {
        self.queued.drain(..submissions)
    }

    /// The oldest submissions are proposed at `instance`.
    pub(super) fn proposed(&mut self, instance: Instance, submissions: usize) {
        self.pending.entry(instance).or_default().origins = self.queued.drain(..submissions).collect();
    }

    /// An answer waits beside the origins of its instance.
    pub(super) fn answered(&mut self, answer: Answer) {
        self.pending.entry(answer.instance).or_default().answers.push(answer);
    }

    /// Everything up to here is decided and executed: its answers go to the gate.
    pub(super) fn decided(&mut self, upto: Instance, now: Time, leader: Option<ReplicaId>, effects: &mut Vec<Effect>) {
        let later = self.pending.split_off(&upto.next());
        for (instance, pending) in std::mem::replace(&mut self.pending, later) {
            self.pair(instance, pending, (now, leader), effects);
        }
        self.gate.decided(upto);
    }

    /// The k-th submission of an instance gets the k-th answer: one submission is one entry. Whoever waits for an
    /// answer that is not known here is told so.
    fn pair(
        &mut self,
        instance: Instance,
        pending: PendingReplies,
        (now, leader): (Time, Option<ReplicaId>),
        effects: &mut Vec<Effect>,
    ) {
        if pending.origins.len() != pending.answers.len() {
            return tell_unsure(pending, leader, effects);
        }
        for (origin, answer) in pending.origins.into_iter().zip(pending.answers) {
            let reply = match answer.outcome {
                Outcome::Pack(body) => Reply::Pack(body),
                Outcome::SessionExpired => Reply::Refused(Refusal::SessionExpired),
                Outcome::Closed => Reply::Refused(Refusal::WrongPartition),
                Outcome::Opened(session) => Reply::Opened(session),
                Outcome::Directory(reply) => Reply::Directory(reply),
                Outcome::Nothing => continue,
            };
            self.gate_bytes += pack_bytes(&reply);
            self.hold(instance, answer.last_ticket, origin, reply, now);
        }
    }

    /// A reply waits until its instance is decided, and its ticket and all before it are released.
    pub(super) fn hold(&mut self, instance: Instance, ticket: Option<Ticket>, origin: Origin, reply: Reply, now: Time) {
        self.gate.hold(instance, ticket, (origin, reply, now));
    }

    /// Every ticket up to here is released.
    pub(super) fn released(&mut self, watermark: Ticket) {
        self.gate.released(watermark);
    }

    /// A snapshot was installed: those who wait are told that it may have happened, for its results are not known here.
    pub(super) fn installed(&mut self, instance: Instance, leader: Option<ReplicaId>, effects: &mut Vec<Effect>) {
        self.gate.decided(instance);
        self.undo_from(Instance::ZERO, leader, effects);
    }

    /// What was executed from `from` on was taken back: whoever waits for it is told that it is not known here what
    /// comes of it.
    pub(super) fn undo_from(&mut self, from: Instance, leader: Option<ReplicaId>, effects: &mut Vec<Effect>) {
        let undone = self.pending.split_off(&from).into_values();
        undone.for_each(|pending| tell_unsure(pending, leader, effects));
    }

    /// Only reads stand in the gate above the decided instance: whoever waits for one from `from` on is refused. Their
    /// request is gone, but nothing was done.
    pub(super) fn refuse_reads_from(&mut self, from: Instance, refusal: Refusal, effects: &mut Vec<Effect>) {
        self.gate.undo_from(from).for_each(|(origin, ..)| refuse(effects, origin, refusal));
    }

    /// This replica leads no more: what it proposed may yet be decided, by the next leader.
    pub(super) fn deposed(&mut self, leader: Option<ReplicaId>, effects: &mut Vec<Effect>) {
        for origin in self.pending.values_mut().flat_map(|pending| pending.origins.drain(..)) {
            if mutant!(refused_after_propose) {
                refuse(effects, origin, Refusal::NotLeader { hint: leader });
                continue;
            }
            effects.push(Effect::Reply { origin, reply: Reply::Unsure { hint: leader } });
        }
    }

    /// What may leave does.
    pub(super) fn let_out(&mut self, now: Time, samples: &mut Sampler, effects: &mut Vec<Effect>) {
        while let Some((origin, reply, since)) = self.gate.pop() {
            self.gate_bytes = self.gate_bytes.saturating_sub(pack_bytes(&reply));
            samples.released_after(now.since(since));
            effects.push(Effect::Reply { origin, reply });
        }
    }

    /// Everybody asks elsewhere. What was proposed, and what stands behind the gate, may be decided all the same.
    fn retire(&mut self, effects: &mut Vec<Effect>) {
        let unsure = |origin| Effect::Reply { origin, reply: Reply::Unsure { hint: None } };
        effects.extend(self.pending.values_mut().flat_map(|pending| pending.origins.drain(..)).map(unsure));
        for (origin, reply, _) in self.gate.undo_from(Instance::ZERO) {
            match reply {
                Reply::Pack(_) | Reply::Opened(_) | Reply::Directory(_) => effects.push(unsure(origin)),
                _ => refuse(effects, origin, Refusal::NotLeader { hint: None }),
            }
        }
    }
}

impl Replica {
    /// The replica is removed: whoever waits here asks elsewhere now, not after its timeout.
    pub fn retire(&mut self, effects: &mut Vec<Effect>) {
        if mutant!(removed_in_silence) {
            return;
        }
        self.outputs.retire(effects);
        let waiting = self.reads.take_origins();
        let queued = self.outputs.queued();
        waiting.into_iter().chain(self.outputs.take_queued(queued)).for_each(|origin| {
            refuse(effects, origin, Refusal::NotLeader { hint: None });
        });
    }

    /// Answers wait beside the origins of their instance; those that nobody here waits for are dropped.
    pub(super) fn keep_answers(&mut self) {
        let keep = self.paxos.is_leader();
        for answer in self.answers.drain(..).filter(|_| keep) {
            self.outputs.answered(answer);
        }
    }
}

fn tell_unsure(pending: PendingReplies, leader: Option<ReplicaId>, effects: &mut Vec<Effect>) {
    let unsure = |origin| Effect::Reply { origin, reply: Reply::Unsure { hint: leader } };
    effects.extend(pending.origins.into_iter().map(unsure));
}

fn pack_bytes(reply: &Reply) -> usize {
    if let Reply::Pack(answer) = reply { answer.len() } else { 0 }
}

pub(super) fn refuse(effects: &mut Vec<Effect>, origin: Origin, refusal: Refusal) {
    effects.push(Effect::Reply { origin, reply: Reply::Refused(refusal) });
}
