//! Updates: commands whose effect depends on what is there. Their terms, the terms as bytes, and what an edit makes of
//! a value. Every replica computes the same bytes: no clock, no locale, and of floating point only what IEEE 754
//! defines.
//!
//! ```text
//! terms  = u8 edit (bits 0-2), condition (3-4), returns (5-6), u8 expiry, [after: u64 milliseconds],
//!          [equals: u32 length, bytes], [set range: u32 offset], [add: i64], operand
//! ```
//! Integers are little-endian. The operand is what is left: of set, append, set range and add float.
//!
//! It carries the expiry for whoever keeps deadlines; a tree keeps none.

use std::borrow::Cow;
use std::fmt;

/// Longest value that an edit may make.
pub const EDITED_BYTES_MAX: usize = 1 << 20;

/// Longest text of an integer of 64 bits. A longer one is not looked at: a value may be all zeros.
const INTEGER_BYTES_MAX: usize = 20;

/// Longest text that is read as a floating-point number: no number that Rust or C prints is longer.
const FLOAT_BYTES_MAX: usize = 512;

/// What becomes of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Update<'a> {
    /// What becomes of the value.
    pub edit: Edit<'a>,
    /// Whether anything becomes of it.
    pub condition: Condition<'a>,
    /// What becomes of the time at which the key expires.
    pub expiry: Expiry,
    /// Which value is answered.
    pub returns: Returns,
}

/// What becomes of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Edit<'a> {
    /// It stays.
    Keep,
    /// It becomes this.
    Set(&'a [u8]),
    /// This is appended; an absent value is empty.
    Append(&'a [u8]),
    /// These bytes are written from an offset on, over what is there; zeros fill what lies between. No bytes change
    /// nothing.
    SetRange {
        /// Where the first byte goes.
        offset: u32,
        /// What is written.
        bytes: &'a [u8],
    },
    /// This is added to a decimal integer of 64 bits; an absent value is 0.
    Add(i64),
    /// This decimal number is added to a decimal number; an absent value is 0. The sum is the nearest number of 64
    /// bits, written with the fewest digits that name it, at most 17, and without an exponent.
    AddFloat(&'a [u8]),
    /// The key is removed.
    Remove,
}

/// What must be there for a command to do anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Condition<'a> {
    /// Anything, or nothing.
    Always,
    /// Nothing.
    Absent,
    /// Any value.
    Present,
    /// This value.
    Equals(&'a [u8]),
}

/// What becomes of the time at which a key expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Expiry {
    /// It stays.
    Keep,
    /// The key no longer expires.
    Clear,
    /// It expires so many milliseconds after the command.
    After {
        /// How many.
        milliseconds: u64,
        /// Whether the time is set.
        only: ExpiryCondition,
    },
}

/// Under which condition an expiry is set. A key that does not expire counts as one that expires last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExpiryCondition {
    /// Always.
    Always,
    /// If the key has none.
    None,
    /// If the key has one.
    Some,
    /// If that is later than the one it has.
    Later,
    /// If that is earlier than the one it has.
    Earlier,
}

/// Which value a command answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Returns {
    /// None.
    Nothing,
    /// The one before the command.
    Previous,
    /// The one after it.
    New,
}

/// Whether an update was done, or why not. Then nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UpdateOutcome {
    /// It was done.
    Done,
    /// The condition does not hold, or that of the expiry.
    Unmet,
    /// The value is no decimal integer of 64 bits.
    NotInteger,
    /// The sum is no integer of 64 bits, or no finite number.
    Overflow,
    /// The value, or what is added, is no finite decimal number.
    NotFloat,
    /// The value would be longer than [`EDITED_BYTES_MAX`].
    TooLong,
    /// There is nothing to move.
    Missing,
}

impl UpdateOutcome {
    /// All of them, by their codes.
    pub const ALL: [UpdateOutcome; 7] = [
        UpdateOutcome::Done,
        UpdateOutcome::Unmet,
        UpdateOutcome::NotInteger,
        UpdateOutcome::Overflow,
        UpdateOutcome::NotFloat,
        UpdateOutcome::TooLong,
        UpdateOutcome::Missing,
    ];
}

impl fmt::Display for UpdateOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UpdateOutcome::Done => "it was done",
            UpdateOutcome::Unmet => "its condition does not hold",
            UpdateOutcome::NotInteger => "the value is no decimal integer of 64 bits",
            UpdateOutcome::Overflow => "the sum is out of range",
            UpdateOutcome::NotFloat => "the value, or what is added, is no finite decimal number",
            UpdateOutcome::TooLong => "the value would be longer than 1 MiB",
            UpdateOutcome::Missing => "the key is absent",
        })
    }
}

impl std::error::Error for UpdateOutcome {}

/// What an edit does to a key.
pub(crate) enum Change<'a> {
    /// Nothing.
    Nothing,
    /// It writes this.
    Write(Cow<'a, [u8]>),
    /// It removes the key.
    Remove,
}

impl Condition<'_> {
    /// Whether it holds for what is there.
    pub fn holds(&self, current: Option<&[u8]>) -> bool {
        match self {
            Condition::Always => true,
            Condition::Absent => current.is_none(),
            Condition::Present => current.is_some(),
            Condition::Equals(expected) => current == Some(expected),
        }
    }
}

impl<'a> Edit<'a> {
    /// Bytes by which it may make a value longer than it is and than what it carries; `None`: not at all.
    pub fn grows_by(&self) -> Option<usize> {
        match self {
            Edit::Append(bytes) => Some(bytes.len()),
            Edit::SetRange { offset, bytes } => Some(*offset as usize + bytes.len()),
            Edit::Keep | Edit::Set(_) | Edit::Add(_) | Edit::AddFloat(_) | Edit::Remove => None,
        }
    }

    /// What it does to what is there.
    pub(crate) fn apply(&self, current: Option<&[u8]>) -> Result<Change<'a>, UpdateOutcome> {
        let now = current.unwrap_or_default();
        let fits = |length: usize| if length > EDITED_BYTES_MAX { Err(UpdateOutcome::TooLong) } else { Ok(length) };
        Ok(Change::Write(match *self {
            Edit::Keep => return Ok(Change::Nothing),
            Edit::Remove => return Ok(if current.is_some() { Change::Remove } else { Change::Nothing }),
            Edit::Set(value) => Cow::Borrowed(value),
            Edit::Append(bytes) => {
                fits(now.len() + bytes.len())?;
                [now, bytes].concat().into()
            }
            Edit::SetRange { bytes: [], .. } => return Ok(Change::Nothing),
            Edit::SetRange { offset, bytes } => {
                let end = fits(offset as usize + bytes.len())?;
                let mut value = now.to_vec();
                value.resize(value.len().max(end), 0);
                value[offset as usize..end].copy_from_slice(bytes);
                value.into()
            }
            Edit::Add(number) => {
                let before = if current.is_some() { integer(now).ok_or(UpdateOutcome::NotInteger)? } else { 0 };
                let sum = before.checked_add(number).ok_or(UpdateOutcome::Overflow)?;
                sum.to_string().into_bytes().into()
            }
            Edit::AddFloat(number) => {
                let before = if current.is_some() { float(now).ok_or(UpdateOutcome::NotFloat)? } else { 0.0 };
                let sum = before + float(number).ok_or(UpdateOutcome::NotFloat)?;
                if !sum.is_finite() {
                    return Err(UpdateOutcome::Overflow);
                }
                // Display writes the shortest digits that name the number, and never an exponent. Zero has no sign.
                (if sum == 0.0 { 0.0 } else { sum }).to_string().into_bytes().into()
            }
        }))
    }
}

/// A decimal integer in its only form: no sign before a positive number, no zeros before others, no spaces.
fn integer(text: &[u8]) -> Option<i64> {
    let number: i64 = short(text, INTEGER_BYTES_MAX)?.parse().ok()?;
    (number.to_string().as_bytes() == text).then_some(number)
}

fn float(text: &[u8]) -> Option<f64> {
    short(text, FLOAT_BYTES_MAX)?.parse().ok().filter(|number: &f64| number.is_finite())
}

fn short(text: &[u8], bytes_max: usize) -> Option<&str> {
    if text.len() > bytes_max { None } else { std::str::from_utf8(text).ok() }
}

const EDITS: u8 = 7;
const CONDITION_SHIFT: u32 = 3;
const RETURNS_SHIFT: u32 = 5;

impl<'a> Update<'a> {
    /// An edit without a condition that answers no value. A value that is set does not expire, others expire as before.
    pub const fn new(edit: Edit<'a>) -> Update<'a> {
        let expiry = if let Edit::Set(_) = edit { Expiry::Clear } else { Expiry::Keep };
        Update { edit, condition: Condition::Always, expiry, returns: Returns::Nothing }
    }

    /// The same under a condition.
    #[must_use]
    pub const fn when(mut self, condition: Condition<'a>) -> Update<'a> {
        self.condition = condition;
        self
    }

    /// The same with this expiry.
    #[must_use]
    pub const fn expiring(mut self, expiry: Expiry) -> Update<'a> {
        self.expiry = expiry;
        self
    }

    /// The same, with this answer.
    #[must_use]
    pub const fn returning(mut self, returns: Returns) -> Update<'a> {
        self.returns = returns;
        self
    }

    /// Whether it changes nothing: it says whether its condition holds.
    pub fn is_check(&self) -> bool {
        self.edit == Edit::Keep && self.expiry == Expiry::Keep
    }

    /// Appends its terms.
    pub fn write(&self, out: &mut Vec<u8>) {
        let edit = match self.edit {
            Edit::Keep => 0,
            Edit::Set(_) => 1,
            Edit::Append(_) => 2,
            Edit::SetRange { .. } => 3,
            Edit::Add(_) => 4,
            Edit::AddFloat(_) => 5,
            Edit::Remove => 6,
        };
        let condition = match self.condition {
            Condition::Always => 0,
            Condition::Absent => 1,
            Condition::Present => 2,
            Condition::Equals(_) => 3,
        };
        out.push(edit | condition << CONDITION_SHIFT | (self.returns as u8) << RETURNS_SHIFT);
        match self.expiry {
            Expiry::Keep => out.push(0),
            Expiry::Clear => out.push(1),
            Expiry::After { milliseconds, only } => {
                out.push(2 + only as u8);
                out.extend_from_slice(&milliseconds.to_le_bytes());
            }
        }
        if let Condition::Equals(expected) = self.condition {
            out.extend_from_slice(&(expected.len() as u32).to_le_bytes());
            out.extend_from_slice(expected);
        }
        match self.edit {
            Edit::Keep | Edit::Remove => {}
            Edit::Set(operand) | Edit::Append(operand) | Edit::AddFloat(operand) => out.extend_from_slice(operand),
            Edit::SetRange { offset, bytes } => {
                out.extend_from_slice(&offset.to_le_bytes());
                out.extend_from_slice(bytes);
            }
            Edit::Add(number) => out.extend_from_slice(&number.to_le_bytes()),
        }
    }

    /// What the terms say; `None` if they are none.
    pub fn read(terms: &'a [u8]) -> Option<Update<'a>> {
        let (&[head, expiry], mut rest) = terms.split_first_chunk()?;
        let expiry = match expiry {
            0 => Expiry::Keep,
            1 => Expiry::Clear,
            code => {
                let only = match code {
                    2 => ExpiryCondition::Always,
                    3 => ExpiryCondition::None,
                    4 => ExpiryCondition::Some,
                    5 => ExpiryCondition::Later,
                    6 => ExpiryCondition::Earlier,
                    _ => return None,
                };
                Expiry::After { milliseconds: u64::from_le_bytes(*take(&mut rest)?), only }
            }
        };
        let condition = match head >> CONDITION_SHIFT & 3 {
            0 => Condition::Always,
            1 => Condition::Absent,
            2 => Condition::Present,
            _ => {
                let length = u32::from_le_bytes(*take(&mut rest)?) as usize;
                let (expected, behind) = rest.split_at_checked(length)?;
                rest = behind;
                Condition::Equals(expected)
            }
        };
        let edit = match head & EDITS {
            0 if rest.is_empty() => Edit::Keep,
            1 => Edit::Set(rest),
            2 => Edit::Append(rest),
            3 => Edit::SetRange { offset: u32::from_le_bytes(*take(&mut rest)?), bytes: rest },
            4 => Edit::Add(i64::from_le_bytes(*take(&mut rest)?)).filter_end(rest)?,
            5 => Edit::AddFloat(rest),
            6 if rest.is_empty() => Edit::Remove,
            _ => return None,
        };
        let returns = match head >> RETURNS_SHIFT {
            0 => Returns::Nothing,
            1 => Returns::Previous,
            2 => Returns::New,
            _ => return None,
        };
        Some(Update { edit, condition, expiry, returns })
    }
}

impl Edit<'_> {
    /// Itself, if nothing is left behind it.
    fn filter_end(self, rest: &[u8]) -> Option<Self> {
        rest.is_empty().then_some(self)
    }
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (chunk, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(chunk)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(edit: Edit<'_>, current: Option<&str>) -> Result<Option<String>, UpdateOutcome> {
        let change = edit.apply(current.map(str::as_bytes))?;
        Ok(match change {
            Change::Nothing => current.map(str::to_owned),
            Change::Remove => None,
            Change::Write(value) => Some(String::from_utf8(value.into_owned()).expect("text")),
        })
    }

    fn sum(current: Option<&str>, number: i64) -> Result<String, UpdateOutcome> {
        edited(Edit::Add(number), current).map(|sum| sum.expect("a sum"))
    }

    fn float_sum(current: Option<&str>, number: &str) -> Result<String, UpdateOutcome> {
        edited(Edit::AddFloat(number.as_bytes()), current).map(|sum| sum.expect("a sum"))
    }

    #[test]
    fn integers_are_added_as_redis_keeps_them() {
        assert_eq!(sum(None, 5).as_deref(), Ok("5"));
        assert_eq!(sum(Some("10"), -11).as_deref(), Ok("-1"));
        assert_eq!(sum(Some("9223372036854775806"), 1).as_deref(), Ok("9223372036854775807"));
        assert_eq!(sum(Some("9223372036854775807"), 1), Err(UpdateOutcome::Overflow));
        assert_eq!(sum(Some("-9223372036854775808"), -1), Err(UpdateOutcome::Overflow));
        let zeros = "0".repeat(EDITED_BYTES_MAX);
        for text in ["", " 1", "1 ", "+1", "01", "-0", "1.0", "x", "9223372036854775808", "0x10", &zeros] {
            assert_eq!(sum(Some(text), 1), Err(UpdateOutcome::NotInteger), "{text:?}");
        }
    }

    #[test]
    fn floats_are_added_and_written_short_and_without_exponent() {
        assert_eq!(float_sum(None, "3.0e3").as_deref(), Ok("3000"));
        assert_eq!(float_sum(Some("10.50"), "0.1").as_deref(), Ok("10.6"));
        assert_eq!(float_sum(Some("5.0e3"), "2.0e2").as_deref(), Ok("5200"));
        assert_eq!(float_sum(Some("0.1"), "0.2").as_deref(), Ok("0.30000000000000004"));
        assert_eq!(float_sum(Some("1"), "-1").as_deref(), Ok("0"));
        assert_eq!(float_sum(Some("-0"), "-0").as_deref(), Ok("0"));
        assert_eq!(float_sum(Some("1e-5"), "0").as_deref(), Ok("0.00001"));
        assert_eq!(float_sum(Some("1e308"), "1e308"), Err(UpdateOutcome::Overflow));
        let long = "1".repeat(FLOAT_BYTES_MAX + 1);
        for text in ["", "x", "nan", "inf", "-infinity", "1 ", " 1", &long] {
            assert_eq!(float_sum(Some(text), "1"), Err(UpdateOutcome::NotFloat), "{text:?}");
            assert_eq!(float_sum(Some("1"), text), Err(UpdateOutcome::NotFloat), "{text:?}");
        }
    }

    #[test]
    fn bytes_are_appended_and_written_over_up_to_the_limit() {
        assert_eq!(edited(Edit::Append(b"b"), Some("a")), Ok(Some("ab".into())));
        assert_eq!(edited(Edit::Append(b""), None), Ok(Some("".into())));
        assert_eq!(edited(Edit::SetRange { offset: 2, bytes: b"xy" }, None), Ok(Some("\0\0xy".into())));
        assert_eq!(edited(Edit::SetRange { offset: 1, bytes: b"xy" }, Some("abcd")), Ok(Some("axyd".into())));
        assert_eq!(edited(Edit::SetRange { offset: 9, bytes: b"" }, None), Ok(None));
        let full = "x".repeat(EDITED_BYTES_MAX);
        assert_eq!(edited(Edit::Append(b"b"), Some(&full)), Err(UpdateOutcome::TooLong));
        let far = Edit::SetRange { offset: u32::MAX, bytes: b"b" };
        assert_eq!(edited(far, None), Err(UpdateOutcome::TooLong));
    }

    #[test]
    fn terms_are_read_as_they_were_written_and_nothing_else_is() {
        let edits = [
            Edit::Keep,
            Edit::Set(b"v"),
            Edit::Append(b""),
            Edit::SetRange { offset: 7, bytes: b"abc" },
            Edit::Add(-3),
            Edit::AddFloat(b"1.5"),
            Edit::Remove,
        ];
        let conditions = [Condition::Always, Condition::Absent, Condition::Present, Condition::Equals(b"old")];
        let after = |only| Expiry::After { milliseconds: 9, only };
        let expiries = [
            Expiry::Keep,
            Expiry::Clear,
            after(ExpiryCondition::Always),
            after(ExpiryCondition::None),
            after(ExpiryCondition::Some),
            after(ExpiryCondition::Later),
            after(ExpiryCondition::Earlier),
        ];
        for edit in edits {
            for condition in conditions {
                for expiry in expiries {
                    for returns in [Returns::Nothing, Returns::Previous, Returns::New] {
                        let update = Update { edit, condition, expiry, returns };
                        let mut terms = Vec::new();
                        update.write(&mut terms);
                        assert_eq!(Update::read(&terms), Some(update));
                        for end in 0..terms.len() {
                            assert_ne!(Update::read(&terms[..end]), Some(update), "cut at {end}");
                        }
                    }
                }
            }
        }
        for terms in [&[][..], &[0], &[7, 0], &[0, 7], &[0x60, 0], &[0, 0, 0], &[6, 0, 1], &[4, 0, 1]] {
            assert_eq!(Update::read(terms), None, "{terms:?}");
        }
    }
}
