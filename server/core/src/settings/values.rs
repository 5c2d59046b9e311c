//! Readers and printers of the values that settings have, each with its bounds.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::units::{parse_count, parse_size, parse_switch, parse_time, show_size, show_time};

pub const MILLISECOND: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);
pub const HOUR: Duration = Duration::from_secs(3600);
pub const DAY: Duration = Duration::from_secs(24 * 3600);

/// What the reader of a setting is asked: one definition checks values and says which there are.
#[derive(Clone, Copy, Debug)]
pub enum Reading<'a> {
    /// The value that is written so.
    Value(&'a str),
    /// Which values there are: a reader refuses with a phrase that says so.
    Bounds,
}

impl<'a> Reading<'a> {
    /// What is written.
    ///
    /// # Errors
    /// `bounds`, if that is the question.
    pub fn value(self, bounds: impl FnOnce() -> String) -> Result<&'a str, String> {
        match self {
            Reading::Value(text) => Ok(text),
            Reading::Bounds => Err(bounds()),
        }
    }
}

/// A size within `bounds`.
pub fn size(reading: Reading<'_>, bounds: RangeInclusive<u64>) -> Result<u64, String> {
    let text = reading.value(|| phrase(&bounds, |bytes| show_size(*bytes)))?;
    within(parse_size(text)?, bounds, |bytes| show_size(*bytes))
}

/// A time within `bounds`.
pub fn time(reading: Reading<'_>, bounds: RangeInclusive<Duration>) -> Result<Duration, String> {
    let text = reading.value(|| phrase(&bounds, |time| show_time(*time)))?;
    within(parse_time(text)?, bounds, |time| show_time(*time))
}

/// `true` or `false`, in any spelling.
pub fn switch(reading: Reading<'_>) -> Result<bool, String> {
    parse_switch(reading.value(|| "true, false".to_owned())?)
}

/// A count within `bounds`.
pub fn count<T>(reading: Reading<'_>, bounds: RangeInclusive<T>) -> Result<T, String>
where
    T: TryFrom<u64> + PartialOrd + Display,
{
    let has_end = || bounds.end().to_string() != u64::MAX.to_string();
    let all = || if has_end() { phrase(&bounds, T::to_string) } else { format!("from {}", bounds.start()) };
    let text = reading.value(all)?;
    let (low, high) = (bounds.start().to_string(), bounds.end().to_string());
    let expected = || format!("a number from {low} to {high}, not `{text}`");
    let value = T::try_from(parse_count(text)?).map_err(|_| expected())?;
    if bounds.contains(&value) { Ok(value) } else { Err(expected()) }
}

/// One of a few words.
pub fn word<T: Copy>(reading: Reading<'_>, words: &[(&str, T)]) -> Result<T, String> {
    let names = || words.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let text = reading.value(names)?.trim();
    words.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<String> = words.iter().map(|(name, _)| format!("`{name}`")).collect();
        format!("{}, not `{text}`", names.join(" or "))
    })
}

/// The word for `value`.
pub fn name_of<T: Copy + PartialEq>(value: T, words: &[(&str, T)]) -> String {
    words.iter().find(|(_, known)| *known == value).map_or_else(String::new, |(name, _)| (*name).to_owned())
}

/// Bounds as a manual has them: `1 to 9`.
pub fn phrase<T>(bounds: &RangeInclusive<T>, show: impl Fn(&T) -> String) -> String {
    format!("{} to {}", show(bounds.start()), show(bounds.end()))
}

/// A value within `bounds`, which are shown as `show` says.
///
/// # Errors
/// What was expected, and what was there.
pub fn within<T: PartialOrd>(value: T, bounds: RangeInclusive<T>, show: impl Fn(&T) -> String) -> Result<T, String> {
    if bounds.contains(&value) {
        Ok(value)
    } else {
        Err(format!("from {} to {}, not {}", show(bounds.start()), show(bounds.end()), show(&value)))
    }
}
