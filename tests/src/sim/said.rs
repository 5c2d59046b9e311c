//! What goes into a step and what comes out of it, as a number: the hash of a run is over these, so that two runs which
//! differ in one byte of a message or an answer are told apart.

use std::fmt::{self, Debug, Write as _};
use std::hash::{Hash, Hasher};

use coppice_core::replica::{Effect, Input};
use coppice_core::request::{Origin, Reply};

use super::node::show;
use super::trace::Fingerprint;

/// Takes words in without keeping them.
struct Words<'a>(&'a mut Fingerprint);

impl fmt::Write for Words<'_> {
    fn write_str(&mut self, words: &str) -> fmt::Result {
        self.0.write(words.as_bytes());
        Ok(())
    }
}

/// What a value says of itself.
pub fn words(what: &impl Debug, hash: &mut Fingerprint) {
    // A fingerprint takes everything.
    _ = write!(Words(hash), "{what:?}");
}

/// An input of a replica.
pub fn input(input: &Input) -> u64 {
    let mut hash = Fingerprint::default();
    match input {
        Input::Peer { from, message } => (1_u8, from, message).hash(&mut hash),
        Input::Persisted(lsn) => (2_u8, lsn).hash(&mut hash),
        Input::Installed { machine, instance, configuration, configured_at, promised } => {
            (3_u8, machine.digest(), instance, configuration, configured_at, promised).hash(&mut hash);
        }
        Input::Inherit(left) => words(&(left.partition, left.seal), &mut hash),
        other => words(other, &mut hash),
    }
    hash.finish()
}

/// What a replica asks for.
pub fn effects(effects: &[Effect]) -> u64 {
    let mut hash = Fingerprint::default();
    for effect in effects {
        match effect {
            Effect::Persist { lsn, record } => (1_u8, lsn, record).hash(&mut hash),
            Effect::Send { to, message } => (2_u8, to, message).hash(&mut hash),
            Effect::Reply { origin, reply } => answer(*origin, reply, &mut hash),
            Effect::Part(part) => {
                words(&(part.ticket, &part.position, &part.share), &mut hash);
            }
            other => hash.write(show(other).as_bytes()),
        }
    }
    hash.finish()
}

fn answer(origin: Origin, reply: &Reply, hash: &mut Fingerprint) {
    origin.hash(hash);
    match reply {
        Reply::Pack(bytes) => hash.write(bytes),
        Reply::Opened(session) => words(session, hash),
        Reply::Read { instance, values, left_out, .. } => words(&(instance, values, left_out), hash),
        Reply::Range { instance, range, version, .. } => words(&(instance, range, version), hash),
        Reply::Readings { instance, version, cursors } => words(&(instance, version, cursors.len()), hash),
        Reply::Gathered { parts, range } => {
            words(&(parts.iter().map(|(position, _)| *position).collect::<Vec<_>>(), range), hash);
        }
        Reply::Validated { instance, unchanged } => words(&(instance, unchanged), hash),
        Reply::Cut(cut) => words(cut, hash),
        Reply::Completed { ticket } => words(ticket, hash),
        Reply::Aborted { text, .. } => words(text, hash),
        Reply::Directory(reply) => words(reply, hash),
        Reply::Refused(refusal) => words(refusal, hash),
        Reply::Unsure { hint } => words(hint, hash),
    }
}

#[cfg(test)]
mod tests {
    use coppice_ordering::message::Preempted;
    use coppice_ordering::{Ballot, Lsn, ReplicaId};

    use super::*;

    #[test]
    fn steps_of_one_shape_are_told_apart_by_what_they_say() {
        let preempted = |round| Preempted { ballot: Ballot::new(round, 1) }.into();
        let heard = |round| input(&Input::Peer { from: ReplicaId(1), message: preempted(round) });
        assert_ne!(heard(3), heard(4));
        assert_ne!(input(&Input::Persisted(Lsn(1))), input(&Input::Persisted(Lsn(2))));
        let told = |round| effects(&[Effect::Send { to: ReplicaId(2), message: preempted(round) }]);
        assert_ne!(told(3), told(4));
        let origin = Origin { connection: 1, stream: 1 };
        let answered = |bytes: &'static [u8]| effects(&[Effect::Reply { origin, reply: Reply::Pack(bytes.into()) }]);
        assert_ne!(answered(b"a"), answered(b"b"));
    }
}
