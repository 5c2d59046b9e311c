//! Readers and printers of the values that settings have, each with its bounds.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::units::{parse_count, parse_size, parse_time, show_size, show_time};

pub const MILLISECOND: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);
pub const HOUR: Duration = Duration::from_secs(3600);
pub const DAY: Duration = Duration::from_secs(24 * 3600);

/// A size within `bounds`.
pub fn size(text: &str, bounds: RangeInclusive<u64>) -> Result<u64, String> {
    within(parse_size(text)?, bounds, |bytes| show_size(*bytes))
}

/// A time within `bounds`.
pub fn time(text: &str, bounds: RangeInclusive<Duration>) -> Result<Duration, String> {
    within(parse_time(text)?, bounds, |time| show_time(*time))
}

/// A count within `bounds`.
pub fn count<T>(text: &str, bounds: RangeInclusive<T>) -> Result<T, String>
where
    T: TryFrom<u64> + PartialOrd + Display,
{
    let (low, high) = (bounds.start().to_string(), bounds.end().to_string());
    let expected = || format!("a number from {low} to {high}, not `{text}`");
    let value = T::try_from(parse_count(text)?).map_err(|_| expected())?;
    if bounds.contains(&value) { Ok(value) } else { Err(expected()) }
}

/// One of a few words.
pub fn word<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, String> {
    let text = text.trim();
    words.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<String> = words.iter().map(|(name, _)| format!("`{name}`")).collect();
        format!("{}, not `{text}`", names.join(" or "))
    })
}

/// The word for `value`.
pub fn name_of<T: Copy + PartialEq>(value: T, words: &[(&str, T)]) -> String {
    words.iter().find(|(_, known)| *known == value).map_or_else(String::new, |(name, _)| (*name).to_owned())
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
