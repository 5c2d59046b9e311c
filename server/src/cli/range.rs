//! The ranges of `scan` as they are written: `a..b`, `a..=b`, `a..`, `..b`, `..`, or two ends.

use crate::text::Coding;

/// A half-open range of keys, `[low, high)`; no `high` is no end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// The first key.
    pub low: Vec<u8>,
    /// The first key that is too far.
    pub high: Option<Vec<u8>>,
}

/// Why a range was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// There is no `..` in it.
    #[error("`{0}` is no range")]
    NoDots(String),
    /// There are several ways to cut it.
    #[error("`{0}` has more than one `..`")]
    Ambiguous(String),
    /// An end is written wrongly.
    #[error("`{end}` must be {expected}")]
    End {
        /// The end as written.
        end: String,
        /// What was expected.
        expected: String,
    },
    /// An end that is to be included, and is not there.
    #[error("`{0}` names no last key")]
    NoLast(String),
    /// It ends before it begins.
    #[error("`{low}..{high}` ends before it begins")]
    Backwards {
        /// The lower end as written.
        low: String,
        /// The higher end as written.
        high: String,
    },
}

impl Bounds {
    /// Reads `a..b`, `a..=b`, `a..`, `..b`, `..=b` or `..`.
    ///
    /// # Errors
    /// It is no range, or could be cut in several ways.
    pub fn parse(text: &[u8], coding: Coding) -> Result<Self, RangeError> {
        let shown = || String::from_utf8_lossy(text).into_owned();
        let mut dots = text.windows(2).enumerate().filter(|(_, pair)| pair == b"..").map(|(at, _)| at);
        let at = dots.next().ok_or_else(|| RangeError::NoDots(shown()))?;
        if dots.next().is_some() {
            return Err(RangeError::Ambiguous(shown()));
        }
        let (low, high) = (&text[..at], &text[at + 2..]);
        match high.strip_prefix(b"=") {
            Some([]) => Err(RangeError::NoLast(shown())),
            Some(last) => Self::of_ends(low, last, true, coding),
            None => Self::of_ends(low, high, false, coding),
        }
    }

    /// A range of two ends as written; an empty or missing one is open.
    fn of_ends(low: &[u8], high: &[u8], inclusive: bool, coding: Coding) -> Result<Self, RangeError> {
        let decode = |end: &[u8]| match end {
            [] => Ok(None),
            end => coding
                .decode(end)
                .map(Some)
                .map_err(|expected| RangeError::End { end: String::from_utf8_lossy(end).into_owned(), expected }),
        };
        let mut bounds = Self::of_keys(decode(low)?, decode(high)?, coding)?;
        if let (true, Some(high)) = (inclusive, &mut bounds.high) {
            // The first key after k is k and a zero byte.
            high.push(0);
        }
        Ok(bounds)
    }

    /// The keys from `low` to before `high`; a missing one is open.
    ///
    /// # Errors
    /// The range ends before it begins.
    pub fn of_keys(low: Option<Vec<u8>>, high: Option<Vec<u8>>, coding: Coding) -> Result<Self, RangeError> {
        let low = low.unwrap_or_default();
        match high {
            Some(high) if high < low => Err(RangeError::Backwards { low: coding.show(&low), high: coding.show(&high) }),
            high => Ok(Self { low, high }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (String, Option<String>) {
        let bounds = Bounds::parse(text.as_bytes(), Coding::Plain).expect("a range");
        let shown = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        (shown(&bounds.low), bounds.high.as_deref().map(shown))
    }

    #[test]
    fn ranges_are_written_as_in_rust() {
        let high = |text: &str| Some(text.to_owned());
        assert_eq!(parsed("a..b"), ("a".into(), high("b")));
        assert_eq!(parsed("a..=b"), ("a".into(), high("b\0")));
        assert_eq!(parsed("a.."), ("a".into(), None));
        assert_eq!(parsed("..b"), (String::new(), high("b")));
        assert_eq!(parsed("..=b"), (String::new(), high("b\0")));
        assert_eq!(parsed(".."), (String::new(), None));
        assert_eq!(parsed("a..a"), ("a".into(), high("a")));
    }

    #[test]
    fn what_is_no_range_is_refused() {
        let refused = |text: &str| Bounds::parse(text.as_bytes(), Coding::Plain).expect_err("a refusal").to_string();
        assert_eq!(refused("apple"), "`apple` is no range");
        assert_eq!(refused("a..b..c"), "`a..b..c` has more than one `..`");
        assert_eq!(refused("a...c"), "`a...c` has more than one `..`");
        assert_eq!(refused("..="), "`..=` names no last key");
        assert_eq!(refused("b..="), "`b..=` names no last key");
        assert_eq!(refused("b..a"), "`b..a` ends before it begins");
        let refused = Bounds::parse(b"1..x", Coding::Int).expect_err("a refusal").to_string();
        assert_eq!(refused, "`x` must be a number from 0 to 18446744073709551615, not `x`");
    }

    #[test]
    fn numbers_make_ranges_of_numbers() {
        let bounds = Bounds::parse(b"9..10", Coding::Int).expect("a range");
        assert_eq!(bounds, Bounds { low: 9_u64.to_be_bytes().to_vec(), high: Some(10_u64.to_be_bytes().to_vec()) });
    }
}
