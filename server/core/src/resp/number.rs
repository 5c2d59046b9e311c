//! Numbers as RESP writes them: decimal, in one way only.

/// A number without sign, spaces or more than 19 digits.
pub fn unsigned(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    digits.iter().try_fold(0_u64, |sum, digit| {
        digit.is_ascii_digit().then(|| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0'))).flatten()
    })
}

/// A number as Redis takes it: a minus perhaps, no plus, no zeros in front.
pub fn signed(text: &[u8]) -> Option<i64> {
    let number: i64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    // The same number has one spelling: what is spelled otherwise is no number.
    (number.to_string().as_bytes() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_one_spelling() {
        for (text, number) in
            [("0", 0), ("-1", -1), ("9223372036854775807", i64::MAX), ("-9223372036854775808", i64::MIN)]
        {
            assert_eq!(signed(text.as_bytes()), Some(number));
        }
        for text in ["", "-", "+1", "01", "-0", " 1", "1 ", "1.0", "9223372036854775808", "x"] {
            assert_eq!(signed(text.as_bytes()), None, "{text}");
        }
        assert_eq!((unsigned(b"007"), unsigned(b""), unsigned(b"-1"), unsigned(b"1x")), (Some(7), None, None, None));
    }
}
