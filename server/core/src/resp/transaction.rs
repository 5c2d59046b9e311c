//! MULTI, WATCH, EXEC: commands that are queued, and become one command of the cluster with guards.

use coppice_client::command::{Operation, Output};
use coppice_client::wire::{COMPOUND_BYTES_MAX, MANY_OPERATIONS_MAX};
use coppice_client::{Condition, OpResult, Value};

use super::plan::{Answer, Planned, Queued, Work, results};
use super::reply::Reply;

/// The transaction of a connection.
#[derive(Debug, Default)]
pub struct Transaction {
    /// Since MULTI; none: no transaction has begun.
    queued: Option<Queue>,
    /// What the watched keys held.
    watched: Vec<(Value, Option<Value>)>,
    /// Bytes of it.
    watched_bytes: usize,
    /// A WATCH was not answered, so it is not known what EXEC depends on.
    is_blind: bool,
}

#[derive(Debug, Default)]
struct Queue {
    operations: Vec<Operation>,
    commands: Vec<(usize, Queued)>,
    bytes: usize,
    /// Something was refused: EXEC refuses all.
    is_broken: bool,
}

impl Transaction {
    /// Whether commands are queued.
    pub fn is_open(&self) -> bool {
        self.queued.is_some()
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        self.watched_bytes + self.queued.as_ref().map_or(0, |queue| queue.bytes)
    }

    /// MULTI.
    pub fn begin(&mut self) -> Reply {
        if self.is_open() {
            return Reply::err("MULTI calls can not be nested");
        }
        self.queued = Some(Queue::default());
        Reply::OK
    }

    /// DISCARD.
    pub fn discard(&mut self) -> Reply {
        if !self.is_open() {
            return Reply::err("DISCARD without MULTI");
        }
        *self = Transaction::default();
        Reply::OK
    }

    /// UNWATCH.
    pub fn forget_watched(&mut self) {
        (self.watched, self.watched_bytes, self.is_blind) = (Vec::new(), 0, false);
    }

    /// A WATCH failed: EXEC must not be carried out as if nothing were watched.
    pub fn lose_sight(&mut self) {
        self.is_blind = true;
    }

    /// Queues what a command has become, or why it cannot be queued.
    pub fn queue(&mut self, name: &str, planned: Result<Planned, Reply>) -> Reply {
        let Some(queue) = &mut self.queued else { return Reply::err("no transaction") };
        let queued = match planned {
            Ok(Planned::Work(work)) if work.guards.is_empty() => {
                queue.take(work.bytes(), work.operations, Queued::Answer(work.answer))
            }
            Ok(Planned::Reply(reply)) => queue.take(reply.bytes(), Vec::new(), Queued::Reply(reply)),
            Ok(_) => Err(Reply::err(format_args!("{name} is not possible between MULTI and EXEC"))),
            Err(error) => Err(error),
        };
        match queued {
            Ok(()) => Reply::Simple("QUEUED"),
            Err(error) => {
                queue.break_off();
                error
            }
        }
    }

    /// A request was refused before anybody looked what it becomes.
    pub fn refuse(&mut self) {
        if let Some(queue) = &mut self.queued {
            queue.break_off();
        }
    }

    /// EXEC: what is to be carried out.
    pub fn exec(&mut self) -> Result<Planned, Reply> {
        let Some(queue) = self.queued.take() else { return Err(Reply::err("EXEC without MULTI")) };
        let Transaction { watched, is_blind, .. } = std::mem::take(self);
        if is_blind {
            return Err(Reply::Error("EXECABORT Transaction discarded because WATCH failed.".into()));
        }
        if queue.is_broken {
            return Err(Reply::Error("EXECABORT Transaction discarded because of previous errors.".into()));
        }
        let guard = |(key, value): (Value, Option<Value>)| {
            Operation::check(key, value.as_deref().map_or(Condition::Absent, Condition::Equals))
        };
        let guards: Vec<Operation> = watched.into_iter().map(guard).collect();
        let answer = Answer::Exec(queue.commands);
        if queue.operations.is_empty() && guards.is_empty() {
            return Ok(Planned::Reply(answer.reply(&[], 0)));
        }
        let mut work = Work { guards, operations: queue.operations, answer };
        if work.operations.is_empty() {
            // Guards guard something: a read, which answers nothing.
            let key = Value::from(work.guards[0].key());
            work.operations.push(Operation::look(key));
        }
        Ok(Planned::Work(work))
    }

    /// What WATCH reads.
    pub fn watch(&self, keys: Vec<Value>) -> Result<Work, Reply> {
        if self.is_open() {
            return Err(Reply::err("WATCH inside MULTI is not allowed"));
        }
        if self.watched.len() + keys.len() > MANY_OPERATIONS_MAX / 2 {
            return Err(Reply::err(format_args!("at most {} keys are watched", MANY_OPERATIONS_MAX / 2)));
        }
        let operations = keys.into_iter().map(Operation::get).collect();
        Ok(Work { guards: Vec::new(), operations, answer: Answer::Ok })
    }

    /// What it has read. What was watched before is compared with what was read then.
    pub fn watched(&mut self, work: Work, output: Output) -> Reply {
        let Some(read) = results(output) else {
            self.lose_sight();
            return Reply::err("the values of the watched keys are more than 2 MiB");
        };
        for (operation, result) in work.operations.into_iter().zip(read) {
            let (Operation::Get { key }, OpResult::Get { value }) = (operation, result) else { continue };
            if self.watched.iter().any(|(known, _)| *known == key) {
                continue;
            }
            self.watched_bytes += key.len() + value.as_deref().map_or(0, <[u8]>::len);
            self.watched.push((key, value));
        }
        if self.watched_bytes > COMPOUND_BYTES_MAX {
            self.forget_watched();
            self.lose_sight();
            return Reply::err(format_args!(
                "watched keys and values have at most {COMPOUND_BYTES_MAX} bytes together"
            ));
        }
        Reply::OK
    }
}

impl Queue {
    fn take(&mut self, bytes: usize, operations: Vec<Operation>, queued: Queued) -> Result<(), Reply> {
        self.bytes += bytes;
        let count = (self.commands.len() + 1).max(self.operations.len() + operations.len());
        if count > MANY_OPERATIONS_MAX || self.bytes > COMPOUND_BYTES_MAX {
            return Err(Reply::err(format_args!(
                "a transaction has at most {MANY_OPERATIONS_MAX} operations and {COMPOUND_BYTES_MAX} bytes"
            )));
        }
        self.commands.push((operations.len(), queued));
        self.operations.extend(operations);
        Ok(())
    }

    /// Nothing of it will be carried out, so nothing is kept.
    fn break_off(&mut self) {
        *self = Queue { is_broken: true, ..Queue::default() };
    }
}
