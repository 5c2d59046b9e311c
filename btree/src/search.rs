//! Search in sorted arrays of integers, in two steps without branches that depend on the data.
//!
//! An array comes in blocks of eight: one cache line. The last key of each block but the last one stands in a sample,
//! at the head of the node. The sample tells the block, the block tells the place: a cold node costs few lines and two
//! waits (its head; then the block, with what is found there), whatever its width.

/// Keys per block: a cache line.
pub(crate) const BLOCK: usize = 8;

/// The block that holds the first key not below `bound`, or the last block.
#[inline]
pub(crate) fn block_of<const SAMPLES: usize>(sample: &[u64; SAMPLES], bound: u64) -> usize {
    let below = |at: usize| usize::from(sample[at] < bound);
    // Two rounds of a few comparisons that do not wait for each other: shorter than a binary search, whose rounds do,
    // and than a count of all, which the compiler packs into vectors bit by bit.
    match SAMPLES {
        6 => {
            let from = 3 * below(2) + below(5);
            from + below(from) + below(from + 1)
        }
        11 => {
            let from = 4 * (below(3) + below(7));
            from + below(from) + below(from + 1) + below(from + 2)
        }
        _ => sample.iter().map(|key| usize::from(*key < bound)).sum(),
    }
}

/// How many of the keys are below `bound`, whose block is known.
#[inline]
pub(crate) fn count_in_block<const SLOTS: usize>(keys: &[u64; SLOTS], block: usize, bound: u64) -> usize {
    let (blocks, _) = keys.as_chunks::<BLOCK>();
    // The last slot need not be looked at: the sample says that it is not below the bound, and in the last block it is
    // the slot that is never used.
    BLOCK * block + count_of_seven(&blocks[block], bound)
}

/// How many of the first seven keys of a block are below `bound`.
#[inline]
fn count_of_seven(keys: &[u64; BLOCK], bound: u64) -> usize {
    let below = |at: usize| usize::from(keys[at] < bound);
    let from = 4 * below(3);
    from + below(from) + below(from + 1) + below(from + 2)
}

/// How many of the keys of a block are below `bound`.
#[inline]
pub(crate) fn count_of_block(keys: &[u64; BLOCK], bound: u64) -> usize {
    count_of_seven(keys, bound) + usize::from(keys[BLOCK - 1] < bound)
}

/// How many of the keys are below `bound`. Unused slots, the last one always among them, hold `u64::MAX`.
#[inline]
pub(crate) fn count_below<const SAMPLES: usize, const SLOTS: usize>(
    sample: &[u64; SAMPLES],
    keys: &[u64; SLOTS],
    bound: u64,
) -> usize {
    const { assert!(SLOTS == BLOCK * (SAMPLES + 1)) };
    count_in_block(keys, block_of(sample, bound), bound)
}

/// Makes the sample fit again after keys in `from..=to` changed.
#[inline]
pub(crate) fn take_sample<const SAMPLES: usize, const SLOTS: usize>(
    sample: &mut [u64; SAMPLES],
    keys: &[u64; SLOTS],
    from: usize,
    to: usize,
) {
    const { assert!(SLOTS == BLOCK * (SAMPLES + 1)) };
    for block in from / BLOCK..SAMPLES.min(to / BLOCK + 1) {
        sample[block] = keys[BLOCK * block + BLOCK - 1];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_at_every_length_and_bound() {
        const SLOTS: usize = 56;
        for len in 0..SLOTS {
            let keys: [u64; SLOTS] = std::array::from_fn(|i| if i < len { 10 * i as u64 } else { u64::MAX });
            let mut sample = [u64::MAX; SLOTS / BLOCK - 1];
            take_sample(&mut sample, &keys, 0, len);
            for bound in (0..640).chain([u64::MAX]) {
                let expected = keys[..len].iter().filter(|key| **key < bound).count();
                assert_eq!(count_below(&sample, &keys, bound), expected);
            }
        }
    }
}
