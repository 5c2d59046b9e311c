//! Sizes, times, rates and switches as people write them: `64 MiB`, `5s`, `64 MiB/s`, `on`.
//!
//! A number without its unit is refused, so that nobody has to guess whether `64` meant bytes or mebibytes. What is
//! printed here is always accepted here, and means the same.

use std::time::Duration;

/// 2^10 bytes.
pub const KIB: u64 = 1 << 10;
/// 2^20 bytes.
pub const MIB: u64 = 1 << 20;
/// 2^30 bytes.
pub const GIB: u64 = 1 << 30;
/// 2^40 bytes.
pub const TIB: u64 = 1 << 40;

/// Units of size, the largest first, as they are printed.
const SIZE_UNITS: [(&str, u64); 5] = [("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB), ("B", 1)];
/// Decimal units, which are read but never printed.
const DECIMAL_UNITS: [(&str, u64); 4] =
    [("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000), ("KB", 1_000)];
/// Units of time in nanoseconds, the largest first, as they are printed.
const TIME_UNITS: [(&str, u64); 6] = [
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Parses a size in bytes: `64 MiB`, `64MiB`, `1.5 GiB`, `512 B`, `10 MB` (decimal). `0` needs no unit.
///
/// # Errors
/// A sentence that says what was expected.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let expected = || format!("a size with its unit, such as `64 MiB` or `512 B`, not `{text}`");
    let (digits, unit) = number_and_unit(text).ok_or_else(expected)?;
    if unit.is_empty() {
        return if is_zero(digits) { Ok(0) } else { Err(expected()) };
    }
    let known = SIZE_UNITS.iter().chain(DECIMAL_UNITS.iter()).find(|(name, _)| name.eq_ignore_ascii_case(unit));
    let (_, bytes) = known.ok_or_else(expected)?;
    scaled(digits, *bytes).ok_or_else(expected)
}

/// Prints a size in the largest unit that divides it: `64 MiB`, `1500 B`.
#[must_use]
pub fn show_size(bytes: u64) -> String {
    let (name, unit) = largest_unit(&SIZE_UNITS, bytes);
    format!("{} {name}", bytes / unit)
}

/// Prints a size for people who compare sizes, in the largest unit below it: `1.9 MiB`, `64 MiB`, `9 B`.
#[must_use]
pub fn about_size(bytes: u64) -> String {
    let (name, unit) = SIZE_UNITS.into_iter().find(|(_, unit)| bytes >= *unit).unwrap_or(("B", 1));
    let tenths = (u128::from(bytes) * 10 / u128::from(unit)) as u64;
    match tenths % 10 {
        tenth if tenth == 0 || tenths >= 1_000 => format!("{} {name}", tenths / 10),
        tenth => format!("{}.{tenth} {name}", tenths / 10),
    }
}

/// Parses a rate in bytes per second: `64 MiB/s`.
///
/// # Errors
/// A sentence that says what was expected.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    let expected = || format!("a rate with its unit, such as `64 MiB/s`, not `{text}`");
    let size = text.trim().strip_suffix("/s").ok_or_else(expected)?;
    parse_size(size).map_err(|_| expected())
}

/// Prints a rate in bytes per second.
#[must_use]
pub fn show_rate(bytes: u64) -> String {
    format!("{}/s", show_size(bytes))
}

/// Units of bandwidth in bits per second, the largest first; decimal, as links are sold.
const BANDWIDTH_UNITS: [(&str, u64); 4] = [("Gbit", 1_000_000_000), ("Mbit", 1_000_000), ("kbit", 1_000), ("bit", 1)];

/// Parses a bandwidth in bits per second, at least 1000: `10Mbit`, `2.5 Gbit/s`.
///
/// # Errors
/// A sentence that says what was expected.
pub fn parse_bandwidth(text: &str) -> Result<u64, String> {
    let expected = || format!("a bandwidth with its unit, such as `10Mbit` or `1 Gbit/s`, not `{text}`");
    let (digits, unit) = number_and_unit(text).ok_or_else(expected)?;
    let unit = unit.strip_suffix("/s").unwrap_or(unit);
    let known = BANDWIDTH_UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
    let bits = known.and_then(|(_, bits)| scaled(digits, *bits)).ok_or_else(expected)?;
    if (1_000..=1_000_000_000_000).contains(&bits) { Ok(bits) } else { Err(expected()) }
}

/// Prints a bandwidth in the largest unit that divides it: `10 Mbit/s`.
#[must_use]
pub fn show_bandwidth(bits_per_second: u64) -> String {
    let (name, unit) = largest_unit(&BANDWIDTH_UNITS, bits_per_second);
    format!("{} {name}/s", bits_per_second / unit)
}

/// Parses a time: `5s`, `5 s`, `1.5s`, `300 ms`, `10 min`, `1h`, `250us`. `0` needs no unit.
///
/// # Errors
/// A sentence that says what was expected.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let expected = || format!("a time with its unit, such as `5s` or `300ms`, not `{text}`");
    let (digits, unit) = number_and_unit(text).ok_or_else(expected)?;
    if unit.is_empty() {
        return if is_zero(digits) { Ok(Duration::ZERO) } else { Err(expected()) };
    }
    let unit = if unit == "m" { "min" } else { unit };
    let (_, nanoseconds) = TIME_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(expected)?;
    scaled(digits, *nanoseconds).map(Duration::from_nanos).ok_or_else(expected)
}

/// Prints a time in the largest unit that divides it: `5s`, `1500ms`. Times beyond 584 years print as that.
#[must_use]
pub fn show_time(time: Duration) -> String {
    let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    if nanoseconds == 0 {
        return "0s".to_owned();
    }
    let (name, unit) = largest_unit(&TIME_UNITS, nanoseconds);
    format!("{}{name}", nanoseconds / unit)
}

/// Parses a count: `1024`, `10^6`, `10_000`.
///
/// # Errors
/// A sentence that says what was expected.
pub fn parse_count(text: &str) -> Result<u64, String> {
    let expected = || format!("a whole number, not `{text}`");
    let text = text.trim().replace('_', "");
    if let Some((base, exponent)) = text.split_once('^') {
        let base: u64 = base.parse().map_err(|_| expected())?;
        let exponent: u32 = exponent.parse().map_err(|_| expected())?;
        return base.checked_pow(exponent).ok_or_else(expected);
    }
    text.parse().map_err(|_| expected())
}

/// Parses a switch: `true`/`false`, `on`/`off`, `yes`/`no`, `1`/`0`.
///
/// # Errors
/// A sentence that says what was expected.
pub fn parse_switch(text: &str) -> Result<bool, String> {
    match text.trim() {
        "true" | "on" | "yes" | "1" => Ok(true),
        "false" | "off" | "no" | "0" => Ok(false),
        _ => Err(format!("`true` or `false`, not `{text}`")),
    }
}

/// `text` as its leading decimal number and the rest, without the space between them.
fn number_and_unit(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    if digits.is_empty() { None } else { Some((digits, unit.trim_start())) }
}

fn is_zero(digits: &str) -> bool {
    digits.bytes().all(|digit| digit == b'0')
}

/// `digits` (with at most one point) times `unit`, if that is a whole number that fits.
fn scaled(digits: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut total = u128::from(whole) * u128::from(unit);
    if !fraction.is_empty() {
        let numerator = u128::from(fraction.parse::<u64>().ok()?) * u128::from(unit);
        let denominator = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        if numerator % denominator != 0 {
            return None;
        }
        total += numerator / denominator;
    }
    u64::try_from(total).ok()
}

fn largest_unit(units: &[(&'static str, u64)], value: u64) -> (&'static str, u64) {
    let smallest = units[units.len() - 1];
    if value == 0 {
        return smallest;
    }
    units.iter().copied().find(|(_, unit)| value.is_multiple_of(*unit)).unwrap_or(smallest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_carry_units() {
        assert_eq!(parse_size("64 MiB"), Ok(64 * MIB));
        assert_eq!(parse_size("64MiB"), Ok(64 * MIB));
        assert_eq!(parse_size(" 1.5 GiB "), Ok(3 * GIB / 2));
        assert_eq!(parse_size("10 MB"), Ok(10_000_000));
        assert_eq!(parse_size("1 b"), Ok(1));
        assert_eq!(parse_size("0"), Ok(0));
        for wrong in ["", "64", "MiB", "64 XiB", "-1 MiB", "1.0000001 B", "1..5 KiB", "99999999999 TiB"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_carry_units() {
        assert_eq!(parse_time("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(parse_time("300 ms"), Ok(Duration::from_millis(300)));
        assert_eq!(parse_time("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_time("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_time("1 h"), Ok(Duration::from_secs(3600)));
        for wrong in ["", "5", "s", "5 sec", "-5s", "1e3s"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_printed_is_read_back() {
        for bytes in [0, 1, 999, 1024, 64 * MIB, GIB + 1, 5 * TIB, u64::MAX] {
            assert_eq!(parse_size(&show_size(bytes)), Ok(bytes));
            assert_eq!(parse_rate(&show_rate(bytes)), Ok(bytes));
        }
        for nanoseconds in [0, 1, 1_500_000, 5_000_000_000, 3_600_000_000_000, u64::MAX] {
            let time = Duration::from_nanos(nanoseconds);
            assert_eq!(parse_time(&show_time(time)), Ok(time));
        }
        assert_eq!((show_size(64 * MIB), show_time(Duration::from_millis(1500))), ("64 MiB".into(), "1500ms".into()));
    }

    #[test]
    fn bandwidths_are_bits_per_second() {
        assert_eq!(parse_bandwidth("10Mbit"), Ok(10_000_000));
        assert_eq!(parse_bandwidth("2.5 Gbit/s"), Ok(2_500_000_000));
        for bits in [1_000, 9_400_000, 10_000_000, 1_000_000_000_000] {
            assert_eq!(parse_bandwidth(&show_bandwidth(bits)), Ok(bits));
        }
        for wrong in ["", "10", "10 MB", "10Mbit/ms", "1 bit", "2000 Gbit", "-1 Mbit"] {
            assert!(parse_bandwidth(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn counts_and_switches_have_several_spellings() {
        assert_eq!(parse_count("10^6"), Ok(1_000_000));
        assert_eq!(parse_count("10_000"), Ok(10_000));
        assert!(parse_count("10 k").is_err() && parse_count("2^64").is_err() && parse_count("-1").is_err());
        assert_eq!((parse_switch("on"), parse_switch("false")), (Ok(true), Ok(false)));
        assert!(parse_switch("maybe").is_err());
    }
}
