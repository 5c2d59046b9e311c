//! Numbers with units, as people type them and as we print them: `12M`, `8k`, `0..10ms`, `p99=4ms`.

use std::time::Duration;

/// Nanoseconds since the run's epoch, which all workers share.
pub type Nanos = u64;

/// A count: digits, `_` allowed, then nothing, `k`, `M` or `G` (thousands). `12M` is twelve million.
pub fn count(text: &str) -> Result<u64, String> {
    scaled(text, 1_000).ok_or_else(|| format!("`{text}` is not a count (like 12M, 500k, 1_000)"))
}

/// A size in bytes: digits, then nothing, `B`, `k`, `M` or `G` (with or without `B` or `iB`), in steps of 1024: the
/// papers' KB.
pub fn bytes(text: &str) -> Result<u64, String> {
    let trimmed = text.trim_end_matches("iB").trim_end_matches('B');
    scaled(trimmed, 1_024).ok_or_else(|| format!("`{text}` is not a size (like 128, 8k, 1M)"))
}

fn scaled(text: &str, step: u64) -> Option<u64> {
    let (digits, factor) = match text.chars().last()? {
        'k' | 'K' => (&text[..text.len() - 1], step),
        'M' => (&text[..text.len() - 1], step.pow(2)),
        'G' => (&text[..text.len() - 1], step.pow(3)),
        _ => (text, 1),
    };
    if let Some((whole, fraction)) = digits.split_once('.') {
        // 1.5M: only where a unit makes it whole.
        let divisor = 10u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        let parts = whole.parse::<u64>().ok()?.checked_mul(divisor)?.checked_add(fraction.parse().ok()?)?;
        let value = parts.checked_mul(factor)?;
        return value.is_multiple_of(divisor).then_some(value / divisor);
    }
    let digits: String = digits.chars().filter(|&c| c != '_').collect();
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

const DURATION_UNITS: [(&str, f64); 6] =
    [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3_600.0)];

/// A time: a number and `ns`, `us`, `ms`, `s`, `m` or `h`; a bare `0` needs no unit.
pub fn duration(text: &str) -> Result<Duration, String> {
    let error = || format!("`{text}` is not a time (like 20s, 10ms, 1m)");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let split = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(error)?;
    let (number, unit) = text.split_at(split);
    let (_, seconds) = DURATION_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(error)?;
    let value = number.parse::<f64>().map_err(|_| error())? * seconds;
    // A year bounds every time we take: sums of times then never overflow.
    if !(0.0..=31_536_000.0).contains(&value) {
        return Err(error());
    }
    Ok(Duration::from_secs_f64(value))
}

/// A think time, drawn evenly from `low..=high`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Think {
    /// The shortest pause between an answer and the next request.
    pub low: Duration,
    /// The longest one.
    pub high: Duration,
}

impl Think {
    /// No pause.
    pub const NONE: Think = Think { low: Duration::ZERO, high: Duration::ZERO };

    /// The mean pause, Z in Little's law.
    pub fn mean(&self) -> Duration {
        (self.low + self.high) / 2
    }

    /// `5ms`, or `0..10ms`: even between both.
    pub fn parse(text: &str) -> Result<Think, String> {
        let Some((low, high)) = text.split_once("..") else {
            return duration(text).map(|pause| Think { low: pause, high: pause });
        };
        let think = Think { low: duration(low)?, high: duration(high)? };
        if think.low > think.high {
            return Err(format!("`{text}`: the shorter time comes first"));
        }
        Ok(think)
    }
}

impl std::fmt::Display for Think {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.low == self.high {
            true => f.write_str(&print_duration(self.low)),
            false => write!(f, "{}..{}", print_duration(self.low), print_duration(self.high)),
        }
    }
}

/// A bound on latency for `--find-max`: `p99=4ms`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// In percent: 50, 99, 99.9.
    pub percentile: f64,
    /// The highest latency at that percentile that still counts as good.
    pub latency: Duration,
}

impl Bound {
    /// Reads `p50=..`, `p99=..`, `p999=..` or `p99.9=..`.
    pub fn parse(text: &str) -> Result<Bound, String> {
        let error = || format!("`{text}` is not a bound (like p99=4ms)");
        let (name, latency) = text.split_once('=').ok_or_else(error)?;
        let percentile = match name.strip_prefix('p').ok_or_else(error)? {
            "999" => 99.9,
            "9999" => 99.99,
            digits => digits.parse::<f64>().map_err(|_| error())?,
        };
        if !(0.0..100.0).contains(&percentile) || percentile == 0.0 {
            return Err(error());
        }
        Ok(Bound { percentile, latency: duration(latency)? })
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "p{}={}", self.percentile, print_duration(self.latency))
    }
}

/// `20s`, `250ms`, `5us`: the largest unit in which the number is at least 1, without needless digits.
pub fn print_duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let (value, unit) = match seconds {
        0.0 => return "0".to_owned(),
        s if s < 1e-6 => (s * 1e9, "ns"),
        s if s < 1e-3 => (s * 1e6, "us"),
        s if s < 1.0 => (s * 1e3, "ms"),
        s => (s, "s"),
    };
    format!("{}{unit}", trim_number(value))
}

/// Milliseconds with three significant digits, as a column of latencies shows them: `1.10`, `0.054`, `412`.
pub fn print_ms(ms: f64) -> String {
    significant(ms)
}

/// Three significant digits, never in exponent form.
pub fn significant(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn trim_number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// `12 000 000`: groups of three, for reading.
pub fn print_count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_go_in_thousands_and_sizes_in_1024s() {
        assert_eq!(count("12M"), Ok(12_000_000));
        assert_eq!(count("1_000"), Ok(1_000));
        assert_eq!(count("1.5M"), Ok(1_500_000));
        assert_eq!(bytes("8k"), Ok(8_192));
        assert_eq!(bytes("64KiB"), Ok(65_536));
        assert_eq!(bytes("128"), Ok(128));
        for bad in ["", "M", "-1", "1.5", "x", "99999999999999999999", "1e6"] {
            assert!(count(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_need_a_unit_unless_they_are_zero() {
        assert_eq!(duration("20s"), Ok(Duration::from_secs(20)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert_eq!(duration("1.5ms"), Ok(Duration::from_micros(1_500)));
        for bad in ["20", "s", "-1s", "1 fortnight", "nans", "infs"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn think_times_are_one_value_or_a_span() {
        let span = Think::parse("0..10ms").unwrap();
        assert_eq!(span.mean(), Duration::from_millis(5));
        assert_eq!(span.to_string(), "0..10ms");
        assert_eq!(Think::parse("2ms").unwrap().to_string(), "2ms");
        assert!(Think::parse("10ms..1ms").is_err());
    }

    #[test]
    fn bounds_name_a_percentile_and_a_time() {
        assert_eq!(Bound::parse("p99=4ms").unwrap(), Bound { percentile: 99.0, latency: Duration::from_millis(4) });
        assert_eq!(Bound::parse("p999=1s").unwrap().percentile, 99.9);
        for bad in ["p99", "99=4ms", "p0=1ms", "p100=1ms", "p99=4"] {
            assert!(Bound::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_print_for_people() {
        assert_eq!(print_count(12_000_000), "12 000 000");
        assert_eq!(print_count(999), "999");
        assert_eq!([print_ms(0.0541), print_ms(1.1), print_ms(412.4)], ["0.054", "1.10", "412"]);
        assert_eq!(print_duration(Duration::from_millis(1_500)), "1.5s");
    }
}
