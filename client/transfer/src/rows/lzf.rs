//! LZF, with which Redis compresses strings.

/// Takes `input` apart into exactly `size` bytes; none: it is no such text. The caller bounds `size`.
pub(super) fn decompress(input: &[u8], size: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(size);
    let mut rest = input.iter().copied();
    while let Some(control) = rest.next() {
        let control = usize::from(control);
        if control < 32 {
            // So many bytes as they are.
            for _ in 0..=control {
                out.push(rest.next()?);
            }
        } else {
            let mut length = control >> 5;
            if length == 7 {
                length += usize::from(rest.next()?);
            }
            let back = (control & 31) << 8 | usize::from(rest.next()?);
            let from = out.len().checked_sub(back + 1)?;
            if out.len() + length + 2 > size {
                return None;
            }
            // What is copied may be what was just written.
            for at in from..from + length + 2 {
                out.push(*out.get(at)?);
            }
        }
        if out.len() > size {
            return None;
        }
    }
    (out.len() == size).then_some(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn repetitions_are_taken_apart() {
        // "a", then 8 bytes from one byte back, then "bc".
        assert_eq!(decompress(&[0, b'a', 6 << 5, 0, 1, b'b', b'c'], 11).as_deref(), Some(&b"aaaaaaaaabc"[..]));
        assert_eq!(decompress(&[0, b'a', 7 << 5, 3, 0], 13).map(|out| out.len()), Some(13));
        assert_eq!(decompress(&[0, b'a'], 2), None);
        assert_eq!(decompress(&[1 << 5, 9], 3), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_grow(input in proptest::collection::vec(any::<u8>(), 0..60), size in 0usize..200) {
            if let Some(out) = decompress(&input, size) {
                prop_assert_eq!(out.len(), size);
            }
        }
    }
}
