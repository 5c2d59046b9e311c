//! Where a demo cuts its key space: the letters, evenly.

/// The split keys of `partitions` partitions: one letter each, or two where there are more partitions than letters.
#[must_use]
pub fn split_keys(partitions: u32) -> Vec<String> {
    let letter = |index: u32| char::from(b'a' + u8::try_from(index % 26).unwrap_or(0));
    (1..partitions)
        .map(|boundary| {
            if partitions <= 26 {
                letter(boundary * 26 / partitions).to_string()
            } else {
                let index = boundary * 26 * 26 / partitions;
                [letter(index / 26), letter(index)].iter().collect()
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_cut_evenly_and_ascend() {
        assert_eq!(split_keys(1), Vec::<String>::new());
        assert_eq!(split_keys(4), ["g", "n", "t"]);
        assert_eq!(split_keys(26).len(), 25);
        for partitions in 1..=64 {
            let keys = split_keys(partitions);
            assert_eq!(keys.len(), partitions as usize - 1);
            assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "{partitions}: {keys:?}");
        }
    }
}
