//! Commands over many keys: counts, pages, ranges.

use bytes::Bytes;
use coppice_client::{Range, Value};

use super::cursors::Cursors;
use super::glob::{self, PATTERN_BYTES_MAX};
use super::number;
use super::plan::{Arguments, Planned, RangeAnswer, RangePlan, Ranged, syntax_error};
use super::reply::Reply;

type Plan = Result<Planned, Reply>;

/// Keys that one page of SCAN looks at: asked for more, it gives so many.
const PAGE_MAX: u64 = 10_000;
const PAGE_DEFAULT: u64 = 10;

/// Keys that one KEYS looks at, and pairs of one RANGE.
const ANSWER_MAX: u64 = 100_000;

/// Bytes of keys and values of one answer.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

fn planned(range: Range, answer: RangeAnswer) -> Plan {
    matching(range, None, answer)
}

fn matching(range: Range, pattern: Option<Bytes>, answer: RangeAnswer) -> Plan {
    Ok(Planned::Range(RangePlan { range, pattern, answer }))
}

pub fn dbsize(_: &mut Arguments<'_>) -> Plan {
    planned(Range::between(&[], None).count_only(), RangeAnswer::Count)
}

fn pattern(bytes: &[u8]) -> Result<Bytes, Reply> {
    if bytes.len() > PATTERN_BYTES_MAX {
        return Err(Reply::err(format_args!("a pattern has at most {PATTERN_BYTES_MAX} bytes")));
    }
    Ok(Bytes::copy_from_slice(bytes))
}

pub fn keys(arguments: &mut Arguments<'_>) -> Plan {
    let pattern = pattern(arguments.strings[1])?;
    let range = Range::prefix(glob::prefix(&pattern)).keys_only().limit(ANSWER_MAX).limit_bytes(ANSWER_BYTES_MAX);
    matching(range, Some(pattern), RangeAnswer::Keys)
}

pub fn scan(arguments: &mut Arguments<'_>) -> Plan {
    let cursor = number::unsigned(arguments.bytes(1)).ok_or_else(|| Reply::err("invalid cursor"))?;
    let (mut wanted, mut count, mut strings) = (None, PAGE_DEFAULT, true);
    for at in (2..arguments.count()).step_by(2) {
        let Some(argument) = arguments.strings.get(at + 1) else { return Err(syntax_error()) };
        if arguments.is(at, "MATCH") {
            wanted = Some(pattern(argument)?);
        } else if arguments.is(at, "COUNT") {
            count =
                u64::try_from(arguments.integer(at + 1)?).ok().filter(|&count| count > 0).ok_or_else(syntax_error)?;
        } else if arguments.is(at, "TYPE") {
            strings &= arguments.is(at + 1, "string");
        } else {
            return Err(syntax_error());
        }
    }
    let mut range = Range::prefix(wanted.as_deref().map(glob::prefix).unwrap_or_default());
    if cursor != 0 {
        let behind = arguments.cursors.behind(cursor).ok_or_else(|| {
            Reply::err("unknown cursor: the node that gave it knows it, until it restarts or has given 16384 others. Begin with 0")
        })?;
        range = range.after(&behind);
    }
    if !strings {
        // Every key holds a string, so no page has any other.
        return Ok(Planned::Reply(page(Vec::new(), None)));
    }
    let range = range.keys_only().limit(count.min(PAGE_MAX)).limit_bytes(ANSWER_BYTES_MAX);
    matching(range, wanted, RangeAnswer::Page)
}

fn page(keys: Vec<Reply>, next: Option<u64>) -> Reply {
    Reply::Array(vec![Reply::bulk(next.unwrap_or(0).to_string()), Reply::Array(keys)])
}

pub fn randomkey(_: &mut Arguments<'_>) -> Plan {
    planned(Range::between(&[], None).keys_only().limit(1), RangeAnswer::RandomFirst)
}

/// An end of a range, as ZRANGEBYLEX has it.
enum Bound<'a> {
    First,
    Last,
    Including(&'a [u8]),
    Excluding(&'a [u8]),
}

impl Bound<'_> {
    fn of(argument: &[u8]) -> Result<Bound<'_>, Reply> {
        match argument {
            b"-" => Ok(Bound::First),
            b"+" => Ok(Bound::Last),
            [b'[', key @ ..] => Ok(Bound::Including(key)),
            [b'(', key @ ..] => Ok(Bound::Excluding(key)),
            _ => Err(Reply::err("min or max not valid string range item: write [key, (key, - or +")),
        }
    }
}

/// The keys from one bound to another; none: there are none.
fn between(low: &[u8], high: &[u8]) -> Result<Option<Range>, Reply> {
    let behind = |key: &[u8]| [key, &[0]].concat();
    let low = match Bound::of(low)? {
        Bound::First => Vec::new(),
        Bound::Last => {
            Bound::of(high)?;
            return Ok(None);
        }
        Bound::Including(key) => key.to_vec(),
        Bound::Excluding(key) => behind(key),
    };
    let high = match Bound::of(high)? {
        Bound::First => return Ok(None),
        Bound::Last => None,
        Bound::Including(key) => Some(behind(key)),
        Bound::Excluding(key) => Some(key.to_vec()),
    };
    Ok(Some(Range::between(&low, high.as_deref())))
}

pub fn range(arguments: &mut Arguments<'_>) -> Plan {
    pairs(arguments, between(arguments.strings[1], arguments.strings[2])?)
}

pub fn revrange(arguments: &mut Arguments<'_>) -> Plan {
    let range = between(arguments.strings[2], arguments.strings[1])?;
    pairs(arguments, range.map(Range::reverse))
}

pub fn rangecount(arguments: &mut Arguments<'_>) -> Plan {
    match between(arguments.strings[1], arguments.strings[2])? {
        Some(range) => planned(range.count_only(), RangeAnswer::Count),
        None => Ok(Planned::Reply(Reply::Integer(0))),
    }
}

fn pairs(arguments: &Arguments<'_>, range: Option<Range>) -> Plan {
    let (mut limit, mut keys_only, mut at) = (None, false, 3);
    while at < arguments.count() {
        if arguments.is(at, "NOVALUES") {
            keys_only = true;
        } else if arguments.is(at, "LIMIT") && at + 1 < arguments.count() {
            at += 1;
            limit = Some(u64::try_from(arguments.integer(at)?).map_err(|_| Reply::err("LIMIT is negative"))?);
        } else {
            return Err(syntax_error());
        }
        at += 1;
    }
    let Some(range) = range.filter(|_| limit != Some(0)) else {
        return Ok(Planned::Reply(Reply::Array(Vec::new())));
    };
    let range = if keys_only { range.keys_only() } else { range };
    let range = range.limit(limit.unwrap_or(ANSWER_MAX).min(ANSWER_MAX)).limit_bytes(ANSWER_BYTES_MAX);
    planned(range, RangeAnswer::Pairs { keys_only, limit })
}

fn too_many() -> Reply {
    Reply::err(format_args!(
        "the range holds more than an answer may, {ANSWER_MAX} keys or {} MiB: give LIMIT and go on behind the last key, \
         or use SCAN",
        ANSWER_BYTES_MAX >> 20
    ))
}

/// What a range becomes: an answer, or the next range of the same command.
pub fn answer(plan: RangePlan, ranged: Ranged, cursors: &Cursors, draw: u64) -> Result<Reply, Box<RangePlan>> {
    let Ranged { pairs, last, count, is_limited } = ranged;
    let key = |(key, _): (Value, Value)| Reply::Bulk(key);
    Ok(match plan.answer {
        RangeAnswer::Count => Reply::count(count),
        // Asked for so many and given fewer, for their bytes: whoever pages would take it for the end.
        RangeAnswer::Pairs { limit, .. } if is_limited && limit.is_none_or(|limit| (pairs.len() as u64) < limit) => {
            too_many()
        }
        RangeAnswer::Pairs { keys_only: true, .. } => Reply::Array(pairs.into_iter().map(key).collect()),
        RangeAnswer::Pairs { .. } => Reply::Pairs(pairs),
        RangeAnswer::Keys if is_limited => too_many(),
        RangeAnswer::Keys => Reply::Array(pairs.into_iter().map(key).collect()),
        RangeAnswer::Page => {
            let next = last.filter(|_| is_limited).map(|last| cursors.give(&last));
            page(pairs.into_iter().map(key).collect(), next)
        }
        RangeAnswer::RandomFirst => match pairs.into_iter().next() {
            None => Reply::Nil,
            Some((first, _)) => {
                let range = Range::between(&first, None).reverse().keys_only().limit(1);
                return Err(Box::new(RangePlan { range, pattern: None, answer: RangeAnswer::RandomLast(first) }));
            }
        },
        RangeAnswer::RandomLast(first) => match pairs.into_iter().next() {
            None => Reply::Bulk(first),
            Some((last, _)) => {
                let range = Range::between(&drawn(&first, &last, draw), None).keys_only().limit(1);
                return Err(Box::new(RangePlan { range, pattern: None, answer: RangeAnswer::RandomBetween(last) }));
            }
        },
        RangeAnswer::RandomBetween(last) => pairs.into_iter().next().map_or(Reply::Bulk(last), key),
    })
}

/// A byte string between two others: their common start, and a number between those that follow.
fn drawn(first: &[u8], last: &[u8], draw: u64) -> Vec<u8> {
    let common = first.iter().zip(last).take_while(|(one, other)| one == other).count();
    let number = |key: &[u8]| {
        let mut bytes = [0; 8];
        let rest = &key[common..];
        let taken = rest.len().min(8);
        bytes[..taken].copy_from_slice(&rest[..taken]);
        u64::from_be_bytes(bytes)
    };
    // Keys change between the questions: the last key may lie before the first.
    let (low, high) = (number(first.min(last)), number(first.max(last)));
    let between = match (high - low).checked_add(1) {
        Some(count) => low + draw % count,
        None => draw,
    };
    [&first[..common], &between.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_drawn_from_first_to_last() {
        for draw in [0, 1, 7, u64::MAX / 3, u64::MAX] {
            for (first, last) in
                [("a", "b"), ("user:1", "user:9"), ("", "z"), ("a", "a"), ("a", "a\0\0"), ("", "\u{7f}")]
            {
                let (first, last) = (first.as_bytes(), last.as_bytes());
                let drawn = drawn(first, last, draw);
                // Zeros at its end stand for nothing.
                let end = drawn.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1);
                assert!(drawn[..end] <= *last && *drawn >= *first, "{first:?} {last:?} {drawn:?}");
            }
        }
    }
}
