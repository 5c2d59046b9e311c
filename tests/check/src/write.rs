//! From events to lines: what clients and dumps write. The opposite of `read.rs`.

use std::io::{self, Write};

use super::event::{
    Call, Change, Digest, Entry, Event, Fault, Head, Invoke, LogLine, Output, Position, Return, Status, Ticket, text_of,
};

/// Writes one event as one line.
pub fn write(out: &mut impl Write, event: &Event<'_>) -> io::Result<()> {
    match event {
        Event::Head(head) => write_head(out, head)?,
        Event::Invoke(invoke) => write_invoke(out, invoke)?,
        Event::Return(answer) => write_return(out, answer)?,
        Event::Fault(Fault { at, action, who }) => {
            write!(out, "{{\"e\":\"fault\",\"at\":{at},\"do\":")?;
            text(out, action)?;
            out.write_all(b",\"who\":")?;
            text(out, who)?;
        }
        Event::Log(line) => write_log(out, line)?,
        Event::Digest(Digest { partition, replica, instance, state, tree }) => {
            write!(out, "{{\"e\":\"digest\",\"p\":{partition},\"r\":{replica},\"i\":{instance},\"d\":")?;
            text(out, state)?;
            if let Some(tree) = tree {
                out.write_all(b",\"tree\":")?;
                text(out, tree)?;
            }
        }
    }
    out.write_all(b"}\n")
}

/// A JSON string of `bytes`.
pub fn text(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let text = text_of(bytes);
    out.write_all(b"\"")?;
    let mut written = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.write_all(&text.as_bytes()[written..at])?;
        written = at + 1;
        match byte {
            b'"' => out.write_all(b"\\\"")?,
            b'\\' => out.write_all(b"\\\\")?,
            _ => write!(out, "\\u{byte:04x}")?,
        }
    }
    out.write_all(&text.as_bytes()[written..])?;
    out.write_all(b"\"")
}

fn or_null(out: &mut impl Write, bytes: Option<&[u8]>) -> io::Result<()> {
    match bytes {
        Some(bytes) => text(out, bytes),
        None => out.write_all(b"null"),
    }
}

fn list<T>(
    out: &mut impl Write,
    items: &[T],
    mut item: impl FnMut(&mut dyn Write, &T) -> io::Result<()>,
) -> io::Result<()> {
    out.write_all(b"[")?;
    for (index, each) in items.iter().enumerate() {
        if index > 0 {
            out.write_all(b",")?;
        }
        item(out, each)?;
    }
    out.write_all(b"]")
}

fn pairs<B: AsRef<[u8]>>(out: &mut impl Write, pairs: &[(B, B)]) -> io::Result<()> {
    list(out, pairs, |mut out, (key, value)| {
        out.write_all(b"[")?;
        text(&mut out, key.as_ref())?;
        out.write_all(b",")?;
        text(&mut out, value.as_ref())?;
        out.write_all(b"]")
    })
}

fn position(out: &mut dyn Write, at: &Position) -> io::Result<()> {
    write!(out, "[{},{},{}]", at.partition, at.instance, at.index)
}

fn ticket(out: &mut impl Write, ticket: Option<Ticket>) -> io::Result<()> {
    match ticket {
        Some(Ticket { round, replica, number }) => write!(out, "[{round},{replica},{number}]"),
        None => out.write_all(b"null"),
    }
}

fn write_head(out: &mut impl Write, head: &Head<'_>) -> io::Result<()> {
    out.write_all(b"{\"e\":\"head\",\"v\":1,\"commit\":")?;
    text(out, &head.commit)?;
    out.write_all(b",\"seed\":")?;
    text(out, &head.seed)?;
    out.write_all(b",\"clock\":\"mono_ns\"")?;
    if !head.reads.is_empty() {
        out.write_all(b",\"reads\":")?;
        text(out, &head.reads)?;
    }
    if let Some(speculation) = head.speculation {
        write!(out, ",\"speculation\":{speculation}")?;
    }
    out.write_all(b",\"state\":")?;
    pairs(out, &head.state)
}

fn write_invoke(out: &mut impl Write, invoke: &Invoke<'_>) -> io::Result<()> {
    let Invoke { id, at, client, number, .. } = invoke;
    write!(out, "{{\"e\":\"inv\",\"id\":{id},\"at\":{at},\"c\":{client},\"n\":{number},")?;
    call(out, &invoke.call)?;
    if invoke.stale {
        out.write_all(b",\"stale\":true")?;
    }
    Ok(())
}

fn call(mut out: &mut dyn Write, call: &Call<'_>) -> io::Result<()> {
    let mut keyed = |name: &str, key: &[u8], old: Option<&[u8]>, value: Option<&[u8]>| {
        write!(out, "\"op\":\"{name}\",\"k\":")?;
        text(&mut out, key)?;
        for (name, bytes) in [("old", old), ("v", value)] {
            if let Some(bytes) = bytes {
                write!(out, ",\"{name}\":")?;
                text(&mut out, bytes)?;
            }
        }
        Ok(())
    };
    match call {
        Call::Get { key } => keyed("get", key, None, None),
        Call::Put { key, value } => keyed("put", key, None, Some(value)),
        Call::Insert { key, value } => keyed("insert", key, None, Some(value)),
        Call::Delete { key } => keyed("delete", key, None, None),
        Call::Cas { key, old, value } => keyed("cas", key, Some(old), Some(value)),
        Call::Range { low, high, limit, reverse } => {
            out.write_all(b"\"op\":\"range\",\"lo\":")?;
            text(&mut out, low)?;
            out.write_all(b",\"hi\":")?;
            or_null(&mut out, high.as_deref())?;
            if *limit > 0 {
                write!(out, ",\"limit\":{limit}")?;
            }
            if *reverse { out.write_all(b",\"rev\":true") } else { Ok(()) }
        }
        Call::Many(calls) => {
            out.write_all(b"\"op\":\"many\",\"ops\":")?;
            list(&mut out, calls, |out, each| {
                out.write_all(b"{")?;
                self::call(out, each)?;
                out.write_all(b"}")
            })
        }
    }
}

fn write_return(mut out: &mut impl Write, answer: &Return<'_>) -> io::Result<()> {
    let status = match answer.status {
        Status::Ok => "ok",
        Status::No => "no",
    };
    write!(out, "{{\"e\":\"ret\",\"id\":{},\"at\":{},\"st\":\"{status}\"", answer.id, answer.at)?;
    if answer.status == Status::Ok {
        out.write_all(b",\"out\":")?;
        output(&mut out, &answer.output)?;
    }
    if !answer.positions.is_empty() {
        out.write_all(b",\"pos\":")?;
        list(out, &answer.positions, position)?;
    }
    if answer.ticket.is_some() {
        out.write_all(b",\"tk\":")?;
        ticket(out, answer.ticket)?;
    }
    Ok(())
}

fn output(mut out: &mut dyn Write, result: &Output<'_>) -> io::Result<()> {
    match result {
        Output::Value(value) => or_null(&mut out, value.as_deref()),
        Output::Done => out.write_all(b"true"),
        Output::Cas(done, was) => {
            write!(out, "[{done},")?;
            or_null(&mut out, was.as_deref())?;
            out.write_all(b"]")
        }
        Output::Pairs(found) => pairs(&mut out, found),
        Output::List(results) => list(&mut out, results, |out, each| output(out, each)),
    }
}

fn write_log(mut out: &mut impl Write, line: &LogLine<'_>) -> io::Result<()> {
    let Position { partition, instance, index } = line.position;
    let replica = line.replica;
    write!(out, "{{\"e\":\"log\",\"p\":{partition},\"r\":{replica},\"i\":{instance},\"x\":{index},")?;
    if let Some((round, replica)) = line.ballot {
        write!(out, "\"b\":[{round},{replica}],")?;
    }
    match &line.entry {
        Entry::Command { client, number, call: what, low, session, expired } => {
            write!(out, "\"do\":\"cmd\",\"c\":{client},\"n\":{number},")?;
            call(out, what)?;
            if *low > 0 {
                write!(out, ",\"low\":{low}")?;
            }
            if let Some(session) = session {
                out.write_all(b",\"s\":")?;
                position(&mut out, session)?;
            }
            if *expired {
                out.write_all(b",\"why\":\"expired\"")?;
            }
        }
        Entry::Place { ticket: placed, previous, change } => {
            write_change(out, change.as_ref())?;
            out.write_all(b",\"tk\":")?;
            ticket(out, Some(*placed))?;
            out.write_all(b",\"prev\":")?;
            ticket(out, *previous)?;
        }
        Entry::Born { from, low, high, ticket: last } => {
            out.write_all(b"\"do\":\"born\",\"from\":")?;
            list(out, from.as_slice(), position)?;
            out.write_all(b",\"lo\":")?;
            text(out, low)?;
            out.write_all(b",\"hi\":")?;
            or_null(out, high.as_deref())?;
            out.write_all(b",\"tk\":")?;
            ticket(out, *last)?;
        }
        Entry::Other => out.write_all(b"\"do\":\"noop\"")?,
    }
    write!(out, ",\"hit\":{}", line.hit)
}

fn write_change(mut out: &mut impl Write, change: Option<&Change<'_>>) -> io::Result<()> {
    match change {
        None => out.write_all(b"\"do\":\"place\""),
        Some(Change::Split { id, key, to }) => {
            write!(out, "\"do\":\"split\",\"id\":{id},\"to\":{to},\"k\":")?;
            text(&mut out, key)
        }
        Some(Change::Seal { id }) => write!(out, "\"do\":\"seal\",\"id\":{id}"),
        Some(Change::Take { id, from }) => {
            write!(out, "\"do\":\"merge\",\"id\":{id},\"from\":")?;
            list(out, &[*from], position)
        }
        Some(Change::End { id, to }) => write!(out, "\"do\":\"merge\",\"id\":{id},\"to\":{to}"),
    }
}
