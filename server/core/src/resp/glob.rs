//! Patterns as KEYS and SCAN have them: `*`, `?`, `[a-c]`, `[^a]`, and `\` before what stands for itself.

use bytes::Bytes;

/// Longest pattern: each key is compared with all of it.
pub const PATTERN_BYTES_MAX: usize = 256;

/// Whether all of `text` matches. At most as many steps as the lengths multiplied.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut pattern_at, mut text_at) = (0, 0);
    // Behind the last star, and where the text went on there: a mismatch lets that star take one byte more.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(pattern_at) == Some(&b'*') {
            pattern_at += 1;
            star = Some((pattern_at, text_at));
            continue;
        }
        let next = match (text.get(text_at), pattern_at < pattern.len()) {
            (None, false) => return true,
            (None, true) => return false,
            (Some(&byte), true) => one(&pattern[pattern_at..], byte),
            (Some(_), false) => None,
        };
        match (next, star) {
            (Some(length), _) => {
                pattern_at += length;
                text_at += 1;
            }
            (None, Some((behind, from))) => {
                (pattern_at, text_at) = (behind, from + 1);
                star = Some((behind, from + 1));
            }
            (None, None) => return false,
        }
    }
}

/// How many bytes at the front of the pattern stand for this byte; none: they do not.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'[', set @ ..] => {
            let (negated, mut rest) = match set {
                [b'^', rest @ ..] => (true, rest),
                _ => (false, set),
            };
            let mut found = false;
            loop {
                rest = match rest {
                    // A set that is not closed ends with the pattern.
                    [] | [b']', ..] => break,
                    [b'\\', escaped, rest @ ..] => {
                        found |= *escaped == byte;
                        rest
                    }
                    [low, b'-', high, rest @ ..] => {
                        found |= (*low.min(high)..=*low.max(high)).contains(&byte);
                        rest
                    }
                    [other, rest @ ..] => {
                        found |= *other == byte;
                        rest
                    }
                };
            }
            let length = pattern.len() - rest.len() + usize::from(!rest.is_empty());
            (found != negated).then_some(length)
        }
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [other, ..] => (*other == byte).then_some(1),
        [] => None,
    }
}

/// The bytes with which all that matches begins.
pub fn prefix(pattern: &[u8]) -> Bytes {
    let mut prefix = Vec::new();
    let mut rest = pattern;
    loop {
        rest = match rest {
            [b'*' | b'?' | b'[', ..] | [] => return prefix.into(),
            [b'\\', escaped, rest @ ..] => {
                prefix.push(*escaped);
                rest
            }
            [other, rest @ ..] => {
                prefix.push(*other);
                rest
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// By the definition, without any care for time.
    fn plainly(pattern: &[u8], text: &[u8]) -> bool {
        match pattern {
            [] => text.is_empty(),
            [b'*', rest @ ..] => (0..=text.len()).any(|taken| plainly(rest, &text[taken..])),
            _ => text.split_first().is_some_and(|(&byte, others)| {
                one(pattern, byte).is_some_and(|length| plainly(&pattern[length..], others))
            }),
        }
    }

    #[test]
    fn patterns_match_as_redis_has_them() {
        for (pattern, text, wanted) in [
            ("*", "", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h*llo", "heeeello", true),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hallo", true),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("[\\]]", "]", true),
            ("[abc", "b", true),
            ("user:*:name", "user:1:2:name", true),
            ("**a**", "bab", true),
            ("", "a", false),
            ("\\", "\\", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), wanted, "{pattern} {text}");
        }
        for (pattern, wanted) in [("user:*", "user:"), ("*", ""), ("a\\*b?", "a*b"), ("abc", "abc"), ("a[b]", "a")] {
            assert_eq!(&*prefix(pattern.as_bytes()), wanted.as_bytes());
        }
    }

    proptest! {
        #[test]
        fn patterns_match_by_their_definition(pattern in "[ab*?\\[\\]^\\\\-]{0,8}", text in "[ab-]{0,8}") {
            prop_assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), plainly(pattern.as_bytes(), text.as_bytes()));
            if matches(pattern.as_bytes(), text.as_bytes()) {
                prop_assert!(text.as_bytes().starts_with(&prefix(pattern.as_bytes())));
            }
        }
    }
}
