//! Byte strings as people write and read them: as they are, as numbers (`--int`), in hex or base64.

use serde::Serialize;
use serde_json::{Map, Value};

/// How keys and values stand on the command line and in what is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub enum Coding {
    /// Bytes as they are; in tables, what is not printable ASCII shows as `0x..`.
    #[default]
    Plain,
    /// u64 in 8 bytes, big-endian, so that their order is that of the numbers.
    Int,
    /// Two digits per byte.
    Hex,
    /// The usual alphabet, padded.
    Base64,
}

impl Coding {
    /// The bytes that `text` stands for.
    ///
    /// # Errors
    /// A phrase that says what was expected.
    pub fn decode(self, text: &[u8]) -> Result<Vec<u8>, String> {
        let shown = || String::from_utf8_lossy(text).into_owned();
        match self {
            Self::Plain => Ok(text.to_vec()),
            Self::Int => std::str::from_utf8(text)
                .ok()
                .and_then(|digits| digits.trim().parse::<u64>().ok())
                .map(|number| number.to_be_bytes().to_vec())
                .ok_or_else(|| format!("a number from 0 to {}, not `{}`", u64::MAX, shown())),
            Self::Hex => from_hex(text).ok_or_else(|| format!("pairs of hex digits, not `{}`", shown())),
            Self::Base64 => from_base64(text).ok_or_else(|| format!("base64, not `{}`", shown())),
        }
    }

    /// Puts `name`, `name_b64` or `name_hex` into an object, so that every byte string has a place in json.
    pub fn put_field(self, fields: &mut Map<String, Value>, name: &str, bytes: Option<&[u8]>) {
        let Some(bytes) = bytes else {
            fields.insert(name.to_owned(), Value::Null);
            return;
        };
        let number = <[u8; 8]>::try_from(bytes).map(u64::from_be_bytes);
        let (name, value) = match (self, number, std::str::from_utf8(bytes)) {
            (Self::Int, Ok(number), _) => (name.to_owned(), number.into()),
            (Self::Hex, ..) => (format!("{name}_hex"), self.show(bytes).into()),
            (Self::Plain, _, Ok(text)) => (name.to_owned(), text.into()),
            _ => (format!("{name}_b64"), to_base64(bytes).into()),
        };
        fields.insert(name, value);
    }

    /// `bytes` as text for a person. Anything that the coding cannot say is shown as `0x..`.
    #[must_use]
    pub fn show(self, bytes: &[u8]) -> String {
        match self {
            Self::Plain => {
                let printable = bytes.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ');
                // What looks like our own hex notation must not be mistaken for it.
                if printable && !bytes.starts_with(b"0x") {
                    String::from_utf8_lossy(bytes).into_owned()
                } else {
                    format!("0x{}", to_hex(bytes))
                }
            }
            Self::Int => match <[u8; 8]>::try_from(bytes) {
                Ok(number) => u64::from_be_bytes(number).to_string(),
                Err(_) => format!("0x{}", to_hex(bytes)),
            },
            Self::Hex => to_hex(bytes),
            Self::Base64 => to_base64(bytes),
        }
    }
}

/// Two lower-case digits per byte.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| char::from(HEX[usize::from(digit)])).collect()
}

/// The bytes of hex digits, with or without `0x` before them.
#[must_use]
pub fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.trim_ascii();
    let digits = text.strip_prefix(b"0x").unwrap_or(text);
    let value = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| Some(value(*high)? << 4 | value(*low)?)).collect()
}

const HEX: &[u8; 16] = b"0123456789abcdef";
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 with padding.
#[must_use]
pub fn to_base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = [chunk[0], chunk.get(1).copied().unwrap_or(0), chunk.get(2).copied().unwrap_or(0)];
        let bits = u32::from_be_bytes([0, group[0], group[1], group[2]]);
        for place in 0..4 {
            let digit = (bits >> (18 - 6 * place)) & 63;
            text.push(if place <= chunk.len() { char::from(BASE64[digit as usize]) } else { '=' });
        }
    }
    text
}

/// The bytes of base64, with or without padding; both alphabets are read.
#[must_use]
pub fn from_base64(text: &[u8]) -> Option<Vec<u8>> {
    let digits: &[u8] = text.trim_ascii();
    let padding = digits.iter().rev().take_while(|digit| **digit == b'=').count();
    let digits = &digits[..digits.len() - padding];
    if padding > 2 || digits.len() % 4 == 1 || (padding > 0 && !(digits.len() + padding).is_multiple_of(4)) {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for group in digits.chunks(4) {
        let mut bits = 0_u32;
        for digit in group {
            let digit = match digit {
                b'-' => b'+',
                b'_' => b'/',
                other => *other,
            };
            bits = bits << 6 | u32::try_from(BASE64.iter().position(|known| *known == digit)?).ok()?;
        }
        bits <<= 6 * (4 - group.len());
        let [_, group_bytes @ ..] = bits.to_be_bytes();
        // Bits beyond the last byte must be zero, else two texts would mean the same.
        if group_bytes[group.len() - 1..].iter().any(|byte| *byte != 0) && group.len() < 4 {
            return None;
        }
        bytes.extend_from_slice(&group_bytes[..group.len() - 1]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn base64_agrees_with_the_vectors_of_its_standard() {
        let vectors =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE=")];
        for (plain, coded) in vectors {
            assert_eq!(to_base64(plain.as_bytes()), coded);
            assert_eq!(from_base64(coded.as_bytes()).as_deref(), Some(plain.as_bytes()));
        }
        assert_eq!(from_base64(b"Zg"), Some(b"f".to_vec()));
        for wrong in ["Z", "Zg=", "Zh==", "Zg===", "Z?==", "=", "Zm9=v"] {
            assert_eq!(from_base64(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn numbers_keep_their_order_as_keys() {
        let key = |text: &str| Coding::Int.decode(text.as_bytes()).expect("a number");
        assert_eq!(key("1"), [0, 0, 0, 0, 0, 0, 0, 1]);
        assert!(key("9") < key("10") && key("10") < key("18446744073709551615"));
        assert!(Coding::Int.decode(b"-1").is_err() && Coding::Int.decode(b"18446744073709551616").is_err());
        assert_eq!(Coding::Int.show(b"short"), "0x73686f7274");
    }

    #[test]
    fn tables_show_printable_text_as_it_is_and_the_rest_in_hex() {
        assert_eq!(Coding::Plain.show(b"two words"), "two words");
        assert_eq!(Coding::Plain.show(b"tab\t"), "0x74616209");
        assert_eq!(Coding::Plain.show("\u{e4}".as_bytes()), "0xc3a4");
        assert_eq!(Coding::Plain.show(b"0x41"), "0x30783431");
    }

    proptest! {
        #[test]
        fn what_is_shown_in_a_coding_is_read_back(bytes in proptest::collection::vec(any::<u8>(), 0..40), number: u64) {
            for coding in [Coding::Hex, Coding::Base64] {
                prop_assert_eq!(coding.decode(coding.show(&bytes).as_bytes()), Ok(bytes.clone()));
            }
            let bytes = number.to_be_bytes();
            prop_assert_eq!(Coding::Int.decode(Coding::Int.show(&bytes).as_bytes()), Ok(bytes.to_vec()));
        }

        #[test]
        fn no_text_makes_a_decoder_panic(text in proptest::collection::vec(any::<u8>(), 0..40)) {
            for coding in [Coding::Plain, Coding::Int, Coding::Hex, Coding::Base64] {
                let _ = coding.decode(&text);
            }
        }
    }
}
