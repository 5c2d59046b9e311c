//! Events become a [`History`]: strings become numbers, answers find their operations, lines of replicas that say the
//! same share one record. What contradicts the format is an error here, at its line.

use std::fs::File;
use std::io::BufReader;

use super::event::{
    Call, Change, Digest, Entry, Event, Head, Invoke, LogLine, NEVER, Output, Position, Return, Status, Text, text_of,
};
use super::history::{
    Complaint, DigestLine, FaultLine, History, Kind, LogChange, LogEntry, LogKind, Operation, Span, Step,
};
use super::intern::{FastMap, Interner, NONE, UNSAID, mix};
use super::read::{ReadError, read};

impl History {
    /// Reads files, in order: histories and dumps.
    pub fn load(files: &[String]) -> Result<History, ReadError> {
        let mut builder = Builder::default();
        for name in files {
            let error = |what: String| ReadError { file: name.clone(), line: 0, what };
            let file = File::open(name).map_err(|failed| error(failed.to_string()))?;
            read(name, BufReader::with_capacity(1 << 20, file), |event| builder.push(&event))?;
        }
        builder.finish().map_err(|what| ReadError { file: files.join(", "), line: 0, what })
    }

    /// From events in memory.
    pub fn from_events<'a>(events: impl IntoIterator<Item = &'a Event<'a>>) -> Result<History, String> {
        let mut builder = Builder::default();
        for event in events {
            builder.push(event)?;
        }
        builder.finish()
    }
}

/// Takes events one by one.
#[derive(Debug, Default)]
pub struct Builder {
    history: History,
    by_id: FastMap<u64, u32>,
    /// Kinds of log entries by content, so that equal lines of replicas share one.
    kinds: FastMap<u64, u32>,
}

impl Builder {
    /// Adds one event; the error says what it contradicts.
    pub fn push(&mut self, event: &Event<'_>) -> Result<(), String> {
        match event {
            Event::Head(head) => self.head(head),
            Event::Invoke(invoke) => self.invoke(invoke),
            Event::Return(answer) => self.answer(answer),
            Event::Log(line) => {
                self.log(line);
                Ok(())
            }
            Event::Fault(fault) => {
                let text = |bytes: &[u8]| text_of(bytes).into_owned();
                let fault = FaultLine { at: fault.at, action: text(&fault.action), who: text(&fault.who) };
                self.history.faults.push(fault);
                Ok(())
            }
            Event::Digest(Digest { partition, replica, instance, state, tree }) => {
                self.history.digests.push(DigestLine {
                    partition: *partition,
                    replica: *replica,
                    instance: *instance,
                    state: state.to_vec(),
                    tree: tree.as_ref().map(|tree| tree.to_vec()),
                });
                Ok(())
            }
        }
    }

    fn head(&mut self, head: &Head<'_>) -> Result<(), String> {
        if !self.history.state.is_empty() {
            return Err("a second head with a state: one history has one start".into());
        }
        self.history.commit = text_of(&head.commit).into_owned();
        self.history.seed = text_of(&head.seed).into_owned();
        for (key, value) in &head.state {
            let pair = (self.history.keys.intern(key), self.history.values.intern(value));
            self.history.state.push(pair);
        }
        Ok(())
    }

    fn step(&mut self, call: &Call<'_>) -> Step {
        let history = &mut self.history;
        let mut key = |text: &Text<'_>| history.keys.intern(text);
        let mut value = |text: &Text<'_>| history.values.intern(text);
        let (kind, key, old, value) = match call {
            Call::Get { key: k } => (Kind::Get, key(k), NONE, NONE),
            Call::Put { key: k, value: v } => (Kind::Put, key(k), NONE, value(v)),
            Call::Insert { key: k, value: v } => (Kind::Insert, key(k), NONE, value(v)),
            Call::Delete { key: k } => (Kind::Delete, key(k), NONE, NONE),
            Call::Cas { key: k, old, value: v } => (Kind::Cas, key(k), value(old), value(v)),
            Call::Range { low, .. } => (Kind::Range, key(low), NONE, NONE),
            Call::Many(_) => (Kind::Many, NONE, NONE, NONE),
        };
        Step { kind, done: false, key, value, old, seen: NONE }
    }

    /// The steps of a call, and its fingerprint. Numbers of keys are not final yet, but equal for equal keys.
    fn steps(&mut self, call: &Call<'_>) -> (Step, Vec<Step>, u64) {
        let step = self.step(call);
        let steps = match call {
            Call::Many(calls) => calls.iter().map(|call| self.step(call)).collect(),
            _ => Vec::new(),
        };
        let print = std::iter::once(&step).chain(&steps).fold(0, |print, step| {
            let content = u64::from(step.key) << 32 | u64::from(step.value);
            mix(mix(print, step.kind as u64 ^ u64::from(step.old) << 8), content)
        });
        (step, steps, print)
    }

    fn invoke(&mut self, invoke: &Invoke<'_>) -> Result<(), String> {
        let (step, steps, fingerprint) = self.steps(&invoke.call);
        let history = &mut self.history;
        let (high, limit, reverse) = match &invoke.call {
            Call::Range { high, limit, reverse, .. } => {
                (high.as_ref().map_or(NONE, |high| history.keys.intern(high)), *limit, *reverse)
            }
            _ => (NONE, 0, false),
        };
        let index = u32::try_from(history.operations.len()).map_err(|_| "more than 2^32 operations".to_string())?;
        if self.by_id.insert(invoke.id, index).is_some() {
            return Err(format!("operation {} is invoked twice", invoke.id));
        }
        if invoke.stale && !matches!(step.kind, Kind::Get | Kind::Range) {
            return Err(format!("operation {} is stale but not a read", invoke.id));
        }
        history.operations.push(Operation {
            id: invoke.id,
            client: invoke.client,
            number: invoke.number,
            invoked: invoke.at,
            returned: NEVER,
            step,
            high,
            limit,
            reverse,
            status: None,
            stale: invoke.stale,
            pairs: Span::default(),
            steps: Span::push(&mut history.steps, steps),
            parts: Span::default(),
            ticket: NONE,
            fingerprint,
        });
        Ok(())
    }

    fn answer(&mut self, answer: &Return<'_>) -> Result<(), String> {
        let Some(&index) = self.by_id.get(&answer.id) else {
            return Err(format!("operation {} is answered but was not invoked above", answer.id));
        };
        let operation = &self.history.operations[index as usize];
        if answer.at < operation.invoked || answer.at == NEVER {
            return Err(format!("operation {} is answered before it was invoked", answer.id));
        }
        if operation.status.is_some() {
            return self.repeated(index, answer);
        }
        self.history.returns.push(index);
        self.first(index, answer)
    }

    /// Sets all that an answer says.
    fn first(&mut self, index: u32, answer: &Return<'_>) -> Result<(), String> {
        let history = &mut self.history;
        let operation = &mut history.operations[index as usize];
        operation.returned = answer.at;
        operation.status = Some(answer.status);
        operation.parts = Span::push(&mut history.parts, answer.positions.iter().copied());
        if let Some(ticket) = answer.ticket {
            operation.ticket = history.tickets.len() as u32;
            history.tickets.push(ticket);
        }
        if answer.status == Status::Ok { self.result(index, &answer.output) } else { Ok(()) }
    }

    /// The answer to a repeated sending must say the same; the first one stays.
    fn repeated(&mut self, index: u32, answer: &Return<'_>) -> Result<(), String> {
        let before = self.history.operations[index as usize].clone();
        let steps = self.history.steps(&before).to_vec();
        self.first(index, answer)?;
        let history = &mut self.history;
        let after = std::mem::replace(&mut history.operations[index as usize], before);
        let before = &history.operations[index as usize];
        let equal = before.status == after.status
            && steps == history.steps(&after)
            && history.pairs(before) == history.pairs(&after)
            && history.positions(before) == history.positions(&after)
            && history.ticket(before) == history.ticket(&after);
        if before.kind() == Kind::Many {
            let start = before.steps.start as usize;
            history.steps[start..start + steps.len()].copy_from_slice(&steps);
        }
        if !equal {
            let what = "a repeated sending got another answer, or the same one with another position".to_string();
            history.unequal.push(Complaint { operation: index, what });
        }
        Ok(())
    }

    fn result(&mut self, index: u32, output: &Output<'_>) -> Result<(), String> {
        let history = &mut self.history;
        let operation = &mut history.operations[index as usize];
        let (id, name) = (operation.id, operation.kind().name());
        let wrong = |wanted: &str| Err(format!("the answer to operation {id}, a {name}, must be {wanted}"));
        match (operation.step.kind, output) {
            (Kind::Range, Output::Pairs(pairs)) => {
                let (keys, values) = (&mut history.keys, &mut history.values);
                let pairs = pairs.iter().map(|(key, value)| (keys.intern(key), values.intern(value)));
                operation.pairs = Span::push(&mut history.pairs, pairs);
                Ok(())
            }
            (Kind::Range, _) => wrong("pairs"),
            (Kind::Many, Output::Pairs(none)) if none.is_empty() && operation.steps.len == 0 => Ok(()),
            (Kind::Many, Output::List(results)) if results.len() == operation.steps.len as usize => {
                let start = operation.steps.start as usize;
                for (step, result) in history.steps[start..].iter_mut().zip(results) {
                    if let Some(wanted) = set_result(step, result, &mut history.values) {
                        return wrong(wanted);
                    }
                }
                Ok(())
            }
            (Kind::Many, _) => wrong("a list of results, one for each call"),
            _ => match set_result(&mut operation.step, output, &mut history.values) {
                Some(wanted) => wrong(wanted),
                None => Ok(()),
            },
        }
    }

    fn log(&mut self, line: &LogLine<'_>) {
        let kind = match &line.entry {
            Entry::Command { client, number, call, low, session, expired } => {
                let fingerprint = self.steps(call).2;
                LogKind::Command {
                    client: *client,
                    number: *number,
                    fingerprint,
                    low: *low,
                    session: *session,
                    expired: *expired,
                }
            }
            Entry::Place { ticket, previous, change } => {
                let change = change.as_ref().map(|change| match change {
                    Change::Split { id, key, to } => {
                        LogChange::Split { id: *id, key: self.history.keys.intern(key), to: *to }
                    }
                    Change::Seal { id } => LogChange::Seal { id: *id },
                    Change::Take { id, from } => LogChange::Take { id: *id, from: *from },
                    Change::End { id, to } => LogChange::End { id: *id, to: *to },
                });
                LogKind::Place { ticket: *ticket, previous: *previous, change }
            }
            Entry::Born { from, low, high, ticket } => LogKind::Born {
                from: *from,
                low: self.history.keys.intern(low),
                high: high.as_ref().map_or(NONE, |high| self.history.keys.intern(high)),
                ticket: *ticket,
            },
            Entry::Other => LogKind::Other,
        };
        let kind = self.share(line.position, kind);
        self.history.log.push(LogEntry { position: line.position, replica: line.replica, hit: line.hit, kind });
    }

    /// The number of `kind`: that of the last different line at this position if it is equal, else a new one.
    fn share(&mut self, at: Position, kind: LogKind) -> u32 {
        let place = mix(mix(at.instance, u64::from(at.partition)), u64::from(at.index));
        if let Some(&known) = self.kinds.get(&place)
            && self.history.log_kinds[known as usize] == kind
        {
            return known;
        }
        let new = self.history.log_kinds.len() as u32;
        self.history.log_kinds.push(kind);
        self.kinds.insert(place, new);
        new
    }

    /// The history, its keys numbered in order, its operations in order of invocation.
    pub fn finish(self) -> Result<History, String> {
        let mut history = self.history;
        let rank = history.keys.sort();
        let renumber = |key: &mut u32| *key = rank.get(*key as usize).copied().unwrap_or(NONE);
        for operation in &mut history.operations {
            renumber(&mut operation.step.key);
            renumber(&mut operation.high);
        }
        history.steps.iter_mut().for_each(|step| renumber(&mut step.key));
        history.pairs.iter_mut().for_each(|pair| renumber(&mut pair.0));
        history.state.iter_mut().for_each(|pair| renumber(&mut pair.0));
        for kind in &mut history.log_kinds {
            match kind {
                LogKind::Born { low, high, .. } => {
                    renumber(low);
                    renumber(high);
                }
                LogKind::Place { change: Some(LogChange::Split { key, .. }), .. } => renumber(key),
                _ => {}
            }
        }
        history.state.sort_unstable();
        if let Some(twice) = history.state.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(format!("the state at the start has the key {} twice", history.key(twice[0].0)));
        }
        sort_operations(&mut history);
        history.impossible = impossible(&history);
        narrow(&mut history);
        let place = |entry: &LogEntry| (entry.position, entry.replica);
        if !history.log.is_sorted_by_key(place) {
            history.log.sort_by_key(place);
        }
        Ok(history)
    }
}

/// Sets what the answer says of one step; the result says what it had to be.
fn set_result(step: &mut Step, output: &Output<'_>, values: &mut Interner) -> Option<&'static str> {
    match (step.kind, output) {
        (Kind::Cas, Output::Cas(done, was)) => {
            step.done = *done;
            step.seen = was.as_ref().map_or(NONE, |was| values.intern(was));
            None
        }
        (Kind::Cas, _) => Some("[done, value that was there]"),
        (Kind::Put | Kind::Delete, Output::Done) => {
            (step.seen, step.done) = (UNSAID, true);
            None
        }
        (_, Output::Value(found)) => {
            step.seen = found.as_ref().map_or(NONE, |found| values.intern(found));
            step.done = match step.kind {
                Kind::Put => true,
                Kind::Insert => step.seen == NONE,
                Kind::Delete => step.seen != NONE,
                _ => false,
            };
            None
        }
        _ => Some("a value or null"),
    }
}

/// Order of invocation, and of answers; stale reads apart.
fn sort_operations(history: &mut History) {
    let count = history.operations.len();
    let mut order: Vec<u32> = (0..count as u32).collect();
    if !history.operations.is_sorted_by_key(|operation| operation.invoked) {
        order.sort_by_key(|index| history.operations[*index as usize].invoked);
    }
    let in_order = order.iter().enumerate().all(|(at, index)| at == *index as usize);
    if !in_order || history.operations.iter().any(|operation| operation.stale) {
        let mut new = vec![NONE; count];
        let mut sorted = Vec::with_capacity(count);
        for index in order {
            let operation = history.operations[index as usize].clone();
            if operation.stale {
                history.stale.push(operation);
            } else {
                new[index as usize] = sorted.len() as u32;
                sorted.push(operation);
            }
        }
        history.operations = sorted;
        history.returns.iter_mut().for_each(|index| *index = new[*index as usize]);
        history.returns.retain(|index| *index != NONE);
        history.unequal.retain_mut(|complaint| {
            complaint.operation = new[complaint.operation as usize];
            complaint.operation != NONE
        });
    }
    let returned = |index: &u32| history.operations[*index as usize].returned;
    if !history.returns.is_sorted_by_key(returned) {
        let mut returns = std::mem::take(&mut history.returns);
        returns.sort_by_key(returned);
        history.returns = returns;
    }
}

/// A full answer of a limited range says nothing of the keys beyond its pairs.
fn narrow(history: &mut History) {
    let pairs = &history.pairs;
    for operation in history.operations.iter_mut().chain(&mut history.stale) {
        let found = operation.pairs.of(pairs);
        if operation.limit == 0 || found.len() < operation.limit as usize {
            continue;
        }
        match (operation.reverse, found.first(), found.last()) {
            (false, _, Some((last, _))) => operation.high = last + 1,
            (true, Some((first, _)), _) => operation.step.key = *first,
            _ => {}
        }
    }
}

/// Answers that no state could give.
fn impossible(history: &History) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (index, operation) in history.operations.iter().enumerate().filter(|(_, operation)| operation.is_ok()) {
        let mut complain = |what: String| complaints.push(Complaint { operation: index as u32, what });
        let pairs = history.pairs(operation);
        if let Some(pair) = pairs.iter().find(|pair| pair.0 < operation.step.key || pair.0 >= operation.high) {
            complain(format!("it returned the key {}, which is outside of its bounds", history.key(pair.0)));
        }
        if operation.limit > 0 && pairs.len() > operation.limit as usize {
            complain(format!("it returned {} pairs and was asked for {}", pairs.len(), operation.limit));
        }
        if let Some(pair) = pairs.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            complain(format!("it returned {} before {}", history.key(pair[0].0), history.key(pair[1].0)));
        }
        for step in history.steps(operation).iter().filter(|step| step.kind == Kind::Cas) {
            if step.done != (step.seen == step.old) {
                let done = if step.done { "done" } else { "not done" };
                let (seen, old) = (history.value(step.seen), history.value(step.old));
                complain(format!("its cas was {done} although {seen} was there and {old} expected"));
            }
        }
    }
    complaints
}
