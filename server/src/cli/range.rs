//! The ranges of `scan` as they are written: `a..b`, `a..=b`, `a..`, `..b`, `..`, or two ends.

use super::text::Coding;

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
            Some(last) => Self::of_ends(Some(low), Some(last), true, coding),
            None => Self::of_ends(Some(low), Some(high), false, coding),
        }
    }

    /// A range of two ends as written; an empty or missing one is open.
    ///
    /// # Errors
    /// An end is written wrongly, or the range ends before it begins.
    pub fn of_ends(
        low: Option<&[u8]>,
        high: Option<&[u8]>,
        inclusive: bool,
        coding: Coding,
    ) -> Result<Self, RangeError> {
        let decode = |end: Option<&[u8]>| match end {
            None | Some([]) => Ok(None),
            Some(end) => coding
                .decode(end)
                .map(Some)
                .map_err(|expected| RangeError::End { end: String::from_utf8_lossy(end).into_owned(), expected }),
        };
        let (low_key, mut high_key) = (decode(low)?.unwrap_or_default(), decode(high)?);
        if high_key.as_ref().is_some_and(|high_key| *high_key < low_key) {
            let written = |end: Option<&[u8]>| String::from_utf8_lossy(end.unwrap_or_default()).into_owned();
            return Err(RangeError::Backwards { low: written(low), high: written(high) });
        }
        if let (true, Some(high_key)) = (inclusive, &mut high_key) {
            // The first key after k is k and a zero byte.
            high_key.push(0);
        }
        Ok(Self { low: low_key, high: high_key })
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
