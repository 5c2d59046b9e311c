//! From lines to events: the reader of history files. Knows which fields each kind of line needs, and says in which
//! line and column a file is wrong.

use std::fmt;
use std::io::{self, BufRead};

use super::event::{
    Call, Change, Digest, Entry, Event, Fault, Head, Invoke, LogLine, Output, Position, Return, Status, Text, Ticket,
    bytes_of,
};
use super::json::{Scanner, Syntax};

/// Longest line: a range of a whole large map.
const LINE_BYTES_MAX: usize = 1 << 30;

/// The only version so far.
const VERSION: u64 = 1;

/// Why a history cannot be read, and where.
#[derive(Debug)]
pub struct ReadError {
    /// The file, as it was named.
    pub file: String,
    /// From 1; 0: the file as a whole.
    pub line: u64,
    /// In words.
    pub what: String,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.what),
            line => write!(f, "{}: line {line}: {}", self.file, self.what),
        }
    }
}

impl std::error::Error for ReadError {}

/// Reads events from `input` line by line and hands each to `sink`, whose complaint names the line too.
pub fn read(
    file: &str,
    mut input: impl BufRead,
    mut sink: impl FnMut(Event<'_>) -> Result<(), String>,
) -> Result<(), ReadError> {
    let mut line = Vec::new();
    let mut number = 0;
    loop {
        line.clear();
        number += 1;
        let error = |what: String| ReadError { file: file.to_string(), line: number, what };
        match read_line(&mut input, &mut line) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(failed) => return Err(error(failed.to_string())),
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let event = parse(&line).map_err(|wrong| error(format!("column {}: expected {}", wrong.at + 1, wrong.what)))?;
        sink(event).map_err(error)?;
    }
}

fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<usize> {
    let taken = io::Read::take(&mut *input, LINE_BYTES_MAX as u64).read_until(b'\n', line)?;
    if taken == LINE_BYTES_MAX {
        return Err(io::Error::other("the line is longer than 1 GiB"));
    }
    Ok(taken)
}

/// Every field that any line may have. Numbers of absent fields are `None`.
#[derive(Default)]
struct Fields<'a> {
    pub(crate) event: Text<'a>,
    pub(crate) operation: Option<Text<'a>>,
    pub(crate) action: Option<Text<'a>>,
    pub(crate) status: Option<Text<'a>>,
    pub(crate) who: Text<'a>,
    pub(crate) why: Text<'a>,
    pub(crate) commit: Text<'a>,
    pub(crate) seed: Text<'a>,
    pub(crate) key: Option<Text<'a>>,
    pub(crate) value: Option<Text<'a>>,
    pub(crate) old: Option<Text<'a>>,
    pub(crate) low: Option<Text<'a>>,
    pub(crate) high: Option<Text<'a>>,
    pub(crate) state: Option<Text<'a>>,
    pub(crate) tree: Option<Text<'a>>,
    pub(crate) version: Option<u64>,
    pub(crate) id: Option<u64>,
    pub(crate) at: Option<u64>,
    pub(crate) client: Option<u64>,
    pub(crate) number: Option<u64>,
    pub(crate) unacknowledged: Option<u64>,
    pub(crate) partition: Option<u32>,
    pub(crate) replica: Option<u32>,
    pub(crate) instance: Option<u64>,
    pub(crate) index: Option<u32>,
    pub(crate) to: Option<u32>,
    pub(crate) stale: bool,
    pub(crate) limit: u32,
    pub(crate) reverse: bool,
    pub(crate) hit: Option<bool>,
    pub(crate) output: Option<Output<'a>>,
    pub(crate) positions: Vec<Position>,
    pub(crate) from: Vec<Position>,
    pub(crate) session: Option<Position>,
    pub(crate) ticket: Option<Ticket>,
    pub(crate) previous: Option<Ticket>,
    pub(crate) pairs: Vec<(Text<'a>, Text<'a>)>,
    pub(crate) ballot: Option<(u64, u32)>,
    pub(crate) reads: Text<'a>,
    pub(crate) speculation: Option<bool>,
    pub(crate) calls: Option<Vec<Call<'a>>>,
}

/// One line.
pub fn parse(line: &[u8]) -> Result<Event<'_>, Syntax> {
    let mut scanner = Scanner::new(line);
    let mut fields = Fields::default();
    scanner.object(|scanner, name| field(scanner, name, &mut fields))?;
    scanner.end()?;
    let wrong = |what| Syntax { at: 0, what };
    match &*fields.event {
        b"inv" => invoke(fields).map_err(wrong),
        b"ret" => answer(fields).map_err(wrong),
        b"log" => log_line(fields).map_err(wrong),
        b"head" => match fields.version {
            Some(VERSION) => {
                let Fields { commit, seed, reads, speculation, pairs: state, .. } = fields;
                Ok(Event::Head(Head { commit, seed, reads, speculation, state }))
            }
            _ => Err(wrong("\"v\":1: this program reads no other version")),
        },
        b"fault" => Ok(Event::Fault(Fault {
            at: fields.at.ok_or(wrong("\"at\""))?,
            action: fields.action.ok_or(wrong("\"do\""))?,
            who: fields.who,
        })),
        b"digest" => Ok(Event::Digest(Digest {
            partition: fields.partition.ok_or(wrong("\"p\""))?,
            replica: fields.replica.ok_or(wrong("\"r\""))?,
            instance: fields.instance.ok_or(wrong("\"i\""))?,
            state: fields.state.ok_or(wrong("\"d\""))?,
            tree: fields.tree,
        })),
        _ => Err(wrong("\"e\" to be head, inv, ret, fault, log or digest")),
    }
}

fn field<'a>(scanner: &mut Scanner<'a>, name: &[u8], fields: &mut Fields<'a>) -> Result<(), Syntax> {
    match name {
        b"e" => fields.event = scanner.text()?,
        b"id" => fields.id = Some(scanner.number()?),
        b"at" => fields.at = Some(scanner.number()?),
        b"c" => fields.client = Some(scanner.number()?),
        b"n" => fields.number = Some(scanner.number()?),
        b"op" => fields.operation = Some(scanner.text()?),
        b"k" => fields.key = Some(bytes(scanner)?),
        b"v" if scanner.peek() != b'"' => fields.version = Some(scanner.number()?),
        b"v" => fields.value = Some(bytes(scanner)?),
        b"old" => fields.old = Some(bytes(scanner)?),
        b"lo" => fields.low = Some(bytes(scanner)?),
        b"hi" => fields.high = scanner.or_null(bytes)?,
        b"st" => fields.status = Some(scanner.text()?),
        b"out" => fields.output = Some(output(scanner)?),
        b"pos" => positions(scanner, &mut fields.positions)?,
        b"tk" => fields.ticket = scanner.or_null(ticket)?,
        b"prev" => fields.previous = scanner.or_null(ticket)?,
        b"ops" => fields.calls = Some(calls(scanner)?),
        b"limit" => fields.limit = scanner.small()?,
        b"rev" => fields.reverse = scanner.bool()?,
        b"stale" => fields.stale = scanner.bool()?,
        b"p" => fields.partition = Some(scanner.small()?),
        b"r" => fields.replica = Some(scanner.small()?),
        b"i" => fields.instance = Some(scanner.number()?),
        b"x" => fields.index = Some(scanner.small()?),
        b"do" => fields.action = Some(scanner.text()?),
        b"hit" => fields.hit = Some(scanner.bool()?),
        b"why" => fields.why = scanner.text()?,
        b"low" => fields.unacknowledged = Some(scanner.number()?),
        b"s" => fields.session = scanner.or_null(position)?,
        b"from" => positions(scanner, &mut fields.from)?,
        b"to" => fields.to = Some(scanner.small()?),
        b"b" => fields.ballot = scanner.or_null(ballot)?,
        b"reads" => fields.reads = scanner.text()?,
        b"speculation" => fields.speculation = Some(scanner.bool()?),
        b"who" => fields.who = scanner.text()?,
        b"commit" => fields.commit = scanner.text()?,
        b"seed" => fields.seed = scanner.text()?,
        b"d" => fields.state = Some(scanner.text()?),
        b"tree" => fields.tree = Some(scanner.text()?),
        b"state" => fields.pairs = pairs(scanner)?,
        _ => scanner.skip()?,
    }
    Ok(())
}

/// A key or a value.
#[inline]
fn bytes<'a>(scanner: &mut Scanner<'a>) -> Result<Text<'a>, Syntax> {
    scanner.text().map(bytes_of)
}

fn position(scanner: &mut Scanner<'_>) -> Result<Position, Syntax> {
    scanner.need(b'[', "[partition, instance, index]")?;
    let partition = scanner.small()?;
    scanner.need(b',', "a comma")?;
    let instance = scanner.number()?;
    scanner.need(b',', "a comma")?;
    let index = scanner.small()?;
    scanner.need(b']', "three numbers")?;
    Ok(Position { partition, instance, index })
}

fn ballot(scanner: &mut Scanner<'_>) -> Result<(u64, u32), Syntax> {
    scanner.need(b'[', "[round, replica]")?;
    let round = scanner.number()?;
    scanner.need(b',', "a comma")?;
    let replica = scanner.small()?;
    scanner.need(b']', "two numbers")?;
    Ok((round, replica))
}

fn positions(scanner: &mut Scanner<'_>, positions: &mut Vec<Position>) -> Result<(), Syntax> {
    scanner.array(|scanner| {
        positions.push(position(scanner)?);
        Ok(())
    })
}

fn ticket(scanner: &mut Scanner<'_>) -> Result<Ticket, Syntax> {
    scanner.need(b'[', "[round, replica, n]")?;
    let round = scanner.number()?;
    scanner.need(b',', "a comma")?;
    let replica = scanner.small()?;
    scanner.need(b',', "a comma")?;
    let number = scanner.number()?;
    scanner.need(b']', "three numbers")?;
    Ok(Ticket { round, replica, number })
}

fn pair<'a>(scanner: &mut Scanner<'a>) -> Result<(Text<'a>, Text<'a>), Syntax> {
    let key = bytes(scanner)?;
    scanner.need(b',', "a comma")?;
    let value = bytes(scanner)?;
    scanner.need(b']', "a key and a value")?;
    Ok((key, value))
}

fn pairs<'a>(scanner: &mut Scanner<'a>) -> Result<Vec<(Text<'a>, Text<'a>)>, Syntax> {
    let mut pairs = Vec::new();
    scanner.array(|scanner| {
        scanner.need(b'[', "[key, value]")?;
        pairs.push(pair(scanner)?);
        Ok(())
    })?;
    Ok(pairs)
}

/// The result of one call; its shape tells which kind it is.
fn output<'a>(scanner: &mut Scanner<'a>) -> Result<Output<'a>, Syntax> {
    if scanner.peek() == b't' {
        scanner.bool()?;
        return Ok(Output::Done);
    }
    if !scanner.take(b'[') {
        return Ok(Output::Value(scanner.or_null(bytes)?));
    }
    match scanner.peek() {
        b']' => {
            scanner.need(b']', "the end of the array")?;
            Ok(Output::Pairs(Vec::new()))
        }
        b't' | b'f' => cas(scanner),
        _ => elements(scanner),
    }
}

fn cas<'a>(scanner: &mut Scanner<'a>) -> Result<Output<'a>, Syntax> {
    let done = scanner.bool()?;
    scanner.need(b',', "a comma")?;
    let was = scanner.or_null(bytes)?;
    scanner.need(b']', "[done, value that was there]")?;
    Ok(Output::Cas(done, was))
}

fn elements<'a>(scanner: &mut Scanner<'a>) -> Result<Output<'a>, Syntax> {
    let mut pairs = Vec::new();
    let mut list = Vec::new();
    loop {
        if scanner.take(b'[') {
            if matches!(scanner.peek(), b't' | b'f') {
                list.push(cas(scanner)?);
            } else {
                pairs.push(pair(scanner)?);
            }
        } else {
            list.push(Output::Value(scanner.or_null(bytes)?));
        }
        if !scanner.take(b',') {
            break;
        }
    }
    scanner.need(b']', "a comma or the end of the array")?;
    match (pairs.is_empty(), list.is_empty()) {
        (false, true) => Ok(Output::Pairs(pairs)),
        (true, false) => Ok(Output::List(list)),
        _ => scanner.error("either pairs or results, not both"),
    }
}

fn calls<'a>(scanner: &mut Scanner<'a>) -> Result<Vec<Call<'a>>, Syntax> {
    let mut calls = Vec::new();
    scanner.array(|scanner| {
        let mut fields = Fields::default();
        scanner.object(|scanner, name| field(scanner, name, &mut fields))?;
        match call(&mut fields) {
            Ok(Call::Range { .. } | Call::Many(_)) => scanner.error("get, put, insert, delete or cas in a many"),
            Ok(call) => {
                calls.push(call);
                Ok(())
            }
            Err(what) => scanner.error(what),
        }
    })?;
    Ok(calls)
}

fn call<'a>(fields: &mut Fields<'a>) -> Result<Call<'a>, &'static str> {
    let operation = fields.operation.take().ok_or("\"op\"")?;
    let mut key = || fields.key.take().ok_or("\"k\"");
    Ok(match &*operation {
        b"get" => Call::Get { key: key()? },
        b"put" => Call::Put { key: key()?, value: fields.value.take().ok_or("\"v\"")? },
        b"insert" => Call::Insert { key: key()?, value: fields.value.take().ok_or("\"v\"")? },
        b"delete" => Call::Delete { key: key()? },
        b"cas" => Call::Cas {
            key: key()?,
            old: fields.old.take().ok_or("\"old\"")?,
            value: fields.value.take().ok_or("\"v\"")?,
        },
        b"range" => Call::Range {
            low: fields.low.take().unwrap_or_default(),
            high: fields.high.take(),
            limit: fields.limit,
            reverse: fields.reverse,
        },
        b"many" => Call::Many(fields.calls.take().ok_or("\"ops\"")?),
        _ => return Err("\"op\" to be get, put, insert, delete, cas, range or many"),
    })
}

fn invoke(mut fields: Fields<'_>) -> Result<Event<'_>, &'static str> {
    Ok(Event::Invoke(Invoke {
        id: fields.id.ok_or("\"id\"")?,
        at: fields.at.ok_or("\"at\"")?,
        client: fields.client.ok_or("\"c\"")?,
        number: fields.number.unwrap_or(0),
        call: call(&mut fields)?,
        stale: fields.stale,
    }))
}

fn answer(fields: Fields<'_>) -> Result<Event<'_>, &'static str> {
    Ok(Event::Return(Return {
        id: fields.id.ok_or("\"id\"")?,
        at: fields.at.ok_or("\"at\"")?,
        status: match fields.status.as_deref() {
            Some(b"ok") => Status::Ok,
            Some(b"no") => Status::No,
            _ => return Err("\"st\" to be ok or no"),
        },
        output: fields.output.unwrap_or(Output::Value(None)),
        positions: fields.positions,
        ticket: fields.ticket,
    }))
}

fn log_line(mut fields: Fields<'_>) -> Result<Event<'_>, &'static str> {
    let position = Position {
        partition: fields.partition.ok_or("\"p\"")?,
        instance: fields.instance.ok_or("\"i\"")?,
        index: fields.index.unwrap_or(0),
    };
    let replica = fields.replica.ok_or("\"r\"")?;
    let action = fields.action.take().ok_or("\"do\"")?;
    let hit = fields.hit.unwrap_or(true);
    let entry = match &*action {
        b"cmd" => Entry::Command {
            client: fields.client.ok_or("\"c\"")?,
            number: fields.number.ok_or("\"n\"")?,
            low: fields.unacknowledged.unwrap_or(0),
            session: fields.session,
            expired: &*fields.why == b"expired",
            call: call(&mut fields)?,
        },
        b"place" => place(&fields, None)?,
        b"split" => {
            let change = Change::Split {
                id: fields.id.ok_or("\"id\"")?,
                key: fields.key.take().ok_or("\"k\"")?,
                to: fields.to.ok_or("\"to\"")?,
            };
            place(&fields, Some(change))?
        }
        b"seal" => place(&fields, Some(Change::Seal { id: fields.id.ok_or("\"id\"")? }))?,
        b"merge" => {
            let id = fields.id.ok_or("\"id\"")?;
            let change = match (fields.from.first(), fields.to) {
                (Some(&from), _) => Change::Take { id, from },
                (None, Some(to)) => Change::End { id, to },
                (None, None) => return Err("\"from\" or \"to\""),
            };
            place(&fields, Some(change))?
        }
        b"born" => Entry::Born {
            from: fields.from.first().copied(),
            low: fields.low.unwrap_or_default(),
            high: fields.high,
            ticket: fields.ticket,
        },
        b"noop" | b"conf" | b"open" => Entry::Other,
        _ => return Err("\"do\" to be cmd, place, split, seal, merge, conf, noop, open or born"),
    };
    Ok(Event::Log(LogLine { position, replica, ballot: fields.ballot, entry, hit }))
}

fn place<'a>(fields: &Fields<'a>, change: Option<Change<'a>>) -> Result<Entry<'a>, &'static str> {
    Ok(Entry::Place { ticket: fields.ticket.ok_or("\"tk\"")?, previous: fields.previous, change })
}
