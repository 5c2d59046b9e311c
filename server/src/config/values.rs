//! Readers and printers of the values that settings have, each with its bounds.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use coppice_core::settings::units::{MIB, parse_rate, parse_size, show_rate};
#[cfg(test)]
use coppice_core::settings::values::{HOUR, SECOND, count, size, time, word};
use coppice_core::settings::values::{Reading, phrase, within};

use super::{Address, host};

/// A rate within `bounds`, in bytes per second.
pub fn rate(reading: Reading<'_>, bounds: RangeInclusive<u64>) -> Result<u64, String> {
    let text = reading.value(|| phrase(&bounds, |bytes| show_rate(*bytes)))?;
    within(parse_rate(text)?, bounds, |bytes| show_rate(*bytes))
}

/// A label of 1 to 64 printable characters without spaces: it stands in tables and log lines.
pub fn label(reading: Reading<'_>) -> Result<String, String> {
    let text = reading.value(|| "1 to 64 printable characters without spaces".to_owned())?;
    let text = text.trim();
    let good = (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    if good { Ok(text.to_owned()) } else { Err(format!("1 to 64 printable characters without spaces, not `{text}`")) }
}

/// A path that names something.
pub fn path(reading: Reading<'_>) -> Result<PathBuf, String> {
    let text = reading.value(|| "a path".to_owned())?;
    if text.is_empty() { Err("a path, not nothing".to_owned()) } else { Ok(PathBuf::from(text)) }
}

/// A file, or none.
pub fn file(reading: Reading<'_>) -> Result<Option<PathBuf>, String> {
    let text = reading.value(|| "a file, or nothing".to_owned())?;
    Ok((!text.is_empty()).then(|| PathBuf::from(text)))
}

/// An address to listen on.
pub fn address(reading: Reading<'_>) -> Result<Address, String> {
    reading.value(|| "HOST:PORT".to_owned())?.parse()
}

/// How [`file`] is written.
pub fn show_file(path: Option<&Path>) -> String {
    path.map(|path| path.display().to_string()).unwrap_or_default()
}

/// Addresses separated by commas; none is a list too.
pub fn addresses(reading: Reading<'_>) -> Result<Vec<Address>, String> {
    let text = reading.value(|| "HOST:PORT,.., or nothing".to_owned())?;
    let addresses: Vec<Address> = list(text).map(Address::from_str).collect::<Result<_, _>>()?;
    for (index, address) in addresses.iter().enumerate() {
        if address.port() == 0 || address.is_wildcard() {
            return Err(format!("addresses that can be dialled, not `{address}`"));
        }
        if addresses[..index].contains(address) {
            return Err(format!("each address once, not `{address}` twice"));
        }
    }
    Ok(addresses)
}

/// An address to dial, or nothing.
pub fn optional(reading: Reading<'_>) -> Result<Option<Address>, String> {
    let text = reading.value(|| "HOST:PORT, or nothing".to_owned())?;
    if text.trim().is_empty() {
        return Ok(None);
    }
    let address: Address = text.parse()?;
    if address.is_wildcard() {
        Err(format!("an address that can be dialled, not `{address}`"))
    } else {
        Ok(Some(address))
    }
}

/// An address to listen on, or `off`.
pub fn address_or_off(reading: Reading<'_>) -> Result<Option<Address>, String> {
    let text = reading.value(|| "HOST:PORT, or off".to_owned())?;
    if text.trim() == "off" { Ok(None) } else { text.parse().map(Some) }
}

/// An optional address as `optional` reads it.
pub fn show_optional(address: Option<&Address>) -> String {
    address.map(Address::to_string).unwrap_or_default()
}

/// `n2=127.0.0.1:9002`, separated by commas.
pub fn overrides(reading: Reading<'_>) -> Result<BTreeMap<u32, Address>, String> {
    let text = reading.value(|| "n2=HOST:PORT,.., or nothing".to_owned())?;
    let mut overrides = BTreeMap::new();
    for entry in list(text) {
        let expected = || format!("a node and an address, such as n2=127.0.0.1:9002, not `{entry}`");
        let (node, address) = entry.split_once('=').ok_or_else(expected)?;
        let number = node.trim().strip_prefix('n').and_then(|digits| digits.parse().ok()).ok_or_else(expected)?;
        if overrides.insert(number, address.parse()?).is_some() {
            return Err(format!("each node once, not n{number} twice"));
        }
    }
    Ok(overrides)
}

/// A size, or a share of what this process may use: `70%`.
pub fn memory(reading: Reading<'_>) -> Result<u64, String> {
    let text = reading.value(|| "a size from 1 MiB, or 1% to 100%".to_owned())?;
    let expected = || format!("a size such as `8 GiB` or a share such as `70%`, not `{text}`");
    let Some(percent) = text.trim().strip_suffix('%') else {
        return parse_size(text).map_err(|_| expected()).and_then(|bytes| {
            // Below 1 MiB a node could not take a single large value.
            if bytes < 1 << 20 { Err("at least 1 MiB".to_owned()) } else { Ok(bytes) }
        });
    };
    let percent: u64 = percent.trim().parse().map_err(|_| expected())?;
    if !(1..=100).contains(&percent) {
        return Err(expected());
    }
    // Whole mebibytes: nobody reads the rest.
    Ok((host::memory_bytes() / 100 * percent).next_multiple_of(MIB))
}

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// A log filter: levels, perhaps per module.
pub fn filter(reading: Reading<'_>) -> Result<String, String> {
    let text = reading.value(|| LEVELS.join(", ") + ", or a filter")?;
    let text = text.trim();
    let good = !text.is_empty()
        && text.split(',').all(|part| {
            let level = part.rsplit_once('=').map_or(part, |(_, level)| level);
            LEVELS.contains(&level.trim().to_ascii_lowercase().as_str())
        });
    if good {
        Ok(text.to_owned())
    } else {
        Err(format!("a level ({}) or module=level, not `{text}`", LEVELS.join(", ")))
    }
}

/// Things separated by commas, as `list` reads them.
pub fn joined<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    items.join(",")
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_outside_of_their_bounds_are_refused_with_the_bounds() {
        assert_eq!(size(Reading::Value("1 B"), 1024..=2048), Err("from 1 KiB to 2 KiB, not 1 B".to_owned()));
        assert_eq!(count::<u64>(Reading::Value("0"), 1..=9), Err("a number from 1 to 9, not `0`".to_owned()));
        assert_eq!(time(Reading::Value("2h"), SECOND..=HOUR), Err("from 1s to 1h, not 2h".to_owned()));
        assert_eq!(word(Reading::Value("x"), &[("a", 1), ("b", 2)]), Err("`a` or `b`, not `x`".to_owned()));
    }

    #[test]
    fn lists_and_overrides_refuse_what_cannot_be_dialled() {
        assert_eq!(addresses(Reading::Value("a:1, b:2")).map(joined), Ok("a:1,b:2".to_owned()));
        assert_eq!(addresses(Reading::Value("")), Ok(Vec::new()));
        assert!(
            addresses(Reading::Value("a:1,a:1")).is_err()
                && addresses(Reading::Value("a:0")).is_err()
                && addresses(Reading::Value("0.0.0.0:1")).is_err()
        );
        assert_eq!(overrides(Reading::Value("n2=127.0.0.1:9002")).map(|o| o.len()), Ok(1));
        assert!(
            overrides(Reading::Value("2=127.0.0.1:9002")).is_err()
                && overrides(Reading::Value("n2=a:1,n2=b:1")).is_err()
        );
    }

    #[test]
    fn memory_is_a_size_or_a_share() {
        assert_eq!(memory(Reading::Value("8 GiB")), Ok(8 << 30));
        assert!(memory(Reading::Value("70%")).is_ok_and(|bytes| bytes > 0));
        assert!(
            memory(Reading::Value("0%")).is_err()
                && memory(Reading::Value("101%")).is_err()
                && memory(Reading::Value("8")).is_err()
                && memory(Reading::Value("1 KiB")).is_err()
        );
    }

    #[test]
    fn log_filters_name_levels() {
        assert!(
            filter(Reading::Value("info")).is_ok() && filter(Reading::Value("info,coppice_server::log=debug")).is_ok()
        );
        assert!(
            filter(Reading::Value("loud")).is_err()
                && filter(Reading::Value("")).is_err()
                && filter(Reading::Value("info,x=loud")).is_err()
        );
    }
}
