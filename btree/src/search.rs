//! Search in sorted arrays of integers, without branches that depend on the data.
//!
//! A cold array costs one round of independent cache misses (every eighth key is looked at), never a chain of them.

/// How many of the ascending `keys` are below `bound`. Unused slots hold `u64::MAX`, which is below nothing.
#[inline]
pub(crate) fn count_below<const N: usize>(keys: &[u64; N], bound: u64) -> usize {
    const STEP: usize = 8;
    let mut blocks = 0;
    for block in 1..=(N - 1) / STEP {
        blocks += usize::from(keys[block * STEP - 1] < bound);
    }
    // The last block may be short: its window starts earlier, among keys that are below as well.
    let base = (blocks * STEP).min(N - STEP);
    let window: &[u64; STEP] = keys[base..].first_chunk().expect("the window lies inside");
    base + window.iter().map(|key| usize::from(*key < bound)).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_at_every_length_and_bound() {
        for len in 0..=62 {
            let keys: [u64; 62] = std::array::from_fn(|i| if i < len { 10 * i as u64 } else { u64::MAX });
            for bound in (0..640).chain([u64::MAX]) {
                assert_eq!(count_below(&keys, bound), keys[..len].iter().filter(|key| **key < bound).count());
            }
        }
    }
}
