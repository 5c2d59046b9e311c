//! What a recorded run remembers of each request until it can be written (hazards.md 3.1). A write's line needs the
//! number that the session gave it, which it gets when it is packed: after its submission, before its first byte
//! leaves.

use coppice_btree::OpResult;
use coppice_client::command::{Answer, Output};
use coppice_client::error::Error;
use coppice_client::session::{CallKey, Session};
use coppice_client::wire::{self, Part};

use super::super::Nanos;
use crate::record::{Out, Position, Recorder, Ticket};
use crate::workload::Request;

/// The recorder of one worker and its open lines.
#[derive(Debug)]
pub struct Recording {
    recorder: Recorder,
    stale: bool,
    slots: Vec<Option<Open>>,
    /// Slots whose number is not known yet.
    unnumbered: Vec<u32>,
}

#[derive(Debug)]
struct Open {
    driver: usize,
    call: CallKey,
    at: Nanos,
    request: Request,
    /// The line's id, once it is written.
    id: Option<u64>,
    pairs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Of a range: where it was read, a position per partition, and the ticket if there are several.
    positions: Vec<Position>,
    ticket: Option<Ticket>,
}

fn is_write(request: &Request) -> bool {
    !matches!(request, Request::Get(_) | Request::Range { .. })
}

impl Recording {
    /// For slots below `slots`.
    pub fn new(recorder: Recorder, slots: u32, stale: bool) -> Recording {
        Recording { recorder, stale, slots: (0..slots).map(|_| None).collect(), unnumbered: Vec::new() }
    }

    /// A request was submitted at `at`; nothing of it was sent.
    pub fn begun(&mut self, slot: u32, driver: usize, call: CallKey, at: Nanos, request: &Request) {
        let open = Open {
            driver,
            call,
            at,
            request: *request,
            id: None,
            pairs: Vec::new(),
            positions: Vec::new(),
            ticket: None,
        };
        self.slots[slot as usize] = Some(open);
        self.unnumbered.push(slot);
    }

    /// After each turn of a session: writes the lines of the requests whose number is known by now.
    pub fn numbered(&mut self, driver: usize, session: &Session) {
        let Recording { recorder, stale, slots, unnumbered } = self;
        unnumbered.retain(|&slot| {
            let Some(open) = &mut slots[slot as usize] else { return false };
            if open.driver != driver {
                return true;
            }
            let number = if is_write(&open.request) { session.number(open.call) } else { Some(0) };
            let Some(number) = number else { return true };
            open.id = Some(recorder.invoke(open.at, session.client().0, number, &open.request, *stale));
            false
        });
    }

    /// A chunk of the range in `slot`, and the position where it still held, if that is not its own.
    pub fn part(&mut self, slot: u32, part: &Part<'_>, as_of: Option<wire::Position>) {
        let Some(open) = &mut self.slots[slot as usize] else { return };
        let partition = part.position.partition.0;
        if part.number == 0 || open.positions.last().is_none_or(|last| last.0 != partition) {
            open.positions.push(place(as_of.unwrap_or(part.position)));
        }
        open.ticket = part.ticket.map(|ticket| (ticket.round, ticket.replica.0, ticket.n));
        open.pairs.extend(part.pairs().map(|(key, value)| (key.to_vec(), value.to_vec())));
    }

    /// The request in `slot` is over. One that never got a number was never sent: it leaves no line.
    pub fn ended(&mut self, slot: u32, at: Nanos, result: &Result<Answer<Output>, Error>) {
        let Some(open) = self.slots[slot as usize].take() else { return };
        let Some(id) = open.id else { return };
        match result {
            Ok(answer) => {
                let own = [place(answer.position)];
                let positions = if open.positions.is_empty() { &own[..] } else { &open.positions[..] };
                self.recorder.answered(id, at, &out(&answer.output, open.pairs), positions, open.ticket);
            }
            Err(error) if error.is_sure() && is_write(&open.request) => self.recorder.refused(id, at),
            // An unknown write stays open; so does a read without an answer, which says nothing.
            Err(_) => {}
        }
    }
}

fn place(position: wire::Position) -> Position {
    (position.partition.0, position.instance, position.index)
}

fn out(output: &Output, pairs: Vec<(Vec<u8>, Vec<u8>)>) -> Out {
    let value = |result: &OpResult| result.value().map(|value| value.to_vec());
    match output {
        Output::One(result) => Out::Value(value(result)),
        Output::Many(results) => Out::List(results.iter().map(value).collect()),
        Output::Loaded(_) | Output::NotLoaded(_) | Output::Omitted | Output::Unmet(_) => Out::Pairs(pairs),
    }
}
