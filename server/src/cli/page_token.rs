//! `scan --after TOKEN`: where a limited scan stopped.
//!
//! The token holds the last key seen and the direction, so it stays good whatever happens to partitions and nodes. The
//! pages of a scan are not one moment.

use crate::text::{from_base64, to_base64};

const VERSION: u8 = 1;

/// Where a scan stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageToken {
    /// The direction of the scan that gave it.
    pub reverse: bool,
    /// The last key that was printed.
    pub last: Vec<u8>,
}

impl PageToken {
    /// As printed: letters, digits, `-` and `_`.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut bytes = vec![VERSION, u8::from(self.reverse)];
        bytes.extend_from_slice(&self.last);
        let check = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&check.to_le_bytes());
        to_base64(&bytes).trim_end_matches('=').replace('+', "-").replace('/', "_")
    }

    /// The token of a text, if it is one of ours and whole.
    #[must_use]
    pub fn decode(text: &str) -> Option<Self> {
        let bytes = from_base64(text.as_bytes())?;
        let (body, check) = bytes.split_last_chunk::<4>()?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*check) {
            return None;
        }
        match body {
            [VERSION, reverse @ (0 | 1), last @ ..] => Some(Self { reverse: *reverse == 1, last: last.to_vec() }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn tokens_are_read_back_and_damaged_ones_refused(
            last in proptest::collection::vec(any::<u8>(), 0..30), reverse: bool, at: usize,
        ) {
            let token = PageToken { reverse, last };
            let text = token.encode();
            prop_assert_eq!(PageToken::decode(&text), Some(token));
            prop_assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'));
            let mut damaged = text.into_bytes();
            let at = at % damaged.len();
            damaged[at] = if damaged[at] == b'A' { b'B' } else { b'A' };
            prop_assert_eq!(PageToken::decode(std::str::from_utf8(&damaged).expect("ascii")), None);
        }
    }
}
