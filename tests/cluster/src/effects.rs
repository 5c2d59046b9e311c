//! What the writes of the logs did. Answers over RESP do not say it all: neither which value a SET replaced, nor
//! whether a write without an answer was done.

use std::collections::{HashMap, HashSet};

use coppice_btree::{Edit, Op, OpResult, Update, UpdateOutcome};
use coppice_check::event::{Output, Status, Text};
use coppice_check::history::{History, Kind, Operation};
use coppice_check::intern::{NONE, UNSAID};
use coppice_client::wire::Command;
use coppice_words::Told;

type Bytes = Vec<u8>;

/// Of all commands that counted, in the order in which each key saw them.
#[derive(Debug, Default)]
pub struct Effects {
    now: HashMap<Bytes, Bytes>,
    /// What each value replaced.
    replaced: HashMap<Bytes, Option<Bytes>>,
    /// The values that deletes have removed from each key, but for those of commands that a value names.
    deleted: HashMap<Bytes, Vec<Bytes>>,
}

impl Effects {
    /// Takes in a command and its results.
    pub fn add(&mut self, command: &Command<'_>, told: &Told) {
        let Told::Results(results) = told else { return };
        match command {
            Command::Op(op) => results.iter().take(1).for_each(|result| self.op(op, result, false)),
            Command::Many(operations) => {
                let operations = operations.iter().skip(operations.guards());
                operations.zip(results).for_each(|(op, result)| self.op(&op, result, true));
            }
            Command::Load(_) => {}
        }
    }

    fn op(&mut self, op: &Op<'_>, result: &OpResult, is_named: bool) {
        let after = match (op, result) {
            (Op::Put { value, .. }, _)
            | (Op::Insert { value, .. }, OpResult::Insert { present: None })
            | (Op::Cas { value, .. }, OpResult::Cas { done: true, .. }) => Some(value.to_vec()),
            (Op::Delete { .. }, _) => None,
            (Op::Update { terms, .. }, OpResult::Update { outcome: UpdateOutcome::Done, value: told, .. }) => {
                match (Update::read(terms).map(|update| update.edit), told) {
                    (Some(Edit::Set(value)), _) => Some(value.to_vec()),
                    (Some(Edit::Remove), _) => None,
                    // The number that was counted to.
                    (Some(Edit::Add(_)), Some(number)) => Some(number.to_vec()),
                    _ => return,
                }
            }
            _ => return,
        };
        let key = op.key().to_vec();
        match after {
            Some(value) => {
                let before = self.now.insert(key, value.clone());
                self.replaced.insert(value, before);
            }
            None => {
                let before = self.now.remove(&key).filter(|_| !is_named);
                self.deleted.entry(key).or_default().extend(before);
            }
        }
    }

    /// What answers are, by the operation's id: of writes without an answer that did nothing, of writes of one key that
    /// do not say what was there, and of those without an answer that were done.
    pub fn answers(&self, history: &History) -> HashMap<u64, (Status, Output<'static>)> {
        let mut answers = self.answers_of_deletes(history);
        let answer = |operation: &Operation| {
            let refused = || Some((Status::No, Output::Value(None)));
            let steps = history.steps(operation);
            let mut values = steps.iter().map(|step| step.value).filter(|value| *value != NONE);
            let replaced = |value: u32| self.replaced.get(history.values.get(value));
            let value = values.next()?;
            let text = |bytes: &Bytes| Text::Owned(bytes.clone());
            match (operation.kind(), replaced(value)) {
                (_, None) if operation.status.is_some() => None,
                (_, None) if values.all(|value| replaced(value).is_none()) => refused(),
                (Kind::Put | Kind::Insert, Some(before)) => {
                    Some((Status::Ok, Output::Value(before.as_ref().map(text))))
                }
                (Kind::Cas, Some(before)) => Some((Status::Ok, Output::Cas(true, before.as_ref().map(text)))),
                _ => None,
            }
        };
        let is_open = |operation: &&Operation| match operation.status {
            None => !operation.is_read(),
            Some(_) => operation.kind() == Kind::Put && operation.step.seen == UNSAID,
        };
        let open = history.operations.iter().filter(is_open);
        answers.extend(open.filter_map(|operation| Some((operation.id, answer(operation)?))));
        answers
    }

    /// Of deletes: what the logs hold of a key and no answer names belongs to those that do not say it, in their order
    /// if they follow each other; else to those without an answer, the earliest first, since nothing ends them. Where
    /// both may be meant, nothing is known.
    fn answers_of_deletes(&self, history: &History) -> HashMap<u64, (Status, Output<'static>)> {
        let (mut named, mut open) = (HashSet::new(), HashMap::<&[u8], [Vec<&Operation>; 2]>::new());
        for operation in &history.operations {
            match (operation.status, operation.kind()) {
                (Some(Status::No), _) => {}
                (None, Kind::Delete) => {
                    open.entry(history.keys.get(operation.step.key)).or_default()[1].push(operation)
                }
                (None, _) => {}
                (Some(Status::Ok), Kind::Delete) if operation.step.seen == UNSAID => {
                    open.entry(history.keys.get(operation.step.key)).or_default()[0].push(operation);
                }
                (Some(Status::Ok), _) => {
                    let done = history.steps(operation).iter().filter(|step| step.kind == Kind::Delete && step.done);
                    named.extend(done.map(|step| history.values.get(step.seen)));
                }
            }
        }
        let mut answers = HashMap::new();
        for (key, [unsaid, unanswered]) in open {
            let left = self.deleted.get(key).into_iter().flatten().filter(|value| !named.contains(&***value));
            let left: Vec<&Bytes> = left.collect();
            let follow = unsaid.windows(2).all(|pair| pair[0].returned < pair[1].invoked);
            let (done, nothing) = match (left.len(), unsaid.len()) {
                (count, all) if count == all => (if follow { unsaid } else { Vec::new() }, &unanswered[..]),
                (count, 0) => {
                    let (done, nothing) = unanswered.split_at(count.min(unanswered.len()));
                    (done.to_vec(), nothing)
                }
                _ => continue,
            };
            let value = |value: &Bytes| (Status::Ok, Output::Value(Some(Text::Owned(value.clone()))));
            answers.extend(done.into_iter().zip(left).map(|(operation, left)| (operation.id, value(left))));
            answers.extend(nothing.iter().map(|operation| (operation.id, (Status::No, Output::Value(None)))));
        }
        answers
    }
}

#[cfg(test)]
mod tests {
    use coppice_check::event::{Call, Event, Invoke, Return};

    use super::*;

    fn text(text: &str) -> Text<'static> {
        Text::Owned(text.as_bytes().to_vec())
    }

    #[test]
    fn the_logs_say_what_was_replaced_and_what_was_not_done() {
        let put = |value| Call::Put { key: text("a"), value: text(value) };
        let calls = [(put("1"), true), (put("2"), false), (put("3"), false), (Call::Delete { key: text("a") }, false)];
        let mut events = Vec::new();
        for (id, (call, is_answered)) in (0..).zip(calls) {
            events.push(Event::Invoke(Invoke { id, at: id, client: 1, number: id, call, stale: false }));
            let (status, output, positions) = (Status::Ok, Output::Done, Vec::new());
            let answer = Return { id, at: id + 5, status, output, positions, ticket: None };
            events.extend(is_answered.then_some(Event::Return(answer)));
        }
        let history = History::from_events(&events).expect("a history");
        let mut effects = Effects::default();
        let put = |value| Command::Op(Op::Put { key: b"a", value });
        for (value, previous) in [(b"0", None), (b"1", Some("0")), (b"2", Some("1"))] {
            let previous = previous.map(|value: &str| value.as_bytes().into());
            effects.add(&put(value), &Told::Results(vec![OpResult::Put { previous }]));
        }
        let replaced = |value| (Status::Ok, Output::Value(Some(text(value))));
        let nothing = || (Status::No, Output::Value(None));
        let answers = effects.answers(&history);
        assert_eq!(answers, HashMap::from([(0, replaced("0")), (1, replaced("1")), (2, nothing()), (3, nothing())]));
        // A delete that no answer names is the one without an answer.
        let deleted = OpResult::Delete { previous: Some(b"2"[..].into()) };
        effects.add(&Command::Op(Op::Delete { key: b"a" }), &Told::Results(vec![deleted]));
        assert_eq!(effects.answers(&history).get(&3), Some(&replaced("2")));
    }
}
