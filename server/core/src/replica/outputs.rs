//! What leaves a replica for those who wait at it: answers beside their origins, behind the gate, or a word of why
//! there is none.

use coppice_ordering::Instance;

use super::samples::SAMPLES_MAX;
use super::{Effect, PendingReplies, Replica};
use crate::machine::Outcome;
use crate::request::{Origin, Refusal, Reply};

impl Replica {
    /// The replica is removed: whoever waits here asks elsewhere now, not after its timeout. What was proposed, and
    /// what stands behind the gate, may be decided all the same.
    pub fn retire(&mut self, effects: &mut Vec<Effect>) {
        if mutant!(removed_in_silence) {
            return;
        }
        let unsure = |origin| Effect::Reply { origin, reply: Reply::Unsure { hint: None } };
        effects.extend(self.work.values_mut().flat_map(|work| work.origins.drain(..)).map(unsure));
        for (origin, reply, _) in self.gate.undo_from(Instance::ZERO) {
            match reply {
                Reply::Pack(_) | Reply::Opened(_) | Reply::Directory(_) => effects.push(unsure(origin)),
                _ => refuse(effects, origin, Refusal::NotLeader { hint: None }),
            }
        }
        let reads = self.reads.drain(..).map(|read| read.origin).chain(self.asked.drain(..).map(|read| read.origin));
        reads.chain(self.queued.drain(..)).for_each(|origin| {
            refuse(effects, origin, Refusal::NotLeader { hint: None });
        });
    }

    /// Answers wait beside the origins of their instance; those that nobody here waits for are dropped.
    pub(super) fn keep_answers(&mut self) {
        let keep = self.paxos.is_leader();
        for answer in self.answers.drain(..) {
            if keep {
                self.work.entry(answer.instance).or_default().answers.push(answer);
            }
        }
    }

    /// The k-th submission of an instance gets the k-th answer: one submission is one entry. Whoever waits for an
    /// answer that is not known here is told so.
    pub(super) fn pair(&mut self, instance: Instance, work: PendingReplies, effects: &mut Vec<Effect>) {
        if work.origins.len() != work.answers.len() {
            return self.tell_unsure(work, effects);
        }
        for (origin, answer) in work.origins.into_iter().zip(work.answers) {
            let reply = match answer.outcome {
                Outcome::Pack(body) => Reply::Pack(body),
                Outcome::SessionExpired => Reply::Refused(Refusal::SessionExpired),
                Outcome::Closed => Reply::Refused(Refusal::WrongPartition),
                Outcome::Opened(session) => Reply::Opened(session),
                Outcome::Directory(reply) => Reply::Directory(reply),
                Outcome::Nothing => continue,
            };
            self.gate_bytes += pack_bytes(&reply);
            self.gate.hold(instance, answer.last_ticket, (origin, reply, self.now));
        }
    }

    /// Those who wait when a snapshot comes are told that it may have happened: its results are not known here.
    pub(super) fn drop_work(&mut self, effects: &mut Vec<Effect>) {
        std::mem::take(&mut self.work).into_values().for_each(|work| self.tell_unsure(work, effects));
    }

    /// Whoever waits for this is told that it is not known here what came of it.
    pub(super) fn tell_unsure(&self, work: PendingReplies, effects: &mut Vec<Effect>) {
        let unsure = |origin| Effect::Reply { origin, reply: Reply::Unsure { hint: self.leader } };
        effects.extend(work.origins.into_iter().map(unsure));
    }

    pub(super) fn let_out(&mut self, effects: &mut Vec<Effect>) {
        while let Some((origin, reply, since)) = self.gate.pop() {
            self.gate_bytes = self.gate_bytes.saturating_sub(pack_bytes(&reply));
            if self.now > since && self.samples.gate_waits.len() < SAMPLES_MAX {
                self.samples.gate_waits.push(self.now.since(since));
            }
            effects.push(Effect::Reply { origin, reply });
        }
    }
}

fn pack_bytes(reply: &Reply) -> usize {
    if let Reply::Pack(answer) = reply { answer.len() } else { 0 }
}

pub(super) fn refuse(effects: &mut Vec<Effect>, origin: Origin, refusal: Refusal) {
    effects.push(Effect::Reply { origin, reply: Reply::Refused(refusal) });
}
