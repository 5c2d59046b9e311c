//! Commands on keys and strings, as operations.

use coppice_btree::{Condition, Edit, Expiry, ExpiryCondition, Returns, Update};
use coppice_client::command::Operation;

use super::plan::{Answer, Arguments, Planned, Work, syntax_error};
use super::reply::Reply;

type Plan = Result<Planned, Reply>;

/// Longest value, in bytes.
const LONGEST: i64 = coppice_client::wire::VALUE_BYTES_MAX as i64;

fn update(arguments: &Arguments<'_>, update: Update<'_>, answer: Answer) -> Plan {
    Ok(Planned::one(Operation::update(arguments.value(1), update), answer))
}

pub fn get(arguments: &mut Arguments<'_>) -> Plan {
    Ok(Planned::one(Operation::get(arguments.value(1)), Answer::Value))
}

pub fn getrange(arguments: &mut Arguments<'_>) -> Plan {
    let (from, to) = (arguments.integer(2)?, arguments.integer(3)?);
    Ok(Planned::one(Operation::get(arguments.value(1)), Answer::Part(from, to)))
}

pub fn mget(arguments: &mut Arguments<'_>) -> Plan {
    let operations = (1..arguments.count()).map(|at| Operation::get(arguments.value(at))).collect();
    Ok(Planned::work(operations, Answer::Values))
}

pub fn exists(arguments: &mut Arguments<'_>) -> Plan {
    let operations = (1..arguments.count()).map(|at| Operation::look(arguments.value(at))).collect();
    Ok(Planned::work(operations, Answer::Count))
}

pub fn strlen(arguments: &mut Arguments<'_>) -> Plan {
    Ok(Planned::one(Operation::look(arguments.value(1)), Answer::Length))
}

pub fn type_of(arguments: &mut Arguments<'_>) -> Plan {
    Ok(Planned::one(Operation::look(arguments.value(1)), Answer::Type))
}

/// When a key expires, as options and commands say it.
#[derive(Clone, Copy)]
enum Lifetime {
    Seconds,
    Milliseconds,
    SecondsAt,
    MillisecondsAt,
}

impl Lifetime {
    fn of_option(arguments: &Arguments<'_>, at: usize) -> Option<Lifetime> {
        let options = [
            ("EX", Self::Seconds),
            ("PX", Self::Milliseconds),
            ("EXAT", Self::SecondsAt),
            ("PXAT", Self::MillisecondsAt),
        ];
        options.into_iter().find(|(word, _)| arguments.is(at, word)).map(|(_, lifetime)| lifetime)
    }

    /// Milliseconds from now on, negative if that is over; `command` names the command in what is said of it.
    fn left(self, arguments: &Arguments<'_>, at: usize, command: &str) -> Result<i64, Reply> {
        let number = arguments.integer(at)?;
        let invalid = || Reply::err(format_args!("invalid expire time in '{command}' command"));
        let in_milliseconds = match self {
            Lifetime::Seconds | Lifetime::SecondsAt => number.checked_mul(1_000).ok_or_else(invalid)?,
            Lifetime::Milliseconds | Lifetime::MillisecondsAt => number,
        };
        match self {
            Lifetime::Seconds | Lifetime::Milliseconds => Ok(in_milliseconds),
            Lifetime::SecondsAt | Lifetime::MillisecondsAt => {
                let now = i64::try_from(arguments.now).unwrap_or(i64::MAX);
                in_milliseconds.checked_sub(now).ok_or_else(invalid)
            }
        }
    }

    /// The same of a value that is written: it lives for a moment at least, and no time is before the first.
    fn of_value(self, arguments: &Arguments<'_>, at: usize, command: &str) -> Result<Expiry, Reply> {
        if arguments.integer(at)? <= 0 {
            return Err(Reply::err(format_args!("invalid expire time in '{command}' command")));
        }
        let left = self.left(arguments, at, command)?;
        Ok(after(left))
    }
}

fn after(left: i64) -> Expiry {
    Expiry::After { milliseconds: left.max(0) as u64, only: ExpiryCondition::Always }
}

pub fn set(arguments: &mut Arguments<'_>) -> Plan {
    let (mut condition, mut expiry, mut returns) = (Condition::Always, None, Returns::Nothing);
    let mut at = 3;
    while at < arguments.count() {
        if arguments.is(at, "NX") && condition == Condition::Always {
            condition = Condition::Absent;
        } else if arguments.is(at, "XX") && condition == Condition::Always {
            condition = Condition::Present;
        } else if arguments.is(at, "GET") {
            returns = Returns::Previous;
        } else if arguments.is(at, "KEEPTTL") && expiry.is_none() {
            expiry = Some(Expiry::Keep);
        } else if let (Some(lifetime), None) = (Lifetime::of_option(arguments, at), expiry)
            && at + 1 < arguments.count()
        {
            at += 1;
            expiry = Some(lifetime.of_value(arguments, at, "set")?);
        } else {
            return Err(syntax_error());
        }
        at += 1;
    }
    if at == 3 {
        return Ok(Planned::one(Operation::put(arguments.value(1), arguments.value(2)), Answer::Ok));
    }
    let terms = Update::new(Edit::Set(arguments.bytes(2))).when(condition).returning(returns);
    let answer = match (returns, condition) {
        (Returns::Previous, _) => Answer::Value,
        (_, Condition::Always) => Answer::Ok,
        _ => Answer::OkOrNil,
    };
    update(arguments, terms.expiring(expiry.unwrap_or(Expiry::Clear)), answer)
}

pub fn setnx(arguments: &mut Arguments<'_>) -> Plan {
    let terms = Update::new(Edit::Set(arguments.bytes(2))).when(Condition::Absent);
    update(arguments, terms, Answer::IsDone)
}

fn set_for(arguments: &Arguments<'_>, lifetime: Lifetime, command: &str) -> Plan {
    let expiry = lifetime.of_value(arguments, 2, command)?;
    update(arguments, Update::new(Edit::Set(arguments.bytes(3))).expiring(expiry), Answer::Ok)
}

pub fn setex(arguments: &mut Arguments<'_>) -> Plan {
    set_for(arguments, Lifetime::Seconds, "setex")
}

pub fn psetex(arguments: &mut Arguments<'_>) -> Plan {
    set_for(arguments, Lifetime::Milliseconds, "psetex")
}

pub fn getset(arguments: &mut Arguments<'_>) -> Plan {
    update(arguments, Update::new(Edit::Set(arguments.bytes(2))).returning(Returns::Previous), Answer::Value)
}

pub fn getdel(arguments: &mut Arguments<'_>) -> Plan {
    update(arguments, Update::new(Edit::Remove).returning(Returns::Previous), Answer::Value)
}

pub fn getex(arguments: &mut Arguments<'_>) -> Plan {
    let lifetime = Lifetime::of_option(arguments, 2);
    let expiry = match (arguments.count(), lifetime) {
        (2, _) => return get(arguments),
        (3, _) if arguments.is(2, "PERSIST") => Expiry::Clear,
        (4, Some(lifetime)) => lifetime.of_value(arguments, 3, "getex")?,
        _ => return Err(syntax_error()),
    };
    let terms = Update::new(Edit::Keep).when(Condition::Present).expiring(expiry).returning(Returns::Previous);
    update(arguments, terms, Answer::Value)
}

fn pairs(arguments: &Arguments<'_>, command: &str) -> Result<Vec<Operation>, Reply> {
    if arguments.count().is_multiple_of(2) {
        return Err(Reply::err(format_args!("wrong number of arguments for '{command}' command")));
    }
    let places = (1..arguments.count()).step_by(2);
    Ok(places.map(|at| Operation::put(arguments.value(at), arguments.value(at + 1))).collect())
}

pub fn mset(arguments: &mut Arguments<'_>) -> Plan {
    Ok(Planned::work(pairs(arguments, "mset")?, Answer::Ok))
}

pub fn msetnx(arguments: &mut Arguments<'_>) -> Plan {
    let operations = pairs(arguments, "msetnx")?;
    let guards = operations.iter().map(|put| Operation::check(put.key(), Condition::Absent)).collect();
    Ok(Planned::Work(Work { guards, operations, answer: Answer::IsDone }))
}

pub fn del(arguments: &mut Arguments<'_>) -> Plan {
    if arguments.count() == 2 {
        return Ok(Planned::one(Operation::delete(arguments.value(1)), Answer::Count));
    }
    // Of several keys only the count is asked for: the values might be more than an answer holds.
    let remove = |at| Operation::update(arguments.value(at), Update::new(Edit::Remove).when(Condition::Present));
    Ok(Planned::work((1..arguments.count()).map(remove).collect(), Answer::Count))
}

pub fn append(arguments: &mut Arguments<'_>) -> Plan {
    update(arguments, Update::new(Edit::Append(arguments.bytes(2))), Answer::Length)
}

pub fn setrange(arguments: &mut Arguments<'_>) -> Plan {
    let (offset, bytes) = (arguments.integer(2)?, arguments.bytes(3));
    if offset < 0 {
        return Err(Reply::err("offset is out of range"));
    }
    let end = offset.saturating_add(bytes.len() as i64);
    match u32::try_from(offset) {
        Ok(offset) if end <= LONGEST => {
            update(arguments, Update::new(Edit::SetRange { offset, bytes }), Answer::Length)
        }
        _ if bytes.is_empty() => update(arguments, Update::new(Edit::SetRange { offset: 0, bytes }), Answer::Length),
        _ => Err(Reply::err("string exceeds maximum allowed size (1 MiB)")),
    }
}

fn add(arguments: &Arguments<'_>, number: i64) -> Plan {
    update(arguments, Update::new(Edit::Add(number)).returning(Returns::New), Answer::Number)
}

pub fn incr(arguments: &mut Arguments<'_>) -> Plan {
    add(arguments, 1)
}

pub fn decr(arguments: &mut Arguments<'_>) -> Plan {
    add(arguments, -1)
}

pub fn incrby(arguments: &mut Arguments<'_>) -> Plan {
    add(arguments, arguments.integer(2)?)
}

pub fn decrby(arguments: &mut Arguments<'_>) -> Plan {
    let down = arguments.integer(2)?.checked_neg().ok_or_else(|| Reply::err("decrement would overflow"))?;
    add(arguments, down)
}

pub fn incrbyfloat(arguments: &mut Arguments<'_>) -> Plan {
    let number = arguments.bytes(2);
    let parsed: Option<f64> = std::str::from_utf8(number).ok().and_then(|text| text.parse().ok());
    if !parsed.is_some_and(f64::is_finite) {
        return Err(Reply::err("value is not a valid float"));
    }
    update(arguments, Update::new(Edit::AddFloat(number)).returning(Returns::New), Answer::Value)
}

fn expire_in(arguments: &Arguments<'_>, lifetime: Lifetime, command: &str) -> Plan {
    let left = lifetime.left(arguments, 2, command)?;
    let mut only = ExpiryCondition::Always;
    for at in 3..arguments.count() {
        let words = [
            ("NX", ExpiryCondition::None),
            ("XX", ExpiryCondition::Some),
            ("GT", ExpiryCondition::Later),
            ("LT", ExpiryCondition::Earlier),
        ];
        let word = words.into_iter().find(|(word, _)| arguments.is(at, word));
        let Some((_, word)) = word else {
            let text = arguments.bytes(at).escape_ascii().to_string();
            return Err(Reply::err(format_args!("Unsupported option {}", text.chars().take(64).collect::<String>())));
        };
        if only != ExpiryCondition::Always && only != word {
            return Err(Reply::err("NX, XX, GT and LT exclude each other: give one"));
        }
        only = word;
    }
    let edit = if left <= 0 && only == ExpiryCondition::Always { Edit::Remove } else { Edit::Keep };
    let expiry = Expiry::After { milliseconds: left.max(0) as u64, only };
    let terms = Update::new(edit).when(Condition::Present);
    let terms = if edit == Edit::Keep { terms.expiring(expiry) } else { terms };
    update(arguments, terms, Answer::IsDone)
}

pub fn expire(arguments: &mut Arguments<'_>) -> Plan {
    expire_in(arguments, Lifetime::Seconds, "expire")
}

pub fn pexpire(arguments: &mut Arguments<'_>) -> Plan {
    expire_in(arguments, Lifetime::Milliseconds, "pexpire")
}

pub fn expireat(arguments: &mut Arguments<'_>) -> Plan {
    expire_in(arguments, Lifetime::SecondsAt, "expireat")
}

pub fn pexpireat(arguments: &mut Arguments<'_>) -> Plan {
    expire_in(arguments, Lifetime::MillisecondsAt, "pexpireat")
}

pub fn persist(arguments: &mut Arguments<'_>) -> Plan {
    let clear = Update::new(Edit::Keep).when(Condition::Present).expiring(Expiry::Clear);
    let operations = vec![Operation::look(arguments.value(1)), Operation::update(arguments.value(1), clear)];
    Ok(Planned::work(operations, Answer::HadEnd))
}

fn lifetime(arguments: &Arguments<'_>, milliseconds: bool, absolute: bool) -> Plan {
    Ok(Planned::one(Operation::look(arguments.value(1)), Answer::Lifetime { milliseconds, absolute }))
}

pub fn ttl(arguments: &mut Arguments<'_>) -> Plan {
    lifetime(arguments, false, false)
}

pub fn pttl(arguments: &mut Arguments<'_>) -> Plan {
    lifetime(arguments, true, false)
}

pub fn expiretime(arguments: &mut Arguments<'_>) -> Plan {
    lifetime(arguments, false, true)
}

pub fn pexpiretime(arguments: &mut Arguments<'_>) -> Plan {
    lifetime(arguments, true, true)
}

pub fn rename(arguments: &mut Arguments<'_>) -> Plan {
    Ok(Planned::one(Operation::move_to(arguments.value(1), arguments.value(2)), Answer::Ok))
}

pub fn renamenx(arguments: &mut Arguments<'_>) -> Plan {
    Ok(Planned::one(Operation::move_to_absent(arguments.value(1), arguments.value(2)), Answer::IsDone))
}
