//! What a check says: pass, fail with an explanation for people, or unknown.

use super::event::NEVER;
use super::history::{History, Kind, Operation};
use super::intern::NONE;

/// The outcome of one check of one history.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// Nothing wrong.
    Pass,
    /// Wrong, and how.
    Fail(Box<Violation>),
    /// Neither could be shown, and why. Never counted as a pass.
    Unknown(String),
}

impl Verdict {
    /// A failure without a cycle.
    pub fn fail(what: impl Into<String>) -> Verdict {
        Verdict::Fail(Box::new(Violation { what: what.into(), ..Violation::default() }))
    }

    /// Whether it is [`Verdict::Pass`].
    pub fn is_pass(&self) -> bool {
        matches!(self, Verdict::Pass)
    }

    /// Whether it is [`Verdict::Fail`].
    pub fn is_fail(&self) -> bool {
        matches!(self, Verdict::Fail(_))
    }
}

/// Why a history fails.
#[derive(Clone, Debug, Default)]
pub struct Violation {
    /// One sentence.
    pub what: String,
    /// A cycle of things that must each be before the next, if there is one: the shortest that was found.
    pub cycle: Vec<Link>,
    /// Further sentences.
    pub notes: Vec<String>,
    /// Operations that it is about, by index in the history; those of the cycle are not repeated here.
    pub about: Vec<u32>,
}

/// One step of a cycle: `from` is before `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Index of an operation in the history.
    pub from: u32,
    /// Index of an operation in the history.
    pub to: u32,
    pub why: Why,
}

/// Why one operation is before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It was answered before the other was invoked.
    Time,
    /// It stands before the other in the log of this partition.
    Log(u32),
    /// The other saw what it wrote to this key.
    Seen(u32),
    /// The other replaced or deleted what it wrote to this key.
    Replaced(u32),
    /// It saw a value of this key that the other then replaced or deleted.
    Overwritten(u32),
    /// It saw this key absent, and the other made it present.
    NotYet(u32),
    /// It deleted this key, and the other saw it absent.
    Gone(u32),
    /// It ended one life of this key, and the other began the next.
    Lives(u32),
}

impl Violation {
    /// The explanation as lines of text.
    pub fn words(&self, history: &History) -> Vec<String> {
        let mut words = vec![self.what.clone()];
        if !self.cycle.is_empty() {
            words.push("Each of these is before the next, and the last before the first:".into());
            for link in &self.cycle {
                let name = |index: u32| describe(history, &history.operations[index as usize]);
                words.push(format!("  {}", name(link.from)));
                words.push(format!("    is before {}: {}", short(history, link.to), reason(history, link)));
            }
        }
        for index in &self.about {
            words.push(format!("  {}", describe(history, &history.operations[*index as usize])));
        }
        words.extend(self.notes.iter().cloned());
        words
    }
}

/// Why `link.from` is before `link.to`, in words.
pub fn reason(history: &History, link: &Link) -> String {
    let operation = |index: u32| &history.operations[index as usize];
    let (from, to) = (short(history, link.from), short(history, link.to));
    match link.why {
        Why::Time => {
            let gap = operation(link.to).invoked.saturating_sub(operation(link.from).returned);
            format!("{from} was answered {} before {to} was invoked", duration(gap))
        }
        Why::Log(partition) => format!("the log of p{partition} has {from} before {to}"),
        Why::Seen(key) => format!("{to} saw at {} what {from} wrote", history.key(key)),
        Why::Replaced(key) => format!("{to} replaced at {} what {from} wrote", history.key(key)),
        Why::Overwritten(key) => format!("{from} saw at {} what {to} replaced", history.key(key)),
        Why::NotYet(key) => format!("{from} did not see {}, which {to} wrote", history.key(key)),
        Why::Gone(key) => format!("{to} did not see {}, which {from} deleted", history.key(key)),
        Why::Lives(key) => {
            format!(
                "{from} ended a life of {} and {to} began another, which cannot be the earlier one",
                history.key(key)
            )
        }
    }
}

/// `put #17`.
pub fn short(history: &History, index: u32) -> String {
    let operation = &history.operations[index as usize];
    format!("{} #{}", operation.kind().name(), operation.id)
}

/// One operation in one line: call, answer, client, time, position.
pub fn describe(history: &History, operation: &Operation) -> String {
    let mut text = format!("{} #{} ", operation.kind().name(), operation.id);
    match operation.kind() {
        Kind::Range => {
            text += &format!("[{}, {})", history.key(operation.step.key), history.key(operation.high));
            if operation.is_ok() {
                text += &format!(" -> {}", some_pairs(history, history.pairs(operation)));
            }
        }
        _ => {
            let steps: Vec<String> =
                history.steps(operation).iter().map(|step| describe_step(history, operation, step)).collect();
            text += &steps.join(", ");
        }
    }
    let end = match operation.returned {
        NEVER => "no answer".to_string(),
        _ if !operation.is_ok() => format!("{}, refused", duration(operation.returned)),
        returned => duration(returned),
    };
    text += &format!("  (c{}/{}, {} .. {end}", operation.client, operation.number, duration(operation.invoked));
    for position in history.positions(operation) {
        text += &format!(" {position}");
    }
    if let Some(ticket) = history.ticket(operation) {
        text += &format!(" {ticket}");
    }
    text + ")"
}

fn describe_step(history: &History, operation: &Operation, step: &super::history::Step) -> String {
    let key = history.key(step.key);
    let call = match step.kind {
        Kind::Cas => format!("{key}: {} -> {}", history.value(step.old), history.value(step.value)),
        _ if step.value != NONE => format!("{key}={}", history.value(step.value)),
        _ => key,
    };
    let call = if operation.kind() == Kind::Many { format!("{} {call}", step.kind.name()) } else { call };
    if !operation.is_ok() {
        return call;
    }
    let seen = history.value(step.seen);
    match step.kind {
        Kind::Get => format!("{call} -> {seen}"),
        Kind::Insert | Kind::Cas if !step.done => format!("{call} -> not done, {seen} was there"),
        Kind::Insert => format!("{call} -> done"),
        _ => format!("{call} -> done, {seen} was there"),
    }
}

/// The first few pairs, and how many there are.
fn some_pairs(history: &History, pairs: &[(u32, u32)]) -> String {
    const SHOWN: usize = 6;
    let shown: Vec<String> = pairs
        .iter()
        .take(SHOWN)
        .map(|(key, value)| format!("{}={}", history.key(*key), history.value(*value)))
        .collect();
    match pairs.len() {
        0 => "nothing".into(),
        count if count > SHOWN => format!("{} .. {count} pairs", shown.join(" ")),
        _ => shown.join(" "),
    }
}

/// Nanoseconds for people.
pub fn duration(nanoseconds: u64) -> String {
    match nanoseconds {
        0..1_000 => format!("{nanoseconds} ns"),
        1_000..1_000_000 => format!("{:.1} us", nanoseconds as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.3} ms", nanoseconds as f64 / 1e6),
        _ => format!("{:.6} s", nanoseconds as f64 / 1e9),
    }
}
