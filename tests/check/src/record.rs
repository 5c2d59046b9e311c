//! What clients of a run write: a history file with one clock for all of them (hazards.md 2, 3.1).

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::event::{Call, Event, Fault, Head, Invoke, Output, Position, Return, Status, Text, Ticket};
use super::write::write;

/// Answers, as they are recorded.
#[derive(Clone, Debug)]
pub struct Answer<'a> {
    /// Done, or surely not.
    pub status: Status,
    /// The result.
    pub output: Output<'a>,
    /// Positions: one, or one per part.
    pub positions: Vec<Position>,
    /// The ticket of a cross-partition query.
    pub ticket: Option<Ticket>,
}

impl Answer<'_> {
    /// Every sending ended in a sure error.
    pub fn refused() -> Answer<'static> {
        Answer { status: Status::No, output: Output::Value(None), positions: Vec::new(), ticket: None }
    }
}

/// A history being written. Shared by all clients of a run; times are nanoseconds since it was created.
#[derive(Debug)]
pub struct Recorder {
    started: Instant,
    file: Mutex<Lines>,
}

#[derive(Debug)]
struct Lines {
    out: BufWriter<File>,
    operations: u64,
}

impl Recorder {
    /// Creates the file and writes the head.
    pub fn create(path: &Path, head: Head<'_>) -> io::Result<Recorder> {
        let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
        write(&mut out, &Event::Head(head))?;
        Ok(Recorder { started: Instant::now(), file: Mutex::new(Lines { out, operations: 0 }) })
    }

    /// Nanoseconds since the start.
    pub fn now(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn line(&self, event: impl FnOnce(&mut u64) -> Event<'static>) -> io::Result<()> {
        let mut lines = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let event = event(&mut lines.operations);
        write(&mut lines.out, &event)
    }

    /// An operation begins: to be called before its first byte is sent. Returns its id.
    pub fn invoke(&self, client: u64, number: u64, call: Call<'static>, stale: bool) -> io::Result<u64> {
        let at = self.now();
        let mut id = 0;
        self.line(|operations| {
            *operations += 1;
            id = *operations;
            Event::Invoke(Invoke { id, at, client, number, call, stale })
        })?;
        Ok(id)
    }

    /// The whole answer was read. A repeated answer is recorded too: it must be identical.
    pub fn answer(&self, id: u64, answer: Answer<'static>) -> io::Result<()> {
        let at = self.now();
        let Answer { status, output, positions, ticket } = answer;
        self.line(|_| Event::Return(Return { id, at, status, output, positions, ticket }))
    }

    /// An operation that is over, written down only once it is known what it asked for.
    pub fn late(
        &self,
        client: u64,
        call: Call<'static>,
        from: u64,
        answer: Option<(u64, Answer<'static>)>,
    ) -> io::Result<()> {
        let mut id = 0;
        self.line(|operations| {
            *operations += 1;
            id = *operations;
            Event::Invoke(Invoke { id, at: from, client, number: 0, call, stale: false })
        })?;
        let Some((at, Answer { status, output, positions, ticket })) = answer else { return Ok(()) };
        self.line(|_| Event::Return(Return { id, at, status, output, positions, ticket }))
    }

    /// A fault was made.
    pub fn fault(&self, action: &str, who: &str) -> io::Result<()> {
        let at = self.now();
        let text = |text: &str| Text::Owned(text.as_bytes().to_vec());
        let (action, who) = (text(action), text(who));
        self.line(|_| Event::Fault(Fault { at, action, who }))
    }

    /// Writes what is still in memory.
    pub fn finish(&self) -> io::Result<()> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).out.flush()
    }
}
